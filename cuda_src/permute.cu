// A copy in row-major order of an array that has other strides: numbers are WIDTH bytes, whatever they mean. Up to AXES
// outer axes are walked by index; strides and sizes are in numbers.
#include "types.cuh"

template <int BYTES> struct Number;
template <> struct Number<1> { typedef unsigned char type; };
template <> struct Number<2> { typedef unsigned short type; };
template <> struct Number<4> { typedef u32 type; };
template <> struct Number<8> { typedef u64 type; };
typedef Number<WIDTH>::type T;

struct Outer {
    i64 from[4], to[4];
    u32 size[4];
};

// Where the outer index `at` begins, in what is read and in what is written.
DEVICE void locate(const Outer& outer, u32 at, i64& from, i64& to) {
    from = to = 0;
    UNROLL for (int k = AXES - 1; k >= 0; --k) {
        const u32 next = at / outer.size[k], index = at - next * outer.size[k];
        from += index * outer.from[k];
        to += index * outer.to[k];
        at = next;
    }
}

#if TILED
// The last axis is read with a stride, and the axis `along` without: tiles of both go through shared memory. PAIRS 1: two
// halves at a time, four of which a thread turns over in its registers.
#define SIDE (PAIRS ? 64 : 32)
#if PAIRS
typedef u32 Cell;
#else
typedef T Cell;
#endif

extern "C" __global__ void __launch_bounds__(256) permute_tiles(
    const T* __restrict__ x, T* __restrict__ out, const Outer outer, u32 along, u32 last, i64 stride, i64 pitch
) {
    __shared__ Cell tile[SIDE][33];
    const u32 across = (along + SIDE - 1) / SIDE, down = (last + SIDE - 1) / SIDE, lane = threadIdx.x, warp = threadIdx.y;
    const u32 batch = blockIdx.x / (across * down), cell = blockIdx.x - batch * across * down;
    const u32 a0 = cell % across * SIDE, l0 = cell / across * SIDE;
    i64 from, to;
    locate(outer, batch, from, to);
    x += from + a0;
    out += to + l0;
#if PAIRS
    u32 even[4], odd[4];
    UNROLL for (int k = 0; k < 4; ++k) {
        const u32 l = 2 * (warp + 8 * k);
        if (a0 + 2 * lane < along && l0 + l < last) {
            even[k] = *(const u32*)(x + (l0 + l) * stride + 2 * lane);
            odd[k] = *(const u32*)(x + (l0 + l + 1) * stride + 2 * lane);
        }
    }
    UNROLL for (int k = 0; k < 4; ++k) {
        tile[2 * lane][warp + 8 * k] = (even[k] & 0xffffu) | odd[k] << 16;
        tile[2 * lane + 1][warp + 8 * k] = even[k] >> 16 | (odd[k] & 0xffff0000u);
    }
    __syncthreads();
    UNROLL for (int k = 0; k < 8; ++k) {
        const u32 a = warp + 8 * k;
        if (a0 + a < along && l0 + 2 * lane < last) *(u32*)(out + (a0 + a) * pitch + 2 * lane) = tile[a][lane];
    }
#else
    T value[4];
    UNROLL for (int k = 0; k < 4; ++k) {
        const u32 l = warp + 8 * k;
        if (a0 + lane < along && l0 + l < last) value[k] = x[(l0 + l) * stride + lane];
    }
    UNROLL for (int k = 0; k < 4; ++k) tile[lane][warp + 8 * k] = value[k];
    __syncthreads();
    UNROLL for (int k = 0; k < 4; ++k) {
        const u32 a = warp + 8 * k;
        if (a0 + a < along && l0 + lane < last) out[(a0 + a) * pitch + lane] = tile[a][lane];
    }
#endif
}
#else
// The last axis lies without gaps: `vectors` packs of VECTOR numbers per row.
extern "C" __global__ void __launch_bounds__(256) permute_rows(
    const T* __restrict__ x, T* __restrict__ out, const Outer outer, u32 vectors, u32 total
) {
    Pack<T, VECTOR> v[BATCH];
    UNROLL for (int i = 0; i < BATCH; ++i) {
        const u32 e = (blockIdx.x * BATCH + i) * 256 + threadIdx.x;
        if (e < total) {
            const u32 row = e / vectors;
            i64 from, to;
            locate(outer, row, from, to);
            v[i] = load<VECTOR>(x + from + (i64)(e - row * vectors) * VECTOR);
        }
    }
    UNROLL for (int i = 0; i < BATCH; ++i) {
        const u32 e = (blockIdx.x * BATCH + i) * 256 + threadIdx.x;
        if (e < total) store(out + (i64)e * VECTOR, v[i]);
    }
}
#endif
