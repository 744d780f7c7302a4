/* legal.c — rewrites programs for languages without some functions or without 64-bit integers; same bits. */
#define LEGAL_TABLES

#include <string.h>

#include "kir/kir.h"
#include "kir/kir_math.h"
#include "kir/render.h"
#include "kir/rules.h"

#include "gen/legal_table.h"

/* ==== shared by both passes ======================================================================================= */

/* Appends the steps of a function (LEGAL_EXP_F32 …) on these arguments; *high, unless NULL: what its pointer gets. */
static kir_val kir_legal_run(kir_builder *b, int function, const kir_val *arguments, kir_val *high);

/* The program of words equivalent to p. p must have been through KIR_LEGAL_MATHS, except for DIV, MOD, MIN and MAX of
 * 64-bit integers. */
static tn_status kir_legal_words(const kir_program *p, kir_program **out);

/* ==== functions as steps ========================================================================================== */
/* The builder shares equal steps, folds constants (a check for division by 0 disappears if the divisor is a constant)
 * and drops unused values. */

typedef struct legaliser {
    const kir_program *p, *frame; /* what it had; what it has to have of buffers and axes */
    unsigned what;
    kir_builder *b;
    kir_val *map; /* by instruction of p: the value that replaces it */
} legaliser;

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static kir_val word_constant(kir_builder *b, int type, const uint32_t *words) {
    kir_value v = {.u64 = 0};
    if (kir_type_size((kir_type)type) == 8)
        v.u64 = words[0] | (uint64_t)words[1] << 32;
    else if (type == KIR_BOOL)
        v.b = words[0] != 0;
    else
        v.u32 = words[0];
    kir_ins in = kir_const_ins((kir_type)type, v);
    return kir_append(b, &in, KIR_NONE);
}

/* The element of this number, of a table of constants or of values side by side: the first, unless it is another. */
static kir_val look_up(kir_builder *b, const struct legal_step *s, bool erf, kir_val index) {
    kir_val found = KIR_NONE;
    for (int i = 0; i < (erf ? KIR_ERF_PIECES : s->b); i++) {
        kir_val x =
            erf ? kir_const(b, KIR_F64, kir_erf_table[s->b][i]) : kir_const_i(b, KIR_U32, kir_two_over_pi[i + s->c]);
        kir_val here = i ? kir_eq(b, index, kir_const_i(b, KIR_I32, i)) : KIR_NONE;
        found = i ? kir_select(b, here, x, found) : x;
    }
    return found;
}

static kir_val pick(kir_builder *b, const kir_val *values, int count, kir_val index) {
    kir_val found = values[0];
    for (int i = 1; i < count; i++)
        found = kir_select(b, kir_eq(b, index, kir_const_i(b, KIR_I32, i)), values[i], found);
    return found;
}

static kir_val run_step(kir_builder *b, const struct legal_step *s, const kir_val *v) {
    static const uint8_t arity[] = {
#define X(name, arity, types) arity,
        KIR_OPS(X)
#undef X
    };
    struct legal_kind kind = LEGAL_KINDS[s->kind];
    switch (kind.op) {
    case KIR_CONST: return word_constant(b, kind.type, LEGAL_WORDS + (s->a | s->b << 8));
    case LEGAL_CALL: return kir_legal_run(b, s->a, (const kir_val[2]){v[s->b], v[s->c]}, NULL);
    case LEGAL_LOOKUP: return look_up(b, s, kind.type == KIR_F64, v[s->a]);
    case LEGAL_PICK: return pick(b, v + s->b, s->c, v[s->a]);
    case LEGAL_COPY: return v[s->a];
    default: break;
    }
    kir_ins in = {.op = kind.op, .type = kind.type, .a = v[s->a], .b = KIR_NONE, .c = KIR_NONE, .imm.i = 0};
    if (arity[kind.op] > 1) in.b = v[s->b];
    if (arity[kind.op] > 2) in.c = v[s->c];
    return kir_append(b, &in, KIR_NONE);
}

/* Calls are as deep as the functions of kir_math.h: two. */
static kir_val kir_legal_run(kir_builder *b, int function, const kir_val *arguments, kir_val *high) {
    const struct legal_function *f = &LEGAL_FUNCTIONS[function];
    const struct legal_step *steps = LEGAL_STEPS + f->first;
    kir_val v[256];
    int turns = 0;
    memcpy(v, arguments, f->parameters * sizeof *v);
    for (int i = 0; i < f->steps; i++) {
        const struct legal_step *s = &steps[i];
        uint8_t op = LEGAL_KINDS[s->kind].op;
        if (op == LEGAL_MOVE) {
            v[s->a] = v[s->b];
        } else if (op != LEGAL_REPEAT) {
            v[f->parameters + i] = run_step(b, s, v);
        } else if (turns < s->b) {
            turns++;
            i -= s->a + 1;
        } else {
            turns = 0;
        }
    }
    if (high) *high = v[f->high];
    return v[f->result];
}

