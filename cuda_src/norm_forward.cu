// layer_norm and rms_norm (RMS 1) over the last axis, forward: one read and one write of each number. ADD 1: of x + other,
// rounded to the storage type and stored in `total`: two reads and two writes.
#include "norm.cuh"

#define ARRAYS (1 + ADD)

// The row's numbers, of the sum where there is one.
DEVICE Vector numbers(const Rows<ARRAYS>& source, i64 row, int i, int c) {
#if ADD
    const Reals left = widen(source.at(0, row, i, c)), right = widen(source.at(1, row, i, c));
    Reals sum;
    EACH_OF(k) sum.at[k] = left.at[k] + right.at[k];
    return narrow<T>(sum);
#else
    return source.at(0, row, i, c);
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT / THREADS) norm_forward(
    const T* __restrict__ x, const T* __restrict__ other, const W* __restrict__ weight, const W* __restrict__ bias,
    T* __restrict__ total, T* __restrict__ out, Real* __restrict__ mean, Real* __restrict__ shift,
    Real* __restrict__ scale, i64 rows, int n, Real inverse, Real eps
) {
    SCRATCH;
    Reducer<Real, GROUP> reduce(scratch);
#if ADD
    const Source<ARRAYS> from = {{x, other}};
#else
    const Source<ARRAYS> from = {{x}};
#endif
    ROWS_OF(source, ARRAYS, from);
    HELD(ws, weight, 1.0f);
    HELD(bs, bias, -0.0f);
    for (i64 row = FIRST_ROW; row < rows; row += ROW_STEP) {
        source.begin(row);
        Real m = 0, s = 0, square = 0;
#if !RMS
        EACH(i, c) {
            const Reals v = widen(numbers(source, row, i, c));
            EACH_OF(k) m += v.at[k];
        }
        m = quotient(reduce.sum(m), n, inverse);
        look_again();
#endif
        EACH(i, c) {
            const Reals v = widen(numbers(source, row, i, c));
            EACH_OF(k) {
                const Real d = v.at[k] - m;
                s += d;
                square += d * d;
            }
        }
#if RMS
        s = 0;
        const Real variance = reduce.sum(square) * inverse;
#else
        reduce.sums(s, square);
        s = quotient(s, n, inverse);  // what rounding left of the mean: with it constant rows come out as exactly 0
        const Real raw = square * inverse - s * s, variance = raw < 0 ? Real(0) : raw;
#endif
        const Real r = inverse_root(variance + eps);
        look_again();
        EACH(i, c) {
            const Vector stored = numbers(source, row, i, c);
            const Reals v = widen(stored), w = widen(HELD_AT(ws, i, weight, c, 1.0f)), b = widen(HELD_AT(bs, i, bias, c, -0.0f));
            Reals y;
            EACH_OF(k) y.at[k] = (v.at[k] - m - s) * r * w.at[k] + b.at[k];
            store(out + row * n + c, narrow<T>(y));
#if ADD
            store(total + row * n + c, stored);
#endif
        }
        if (threadIdx.x == 0) {
#if !RMS
            mean[row] = m;
            shift[row] = s;
#endif
            scale[row] = r;
        }
        source.end(row);
    }
}
