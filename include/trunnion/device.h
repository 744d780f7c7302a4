/* device.h — devices: listing, choosing and opening them; their memory, queues, events and vendor libraries.
 *
 * A backend is an interface (cpu, cuda, rocm, metal, vulkan, opencl, webgpu, engine:onnxruntime, engine:torch). A
 * device is one processor that it reaches, named "cpu", "cuda:0", "vulkan:1". Drivers are loaded when they are first
 * needed. For a backend that cannot be used there is a reason: what was tried, what failed, what to do.
 *
 * Engines are other libraries that compute in the host's memory, opened only by name. "engine:torch" computes
 * operations with LibTorch 2.10 or later (pip install torch, or TRUNNION_TORCH_LIB), gradients too; results agree with
 * the cpu's within rounding, and random numbers are the cpu's. What LibTorch has no kernel for (quantized weights,
 * factorizations in f64), the cpu computes, which is reported as for any device and refused with TN_FALLBACK_STRICT.
 * LibTorch uses as many threads as the library (tn_device_options.threads).
 *
 * Threads: every function here may be called from any thread. */
#ifndef TRUNNION_DEVICE_H
#define TRUNNION_DEVICE_H

#include "trunnion/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_device tn_device;

/* Properties of one device. Sizes are in bytes; 0 if the interface does not report them. */
typedef struct tn_device_info {
    size_t struct_size; /* set by the caller to sizeof(tn_device_info) */
    char id[32];        /* "cuda:0": what tn_device_open takes */
    char backend[24];   /* "cuda" */
    int index;
    char name[128]; /* the vendor's name of the device */
    int64_t total_memory, free_memory;
    char compute_capability[24]; /* the vendor's name of the level: "9.0", "gfx1100", "avx512"; may be "" */
    bool unified_memory;         /* device and host share the memory */
    bool software;               /* a GPU interface that runs on the CPU (llvmpipe, PoCL); false for "cpu" itself */
    bool usable;                 /* this build can compute on it; otherwise the backend's reason says why not */
    int threads;                 /* cpu: number of threads used; others: 0 */
    char uuid[40];               /* 32 hexadecimal digits, or "" */
    char pci[16];                /* "0000:65:00.0", or "" */
    char same_as[32]; /* id of an earlier device in the list that is the same processor; "" if there is none */
} tn_device_info;

/* Properties of one backend. Strings are valid until the list is freed. */
typedef struct tn_backend_info {
    size_t struct_size;
    const char *name;        /* "cuda" */
    const char *title;       /* "NVIDIA CUDA" */
    bool available;          /* at least one device can be used */
    const char *reason_code; /* "none", "library_not_found", "no_device" …: tn_reason_help_at explains them */
    const char *reason;      /* the reason as text; "" if available */
    const char *fix;         /* what to do about it; "" if there is nothing to do */
    const char *library;     /* the file that was or would be loaded; "" if there is none */
    const tn_device_info *devices;
    int device_count;
} tn_backend_info;

typedef struct tn_device_list tn_device_list;

/* Lists all backends and their devices. With the list cached in the cache folder this takes milliseconds.
 *   fresh: probe again, which takes one or two seconds: libraries are loaded, some of them in a child process, because
 *     they may crash.
 *   *out: freed with tn_device_list_free.
 * Errors: only TN_ERR_ARGUMENT (out is NULL) and TN_ERR_MEMORY; a backend that fails is an entry, not an error. */
TN_API tn_status tn_device_list_new(bool fresh, tn_device_list **out);
TN_API void tn_device_list_free(tn_device_list *list);
TN_API int tn_device_list_count(const tn_device_list *list); /* backends */
/* Returns entry i, in order of preference; NULL if i is out of range. */
TN_API const tn_backend_info *tn_device_list_at(const tn_device_list *list, int i);
/* Returns the id of the device that "auto" would choose; at least "cpu". */
TN_API const char *tn_device_list_recommended(const tn_device_list *list);

/* Writes the list that `trunnion devices` shows, by calling `write` with pieces of text (not lines).
 *   verbose: also reason codes and libraries; colour: with ANSI colours. */
