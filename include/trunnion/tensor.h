/* tensor.h — tensors: creating, evaluating, reading and freeing them; in-place writes; graph capture; profiling.
 *
 * Evaluation is lazy. Operations (ops.h) only record. tn_eval, or reading a value, makes one plan for everything that
 * the thread has recorded, and runs it. If a loop records the same operations with the same shapes again, the plan is
 * reused. Semantics are PyTorch's: broadcasting, type promotion, views that share storage, in-place operations that
 * are visible through all views.
 *
 * Lifetime: a function that returns a `tn_tensor *` returns a new handle. The caller frees it with tn_free; inside
 * TN_SCOPE it is freed at the end of the scope. A handle keeps its value in memory: free handles that you do not need,
 * so that intermediate values need not be stored.
 *
 * Errors: a function that returns a `tn_tensor *` never returns NULL. On failure it returns an error tensor. Operations
 * on an error tensor return that error tensor; tn_eval, tn_read and tn_item report the first cause, with the operation,
 * the shapes and the caller's line. Passing NULL is also such a failure; functions that return a property then return a
 * neutral value (rank 0, size -1). An in-place operation that fails does not change its target: see "in place" below.
 *
 * Threads: several threads may use a `const tn_tensor *` at once; only one thread at a time may use a `tn_tensor *`.
 * A tensor must be evaluated (tn_eval) by the thread that recorded it before another thread uses it. */
#ifndef TRUNNION_TENSOR_H
#define TRUNNION_TENSOR_H

#include "trunnion/device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TN_MAX_RANK = 8 };

typedef struct tn_tensor tn_tensor;

/* Sets the source line that the next error message of this thread names. The macros of ops.h call it. */
TN_API void tn_at(const char *file, int line);

/* ---- creating ---------------------------------------------------------------------------------------------------- */

/* Creates a tensor on the current device from a copy of `data` (contiguous, row-major, elements of `dtype`).
 *   shape: `rank` extents, each at least 0; rank: 0 to TN_MAX_RANK.
 * Errors: TN_ERR_ARGUMENT (a NULL pointer), TN_ERR_SHAPE (rank or extents), TN_ERR_DTYPE, TN_ERR_MEMORY.
 * Source: torch.tensor. */
TN_API tn_tensor *tn_from_data(const void *data, const int64_t *shape, int rank, tn_dtype dtype);

/* Creates a tensor that reads the caller's memory without copying it, if the device can read host memory, or if it is
 * the current device's memory (tn_device_alloc); otherwise the data is copied. Arguments as in tn_from_data.
 * Ownership: the memory stays the caller's and must not change until release(ctx) is called; that happens when no
 * tensor and no pending work refers to it. release may be NULL. The library never writes to this memory: an in-place
 * operation first moves the value to memory of its own. Source: torch.from_numpy. */
TN_API tn_tensor *tn_from_ptr(void *data, const int64_t *shape, int rank, tn_dtype dtype, void (*release)(void *ctx),
                              void *ctx);

/* Creates a rank-0 tensor that promotes like a Python number in PyTorch: it does not raise the dtype of the other
 * operand within its category. tn_scalar is a Python float (with an integer tensor the result is f32); tn_scalar_int is
 * a Python int (an integer tensor keeps its dtype, a bool tensor becomes i64). */
TN_API tn_tensor *tn_scalar(double value);
TN_API tn_tensor *tn_scalar_int(int64_t value);

/* Creates a rank-0 f32 tensor whose value may change from run to run without a new plan: for learning rates,
 * temperatures, counters. */
TN_API tn_tensor *tn_runtime_scalar(double value);
TN_API tn_tensor *tn_runtime_scalar_int(int64_t value); /* the same in i64 */

/* Sets the seed of the calling thread's random numbers and restarts their sequence: the same calls then return the same
 * numbers, on every device. A thread that sets no seed gets one at its first draw: the first such thread of the process
 * gets 0, each later one a seed that depends only on how many threads drew before it. If several threads race for the
 * first draw, seed each of them to get the same numbers in every run. */
TN_API void tn_manual_seed(uint64_t seed);

/* Marks extent `dim` of an input as symbolic: one plan then serves all values of this extent.
 *   symbol: 0 to 3; extents that are always equal must use the same symbol.
 * Returns another handle to t. Errors: TN_ERR_ARGUMENT (dim or symbol out of range), TN_ERR_STATE if t is a recorded
 * result instead of data. Source: torch._dynamo.mark_dynamic. */
