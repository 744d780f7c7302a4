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
    const char *options;   /* for the compiler, "" when there are none */
    /* What `binary` gave for this code, device and version before, or NULL. A driver that cannot use it (any more)
     * compiles `data`. */
    const void *binary;
    size_t binary_size;
    const tn_dtype *elements; /* of each buffer, valid during load(); NULL: nobody knows */
    /* TN_CODE_WGSL: the first bytes of `data` declare the bindings, and functions by which the rest reaches them:
     * word3(i), put3(i, v) and flip3(i, v) read, write and exclusive-or the u32 number i of buffer 3. A driver may put
     * others in their place. */
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
    /* Where addresses are no pointers: the interface's handle of the memory that holds these bytes, and where in it
     * they begin; NULL: there is none. metal: MTLBuffer */
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
    /* As launch, for rendered kernels. What a dispatch points to may be gone when the call has returned. */
    tn_status (*dispatch)(void *device, void *module, const tn_dispatch *dispatches, int64_t count);
    /* The module in a form that load() takes back as tn_code.binary, for the disk cache. *data stays the module's and
     * is valid until its unload. Default: compiled kernels are not kept. */
    tn_status (*binary)(void *device, void *module, void **data, size_t *size);
    /* Queues. A further queue works beside the device's own, in order within itself. Its handle stands in the place of
     * `device` in launch, dispatch, prepare, copy, copy_async, fill, sync, event_record and event_wait. Used only with
     * all of queue_new … event_sync; else hal gives each queue a thread that makes the calls above with `device`.
     * queue_free: everything in it has ended. */
    tn_status (*queue_new)(void *device, void **queue);
    void (*queue_free)(void *device, void *queue);
    /* A mark in a queue. record: behind all that the queue was given so far, an earlier mark is forgotten. wait: what
     * the queue is given from now on begins when the event has passed; the caller goes on, and may record or free the
     * event meanwhile. query: whether it has passed. sync: the caller waits for it, and hears of work before it that
     * failed. Several threads may use one event at once, but for record and free. time: seconds by the device's clock
     * at which it passed; only of events made `timed`, and only once they have passed. */
    tn_status (*event_new)(void *device, bool timed, void **event);
    void (*event_free)(void *device, void *event);
    tn_status (*event_record)(void *queue, void *event);
    tn_status (*event_wait)(void *queue, void *event);
    tn_status (*event_query)(void *device, void *event, bool *passed);
    tn_status (*event_sync)(void *device, void *event);
    tn_status (*event_time)(void *device, void *event, double *seconds); /* default: there are no times */
    /* As copy, but the host's memory must stay as it is until an event behind it has passed. Default: copy. */
    tn_status (*copy_async)(void *queue, void *dst, const void *src, size_t bytes, int kind);
    /* Sets each byte to `value`, in order. Default: copies from the host. */
    tn_status (*fill)(void *queue, void *dst, uint8_t value, size_t bytes);
    /* Memory of the host that the device copies from and to without a detour. Default: pages of the process. */
    tn_status (*host_alloc)(void *device, size_t bytes, void **host);
    void (*host_free)(void *device, void *host);
    /* The host's view of device memory: with `read` it shows what is there, and the device sees what was written once
     * it is unmapped. The device leaves the range alone in between. Default, also for a map that is
     * TN_ERR_UNSUPPORTED: a copy. */
    tn_status (*map)(void *device, void *address, size_t bytes, bool read, void **host);
    tn_status (*unmap)(void *device, void *address, void *host);
    /* As dispatch, for a list of several modules that is run again and again: the next run has the same modules and
     * workgroups at the same `items`, with other buffers and parameters. Default: dispatch for each row of one
     * module. */
    tn_status (*dispatch_list)(void *queue, const tn_list_item *items, int64_t count);
    /* A list in a form that takes little to start it: a graph, a command buffer. make: from the list's first run, whose
     * `items` it must not keep. run: as dispatch_list, with the items of this time; one thread at a time. free: of a
     * list that may be under way. Default: dispatch_list; so too for a list that could not be made unless the device is
     * lost, and from a run on that is TN_ERR_UNSUPPORTED and has begun with nothing. */
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

/* The driver of a backend of this build, or of one that was added: "opencl". NULL: there is none of that name. */
TN_API const tn_driver *tn_backend_driver(const char *name);

/* Sets the calling thread's error text, for drivers outside the library: return tn_backend_fail(TN_ERR_DEVICE, "…"). */
TN_API tn_status tn_backend_fail(tn_status code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- a driver in a shared library of its own --------------------------------------------------------------------- */

/* What the library lends a driver that was loaded from a file, so that the file need not be linked with anything. Lives
 * as long as the process. */
typedef struct tn_backend_host {
    size_t struct_size;
    int abi;                                                    /* TN_BACKEND_ABI of the library */
    tn_status (*fail)(tn_status code, const char *format, ...); /* tn_backend_fail */
} tn_backend_host;

/* The one symbol of such a file: `const tn_driver *trunnion_driver(const tn_backend_host *host)`. NULL refuses, with
 * host->fail called before. docs/new-backend.md goes through it; tools/new_backend.py writes a working one. */
typedef const tn_driver *tn_backend_entry(const tn_backend_host *host);
#define TN_BACKEND_ENTRY "trunnion_driver"

/* Loads a driver from `path` and registers it. The files of TRUNNION_DRIVERS in the environment, separated by colons,
 * are loaded so before the first listing; one that cannot be is a line of the listing, with its reason.
 * Errors: TN_ERR_UNAVAILABLE, with the linker's words, when the file or its symbol is not there; tn_backend_register's.
 * Nothing is unloaded again. */
TN_API tn_status tn_backend_load(const char *path);

#ifdef __cplusplus
}
#endif
#endif
