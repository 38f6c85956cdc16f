/* Scaled dot-product attention, forward and backward, one pair of batch and key head at a time.
 *
 * What a product reads is packed into rows padded with zeros to whole vectors, so that no loop has a tail: padded
 * features add nothing, and padded keys get the probability 0. Dao et al., "FlashAttention", 2022, appendix B: with p the
 * probabilities and dp = g v^T,  ds = p (dp - sum(p dp)),  dv = p^T g,  dk = ds^T q,  dq = ds k.
 */
#include "vector.h"

enum { QUERIES = 32 }; /* rows of scores at a time: with 2048 keys 256 KiB, which stay in the second-level cache */

typedef struct {
    int64_t heads, group, t, n, d, e; /* key heads, query heads of each, queries, keys, features of q and k, of v */
    int64_t causal;
    int64_t q[3], k[3], v[3], g[3]; /* how many floats a batch, a head and a row are apart */
} Shape;

typedef struct {
    float *k, *kt, *v, *vt, *q, *g, *s, *ds, *dq, *dk, *dv, *o, *sums;
} Scratch;

static int64_t padded(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

static const float *row_of(const float *a, const int64_t *apart, int64_t batch, int64_t head, int64_t row) {
    return a + batch * apart[0] + head * apart[1] + row * apart[2];
}

/* Divide what the caller lends; attention.py knows the sum of these sizes. */
static Scratch divided(const Shape *p, float *at) {
    const int64_t d = padded(p->d), e = padded(p->e), n = padded(p->n), m = QUERIES;
    Scratch c;
    c.k = at, c.dk = c.k + n * d, c.v = c.dk + n * d, c.dv = c.v + n * e;
    c.kt = c.dv + n * e, c.vt = c.kt + n * p->d, c.q = c.vt + n * p->e, c.dq = c.q + m * d;
    c.g = c.dq + m * d, c.o = c.g + m * e, c.s = c.o + m * e, c.ds = c.s + m * n, c.sums = c.ds + m * n;
    return c;
}

/* Copy rows times a factor, each padded with zeros, and rows of zeros below them up to `height`. */
static void pack(float *to, int64_t width, int64_t height, const float *from, int64_t apart, int64_t rows, int64_t columns,
                 float factor) {
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) to[i * width + j] = from[i * apart + j] * factor;
        for (int64_t j = columns; j < width; j++) to[i * width + j] = 0;
    }
    if (height > rows) memset(to + rows * width, 0, (size_t)((height - rows) * width) * sizeof(float));
}

/* Copy the transpose: a row, padded with zeros, for each column. */
static void pack_columns(float *to, int64_t width, const float *from, int64_t apart, int64_t rows, int64_t columns) {
    for (int64_t i0 = 0; i0 < width; i0 += LANES)
        for (int64_t j = 0; j < columns; j++)
            for (int64_t i = i0; i < i0 + LANES; i++) to[j * width + i] = i < rows ? from[i * apart + j] : 0;
}

/* How many keys a query sees: where there are fewer queries than keys, the last query still sees all. */
static int64_t visible(const Shape *p, int64_t query) {
    const int64_t seen = query + 1 + p->n - p->t;
    return !p->causal ? p->n : seen < 0 ? 0 : seen < p->n ? seen : p->n;
}

/* c = or += a b, in registers for R rows and V vectors: element (i, k) of a is a[i * ai + k * ak], b and c are rows. */
INLINE void tile(float *c, int64_t ldc, const float *a, int64_t ai, int64_t ak, const float *b, int64_t ldb, int64_t depth,
                 int add, const int R, const int V) {
    vf sums[8][2];
    for (int i = 0; i < R; i++)
        for (int j = 0; j < V; j++) sums[i][j] = add ? load(c + i * ldc + j * LANES) : all(0);
    for (int64_t k = 0; k < depth; k++) {
        vf row[2];
        for (int j = 0; j < V; j++) row[j] = load(b + k * ldb + j * LANES);
        for (int i = 0; i < R; i++) {
            const vf x = all(a[i * ai + k * ak]);
            for (int j = 0; j < V; j++) sums[i][j] += x * row[j];
        }
    }
    for (int i = 0; i < R; i++)
        for (int j = 0; j < V; j++) store(c + i * ldc + j * LANES, sums[i][j]);
}

