// A sum, a largest or a smallest number (OP) per row of a matrix; a mean is a sum over `divisor`, rounded once. A warp or a
// block takes a row; BATCH vectors of a thread are on their way at once. A NaN makes its row NaN.
#include "rows.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) row_reduce(
    const T* __restrict__ x, T* __restrict__ out, i64 rows, int n, Real divisor
) {
    const i64 row = FIRST_ROW;
    if (GROUP == 32 && row >= rows) return;
    const T* source = x + row * n;
    Real found = identity<OP, Real>();
    for (int first = threadIdx.x * VECTOR; first < n; first += BATCH * GROUP * VECTOR) {
        Vector v[BATCH];
        UNROLL for (int i = 0; i < BATCH; ++i)
            if (const int c = first + i * GROUP * VECTOR; c < n) v[i] = load<VECTOR>(source + c);
        UNROLL for (int i = 0; i < BATCH; ++i)
            if (const int c = first + i * GROUP * VECTOR; c < n) {
                const Reals values = widen(v[i]);
                EACH_OF(k) found = combine<OP>(found, values.at[k]);
            }
    }
    UNROLL for (int k = 16; k; k >>= 1) found = combine<OP>(found, __shfl_xor_sync(0xffffffffu, found, k));
    if (GROUP > 32) {
        __shared__ Real parts[GROUP / 32];
        if ((threadIdx.x & 31) == 0) parts[threadIdx.x >> 5] = found;
        __syncthreads();
        found = parts[0];
        UNROLL for (int k = 1; k < GROUP / 32; ++k) found = combine<OP>(found, parts[k]);
    }
    if (threadIdx.x == 0) narrow(found / divisor, out[row]);
}
