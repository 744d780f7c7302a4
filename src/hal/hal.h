/* hal.h — devices as the layers above see them: open devices, buffers, kernels, launches, tuned choices, vendor
 * libraries.
 *
 *   device.c         selection, open devices, fallback to the host (the table of backends: drivers/drivers.c)
 *   discovery.c      probing backends, in child processes if needed, and the record of the last probe on disk
 *   memory.c         buffers, the memory pool, packed weights
 *   kernel.c         loaded kernels, one per structure; command lists
 *   driver_module.c  rendering and compiling a kernel; checking and splitting launches; what a device can run
 *   cache_files.c    compiled kernels on disk
 *   queue.c          order between queues (queue.h)
 *   watchdog.c       time limits for waits
 *   error_counters.c errors that kernels count, reported when the host waits
 *   dry.c            dry runs: devices that plan and compute nothing, to measure the memory of a program
 * Nothing here knows ops. */
#ifndef TN_HAL_H
#define TN_HAL_H

#include "base/base.h"
#include "kir/kir.h"
#include "trunnion/backend.h"
#include "trunnion/device.h"
#include "trunnion/tune.h"
#include "vendor/vendor.h"

typedef struct tn_dry tn_dry;
enum { VENDOR_NONE = 1, VENDOR_ALL }; /* tn_device_options.vendor */

struct tn_device {
    const tn_driver *_Atomic driver; /* replaced if the device does not answer (watchdog.c) */
    void *handle;                    /* the driver's */
    tn_device_info info;
    tn_caps caps;
    uint64_t serial; /* unique among all devices ever opened: addresses of closed ones are reused */
    int opens;
    bool says_exact;            /* caps.exact by the driver's word; certification may have found otherwise */
    bool is_cpu;                /* native kernels of src/cpu may run on its buffers */
    bool is_engine;             /* another library computes the graphs; memory and kernels are the cpu's */
    tn_device_options settings; /* of the first open; its texts are copies */
    struct {
        bool own;                   /* the settings name libraries; else the process's choice counts */
        bool open;                  /* "auto": measurements choose among all */
        const struct tn_blas *blas; /* NULL: none */
        uint32_t vendors;           /* rows of tn_vendor_library_at */
    } libraries;
    bool no_graphs;                 /* repeated command lists are submitted one by one, not as the driver's graphs */
    tn_fallback fallback;           /* may the host compute what it cannot? */
    struct tn_host_rows *host_rows; /* device.c: what it did compute; NULL: nothing */
    void *kernels;                  /* kernel.c's table, by structure */
    void *pool;                     /* memory.c's kept blocks and counts */
    struct tn_command_list *lists;  /* kernel.c's: those that the driver has a form of */
    struct tn_vendors *vendors;     /* libraries.c's: libraries that were started here */
    struct tn_watchdog *watchdog;   /* NULL: waits have no time limit */
    tn_dry *dry;                    /* a dry run (dry.c); NULL: a device that computes */
    _Atomic bool ordered;           /* it has had further queues: buffers bear timeline points (queue.h) */
    /* a device's default queue, if it has a timeline; NULL if calls have completed when they return */
    tn_queue *own;
    atomic_int streams; /* driver's streams that queues of tn_queue_new have made (tn_device_options.streams) */
    tn_device *next;    /* device.c's list of open devices */
};

/* Of plans for this device: its own setting, or the process's. */
tn_numerics tn_device_numerics(const tn_device *d);
tn_tuning tn_device_tuning(const tn_device *d);
/* Likewise; NULL: own kernels. */
const struct tn_blas *tn_device_blas(const tn_device *d);
bool tn_device_blas_is_open(const tn_device *d); /* "auto": tuning may take any BLAS library */
/* Sets the device's own libraries by name (tn_device_options.library). NULL: keeps the process's choice. */
tn_status tn_device_take_libraries(tn_device *d, const char *names);
/* Notes that a plan runs an operation on the host. true: for the first time with this reason, so it should be
 * reported. */
