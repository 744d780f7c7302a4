/* onnx_control.c — ONNX: constants, subgraphs (If, Loop, Scan), sequences and optionals.
 *
 * A subgraph is recorded node by node, once per step. The model can be replayed only if conditions and trip counts do
 * not depend on values that are computed. */
#include <limits.h>
#include <string.h>

#include "onnx/model.h"
#include "onnx/onnx.h"
#include "trunnion/ops.h"

/* ---- Constant, Identity ------------------------------------------------------------------------------------------ */

static tn_status put_ints(onnx_call *c, const int64_t *ints, const int64_t *count) {
    static const int64_t none;
    return onnx_put(c, 0, tn_from_data(ints ? ints : &none, count, count ? 1 : 0, TN_I64));
}

static tn_status put_floats(onnx_call *c, const float *floats, const int64_t *count) {
    static const float none;
    return onnx_put(c, 0, tn_from_data(floats ? floats : &none, count, count ? 1 : 0, TN_F32));
}

static tn_status run_constant(onnx_call *c) {
    const onnx_attribute *a = onnx_find(c, "value");
    if (!a) a = onnx_find(c, "sparse_value");
    if (a && a->tensor) return onnx_put_value(c, 0, onnx_value_retain(a->tensor));
    if ((a = onnx_find(c, "value_int")) != NULL) return put_ints(c, &a->i, NULL);
    if ((a = onnx_find(c, "value_float")) != NULL) return put_floats(c, &a->f, NULL);
    if ((a = onnx_find(c, "value_string")) != NULL) return onnx_put_value(c, 0, onnx_value_strings(&a->s, NULL, 0));
    if ((a = onnx_find(c, "value_ints")) != NULL && (a->ints || !a->count))
        return put_ints(c, a->ints, &(int64_t){(int64_t)a->count});
    if ((a = onnx_find(c, "value_floats")) != NULL && (a->floats || !a->count))
        return put_floats(c, a->floats, &(int64_t){(int64_t)a->count});
    if ((a = onnx_find(c, "value_strings")) != NULL && (a->strings || !a->count))
        return onnx_put_value(c, 0, onnx_value_strings(a->strings, &(int64_t){(int64_t)a->count}, 1));
    return onnx_refuse(c, "its attribute 'value' is missing");
}

static tn_status run_identity(onnx_call *c) {
    return onnx_has(c, 0) ? onnx_put_value(c, 0, onnx_value_retain(c->in[0])) : onnx_refuse(c, "its input is missing");
}

/* ---- If ---------------------------------------------------------------------------------------------------------- */

static tn_status subgraph(const onnx_call *c, const char *name, const onnx_graph **out) {
    const onnx_attribute *a = onnx_find(c, name);
    if (!a || a->count < 1 || !a->graphs || !a->graphs[0]) return onnx_refuse(c, "it has no subgraph '%s'", name);
    *out = a->graphs[0];
    return TN_OK;
}

static uint8_t least(uint8_t a, uint8_t b) { return a < b ? a : b; }

/* Input i, if it is there, has the type that the standard asks for. */
static tn_status check_type(const onnx_call *c, int i, onnx_type type) {
    onnx_type own = onnx_in_type(c, i);
    if (!onnx_has(c, i) || (c->in[i]->kind == ONNX_TENSOR && own == type)) return TN_OK;
    return onnx_refuse(c, "input %d must be a tensor of %s, not %s", i, onnx_types[type].name,
                       c->in[i]->kind == ONNX_TENSOR ? onnx_types[own].name : "of another kind");
}

static tn_status run_if(onnx_call *c) {
    int64_t condition = 0;
    const onnx_graph *g = NULL;
    if (!onnx_has(c, 0)) return onnx_refuse(c, "its condition is missing");
    TRY(check_type(c, 0, ONNX_BOOL));
    TRY(onnx_read_int(c, 0, 0, &condition));
    TRY(subgraph(c, condition ? "then_branch" : "else_branch", &g));
    if (g->output_count < c->out_count) return onnx_refuse(c, "its branch has only %d outputs", g->output_count);
    AUTO_FREE onnx_value **out = tn_mem_zalloc((size_t)g->output_count, sizeof(onnx_value *));
    if (!out) return TN_ERR_MEMORY;
    tn_status status = onnx_call_graph(c, g, NULL, 0, out, g->output_count);
    for (int k = 0; k < g->output_count; k++) {
        if (status == TN_OK && out[k])
            status = onnx_put_level(c, k, out[k], least(out[k]->fixed, c->fixed));
        else
            onnx_value_release(out[k]);
    }
    return status;
}

