/* opencl.c — an OpenCL loader with one platform and one device, the first fake GPU under its other name. */
#include "fake.h"

int32_t clGetPlatformIDs(uint32_t room, void **platforms, uint32_t *count) {
    int error = fake_first_call();
    if (room) platforms[0] = (void *)1;
    *count = 1;
    return error;
}

static int32_t give(const void *value, size_t bytes, size_t size, void *out, size_t *needed) {
    if (needed) *needed = bytes;
    if (size < bytes) return -30;
    memcpy(out, value, bytes);
    return 0;
}

int32_t clGetPlatformInfo(void *platform, uint32_t what, size_t size, void *value, size_t *needed) {
    (void)platform;
    (void)what;
    return give("Fake platform", 14, size, value, needed);
}

int32_t clGetDeviceIDs(void *platform, uint64_t type, uint32_t room, void **devices, uint32_t *count) {
    (void)platform;
    (void)type;
    if (room) devices[0] = (void *)2;
    *count = 1;
    return 0;
}

int32_t clGetDeviceInfo(void *device, uint32_t what, size_t size, void *value, size_t *needed) {
    uint64_t gpu = 1 << 2, total = 80ull << 30;
    uint32_t bus = 0x65, slot = 0, domain = 0;
    (void)device;
    switch (what) {
    case 0x1000: return give(&gpu, sizeof gpu, size, value, needed);
    case 0x101F: return give(&total, sizeof total, size, value, needed);
    case 0x102B: return give("Fake GPU 0 (OpenCL)", 20, size, value, needed);
    case 0x102F: return give("OpenCL 3.0 fake", 16, size, value, needed);
    case 0x4008: return give(&bus, sizeof bus, size, value, needed);
    case 0x4009: return give(&slot, sizeof slot, size, value, needed);
    case 0x400A: return give(&domain, sizeof domain, size, value, needed);
    default: return -30; /* CL_INVALID_VALUE: a query it does not know */
    }
}

/* The rest is there, and never reached: a process that only looks makes no context. */
#define NEVER(name) \
    int32_t name(void) { abort(); }
// clang-format off
NEVER(clCreateContext) NEVER(clReleaseContext) NEVER(clCreateCommandQueue) NEVER(clReleaseCommandQueue)
NEVER(clCreateBuffer) NEVER(clReleaseMemObject) NEVER(clCreateProgramWithSource) NEVER(clCreateProgramWithBinary)
NEVER(clBuildProgram) NEVER(clGetProgramInfo) NEVER(clGetProgramBuildInfo) NEVER(clReleaseProgram)
NEVER(clCreateKernel) NEVER(clGetKernelWorkGroupInfo) NEVER(clSetKernelArg) NEVER(clReleaseKernel)
NEVER(clEnqueueNDRangeKernel) NEVER(clEnqueueReadBuffer) NEVER(clEnqueueWriteBuffer) NEVER(clEnqueueCopyBuffer)
NEVER(clEnqueueFillBuffer) NEVER(clEnqueueMapBuffer) NEVER(clEnqueueUnmapMemObject) NEVER(clEnqueueMarkerWithWaitList)
NEVER(clEnqueueBarrierWithWaitList) NEVER(clWaitForEvents) NEVER(clGetEventInfo) NEVER(clGetEventProfilingInfo)
NEVER(clReleaseEvent) NEVER(clFlush) NEVER(clFinish)
    // clang-format on
