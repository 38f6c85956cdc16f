// softmax and log_softmax (LOG 1) over the last axis: forward keeps the result, backward reads it and g.
// A NaN, an inf or a row of -inf alone makes the row NaN: it comes out of x - max(x).
#include "rows.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) softmax_forward(
    const T* __restrict__ x, T* __restrict__ out, i64 rows, int n
) {
    SCRATCH;
    Reducer<Real, GROUP> reduce(scratch);
    for (i64 row = FIRST_ROW; row < rows; row += ROW_STEP) {
        const T* source = x + row * n;
        KEPT(kept);
        FILL(kept, source);
        Real top = -INFINITE, total = 0;
        EACH(i, c) {
            const Vector v = AT(kept, i, source, c);
            EACH_OF(k) top = larger(top, widen(v.at[k]));
        }
        top = reduce.max(top);
#if ITEMS && !LOG
        Real e[ITEMS][VECTOR];
#endif
        EACH(i, c) {
            const Vector v = AT(kept, i, source, c);
            EACH_OF(k) {
                const Real value = For<T>::exp(widen(v.at[k]) - top);
#if ITEMS && !LOG
                e[i][k] = value;
#endif
                total += value;
            }
        }
        total = reduce.sum(total);
        const Real scale = LOG ? log_of(total) : Real(1) / total;
        EACH(i, c) {
            Vector y;
#if !ITEMS || LOG
            const Vector v = AT(kept, i, source, c);
#endif
            EACH_OF(k) {
#if LOG
                narrow(widen(v.at[k]) - top - scale, y.at[k]);
#elif ITEMS
                narrow(e[i][k] * scale, y.at[k]);
#else
                narrow(For<T>::exp(widen(v.at[k]) - top) * scale, y.at[k]);
#endif
            }
            store(out + row * n + c, y);
        }
    }
}

// softmax: dx = p (g - sum(g p));  log_softmax: dx = g - exp(out) sum(g)
extern "C" __global__ void __launch_bounds__(THREADS) softmax_backward(
    const T* __restrict__ g, const T* __restrict__ out, T* __restrict__ dx, i64 rows, int n
) {
    SCRATCH;
    Reducer<Real, GROUP> reduce(scratch);
    for (i64 row = FIRST_ROW; row < rows; row += ROW_STEP) {
        KEPT(gs);
        KEPT(ps);
        FILL(gs, g + row * n);
        FILL(ps, out + row * n);
        Real total = 0;
        EACH(i, c) {
            const Vector gv = AT(gs, i, g + row * n, c);
            const Vector pv = AT(ps, i, out + row * n, c);
            EACH_OF(k) total += LOG ? widen(gv.at[k]) : widen(gv.at[k]) * widen(pv.at[k]);
        }
        total = reduce.sum(total);
        EACH(i, c) {
            const Vector gv = AT(gs, i, g + row * n, c), pv = AT(ps, i, out + row * n, c);
            Vector d;
            EACH_OF(k) {
                const Real gk = widen(gv.at[k]), p = widen(pv.at[k]);
                narrow(LOG ? gk - For<T>::exp(p) * total : p * (gk - total), d.at[k]);
            }
            store(dx + row * n + c, d);
        }
    }
}
