// Cross-entropy of logits (rows, n) with class ids, one read of the logits each way. Forward keeps two numbers per row:
// top = max(x) and whole = sum(exp(x - top)). WEIGHTED 1: class weights; SMOOTHED 1: label smoothing.
// An id that is no class, and not the ignored one, makes its row's loss and gradient NaN.
// With z = x - top:  loss = own (keep (log whole - z_own) + each sum(w (log whole - z))), own = w of the row's class.
#include "rows.cuh"

#define STRIDE (GROUP * VECTOR)
#define MANY_AT_ONCE 4

// One thread's view of a row while its largest logit may still grow.
struct Online {
    Real top, whole, weighted, mass;  // sum(exp(x - top)), sum(w (x - top)), sum(w)

    // Take MANY vectors that stand GROUP threads apart: looking at all of them first rarely changes top again.
    template <int MANY> __device__ __forceinline__ void add(const Vector (&v)[MANY], const Real* weight, int c) {
        Real peak = top;
        UNROLL for (int i = 0; i < MANY; ++i) EACH_OF(k) peak = larger(peak, widen(v[i].at[k]));
        if (peak > top) {
            if (top > -INFINITE) {
                whole *= For<T>::exp(top - peak);
                weighted -= (peak - top) * mass;
            }
            top = peak;
        }
        UNROLL for (int i = 0; i < MANY; ++i) EACH_OF(k) {
            const Real x = widen(v[i].at[k]), z = top > -INFINITE ? x - top : x;  // -inf so far: exp is 0, or NaN if x is
            whole += For<T>::exp(z);
#if SMOOTHED
            const Real w = WEIGHTED ? weight[c + i * STRIDE + k] : Real(1);
            weighted += w * z;
            mass += w;
#endif
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS) cross_entropy_forward(
    const T* __restrict__ x, const i64* __restrict__ targets, const Real* __restrict__ weight, T* __restrict__ losses,
    Real* __restrict__ tops, Real* __restrict__ wholes, Real* __restrict__ terms, Real* __restrict__ owns, i64 rows,
    int n, i64 ignore, int ignoring, Real keep, Real each
) {
    SCRATCH;
    Reducer<Real, GROUP> reduce(scratch);
    for (i64 row = FIRST_ROW; row < rows; row += ROW_STEP) {
        const T* source = x + row * n;
        Online seen = {-INFINITE, 0, 0, 0};
        int c = threadIdx.x * VECTOR;
        for (; c + (MANY_AT_ONCE - 1) * STRIDE < n; c += MANY_AT_ONCE * STRIDE) {
            Vector v[MANY_AT_ONCE];
            UNROLL for (int i = 0; i < MANY_AT_ONCE; ++i) v[i] = load<VECTOR>(source + c + i * STRIDE);
            seen.add(v, weight, c);
        }
        for (; c < n; c += STRIDE) {
            const Vector v[1] = {load<VECTOR>(source + c)};
            seen.add(v, weight, c);
        }
        const Real top = reduce.max(seen.top);
        Real whole = seen.top > -INFINITE ? seen.whole * For<T>::exp(seen.top - top) : seen.whole;
        if (!(top > -INFINITE)) whole = top - top;  // a row of -inf alone is NaN, as -inf - -inf is
#if SMOOTHED
        Real mass = seen.mass;
        Real weighted = seen.weighted - (seen.top > -INFINITE ? (top - seen.top) * mass : Real(0));
        reduce.sums(weighted, mass);
#endif
        whole = reduce.sum(whole);
        if (threadIdx.x == 0) {
            const i64 id = targets[row];
            Real own = 0, loss = 0;
            if (ignoring && id == ignore) {
            } else if (id < 0 || id >= n) {
                own = loss = NOT_A_NUMBER;
            } else {
                const Real logs = log_of(whole);
                own = WEIGHTED ? weight[id] : Real(1);
                loss = own * keep * (logs - (widen(source[id]) - top));
#if SMOOTHED
                loss += each * (mass * logs - weighted);
#endif
            }
            tops[row] = top;
            wholes[row] = whole;
            if (losses) narrow(loss, losses[row]);
            if (terms) terms[row] = loss;
            if (owns) owns[row] = own;
        }
    }
}

// What the gradient of a row has in common.
struct Pull {
    Real top, scale, hit, level;  // dx = exp(x - top) scale - (the own class) hit - w level
    int own;

    __device__ __forceinline__ Vector of(const Vector& x, const Real* weight, int c) const {
        Vector d;
        EACH_OF(k) {
            Real value = For<T>::exp(widen(x.at[k]) - top) * scale;
            if (SMOOTHED) value -= level * (WEIGHTED ? weight[c + k] : Real(1));
            if (c + k == own) value -= hit;
            narrow(value, d.at[k]);
        }
        return d;
    }
};

// dx = g ((own keep + each mass) p - own keep at the own class - each w), p = exp(x - top) / whole; dx may be x itself:
// what is stored depends on what was read there, and no other thread reads it, so __restrict__ misleads nobody.
// `factor` (device) or `share` scales g: the derivative of the reduction by a row's loss; factor[1] is sum(w).
extern "C" __global__ void __launch_bounds__(THREADS) cross_entropy_backward(
    const T* __restrict__ g, const T* __restrict__ x, const i64* __restrict__ targets, const Real* __restrict__ weight,
    const Real* __restrict__ tops, const Real* __restrict__ wholes, const Real* __restrict__ factor, T* __restrict__ dx, i64 rows,
    int n, i64 ignore, int ignoring, Real keep, Real each, Real share, int g_step
) {
    for (i64 row = FIRST_ROW; row < rows; row += ROW_STEP) {
        const i64 id = targets[row];
        const bool ignored = ignoring && id == ignore, wrong = id < 0 || id >= n;
        const T* source = x + row * n;
        T* target = dx + row * n;
        if (ignored || wrong) {  // 0 also where an ignored row holds NaN
            Vector fill;
            EACH_OF(k) narrow(ignored ? Real(0) : Real(NOT_A_NUMBER), fill.at[k]);
            for (int c = threadIdx.x * VECTOR; c < n; c += STRIDE) store(target + c, fill);
            continue;
        }
        const Real mass = WEIGHTED ? factor[1] : Real(n);
        const Real incoming = widen(g[row * g_step]) * (factor ? factor[0] : share);
        Pull pull;
        pull.own = (int)id;
        pull.top = tops[row];
        pull.hit = incoming * keep * (WEIGHTED ? weight[id] : Real(1));
        pull.level = incoming * each;
        pull.scale = (pull.hit + (SMOOTHED ? pull.level * mass : Real(0))) / wholes[row];
        int c = threadIdx.x * VECTOR;
        for (; c + (MANY_AT_ONCE - 1) * STRIDE < n; c += MANY_AT_ONCE * STRIDE) {
            Vector v[MANY_AT_ONCE];
            UNROLL for (int i = 0; i < MANY_AT_ONCE; ++i) v[i] = load<VECTOR>(source + c + i * STRIDE);
            UNROLL for (int i = 0; i < MANY_AT_ONCE; ++i) {
                const Vector d = pull.of(v[i], weight, c + i * STRIDE);
                store(target + c + i * STRIDE, d);
            }
        }
        for (; c < n; c += STRIDE) store(target + c, pull.of(load<VECTOR>(source + c), weight, c));
    }
}
