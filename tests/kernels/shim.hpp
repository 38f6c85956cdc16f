// Runs CUDA sources on the CPU, for tests: blocks one after the other, the threads of a block as fibres that take turns
// and meet at __syncthreads and at warp shuffles. A barrier that not all threads reach, or a shuffle that not the whole
// warp reaches, is an error. `order` turns the order of the fibres round: a kernel whose result
// depends on it lacks a barrier.
#pragma once
#include <math.h>  // C headers alone: C++ ones would take longer to compile than the kernels
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#define HOST_SHIM 1
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__
#define __grid_constant__
#define __shared__ static

struct dim3 { unsigned x, y, z; };
static dim3 gridDim, blockDim, blockIdx, threadIdx;

namespace shim {
enum State { RUNNING, AT_BLOCK, AT_WARP, DONE };
struct Fibre {
    ucontext_t context;  // only to begin: a switch by it is a system call
    void* place[5];
    bool begun;
    char* stack;
    State state;
    dim3 index;
    uint64_t slot;
};
static const size_t STACK = 1 << 18;
static Fibre fibres[1024];
static void* scheduler[5];
static int current;
static int order = 0;
static char problem[200];
static void (*body)(void*);
static void* body_data;
static unsigned char* shared;  // dynamic shared memory, as large as the launch says

// Copies by cp.async: the numbers arrive in shared memory only where their thread waits for them.
struct Copy { void* to; unsigned char data[16]; int size; };
struct Copies {
    Copy* at;
    int room, count, begin;  // [begin, count) are under way
    int groups, end[64];     // where each committed group that is under way ends
};
static Copies copies[1024];
static void copy_later(void* to, const void* from, int size, bool valid) {
    Copies& mine = copies[current];
    if (mine.count == mine.room) {
        mine.room = mine.room ? 2 * mine.room : 64;
        mine.at = (Copy*)realloc(mine.at, mine.room * sizeof(Copy));
    }
    Copy& c = mine.at[mine.count++];
    c.to = to;
    c.size = size;
    memset(c.data, 0, 16);
    if (valid) memcpy(c.data, from, size);
    memset(to, 255, size);  // until then it holds NaN
}
static void commit_copies() { copies[current].end[copies[current].groups++] = copies[current].count; }
static void wait_copies(int left) {
    Copies& mine = copies[current];
    const int landed = mine.groups - left;
    if (landed <= 0) return;
    for (; mine.begin < mine.end[landed - 1]; ++mine.begin) {
        const Copy& c = mine.at[mine.begin];
        memcpy(c.to, c.data, c.size);
    }
    for (int i = landed; i < mine.groups; ++i) mine.end[i - landed] = mine.end[i];
    mine.groups -= landed;
    if (mine.begin == mine.count) {
        mine.begin = mine.count = 0;
        for (int i = 0; i < mine.groups; ++i) mine.end[i] = 0;
    }
}

static void fail(const char* what) {
    snprintf(problem, sizeof problem, "block (%u, %u): %s", blockIdx.x, blockIdx.y, what);
}
// The built-in jumps know nothing of stacks, and must not be in one function with the mark that they jump to.
static __attribute__((noinline, noreturn)) void jump(void** place) { __builtin_longjmp(place, 1); }
static __attribute__((noinline)) void wait_as(State state) {
    Fibre& me = fibres[current];
    me.state = state;
    if (!__builtin_setjmp(me.place)) jump(scheduler);
}
static void start_fibre() {
    body(body_data);
    fibres[current].state = DONE;
    jump(scheduler);
}
static __attribute__((noinline)) void resume(int i) {
    Fibre& next = fibres[i];
    current = i;
    threadIdx = next.index;
    next.state = RUNNING;
    if (__builtin_setjmp(scheduler)) return;
    if (next.begun) jump(next.place);
    next.begun = true;
    setcontext(&next.context);
}
// Run a warp as far as it gets alone; the others wait meanwhile, so that what it does too early is seen.
static void run_warp(int first) {
    for (;;) {
        int waiting = 0;
        for (int k = 0; k < 32; ++k) {
            const int i = first + (order ? 31 - k : k);
            if (fibres[i].state == RUNNING) resume(i);
            waiting += fibres[i].state == AT_WARP;
        }
        if (waiting < 32) return;
        for (int i = first; i < first + 32; ++i) fibres[i].state = RUNNING;
    }
}
static void run_block(int count) {
    for (int i = 0; i < count; ++i) {
        copies[i].count = copies[i].begin = copies[i].groups = 0;
        Fibre& f = fibres[i];
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = f.stack;
        f.context.uc_stack.ss_size = STACK;
        f.context.uc_link = nullptr;
        f.begun = false;
        f.state = RUNNING;
        f.index = {i % blockDim.x, i / blockDim.x, 0};
        makecontext(&f.context, start_fibre, 0);
    }
    for (;;) {
        for (int w = 0; w < count; w += 32) run_warp(order ? count - 32 - w : w);
        int done = 0, waiting = 0;
        for (int i = 0; i < count; ++i) done += fibres[i].state == DONE, waiting += fibres[i].state == AT_BLOCK;
        if (done == count) return;
        if (waiting < count) return fail("not all threads reach a barrier or a warp shuffle");
        for (int i = 0; i < count; ++i) fibres[i].state = RUNNING;
    }
}
static uint64_t exchange(uint64_t mine, int from) {
    const int me = current;
    fibres[me].slot = mine;
    wait_as(AT_WARP);
    const uint64_t theirs = fibres[from].slot;
    wait_as(AT_WARP);
    return theirs;
}
static unsigned vote(bool mine) {
    const int first = current & ~31;
    fibres[current].slot = mine;
    wait_as(AT_WARP);
    unsigned votes = 0;
    for (int k = 0; k < 32; ++k) votes |= (unsigned)fibres[first + k].slot << k;
    wait_as(AT_WARP);
    return votes;
}
// The arguments of a kernel, one after the other out of the buffer that a launch packs.
template <class...> struct Types {};
template <class K, class... Done> void invoke(K kernel, const char*, const char*, Types<>, const Done&... done) {
    kernel(done...);
}
template <class K, class First, class... Rest, class... Done>
void invoke(K kernel, const char* at, const char* base, Types<First, Rest...>, const Done&... done) {
    at += (alignof(First) - (at - base) % alignof(First)) % alignof(First);
    First value;
    memcpy((void*)&value, at, sizeof(First));
    invoke(kernel, at + sizeof(First), base, Types<Rest...>(), done..., value);
}
template <class... A> const char* launch(void (*kernel)(A...), const unsigned* shape, const char* packed) {
    struct Data { void (*kernel)(A...); const char* packed; } data{kernel, packed};
    problem[0] = 0;
    gridDim = {shape[0], shape[1], 1};
    blockDim = {shape[2], shape[3], 1};
    const int count = blockDim.x * blockDim.y;
    if (count % 32 || count > 1024) return "a block is not whole warps, or too large";
    // Given back at the end: hundreds of kernels, each a library of its own, would keep more than a process can be forked with.
    const size_t bytes = count * STACK;
    char* stacks = (char*)mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) return "no memory for the stacks of a block";
    for (int i = 0; i < count; ++i) fibres[i].stack = stacks + i * STACK;
    body = [](void* p) {
        const Data* d = (Data*)p;
        invoke(d->kernel, d->packed, d->packed, Types<A...>());
    };
    body_data = &data;
    shared = shape[4] ? (unsigned char*)aligned_alloc(1024, (shape[4] + 1023) / 1024 * 1024) : nullptr;
    for (unsigned y = 0; y < shape[1]; ++y)
        for (unsigned x = 0; x < shape[0] && !problem[0]; ++x) {
            blockIdx = {x, y, 0};
            if (shape[4]) memset(shared, 255, shape[4]);
            run_block(count);
        }
    free(shared);
    munmap(stacks, bytes);
    return problem[0] ? problem : nullptr;
}
}  // namespace shim

