/* export.c — writes a recording as an ONNX model.
 *
 * The walk goes from the outputs back to the inputs with an explicit stack, like the planner's (plan/values.c). An op
 * that ONNX has an operator for becomes a node (export_ops.c); any other op is replaced by its composition, down to
 * primitives, so gradients and optimizer steps can be exported, too. Leaves become initializers. A written state
 * becomes an input, whose default is its current value, and an output NAME_out.
 *
 * Exporting computes nothing; the recording can still be evaluated afterwards. Source: onnx.proto and IR.md of the
 * ONNX standard. */
#include "onnx/export.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "cpu/cpu_kernels.h"

enum { IR_VERSION = 10, OPSET = 21 };
static const int64_t MOST_BYTES = INT32_MAX; /* of one protobuf message */

/* Fields of onnx.proto. */
enum { NODE_INPUT = 1, NODE_OUTPUT = 2, NODE_NAME = 3, NODE_OP = 4, NODE_ATTRIBUTE = 5 };
enum { ATTR_NAME = 1, ATTR_F = 2, ATTR_I = 3, ATTR_S = 4, ATTR_INTS = 8, ATTR_TYPE = 20 };
enum { ATTR_IS_FLOAT = 1, ATTR_IS_INT = 2, ATTR_IS_STRING = 3, ATTR_IS_INTS = 7 };
enum { GRAPH_NODE = 1, GRAPH_NAME = 2, GRAPH_INITIALIZER = 5, GRAPH_INPUT = 11, GRAPH_OUTPUT = 12 };
enum { TENSOR_DIMS = 1, TENSOR_TYPE = 2, TENSOR_NAME = 8, TENSOR_RAW = 9, TENSOR_EXTERNAL = 13, TENSOR_LOCATION = 14 };
enum { MODEL_IR = 1, MODEL_PRODUCER = 2, MODEL_GRAPH = 7, MODEL_OPSET = 8 };

/* ---- names ------------------------------------------------------------------------------------------------------- */

static void sticks(onnx_export *x, tn_status s) {
    if (x->status == TN_OK) x->status = s;
}

static const char *onnx_name(onnx_export *x, const char *format, ...) {
    tn_str s = {0};
    va_list args;
    char text[256];
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    tn_str_add(&s, "%s", text);
    tn_status status =
        s.failed ? TN_ERR_MEMORY : tn_mem_grow(&x->name, &x->name_capacity, x->name_count + 1, sizeof *x->name);
    sticks(x, status);
    if (x->status != TN_OK) {
        tn_str_free(&s);
        return "";
    }
    return x->name[x->name_count++] = s.text;
}

/* The last name given is that of what `key` stands for. */
static void name_is(onnx_export *x, const void *key, const char *name) {
    for (size_t i = x->name_count; i-- > 0 && x->status == TN_OK;)
        if (x->name[i] == name) {
            sticks(x, tn_map_put(&x->names, key, (int32_t)i));
            return;
        }
}

const char *onnx_of(onnx_export *x, const tn_node *n) {
    while (n && x->status == TN_OK) {
        int32_t id = tn_map_find(&x->names, n);
        if (id >= 0) return x->name[id];
        id = tn_map_find(&x->made, n);
        n = id >= 0 ? x->composed[id] : NULL;
    }
    return "";
}

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

static void put_attribute(onnx_export *x, tn_str *a, int type) {
    onnx_put_int(a, ATTR_TYPE, type);
    onnx_put_message(&x->attributes, NODE_ATTRIBUTE, a);
}

void onnx_attr_int(onnx_export *x, const char *name, int64_t v) {
    tn_str a = {0};
    onnx_put_text(&a, ATTR_NAME, name);
    onnx_put_int(&a, ATTR_I, v);
    put_attribute(x, &a, ATTR_IS_INT);
}

void onnx_attr_float(onnx_export *x, const char *name, double v) {
    tn_str a = {0};
    onnx_put_text(&a, ATTR_NAME, name);
    onnx_put_float(&a, ATTR_F, (float)v);
    put_attribute(x, &a, ATTR_IS_FLOAT);
}

void onnx_attr_text(onnx_export *x, const char *name, const char *text) {
    tn_str a = {0};
    onnx_put_text(&a, ATTR_NAME, name);
    onnx_put_text(&a, ATTR_S, text);
    put_attribute(x, &a, ATTR_IS_STRING);
}

void onnx_attr_ints(onnx_export *x, const char *name, const int64_t *v, int count) {
    tn_str a = {0};
    onnx_put_text(&a, ATTR_NAME, name);
    for (int i = 0; i < count; i++)
        onnx_put_int(&a, ATTR_INTS, v[i]);
    put_attribute(x, &a, ATTR_IS_INTS);
}

static void put_node(onnx_export *x, const char *op, const char *const *in, int n_in, const char *const *out,
                     int n_out) {
    tn_str node = {0};
    while (n_in > 0 && !in[n_in - 1][0])
        n_in--;
    for (int i = 0; i < n_in; i++) {
        onnx_put_text(&node, NODE_INPUT, in[i]);
        bool reads = strcmp(op, "Shape") != 0 && tn_map_find(&x->unread, in[i]) == 1;
        if (reads) sticks(x, tn_map_put(&x->unread, in[i], 0));
    }
    for (int i = 0; i < n_out; i++)
        onnx_put_text(&node, NODE_OUTPUT, out[i]);
    if (x->engine && x->owner) {
        char name[32];
        snprintf(name, sizeof name, "#%d.%d", (int)x->owner->index, x->fresh++);
        onnx_put_text(&node, NODE_NAME, name);
    }
    onnx_put_text(&node, NODE_OP, op);
    if (x->attributes.failed) node.failed = true;
    tn_str_addn(&node, tn_str_text(&x->attributes), x->attributes.length);
    tn_str_free(&x->attributes);
    onnx_put_message(&x->nodes, GRAPH_NODE, &node);
    if (x->nodes.failed) sticks(x, TN_ERR_MEMORY);
}

