/* Programs that make it hard. proc_hostile MODE; says "ready PID ..."; SIGTERM: "done", 0. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

static volatile sig_atomic_t ending;
static volatile uint64_t saved_pc, go_on, in_handler, finished;

__attribute__((naked, noinline, aligned(64))) uint64_t counted(uint64_t x) {
    (void)x;
    __asm__("endbr64\n lea 0x11(%rdi), %rax\n imul $3, %rax, %rax\n ret\n");
}

/* Faults at its ninth byte. The handler resumes after the two bytes of the instruction. */
__attribute__((naked, noinline, aligned(64))) uint64_t faulting(uint64_t x) {
    (void)x;
    __asm__("endbr64\n lea 0x11(%rdi), %rax\n ud2\n xchg %ax, %ax\n imul $3, %rax, %rax\n ret\n");
}

/* Loops at its ninth byte, until a handler resumes after the two bytes of the jump. */
__attribute__((naked, noinline, aligned(64))) uint64_t spinning(uint64_t x) {
    (void)x;
    __asm__("endbr64\n lea 0x11(%rdi), %rax\n1: jmp 1b\n xchg %ax, %ax\n imul $3, %rax, %rax\n ret\n");
}

static void on_fault(int sig, siginfo_t *info, void *context) {
    (void)info;
    if (sig == SIGUSR1 && ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] != (greg_t)(uintptr_t)spinning + 8) return;
    in_handler = 1;
    while (!go_on) usleep(1000);
    ucontext_t *u = context;
    saved_pc = u->uc_mcontext.gregs[REG_RIP];
    u->uc_mcontext.gregs[REG_RIP] += 2;
}

static void on_term(int sig) {
    (void)sig;
    ending = 1;
}

static void *fault(void *arg) {
    uint64_t (*function)(uint64_t) = arg;
    static char stack[65536];
    stack_t s = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&s, NULL);
    finished = function(1) == 54 ? 1 : 2;
    return NULL;
}

static void *vforks(void *arg) {
    (void)arg;
    for (;;) {
        pid_t child = vfork();
        if (child == 0) {
            struct timespec t = {0, 300000000};
            nanosleep(&t, NULL);
            _exit(counted(1) == 54 ? 0 : 1);
        }
        int status;
        waitpid(child, &status, 0);
        if (status) _exit(9);
    }
    return NULL;
}

static void filter_calls(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getpid, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) exit(2);
}

static void limit_memory(long mib) {
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%ld", &pages) != 1) exit(2);
    fclose(f);
    struct rlimit l = {pages * 4096 + (mib << 20), pages * 4096 + (mib << 20)};
    setrlimit(RLIMIT_AS, &l);
}

// Sleeps uninterruptibly for some milliseconds, as a thread does that waits for a disk.
static void doze(void) {
    pid_t child = vfork();
    if (child == 0) {
        usleep(10000);
        _exit(0);
    }
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR) {}
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    int pid = getpid();
    void *shared = NULL;
    struct sigaction a = {.sa_handler = on_term};
    sigaction(SIGTERM, &a, NULL);
    a.sa_sigaction = on_fault;
    a.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGILL, &a, NULL);
    sigaction(SIGUSR1, &a, NULL);
    alarm(600);
    pthread_t t;
    if (!strcmp(mode, "fault")) pthread_create(&t, NULL, fault, (void *)faulting);
    if (!strcmp(mode, "spin")) {
        pthread_create(&t, NULL, fault, (void *)spinning);
        while (!in_handler) pthread_kill(t, SIGUSR1), sched_yield();
    }
    if (!strcmp(mode, "vfork")) pthread_create(&t, NULL, vforks, NULL);
    if (!strcmp(mode, "mlock") && mlockall(MCL_CURRENT | MCL_FUTURE)) return 2;
    if (!strcmp(mode, "limit")) limit_memory(400);
    if (!strcmp(mode, "tight")) limit_memory(2);
    if (!strcmp(mode, "filesize")) {
        struct rlimit l = {4096, 4096};
        setrlimit(RLIMIT_FSIZE, &l);
    }
    if (!strcmp(mode, "gs")) syscall(SYS_arch_prctl, 0x1001 /* ARCH_SET_GS */, 0x1234000);
    if (!strcmp(mode, "shared")) {
        int fd = memfd_create("code", 0);
        if (fd < 0 || ftruncate(fd, 4096)) return 2;
        char *w = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        memcpy(w, (void *)counted, 13);
        shared = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_SHARED, fd, 0);
    }
    printf("ready %d counted %p faulting %p spinning %p saved %p go %p handler %p finished %p shared %p\n", pid, (void *)counted,
           (void *)faulting, (void *)spinning, (void *)&saved_pc, (void *)&go_on, (void *)&in_handler, (void *)&finished, shared);
    fflush(stdout);
    if (!strcmp(mode, "seccomp")) filter_calls();
    int naps = 0;
    while (!ending) {
        if (!strcmp(mode, "doze") && ++naps % 10 == 0) doze();
        usleep(1000);
        if (counted(2) != 57) return 1;
    }
    printf("done\n");
    return 0;
}
