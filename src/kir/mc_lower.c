/* mc_lower.c — KIR instructions as steps, with the functions of kir_math.h.
 *
 * Without loops, what does not vary along a row becomes the row segment before the only loop segment. With loops,
 * segments follow the program, except that values which do not vary along a loop are computed before it. What an
 * instruction set cannot do in a few steps is refused; the tile VM then runs the program. */
#include <math.h>

#include "kir/machine_code.h"
#include "kir/rules.h"

void kir_mc_refuse(mc_build *b, const char *why) {
    if (!b->refusal) b->refusal = why;
}

void kir_mc_lack_memory(mc_build *b) {
    b->no_memory = true;
    kir_mc_refuse(b, "memory");
}

/* ---- adding steps ------------------------------------------------------------------------------------------------ */

static int new_value(mc_build *b, int width, bool mask) {
    if (b->refusal) return 0;
    if (tn_mem_reserve(&b->values, &b->value_room, (size_t)b->n_values + 1, sizeof *b->values) != TN_OK) {
        kir_mc_lack_memory(b);
        return 0;
    }
    b->values[b->n_values] =
        (mc_value){.mask = mask, .width = (uint8_t)width, .segment = (int16_t)b->now, .slot = -1, .pool = -1};
    return b->n_values++;
}

static int mc_constant(mc_build *b, const void *element, int width) {
    int number = kir_mc_constant(b->a, element, width);
    if (number >= MC_MOST_CONSTANTS) kir_mc_refuse(b, "too many constants");
    if (b->refusal) return 0;
    int16_t *known = &b->constant_of[number];
    if (*known >= 0 && b->values[*known].width == width) return *known;
    int v = new_value(b, width, false);
    if (b->refusal) return 0;
    b->values[v].pool = number;
    b->values[v].segment = -1;
    *known = (int16_t)v;
    return v;
}

static int mc_f32(mc_build *b, float x) { return mc_constant(b, &x, 4); }
static int mc_u32(mc_build *b, uint32_t x) { return mc_constant(b, &x, 4); }
static int u64(mc_build *b, uint64_t x) { return mc_constant(b, &x, 8); }

int kir_mc_take_slot(mc_build *b) {
    if (b->n_slots == MC_MOST_SLOTS) {
        kir_mc_refuse(b, "too many values at once");
        return 0;
    }
    return b->n_slots++;
}

/* A value that another segment computed must be in memory. */
static void reach(mc_build *b, int v) {
    if (v < 0 || b->refusal) return;
    mc_value *value = &b->values[v];
    if (value->segment != b->now && value->pool < 0 && value->slot < 0) value->slot = (int16_t)kir_mc_take_slot(b);
}

static mc_step *add_step(mc_build *b, mc_step step) {
    static mc_step nowhere;
    mc_segment *s = &b->segments[b->now];
    reach(b, step.a);
    reach(b, step.b);
    reach(b, step.c);
    if (++b->n_steps > MC_MOST_STEPS) kir_mc_refuse(b, "too long");
    if (!b->refusal && tn_mem_reserve(&s->steps, &s->room, (size_t)s->n + 1, sizeof *s->steps) != TN_OK)
        kir_mc_lack_memory(b);
    if (b->refusal) return &nowhere;
    s->steps[s->n] = step;
    return &s->steps[s->n++];
}

static int mc_width_of(const mc_build *b, int v) { return b->refusal ? 4 : b->values[v].width; }

static mc_step plain(const mc_build *b, mc_what what, mc_op op, int width) {
    return (mc_step){.what = (uint8_t)what,
                     .op = (uint8_t)op,
                     .bytes = (uint8_t)(b->lanes * width),
                     .wide = width == 8,
                     .imm = -1,
                     .d = -1,
                     .a = -1,
                     .b = -1,
                     .c = -1};
}

/* Adds a step that makes a value; returns that. */
static int step_value(mc_build *b, mc_step s, int width, bool mask) {
    int d = new_value(b, width, mask);
    s.d = (int16_t)d;
    add_step(b, s);
    return d;
}

/* d = op(x, y), the vectors' elements `width` wide, the result's `result` wide. */
static int compute(mc_build *b, mc_op op, int x, int y, int imm, int width, int result) {
    mc_step s = plain(b, MC_COMPUTE, op, width);
    s.a = (int16_t)x;
    s.b = (int16_t)y;
    s.imm = (int16_t)imm;
    return step_value(b, s, result, false);
}

/* Each adds one step and returns its value; all do nothing after a refusal. The width is that of the last operand. */
static int mc_unary(mc_build *b, mc_op op, int x) {
    return compute(b, op, -1, x, -1, mc_width_of(b, x), mc_width_of(b, x));
}
static int mc_binary(mc_build *b, mc_op op, int x, int y) {
    return compute(b, op, x, y, -1, mc_width_of(b, y), mc_width_of(b, y));
}
static int mc_with_imm(mc_build *b, mc_op op, int x, int imm) {
    return compute(b, op, -1, x, imm, mc_width_of(b, x), mc_width_of(b, x));
}

static int mc_ternary(mc_build *b, mc_what what, mc_op op, int width, int x, int y, int z) {
    mc_step s = plain(b, what, op, width);
    s.a = (int16_t)x;
    s.b = (int16_t)y;
    s.c = (int16_t)z;
    return step_value(b, s, width, false);
}

