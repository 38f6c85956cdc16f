#pragma once
#include "types.cuh"

#define INFINITE __uint_as_float(0x7f800000u)
#define NOT_A_NUMBER __uint_as_float(0x7fc00000u)

// One instruction each: 1 / x to 1 ulp, and 2^x to 2 ulp.
#ifndef HOST_SHIM
DEVICE float near_inverse(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE float near_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#else
DEVICE float near_inverse(float x) { return 1.0f / x; }
DEVICE float near_exp2(float x) { return exp2f(x); }
#endif

// exp and 1 / x for results that are stored as S: half types need only 2^-12 of them, and the quick ones save time.
template <class S> struct For {
    static __device__ __forceinline__ float exp(float x) { return __expf(x); }
    static __device__ __forceinline__ float inverse(float x) { return near_inverse(x); }
};
template <> struct For<float> {
    static __device__ __forceinline__ float exp(float x) { return expf(x); }
    static __device__ __forceinline__ float inverse(float x) { return near_inverse(x); }
};
template <> struct For<double> {
    static __device__ __forceinline__ double exp(double x) { return ::exp(x); }
    static __device__ __forceinline__ double inverse(double x) { return 1.0 / x; }
};

DEVICE float log_of(float x) { return logf(x); }
DEVICE double log_of(double x) { return log(x); }
DEVICE float root_of(float x) { return sqrtf(x); }
DEVICE double root_of(double x) { return sqrt(x); }
DEVICE float inverse_root(float x) { return rsqrtf(x); }
DEVICE double inverse_root(double x) { return 1.0 / sqrt(x); }
DEVICE float tanh_of(float x) { return tanhf(x); }
DEVICE double tanh_of(double x) { return tanh(x); }

// Comparisons that ignore a NaN: whoever needs it to show gets it from the differences that follow.
template <class R> DEVICE R larger(R a, R b) { return a > b || b != b ? a : b; }
DEVICE float larger(float a, float b) { return fmaxf(a, b); }

// The normal distribution function and exp(-x^2 / 2). Its lower tail is exp(-x^2 / 2) t P(t) with t = 1 / (1 + p |x|) and a
// polynomial P fitted to scipy's erfcx for |x| < 13.5, where the tail leaves float32: in exact arithmetic its relative
// error is 1e-8, and 5e-7 for results in half types. Both are exact in the tail, and take no branch.
template <class R> struct Normal { R cdf, bell; };

template <class S> struct NormalFor {
    static __device__ __forceinline__ Normal<float> at(float x) {
        const float t = near_inverse(1.0f + 0.26390358f * fabsf(x)), bell = near_exp2(x * x * -0.72134752f);
        float p = -0.06940744072198868f;
        p = p * t + 0.20416471362113953f;
        p = p * t - 0.07718250900506973f;
        p = p * t + 0.14924776554107666f;
        p = p * t + 0.08022454380989075f;
        p = p * t + 0.10782021284103394f;
        p = p * t + 0.10513244569301605f;
        const float tail = p * t * bell;
        return {x > 0.0f ? 1.0f - tail : tail, bell};
    }
};
template <> struct NormalFor<float> {
    static __device__ __forceinline__ Normal<float> at(float x) {
        const float a = fminf(fabsf(x), 16.0f), t = near_inverse(1.0f + 0.26472873f * a);
        const float square = a * a, rest = fmaf(a, a, -square);  // exp needs the square to more than a float holds
        float bell = expf(-0.5f * square);
        bell -= bell * 0.5f * rest;
        float p = 0.031019266694784164f;
        p = p * t - 0.14569725096225739f;
        p = p * t + 0.22157619893550873f;
        p = p * t - 0.12033277750015259f;
        p = p * t + 0.1405973732471466f;
        p = p * t + 0.05923151969909668f;
        p = p * t + 0.10286509245634079f;
        p = p * t + 0.10510538518428802f;
        p = p * t + 0.10563520342111588f;
        const float tail = p * t * bell;
        return {x > 0.0f ? 1.0f - tail : tail, bell};
    }
};
template <> struct NormalFor<double> {
    static __device__ __forceinline__ Normal<double> at(double x) { return {normcdf(x), exp(-0.5 * x * x)}; }
};

// What a reduction makes of two numbers: their sum, or the larger or smaller one, or a NaN where one of them is.
enum { SUM, MAX, MIN };
template <int WHICH, class R> DEVICE R combine(R a, R b) {
    if (WHICH == SUM) return a + b;
    return (WHICH == MAX ? a > b : a < b) || a != a ? a : b;
}
template <int WHICH, class R> DEVICE R identity() {
    return WHICH == SUM ? R(0) : WHICH == MAX ? R(-INFINITE) : R(INFINITE);
}

// A value and its slope, as in ruda_tensor/ops/_gelu.py. F: 0 relu, 1 gelu by tanh, 2 gelu by erf, 3 silu.
enum { RELU, GELU_TANH, GELU, SILU };

template <class S, class R> DEVICE R sigmoid(R x) { return For<S>::inverse(R(1) + For<S>::exp(-x)); }

template <int F, class S, class R> DEVICE R activate(R x) {
    if (F == RELU) return x > R(0) || x != x ? x : R(0);
    if (F == SILU) return x * sigmoid<S>(x);
    if (F == GELU) return x * NormalFor<S>::at(x).cdf;
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
    if (F == GELU) {
        const Normal<R> normal = NormalFor<S>::at(x);
        return normal.cdf + x * R(0.3989422804014327) * normal.bell;
    }
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
