/* kernel_code.h — inside hal/: between a kernel program and a driver's module: checks, the disk cache, limits. */
#ifndef TN_HAL_KERNEL_CODE_H
#define TN_HAL_KERNEL_CODE_H

#include "gpu/gpu.h"
#include "hal/hal.h"
#include "kir/render.h"

/* ---- compiled kernels on disk (cache_files.c) -------------------------------------------------------------------- */

/* Looks up what `d` compiled from this code before; the key is source text, entry, options, format, device name and
 * driver version. *data: to be freed with tn_mem_free. false: there is no trustworthy entry. Never an error: the code
 * is then compiled. */
bool tn_kernel_cache_find(const tn_device *d, const tn_code *code, void **data, size_t *size);
void tn_kernel_cache_put(const tn_device *d, const tn_code *code, const void *data, size_t size);
void tn_kernel_cache_drop(const tn_device *d, const tn_code *code); /* the driver could not use it */

/* The most that the entries take on disk together; the oldest go. Returns the limit before. For tests. */
int64_t tn_kernel_cache_set_limit(int64_t bytes);

/* Whether the path is a file (with `folder` a folder) that belongs to this user and nobody else can write; not a
 * link. */
bool tn_path_trusted(const char *path, bool folder);

/* Whether the device's compiler refused the program in this process, and why (kernel.c). */
bool tn_kernel_refused(tn_device *d, const kir_program *p, char *why, size_t size);

/* ---- loaded code (driver_module.c) ------------------------------------------------------------------------------- */

/* The code of a rendered program as a driver gets it. It has pointers into itself and into the rendering: do not move
 * either. */
typedef struct tn_rendered_code {
    tn_code code;
    bool written[KIR_MAX_BUFFERS];
    tn_dtype elements[KIR_MAX_BUFFERS];
    uint8_t windows[KIR_MAX_BUFFERS];
} tn_rendered_code;
void tn_code_of_rendering(const tn_caps *c, const kir_program *p, const kir_rendering *r, tn_rendered_code *out);

/* One form of a kernel as a driver has it. */
typedef struct tn_loaded {
    void *handle;        /* the driver's; NULL: not loaded */
    kir_target target;   /* rendered forms: what it was rendered for */
    size_t params_bytes; /* of the struct of parameters */
} tn_loaded;

/* Loads the program in the format of the device: KIR, or rendered, and from the disk cache if it was compiled before.
 * `narrow`: 32-bit indices. p must outlive the module. Errors: TN_ERR_UNSUPPORTED with the kernel's name and the start
 * of the compiler's log if the device cannot have it; other errors may be temporary. */
tn_status tn_code_load(tn_device *d, const kir_program *p, bool narrow, tn_loaded *out);
void tn_code_unload(tn_device *d, tn_loaded *m);

/* Runs parts of launches: fills parameters and calls the driver in chunks. `room`: tn_code_room(p, m) bytes. */
typedef struct tn_runner {
    tn_device *device;
    const kir_program *p;
    const tn_loaded *m;
    char *room;
    int queued;              /* dispatches that wait in the room */
    tn_command_list *list;   /* where dispatches are put instead of being run; NULL: they are run */
    const tn_launch *source; /* with a list: the caller's launch, which is read again at each run */
} tn_runner;
size_t tn_code_room(const kir_program *p, const tn_loaded *m);
tn_status tn_runner_add(void *runner, const tn_launch *part); /* a tn_launch_part_fn */
tn_status tn_runner_flush(tn_runner *r);
/* The block of parameters: sizes, runtime scalars and bases of nothing behind each other. */
void tn_params_fill(const kir_program *p, const tn_launch *l, size_t bytes, char *out);

/* Command lists (kernel.c): appends the dispatches of a kernel's launches. */
tn_status tn_command_list_take(tn_command_list *l, const kir_program *p, const tn_loaded *m, const tn_launch *source,
                               const tn_launch *part, const uint32_t groups[3]);

static inline bool tn_is_local(const kir_program *p, int buffer) { return p->local[buffer] > 0; }
static inline int tn_global_buffers(const kir_program *p) {
    int n = 0;
    for (int b = 0; b < p->n_buffers; b++)
        n += !tn_is_local(p, b);
    return n;
}

/* Bindings of a kernel: one a global buffer, or its windows. */
static inline int tn_global_bindings(const kir_program *p) {
    int n = 0;
    for (int b = 0; b < p->n_buffers; b++)
        n += tn_is_local(p, b) ? 0 : p->windows[b] ? p->windows[b] : 1;
    return n;
}

/* Bytes of a window: the largest power of two that fits a binding. */
static inline int64_t tn_window_bytes(const tn_caps *c) {
    int64_t binding = c->max_buffer < INT64_MAX - c->alignment ? c->max_buffer + c->alignment : INT64_MAX;
    return binding > 0 ? (int64_t)1 << (63 - __builtin_clzll((uint64_t)binding)) : 0;
}

/* Bytes of a buffer that a launch of this kernel can reach from its address: one binding, or several if the device
 * joins them. */
int64_t tn_reach(const tn_device *d, const kir_program *p);

/* ---- rows by workgroups (kernel.c) ------------------------------------------------------------------------------- */

typedef enum tn_row_split_policy { TN_ROW_SPLIT_AUTO, TN_ROW_SPLIT_ALWAYS, TN_ROW_SPLIT_NEVER } tn_row_split_policy;
/* For tests and benchmarks: overrides row_split_pays (kernel.c) from now on. */
void tn_row_split_set(tn_row_split_policy policy);

/* ---- ranges and limits (driver_module.c) ------------------------------------------------------------------------- */

/* One part of a launch whose buffers would not fit into the device's bindings as a whole. Valid during the call. */
typedef tn_status tn_launch_part_fn(void *ctx, const tn_launch *part);

/* Splits a launch into parts of which none binds more than `most` bytes of a buffer, and calls emit for each; for the
 * launch itself if it fits. `sizes` has room for the program's sizes. With emit NULL it only checks. Buffers that are
 * read at computed indices are not split; tn_kernel_addresses has checked them. Errors: TN_ERR_UNSUPPORTED with the
 * reason if no split fits. */
tn_status tn_launch_split(const kir_program *p, const tn_launch *launch, int64_t most, int64_t alignment,
                          int64_t *sizes, tn_launch_part_fn *emit, void *ctx);

/* The only check of a launch: sizes present and not negative, number of points in range, buffers present and aligned to
 * their elements. Errors: TN_ERR_ARGUMENT with launch and value. */
tn_status tn_launch_check(const kir_program *p, const tn_launch *launches, int64_t count);

/* Whether the affine indices and the counts of this launch fit 32 bits; what is computed is added with 64. */
bool tn_launch_is_narrow(const kir_program *p, const int64_t *sizes);

#endif
