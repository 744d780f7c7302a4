/* opencl_faults.c — the real OpenCL behind a counter (faults.h): built as a libOpenCL and named by TRUNNION_OPENCL_LIB,
 * it passes all calls on to the library that OPENCL_REAL names. */
#include "faults.h"

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

static function *real[CALL_COUNT];

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("OPENCL_REAL");
    void *library = dlopen(path ? path : "libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) fprintf(stderr, "opencl_faults: %s\n", dlerror());
    for (int i = 0; library && i < CALL_COUNT; i++)
        *(void **)&real[i] = dlsym(library, rows[i].name);
}

static intptr_t pass(int i, const intptr_t *w) {
    const struct row *row = &rows[i];
    int32_t *error = row->error_at == NONE ? NULL : (int32_t *)w[row->error_at];
    if (!real[i]) return row->error_at == NONE ? -59 : 0;
    if (fails(row->name, row->lives >= 0)) {
        if (error) *error = fault.with;
        return row->error_at == NONE ? fault.with : 0;
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