bool tn_device_note_host(tn_device *d, const char *op, const char *code, const char *reason);
/* Runs body(ctx, out) in a child process for at most `seconds` and copies back the `bytes` of `out`. false: it crashed,
 * ended early or took too long, as *why says; out is then undefined. (discovery.c) */
bool tn_child_run(void (*body)(void *ctx, void *out), void *ctx, void *out, size_t bytes, int seconds,
                  const char **why);
/* The library for matrix products in use, NULL: none. Without a call of tn_set_library, TRUNNION_LIBRARY decides. */
const struct tn_blas *tn_library_chosen(void);
/* The vendors' libraries in use, for devices: bit i is row i of vendor/vendor.c. */
uint32_t tn_vendors_chosen(void);
tn_device *tn_chosen_device(void); /* what this thread has set as its current device; NULL: the default */

typedef uint64_t tn_timeline_point; /* a place in the order of a queue's work: queue.h */

/* What is known of a buffer's integers because the host sent them: the two smallest and the two largest different
 * values, so that the range without any one value follows. Of fewer than two: INT64_MAX and INT64_MIN. */
typedef struct tn_known_integers {
    uint64_t version; /* of the buffer that holds them; nothing is known of other versions */
    int64_t low, second_low, high, second_high;
} tn_known_integers;

/* A piece of device memory, shared by count. Its address can be offset: address + n is a device address as well. */
typedef struct tn_buffer {
    _Atomic int32_t refs;
    uint16_t size_class; /* memory.c: which list of kept blocks it belongs to */
    bool is_home;        /* of a state */
    bool unasked;        /* its value was computed because the recording was long, not because anyone read it */
    /* its block in a slab of the pool (memory.c); NULL: allocated by the driver */
    struct tn_slab_block *slab_block;
    tn_device *device;
    void *address; /* device address; on a host-visible device a pointer */
    size_t bytes;
    uint64_t version; /* add one at each write; starts at a value never seen before in this process, so that
                                      * cached packings may compare (buffer, version) alone */
    tn_known_integers known;
    void (*release)(void *ctx); /* borrowed memory: called instead of freeing */
    void *release_ctx;
    struct tn_buffer *next; /* memory.c: list of kept blocks, or of blocks handed out by address */
    _Atomic(struct tn_packed_entry *) packed_weights; /* memory.c: what was made of its content */
    void *given;    /* memory.c: the aligned address that tn_device_alloc handed out */
    size_t touched; /* dry.c: bytes counted so far */
    /* queue.h: of the last write and of reads since; they stay with the block */
    tn_timeline_point points[4];
} tn_buffer;

/* 64-byte aligned; freed blocks are reused. The device may still be executing the work that used the block before: work
 * submitted to a queue (queue.h) waits for it; a caller that accesses `address` itself calls tn_buffer_await. */
tn_status tn_buffer_new(tn_device *d, size_t bytes, tn_buffer **out);
/* After a request that failed: so many bytes would have been requested next (tn_pool_stats.refused_bytes). */
void tn_pool_refuse_more(tn_device *d, int64_t bytes);
tn_status tn_buffer_new_for_host(tn_device *d, size_t bytes, tn_buffer **out); /* prefers a block that nothing uses */
/* *out uses memory that the caller owns; release(ctx) (may be NULL) is called when the last reference is released. */
tn_status tn_buffer_borrow(tn_device *d, void *address, size_t bytes, void (*release)(void *), void *ctx,
                           tn_buffer **out);
