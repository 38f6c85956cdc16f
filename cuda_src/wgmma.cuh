#pragma once
// Hopper's matrix products of a warpgroup (wgmma), copies of tiles (TMA) and the barriers they meet at, as inline PTX for
// sm_90a: PTX ISA 9.0, sections 9.7.16 (asynchronous warpgroup products), 9.7.9.27 (bulk tensor copies), 9.7.13.15 (mbarrier).
// MMA_TYPE is "bf16" or "f16".
#include "types.cuh"

#define DEVICE_MEMBER __device__ __forceinline__

#define INFINITE __uint_as_float(0x7f800000u)
#define LOG2_E 1.4426950408889634f
#define LN_2 0.6931471805599453f

struct alignas(64) TensorMap { char opaque[128]; };  // as made by cuTensorMapEncodeTiled: a box of 64 x 64, swizzled by 128 bytes
enum { BOX = 64 * 64 * 2 };                          // bytes

DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// ---- barriers in shared memory
DEVICE void barrier_init(u32 bar, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
DEVICE void barriers_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void barrier_expect(u32 bar, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
DEVICE void barrier_arrive(u32 bar) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory"); }
DEVICE bool barrier_passed(u32 bar, u32 parity) {
    u32 done;
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(done) : "r"(bar), "r"(parity) : "memory");
    return done;
}
DEVICE void barrier_wait(u32 bar, u32 parity) {
    while (!barrier_passed(bar, parity)) {}
}

// Of a ring of `stages`: what number n waits for before its stage is read, and before it is filled again.
DEVICE void barrier_wait_full(u32 bar, int n, int stages) { barrier_wait(bar, n / stages & 1); }
DEVICE void barrier_wait_free(u32 bar, int n, int stages) {
    if (n >= stages) barrier_wait(bar, (n / stages - 1) & 1);
}
// A warp needs no more of what the barrier guards; one lane says so for all. That the others have read it follows from the
// products, which took what they read and were waited for; __syncwarp says it to the memory model as well, and since the warp
// is together there, it becomes an instruction that does nothing.
DEVICE void leave(u32 bar, bool now = true) {
    __syncwarp();
    if (now && (threadIdx.x & 31) == 0) barrier_arrive(bar);
}

// ---- copies by one thread. Rows and columns beyond the tensor arrive as zeros, and count as bytes.
DEVICE void copy_box(u32 to, const TensorMap& map, u32 bar, int column, int row, int head, int batch) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];"
        ::"r"(to), "l"(&map), "r"(bar), "r"(column), "r"(row), "r"(head), "r"(batch) : "memory");
}
// ROWS x COLUMNS (multiples of 64) as boxes: all rows of the first 64 columns, then of the next.
template <int ROWS, int COLUMNS> DEVICE void copy_tile(u32 to, const TensorMap& map, u32 bar, int row, int head, int batch) {
    UNROLL for (int c = 0; c < COLUMNS; c += 64)
        UNROLL for (int r = 0; r < ROWS; r += 64)
            copy_box(to + (c / 64) * (ROWS / 64) * BOX + (r / 64) * BOX, map, bar, c, row + r, head, batch);
}
DEVICE void copy_bytes(u32 to, const void* from, u32 bytes, u32 bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(bar) : "memory");
}

// The number of a thread's warpgroup, so that the compiler sees that a warp agrees on it.
DEVICE int warpgroup() { return __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0); }

// A block begins with equally many registers per thread. The warpgroup that fetches gives most of its own to the others.
template <int BUSY> struct Registers {
    enum { EACH = 65536 / (128 * (BUSY + 1)) / 8 * 8, FEW = 24, SHARE = (EACH * (BUSY + 1) - FEW) / BUSY / 8 * 8 };
    enum { MANY = SHARE > 240 ? 240 : SHARE };
};
template <int BUSY> DEVICE void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)Registers<BUSY>::FEW));
}
template <int BUSY> DEVICE void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)Registers<BUSY>::MANY));
}

