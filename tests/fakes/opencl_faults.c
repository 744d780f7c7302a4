/* opencl_faults.c — the real OpenCL behind a counter: any call can be made to fail, and what is not given back shows.
 *
 * Built as a libOpenCL and named by TRUNNION_OPENCL_LIB, it passes all calls on to the library that OPENCL_REAL names.
 * A test in the same process opens it once more and uses the faults_… functions below; for a command it is armed by
 * OPENCL_FAULT=NAME:N:ERROR in the environment, as in clFinish:3:-5, or any:10:-4. Calls that give something back
 * never fail unless named.
 *
 * All parameters of these functions are integers and pointers, at most ten, so one kind of forwarder does for all: it
 * passes ten words on, and a callee with fewer parameters does not look at the rest. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* CALL(name, where the address for the error is among the parameters (NONE: the result is the error), what becomes of
 * the count of living objects, where the address for an event is (NONE: it makes none)) */
enum { NONE = -1 };
// clang-format off
#define CALLS(CALL)                                                                       \
    CALL(clGetPlatformIDs, NONE, 0, NONE)             CALL(clGetPlatformInfo, NONE, 0, NONE)          \
    CALL(clGetDeviceIDs, NONE, 0, NONE)               CALL(clGetDeviceInfo, NONE, 0, NONE)            \
    CALL(clCreateContext, 5, 1, NONE)                 CALL(clReleaseContext, NONE, -1, NONE)          \
    CALL(clCreateCommandQueue, 3, 1, NONE)            CALL(clReleaseCommandQueue, NONE, -1, NONE)     \
    CALL(clCreateBuffer, 4, 1, NONE)                  CALL(clReleaseMemObject, NONE, -1, NONE)        \
    CALL(clCreateProgramWithSource, 4, 1, NONE)       CALL(clCreateProgramWithBinary, 6, 1, NONE)     \
    CALL(clBuildProgram, NONE, 0, NONE)               CALL(clGetProgramInfo, NONE, 0, NONE)           \
    CALL(clGetProgramBuildInfo, NONE, 0, NONE)        CALL(clReleaseProgram, NONE, -1, NONE)          \
    CALL(clCreateKernel, 2, 1, NONE)                  CALL(clGetKernelWorkGroupInfo, NONE, 0, NONE)   \
    CALL(clSetKernelArg, NONE, 0, NONE)               CALL(clReleaseKernel, NONE, -1, NONE)           \
    CALL(clEnqueueNDRangeKernel, NONE, 0, 8)          CALL(clEnqueueReadBuffer, NONE, 0, 8)           \
    CALL(clEnqueueWriteBuffer, NONE, 0, 8)            CALL(clEnqueueCopyBuffer, NONE, 0, 8)           \
    CALL(clEnqueueFillBuffer, NONE, 0, 8)             CALL(clEnqueueMapBuffer, 9, 0, 8)               \
    CALL(clEnqueueUnmapMemObject, NONE, 0, 5)         CALL(clEnqueueMarkerWithWaitList, NONE, 0, 3)   \
    CALL(clEnqueueBarrierWithWaitList, NONE, 0, 3)    CALL(clWaitForEvents, NONE, 0, NONE)            \
    CALL(clGetEventInfo, NONE, 0, NONE)               CALL(clGetEventProfilingInfo, NONE, 0, NONE)    \
    CALL(clReleaseEvent, NONE, -1, NONE)              CALL(clFlush, NONE, 0, NONE)                    \
    CALL(clFinish, NONE, 0, NONE)
// clang-format on

enum {
#define CALL(name, error_at, lives, event_at) INDEX_##name,
    CALLS(CALL)
#undef CALL
        CALL_COUNT
};

static const struct row {
    const char *name;
    int error_at, lives, event_at;
} rows[] = {
#define CALL(name, error_at, lives, event_at) {#name, error_at, lives, event_at},
    CALLS(CALL)
#undef CALL
};

typedef intptr_t function(intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t,
                          intptr_t);

static function *real[CALL_COUNT];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long counted, live, failures; /* calls that could fail since arming; objects; calls made to fail */
static char wanted[64];              /* the only function that fails; "": any */
static long at;                      /* the call that fails; 0: none */
static int with;
static bool on_and_on; /* all calls from that one fail */

/* From now on the n-th call of `name` (NULL: of any) fails with `error`, and with `forever` all behind it; n = 0: none
 * does. Counting begins anew. */
void faults_arm(const char *name, long n, int error, int forever) {
    pthread_mutex_lock(&lock);
    snprintf(wanted, sizeof wanted, "%s", name ? name : "");
    at = n;
    with = error;
    on_and_on = forever;
    counted = failures = 0;
    pthread_mutex_unlock(&lock);
}

long faults_counted(void) { return counted; }
long faults_live(void) { return live; }
long faults_failures(void) { return failures; }

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("OPENCL_REAL"), *fault = getenv("OPENCL_FAULT");
    void *library = dlopen(path ? path : "libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) fprintf(stderr, "opencl_faults: %s\n", dlerror());
    for (int i = 0; library && i < CALL_COUNT; i++)
        *(void **)&real[i] = dlsym(library, rows[i].name);
    char name[64];
    long n;
    int error;
    if (fault && sscanf(fault, "%63[^:]:%ld:%d", name, &n, &error) == 3)
        faults_arm(strcmp(name, "any") ? name : NULL, n, error, 0);
}

/* Whether this call fails; counts it. */
static bool fails(const struct row *row) {
    pthread_mutex_lock(&lock);
    bool eligible = wanted[0] ? !strcmp(wanted, row->name) : row->lives >= 0;
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

static intptr_t pass(int i, const intptr_t *w) {
    const struct row *row = &rows[i];
    int32_t *error = row->error_at == NONE ? NULL : (int32_t *)w[row->error_at];
    if (!real[i]) return row->error_at == NONE ? -59 : 0;
    if (fails(row)) {
        if (error) *error = with;
        return row->error_at == NONE ? with : 0;
    }
    intptr_t result = real[i](w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9]);
    bool good = row->error_at == NONE ? (int32_t)result == 0 : result != 0;
    if (good) count(row->lives + (row->event_at != NONE && w[row->event_at]));
    return result;
}

#define CALL(name, error_at, lives, event_at)                                                                     \
    intptr_t name(intptr_t a, intptr_t b, intptr_t c, intptr_t d, intptr_t e, intptr_t f, intptr_t g, intptr_t h, \
                  intptr_t i, intptr_t j);                                                                        \
    intptr_t name(intptr_t a, intptr_t b, intptr_t c, intptr_t d, intptr_t e, intptr_t f, intptr_t g, intptr_t h, \
                  intptr_t i, intptr_t j) {                                                                       \
        return pass(INDEX_##name, (const intptr_t[]){a, b, c, d, e, f, g, h, i, j});                              \
    }
CALLS(CALL)
