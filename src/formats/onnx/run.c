/* run.c — walks a model's nodes; what comes in is checked against what the model declares.
 *
 * A frame is a graph that is being run: its slots hold values from the node that makes them to the last that reads
 * them. Nodes of constants alone leave their outputs with the graph and are not met again. */
#include <string.h>

#include "formats/onnx/attributes.h"
#include "trunnion/autograd.h"

/* ---- frames ------------------------------------------------------------------------------------------------------ */

static void set_slot(onnx_frame *f, int32_t slot, onnx_value *v) {
    if (slot < 0) {
        onnx_value_release(v);
        return;
    }
    onnx_value_release(f->slots[slot]);
    f->slots[slot] = v;
}

static void free_values(onnx_value **values, int count) {
    for (int i = 0; i < count; i++) {
        onnx_value_release(values[i]);
        values[i] = NULL;
    }
}

static void frame_end(onnx_frame *f) {
    for (int32_t i = 0; f->slots && i < f->graph->slot_count; i++)
        onnx_value_release(f->slots[i]);
    tn_mem_free(f->slots);
}

/* What a graph is given is no constant to it, even where it is one outside: another call may bring another. */
static onnx_value *as_input(onnx_value *v) {
    if (!v || v->fixed != ONNX_CONSTANT) return onnx_value_retain(v);
    return onnx_value_as(onnx_value_retain(v), ONNX_EXTENTS);
}

static tn_status frame_begin(onnx_frame *f, onnx_value *const *in, int in_count) {
    const onnx_graph *g = f->graph;
    f->slots = tn_mem_zalloc((size_t)g->slot_count, sizeof(onnx_value *));
    if (!f->slots) return TN_ERR_MEMORY;
    for (int32_t i = 0; i < g->slot_count; i++)
        f->slots[i] = onnx_value_retain(g->constants[i]);
    for (int i = 0; i < g->captured_count; i++)
        set_slot(f, g->captured[i].to, onnx_value_retain(f->outer->slots[g->captured[i].from]));
    for (int i = 0; i < g->input_count && i < in_count; i++) {
        if (!in[i]) continue;
        onnx_value *v = as_input(in[i]);
        if (!v) return tn_error_code();
        set_slot(f, g->inputs[i].slot, v);
    }
    return TN_OK;
}

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

static void drop_if_dead(onnx_frame *f, int32_t slot, int node) {
    if (slot >= 0 && f->graph->last_use[slot] <= node) set_slot(f, slot, NULL);
}

/* Lets go what no later node reads. */
static void drop_dead(onnx_frame *f, int node) {
    const onnx_node *n = &f->graph->nodes[node];
    for (int i = 0; i < n->in_count; i++)
        drop_if_dead(f, n->in[i], node);
    for (int k = 0; k < n->attribute_count; k++) {
        const onnx_attribute *a = &n->attributes[k];
        for (size_t j = 0; a->graphs && j < a->count; j++)
            for (int i = 0; a->graphs[j] && i < a->graphs[j]->captured_count; i++)
                drop_if_dead(f, a->graphs[j]->captured[i].from, node);
    }
}

static uint8_t level_of_inputs(const onnx_frame *f, const onnx_call *c) {
    uint8_t level = f->function ? ONNX_EXTENTS : ONNX_CONSTANT; /* a function's attributes differ from call to call */
    for (int i = 0; i < c->in_count; i++)
        if (c->in[i] && c->in[i]->fixed < level) level = c->in[i]->fixed;
    return level;
}

static bool worth_keeping(const onnx_value *v) {
    if (v->fixed != ONNX_CONSTANT) return false;
    if (v->kind != ONNX_TENSOR) return true;
    return (int64_t)tn_dtype_bytes(tn_dtype_of(v->tensor), tn_numel(v->tensor)) <= ONNX_MAX_FOLDED;
}

/* Leaves the outputs of a node with the graph if they are constants all. */
static tn_status fold_graph(onnx_run *r, onnx_frame *f, int node) {
    onnx_graph *g = (onnx_graph *)(uintptr_t)f->graph; /* what it knows of itself grows */
    const onnx_node *n = &g->nodes[node];
    tn_onnx *m = r->model;
    for (int k = 0; k < n->out_count; k++)
        if (n->out[k] >= 0 && f->slots[n->out[k]] && !worth_keeping(f->slots[n->out[k]])) return TN_OK;
    for (int k = 0; k < n->out_count; k++) {
        onnx_value *v = n->out[k] >= 0 ? f->slots[n->out[k]] : NULL;
        if (!v) continue;
        TRY(tn_mem_reserve(&m->values, &m->value_capacity, m->value_count + 1, sizeof(onnx_value *)));
        m->values[m->value_count++] = onnx_value_retain(v);
        g->constants[n->out[k]] = v;
    }
    g->folded[node] = true;
    return TN_OK;
}

