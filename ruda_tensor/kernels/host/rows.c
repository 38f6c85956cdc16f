/* softmax, log_softmax, layer_norm and rms_norm over rows that stay in the cache nearest to the core. */
#include "vector.h"

#define EACH(j) for (; j + LANES <= n; j += LANES)
#define CHAINS 4 /* sums at a time: an addition takes four cycles, and fewer roundings fall on each */
#define EACH_OF_CHAINS(j, k)                                                                                           \
    for (; j + CHAINS * LANES <= n; j += CHAINS * LANES)                                                               \
        _Pragma("GCC unroll 4") for (int k = 0; k < CHAINS; k++)

/* Ask for what is needed in the next row: processors do not look beyond a page of memory, which a row may well be. */
INLINE void soon(const float *p) { __builtin_prefetch(p); }

INLINE float sum_of_chains(const vf *sums) { return sum_of((sums[0] + sums[1]) + (sums[2] + sums[3])); }

/* Write exp(x - top) and return the sum. */
static float exponentials(const float *x, float *out, int64_t n, float top) {
    int64_t j = 0;
    vf sums[CHAINS] = {{0}}, c = all(top);
    EACH_OF_CHAINS(j, k) {
        soon(x + j + k * LANES + n);
        vf e = exponential_below(load(x + j + k * LANES) - c);
        store(out + j + k * LANES, e);
        sums[k] += e;
    }
    EACH(j) {
        vf e = exponential_below(load(x + j) - c);
        store(out + j, e);
        sums[0] += e;
    }
    if (j < n) {
        vf e = exponential_below(part_minus(x + j, n - j, c));
        store_part(out + j, e, n - j);
        sums[1] += e;
    }
    return sum_of_chains(sums);
}

void softmax_forward(const float *x, float *out, int64_t rows, int64_t n) {
    for (int64_t row = 0; row < rows; row++, x += n, out += n) {
        float scale = 1 / exponentials(x, out, n, largest(x, n));
        for (int64_t j = 0; j < n; j++) out[j] *= scale;
    }
}

static float dot(const float *x, const float *y, int64_t n) {
    int64_t j = 0;
    vf sums[CHAINS] = {{0}};
    EACH_OF_CHAINS(j, k) sums[k] += load(x + j + k * LANES) * load(y + j + k * LANES);
    EACH(j) sums[0] += load(x + j) * load(y + j);
    if (j < n) sums[1] += load_part(x + j, n - j, 0) * load_part(y + j, n - j, 0);
    return sum_of_chains(sums);
}

static float sum(const float *x, int64_t n) {
    int64_t j = 0;
    vf sums[CHAINS] = {{0}};
    EACH_OF_CHAINS(j, k) sums[k] += load(x + j + k * LANES);
    EACH(j) sums[0] += load(x + j);
    if (j < n) sums[1] += load_part(x + j, n - j, 0);
    return sum_of_chains(sums);
}

void softmax_backward(const float *restrict g, const float *restrict p, float *restrict dx, int64_t rows, int64_t n) {
    for (int64_t row = 0; row < rows; row++, g += n, p += n, dx += n) {
        float mean = dot(g, p, n);
        for (int64_t j = 0; j < n; j++) dx[j] = (g[j] - mean) * p[j];
    }
}

void log_softmax_forward(const float *restrict x, float *restrict out, int64_t rows, int64_t n) {
    for (int64_t row = 0; row < rows; row++, x += n, out += n) {
        float top = largest(x, n), whole = logf(exponentials(x, out, n, top));
        for (int64_t j = 0; j < n; j++) out[j] = (x[j] - top) - whole;
    }
}

void log_softmax_backward(const float *g, const float *logs, float *dx, int64_t rows, int64_t n) {
    for (int64_t row = 0; row < rows; row++, g += n, logs += n, dx += n) {
        int64_t j = 0;
        vf whole = all(sum(g, n));
        EACH(j) store(dx + j, load(g + j) - exponential(load(logs + j)) * whole);
        if (j < n) {
            vf part = load_part(g + j, n - j, 0) - exponential(load_part(logs + j, n - j, 0)) * whole;
            store_part(dx + j, part, n - j);
        }
    }
}

