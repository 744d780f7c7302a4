/* op_elementwise.c — element-wise primitives, and reinterpreting bits as another dtype.
 *
 * Most ops are one KIR instruction; their row names it (.instruction) and their f64 definition (.define_one,
 * .define_two). The rest of an op is its gradient, test cases and dtypes. Gradients are PyTorch's, also of ties. */
#include <math.h>
#include <string.h>

#include "ops/ops_common.h"

/* ---- one operand ------------------------------------------------------------------------------------------------- */

static double negate_elementwise(double x) { return -x; }

static kir_val lower_unary(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    return kir_unary(lw->kb, (kir_op)tn_op(n->op)->impl->instruction, tn_lower_in(lw, n, 0, at));
}

/* neg(x): −x. */
static tn_node *grad_neg(tn_build *b, TN_UNUSED const tn_node *n, tn_node *dy) { return tn_b_neg(b, dy); }
OP_CODE(neg, .class_ = TN_ELEMENTWISE, .keeps_half = true, .infer = tn_infer_not_bool, .grad_first = grad_neg,
        .lower = lower_unary, .instruction = KIR_NEG, .define_one = negate_elementwise,
        .cases = "types=f32,f64,i32,i64,i8; [2,3]; [0,3]; []; [17]", .flops = 1);

/* abs(x): |x|. The gradient at 0 is 0. */
static tn_node *grad_abs(tn_build *b, const tn_node *n, tn_node *dy) { return tn_b_mul(b, dy, tn_b_sign(b, n->in[0])); }
static kir_val lower_abs(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    bool is_unsigned = n->dtype == TN_U8 || n->dtype == TN_U16 || n->dtype == TN_U32 || n->dtype == TN_U64;
    kir_val x = tn_lower_in(lw, n, 0, at);
    return is_unsigned ? x : kir_unary(lw->kb, KIR_ABS, x);
}
OP_CODE(abs, .class_ = TN_ELEMENTWISE, .keeps_half = true, .infer = tn_infer_not_bool, .grad_first = grad_abs,
        .lower = lower_abs, .define_one = fabs, .cases = "types=f32,f64,i32,i64,u8; [2,3]; [0,3]; []", .flops = 1);

/* The four roundings: of floats; integers and bools are whole already. */
static kir_val lower_rounding(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_val x = tn_lower_in(lw, n, 0, at);
    if (!tn_dtype_is_float((tn_dtype)n->dtype)) return x;
    return kir_rounding(lw->kb, (kir_round)tn_op(n->op)->impl->instruction, x);
}

#define ROUNDING(how, f)                                                                                 \
    .class_ = TN_ELEMENTWISE, .infer = tn_infer_not_bool, .grad = tn_grad_none, .lower = lower_rounding, \
    .instruction = how, .define_one = f,                                                                 \
    .cases = "types=f32,f64,i32; [2,3]@-9..9~0.1; [0,3]; []@0..5~0.1; [3,5]@-1e9..1e9~0.1 grad=off", .flops = 1

/* floor(x): the greatest integer ≤ x. The gradient is 0, as for ceil, trunc and round. */
OP_CODE(floor, ROUNDING(KIR_FLOOR, floor));

/* ceil(x): the least integer ≥ x. */
OP_CODE(ceil, ROUNDING(KIR_CEIL, ceil));

/* trunc(x): x without its fraction, rounded towards 0. */
OP_CODE(trunc, ROUNDING(KIR_TRUNC, trunc));

/* round(x): the nearest integer; ties round to even. */
OP_CODE(round, ROUNDING(KIR_NEAREST_EVEN, rint));

/* Functions of floats that are one instruction. */
#define FLOAT_FUNCTION(instruction_, f)                                                        \
    .class_ = TN_ELEMENTWISE, .to_float = true, .infer = tn_infer_float, .lower = lower_unary, \
    .instruction = instruction_, .define_one = f

/* sqrt(x): the square root; NaN below 0. */
static tn_node *grad_sqrt(tn_build *b, const tn_node *n, tn_node *dy) {
    return tn_b_div(b, dy, tn_b_scale(b, tn_b_self(n), 2));
}
OP_CODE(sqrt, FLOAT_FUNCTION(KIR_SQRT, sqrt), .grad_first = grad_sqrt,
        .cases = "types=f32,f64,i32; [2,3]@0.1..9; [0,3]; []@1..5; [9]@1e-30..1e30 grad=off", .flops = 1);

/* exp(x): e to the power of x. */
static tn_node *grad_exp(tn_build *b, const tn_node *n, tn_node *dy) { return tn_b_mul(b, dy, tn_b_self(n)); }
OP_CODE(exp, FLOAT_FUNCTION(KIR_EXP, exp), .grad_first = grad_exp,
        .cases = "types=f32,f64,f16,bf16,i32 tol=4ulp; [2,3]; [0,3]; []; types=f32,f64; [33]@-80..80 grad=off",
        .flops = 8);

/* log(x): the natural logarithm; −∞ at 0, NaN below. */
static tn_node *grad_log(tn_build *b, const tn_node *n, tn_node *dy) { return tn_b_div(b, dy, n->in[0]); }
OP_CODE(log, FLOAT_FUNCTION(KIR_LOG, log), .grad_first = grad_log,
        .cases = "types=f32,f64,i32 tol=4ulp; [2,3]@0.1..9; [0,3]; []@1..5; [33]@1e-30..1e30 grad=off", .flops = 8);

/* sin(x): the sine of x in radians. */
static tn_node *grad_sin(tn_build *b, const tn_node *n, tn_node *dy) { return tn_b_mul(b, dy, tn_b_cos(b, n->in[0])); }
/* Near its zeros a sine has few correct bits relative to itself, so the tolerance there is absolute. */
#define CIRCULAR "types=f32,f64,i32 tol=4ulp atol=1ulp; [2,3]; [0,3]; []; [33]@-1000..1000 grad=off"
OP_CODE(sin, FLOAT_FUNCTION(KIR_SIN, sin), .grad_first = grad_sin, .cases = CIRCULAR, .flops = 12);