TN_API tn_status tn_print_backend_summary(void (*write)(void *ctx, const char *text), void *ctx, bool verbose,
                                          bool colour);

/* The meaning of a reason code, and what to do in general. tn_reason_help_at returns rows 0, 1, … and then NULL; the
 * first is "none". */
typedef struct tn_reason_help {
    const char *code, *meaning, *fix;
} tn_reason_help;
TN_API const tn_reason_help *tn_reason_help_at(int i);

/* What to do if the preferred device cannot be used. */
typedef enum tn_fallback {
    TN_FALLBACK_WARN = 0, /* use the next one, and print a line on standard error */
    TN_FALLBACK_STRICT,   /* fail with the reason */
    TN_FALLBACK_SILENT    /* use the next one */
} tn_fallback;

/* How to open a device. */
typedef struct tn_device_options {
    size_t struct_size;
    tn_fallback fallback;          /* default TN_FALLBACK_WARN */
    int64_t minimum_memory;        /* bytes that must be free; devices with less are skipped; default 0 */
    int threads;                   /* cpu: number of threads; default 0: as many as affinity and quota allow */
    int simd;                      /* cpu: at most 1 baseline, 2 AVX2, 3 AVX-512; default 0: the best */
    size_t pool_initial, pool_max; /* bytes allocated at open, default 0; limit in bytes, default 0: no limit */
    size_t pool_growth;            /* bytes of a slab that smaller blocks share; default 0: one slab per block */
    /* Libraries that compute this device's products and convolutions: names as in tn_set_library ("openblas",
     * "cublaslt,cudnn", "none", "auto"), of libraries for its backend. A CPU library named for another device computes
     * what the host does for it: factorizations (linalg.h). Copied. Default NULL: as `vendor` says. */
    const char *library;
    /* Of this device only; default 0: as the environment and the process say. */
    int matrix;   /* matrix units: 1 none, 2 for f16 and bf16 products, 3 also for f32 (tf32); 0: TRUNNION_MATRIX */
    int numerics; /* cpu: 1 exact, 2 fast; 0: tn_set_numerics, TRUNNION_NUMERICS */
    int graphs;   /* repeated work: 1 launched one by one, 2 as graphs of the interface; 0: TRUNNION_GRAPHS */
    /* Vendor libraries: 1 own kernels only, 2 all that are installed for the device's backend (cpu: as 0);
     * 0: tn_set_library, TRUNNION_LIBRARY */
    int vendor;
    /* Measured variants (tune.h): 1 those in the cache, 2 also measured at the first use, 3 rules only;
     * 0: tn_set_tuning, TRUNNION_TUNE */
    int tuning;
    /* Seconds that a wait for the device may take; then the device counts as lost: the wait and every later call fail
     * with TN_ERR_LOST, and its memory is left behind. A wait includes kernels that the device's driver compiles when
     * they are launched. Not of the cpu and engines. Default 0: no limit. */
    double time_limit;
    const char *tuning_file; /* measured variants of this device (tune.h), copied; NULL: the file of the process */
    /* Dry run: plans everything and computes nothing, to find out how much memory a program takes (tn_pool_stats).
     * Blocks above 16 KiB have no memory and read as zeros. An evaluation that needs only smaller blocks is computed.
     * Of other evaluations, only integers of up to 4 KiB that the program holds, and a value of up to 4 KiB that is
     * read, are computed, if they need no larger block; everything else becomes zeros, states written in place too.
     * The device is separate from the one without this option; both may be open. Engines do not support it. Default
     * false. */
    bool dry_run;
    /* The greatest number of the driver's compute streams (CUDA streams, for example) that queues may use, the default
     * queue included. Queues that tn_queue_new makes beyond it share the default stream and run in its order. No effect
     * on devices whose queues are threads. 0 to 127; default 0: no limit. */
    int streams;
} tn_device_options;
#define TN_DEVICE_DEFAULTS                                                                                             \
    {                                                                                                                  \
        TN_OPTIONS_SIZE(tn_device_options, streams), TN_FALLBACK_WARN, 0, 0, 0, 0, 0, 0, NULL, 0, 0, 0, 0, 0, 0, NULL, \
            false, 0                                                                                                   \
    }

