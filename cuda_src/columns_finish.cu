// The sums (or largest or smallest numbers, OP) of `parts` rows of partial ones, divided by `divisor` and rounded once:
// thread y of a column takes every TALL-th row, then the block takes those. WIDE columns per block: few where the matrix is narrow, so that more blocks share the work.
#include "math.cuh"

typedef STORAGE T;
typedef Wide<T>::type Real;

#define TALL (1024 / WIDE)
#define SLICES (TALL < 32 ? TALL : 32)

extern "C" __global__ void __launch_bounds__(WIDE * TALL) columns_finish(
    const Real* __restrict__ partial, T* __restrict__ out, int parts, int n, Real divisor
) {
    __shared__ Real tile[TALL][WIDE + 1];
    const int c = (int)blockIdx.x * WIDE + (int)threadIdx.x;
    Real total = identity<OP, Real>();
    if (c < n) {
        _Pragma("unroll 8") for (int p = threadIdx.y; p < parts; p += TALL) total = combine<OP>(total, partial[(i64)p * n + c]);
    }
    tile[threadIdx.y][threadIdx.x] = total;
    __syncthreads();
#if TALL > SLICES
    if (threadIdx.y < SLICES) {
        UNROLL for (int y = SLICES; y < TALL; y += SLICES) total = combine<OP>(total, tile[y + threadIdx.y][threadIdx.x]);
        tile[threadIdx.y][threadIdx.x] = total;
    }
    __syncthreads();
#endif
    if (threadIdx.y == 0 && c < n) {
        UNROLL for (int y = 1; y < SLICES; ++y) total = combine<OP>(total, tile[y][threadIdx.x]);
        narrow(total / divisor, out[c]);
    }
}
