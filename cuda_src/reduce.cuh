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

// Two halves of scratch take turns, so one barrier per reduction is enough: before a half is written again, every thread
// has passed the barrier of the other half, and so has read this one.
template <class R, int SIZE> struct Reducer {
    R (*scratch)[2][32];
    int turn;

    __device__ __forceinline__ explicit Reducer(R (*memory)[2][32]) : scratch(memory), turn(0) {}

    __device__ __forceinline__ void sums(R& a, R& b) {
        a = warp_sum(a);
        b = warp_sum(b);
        if (SIZE == 32) return;
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        if (lane == 0) scratch[turn][0][warp] = a, scratch[turn][1][warp] = b;
        __syncthreads();
        a = warp_sum(lane < SIZE / 32 ? scratch[turn][0][lane] : R(0));
        b = warp_sum(lane < SIZE / 32 ? scratch[turn][1][lane] : R(0));
        turn ^= 1;
    }
    __device__ __forceinline__ R sum(R a) {
        a = warp_sum(a);
        if (SIZE == 32) return a;
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        if (lane == 0) scratch[turn][0][warp] = a;
        __syncthreads();
        a = warp_sum(lane < SIZE / 32 ? scratch[turn][0][lane] : R(0));
        turn ^= 1;
        return a;
    }
    __device__ __forceinline__ R max(R a) {
        a = warp_max(a);
        if (SIZE == 32) return a;
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        if (lane == 0) scratch[turn][0][warp] = a;
        __syncthreads();
        a = warp_max(scratch[turn][0][lane < SIZE / 32 ? lane : 0]);
        turn ^= 1;
        return a;
    }
};
