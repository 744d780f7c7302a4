/* quant_graph.c — ONNX: maps operators between DequantizeLinear and QuantizeLinear to operators on bytes.
 *
 * Quantizers write a network of bytes as float operators whose inputs come from DequantizeLinear and whose output goes
 * to QuantizeLinear ("QDQ"). When a model is opened, each such group becomes the one node that computes the same on
 * bytes (QLinearConv, QLinearAdd …), which replaces the QuantizeLinear; DequantizeLinear nodes that nothing reads any
 * more are removed. A group is left alone if something about it is unknown or differs: scales of activations that are
 * not positive constants, types other than INT8 and UINT8, a bias whose scale is not the product of the operands'. */
#include <math.h>
#include <string.h>

#include "onnx/model.h"

enum { UNREAD = -1, NONE = -1, MOST_IN = 64 };

typedef struct mapping {
    tn_onnx *m;
    onnx_graph *g;
    int32_t *maker, *reads, *reader; /* by slot: the node that makes it, how many read it, one of those */
    bool *gone;                      /* by node */
} mapping;

/* How the inputs of the node on bytes are listed. */
typedef enum order { PRODUCT, GEMM, OPERANDS, SAME } order;

static const struct kind {
    const char *name, *domain, *becomes;
    order order;
    int weight_axis;   /* of a scale for each of the outputs */
    bool result_first; /* the result's scale and zero point are the first inputs */
} kinds[] = {
    {"Conv", "", "QLinearConv", PRODUCT, 0, false},
    {"MatMul", "", "QLinearMatMul", PRODUCT, 1, false},
    {"Gemm", "com.microsoft", "QGemm", GEMM, 1, false},
    {"Add", "com.microsoft", "QLinearAdd", OPERANDS, 0, false},
    {"Mul", "com.microsoft", "QLinearMul", OPERANDS, 0, false},
    {"GlobalAveragePool", "com.microsoft", "QLinearGlobalAveragePool", OPERANDS, 0, false},
    {"Sigmoid", "com.microsoft", "QLinearSigmoid", OPERANDS, 0, false},
    {"LeakyRelu", "com.microsoft", "QLinearLeakyRelu", OPERANDS, 0, false},
    {"Concat", "com.microsoft", "QLinearConcat", OPERANDS, 0, true},
    {"Flatten", "", "Flatten", SAME, 0, false},
    {"MaxPool", "", "MaxPool", SAME, 0, false},
    {"Reshape", "", "Reshape", SAME, 0, false},
    {"Slice", "", "Slice", SAME, 0, false},
    {"Squeeze", "", "Squeeze", SAME, 0, false},
    {"Transpose", "", "Transpose", SAME, 0, false},
    {"Unsqueeze", "", "Unsqueeze", SAME, 0, false},
};

/* ---- what is known of a slot ------------------------------------------------------------------------------------- */

/* An initialiser, or what a Constant node holds; NULL: neither. */
static onnx_value *constant_at(const onnx_graph *g, int32_t slot) {
    if (slot < 0) return NULL;
    if (g->constants[slot]) return g->constants[slot];
    for (int i = g->initial_count; i < g->weight_count; i++)
        if (g->weights[i].slot == slot) return g->weight_values[i];
    return NULL;
}

static bool is_type(const onnx_node *n, const char *name) {
    return !n->calls && onnx_is(n->type, name) &&
           (onnx_same_domain(n->domain, (onnx_text){"", 0}) || onnx_is(n->domain, "com.microsoft"));
}

static int64_t attribute_int(const onnx_node *n, const char *name, int64_t otherwise) {
    const onnx_attribute *a = onnx_node_attribute(n, name);
    return a ? a->i : otherwise;
}

/* Input i of a node; NONE where it was left out. */
static int32_t input(const onnx_node *n, int i) { return i < n->in_count ? n->in[i] : NONE; }

/* A quantized value: slots of the integers, their scale and zero point (NONE: 0), and what is known of these. */
typedef struct quantized {
    int32_t slot, scale, zero;
    onnx_type type;
    int64_t count; /* of scales */
    int axis;      /* of several */
} quantized;