static int mc_fma(mc_build *b, int x, int y, int z) {
    return mc_ternary(b, MC_FUSE, MC_FMA213, mc_width_of(b, z), x, y, z);
}

static int mc_choose(mc_build *b, int mask, int yes, int no) {
    return mc_ternary(b, MC_CHOOSE, b->evex ? MC_BLENDM : MC_BLENDV, mc_width_of(b, yes), no, yes, mask);
}

static int compare_mc(mc_build *b, mc_op op, int imm, int x, int y) {
    mc_step s = plain(b, MC_COMPARE, op, mc_width_of(b, y));
    s.a = (int16_t)x;
    s.b = (int16_t)y;
    s.imm = (int16_t)imm;
    return step_value(b, s, 4, b->evex);
}

static int mc_compare_f(mc_build *b, int predicate, int x, int y) { return compare_mc(b, MC_CMPF, predicate, x, y); }

/* ---- masks ------------------------------------------------------------------------------------------------------- */

static int logic(mc_build *b, mc_op in_masks, mc_op in_vectors, int x, int y) {
    if (!b->evex) return mc_binary(b, in_vectors, x, y);
    mc_step s = plain(b, MC_LOGIC, in_masks, 4);
    s.a = (int16_t)x;
    s.b = (int16_t)y;
    s.bytes = x < 0 ? 16 : 32;
    return step_value(b, s, 4, true);
}

static int not_mask(mc_build *b, int x) {
    return b->evex ? logic(b, MC_KNOT, MC_KNOT, -1, x) : mc_binary(b, MC_XOR, x, mc_u32(b, UINT32_MAX));
}

static int and_masks(mc_build *b, int x, int y) { return logic(b, MC_KAND, MC_AND, x, y); }

/* x and not y */
static int and_not(mc_build *b, int x, int y) { return logic(b, MC_KANDN, MC_ANDN, y, x); }

static int xor_masks(mc_build *b, int x, int y) { return logic(b, MC_KXOR, MC_XOR, x, y); }

static int or_masks(mc_build *b, int x, int y) { return logic(b, MC_KOR, MC_OR, x, y); }

static int choose_masks(mc_build *b, int c, int yes, int no) {
    return or_masks(b, and_masks(b, c, yes), and_not(b, no, c));
}

/* ---- comparisons of integers ------------------------------------------------------------------------------------- */

static int flip_sign(mc_build *b, int x) { return mc_binary(b, MC_XOR, x, mc_u32(b, 0x80000000U)); }

static bool is_unsigned(kir_type t) { return t == KIR_U32 || t == KIR_U64; }

static int compare_integers(mc_build *b, kir_op op, kir_type t, int x, int y) {
    int predicate = op == KIR_EQ ? MC_EQUAL : op == KIR_LT ? MC_LESS : MC_LESS_EQUAL;
    if (b->evex) return compare_mc(b, is_unsigned(t) ? MC_CMPU : MC_CMPI, predicate, x, y);
    if (op == KIR_EQ) return compare_mc(b, MC_CMPEQ, -1, x, y);
    if (is_unsigned(t)) {
        x = flip_sign(b, x);
        y = flip_sign(b, y);
    }
    return op == KIR_LT ? compare_mc(b, MC_CMPGT, -1, y, x) : not_mask(b, compare_mc(b, MC_CMPGT, -1, x, y));
}

static int compare_masks(mc_build *b, kir_op op, int x, int y) {
    if (op == KIR_EQ) return not_mask(b, xor_masks(b, x, y));
    return op == KIR_LT ? and_not(b, y, x) : not_mask(b, and_not(b, x, y));
}

/* Lanes that are not 0. */
static int not_zero(mc_build *b, kir_type t, int x) {
    int zero = mc_width_of(b, x) == 8 ? u64(b, 0) : mc_u32(b, 0);
    if (kir_is_float(t)) return mc_compare_f(b, MC_NOT_EQUAL, x, zero);
    if (b->evex) return compare_mc(b, MC_CMPI, MC_NOT_EQUAL, x, zero);
    return not_mask(b, compare_mc(b, MC_CMPEQ, -1, x, zero));
}

/* Of lanes where x is a NaN, `yes`. NEON compares for equality in one instruction. */
static int choose_nan(mc_build *b, int x, int yes, int no) {
    if (MC_NEON) return mc_choose(b, mc_compare_f(b, MC_EQUAL, x, x), no, yes);
    return mc_choose(b, mc_compare_f(b, MC_UNORDERED, x, x), yes, no);
}

/* ---- functions of kir_math.h ------------------------------------------------------------------------------------- */
/* One exception, where AVX-512 has an instruction with the same result: SCALEF multiplies by a power of two, rounding
 * once as the two multiplications of kir_exp_f32 do. test_machine_code.c compares every function with kir_math.h. */

static int add_mc(mc_build *b, int x, int y) { return mc_binary(b, MC_ADDF, x, y); }
static int sub(mc_build *b, int x, int y) { return mc_binary(b, MC_SUBF, x, y); }
static int mul(mc_build *b, int x, int y) { return mc_binary(b, MC_MULF, x, y); }

