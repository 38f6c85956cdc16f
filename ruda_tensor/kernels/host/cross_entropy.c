/* Cross-entropy between rows of logits and a class for each: -log softmax(x)[class]. */
#include "vector.h"

INLINE vf next(const float *x, int64_t left, vf shift) {
    return exponential_below(left < LANES ? part_minus(x, left, shift) : load(x) - shift);
}

/* The largest logit, the sum of exp(x - largest) and the loss of each row; a row of the class `ignored` costs 0. */
void cross_entropy_forward(const float *x, const int64_t *classes, int64_t ignored, float *top, float *whole, float *loss,
                           int64_t rows, int64_t n) {
    for (int64_t row = 0; row < rows; row++, x += n) {
        const float high = top[row] = largest(x, n);
        const vf shift = all(high);
        vf sums[2] = {{0}};
        int64_t j = 0;
        for (; j + 2 * LANES <= n; j += 2 * LANES) {
            sums[0] += next(x + j, LANES, shift);
            sums[1] += next(x + j + LANES, LANES, shift);
        }
        for (; j < n; j += LANES) sums[0] += next(x + j, n - j, shift);
        const float sum = whole[row] = sum_of(sums[0] + sums[1]);
        loss[row] = classes[row] == ignored ? 0 : logf(sum) - (x[classes[row]] - high);
    }
}

/* dx = hit (p - 1 at the class) with hit = g factor, where each row's g is `apart` beyond the one before. */
void cross_entropy_backward(const float *g, int64_t apart, const float *x, const int64_t *classes, int64_t ignored,
                            const float *top, const float *whole, float *dx, int64_t rows, int64_t n, float factor) {
    for (int64_t row = 0; row < rows; row++, g += apart, x += n, dx += n) {
        if (classes[row] == ignored) {
            memset(dx, 0, (size_t)n * sizeof *dx);
            continue;
        }
        const float hit = *g * factor;
        const vf shift = all(top[row]), pull = all(hit / whole[row]);
        int64_t j = 0;
        for (; j + LANES <= n; j += LANES) store(dx + j, next(x + j, LANES, shift) * pull);
        if (j < n) store_part(dx + j, next(x + j, n - j, shift) * pull, n - j);
        dx[classes[row]] -= hit;
    }
}
