// SGD, Adam and AdamW over many tensors in one launch, in the operations and the order of ruda_optim/rules.py; compile
// with --fmad=false, so that no product and sum become one rounding: the result is then the plain body's to the bit.
//   RULE 0 SGD, 1 Adam, 2 AdamW;  STORAGE of parameters, GRADIENT of gradients;  MASTER 1: the parameter is a float32
//   master, STORAGE only gets it rounded;  DECAY, MOMENTUM, NESTEROV, AMSGRAD, CAUTIOUS: 1 where the rule has it;
//   TENSORS: how many the table holds.
#include "math.cuh"

typedef STORAGE T;
typedef GRADIENT G;
typedef Wide<T>::type Real;
typedef Pack<Real, VECTOR> State;

#define CHUNK_THREADS 256
#define CHUNK (CHUNK_THREADS * VECTOR * BATCH)
#define EACH_OF(k) UNROLL for (int k = 0; k < VECTOR; ++k)

// Passed by value: constant memory, no copy to wait for. `first` is each tensor's first block, `size` its numbers.
struct Table {
    u64 p[TENSORS], g[TENSORS], master[TENSORS], one[TENSORS], two[TENSORS], three[TENSORS];
    i64 size[TENSORS];
    u32 first[TENSORS];
    u32 count, aligned;
};

// Numbers of one step; `device` null, or the same in device memory, where a captured step can change them.
struct Step { Real rate, floor, shrink, decay, keep, unscale; };

// What the gradients' statistics decide: a bad one skips the whole step (-1), a large norm scales all gradients.
DEVICE float clip_of(const float* report, float max_norm) {
    if (report[0] != 0.0f) return -1.0f;
    if (max_norm < 0.0f) return 1.0f;
    const double norm = (double)report[1] * sqrt((double)report[2]), most = (double)max_norm / (norm + 1e-6);
    return most < 1.0 ? (float)most : 1.0f;
}

// One number: p, then the state s1, s2, s3 (velocity; or the moments and the largest second moment).
DEVICE void update(const Step& c, Real beta1, Real rest1, Real beta2, Real rest2, Real g, Real& p, Real& s1, Real& s2,
                   Real& s3) {
#if DECAY
    g = p * c.decay + g;
#endif
#if RULE == 0
#if MOMENTUM
    s1 = s1 * beta1;
    s1 = s1 + (c.keep == Real(1) ? g : g * c.keep);
    g = NESTEROV ? g + s1 * beta1 : s1;
#endif
    p = p - g * c.rate;
#else
    s1 = s1 * beta1;
    s1 = s1 + g * rest1;
    s2 = s2 * beta2;
    s2 = s2 + g * g * rest2;
    Real v = s2;
#if AMSGRAD
    v = s3 = s3 >= v || s3 != s3 ? s3 : v;
#endif
    const Real t = s1 / (root_of(v) + c.floor) * c.rate;
#if CAUTIOUS
    p = p * ((p >= Real(0)) == (s1 >= Real(0)) ? c.shrink : Real(1));
#elif RULE == 2
    if (c.shrink != Real(1)) p = p * c.shrink;
#endif
    p = p - t;
#endif
}

template <bool WHOLE, class S> DEVICE Pack<S, VECTOR> take(u64 base, i64 e, i64 left, bool aligned) {
    const S* p = (const S*)base + e;
    if constexpr (WHOLE) return load<VECTOR>(p);
    else {
        if (aligned && left >= VECTOR) return load<VECTOR>(p);
        Pack<S, VECTOR> v = {};
        EACH_OF(k) if (k < left) v.at[k] = p[k];
        return v;
    }
}
template <bool WHOLE, class S> DEVICE void give(u64 base, i64 e, i64 left, bool aligned, const Pack<S, VECTOR>& v) {
    S* p = (S*)base + e;
    if constexpr (WHOLE) return store(p, v);
    else {
        if (aligned && left >= VECTOR) return store(p, v);
        EACH_OF(k) if (k < left) p[k] = v.at[k];
    }
}

