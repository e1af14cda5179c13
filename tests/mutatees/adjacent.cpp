// A program whose functions call right where another call returns (adjacent.s).
//
// go N     calls each of them N times; `wrong N` is the number of wrong results
// throw N  calls `direct` N times; of three calls, one ends by an exception of the first callee and one by one of the second:
//          `tally first N`, `tally second N`, `caught N`
// sleep    a thread calls `waits` and waits in its first callee
// next     the thread goes on and waits in the second callee
// wake     the thread ends
// With an argument N, it does `go N` and ends.
#include "mutatee.h"
#include <semaphore.h>

extern "C" {
long direct(int), spaced(int), passing(int), looped(int), again(int), memory(int), by_register(int), waits(int);
}

static long firsts, seconds;
static int now, throwing;
static sem_t in_first, in_second, to_second, to_end;

extern "C" {
COUNTED void first(int n) {
    firsts++;
    now = n;
    if (throwing && n % 3 == 0) throw n;
}

COUNTED long second() {
    seconds++;
    if (throwing && now % 3 == 1) throw now;
    return now + 1;
}

COUNTED void wait_first() {
    sem_post(&in_first);
    while (sem_wait(&to_second)) {}
}

COUNTED long wait_second() {
    sem_post(&in_second);
    while (sem_wait(&to_end)) {}
    return 5;
}
}

static long go(int times) {
    long wrong = 0;
    for (int i = 0; i < times; i++) {
        wrong += direct(i) != i + 1;
        wrong += spaced(i) != i + 1;
        wrong += passing(i) != 77;
        wrong += looped(i % 7 + 1) < 2;
        wrong += i % 5 && again(i % 5) != 2;
        wrong += memory(i) != i + 1;
        wrong += by_register(i) != i + 1;
    }
    return wrong;
}

static long thrown(int times) {
    long caught = 0;
    throwing = 1;
    for (int i = 0; i < times; i++) {
        try {
            direct(i);
        } catch (int n) {
            caught += n == i;
        }
    }
    throwing = 0;
    return caught;
}

static void *sleeper(void *) {
    return reinterpret_cast<void *>(waits(0));
}

int main(int argc, char **argv) {
    if (argc > 1) return go(atoi(argv[1])) != 0;
    pthread_t thread;
    void *result;
    sem_init(&in_first, 0, 0), sem_init(&in_second, 0, 0), sem_init(&to_second, 0, 0), sem_init(&to_end, 0, 0);
    say_ready();
    for (char *line; (line = next_command());) {
        int times;
        if (sscanf(line, "go %d", &times) == 1) {
            say("wrong %ld", go(times));
        } else if (sscanf(line, "throw %d", &times) == 1) {
            firsts = seconds = 0;
            long caught = thrown(times);
            say("tally first %ld", firsts);
            say("tally second %ld", seconds);
            say("caught %ld", caught);
        } else if (!strcmp(line, "sleep")) {
            if (pthread_create(&thread, NULL, sleeper, NULL)) abort();
            sem_wait(&in_first);
        } else if (!strcmp(line, "next")) {
            sem_post(&to_second);
            sem_wait(&in_second);
        } else if (!strcmp(line, "wake")) {
            sem_post(&to_end);
            pthread_join(thread, &result);
            say("wrong %d", reinterpret_cast<long>(result) != 5);
        } else {
            say("unknown command %s", line);
        }
        say("done");
    }
    return 0;
}