void onnx_emit_all(onnx_export *x, const char *op, const char *const *in, int n_in, const char **out, int n_out) {
    for (int i = 0; i < n_out; i++)
        out[i] = onnx_name(x, "_v%d", x->fresh++);
    put_node(x, op, in, n_in, out, n_out);
}

const char *onnx_emit_nth(onnx_export *x, const char *op, const char *const *in, int n_in, int which, int n_out) {
    const char *out[2];
    onnx_emit_all(x, op, in, n_in, out, n_out);
    return out[which];
}

const char *onnx_emit_of(onnx_export *x, const char *op, const char *const *in, int n_in) {
    return onnx_emit_nth(x, op, in, n_in, 0, 1);
}

const char *onnx_emit1(onnx_export *x, const char *op, const char *a) { return onnx_emit_of(x, op, &a, 1); }

const char *onnx_emit2(onnx_export *x, const char *op, const char *a, const char *b) {
    return onnx_emit_of(x, op, (const char *[]){a, b}, 2);
}

const char *onnx_emit3(onnx_export *x, const char *op, const char *a, const char *b, const char *c) {
    return onnx_emit_of(x, op, (const char *[]){a, b, c}, 3);
}

/* ---- constants --------------------------------------------------------------------------------------------------- */

static onnx_type export_type_of(tn_dtype dtype) {
    return tn_dtype_is_quantized(dtype) ? ONNX_FLOAT : onnx_type_of(dtype);
}

static void put_tensor_head(tn_str *s, const char *name, tn_dtype dtype, const int64_t *shape, int rank) {
    for (int d = 0; d < rank; d++)
        onnx_put_int(s, TENSOR_DIMS, shape[d]);
    onnx_put_int(s, TENSOR_TYPE, export_type_of(dtype));
    onnx_put_text(s, TENSOR_NAME, name);
}

static const char *put_constant(onnx_export *x, const char *name, const void *bytes, tn_dtype dtype,
                                const int64_t *shape, int rank) {
    size_t count = 1;
    for (int d = 0; d < rank; d++)
        count *= (size_t)shape[d];
    tn_str t = {0};
    put_tensor_head(&t, name, dtype, shape, rank);
    onnx_put_bytes(&t, TENSOR_RAW, bytes, count * tn_dtype_size(dtype));
    if (!t.failed && count)
        tn_dtype_little_endian(dtype, t.text + t.length - count * tn_dtype_size(dtype), (int64_t)count);
    onnx_put_message(&x->constants, GRAPH_INITIALIZER, &t);
    if (x->constants.failed) sticks(x, TN_ERR_MEMORY);
    return name;
}

static const char *fresh_constant(onnx_export *x) { return onnx_name(x, "_c%d", x->fresh++); }

const char *onnx_write_table(onnx_export *x, const int64_t *v, const int64_t *shape, int rank) {
    return put_constant(x, fresh_constant(x), v, TN_I64, shape, rank);
}

const char *onnx_write_list(onnx_export *x, const int64_t *v, int count) {
    int64_t n = count;
    return onnx_write_table(x, v, &n, 1);
}

const char *onnx_write_cast(onnx_export *x, const char *value, tn_dtype dtype) {
    onnx_attr_int(x, "to", onnx_type_of(dtype));
    return onnx_emit1(x, "Cast", value);
}

/* What a double cannot be stored as at once is cast where the model runs. */
const char *onnx_write_number(onnx_export *x, double v, tn_dtype dtype) {
    float f = (float)v;
    bool whole = !tn_dtype_is_float(dtype);
    int64_t i = !whole || v != v ? 0 : v >= 0x1p63 ? INT64_MAX : v < -0x1p63 ? INT64_MIN : (int64_t)v;
    if (dtype == TN_F32) return put_constant(x, fresh_constant(x), &f, TN_F32, NULL, 0);
    if (dtype == TN_F64) return put_constant(x, fresh_constant(x), &v, TN_F64, NULL, 0);
    if (!whole) return onnx_write_cast(x, put_constant(x, fresh_constant(x), &f, TN_F32, NULL, 0), dtype);
    const char *value = put_constant(x, fresh_constant(x), &i, TN_I64, NULL, 0);
    return dtype == TN_I64 ? value : onnx_write_cast(x, value, dtype);
}

/* An extent with a symbol is read from the input that has it. */
static const char *symbol_value(onnx_export *x, int symbol) {
    if (x->symbols[symbol].value) return x->symbols[symbol].value;
    onnx_attr_int(x, "start", x->symbols[symbol].dim);
    onnx_attr_int(x, "end", x->symbols[symbol].dim + 1);
    return x->symbols[symbol].value = onnx_emit1(x, "Shape", x->symbols[symbol].source);
}

/* Is symbol s that of n's extent d, or a part of it? */
static bool has_symbol(const tn_node *n, int d, int s) {
    int symbol = n->symbol[d];
    return symbol & TN_SYMBOL_SUM ? symbol >> s & 1 : symbol == s + 1;
}

static bool varies(const onnx_export *x, const tn_node *n, int d) {
    bool known = n->symbol[d] != 0;
    for (int s = 0; s < TN_SYMBOLS; s++)
        known &= !has_symbol(n, d, s) || x->symbols[s].source;
    return known;
}

static const char *extent_value(onnx_export *x, const tn_node *n, int d) {
    const char *value = NULL;
    for (int s = 0; s < TN_SYMBOLS; s++) {
        if (!has_symbol(n, d, s)) continue;
        const char *part = symbol_value(x, s);
        value = value ? onnx_emit2(x, "Add", value, part) : part;
    }
    return value;
}