/* Σ c[k] x^(n-1-k) by Horner's rule. */
static int polynomial(mc_build *b, int x, const float *c, int n) {
    int p = mc_fma(b, mc_f32(b, c[0]), x, mc_f32(b, c[1]));
    for (int k = 2; k < n; k++)
        p = mc_fma(b, p, x, mc_f32(b, c[k]));
    return p;
}

static const float MAGIC = 0x1.8p23f;

static int reduce_ln2(mc_build *b, int x, int *r) {
    int n = sub(b, mc_fma(b, x, mc_f32(b, 0x1.715476p0f), mc_f32(b, MAGIC)), mc_f32(b, MAGIC));
    int head = mc_fma(b, n, mc_f32(b, -0x1.62e43p-1f), x);
    *r = mc_fma(b, n, mc_f32(b, 0x1.05c61p-29f), head);
    return n;
}

static int mc_whole(mc_build *b, int n) {
    return mc_binary(b, MC_SUBI, add_mc(b, n, mc_f32(b, MAGIC)), mc_u32(b, 0x4b400000U));
}

static int power_of_two(mc_build *b, int n) {
    return mc_with_imm(b, MC_SLL, mc_binary(b, MC_ADDI, n, mc_u32(b, 127)), 23);
}

static int exp_core(mc_build *b, int r) {
    static const float c[] = {0x1.6a2352p-10f, 0x1.123a6ap-7f, 0x1.5558f4p-5f, 0x1.55549p-3f, 0x1.fffffcp-2f};
    int p = polynomial(b, r, c, TN_COUNT(c));
    return add_mc(b, mc_fma(b, p, mul(b, r, r), r), mc_f32(b, 1.0f));
}

static int mc_exp(mc_build *b, int x) {
    int c = mc_binary(b, MC_MINF, mc_f32(b, 89.0f), x), r;
    c = mc_binary(b, MC_MAXF, mc_f32(b, -104.0f), c);
    int n = reduce_ln2(b, c, &r), core = exp_core(b, r);
    if (b->evex) return mc_binary(b, MC_SCALEF, core, n);
    int all = mc_whole(b, n), half = mc_with_imm(b, MC_SRA, all, 1);
    int rest = mc_binary(b, MC_SUBI, all, half);
    return mul(b, mul(b, core, power_of_two(b, half)), power_of_two(b, rest));
}

static int mc_log(mc_build *b, int x) {
    static const float c[] = {0x1.1b4602p-4f,  -0x1.e316d8p-4f, 0x1.e66658p-4f,  -0x1.fb3d5ap-4f, 0x1.233108p-3f,
                              -0x1.5562fep-3f, 0x1.99a55ap-3f,  -0x1.ffffeep-3f, 0x1.555546p-2f};
    int subnormal = mc_compare_f(b, MC_LESS, x, mc_f32(b, 0x1p-126f));
    int bits = mc_choose(b, subnormal, mul(b, x, mc_f32(b, 0x1p23f)), x);
    int e = mc_with_imm(b, MC_SRA, mc_binary(b, MC_SUBI, bits, mc_u32(b, 0x3f3504f3U)), 23);
    int m = mc_binary(b, MC_SUBI, bits, mc_with_imm(b, MC_SLL, e, 23));
    int more = mc_choose(b, subnormal, mc_u32(b, 23), mc_u32(b, 0));
    int n = mc_unary(b, MC_I2F, mc_binary(b, MC_SUBI, e, more));
    int g = sub(b, m, mc_f32(b, 1.0f));
    int p = polynomial(b, g, c, TN_COUNT(c));
    int tail = mul(b, mul(b, g, g), mc_fma(b, p, g, mc_f32(b, -0.5f)));
    tail = mc_fma(b, n, mc_f32(b, -0x1.05c61p-29f), tail);
    int y = mc_fma(b, n, mc_f32(b, 0x1.62e43p-1f), add_mc(b, g, tail));
    y = mc_choose(b, mc_compare_f(b, MC_EQUAL, x, mc_f32(b, INFINITY)), x, y);
    y = mc_choose(b, mc_compare_f(b, MC_LESS, x, mc_f32(b, 0.0f)), mc_f32(b, NAN), y);
    y = mc_choose(b, mc_compare_f(b, MC_EQUAL, x, mc_f32(b, 0.0f)), mc_f32(b, -INFINITY), y);
    return choose_nan(b, x, x, y);
}

static int magnitude(mc_build *b, int x) { return mc_binary(b, MC_AND, x, mc_u32(b, 0x7fffffffU)); }

/* y ≥ 0 with the sign of x. */
static int with_sign(mc_build *b, int y, int x) {
    int sign = mc_binary(b, MC_AND, x, mc_u32(b, 0x80000000U));
    return mc_binary(b, MC_OR, mc_binary(b, MC_AND, y, mc_u32(b, 0x7fffffffU)), sign);
}

