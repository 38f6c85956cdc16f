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
#if defined(__AVX512F__)
INLINE __mmask16 lanes_below(int64_t n) { return (__mmask16)((1u << n) - 1); }
INLINE vf load_part(const float *p, int64_t n, float fill) {
    return (vf)_mm512_mask_loadu_ps((__m512)all(fill), lanes_below(n), p);
}
INLINE void store_part(float *p, vf v, int64_t n) { _mm512_mask_storeu_ps(p, lanes_below(n), (__m512)v); }
#else
INLINE vf load_part(const float *p, int64_t n, float fill) {
    vf v = all(fill);
    for (int64_t i = 0; i < n; i++) ((float *)&v)[i] = p[i];
    return v;
}
INLINE void store_part(float *p, vf v, int64_t n) {
    for (int64_t i = 0; i < n; i++) p[i] = ((float *)&v)[i];
}
#endif

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

/* Of all lanes, in halves: neighbours last. */
#if defined(__AVX512F__)
INLINE float sum_of(vf v) { return _mm512_reduce_add_ps((__m512)v); }
INLINE float largest_of(vf v) { return _mm512_reduce_max_ps((__m512)v); }
#else
INLINE float sum_of(vf v) {
    float a[LANES];
    memcpy(a, &v, sizeof a);
    for (int step = LANES / 2; step; step /= 2)
        for (int i = 0; i < step; i++) a[i] += a[i + step];
    return a[0];
}
INLINE float largest_of(vf v) {
    float best = v[0];
    for (int i = 1; i < LANES; i++) best = best < v[i] ? v[i] : best;
    return best;
}
#endif

/* The largest of n floats; where one is a NaN, that or another. */
INLINE float largest(const float *x, int64_t n) {
    int64_t j;
    vf top = all(-INFINITY), next = top;
    for (j = 0; j + 2 * LANES <= n; j += 2 * LANES) {
        top = larger(top, load(x + j));
        next = larger(next, load(x + j + LANES));
    }
    for (; j + LANES <= n; j += LANES) top = larger(top, load(x + j));
    if (j < n) next = larger(next, load_part(x + j, n - j, -INFINITY));
    return largest_of(larger(top, next));
}

INLINE vi lane_numbers(void) {
    static const int32_t order[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    vi lanes;
    memcpy(&lanes, order, sizeof lanes);
    return lanes;
}

/* The first n < LANES floats minus c. Others get a number whose exponential is nothing beside 1, and yet a normal
   number: processors take very long for smaller ones. */
INLINE vf part_minus(const float *p, int64_t n, vf c) {
    return choose(lane_numbers() < (int32_t)n, load_part(p, n, 0) - c, all(-80.0f));
}

/* p 2^n, rounded once where it is below the smallest normal number; shifted is n + 1.5 * 2^23. 0 for x < -104: left
   out, since processors take very long for what they round to 0. */
INLINE vf scaled(vf p, vf n, vf shifted, vf x) {
#if defined(__AVX512F__)
    (void)shifted;
    const __mmask16 some = _mm512_cmp_ps_mask((__m512)x, (__m512)all(-104.0f), _CMP_NLT_UQ);
    return (vf)_mm512_maskz_scalef_ps(some, (__m512)p, (__m512)n);
#else
    (void)n;
    vi k = (vi)shifted - 0x4B400000, half = k >> 1; /* two factors: one alone may be out of range */
    return choose(x < -104.0f, all(0), p * (vf)((half + 127) << 23) * (vf)((k - half + 127) << 23));
#endif
}

/* exp(x) for x <= 89, to 1 ulp: 2^n times a polynomial in r = x - n log 2, |r| <= log(2)/2. */
INLINE vf exponential_below(vf x) {
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
    return scaled(p + all(1.0f), n, shifted, x);
}

INLINE vf exponential(vf x) { return exponential_below(smaller(all(89.0f), x)); }

#if defined(__AVX512F__)
/* Exchange the blocks beside the diagonal, of 8 by 8 to 1 by 1: what was a row becomes a column. */
INLINE void turn_block(vf *rows) {
    const vi lane = lane_numbers();
#pragma GCC unroll 4
    for (int h = LANES / 2; h; h /= 2) {
        const vi high = (lane & h) != 0, upper = (~high & lane) | (high & (lane - h + LANES)),
                 lower = (~high & (lane + h)) | (high & (lane + LANES));
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) {
            if (i & h) continue;
            const __m512 a = (__m512)rows[i], b = (__m512)rows[i + h];
            rows[i] = (vf)_mm512_permutex2var_ps(a, (__m512i)upper, b);
            rows[i + h] = (vf)_mm512_permutex2var_ps(a, (__m512i)lower, b);
        }
    }
}
#else
/* What was a row becomes a column. */
INLINE void turn_block(vf *rows) {
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < i; j++) {
            const float above = rows[j][i];
            rows[j][i] = rows[i][j], rows[i][j] = above;
        }
}
#endif