TN_API tn_tensor *tn_symbolic(const tn_tensor *t, int64_t dim, int symbol);

/* Copies t to `device`: evaluates t and returns a new tensor with its own memory. If t is on `device` already, the
 * result shares t's storage.
 * Gradients do not flow between devices: while gradients are enabled, a t that requires them is an error.
 * Source: torch.Tensor.to. */
TN_API tn_tensor *tn_to_device(const tn_tensor *t, tn_device *device);

/* Makes t a state: its storage keeps its address for its whole life (parameters, optimizer state, caches), and in-place
 * operations on it are written at the end of a plan. Evaluates t first. A view cannot be a state. */
TN_API tn_status tn_make_state(tn_tensor *t);

/* Creates `count` states of one shape and dtype, filled with 0: new handles in out[0 … count). On the CPU they lie next
 * to each other in one block, which is freed with the last of them; reading all of them in turn (the key/value caches
 * of a model's layers) then touches few memory pages. On failure no handle is returned. */
TN_API tn_status tn_zero_states(const int64_t *shape, int rank, tn_dtype dtype, tn_tensor **out, int count);

/* Returns an error tensor with your own message (a printf format): for functions that you build on operations. */
TN_API tn_tensor *tn_failed(tn_status code, const char *format, ...) TN_FORMAT_(2, 3);

/* ---- properties -------------------------------------------------------------------------------------------------- */

TN_API int tn_rank(const tn_tensor *t);                  /* 0 for an error tensor */
TN_API int64_t tn_size(const tn_tensor *t, int64_t dim); /* negative dims count from the end; -1 when out of range */
/* valid until t is freed, or until it or what it is a view of is written in place */
TN_API const int64_t *tn_shape(const tn_tensor *t);
TN_API int64_t tn_numel(const tn_tensor *t);
TN_API tn_dtype tn_dtype_of(const tn_tensor *t);
TN_API tn_device *tn_device_of(const tn_tensor *t);
/* Returns how often t's storage was written in place, through t or any view. While the count stays the same, so does
 * the value (tn_swap exchanges the counts too). 0 for NULL. Source: torch.Tensor._version. */
TN_API int64_t tn_write_count(const tn_tensor *t);
/* Returns an id of t's storage, unique in the process: views have the id of their base, writes do not change it,
 * tn_swap exchanges it. While the id and tn_write_count stay the same, so does the value. 0 for NULL, or if host memory
 * ran out. */
TN_API uint64_t tn_value_id(const tn_tensor *t);
/* Returns TN_OK, or for an error tensor the status of its cause, and sets tn_error(). */
TN_API tn_status tn_status_of(const tn_tensor *t);

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* Evaluates everything that this thread has recorded: `tensors` (count may be 0), all other handles in use, and all
 * states. Pass what you will read next: it is then computed in the same run.
 * Memory: if there is none for a handle that was not passed, it is skipped and tried again when it is needed; if states
 * were written in this run, it becomes an error tensor instead.
 * Errors: the cause of the first error tensor in `tensors`; TN_ERR_MEMORY for a tensor that was passed, with its
 * operation, shape and line; TN_ERR_ARGUMENT for an index out of range ("Indices" in ops.h), whatever was passed:
 *   - What depends on the op with the index becomes an error tensor with this cause: results, gradients, and tensors
 *     (not states) that were written in place with such a value. The value before the write, or the gradient that was
 *     added to, is lost.
 *   - Every state keeps its value from before this evaluation, even if its new value does not depend on the index.
 *   - Everything else is computed, except on the device of an engine, where all results become errors. Of several
 *     indices out of range in one evaluation the first is reported. */
TN_API tn_status tn_eval(tn_tensor *const *tensors, int count);
/* Drops what this thread has recorded as new values of states but not evaluated: the states keep the values that they
 * have, and unevaluated tensors that depend on the dropped values become errors (TN_ERR_STATE). Without this call,
 * writes of an evaluation for which there was no memory are made by the next evaluation.
 * (Those of a device that was lost are dropped by themselves.) Has no effect in a capture. tn_minimize calls it on
 * failure. */
TN_API void tn_discard_writes(void);