// ---- products. The accumulator's number 4 j + 2 h + c of a thread is row 16 warp + lane / 4 + 8 h, column
// 8 j + 2 (lane % 4) + c; two neighbours of 8 columns, packed in pairs, are an operand A of 16 columns.
DEVICE void mma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void mma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> DEVICE void mma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory"); }
// Ties registers to this place, so that the compiler reads and writes them on the right side of a fence or a wait.
template <int N> DEVICE void hold(float (&d)[N]) {
    UNROLL for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int N> DEVICE void hold(u32 (&d)[N]) {
    UNROLL for (int i = 0; i < N; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

// A matrix in shared memory in rows of 128 swizzled bytes, which are rows of the product or of its inner axis; `apart`: bytes
// between one 64 columns and the next, where rows are of the inner axis. `further`: bytes from there, a constant that the
// compiler adds to the finished half of the descriptor.
DEVICE u64 operand(u32 address, u32 further, u32 apart = 16) {
    const u32 low = (address >> 4 | apart >> 4 << 16) + (further >> 4), high = 1024 >> 4 | 1u << 30;
    return (u64)high << 32 | low;
}

#define REGISTERS_32 \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define REGISTERS_64 \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"
#define FLOATS_8(c, d, i) \
    c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3]), c(d[i + 4]), c(d[i + 5]), c(d[i + 6]), c(d[i + 7])
#define FLOATS_32(c, d, i) FLOATS_8(c, d, i), FLOATS_8(c, d, i + 8), FLOATS_8(c, d, i + 16), FLOATS_8(c, d, i + 24)
#define FLOATS_64(c, d) FLOATS_32(c, d, 0), FLOATS_32(c, d, 32)
#define PRODUCT(n) "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." MMA_TYPE "." MMA_TYPE " "
#define ANEW "{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n"
#define MORE "{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"

// d = a b, or d += a b where MORE, for 16 of the inner axis, with a in shared memory or in registers; b's columns are the
// inner axis for the first, its rows for the second. That a new d needs no old one is said to the compiler.
DEVICE void mma_anew(float (&d)[32], u64 a, u64 b) {
    asm volatile(ANEW PRODUCT("64") REGISTERS_32 ", %32, %33, p, 1, 1, 0, 0;\n}\n"
                 : FLOATS_32("=f", d, 0) : "l"(a), "l"(b) : "memory");
}
DEVICE void mma_more(float (&d)[32], u64 a, u64 b) {
    asm volatile(MORE PRODUCT("64") REGISTERS_32 ", %32, %33, p, 1, 1, 0, 0;\n}\n"
                 : FLOATS_32("+f", d, 0) : "l"(a), "l"(b) : "memory");
}
DEVICE void mma_anew(float (&d)[64], u64 a, u64 b) {
    asm volatile(ANEW PRODUCT("128") REGISTERS_64 ", %64, %65, p, 1, 1, 0, 0;\n}\n"
                 : FLOATS_64("=f", d) : "l"(a), "l"(b) : "memory");
}
DEVICE void mma_more(float (&d)[64], u64 a, u64 b) {
    asm volatile(MORE PRODUCT("128") REGISTERS_64 ", %64, %65, p, 1, 1, 0, 0;\n}\n"
                 : FLOATS_64("+f", d) : "l"(a), "l"(b) : "memory");
}
#define LEFT_32 ", {%32, %33, %34, %35}, %36, p, 1, 1, "
#define LEFT_64 ", {%64, %65, %66, %67}, %68, p, 1, 1, "
#define LEFT(a) "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
DEVICE void mma_across(float (&d)[32], const u32* a, u64 b) {
    asm volatile(MORE PRODUCT("64") REGISTERS_32 LEFT_32 "1;\n}\n" : FLOATS_32("+f", d, 0) : LEFT(a), "l"(b) : "memory");
}
DEVICE void mma_across(float (&d)[64], const u32* a, u64 b) {
    asm volatile(MORE PRODUCT("128") REGISTERS_64 LEFT_64 "1;\n}\n" : FLOATS_64("+f", d) : LEFT(a), "l"(b) : "memory");
}

// s = a b^T over WIDTH: 64 rows of a at `a`, whose tile has A_ROWS rows, and the rows of the tile b.
template <int WIDTH, int A_ROWS, int B_ROWS, int N> DEVICE void mma_rows(float (&s)[N], u32 a, u32 b) {
    UNROLL for (int i = 0; i < WIDTH / 16; ++i) {
        const u64 left = operand(a, (i / 4) * A_ROWS * 128 + (i % 4) * 32);
        const u64 right = operand(b, (i / 4) * B_ROWS * 128 + (i % 4) * 32);
        if (i == 0) mma_anew(s, left, right);
        else mma_more(s, left, right);
    }
}
// d += p b, with p 64 x ROWS in registers and b a tile of ROWS rows of the inner axis.
template <int ROWS, int N> DEVICE void mma_columns(float (&d)[N], const u32 (&p)[ROWS / 4], u32 b) {
    UNROLL for (int i = 0; i < ROWS / 16; ++i) mma_across(d, p + 4 * i, operand(b, i * 2048, ROWS * 128));
}

// ---- numbers
DEVICE u32 pack(float low, float high) {
    u32 both;
    asm("cvt.rn." MMA_TYPE "x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
DEVICE float half_of(u32 both, bool high) {
    STORAGE one;
    one.bits = (unsigned short)(high ? both >> 16 : both);
    return widen(one);
}
// An accumulator as operand A.
template <int N> DEVICE void pack_all(u32 (&p)[N / 2], const float (&s)[N]) {
    UNROLL for (int i = 0; i < N / 2; ++i) p[i] = pack(s[2 * i], s[2 * i + 1]);
}
DEVICE float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE float largest_of_four(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
DEVICE float sum_of_four(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

template <class S> DEVICE Pack<S, 8> load_shared(u32 address) {
    u32 w[4];
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "r"(address) : "memory");
    Pack<S, 8> eight;
    memcpy(&eight, w, 16);
    return eight;
}
// Four lanes hold four pairs each of a row: pair i of lane j is columns 8 i + 2 j of 32. After it a lane holds 8 neighbours.
DEVICE void gather_eight(u32 (&x)[4]) {
    const int lane = threadIdx.x;
    UNROLL for (int bit = 1; bit < 4; bit <<= 1) {
        const bool upper = lane & bit;
        UNROLL for (int i = 0; i < 4; ++i)
            if (!(i & bit)) {
                const u32 other = __shfl_xor_sync(0xffffffffu, upper ? x[i] : x[i | bit], bit);
                x[i] = upper ? other : x[i];
                x[i | bit] = upper ? x[i | bit] : other;
            }
    }
}
// Writes d times a factor per h to rows of `out`, those below `rows`; row is this thread's first, its second is 8 below.
template <class S, int N>
DEVICE void write_rows(S* out, i64 stride, int row, int rows, const float (&d)[N], float first, float second) {
    UNROLL for (int h = 0; h < 2; ++h)
        UNROLL for (int j = 0; j < N / 16; ++j) {
            const float f = h ? second : first;
            u32 x[4];
            UNROLL for (int i = 0; i < 4; ++i) x[i] = pack(d[16 * j + 4 * i + 2 * h] * f, d[16 * j + 4 * i + 2 * h + 1] * f);
            gather_eight(x);
            if (row + 8 * h < rows) {
                const u64 to = __cvta_generic_to_global(out + (row + 8 * h) * stride + 32 * j + 8 * (threadIdx.x & 3));
                asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                             ::"l"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]) : "memory");
            }
        }
}
