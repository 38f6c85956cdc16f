#pragma once
#include "math.cuh"

// Reductions over the GROUP threads (a multiple of 32) that share a row, in one fixed order: every thread gets the same
// bits. GROUP 32 is a warp, of which a block has as many as it has rows; otherwise the group is the block.
template <class R> DEVICE R warp_sum(R v) {
    UNROLL for (int k = 16; k; k >>= 1) v += __shfl_xor_sync(0xffffffffu, v, k);
    return v;
}
template <class R> DEVICE R warp_max(R v) {
    UNROLL for (int k = 16; k; k >>= 1) v = larger(v, __shfl_xor_sync(0xffffffffu, v, k));
    return v;
}

// Two sums for little more than one: after the first exchange each half of the warp goes on with one of them. Lanes below
// 16 end with the sum of a, the others with that of b.
template <class R> DEVICE R warp_halves(R a, R b) {
    const bool upper = threadIdx.x & 16;
    R mine = (upper ? b : a) + __shfl_xor_sync(0xffffffffu, upper ? a : b, 16);
    UNROLL for (int k = 8; k; k >>= 1) mine += __shfl_xor_sync(0xffffffffu, mine, k);
    return mine;
}
template <class R> DEVICE void share_halves(R mine, R& a, R& b) {
    const R theirs = __shfl_xor_sync(0xffffffffu, mine, 16);
    const bool upper = threadIdx.x & 16;
    a = upper ? theirs : mine;
    b = upper ? mine : theirs;
}

// Two halves of scratch take turns, so one barrier per reduction is enough: before a half is written again, every thread
// has passed the barrier of the other half, and so has read this one.
template <class R, int SIZE> struct Reducer {
    static const int WARPS = SIZE / 32, FEW = 8;  // up to FEW sums are read by every thread, sooner than shuffled
    R (*scratch)[2][32];
    int turn;

    __device__ __forceinline__ explicit Reducer(R (*memory)[2][32]) : scratch(memory), turn(0) {}

    __device__ __forceinline__ void sums(R& a, R& b) {
        const R mine = warp_halves(a, b);
        if (SIZE == 32) return share_halves(mine, a, b);
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        if ((lane & 15) == 0) scratch[turn][lane >> 4][warp] = mine;
        __syncthreads();
        if (WARPS <= FEW) {
            a = added(scratch[turn][0]);
            b = added(scratch[turn][1]);
        } else {
            const R* parts = scratch[turn][lane >> 4];
            R part = (lane & 15) < WARPS ? parts[lane & 15] : R(0);
            if ((lane & 15) + 16 < WARPS) part += parts[(lane & 15) + 16];
            UNROLL for (int k = 8; k; k >>= 1) part += __shfl_xor_sync(0xffffffffu, part, k);
            share_halves(part, a, b);
        }
        turn ^= 1;
    }
    __device__ __forceinline__ R sum(R a) {
        a = warp_sum(a);
        if (SIZE == 32) return a;
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        if (lane == 0) scratch[turn][0][warp] = a;
        __syncthreads();
        a = WARPS <= FEW ? added(scratch[turn][0]) : warp_sum(lane < WARPS ? scratch[turn][0][lane] : R(0));
        turn ^= 1;
        return a;
    }
    __device__ __forceinline__ R max(R a) {
        a = warp_max(a);
        if (SIZE == 32) return a;
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        if (lane == 0) scratch[turn][0][warp] = a;
        __syncthreads();
        a = warp_max(scratch[turn][0][lane < WARPS ? lane : 0]);
        turn ^= 1;
        return a;
    }

  private:
    static __device__ __forceinline__ R added(const R* parts) {
        R total = parts[0];
        UNROLL for (int k = 1; k < WARPS; ++k) total += parts[k];
        return total;
    }
};
