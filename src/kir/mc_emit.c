/* mc_emit.c — steps of a segment as instructions: register allocation, loads and stores. */
#include <stddef.h>
#include <string.h>

#include "kir/machine_code.h"
#include "kir/rules.h"

/* ==== steps to code =============================================================================================== */
/* A body is a straight line, so registers are allocated in one forward pass that knows the next use of every value; if
 * none is free, the value whose next use is farthest is spilled to the stack. Constants and values of other segments
 * are in memory as whole vectors, usable as operands; registers that the body leaves free hold those it reads most. */

enum { NEVER = INT16_MAX, FREE = -1, SET_ASIDE = -2, OPERANDS = 4, RESULT = 3 };
enum { MASK_FIRST = 4, MASK_END = 8 }; /* mask registers given out; 1 … 3 have other uses */

int kir_mc_vector_bytes(const mc_build *b) { return b->a->vector; }

static int class_of(const mc_emitter *e, int v) { return e->b->values[v].mask ? MC_MASKS : MC_VECTORS; }

static bool is_local(const mc_emitter *e, int v) { return e->b->values[v].segment == e->index; }

mc_rm kir_mc_slot(int slot) { return mc_at(MC_STACK, slot * 64); }

/* ---- instructions ------------------------------------------------------------------------------------------------ */

static void emit(mc_emitter *e, mc_vec v) { kir_mc_emit(e->a, &v); }

void kir_mc_op3(mc_emitter *e, mc_op op, int bytes, int d, int first, mc_rm rm) {
    emit(e, (mc_vec){.op = op, .bytes = bytes, .reg = d, .first = first, .rm = rm, .imm = -1});
}

static void load_whole(mc_emitter *e, int d, mc_rm from) {
    kir_mc_op3(e, MC_LOADU, kir_mc_vector_bytes(e->b), d, 0, from);
}

static void store_whole(mc_emitter *e, mc_rm to, int reg) {
    kir_mc_op3(e, MC_STOREU, kir_mc_vector_bytes(e->b), reg, 0, to);
}

static void to_slot(mc_emitter *e, int v, int reg) {
    mc_rm slot = kir_mc_slot(e->b->values[v].slot);
    if (e->b->values[v].mask)
        kir_mc_op3(e, MC_KSTORE, 16, reg, 0, slot);
    else
        store_whole(e, slot, reg);
    e->stored[v] = e->body;
}

/* ---- registers --------------------------------------------------------------------------------------------------- */

static int first_register(int class) { return class == MC_MASKS ? MASK_FIRST : 0; }
static int end_register(const mc_emitter *e, int class) { return class == MC_MASKS ? MASK_END : e->n_vectors; }

static void give_back(mc_emitter *e, int v) {
    int reg = e->in[v];
    if (reg < 0 || !is_local(e, v)) return;
    e->owner[class_of(e, v)][reg] = FREE;
    e->in[v] = -1;
}

static void evict(mc_emitter *e, int v) {
    if (e->b->values[v].slot < 0) e->b->values[v].slot = (int16_t)kir_mc_take_slot(e->b);
    if (e->stored[v] != e->body) to_slot(e, v, e->in[v]);
    give_back(e, v);
}

/* A register for value v; the operands of the current step are locked. */
static int take_register(mc_emitter *e, int v) {
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
        kir_mc_refuse(e->b, "too few registers");
        return first_register(class);
    }
    if (e->owner[class][worst] >= 0) evict(e, e->owner[class][worst]);
    e->owner[class][worst] = (int16_t)v;
    e->in[v] = (int16_t)worst;
    e->locked[class][worst] = true;
    return worst;
}

mc_rm kir_mc_place(mc_emitter *e, int v) {
    if (e->in[v] >= 0) return mc_reg(e->in[v]);
    const mc_value *value = &e->b->values[v];
    return value->pool >= 0 ? mc_pool(value->pool) : kir_mc_slot(value->slot);
}

/* The register of v; if v has none, it is loaded into `scratch`. */
static int in_register(mc_emitter *e, int v, int scratch) {
    if (e->in[v] >= 0) return e->in[v];
    if (e->b->values[v].mask)
        kir_mc_op3(e, MC_KLOAD, 16, scratch, 0, kir_mc_place(e, v));
    else
        load_whole(e, scratch, kir_mc_place(e, v));
    return scratch;
}

static void lock(mc_emitter *e, int v) {
    if (v >= 0 && e->in[v] >= 0) e->locked[class_of(e, v)][e->in[v]] = true;
}

/* After step i has read its operands: values without a later use release their registers. */
static void finish_operands(mc_emitter *e, const mc_step *s, int i) {
    const int16_t operands[3] = {s->a, s->b, s->c};
    for (int k = 0; k < 3; k++) {
        int v = operands[k];
        if (v < 0) continue;
        e->next[v] = e->next_use[i * OPERANDS + k];
        if (e->next[v] == NEVER) give_back(e, v);
    }
}

static int take_result(mc_emitter *e, const mc_step *s, int i) {
    memset(e->locked, 0, sizeof e->locked);
    e->next[s->d] = e->next_use[i * OPERANDS + RESULT];
    return take_register(e, s->d);
}

/* ==== loads, stores and indices =================================================================================== */
/* Contiguous elements are moved as vectors, under a mask if only some may be accessed. Everything else (one element in
 * all lanes under a mask; without AVX-512, elements of other than 4 bytes under a mask) is moved element by element
 * through a vector of the stack. */