/* cos(x): the cosine of x in radians. */
static tn_node *grad_cos(tn_build *b, const tn_node *n, tn_node *dy) {
    return tn_b_neg(b, tn_b_mul(b, dy, tn_b_sin(b, n->in[0])));
}
OP_CODE(cos, FLOAT_FUNCTION(KIR_COS, cos), .grad_first = grad_cos, .cases = CIRCULAR, .flops = 12);

/* tanh(x): the hyperbolic tangent. */
static tn_node *grad_tanh(tn_build *b, const tn_node *n, tn_node *dy) {
    tn_node *y = tn_b_self(n);
    tn_node *slope = tn_b_sub(b, tn_b_const(b, 1, n), tn_b_mul(b, y, y));
    return tn_b_mul(b, dy, slope);
}
OP_CODE(tanh, FLOAT_FUNCTION(KIR_TANH, tanh), .grad_first = grad_tanh,
        .cases = "types=f32,f64,i32 tol=4ulp; [2,3]; [0,3]; []; [33]@-20..20 grad=off", .flops = 10);

/* erf(x): the error function, 2/√π · ∫ exp(−t²) dt from 0 to x. */
static void grad_erf(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    tn_node *x = n->in[0];
    tn_node *bell = tn_b_exp(b, tn_b_neg(b, tn_b_mul(b, x, x)));
    grads[0] = tn_b_mul(b, dy, tn_b_scale(b, bell, 1.1283791670955126)); /* 2/√π */
}
OP_CODE(erf, FLOAT_FUNCTION(KIR_ERF, erf), .grad = grad_erf,
        .cases = "types=f32,f64,i32 tol=4ulp; [2,3]; [0,3]; []; [33]@-6..6 grad=off", .flops = 12);

/* bitwise_not(x): bitwise complement; logical not for bool. */
static kir_val lower_bitwise_not(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_val x = tn_lower_in(lw, n, 0, at);
    kir_type t = kir_val_type(lw->kb, x);
    return kir_xor(lw->kb, x, kir_const_i(lw->kb, t, t == KIR_BOOL ? 1 : -1));
}
static void reference_bitwise_not(const tn_reference *r) {
    int64_t count = tn_node_numel(r->node);
    bool is_bool = r->node->dtype == TN_BOOL;
    for (int64_t i = 0; i < count; i++)
        r->out[i] = is_bool ? 1 - r->in[0][i] : -1 - r->in[0][i];
}
OP_CODE(bitwise_not, .class_ = TN_ELEMENTWISE, .infer = tn_infer_bits, .lower = lower_bitwise_not,
        .reference = reference_bitwise_not, .cases = "types=i32,i64,bool; [2,3]; [0,3]; []", .flops = 1);

/* cast(x, dtype): x converted to another dtype. Float to integer truncates towards 0; NaN gives 0. What is outside
 * i32, i64, u32 or u64 becomes their nearest number; i8, u8, i16 and u16 take the lower bits of the i32: −2.5 gives
 * 254 in u8 and 1e10 gives −1 in i8 (clamp x first to saturate). To bool: x ≠ 0. Block-quantized tensors are decoded;
 * no tensor can be cast to a block-quantized dtype. */
static tn_status infer_cast(tn_infer *c) {
    int64_t dtype = c->attrs->i[TN_CAST_DTYPE];
    if (dtype >= TN_PLAIN_DTYPES && dtype < TN_DTYPE_COUNT)
        return tn_fail(TN_ERR_DTYPE,
                       "%s: cannot cast to %s, a block-quantized type: such tensors come from files (tn_gguf_tensor) "
                       "or tn_quantize_blocks",
                       c->row->name, tn_dtype_name((tn_dtype)dtype));
    if (dtype < 0 || dtype >= TN_PLAIN_DTYPES)
        return tn_fail(TN_ERR_DTYPE, "%s: %lld is not a dtype", c->row->name, (long long)dtype);
    TRY(tn_infer_same(c));
    c->dtype = (tn_dtype)dtype;
    return TN_OK;
}
static tn_node *grad_cast(tn_build *b, const tn_node *n, tn_node *dy) {
    return tn_b_cast(b, dy, (tn_dtype)n->in[0]->dtype);
}
static kir_val lower_cast(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    tn_dtype to = (tn_dtype)n->dtype;
    kir_val v = kir_cast(lw->kb, kir_type_of(to), tn_lower_in(lw, n, 0, at));
    return tn_dtype_size(to) < 4 && to != n->in[0]->dtype ? tn_lower_narrow(lw->kb, to, v) : v;
}
static double saturate(double v, double lo, double hi) {
    if (v != v) return 0;
    v = trunc(v);
    return v < lo ? lo : v > hi ? hi : v;
}
/* What an integer type holds of v: floats saturate at the type they compute in, then small types wrap. */
static double to_integer(double v, tn_dtype dtype) {
    switch (dtype) {
    case TN_I32: return saturate(v, -0x1p31, 0x1p31 - 1);
    case TN_I64: return saturate(v, -0x1p63, 0x1p63);
    case TN_U32: return saturate(v, 0, 0x1p32 - 1);
    case TN_U64: return saturate(v, 0, 0x1p64);
    case TN_I8: return (double)(int8_t)(int32_t)saturate(v, -0x1p31, 0x1p31 - 1);
    case TN_I16: return (double)(int16_t)(int32_t)saturate(v, -0x1p31, 0x1p31 - 1);
    case TN_U8: return (double)(uint8_t)(int32_t)saturate(v, -0x1p31, 0x1p31 - 1);
    default: return (double)(uint16_t)(int32_t)saturate(v, -0x1p31, 0x1p31 - 1);
    }
}
static void reference_cast(const tn_reference *r) {
    tn_dtype to = (tn_dtype)r->node->dtype;
    int64_t count = tn_node_numel(r->node);
    for (int64_t i = 0; i < count; i++) {
        double v = r->in[0][i];
        if (to == TN_BOOL)
            r->out[i] = v != 0;
        else
            r->out[i] = tn_dtype_is_float(to) ? v : to_integer(v, to);
    }
}
OP_CODE(cast, .facts = TN_FACT_CAST, .class_ = TN_ELEMENTWISE, .keeps_half = true, .quantized = 1, .infer = infer_cast,
        .grad_first = grad_cast, .lower = lower_cast, .reference = reference_cast,
        .cases = "types=f32,f64,i32,i64,bool; [2,3] dtype=f64; [0,3] dtype=f32; [] dtype=f32; [7] dtype=bool;"
                 "types=f32,f64; [7]@-9..9~0.1 dtype=i32; [7]@-9..9~0.1 dtype=i64; [9]@-300..300~0.1 dtype=i8;"
                 "[5,3]@-9..9 dtype=f16 tol=1e-3 grad=off; [5,3]@-9..9 dtype=bf16 tol=8e-3 grad=off;"
                 "types=f32; [3,64]:q4_0 dtype=f64; [2,256]:q6_k dtype=i32; error=files [4] dtype=q8_0");

