/* graph.h — what is recorded: nodes, views, storages, handles, and the recorder that holds them in order.
 *
 * A node is one value: an op, its inputs, its attributes, a shape and a dtype. Nodes never change what they mean: an
 * in-place op makes a new node and the storage points to it. A node is *pending* (in a recorder's list, in topological
 * order) until a plan has given it a buffer, or its last reference goes.
 *
 * A view node (reshape, permute, slice …) computes nothing: it says where its elements lie in the contiguous buffer of
 * its root node. Its op and attributes stay, for gradients and for joining loads.
 *
 * node.c makes nodes, tensor.c handles and storages, shape.c the shape rules that ops share. Ops (src/ops) supply a row
 * each (tn_op_row); plan/ supplies flush. */
#ifndef TN_GRAPH_H
#define TN_GRAPH_H

#include "base/base.h"
#include "hal/hal.h"
#include "kir/kir.h"
#include "trunnion/tensor.h"

#include "gen/op_ids.h"

typedef struct tn_node tn_node;
typedef struct tn_build tn_build;
typedef struct tn_lower tn_lower;

enum { TN_OP_NONE = UINT16_MAX }; /* op of data and error nodes */

/* ---- attributes -------------------------------------------------------------------------------------------------- */

enum { TN_MAX_INPUTS = 64 }; /* of a node; longer lists of tensors become trees of nodes: tn_node_make */
enum { TN_MAX_ATTR_INTS = 28, TN_MAX_ATTR_FLOATS = 4 };

/* An op's arguments that are not tensors, in the order of its signature: integers, booleans and dtypes take one int
 * each, a list takes its length and then its items; floats go to f. All are part of the plan's key. Scalars that change
 * at each step are tensors made by tn_runtime_scalar instead. */
typedef struct tn_attrs {
    uint8_t n_i, n_f;
    int64_t i[TN_MAX_ATTR_INTS];
    double f[TN_MAX_ATTR_FLOATS];
} tn_attrs;

static inline bool tn_dtype_is_half(int dtype) { return dtype == TN_F16 || dtype == TN_BF16; }

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

enum {
    TN_NODE_GRAD = 1,      /* requires gradients */
    TN_NODE_LEAF = 2,      /* gradients stop here and are collected in `slot` */
    TN_NODE_VIEW = 4,      /* elements lie in root's buffer */
    TN_NODE_ERROR = 8,     /* inert: error text instead of a value */
    TN_NODE_STALE = 16,    /* was a state's value; the state has been written since */
    TN_NODE_WRAPPED = 32,  /* a number (tn_scalar): does not raise another operand's dtype within its category */
    TN_NODE_VARIES = 64,   /* its numbers, or a view's offset, come with each run instead of being part of the plan */
    TN_NODE_CAPTURED = 128 /* data that was made inside a capture */
};

/* A function that sees a gradient before it is passed on (tn_register_hook). */
typedef struct tn_slot_hook {
    tn_tensor *(*function)(void *ctx, const tn_tensor *grad);
    void *ctx;
    int64_t id;
    struct tn_slot_hook *next;
} tn_slot_hook;

/* Where the gradient of a leaf, or of another node that somebody watches, is collected; shared by the storage and its
 * nodes. */
typedef struct tn_grad_slot {
    _Atomic int32_t refs;
    tn_tensor *grad;
    bool closed;  /* the tensor is gone: nobody can ask for a gradient any more, and none is collected */
    bool calling; /* hooks are being called: one that is removed meanwhile only loses its function */
    bool keeps;   /* the gradient is collected: of leaves, and after tn_retain_grad */
    tn_slot_hook *hooks;
    struct tn_grad_slot *next; /* another watched node of the same storage */
} tn_grad_slot;

/* An extent that is the sum of several with symbols: 16 and a bit for each of the symbols 0 … 3. */
enum { TN_SYMBOLS = 4, TN_SYMBOL_SUM = 1 << TN_SYMBOLS };

/* The range of indices: low <= v < high, or v is `ignored` if `ignores`. */
typedef struct tn_index_range {
    int64_t low, high, ignored, ignores; /* no bool: ranges are compared by their bytes */
} tn_index_range;

/* An op takes the node's elements as indices. A plan that computes or reads the node on the host compares them with the
 * range (plan/index_check.c). The node is a view that was made for the op: what depends on it depends on the check. */
typedef struct tn_index_check {
    tn_index_range range;
    int32_t line;     /* where the op was recorded */
    const char *name; /* of the op, or of the function that the caller called */
    const char *file;
} tn_index_check;

