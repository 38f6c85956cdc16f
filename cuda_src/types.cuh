#pragma once
// Storage types and vectors of them. Half types are storage: they are widened on loading and rounded once on storing.
// No header is included: that makes a compilation take a tenth of a second instead of one.

#define DEVICE static __device__ __forceinline__

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

template <int N, class S> DEVICE Pack<S, N> load(const S* p) { return *reinterpret_cast<const Pack<S, N>*>(p); }
// 16 bytes go out by one instruction that says so: left to itself the compiler splits some of them. It is not told that
// memory changes, so that loads may move past it: no kernel reads what it has stored.
template <class S, int N> DEVICE void store(S* p, const Pack<S, N>& v) {
#ifndef HOST_SHIM
    if (sizeof(v) == 16) {
        u32 w[4];
        memcpy(w, &v, 16);
        asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(p)), "r"(w[0]), "r"(w[1]),
                     "r"(w[2]), "r"(w[3]));
        return;
    }
#endif
    *reinterpret_cast<Pack<S, N>*>(p) = v;
}

#define UNROLL _Pragma("unroll")
