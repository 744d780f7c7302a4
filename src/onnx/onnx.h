/* onnx.h — ONNX inside: what the reader gives, what a value is, what an operator's row gets; regular expressions.
 *
 * A model is read once: wire.c walks the file's protobuf in its mapping, model.c turns it into the structs below and
 * gives every name of a graph a slot. onnx_run.c walks the nodes in order and calls each operator's row; rows record
 * operations of ops.h, nothing else computes. Weights stay in the mapping.
 *
 * A run that met the same extents before is replayed: values that depend on constants and extents alone ("fixed": what
 * Shape → Gather → Concat → Reshape passes along) are read once and kept with the extents, and what remains is one
 * captured graph. A row that reads a value which is not fixed (a condition, a data-dependent shape) ends that: such
 * models are recorded at each run, and their plans are found again.
 *
 * Types that Trunnion does not compute with live in the next type that holds their values exactly, and the value knows
 * which it is: floats of 8, 6 and 4 bits as f32, 2- and 4-bit integers as i8 and u8. Complex numbers are f32 or f64
 * with a last dim of 2. Source: the ONNX specification, IR.md and Operators.md. */
#ifndef TN_ONNX_H
#define TN_ONNX_H

#include "base/base.h"
#include "trunnion/onnx.h"
#include "trunnion/ops.h"

/* ---- the file (wire.c, model.c) ---------------------------------------------------------------------------------- */

typedef struct onnx_text {
    const char *at; /* in the mapping: not terminated; NULL: absent */
    size_t size;
} onnx_text;

/* TensorProto.DataType */
typedef enum onnx_type {
    ONNX_UNDEFINED = 0,
    ONNX_FLOAT,
    ONNX_UINT8,
    ONNX_INT8,
    ONNX_UINT16,
    ONNX_INT16,
    ONNX_INT32,
    ONNX_INT64,
    ONNX_STRING,
    ONNX_BOOL,
    ONNX_FLOAT16,
    ONNX_DOUBLE,
    ONNX_UINT32,
    ONNX_UINT64,
    ONNX_COMPLEX64,
    ONNX_COMPLEX128,
    ONNX_BFLOAT16,
    ONNX_FLOAT8E4M3FN,
    ONNX_FLOAT8E4M3FNUZ,
    ONNX_FLOAT8E5M2,
    ONNX_FLOAT8E5M2FNUZ,
    ONNX_UINT4,
    ONNX_INT4,
    ONNX_FLOAT4E2M1,
    ONNX_FLOAT8E8M0,
    ONNX_UINT2,
    ONNX_INT2,
    ONNX_FLOAT6E2M3,
    ONNX_FLOAT6E3M2,
    ONNX_TYPE_COUNT
} onnx_type;

/* What an operator's row may know of a type (model.c). */
typedef struct onnx_type_row {
    const char *name; /* "FLOAT8E4M3FN" */
    tn_dtype dtype;   /* in which values live */
    uint8_t bits;     /* of an element in the file */
} onnx_type_row;
extern const onnx_type_row onnx_types[ONNX_TYPE_COUNT];

typedef struct onnx_graph onnx_graph;
typedef struct tn_onnx_value onnx_value;

/* AttributeProto.AttributeType; 0: not told */
typedef enum onnx_attribute_kind {
    ONNX_KIND_FLOAT = 1,
    ONNX_KIND_INT,
    ONNX_KIND_STRING,
    ONNX_KIND_TENSOR,
    ONNX_KIND_GRAPH,
    ONNX_KIND_FLOATS,
    ONNX_KIND_INTS,
    ONNX_KIND_STRINGS,
    ONNX_KIND_TENSORS,
    ONNX_KIND_GRAPHS,
    ONNX_KIND_SPARSE,
    ONNX_KIND_SPARSES,
    ONNX_KIND_TYPE,
    ONNX_KIND_TYPES
} onnx_attribute_kind;

