/* mc_x64.c — the encoder of x86-64 code: vector instructions with VEX or EVEX, scalar instructions, jumps. */
#include <string.h>

#include "kir/machine_code.h"

#if !defined(__aarch64__)

/* ==== encoder ===================================================================================================== */

enum { RBX = 3, RBP = 5, R12 = 12, R13, R14, R15 };

typedef struct row {
    uint8_t prefix, map, opcode, w, digit;
} row;

static const row ROWS[MC_OP_COUNT] = {
#define X(name, prefix, map, opcode, w, digit) [MC_##name] = {prefix, map, opcode, w, digit},
    MC_OPS(X)
#undef X
};

static void byte(mc_asm *a, unsigned value) { kir_mc_put(a, value, 1); }
static void x64_word(mc_asm *a, uint32_t value) { kir_mc_put(a, value, 4); }

static void bytes(mc_asm *a, const char *hex, int n) {
    for (int i = 0; i < n; i++)
        byte(a, (uint8_t)hex[i]);
}

/* ---- operands ---------------------------------------------------------------------------------------------------- */

/* The ModRM byte and what follows it; `behind`: bytes of the instruction after that. A displacement takes four bytes or
 * none, because EVEX scales one-byte displacements. */
static void operands(mc_asm *a, int reg, const mc_rm *m, int behind) {
    unsigned middle = (unsigned)(reg & 7) << 3;
    if (!m->memory) {
        byte(a, 0xC0 | middle | (m->reg & 7));
        return;
    }
    if (m->pool >= 0) {
        byte(a, middle | 5);
        kir_mc_refer(a, m->pool, 4 + behind);
        x64_word(a, 0);
        return;
    }
    bool far = m->disp != 0 || (m->base & 7) == RBP, sib = m->index >= 0 || (m->base & 7) == MC_STACK;
    byte(a, (far ? 0x80U : 0) | middle | (sib ? 4U : (unsigned)(m->base & 7)));
    if (sib) {
        unsigned index = m->index >= 0 ? (unsigned)(m->index & 7) : 4;
        byte(a, (unsigned)m->shift << 6 | index << 3 | (unsigned)(m->base & 7));
    }
    if (far) x64_word(a, (uint32_t)m->disp);
}

static unsigned high(int reg, int bit) { return reg >= 0 ? (unsigned)reg >> bit & 1 : 0; }

/* Bits 3 of the registers that the operand names. */
static unsigned high_base(const mc_rm *m) { return m->memory ? high(m->base, 3) : high(m->reg, 3); }
static unsigned high_index(const mc_rm *m) { return m->memory ? high(m->index, 3) : high(m->reg, 4); }

/* ---- vector instructions ----------------------------------------------------------------------------------------- */

static bool is_mask_op(mc_op op) { return op >= MC_KAND; }

static unsigned prefix_of(const row *r, bool wide) { return r->prefix < 4 ? r->prefix : wide; }

static void vex(mc_asm *a, const mc_vec *v, const row *r, int reg, int first) {
    unsigned w = r->w == 2 ? 0 : r->w, length = v->bytes > 16;
    byte(a, 0xC4);
    byte(a, (high(reg, 3) ^ 1) << 7 | (high_index(&v->rm) ^ 1) << 6 | (high_base(&v->rm) ^ 1) << 5 | r->map);
    byte(a, w << 7 | (~(unsigned)first & 15) << 3 | length << 2 | prefix_of(r, v->wide));
}

static void evex(mc_asm *a, const mc_vec *v, const row *r, int reg, int first) {
    unsigned w = r->w == 2 ? v->wide : r->w, length = v->bytes == 64 ? 2 : v->bytes == 32;
    unsigned how = v->rounding ? (unsigned)v->rounding << 5 | 0x10 : length << 5;
    byte(a, 0x62);
    byte(a, (high(reg, 3) ^ 1) << 7 | (high_index(&v->rm) ^ 1) << 6 | (high_base(&v->rm) ^ 1) << 5 |
                (high(reg, 4) ^ 1) << 4 | r->map);
    byte(a, w << 7 | (~(unsigned)first & 15) << 3 | 4 | prefix_of(r, v->wide));
    byte(a, (unsigned)v->zeroing << 7 | how | (high(first, 4) ^ 1) << 3 | (unsigned)v->mask);
}

