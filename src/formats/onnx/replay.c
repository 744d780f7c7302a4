/* replay.c — a model that is run again with inputs of the same shapes becomes a captured graph, launched from then on.
 *
 * The first run notes every list of numbers that its rows read on the host and that constants and extents alone tell;
 * the second records without computing, and its rows read the notes. Small integer inputs count as told too: once a row
 * has read what depends on them (a branch on the sample rate), their numbers are part of what runs are told apart by.
 * Whatever else is read, by a row or inside an operation, leaves the model to be recorded at each run.
 *
 * Several threads may run one model. All changes to the model are made under its lock. A launch needs only a graph that
 * no other thread launches, so it runs without the lock; threads that run at the same time capture one graph each. */
#include <pthread.h>
#include <string.h>

#include "formats/onnx/model.h"
#include "graph/graph.h"
#include "graph/node_internal.h"
#include "trunnion/ops.h"

typedef struct replay_input {
    onnx_type type;
    int rank;
    int64_t shape[TN_MAX_RANK];
    int64_t count, values[ONNX_SMALL_INPUT]; /* of a small integer input; count -1: another */
} replay_input;

/* Where an output comes from: a value that does not change, an input (perhaps in another shape), or the captured
 * graph. */
typedef struct replay_output {
    onnx_value *constant;
    int input, of_graph; /* -1: no */
    bool reshaped;
    int rank;
    int64_t shape[TN_MAX_RANK];
    onnx_type type;
} replay_output;

/* More threads than this at once record instead of launching. */
enum { MAX_GRAPHS = 32 };

typedef struct replay_graph {
    tn_graph *graph;
    bool busy; /* being launched */
} replay_graph;

struct onnx_replay {
    onnx_replay *next; /* in the order of last use */
    int users;         /* the list of replays, and threads that launch */
    replay_input *inputs;
    int input_count, output_count, graph_count;
    bool keyed, hopeless;
    onnx_memo *memos;
    size_t memo_count;
    replay_graph graphs[MAX_GRAPHS];
    int graphs_made;
    replay_output *outputs;
};

static void free_outputs(replay_output *outputs, int count) {
    for (int k = 0; outputs && k < count; k++)
        onnx_value_release(outputs[k].constant);
    tn_mem_free(outputs);
}

/* One user less; the last one frees it. */
static void release_replay(onnx_replay *e) {
    if (--e->users > 0) return;
    for (size_t i = 0; i < e->memo_count; i++)
        tn_mem_free(e->memos[i].numbers);
    free_outputs(e->outputs, e->output_count);
    tn_mem_free(e->memos);
    tn_mem_free(e->inputs);
    for (int i = 0; i < e->graphs_made; i++)
        tn_graph_free(e->graphs[i].graph);
    tn_mem_free(e);
}

void onnx_replays_free(tn_onnx *m) {
    while (m->replays) {
        onnx_replay *next = m->replays->next;
        release_replay(m->replays);
        m->replays = next;
    }
}

/* ---- telling runs apart ------------------------------------------------------------------------------------------ */

static bool is_integer(tn_dtype t) { return (int)t < TN_PLAIN_DTYPES && !tn_dtype_is_float(t); }

/* Notes what an input is; a small integer one is given the level of what keys tell. */
static tn_status note_input(replay_input *k, onnx_value **in) {
    const tn_tensor *t = (*in)->tensor;
    int64_t wide = tn_numel(t);
    *k = (replay_input){.type = (*in)->type, .rank = tn_rank(t), .count = -1};
    memcpy(k->shape, tn_shape(t), (size_t)k->rank * sizeof *k->shape);
    tn_dtype dtype = tn_dtype_of(t);
    if (!is_integer(dtype) || wide > ONNX_SMALL_INPUT) return TN_OK;
    TRY(tn_read(t, k->values, tn_dtype_bytes(dtype, wide)));
    k->count = wide;
    *in = onnx_value_as(*in, ONNX_KEYED);
    return *in ? TN_OK : tn_error_code();
}

static bool same_input(const replay_input *a, const replay_input *b, bool keyed) {
    if (a->type != b->type || a->rank != b->rank) return false;
    if (memcmp(a->shape, b->shape, (size_t)a->rank * sizeof *a->shape) != 0) return false;
    return !keyed || memcmp(a->values, b->values, sizeof a->values) == 0;
}