typedef struct onnx_attribute {
    onnx_text name, reference; /* reference: of the calling node's attribute, in a model function's body */
    int kind;                  /* onnx_attribute_kind, or what the file says instead */
    int64_t i;
    float f;
    onnx_text s;
    const int64_t *ints;
    const float *floats;
    const onnx_text *strings;
    size_t count;        /* of ints, floats, strings or graphs */
    onnx_value *tensor;  /* also a sparse tensor, made dense */
    onnx_graph **graphs; /* kind GRAPH: one; NULL for all but GRAPH and GRAPHS */
} onnx_attribute;

typedef struct onnx_op_row onnx_op_row;

typedef struct onnx_node {
    onnx_text name, domain, type, overload;
    const onnx_op_row *row;            /* NULL until looked up; a model function has none */
    const struct onnx_function *calls; /* the model's own function; NULL */
    const onnx_attribute *attributes;
    int attribute_count;
    bool refers;             /* an attribute stands for one of the calling node's */
    const int32_t *in, *out; /* slots of the graph; -1: left out */
    int in_count, out_count;
    int opset; /* of the node's domain, as the model imports it */
} onnx_node;

/* ---- values (operator_call.c) ------------------------------------------------------------------------------------ */

typedef tn_onnx_kind onnx_kind;
#define ONNX_TENSOR TN_ONNX_TENSOR
#define ONNX_STRINGS TN_ONNX_STRINGS
#define ONNX_SEQUENCE TN_ONNX_SEQUENCE
#define ONNX_OPTIONAL TN_ONNX_OPTIONAL
#define ONNX_MAP TN_ONNX_MAP

/* What a value depends on; a smaller number means on more. */
enum {
    ONNX_VARIES = 0, /* the numbers of inputs, or chance */
    ONNX_KEYED,      /* constants, extents, and small integer inputs whose numbers tell runs apart */
    ONNX_EXTENTS,    /* constants and the extents of inputs */
    ONNX_CONSTANT    /* constants alone */
};

/* What is worth computing once of a constant that bytes are multiplied with (onnx_quant.c). */
typedef enum onnx_derivation {
    ONNX_SIGNED,      /* its bytes, brought to be i8 */
    ONNX_COLUMN_SUMS, /* of a matrix [k, n] as [1, n]: of its bytes as i8 */
    ONNX_CENTRED,     /* i8 as f32, u8 less 128 as f32 */
    ONNX_FILTERS,     /* [out, c, kernel…] as i8 in the order [out, kernel…, c], as [out, -1] */
    ONNX_FILTER_SUMS, /* … their sums, as [1, out] */
    ONNX_TRANSPOSED,  /* of a matrix */
    ONNX_LSTM_GATES,  /* of a matrix or bias for each direction: its gates in the order of tn_lstm_steps, … */
    ONNX_GRU_GATES,   /* … of tn_gru_steps */
    ONNX_DERIVATIONS
} onnx_derivation;

/* Counted and never changed once it is made, so that sequences and graphs share them. */
struct tn_onnx_value {
    _Atomic int32_t refs;
    onnx_kind kind;
    onnx_type type;    /* of a tensor; ONNX_STRING for strings; of a sequence's items */
    uint8_t fixed;     /* ONNX_VARIES … */
    tn_tensor *tensor; /* ONNX_TENSOR */
    int rank;          /* ONNX_STRINGS: a tensor of text */
    int64_t shape[TN_MAX_RANK];
    onnx_text *strings;     /* each allocated by itself or in the mapping; `owned` tells */
    char *owned;            /* the bytes of all strings, or NULL */
    int64_t count;          /* of strings, of items, of a map's pairs */
    onnx_value **items;     /* a sequence's; an optional's one or none; a map's values */
    onnx_value *keys;       /* a map's: strings, or a tensor of i64 */
    onnx_value *choice;     /* a tensor of ones where its last dim's place is this index, and of zeros; NULL: unknown */
    _Atomic uint8_t finite; /* onnx_math.c: what is known of a constant's numbers */
    onnx_value *derived[ONNX_DERIVATIONS]; /* of a constant; NULL: not asked for yet */
    int64_t spread; /* of a constant: 1 more than a filter's centred bytes add up to without signs; 0: not asked yet */
};

/* Each returns a value with one reference, or NULL with tn_error set. Tensors, keys and the references in `items` are
 * taken over, also on failure; the list of items is copied. */
