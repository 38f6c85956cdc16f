/* Convolutions without copies of x for each tap.

   A strip is some output rows of one image. What it reads of x is laid out once, padded, with each phase of the stride
   in a plane of its own, whose rows have as many columns as taps reach. Then tap (c, i, j) at output position
   q = u * width + v reads the number at offset[c, i, j] + q: whole vectors of positions at once, without conditions.
   Positions in the columns beyond the output are computed and not used. */
#include "vector.h"
#include <stdlib.h>

#if defined(__AVX512F__)
#define OUTS 8 /* a tile of sums stays in registers: OUTS outputs by WIDE vectors of positions */
#define WIDE 3
#define TAPS 12 /* and in the gradient of the weight TAPS taps by PAIRS vectors of outputs */
#define PAIRS 2
#else
#define OUTS 6
#define WIDE 2
#define TAPS 6
#define PAIRS 2
#endif
#define SLACK (LANES * (WIDE + 1))

typedef struct {
    int64_t c, h, w, o, kh, kw, sh, sw, dh, dw, top, left, u, v, groups, rows, strips;
} Shape;

typedef struct {
    int64_t c, o, taps, height, width, plane, slack, size, positions;
} Layout; /* of one group of channels and one strip */

static Layout layout_of(const Shape *s) {
    Layout l = {.c = s->c / s->groups, .o = s->o / s->groups};
    l.taps = l.c * s->kh * s->kw;
    l.height = s->rows + (s->kh - 1) * s->dh / s->sh;
    int64_t reach = (s->kw - 1) * s->dw / s->sw;
    l.width = s->v + reach;
    if (s->sw == 1 && s->left > 0) { /* the zeros left of a row serve the row above as those right of it */
        int64_t narrow = s->v + (reach > s->left ? reach - s->left : 0);
        if (narrow < s->w + s->left) narrow = s->w + s->left;
        if (narrow < l.width) l.width = narrow;
    }
    l.plane = l.height * l.width;
    l.slack = l.width + SLACK; /* read for positions beyond the output, and not used */
    l.size = l.c * s->sh * s->sw * l.plane + l.slack;
    l.positions = (s->rows * l.width + LANES - 1) / LANES * LANES;
    return l;
}

static void *space(int64_t floats) {
    void *p = 0;
    return posix_memalign(&p, 64, (floats + SLACK) * sizeof(float)) ? 0 : p;
}

static void offsets(const Shape *s, const Layout *l, int64_t *at) {
    for (int64_t c = 0; c < l->c; c++)
        for (int64_t i = 0; i < s->kh; i++)
            for (int64_t j = 0; j < s->kw; j++) {
                int64_t y = i * s->dh, x = j * s->dw, phase = (y % s->sh) * s->sw + x % s->sw;
                *at++ = (c * s->sh * s->sw + phase) * l->plane + y / s->sh * l->width + x / s->sw;
            }
}

/* Copy n floats; ends may be written twice, never beyond. */
INLINE void copy(float *to, const float *from, int64_t n) {
    if (n < LANES) {
        for (int64_t i = 0; i < n; i++) to[i] = from[i];
        return;
    }
    for (int64_t i = 0; i + LANES < n; i += LANES) store(to + i, load(from + i));
    store(to + n - LANES, load(from + n - LANES));
}

/* Lay out the channels of x for the strip that starts at output row `first`. */
static void pack(const Shape *s, const Layout *l, const float *x, int64_t first, float *to) {
    for (int64_t c = 0; c < l->c; c++, x += s->h * s->w)
        for (int64_t ph = 0; ph < s->sh; ph++)
            for (int64_t pw = 0; pw < s->sw; pw++) {
                int64_t start = pw - s->left; /* columns low <= b < high have 0 <= start + b * sw < w */
                int64_t low = start < 0 ? (-start + s->sw - 1) / s->sw : 0;
                int64_t high = start < s->w ? (s->w - start + s->sw - 1) / s->sw : 0;
                if (high > l->width) high = l->width;
                if (low > high) low = high;
                for (int64_t a = 0; a < l->height; a++, to += l->width) {
                    int64_t y = (first + a) * s->sh + ph - s->top, some = y >= 0 && y < s->h ? high : low;
                    const float *from = x + y * s->w + start;
                    for (int64_t b = 0; b < low; b++) to[b] = 0;
                    if (s->sw == 1) copy(to + low, from + low, some - low);
                    else
                        for (int64_t b = low; b < some; b++) to[b] = from[b * s->sw];
                    for (int64_t b = some; b < l->width; b++) to[b] = 0;
                }
            }
    memset(to, 0, l->slack * sizeof(float));
}

