/* backend.h — for authors of drivers: the one struct that makes a machine usable.
 *
 * A driver knows memory, code and launches of one interface, and never an operation. hal/ checks arguments, counts,
 * pools and orders; a driver may trust what it is given. examples/backend/driver.c is one that works, to be copied by
 * tools/new_backend.py; src/drivers/null.c is the commented skeleton of one inside the library.
 *
 * A struct grows at its end; struct_size tells which fields exist. A NULL function has the default that its comment
 * names. */
#ifndef TRUNNION_BACKEND_H
#define TRUNNION_BACKEND_H

#include <stdio.h>

#include "trunnion/device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TN_BACKEND_ABI = 1 };

/* What a driver's load() takes. */
typedef enum tn_code_format {
    TN_CODE_KIR = 1, /* the kernel program itself, for in-tree drivers that run it (cpu) */
    TN_CODE_OPENCL_C,
    TN_CODE_CUDA_C,
    TN_CODE_HIP_C,
    TN_CODE_MSL,
    TN_CODE_WGSL,
    TN_CODE_SPIRV,
    TN_CODE_PTX, /* no renderer writes it: a driver that asks for it gets no kernels (no_renderer) */
    TN_CODE_C    /* plain C: one function that computes a range of workgroups */
} tn_code_format;

/* One kernel. The parameters of a rendered one are, in this order: a global buffer for each of buffer_count, then one
 * struct of params_bytes by value (8-byte words: sizes, runtime scalars, bases); with params_in_buffer the struct's
 * address in a constant buffer instead; of TN_CODE_SPIRV and TN_CODE_WGSL always so: binding i of set (group) 0 is
 * buffer i, and binding buffer_count is the struct. All fields from buffer_count on are zero for TN_CODE_KIR. */
typedef struct tn_code {
    tn_code_format format;
    const void *data; /* text or words; for TN_CODE_KIR a kir_program */
    size_t size;
    const char *entry;   /* kernel name */
    int buffer_count;    /* global buffers, in the order of the kernel's parameters */
    uint32_t group[3];   /* items of a workgroup */
    size_t params_bytes; /* of the struct */
    /* Where in the struct the bases stand: one 8-byte word a buffer, bytes that the kernel adds to that buffer's
     * address. A driver whose bindings are handles adds its offset into a copy; others leave what is there. */
    size_t bases_at;
    /* Workgroup memory that the kernel declares. In CUDA C, which allows no more than TN_CUDA_DECLARED, the launch has
     * to bring it if it is more. */
    int64_t local_bytes;
    bool params_in_buffer; /* the driver puts the struct into memory that the kernel reads */
    const bool *written;   /* buffer_count of them: the kernel stores there; valid during load() */
    const char *options;   /* for the compiler; "": none */
    /* What `binary` returned earlier for this code, device and version, or NULL. A driver that cannot use it compiles
     * `data` instead. */
    const void *binary;
    size_t binary_size;
    const tn_dtype *elements; /* of each buffer, valid during load(); NULL: unknown */
    /* TN_CODE_WGSL: the first head_size bytes of `data` declare the bindings and the functions that access them:
     * word3(i), put3(i, v) and flip3(i, v) read, write and xor u32 number i of buffer 3. A driver may replace these
     * bytes by its own declarations. */
    size_t head_size;
    int subgroup; /* items that have to run in step, whole subgroups of them; 0: the kernel has no subgroups */
    /* TN_CODE_SPIRV, of a device with TN_SPIRV_WINDOWS: bindings that each buffer takes behind each other, valid during
     * load(); NULL: one each. Those of a buffer with several hold window_bytes from the launch's place on, rounded down
     * to the caps' alignment; where memory ends before, whatever the last one holds. */
    const uint8_t *windows;
    int64_t window_bytes;
} tn_code;

enum { TN_CUDA_DECLARED = 48 << 10 };

/* What a device that takes SPIR-V can do beyond Vulkan 1.1's promises: bits of tn_caps.features. The code then declares
 * the capability or execution mode of that name; without the bit it does without. */
