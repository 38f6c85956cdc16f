// The gradients of keys and values on Hopper: a warpgroup holds 64 keys and walks over the queries, with scores
// that lie transposed in its registers, as the products with g and q want them: p = exp(scale k q^T - lse), dv += p g,
// ds = p (v g^T - delta), dk += ds q. Heads that share these keys follow each other in one order.
// D columns, GROUPS warpgroups, QUERIES queries a step, STAGES steps and OWN tiles of keys in shared memory,
// CAUSAL.
#define KEYS 64
#include "attention_hopper.cuh"

enum { STAT_BYTES = QUERIES * 4, STEP_BYTES = QUERIES * D * 2 };

struct Shared {
    u32 base;
    DEVICE_MEMBER u32 k(int own, int group) const { return base + 2 * (own * GROUPS + group) * TILE_BYTES; }
    DEVICE_MEMBER u32 v(int own, int group) const { return k(own, group) + TILE_BYTES; }
    DEVICE_MEMBER u32 q(int stage) const { return k(OWN, 0) + 2 * stage * STEP_BYTES; }
    DEVICE_MEMBER u32 g(int stage) const { return q(stage) + STEP_BYTES; }
    DEVICE_MEMBER u32 lse(int stage) const { return q(STAGES) + 2 * stage * STAT_BYTES; }
    DEVICE_MEMBER u32 delta(int stage) const { return lse(stage) + STAT_BYTES; }
    DEVICE_MEMBER u32 k_full(int own) const { return lse(STAGES) + 16 * own; }
    DEVICE_MEMBER u32 k_free(int own) const { return k_full(own) + 8; }
    DEVICE_MEMBER u32 full(int stage) const { return k_full(OWN) + 16 * stage; }
    DEVICE_MEMBER u32 free(int stage) const { return full(stage) + 8; }

    DEVICE_MEMBER void init() const {
        for (int i = 0; i < OWN; ++i) barrier_init(k_full(i), 1), barrier_init(k_free(i), WARPS);
        for (int i = 0; i < STAGES; ++i) barrier_init(full(i), 1), barrier_init(free(i), WARPS);
        barriers_ready();
    }
};

struct Maps { const TensorMap &q, &k, &v, &g; };
struct Stats { const float* lse; int padded; };  // of each query; delta follows behind all of them

// A tile of keys: its first row, and the queries that meet it: of each head that shares them, `blocks` blocks of 64 from
// number `begin` on. The first keys have most of them.
struct Keys { int first, head, batch, begin, blocks; };
DEVICE Keys keys_at(int tile, const Sizes& n) {
    const Place my = place(tile, (n.keys + ROWS - 1) / ROWS, n.heads / n.shared_by, n.batches, n.near);
    const int first = my.block * ROWS, all = (n.queries + QUERIES - 1) / QUERIES;
    const int begin = CAUSAL ? min(all, max(0, first + n.queries - n.keys) / QUERIES) : 0;
    return {first, my.head, my.batch, begin, all - begin};
}

// One thread's work. Steps are counted over all tiles: number n is in stage n % STAGES, when all have left it.
DEVICE void fetch(const Maps& of, const Stats& stats, Shared at, const Sizes& sizes, int tiles) {
    int n = 0, tile;
    for (int round = 0; (tile = tile_of(round)) < tiles; ++round) {
        const Keys my = keys_at(tile, sizes);
        const int own = round % OWN;
        barrier_wait_free(at.k_free(own), round, OWN);
        barrier_expect(at.k_full(own), 2 * GROUPS * TILE_BYTES);
        for (int i = 0; i < GROUPS; ++i) {
            copy_tile<64, D>(at.k(own, i), of.k, at.k_full(own), my.first + 64 * i, my.head, my.batch);
            copy_tile<64, D>(at.v(own, i), of.v, at.k_full(own), my.first + 64 * i, my.head, my.batch);
        }
        for (int head = my.head * sizes.shared_by; head < (my.head + 1) * sizes.shared_by; ++head)
            for (int t = 0; t < my.blocks; ++t, ++n) {
                const int stage = n % STAGES, row = (my.begin + t) * QUERIES;
                const u32 bar = at.full(stage);
                barrier_wait_free(at.free(stage), n, STAGES);
                barrier_expect(bar, 2 * STEP_BYTES + 2 * STAT_BYTES);
                copy_tile<QUERIES, D>(at.q(stage), of.q, bar, row, head, my.batch);
                copy_tile<QUERIES, D>(at.g(stage), of.g, bar, row, head, my.batch);
                const float* lse = stats.lse + ((i64)my.batch * sizes.heads + head) * stats.padded + row;
                copy_bytes(at.lse(stage), lse, STAT_BYTES, bar);
                copy_bytes(at.delta(stage), lse + (i64)sizes.batches * sizes.heads * stats.padded, STAT_BYTES, bar);
            }
    }
}

DEVICE float2 pair_at(u32 address) {
    float2 two;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(two.x), "=f"(two.y) : "r"(address) : "memory");
    return two;
}

