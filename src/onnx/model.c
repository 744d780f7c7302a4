/* model.c — the structure of a model: graphs, nodes, attributes, functions; node order; list of weights.
 *
 * Names are resolved once, while the file is read; after that a node refers to its inputs by slot. A name that a
 * subgraph does not define is looked up in the enclosing graphs and becomes a captured slot of each graph in between.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "onnx/model.h"

/* order[k]: the index of the NodeProto message to read as number k, so that each node follows those whose outputs it
 * reads. TN_ERR_FORMAT names the nodes of a cycle. */
static tn_status order_nodes(const onnx_text *messages, int32_t count, int32_t *order);

bool onnx_text_equal(onnx_text a, onnx_text b) {
    return a.size == b.size && (a.size == 0 || memcmp(a.at, b.at, a.size) == 0);
}

static int shown(onnx_text t) { return (int)tn_min64((int64_t)t.size, 120); }

/* ---- names and slots --------------------------------------------------------------------------------------------- */

/* A graph while it is read. */
typedef struct scope {
    struct scope *outer;
    onnx_text *names;
    int32_t *last_use;
    int32_t *table; /* open addressing: slot + 1 */
    struct slot_pair *captured;
    size_t names_capacity, uses_capacity, captured_capacity, table_size;
    int32_t count, captured_count;
    int32_t node; /* that is being read */
} scope;

typedef struct reader {
    tn_onnx *m;
    const onnx_import *imports;
    int import_count, depth, node_total;
    const char *const *given; /* tn_onnx_options.given */
    scope *scope;
} reader;

static void scope_free(scope *s) { tn_mem_free_each(s->names, s->last_use, s->table, s->captured); }

static size_t table_place(const scope *s, onnx_text name) {
    size_t mask = s->table_size - 1, at = (size_t)tn_hash64(name.at, name.size, 0) & mask;
    while (s->table[at] && !onnx_text_equal(s->names[s->table[at] - 1], name))
        at = (at + 1) & mask;
    return at;
}

static int32_t scope_find(const scope *s, onnx_text name) {
    return s->table_size ? s->table[table_place(s, name)] - 1 : -1;
}

static tn_status grow_table(scope *s) {
    enum { FIRST = 64 };
    size_t size = s->table_size ? 2 * s->table_size : FIRST;
    int32_t *table = tn_mem_zalloc(size, sizeof *table);
    if (!table) return TN_ERR_MEMORY;
    tn_mem_free(s->table);
    s->table = table;
    s->table_size = size;
    for (int32_t i = 0; i < s->count; i++)
        s->table[table_place(s, s->names[i])] = i + 1;
    return TN_OK;
}

static tn_status scope_define(scope *s, onnx_text name, int32_t *slot) {
    if (scope_find(s, name) >= 0)
        return tn_fail(TN_ERR_FORMAT, "two values of a graph are named '%.*s'", shown(name), name.at);
    if (s->count == INT32_MAX - 1) return tn_fail(TN_ERR_FORMAT, "a graph has more than 2^31 values");
    size_t need = (size_t)s->count + 1;
    TRY(tn_mem_reserve(&s->names, &s->names_capacity, need, sizeof *s->names));
    TRY(tn_mem_reserve(&s->last_use, &s->uses_capacity, need, sizeof *s->last_use));
    if (2 * need > s->table_size) TRY(grow_table(s));
    *slot = s->count;
    s->names[s->count] = name;
    s->last_use[s->count++] = -1;
    s->table[table_place(s, name)] = *slot + 1;
    return TN_OK;
}

/* The slot of a name that is read; -1 when no graph has it. Depth: of graphs inside graphs. */
static tn_status scope_use(scope *s, onnx_text name, int32_t *slot) {
    *slot = scope_find(s, name);
    if (*slot < 0 && s->outer) {
        int32_t outside;
        TRY(scope_use(s->outer, name, &outside));
        if (outside < 0) return TN_OK;
        TRY(tn_mem_reserve(&s->captured, &s->captured_capacity, (size_t)s->captured_count + 1, sizeof *s->captured));
        TRY(scope_define(s, name, slot));
        s->captured[s->captured_count++] = (struct slot_pair){outside, *slot};
    }
    if (*slot >= 0 && s->last_use[*slot] < s->node) s->last_use[*slot] = s->node;
    return TN_OK;
}

/* ---- types ------------------------------------------------------------------------------------------------------- */

static char *terminated(onnx_arena *a, onnx_text t) {
    char *copy = onnx_take(a, t.size + 1, 1);
    if (copy && t.size) memcpy(copy, t.at, t.size);
    return copy;
}

/* The content of field `number` of a message, the last if it occurs several times; all zero if it is absent. */
static tn_status onnx_find_field(onnx_text message, uint32_t number, onnx_field *out) {
    onnx_wire w = onnx_wire_of(message);
    onnx_field f;
    tn_status status;
    *out = (onnx_field){0};
    while (onnx_wire_next(&w, &f, &status))
        if (f.number == number) *out = f;
    return status;
}

static tn_status read_dim(onnx_arena *a, onnx_text message, onnx_declared *t, int d) {
    onnx_field value, param;
    TRY(onnx_find_field(message, 1, &value));
    TRY(onnx_find_field(message, 2, &param));
    t->shape[d] = -1;
    if (value.number && value.kind == ONNX_WIRE_VARINT && (int64_t)value.bits >= 0) t->shape[d] = (int64_t)value.bits;
    if (param.bytes.size == 0) return TN_OK;
    t->dims[d] = terminated(a, param.bytes);
    return t->dims[d] ? TN_OK : tn_error_code();
}

static tn_status read_declared_shape(onnx_arena *a, onnx_text message, onnx_declared *t) {
    onnx_wire w = onnx_wire_of(message);
    onnx_field f;
    tn_status status;
    t->rank = 0;
    while (onnx_wire_next(&w, &f, &status)) {
        if (f.number != 1) continue;
        if (t->rank == TN_MAX_RANK) {
            t->rank = -1; /* no tensor has that rank: a node that produces one is refused */
            return TN_OK;
        }
        TRY(read_dim(a, f.bytes, t, t->rank++));
    }
    return status;
}

static tn_status read_type(onnx_arena *a, onnx_text message, int depth, onnx_declared **out);

static tn_status read_tensor_type(onnx_arena *a, onnx_text message, onnx_declared *t) {
    onnx_field type, shape;
    TRY(onnx_find_field(message, 1, &type));
    TRY(onnx_find_field(message, 2, &shape));
    t->type = type.bits < ONNX_TYPE_COUNT ? (onnx_type)type.bits : ONNX_UNDEFINED;
    t->kind = t->type == ONNX_STRING ? ONNX_STRINGS : ONNX_TENSOR;
    return shape.bytes.at ? read_declared_shape(a, shape.bytes, t) : TN_OK;
}

