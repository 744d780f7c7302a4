/* drivers.h — the drivers, one file each; what the null driver counted, for tests. */
#ifndef TN_DRIVERS_H
#define TN_DRIVERS_H

#include "hal/hal.h"

extern const tn_driver tn_driver_cuda, tn_driver_rocm, tn_driver_metal, tn_driver_vulkan, tn_driver_opencl,
    tn_driver_webgpu, tn_driver_cpu, tn_driver_onnxruntime, tn_driver_torch, tn_driver_null;

/* What the drivers of engines have of the cpu's; `device` is not looked at. */
void tn_cpu_close(void *device);
tn_status tn_cpu_alloc(void *device, size_t bytes, void **address);
void tn_cpu_free(void *device, void *address);
tn_status tn_cpu_load(void *device, const tn_code *code, void **module);
void tn_cpu_unload(void *device, void *module);
tn_status tn_cpu_launch(void *device, void *module, const tn_launch *launches, int64_t count);
tn_status tn_cpu_prepare(void *device, void *module, const tn_launch *launches, int64_t count);
tn_status tn_cpu_copy(void *device, void *dst, const void *src, size_t bytes, int kind);
tn_status tn_cpu_sync(void *device);
tn_status tn_cpu_memory(void *device, int64_t *total, int64_t *unused);

typedef struct tn_null_counts {
    int64_t opens, closes, allocs, frees, loads, unloads, launches, copies,
        syncs;                         /* counts of calls; launches: of all their launches */
    int64_t live_blocks, live_modules; /* now */
    int64_t faults;                    /* wrong calls, and objects not freed at close */
    char first_fault[160];             /* description of the first fault; "" if there was none */
} tn_null_counts;

tn_null_counts tn_null_get_counts(void);
void tn_null_reset_counts(void); /* resets all counts except live_blocks and live_modules */

#endif
