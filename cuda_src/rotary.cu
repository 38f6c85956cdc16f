// Rotary positions: features i and i + half of position t are turned by an angle whose cosine and sine are tables (T, half);
// what is beyond 2 half passes through. x is (outer, heads, T, D) with any strides but that of D, and out is contiguous.
// `turn` is 1, or -1 for the derivative: the same rotation backwards.
#include "types.cuh"

typedef STORAGE T;
typedef Wide<T>::type Real;
typedef Pack<T, VECTOR> Vector;
typedef Pack<Real, VECTOR> Angles;

#define HEADS 4  // that a thread turns by the angles it has loaded
#define EACH_OF(k) UNROLL for (int k = 0; k < VECTOR; ++k)
#define EACH_HEAD(i) UNROLL for (int i = 0; i < HEADS; ++i) if (head + i < heads)

// Threads x share the vectors of `half` and then those beyond 2 half, threads y and blocks the positions; a block's heads
// and outer index come from its number.
extern "C" __global__ void __launch_bounds__(256) rotary(
    const T* __restrict__ x, const Real* __restrict__ cosines, const Real* __restrict__ sines, T* __restrict__ out,
    i64 outer_stride, i64 head_stride, i64 position_stride, int heads, int length, int width, int half, int blocks, int turn
) {
    const int groups = (heads + HEADS - 1) / HEADS, group = blockIdx.x / blocks;
    const int t = (int)(blockIdx.x % blocks) * blockDim.y + threadIdx.y, head = group % groups * HEADS;
    const i64 outer = group / groups;
    if (t >= length) return;
    const T* from = x + outer * outer_stride + t * position_stride;
    T* to = out + (outer * heads * length + t) * width;
    for (int c = threadIdx.x * VECTOR; c < width - half; c += blockDim.x * VECTOR) {
        if (c >= half) {
            EACH_HEAD(i) store(to + (i64)(head + i) * length * width + c + half, load<VECTOR>(from + (head + i) * head_stride + c + half));
            continue;
        }
        const Angles cosine = load<VECTOR>(cosines + (i64)t * half + c), sine = load<VECTOR>(sines + (i64)t * half + c);
        Vector as[HEADS], bs[HEADS];
        EACH_HEAD(i) {
            as[i] = load<VECTOR>(from + (head + i) * head_stride + c);
            bs[i] = load<VECTOR>(from + (head + i) * head_stride + c + half);
        }
        EACH_HEAD(i) {
            Vector p, q;
            EACH_OF(k) {
                const Real a = widen(as[i].at[k]), b = widen(bs[i].at[k]), s = turn * sine.at[k];
                narrow(a * cosine.at[k] - b * s, p.at[k]);
                narrow(b * cosine.at[k] + a * s, q.at[k]);
            }
            T* row = to + (i64)(head + i) * length * width + c;
            store(row, p);
            store(row + half, q);
        }
    }
}
