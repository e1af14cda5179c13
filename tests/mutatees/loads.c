/* Loads and unloads a library.
 *
 * loads PATH [OTHER]  PATH is the library, OTHER one that calculates with 17 instead of 13
 * open, other, close  each answers where `plugin_work` is
 * cycle N M         N times: opens the library, calls `plugin_work` M times, closes it
 * call N            calls `plugin_work` N times and `local_work` N times
 * filter            from now on futex(2) kills the process (seccomp)
 * shared            maps the library's file MAP_SHARED read-execute and calls `plugin_work` there by `sharedcall N`
 */
#include "mutatee.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#if __has_include(<linux/filter.h>)
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#endif
#include <sys/mman.h>
#include <sys/stat.h>

COUNTED long local_work(long x) { return x * 3 + 1; }

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
#else
    abort();
#endif
}

int main(int argc, char **argv) {
    void *library = NULL;
    long (*work)(long) = NULL, (*shared)(long) = NULL;
    long local = 0, remote = 0, others = 0, born = 0, wrong = 0, factor = 13;
    if (argc < 2) return 2;
    say_ready();
    for (char *line; (line = next_command());) {
        long n, m;
        if (!strcmp(line, "open") || (!strcmp(line, "other") && argc > 2)) {
            factor = line[1] == 'p' ? 13 : 17;
            library = dlopen(argv[factor == 13 ? 1 : 2], RTLD_NOW);
            if (!library) say("error %s", dlerror());
            work = (long (*)(long))(uintptr_t)dlsym(library, "plugin_work");
            born += factor == 13;
            say("at %lx", (unsigned long)(uintptr_t)work);
        } else if (sscanf(line, "cycle %ld %ld", &n, &m) == 2) {
            for (long i = 0; i < n; i++) {
                void *once = dlopen(argv[1], RTLD_NOW);
                if (!once) abort();
                long (*now)(long) = (long (*)(long))(uintptr_t)dlsym(once, "plugin_work");
                for (long j = 0; j < m; j++) wrong += now(j) != j * 13 + 7, remote++;
                wrong += dlclose(once) != 0;
                born++;
            }
        } else if (!strcmp(line, "filter")) {
            filter();
        } else if (!strcmp(line, "close")) {
            if (dlclose(library)) wrong++;
            work = NULL;
        } else if (!strcmp(line, "shared")) {
            struct link_map *map;
            struct stat status;
            void *once = dlopen(argv[1], RTLD_NOW);
            dlinfo(once, RTLD_DI_LINKMAP, &map);
            uintptr_t offset = (uintptr_t)dlsym(once, "plugin_work") - map->l_addr;
            dlclose(once);
            int fd = open(argv[1], O_RDONLY);
            if (fd < 0 || fstat(fd, &status)) abort();
            char *base = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_EXEC, MAP_SHARED, fd, 0);
            if (base == MAP_FAILED) abort();
            shared = (long (*)(long))(uintptr_t)(base + offset);
            say("shared %lx", (unsigned long)(uintptr_t)base);
        } else if (sscanf(line, "call %ld", &n) == 1) {
            for (long i = 0; i < n; i++) {
                wrong += local_work(i) != i * 3 + 1;
                local++;
                if (work) wrong += work(i) != i * factor + 7, *(factor == 13 ? &remote : &others) += 1;
            }
        } else if (sscanf(line, "sharedcall %ld", &n) == 1) {
            for (long i = 0; i < n; i++) wrong += shared(i) != i * 13 + 7;
        } else {
            say("unknown command %s", line);
        }
        say("tally local_work %ld", local);
        say("tally plugin_work %ld", remote);
        say("tally plugin_born %ld", born);
        say("tally other %ld", others);
        say("wrong %ld", wrong);
        say("done");
    }
    return 0;
}
