#pragma once
#include "rows.cuh"

// What the norms share. Weights and biases stay in registers while a block goes from row to row; an absent weight is 1,
// and an absent bias -0, which changes no number that it is added to.
template <class S> DEVICE Pack<S, VECTOR> everywhere(float value) {
    Pack<S, VECTOR> out;
    EACH_OF(k) narrow(value, out.at[k]);
    return out;
}
#define VECTOR_OR(from, column, absent) ((from) ? load<VECTOR>((from) + (column)) : everywhere<W>(absent))
#if ITEMS
#define HELD(name, from, absent) \
    Pack<W, VECTOR> name[ITEMS]; \
    EACH(i_, c_) name[i_] = VECTOR_OR(from, c_, absent)
#define HELD_AT(name, i, from, column, absent) name[i]
#else
#define HELD(name, from, absent)
#define HELD_AT(name, i, from, column, absent) VECTOR_OR(from, column, absent)
#endif

// The rows of COUNT arrays that a thread works on, one after the other, in steps of ROW_STEP. STAGES says where those lie
// that are on their way:
//   0  nowhere: a row is fetched when the one before is done (all there is where ITEMS is 0, and rows are read again);
//   1  in registers: the next row;
//   2, 3 ..  in shared memory: so many rows, the present one among them. Each thread copies and reads its own 16 bytes,
//   so there is no barrier, and no register is taken by what has not arrived yet.
#if ITEMS && STAGES > 1
#ifdef HOST_SHIM
DEVICE void copy_ahead(Vector* to, const T* from) { *to = load<VECTOR>(from); }
DEVICE void end_group() {}
DEVICE void wait_for_group() {}
#elif __CUDA_ARCH__ >= 800
DEVICE void copy_ahead(Vector* to, const T* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(to)),
                 "l"(__cvta_generic_to_global(from))
                 : "memory");
}
DEVICE void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
DEVICE void wait_for_group() { asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory"); }
#else
DEVICE void copy_ahead(Vector* to, const T* from) { *to = load<VECTOR>(from); }
DEVICE void end_group() {}
DEVICE void wait_for_group() {}
#endif
#endif

// g w, rounded before it is used, so that what is subtracted from it, such as its own mean in a row of one, is of its kind:
// fused into a sum it would keep its error, which a row without variance multiplies by 1 / sqrt(eps).
#ifdef HOST_SHIM
template <class R> DEVICE R rounded_product(R g, R w) { return g * w; }
#else
DEVICE float rounded_product(float g, float w) { return __fmul_rn(g, w); }
DEVICE double rounded_product(double g, double w) { return __dmul_rn(g, w); }
#endif

// Between two looks at a row: what lies in shared memory is read again, which costs less than registers.
DEVICE void look_again() {
#if ITEMS && STAGES > 1 && !defined(HOST_SHIM)
    asm volatile("" ::: "memory");
#endif
}

template <int COUNT> struct Source { const T* at[COUNT]; };

#if ITEMS && STAGES > 1
template <int COUNT> struct Rows {
    Source<COUNT> from;
    i64 rows;
    int n, slot;
    Vector (*ring)[COUNT][ITEMS][THREADS];

    __device__ __forceinline__ Rows(const Source<COUNT>& from, Vector (*ring)[COUNT][ITEMS][THREADS], i64 row, i64 rows, int n)
        : from(from), rows(rows), n(n), slot(0), ring(ring) {
        UNROLL for (int stage = 0; stage < STAGES - 1; ++stage) fetch(row + stage * ROW_STEP, stage);
    }
    __device__ __forceinline__ void fetch(i64 row, int into) {
        const int thread = threadIdx.y * GROUP + threadIdx.x;
        if (row < rows) UNROLL for (int k = 0; k < COUNT; ++k) EACH(i, c) copy_ahead(&ring[into][k][i][thread], from.at[k] + row * n + c);
        end_group();
    }
    // Ask for the row that is STAGES - 1 further on, and wait for this one.
    __device__ __forceinline__ void begin(i64 row) {
        fetch(row + (STAGES - 1) * ROW_STEP, slot == 0 ? STAGES - 1 : slot - 1);
        wait_for_group();
    }
    __device__ __forceinline__ Vector at(int k, i64, int i, int) const {
        return ring[slot][k][i][threadIdx.y * GROUP + threadIdx.x];
    }
    __device__ __forceinline__ void end(i64) { slot = slot == STAGES - 1 ? 0 : slot + 1; }
};
#define ROWS_OF(name, COUNT, source)                      \
    __shared__ Vector name##_ring[STAGES][COUNT][ITEMS][THREADS]; \
    Rows<COUNT> name(source, name##_ring, FIRST_ROW, rows, n)
#else
template <int COUNT> struct Rows {
    Source<COUNT> from;
    i64 rows;
    int n;
#if ITEMS
    Vector held[COUNT][ITEMS];
#endif
#if ITEMS && STAGES
    Vector coming[COUNT][ITEMS];
#endif

    __device__ __forceinline__ Rows(const Source<COUNT>& from, i64 row, i64 rows, int n) : from(from), rows(rows), n(n) {
#if ITEMS
        fetch(row, held);
#endif
    }
#if ITEMS
    __device__ __forceinline__ void fetch(i64 row, Vector (&into)[COUNT][ITEMS]) {
        if (row < rows) UNROLL for (int k = 0; k < COUNT; ++k) EACH(i, c) into[k][i] = load<VECTOR>(from.at[k] + row * n + c);
    }
#endif
    __device__ __forceinline__ void begin(i64 row) {
#if ITEMS && STAGES
        fetch(row + ROW_STEP, coming);
#endif
    }
    __device__ __forceinline__ Vector at(int k, i64 row, int i, int column) const {
#if ITEMS
        return held[k][i];
#else
        return load<VECTOR>(from.at[k] + row * n + column);
#endif
    }
    __device__ __forceinline__ void end(i64 row) {
#if ITEMS && STAGES
        UNROLL for (int k = 0; k < COUNT; ++k) UNROLL for (int i = 0; i < ITEMS; ++i) held[k][i] = coming[k][i];
#elif ITEMS
        fetch(row + ROW_STEP, held);
#endif
    }
};
#define ROWS_OF(name, COUNT, source) Rows<COUNT> name(source, FIRST_ROW, rows, n)
#endif

// a / n from 1 / n and the remainder: the rounded quotient, without the branches of a division.
DEVICE float quotient(float a, float n, float inverse) {
    const float q = a * inverse;
    return fmaf(fmaf(-q, n, a), inverse, q);
}
DEVICE double quotient(double a, double n, double) { return a / n; }
