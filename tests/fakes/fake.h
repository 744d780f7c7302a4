/* fake.h — shared by the stand-ins for drivers' libraries that test_device.c builds and lets the probes find.
 *
 * They answer just what the probes ask. What they do is decided by the environment when they are called:
 *   FAKE_LOADED=FILE   one byte is added to FILE for each process that loads the library
 *   FAKE_DOES=WORD     crash, abort, hang, end, chatter: happens at the first call; loading-crash: when it is loaded
 *   FAKE_RESULT=N      the first call gives N */
#ifndef TN_TESTS_FAKE_H
#define TN_TESTS_FAKE_H

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fake_does(const char *what) {
    const char *word = getenv("FAKE_DOES");
    return word && !strcmp(word, what);
}

__attribute__((constructor)) static void fake_loaded(void) {
    const char *path = getenv("FAKE_LOADED");
    FILE *f = path ? fopen(path, "a") : NULL;
    if (f) {
        fputc('1', f);
        fclose(f);
    }
    if (fake_does("loading-crash")) raise(SIGSEGV);
}

/* To be called first by the library's first function; its result is that function's. */
static inline int fake_first_call(void) {
    const char *result = getenv("FAKE_RESULT");
    if (fake_does("crash")) raise(SIGSEGV);
    if (fake_does("abort")) abort();
    if (fake_does("end")) _exit(3);
    if (fake_does("chatter")) {
        printf("noise on standard output\n");
        fprintf(stderr, "noise on standard error\n");
        fflush(stdout);
    }
    while (fake_does("hang"))
        pause();
    return result ? atoi(result) : 0;
}

#endif
