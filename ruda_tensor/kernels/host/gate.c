/* The gated activations x s(x), each with its slope: the formulas of ruda_tensor/ops/_gelu.py in one pass; and relu. */
#include "vector.h"

INLINE void logistic(vf x, vf z, vf dz, vf *out, vf *slope) {
    vf s = all(1.0f) / (all(1.0f) + exponential(z));
    vf y = x * s;
    *out = y;
    *slope = s * (all(1.0f) + (x - y) * dz);
}

INLINE void silu(vf x, vf *out, vf *slope) { logistic(x, -x, all(1.0f), out, slope); }

INLINE void gelu_tanh(vf x, vf *out, vf *slope) {
    const float root = 0.797884561f, cubic = root * 0.044715f; /* sqrt(2 / pi) */
    x = choose(x < all(-1e4f), all(-1e4f), x); /* both are 0 from far above, and 0 times an overflow would be NaN */
    vf s = x * x;
    s = choose(s > all(512.0f), all(512.0f), s); /* the sigmoid is 0 or 1 beyond */
    logistic(x, x * (s * all(-2.0f * cubic) - all(2.0f * root)), s * all(6.0f * cubic) + all(2.0f * root), out, slope);
}

INLINE void gelu(vf x, vf *out, vf *slope) {
    vf a = (vf)((vi)x & 0x7fffffff), e = exponential(x * x * all(-0.5f));
    vf b = choose(a > all(16.0f), all(16.0f), a); /* e is 0 beyond; the polynomials would overflow */
    vf top = ((all(0.39889559135f) * b + all(2.7969077458f)) * b + all(8.4697402215f)) * b + all(11.699484515f);
    vf below = (((b + all(7.0060663274f)) * b + all(22.309467536f)) * b + all(35.608723133f)) * b + all(23.398977902f);
    vf lower = top * e / below;
    vf p = choose((vi)x < 0, lower, all(1.0f) - lower);
    *out = x * p;
    *slope = p + x * e * all(0.398942280f);
}

#define EACH(NAME)                                                                                                     \
    void NAME##_values(const float *x, float *out, float *slope, int64_t n) {                                          \
        int64_t i = 0;                                                                                                 \
        vf y, dy;                                                                                                      \
        for (; i + LANES <= n; i += LANES) {                                                                           \
            NAME(load(x + i), &y, &dy);                                                                                \
            store(out + i, y);                                                                                         \
            store(slope + i, dy);                                                                                      \
        }                                                                                                              \
        if (i < n) {                                                                                                   \
            NAME(load_part(x + i, n - i, 0), &y, &dy);                                                                 \
            store_part(out + i, y, n - i);                                                                             \
            store_part(slope + i, dy, n - i);                                                                          \
        }                                                                                                              \
    }

EACH(silu)
EACH(gelu_tanh)
EACH(gelu)

INLINE void relu(vf x, vf *out, vf *slope) {
    *out = larger(all(0), x);
    *slope = choose(*out > all(0), all(1.0f), all(0));
}

/* What comes in times the slope; of relu, whose gradient is a choice, nothing where the slope is 0: inf as well. */
INLINE vf through(vf g, vf slope, int chosen) { return chosen ? choose(slope > all(0), g, all(0)) : g * slope; }

/* Values alone; and what backward needs: the values once more, g times the slope in its place, and the sums of that over
   the rows, which are added to `sums`. Four rows at a time, so that fewer roundings fall on a sum; `values` and `sums` may
   be missing. */
#define AGAIN(NAME, CHOSEN)                                                                                            \
    void NAME##_alone(const float *x, float *out, int64_t n) {                                                         \
        int64_t i = 0;                                                                                                 \
        vf y, dy;                                                                                                      \
        for (; i + LANES <= n; i += LANES) {                                                                           \
            NAME(load(x + i), &y, &dy);                                                                                \
            store(out + i, y);                                                                                         \
        }                                                                                                              \
        if (i < n) {                                                                                                   \
            NAME(load_part(x + i, n - i, 0), &y, &dy);                                                                 \
            store_part(out + i, y, n - i);                                                                             \
        }                                                                                                              \
    }                                                                                                                  \
    void NAME##_again(const float *x, float *g, float *values, float *sums, int64_t rows, int64_t n) {                 \
        for (int64_t first = 0; first < rows; first += 4) {                                                            \
            const int64_t few = rows - first < 4 ? rows - first : 4;                                                   \
            for (int64_t j = 0; j < n; j += LANES) {                                                                   \
                const int64_t count = n - j;                                                                           \
                const int whole = count >= LANES;                                                                      \
                vf parts[4] = {all(0), all(0), all(0), all(0)};                                                        \
                for (int64_t i = 0; i < few; i++) {                                                                    \
                    const int64_t at = (first + i) * n + j;                                                            \
                    vf y, dy;                                                                                          \
                    NAME(whole ? load(x + at) : load_part(x + at, count, 0), &y, &dy);                                 \
                    const vf d = through(whole ? load(g + at) : load_part(g + at, count, 0), dy, CHOSEN);              \
                    parts[i] = d;                                                                                      \
                    if (whole) store(g + at, d);                                                                       \
                    else store_part(g + at, d, count);                                                                 \
                    if (values && whole) store(values + at, y);                                                        \
                    else if (values) store_part(values + at, y, count);                                                \
                }                                                                                                      \
                const vf sum = (parts[0] + parts[1]) + (parts[2] + parts[3]);                                          \
                if (sums && whole) store(sums + j, load(sums + j) + sum);                                              \
                else if (sums) store_part(sums + j, load_part(sums + j, count, 0) + sum, count);                       \
            }                                                                                                          \
        }                                                                                                              \
    }

AGAIN(relu, 1)
AGAIN(silu, 0)
AGAIN(gelu_tanh, 0)
AGAIN(gelu, 0)

/* x where y > 0, and 0 elsewhere. */
void keep_positive(const float *x, const float *y, float *out, int64_t n) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) store(out + i, choose(load(y + i) > all(0), load(x + i), all(0)));
    for (; i < n; i++) out[i] = y[i] > 0 ? x[i] : 0;
}

void exp_values(const float *x, float *out, int64_t n) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) store(out + i, exponential(load(x + i)));
    if (i < n) store_part(out + i, exponential(load_part(x + i, n - i, 0)), n - i);
}
