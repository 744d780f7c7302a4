/* device.h — what this machine can compute on: listing, choosing, opening, and a device's memory.
 *
 * A backend is an interface (cpu, cuda, rocm, metal, vulkan, opencl, webgpu, engine:onnxruntime, engine:torch); a
 * device is one processor behind it, named "cpu", "cuda:0", "vulkan:1". Nothing is loaded before it is asked for, and
 * whatever cannot be used leaves a reason: what was tried, what failed, what to do.
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

/* Facts about one device. Sizes in bytes, 0 where the interface does not say. */
typedef struct tn_device_info {
    size_t struct_size; /* set by the caller to sizeof(tn_device_info) */
    char id[32];        /* "cuda:0": what tn_device_open takes */
    char backend[24];   /* "cuda" */
    int index;
    char name[128]; /* the vendor's name of the device */
    int64_t total_memory, free_memory;
    char compute_capability[24]; /* "9.0", "gfx1100", "avx512": the vendor's word for its level; may be "" */
    bool unified_memory;         /* the host reaches the same memory */
    bool software;    /* an interface for GPUs that the processor serves (llvmpipe, PoCL); false for "cpu" itself */
    bool usable;      /* this build of Trunnion can compute on it; else the backend's reason says why not */
    int threads;      /* cpu: threads that will be used; else 0 */
    char uuid[40];    /* 32 hexadecimal digits, or "" */
    char pci[16];     /* "0000:65:00.0", or "" */
    char same_as[32]; /* id of a device further up in the listing that is the same processor; "" if there is none */
} tn_device_info;

/* Facts about one backend. Strings live until the listing is freed. */
typedef struct tn_backend_info {
    size_t struct_size;
    const char *name;        /* "cuda" */
    const char *title;       /* "NVIDIA CUDA" */
    bool available;          /* at least one device can be used */
    const char *reason_code; /* "none", "library_not_found", "no_device" …: tn_reason_help_at explains them */
    const char *reason;      /* for people; "" when available */
    const char *fix;         /* what to do about it; "" when there is nothing to do */
    const char *library;     /* the file that was or would be loaded; "" if none */
    const tn_device_info *devices;
    int device_count;
} tn_backend_info;

typedef struct tn_device_list tn_device_list;

/* Looks at every backend. From the record in the cache folder this takes milliseconds; `fresh` probes again (a second
 * or two: libraries are loaded, some in a child process because they can take the process down).
 * *out: freed with tn_device_list_free. Errors: TN_ERR_MEMORY alone; a backend that fails is an entry, not an error. */
TN_API tn_status tn_device_list_new(bool fresh, tn_device_list **out);
TN_API void tn_device_list_free(tn_device_list *list);
TN_API int tn_device_list_count(const tn_device_list *list); /* backends */
/* Entry i, in order of preference; NULL outside [0, count). */
TN_API const tn_backend_info *tn_device_list_at(const tn_device_list *list, int i);
/* Id of the device that `auto` would take: "cpu" at least. */
TN_API const char *tn_device_list_recommended(const tn_device_list *list);

/* The summary that `trunnion devices` shows, through `write` (text pieces, not lines). colour: ANSI colours. */
TN_API tn_status tn_print_backend_summary(void (*write)(void *ctx, const char *text), void *ctx, bool verbose,
                                          bool colour);

/* What a reason code means and what to do about it in general. Rows 0, 1 … until NULL; the first is "none". */
typedef struct tn_reason_help {
    const char *code, *meaning, *fix;
} tn_reason_help;
TN_API const tn_reason_help *tn_reason_help_at(int i);

/* What to do when the preferred device cannot be used. */
typedef enum tn_fallback {
    TN_FALLBACK_WARN = 0, /* take the next one, with one line on standard error */
    TN_FALLBACK_STRICT,   /* fail with the reason */
    TN_FALLBACK_SILENT    /* take the next one */
} tn_fallback;

/* How to open a device. */
typedef struct tn_device_options {
    size_t struct_size;
    tn_fallback fallback;          /* default TN_FALLBACK_WARN */
    int64_t minimum_memory;        /* bytes that must be free; devices with less are skipped; default 0 */
    int threads;                   /* cpu: threads to use; default 0: all that affinity and quota allow */
    int simd;                      /* cpu: 0 best, 1 baseline, 2 AVX2, 3 AVX-512 at most; default 0 */
    size_t pool_initial, pool_max; /* bytes of device memory taken at open, default 0; at most, default 0: no limit */
    size_t pool_growth;  /* bytes of a slab, which blocks up to that size share; default 0: a slab per block */
    const char *library; /* as tn_set_library; default NULL: unchanged */
} tn_device_options;
#define TN_DEVICE_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_device_options, library), TN_FALLBACK_WARN, 0, 0, 0, 0, 0, 0, NULL }

