#pragma once
// What the kernels of attention on Hopper share: which tiles a block works on, and what a tile of queries sees.
// As many blocks are started as fit, and each walks over its tiles, so that copies for the next begin while one ends.
#include "wgmma.cuh"

enum { WARPS = 4 * GROUPS, THREADS = 32 * WARPS + 128, ROWS = 64 * GROUPS, TILE_BYTES = 64 * D * 2 };

// Of attention with `heads` heads of queries, each `shared_by` of which see the keys of one head. `near` heads are taken
// together, so that what they share stays in the second-level cache.
struct Sizes { int queries, keys, heads, batches, shared_by, near; float scale; };

struct Place { int block, head, batch; };
// Tile number `round` of this block: the long ones come first, and the order turns in every round.
DEVICE int tile_of(int round) {
    return round * gridDim.x + (round & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
}
DEVICE Place place(int tile, int blocks, int heads, int batches, int near) {
    const int all = heads * batches, first = tile / (near * blocks) * near, rest = tile - first * blocks;
    const int many = all - first < near ? all - first : near, pair = first + rest % many;
    return {rest / many, pair % heads, pair / heads};
}

// A tile of queries: its first row, and how many steps over KEYS keys it takes. The last rows, which see most, come first.
struct Queries { int first, head, batch, steps; };
DEVICE int blocks_of(const Sizes& n) { return (n.queries + ROWS - 1) / ROWS; }
DEVICE Queries queries_at(int tile, const Sizes& n) {
    const int blocks = blocks_of(n);
    const Place my = place(tile, blocks, n.heads, n.batches, n.near);
    const int first = (blocks - 1 - my.block) * ROWS, last = min(first + ROWS, n.queries) - 1;
    const int seen = CAUSAL ? min(n.keys, max(0, last + n.keys - n.queries + 1)) : n.keys;
    return {first, my.head, my.batch, (seen + KEYS - 1) / KEYS};
}

// A warpgroup's share of a tile of queries. Steps before `skip` show it nothing; from step `clear` on all rows see all.
// column: this thread's first; last[h]: the last key that its rows see.
struct Walk { int steps, skip, clear, column, last[2]; float c; };
DEVICE Walk walk_of(const Queries& tile, const Sizes& n, int mine, int row) {
    const int offset = n.keys - n.queries;
    const int here = mine >= n.queries ? 0 : CAUSAL ? min(n.keys, max(0, mine + 64 + offset)) : n.keys;
    const int always = CAUSAL ? min(n.keys, max(0, mine + offset + 1)) : n.keys;
    Walk w = {tile.steps, tile.steps - min(tile.steps, (here + KEYS - 1) / KEYS), tile.steps - always / KEYS,
              2 * (int)(threadIdx.x & 3), {0, 0}, n.scale * LOG2_E};
    UNROLL for (int h = 0; h < 2; ++h) w.last[h] = CAUSAL ? min(n.keys - 1, row + 8 * h + offset) : n.keys - 1;
    return w;
}
// This thread's first row in its warpgroup's 64; its second is 8 below.
DEVICE int row_of() { return (threadIdx.x & 127) / 32 * 16 + (threadIdx.x & 31) / 4; }
