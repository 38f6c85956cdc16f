/* The elementwise updates of optimizers: the operations of the NumPy rules in their order, so the same bits. */
#include <math.h>
#include <stdint.h>

/* flags: 1 keeps the maximum of v, 2 decays only where p and the new m have the same sign. */
#define ADAM(NAME, T, SQRT)                                                                                            \
    void NAME(T *restrict p, const T *restrict g, T *restrict m, T *restrict v, T *restrict top, int64_t n,            \
              const double *c, int64_t flags) {                                                                        \
        T b1 = c[0], c1 = c[1], b2 = c[2], c2 = c[3], floor = c[4], rate = c[5], shrink = c[6], coupled = c[7];        \
        if (!flags && coupled == 0 && shrink == 1)                                                                     \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                T d = g[i], a = m[i] * b1 + d * c1, b = v[i] * b2 + d * d * c2;                                        \
                m[i] = a;                                                                                              \
                v[i] = b;                                                                                              \
                p[i] = p[i] - a / (SQRT(b) + floor) * rate;                                                            \
            }                                                                                                          \
        else if (!flags && coupled == 0)                                                                               \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                T d = g[i], a = m[i] * b1 + d * c1, b = v[i] * b2 + d * d * c2;                                        \
                m[i] = a;                                                                                              \
                v[i] = b;                                                                                              \
                p[i] = p[i] * shrink - a / (SQRT(b) + floor) * rate;                                                   \
            }                                                                                                          \
        else                                                                                                           \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                T q = p[i], d = coupled == 0 ? g[i] : q * coupled + g[i];                                              \
                T a = m[i] * b1 + d * c1, b = v[i] * b2 + d * d * c2;                                                  \
                m[i] = a;                                                                                              \
                v[i] = b;                                                                                              \
                if (flags & 1) top[i] = b = top[i] >= b || top[i] != top[i] ? top[i] : b;                              \
                T decayed = !(flags & 2) || (q >= 0) == (a >= 0) ? q * shrink : q;                                     \
                p[i] = decayed - a / (SQRT(b) + floor) * rate;                                                         \
            }                                                                                                          \
    }

ADAM(adam_float, float, sqrtf)
ADAM(adam_double, double, sqrt)

/* c: learning rate, weight decay, momentum, keep (1 - dampening, or 1 at the first step); flags: 1 Nesterov. */
#define SGD(NAME, T)                                                                                                   \
    void NAME(T *restrict p, const T *restrict g, T *restrict v, int64_t n, const double *c, int64_t flags) {          \
        T lr = c[0], decay = c[1], momentum = c[2], keep = c[3];                                                       \
        if (!v)                                                                                                        \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                T d = decay == 0 ? g[i] : p[i] * decay + g[i];                                                         \
                p[i] = p[i] - d * lr;                                                                                  \
            }                                                                                                          \
        else                                                                                                           \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                T d = decay == 0 ? g[i] : p[i] * decay + g[i];                                                         \
                T b = v[i] * momentum + d * keep;                                                                      \
                v[i] = b;                                                                                              \
                T step = flags & 1 ? d + b * momentum : b;                                                             \
                p[i] = p[i] - step * lr;                                                                               \
            }                                                                                                          \
    }

SGD(sgd_float, float)
SGD(sgd_double, double)
