/* model.h — the structure of a model, as the reader leaves it and the executor walks it; attributes of operators.
 *
 * All that a file says of its structure lies in one arena; texts and weights stay in the mapping. A graph has slots:
 * for its inputs, initialisers and the outputs of its nodes, and one for each value of the graphs around it that is
 * read inside. */
#ifndef TN_MODEL_H
#define TN_MODEL_H

#include <pthread.h>

#include "onnx/onnx.h"

/* What a file may ask for; past these it is refused. */
enum {
    ONNX_MAX_GRAPHS = 16, /* subgraphs inside subgraphs */
    ONNX_MAX_TYPES = 16,  /* sequences of sequences … */
    ONNX_MAX_FRAMES = 48, /* functions and subgraphs that are running, one inside the other */
    ONNX_MAX_NODES = 1 << 20,
    ONNX_MAX_REPLAYS = 8, /* captured graphs that a model keeps */
    ONNX_SMALL_INPUT = 16 /* elements of an integer input whose values may become part of a replay's key */
};
static const int64_t ONNX_MAX_STEPS = (int64_t)1 << 24;     /* nodes that a run walks, those of loops each time */
static const int64_t ONNX_MAX_STRUCTURE = (int64_t)1 << 30; /* bytes of what is made from the file's structure */
static const int64_t ONNX_MAX_FOLDED = (int64_t)64 << 20;   /* bytes of a value of constants that is kept */
static const int64_t ONNX_MAX_KEPT = (int64_t)1 << 30;      /* bytes of weights that stand in another form for good */
static const int64_t ONNX_MAX_DENSE = (int64_t)1 << 28;     /* bytes of a sparse tensor made dense */

/* ---- wire.c ------------------------------------------------------------------------------------------------------ */

/* Memory that lives as long as the model. */
typedef struct onnx_arena {
    struct onnx_chunk *chunks;
    int64_t total;
} onnx_arena;
void *onnx_take(onnx_arena *a, size_t count, size_t size); /* zeroed, NULL with tn_error set; count 0 is fine */
void onnx_arena_free(onnx_arena *a);

enum { ONNX_WIRE_VARINT = 0, ONNX_WIRE_64 = 1, ONNX_WIRE_BYTES = 2, ONNX_WIRE_32 = 5 };

typedef struct onnx_wire {
    const uint8_t *begin, *at, *end;
} onnx_wire;

typedef struct onnx_field {
    uint32_t number;
    int kind;
    uint64_t bits;   /* of a varint, 32 or 64 bits */
    onnx_text bytes; /* of a message, text or packed list */
} onnx_field;

onnx_wire onnx_wire_of(onnx_text message);
/* The next field; false at the end, and after a failure, which *status then is. */
bool onnx_wire_next(onnx_wire *w, onnx_field *f, tn_status *status);
/* How often fields 0 … most occur, with the items of packed varints where `packed` has the field's bit. */
tn_status onnx_wire_count(onnx_text message, int64_t *counts, int most);
/* Calls take(ctx, field) for each field until one fails. */
tn_status onnx_wire_each(onnx_text message, tn_status (*take)(void *ctx, const onnx_field *f), void *ctx);

float onnx_wire_float(const onnx_field *f);

/* Numbers of a repeated field, packed or one by one, gathered over a message. */
typedef struct onnx_numbers {
    uint64_t *at; /* varints, or the bits of floats */
    size_t count, capacity;
} onnx_numbers;
/* kind: how an unpacked item is written (ONNX_WIRE_VARINT, _32, _64). */
tn_status onnx_numbers_add(onnx_numbers *n, const onnx_field *f, int kind);

/* ---- the file and its tensors (onnx_tensor.c) -------------------------------------------------------------------- */

/* Bytes that tensors point into; counted. */
typedef struct onnx_file {
    _Atomic int32_t refs;
    tn_map map;
    const uint8_t *bytes;
    size_t size;
} onnx_file;
tn_status onnx_file_open(const char *path, onnx_file **out);

/* Where a tensor's bytes may lie. */
typedef struct onnx_source {
    onnx_file *file;    /* whose mapping holds what is read; NULL: memory of the caller's, everything is copied */
    const char *folder; /* of external data; NULL if the model has none */
    onnx_file **others; /* files of external data, opened once */
    const char **names;
    size_t other_count, other_capacity, name_capacity;
} onnx_source;
void onnx_source_close(onnx_source *s);

