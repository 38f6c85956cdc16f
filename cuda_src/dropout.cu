// x scale where the word of the element is at most `last`, else 0; forward and backward are the same map. A block of
// Philox words serves four neighbours, so VECTOR is a multiple of 4 and a misaligned array is read number by number.
#include "flat.cuh"
#include "philox.cuh"

// The words are made while the numbers are on their way.
template <bool WHOLE> DEVICE void run(const T* x, T* out, i64 size, const Keys& keys, u64 offset, Real scale, u32 last) {
    Vector xs[BATCH];
    EACH_BATCH(i, e) xs[i] = load_part<WHOLE>(x + e, size - e);
    EACH_BATCH(i, e) {
        Reals v = widen(xs[i]);
        UNROLL for (int quad = 0; quad < VECTOR / 4; ++quad) {
            const Words w = philox(keys, offset + (u64)(e / 4 + quad));
            UNROLL for (int k = 0; k < 4; ++k) {
                Real& element = v.at[4 * quad + k];
                element = w.at[k] <= last ? element * scale : Real(0);
            }
        }
        store_part<WHOLE>(out + e, narrow<T>(v), size - e);
    }
}

extern "C" __global__ void __launch_bounds__(FLAT_THREADS) dropout(
    const T* __restrict__ x, T* __restrict__ out, i64 size, u64 seed, u64 offset, const u64* __restrict__ state,
    Real scale, u32 last, int aligned
) {
    if (state) seed = state[0], offset += state[1];  // a captured step keeps where it stands in device memory
    const Keys keys = keys_of(seed);
    if (aligned && ((i64)blockIdx.x + 1) * FLAT_BLOCK <= size) return run<true>(x, out, size, keys, offset, scale, last);
    if (aligned) return run<false>(x, out, size, keys, offset, scale, last);
    for (i64 e = (i64)blockIdx.x * FLAT_BLOCK + threadIdx.x; e < size && e < ((i64)blockIdx.x + 1) * FLAT_BLOCK; e += FLAT_THREADS) {
        const u32 word = philox(keys, offset + (u64)(e / 4)).at[e & 3];
        narrow(word <= last ? widen(x[e]) * scale : Real(0), out[e]);
    }
}
