// Sums over the rows of a matrix, one per column, in two stages and one fixed order: columns_sum or a kernel that makes
// its terms on the way writes one row of partial sums per block row, and columns_finish adds those.
// Also the activations of x + bias, whose bias gradient is such a sum. KIND as in math.cuh, or -1 for plain sums.
#include "math.cuh"

#ifndef AFFINE
#define AFFINE STORAGE
#endif
typedef STORAGE T;
typedef AFFINE W;
typedef Wide<T>::type Real;
typedef Pack<T, VECTOR> Vector;

// A block is 32 x TALL threads over 32 VECTOR columns; each thread takes BATCH rows at a time in its own columns.
#define TALL 8
#define BATCH 4
#define COLUMN (((int)blockIdx.x * 32 + (int)threadIdx.x) * VECTOR)
#define EACH_OF(k) UNROLL for (int k = 0; k < VECTOR; ++k)
#define ROW(first, i) ((first) + (i64)(i) * gridDim.y * TALL)
#define EACH_FIRST(first)                                                                   \
    for (i64 first = (i64)blockIdx.y * TALL + threadIdx.y; first < rows; first += (i64)BATCH * gridDim.y * TALL)
#define EACH_ROW(i, row, first)           \
    UNROLL for (int i = 0; i < BATCH; ++i) \
        if (const i64 row = ROW(first, i); row < rows)

DEVICE void write_partial(const Real (&sums)[VECTOR], Real* partial, int n) {
    __shared__ Real tile[TALL][32 * VECTOR];
    EACH_OF(k) tile[threadIdx.y][threadIdx.x * VECTOR + k] = sums[k];
    __syncthreads();
    for (int t = threadIdx.y * 32 + threadIdx.x; t < 32 * VECTOR; t += 32 * TALL) {
        Real total = 0;
        UNROLL for (int y = 0; y < TALL; ++y) total += tile[y][t];
        const int column = (int)blockIdx.x * 32 * VECTOR + t;
        if (column < n) partial[(i64)blockIdx.y * n + column] = total;
    }
}

#if KIND >= 0
extern "C" __global__ void __launch_bounds__(32 * TALL) bias_activation_forward(
    const T* __restrict__ x, const W* __restrict__ bias, T* __restrict__ out, i64 rows, int n
) {
    const int c = COLUMN;
    if (c >= n) return;
    const Pack<W, VECTOR> b = load<VECTOR>(bias + c);
    EACH_FIRST(first) {
        Vector xs[BATCH];
        EACH_ROW(i, row, first) xs[i] = load<VECTOR>(x + row * n + c);
        EACH_ROW(i, row, first) {
            Vector y;
            EACH_OF(k) narrow(activate<KIND, T>(widen(xs[i].at[k]) + Real(widen(b.at[k]))), y.at[k]);
            store(out + row * n + c, y);
        }
    }
}

// dx = g slope(x + bias), and the partial sums of dx for dbias; either pointer may be null.
extern "C" __global__ void __launch_bounds__(32 * TALL) bias_activation_backward(
    const T* __restrict__ g, const T* __restrict__ x, const W* __restrict__ bias, T* __restrict__ dx,
    Real* __restrict__ partial, i64 rows, int n
) {
    const int c = COLUMN;
    Real sums[VECTOR] = {};
    if (c < n) {
        const Pack<W, VECTOR> b = load<VECTOR>(bias + c);
        EACH_FIRST(first) {
            Vector gs[BATCH], xs[BATCH];
            EACH_ROW(i, row, first) {
                gs[i] = load<VECTOR>(g + row * n + c);
                xs[i] = load<VECTOR>(x + row * n + c);
            }
            EACH_ROW(i, row, first) {
                Vector d;
                EACH_OF(k) {
                    const Real z = widen(xs[i].at[k]) + Real(widen(b.at[k]));
                    const Real value = pull<KIND, T>(widen(gs[i].at[k]), z);
                    sums[k] += value;
                    narrow(value, d.at[k]);
                }
                if (dx) store(dx + row * n + c, d);
            }
        }
    }
    if (partial) write_partial(sums, partial, n);
}

// f(x) made again, dx = g slope(x), which may be written over g, and the partial sums of dx, in one pass.
extern "C" __global__ void __launch_bounds__(32 * TALL) activation_again(
    const T* g, const T* __restrict__ x, T* __restrict__ out, T* dx, Real* __restrict__ partial, i64 rows, int n
) {
    const int c = COLUMN;
    Real sums[VECTOR] = {};
    if (c < n) EACH_FIRST(first) {
        Vector gs[BATCH], xs[BATCH];
        EACH_ROW(i, row, first) {
            gs[i] = load<VECTOR>(g + row * n + c);
            xs[i] = load<VECTOR>(x + row * n + c);
        }
        EACH_ROW(i, row, first) {
            Vector y, d;
            EACH_OF(k) {
                const Real z = widen(xs[i].at[k]), value = pull<KIND, T>(widen(gs[i].at[k]), z);
                sums[k] += value;
                narrow(activate<KIND, T>(z), y.at[k]);
                narrow(value, d.at[k]);
            }
            if (out) store(out + row * n + c, y);
            store(dx + row * n + c, d);
        }
    }
    if (partial) write_partial(sums, partial, n);
}
#elif KIND == -1
extern "C" __global__ void __launch_bounds__(32 * TALL) columns_sum(
    const T* __restrict__ g, Real* __restrict__ partial, i64 rows, int n
) {
    const int c = COLUMN;
    Real sums[VECTOR] = {};
    if (c < n) EACH_FIRST(first) {
        Vector gs[BATCH];
        EACH_ROW(i, row, first) gs[i] = load<VECTOR>(g + row * n + c);
        EACH_ROW(i, row, first) EACH_OF(k) sums[k] += widen(gs[i].at[k]);
    }
    write_partial(sums, partial, n);
}
#else
// The weight and bias gradients of a norm whose rows are too long for norm_backward to hold: of g y and of g.
extern "C" __global__ void __launch_bounds__(32 * TALL) columns_norm(
    const T* __restrict__ g, const T* __restrict__ x, const Real* __restrict__ mean, const Real* __restrict__ shift,
    const Real* __restrict__ scale, Real* __restrict__ weight_part, Real* __restrict__ bias_part, i64 rows, int n
) {
    const int c = COLUMN;
    Real dw[VECTOR] = {}, db[VECTOR] = {};
    if (c < n) EACH_FIRST(first) {
        Vector gs[BATCH], xs[BATCH];
        EACH_ROW(i, row, first) {
            gs[i] = load<VECTOR>(g + row * n + c);
            xs[i] = load<VECTOR>(x + row * n + c);
        }
        EACH_ROW(i, row, first) {
            const Real m = mean ? mean[row] : Real(0), s = mean ? shift[row] : Real(0), r = scale[row];
            EACH_OF(k) {
                const Real gk = widen(gs[i].at[k]);
                dw[k] += gk * ((widen(xs[i].at[k]) - m - s) * r);
                db[k] += gk;
            }
        }
    }
    if (weight_part) write_partial(dw, weight_part, n);
    __syncthreads();
    if (bias_part) write_partial(db, bias_part, n);
}
#endif