enum {
    TN_SPIRV_STORAGE_8 = 1 << 0,  /* StorageBuffer8BitAccess */
    TN_SPIRV_STORAGE_16 = 1 << 1, /* StorageBuffer16BitAccess */
    TN_SPIRV_INT_8 = 1 << 2,      /* Int8: in workgroup memory too */
    TN_SPIRV_INT_16 = 1 << 3,
    TN_SPIRV_FLOAT_16 = 1 << 4,
    /* SPV_KHR_float_controls, by width */
    TN_SPIRV_PRESERVE_16 = 1 << 5, /* SignedZeroInfNanPreserve */
    TN_SPIRV_PRESERVE_32 = 1 << 6,
    TN_SPIRV_PRESERVE_64 = 1 << 7,
    TN_SPIRV_DENORM_16 = 1 << 8, /* DenormPreserve */
    TN_SPIRV_DENORM_32 = 1 << 9,
    TN_SPIRV_DENORM_64 = 1 << 10,
    TN_SPIRV_RTE_16 = 1 << 11, /* RoundingModeRTE */
    TN_SPIRV_RTE_32 = 1 << 12,
    TN_SPIRV_RTE_64 = 1 << 13,
    TN_SPIRV_FMA_SPLITS = 1 << 14, /* Fma rounds its product too: the code rounds once itself (f64's: with i64) */
    /* Cooperative matrices (SPV_KHR_cooperative_matrix) have 8 rows, columns, steps of k; without the bit 16 */
    TN_SPIRV_MATRIX_M8 = 1 << 15,
    TN_SPIRV_MATRIX_N8 = 1 << 16,
    TN_SPIRV_MATRIX_K8 = 1 << 17,
    TN_SPIRV_WINDOWS = 1 << 18,  /* load() heeds tn_code.windows */
    TN_SPIRV_BFLOAT_16 = 1 << 19 /* cooperative matrices of bf16 (SPV_KHR_bfloat16), of the same shape */
};

/* … and one that takes WGSL. */
enum {
    TN_WGSL_FUSED = 1 << 0 /* fma() rounds once; else the code does so itself, at length */
};

/* What a subgroup multiplies with matrix units, as 16×16 += 16×16 · 16×16 with sums in f32. Rendered code may then do
 * so with `subgroup` items, which follow each other in a workgroup and are all there. */
enum {
    TN_MATRIX_F16 = 1 << 0,
    TN_MATRIX_BF16 = 1 << 1,
    TN_MATRIX_PACKETS = 1 << 2, /* 16 bytes move at once from memory to workgroup memory … */
    TN_MATRIX_LATE = 1 << 3,    /* … and on their own, while items compute */
    TN_MATRIX_WIDE = 1 << 4,    /* four subgroups of 32 multiply 64 rows with up to 256 columns (CUDA C for sm_90a) */
    TN_MATRIX_TF32 = 1 << 5 /* f32, rounded to 10 bits of fraction first: only if asked for (TRUNNION_MATRIX=tf32) */
};

typedef struct tn_caps {
    size_t struct_size;
    tn_code_format code;   /* what load() wants */
    bool f64, i64, f16;    /* native types */
    int64_t max_buffer;    /* bytes in one binding */
    int64_t max_group;     /* threads a workgroup */
    int64_t shared_memory; /* bytes of workgroup memory */
    int64_t alignment;     /* of a buffer offset, bytes */
    bool host_visible;     /* device addresses are host pointers */
    int max_bindings;      /* buffers of one kernel; 0: no limit worth a name */
    int64_t max_groups_x;  /* workgroups along the first axis; 0: 2^31 - 1 */
    int64_t subgroup;      /* threads that run in step, 0: unknown */
    bool exact;            /* f32: division, square root, fma and denormals are IEEE 754's */
    char version[96];      /* of the driver and its compiler: what compiled kernels on disk are kept under */
    bool words_only;    /* kernels read and write memory in words of 32 bits: they pack smaller elements themselves */
    uint32_t features;  /* bits that the form of code gives a meaning: TN_SPIRV_…, TN_WGSL_… */
    int64_t max_loop;   /* how often an item goes round its loops in all, beyond which the device errs; 0: no limit */
    bool joins;         /* a buffer may take several bindings: as many as max_bindings leaves to each of a kernel's */
    uint32_t matrix;    /* TN_MATRIX_…; 0: no matrix units, or subgroups of other sizes than 8, 16, 32 and 64 */
    int64_t processors; /* that run workgroups side by side; 0: unknown */
} tn_caps;