static int32_t field(size_t array, int access) { return (int32_t)(array + (size_t)access * sizeof(int64_t)); }

static int base_of(mc_emitter *e, int access) {
    if (e->pointer[access] >= 0) return e->pointer[access];
    kir_mc_load(e->a, MC_TEMP, mc_at(MC_ARGS, field(offsetof(mc_args, at), access)));
    return MC_TEMP;
}

static int shift_of(int size) { return kir_log2((size_t)size); }

static mc_class class_at(const mc_emitter *e, const mc_step *s) {
    return e->mode == MC_ROW ? MC_SAME : (mc_class)e->b->classes[s->access];
}

/* From MC_I to the element of lane 0. */
static int ahead(const mc_emitter *e) { return e->mode == MC_WHOLE ? e->copy * e->b->lanes : 0; }

/* ARM64: the register with the address of lane 0's element, which the last step that uses it moves on; or -1. */
static int moving_pointer(const mc_emitter *e, const mc_step *s) {
    return MC_NEON && class_at(e, s) == MC_NEXT ? e->pointer[s->access] : -1;
}

/* Bytes to move it by at this step. */
static int advance_of(const mc_emitter *e, const mc_step *s) {
    bool moves = moving_pointer(e, s) >= 0 && e->mode != MC_TAIL && e->last_use[s->access] == s - e->s->steps;
    return moves ? e->b->lanes * s->size : 0;
}

/* The elements of lane 0 on, side by side. */
static mc_rm row_at(mc_emitter *e, const mc_step *s) {
    if (moving_pointer(e, s) < 0) return mc_indexed(base_of(e, s->access), MC_I, shift_of(s->size), ahead(e) * s->size);
    mc_rm at = mc_at(moving_pointer(e, s), 0);
    at.advance = (uint8_t)advance_of(e, s);
    return at;
}

static mc_vec transfer(const mc_step *s, int reg, mc_rm rm) {
    return (mc_vec){.op = (mc_op)s->op, .bytes = s->bytes, .wide = s->wide, .reg = reg, .rm = rm, .imm = s->imm};
}

/* ---- element by element ------------------------------------------------------------------------------------------ */

/* MC_WALK: the address of lane 0's element, MC_STEP: bytes to the next one. */
static void begin_walk(mc_emitter *e, const mc_step *s) {
    kir_mc_load(e->a, MC_STEP, mc_at(MC_ARGS, field(offsetof(mc_args, step), s->access)));
    if (moving_pointer(e, s) >= 0) {
        kir_mc_move(e->a, MC_WALK, moving_pointer(e, s));
        return;
    }
    kir_mc_address(e->a, MC_WALK, mc_at(MC_I, ahead(e)));
    kir_mc_multiply(e->a, MC_WALK, MC_STEP);
    kir_mc_add(e->a, MC_WALK, base_of(e, s->access));
}

static void mask_to_bits(mc_emitter *e, int mask) {
    if (e->b->evex) {
        int k = in_register(e, mask, MC_FREE_MASK);
        kir_mc_op3(e, MC_KTO, 16, MC_BITS, 0, mc_reg(k));
        return;
    }
    int of = in_register(e, mask, e->scratch[1]);
    kir_mc_op3(e, MC_MOVEMASK, kir_mc_vector_bytes(e->b), MC_BITS, 0, mc_reg(of));
}

/* Moves the elements of the lanes that exist, and that the mask lets through, between memory and the scratch slot. */
static void walk_mc(mc_emitter *e, const mc_step *s, int mask, bool load) {
    mc_rm lane = mc_indexed(MC_STACK, MC_COUNT, shift_of(s->size), MC_SCRATCH_SLOT * 64), element = mc_at(MC_WALK, 0);
    if (mask >= 0) mask_to_bits(e, mask);
    begin_walk(e, s);
    kir_mc_set(e->a, MC_COUNT, 0);
    size_t again = e->a->n, skip = 0;
    if (mask >= 0) {
        kir_mc_test_bit(e->a, MC_BITS, MC_COUNT);
        skip = kir_mc_jump_if(e->a, MC_AE);
    }
    kir_mc_load_element(e->a, MC_TEMP, load ? element : lane, s->size);
    kir_mc_store_element(e->a, load ? lane : element, MC_TEMP, s->size);
    if (mask >= 0) kir_mc_land(e->a, skip);
    kir_mc_add(e->a, MC_WALK, MC_STEP);
    kir_mc_add_imm(e->a, MC_COUNT, 1);
    if (e->mode == MC_TAIL)
        kir_mc_compare(e->a, MC_COUNT, MC_LEFT);
    else
        kir_mc_compare_imm(e->a, MC_COUNT, e->b->lanes);
    kir_mc_jump_back_if(e->a, MC_B, again);
    if (advance_of(e, s)) kir_mc_add_imm(e->a, moving_pointer(e, s), advance_of(e, s));
}

/* ---- looking ahead ----------------------------------------------------------------------------------------------- */

/* A long body hides the next accesses from the processor, which looks ahead some hundred instructions, and whose own
 * prefetching stops at every page. Shorter bodies reach their next lines by themselves. */
enum { LONG_BODY = 20, AHEAD_BYTES = 2048, LINE = 64 };

static void look_ahead_mc(mc_emitter *e, const mc_step *s) {
    int at = e->copy * e->b->lanes * s->size;
    if (MC_NEON || e->mode != MC_WHOLE || e->s->n < LONG_BODY || class_at(e, s) != MC_NEXT || at % LINE != 0) return;
    mc_rm line = row_at(e, s);
    line.disp += AHEAD_BYTES;
    kir_mc_ask_for(e->a, line);
}