/* ---- Loop -------------------------------------------------------------------------------------------------------- */

/* Growing lists of values: one a scan output. */
typedef struct value_list {
    onnx_value **at;
    size_t count, capacity;
} value_list;

static tn_status value_list_add(value_list *l, onnx_value *v) {
    tn_status status = v ? tn_mem_reserve(&l->at, &l->capacity, l->count + 1, sizeof(onnx_value *)) : tn_error_code();
    if (status == TN_OK)
        l->at[l->count++] = v;
    else
        onnx_value_release(v);
    return status;
}

static void value_list_end(value_list *l) {
    for (size_t i = 0; i < l->count; i++)
        onnx_value_release(l->at[i]);
    tn_mem_free(l->at);
}

/* What a loop carries from step to step, and what it gathers. */
typedef struct looping {
    onnx_call *c;
    const onnx_graph *body;
    int first;   /* input of the body that is the first carried value */
    int skipped; /* outputs of the body before the first carried value */
    int carried, gathered;
    onnx_value **in, **out;
    value_list *lists;
} looping;

static tn_status looping_begin(looping *l, onnx_call *c, int first, int skipped, int carried) {
    l->c = c;
    l->first = first;
    l->skipped = skipped;
    l->carried = carried;
    TRY(subgraph(c, "body", &l->body));
    l->gathered = l->body->output_count - skipped - carried;
    if (l->gathered < 0 || l->body->input_count < first + carried || c->out_count > carried + l->gathered)
        return onnx_refuse(
            c,
            "its body has %d inputs and %d outputs; it needs %d inputs, and for %d carried values and %d "
            "outputs of the node at least %d outputs",
            l->body->input_count, l->body->output_count, first + carried, carried, c->out_count,
            skipped + (int)tn_max64(carried, c->out_count));
    l->in = tn_mem_zalloc((size_t)l->body->input_count, sizeof(onnx_value *));
    l->out = tn_mem_zalloc((size_t)l->body->output_count, sizeof(onnx_value *));
    l->lists = tn_mem_zalloc((size_t)l->gathered, sizeof *l->lists);
    return l->in && l->out && l->lists ? TN_OK : TN_ERR_MEMORY;
}

static void release_all(onnx_value **values, int count) {
    for (int i = 0; values && i < count; i++) {
        onnx_value_release(values[i]);
        values[i] = NULL;
    }
}

static void looping_end(looping *l) {
    if (!l->body) return;
    release_all(l->in, l->body->input_count);
    release_all(l->out, l->body->output_count);
    for (int k = 0; l->lists && k < l->gathered; k++)
        value_list_end(&l->lists[k]);
    tn_mem_free_each(l->in, l->out, l->lists);
}

static void replace(onnx_value **to, onnx_value *v) {
    onnx_value_release(*to);
    *to = v;
}

/* One step: the body, then what it carries on becomes input, and what it gathers is noted. */
static tn_status looping_step(looping *l) {
    TRY(onnx_call_graph(l->c, l->body, l->in, l->body->input_count, l->out, l->body->output_count));
    for (int i = 0; i < l->carried; i++) {
        replace(&l->in[l->first + i], l->out[l->skipped + i]);
        l->out[l->skipped + i] = NULL;
    }
    for (int k = 0; k < l->gathered; k++) {
        onnx_value *v = l->out[l->skipped + l->carried + k];
        l->out[l->skipped + l->carried + k] = NULL;
        if (onnx_wants(l->c, l->carried + k))
            TRY(value_list_add(&l->lists[k], v));
        else
            onnx_value_release(v);
    }
    return TN_OK;
}