/* The scale and the zero point that a QuantizeLinear or DequantizeLinear reads. */
static bool read_scale(const mapping *p, const onnx_node *n, quantized *q) {
    const onnx_value *scale = constant_at(p->g, input(n, 1)), *zero = constant_at(p->g, input(n, 2));
    if (!scale || scale->type != ONNX_FLOAT || (input(n, 2) >= 0 && !zero)) return false;
    *q = (quantized){.slot = n->in[0], .scale = n->in[1], .zero = input(n, 2), .count = tn_numel(scale->tensor)};
    q->axis = (int)attribute_int(n, "axis", 1);
    q->type = zero ? zero->type : ONNX_UNDEFINED;
    bool lone = tn_rank(scale->tensor) <= 1 && attribute_int(n, "block_size", 0) == 0;
    return lone && (!zero || tn_numel(zero->tensor) == q->count);
}

static bool is_byte_type(onnx_type t) { return t == ONNX_INT8 || t == ONNX_UINT8; }

/* What the DequantizeLinear after `slot` reads; false: something else makes it. */
static bool dequantized(const mapping *p, int32_t slot, quantized *q) {
    const int32_t maker = slot < 0 ? NONE : p->maker[slot];
    if (maker < 0 || !is_type(&p->g->nodes[maker], "DequantizeLinear")) return false;
    if (!read_scale(p, &p->g->nodes[maker], q)) return false;
    const onnx_value *held = constant_at(p->g, q->slot);
    if (q->type == ONNX_UNDEFINED && held) q->type = held->type;
    return true;
}

static bool number_at(const mapping *p, int32_t slot, double *out) {
    const onnx_value *v = constant_at(p->g, slot);
    if (slot < 0) return *out = 0, true;
    if (!v || tn_numel(v->tensor) != 1) return false;
    *out = tn_item(v->tensor);
    return true;
}

/* Bytes with one scale; a positive one, as a greater number is then a greater byte. */
static bool is_one_scale(const mapping *p, const quantized *q) {
    double scale;
    return is_byte_type(q->type) && q->count == 1 && number_at(p, q->scale, &scale) && scale > 0 && isfinite(scale);
}

static bool dequantized_bytes(const mapping *p, int32_t slot, quantized *q) {
    return dequantized(p, slot, q) && is_one_scale(p, q);
}

/* The reader of a slot that has one reader and is not an output. */
static int32_t only_reader(const mapping *p, int32_t slot) { return p->reads[slot] == 1 ? p->reader[slot] : NONE; }

static bool same_numbers(const mapping *p, int32_t a, int32_t b) {
    double x, y;
    if (a == b) return true;
    const onnx_value *v = constant_at(p->g, a), *w = constant_at(p->g, b);
    if (!v || !w || v->type != w->type || tn_numel(v->tensor) != 1 || tn_numel(w->tensor) != 1) return false;
    x = tn_item(v->tensor);
    y = tn_item(w->tensor);
    return x == y;
}

/* ---- one group --------------------------------------------------------------------------------------------------- */

static bool are_zeros(const onnx_value *v) {
    bool zeros = true;
    size_t size = tn_dtype_bytes(tn_dtype_of(v->tensor), tn_numel(v->tensor));
    AUTO_FREE char *bytes = tn_mem_alloc(size);
    if (!bytes || tn_read(v->tensor, bytes, size) != TN_OK) zeros = false;
    for (size_t i = 0; i < size && zeros; i++)
        zeros = bytes[i] == 0;
    return zeros;
}

/* A bias of integers whose scale is that of the sums: each scale the product of the operands', as f32 rounds it. */
static bool bias_fits(const mapping *p, const quantized *bias, const quantized *x, const quantized *w) {
    enum { MOST = 1 << 16 };
    const onnx_value *held = constant_at(p->g, bias->slot);
    const onnx_value *zeros = constant_at(p->g, bias->zero);
    double of_x = 0;
    if (!held || held->type != ONNX_INT32 || tn_rank(held->tensor) != 1 || bias->count > MOST) return false;
    if (bias->count != w->count || !number_at(p, x->scale, &of_x)) return false;
    if (zeros && !are_zeros(zeros)) return false;
    AUTO_FREE float *sums = tn_mem_alloc((size_t)bias->count * 2 * sizeof *sums);
    float *weights = sums + bias->count;
    const size_t size = (size_t)bias->count * sizeof *sums;
    bool fits = sums && tn_read(constant_at(p->g, bias->scale)->tensor, sums, size) == TN_OK &&
                tn_read(constant_at(p->g, w->scale)->tensor, weights, size) == TN_OK;
    for (int64_t i = 0; i < bias->count && fits; i++)
        fits = fabs((double)sums[i] - of_x * (double)weights[i]) <= 1e-6 * fabs((double)sums[i]);
    return fits;
}

static int put_in(int32_t *in, int count, int32_t a, int32_t b, int32_t c) {
    in[count] = a;
    in[count + 1] = b;
    in[count + 2] = c;
    return count + 3;
}

/* Operands of a product: the first has one scale, the second may have one for each column. */
static bool read_product(const mapping *p, const onnx_node *n, const struct kind *k, quantized *x, quantized *w,
                         quantized *bias) {
    bias->slot = NONE;
    if (!dequantized_bytes(p, input(n, 0), x) || !dequantized(p, input(n, 1), w) || !is_byte_type(w->type))
        return false;
    const onnx_value *held = constant_at(p->g, w->slot);
    if (!held && w->count > 1) return false;
    int axis = k->order == GEMM && attribute_int(n, "transB", 0) ? 0 : k->weight_axis;
    if (w->count > 1 && (w->axis < 0 ? w->axis + tn_rank(held->tensor) : w->axis) != axis) return false;
    if (k->weight_axis == 1 && w->count > 1 && tn_rank(held->tensor) != 2) return false;
    if (input(n, 2) < 0) return true;
    return dequantized(p, input(n, 2), bias) && bias_fits(p, bias, x, w);
}

/* Slots of the inputs of the node on bytes, whose result has y's scale and zero point; 0 if no such node exists. */
typedef int lister(const mapping *p, const onnx_node *n, const struct kind *k, const quantized *y, int32_t *in);

/* Operators that move elements or take the greatest. */
static int list_same(const mapping *p, const onnx_node *n, TN_UNUSED const struct kind *k, const quantized *y,
                     int32_t *in) {
    quantized x;
    if (!dequantized_bytes(p, input(n, 0), &x) || n->out_count != 1 || x.type != y->type || n->in_count > MOST_IN)
        return 0;
    if (!same_numbers(p, x.scale, y->scale) || !same_numbers(p, x.zero, y->zero)) return 0;
    memcpy(in, n->in, (size_t)n->in_count * sizeof *in);
    in[0] = x.slot;
    return n->in_count;
}

static int list_product(const mapping *p, const onnx_node *n, const struct kind *k, const quantized *y, int32_t *in) {
    quantized x, w, bias;
    if (!read_product(p, n, k, &x, &w, &bias)) return 0;
    int count = put_in(in, 0, x.slot, x.scale, x.zero);
    count = put_in(in, count, w.slot, w.scale, w.zero);
    return put_in(in, count, y->scale, y->zero, bias.slot) - (bias.slot < 0);
}

static int list_gemm(const mapping *p, const onnx_node *n, const struct kind *k, const quantized *y, int32_t *in) {
    quantized x, w, bias;
    const onnx_attribute *alpha = onnx_node_attribute(n, "alpha"), *beta = onnx_node_attribute(n, "beta");
    if ((alpha && alpha->f != 1) || (beta && beta->f != 1) || !read_product(p, n, k, &x, &w, &bias)) return 0;
    if (x.type != y->type) return 0;
    int count = put_in(in, 0, x.slot, x.scale, x.zero);
    count = put_in(in, count, w.slot, w.scale, w.zero);
    return put_in(in, count, bias.slot, y->scale, y->zero);
}

/* Operands with their scales; those of the result stand after them, of a list before them. */
static int list_operands(const mapping *p, const onnx_node *n, const struct kind *k, const quantized *y, int32_t *in) {
    quantized x;
    int count = k->result_first ? put_in(in, 0, y->scale, y->zero, NONE) - 1 : 0;
    for (int i = 0; i < n->in_count; i++) {
        if (count + 5 > MOST_IN || !dequantized_bytes(p, n->in[i], &x) || x.type != y->type) return 0;
        count = put_in(in, count, x.slot, x.scale, x.zero);
    }
    return k->result_first ? count : put_in(in, count, y->scale, y->zero, NONE) - 1;
}

static lister *const listers[] = {
    [PRODUCT] = list_product, [GEMM] = list_gemm, [OPERANDS] = list_operands, [SAME] = list_same};

static const struct kind *kind_of(const onnx_node *n) {
    for (size_t i = 0; i < TN_COUNT(kinds); i++)
        if (is_type(n, kinds[i].name)) return &kinds[i];
    return NULL;
}

static double least_of(onnx_type type) { return type == ONNX_INT8 ? INT8_MIN : 0; }

/* The node whose result QuantizeLinear `at` reads, alone; a Relu between them goes if rounding does the same. */
static int32_t quantized_node(const mapping *p, int32_t at, const quantized *y, int32_t *relu) {
    double zero;
    int32_t node = y->slot < 0 ? NONE : p->maker[y->slot];
    *relu = NONE;
    if (node < 0 || only_reader(p, y->slot) != at) return NONE;
    if (!is_type(&p->g->nodes[node], "Relu")) return node;
    const int32_t from = input(&p->g->nodes[node], 0);
    if (!number_at(p, y->zero, &zero) || zero != least_of(y->type)) return NONE;
    *relu = node;
    return from < 0 || only_reader(p, from) != node ? NONE : p->maker[from];
}

/* Makes node `at`, a QuantizeLinear, the node on bytes if what is before it allows that. */
static tn_status map_node(mapping *p, int32_t at) {
    int32_t in[MOST_IN], relu;
    quantized y;
    onnx_node *to = &p->g->nodes[at];
    if (!is_type(to, "QuantizeLinear") || !read_scale(p, to, &y) || !is_one_scale(p, &y)) return TN_OK;
    const int32_t from = quantized_node(p, at, &y, &relu);
    const onnx_node *n = from < 0 ? NULL : &p->g->nodes[from];
    const struct kind *k = n ? kind_of(n) : NULL;
    const int count = k ? listers[k->order](p, n, k, &y, in) : 0;
    if (count == 0) return TN_OK;
    int32_t *kept = onnx_take(&p->m->arena, (size_t)count, sizeof *kept);
    if (!kept) return tn_error_code();
    memcpy(kept, in, (size_t)count * sizeof *kept);
    const bool standard = !k->domain[0];
    onnx_node made = *n;
    made.in = kept;
    made.in_count = count;
    made.out = to->out;
    made.out_count = to->out_count;
    made.type = (onnx_text){k->becomes, strlen(k->becomes)};
    made.domain = (onnx_text){k->domain, strlen(k->domain)};
    made.opset = standard ? n->opset : 1;
    made.row = onnx_find_row(made.domain, made.type, made.opset);
    if (!made.row) return TN_OK;
    *to = made;
    p->gone[from] = true;
    if (relu >= 0) p->gone[relu] = true;
    return TN_OK;
}

/* The QLinearConv that makes input i of node `at` and nothing else reads; NONE: another node makes it. */
static int32_t conv_before(const mapping *p, int32_t at, int i) {
    enum { INPUTS = 9 };
    const int32_t slot = input(&p->g->nodes[at], i), maker = slot < 0 ? NONE : p->maker[slot];
    if (maker < 0 || only_reader(p, slot) != at) return NONE;
    const onnx_node *n = &p->g->nodes[maker];
    return is_type(n, "QLinearConv") && n->row != &onnx_conv_add && n->in_count <= INPUTS ? maker : NONE;
}

/* Makes node `at`, a QLinearAdd, the convolution before one of its operands with the other one as an addend. */
static tn_status join_sum(mapping *p, int32_t at) {
    enum { CONV_INPUTS = 9, OPERAND = 3, SUM_SCALE = 6, INPUTS = 14 };
    onnx_node *to = &p->g->nodes[at];
    if (!is_type(to, "QLinearAdd")) return TN_OK;
    const int side = conv_before(p, at, OPERAND) >= 0 ? 1 : 0;
    const int32_t from = conv_before(p, at, side * OPERAND);
    if (from < 0) return TN_OK;
    const onnx_node *conv = &p->g->nodes[from];
    for (int i = 1; i < OPERAND; i++) /* the scale and the zero point that the convolution rounds by */
        if (!same_numbers(p, input(to, side * OPERAND + i), input(conv, 5 + i))) return TN_OK;
    int32_t *in = onnx_take(&p->m->arena, INPUTS, sizeof *in);
    if (!in) return tn_error_code();
    for (int i = 0; i < INPUTS; i++)
        in[i] = i < CONV_INPUTS             ? input(conv, i)
                : i < CONV_INPUTS + OPERAND ? input(to, (1 - side) * OPERAND + i - CONV_INPUTS)
                                            : input(to, SUM_SCALE + i - CONV_INPUTS - OPERAND);
    onnx_node made = *conv;
    made.in = in;
    made.in_count = INPUTS;
    made.out = to->out;
    made.out_count = to->out_count;
    made.row = &onnx_conv_add;
    *to = made;
    p->gone[from] = true;
    return TN_OK;
}

