/* engine_model.c — runs a whole model file in ONNX Runtime: used by tn_onnx_open if the current device is that engine.
 *
 * Our reader still lists inputs, outputs and weights; the library handles the operators. Inputs are read in place;
 * results stay in the library's memory, which a tensor of ours then owns. Source: onnxruntime_c_api.h. */
#include <string.h>

#include "hal/hal.h"
#include "onnx/model.h"
#include "tensor/graph.h"
#include "trunnion/ops.h"
#include "vendor/onnxruntime.h"

#if TRUNNION_WITH_ONNXRUNTIME

bool onnx_engine_is_current(void) {
    const tn_device *d = tn_current_device();
    return d && d->is_engine && !strcmp(d->info.backend, "engine:onnxruntime");
}

/* Each name in the library is one of our ports. */
static tn_status find_ports(const onnx_port *ports, int port_count, int count,
                            const char *(*name)(const tn_ort_session *s, int i), const tn_ort_session *s, int *order) {
    for (int i = 0; i < count; i++) {
        order[i] = -1;
        for (int k = 0; k < port_count && order[i] < 0; k++)
            if (!strcmp(ports[k].name, name(s, i))) order[i] = k;
        if (order[i] < 0)
            return tn_fail(TN_ERR_FORMAT,
                           "ONNX Runtime asks for '%s', which is no input or output of the model's graph", name(s, i));
    }
    return TN_OK;
}

tn_status onnx_engine_open(tn_onnx *m, onnx_text message, const char *path) {
    const tn_ort_options options = tn_ort_device_options();
    TRY(tn_ort_session_new(path, message.at, message.size, &options, &m->session));
    int inputs = tn_ort_input_count(m->session), outputs = tn_ort_output_count(m->session);
    m->session_order = onnx_take(&m->arena, (size_t)(inputs + outputs) + 1, sizeof *m->session_order);
    if (!m->session_order) return TN_ERR_MEMORY;
    TRY(find_ports(m->graph->inputs, m->graph->input_count, inputs, tn_ort_input_name, m->session, m->session_order));
    return find_ports(m->graph->outputs, m->graph->output_count, outputs, tn_ort_output_name, m->session,
                      m->session_order + inputs);
}

void onnx_engine_close(tn_onnx *m) { tn_ort_session_free(m->session); }

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* The same bytes here and there: no type that lives in a wider one. */
static bool is_plain(onnx_type type) {
    const onnx_type_row *row = &onnx_types[type];
    return row->dtype < TN_DTYPE_COUNT && row->bits == 8 * tn_dtype_size(row->dtype);
}

/* *whole: v's tensor on the host, in order, with a value; to be freed. */
static tn_status put_input(const onnx_value *v, const char *name, tn_tensor **whole, tn_ort_tensor *t) {
    if (v->kind != ONNX_TENSOR || !is_plain(v->type))
        return tn_fail(TN_ERR_UNSUPPORTED,
                       "input '%s' is %s: ONNX Runtime is only given tensors of plain numbers here; "
                       "use another device",
                       name, v->kind == ONNX_TENSOR ? onnx_types[v->type].name : "no tensor of numbers");
    tn_device *here = tn_current_device(), *there = tn_device_of(v->tensor);
    tn_tensor *moved = there == here || there->is_cpu ? tn_retain(v->tensor) : tn_to_device(v->tensor, here);
    *whole = tn_contiguous(moved);
    tn_free(moved);
    TRY(tn_eval(whole, 1));
    const tn_node *n = tn_tensor_node(*whole), *root = n->flags & TN_NODE_VIEW ? n->root : n;
    int64_t stride[TN_MAX_RANK], offset;
    (void)tn_node_layout(n, &offset, stride);
    TRY(tn_buffer_await(root->buffer, false));
    *t = (tn_ort_tensor){.type = (int)v->type, .rank = n->rank, .bytes = tn_node_bytes(n)};
    memcpy(t->shape, n->shape, (size_t)n->rank * sizeof *t->shape);
    t->data = (char *)root->buffer->address + offset * (int64_t)tn_dtype_size((tn_dtype)n->dtype);
    return TN_OK;
}

static tn_status take_output(tn_ort_tensor *t, const char *name, onnx_value **out) {
    onnx_type type = t->type > 0 && t->type < ONNX_TYPE_COUNT ? (onnx_type)t->type : ONNX_UNDEFINED;
    if (!is_plain(type))
        return tn_fail(TN_ERR_UNSUPPORTED,
                       "output '%s' is %s: only tensors of plain numbers are taken from ONNX Runtime; "
                       "use another device",
                       name, onnx_types[type].name);
    tn_tensor *made = tn_from_ptr(t->data, t->shape, t->rank, onnx_types[type].dtype, tn_ort_value_free, t->value);
    tn_status s = tn_status_of(made);
    if (s == TN_OK) t->value = NULL; /* the tensor's now */
    *out = onnx_value_tensor(made, type);
    return s == TN_OK && !*out ? TN_ERR_MEMORY : s;
}

static tn_status run_session(const tn_onnx *m, onnx_value *const *in, onnx_value **out, tn_tensor **whole,
                             tn_ort_tensor *values) {
    int inputs = tn_ort_input_count(m->session), outputs = tn_ort_output_count(m->session);
    const int *order = m->session_order;
    tn_ort_tensor *results = values + inputs;
    for (int i = 0; i < inputs; i++)
        TRY(put_input(in[order[i]], m->graph->inputs[order[i]].name, &whole[i], &values[i]));
    TRY(tn_ort_run(m->session, values, results));
    tn_status s = TN_OK;
    for (int i = 0; i < outputs && s == TN_OK; i++)
        s = take_output(&results[i], m->graph->outputs[order[inputs + i]].name, &out[order[inputs + i]]);
    for (int i = 0; i < outputs; i++)
        tn_ort_value_free(results[i].value);
    return s;
}

tn_status onnx_engine_run(const tn_onnx *m, onnx_value *const *in, onnx_value **out) {
    int inputs = tn_ort_input_count(m->session), outputs = tn_ort_output_count(m->session);
    tn_tensor **whole = tn_mem_zalloc((size_t)inputs + 1, sizeof(tn_tensor *));
    tn_ort_tensor *values = tn_mem_zalloc((size_t)(inputs + outputs) + 1, sizeof *values);
    tn_status s = whole && values ? run_session(m, in, out, whole, values) : TN_ERR_MEMORY;
    for (int i = 0; whole && i < inputs; i++)
        tn_free(whole[i]);
    tn_mem_free_each(whole, values);
    return s;
}

#else

bool onnx_engine_is_current(void) { return false; }
void onnx_engine_close(tn_onnx *m) { (void)m; }

tn_status onnx_engine_open(TN_UNUSED tn_onnx *m, TN_UNUSED onnx_text message, TN_UNUSED const char *path) {
    return tn_fail(TN_ERR_UNAVAILABLE, "ONNX Runtime was left out when Trunnion was built");
}

tn_status onnx_engine_run(TN_UNUSED const tn_onnx *m, TN_UNUSED onnx_value *const *in, TN_UNUSED onnx_value **out) {
    return tn_fail(TN_ERR_UNAVAILABLE, "ONNX Runtime was left out when Trunnion was built");
}

#endif
