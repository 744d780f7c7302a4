/* x64_memory.c — loads, stores and indices of a segment.
 *
 * Elements side by side move as vectors, under a mask where only some may be touched. Everything else (one element in
 * all lanes under a mask; without AVX-512, elements of other than 4 bytes under a mask) goes element by element through
 * a vector's worth of stack. */
#include "kir/x64.h"

#include <stddef.h>

static int32_t field(size_t array, int access) { return (int32_t)(array + (size_t)access * sizeof(int64_t)); }

static int base_of(x64_emitter *e, int access) {
    if (e->pointer[access] >= 0) return e->pointer[access];
    kir_x64_load(e->a, X64_RAX, x64_at(X64_ARGS, field(offsetof(x64_args, at), access)));
    return X64_RAX;
}

static int shift_of(int size) { return kir_log2((size_t)size); }

/* The elements of lane 0 on, side by side. */
x64_rm kir_x64_row_at(x64_emitter *e, const x64_step *s) {
    int offset = e->mode == X64_WHOLE ? e->copy * e->b->lanes * s->size : 0;
    return x64_indexed(base_of(e, s->access), X64_I, shift_of(s->size), offset);
}

static x64_class class_at(const x64_emitter *e, const x64_step *s) {
    return e->mode == X64_ROW ? X64_SAME : (x64_class)e->b->classes[s->access];
}

static x64_vec transfer(const x64_step *s, int reg, x64_rm rm) {
    return (x64_vec){.op = (x64_op)s->op, .bytes = s->bytes, .wide = s->wide, .reg = reg, .rm = rm, .imm = s->imm};
}

/* ---- element by element ------------------------------------------------------------------------------------------ */

/* rdx: the address of lane 0's element, r11: bytes to the next one. */
static void begin_walk(x64_emitter *e, const x64_step *s) {
    kir_x64_load(e->a, X64_R11, x64_at(X64_ARGS, field(offsetof(x64_args, step), s->access)));
    kir_x64_address(e->a, X64_RDX, x64_at(X64_I, e->mode == X64_WHOLE ? e->copy * e->b->lanes : 0));
    kir_x64_multiply(e->a, X64_RDX, X64_R11);
    kir_x64_add(e->a, X64_RDX, base_of(e, s->access));
}

static void mask_to_bits(x64_emitter *e, int mask) {
    if (e->b->evex) {
        int k = kir_x64_in_register(e, mask, X64_FREE_MASK);
        kir_x64_op3(e, X64_KTO, 16, X64_BITS, 0, x64_reg(k));
        return;
    }
    kir_x64_op3(e, X64_MOVEMASK, 32, X64_BITS, 0, x64_reg(kir_x64_in_register(e, mask, e->scratch[1])));
}

/* Moves the elements of the lanes that exist, and that the mask lets through, between memory and the scratch slot. */
static void walk_x64(x64_emitter *e, const x64_step *s, int mask, bool load) {
    x64_rm lane = x64_indexed(X64_RSP, X64_RCX, shift_of(s->size), X64_SCRATCH_SLOT * 64), element = x64_at(X64_RDX, 0);
    if (mask >= 0) mask_to_bits(e, mask);
    begin_walk(e, s);
    kir_x64_set(e->a, X64_RCX, 0);
    size_t again = e->a->n, skip = 0;
    if (mask >= 0) {
        kir_x64_test_bit(e->a, X64_BITS, X64_RCX);
        skip = kir_x64_jump_if(e->a, X64_AE);
    }
    kir_x64_load_element(e->a, X64_RAX, load ? element : lane, s->size);
    kir_x64_store_element(e->a, load ? lane : element, X64_RAX, s->size);
    if (mask >= 0) kir_x64_land(e->a, skip);
    kir_x64_add(e->a, X64_RDX, X64_R11);
    kir_x64_add_imm(e->a, X64_RCX, 1);
    if (e->mode == X64_TAIL)
        kir_x64_compare(e->a, X64_RCX, X64_LEFT);
    else
        kir_x64_compare_imm(e->a, X64_RCX, e->b->lanes);
    kir_x64_jump_back_if(e->a, X64_B, again);
}

/* ---- looking ahead ----------------------------------------------------------------------------------------------- */

/* A body so long hides what comes next from the processor: it looks some hundred instructions ahead, and its own
 * prefetching ends at every page. Shorter ones reach their next lines by themselves. */
enum { LONG_BODY = 20, AHEAD_BYTES = 2048, LINE = 64 };

static void look_ahead_x64(x64_emitter *e, const x64_step *s) {
    int at = e->copy * e->b->lanes * s->size;
    if (e->mode != X64_WHOLE || e->s->n < LONG_BODY || class_at(e, s) != X64_NEXT || at % LINE != 0) return;
    x64_rm line = kir_x64_row_at(e, s);
    line.disp += AHEAD_BYTES;
    kir_x64_ask_for(e->a, line);
}

/* ---- loads ------------------------------------------------------------------------------------------------------- */

/* One element in all lanes. */
static void load_same(x64_emitter *e, const x64_step *s, int d) {
    static const uint8_t spreads[] = {X64_BCAST1, X64_BCAST2, X64_BCAST4, X64_BCAST8};
    kir_x64_op3(e, (x64_op)spreads[shift_of(s->size)], s->bytes, d, 0, x64_at(base_of(e, s->access), 0));
    if (s->size >= 4) return;
    x64_vec convert = transfer(s, d, x64_reg(d));
    kir_x64_emit(e->a, &convert);
}

