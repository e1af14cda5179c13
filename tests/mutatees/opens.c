/* Opens a library at once and calls its functions, without waiting for anybody.
 *
 * opens PATH N REPORT [HOW [OFFSET]]
 *                            calls `f0` N times, `f1` 2 N times, `f2` 3 N times. Then it writes `wrong W` to the file REPORT: the number of
 *                            calls with a wrong result. HOW:
 *                            late    calls `f0` once, waits until its code is changed, and then begins
 *                            filter OFFSET  before, forbids futex(2), by which the process would be killed (seccomp), and waits until the
 *                                    word at OFFSET in the engine's area is 0: no thread is asked to wait for the engine any more
 */
#include "mutatee.h"
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#if __has_include(<linux/filter.h>)
#include <linux/filter.h>
#include <linux/seccomp.h>
#endif

static void filter(void) {
#ifdef SECCOMP_RET_KILL_PROCESS
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_futex, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) abort();
#endif
}

/* Whether the word at an offset in the engine's area is not 0 */
static int is_set(unsigned long offset) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    int set = 0;
    if (!maps) abort();
    while (fgets(line, sizeof line, maps)) {
        const volatile char *base = (const volatile char *)(uintptr_t)strtoul(line, NULL, 16);
        char *rest = strchr(line, ' ');
        if (!rest || rest[1] != 'r' || !strstr(line, "memfd:ingraft")) continue;
        if (memcmp((const char *)base, "INGRAFT\x01", 8)) continue;
        set |= *(const volatile int *)(base + offset) != 0;
    }
    fclose(maps);
    return set;
}

static void nap(long ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

int main(int argc, char **argv) {
    static const char *const names[] = {"f0", "f1", "f2"};
    if (argc < 4) return 2;
    long n = atol(argv[2]), wrong = 0;
    const char *how = argc > 4 ? argv[4] : "";
    if (!strcmp(how, "filter")) {
        filter();
        unsigned long listening = argc > 5 ? strtoul(argv[5], NULL, 0) : 0;
        if (!listening) return 2;
        while (is_set(listening)) nap(1);
    }
    void *library = dlopen(argv[1], RTLD_NOW);
    if (!library) return 3;
    for (int i = 0; i < 3; i++) {
        void *at = dlsym(library, names[i]);
        long (*f)(long) = (long (*)(long))(uintptr_t)at;
        if (!f) return 4;
        if (i == 0 && !strcmp(how, "late")) {
            long before = *(volatile long *)at;
            wrong += f(1) != 4;
            while (*(volatile long *)at == before) nap(1);
        }
        for (long j = 0; j < n * (i + 1); j++) wrong += f(j) != j * (3 + 2 * i) + 1;
    }
    FILE *report = fopen(argv[3], "w");
    if (!report || fprintf(report, "wrong %ld\n", wrong) < 0 || fclose(report)) return 5;
    return 0;
}
