// Rows picked by number: out[i] = x[ids[i]], as bytes in units of UNIT (1, 2, 4, 8 or 16). Ids count from the end where they
// are negative; one that is no row gives bits of 1, which is NaN in every floating type, and nothing is read.
#include "types.cuh"

#if UNIT == 16
typedef Pack<u32, 4> Unit;
#elif UNIT == 8
typedef Pack<u32, 2> Unit;
#else
struct alignas(UNIT) Unit { unsigned char at[UNIT]; };
#endif
#define BATCH 4

// Threads x share the units of a row, threads y and blocks take the rows.
extern "C" __global__ void __launch_bounds__(256) take_rows(
    const Unit* __restrict__ x, const i64* __restrict__ ids, Unit* __restrict__ out, i64 n, i64 units, i64 size
) {
    Unit none;
    memset(&none, 255, UNIT);
    for (i64 first = ((i64)blockIdx.x * BATCH) * blockDim.y + threadIdx.y; first < n; first += (i64)gridDim.x * BATCH * blockDim.y) {
        i64 from[BATCH];
        UNROLL for (int i = 0; i < BATCH; ++i) {
            const i64 row = first + i * (int)blockDim.y;
            from[i] = row < n ? ids[row] : 0;
            if (from[i] < 0) from[i] += size;
        }
        for (i64 u = threadIdx.x; u < units; u += blockDim.x) {
            Unit v[BATCH];
            UNROLL for (int i = 0; i < BATCH; ++i) if (first + i * (int)blockDim.y < n)
                v[i] = from[i] >= 0 && from[i] < size ? x[from[i] * units + u] : none;
            UNROLL for (int i = 0; i < BATCH; ++i) {
                const i64 row = first + i * (int)blockDim.y;
                if (row < n) out[row * units + u] = v[i];
            }
        }
    }
}
