/* Products of matrices, for those sizes at which the calls and copies of a BLAS cost as much as its arithmetic.
 *
 * A tile of ROWS rows by WIDE vectors of columns stays in registers over a block of the depth. The rows of a are read in
 * place, in either order; b is copied into a panel as wide as the tile, by the first tile that reads it. Each number of
 * the result is one sum per block of the depth, in the order of k, wherever it stands and whatever stands beside it.
 */
#include "vector.h"

int64_t usable(void) {
#if defined(__AVX512F__)
    return 1;
#else
    return 0; /* with narrower vectors OpenBLAS is as fast */
#endif
}

#if defined(__AVX512F__)
#define ROWS 8
#define WIDE 3
#define DEPTH 256
#define AHEAD 16 /* rows that are asked for before they are needed: each is on a few lines of its own */
#define TALL 256 /* rows of a that are read again for each panel, from the second cache */

typedef struct {
    int64_t m, n, k, a_row, a_step, b_step, b_column, out_row; /* how many floats apart: for a and b, one of the two is 1 */
} Sizes;

/* The first n floats, all if there are more, and 0 in the other lanes. */
INLINE __mmask16 first(int64_t n) { return lanes_below(n < LANES ? n : LANES); }
INLINE vf load_some(const float *p, int64_t n) { return (vf)_mm512_maskz_loadu_ps(first(n), p); }
INLINE void store_some(float *p, vf v, int64_t n) { _mm512_mask_storeu_ps(p, first(n), (__m512)v); }

typedef struct {
    const float *a, *b, *bias, *residual; /* of the last block of the depth; the residual's rows are as those of out */
    float *out, *panel; /* the first tile of a panel fills it on its way */
    int64_t a_row, a_step, b_step, out_row, depth, columns;
    int add;
} Tile;

/* R rows by V vectors of columns; a is read along its rows, or across them where it is TURNED. */
INLINE void tile(const Tile *t, const int R, const int V, const int TURNED, const int COPY) {
    vf sums[ROWS][WIDE];
    const float *a = t->a, *b = t->b;
    float *panel = t->panel;
    const int64_t depth = t->depth, apart = TURNED ? t->a_step : t->a_row, b_step = t->b_step;
#pragma GCC unroll 8
    for (int i = 0; i < R; i++)
#pragma GCC unroll 4
        for (int j = 0; j < V; j++) {
            sums[i][j] = all(0);
            __builtin_prefetch(t->out + i * t->out_row + (j + 1) * LANES - 1, 1);
        }
    for (int64_t k = 0; k < depth; k++) {
        vf row[WIDE];
#pragma GCC unroll 4
        for (int j = 0; j < V; j++) {
            row[j] = load(b + j * LANES);
            if (COPY) store(panel + j * LANES, row[j]);
            if (COPY) __builtin_prefetch(b + AHEAD * b_step + j * LANES);
        }
#pragma GCC unroll 8
        for (int i = 0; i < R; i++) {
            const vf x = all(TURNED ? a[i] : a[i * apart + k]);
#pragma GCC unroll 4
            for (int j = 0; j < V; j++) sums[i][j] += x * row[j];
        }
        if (TURNED) __builtin_prefetch(a + AHEAD * apart);
        if (TURNED) a += apart;
        b += b_step;
        if (COPY) panel += V * LANES;
    }
#pragma GCC unroll 4
    for (int j = 0; j < V; j++) {
        float *to = t->out + j * LANES;
        const int64_t some = t->columns - j * LANES;
        const vf bias = t->bias ? load_some(t->bias + j * LANES, some) : all(0);
#pragma GCC unroll 8
        for (int i = 0; i < R; i++, to += t->out_row) {
            vf sum = t->add ? load_some(to, some) + sums[i][j] : sums[i][j];
            if (t->bias) sum += bias;
            if (t->residual) sum += load_some(t->residual + (to - t->out), some);
            store_some(to, sum, some);
        }
    }
}

/* Functions of their own, since compilers run out of registers where several of these loops share one. */
#define TILE(R, V, TURNED, COPY)                                                                                       \
    static __attribute__((noinline)) void tile_##R##_##V##_##TURNED##_##COPY(const Tile *t) { tile(t, R, V, TURNED, COPY); }