bool tn_buffer_is_borrowed(const tn_buffer *b); /* its owner may write to it at any time, without a new version */
static inline tn_buffer *tn_buffer_retain(tn_buffer *b) {
    if (b) atomic_fetch_add_explicit(&b->refs, 1, memory_order_relaxed);
    return b;
}
void tn_buffer_release(tn_buffer *b); /* NULL is fine */
/* A closed device is freed when its last buffer and its last reference are released. */
void tn_device_retain(tn_device *d);
void tn_device_release(tn_device *d);
tn_status tn_buffer_write(tn_buffer *b, size_t offset, const void *host, size_t bytes);
/* b holds these integers, which were written last: what is known of them afterwards. Other dtypes: nothing is. */
void tn_buffer_note_integers(tn_buffer *b, tn_dtype dtype, const void *host, size_t bytes);
static inline bool tn_buffer_is_known(const tn_buffer *b) { return b->known.version == b->version; }
int64_t tn_integer_at(tn_dtype t, const void *base, int64_t i); /* a u64 of 2^63 and more: negative */
tn_status tn_buffer_read(const tn_buffer *b, size_t offset, void *host, size_t bytes); /* waits for work before it */
/* The first `bytes` bytes of one buffer of a device to another, in the order of this thread's queue. */
tn_status tn_buffer_copy(tn_buffer *to, tn_buffer *from, size_t bytes);
tn_status tn_buffer_move(tn_buffer *to, const tn_buffer *from, size_t bytes); /* the same between devices, at once */
/* Waits until no queue writes b and, with `written`, until no queue reads it. Returns the error of the work that should
 * have written its contents. */
/* some device has had further queues; until then no buffer bears a timeline point */
extern _Atomic bool tn_queues_made;
static inline bool tn_queues_exist(void) { return atomic_load_explicit(&tn_queues_made, memory_order_acquire); }
tn_status tn_buffer_await_points(const tn_buffer *b, bool write);
static inline tn_status tn_buffer_await(const tn_buffer *b, bool write) {
    return tn_queues_exist() ? tn_buffer_await_points(b, write) : TN_OK;
}
/* The failure of the work that should have made what is there, if it is known already. */
tn_status tn_buffer_check(const tn_buffer *b);
/* Whether this thread's queue or the host can reuse a block without a wait. */
bool tn_buffer_is_reusable(tn_buffer *b, bool for_host);
/* The driver's stream handle for this thread's calls: the device's own, or that of one of its queues. */
void *tn_stream_handle_of(const tn_device *d);
static inline void *tn_stream_handle(const tn_device *d) {
    return atomic_load_explicit(&d->ordered, memory_order_relaxed) ? tn_stream_handle_of(d) : d->handle;
}

/* The driver's sync of a stream handle and of an event, and copies to and from the host with the waits that belong to
 * them, within the device's time limit: TN_ERR_LOST after it, and from then on for every call. */
tn_status tn_device_wait(const tn_device *d, void *stream);
tn_status tn_device_wait_event(const tn_device *d, void *event);
tn_status tn_device_fetch(const tn_device *d, void *stream, void *host, const void *address, size_t bytes);
tn_status tn_device_send(const tn_device *d, void *stream, void *address, const void *host, size_t bytes);
void tn_device_works(const tn_device *d); /* before work is given to the device */
typedef struct tn_watchdog tn_watchdog;
tn_status tn_watchdog_begin(tn_device *d); /* if the settings have a time limit */
void tn_watchdog_end(tn_device *d);

/* A buffer's contents in the layout that a kernel reads: weights packed for a product. It is made on first use, by any
 * thread, shared by all plans and threads of the process, freed with the buffer, and made again if the buffer was
 * written. Its memory counts as a buffer of the device. */
enum { TN_PACKED_WORDS = 8 };
typedef struct tn_packed_weight {
    void (*make)(const struct tn_packed_weight *format, const void *from, void *to);
    size_t bytes;                  /* of the result */
    int64_t word[TN_PACKED_WORDS]; /* what make needs to know, and with it the form's name */
    /* the original contents are rarely read after this: pages of a mapped file may be dropped */
    bool replaces;
} tn_packed_weight;
/* *out: the packed weight's address, valid as long as b. Host-visible devices. Callers may keep it while b has the same
 * version, but should ask now and then, so that file pages that were read again are dropped again. */
tn_status tn_buffer_packed_weight(tn_buffer *b, const tn_packed_weight *packed, void **out);

/* ---- errors that kernels count (error_counters.c) ---------------------------------------------------------------- */