/* Submits what tn_eval would run to `queue` (device.h; NULL: this thread's current queue) and returns without waiting.
 *   event: recorded after the work; may be NULL.
 * Reading a value waits for it. Tensors on other devices than the queue's use the default queues of those devices.
 * Errors: those of tn_eval that are found before the work starts; later ones are reported by tn_queue_synchronize, by
 * the event, or by reading. */
TN_API tn_status tn_eval_async(tn_tensor *const *tensors, int count, tn_queue *queue, tn_event *event);

/* Copies t's values to `out`, contiguous and row-major, in t's dtype; evaluates first.
 *   bytes: size of out; must be numel · element size. Errors: TN_ERR_ARGUMENT for another size; those of tn_eval. */
TN_API tn_status tn_read(const tn_tensor *t, void *out, size_t bytes);
/* The same to memory of the tensor's device (tn_device_alloc). Errors also: TN_ERR_ARGUMENT if `address` is not in such
 * an allocation, or the tensor is a view with gaps (tn_contiguous makes it dense). */
TN_API tn_status tn_read_to_device(const tn_tensor *t, void *address, size_t bytes);

/* Like tn_read, but checks the type of the buffer: out has room for `count` elements of `dtype`. Nothing is converted.
 * Errors: TN_ERR_DTYPE if t has another dtype; TN_ERR_SHAPE if it has another number of elements. */
TN_API tn_status tn_read_as(const tn_tensor *t, void *out, int64_t count, tn_dtype dtype);

/* Like tn_read without a copy: *out points to t's elements if they are in host memory and contiguous; otherwise *out
 * is NULL. The pointer is valid while t exists, and until t is written or made a state. */
TN_API tn_status tn_peek(const tn_tensor *t, const void **out);

/* Reads the value of a one-element tensor as a double. On error *out is unchanged. Source: torch.Tensor.item. */
TN_API tn_status tn_read_item(const tn_tensor *t, double *out);

/* Like tn_read_item, but returns the value; NaN on error. tn_error() distinguishes the two: it is "" after a NaN value,
 * and contains the cause after an error. */
TN_API double tn_item(const tn_tensor *t);

/* ---- lifetime ---------------------------------------------------------------------------------------------------- */

/* A tn_tensor * is a handle with a generation number, not an address. Using a freed tensor is detected: the function
 * fails with TN_ERR_ARGUMENT, or returns an error tensor, or what it returns for NULL, and tn_error() says that the
 * tensor was freed. (A freed handle can be mistaken for a new tensor only after about 2^20 others, at least 2^14.) */
TN_API tn_tensor *tn_retain(tn_tensor *t); /* adds one reference; returns t */
/* Releases one reference; NULL is allowed. For a tensor that was freed before, it only sets tn_error() and logs. */
TN_API void tn_free(tn_tensor *t);

/* TN_SCOPE; is a declaration. Handles that this thread creates from here to the end of the enclosing block are freed at
 * its end, also if break, continue, return or goto leaves the block. Do not free such a handle yourself (references
 * added with tn_retain are yours). tn_keep moves a handle to the outer scope, or to the caller if there is none.
 * In C this takes the attribute cleanup of gcc and clang (TN_HAS_CLEANUP, status.h). Other compilers of C, such as
 * MSVC's, refuse TN_SCOPE; there call tn_scope_begin and, on every way out of the block, tn_scope_end:
 *
 *     tn_scope scope = tn_scope_begin();
 *     ...
 *     tn_scope_end(&scope);
 *
 * C++ has TN_SCOPE with every compiler.
 *
 *     for (int i = 0; i < steps; i++) {
 *         TN_SCOPE;
 *         tn_tensor *loss = ...;
 *         if (tn_item(loss) < 1e-3) break;    leaves the loop and frees loss
 *     } */
#define TN_SCOPE TN_CLEANUP_(tn_scope, tn_scope_end, tn_scope_begin, __LINE__)

typedef struct tn_scope {
    size_t mark;
} tn_scope;
TN_API tn_scope tn_scope_begin(void);
TN_API void tn_scope_end(tn_scope *scope);
TN_API tn_tensor *tn_keep(tn_tensor *t); /* returns t; outside any scope it does nothing */

/* TN_FUNCTION("name"); is TN_SCOPE for a function that you build on operations: to the end of the block, errors of the
 * operations begin with this name instead of theirs. If such functions call each other, the first one's name counts. */