/* One step of a selection: a device or backend that was tried. */
typedef struct tn_selection_step {
    char id[32];
    bool chosen;
    char reason_code[32]; /* "none" for the chosen one */
    char reason[TN_REASON_BYTES];
    char fix[TN_REASON_BYTES];
} tn_selection_step;

typedef struct tn_selection {
    size_t struct_size;
    tn_selection_step steps[24]; /* in the order tried */
    int step_count;
    char chosen[32]; /* "" if none */
} tn_selection;

/* Opens a device.
 *   preference: "auto" or NULL, a backend ("cuda": its first device), or an id ("cuda:1"). "auto" tries CUDA, ROCm,
 *     Metal, Vulkan, OpenCL, WebGPU and CPU in this order, software devices last; engines are used only if named.
 *   options: NULL for the defaults.
 *   selection: receives everything that was tried, also on failure; may be NULL; the caller sets struct_size.
 *   *out: shared: opening the same id again returns the same device, with the options of the first call; a notice names
 *     settings (simd, pool sizes, library, matrix, numerics, graphs, vendor, tuning, time_limit, tuning_file, streams)
 *     that differ and have no effect.
 *     Close it once per open with tn_device_close.
 * Errors: TN_ERR_ARGUMENT for an unknown name; TN_ERR_UNAVAILABLE, with the reasons, if no device can be used. */
TN_API tn_status tn_device_open(const char *preference, const tn_device_options *options, tn_selection *selection,
                                tn_device **out);
/* Closes a device. It is released when nothing uses it any more: tensors, graphs, queues, and recorded operations that
 * are not evaluated yet. NULL is allowed. */
TN_API void tn_device_close(tn_device *device);

/* Returns the device that "auto" chooses, opened once per process and never closed; NULL (see tn_error) only if host
 * memory ran out. */
TN_API tn_device *tn_best_device(void);

/* The device on which this thread creates tensors; by default the one of tn_best_device. The device that is set must
 * stay open as long as it is current; NULL restores the default. Source: torch.set_default_device. */
TN_API tn_device *tn_current_device(void);
TN_API tn_status tn_set_current_device(tn_device *device);

/* Fills *info with the device's properties; the caller sets info->struct_size. */
TN_API tn_status tn_device_get_info(const tn_device *device, tn_device_info *info);

/* Sets a function that is called before a kernel is loaded for a device other than the CPU, and after it (done = true):
 * with slow device compilers, a program can show progress. One function per process; NULL: none.
 *   number: counts the kernels that this process has loaded so.
 * Threads: the function is called by the thread that needs the kernel, perhaps by several at once, and must not compute
 * tensors. After it was replaced, calls in progress may still reach it. */
TN_API void tn_on_kernel_load(void (*told)(void *ctx, const char *device, int64_t number, bool done), void *ctx);

/* An operation that the host runs because the device does not support its dtype, kernel or size, and why. */
typedef struct tn_host_use {
    size_t struct_size;           /* set by the caller */
    char op[48];                  /* "argsort_last" */
    char code[32];                /* a reason code of docs/devices.md: "no_f64" */
    char reason[TN_REASON_BYTES]; /* the rest of a sentence that begins with the device: "has no f64" */
    int64_t operations;           /* how many, in all plans made for the device since it was opened */
} tn_host_use;
TN_API int tn_device_host_count(const tn_device *device); /* 0: the device computed everything itself */
/* Copies row i to *out. Errors: TN_ERR_ARGUMENT if i is out of range. */
TN_API tn_status tn_device_host_at(const tn_device *device, int i, tn_host_use *out);

/* One device that tn_try tried. */
typedef struct tn_attempt {
    char id[32];                  /* "cuda:0"; the requested name if it could not be opened */
    tn_status status;             /* TN_OK if it succeeded */
    char reason[TN_REASON_BYTES]; /* what failed; "" if it succeeded */
    double seconds;               /* for opening the device and running the work */
} tn_attempt;