onnx_value *onnx_value_tensor(tn_tensor *t, onnx_type type);
onnx_value *onnx_value_strings(const onnx_text *strings, const int64_t *shape, int rank); /* copies the text */
onnx_value *onnx_value_sequence(onnx_value *const *items, int64_t count, onnx_type type);
onnx_value *onnx_value_optional(onnx_value *item); /* NULL: empty */
onnx_value *onnx_value_map(onnx_value *keys, onnx_value *const *items, int64_t count);
onnx_value *onnx_value_retain(onnx_value *v);
void onnx_value_release(onnx_value *v);               /* NULL is fine */
#define AUTO_VALUE AUTO_CALL(onnx_value_release_held) /* as AUTO_FREE */
static inline void onnx_value_release_held(onnx_value **v) { onnx_value_release(*v); }
onnx_type onnx_type_of(tn_dtype t);

/* ---- operators (onnx_*.c) ---------------------------------------------------------------------------------------- */

typedef struct onnx_run onnx_run;

/* One node being recorded. Inputs belong to the caller; outputs are given over by onnx_put. A scope stands around the
 * call: tensors that a row makes and does not put are freed. */
typedef struct onnx_call {
    onnx_run *run;
    const onnx_node *node;
    const onnx_op_row *row;
    onnx_value *const *in; /* NULL: left out */
    onnx_value **out;
    int in_count, out_count;
    int opset;
    uint8_t fixed; /* of the outputs: the least of the inputs' */
} onnx_call;

/* One operator, or one that changed its meaning in an opset: `since` is the first that the row is for; of several rows
 * the newest that is not newer than the model's counts. `with`: what a function shared by many rows differs in.
 * Most fit a signature and need no function of their own:
 *   unary   {"Sqrt", 1, onnx_unary, .unary = tn_sqrt}          binary  {"Add", 7, onnx_binary, .binary = tn_add} */
struct onnx_op_row {
    const char *name;
    int since;
    tn_status (*run)(onnx_call *c);
    tn_tensor *(*unary)(const tn_tensor *x);
    tn_tensor *(*binary)(const tn_tensor *x, const tn_tensor *y);
    int with;
    bool moves; /* only moves elements: texts too */
};

/* The tables, one a file, each ended by a row without a name; operator_call.c lists them with their domains. */
extern const onnx_op_row onnx_math_ops[], onnx_shape_ops[], onnx_nn_ops[], onnx_rnn_ops[], onnx_quant_ops[],
    onnx_control_ops[], onnx_sequence_ops[], onnx_text_ops[], onnx_image_ops[], onnx_training_ops[], onnx_ml_ops[],
    onnx_contrib_ops[], onnx_dressed_ops[], onnx_runtime_ops[], onnx_preview_ops[];

extern const onnx_op_row onnx_conv_add; /* of nodes that quant_graph.c makes (onnx_quant.c) */

/* c's row (onnx_text.c). Where an input of a row that moves is a tensor of texts, their numbers move in its place, and
 * the outputs are the texts that these say. */
tn_status onnx_run_row(onnx_call *c);
tn_status onnx_unary(onnx_call *c);
tn_status onnx_binary(onnx_call *c);

/* ---- for the rows' functions (operator_call.c) ------------------------------------------------------------------- */

/* Input i as a tensor that the caller of this must not free; NULL if it was left out. An input that is not a tensor,
 * or that failed, gives an error tensor, which operations pass on. */
const tn_tensor *onnx_in(const onnx_call *c, int i);
bool onnx_has(const onnx_call *c, int i);   /* input i is there */
bool onnx_wants(const onnx_call *c, int k); /* output k is used */
onnx_type onnx_in_type(const onnx_call *c, int i);
/* onnx_in, or NULL where the input is not there. */
static inline const tn_tensor *onnx_optional(const onnx_call *c, int i) {
    return onnx_has(c, i) ? onnx_in(c, i) : NULL;
}