/* What is asked for most stands first: an offset below 128 is one byte of an instruction, a further one four. */
struct tn_node {
    _Atomic int32_t refs;    /* everybody: handles, consumers, recorder, storages */
    _Atomic int32_t handles; /* handles, storages and builds that hold it: a flush must give the node a buffer */
    uint16_t op;             /* tn_op_id */
    uint8_t dtype, rank, flags, n_in, n_i, n_f;
    int32_t index; /* place in the recorder's list, -1 when not pending */
    int32_t line;
    tn_node **in; /* n_in inputs; an optional one may be NULL */
    int64_t *i;   /* attributes: n_i ints, n_f floats, packed behind the node */
    double *f;
    struct tn_recorder *recorder; /* whose list holds it; NULL when not pending */
    tn_device *device;
    tn_buffer *buffer; /* once computed (non-view nodes) */
    tn_node *root;     /* views: whose buffer (retained); NULL for others */
    int64_t *layout;   /* views: offset, then stride[rank], in elements of root */
    int64_t shape[TN_MAX_RANK];
    uint8_t symbol[TN_MAX_RANK]; /* 0, 1 + the symbol of this extent, or a sum (TN_SYMBOLS) */
    tn_node *expansion;          /* a composed op's composition, once made */
    tn_grad_slot *slot;          /* leaves */
    tn_index_check *check; /* what the op that takes it as indices demands; NULL: nothing, or it is known to be right */
    const char *file;
    tn_node *in_small[4];
    char *error; /* error nodes */
    tn_status status;
    int32_t origin; /* the region of TN_RECOMPUTE that it was recorded in; 0: none */
};

int64_t tn_node_numel(const tn_node *n);
size_t tn_node_bytes(const tn_node *n); /* numel · element size */
/* Adds to a node's count and returns what it was. A pending node belongs to the thread that records it, so its counts
 * need no locked instruction: half of what recording an op costs. */
static inline int32_t tn_node_count(const tn_node *n, _Atomic int32_t *count, int32_t by) {
    if (!n->recorder) return atomic_fetch_add_explicit(count, by, memory_order_acq_rel);
    int32_t before = atomic_load_explicit(count, memory_order_relaxed);
    atomic_store_explicit(count, before + by, memory_order_relaxed);
    return before;
}
static inline tn_node *tn_node_retain(tn_node *n) {
    if (n) tn_node_count(n, &n->refs, 1);
    return n;
}
void tn_node_end(tn_node *n); /* its last reference has gone: frees it and what it held, without recursion */
static inline void tn_node_release(tn_node *n) {
    if (n && tn_node_count(n, &n->refs, -1) == 1) tn_node_end(n);
}
/* As AUTO_FREE, for one reference to a node or a tensor. */
#define AUTO_NODE AUTO_CALL(tn_node_release_held)
#define AUTO_TENSOR AUTO_CALL(tn_tensor_free_held)
static inline void tn_node_release_held(tn_node **n) { tn_node_release(*n); }
static inline void tn_tensor_free_held(tn_tensor **t) { tn_free(*t); }
/* Offset and strides of a node's elements in its root's buffer, contiguous ones for non-views. Returns the root. */
const tn_node *tn_node_layout(const tn_node *n, int64_t *offset, int64_t stride[TN_MAX_RANK]);
bool tn_node_contiguous(const tn_node *n); /* its elements are its root's, all of them, in order */

/* Makes a pending node: promotion, shape rule, gradient flag, hash of structure by the recorder. Yields an error node
 * when an input is one or a rule refuses; NULL never. The caller owns one reference. attrs may be NULL. */
tn_node *tn_node_make(int op, tn_node *const *in, int n_in, const tn_attrs *attrs);
tn_node *tn_node_error(tn_status status, const char *text); /* text as it shall be shown */
tn_node *tn_node_failed(tn_status status); /* this thread's error as an error node, with the caller's line before it */
/* A computed node over a buffer (leaf data). Retains the buffer. */
tn_node *tn_node_data(tn_buffer *buffer, const int64_t *shape, int rank, tn_dtype dtype);

/* ---- building graphs inside the library -------------------------------------------------------------------------- */

/* Owns the nodes that compositions and gradients make, so that their code need not. After a failure every call returns
 * NULL and takes NULL; the status tells. tn_b_* functions (one an op, generated: ops_build.h) return borrowed nodes. */
struct tn_build {
    tn_node **made;
    size_t count, capacity;
    tn_status status;
};
tn_node *tn_b_op(tn_build *b, int op, tn_node *const *in, int n_in, const tn_attrs *attrs);
/* hands a reference to b; returns n, or NULL when n is an error (status set) */
tn_node *tn_b_own(tn_build *b, tn_node *n);
void tn_build_end(tn_build *b); /* releases all */
tn_node *tn_b_cast_like(tn_build *b, tn_node *x, const tn_node *like);