static void put_extent_name(const onnx_export *x, tn_str *dim, const tn_node *n, int d) {
    tn_str name = {0};
    for (int s = 0; s < TN_SYMBOLS; s++)
        if (has_symbol(n, d, s)) tn_str_add(&name, name.length ? " + %s" : "%s", x->symbols[s].name);
    onnx_put_text(dim, 2, tn_str_text(&name));
    dim->failed |= name.failed;
    tn_str_free(&name);
}

const char *onnx_write_shape(onnx_export *x, const tn_node *n) {
    const char *parts[TN_MAX_RANK];
    bool any = false;
    for (int d = 0; d < n->rank; d++)
        any |= varies(x, n, d);
    if (!any) return onnx_write_list(x, n->shape, n->rank);
    for (int d = 0; d < n->rank; d++)
        parts[d] = varies(x, n, d) ? extent_value(x, n, d) : onnx_write_list(x, &n->shape[d], 1);
    if (n->rank == 1) return parts[0];
    onnx_attr_int(x, "axis", 0);
    return onnx_emit_of(x, "Concat", parts, n->rank);
}

/* ---- inputs and leaves ------------------------------------------------------------------------------------------- */

/* Field `field` of `to`: a tensor of this name and type; empties `shape`. */
static void put_tensor_info(tn_str *to, int field, const char *name, tn_dtype dtype, tn_str *shape) {
    enum { INFO_NAME = 1, INFO_TYPE = 2, TYPE_TENSOR = 1, TENSOR_ELEMENT = 1, TENSOR_SHAPE = 2 };
    tn_str tensor = {0}, type = {0}, info = {0};
    onnx_put_int(&tensor, TENSOR_ELEMENT, export_type_of(dtype));
    onnx_put_message(&tensor, TENSOR_SHAPE, shape);
    onnx_put_message(&type, TYPE_TENSOR, &tensor);
    onnx_put_text(&info, INFO_NAME, name);
    onnx_put_message(&info, INFO_TYPE, &type);
    onnx_put_message(to, field, &info);
}

static void put_extent(tn_str *shape, int64_t extent) {
    enum { DIM_VALUE = 1 };
    tn_str dim = {0};
    onnx_put_int(&dim, DIM_VALUE, extent);
    onnx_put_message(shape, 1, &dim);
}

static void put_info(onnx_export *x, tn_str *to, int field, const char *name, const tn_node *n) {
    tn_str shape = {0};
    for (int d = 0; d < n->rank; d++) {
        tn_str dim = {0};
        if (!varies(x, n, d)) {
            put_extent(&shape, n->shape[d]);
            continue;
        }
        put_extent_name(x, &dim, n, d);
        onnx_put_message(&shape, 1, &dim);
    }
    put_tensor_info(to, field, name, (tn_dtype)n->dtype, &shape);
    if (to->failed) sticks(x, TN_ERR_MEMORY);
}

static void refuse_export(onnx_export *x, const tn_node *n, const char *why) {
    char text[160];
    if (x->status != TN_OK) return;
    if (x->engine) { /* all of them are wanted: it goes on, as if its value were given */
        sticks(x, tn_engine_refuse(x->refusal, x->owner ? x->owner : n));
        if (tn_map_find(&x->names, n) < 0) name_is(x, n, onnx_name(x, "refused"));
        return;
    }
    tn_node_describe(n, text, sizeof text);
    sticks(x, tn_fail(TN_ERR_UNSUPPORTED, "ONNX export: %s: %s", text, why));
}

static void add_leaf(onnx_export *x, const tn_node *n, const char *name) {
    if (export_type_of((tn_dtype)n->dtype) == ONNX_UNDEFINED) refuse_export(x, n, "ONNX has no corresponding type");
    sticks(x, tn_mem_grow(&x->leaves, &x->leaf_capacity, x->leaf_count + 1, sizeof *x->leaves));
    if (x->status != TN_OK) return;
    x->leaves[x->leaf_count++] = (onnx_leaf){.node = tn_node_retain((tn_node *)(uintptr_t)n), .name = name};
}

/* The value of a handle before the recording: for a written state, the contents of its memory. */
static const tn_node *node_before(const tn_tensor *t) {
    if (!tn_tensor_is_live(t)) return tn_tensor_node(t);
    const tn_storage *s = atomic_load_explicit(&tn_handle_of(t)->storage, memory_order_acquire);
    return s && s->state && s->resident && !tn_handle_of(t)->base ? s->resident : tn_tensor_node(t);
}

/* A leaf may have several nodes over one buffer. */
static void known_as(onnx_export *x, const tn_node *n, const char *name) {
    name_is(x, n, name);
    if (n->buffer && !(n->flags & TN_NODE_VIEW)) name_is(x, n->buffer, name);
}

static const char *add_input(onnx_export *x, const tn_node *n, const char *name) {
    name = onnx_name(x, "%s", name);
    if (export_type_of((tn_dtype)n->dtype) == ONNX_UNDEFINED) refuse_export(x, n, "ONNX has no corresponding type");
    for (int d = 0; d < n->rank; d++) {
        int s = n->symbol[d] - 1;
        if (s < 0 || s >= TN_SYMBOLS || x->symbols[s].source) continue;
        x->symbols[s].source = name;
        x->symbols[s].dim = d;
    }
    known_as(x, n, name);
    sticks(x, tn_map_put(&x->from, n, 1));
    if (n->buffer && !(n->flags & TN_NODE_VIEW)) sticks(x, tn_map_put(&x->from, n->buffer, 1));
    put_info(x, &x->inputs, GRAPH_INPUT, name, n);
    return name;
}

enum { MOST_NAME = 200 };