/* One step of a selection: a device or backend that was looked at. */
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
    char chosen[32]; /* "" when none */
} tn_selection;

/* Opens a device. preference: "auto" or NULL, a backend ("cuda": its first device), or an id ("cuda:1"). `auto` takes
 * CUDA, ROCm, Metal, Vulkan, OpenCL, WebGPU, CPU in this order, software devices last; engines only by name.
 * selection (may be NULL; struct_size set by the caller) receives all that was tried, also on failure.
 * *out is shared: opening the same id again yields the same device; close once an open. The options of the first open
 * hold.
 * Errors: TN_ERR_ARGUMENT for a name that is no backend; TN_ERR_UNAVAILABLE with the reasons when nothing fits. */
TN_API tn_status tn_device_open(const char *preference, const tn_device_options *options, tn_selection *selection,
                                tn_device **out);
/* The device itself ends when nothing needs it any more: tensors, graphs, queues, and what is recorded on it and not
 * evaluated yet. NULL is fine. */
TN_API void tn_device_close(tn_device *device);

/* The device that `auto` finds, opened once a process and never closed; NULL (see tn_error) only when memory is out. */
TN_API tn_device *tn_best_device(void);

/* The device on which this thread's new tensors live; the process's default is what tn_best_device finds. set takes a
 * device that stays open meanwhile; NULL goes back to the default. */
TN_API tn_device *tn_current_device(void);
TN_API tn_status tn_set_current_device(tn_device *device);

TN_API tn_status tn_device_get_info(const tn_device *device,
                                    tn_device_info *info); /* info->struct_size set by the caller */

/* Has `told` called when a kernel is about to be loaded for a device other than the cpu, and when that has ended
 * (done): where the device's compiler is slow, programs can show that they live. One listener a process; NULL: none.
 *   number: of the kernel, among all that this process has loaded so.
 * Threads: it is called by whichever thread needs the kernel, several at once perhaps, and must not compute tensors;
 * what is under way when it is replaced may still be told to it. */
TN_API void tn_on_kernel_load(void (*told)(void *ctx, const char *device, int64_t number, bool done), void *ctx);

/* What the host computes for a device, since that lacks a type, a kernel or a size: an operation and reason. */
typedef struct tn_host_use {
    size_t struct_size;           /* set by the caller */
    char op[48];                  /* "argsort_last" */
    char code[32];                /* a word of docs/devices.md: "no_f64" */
    char reason[TN_REASON_BYTES]; /* the rest of a sentence that begins with the device: "has no f64" */
    int64_t operations;           /* such in all plans made for the device since it was opened */
} tn_host_use;
TN_API int tn_device_host_count(const tn_device *device); /* 0: it computed all that it was given */
/* Row i of [0, count). Errors: TN_ERR_ARGUMENT outside of that. */
TN_API tn_status tn_device_host_at(const tn_device *device, int i, tn_host_use *out);

/* One device on which tn_try ran its work, or could not. */
typedef struct tn_attempt {
    char id[32];                  /* "cuda:0"; what was asked for, when it could not be opened */
    tn_status status;             /* TN_OK of the one that ran */
    char reason[TN_REASON_BYTES]; /* what failed; "" of the one that ran */
    double seconds;               /* spent on opening and working */
} tn_attempt;

typedef struct tn_try_report {
    size_t struct_size;      /* set by the caller */
    tn_attempt attempts[16]; /* in order */
    int attempt_count;
    char ran[32]; /* id of the device that did it, "" when none did */
} tn_try_report;

/* Does work(ctx, device) on a device, and if that fails on the next: "cuda", then "opencl", then "cpu".
 *   preferences: `count` of what tn_device_open takes; NULL with 0: "auto", then "cpu". A device that failed is not
 *     tried again under another name.
 *   options: how they are opened, NULL for the defaults. fallback: TN_FALLBACK_WARN says each failure on standard
 *     error, TN_FALLBACK_SILENT none, TN_FALLBACK_STRICT tries the first alone. Each is opened strictly, so that an
 *     operation which it lacks fails the work instead of being computed by the host (unless it is open already,
 *     otherwise).
 *   work: is called on this thread with `device` current, and each time with the same random numbers. It returns TN_OK
 *     when it is done, which is when what it computed has been evaluated or read. Its tensors are freed behind it;
 *     what it keeps (tn_keep) is the caller's to free, also when it fails. It may be called `count` times, so it begins
 *     with what the caller has, and changes that only when nothing can fail any more.
 *   report: may be NULL; what was tried, why it failed and what ran, also on failure.
 * The device is closed behind the work, what was kept stays valid; open it before if it is to keep its kernels.
 * Errors: the last attempt's, with the reasons of all. TN_ERR_ARGUMENT, _SHAPE, _DTYPE and _FORMAT end it at once: they
 * would be the same everywhere. */
