/* Threads that wait in system calls, with and without time-outs: what must never return early because of a measurement.
 *
 * check             `early NAME RETURN ERRNO` for every call that has returned, then `tally tick N`
 * tick N            the main thread calls `tick` N times (something to count)
 * release           makes every call return as it should: `returned NAME RETURN ERRNO`
 * stay              prints `waiting N`: how many threads are in their system call now
 */
#include "mutatee.h"
#include <linux/futex.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>

COUNTED long tick(long x) { return x * 3 + 1; }

/* Ten minutes: far beyond any run. */
#define LONG 600

struct wait {
    const char *name;
    long (*call)(struct wait *);
    int fd, other;
    _Atomic int tid, returned;
    long value;
    int error;
};

static int futex_word, semaphore = -1, queue = -1;
static sigset_t waited;

static long in_read(struct wait *w) {
    char byte;
    return read(w->fd, &byte, 1);
}
static long in_futex(struct wait *w) {
    (void)w;
    return syscall(SYS_futex, &futex_word, FUTEX_WAIT, 0, NULL, NULL, 0);
}
static long in_futex_timed(struct wait *w) {
    struct timespec t = {LONG, 0};
    (void)w;
    return syscall(SYS_futex, &futex_word, FUTEX_WAIT, 0, &t, NULL, 0);
}
static long in_nanosleep(struct wait *w) {
    struct timespec t = {LONG, 0};
    (void)w;
    return nanosleep(&t, NULL);
}
static long in_clock_nanosleep(struct wait *w) {
    struct timespec t;
    (void)w;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += LONG;
    return clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}