/* May a caller use it? Those that are made here begin with _. */
static bool is_name(const char *name) {
    return name && name[0] && name[0] != '_' && strnlen(name, MOST_NAME + 1) <= MOST_NAME;
}

static bool is_taken(const onnx_export *x, const char *name) {
    for (size_t i = 0; i < x->name_count; i++)
        if (!strcmp(x->name[i], name)) return true;
    return false;
}

/* NULL if no name can be used. */
static const char *weight_name(const onnx_export *x, const tn_node *n) {
    for (int i = 0; i < x->weight_count && n->buffer; i++) {
        const char *name = x->weights[i].name;
        const tn_node *w = x->weights[i].tensor ? node_before(x->weights[i].tensor) : NULL;
        if (w && w->buffer == n->buffer && is_name(name) && !is_taken(x, name)) return name;
    }
    return NULL;
}

/* root, whose value is known, may have been computed from an input, and its history is gone: nodes that need no
 * gradient lose it when they are evaluated. */
static void note_lost_history(onnx_export *x, const tn_node *root) {
    enum { MOST_TEXT = 256 };
    char text[MOST_TEXT];
    if (root->op == TN_OP_NONE || root->buffer->is_home || !strstr(tn_op(root->op)->takes, "Tensor")) return;
    if (!x->lost) x->lost = root;
    if (!root->buffer->unasked) return;
    tn_node_describe(root, text, sizeof text);
    sticks(x, tn_fail(TN_ERR_STATE,
                      "tn_onnx_export: %s was evaluated before the export, because a recording of more than %d "
                      "operations is evaluated in pieces; record the model between tn_capture_begin and "
                      "tn_capture_end, and export it there",
                      text, TN_MAX_PENDING));
}

static void write_leaf(onnx_export *x, const tn_node *n) {
    if (x->engine) {
        refuse_export(x, n, "its value is not among those that the graph is given");
        return;
    }
    int32_t id = n->buffer ? tn_map_find(&x->names, n->buffer) : -1;
    const tn_node *root = n->flags & TN_NODE_VIEW ? n->root : n;
    if (id >= 0) {
        sticks(x, tn_map_put(&x->names, n, id));
        return;
    }
    if (n->flags & TN_NODE_ERROR) {
        sticks(x, tn_fail(n->status, "%s", n->error));
        return;
    }
    if ((root->flags & TN_NODE_STALE) || !root->buffer) {
        refuse_export(x, n, "its value is no longer available: it was overwritten, or recorded by another thread");
        return;
    }
    note_lost_history(x, root);
    const char *given = weight_name(x, n);
    const char *name = given ? onnx_name(x, "%s", given) : onnx_name(x, "_w%d", x->fresh++);
    known_as(x, n, name);
    add_leaf(x, n, name);
}

/* A number that may differ at each run: an input with a default. */
static void write_runtime_scalar(onnx_export *x, const tn_node *n) {
    float f = (float)n->f[0];
    if (n->i[0] == TN_SCALAR_RANDOM) {
        refuse_export(x, n, "random numbers differ in ONNX; generate them outside and pass them as an input");
        return;
    }
    const char *name = onnx_name(x, "_dial_%d", x->scalar_count++);
    put_constant(x, name, n->i[0] != TN_SCALAR_FLOAT ? (const void *)&n->i[1] : &f, (tn_dtype)n->dtype, NULL, 0);
    name_is(x, n, name);
    put_info(x, &x->inputs, GRAPH_INPUT, name, n);
}

/* ---- the walk ---------------------------------------------------------------------------------------------------- */

typedef struct walk {
    const tn_node **stack, **owners; /* owners: those of a graph for an engine */
    size_t count, capacity, owner_capacity;
} walk;

/* 1 or 0: whether n is computed from an input of the model. -1: an input of n, *unknown, has to be looked at first. */
static int comes_from_input(const onnx_export *x, const tn_node *n, const tn_node **unknown) {
    const tn_node *root = n->flags & TN_NODE_VIEW ? n->root : n;
    if (root->buffer && tn_map_find(&x->from, root->buffer) == 1) return 1;
    bool any = false;
    for (int i = 0; i < n->n_in; i++) {
        int32_t from = n->in[i] ? tn_map_find(&x->from, n->in[i]) : 0;
        if (from < 0) *unknown = n->in[i];
        if (from < 0) return -1;
        any |= from == 1;
    }
    return any;
}

/* Is n computed from an input, as far as its history is known? */
static bool depends_on_input(onnx_export *x, const tn_node *n) {
    walk w = {0};
    const tn_node *next = n;
    while (x->status == TN_OK && tn_map_find(&x->from, n) < 0) {
        if (next) {
            sticks(x, tn_mem_grow(&w.stack, &w.capacity, w.count + 1, sizeof *w.stack));
            if (x->status != TN_OK) break;
            w.stack[w.count++] = next;
            next = NULL;
        }
        int from = comes_from_input(x, w.stack[w.count - 1], &next);
        if (from >= 0) sticks(x, tn_map_put(&x->from, w.stack[--w.count], from));
    }
    tn_mem_free(w.stack);
    return tn_map_find(&x->from, n) == 1;
}

/* A view of computed memory still knows what it is a view of, unless its history was dropped. So do computed values
 * that gradients flow to; the history of those that come from an input of the model is written, and not their value. */
static bool is_leaf(onnx_export *x, const tn_node *n) {
    if (n->op == TN_OP_NONE || (n->flags & TN_NODE_ERROR)) return true;
    if (!tn_node_computed(n) || ((n->flags & TN_NODE_VIEW) && n->n_in > 0)) return false;
    return n->n_in == 0 || x->engine || !depends_on_input(x, n);
}

static bool is_written(const onnx_export *x, const tn_node *n) { return tn_map_find(&x->names, n) >= 0; }

