// softmax(scale q k^T) v on Hopper: a warpgroup holds 64 queries and walks over the keys, last block first, with the running
// maximum and sum of each row in registers (online softmax: Milakov and Gimelshein 2018; Dao et al. 2022). The scores of
// the next block are multiplied while this block's weights meet their values (Shah et al. 2024).
// D columns, GROUPS warpgroups, KEYS keys a step, STAGES steps in shared memory, RESIDENT blocks a multiprocessor, CAUSAL.
#include "wgmma.cuh"

enum { WARPS = 4 * GROUPS, THREADS = 32 * WARPS + 128, ROWS = 64 * GROUPS, Q_BYTES = 64 * D * 2, STEP_BYTES = KEYS * D * 2 };

// Where things lie in shared memory, as addresses; barriers have 8 bytes each.
struct Shared {
    u32 base;
    DEVICE_MEMBER u32 q(int group) const { return base + group * Q_BYTES; }
    DEVICE_MEMBER u32 k(int stage) const { return base + GROUPS * Q_BYTES + stage * STEP_BYTES; }
    DEVICE_MEMBER u32 v(int stage) const { return k(STAGES + stage); }
    DEVICE_MEMBER u32 q_full() const { return v(STAGES); }
    DEVICE_MEMBER u32 k_full(int stage) const { return q_full() + 8 + 32 * stage; }
    DEVICE_MEMBER u32 v_full(int stage) const { return k_full(stage) + 8; }
    DEVICE_MEMBER u32 k_free(int stage) const { return k_full(stage) + 16; }
    DEVICE_MEMBER u32 v_free(int stage) const { return k_full(stage) + 24; }
};

// One thread's work: step t takes block steps - 1 - t into stage t % STAGES, when all have left it.
DEVICE void fetch(const TensorMap& k, const TensorMap& v, Shared at, int steps, int head, int batch) {
    for (int t = 0; t < steps; ++t) {
        const int stage = t % STAGES, row = (steps - 1 - t) * KEYS, parity = (t / STAGES - 1) & 1;
        if (t >= STAGES) barrier_wait(at.k_free(stage), parity);
        barrier_expect(at.k_full(stage), STEP_BYTES);
        copy_tile<KEYS, D>(at.k(stage), k, at.k_full(stage), row, head, batch);
        if (t >= STAGES) barrier_wait(at.v_free(stage), parity);
        barrier_expect(at.v_full(stage), STEP_BYTES);
        copy_tile<KEYS, D>(at.v(stage), v, at.v_full(stage), row, head, batch);
    }
}

// What a thread keeps of its two rows: the largest score, its share of the sum, and the last key they see.
struct Rows { float top[2], sum[2]; int last[2]; };

// s becomes exp(scale (s - top)); returns by what the older sums shall be multiplied.
DEVICE void weigh(float (&s)[KEYS / 2], Rows& rows, float (&older)[2], float c, int column, bool masked) {
    if (masked)
        UNROLL for (int i = 0; i < KEYS / 2; ++i)
            if (column + 8 * (i / 4) + (i & 1) > rows.last[(i >> 1) & 1]) s[i] = -INFINITE;
    UNROLL for (int h = 0; h < 2; ++h) {
        float top = rows.top[h];
        UNROLL for (int i = 2 * h; i < KEYS / 2; i += 4) top = fmaxf(top, fmaxf(s[i], s[i + 1]));
        top = largest_of_four(top);
        const float shift = top == -INFINITE ? 0.0f : top * c;
        older[h] = exp2_of(rows.top[h] * c - shift);
        rows.top[h] = top;
        float sum = 0;
        UNROLL for (int i = 2 * h; i < KEYS / 2; i += 4) {
            s[i] = exp2_of(s[i] * c - shift);
            s[i + 1] = exp2_of(s[i + 1] * c - shift);
            sum += s[i] + s[i + 1];
        }
        rows.sum[h] = rows.sum[h] * older[h] + sum;
    }
}

struct Walk { int steps, skip, column, clear; float c; };  // clear: from this step on every row sees every key