/* The means of d = x - m and of d^2. */
static void moments(const float *x, int64_t n, float m, float *shift, float *square) {
    int64_t j = 0;
    vf sums[CHAINS] = {{0}}, squares[CHAINS] = {{0}}, a = all(m);
    EACH_OF_CHAINS(j, k) {
        soon(x + j + k * LANES + n);
        vf d = load(x + j + k * LANES) - a;
        sums[k] += d;
        squares[k] += d * d;
    }
    EACH(j) {
        vf d = load(x + j) - a;
        sums[0] += d;
        squares[0] += d * d;
    }
    if (j < n) {
        vf d = load_part(x + j, n - j, m) - a;
        sums[1] += d;
        squares[1] += d * d;
    }
    *shift = sum_of_chains(sums) / n;
    *square = sum_of_chains(squares) / n;
}

void layer_forward(const float *restrict x, const float *restrict w, const float *restrict b, float *restrict out,
                   float *m, float *shift, float *r, int64_t rows, int64_t n, float eps) {
    for (int64_t row = 0; row < rows; row++, x += n, out += n) {
        float mean = m[row] = sum(x, n) / n;
        float rest, square;
        moments(x, n, mean, &rest, &square);
        float variance = square - rest * rest; /* the shift is a rounding of the mean: little cancels */
        float scale = r[row] = 1 / sqrtf((variance < 0 ? 0 : variance) + eps);
        shift[row] = rest;
        if (w && b)
            for (int64_t j = 0; j < n; j++) out[j] = (x[j] - mean - rest) * scale * w[j] + b[j];
        else if (w)
            for (int64_t j = 0; j < n; j++) out[j] = (x[j] - mean - rest) * scale * w[j];
        else
            for (int64_t j = 0; j < n; j++) out[j] = (x[j] - mean - rest) * scale + (b ? b[j] : 0);
    }
}

/* What backward needs to know of a row: y = (x - m) scale - offset, and the sums of h = g w and of h (x - m). */
typedef struct {
    float m, scale, offset, of_h, of_hd;
} Row;

/* Fill in the sums of `few` <= 4 rows, and add their parts to dw and db: together, so that each number is read once
   and fewer roundings fall on a sum. dw and db may be missing, both or the second; so may w. */
INLINE void gather(int few, const float *g, const float *x, const float *w, Row *rows, float *dw, float *db, int64_t n) {
    int64_t j = 0;
    vf hs[4] = {{0}}, hds[4] = {{0}};
    for (; j < n; j += LANES) {
        int64_t count = n - j < LANES ? n - j : LANES;
        int part = count < LANES;
        vf weight = !w ? all(1.0f) : part ? load_part(w + j, count, 0) : load(w + j), to_w = all(0), to_b = all(0);
#pragma GCC unroll 4
        for (int i = 0; i < few; i++) {
            const float *in = g + i * n + j, *from = x + i * n + j;
            vf a = part ? load_part(in, count, 0) : load(in);
            vf d = (part ? load_part(from, count, 0) : load(from)) - all(rows[i].m), h = a * weight;
            hs[i] += h;
            hds[i] += h * d;
            to_b += a;
            to_w += a * (d * all(rows[i].scale) - all(rows[i].offset));
        }
        if (dw && !part) store(dw + j, load(dw + j) + to_w);
        if (dw && part) store_part(dw + j, load_part(dw + j, count, 0) + to_w, count);
        if (db && !part) store(db + j, load(db + j) + to_b);
        if (db && part) store_part(db + j, load_part(db + j, count, 0) + to_b, count);
    }
    for (int i = 0; i < few; i++) {
        rows[i].of_h = sum_of(hs[i]);
        rows[i].of_hd = sum_of(hds[i]);
    }
}

/* dx = scale (h - (constant + k (x - m - shift))) as a sum of three products; plus `more` where there is such. */
static void spread(const float *restrict g, const float *restrict x, const float *restrict w, const Row *row, float k,
                   float constant, const float *restrict more, float *restrict dx, int64_t n) {
    float m = row->m, scale = row->scale;
    for (int64_t j = 0; j < n; j += LANES) {
        soon(g + j + 4 * n);
        soon(x + j + 4 * n);
        if (more) soon(more + j + 4 * n);
    }
    if (w && more)
        for (int64_t j = 0; j < n; j++) dx[j] = more[j] + ((g[j] * w[j]) * scale + ((x[j] - m) * k + constant));
    else if (more)
        for (int64_t j = 0; j < n; j++) dx[j] = more[j] + (g[j] * scale + ((x[j] - m) * k + constant));
    else if (w)
        for (int64_t j = 0; j < n; j++) dx[j] = (g[j] * w[j]) * scale + ((x[j] - m) * k + constant);
    else
        for (int64_t j = 0; j < n; j++) dx[j] = g[j] * scale + ((x[j] - m) * k + constant);
}