/* ---- loads ------------------------------------------------------------------------------------------------------- */

/* One element in all lanes. */
static void load_same(mc_emitter *e, const mc_step *s, int d) {
    static const uint8_t spreads[] = {MC_BCAST1, MC_BCAST2, MC_BCAST4, MC_BCAST8};
    kir_mc_op3(e, (mc_op)spreads[shift_of(s->size)], s->bytes, d, 0, mc_at(base_of(e, s->access), 0));
    if (s->size >= 4) return;
    mc_vec convert = transfer(s, d, mc_reg(d));
    kir_mc_emit(e->a, &convert);
}

static void load_walking(mc_emitter *e, const mc_step *s, int d) {
    if (s->a >= 0) {
        kir_mc_op3(e, MC_XOR, kir_mc_vector_bytes(e->b), e->scratch[0], e->scratch[0], mc_reg(e->scratch[0]));
        kir_mc_op3(e, MC_STOREU, kir_mc_vector_bytes(e->b), e->scratch[0], 0, kir_mc_slot(MC_SCRATCH_SLOT));
    }
    walk_mc(e, s, s->a, true);
    mc_vec convert = transfer(s, d, kir_mc_slot(MC_SCRATCH_SLOT));
    kir_mc_emit(e->a, &convert);
}

/* The mask of a vector, in a register: of the step, of the lanes that exist, or both; -1: none. */
static int mc_mask_of(mc_emitter *e, int mask) {
    int free = e->b->evex ? MC_FREE_MASK : e->scratch[1], tail = e->b->evex ? MC_TAIL_MASK : e->tail;
    int own = mask >= 0 ? in_register(e, mask, free) : -1;
    if (e->mode != MC_TAIL) return own;
    if (mask < 0) return tail;
    kir_mc_op3(e, e->b->evex ? MC_KAND : MC_AND, 32, free, own, mc_reg(tail));
    return free;
}

static bool passes_caches(const mc_emitter *e, const mc_step *s) {
    return e->b->streams && s->op == MC_STOREU && s->bytes == kir_mc_vector_bytes(e->b);
}

/* Moves whole vectors, or under a mask some lanes; without AVX-512 only elements of 4 bytes can be so. */
static void move_vector(mc_emitter *e, const mc_step *s, int reg, int mask, bool load) {
    int of = mc_mask_of(e, mask);
    mc_vec v = transfer(s, reg, row_at(e, s));
    if (of >= 0 && e->b->evex) {
        v.mask = of;
        v.zeroing = load;
    } else if (of >= 0) {
        v.op = load ? MC_LOAD_SOME : MC_STORE_SOME;
        v.first = of;
    } else if (!load && passes_caches(e, s)) {
        v.op = MC_STREAM;
    }
    kir_mc_emit(e->a, &v);
}

static bool moves_at_once(const mc_emitter *e, const mc_step *s, int mask) {
    if (class_at(e, s) != MC_NEXT) return false;
    return e->b->evex || (!MC_NEON && s->size == 4) || (mask < 0 && e->mode != MC_TAIL);
}

static void emit_load(mc_emitter *e, const mc_step *s, int d) {
    look_ahead_mc(e, s);
    if (class_at(e, s) == MC_SAME && s->a < 0) {
        load_same(e, s, d);
        return;
    }
    if (!moves_at_once(e, s, s->a)) {
        load_walking(e, s, d);
        return;
    }
    move_vector(e, s, d, s->a, true);
}

/* ---- stores ------------------------------------------------------------------------------------------------------ */

static void store_one(mc_emitter *e, const mc_step *s) {
    kir_mc_load_element(e->a, MC_COUNT, kir_mc_slot(MC_SCRATCH_SLOT), s->size);
    kir_mc_store_element(e->a, mc_at(base_of(e, s->access), 0), MC_COUNT, s->size);
}

static void emit_store(mc_emitter *e, const mc_step *s) {
    if (!passes_caches(e, s)) look_ahead_mc(e, s);
    int value = in_register(e, s->a, e->scratch[0]);
    if (e->mode != MC_ROW && moves_at_once(e, s, s->b)) {
        move_vector(e, s, value, s->b, false);
        return;
    }
    mc_vec v = transfer(s, value, kir_mc_slot(MC_SCRATCH_SLOT));
    kir_mc_emit(e->a, &v);
    if (e->mode == MC_ROW)
        store_one(e, s);
    else
        walk_mc(e, s, s->b, false);
}

/* ---- indices ----------------------------------------------------------------------------------------------------- */

