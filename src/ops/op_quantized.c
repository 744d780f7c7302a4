/* op_quantized.c — block-quantized weights: decoding, and products with them.
 *
 * Ops that read such a weight element by element need no code of their own: lowering decodes the elements that are
 * read (plan/lower.c), so a gather decodes only its rows. The product has a native kernel (cpu_kernels.h). Like that
 * kernel, its lowering for other devices rounds the other operand to eight bits per block. */
#include <math.h>
#include <string.h>

#include "cpu/qformat.h"
#include "ops/ops_common.h"

/* ---- dequantize -------------------------------------------------------------------------------------------------- */

static tn_status infer_dequantize(tn_infer *c) {
    tn_dtype from = (tn_dtype)c->in[0]->dtype, to = (tn_dtype)c->attrs->i[TN_DEQUANTIZE_DTYPE];
    if (!tn_dtype_is_quantized(from))
        return tn_fail(TN_ERR_DTYPE, "dequantize: x is %s, which is not block-quantized; convert it with tn_cast",
                       tn_dtype_name(from));
    if (!tn_dtype_is_float(to))
        return tn_fail(TN_ERR_DTYPE, "dequantize: cannot convert to %s; it must be a floating type", tn_dtype_name(to));
    TRY(tn_infer_same(c));
    c->dtype = to;
    return TN_OK;
}

static tn_node *compose_dequantize(tn_build *b, const tn_node *n) { return tn_b_cast(b, n->in[0], (tn_dtype)n->dtype); }

/* dequantize(x, dtype): the values of a tensor that is quantised in blocks, as f32, f16, bf16 or f64. */
OP_CODE(dequantize, .quantized = 1, .infer = infer_dequantize, .compose = compose_dequantize,
        .cases =
            "types=f32; [3,32]:q4_0 dtype=f32; [2,2,64]:q4_1 dtype=f32; [3,96]:q5_0 dtype=f32; [1,64]:q5_1 dtype=f64; "
            "[5,32]:q8_0 dtype=f32; [2,512]:q2_k dtype=f32; [3,256]:q3_k dtype=f32; [2,256]:q4_k dtype=f32; "
            "[256]:q5_k dtype=f32; [3,512]:q6_k dtype=f32; [3,64]:q8_x dtype=f32; [2,64]:q8_0 dtype=f16 tol=1e-3; "
            "[0,32]:q4_0 dtype=f32 tol=0; "
            "error=floating [32]:q4_0 dtype=i32; error=tn_cast [32] dtype=f32");

/* ---- linear_quantized -------------------------------------------------------------------------------------------- */

enum { Q8_BLOCK = 32 };

static tn_status infer_linear_stored(tn_infer *c) {
    const tn_node *x = c->in[0], *w = c->in[1];
    int64_t offset, stride[TN_MAX_RANK];
    char a[96], b[96];
    bool half = w->dtype == TN_F16 || w->dtype == TN_BF16, blocks = tn_dtype_is_quantized((tn_dtype)w->dtype);
    if (x->dtype != TN_F32 || !(c->row == tn_op(TN_OP_LINEAR_HALF) ? half : blocks))
        return tn_fail(TN_ERR_DTYPE, "%s: x must be f32 with a weight of this type; x is %s, the weight %s",
                       c->row->name, tn_dtype_name((tn_dtype)x->dtype), tn_dtype_name((tn_dtype)w->dtype));
    if (x->rank != 2 || w->rank != 2 || x->shape[1] != w->shape[1])
        return tn_fail(TN_ERR_SHAPE, "%s: x %s and weight %s do not fit together: they must be [m, in] and [out, in]",
                       c->row->name, tn_shape_text(x, a, sizeof a), tn_shape_text(w, b, sizeof b));
    tn_node_layout(x, &offset, stride);
    if (stride[1] != 1 && x->shape[1] > 1)
        return tn_fail(TN_ERR_SHAPE, "%s: the rows of x must be contiguous", c->row->name);
    TRY(tn_need_rows(c, 1));
    c->dtype = TN_F32;
    c->rank = 2;
    c->shape[0] = x->shape[0];
    c->symbol[0] = x->symbol[0];
    c->shape[1] = w->shape[0];
    c->symbol[1] = w->symbol[0];
    return TN_OK;
}

/* ---- without a kernel -------------------------------------------------------------------------------------------- */

enum { PART = 16 }; /* fewest weights that share a scale */

static bool has_halves(tn_dtype t) { return tn_qformat_of(t)->parts == 2; }
static bool has_minimum(tn_dtype t) { return tn_qformat_of(t)->has_minimum; }