static int mc_tanh(mc_build *b, int x) {
    static const float c[] = {-0x1.963d5cp-8f, 0x1.58669ap-6f, -0x1.b90fcp-5f, 0x1.110c98p-3f, -0x1.555548p-2f};
    int a = magnitude(b, x), s = mul(b, x, x), r;
    int small = mc_fma(b, mul(b, x, s), polynomial(b, s, c, TN_COUNT(c)), x);
    /* a > 10 ? 20 : a + a; a NaN stays */
    int t = mc_binary(b, MC_MINF, mc_f32(b, 20.0f), add_mc(b, a, a));
    int n = reduce_ln2(b, t, &r), core = exp_core(b, r);
    int power = b->evex ? mc_binary(b, MC_SCALEF, core, n) : mul(b, core, power_of_two(b, mc_whole(b, n)));
    int large = sub(b, mc_f32(b, 1.0f), mc_binary(b, MC_DIVF, mc_f32(b, 2.0f), add_mc(b, power, mc_f32(b, 1.0f))));
    return with_sign(b, mc_choose(b, mc_compare_f(b, MC_LESS, a, mc_f32(b, 0.56f)), small, large), x);
}

static int mc_erf(mc_build *b, int x) {
    static const float near[] = {0x1.5cd4b2p-14f, -0x1.aa3f3p-11f, 0x1.54c7f6p-8f, -0x1.b80e9p-6f,
                                 0x1.ce2e0ap-4f,  -0x1.812742p-2f, 0x1.06eba8p-3f};
    static const float far[] = {0x1.63ca0ep-16f, -0x1.c8ecp-12f, 0x1.11c3fap-8f, -0x1.9bd3d4p-6f,
                                0x1.bb9ebep-4f,  0x1.4442fep-1f, 0x1.2128a6p+0f, -0x1.73625p-13f};
    int a = magnitude(b, x), s = mul(b, x, x);
    int small = mc_fma(b, x, polynomial(b, s, near, TN_COUNT(near)), x);
    int t = mc_binary(b, MC_MINF, mc_f32(b, 3.95f), a);
    int q = polynomial(b, t, far, TN_COUNT(far));
    int e = mc_exp(b, mc_binary(b, MC_XOR, q, mc_u32(b, 0x80000000U)));
    int large = with_sign(b, sub(b, mc_f32(b, 1.0f), e), x);
    return mc_choose(b, mc_compare_f(b, MC_LESS, a, mc_f32(b, 0.93f)), small, large);
}