TN_API tn_status tn_try(const char *const *preferences, int count, const tn_device_options *options,
                        tn_status (*work)(void *ctx, tn_device *device), void *ctx, tn_try_report *report);

/* Device memory by hand: for embedding and for tests; tensors do not need it.
 * alloc: `size` bytes aligned to `alignment` (a power of two up to 4096); *out is a device address, on the CPU
 *   a pointer, and NULL after a failure.
 *   Errors: TN_ERR_MEMORY with what was asked and what is free; TN_ERR_ARGUMENT for a bad alignment.
 * dealloc: an address that alloc of the same device gave; NULL is fine. Waits for the device's queues.
 * copy: `len` bytes from src on src_device to dst on dst_device; regions lie in one allocation each (not checked where
 *   addresses are pointers) and must not overlap; waits for the queues of both devices and ends before it returns.
 *   NULL as a device means host memory.
 * synchronize: waits until all work given to the device, in all its queues, is done; reports a failure that happened
 *   meanwhile. One of the device's own queue is told once: what comes behind it is done again. */
TN_API tn_status tn_device_alloc(tn_device *device, size_t size, size_t alignment, void **out);
TN_API void tn_device_dealloc(tn_device *device, void *address);
TN_API tn_status tn_device_copy(tn_device *dst_device, void *dst, tn_device *src_device, const void *src, size_t len);
TN_API tn_status tn_device_synchronize(tn_device *device);

/* ---- queues ------------------------------------------------------------------------------------------------------ */

/* A queue does work in the order in which it was given, beside the caller and beside other queues: a stream of CUDA.
 * Each device has one of its own; further ones are made here. Where the interface has none (cpu), a queue is a thread,
 * on which the pool of threads works as for any other caller: who comes second computes on his own thread.
 *
 * What goes there: the evaluations (tn_eval, tn_read, tn_graph_launch …) of each thread that has made the queue its
 * current one, on the queue's device; tn_eval_async and tn_graph_launch_async (tensor.h); tn_device_copy_async.
 * Order between queues is kept for tensors without your help: work waits for the values that it reads, wherever they
 * are made; memory is used again when nobody works on it; tn_read waits for the value. Memory by hand is yours to
 * order, with events.
 *
 * Failures: what a queue was given is recorded, planned and given memory at once, and refused at once if that fails.
 * When work fails later, all that the queue was given behind it is left out, until tn_queue_synchronize has told you;
 * reading a value that was not made tells the cause, states keep what they had.
 *
 * Threads: a queue may be given work by several threads at once. After fork() the child must not touch queues. */
typedef struct tn_queue tn_queue;

/* *out: freed with tn_queue_free. Keeps the device open. Errors: TN_ERR_MEMORY when there is no thread or room for one
 * more (127 in a process), what the driver says. */
TN_API tn_status tn_queue_new(tn_device *device, tn_queue **out);
/* Waits for its work. No thread may have it as its current one, but for the caller, who goes back to the device's own.
 * NULL is fine. */
TN_API void tn_queue_free(tn_queue *queue);
/* Waits until all that the queue was given has ended. Returns the first failure since the last call, and clears it. */
TN_API tn_status tn_queue_synchronize(tn_queue *queue);
TN_API tn_device *tn_queue_device(const tn_queue *queue); /* NULL for NULL */
TN_API bool tn_queue_is_thread(const tn_queue *queue);    /* a thread of ours, not a queue of the interface */
/* Where this thread's evaluations on the queue's device go from now on; those on other devices go to these devices' own
 * queues. NULL: to the device's own. The queue must live meanwhile. */
TN_API tn_status tn_set_current_queue(tn_queue *queue);
TN_API tn_queue *tn_current_queue(void); /* NULL: the device's own */

/* A place in the order of a queue: it is reached when all that the queue was given before has ended.
 * new: timed ones tell when. free: NULL is fine.
 * record: at the end of what `queue` was given so far; NULL: of this thread's current queue, else of the current
 *   device's own. What was recorded before is forgotten.
 * query: *passed, whether it is reached; of one that was never recorded, yes.
 * synchronize: waits for it. Both yield the failure behind which the event was left out.
 * elapsed: waits for both, and yields the seconds from one to the other. Errors: TN_ERR_STATE for one that is not timed
 *   or not recorded, TN_ERR_ARGUMENT for events by two clocks, TN_ERR_UNSUPPORTED when the interface tells no times.
 * Threads: record and free by one thread at a time, the rest by any. */
