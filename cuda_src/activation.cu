// relu, gelu by tanh, gelu by erf, silu (KIND), without a bias; columns.cu has those with one.
#include "flat.cuh"

template <bool WHOLE> DEVICE void forward(const T* x, T* out, i64 size) {
    Vector xs[BATCH];
    EACH_BATCH(i, e) xs[i] = load_part<WHOLE>(x + e, size - e);
    EACH_BATCH(i, e) {
        Reals y = widen(xs[i]);
        EACH_OF(k) y.at[k] = activate<KIND, T>(y.at[k]);
        store_part<WHOLE>(out + e, narrow<T>(y), size - e);
    }
}

template <bool WHOLE> DEVICE void backward(const T* g, const T* x, T* dx, i64 size) {
    Vector gs[BATCH], xs[BATCH];
    EACH_BATCH(i, e) {
        gs[i] = load_part<WHOLE>(g + e, size - e);
        xs[i] = load_part<WHOLE>(x + e, size - e);
    }
    EACH_BATCH(i, e) {
        const Reals incoming = widen(gs[i]), at = widen(xs[i]);
        Reals d;
        EACH_OF(k) d.at[k] = pull<KIND, T>(incoming.at[k], at.at[k]);
        store_part<WHOLE>(dx + e, narrow<T>(d), size - e);
    }
}

extern "C" __global__ void __launch_bounds__(FLAT_THREADS) activation_forward(
    const T* __restrict__ x, T* __restrict__ out, i64 size
) {
    FLAT_RUN(forward, x, out, size);
}

extern "C" __global__ void __launch_bounds__(FLAT_THREADS) activation_backward(
    const T* __restrict__ g, const T* __restrict__ x, T* __restrict__ dx, i64 size
) {
    FLAT_RUN(backward, g, x, dx, size);
}
