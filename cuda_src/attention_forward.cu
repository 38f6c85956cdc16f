// Attention forward, flash style: out = softmax(scale q k^T) v for heads of WIDTH numbers, in tiles of HEAD with zeros
// beyond; lse = log sum exp per query.
// STORAGE: Half or Bfloat. A block of WARPS warps has 16 TILES queries per warp and walks over COLUMNS keys at a time, two
// stages of which are in shared memory. Scores stay in registers; the largest so far and the sum of exponentials follow Milakov
// and Gimelshein, "Online normalizer calculation for softmax", 2018, and Dao, "FlashAttention-2", 2023.
#include "attention.cuh"

#define QUERIES (WARPS * 16 * TILES)
#define THREADS (WARPS * 32)
#define TILE_BYTES (COLUMNS * HEAD * 2)
#define KEPT (KEEP ? TILES : 1)
#define KEPT_STEPS (KEEP ? HEAD / 16 : 1)

#define SLACK 8.0f  // exponentials may grow to 2^SLACK before the shift follows the largest score

// Raise the shifts (in powers of 2, -inf so far: none) to the largest scores of each row where one is beyond the slack, and
// rescale what was summed with the old ones. Mostly none is, and then the warp is done after one vote.
DEVICE void follow(const float (&s)[TILES][COLUMNS / 8][4], float (&out)[TILES][HEAD / 8][4], float (&shift)[TILES][2],
                   float (&sums)[TILES][2], float scale) {
    float most[TILES][2];
    bool beyond = false;
    UNROLL for (int t = 0; t < TILES; ++t)
        UNROLL for (int half = 0; half < 2; ++half) {
            float a = s[t][0][2 * half], b = s[t][0][2 * half + 1];
            UNROLL for (int n = 1; n < COLUMNS / 8; ++n) {
                a = fmaxf(a, s[t][n][2 * half]);
                b = fmaxf(b, s[t][n][2 * half + 1]);
            }
            most[t][half] = fmaxf(a, b) * scale;
            beyond |= most[t][half] > shift[t][half] + SLACK;
        }
    if (!__any_sync(0xffffffff, beyond)) return;
    UNROLL for (int t = 0; t < TILES; ++t)
        UNROLL for (int half = 0; half < 2; ++half) {
            const float to = fmaxf(quad_max(most[t][half]), shift[t][half]);
            const float factor = shift[t][half] > -INFINITE ? exp2_quick(shift[t][half] - to) : 0.0f;
            shift[t][half] = to;
            sums[t][half] *= factor;
            UNROLL for (int n = 0; n < HEAD / 8; ++n) {
                out[t][n][2 * half] *= factor;
                out[t][n][2 * half + 1] *= factor;
            }
        }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) attention_forward(
    const STORAGE* q, const STORAGE* k, const STORAGE* v, STORAGE* out, float* lse, Layout q_at, Layout k_at, Layout v_at,
    Layout out_at, Sizes n, float scale) {
    DYNAMIC_SHARED(memory);
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, offset = n.keys - n.queries;
    const int blocks = (n.queries + QUERIES - 1) / QUERIES;
    const Task task = task_of(n, blocks);
    const int first = (CAUSAL ? blocks - 1 - task.block : task.block) * QUERIES, mine = first + warp * 16 * TILES;
    const int seen = CAUSAL ? min(n.keys, min(first + QUERIES, n.queries) + offset) : n.keys;  // by the block's last query
    const int whole = CAUSAL ? min(n.keys, first + offset + 1) : n.keys;                       // by its first
    q += task.batch * q_at.batch + task.head * q_at.head + (i64)first * q_at.row;
    k += task.batch * k_at.batch + task.head / n.group * k_at.head;
    v += task.batch * v_at.batch + task.head / n.group * v_at.head;
    out += task.batch * out_at.batch + task.head * out_at.head + (i64)mine * out_at.row;
    lse += (i64)(task.batch * n.heads + task.head) * n.queries;

    const Shared q_tile = shared_address(memory), k_tile = q_tile + QUERIES * HEAD * 2, v_tile = k_tile + 2 * TILE_BYTES;
    const Shared a_at = q_tile + warp * 16 * TILES * HEAD * 2 + lane_of_a<HEAD>(lane);
    float sums[TILES][2], shift[TILES][2], acc[TILES][HEAD / 8][4];
    UNROLL for (int t = 0; t < TILES; ++t) {
        clear(acc[t]);
        sums[t][0] = sums[t][1] = 0;
        shift[t][0] = shift[t][1] = -INFINITE;
    }
    if (seen > 0) {
        copy_tile<QUERIES, HEAD, WIDTH, THREADS>(q_tile, q, q_at.row, n.queries - first, thread);
        copy_tile<COLUMNS, HEAD, WIDTH, THREADS>(k_tile, k, k_at.row, n.keys, thread);
        copy_tile<COLUMNS, HEAD, WIDTH, THREADS>(v_tile, v, v_at.row, n.keys, thread);
    }
    commit_copies();
    u32 kept[KEPT][KEPT_STEPS][4];
    const float scale2 = scale * LOG2_E;
    int stage = 0;
    for (int key = 0; key < seen; key += COLUMNS, stage ^= 1) {
        wait_copies<0>();
        __syncthreads();
        const int next = key + COLUMNS;
        if (next < seen) {
            const int to = (stage ^ 1) * TILE_BYTES;
            copy_tile<COLUMNS, HEAD, WIDTH, THREADS>(k_tile + to, k + (i64)next * k_at.row, k_at.row, n.keys - next, thread);
            copy_tile<COLUMNS, HEAD, WIDTH, THREADS>(v_tile + to, v + (i64)next * v_at.row, v_at.row, n.keys - next, thread);
        }
        commit_copies();
#if KEEP
        if (key == 0) keep_rows<HEAD, TILES>(kept, a_at);
#endif
        if (CAUSAL && key > mine + 16 * TILES - 1 + offset) continue;  // no query of this warp sees these keys
        float s[TILES][COLUMNS / 8][4];
        UNROLL for (int t = 0; t < TILES; ++t) clear(s[t]);
        const u32 here = stage * TILE_BYTES;
        multiply_rows<STORAGE, HEAD, TILES, COLUMNS, KEEP>(s, kept, a_at, k_tile + here + lane_of_b<HEAD>(lane), Nothing());
        if (next > whole) {
            UNROLL for (int t = 0; t < TILES; ++t)
                UNROLL for (int c = 0; c < COLUMNS / 8; ++c)
                    UNROLL for (int i = 0; i < 4; ++i) {
                        const int column = key + c * 8 + lane % 4 * 2 + i % 2, row = mine + t * 16 + lane / 4 + i / 2 * 8;
                        if (column >= n.keys || (CAUSAL && column > row + offset)) s[t][c][i] = -INFINITE;
                    }
        }
        float base[TILES][2];
        follow(s, acc, shift, sums, scale2);
        UNROLL for (int t = 0; t < TILES; ++t)
            UNROLL for (int half = 0; half < 2; ++half) base[t][half] = shift[t][half] == -INFINITE ? 0.0f : shift[t][half];
        auto soften = [&](int pair) {
            if (pair >= COLUMNS / 4) return;
            UNROLL for (int t = 0; t < TILES; ++t)
                UNROLL for (int i = 0; i < 2; ++i) {
                    float& x = s[t][pair / 2][pair % 2 * 2 + i];
                    x = exp2_quick(fmaf(x, scale2, -base[t][pair % 2]));
                    sums[t][pair % 2] += x;
                }
        };
        UNROLL for (int pair = 0; pair < 4; ++pair) soften(pair);
        multiply_sums<STORAGE, HEAD, TILES, COLUMNS>(
            acc, s, v_tile + here + lane_of_a<HEAD>(lane), [&](int pair) { soften(pair + 4); });
    }
    UNROLL for (int t = 0; t < TILES; ++t)
        UNROLL for (int half = 0; half < 2; ++half) {
            const float sum = quad_sum(sums[t][half]), inverse = sum == 0 ? 0.0f : 1 / sum;
            const int row = mine + t * 16 + half * 8 + lane / 4;
            if (lane % 4 == 0 && row < n.queries) lse[row] = sum == 0 ? INFINITE : shift[t][half] * LOG_2 + logf(sum);
            UNROLL for (int c = 0; c < HEAD / 8; ++c) {
                acc[t][c][2 * half] *= inverse;
                acc[t][c][2 * half + 1] *= inverse;
            }
        }
    unsigned char* const own = memory + warp * 16 * TILES * HEAD * 2;
    if (mine < n.queries) store_rows<STORAGE, HEAD, WIDTH, TILES>(acc, own, out, out_at.row, n.queries - mine, lane);
}
