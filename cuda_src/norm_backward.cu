// layer_norm and rms_norm (RMS 1), backward. A block takes every gridDim-th group of rows and keeps the column sums of
// its rows in registers (WEIGHT 1: of g y, BIAS 1: of g); column_finish adds the blocks. DX 0 leaves dx out.
// With y = (x - mean - shift) r and h = g w:  dx = r (h - mean(h) - y mean(h y)); rms_norm has no mean(h).
#include "rows.cuh"

#define COLUMNS (WEIGHT + BIAS)

#if ITEMS && COLUMNS
// The sums of the block's rows in one column each, in the order of the rows, to `part`.
DEVICE void write_sums(const Real (&sums)[ITEMS][VECTOR], Real* part, int n) {
#if ROWS == 1
    EACH(i, c) {
        Pack<Real, VECTOR> v;
        EACH_OF(k) v.at[k] = sums[i][k];
        store(part + c, v);
    }
#else
    __shared__ Real tile[ROWS][32 * VECTOR];
    UNROLL for (int i = 0; i < ITEMS; ++i) {
        __syncthreads();
        EACH_OF(k) tile[threadIdx.y][threadIdx.x * VECTOR + k] = sums[i][k];
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

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT / THREADS) norm_backward(
    const T* __restrict__ g, const T* __restrict__ x, const W* __restrict__ weight, const Real* __restrict__ mean,
    const Real* __restrict__ shift, const Real* __restrict__ scale, T* __restrict__ dx, Real* __restrict__ partial,
    i64 rows, int n
) {
    SCRATCH;
    Reducer<Real, GROUP> reduce(scratch);
#if ITEMS && WEIGHT
    Real dw[ITEMS][VECTOR] = {};
#endif
#if ITEMS && BIAS
    Real db[ITEMS][VECTOR] = {};
#endif
    KEPT(xs);
    KEPT(gs);
    i64 row = FIRST_ROW;
    if (row < rows) {
        FILL(xs, x + row * n);
        FILL(gs, g + row * n);
    }
    while (row < rows) {
        const i64 next = row + ROW_STEP;
#if ITEMS
        Vector next_xs[ITEMS], next_gs[ITEMS];  // on their way while this row is reduced
        if (next < rows) {
            FILL(next_xs, x + next * n);
            FILL(next_gs, g + next * n);
        }
#endif
        const Real r = scale[row], m = RMS ? Real(0) : mean[row], s = RMS ? Real(0) : shift[row];
        Real h_sum = 0, hy_sum = 0;
        EACH(i, c) {
            const Vector xv = AT(xs, i, x + row * n, c), gv = AT(gs, i, g + row * n, c);
            Pack<W, VECTOR> w;
            if (weight) w = load<VECTOR>(weight + c);
            EACH_OF(k) {
                const Real y = (widen(xv.at[k]) - m - s) * r, gk = widen(gv.at[k]);
#if ITEMS && WEIGHT
                dw[i][k] += gk * y;
#endif
#if ITEMS && BIAS
                db[i][k] += gk;
#endif
                const Real h = weight ? gk * widen(w.at[k]) : gk;
                h_sum += h;
                hy_sum += h * y;
            }
        }
#if DX
        reduce.sums(h_sum, hy_sum);
        const Real level = RMS ? Real(0) : h_sum / n, pull = hy_sum / n;
        EACH(i, c) {
            const Vector xv = AT(xs, i, x + row * n, c), gv = AT(gs, i, g + row * n, c);
            Pack<W, VECTOR> w;
            Vector d;
            if (weight) w = load<VECTOR>(weight + c);
            EACH_OF(k) {
                const Real y = (widen(xv.at[k]) - m - s) * r, gk = widen(gv.at[k]);
                narrow(r * ((weight ? gk * widen(w.at[k]) : gk) - level - y * pull), d.at[k]);
            }
            store(dx + row * n + c, d);
        }
#endif
#if ITEMS
        if (next < rows) UNROLL for (int i = 0; i < ITEMS; ++i) xs[i] = next_xs[i], gs[i] = next_gs[i];
#endif
        row = next;
    }
#if ITEMS && WEIGHT
    write_sums(dw, partial + (i64)blockIdx.x * COLUMNS * n, n);
#endif
#if ITEMS && BIAS
    write_sums(db, partial + ((i64)blockIdx.x * COLUMNS + WEIGHT) * n, n);
#endif
}
