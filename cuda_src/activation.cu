// relu, gelu by tanh, gelu by erf, silu (KIND), without a bias; columns.cu has those with one.
#include "flat.cuh"

extern "C" __global__ void __launch_bounds__(FLAT_THREADS) activation_forward(
    const T* __restrict__ x, T* __restrict__ out, i64 size
) {
    Vector xs[BATCH];
    EACH_BATCH(i, e) xs[i] = load_part(x + e, size - e);
    EACH_BATCH(i, e) {
        Vector y;
        EACH_OF(k) narrow(activate<KIND, T>(widen(xs[i].at[k])), y.at[k]);
        store_part(out + e, y, size - e);
    }
}

extern "C" __global__ void __launch_bounds__(FLAT_THREADS) activation_backward(
    const T* __restrict__ g, const T* __restrict__ x, T* __restrict__ dx, i64 size
) {
    Vector gs[BATCH], xs[BATCH];
    EACH_BATCH(i, e) {
        gs[i] = load_part(g + e, size - e);
        xs[i] = load_part(x + e, size - e);
    }
    EACH_BATCH(i, e) {
        Vector d;
        EACH_OF(k) narrow(pull<KIND, T>(widen(gs[i].at[k]), widen(xs[i].at[k])), d.at[k]);
        store_part(dx + e, d, size - e);
    }
}
