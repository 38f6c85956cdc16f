// layer_norm and rms_norm (RMS 1) over the last axis, forward: one read and one write of each number. ADD 1: of x + other,
// rounded to the storage type and stored in `total`: two reads and two writes.
//   AHEAD 1: a block takes every gridDim-th group of rows and fetches the next one while it works on the present one.
#include "norm.cuh"

#if ADD
#define ROW_AT(i, c) added(AT(kept, i, x + row * n, c), AT(others, i, other + row * n, c))
DEVICE Vector added(const Vector& a, const Vector& b) {
    const Reals left = widen(a), right = widen(b);
    Reals sum;
    EACH_OF(k) sum.at[k] = left.at[k] + right.at[k];
    return narrow<T>(sum);
}
#else
#define ROW_AT(i, c) AT(kept, i, x + row * n, c)
#endif

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT / THREADS) norm_forward(
    const T* __restrict__ x, const T* __restrict__ other, const W* __restrict__ weight, const W* __restrict__ bias,
    T* __restrict__ total, T* __restrict__ out, Real* __restrict__ mean, Real* __restrict__ shift,
    Real* __restrict__ scale, i64 rows, int n, Real inverse, Real eps
) {
    SCRATCH;
    Reducer<Real, GROUP> reduce(scratch);
    KEPT(kept);
#if ADD
    KEPT(others);
#endif
    i64 row = FIRST_ROW;
    if (row < rows) {
        FILL(kept, x + row * n);
#if ADD
        FILL(others, other + row * n);
#endif
    }
    HELD(ws, weight, 1.0f);
    HELD(bs, bias, -0.0f);
    while (row < rows) {
        const i64 next = row + ROW_STEP;
#if ITEMS && AHEAD
        KEPT(coming);
        if (next < rows) FILL(coming, x + next * n);
#if ADD
        KEPT(others_coming);
        if (next < rows) FILL(others_coming, other + next * n);
#endif
#endif
        Real m = 0, s = 0, square = 0;
#if !RMS
        EACH(i, c) {
            const Reals v = widen(ROW_AT(i, c));
            EACH_OF(k) m += v.at[k];
        }
        m = quotient(reduce.sum(m), n, inverse);
#endif
        EACH(i, c) {
            const Reals v = widen(ROW_AT(i, c));
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
        EACH(i, c) {
            const Vector stored = ROW_AT(i, c);
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
#if ITEMS
        UNROLL for (int i = 0; i < ITEMS; ++i) {
#if AHEAD
            kept[i] = coming[i];
#endif
#if AHEAD && ADD
            others[i] = others_coming[i];
#endif
        }
#if !AHEAD
        if (next < rows) {
            FILL(kept, x + next * n);
#if ADD
            FILL(others, other + next * n);
#endif
        }
#endif
#endif
        row = next;
    }
}