/* Reported as "FILE:LINE: WHAT: 3 RULE". */
typedef struct tn_counted_error {
    const char *what, *file; /* file: may be NULL; both live as long as the process */
    int32_t line;
    char rule[224];
} tn_counted_error;
typedef struct tn_error_counters tn_error_counters;
/* `count` counters, each the sum of `parts` u32 words, which begin as 0. */
tn_status tn_error_counters_new(tn_device *d, int count, int parts, tn_error_counters **out);
tn_buffer *tn_error_counters_words(const tn_error_counters *c);
void tn_error_counters_name(tn_error_counters *c, int counter, const tn_counted_error *error);
/* After kernels that may change the words were submitted: a look before that could miss them. */
void tn_error_counters_touch(tn_error_counters *c);
void tn_error_counters_release(tn_error_counters *c); /* NULL is fine. What was counted is still reported */
/* After a wait for the device: TN_ERR_ARGUMENT with the first counter that has grown since it was last reported. */
tn_status tn_error_counters_report(const tn_device *d);
/* The device is closed: what was not reported never will be. Those that were released are freed. */
void tn_error_counters_close(const tn_device *d);

/* ---- dry runs (dry.c) -------------------------------------------------------------------------------------------- */

tn_status tn_dry_begin(tn_device *d); /* sets d->dry */
void tn_dry_end(tn_device *d);
bool tn_dry_has(const tn_device *d, const void *address); /* is the address in a block without memory? */
tn_status tn_dry_alloc(tn_device *d, size_t bytes, void **address);
void tn_dry_free(tn_device *d, void *address);
/* The driver's copy, or if a block without memory takes part: reads zeros, drops writes. */
tn_status tn_dry_copy(const tn_device *d, void *stream, void *to, const void *from, size_t bytes, int kind);
/* The driver's copy, or tn_dry_copy in a dry run. */
static inline tn_status tn_device_copy_bytes(const tn_device *d, void *stream, void *to, const void *from, size_t bytes,
                                             int kind) {
    return d->dry ? tn_dry_copy(d, stream, to, from, bytes, kind) : d->driver->copy(stream, to, from, bytes, kind);
}
/* Counts the buffer's bytes (for a mapped file: those of its pages) as touched, once. */
void tn_dry_touch(tn_buffer *b);
void tn_dry_touch_pages(tn_buffer *b); /* the same, if it is a part of a mapped file that the device reads */
void tn_dry_untouch(tn_buffer *b);
int64_t tn_dry_peak(const tn_device *d); /* most bytes touched at the same time; 0: not a dry run */
tn_status tn_dry_clear(tn_buffer *b);    /* writes zeros if the buffer has memory */
bool tn_dry_is_real(size_t bytes);       /* a block of this size is small enough to have memory */

/* Bytes of live tensors and plans on all devices, and their maximum so far. A borrowed buffer counts zero bytes. */
typedef struct tn_memory_stats {
    int64_t live_bytes, peak_bytes, live_buffers;
} tn_memory_stats;
tn_memory_stats tn_memory_get_stats(void);
void tn_memory_reset_peak(void);
void tn_memory_trim(tn_device *d);                   /* frees cached blocks and empty slabs */
void tn_memory_trim_for(tn_device *d, size_t bytes); /* the same, unless one of them is right for so many bytes */

/* A loaded kernel in the device's table; equal structures share one. Each tn_kernel_get needs a tn_kernel_release, from
 * any thread, also after the device was closed. */
typedef struct tn_kernel tn_kernel;
tn_status tn_kernel_get(tn_device *d, const kir_program *p, tn_kernel **out);
void tn_kernel_release(tn_kernel *k);           /* NULL is fine */
const kir_vm *tn_kernel_vm(const tn_kernel *k); /* of a device whose code is KIR */
tn_status tn_kernel_launch(tn_device *d, tn_kernel *k, const tn_launch *launches, int64_t count);
tn_status tn_kernel_prepare(tn_device *d, tn_kernel *k, const tn_launch *launches, int64_t count);

