/* metal.h — a double of Apple's Objective-C run time, of the little of Foundation that is asked for, and of Metal: what
 * its files share.
 *
 * It is written from Apple's documentation, not from any header, and knows the messages that the driver sends and no
 * others. It is at its laziest: a committed command buffer is done when somebody waits for it, or at a random later
 * message; until then memory reads as poison. Kernels run in the engine (engine.h). What an application must not do
 * is a misuse: it is told on standard error and counted. Among them: a message that a class does not know, one to an
 * object that is gone, a release too many, an autoreleased object without a pool, an encoder that is not ended, a
 * binding that is missing. What it cannot show is what Apple's compiler and machines do: nothing here has run on any
 * of them.
 *
 * Environment, read when the library is loaded:
 *   DOUBLE_DEVICES=N     devices (1; 0: none)         DOUBLE_MEMORY=BYTES  of each (4 GiB)
 *   DOUBLE_SEED=N        order of items and time of deferred work (1); 0: ascending, and only when it is waited for
 *   DOUBLE_DISCRETE=1    memory of its own, which the host does not see
 *   DOUBLE_OLD=1         a system before macOS 15: compile options have no math mode
 *   DOUBLE_FAULT=SELECTOR:N:ERROR   the n-th message of that selector (any: of any) fails, as with faults_arm
 *   DOUBLE_ABORT=1       a misuse ends the process
 *   DOUBLE_COUNTS=1      says at the end of the process what was run and compiled
 *   DOUBLE_CXX, DOUBLE_LEVEL, DOUBLE_CACHE, DOUBLE_CACHE_BYTES    see compile.c */
#ifndef TN_DOUBLE_METAL_H
#define TN_DOUBLE_METAL_H

#include "engine.h"

#define METAL_EXPORT __attribute__((visibility("default")))

typedef struct object object;
typedef const char *selector; /* the one copy of its text that sel_registerName gives */
typedef void method_body(void);

/* How a message can be made to fail. */
typedef enum fault_kind {
    FAULT_NEVER,
    FAULT_NOTHING,   /* it gives nil */
    FAULT_ERROR,     /* … and an NSError through its last parameter, which is the third or second */
    FAULT_AFTERWARDS /* the command buffer ends with an error */
} fault_kind;

typedef struct method {
    const char *name;
    method_body *body;
    fault_kind fault;
} method;
#define METHOD(name, body, fault) \
    { name, (method_body *)(body), fault }

typedef struct metal_class {
    const char *name;
    const method *methods; /* of its objects; ends with a row without a name */
    size_t size;
    void (*end)(object *o); /* gives back what the object holds */
} metal_class;

/* What an object begins with. */
struct object {
    const metal_class *isa;
    object *before; /* of all that there ever were */
    int refs;
    bool is_class; /* … then isa is that of its objects */
};

/* ---- the run time (metal_objc.c) --------------------------------------------------------------------------------- */

/* Holds the library's lock to the end of the block; a thread may do so more than once. */
void metal_lock(void);
void metal_unlock(int *unused);
#define HOLD                                                      \
    int held_ __attribute__((cleanup(metal_unlock), unused)) = 0; \
    metal_lock()

void *metal_new(const metal_class *isa); /* with a count of one; the rest is zero */
void metal_retain(void *o);
void metal_release(void *o); /* NULL is fine */
void *metal_autorelease(void *o);
object *metal_text(const char *text);
const char *metal_text_of(const object *string); /* NULL for what is no NSString */
object *metal_error(int64_t code, const char *text);
object *metal_list(object **items, size_t count); /* retains them */

void metal_misuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Whether the object is a living one of this class; a misuse if not. */
bool metal_is(const void *o, const metal_class *isa, const char *where);

/* Whether this message, counted among those that can fail, is to fail; *error is with what. */
bool metal_fails(const char *name, int *error);
uint64_t metal_random(uint64_t n); /* a number below n; 0 without a seed */
extern uint64_t metal_seed;
extern bool metal_old;

extern const metal_class metal_compile_options;
typedef struct compile_options {
    object object;
    bool fast_off;
    int64_t mode, functions;
} compile_options;

/* ---- devices (metal_device.c) ------------------------------------------------------------------------------------ */

enum { MOST_BINDINGS = 31 };

typedef struct metal_device {
    object object;
    int index;
    bool unified;
} metal_device;

typedef struct metal_buffer {
    object object;
    char *memory;
    size_t bytes;
    bool hidden; /* from the host */
} metal_buffer;

typedef struct metal_kernel {
    char name[120];
    uint32_t bindings; /* bit n: it takes [[buffer(n)]] */
    uint32_t limit;    /* items of a workgroup at most */
} metal_kernel;

typedef struct metal_library {
    object object;
    engine_module *module;
    metal_kernel *kernels;
    int count;
} metal_library;

/* A function, and the pipeline made of it. */
typedef struct metal_function {
    object object;
    metal_library *library;
    const metal_kernel *kernel;
    const engine_kernel *code;
} metal_function;

extern const metal_class metal_device_class, metal_buffer_class, metal_pipeline_class, metal_event_class;

/* ---- work (metal_queue.c) ---------------------------------------------------------------------------------------- */

typedef struct metal_event {
    object object;
    uint64_t value;
} metal_event;

object *metal_new_queue(metal_device *d);
/* One more command of a command buffer that is open and has no encoder; `data` is dropped with it. */
void metal_add_work(void *buffer, const char *what, void (*run)(void *data), void (*drop)(void *data), void *data);
void metal_some_work(void); /* some of what is committed, by chance */

/* ---- Metal Performance Shaders (metal_mps.c) --------------------------------------------------------------------- */

extern const metal_class metal_descriptor_class, metal_matrix_class, metal_product_class;
object *metal_describe_matrix(object *o, selector s, uint64_t rows, uint64_t columns, uint64_t matrices,
                              uint64_t row_bytes, uint64_t matrix_bytes, uint32_t type);

#endif
