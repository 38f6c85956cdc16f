// Attention backward, in two kernels that make the probabilities again from lse and share no sums, so that none is atomic:
//     p = exp(scale q k^T - lse), delta = sum(g out), ds = p (g v^T - delta); dq = scale ds k; dk = scale ds^T q, dv = p^T g.
// Dao et al., "FlashAttention", 2022, appendix B.4. attention_backward_queries comes first, for it makes delta.
#include "attention.cuh"

#define OWN (WARPS * 16 * TILES)  // rows of a block: queries in the first kernel, keys in the second
#define OWN_BYTES (OWN * HEAD * 2)
#define THREADS (WARPS * 32)
#define TILE_BYTES (COLUMNS * HEAD * 2)
#define KEPT (KEEP ? TILES : 1)
#define KEPT_STEPS (KEEP ? HEAD / 16 : 1)

// A warp's rows of `out`, as operand a would have them.
DEVICE void load_rows(u32 (&rows)[TILES][HEAD / 16][4], const STORAGE* out, int stride, int valid, int lane) {
    UNROLL for (int t = 0; t < TILES; ++t)
        UNROLL for (int k = 0; k < HEAD / 16; ++k)
            UNROLL for (int i = 0; i < 4; ++i) {
                const int row = t * 16 + lane / 4 + i % 2 * 8, column = k * 16 + i / 2 * 8 + lane % 4 * 2;
                rows[t][k][i] = row < valid && column < WIDTH ? *reinterpret_cast<const u32*>(out + row * stride + column) : 0;
            }
}
DEVICE float half_of(u32 pair, int which) {
    const STORAGE x = {(unsigned short)(pair >> 16 * which)};
    return widen(x);
}
// sum(g out) of a warp's rows, where g is in shared memory.
DEVICE void make_delta(float (&delta)[TILES][2], Shared g_at, const u32 (&out)[TILES][HEAD / 16][4]) {
    UNROLL for (int t = 0; t < TILES; ++t) {
        delta[t][0] = delta[t][1] = 0;
        UNROLL for (int k = 0; k < HEAD / 16; ++k) {
            u32 g[4];
            load_matrices(g, (g_at ^ (k * 32)) + t * 16 * HEAD * 2);
            UNROLL for (int i = 0; i < 4; ++i)
                UNROLL for (int which = 0; which < 2; ++which)
                    delta[t][i % 2] = fmaf(half_of(g[i], which), half_of(out[t][k][i], which), delta[t][i % 2]);
        }
        UNROLL for (int half = 0; half < 2; ++half) delta[t][half] = quad_sum(delta[t][half]);
    }
}

