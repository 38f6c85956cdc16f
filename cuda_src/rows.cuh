#pragma once
#include "reduce.cuh"

// What kernels over rows are compiled for:
//   STORAGE  the type of the data;  AFFINE  of weights;  VECTOR  numbers per access: 16 bytes, or 1 where rows are not
//   aligned to that;  GROUP  threads per row;  ROWS  rows per block (1 unless GROUP is 32);
//   ITEMS    vectors that a thread keeps in registers, so that a row is read once; 0 where rows are too long for that;
//   EXACT    1 where a row is exactly ITEMS vectors of every thread, and no thread has to look where it ends.
#ifndef AFFINE
#define AFFINE STORAGE
#endif
typedef STORAGE T;
typedef AFFINE W;
typedef Wide<T>::type Real;
typedef Pack<T, VECTOR> Vector;
typedef Values<Real, VECTOR> Reals;

#define THREADS (GROUP * ROWS)
#define SCRATCH alignas(16) __shared__ Real scratch[2][2][32]
#define FIRST_ROW ((i64)blockIdx.x * ROWS + threadIdx.y)
#define ROW_STEP ((i64)gridDim.x * ROWS)

#if ITEMS
#define EACH(i, column)                   \
    UNROLL for (int i = 0; i < ITEMS; ++i) \
        if (const int column = (i * GROUP + (int)threadIdx.x) * VECTOR; EXACT || column < n)
#define KEPT(name) Vector name[ITEMS]
#define FILL(name, from) EACH(i_, c_) name[i_] = load<VECTOR>((from) + c_)
#define AT(name, i, from, column) name[i]
#else
#define EACH(i, column) for (int i = 0, column = threadIdx.x * VECTOR; column < n; column += GROUP * VECTOR, ++i)
#define KEPT(name)
#define FILL(name, from)
#define AT(name, i, from, column) load<VECTOR>((from) + column)
#endif
#define EACH_OF(k) UNROLL for (int k = 0; k < VECTOR; ++k)