typedef struct tn_event tn_event;
TN_API tn_status tn_event_new(bool timed, tn_event **out);
TN_API void tn_event_free(tn_event *event);
TN_API tn_status tn_event_record(tn_event *event, tn_queue *queue);
TN_API tn_status tn_event_query(const tn_event *event, bool *passed);
TN_API tn_status tn_event_synchronize(const tn_event *event);
TN_API tn_status tn_event_elapsed(const tn_event *begin, const tn_event *end, double *seconds);
/* What the queue is given from now on begins when the event, of whatever queue or device, is reached; the caller goes
 * on. One that was never recorded is not waited for. */
TN_API tn_status tn_queue_wait(tn_queue *queue, const tn_event *event);

/* As tn_device_copy, in the order of `queue` (NULL: this thread's current one; without one the copy ends before the
 * call returns), which must be one of dst_device or src_device. Memory of both sides must stay as it is until `event`
 * (may be NULL), which is recorded behind the copy, is reached. Between two devices that cannot see each other the
 * copy goes through host memory; an interface's own queue is then waited for. */
TN_API tn_status tn_device_copy_async(tn_device *dst_device, void *dst, tn_device *src_device, const void *src,
                                      size_t len, tn_queue *queue, tn_event *event);

/* ---- memory of the host that a device reaches -------------------------------------------------------------------- */

/* Host memory that `device` copies from and to without a detour (pinned, page-locked). Where there is none it is memory
 * of the process at whole pages, and *reason (may be NULL) says why; else *reason is "". Freed with tn_host_free.
 * Errors: TN_ERR_MEMORY. */
TN_API tn_status tn_host_alloc(tn_device *device, size_t size, void **out, const char **reason);
TN_API void tn_host_free(void *address); /* waits for the device's queues; NULL is fine */

/* The host's view of `len` bytes of device memory, in *out: the memory itself where it is the host's too (unified: no
 * copy), a mapping of the interface, or a copy. With `read` it shows what is there. The device sees what was written
 * after unmap, and must leave the range alone in between. Waits for the device's queues. */
TN_API tn_status tn_device_map(tn_device *device, void *address, size_t len, bool read, void **out);
TN_API tn_status tn_device_unmap(tn_device *device, void *address, void *host);

/* ---- the pool ---------------------------------------------------------------------------------------------------- */

/* What this process does with a device's memory. A freed block is kept, for the next of its size; kept memory is
 * bounded (a sixteenth of the device, 512 MiB at most), and given back before an allocation fails. A device opened
 * with pool_initial or pool_growth cuts blocks out of larger pieces, by best fit, and joins what is free. */
typedef struct tn_pool_stats {
    size_t struct_size;               /* set by the caller */
    int64_t in_use_bytes, peak_bytes; /* of blocks that tensors, plans and callers have; the most there ever were */
    int64_t kept_bytes;               /* of blocks that are kept for reuse */
    int64_t taken_bytes, limit;       /* from the driver, all in all; pool_max, 0: no limit */
    int64_t buffers;                  /* in use, borrowed memory included */
    int64_t allocations, hits;        /* buffers asked for; those for which a kept block was right */
    int64_t pieces;                   /* that blocks are cut out of */
    int64_t free_bytes, largest_free; /* in pieces, besides kept blocks; in one place */
    double fragmentation;             /* 0 to 1: share of free_bytes that lies outside of the largest free place */
} tn_pool_stats;
TN_API tn_status tn_device_get_pool_stats(const tn_device *device, tn_pool_stats *stats);
TN_API void tn_device_reset_pool_peak(tn_device *device); /* also allocations and hits; NULL is fine */
/* Gives what is kept back to the driver, and pieces of which nothing is in use (but for pool_initial). *given (may be
 * NULL): bytes. */
TN_API tn_status tn_device_trim(tn_device *device, int64_t *given);
/* Joins what is free in pieces into the largest places that there can be, and gives whole pieces back as trim does.
 * Blocks in use stay where they are: plans, captured graphs and callers know their addresses, and states keep theirs
 * for ever. So what a piece has in use decides how much of it can be joined; a growth of many times the usual block
 * keeps that small. */
TN_API tn_status tn_device_defragment(tn_device *device, int64_t *given);

