#pragma once
#include "math.cuh"

// Elementwise kernels: a block takes BATCH vectors per thread, loads all of them, then computes. VECTOR is 16 bytes of
// the widest array, or 1 where one of them is not aligned to that. Bodies are compiled twice: a WHOLE block need not look
// where the numbers end; in the last one the last numbers go one by one.
typedef STORAGE T;
typedef Wide<T>::type Real;
typedef Pack<T, VECTOR> Vector;
typedef Values<Real, VECTOR> Reals;

#define FLAT_THREADS 256
#define FLAT_BLOCK ((i64)BATCH * FLAT_THREADS * VECTOR)
#define FLAT_START ((i64)blockIdx.x * FLAT_BLOCK + threadIdx.x * VECTOR)
#define FLAT_RUN(body, ...) \
    if (((i64)blockIdx.x + 1) * FLAT_BLOCK <= size) body<true>(__VA_ARGS__); \
    else body<false>(__VA_ARGS__)
#define EACH_BATCH(i, e)                 \
    UNROLL for (int i = 0; i < BATCH; ++i) \
        if (const i64 e = FLAT_START + i * FLAT_THREADS * VECTOR; WHOLE || e < size)
#define EACH_OF(k) UNROLL for (int k = 0; k < VECTOR; ++k)

template <bool WHOLE, class S> DEVICE Pack<S, VECTOR> load_part(const S* p, i64 left) {
    if constexpr (WHOLE) return load<VECTOR>(p);
    else {
        if (left >= VECTOR) return load<VECTOR>(p);
        Pack<S, VECTOR> v = {};
        EACH_OF(k) if (k < left) v.at[k] = p[k];
        return v;
    }
}
template <bool WHOLE, class S> DEVICE void store_part(S* p, const Pack<S, VECTOR>& v, i64 left) {
    if constexpr (WHOLE) return store(p, v);
    else {
        if (left >= VECTOR) return store(p, v);
        EACH_OF(k) if (k < left) p[k] = v.at[k];
    }
}
