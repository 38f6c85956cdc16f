// What the rows' losses have in common, by one block in one fixed order.
#include "reduce.cuh"

typedef STORAGE T;
typedef Wide<T>::type Real;

#define BLOCK 1024

// out = sum(terms), divided by sum(owns) (by `rows` where owns is null) if `mean`; 0 where nothing counts.
extern "C" __global__ void __launch_bounds__(BLOCK) cross_entropy_total(
    const Real* __restrict__ terms, const Real* __restrict__ owns, T* __restrict__ out, i64 rows, int mean
) {
    __shared__ Real scratch[2][2][32];
    Reducer<Real, BLOCK> reduce(scratch);
    Real total = 0, count = 0;
    _Pragma("unroll 4") for (i64 row = threadIdx.x; row < rows; row += BLOCK) {
        total += terms[row];
        if (owns) count += owns[row];
    }
    reduce.sums(total, count);
    if (!owns) count = Real(rows);
    if (threadIdx.x == 0) narrow(mean ? (count != 0 ? total / count : Real(0)) : total, out[0]);
}

// factor = {1 / sum of own weights of the rows that count and have a class (0 for none; 1 unless `mean`), sum of all class weights}.
extern "C" __global__ void __launch_bounds__(BLOCK) cross_entropy_factor(
    const i64* __restrict__ targets, const Real* __restrict__ weight, Real* __restrict__ factor, i64 rows, int n,
    i64 ignore, int ignoring, int mean
) {
    __shared__ Real scratch[2][2][32];
    Reducer<Real, BLOCK> reduce(scratch);
    Real count = 0, mass = 0;
    _Pragma("unroll 4") for (i64 row = threadIdx.x; row < rows; row += BLOCK) {
        const i64 id = targets[row];
        if (!(ignoring && id == ignore) && id >= 0 && id < n) count += weight ? weight[id] : Real(1);
    }
    if (weight) for (int c = threadIdx.x; c < n; c += BLOCK) mass += weight[c];
    reduce.sums(count, mass);
    if (threadIdx.x == 0) {
        factor[0] = !mean ? Real(1) : count != 0 ? Real(1) / count : Real(0);
        factor[1] = weight ? mass : Real(n);
    }
}
