// The gradients of keys and values on Hopper: a warpgroup holds 64 keys and walks over the queries, 64 a step, with scores
// that lie transposed in its registers, as the products with g and q want them: p = exp(scale k q^T - lse), dv += p g,
// ds = p (v g^T - delta), dk += ds q. Heads that share these keys follow each other in one order.
// D columns, GROUPS warpgroups, STAGES steps in shared memory, RESIDENT blocks a multiprocessor, CAUSAL.
#include "wgmma.cuh"

enum { WARPS = 4 * GROUPS, THREADS = 32 * WARPS + 128, ROWS = 64 * GROUPS, TILE_BYTES = 64 * D * 2, STAT_BYTES = 64 * 4 };

struct Shared {
    u32 base;
    DEVICE_MEMBER u32 k(int group) const { return base + 2 * group * TILE_BYTES; }
    DEVICE_MEMBER u32 v(int group) const { return k(group) + TILE_BYTES; }
    DEVICE_MEMBER u32 q(int stage) const { return k(GROUPS + stage); }
    DEVICE_MEMBER u32 g(int stage) const { return q(stage) + TILE_BYTES; }
    DEVICE_MEMBER u32 lse(int stage) const { return q(STAGES) + 2 * stage * STAT_BYTES; }
    DEVICE_MEMBER u32 k_full() const { return lse(STAGES); }
    DEVICE_MEMBER u32 full(int stage) const { return k_full() + 8 + 16 * stage; }
    DEVICE_MEMBER u32 free(int stage) const { return full(stage) + 8; }
};

// The queries that a block of keys meets: of each of its heads the same blocks of 64, from number `begin` on.
struct Others { int begin, blocks, heads, padded, batch, head; };

// One thread's work: step t is block begin + t % blocks of head + t / blocks, in stage t % STAGES when all have left it.
DEVICE void fetch(const TensorMap& q, const TensorMap& g, const float* stats, i64 delta, Shared at, const Others& o, int steps) {
    for (int t = 0; t < steps; ++t) {
        const int stage = t % STAGES, head = o.head + t / o.blocks, row = (o.begin + t % o.blocks) * 64;
        const u32 bar = at.full(stage);
        if (t >= STAGES) barrier_wait(at.free(stage), (t / STAGES - 1) & 1);
        barrier_expect(bar, 2 * TILE_BYTES + 2 * STAT_BYTES);
        copy_tile<64, D>(at.q(stage), q, bar, row, head, o.batch);
        copy_tile<64, D>(at.g(stage), g, bar, row, head, o.batch);
        const float* lse = stats + ((i64)o.batch * o.heads + head) * o.padded + row;
        copy_bytes(at.lse(stage), lse, STAT_BYTES, bar);
        copy_bytes(at.lse(stage) + STAT_BYTES, lse + delta, STAT_BYTES, bar);
    }
}

DEVICE float2 pair_at(u32 address) {
    float2 two;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(two.x), "=f"(two.y) : "r"(address) : "memory");
    return two;
}

// blocks: those of each head; skip: blocks of each head that this warpgroup's keys do not see; clear: those from where all see all. first[h]: the first
// query of a block `begin` that sees a key, column: this thread's first.
struct Walk { int blocks, skip, clear, column, first[2]; float c; };

DEVICE void weigh(float (&s)[32], const Walk& w, u32 lse, int block) {
    UNROLL for (int j = 0; j < 8; ++j) {
        const float2 two = pair_at(lse + 32 * j + 4 * w.column);
        UNROLL for (int i = 0; i < 4; ++i) s[4 * j + i] = exp2_of(s[4 * j + i] * w.c - (i & 1 ? two.y : two.x));
    }
    if (block < w.clear)
        UNROLL for (int i = 0; i < 32; ++i)
            if (64 * block + w.column + 8 * (i / 4) + (i & 1) < w.first[(i >> 1) & 1]) s[i] = 0;
}