typedef struct tn_try_report {
    size_t struct_size;      /* set by the caller */
    tn_attempt attempts[16]; /* in order */
    int attempt_count;
    char ran[32]; /* id of the device that succeeded; "" if none did */
} tn_try_report;

/* Runs work(ctx, device) on the first device that succeeds: for example on "cuda", if that fails on "opencl", then on
 * "cpu".
 *   preferences: `count` names as in tn_device_open; NULL with count 0: "auto", then "cpu". A device that failed is not
 *     tried again under another name.
 *   options: for opening the devices; NULL for the defaults. fallback: TN_FALLBACK_WARN prints each failure on standard
 *     error, TN_FALLBACK_SILENT does not, TN_FALLBACK_STRICT tries only the first device. Devices are opened strictly:
 *     an operation that the device does not support fails the work instead of running on the host (unless the device
 *     was already opened otherwise).
 *   work: called on this thread with `device` current, each time with the same random numbers. It returns TN_OK after
 *     its results are evaluated or read. Its tensors are freed after it; handles kept with tn_keep belong to the
 *     caller, also on failure. It may be called `count` times, so it must change the caller's data only when nothing
 *     can fail any more.
 *   report: what was tried, why it failed and what succeeded, also on failure; may be NULL.
 * The device is closed after the work; tensors that were kept stay valid. To keep its compiled kernels, open it before.
 * Errors: that of the last attempt, with the reasons of all. TN_ERR_ARGUMENT, _SHAPE, _DTYPE and _FORMAT stop it at
 * once, because they would occur on every device. */
TN_API tn_status tn_try(const char *const *preferences, int count, const tn_device_options *options,
                        tn_status (*work)(void *ctx, tn_device *device), void *ctx, tn_try_report *report);

/* Raw device memory, for embedding and tests; tensors do not need it.
 * tn_device_alloc: allocates `size` bytes aligned to `alignment` (a power of two up to 4096). *out is a device address,
 *   on the CPU a pointer, and NULL on failure.
 *   Errors: TN_ERR_MEMORY, with the requested and the free size; TN_ERR_ARGUMENT for an invalid alignment.
 * tn_device_dealloc: frees an address from tn_device_alloc of the same device; NULL is allowed. Waits for its queues.
 * tn_device_copy: copies `len` bytes from src on src_device to dst on dst_device; NULL as a device means host memory.
 *   Each region must lie in one allocation (not checked if addresses are pointers), and they must not overlap. Waits
 *   for the queues of both devices, and for the copy.
 * tn_device_synchronize: waits for all work in all queues of the device, and returns a failure that occurred in it. A
 *   failure of the default queue is reported once; the queue can be used again afterwards. */
TN_API tn_status tn_device_alloc(tn_device *device, size_t size, size_t alignment, void **out);
TN_API void tn_device_dealloc(tn_device *device, void *address);
/* Whether these bytes lie in one allocation of tn_device_alloc of this device. */
TN_API bool tn_device_owns(const tn_device *device, const void *address, size_t bytes);
TN_API tn_status tn_device_copy(tn_device *dst_device, void *dst, tn_device *src_device, const void *src, size_t len);
TN_API tn_status tn_device_synchronize(tn_device *device);

/* ---- queues ------------------------------------------------------------------------------------------------------ */

/* A queue runs work in the order of submission, asynchronously to the caller and to other queues, like a CUDA stream.
 * Each device has a default queue; tn_queue_new creates more. If the interface has no queues (cpu), a queue is a
 * thread, which uses the thread pool like any other caller: a second concurrent caller computes on its own thread only.
 *
 * A queue receives: the evaluations (tn_eval, tn_read, tn_graph_launch …), on the queue's device, of each thread whose
 * current queue it is; tn_eval_async and tn_graph_launch_async (tensor.h); tn_device_copy_async. For tensors the order
 * between queues is kept automatically: work waits for the values that it reads, on any queue; memory is reused only
 * when no work uses it; tn_read waits for the value. For raw device memory, order the queues with events.
 *
 * Failures: submitted work is recorded, planned and allocated immediately, and fails immediately if that fails. If work
 * fails later, everything submitted to the queue after it is skipped until tn_queue_synchronize has reported it.
 * Reading a value that was skipped reports the cause; states keep their old values.
 *
 * Threads: several threads may submit to a queue at once. After fork() the child must not use queues.
 * Source: torch.cuda.Stream. */
