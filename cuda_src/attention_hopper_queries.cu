// The gradient of the queries on Hopper: a warpgroup holds 64 queries and walks over the keys: p = exp(scale q k^T - lse),
// ds = p (g v^T - delta), dq += ds k; all scores in registers (Dao 2023, with the sums of dq in a kernel of their own).
// D columns, GROUPS warpgroups, KEYS keys a step, STAGES steps and OWN tiles of queries in shared memory, CAUSAL.
#include "attention_hopper.cuh"

enum { STEP_BYTES = KEYS * D * 2 };

struct Shared {
    u32 base;
    DEVICE_MEMBER u32 q(int own, int group) const { return base + 2 * (own * GROUPS + group) * TILE_BYTES; }
    DEVICE_MEMBER u32 g(int own, int group) const { return q(own, group) + TILE_BYTES; }
    DEVICE_MEMBER u32 k(int stage) const { return q(OWN, 0) + 2 * stage * STEP_BYTES; }
    DEVICE_MEMBER u32 v(int stage) const { return k(stage) + STEP_BYTES; }
    DEVICE_MEMBER u32 q_full(int own) const { return k(STAGES) + 16 * own; }
    DEVICE_MEMBER u32 q_free(int own) const { return q_full(own) + 8; }
    DEVICE_MEMBER u32 full(int stage) const { return q_full(OWN) + 16 * stage; }
    DEVICE_MEMBER u32 free(int stage) const { return full(stage) + 8; }

    DEVICE_MEMBER void init() const {
        for (int i = 0; i < OWN; ++i) barrier_init(q_full(i), 1), barrier_init(q_free(i), WARPS);
        for (int i = 0; i < STAGES; ++i) barrier_init(full(i), 1), barrier_init(free(i), WARPS);
        barriers_ready();
    }
};

struct Maps { const TensorMap &q, &k, &v, &g; };

// One thread's work. Steps are counted over all tiles: number n is in stage n % STAGES, when all have left it.
DEVICE void fetch(const Maps& of, Shared at, const Sizes& sizes, int tiles) {
    int n = 0, tile;
    for (int round = 0; (tile = tile_of(round)) < tiles; ++round) {
        const Queries my = queries_at(tile, sizes);
        const int own = round % OWN, head = my.head / sizes.shared_by;
        barrier_wait_free(at.q_free(own), round, OWN);
        barrier_expect(at.q_full(own), 2 * GROUPS * TILE_BYTES);
        for (int i = 0; i < GROUPS; ++i) {
            copy_tile<64, D>(at.q(own, i), of.q, at.q_full(own), my.first + 64 * i, my.head, my.batch);
            copy_tile<64, D>(at.g(own, i), of.g, at.q_full(own), my.first + 64 * i, my.head, my.batch);
        }
        for (int t = 0; t < my.steps; ++t, ++n) {
            const int stage = n % STAGES, row = (my.steps - 1 - t) * KEYS;
            barrier_wait_free(at.free(stage), n, STAGES);
            barrier_expect(at.full(stage), 2 * STEP_BYTES);
            copy_tile<KEYS, D>(at.k(stage), of.k, at.full(stage), row, head, my.batch);
            copy_tile<KEYS, D>(at.v(stage), of.v, at.full(stage), row, head, my.batch);
        }
    }
}

struct Rows { float lse[2], delta[2]; };

