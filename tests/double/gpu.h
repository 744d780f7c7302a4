/* gpu.h — a double of CUDA (libcuda and NVRTC in one library) and, compiled with DOUBLE_HIP, of ROCm (libamdhip64 and
 * hiprtc): what its three files share.
 *
 * Both interfaces have the same calls, numbers and rules under two sets of names, so each function is written once
 * and named by API(cuda, hip). It implements what the vendors document of the calls that the driver makes, at their
 * laziest: work in a stream is done when somebody waits for it, or at a random later call; until then memory reads as
 * poison. What an application must not do is a misuse: it is told on standard error, counted, and refused with the
 * documented error.
 *
 * Environment, read when the library is loaded:   DOUBLE_DEVICES=N     devices (1; 0: none)
 * DOUBLE_MEMORY=BYTES  of each (4 GiB)   DOUBLE_SEED=N        order of items and time of deferred work (1); 0:
 * ascending, and only when it is waited for   DOUBLE_ARCH=NAME     sm_90 or gfx90a; gfx1…: 32 items in step instead of
 * 64   DOUBLE_FAULT=NAME:N:ERROR   the n-th call of that name (any: of any) fails, as with faults_arm   DOUBLE_ABORT=1
 * a misuse ends the process   DOUBLE_COUNTS=1      says at the end of the process what was launched and compiled
 * DOUBLE_CXX, DOUBLE_LEVEL, DOUBLE_CACHE, DOUBLE_CACHE_BYTES    see compile.c */
#ifndef TN_DOUBLE_GPU_H
#define TN_DOUBLE_GPU_H

#include "engine.h"
#include "gpu_api.h"

/* The same numbers in both interfaces. */
enum {
    E_OK = 0,
    E_VALUE = 1,
    E_MEMORY = 2,
    E_INIT = 3,
    E_NO_DEVICE = 100,
    E_DEVICE = 101,
    E_IMAGE = 200,
    E_CONTEXT = 201,
    E_NO_BINARY = 209,
    E_HANDLE = 400,
    E_NOT_FOUND = 500,
    E_NOT_READY = 600,
    E_ILLEGAL = 700,
    E_RESOURCES = 701,
    E_LAUNCH = 719,
    E_UNKNOWN = 999
};

enum { MOST_DEVICES = 4 };

typedef enum object_kind {
    OBJECT_STREAM,
    OBJECT_EVENT,
    OBJECT_MODULE,
    OBJECT_GRAPH,
    OBJECT_EXEC,
    OBJECT_LIBRARY, /* a handle of a library of kernels */
    OBJECT_KINDS
} object_kind;

/* What a handle points to; the first member of each kind. */
typedef struct gpu_object {
    struct gpu_object *next;
    object_kind kind;
    gpu_context *context;
} gpu_object;

typedef struct gpu_stream gpu_stream;

struct gpu_context {
    int device;
    int users; /* of the primary context; 0: there is none */
    int error; /* what every later call gives, once a kernel has failed */
    gpu_object *objects;
    gpu_stream *null_stream;
};

extern gpu_context gpu_contexts[MOST_DEVICES];
extern size_t gpu_memory_limit;
extern uint64_t gpu_seed;
extern char gpu_arch[32];
extern uint32_t gpu_warp;
extern long gpu_library_parts; /* descriptors of libraries that were not given back */

/* Memory's owners in the engine. */
uint32_t gpu_owner(const gpu_context *c, bool pinned);
bool gpu_is_pinned(uint32_t owner);

/* ---- a call (gpu_context.c) -------------------------------------------------------------------------------------- */

/* What a call needs, and whether it may be made to fail when not named. */
enum { NEEDS_NOTHING = 0, NEEDS_INIT = 1, NEEDS_CONTEXT = 3, GIVES_BACK = 4 };

typedef struct gpu_call {
    const char *name;
    int error;
    gpu_context *context; /* the current one */
} gpu_call;

/* Holds the library's lock until gpu_leave. Some work that was put off may be done. */
gpu_call gpu_enter(const char *name, int needs);
void gpu_leave(gpu_call *call);
#define ENTER(needs)                                                                          \
    gpu_call call __attribute__((cleanup(gpu_leave), unused)) = gpu_enter(__func__, (needs)); \
    if (call.error) return call.error

/* Tells of a misuse by the call under way; returns `error`. */
int gpu_misuse(const gpu_call *call, int error, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* A number below n; 0 without a seed. */
uint64_t gpu_random(uint64_t n);

/* ---- objects ----------------------------------------------------------------------------------------------------- */

void *gpu_object_new(gpu_context *c, object_kind kind, size_t size);
void gpu_object_remove(gpu_object *o); /* from its context; the caller frees it */
/* 0, or the error of a handle that is none, or is another context's. */
int gpu_check(const gpu_call *call, const void *handle, object_kind kind);

/* ---- work (gpu_queue.c) ------------------------------------------------------------------------------------------ */

/* A kernel with all that a launch of it needs. */
typedef struct gpu_launch {
    const engine_kernel *kernel;
    uint32_t groups[3], items[3], dynamic_bytes;
    void **args; /* one block with their values; the launch owns it */
} gpu_launch;

/* NULL stream: the context's own. The queue takes the launch's arguments. 0 or an error. */
int gpu_queue_launch(const gpu_call *call, void *stream, gpu_launch *launch);
/* Work of a library of kernels, with a copy of its data. 0 or an error. */
int gpu_queue_library(const gpu_call *call, void *stream, void (*run)(const void *data), const void *data,
                      size_t bytes);
/* 0, or the error of memory that is not all the device's. */
int gpu_check_range(const gpu_call *call, const void *address, size_t bytes, const char *role);
/* Does all that the context's streams were given. Gives the context's error. */
int gpu_finish(gpu_context *c);
/* Whether a launch of a kernel of this module waits in one of the context's streams. */
bool gpu_is_used(gpu_context *c, const engine_module *module);
/* Does one piece of work of a random stream, if there is any. */
void gpu_some_work(gpu_context *c);
/* Forgets what streams were given, and the context's own stream. */
void gpu_drop_work(gpu_context *c);
void gpu_free_object(gpu_object *o);

/* The launch of a module's function with these parameters, checked; gpu_module.c. */
typedef struct gpu_module gpu_module;
int gpu_make_launch(const gpu_call *call, const gpu_node_params *from, gpu_launch *out);
void gpu_free_module(gpu_module *m);
void gpu_free_graph(gpu_object *o);

#endif