/* Attributes; the default where the node has none. Texts are not terminated. */
int64_t onnx_int(const onnx_call *c, const char *name, int64_t otherwise);
double onnx_float(const onnx_call *c, const char *name, double otherwise);
onnx_text onnx_string(const onnx_call *c, const char *name, const char *otherwise);
const int64_t *onnx_ints(const onnx_call *c, const char *name, int *count); /* NULL and 0 where absent */
const onnx_attribute *onnx_find(const onnx_call *c, const char *name);      /* NULL where absent */
bool onnx_is(onnx_text t, const char *text);

/* The numbers in input i, read on the host: at once where it is fixed, else by computing it (which ends replay).
 * *out: freed with tn_mem_free; NULL and 0 where the input was left out. At most `most`, else TN_ERR_UNSUPPORTED. */
tn_status onnx_read_ints(const onnx_call *c, int i, int64_t **out, int64_t *count, int64_t most);
tn_status onnx_read_floats(const onnx_call *c, int i, double **out, int64_t *count, int64_t most);
/* Whether input i may be read with tn_read, as its numbers are never noted: which ends replay. */
bool onnx_reads_freely(const onnx_call *c, int i);
/* Whether the node is part of a function, whose calls have attributes and constants of their own. */
bool onnx_is_in_function(const onnx_call *c);
/* What `make` makes of this node's attributes, once a model; `drop` frees it with the model. */
tn_status onnx_prepare(const onnx_call *c, tn_status (*make)(const onnx_call *c, void **data), void (*drop)(void *data),
                       const void **out);
/* All numbers of input i, which was not left out, as f32, read as those are. *out: freed with tn_mem_free. */
tn_status onnx_read_f32(const onnx_call *c, int i, float **out);
/* The same for a single number; the default where the input was left out. */
tn_status onnx_read_int(const onnx_call *c, int i, int64_t otherwise, int64_t *out);
tn_status onnx_read_float(const onnx_call *c, int i, double otherwise, double *out);

/* Output k is t, of the type that its dtype names, or of `type`. t is taken over; its failure is returned with the
 * node's name before it. Outputs that nobody wants are freed. */
tn_status onnx_put(onnx_call *c, int k, tn_tensor *t);
tn_status onnx_put_typed(onnx_call *c, int k, tn_tensor *t, onnx_type type);
tn_status onnx_put_value(onnx_call *c, int k, onnx_value *v);
/* The same for what the extents of inputs tell, whatever their numbers are (Shape, Size, EyeLike). */
tn_status onnx_put_fixed(onnx_call *c, int k, tn_tensor *t);
/* Before a put: the outputs depend on chance, or on something else that no input tells. */
void onnx_varies(onnx_call *c);
/* Says that this node cannot be computed, and why: TN_ERR_UNSUPPORTED with the node's name and operator before it. */
tn_status onnx_refuse(const onnx_call *c, const char *format, ...) TN_PRINTF(2, 3);
#define onnx_refuse(...) tn_never_ok(onnx_refuse(__VA_ARGS__))

/* Input i, a constant, stands as `t` from now on, in this run and all later ones. t, made of constants alone, is not
 * taken over. Nothing happens where another node reads that constant too, or where t is large. */
tn_status onnx_keep(onnx_call *c, int i, tn_tensor *t);
/* make(input i); for a constant it is called once and the result cached. Do not free the result. */
const tn_tensor *onnx_derived(const onnx_call *c, int i, onnx_derivation which, tn_tensor *(*make)(const tn_tensor *x));

/* Runs a subgraph (an attribute's) with values for its inputs; outputs have one reference each. Names of the graphs
 * around it are seen inside (onnx_run.c). */
tn_status onnx_call_graph(onnx_call *c, const onnx_graph *g, onnx_value *const *in, int in_count, onnx_value **out,
                          int out_count);

/* ==== regular expressions (onnx_regex.c) ========================================================================== */

typedef struct onnx_regex onnx_regex;

/* Errors: TN_ERR_FORMAT for a pattern that is wrong, TN_ERR_UNSUPPORTED for flags, \p{…}, or one that is too large. */
tn_status onnx_regex_new(onnx_text pattern, onnx_regex **out);
/* Whether the whole text matches. Bytes that are no UTF-8 are characters of their own. */
bool onnx_regex_matches(onnx_regex *r, onnx_text text);
void onnx_regex_free(onnx_regex *r); /* NULL is fine */

#endif
