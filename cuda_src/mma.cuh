#pragma once
// Products of 16-bit matrices on tensor cores with float32 sums, and the copies into shared memory that feed them.
// Tiles in shared memory are rows of D numbers in chunks of 16 bytes; chunk c of row r lies at place c ^ (r % 8), so
// that eight rows of one column of chunks fall into different banks.
// Layouts of fragments: PTX ISA, "Matrix fragments for mma.m16n8k16" and "ldmatrix".
#include "types.cuh"

#ifdef HOST_SHIM
typedef u64 Shared;  // an address in shared memory
#define DYNAMIC_SHARED(name) unsigned char* const name = shim::shared
DEVICE Shared shared_address(const void* p) { return (u64)p; }
DEVICE void copy16(Shared to, const void* from) { shim::copy_later((void*)to, from, 16, true); }
DEVICE void copy16_if(bool valid, Shared to, const void* from) { shim::copy_later((void*)to, from, 16, valid); }
DEVICE void copy4_if(bool valid, Shared to, const void* from) { shim::copy_later((void*)to, from, 4, valid); }
DEVICE void commit_copies() { shim::commit_copies(); }
template <int LEFT> DEVICE void wait_copies() { shim::wait_copies(LEFT); }
DEVICE void load_matrices(u32 (&to)[4], Shared row) { shim::load_matrices(to, (void*)row, false); }
DEVICE void load_transposed(u32 (&to)[4], Shared row) { shim::load_matrices(to, (void*)row, true); }
template <class S> float widen_bits(u32 bits) { return widen(S{(unsigned short)bits}); }
template <class S> DEVICE void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    const u32 b[2] = {b0, b1};
    shim::multiply(d, a, b, widen_bits<S>);
}
DEVICE float exp2_quick(float x) { return exp2f(x); }
template <class P> DEVICE P keep_sum(P p) { return p; }
template <class S> DEVICE u32 pack(float low, float high) {
    S a, b;
    narrow(low, a);
    narrow(high, b);
    return (u32)a.bits | (u32)b.bits << 16;
}
#else
typedef u32 Shared;
#define DYNAMIC_SHARED(name) extern __shared__ __align__(1024) unsigned char name[]
DEVICE Shared shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
DEVICE void copy16(Shared to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(__cvta_generic_to_global(from)) : "memory");
}
// Where it is not valid, nothing is read and zeros arrive.
DEVICE void copy16_if(bool valid, Shared to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(__cvta_generic_to_global(from)),
                 "r"(valid ? 16 : 0) : "memory");
}
DEVICE void copy4_if(bool valid, Shared to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(__cvta_generic_to_global(from)),
                 "r"(valid ? 4 : 0) : "memory");
}
DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until all but the last LEFT groups that this thread committed are there; other threads see them after a barrier.
template <int LEFT> DEVICE void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }
DEVICE void load_matrices(u32 (&to)[4], Shared row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(row) : "memory");
}
DEVICE void load_transposed(u32 (&to)[4], Shared row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(row) : "memory");
}
#define MULTIPLY(type)                                                                                                        \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "           \
        "{%0, %1, %2, %3};"                                                                                                   \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                                      \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
// d += a b: a is 16 x 16 by rows, b 16 x 8.
template <class S> DEVICE void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1);
#define SPECIAL template <> __device__ __forceinline__
SPECIAL void multiply<Bfloat>(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { MULTIPLY("bf16"); }
SPECIAL void multiply<Half>(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { MULTIPLY("f16"); }
// Hides how an address came about, or the compiler keeps a register pair for each of the next ones.
template <class P> DEVICE P keep_sum(P p) {
    asm volatile("" : "+l"(p));
    return p;
}
DEVICE float exp2_quick(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// Two numbers, rounded, in one register.
template <class S> DEVICE u32 pack(float low, float high);
SPECIAL u32 pack<Bfloat>(float low, float high) {
    u32 d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}
SPECIAL u32 pack<Half>(float low, float high) {
    u32 d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}
#endif

// The bytes from a tile's beginning to a chunk of a row.
template <int D> DEVICE u32 chunk_at(int row, int chunk) { return row * D * 2 + ((chunk ^ (row & 7)) << 4); }
// What a lane adds to a tile's address, or'd with 32 times the number of a pair of chunks by `^`, for load_matrices:
// 16 rows by two chunks as operand a, or transposed as b (their chunks are then columns of b).
template <int D> DEVICE u32 lane_of_a(int lane) { return chunk_at<D>(lane & 15, lane >> 4); }
// 16 rows by two chunks as operand b, whose columns are the rows: [0], [1] for the first eight rows, [2], [3] for the others.
template <int D> DEVICE u32 lane_of_b(int lane) { return chunk_at<D>((lane & 7) + (lane >> 4) * 8, lane >> 3 & 1); }

// Begin to copy R rows of W numbers into rows of D; zeros stand beyond W and in rows from `valid` on. All P threads of the
// block take part.
template <int R, int D, int W, int P, class S>
DEVICE void copy_tile(Shared to, const S* from, int stride, int valid, int thread) {
    const int chunks = D / 8, step = P / chunks, first = thread / chunks, chunk = thread % chunks;
    static_assert(R % step == 0 && step % 8 == 0, "whole rounds, and one place of a thread's chunk in all of its rows");
    const S* at = from + first * stride + chunk * 8;
    to += chunk_at<D>(first, chunk);
    if (W == D && valid >= R) {
        UNROLL for (int i = 0; i < R / step; ++i) {
            copy16(to + i * step * D * 2, at);
            at = keep_sum(at + step * stride);
        }
    } else {
        UNROLL for (int i = 0; i < R / step; ++i) {
            const bool there = i * step + first < valid && chunk * 8 < W;
            copy16_if(there, to + i * step * D * 2, there ? at : from);
            at = keep_sum(at + step * stride);
        }
    }
}
