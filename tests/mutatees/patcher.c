/* A program that writes over its own entries, as tracers and live patches do.
 *
 * call N       calls `patched` and `plain` N times each
 * save         remembers the first bytes of `patched`
 * restore      writes the remembered bytes there
 * crash NAME   ends by that signal: segv, abrt, kill; exit: with status 3
 */
#include "mutatee.h"
#include <stdint.h>
#include <sys/mman.h>

COUNTED long patched(long x) { return x * 3 + 1; }
COUNTED long plain(long x) { return x * 5 + 1; }

static unsigned char saved[16];

static void write_code(const unsigned char *bytes, size_t count) {
    uintptr_t page = (uintptr_t)patched & ~4095ul;
    if (mprotect((void *)page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC)) abort();
    memcpy((void *)(uintptr_t)patched, bytes, count);
    if (mprotect((void *)page, 8192, PROT_READ | PROT_EXEC)) abort();
}

int main(void) {
    long calls = 0, wrong = 0;
    memcpy(saved, (void *)(uintptr_t)patched, sizeof saved);
    say_ready();
    for (char *line; (line = next_command());) {
        long n = 0;
        if (sscanf(line, "call %ld", &n) == 1) {
            for (long i = 0; i < n; i++) wrong += (patched(i) != i * 3 + 1) + (plain(i) != i * 5 + 1);
            calls += n;
        } else if (!strcmp(line, "save")) {
            memcpy(saved, (void *)(uintptr_t)patched, sizeof saved);
        } else if (!strcmp(line, "restore")) {
            write_code(saved, sizeof saved);
        } else if (!strncmp(line, "crash ", 6)) {
            const char *how = line + 6;
            if (!strcmp(how, "segv")) raise(SIGSEGV);
            if (!strcmp(how, "abrt")) abort();
            if (!strcmp(how, "kill")) raise(SIGKILL);
            _exit(3);
        } else {
            say("unknown command %s", line);
        }
        say("tally patched %ld", calls);
        say("tally plain %ld", calls);
        say("wrong %ld", wrong);
        say("done");
    }
    return 0;
}