/* One kernel launch: sizes (extents, offsets, strides; 64-bit), buffers (device addresses), runtime scalars (8 bytes
 * each). */
typedef struct tn_launch {
    const int64_t *sizes;
    void *const *buffers;
    const void *scalars;
} tn_launch;

/* One launch of a rendered kernel: workgroups, buffer_count device addresses, params_bytes of parameters. */
typedef struct tn_dispatch {
    uint32_t groups[3];
    void *const *buffers;
    const void *params;
} tn_dispatch;

/* One of several dispatches of several modules, in order. */
typedef struct tn_list_item {
    void *module;
    tn_dispatch dispatch;
} tn_list_item;

/* A probe's findings: what it found, or why nothing. In a device it fills name, memory, compute_capability,
 * unified_memory, software and, where known, uuid and pci; hal fills the rest. reason_code is a word of
 * docs/devices.md ("none" when devices were found). */
typedef struct tn_probe {
    size_t struct_size;
    tn_device_info *devices;
    int capacity, count; /* room in devices; found */
    char reason_code[32], reason[TN_REASON_BYTES], fix[TN_REASON_BYTES], library[256];
} tn_probe;

/* What a driver lends for the time of one call: a queue of its interface's own, in which a vendor's library of kernels
 * (matrix products) then works as the driver itself would. */
typedef struct tn_lent {
    size_t struct_size;
    /* cuda: CUstream, rocm: hipStream_t; their device is the calling thread's until the call ends.
     * metal: the MTLCommandBuffer to encode into, inside of a pool; no encoder is open */
    void *stream;
    void *device; /* metal: MTLDevice */
    /* For interfaces without pointers: returns the handle of the memory that contains these bytes, and their offset in
     * it; NULL: not found. metal: MTLBuffer */
    void *(*find)(const struct tn_lent *lent, const void *address, size_t bytes, size_t *offset);
    void *own; /* the driver's */
} tn_lent;
typedef tn_status tn_lent_work(void *ctx, const tn_lent *lent);

