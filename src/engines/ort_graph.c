/* ort_graph.c — recorded graphs on ONNX Runtime: exported as a model in memory, run by a session of it.
 *
 * Inputs and results are the plan's memory: the library reads and writes it, nothing is copied. Weights become
 * constants of a second session, which the library folds and packs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engines/engines.h"
#include "onnx/export.h"
#include "vendor/onnxruntime.h"

#if TRUNNION_WITH_ONNXRUNTIME

typedef struct ort_graph {
    tn_ort_session *session, *fixed; /* fixed: the same with some inputs as constants; NULL: none */
    tn_str body;                     /* the model without its inputs */
    onnx_engine_input *inputs;       /* runtime scalars behind the others */
    tn_ort_tensor *values, *outputs; /* without their addresses; values: of the inputs */
    bool *is_float;                  /* runtime scalars: made as floats */
    int input_count, output_count, scalar_count;
} ort_graph;

static void ort_graph_free(void *compiled) {
    ort_graph *g = compiled;
    if (!g) return;
    tn_ort_session_free(g->session);
    tn_ort_session_free(g->fixed);
    tn_str_free(&g->body);
    tn_mem_free_each(g->inputs, g->values, g->outputs, g->is_float, g);
}

static tn_ort_tensor describe_tensor(const tn_node *n) {
    tn_ort_tensor t = {.type = onnx_element_type((tn_dtype)n->dtype), .rank = n->rank, .bytes = tn_node_bytes(n)};
    memcpy(t.shape, n->shape, (size_t)n->rank * sizeof *t.shape);
    return t;
}

static void describe_input(ort_graph *o, int i, char letter, int number, const tn_node *n) {
    onnx_engine_input *in = &o->inputs[i];
    *in = (onnx_engine_input){.dtype = (tn_dtype)n->dtype, .rank = n->rank, .bytes = tn_node_bytes(n)};
    snprintf(in->name, sizeof in->name, "%c%d", letter, number);
    memcpy(in->shape, n->shape, (size_t)n->rank * sizeof *in->shape);
    o->values[i] = describe_tensor(n);
}

static tn_status describe_graph(ort_graph *o, const tn_engine_graph *g) {
    size_t inputs = (size_t)(g->input_count + g->scalar_count);
    o->inputs = tn_mem_zalloc(inputs + 1, sizeof *o->inputs);
    o->values = tn_mem_zalloc(inputs + 1, sizeof *o->values);
    o->outputs = tn_mem_zalloc((size_t)g->output_count + 1, sizeof *o->outputs);
    o->is_float = tn_mem_zalloc((size_t)g->scalar_count + 1, sizeof *o->is_float);
    if (!o->inputs || !o->values || !o->outputs || !o->is_float) return TN_ERR_MEMORY;
    o->input_count = g->input_count;
    o->output_count = g->output_count;
    o->scalar_count = g->scalar_count;
    for (int i = 0; i < g->input_count; i++)
        describe_input(o, i, 'i', i, g->inputs[i]);
    for (int i = 0; i < g->scalar_count; i++) {
        describe_input(o, g->input_count + i, 's', i, g->scalars[i]);
        o->is_float[i] = g->scalars[i]->i[0] == TN_SCALAR_FLOAT;
    }
    for (int i = 0; i < g->output_count; i++)
        o->outputs[i] = describe_tensor(g->outputs[i]);
    return TN_OK;
}

/* The graph's node that the library's words are about: nodes of the model are called "#12.3" after its number. */
static const tn_node *node_in_words(const tn_engine_graph *g, const char *words) {
    const char *at = strchr(words, '#');
    char *end = NULL;
    unsigned long number = at ? strtoul(at + 1, &end, 10) : 0;
    bool named = at && end != at + 1 && number < g->recorded;
    return named ? g->recorder->pending[number] : NULL;
}

/* Whatever the library says against a graph, the cpu may still compute it. */
static tn_status refuse_graph(tn_status s, const tn_engine_graph *g, tn_engine_refusal *why) {
    if (s == TN_ERR_MEMORY) return s;
    why->code = "no_kernel";
    snprintf(why->why, sizeof why->why, "has no operator for it");
    if (why->count) return TN_ERR_UNSUPPORTED;
    const tn_node *node = node_in_words(g, tn_error());
    why->code = "refused_by_compiler";
    snprintf(why->why, sizeof why->why, "refused the graph (%.*s)", (int)sizeof why->why - 24, tn_error());
    if (node) TRY(tn_engine_refuse(why, node));
    return TN_ERR_UNSUPPORTED;
}