// What it is made of, and where the kernel for the keys finds it: `rows` has lse and delta of all queries, padded to tiles.
struct Stats {
    const STORAGE* out;
    const float* lse;
    float* rows;
    i64 batch, head, row;  // strides of out
    int padded;
};
// lse to the base 2 and delta = sum(g out), for rows `r` and r + 8 of the tile g, which begins with row `mine`.
DEVICE Rows rows_of(const Stats& from, const Queries& my, const Sizes& n, int mine, int r, u32 g, u32 full, int round) {
    const i64 pair = (i64)my.batch * n.heads + my.head;
    const STORAGE* out = from.out + my.batch * from.batch + my.head * from.head;
    const int part = threadIdx.x & 3;
    Pack<STORAGE, 8> known[2][D / 32];
    Rows rows;
    UNROLL for (int h = 0; h < 2; ++h) {
        const int row = mine + r + 8 * h;
        rows.lse[h] = row < n.queries ? from.lse[pair * n.queries + row] * LOG2_E : INFINITE;
        UNROLL for (int i = 0; i < D / 32; ++i)
            if (row < n.queries) known[h][i] = load<8>(out + row * from.row + 8 * (4 * i + part));
            else known[h][i] = Pack<STORAGE, 8>();
    }
    barrier_wait_full(full, round, OWN);
    UNROLL for (int h = 0; h < 2; ++h) {
        float sum = 0;
        UNROLL for (int i = 0; i < D / 32; ++i) {
            const int chunk = (4 * (i % 2) + part) ^ (r & 7);
            const auto theirs = load_shared<STORAGE>(g + (i / 2) * BOX + (r + 8 * h) * 128 + chunk * 16);
            UNROLL for (int j = 0; j < 8; ++j) sum += widen(theirs.at[j]) * widen(known[h][i].at[j]);
        }
        rows.delta[h] = sum_of_four(sum);
        if (part == 0 && mine + r + 8 * h < from.padded) {
            float* to = from.rows + pair * from.padded + mine + r + 8 * h;
            to[0] = rows.lse[h];
            to[(i64)n.heads * n.batches * from.padded] = rows.delta[h];
        }
    }
    return rows;
}

// The steps of one tile, which begin with number n.
DEVICE void walk(float (&dq)[D / 2], const Rows& rows, const Walk& w, Shared at, u32 q, u32 g, int n) {
    float s[KEYS / 2], dp[KEYS / 2];
    u32 ds[KEYS / 4];
    for (int end = n + w.skip; n < end; ++n) {
        barrier_wait_full(at.full(n % STAGES), n, STAGES);
        leave(at.free(n % STAGES));
    }
    for (int t = w.skip; t < w.steps; ++t, ++n) {
        const int stage = n % STAGES, column = (w.steps - 1 - t) * KEYS + w.column;
        const int last[2] = {w.last[0] - column, w.last[1] - column};
        barrier_wait_full(at.full(stage), n, STAGES);
        mma_fence();
        mma_rows<D, 64, KEYS>(s, q, at.k(stage));
        mma_commit();
        mma_rows<D, 64, KEYS>(dp, g, at.v(stage));
        mma_commit();
        mma_wait<1>();
        hold(s);
        hold(dq);
        leave(at.free((n - 1) % STAGES), t > w.skip);
        UNROLL for (int i = 0; i < KEYS / 2; ++i) s[i] = exp2_of(s[i] * w.c - rows.lse[(i >> 1) & 1]);
        if (t < w.clear)
            UNROLL for (int i = 0; i < KEYS / 2; ++i)
                if (8 * (i / 4) + (i & 1) > last[(i >> 1) & 1]) s[i] = 0;
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
    leave(at.free((n - 1) % STAGES), w.skip < w.steps);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) attention_hopper_queries(
    const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
    const __grid_constant__ TensorMap g, const STORAGE* out, const float* lse, float* stats, STORAGE* dq_out, i64 out_batch,
    i64 out_head, i64 out_row, i64 dq_batch, i64 dq_head, i64 dq_row, int padded, Sizes sizes) {
    extern __shared__ char memory[];
    const Shared at = {(shared_address(memory) + 1023) & ~1023u};
    const int group = warpgroup(), pairs = sizes.heads * sizes.batches, tiles = blocks_of(sizes) * pairs;
    if (threadIdx.x == 0) at.init();
    __syncthreads();
    if (group == GROUPS) {
        fewer_registers<GROUPS>();
        if (threadIdx.x == 32 * WARPS) fetch({q, k, v, g}, at, sizes, tiles);
        return;
    }
    more_registers<GROUPS>();
    int n = 0, tile;
    for (int round = 0; (tile = tile_of(round)) < tiles; ++round) {
        const Queries my = queries_at(tile, sizes);
        const int own = round % OWN, mine = my.first + 64 * group, row = mine + row_of();
        const Rows rows = rows_of({out, lse, stats, out_batch, out_head, out_row, padded}, my, sizes, mine, row_of(),
                                  at.g(own, group), at.q_full(own), round);
        float dq[D / 2];
        UNROLL for (int i = 0; i < D / 2; ++i) dq[i] = 0;
        walk(dq, rows, walk_of(my, sizes, mine, row), at, at.q(own, group), at.g(own, group), n);
        leave(at.q_free(own));
        n += my.steps;
        write_rows(dq_out + my.batch * dq_batch + my.head * dq_head, dq_row, row, sizes.queries, dq, sizes.scale, sizes.scale);
    }
}
