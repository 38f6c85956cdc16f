/* Products of matrices, for those sizes at which the calls and copies of a BLAS cost as much as its arithmetic.
 *
 * A tile of ROWS rows by WIDE vectors of columns stays in registers over a block of the depth. The rows of a are read in
 * place, in either order; b is copied into a panel as wide as the tile, by the first tile that reads it. Each number of
 * the result is one sum per block of the depth, in the order of k, wherever it stands and whatever stands beside it.
 */
#include "vector.h"

#if defined(__AVX512F__)
#define ROWS 8
#else
#define ROWS 4
#endif
#define WIDE 3
#define DEPTH 192 /* a panel of b takes 36 KiB with the widest vectors, which stay in the first cache */
#define TALL 512  /* rows of a that are read again for each panel, from the second cache */

typedef struct {
    int64_t m, n, k, a_row, a_step, b_step, b_column, out_row; /* how many floats apart, and one of each pair is 1 */
} Sizes;

/* The first n floats, all if there are more, and 0 in the other lanes. */
INLINE vf load_some(const float *p, int64_t n) {
    if (n >= LANES) return load(p);
#if defined(__AVX512F__)
    return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
#else
    return load_part(p, n, 0);
#endif
}

INLINE void store_some(float *p, vf v, int64_t n) {
    if (n >= LANES) store(p, v);
#if defined(__AVX512F__)
    else _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)v);
#else
    else store_part(p, v, n);
#endif
}

typedef struct {
    const float *a, *b, *bias;
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
        for (int j = 0; j < V; j++) sums[i][j] = all(0);
    for (int64_t k = 0; k < depth; k++) {
        vf row[WIDE];
#pragma GCC unroll 4
        for (int j = 0; j < V; j++) {
            row[j] = load(b + j * LANES);
            if (COPY) store(panel + j * LANES, row[j]);
        }
#pragma GCC unroll 8
        for (int i = 0; i < R; i++) {
            const vf x = all(TURNED ? a[i] : a[i * apart + k]);
#pragma GCC unroll 4
            for (int j = 0; j < V; j++) sums[i][j] += x * row[j];
        }
        if (TURNED) a += apart;
        b += b_step;
        if (COPY) panel += V * LANES;
    }
#pragma GCC unroll 8
    for (int i = 0; i < R; i++)
#pragma GCC unroll 4
        for (int j = 0; j < V; j++) {
            float *to = t->out + i * t->out_row + j * LANES;
            const int64_t some = t->columns - j * LANES;
            vf sum = sums[i][j];
            if (t->add) sum = load_some(to, some) + sum;
            if (t->bias) sum += load_some(t->bias + j * LANES, some);
            store_some(to, sum, some);
        }
}

/* All tiles of a panel, from the top down. */
INLINE void tiles(Tile t, int64_t rows, int copy, const int V, const int TURNED) {
    int64_t i = 0, step = TURNED ? 1 : t.a_row;
    for (; i < rows;) {
        const int64_t few = rows - i;
        int64_t done = few >= ROWS ? ROWS : few >= 2 ? 2 : 1;
        if (few >= ROWS && copy) {
            tile(&t, ROWS, V, TURNED, 1);
            t.b = t.panel, t.b_step = V * LANES, copy = 0;
        } else if (few >= ROWS) tile(&t, ROWS, V, TURNED, 0);
        else if (few >= 2) tile(&t, 2, V, TURNED, 0);
        else tile(&t, 1, V, TURNED, 0);
        t.a += done * step, t.out += done * t.out_row, i += done;
    }
}

INLINE void panel_of(int64_t vectors, Tile t, int64_t rows, int copy, const int TURNED) {
    if (vectors == 3) tiles(t, rows, copy, 3, TURNED);
    else if (vectors == 2) tiles(t, rows, copy, 2, TURNED);
    else tiles(t, rows, copy, 1, TURNED);
}

/* Copy rows of b, padded with zeros to whole vectors. */
static void pack(float *to, int64_t vectors, const float *b, int64_t b_step, int64_t depth, int64_t columns) {
    for (int64_t k = 0; k < depth; k++, b += b_step)
        for (int64_t j = 0; j < vectors; j++, to += LANES) {
            const int64_t some = columns - j * LANES;
            store(to, load_some(b + j * LANES, some));
        }
}

#if defined(__AVX512F__)
/* Exchange the blocks beside the diagonal, of 8 by 8 to 1 by 1: what was a row becomes a column. */
INLINE void turn(vf *rows) {
    const vi lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#pragma GCC unroll 4
    for (int h = LANES / 2; h; h /= 2) {
        const vi high = (lane & h) != 0, first = (~high & lane) | (high & (lane - h + LANES)),
                 second = (~high & (lane + h)) | (high & (lane + LANES));
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) {
            if (i & h) continue;
            const __m512 a = (__m512)rows[i], b = (__m512)rows[i + h];
            rows[i] = (vf)_mm512_permutex2var_ps(a, (__m512i)first, b);
            rows[i + h] = (vf)_mm512_permutex2var_ps(a, (__m512i)second, b);
        }
    }
}
#else
INLINE void turn(vf *rows) {
    float copy[LANES][LANES];
    memcpy(copy, rows, sizeof copy);
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < LANES; j++) ((float *)rows)[i * LANES + j] = copy[j][i];
}
#endif

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
            turn(block);
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++) store(to + (k + i) * vectors * LANES + j * LANES, block[i]);
        }
}

/* out = a b + bias for rows `top` to `bottom` and columns `left` to `right`; `bias` may be missing. */
void product(const Sizes *s, const float *a, const float *b, const float *bias, float *out, int64_t top, int64_t bottom,
             int64_t left, int64_t right) {
    float panel[(DEPTH + LANES) * WIDE * LANES] __attribute__((aligned(64)));
    const int64_t blocks = (s->k + DEPTH - 1) / DEPTH, each = blocks ? (s->k + blocks - 1) / blocks : 1;
    const int64_t depth = (each + LANES - 1) / LANES * LANES;
    for (int64_t i = top; i < bottom; i += TALL)
        for (int64_t k = 0; k < s->k; k += depth)
            for (int64_t j = left, vectors; j < right; j += vectors * LANES) {
                const int64_t rows = bottom - i < TALL ? bottom - i : TALL, count = (right - j + LANES - 1) / LANES;
                vectors = count == 3 || count > 4 ? 3 : count == 1 ? 1 : 2;
                Tile t = {.a_row = s->a_row, .a_step = s->a_step, .out_row = s->out_row, .add = k > 0, .panel = panel};
                t.a = a + i * s->a_row + k * s->a_step, t.out = out + i * s->out_row + j;
                t.depth = s->k - k < depth ? s->k - k : depth, t.columns = right - j;
                t.b = b + k * s->b_step + j * s->b_column, t.b_step = s->b_step;
                t.bias = bias && k + depth >= s->k ? bias + j : 0;
                int copy = 1;
                if (s->b_column != 1 || t.columns < vectors * LANES) {
                    if (s->b_column != 1) pack_turned(panel, vectors, t.b, s->b_column, t.depth, t.columns);
                    else pack(panel, vectors, t.b, s->b_step, t.depth, t.columns);
                    t.b = panel, t.b_step = vectors * LANES, copy = 0;
                } 
                if (s->a_step == 1) panel_of(vectors, t, rows, copy, 0);
                else panel_of(vectors, t, rows, copy, 1);
            }
}
