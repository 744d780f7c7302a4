/* x64_asm.c — the encoder. What differs between VEX and EVEX is in two functions; the rest is the same for both. */
#include "kir/x64_asm.h"

#include <string.h>
#include <sys/mman.h>

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

/* The byte that names registers, and what follows it; `behind`: bytes of the instruction after that. A displacement
 * takes four bytes or none: EVEX scales those of one byte. */
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

void kir_x64_asm_free(x64_asm *a) {
    tn_mem_free(a->bytes);
    tn_mem_free(a->pool);
    tn_mem_free(a->fixups);
    *a = (x64_asm){.n = 0};
}