static long in_poll(struct wait *w) {
    struct pollfd p = {w->fd, POLLIN, 0};
    return poll(&p, 1, LONG * 1000);
}
static long in_ppoll(struct wait *w) {
    struct pollfd p = {w->fd, POLLIN, 0};
    struct timespec t = {LONG, 0};
    return ppoll(&p, 1, &t, NULL);
}
static long in_select(struct wait *w) {
    fd_set set;
    struct timeval t = {LONG, 0};
    FD_ZERO(&set);
    FD_SET(w->fd, &set);
    return select(w->fd + 1, &set, NULL, NULL, &t);
}
static long in_epoll(struct wait *w) {
    struct epoll_event e = {.events = EPOLLIN};
    int ep = epoll_create1(0);
    epoll_ctl(ep, EPOLL_CTL_ADD, w->fd, &e);
    return epoll_wait(ep, &e, 1, LONG * 1000);
}
static long in_accept(struct wait *w) { return accept(w->fd, NULL, NULL); }
static long in_recv(struct wait *w) {
    char byte;
    return recv(w->fd, &byte, 1, 0);
}
static long in_recv_timed(struct wait *w) {
    char byte;
    struct timeval t = {LONG, 0};
    setsockopt(w->fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    return recv(w->fd, &byte, 1, 0);
}
static long in_sigtimedwait(struct wait *w) {
    struct timespec t = {LONG, 0};
    (void)w;
    return sigtimedwait(&waited, NULL, &t);
}
static long in_pause(struct wait *w) {
    (void)w;
    return pause();
}
static long in_semop(struct wait *w) {
    struct sembuf down = {0, -1, 0};
    (void)w;
    return semop(semaphore, &down, 1);
}
static long in_msgrcv(struct wait *w) {
    struct {
        long type;
        char byte;
    } m;
    (void)w;
    return msgrcv(queue, &m, 1, 0, 0);
}

static struct wait waits[] = {
    {"read", in_read, -1, -1, 0, 0, 0, 0},
    {"futex", in_futex, -1, -1, 0, 0, 0, 0},
    {"futex_timed", in_futex_timed, -1, -1, 0, 0, 0, 0},
    {"nanosleep", in_nanosleep, -1, -1, 0, 0, 0, 0},
    {"clock_nanosleep", in_clock_nanosleep, -1, -1, 0, 0, 0, 0},
    {"poll", in_poll, -1, -1, 0, 0, 0, 0},
    {"ppoll", in_ppoll, -1, -1, 0, 0, 0, 0},
    {"select", in_select, -1, -1, 0, 0, 0, 0},
    {"epoll_wait", in_epoll, -1, -1, 0, 0, 0, 0},
    {"accept", in_accept, -1, -1, 0, 0, 0, 0},
    {"recv", in_recv, -1, -1, 0, 0, 0, 0},
    {"recv_timed", in_recv_timed, -1, -1, 0, 0, 0, 0},
    {"sigtimedwait", in_sigtimedwait, -1, -1, 0, 0, 0, 0},
    {"pause", in_pause, -1, -1, 0, 0, 0, 0},
    {"semop", in_semop, -1, -1, 0, 0, 0, 0},
    {"msgrcv", in_msgrcv, -1, -1, 0, 0, 0, 0},
};
enum { COUNT = sizeof waits / sizeof *waits };
static pthread_t ids[COUNT];

static void nothing(int signal) { (void)signal; }

static void *wait_in(void *argument) {
    struct wait *w = argument;
    atomic_store(&w->tid, own_tid());
    errno = 0;
    w->value = w->call(w);
    w->error = errno;
    atomic_store(&w->returned, 1);
    return NULL;
}

/* Whether a thread sleeps in the system call it is meant to be in. */
static int asleep(struct wait *w) {
    char path[64], text[256];
    int tid = atomic_load(&w->tid);
    if (!tid || atomic_load(&w->returned)) return 0;
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
    long ticks = 0;
    struct sigaction action = {.sa_handler = nothing};
    sigaction(SIGUSR1, &action, NULL);
    sigemptyset(&waited);
    sigaddset(&waited, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &waited, NULL);
    semaphore = semget(IPC_PRIVATE, 1, 0600);
    queue = msgget(IPC_PRIVATE, 0600);
    for (int i = 0; i < COUNT; i++) {
        int pair[2];
        struct wait *w = &waits[i];
        if (w->call == in_accept) {
            struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
            w->fd = socket(AF_INET, SOCK_STREAM, 0);
            if (bind(w->fd, (void *)&address, sizeof address) || listen(w->fd, 1)) abort();
        } else {
            if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) abort();
            w->fd = pair[0];
            w->other = pair[1];
        }
        if (pthread_create(&ids[i], NULL, wait_in, w)) abort();
    }
    for (int i = 0; i < COUNT; i++)
        while (!asleep(&waits[i])) sched_yield();
    say_ready();
    for (char *line; (line = next_command());) {
        long n;
        if (!strcmp(line, "check")) {
            for (int i = 0; i < COUNT; i++)
                if (atomic_load(&waits[i].returned)) say("early %s %ld %d", waits[i].name, waits[i].value, waits[i].error);
            say("tally tick %ld", ticks);
        } else if (!strcmp(line, "stay")) {
            int waiting = 0;
            for (int i = 0; i < COUNT; i++) waiting += asleep(&waits[i]);
            say("waiting %d", waiting);
        } else if (sscanf(line, "tick %ld", &n) == 1) {
            for (long i = 0; i < n; i++) ticks += tick(i) == i * 3 + 1;
        } else if (!strcmp(line, "release")) {
            futex_word = 1;
            for (int i = 0; i < COUNT; i++) {
                struct wait *w = &waits[i];
                struct sembuf up = {0, 1, 0};
                struct {
                    long type;
                    char byte;
                } m = {1, 0};
                if (w->call == in_futex || w->call == in_futex_timed) {
                    syscall(SYS_futex, &futex_word, FUTEX_WAKE, 100, NULL, NULL, 0);
                } else if (w->call == in_nanosleep || w->call == in_clock_nanosleep || w->call == in_pause) {
                    pthread_kill(ids[i], SIGUSR1);
                } else if (w->call == in_sigtimedwait) {
                    pthread_kill(ids[i], SIGUSR2);
                } else if (w->call == in_semop) {
                    semop(semaphore, &up, 1);
                } else if (w->call == in_msgrcv) {
                    msgsnd(queue, &m, 1, 0);
                } else if (w->call == in_accept) {
                    struct sockaddr_in address;
                    socklen_t length = sizeof address;
                    getsockname(w->fd, (void *)&address, &length);
                    w->other = socket(AF_INET, SOCK_STREAM, 0);
                    if (connect(w->other, (void *)&address, length)) abort();
                } else if (write(w->other, "x", 1) != 1) {
                    abort();
                }
                pthread_join(ids[i], NULL);
                say("returned %s %ld %d", w->name, w->value < 0 ? w->value : w->call == in_accept ? 0 : w->value, w->error);
            }
            semctl(semaphore, 0, IPC_RMID);
            msgctl(queue, IPC_RMID, NULL);
        } else {
            say("unknown command %s", line);
        }
        say("done");
    }
    semctl(semaphore, 0, IPC_RMID);
    msgctl(queue, IPC_RMID, NULL);
    return 0;
}
