/* A library that comes and goes; its constructor calls a function of its own. Built twice, with another FACTOR, it is two libraries of the
 * same size. With OWN_GS its constructor takes the gs base for itself, and a function tells whether it still has it. With OWN_DATA every thread
 * has a variable of it. */
#ifndef FACTOR
#define FACTOR 13
#endif
#ifdef OWN_DATA
static __thread long plugin_own;
#define NOTE() (plugin_own += 5)
#else
#define NOTE() ((void)0)
#endif
__attribute__((noipa, used, visibility("default"))) long plugin_work(long x) {
    NOTE();
    return x * FACTOR + 7;
}
__attribute__((noipa, used, visibility("default"))) long plugin_born(long x) { return x + 1; }
#ifdef OWN_GS
static long own;
static void take(void) { __asm__ volatile("wrgsbase %0" : : "r"(&own)); }
static void *taken(void) {
    void *base;
    __asm__ volatile("rdgsbase %0" : "=r"(base));
    return base;
}
__attribute__((destructor)) static void check(void) {
    if (taken() != &own) __builtin_trap();
}
#else
static void take(void) {}
#endif
__attribute__((constructor)) static void born(void) {
    take();
    plugin_born(1);
}
