/* weights.c — the list of a model's weights: those of its own graph, of subgraphs (If, Loop, Scan …) and of functions.
 *
 * Names of the model's own graph stay as they are. A subgraph may use a name again, as both branches of an If do; then
 * the path tells them apart: NODE.ATTRIBUTE.NAME, or FUNCTION.NAME. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/onnx/model.h"

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
    onnx_weight **sorted = tn_mem_alloc((size_t)m->weight_count * sizeof *sorted + 1);
    if (!sorted) return TN_ERR_MEMORY;
    for (int i = 0; i < m->weight_count; i++)
        sorted[i] = &m->weights[i];
    qsort(sorted, (size_t)m->weight_count, sizeof *sorted, by_own_name);
    for (int i = 0; i < m->weight_count; i++) {
        bool alone = (i == 0 || strcmp(sorted[i - 1]->own, sorted[i]->own) != 0) &&
                     (i + 1 == m->weight_count || strcmp(sorted[i + 1]->own, sorted[i]->own) != 0);
        if (!sorted[i]->name) sorted[i]->name = alone ? sorted[i]->own : sorted[i]->path;
    }
    tn_mem_free(sorted);
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
        tn_fail(TN_ERR_ARGUMENT, "tn_onnx_weight_at: there is no model, no weight %d, or no place for its name", i);
        return NULL;
    }
    *name = m->weights[i].name;
    return m->weights[i].value;
}
