/* Threads that cause a known number of events, by the kernel's own account of each (getrusage).
 *
 * events T          starts T threads that wait
 * act PAGES NAPS    each of them touches PAGES fresh pages and sleeps NAPS times
 * short N PAGES     N threads, one after the other, that touch PAGES fresh pages and end
 * grow T            T threads more that wait
 * child PAGES       a fork child that touches PAGES fresh pages
 * burn MS           this thread computes for MS milliseconds of processor time
 * say               what has been so far
 * Each answer has `thread TID minor M major M switches S` for every thread that waits, as of when it last began to wait, and the same of all
 * together, ended ones included, as `process minor M major M switches S cpu NS`. */
#include "mutatee.h"
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

enum { MOST = 64 };
static struct worker {
    pthread_t thread;
    int tid;
    struct rusage usage;
} workers[MOST];
static int count, round_of_work, resting;
static long pages, naps;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t go = PTHREAD_COND_INITIALIZER, rested = PTHREAD_COND_INITIALIZER;

COUNTED void touch(long n) {
    if (n == 0) return;
    size_t bytes = (size_t)n * 4096;
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED || madvise(at, bytes, MADV_NOHUGEPAGE)) abort();
    for (size_t i = 0; i < bytes; i += 4096) at[i] = 1;
    munmap(at, bytes);
}

COUNTED void nap(long n) {
    struct timespec t = {0, 1000000};
    while (n-- > 0) nanosleep(&t, NULL);
}

static void *work(void *argument) {
    struct worker *self = argument;
    self->tid = own_tid();
    pthread_mutex_lock(&lock);
    for (int seen = round_of_work;; seen = round_of_work) {
        getrusage(RUSAGE_THREAD, &self->usage);
        resting++;
        pthread_cond_signal(&rested);
        while (seen == round_of_work) pthread_cond_wait(&go, &lock);
        long p = pages, n = naps;
        pthread_mutex_unlock(&lock);
        touch(p);
        nap(n);
        pthread_mutex_lock(&lock);
    }
    return NULL;
}

static void all_rest(void) {
    pthread_mutex_lock(&lock);
    while (resting < count) pthread_cond_wait(&rested, &lock);
    pthread_mutex_unlock(&lock);
}

static void grow(int threads) {
    for (; threads > 0 && count < MOST; threads--) {
        struct worker *w = &workers[count++];
        if (pthread_create(&w->thread, NULL, work, w)) abort();
    }
    all_rest();
}

static void *brief(void *argument) {
    touch((long)argument);
    return NULL;
}

__attribute__((noinline)) static void burn(long ms) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    long long end = t.tv_sec * 1000000000LL + t.tv_nsec + ms * 1000000;
    do clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    while (t.tv_sec * 1000000000LL + t.tv_nsec < end);
}

static void tell(void) {
    for (int i = 0; i < count; i++) {
        struct rusage *u = &workers[i].usage;
        say("thread %d minor %ld major %ld switches %ld", workers[i].tid, u->ru_minflt, u->ru_majflt, u->ru_nvcsw + u->ru_nivcsw);
    }
    struct rusage u;
    struct timespec t;
    getrusage(RUSAGE_SELF, &u);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    say("process minor %ld major %ld switches %ld cpu %lld", u.ru_minflt, u.ru_majflt, u.ru_nvcsw + u.ru_nivcsw,
        t.tv_sec * 1000000000LL + t.tv_nsec);
    say("done");
}

int main(int argc, char **argv) {
    grow(argc > 1 ? atoi(argv[1]) : 2);
    say_ready();
    for (char *line; (line = next_command());) {
        long a = 0, b = 0;
        if (sscanf(line, "act %ld %ld", &a, &b) == 2) {
            pthread_mutex_lock(&lock);
            pages = a;
            naps = b;
            resting = 0;
            round_of_work++;
            pthread_cond_broadcast(&go);
            pthread_mutex_unlock(&lock);
            all_rest();
        } else if (sscanf(line, "short %ld %ld", &a, &b) == 2) {
            for (pthread_t t; a > 0; a--) {
                if (pthread_create(&t, NULL, brief, (void *)b)) abort();
                pthread_join(t, NULL);
            }
        } else if (sscanf(line, "child %ld", &a) == 1) {
            pid_t child = fork();
            if (child == 0) {
                touch(a);
                _exit(0);
            }
            if (child < 0 || waitpid(child, NULL, 0) != child) abort();
        } else if (sscanf(line, "grow %ld", &a) == 1) {
            grow((int)a);
        } else if (sscanf(line, "burn %ld", &a) == 1) {
            burn(a);
        }
        tell();
    }
    return 0;
}
