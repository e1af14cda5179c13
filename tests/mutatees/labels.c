/* A program with functions of assembly whose symbols have no type (labels.s).
 *
 * go N   calls each of them N times: `tally direct N` and so on, then `numbers X`, which the program reads from its text
 */
#include "mutatee.h"

long direct(long);
long framed(long);
long pointed(long);
extern const unsigned long numbers;

static long (*volatile by_pointer[])(long) = {framed, pointed};

int main(void) {
    long tallies[3] = {0};
    say_ready();
    for (char *line; (line = next_command());) {
        int times;
        if (sscanf(line, "go %d", &times) == 1) {
            for (int i = 0; i < times; i++) {
                if (direct(i) != 3 * i + 1 || by_pointer[0](i) != i + 4 || by_pointer[1](i) != i + 6) abort();
                for (int f = 0; f < 3; f++) tallies[f]++;
            }
            say("tally direct %ld", tallies[0]);
            say("tally helper %ld", tallies[0]);
            say("tally framed %ld", tallies[1]);
            say("tally pointed %ld", tallies[2]);
            say("numbers %lx", *(volatile const unsigned long *)&numbers);
        } else {
            say("unknown command %s", line);
        }
        say("done");
    }
    return 0;
}
