// Sums over the rows of a matrix, one per column, in two stages and one fixed order: columns_reduce or a kernel that makes
// its terms on the way writes one row of partial sums per block row, and columns_finish adds those.
// Also the activations of x + bias, whose bias gradient is such a sum. KIND as in math.cuh, -1 for plain reductions, -2 for
// norms. OP: a sum, or the largest or smallest number of each column.
#include "math.cuh"

#ifndef AFFINE
#define AFFINE STORAGE
#endif
typedef STORAGE T;
typedef AFFINE W;
typedef Wide<T>::type Real;
typedef Pack<T, VECTOR> Vector;
typedef Values<Real, VECTOR> Reals;

// A block is WIDE x TALL threads over WIDE VECTOR columns; each thread takes BATCH rows at a time in its own columns.
#define THREADS (WIDE * TALL)
#define COLUMN (((int)blockIdx.x * WIDE + (int)threadIdx.x) * VECTOR)
#define ROW_STEP ((i64)gridDim.y * TALL)
#define EACH_OF(k) UNROLL for (int k = 0; k < VECTOR; ++k)
#define EACH_ROW(i, at)                    \
    UNROLL for (int i = 0; i < BATCH; ++i) \
        if (const i64 at = first + i * ROW_STEP; WHOLE || at < rows)

// Runs step<WHOLE>(first row) over the rows of a thread: only the last step may have fewer than BATCH.
template <class Step> DEVICE void each_batch(i64 rows, Step&& step) {
    i64 first = (i64)blockIdx.y * TALL + threadIdx.y;
    for (; first + (BATCH - 1) * ROW_STEP < rows; first += BATCH * ROW_STEP) step.template run<true>(first);
    if (first < rows) step.template run<false>(first);
}

DEVICE void write_partial(const Reals& sums, Real* partial, int n) {
    __shared__ Real tile[TALL][WIDE * VECTOR];
    EACH_OF(k) tile[threadIdx.y][threadIdx.x * VECTOR + k] = sums.at[k];
    __syncthreads();
    for (int t = threadIdx.y * WIDE + threadIdx.x; t < WIDE * VECTOR; t += THREADS) {
        Real total = tile[0][t];
        UNROLL for (int y = 1; y < TALL; ++y) total = combine<OP>(total, tile[y][t]);
        const int column = (int)blockIdx.x * WIDE * VECTOR + t;
        if (column < n) partial[(i64)blockIdx.y * n + column] = total;
    }
}

#if KIND >= 0
struct Forward {
    const T* x;
    T* out;
    i64 rows, n;
    Values<typename Wide<W>::type, VECTOR> b;

