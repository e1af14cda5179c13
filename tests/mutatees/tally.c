/* What the C library is asked for, by this program's own tally.
 *
 * heap N            N rounds of every heap request
 * files N           N rounds of opens, reads, writes, maps and syncs
 * sockets N         N connections over the loopback with a few messages each, and N children
 * locks N T         T threads that do N rounds of locks and waits that need not wait
 * waits N US        N sleeps, lock waits, lock holds and condition waits of US microseconds each
 * study N US        N recursions four calls deep, which use the heap, write, wait for a lock and compute, US microseconds each
 * work N US         N calls that compute for about US microseconds each
 * N is at least 1. Each answer has `mutex ADDRESS`, and `is METRIC@FUNCTION VALUE`: what a metric that is restricted to a function, or not, must show
 * since the start; times in nanoseconds as `took METRIC@FUNCTION NS CALLS`, processor times as `computed …`; of a distribution METRIC is its
 * number of values, METRIC.sum their sum. */
#include "mutatee.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <malloc.h>
#include <netinet/in.h>
#include <poll.h>
#include <semaphore.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>

struct tally {
    const char *metric, *function;
    long long value, calls;
    int time;
};
static struct tally tallies[128];
static pthread_mutex_t tallying = PTHREAD_MUTEX_INITIALIZER;

/* Called outside of the measured functions, because it locks a mutex. */
static void add(int time, const char *metric, const char *function, long long value) {
    pthread_mutex_lock(&tallying);
    struct tally *t = tallies;
    while (t->metric && (strcmp(t->metric, metric) || strcmp(t->function, function))) t++;
    t->metric = metric;
    t->function = function;
    t->value += value;
    t->calls++;
    t->time = time;
    pthread_mutex_unlock(&tallying);
}

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

struct heap {
    long long requests, bytes, large, releases;
};

/* Changes nothing, so definitions may call it. */
COUNTED long answer_size(long answer) { return answer < 0 ? -answer : answer; }

COUNTED void heap(long n, struct heap *did) {
    long i = 0;
    do {
        void *p[13] = {0};
        p[0] = malloc(100);
        p[1] = calloc(3, 50);
        p[2] = realloc(NULL, 10);
        p[2] = realloc(p[2], 5000);
        p[3] = reallocarray(NULL, 4, 25);
        p[4] = aligned_alloc(64, 128);
        if (posix_memalign(&p[5], 64, 256)) abort();
        p[6] = memalign(8, 64);
        p[7] = valloc(100);
        p[8] = malloc(200000);
        p[9] = calloc(1000, 132);
        p[12] = malloc(7);
        if (malloc(1L << 50)) abort(); /* refused */
        for (int f = 0; f < 13; f++) free(p[f]); /* two of them null */
        did->requests += 13;
        did->bytes += 100 + 150 + 10 + 5000 + 100 + 128 + 256 + 64 + 100 + 200000 + 132000 + 7;
        did->bytes += 1L << 50;
        did->large += 2 + 1;
        did->releases += 11;
    } while (++i < n);
}

/* For its arguments only. */
COUNTED long four(long a, long b, long c, long d) { return a + b + c + d; }

struct files {
    long long opens, syncs, operations, read, written, small, maps, asked_read, asked_written, synced;
};

COUNTED void files(long n, struct files *did) {
    static char buffer[8192];
    long i = 0;
    do {
        int fd = open("/tmp", O_TMPFILE | O_RDWR, 0600), zero = openat(AT_FDCWD, "/dev/zero", O_RDONLY);
        if (fd < 0 || zero < 0) abort();
        struct iovec two[2] = {{buffer, 1000}, {buffer, 24}};
        did->written += write(fd, buffer, 10) + pwrite(fd, buffer, 8192, 0);
        did->written += writev(fd, two, 2) + pwritev(fd, two, 2, 0);
        if (write(-1, buffer, 100) != -1) abort();
        did->read += pread(fd, buffer, 8192, 4096) + read(zero, buffer, 100) + readv(zero, two, 2) + preadv(fd, two, 2, 0);
        long long begin = now();
        if (fsync(fd) || fdatasync(fd)) abort();
        did->synced += now() - begin;
        char *map = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
        munmap(map, 4096);
        close(fd);
        close(zero);
        FILE *file = fopen("/dev/null", "r");
        fclose(file);
        did->opens += 3;
        did->syncs += 2;
        did->operations += 9;
        did->small++;
        did->maps += 2;
        did->asked_read += 8192 + 100;
        did->asked_written += 10 + 8192 + 100;
    } while (++i < n);
}