INLINE void panel(float *c, int64_t ldc, const float *a, int64_t ai, int64_t ak, const float *b, int64_t ldb, int64_t rows,
                  int64_t depth, int add, const int V) {
    int64_t i = 0;
    for (; i + 8 <= rows; i += 8) tile(c + i * ldc, ldc, a + i * ai, ai, ak, b, ldb, depth, add, 8, V);
    for (; i + 2 <= rows; i += 2) tile(c + i * ldc, ldc, a + i * ai, ai, ak, b, ldb, depth, add, 2, V);
    for (; i < rows; i++) tile(c + i * ldc, ldc, a + i * ai, ai, ak, b, ldb, depth, add, 1, V);
}

/* The product for any number of rows, and whole vectors of columns. */
static void product(float *c, int64_t ldc, const float *a, int64_t ai, int64_t ak, const float *b, int64_t ldb, int64_t rows,
                    int64_t columns, int64_t depth, int add) {
    int64_t j = 0;
    for (; j + 2 * LANES <= columns; j += 2 * LANES) panel(c + j, ldc, a, ai, ak, b + j, ldb, rows, depth, add, 2);
    if (j < columns) panel(c + j, ldc, a, ai, ak, b + j, ldb, rows, depth, add, 1);
}

/* Turn the first `limit` scores into exp(score - top), the others into 0; returns the sum. */
static float exponentials(float *s, int64_t limit, int64_t width, float *top) {
    for (int64_t j = limit; j < width; j++) s[j] = -INFINITY;
    vf most = all(-INFINITY), sum = all(0);
    for (int64_t j = 0; j < width; j += LANES) most = larger(load(s + j), most);
    float highest = -INFINITY;
    for (int i = 0; i < LANES; i++)
        if (!(most[i] <= highest)) highest = most[i]; /* a NaN too */
    *top = highest == -INFINITY ? 0 : highest;
    for (int64_t j = 0; j < width; j += LANES) {
        const vf y = exponential(load(s + j) - all(*top));
        store(s + j, y);
        sum += y;
    }
    return sum_of(sum);
}

void attention_forward(const Shape *p, const float *q, const float *k, const float *v, float *out, float *lse, float *scratch,
                       int64_t first, int64_t last, float scale) {
    const Scratch c = divided(p, scratch);
    const int64_t d = padded(p->d), e = padded(p->e), n = padded(p->n), heads = p->heads * p->group;
    for (int64_t unit = first; unit < last; unit++) {
        const int64_t b = unit / p->heads, head = unit % p->heads;
        pack_columns(c.kt, n, row_of(k, p->k, b, head, 0), p->k[2], p->n, p->d);
        pack(c.v, e, n, row_of(v, p->v, b, head, 0), p->v[2], p->n, p->e, 1);
        for (int64_t h = head * p->group; h < (head + 1) * p->group; h++)
            for (int64_t t0 = 0; t0 < p->t; t0 += QUERIES) {
                const int64_t rows = p->t - t0 < QUERIES ? p->t - t0 : QUERIES, place = (b * heads + h) * p->t + t0;
                const int64_t seen = padded(visible(p, t0 + rows - 1));
                pack(c.q, d, rows, row_of(q, p->q, b, h, t0), p->q[2], rows, p->d, scale);
                product(c.s, n, c.q, d, 1, c.kt, n, rows, seen, p->d, 0);
                for (int64_t i = 0; i < rows; i++) {
                    float top, sum = exponentials(c.s + i * n, visible(p, t0 + i), seen, &top);
                    lse[place + i] = sum == 0 ? INFINITY : logf(sum) + top;
                    c.sums[i] = sum == 0 ? 1 : sum;
                }
                product(c.o, e, c.s, n, 1, c.v, e, rows, e, seen, 0);
                for (int64_t i = 0; i < rows; i++)
                    for (int64_t j = 0; j < p->e; j++) out[(place + i) * p->e + j] = c.o[i * e + j] / c.sums[i];
            }
    }
}

