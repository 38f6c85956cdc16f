/* Scaled dot-product attention, forward and backward, one pair of batch and key head at a time.
 *
 * Scores stand with the queries side by side in the lanes and a row for each key: maxima, sums and exponentials are then
 * of whole vectors, and keys and values are read where they are. Queries beyond the last are computed and not used.
 * Dao et al., "FlashAttention", 2022, appendix B: with p the probabilities and dp = g v^T,  ds = p (dp - sum(p dp)),
 * dv = p^T g,  dk = ds^T q,  dq = ds k.
 */
#include "vector.h"

#define BESIDE 32 /* queries at a time: with 2048 keys 256 KiB of scores, which stay in the second-level cache */
#define VECTORS (BESIDE / LANES)
#define DEPTH 128

typedef struct {
    int64_t heads, group, t, n, d, e; /* key heads, query heads of each, queries, keys, features of q and k, of v */
    int64_t causal;
    int64_t q[3], k[3], v[3], g[3]; /* how many floats a batch, a head and a row are apart, */
    int64_t out[3], dq[3], dk[3], dv[3]; /* and of what is written */
} Shape;

typedef struct {
    float *q, *g, *turned_q, *turned_g, *s, *ds, *o, *dk, *dv, *lse, *sums;
} Scratch;

static int64_t padded(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

static int64_t place_of(const int64_t *apart, int64_t batch, int64_t head, int64_t row) {
    return batch * apart[0] + head * apart[1] + row * apart[2];
}

static const float *row_of(const float *a, const int64_t *apart, int64_t batch, int64_t head, int64_t row) {
    return a + place_of(apart, batch, head, row);
}

/* Divide what the caller lends; attention.py knows the sum of these sizes. */
static Scratch divided(const Shape *p, float *at) {
    const int64_t d = padded(p->d), e = padded(p->e);
    Scratch c;
    c.q = at, c.g = c.q + BESIDE * d, c.turned_q = c.g + BESIDE * e, c.turned_g = c.turned_q + BESIDE * d;
    c.s = c.turned_g + BESIDE * e, c.ds = c.s + BESIDE * p->n, c.o = c.ds + BESIDE * p->n;
    c.dk = c.o + BESIDE * (d > e ? d : e), c.dv = c.dk + p->n * d, c.lse = c.dv + p->n * e, c.sums = c.lse + BESIDE;
    return c;
}

/* Copy rows times a factor, each padded with zeros. */
static void pack(float *to, int64_t width, const float *from, int64_t apart, int64_t rows, int64_t columns, float factor) {
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) to[i * width + j] = from[i * apart + j] * factor;
        for (int64_t j = columns; j < width; j++) to[i * width + j] = 0;
    }
}

/* Turn rows of packed numbers into lanes, with zeros in the lanes beyond the last. */
static void turn(float *to, const float *from, int64_t width, int64_t rows, int64_t columns) {
    for (int64_t j = 0; j < columns; j += LANES)
        for (int64_t i = 0; i < BESIDE; i += LANES) {
            vf block[LANES];
#pragma GCC unroll 16
            for (int n = 0; n < LANES; n++) block[n] = i + n < rows ? load(from + (i + n) * width + j) : all(0);
            turn_block(block);
#pragma GCC unroll 16
            for (int n = 0; n < LANES; n++)
                if (j + n < columns) store(to + (j + n) * BESIDE + i, block[n]);
        }
}

/* Turn lanes back into rows, times a factor, and divided by a number for each lane where there are such. */
static void turn_back(float *to, int64_t apart, const float *from, int64_t rows, int64_t columns, float factor,
                      const float *divisors) {
    for (int64_t j = 0; j < columns; j += LANES)
        for (int64_t i = 0; i < rows; i += LANES) {
            vf block[LANES];
#pragma GCC unroll 16
            for (int n = 0; n < LANES; n++) {
                const vf x = j + n < columns ? load(from + (j + n) * BESIDE + i) * all(factor) : all(0);
                block[n] = divisors ? x / load(divisors + i) : x;
            }
            turn_block(block);
#pragma GCC unroll 16
            for (int n = 0; n < LANES; n++) {
                if (i + n >= rows) continue;
                if (columns - j >= LANES) store(to + (i + n) * apart + j, block[n]);
                else store_part(to + (i + n) * apart + j, block[n], columns - j);
            }
        }
}

/* How many keys a query sees: where there are fewer queries than keys, the last query still sees all. */
static int64_t visible(const Shape *p, int64_t query) {
    const int64_t seen = query + 1 + p->n - p->t;
    return !p->causal ? p->n : seen < 0 ? 0 : seen < p->n ? seen : p->n;
}