/* Launches of several kernels in order, recorded once to be run many times (kernel.c). tn_command_list_add computes
 * everything that depends on sizes; the addresses and runtime scalars that the launches point to are read at each run.
 * Kernels and launches must outlive the list; only one thread may use it at a time. */
typedef struct tn_command_list tn_command_list;
tn_status tn_command_list_new(tn_device *d, tn_command_list **out);
/* NULL is fine */
void tn_command_list_free(tn_command_list *l);
/* before the first run */
tn_status tn_command_list_add(tn_command_list *l, tn_kernel *k, const tn_launch *launches, int64_t count);
tn_status tn_command_list_run(tn_command_list *l);

/* Why a device cannot run a kernel: `code` for programs, and the end of a sentence that starts with the device's name
 * ("has no f64", "binds 8 buffers at most, this kernel has 11"). */
typedef struct tn_kernel_answer {
    const char *code;
    char why[TN_REASON_BYTES];
} tn_kernel_answer;
/* Whether the device can run the program with these sizes (NULL: with some sizes); if not, *answer (may be NULL) says
 * why:
 *   no_f64, no_i64, no_renderer, too_many_bindings, buffer_too_large, loop_too_long, local_memory, group_too_large,
 *   not_certified (it failed certification here), refused_by_compiler (in this process). */
bool tn_kernel_supported(tn_device *d, const kir_program *p, const int64_t *sizes, tn_kernel_answer *answer);
/* false (buffer_too_large) if a part of the launch would bind a buffer from beyond its end, as masked accesses may
 * need. bytes: of each buffer. */
bool tn_kernel_in_bounds(tn_device *d, const kir_program *p, const int64_t *sizes, const int64_t *bytes,
                         tn_kernel_answer *answer);
/* Whether the program can reach all bytes of a buffer: needed for computed indices, and with `all`. On some devices the
 * program is changed to bind the buffer in windows. false: buffer_too_large. */
bool tn_kernel_addresses(tn_device *d, kir_program *p, int buffer, int64_t bytes, bool all, tn_kernel_answer *answer);

/* The list of ops and kernels that this version of the device's driver is known to compute wrongly (cache_files.c):
 * `name` is an op's or tn_kernel_name's. Adding fails without a cache folder. */
bool tn_certify_list_has(const tn_device *d, const char *name, char *why, size_t size);
tn_status tn_certify_list_add(const tn_device *d, const char *name, const char *reason);
tn_status tn_certify_list_forget(const tn_device *d, const char *name); /* before it is tested again */
enum { TN_KERNEL_NAME = 24 };
const char *tn_kernel_name(const kir_program *p, char out[TN_KERNEL_NAME]); /* "k" and the structure's hash */

/* ---- between the files of hal/ ----------------------------------------------------------------------------------- */

tn_status tn_pool_open(tn_device *d, const tn_device_options *o);
bool tn_pool_close(tn_device *d); /* false while buffers live: the last release then ends the device */
void tn_pool_free(tn_device *d);
tn_status tn_kernels_open(tn_device *d);
void tn_kernels_close(tn_device *d);
void tn_kernels_drop(tn_device *d); /* frees kernels that no plan uses (leak tests) */
void tn_command_lists_close(tn_device *d);
void tn_device_end(tn_device *d); /* frees all of an unused device */

/* Bytes in words, "1.5 GiB"; out has room for 24. Returns out. */
const char *tn_bytes_text(char *out, int64_t bytes);

/* ---- supplied by drivers/ ---------------------------------------------------------------------------------------- */

/* The backends in order of preference (drivers/drivers.c), ended by a row without a name. */
typedef struct tn_backend_row {
    const char *name, *title;
    const tn_driver *driver; /* NULL: left out at build time */
    bool is_cpu;
    bool is_engine;        /* a library that computes whole graphs on the host's memory (plan/engine.h) */
    const char *wanted_by; /* listed only if this variable of the environment is "1"; NULL: always */
} tn_backend_row;
extern const tn_backend_row tn_backend_rows[];