/* ---- two operands ------------------------------------------------------------------------------------------------ */

/* What arithmetic means for bools: + and max are "or", · and min are "and". */
static const uint8_t instruction_of_bools[KIR_OP_COUNT] = {
    [KIR_ADD] = KIR_OR, [KIR_MUL] = KIR_AND, [KIR_MIN] = KIR_AND, [KIR_MAX] = KIR_OR};

static kir_val lower_binary(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_val x = tn_lower_in(lw, n, 0, at);
    kir_val y = tn_lower_in(lw, n, 1, at);
    uint8_t instruction = tn_op(n->op)->impl->instruction;
    if (n->dtype == TN_BOOL && instruction_of_bools[instruction]) instruction = instruction_of_bools[instruction];
    return kir_binary(lw->kb, (kir_op)instruction, x, y);
}

static double define_add(double x, double y) { return x + y; }
static double define_sub(double x, double y) { return x - y; }
static double define_mul(double x, double y) { return x * y; }
static double define_div(double x, double y) { return x / y; }
static double define_min(double x, double y) { return x < y || x != x ? x : y; }
static double define_max(double x, double y) { return x > y || x != x ? x : y; }
static double define_eq(double x, double y) { return x == y; }
static double define_lt(double x, double y) { return x < y; }
static double define_le(double x, double y) { return x <= y; }
static double define_and(double x, double y) { return (double)((int64_t)x & (int64_t)y); }
static double define_or(double x, double y) { return (double)((int64_t)x | (int64_t)y); }
static double define_xor(double x, double y) { return (double)((int64_t)x ^ (int64_t)y); }
static double define_shl(double x, double y) { return x * exp2(y); }
static double define_shr(double x, double y) { return floor(x * exp2(-y)); }

/* Gives each of two broadcast operands its gradient, summed back to its shape. */
static void give_two(tn_build *b, const tn_node *n, tn_node *gx, tn_node *gy, tn_node **grads) {
    if (gx) grads[0] = tn_b_sum_to(b, gx, n->in[0]);
    if (gy) grads[1] = tn_b_sum_to(b, gy, n->in[1]);
}

/* Broadcasting in all its shapes. */
#define PAIRS "[2,3] [2,3]; [2,3] [3]; [4,1] [1,5]; [] [3]; [0,3] [1]; [2,1,3] [5,1]; error=broadcast [2,3] [4]"

/* add(x, y): x + y; logical or for bool. */
static void grad_add(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    give_two(b, n, tn_needs_grad(n, 0) ? dy : NULL, tn_needs_grad(n, 1) ? dy : NULL, grads);
}
OP_CODE(add, .facts = TN_FACT_ADD, .class_ = TN_ELEMENTWISE, .keeps_half = true, .promote = true,
        .infer = tn_infer_broadcast, .grad = grad_add, .lower = lower_binary, .instruction = KIR_ADD,
        .define_two = define_add, .cases = "types=f32,f64,f16,bf16,i32,i64,i8,u8,bool; " PAIRS, .flops = 1);

/* sub(x, y): x − y. */
static void grad_sub(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    give_two(b, n, tn_needs_grad(n, 0) ? dy : NULL, tn_needs_grad(n, 1) ? tn_b_neg(b, dy) : NULL, grads);
}
OP_CODE(sub, .class_ = TN_ELEMENTWISE, .keeps_half = true, .promote = true, .infer = tn_infer_not_bool,
        .grad = grad_sub, .lower = lower_binary, .instruction = KIR_SUB, .define_two = define_sub,
        .cases = "types=f32,f64,f16,bf16,i32,i64,i8; " PAIRS, .flops = 1);

/* mul(x, y): x · y; logical and for bool. */
static void grad_mul(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    tn_node *gx = tn_needs_grad(n, 0) ? tn_b_mul(b, dy, n->in[1]) : NULL;
    tn_node *gy = tn_needs_grad(n, 1) ? tn_b_mul(b, dy, n->in[0]) : NULL;
    give_two(b, n, gx, gy, grads);
}
OP_CODE(mul, .class_ = TN_ELEMENTWISE, .keeps_half = true, .promote = true, .infer = tn_infer_broadcast,
        .grad = grad_mul, .lower = lower_binary, .instruction = KIR_MUL, .define_two = define_mul,
        .cases = "types=f32,f64,f16,bf16,i32,i64,i8,bool; " PAIRS, .flops = 1);

/* div(x, y): x / y, always floating point (integers are converted to f32). */
static void grad_div(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    tn_node *y = n->in[1];
    tn_node *gx = tn_needs_grad(n, 0) ? tn_b_div(b, dy, y) : NULL;
    tn_node *gy = tn_needs_grad(n, 1) ? tn_b_neg(b, tn_b_mul(b, dy, tn_b_div(b, tn_b_self(n), y))) : NULL;
    give_two(b, n, gx, gy, grads);
}
OP_CODE(div, .facts = TN_FACT_DIV, .class_ = TN_ELEMENTWISE, .promote = true, .to_float = true, .infer = tn_infer_float,
        .grad = grad_div, .lower = lower_binary, .instruction = KIR_DIV, .define_two = define_div,
        .cases =
            "types=f32,f64,i32; [2,3] [2,3]@0.5..3; [2,3] [3]@-3..-0.5; [4,1] [1,5]@1..3; [] [3]@1..2; [0,3] [1]@1..2;"
            "error=broadcast [2,3] [4]",
        .flops = 1);

