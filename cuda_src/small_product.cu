// float32 products that are too small to fill a GPU. A block makes TILE x TILE numbers; its eight warps share the inner
// dimension, k = warp, warp + 8, ..., and their sums are added in one order.
#include "types.cuh"

#define WARPS 8
#define THREADS (WARPS * 32)
#define LINE (TILE + 4)             // of shared memory: whole float4s
#define ROWS (TILE / 8)             // numbers of a lane: ROWS x COLUMNS, the lanes lie 8 x 4
#define COLUMNS (TILE / 4)
#define EACH (CHUNK * TILE / THREADS)

struct Matrix {
    const float* at;
    int size, across, down;  // `size` rows or columns; strides across them and along k
    int ones;                // one more row, of ones, where it is `size`; else -1
};

// What a thread brings of TILE rows by CHUNK steps of k, in the order of memory (DENSE: along k); zeros beyond the ends.
template <bool DENSE> struct Fetch {
    float v[EACH];

    static __device__ __forceinline__ int line(int t) { return DENSE ? t / CHUNK : t % TILE; }
    static __device__ __forceinline__ int step(int t) { return DENSE ? t % CHUNK : t / TILE; }
    __device__ __forceinline__ void load(const Matrix& m, int first, int k0, int k) {
        UNROLL for (int i = 0; i < EACH; ++i) {
            const int t = i * THREADS + (int)threadIdx.x, row = first + line(t), at = k0 + step(t);
            v[i] = at < k ? row < m.size ? m.at[row * m.across + at * m.down] : row == m.ones ? 1.0f : 0.0f : 0.0f;
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

// sums += the warp's share of the steps that lie in shared memory.
__device__ __forceinline__ void multiply(const Shared& shared, int steps, int row, int column, float (&sums)[ROWS][COLUMNS]) {
    _Pragma("unroll 2") for (int s = threadIdx.x >> 5; s < steps; s += WARPS) {  // more would not be worth its registers
        const float* xs = &shared.tiles[0][s][row];
        const float* ys = &shared.tiles[1][s][column];
        float p[ROWS], q[COLUMNS];
        UNROLL for (int i = 0; i < ROWS; ++i) p[i] = xs[i];
        UNROLL for (int j = 0; j < COLUMNS; ++j) q[j] = ys[j];
        UNROLL for (int i = 0; i < ROWS; ++i) UNROLL for (int j = 0; j < COLUMNS; ++j) sums[i][j] += p[i] * q[j];
    }
}

// The tile of a b^T that begins at these rows of a and of b, by way of `shared`; put(row, column, sum) takes each number.
// One chunk is on its way while another is multiplied; more at once are no faster.
template <bool A_DENSE, bool B_DENSE, class Put>
__device__ __forceinline__ void tile(
    const Matrix& a, const Matrix& b, int first_row, int first_column, int k, Shared& shared, Put put
) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, row = lane / 4 * ROWS, column = lane % 4 * COLUMNS;
    float sums[ROWS][COLUMNS] = {};
    Fetch<A_DENSE> as;
    Fetch<B_DENSE> bs;
    as.load(a, first_row, 0, k);
    bs.load(b, first_column, 0, k);
    for (int k0 = 0; k0 < k; k0 += CHUNK) {
        as.put(shared.tiles[0]);
        bs.put(shared.tiles[1]);
        __syncthreads();
        if (k0 + CHUNK < k) {
            as.load(a, first_row, k0 + CHUNK, k);
            bs.load(b, first_column, k0 + CHUNK, k);
        }
        multiply(shared, k - k0 < CHUNK ? k - k0 : CHUNK, row, column, sums);
        __syncthreads();
    }
    UNROLL for (int i = 0; i < ROWS; ++i)
        UNROLL for (int j = 0; j < COLUMNS; ++j) shared.sums[warp][(row + i) * TILE + column + j] = sums[i][j];
    __syncthreads();
    for (int t = threadIdx.x; t < TILE * TILE; t += THREADS) {
        float total = shared.sums[0][t];
        UNROLL for (int w = 1; w < WARPS; ++w) total += shared.sums[w][t];
        put(first_row + t / TILE, first_column + t % TILE, total);
    }
}

// out = x y + bias, x and y with any strides.
extern "C" __global__ void __launch_bounds__(THREADS) small_product(
    const float* __restrict__ x, const float* __restrict__ y, const float* __restrict__ bias, float* __restrict__ out, int m,
    int n, int k, int x_across, int x_down, int y_across, int y_down
) {
    __shared__ Shared shared;
    const Matrix a = {x, m, x_across, x_down, -1}, b = {y, n, y_across, y_down, -1};
    tile<X_DENSE, Y_DENSE>(a, b, blockIdx.y * TILE, blockIdx.x * TILE, k, shared, [=](int r, int c, float total) {
        if (r < m && c < n) out[(i64)r * n + c] = total + (bias ? bias[c] : 0.0f);
    });
}

// The derivatives of x w + b for a gradient g (m, n): dx = g w^T (m, k) in the first `first` blocks, and dw = x^T g (k, n)
// in the others, where the column sums db are a row of it more: that of the ones that multiply b. All lie row by row.
extern "C" __global__ void __launch_bounds__(THREADS) small_linear_backward(
    const float* __restrict__ g, const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ dx,
    float* __restrict__ dw, float* __restrict__ db, int m, int k, int n, int first
) {
    __shared__ Shared shared;
    const int block = (int)blockIdx.x, at = block - first;
    if (at < 0) {
        const int wide = (k + TILE - 1) / TILE;
        const Matrix a = {g, m, n, 1, -1}, b = {w, k, n, 1, -1};
        tile<true, true>(a, b, block / wide * TILE, block % wide * TILE, n, shared, [=](int r, int c, float total) {
            if (r < m && c < k) dx[(i64)r * k + c] = total;
        });
    } else {
        const int wide = (n + TILE - 1) / TILE;
        const Matrix a = {x, dw ? k : 0, 1, k, db ? (dw ? k : 0) : -1}, b = {g, n, 1, n, -1};
        tile<false, false>(a, b, at / wide * TILE, at % wide * TILE, m, shared, [=](int r, int c, float total) {
            if (c >= n) return;
            if (r < a.size) dw[(i64)r * n + c] = total;
            else if (r == a.ones) db[c] = total;
        });
    }
}
