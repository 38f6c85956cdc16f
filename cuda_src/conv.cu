// Convolutions as matrix products: images laid out as matrices whose rows are shifted copies of a channel (row c KH KW + i KW + j
// for the tap (i, j) of channel c), and such matrices added up into images. Kernel, stride and dilation are compiled in.
#include "types.cuh"

typedef STORAGE T;
typedef SOURCE S;
typedef Wide<T>::type Real;
typedef Pack<T, VECTOR> Vector;

#define FLAT_THREADS 256
#define TAPS (KH * KW)
#define EACH_OF(k) UNROLL for (int k = 0; k < VECTOR; ++k)
#define EACH_TAP(i, j)               \
    UNROLL for (int i = 0; i < KH; ++i) \
        UNROLL for (int j = 0; j < KW; ++j)

// columns[n, c, i, j, u, v] = x[n, c, u SH + i DH - top, v SW + j DW - left], or 0 outside. From one image to the next it is
// `image` numbers in the result, from one row of the matrix to the next `row`. A thread has VECTOR neighbours along v.
extern "C" __global__ void __launch_bounds__(FLAT_THREADS) conv_columns(
    const T* __restrict__ x, T* __restrict__ columns, i64 image, i64 row, u32 threads, int channels, int height, int width,
    int down, int across, int top, int left
) {
    const u32 id = blockIdx.x * FLAT_THREADS + threadIdx.x;
    if (id >= threads) return;
    const u32 steps = across / VECTOR, line = id / steps, v = id % steps * VECTOR, plane = line / down, u = line % down;
    const u32 n = plane / channels, c = plane % channels;
    const T* const from = x + (i64)plane * height * width;
    T* to = columns + n * image + (i64)c * TAPS * row + (i64)u * across + v;
    UNROLL for (int i = 0; i < KH; ++i) {
        const int h = (int)u * SH + i * DH - top;
        const bool inside = (u32)h < (u32)height;
        const T* const at = from + (i64)(inside ? h : 0) * width;
        UNROLL for (int j = 0; j < KW; ++j) {
            Vector out = {};
            EACH_OF(k) {
                const int w = ((int)v + k) * SW + j * DW - left;
                if (inside && (u32)w < (u32)width) out.at[k] = at[w];
            }
            store(to, out);
            to += row;
        }
    }
}

// Its adjoint: x[n, c, h, w] = bias[c] + the sum of the numbers of columns (n, c, i, j, u, v) that were copied from there, in
// the order of the taps. A thread has one number; no bias is a null pointer.
extern "C" __global__ void __launch_bounds__(FLAT_THREADS) conv_images(
    const S* __restrict__ columns, const T* __restrict__ bias, T* __restrict__ x, u32 threads, int channels, int height,
    int width, int down, int across, int top, int left
) {
    const u32 id = blockIdx.x * FLAT_THREADS + threadIdx.x;
    if (id >= threads) return;
    const u32 line = id / width, w = id % width, plane = line / height, h = line % height, area = down * across;
    const S* const from = columns + (i64)plane * TAPS * area;
    Real sum = bias ? widen(bias[plane % channels]) : Real(0);
    EACH_TAP(i, j) {
        const int a = (int)h + top - i * DH, b = (int)w + left - j * DW;  // SH u and SW v
        if (a >= 0 && b >= 0 && a % SH == 0 && b % SW == 0 && a / SH < down && b / SW < across)
            sum += widen(from[(i64)(i * KW + j) * area + (a / SH) * across + b / SW]);
    }
    narrow(sum, x[id]);
}

// out[n, o, p] = from[n, o, p] + bias[o], rounded once; out may be `from`. A thread has VECTOR neighbours of an area.
extern "C" __global__ void __launch_bounds__(FLAT_THREADS) conv_bias(
    const S* from, const T* __restrict__ bias, T* out, u32 threads, u32 steps, int channels
) {
    const u32 id = blockIdx.x * FLAT_THREADS + threadIdx.x;
    if (id >= threads) return;
    const Real b = widen(bias[id / steps % channels]);
    Values<Real, VECTOR> y = widen(load<VECTOR>(from + (i64)id * VECTOR));
    EACH_OF(k) y.at[k] += b;
    store(out + (i64)id * VECTOR, narrow<T>(y));
}
