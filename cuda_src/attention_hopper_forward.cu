// softmax(scale q k^T) v on Hopper: a warpgroup holds 64 queries and walks over the keys, last block first, with the running
// maximum and sum of each row in registers (online softmax: Milakov and Gimelshein 2018; Dao et al. 2022). The scores of
// the next block are multiplied while this block's weights meet their values (Shah et al. 2024).
// D columns, GROUPS warpgroups, KEYS keys a step, STAGES steps and OWN tiles of queries in shared memory, CAUSAL.
#include "attention_hopper.cuh"

enum { STEP_BYTES = KEYS * D * 2 };

// Where things lie in shared memory, as addresses; barriers have 8 bytes each.
struct Shared {
    u32 base;
    DEVICE_MEMBER u32 q(int own, int group) const { return base + (own * GROUPS + group) * TILE_BYTES; }
    DEVICE_MEMBER u32 k(int stage) const { return q(OWN, 0) + stage * STEP_BYTES; }
    DEVICE_MEMBER u32 v(int stage) const { return k(STAGES + stage); }
    DEVICE_MEMBER u32 q_full(int own) const { return v(STAGES) + 16 * own; }
    DEVICE_MEMBER u32 q_free(int own) const { return q_full(own) + 8; }
    DEVICE_MEMBER u32 k_full(int stage) const { return q_full(OWN) + 32 * stage; }
    DEVICE_MEMBER u32 v_full(int stage) const { return k_full(stage) + 8; }
    DEVICE_MEMBER u32 k_free(int stage) const { return k_full(stage) + 16; }
    DEVICE_MEMBER u32 v_free(int stage) const { return k_full(stage) + 24; }

    DEVICE_MEMBER void init() const {
        for (int i = 0; i < OWN; ++i) barrier_init(q_full(i), 1), barrier_init(q_free(i), WARPS);
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(k_full(i), 1), barrier_init(k_free(i), WARPS);
            barrier_init(v_full(i), 1), barrier_init(v_free(i), WARPS);
        }
        barriers_ready();
    }
};

// One thread's work. Steps are counted over all tiles: number n is in stage n % STAGES, when all have left it.
DEVICE void fetch(const TensorMap& q, const TensorMap& k, const TensorMap& v, Shared at, const Sizes& sizes, int tiles) {
    int n = 0, tile;
    for (int round = 0; (tile = tile_of(round)) < tiles; ++round) {
        const Queries my = queries_at(tile, sizes);
        const int own = round % OWN, head = my.head / sizes.shared_by;
        barrier_wait_free(at.q_free(own), round, OWN);
        barrier_expect(at.q_full(own), GROUPS * TILE_BYTES);
        for (int i = 0; i < GROUPS; ++i)
            copy_tile<64, D>(at.q(own, i), q, at.q_full(own), my.first + 64 * i, my.head, my.batch);
        for (int t = 0; t < my.steps; ++t, ++n) {
            const int stage = n % STAGES, row = (my.steps - 1 - t) * KEYS;
            barrier_wait_free(at.k_free(stage), n, STAGES);
            barrier_expect(at.k_full(stage), STEP_BYTES);
            copy_tile<KEYS, D>(at.k(stage), k, at.k_full(stage), row, head, my.batch);
            barrier_wait_free(at.v_free(stage), n, STAGES);
            barrier_expect(at.v_full(stage), STEP_BYTES);
            copy_tile<KEYS, D>(at.v(stage), v, at.v_full(stage), row, head, my.batch);
        }
    }
}

// What a thread keeps of its two rows: the largest score, and its share of the sum.
struct Rows { float top[2], sum[2]; };

// s becomes exp(scale (s - top)); returns by what the older sums shall be multiplied.
DEVICE void weigh(float (&s)[KEYS / 2], Rows& rows, float (&older)[2], const Walk& w, int t) {
    const int column = (w.steps - 1 - t) * KEYS + w.column, last[2] = {w.last[0] - column, w.last[1] - column};
    if (t < w.clear)
        UNROLL for (int i = 0; i < KEYS / 2; ++i)
            if (8 * (i / 4) + (i & 1) > last[(i >> 1) & 1]) s[i] = -INFINITE;
    UNROLL for (int h = 0; h < 2; ++h) {
        float top = rows.top[h];
        UNROLL for (int i = 2 * h; i < KEYS / 2; i += 4) top = fmaxf(top, fmaxf(s[i], s[i + 1]));
        top = largest_of_four(top);
        const float shift = top == -INFINITE ? 0.0f : top * w.c;
        older[h] = exp2_of(rows.top[h] * w.c - shift);
        rows.top[h] = top;
        float sum = 0;
        UNROLL for (int i = 2 * h; i < KEYS / 2; i += 4) {
            s[i] = exp2_of(s[i] * w.c - shift);
            s[i + 1] = exp2_of(s[i + 1] * w.c - shift);
            sum += s[i] + s[i + 1];
        }
        rows.sum[h] = rows.sum[h] * older[h] + sum;
    }
}