/* Hide from each lane the keys beyond those that it sees: a score of -inf, and nothing in `ds`. */
static void hide(const Shape *p, int64_t t0, int64_t seen, float *s, float *ds) {
    const int64_t first = t0 + 1 + p->n - p->t; /* which the first lane sees no more */
    for (int64_t j = visible(p, t0); j < seen; j++)
        for (int v = 0; v < VECTORS; v++) {
            const vi hidden = lane_numbers() + v * LANES <= (int32_t)(j - first < BESIDE ? j - first : BESIDE);
            const int64_t at = j * BESIDE + v * LANES;
            store(s + at, choose(hidden, all(-INFINITY), load(s + at)));
            if (ds) store(ds + at, choose(hidden, all(0), load(ds + at)));
        }
}

/* c = or += a b, in registers for R rows and V vectors: element (i, k) of a is a[i * ai + k * ak], b and c are rows. */
INLINE void tile(float *c, int64_t ldc, const float *a, int64_t ai, int64_t ak, const float *b, int64_t ldb, int64_t depth,
                 int add, const int R, const int V) {
    vf sums[8][2];
#pragma GCC unroll 8
    for (int i = 0; i < R; i++)
#pragma GCC unroll 2
        for (int j = 0; j < V; j++) sums[i][j] = add ? load(c + i * ldc + j * LANES) : all(0);
    for (int64_t k = 0; k < depth; k++) {
        vf row[2];
#pragma GCC unroll 2
        for (int j = 0; j < V; j++) row[j] = load(b + k * ldb + j * LANES);
#pragma GCC unroll 8
        for (int i = 0; i < R; i++) {
            const vf x = all(a[i * ai + k * ak]);
#pragma GCC unroll 2
            for (int j = 0; j < V; j++) sums[i][j] += x * row[j];
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < R; i++)
#pragma GCC unroll 2
        for (int j = 0; j < V; j++) store(c + i * ldc + j * LANES, sums[i][j]);
}

INLINE void panel(float *c, int64_t ldc, const float *a, int64_t ai, int64_t ak, const float *b, int64_t ldb, int64_t rows,
                  int64_t depth, int add, const int V) {
    int64_t i = 0;
    for (; i + 8 <= rows; i += 8) tile(c + i * ldc, ldc, a + i * ai, ai, ak, b, ldb, depth, add, 8, V);
    for (; i + 2 <= rows; i += 2) tile(c + i * ldc, ldc, a + i * ai, ai, ak, b, ldb, depth, add, 2, V);
    if (i < rows) tile(c + i * ldc, ldc, a + i * ai, ai, ak, b, ldb, depth, add, 1, V);
}

/* The product for any number of rows, and whole vectors of columns; what it reads for DEPTH steps stays in the cache. */
static void product(float *c, int64_t ldc, const float *a, int64_t ai, int64_t ak, const float *b, int64_t ldb, int64_t rows,
                    int64_t columns, int64_t depth, int add) {
    for (int64_t k = 0; k == 0 || k < depth; k += DEPTH, a += DEPTH * ak, b += DEPTH * ldb, add = 1) {
        const int64_t some = depth - k < DEPTH ? depth - k : DEPTH;
        int64_t j = 0;
        for (; j + 2 * LANES <= columns; j += 2 * LANES) panel(c + j, ldc, a, ai, ak, b + j, ldb, rows, some, add, 2);
        if (j < columns) panel(c + j, ldc, a, ai, ak, b + j, ldb, rows, some, add, 1);
    }
}

/* Scores to exp(score - top), and per lane what they sum up to, and the logarithm of that sum as of the scores. */
static void exponentials(float *s, int64_t seen, float *sums, float *lse) {
    for (int v = 0; v < VECTORS; v++, s += LANES) {
        vf top = all(-INFINITY), sum[4] = {all(0), all(0), all(0), all(0)};
        for (int64_t j = 0; j < seen; j++) top = larger(top, load(s + j * BESIDE));
        top = choose(top == -INFINITY, all(0), top);
        for (int64_t j = 0; j < seen; j++) {
            const vf y = exponential_below(load(s + j * BESIDE) - top);
            store(s + j * BESIDE, y);
            sum[j % 4] += y;
        }
        const vf whole = (sum[0] + sum[1]) + (sum[2] + sum[3]);
        for (int i = 0; i < LANES; i++) {
            lse[v * LANES + i] = whole[i] == 0 ? INFINITY : logf(whole[i]) + top[i];
            sums[v * LANES + i] = whole[i] == 0 ? 1 : whole[i];
        }
    }
}

void attention_forward(const Shape *p, const float *q, const float *k, const float *v, float *out, float *lse, float *scratch,
                       int64_t first, int64_t last, float scale) {
    const Scratch c = divided(p, scratch);
    const int64_t d = padded(p->d), heads = p->heads * p->group;
    for (int64_t unit = first; unit < last; unit++) {
        const int64_t b = unit / p->heads, head = unit % p->heads;
        const float *keys = row_of(k, p->k, b, head, 0), *values = row_of(v, p->v, b, head, 0);
        for (int64_t h = head * p->group; h < (head + 1) * p->group; h++)
            for (int64_t t0 = 0; t0 < p->t; t0 += BESIDE) {
                const int64_t rows = p->t - t0 < BESIDE ? p->t - t0 : BESIDE, place = (b * heads + h) * p->t + t0;
                const int64_t seen = visible(p, t0 + rows - 1);
                pack(c.q, d, row_of(q, p->q, b, h, t0), p->q[2], rows, p->d, scale);
                turn(c.turned_q, c.q, d, rows, p->d);
                product(c.s, BESIDE, keys, p->k[2], 1, c.turned_q, BESIDE, seen, BESIDE, p->d, 0);
                hide(p, t0, seen, c.s, 0);
                exponentials(c.s, seen, c.sums, c.lse);
                product(c.o, BESIDE, values, 1, p->v[2], c.s, BESIDE, p->e, BESIDE, seen, 0);
                memcpy(lse + place, c.lse, (size_t)rows * sizeof(float));
                turn_back(out + place_of(p->out, b, h, t0), p->out[2], c.o, rows, p->e, 1, c.sums);
            }
    }
}

/* Scores to probabilities, and with them dp to ds, in place. */
static void probabilities(float *s, float *ds, int64_t seen, const float *lse) {
    for (int v = 0; v < VECTORS; v++, s += LANES, ds += LANES) {
        const vf logs = load(lse + v * LANES);
        vf sum[4] = {all(0), all(0), all(0), all(0)};
        for (int64_t j = 0; j < seen; j++) {
            const vf y = exponential(load(s + j * BESIDE) - logs);
            store(s + j * BESIDE, y);
            sum[j % 4] += y * load(ds + j * BESIDE);
        }
        const vf dots = (sum[0] + sum[1]) + (sum[2] + sum[3]);
        for (int64_t j = 0; j < seen; j++) store(ds + j * BESIDE, load(s + j * BESIDE) * (load(ds + j * BESIDE) - dots));
    }
}

static void unpack(float *to, int64_t apart, const float *from, int64_t width, int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < rows; i++) memcpy(to + i * apart, from + i * width, (size_t)columns * sizeof(float));
}

