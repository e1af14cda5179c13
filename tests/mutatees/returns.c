/* Code that comes, or changes, while the program runs.
 *
 * map               maps a file whose code calls rt_sigreturn, and has the handler of SIGUSR1 return there
 * enter             a thread calls `slow`, gets a signal behind its second instruction, and stays in the handler: `inside`
 * leave             the handler returns, and `slow` goes on: `slow RESULT` (6)
 * generate          from now on a thread writes code without a pause, into memory that is mapped a second time to be executed: by turns
 *                   `syscall; ret` and breakpoints
 * call N            calls `work` N times: `tally work CALLS` */
#include "mutatee.h"
#include <sys/mman.h>

/* Address below all other mappings of the program. */
#define GENERATED ((void *)0x10000000)

/* Waits for a signal (pause(2)). */
long slow(long *from);
__asm__(".text\n.p2align 4\n.globl slow\n.type slow,@function\nslow:\n.cfi_startproc\n"
        "mov $34,%eax\nsyscall\nmov (%rdi),%rax\nadd $1,%rax\nadd $2,%rax\nadd $3,%rax\nret\n.cfi_endproc\n"
        ".size slow,.-slow\n");

static atomic_int waiting, inside, may_leave;
static long calls, zero;

COUNTED void work(void) { calls++; }

static void on_signal(int signal) {
    (void)signal;
    atomic_store(&inside, 1);
    while (!atomic_load(&may_leave)) usleep(1000);
}

static void map(void) {
    /* mov $15, %rax; syscall */
    static const unsigned char code[] = {0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05};
    char path[] = "/tmp/ingraft-returns-XXXXXX";
    int file = mkstemp(path);
    if (file < 0 || unlink(path) || write(file, code, sizeof code) != sizeof code) abort();
    void *restorer = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);
    if (restorer == MAP_FAILED) abort();
    /* the kernel's own form: handler, flags (SA_RESTORER), restorer, mask */
    struct {
        void (*handler)(int);
        unsigned long flags;
        void *restorer;
        unsigned long mask;
    } action = {on_signal, 0x04000000, restorer, 0};
    if (syscall(SYS_rt_sigaction, SIGUSR1, &action, NULL, 8)) abort();
}

static void *enter(void *unused) {
    (void)unused;
    atomic_store(&waiting, own_tid());
    return (void *)slow(&zero);
}

/* Whether a thread sleeps in the kernel. */
static int sleeps(int tid) {
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
    FILE *file = fopen(path, "r");
    if (!file || fscanf(file, "%*d %*s %c", &state) != 1) abort();
    fclose(file);
    return state == 'S';
}

static void *generate(void *written) {
    for (;;) {
        memcpy(written, "\x0f\x05\xc3", 3);
        usleep(300);
        memcpy(written, "\xcc\xcc\xcc", 3);
        usleep(300);
    }
    return NULL;
}

static void begin_to_generate(void) {
    pthread_t thread;
    int file = memfd_create("doublemapper", 0);
    if (file < 0 || ftruncate(file, 4096)) abort();
    void *written = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    void *executed = mmap(GENERATED, 4096, PROT_READ | PROT_EXEC, MAP_SHARED | MAP_FIXED_NOREPLACE, file, 0);
    if (written == MAP_FAILED || executed != GENERATED || pthread_create(&thread, NULL, generate, written)) abort();
}

int main(void) {
    say_ready();
    pthread_t thread;
    long n;
    for (char *line; (line = next_command());) {
        if (!strcmp(line, "map")) {
            map();
        } else if (!strcmp(line, "enter")) {
            if (pthread_create(&thread, NULL, enter, NULL)) abort();
            while (!atomic_load(&waiting) || !sleeps(atomic_load(&waiting))) usleep(1000);
            pthread_kill(thread, SIGUSR1);
            while (!atomic_load(&inside)) usleep(1000);
            say("inside");
        } else if (!strcmp(line, "leave")) {
            void *result;
            atomic_store(&may_leave, 1);
            pthread_join(thread, &result);
            say("slow %ld", (long)result);
        } else if (!strcmp(line, "generate")) {
            begin_to_generate();
        } else if (sscanf(line, "call %ld", &n) == 1) {
            while (n-- > 0) work();
            say("tally work %ld", calls);
        } else {
            say("unknown command %s", line);
        }
        say("done");
    }
    _exit(0);
}