/* div_trunc(x, y): x / y truncated towards 0 (PyTorch's div with rounding_mode trunc). For integers the result is an
 * integer, and x / 0 is 0. */
static kir_val lower_div_trunc(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_val x = tn_lower_in(lw, n, 0, at);
    kir_val quotient = kir_div(lw->kb, x, tn_lower_in(lw, n, 1, at));
    return tn_dtype_is_float((tn_dtype)n->dtype) ? kir_rounding(lw->kb, KIR_TRUNC, quotient) : quotient;
}
static double define_div_trunc(double x, double y) { return trunc(x / y); }
OP_CODE(div_trunc, .class_ = TN_ELEMENTWISE, .promote = true, .infer = tn_infer_not_bool, .grad = tn_grad_none,
        .lower = lower_div_trunc, .zero_by_zero = true, .define_two = define_div_trunc,
        .cases = "types=f32,f64; [2,3]@0.1..0.9 [2,3]@1..5; [4,1]@2.1..2.9 "
                 "[1,5]@1..1.01; types=i32,i64,i8; [9]@-20..20 [9]@-4..4; [9]@-20..20 "
                 "[1]@3..4; types=u8,i64; [9]@0..20 [9]@0..4; [0,3] [1]@1..2; error=bool "
                 "[2]:bool [2]:bool",
        .flops = 2);

/* floor_divide(x, y): the greatest integer ≤ x / y, exact. For integers the result is an integer, and x / 0 is 0. */
static kir_val floor_divide_integers(kir_builder *kb, kir_val x, kir_val y) {
    kir_type t = kir_val_type(kb, x);
    kir_val zero = kir_const_i(kb, t, 0);
    kir_val q = kir_div(kb, x, y);
    if (t == KIR_U32 || t == KIR_U64) return q;
    kir_val rest = kir_mod(kb, x, y);
    kir_val signs_differ = kir_lt(kb, kir_xor(kb, rest, y), zero);
    kir_val exact = kir_eq(kb, rest, zero);
    return kir_select(kb, exact, q, kir_select(kb, signs_differ, kir_sub(kb, q, kir_const_i(kb, t, 1)), q));
}
/* The quotient of (x − x mod y) / y is whole but for rounding; so it is rounded to the nearest whole number. */
static kir_val floor_divide_floats(kir_builder *kb, kir_val x, kir_val y) {
    kir_type t = kir_val_type(kb, x);
    kir_val zero = kir_const(kb, t, 0), one = kir_const(kb, t, 1);
    kir_val rest = kir_mod(kb, x, y);
    kir_val q = kir_div(kb, kir_sub(kb, x, rest), y);
    kir_val signs_differ = kir_xor(kb, kir_lt(kb, rest, zero), kir_lt(kb, y, zero));
    kir_val whole = kir_eq(kb, rest, zero);
    kir_val lower = kir_select(kb, whole, q, kir_select(kb, signs_differ, kir_sub(kb, q, one), q));
    kir_val rounded = kir_rounding(kb, KIR_NEAREST_EVEN, lower);
    kir_val none = kir_eq(kb, lower, zero); /* a zero takes the sign of x / y */
    kir_val plain = kir_div(kb, x, y);
    kir_val signed_zero = kir_mul(kb, zero, plain);
    signed_zero = kir_select(kb, kir_eq(kb, signed_zero, signed_zero), signed_zero, zero);
    kir_val finite = kir_select(kb, none, signed_zero, rounded);
    return kir_select(kb, kir_eq(kb, y, zero), plain, finite);
}
static kir_val lower_floor_divide(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_val x = tn_lower_in(lw, n, 0, at);
    kir_val y = tn_lower_in(lw, n, 1, at);
    bool is_float = tn_dtype_is_float((tn_dtype)n->dtype);
    return is_float ? floor_divide_floats(lw->kb, x, y) : floor_divide_integers(lw->kb, x, y);
}
static double define_floor_divide(double x, double y) {
    if (y == 0) return x / y;
    double rest = fmod(x, y);
    double q = (x - rest) / y;
    if (rest != 0 && (rest < 0) != (y < 0)) q -= 1;
    return q == 0 ? copysign(0, x / y) : rint(q);
}
OP_CODE(floor_divide, .class_ = TN_ELEMENTWISE, .promote = true, .infer = tn_infer_not_bool, .grad = tn_grad_none,
        .lower = lower_floor_divide, .zero_by_zero = true, .define_two = define_floor_divide,
        .cases =
            "types=f32,f64,i32,i64; [2,3]@-20..20 [2,3]@1..5; [7]@-20..20 [7]@-5..-1; [4,1] [1,5]@1..3; [0,3] [1]@1..2;"
            "types=i32; [9] [9]@-1..1",
        .flops = 4);

/* heaviside(x, values): 0 where x < 0, values where x = 0, 1 where x > 0; 0 where x is NaN. */
static kir_val lower_heaviside(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_builder *kb = lw->kb;
    kir_val x = tn_lower_in(lw, n, 0, at), at_zero = tn_lower_in(lw, n, 1, at);
    kir_type t = kir_val_type(kb, x);
    if (n->dtype == TN_BOOL) return kir_or(kb, x, at_zero);
    kir_val zero = kir_const(kb, t, 0), step = kir_cast(kb, t, kir_lt(kb, zero, x));
    return kir_select(kb, kir_eq(kb, x, zero), at_zero, step);
}
static double define_heaviside(double x, double values) { return x == 0 ? values : x > 0; }
OP_CODE(
    heaviside, .class_ = TN_ELEMENTWISE, .promote = true, .infer = tn_infer_broadcast, .grad = tn_grad_none,
    .lower = lower_heaviside, .define_two = define_heaviside,
    .cases = "types=f32,f64,i32,bool; [9]@-1..1 [9]; [2,3] [3]; [4,1]@-1..1 [1,5]; [0,3] [3]; error=broadcast [2] [3]",
    .flops = 2);

