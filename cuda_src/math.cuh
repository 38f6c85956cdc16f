#pragma once
#include "types.cuh"

#define INFINITE __uint_as_float(0x7f800000u)
#define NOT_A_NUMBER __uint_as_float(0x7fc00000u)

// exp and 1 / x for results that are stored as S: half types need only 2^-12 of them, and the quick ones save time.
template <class S> struct For {
    static __device__ __forceinline__ float exp(float x) { return __expf(x); }
    static __device__ __forceinline__ float inverse(float x) { return __fdividef(1.0f, x); }
};
template <> struct For<float> {
    static __device__ __forceinline__ float exp(float x) { return expf(x); }
    static __device__ __forceinline__ float inverse(float x) { return 1.0f / x; }
};
template <> struct For<double> {
    static __device__ __forceinline__ double exp(double x) { return ::exp(x); }
    static __device__ __forceinline__ double inverse(double x) { return 1.0 / x; }
};

DEVICE float log_of(float x) { return logf(x); }
DEVICE double log_of(double x) { return log(x); }
DEVICE float root_of(float x) { return sqrtf(x); }
DEVICE double root_of(double x) { return sqrt(x); }
DEVICE float tanh_of(float x) { return tanhf(x); }
DEVICE double tanh_of(double x) { return tanh(x); }
DEVICE float normal_cdf(float x) { return normcdff(x); }
DEVICE double normal_cdf(double x) { return normcdf(x); }

// Comparisons that ignore a NaN: whoever needs it to show gets it from the differences that follow.
template <class R> DEVICE R larger(R a, R b) { return a > b || b != b ? a : b; }
DEVICE float larger(float a, float b) { return fmaxf(a, b); }

// A value and its slope, as in ruda_tensor/ops/_gelu.py. F: 0 relu, 1 gelu by tanh, 2 gelu by erf, 3 silu.
enum { RELU, GELU_TANH, GELU, SILU };

template <class S, class R> DEVICE R sigmoid(R x) { return For<S>::inverse(R(1) + For<S>::exp(-x)); }

template <int F, class S, class R> DEVICE R activate(R x) {
    if (F == RELU) return x > R(0) || x != x ? x : R(0);
    if (F == SILU) return x * sigmoid<S>(x);
    if (F == GELU) return x * normal_cdf(x);
    x = x < R(-1e4) ? R(-1e4) : x;  // value and slope are 0 from far above, and 0 times an overflow would be NaN
    const R square = x * x > R(512) ? R(512) : x * x;  // the sigmoid is 0 or 1 beyond
    return x * sigmoid<S>(x * (R(2 * 0.7978845608028654) + R(2 * 0.7978845608028654 * 0.044715) * square));
}

template <int F, class S, class R> DEVICE R slope(R x) {
    if (F == RELU) return x > R(0) ? R(1) : R(0);
    if (F == SILU) {
        const R s = sigmoid<S>(x);
        return s * (R(1) + (x - x * s));
    }
    if (F == GELU) return normal_cdf(x) + x * R(0.3989422804014327) * For<S>::exp(R(-0.5) * x * x);
    x = x < R(-1e4) ? R(-1e4) : x;
    const R square = x * x > R(512) ? R(512) : x * x;
    const R c = R(2 * 0.7978845608028654), cubic = R(2 * 0.7978845608028654 * 0.044715);
    const R s = sigmoid<S>(x * (c + cubic * square));
    return s * (R(1) + (x - x * s) * (c + R(3) * cubic * square));
}

// The gradient g of the value, pulled back to x: where relu is off it is 0 even for an inf or a NaN.
template <int F, class S, class R> DEVICE R pull(R g, R x) {
    if (F == RELU) return x > R(0) ? g : R(0);
    return g * slope<F, S>(x);
}