/* The graph as a session, whose constants have the values at inputs[]. */
static tn_status make_session(const ort_graph *o, void *const *inputs, tn_ort_session **out) {
    const tn_ort_options options = tn_ort_device_options();
    size_t count = (size_t)(o->input_count + o->scalar_count), constants = 0;
    AUTO_FREE const char **names = tn_mem_alloc((count + 1) * sizeof *names);
    AUTO_FREE tn_ort_tensor *values = tn_mem_alloc((count + 1) * sizeof *values);
    AUTO_STR tn_str texts = {0}, model = {0};
    for (size_t i = 0; i < count && names && values; i++) {
        onnx_put_engine_input(&texts, &o->inputs[i]);
        if (!o->inputs[i].constant) continue;
        names[constants] = o->inputs[i].name;
        values[constants] = o->values[i];
        values[constants++].data = inputs[i];
    }
    TRY(names && values ? onnx_engine_model(&o->body, &texts, &model) : TN_ERR_MEMORY);
    return tn_ort_session_with(model.text, model.length, names, values, (int)constants, &options, out);
}

static tn_status compile_model(ort_graph *o, const tn_engine_graph *g, tn_engine_refusal *why) {
    TRY(describe_graph(o, g));
    tn_status s = onnx_export_graph(g, &o->body, why);
    if (s == TN_OK) s = make_session(o, NULL, &o->session);
    return s == TN_OK ? TN_OK : refuse_graph(s, g, why);
}

static tn_status ort_graph_compile(const tn_engine_graph *g, void **out, tn_engine_refusal *why) {
    ort_graph *o = tn_mem_zalloc(1, sizeof *o);
    if (!o) return TN_ERR_MEMORY;
    tn_status s = compile_model(o, g, why);
    if (s == TN_OK)
        *out = o;
    else
        ort_graph_free(o);
    return s;
}

static tn_status ort_graph_fix(void *compiled, void *const *inputs, const bool *constant) {
    ort_graph *o = compiled;
    tn_ort_session_free(o->fixed);
    o->fixed = NULL;
    for (int i = 0; i < o->input_count; i++)
        o->inputs[i].constant = constant && constant[i] && !tn_dtype_is_quantized(o->inputs[i].dtype);
    return constant ? make_session(o, inputs, &o->fixed) : TN_OK;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* A runtime scalar in the type of its node: its bytes begin at `to`, which has room for any. */
static void put_scalar(const tn_ort_tensor *t, bool is_float, kir_scalar v, int64_t *to) {
    double number = is_float ? v.f : (double)v.i;
    float f = (float)number;
    *to = is_float ? (int64_t)v.f : v.i;
    if (t->type == ONNX_DOUBLE) memcpy(to, &number, sizeof number);
    if (t->type == ONNX_FLOAT) memcpy(to, &f, sizeof f);
}

/* Whether a run leaves out input i: it is a constant of the session, or quantized, which the model does not read. */
static bool is_left_out(const ort_graph *g, int i) {
    return (g->fixed && g->inputs[i].constant) || tn_dtype_is_quantized(g->inputs[i].dtype);
}

/* Fills `to` with the inputs of a run, and runtime scalars, whose bytes go to `numbers`; returns how many there are. */
static int list_inputs(const ort_graph *g, void *const *inputs, const kir_scalar *scalars, int64_t *numbers,
                       tn_ort_tensor *to) {
    int n = 0;
    for (int i = 0; i < g->input_count; i++) {
        if (is_left_out(g, i)) continue;
        to[n] = g->values[i];
        to[n++].data = inputs[i];
    }
    for (int i = 0; i < g->scalar_count; i++) {
        put_scalar(&g->values[g->input_count + i], g->is_float[i], scalars[i], &numbers[i]);
        to[n] = g->values[g->input_count + i];
        to[n++].data = &numbers[i];
    }
    return n;
}

static tn_status ort_graph_run(void *compiled, void *const *inputs, void *const *outputs, const kir_scalar *scalars) {
    enum { FEW = 32 };
    static char nothing[8]; /* an address for outputs without elements */
    const ort_graph *g = compiled;
    size_t in = (size_t)(g->input_count + g->scalar_count), out = (size_t)g->output_count;
    tn_ort_tensor few[FEW];
    AUTO_FREE tn_ort_tensor *many = in + out > FEW ? tn_mem_alloc((in + out) * sizeof *many) : NULL;
    tn_ort_tensor *all = in + out > FEW ? many : few;
    AUTO_FREE int64_t *numbers = tn_mem_alloc(((size_t)g->scalar_count + 1) * sizeof *numbers);
    if (!all || !numbers) return TN_ERR_MEMORY;
    tn_ort_tensor *results = all + list_inputs(g, inputs, scalars, numbers, all);
    for (size_t i = 0; i < out; i++) {
        results[i] = g->outputs[i];
        results[i].data = outputs[i] ? outputs[i] : nothing;
    }
    return tn_ort_run(g->fixed ? g->fixed : g->session, all, results);
}

const tn_engine tn_engine_onnxruntime = {
    .backend = "engine:onnxruntime",
    .compile = ort_graph_compile,
    .fix = ort_graph_fix,
    .run = ort_graph_run,
    .free = ort_graph_free,
};

#endif
