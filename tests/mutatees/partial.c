/* Threads in system calls that have done a part of their work when a stop comes. The kernel then ends them with what is done, as it does when a
 * signal is handled: nothing may be done twice, nothing may be lost, and a call that has done nothing yet may not end.
 *
 * tick N            the main thread calls `tick` N times (something to count)
 * check             `short NAME N`: how often a call ended with a part; `interrupted NAME N`: how often with EINTR
 * stay              `waiting N`: how many threads are in a system call now
 * release           lets all of them end: `moved NAME N` bytes, or completions
 */
#include "mutatee.h"
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/socket.h>

COUNTED long tick(long x) { return x * 3 + 1; }

#define WHOLE (1 << 20)
#define MESSAGE 16

struct part {
    const char *name;
    void (*run)(struct part *);
    int fd, other;
    _Atomic int tid, shorter, interrupted, done;
    _Atomic long moved;
};

/* Counts calls that were interrupted, and calls that did less than was asked. */
static void note(struct part *p, long got, long asked) {
    if (got < 0 && errno == EINTR) p->interrupted++;
    else if (got < 0) abort();
    else if (got < asked) p->shorter++;
}

static void in_write(struct part *p) {
    char *bytes = calloc(1, WHOLE);
    if (!bytes) abort();
    for (int i = 0; i < WHOLE; i++) bytes[i] = (char)(i * 7 + (i >> 9));
    for (long at = 0; at < WHOLE;) {
        long n = write(p->fd, bytes + at, (size_t)(WHOLE - at));
        note(p, n, WHOLE - at);
        if (n > 0) at += n, p->moved += n;
    }
    free(bytes);
}

static void in_recv(struct part *p) {
    char bytes[MESSAGE];
    for (long at = 0; at < MESSAGE;) {
        long n = recv(p->fd, bytes + at, (size_t)(MESSAGE - at), MSG_WAITALL);
        note(p, n, MESSAGE - at);
        if (n > 0) at += n, p->moved += n;
    }
    for (int i = 0; i < MESSAGE; i++)
        if (bytes[i] != i) abort();
}

struct ring {
    int fd;
    unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
};

static struct ring ring;

/* Opens a ring; returns whether this machine has io_uring. */
static int open_ring(void) {
    struct io_uring_params p;
    memset(&p, 0, sizeof p);
    ring.fd = (int)syscall(SYS_io_uring_setup, 8, &p);
    if (ring.fd < 0) return 0;
    char *sq = mmap(NULL, p.sq_off.array + p.sq_entries * sizeof(unsigned), PROT_READ | PROT_WRITE, MAP_SHARED, ring.fd, IORING_OFF_SQ_RING);
    char *cq = mmap(NULL, p.cq_off.cqes + p.cq_entries * sizeof *ring.cqes, PROT_READ | PROT_WRITE, MAP_SHARED, ring.fd, IORING_OFF_CQ_RING);
    ring.sqes = mmap(NULL, p.sq_entries * sizeof *ring.sqes, PROT_READ | PROT_WRITE, MAP_SHARED, ring.fd, IORING_OFF_SQES);
    if (sq == MAP_FAILED || cq == MAP_FAILED || ring.sqes == MAP_FAILED) abort();
    ring.sq_tail = (unsigned *)(sq + p.sq_off.tail);
    ring.sq_mask = (unsigned *)(sq + p.sq_off.ring_mask);
    ring.sq_array = (unsigned *)(sq + p.sq_off.array);
    ring.cq_head = (unsigned *)(cq + p.cq_off.head);
    ring.cq_tail = (unsigned *)(cq + p.cq_off.tail);
    ring.cq_mask = (unsigned *)(cq + p.cq_off.ring_mask);
    ring.cqes = (struct io_uring_cqe *)(cq + p.cq_off.cqes);
    return 1;
}