/* The floats that `arrange` fills. */
int64_t arranged_size(const Shape *s) {
    Layout l = layout_of(s);
    return s->groups * ((l.o + OUTS - 1) / OUTS) * OUTS * l.taps;
}

/* The weight with OUTS outputs side by side for each tap, 0 beyond the last. */
void arrange(const Shape *s, const float *w, float *to) {
    Layout l = layout_of(s);
    for (int64_t g = 0; g < s->groups; g++, w += l.o * l.taps)
        for (int64_t o = 0; o < l.o; o += OUTS)
            for (int64_t k = 0; k < l.taps; k++)
                for (int64_t i = 0; i < OUTS; i++) *to++ = o + i < l.o ? w[(o + i) * l.taps + k] : 0;
}

INLINE void tile(int wide, const float *x, const int64_t *at, const float *w, int64_t taps, float *z, int64_t stride) {
    vf sums[OUTS][WIDE];
#pragma GCC unroll 8
    for (int i = 0; i < OUTS; i++)
#pragma GCC unroll 4
        for (int v = 0; v < wide; v++) sums[i][v] = all(0);
    for (int64_t k = 0; k < taps; k++, w += OUTS) {
        const float *from = x + at[k];
        vf part[WIDE];
#pragma GCC unroll 4
        for (int v = 0; v < wide; v++) part[v] = load(from + v * LANES);
#pragma GCC unroll 8
        for (int i = 0; i < OUTS; i++)
#pragma GCC unroll 4
            for (int v = 0; v < wide; v++) sums[i][v] += w[i] * part[v];
    }
#pragma GCC unroll 8
    for (int i = 0; i < OUTS; i++)
#pragma GCC unroll 4
        for (int v = 0; v < wide; v++) store(z + i * stride + v * LANES, sums[i][v]);
}

static void strip(const Shape *s, const Layout *l, const float *x, const int64_t *at, const float *w, const float *bias,
                  float *z, float *y, int64_t rows) {
    int64_t outputs = s->u * s->v, end = (rows * l->width + LANES - 1) / LANES * LANES;
    for (int64_t o = 0; o < l->o; o += OUTS, w += OUTS * l->taps) {
        int64_t q = 0;
        for (; q + WIDE * LANES <= end; q += WIDE * LANES) tile(WIDE, x + q, at, w, l->taps, z + q, l->positions);
        if (WIDE > 2 && q + 2 * LANES <= end) {
            tile(2, x + q, at, w, l->taps, z + q, l->positions); /* at most two vectors are left */
            q += 2 * LANES;
        }
        if (q < end) tile(1, x + q, at, w, l->taps, z + q, l->positions);
        for (int64_t i = 0; i < OUTS && o + i < l->o; i++) {
            float *from = z + i * l->positions, *to = y + (o + i) * outputs;
            if (bias)
                for (q = 0; q < rows * l->width; q++) from[q] += bias[o + i];
            for (int64_t u = 0; u < rows; u++) copy(to + u * s->v, from + u * l->width, s->v);
        }
    }
}

/* y for the strips first <= index < last, in the order of images; `w` is arranged. *done is 0 without memory, else 1. */
void convolve(const Shape *s, const float *x, const float *w, const float *bias, float *y, int64_t first, int64_t last,
              int64_t *done) {
    Layout l = layout_of(s);
    int64_t blocks = (l.o + OUTS - 1) / OUTS;
    float *packed = space(l.size), *z = space(OUTS * l.positions);
    int64_t *at = malloc(l.taps * sizeof *at);
    int64_t fine = packed && z && at;
    if (fine) offsets(s, &l, at);
    for (int64_t index = first; fine && index < last; index++) {
        int64_t image = index / s->strips, top = index % s->strips * s->rows;
        int64_t rows = s->u - top < s->rows ? s->u - top : s->rows;
        for (int64_t g = 0; g < s->groups; g++) {
            pack(s, &l, x + (image * s->c + g * l.c) * s->h * s->w, top, packed);
            strip(s, &l, packed, at, w + g * blocks * OUTS * l.taps, bias ? bias + g * l.o : 0, z,
                  y + (image * s->o + g * l.o) * s->u * s->v + top * s->v, rows);
        }
    }
    free(packed);
    free(z);
    free(at);
    *done = fine;
}