static tn_status put_carried(looping *l, uint8_t level) {
    for (int i = 0; i < l->carried; i++) {
        onnx_value *v = l->in[l->first + i];
        if (!v && !onnx_wants(l->c, i)) continue;
        if (!v) return onnx_refuse(l->c, "carried value %d is missing", i);
        TRY(onnx_put_level(l->c, i, onnx_value_retain(v), least(v->fixed, level)));
    }
    return TN_OK;
}

/* Of no step at all the body's declared shape is all there is. */
static tn_tensor *nothing_gathered(const looping *l, int k, int axis) {
    const onnx_declared *t = l->body->outputs[l->skipped + l->carried + k].type;
    int64_t shape[TN_MAX_RANK] = {0};
    int rank = t && t->rank > 0 ? t->rank + 1 : 1;
    if (rank > TN_MAX_RANK) return tn_failed(TN_ERR_SHAPE, "a result of %d dimensions is not supported", rank);
    if (axis < 0) axis += rank;
    for (int d = 0, from = 0; d < rank; d++)
        if (d != axis) shape[d] = t->shape[from] < 0 ? 0 : t->shape[from], from++;
    tn_dtype dtype = t && t->kind == ONNX_TENSOR && t->type ? onnx_types[t->type].dtype : TN_F32;
    return tn_zeros(shape, rank, dtype);
}

/* Gathered values k as one tensor with a new dim at `axis`; the last step first where `reverse`. */
static tn_status put_gathered(looping *l, int k, uint8_t level, int64_t axis, bool reverse) {
    value_list *list = &l->lists[k];
    int output = l->carried + k;
    if (!onnx_wants(l->c, output)) return TN_OK;
    if (list->count == 0) {
        l->c->fixed = level;
        return onnx_put(l->c, output, nothing_gathered(l, k, (int)axis));
    }
    if (list->count > INT_MAX) return onnx_refuse(l->c, "more than 2^31 steps");
    AUTO_FREE tn_tensor **tensors = tn_mem_alloc(list->count * sizeof(tn_tensor *));
    if (!tensors) return TN_ERR_MEMORY;
    for (size_t i = 0; i < list->count; i++) {
        const onnx_value *v = list->at[reverse ? list->count - 1 - i : i];
        if (v->kind != ONNX_TENSOR) return onnx_refuse(l->c, "output %d of its body is not a tensor of numbers", k);
        tensors[i] = v->tensor;
        level = least(level, v->fixed);
    }
    l->c->fixed = level;
    return onnx_put_typed(l->c, output, tn_stack(tensors, (int)list->count, axis), list->at[0]->type);
}

static onnx_value *number_value(tn_tensor *t, onnx_type type, uint8_t level) {
    onnx_value *v = onnx_value_tensor(t, type);
    if (v) v->fixed = level;
    return v;
}

/* The condition that the body's first output is. */
static tn_status read_condition(onnx_call *c, onnx_value *v, int64_t *out) {
    onnx_value *const in[] = {v};
    if (v->kind != ONNX_TENSOR || v->type != ONNX_BOOL)
        return onnx_refuse(c, "the condition that its body returns must be a tensor of BOOL, not %s",
                           v->kind == ONNX_TENSOR ? onnx_types[v->type].name : "of another kind");
    onnx_call reading = *c;
    reading.in = in;
    reading.in_count = 1;
    return onnx_read_int(&reading, 0, 1, out);
}

static tn_status run_steps(looping *l, int64_t most, int64_t condition, uint8_t *level) {
    onnx_call *c = l->c;
    bool given = onnx_has(c, 1);
    replace(&l->in[1], number_value(tn_from_data(&(bool){true}, NULL, 0, TN_BOOL), ONNX_BOOL, ONNX_EXTENTS));
    if (!l->in[1]) return tn_error_code();
    for (int64_t i = 0; i < most && (condition || !given); i++) {
        replace(&l->in[0], number_value(tn_from_data(&i, NULL, 0, TN_I64), ONNX_INT64, ONNX_EXTENTS));
        if (!l->in[0]) return tn_error_code();
        TRY(looping_step(l));
        if (given) {
            *level = least(*level, l->out[0]->fixed);
            TRY(read_condition(c, l->out[0], &condition));
        }
        replace(&l->in[1], onnx_value_retain(l->out[0]));
        replace(&l->out[0], NULL);
    }
    return TN_OK;
}

