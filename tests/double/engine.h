/* engine.h — what the doubles of drivers share: kernels of C's family are compiled by the system's compiler and run on
 * the processor, item by item, over memory that notices what no processor would.
 *
 * A double is a shared library that plays a vendor's driver (gpu_*.c: CUDA and ROCm; metal_*.c). It brings a shim
 * that makes C++ of the vendor's language (shim.h), hands the rendered text over, and gets an object: bytes that can
 * be kept, loaded and run. Compiled objects stay on disk (DOUBLE_CACHE), by a hash of all that went into them,
 * because a compilation takes 30 to 200 ms.
 *
 * The items of a workgroup run one by one in an order drawn from a seed; an item that meets a barrier waits on a
 * stack of its own until the others have come. Workgroup memory is filled with POISON before each workgroup, device
 * memory when it is allocated, so what nobody wrote reads as NaN or -1. A barrier that some items do not reach, an
 * access to an address that is not allocated, and an index outside of an array end the launch with a report.
 *
 * One launch runs at a time (a lock sees to that); all other functions may be called by several threads. */
#ifndef TN_DOUBLE_ENGINE_H
#define TN_DOUBLE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ENGINE_POISON = 0xff, ENGINE_MOST_ITEMS = 1024 };

/* ---- compiling (compile.c) --------------------------------------------------------------------------------------- */

/* The compiler sees shim, text and tail, in this order; lines of the text count from 1 in a file called `name`. The
 * tail makes the kernels known: ENGINE_KERNEL(k) a kernel whose parameters are values and pointers. */
typedef struct engine_source {
    const char *shim, *text, *name, *tail;
    const char *flags; /* "" or several, separated by single spaces */
} engine_source;

/* The object's bytes, or NULL with the compiler's log in *log; the caller frees either. */
void *engine_compile(const engine_source *source, size_t *size, char **log);

/* "ENGINE_KERNEL(a)\nENGINE_KERNEL(b)\n" of a text in which each kernel's name is the last word before the first '('
 * behind `marker` that is not a parameter list of `skip` ("__launch_bounds__", or NULL). The caller frees it. */
char *engine_tail(const char *text, const char *marker, const char *skip);

typedef struct engine_module engine_module;
typedef struct engine_kernel engine_kernel;

/* NULL: these bytes are no object; `why` gets words. */
engine_module *engine_load(const void *object, size_t size, char *why, size_t room);
void engine_unload(engine_module *module);

/* NULL: no kernel of that name. Lives as long as the module. */
const engine_kernel *engine_find_kernel(engine_module *module, const char *name);
const char *engine_kernel_name(const engine_kernel *kernel);
const engine_module *engine_kernel_module(const engine_kernel *kernel);
/* Parameters in order, for kernels made known by ENGINE_KERNEL. */
int engine_parameters(const engine_kernel *kernel);
size_t engine_parameter_size(const engine_kernel *kernel, int i);
bool engine_parameter_is_pointer(const engine_kernel *kernel, int i);
size_t engine_workgroup_bytes(const engine_kernel *kernel); /* declared by all kernels of the module */

/* ---- running (run.c) --------------------------------------------------------------------------------------------- */

typedef enum engine_result {
    ENGINE_OK,
    ENGINE_ILLEGAL_ADDRESS, /* an access to what is not allocated, or a stack that ran over */
    ENGINE_OUT_OF_ARRAY,    /* an index outside of an array of the kernel's own; also other undefined behaviour */
    ENGINE_DIVERGENT        /* some items wait at a barrier that others do not reach, or at another one */
} engine_result;

typedef struct engine_launch {
    const engine_kernel *kernel;
    uint32_t groups[3], items[3]; /* at most ENGINE_MOST_ITEMS in all */
    void **args;                  /* the address of each parameter's value */
    void *dynamic;                /* workgroup memory that is not declared, or NULL; poisoned like the declared one */
    size_t dynamic_bytes;
    uint32_t warp;
    uint64_t seed; /* of the order of items; 0: ascending */
} engine_launch;

/* The report names kernel, workgroup, item and place. */
engine_result engine_run(const engine_launch *launch, char *report, size_t room);

typedef struct engine_counts {
    uint64_t launches, items, switches; /* switches: between the stacks of items */
    uint64_t compiled, from_disk;
} engine_counts;
engine_counts engine_get_counts(void);

/* ---- memory (memory.c) ------------------------------------------------------------------------------------------- */

enum { ENGINE_ALIGNMENT = 256 };

/* Memory between pages that nobody may touch; freed, it is one of these pages, and its address is not used again.
 * Filled with poison. `owner` is the caller's. NULL: there is no memory left. */
void *engine_alloc(size_t bytes, uint32_t owner);

typedef enum engine_memory_state { ENGINE_NOT_MEMORY, ENGINE_LIVE, ENGINE_FREED } engine_memory_state;

typedef struct engine_block {
    engine_memory_state state;
    char *base;
    size_t bytes;
    uint32_t owner;
} engine_block;

/* The allocation that an address lies in, or just behind its end. */
engine_block engine_find(const void *address);

/* Whether all bytes lie in one living allocation. */
bool engine_within(const void *address, size_t bytes);

/* What the state was before: only of ENGINE_LIVE anything is freed. `base` has to be the allocation's beginning.
 * *damaged: somebody wrote beside the allocation. */
engine_memory_state engine_free(void *base, bool *damaged);

/* Of an owner's living allocations: how many, and how many bytes. */
int64_t engine_live(uint32_t owner, size_t *bytes);
/* Frees all of an owner. Returns how many there were. */
int64_t engine_free_all(uint32_t owner);

/* Words about an address: "12 bytes behind an allocation of 400 bytes". */
void engine_describe(const void *address, char *out, size_t room);

/* ---- shared ------------------------------------------------------------------------------------------------------ */

/* The next number of a sequence that a seed began; never ends. */
static inline uint64_t engine_random(uint64_t *state) {
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

#endif
