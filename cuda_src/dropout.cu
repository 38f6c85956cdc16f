// x scale where the word of the element is at most `last`, else 0; forward and backward are the same map. A block of
// Philox words serves four neighbours, so VECTOR is a multiple of 4 and a misaligned array is read number by number.
#include "flat.cuh"
#include "philox.cuh"

extern "C" __global__ void __launch_bounds__(FLAT_THREADS) dropout(
    const T* __restrict__ x, T* __restrict__ out, i64 size, u64 seed, u64 offset, const u64* __restrict__ state,
    Real scale, u32 last, int aligned
) {
    if (state) seed = state[0], offset += state[1];  // a captured step keeps where it stands in device memory
    EACH_BATCH(i, e) {
        const i64 left = size - e, whole = aligned ? left : 0;
        Vector v = {};
        if (whole >= VECTOR) v = load<VECTOR>(x + e);
        else EACH_OF(k) if (k < left) v.at[k] = x[e + k];
        UNROLL for (int quad = 0; quad < VECTOR / 4; ++quad) {
            const Words w = philox(seed, offset + (u64)(e / 4 + quad));
            UNROLL for (int k = 0; k < 4; ++k) {
                T& element = v.at[4 * quad + k];
                narrow(w.at[k] <= last ? widen(element) * scale : Real(0), element);
            }
        }
        if (whole >= VECTOR) store(out + e, v);
        else EACH_OF(k) if (k < left) out[e + k] = v.at[k];
    }
}