typedef struct tn_queue tn_queue;

/* Creates a queue; *out is freed with tn_queue_free. The queue keeps the device open. Errors: TN_ERR_MEMORY if no
 * thread can be created or the limit of 127 queues per process is reached; errors of the driver. */
TN_API tn_status tn_queue_new(tn_device *device, tn_queue **out);
/* Waits for the queue's work and frees it. It must not be the current queue of another thread; if it is the caller's,
 * the caller's current queue becomes the default one. NULL is allowed. */
TN_API void tn_queue_free(tn_queue *queue);
/* Waits until all work submitted to the queue is done. Returns the first failure since the last call, and clears it. */
TN_API tn_status tn_queue_synchronize(tn_queue *queue);
TN_API tn_device *tn_queue_device(const tn_queue *queue); /* NULL for NULL */
TN_API bool tn_queue_is_thread(const tn_queue *queue);    /* true: a thread, not a queue of the interface */
/* Sets the queue that receives this thread's evaluations on the queue's device; evaluations on other devices use their
 * default queues. NULL: the default queue. The queue must exist as long as it is current. */
TN_API tn_status tn_set_current_queue(tn_queue *queue);
TN_API tn_queue *tn_current_queue(void); /* NULL: the default queue */

/* An event is a point in the order of a queue. It is complete when all work submitted to the queue before it is done.
 * tn_event_new: creates an event; timed: it also measures its time. tn_event_free: NULL is allowed.
 * tn_event_record: places the event after the work submitted to `queue` so far, and forgets an earlier place. NULL:
 *   this thread's current queue, or the default queue of the current device.
 * tn_event_query: *passed is true if the event is complete, or was never recorded.
 * tn_event_synchronize: waits for the event. Both return the failure because of which the event was skipped.
 * tn_event_elapsed: waits for both events and returns the seconds between them. Errors: TN_ERR_STATE if an event is not
 *   timed or not recorded; TN_ERR_ARGUMENT for events of two devices; TN_ERR_UNSUPPORTED if the interface has no
 *   timing.
 * Threads: record and free by one thread at a time, the others by any. Source: torch.cuda.Event. */
typedef struct tn_event tn_event;
TN_API tn_status tn_event_new(bool timed, tn_event **out);
TN_API void tn_event_free(tn_event *event);
TN_API tn_status tn_event_record(tn_event *event, tn_queue *queue);
TN_API tn_status tn_event_query(const tn_event *event, bool *passed);
TN_API tn_status tn_event_synchronize(const tn_event *event);
TN_API tn_status tn_event_elapsed(const tn_event *begin, const tn_event *end, double *seconds);
/* Makes work that is submitted to the queue from now on wait for the event, of any queue or device. The caller does not
 * wait. An event that was never recorded is ignored. Source: torch.cuda.Stream.wait_event. */
TN_API tn_status tn_queue_wait(tn_queue *queue, const tn_event *event);

/* Like tn_device_copy, but submitted to `queue`, which must belong to dst_device or src_device. NULL: this thread's
 * current queue; without one the call waits for the copy. Both memory regions must stay unchanged until `event` (may be
 * NULL), which is recorded after the copy, is complete. Between two devices without direct access the copy uses host
 * memory; the call then waits for queues of the interface. */
TN_API tn_status tn_device_copy_async(tn_device *dst_device, void *dst, tn_device *src_device, const void *src,
                                      size_t len, tn_queue *queue, tn_event *event);

/* ---- memory of the host that a device reaches -------------------------------------------------------------------- */