/* ---- instructions ------------------------------------------------------------------------------------------------ */

static int function_of(const kir_ins *in, kir_type operand) {
    for (size_t i = 0; i < TN_COUNT(LEGAL_ROWS); i++) {
        const struct legal_row *r = &LEGAL_ROWS[i];
        bool compares = in->op == KIR_LT || in->op == KIR_LE;
        if (r->op == in->op && r->operand == operand && (compares || r->type == in->type)) return r->function;
    }
    return -1;
}

/* Whether a buffer of 16-bit floats becomes one of bits. Not for buffers of matrices or packets: devices with these
 * have the type. */
static bool holds_bits(const kir_program *p, unsigned what, int buffer) {
    bool half = p->buffer_dtype[buffer] == TN_F16 && what & KIR_LEGAL_HALVES;
    bool brain = p->buffer_dtype[buffer] == TN_BF16 && what & KIR_LEGAL_BRAINS;
    if (!half && !brain) return false;
    for (int i = 0; i < p->n_ins; i++)
        if (p->ins[i].op > KIR_BARRIER && kir_has_access((kir_op)p->ins[i].op) &&
            p->access[p->ins[i].imm.i].buffer == buffer)
            return false;
    return true;
}

/* The dtype of an access's buffer, if conversions from and to it are to be taken apart; else none. */
static bool is_half(const legaliser *l, const kir_ins *in, tn_dtype *dtype) {
    if (in->op != KIR_LOAD && in->op != KIR_STORE) return false;
    int buffer = l->p->access[in->imm.i].buffer;
    *dtype = (tn_dtype)l->p->buffer_dtype[buffer];
    return *dtype != l->frame->buffer_dtype[buffer];
}

static kir_val rewrite_half(legaliser *l, kir_ins in, kir_val dyn, tn_dtype dtype) {
    in.type = KIR_I32;
    if (in.op == KIR_STORE) {
        in.a = kir_legal_run(l->b, dtype == TN_F16 ? LEGAL_TO_F16 : LEGAL_TO_BF16, &in.a, NULL);
        return kir_append(l->b, &in, dyn);
    }
    kir_val bits = kir_append(l->b, &in, dyn);
    return kir_legal_run(l->b, dtype == TN_F16 ? LEGAL_FROM_F16 : LEGAL_FROM_BF16, &bits, NULL);
}

static kir_val rewrite_runtime_scalar(legaliser *l, kir_ins in) {
    in.type = KIR_U64;
    kir_val bits = kir_append(l->b, &in, KIR_NONE);
    return kir_legal_run(l->b, LEGAL_NARROW_BITS, &bits, NULL);
}

/* Of these words know more: how large a result can be. */
static bool is_for_words(const legaliser *l, const kir_ins *in) {
    bool ruled = in->op == KIR_DIV || in->op == KIR_MOD || in->op == KIR_MIN || in->op == KIR_MAX;
    return ruled && l->what & KIR_LEGAL_I64 && (in->type == KIR_I64 || in->type == KIR_U64);
}

static kir_val renamed(const legaliser *l, kir_val v) { return v == KIR_NONE ? KIR_NONE : l->map[v]; }

static kir_val rewrite(legaliser *l, const kir_ins *old) {
    kir_ins in = *old;
    kir_type operand = old->a != KIR_NONE ? (kir_type)l->p->ins[old->a].type : (kir_type)old->type;
    kir_val dyn = kir_has_access((kir_op)in.op) ? renamed(l, l->p->access[in.imm.i].dyn) : KIR_NONE;
    tn_dtype dtype;
    in.a = renamed(l, in.a);
    in.b = renamed(l, in.b);
    in.c = renamed(l, in.c);
    if (is_half(l, old, &dtype)) return rewrite_half(l, in, dyn, dtype);
    if (in.op == KIR_SCALAR && in.type == KIR_F32 && l->what & KIR_LEGAL_SCALARS) return rewrite_runtime_scalar(l, in);
    int function = l->what & KIR_LEGAL_MATHS && !is_for_words(l, &in) ? function_of(&in, operand) : -1;
    if (function < 0) return kir_append(l->b, &in, dyn);
    return kir_legal_run(l->b, function, (const kir_val[2]){in.a, in.b}, NULL);
}

/* What both programs share, as the new one needs it. */
static kir_program frame_of(const kir_program *p, unsigned what) {
    kir_program frame = *p;
    for (int i = 0; i < p->n_buffers; i++)
        if (holds_bits(p, what, i)) frame.buffer_dtype[i] = TN_U16;
    return frame;
}

static tn_status simplify(const kir_program *p, unsigned what, kir_program **out) {
    AUTO_FREE kir_val *map = tn_mem_zalloc((size_t)p->n_ins + 1, sizeof *map);
    AUTO_FREE int64_t *sizes = NULL;
    if (!map) return TN_ERR_MEMORY;
    kir_program frame = frame_of(p, what);
    legaliser l = {.p = p, .what = what, .map = map, .frame = &frame};
    TRY(kir_begin_like(&frame, &l.b));
    for (int i = 0; i < p->n_ins; i++)
        map[i] = rewrite(&l, &p->ins[i]);
    return kir_finish(l.b, out, &sizes);
}

