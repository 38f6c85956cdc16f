// silu(gate) up, with silu(gate) rounded to the storage type before the product: the value that the two operations give.
#include "flat.cuh"

DEVICE Real rounded_silu(Real gate) {
    T stored;
    narrow(activate<SILU, T>(gate), stored);
    return widen(stored);
}

extern "C" __global__ void __launch_bounds__(FLAT_THREADS) silu_mul_forward(
    const T* __restrict__ gate, const T* __restrict__ up, T* __restrict__ out, i64 size
) {
    Vector as[BATCH], bs[BATCH];
    EACH_BATCH(i, e) {
        as[i] = load_part(gate + e, size - e);
        bs[i] = load_part(up + e, size - e);
    }
    EACH_BATCH(i, e) {
        Vector y;
        EACH_OF(k) narrow(rounded_silu(widen(as[i].at[k])) * widen(bs[i].at[k]), y.at[k]);
        store_part(out + e, y, size - e);
    }
}

// dgate = g up silu'(gate), dup = g silu(gate); either pointer may be null.
extern "C" __global__ void __launch_bounds__(FLAT_THREADS) silu_mul_backward(
    const T* __restrict__ g, const T* __restrict__ gate, const T* __restrict__ up, T* __restrict__ dgate,
    T* __restrict__ dup, i64 size
) {
    Vector gs[BATCH], as[BATCH], bs[BATCH];
    EACH_BATCH(i, e) {
        gs[i] = load_part(g + e, size - e);
        as[i] = load_part(gate + e, size - e);
        bs[i] = load_part(up + e, size - e);
    }
    EACH_BATCH(i, e) {
        Vector da, db;
        EACH_OF(k) {
            const Real gk = widen(gs[i].at[k]), a = widen(as[i].at[k]);
            narrow(gk * widen(bs[i].at[k]) * slope<SILU, T>(a), da.at[k]);
            narrow(gk * rounded_silu(a), db.at[k]);
        }
        if (dgate) store_part(dgate + e, da, size - e);
        if (dup) store_part(dup + e, db, size - e);
    }
}
