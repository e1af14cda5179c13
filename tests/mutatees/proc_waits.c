/* Threads that wait in system calls. proc_waits NAME...: the last NAME is waited for by the main thread, the others by
 * threads of their own. Says "ready PID", then "end NAME MILLISECONDS RESULT ERRNO" whenever a wait ends. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void on_signal(int sig) { (void)sig; }

static long wait_in(const char *name) {
    struct timespec seconds = {3, 0}, hour = {3600, 0};
    char buffer[16];
    int p[2];
    if (pipe(p)) return -2;
    if (!strcmp(name, "nanosleep")) return nanosleep(&seconds, NULL);
    if (!strcmp(name, "clock_nanosleep")) return clock_nanosleep(CLOCK_MONOTONIC, 0, &hour, NULL);
    if (!strcmp(name, "read")) return read(p[0], buffer, 1);
    if (!strcmp(name, "futex")) {
        int word = 0;
        return syscall(SYS_futex, &word, FUTEX_WAIT, 0, NULL, NULL, 0);
    }
    if (!strcmp(name, "futex_timeout")) {
        int word = 0;
        return syscall(SYS_futex, &word, FUTEX_WAIT, 0, &seconds, NULL, 0);
    }
    if (!strcmp(name, "poll")) {
        struct pollfd f = {p[0], POLLIN, 0};
        return poll(&f, 1, -1);
    }
    if (!strcmp(name, "poll_timeout")) {
        struct pollfd f = {p[0], POLLIN, 0};
        return poll(&f, 1, 3000);
    }
    if (!strcmp(name, "ppoll")) {
        struct pollfd f = {p[0], POLLIN, 0};
        sigset_t none;
        sigemptyset(&none);
        return ppoll(&f, 1, &hour, &none);
    }
    if (!strcmp(name, "select")) {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(p[0], &set);
        struct timeval t = {3600, 0};
        return select(p[0] + 1, &set, NULL, NULL, &t);
    }
    if (!strcmp(name, "epoll_wait") || !strcmp(name, "epoll_timeout")) {
        int e = epoll_create1(0);
        struct epoll_event event = {.events = EPOLLIN};
        epoll_ctl(e, EPOLL_CTL_ADD, p[0], &event);
        return epoll_wait(e, &event, 1, name[6] == 'w' ? -1 : 3600000);
    }
    if (!strcmp(name, "accept") || !strcmp(name, "accept_timeout")) {
        int s = socket(AF_INET, SOCK_STREAM, 0);
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        struct timeval t = {3600, 0};
        if (name[6]) setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
        if (bind(s, (struct sockaddr *)&a, sizeof a) || listen(s, 1)) return -3;
        return accept(s, NULL, NULL);
    }
    if (!strcmp(name, "recv_timeout")) {
        int s[2];
        struct timeval t = {3600, 0};
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, s)) return -3;
        setsockopt(s[0], SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
        return recv(s[0], buffer, 1, 0);
    }
    if (!strcmp(name, "sigsuspend")) {
        sigset_t mask;
        sigfillset(&mask);
        pthread_sigmask(SIG_SETMASK, &mask, NULL);
        sigdelset(&mask, SIGUSR2);
        return sigsuspend(&mask);
    }
    if (!strcmp(name, "sigtimedwait")) {
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGRTMIN + 5);
        pthread_sigmask(SIG_BLOCK, &set, NULL);
        return sigtimedwait(&set, NULL, &hour);
    }
    if (!strcmp(name, "pause")) return pause();
    if (!strcmp(name, "semop")) {
        int id = semget(IPC_PRIVATE, 1, 0600);
        struct sembuf b = {0, -1, 0};
        semctl(id, 0, SETVAL, 0);
        long r = semop(id, &b, 1);
        int e = errno;
        semctl(id, 0, IPC_RMID);
        errno = e;
        return r;
    }
    if (!strcmp(name, "sem_wait")) {
        sem_t s;
        sem_init(&s, 0, 0);
        return sem_wait(&s);
    }
    if (!strcmp(name, "wait")) {
        pid_t child = fork();
        if (child == 0) {
            close(1);
            alarm(300);
            for (;;) pause();
        }
        int status;
        long r = waitpid(child, &status, 0);
        return r;
    }
    printf("wrong: no such wait %s\n", name);
    exit(1);
}

static void *wait_and_tell(void *name) {
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    errno = 0;
    long r = wait_in(name);
    int e = errno;
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("end %s %ld %ld %d\n", (char *)name, (end.tv_sec - begin.tv_sec) * 1000 + (end.tv_nsec - begin.tv_nsec) / 1000000, r, e);
    fflush(stdout);
    return NULL;
}

__attribute__((naked, noinline, aligned(64))) unsigned long counted(unsigned long x) {
    (void)x;
    __asm__("endbr64\n lea 0x11(%rdi), %rax\n imul $3, %rax, %rax\n ret\n");
}

int main(int argc, char **argv) {
    struct sigaction a = {.sa_handler = on_signal};
    sigaction(SIGUSR2, &a, NULL);
    alarm(600);
    for (int i = 1; i < argc - 1; i++) {
        pthread_t t;
        pthread_create(&t, NULL, wait_and_tell, argv[i]);
    }
    printf("ready %d counted %p\n", getpid(), (void *)counted);
    fflush(stdout);
    wait_and_tell(argv[argc - 1]);
    for (;;) pause();
}
