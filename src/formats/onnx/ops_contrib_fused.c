/* ops_contrib_fused.c — com.microsoft: the standard's operators in another dress, as ONNX Runtime's optimiser and
 * quantisers write them: with bytes for operands, with an activation behind, with scales beside an integer product.
 *
 * None of them is computed anew. The operands are brought to what the standard's operator takes, its own row is called
 * with this node's attributes, and what it yields is put on. So a byte is rounded as everywhere else, exactly once, at
 * the end. Source: the operators' descriptions in ONNX Runtime's documentation, ContribOperators. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "formats/onnx/model.h"
#include "formats/onnx/nn.h"

enum { MOST_OPERANDS = 64, MOST_RESULTS = 3, OPSET = 21 };

/* ---- calling another row ----------------------------------------------------------------------------------------- */

/* What a row is handed, and what it makes. */
typedef struct dressed {
    const onnx_call *c;
    onnx_value *in[MOST_OPERANDS], *out[MOST_RESULTS];
    int in_count;
} dressed;

static void clear(dressed *d) {
    for (int i = 0; i < d->in_count; i++)
        onnx_value_release(d->in[i]);
    for (int k = 0; k < MOST_RESULTS; k++) {
        onnx_value_release(d->out[k]);
        d->out[k] = NULL;
    }
    d->in_count = 0;
}

/* Inputs that may not be left out. */
static tn_status need_fused(const onnx_call *c, int from, int count) {
    const tn_tensor *x;
    for (int i = from; i < from + count; i++)
        TRY(onnx_need(c, i, &x));
    return TN_OK;
}

/* The node's own input; perhaps left out. */
static void give_fused(dressed *d, int i) {
    d->in[d->in_count++] = onnx_has(d->c, i) ? onnx_value_retain(d->c->in[i]) : NULL;
}

/* A tensor that was made for it; taken over. */
static tn_status give_tensor(dressed *d, tn_tensor *t) {
    onnx_value *v = onnx_value_tensor(t, onnx_type_of(tn_dtype_of(t)));
    if (!v) return tn_error_code();
    v->fixed = d->c->fixed;
    d->in[d->in_count++] = v;
    return TN_OK;
}

/* The standard's operator of this name, as an opset has it, over what was given: `count` tensors in out. */
static tn_status call_standard(dressed *d, const char *name, int64_t opset, int count) {
    const int32_t wanted[MOST_RESULTS] = {d->c->node->out[0], d->c->node->out[0], d->c->node->out[0]};
    onnx_node node = *d->c->node;
    onnx_call inner = *d->c;
    node.out = wanted;
    inner.node = &node;
    inner.row = onnx_find_row((onnx_text){"", 0}, (onnx_text){name, strlen(name)}, opset);
    inner.opset = (int)opset;
    inner.in = d->in;
    inner.in_count = d->in_count;
    inner.out = d->out;
    inner.out_count = node.out_count = count;
    if (!inner.row) return onnx_refuse(d->c, "opset %lld has no %s", (long long)opset, name);
    TRY(inner.row->run(&inner));
    for (int k = 0; k < count; k++)
        if (!d->out[k] || d->out[k]->kind != ONNX_TENSOR) return onnx_refuse(d->c, "%s made no tensor", name);
    return TN_OK;
}

/* The same where there is one output. *y belongs to the scope around the node; what was given is let go. */
static tn_status standard(dressed *d, const char *name, int64_t opset, tn_tensor **y) {
    tn_status status = call_standard(d, name, opset, 1);
    *y = status == TN_OK ? tn_detach(d->out[0]->tensor) : NULL;
    clear(d);
    return status;
}

/* ---- bytes for operands ------------------------------------------------------------------------------------------ */

enum { ADD, AVERAGE_POOL, CONCAT, GLOBAL_AVERAGE_POOL, LEAKY_RELU, MUL, REDUCE_MEAN, SIGMOID, SOFTMAX };

/* Each operand comes with its scale and zero point, and then those of the result; of a list they come first. */
static const struct {
    const char *name;
    int opset, operands; /* 0: a list */
} on_bytes[] = {
    [ADD] = {"Add", 14, 2},
    [AVERAGE_POOL] = {"AveragePool", 11, 1},
    [CONCAT] = {"Concat", 13, 0},
    [GLOBAL_AVERAGE_POOL] = {"GlobalAveragePool", 1, 1},
    [LEAKY_RELU] = {"LeakyRelu", 16, 1},
    [MUL] = {"Mul", 14, 2},
    [REDUCE_MEAN] = {"ReduceMean", 13, 1},
    [SIGMOID] = {"Sigmoid", 13, 1},
    [SOFTMAX] = {"Softmax", 13, 1},
};

static tn_status dequantized(const onnx_call *c, int i, tn_tensor **x) {
    dressed d = {.c = c};
    TRY(need_fused(c, i, 2));
    for (int k = 0; k < 3; k++)
        give_fused(&d, i + k);
    return standard(&d, "DequantizeLinear", OPSET, x);
}

/* Is the scale in input i a constant whose reciprocal is finite? */
static bool has_reciprocal(const onnx_call *c, int i) {
    double scale;
    return c->in[i]->fixed == ONNX_CONSTANT && onnx_read_float(c, i, 1, &scale) == TN_OK && scale >= (double)FLT_MIN;
}

/* y as numbers of the scale in input i and the zero point behind it; without one it is 0, of operand's type.
 * `multiply`: by a constant scale's reciprocal, as dividing takes longer than all else. That may be one off at halves,
 * so only where ONNX Runtime does not divide either: of products and sums it multiplies by quotients of scales. */
static tn_status put_quantized(onnx_call *c, tn_tensor *y, int i, int operand, bool multiply) {
    dressed d = {.c = c};
    onnx_type type = onnx_in_type(c, onnx_has(c, i + 1) ? i + 1 : operand);
    TRY(need_fused(c, i, 1));
    TRY(onnx_check_scale(c, i, true));
    const tn_tensor *scale = onnx_in(c, i), *zero = onnx_has(c, i + 1) ? onnx_in(c, i + 1) : NULL;
    bool one = tn_numel(scale) == 1 && (!zero || tn_numel(zero) == 1) && tn_dtype_of(scale) == TN_F32;
    if (multiply && one && (type == ONNX_UINT8 || type == ONNX_INT8) && has_reciprocal(c, i)) {
        const tn_tensor *each = tn_div(tn_full(NULL, 0, 1, TN_F32), tn_reshape(scale, NULL, 0));
        if (zero) zero = tn_reshape(zero, NULL, 0);
        return onnx_put_typed(c, 0, onnx_rounded(c, tn_mul(y, each), zero, type), type);
    }
    tn_status status = give_tensor(&d, y);
    give_fused(&d, i);
    if (onnx_has(c, i + 1))
        give_fused(&d, i + 1);
    else if (status == TN_OK)
        status = give_tensor(&d, tn_zeros(NULL, 0, onnx_types[type].dtype));
    if (status == TN_OK)
        status = standard(&d, "QuantizeLinear", OPSET, &y);
    else
        clear(&d);
    return status == TN_OK ? onnx_put_typed(c, 0, y, type) : status;
}

static tn_status run_on_bytes(onnx_call *c) {
    int what = c->row->with, count = on_bytes[what].operands, first = count ? 0 : 2;
    int64_t opset = what == SOFTMAX ? onnx_int(c, "opset", 13) : on_bytes[what].opset;
    dressed d = {.c = c};
    tn_tensor *y;
    if (!onnx_wants(c, 0)) return TN_OK;
    if (onnx_int(c, "channels_last", 0)) return onnx_refuse(c, "channels as the last dimension");
    if (!count) count = (c->in_count - first) / 3;
    if (count < 1 || count > MOST_OPERANDS) return onnx_refuse(c, "%d operands; at most %d", count, MOST_OPERANDS);
    tn_status status = TN_OK;
    for (int i = 0; i < count && status == TN_OK; i++) {
        tn_tensor *wide;
        status = dequantized(c, first + 3 * i, &wide);
        if (status == TN_OK) status = give_tensor(&d, wide);
    }
    if (status == TN_OK)
        status = standard(&d, on_bytes[what].name, opset, &y);
    else
        clear(&d);
    return status == TN_OK ? put_quantized(c, y, first ? 0 : 3 * count, first, what == ADD || what == MUL) : status;
}

/* ---- products of bytes that become floats ------------------------------------------------------------------------ */

/* i32 sums times both scales, and the bias. */
static tn_tensor *fused_scaled(const onnx_call *c, const tn_tensor *sums, const tn_tensor *a_scale, int b_scale,
                               int bias) {
    const tn_tensor *one = tn_numel(a_scale) == 1 ? tn_reshape(a_scale, NULL, 0) : a_scale;
    tn_tensor *y = tn_mul(tn_cast(sums, TN_F32), tn_mul(one, onnx_in(c, b_scale)));
    return onnx_has(c, bias) ? tn_add(y, onnx_in(c, bias)) : y;
}

tn_status onnx_scaled_product(const onnx_call *c, const onnx_byte_operands *at, tn_tensor **y) {
    const int order[] = {at->a, at->b, at->a_zero, at->b_zero};
    dressed d = {.c = c};
    TRY(need_fused(c, at->a, 1));
    TRY(need_fused(c, at->b, 1));
    TRY(need_fused(c, at->a_scale, 1));
    TRY(need_fused(c, at->b_scale, 1));
    for (size_t k = 0; k < TN_COUNT(order); k++)
        give_fused(&d, order[k]);
    TRY(standard(&d, "MatMulInteger", OPSET, y));
    *y = fused_scaled(c, *y, onnx_in(c, at->a_scale), at->b_scale, at->bias);
    return TN_OK;
}

static tn_status run_to_float(onnx_call *c) {
    static const onnx_byte_operands at = {
        .a = 0, .b = 1, .a_scale = 2, .b_scale = 3, .a_zero = 4, .b_zero = 5, .bias = 6};
    tn_tensor *y;
    if (!onnx_wants(c, 0)) return TN_OK;
    TRY(onnx_scaled_product(c, &at, &y));
    return onnx_put(c, 0, y);
}

/* alpha (A − a_zero)(B − b_zero) a_scale b_scale, to whose sums C (i32) is added; rounded to bytes where the node has a
 * scale of the result. */
static tn_status run_gemm_of_bytes(onnx_call *c) {
    enum { A, A_SCALE, A_ZERO, B, B_SCALE, B_ZERO, C, Y_SCALE, Y_ZERO };
    dressed d = {.c = c};
    tn_tensor *y;
    if (!onnx_wants(c, 0)) return TN_OK;
    TRY(need_fused(c, A, C));
    TRY(onnx_check_zero(c, A_ZERO, A));
    TRY(onnx_check_zero(c, B_ZERO, B));
    TRY(onnx_check_scale(c, A_SCALE, false));
    TRY(onnx_check_scale(c, B_SCALE, false));
    if (onnx_has(c, Y_ZERO) && !onnx_has(c, Y_SCALE))
        return onnx_refuse(c, "a zero point of the result without a scale");
    if (onnx_has(c, Y_ZERO)) TRY(onnx_check_zero(c, Y_ZERO, A));
    if (onnx_has(c, C) && onnx_in_type(c, C) != ONNX_INT32)
        return onnx_refuse(c, "input %d must be INT32, not %s", C, onnx_types[onnx_in_type(c, C)].name);
    if (onnx_int(c, "transA", 0))
        TRY(give_tensor(&d, tn_t(onnx_in(c, A))));
    else
        give_fused(&d, A);
    tn_status status = TN_OK;
    if (onnx_int(c, "transB", 0))
        status = give_tensor(&d, tn_t(onnx_in(c, B)));
    else
        give_fused(&d, B);
    give_fused(&d, A_ZERO);
    give_fused(&d, B_ZERO);
    if (status != TN_OK) return clear(&d), status;
    TRY(standard(&d, "MatMulInteger", OPSET, &y));
    if (onnx_has(c, C)) y = tn_add(y, onnx_in(c, C));
    const tn_tensor *scale =
        tn_mul_scalar(tn_mul(tn_reshape(onnx_in(c, A_SCALE), NULL, 0), onnx_in(c, B_SCALE)), onnx_float(c, "alpha", 1));
    y = tn_mul(tn_cast(y, TN_F32), scale);
    return onnx_has(c, Y_SCALE) ? put_quantized(c, y, Y_SCALE, A, true) : onnx_put(c, 0, y);
}

/* Its first operand is rounded to bytes here. */
static tn_status run_dynamic_product(onnx_call *c) {
    enum { A, B, B_SCALE, B_ZERO, BIAS };
    dressed rounded = {.c = c}, d = {.c = c};
    tn_tensor *y = NULL;
    if (!onnx_wants(c, 0)) return TN_OK;
    TRY(need_fused(c, A, 3));
    give_fused(&rounded, A);
    tn_status status = call_standard(&rounded, "DynamicQuantizeLinear", OPSET, 3);
    if (status == TN_OK) {
        d.in[d.in_count++] = onnx_value_retain(rounded.out[0]);
        give_fused(&d, B);
        d.in[d.in_count++] = onnx_value_retain(rounded.out[2]);
        give_fused(&d, B_ZERO);
        status = standard(&d, "MatMulInteger", OPSET, &y);
    }
    if (status == TN_OK) y = fused_scaled(c, y, rounded.out[1]->tensor, B_SCALE, BIAS);
    clear(&rounded);
    return status == TN_OK ? onnx_put(c, 0, y) : status;
}