/* Each makes a value out of a message. name (may be NULL): the tensor's. */
tn_status onnx_read_tensor(onnx_source *s, onnx_text message, onnx_value **out, onnx_text *name);
tn_status onnx_read_sparse(onnx_source *s, onnx_text message, onnx_value **out, onnx_text *name);
tn_status onnx_read_sequence(onnx_source *s, onnx_text message, int depth, onnx_value **out);
tn_status onnx_read_optional(onnx_source *s, onnx_text message, int depth, onnx_value **out);
tn_status onnx_read_map(onnx_source *s, onnx_text message, int depth, onnx_value **out);

/* ---- the model (model.c) ----------------------------------------------------------------------------------------- */

/* TypeProto */
typedef struct onnx_declared {
    onnx_kind kind;
    onnx_type type;
    int rank;                       /* -1: unknown */
    int64_t shape[TN_MAX_RANK];     /* -1: unknown */
    const char *dims[TN_MAX_RANK];  /* names of symbolic extents, or NULL */
    const struct onnx_declared *of; /* of a sequence's items, an optional's one, a map's values */
} onnx_declared;

typedef struct onnx_port {
    const char *name;
    int32_t slot;
    const onnx_declared *type; /* NULL: not told */
} onnx_port;

struct onnx_graph {
    onnx_text name;
    onnx_node *nodes;
    bool *folded; /* nodes whose outputs are constants now */
    int node_count;
    onnx_port *inputs, *outputs; /* of the model's own graph without those that have an initialiser, unless
                                  * they are in tn_onnx_options.given: then the initialiser is no constant */
    int input_count, output_count;
    onnx_port *weights; /* initialisers, then what Constant nodes hold; `type` is not told */
    onnx_value **weight_values;
    int weight_count, initial_count;
    int32_t slot_count;
    onnx_text *names;       /* of slots */
    onnx_value **constants; /* of slots, or NULL: initialisers, and what follows from constants alone */
    int32_t *last_use;      /* of slots: the last node that reads it; -1: none; node_count: given out */
    struct slot_pair {
        int32_t from, to; /* slot of the graph around this one, slot here */
    } * captured;
    int captured_count;
};

typedef struct onnx_import {
    onnx_text domain;
    int64_t version;
} onnx_import;

typedef struct onnx_function {
    onnx_text name, domain, overload;
    onnx_graph *body;
    onnx_attribute *defaults;
    int default_count;
    bool resolved;
} onnx_function;

typedef struct onnx_replay onnx_replay;
typedef struct onnx_prepared onnx_prepared; /* what a node computes once per model: operator_call.c */

/* A weight of the model or of a graph inside it. */
typedef struct onnx_weight {
    const char *name, *own, *path; /* as returned; in its graph; with its path */
    onnx_value *value;
} onnx_weight;

struct tn_onnx {
    onnx_arena arena;
    onnx_source source;
    char *copy; /* of a model in memory; NULL: it lies in source.file */
    onnx_import *imports;
    int import_count;
    onnx_function *functions;
    int function_count;
    onnx_graph *graph;
    onnx_weight *weights; /* of all graphs */
    int weight_count;
    onnx_value **values; /* all that graphs and attributes own */
    size_t value_count, value_capacity;
    int64_t kept;                    /* bytes of what onnx_keep has put into graphs */
    pthread_mutex_t lock;            /* of all that runs change: what follows from constants, replays */
    onnx_replay *replays;            /* onnx_run.c */
    onnx_prepared *_Atomic prepared; /* operator_call.c */
    bool is_inert;                   /* operators were not looked up */
    bool is_given;                   /* the caller gives the value of an initializer */
    struct tn_ort_session *session;  /* ONNX Runtime runs the model (engine_model.c); NULL: we do */
    int *session_order;              /* the port after each of its inputs, then of its outputs */
};
/* given: tn_onnx_options.given */
tn_status onnx_model_read(tn_onnx *m, onnx_text message, const char *const *given);
tn_status onnx_model_list_weights(tn_onnx *m); /* model.c: fills m->weights */
/* Finds each node's row or function; TN_ERR_UNSUPPORTED with all that has none, also in *report (may be NULL). */
tn_status onnx_model_resolve(tn_onnx *m, char **report);
/* Replaces operators between DequantizeLinear and QuantizeLinear by operators on bytes (quant_graph.c). */
tn_status onnx_map_quantized(tn_onnx *m, onnx_graph *g);
const onnx_attribute *onnx_node_attribute(const onnx_node *n, const char *name);
/* The attribute that a, one of the node's, stands for; NULL: the calling node and the function have none.
 * (operator_call.c) */