/* The entry for these inputs, put first; NULL when there is none. */
static onnx_replay *find_replay(tn_onnx *m, const replay_input *key) {
    for (onnx_replay **at = &m->replays; *at; at = &(*at)->next) {
        onnx_replay *e = *at;
        int i = 0;
        while (i < e->input_count && same_input(&e->inputs[i], &key[i], e->keyed))
            i++;
        if (i < e->input_count) continue;
        *at = e->next;
        e->next = m->replays;
        m->replays = e;
        return e;
    }
    return NULL;
}

/* Takes over key and the run's notes. */
static tn_status add_replay(tn_onnx *m, replay_input *key, onnx_run *r) {
    onnx_replay *e = tn_mem_zalloc(1, sizeof *e);
    if (!e) {
        tn_mem_free(key);
        return TN_ERR_MEMORY;
    }
    e->users = 1;
    e->inputs = key;
    e->input_count = m->graph->input_count;
    e->keyed = r->keyed;
    e->memos = r->memos;
    e->memo_count = r->memo_count;
    r->memos = NULL;
    r->memo_count = 0;
    e->next = m->replays;
    m->replays = e;
    int count = 0;
    for (onnx_replay **at = &m->replays; *at; at = &(*at)->next) {
        if (++count <= ONNX_MAX_REPLAYS) continue;
        onnx_replay *last = *at;
        *at = NULL;
        release_replay(last);
        break;
    }
    return TN_OK;
}

/* ---- inputs as a captured graph takes them ----------------------------------------------------------------------- */

/* A handle over a whole buffer with a value; NULL when t cannot be one without a copy that nobody asked for. */
static tn_tensor *replay_whole(tn_tensor *t) {
    tn_tensor *c = tn_contiguous(t);
    if (tn_eval(&c, 1) != TN_OK) {
        tn_free(c);
        return NULL;
    }
    tn_node *n = tn_tensor_node(c);
    if (n->buffer) return c;
    bool all = n->root && n->root->buffer && tn_node_contiguous(n);
    tn_tensor *own = all ? tn_tensor_new(tn_node_data(n->root->buffer, n->shape, n->rank, (tn_dtype)n->dtype)) : NULL;
    tn_free(c);
    return own;
}

/* Puts whole tensors in the place of inputs; false when one cannot be. */
static bool make_whole(onnx_value **in, int count) {
    for (int i = 0; i < count; i++) {
        if (tn_tensor_node(in[i]->tensor)->buffer) continue;
        tn_tensor *t = replay_whole(in[i]->tensor);
        onnx_value *v = t ? onnx_value_tensor(t, in[i]->type) : NULL;
        if (!v) return false;
        v->fixed = in[i]->fixed;
        onnx_value_release(in[i]);
        in[i] = v;
    }
    return true;
}

/* ---- capturing --------------------------------------------------------------------------------------------------- */

static int64_t launches_so_far(void) {
    tn_runtime_stats stats = {.struct_size = sizeof stats};
    return tn_get_runtime_stats(&stats) == TN_OK ? stats.launches : -1;
}

static int input_of(const tn_node *n, onnx_value *const *in, int count) {
    for (int i = 0; i < count; i++)
        if (tn_tensor_node(in[i]->tensor) == n) return i;
    return -1;
}

typedef struct capturing {
    onnx_replay *entry;
    onnx_value **in, **out;
    tn_tensor **in_tensors, **out_tensors;
    replay_output *outputs;
    int graph_count;
    tn_graph *graph;
} capturing;

/* Says where output v comes from; c->out_tensors gets what the graph shall hand out. false: it cannot be replayed. */
static bool place_output(capturing *c, replay_output *o, onnx_value **v) {
    int inputs = c->entry->input_count;
    if ((*v)->kind != ONNX_TENSOR) return false;
    tn_node *n = tn_tensor_node((*v)->tensor);
    *o = (replay_output){.input = input_of(n, c->in, inputs), .of_graph = -1, .type = (*v)->type};
    if (o->input >= 0) return true;
    int root = tn_node_computed(n) && n->flags & TN_NODE_VIEW ? input_of(n->root, c->in, inputs) : -1;
    if (root >= 0) {
        o->reshaped = true;
        o->input = root;
        o->rank = n->rank;
        memcpy(o->shape, n->shape, sizeof o->shape);
        return tn_node_contiguous(n);
    }
    if (tn_node_computed(n)) {
        o->constant = onnx_value_retain(*v);
        return true;
    }
    c->out_tensors[c->graph_count] = tn_contiguous((*v)->tensor);
    o->of_graph = c->graph_count++;
    return true;
}

