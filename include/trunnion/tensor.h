/* tensor.h — tensors: making, reading, lifetime, and how laziness keeps its promises.
 *
 * Operations (ops.h) record what is to be computed; reading a value plans everything recorded by this thread, once, and
 * runs it. A loop that records the same again finds its plan again. Semantics are PyTorch's: broadcasting, promotion,
 * views that share storage, in-place variants that all views see.
 *
 * Lifetime: each function that returns a `tn_tensor *` gives the caller one handle, to be freed with tn_free — or,
 * inside TN_SCOPE, freed at the scope's end. A held handle keeps its value; free what you do not need and the planner
 * need not store it.
 *
 * Errors: such a function never returns NULL. A failed one returns an inert error tensor that other operations pass on;
 * tn_eval, tn_read and tn_item report the first cause, with the operation, the shapes and the caller's line. A pointer
 * that is NULL and must not be is such a failure too; functions that tell facts then give a neutral one (rank 0, size
 * -1). An in-place operation that fails leaves its target as it was: see "in place" below.
 *
 * Threads: `const tn_tensor *` may be used by several threads at once, `tn_tensor *` by one at a time. A tensor that
 * one thread recorded and another uses must be evaluated (tn_eval) before it is handed over. */
#ifndef TRUNNION_TENSOR_H
#define TRUNNION_TENSOR_H

#include "trunnion/device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TN_MAX_RANK = 8 };

typedef struct tn_tensor tn_tensor;

/* Notes the caller's line for error messages; the operation macros of ops.h call it. */
TN_API void tn_at(const char *file, int line);

/* ---- making ------------------------------------------------------------------------------------------------------ */

/* Copies `data` (row-major, contiguous) to the current device. shape: `rank` extents ≥ 0. */
TN_API tn_tensor *tn_from_data(const void *data, const int64_t *shape, int rank, tn_dtype dtype);

/* A tensor that reads the caller's memory without a copy (host-visible devices; elsewhere it is copied). The library
 * never writes to that memory: an in-place operation on the tensor moves its value to memory of its own first. The
 * memory must stay unchanged until release(ctx) is called, which happens once no tensor or pending work refers to it.
 * release may be NULL. */
TN_API tn_tensor *tn_from_ptr(void *data, const int64_t *shape, int rank, tn_dtype dtype, void (*release)(void *ctx),
                              void *ctx);

/* A rank-0 tensor that does not raise the other operand's dtype within its category, as a Python number in PyTorch:
 * tn_scalar is a Python float (f32 beside an integer tensor), tn_scalar_int a Python int (an integer tensor keeps its
 * dtype, a bool tensor becomes i64). */
TN_API tn_tensor *tn_scalar(double value);
TN_API tn_tensor *tn_scalar_int(int64_t value);

/* A rank-0 f32 tensor whose value may differ at each run without a new plan: learning rates, temperatures, counters. */
TN_API tn_tensor *tn_runtime_scalar(double value);
TN_API tn_tensor *tn_runtime_scalar_int(int64_t value); /* the same as i64 */

/* Sets the seed of the calling thread's random numbers and restarts their sequence: the same calls then return the same
 * numbers, on every device. A thread that sets no seed gets one at its first draw: the first such thread of the process
 * gets 0, each later one a seed that depends only on how many threads drew before it. If several threads race for the
 * first draw, seed each of them to get the same numbers in every run. */
TN_API void tn_manual_seed(uint64_t seed);

/* Declares that extent `dim` of an input varies between runs: plans are then shared by all its values.
 * Up to four names (0…3); tensors whose extents are tied use the same one. Returns t's handle anew. */
TN_API tn_tensor *tn_symbolic(const tn_tensor *t, int64_t dim, int symbol);

/* t's value on `device`, as a new tensor with memory of its own: computes what t needs, and copies. On the device that
 * t is on already: t again, sharing its storage. Gradients do not go from device to device: with gradients on, a
 * tensor that requires them is refused. */
TN_API tn_tensor *tn_to_device(const tn_tensor *t, tn_device *device);