/* remainder(x, y): x − y · floor_divide(x, y), with the sign of y (Python's %). Integers: x % 0 is 0. */
static void grad_remainder(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    tn_node *whole = tn_needs_grad(n, 1) ? tn_b_floor_divide(b, n->in[0], n->in[1]) : NULL;
    tn_node *gy = whole ? tn_b_neg(b, tn_b_mul(b, dy, whole)) : NULL;
    give_two(b, n, tn_needs_grad(n, 0) ? dy : NULL, gy, grads);
}
static kir_val lower_remainder(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_builder *kb = lw->kb;
    kir_val x = tn_lower_in(lw, n, 0, at);
    kir_val y = tn_lower_in(lw, n, 1, at);
    kir_val rest = kir_mod(kb, x, y);
    kir_val zero = kir_const(kb, kir_val_type(kb, x), 0);
    kir_val signs_differ = kir_xor(kb, kir_lt(kb, rest, zero), kir_lt(kb, y, zero));
    kir_val whole = kir_eq(kb, rest, zero);
    kir_val turned = kir_select(kb, signs_differ, kir_add(kb, rest, y), rest);
    return kir_select(kb, whole, rest, turned);
}
static double define_remainder(double x, double y) {
    double rest = fmod(x, y);
    return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
}
/* Far from multiples of y, where the remainder jumps. */
#define REMAINDERS                                                                                              \
    "types=f32,f64 tol=1e-5; [2,3]@0.1..0.9 [2,3]@1..5; [7]@-0.9..-0.1 [7]@1..5; [4,1]@2.1..2.9 [1,5]@1..1.01;" \
    "types=i32,i64; [9]@-20..20 [9]@-4..-1; [9]@-20..20 [9]@1..4; [9] [9]@-1..1; [0,3] [1]@1..2"
OP_CODE(remainder, .class_ = TN_ELEMENTWISE, .promote = true, .infer = tn_infer_not_bool, .grad = grad_remainder,
        .lower = lower_remainder, .zero_by_zero = true, .define_two = define_remainder, .cases = REMAINDERS,
        .flops = 4);

/* fmod(x, y): x − y · trunc(x / y), with the sign of x (C's fmod). Integers: 0 for y = 0. */
static void grad_fmod(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    tn_node *whole = tn_needs_grad(n, 1) ? tn_b_trunc(b, tn_b_div(b, n->in[0], n->in[1])) : NULL;
    tn_node *gy = whole ? tn_b_neg(b, tn_b_mul(b, dy, whole)) : NULL;
    give_two(b, n, tn_needs_grad(n, 0) ? dy : NULL, gy, grads);
}
OP_CODE(fmod, .class_ = TN_ELEMENTWISE, .promote = true, .infer = tn_infer_not_bool, .grad = grad_fmod,
        .lower = lower_binary, .instruction = KIR_MOD, .zero_by_zero = true, .define_two = fmod, .cases = REMAINDERS,
        .flops = 4);

/* Half of the gradient to each of two equal operands, all of it to the chosen one (and to both if one is NaN). */
static void grad_choice(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads, bool greater) {
    tn_node *x = n->in[0], *y = n->in[1];
    tn_node *shared = tn_b_where(b, tn_b_eq(b, x, y), tn_b_scale(b, dy, 0.5), dy);
    tn_node *none = tn_b_const(b, 0, dy);
    tn_node *y_wins = greater ? tn_b_lt(b, x, y) : tn_b_lt(b, y, x);
    tn_node *x_wins = greater ? tn_b_lt(b, y, x) : tn_b_lt(b, x, y);
    give_two(b, n, tn_needs_grad(n, 0) ? tn_b_where(b, y_wins, none, shared) : NULL,
             tn_needs_grad(n, 1) ? tn_b_where(b, x_wins, none, shared) : NULL, grads);
}
static void grad_maximum(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    grad_choice(b, n, dy, grads, true);
}
static void grad_minimum(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    grad_choice(b, n, dy, grads, false);
}

/* maximum(x, y): the element-wise maximum; NaN if an operand is NaN. Equal operands share the gradient. */
OP_CODE(maximum, .class_ = TN_ELEMENTWISE, .keeps_half = true, .promote = true, .infer = tn_infer_broadcast,
        .grad = grad_maximum, .lower = lower_binary, .instruction = KIR_MAX, .define_two = define_max,
        .cases = "types=f32,f64,f16,bf16,i32,i64,u8,bool; " PAIRS, .flops = 1);

/* minimum(x, y): the element-wise minimum; NaN if an operand is NaN. Equal operands share the gradient. */
OP_CODE(minimum, .class_ = TN_ELEMENTWISE, .keeps_half = true, .promote = true, .infer = tn_infer_broadcast,
        .grad = grad_minimum, .lower = lower_binary, .instruction = KIR_MIN, .define_two = define_min,
        .cases = "types=f32,f64,i32,i64,bool; " PAIRS, .flops = 1);

#define COMPARISON(instruction_, f)                                                              \
    .class_ = TN_ELEMENTWISE, .promote = true, .infer = tn_infer_compare, .lower = lower_binary, \
    .instruction = instruction_, .define_two = f,                                                \
    .cases = "types=f32,f64,i32,i64; " PAIRS "; types=i32; [50]@0..2 [50]@0..2", .flops = 1

/* eq(x, y): true where x = y; false where an operand is NaN. */
OP_CODE(eq, COMPARISON(KIR_EQ, define_eq));

/* lt(x, y): true where x < y. */
OP_CODE(lt, COMPARISON(KIR_LT, define_lt));

/* le(x, y): true where x ≤ y. */
OP_CODE(le, COMPARISON(KIR_LE, define_le));

#define BITS(instruction_, f)                                                                 \
    .class_ = TN_ELEMENTWISE, .promote = true, .infer = tn_infer_bits, .lower = lower_binary, \
    .instruction = instruction_, .define_two = f,                                             \
    .cases = "types=i32,i64,bool; [2,3] [2,3]; [2,3] [3]; [0,3] [1]; [] [3]", .flops = 1

