/* topological_sort.c — the order in which the nodes of a graph can run.
 *
 * ONNX requires nodes in topological order, but some writers (the float16 converter) append nodes at the end. This is a
 * stable topological sort: each node follows the nodes that produce its inputs, including those that its subgraphs
 * read. It works on the file's bytes, before any node has slots. */
#include <string.h>

#include "formats/onnx/model.h"

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
    enum { FIRST = 64 };
    if (!name.size) return TN_OK;
    if (2 * (t->count + 1) > t->size) {
        size_t size = t->size ? 2 * t->size : FIRST;
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
        tn_mem_free(old.names);
        tn_mem_free(old.numbers);
        if (t->size != size) return TN_ERR_MEMORY;
    }
    size_t at = sort_place_of(t, name);
    if (t->names[at].size) return TN_OK; /* the reader refuses two values of a name */
    t->names[at] = name;
    t->numbers[at] = number;
    t->count++;
    return TN_OK;
}

static void free_names(name_table *t) {
    tn_mem_free(t->names);
    tn_mem_free(t->numbers);
}

/* ---- who reads what ---------------------------------------------------------------------------------------------- */

/* Names that a subgraph makes itself; they hide those of the graphs around it. */
typedef struct inner {
    const struct inner *outer;
    name_table own;
    int depth;
} inner;

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

static tn_status note_read(ordering *o, const inner *in, onnx_text name) {
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

static tn_status note_node(ordering *o, const inner *in, onnx_text message);

static tn_status note_graph(ordering *o, const inner *outer, onnx_text graph) {
    inner in = {.outer = outer, .depth = outer ? outer->depth + 1 : 1};
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

static tn_status note_node(ordering *o, const inner *in, onnx_text message) {
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
    tn_str text = {0};
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
    tn_status status =
        tn_fail(TN_ERR_FORMAT, "nodes form a cycle, in which each reads the next: %s", tn_str_text(&text));
    tn_str_free(&text);
    return status;
}

/* Depth first: a node comes behind all that it reads. path and next (the edge to follow of each node): count entries
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
        if (o->edge_count > INT32_MAX) return tn_fail(TN_ERR_FORMAT, "a graph whose nodes read more than 2^31 values");
    }
    o->first[count] = (int32_t)o->edge_count;
    return TN_OK;
}

tn_status onnx_order_nodes(const onnx_text *messages, int32_t count, int32_t *order) {
    ordering o = {.first = tn_mem_alloc(((size_t)count + 1) * sizeof(int32_t))};
    tn_status status = o.first ? find_edges(&o, messages, count) : TN_ERR_MEMORY;
    for (int32_t i = 0; i < count; i++)
        order[i] = i;
    if (status == TN_OK && !o.sorted) {
        int32_t *path = tn_mem_alloc((size_t)count * sizeof *path), *next = tn_mem_zalloc((size_t)count, sizeof *next);
        uint8_t *mark = tn_mem_zalloc((size_t)count, 1);
        status = path && next && mark ? sort(&o, messages, count, order, path, next, mark) : TN_ERR_MEMORY;
        tn_mem_free(path);
        tn_mem_free(next);
        tn_mem_free(mark);
    }
    free_names(&o.makers);
    tn_mem_free(o.first);
    tn_mem_free(o.edges);
    return status;
}
