/* A program with static probes (USDT) where springboards of a copy would lie (usdt.s).
 *
 * where   prints `at NAME ADDRESS` for each probe
 * go N    calls the functions N times: `tally returns N` and so on, `wrong 0` if all results are right
 */
#include "mutatee.h"

long returns(long), follows(long), begins(long), leaves(long);
extern const long at_return, behind_return, at_beginning, before_exit;

static const struct { const char *name; long (*function)(long); const long *offset; } probes[] = {
    {"at_return", returns, &at_return},
    {"behind_return", follows, &behind_return},
    {"at_beginning", begins, &at_beginning},
    {"before_exit", leaves, &before_exit},
};

int main(void) {
    long tally = 0, wrong = 0;
    say_ready();
    for (char *line; (line = next_command());) {
        int times;
        if (sscanf(line, "go %d", &times) == 1) {
            for (long i = 0; i < times; i++) {
                long odd = i & 1;
                wrong += returns(i) != 4 * i + 1 + 2 * odd;
                wrong += follows(i) != 4 * i + 1 + 2 * odd;
                wrong += begins(i) != i + 2 * odd;
                wrong += leaves(i) != i + 2 * odd;
                tally++;
            }
            say("tally returns %ld", tally);
            say("tally follows %ld", tally);
            say("tally begins %ld", tally);
            say("tally leaves %ld", tally);
            say("wrong %ld", wrong);
        } else if (!strcmp(line, "where")) {
            for (size_t i = 0; i < sizeof probes / sizeof *probes; i++)
                say("at %s %lu", probes[i].name, (unsigned long)probes[i].function + (unsigned long)*probes[i].offset);
        } else {
            say("unknown command %s", line);
        }
        say("done");
    }
    return 0;
}