/* bitwise_and(x, y): bitwise and; logical and for bool. */
OP_CODE(bitwise_and, BITS(KIR_AND, define_and));

/* bitwise_or(x, y): bitwise or; logical or for bool. */
OP_CODE(bitwise_or, BITS(KIR_OR, define_or));

/* bitwise_xor(x, y): bitwise exclusive or; true for bool where exactly one operand is true. */
OP_CODE(bitwise_xor, BITS(KIR_XOR, define_xor));

static tn_status infer_shift(tn_infer *c) {
    TRY(tn_need_integer(c, 0));
    return tn_infer_broadcast(c);
}

/* bitwise_left_shift(x, y): x · 2^y, wrapped to the dtype; 0 if y is negative or not less than the number of bits. */
OP_CODE(bitwise_left_shift, .class_ = TN_ELEMENTWISE, .promote = true, .infer = infer_shift, .lower = lower_binary,
        .instruction = KIR_SHL, .define_two = define_shl,
        .cases = "types=i32,i64; [2,3] [2,3]@0..9; [2,3] [3]@0..3; [0,3] [1]", .flops = 1);

/* bitwise_right_shift(x, y): floor(x / 2^y); if y is negative or not less than the number of bits, 0, or -1 for a
 * negative x. */
OP_CODE(bitwise_right_shift, .class_ = TN_ELEMENTWISE, .promote = true, .infer = infer_shift, .lower = lower_binary,
        .instruction = KIR_SHR, .define_two = define_shr,
        .cases = "types=i32,i64; [2,3]@-99..99 [2,3]@0..9; [2,3] [3]@0..3; [0,3] [1]", .flops = 1);

/* ---- choice and values without operands -------------------------------------------------------------------------- */

/* where(condition, x, y): x where the condition is true, else y. All three broadcast; condition is bool. */
static tn_status infer_where(tn_infer *c) {
    if (c->in[0]->dtype != TN_BOOL)
        return tn_fail(TN_ERR_DTYPE, "where: the condition is %s; it must be bool: compare, or cast it",
                       tn_dtype_name((tn_dtype)c->in[0]->dtype));
    TRY(tn_infer_broadcast(c));
    c->dtype = (tn_dtype)c->in[1]->dtype;
    return TN_OK;
}
static void grad_where(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    tn_node *none = tn_b_const(b, 0, dy);
    if (tn_needs_grad(n, 1)) grads[1] = tn_b_sum_to(b, tn_b_where(b, n->in[0], dy, none), n->in[1]);
    if (tn_needs_grad(n, 2)) grads[2] = tn_b_sum_to(b, tn_b_where(b, n->in[0], none, dy), n->in[2]);
}
static kir_val lower_where(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_val condition = tn_lower_in(lw, n, 0, at);
    kir_val x = tn_lower_in(lw, n, 1, at);
    kir_val y = tn_lower_in(lw, n, 2, at);
    return kir_select(lw->kb, condition, x, y);
}
static void reference_where(const tn_reference *r) {
    for (tn_walk w = tn_walk_begin(r->node); w.place < w.count; tn_walk_next(&w))
        r->out[w.place] = r->in[0][w.in[0]] != 0 ? r->in[1][w.in[1]] : r->in[2][w.in[2]];
}
OP_CODE(where, .class_ = TN_ELEMENTWISE, .keeps_half = true, .promote = true, .promote_from = 1, .infer = infer_where,
        .grad = grad_where, .lower = lower_where, .reference = reference_where,
        .cases =
            "types=f32,f64,i32,bool; [2,3]:bool [2,3] [2,3]; [3]:bool [2,1] [3]; []:bool [2] [2]; [2,1]:bool [] [3];"
            "[0,2]:bool [2] []; error=bool [2]:f32 [2] [2]; error=broadcast [2]:bool [3] [2]");

/* full(shape, value, dtype): a tensor of one value. For an integer dtype the value is truncated; NaN, or a value
 * outside the dtype, is an error. */
static tn_status infer_full(tn_infer *c) {
    int64_t rank = c->attrs->i[0];
    int64_t dtype = c->attrs->i[1 + rank];
    if (dtype < 0 || dtype >= TN_PLAIN_DTYPES)
        return tn_fail(TN_ERR_DTYPE, "%s: %lld is not a dtype", c->row->name, (long long)dtype);
    c->dtype = (tn_dtype)dtype;
    TRY(tn_need_held(c, c->dtype, "value", c->attrs->f[TN_FULL_VALUE]));
    return tn_infer_shape(c, c->attrs->i + 1, rank);
}
static kir_val lower_full(tn_lower *lw, const tn_node *n, TN_UNUSED const kir_aff *at) {
    tn_dtype t = (tn_dtype)n->dtype;
    return tn_lower_narrow(lw->kb, t, kir_const(lw->kb, kir_type_of(t), n->f[TN_FULL_VALUE]));
}
static void reference_full(const tn_reference *r) {
    for (int64_t i = 0, count = tn_node_numel(r->node); i < count; i++)
        r->out[i] = r->node->f[TN_FULL_VALUE];
}
OP_CODE(full, .facts = TN_FACT_CONSTANT | TN_FACT_SOURCE, .class_ = TN_ELEMENTWISE, .varies = true, .infer = infer_full,
        .lower = lower_full, .reference = reference_full,
        .cases = "shape=(2,3) value=1.5 dtype=f32; shape=() value=-2 dtype=i64; shape=(0,3) value=1 dtype=f64;"
                 "shape=(4) value=1 dtype=bool; error=negative shape=(-1) value=0 dtype=f32; "
                 "error=hold shape=(2) value=200 dtype=i8");