// One head: its steps begin with number `start`.
DEVICE void walk(float (&dk)[D / 2], float (&dv)[D / 2], const Walk& w, Shared at, u32 k, u32 v, int start) {
    float s[32], dp[32];
    u32 p[16], ds[16];
    for (int t = start; t < start + w.skip; ++t) {
        barrier_wait(at.full(t % STAGES), t / STAGES & 1);
        leave(at.free(t % STAGES));
    }
    for (int t = start + w.skip; t < start + w.blocks; ++t) {
        const int stage = t % STAGES;
        barrier_wait(at.full(stage), t / STAGES & 1);
#if LATE
        mma_fence();
        mma_rows<D, 64, 64>(s, k, at.q(stage));
        mma_commit();
        mma_wait<0>();
        hold(s);
        hold(dk);
        if (t > start + w.skip) leave(at.free((t - 1) % STAGES));
        weigh(s, w, at.lse(stage), t - start);
        pack_all<32>(p, s);
        hold(p);
        mma_fence();
        mma_rows<D, 64, 64>(s, v, at.g(stage));
        mma_commit();
        mma_columns<64>(dv, p, at.g(stage));
        mma_commit();
        mma_wait<1>();
        hold(s);
        UNROLL for (int j = 0; j < 8; ++j) {
            const float2 two = pair_at(at.lse(stage) + STAT_BYTES + 32 * j + 4 * w.column);
            UNROLL for (int i = 0; i < 4; ++i)
                s[4 * j + i] = half_of(p[2 * j + i / 2], i & 1) * (s[4 * j + i] - (i & 1 ? two.y : two.x));
        }
        pack_all<32>(ds, s);
        hold(ds);
        mma_fence();
        mma_columns<64>(dk, ds, at.q(stage));
        mma_commit();
        mma_wait<1>();
        hold(dv);
#else
        mma_fence();
        mma_rows<D, 64, 64>(s, k, at.q(stage));
        mma_commit();
        mma_rows<D, 64, 64>(dp, v, at.g(stage));
        mma_commit();
        mma_wait<1>();
        hold(s);
        if (AHEAD && t > start + w.skip) leave(at.free((t - 1) % STAGES));
        weigh(s, w, at.lse(stage), t - start);
        pack_all<32>(p, s);
        hold(p);
        mma_fence();
        mma_columns<64>(dv, p, at.g(stage));
        mma_commit();
        mma_wait<1>();
        hold(dp);
        UNROLL for (int j = 0; j < 8; ++j) {
            const float2 two = pair_at(at.lse(stage) + STAT_BYTES + 32 * j + 4 * w.column);
            UNROLL for (int i = 0; i < 4; ++i) {
                const float weight = UNPACK ? half_of(p[2 * j + i / 2], i & 1) : s[4 * j + i];
                s[4 * j + i] = weight * (dp[4 * j + i] - (i & 1 ? two.y : two.x));
            }
        }
        pack_all<32>(ds, s);
        hold(ds);
        mma_fence();
        mma_columns<64>(dk, ds, at.q(stage));
        mma_commit();
        mma_wait<AHEAD>();
        hold(dv);
#if AHEAD == 0
        hold(dk);
        leave(at.free(stage));
#endif
#endif
    }
    mma_wait<0>();
    hold(dk);
    hold(dv);
    if (AHEAD && w.skip < w.blocks) leave(at.free((start + w.blocks - 1) % STAGES));
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) attention_hopper_keys(
    const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
    const __grid_constant__ TensorMap g, const float* stats, STORAGE* dk_out, STORAGE* dv_out, i64 dk_batch, i64 dk_head,
    i64 dk_row, i64 dv_batch, i64 dv_head, i64 dv_row, int queries, int padded, int keys, int key_heads, int batches,
    int shared_by, int near, float scale) {
    extern __shared__ char memory[];
    const Shared at = {(shared_address(memory) + 1023) & ~1023u};
    const int group = warpgroup(), lane = threadIdx.x & 31, heads = key_heads * shared_by;
    const Place my = place((keys + ROWS - 1) / ROWS, key_heads, batches, near);
    const int first = my.block * ROWS, mine = first + 64 * group, offset = CAUSAL ? keys - queries : keys;  // the longest first
    const int all = (queries + 63) / 64, begin = CAUSAL ? min(all, max(0, first - offset) / 64) : 0, blocks = all - begin;
    if (threadIdx.x == 0) {
        barrier_init(at.k_full(), 1);
        for (int s = 0; s < STAGES; ++s) {
            barrier_init(at.full(s), 1);
            barrier_init(at.free(s), WARPS);
        }
        barriers_ready();
        barrier_expect(at.k_full(), 2 * GROUPS * TILE_BYTES);
        for (int i = 0; i < GROUPS; ++i) {
            copy_tile<64, D>(at.k(i), k, at.k_full(), first + 64 * i, my.head, my.batch);
            copy_tile<64, D>(at.v(i), v, at.k_full(), first + 64 * i, my.head, my.batch);
        }
    }
    __syncthreads();
    if (group == GROUPS) {
        fewer_registers<GROUPS, RESIDENT>();
        const Others o = {begin, blocks, heads, padded, my.batch, my.head * shared_by};
        if (threadIdx.x == 32 * WARPS) fetch(q, g, stats, (i64)heads * batches * padded, at, o, blocks * shared_by);
        return;
    }
    more_registers<GROUPS, RESIDENT>();
    const int row = mine + (threadIdx.x & 127) / 32 * 16 + lane / 4;
    Walk w = {blocks, 0, 0, 2 * (lane & 3), {0, 0}, scale * LOG2_E};
    if (CAUSAL) {
        w.skip = max(0, mine - offset) / 64 - begin;
        w.clear = (max(0, mine + 63 - offset) + 63) / 64 - begin;
        UNROLL for (int h = 0; h < 2; ++h) w.first[h] = row + 8 * h - offset - 64 * begin;
    }
    if (mine >= keys) w.skip = blocks;
    float dk[D / 2], dv[D / 2];
    UNROLL for (int i = 0; i < D / 2; ++i) dk[i] = dv[i] = 0;
    barrier_wait(at.k_full(), 0);
    for (int i = 0; i < shared_by; ++i) walk(dk, dv, w, at, at.k(group), at.v(group), i * blocks);
    write_rows(dk_out + my.batch * dk_batch + my.head * dk_head, dk_row, row, keys, dk, scale, scale);
    write_rows(dv_out + my.batch * dv_batch + my.head * dv_head, dv_row, row, keys, dv, 1.0f, 1.0f);
}