static tn_status run_loop(onnx_call *c) {
    AUTO_CALL(looping_end) looping state = {0};
    looping *l = &state;
    int64_t most = INT64_MAX, condition = 1;
    TRY(looping_begin(l, c, 2, 1, (int)tn_max64(c->in_count - 2, 0)));
    TRY(check_type(c, 0, ONNX_INT64));
    TRY(check_type(c, 1, ONNX_BOOL));
    TRY(onnx_read_int(c, 0, INT64_MAX, &most));
    TRY(onnx_read_int(c, 1, 1, &condition));
    if (!onnx_has(c, 1) && most > ONNX_MAX_STEPS)
        return onnx_refuse(c, "its trip count is %lld without a condition; the limit is %lld steps", (long long)most,
                           (long long)ONNX_MAX_STEPS);
    uint8_t level = ONNX_EXTENTS;
    if (onnx_has(c, 0)) level = least(level, c->in[0]->fixed);
    if (onnx_has(c, 1)) level = least(level, c->in[1]->fixed);
    if (!onnx_has(c, 0) && !onnx_has(c, 1))
        return onnx_refuse(c, "it has neither a trip count nor a condition: it never ends");
    for (int i = 0; i < l->carried; i++)
        l->in[2 + i] = onnx_value_retain(c->in[2 + i]);
    TRY(run_steps(l, most, condition, &level));
    TRY(put_carried(l, level));
    for (int k = 0; k < l->gathered; k++)
        TRY(put_gathered(l, k, level, 0, false));
    return TN_OK;
}

/* ---- Scan -------------------------------------------------------------------------------------------------------- */

/* One number of a list attribute; 0 where it is absent. */
static int64_t item_of(const onnx_call *c, const char *name, int i) {
    int count;
    const int64_t *list = onnx_ints(c, name, &count);
    return i < count ? list[i] : 0;
}

/* Item `step` of scan input i (of `scans`), whose tensor is x. */
static tn_status slice_input(looping *l, int i, const tn_tensor *x, const onnx_value *from, int64_t step,
                             int64_t steps) {
    int64_t at = item_of(l->c, "scan_input_directions", i) ? steps - 1 - step : step;
    onnx_value *v = onnx_value_tensor(tn_select(x, item_of(l->c, "scan_input_axes", i), at), from->type);
    if (!v) return tn_error_code();
    v->fixed = least(from->fixed, ONNX_EXTENTS);
    replace(&l->in[l->carried + i], v);
    return TN_OK;
}

static tn_status scan_steps(looping *l, onnx_value *const *inputs, int scans, int64_t *steps) {
    *steps = -1;
    for (int i = 0; i < scans; i++) {
        const onnx_value *v = inputs[l->carried + i];
        if (!v || v->kind != ONNX_TENSOR) return onnx_refuse(l->c, "scan input %d is not a tensor of numbers", i);
        int64_t n = tn_size(v->tensor, item_of(l->c, "scan_input_axes", i));
        if (n < 0 || (*steps >= 0 && n != *steps))
            return onnx_refuse(l->c, "scan input %d has %lld steps, but others have %lld", i, (long long)n,
                               (long long)*steps);
        *steps = n;
    }
    return *steps < 0 ? onnx_refuse(l->c, "it has no scan input") : TN_OK;
}

/* Scans over inputs: the carried values, then the scanned ones. */
static tn_status scan(looping *l, onnx_call *c, onnx_value *const *inputs, int count) {
    int scans = (int)tn_max64(0, tn_min64(onnx_int(c, "num_scan_inputs", 0), count));
    int64_t steps;
    TRY(looping_begin(l, c, 0, 0, count - scans));
    if (l->body->input_count != count) return onnx_refuse(c, "its body has %d inputs", l->body->input_count);
    TRY(scan_steps(l, inputs, scans, &steps));
    for (int i = 0; i < l->carried; i++)
        l->in[i] = onnx_value_retain(inputs[i]);
    for (int64_t s = 0; s < steps; s++) {
        for (int i = 0; i < scans; i++)
            TRY(slice_input(l, i, inputs[l->carried + i]->tensor, inputs[l->carried + i], s, steps));
        TRY(looping_step(l));
    }
    TRY(put_carried(l, ONNX_EXTENTS));
    for (int k = 0; k < l->gathered; k++)
        TRY(put_gathered(l, k, ONNX_EXTENTS, item_of(c, "scan_output_axes", k),
                         item_of(c, "scan_output_directions", k) != 0));
    return TN_OK;
}

