/* legal.c — rewriting programs: one pass over the instructions, each appended as it is or as its function's steps.
 *
 * The builder shares equal steps, folds constants (a guard against division by 0 is gone where the divisor is one) and
 * drops what nobody reads. */
#include "kir/legal.h"

#include <string.h>

#define LEGAL_TABLES
#include "kir/eval.h"
#include "kir/kir_math.h"
#include "kir/legal_words.h"
#include "kir/rules.h"

typedef struct legaliser {
    const kir_program *p, *frame; /* what it had; what it has to have of buffers and axes */
    unsigned what;
    kir_builder *b;
    kir_val *map; /* by instruction of p: the value that stands for it */
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
        kir_val here = i ? kir_binary(b, KIR_EQ, index, kir_const_i(b, KIR_I32, i)) : KIR_NONE;
        found = i ? kir_select(b, here, x, found) : x;
    }
    return found;
}

static kir_val pick(kir_builder *b, const kir_val *values, int count, kir_val index) {
    kir_val found = values[0];
    for (int i = 1; i < count; i++)
        found = kir_select(b, kir_binary(b, KIR_EQ, index, kir_const_i(b, KIR_I32, i)), values[i], found);
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
kir_val kir_legal_run(kir_builder *b, int function, const kir_val *arguments, kir_val *high) {
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

/* Is a buffer of 16-bit floats to be one of bits? Not where matrices or packets move: who has these has the type. */
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

/* What both programs share, as the new one is to have it. */
static kir_program frame_of(const kir_program *p, unsigned what) {
    kir_program frame = *p;
    for (int i = 0; i < p->n_buffers; i++)
        if (holds_bits(p, what, i)) frame.buffer_dtype[i] = TN_U16;
    return frame;
}

static tn_status rewrite_all(legaliser *l, kir_program **out) {
    kir_program frame = frame_of(l->p, l->what);
    int64_t *sizes = NULL;
    l->frame = &frame;
    TRY(kir_begin_like(&frame, &l->b));
    for (int i = 0; i < l->p->n_ins; i++)
        l->map[i] = rewrite(l, &l->p->ins[i]);
    tn_status status = kir_finish(l->b, out, &sizes);
    tn_mem_free(sizes);
    return status;
}

static tn_status simplify(const kir_program *p, unsigned what, kir_program **out) {
    legaliser l = {.p = p, .what = what};
    l.map = tn_mem_zalloc((size_t)p->n_ins + 1, sizeof *l.map);
    if (!l.map) return TN_ERR_MEMORY;
    tn_status status = rewrite_all(&l, out);
    tn_mem_free(l.map);
    return status;
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
