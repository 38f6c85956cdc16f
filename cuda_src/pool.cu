// The largest number or the mean of each window of images, and their derivatives. The winner of a window is the number of its tap,
// i KW + j, one byte: the first of equal ones in row-major order; a NaN wins. Window, stride, dilation and padding are compiled
// in, and for means whether padding counts (INCLUDE).
#include "math.cuh"

typedef STORAGE T;
typedef Wide<T>::type Real;

#define FLAT_THREADS 256
#define NOBODY 255
#ifndef INCLUDE
#define INCLUDE 1
#endif

// A thread per window.
extern "C" __global__ void __launch_bounds__(FLAT_THREADS) max_pool_forward(
    const T* __restrict__ x, T* __restrict__ out, unsigned char* __restrict__ taps, u32 threads, int height, int width,
    int down, int across
) {
    const u32 id = blockIdx.x * FLAT_THREADS + threadIdx.x;
    if (id >= threads) return;
    const u32 line = id / across, v = id % across, plane = line / down, u = line % down;
    const T* const from = x + (i64)plane * height * width;
    int winner = NOBODY;
    Real top = 0;
    T kept;
    UNROLL for (int i = 0; i < KH; ++i) {
        const int h = (int)u * SH + i * DH - PH;
        if ((u32)h >= (u32)height) continue;
        UNROLL for (int j = 0; j < KW; ++j) {
            const int w = (int)v * SW + j * DW - PW;
            if ((u32)w >= (u32)width) continue;
            const T stored = from[(i64)h * width + w];
            const Real value = widen(stored);
            if (winner == NOBODY || value > top || (value != value && top == top)) {
                winner = i * KW + j;
                top = value;
                kept = stored;
            }
        }
    }
    if (winner == NOBODY) narrow(-Real(INFINITE), kept);
    out[id] = kept;
    taps[id] = (unsigned char)winner;
}

// dx: each number sees the windows that it lies in, and takes the gradient of those that it won. A thread has VECTOR neighbours.
extern "C" __global__ void __launch_bounds__(FLAT_THREADS) max_pool_backward(
    const T* __restrict__ g, const unsigned char* __restrict__ taps, T* __restrict__ dx, u32 threads, int height, int width,
    int down, int across
) {
    const u32 id = blockIdx.x * FLAT_THREADS + threadIdx.x;
    if (id >= threads) return;
    const u32 steps = width / VECTOR, line = id / steps, step = id % steps, plane = line / height, h = line % height;
    const i64 from = (i64)plane * down * across;
    Values<Real, VECTOR> sums = {};
    UNROLL for (int i = 0; i < KH; ++i) {
        const int a = (int)h + PH - i * DH;  // SH u
        if (a < 0 || a % SH || a / SH >= down) continue;
        const i64 row = from + (i64)(a / SH) * across;
        UNROLL for (int j = 0; j < KW; ++j) {
            UNROLL for (int k = 0; k < VECTOR; ++k) {
                const int b = (int)step * VECTOR + k + PW - j * DW;  // SW v
                if (b >= 0 && b % SW == 0 && b / SW < across && taps[row + b / SW] == i * KW + j)
                    sums.at[k] += widen(g[row + b / SW]);
            }
        }
    }
    store(dx + (i64)id * VECTOR, narrow<T>(sums));
}

// How many numbers a window that begins at `start` averages over along an axis.
DEVICE int covered(int start, int kernel, int size, int low) {
    const int stop = start + kernel;
    return INCLUDE ? min(stop, size + low) - start : min(stop, size) - max(start, 0);
}

// A thread per window.
extern "C" __global__ void __launch_bounds__(FLAT_THREADS) avg_pool_forward(
    const T* __restrict__ x, T* __restrict__ out, u32 threads, int height, int width, int down, int across
) {
    const u32 id = blockIdx.x * FLAT_THREADS + threadIdx.x;
    if (id >= threads) return;
    const u32 line = id / across, plane = line / down;
    const int top = (int)(line % down) * SH - PH, left = (int)(id % across) * SW - PW;
    const T* const from = x + (i64)plane * height * width;
    Real sum = 0;
    UNROLL for (int i = 0; i < KH; ++i)
        UNROLL for (int j = 0; j < KW; ++j)
            if ((u32)(top + i) < (u32)height && (u32)(left + j) < (u32)width) sum += widen(from[(i64)(top + i) * width + left + j]);
    narrow(sum / Real(covered(top, KH, height, PH) * covered(left, KW, width, PW)), out[id]);
}

// A thread has VECTOR neighbours of dx.
extern "C" __global__ void __launch_bounds__(FLAT_THREADS) avg_pool_backward(
    const T* __restrict__ g, T* __restrict__ dx, u32 threads, int height, int width, int down, int across
) {
    const u32 id = blockIdx.x * FLAT_THREADS + threadIdx.x;
    if (id >= threads) return;
    const u32 steps = width / VECTOR, line = id / steps, step = id % steps, plane = line / height, h = line % height;
    const i64 from = (i64)plane * down * across;
    Values<Real, VECTOR> sums = {};
    UNROLL for (int i = 0; i < KH; ++i) {
        const int a = (int)h + PH - i;  // SH u
        if (a < 0 || a % SH || a / SH >= down) continue;
        const i64 row = from + (i64)(a / SH) * across;
        const int rows = covered(a - PH, KH, height, PH);
        UNROLL for (int j = 0; j < KW; ++j) {
            UNROLL for (int k = 0; k < VECTOR; ++k) {
                const int b = (int)step * VECTOR + k + PW - j;  // SW v
                if (b >= 0 && b % SW == 0 && b / SW < across)
                    sums.at[k] += widen(g[row + b / SW]) / Real(rows * covered(b - PW, KW, width, PW));
            }
        }
    }
    store(dx + (i64)id * VECTOR, narrow<T>(sums));
}