/* Blocks of 32, parts of a block, and steps of a part: that of u, that of the minimum. */
static int loops_linear_quantized(const tn_node *n, int64_t extent[TN_MAX_RANK]) {
    tn_dtype t = (tn_dtype)n->in[1]->dtype;
    extent[0] = n->in[0]->shape[1] / Q8_BLOCK;
    extent[1] = has_halves(t) ? 2 : 1;
    extent[2] = has_minimum(t) ? 2 : 1;
    return 3;
}

/* A block of x on its way: its elements, 127 / max|x| or 0 where nothing is to be rounded, and the step dx. */
typedef struct rounding {
    kir_val x[Q8_BLOCK], inverse, step;
} rounding;

static void round_block(tn_lower *lw, const tn_node *x, const kir_aff *row, const kir_aff *block, rounding *r) {
    kir_builder *kb = lw->kb;
    kir_aff at[TN_MAX_RANK], *last = &at[x->rank - 1];
    memcpy(at, row, (size_t)(x->rank - 1) * sizeof *at);
    *last = tn_aff_scale(lw, block, Q8_BLOCK);
    kir_val most = kir_real(kb, 0), zero = most;
    for (int k = 0; k < Q8_BLOCK; k++, last->c++) {
        r->x[k] = tn_lower_at(lw, x, at);
        most = kir_max(kb, most, kir_unary(kb, KIR_ABS, r->x[k]));
    }
    kir_val finite = kir_lt(kb, most, kir_real(kb, INFINITY));
    kir_val tiny = kir_lt(kb, most, kir_real(kb, 0x1p-100));
    kir_val scale = kir_real(kb, 127);
    kir_val rounds = kir_select(kb, tiny, kir_const_i(kb, KIR_BOOL, 0), finite);
    r->inverse = kir_select(kb, rounds, kir_div(kb, scale, most), zero);
    r->step = kir_select(kb, finite, kir_select(kb, tiny, zero, kir_div(kb, most, scale)), kir_real(kb, NAN));
}

/* Element k of the part: in a half of the block as the index of the part says, where it has halves. */
static kir_val rounded_element(tn_lower *lw, const rounding *r, int k, kir_val second) {
    kir_val x = second == KIR_NONE ? r->x[k] : kir_select(lw->kb, second, r->x[PART + k], r->x[k]);
    kir_val scaled = kir_mul(lw->kb, x, r->inverse);
    return kir_cast(lw->kb, KIR_I32, kir_rounding(lw->kb, KIR_NEAREST_EVEN, scaled));
}

/* A step of the product of a row of x with a row of the weight, by its definition (cpu_kernels.h); to the bit until
 * there are KIR_KSUM steps. A cast of what is not finite yields 0 or is multiplied by 0: q is 0 then. loop: block,
 * part, step. valid: where it does not hold, the product is NaN; KIR_NONE: always. */
static kir_val lower_blocks(tn_lower *lw, const tn_node *n, const kir_aff *x_row, const kir_aff *w_row,
                            const kir_aff loop[3], kir_val valid) {
    kir_builder *kb = lw->kb;
    const tn_node *weight = n->in[1];
    tn_dtype t = (tn_dtype)weight->dtype;
    const kir_aff *block = &loop[0], *part = &loop[1], *step = &loop[2];
    rounding r;
    round_block(lw, n->in[0], x_row, block, &r);
    if (valid != KIR_NONE) r.step = kir_select(kb, valid, r.step, kir_real(kb, NAN));
    kir_aff from = tn_aff_scale(lw, block, Q8_BLOCK), in_block = tn_aff_scale(lw, part, PART), wi[TN_MAX_RANK];
    memcpy(wi, w_row, (size_t)(weight->rank - 1) * sizeof *wi);
    wi[weight->rank - 1] = tn_aff_add(lw, &from, &in_block);
    kir_val zero = kir_const_i(kb, KIR_I32, 0), dot = zero, sum = zero;
    kir_val second = has_halves(t) ? kir_eq(kb, kir_index(kb, part), kir_whole(kb, 1)) : KIR_NONE;
    tn_quant w = {0};
    for (int k = 0; k < (has_halves(t) ? PART : Q8_BLOCK); k++) {
        w = tn_lower_quant_at(lw, weight, wi, k);
        kir_val q = rounded_element(lw, &r, k, second);
        dot = kir_add(kb, dot, kir_mul(kb, w.u, q));
        sum = kir_add(kb, sum, q);
    }
    kir_val a = kir_mul(kb, w.s, r.step), b = kir_cast(kb, KIR_F32, dot);
    if (has_minimum(t)) {
        kir_val first = kir_eq(kb, kir_index(kb, step), kir_whole(kb, 0));
        a = kir_select(kb, first, a, w.t);
        b = kir_select(kb, first, b, kir_mul(kb, r.step, kir_cast(kb, KIR_F32, sum)));
    }
    return kir_reduce_value(kb, KIR_CHAIN, a, b);
}

static kir_val lower_linear_quantized(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    return lower_blocks(lw, n, &at[0], &at[1], &at[2], KIR_NONE);
}

/* ---- definitions ------------------------------------------------------------------------------------------------- */

/* One block of x as the kernel sees it: whole numbers of at most 127 times a step. Rounded as there, in f32. */
static void rounded_block(const double *x, double *out) {
    float most = 0;
    bool finite = true;
    for (int k = 0; k < Q8_BLOCK; k++) {
        finite = finite && isfinite(x[k]);
        most = fmaxf(most, fabsf((float)x[k]));
    }
    float step = finite ? most / 127.0f : NAN, inverse = 127.0f / most;
    bool none = !finite || most < 0x1p-100f;
    for (int k = 0; k < Q8_BLOCK; k++) {
        double q = none ? 0 : (double)rintf((float)x[k] * inverse);
        out[k] = none && finite ? 0 : q * (double)step;
    }
}

static void reference_linear_quantized(const tn_reference *r) {
    int64_t m = r->node->shape[0], n = r->node->shape[1], k = r->node->in[0]->shape[1];
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0, x[Q8_BLOCK];
            for (int64_t from = 0; from < k; from += Q8_BLOCK) {
                rounded_block(r->in[0] + i * k + from, x);
                for (int64_t l = 0; l < Q8_BLOCK; l++)
                    sum += x[l] * r->in[1][j * k + from + l];
            }
            r->out[i * n + j] = sum;
        }
}

/* linear_quantized(x, weight): x·weightᵀ for x [m, in] in f32 and a weight [out, in] that is quantised in blocks; x is
 * rounded to eight bits a block of 32 (cpu_kernels.h has the definition).
 *
 * Cases: |x| ≤ 2 and |w| ≤ 2, so partial sums stay below 4·in; each of in/32 blocks rounds a few times by 2⁻²⁴ of them,
 * in either direction: their root adds up to less than 2e-5 for in ≤ 512. */
OP_CODE(
    linear_quantized, .class_ = TN_MATMUL, .quantized = 2, .reduce = KIR_CHAIN, .infer = infer_linear_stored,
    .lower = lower_linear_quantized, .loops = loops_linear_quantized, .reference = reference_linear_quantized,
    .flops = 2,
    .cases =
        "types=f32 tol=4e-6 atol=2e-5; [3,64] [5,64]:q4_0; [1,96] [17,96]:q4_1; [2,32] [16,32]:q5_0; [9,64] "
        "[33,64]:q5_1; "
        "[1,64] [4,64]:q8_0; [2,512] [3,512]:q2_k; [1,256] [5,256]:q3_k; [3,512] [20,512]:q4_k; [1,256] [2,256]:q5_k; "
        "[7,256] [18,256]:q6_k; [2,96] [18,96]:q8_x; [0,32] [3,32]:q8_0; [2,32] [0,32]:q8_0; error=fit [2,64] "
        "[3,32]:q4_0; "
        "error=f32 [2,32]:f64 [3,32]:q4_0");

/* ---- linear_half ------------------------------------------------------------------------------------------------- */

static int loops_linear_half(const tn_node *n, int64_t extent[TN_MAX_RANK]) {
    extent[0] = n->in[0]->shape[1];
    return 1;
}

static kir_val lower_linear_half(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_aff xi[2] = {at[0], at[2]}, wi[2] = {at[1], at[2]};
    return kir_reduce_value(lw->kb, KIR_CHAIN, tn_lower_at(lw, n->in[0], xi), tn_lower_at(lw, n->in[1], wi));
}

static void reference_linear_half(const tn_reference *r) {
    int64_t m = r->node->shape[0], n = r->node->shape[1], k = r->node->in[0]->shape[1];
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t l = 0; l < k; l++)
                sum += r->in[0][i * k + l] * r->in[1][j * k + l];
            r->out[i * n + j] = sum;
        }
}

/* linear_half(x, weight): x·weightᵀ for x [m, in] in f32 and a weight [out, in] in f16 or bf16, widened where it is
 * read: the bits of the product with the cast weight.
 *
 * In the case of 300 products of numbers within ±2 partial sums grow to about 25 and are rounded 300 times: independent
 * errors add up to √300 · 2⁻²⁴ · 25 = 2.6e-5, its tolerance is four times that. */
OP_CODE(linear_half, .facts = TN_FACT_WEIGHT_FIRST, .class_ = TN_MATMUL, .reduce = KIR_CHAIN,
        .infer = infer_linear_stored, .lower = lower_linear_half, .loops = loops_linear_half,
        .reference = reference_linear_half, .flops = 2,
        .cases = "types=f32 tol=4e-6 atol=4e-6; [3,6] [5,6]:f16; [1,300] [17,300]:bf16 atol=1e-4; [9,64] [33,64]:f16; "
                 "[0,4] [3,4]:f16; "
                 "[2,0] [3,0]:bf16; error=fit [2,6] [3,2]:f16; error=f32 [2,6]:f64 [3,6]:f16");

/* ---- linear_experts ---------------------------------------------------------------------------------------------- */

enum { EXPERTS_X, EXPERTS_WEIGHT, EXPERTS_CHOSEN };

static bool is_expert_dtype(tn_dtype t) {
    return t == TN_F32 || t == TN_F16 || t == TN_BF16 || tn_dtype_is_quantized(t);
}

static tn_status infer_linear_experts(tn_infer *c) {
    const tn_node *x = c->in[EXPERTS_X], *w = c->in[EXPERTS_WEIGHT], *chosen = c->in[EXPERTS_CHOSEN];
    char a[96], b[96], d[96];
    TRY(tn_need_integer(c, EXPERTS_CHOSEN));
    if (x->dtype != TN_F32 || !is_expert_dtype((tn_dtype)w->dtype))
        return tn_fail(TN_ERR_DTYPE,
                       "%s: x must be f32, and the weight f32, f16, bf16 or block-quantized; they are %s and %s",
                       c->row->name, tn_dtype_name((tn_dtype)x->dtype), tn_dtype_name((tn_dtype)w->dtype));
    bool fits = w->rank == 3 && chosen->rank == 2 && (x->rank == 2 || x->rank == 3);
    fits = fits && x->shape[x->rank - 1] == w->shape[2] && x->shape[0] == chosen->shape[0];
    if (!fits || (x->rank == 3 && x->shape[1] != chosen->shape[1]))
        return tn_fail(TN_ERR_SHAPE,
                       "%s: x %s, weight %s and chosen %s do not fit together: they must be [tokens, in] or [tokens, "
                       "choices, in], [experts, out, in] and [tokens, choices]",
                       c->row->name, tn_shape_text(x, a, sizeof a), tn_shape_text(w, b, sizeof b),
                       tn_shape_text(chosen, d, sizeof d));
    c->dtype = TN_F32;
    c->rank = 3;
    for (int k = 0; k < 2; k++) {
        c->shape[k] = chosen->shape[k];
        c->symbol[k] = chosen->symbol[k];
    }
    c->shape[2] = w->shape[1];
    c->symbol[2] = w->symbol[1];
    return tn_infer_shape(c, c->shape, c->rank);
}

static tn_status infer_linear_experts_rows(tn_infer *c) {
    TRY(infer_linear_experts(c));
    TRY(tn_need_rows(c, EXPERTS_WEIGHT));
    if (c->in[EXPERTS_CHOSEN]->dtype == TN_I64) return TN_OK;
    return tn_fail(TN_ERR_DTYPE, "%s: chosen must be i64", c->row->name);
}

static tn_node *compose_linear_experts(tn_build *b, const tn_node *n) {
    tn_node *w = n->in[EXPERTS_WEIGHT];
    if (!tn_dtype_is_quantized((tn_dtype)w->dtype) && !tn_rows_follow(w)) w = tn_b_contiguous(b, w);
    return tn_b_linear_experts_rows(b, tn_b_row_major(b, n->in[EXPERTS_X]), w,
                                    tn_b_row_major(b, tn_b_cast(b, n->in[EXPERTS_CHOSEN], TN_I64)));
}

static int loops_linear_experts(const tn_node *n, int64_t extent[TN_MAX_RANK]) {
    const tn_node *x = n->in[EXPERTS_X];
    extent[0] = x->shape[x->rank - 1];
    if (!tn_dtype_is_quantized((tn_dtype)n->in[EXPERTS_WEIGHT]->dtype)) return 1;
    int loops = loops_linear_quantized(n, extent);
    extent[0] = x->shape[x->rank - 1] / Q8_BLOCK;
    return loops;
}

