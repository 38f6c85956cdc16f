// The gradient of the queries on Hopper: a warpgroup holds 64 queries and walks over the keys: p = exp(scale q k^T - lse),
// ds = p (g v^T - delta), dq += ds k; all scores in registers (Dao 2023, with the sums of dq in a kernel of their own).
// D columns, GROUPS warpgroups, KEYS keys a step, STAGES steps in shared memory, RESIDENT blocks a multiprocessor, CAUSAL.
#include "wgmma.cuh"

enum { WARPS = 4 * GROUPS, THREADS = 32 * WARPS + 128, ROWS = 64 * GROUPS, TILE_BYTES = 64 * D * 2, STEP_BYTES = KEYS * D * 2 };

struct Shared {
    u32 base;
    DEVICE_MEMBER u32 q(int group) const { return base + 2 * group * TILE_BYTES; }
    DEVICE_MEMBER u32 g(int group) const { return q(group) + TILE_BYTES; }
    DEVICE_MEMBER u32 k(int stage) const { return base + 2 * GROUPS * TILE_BYTES + 2 * stage * STEP_BYTES; }
    DEVICE_MEMBER u32 v(int stage) const { return k(stage) + STEP_BYTES; }
    DEVICE_MEMBER u32 q_full() const { return k(STAGES); }
    DEVICE_MEMBER u32 full(int stage) const { return q_full() + 8 + 16 * stage; }
    DEVICE_MEMBER u32 free(int stage) const { return full(stage) + 8; }
};

// One thread's work: step t takes block steps - 1 - t into stage t % STAGES, when all have left it.
DEVICE void fetch(const TensorMap& k, const TensorMap& v, Shared at, int steps, int head, int batch) {
    for (int t = 0; t < steps; ++t) {
        const int stage = t % STAGES, row = (steps - 1 - t) * KEYS;
        if (t >= STAGES) barrier_wait(at.free(stage), (t / STAGES - 1) & 1);
        barrier_expect(at.full(stage), 2 * STEP_BYTES);
        copy_tile<KEYS, D>(at.k(stage), k, at.full(stage), row, head, batch);
        copy_tile<KEYS, D>(at.v(stage), v, at.full(stage), row, head, batch);
    }
}

struct Rows { float lse[2], delta[2]; int last[2]; };
struct Walk { int steps, skip, column, clear; float c; };  // clear: from this step on every row sees every key

DEVICE void walk(float (&dq)[D / 2], const Rows& rows, const Walk& w, Shared at, u32 q, u32 g) {
    float s[KEYS / 2], dp[KEYS / 2];
    u32 ds[KEYS / 4];
    for (int t = 0; t < w.skip; ++t) {
        barrier_wait(at.full(t % STAGES), t / STAGES & 1);
        leave(at.free(t % STAGES));
    }
    for (int t = w.skip; t < w.steps; ++t) {
        const int stage = t % STAGES;
        barrier_wait(at.full(stage), t / STAGES & 1);
        mma_fence();
        mma_rows<D, 64, KEYS>(s, q, at.k(stage));
        mma_commit();
        mma_rows<D, 64, KEYS>(dp, g, at.v(stage));
        mma_commit();
        mma_wait<1>();
        hold(s);
        hold(dq);
        if (t > w.skip) leave(at.free((t - 1) % STAGES));
        const int column = (w.steps - 1 - t) * KEYS + w.column;
        UNROLL for (int i = 0; i < KEYS / 2; ++i) s[i] = exp2_of(s[i] * w.c - rows.lse[(i >> 1) & 1]);
        if (t < w.clear)
            UNROLL for (int i = 0; i < KEYS / 2; ++i)
                if (column + 8 * (i / 4) + (i & 1) > rows.last[(i >> 1) & 1]) s[i] = 0;
        mma_wait<0>();
        hold(dp);
        UNROLL for (int i = 0; i < KEYS / 2; ++i) s[i] *= dp[i] - rows.delta[(i >> 1) & 1];
        pack_all<KEYS / 2>(ds, s);
        hold(ds);
        mma_fence();
        mma_columns<KEYS>(dq, ds, at.k(stage));
        mma_commit();
    }
    mma_wait<0>();
    hold(dq);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) attention_hopper_queries(
    const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
    const __grid_constant__ TensorMap g, const float* stats, STORAGE* out, i64 out_batch, i64 out_head, i64 out_row,
    int queries, int padded, int keys, int heads, int batches, int shared_by, int near, float scale) {
    extern __shared__ char memory[];
    const Shared at = {(shared_address(memory) + 1023) & ~1023u};
    const int blocks = (queries + ROWS - 1) / ROWS, group = warpgroup(), lane = threadIdx.x & 31;
    const Place my = place(blocks, heads, batches, near);
    const int first = (blocks - 1 - my.block) * ROWS, mine = first + 64 * group;  // the longest first
    const int offset = CAUSAL ? keys - queries : keys, over = min(first + ROWS, queries) - 1;
    const int seen = CAUSAL ? min(keys, max(0, over + offset + 1)) : keys;
    const int steps = (seen + KEYS - 1) / KEYS;
    if (threadIdx.x == 0) {
        barrier_init(at.q_full(), 1);
        for (int s = 0; s < STAGES; ++s) {
            barrier_init(at.full(s), 1);
            barrier_init(at.free(s), WARPS);
        }
        barriers_ready();
        barrier_expect(at.q_full(), 2 * GROUPS * TILE_BYTES);
        for (int i = 0; i < GROUPS; ++i) {
            copy_tile<64, D>(at.q(i), q, at.q_full(), first + 64 * i, my.head, my.batch);
            copy_tile<64, D>(at.g(i), g, at.q_full(), first + 64 * i, my.head, my.batch);
        }
    }
    __syncthreads();
    if (group == GROUPS) {
        fewer_registers<GROUPS, RESIDENT>();
        if (threadIdx.x == 32 * WARPS) fetch(k, v, at, steps, my.head / shared_by, my.batch);
        return;
    }
    more_registers<GROUPS, RESIDENT>();
    const int row = mine + (threadIdx.x & 127) / 32 * 16 + lane / 4;
    const float* mine_stats = stats + ((i64)my.batch * heads + my.head) * padded;
    Rows rows;
    UNROLL for (int h = 0; h < 2; ++h) {
        const int r = min(row + 8 * h, padded - 1);
        rows.lse[h] = mine_stats[r];
        rows.delta[h] = mine_stats[(i64)heads * batches * padded + r];
        rows.last[h] = CAUSAL ? min(keys - 1, row + 8 * h + offset) : keys - 1;
    }
    float dq[D / 2];
    UNROLL for (int i = 0; i < D / 2; ++i) dq[i] = 0;
    // this warpgroup's last row sees `here` keys, its first row sees `always`
    const int here = mine >= queries ? 0 : CAUSAL ? min(keys, max(0, mine + 64 + offset)) : keys;
    const int always = CAUSAL ? min(keys, max(0, mine + offset + 1)) : keys;
    const Walk w = {steps, steps - min(steps, (here + KEYS - 1) / KEYS), 2 * (lane & 3), steps - always / KEYS, scale * LOG2_E};
    barrier_wait(at.q_full(), 0);
    walk(dq, rows, w, at, at.q(group), at.g(group));
    write_rows(out + my.batch * out_batch + my.head * out_head, out_row, row, queries, dq, scale, scale);
}
