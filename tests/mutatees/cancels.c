/* Threads that are cancelled.
 *
 * wait N            cancels N threads, one after the other, that read without end: `ended N`
 * compute N         cancels N threads, one after the other, that compute without a cancellation point, where the program is built with
 *                   ASYNCHRONOUS: `cleaned N` counts the cleanup handlers that have run
 */
#include "mutatee.h"
#include <fcntl.h>

static atomic_int begun, zeros;

static void *reader(void *unused) {
    char bytes[8];
    begun = 1;
    while (read(zeros, bytes, sizeof bytes) > 0) continue;
    return unused;
}

#ifdef ASYNCHRONOUS
static atomic_int cleaned;

static void clean(void *unused) {
    (void)unused;
    cleaned++;
}

/* Without end, so that its caller is always at the call: only there, the caller has a landing pad. */
COUNTED void work(volatile unsigned *n) {
    begun = 1;
    for (unsigned sum = *n;; *n = sum)
        for (unsigned i = 0; i < sum % 7 + 3; i++) sum = sum % 3 ? sum / 3 + i : sum * 5 + 1;
}

COUNTED void compute(void) {
    volatile unsigned n = 1;
    pthread_cleanup_push(clean, NULL);
    work(&n);
    pthread_cleanup_pop(0);
}

static void *computer(void *unused) {
    int old;
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &old);
    compute();
    return unused;
}
#endif

/* Cancels threads one after the other; returns the number of those that have ended so. */
static int cancel(int count, void *(*body)(void *)) {
    int ended = 0;
    for (int i = 0; i < count; i++) {
        pthread_t id;
        void *result;
        begun = 0;
        while (pthread_create(&id, NULL, body, NULL)) usleep(100);
        while (!begun) usleep(100);
        for (volatile int n = 0; n < i % 64 * 50; n++) continue;
        pthread_cancel(id);
        pthread_join(id, &result);
        ended += result == PTHREAD_CANCELED;
    }
    return ended;
}

int main(void) {
    zeros = open("/dev/zero", O_RDONLY);
    say_ready();
    for (char *line; (line = next_command());) {
        if (!strncmp(line, "wait ", 5)) say("ended %d", cancel(atoi(line + 5), reader));
#ifdef ASYNCHRONOUS
        if (!strncmp(line, "compute ", 8)) {
            cleaned = 0;
            cancel(atoi(line + 8), computer);
            say("cleaned %d", cleaned);
        }
#endif
        say("done");
    }
    return 0;
}