typedef struct tn_driver {
    size_t struct_size;
    int abi;                  /* TN_BACKEND_ABI */
    const char *name, *title; /* "mychip": small letters, digits, _ and -, at most 20; "My chip": for people */
    /* Looks for devices; must neither fail nor leave anything loaded that could disturb the process. */
    void (*probe)(tn_probe *out);
    tn_status (*open)(int index, const tn_device_options *options, void **device);
    void (*close)(void *device);
    tn_status (*caps)(void *device, tn_caps *out);
    /* Aligned to 64 at least. Addresses are numbers that hal and kernels offset: address + n lies n bytes further. */
    tn_status (*alloc)(void *device, size_t bytes, void **address);
    void (*free)(void *device, void *address);
    /* Code that the device's compiler refuses is TN_ERR_UNSUPPORTED with the head of its log: it is then computed
     * elsewhere, and not asked for again while the device is open. */
    tn_status (*load)(void *device, const tn_code *code, void **module);
    void (*unload)(void *device, void *module);
    /* `count` launches of one kernel, independent of each other; in order behind all that came before. For TN_CODE_KIR;
     * drivers of all other forms have `dispatch` instead, and NULL here. */
    tn_status (*launch)(void *device, void *module, const tn_launch *launches, int64_t count);
    /* kind: 0 host to device, 1 device to host, 2 within the device; in order; host memory may be reused on return. */
    tn_status (*copy)(void *device, void *dst, const void *src, size_t bytes, int kind);
    tn_status (*sync)(void *device);
    /* Optional from here. */
    tn_status (*memory)(void *device, int64_t *total, int64_t *free); /* default: what the probe said */
    /* Calls `add` for each file and folder (existing or not) on which the probe's result depends: the library, its
     * configuration, device nodes; and for each environment variable that it reads, as "$NAME". The result of an
     * isolated probe is cached on disk until one of them changes. */
    void (*watch)(void (*add)(void *ctx, const char *what), void *ctx);
    bool isolate; /* the probe loads code that could disturb the process: it runs in a child process, 5 s at most */
    bool only_by_name; /* `auto` never selects it */
    /* Allocates the memory that the same launch would allocate, apart from its arguments. The last launches of a plan
     * write states; they are prepared before the first of them starts, so that out-of-memory leaves all states
     * unchanged. */
    tn_status (*prepare)(void *device, void *module, const tn_launch *launches, int64_t count);
    /* As launch, for rendered kernels. Pointers in a dispatch are valid only during the call. */
    tn_status (*dispatch)(void *device, void *module, const tn_dispatch *dispatches, int64_t count);
    /* Returns the compiled module, for the disk cache; load() gets it back as tn_code.binary. *data belongs to the
     * module and is valid until it is unloaded. Default: compiled kernels are not cached. */
    tn_status (*binary)(void *device, void *module, void **data, size_t *size);
    /* Queues. An additional queue runs concurrently with the device's own, and in order within itself. Its handle
     * replaces `device` in launch, dispatch, prepare, copy, copy_async, fill, sync, event_record and event_wait. The
     * functions queue_new … event_sync are used only if all of them are there; else hal gives each queue a thread that
     * makes these calls with `device`. queue_free: called after all work in the queue has finished. */
    tn_status (*queue_new)(void *device, void **queue);
    void (*queue_free)(void *device, void *queue);
    /* Events. record: the event completes when all work submitted to the queue so far has finished; it replaces an
     * earlier record. wait: work submitted to the queue from now on starts after the event has completed; the call
     * returns at once, and the event may be recorded again or freed meanwhile. query: whether the event has completed.
     * sync: waits for it and returns the failure of earlier work, if any. Several threads may use one event at once,
     * except for record and free. time: when it completed, in seconds of the device's clock; only for completed events
     * that were made with `timed`. */
    tn_status (*event_new)(void *device, bool timed, void **event);
    void (*event_free)(void *device, void *event);
    tn_status (*event_record)(void *queue, void *event);
    tn_status (*event_wait)(void *queue, void *event);
    tn_status (*event_query)(void *device, void *event, bool *passed);
    tn_status (*event_sync)(void *device, void *event);
    tn_status (*event_time)(void *device, void *event, double *seconds); /* default: no times */
    /* As copy, but returns at once: the host's memory must not change until an event recorded later has completed.
     * Default: copy. */
    tn_status (*copy_async)(void *queue, void *dst, const void *src, size_t bytes, int kind);
    /* Sets each byte to `value`, in order. Default: copies from the host. */
    tn_status (*fill)(void *queue, void *dst, uint8_t value, size_t bytes);
    /* Pinned host memory, which the device copies directly. Default: ordinary memory. */
    tn_status (*host_alloc)(void *device, size_t bytes, void **host);
    void (*host_free)(void *device, void *host);
    /* Maps device memory into the host. With `read` the host sees its content; the device sees what the host wrote
     * after unmap. The device does not access the range in between. Default, also if map returns TN_ERR_UNSUPPORTED: a
     * copy. */
    tn_status (*map)(void *device, void *address, size_t bytes, bool read, void **host);
    tn_status (*unmap)(void *device, void *address, void *host);
    /* As dispatch, for a list of several modules that runs repeatedly: the next run has the same modules and workgroups
     * at the same `items`, with other buffers and parameters. Default: one dispatch for each run of rows with the same
     * module. */
    tn_status (*dispatch_list)(void *queue, const tn_list_item *items, int64_t count);
    /* A list in a form that is cheap to launch: a graph or a command buffer. make: from the list's first run; it must
     * not keep `items`. run: as dispatch_list, with the current items; one thread at a time. free: the list may still
     * be running. Default: dispatch_list. It is also used if make fails (unless the device is lost), and after a run
     * that returns TN_ERR_UNSUPPORTED before it has started anything. */
    tn_status (*list_make)(void *device, const tn_list_item *items, int64_t count, void **list);
    tn_status (*list_run)(void *queue, void *list, const tn_list_item *items, int64_t count);
    void (*list_free)(void *device, void *list);
    /* Calls work(ctx, …) with this queue and gives its status. Default: no library computes on the device. */
    tn_status (*lend)(void *queue, tn_lent_work *work, void *ctx);
    /* From another open device of this driver, on which all work has ended; in order behind what `device` was given.
     * Default, also for a copy that is TN_ERR_UNSUPPORTED: by way of the host. */
    tn_status (*copy_peer)(void *device, void *dst, void *other, const void *src, size_t bytes);
} tn_driver;