static tn_status run_scan(onnx_call *c) {
    AUTO_CALL(looping_end) looping l = {0};
    return scan(&l, c, c->in, c->in_count);
}

/* ---- Scan of opset 8: over a batch, with lengths ---------------------------------------------------------------- */

/* Item b of every input but the lengths. */
static tn_status slice_batch(const onnx_call *c, int64_t b, onnx_value **items) {
    for (int i = 1; i < c->in_count; i++) {
        if (!onnx_has(c, i)) continue;
        replace(&items[i - 1], onnx_value_tensor(tn_select(onnx_in(c, i), 0, b), c->in[i]->type));
        if (!items[i - 1]) return tn_error_code();
        items[i - 1]->fixed = least(c->in[i]->fixed, ONNX_EXTENTS);
    }
    return TN_OK;
}

/* Each item of the batch is a scan of its own, whose outputs are stacked. */
static tn_status scan_batch(onnx_call *c, int64_t batch, onnx_value **items, onnx_value **outs) {
    for (int64_t b = 0; b < batch; b++) {
        onnx_call one = *c;
        looping l = {0};
        one.out = outs + b * c->out_count;
        tn_status status = slice_batch(c, b, items);
        if (status == TN_OK) status = scan(&l, &one, items, c->in_count - 1);
        looping_end(&l);
        TRY(status);
    }
    for (int k = 0; k < c->out_count; k++) {
        if (!onnx_wants(c, k)) continue;
        value_list list = {0};
        looping l = {.c = c, .lists = &list, .gathered = 1, .carried = k};
        tn_status status = TN_OK;
        for (int64_t b = 0; b < batch && status == TN_OK; b++)
            status = value_list_add(&list, onnx_value_retain(outs[b * c->out_count + k]));
        if (status == TN_OK) status = put_gathered(&l, 0, ONNX_EXTENTS, 0, false);
        value_list_end(&list);
        TRY(status);
    }
    return TN_OK;
}

static tn_status run_scan_8(onnx_call *c) {
    if (onnx_has(c, 0)) return onnx_refuse(c, "lengths of sequences are not supported (Scan of opset 8)");
    int64_t batch = c->in_count > 1 && onnx_has(c, 1) ? tn_size(onnx_in(c, 1), 0) : -1, slots;
    if (batch < 1 || tn_mul_overflow(batch, c->out_count, &slots)) return onnx_refuse(c, "it has an empty batch");
    AUTO_FREE onnx_value **items = tn_mem_zalloc((size_t)c->in_count, sizeof(onnx_value *));
    AUTO_FREE onnx_value **outs = tn_mem_zalloc((size_t)slots, sizeof(onnx_value *));
    tn_status status = items && outs ? scan_batch(c, batch, items, outs) : TN_ERR_MEMORY;
    release_all(items, c->in_count);
    release_all(outs, (int)tn_min64(slots, INT_MAX));
    return status;
}

const onnx_op_row onnx_control_ops[] = {
    {"Constant", 1, .run = run_constant},
    {"Identity", 1, .run = run_identity},
    {"If", 1, .run = run_if},
    {"Loop", 1, .run = run_loop},
    {"Scan", 8, .run = run_scan_8},
    {"Scan", 9, .run = run_scan},
    {.name = NULL},
};

/* ==== sequences and optionals ===================================================================================== */
/* Values are never changed once they are made, so every operator makes a new list of the same items and copies none of
 * their numbers. What an operator says about a list (its length, whether there is an item) is known at once. */

enum { MOST_ITEMS = 1 << 20 };

static tn_status take_sequence(const onnx_call *c, int i, const onnx_value **out) {
    *out = onnx_has(c, i) ? c->in[i] : NULL;
    if (*out && (*out)->kind == ONNX_SEQUENCE) return TN_OK;
    return tn_fail(TN_ERR_FORMAT, "%s: input %d is not a sequence", c->row->name, i);
}

