#pragma once
// What the kernels of attention share: where blocks and heads are, and how accumulators go out.
#include "math.cuh"
#include "mma.cuh"

struct Layout { i64 batch, head; int row; };  // strides in numbers; the last axis is dense, and the gate keeps rows near
struct Sizes { int heads, group, queries, keys, units, section; };

#define LOG2_E 1.4426950408889634f
#define LOG_2 0.6931471805599453f

// Which block of rows of which head this thread block has. Heads are taken in sections whose keys fit in the L2 cache; in a
// section all heads' first blocks begin first.
struct Task { int block, batch, head; };
DEVICE Task task_of(const Sizes& n, int blocks) {
    const int whole = n.section * blocks, from = blockIdx.x / whole, rest = blockIdx.x - from * whole;
    const int count = min(n.section, n.units - from * n.section);
    const int unit = from * n.section + rest % count;
    return {rest / count, unit / n.heads, unit % n.heads};
}

// Round a warp's 16 M rows of D sums to storage by way of its part of shared memory, and store W of them, 16 bytes a lane.
template <class S, int D, int W, int M>
DEVICE void store_rows(const float (&sums)[M][D / 8][4], unsigned char* memory, S* to, int stride, int valid, int lane) {
    __syncwarp();
    UNROLL for (int t = 0; t < M; ++t)
        UNROLL for (int n = 0; n < D / 8; ++n)
            UNROLL for (int half = 0; half < 2; ++half) {
                const int row = t * 16 + half * 8 + lane / 4;
                u32* place = reinterpret_cast<u32*>(memory + chunk_at<D>(row, n) + lane % 4 * 4);
                *place = pack<S>(sums[t][n][2 * half], sums[t][n][2 * half + 1]);
            }
    __syncwarp();
    const int chunks = D / 8, step = 32 / chunks, chunk = lane % chunks;
    UNROLL for (int i = 0; i < M * 16 / step; ++i) {
        const int row = i * step + lane / chunks;
        if (row < valid && chunk * 8 < W)
            store(to + row * stride + chunk * 8, load<8>(reinterpret_cast<S*>(memory + chunk_at<D>(row, chunk))));
    }
}

template <int N> DEVICE void clear(float (&a)[N][4]) {
    UNROLL for (int i = 0; i < N; ++i)
        UNROLL for (int j = 0; j < 4; ++j) a[i][j] = 0;
}

// Products leave the other pipes idle: their loops call beside(e) between two of them, for e from 0 on in turn, to
// work on the e-th pair of another accumulator [M][N / 8][4]: numbers 2 (e % 2) and 2 (e % 2) + 1 of tile e / 2.
struct Nothing { __device__ __forceinline__ void operator()(int) const {} };

// d[M][N / 8] += a b over D, where b's columns are N rows of a tile. `a` comes from registers where they hold it, else
// from shared memory. Calls beside for N / 4 pairs.
template <class S, int D, int M, int N, bool HELD, class F>
DEVICE void multiply_rows(float (&d)[M][N / 8][4], const u32 (&kept)[HELD ? M : 1][HELD ? D / 16 : 1][4], Shared a_at,
                          Shared b_at, F beside) {
    UNROLL for (int k = 0; k < D / 16; ++k) {
        u32 a[M][4];
        UNROLL for (int t = 0; t < M; ++t) {
            if (HELD) {
                UNROLL for (int i = 0; i < 4; ++i) a[t][i] = kept[HELD ? t : 0][HELD ? k : 0][i];
            } else {
                load_matrices(a[t], (a_at ^ (k * 32)) + t * 16 * D * 2);
            }
        }
        UNROLL for (int n = 0; n < N / 16; ++n) {
            u32 b[4];
            load_matrices(b, (b_at ^ (k * 32)) + n * 16 * D * 2);
            UNROLL for (int t = 0; t < M; ++t) {
                multiply<S>(d[t][2 * n], a[t], b[0], b[1]);
                multiply<S>(d[t][2 * n + 1], a[t], b[2], b[3]);
            }
            const int step = k * (N / 16) + n;
            if (step % (D / 64) == 0) beside(step / (D / 64));
        }
    }
}

// d[M][D / 8] += p b, where p [M][N / 8] was an accumulator and is rounded here, and b is N rows of a tile. Calls beside for
// N / 4 pairs, and needs the pairs 4 k to 4 k + 3 of p after 4 k of these calls.
template <class S, int D, int M, int N, class F>
DEVICE void multiply_sums(float (&d)[M][D / 8][4], const float (&p)[M][N / 8][4], Shared b_at, F beside) {
    UNROLL for (int k = 0; k < N / 16; ++k) {
        u32 a[M][4];
        UNROLL for (int t = 0; t < M; ++t)
            UNROLL for (int i = 0; i < 4; ++i) {
                const float(&pair)[4] = p[t][2 * k + i / 2];
                a[t][i] = pack<S>(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
            }
        UNROLL for (int n = 0; n < D / 16; ++n) {
            u32 b[4];
            load_transposed(b, (b_at ^ (n * 32)) + k * 16 * D * 2);
            UNROLL for (int t = 0; t < M; ++t) {
                multiply<S>(d[t][2 * n], a[t], b[0], b[1]);
                multiply<S>(d[t][2 * n + 1], a[t], b[2], b[3]);
            }
            const int step = k * (D / 16) + n;
            if (step % (D / 64) == 0) beside(step / (D / 64));
        }
    }
}

// A warp's rows as operand a, from shared memory.
template <int D, int M> DEVICE void keep_rows(u32 (&kept)[M][D / 16][4], Shared a_at) {
    UNROLL for (int t = 0; t < M; ++t)
        UNROLL for (int k = 0; k < D / 16; ++k) load_matrices(kept[t][k], (a_at ^ (k * 32)) + t * 16 * D * 2);
}

DEVICE float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}
DEVICE float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}