static void free_list(onnx_value **values, int count) {
    for (int i = 0; i < count; i++) {
        onnx_value_release(values[i]);
        values[i] = NULL;
    }
}

/* Between begin and end of the capture. Values are let go: what is held is stored, beside the graph's results. */
static tn_status record_outputs(tn_onnx *m, capturing *c) {
    onnx_replay *e = c->entry;
    int64_t before = launches_so_far();
    onnx_run r = {.model = m, .capturing = true, .memos = e->memos, .memo_count = e->memo_count};
    tn_status status = onnx_run_model(&r, c->in, c->out);
    r.memos = NULL; /* the entry's */
    r.memo_count = 0;
    onnx_run_end(&r);
    TRY(status);
    for (int k = 0; k < m->graph->output_count; k++)
        if (!place_output(c, &c->outputs[k], &c->out[k]))
            return tn_fail(TN_ERR_UNSUPPORTED, "output %d cannot be replayed", k);
    if (launches_so_far() != before || c->graph_count == 0)
        return tn_fail(TN_ERR_UNSUPPORTED, "something is computed while the model is recorded");
    free_list(c->out, m->graph->output_count);
    return TN_OK;
}

static tn_status capture(tn_onnx *m, capturing *c) {
    int in_count = m->graph->input_count;
    c->outputs = tn_mem_zalloc((size_t)m->graph->output_count, sizeof *c->outputs);
    if (!c->outputs || !c->in_tensors || !c->out_tensors) return TN_ERR_MEMORY;
    for (int i = 0; i < in_count; i++)
        c->in_tensors[i] = c->in[i]->tensor;
    TRY(tn_capture_begin());
    tn_status status = record_outputs(m, c);
    if (status == TN_OK) return tn_capture_end(c->in_tensors, in_count, c->out_tensors, c->graph_count, &c->graph);
    tn_graph *nothing = NULL;
    if (tn_capture_end(NULL, 0, NULL, 0, &nothing) == TN_OK) tn_graph_free(nothing);
    return status;
}

/* The values of a captured or launched graph, whose results are given over. */
static tn_status hand_out_replay(const onnx_replay *e, onnx_value *const *in, tn_tensor **results, onnx_value **out) {
    tn_status status = TN_OK;
    for (int k = 0; k < e->output_count; k++) {
        const replay_output *o = &e->outputs[k];
        if (o->reshaped)
            out[k] = onnx_value_tensor(tn_reshape(in[o->input]->tensor, o->shape, o->rank), o->type);
        else if (o->constant || o->input >= 0)
            out[k] = onnx_value_retain(o->constant ? o->constant : in[o->input]);
        else
            out[k] = onnx_value_tensor(tn_retain(results[o->of_graph]), o->type);
        if (!out[k]) status = tn_error_code();
    }
    for (int i = 0; i < e->graph_count; i++)
        tn_free(results[i]);
    return status;
}

static const tn_buffer *buffer_of(const tn_tensor *t) {
    const tn_node *n = tn_tensor_node(t);
    return n->buffer || !n->root ? n->buffer : n->root->buffer;
}

/* Whether an input's memory is also another input's or a constant's: a capture tells inputs apart by their memory, so
 * that the one would be replayed as the other. */
static bool shares_memory(const tn_onnx *m, onnx_value *const *in) {
    for (int i = 0; i < m->graph->input_count; i++) {
        const tn_buffer *own = buffer_of(in[i]->tensor);
        for (int j = 0; j < i; j++)
            if (buffer_of(in[j]->tensor) == own) return true;
        for (size_t v = 0; v < m->value_count; v++)
            if (m->values[v]->kind == ONNX_TENSOR && buffer_of(m->values[v]->tensor) == own) return true;
    }
    return false;
}

/* Captures; *done false: it could not be, and never will. */
static tn_status try_capture(tn_onnx *m, onnx_replay *e, onnx_value **in, onnx_value **out, bool *done) {
    int out_count = m->graph->output_count;
    capturing c = {.entry = e, .in = in, .out = tn_mem_zalloc((size_t)out_count, sizeof(onnx_value *))};
    c.in_tensors = tn_mem_zalloc((size_t)m->graph->input_count, sizeof(tn_tensor *));
    c.out_tensors = tn_mem_zalloc((size_t)out_count, sizeof(tn_tensor *));
    tn_status status = c.out ? capture(m, &c) : TN_ERR_MEMORY;
    *done = status == TN_OK;
    e->hopeless = !*done && e->graphs_made == 0;
    if (*done) {
        /* What the first capture says of the outputs holds for all, and threads that launch read it without a lock. */
        if (e->outputs) {
            free_outputs(c.outputs, out_count);
        } else {
            e->outputs = c.outputs;
            e->output_count = out_count;
            e->graph_count = c.graph_count;
        }
        e->graphs[e->graphs_made++] = (replay_graph){c.graph, false};
        status = hand_out_replay(e, in, c.out_tensors, out);
    } else {
        for (int i = 0; c.out_tensors && i < c.graph_count; i++)
            tn_free(c.out_tensors[i]);
        free_outputs(c.outputs, out_count);
        status = TN_OK;
    }
    if (c.out) free_list(c.out, out_count);
    tn_mem_free(c.out);
    tn_mem_free(c.in_tensors);
    tn_mem_free(c.out_tensors);
    return status;
}

