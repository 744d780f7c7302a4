/* x64_emit.c — x86-64 steps as bytes: the encoder, register allocation of a segment, loads and stores. */
#include <stddef.h>
#include <string.h>
#if defined(__x86_64__)
#include <sys/mman.h>
#endif

#include "kir/rules.h"
#include "kir/x64.h"

/* ==== encoder ===================================================================================================== */

typedef struct row {
    uint8_t prefix, map, opcode, w, digit;
} row;

static const row ROWS[X64_OP_COUNT] = {
#define X(name, prefix, map, opcode, w, digit) [X64_##name] = {prefix, map, opcode, w, digit},
    X64_OPS(X)
#undef X
};

static void byte(x64_asm *a, unsigned value) {
    if (a->failed) return;
    if (a->n == a->room && tn_mem_grow(&a->bytes, &a->room, a->n + 1, 1) != TN_OK) {
        a->failed = true;
        return;
    }
    a->bytes[a->n++] = (uint8_t)value;
}

static void x64_word(x64_asm *a, uint32_t value) {
    for (int k = 0; k < 4; k++)
        byte(a, value >> 8 * k & 0xff);
}

void kir_x64_bytes(x64_asm *a, const char *hex, int n) {
    for (int i = 0; i < n; i++)
        byte(a, (uint8_t)hex[i]);
}

/* ---- operands ---------------------------------------------------------------------------------------------------- */

static void add_fixup(x64_asm *a, int32_t pool, int behind) {
    if (a->failed) return;
    if (tn_mem_reserve(&a->fixups, &a->fixup_room, a->n_fixups + 1, sizeof *a->fixups) != TN_OK) {
        a->failed = true;
        return;
    }
    a->fixups[a->n_fixups++] = (x64_fixup){a->n, a->n + 4 + (size_t)behind, pool};
}

/* The ModRM byte and what follows it; `behind`: bytes of the instruction after that. A displacement takes four bytes or
 * none, because EVEX scales one-byte displacements. */
static void operands(x64_asm *a, int reg, const x64_rm *m, int behind) {
    unsigned middle = (unsigned)(reg & 7) << 3;
    if (!m->memory) {
        byte(a, 0xC0 | middle | (m->reg & 7));
        return;
    }
    if (m->pool >= 0) {
        byte(a, middle | 5);
        add_fixup(a, m->pool, behind);
        x64_word(a, 0);
        return;
    }
    bool far = m->disp != 0 || (m->base & 7) == X64_RBP, sib = m->index >= 0 || (m->base & 7) == X64_RSP;
    byte(a, (far ? 0x80U : 0) | middle | (sib ? 4U : (unsigned)(m->base & 7)));
    if (sib) {
        unsigned index = m->index >= 0 ? (unsigned)(m->index & 7) : 4;
        byte(a, (unsigned)m->shift << 6 | index << 3 | (unsigned)(m->base & 7));
    }
    if (far) x64_word(a, (uint32_t)m->disp);
}

static unsigned high(int reg, int bit) { return reg >= 0 ? (unsigned)reg >> bit & 1 : 0; }

/* Bits 3 of the registers that the operand names. */
static unsigned high_base(const x64_rm *m) { return m->memory ? high(m->base, 3) : high(m->reg, 3); }
static unsigned high_index(const x64_rm *m) { return m->memory ? high(m->index, 3) : high(m->reg, 4); }

/* ---- vector instructions ----------------------------------------------------------------------------------------- */

static bool is_mask_op(x64_op op) { return op >= X64_KAND; }

static unsigned prefix_of(const row *r, bool wide) { return r->prefix < 4 ? r->prefix : wide; }

static void vex(x64_asm *a, const x64_vec *v, const row *r, int reg, int first) {
    unsigned w = r->w == 2 ? 0 : r->w, length = v->bytes > 16;
    byte(a, 0xC4);
    byte(a, (high(reg, 3) ^ 1) << 7 | (high_index(&v->rm) ^ 1) << 6 | (high_base(&v->rm) ^ 1) << 5 | r->map);
    byte(a, w << 7 | (~(unsigned)first & 15) << 3 | length << 2 | prefix_of(r, v->wide));
}

static void evex(x64_asm *a, const x64_vec *v, const row *r, int reg, int first) {
    unsigned w = r->w == 2 ? v->wide : r->w, length = v->bytes == 64 ? 2 : v->bytes == 32;
    unsigned how = v->rounding ? (unsigned)v->rounding << 5 | 0x10 : length << 5;
    byte(a, 0x62);
    byte(a, (high(reg, 3) ^ 1) << 7 | (high_index(&v->rm) ^ 1) << 6 | (high_base(&v->rm) ^ 1) << 5 |
                (high(reg, 4) ^ 1) << 4 | r->map);
    byte(a, w << 7 | (~(unsigned)first & 15) << 3 | 4 | prefix_of(r, v->wide));
    byte(a, (unsigned)v->zeroing << 7 | how | (high(first, 4) ^ 1) << 3 | (unsigned)v->mask);
}

void kir_x64_emit(x64_asm *a, const x64_vec *v) {
    const row *r = &ROWS[v->op];
    int reg = v->reg, first = v->first;
    if (r->digit) {
        first = reg;
        reg = r->digit;
    }
    if (a->evex && !is_mask_op(v->op))
        evex(a, v, r, reg, first);
    else
        vex(a, v, r, reg, first);
    byte(a, r->opcode);
    operands(a, reg, &v->rm, v->imm >= 0);
    if (v->imm >= 0) byte(a, (unsigned)v->imm);
}

/* ---- scalar instructions ----------------------------------------------------------------------------------------- */

static void scalar(x64_asm *a, bool wide, const char *opcode, int opcode_bytes, int reg, x64_rm m, int behind) {
    unsigned index = m.memory && m.index >= 0 ? high(m.index, 3) : 0;
    byte(a, 0x40 | (unsigned)wide << 3 | high(reg, 3) << 2 | index << 1 | high_base(&m));
    kir_x64_bytes(a, opcode, opcode_bytes);
    operands(a, reg, &m, behind);
}

void kir_x64_load(x64_asm *a, int reg, x64_rm from) { scalar(a, true, "\x8B", 1, reg, from, 0); }
void kir_x64_store(x64_asm *a, x64_rm to, int reg) { scalar(a, true, "\x89", 1, reg, to, 0); }

void kir_x64_load_element(x64_asm *a, int reg, x64_rm from, int size) {
    if (size >= 4)
        scalar(a, size == 8, "\x8B", 1, reg, from, 0);
    else
        scalar(a, false, size == 2 ? "\x0F\xB7" : "\x0F\xB6", 2, reg, from, 0);
}

void kir_x64_store_element(x64_asm *a, x64_rm to, int reg, int size) {
    if (size == 2) byte(a, 0x66);
    scalar(a, size == 8, size == 1 ? "\x88" : "\x89", 1, reg, to, 0);
}

void kir_x64_ask_for(x64_asm *a, x64_rm line) { scalar(a, false, "\x0F\x18", 2, 1, line, 0); }

void kir_x64_address(x64_asm *a, int reg, x64_rm of) { scalar(a, true, "\x8D", 1, reg, of, 0); }

void kir_x64_set(x64_asm *a, int reg, int32_t value) {
    scalar(a, true, "\xC7", 1, 0, x64_reg(reg), 4);
    x64_word(a, (uint32_t)value);
}

void kir_x64_move(x64_asm *a, int to, int from) { scalar(a, true, "\x8B", 1, to, x64_reg(from), 0); }
void kir_x64_add(x64_asm *a, int to, int from) { scalar(a, true, "\x03", 1, to, x64_reg(from), 0); }
void kir_x64_sub(x64_asm *a, int to, int from) { scalar(a, true, "\x2B", 1, to, x64_reg(from), 0); }
void kir_x64_multiply(x64_asm *a, int to, int from) { scalar(a, true, "\x0F\xAF", 2, to, x64_reg(from), 0); }
void kir_x64_compare(x64_asm *a, int x, int y) { scalar(a, true, "\x3B", 1, x, x64_reg(y), 0); }

void kir_x64_add_imm(x64_asm *a, int to, int32_t value) {
    scalar(a, true, "\x81", 1, 0, x64_reg(to), 4);
    x64_word(a, (uint32_t)value);
}

void kir_x64_compare_imm(x64_asm *a, int x, int32_t value) {
    scalar(a, true, "\x81", 1, 7, x64_reg(x), 4);
    x64_word(a, (uint32_t)value);
}

void kir_x64_lowest_bits(x64_asm *a, int to, int from, int count) {
    byte(a, 0xC4);
    byte(a, (high(to, 3) ^ 1) << 7 | 1 << 6 | (high(from, 3) ^ 1) << 5 | 2);
    byte(a, (~(unsigned)count & 15) << 3);
    byte(a, 0xF5);
    byte(a, 0xC0 | (unsigned)(to & 7) << 3 | (unsigned)(from & 7));
}

void kir_x64_test_bit(x64_asm *a, int of, int number) { scalar(a, false, "\x0F\xA3", 2, number, x64_reg(of), 0); }

void kir_x64_move_if(x64_asm *a, x64_condition c, int to, int from) {
    const char opcode[2] = {0x0F, (char)(0x40 | c)};
    scalar(a, true, opcode, 2, to, x64_reg(from), 0);
}

/* ---- jumps ------------------------------------------------------------------------------------------------------- */

size_t kir_x64_jump(x64_asm *a) {
    byte(a, 0xE9);
    x64_word(a, 0);
    return a->n;
}

size_t kir_x64_jump_if(x64_asm *a, x64_condition c) {
    byte(a, 0x0F);
    byte(a, 0x80U | c);
    x64_word(a, 0);
    return a->n;
}

static void patch(x64_asm *a, size_t behind, size_t to) {
    if (a->failed) return;
    int32_t distance = (int32_t)((int64_t)to - (int64_t)behind);
    memcpy(a->bytes + behind - 4, &distance, sizeof distance);
}

void kir_x64_land(x64_asm *a, size_t jump) { patch(a, jump, a->n); }

void kir_x64_jump_back_if(x64_asm *a, x64_condition c, size_t to) { patch(a, kir_x64_jump_if(a, c), to); }

void kir_x64_jump_back(x64_asm *a, size_t to) {
    byte(a, 0xE9);
    x64_word(a, 0);
    patch(a, a->n, to);
}

/* ---- constants --------------------------------------------------------------------------------------------------- */

int kir_x64_constant_vector(x64_asm *a, const void *vector) {
    size_t size = (size_t)a->vector;
    for (int i = 0; i < a->n_pool; i++) {
        if (memcmp(a->pool + (size_t)i * size, vector, size) == 0) return i;
    }
    if (a->failed || tn_mem_reserve(&a->pool, &a->pool_room, ((size_t)a->n_pool + 1) * size, 1) != TN_OK) {
        a->failed = true;
        return 0;
    }
    memcpy(a->pool + (size_t)a->n_pool * size, vector, size);
    return a->n_pool++;
}

int kir_x64_constant(x64_asm *a, const void *element, int width) {
    char vector[64];
    for (int at = 0; at < a->vector; at += width)
        memcpy(vector + at, element, (size_t)width);
    return kir_x64_constant_vector(a, vector);
}

/* ---- finishing --------------------------------------------------------------------------------------------------- */

static size_t pool_offset(const x64_asm *a) { return (a->n + 63) & ~(size_t)63; }

