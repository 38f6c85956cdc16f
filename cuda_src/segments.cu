// Rows added by number: out[keys[p]] gets the sum of rows[places[p]] over the sorted keys, p ascending, in two stages. A tile
// is `piece` neighbouring places of the sorted order: its threads walk through it and write each sum that begins and
// ends there. What goes on over the edge of a tile is a partial sum in FP32, two slots per tile: 0 for what comes from the
// tile before, 1 for what begins here; `segments_finish` adds those in their order. Keys of `size` and more belong to no row.
#include "types.cuh"

typedef STORAGE T;
typedef Wide<T>::type Real;
typedef Pack<T, VECTOR> Vector;

#define BATCH 8
#define EACH_OF(k) UNROLL for (int k = 0; k < VECTOR; ++k)

struct Sums {
    Real at[VECTOR];

    __device__ __forceinline__ void clear() { EACH_OF(k) at[k] = 0; }
    __device__ __forceinline__ void add(const Vector& v) { EACH_OF(k) at[k] += widen(v.at[k]); }
    __device__ __forceinline__ void add(const Real* partial) { EACH_OF(k) at[k] += partial[k]; }
    __device__ __forceinline__ void keep(Real* partial) const { EACH_OF(k) partial[k] = at[k]; }
    // `adding` to what is there, or in its place; rounded once.
    __device__ __forceinline__ void finish(T* out, int adding) const {
        Vector v;
        if (adding) {
            v = load<VECTOR>(out);
            EACH_OF(k) narrow(widen(v.at[k]) + at[k], v.at[k]);
        } else {
            EACH_OF(k) narrow(at[k], v.at[k]);
        }
        store(out, v);
    }
};

// Threads x share the columns, threads y and blocks y the tiles.
extern "C" __global__ void __launch_bounds__(256) segments_sum(
    const T* __restrict__ rows, const u32* __restrict__ keys, T* __restrict__ out, Real* __restrict__ partial, i64 n,
    i64 width, i64 size, int piece, int adding
) {
    const i64 c = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * VECTOR;
    const i64 tile = (i64)blockIdx.y * blockDim.y + threadIdx.y, first = tile * piece;
    if (c >= width || first >= n) return;
    const u32* places = keys + n;
    const i64 end = first + piece, last = end < n ? end : n;
    const u32 before = first ? keys[first - 1] : (u32)size, after = last < n ? keys[last] : (u32)size;
    u32 key = keys[first];
    bool from_before = first && before == key;
    Sums sums;
    sums.clear();
    for (i64 p = first; p < last; p += BATCH) {
        u32 ks[BATCH];
        Vector vs[BATCH];
        UNROLL for (int i = 0; i < BATCH; ++i) if (p + i < last) {
            ks[i] = keys[p + i];
            vs[i] = load<VECTOR>(rows + (i64)places[p + i] * width + c);
        }
        UNROLL for (int i = 0; i < BATCH; ++i) if (p + i < last) {
            if (ks[i] != key) {
                if (from_before) sums.keep(partial + 2 * tile * width + c);
                else if (key < size) sums.finish(out + (i64)key * width + c, adding);
                sums.clear();
                key = ks[i];
                from_before = false;
            }
            sums.add(vs[i]);
        }
    }
    if (key >= size) return;
    if (from_before) sums.keep(partial + 2 * tile * width + c);
    else if (after == key) sums.keep(partial + (2 * tile + 1) * width + c);
    else sums.finish(out + (i64)key * width + c, adding);
}

#define TALL 8
#define CONTINUES(tile) ((tile) * piece + piece < n && keys[(tile) * piece + piece] == key)

// A block of 32 x TALL threads takes the sum that begins in a tile and goes on over its edge: threads y add equal shares of
// its tiles, and then their sums in order.
extern "C" __global__ void __launch_bounds__(32 * TALL) segments_finish(
    const u32* __restrict__ keys, T* __restrict__ out, const Real* __restrict__ partial, i64 n, i64 width, i64 size,
    int piece, int adding
) {
    const i64 tile = blockIdx.y, first = tile * piece;
    if (first + piece >= n) return;
    const u32 key = keys[first + piece - 1];
    if (key >= size || !CONTINUES(tile)) return;
    if (first && keys[first] == key && keys[first - 1] == key) return;  // it began before
    i64 low = tile + 1, high = (n - 1) / piece;  // the tile where it ends is among these
    while (low < high) {
        const i64 middle = (low + high) / 2;
        if (CONTINUES(middle)) low = middle + 1;
        else high = middle;
    }
    const i64 c = ((i64)blockIdx.x * 32 + threadIdx.x) * VECTOR;
    const i64 share = (low - tile + TALL - 1) / TALL, begin = tile + 1 + threadIdx.y * share;
    const i64 stop = begin + share <= low ? begin + share : low + 1;
    Sums sums;
    sums.clear();
    if (c < width) {
        if (threadIdx.y == 0) sums.add(partial + (2 * tile + 1) * width + c);
        _Pragma("unroll 8") for (i64 t = begin; t < stop; ++t) sums.add(partial + 2 * t * width + c);
    }
    __shared__ Real shared[TALL][32 * VECTOR];
    sums.keep(&shared[threadIdx.y][threadIdx.x * VECTOR]);
    __syncthreads();
    if (threadIdx.y || c >= width) return;
    UNROLL for (int y = 1; y < TALL; ++y) sums.add(&shared[y][threadIdx.x * VECTOR]);
    sums.finish(out + (i64)key * width + c, adding);
}