/* ---- the op table ------------------------------------------------------------------------------------------------ */

typedef enum tn_op_kind { TN_KERNEL, TN_COMPOSED, TN_HOST, TN_CONTROL } tn_op_kind;

/* How a kernel op's result relates to its inputs: what the planner needs to know about it. */
typedef enum tn_op_class {
    TN_LEAF_VALUE,  /* no computation: data, runtime scalar */
    TN_ELEMENTWISE, /* lower() at an index needs the inputs at the same (broadcast) index */
    TN_VIEW_OP,     /* no computation: infer() sets root and layout; lower() maps the index */
    TN_MOVEMENT,    /* lower() needs inputs at other indices: pad, gather, unfold … */
    /* over a loop space (loops()); lower() is the value to reduce, its index: result dims, then loop dims */
    TN_REDUCTION,
    TN_SCANNING, /* running reduction along dim i[0]; lower() is the value to add, at an index of the result */
    TN_MATMUL,   /* template: matmul */
    /* a kernel of cpu/ of its own: argsort, index_add; a case each in plan/native.c. Where the device has no such
     * kernels it is its composition, if it has one; else what lower() yields: a reduction if it has loops(), or a
     * movement */
    TN_NATIVE
} tn_op_class;

/* What infer() reads and writes. */
typedef struct tn_infer {
    const struct tn_op_row *row;
    tn_node *const *in;
    int n_in;
    tn_attrs *attrs; /* may be put into canonical form (negative dims resolved) */
    /* out */
    tn_dtype dtype;
    int rank;
    int64_t shape[TN_MAX_RANK];
    uint8_t symbol[TN_MAX_RANK];
    /* out, views only: place of the elements in the root of in[0] */
    int64_t offset, stride[TN_MAX_RANK];
} tn_infer;

/* f64 reference: inputs and output as contiguous doubles (integers and bools exactly, i64 up to 2^53). */
typedef struct tn_reference {
    const tn_node *node; /* shapes and attributes */
    const double *const *in;
    double *out;
} tn_reference;

/* Of a product: a column times a row, one step an element, which begins at +0 as all chains do; and so many elements
 * that a pass over them counts. */
static inline bool tn_is_outer_product(const tn_node *n) {
    enum { MANY = 1 << 16 };
    const tn_node *x = n->in[0];
    bool one_step = x->shape[x->rank - 1] == 1 && !x->symbol[x->rank - 1];
    return one_step && n->dtype == TN_F32 && n->shape[n->rank - 2] * n->shape[n->rank - 1] >= MANY;
}

/* Facts that the planner asks about ops; each states those that hold (tn_op_impl.facts). plan/ names no op, except in
 * the tables that register kernels: suite `source`. */
enum {
    TN_FACT_CONSTANT = 1 << 0,        /* every element is one number, an attribute */
    TN_FACT_LAUNCH_SCALAR = 1 << 1,   /* a scalar whose value comes with each run */
    TN_FACT_SOURCE = 1 << 2,          /* made of attributes or seeds only, not of tensors */
    TN_FACT_RANDOM = 1 << 3,          /* random numbers: the same on every device, so engines do not compute them */
    TN_FACT_RESHAPE = 1 << 4,         /* a view of the elements in order, with other extents */
    TN_FACT_EXTENTS = 1 << 5,         /* its integer attributes are the extents of its result */
    TN_FACT_RAW_STRIDES = 1 << 6,     /* a view by strides: its index cannot be mapped to its input's */
    TN_FACT_COPY = 1 << 7,            /* copies its input into contiguous memory */
    TN_FACT_CONCAT = 1 << 8,          /* joins its inputs along dim i[0] */
    TN_FACT_TAKE = 1 << 9,            /* copies rows that an index chooses */
    TN_FACT_CAST = 1 << 10,           /* only the dtype changes */
    TN_FACT_ADD = 1 << 11,            /* x + y: a product can start from y */
    TN_FACT_DIV = 1 << 12,            /* x / y: y is often an element count, which differs with each shape */
    TN_FACT_INT_PRODUCT = 1 << 13,    /* a matrix product of integers that the CPU has a kernel for */
    TN_FACT_WIDE_PRODUCT = 1 << 14,   /* a matrix product whose result is wider than its inputs */
    TN_FACT_VENDOR_PRODUCT = 1 << 15, /* a matrix product that vendors' libraries compute */
    TN_FACT_WEIGHT_FIRST = 1 << 16,   /* a matrix product whose second operand is [n, k], as weights are */
    TN_FACT_SORTS = 1 << 17,          /* its composition sorts, which is slow on devices that are processors */
    TN_FACT_GATE = 1 << 21,           /* a view that is computed after its second input: recomputing begins there */
    TN_FACT_EXCHANGE = 1 << 22,       /* with other processes: runs as early as it can */
    TN_FACT_WHOLE = 1 << 23,          /* gathered from other processes: computed just before each use, and not kept */
    TN_FACT_CONV_FORWARD = 1 << 18,
    TN_FACT_CONV_DGRAD = 1 << 19,
    TN_FACT_CONV_WGRAD = 1 << 20,
};