void kir_mc_emit(mc_asm *a, const mc_vec *v) {
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

static void scalar(mc_asm *a, bool wide, const char *opcode, int opcode_bytes, int reg, mc_rm m, int behind) {
    unsigned index = m.memory && m.index >= 0 ? high(m.index, 3) : 0;
    byte(a, 0x40 | (unsigned)wide << 3 | high(reg, 3) << 2 | index << 1 | high_base(&m));
    bytes(a, opcode, opcode_bytes);
    operands(a, reg, &m, behind);
}

void kir_mc_load(mc_asm *a, int reg, mc_rm from) { scalar(a, true, "\x8B", 1, reg, from, 0); }
void kir_mc_store(mc_asm *a, mc_rm to, int reg) { scalar(a, true, "\x89", 1, reg, to, 0); }

void kir_mc_load_element(mc_asm *a, int reg, mc_rm from, int size) {
    if (size >= 4)
        scalar(a, size == 8, "\x8B", 1, reg, from, 0);
    else
        scalar(a, false, size == 2 ? "\x0F\xB7" : "\x0F\xB6", 2, reg, from, 0);
}

void kir_mc_store_element(mc_asm *a, mc_rm to, int reg, int size) {
    if (size == 2) byte(a, 0x66);
    scalar(a, size == 8, size == 1 ? "\x88" : "\x89", 1, reg, to, 0);
}

void kir_mc_ask_for(mc_asm *a, mc_rm line) { scalar(a, false, "\x0F\x18", 2, 1, line, 0); }

void kir_mc_address(mc_asm *a, int reg, mc_rm of) { scalar(a, true, "\x8D", 1, reg, of, 0); }

void kir_mc_set(mc_asm *a, int reg, int32_t value) {
    scalar(a, true, "\xC7", 1, 0, mc_reg(reg), 4);
    x64_word(a, (uint32_t)value);
}

void kir_mc_move(mc_asm *a, int to, int from) { scalar(a, true, "\x8B", 1, to, mc_reg(from), 0); }
void kir_mc_add(mc_asm *a, int to, int from) { scalar(a, true, "\x03", 1, to, mc_reg(from), 0); }
void kir_mc_sub(mc_asm *a, int to, int from) { scalar(a, true, "\x2B", 1, to, mc_reg(from), 0); }
void kir_mc_multiply(mc_asm *a, int to, int from) { scalar(a, true, "\x0F\xAF", 2, to, mc_reg(from), 0); }
void kir_mc_compare(mc_asm *a, int x, int y) { scalar(a, true, "\x3B", 1, x, mc_reg(y), 0); }

void kir_mc_add_imm(mc_asm *a, int to, int32_t value) {
    scalar(a, true, "\x81", 1, 0, mc_reg(to), 4);
    x64_word(a, (uint32_t)value);
}

void kir_mc_compare_imm(mc_asm *a, int x, int32_t value) {
    scalar(a, true, "\x81", 1, 7, mc_reg(x), 4);
    x64_word(a, (uint32_t)value);
}

void kir_mc_lowest_bits(mc_asm *a, int to, int from, int count) {
    byte(a, 0xC4);
    byte(a, (high(to, 3) ^ 1) << 7 | 1 << 6 | (high(from, 3) ^ 1) << 5 | 2);
    byte(a, (~(unsigned)count & 15) << 3);
    byte(a, 0xF5);
    byte(a, 0xC0 | (unsigned)(to & 7) << 3 | (unsigned)(from & 7));
}

void kir_mc_test_bit(mc_asm *a, int of, int number) { scalar(a, false, "\x0F\xA3", 2, number, mc_reg(of), 0); }

void kir_mc_move_if(mc_asm *a, mc_condition c, int to, int from) {
    const char opcode[2] = {0x0F, (char)(0x40 | c)};
    scalar(a, true, opcode, 2, to, mc_reg(from), 0);
}

/* ---- jumps ------------------------------------------------------------------------------------------------------- */

size_t kir_mc_jump(mc_asm *a) {
    byte(a, 0xE9);
    x64_word(a, 0);
    return a->n;
}

size_t kir_mc_jump_if(mc_asm *a, mc_condition c) {
    byte(a, 0x0F);
    byte(a, 0x80U | c);
    x64_word(a, 0);
    return a->n;
}

static void patch(mc_asm *a, size_t behind, size_t to) {
    if (a->failed) return;
    int32_t distance = (int32_t)((int64_t)to - (int64_t)behind);
    memcpy(a->bytes + behind - 4, &distance, sizeof distance);
}

void kir_mc_land(mc_asm *a, size_t jump) { patch(a, jump, a->n); }

void kir_mc_jump_back_if(mc_asm *a, mc_condition c, size_t to) { patch(a, kir_mc_jump_if(a, c), to); }

void kir_mc_jump_back(mc_asm *a, size_t to) {
    byte(a, 0xE9);
    x64_word(a, 0);
    patch(a, a->n, to);
}

/* ---- finishing --------------------------------------------------------------------------------------------------- */

void kir_mc_resolve(mc_asm *a) {
    for (size_t i = 0; i < a->n_fixups; i++) {
        const mc_fixup *f = &a->fixups[i];
        size_t constant = kir_mc_pool_offset(a) + (size_t)f->pool * (size_t)a->vector;
        int32_t distance = (int32_t)((int64_t)constant - (int64_t)f->end);
        memcpy(a->bytes + f->at, &distance, sizeof distance);
    }
}

const uint8_t kir_mc_pointers[MC_POINTERS] = {RBX, R12, R13, R14, R15};

size_t kir_mc_entry(mc_asm *a) {
    bytes(a, "\x55\x48\x89\xE5\x53\x41\x54\x41\x55\x41\x56\x41\x57", 13); /* push rbp … r15 */
    bytes(a, "\x48\x81\xEC\0\0\0\0", 7);                                  /* sub rsp, size */
    size_t size = a->n - 4;
    bytes(a, "\x48\x83\xE4\xC0", 4); /* and rsp, -64 */
    return size;
}

void kir_mc_exit(mc_asm *a, size_t entry, int slots, bool streams) {
    int32_t size = slots * 64;
    if (streams) bytes(a, "\x0F\xAE\xF8", 3); /* sfence: orders later stores after these */
    bytes(a, "\x48\x8D\x65\xD8\x41\x5F\x41\x5E\x41\x5D\x41\x5C\x5B\x5D", 14); /* pop r15 … rbp */
    bytes(a, "\xC5\xF8\x77\xC3", 4);                                          /* vzeroupper; ret */
    if (!a->failed) memcpy(a->bytes + entry, &size, sizeof size);
}

#endif