/* Where ONNX Runtime computes something else: integer powers with negative exponents, which it makes of floats;
 * products of no steps, whose result it does not write; and what it rounds more than certification allows. */
static bool differs_there(const tn_node *n) {
    if (n->op == TN_OP_LOG10 || (n->op == TN_OP_TAN && n->dtype == TN_F64)) return true;
    if (n->op == TN_OP_POW) return !tn_dtype_is_float((tn_dtype)n->dtype);
    return n->op == TN_OP_INT_MM && n->in[0]->shape[n->in[0]->rank - 1] == 0;
}

/* Follows compositions to the node that is written. */
static const tn_node *resolve(onnx_export *x, const tn_node *n) {
    enum { MAX_NESTING = 64 };
    for (int depth = 0; x->status == TN_OK; depth++) {
        bool expanded = x->engine && n->expansion && n->op != TN_OP_CLAMP; /* ONNX Runtime fuses Clip */
        if (x->engine && !is_written(x, n) && !is_leaf(x, n) && differs_there(n)) refuse_export(x, n, "it differs");
        if (is_written(x, n) || is_leaf(x, n) || n->op == TN_OP_RUNTIME_SCALAR || (!expanded && onnx_writer_of(n)))
            return n;
        int32_t id = tn_map_find(&x->made, n);
        if (id < 0) {
            tn_node *as = n->expansion ? n->expansion : onnx_composed(&x->build, n);
            sticks(x, x->build.status);
            if (!as || as == n || depth == MAX_NESTING) {
                refuse_export(x, n, "ONNX has no corresponding operator");
                return x->engine ? n : NULL;
            }
            sticks(x, tn_mem_grow(&x->composed, &x->composed_capacity, x->composed_count + 1, sizeof *x->composed));
            if (x->status != TN_OK) break;
            id = (int32_t)x->composed_count;
            x->composed[x->composed_count++] = as;
            sticks(x, tn_map_put(&x->made, n, id));
        }
        n = x->composed[id];
    }
    return NULL;
}

static void push_export(onnx_export *x, walk *w, const tn_node *n) {
    if (!n) return;
    sticks(x, tn_mem_grow(&w->stack, &w->capacity, w->count + 1, sizeof *w->stack));
    sticks(x, tn_mem_grow(&w->owners, &w->owner_capacity, w->count + 1, sizeof *w->owners));
    if (x->status != TN_OK) return;
    w->owners[w->count] = x->engine && tn_engine_graph_has(x->engine, n) ? n : x->owner;
    w->stack[w->count++] = n;
}

static bool inputs_ready(onnx_export *x, walk *w, const tn_node *n) {
    size_t before = w->count;
    for (int k = 0; k < n->n_in; k++) {
        const tn_node *owner = x->owner;
        if (x->engine && n->in[k] && tn_engine_graph_has(x->engine, n->in[k])) x->owner = n->in[k];
        const tn_node *in = n->in[k] ? resolve(x, n->in[k]) : NULL;
        if (in && !is_written(x, in)) push_export(x, w, in);
        x->owner = owner;
    }
    return w->count == before && x->status == TN_OK;
}

static void visit_exported(onnx_export *x, walk *w) {
    const tn_node *n = w->stack[w->count - 1];
    x->owner = w->owners[w->count - 1];
    if (is_written(x, n)) {
        w->count--;
    } else if (is_leaf(x, n)) {
        write_leaf(x, n);
    } else if (n->op == TN_OP_RUNTIME_SCALAR) {
        write_runtime_scalar(x, n);
    } else if (inputs_ready(x, w, n)) {
        name_is(x, n, onnx_write_node(x, n));
    }
}

static const char *write_value(onnx_export *x, const tn_node *n) {
    walk w = {0};
    x->owner = n;
    push_export(x, &w, resolve(x, n));
    while (w.count > 0 && x->status == TN_OK)
        visit_exported(x, &w);
    tn_mem_free_each(w.stack, w.owners);
    return onnx_of(x, n);
}

static void write_output(onnx_export *x, const tn_node *n, const char *name) {
    const char *value = write_value(x, n);
    if (x->status != TN_OK) return;
    put_node(x, "Identity", &value, 1, &name, 1);
    put_info(x, &x->outputs, GRAPH_OUTPUT, name, n);
}

/* ---- states ------------------------------------------------------------------------------------------------------ */

static bool is_pending(const tn_recorder *r, const tn_storage *s) { return s->value->recorder == r && s->resident; }

static void add_states(onnx_export *x, const tn_recorder *r) {
    int unnamed = 0;
    for (const tn_storage *s = r->written; s; s = s->next_written) {
        if (!is_pending(r, s) || is_written(x, s->resident) || tn_map_find(&x->names, s->home) >= 0) continue;
        const char *given = weight_name(x, s->resident);
        char text[32];
        snprintf(text, sizeof text, "_state_%d", unnamed);
        unnamed += given ? 0 : 1;
        add_input(x, s->resident, given ? given : text);
        add_leaf(x, s->resident, onnx_of(x, s->resident));
    }
}