#define TN_FUNCTION(name) TN_FUNCTION_AT_(name, __LINE__)
#define TN_FUNCTION_AT_(name, line) TN_FUNCTION_ON_(name, line)
#define TN_FUNCTION_ON_(name, line) \
    TN_AT_BLOCK_END_(tn_function, tn_function_end, tn_function_begin(name), tn_function_##line)

typedef struct tn_function {
    tn_scope scope;
    const char *before;
} tn_function;
TN_API tn_function tn_function_begin(const char *name); /* name: a literal, because it is not copied */
TN_API void tn_function_end(tn_function *f);

/* Declares a variable of `type`, initialized by begin(); end(&variable) is called where its block ends. */
#define TN_CLEANUP_(type, end, begin, line) TN_CLEANUP_AT_(type, end, begin, line)
#define TN_CLEANUP_AT_(type, end, begin, line) TN_AT_BLOCK_END_(type, end, begin(), type##_##line)

/* ---- in place ---------------------------------------------------------------------------------------------------- */

/* Writes src, broadcast and cast to dst's shape and dtype, into dst; visible through all views of its storage. Returns
 * dst without a new reference, so calls chain. tn_add_, tn_mul_ … in ops.h write the operation's result the same way.
 * As in PyTorch, dst's dtype must be able to store the result's category: an integer tensor takes no floating-point
 * result, a bool tensor only bool. tn_copy_ moves a src that is on another
 * device (tn_to_device). Source: torch.Tensor.copy_.
 *
 * On failure dst keeps its value, gradients and write count, and the call returns an error tensor that belongs to the
 * calling thread (tn_free ignores it; the thread's next failed in-place operation replaces its error). An ignored
 * failure is reported later: unless tn_status_of was called on the error tensor, the thread's next tn_eval, tn_read,
 * tn_peek, tn_item, tn_capture_end or tn_graph_launch fails once with that error and does nothing else. Until then all
 * in-place operations of the thread fail with it, because they may depend on the failed write.
 * If dst is itself an error tensor, it is returned.
 * Errors: TN_ERR_ARGUMENT if elements of dst share memory (an expanded view); TN_ERR_STATE if dst is a leaf that
 * requires gradients while they are enabled; TN_ERR_SHAPE, TN_ERR_DTYPE if the result does not fit dst. */
TN_API tn_tensor *tn_copy_(tn_tensor *dst, const tn_tensor *src);

/* Exchanges the contents of two handles: storage, state flag, gradients, errors. A module that holds a then computes
 * with the former contents of b. What was recorded before, and existing views, still refer to the old storage.
 * Errors: TN_ERR_ARGUMENT if one is a view. Source: torch.utils.swap_tensors. */
TN_API tn_status tn_swap(tn_tensor *a, tn_tensor *b);

/* ---- graph capture ----------------------------------------------------------------------------------------------- */

/* A graph is recorded once and launched many times without recording. Between tn_capture_begin and tn_capture_end,
 * record from `inputs` to `outputs` as usual. tn_capture_end evaluates what was recorded, like tn_eval, and stores the
 * plan in *out (freed with tn_graph_free). tn_graph_launch runs it with new inputs (same shapes and dtypes, contiguous)
 * and returns new handles in `outputs`. Source: torch.cuda.CUDAGraph.
 *
 * A launch has the effects of recording the same calls again: it reads and writes the current values of states, draws
 * the next random numbers, replaces the gradients that the capture collected, and counts writes (tn_write_count). A
 * training step can be captured (tn_minimize, tn_optimizer_step: the evaluation in them is deferred to tn_capture_end):
 * each launch is one step with the current learning rate and step count, with the same bits. Constants, and tensors
 * created from data inside the capture, keep their values.
 * Errors: TN_ERR_STATE for a capture or launch inside a capture, for reading a value that is being captured, and at
 * tn_capture_end for what a launch could not repeat (tn_manual_seed or tn_set_random_state inside the capture,
 * gradients from before it, in-place writes to earlier tensors that are not states); TN_ERR_ARGUMENT for an output that
 * was not recorded in the capture. */
typedef struct tn_graph tn_graph;
TN_API tn_status tn_capture_begin(void);
TN_API tn_status tn_capture_end(tn_tensor *const *inputs, int input_count, tn_tensor *const *outputs, int output_count,
                                tn_graph **out);
TN_API tn_status tn_graph_launch(tn_graph *g, tn_tensor *const *inputs, tn_tensor **outputs);
/* Submits a launch to `queue` and returns without waiting, like tn_eval_async. The outputs can be used at once; reading
 * one waits. */
TN_API tn_status tn_graph_launch_async(tn_graph *g, tn_tensor *const *inputs, tn_tensor **outputs, tn_queue *queue,
                                       tn_event *event);
/* Sets runtime scalar number `scalar` (see tn_runtime_scalar) for all following launches. Runtime scalars are numbered
 * in the order in which they were recorded. Errors: TN_ERR_ARGUMENT if there is none with this number, or a hook sets
 * it. */
TN_API tn_status tn_graph_set_runtime_scalar(tn_graph *g, int scalar, double value);

/* For authors of optimizers and other code that keeps numbers on the host which change at each step (a step count, a
 * learning rate): a launch calls the hook instead of recording the step. */
typedef struct tn_capture_hook {
    size_t struct_size; /* sizeof(tn_capture_hook) */
    /* Called before each launch: writes values[i] for runtime scalar i of the hook and advances the host's numbers as
     * recording would. If it fails, the launch fails with its status. */
    tn_status (*advance)(void *ctx, double *values);
    /* Reverts the last advance because the launch failed, or the recording because the capture failed. May be NULL. */
    void (*undo)(void *ctx);
    void (*release)(void *ctx); /* called once, when the graph is freed or the capture failed. May be NULL */
    void *ctx;
} tn_capture_hook;
/* Returns whether this thread is between tn_capture_begin and tn_capture_end. */
TN_API bool tn_capturing(void);
/* Adds a hook for `count` runtime scalars (tn_runtime_scalar, tn_runtime_scalar_int) to this thread's capture. *hook is
 * copied; its ctx belongs to the capture until release is called, or to the caller if this function fails. Hooks
 * advance in the order in which they were added. Errors: TN_ERR_STATE outside a capture; TN_ERR_ARGUMENT for a tensor
 * that is not a runtime scalar. */
TN_API tn_status tn_capture_add_hook(const tn_capture_hook *hook, tn_tensor *const *scalars, int count);
TN_API void tn_graph_free(tn_graph *g); /* NULL is allowed */

/* ---- random numbers ---------------------------------------------------------------------------------------------- */

/* State of the calling thread's random generator: the seed, and how many numbers were used. After restoring a saved
 * state the same numbers follow. Source: torch.get_rng_state. */
typedef struct tn_random_state {
    uint64_t seed, offset;
} tn_random_state;
TN_API tn_random_state tn_get_random_state(void);
TN_API void tn_set_random_state(tn_random_state state);

/* ---- looking inside ---------------------------------------------------------------------------------------------- */

/* Counters of the calling thread's recorder and plans. bytes: device memory of the process. */
typedef struct tn_runtime_stats {
    size_t struct_size; /* set by the caller */
    int64_t plans_made, plan_hits, plan_misses, nodes_recorded, launches;
    int64_t live_bytes, peak_bytes; /* device memory of the process */
    double plan_seconds;            /* spent on making plans */
    /* from the first to the last command of a plan (of plans that take a few microseconds, one run in 16 is timed). The
     * rest of the elapsed time is host time: recording, finding plans, the caller */
    double run_seconds;
} tn_runtime_stats;
TN_API tn_status tn_get_runtime_stats(tn_runtime_stats *stats);
TN_API void tn_reset_runtime_stats(void); /* also the peak */
/* Frees this thread's plans, their working memory and the recorder's caches; the next evaluations make new plans.
 * Values, states and captured graphs stay. Without this call a thread keeps at most 256 plans and 64 MiB of them, and
 * frees the least recently used first. Waits for runs in progress in queues. Threads: each has its own plans.
 * Source: torch.compiler.reset. */
TN_API void tn_clear_plans(void);

/* Where this thread's last evaluation ran. Operations that a device does not support (dtype, kernel, size) run on the
 * host. The first time, a line on standard error says so (tn_fallback: TN_FALLBACK_STRICT makes it an error,
 * TN_FALLBACK_SILENT suppresses the line). A fused kernel counts as one operation. */
typedef struct tn_placement {
    size_t struct_size;         /* set by the caller */
    char device[32];            /* "opencl:0"; "" before the first evaluation */
    int64_t on_device, on_host; /* operations */
    int64_t to_host, from_host; /* bytes copied per run because of operations on the host */
} tn_placement;
TN_API tn_status tn_get_placement(tn_placement *out);

/* One operation of the last evaluation that ran on the host. */
typedef struct tn_placed_operation {
    size_t struct_size; /* set by the caller */
    char op[48];        /* "argsort_last" */
    char where[160];    /* "train.c:12: argsort_last [64, 10] i64" */
    /* no_kernel, refused_by_compiler, no_f64, no_i64, too_many_bindings, buffer_too_large, loop_too_long,
     * local_memory, group_too_large, no_renderer, not_certified; follows: a small operation between such operations */
    char code[32];
    char reason[TN_REASON_BYTES]; /* the rest of a sentence that begins with the device: "has no f64" */
} tn_placed_operation;
/* Returns operation i of on_host. Errors: TN_ERR_ARGUMENT if i is out of range. */
TN_API tn_status tn_get_placed(int64_t i, tn_placed_operation *out);

/* Describes the last plan of this thread as text: passes, groups, kernels, memory. Free it with tn_text_free. */
TN_API char *tn_explain_last(void);
TN_API void tn_text_free(char *text);

/* Profile: between tn_profile_begin and tn_profile_end every command that this thread runs is timed. Commands with the
 * same ops and shape share a row, also across plans; rows are in the order of first execution. */
typedef struct tn_profile tn_profile;
typedef struct tn_profile_row {
    size_t struct_size; /* set by the caller */
    /* "kernel", "native", "library", "copy"; "host", "fetch", "send" for operations that run on the host instead */
    const char *kind;
    const char *label; /* the fused ops and the shape they run over; valid as long as the profile */
    int64_t runs;
    int64_t bytes;  /* predicted: read and written by all runs, each operand once per run */
    double flops;   /* predicted: element operations of all runs */
    double seconds; /* measured */
} tn_profile_row;
/* Starts a profile; a thread has one active profile, the last one started. Returns NULL if host memory ran out. Free it
 * with tn_profile_free, also if it was not ended. */
TN_API tn_profile *tn_profile_begin(void);
TN_API void tn_profile_end(tn_profile *p);
TN_API void tn_profile_free(tn_profile *p); /* NULL is allowed */
TN_API int64_t tn_profile_count(const tn_profile *p);
/* Copies row i to *row. Errors: TN_ERR_ARGUMENT if i is out of range. */
TN_API tn_status tn_profile_at(const tn_profile *p, int64_t i, tn_profile_row *row);

/* ---- the caller's line, for error messages ----------------------------------------------------------------------- */

/* Like the macros of ops.h. A library on top of this one that wants its callers' lines in messages instead of its own
 * defines TN_NO_CALLER_LINES and wraps its functions in the same way. */
#ifndef TN_NO_CALLER_LINES
#define tn_copy_(...) (tn_at(__FILE__, __LINE__), tn_copy_(__VA_ARGS__))
#define tn_runtime_scalar(...) (tn_at(__FILE__, __LINE__), tn_runtime_scalar(__VA_ARGS__))
#define tn_runtime_scalar_int(...) (tn_at(__FILE__, __LINE__), tn_runtime_scalar_int(__VA_ARGS__))
#define tn_failed(...) (tn_at(__FILE__, __LINE__), tn_failed(__VA_ARGS__))
#define tn_from_data(...) (tn_at(__FILE__, __LINE__), tn_from_data(__VA_ARGS__))
#define tn_from_ptr(...) (tn_at(__FILE__, __LINE__), tn_from_ptr(__VA_ARGS__))
#define tn_make_state(...) (tn_at(__FILE__, __LINE__), tn_make_state(__VA_ARGS__))
#define tn_zero_states(...) (tn_at(__FILE__, __LINE__), tn_zero_states(__VA_ARGS__))
#define tn_scalar(...) (tn_at(__FILE__, __LINE__), tn_scalar(__VA_ARGS__))
#define tn_scalar_int(...) (tn_at(__FILE__, __LINE__), tn_scalar_int(__VA_ARGS__))
#define tn_to_device(...) (tn_at(__FILE__, __LINE__), tn_to_device(__VA_ARGS__))
#define tn_symbolic(...) (tn_at(__FILE__, __LINE__), tn_symbolic(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif
