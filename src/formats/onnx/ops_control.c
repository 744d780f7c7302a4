/* ops_control.c — constants, and the operators that run subgraphs: If, Loop, Scan.
 *
 * A subgraph is recorded as its nodes are met, once a step: what conditions and trip counts depend on decides whether
 * the whole can be replayed. */
#include <limits.h>
#include <string.h>

#include "formats/onnx/model.h"
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
    if ((a = onnx_find(c, "value_ints")) != NULL) return put_ints(c, a->ints, &(int64_t){(int64_t)a->count});
    if ((a = onnx_find(c, "value_floats")) != NULL) return put_floats(c, a->floats, &(int64_t){(int64_t)a->count});
    if ((a = onnx_find(c, "value_strings")) != NULL)
        return onnx_put_value(c, 0, onnx_value_strings(a->strings, &(int64_t){(int64_t)a->count}, 1));
    return onnx_refuse(c, "it has no value");
}

static tn_status run_identity(onnx_call *c) {
    return onnx_has(c, 0) ? onnx_put_value(c, 0, onnx_value_retain(c->in[0])) : onnx_refuse(c, "its input is left out");
}

/* ---- If ---------------------------------------------------------------------------------------------------------- */

static tn_status subgraph(const onnx_call *c, const char *name, const onnx_graph **out) {
    const onnx_attribute *a = onnx_find(c, name);
    if (!a || a->count < 1 || !a->graphs || !a->graphs[0]) return onnx_refuse(c, "it has no subgraph '%s'", name);
    *out = a->graphs[0];
    return TN_OK;
}

static uint8_t least(uint8_t a, uint8_t b) { return a < b ? a : b; }

static tn_status run_if(onnx_call *c) {
    int64_t condition = 0;
    const onnx_graph *g = NULL;
    if (!onnx_has(c, 0)) return onnx_refuse(c, "its condition is left out");
    TRY(onnx_read_int(c, 0, 0, &condition));
    TRY(subgraph(c, condition ? "then_branch" : "else_branch", &g));
    if (g->output_count < c->out_count) return onnx_refuse(c, "its branch has %d outputs", g->output_count);
    onnx_value **out = tn_mem_zalloc((size_t)g->output_count, sizeof(onnx_value *));
    if (!out) return TN_ERR_MEMORY;
    tn_status status = onnx_call_graph(c, g, NULL, 0, out, g->output_count);
    for (int k = 0; k < g->output_count; k++) {
        if (status == TN_OK && out[k])
            status = onnx_put_level(c, k, out[k], least(out[k]->fixed, c->fixed));
        else
            onnx_value_release(out[k]);
    }
    tn_mem_free(out);
    return status;
}

const onnx_op_row onnx_control_ops[] = {
    {"Constant", 1, .run = run_constant},
    {"Identity", 1, .run = run_identity},
    {"If", 1, .run = run_if},
    {.name = NULL},
};
