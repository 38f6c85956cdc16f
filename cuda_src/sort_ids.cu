// A stable sort of row numbers, digit by digit from the lowest (8 bits each): keys ascending, and their places ascending
// among equal keys. Every place in the result is counted, so there are no atomics and the order is always the same.
// WARPS per block, ITEMS keys per lane. A buffer of n keys and n places is one array: keys first.
#include "types.cuh"

#define RADIX 256
#define BLOCK (32 * WARPS)
#define FULL 0xffffffffu

// Ids count from the end where they are negative; those that are no row get the key `size`, after all others.
DEVICE u32 key_of(i64 id, i64 size) {
    if (id < 0) id += size;
    return (u32)(id >= 0 && id < size ? id : size);
}

// The lanes of the warp that hold the same digit, among those that hold one.
DEVICE u32 same_digit(u32 digit, bool valid) {
    u32 mask = __ballot_sync(FULL, valid);
    UNROLL for (int b = 0; b < 8; ++b) {
        const bool bit = digit >> b & 1;
        const u32 set = __ballot_sync(FULL, bit);
        mask &= bit ? set : ~set;
    }
    return mask;
}

// `length` keys of one warp, 32 at a time: how many of the same digit came before each. The keys themselves are read
// again, for registers are scarce.
struct Chunk {
    const i64* ids;  // of the first pass, else null and the keys are in `source`
    const u32* source;
    i64 first, size;
    int length, shift;
    u32 ranks[ITEMS];

    __device__ __forceinline__ u32 key(int at) const { return ids ? key_of(ids[at], size) : source[at]; }
    __device__ __forceinline__ u32 digit_of(u32 key) const { return key >> shift & (RADIX - 1); }
    __device__ __forceinline__ void count(u32* counts) {
        const int lane = threadIdx.x & 31;
        UNROLL for (int i = 0; i < ITEMS; ++i) ranks[i] = i * 32 + lane < length ? digit_of(key(i * 32 + lane)) : 0;
        UNROLL for (int i = 0; i < ITEMS; ++i) {
            if (i * 32 >= length) break;
            const bool valid = i * 32 + lane < length;
            const u32 digit = ranks[i], peers = same_digit(digit, valid), before = peers & ((1u << lane) - 1);
            const u32 seen = counts[digit];
            __syncwarp();
            ranks[i] = seen + __popc(before);
            if (valid && !before) counts[digit] = seen + __popc(peers);
            __syncwarp();
        }
    }
    // starts[digit]: where the first of this warp's keys with that digit goes.
    __device__ __forceinline__ void scatter(const u32* starts, u32* target, i64 n) const {
        UNROLL for (int i = 0; i < ITEMS; ++i) {
            const int at = i * 32 + (threadIdx.x & 31);
            if (at >= length) break;
            const u32 own = key(at);
            const i64 to = (i64)starts[digit_of(own)] + ranks[i];
            target[to] = own;
            target[n + to] = ids ? (u32)(first + at) : source[n + at];
        }
    }
};

DEVICE Chunk chunk_of(const i64* ids, const u32* source, i64 first, i64 length, i64 n, i64 size, int shift) {
    const i64 left = n > first ? n - first : 0;
    return {ids ? ids + first : nullptr, source + first, first, size, (int)(left < length ? left : length), shift, {}};
}

DEVICE void clear(u32 (&counts)[WARPS][RADIX]) {
    for (int t = threadIdx.x; t < WARPS * RADIX; t += BLOCK) counts[t / RADIX][t % RADIX] = 0;
    __syncthreads();
}

// Each warp's counts become the sums over the warps before it; the total of digit t is returned to thread t.
DEVICE u32 over_warps(u32 (&counts)[WARPS][RADIX]) {
    u32 total = 0;
    if (threadIdx.x < RADIX) {
        UNROLL for (int w = 0; w < WARPS; ++w) {
            const u32 own = counts[w][threadIdx.x];
            counts[w][threadIdx.x] = total;
            total += own;
        }
    }
    return total;
}