/* Allocates `size` bytes of pinned (page-locked) host memory, which `device` copies directly; freed with tn_host_free.
 * If pinned memory is not available, ordinary page-aligned memory is returned, and *reason (may be NULL) says why;
 * otherwise *reason is "". Errors: TN_ERR_MEMORY. Source: torch.Tensor.pin_memory. */
TN_API tn_status tn_host_alloc(tn_device *device, size_t size, void **out, const char **reason);
TN_API void tn_host_free(void *address); /* waits for the device's queues; NULL is allowed */

/* Maps `len` bytes of device memory at `address` for the host, in *out: the memory itself if it is unified, a mapping
 * of the interface, or a copy. If `read` is false, the contents are undefined until they are written. The device sees
 * writes after tn_device_unmap, and must not use the range in between. Waits for the device's queues. */
TN_API tn_status tn_device_map(tn_device *device, void *address, size_t len, bool read, void **out);
TN_API tn_status tn_device_unmap(tn_device *device, void *address, void *host);

/* ---- the pool ---------------------------------------------------------------------------------------------------- */

/* Memory pool of this process on a device. Freed blocks are cached for reuse; cached memory is bounded (a sixteenth of
 * the device, at most 512 MiB) and returned to the driver before an allocation fails. A device opened with pool_initial
 * or pool_growth cuts blocks out of larger slabs by best fit, and merges free neighbours. */
typedef struct tn_pool_stats {
    size_t struct_size;               /* set by the caller */
    int64_t in_use_bytes, peak_bytes; /* blocks used by tensors, plans and callers; the maximum so far */
    int64_t kept_bytes;               /* blocks cached for reuse */
    int64_t taken_bytes, limit;       /* allocated from the driver in total; pool_max (0: no limit) */
    int64_t buffers;                  /* in use, including borrowed memory */
    int64_t allocations, hits;        /* buffers requested; how many of them reused a cached block */
    int64_t pieces;                   /* slabs that blocks are cut out of */
    int64_t free_bytes, largest_free; /* free in slabs, without cached blocks; the largest contiguous part */
    double fragmentation;             /* 0 to 1: share of free_bytes outside of the largest contiguous part */
    /* bytes that would have been in use if the last evaluation or buffer for which there was no memory had got it; 0:
     * there always was */
    int64_t refused_bytes;
    /* dry run of a device whose memory is the host's: the peak of resident bytes of a process with a real run,
     * including blocks kept for reuse, pages of mapped files, and what is resident in this process; else 0 */
    int64_t dry_peak_bytes;
} tn_pool_stats;
TN_API tn_status tn_device_get_pool_stats(const tn_device *device, tn_pool_stats *stats);
TN_API void tn_device_reset_pool_peak(tn_device *device); /* also allocations and hits; NULL is allowed */
/* Sets pool_max of a device that is open: a limit in bytes of what the pool allocates; 0: none. Memory in use stays,
 * but no more is allocated while it exceeds the limit. Errors: TN_ERR_ARGUMENT for NULL. */
TN_API tn_status tn_device_set_pool_max(tn_device *device, size_t bytes);
/* Returns cached blocks, and slabs without blocks in use (except pool_initial), to the driver. *given (may be NULL):
 * the number of bytes returned. Source: torch.cuda.empty_cache. */
TN_API tn_status tn_device_trim(tn_device *device, int64_t *given);
/* Merges the free parts of slabs as far as possible, and returns free slabs to the driver like tn_device_trim. Blocks
 * in use do not move, because plans, captured graphs and callers hold their addresses; they limit how much can be
 * merged. A pool_growth of many times the usual block size keeps fragmentation small. */
TN_API tn_status tn_device_defragment(tn_device *device, int64_t *given);

/* Sets the number of CPU threads of the process; 0: as many as the affinity mask and cgroup quota allow. The caller is
 * one of them and is not pinned. Each other thread is pinned to its own core, not the caller's, as long as no other
 * program uses that core. With TRUNNION_PIN=0 in the environment, threads are not pinned. An affinity mask set from
 * outside is respected. Source: torch.set_num_threads. */
TN_API tn_status tn_set_num_threads(int n);
TN_API int tn_get_num_threads(void);