#ifdef OF_QUERIES
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) attention_backward_queries(
    const STORAGE* g, const STORAGE* q, const STORAGE* k, const STORAGE* v, const STORAGE* out, const float* lse, float* delta,
    STORAGE* dq, Layout g_at, Layout q_at, Layout k_at, Layout v_at, Layout out_at, Layout dq_at, Sizes n, float scale) {
    DYNAMIC_SHARED(memory);
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, offset = n.keys - n.queries;
    const int blocks = (n.queries + OWN - 1) / OWN;
    const Task task = task_of(n, blocks);
    const int first = (CAUSAL ? blocks - 1 - task.block : task.block) * OWN, mine = first + warp * 16 * TILES;
    const int seen = CAUSAL ? min(n.keys, min(first + OWN, n.queries) + offset) : n.keys;
    const int whole = CAUSAL ? min(n.keys, first + offset + 1) : n.keys;
    q += task.batch * q_at.batch + task.head * q_at.head + (i64)first * q_at.row;
    g += task.batch * g_at.batch + task.head * g_at.head + (i64)first * g_at.row;
    k += task.batch * k_at.batch + task.head / n.group * k_at.head;
    v += task.batch * v_at.batch + task.head / n.group * v_at.head;
    out += task.batch * out_at.batch + task.head * out_at.head + (i64)mine * out_at.row;
    lse += (i64)(task.batch * n.heads + task.head) * n.queries;
    delta += (i64)(task.batch * n.heads + task.head) * n.queries;

    const Shared q_tile = shared_address(memory), g_tile = q_tile + OWN_BYTES, k_tile = g_tile + OWN_BYTES;
    const Shared v_tile = k_tile + 2 * TILE_BYTES;
    const u32 rows = warp * 16 * TILES * HEAD * 2, lane_a = lane_of_a<HEAD>(lane), lane_b = lane_of_b<HEAD>(lane);
    copy_tile<OWN, HEAD, WIDTH, THREADS>(q_tile, q, q_at.row, n.queries - first, thread);
    copy_tile<OWN, HEAD, WIDTH, THREADS>(g_tile, g, g_at.row, n.queries - first, thread);
    if (seen > 0) {
        copy_tile<COLUMNS, HEAD, WIDTH, THREADS>(k_tile, k, k_at.row, n.keys, thread);
        copy_tile<COLUMNS, HEAD, WIDTH, THREADS>(v_tile, v, v_at.row, n.keys, thread);
    }
    commit_copies();
    float from[TILES][2], logs[TILES][2], acc[TILES][HEAD / 8][4];
    {
        u32 rows_of_out[TILES][HEAD / 16][4];  // on their way while the copies are
        load_rows(rows_of_out, out, out_at.row, n.queries - mine, lane);
        UNROLL for (int t = 0; t < TILES; ++t)
            UNROLL for (int half = 0; half < 2; ++half) {
                const int row = mine + t * 16 + half * 8 + lane / 4;
                logs[t][half] = row < n.queries ? lse[row] * LOG2_E : INFINITE;
            }
        wait_copies<0>();
        __syncthreads();
        make_delta(from, g_tile + rows + lane_a, rows_of_out);
    }
    UNROLL for (int t = 0; t < TILES; ++t) {
        clear(acc[t]);
        UNROLL for (int half = 0; half < 2; ++half) {
            const int row = mine + t * 16 + half * 8 + lane / 4;
            if (lane % 4 == 0 && row < n.queries) delta[row] = from[t][half];
        }
    }
    if (dq == nullptr) return;
    u32 kept_q[KEPT][KEPT_STEPS][4], kept_g[KEPT][KEPT_STEPS][4];
#if KEEP
    keep_rows<HEAD, TILES>(kept_q, q_tile + rows + lane_a);
    keep_rows<HEAD, TILES>(kept_g, g_tile + rows + lane_a);
#endif
    const float scale2 = scale * LOG2_E;
    int stage = 0;
    for (int key = 0; key < seen; key += COLUMNS, stage ^= 1) {
        if (key > 0) {
            wait_copies<0>();
            __syncthreads();
        }
        const int next = key + COLUMNS;
        if (next < seen) {
            const int to = (stage ^ 1) * TILE_BYTES;
            copy_tile<COLUMNS, HEAD, WIDTH, THREADS>(k_tile + to, k + (i64)next * k_at.row, k_at.row, n.keys - next, thread);
            copy_tile<COLUMNS, HEAD, WIDTH, THREADS>(v_tile + to, v + (i64)next * v_at.row, v_at.row, n.keys - next, thread);
        }
        commit_copies();
        _Pragma("unroll 1") for (int slice = 0; slice < COLUMNS; slice += SLICE) {
            if (CAUSAL && key + slice > mine + 16 * TILES - 1 + offset) break;  // no query of this warp sees these keys
            const u32 here = stage * TILE_BYTES + slice * HEAD * 2;
            float p[TILES][SLICE / 8][4], ds[TILES][SLICE / 8][4];
            UNROLL for (int t = 0; t < TILES; ++t) {
                clear(p[t]);
                clear(ds[t]);
            }
            multiply_rows<STORAGE, HEAD, TILES, SLICE, KEEP>(
                p, kept_q, q_tile + rows + lane_a, k_tile + here + lane_b, Nothing());
            multiply_rows<STORAGE, HEAD, TILES, SLICE, KEEP>(
                ds, kept_g, g_tile + rows + lane_a, v_tile + here + lane_b, [&](int pair) {
                    UNROLL for (int t = 0; t < TILES; ++t)
                        UNROLL for (int i = 0; i < 2; ++i) {
                            float& x = p[t][pair / 2][pair % 2 * 2 + i];
                            x = exp2_quick(fmaf(x, scale2, -logs[t][pair % 2]));
                        }
                });
            if (key + slice + SLICE > whole) {
                UNROLL for (int t = 0; t < TILES; ++t)
                    UNROLL for (int c = 0; c < SLICE / 8; ++c)
                        UNROLL for (int i = 0; i < 4; ++i) {
                            const int column = key + slice + c * 8 + lane % 4 * 2 + i % 2;
                            const int row = mine + t * 16 + lane / 4 + i / 2 * 8;
                            if (column >= n.keys || (CAUSAL && column > row + offset)) p[t][c][i] = 0;
                        }
            }
            auto differ = [&](int pair) {
                if (pair >= SLICE / 4) return;
                UNROLL for (int t = 0; t < TILES; ++t)
                    UNROLL for (int i = 0; i < 2; ++i) {
                        const int at = pair % 2 * 2 + i;
                        ds[t][pair / 2][at] = p[t][pair / 2][at] * (ds[t][pair / 2][at] - from[t][pair % 2]);
                    }
            };
            UNROLL for (int pair = 0; pair < 4; ++pair) differ(pair);
            multiply_sums<STORAGE, HEAD, TILES, SLICE>(acc, ds, k_tile + here + lane_a, [&](int pair) { differ(pair + 4); });
        }
    }
    UNROLL for (int t = 0; t < TILES; ++t)
        UNROLL for (int c = 0; c < HEAD / 8; ++c)
            UNROLL for (int i = 0; i < 4; ++i) acc[t][c][i] *= scale;
    dq += task.batch * dq_at.batch + task.head * dq_at.head + (i64)mine * dq_at.row;
    if (mine < n.queries) store_rows<STORAGE, HEAD, WIDTH, TILES>(acc, memory + rows, dq, dq_at.row, n.queries - mine, lane);
}
#else
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) attention_backward_keys(
    const STORAGE* g, const STORAGE* q, const STORAGE* k, const STORAGE* v, const float* lse, const float* delta, STORAGE* dk,
    STORAGE* dv, Layout g_at, Layout q_at, Layout k_at, Layout v_at, Layout dk_at, Layout dv_at, Sizes n, float scale) {
    DYNAMIC_SHARED(memory);
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, offset = n.keys - n.queries;
    const Task task = task_of(n, (n.keys + OWN - 1) / OWN);  // n.heads: of keys
    const int first = task.block * OWN, mine = first + warp * 16 * TILES;
    const int begin = CAUSAL ? max(0, first - offset) / COLUMNS * COLUMNS : 0;  // the first query that sees a key of the block
    const int steps = begin < n.queries ? (n.queries - begin + COLUMNS - 1) / COLUMNS : 0;
    g += task.batch * g_at.batch + task.head * n.group * g_at.head;
    q += task.batch * q_at.batch + task.head * n.group * q_at.head;
    k += task.batch * k_at.batch + task.head * k_at.head + (i64)first * k_at.row;
    v += task.batch * v_at.batch + task.head * v_at.head + (i64)first * v_at.row;
    lse += (i64)(task.batch * n.heads + task.head) * n.group * n.queries;
    delta += (i64)(task.batch * n.heads + task.head) * n.group * n.queries;

    const Shared k_tile = shared_address(memory), v_tile = k_tile + OWN_BYTES, q_tile = v_tile + OWN_BYTES;
    const Shared g_tile = q_tile + 2 * TILE_BYTES, logs_at = g_tile + 2 * TILE_BYTES, deltas_at = logs_at + 2 * COLUMNS * 4;
    const float* logs = reinterpret_cast<float*>(memory + (logs_at - k_tile));
    const float* deltas = reinterpret_cast<float*>(memory + (deltas_at - k_tile));
    const u32 rows = warp * 16 * TILES * HEAD * 2, lane_a = lane_of_a<HEAD>(lane), lane_b = lane_of_b<HEAD>(lane);
    // Begin to copy the queries from `query` on to a stage.
    auto fetch = [&](int query, int stage) {
        const int valid = n.queries - query, to = stage * TILE_BYTES;
        copy_tile<COLUMNS, HEAD, WIDTH, THREADS>(q_tile + to, q + (i64)query * q_at.row, q_at.row, valid, thread);
        copy_tile<COLUMNS, HEAD, WIDTH, THREADS>(g_tile + to, g + (i64)query * g_at.row, g_at.row, valid, thread);
        for (int i = thread; i < 2 * COLUMNS; i += THREADS) {
            const int row = i % COLUMNS;
            const Shared place = (i < COLUMNS ? logs_at : deltas_at) + (stage * COLUMNS + row) * 4;
            copy4_if(row < valid, place, (i < COLUMNS ? lse : delta) + query + (row < valid ? row : 0));
        }
    };
    copy_tile<OWN, HEAD, WIDTH, THREADS>(k_tile, k, k_at.row, n.keys - first, thread);
    copy_tile<OWN, HEAD, WIDTH, THREADS>(v_tile, v, v_at.row, n.keys - first, thread);
    if (steps) fetch(begin, 0);
    commit_copies();
    float sum_k[TILES][HEAD / 8][4], sum_v[TILES][HEAD / 8][4];
    UNROLL for (int t = 0; t < TILES; ++t) {
        clear(sum_k[t]);
        clear(sum_v[t]);
    }
    u32 kept_k[KEPT][KEPT_STEPS][4], kept_v[KEPT][KEPT_STEPS][4];
    wait_copies<0>();
    __syncthreads();
#if KEEP
    keep_rows<HEAD, TILES>(kept_k, k_tile + rows + lane_a);
    keep_rows<HEAD, TILES>(kept_v, v_tile + rows + lane_a);
#endif
    const float scale2 = scale * LOG2_E;
    int head = 0, query = begin, stage = 0;
    for (int step = 0; step < steps * n.group; ++step, stage ^= 1) {
        if (step > 0) {
            wait_copies<0>();
            __syncthreads();
        }
        const int now = query;
        query += COLUMNS;
        if (query >= n.queries) {
            query = begin;
            ++head;
            q += q_at.head;
            g += g_at.head;
            lse += n.queries;
            delta += n.queries;
        }
        if (head < n.group) fetch(query, stage ^ 1);
        commit_copies();
        _Pragma("unroll 1") for (int slice = 0; slice < COLUMNS; slice += SLICE) {
            if (CAUSAL && now + slice + SLICE - 1 + offset < mine) continue;  // none of these queries sees a key of this warp
            const u32 here = stage * TILE_BYTES + slice * HEAD * 2;
            float p[TILES][SLICE / 8][4], ds[TILES][SLICE / 8][4];  // [key][query]
            UNROLL for (int t = 0; t < TILES; ++t) {
                clear(p[t]);
                clear(ds[t]);
            }
            multiply_rows<STORAGE, HEAD, TILES, SLICE, KEEP>(
                p, kept_k, k_tile + rows + lane_a, q_tile + here + lane_b, Nothing());
            const int column = stage * COLUMNS + slice + lane % 4 * 2;
            multiply_rows<STORAGE, HEAD, TILES, SLICE, KEEP>(
                ds, kept_v, v_tile + rows + lane_a, g_tile + here + lane_b, [&](int pair) {
                    UNROLL for (int i = 0; i < 2; ++i) {
                        const float log = logs[column + pair / 2 * 8 + i] * LOG2_E;
                        UNROLL for (int t = 0; t < TILES; ++t) {
                            float& x = p[t][pair / 2][pair % 2 * 2 + i];
                            x = exp2_quick(fmaf(x, scale2, -log));
                        }
                    }
                });
            if (CAUSAL && now + slice + offset < mine + 16 * TILES - 1) {
                UNROLL for (int t = 0; t < TILES; ++t)
                    UNROLL for (int c = 0; c < SLICE / 8; ++c)
                        UNROLL for (int i = 0; i < 4; ++i) {
                            const int row = mine + t * 16 + lane / 4 + i / 2 * 8;
                            const int seer = now + slice + c * 8 + lane % 4 * 2 + i % 2;
                            if (row > seer + offset) p[t][c][i] = 0;
                        }
            }
            multiply_sums<STORAGE, HEAD, TILES, SLICE>(sum_v, p, g_tile + here + lane_a, [&](int pair) {
                UNROLL for (int i = 0; i < 2; ++i) {
                    const float from = deltas[column + pair / 2 * 8 + i];
                    UNROLL for (int t = 0; t < TILES; ++t) {
                        const int at = pair % 2 * 2 + i;
                        ds[t][pair / 2][at] = p[t][pair / 2][at] * (ds[t][pair / 2][at] - from);
                    }
                }
            });
            multiply_sums<STORAGE, HEAD, TILES, SLICE>(sum_k, ds, q_tile + here + lane_a, Nothing());
        }
    }
    UNROLL for (int t = 0; t < TILES; ++t)
        UNROLL for (int c = 0; c < HEAD / 8; ++c)
            UNROLL for (int i = 0; i < 4; ++i) sum_k[t][c][i] *= scale;
    if (mine >= n.keys) return;
    if (dk != nullptr) {
        dk += task.batch * dk_at.batch + task.head * dk_at.head + (i64)mine * dk_at.row;
        store_rows<STORAGE, HEAD, WIDTH, TILES>(sum_k, memory + rows, dk, dk_at.row, n.keys - mine, lane);
    }
    if (dv != nullptr) {
        dv += task.batch * dv_at.batch + task.head * dv_at.head + (i64)mine * dv_at.row;
        store_rows<STORAGE, HEAD, WIDTH, TILES>(sum_v, memory + OWN_BYTES + rows, dv, dv_at.row, n.keys - mine, lane);
    }
}
#endif
