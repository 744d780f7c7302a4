/* x64_emit.c — a segment's steps become code: who is in which register.
 *
 * A body is a straight line, so registers are given out in one pass forward, with the next use of every value at hand;
 * when none is free, the value whose next use is farthest goes to the stack. Constants and what other segments computed
 * are in memory as whole vectors, good as an operand; what registers the body leaves over hold those it reads most. */
#include "kir/rules.h"
#include "kir/x64.h"

#include <stddef.h>
#include <string.h>

enum { NEVER = INT16_MAX, FREE = -1, SET_ASIDE = -2, OPERANDS = 4, RESULT = 3 };
enum { MASK_FIRST = 4, MASK_END = 8 }; /* mask registers given out; 1 … 3 have other uses */

int kir_x64_vector_bytes(const x64_build *b) { return b->a->vector; }

static int class_of(const x64_emitter *e, int v) { return e->b->values[v].mask ? X64_MASKS : X64_VECTORS; }

static bool is_local(const x64_emitter *e, int v) { return e->b->values[v].segment == e->index; }

x64_rm kir_x64_slot(int slot) { return x64_at(X64_RSP, slot * 64); }

/* ---- instructions ------------------------------------------------------------------------------------------------ */

static void emit(x64_emitter *e, x64_vec v) { kir_x64_emit(e->a, &v); }

void kir_x64_op3(x64_emitter *e, x64_op op, int bytes, int d, int first, x64_rm rm) {
    emit(e, (x64_vec){.op = op, .bytes = bytes, .reg = d, .first = first, .rm = rm, .imm = -1});
}

static void load_whole(x64_emitter *e, int d, x64_rm from) {
    kir_x64_op3(e, X64_LOADU, kir_x64_vector_bytes(e->b), d, 0, from);
}

static void store_whole(x64_emitter *e, x64_rm to, int reg) {
    kir_x64_op3(e, X64_STOREU, kir_x64_vector_bytes(e->b), reg, 0, to);
}

static void to_slot(x64_emitter *e, int v, int reg) {
    x64_rm slot = kir_x64_slot(e->b->values[v].slot);
    if (e->b->values[v].mask)
        kir_x64_op3(e, X64_KSTORE, 16, reg, 0, slot);
    else
        store_whole(e, slot, reg);
    e->stored[v] = e->body;
}

/* ---- registers --------------------------------------------------------------------------------------------------- */

static int first_register(int class) { return class == X64_MASKS ? MASK_FIRST : 0; }
static int end_register(const x64_emitter *e, int class) { return class == X64_MASKS ? MASK_END : e->n_vectors; }

static void give_back(x64_emitter *e, int v) {
    int reg = e->in[v];
    if (reg < 0 || !is_local(e, v)) return;
    e->owner[class_of(e, v)][reg] = FREE;
    e->in[v] = -1;
}

static void evict(x64_emitter *e, int v) {
    if (e->b->values[v].slot < 0) e->b->values[v].slot = (int16_t)kir_x64_take_slot(e->b);
    if (e->stored[v] != e->body) to_slot(e, v, e->in[v]);
    give_back(e, v);
}

/* A register for value v; the operands of the current step are locked. */
static int take_register(x64_emitter *e, int v) {
    int class = class_of(e, v), worst = -1;
    for (int r = first_register(class); r < end_register(e, class); r++) {
        int owner = e->owner[class][r];
        if (owner == FREE) {
            worst = r;
            break;
        }
        if (owner == SET_ASIDE || e->locked[class][r]) continue;
        if (worst < 0 || e->next[owner] > e->next[e->owner[class][worst]]) worst = r;
    }
    if (worst < 0) {
        kir_x64_refuse(e->b, "too few registers");
        return first_register(class);
    }
    if (e->owner[class][worst] >= 0) evict(e, e->owner[class][worst]);
    e->owner[class][worst] = (int16_t)v;
    e->in[v] = (int16_t)worst;
    e->locked[class][worst] = true;
    return worst;
}

x64_rm kir_x64_place(x64_emitter *e, int v) {
    if (e->in[v] >= 0) return x64_reg(e->in[v]);
    const x64_value *value = &e->b->values[v];
    return value->pool >= 0 ? x64_pool(value->pool) : kir_x64_slot(value->slot);
}