/* TypeProto's kinds: the field, and which field of its message is the type inside. */
static const struct {
    uint32_t field, inside;
    onnx_kind kind;
} compound_types[] = {{4, 1, ONNX_SEQUENCE}, {5, 2, ONNX_MAP}, {9, 1, ONNX_OPTIONAL}};

static tn_status read_compound_type(onnx_arena *a, const onnx_field *f, int depth, onnx_declared *t) {
    for (size_t i = 0; i < TN_COUNT(compound_types); i++) {
        if (compound_types[i].field != f->number) continue;
        onnx_field inside;
        onnx_declared *of;
        TRY(onnx_find_field(f->bytes, compound_types[i].inside, &inside));
        TRY(read_type(a, inside.bytes, depth + 1, &of));
        t->kind = compound_types[i].kind;
        t->of = of;
        t->type = of->type;
    }
    return TN_OK;
}

static tn_status read_type(onnx_arena *a, onnx_text message, int depth, onnx_declared **out) {
    if (depth == ONNX_MAX_TYPES) return tn_fail(TN_ERR_FORMAT, "types are nested more than %d deep", ONNX_MAX_TYPES);
    onnx_declared *t = onnx_take(a, 1, sizeof *t);
    if (!t) return tn_error_code();
    t->rank = -1;
    *out = t;
    onnx_wire w = onnx_wire_of(message);
    onnx_field f;
    tn_status status;
    while (onnx_wire_next(&w, &f, &status)) {
        if (f.number == 1 || f.number == 8)
            TRY(read_tensor_type(a, f.bytes, t));
        else
            TRY(read_compound_type(a, &f, depth, t));
    }
    return status;
}

/* ---- attributes -------------------------------------------------------------------------------------------------- */

static tn_status read_graph(reader *r, onnx_text message, onnx_graph **out);

/* The model frees it. */
static tn_status keep_value(tn_onnx *m, onnx_value *v) {
    tn_status status = tn_mem_reserve(&m->values, &m->value_capacity, m->value_count + 1, sizeof(onnx_value *));
    if (status != TN_OK) {
        onnx_value_release(v);
        return status;
    }
    v->fixed = ONNX_CONSTANT;
    m->values[m->value_count++] = v;
    return TN_OK;
}

enum {
    A_NAME = 1,
    A_F = 2,
    A_I = 3,
    A_S = 4,
    A_T = 5,
    A_G = 6,
    A_FLOATS = 7,
    A_INTS = 8,
    A_STRINGS = 9,
    A_GRAPHS = 11,
    A_TYPE_PROTO = 14,
    A_KIND = 20,
    A_REFERENCE = 21,
    A_SPARSE = 22
};

typedef struct attribute_lists {
    onnx_numbers ints, floats;
    size_t strings, graphs;
} attribute_lists;

static tn_status read_attribute_tensor(reader *r, const onnx_field *f, onnx_attribute *a) {
    onnx_value *v;
    TRY((f->number == A_T ? onnx_read_tensor : onnx_read_sparse)(&r->m->source, f->bytes, &v, NULL));
    a->tensor = v;
    return keep_value(r->m, v);
}

/* How protobuf writes a field; lists of numbers may be written in two ways. */
static bool is_written_right(const onnx_field *f) {
    static const uint32_t bytes = 1u << A_NAME | 1u << A_S | 1u << A_T | 1u << A_G | 1u << A_STRINGS | 1u << A_GRAPHS |
                                  1u << A_TYPE_PROTO | 1u << A_REFERENCE | 1u << A_SPARSE;
    static const uint32_t numbers = 1u << A_I | 1u << A_KIND;
    uint32_t bit = f->number <= A_SPARSE ? 1u << f->number : 0;
    if (bit & bytes) return f->kind == ONNX_WIRE_BYTES;
    if (bit & numbers) return f->kind == ONNX_WIRE_VARINT;
    return f->number != A_F || f->kind == ONNX_WIRE_32;
}

static tn_status take_attribute_field(reader *r, const onnx_field *f, onnx_attribute *a, attribute_lists *l) {
    if (!is_written_right(f))
        return tn_fail(TN_ERR_FORMAT, "field %u of attribute '%.*s' has another wire type than ONNX defines",
                       (unsigned)f->number, shown(a->name), a->name.size ? a->name.at : "");
    switch (f->number) {
    case A_NAME: a->name = f->bytes; return TN_OK;
    case A_F: a->f = onnx_wire_float(f); return TN_OK;
    case A_I: a->i = (int64_t)f->bits; return TN_OK;
    case A_S: a->s = f->bytes; return TN_OK;
    case A_KIND: a->kind = f->bits <= ONNX_KIND_TYPES ? (int)f->bits : -1; return TN_OK;
    case A_REFERENCE: a->reference = f->bytes; return TN_OK;
    case A_T:
    case A_SPARSE: return read_attribute_tensor(r, f, a);
    case A_FLOATS: return onnx_numbers_add(&l->floats, f, ONNX_WIRE_32);
    case A_INTS: return onnx_numbers_add(&l->ints, f, ONNX_WIRE_VARINT);
    case A_STRINGS: ((onnx_text *)(uintptr_t)a->strings)[l->strings++] = f->bytes; return TN_OK;
    case A_G:
    case A_GRAPHS: return read_graph(r, f->bytes, &a->graphs[l->graphs++]);
    default: return TN_OK;
    }
}

/* Only lists of the attribute's own kind; `count` is their length. */
static tn_status keep_lists(reader *r, onnx_attribute *a, const attribute_lists *l) {
    if (l->ints.count && a->kind == ONNX_KIND_INTS) {
        int64_t *ints = onnx_take(&r->m->arena, l->ints.count, sizeof *ints);
        if (!ints) return tn_error_code();
        memcpy(ints, l->ints.at, l->ints.count * sizeof *ints);
        a->ints = ints;
    }
    if (l->floats.count && a->kind == ONNX_KIND_FLOATS) {
        float *floats = onnx_take(&r->m->arena, l->floats.count, sizeof *floats);
        if (!floats) return tn_error_code();
        for (size_t i = 0; i < l->floats.count; i++)
            floats[i] = onnx_wire_float(&(onnx_field){.bits = l->floats.at[i]});
        a->floats = floats;
    }
    const size_t counts[] = {
        [ONNX_KIND_FLOATS] = l->floats.count, [ONNX_KIND_INTS] = l->ints.count, [ONNX_KIND_STRINGS] = l->strings};
    bool listed = a->kind >= ONNX_KIND_FLOATS && a->kind <= ONNX_KIND_STRINGS;
    a->count = listed ? counts[a->kind] : l->graphs;
    if (a->kind != ONNX_KIND_STRINGS) a->strings = NULL;
    if ((a->kind != ONNX_KIND_GRAPH && a->kind != ONNX_KIND_GRAPHS) || !a->count) a->graphs = NULL;
    return TN_OK;
}