/* An expert that does not exist is read as one that does, and makes NaN. */
static kir_val lower_linear_experts(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    const tn_node *x = n->in[EXPERTS_X], *w = n->in[EXPERTS_WEIGHT];
    kir_builder *kb = lw->kb;
    kir_val expert = tn_lower_at(lw, n->in[EXPERTS_CHOSEN], at), valid = index_in_range(kb, expert, w->shape[0]);
    expert = kir_select(kb, valid, expert, kir_whole(kb, 0));
    kir_aff xi[3] = {at[0], at[1]}, wi[3] = {kir_aff_value(expert), at[2], at[3]};
    if (tn_dtype_is_quantized((tn_dtype)w->dtype)) return lower_blocks(lw, n, xi, wi, &at[3], valid);
    xi[x->rank - 1] = at[3];
    kir_val v = kir_select(kb, valid, tn_lower_at(lw, x, xi), kir_real(kb, NAN));
    return kir_reduce_value(kb, KIR_CHAIN, v, tn_lower_at(lw, w, wi));
}

static void reference_linear_experts(const tn_reference *r) {
    const tn_node *n = r->node, *x = n->in[EXPERTS_X], *w = n->in[EXPERTS_WEIGHT];
    int64_t choices = n->shape[1], out = n->shape[2], in = x->shape[x->rank - 1];
    bool rounds = tn_dtype_is_quantized((tn_dtype)w->dtype);
    for (int64_t i = 0; i < tn_node_numel(n); i++) {
        int64_t row = i / out, expert = (int64_t)r->in[EXPERTS_CHOSEN][row];
        const double *from = r->in[EXPERTS_X] + (x->rank == 3 ? row : row / choices) * in;
        bool exists = expert >= 0 && expert < w->shape[0];
        double sum = exists ? 0 : NAN, block[Q8_BLOCK];
        for (int64_t k = 0; k < in && exists; k++) {
            if (rounds && k % Q8_BLOCK == 0) rounded_block(from + k, block);
            sum += (rounds ? block[k % Q8_BLOCK] : from[k]) * r->in[EXPERTS_WEIGHT][(expert * out + i % out) * in + k];
        }
        r->out[i] = sum;
    }
}

/* linear_experts(x, weight, chosen): a product in which each row chooses its matrix, as in mixtures of experts:
 * result [tokens, choices, out], of which row (t, j) is weight[chosen[t, j]] · x[t] or, if x has choices, · x[t, j].
 * x [tokens, in] or [tokens, choices, in] in f32, weight [experts, out, in] in f32, f16, bf16 or quantised in blocks
 * (then x is rounded as in linear), chosen [tokens, choices] whole numbers; one that names no expert gives NaN. Weights
 * of experts that nobody chose are not read. No gradient. */
OP_CODE(linear_experts, .quantized = 2, .infer = infer_linear_experts, .compose = compose_linear_experts,
        .cases =
            "types=f32 grad=off tol=4e-6 atol=2e-5; [3,4] [5,6,4] [3,2]:i64@0..4; [3,2,4] [5,7,4] [3,2]:i32@0..4; "
            "[1,8] [4,70,8] [1,3]:i64@0..3; [70,6] [3,17,6]:f16 [70,2]:i64@0..2; [1,2,6] [3,17,6]:bf16 [1,2]:i64@0..2; "
            "[5,64] [4,18,64]:q4_0 [5,2]:i64@0..3; [1,256] [4,20,256]:q4_k [1,3]:i64@0..3; [2,2,64] [3,5,64]:q8_0 "
            "[2,2]:i64@-1..3; [2,256] [3,16,256]:q6_k [2,1]:i64@0..2; [3,4] [2,5,4] [3,1]:i64@-1..2; "
            "[0,4] [3,5,4] [0,2]:i64@0..2; error=fit [3,4] [5,6,8] [3,2]:i64@0..4; error=fit [3,3,4] [5,6,4] "
            "[3,2]:i64@0..4; error=f32 [3,4]:f64 [5,6,4] [3,2]:i64@0..4; error=integer [3,4] [5,6,4] [3,2]");

/* linear_experts_rows(x, weight, chosen): linear_experts on operands that are laid out, chosen in i64. */
OP_CODE(linear_experts_rows, .class_ = TN_NATIVE, .quantized = 2, .reduce = KIR_CHAIN,
        .infer = infer_linear_experts_rows, .contiguous = 1 << EXPERTS_X | 1 << EXPERTS_CHOSEN,
        .lower = lower_linear_experts, .loops = loops_linear_experts, .reference = reference_linear_experts, .flops = 2,
        .cases = "types=f32 grad=off tol=4e-6 atol=2e-5; [3,4] [5,6,4] [3,2]:i64@0..4; [3,2,64] [4,18,64]:q4_1 "
                 "[3,2]:i64@0..3; error=i64 [3,4] [5,6,4] [3,2]:i32@0..4");
