// silu(gate) up, with silu(gate) rounded to the storage type before the product: the value that the two operations give.
#include "flat.cuh"

DEVICE Reals rounded_silu(const Reals& gate) {
    Reals y;
    EACH_OF(k) y.at[k] = activate<SILU, T>(gate.at[k]);
    return widen(narrow<T>(y));
}

template <bool WHOLE> DEVICE void forward(const T* gate, const T* up, T* out, i64 size) {
    Vector as[BATCH], bs[BATCH];
    EACH_BATCH(i, e) {
        as[i] = load_part<WHOLE>(gate + e, size - e);
        bs[i] = load_part<WHOLE>(up + e, size - e);
    }
    EACH_BATCH(i, e) {
        const Reals inner = rounded_silu(widen(as[i])), b = widen(bs[i]);
        Reals y;
        EACH_OF(k) y.at[k] = inner.at[k] * b.at[k];
        store_part<WHOLE>(out + e, narrow<T>(y), size - e);
    }
}

template <bool WHOLE> DEVICE void backward(const T* g, const T* gate, const T* up, T* dgate, T* dup, i64 size) {
    Vector gs[BATCH], as[BATCH], bs[BATCH];
    EACH_BATCH(i, e) {
        gs[i] = load_part<WHOLE>(g + e, size - e);
        as[i] = load_part<WHOLE>(gate + e, size - e);
        bs[i] = load_part<WHOLE>(up + e, size - e);
    }
    EACH_BATCH(i, e) {
        const Reals incoming = widen(gs[i]), a = widen(as[i]), b = widen(bs[i]), inner = rounded_silu(a);
        Reals da, db;
        EACH_OF(k) {
            da.at[k] = incoming.at[k] * b.at[k] * slope<SILU, T>(a.at[k]);
            db.at[k] = incoming.at[k] * inner.at[k];
        }
        if (dgate) store_part<WHOLE>(dgate + e, narrow<T>(da), size - e);
        if (dup) store_part<WHOLE>(dup + e, narrow<T>(db), size - e);
    }
}

extern "C" __global__ void __launch_bounds__(FLAT_THREADS) silu_mul_forward(
    const T* __restrict__ gate, const T* __restrict__ up, T* __restrict__ out, i64 size
) {
    FLAT_RUN(forward, gate, up, out, size);
}

// dgate = g up silu'(gate), dup = g silu(gate); either pointer may be null.
extern "C" __global__ void __launch_bounds__(FLAT_THREADS) silu_mul_backward(
    const T* __restrict__ g, const T* __restrict__ gate, const T* __restrict__ up, T* __restrict__ dgate,
    T* __restrict__ dup, i64 size
) {
    FLAT_RUN(backward, g, gate, up, dgate, dup, size);
}
