// Normalization of the channels of (images, channels, length) over images and length, as it lies. A block takes a part of one
// channel: THREADS ITEMS VECTOR numbers, whose runs of `length` lie channels length apart. Sums over a channel have two
// stages: parts, and a sum over parts in one fixed order.
#include "reduce.cuh"

typedef STORAGE T;
typedef AFFINE W;
typedef Wide<T>::type Real;
typedef Pack<T, VECTOR> Vector;
typedef Values<Real, VECTOR> Reals;

#define THREADS 256
#define STEP (THREADS * VECTOR)
#define PART ((i64)STEP * ITEMS)
#define EACH_OF(k) UNROLL for (int k = 0; k < VECTOR; ++k)

// Where a thread's numbers lie: `at` of number `e` of the channel, moved on by STEP without a division.
struct Walk {
    i64 e, at, jump, wrap;
    int l, length, rest;

    __device__ __forceinline__ Walk(int channels, int length) : length(length) {
        e = blockIdx.x * PART + threadIdx.x * VECTOR;
        const i64 n = e / length;
        l = (int)(e - n * length);
        at = (n * channels + blockIdx.y) * length + l;
        rest = STEP % length;
        jump = (i64)(STEP / length) * channels * length + rest;
        wrap = (i64)(channels - 1) * length;
    }
    __device__ __forceinline__ void next() {
        e += STEP;
        at += jump;
        l += rest;
        if (l >= length) {
            l -= length;
            at += wrap;
        }
    }
};
#define WALK(i, walk, size)                            \
    Walk walk(channels, length);                       \
    UNROLL for (int i = 0; i < ITEMS; ++i, walk.next()) \
        if (walk.e < size)

// Of each part (part, channel): its mean m, the mean of d = x - m, which is what rounding left of m, and the sum of squares
// about the mean. The part stays in registers between the two looks at it.
extern "C" __global__ void __launch_bounds__(THREADS) batch_moments(
    const T* __restrict__ x, Real* __restrict__ parts, i64 size, int channels, int length
) {
    __shared__ Real scratch[2][2][32];
    Reducer<Real, THREADS> reduce(scratch);
    const i64 left = size - blockIdx.x * PART;
    const Real inverse = Real(1) / Real(left < PART ? left : PART);
    Vector xs[ITEMS] = {};
    Real m = 0, s = 0, square = 0;
    {
        WALK(i, walk, size) xs[i] = load<VECTOR>(x + walk.at);
    }
    UNROLL for (int i = 0; i < ITEMS; ++i) {
        const Reals v = widen(xs[i]);
        EACH_OF(k) m += v.at[k];
    }
    m = reduce.sum(m) * inverse;
    UNROLL for (int i = 0; i < ITEMS; ++i) {
        if (blockIdx.x * PART + threadIdx.x * VECTOR + (i64)i * STEP >= size) continue;
        const Reals v = widen(xs[i]);
        EACH_OF(k) {
            const Real d = v.at[k] - m;
            s += d;
            square += d * d;
        }
    }
    reduce.sums(s, square);
    if (threadIdx.x) return;
    Real* const out = parts + ((i64)blockIdx.x * channels + blockIdx.y) * 3;
    s *= inverse;
    out[0] = m;
    out[1] = s;
    out[2] = square - s * s / inverse;
}

