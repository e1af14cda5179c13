/* Sets uprobes, as perf and bpftrace do, through the kernel's own interface.
 *
 * probes PID
 * set PATH OFFSET   at an offset of a file, in that process; says `failed ERRNO`
 * return PATH OFFSET   at the returns of the function that begins there, in the same way
 * hits              says how often the main thread has hit them
 * drop              takes all of them away
 */
#include "mutatee.h"
#include <linux/perf_event.h>

static int fds[64], count;

static int type_of_uprobes(void) {
    FILE *file = fopen("/sys/bus/event_source/devices/uprobe/type", "r");
    int type = -1;
    if (!file) return -1;
    if (fscanf(file, "%d", &type) != 1) type = -1;
    fclose(file);
    return type;
}

static int set(int pid, const char *path, unsigned long offset, int at_return) {
    struct perf_event_attr attr = {.size = sizeof attr};
    int type = type_of_uprobes();
    if (type < 0) return ENOENT;
    attr.type = (unsigned)type;
    attr.sample_period = 1;
    attr.config = (unsigned)at_return;
    attr.config1 = (unsigned long)path;
    attr.config2 = offset;
    int fd = (int)syscall(SYS_perf_event_open, &attr, pid, -1, -1, 8 /* PERF_FLAG_FD_CLOEXEC */);
    if (fd < 0) return errno;
    if (count == 64) return ENOSPC;
    fds[count++] = fd;
    return 0;
}

int main(int argc, char **argv) {
    int pid = argc > 1 ? atoi(argv[1]) : 0;
    say_ready();
    for (char *line; (line = next_command());) {
        char path[3000];
        unsigned long offset;
        if (sscanf(line, "set %2999s %lu", path, &offset) == 2) {
            say("failed %d", set(pid, path, offset, 0));
        } else if (sscanf(line, "return %2999s %lu", path, &offset) == 2) {
            say("failed %d", set(pid, path, offset, 1));
        } else if (!strcmp(line, "hits")) {
            unsigned long long all = 0, hits;
            for (int i = 0; i < count; i++)
                if (read(fds[i], &hits, sizeof hits) == sizeof hits) all += hits;
            say("hits %llu", all);
        } else if (!strcmp(line, "drop")) {
            while (count) close(fds[--count]);
        } else {
            say("unknown command %s", line);
        }
        say("done");
    }
    return 0;
}
