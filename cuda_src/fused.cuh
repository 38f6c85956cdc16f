#pragma once
#include "math.cuh"

// What generated elementwise kernels use (ruda_tensor/kernels/generated.py writes the kernels). A block takes BATCH vectors
// of VECTOR numbers per thread, loads all of them, then computes. The last numbers go one by one.
#define FUSED_THREADS 256
#define EACH_BATCH(i, e)                 \
    UNROLL for (int i = 0; i < BATCH; ++i) \
        if (const i64 e = (((i64)blockIdx.x * BATCH + i) * FUSED_THREADS + threadIdx.x) * VECTOR; e < size)
#define EACH_OF(k) UNROLL for (int k = 0; k < VECTOR; ++k)

typedef unsigned char Bool;

template <class S> DEVICE Pack<S, VECTOR> take(const S* p, i64 left) {
    if (left >= VECTOR) return load<VECTOR>(p);
    Pack<S, VECTOR> v = {};
    EACH_OF(k) if (k < left) v.at[k] = p[k];
    return v;
}
template <class S> DEVICE Pack<S, VECTOR> gather(const S* p, i64 step, i64 left) {
    Pack<S, VECTOR> v = {};
    EACH_OF(k) if (k < left) v.at[k] = p[k * step];
    return v;
}
template <class S> DEVICE void give(S* p, const Pack<S, VECTOR>& v, i64 left) {
    if (left >= VECTOR) return store(p, v);
    EACH_OF(k) if (k < left) p[k] = v.at[k];
}

// Of two numbers, a NaN if there is one.
template <class R> DEVICE R highest(R a, R b) { return a > b || a != a ? a : b; }
template <class R> DEVICE R lowest(R a, R b) { return a < b || a != a ? a : b; }
template <class R> DEVICE R sign_of(R x) { return R(x > R(0)) - R(x < R(0)); }
DEVICE u32 bits_of(float x) { return __float_as_uint(x); }
DEVICE u64 bits_of(double x) { u64 u; memcpy(&u, &x, 8); return u; }
DEVICE float number_of(u32 u) { return __uint_as_float(u); }
DEVICE double number_of(u64 u) { double x; memcpy(&x, &u, 8); return x; }
DEVICE bool negative(float x) { return bits_of(x) >> 31; }
DEVICE bool negative(double x) { return bits_of(x) >> 63; }

// Integers: by 0 they give 0, as NumPy's do, and the quotient is rounded down.
template <class R> DEVICE R floor_quotient(R a, R b) {
    if (b == R(0)) return R(0);
    if (R(-1) < R(0) && b == R(-1)) return R(u64(0) - u64(a));
    const R q = a / b;
    return R(q - R(R(q * b) != a && (a < R(0)) != (b < R(0))));
}
template <class R> DEVICE R floor_rest(R a, R b) { return b == R(0) ? R(0) : R(u64(a) - u64(floor_quotient(a, b)) * u64(b)); }

// For results that are stored in half types, which have at most 11 bits: relative errors below 2^-17.
DEVICE float quick_log1p(float x) {  // the quick logarithm has an absolute error, so near 0 it is the series
    const float series = 1.0f - x * (0.5f - x * (0.33333333f - x * (0.25f - x * (0.2f - x * 0.16666667f))));
    return fabsf(x) < 0.125f ? x * series : __logf(1.0f + x);
}
DEVICE float quick_quotient(float a, float b) {  // the quick reciprocal of what is above 2^126 is 0
    const float s = fabsf(b) > 8.5e37f ? 0.25f : 1.0f;
    return (a * s) * __fdividef(1.0f, b * s);
}
DEVICE float quick_tanh(float x) {
    const float a = fabsf(x), s = x * x;
    const float far = 1.0f - __fdividef(2.0f, 1.0f + __expf(a + a));
    return a < 0.25f ? x * (1.0f - s * (0.33333333f - s * (0.13333333f - s * 0.053968254f))) : copysignf(far, x);
}
