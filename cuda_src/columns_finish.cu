// The sums of `parts` rows of partial sums, rounded once: thread y adds every TALL-th row, then the block adds those.
#include "types.cuh"

typedef STORAGE T;
typedef Wide<T>::type Real;

#define TALL 32

extern "C" __global__ void __launch_bounds__(32 * TALL) columns_finish(
    const Real* __restrict__ partial, T* __restrict__ out, int parts, int n
) {
    __shared__ Real tile[TALL][33];
    const int c = (int)blockIdx.x * 32 + (int)threadIdx.x;
    Real total = 0;
    if (c < n) {
        _Pragma("unroll 4") for (int p = threadIdx.y; p < parts; p += TALL) total += partial[(i64)p * n + c];
    }
    tile[threadIdx.y][threadIdx.x] = total;
    __syncthreads();
    if (threadIdx.y == 0 && c < n) {
        UNROLL for (int y = 1; y < TALL; ++y) total += tile[y][threadIdx.x];
        narrow(total, out[c]);
    }
}