/* Adds a driver to the process's table, before the first listing or open. The struct must outlive the process's use.
 * One built against an earlier version of this header is shorter, and what it lacks is NULL.
 * Errors: TN_ERR_ARGUMENT for a name taken, a wrong abi or a missing function; TN_ERR_STATE inside of a driver's entry
 * or probe, where tn_backend_driver may be called. */
TN_API tn_status tn_backend_register(const tn_driver *driver);

/* The driver of a backend of this build, or of one that was added: "opencl". NULL: no such backend. */
TN_API const tn_driver *tn_backend_driver(const char *name);

/* Sets the calling thread's error text, for drivers outside the library: return tn_backend_fail(TN_ERR_DEVICE, "…"). */
TN_API tn_status tn_backend_fail(tn_status code, const char *format, ...) TN_FORMAT_(2, 3);

/* Opens a regular file for reading. A pipe, which would wait for a writer, a device or a folder is an error at once.
 * *out: closed with fclose. Errors: TN_ERR_IO. */
TN_API tn_status tn_backend_open(const char *path, FILE **out);

/* TN_C_LOCALE; is a declaration: from here to the end of the enclosing block this thread is in the "C" locale, in which
 * numbers have a decimal point, whatever locale the host program has set. For code that writes kernels or reads numbers
 * as text. Blocks nest. tn_c_locale_begin fails (begun is false) if there is no memory; nothing changes then. */
#define TN_C_LOCALE TN_C_LOCALE_AT_(__LINE__)
#define TN_C_LOCALE_AT_(line) TN_C_LOCALE_ON_(line)
#define TN_C_LOCALE_ON_(line) TN_AT_BLOCK_END_(tn_c_locale, tn_c_locale_end, tn_c_locale_begin(), tn_c_locale_##line)

typedef struct tn_c_locale {
    bool begun;
} tn_c_locale;
TN_API tn_c_locale tn_c_locale_begin(void);
TN_API void tn_c_locale_end(tn_c_locale *scope); /* NULL is allowed */

/* ---- a driver in a shared library of its own --------------------------------------------------------------------- */

/* What the library gives to a driver that it loads from a file, so that the file need not be linked with the library.
 * Valid for the life of the process. */
typedef struct tn_backend_host {
    size_t struct_size;
    int abi;                                                    /* TN_BACKEND_ABI of the library */
    tn_status (*fail)(tn_status code, const char *format, ...); /* tn_backend_fail */
} tn_backend_host;

/* The only symbol that such a file must export: `const tn_driver *trunnion_driver(const tn_backend_host *host)`. To
 * refuse, call host->fail and return NULL. docs/new-backend.md explains the steps; tools/new_backend.py writes a driver
 * that works. */
typedef const tn_driver *tn_backend_entry(const tn_backend_host *host);
#define TN_BACKEND_ENTRY "trunnion_driver"

/* Loads a driver from `path` and registers it. The files of TRUNNION_DRIVERS in the environment, separated by colons,
 * are loaded this way before the first listing; if one cannot be loaded, the listing has a line with the reason.
 * Errors: TN_ERR_UNAVAILABLE, with the linker's message, if the file or its symbol is missing; tn_backend_register's.
 * Nothing is unloaded again. */
TN_API tn_status tn_backend_load(const char *path);

#ifdef __cplusplus
}
#endif
#endif