#define TN_GIVES(dtype) (1 + (dtype))

/* Code of an op. Which fields an op needs follows from its kind and class: docs/new-op.md. */
typedef struct tn_op_impl {
    tn_op_class class_;
    uint32_t facts;       /* TN_FACT_… */
    bool promote;         /* inputs are cast to their common dtype first (PyTorch's rules) */
    bool varies;          /* its float may come with each run: a number (plan/values.c) */
    bool to_float;        /* integer inputs are cast to f32 (exp, div …) */
    uint8_t promote_from; /* first input that promotion touches: 1 for where(condition, x, y) */
    /* bit i: input i may be quantised in blocks (tn_dtype_is_quantized) */
    uint8_t quantized;
    /* Its steps are exact in f16 and bf16, or products whose kernels take these: computed as it stands. Any other
     * composition and gradient is computed in f32 and rounded once (plan/passes.h). */
    bool keeps_half;
    uint8_t reduce;     /* TN_REDUCTION, TN_SCANNING: a kir_reduce */
    uint8_t gives;      /* TN_GIVES(dtype): the result's dtype; 0: infer() sets it */
    uint8_t contiguous; /* bit i: input i, if present, must be contiguous */
    tn_status (*infer)(tn_infer *c);
    tn_node *(*compose)(tn_build *b, const tn_node *n); /* TN_NATIVE, TN_REDUCTION: plan/values.c */
    /* grads[i] = d/d in[i] given dy; NULL entries: no gradient. grads is preset to NULLs. Only
     * inputs with TN_NODE_GRAD count. */
    void (*grad)(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads);
    tn_node *(*grad_first)(tn_build *b, const tn_node *n, tn_node *dy); /* instead, if only in[0] has one: grads[0] */
    kir_val (*lower)(tn_lower *lw, const tn_node *n, const kir_aff *at);
    int (*loops)(const tn_node *n, int64_t extent[TN_MAX_RANK]); /* TN_REDUCTION: the loop space; returns its rank */
    void (*reference)(const tn_reference *r);                    /* kernel ops */
    /* Element-wise ops of one or two operands: their f64 definition, instead of `reference`. */
    double (*define_one)(double x);
    double (*define_two)(double x, double y);
    bool zero_by_zero;   /* integers: the result is 0 where the second operand is 0 */
    uint8_t instruction; /* the kir_op or kir_round of a `lower` that several ops share */
    const char *cases;   /* inputs for the generated tests: docs/new-op.md has the language */
    double flops;        /* cost an output element; 0 for movement */
} tn_op_impl;

/* What TN_AUTOCAST casts an op's floating point inputs to: nothing (promotion decides), the low precision, or f32.
 * Source: PyTorch's lists, ATen's autocast_mode. */
typedef enum tn_autocast_class { TN_AUTOCAST_NONE, TN_AUTOCAST_LOW, TN_AUTOCAST_F32 } tn_autocast_class;

typedef struct tn_op_row {
    const char *name;
    tn_op_kind kind;
    const char *takes; /* in PyTorch's style: "(Tensor x, int dim, *, float eps=0.0)" */
    const char *onnx;  /* operator names, comma separated; "" if none */
    const tn_op_impl *impl;
    tn_autocast_class autocast;
} tn_op_row;

extern const tn_op_row tn_op_rows[]; /* by tn_op_id */
static inline const tn_op_row *tn_op(int id) { return &tn_op_rows[id]; }
static inline bool tn_op_has_reference(const tn_op_row *row) {
    return row->impl->reference || row->impl->define_one || row->impl->define_two;
}
static inline bool tn_op_has_grad(const tn_op_row *row) { return row->impl->grad || row->impl->grad_first; }
/* The facts of a node's op; none for data and error nodes. */
static inline uint32_t tn_op_facts(const tn_node *n) { return n->op == TN_OP_NONE ? 0 : tn_op(n->op)->impl->facts; }
static inline bool tn_op_has(const tn_node *n, uint32_t facts) { return (tn_op_facts(n) & facts) != 0; }
int tn_op_count(void);