// The steps of one tile, which begin with number n.
DEVICE void walk(float (&o)[D / 2], Rows& rows, const Walk& w, Shared at, u32 q, int n) {
    float s[KEYS / 2], older[2];
    u32 p[KEYS / 4];
    for (int end = n + w.skip; n < end; ++n) {
        barrier_wait_full(at.k_full(n % STAGES), n, STAGES);
        leave(at.k_free(n % STAGES));
        barrier_wait_full(at.v_full(n % STAGES), n, STAGES);
        leave(at.v_free(n % STAGES));
    }
    if (w.skip >= w.steps) return;
    barrier_wait_full(at.k_full(n % STAGES), n, STAGES);
    mma_fence();
    mma_rows<D, 64, KEYS>(s, q, at.k(n % STAGES));
    mma_commit();
    mma_wait<0>();
    hold(s);
    leave(at.k_free(n % STAGES));
    weigh(s, rows, older, w, w.skip);
    pack_all<KEYS / 2>(p, s);
    hold(p);
    for (int t = w.skip + 1; t < w.steps; ++t) {
        const int before = n % STAGES, stage = (n + 1) % STAGES;
        barrier_wait_full(at.k_full(stage), n + 1, STAGES);
        mma_fence();
        mma_rows<D, 64, KEYS>(s, q, at.k(stage));
        mma_commit();
        barrier_wait_full(at.v_full(before), n, STAGES);
        mma_fence();
        mma_columns<KEYS>(o, p, at.v(before));
        mma_commit();
        mma_wait<1>();
        hold(s);
        leave(at.k_free(stage));
        weigh(s, rows, older, w, t);
        mma_wait<0>();
        hold(o);
        leave(at.v_free(before));
        UNROLL for (int i = 0; i < D / 2; ++i) o[i] *= older[(i >> 1) & 1];
        pack_all<KEYS / 2>(p, s);
        hold(p);
        ++n;
    }
    barrier_wait_full(at.v_full(n % STAGES), n, STAGES);
    mma_fence();
    mma_columns<KEYS>(o, p, at.v(n % STAGES));
    mma_commit();
    mma_wait<0>();
    hold(o);
    leave(at.v_free(n % STAGES));
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) attention_hopper_forward(
    const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v, STORAGE* out,
    float* lse, i64 out_batch, i64 out_head, i64 out_row, Sizes sizes) {
    extern __shared__ char memory[];
    const Shared at = {(shared_address(memory) + 1023) & ~1023u};
    const int group = warpgroup(), tiles = blocks_of(sizes) * sizes.heads * sizes.batches;
    if (threadIdx.x == 0) at.init();
    __syncthreads();
    if (group == GROUPS) {
        fewer_registers<GROUPS>();
        if (threadIdx.x == 32 * WARPS) fetch(q, k, v, at, sizes, tiles);
        return;
    }
    more_registers<GROUPS>();
    int n = 0, tile;
    for (int round = 0; (tile = tile_of(round)) < tiles; ++round) {
        const Queries my = queries_at(tile, sizes);
        const int own = round % OWN, mine = my.first + 64 * group, row = mine + row_of();
        Rows rows = {{-INFINITE, -INFINITE}, {0, 0}};
        float o[D / 2], factor[2];
        UNROLL for (int i = 0; i < D / 2; ++i) o[i] = 0;
        barrier_wait_full(at.q_full(own), round, OWN);
        walk(o, rows, walk_of(my, sizes, mine, row), at, at.q(own, group), n);
        leave(at.q_free(own));
        n += my.steps;
        UNROLL for (int h = 0; h < 2; ++h) {
            const float sum = sum_of_four(rows.sum[h]);
            factor[h] = sum == 0 ? 0.0f : 1.0f / sum;
            if (row + 8 * h < sizes.queries && (threadIdx.x & 3) == 0)
                lse[((i64)my.batch * sizes.heads + my.head) * sizes.queries + row + 8 * h] =
                    sum == 0 ? INFINITE : rows.top[h] * sizes.scale + __log2f(sum) * LN_2;
        }
        write_rows(out + my.batch * out_batch + my.head * out_head, out_row, row, sizes.queries, o, factor[0], factor[1]);
    }
}