/* How often values of a slot are read: by nodes, by subgraphs, as what the graph yields. */
static int64_t readers_of(const onnx_graph *g, int32_t slot) {
    int64_t count = 0;
    for (int i = 0; i < g->node_count; i++) {
        const onnx_node *n = &g->nodes[i];
        for (int k = 0; k < n->in_count; k++)
            count += n->in[k] == slot;
        for (int k = 0; k < n->attribute_count; k++)
            for (size_t j = 0; n->attributes[k].graphs && j < n->attributes[k].count; j++)
                for (int s = 0; s < n->attributes[k].graphs[j]->captured_count; s++)
                    count += n->attributes[k].graphs[j]->captured[s].from == slot;
    }
    for (int k = 0; k < g->output_count; k++)
        count += g->outputs[k].slot == slot;
    return count;
}

tn_status onnx_keep(onnx_call *c, int i, tn_tensor *t) {
    onnx_run *r = c->run;
    tn_onnx *m = r->model;
    onnx_frame *f = r->frame;
    onnx_graph *g = (onnx_graph *)(uintptr_t)f->graph; /* what it knows of itself grows */
    int32_t slot = c->node->in[i];
    int64_t bytes = (int64_t)tn_dtype_bytes(tn_dtype_of(t), tn_numel(t));
    if (f->function || r->capturing || slot < 0 || c->in[i] != g->constants[slot]) return TN_OK;
    if (bytes > ONNX_MAX_FOLDED || bytes > ONNX_MAX_KEPT - m->kept || readers_of(g, slot) != 1) return TN_OK;
    TRY(tn_mem_reserve(&m->values, &m->value_capacity, m->value_count + 1, sizeof(onnx_value *)));
    onnx_value *v = onnx_value_tensor(tn_detach(t), onnx_type_of(tn_dtype_of(t)));
    if (!v) return tn_error_code();
    v->fixed = ONNX_CONSTANT;
    m->values[m->value_count++] = v;
    m->kept += bytes;
    g->constants[slot] = v;
    return TN_OK;
}

const tn_tensor *onnx_derived(const onnx_call *c, int i, onnx_derivation which,
                              tn_tensor *(*make)(const tn_tensor *x)) {
    onnx_value *of = c->in[i];
    if (of->derived[which]) return of->derived[which]->tensor;
    tn_tensor *t = make(of->tensor);
    int64_t bytes = (int64_t)tn_dtype_bytes(tn_dtype_of(t), tn_numel(t));
    tn_onnx *m = c->run->model;
    bool keep = of->fixed == ONNX_CONSTANT && !c->run->capturing && bytes <= ONNX_MAX_KEPT - m->kept;
    if (!keep || tn_status_of(t) != TN_OK) return t;
    of->derived[which] = onnx_value_tensor(tn_detach(t), onnx_type_of(tn_dtype_of(t)));
    if (of->derived[which]) m->kept += bytes;
    return t;
}

static tn_status take_outputs(onnx_call *c, onnx_frame *f) {
    const onnx_node *n = c->node;
    for (int k = 0; k < n->out_count; k++) {
        if (!onnx_wants(c, k)) continue;
        if (!c->out[k]) return onnx_refuse(c, "output %d, which is read, is not made", k);
        set_slot(f, n->out[k], c->out[k]);
        c->out[k] = NULL;
    }
    return TN_OK;
}

static tn_status call_function(onnx_call *c);

static tn_status call_row(onnx_run *r, onnx_frame *f, int node, onnx_value **lists) {
    const onnx_node *n = &f->graph->nodes[node];
    onnx_call c = {.run = r,
                   .node = n,
                   .row = n->row,
                   .in = lists,
                   .out = lists + n->in_count,
                   .in_count = n->in_count,
                   .out_count = n->out_count,
                   .opset = n->opset};
    for (int i = 0; i < n->in_count; i++)
        lists[i] = n->in[i] < 0 ? NULL : f->slots[n->in[i]];
    c.fixed = level_of_inputs(f, &c);
    if (!n->calls && !n->row) return onnx_refuse(&c, "Trunnion does not have this operator");
    if (n->row && n->refers) TRY(onnx_check_references(&c));
    tn_status status = TN_OK;
    {
        TN_SCOPE;
        status = n->calls ? call_function(&c) : n->row->run(&c);
    }
    if (status == TN_OK) status = take_outputs(&c, f);
    for (int k = 0; k < n->out_count; k++)
        onnx_value_release(c.out[k]);
    return status;
}

