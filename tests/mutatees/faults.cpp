// A program whose handler of SIGSEGV throws an exception, from code that is compiled for that (-fnon-call-exceptions).
//
// throw N           N exceptions from reads of unreadable memory in `sum`: `caught N`, `destroyed N`
#include "mutatee.h"
#include <new>

static long caught, destroyed;

struct Witness {
    ~Witness() { destroyed++; }
};

static void on_fault(int) { throw 7; }

extern "C" {
COUNTED int sum(const int *numbers, int count) {
    int all = 0;
    for (int i = 0; i < count; i++) {
        if (all > 1000) all -= 1000;
        all += numbers[i];
    }
    return all;
}

COUNTED int guarded(const int *numbers, int count) {
    Witness witness;
    return sum(numbers, count) + numbers[count - 1];
}
}

int main() {
    struct sigaction action = {};
    action.sa_handler = on_fault;
    action.sa_flags = SA_NODEFER;
    sigaction(SIGSEGV, &action, nullptr);
    static const int numbers[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    say_ready();
    for (char *line; (line = next_command());) {
        if (!strncmp(line, "throw ", 6)) {
            caught = destroyed = 0;
            for (int i = atoi(line + 6); i > 0; i--) {
                try {
                    if (guarded(numbers, 8) != 44) say("wrong 1");
                    guarded(reinterpret_cast<const int *>(64), 8);
                } catch (int value) {
                    caught += value == 7;
                }
            }
            say("caught %ld", caught);
            say("destroyed %ld", destroyed);
        }
        say("done");
    }
}
