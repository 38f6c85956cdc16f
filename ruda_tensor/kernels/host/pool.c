/* Threads that wait in a loop for the next call, so that it is shared within a microsecond; they sleep after a while.
 *
 * A call is a function and a table of its arguments, a row for each part. Any thread takes the next row, and which one does
 * is not seen in the result. The caller works too, and returns when all rows are done.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#if defined(__x86_64__)
#include <immintrin.h>
#define BREATHE _mm_pause()
#else
#define BREATHE __asm__ __volatile__("" ::: "memory")
#endif

/* The integers of a row; the rounds, of 12 to 30 ns, that a thread waits on its core; and those, of about 170 ns, in which it
 * gives the core to whoever wants it, before it sleeps: waking one takes longer than most of what Python does in between. */
enum { WIDTH = 14, PATIENCE = 3000, COURTESY = 2000 };

/* Integers and pointers are passed in one sequence of registers and slots, and floating numbers in another: a function
 * that takes fewer integers, or no number, does not look at the others. */
typedef void (*Call)(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                     int64_t, int64_t, int64_t, float);

static struct {
    Call call;
    const int64_t *rows;
    int64_t count;
    float number;
} job;
static atomic_long next, inside, asleep, turn; /* turn is odd while a job is open */
static pthread_mutex_t busy = PTHREAD_MUTEX_INITIALIZER, bed = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t bell = PTHREAD_COND_INITIALIZER;
static long workers;

int64_t usable(void) {
#if defined(__x86_64__) || defined(__aarch64__)
    return 1;
#else
    return 0;
#endif
}

static void work(void) {
    for (long i; (i = atomic_fetch_add(&next, 1)) < job.count;) {
        const int64_t *r = job.rows + i * WIDTH;
        job.call(r[0], r[1], r[2], r[3], r[4], r[5], r[6], r[7], r[8], r[9], r[10], r[11], r[12], r[13], job.number);
    }
}

static void *worker(void *unused) {
    for (long seen = 0;;) {
        long now = atomic_load(&turn);
        for (long i = 0; (now == seen || now % 2 == 0) && i < PATIENCE + COURTESY; i++, now = atomic_load(&turn)) {
            if (i < PATIENCE) BREATHE;
            else sched_yield();
        }
        if (now == seen || now % 2 == 0) {
            pthread_mutex_lock(&bed);
            atomic_fetch_add(&asleep, 1);
            while (now = atomic_load(&turn), now == seen || now % 2 == 0) pthread_cond_wait(&bell, &bed);
            atomic_fetch_sub(&asleep, 1);
            pthread_mutex_unlock(&bed);
        }
        seen = now;
        atomic_fetch_add(&inside, 1); /* before the second look: the caller looks at it after closing the job */
        if (atomic_load(&turn) == now) work();
        atomic_fetch_sub(&inside, 1);
    }
    return unused;
}

/* In a child process there are no threads but the one that forked. */
static void forked(void) {
    workers = 0;
    atomic_store(&turn, 0), atomic_store(&inside, 0), atomic_store(&asleep, 0);
    pthread_mutex_init(&busy, 0), pthread_mutex_init(&bed, 0), pthread_cond_init(&bell, 0);
}

static void hire(int64_t wanted) {
    static int prepared;
    if (!prepared) prepared = !pthread_atfork(0, 0, forked);
    pthread_attr_t detached;
    pthread_t thread;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    while (prepared && workers < wanted && !pthread_create(&thread, &detached, worker, 0)) workers++;
    pthread_attr_destroy(&detached);
}

/* Call `call` for `count` rows with `helpers` more threads; without them where another thread's call is on. */
void run(Call call, const int64_t *rows, int64_t count, int64_t helpers, float number) {
    if (pthread_mutex_trylock(&busy)) {
        for (const int64_t *r = rows; r < rows + count * WIDTH; r += WIDTH)
            call(r[0], r[1], r[2], r[3], r[4], r[5], r[6], r[7], r[8], r[9], r[10], r[11], r[12], r[13], number);
        return;
    }
    if (workers < helpers) hire(helpers);
    job.call = call, job.rows = rows, job.count = count, job.number = number;
    atomic_store(&next, 0);
    atomic_fetch_add(&turn, 1);
    if (atomic_load(&asleep)) {
        pthread_mutex_lock(&bed);
        pthread_cond_broadcast(&bell);
        pthread_mutex_unlock(&bed);
    }
    work();
    atomic_fetch_add(&turn, 1);
    while (atomic_load(&inside)) BREATHE;
    pthread_mutex_unlock(&busy);
}