/* arange(start, end, step, dtype): start, start + step, …, excluding end. */
static tn_status infer_arange(tn_infer *c) {
    const double *f = c->attrs->f;
    int64_t dtype = c->attrs->i[TN_ARANGE_DTYPE];
    if (dtype < 0 || dtype >= TN_PLAIN_DTYPES || dtype == TN_BOOL)
        return tn_fail(TN_ERR_DTYPE, "arange: %s is not a number type", tn_dtype_name((tn_dtype)dtype));
    double start = f[TN_ARANGE_START], end = f[TN_ARANGE_END], step = f[TN_ARANGE_STEP];
    double steps = (end - start) / step, length = ceil(steps);
    if (!isfinite(start) || !isfinite(end) || isnan(step) || step == 0)
        return tn_fail(TN_ERR_ARGUMENT,
                       "arange: from %g to %g in steps of %g: start and end must be finite, step not 0", start, end,
                       step);
    if (steps < 0)
        return tn_fail(TN_ERR_ARGUMENT, "arange: from %g to %g in steps of %g never ends: change the sign of step",
                       start, end, step);
    if (!(length < 0x1p53))
        return tn_fail(TN_ERR_ARGUMENT, "arange: from %g to %g in steps of %g has %g elements; the limit is 2^53",
                       start, end, step, length);
    c->dtype = (tn_dtype)dtype;
    if (!tn_dtype_is_float(c->dtype)) {
        TRY(tn_need_held(c, TN_I64, "start", start));
        TRY(tn_need_held(c, TN_I64, "step", step));
    }
    c->rank = 1;
    c->shape[0] = (int64_t)length;
    c->symbol[0] = 0;
    return TN_OK;
}
static kir_val lower_arange(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_builder *kb = lw->kb;
    kir_type t = kir_type_of((tn_dtype)n->dtype);
    double start = n->f[TN_ARANGE_START], step = n->f[TN_ARANGE_STEP];
    kir_val i = kir_index(kb, &at[0]);
    if (t != KIR_F32 && t != KIR_F64) {
        kir_val along = kir_mul(kb, i, kir_const(kb, KIR_I64, step));
        return kir_cast(kb, t, kir_add(kb, along, kir_const(kb, KIR_I64, start)));
    }
    kir_val v = kir_fma(kb, kir_cast(kb, t, i), kir_const(kb, t, step), kir_const(kb, t, start));
    return tn_lower_narrow(kb, (tn_dtype)n->dtype, v);
}
static void reference_arange(const tn_reference *r) {
    const tn_node *n = r->node;
    bool whole = !tn_dtype_is_float((tn_dtype)n->dtype);
    double start = n->f[TN_ARANGE_START], step = n->f[TN_ARANGE_STEP];
    if (whole) start = trunc(start);
    if (whole) step = trunc(step);
    for (int64_t i = 0; i < n->shape[0]; i++)
        r->out[i] = start + (double)i * step;
}
/* Start and step are rounded to the type, then one fma: an error of one step's rounding a place. */
OP_CODE(arange, .facts = TN_FACT_SOURCE, .class_ = TN_ELEMENTWISE, .infer = infer_arange, .lower = lower_arange,
        .reference = reference_arange,
        .cases =
            "start=0 end=7 step=1 dtype=i64; start=5 end=-5 step=-3 dtype=i32; start=0 end=1 step=0.25 dtype=f32;"
            "start=0.1 end=2 step=0.3 dtype=f64; start=0.1 end=2 step=0.3 dtype=f32 tol=1e-6; start=3 end=3 step=1 "
            "dtype=f32;"
            "error=never start=0 end=1 step=-1 dtype=f32; error=never start=5 end=3 step=9 dtype=i64",
        .flops = 1);

/* runtime_scalar(kind, value, count, number): a scalar whose value may differ at each run without a new plan. kind 0:
 * f32 `number`; 1: i64 `value`; 2: i64, a counter of random numbers that moves on by `count` at each run. */
static tn_status infer_runtime_scalar(tn_infer *c) {
    c->dtype = c->attrs->i[TN_RUNTIME_SCALAR_KIND] == 0 ? TN_F32 : TN_I64;
    c->rank = 0;
    return TN_OK;
}
static void reference_runtime_scalar(const tn_reference *r) {
    const tn_node *n = r->node;
    r->out[0] =
        n->i[TN_RUNTIME_SCALAR_KIND] == 0 ? n->f[TN_RUNTIME_SCALAR_NUMBER] : (double)n->i[TN_RUNTIME_SCALAR_VALUE];
}
OP_CODE(runtime_scalar, .facts = TN_FACT_LAUNCH_SCALAR | TN_FACT_SOURCE, .class_ = TN_LEAF_VALUE,
        .infer = infer_runtime_scalar, .reference = reference_runtime_scalar);

/* ==== the same bits as another dtype ============================================================================== */
/* Types of one size share their bits. Small ones compute in wider types, so what the memory would hold is made of the
 * number first: that of an f16 takes apart its exponent, all others are a cut or a shift. */

/* The 16 bits of an f16 whose value v is, as U32. Below 2^-14 it counts in steps of 2^-24. */
static kir_val bits_of_f16(kir_builder *kb, kir_val v) {
    kir_val bits = kir_bitcast(kb, KIR_U32, v), size = kir_unary(kb, KIR_ABS, v);
    kir_val sign = kir_and(kb, kir_shr(kb, bits, kir_const_i(kb, KIR_U32, 16)), kir_const_i(kb, KIR_U32, 0x8000));
    kir_val exponent = kir_sub(kb, kir_bitcast(kb, KIR_U32, size), kir_const_i(kb, KIR_U32, 112 << 23));
    kir_val normal = kir_shr(kb, exponent, kir_const_i(kb, KIR_U32, 13));
    kir_val small = kir_cast(kb, KIR_U32, kir_mul(kb, size, kir_real(kb, 0x1p24)));
    kir_val r = kir_select(kb, kir_lt(kb, size, kir_real(kb, 0x1p-14)), small, normal);
    kir_val infinite = kir_eq(kb, size, kir_real(kb, INFINITY));
    r = kir_select(kb, infinite, kir_const_i(kb, KIR_U32, 0x7C00), r);
    r = kir_select(kb, kir_eq(kb, v, v), r, kir_const_i(kb, KIR_U32, 0x7E00));
    return kir_or(kb, sign, r);
}
static kir_val f16_of_bits(kir_builder *kb, kir_val bits) {
    kir_val rest = kir_and(kb, bits, kir_const_i(kb, KIR_U32, 0x7FFF));
    kir_val sign = kir_shl(kb, kir_and(kb, bits, kir_const_i(kb, KIR_U32, 0x8000)), kir_const_i(kb, KIR_U32, 16));
    kir_val wide = kir_shl(kb, rest, kir_const_i(kb, KIR_U32, 13));
    kir_val normal = kir_bitcast(kb, KIR_F32, kir_add(kb, wide, kir_const_i(kb, KIR_U32, 112 << 23)));
    kir_val special = kir_bitcast(kb, KIR_F32, kir_or(kb, wide, kir_const_i(kb, KIR_U32, 0x7F800000)));
    kir_val small = kir_mul(kb, kir_cast(kb, KIR_F32, rest), kir_real(kb, 0x1p-24));
    kir_val r = kir_select(kb, kir_lt(kb, rest, kir_const_i(kb, KIR_U32, 0x400)), small, normal);
    r = kir_select(kb, kir_lt(kb, rest, kir_const_i(kb, KIR_U32, 0x7C00)), r, special);
    return kir_bitcast(kb, KIR_F32, kir_or(kb, sign, kir_bitcast(kb, KIR_U32, r)));
}

