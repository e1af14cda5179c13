/* A library that comes and goes; its constructor calls a function of its own. Built twice, with another FACTOR, it is two libraries of the
 * same size. */
#ifndef FACTOR
#define FACTOR 13
#endif
__attribute__((noipa, used, visibility("default"))) long plugin_work(long x) { return x * FACTOR + 7; }
__attribute__((noipa, used, visibility("default"))) long plugin_born(long x) { return x + 1; }
__attribute__((constructor)) static void born(void) { plugin_born(1); }