// The moments of whole channels from those of their parts (Chan, Golub and LeVeque 1979): a warp per channel.
extern "C" __global__ void __launch_bounds__(THREADS) batch_moments_finish(
    const Real* __restrict__ parts, Real* __restrict__ mean, Real* __restrict__ shift, Real* __restrict__ variance, i64 size,
    int count, int channels
) {
    const int c = blockIdx.x * (THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x & 31;
    const bool real = c < channels;
    const Real inverse = Real(1) / Real(size);
    Real m = 0, s = 0, square = 0;
    for (int p = lane; real && p < count; p += 32) {
        const i64 left = size - p * PART;
        m += parts[((i64)p * channels + c) * 3] * (Real(left < PART ? left : PART) * inverse);
    }
    m = warp_sum(m);
    for (int p = lane; real && p < count; p += 32) {
        const i64 left = size - p * PART;
        const Real share = Real(left < PART ? left : PART) * inverse;
        const Real* const part = parts + ((i64)p * channels + c) * 3;
        const Real d = part[0] - m + part[1];
        s += d * share;
        square += part[2] * inverse + d * d * share;
    }
    s = warp_sum(s);
    square = warp_sum(square) - s * s;
    if (!real || lane) return;
    mean[c] = m;
    shift[c] = s;
    variance[c] = square < 0 ? Real(0) : square;
}

// The running statistics after one more batch: old (1 - momentum) + new momentum, `unbiased` times the variance.
extern "C" __global__ void __launch_bounds__(THREADS) batch_running(
    const Real* __restrict__ mean, const Real* __restrict__ shift, const Real* __restrict__ variance,
    const Real* __restrict__ old_mean, const Real* __restrict__ old_variance, Real* __restrict__ new_mean,
    Real* __restrict__ new_variance, int channels, Real momentum, Real unbiased
) {
    const int c = blockIdx.x * THREADS + threadIdx.x;
    if (c >= channels) return;
    const Real keep = Real(1) - momentum;
    new_mean[c] = old_mean[c] * keep + (mean[c] + shift[c]) * momentum;
    new_variance[c] = old_variance[c] * keep + variance[c] * unbiased * momentum;
}

// out = (x - mean - shift) r weight + bias, r = 1 / sqrt(variance + eps).
extern "C" __global__ void __launch_bounds__(THREADS) batch_norm_forward(
    const T* __restrict__ x, const W* __restrict__ weight, const W* __restrict__ bias, const Real* __restrict__ mean,
    const Real* __restrict__ shift, const Real* __restrict__ variance, T* __restrict__ out, Real* __restrict__ scale, i64 size,
    int channels, int length, Real eps
) {
    const int c = blockIdx.y;
    const Real m = mean[c], s = shift[c], r = inverse_root(variance[c] + eps);
    const Real w = weight ? r * Real(widen(weight[c])) : r, b = bias ? Real(widen(bias[c])) : Real(0);
    if (blockIdx.x == 0 && threadIdx.x == 0) scale[c] = r;
    Vector xs[ITEMS];
    {
        WALK(i, walk, size) xs[i] = load<VECTOR>(x + walk.at);
    }
    WALK(i, walk, size) {
        Reals v = widen(xs[i]);
        EACH_OF(k) v.at[k] = (v.at[k] - m - s) * w + b;
        store(out + walk.at, narrow<T>(v));
    }
}

// Of each part, the sums of g and, with DOTS, of g (x - mean - shift): parts[part][which][channel].
extern "C" __global__ void __launch_bounds__(THREADS) batch_sums(
    const T* __restrict__ g, const T* __restrict__ x, const Real* __restrict__ mean, const Real* __restrict__ shift,
    Real* __restrict__ parts, i64 size, int channels, int length
) {
    __shared__ Real scratch[2][2][32];
    Reducer<Real, THREADS> reduce(scratch);
    const int c = blockIdx.y;
    Real sum = 0, dot = 0;
#if DOTS
    const Real m = mean[c], s = shift[c];
#endif
    WALK(i, walk, size) {
        const Reals incoming = widen(load<VECTOR>(g + walk.at));
#if DOTS
        const Reals v = widen(load<VECTOR>(x + walk.at));
        EACH_OF(k) dot += incoming.at[k] * (v.at[k] - m - s);
#endif
        EACH_OF(k) sum += incoming.at[k];
    }
    reduce.sums(sum, dot);
    if (threadIdx.x) return;
    Real* const out = parts + (i64)blockIdx.x * channels * (1 + DOTS) + c;
    out[0] = sum;
#if DOTS
    out[channels] = dot;
#endif
}

// dx = weight r (g - mean(g) - d r^2 mean(g d)) with d = x - mean - shift, from sums[which][channel]; and the gradients of weight
// and bias, r sum(g d) and sum(g). A null dx is not wanted.
extern "C" __global__ void __launch_bounds__(THREADS) batch_norm_backward(
    const T* __restrict__ g, const T* __restrict__ x, const W* __restrict__ weight, const Real* __restrict__ mean,
    const Real* __restrict__ shift, const Real* __restrict__ scale, const Real* __restrict__ sums, T* __restrict__ dx,
    W* __restrict__ dweight, W* __restrict__ dbias, i64 size, int channels, int length
) {
    const int c = blockIdx.y;
    const Real m = mean[c], s = shift[c], r = scale[c], sum = sums[c], dot = sums[channels + c];
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        narrow(r * dot, dweight[c]);
        narrow(sum, dbias[c]);
    }
    if (!dx) return;
    const Real w = weight ? r * Real(widen(weight[c])) : r, inverse = Real(1) / Real(size);
    const Real level = sum * inverse, slope = dot * inverse * r * r;
    WALK(i, walk, size) {
        const Reals incoming = widen(load<VECTOR>(g + walk.at)), v = widen(load<VECTOR>(x + walk.at));
        Reals d;
        EACH_OF(k) d.at[k] = w * (incoming.at[k] - level - (v.at[k] - m - s) * slope);
        store(dx + walk.at, narrow<T>(d));
    }
}