tn_status kir_legalise(const kir_program *p, unsigned what, kir_program **out) {
    *out = NULL;
    if (p->words) what &= ~(unsigned)(KIR_LEGAL_I64 | KIR_LEGAL_SCALARS);
    if (what & KIR_LEGAL_I64) what |= KIR_LEGAL_MATHS | KIR_LEGAL_SCALARS;
    kir_program *simple = NULL;
    tn_status status = simplify(p, what, &simple);
    if (status == TN_OK && what & KIR_LEGAL_I64) {
        status = kir_legal_words(simple, out);
        kir_free(simple);
    } else {
        *out = simple;
    }
    /* a verified program has no other fault than its growth */
    if (status == TN_ERR_ARGUMENT)
        return tn_fail_prefix(TN_ERR_UNSUPPORTED, "kernel %016llx made simpler", (unsigned long long)p->hash);
    if (status == TN_OK) kir_set_windows(*out, p->windows, p->n_buffers);
    return status;
}

/* ==== 64-bit integers as pairs of U32 ============================================================================= */
/* Besides its words a value has bounds, computed when it is made. A value within an int32_t or uint32_t needs no high
 * word: it is the low one's sign, or 0, and its quotients, shifts and comparisons are 32-bit ones. The low words of
 * sums and products need only low words, so a value that is used only as an index is computed in 32 bits. */

/* The replacement of a value. Of 64 bits: the words as U32, bounds (as of an int64_t), and the low word as I32 if an
 * access or loop uses it as an index. Of others: only low. While a loop of a 64-bit reduction is open, low and high are
 * its variables; for ARGMAX and ARGMIN so are `index` and `count`. */
typedef struct pair {
    kir_val low, high, index, count;
    int64_t least, most;
} pair;

typedef struct words {
    const kir_program *p;
    kir_builder *b;
    pair *map;     /* by instruction of p */
    bool *indexes; /* does it serve as an index? */
    int open[KIR_MAX_AXES + 1], depth;
    bool refused;
} words;

static bool words_is_wide(kir_type t) { return t == KIR_I64 || t == KIR_U64; }
static bool fits_i32(const pair *x) { return x->least >= INT32_MIN && x->most <= INT32_MAX; }
static bool fits_u32(const pair *x) { return x->least >= 0 && x->most <= UINT32_MAX; }

static kir_val words_word(words *w, uint32_t x) { return kir_const_i(w->b, KIR_U32, x); }
static kir_val as_i32(words *w, kir_val low) { return kir_bitcast(w->b, KIR_I32, low); }
static kir_val as_u32(words *w, kir_val x) { return kir_bitcast(w->b, KIR_U32, x); }
static kir_val run_words(words *w, int function, kir_val x, kir_val y) {
    return kir_legal_run(w->b, function, (const kir_val[2]){x, y}, NULL);
}

/* ---- pairs ------------------------------------------------------------------------------------------------------- */

static pair bounded(kir_val low, kir_val high, int64_t least, int64_t most) {
    return (pair){low, high, KIR_NONE, KIR_NONE, least, most};
}
static pair any(kir_val low, kir_val high) { return bounded(low, high, INT64_MIN, INT64_MAX); }
static pair single(kir_val v) { return bounded(v, KIR_NONE, INT64_MIN, INT64_MAX); }

static pair words_constant(words *w, int64_t x) {
    return bounded(words_word(w, (uint32_t)x), words_word(w, (uint32_t)((uint64_t)x >> 32)), x, x);
}

static kir_val high_of(words *w, const pair *x) {
    if (fits_u32(x)) return words_word(w, 0);
    if (!fits_i32(x)) return x->high;
    return as_u32(w, kir_shr(w->b, as_i32(w, x->low), kir_const_i(w->b, KIR_I32, 31)));
}

/* The pair that a function of two makes. */
static pair run_pair(words *w, int function, const pair *x, const pair *y) {
    kir_val high, arguments[4] = {x->low, high_of(w, x), y->low, high_of(w, y)};
    kir_val low = kir_legal_run(w->b, function, arguments, &high);
    return any(low, high);
}

static kir_val run_test(words *w, int function, const pair *x, const pair *y) {
    return kir_legal_run(w->b, function, (const kir_val[4]){x->low, high_of(w, x), y->low, high_of(w, y)}, NULL);
}

static pair choose_words(words *w, kir_val cond, const pair *x, const pair *y) {
    pair r = bounded(kir_select(w->b, cond, x->low, y->low), KIR_NONE, tn_min64(x->least, y->least),
                     tn_max64(x->most, y->most));
    if (!fits_i32(&r) && !fits_u32(&r)) r.high = kir_select(w->b, cond, high_of(w, x), high_of(w, y));
    return r;
}

