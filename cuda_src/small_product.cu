// A float32 product that is too small to fill a GPU: out = x y + bias, x and y with any strides. A block makes TILE x TILE
// numbers; its eight warps share the inner dimension, k = warp, warp + 8, ..., and their sums are added in one order.
#include "types.cuh"

#define WARPS 8
#define THREADS (WARPS * 32)
#define LINE (TILE + 4)             // of shared memory: whole float4s
#define ROWS (TILE / 8)             // numbers of a lane: ROWS x COLUMNS, the lanes lie 8 x 4
#define COLUMNS (TILE / 4)
#define EACH (CHUNK * TILE / THREADS)

struct Matrix { const float* at; int size, across, down; };  // `size` rows or columns; strides across them and along k

// What a thread brings of TILE rows by CHUNK steps of k, in the order of memory (DENSE: along k); zeros beyond the ends.
template <bool DENSE> struct Fetch {
    float v[EACH];

    static __device__ __forceinline__ int line(int t) { return DENSE ? t / CHUNK : t % TILE; }
    static __device__ __forceinline__ int step(int t) { return DENSE ? t % CHUNK : t / TILE; }
    __device__ __forceinline__ void load(const Matrix& m, int first, int k0, int k) {
        UNROLL for (int i = 0; i < EACH; ++i) {
            const int t = i * THREADS + (int)threadIdx.x, row = first + line(t), at = k0 + step(t);
            v[i] = row < m.size && at < k ? m.at[row * m.across + at * m.down] : 0.0f;
        }
    }
    __device__ __forceinline__ void put(float (*tile)[LINE]) const {
        UNROLL for (int i = 0; i < EACH; ++i) {
            const int t = i * THREADS + (int)threadIdx.x;
            tile[step(t)][line(t)] = v[i];
        }
    }
};

union Shared {
    float tiles[2][CHUNK][LINE];
    float sums[WARPS][TILE * TILE];
};

extern "C" __global__ void __launch_bounds__(THREADS) small_product(
    const float* __restrict__ x, const float* __restrict__ y, const float* __restrict__ bias, float* __restrict__ out, int m,
    int n, int k, int x_across, int x_down, int y_across, int y_down
) {
    __shared__ Shared shared;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, row = lane / 4 * ROWS, column = lane % 4 * COLUMNS;
    const int first_row = blockIdx.y * TILE, first_column = blockIdx.x * TILE;
    const Matrix a = {x, m, x_across, x_down}, b = {y, n, y_across, y_down};
    float sums[ROWS][COLUMNS] = {};
    Fetch<X_DENSE> as;
    Fetch<Y_DENSE> bs;
    as.load(a, first_row, 0, k);
    bs.load(b, first_column, 0, k);
    for (int k0 = 0; k0 < k; k0 += CHUNK) {
        as.put(shared.tiles[0]);
        bs.put(shared.tiles[1]);
        __syncthreads();
        if (k0 + CHUNK < k) {  // the next chunk is on its way while this one is multiplied
            as.load(a, first_row, k0 + CHUNK, k);
            bs.load(b, first_column, k0 + CHUNK, k);
        }
        _Pragma("unroll 2") for (int s = 0; s < CHUNK / WARPS; ++s) {  // more would hold more registers than it is worth
            const float* xs = &shared.tiles[0][s * WARPS + warp][row];
            const float* ys = &shared.tiles[1][s * WARPS + warp][column];
            float p[ROWS], q[COLUMNS];
            UNROLL for (int i = 0; i < ROWS; ++i) p[i] = xs[i];
            UNROLL for (int j = 0; j < COLUMNS; ++j) q[j] = ys[j];
            UNROLL for (int i = 0; i < ROWS; ++i) UNROLL for (int j = 0; j < COLUMNS; ++j) sums[i][j] += p[i] * q[j];
        }
        __syncthreads();
    }
    UNROLL for (int i = 0; i < ROWS; ++i)
        UNROLL for (int j = 0; j < COLUMNS; ++j) shared.sums[warp][(row + i) * TILE + column + j] = sums[i][j];
    __syncthreads();
    for (int t = threadIdx.x; t < TILE * TILE; t += THREADS) {
        const int r = first_row + t / TILE, c = first_column + t % TILE;
        float total = shared.sums[0][t];
        UNROLL for (int w = 1; w < WARPS; ++w) total += shared.sums[w][t];
        if (r < m && c < n) out[(i64)r * n + c] = total + (bias ? bias[c] : 0.0f);
    }
}
