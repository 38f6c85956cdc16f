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
    for (int i = 0; i < count; ++i) if (!fibres[i].stack) fibres[i].stack = (char*)malloc(STACK);
    body = [](void* p) {
        const Data* d = (Data*)p;
        invoke(d->kernel, d->packed, d->packed, Types<A...>());
    };
    body_data = &data;
    for (unsigned y = 0; y < shape[1]; ++y)
        for (unsigned x = 0; x < shape[0] && !problem[0]; ++x) {
            blockIdx = {x, y, 0};
            run_block(count);
        }
    return problem[0] ? problem : nullptr;
}
}  // namespace shim

static inline void __syncthreads() { shim::wait_as(shim::AT_BLOCK); }
template <class V> V __shfl_xor_sync(unsigned mask, V value, int lanes) {
    if (mask != 0xffffffffu) shim::fail("a shuffle of part of a warp");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(V));
    bits = shim::exchange(bits, shim::current ^ lanes);
    memcpy(&value, &bits, sizeof(V));
    return value;
}
static inline unsigned __float_as_uint(float f) { unsigned u; memcpy(&u, &f, 4); return u; }
static inline float __uint_as_float(unsigned u) { float f; memcpy(&f, &u, 4); return f; }
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