/* ---- bounds ------------------------------------------------------------------------------------------------------ */

static void widen_words(pair *r, int64_t x) {
    r->least = tn_min64(r->least, x);
    r->most = tn_max64(r->most, x);
}

static bool overflows(kir_op op, int64_t a, int64_t b, int64_t *out) {
    if (op == KIR_ADD) return __builtin_add_overflow(a, b, out);
    if (op == KIR_SUB) return __builtin_sub_overflow(a, b, out);
    return __builtin_mul_overflow(a, b, out);
}

/* Of a sum, difference or product: the extremes of the operands' extremes. */
static void bound_arithmetic(kir_op op, const pair *x, const pair *y, pair *r) {
    const int64_t a[] = {x->least, x->most}, b[] = {y->least, y->most};
    for (int i = 0; i < 4; i++) {
        int64_t v;
        if (overflows(op, a[i & 1], b[i >> 1], &v)) {
            r->least = INT64_MIN;
            r->most = INT64_MAX;
            return;
        }
        if (i == 0) r->least = r->most = v;
        widen_words(r, v);
    }
}

static void bound_bits(kir_op op, const pair *x, const pair *y, pair *r) {
    if (op == KIR_AND && (x->least >= 0 || y->least >= 0)) {
        r->least = 0;
        r->most = tn_min64(x->least >= 0 ? x->most : INT64_MAX, y->least >= 0 ? y->most : INT64_MAX);
    } else if (fits_u32(x) && fits_u32(y)) {
        r->least = 0;
        r->most = x->most <= INT32_MAX && y->most <= INT32_MAX ? INT32_MAX : UINT32_MAX;
    } else if (fits_i32(x) && fits_i32(y)) {
        r->least = INT32_MIN;
        r->most = INT32_MAX;
    }
}

static int64_t magnitude(const pair *x) {
    int64_t low = x->least == INT64_MIN ? INT64_MAX : x->least < 0 ? -x->least : x->least;
    return tn_max64(low, x->most);
}

