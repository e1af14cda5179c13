/* Detached threads that end one after the other: with musl each unmaps its own stack, and then ends without one.
 *
 * end N             starts N threads that end at once, and waits until all have begun to
 */
#include "mutatee.h"

static atomic_int ended;

static void *thread(void *unused) {
    ended++;
    return unused;
}

int main(void) {
    pthread_attr_t detached;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    say_ready();
    for (char *line; (line = next_command());) {
        if (!strncmp(line, "end ", 4)) {
            int count = atoi(line + 4);
            ended = 0;
            for (int i = 0; i < count; i++) {
                pthread_t id;
                while (pthread_create(&id, &detached, thread, NULL)) usleep(100);
            }
            while (ended < count) usleep(100);
        }
        say("done");
    }
    return 0;
}