/* Nodes and frames: a loop's body may have no node. */
static tn_status count_step(onnx_run *r) {
    if (++r->steps <= ONNX_MAX_STEPS) return TN_OK;
    return tn_fail(TN_ERR_UNSUPPORTED, "a run of more than %lld nodes: a loop in the model does not end",
                   (long long)ONNX_MAX_STEPS);
}

static tn_status run_node(onnx_run *r, onnx_frame *f, int node) {
    enum { FEW = 24 };
    const onnx_node *n = &f->graph->nodes[node];
    TRY(count_step(r));
    onnx_value *few[FEW] = {0};
    size_t count = (size_t)(n->in_count + n->out_count);
    onnx_value **lists = count <= FEW ? few : tn_mem_zalloc(count, sizeof(onnx_value *));
    if (!lists) return TN_ERR_MEMORY;
    tn_status status = call_row(r, f, node, lists);
    if (lists != few) tn_mem_free(lists);
    TRY(status);
    if (!f->function && !r->capturing) TRY(fold_graph(r, f, node));
    drop_dead(f, node);
    return TN_OK;
}

static tn_status run_nodes(onnx_run *r, onnx_frame *f) {
    for (int i = 0; i < f->graph->node_count; i++)
        if (!f->graph->folded[i]) TRY(run_node(r, f, i));
    return TN_OK;
}

/* Runs f's graph; outputs are given over. */
static tn_status run_frame(onnx_run *r, onnx_frame *f, onnx_value *const *in, int in_count, onnx_value **out,
                           int out_count) {
    if (r->depth == ONNX_MAX_FRAMES)
        return tn_fail(TN_ERR_UNSUPPORTED, "functions and subgraphs run more than %d deep in each other",
                       ONNX_MAX_FRAMES);
    TRY(count_step(r));
    onnx_frame *around = r->frame;
    r->frame = f;
    r->depth++;
    tn_status status = frame_begin(f, in, in_count);
    if (status == TN_OK) status = run_nodes(r, f);
    for (int k = 0; k < out_count && k < f->graph->output_count && status == TN_OK; k++)
        out[k] = onnx_value_retain(f->slots[f->graph->outputs[k].slot]);
    frame_end(f);
    r->depth--;
    r->frame = around;
    return status;
}

tn_status onnx_call_graph(onnx_call *c, const onnx_graph *g, onnx_value *const *in, int in_count, onnx_value **out,
                          int out_count) {
    onnx_frame *here = c->run->frame;
    onnx_frame f = {.outer = here, .graph = g, .function = here->function, .caller = here->caller};
    for (int k = 0; k < out_count; k++)
        out[k] = NULL;
    TRY(run_frame(c->run, &f, in, in_count, out, out_count));
    for (int k = 0; k < out_count; k++) { /* what was left out may be handed through */
        if (out[k]) continue;
        free_values(out, out_count);
        return onnx_refuse(c, "output %d of its subgraph has no value", k);
    }
    return TN_OK;
}

static tn_status call_function(onnx_call *c) {
    onnx_frame f = {.graph = c->node->calls->body, .function = c, .caller = c->run->frame};
    TRY(run_frame(c->run, &f, c->in, c->in_count, c->out, c->out_count));
    return TN_OK;
}

/* ---- a run ------------------------------------------------------------------------------------------------------- */

void onnx_run_end(onnx_run *r) {
    for (size_t i = 0; i < r->error_count; i++)
        tn_free(r->errors[i]);
    tn_mem_free(r->errors);
    for (size_t i = 0; i < r->memo_count; i++)
        tn_mem_free(r->memos[i].numbers);
    tn_mem_free(r->memos);
}

tn_status onnx_evaluate(onnx_value *const *values, int count) {
    tn_tensor **tensors = tn_mem_alloc((size_t)count * sizeof(tn_tensor *));
    if (!tensors) return TN_ERR_MEMORY;
    int n = 0;
    for (int i = 0; i < count; i++)
        if (values[i]->kind == ONNX_TENSOR) tensors[n++] = values[i]->tensor;
    tn_status status = tn_eval(tensors, n);
    tn_mem_free(tensors);
    return status;
}

