// What the host must know of ids before it goes on: whether all of them are numbers of `count` things.
#include "types.cuh"

typedef SOURCE S;
#define THREADS 256

// out are the ids as int64 (null where they are that already). seen[0] becomes 1 where an id is outside 0 to count - 1,
// and seen[1] where such an id is not `ignore` either. They lie in host memory: a thread writes to them at most once, and
// all write the same.
extern "C" __global__ void __launch_bounds__(THREADS) check_ids(
    const S* __restrict__ ids, i64* __restrict__ out, u32* __restrict__ seen, i64 n, u64 count, i64 ignore
) {
    bool outside = false, wrong = false;
    for (i64 i = (i64)blockIdx.x * THREADS + threadIdx.x; i < n; i += (i64)gridDim.x * THREADS) {
        const i64 id = (i64)ids[i];
        if (out) out[i] = id;
        if ((u64)id >= count) {
            outside = true;
            wrong = wrong || id != ignore;
        }
    }
    if (outside) seen[0] = 1;
    if (wrong) seen[1] = 1;
}
