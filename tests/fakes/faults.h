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
#include <stdint.h>

#include "fault_counter.h"

typedef intptr_t function(intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t,
                          intptr_t);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long live; /* objects */

FAULT_EXPORT long faults_live(void);
long faults_live(void) { return live; }

__attribute__((constructor)) static void arm_from_environment(void) { fault_arm_by("FAULT"); }

static void count(long change) {
    pthread_mutex_lock(&lock);
    live += change;
    pthread_mutex_unlock(&lock);
}

#endif
