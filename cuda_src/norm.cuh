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

// a / n from 1 / n and the remainder: the rounded quotient, without the branches of a division.
DEVICE float quotient(float a, float n, float inverse) {
    const float q = a * inverse;
    return fmaf(fmaf(-q, n, a), inverse, q);
}
DEVICE double quotient(double a, double n, double) { return a / n; }
