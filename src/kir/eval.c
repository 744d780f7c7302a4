/* eval.c — one operation on one point, by the functions of kir_math.h. */
#include "kir/kir_math.h"
#include "kir/rules.h"

typedef void eval_fn(kir_value *out, const kir_value v[3]);

/* The field of kir_value for each type name of the lists. */
#define value_f32 f32
#define value_f64 f64
#define value_i32 i32
#define value_i64 i64
#define value_u32 u32
#define value_u64 u64
#define value_b8 b

#define X(OP, op, TYPE, t) \
    static void op##_##t(kir_value *out, const kir_value v[3]) { out->value_##t = kir_##op##_##t(v[0].value_##t); }
KIR_UNARY_LIST(X)
KIR_ROUND_LIST(X)
#undef X

#define X(OP, op, TYPE, t)                                               \
    static void op##_##t(kir_value *out, const kir_value v[3]) {         \
        out->value_##t = kir_##op##_##t(v[0].value_##t, v[1].value_##t); \
    }
KIR_BINARY_LIST(X)
#undef X

#define X(OP, op, TYPE, t)                                       \
    static void op##_##t(kir_value *out, const kir_value v[3]) { \
        out->b = kir_##op##_##t(v[0].value_##t, v[1].value_##t); \
    }
KIR_COMPARE_LIST(X)
#undef X

#define X(OP, op, TYPE, t)                                                               \
    static void op##_##t(kir_value *out, const kir_value v[3]) {                         \
        out->value_##t = kir_##op##_##t(v[0].value_##t, v[1].value_##t, v[2].value_##t); \
    }
KIR_EACH_FLOAT(X, FMA, fma)
#undef X

#define X(FROM, from, TO, to)                                              \
    static void cast_##from##_##to(kir_value *out, const kir_value v[3]) { \
        out->value_##to = kir_cast_##from##_##to(v[0].value_##from);       \
    }
KIR_CAST_LIST(X)
#undef X

static void select_any(kir_value *out, const kir_value v[3]) { *out = v[0].b ? v[1] : v[2]; }

static void philox(kir_value *out, const kir_value v[3]) { out->u32 = kir_philox_u32(v[0].u64, v[1].u64); }

static void bits_copied(kir_value *out, const kir_value v[3]) { *out = v[0]; }

static eval_fn *const BY_TYPE[KIR_OP_COUNT][KIR_TYPE_COUNT] = {
#define X(OP, op, TYPE, t) [KIR_##OP][KIR_##TYPE] = op##_##t,
    KIR_UNARY_LIST(X) KIR_BINARY_LIST(X) KIR_COMPARE_LIST(X) KIR_EACH_FLOAT(X, FMA, fma)
#undef X
};

static eval_fn *const ROUNDINGS[KIR_NEAREST_EVEN + 1][KIR_TYPE_COUNT] = {
#define X(OP, op, TYPE, t) [KIR_##OP][KIR_##TYPE] = op##_##t,
    KIR_ROUND_LIST(X)
#undef X
};

static eval_fn *const CASTS[KIR_TYPE_COUNT][KIR_TYPE_COUNT] = {
#define X(FROM, from, TO, to) [KIR_##FROM][KIR_##TO] = cast_##from##_##to,
    KIR_CAST_LIST(X)
#undef X
};

static eval_fn *find_eval(const kir_ins *in, kir_type operand) {
    switch (in->op) {
    case KIR_ROUND: return ROUNDINGS[in->imm.i][operand];
    case KIR_CAST: return CASTS[operand][in->type];
    case KIR_BITCAST: return bits_copied;
    case KIR_SELECT: return select_any;
    case KIR_PHILOX: return philox;
    default: return BY_TYPE[in->op][operand];
    }
}

bool kir_eval(const kir_ins *in, kir_type operand, const kir_value values[3], kir_value *out) {
    if ((unsigned)operand >= KIR_TYPE_COUNT) return false;
    eval_fn *fn = find_eval(in, operand);
    if (!fn) return false;
    kir_value result = {.u64 = 0};
    fn(&result, values);
    *out = result;
    return true;
}