/* first + (lane + element) · step; along a row segment there is only the first. */
static void emit_index(mc_emitter *e, const mc_step *s, int d) {
    kir_mc_load(e->a, MC_WALK, mc_at(MC_ARGS, field(offsetof(mc_args, at), s->access)));
    mc_class class = class_at(e, s);
    if (class != MC_SAME) {
        kir_mc_load(e->a, MC_STEP, mc_at(MC_ARGS, field(offsetof(mc_args, step), s->access)));
        kir_mc_address(e->a, MC_COUNT, mc_at(MC_I, ahead(e)));
        kir_mc_multiply(e->a, MC_COUNT, MC_STEP);
        kir_mc_add(e->a, MC_WALK, MC_COUNT);
    }
    kir_mc_op3(e, MC_FROM_R64, 16, d, 0, mc_reg(MC_WALK));
    kir_mc_op3(e, MC_BCAST8, s->bytes, d, 0, mc_reg(d));
    if (class == MC_SAME) return;
    mc_rm ramp = kir_mc_place(e, s->a);
    if (class == MC_FAR) {
        kir_mc_op3(e, MC_FROM_R64, 16, e->scratch[0], 0, mc_reg(MC_STEP));
        kir_mc_op3(e, MC_BCAST8, s->bytes, e->scratch[0], 0, mc_reg(e->scratch[0]));
        mc_vec scaled = {.op = MC_MULI, .bytes = s->bytes, .wide = true, .imm = -1};
        scaled.reg = scaled.first = e->scratch[0];
        scaled.rm = ramp;
        kir_mc_emit(e->a, &scaled);
        ramp = mc_reg(e->scratch[0]);
    }
    kir_mc_op3(e, MC_ADDQ, s->bytes, d, d, ramp);
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static bool commutes(mc_op op) {
    return op == MC_ADDF || op == MC_MULF || op == MC_ADDI || op == MC_ADDQ || op == MC_MULI || op == MC_AND ||
           op == MC_OR || op == MC_XOR;
}

/* Result and operands are in registers by now, or in memory where that is allowed. */
static void emit_step(mc_emitter *e, const mc_step *s, int d, int first, mc_rm rm) {
    emit(
        e,
        (mc_vec){
            .op = (mc_op)s->op, .bytes = s->bytes, .wide = s->wide, .reg = d, .first = first, .rm = rm, .imm = s->imm});
}

static void do_compute(mc_emitter *e, const mc_step *s, int i) {
    bool in_registers = s->op == MC_Q2I || s->op == MC_SLL || s->op == MC_SRL || s->op == MC_SRA;
    int a = s->a, b = s->b;
    if (a >= 0 && e->in[a] < 0 && e->in[b] >= 0 && commutes((mc_op)s->op)) {
        a = s->b;
        b = s->a;
    }
    int first = a >= 0 ? in_register(e, a, e->scratch[0]) : 0;
    mc_rm rm = in_registers ? mc_reg(in_register(e, b, e->scratch[1])) : kir_mc_place(e, b);
    finish_operands(e, s, i);
    int d = take_result(e, s, i);
    if (s->op == MC_Q2I)
        emit_step(e, s, rm.reg, 0, mc_reg(d));
    else
        emit_step(e, s, d, first, rm);
}

static void do_logic(mc_emitter *e, const mc_step *s, int i) {
    int first = s->a >= 0 ? in_register(e, s->a, MC_FREE_MASK) : 0;
    int second = in_register(e, s->b, MC_FREE_MASK + 1);
    finish_operands(e, s, i);
    emit_step(e, s, take_result(e, s, i), first, mc_reg(second));
}

static void do_extract(mc_emitter *e, const mc_step *s, int i) {
    int from = in_register(e, s->a, e->scratch[0]);
    finish_operands(e, s, i);
    emit_step(e, s, from, 0, mc_reg(take_result(e, s, i)));
}

/* May the step that reads v last write over it? */
static bool dies(const mc_emitter *e, int v, int i, int k) {
    return e->in[v] >= 0 && is_local(e, v) && e->next_use[i * OPERANDS + k] == NEVER;
}

/* The result takes over the register of value v. */
static int take_over(mc_emitter *e, const mc_step *s, int i, int v) {
    int reg = e->in[v];
    finish_operands(e, s, i);
    e->next[s->d] = e->next_use[i * OPERANDS + RESULT];
    e->in[s->d] = (int16_t)reg;
    e->owner[MC_VECTORS][reg] = s->d;
    return reg;
}

static void do_choose(mc_emitter *e, const mc_step *s, int i) {
    int first = in_register(e, s->a, e->scratch[0]);
    int mask = in_register(e, s->c, e->b->evex ? MC_FREE_MASK : e->scratch[1]);
    mc_rm rm = kir_mc_place(e, s->b);
    /* NEON changes one of the three. */
    int over = dies(e, s->c, i, 2) ? s->c : dies(e, s->a, i, 0) ? s->a : dies(e, s->b, i, 1) ? s->b : -1;
    mc_vec v = {.op = (mc_op)s->op, .bytes = s->bytes, .wide = s->wide};
    if (MC_NEON && over >= 0) {
        v.reg = take_over(e, s, i, over);
    } else {
        finish_operands(e, s, i);
        v.reg = take_result(e, s, i);
    }
    v.first = first;
    v.rm = rm;
    v.mask = e->b->evex ? mask : 0;
    v.imm = e->b->evex ? -1 : mask << 4;
    emit(e, v);
}

/* The result's register holds a factor (213) or the summand (231) before. */
static void do_fuse(mc_emitter *e, const mc_step *s, int i) {
    mc_step fused = *s;
    int factor = MC_NEON ? -1 : dies(e, s->a, i, 0) ? s->a : dies(e, s->b, i, 1) ? s->b : -1; /* NEON has 231 only */
    if (factor >= 0) {
        int first = in_register(e, factor == s->a ? s->b : s->a, e->scratch[0]);
        mc_rm rm = kir_mc_place(e, s->c);
        emit_step(e, &fused, take_over(e, s, i, factor), first, rm);
        return;
    }
    bool a_first = e->in[s->a] >= 0;
    int first = in_register(e, a_first ? s->a : s->b, e->scratch[0]);
    mc_rm rm = kir_mc_place(e, a_first ? s->b : s->a), sum = kir_mc_place(e, s->c);
    fused.op = MC_FMA231;
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
        kir_mc_op3(e, MC_MOVE, kir_mc_vector_bytes(e->b), d, 0, sum);
    emit_step(e, &fused, d, first, rm);
    finish_operands(e, s, i);
}

static void do_runtime_scalar(mc_emitter *e, const mc_step *s, int i) {
    int d = take_result(e, s, i);
    kir_mc_load(e->a, MC_TEMP, mc_at(MC_ARGS, (int32_t)offsetof(mc_args, scalars)));
    kir_mc_op3(e, s->wide ? MC_BCAST8 : MC_BCAST4, s->bytes, d, 0,
               mc_at(MC_TEMP, s->access * (int32_t)sizeof(kir_value)));
}

/* Is this the only step of the segment that uses its access? */
static bool uses_alone(const mc_emitter *e, const mc_step *s) {
    for (const mc_step *other = e->s->steps; other < s; other++)
        if ((other->what == MC_LOAD || other->what == MC_STORE) && other->access == s->access) return false;
    return e->last_use[s->access] == s - e->s->steps;
}

/* ARM64: a loop without stores loads vectors of two copies at once, while there are registers to spare. Returns the
 * register for the second one, or -1. Another step with this access would find its address moved. */
static int take_twin(mc_emitter *e, const mc_step *s) {
    if (e->spare == 0 || e->mode != MC_WHOLE || e->copy % 2 != 0 || s->op != MC_LOADU || s->a >= 0) return -1;
    if (row_at(e, s).advance == 0 || !uses_alone(e, s)) return -1;
    int r = 0;
    while (r < e->n_vectors && e->owner[MC_VECTORS][r] != FREE)
        r++;
    if (r == e->n_vectors) return -1;
    e->spare--;
    e->owner[MC_VECTORS][r] = SET_ASIDE;
    return e->twin[s->access] = (int16_t)r;
}

static void do_load(mc_emitter *e, const mc_step *s, int i) {
    e->next[s->d] = e->next_use[i * OPERANDS + RESULT];
    int known = e->twin[s->access];
    if (known >= 0) {
        e->twin[s->access] = -1;
        e->spare++;
        e->owner[MC_VECTORS][known] = s->d;
        e->in[s->d] = (int16_t)known;
        return;
    }
    lock(e, s->a);
    int d = take_register(e, s->d), twin = take_twin(e, s);
    if (twin >= 0) {
        mc_rm both = row_at(e, s);
        both.advance = 32;
        kir_mc_op3(e, MC_LOADU, 16, d, twin, both);
    } else {
        emit_load(e, s, d);
    }
    finish_operands(e, s, i);
}

static void do_store(mc_emitter *e, const mc_step *s, int i) {
    emit_store(e, s);
    finish_operands(e, s, i);
}

static void do_index(mc_emitter *e, const mc_step *s, int i) {
    int d = take_result(e, s, i);
    emit_index(e, s, d);
}

static void do_reduce(mc_emitter *e, const mc_step *s, int i) {
    int place = e->accumulators[s->access][e->copy];
    int acc = place >= 0 ? place : e->scratch[2];
    if (place < 0) load_whole(e, acc, kir_mc_slot(-1 - place));
    kir_mc_combine(e, &e->s->reductions[s->access], acc, kir_mc_place(e, s->a), e->mode == MC_TAIL);
    if (place < 0) store_whole(e, kir_mc_slot(-1 - place), acc);
    finish_operands(e, s, i);
}

/* ---- subnormal operands ------------------------------------------------------------------------------------------ */

/* An operand below 2^-126 makes a vector multiplication, division or square root take a hundred cycles or more. An
 * optimizer's running means become so small when gradients stay 0. In f64 such numbers are normal: a product is exact,
 * and quotients and roots are rounded as if once, because 53 bits are more than 2 · 24 + 1. A product plus a summand is
 * rounded down and up; if these differ, the f32 instruction is used after all. */

static bool is_rooted(const mc_step *s) { return s->op == MC_SQRTF && s->what == MC_COMPUTE && !s->wide; }

/* Adding takes subnormal operands as others. */
static bool may_be_slow(const mc_step *s) {
    bool slow = s->op == MC_MULF || s->op == MC_DIVF || s->op == MC_SQRTF;
    return !s->wide && (s->what == MC_FUSE || (s->what == MC_COMPUTE && slow));
}

/* Is a step that may be slow made of value v, which `from` makes, or of a difference from it, as a mean moves by? */
static bool is_multiplied(const mc_emitter *e, const mc_step *from, int v, bool differs) {
    for (const mc_step *by = from + 1; by < e->s->steps + e->s->n; by++) {
        if (by->a != v && by->b != v && by->c != v) continue;
        if (may_be_slow(by) || (differs && by->op == MC_SUBF && is_multiplied(e, by, by->d, false))) return true;
    }
    return false;
}

/* Contiguous elements from which more than sums is computed. */
static bool is_looked_at(const mc_emitter *e, const mc_step *s) {
    if (s->what != MC_LOAD || s->a >= 0 || e->b->classes[s->access] != MC_NEXT) return false;
    return e->b->p->buffer_dtype[e->b->p->access[s->access].buffer] == TN_F32 && is_multiplied(e, s, s->d, true);
}

/* Square roots take so long that testing for such numbers first costs almost nothing, and it pays if they may occur. */
bool kir_mc_heeds_subnormals(const mc_emitter *e) {
    if (!e->b->evex || e->b->lanes != 16 || e->s->n_reductions > 0) return false;
    bool pays = e->b->revises, loads = false;
    for (int i = 0; i < e->s->n && !pays; i++)
        pays = is_rooted(&e->s->steps[i]);
    for (int i = 0; i < e->s->n && pays && !loads; i++)
        loads = is_looked_at(e, &e->s->steps[i]);
    return loads;
}

/* Number `n` of the vectors that are looked at together; what they have is in two masks. */
static void look_for_subnormals(mc_emitter *e, mc_rm at, int n) {
    enum { SUBNORMAL = 0x20 };
    int mask = n > 0 ? MC_FREE_MASK + 1 : MC_FREE_MASK;
    if (n > 1) kir_mc_op3(e, MC_KOR, 32, MC_FREE_MASK, MC_FREE_MASK, mc_reg(mask));
    emit(e, (mc_vec){.op = MC_CLASSF, .bytes = 64, .reg = mask, .rm = at, .imm = SUBNORMAL});
}

/* Tests for a jump that is taken if any lane of these masks is set. */
static void test_masks(mc_emitter *e, int n) {
    kir_mc_op3(e, MC_KORTEST, 16, MC_FREE_MASK, 0, mc_reg(MC_FREE_MASK + (n > 1)));
}

size_t kir_mc_jump_if_subnormal(mc_emitter *e, int copy) {
    e->mode = MC_WHOLE;
    e->copy = copy;
    int n = 0;
    for (int i = 0; i < e->s->n; i++)
        if (is_looked_at(e, &e->s->steps[i])) look_for_subnormals(e, row_at(e, &e->s->steps[i]), n++);
    test_masks(e, n);
    return kir_mc_jump_if(e->a, MC_NE);
}

static void do_in_f32(mc_emitter *e, const mc_step *s, int d) {
    int first = s->a >= 0 ? in_register(e, s->a, e->scratch[0]) : 0;
    mc_step step = *s;
    if (s->what == MC_FUSE) {
        load_whole(e, d, kir_mc_place(e, s->c));
        step.op = MC_FMA231;
    }
    emit_step(e, &step, d, first, kir_mc_place(e, s->b));
}

/* Half of a value, as f64. */
static void widen_mc(mc_emitter *e, int to, int v, int half) {
    mc_rm from = kir_mc_place(e, v);
    if (from.memory && from.pool < 0) from.disp += half * 32;
    if (!from.memory && half) {
        emit(e, (mc_vec){.op = MC_HIGH32, .bytes = 64, .reg = from.reg, .rm = mc_reg(to), .imm = 1});
        from = mc_reg(to);
    }
    kir_mc_op3(e, MC_F2D, 64, to, 0, from);
}

static void op_f64(mc_emitter *e, int op, int d, int first, int second, int rounding) {
    emit(e, (mc_vec){.op = (mc_op)op,
                     .bytes = 64,
                     .wide = true,
                     .reg = d,
                     .first = first,
                     .rm = mc_reg(second),
                     .imm = op == MC_CMPF ? MC_NOT_EQUAL : -1,
                     .rounding = rounding});
}

/* Half of a step's result. The mask of a sum: lanes that are not exact in f64. Where sums differ only in the sign of 0,
 * the one rounded up is right. */
static void do_half(mc_emitter *e, const mc_step *s, int half, int d) {
    int x = e->scratch[0], y = e->scratch[1], lower = e->scratch[2];
    if (s->a >= 0) widen_mc(e, x, s->a, half);
    widen_mc(e, y, s->b, half);
    op_f64(e, s->what == MC_FUSE ? MC_MULF : s->op, x, s->a >= 0 ? x : 0, y, 0);
    if (s->what == MC_FUSE) {
        widen_mc(e, y, s->c, half);
        op_f64(e, MC_ADDF, lower, x, y, MC_DOWNWARD);
        op_f64(e, MC_ADDF, x, x, y, MC_UPWARD);
        op_f64(e, MC_CMPF, MC_FREE_MASK + half, x, lower, 0);
    }
    kir_mc_op3(e, MC_D2F, 64, d, 0, mc_reg(x));
}

static void do_in_f64(mc_emitter *e, const mc_step *s, int d, size_t in_f32) {
    int lower = e->scratch[0];
    do_half(e, s, 1, d);
    do_half(e, s, 0, lower);
    if (s->what == MC_FUSE) {
        test_masks(e, 2);
        kir_mc_jump_back_if(e->a, MC_NE, in_f32);
    }
    emit(e, (mc_vec){.op = MC_JOIN32, .bytes = 64, .reg = d, .first = lower, .rm = mc_reg(d), .imm = 1});
}

/* The result's register must not be an operand's. */
static void do_with_care(mc_emitter *e, const mc_step *s, int i) {
    const int16_t operands[3] = {s->a, s->b, s->c};
    for (int k = 0; k < 3; k++)
        lock(e, operands[k]);
    e->next[s->d] = e->next_use[i * OPERANDS + RESULT];
    int d = take_register(e, s->d);
    int n = 0;
    for (int k = 0; k < 3; k++)
        if (operands[k] >= 0) look_for_subnormals(e, kir_mc_place(e, operands[k]), n++);
    test_masks(e, n);
    size_t slow = kir_mc_jump_if(e->a, MC_NE), in_f32 = e->a->n;
    do_in_f32(e, s, d);
    size_t done = kir_mc_jump(e->a);
    kir_mc_land(e->a, slow);
    do_in_f64(e, s, d, in_f32);
    kir_mc_land(e->a, done);
    finish_operands(e, s, i);
}

typedef void do_fn(mc_emitter *e, const mc_step *s, int i);
static do_fn *const DO[] = {
    [MC_COMPUTE] = do_compute, [MC_COMPARE] = do_compute,       [MC_FUSE] = do_fuse,     [MC_CHOOSE] = do_choose,
    [MC_LOGIC] = do_logic,     [MC_EXTRACT] = do_extract,       [MC_LOAD] = do_load,     [MC_STORE] = do_store,
    [MC_INDEX] = do_index,     [MC_SCALAR] = do_runtime_scalar, [MC_REDUCE] = do_reduce,
};

/* ---- reductions -------------------------------------------------------------------------------------------------- */

static mc_op combiner(const mc_reduction *r) {
    static const uint8_t floats[] = {
        [KIR_SUM] = MC_ADDF, [KIR_PROD] = MC_MULF, [KIR_RMAX] = MC_MAXF, [KIR_RMIN] = MC_MINF};
    static const uint8_t integers[] = {
        [KIR_SUM] = MC_ADDI, [KIR_PROD] = MC_MULI, [KIR_RMAX] = MC_MAXS, [KIR_RMIN] = MC_MINS};
    kir_type t = (kir_type)r->type;
    if (kir_is_float(t)) return (mc_op)floats[r->kind];
    if (r->kind == KIR_SUM && kir_type_size(t) == 8) return MC_ADDQ;
    if (r->kind >= KIR_RMAX && (t == KIR_U32 || t == KIR_U64)) return r->kind == KIR_RMAX ? MC_MAXU : MC_MINU;
    return (mc_op)integers[r->kind];
}

/* A NaN among the partial results stays: an extreme is not sought there. */
static void combine_evex(mc_emitter *e, const mc_reduction *r, int acc, mc_rm x, bool tail) {
    bool wide = kir_type_size((kir_type)r->type) == 8;
    mc_vec v = {.op = combiner(r), .bytes = e->b->lanes * (wide ? 8 : 4), .wide = wide, .reg = acc, .imm = -1};
    v.first = acc;
    v.rm = x;
    v.mask = tail ? MC_TAIL_MASK : 0;
    if (v.op == MC_MAXF || v.op == MC_MINF) {
        mc_vec ordered = v;
        ordered.op = MC_CMPF;
        ordered.reg = MC_FREE_MASK;
        ordered.rm = mc_reg(acc);
        ordered.imm = MC_ORDERED;
        emit(e, ordered);
        v.mask = MC_FREE_MASK;
    }
    emit(e, v);
}

static void combine_vex(mc_emitter *e, const mc_reduction *r, int acc, mc_rm x, bool tail) {
    int a = e->scratch[0], b = e->scratch[1], bytes = kir_mc_vector_bytes(e->b);
    mc_op op = combiner(r);
    bool extreme = op == MC_MAXF || op == MC_MINF;
    mc_vec blend = {.op = MC_BLENDV, .bytes = bytes, .imm = a << 4};
    if (!extreme && !tail) {
        kir_mc_op3(e, op, bytes, acc, acc, x);
        return;
    }
    if (extreme && MC_NEON) { /* keeps a NaN by itself; of two zeros, x counts */
        emit(e, (mc_vec){.op = MC_CMPF, .bytes = bytes, .reg = a, .first = acc, .rm = x, .imm = MC_EQUAL});
        int best = tail ? b : acc;
        kir_mc_op3(e, op, bytes, best, acc, x);
        blend.reg = blend.first = best;
        blend.rm = x;
        emit(e, blend);
    } else {
        kir_mc_op3(e, op, bytes, b, acc, x);
    }
    if (extreme && !MC_NEON) {
        emit(e,
             (mc_vec){.op = MC_CMPF, .bytes = bytes, .reg = a, .first = acc, .rm = mc_reg(acc), .imm = MC_UNORDERED});
        blend.reg = tail ? b : acc;
        blend.first = b;
        blend.rm = mc_reg(acc);
        emit(e, blend);
    }
    if (!tail) return;
    blend.imm = e->tail << 4;
    blend.reg = acc;
    blend.first = acc;
    blend.rm = mc_reg(b);
    emit(e, blend);
}

void kir_mc_combine(mc_emitter *e, const mc_reduction *r, int acc, mc_rm x, bool tail) {
    if (e->b->evex)
        combine_evex(e, r, acc, x, tail);
    else
        combine_vex(e, r, acc, x, tail);
}

/* ---- a segment --------------------------------------------------------------------------------------------------- */

static void find_uses(mc_emitter *e) {
    for (int v = 0; v < e->b->n_values; v++)
        e->next[v] = NEVER;
    for (int i = e->s->n - 1; i >= 0; i--) {
        const mc_step *s = &e->s->steps[i];
        const int16_t operands[3] = {s->a, s->b, s->c};
        int16_t *use = &e->next_use[i * OPERANDS];
        use[RESULT] = s->d >= 0 ? e->next[s->d] : NEVER;
        for (int k = 0; k < 3; k++)
            use[k] = operands[k] >= 0 ? e->next[operands[k]] : NEVER;
        for (int k = 0; k < 3; k++)
            if (operands[k] >= 0) e->next[operands[k]] = (int16_t)i;
    }
}

/* The maximum number of vector registers that the body's own values need at once. */
static int pressure_of(const mc_emitter *e) {
    int live = 0, most = 0;
    for (int i = 0; i < e->s->n; i++) {
        const mc_step *s = &e->s->steps[i];
        const int16_t operands[3] = {s->a, s->b, s->c};
        for (int k = 0; k < 3; k++) {
            int v = operands[k];
            bool again = (k > 0 && operands[0] == v) || (k > 1 && operands[1] == v);
            if (v < 0 || again || !is_local(e, v) || class_of(e, v) != MC_VECTORS) continue;
            live -= e->next_use[i * OPERANDS + k] == NEVER;
        }
        if (s->d >= 0 && class_of(e, s->d) == MC_VECTORS) {
            if (live + 1 > most) most = live + 1;
            live += e->next_use[i * OPERANDS + RESULT] != NEVER;
        }
    }
    return most;
}

/* Is v read from memory by each body, in which NEON needs an instruction? A summand is copied in any case. */
static bool wants_register(const mc_emitter *e, const mc_step *s, int v) {
    if (v < 0 || is_local(e, v) || class_of(e, v) != MC_VECTORS) return false;
    return !MC_NEON || s->what != MC_FUSE || v == s->a || v == s->b;
}

/* How often a body of this segment reads each value of other segments from memory; returns how many values it reads. */
static int count_uses(const mc_emitter *e, int16_t *uses) {
    int n = 0;
    memset(uses, 0, (size_t)e->b->n_values * sizeof *uses);
    for (int i = 0; i < e->s->n; i++) {
        const mc_step *s = &e->s->steps[i];
        const int16_t operands[3] = {s->a, s->b, s->c};
        for (int k = 0; k < 3; k++)
            if (wants_register(e, s, operands[k])) n += uses[operands[k]]++ == 0;
    }
    return n;
}

/* Partial results live in registers when there is room for all, with NEON, if their two moves a body save as many loads
 * of other values. Returns how many registers they take. */
static int place_accumulators(mc_emitter *e, int room, int wanted) {
    int need = e->s->n_reductions * e->copies;
    bool fits = need <= room && !(MC_NEON && tn_min64(wanted, room) - (room - need) > 2 * e->s->n_reductions);
    for (int k = 0; k < need; k++) {
        int16_t *place = &e->accumulators[k / e->copies][k % e->copies];
        if (fits) {
            *place = (int16_t)(e->n_vectors - 1 - k);
            e->owner[MC_VECTORS][*place] = SET_ASIDE;
        } else {
            *place = (int16_t)(-1 - kir_mc_take_slot(e->b));
        }
    }
    return fits ? need : 0;
}

static bool stores(const mc_segment *s) {
    int i = 0;
    while (i < s->n && s->steps[i].what != MC_STORE)
        i++;
    return i < s->n;
}

/* Gives the registers that are left to what the body reads most from memory. Returns how many it leaves. */
static int pin(mc_emitter *e, int first, int room, int16_t *uses) {
    for (; room > 0; room--, first--) {
        int best = 0;
        for (int v = 1; v < e->b->n_values; v++)
            if (uses[v] > uses[best]) best = v;
        if (uses[best] == 0) break;
        uses[best] = 0;
        load_whole(e, first, kir_mc_place(e, best));
        e->owner[MC_VECTORS][first] = SET_ASIDE;
        e->in[best] = (int16_t)first;
    }
    return room;
}

void kir_mc_segment_begin(mc_emitter *e, int segment, int copies) {
    e->s = &e->b->segments[segment];
    e->index = segment;
    e->copies = copies;
    memset(e->in, 0xff, (size_t)e->b->n_values * sizeof *e->in);
    memset(e->owner, 0xff, sizeof e->owner);
    find_uses(e);
    int room = e->n_vectors - pressure_of(e) - 1;
    int taken = place_accumulators(e, room, count_uses(e, e->next));
    int left = e->s->loop ? pin(e, e->n_vectors - 1 - taken, room - taken, e->next) : 0;
    memset(e->twin, 0xff, sizeof e->twin);
    e->spare = MC_NEON && copies % 2 == 0 && !stores(e->s) && left > 0 ? left : 0;
}

void kir_mc_segment_body(mc_emitter *e, mc_mode mode, int copy) {
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
        const mc_step *s = &e->s->steps[i];
        memset(e->locked, 0, sizeof e->locked);
        (e->careful && may_be_slow(s) ? do_with_care : DO[s->what])(e, s, i);
        if (s->d < 0) continue;
        if (e->b->values[s->d].slot >= 0) to_slot(e, s->d, e->in[s->d]);
        if (e->next[s->d] == NEVER) give_back(e, s->d);
    }
}

tn_status kir_mc_emitter_open(mc_emitter *e, mc_build *b) {
    size_t values = (size_t)b->n_values + 1, most = 1;
    for (int i = 0; i < b->n_segments; i++)
        if ((size_t)b->segments[i].n > most) most = (size_t)b->segments[i].n;
    *e = (mc_emitter){.b = b, .a = b->a};
    int16_t *tables = tn_mem_zalloc(3 * values + OPERANDS * most, sizeof *tables);
    if (!tables) return TN_ERR_MEMORY;
    e->in = tables;
    e->next = e->in + values;
    e->stored = e->next + values;
    e->next_use = e->stored + values;
    e->n_vectors = b->evex ? 29 : MC_NEON ? 26 : 12;
    e->tail = MC_NEON ? 29 : 15;
    for (int k = 0; k < 3; k++)
        e->scratch[k] = e->n_vectors + k;
    return TN_OK;
}

void kir_mc_emitter_close(mc_emitter *e) { tn_mem_free(e->in); }