/* Scores to probabilities, and with them dp to ds, in place. */
static void probabilities(float *s, float *ds, int64_t limit, int64_t width, float lse) {
    for (int64_t j = limit; j < width; j++) s[j] = -INFINITY, ds[j] = 0;
    vf sum = all(0);
    for (int64_t j = 0; j < width; j += LANES) {
        const vf y = exponential(load(s + j) - all(lse));
        store(s + j, y);
        sum += y * load(ds + j);
    }
    const vf dots = all(sum_of(sum));
    for (int64_t j = 0; j < width; j += LANES) store(ds + j, load(s + j) * (load(ds + j) - dots));
}

static void unpack(float *to, const float *from, int64_t width, int64_t rows, int64_t columns, float factor) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) to[i * columns + j] = from[i * width + j] * factor;
}

void attention_backward(const Shape *p, const float *g, const float *q, const float *k, const float *v, const float *lse,
                        float *dq, float *dk, float *dv, float *scratch, int64_t first, int64_t last, float scale) {
    const Scratch c = divided(p, scratch);
    const int64_t d = padded(p->d), e = padded(p->e), n = padded(p->n), heads = p->heads * p->group;
    for (int64_t unit = first; unit < last; unit++) {
        const int64_t b = unit / p->heads, head = unit % p->heads;
        pack_columns(c.kt, n, row_of(k, p->k, b, head, 0), p->k[2], p->n, p->d);
        pack_columns(c.vt, n, row_of(v, p->v, b, head, 0), p->v[2], p->n, p->e);
        pack(c.k, d, n, row_of(k, p->k, b, head, 0), p->k[2], p->n, p->d, 1);
        memset(c.dk, 0, (size_t)(n * d) * sizeof(float));
        memset(c.dv, 0, (size_t)(n * e) * sizeof(float));
        for (int64_t h = head * p->group; h < (head + 1) * p->group; h++)
            for (int64_t t0 = 0; t0 < p->t; t0 += QUERIES) {
                const int64_t rows = p->t - t0 < QUERIES ? p->t - t0 : QUERIES, place = (b * heads + h) * p->t + t0;
                const int64_t seen = padded(visible(p, t0 + rows - 1));
                pack(c.q, d, rows, row_of(q, p->q, b, h, t0), p->q[2], rows, p->d, scale);
                pack(c.g, e, rows, row_of(g, p->g, b, h, t0), p->g[2], rows, p->e, 1);
                product(c.s, n, c.q, d, 1, c.kt, n, rows, seen, p->d, 0);
                product(c.ds, n, c.g, e, 1, c.vt, n, rows, seen, p->e, 0);
                for (int64_t i = 0; i < rows; i++)
                    probabilities(c.s + i * n, c.ds + i * n, visible(p, t0 + i), seen, lse[place + i]);
                product(c.dv, e, c.s, 1, n, c.g, e, seen, e, rows, 1);
                product(c.dk, d, c.ds, 1, n, c.q, d, seen, d, rows, 1);
                product(c.dq, d, c.ds, n, 1, c.k, d, rows, d, seen, 0);
                unpack(dq + place * p->d, c.dq, d, rows, p->d, scale);
            }
        unpack(dk + unit * p->n * p->d, c.dk, d, p->n, p->d, 1);
        unpack(dv + unit * p->n * p->e, c.dv, e, p->n, p->e, 1);
    }
}