/* Of signed division: a quotient is not larger than the dividend; a remainder is also smaller than the divisor. */
static void bound_division(kir_op op, const pair *x, const pair *y, pair *r) {
    if (x->least == INT64_MIN || (op == KIR_MOD && y->least == INT64_MIN)) return;
    int64_t by = op == KIR_MOD ? tn_max64(magnitude(y) - 1, 0) : 0, least = y->least > 0 ? y->least : 1;
    int64_t most = op == KIR_MOD ? tn_min64(magnitude(x), by) : magnitude(x) / least;
    r->most = x->most > 0 || (op == KIR_DIV && y->least < 0) ? most : 0;
    r->least = x->least < 0 || (op == KIR_DIV && y->least < 0) ? -most : 0;
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

/* Are both in order as signed numbers when they are read as of this type? */
static bool is_signed(kir_type t, const pair *x, const pair *y) {
    return t == KIR_I64 || (x->least >= 0 && y->least >= 0);
}

static kir_val words_less(words *w, kir_type t, const pair *x, const pair *y) {
    if (is_signed(t, x, y) && fits_i32(x) && fits_i32(y)) return kir_lt(w->b, as_i32(w, x->low), as_i32(w, y->low));
    if (fits_u32(x) && fits_u32(y)) return kir_lt(w->b, x->low, y->low);
    return run_test(w, t == KIR_I64 ? LEGAL_WORDS_LT_I : LEGAL_WORDS_LT_U, x, y);
}

static kir_val compare_words(words *w, kir_op op, kir_type t, const pair *x, const pair *y) {
    if (op == KIR_LT) return words_less(w, t, x, y);
    if (op == KIR_LE) return kir_xor(w->b, words_less(w, t, y, x), kir_const(w->b, KIR_BOOL, 1));
    if ((fits_i32(x) && fits_i32(y)) || (fits_u32(x) && fits_u32(y))) return kir_eq(w->b, x->low, y->low);
    return run_test(w, LEGAL_WORDS_EQ, x, y);
}

static pair arithmetic(words *w, kir_op op, const pair *x, const pair *y) {
    static const uint8_t functions[] = {
        [KIR_ADD] = LEGAL_WORDS_ADD, [KIR_SUB] = LEGAL_WORDS_SUB, [KIR_MUL] = LEGAL_WORDS_MUL};
    pair r = any(KIR_NONE, KIR_NONE);
    bound_arithmetic(op, x, y, &r);
    if (fits_i32(&r) || fits_u32(&r)) {
        r.low = kir_binary(w->b, op, x->low, y->low);
        return r;
    }
    pair whole = run_pair(w, functions[op], x, y);
    return bounded(whole.low, whole.high, r.least, r.most);
}

static pair bitwise(words *w, kir_op op, const pair *x, const pair *y) {
    pair r = any(kir_binary(w->b, op, x->low, y->low), KIR_NONE);
    bound_bits(op, x, y, &r);
    if (!fits_i32(&r) && !fits_u32(&r)) r.high = kir_binary(w->b, op, high_of(w, x), high_of(w, y));
    return r;
}

static pair opposite_if(words *w, kir_val cond, const pair *x) {
    kir_val high, low = kir_legal_run(w->b, LEGAL_WORDS_SIGNED, (const kir_val[3]){x->low, high_of(w, x), cond}, &high);
    return any(low, high);
}

static kir_val is_negative(words *w, const pair *x) {
    return kir_lt(w->b, as_i32(w, high_of(w, x)), kir_const(w->b, KIR_I32, 0));
}

/* x / y in 64 bits, 0 for a divisor of 0. */
static pair quotient(words *w, kir_type t, const pair *x, const pair *y) {
    pair zero = words_constant(w, 0), a = *x, b = *y;
    bool plain = is_signed(t, x, y) && t == KIR_I64 && (x->least < 0 || y->least < 0);
    if (plain) {
        a = opposite_if(w, is_negative(w, x), x);
        b = opposite_if(w, is_negative(w, y), y);
    }
    pair q = run_pair(w, LEGAL_WORDS_DIV_U, &a, &b);
    if (plain) q = opposite_if(w, kir_xor(w->b, is_negative(w, x), is_negative(w, y)), &q);
    return y->least > 0 || y->most < 0 ? q : choose_words(w, compare_words(w, KIR_EQ, t, y, &zero), &zero, &q);
}

static pair remainder_of(words *w, kir_type t, const pair *x, const pair *y) {
    pair zero = words_constant(w, 0), q = quotient(w, t, x, y);
    pair product = run_pair(w, LEGAL_WORDS_MUL, &q, y), rest = run_pair(w, LEGAL_WORDS_SUB, x, &product);
    return y->least > 0 || y->most < 0 ? rest : choose_words(w, compare_words(w, KIR_EQ, t, y, &zero), &zero, &rest);
}

static pair divide_words(words *w, kir_op op, kir_type t, const pair *x, const pair *y) {
    bool may_overflow = op == KIR_DIV && x->least == INT32_MIN && y->least <= -1 && y->most >= -1;
    pair r = any(KIR_NONE, KIR_NONE);
    if (is_signed(t, x, y)) bound_division(op, x, y, &r);
    if (is_signed(t, x, y) && fits_i32(x) && fits_i32(y) && !may_overflow) {
        kir_val low = run_words(w, op == KIR_DIV ? LEGAL_DIV_I32 : LEGAL_MOD_I32, as_i32(w, x->low), as_i32(w, y->low));
        return bounded(as_u32(w, low), KIR_NONE, tn_max64(r.least, INT32_MIN), tn_min64(r.most, INT32_MAX));
    }
    if (fits_u32(x) && fits_u32(y))
        return bounded(run_words(w, op == KIR_DIV ? LEGAL_DIV_U32 : LEGAL_MOD_U32, x->low, y->low), KIR_NONE, r.least,
                       r.most);
    pair whole = (op == KIR_DIV ? quotient : remainder_of)(w, t, x, y);
    return bounded(whole.low, whole.high, r.least, r.most);
}

/* Counts are in range: MATHS has seen to it. */
static pair shift_left(words *w, const pair *x, const pair *y) {
    pair r = any(KIR_NONE, KIR_NONE);
    if (y->least == y->most && y->least >= 0 && y->least < 62) {
        pair power = bounded(KIR_NONE, KIR_NONE, (int64_t)1 << y->least, (int64_t)1 << y->least);
        bound_arithmetic(KIR_MUL, x, &power, &r);
    }
    r.low = kir_legal_run(w->b, LEGAL_WORDS_SHL, (const kir_val[3]){x->low, high_of(w, x), y->low}, &r.high);
    return r;
}

static pair shift_right(words *w, kir_type t, const pair *x, const pair *y) {
    bool known = y->least == y->most && y->least >= 0 && y->least < 64;
    int64_t by = known ? y->least : 0;
    pair r = bounded(KIR_NONE, KIR_NONE, tn_min64(x->least >> by, 0), tn_max64(x->most >> by, 0));
    if (t == KIR_U64 && x->least < 0) {
        r.least = by > 0 ? 0 : INT64_MIN;
        r.most = by > 0 ? (int64_t)(UINT64_MAX >> by) : INT64_MAX;
    }
    if (fits_i32(x) && is_signed(t, x, x)) {
        r.low = as_u32(w, run_words(w, LEGAL_SHR_I32, as_i32(w, x->low), as_i32(w, y->low)));
    } else if (fits_u32(x)) {
        r.low = run_words(w, LEGAL_SHR_U32, x->low, y->low);
    } else {
        int function = t == KIR_I64 ? LEGAL_WORDS_SHR_I : LEGAL_WORDS_SHR_U;
        r.low = kir_legal_run(w->b, function, (const kir_val[3]){x->low, high_of(w, x), y->low}, &r.high);
    }
    return r;
}

static pair words_extreme(words *w, kir_op op, kir_type t, const pair *x, const pair *y) {
    return choose_words(w, op == KIR_MAX ? words_less(w, t, y, x) : words_less(w, t, x, y), x, y);
}

static pair binary(words *w, kir_op op, kir_type t, const pair *x, const pair *y) {
    switch (op) {
    case KIR_ADD:
    case KIR_SUB:
    case KIR_MUL: return arithmetic(w, op, x, y);
    case KIR_DIV:
    case KIR_MOD: return divide_words(w, op, t, x, y);
    case KIR_MIN:
    case KIR_MAX: return words_extreme(w, op, t, x, y);
    case KIR_SHL: return shift_left(w, x, y);
    case KIR_SHR: return shift_right(w, t, x, y);
    default: return bitwise(w, op, x, y);
    }
}

/* ---- conversions ------------------------------------------------------------------------------------------------- */

static pair refuse_words(words *w) {
    w->refused = true;
    return words_constant(w, 0);
}

static pair from_narrow(words *w, kir_type to, kir_type from, kir_val x) {
    pair r;
    switch (from) {
    case KIR_I32: return bounded(as_u32(w, x), KIR_NONE, INT32_MIN, INT32_MAX);
    case KIR_U32: return bounded(x, KIR_NONE, 0, UINT32_MAX);
    case KIR_BOOL: return bounded(kir_cast(w->b, KIR_U32, x), KIR_NONE, 0, 1);
    case KIR_F32:
        r = any(KIR_NONE, KIR_NONE);
        r.low = kir_legal_run(w->b, to == KIR_I64 ? LEGAL_WORDS_FROM_I : LEGAL_WORDS_FROM_U, &x, &r.high);
        return r;
    default: return refuse_words(w);
    }
}

static kir_val to_float(words *w, kir_type to, kir_type from, const pair *x) {
    if (fits_i32(x) && is_signed(from, x, x)) return kir_cast(w->b, to, as_i32(w, x->low));
    if (fits_u32(x)) return kir_cast(w->b, to, x->low);
    if (to == KIR_F64) {
        refuse_words(w);
        return kir_const(w->b, KIR_F64, 0);
    }
    return run_words(w, from == KIR_I64 ? LEGAL_WORDS_TO_I : LEGAL_WORDS_TO_U, x->low, high_of(w, x));
}

static kir_val to_narrow(words *w, kir_type to, kir_type from, const pair *x) {
    switch (to) {
    case KIR_I32: return as_i32(w, x->low);
    case KIR_U32: return x->low;
    case KIR_BOOL: return kir_cast(w->b, KIR_BOOL, kir_or(w->b, x->low, high_of(w, x)));
    default: return to_float(w, to, from, x);
    }
}

/* CAST and BITCAST from or to 64 bits. */
static pair convert(words *w, const kir_ins *in, kir_type from, const pair *x) {
    kir_type to = (kir_type)in->type;
    if (words_is_wide(to) && words_is_wide(from)) return *x;
    if (in->op == KIR_BITCAST) return refuse_words(w);
    return words_is_wide(to) ? from_narrow(w, to, from, x->low) : single(to_narrow(w, to, from, x));
}

/* ---- reductions and scans ---------------------------------------------------------------------------------------- */

static bool is_arg(const kir_ins *in) {
    return in->op == KIR_REDUCE && (in->kind == KIR_ARGMAX || in->kind == KIR_ARGMIN);
}

static bool is_reduced_wide(const words *w, const kir_ins *in) {
    return (in->op == KIR_REDUCE || in->op == KIR_SCAN) && words_is_wide((kir_type)w->p->ins[in->a].type);
}

/* Calls `fn` for the reductions and scans that belong to this loop and not to one inside it. */
static void each_own_state(words *w, int loop, int end, void (*fn)(words *w, int i)) {
    int depth = 0;
    for (int i = loop + 1; depth >= 0 && i < end; i++) {
        const kir_ins *in = &w->p->ins[i];
        depth += (in->op == KIR_LOOP) - (in->op == KIR_END);
        if (depth == 0 && is_reduced_wide(w, in)) fn(w, i);
    }
}

static void begin_state(words *w, int i) {
    const kir_ins *in = &w->p->ins[i];
    int64_t x = kir_identity((kir_reduce)in->kind, (kir_type)w->p->ins[in->a].type).i64;
    pair zero = words_constant(w, is_arg(in) || in->kind == KIR_CHAIN ? 0 : x);
    pair *s = &w->map[i];
    *s = any(kir_var(w->b, zero.low), kir_var(w->b, zero.high));
    if (!is_arg(in)) return;
    s->index = kir_var(w->b, kir_const(w->b, KIR_I32, 0));
    s->count = kir_var(w->b, kir_const(w->b, KIR_I32, 0));
}

static pair get_pair(words *w, const pair *vars) { return any(kir_get(w->b, vars->low), kir_get(w->b, vars->high)); }

static void set_pair(words *w, const pair *vars, const pair *x) {
    kir_val high = high_of(w, x);
    kir_set(w->b, vars->low, x->low);
    kir_set(w->b, vars->high, high);
}

/* x becomes the best of an ARGMAX or ARGMIN if it is the first or beyond the best. */
static void feed_extreme(words *w, const kir_ins *in, const pair *vars, const pair *x) {
    kir_type t = (kir_type)w->p->ins[in->a].type;
    pair best = get_pair(w, vars);
    kir_val count = kir_get(w->b, vars->count), index = kir_get(w->b, vars->index);
    kir_val beyond = in->kind == KIR_ARGMAX ? words_less(w, t, &best, x) : words_less(w, t, x, &best);
    beyond = kir_or(w->b, beyond, kir_eq(w->b, count, kir_const(w->b, KIR_I32, 0)));
    best = choose_words(w, beyond, x, &best);
    set_pair(w, vars, &best);
    kir_set(w->b, vars->index, kir_select(w->b, beyond, count, index));
    kir_set(w->b, vars->count, kir_add(w->b, count, kir_const(w->b, KIR_I32, 1)));
}

static void feed(words *w, int i, const kir_ins *in) {
    static const uint8_t ops[] = {[KIR_SUM] = KIR_ADD,  [KIR_PROD] = KIR_MUL,  [KIR_RMAX] = KIR_MAX,
                                  [KIR_RMIN] = KIR_MIN, [KIR_CHAIN] = KIR_ADD, [KIR_SEQ] = KIR_ADD};
    kir_type t = (kir_type)w->p->ins[in->a].type;
    pair vars = w->map[i], x = w->map[in->a];
    if (is_arg(in)) {
        feed_extreme(w, in, &vars, &x);
        return;
    }
    if (in->kind == KIR_CHAIN) x = arithmetic(w, KIR_MUL, &x, &w->map[in->b]);
    pair acc = get_pair(w, &vars);
    acc = binary(w, (kir_op)ops[in->kind], t, &acc, &x);
    set_pair(w, &vars, &acc);
    if (in->op == KIR_SCAN) w->map[i] = acc;
}

static void note_index(words *w, int i) {
    if (w->indexes[i]) w->map[i].index = as_i32(w, w->map[i].low);
}

/* Behind the loop: reductions that it left in variables, and indices of extremes, which are I32. */
static void end_state(words *w, int i) {
    const kir_ins *in = &w->p->ins[i];
    if (in->op == KIR_SCAN) return;
    pair vars = w->map[i];
    w->map[i] = is_arg(in) ? bounded(as_u32(w, kir_get(w->b, vars.index)), KIR_NONE, 0, INT32_MAX) : get_pair(w, &vars);
    note_index(w, i);
}

static void end_index(words *w, int loop, int end) {
    int depth = 0;
    for (int i = loop + 1; i < end; i++) {
        const kir_ins *in = &w->p->ins[i];
        depth += (in->op == KIR_LOOP) - (in->op == KIR_END);
        if (depth != 0 || !is_arg(in) || is_reduced_wide(w, in)) continue;
        w->map[i] = bounded(as_u32(w, w->map[i].low), KIR_NONE, 0, INT32_MAX);
        note_index(w, i);
    }
}

static void end_loop(words *w, int end) {
    int loop = w->open[--w->depth];
    kir_end(w->b);
    each_own_state(w, loop, end, end_state);
    end_index(w, loop, end);
}

/* ---- instructions ------------------------------------------------------------------------------------------------ */

static kir_val words_renamed(const words *w, kir_val v) { return v == KIR_NONE ? KIR_NONE : w->map[v].low; }

static kir_ins renamed_ins(const words *w, const kir_ins *old) {
    kir_ins in = *old;
    in.kind = in.op == KIR_REDUCE || in.op == KIR_SCAN || in.op > KIR_BARRIER ? in.kind : 0;
    in.a = words_renamed(w, in.a);
    in.b = words_renamed(w, in.b);
    in.c = words_renamed(w, in.c);
    return in;
}

static kir_val dyn_of(const words *w, const kir_ins *in) {
    if (!kir_has_access((kir_op)in->op)) return KIR_NONE;
    kir_val dyn = w->p->access[in->imm.i].dyn;
    return dyn == KIR_NONE ? KIR_NONE : w->map[dyn].index;
}

/* LOAD, STORE and SCALAR take a word at a time, GET and SET a variable. */
static pair each_word(words *w, const kir_ins *old) {
    pair r = any(KIR_NONE, KIR_NONE);
    for (int k = 0; k < 2; k++) {
        kir_ins in = renamed_ins(w, old);
        in.type = KIR_U32;
        in.kind = (uint8_t)k;
        if (k == 1 && in.op == KIR_STORE) in.a = high_of(w, &w->map[old->a]);
        *(k ? &r.high : &r.low) = kir_append(w->b, &in, dyn_of(w, old));
    }
    return r;
}

static pair rewrite_wide(words *w, const kir_ins *old, kir_type operand) {
    const pair *x = old->a != KIR_NONE ? &w->map[old->a] : NULL, *y = old->b != KIR_NONE ? &w->map[old->b] : NULL;
    pair zero;
    switch (old->op) {
    case KIR_CONST: return words_constant(w, old->imm.i);
    case KIR_LOAD:
    case KIR_STORE:
    case KIR_SCALAR: return each_word(w, old);
    case KIR_CAST:
    case KIR_BITCAST: return convert(w, old, operand, x);
    case KIR_NEG: zero = words_constant(w, 0); return arithmetic(w, KIR_SUB, &zero, x);
    case KIR_EQ:
    case KIR_LT:
    case KIR_LE: return single(compare_words(w, (kir_op)old->op, operand, x, y));
    case KIR_SELECT: return choose_words(w, x->low, y, &w->map[old->c]);
    case KIR_VAR: return any(kir_var(w->b, x->low), kir_var(w->b, high_of(w, x)));
    case KIR_GET: return get_pair(w, x);
    case KIR_SET: set_pair(w, x, y); return single(KIR_NONE);
    default: return binary(w, (kir_op)old->op, (kir_type)old->type, x, y);
    }
}

static void open_loop(words *w, int i, const kir_ins *old) {
    int end = w->p->n_ins;
    each_own_state(w, i, end, begin_state);
    kir_ins in = renamed_ins(w, old);
    if (old->a != KIR_NONE) in.a = w->map[old->a].index;
    kir_append(w->b, &in, KIR_NONE);
    w->open[w->depth++] = i;
}

static pair rewrite_narrow(words *w, const kir_ins *old) {
    if (old->op == KIR_SCALAR && old->type == KIR_BOOL) {
        pair scalar = each_word(w, old);
        return single(to_narrow(w, KIR_BOOL, KIR_U64, &scalar));
    }
    kir_ins in = renamed_ins(w, old);
    if (is_arg(&in)) in.type = KIR_I32;
    return single(kir_append(w->b, &in, dyn_of(w, old)));
}

/* Its affine part fits an int32_t; the computed part need not. */
static pair rewrite_index(words *w, const kir_ins *old) {
    kir_val dyn = w->p->access[old->imm.i].dyn;
    kir_ins in = *old;
    in.type = KIR_I32;
    pair x = bounded(as_u32(w, kir_append(w->b, &in, KIR_NONE)), KIR_NONE, INT32_MIN, INT32_MAX);
    return dyn == KIR_NONE ? x : arithmetic(w, KIR_ADD, &x, &w->map[dyn]);
}

static void words_rewrite(words *w, int i) {
    const kir_ins *old = &w->p->ins[i];
    kir_type operand = old->a != KIR_NONE ? (kir_type)w->p->ins[old->a].type : (kir_type)old->type;
    bool wide = words_is_wide((kir_type)old->type) || words_is_wide(operand);
    if (old->op == KIR_LOOP) {
        open_loop(w, i, old);
    } else if (old->op == KIR_END) {
        end_loop(w, i);
    } else if (is_reduced_wide(w, old)) {
        feed(w, i, old);
    } else {
        w->map[i] = old->op == KIR_INDEX   ? rewrite_index(w, old)
                    : wide && !is_arg(old) ? rewrite_wide(w, old, operand)
                                           : rewrite_narrow(w, old);
        if (!is_arg(old)) note_index(w, i);
    }
    if (old->op == KIR_SCAN && is_reduced_wide(w, old)) note_index(w, i);
}

static void mark_indexes(words *w) {
    for (int i = 0; i < w->p->n_access; i++)
        if (w->p->access[i].dyn != KIR_NONE) w->indexes[w->p->access[i].dyn] = true;
    for (int i = 0; i < w->p->n_ins; i++)
        if (w->p->ins[i].op == KIR_LOOP && w->p->ins[i].a != KIR_NONE) w->indexes[w->p->ins[i].a] = true;
}

static tn_status words_rewrite_all(words *w, kir_program **out) {
    kir_program frame = *w->p;
    AUTO_FREE int64_t *sizes = NULL;
    frame.words = true;
    mark_indexes(w);
    TRY(kir_begin_like(&frame, &w->b));
    for (int i = 0; i < w->p->n_ins && !w->refused; i++)
        words_rewrite(w, i);
    if (w->refused) {
        kir_abandon(w->b);
        return tn_fail(TN_ERR_UNSUPPORTED, "kernel %016llx: converts between 64-bit integers and f64",
                       (unsigned long long)w->p->hash);
    }
    return kir_finish(w->b, out, &sizes);
}

static tn_status kir_legal_words(const kir_program *p, kir_program **out) {
    words w = {.p = p};
    size_t n = (size_t)p->n_ins + 1;
    w.map = tn_mem_zalloc(n, sizeof *w.map);
    w.indexes = tn_mem_zalloc(n, sizeof *w.indexes);
    tn_status status = w.map && w.indexes ? words_rewrite_all(&w, out) : TN_ERR_MEMORY;
    tn_mem_free_each(w.map, w.indexes);
    return status;
}