// A block's numbers of tensor t: all that is read is on its way before the first of it is needed. A WHOLE block is
// aligned and full.
template <bool WHOLE> DEVICE void run(
    const Table& table, int t, i64 start, Step c, Real beta1, Real rest1, Real beta2, Real rest2, Real clip,
    const Step* device, const float* report, float max_norm
) {
    const i64 size = table.size[t];
    const bool aligned = table.aligned;
    Pack<G, VECTOR> g[BATCH];
    Pack<T, VECTOR> stored[BATCH];
    State p[BATCH], s1[BATCH], s2[BATCH], s3[BATCH];
    UNROLL for (int i = 0; i < BATCH; ++i) {
        const i64 e = start + (i * CHUNK_THREADS + (int)threadIdx.x) * VECTOR, left = size - e;
        if (!WHOLE && left <= 0) continue;
        g[i] = take<WHOLE, G>(table.g[t], e, left, aligned);
        if (MASTER) p[i] = take<WHOLE, Real>(table.master[t], e, left, aligned);
        else stored[i] = take<WHOLE, T>(table.p[t], e, left, aligned);
        if (STATES > 0) s1[i] = take<WHOLE, Real>(table.one[t], e, left, aligned);
        if (STATES > 1) s2[i] = take<WHOLE, Real>(table.two[t], e, left, aligned);
        if (STATES > 2) s3[i] = take<WHOLE, Real>(table.three[t], e, left, aligned);
    }
    if (report) {
        __shared__ float shared;  // by one thread: it takes double precision, of which some GPUs have little
        if (threadIdx.x == 0) shared = clip_of(report, max_norm);
        __syncthreads();
        if (shared < 0.0f) return;
        clip = shared;
    }
    if (device) c = *device;
    UNROLL for (int i = 0; i < BATCH; ++i) {
        const i64 e = start + (i * CHUNK_THREADS + (int)threadIdx.x) * VECTOR, left = size - e;
        if (!WHOLE && left <= 0) return;
        const Values<Real, VECTOR> incoming = widen(g[i]);
        Values<Real, VECTOR> value;
        if (MASTER) EACH_OF(k) value.at[k] = p[i].at[k];
        else value = widen(stored[i]);
        EACH_OF(k) {
            Real gk = incoming.at[k];
            if (c.unscale != Real(1)) gk = gk / c.unscale;
            if (clip != Real(1)) gk = gk * clip;
            update(c, beta1, rest1, beta2, rest2, gk, value.at[k], s1[i].at[k], s2[i].at[k], s3[i].at[k]);
        }
        give<WHOLE>(table.p[t], e, left, aligned, narrow<T>(value));
        if (MASTER) {
            EACH_OF(k) p[i].at[k] = value.at[k];
            give<WHOLE>(table.master[t], e, left, aligned, p[i]);
        }
        if (STATES > 0) give<WHOLE>(table.one[t], e, left, aligned, s1[i]);
        if (STATES > 1) give<WHOLE>(table.two[t], e, left, aligned, s2[i]);
        if (STATES > 2) give<WHOLE>(table.three[t], e, left, aligned, s3[i]);
    }
}

extern "C" __global__ void __launch_bounds__(CHUNK_THREADS) optimizer_step(
    const __grid_constant__ Table table, Step c, Real beta1, Real rest1, Real beta2, Real rest2, Real scale,
    const Real* __restrict__ scale_at, const Step* __restrict__ device, const float* __restrict__ report, float max_norm
) {
    const Real clip = scale_at ? *scale_at : scale;
    int t = 0;
    for (int step = TENSORS / 2; step; step /= 2)
        if (t + step < (int)table.count && table.first[t + step] <= blockIdx.x) t += step;
    const i64 start = (i64)(blockIdx.x - table.first[t]) * CHUNK;
    if (table.aligned && start + CHUNK <= table.size[t])
        run<true>(table, t, start, c, beta1, rest1, beta2, rest2, clip, device, report, max_norm);
    else
        run<false>(table, t, start, c, beta1, rest1, beta2, rest2, clip, device, report, max_norm);
}