static inline void __syncthreads() { shim::wait_as(shim::AT_BLOCK); }
static inline void __syncwarp() { shim::wait_as(shim::AT_WARP); }
template <class V> V __shfl_xor_sync(unsigned mask, V value, int lanes) {
    if (mask != 0xffffffffu) shim::fail("a shuffle of part of a warp");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(V));
    bits = shim::exchange(bits, shim::current ^ lanes);
    memcpy(&value, &bits, sizeof(V));
    return value;
}
static inline unsigned __ballot_sync(unsigned mask, bool mine) {
    if (mask != 0xffffffffu) shim::fail("a vote of part of a warp");
    return shim::vote(mine);
}
static inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
static inline int __any_sync(unsigned mask, int value) {
    int any = value != 0;
    for (int lanes = 1; lanes < 32; lanes *= 2) any |= __shfl_xor_sync(mask, any, lanes);
    return any;
}
static inline unsigned __float_as_uint(float f) { unsigned u; memcpy(&u, &f, 4); return u; }
static inline float __uint_as_float(unsigned u) { float f; memcpy(&f, &u, 4); return f; }
static inline float __fdividef(float a, float b) { return a / b; }
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
#define __expf expf  // the C library has functions of these names
#define __logf logf
static inline float normcdff(float x) { return (float)(0.5 * erfc(-(double)x * 0.7071067811865476)); }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
#define __expf expf  // the C library has a function of that name
static inline double normcdf(double x) { return 0.5 * erfc(-x * 0.7071067811865476); }