/* ---- the graph --------------------------------------------------------------------------------------------------- */

static void note_read(mapping *p, int32_t slot, int32_t node) {
    if (slot < 0) return;
    p->reads[slot]++;
    p->reader[slot] = node;
    if (p->g->last_use[slot] < node) p->g->last_use[slot] = node;
}

/* The maker and the readers of each slot; subgraphs read what they capture, the caller reads outputs. */
static void note_uses(mapping *p) {
    onnx_graph *g = p->g;
    for (int32_t s = 0; s < g->slot_count; s++) {
        p->maker[s] = p->reader[s] = NONE;
        p->reads[s] = 0;
        g->last_use[s] = UNREAD;
    }
    for (int32_t i = 0; i < g->node_count; i++) {
        const onnx_node *n = &g->nodes[i];
        for (int k = 0; k < n->in_count; k++)
            note_read(p, n->in[k], i);
        for (int k = 0; k < n->out_count; k++)
            if (n->out[k] >= 0) p->maker[n->out[k]] = i;
        for (int a = 0; a < n->attribute_count; a++)
            for (size_t j = 0; n->attributes[a].graphs && j < n->attributes[a].count; j++)
                for (int c = 0; c < n->attributes[a].graphs[j]->captured_count; c++)
                    note_read(p, n->attributes[a].graphs[j]->captured[c].from, i);
    }
    for (int k = 0; k < g->output_count; k++)
        note_read(p, g->outputs[k].slot, g->node_count);
}

/* DequantizeLinear nodes that lost their readers. */
static void drop_unread(mapping *p) {
    for (int32_t i = 0; i < p->g->node_count; i++) {
        const onnx_node *n = &p->g->nodes[i];
        bool unread = is_type(n, "DequantizeLinear") && n->out_count == 1 && n->out[0] >= 0 && p->reads[n->out[0]] == 0;
        p->gone[i] = p->gone[i] || unread;
    }
}

static void compact(mapping *p) {
    int32_t kept = 0;
    for (int32_t i = 0; i < p->g->node_count; i++)
        if (!p->gone[i]) p->g->nodes[kept++] = p->g->nodes[i];
    p->g->node_count = kept;
    memset(p->gone, 0, (size_t)kept * sizeof *p->gone);
}

static tn_status map_graph(mapping *p) {
    note_uses(p);
    for (int32_t i = 0; i < p->g->node_count; i++)
        TRY(map_node(p, i));
    compact(p);
    note_uses(p);
    drop_unread(p);
    compact(p);
    note_uses(p);
    for (int32_t i = 0; i < p->g->node_count; i++)
        TRY(join_sum(p, i));
    compact(p);
    note_uses(p);
    return TN_OK;
}

tn_status onnx_map_quantized(tn_onnx *m, onnx_graph *g) {
    bool any = false;
    for (int i = 0; i < g->node_count; i++)
        any = any || is_type(&g->nodes[i], "QuantizeLinear");
    if (!any) return TN_OK;
    const size_t slots = (size_t)g->slot_count;
    mapping p = {.m = m, .g = g, .maker = tn_mem_alloc(slots * 3 * sizeof(int32_t))};
    p.gone = tn_mem_zalloc((size_t)g->node_count, sizeof *p.gone);
    if (p.maker) {
        p.reads = p.maker + slots;
        p.reader = p.reads + slots;
    }
    tn_status status = p.maker && p.gone ? map_graph(&p) : TN_ERR_MEMORY;
    tn_mem_free_each(p.maker, p.gone);
    return status;
}