// The sum of `mine` over the threads before this one; `whole` gets that over all. Called by the whole block.
DEVICE u32 exclusive(u32 mine, u32 (&sums)[BLOCK], u32& whole) {
    u32 sum = mine;
    for (int k = 1; k < BLOCK; k += k) {
        sums[threadIdx.x] = sum;
        __syncthreads();
        if (threadIdx.x >= k) sum += sums[threadIdx.x - k];
        __syncthreads();
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    whole = sums[BLOCK - 1];
    __syncthreads();
    return sum - mine;
}

// Up to BLOCK * ITEMS keys, all passes in one block; pass 0 reads `ids` and writes `one`, pass 1 writes `two`, and so on.
extern "C" __global__ void __launch_bounds__(BLOCK) sort_ids_block(
    const i64* ids, u32* one, u32* two, i64 n, i64 size, int passes
) {
    __shared__ u32 counts[WARPS][RADIX];
    __shared__ u32 sums[BLOCK];
    const int warp = threadIdx.x >> 5;
    const i64 share = (n + BLOCK - 1) / BLOCK * 32;
    for (int pass = 0; pass < passes; ++pass) {
        Chunk chunk = chunk_of(pass ? nullptr : ids, pass & 1 ? one : two, warp * share, share, n, size, 8 * pass);
        clear(counts);
        chunk.count(counts[warp]);
        __syncthreads();
        u32 whole;
        const u32 start = exclusive(over_warps(counts), sums, whole);
        if (threadIdx.x < RADIX) UNROLL for (int w = 0; w < WARPS; ++w) counts[w][threadIdx.x] += start;
        __syncthreads();
        chunk.scatter(counts[warp], pass & 1 ? two : one, n);
        __syncthreads();
    }
}

#define CHUNK (32 * ITEMS)
#define OWN_CHUNK chunk_of(ids, source, ((i64)blockIdx.x * WARPS + (threadIdx.x >> 5)) * CHUNK, CHUNK, n, size, shift)

// One pass over many keys: how many of each digit each block has, totals[block][digit]; ...
extern "C" __global__ void __launch_bounds__(BLOCK) sort_ids_count(
    const i64* ids, const u32* source, u32* totals, i64 n, i64 size, int shift
) {
    __shared__ u32 counts[WARPS][RADIX];
    Chunk chunk = OWN_CHUNK;
    clear(counts);
    chunk.count(counts[threadIdx.x >> 5]);
    __syncthreads();
    const u32 total = over_warps(counts);
    if (threadIdx.x < RADIX) totals[(i64)blockIdx.x * RADIX + threadIdx.x] = total;
}

// ... where blocks are many, the sums over the blocks before each, by one block per digit, and `sums` over all; ...
extern "C" __global__ void __launch_bounds__(BLOCK) sort_ids_scan(
    u32* totals, u32* sums, i64 blocks
) {
    __shared__ u32 scratch[BLOCK];
    u32 carry = 0;
    for (i64 base = 0; base < blocks; base += BLOCK) {
        u32* at = totals + (base + threadIdx.x) * RADIX + blockIdx.x;
        const bool valid = base + threadIdx.x < blocks;
        u32 whole;
        const u32 before = exclusive(valid ? *at : 0, scratch, whole);
        if (valid) *at = carry + before;
        carry += whole;
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = carry;
}

// ... and each key to its place. Without `sums` a block adds up the totals of the few others itself.
extern "C" __global__ void __launch_bounds__(BLOCK) sort_ids_scatter(
    const i64* ids, const u32* source, u32* target, const u32* totals, const u32* sums, i64 n, i64 size, int shift
) {
    __shared__ u32 counts[WARPS][RADIX];
    __shared__ u32 scratch[BLOCK];
    u32 before = 0, all = 0, whole;
    if (threadIdx.x < RADIX) {
        const u32* mine = totals + threadIdx.x;
        if (sums) {
            before = mine[(i64)blockIdx.x * RADIX];
            all = sums[threadIdx.x];
        } else {
            _Pragma("unroll 8") for (int b = 0; b < gridDim.x; ++b) {
                const u32 total = mine[b * RADIX];
                before += b < blockIdx.x ? total : 0;
                all += total;
            }
        }
    }
    Chunk chunk = OWN_CHUNK;
    clear(counts);
    chunk.count(counts[threadIdx.x >> 5]);
    const u32 start = exclusive(all, scratch, whole) + before;
    over_warps(counts);
    if (threadIdx.x < RADIX) UNROLL for (int w = 0; w < WARPS; ++w) counts[w][threadIdx.x] += start;
    __syncthreads();
    chunk.scatter(counts[threadIdx.x >> 5], target, n);
}