#define WIDTHS(R, TURNED, COPY) TILE(R, 1, TURNED, COPY) TILE(R, 2, TURNED, COPY) TILE(R, 3, TURNED, COPY)
#define TILES(R, COPY) WIDTHS(R, 0, COPY) WIDTHS(R, 1, COPY)
#define NAME(R, V, TURNED, COPY) tile_##R##_##V##_##TURNED##_##COPY
#define NAMES(R, TURNED, COPY) {NAME(R, 1, TURNED, COPY), NAME(R, 2, TURNED, COPY), NAME(R, 3, TURNED, COPY)}
TILES(8, 1) TILES(8, 0) TILES(4, 0) TILES(2, 0) TILES(1, 0)
static const struct {
    int64_t rows;
    void (*of[2][3])(const Tile *); /* by the order of a and the vectors */
} copying = {8, {NAMES(8, 0, 1), NAMES(8, 1, 1)}}, heights[] = {
    {8, {NAMES(8, 0, 0), NAMES(8, 1, 0)}}, {4, {NAMES(4, 0, 0), NAMES(4, 1, 0)}},
    {2, {NAMES(2, 0, 0), NAMES(2, 1, 0)}}, {1, {NAMES(1, 0, 0), NAMES(1, 1, 0)}},
};

static void down(Tile *t, int64_t rows) {
    t->a += rows * t->a_row, t->out += rows * t->out_row;
    if (t->residual) t->residual += rows * t->out_row;
}

/* All tiles of a panel, from the top down. */
static void tiles(Tile t, int64_t rows, int64_t vectors, int turned, int copy) {
    if (copy && rows > ROWS) {
        copying.of[turned][vectors - 1](&t);
        down(&t, ROWS);
        t.b = t.panel, t.b_step = vectors * LANES, rows -= ROWS;
    }
    for (int h = 0; rows; h++)
        for (; rows >= heights[h].rows; rows -= heights[h].rows) {
            heights[h].of[turned][vectors - 1](&t);
            down(&t, heights[h].rows);
        }
}

/* Copy rows of b, padded with zeros to whole vectors. */
static void pack(float *to, int64_t vectors, const float *b, int64_t b_step, int64_t depth, int64_t columns) {
    for (int64_t k = 0; k < depth; k++, b += b_step)
        for (int64_t j = 0; j < vectors; j++, to += LANES) store(to, load_some(b + j * LANES, columns - j * LANES));
}

/* Copy b, whose columns lie side by side in memory, as rows; up to LANES - 1 rows of zeros follow. */
static void pack_turned(float *to, int64_t vectors, const float *b, int64_t b_column, int64_t depth, int64_t columns) {
    for (int64_t j = 0; j < vectors; j++)
        for (int64_t k = 0; k < depth; k += LANES) {
            vf block[LANES];
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++) {
                const int64_t column = j * LANES + i;
                block[i] = column < columns ? load_some(b + column * b_column + k, depth - k) : all(0);
            }
            turn_block(block);
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++) store(to + (k + i) * vectors * LANES + j * LANES, block[i]);
        }
}

/* out = a b, plus the row `bias` and then `residual`, which lies like out, where there are such. */
void product(const Sizes *s, const float *a, const float *b, const float *bias, float *out, const float *residual) {
    float panel[DEPTH * WIDE * LANES] __attribute__((aligned(64)));
    const int64_t blocks = (s->k + DEPTH - 1) / DEPTH, each = blocks ? (s->k + blocks - 1) / blocks : 1;
    const int64_t depth = (each + LANES - 1) / LANES * LANES;
    for (int64_t i = 0; i < s->m; i += TALL)
        for (int64_t k = 0; k < s->k; k += depth)
            for (int64_t j = 0, vectors; j < s->n; j += vectors * LANES) {
                const int64_t rows = s->m - i < TALL ? s->m - i : TALL, count = (s->n - j + LANES - 1) / LANES;
                vectors = count == 3 || count > 4 ? 3 : count == 1 ? 1 : 2; /* four are two and two */
                Tile t = {.a_row = s->a_row, .a_step = s->a_step, .out_row = s->out_row, .add = k > 0, .panel = panel};
                t.a = a + i * s->a_row + k * s->a_step, t.out = out + i * s->out_row + j;
                t.b = b + k * s->b_step + j * s->b_column, t.b_step = s->b_step;
                t.depth = s->k - k < depth ? s->k - k : depth, t.columns = s->n - j;
                const int last = k + depth >= s->k;
                t.bias = bias && last ? bias + j : 0;
                t.residual = residual && last ? residual + i * s->out_row + j : 0;
                const int beside = s->b_column == 1, copy = beside && t.columns >= vectors * LANES;
                if (!copy) {
                    if (beside) pack(panel, vectors, t.b, s->b_step, t.depth, t.columns);
                    else pack_turned(panel, vectors, t.b, s->b_column, t.depth, t.columns);
                    t.b = panel, t.b_step = vectors * LANES;
                }
                tiles(t, rows, vectors, s->a_step != 1, copy);
            }
}
#endif
