/* engine.h — what an engine does for the planner: compile a recorded graph, and run it.
 *
 * An engine is another library for machine learning that computes whole graphs (ONNX Runtime; LibTorch computes single
 * operations: below). Its device ("engine:onnxruntime") has the host's memory and all kernels of the cpu. A plan
 * of such a device is one command, which the engine runs, behind it the copies of new values into states. Operations
 * that the engine cannot express are computed by the cpu's kernels instead, in the same memory, each before the graph
 * that needs it (flush.c); placement reports them with the engine's reason, as it does for other devices. Random
 * numbers are always ours: they are the same on every device.
 *
 * To add an engine: a row of drivers/drivers.c (is_engine); a driver in drivers/engine_driver.c, which locates and
 * loads the library (vendor/NAME.c declares what it calls); and a table of this type in engines/. */
#ifndef TN_ENGINE_H
#define TN_ENGINE_H

#include "hal/hal.h"
#include "tensor/graph.h"

typedef struct tn_binding tn_binding;
typedef struct tn_plan tn_plan;

/* A graph to compile. Inputs and outputs lie in host memory, contiguous in row-major order, at multiples of 64 bytes if
 * their first byte is their buffer's; no output overlaps an input. */
typedef struct tn_engine_graph {
    tn_device *device;
    const tn_node *const *inputs;  /* where the graph begins: their values are given, whatever they were made of */
    const tn_node *const *outputs; /* no views */
    const tn_node *const *scalars; /* runtime scalars, whose values come with each run */
    int input_count, output_count, scalar_count;
    const tn_recorder *recorder; /* whose nodes up to number `recorded` are the caller's; others are compositions' */
    size_t recorded;
} tn_engine_graph;

static inline bool tn_engine_graph_has(const tn_engine_graph *g, const tn_node *n) {
    return n->recorder == g->recorder && n->index >= 0 && (size_t)n->index < g->recorded;
}

/* Why a graph was refused. */
typedef struct tn_engine_refusal {
    const tn_node *
        *nodes; /* the graph's own operations that the engine lacks, perhaps not all; none: the whole graph */
    size_t count, capacity;
    const char *code;          /* a word of docs/devices.md: "no_kernel", "no_f64", "refused_by_compiler" */
    char why[TN_REASON_BYTES]; /* the rest of a sentence that begins with the device: "has no operator for it" */
} tn_engine_refusal;
/* Notes a node of the graph, once. */
tn_status tn_engine_refuse(tn_engine_refusal *why, const tn_node *n);

typedef struct tn_engine {
    const char *backend; /* "engine:onnxruntime" */
    /* *out: what `run` takes. Errors: TN_ERR_UNSUPPORTED with *why filled when the engine cannot compute the graph (the
     * host does then); any other one fails the evaluation. The nodes live as long as the call. */
    tn_status (*compile)(const tn_engine_graph *g, void **out, tn_engine_refusal *why);
    /* inputs, outputs: addresses, in the graph's order (any for values without elements); scalars: .f of those made as
     * floats, else .i. Several threads may run one compiled graph at once. Errors are the engine's, with its words. */
    tn_status (*run)(void *compiled, void *const *inputs, void *const *outputs, const kir_scalar *scalars);
    /* Compiles the graph again with the values of some inputs (`constant`, by input) as constants, which lets the
     * engine fold and rearrange them; `run` then ignores these inputs. Their bytes are copied. constant: NULL to return
     * to the graph without constants. After an error that one is kept. NULL: the engine has no use for constants. */
    tn_status (*fix)(void *compiled, void *const *inputs, const bool *constant);
    void (*free)(void *compiled);
} tn_engine;

/* ---- engines that compute single operations ---------------------------------------------------------------------- */

/* The device of such an engine ("engine:torch") has the host's memory and all kernels of the cpu. The planner asks the
 * engine for each node before it would be composed. A node that it takes is a value of its own: its inputs and its
 * result lie in memory, views of inputs are strides, and a command hands their addresses to the engine. What it does
 * not take is composed, or computed by the cpu's kernels in the same memory; placement reports that with the engine's
 * reason, and a device that was opened strictly refuses it. Gradients are nodes like any other, so training needs
 * nothing more. */

/* An input of a node: where its elements lie, in elements from the address that a run is given. */
typedef struct tn_engine_input {
    const tn_node *node; /* NULL: an optional input that is absent */
    int64_t stride[TN_MAX_RANK];
    bool constant; /* all elements are `value`, and no address is given */
    double value;
} tn_engine_input;

typedef struct tn_engine_op tn_engine_op; /* an operation that the engine has prepared; the engine's own */

typedef struct tn_op_engine {
    const char *backend; /* "engine:torch" */
    /* Does it compute this node? Else *why is the rest of a sentence that begins with the device's name; it lives for
     * ever. */
    bool (*takes)(const tn_node *n, const char **why);
    /* Prepares a node that it takes, with n->n_in inputs. The nodes live as long as the call. */
    tn_status (*make)(const tn_node *n, const tn_engine_input *in, tn_engine_op **out);
    /* pointers: the result, contiguous, and then the inputs; no result overlaps an input. One thread at a time for one
     * operation. Errors are the engine's, with its words. */
    tn_status (*run)(tn_engine_op *op, void *const *pointers);
    void (*free)(tn_engine_op *op); /* NULL is fine */
} tn_op_engine;

/* The engine of a device; NULL: it is none, or one that computes whole graphs. */
const tn_op_engine *tn_op_engine_of(const tn_device *d);

/* ---- supplied by engines/ ---------------------------------------------------------------------------------------- */

extern const tn_engine *const tn_engines[]; /* ended by NULL, as the other list */
extern const tn_op_engine *const tn_op_engines[];

/* ---- engine_plan.c ----------------------------------------------------------------------------------------------- */

/* Makes the whole plan for a device that is an engine's. p has its key. *made: false when the engine refused, which is
 * noted in p->placement. Then its first_on_host has the operations that the host is to compute before, and there are no
 * commands; or, if there are none or b->whole, the plan is to be made as one of the cpu. Errors: TN_ERR_UNSUPPORTED
 * when the engine refused and the device was opened strictly. */
tn_status tn_engine_plan(const tn_binding *b, tn_plan *p, bool *made);
/* The graph's run failed with `status`, see tn_error: the cpu computes it. An index out of range (TN_ERR_ARGUMENT) is
 * told there. What the engine failed at is noted in p->placement, and told (tn_place_tell) once the cpu has computed
 * it, which then does so from the beginning. Errors: TN_ERR_UNSUPPORTED when the device was opened strictly. */
tn_status tn_engine_failed(tn_plan *p, tn_status status);
/* What a plan's command runs. */
typedef struct tn_engine_call tn_engine_call;
/* Before each run: the buffers of the plan's slots. What no longer changes from run to run becomes a constant of the
 * graph; NULL: nothing may be assumed of the buffers. */
void tn_engine_call_bind(tn_engine_call *c, tn_buffer *const *bound);
void tn_engine_call_varies(tn_engine_call *c, int slot); /* what is bound there never becomes a constant */
/* Errors: TN_ERR_ARGUMENT for an index out of range; TN_ERR_DEVICE with the engine's words when it fails. */
tn_status tn_engine_call_run(tn_engine_call *c, void *const *pointers, const kir_scalar *scalars);
void tn_engine_call_free(tn_engine_call *c); /* NULL is fine */

#endif
