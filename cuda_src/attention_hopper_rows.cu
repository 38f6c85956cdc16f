// What the backward needs of each query's row, in the base of exp2 and padded to whole tiles, so that those need no mask:
// lse log2(e), inf beyond the rows, and delta = sum(g out), 0 beyond. A row has D / 8 threads.
#include "types.cuh"

#define LOG2_E 1.4426950408889634f
enum { LANES = D / 8, ROWS = 256 / LANES };

extern "C" __global__ void __launch_bounds__(256, 4) attention_hopper_rows(
    const STORAGE* g, const STORAGE* out, const float* lse, float* rows, i64 g_batch, i64 g_head, i64 g_row, i64 out_batch,
    i64 out_head, i64 out_row, int queries, int padded, int heads, int batches) {
    const int blocks = (padded + ROWS - 1) / ROWS, pair = blockIdx.x / blocks, lane = threadIdx.x % LANES;
    const int row = (blockIdx.x - pair * blocks) * ROWS + threadIdx.x / LANES, head = pair % heads, batch = pair / heads;
    float delta = 0;
    if (row < queries) {
        const auto a = load<8>(g + batch * g_batch + head * g_head + row * g_row + 8 * lane);
        const auto b = load<8>(out + batch * out_batch + head * out_head + row * out_row + 8 * lane);
        UNROLL for (int i = 0; i < 8; ++i) delta += widen(a.at[i]) * widen(b.at[i]);
    }
    UNROLL for (int i = 1; i < LANES; i <<= 1) delta += __shfl_xor_sync(0xffffffffu, delta, i);
    if (lane || row >= padded) return;
    float* mine = rows + (i64)pair * padded + row;
    mine[0] = row < queries ? lse[(i64)pair * queries + row] * LOG2_E : __uint_as_float(0x7f800000u);
    mine[(i64)batches * heads * padded] = delta;
}
