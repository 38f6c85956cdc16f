// Attention forward, flash style: out = softmax(scale q k^T) v for heads of HEAD numbers; lse = log sum exp per query.
// STORAGE: Half or Bfloat. A block of WARPS warps has 16 TILES queries per warp and walks over COLUMNS keys at a time, two
// stages of which are in shared memory. Scores stay in registers; the largest so far and the sum of exponentials follow Milakov
// and Gimelshein, "Online normalizer calculation for softmax", 2018, and Dao, "FlashAttention-2", 2023.
#include "attention.cuh"

#define QUERIES (WARPS * 16 * TILES)
#define TILE_BYTES (COLUMNS * HEAD * 2)
#define KEPT (KEEP ? TILES : 1)
#define KEPT_STEPS (KEEP ? HEAD / 16 : 1)

// Exponentials of COLUMNS scores in place, with the largest, the sums (of this thread's columns) and out rescaled to them.
DEVICE void soften(float (&s)[COLUMNS / 8][4], float (&out)[HEAD / 8][4], float (&top)[2], float (&sums)[2], float scale) {
    UNROLL for (int half = 0; half < 2; ++half) {
        float most = top[half];
        UNROLL for (int n = 0; n < COLUMNS / 8; ++n) most = fmaxf(most, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
        most = quad_max(most);
        const float shift = most == -INFINITE ? 0.0f : most * scale;
        const float factor = exp2_quick(top[half] * scale - shift);
        top[half] = most;
        float sum = 0;
        UNROLL for (int n = 0; n < COLUMNS / 8; ++n)
            UNROLL for (int i = 2 * half; i < 2 * half + 2; ++i) {
                s[n][i] = exp2_quick(fmaf(s[n][i], scale, -shift));
                sum += s[n][i];
            }
        sums[half] = fmaf(sums[half], factor, sum);
        UNROLL for (int n = 0; n < HEAD / 8; ++n) {
            out[n][2 * half] *= factor;
            out[n][2 * half + 1] *= factor;
        }
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, RESIDENT) attention_forward(
    const STORAGE* q, const STORAGE* k, const STORAGE* v, STORAGE* out, float* lse, Layout q_at, Layout k_at, Layout v_at,
    Layout out_at, Sizes n, float scale) {
    DYNAMIC_SHARED(memory);
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, offset = n.keys - n.queries;
    const int blocks = (n.queries + QUERIES - 1) / QUERIES;
    const Task task = task_of(n, blocks);
    const int first = (CAUSAL ? blocks - 1 - task.block : task.block) * QUERIES, mine = first + warp * 16 * TILES;
    const int seen = CAUSAL ? min(n.keys, min(first + QUERIES, n.queries) + offset) : n.keys;  // by the block's last query
    const int whole = CAUSAL ? min(n.keys, first + offset + 1) : n.keys;                       // by its first
    q += task.batch * q_at.batch + task.head * q_at.head + first * q_at.row;
    k += task.batch * k_at.batch + task.head / n.group * k_at.head;
    v += task.batch * v_at.batch + task.head / n.group * v_at.head;
    out += task.batch * out_at.batch + task.head * out_at.head + mine * out_at.row;
    lse += (i64)(task.batch * n.heads + task.head) * n.queries;

    const Shared q_tile = shared_address(memory), k_tile = q_tile + QUERIES * HEAD * 2, v_tile = k_tile + 2 * TILE_BYTES;
    const Shared a_at = q_tile + warp * 16 * TILES * HEAD * 2 + lane_of_a<HEAD>(lane);
    float sums[TILES][2], top[TILES][2], acc[TILES][HEAD / 8][4];
    UNROLL for (int t = 0; t < TILES; ++t) {
        clear(acc[t]);
        sums[t][0] = sums[t][1] = 0;
        top[t][0] = top[t][1] = -INFINITE;
    }
    if (seen > 0) {
        copy_tile<QUERIES, HEAD, WARPS * 32>(q_tile, q, q_at.row, n.queries - first, thread);
        copy_tile<COLUMNS, HEAD, WARPS * 32>(k_tile, k, k_at.row, n.keys, thread);
        copy_tile<COLUMNS, HEAD, WARPS * 32>(v_tile, v, v_at.row, n.keys, thread);
    }
    commit_copies();
    u32 kept[KEPT][KEPT_STEPS][4];
    int stage = 0;
    for (int key = 0; key < seen; key += COLUMNS, stage ^= 1) {
        wait_copies<0>();
        __syncthreads();
        const int next = key + COLUMNS;
        if (next < seen) {
            const int to = (stage ^ 1) * TILE_BYTES;
            copy_tile<COLUMNS, HEAD, WARPS * 32>(k_tile + to, k + next * k_at.row, k_at.row, n.keys - next, thread);
            copy_tile<COLUMNS, HEAD, WARPS * 32>(v_tile + to, v + next * v_at.row, v_at.row, n.keys - next, thread);
        }
        commit_copies();
#if KEEP
        if (key == 0) keep_rows<HEAD, TILES>(kept, a_at);
#endif
        if (CAUSAL && key > mine + 16 * TILES - 1 + offset) continue;  // no query of this warp sees these keys
        float s[TILES][COLUMNS / 8][4];
        UNROLL for (int t = 0; t < TILES; ++t) clear(s[t]);
        multiply_rows<STORAGE, HEAD, TILES, COLUMNS, KEEP>(s, kept, a_at, k_tile + stage * TILE_BYTES + lane_of_b<HEAD>(lane));
        if (next > whole) {
            UNROLL for (int t = 0; t < TILES; ++t)
                UNROLL for (int c = 0; c < COLUMNS / 8; ++c)
                    UNROLL for (int i = 0; i < 4; ++i) {
                        const int column = key + c * 8 + lane % 4 * 2 + i % 2, row = mine + t * 16 + lane / 4 + i / 2 * 8;
                        if (column >= n.keys || (CAUSAL && column > row + offset)) s[t][c][i] = -INFINITE;
                    }
        }
        UNROLL for (int t = 0; t < TILES; ++t) soften(s[t], acc[t], top[t], sums[t], scale * LOG2_E);
        multiply_sums<STORAGE, HEAD, TILES, COLUMNS>(acc, s, v_tile + stage * TILE_BYTES + lane_of_a<HEAD>(lane));
    }
    UNROLL for (int t = 0; t < TILES; ++t)
        UNROLL for (int half = 0; half < 2; ++half) {
            const float sum = quad_sum(sums[t][half]), inverse = sum == 0 ? 0.0f : 1 / sum;
            const int row = mine + t * 16 + half * 8 + lane / 4;
            if (lane % 4 == 0 && row < n.queries) lse[row] = sum == 0 ? INFINITE : top[t][half] * scale + logf(sum);
            UNROLL for (int c = 0; c < HEAD / 8; ++c) {
                acc[t][c][2 * half] *= inverse;
                acc[t][c][2 * half + 1] *= inverse;
            }
        }
    if (mine < n.queries)
        store_rows<STORAGE, HEAD, TILES>(acc, memory + warp * 16 * TILES * HEAD * 2, out, out_at.row, n.queries - mine, lane);
}
