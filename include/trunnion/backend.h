/* backend.h — for authors of drivers: the one struct that makes a machine usable.
 *
 * A driver knows memory, code and launches of one interface, and never an operation. hal/ checks arguments, counts,
 * pools and orders; a driver may trust what it is given. src/drivers/null.c is the commented skeleton to copy.
 *
 * A struct grows at its end; struct_size tells which fields exist. A NULL function has the default that its comment
 * names. */
#ifndef TRUNNION_BACKEND_H
#define TRUNNION_BACKEND_H

#include "trunnion/device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TN_BACKEND_ABI = 1 };

/* What a driver's load() takes. */
typedef enum tn_code_form {
    TN_CODE_KIR = 1, /* the kernel program itself, for in-tree drivers that run it (cpu) */
    TN_CODE_OPENCL_C,
    TN_CODE_CUDA_C,
    TN_CODE_HIP_C,
    TN_CODE_MSL,
    TN_CODE_WGSL,
    TN_CODE_SPIRV,
    TN_CODE_PTX
} tn_code_form;

typedef struct tn_code {
    tn_code_form form;
    const void *data; /* text or words; for TN_CODE_KIR a kir_program */
    size_t size;
    const char *entry; /* kernel name */
} tn_code;

typedef struct tn_caps {
    size_t struct_size;
    tn_code_form code;     /* what load() wants */
    bool f64, i64, f16;    /* native types */
    int64_t max_buffer;    /* bytes in one binding */
    int64_t max_group;     /* threads a workgroup */
    int64_t shared_memory; /* bytes of workgroup memory */
    int64_t alignment;     /* of a buffer offset, bytes */
    bool host_visible;     /* device addresses are host pointers */
} tn_caps;

/* One kernel launch: sizes (extents, offsets, strides; 64-bit), buffers (device addresses), dials (8 bytes each). */
typedef struct tn_launch {
    const int64_t *sizes;
    void *const *buffers;
    const void *dials;
} tn_launch;

/* A probe's findings: what it found, or why nothing. In a device it fills name, memory, compute_capability,
 * unified_memory, software and, where known, uuid and pci; hal fills the rest. reason_code is a word of
 * docs/devices.md ("none" when devices were found). */
typedef struct tn_probe {
    size_t struct_size;
    tn_device_info *devices;
    int capacity, count; /* room in devices; found */
    char reason_code[32], reason[240], fix[240], library[256];
} tn_probe;

typedef struct tn_driver {
    size_t struct_size;
    int abi; /* TN_BACKEND_ABI */
    const char *name, *title;
    /* Looks for devices; must neither fail nor leave anything loaded that could disturb the process. */
    void (*probe)(tn_probe *out);
    tn_status (*open)(int index, const tn_device_options *options, void **device);
    void (*close)(void *device);
    tn_status (*caps)(void *device, tn_caps *out);
    /* Aligned to 64 at least. Addresses are numbers that hal and kernels offset: address + n lies n bytes further. */
    tn_status (*alloc)(void *device, size_t bytes, void **address);
    void (*free)(void *device, void *address);
    tn_status (*load)(void *device, const tn_code *code, void **module);
    void (*unload)(void *device, void *module);
    /* `count` launches of one kernel, independent of each other; in order behind all that came before. */
    tn_status (*launch)(void *device, void *module, const tn_launch *launches, int64_t count);
    /* kind: 0 host to device, 1 device to host, 2 within the device; in order; host memory may be reused on return. */
    tn_status (*copy)(void *device, void *dst, const void *src, size_t bytes, int kind);
    tn_status (*sync)(void *device);
    /* Optional from here. */
    tn_status (*memory)(void *device, int64_t *total, int64_t *free); /* default: what the probe said */
    /* Names, through `add`, each file and folder (existing or not) whose change could change what the probe finds: the
     * library, its configuration, device nodes; and each environment variable that it heeds as "$NAME". Findings of an
     * isolated probe are kept on disk until one of them changes. */
    void (*watch)(void (*add)(void *ctx, const char *what), void *ctx);
    bool isolate; /* the probe loads code that could disturb the process: it runs in a child process, 5 s at most */
    bool only_by_name; /* `auto` never takes it */
    /* Takes whatever memory the same launch would take besides its arguments. States are written by the last launches
     * of a plan; they are prepared before the first of them begins, so that a lack of memory
     * finds all states as they were. */
    tn_status (*prepare)(void *device, void *module, const tn_launch *launches, int64_t count);
} tn_driver;

/* Adds a driver to the process's table, before the first listing or open. The struct must outlive the process's use.
 * Errors: TN_ERR_ARGUMENT for a name taken, a wrong abi or a missing function. */
TN_API tn_status tn_backend_register(const tn_driver *driver);

/* Sets the calling thread's error text, for drivers outside the library: return tn_backend_fail(TN_ERR_DEVICE, "…"). */
TN_API tn_status tn_backend_fail(tn_status code, const char *format, ...) __attribute__((format(printf, 2, 3)));

#ifdef __cplusplus
}
#endif
#endif