struct sockets {
    long long accepts, connects, operations, read, written, waits, children;
};

COUNTED void sockets(long n, struct sockets *did) {
    char buffer[256];
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int server = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(server, (void *)&at, sizeof at) || listen(server, 8) || getsockname(server, (void *)&at, &size)) abort();
    long i = 0;
    do {
        int client = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(client, (void *)&at, sizeof at)) abort();
        int served = i % 2 ? accept(server, NULL, NULL) : accept4(server, NULL, NULL, SOCK_CLOEXEC);
        did->written += send(client, buffer, 100, 0) + sendto(client, buffer, 50, 0, NULL, 0);
        struct iovec one = {buffer, 30};
        struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1};
        did->written += sendmsg(client, &message, 0);
        struct pollfd ready = {.fd = served, .events = POLLIN};
        if (poll(&ready, 1, -1) != 1) abort();
        did->read += recv(served, buffer, 100, MSG_WAITALL) + recvfrom(served, buffer, 50, MSG_WAITALL, NULL, NULL);
        did->read += recvmsg(served, &message, MSG_WAITALL);
        close(client);
        close(served);
        did->operations += 6;
        did->accepts++;
        did->connects++;
        did->waits++;
        int status;
        pid_t child = fork();
        if (child == 0) _exit(0);
        waitpid(child, &status, 0);
        char *arguments[] = {"true", NULL};
        if (posix_spawnp(&child, "true", NULL, NULL, arguments, NULL)) abort();
        waitpid(child, &status, 0);
        did->children += 2;
    } while (++i < n);
    close(server);
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_spinlock_t spinlock;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static sem_t semaphore;
static pthread_barrier_t barrier;

struct locks {
    long long locks, tries, unlocks, rwlocks, spins, waits, signals, semaphores, barriers;
};

static void *nothing(void *unused) { return unused; }

COUNTED void locks(long n, struct locks *did) {
    struct timespec past = {0, 0};
    long i = 0;
    do {
        pthread_mutex_t own = PTHREAD_MUTEX_INITIALIZER;
        // The condition variable is local, too: a timed-out wait beside others passes a signal on to them, which is one more signal.
        pthread_cond_t lonely = PTHREAD_COND_INITIALIZER;
        pthread_mutex_lock(&mutex);
        pthread_mutex_unlock(&mutex);
        pthread_mutex_timedlock(&own, &past);
        if (pthread_mutex_trylock(&own) != EBUSY) abort();
        pthread_cond_timedwait(&lonely, &own, &past);
        pthread_mutex_unlock(&own);
        pthread_cond_signal(&lonely);
        pthread_cond_broadcast(&lonely);
        pthread_rwlock_rdlock(&rwlock);
        pthread_rwlock_unlock(&rwlock);
        pthread_rwlock_wrlock(&rwlock);
        pthread_rwlock_unlock(&rwlock);
        pthread_spin_lock(&spinlock);
        pthread_spin_unlock(&spinlock);
        sem_post(&semaphore);
        sem_wait(&semaphore);
        pthread_barrier_wait(&barrier);
        did->locks += 2;
        did->tries++;
        did->unlocks += 2;
        did->rwlocks += 2;
        did->spins++;
        did->waits++;
        did->signals += 2;
        did->semaphores++;
        did->barriers++;
    } while (++i < n);
}

/* Measured alone, because the C library locks a mutex of its own for a new thread. */
COUNTED void starts(long n) {
    long i = 0;
    do {
        pthread_t thread;
        pthread_create(&thread, NULL, nothing, NULL);
        pthread_join(thread, NULL);
    } while (++i < n);
}

static void *locker(void *given) {
    struct locks did = {0};
    locks(*(long *)given, &did);
    add(0, "lock_operations", "locks", did.locks);
    add(0, "lock_tries", "locks", did.tries);
    add(0, "unlock_operations", "locks", did.unlocks);
    add(0, "rwlock_operations", "locks", did.rwlocks);
    add(0, "spin_operations", "locks", did.spins);
    add(0, "condition_waits", "locks", did.waits);
    add(0, "condition_signals", "locks", did.signals);
    add(0, "semaphore_waits", "locks", did.semaphores);
    add(0, "barrier_waits", "locks", did.barriers);
    add(0, "lock_latency", "locks", did.locks);
    add(0, "condition_latency", "locks", did.waits);
    add(0, "rwlock_operations_by_object", "locks", did.rwlocks);
    add(0, "condition_waits_by_object", "locks", did.waits);
    add(0, "semaphore_waits_by_object", "locks", did.semaphores);
    add(0, "barrier_waits_by_object", "locks", did.barriers);
    add(0, "spin_operations_by_object", "locks", did.spins);
    starts(*(long *)given);
    add(0, "thread_starts", "starts", *(long *)given);
    return NULL;
}