DEVICE void walk(float (&o)[D / 2], Rows& rows, const Walk& w, Shared at, u32 q) {
    float s[KEYS / 2], older[2];
    u32 p[KEYS / 4];
    for (int t = 0; t < w.skip; ++t) {
        barrier_wait(at.k_full(t % STAGES), t / STAGES & 1);
        leave(at.k_free(t % STAGES));
        barrier_wait(at.v_full(t % STAGES), t / STAGES & 1);
        leave(at.v_free(t % STAGES));
    }
    if (w.skip >= w.steps) return;
    barrier_wait(at.k_full(w.skip % STAGES), w.skip / STAGES & 1);
    mma_fence();
    mma_rows<D, 64, KEYS>(s, q, at.k(w.skip % STAGES));
    mma_commit();
    mma_wait<0>();
    hold(s);
    leave(at.k_free(w.skip % STAGES));
    weigh(s, rows, older, w.c, (w.steps - 1 - w.skip) * KEYS + w.column, w.skip < w.clear);
    pack_all<KEYS / 2>(p, s);
    hold(p);
    for (int t = w.skip + 1; t < w.steps; ++t) {
        const int stage = t % STAGES, before = (t - 1) % STAGES;
        barrier_wait(at.k_full(stage), t / STAGES & 1);
        mma_fence();
        mma_rows<D, 64, KEYS>(s, q, at.k(stage));
        mma_commit();
        barrier_wait(at.v_full(before), (t - 1) / STAGES & 1);
        mma_fence();
        mma_columns<KEYS>(o, p, at.v(before));
        mma_commit();
        mma_wait<1>();
        hold(s);
        leave(at.k_free(stage));
        weigh(s, rows, older, w.c, (w.steps - 1 - t) * KEYS + w.column, t < w.clear);
        mma_wait<0>();
        hold(o);
        leave(at.v_free(before));
        UNROLL for (int i = 0; i < D / 2; ++i) o[i] *= older[(i >> 1) & 1];
        pack_all<KEYS / 2>(p, s);
        hold(p);
    }
    const int stage = (w.steps - 1) % STAGES;
    barrier_wait(at.v_full(stage), (w.steps - 1) / STAGES & 1);
    mma_fence();
    mma_columns<KEYS>(o, p, at.v(stage));
    mma_commit();
    mma_wait<0>();
    hold(o);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) attention_hopper_forward(
    const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v, STORAGE* out,
    float* lse, i64 out_batch, i64 out_head, i64 out_row, int queries, int keys, int heads, int batches, int shared_by, int near,
    float scale) {
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
            barrier_init(at.k_full(s), 1);
            barrier_init(at.v_full(s), 1);
            barrier_init(at.k_free(s), WARPS);
            barrier_init(at.v_free(s), WARPS);
        }
        barriers_ready();
        barrier_expect(at.q_full(), GROUPS * Q_BYTES);
        for (int g = 0; g < GROUPS; ++g) copy_tile<64, D>(at.q(g), q, at.q_full(), first + 64 * g, my.head, my.batch);
    }
    __syncthreads();
    if (group == GROUPS) {
        fewer_registers<GROUPS, RESIDENT>();
        if (threadIdx.x == 32 * WARPS) fetch(k, v, at, steps, my.head / shared_by, my.batch);
        return;
    }
    more_registers<GROUPS, RESIDENT>();
    const int row = mine + (threadIdx.x & 127) / 32 * 16 + lane / 4;
    Rows rows;
    UNROLL for (int h = 0; h < 2; ++h) {
        rows.top[h] = -INFINITE;
        rows.sum[h] = 0;
        rows.last[h] = CAUSAL ? min(keys - 1, row + 8 * h + offset) : keys - 1;
    }
    float o[D / 2];
    UNROLL for (int i = 0; i < D / 2; ++i) o[i] = 0;
    // this warpgroup's last row sees `here` keys, its first row sees `always`
    const int here = mine >= queries ? 0 : CAUSAL ? min(keys, max(0, mine + 64 + offset)) : keys;
    const int always = CAUSAL ? min(keys, max(0, mine + offset + 1)) : keys;
    const Walk w = {steps, steps - min(steps, (here + KEYS - 1) / KEYS), 2 * (lane & 3), steps - always / KEYS, scale * LOG2_E};
    barrier_wait(at.q_full(), 0);
    walk(o, rows, w, at, at.q(group));
    float factor[2];
    UNROLL for (int h = 0; h < 2; ++h) {
        const float sum = sum_of_four(rows.sum[h]);
        factor[h] = sum == 0 ? 0.0f : 1.0f / sum;
        if (row + 8 * h < queries && (lane & 3) == 0)
            lse[((i64)my.batch * heads + my.head) * queries + row + 8 * h] =
                sum == 0 ? INFINITE : rows.top[h] * scale + __log2f(sum) * LN_2;
    }
    write_rows(out + my.batch * out_batch + my.head * out_head, out_row, row, queries, o, factor[0], factor[1]);
}