static void resolve(x64_asm *a) {
    for (size_t i = 0; i < a->n_fixups; i++) {
        const x64_fixup *f = &a->fixups[i];
        size_t constant = pool_offset(a) + (size_t)f->pool * (size_t)a->vector;
        int32_t distance = (int32_t)((int64_t)constant - (int64_t)f->end);
        memcpy(a->bytes + f->at, &distance, sizeof distance);
    }
}

#if defined(__x86_64__)
tn_status kir_x64_asm_finish(x64_asm *a, bool refuse, void **code, size_t *size) {
    *code = NULL;
    if (a->failed) return TN_ERR_MEMORY;
    resolve(a);
    *size = (pool_offset(a) + (size_t)a->n_pool * (size_t)a->vector + 4095) & ~(size_t)4095;
    char *memory = mmap(NULL, *size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return TN_ERR_MEMORY;
    memcpy(memory, a->bytes, a->n);
    if (a->n_pool > 0) memcpy(memory + pool_offset(a), a->pool, (size_t)a->n_pool * (size_t)a->vector);
    if (refuse || mprotect(memory, *size, PROT_READ | PROT_EXEC) != 0) {
        munmap(memory, *size);
        return TN_ERR_UNSUPPORTED;
    }
    *code = memory;
    return TN_OK;
}

void kir_x64_code_free(void *code, size_t size) {
    if (code) munmap(code, size);
}
#else /* another processor: the code would not run */
tn_status kir_x64_asm_finish(x64_asm *a, bool refuse, void **code, size_t *size) {
    (void)refuse;
    *code = NULL;
    *size = 0;
    if (a->failed) return TN_ERR_MEMORY;
    resolve(a);
    return TN_ERR_UNSUPPORTED;
}

void kir_x64_code_free(void *code, size_t size) { (void)code, (void)size; }
#endif

void kir_x64_asm_free(x64_asm *a) {
    tn_mem_free(a->bytes);
    tn_mem_free(a->pool);
    tn_mem_free(a->fixups);
    *a = (x64_asm){.n = 0};
}

/* ==== steps to code =============================================================================================== */
/* A body is a straight line, so registers are allocated in one forward pass that knows the next use of every value; if
 * none is free, the value whose next use is farthest is spilled to the stack. Constants and values of other segments
 * are in memory as whole vectors, usable as operands; registers that the body leaves free hold those it reads most. */

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

/* After step i has read its operands: values without a later use release their registers. */
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

/* An operand below 2^-126 makes a vector multiplication, division or square root take a hundred cycles or more. An
 * optimizer's running means become so small when gradients stay 0. In f64 such numbers are normal: a product is exact,
 * and quotients and roots are rounded as if once, because 53 bits are more than 2 · 24 + 1. A product plus a summand is
 * rounded down and up; if these differ, the f32 instruction is used after all. */

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

/* Contiguous elements from which more than sums is computed. */
static bool is_looked_at(const x64_emitter *e, const x64_step *s) {
    if (s->what != X64_LOAD || s->a >= 0 || e->b->classes[s->access] != X64_NEXT) return false;
    return e->b->p->buffer_dtype[e->b->p->access[s->access].buffer] == TN_F32 && is_multiplied(e, s, s->d, true);
}

/* Square roots take so long that testing for such numbers first costs almost nothing, and it pays if they may occur. */
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

/* Tests for a jump that is taken if any lane of these masks is set. */
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

/* Half of a step's result. The mask of a sum: lanes that are not exact in f64. Where sums differ only in the sign of 0,
 * the one rounded up is right. */
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

/* The result's register must not be an operand's. */
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

/* The maximum number of vector registers that the body's own values need at once. */
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

/* ==== loads, stores and indices =================================================================================== */
/* Contiguous elements are moved as vectors, under a mask if only some may be accessed. Everything else (one element in
 * all lanes under a mask; without AVX-512, elements of other than 4 bytes under a mask) is moved element by element
 * through a vector of the stack. */

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

/* A long body hides the next accesses from the processor, which looks ahead some hundred instructions, and whose own
 * prefetching stops at every page. Shorter bodies reach their next lines by themselves. */
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