static void load_walking(x64_emitter *e, const x64_step *s, int d) {
    if (s->a >= 0) {
        kir_x64_op3(e, X64_XOR, kir_x64_vector_bytes(e->b), e->scratch[0], e->scratch[0], x64_reg(e->scratch[0]));
        kir_x64_op3(e, X64_STOREU, kir_x64_vector_bytes(e->b), e->scratch[0], 0, kir_x64_slot(X64_SCRATCH_SLOT));
    }
    walk_x64(e, s, s->a, true);
    x64_vec convert = transfer(s, d, kir_x64_slot(X64_SCRATCH_SLOT));
    kir_x64_emit(e->a, &convert);
}

/* The mask of a vector, in a register: of the step, of the lanes that exist, or both; -1: none. */
static int x64_mask_of(x64_emitter *e, int mask) {
    int free = e->b->evex ? X64_FREE_MASK : e->scratch[1], tail = e->b->evex ? X64_TAIL_MASK : e->tail;
    int own = mask >= 0 ? kir_x64_in_register(e, mask, free) : -1;
    if (e->mode != X64_TAIL) return own;
    if (mask < 0) return tail;
    kir_x64_op3(e, e->b->evex ? X64_KAND : X64_AND, 32, free, own, x64_reg(tail));
    return free;
}

static bool passes_caches(const x64_emitter *e, const x64_step *s) {
    return e->b->streams && s->op == X64_STOREU && s->bytes == kir_x64_vector_bytes(e->b);
}

/* Moves whole vectors, or under a mask some lanes; without AVX-512 only elements of 4 bytes can be so. */
static void move_vector(x64_emitter *e, const x64_step *s, int reg, int mask, bool load) {
    int of = x64_mask_of(e, mask);
    x64_vec v = transfer(s, reg, kir_x64_row_at(e, s));
    if (of >= 0 && e->b->evex) {
        v.mask = of;
        v.zeroing = load;
    } else if (of >= 0) {
        v.op = load ? X64_LOAD_SOME : X64_STORE_SOME;
        v.first = of;
    } else if (!load && passes_caches(e, s)) {
        v.op = X64_STREAM;
    }
    kir_x64_emit(e->a, &v);
}

static bool moves_at_once(const x64_emitter *e, const x64_step *s, int mask) {
    if (class_at(e, s) != X64_NEXT) return false;
    return e->b->evex || s->size == 4 || (mask < 0 && e->mode == X64_WHOLE);
}

void kir_x64_emit_load(x64_emitter *e, const x64_step *s, int d) {
    look_ahead_x64(e, s);
    if (class_at(e, s) == X64_SAME && s->a < 0) {
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

static void store_one(x64_emitter *e, const x64_step *s) {
    kir_x64_load_element(e->a, X64_RCX, kir_x64_slot(X64_SCRATCH_SLOT), s->size);
    kir_x64_store_element(e->a, x64_at(base_of(e, s->access), 0), X64_RCX, s->size);
}

void kir_x64_emit_store(x64_emitter *e, const x64_step *s) {
    if (!passes_caches(e, s)) look_ahead_x64(e, s);
    int value = kir_x64_in_register(e, s->a, e->scratch[0]);
    if (e->mode != X64_ROW && moves_at_once(e, s, s->b)) {
        move_vector(e, s, value, s->b, false);
        return;
    }
    x64_vec v = transfer(s, value, kir_x64_slot(X64_SCRATCH_SLOT));
    kir_x64_emit(e->a, &v);
    if (e->mode == X64_ROW)
        store_one(e, s);
    else
        walk_x64(e, s, s->b, false);
}

/* ---- indices ----------------------------------------------------------------------------------------------------- */

/* first + (lane + element) · step; along a row segment there is only the first. */
void kir_x64_emit_index(x64_emitter *e, const x64_step *s, int d) {
    kir_x64_load(e->a, X64_RDX, x64_at(X64_ARGS, field(offsetof(x64_args, at), s->access)));
    x64_class class = class_at(e, s);
    if (class != X64_SAME) {
        kir_x64_load(e->a, X64_R11, x64_at(X64_ARGS, field(offsetof(x64_args, step), s->access)));
        kir_x64_address(e->a, X64_RCX, x64_at(X64_I, e->mode == X64_WHOLE ? e->copy * e->b->lanes : 0));
        kir_x64_multiply(e->a, X64_RCX, X64_R11);
        kir_x64_add(e->a, X64_RDX, X64_RCX);
    }
    kir_x64_op3(e, X64_FROM_R64, 16, d, 0, x64_reg(X64_RDX));
    kir_x64_op3(e, X64_BCAST8, s->bytes, d, 0, x64_reg(d));
    if (class == X64_SAME) return;
    x64_rm ramp = kir_x64_place(e, s->a);
    if (class == X64_FAR) {
        kir_x64_op3(e, X64_FROM_R64, 16, e->scratch[0], 0, x64_reg(X64_R11));
        kir_x64_op3(e, X64_BCAST8, s->bytes, e->scratch[0], 0, x64_reg(e->scratch[0]));
        x64_vec scaled = {.op = X64_MULI, .bytes = s->bytes, .wide = true, .imm = -1};
        scaled.reg = scaled.first = e->scratch[0];
        scaled.rm = ramp;
        kir_x64_emit(e->a, &scaled);
        ramp = x64_reg(e->scratch[0]);
    }
    kir_x64_op3(e, X64_ADDQ, s->bytes, d, d, ramp);
}