/* Threads of the CPU, for all users of the process: 0 = as many as affinity mask and cgroup quota allow. The caller is
 * one of them and is left where it is; each other one is tied to a processor of its own, out of the caller's way, as
 * long as no other program crowds it there. TRUNNION_PIN=0 in the environment leaves them free,
 * a mask set from outside stays. */
TN_API tn_status tn_set_num_threads(int n);
TN_API int tn_get_num_threads(void);

/* ---- libraries for matrix products, convolutions and factorizations ---------------------------------------------- */

/* BLAS libraries of the system, one that can compute the CPU's products in our place: on our threads, an activation
 * still joined to the product; the LAPACK inside it factors larger matrices. And what vendors ship for their devices
 * (cuBLASLt, rocBLAS, Metal Performance Shaders; for convolutions cuDNN): in our queues and memory, products alone.
 * Their sums run in an order of their own: results agree with ours within rounding, but are not the same bits, from
 * library to library, processor to processor, and perhaps for another number of threads. So one is used only when it is
 * asked for. */
typedef struct tn_library_info {
    size_t struct_size; /* set by the caller */
    char name[24];      /* "openblas": what tn_set_library takes */
    char title[48];
    char path[256];       /* the file that was or would be loaded; "" if there is none */
    char description[96]; /* what it says of itself; "" until it is loaded */
    bool available;       /* found; one that does not work says so when it is loaded */
    bool in_use;
    char reason_code[32], reason[TN_REASON_BYTES], fix[TN_REASON_BYTES]; /* as in tn_backend_info */
    char backend[24];                                                    /* where it computes: "cpu", "cuda" */
} tn_library_info;

TN_API int tn_library_count(void);
/* Row i of [0, count). Loads nothing but what TRUNNION_LIBRARY names. Errors: TN_ERR_ARGUMENT outside of that. */
TN_API tn_status tn_library_at(int i, tn_library_info *out);
/* Plans made from now on compute with this library, where it can, on the devices of its backend: matrix products in f32
 * and f64, with a vendor's library also in f16 and bf16 (sums in f32). "cudnn" computes convolutions and their
 * gradients in f32, f16 and bf16. "openblas", "mkl" and "accelerate" also solve, factor and find eigenvalues (linalg.h)
 * from 32 rows and columns on. Existing captured graphs do not change.
 *   name: a row above; "auto": for each kind of device and work the first that works (on the CPU with tuning, tune.h:
 *   the fastest measured, our own kernels included); "none" or NULL: our own kernels; or a list such as
 *   "cublaslt,cudnn" with at most one library for the CPU.
 * Applies to the whole process; without a call TRUNNION_LIBRARY in the environment decides. TRUNNION_OPENBLAS_LIB,
 * TRUNNION_CUBLASLT_LIB …: the library's file. A library for the CPU is first tried in a child process (fork), so one
 * that crashes or hangs is only refused. If a device's library does not start, that is reported on standard error, and
 * our kernels compute. Loading sets environment variables for a moment (OPENBLAS_CORETYPE …): no other thread should
 * access the environment meanwhile. A loaded library stays until the process ends. Errors: TN_ERR_ARGUMENT for an
 * unknown name; TN_ERR_UNAVAILABLE with the reason and what to do. */
TN_API tn_status tn_set_library(const char *name);
/* The CPU's, else a device's; "none": our own kernels. */
TN_API const char *tn_get_library(void);

/* ---- numerics ---------------------------------------------------------------------------------------------------- */

/* EXACT: what the processor computes has the same bits for any number of threads, any instruction set and any choice
 * of kernels (docs/architecture.md, Numerics). FAST: it may be rounded otherwise where that saves time, within a bound
 * that the kernel states, and still with the same bits for any number of threads and any instruction set with fma:
 * convolutions of 3×3 with a stride of 1 and their gradients, and of long rows of five taps whose filters stay as they
 * are, take Winograd's algorithm. */
typedef enum tn_numerics { TN_NUMERICS_EXACT, TN_NUMERICS_FAST } tn_numerics;

/* For what is planned from now on, in the whole process; graphs captured before stay as they are. Without a call
 * TRUNNION_NUMERICS in the environment decides ("exact" or "fast"), and without that it is TN_NUMERICS_EXACT. Devices
 * other than the CPU and libraries (tn_set_library) compute as they do anyway. Any thread.
 * Errors: TN_ERR_ARGUMENT for another number. */
TN_API tn_status tn_set_numerics(tn_numerics numerics);
TN_API tn_numerics tn_get_numerics(void);

#ifdef __cplusplus
}
#endif
#endif
