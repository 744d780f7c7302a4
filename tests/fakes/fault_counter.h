/* fault_counter.h — which call is to fail: the n-th of a name or of any, once or from then on; or from which call on
 * the device hangs: what is launched then never ends, and waits for it do not return.
 *
 * Included by one file of each library that plays a vendor's or stands before one (faults.h): each has counts of its
 * own, which a test in the same process reaches by the faults_… functions. */
#ifndef TN_TESTS_FAULT_COUNTER_H
#define TN_TESTS_FAULT_COUNTER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FAULT_HANGS = -99999 }; /* as an error: the device hangs */

#define FAULT_EXPORT __attribute__((visibility("default")))

static struct {
    pthread_mutex_t lock;
    char wanted[64]; /* the only name that fails; "": any */
    long at;         /* the call that fails; 0: none */
    int with;
    bool on_and_on;         /* all calls from that one fail */
    bool hangs;             /* something was launched that does not end */
    long counted, failures; /* calls that could fail since arming; calls made to fail */
} fault = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* From now on the n-th call of `name` (NULL: of any) fails with `error`, and with `forever` all behind it; n = 0: none
 * does. Counting begins anew. */
FAULT_EXPORT void faults_arm(const char *name, long n, int error, int forever);
FAULT_EXPORT long faults_counted(void);
FAULT_EXPORT long faults_failures(void);

void faults_arm(const char *name, long n, int error, int forever) {
    pthread_mutex_lock(&fault.lock);
    snprintf(fault.wanted, sizeof fault.wanted, "%s", name ? name : "");
    fault.at = n;
    fault.with = error;
    fault.on_and_on = forever;
    fault.counted = fault.failures = 0;
    pthread_mutex_unlock(&fault.lock);
}

long faults_counted(void) { return fault.counted; }
long faults_failures(void) { return fault.failures; }

static void fault_tell(void) { fprintf(stderr, "faults: %ld of %ld calls\n", fault.failures, fault.counted); }

/* By NAME:N:ERROR or any:N:ERROR in the environment; a name may have colons itself. With FAULT_COUNTS=1 the process
 * says at its end how many calls could have failed. */
static void fault_arm_by(const char *variable) {
    const char *text = getenv(variable), *behind = text ? strrchr(text, ':') : NULL;
    char name[64];
    long n;
    int error;
    if (getenv("FAULT_COUNTS")) atexit(fault_tell);
    while (behind && behind > text && *--behind != ':')
        continue;
    if (!behind || sscanf(behind, ":%ld:%d", &n, &error) != 2) return;
    snprintf(name, sizeof name, "%.*s", (int)(behind - text), text);
    faults_arm(strcmp(name, "any") ? name : NULL, n, error, 0);
}

static bool has_any(const char *name, const char *const *parts) {
    while (*parts && !strstr(name, *parts))
        parts++;
    return *parts != NULL;
}

static void hang(const char *name) {
    static const char *const launches[] = {"Launch", "NDRange", NULL};
    static const char *const waits[] = {"Synchronize", "Finish", "WaitForEvents", "ReadBuffer", "WriteBuffer", NULL};
    fault.hangs |= fault.at > 0 && fault.counted >= fault.at && has_any(name, launches);
    while (fault.hangs && has_any(name, waits))
        pause();
}

/* Whether this call fails, with fault.with; counts it. `may`: without being named. */
static bool fails(const char *name, bool may) {
    pthread_mutex_lock(&fault.lock);
    bool eligible = fault.wanted[0] ? !strcmp(fault.wanted, name) : may;
    fault.counted += eligible;
    bool now = eligible && fault.at > 0 && (fault.counted == fault.at || (fault.on_and_on && fault.counted > fault.at));
    fault.failures += now;
    pthread_mutex_unlock(&fault.lock);
    if (fault.with != FAULT_HANGS) return now;
    hang(name);
    return false;
}

#endif