/* Reads one byte: submits and waits in one call, then waits on as liburing does. */
static void in_uring(struct part *p) {
    static char byte;
    unsigned tail = *ring.sq_tail, index = tail & *ring.sq_mask;
    struct io_uring_sqe *sqe = &ring.sqes[index];
    memset(sqe, 0, sizeof *sqe);
    sqe->opcode = IORING_OP_READ;
    sqe->fd = p->fd;
    sqe->addr = (unsigned long)&byte;
    sqe->len = 1;
    sqe->user_data = 42;
    ring.sq_array[index] = index;
    __atomic_store_n(ring.sq_tail, tail + 1, __ATOMIC_RELEASE);
    unsigned submit = 1, head = *ring.cq_head;
    while (__atomic_load_n(ring.cq_tail, __ATOMIC_ACQUIRE) == head) {
        long n = syscall(SYS_io_uring_enter, ring.fd, submit, 1, IORING_ENTER_GETEVENTS, NULL, 0);
        if (n < 0) {
            note(p, n, 0);
            continue;
        }
        if (n != (long)submit) abort();
        submit = 0;
        if (__atomic_load_n(ring.cq_tail, __ATOMIC_ACQUIRE) == head) p->shorter++;
    }
    /* If the read had been submitted twice, a second completion would follow for the second byte. */
    for (unsigned end; head != (end = __atomic_load_n(ring.cq_tail, __ATOMIC_ACQUIRE)); head++) {
        struct io_uring_cqe *cqe = &ring.cqes[head & *ring.cq_mask];
        if (cqe->user_data != 42 || cqe->res != 1) abort();
        p->moved++;
    }
    __atomic_store_n(ring.cq_head, head, __ATOMIC_RELEASE);
}

static struct part parts[] = {
    {"write", in_write, -1, -1, 0, 0, 0, 0, 0},
    {"recv", in_recv, -1, -1, 0, 0, 0, 0, 0},
    {"uring", in_uring, -1, -1, 0, 0, 0, 0, 0},
};
enum { COUNT = sizeof parts / sizeof *parts };
static pthread_t ids[COUNT];
static int count = COUNT;

static void *run(void *argument) {
    struct part *p = argument;
    atomic_store(&p->tid, own_tid());
    p->run(p);
    atomic_store(&p->done, 1);
    return NULL;
}

static int asleep(struct part *p) {
    char path[64], text[256];
    int tid = atomic_load(&p->tid);
    if (!tid || atomic_load(&p->done)) return 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = 0;
    char *end = strrchr(text, ')');
    return end && end[2] == 'S';
}

int main(void) {
    char message[MESSAGE];
    for (int i = 0; i < MESSAGE; i++) message[i] = (char)i;
    if (!open_ring()) count--;
    for (int i = 0; i < count; i++) {
        int pair[2];
        struct part *p = &parts[i];
        if (p->run == in_recv ? socketpair(AF_UNIX, SOCK_STREAM, 0, pair) : pipe(pair)) abort();
        int writes = p->run == in_write;
        p->fd = pair[writes];
        p->other = pair[!writes];
        if (p->run == in_recv && write(p->other, message, MESSAGE / 2) != MESSAGE / 2) abort();
        if (pthread_create(&ids[i], NULL, run, p)) abort();
    }
    for (int i = 0; i < count; i++)
        while (!asleep(&parts[i])) sched_yield();
    say_ready();
    for (char *line; (line = next_command());) {
        long n;
        if (!strcmp(line, "check")) {
            for (int i = 0; i < count; i++) {
                say("short %s %d", parts[i].name, parts[i].shorter);
                say("interrupted %s %d", parts[i].name, parts[i].interrupted);
            }
        } else if (!strcmp(line, "stay")) {
            int waiting = 0;
            for (int i = 0; i < count; i++) waiting += asleep(&parts[i]);
            say("waiting %d of %d", waiting, count);
        } else if (sscanf(line, "tick %ld", &n) == 1) {
            long bad = 0;
            for (long i = 0; i < n; i++) bad += tick(i) != i * 3 + 1;
            if (bad) abort();
        } else if (!strcmp(line, "release")) {
            for (int i = 0; i < count; i++) {
                struct part *p = &parts[i];
                long got = 0;
                if (p->run == in_write) {
                    static char bytes[4096];
                    for (long r; got < WHOLE && (r = read(p->other, bytes, sizeof bytes)) > 0; got += r)
                        for (long j = 0; j < r; j++)
                            if (bytes[j] != (char)((got + j) * 7 + ((got + j) >> 9))) abort();
                } else if (p->run == in_recv) {
                    if (write(p->other, message + MESSAGE / 2, MESSAGE / 2) != MESSAGE / 2) abort();
                } else if (write(p->other, "xy", 2) != 2) {
                    abort();
                }
                pthread_join(ids[i], NULL);
                say("moved %s %ld", p->name, p->moved);
            }
        } else {
            say("unknown command %s", line);
        }
        say("done");
    }
    return 0;
}