/* ==== measured choices ============================================================================================ */

tn_tuning tn_tuning_mode(void);
/* Changes whenever plans may come out differently than before; part of their keys. */
uint64_t tn_tune_generation(void);
bool tn_tune_find(const tn_device *d, const char *key, tn_tuned *out);
/* Adds an entry or replaces the one with this key, in memory and in the device's file. Failing to write the file is not
 * an error. */
void tn_tune_put(const tn_device *d, const tn_tuned *entry);

/* ==== vendor libraries on open devices ============================================================================ */

/* A product or a convolution that a library has agreed to compute, and how it will. May outlive its device. */
typedef struct tn_vendor_call {
    const tn_vendor_library *library;
    void *state;
    size_t workspace; /* workspace bytes of a run, a multiple of 64 */
} tn_vendor_call;

/* The library that was asked for and computes products, or convolutions, on this kind of device; NULL: our kernels. */
const tn_vendor_library *tn_vendor_for(const tn_device *d, bool convolutions);

/* Asks a vendor library for a product or, if that is NULL, a convolution. *out stays NULL if it cannot; *why is then
 * the end of a sentence that starts with its name. A library that does not start on this device is reported once, as a
 * notice. Errors: TN_ERR_MEMORY, TN_ERR_LOST. */
tn_status tn_vendor_make(tn_device *d, const tn_vendor_library *l, const tn_vendor_product *p,
                         const tn_vendor_conv *conv, tn_vendor_call **out, const char **why);
void tn_vendor_free(tn_vendor_call *c); /* NULL is fine */
/* In the order of this thread's queue. pointers: A, B, C or a convolution's, then the workspace. */
tn_status tn_vendor_run(tn_device *d, const tn_vendor_call *c, void *const *pointers);

/* When the device ends. */
void tn_vendors_close(tn_device *d);

/* ==== collective operations on device memory (group.c) ============================================================ */

typedef struct tn_group tn_group;
typedef enum tn_collective { TN_COLLECTIVE_BROADCAST, TN_COLLECTIVE_GATHER, TN_COLLECTIVE_TRADE } tn_collective;
/* TN_OK if all ranks call it with TN_OK and the same `call`, not 0; else s, or an error that names the rank or the
 * broken connection. */
tn_status tn_group_agree(tn_group *g, tn_status s, uint64_t call);
tn_status tn_group_check_root(const tn_group *g, int root);
/* As the functions of distributed.h, on buffers of one device, which is of the same kind on all ranks: by NCCL or RCCL,
 * else through the host. bytes: of a rank's piece. receive is complete when the call returns. */
tn_status tn_group_collect(tn_group *g, tn_collective what, int root, tn_buffer *send, size_t bytes,
                           tn_buffer *receive);

/* An exchange in host memory that is a step of a plan. */
typedef struct tn_group_step {
    int64_t number; /* of the recording; ranks compare it, so different orders of steps are an error */
    size_t bytes;   /* that go to each rank */
    bool divides;   /* each rank gets another piece of `send`, in their order; else all get the same bytes */
} tn_group_step;
/* Begins it: each rank gets lengths[rank] bytes of `send`, in the order of the ranks, or with lengths NULL what `step`
 * says. tn_group_await waits for the end; until then `send` and `receive` must stay. tn_group_settle (distributed.h)
 * reports failures of both. */
void tn_group_post(tn_group *g, const tn_group_step *step, const void *send, const int64_t *lengths, void *receive);
int64_t tn_group_next_number(tn_group *g); /* for the next exchange that is recorded */
void tn_group_await(tn_group *g, const void *receive);

/* ==== large pieces of device memory =============================================================================== */

typedef struct tn_slab_pool tn_slab_pool;
typedef struct tn_slab_block tn_slab_block;

typedef struct tn_slab_pool_facts {
    int64_t pieces, free_bytes, largest; /* largest: free block */
} tn_slab_pool_facts;

#endif