const onnx_attribute *onnx_follow(const onnx_call *c, const onnx_attribute *a);
/* Puts the node's name and operator before the error. (operator_call.c) */
tn_status onnx_at_node(const onnx_node *n, tn_status status);

/* ---- operator_call.c --------------------------------------------------------------------------------------------- */

/* The row for an operator as an opset has it; NULL if unknown. */
const onnx_op_row *onnx_find_row(onnx_text domain, onnx_text type, int64_t opset);
bool onnx_same_domain(onnx_text a, onnx_text b); /* "" is "ai.onnx" */
bool onnx_text_equal(onnx_text a, onnx_text b);

/* ---- operator_call.c, onnx_run.c --------------------------------------------------------------------------------- */

typedef struct onnx_frame onnx_frame;
void onnx_prepared_free(tn_onnx *m);

/* One number list that was read on the host: what a replay's recording reads again. */
typedef struct onnx_memo {
    void *numbers; /* int64_t or double */
    int64_t count;
    bool floats;
} onnx_memo;

struct onnx_run {
    tn_onnx *model;
    onnx_frame *frame;
    int depth;      /* of frames */
    int64_t steps;  /* nodes that were walked */
    bool varied;    /* something was read that is not fixed: no replay */
    bool keyed;     /* something was read that depends on small integer inputs */
    bool capturing; /* reads come from memos */
    onnx_memo *memos;
    size_t memo_count, memo_capacity, memo_next;
    tn_tensor **errors; /* error tensors that onnx_in handed out */
    size_t error_count, error_capacity;
};
struct onnx_frame {
    onnx_frame *outer;
    const onnx_graph *graph;
    onnx_value **slots;
    const onnx_call *function; /* whose attributes references mean; NULL outside model functions */
    const onnx_frame *caller;  /* where that call's node stands */
};
/* v, which is taken over, as a value of another level: itself if this is the only reference. */
onnx_value *onnx_value_as(onnx_value *v, uint8_t level);
/* onnx_run.c; in: values with one reference, which it may exchange */
tn_status onnx_put_level(onnx_call *c, int k, onnx_value *v, uint8_t level);

/* ---- engine_model.c ---------------------------------------------------------------------------------------------- */

bool onnx_engine_is_current(void); /* is the current device the engine that runs models itself? */
/* Opens a session of it, from the file, or where path is NULL from the message. m has its graph. */
tn_status onnx_engine_open(tn_onnx *m, onnx_text message, const char *path);
void onnx_engine_close(tn_onnx *m);
tn_status onnx_engine_run(const tn_onnx *m, onnx_value *const *in, onnx_value **out);

/* ==== attributes of operators ===================================================================================== */

/* The attributes of operators, "Add Sub", from opset `since` on. */
typedef struct onnx_attribute_row {
    const char *names;
    int since;
    const char *attributes;
} onnx_attribute_row;

typedef struct onnx_attribute_table {
    const char *domain;
    const onnx_attribute_row *rows; /* ended by a row without names */
} onnx_attribute_table;
extern const onnx_attribute_table onnx_attribute_tables[];
extern const int onnx_attribute_table_count;

/* One attribute of a row. */
typedef struct onnx_rule {
    onnx_text name;
    int kind; /* AttributeProto.AttributeType */
    bool required;
    onnx_text allowed; /* empty: any value */
} onnx_rule;
/* Takes the next rule off *attributes; false at the end. */
bool onnx_next_rule(const char **attributes, onnx_rule *rule);

/* Checks the attributes that the node itself has; for those that refer to a calling node's, only that they exist.
 * Errors: TN_ERR_FORMAT for an unknown, missing or twofold attribute or one of the wrong kind; TN_ERR_UNSUPPORTED for a
 * value that is not allowed. */
tn_status onnx_check_attributes(const onnx_node *n);
/* The same for a node in a model function, whose references are followed. */
tn_status onnx_check_references(const onnx_call *c);

#endif