tn_status onnx_run_model(onnx_run *r, onnx_value *const *in, onnx_value **out) {
    const onnx_graph *g = r->model->graph;
    onnx_frame f = {.graph = g};
    return run_frame(r, &f, in, g->input_count, out, g->output_count);
}

static void shape_text(const int64_t *shape, int rank, char *text, size_t size) {
    tn_str s = {0};
    for (int d = 0; d < rank; d++) {
        if (shape[d] < 0)
            tn_str_add(&s, "%s?", d ? ", " : "");
        else
            tn_str_add(&s, "%s%lld", d ? ", " : "", (long long)shape[d]);
    }
    size_t n = s.length < size ? s.length : size - 1;
    memcpy(text, tn_str_text(&s), n);
    text[n] = 0;
    tn_str_free(&s);
}

static tn_status check_shape(const onnx_port *p, const onnx_value *v) {
    int64_t shape[TN_MAX_RANK];
    int rank = tn_onnx_value_shape(v, shape);
    if (p->type->rank < 0) return TN_OK;
    bool fits = rank == p->type->rank;
    for (int d = 0; d < rank && fits; d++)
        fits = p->type->shape[d] < 0 || p->type->shape[d] == shape[d];
    if (fits) return TN_OK;
    char given[160], wanted[160];
    shape_text(shape, rank, given, sizeof given);
    shape_text(p->type->shape, p->type->rank, wanted, sizeof wanted);
    return tn_fail(TN_ERR_SHAPE, "input '%s' is [%s] but has to be [%s]", p->name, given, wanted);
}

/* An input as the model declares it: types that live in wider ones come in as those. */
static tn_status adopt(const onnx_port *p, onnx_value *given, onnx_value **out) {
    if (!given) return tn_fail(TN_ERR_ARGUMENT, "input '%s' is NULL", p->name);
    *out = onnx_value_as(onnx_value_retain(given), ONNX_VARIES); /* another run's constant is none of this one */
    if (!*out) return tn_error_code();
    const onnx_declared *t = p->type;
    if (!t || (t->kind == ONNX_TENSOR && t->type == ONNX_UNDEFINED)) return TN_OK;
    if (t->kind != given->kind)
        return tn_fail(TN_ERR_ARGUMENT,
                       "input '%s' is of another kind (tensor, texts, sequence …) than the model wants", p->name);
    if (t->kind == ONNX_STRINGS) return check_shape(p, given);
    if (t->kind != ONNX_TENSOR) return TN_OK;
    TRY(tn_status_of(given->tensor));
    if (tn_dtype_of(given->tensor) != onnx_types[t->type].dtype)
        return tn_fail(TN_ERR_DTYPE, "input '%s' is %s but has to be %s (%s)", p->name,
                       tn_dtype_name(tn_dtype_of(given->tensor)), onnx_types[t->type].name,
                       tn_dtype_name(onnx_types[t->type].dtype));
    if (given->type != t->type) {
        onnx_value_release(*out);
        *out = onnx_value_tensor(tn_retain(given->tensor), t->type);
        if (!*out) return tn_error_code();
    }
    bool is_complex = t->type == ONNX_COMPLEX64 || t->type == ONNX_COMPLEX128;
    return is_complex ? TN_OK : check_shape(p, *out);
}

tn_status tn_onnx_run(tn_onnx *m, tn_onnx_value *const *inputs, tn_onnx_value **outputs) {
    TRY(tn_need(m, "tn_onnx_run: the model"));
    if (m->is_inert) return tn_fail(TN_ERR_STATE, "tn_onnx_run: the model was opened for its weights alone");
    int in_count = m->graph->input_count, out_count = m->graph->output_count;
    if (out_count) TRY(tn_need(outputs, "tn_onnx_run: outputs"));
    for (int k = 0; k < out_count; k++)
        outputs[k] = NULL;
    if (in_count) TRY(tn_need(inputs, "tn_onnx_run: inputs"));
    onnx_value **in = tn_mem_zalloc((size_t)in_count, sizeof(onnx_value *));
    if (!in) return TN_ERR_MEMORY;
    tn_status status = TN_OK;
    for (int i = 0; i < in_count && status == TN_OK; i++)
        status = adopt(&m->graph->inputs[i], inputs[i], &in[i]);
    {
        TN_NO_GRAD;
        if (status == TN_OK) status = onnx_run_or_replay(m, in, outputs);
    }
    free_values(in, in_count);
    tn_mem_free(in);
    if (status != TN_OK) free_values(outputs, out_count);
    return status;
}