/* dx, plus `more` where there is such, and the parts of dw and db, which are added to. m and shift may be missing: then they are 0, and so is the part
   of the mean of h in dx, as rms_norm has it. */
static void backward(const float *g, const float *x, const float *w, const float *m, const float *shift, const float *r,
                     const float *more, float *dx, float *dw, float *db, int64_t rows, int64_t n) {
    for (int64_t first = 0; first < rows; first += 4) {
        Row here[4];
        int64_t few = rows - first < 4 ? rows - first : 4, at = first * n;
        for (int64_t i = 0; i < few; i++) {
            float scale = r[first + i];
            here[i] = (Row){m ? m[first + i] : 0, scale, shift ? shift[first + i] * scale : 0, 0, 0};
        }
        if (few == 4) gather(4, g + at, x + at, w, here, dw, db, n);
        else
            for (int64_t i = 0; i < few; i++) gather(1, g + at + i * n, x + at + i * n, w, here + i, dw, db, n);
        for (int64_t i = 0; dx && i < few; i++) {
            float scale = here[i].scale, rest = shift ? shift[first + i] : 0;
            float k = scale * (scale * (here[i].of_hd - rest * here[i].of_h)) / n, mean = m ? here[i].of_h / n : 0;
            spread(g + at + i * n, x + at + i * n, w, here + i, -scale * k, -scale * (mean - k * rest),
                   more ? more + at + i * n : 0, dx + at + i * n, n);
        }
    }
}

void layer_backward(const float *g, const float *x, const float *w, const float *m, const float *shift, const float *r,
                    const float *more, float *dx, float *dw, float *db, int64_t rows, int64_t n) {
    backward(g, x, w, m, shift, r, more, dx, dw, db, rows, n);
}

void rms_forward(const float *restrict x, const float *restrict w, float *restrict out, float *r, int64_t rows,
                 int64_t n, float eps) {
    for (int64_t row = 0; row < rows; row++, x += n, out += n) {
        float scale = r[row] = 1 / sqrtf(dot(x, x, n) / n + eps);
        if (w)
            for (int64_t j = 0; j < n; j++) out[j] = x[j] * scale * w[j];
        else
            for (int64_t j = 0; j < n; j++) out[j] = x[j] * scale;
    }
}

void rms_backward(const float *g, const float *x, const float *w, const float *r, const float *more, float *dx,
                  float *dw, int64_t rows, int64_t n) {
    backward(g, x, w, 0, 0, r, more, dx, dw, 0, rows, n);
}

/* Add the sums of the columns to `out`: four rows at a time, and those to a sum of 64 rows, so that few roundings fall on
   each. */
void column_sums(const float *x, float *out, int64_t rows, int64_t n) {
    enum { TILE = 512, MANY = 64 };
    float part[TILE];
    for (int64_t from = 0; from < n; from += TILE)
        for (int64_t first = 0; first < rows; first += MANY) {
            const int64_t columns = n - from < TILE ? n - from : TILE, last = rows - first < MANY ? rows : first + MANY;
            memset(part, 0, sizeof part);
            int64_t row = first;
            for (; row + 4 <= last; row += 4) {
                const float *a = x + row * n + from, *b = a + n, *c = b + n, *d = c + n;
                for (int64_t j = 0; j < columns; j++) part[j] += (a[j] + b[j]) + (c[j] + d[j]);
            }
            for (; row < last; row++)
                for (int64_t j = 0; j < columns; j++) part[j] += x[row * n + from + j];
            for (int64_t j = 0; j < columns; j++) out[from + j] += part[j];
        }
}

/* Add row i to the sums index[i], in this order. */
void add_rows(const float *x, const int64_t *index, double *sums, int64_t rows, int64_t n) {
    for (int64_t row = 0; row < rows; row++, x += n) {
        double *sum = sums + index[row] * n;
        for (int64_t j = 0; j < n; j++) sum[j] += x[j];
    }
}