/* A sequence of items that stay the caller's. */
static onnx_value *share_items(onnx_value *const *items, int64_t count, onnx_type type) {
    for (int64_t i = 0; i < count; i++)
        (void)onnx_value_retain(items[i]);
    return onnx_value_sequence(items, count, type);
}

static void release_items(onnx_value **items, int64_t count) {
    for (int64_t i = 0; items && i < count; i++)
        onnx_value_release(items[i]);
}

static tn_status put_new(onnx_call *c, int k, onnx_value *v) { return v ? onnx_put_value(c, k, v) : tn_error_code(); }

/* Position `at` of a list of n places, from the end where it is negative. */
static tn_status find_place(const onnx_call *c, int input, int64_t otherwise, int64_t n, int64_t *at) {
    TRY(onnx_read_int(c, input, otherwise, at));
    int64_t asked = *at;
    if (*at < 0) *at += n;
    if (*at >= 0 && *at < n) return TN_OK;
    return tn_fail(TN_ERR_ARGUMENT, "%s: position %lld is out of range; the sequence has %lld items", c->row->name,
                   (long long)asked, (long long)n);
}

static tn_status run_construct(onnx_call *c) {
    onnx_type type = c->in_count ? onnx_in_type(c, 0) : ONNX_FLOAT;
    for (int i = 0; i < c->in_count; i++)
        if (!c->in[i]) return tn_fail(TN_ERR_FORMAT, "%s: input %d is missing", c->row->name, i);
    return put_new(c, 0, share_items(c->in, c->in_count, type));
}

static tn_status run_empty(onnx_call *c) {
    return put_new(c, 0, share_items(NULL, 0, (onnx_type)onnx_int(c, "dtype", ONNX_FLOAT)));
}

static tn_status run_at(onnx_call *c) {
    const onnx_value *list;
    int64_t at;
    TRY(take_sequence(c, 0, &list));
    TRY(find_place(c, 1, 0, list->count, &at));
    return onnx_put_value(c, 0, onnx_value_retain(list->items[at]));
}

static tn_status run_length(onnx_call *c) {
    const onnx_value *list;
    TRY(take_sequence(c, 0, &list));
    return onnx_put(c, 0, tn_from_data(&list->count, NULL, 0, TN_I64));
}

/* The list without item `at`, or with `more` before it. */
static tn_status put_changed(onnx_call *c, const onnx_value *list, int64_t at, onnx_value *more) {
    int64_t count = list->count + (more ? 1 : -1), from = at + !more, rest = list->count - from;
    if (count > MOST_ITEMS) return tn_fail(TN_ERR_UNSUPPORTED, "a sequence has more than %d items", MOST_ITEMS);
    onnx_value **items = tn_mem_zalloc((size_t)count, sizeof(onnx_value *));
    if (!items) return tn_error_code();
    if (at) memcpy(items, list->items, (size_t)at * sizeof *items);
    if (more) items[at] = more;
    if (rest) memcpy(items + count - rest, list->items + from, (size_t)rest * sizeof *items);
    onnx_value *made = share_items(items, count, list->count ? list->type : more ? more->type : list->type);
    tn_mem_free(items);
    return put_new(c, 0, made);
}

static tn_status run_insert(onnx_call *c) {
    const onnx_value *list;
    int64_t at;
    TRY(take_sequence(c, 0, &list));
    if (!onnx_has(c, 1)) return tn_fail(TN_ERR_FORMAT, "%s: the value to insert is missing", c->row->name);
    TRY(onnx_read_int(c, 2, list->count, &at));
    if (at < 0) at += list->count;
    if (at < 0 || at > list->count)
        return tn_fail(TN_ERR_ARGUMENT, "%s: position %lld is out of range; the sequence has %lld items", c->row->name,
                       (long long)at, (long long)list->count);
    return put_changed(c, list, at, c->in[1]);
}

static tn_status run_erase(onnx_call *c) {
    const onnx_value *list;
    int64_t at;
    TRY(take_sequence(c, 0, &list));
    TRY(find_place(c, 1, -1, list->count, &at));
    return put_changed(c, list, at, NULL);
}

/* ---- between tensors and sequences ------------------------------------------------------------------------------- */

