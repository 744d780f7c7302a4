/* export.h — what writing a model has in common: export.c walks a recording, export_ops.c says what each op is in ONNX,
 * wire.c makes bytes of it.
 *
 * Failures stick: after one, every function here yields "" or does nothing, and `status` tells. So a writer of an op
 * reads like the formula that it writes. Names belong to the exporter and live as long as it. */
#ifndef TN_ONNX_EXPORT_H
#define TN_ONNX_EXPORT_H

#include "base/base.h"
#include "gen/ops_build.h"
#include "onnx/onnx.h"
#include "plan/plan.h"

/* ---- protobuf (wire.c) ------------------------------------------------------------------------------------------ */

/* Fields appended to a message. What has the value 0 is written too: presence means something in this format. */
void onnx_put_int(tn_str *s, int field, int64_t v);
void onnx_put_float(tn_str *s, int field, float v);
void onnx_put_bytes(tn_str *s, int field, const void *bytes, size_t n);
void onnx_put_text(tn_str *s, int field, const char *text);
void onnx_put_message(tn_str *s, int field, tn_str *message); /* empties the message */
void onnx_put_size(tn_str *s, int field, size_t n);           /* what stands before n bytes of a field */

/* ---- the exporter (export.c) ------------------------------------------------------------------------------------- */

/* A tensor of the file: a leaf of the recording. */
typedef struct onnx_leaf {
    tn_node *node; /* retained */
    const char *name;
    int64_t offset; /* in the file of external data */
} onnx_leaf;

typedef struct onnx_export {
    tn_status status;
    tn_build build;        /* owns what compositions make */
    tn_pointer_map names;  /* node or buffer → number of its name */
    tn_pointer_map made;   /* composed node → number of what it is composed as */
    tn_pointer_map from;   /* node, or an input's buffer → 1 if it is computed from an input of the model, 0 if not */
    size_t first_input;    /* number of its name; the other inputs' follow */
    tn_pointer_map unread; /* name of an input → 1 until a node reads it, then 0 */
    const tn_node *lost;   /* a computed value that became an initializer, and may depend on an input; or NULL */
    tn_node **composed;
    size_t composed_count, composed_capacity;
    char **name;
    size_t name_count, name_capacity;
    int fresh;                        /* names given to values so far */
    const struct onnx_writer *writer; /* of the node that is written */
    const char *widened[4]; /* inputs of the node that is written, cast to what its operator takes; NULL: as they are */
    tn_str nodes, constants, inputs, outputs, attributes, scratch;
    onnx_leaf *leaves;
    size_t leaf_count, leaf_capacity;
    const tn_named_tensor *weights;
    int weight_count;
    int scalar_count;
    const tn_engine_graph *engine; /* leaves are inputs, and a composed op is what the recording computes it as */
    tn_engine_refusal *refusal;    /* then: the operation that has no operator */
    const tn_node *owner;          /* the graph's node that is written, or composed of what is written */
    const char *data_file;         /* file for the leaves' bytes, in the model's folder; NULL: the model itself */
    struct {
        const char *value, *name; /* its extent as a list of one i64, once it is asked for; its name in the file */
        const char *source;       /* an input that has it as its extent `dim`; NULL: none */
        int dim;
    } symbols[TN_SYMBOLS];
} onnx_export;

/* The name of n's value, whose node is written already. */
const char *onnx_of(onnx_export *x, const tn_node *n);

/* Attributes of the node that is emitted next. */
void onnx_attr_int(onnx_export *x, const char *name, int64_t v);
void onnx_attr_float(onnx_export *x, const char *name, double v);
void onnx_attr_text(onnx_export *x, const char *name, const char *text);
void onnx_attr_ints(onnx_export *x, const char *name, const int64_t *v, int count);

/* A node with these inputs ("" where one is left out); returns the name of its output, of two the one asked for. */
const char *onnx_emit_of(onnx_export *x, const char *op, const char *const *in, int n_in);
const char *onnx_emit_nth(onnx_export *x, const char *op, const char *const *in, int n_in, int which, int n_out);
void onnx_emit_all(onnx_export *x, const char *op, const char *const *in, int n_in, const char **out, int n_out);
const char *onnx_emit1(onnx_export *x, const char *op, const char *a);
const char *onnx_emit2(onnx_export *x, const char *op, const char *a, const char *b);
const char *onnx_emit3(onnx_export *x, const char *op, const char *a, const char *b, const char *c);

const char *onnx_write_number(onnx_export *x, double v, tn_dtype dtype); /* rank 0 */
const char *onnx_write_list(onnx_export *x, const int64_t *v, int count);
const char *onnx_write_table(onnx_export *x, const int64_t *v, const int64_t *shape, int rank); /* i64 */
const char *onnx_write_shape(onnx_export *x, const tn_node *n); /* n's extents, those with a symbol read at the run */
const char *onnx_write_cast(onnx_export *x, const char *value, tn_dtype dtype);

/* The graph for an engine, without its inputs: these are called i0, i1, …, runtime scalars s0, …; outputs are in the
 * graph's order. TN_ERR_UNSUPPORTED with all nodes in *why that ONNX has no operator for. A node of the model is called
 * "#12.3" after the number in the recorder of the graph's node that it was made for, and one of its own. */
tn_status onnx_export_graph(const tn_engine_graph *g, tn_str *body, tn_engine_refusal *why);

/* An input of such a graph; constant: its value is given with the session, by name. */
typedef struct onnx_engine_input {
    char name[16];
    tn_dtype dtype;
    int rank;
    int64_t shape[TN_MAX_RANK];
    size_t bytes;
    bool constant;
} onnx_engine_input;
/* Appends it. Quantized tensors are left out: no operator of the graph reads one. */
void onnx_put_engine_input(tn_str *inputs, const onnx_engine_input *in);
/* The model of a graph and its inputs. */
tn_status onnx_engine_model(const tn_str *body, const tn_str *inputs, tn_str *model);
/* The type of elements in the file, TensorProto.DataType. */
int onnx_element_type(tn_dtype dtype);

/* ---- ops (export_ops.c) ------------------------------------------------------------------------------------------ */

typedef struct onnx_writer onnx_writer;
struct onnx_writer {
    uint16_t op; /* tn_op_id */
    const char *onnx;
    const char *(*write)(onnx_export *x, const tn_node *n);
    bool (*fits)(const tn_node *n);                     /* NULL: always; else it is composed where this is false */
    tn_node *(*rewrite)(tn_build *b, const tn_node *n); /* as other ops, where its own code has no composition */
    int with;
};

/* How n is written; NULL: as what it is composed of. */
const onnx_writer *onnx_writer_of(const tn_node *n);
/* n as its writer has it; types that an operator of ONNX lacks are cast before it and back after it. */
const char *onnx_write_node(onnx_export *x, const tn_node *n);
/* n as other ops; NULL if it has no composition. */
tn_node *onnx_composed(tn_build *b, const tn_node *n);

#endif
