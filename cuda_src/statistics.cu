// The norm of many gradients without overflow, and whether any is not finite: one launch over all tensors, then a
// hierarchy of fan-in 1024. A row is {bad, magnitude = max |g|, sum of (g / unit)^2} with `unit` a power of two near the
// magnitude, so that scaling is exact. The report, 12 bytes: {bad, magnitude, sum of (g / magnitude)^2}.
#include "reduce.cuh"

typedef STORAGE T;

#define EACH_OF(k) UNROLL for (int k = 0; k < VECTOR; ++k)

// The power of two at or below a magnitude, at most 2^126, whose inverse is no denormal number.
DEVICE float unit_of(float magnitude) {
    return fminf(__uint_as_float(__float_as_uint(magnitude) & 0x7f800000u), 8.507059e37f);
}
DEVICE float inverse_of(float unit) { return __uint_as_float(0x7f000000u - __float_as_uint(unit)); }

struct Stats {
    float bad, magnitude, squares;

    // Bring the squares to the unit of a larger magnitude.
    __device__ __forceinline__ void grow(float to) {
        if (!(to > magnitude)) return;
        const float ratio = magnitude > 0.0f ? unit_of(magnitude) * inverse_of(unit_of(to)) : 0.0f;
        squares *= ratio * ratio;
        magnitude = to;
    }
    __device__ __forceinline__ void add(Stats other) {
        grow(other.magnitude);
        other.grow(magnitude);
        bad = fmaxf(bad, other.bad);
        squares += other.squares;
    }
    __device__ __forceinline__ void across_warp() {
        UNROLL for (int k = 16; k; k >>= 1) {
            Stats other;
            other.bad = __shfl_xor_sync(0xffffffffu, bad, k);
            other.magnitude = __shfl_xor_sync(0xffffffffu, magnitude, k);
            other.squares = __shfl_xor_sync(0xffffffffu, squares, k);
            add(other);
        }
    }
};

struct Table {
    u64 g[TENSORS];
    i64 size[TENSORS], run[TENSORS];  // the numbers of a tensor, and of each of its rows but the last
    u32 first[TENSORS + 1];           // each tensor's first row
    u32 count;
};

// The statistics of a block, as its thread 0 gets them.
DEVICE Stats across_block(Stats found) {
    __shared__ float tile[3][32];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    found.across_warp();
    if (lane == 0) tile[0][warp] = found.bad, tile[1][warp] = found.magnitude, tile[2][warp] = found.squares;
    __syncthreads();
    if (warp) return found;
    found = Stats{0, 0, 0};
    if (lane < warps) found = Stats{tile[0][lane], tile[1][lane], tile[2][lane]};
    found.across_warp();
    return found;
}
DEVICE void put(float* out, i64 row, const Stats& found) {
    out[3 * row] = found.bad;
    out[3 * row + 1] = found.magnitude;
    out[3 * row + 2] = found.squares;
}

// BATCH vectors of each thread. Whatever is not finite shows in the peak, or a NaN in the squares.
DEVICE void take(Stats& found, const Pack<T, VECTOR> (&v)[BATCH], float inverse_scale) {
    float peak = 0, squares = 0;
    UNROLL for (int i = 0; i < BATCH; ++i) {
        const Values<float, VECTOR> a = widen(v[i]);
        EACH_OF(k) peak = fmaxf(peak, fabsf(a.at[k]));
    }
    if (SCALED) peak *= inverse_scale;
    if (!(peak < INFINITE)) {
        found.bad = 1;
        return;
    }
    found.grow(peak);
    const float inverse = inverse_of(unit_of(found.magnitude));
    UNROLL for (int i = 0; i < BATCH; ++i) {
        const Values<float, VECTOR> a = widen(v[i]);
        EACH_OF(k) {
            const float q = (SCALED ? a.at[k] * inverse_scale : a.at[k]) * inverse;
            squares += q * q;
        }
    }
    if (squares < INFINITE) found.squares += squares;
    else found.bad = 1;
}

// A block makes one row of statistics, of a run of numbers of one tensor multiplied by `inverse_scale` (SCALED 1).
extern "C" __global__ void __launch_bounds__(THREADS) statistics_rows(
    const __grid_constant__ Table table, float* __restrict__ out, float inverse_scale, int aligned
) {
    int t = 0;
    for (int step = TENSORS / 2; step; step /= 2)
        if (t + step < (int)table.count && table.first[t + step] <= blockIdx.x) t += step;
    const i64 run = table.run[t], size = table.size[t], start = (blockIdx.x - table.first[t]) * run;
    const i64 stop = start + run < size ? start + run : size;
    const T* g = (const T*)table.g[t];
    Stats found = {0, 0, 0};
    Pack<T, VECTOR> v[BATCH];
    const i64 stride = (i64)THREADS * VECTOR;
    i64 e = start + threadIdx.x * VECTOR;
    for (; aligned && e + (BATCH - 1) * stride + VECTOR <= stop; e += BATCH * stride) {
        UNROLL for (int i = 0; i < BATCH; ++i) v[i] = load<VECTOR>(g + e + i * stride);
        take(found, v, inverse_scale);
    }
    for (; e < stop; e += BATCH * stride) {
        UNROLL for (int i = 0; i < BATCH; ++i) {
            const i64 left = stop - e - i * stride;
            v[i] = Pack<T, VECTOR>{};
            if (aligned && left >= VECTOR) v[i] = load<VECTOR>(g + e + i * stride);
            else EACH_OF(k) if (k < left) v[i].at[k] = g[e + i * stride + k];
        }
        take(found, v, inverse_scale);
    }
    found = across_block(found);
    if (threadIdx.x == 0) put(out, blockIdx.x, found);
}

// Block b adds rows 1024 b .. 1024 b + 1023; `last` makes the report of what is left.
extern "C" __global__ void __launch_bounds__(1024) statistics_reduce(
    const float* __restrict__ in, float* __restrict__ out, u32 rows, int last
) {
    const u32 row = blockIdx.x * 1024 + threadIdx.x;
    Stats found = {0, 0, 0};
    if (row < rows) found = Stats{in[3 * (i64)row], in[3 * (i64)row + 1], in[3 * (i64)row + 2]};
    found = across_block(found);
    if (threadIdx.x) return;
    if (last && found.magnitude > 0.0f) {
        const float q = found.magnitude * inverse_of(unit_of(found.magnitude));
        found.squares /= q * q;
    }
    put(out, blockIdx.x, found);
}