static tn_status run_concat(onnx_call *c) {
    const onnx_value *list;
    TRY(take_sequence(c, 0, &list));
    if (list->count == 0 || list->count > INT_MAX)
        return onnx_refuse(c, "a sequence of %lld items is not supported", (long long)list->count);
    tn_tensor **parts = tn_mem_zalloc((size_t)list->count, sizeof(tn_tensor *));
    if (!parts) return tn_error_code();
    for (int64_t i = 0; i < list->count; i++) {
        parts[i] = list->items[i]->tensor;
        if (parts[i]) continue;
        tn_mem_free(parts);
        return onnx_refuse(c, "the items must be tensors of numbers");
    }
    int64_t axis = onnx_int(c, "axis", 0);
    bool stack = onnx_int(c, "new_axis", 0) != 0;
    tn_tensor *joined = (stack ? tn_stack : tn_cat)(parts, (int)list->count, axis);
    tn_mem_free(parts);
    return onnx_put_typed(c, 0, joined, list->items[0]->type);
}

/* The extents of the parts along `axis`: in `sizes`, of one length each where there is a single number. */
typedef struct parts {
    int64_t *sizes, count, each, extent;
} parts;

static tn_status find_parts(const onnx_call *c, parts *p) {
    int64_t sum = 0;
    p->each = 1;
    TRY(onnx_read_ints(c, 1, &p->sizes, &p->count, MOST_ITEMS));
    bool single = onnx_has(c, 1) && tn_rank(onnx_in(c, 1)) == 0;
    if (single) p->each = p->sizes[0];
    if (!onnx_has(c, 1) || single) {
        if (p->each <= 0)
            return tn_fail(TN_ERR_ARGUMENT, "%s: the part size is %lld; it must be at least 1", c->row->name,
                           (long long)p->each);
        p->count = tn_ceil_div(p->extent, p->each);
        tn_mem_free(p->sizes);
        p->sizes = NULL;
    } else {
        for (int64_t i = 0; i < p->count; i++)
            if (p->sizes[i] < 0 || tn_add_overflow(sum, p->sizes[i], &sum)) sum = -1, i = p->count;
        if (sum != p->extent)
            return tn_fail(TN_ERR_SHAPE, "%s: the part sizes do not add up to %lld", c->row->name,
                           (long long)p->extent);
    }
    if (p->count <= MOST_ITEMS) return TN_OK;
    return tn_fail(TN_ERR_UNSUPPORTED, "%s: %lld parts are not supported", c->row->name, (long long)p->count);
}

static tn_status put_parts(onnx_call *c, const parts *p, int64_t axis, bool keep) {
    const tn_tensor *x = onnx_in(c, 0);
    onnx_value **items = tn_mem_zalloc((size_t)p->count, sizeof(onnx_value *));
    tn_status status = items ? TN_OK : tn_error_code();
    int64_t at = 0;
    for (int64_t i = 0; i < p->count && status == TN_OK; i++) {
        int64_t size = p->sizes ? p->sizes[i] : tn_min64(p->each, p->extent - at);
        tn_tensor *part = tn_slice(x, axis, at, at + size, 1);
        if (!keep) part = tn_squeeze(part, &axis, 1);
        items[i] = onnx_value_tensor(part, onnx_in_type(c, 0));
        if (!items[i]) status = tn_error_code();
        at += size;
    }
    if (status == TN_OK)
        status = put_new(c, 0, onnx_value_sequence(items, p->count, onnx_in_type(c, 0)));
    else
        release_items(items, p->count);
    tn_mem_free(items);
    return status;
}

static tn_status run_split(onnx_call *c) {
    const tn_tensor *x = onnx_in(c, 0);
    TRY(tn_status_of(x));
    int64_t axis = onnx_int(c, "axis", 0), rank = tn_rank(x);
    if (axis < -rank || axis >= rank)
        return tn_fail(TN_ERR_SHAPE, "%s: axis %lld is out of range for rank %lld", c->row->name, (long long)axis,
                       (long long)rank);
    parts p = {.extent = tn_size(x, axis)};
    tn_status status = find_parts(c, &p);
    bool keep = onnx_has(c, 1) || onnx_int(c, "keepdims", 1) != 0;
    if (status == TN_OK) status = put_parts(c, &p, axis < 0 ? axis + rank : axis, keep);
    tn_mem_free(p.sizes);
    return status;
}