/* ---- libraries for matrix products, convolutions and factorizations ---------------------------------------------- */

/* A library that computes instead of Trunnion's own kernels. For the CPU: a BLAS of the system, called on Trunnion's
 * threads, with activations still fused to products; its LAPACK factors larger matrices. For other devices: the
 * vendor's library (cuBLASLt, rocBLAS, Metal Performance Shaders; cuDNN for convolutions), without fusion.
 * These libraries sum in another order: results agree within rounding, but their bits depend on the library, the
 * processor, and perhaps the number of threads. Therefore a library is used only if it is selected. */
typedef struct tn_library_info {
    size_t struct_size; /* set by the caller */
    char name[24];      /* "openblas": what tn_set_library takes */
    char title[48];
    char path[256];       /* the file that was or would be loaded; "" if there is none */
    char description[96]; /* the library's own version text; "" until it is loaded */
    bool available;       /* found; whether it works is known after loading it */
    bool in_use;
    char reason_code[32], reason[TN_REASON_BYTES], fix[TN_REASON_BYTES]; /* as in tn_backend_info */
    char backend[24];                                                    /* where it computes: "cpu", "cuda" */
} tn_library_info;

TN_API int tn_library_count(void);
/* Copies row i to *out. Loads only a library that TRUNNION_LIBRARY names. Errors: TN_ERR_ARGUMENT if i is out of
 * range. */
TN_API tn_status tn_library_at(int i, tn_library_info *out);
/* Selects the libraries that plans made from now on use, in the whole process; captured graphs do not change.
 *   name: a name of a row above; "auto": for each kind of device and work the first library that works, or on the CPU
 *     the fastest one that tuning (tune.h) measured, own kernels included; "none" or NULL: own kernels; or a list like
 *     "cublaslt,cudnn", with at most one for the CPU. Without a call, TRUNNION_LIBRARY in the environment decides.
 * Matrix products: f32 and f64, vendor libraries also f16 and bf16 (accumulated in f32). "cudnn": convolutions and
 * their gradients in f32, f16 and bf16. "openblas", "mkl" and "accelerate": also solving, factorizations and
 * eigenvalues (linalg.h) for at least 32 rows and columns. TRUNNION_OPENBLAS_LIB, TRUNNION_CUBLASLT_LIB …: the
 * library's file. A CPU library is first tested in a child process (fork), so that one that crashes or hangs is only
 * refused. If a device library fails to initialize, a line on standard error says so, and own kernels are used.
 * Loading sets environment variables temporarily (OPENBLAS_CORETYPE …): no other thread should use the environment
 * meanwhile. A loaded library stays loaded until the process ends.
 * Errors: TN_ERR_ARGUMENT for an unknown name; TN_ERR_UNAVAILABLE with the reason and what to do. */
TN_API tn_status tn_set_library(const char *name);
/* Returns the name of the selected CPU library, or else of the device library; "none": own kernels. */
TN_API const char *tn_get_library(void);

/* ---- numerics ---------------------------------------------------------------------------------------------------- */

/* EXACT: CPU results have the same bits for any number of threads, any instruction set and any choice of kernels
 * (docs/numerics.md). FAST: faster algorithms may round differently, within a stated bound, still with the same bits
 * for any number of threads and any instruction set with FMA: 3×3 convolutions with stride 1 and their gradients, and
 * 1×5 convolutions of long rows with constant weights use Winograd's algorithm. */
typedef enum tn_numerics { TN_NUMERICS_EXACT, TN_NUMERICS_FAST } tn_numerics;

/* Sets the numerics of plans made from now on, in the whole process; captured graphs do not change. Without a call,
 * TRUNNION_NUMERICS in the environment decides ("exact" or "fast"; default exact). Other devices than the CPU, and
 * libraries (tn_set_library), are not affected. Threads: any. Errors: TN_ERR_ARGUMENT for another value. */
TN_API tn_status tn_set_numerics(tn_numerics numerics);
TN_API tn_numerics tn_get_numerics(void);

#ifdef __cplusplus
}
#endif
#endif
