#pragma once
// Storage types and vectors of them. Half types are storage: they are widened on loading and rounded once on storing.
// No header is included: that makes a compilation take a tenth of a second instead of one.

#define DEVICE static __device__ __forceinline__
#define UNROLL _Pragma("unroll")

typedef long long i64;
typedef unsigned long long u64;
typedef unsigned int u32;

struct Half { unsigned short bits; };
struct Bfloat { unsigned short bits; };

template <class S> struct Wide { typedef float type; };
template <> struct Wide<double> { typedef double type; };

#ifndef HOST_SHIM
DEVICE float from_half(unsigned short h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
DEVICE unsigned short to_half(float f) {
    unsigned short h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
#endif
DEVICE unsigned short to_bfloat(float f) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    unsigned short h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
#else
    if (f != f) return 0x7fff;
    const u32 u = __float_as_uint(f);
    return (unsigned short)((u + 0x7fff + ((u >> 16) & 1)) >> 16);  // to nearest, ties to even
#endif
}

DEVICE float widen(float x) { return x; }
DEVICE double widen(double x) { return x; }
DEVICE float widen(Half x) { return from_half(x.bits); }
DEVICE float widen(Bfloat x) { return __uint_as_float((u32)x.bits << 16); }

DEVICE void narrow(float x, float& out) { out = x; }
DEVICE void narrow(double x, double& out) { out = x; }
DEVICE void narrow(float x, Half& out) { out.bits = to_half(x); }
DEVICE void narrow(float x, Bfloat& out) { out.bits = to_bfloat(x); }

// N numbers that move in accesses of up to 16 bytes; the pointer must be aligned to that.
template <class S, int N> struct alignas(sizeof(S) * N < 16 ? sizeof(S) * N : 16) Pack { S at[N]; };

// The numbers of a pack as they are computed with. Halves are widened and rounded two at a time, straight from and to the
// 32-bit words they lie in: one by one it takes two to three times the instructions.
template <class R, int N> struct Values { R at[N]; };

DEVICE void widen_pair(u32 word, Bfloat, float& low, float& high) {
    low = __uint_as_float(word << 16);
    high = __uint_as_float(word & 0xffff0000u);
}
DEVICE void widen_pair(u32 word, Half, float& low, float& high) {
    low = from_half((unsigned short)word);
    high = from_half((unsigned short)(word >> 16));
}
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
DEVICE u32 narrow_pair(float low, float high, Bfloat) {
    u32 word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}
DEVICE u32 narrow_pair(float low, float high, Half) {
    u32 word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}
#else
template <class S> DEVICE u32 narrow_pair(float low, float high, S) {
    S a, b;
    narrow(low, a);
    narrow(high, b);
    return (u32)a.bits | (u32)b.bits << 16;
}
#endif

template <class S, int N> struct Convert {  // float and double, which are what is computed with
    static __device__ __forceinline__ Values<S, N> widen(const Pack<S, N>& v) {
        Values<S, N> out;
        for (int k = 0; k < N; ++k) out.at[k] = v.at[k];
        return out;
    }
    static __device__ __forceinline__ Pack<S, N> narrow(const Values<S, N>& v) {
        Pack<S, N> out;
        for (int k = 0; k < N; ++k) out.at[k] = v.at[k];
        return out;
    }
};
template <class S, int N> struct ConvertHalves {
    static __device__ __forceinline__ Values<float, N> widen(const Pack<S, N>& v) {
        Values<float, N> out;
        u32 words[N / 2];
        memcpy(words, &v, sizeof(v));
        UNROLL for (int k = 0; k < N / 2; ++k) widen_pair(words[k], S(), out.at[2 * k], out.at[2 * k + 1]);
        return out;
    }
    static __device__ __forceinline__ Pack<S, N> narrow(const Values<float, N>& v) {
        Pack<S, N> out;
        u32 words[N / 2];
        UNROLL for (int k = 0; k < N / 2; ++k) words[k] = narrow_pair(v.at[2 * k], v.at[2 * k + 1], S());
        memcpy(&out, words, sizeof(out));
        return out;
    }
};
template <class S> struct ConvertOne {
    static __device__ __forceinline__ Values<float, 1> widen(const Pack<S, 1>& v) { return {{::widen(v.at[0])}}; }
    static __device__ __forceinline__ Pack<S, 1> narrow(const Values<float, 1>& v) {
        Pack<S, 1> out;
        ::narrow(v.at[0], out.at[0]);
        return out;
    }
};
template <int N> struct Convert<Half, N> : ConvertHalves<Half, N> {};
template <int N> struct Convert<Bfloat, N> : ConvertHalves<Bfloat, N> {};
template <> struct Convert<Half, 1> : ConvertOne<Half> {};
template <> struct Convert<Bfloat, 1> : ConvertOne<Bfloat> {};

template <class S, int N> DEVICE Values<typename Wide<S>::type, N> widen(const Pack<S, N>& v) {
    return Convert<S, N>::widen(v);
}
template <class S, int N> DEVICE Pack<S, N> narrow(const Values<typename Wide<S>::type, N>& v) {
    return Convert<S, N>::narrow(v);
}

template <int N, class S> DEVICE Pack<S, N> load(const S* p) { return *reinterpret_cast<const Pack<S, N>*>(p); }
// 16 bytes go out by one instruction that says so: left to itself the compiler splits some of them. It is not told that
// memory changes, so that loads may move past it: no kernel reads what it has stored.
template <class S, int N> DEVICE void store(S* p, const Pack<S, N>& v) {
#ifndef HOST_SHIM
    if (sizeof(v) % 16 == 0) {
        u32 w[(sizeof(v) + 3) / 4];
        memcpy(w, &v, sizeof(v));
        UNROLL for (int k = 0; k < (int)sizeof(v) / 16; ++k)
            asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global((char*)p + 16 * k)),
                         "r"(w[4 * k]), "r"(w[4 * k + 1]), "r"(w[4 * k + 2]), "r"(w[4 * k + 3]));
        return;
    }
#endif
    *reinterpret_cast<Pack<S, N>*>(p) = v;
}
