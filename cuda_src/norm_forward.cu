// layer_norm and rms_norm (RMS 1) over the last axis, forward: one read and one write of each number.
#include "rows.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) norm_forward(
    const T* __restrict__ x, const W* __restrict__ weight, const W* __restrict__ bias, T* __restrict__ out,
    Real* __restrict__ mean, Real* __restrict__ shift, Real* __restrict__ scale, i64 rows, int n, Real eps
) {
    SCRATCH;
    Reducer<Real, GROUP> reduce(scratch);
    for (i64 row = FIRST_ROW; row < rows; row += ROW_STEP) {
        const T* source = x + row * n;
        KEPT(kept);
        FILL(kept, source);
        Real m = 0, s = 0, square = 0;
#if !RMS
        EACH(i, c) {
            const Vector v = AT(kept, i, source, c);
            EACH_OF(k) m += widen(v.at[k]);
        }
        m = reduce.sum(m) / n;
#endif
        EACH(i, c) {
            const Vector v = AT(kept, i, source, c);
            EACH_OF(k) {
                const Real d = widen(v.at[k]) - m;
                s += d;
                square += d * d;
            }
        }
#if RMS
        s = 0;
        const Real variance = reduce.sum(square) / n;
#else
        reduce.sums(s, square);
        s /= n;  // what rounding left of the mean: with it constant rows come out as exactly 0
        const Real raw = square / n - s * s, variance = raw < 0 ? Real(0) : raw;
#endif
        const Real r = Real(1) / root_of(variance + eps);
        EACH(i, c) {
            const Vector v = AT(kept, i, source, c);
            Vector y;
            Pack<W, VECTOR> w, b;
            if (weight) w = load<VECTOR>(weight + c);
            if (bias) b = load<VECTOR>(bias + c);
            EACH_OF(k) {
                Real value = (widen(v.at[k]) - m - s) * r;
                if (weight) value *= widen(w.at[k]);
                if (bias) value += widen(b.at[k]);
                narrow(value, y.at[k]);
            }
            store(out + row * n + c, y);
        }
        if (threadIdx.x == 0) {
#if !RMS
            mean[row] = m;
            shift[row] = s;
#endif
            scale[row] = r;
        }
    }
}