/* State of a partner thread that holds an object for `us` microseconds while the measured thread wants it. */
struct turn {
    long us;
    sem_t held, late;
};

static void doze(long us) {
    struct timespec t = {us / 1000000, us % 1000000 * 1000};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
}

static void *holder(void *given) {
    struct turn *turn = given;
    pthread_mutex_lock(&mutex);
    sem_post(&turn->held);
    doze(turn->us);
    pthread_mutex_unlock(&mutex);
    return NULL;
}

static void *partner(void *given) {
    struct turn *turn = given;
    pthread_mutex_lock(&mutex);
    pthread_rwlock_wrlock(&rwlock);
    sem_post(&turn->held);
    doze(turn->us);
    pthread_mutex_unlock(&mutex);
    doze(3 * turn->us);
    pthread_rwlock_unlock(&rwlock);
    doze(turn->us);
    pthread_barrier_wait(&barrier);
    doze(turn->us);
    sem_post(&turn->late);
    doze(turn->us);
    return NULL;
}

enum { SLEEP, LOCK, HOLD, CONDITION, RWLOCK, POLL, READ, BARRIER, TIMES, SEMAPHORE = TIMES, JOIN, ALL };
static const char *const timed[TIMES] = {"sleep_time",  "lock_wait",       "lock_hold", "condition_wait",
                                         "rwlock_wait", "event_wait_time", "io_time",   "barrier_wait"};
/* Further pairs with the same value as one of the times. */
static const struct {
    const char *metric;
    int what;
} also[] = {
    {"lock_latency.sum", LOCK},
    {"condition_latency.sum", CONDITION},
    {"rwlock_wait_by_object", RWLOCK},
    {"io_latency.sum", READ},
    {"io_wait", READ},
    {"io_wait_inclusive", READ},
};

#define TIMED(what, call)            \
    do {                             \
        long long begin = now();     \
        call;                        \
        ns[what] += now() - begin;   \
    } while (0)

static void *writer(void *given) {
    long *to = given;
    doze(to[0]);
    if (write((int)to[1], "x", 1) != 1) abort();
    return NULL;
}

/* Locks of the last call of `waits` that took ten microseconds or longer. */
static int slow_locks;

/* Returns the time of day `us` microseconds from now. */
static struct timespec in_microseconds(long us) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    long long nanoseconds = until.tv_nsec + us * 1000LL;
    until.tv_sec += nanoseconds / 1000000000;
    until.tv_nsec = nanoseconds % 1000000000;
    return until;
}

COUNTED void waits(long us, long long *ns) {
    struct turn turn = {.us = us};
    pthread_t thread;
    sem_init(&turn.held, 0, 0);
    sem_init(&turn.late, 0, 0);
    TIMED(SLEEP, usleep((useconds_t)us));
    pthread_create(&thread, NULL, partner, &turn);
    while (sem_trywait(&turn.held)) sched_yield();
    TIMED(LOCK, pthread_mutex_lock(&mutex));
    long long held = now();
    TIMED(SLEEP, doze(us));
    slow_locks = ns[LOCK] >= 10000;
    struct timespec until = in_microseconds(us);
    long long begin = now();
    if (pthread_mutex_timedlock(&mutex, &until) != ETIMEDOUT) abort();
    long long took = now() - begin;
    slow_locks += took >= 10000;
    ns[LOCK] += took;
    until = in_microseconds(us);
    ns[HOLD] += now() - held;
    TIMED(CONDITION, pthread_cond_timedwait(&condition, &mutex, &until));
    held = now();
    pthread_mutex_unlock(&mutex);
    ns[HOLD] += now() - held;
    TIMED(RWLOCK, pthread_rwlock_rdlock(&rwlock));
    pthread_rwlock_unlock(&rwlock);
    TIMED(BARRIER, pthread_barrier_wait(&barrier));
    TIMED(SEMAPHORE, sem_wait(&turn.late));
    TIMED(JOIN, pthread_join(thread, NULL));
    TIMED(POLL, poll(NULL, 0, (int)(us / 1000)));
    int ends[2];
    char byte;
    if (pipe(ends)) abort();
    long to[2] = {us, ends[1]};
    pthread_create(&thread, NULL, writer, to);
    TIMED(READ, if (read(ends[0], &byte, 1) != 1) abort());
    pthread_join(thread, NULL);
    close(ends[0]);
    close(ends[1]);
}