/* ---- lowering: what an op's `lower` gets and calls --------------------------------------------------------------- */

/* A weight that is quantised in blocks, in its parts: u a whole number (I32), s and t f32; its value is s·u + t. t is
 * KIR_NONE in formats without a minimum. */
typedef struct tn_quant {
    kir_val u, s, t;
} tn_quant;

/* The planner's side of lowering (plan/lower.c). */
typedef struct tn_lower_calls {
    kir_val (*at)(tn_lower *lw, const tn_node *node, const kir_aff *at);
    kir_val (*in)(tn_lower *lw, const tn_node *n, int i, const kir_aff *at);
    tn_quant (*quant_at)(tn_lower *lw, const tn_node *node, const kir_aff *at, int by);
} tn_lower_calls;

struct tn_lower {
    kir_builder *kb;
    const tn_lower_calls *calls;
    kir_val mask; /* loads emitted now happen only where this holds; KIR_NONE: everywhere */
    void *group;  /* the planner's */
    bool sized;   /* a computed index is scaled by a number of the launch, not of the structure */
};

/* The value of `node` at an index of its own (rank entries). */
static inline kir_val tn_lower_at(tn_lower *lw, const tn_node *node, const kir_aff *at) {
    return lw->calls->at(lw, node, at);
}
/* The value of n's input i at the index that corresponds, under broadcasting, to index `at` of n. */
static inline kir_val tn_lower_in(tn_lower *lw, const tn_node *n, int i, const kir_aff *at) {
    return lw->calls->in(lw, n, i, at);
}
/* Element `first` + `by` of a quantised weight. `at` leads to `first`, of which sixteen or more follow in one block;
 * 0 <= by. */
static inline tn_quant tn_lower_quant_at(tn_lower *lw, const tn_node *node, const kir_aff *at, int by) {
    return lw->calls->quant_at(lw, node, at, by);
}

/* Index arithmetic (shape.c); of whole indices, and of their computed parts, which may be KIR_NONE. */
kir_val tn_dyn_add(tn_lower *lw, kir_val a, kir_val b);
kir_val tn_dyn_scale(tn_lower *lw, kir_val dyn, int64_t k);
kir_aff tn_aff_add(tn_lower *lw, const kir_aff *a, const kir_aff *b);
kir_aff tn_aff_scale(tn_lower *lw, const kir_aff *a, int64_t k);
/* As tn_lower_at, with loads masked by `mask` as well (padding and gathering know which masks they need). */
kir_val tn_lower_at_masked(tn_lower *lw, const tn_node *node, const kir_aff *at, kir_val mask);
/* For reductions over the dims attribute: whether dim d of the input is one of them; loops(); and lower() = the input's
 * value at the result's and loops' index. */
bool tn_is_reduced(const tn_node *r, int d);
int tn_loops_over_dims(const tn_node *n, int64_t extent[TN_MAX_RANK]);
kir_val tn_lower_reduced(tn_lower *lw, const tn_node *n, const kir_aff *at);

/* ---- shape rules that ops share (shape.c) ------------------------------------------------------------------------ */

tn_status tn_infer_same(tn_infer *c);          /* shape and dtype of in[0] */
tn_status tn_infer_broadcast(tn_infer *c);     /* all inputs broadcast together; dtype of in[0] (after promotion) */
tn_status tn_infer_compare(tn_infer *c);       /* the same, BOOL */
tn_status tn_infer_float(tn_infer *c);         /* broadcast; TN_ERR_DTYPE unless in[0] is floating point */
tn_status tn_infer_not_bool(tn_infer *c);      /* broadcast; TN_ERR_DTYPE if in[0] is bool */
tn_status tn_infer_counted(const tn_infer *c); /* refuses a shape whose bytes, in any dtype, 63 bits do not count */
tn_status tn_infer_reduce(tn_infer *c);        /* attributes: dims list, keepdim; an empty list means all dims */
tn_dtype tn_promote_with(tn_dtype so_far, const tn_node *first, const tn_node *next); /* the same for a growing list */
/* Are all shapes, symbols included, the same as the first's, as they mostly are, or those of numbers? */
static inline bool tn_all_alike(tn_node *const *in, int n_in) {
    const tn_node *first = in[0];
    for (int i = 1; i < n_in; i++) {
        const tn_node *x = in[i];
        if (!x || x == first || x->rank == 0) continue;
        if (x->rank != first->rank) return false;
        for (int d = 0; d < first->rank; d++)
            if (x->shape[d] != first->shape[d] || x->symbol[d] != first->symbol[d]) return false;
    }
    return true;
}
/* "[2, 3]" into text; returns text. For messages. */
const char *tn_shape_text(const tn_node *n, char *text, size_t size);
/* Can a tensor of the dtype be filled with v? Floating types and bool take every number; an integer type takes what is
 * in its range without its fraction, and no NaN. */
