/* Vectors of floats, as wide as the processor's registers, in the vector types of GCC and Clang. */
#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
#define INLINE static inline __attribute__((always_inline))

INLINE vf load(const float *p) {
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void store(float *p, vf v) { memcpy(p, &v, sizeof v); }

INLINE vf all(float a) { return a - (vf){0}; }

/* The first n < LANES floats, and `fill` in the other lanes. */
INLINE vf load_part(const float *p, int64_t n, float fill) {
    vf v = all(fill);
    for (int64_t i = 0; i < n; i++) ((float *)&v)[i] = p[i];
    return v;
}

INLINE void store_part(float *p, vf v, int64_t n) {
    for (int64_t i = 0; i < n; i++) p[i] = ((float *)&v)[i];
}

INLINE vf choose(vi mask, vf a, vf b) { return (vf)((mask & (vi)a) | (~mask & (vi)b)); }

/* The larger and the smaller of a constant, or of what was found so far, and x; a NaN in x stays. */
#if defined(__AVX512F__)
INLINE vf larger(vf c, vf x) { return (vf)_mm512_max_ps((__m512)c, (__m512)x); }
INLINE vf smaller(vf c, vf x) { return (vf)_mm512_min_ps((__m512)c, (__m512)x); }
#elif defined(__AVX__)
INLINE vf larger(vf c, vf x) { return (vf)_mm256_max_ps((__m256)c, (__m256)x); }
INLINE vf smaller(vf c, vf x) { return (vf)_mm256_min_ps((__m256)c, (__m256)x); }
#else
INLINE vf larger(vf c, vf x) { return choose(c > x, c, x); }
INLINE vf smaller(vf c, vf x) { return choose(c < x, c, x); }
#endif

INLINE float sum_of(vf v) {
    float a[LANES];
    memcpy(a, &v, sizeof a);
    for (int step = LANES / 2; step; step /= 2)
        for (int i = 0; i < step; i++) a[i] += a[i + step];
    return a[0];
}

/* p 2^n, rounded once where it is below the smallest normal number; shifted is n + 1.5 * 2^23. */
INLINE vf scaled(vf p, vf n, vf shifted) {
#if defined(__AVX512F__)
    (void)shifted;
    return (vf)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
    (void)n;
    vi k = (vi)shifted - 0x4B400000, half = k >> 1; /* two factors: one alone may be out of range */
    return p * (vf)((half + 127) << 23) * (vf)((k - half + 127) << 23);
#endif
}

/* exp(x) for x <= 89, to 1 ulp: 2^n times a polynomial in r = x - n log 2, |r| <= log(2)/2. */
INLINE vf exponential_below(vf x) {
    x = larger(all(-104.0f), x);
    vf shifted = x * all(1.44269504f) + all(12582912.0f); /* the last bits are those of the nearest integer */
    vf n = shifted - all(12582912.0f);
    vf r = x - n * all(0.693145752f);
    r = r - n * all(1.42860677e-6f);
    vf p = all(0.001381459879f);
    p = p * r + all(0.008368716575f);
    p = p * r + all(0.041668388993f);
    p = p * r + all(0.166665211320f);
    p = p * r + all(0.499999940395f);
    p = p * (r * r) + r;
    return scaled(p + all(1.0f), n, shifted);
}

INLINE vf exponential(vf x) { return exponential_below(smaller(all(89.0f), x)); }