/* The bits of the bf16 number, in 32-bit lanes. */
static int mc_to_bf16(mc_build *b, int x) {
    int odd = mc_binary(b, MC_AND, mc_with_imm(b, MC_SRL, x, 16), mc_u32(b, 1));
    int rounded = mc_binary(b, MC_ADDI, mc_binary(b, MC_ADDI, x, mc_u32(b, 0x7fff)), odd);
    int quiet = mc_binary(b, MC_OR, x, mc_u32(b, 0x400000));
    return mc_with_imm(b, MC_SRL, choose_nan(b, x, quiet, rounded), 16);
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

/* The operations for elements of 4 and 8 bytes; 0 (ADDF is never used here): none. */
typedef struct pair {
    uint8_t narrow, wide;
} pair;

static const pair FLOATS[KIR_OP_COUNT] = {
    [KIR_ADD] = {MC_ADDF, MC_ADDF}, [KIR_SUB] = {MC_SUBF, MC_SUBF},    [KIR_MUL] = {MC_MULF, MC_MULF},
    [KIR_DIV] = {MC_DIVF, MC_DIVF}, [KIR_SQRT] = {MC_SQRTF, MC_SQRTF},
};
static const pair INTEGERS[KIR_OP_COUNT] = {
    [KIR_ADD] = {MC_ADDI, MC_ADDQ}, [KIR_SUB] = {MC_SUBI, MC_SUBQ}, [KIR_MUL] = {MC_MULI, MC_MULI},
    [KIR_AND] = {MC_AND, MC_AND},   [KIR_OR] = {MC_OR, MC_OR},      [KIR_XOR] = {MC_XOR, MC_XOR},
    [KIR_SHL] = {MC_SLLV, MC_SLLV}, [KIR_MIN] = {MC_MINS, MC_MINS}, [KIR_MAX] = {MC_MAXS, MC_MAXS},
    [KIR_SHR] = {MC_SRAV, MC_SRAV}, [KIR_ABS] = {MC_ABSI, MC_ABSQ},
};
static const pair UNSIGNEDS[KIR_OP_COUNT] = {
    [KIR_MIN] = {MC_MINU, MC_MINU},
    [KIR_MAX] = {MC_MAXU, MC_MAXU},
    [KIR_SHR] = {MC_SRLV, MC_SRLV},
};

static const kir_ins *ins_of(const mc_build *b, kir_val v) { return &b->p->ins[v]; }

/* MAX(x, y) = (x > y || x != x) ? x : y, but the instruction returns its second operand unless the first is greater.
 * With the operands swapped it returns x for a NaN, and for a tie, which matters only for zeros; adding +0 makes +0 of
 * either zero. So a y that is a constant and not NaN takes one instruction, +0 two. NEON's instruction keeps a NaN of
 * either operand and takes +0 for the greater zero. */
static int mc_extreme(mc_build *b, const kir_ins *in, int x, int y) {
    mc_op op = in->op == KIR_MAX ? MC_MAXF : MC_MINF;
    const kir_ins *bound = ins_of(b, in->b);
    bool known = bound->op == KIR_CONST && bound->imm.f == bound->imm.f;
    bool exact = known && (bound->imm.f != 0 || (MC_NEON && op == MC_MAXF && !signbit(bound->imm.f)));
    if (exact) return mc_binary(b, op, y, x);
    if (known && !signbit(bound->imm.f)) return mc_binary(b, MC_ADDF, mc_binary(b, op, y, x), y);
    int best = mc_binary(b, op, x, y);
    if (MC_NEON) return mc_choose(b, mc_compare_f(b, MC_EQUAL, x, y), y, best);
    return choose_nan(b, x, x, best);
}

static int sign_bits(mc_build *b, int width, bool others) {
    uint64_t wide = (uint64_t)1 << 63;
    if (width == 8) return u64(b, others ? ~wide : wide);
    return mc_u32(b, others ? 0x7fffffffU : 0x80000000U);
}

static int round_to(mc_build *b, kir_round mode, int x) {
    static const uint8_t modes[] = {[KIR_FLOOR] = 1, [KIR_CEIL] = 2, [KIR_TRUNC] = 3, [KIR_NEAREST_EVEN] = 0};
    return mc_with_imm(b, mc_width_of(b, x) == 8 ? MC_ROUNDPD : MC_ROUNDPS, x, 8 | modes[mode]);
}

typedef int function_fn(mc_build *b, int x);
static function_fn *const FUNCTIONS[KIR_OP_COUNT] = {
    [KIR_EXP] = mc_exp,
    [KIR_LOG] = mc_log,
    [KIR_TANH] = mc_tanh,
    [KIR_ERF] = mc_erf,
};

static int lower_float(mc_build *b, const kir_ins *in, int x, int y) {
    int width = mc_width_of(b, x);
    switch (in->op) {
    case KIR_NEG: return mc_binary(b, MC_XOR, x, sign_bits(b, width, false));
    case KIR_ABS: return mc_binary(b, MC_AND, x, sign_bits(b, width, true));
    case KIR_ROUND: return round_to(b, (kir_round)in->imm.i, x);
    case KIR_MAX:
    case KIR_MIN: return mc_extreme(b, in, x, y);
    case KIR_SQRT: return mc_unary(b, MC_SQRTF, x);
    default: break;
    }
    if (FUNCTIONS[in->op]) return FUNCTIONS[in->op](b, x);
    return mc_binary(b, (mc_op)FLOATS[in->op].narrow, x, y);
}

static int lower_integer(mc_build *b, const kir_ins *in, int x, int y) {
    bool wide = mc_width_of(b, x) == 8, whole = is_unsigned((kir_type)in->type);
    if (in->op == KIR_NEG) return mc_binary(b, wide ? MC_SUBQ : MC_SUBI, wide ? u64(b, 0) : mc_u32(b, 0), x);
    if (in->op == KIR_ABS && whole) return x;
    const pair *p = whole && UNSIGNEDS[in->op].narrow ? &UNSIGNEDS[in->op] : &INTEGERS[in->op];
    mc_op op = (mc_op)(wide ? p->wide : p->narrow);
    return in->op == KIR_ABS ? mc_unary(b, op, x) : mc_binary(b, op, x, y);
}

static int lower_mask(mc_build *b, const kir_ins *in, int x, int y) {
    switch (in->op) {
    case KIR_AND:
    case KIR_MIN: return and_masks(b, x, y);
    case KIR_OR:
    case KIR_MAX: return or_masks(b, x, y);
    default: return xor_masks(b, x, y);
    }
}

/* ---- casts ------------------------------------------------------------------------------------------------------- */

/* The instruction returns INT_MIN for everything that does not fit. */
static int float_to_i32(mc_build *b, int x) {
    int whole = mc_unary(b, MC_F2I, x);
    if (MC_NEON) return whole; /* the nearest number, and 0 for a NaN */
    int above = mc_compare_f(b, MC_LESS_EQUAL, mc_f32(b, 0x1p31f), x);
    whole = mc_choose(b, above, mc_u32(b, INT32_MAX), whole);
    return choose_nan(b, x, mc_u32(b, 0), whole);
}

/* Conversions in one instruction, for AVX-512; the width of its vectors is the wider of the two. */
static const uint8_t CONVERSIONS[KIR_TYPE_COUNT][KIR_TYPE_COUNT] = {
    [KIR_F32][KIR_F64] = MC_F2D, [KIR_F64][KIR_F32] = MC_D2F, [KIR_I32][KIR_F32] = MC_I2F, [KIR_U32][KIR_F32] = MC_U2F,
    [KIR_I32][KIR_F64] = MC_I2D, [KIR_U32][KIR_F64] = MC_U2D, [KIR_I64][KIR_F32] = MC_Q2F, [KIR_I64][KIR_F64] = MC_Q2D,
    [KIR_I32][KIR_I64] = MC_I2Q, [KIR_I32][KIR_U64] = MC_I2Q, [KIR_U32][KIR_I64] = MC_U2Q, [KIR_U32][KIR_U64] = MC_U2Q,
};

/* Whether the bits of `x` are those of the result. */
static bool is_rename(kir_type from, kir_type to) {
    return !kir_is_float(from) && !kir_is_float(to) && from != KIR_BOOL && to != KIR_BOOL &&
           kir_type_size(from) == kir_type_size(to);
}

static int cast_mask(mc_build *b, kir_type to, int mask) {
    kir_ins one = {.op = KIR_CONST, .type = (uint8_t)to};
    if (kir_is_float(to))
        one.imm.f = 1;
    else
        one.imm.i = 1;
    kir_value value = kir_const_value(&one);
    int width = (int)kir_type_size(to);
    return mc_choose(b, mask, mc_constant(b, &value, width), width == 8 ? u64(b, 0) : mc_u32(b, 0));
}

static bool can_cast(kir_type from, kir_type to, bool evex) {
    if (to == KIR_BOOL || from == KIR_BOOL || is_rename(from, to)) return true;
    if (from == KIR_F32 && to == KIR_I32) return true;
    if ((from == KIR_I32 || (MC_NEON && from == KIR_U32)) && to == KIR_F32) return true;
    bool halves = kir_type_size(from) == 8 && kir_type_size(to) == 4 && !kir_is_float(from) && !kir_is_float(to);
    return evex && (halves || CONVERSIONS[from][to]);
}

static int lower_cast(mc_build *b, kir_type from, kir_type to, int x) {
    if (to == from || is_rename(from, to)) return x;
    if (to == KIR_BOOL) return not_zero(b, from, x);
    if (from == KIR_BOOL) return cast_mask(b, to, x);
    if (from == KIR_F32 && to == KIR_I32) return float_to_i32(b, x);
    int width = (int)kir_type_size(from), result = (int)kir_type_size(to), vectors = width > result ? width : result;
    bool halves = width == 8 && result == 4 && !kir_is_float(from) && !kir_is_float(to);
    mc_op op = halves ? MC_Q2I : (mc_op)CONVERSIONS[from][to];
    return compute(b, op, -1, x, -1, vectors, result);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static tn_dtype mc_dtype_of(const mc_build *b, const kir_ins *in) {
    return (tn_dtype)b->p->buffer_dtype[b->p->access[in->imm.i].buffer];
}

/* How elements are loaded into lanes and, with AVX-512, stored. */
typedef struct transfer {
    uint8_t load, store;
} transfer;
static const transfer TRANSFERS[TN_PLAIN_DTYPES] = {
    [TN_F32] = {MC_LOADU, MC_STOREU},      [TN_F64] = {MC_LOADU, MC_STOREU}, [TN_I32] = {MC_LOADU, MC_STOREU},
    [TN_I64] = {MC_LOADU, MC_STOREU},      [TN_U32] = {MC_LOADU, MC_STOREU}, [TN_U64] = {MC_LOADU, MC_STOREU},
    [TN_F16] = {MC_FROM_HALF, MC_TO_HALF}, [TN_BF16] = {MC_U16, MC_DOWN16},  [TN_I8] = {MC_S8, MC_DOWN8},
    [TN_U8] = {MC_U8, MC_DOWN8},           [TN_I16] = {MC_S16, MC_DOWN16},   [TN_U16] = {MC_U16, MC_DOWN16},
    [TN_BOOL] = {MC_U8, MC_DOWN8},
};

static int lower_load(mc_build *b, const kir_ins *in) {
    tn_dtype dtype = mc_dtype_of(b, in);
    int size = (int)tn_dtype_size(dtype), width = size == 8 ? 8 : 4;
    mc_step s = plain(b, MC_LOAD, (mc_op)TRANSFERS[dtype].load, width);
    s.a = in->a == KIR_NONE ? -1 : b->value_of[in->a];
    s.size = (uint8_t)size;
    s.access = (int16_t)in->imm.i;
    int d = step_value(b, s, width, false);
    if (dtype == TN_BF16) return mc_with_imm(b, MC_SLL, d, 16);
    return dtype == TN_BOOL ? not_zero(b, KIR_I32, d) : d;
}

/* Without AVX-512: the low halves or quarters of 8 lanes side by side. */
static int pack(mc_build *b, int x, int size) {
    x = mc_binary(b, MC_AND, x, mc_u32(b, size == 2 ? 0xffff : 0xff));
    mc_step s = plain(b, MC_EXTRACT, MC_HIGH16, 4);
    s.a = (int16_t)x;
    s.imm = 1;
    int upper = step_value(b, s, 4, false);
    int packed = compute(b, MC_PACKD, x, upper, -1, 2, 4); /* 16 bytes: lanes of 2 */
    return size == 2 ? packed : compute(b, MC_PACKW, packed, packed, -1, 2, 4);
}

static void lower_store(mc_build *b, const kir_ins *in) {
    tn_dtype dtype = mc_dtype_of(b, in);
    int size = (int)tn_dtype_size(dtype), width = size == 8 ? 8 : 4;
    int value = b->value_of[in->a];
    if (dtype == TN_BOOL) value = mc_choose(b, value, mc_u32(b, 1), mc_u32(b, 0));
    if (dtype == TN_BF16) value = mc_to_bf16(b, value);
    mc_step s = plain(b, MC_STORE, (mc_op)TRANSFERS[dtype].store, width);
    if (dtype == TN_F16) s.imm = 0;
    if (!b->evex && !MC_NEON && dtype != TN_F16 && size < 4) {
        value = pack(b, value, size);
        s.op = size == 2 ? MC_STOREU : MC_STORE8;
        s.bytes = 16;
    }
    s.a = (int16_t)value;
    s.b = in->b == KIR_NONE ? -1 : b->value_of[in->b];
    s.size = (uint8_t)size;
    s.access = (int16_t)in->imm.i;
    add_step(b, s);
}

static int lower_index(mc_build *b, const kir_ins *in) {
    mc_step s = plain(b, MC_INDEX, MC_ADDQ, 8);
    s.access = (int16_t)in->imm.i;
    int64_t lanes[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    int ramp = new_value(b, 8, false);
    if (b->refusal) return 0;
    b->values[ramp].pool = kir_mc_constant_vector(b->a, lanes);
    b->values[ramp].segment = -1;
    s.a = (int16_t)ramp;
    return step_value(b, s, 8, false);
}

static int lower_runtime_scalar(mc_build *b, const kir_ins *in, int number) {
    mc_step s = plain(b, MC_SCALAR, MC_BCAST4, (int)kir_type_size((kir_type)in->type));
    s.access = (int16_t)number;
    return step_value(b, s, (int)kir_type_size((kir_type)in->type), false);
}

static int lower_const(mc_build *b, const kir_ins *in) {
    if (in->type == KIR_BOOL) { /* a comparison that always has this outcome, where it is needed */
        int zero = mc_f32(b, 0);
        return mc_compare_f(b, in->imm.i ? MC_EQUAL : MC_NOT_EQUAL, zero, zero);
    }
    kir_value value = kir_const_value(in);
    return mc_constant(b, &value, (int)kir_type_size((kir_type)in->type));
}

/* ---- reductions -------------------------------------------------------------------------------------------------- */

static int lower_reduce(mc_build *b, const kir_ins *in) {
    mc_segment *s = &b->segments[b->now];
    if (s->n_reductions == MC_MOST_REDUCTIONS) kir_mc_refuse(b, "too many reductions in a loop");
    if (b->refusal) return 0;
    int width = (int)kir_type_size((kir_type)in->type), d = new_value(b, width, false);
    kir_value identity = kir_identity((kir_reduce)in->kind, (kir_type)in->type);
    int start = mc_constant(b, &identity, width);
    if (b->refusal) return 0;
    b->values[d].segment = -2;
    b->values[d].slot = (int16_t)kir_mc_take_slot(b);
    mc_step step = plain(b, MC_REDUCE, MC_ADDF, width);
    step.a = b->value_of[in->a];
    step.access = (int16_t)s->n_reductions;
    s->reductions[s->n_reductions++] = (mc_reduction){in->kind, in->type, (int16_t)d, (int16_t)start};
    add_step(b, step);
    return d;
}

/* ---- a program --------------------------------------------------------------------------------------------------- */

static int lower_pure(mc_build *b, const kir_ins *in) {
    int v[3] = {-1, -1, -1};
    for (int k = 0; k < kir_arity(in); k++)
        v[k] = b->value_of[kir_operand(in, k)];
    kir_type t = (kir_type)ins_of(b, in->a)->type;
    switch (in->op) {
    case KIR_CAST: return lower_cast(b, t, (kir_type)in->type, v[0]);
    case KIR_BITCAST: return v[0];
    case KIR_FMA: return mc_fma(b, v[0], v[1], v[2]);
    case KIR_SELECT: return in->type == KIR_BOOL ? choose_masks(b, v[0], v[1], v[2]) : mc_choose(b, v[0], v[1], v[2]);
    case KIR_EQ:
    case KIR_LT:
    case KIR_LE:
        if (t == KIR_BOOL) return compare_masks(b, (kir_op)in->op, v[0], v[1]);
        if (!kir_is_float(t)) return compare_integers(b, (kir_op)in->op, t, v[0], v[1]);
        return mc_compare_f(b, in->op == KIR_EQ ? MC_EQUAL : in->op == KIR_LT ? MC_LESS : MC_LESS_EQUAL, v[0], v[1]);
    default: break;
    }
    if (t == KIR_BOOL) return lower_mask(b, in, v[0], v[1]);
    return kir_is_float(t) ? lower_float(b, in, v[0], v[1]) : lower_integer(b, in, v[0], v[1]);
}

static void lower_ins(mc_build *b, int i) {
    const kir_ins *in = &b->p->ins[i];
    int v = 0;
    switch (in->op) {
    case KIR_SCALAR: return; /* done before all others */
    case KIR_CONST: v = lower_const(b, in); break;
    case KIR_LOAD: v = lower_load(b, in); break;
    case KIR_INDEX: v = lower_index(b, in); break;
    case KIR_STORE: lower_store(b, in); return;
    case KIR_REDUCE: v = lower_reduce(b, in); break;
    case KIR_LOOP:
    case KIR_END:
        b->now++;
        b->segments[b->now].loop = in->op == KIR_LOOP;
        return;
    default: v = lower_pure(b, in);
    }
    b->value_of[i] = (int16_t)v;
}

static void lower_runtime_scalars(mc_build *b) {
    for (int i = 0, n = 0; i < b->p->n_ins; i++)
        if (b->p->ins[i].op == KIR_SCALAR) b->value_of[i] = (int16_t)lower_runtime_scalar(b, &b->p->ins[i], n++);
}

/* Marks what does not vary along a row, in a program without loops. A load behind a store stays where it is. */
static void mark_uniform(const mc_build *b, bool *uniform) {
    bool stored = false;
    for (int i = 0; i < b->p->n_ins; i++) {
        const kir_ins *in = &b->p->ins[i];
        stored |= in->op == KIR_STORE;
        uniform[i] = in->op != KIR_STORE;
        for (int k = 0; k < kir_arity(in); k++)
            uniform[i] &= uniform[kir_operand(in, k)];
        if (in->op == KIR_LOAD && (stored || in->a != KIR_NONE)) uniform[i] = false;
        if (kir_has_access((kir_op)in->op) && b->classes[in->imm.i] != MC_SAME) uniform[i] = false;
    }
}

static bool is_pure(kir_op op) {
    return kir_yields(op) && op != KIR_LOAD && op != KIR_INDEX && op != KIR_REDUCE && op != KIR_SCALAR;
}

/* Marks what a loop's body computes only from row values (and loads of one element, while nothing has been stored): it
 * is computed once, in the row segment before the loop. */
static void mark_invariant(const mc_build *b, bool *invariant, bool *once) {
    bool stored = false, inside = false;
    for (int i = 0; i < b->p->n_ins; i++) {
        const kir_ins *in = &b->p->ins[i];
        kir_op op = (kir_op)in->op;
        bool fixed = is_pure(op);
        stored |= op == KIR_STORE;
        inside = op == KIR_LOOP || (inside && op != KIR_END);
        for (int k = 0; k < kir_arity(in); k++)
            fixed &= invariant[kir_operand(in, k)];
        if (op == KIR_LOAD) fixed = !stored && in->a == KIR_NONE && b->classes[in->imm.i] == MC_SAME;
        once[i] = inside && fixed;
        invariant[i] = !inside || fixed || op == KIR_SCALAR || op == KIR_REDUCE;
    }
}

static void lower_loops(mc_build *b, bool *invariant, bool *once) {
    mark_invariant(b, invariant, once);
    for (int i = 0; i < b->p->n_ins; i++) {
        b->now -= once[i];
        lower_ins(b, i);
        b->now += once[i];
    }
}

static void lower_points(mc_build *b, bool *uniform) {
    mark_uniform(b, uniform);
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < b->p->n_ins; i++)
            if (uniform[i] == (pass == 0)) lower_ins(b, i);
        b->now = 1;
        b->segments[1].loop = true;
    }
}

void kir_mc_lower(mc_build *b) {
    size_t n = (size_t)b->p->n_ins + 1;
    bool *uniform = tn_mem_zalloc(2 * n, sizeof *uniform);
    if (!uniform) {
        kir_mc_lack_memory(b);
        return;
    }
    lower_runtime_scalars(b);
    if (b->layout == KIR_POINTS)
        lower_points(b, uniform);
    else
        lower_loops(b, uniform, uniform + n);
    tn_mem_free(uniform);
}

/* ---- what is not done -------------------------------------------------------------------------------------------- */

static const char *refusal_of_operation(const kir_ins *in, kir_type t, bool evex) {
    if (in->op == KIR_PHILOX) return "random numbers";
    if (in->op == KIR_SCAN || (in->op == KIR_REDUCE && (in->kind > KIR_RMIN || t == KIR_BOOL))) return "sequential";
    if (in->op == KIR_CAST) return can_cast(t, (kir_type)in->type, evex) ? NULL : "conversion";
    bool far = in->op == KIR_SIN || in->op == KIR_COS;
    bool function = far || in->op == KIR_EXP || in->op == KIR_LOG || in->op == KIR_TANH || in->op == KIR_ERF;
    if (far || (function && t != KIR_F32)) return "function";
    if (in->op == KIR_MOD || (in->op == KIR_DIV && !kir_is_float(t))) return "integer division";
    if (in->op == KIR_SCALAR && in->type == KIR_BOOL) return "boolean runtime scalar";
    return NULL;
}

const char *kir_mc_refusal_of(const kir_program *p, bool evex) {
    if (p->n_access > MC_MOST_ACCESS) return "too many accesses";
    for (int i = 0; i < p->n_access; i++)
        if (p->access[i].dyn != KIR_NONE) return "computed index";
    int depth = 0;
    for (int i = 0; i < p->n_ins; i++) {
        const kir_ins *in = &p->ins[i];
        depth += (in->op == KIR_LOOP) - (in->op == KIR_END);
        kir_type t = (kir_type)(in->a == KIR_NONE ? in->type : p->ins[in->a].type);
        if (in->op == KIR_LOAD && in->a != KIR_NONE && depth == 0 && p->n_loop > 0) return "mask outside of a loop";
        if (in->op == KIR_STORE && in->b != KIR_NONE && depth == 0 && p->n_loop > 0) return "mask outside of a loop";
        if (!evex && in->type != KIR_BOOL && kir_type_size((kir_type)in->type) == 8) return "elements of 8 bytes";
        const char *why = refusal_of_operation(in, t, evex);
        if (why) return why;
    }
    return NULL;
}