/* ---- an activation behind ---------------------------------------------------------------------------------------- */

/* Attribute `activation` with its numbers: a list, or one by one. */
static tn_status activated(const onnx_call *c, tn_tensor **y) {
    onnx_text name = onnx_string(c, "activation", "");
    const onnx_attribute *list = onnx_find_list(c, "activation_params", ONNX_KIND_FLOATS);
    const onnx_activation *known = onnx_activation_named(name);
    bool clips = onnx_is(name, "Clip");
    if (name.size == 0) return TN_OK;
    if (!known && !clips) return onnx_refuse(c, "the activation '%.*s'", name.size < 40 ? (int)name.size : 40, name.at);
    double v[2] = {known ? known->alpha : -INFINITY, known ? known->beta : INFINITY};
    bool gamma = known && known->beta_name && strcmp(known->beta_name, "gamma") == 0; /* Selu's second number */
    v[0] = onnx_float(c, "activation_alpha", v[0]);
    v[1] = onnx_float(c, gamma ? "activation_gamma" : "activation_beta", v[1]);
    for (size_t i = 0; list && i < list->count && i < 2; i++)
        v[i] = (double)list->floats[i];
    *y = clips ? tn_clamp(*y, v[0], v[1]) : known->of(*y, v[0], v[1]);
    return TN_OK;
}

/* with: a convolution, to which input 3 may be added before; else a product. */
static tn_status run_activated(onnx_call *c) {
    bool convolution = c->row->with;
    dressed d = {.c = c};
    tn_tensor *y;
    if (!onnx_wants(c, 0)) return TN_OK;
    TRY(need_fused(c, 0, 2));
    for (int i = 0; i < 3; i++)
        give_fused(&d, i);
    TRY(standard(&d, convolution ? "Conv" : "Gemm", 13, &y));
    if (convolution && onnx_has(c, 3)) y = tn_add(y, onnx_in(c, 3));
    TRY(activated(c, &y));
    return onnx_put(c, 0, y);
}

/* The standard's own, from before it had all of these types. */
static tn_status run_newest(onnx_call *c) {
    dressed d = {.c = c};
    if (!onnx_wants(c, 0)) return TN_OK;
    TRY(need_fused(c, 0, 2));
    for (int i = 0; i < 3; i++)
        give_fused(&d, i);
    tn_status status = call_standard(&d, c->row->name, OPSET, 1);
    if (status == TN_OK) status = onnx_put_value(c, 0, onnx_value_retain(d.out[0]));
    clear(&d);
    return status;
}

const onnx_op_row onnx_dressed_ops[] = {
    {"DequantizeLinear", 1, .run = run_newest},
    {"DynamicQuantizeMatMul", 1, .run = run_dynamic_product},
    {"FusedConv", 1, .run = run_activated, .with = 1},
    {"FusedGemm", 1, .run = run_activated},
    {"MatMulIntegerToFloat", 1, .run = run_to_float},
    {"QGemm", 1, .run = run_gemm_of_bytes},
    {"QLinearAdd", 1, .run = run_on_bytes, .with = ADD},
    {"QLinearAveragePool", 1, .run = run_on_bytes, .with = AVERAGE_POOL},
    {"QLinearConcat", 1, .run = run_on_bytes, .with = CONCAT},
    {"QLinearGlobalAveragePool", 1, .run = run_on_bytes, .with = GLOBAL_AVERAGE_POOL},
    {"QLinearLeakyRelu", 1, .run = run_on_bytes, .with = LEAKY_RELU},
    {"QLinearMul", 1, .run = run_on_bytes, .with = MUL},
    {"QLinearReduceMean", 1, .run = run_on_bytes, .with = REDUCE_MEAN},
    {"QLinearSigmoid", 1, .run = run_on_bytes, .with = SIGMOID},
    {"QLinearSoftmax", 1, .run = run_on_bytes, .with = SOFTMAX},
    {"QuantizeLinear", 1, .run = run_newest},
    {.name = NULL},
};