static void write_states(onnx_export *x, const tn_recorder *r) {
    for (const tn_storage *s = r->written; s && x->status == TN_OK; s = s->next_written) {
        if (!is_pending(r, s)) continue;
        const char *name = onnx_of(x, s->resident);
        char text[256];
        snprintf(text, sizeof text, "%s_out", name);
        write_output(x, s->value, onnx_name(x, is_taken(x, text) ? "_%s" : "%s", text));
    }
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

static size_t leaf_bytes(const tn_node *n) {
    return (size_t)tn_node_numel(n) *
           (tn_dtype_is_quantized((tn_dtype)n->dtype) ? sizeof(float) : tn_dtype_size((tn_dtype)n->dtype));
}

static void put_entry(tn_str *tensor, const char *key, const char *value) {
    enum { KEY = 1, VALUE = 2 };
    tn_str entry = {0};
    onnx_put_text(&entry, KEY, key);
    onnx_put_text(&entry, VALUE, value);
    onnx_put_message(tensor, TENSOR_EXTERNAL, &entry);
}

static void put_place(tn_str *tensor, const char *file, int64_t offset, size_t bytes) {
    char number[32];
    put_entry(tensor, "location", file);
    snprintf(number, sizeof number, "%lld", (long long)offset);
    put_entry(tensor, "offset", number);
    snprintf(number, sizeof number, "%zu", bytes);
    put_entry(tensor, "length", number);
    onnx_put_int(tensor, TENSOR_LOCATION, 1);
}

static size_t bytes_inside(const onnx_export *x, const onnx_leaf *l) { return x->data_file ? 0 : leaf_bytes(l->node); }

/* Key and length of the initialiser, and all of it up to its bytes. */
static void leaf_head(const onnx_export *x, const onnx_leaf *l, tn_str *out) {
    tn_str t = {0};
    put_tensor_head(&t, l->name, (tn_dtype)l->node->dtype, l->node->shape, l->node->rank);
    if (x->data_file)
        put_place(&t, x->data_file, l->offset, leaf_bytes(l->node));
    else
        onnx_put_size(&t, TENSOR_RAW, leaf_bytes(l->node));
    onnx_put_size(out, GRAPH_INITIALIZER, t.length + bytes_inside(x, l));
    out->failed |= t.failed;
    tn_str_addn(out, tn_str_text(&t), t.length);
    tn_str_free(&t);
}

/* *out: freed with tn_mem_free; NULL after an error. */
static tn_status read_leaf(const tn_node *n, void **out) {
    tn_dtype dtype = (tn_dtype)n->dtype;
    size_t bytes = tn_dtype_bytes(dtype, tn_node_numel(n));
    tn_tensor *t = tn_tensor_unscoped(tn_tensor_new(tn_node_retain((tn_node *)(uintptr_t)n)));
    void *raw = tn_mem_alloc(bytes), *decoded = NULL;
    tn_status s = raw ? tn_read(t, raw, bytes) : TN_ERR_MEMORY;
    tn_free(t);
    if (s == TN_OK && tn_dtype_is_quantized(dtype)) {
        decoded = tn_mem_alloc(leaf_bytes(n));
        if (decoded)
            tn_decode_blocks(dtype, raw, tn_node_numel(n) / tn_dtype_block(dtype), decoded);
        else
            s = TN_ERR_MEMORY;
    }
    if (s != TN_OK || decoded) tn_mem_free(raw);
    *out = s != TN_OK ? NULL : decoded ? decoded : raw;
    if (s == TN_OK) tn_dtype_little_endian(decoded ? TN_F32 : dtype, *out, tn_node_numel(n));
    return s;
}

static tn_status save_bytes(tn_save *f, const onnx_leaf *l) {
    AUTO_FREE void *bytes = NULL;
    TRY(read_leaf(l->node, &bytes));
    return tn_save_write(f, bytes, leaf_bytes(l->node));
}

static tn_status save_leaf(tn_save *f, const onnx_export *x, const onnx_leaf *l) {
    tn_str head = {0};
    leaf_head(x, l, &head);
    tn_status s = head.failed ? TN_ERR_MEMORY : tn_save_write(f, head.text, head.length);
    tn_str_free(&head);
    return s != TN_OK || x->data_file ? s : save_bytes(f, l);
}

static tn_status save_model(tn_save *f, const onnx_export *x, const tn_str *head) {
    const tn_str *parts[] = {head, &x->nodes, &x->constants, &x->inputs, &x->outputs};
    for (size_t i = 0; i < TN_COUNT(parts); i++)
        TRY(tn_save_write(f, tn_str_text(parts[i]), parts[i]->length));
    for (size_t i = 0; i < x->leaf_count; i++)
        TRY(save_leaf(f, x, &x->leaves[i]));
    return TN_OK;
}

/* Each weight begins at a multiple of this in the file of external data, so that it can be used where it is mapped. */
enum { DATA_ALIGN = 64 };

static tn_status save_data(tn_save *f, const onnx_export *x, TN_UNUSED const tn_str *unused) {
    static const char zeros[DATA_ALIGN];
    int64_t at = 0;
    for (size_t i = 0; i < x->leaf_count; i++) {
        TRY(tn_save_write(f, zeros, (size_t)(x->leaves[i].offset - at)));
        TRY(save_bytes(f, &x->leaves[i]));
        at = x->leaves[i].offset + (int64_t)leaf_bytes(x->leaves[i].node);
    }
    return TN_OK;
}

static void place_leaves(onnx_export *x, const char *data_file) {
    int64_t at = 0;
    x->data_file = data_file;
    for (size_t i = 0; i < x->leaf_count; i++) {
        x->leaves[i].offset = at;
        at = tn_ceil_div(at + (int64_t)leaf_bytes(x->leaves[i].node), DATA_ALIGN) * DATA_ALIGN;
    }
}

/* All that stands before the graph's nodes. Its length counts them and the initialisers. *bytes: of the graph. */
static tn_status model_head(const onnx_export *x, const char *name, tn_str *head, int64_t *bytes) {
    tn_str opset = {0}, graph = {0};
    onnx_put_text(&graph, GRAPH_NAME, name);
    *bytes = (int64_t)(graph.length + x->nodes.length + x->constants.length + x->inputs.length + x->outputs.length);
    for (size_t i = 0; i < x->leaf_count; i++) {
        tn_str leaf = {0};
        leaf_head(x, &x->leaves[i], &leaf);
        *bytes += (int64_t)(leaf.length + bytes_inside(x, &x->leaves[i]));
        head->failed |= leaf.failed;
        tn_str_free(&leaf);
    }
    onnx_put_int(head, MODEL_IR, IR_VERSION);
    onnx_put_text(head, MODEL_PRODUCER, "trunnion");
    onnx_put_text(&opset, 1, "");
    onnx_put_int(&opset, 2, OPSET);
    onnx_put_message(head, MODEL_OPSET, &opset);
    onnx_put_size(head, MODEL_GRAPH, (size_t)*bytes);
    head->failed |= graph.failed;
    tn_str_addn(head, tn_str_text(&graph), graph.length);
    tn_str_free(&graph);
    return head->failed ? TN_ERR_MEMORY : TN_OK;
}

static tn_status save_file(const char *path, const onnx_export *x, const tn_str *head,
                           tn_status (*write)(tn_save *f, const onnx_export *x, const tn_str *head)) {
    tn_save *f = NULL;
    TRY(tn_save_begin(path, &f));
    return tn_save_end(f, write(f, x, head));
}

/* path.data, and what the model calls it: a path without folders. */
static tn_status save_beside(onnx_export *x, const char *path, const char *name, tn_str *head) {
    tn_str data = {0};
    int64_t bytes = 0;
    tn_str_add(&data, "%s.data", path);
    if (data.failed) return TN_ERR_MEMORY;
    const char *slash = strrchr(data.text, '/');
    place_leaves(x, slash ? slash + 1 : data.text);
    tn_str_free(head);
    tn_status s = model_head(x, name, head, &bytes);
    if (s == TN_OK && bytes > MOST_BYTES - 4096)
        s = tn_fail(TN_ERR_UNSUPPORTED,
                    "ONNX export: without its weights the model still has %lld MiB; the limit of a file is 2047 MiB",
                    (long long)(bytes >> 20));
    if (s == TN_OK) s = save_file(data.text, x, head, save_data);
    if (s == TN_OK) s = save_file(path, x, head, save_model);
    tn_str_free(&data);
    return s;
}

static tn_status save_export(onnx_export *x, const char *path, const char *name, bool beside) {
    AUTO_STR tn_str head = {0};
    int64_t bytes = 0;
    TRY(model_head(x, name, &head, &bytes));
    return beside || bytes > MOST_BYTES - 4096 ? save_beside(x, path, name, &head)
                                               : save_file(path, x, &head, save_model);
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

static tn_status check_named(const tn_named_tensor *items, int count, const char *what) {
    if (count < 0 || (count > 0 && !items)) return tn_fail(TN_ERR_ARGUMENT, "tn_onnx_export: %d %s", count, what);
    for (int i = 0; i < count; i++) {
        if (!is_name(items[i].name) || !items[i].tensor)
            return tn_fail(
                TN_ERR_ARGUMENT,
                "tn_onnx_export: %s: entry %d has no tensor, or an invalid name: 1 to %d bytes, not beginning with _",
                what, i, MOST_NAME);
        TRY(tn_status_of(items[i].tensor));
        for (int j = 0; j < i; j++)
            if (!strcmp(items[i].name, items[j].name))
                return tn_fail(TN_ERR_ARGUMENT, "tn_onnx_export: two %s are named '%s'", what, items[i].name);
    }
    return TN_OK;
}

/* An input that nothing reads, and a computed value in the file: the model would ignore the input. */
static void check_inputs_are_read(onnx_export *x, const tn_named_tensor *inputs, int input_count) {
    char text[256];
    for (int i = 0; i < input_count && x->status == TN_OK && x->lost; i++) {
        if (tn_map_find(&x->unread, x->name[x->first_input + (size_t)i]) != 1) continue;
        tn_node_describe(x->lost, text, sizeof text);
        sticks(x, tn_fail(TN_ERR_STATE,
                          "tn_onnx_export: the outputs do not read input '%s', and the value of %s was evaluated "
                          "before the export, so that it would be a constant: export before evaluating what depends "
                          "on an input, or leave the input out",
                          inputs[i].name, text));
    }
}

static void write_all_export(onnx_export *x, const tn_recorder *r, const tn_named_tensor *inputs, int input_count,
                             const tn_named_tensor *outputs, int output_count) {
    for (int i = 0; i < output_count; i++)
        onnx_name(x, "%s", outputs[i].name);
    x->first_input = x->name_count;
    for (int i = 0; i < input_count && x->status == TN_OK; i++) {
        if (is_taken(x, inputs[i].name))
            sticks(x, tn_fail(TN_ERR_ARGUMENT, "tn_onnx_export: '%s' is an input and an output: give it two names",
                              inputs[i].name));
        const char *name = add_input(x, node_before(inputs[i].tensor), inputs[i].name);
        sticks(x, tn_map_put(&x->unread, name, 1));
    }
    add_states(x, r);
    for (int i = 0; i < output_count && x->status == TN_OK; i++) {
        const tn_node *n = tn_tensor_node(outputs[i].tensor);
        if (is_leaf(x, n) && !is_written(x, n))
            sticks(x, tn_fail(TN_ERR_STATE,
                              "tn_onnx_export: output '%s' was already evaluated, so its computation is no longer "
                              "known: export before reading it",
                              outputs[i].name));
        else
            write_output(x, n, outputs[i].name);
    }
    write_states(x, r);
    check_inputs_are_read(x, inputs, input_count);
}

static void export_end(onnx_export *x) {
    tn_build_end(&x->build);
    for (size_t i = 0; i < x->name_count; i++)
        tn_mem_free(x->name[i]);
    for (size_t i = 0; i < x->leaf_count; i++)
        tn_node_release(x->leaves[i].node);
    tn_str *texts[] = {&x->nodes, &x->constants, &x->inputs, &x->outputs, &x->attributes};
    for (size_t i = 0; i < TN_COUNT(texts); i++)
        tn_str_free(texts[i]);
    tn_mem_free_each(x->name, x->leaves, x->composed);
    tn_map_free(&x->names);
    tn_map_free(&x->made);
    tn_map_free(&x->from);
    tn_map_free(&x->unread);
}

int onnx_element_type(tn_dtype dtype) { return (int)export_type_of(dtype); }

/* Block-quantized weights cannot be exported: an op that reads one is refused. */
static void add_engine_input(onnx_export *x, const tn_node *n, const char *name) {
    if (!tn_dtype_is_quantized((tn_dtype)n->dtype)) name_is(x, n, name);
}

/* A node's result is the graph's output itself, under the name that it has: after an Identity, ONNX Runtime 1.32 can
 * lose a value that other nodes read too. What no node makes, or is an output already, gets one after all. */
static void write_engine_output(onnx_export *x, const tn_engine_graph *g, const char **names, int i) {
    const tn_node *n = g->outputs[i];
    const char *value = write_value(x, n);
    bool made = value[0] == '_' && value[1] == 'v';
    for (int k = 0; k < i; k++)
        made &= names[k] != value;
    if (x->status != TN_OK) return;
    names[i] = made ? value : onnx_emit1(x, "Identity", value);
    put_info(x, &x->outputs, GRAPH_OUTPUT, names[i], n);
}

static void write_engine_graph(onnx_export *x, const tn_engine_graph *g) {
    const char **names = tn_mem_zalloc((size_t)g->output_count + 1, sizeof *names);
    if (!names) sticks(x, TN_ERR_MEMORY);
    for (int i = 0; i < g->input_count; i++)
        add_engine_input(x, g->inputs[i], onnx_name(x, "i%d", i));
    for (int i = 0; i < g->scalar_count; i++)
        add_engine_input(x, g->scalars[i], onnx_name(x, "s%d", i));
    for (int i = 0; i < g->output_count && x->status == TN_OK; i++)
        write_engine_output(x, g, names, i);
    tn_mem_free(names);
}

tn_status onnx_export_graph(const tn_engine_graph *g, tn_str *body, tn_engine_refusal *why) {
    onnx_export x = {.engine = g, .refusal = why};
    write_engine_graph(&x, g);
    if (x.status == TN_OK && why->count) x.status = tn_fail(TN_ERR_UNSUPPORTED, "ONNX has no operator for it");
    const tn_str *parts[] = {&x.nodes, &x.constants, &x.outputs};
    for (size_t i = 0; i < TN_COUNT(parts) && x.status == TN_OK; i++)
        tn_str_addn(body, tn_str_text(parts[i]), parts[i]->length);
    export_end(&x);
    return x.status == TN_OK && body->failed ? TN_ERR_MEMORY : x.status;
}

void onnx_put_engine_input(tn_str *graph, const onnx_engine_input *in) {
    static const char NOWHERE[] = "given_with_the_session";
    tn_str shape = {0}, tensor = {0};
    if (tn_dtype_is_quantized(in->dtype)) return;
    for (int d = 0; d < in->rank; d++)
        put_extent(&shape, in->shape[d]);
    if (!in->constant) {
        put_tensor_info(graph, GRAPH_INPUT, in->name, in->dtype, &shape);
        return;
    }
    tn_str_free(&shape);
    put_tensor_head(&tensor, in->name, in->dtype, in->shape, in->rank);
    put_place(&tensor, NOWHERE, 0, in->bytes);
    onnx_put_message(graph, GRAPH_INITIALIZER, &tensor);
}

tn_status onnx_engine_model(const tn_str *body, const tn_str *inputs, tn_str *model) {
    onnx_export x = {.nodes = *body, .inputs = *inputs};
    int64_t bytes = 0;
    TRY(model_head(&x, "graph", model, &bytes));
    if (bytes > MOST_BYTES)
        return tn_fail(TN_ERR_UNSUPPORTED, "the graph takes %lld MiB, one model holds 2047", (long long)(bytes >> 20));
    tn_str_addn(model, tn_str_text(body), body->length);
    tn_str_addn(model, tn_str_text(inputs), inputs->length);
    return model->failed || inputs->failed ? TN_ERR_MEMORY : TN_OK;
}

tn_status tn_onnx_export(const char *path, const tn_named_tensor *inputs, int input_count,
                         const tn_named_tensor *outputs, int output_count, const tn_onnx_export_options *options) {
    static const char *const symbol_names[TN_SYMBOLS] = {"dim0", "dim1", "dim2", "dim3"};
    tn_onnx_export_options o = TN_ONNX_EXPORT_DEFAULTS;
    TRY(tn_options_read(&o, options, "tn_onnx_export", "tn_onnx_export_options o = TN_ONNX_EXPORT_DEFAULTS"));
    TRY(tn_need(path, "tn_onnx_export: the path"));
    TRY(check_named(inputs, input_count, "inputs"));
    TRY(check_named(outputs, output_count, "outputs"));
    if (output_count == 0) return tn_fail(TN_ERR_ARGUMENT, "tn_onnx_export: no outputs given");
    TRY(tn_refusal_report());
    tn_recorder *r = tn_recorder_here();
    if (!r) return TN_ERR_MEMORY;
    onnx_export x = {.weights = o.weights, .weight_count = o.weights ? o.weight_count : 0};
    for (int i = 0; i < TN_SYMBOLS; i++)
        x.symbols[i].name = o.dims[i] ? o.dims[i] : symbol_names[i];
    tn_planner_state before = tn_planner_begin(r, tn_tensor_node(outputs[0].tensor)->device);
    write_all_export(&x, r, inputs, input_count, outputs, output_count);
    tn_status s = x.status == TN_OK ? save_export(&x, path, o.name ? o.name : "graph", o.external_data) : x.status;
    export_end(&x);
    tn_planner_end(r, &before);
    return s;
}