void attention_backward(const Shape *p, const float *g, const float *q, const float *k, const float *v, const float *lse,
                        float *dq, float *dk, float *dv, float *scratch, int64_t first, int64_t last, float scale) {
    const Scratch c = divided(p, scratch);
    const int64_t d = padded(p->d), e = padded(p->e), heads = p->heads * p->group;
    for (int64_t unit = first; unit < last; unit++) {
        const int64_t b = unit / p->heads, head = unit % p->heads;
        const float *keys = row_of(k, p->k, b, head, 0), *values = row_of(v, p->v, b, head, 0);
        memset(c.dk, 0, (size_t)(p->n * d) * sizeof(float));
        memset(c.dv, 0, (size_t)(p->n * e) * sizeof(float));
        for (int64_t h = head * p->group; h < (head + 1) * p->group; h++)
            for (int64_t t0 = 0; t0 < p->t; t0 += BESIDE) {
                const int64_t rows = p->t - t0 < BESIDE ? p->t - t0 : BESIDE, place = (b * heads + h) * p->t + t0;
                const int64_t seen = visible(p, t0 + rows - 1);
                pack(c.q, d, row_of(q, p->q, b, h, t0), p->q[2], rows, p->d, scale);
                pack(c.g, e, row_of(g, p->g, b, h, t0), p->g[2], rows, p->e, 1);
                turn(c.turned_q, c.q, d, rows, p->d);
                turn(c.turned_g, c.g, e, rows, p->e);
                product(c.s, BESIDE, keys, p->k[2], 1, c.turned_q, BESIDE, seen, BESIDE, p->d, 0);
                product(c.ds, BESIDE, values, p->v[2], 1, c.turned_g, BESIDE, seen, BESIDE, p->e, 0);
                hide(p, t0, seen, c.s, c.ds);
                for (int64_t i = 0; i < BESIDE; i++) c.lse[i] = i < rows ? lse[place + i] : INFINITY;
                probabilities(c.s, c.ds, seen, c.lse);
                product(c.dv, e, c.s, BESIDE, 1, c.g, e, seen, e, rows, 1);
                product(c.dk, d, c.ds, BESIDE, 1, c.q, d, seen, d, rows, 1);
                product(c.o, BESIDE, keys, 1, p->k[2], c.ds, BESIDE, p->d, BESIDE, seen, 0);
                turn_back(dq + place_of(p->dq, b, h, t0), p->dq[2], c.o, rows, p->d, scale, 0);
            }
        unpack(dk + place_of(p->dk, b, head, 0), p->dk[2], c.dk, d, p->n, p->d);
        unpack(dv + place_of(p->dv, b, head, 0), p->dv[2], c.dv, e, p->n, p->e);
    }
}