// IEEE half precision, to nearest with ties to even.
static inline float from_half(unsigned short h) {
    const unsigned exponent = h >> 10 & 31, mantissa = h & 1023;
    float value = exponent == 31 ? (mantissa ? NAN : INFINITY)
        : exponent ? ldexp((float)(1024 + mantissa), (int)exponent - 25) : ldexp((float)mantissa, -24);
    return h & 0x8000 ? -value : value;
}
static inline unsigned short to_half(float f) {
    const unsigned short sign = signbit(f) ? 0x8000 : 0;
    const float a = fabs(f);
    if (a != a) return 0x7fff;
    if (a >= 65520.0f) return sign | 0x7c00;
    if (a < 6.103515625e-05f) return sign | (unsigned short)lrint(ldexp(a, 24));
    int exponent;
    frexp(a, &exponent);  // a = m 2^exponent, m in [1/2, 1)
    const unsigned mantissa = (unsigned)lrint(ldexp(a, 11 - exponent));  // 1024 .. 2048, a carry moves on
    return sign | (unsigned short)(((unsigned)(exponent + 14) << 10) + mantissa - 1024);
}

// Fragments of matrices, as the PTX ISA lays them out over the lanes of a warp ("Matrix fragments for mma.m16n8k16").
namespace shim {
static unsigned fragments[1024][12];
// d += a b for a 16 x 16, b 16 x 8; each number of d is summed in order in double and rounded once.
template <class Widen> void multiply(float d[4], const unsigned a[4], const unsigned b[2], Widen widen) {
    unsigned* mine = fragments[current];
    memcpy(mine, a, 16);
    memcpy(mine + 4, b, 8);
    wait_as(AT_WARP);
    const int first = current & ~31, lane = current & 31;
    for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        double sum = d[i];
        for (int k = 0; k < 16; ++k) {
            const int from = k % 8 / 2, half = k % 2 * 16;
            const unsigned x = fragments[first + row % 8 * 4 + from][row / 8 + k / 8 * 2] >> half & 0xffff;
            const unsigned y = fragments[first + column * 4 + from][4 + k / 8] >> half & 0xffff;
            sum += (double)widen(x) * (double)widen(y);
        }
        d[i] = (float)sum;
    }
    wait_as(AT_WARP);
}
// Four 8 x 8 matrices of 16-bit numbers; lane l gives the address of row l % 8 of matrix l / 8.
static void load_matrices(unsigned to[4], const void* row, bool transposed) {
    const int me = current, first = me & ~31, lane = me & 31;
    if ((uintptr_t)row % 16) fail("a row of a matrix is not aligned to 16 bytes");
    memcpy(fragments[me], row, 16);
    wait_as(AT_WARP);
    for (int m = 0; m < 4; ++m) {
        unsigned short pair[2];
        for (int i = 0; i < 2; ++i) {
            const int r = transposed ? lane % 4 * 2 + i : lane / 4, c = transposed ? lane / 4 : lane % 4 * 2 + i;
            pair[i] = ((unsigned short*)fragments[first + m * 8 + r])[c];
        }
        memcpy(&to[m], pair, 4);
    }
    wait_as(AT_WARP);
}
}  // namespace shim