    template <bool WHOLE> __device__ __forceinline__ void run(i64 first) {
        Vector xs[BATCH];
        EACH_ROW(i, row) xs[i] = load<VECTOR>(x + row * n);
        EACH_ROW(i, row) {
            Reals y = widen(xs[i]);
            EACH_OF(k) y.at[k] = activate<KIND, T>(y.at[k] + Real(b.at[k]));
            store(out + row * n, narrow<T>(y));
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS) bias_activation_forward(
    const T* __restrict__ x, const W* __restrict__ bias, T* __restrict__ out, i64 rows, int n
) {
    const int c = COLUMN;
    if (c < n) each_batch(rows, Forward{x + c, out + c, rows, n, widen(load<VECTOR>(bias + c))});
}

struct Backward {
    const T *g, *x;
    T* dx;
    i64 rows, n;
    Values<typename Wide<W>::type, VECTOR> b;
    Reals& sums;

    template <bool WHOLE> __device__ __forceinline__ void run(i64 first) {
        Vector gs[BATCH], xs[BATCH];
        EACH_ROW(i, row) {
            gs[i] = load<VECTOR>(g + row * n);
            xs[i] = load<VECTOR>(x + row * n);
        }
        EACH_ROW(i, row) {
            const Reals incoming = widen(gs[i]), at = widen(xs[i]);
            Reals d;
            EACH_OF(k) {
                d.at[k] = pull<KIND, T>(incoming.at[k], at.at[k] + Real(b.at[k]));
                sums.at[k] += d.at[k];
            }
            if (dx) store(dx + row * n, narrow<T>(d));
        }
    }
};

// dx = g slope(x + bias), and the partial sums of dx for dbias; either pointer may be null.
extern "C" __global__ void __launch_bounds__(THREADS) bias_activation_backward(
    const T* __restrict__ g, const T* __restrict__ x, const W* __restrict__ bias, T* __restrict__ dx,
    Real* __restrict__ partial, i64 rows, int n
) {
    const int c = COLUMN;
    Reals sums = {};
    if (c < n) each_batch(rows, Backward{g + c, x + c, dx ? dx + c : dx, rows, n, widen(load<VECTOR>(bias + c)), sums});
    if (partial) write_partial(sums, partial, n);
}

struct Again {
    const T *g, *x;
    T *out, *dx;
    i64 rows, n;
    Reals& sums;

    template <bool WHOLE> __device__ __forceinline__ void run(i64 first) {
        Vector gs[BATCH], xs[BATCH];
        EACH_ROW(i, row) {
            gs[i] = load<VECTOR>(g + row * n);
            xs[i] = load<VECTOR>(x + row * n);
        }
        EACH_ROW(i, row) {
            const Reals incoming = widen(gs[i]), at = widen(xs[i]);
            Reals y, d;
            EACH_OF(k) {
                d.at[k] = pull<KIND, T>(incoming.at[k], at.at[k]);
                sums.at[k] += d.at[k];
                y.at[k] = activate<KIND, T>(at.at[k]);
            }
            if (out) store(out + row * n, narrow<T>(y));
            store(dx + row * n, narrow<T>(d));
        }
    }
};

// f(x) made again, dx = g slope(x), which may be written over g, and the partial sums of dx, in one pass.
extern "C" __global__ void __launch_bounds__(THREADS) activation_again(
    const T* g, const T* __restrict__ x, T* __restrict__ out, T* dx, Real* __restrict__ partial, i64 rows, int n
) {
    const int c = COLUMN;
    Reals sums = {};
    if (c < n) each_batch(rows, Again{g + c, x + c, out ? out + c : out, dx + c, rows, n, sums});
    if (partial) write_partial(sums, partial, n);
}
#elif KIND == -1
struct Reduce {
    const T* g;
    i64 rows, n;
    Reals& sums;

    template <bool WHOLE> __device__ __forceinline__ void run(i64 first) {
        Vector gs[BATCH];
        EACH_ROW(i, row) gs[i] = load<VECTOR>(g + row * n);
        EACH_ROW(i, row) {
            const Reals v = widen(gs[i]);
            EACH_OF(k) sums.at[k] = combine<OP>(sums.at[k], v.at[k]);
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS) columns_reduce(
    const T* __restrict__ g, Real* __restrict__ partial, i64 rows, int n
) {
    const int c = COLUMN;
    Reals sums;
    EACH_OF(k) sums.at[k] = identity<OP, Real>();
    if (c < n) each_batch(rows, Reduce{g + c, rows, n, sums});
    write_partial(sums, partial, n);
}
#else
// The weight and bias gradients of a norm whose rows are too long for norm_backward to hold: of g y and of g.
struct Norm {
    const T *g, *x;
    const Real *mean, *shift, *scale;
    i64 rows, n;
    Reals &dw, &db;

    template <bool WHOLE> __device__ __forceinline__ void run(i64 first) {
        Vector gs[BATCH], xs[BATCH];
        EACH_ROW(i, row) {
            gs[i] = load<VECTOR>(g + row * n);
            xs[i] = load<VECTOR>(x + row * n);
        }
        EACH_ROW(i, row) {
            const Real m = mean ? mean[row] : Real(0), s = mean ? shift[row] : Real(0), r = scale[row];
            const Reals incoming = widen(gs[i]), at = widen(xs[i]);
            EACH_OF(k) {
                dw.at[k] += incoming.at[k] * ((at.at[k] - m - s) * r);
                db.at[k] += incoming.at[k];
            }
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS) columns_norm(
    const T* __restrict__ g, const T* __restrict__ x, const Real* __restrict__ mean, const Real* __restrict__ shift,
    const Real* __restrict__ scale, Real* __restrict__ weight_part, Real* __restrict__ bias_part, i64 rows, int n
) {
    const int c = COLUMN;
    Reals dw = {}, db = {};
    if (c < n) each_batch(rows, Norm{g + c, x + c, mean, shift, scale, rows, n, dw, db});
    if (weight_part) write_partial(dw, weight_part, n);
    __syncthreads();
    if (bias_part) write_partial(db, bias_part, n);
}
#endif