static const kir_op COMBINES[] = {
    [KIR_SUM] = KIR_ADD, [KIR_PROD] = KIR_MUL, [KIR_RMAX] = KIR_MAX, [KIR_RMIN] = KIR_MIN, [KIR_SEQ] = KIR_ADD,
};

kir_value kir_combine(kir_reduce kind, kir_type t, kir_value acc, kir_value x) {
    kir_value result = {.u64 = 0};
    BY_TYPE[COMBINES[kind]][t](&result, (kir_value[3]){acc, x});
    return result;
}

static kir_value lowest(kir_type t) {
    static const kir_value values[KIR_TYPE_COUNT] = {
        [KIR_F32] = {.f32 = -INFINITY}, [KIR_F64] = {.f64 = -(double)INFINITY},
        [KIR_I32] = {.i32 = INT32_MIN}, [KIR_I64] = {.i64 = INT64_MIN},
        [KIR_BOOL] = {.b = 0},
    };
    return values[t];
}

static kir_value highest(kir_type t) {
    static const kir_value values[KIR_TYPE_COUNT] = {
        [KIR_F32] = {.f32 = INFINITY},  [KIR_F64] = {.f64 = (double)INFINITY}, [KIR_I32] = {.i32 = INT32_MAX},
        [KIR_I64] = {.i64 = INT64_MAX}, [KIR_U32] = {.u32 = UINT32_MAX},       [KIR_U64] = {.u64 = UINT64_MAX},
        [KIR_BOOL] = {.b = 1},
    };
    return values[t];
}

static kir_value one(kir_type t) {
    if (t == KIR_F32) return (kir_value){.f32 = 1.0f};
    if (t == KIR_F64) return (kir_value){.f64 = 1.0};
    return (kir_value){.u64 = 1};
}

static kir_value nothing_to_add(kir_type t) {
    if (t == KIR_F32) return (kir_value){.f32 = -0.0f};
    if (t == KIR_F64) return (kir_value){.f64 = -0.0};
    return (kir_value){.u64 = 0};
}

kir_value kir_identity(kir_reduce kind, kir_type t) {
    switch (kind) {
    case KIR_SEQ: return nothing_to_add(t);
    case KIR_PROD: return one(t);
    case KIR_RMAX: return lowest(t);
    case KIR_RMIN: return highest(t);
    default: return (kir_value){.u64 = 0};
    }
}

bool kir_beats(kir_reduce kind, kir_type t, kir_value x, kir_value best) {
    kir_value less = {.u64 = 0}, self = {.u64 = 0}, best_self = {.u64 = 0};
    BY_TYPE[KIR_EQ][t](&self, (kir_value[3]){x, x});
    BY_TYPE[KIR_EQ][t](&best_self, (kir_value[3]){best, best});
    if (!best_self.b) return false;
    if (!self.b) return true;
    BY_TYPE[KIR_LT][t](&less, kind == KIR_ARGMAX ? (kir_value[3]){best, x} : (kir_value[3]){x, best});
    return less.b;
}

kir_value kir_const_value(const kir_ins *in) {
    switch (in->type) {
    case KIR_F32: return (kir_value){.f32 = (float)in->imm.f};
    case KIR_F64: return (kir_value){.f64 = in->imm.f};
    default: /* little end first or not, a narrow integer is read as what it is */ break;
    }
    if (in->type == KIR_I32) return (kir_value){.i32 = (int32_t)in->imm.i};
    if (in->type == KIR_U32) return (kir_value){.u32 = (uint32_t)in->imm.i};
    if (in->type == KIR_BOOL) return (kir_value){.b = in->imm.i != 0};
    return (kir_value){.i64 = in->imm.i};
}

kir_ins kir_const_ins(kir_type t, kir_value v) {
    kir_ins in = {.op = KIR_CONST, .type = (uint8_t)t, .a = KIR_NONE, .b = KIR_NONE, .c = KIR_NONE, .imm.i = 0};
    switch (t) {
    case KIR_F32: in.imm.f = (double)v.f32; break;
    case KIR_F64: in.imm.f = v.f64; break;
    case KIR_I32: in.imm.i = v.i32; break;
    case KIR_U32: in.imm.i = v.u32; break;
    case KIR_BOOL: in.imm.i = v.b; break;
    default: in.imm.i = v.i64;
    }
    return in;
}