static tn_status launch_replay(const onnx_replay *e, tn_graph *graph, onnx_value *const *in, onnx_value **out) {
    enum { FEW = 16 };
    tn_tensor *few[FEW];
    size_t count = (size_t)(e->input_count + e->graph_count);
    tn_tensor **lists = count <= FEW ? few : tn_mem_alloc(count * sizeof(tn_tensor *));
    if (!lists) return TN_ERR_MEMORY;
    for (int i = 0; i < e->input_count; i++)
        lists[i] = in[i]->tensor;
    tn_tensor **results = lists + e->input_count;
    tn_status status = tn_graph_launch(graph, lists, results);
    if (status == TN_OK) status = hand_out_replay(e, in, results, out);
    if (lists != few) tn_mem_free(lists);
    return status;
}

static replay_graph *free_graph(onnx_replay *e) {
    for (int i = 0; i < e->graphs_made; i++)
        if (!e->graphs[i].busy) return &e->graphs[i];
    return NULL;
}

/* The caller holds the model's lock, which is not held during the launch. */
static tn_status launch_unlocked(tn_onnx *m, onnx_replay *e, replay_graph *g, onnx_value *const *in, onnx_value **out) {
    g->busy = true;
    e->users++;
    pthread_mutex_unlock(&m->lock);
    tn_status status = launch_replay(e, g->graph, in, out);
    pthread_mutex_lock(&m->lock);
    g->busy = false;
    release_replay(e);
    return status;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static bool all_tensors(onnx_value *const *values, int count) {
    for (int i = 0; i < count; i++)
        if (values[i]->kind != ONNX_TENSOR) return false;
    return true;
}

/* Without replay, noting what a later one needs. Takes over key, which may be NULL: nothing is to be noted. */
static tn_status record_replay(tn_onnx *m, replay_input *key, onnx_value *const *in, onnx_value **out) {
    onnx_run r = {.model = m, .varied = key == NULL};
    tn_status status = onnx_run_model(&r, in, out);
    if (status == TN_OK) status = onnx_evaluate(out, m->graph->output_count);
    bool replayable = status == TN_OK && key && !r.varied && all_tensors(out, m->graph->output_count);
    if (replayable)
        status = add_replay(m, key, &r);
    else
        tn_mem_free(key);
    onnx_run_end(&r);
    return status;
}

static tn_status run_locked(tn_onnx *m, onnx_value **in, onnx_value **out) {
    int count = m->graph->input_count;
    if (!all_tensors(in, count)) return record_replay(m, NULL, in, out);
    replay_input *key = tn_mem_alloc((size_t)count * sizeof *key);
    if (!key) return TN_ERR_MEMORY;
    tn_status status = TN_OK;
    for (int i = 0; i < count && status == TN_OK; i++)
        status = note_input(&key[i], &in[i]);
    if (status != TN_OK) {
        tn_mem_free(key);
        return status;
    }
    onnx_replay *e = find_replay(m, key);
    if (!e) return record_replay(m, key, in, out);
    tn_mem_free(key);
    if (e->hopeless || !make_whole(in, count)) return record_replay(m, NULL, in, out);
    replay_graph *g = free_graph(e);
    if (g) return launch_unlocked(m, e, g, in, out);
    if (e->graphs_made == MAX_GRAPHS || shares_memory(m, in)) return record_replay(m, NULL, in, out);
    bool done;
    TRY(try_capture(m, e, in, out, &done));
    return done ? TN_OK : record_replay(m, NULL, in, out);
}

tn_status onnx_run_or_replay(tn_onnx *m, onnx_value **in, onnx_value **out) {
    pthread_mutex_lock(&m->lock);
    tn_status status = run_locked(m, in, out);
    pthread_mutex_unlock(&m->lock);
    return status;
}
