/* faults.h — a counter between a driver and its library: any call can be made to fail, and leaks show.
 *
 * A fake that passes all calls on asks `fails` before each. A test in the same process opens it once more and uses the
 * faults_… functions below; for a command it is armed by FAULT=NAME:N:ERROR in the environment, as in clFinish:3:-5, or
 * any:10:-4. Calls that give something back never fail unless named.
 *
 * All parameters of the functions in question are integers and pointers, at most ten, so one kind of forwarder does for
 * all: it passes ten words on, and a callee with fewer parameters does not look at the rest. */
#ifndef TN_TESTS_FAULTS_H
#define TN_TESTS_FAULTS_H

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef intptr_t function(intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t,
                          intptr_t);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long counted, live, failures; /* calls that could fail since arming; objects; calls made to fail */
static char wanted[64];              /* the only function that fails; "": any */
static long at;                      /* the call that fails; 0: none */
static int with;
static bool on_and_on; /* all calls from that one fail */

/* From now on the n-th call of `name` (NULL: of any) fails with `error`, and with `forever` all behind it; n = 0: none
 * does. Counting begins anew. */
void faults_arm(const char *name, long n, int error, int forever);
void faults_arm(const char *name, long n, int error, int forever) {
    pthread_mutex_lock(&lock);
    snprintf(wanted, sizeof wanted, "%s", name ? name : "");
    at = n;
    with = error;
    on_and_on = forever;
    counted = failures = 0;
    pthread_mutex_unlock(&lock);
}

long faults_counted(void);
long faults_live(void);
long faults_failures(void);
long faults_counted(void) { return counted; }
long faults_live(void) { return live; }
long faults_failures(void) { return failures; }

__attribute__((constructor)) static void arm_from_environment(void) {
    const char *fault = getenv("FAULT");
    char name[64];
    long n;
    int error;
    if (fault && sscanf(fault, "%63[^:]:%ld:%d", name, &n, &error) == 3)
        faults_arm(strcmp(name, "any") ? name : NULL, n, error, 0);
}

/* Whether this call fails; counts it. `may`: without being named. */
static bool fails(const char *name, bool may) {
    pthread_mutex_lock(&lock);
    bool eligible = wanted[0] ? !strcmp(wanted, name) : may;
    counted += eligible;
    bool now = eligible && at > 0 && (counted == at || (on_and_on && counted > at));
    failures += now;
    pthread_mutex_unlock(&lock);
    return now;
}

static void count(long change) {
    pthread_mutex_lock(&lock);
    live += change;
    pthread_mutex_unlock(&lock);
}

#endif