int kir_x64_in_register(x64_emitter *e, int v, int scratch) {
    if (e->in[v] >= 0) return e->in[v];
    if (e->b->values[v].mask)
        kir_x64_op3(e, X64_KLOAD, 16, scratch, 0, kir_x64_place(e, v));
    else
        load_whole(e, scratch, kir_x64_place(e, v));
    return scratch;
}

static void lock(x64_emitter *e, int v) {
    if (v >= 0 && e->in[v] >= 0) e->locked[class_of(e, v)][e->in[v]] = true;
}

/* The operands of step i have been read: whoever is read no more gives its register back. */
static void finish_operands(x64_emitter *e, const x64_step *s, int i) {
    const int16_t operands[3] = {s->a, s->b, s->c};
    for (int k = 0; k < 3; k++) {
        int v = operands[k];
        if (v < 0) continue;
        e->next[v] = e->next_use[i * OPERANDS + k];
        if (e->next[v] == NEVER) give_back(e, v);
    }
}

static int take_result(x64_emitter *e, const x64_step *s, int i) {
    memset(e->locked, 0, sizeof e->locked);
    e->next[s->d] = e->next_use[i * OPERANDS + RESULT];
    return take_register(e, s->d);
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static bool commutes(x64_op op) {
    return op == X64_ADDF || op == X64_MULF || op == X64_ADDI || op == X64_ADDQ || op == X64_MULI || op == X64_AND ||
           op == X64_OR || op == X64_XOR;
}

/* Result and operands are in registers by now, or in memory where that is allowed. */
static void emit_step(x64_emitter *e, const x64_step *s, int d, int first, x64_rm rm) {
    emit(e, (x64_vec){.op = (x64_op)s->op,
                      .bytes = s->bytes,
                      .wide = s->wide,
                      .reg = d,
                      .first = first,
                      .rm = rm,
                      .imm = s->imm});
}

static void do_compute(x64_emitter *e, const x64_step *s, int i) {
    bool in_registers = s->op == X64_Q2I || s->op == X64_SLL || s->op == X64_SRL || s->op == X64_SRA;
    int a = s->a, b = s->b;
    if (a >= 0 && e->in[a] < 0 && e->in[b] >= 0 && commutes((x64_op)s->op)) {
        a = s->b;
        b = s->a;
    }
    int first = a >= 0 ? kir_x64_in_register(e, a, e->scratch[0]) : 0;
    x64_rm rm = in_registers ? x64_reg(kir_x64_in_register(e, b, e->scratch[1])) : kir_x64_place(e, b);
    finish_operands(e, s, i);
    int d = take_result(e, s, i);
    if (s->op == X64_Q2I)
        emit_step(e, s, rm.reg, 0, x64_reg(d));
    else
        emit_step(e, s, d, first, rm);
}

static void do_logic(x64_emitter *e, const x64_step *s, int i) {
    int first = s->a >= 0 ? kir_x64_in_register(e, s->a, X64_FREE_MASK) : 0;
    int second = kir_x64_in_register(e, s->b, X64_FREE_MASK + 1);
    finish_operands(e, s, i);
    emit_step(e, s, take_result(e, s, i), first, x64_reg(second));
}

static void do_extract(x64_emitter *e, const x64_step *s, int i) {
    int from = kir_x64_in_register(e, s->a, e->scratch[0]);
    finish_operands(e, s, i);
    emit_step(e, s, from, 0, x64_reg(take_result(e, s, i)));
}

static void do_choose(x64_emitter *e, const x64_step *s, int i) {
    int first = kir_x64_in_register(e, s->a, e->scratch[0]);
    int mask = kir_x64_in_register(e, s->c, e->b->evex ? X64_FREE_MASK : e->scratch[1]);
    x64_rm rm = kir_x64_place(e, s->b);
    finish_operands(e, s, i);
    x64_vec v = {.op = (x64_op)s->op, .bytes = s->bytes, .wide = s->wide, .reg = take_result(e, s, i)};
    v.first = first;
    v.rm = rm;
    v.mask = e->b->evex ? mask : 0;
    v.imm = e->b->evex ? -1 : mask << 4;
    emit(e, v);
}

/* May the step that reads v last write over it? */
static bool dies(const x64_emitter *e, int v, int i, int k) {
    return e->in[v] >= 0 && is_local(e, v) && e->next_use[i * OPERANDS + k] == NEVER;
}

/* The result takes over the register of value v. */
static int take_over(x64_emitter *e, const x64_step *s, int i, int v) {
    int reg = e->in[v];
    finish_operands(e, s, i);
    e->next[s->d] = e->next_use[i * OPERANDS + RESULT];
    e->in[s->d] = (int16_t)reg;
    e->owner[X64_VECTORS][reg] = s->d;
    return reg;
}

/* The result's register holds a factor (213) or the summand (231) before. */
static void do_fuse(x64_emitter *e, const x64_step *s, int i) {
    x64_step fused = *s;
    int factor = dies(e, s->a, i, 0) ? s->a : dies(e, s->b, i, 1) ? s->b : -1;
    if (factor >= 0) {
        int first = kir_x64_in_register(e, factor == s->a ? s->b : s->a, e->scratch[0]);
        x64_rm rm = kir_x64_place(e, s->c);
        emit_step(e, &fused, take_over(e, s, i, factor), first, rm);
        return;
    }
    bool a_first = e->in[s->a] >= 0;
    int first = kir_x64_in_register(e, a_first ? s->a : s->b, e->scratch[0]);
    x64_rm rm = kir_x64_place(e, a_first ? s->b : s->a), sum = kir_x64_place(e, s->c);
    fused.op = X64_FMA231;
    if (dies(e, s->c, i, 2)) {
        emit_step(e, &fused, take_over(e, s, i, s->c), first, rm);
        return;
    }
    lock(e, s->a);
    lock(e, s->b);
    lock(e, s->c);
    e->next[s->d] = e->next_use[i * OPERANDS + RESULT];
    int d = take_register(e, s->d);
    if (sum.memory)
        load_whole(e, d, sum);
    else
        kir_x64_op3(e, X64_MOVE, kir_x64_vector_bytes(e->b), d, 0, sum);
    emit_step(e, &fused, d, first, rm);
    finish_operands(e, s, i);
}

static void do_runtime_scalar(x64_emitter *e, const x64_step *s, int i) {
    int d = take_result(e, s, i);
    kir_x64_load(e->a, X64_RAX, x64_at(X64_ARGS, (int32_t)offsetof(x64_args, scalars)));
    kir_x64_op3(e, s->wide ? X64_BCAST8 : X64_BCAST4, s->bytes, d, 0,
                x64_at(X64_RAX, s->access * (int32_t)sizeof(kir_value)));
}

static void do_load(x64_emitter *e, const x64_step *s, int i) {
    lock(e, s->a);
    e->next[s->d] = e->next_use[i * OPERANDS + RESULT];
    kir_x64_emit_load(e, s, take_register(e, s->d));
    finish_operands(e, s, i);
}

static void do_store(x64_emitter *e, const x64_step *s, int i) {
    kir_x64_emit_store(e, s);
    finish_operands(e, s, i);
}

static void do_index(x64_emitter *e, const x64_step *s, int i) {
    int d = take_result(e, s, i);
    kir_x64_emit_index(e, s, d);
}

static void do_reduce(x64_emitter *e, const x64_step *s, int i) {
    int place = e->accumulators[s->access][e->copy];
    int acc = place >= 0 ? place : e->scratch[2];
    if (place < 0) load_whole(e, acc, kir_x64_slot(-1 - place));
    kir_x64_combine(e, &e->s->reductions[s->access], acc, kir_x64_place(e, s->a), e->mode == X64_TAIL);
    if (place < 0) store_whole(e, kir_x64_slot(-1 - place), acc);
    finish_operands(e, s, i);
}

/* ---- subnormal operands ------------------------------------------------------------------------------------------ */

/* An operand below 2^-126 makes a multiplication, a division or a root of a whole vector take a hundred cycles and
 * more. An optimiser's running means end there when gradients stay 0. In f64 such numbers are as good as others: a
 * product is exact, and quotients and roots come out as if rounded once, since 53 bits are more than 2 · 24 + 1. A
 * product with a summand is rounded down and up: where that differs, the instruction for f32 does it after all. */

static bool is_rooted(const x64_step *s) { return s->op == X64_SQRTF && s->what == X64_COMPUTE && !s->wide; }

/* Adding takes subnormal operands as others. */
static bool may_be_slow(const x64_step *s) {
    bool slow = s->op == X64_MULF || s->op == X64_DIVF || s->op == X64_SQRTF;
    return !s->wide && (s->what == X64_FUSE || (s->what == X64_COMPUTE && slow));
}

/* Is a step that may be slow made of value v, which `from` makes, or of a difference from it, as a mean moves by? */
static bool is_multiplied(const x64_emitter *e, const x64_step *from, int v, bool differs) {
    for (const x64_step *by = from + 1; by < e->s->steps + e->s->n; by++) {
        if (by->a != v && by->b != v && by->c != v) continue;
        if (may_be_slow(by) || (differs && by->op == X64_SUBF && is_multiplied(e, by, by->d, false))) return true;
    }
    return false;
}

/* Elements side by side, of which more is made than sums. */
static bool is_looked_at(const x64_emitter *e, const x64_step *s) {
    if (s->what != X64_LOAD || s->a >= 0 || e->b->classes[s->access] != X64_NEXT) return false;
    return e->b->p->buffer_dtype[e->b->p->access[s->access].buffer] == TN_F32 && is_multiplied(e, s, s->d, true);
}

/* Roots take so long that looking for such numbers before costs next to nothing; where they can stay, it pays. */
bool kir_x64_heeds_subnormals(const x64_emitter *e) {
    if (!e->b->evex || e->b->lanes != 16 || e->s->n_reductions > 0) return false;
    bool pays = e->b->revises, loads = false;
    for (int i = 0; i < e->s->n && !pays; i++)
        pays = is_rooted(&e->s->steps[i]);
    for (int i = 0; i < e->s->n && pays && !loads; i++)
        loads = is_looked_at(e, &e->s->steps[i]);
    return loads;
}

/* Number `n` of the vectors that are looked at together; what they have is in two masks. */
static void look_for_subnormals(x64_emitter *e, x64_rm at, int n) {
    enum { SUBNORMAL = 0x20 };
    int mask = n > 0 ? X64_FREE_MASK + 1 : X64_FREE_MASK;
    if (n > 1) kir_x64_op3(e, X64_KOR, 32, X64_FREE_MASK, X64_FREE_MASK, x64_reg(mask));
    emit(e, (x64_vec){.op = X64_CLASSF, .bytes = 64, .reg = mask, .rm = at, .imm = SUBNORMAL});
}

/* For a jump if some lane of so many masks is set. */
static void test_masks(x64_emitter *e, int n) {
    kir_x64_op3(e, X64_KORTEST, 16, X64_FREE_MASK, 0, x64_reg(X64_FREE_MASK + (n > 1)));
}

size_t kir_x64_jump_if_subnormal(x64_emitter *e, int copy) {
    e->mode = X64_WHOLE;
    e->copy = copy;
    int n = 0;
    for (int i = 0; i < e->s->n; i++)
        if (is_looked_at(e, &e->s->steps[i])) look_for_subnormals(e, kir_x64_row_at(e, &e->s->steps[i]), n++);
    test_masks(e, n);
    return kir_x64_jump_if(e->a, X64_NE);
}

static void do_in_f32(x64_emitter *e, const x64_step *s, int d) {
    int first = s->a >= 0 ? kir_x64_in_register(e, s->a, e->scratch[0]) : 0;
    x64_step step = *s;
    if (s->what == X64_FUSE) {
        load_whole(e, d, kir_x64_place(e, s->c));
        step.op = X64_FMA231;
    }
    emit_step(e, &step, d, first, kir_x64_place(e, s->b));
}

/* Half of a value, as f64. */
static void widen_x64(x64_emitter *e, int to, int v, int half) {
    x64_rm from = kir_x64_place(e, v);
    if (from.memory && from.pool < 0) from.disp += half * 32;
    if (!from.memory && half) {
        emit(e, (x64_vec){.op = X64_HIGH32, .bytes = 64, .reg = from.reg, .rm = x64_reg(to), .imm = 1});
        from = x64_reg(to);
    }
    kir_x64_op3(e, X64_F2D, 64, to, 0, from);
}

static void op_f64(x64_emitter *e, int op, int d, int first, int second, int rounding) {
    emit(e, (x64_vec){.op = (x64_op)op,
                      .bytes = 64,
                      .wide = true,
                      .reg = d,
                      .first = first,
                      .rm = x64_reg(second),
                      .imm = op == X64_CMPF ? X64_NOT_EQUAL : -1,
                      .rounding = rounding});
}

/* Half of a step's result. The mask of a sum: lanes that f64 has not exactly. Where sums differ in the sign of 0 alone,
 * that of the one rounded up is right. */
static void do_half(x64_emitter *e, const x64_step *s, int half, int d) {
    int x = e->scratch[0], y = e->scratch[1], lower = e->scratch[2];
    if (s->a >= 0) widen_x64(e, x, s->a, half);
    widen_x64(e, y, s->b, half);
    op_f64(e, s->what == X64_FUSE ? X64_MULF : s->op, x, s->a >= 0 ? x : 0, y, 0);
    if (s->what == X64_FUSE) {
        widen_x64(e, y, s->c, half);
        op_f64(e, X64_ADDF, lower, x, y, X64_DOWNWARD);
        op_f64(e, X64_ADDF, x, x, y, X64_UPWARD);
        op_f64(e, X64_CMPF, X64_FREE_MASK + half, x, lower, 0);
    }
    kir_x64_op3(e, X64_D2F, 64, d, 0, x64_reg(x));
}

static void do_in_f64(x64_emitter *e, const x64_step *s, int d, size_t in_f32) {
    int lower = e->scratch[0];
    do_half(e, s, 1, d);
    do_half(e, s, 0, lower);
    if (s->what == X64_FUSE) {
        test_masks(e, 2);
        kir_x64_jump_back_if(e->a, X64_NE, in_f32);
    }
    emit(e, (x64_vec){.op = X64_JOIN32, .bytes = 64, .reg = d, .first = lower, .rm = x64_reg(d), .imm = 1});
}

/* The result has a register that is no operand's. */
static void do_with_care(x64_emitter *e, const x64_step *s, int i) {
    const int16_t operands[3] = {s->a, s->b, s->c};
    for (int k = 0; k < 3; k++)
        lock(e, operands[k]);
    e->next[s->d] = e->next_use[i * OPERANDS + RESULT];
    int d = take_register(e, s->d);
    int n = 0;
    for (int k = 0; k < 3; k++)
        if (operands[k] >= 0) look_for_subnormals(e, kir_x64_place(e, operands[k]), n++);
    test_masks(e, n);
    size_t slow = kir_x64_jump_if(e->a, X64_NE), in_f32 = e->a->n;
    do_in_f32(e, s, d);
    size_t done = kir_x64_jump(e->a);
    kir_x64_land(e->a, slow);
    do_in_f64(e, s, d, in_f32);
    kir_x64_land(e->a, done);
    finish_operands(e, s, i);
}

typedef void do_fn(x64_emitter *e, const x64_step *s, int i);
static do_fn *const DO[] = {
    [X64_COMPUTE] = do_compute, [X64_COMPARE] = do_compute,       [X64_FUSE] = do_fuse,     [X64_CHOOSE] = do_choose,
    [X64_LOGIC] = do_logic,     [X64_EXTRACT] = do_extract,       [X64_LOAD] = do_load,     [X64_STORE] = do_store,
    [X64_INDEX] = do_index,     [X64_SCALAR] = do_runtime_scalar, [X64_REDUCE] = do_reduce,
};

/* ---- reductions -------------------------------------------------------------------------------------------------- */

static x64_op combiner(const x64_reduction *r) {
    static const uint8_t floats[] = {
        [KIR_SUM] = X64_ADDF, [KIR_PROD] = X64_MULF, [KIR_RMAX] = X64_MAXF, [KIR_RMIN] = X64_MINF};
    static const uint8_t integers[] = {
        [KIR_SUM] = X64_ADDI, [KIR_PROD] = X64_MULI, [KIR_RMAX] = X64_MAXS, [KIR_RMIN] = X64_MINS};
    kir_type t = (kir_type)r->type;
    if (kir_is_float(t)) return (x64_op)floats[r->kind];
    if (r->kind == KIR_SUM && kir_type_size(t) == 8) return X64_ADDQ;
    if (r->kind >= KIR_RMAX && (t == KIR_U32 || t == KIR_U64)) return r->kind == KIR_RMAX ? X64_MAXU : X64_MINU;
    return (x64_op)integers[r->kind];
}

/* A NaN among the partial results stays: an extreme is not sought there. */
static void combine_evex(x64_emitter *e, const x64_reduction *r, int acc, x64_rm x, bool tail) {
    bool wide = kir_type_size((kir_type)r->type) == 8;
    x64_vec v = {.op = combiner(r), .bytes = e->b->lanes * (wide ? 8 : 4), .wide = wide, .reg = acc, .imm = -1};
    v.first = acc;
    v.rm = x;
    v.mask = tail ? X64_TAIL_MASK : 0;
    if (v.op == X64_MAXF || v.op == X64_MINF) {
        x64_vec ordered = v;
        ordered.op = X64_CMPF;
        ordered.reg = X64_FREE_MASK;
        ordered.rm = x64_reg(acc);
        ordered.imm = X64_ORDERED;
        emit(e, ordered);
        v.mask = X64_FREE_MASK;
    }
    emit(e, v);
}

static void combine_vex(x64_emitter *e, const x64_reduction *r, int acc, x64_rm x, bool tail) {
    int a = e->scratch[0], b = e->scratch[1];
    x64_op op = combiner(r);
    bool extreme = op == X64_MAXF || op == X64_MINF;
    x64_vec blend = {.op = X64_BLENDV, .bytes = 32, .imm = a << 4};
    if (!extreme && !tail) {
        kir_x64_op3(e, op, 32, acc, acc, x);
        return;
    }
    kir_x64_op3(e, op, 32, b, acc, x);
    if (extreme) {
        emit(e,
             (x64_vec){.op = X64_CMPF, .bytes = 32, .reg = a, .first = acc, .rm = x64_reg(acc), .imm = X64_UNORDERED});
        blend.reg = tail ? b : acc;
        blend.first = b;
        blend.rm = x64_reg(acc);
        emit(e, blend);
    }
    if (!tail) return;
    blend.imm = e->tail << 4;
    blend.reg = acc;
    blend.first = acc;
    blend.rm = x64_reg(b);
    emit(e, blend);
}

void kir_x64_combine(x64_emitter *e, const x64_reduction *r, int acc, x64_rm x, bool tail) {
    if (e->b->evex)
        combine_evex(e, r, acc, x, tail);
    else
        combine_vex(e, r, acc, x, tail);
}

/* ---- a segment --------------------------------------------------------------------------------------------------- */

static void find_uses(x64_emitter *e) {
    for (int v = 0; v < e->b->n_values; v++)
        e->next[v] = NEVER;
    for (int i = e->s->n - 1; i >= 0; i--) {
        const x64_step *s = &e->s->steps[i];
        const int16_t operands[3] = {s->a, s->b, s->c};
        int16_t *use = &e->next_use[i * OPERANDS];
        use[RESULT] = s->d >= 0 ? e->next[s->d] : NEVER;
        for (int k = 0; k < 3; k++)
            use[k] = operands[k] >= 0 ? e->next[operands[k]] : NEVER;
        for (int k = 0; k < 3; k++) {
            if (operands[k] >= 0) e->next[operands[k]] = (int16_t)i;
        }
    }
}

/* The most vector registers that the body's own values take at once. */
static int pressure_of(const x64_emitter *e) {
    int live = 0, most = 0;
    for (int i = 0; i < e->s->n; i++) {
        const x64_step *s = &e->s->steps[i];
        const int16_t operands[3] = {s->a, s->b, s->c};
        for (int k = 0; k < 3; k++) {
            int v = operands[k];
            bool again = (k > 0 && operands[0] == v) || (k > 1 && operands[1] == v);
            if (v < 0 || again || !is_local(e, v) || class_of(e, v) != X64_VECTORS) continue;
            live -= e->next_use[i * OPERANDS + k] == NEVER;
        }
        if (s->d >= 0 && class_of(e, s->d) == X64_VECTORS) {
            if (live + 1 > most) most = live + 1;
            live += e->next_use[i * OPERANDS + RESULT] != NEVER;
        }
    }
    return most;
}

/* Partial results live in registers when there is room for all. Returns how many registers they take. */
static int place_accumulators(x64_emitter *e, int room) {
    int need = e->s->n_reductions * e->copies;
    bool fits = need <= room;
    for (int k = 0; k < need; k++) {
        int16_t *place = &e->accumulators[k / e->copies][k % e->copies];
        if (fits) {
            *place = (int16_t)(e->n_vectors - 1 - k);
            e->owner[X64_VECTORS][*place] = SET_ASIDE;
        } else {
            *place = (int16_t)(-1 - kir_x64_take_slot(e->b));
        }
    }
    return fits ? need : 0;
}

/* Gives the registers that are left to what the body reads most from memory. */
static void pin(x64_emitter *e, int first, int room, int16_t *uses) {
    memset(uses, 0, (size_t)e->b->n_values * sizeof *uses);
    for (int i = 0; i < e->s->n; i++) {
        const x64_step *s = &e->s->steps[i];
        const int16_t operands[3] = {s->a, s->b, s->c};
        for (int k = 0; k < 3; k++) {
            int v = operands[k];
            if (v >= 0 && !is_local(e, v) && class_of(e, v) == X64_VECTORS) uses[v]++;
        }
    }
    for (; room > 0; room--, first--) {
        int best = 0;
        for (int v = 1; v < e->b->n_values; v++) {
            if (uses[v] > uses[best]) best = v;
        }
        if (uses[best] == 0) return;
        uses[best] = 0;
        load_whole(e, first, kir_x64_place(e, best));
        e->owner[X64_VECTORS][first] = SET_ASIDE;
        e->in[best] = (int16_t)first;
    }
}

void kir_x64_segment_begin(x64_emitter *e, int segment, int copies) {
    e->s = &e->b->segments[segment];
    e->index = segment;
    e->copies = copies;
    memset(e->in, 0xff, (size_t)e->b->n_values * sizeof *e->in);
    memset(e->owner, 0xff, sizeof e->owner);
    find_uses(e);
    int room = e->n_vectors - pressure_of(e) - 1;
    int taken = place_accumulators(e, room);
    if (e->s->loop) pin(e, e->n_vectors - 1 - taken, room - taken, e->next);
}

void kir_x64_segment_body(x64_emitter *e, x64_mode mode, int copy) {
    e->mode = mode;
    e->copy = copy;
    e->body++;
    for (int class = 0; class < 2; class ++) {
        for (int r = 0; r < 32; r++) {
            if (e->owner[class][r] >= 0) e->in[e->owner[class][r]] = -1;
            if (e->owner[class][r] != SET_ASIDE) e->owner[class][r] = FREE;
        }
    }
    for (int i = 0; i < e->s->n && !e->b->refusal; i++) {
        const x64_step *s = &e->s->steps[i];
        memset(e->locked, 0, sizeof e->locked);
        (e->careful && may_be_slow(s) ? do_with_care : DO[s->what])(e, s, i);
        if (s->d < 0) continue;
        if (e->b->values[s->d].slot >= 0) to_slot(e, s->d, e->in[s->d]);
        if (e->next[s->d] == NEVER) give_back(e, s->d);
    }
}

tn_status kir_x64_emitter_open(x64_emitter *e, x64_build *b) {
    size_t values = (size_t)b->n_values + 1, most = 1;
    for (int i = 0; i < b->n_segments; i++) {
        if ((size_t)b->segments[i].n > most) most = (size_t)b->segments[i].n;
    }
    *e = (x64_emitter){.b = b, .a = b->a};
    int16_t *tables = tn_mem_zalloc(3 * values + OPERANDS * most, sizeof *tables);
    if (!tables) return TN_ERR_MEMORY;
    e->in = tables;
    e->next = e->in + values;
    e->stored = e->next + values;
    e->next_use = e->stored + values;
    e->n_vectors = b->evex ? 29 : 12;
    e->tail = 15;
    for (int k = 0; k < 3; k++)
        e->scratch[k] = e->n_vectors + k;
    return TN_OK;
}

void kir_x64_emitter_close(x64_emitter *e) { tn_mem_free(e->in); }