/* The kind that the content has: files of the format's first years do not tell it. Another one than they tell, or
 * several, make the attribute invalid. */
static tn_status take_kind(onnx_attribute *a, const int64_t *counts) {
    static const uint8_t of_field[][2] = {
        {A_F, ONNX_KIND_FLOAT},       {A_I, ONNX_KIND_INT},           {A_S, ONNX_KIND_STRING},
        {A_T, ONNX_KIND_TENSOR},      {A_G, ONNX_KIND_GRAPH},         {A_FLOATS, ONNX_KIND_FLOATS},
        {A_INTS, ONNX_KIND_INTS},     {A_STRINGS, ONNX_KIND_STRINGS}, {A_GRAPHS, ONNX_KIND_GRAPHS},
        {A_SPARSE, ONNX_KIND_SPARSE}, {A_TYPE_PROTO, ONNX_KIND_TYPE}};
    for (size_t i = 0; i < TN_COUNT(of_field); i++) {
        int kind = of_field[i][1];
        if (!counts[of_field[i][0]]) continue;
        if (!a->kind) a->kind = kind;
        if (a->kind != kind)
            return tn_fail(TN_ERR_FORMAT, "attribute '%.*s' declares type %d, but holds a value of type %d",
                           shown(a->name), a->name.size ? a->name.at : "", a->kind, kind);
    }
    return TN_OK;
}

static tn_status read_attribute(reader *r, onnx_text message, onnx_attribute *a) {
    int64_t counts[A_SPARSE + 1];
    TRY(onnx_wire_count(message, counts, A_SPARSE));
    a->strings = onnx_take(&r->m->arena, (size_t)counts[A_STRINGS], sizeof *a->strings);
    a->graphs = onnx_take(&r->m->arena, (size_t)(counts[A_G] + counts[A_GRAPHS]), sizeof(onnx_graph *));
    if (!a->strings || !a->graphs) return tn_error_code();
    attribute_lists l = {0};
    onnx_wire w = onnx_wire_of(message);
    onnx_field f;
    tn_status status, taken = TN_OK;
    while (taken == TN_OK && onnx_wire_next(&w, &f, &status))
        taken = take_attribute_field(r, &f, a, &l);
    if (taken == TN_OK) taken = status;
    if (taken == TN_OK) taken = take_kind(a, counts);
    if (taken == TN_OK) taken = keep_lists(r, a, &l);
    tn_mem_free_each(l.ints.at, l.floats.at);
    return taken;
}

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

enum { N_IN = 1, N_OUT = 2, N_NAME = 3, N_TYPE = 4, N_ATTRIBUTE = 5, N_DOMAIN = 7, N_OVERLOAD = 8 };

static int opset_of(const reader *r, onnx_text domain) {
    for (int i = 0; i < r->import_count; i++)
        if (onnx_same_domain(r->imports[i].domain, domain))
            return (int)tn_max64(0, tn_min64(r->imports[i].version, INT_MAX));
    return INT_MAX; /* a domain that the model does not name: the newest */
}

static tn_status use_input(reader *r, const onnx_node *n, onnx_text name, int32_t *slot) {
    *slot = -1;
    if (name.size == 0) return TN_OK;
    TRY(scope_use(r->scope, name, slot));
    if (*slot >= 0) return TN_OK;
    return tn_fail(TN_ERR_FORMAT, "node '%.*s' (%.*s) reads '%.*s', which no earlier node computes", shown(n->name),
                   n->name.at ? n->name.at : "", shown(n->type), n->type.at ? n->type.at : "", shown(name), name.at);
}

static tn_status read_node_lists(reader *r, onnx_text message, onnx_node *n, int64_t *counts) {
    int32_t *in = onnx_take(&r->m->arena, (size_t)counts[N_IN], sizeof *in);
    onnx_attribute *attributes = onnx_take(&r->m->arena, (size_t)counts[N_ATTRIBUTE], sizeof *attributes);
    int32_t *out = onnx_take(&r->m->arena, (size_t)counts[N_OUT], sizeof *out);
    if (!in || !attributes || !out) return tn_error_code();
    n->in = in;
    n->out = out;
    n->attributes = attributes;
    onnx_wire w = onnx_wire_of(message);
    onnx_field f;
    tn_status status;
    while (onnx_wire_next(&w, &f, &status)) {
        if (f.number == N_IN) TRY(use_input(r, n, f.bytes, &in[n->in_count++]));
        if (f.number != N_ATTRIBUTE) continue;
        onnx_attribute *a = &attributes[n->attribute_count++];
        TRY(read_attribute(r, f.bytes, a));
        n->refers = n->refers || a->reference.size > 0;
    }
    TRY(status);
    w = onnx_wire_of(message); /* outputs last: a subgraph does not see them */
    while (onnx_wire_next(&w, &f, &status)) {
        if (f.number != N_OUT) continue;
        int32_t *slot = &out[n->out_count++];
        *slot = -1;
        if (f.bytes.size) TRY(scope_define(r->scope, f.bytes, slot));
    }
    return status;
}

static tn_status read_node(reader *r, onnx_text message, onnx_node *n) {
    int64_t counts[N_OVERLOAD + 1];
    TRY(onnx_wire_count(message, counts, N_OVERLOAD));
    enum { MOST = 1 << 16 }; /* inputs or outputs of a node */
    if (counts[N_IN] > MOST || counts[N_OUT] > MOST || ++r->node_total > ONNX_MAX_NODES)
        return tn_fail(TN_ERR_FORMAT, "the graph has more than %d nodes, or a node more than %d inputs", ONNX_MAX_NODES,
                       MOST);
    onnx_wire w = onnx_wire_of(message);
    onnx_field f;
    tn_status status;
    while (onnx_wire_next(&w, &f, &status)) {
        if (f.number == N_NAME) n->name = f.bytes;
        if (f.number == N_TYPE) n->type = f.bytes;
        if (f.number == N_DOMAIN) n->domain = f.bytes;
        if (f.number == N_OVERLOAD) n->overload = f.bytes;
    }
    TRY(status);
    n->opset = opset_of(r, n->domain);
    return read_node_lists(r, message, n, counts);
}

