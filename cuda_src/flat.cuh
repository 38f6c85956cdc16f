#pragma once
#include "math.cuh"

// Elementwise kernels: a block takes BATCH vectors per thread, loads all of them, then computes. VECTOR is 16 bytes of
// the widest array, or 1 where one of them is not aligned to that. The last numbers go one by one.
typedef STORAGE T;
typedef Wide<T>::type Real;
typedef Pack<T, VECTOR> Vector;

#define FLAT_THREADS 256
#define EACH_BATCH(i, e)                 \
    UNROLL for (int i = 0; i < BATCH; ++i) \
        if (const i64 e = (((i64)blockIdx.x * BATCH + i) * FLAT_THREADS + threadIdx.x) * VECTOR; e < size)
#define EACH_OF(k) UNROLL for (int k = 0; k < VECTOR; ++k)

DEVICE Vector load_part(const T* p, i64 left) {
    if (left >= VECTOR) return load<VECTOR>(p);
    Vector v = {};
    EACH_OF(k) if (k < left) v.at[k] = p[k];
    return v;
}
DEVICE void store_part(T* p, const Vector& v, i64 left) {
    if (left >= VECTOR) return store(p, v);
    EACH_OF(k) if (k < left) p[k] = v.at[k];
}