bool tn_dtype_holds(tn_dtype t, double v);
/* TN_ERR_ARGUMENT, as torch.full has it, if t does not hold the argument `what`, which is v. */
tn_status tn_need_held(const tn_infer *c, tn_dtype t, const char *what, double v);
/* The bounds of a clamp of dtype t, each of which may lie outside it as long as some number is on their inner side. */
tn_status tn_need_bounds(const tn_infer *c, tn_dtype t, double min, double max);
tn_status tn_need_float(const tn_infer *c, int input);                       /* else TN_ERR_DTYPE */
tn_status tn_refuse_dtype(const tn_infer *c, int input, const char *wanted); /* the error: "must be `wanted`" */
/* A dim argument in [-rank, rank) made ≥ 0; TN_ERR_SHAPE otherwise, naming op and range. */
tn_status tn_infer_dim(const tn_infer *c, int64_t dim, int rank, int64_t *out);

/* ---- storages, handles (tensor.c) -------------------------------------------------------------------------------- */

/* What views of one tensor share: the current value and how often it was replaced. */
typedef struct tn_storage {
    _Atomic int32_t refs;
    tn_node *value; /* a non-view node */
    uint64_t id;    /* given once */
    uint32_t version;
    bool state; /* value is kept at home's address */
    tn_buffer *home;
    tn_node *resident;               /* the node whose value lies at home now; value, unless a write is pending */
    tn_grad_slot *slot;              /* when it is a leaf that requires gradients */
    tn_grad_slot *watched;           /* of other nodes: a list */
    struct tn_storage *next_written; /* recorder's list of states to commit */
    bool in_written;
} tn_storage;

/* What a `tn_tensor *` leads to. The pointer that callers hold is the handle's address with its generation in the low
 * bits. Freeing a handle starts its next generation, and the memory of handles is used for handles only, so one
 * comparison recognises a pointer to a freed handle; a tn_tensor * is never dereferenced without it. Memory whose
 * generations are used up waits until TN_RETIRED_HANDLES others have used up theirs. A stale pointer looks live again
 * after at least TN_RETIRED_HANDLES further handles, as a rule after TN_GENERATIONS times as many (2^20). */
enum { TN_GENERATIONS = 64, TN_RETIRED_HANDLES = 16384 /* 1 MiB of them */ };
typedef struct tn_handle {
    _Alignas(TN_GENERATIONS) _Atomic int32_t refs; /* and so as large: all its pointers lead into its own memory */
    uint32_t generation;                           /* 0 … 63; with TN_GENERATIONS added while the handle is free */
    tn_node *node;                                 /* value at `version` of the storage */
    _Atomic(tn_storage *) storage;                 /* NULL until somebody views or writes it */
    uint32_t version;
    int32_t slot;           /* place among its thread's scoped handles, -1 outside */
    struct tn_handle *base; /* a view's parent handle (retained); its op and attributes are node's */
} tn_handle;
static inline tn_handle *tn_handle_of(const tn_tensor *t) {
    return (tn_handle *)((uintptr_t)t & ~(uintptr_t)(TN_GENERATIONS - 1));
}
static inline bool tn_tensor_is_live(const tn_tensor *t) { /* t is not NULL */
    const tn_handle *h = tn_handle_of(t);
    return (uintptr_t)h + h->generation == (uintptr_t)t;
}
/* TN_OK for a live tensor; else TN_ERR_ARGUMENT: "what is NULL", or "what was freed before this call". */
tn_status tn_tensor_missing(const tn_tensor *t, const char *what);
static inline tn_status tn_need_tensor(const tn_tensor *t, const char *what) {
    return t && tn_tensor_is_live(t) ? TN_OK : tn_tensor_missing(t, what);
}

enum { TN_MAX_VIEW_CHAIN = 64 }; /* views of views of views: what a write has to make anew at most */

/* First attribute of a runtime scalar: what its value is. Launches of a captured graph set the seed and the random
 * counters anew: each uses up i[2] numbers. */
enum { TN_SCALAR_FLOAT = 0, TN_SCALAR_INT = 1, TN_SCALAR_RANDOM = 2, TN_SCALAR_SEED = 3 };

