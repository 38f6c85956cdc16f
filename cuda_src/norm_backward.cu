// layer_norm and rms_norm (RMS 1), backward. A block takes every gridDim-th group of rows and keeps the column sums of
// its rows in registers (WEIGHT 1: of g y, BIAS 1: of g); columns_finish adds the blocks. DX 0 leaves dx out; ADD 1 adds
// the gradient `residual` of type ADDED, which reaches x on another way, before dx is rounded.
// With y = (x - mean - shift) r and h = g w:  dx = r (h - mean(h) - y mean(h y)); rms_norm has no mean(h).
#include "norm.cuh"

#define COLUMNS (WEIGHT + BIAS)

#if ITEMS && COLUMNS
// The sums of the block's rows in one column each, in the order of the rows, to `part`.
DEVICE void write_sums(const Reals (&sums)[ITEMS], Real* part, int n) {
#if ROWS == 1
    EACH(i, c) {
        Pack<Real, VECTOR> v;
        EACH_OF(k) v.at[k] = sums[i].at[k];
        store(part + c, v);
    }
#else
    __shared__ Real tile[ROWS][32 * VECTOR];
    UNROLL for (int i = 0; i < ITEMS; ++i) {
        __syncthreads();
        EACH_OF(k) tile[threadIdx.y][threadIdx.x * VECTOR + k] = sums[i].at[k];
        __syncthreads();
        for (int t = threadIdx.y * 32 + threadIdx.x; t < 32 * VECTOR; t += 32 * ROWS) {
            Real total = 0;
            UNROLL for (int y = 0; y < ROWS; ++y) total += tile[y][t];
            if (i * 32 * VECTOR + t < n) part[i * 32 * VECTOR + t] = total;
        }
    }
#endif
}
#endif

struct Statistics { Real mean, shift, scale; };

DEVICE Statistics statistics(const Real* mean, const Real* shift, const Real* scale, i64 row) {
    return {RMS ? Real(0) : mean[row], RMS ? Real(0) : shift[row], scale[row]};
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT / THREADS) norm_backward(
    const T* __restrict__ g, const T* __restrict__ x, const W* __restrict__ weight, const Real* __restrict__ mean,
    const Real* __restrict__ shift, const Real* __restrict__ scale, const ADDED* __restrict__ residual,
    T* __restrict__ dx, Real* __restrict__ partial, i64 rows, int n, Real inverse
) {
    SCRATCH;
    Reducer<Real, GROUP> reduce(scratch);
#if ITEMS && WEIGHT
    Reals dw[ITEMS] = {};
#endif
#if ITEMS && BIAS
    Reals db[ITEMS] = {};
#endif
    const Source<2> from = {{x, g}};
    ROWS_OF(source, 2, from);
    Statistics now = {0, 0, 0};
    if (FIRST_ROW < rows) now = statistics(mean, shift, scale, FIRST_ROW);
    HELD(ws, weight, 1.0f);
    for (i64 row = FIRST_ROW; row < rows; row += ROW_STEP) {
        source.begin(row);
        const Statistics then = row + ROW_STEP < rows ? statistics(mean, shift, scale, row + ROW_STEP) : now;
#if ADD
#if ITEMS
        Pack<ADDED, VECTOR> rs[ITEMS];
#endif
        FILL(rs, residual + row * n);
#endif
        const Real m = now.mean, r = now.scale, lift = -now.shift * r;
        Real h_sum = 0, hy_sum = 0;
        EACH(i, c) {
            const Reals xv = widen(source.at(0, row, i, c)), gv = widen(source.at(1, row, i, c));
            const Reals w = widen(HELD_AT(ws, i, weight, c, 1.0f));
            EACH_OF(k) {
                const Real y = (xv.at[k] - m) * r + lift, h = rounded_product(gv.at[k], w.at[k]);
#if ITEMS && WEIGHT
                dw[i].at[k] += gv.at[k] * y;
#endif
#if ITEMS && BIAS
                db[i].at[k] += gv.at[k];
#endif
                h_sum += h;
                hy_sum += h * y;
            }
        }
#if DX
#if RMS
        const Real level = 0, pull = reduce.sum(hy_sum) * inverse * r;
#else
        reduce.sums(h_sum, hy_sum);
        const Real level = h_sum * inverse, pull = hy_sum * inverse * r;
#endif
        look_again();
        EACH(i, c) {
            const Reals xv = widen(source.at(0, row, i, c)), gv = widen(source.at(1, row, i, c));
            const Reals w = widen(HELD_AT(ws, i, weight, c, 1.0f));
            Reals d;
            EACH_OF(k) {
                const Real y = (xv.at[k] - m) * r + lift;
                d.at[k] = (rounded_product(gv.at[k], w.at[k]) - level) * r - y * pull;
            }
#if ADD
            const Reals rv = widen(AT(rs, i, residual + row * n, c));
            EACH_OF(k) d.at[k] += rv.at[k];
#endif
            store(dx + row * n + c, narrow<T>(d));
        }
#endif
        now = then;
        source.end(row);
    }
#if ITEMS && WEIGHT
    write_sums(dw, partial + (i64)blockIdx.x * COLUMNS * n, n);
#endif
#if ITEMS && BIAS
    write_sums(db, partial + ((i64)blockIdx.x * COLUMNS + WEIGHT) * n, n);
#endif
}