struct study {
    long long calls, requests, exclusive, innermost, asked, written, waited, computed;
    int null, file, right;
};

/* A callee, whose requests an exclusive metric must leave out. */
COUNTED void helper(struct study *did) {
    free(malloc(30));
    did->requests++;
}

static long long cpu(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Only computes. */
COUNTED void work(long us) {
    for (long i = 0; i < us * 1000; i++) __asm__ volatile("");
}

/* Makes room between calls, so that each can be woven. */
#define ROOM __asm__ volatile("nopl 0(%rax, %rax)\n\tnopl 0(%rax, %rax)")

/* Returns when somebody else holds the mutex. */
COUNTED void await(struct turn *turn) {
    while (sem_trywait(&turn->held)) sched_yield();
}

COUNTED __attribute__((optimize("no-optimize-sibling-calls"))) void study(long depth, long us, struct study *did) {
    static char buffer[8192];
    ROOM;
    if (depth) study(depth - 1, us, did);
    ROOM;
    void *p = malloc(10);
    ROOM;
    void *q = calloc(1, 10);
    ROOM;
    p = realloc(p, 3000);
    ROOM;
    free(p);
    ROOM;
    free(q);
    ROOM;
    helper(did);
    ROOM;
    did->written += write(did->null, buffer, 8192);
    ROOM;
    did->written += pwrite(did->file, buffer, 5000, 0);
    ROOM;
    long small = write(did->null, buffer, 100);
    ROOM;
    long none = write(-1, buffer, 6000);
    ROOM;
    did->right &= small == 100 && none == -1;
    struct turn turn = {.us = us};
    pthread_t thread;
    sem_init(&turn.held, 0, 0);
    ROOM;
    pthread_create(&thread, NULL, holder, &turn);
    ROOM;
    await(&turn);
    ROOM;
    long long begin = now();
    ROOM;
    pthread_mutex_lock(&mutex);
    ROOM;
    did->waited += now() - begin;
    ROOM;
    pthread_mutex_unlock(&mutex);
    ROOM;
    pthread_join(thread, NULL);
    ROOM;
    begin = cpu();
    ROOM;
    for (long i = 0; i < us * 1000; i++) __asm__ volatile("");
    ROOM;
    did->computed += cpu() - begin;
    ROOM;
    did->calls++;
    did->requests += 3;
    did->exclusive += 3;
    if (!depth) did->innermost += 4;
    did->asked += 8192 + 5000 + 6000;
}

int main(void) {
    pthread_spin_init(&spinlock, PTHREAD_PROCESS_PRIVATE);
    sem_init(&semaphore, 0, 0);
    /* For the first thread, the C library allocates memory that later threads reuse. */
    pthread_t first;
    pthread_create(&first, NULL, nothing, NULL);
    pthread_join(first, NULL);
    say_ready();
    for (char *line; (line = next_command());) {
        long n, more;
        if (sscanf(line, "heap %ld", &n) == 1) {
            struct heap did = {0};
            heap(n, &did);
            add(0, "heap_requests", "heap", did.requests);
            add(0, "heap_bytes", "heap", did.bytes);
            add(0, "large_heap_requests", "heap", did.large);
            add(0, "heap_releases", "heap", did.releases);
            for (long i = 1; i <= n; i++) four(i, 2, 3 * i, -1);
            add(0, "calls", "four", n);
            add(0, "returns", "four", n);
            add(0, "procedure_called", "four", n);
            add(0, "argument0", "four", n * (n + 1) / 2);
            add(0, "argument1", "four", 2 * n);
            add(0, "argument2", "four", 3 * n * (n + 1) / 2);
            add(0, "argument3", "four", -n);
            add(0, "null_arguments", "four", 0);
        } else if (sscanf(line, "files %ld", &n) == 1) {
            struct files did = {0};
            files(n, &did);
            add(0, "file_opens", "files", did.opens);
            add(0, "file_syncs", "files", did.syncs);
            add(0, "io_operations", "files", did.operations);
            add(0, "io_bytes_read", "files", did.read);
            add(0, "io_bytes_written", "files", did.written);
            add(0, "small_writes", "files", did.small);
            add(0, "memory_mappings", "files", did.maps);
            add(0, "io_bytes_asked_to_read", "files", did.asked_read);
            add(0, "io_bytes_asked_to_write", "files", did.asked_written);
            add(0, "io_latency", "files", did.operations);
            add(0, "file_sync_latency", "files", did.syncs);
            add(1, "file_sync_time", "files", did.synced);
            add(1, "file_sync_latency.sum", "files", did.synced);
        } else if (sscanf(line, "sockets %ld", &n) == 1) {
            struct sockets did = {0};
            sockets(n, &did);
            add(0, "socket_accepts", "sockets", did.accepts);
            add(0, "socket_connects", "sockets", did.connects);
            add(0, "io_operations", "sockets", did.operations);
            add(0, "io_bytes_read", "sockets", did.read);
            add(0, "io_bytes_written", "sockets", did.written);
            add(0, "event_waits", "sockets", did.waits);
            add(0, "process_starts", "sockets", did.children);
        } else if (sscanf(line, "locks %ld %ld", &n, &more) == 2 && more <= 64) {
            pthread_t threads[64];
            pthread_barrier_init(&barrier, NULL, (unsigned)more);
            for (long i = 0; i < more; i++) pthread_create(&threads[i], NULL, locker, &n);
            for (long i = 0; i < more; i++) pthread_join(threads[i], NULL);
            pthread_barrier_destroy(&barrier);
        } else if (sscanf(line, "waits %ld %ld", &n, &more) == 2) {
            pthread_barrier_init(&barrier, NULL, 2);
            for (long i = 0; i < n; i++) {
                long long ns[ALL] = {0};
                waits(more, ns);
                for (int t = 0; t < TIMES; t++) add(1, timed[t], "waits", ns[t]);
                for (size_t t = 0; t < sizeof also / sizeof *also; t++) add(1, also[t].metric, "waits", ns[also[t].what]);
                for (int deep = 0; deep < 2; deep++) {
                    const char *metric = deep ? "sync_wait_inclusive" : "sync_wait";
                    add(1, metric, "waits", ns[LOCK] + ns[CONDITION] + ns[BARRIER] + ns[SEMAPHORE] + ns[JOIN]);
                }
                add(0, "slow_locks", "waits", slow_locks);
                add(0, "sleeps", "waits", 2);
            }
            pthread_barrier_destroy(&barrier);
        } else if (sscanf(line, "study %ld %ld", &n, &more) == 2) {
            struct study did = {.null = open("/dev/null", O_WRONLY), .file = open("/tmp", O_TMPFILE | O_RDWR, 0600), .right = 1};
            long long begin = now();
            for (long i = 0; i < n; i++) study(3, more, &did);
            long long outermost = now() - begin;
            if (!did.right) abort();
            close(did.null);
            close(did.file);
            add(0, "heap_requests", "study", did.requests);
            add(0, "exclusive_requests", "study", did.exclusive);
            add(0, "careless_requests", "study", did.innermost);
            add(0, "large_write_bytes", "study", did.written);
            add(0, "large_write_bytes", "", did.written);
            add(0, "my_large_writes", "", did.asked);
            add(0, "my_latency", "study", did.calls);
            add(0, "my_slow_calls", "study", did.calls - n);
            add(0, "null_arguments", "study", n);
            add(0, "procedure_calls", "helper", 2 * did.calls);
            add(0, "io_ops", "study", 4 * did.calls);
            add(0, "io_bytes", "study", did.asked + 100 * did.calls);
            add(0, "sync_ops", "study", 2 * did.calls);
            add(0, "cpu_latency", "helper", did.calls);
            add(0, "self_latency", "helper", did.calls);
            add(1, "self_latency.sum", "study", outermost);
            add(1, "lock_wait", "study", did.waited);
            add(2, "cpu_self", "study", did.computed);
        } else if (sscanf(line, "work %ld %ld", &n, &more) == 2) {
            long long begin = now(), begin_cpu = cpu();
            for (long i = 0; i < n; i++) work(more);
            long long computed = cpu() - begin_cpu, took = now() - begin;
            const char *const wall[] = {"wall_time", "exec_time", "exec_time_inclusive", "latency.sum", "self_latency.sum"};
            const char *const own[] = {"cpu_time", "cpu", "cpu_inclusive", "cpu_latency.sum"};
            for (size_t i = 0; i < sizeof wall / sizeof *wall; i++) add(1, wall[i], "work", took);
            for (size_t i = 0; i < sizeof own / sizeof *own; i++) add(2, own[i], "work", computed);
            add(0, "latency", "work", n);
        } else {
            say("unknown command %s", line);
        }
        say("mutex %p", (void *)&mutex);
        for (struct tally *t = tallies; t->metric; t++) {
            if (t->time)
                say("%s %s@%s %lld %lld", t->time == 1 ? "took" : "computed", t->metric, t->function, t->value, t->calls);
            else
                say("is %s@%s %lld", t->metric, t->function, t->value);
        }
        say("done");
    }
    return 0;
}