tn_tensor *tn_tensor_new(tn_node *n); /* takes the reference; never NULL (a shared out-of-memory tensor instead) */
tn_tensor *tn_tensor_unscoped(tn_tensor *t); /* takes t out of all scopes (what the library keeps itself); returns t */
/* the current value, borrowed; views are made anew when the base was written */
tn_node *tn_tensor_node(const tn_tensor *t);
tn_tensor *tn_tensor_error(tn_status status); /* an error tensor with this thread's error text and the caller's line */
tn_storage *tn_tensor_storage(const tn_tensor *t); /* made when there is none yet; NULL when memory is out */
void tn_handles_retire(void);                      /* thread exit: other threads may use its spare handles */
void tn_handles_drop(void); /* frees all spare handles: pointers to them are not recognised any more (leak tests) */
/* What generated op functions call. inputs may hold NULL for optional ones. */
tn_tensor *tn_record(int op, const tn_tensor *const *in, int n_in, const tn_attrs *attrs);
tn_tensor *tn_record_inplace(tn_tensor *dst, int op, const tn_tensor *const *in, int n_in, const tn_attrs *attrs);
/* What a failed in-place op returns: the thread's own error handle, with the thread's last error. The failure counts as
 * unreported until tn_refusal_report, or tn_status_of of that handle. */
tn_tensor *tn_refuse_write(tn_status status);
/* Supplied by ops/: where an op has its indices and what they count (ops/op_indexing.c); counts is 0 for ops without.
 * */
typedef struct tn_index_rule {
    uint8_t counts, input;
} tn_index_rule;
extern const tn_index_rule tn_index_rules[];
static inline bool tn_takes_indices(int op) { return tn_index_rules[op].counts != 0; }
/* TN_ERR_ARGUMENT if an index of the new node n leads outside and the host has the indices. If they are computed later,
 * or may be others at a launch, n reads them through a view that has a check. */
tn_status tn_check_indices(tn_node *n);
tn_status tn_refusal_report(void); /* the unreported failure, once; TN_OK if there is none */

/* ---- the recorder (node.c), one a thread ------------------------------------------------------------------------- */

enum { TN_MAX_PENDING = 4096 }; /* nodes recorded before they are flushed unasked */
enum { TN_MOST_RETAINED = 64 }; /* devices on which one thread has something recorded */

/* An operation at a line of the caller's, and what its attributes have done to plans so far. */
typedef struct tn_site {
    const char *file;
    int32_t line;
    uint16_t op;
    bool varies; /* its numbers, or its offset, come with each run */
    bool stays;  /* … never, for a kernel is chosen by them */
    bool warned;
    int misses; /* of plans, for which it alone was to blame and could not vary */
} tn_site;

typedef struct tn_recorder {
    tn_node **pending; /* topological order; NULL where a node died */
    size_t count, capacity;
    tn_storage *written; /* states whose value is pending */
    bool no_grad;
    bool recomputes;  /* tn_set_auto_recompute */
    int32_t origin;   /* of the nodes recorded now */
    uint8_t autocast; /* the low precision of TN_AUTOCAST, a tn_dtype; TN_F32: off */
    bool capturing;
    const char *captured_write; /* an op that wrote, in a capture, to a tensor from before that is no state; or NULL */
    const char *file;           /* caller's line, from tn_at */
    int line;
    /* the function that the caller knows, where it stands for other ops: reshape for view; or NULL */
    const char *called;
    int64_t nodes_recorded;
    uint64_t seed, random_offset; /* Philox key and the next free counter */
    uint64_t reseeds;             /* how often they were set by the caller */
    bool seeded;                  /* seed is set: by the caller, or at the first draw */
    size_t limit;                 /* pending nodes at which the next unasked flush happens; at least TN_MAX_PENDING */
    bool planning;                /* nodes made now belong to the planner */
    tn_site *sites;               /* operations of the caller that plans were missed for */
    size_t site_count, site_capacity;
    bool watches;         /* some of them vary */
    bool varying;         /* numbers recorded now belong to an operation that varies */
    bool fixed;           /* the planner met a varying number whose value it must know: no longer one */
    bool differentiating; /* a gradient is being recorded: no unasked flush in its middle */
    bool unasked;         /* this flush is one */
    /* open while something is pending that was recorded there, also when it has no buffers */
    tn_device *retained[TN_MOST_RETAINED];
    int retained_count;
    void *plans; /* the planner's, freed with plans_free */
    void (*plans_free)(void *plans);
} tn_recorder;
tn_recorder *tn_recorder_here(void);     /* NULL only when memory is out */
int32_t tn_recompute_regions(int count); /* the first of so many new regions: tn_node.origin */
tn_recorder *tn_random_here(void);       /* the same with its seed set (ops/op_create.c) */
/* A composition depends on this number's value: it may not vary, now and at its line from now on. */
void tn_node_fix(tn_node *n);