const onnx_attribute *onnx_node_attribute(const onnx_node *n, const char *name) {
    for (int i = 0; i < n->attribute_count; i++)
        if (onnx_is(n->attributes[i].name, name)) return &n->attributes[i];
    return NULL;
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

/* Where GraphProto and FunctionProto have what both have. */
typedef struct graph_fields {
    uint32_t node, input, output;
    bool is_function;
} graph_fields;
static const graph_fields of_graph = {1, 11, 12, false}, of_function = {7, 4, 5, true};
enum { G_NAME = 2, G_INITIALIZER = 5, G_SPARSE = 15, G_MOST = 16 };

/* ValueInfoProto, or a function's name of an input. */
static tn_status read_port(reader *r, const graph_fields *k, onnx_text message, onnx_port *p, onnx_text *name) {
    *name = message;
    if (!k->is_function) {
        onnx_field of_name, of_type;
        onnx_declared *type = NULL;
        TRY(onnx_find_field(message, 1, &of_name));
        TRY(onnx_find_field(message, 2, &of_type));
        if (of_type.bytes.at) TRY(read_type(&r->m->arena, of_type.bytes, 0, &type));
        *name = of_name.bytes;
        p->type = type;
    }
    p->name = terminated(&r->m->arena, *name);
    return p->name ? TN_OK : tn_error_code();
}

typedef struct graph_reading {
    const graph_fields *fields;
    onnx_graph *graph;
} graph_reading;

static tn_status read_initial(reader *r, graph_reading *g, const onnx_field *f) {
    onnx_port *p = &g->graph->weights[g->graph->weight_count];
    onnx_value **v = &g->graph->weight_values[g->graph->weight_count];
    onnx_text name;
    TRY((f->number == G_SPARSE ? onnx_read_sparse : onnx_read_tensor)(&r->m->source, f->bytes, v, &name));
    TRY(keep_value(r->m, *v));
    TRY(scope_define(r->scope, name, &p->slot));
    p->name = terminated(&r->m->arena, name);
    if (!p->name) return tn_error_code();
    g->graph->initial_count = ++g->graph->weight_count;
    return TN_OK;
}

static bool is_given(const reader *r, const char *name) {
    for (const char *const *g = r->given; g && *g; g++)
        if (strcmp(*g, name) == 0) return true;
    return false;
}

static tn_status read_input(reader *r, graph_reading *g, onnx_text message) {
    onnx_port *p = &g->graph->inputs[g->graph->input_count];
    onnx_text name;
    TRY(read_port(r, g->fields, message, p, &name));
    int32_t slot = scope_find(r->scope, name);
    bool has_value = slot >= 0, twice = has_value && r->scope->outer;
    if (has_value && !twice && !is_given(r, p->name)) return TN_OK; /* an initializer: callers need not pass it */
    for (int i = 0; has_value && i < g->graph->input_count; i++)
        twice |= g->graph->inputs[i].slot == slot;
    if (twice) return tn_fail(TN_ERR_FORMAT, "two inputs of a graph are named '%s'", p->name);
    p->slot = slot;
    r->m->is_given |= has_value;
    if (!has_value) TRY(scope_define(r->scope, name, &p->slot));
    g->graph->input_count++;
    return TN_OK;
}

static tn_status read_output(reader *r, graph_reading *g, onnx_text message) {
    onnx_port *p = &g->graph->outputs[g->graph->output_count++];
    onnx_text name;
    TRY(read_port(r, g->fields, message, p, &name));
    TRY(scope_use(r->scope, name, &p->slot));
    return p->slot >= 0 ? TN_OK : tn_fail(TN_ERR_FORMAT, "no node computes the output '%s'", p->name);
}

typedef tn_status read_part(reader *r, graph_reading *g, const onnx_field *f);

static tn_status read_first(reader *r, graph_reading *g, const onnx_field *f) {
    if (g->fields->is_function) return TN_OK;
    if (f->number == G_NAME) g->graph->name = f->bytes;
    return f->number == G_INITIALIZER || f->number == G_SPARSE ? read_initial(r, g, f) : TN_OK;
}

static tn_status read_second(reader *r, graph_reading *g, const onnx_field *f) {
    return f->number == g->fields->input ? read_input(r, g, f->bytes) : TN_OK;
}

/* Some writers keep weights in Constant nodes. */
static tn_status note_constant(reader *r, graph_reading *g, const onnx_node *n) {
    static const onnx_text constant = {"Constant", 8};
    bool holds = n->out_count == 1 && n->out[0] >= 0 && onnx_text_equal(n->type, constant);
    const onnx_attribute *held = holds ? onnx_node_attribute(n, "value") : NULL;
    if (holds && !held) held = onnx_node_attribute(n, "sparse_value");
    if (!held || !held->tensor || n->domain.size) return TN_OK;
    onnx_port *p = &g->graph->weights[g->graph->weight_count];
    p->slot = n->out[0];
    p->name = terminated(&r->m->arena, r->scope->names[p->slot]);
    g->graph->weight_values[g->graph->weight_count++] = held->tensor;
    return p->name ? TN_OK : tn_error_code();
}

/* The nodes, in an order in which they can run. */
static tn_status read_nodes(reader *r, graph_reading *g, onnx_text message, int64_t count) {
    AUTO_FREE onnx_text *messages = tn_mem_alloc((size_t)count * sizeof *messages);
    AUTO_FREE int32_t *order = tn_mem_alloc((size_t)count * sizeof *order);
    int32_t found = 0;
    onnx_wire w = onnx_wire_of(message);
    onnx_field f;
    tn_status end = TN_OK, status = messages && order ? TN_OK : TN_ERR_MEMORY;
    while (status == TN_OK && onnx_wire_next(&w, &f, &end))
        if (f.number == g->fields->node) messages[found++] = f.bytes;
    if (status == TN_OK) status = end;
    if (status == TN_OK) status = order_nodes(messages, found, order);
    for (int32_t i = 0; i < found && status == TN_OK; i++) {
        r->scope->node = g->graph->node_count;
        onnx_node *n = &g->graph->nodes[g->graph->node_count++];
        status = read_node(r, messages[order[i]], n);
        if (status == TN_OK) status = note_constant(r, g, n);
    }
    return status;
}

static tn_status read_last(reader *r, graph_reading *g, const onnx_field *f) {
    r->scope->node = g->graph->node_count;
    return f->number == g->fields->output ? read_output(r, g, f->bytes) : TN_OK;
}

static tn_status take_graph_room(reader *r, graph_reading *g, const int64_t *counts) {
    onnx_arena *a = &r->m->arena;
    onnx_graph *graph = g->graph;
    size_t initials = g->fields->is_function ? 0 : (size_t)(counts[G_INITIALIZER] + counts[G_SPARSE]);
    size_t weights = initials + (size_t)counts[g->fields->node];
    if (counts[g->fields->node] > ONNX_MAX_NODES)
        return tn_fail(TN_ERR_FORMAT, "the graph has more than %d nodes", ONNX_MAX_NODES);
    graph->nodes = onnx_take(a, (size_t)counts[g->fields->node], sizeof *graph->nodes);
    graph->folded = onnx_take(a, (size_t)counts[g->fields->node], sizeof *graph->folded);
    graph->inputs = onnx_take(a, (size_t)counts[g->fields->input], sizeof *graph->inputs);
    graph->outputs = onnx_take(a, (size_t)counts[g->fields->output], sizeof *graph->outputs);
    graph->weights = onnx_take(a, weights, sizeof *graph->weights);
    graph->weight_values = onnx_take(a, weights, sizeof(onnx_value *));
    bool all =
        graph->nodes && graph->folded && graph->inputs && graph->outputs && graph->weights && graph->weight_values;
    return all ? TN_OK : tn_error_code();
}

static tn_status copy_scope(reader *r, graph_reading *g) {
    onnx_arena *a = &r->m->arena;
    onnx_graph *graph = g->graph;
    const scope *s = r->scope;
    graph->slot_count = s->count;
    graph->captured_count = s->captured_count;
    graph->names = onnx_take(a, (size_t)s->count, sizeof *graph->names);
    graph->last_use = onnx_take(a, (size_t)s->count, sizeof *graph->last_use);
    graph->constants = onnx_take(a, (size_t)s->count, sizeof(onnx_value *));
    graph->captured = onnx_take(a, (size_t)s->captured_count, sizeof(struct slot_pair));
    if (!graph->names || !graph->last_use || !graph->constants || !graph->captured) return tn_error_code();
    if (s->count) {
        memcpy(graph->names, s->names, (size_t)s->count * sizeof *graph->names);
        memcpy(graph->last_use, s->last_use, (size_t)s->count * sizeof *graph->last_use);
    }
    if (s->captured_count) memcpy(graph->captured, s->captured, (size_t)s->captured_count * sizeof(struct slot_pair));
    for (int i = 0; i < graph->initial_count; i++)
        graph->constants[graph->weights[i].slot] = graph->weight_values[i];
    for (int i = 0; i < graph->input_count; i++)
        graph->constants[graph->inputs[i].slot] = NULL; /* given by the caller instead */
    return TN_OK;
}

static tn_status read_pass(reader *r, onnx_text message, graph_reading *g, read_part *part) {
    onnx_wire w = onnx_wire_of(message);
    onnx_field f;
    tn_status status;
    while (onnx_wire_next(&w, &f, &status))
        TRY(part(r, g, &f));
    return status;
}

static tn_status read_parts(reader *r, onnx_text message, graph_reading *g) {
    int64_t counts[G_MOST + 1];
    TRY(onnx_wire_count(message, counts, G_MOST));
    TRY(take_graph_room(r, g, counts));
    TRY(read_pass(r, message, g, read_first));
    TRY(read_pass(r, message, g, read_second));
    TRY(read_nodes(r, g, message, counts[g->fields->node]));
    TRY(read_pass(r, message, g, read_last));
    return copy_scope(r, g);
}

static tn_status read_body(reader *r, const graph_fields *fields, onnx_text message, onnx_graph **out) {
    if (r->depth == ONNX_MAX_GRAPHS)
        return tn_fail(TN_ERR_FORMAT, "subgraphs are nested more than %d deep", ONNX_MAX_GRAPHS);
    graph_reading g = {.fields = fields, .graph = onnx_take(&r->m->arena, 1, sizeof *g.graph)};
    if (!g.graph) return tn_error_code();
    scope s = {.outer = r->scope, .node = -1};
    r->scope = &s;
    r->depth++;
    tn_status status = read_parts(r, message, &g);
    r->depth--;
    r->scope = s.outer;
    scope_free(&s);
    *out = g.graph;
    return status;
}

static tn_status read_graph(reader *r, onnx_text message, onnx_graph **out) {
    return read_body(r, &of_graph, message, out);
}

/* ---- functions, the model ---------------------------------------------------------------------------------------- */

static tn_status read_imports(tn_onnx *m, onnx_text message, uint32_t field, onnx_import **out, int *count) {
    onnx_wire w = onnx_wire_of(message);
    onnx_field f, domain, version;
    tn_status status;
    int n = 0;
    while (onnx_wire_next(&w, &f, &status))
        n += f.number == field;
    TRY(status);
    *out = onnx_take(&m->arena, (size_t)n, sizeof **out);
    if (!*out) return tn_error_code();
    w = onnx_wire_of(message);
    while (onnx_wire_next(&w, &f, &status)) {
        if (f.number != field) continue;
        TRY(onnx_find_field(f.bytes, 1, &domain));
        TRY(onnx_find_field(f.bytes, 2, &version));
        (*out)[(*count)++] = (onnx_import){.domain = domain.bytes, .version = (int64_t)version.bits};
    }
    return status;
}

enum { FN_NAME = 1, FN_IMPORT = 9, FN_DOMAIN = 10, FN_DEFAULT = 11, FN_OVERLOAD = 13 };

static tn_status read_function(tn_onnx *m, onnx_text message, onnx_function *fn) {
    reader r = {.m = m};
    onnx_import *imports;
    int64_t counts[FN_OVERLOAD + 1];
    TRY(onnx_wire_count(message, counts, FN_OVERLOAD));
    TRY(read_imports(m, message, FN_IMPORT, &imports, &r.import_count));
    r.imports = imports;
    fn->defaults = onnx_take(&m->arena, (size_t)counts[FN_DEFAULT], sizeof *fn->defaults);
    if (!fn->defaults) return tn_error_code();
    onnx_wire w = onnx_wire_of(message);
    onnx_field f;
    tn_status status;
    while (onnx_wire_next(&w, &f, &status)) {
        if (f.number == FN_NAME) fn->name = f.bytes;
        if (f.number == FN_DOMAIN) fn->domain = f.bytes;
        if (f.number == FN_OVERLOAD) fn->overload = f.bytes;
        if (f.number == FN_DEFAULT) TRY(read_attribute(&r, f.bytes, &fn->defaults[fn->default_count++]));
    }
    TRY(status);
    status = read_body(&r, &of_function, message, &fn->body);
    if (status != TN_OK) tn_fail_prefix(status, "function '%.*s'", shown(fn->name), fn->name.at ? fn->name.at : "");
    return status;
}

enum { M_IR_VERSION = 1, M_GRAPH = 7, M_IMPORT = 8, M_FUNCTION = 25 };

tn_status onnx_model_read(tn_onnx *m, onnx_text message, const char *const *given) {
    int64_t counts[M_FUNCTION + 1];
    TRY(onnx_wire_count(message, counts, M_FUNCTION));
    if (counts[M_GRAPH] != 1 || !counts[M_IR_VERSION])
        return tn_fail(TN_ERR_FORMAT, "not an ONNX model: it has %lld graphs", (long long)counts[M_GRAPH]);
    m->functions = onnx_take(&m->arena, (size_t)counts[M_FUNCTION], sizeof *m->functions);
    if (!m->functions) return tn_error_code();
    TRY(read_imports(m, message, M_IMPORT, &m->imports, &m->import_count));
    onnx_wire w = onnx_wire_of(message);
    onnx_field f, graph = {0};
    tn_status status;
    while (onnx_wire_next(&w, &f, &status)) {
        if (f.number == M_GRAPH) graph = f;
        if (f.number == M_FUNCTION) TRY(read_function(m, f.bytes, &m->functions[m->function_count++]));
    }
    TRY(status);
    reader r = {.m = m, .imports = m->imports, .import_count = m->import_count, .given = given};
    return read_graph(&r, graph.bytes, &m->graph);
}

/* ---- which node is what ------------------------------------------------------------------------------------------ */

typedef struct missing {
    onnx_text domain, type, first;
    int opset;
    int64_t count;
} missing;

typedef struct resolving {
    tn_onnx *m;
    missing *at;
    size_t count, capacity;
} resolving;

static tn_status note_missing(resolving *r, const onnx_node *n) {
    for (size_t i = 0; i < r->count; i++)
        if (onnx_text_equal(r->at[i].type, n->type) && onnx_same_domain(r->at[i].domain, n->domain)) {
            r->at[i].count++;
            return TN_OK;
        }
    TRY(tn_mem_reserve(&r->at, &r->capacity, r->count + 1, sizeof *r->at));
    r->at[r->count++] =
        (missing){.domain = n->domain, .type = n->type, .first = n->name, .opset = n->opset, .count = 1};
    return TN_OK;
}

static onnx_function *find_function(const tn_onnx *m, const onnx_node *n) {
    for (int i = 0; i < m->function_count; i++) {
        onnx_function *f = &m->functions[i];
        if (onnx_text_equal(f->name, n->type) && onnx_same_domain(f->domain, n->domain) &&
            onnx_text_equal(f->overload, n->overload))
            return f;
    }
    return NULL;
}

/* Depth of subgraphs and functions; each function is checked once. */
static tn_status resolve_graph(resolving *r, onnx_graph *g, int depth) {
    if (depth == ONNX_MAX_FRAMES)
        return tn_fail(TN_ERR_UNSUPPORTED, "functions and subgraphs are nested more than %d deep", ONNX_MAX_FRAMES);
    for (int i = 0; i < g->node_count; i++) {
        onnx_node *n = &g->nodes[i];
        onnx_function *f = find_function(r->m, n);
        n->calls = f;
        if (!f) n->row = onnx_find_row(n->domain, n->type, n->opset);
        if (!f && !n->row) TRY(note_missing(r, n));
        if (n->row) TRY(onnx_check_attributes(n));
        for (int k = 0; k < n->attribute_count; k++)
            for (size_t j = 0; n->attributes[k].graphs && j < n->attributes[k].count; j++)
                TRY(resolve_graph(r, n->attributes[k].graphs[j], depth + 1));
        if (!f || f->resolved) continue;
        f->resolved = true;
        TRY(resolve_graph(r, f->body, depth + 1));
    }
    return r->count ? TN_OK : onnx_map_quantized(r->m, g);
}

static void describe_missing(const resolving *r, tn_str *text) {
    for (size_t i = 0; i < r->count; i++) {
        const missing *x = &r->at[i];
        bool standard = onnx_same_domain(x->domain, (onnx_text){"", 0});
        tn_str_add(text, "%s%.*s%s%.*s", i ? ", " : "", standard ? 0 : shown(x->domain),
                   x->domain.at ? x->domain.at : "", standard ? "" : ".", shown(x->type), x->type.at ? x->type.at : "");
        if (x->opset != INT_MAX) tn_str_add(text, " of opset %d", x->opset);
        tn_str_add(text, " (%lld node%s", (long long)x->count, x->count == 1 ? "" : "s");
        if (x->first.size) tn_str_add(text, ", '%.*s'", shown(x->first), x->first.at);
        tn_str_add(text, ")");
    }
}

tn_status onnx_model_resolve(tn_onnx *m, char **report) {
    resolving r = {.m = m};
    tn_status status = resolve_graph(&r, m->graph, 0);
    if (status == TN_OK && r.count) {
        tn_str text = {0};
        describe_missing(&r, &text);
        status = tn_fail(TN_ERR_UNSUPPORTED, "%zu operator%s not supported by Trunnion: %s", r.count,
                         r.count == 1 ? "" : "s", tn_str_text(&text));
        if (report) *report = text.text;
        if (!report) tn_str_free(&text);
    }
    tn_mem_free(r.at);
    return status;
}

/* ==== order of nodes ============================================================================================== */
/* ONNX requires nodes in topological order, but some writers (the float16 converter) append nodes at the end. This is a
 * stable topological sort: each node follows the nodes that produce its inputs, including those that its subgraphs
 * read. It works on the file's bytes, before any node has slots. */

/* ---- names ------------------------------------------------------------------------------------------------------- */

typedef struct name_table {
    onnx_text *names; /* "" : free */
    int32_t *numbers;
    size_t size, count;
} name_table;

static size_t sort_place_of(const name_table *t, onnx_text name) {
    size_t mask = t->size - 1, at = (size_t)tn_hash64(name.at, name.size, 0) & mask;
    while (t->names[at].size && !onnx_text_equal(t->names[at], name))
        at = (at + 1) & mask;
    return at;
}

/* The number of a name; -1: none. */
static int32_t find_name(const name_table *t, onnx_text name) {
    if (!t->size || !name.size) return -1;
    size_t at = sort_place_of(t, name);
    return t->names[at].size ? t->numbers[at] : -1;
}

static tn_status add_name(name_table *t, onnx_text name, int32_t number) {
    enum { ORDER_FIRST = 64 };
    if (!name.size) return TN_OK;
    if (2 * (t->count + 1) > t->size) {
        size_t size = t->size ? 2 * t->size : ORDER_FIRST;
        name_table wider = {.names = tn_mem_zalloc(size, sizeof(onnx_text)),
                            .numbers = tn_mem_alloc(size * sizeof(int32_t)),
                            .size = size};
        for (size_t i = 0; wider.names && wider.numbers && i < t->size; i++) {
            if (!t->names[i].size) continue;
            size_t at = sort_place_of(&wider, t->names[i]);
            wider.names[at] = t->names[i];
            wider.numbers[at] = t->numbers[i];
        }
        wider.count = t->count;
        name_table old = wider.names && wider.numbers ? *t : wider;
        if (wider.names && wider.numbers) *t = wider;
        tn_mem_free_each(old.names, old.numbers);
        if (t->size != size) return TN_ERR_MEMORY;
    }
    size_t at = sort_place_of(t, name);
    if (t->names[at].size) return TN_OK; /* the reader refuses two values of a name */
    t->names[at] = name;
    t->numbers[at] = number;
    t->count++;
    return TN_OK;
}

static void free_names(name_table *t) { tn_mem_free_each(t->names, t->numbers); }

/* ---- users of values -------------------------------------------------------------------------------------------- */

/* Names that a subgraph makes itself; they hide those of the graphs around it. */
typedef struct order_inner {
    const struct order_inner *outer;
    name_table own;
    int depth;
} order_inner;

typedef struct ordering {
    name_table makers; /* output's name to node */
    int32_t *first;    /* edges of node i: first[i] … first[i + 1] */
    int32_t *edges;
    size_t edge_count, edge_capacity;
    int32_t node; /* that is being looked at */
    bool sorted;
} ordering;

enum { NODE_IN = 1, NODE_OUT = 2, NODE_NAME = 3, NODE_TYPE = 4, NODE_ATTRIBUTE = 5 };
enum { ATTRIBUTE_G = 6, ATTRIBUTE_GRAPHS = 11 };
enum { GRAPH_NODE = 1, GRAPH_INITIALIZER = 5, GRAPH_INPUT = 11, GRAPH_OUTPUT = 12, TENSOR_NAME = 8 };

static tn_status note_read(ordering *o, const order_inner *in, onnx_text name) {
    int32_t maker = find_name(&o->makers, name);
    if (maker < 0) return TN_OK;
    for (; in; in = in->outer)
        if (find_name(&in->own, name) >= 0) return TN_OK;
    if (maker >= o->node) o->sorted = false;
    TRY(tn_mem_reserve(&o->edges, &o->edge_capacity, o->edge_count + 1, sizeof *o->edges));
    o->edges[o->edge_count++] = maker;
    return TN_OK;
}

/* The text in field `number` of a message. */
static tn_status text_in(onnx_text message, uint32_t number, onnx_text *out) {
    onnx_field f;
    tn_status status = onnx_find_field(message, number, &f);
    *out = f.bytes;
    return status;
}

static tn_status add_outputs(name_table *t, onnx_text node, int32_t number) {
    onnx_wire w = onnx_wire_of(node);
    onnx_field f;
    tn_status status;
    while (onnx_wire_next(&w, &f, &status))
        if (f.number == NODE_OUT) TRY(add_name(t, f.bytes, number));
    return status;
}

/* What a subgraph makes: its inputs, initialisers and the outputs of its nodes. */
static tn_status add_own(name_table *own, onnx_text graph) {
    onnx_wire w = onnx_wire_of(graph);
    onnx_field f;
    onnx_text name;
    tn_status status;
    while (onnx_wire_next(&w, &f, &status)) {
        if (f.number == GRAPH_NODE) TRY(add_outputs(own, f.bytes, 0));
        if (f.number != GRAPH_INPUT && f.number != GRAPH_INITIALIZER) continue;
        TRY(text_in(f.bytes, f.number == GRAPH_INPUT ? 1 : TENSOR_NAME, &name));
        TRY(add_name(own, name, 0));
    }
    return status;
}

static tn_status note_node(ordering *o, const order_inner *in, onnx_text message);

static tn_status note_graph(ordering *o, const order_inner *outer, onnx_text graph) {
    order_inner in = {.outer = outer, .depth = outer ? outer->depth + 1 : 1};
    if (in.depth > ONNX_MAX_GRAPHS) return TN_OK; /* the reader refuses it */
    onnx_wire w = onnx_wire_of(graph);
    onnx_field f;
    onnx_text name;
    tn_status status = add_own(&in.own, graph), end = TN_OK;
    while (status == TN_OK && onnx_wire_next(&w, &f, &end)) {
        if (f.number == GRAPH_NODE) status = note_node(o, &in, f.bytes);
        if (f.number != GRAPH_OUTPUT) continue;
        status = text_in(f.bytes, 1, &name);
        if (status == TN_OK) status = note_read(o, &in, name);
    }
    free_names(&in.own);
    return status == TN_OK ? end : status;
}

static tn_status note_node(ordering *o, const order_inner *in, onnx_text message) {
    onnx_wire w = onnx_wire_of(message), a;
    onnx_field f, of;
    tn_status status;
    while (onnx_wire_next(&w, &f, &status)) {
        if (f.number == NODE_IN) TRY(note_read(o, in, f.bytes));
        if (f.number != NODE_ATTRIBUTE) continue;
        a = onnx_wire_of(f.bytes);
        while (onnx_wire_next(&a, &of, &status))
            if (of.number == ATTRIBUTE_G || of.number == ATTRIBUTE_GRAPHS) TRY(note_graph(o, in, of.bytes));
        TRY(status);
    }
    return status;
}

/* ---- sorting ----------------------------------------------------------------------------------------------------- */

/* "'a' (Add) -> 'b' (Mul) -> 'a' (Add)": the nodes on the path from the one that is met again. */
static tn_status refuse_cycle(const onnx_text *messages, const int32_t *path, int32_t depth, int32_t again) {
    enum { SHOWN = 8, LONGEST = 80 };
    AUTO_STR tn_str text = {0};
    int32_t from = 0;
    while (path[from] != again)
        from++;
    for (int32_t i = from; i <= depth; i++) {
        onnx_text name = {0}, type = {0};
        if (i - from == SHOWN && i < depth) {
            tn_str_add(&text, " -> … (%d nodes)", (int)(depth - from));
            i = depth;
        }
        onnx_text node = messages[i < depth ? path[i] : again];
        (void)text_in(node, NODE_NAME, &name); /* it was read before */
        (void)text_in(node, NODE_TYPE, &type);
        if (!name.size) (void)text_in(node, NODE_OUT, &name);
        tn_str_add(&text, "%s'%.*s' (%.*s)", i > from ? " -> " : "", (int)tn_min64((int64_t)name.size, LONGEST),
                   name.size ? name.at : "", (int)tn_min64((int64_t)type.size, LONGEST), type.size ? type.at : "");
    }
    return tn_fail(TN_ERR_FORMAT, "nodes form a cycle, in which each reads the next: %s", tn_str_text(&text));
}

/* Depth first: a node comes after all that it reads. path and next (the edge to follow of each node): count entries
 * each; mark: 0 not met, 1 on the path, 2 in `order`. */
static tn_status sort(const ordering *o, const onnx_text *messages, int32_t count, int32_t *order, int32_t *path,
                      int32_t *next, uint8_t *mark) {
    int32_t done = 0;
    for (int32_t begin = 0; begin < count; begin++) {
        int32_t depth = 0;
        if (mark[begin]) continue;
        path[depth++] = begin;
        mark[begin] = 1;
        while (depth > 0) {
            int32_t node = path[depth - 1];
            if (o->first[node] + next[node] == o->first[node + 1]) {
                mark[node] = 2;
                order[done++] = node;
                depth--;
                continue;
            }
            int32_t wanted = o->edges[o->first[node] + next[node]++];
            if (mark[wanted] == 1) return refuse_cycle(messages, path, depth, wanted);
            if (mark[wanted]) continue;
            mark[wanted] = 1;
            path[depth++] = wanted;
        }
    }
    return TN_OK;
}

static tn_status find_edges(ordering *o, const onnx_text *messages, int32_t count) {
    for (int32_t i = 0; i < count; i++)
        TRY(add_outputs(&o->makers, messages[i], i));
    o->sorted = true;
    for (o->node = 0; o->node < count; o->node++) {
        o->first[o->node] = (int32_t)o->edge_count;
        TRY(note_node(o, NULL, messages[o->node]));
        if (o->edge_count > INT32_MAX) return tn_fail(TN_ERR_FORMAT, "the nodes of a graph read more than 2^31 values");
    }
    o->first[count] = (int32_t)o->edge_count;
    return TN_OK;
}

static tn_status order_nodes(const onnx_text *messages, int32_t count, int32_t *order) {
    ordering o = {.first = tn_mem_alloc(((size_t)count + 1) * sizeof(int32_t))};
    tn_status status = o.first ? find_edges(&o, messages, count) : TN_ERR_MEMORY;
    for (int32_t i = 0; i < count; i++)
        order[i] = i;
    if (status == TN_OK && !o.sorted) {
        int32_t *path = tn_mem_alloc((size_t)count * sizeof *path), *next = tn_mem_zalloc((size_t)count, sizeof *next);
        uint8_t *mark = tn_mem_zalloc((size_t)count, 1);
        status = path && next && mark ? sort(&o, messages, count, order, path, next, mark) : TN_ERR_MEMORY;
        tn_mem_free_each(path, next, mark);
    }
    free_names(&o.makers);
    tn_mem_free_each(o.first, o.edges);
    return status;
}

/* ==== weights ===================================================================================================== */
/* Names of the model's own graph stay as they are. A subgraph may use a name again, as both branches of an If do; then
 * the path tells them apart: NODE.ATTRIBUTE.NAME, or FUNCTION.NAME. */

/* Where the walk is; a level links to the one around it. */
typedef struct level {
    const struct level *outer;
    onnx_text node, attribute; /* attribute empty: a function's name is in `node` */
    int index;                 /* of a node without a name, and of a graph in a list */
} level;

typedef struct walk {
    tn_onnx *m;
    int count;  /* met so far */
    bool fills; /* else only counts */
} walk;

static void add_path(tn_str *s, const level *l) {
    if (!l) return;
    add_path(s, l->outer);
    if (l->node.size)
        tn_str_addn(s, l->node.at, l->node.size);
    else
        tn_str_add(s, "node_%d", l->index);
    if (l->attribute.size) {
        tn_str_add(s, ".");
        tn_str_addn(s, l->attribute.at, l->attribute.size);
    }
    tn_str_add(s, ".");
}

static tn_status note_weights(walk *w, const onnx_port *p, onnx_value *v, const level *l) {
    int i = w->count++;
    if (!w->fills) return TN_OK;
    tn_str path = {0};
    add_path(&path, l);
    tn_str_add(&path, "%s", p->name);
    size_t size = path.length + 1;
    char *text = path.failed ? NULL : onnx_take(&w->m->arena, size, 1);
    if (text) memcpy(text, path.text, size);
    tn_str_free(&path);
    if (!text) return TN_ERR_MEMORY;
    w->m->weights[i] = (onnx_weight){.name = l ? NULL : p->name, .own = p->name, .path = text, .value = v};
    return TN_OK;
}

static tn_status walk_graph(walk *w, const onnx_graph *g, const level *l);

static tn_status walk_node(walk *w, const onnx_node *n, int index, const level *l) {
    for (int a = 0; a < n->attribute_count; a++) {
        const onnx_attribute *attribute = &n->attributes[a];
        level inner = {.outer = l, .node = n->name, .attribute = attribute->name, .index = index};
        for (size_t i = 0; attribute->graphs && i < attribute->count; i++)
            TRY(walk_graph(w, attribute->graphs[i], &inner));
    }
    return TN_OK;
}

static tn_status walk_graph(walk *w, const onnx_graph *g, const level *l) {
    for (int i = 0; i < g->weight_count; i++)
        TRY(note_weights(w, &g->weights[i], g->weight_values[i], l));
    for (int i = 0; i < g->node_count; i++)
        TRY(walk_node(w, &g->nodes[i], i, l));
    return TN_OK;
}

static tn_status walk_model(walk *w) {
    w->count = 0;
    TRY(walk_graph(w, w->m->graph, NULL));
    for (int i = 0; i < w->m->function_count; i++) {
        level l = {.node = w->m->functions[i].name, .index = i};
        TRY(walk_graph(w, w->m->functions[i].body, &l));
    }
    return TN_OK;
}

static int by_own_name(const void *a, const void *b) {
    const onnx_weight *x = *(onnx_weight *const *)a, *y = *(onnx_weight *const *)b;
    return strcmp(x->own, y->own);
}

/* A name that occurs once stays; of others, those in subgraphs take their path. */
static tn_status choose_names(tn_onnx *m) {
    AUTO_FREE onnx_weight **sorted = tn_mem_alloc((size_t)m->weight_count * sizeof *sorted + 1);
    if (!sorted) return TN_ERR_MEMORY;
    for (int i = 0; i < m->weight_count; i++)
        sorted[i] = &m->weights[i];
    qsort(sorted, (size_t)m->weight_count, sizeof *sorted, by_own_name);
    for (int i = 0; i < m->weight_count; i++) {
        bool alone = (i == 0 || strcmp(sorted[i - 1]->own, sorted[i]->own) != 0) &&
                     (i + 1 == m->weight_count || strcmp(sorted[i + 1]->own, sorted[i]->own) != 0);
        if (!sorted[i]->name) sorted[i]->name = alone ? sorted[i]->own : sorted[i]->path;
    }
    return TN_OK;
}

tn_status onnx_model_list_weights(tn_onnx *m) {
    walk w = {.m = m};
    TRY(walk_model(&w));
    m->weights = onnx_take(&m->arena, (size_t)w.count, sizeof *m->weights);
    if (!m->weights) return TN_ERR_MEMORY;
    m->weight_count = w.count;
    w.fills = true;
    TRY(walk_model(&w));
    return choose_names(m);
}

int tn_onnx_weight_count(const tn_onnx *m) { return m ? m->weight_count : 0; }

const tn_onnx_value *tn_onnx_weight_at(const tn_onnx *m, int i, const char **name) {
    if (!m || !name || i < 0 || i >= m->weight_count) {
        tn_fail(TN_ERR_ARGUMENT,
                "tn_onnx_weight_at: the model or an output pointer is NULL, or index %d is out of range", i);
        return NULL;
    }
    *name = m->weights[i].name;
    return m->weights[i].value;
}
