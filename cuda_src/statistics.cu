// The norm of many gradients without overflow, and whether any is not finite: one launch over all tensors, then a
// hierarchy of fan-in 1024. A row is {bad, magnitude = max |g|, sum of (g / unit)^2} with `unit` a power of two near the
// magnitude, so that scaling is exact. The report, 12 bytes: {bad, magnitude, sum of (g / magnitude)^2}.
#include "reduce.cuh"

typedef STORAGE T;

#define EACH_OF(k) UNROLL for (int k = 0; k < VECTOR; ++k)
#define WARPS 8
#define SMALLEST 1.17549435e-38f  // 2^-126: what is smaller counts as 0

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
    i64 size[TENSORS];
    u32 first[TENSORS + 1];  // each tensor's first row
    u32 count;
};

// A warp makes one row of statistics, of a run of numbers of one tensor, after a division by `unscale`.
extern "C" __global__ void __launch_bounds__(32 * WARPS) statistics_rows(
    const __grid_constant__ Table table, float* __restrict__ out, u32 rows, float unscale, int aligned
) {
    const u32 row = blockIdx.x * WARPS + threadIdx.y;
    if (row >= rows) return;
    int t = 0;
    for (int step = TENSORS / 2; step; step /= 2)
        if (t + step < (int)table.count && table.first[t + step] <= row) t += step;
    const i64 parts = table.first[t + 1] - table.first[t], size = table.size[t];
    const i64 run = ((size + parts - 1) / parts + VECTOR - 1) / VECTOR * VECTOR;
    const i64 start = (row - table.first[t]) * run, stop = start + run < size ? start + run : size;
    const T* g = (const T*)table.g[t];
    Stats found = {0, 0, 0};
    for (i64 first = start + threadIdx.x * VECTOR; first < stop; first += 32 * VECTOR * BATCH) {
        Pack<T, VECTOR> v[BATCH];
        UNROLL for (int i = 0; i < BATCH; ++i) {
            const i64 e = first + (i64)i * 32 * VECTOR;
            v[i] = Pack<T, VECTOR>{};
            if (aligned && e + VECTOR <= stop) v[i] = load<VECTOR>(g + e);
            else EACH_OF(k) if (e + k < stop) v[i].at[k] = g[e + k];
        }
        float peak = 0;
        UNROLL for (int i = 0; i < BATCH; ++i) EACH_OF(k) {
            const float a = fabsf(unscale == 1.0f ? (float)widen(v[i].at[k]) : (float)widen(v[i].at[k]) / unscale);
            if (!(a < INFINITE)) found.bad = 1;
            else if (a > peak) peak = a;
        }
        if (peak < SMALLEST) continue;
        found.grow(peak);
        const float inverse = inverse_of(unit_of(found.magnitude));
        UNROLL for (int i = 0; i < BATCH; ++i) EACH_OF(k) {
            const float a = unscale == 1.0f ? (float)widen(v[i].at[k]) : (float)widen(v[i].at[k]) / unscale;
            const float q = a * inverse;
            if (fabsf(a) < INFINITE) found.squares += q * q;
        }
    }
    found.across_warp();
    if (threadIdx.x == 0) {
        out[3 * (i64)row] = found.bad;
        out[3 * (i64)row + 1] = found.magnitude;
        out[3 * (i64)row + 2] = found.squares;
    }
}

// Block b adds rows 1024 b .. 1024 b + 1023; `last` makes the report of what is left.
extern "C" __global__ void __launch_bounds__(1024) statistics_reduce(
    const float* __restrict__ in, float* __restrict__ out, u32 rows, int last
) {
    __shared__ float tile[3][32];
    const u32 row = blockIdx.x * 1024 + threadIdx.x;
    Stats found = {0, 0, 0};
    if (row < rows) found = Stats{in[3 * (i64)row], in[3 * (i64)row + 1], in[3 * (i64)row + 2]};
    found.across_warp();
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    if (lane == 0) tile[0][warp] = found.bad, tile[1][warp] = found.magnitude, tile[2][warp] = found.squares;
    __syncthreads();
    if (warp) return;
    found = Stats{tile[0][lane], tile[1][lane], tile[2][lane]};
    found.across_warp();
    if (lane) return;
    if (last && found.magnitude > 0.0f) {
        const float q = found.magnitude * inverse_of(unit_of(found.magnitude));
        found.squares /= q * q;
    }
    out[3 * (i64)blockIdx.x] = found.bad;
    out[3 * (i64)blockIdx.x + 1] = found.magnitude;
    out[3 * (i64)blockIdx.x + 2] = found.squares;
}
