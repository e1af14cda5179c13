/* A program that attacks whoever measures it.
 *
 * attacks truncate          takes copies of every memfd that appears among its files, cuts them down and seals them
 * attacks scribble          writes random bytes over every shared mapping below 2 GiB, again and again
 * attacks exec GUEST FILE   executes GUEST with "guest" and FILE at the command `exec`
 * attacks guest FILE        calls `work` for a moment and ends
 * `count` says how many files were taken, or how many mappings were written.
 * `mark`, which nothing calls but a definition, makes FILE if it runs as root.
 */
#include "mutatee.h"
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>

static atomic_long found, worked, marked;
static const char *file = "";

COUNTED long mark(long n) {
    marked++;
    if (geteuid() == 0) close(open(file, O_CREAT | O_WRONLY, 0644));
    return n;
}

COUNTED long work(long n) {
    worked++;
    return n + 1;
}

/* Mostly asleep: threads that run are held during an insertion. */
static void *truncates(void *number) {
    long pause = 300 + 97 * (long)number;
    for (;;) {
        for (int fd = 3; fd < 64; fd++) {
            char path[64], name[128];
            snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
            ssize_t n = readlink(path, name, sizeof name - 1);
            if (n <= 0) continue;
            name[n] = 0;
            if (!strstr(name, "memfd:ingraft")) continue;
            int copy = dup(fd);
            if (copy < 0) continue;
            for (int i = 0; i < 2000; i++) {
                (void)!ftruncate(copy, i % 2 ? 0 : 4096);
                fcntl(copy, F_ADD_SEALS, F_SEAL_FUTURE_WRITE);
            }
            atomic_fetch_add(&found, 1);
            close(copy);
        }
        usleep((useconds_t)pause);
    }
    return NULL;
}

static void *scribbles(void *unused) {
    (void)unused;
    uint64_t seed = (uint64_t)getpid() * 0x9e3779b97f4a7c15u;
    for (;;) {
        char line[512];
        FILE *maps = fopen("/proc/self/maps", "r");
        while (maps && fgets(line, sizeof line, maps)) {
            unsigned long start, end;
            if (!strstr(line, "memfd:ingraft") || sscanf(line, "%lx-%lx", &start, &end) != 2) continue;
            /* If the mapping is gone by now, the system call fails, but the program goes on. */
            int self = open("/proc/self/mem", O_RDWR);
            for (int i = 0; i < 300; i++) {
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                uint64_t at = start + (i % 3 ? seed % 8192 : seed % (end - start)), word = seed ^ (seed >> 29);
                if (i % 5 == 0) word = ~0ul;
                (void)!pwrite(self, &word, sizeof word, (off_t)(at & ~7ul));
            }
            close(self);
            atomic_fetch_add(&found, 1);
        }
        if (maps) fclose(maps);
        usleep(200);
    }
    return NULL;
}

static void *works(void *unused) {
    (void)unused;
    for (long i = 0;; i++) {
        work(i);
        usleep(100);
    }
    return NULL;
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    if (!strcmp(mode, "guest")) {
        file = argc > 2 ? argv[2] : "";
        for (int i = 0; i < 200; i++) {
            work(i);
            usleep(100);
        }
        _exit(0);
    }
    if (argc > 3) file = argv[3];
    pthread_t id;
    if (!strcmp(mode, "truncate"))
        for (long i = 0; i < 24; i++) pthread_create(&id, NULL, truncates, (void *)i);
    if (!strcmp(mode, "scribble")) pthread_create(&id, NULL, scribbles, NULL);
    pthread_create(&id, NULL, works, NULL);
    say_ready();
    for (char *line; (line = next_command());) {
        if (!strcmp(line, "exec")) execl(argv[2], argv[2], "guest", file, (char *)NULL);
        if (!strcmp(line, "count")) say("tally found %ld", atomic_load(&found));
        if (!strcmp(line, "marks")) say("tally mark %ld", atomic_load(&marked));
        say("done");
    }
    _exit(0);
}
