/* A thread in functions that a just-in-time compiler might have made: `compiled_outer` calls `step`, which calls `compiled_inner`, which takes
 * nearly all processor time. Their names are in the file that such compilers write for perf.
 *
 * run               the busy thread begins
 * rest              the busy thread ends, and the file with the names is removed
 * Each answer has `outer ADDRESS` and `inner ADDRESS`. */
#include "mutatee.h"
#include <stdint.h>
#include <sys/mman.h>

/* push rbp; mov rbp, rsp; push rdi; sub rsp, 8; 1: call [rbp - 8]; test eax, eax; jne 1b; leave; ret */
static const uint8_t outer[] = {0x55, 0x48, 0x89, 0xe5, 0x57, 0x48, 0x83, 0xec, 0x08, 0xff,
                                0x55, 0xf8, 0x85, 0xc0, 0x75, 0xf9, 0xc9, 0xc3};
/* push rbp; mov rbp, rsp; 1: dec edi; jne 1b; pop rbp; ret */
static const uint8_t inner[] = {0x55, 0x48, 0x89, 0xe5, 0xff, 0xcf, 0x75, 0xfc, 0x5d, 0xc3};

static uint8_t *code;
static atomic_int busy;
enum { INNER_AT = 64 };

COUNTED int step(void) {
    ((void (*)(int))(code + INNER_AT))(100000);
    return atomic_load(&busy);
}

COUNTED void *runs(void *unused) {
    ((void (*)(int (*)(void)))code)(step);
    return unused;
}

int main(void) {
    code = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED) abort();
    memcpy(code, outer, sizeof outer);
    memcpy(code + INNER_AT, inner, sizeof inner);
    char path[64];
    snprintf(path, sizeof path, "/tmp/perf-%d.map", (int)getpid());
    FILE *map = fopen(path, "w");
    if (!map) abort();
    fprintf(map, "%lx %zx compiled_outer\n", (long)code, sizeof outer);
    fprintf(map, "%lx %zx compiled_inner /srv/a b.js:3\n", (long)(code + INNER_AT), sizeof inner);
    fclose(map);
    pthread_t thread;
    say_ready();
    for (char *line; (line = next_command());) {
        if (!strcmp(line, "run")) {
            atomic_store(&busy, 1);
            if (pthread_create(&thread, NULL, runs, NULL)) abort();
        } else if (!strcmp(line, "rest")) {
            atomic_store(&busy, 0);
            pthread_join(thread, NULL);
            unlink(path);
        } else {
            say("unknown command %s", line);
        }
        say("outer %ld", (long)code);
        say("inner %ld", (long)(code + INNER_AT));
        say("done");
    }
    return 0;
}