/* ---- supplied by plan/ ------------------------------------------------------------------------------------------- */

/* What the recorder needs of the layers above it. A program that links tensor/ without plan/ defines its own. */
typedef struct tn_evaluator {
    /* Gives buffers to the nodes of `targets`, to every pending node with live handles, and to states. */
    tn_status (*flush)(tn_recorder *r, tn_node *const *targets, int count);
    tn_status (*expand)(tn_node *n);                                /* makes n->expansion (plan/passes.h) */
    tn_tensor *(*to_device)(const tn_tensor *t, tn_device *device); /* as tn_to_device */
    /* Evaluates the nodes and fails for the first with a NaN or infinity (plan/anomaly.c); TN_OK if that is off. */
    tn_status (*find_anomaly)(tn_node *const *nodes, size_t count);
} tn_evaluator;
extern const tn_evaluator tn_graph_evaluator;

/* ==== the recorder, for the planner =============================================================================== */

tn_node *tn_node_number(double v);              /* a rank-0 f32 that does not raise dtypes; the caller's reference */
tn_node *tn_node_cast(tn_node *x, tn_dtype to); /* a number keeps all its digits; the caller's reference */
bool tn_node_computed(const tn_node *n);        /* its root has a buffer */
bool tn_conv_in_f32(const tn_node *n);          /* halves on a CPU that multiplies none: converted once, not a tap */
void tn_node_exchange_input(tn_node *n, int input, tn_node *by); /* retains `by` */
void tn_node_forget_inputs(tn_node *n); /* a computed node without gradient needs its history no more */
/* A reference has gone, and so many are left: is it needed yet? listed: the node was pending before. */
void tn_node_after_release(tn_node *n, int32_t left, bool listed);
/* A handle's, storage's or build's reference goes. What it left may be another thread's to free at once, so the node is
 * looked at before. */
static inline void tn_node_unpin(tn_node *n) {
    bool listed = n->recorder != NULL;
    tn_node_count(n, &n->handles, -1);
    int32_t left = tn_node_count(n, &n->refs, -1) - 1;
    if (left < 2 || !listed) tn_node_after_release(n, left, listed);
}
void tn_strides_contiguous(const int64_t *shape, int rank, int64_t *stride);
/* Whether they are those, but for dimensions of size 1. */
bool tn_strides_are_contiguous(const int64_t *shape, int rank, const int64_t *stride);
static inline bool tn_same_shape(const tn_node *a, const tn_node *b) {
    return a->rank == b->rank && memcmp(a->shape, b->shape, (size_t)a->rank * sizeof *a->shape) == 0;
}
void tn_grad_slot_release(tn_grad_slot *s);
void tn_grad_slot_close(tn_grad_slot *s); /* the same by the leaf's storage, whose gradient goes with it */
extern _Atomic int tn_anomaly_mode;       /* a tn_anomaly (autograd.h); -1: TRUNNION_DETECT_ANOMALY was not read yet */
/* Between the two a gradient is recorded. No automatic flush happens in between, because half a gradient would turn all
 * that the other half needs into results. A long gradient raises the limit for the following step. begin returns the
 * `before` of end; count: the recorder's at begin. */
bool tn_recorder_begin_gradient(tn_recorder *r);
void tn_recorder_end_gradient(tn_recorder *r, bool before, size_t count);
/* after a flush: gives back the references to leaves that it has in hand */
void tn_recorder_merge_counts(void);
bool tn_node_can_vary(const tn_node *n);                     /* may what it is made with come with each run? */
tn_site *tn_recorder_site(tn_recorder *r, const tn_node *n); /* NULL: none is noted */
void tn_recorder_trim(void); /* frees what it keeps for reuse, and forgets what it learned of the caller's lines */
void tn_recorder_drop(void); /* frees all that this thread's recorder holds (thread exit, leak tests) */
void tn_storage_release(tn_storage *s);
void tn_storage_restore(tn_storage *s); /* a state's pending write is given up: its value is what lies at home */
/* A launch wrote a state in place, without recording. next: the state's new node, whose reference is taken over; the
 * old one is marked as overwritten. NULL: only handles hold the old node, and it stays. */
void tn_storage_moved(tn_storage *s, tn_node *next);
void tn_storage_lost(tn_storage *s, tn_node *error); /* its value is not known; the reference is taken over */

#endif