/* State: a tensor whose storage keeps its address for ever (parameters, optimiser state, caches); in-place operations
 * on it are written at the very end of a plan. Evaluates t first. */
TN_API tn_status tn_make_state(tn_tensor *t);

/* `count` new tensors of one shape, all zero, that are state, as new handles in out. Where the host computes they lie
 * side by side in one block, which goes with the last of them: what is read from all of them in turn, as the layers'
 * caches of a language model are, then takes few pages of memory. On failure there are no handles. */
TN_API tn_status tn_zero_states(const int64_t *shape, int rank, tn_dtype dtype, tn_tensor **out, int count);

/* An inert error tensor with a message of yours (a printf format), for functions that are built on operations. */
TN_API tn_tensor *tn_failed(tn_status code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- facts ------------------------------------------------------------------------------------------------------- */

TN_API int tn_rank(const tn_tensor *t);                  /* 0 for an error tensor */
TN_API int64_t tn_size(const tn_tensor *t, int64_t dim); /* negative dims count from the end; -1 when out of range */
/* valid until t is freed, or until it or what it is a view of is written in place */
TN_API const int64_t *tn_shape(const tn_tensor *t);
TN_API int64_t tn_numel(const tn_tensor *t);
TN_API tn_dtype tn_dtype_of(const tn_tensor *t);
TN_API tn_device *tn_device_of(const tn_tensor *t);
/* Number of in-place writes to t's storage, through t or any view of it. While it does not change, neither does the
 * value, except by tn_swap, which exchanges the counts too. 0 for NULL. PyTorch's _version. */
TN_API int64_t tn_write_count(const tn_tensor *t);
/* A number that identifies t's storage for the life of the process: views have the same one, writes do not change it,
 * tn_swap exchanges it. While this and tn_write_count do not change, neither does the value. 0 for NULL, and if memory
 * is out. */
TN_API uint64_t tn_value_id(const tn_tensor *t);
/* TN_OK, or the cause's code for an error tensor; sets tn_error */
TN_API tn_status tn_status_of(const tn_tensor *t);

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* Computes everything this thread has recorded: the given tensors, all held handles, all state. Passing what you will
 * read next saves runs. count may be 0. Returns the first given error tensor's cause, if any. A held tensor that is not
 * given and for which there is no memory is left out, and tried again when it is needed (too late if states were
 * written: then it is an error tensor); a given one fails the call, with its operation, shape and line.
 * An index out of range fails it, too, for whatever tensors it was called (TN_ERR_ARGUMENT; "Indices" in ops.h):
 *   - What depends on the op that has the index becomes an error tensor with this cause: results, gradients, and
 *     tensors that are not state and were written in place with such a value. The value from before the write, or the
 *     gradient that was added to, is lost.
 *   - Every state keeps the value from before this evaluation, also one whose new value does not depend on the index.
 *   - Everything else is computed, except on the device of an engine, where all results become errors. Of several
 *     indices out of range in one evaluation the first is reported. */
TN_API tn_status tn_eval(tn_tensor *const *tensors, int count);

/* As tn_eval, in the order of `queue` (device.h; NULL: this thread's current one), and returns when the work has been
 * given: on a queue that is a thread, or one of an interface, it goes on beside the caller. event (may be NULL) is
 * recorded behind it. Reading a value waits for it. Tensors on other devices than the queue's go to these devices' own
 * queues. Errors: as tn_eval for what is found before the work begins; later ones by tn_queue_synchronize, the event,
 * or reading. */
TN_API tn_status tn_eval_async(tn_tensor *const *tensors, int count, tn_queue *queue, tn_event *event);

/* The values as contiguous row-major elements of t's dtype. bytes must be numel · element size. */
TN_API tn_status tn_read(const tn_tensor *t, void *out, size_t bytes);

/* As tn_read, with a check of what out points to: room for `count` elements of `dtype`. Nothing is converted.
 * Errors: TN_ERR_DTYPE if t has another dtype; TN_ERR_SHAPE if it has another number of elements. */
TN_API tn_status tn_read_as(const tn_tensor *t, void *out, int64_t count, tn_dtype dtype);

/* The same without a copy, where the host computes and t is no view, or one of all elements in their order: *out is
 * where they are, to be read as long as t is there, and nobody writes to it or makes it state. Else *out is NULL. */
TN_API tn_status tn_peek(const tn_tensor *t, const void **out);

/* The value of a one-element tensor as double. On error *out stays as it was. */
TN_API tn_status tn_read_item(const tn_tensor *t, double *out);

/* As tn_read_item, but returns the value; NaN on error. To tell a NaN value from an error, look at tn_error(): it is ""
 * after a NaN value and holds the cause after an error. */
TN_API double tn_item(const tn_tensor *t);

/* ---- lifetime ---------------------------------------------------------------------------------------------------- */

/* A tn_tensor * is a handle with a generation number, not an address. A function that is given a freed tensor fails
 * with TN_ERR_ARGUMENT, or returns an error tensor, or what it returns for NULL, and tn_error() says that the tensor
 * was freed. (A pointer is mistaken for a newer tensor only after about 2^20 others, at least 2^14.) */
TN_API tn_tensor *tn_retain(tn_tensor *t); /* one more handle; returns t */
/* Releases one handle; NULL is fine. If the tensor was freed before, this only sets tn_error() and logs a line. */
TN_API void tn_free(tn_tensor *t);

/* TN_SCOPE; — a declaration: handles that this thread makes from here to the end of the enclosing block are freed
 * there, also when break, continue, return or goto leaves the block. Do not free such a handle yourself (a retained one
 * is yours). tn_keep moves a handle to the enclosing scope, or to the caller. Needs gcc's attribute cleanup (gcc,
 * clang).
 *
 *     for (int i = 0; i < steps; i++) {
 *         TN_SCOPE;
 *         tn_tensor *loss = ...;
 *         if (tn_item(loss) < 1e-3) break;    leaves the loop, and frees loss
 *     } */
#define TN_SCOPE TN_CLEANUP_(tn_scope, tn_scope_end, tn_scope_begin, __LINE__)

typedef struct tn_scope {
    size_t mark;
} tn_scope;
TN_API tn_scope tn_scope_begin(void);
TN_API void tn_scope_end(tn_scope *scope);
TN_API tn_tensor *tn_keep(tn_tensor *t); /* returns t; outside any scope it does nothing */

/* Declares a variable `type`, made by begin() and given to end(&variable) where its block ends. */
#define TN_CLEANUP_(type, end, begin, line) TN_CLEANUP_AT_(type, end, begin, line)
#define TN_CLEANUP_AT_(type, end, begin, line) type type##_##line __attribute__((cleanup(end), unused)) = begin()

/* ---- in place ---------------------------------------------------------------------------------------------------- */

/* Writes src (broadcast and cast to fit) into dst, seen by all views of its storage. Returns dst with the same handle
 * count, so calls chain. tn_add_, tn_mul_ … in ops.h write the operation's result in the same way. As in PyTorch, dst's
 * dtype must be able to hold the result's: no floating point result in an integer tensor, only bool in a bool tensor.
 *
 * Failure: dst keeps its value, its gradients and its write count, and the call returns an error tensor that belongs to
 * the calling thread (tn_free ignores it; the thread's next failed in-place operation replaces its error). An ignored
 * failure is reported later: unless tn_status_of was called on the error tensor, the thread's next tn_eval, tn_read,
 * tn_peek, tn_item, tn_capture_end or tn_graph_launch fails once with that error and does nothing else. Until then all
 * in-place operations of the thread fail with it too, because they may depend on the write that failed.
 * If dst is an error tensor itself, it is returned.
 * Refused: a dst whose elements share memory (an expanded view); a leaf that requires gradients while gradients are on
 * (TN_ERR_STATE); a result that does not fit dst's shape (TN_ERR_SHAPE) or dtype (TN_ERR_DTYPE). */
TN_API tn_tensor *tn_copy_(tn_tensor *dst, const tn_tensor *src);

/* Exchanges what two handles stand for: values, whether they are state or collect gradients, errors. Whoever holds a
 * (a module its weight) then computes with what was b's; what was recorded before stays as it was, and views made
 * before go on standing for what they were made of. PyTorch's torch.utils.swap_tensors.
 * Errors: TN_ERR_ARGUMENT when one is a view. */
TN_API tn_status tn_swap(tn_tensor *a, tn_tensor *b);

/* ---- replay ------------------------------------------------------------------------------------------------------ */

/* Records once, runs many times without recording. Between begin and end, record from `inputs` to `outputs` as usual;
 * end computes what was recorded, as tn_eval would, and keeps its plan; each launch runs it again with new values for
 * the inputs (same shapes and dtypes, contiguous) and hands out new output handles.
 *
 * A launch has the effects of recording the same calls again: it reads and writes the current values of state, draws
 * the next random numbers, replaces the gradients that the capture collected, and counts writes (tn_write_count). A
 * training step can be captured (tn_minimize, tn_optimizer_step: their tn_eval of no tensors is deferred to
 * tn_capture_end): each launch is one step with the current learning rate and step count, with the same bits.
 * Constants, and tensors made from data inside the capture, keep their values.
 * Errors: TN_ERR_STATE for a capture or a launch inside a capture, for reading a value that is being captured, and at
 * tn_capture_end for what a launch could not repeat (tn_manual_seed or tn_set_random_state inside it, gradients from
 * before it, in-place writes to earlier tensors that are not state); TN_ERR_ARGUMENT for an output that was not
 * recorded in the capture. */
typedef struct tn_graph tn_graph;
TN_API tn_status tn_capture_begin(void);
TN_API tn_status tn_capture_end(tn_tensor *const *inputs, int input_count, tn_tensor *const *outputs, int output_count,
                                tn_graph **out);
TN_API tn_status tn_graph_launch(tn_graph *g, tn_tensor *const *inputs, tn_tensor **outputs);
/* The same as tn_eval_async is to tn_eval: outputs can be used at once, and reading one waits. */
TN_API tn_status tn_graph_launch_async(tn_graph *g, tn_tensor *const *inputs, tn_tensor **outputs, tn_queue *queue,
                                       tn_event *event);
/* Sets a runtime scalar (see tn_runtime_scalar) for all following launches. Runtime scalars are numbered in the order
 * in which they were recorded. Errors: TN_ERR_ARGUMENT for a number without a runtime scalar, and for a runtime scalar
 * that a hook sets. */
TN_API tn_status tn_graph_set_runtime_scalar(tn_graph *g, int scalar, double value);

/* For authors of optimisers, and of other code with numbers on the host that change at each step (a step count, a
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
/* Whether this thread is between tn_capture_begin and tn_capture_end. */
TN_API bool tn_capturing(void);
/* Adds a hook for `count` runtime scalars (tn_runtime_scalar, tn_runtime_scalar_int) to this thread's capture. *hook is
 * copied; its ctx belongs to the capture until release is called, or to the caller if this function fails. Hooks
 * advance in the order in which they were added. Errors: TN_ERR_STATE outside a capture; TN_ERR_ARGUMENT for a tensor
 * that is not a runtime scalar. */
TN_API tn_status tn_capture_add_hook(const tn_capture_hook *hook, tn_tensor *const *scalars, int count);
TN_API void tn_graph_free(tn_graph *g); /* NULL is fine */

/* ---- random numbers ---------------------------------------------------------------------------------------------- */

/* Where the random numbers of the calling thread stand: their seed, and how many were used. What was saved and put back
 * goes on with the same numbers. */
typedef struct tn_random_state {
    uint64_t seed, offset;
} tn_random_state;
TN_API tn_random_state tn_get_random_state(void);
TN_API void tn_set_random_state(tn_random_state state);

/* ---- looking inside ---------------------------------------------------------------------------------------------- */

/* Counters of the calling thread's recorder and plans. */
typedef struct tn_runtime_stats {
    size_t struct_size; /* set by the caller */
    int64_t plans_made, plan_hits, plan_misses, nodes_recorded, launches;
    int64_t live_bytes, peak_bytes; /* device memory of the process */
    double plan_seconds;            /* spent on making plans */
    /* from a plan's first command to its last (of plans of a few microseconds one run in sixteen is timed). What is
     * left of the time that passed is the host's: recording, finding plans, the caller */
    double run_seconds;
} tn_runtime_stats;
TN_API tn_status tn_get_runtime_stats(tn_runtime_stats *stats);
TN_API void tn_reset_runtime_stats(void); /* also the peak */
/* Frees this thread's plans, their working memory and what recording keeps for reuse; the next evaluations make their
 * plans anew. Values, state and captured graphs stay. A thread keeps at most 256 plans and 64 MiB of them; beyond that
 * it frees those unused for longest. Waits for runs that are under way in queues. Threads: each has plans of its own.
 * PyTorch's torch.compiler.reset. */
TN_API void tn_clear_plans(void);

/* Who computed this thread's last evaluation. What its device lacks the host computes: a type, a kernel, a size. The
 * first time a line on standard error says so (tn_fallback: TN_FALLBACK_STRICT makes it an error at the operation's
 * line, TN_FALLBACK_SILENT says nothing). Operations are counted as they were fused: what was computed on the way to
 * another one's kernel does not count. */
typedef struct tn_placement {
    size_t struct_size;         /* set by the caller */
    char device[32];            /* "opencl:0"; "" before the first evaluation */
    int64_t on_device, on_host; /* operations */
    int64_t to_host, from_host; /* bytes copied for it at each run */
} tn_placement;
TN_API tn_status tn_get_placement(tn_placement *out);

/* One operation of it that the host computes. */
typedef struct tn_placed_operation {
    size_t struct_size; /* set by the caller */
    char op[48];        /* "argsort_last" */
    char where[160];    /* "train.c:12: argsort_last [64, 10] i64" */
    /* no_kernel, refused_by_compiler, no_f64, no_i64, too_many_bindings, buffer_too_large, loop_too_long,
     * local_memory, group_too_large, no_renderer, not_certified; follows: a small one that stands between such */
    char code[32];
    char reason[TN_REASON_BYTES]; /* the rest of a sentence that begins with the device: "has no f64" */
} tn_placed_operation;
/* i: 0 … on_host − 1. Errors: TN_ERR_ARGUMENT outside of that. */
TN_API tn_status tn_get_placed(int64_t i, tn_placed_operation *out);

/* What the last plan of this thread did: passes, groups, kernels, memory, as text. Freed with tn_text_free. */
TN_API char *tn_explain_last(void);
TN_API void tn_text_free(char *text);

/* Where the time goes: from begin to end every command that this thread runs is timed, and equal ones (same ops, same
 * shape, of whatever plan) are one row, in the order in which they first ran. */
typedef struct tn_profile tn_profile;
typedef struct tn_profile_row {
    size_t struct_size; /* set by the caller */
    /* "kernel", "native", "library", "copy"; "host", "fetch", "send" of what a device leaves to the host */
    const char *kind;
    const char *label; /* the ops joined in it and the shape it runs over; lives as long as the profile */
    int64_t runs;
    int64_t bytes;  /* predicted: what all runs read and write, an operand once a run */
    double flops;   /* predicted: operations on elements in all runs */
    double seconds; /* measured */
} tn_profile_row;
/* NULL when memory is out. The profile begun last is the one that counts; freed with
 * tn_profile_free, also without end. */
TN_API tn_profile *tn_profile_begin(void);
TN_API void tn_profile_end(tn_profile *p);
TN_API void tn_profile_free(tn_profile *p); /* NULL is fine */
TN_API int64_t tn_profile_count(const tn_profile *p);
/* Row i. TN_ERR_ARGUMENT when there is none. */
TN_API tn_status tn_profile_at(const tn_profile *p, int64_t i, tn_profile_row *row);

/* ---- the caller's line, for error messages ----------------------------------------------------------------------- */

/* As the macros of ops.h. A library on top of this one that wants its callers' lines in messages, rather than its own,
 * defines TN_NO_CALLER_LINES and does likewise for its functions. */
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