// A warpgroup's keys: of each head, blocks before `skip` do not see them, and blocks from `clear` on see all of them.
// column: this thread's first; first[h]: the first query that sees its row, counted from the first block on.
struct Meeting { int blocks, skip, clear, column, first[2]; float c; };
DEVICE Meeting meeting_of(const Keys& tile, const Sizes& n, int mine) {
    const int offset = n.queries - n.keys, row = mine + row_of() + offset - QUERIES * tile.begin;
    Meeting w = {tile.blocks, 0, 0, 2 * (int)(threadIdx.x & 3), {row, row + 8}, n.scale * LOG2_E};
    if (CAUSAL) {
        w.skip = min(tile.blocks, max(0, mine + offset) / QUERIES - tile.begin);
        w.clear = (max(0, mine + 63 + offset) + QUERIES - 1) / QUERIES - tile.begin;
    }
    if (mine >= n.keys) w.skip = tile.blocks;
    return w;
}

DEVICE void weigh(float (&s)[QUERIES / 2], const Meeting& w, u32 lse, int block) {
    UNROLL for (int j = 0; j < QUERIES / 8; ++j) {
        const float2 two = pair_at(lse + 32 * j + 4 * w.column);
        UNROLL for (int i = 0; i < 4; ++i) s[4 * j + i] = exp2_of(s[4 * j + i] * w.c - (i & 1 ? two.y : two.x));
    }
    const int column = QUERIES * block + w.column, first[2] = {w.first[0] - column, w.first[1] - column};
    if (block < w.clear)
        UNROLL for (int i = 0; i < QUERIES / 2; ++i)
            if (8 * (i / 4) + (i & 1) < first[(i >> 1) & 1]) s[i] = 0;
}

// The steps of one head, which begin with number n.
DEVICE void walk(float (&dk)[D / 2], float (&dv)[D / 2], const Meeting& w, Shared at, u32 k, u32 v, int n) {
    float s[QUERIES / 2];
    u32 p[QUERIES / 4], ds[QUERIES / 4];
    for (int end = n + w.skip; n < end; ++n) {
        barrier_wait_full(at.full(n % STAGES), n, STAGES);
        leave(at.free(n % STAGES));
    }
    for (int t = w.skip; t < w.blocks; ++t, ++n) {
        const int stage = n % STAGES;
        barrier_wait_full(at.full(stage), n, STAGES);
        mma_fence();
        mma_rows<D, 64, QUERIES>(s, k, at.q(stage));
        mma_commit();
        mma_wait<0>();
        hold(s);
        hold(dk);
        leave(at.free((n - 1) % STAGES), t > w.skip);
        weigh(s, w, at.lse(stage), t);
        pack_all<QUERIES / 2>(p, s);
        hold(p);
        mma_fence();
        mma_rows<D, 64, QUERIES>(s, v, at.g(stage));
        mma_commit();
        mma_columns<QUERIES>(dv, p, at.g(stage));
        mma_commit();
        mma_wait<1>();
        hold(s);
        UNROLL for (int j = 0; j < QUERIES / 8; ++j) {
            const float2 two = pair_at(at.delta(stage) + 32 * j + 4 * w.column);
            UNROLL for (int i = 0; i < 4; ++i)
                s[4 * j + i] = half_of(p[2 * j + i / 2], i & 1) * (s[4 * j + i] - (i & 1 ? two.y : two.x));
        }
        pack_all<QUERIES / 2>(ds, s);
        hold(ds);
        mma_fence();
        mma_columns<QUERIES>(dk, ds, at.q(stage));
        mma_commit();
        mma_wait<1>();
        hold(dv);
    }
    mma_wait<0>();
    hold(dk);
    hold(dv);
    leave(at.free((n - 1) % STAGES), w.skip < w.blocks);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) attention_hopper_keys(
    const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
    const __grid_constant__ TensorMap g, const float* stats, STORAGE* dk_out, STORAGE* dv_out, i64 dk_batch, i64 dk_head,
    i64 dk_row, i64 dv_batch, i64 dv_head, i64 dv_row, int padded, Sizes sizes) {
    extern __shared__ char memory[];
    const Shared at = {(shared_address(memory) + 1023) & ~1023u};
    const int group = warpgroup(), tiles = (sizes.keys + ROWS - 1) / ROWS * (sizes.heads / sizes.shared_by) * sizes.batches;
    if (threadIdx.x == 0) at.init();
    __syncthreads();
    if (group == GROUPS) {
        fewer_registers<GROUPS>();
        if (threadIdx.x == 32 * WARPS) fetch({q, k, v, g}, {stats, padded}, at, sizes, tiles);
        return;
    }
    more_registers<GROUPS>();
    int n = 0, tile;
    for (int round = 0; (tile = tile_of(round)) < tiles; ++round) {
        const Keys my = keys_at(tile, sizes);
        const int own = round % OWN, mine = my.first + 64 * group, row = mine + row_of();
        float dk[D / 2], dv[D / 2];
        UNROLL for (int i = 0; i < D / 2; ++i) dk[i] = dv[i] = 0;
        barrier_wait_full(at.k_full(own), round, OWN);
        const Meeting w = meeting_of(my, sizes, mine);
        for (int i = 0; i < sizes.shared_by; ++i, n += my.blocks) walk(dk, dv, w, at, at.k(own, group), at.v(own, group), n);
        leave(at.k_free(own));
        write_rows(dk_out + my.batch * dk_batch + my.head * dk_head, dk_row, row, sizes.keys, dk, sizes.scale, sizes.scale);
        write_rows(dv_out + my.batch * dv_batch + my.head * dv_head, dv_row, row, sizes.keys, dv, 1.0f, 1.0f);
    }
}
