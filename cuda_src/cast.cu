// One floating type to another, rounded once to nearest.
#include "flat.cuh"

template <bool WHOLE> DEVICE void convert(const T* x, TARGET* out, i64 size) {
    Vector xs[BATCH];
    EACH_BATCH(i, e) xs[i] = load_part<WHOLE>(x + e, size - e);
    EACH_BATCH(i, e) store_part<WHOLE>(out + e, narrow<TARGET>(widen(xs[i])), size - e);
}

extern "C" __global__ void __launch_bounds__(FLAT_THREADS) cast(
    const T* __restrict__ x, TARGET* __restrict__ out, i64 size
) {
    FLAT_RUN(convert, x, out, size);
}