/* ---- a function over the items ----------------------------------------------------------------------------------- */

enum { MOST_MAPPED = 64 };

/* One result list an output, filled item by item. */
static tn_status map_items(onnx_call *c, const onnx_graph *body, int64_t count, onnx_value ***results) {
    onnx_value *in[MOST_MAPPED], *out[MOST_MAPPED];
    for (int64_t i = 0; i < count; i++) {
        for (int j = 0; j < c->in_count; j++) {
            onnx_value *v = c->in[j];
            bool list = v && v->kind == ONNX_SEQUENCE;
            if (list && v->count <= i) return tn_fail(TN_ERR_SHAPE, "%s: input %d is too short", c->row->name, j);
            in[j] = list ? v->items[i] : v;
        }
        TRY(onnx_call_graph(c, body, in, c->in_count, out, c->out_count));
        for (int k = 0; k < c->out_count; k++)
            results[k][i] = out[k];
    }
    return TN_OK;
}

static tn_status run_map(onnx_call *c) {
    const onnx_value *list;
    const onnx_attribute *body = onnx_find(c, "body");
    onnx_value **results[MOST_MAPPED] = {NULL};
    tn_status status = take_sequence(c, 0, &list);
    if (status != TN_OK) return status;
    if (!body || body->count != 1 || !body->graphs) return tn_fail(TN_ERR_FORMAT, "%s has no body", c->row->name);
    if (c->in_count > MOST_MAPPED || c->out_count > MOST_MAPPED)
        return onnx_refuse(c, "the number of inputs or outputs is not supported");
    for (int k = 0; k < c->out_count && status == TN_OK; k++) {
        results[k] = tn_mem_zalloc((size_t)list->count, sizeof(onnx_value *));
        if (!results[k]) status = tn_error_code();
    }
    if (status == TN_OK) status = map_items(c, body->graphs[0], list->count, results);
    for (int k = 0; k < c->out_count; k++) {
        if (!results[k]) continue;
        onnx_type type = list->count && results[k][0] ? results[k][0]->type : ONNX_FLOAT;
        if (status == TN_OK)
            status = put_new(c, k, onnx_value_sequence(results[k], list->count, type));
        else
            release_items(results[k], list->count);
        tn_mem_free(results[k]);
    }
    return status;
}

/* ---- optionals --------------------------------------------------------------------------------------------------- */

static tn_status run_optional(onnx_call *c) {
    return put_new(c, 0, onnx_value_optional(onnx_has(c, 0) ? onnx_value_retain(c->in[0]) : NULL));
}

static tn_status run_has_element(onnx_call *c) {
    const onnx_value *v = onnx_has(c, 0) ? c->in[0] : NULL;
    uint8_t has = v && (v->kind != ONNX_OPTIONAL || v->count > 0);
    return onnx_put(c, 0, tn_from_data(&has, NULL, 0, TN_BOOL));
}

static tn_status run_get_element(onnx_call *c) {
    onnx_value *v = onnx_has(c, 0) ? c->in[0] : NULL;
    if (v && v->kind == ONNX_OPTIONAL) v = v->count ? v->items[0] : NULL;
    if (!v) return tn_fail(TN_ERR_ARGUMENT, "%s: the optional is empty", c->row->name);
    return onnx_put_value(c, 0, onnx_value_retain(v));
}

const onnx_op_row onnx_sequence_ops[] = {
    {"ConcatFromSequence", 11, .run = run_concat},
    {"Optional", 15, .run = run_optional},
    {"OptionalGetElement", 15, .run = run_get_element},
    {"OptionalHasElement", 15, .run = run_has_element},
    {"SequenceAt", 11, .run = run_at},
    {"SequenceConstruct", 11, .run = run_construct},
    {"SequenceEmpty", 11, .run = run_empty},
    {"SequenceErase", 11, .run = run_erase},
    {"SequenceInsert", 11, .run = run_insert},
    {"SequenceLength", 11, .run = run_length},
    {"SequenceMap", 17, .run = run_map},
    {"SplitToSequence", 11, .run = run_split},
    {.name = NULL},
};