/* view_dtype(x, dtype): x's bits as another dtype of the same size (PyTorch's view(dtype)); to bool: any bit. */
static tn_status infer_view_dtype(tn_infer *c) {
    int64_t to = c->attrs->i[TN_VIEW_DTYPE_DTYPE];
    tn_dtype from = (tn_dtype)c->in[0]->dtype;
    if (to < 0 || to >= TN_PLAIN_DTYPES || tn_dtype_size((tn_dtype)to) != tn_dtype_size(from))
        return tn_fail(TN_ERR_DTYPE, "view_dtype: cannot view %s as %s: their elements must have the same size",
                       tn_dtype_name(from), tn_dtype_name((tn_dtype)to));
    TRY(tn_infer_same(c));
    c->dtype = (tn_dtype)to;
    return TN_OK;
}
static kir_val lower_view_dtype(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_builder *kb = lw->kb;
    tn_dtype from = (tn_dtype)n->in[0]->dtype, to = (tn_dtype)n->dtype;
    kir_val v = tn_lower_in(lw, n, 0, at);
    if (from == to) return v;
    if (tn_dtype_size(to) >= 4) return kir_bitcast(kb, kir_type_of(to), v);
    if (from == TN_F16) v = bits_of_f16(kb, v);
    if (from == TN_BF16) v = kir_shr(kb, kir_bitcast(kb, KIR_U32, v), kir_const_i(kb, KIR_U32, 16));
    if (!tn_dtype_is_float(to)) return tn_lower_narrow(kb, to, kir_cast(kb, kir_type_of(to), v));
    v = kir_cast(kb, KIR_U32, v);
    if (to == TN_F16) return f16_of_bits(kb, v);
    return kir_bitcast(kb, KIR_F32, kir_shl(kb, v, kir_const_i(kb, KIR_U32, 16)));
}
/* An f16's bits from its value, and back, by arithmetic. */
static double f16_bits(double v) {
    int e;
    double m = frexp(fabs(v), &e), sign = signbit(v) ? 0x8000 : 0;
    if (v != v) return 0x7E00;
    if (isinf(v)) return sign + 0x7C00;
    if (fabs(v) < 0x1p-14) return sign + fabs(v) * 0x1p24;
    return sign + (e + 14) * 1024 + (m * 2 - 1) * 1024;
}
static double f16_value(int bits) {
    int e = bits >> 10 & 31, m = bits & 1023;
    double v = e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    if (e == 31) v = m ? NAN : INFINITY;
    return bits & 0x8000 ? -v : v;
}
static int64_t reference_bits(tn_dtype t, double v) {
    float f = (float)v;
    int32_t bits;
    int64_t long_bits;
    memcpy(&bits, &f, sizeof bits);
    memcpy(&long_bits, &v, sizeof v);
    switch (t) {
    case TN_F64: return long_bits;
    case TN_F32: return bits;
    case TN_BF16: return bits >> 16;
    case TN_F16: return (int64_t)f16_bits(v);
    default: return (int64_t)v;
    }
}
static double reference_number(tn_dtype t, int64_t bits) {
    float f;
    double d;
    uint32_t high = (uint32_t)bits << (t == TN_BF16 ? 16 : 0);
    memcpy(&f, &high, sizeof f);
    memcpy(&d, &bits, sizeof d);
    switch (t) {
    case TN_F64: return d;
    case TN_F32:
    case TN_BF16: return (double)f;
    case TN_F16: return f16_value((int)bits & 0xFFFF);
    case TN_I8: return (double)(int8_t)bits;
    case TN_U8: return (double)(uint8_t)bits;
    case TN_I16: return (double)(int16_t)bits;
    case TN_U16: return (double)(uint16_t)bits;
    case TN_U32: return (double)(uint32_t)bits;
    case TN_BOOL: return bits != 0;
    default: return (double)bits;
    }
}
static void reference_view_dtype(const tn_reference *r) {
    const tn_node *n = r->node;
    for (int64_t i = 0, count = tn_node_numel(n); i < count; i++)
        r->out[i] = reference_number((tn_dtype)n->dtype, reference_bits((tn_dtype)n->in[0]->dtype, r->in[0][i]));
}
OP_CODE(view_dtype, .class_ = TN_ELEMENTWISE, .infer = infer_view_dtype, .grad = tn_grad_none,
        .lower = lower_view_dtype, .reference = reference_view_dtype,
        .cases =
            "special=off grad=off; types=f32; [2,3] dtype=i32; [0,3] dtype=u32; [] dtype=i32; types=i32; [7]@0..1e9 "
            "dtype=f32; types=f16; [9]@-4..4 dtype=i16; [9]@1e-6..1e-5 dtype=u16; types=bf16; [9] dtype=i16; "
            "types=i16; [9]@0..20000 dtype=f16; [9]@-2000..2000 dtype=bf16; [9]@0..900 dtype=f16; types=i8; [9] "
            "dtype=u8; types=u8; [9]@0..255 dtype=i8; types=bool; [4] dtype=u8; error=size [4] dtype=f32",
        .flops = 1);