/* LANES outputs of a strip of y side by side for each position, 0 beyond the last. */
static void turn(const float *y, int64_t stride, int64_t outputs, int64_t positions, float *to) {
    int64_t q = 0;
    for (; q < positions; q += LANES, to += LANES * LANES) {
        int64_t count = positions - q < LANES ? positions - q : LANES;
        for (int64_t i = 0; i < LANES; i++) {
            const float *from = y + i * stride + q;
            if (i >= outputs)
                for (int64_t j = 0; j < count; j++) to[j * LANES + i] = 0;
            else if (count < LANES)
                for (int64_t j = 0; j < count; j++) to[j * LANES + i] = from[j];
            else
                for (int64_t j = 0; j < LANES; j++) to[j * LANES + i] = from[j];
        }
    }
}

/* Add to the sums, LANES outputs side by side for each of TAPS taps, and as far on as `next` for the next LANES. */
INLINE void products(int pairs, const float *y, int64_t beyond, const float *x, const int64_t *at, const Layout *l,
                     int64_t rows, int64_t columns, float *sums, int64_t next) {
    vf part[TAPS][PAIRS];
    const float *tap[TAPS];
#pragma GCC unroll 16
    for (int k = 0; k < TAPS; k++) {
        tap[k] = x + at[k];
#pragma GCC unroll 4
        for (int i = 0; i < pairs; i++) part[k][i] = all(0);
    }
    for (int64_t u = 0; u < rows; u++)
        for (int64_t q = u * l->width, end = q + columns; q < end; q++, y += LANES) {
            vf g[PAIRS];
#pragma GCC unroll 4
            for (int i = 0; i < pairs; i++) g[i] = load(y + i * beyond);
#pragma GCC unroll 16
            for (int k = 0; k < TAPS; k++)
#pragma GCC unroll 4
                for (int i = 0; i < pairs; i++) part[k][i] += tap[k][q] * g[i];
        }
#pragma GCC unroll 16
    for (int k = 0; k < TAPS; k++)
#pragma GCC unroll 4
        for (int i = 0; i < pairs; i++) {
            float *to = sums + i * next + k * LANES;
            store(to, load(to) + part[k][i]);
        }
}

/* Add to dw what the strips first <= index < last give. *done is 0 without memory, else 1. */
void weigh(const Shape *s, const float *x, const float *y, float *dw, int64_t first, int64_t last, int64_t *done) {
    Layout l = layout_of(s);
    int64_t across = (l.taps + TAPS - 1) / TAPS * TAPS, down = (l.o + LANES - 1) / LANES;
    int64_t turned = (s->rows * s->v + LANES - 1) / LANES * LANES * LANES, outputs = s->u * s->v;
    float *packed = space(l.size), *ys = space(down * turned), *sums = space(down * across * LANES);
    int64_t *at = calloc(across, sizeof *at); /* taps beyond the last read as the first, and are left out at the end */
    int64_t fine = packed && ys && sums && at;
    if (fine) offsets(s, &l, at);
    for (int64_t g = 0; fine && g < s->groups; g++, dw += l.o * l.taps) {
        memset(sums, 0, down * across * LANES * sizeof(float));
        for (int64_t index = first; index < last; index++) {
            int64_t image = index / s->strips, top = index % s->strips * s->rows;
            int64_t rows = s->u - top < s->rows ? s->u - top : s->rows;
            const float *here = y + (image * s->o + g * l.o) * outputs + top * s->v;
            pack(s, &l, x + (image * s->c + g * l.c) * s->h * s->w, top, packed);
            for (int64_t o = 0; o < down; o++)
                turn(here + o * LANES * outputs, outputs, l.o - o * LANES, rows * s->v, ys + o * turned);
            for (int64_t o = 0; o < down; o += PAIRS)
                for (int64_t k = 0; k < across; k += TAPS) {
                    const float *from = ys + o * turned;
                    float *to = sums + (o * across + k) * LANES;
                    if (o + PAIRS <= down)
                        products(PAIRS, from, turned, packed, at + k, &l, rows, s->v, to, across * LANES);
                    else products(1, from, 0, packed, at + k, &l, rows, s->v, to, 0);
                }
        }
        for (int64_t o = 0; o < l.o; o++)
            for (int64_t k = 0; k < l.taps; k++)
                dw[o * l.taps + k] += sums[(o / LANES * across + k) * LANES + o % LANES];
    }
    free(packed);
    free(ys);
    free(sums);
    free(at);
    *done = fine;
}
