/* mc_a64.c — the encoder of ARM64 code: NEON vectors of 16 bytes, scalar instructions, jumps.
 *
 * Operations have the names and operands of x86-64's (machine_code.h). An operand in memory is loaded into v31 first.
 * An operation that NEON lacks takes several instructions, with v30 for intermediate values. Opcodes are those of the
 * Arm Architecture Reference Manual for A-profile, with registers and immediates 0. */
#include <string.h>

#include "kir/machine_code.h"

#if defined(__aarch64__)

enum { TEMP_VECTOR = 30, LOADED = 31, ADDRESS = 16, FRAME = 29, ZERO = 31 };

static void a64_word(mc_asm *a, uint32_t value) { kir_mc_put(a, value, 4); }

/* rd, rn, rm stand at the same bits in nearly all instructions. */
static void three(mc_asm *a, uint32_t code, int d, int n, int m) {
    a64_word(a, code | (uint32_t)d | (uint32_t)n << 5 | (uint32_t)m << 16);
}

static void two(mc_asm *a, uint32_t code, int d, int n) { three(a, code, d, n, 0); }

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Opcodes that move one register of 1 << size bytes: with a scaled offset, and with the base moved afterwards. */
typedef struct access {
    uint32_t offset, after;
} access;
static const access VECTOR_LOADS[] = {
    [2] = {0xBD400000, 0xBC400400}, {0xFD400000, 0xFC400400}, {0x3DC00000, 0x3CC00400}};
static const access VECTOR_STORES[] = {
    [2] = {0xBD000000, 0xBC000400}, {0xFD000000, 0xFC000400}, {0x3D800000, 0x3C800400}};
static const access LOADS[] = {{0x39400000, 0}, {0x79400000, 0}, {0xB9400000, 0}, {0xF9400000, 0}};
static const access STORES[] = {{0x39000000, 0}, {0x79000000, 0}, {0xB9000000, 0}, {0xF9000000, 0}};

static void add_distance(mc_asm *a, int to, int from, int32_t value) {
    uint32_t size = (uint32_t)(value < 0 ? -value : value);
    uint32_t code = value < 0 ? 0xD1000000 : 0x91000000; /* sub, add */
    if (size >> 12 || (value == 0 && to != from)) two(a, code | 1u << 22 | (size >> 12 & 0xfff) << 10, to, from);
    if (size >> 12) from = to;
    if (size & 0xfff) two(a, code | (size & 0xfff) << 10, to, from);
}

/* The base register; a place that is more than a base and a distance is computed. */
static int base_of_a64(mc_asm *a, const mc_rm *m) {
    if (m->index < 0) return m->base;
    three(a, 0x8B206000 | (uint32_t)m->shift << 10, ADDRESS, m->base, m->index); /* add, extended: allows sp */
    return ADDRESS;
}

static void move_memory(mc_asm *a, const access *by, int size, int reg, const mc_rm *m) {
    if (m->advance) {
        two(a, by[size].after | (uint32_t)m->advance << 12, reg, m->base);
        return;
    }
    int base = base_of_a64(a, m);
    int32_t scaled = m->disp >> size;
    if (m->disp < 0 || scaled << size != m->disp || scaled > 0xfff) {
        add_distance(a, ADDRESS, base, m->disp);
        base = ADDRESS;
        scaled = 0;
    }
    two(a, by[size].offset | (uint32_t)scaled << 10, reg, base);
}

/* 16 bytes, or the lower 4 or 8, into a vector register. */
static void load_vector(mc_asm *a, int size, int reg, const mc_rm *m) {
    if (m->pool >= 0) {
        kir_mc_refer(a, m->pool, 0);
        a64_word(a, 0x9C000000 | (uint32_t)reg);
    } else {
        move_memory(a, VECTOR_LOADS, size, reg, m);
    }
}

static int in_vector(mc_asm *a, const mc_rm *m) {
    if (!m->memory) return m->reg;
    load_vector(a, 4, LOADED, m);
    return LOADED;
}

/* ---- vector instructions ----------------------------------------------------------------------------------------- */

typedef void encode_fn(mc_asm *a, const mc_vec *v, uint32_t code);

static void binary(mc_asm *a, const mc_vec *v, uint32_t code) {
    three(a, code, v->reg, v->first, in_vector(a, &v->rm));
}
static void binary_turned(mc_asm *a, const mc_vec *v, uint32_t code) {
    three(a, code, v->reg, in_vector(a, &v->rm), v->first);
}
static void unary(mc_asm *a, const mc_vec *v, uint32_t code) { two(a, code, v->reg, in_vector(a, &v->rm)); }

static void round_vector(mc_asm *a, const mc_vec *v, uint32_t code) {
    static const uint32_t modes[] = {0, 0x1000, 0x800000, 0x801000}; /* frintn, frintm, frintp, frintz */
    two(a, code | modes[v->imm & 3], v->reg, in_vector(a, &v->rm));
}

static void compare_floats(mc_asm *a, const mc_vec *v, uint32_t equal) {
    enum { GREATER = 0x6EA0E400, GREATER_EQUAL = 0x6E20E400 };
    int y = in_vector(a, &v->rm), x = v->first, d = v->reg;
    switch (v->imm) {
    case MC_EQUAL:
    case MC_NOT_EQUAL: three(a, equal, d, x, y); break;
    case MC_LESS: three(a, GREATER, d, y, x); break;
    case MC_LESS_EQUAL: three(a, GREATER_EQUAL, d, y, x); break;
    default: /* ordered: both equal themselves */
        three(a, equal, TEMP_VECTOR, x, x);
        three(a, equal, d, y, y);
        three(a, 0x4E201C00, d, d, TEMP_VECTOR); /* and */
    }
    if (v->imm == MC_NOT_EQUAL || v->imm == MC_UNORDERED) two(a, 0x6E205800, d, d); /* not */
}

static void shift_left(mc_asm *a, const mc_vec *v, uint32_t code) {
    two(a, code | (uint32_t)(32 + v->imm) << 16, v->reg, in_vector(a, &v->rm));
}
static void shift_right(mc_asm *a, const mc_vec *v, uint32_t code) {
    two(a, code | (uint32_t)(64 - v->imm) << 16, v->reg, in_vector(a, &v->rm));
}

/* Each lane has its own count: those of 32 or more are 32 (of signed numbers to the right: 31). A negative count shifts
 * to the right. */
static void shift_by_lanes(mc_asm *a, const mc_vec *v, uint32_t code) {
    enum { CONSTANT = 0x4F000400, LEAST = 0x6EA06C00, NEGATE = 0x6EA0B800 };
    int count = in_vector(a, &v->rm), most = v->op == MC_SRAV ? 31 : 32;
    a64_word(a, CONSTANT | (uint32_t)(most >> 5) << 16 | (uint32_t)(most & 31) << 5 | TEMP_VECTOR);
    three(a, LEAST, TEMP_VECTOR, TEMP_VECTOR, count);
    if (v->op != MC_SLLV) two(a, NEGATE, TEMP_VECTOR, TEMP_VECTOR);
    three(a, code, v->reg, v->first, TEMP_VECTOR);
}

static void move_vector_register(mc_asm *a, int to, int from) {
    if (to != from) three(a, 0x4EA01C00, to, from, from);
}

/* reg = mask ? rm : first; the register of the mask is imm's upper half. The result may be any of the three. */
static void blend(mc_asm *a, const mc_vec *v, uint32_t code) {
    enum { INSERT_IF = 0x6EA01C00, INSERT_UNLESS = 0x6EE01C00 };
    int mask = v->imm >> 4, yes = in_vector(a, &v->rm), d = v->reg;
    if (d == mask) {
        three(a, code, d, yes, v->first);
    } else if (d == yes) {
        three(a, INSERT_UNLESS, d, v->first, mask);
    } else {
        move_vector_register(a, d, v->first);
        three(a, INSERT_IF, d, yes, mask);
    }
}

static void load_or_move(mc_asm *a, const mc_vec *v, TN_UNUSED uint32_t code) {
    if (v->rm.advance == 32)
        two(a, 0xACC10000 | (uint32_t)v->first << 10, v->reg, v->rm.base); /* ldp */
    else if (v->rm.memory)
        load_vector(a, 4, v->reg, &v->rm);
    else
        move_vector_register(a, v->reg, v->rm.reg);
}

/* Elements of 1 or 2 bytes are loaded as 4 or 8 bytes and widened; code: from 2 bytes to 4. */
static void widen_halves(mc_asm *a, const mc_vec *v, uint32_t code) {
    int from = v->rm.memory ? v->reg : v->rm.reg;
    if (v->rm.memory) load_vector(a, 3, from, &v->rm);
    two(a, code, v->reg, from);
}
static void widen_bytes(mc_asm *a, const mc_vec *v, uint32_t code) {
    int from = v->rm.memory ? v->reg : v->rm.reg;
    if (v->rm.memory) load_vector(a, 2, from, &v->rm);
    two(a, code ^ 0x00180000, v->reg, from); /* from 1 byte to 2 */
    two(a, code, v->reg, v->reg);
}

static void store_whole_vector(mc_asm *a, const mc_vec *v, TN_UNUSED uint32_t code) {
    move_memory(a, VECTOR_STORES, 4, v->reg, &v->rm);
}
/* Stores of 2 bytes a lane and of 1. */
static void store_halves(mc_asm *a, const mc_vec *v, uint32_t code) {
    two(a, code, LOADED, v->reg);
    move_memory(a, VECTOR_STORES, 3, LOADED, &v->rm);
}
static void store_bytes(mc_asm *a, const mc_vec *v, uint32_t code) {
    two(a, code, LOADED, v->reg);
    two(a, code & ~0x00400000u, LOADED, LOADED);
    move_memory(a, VECTOR_STORES, 2, LOADED, &v->rm);
}

static void spread_from_memory(mc_asm *a, const mc_vec *v, uint32_t code) {
    int base = base_of_a64(a, &v->rm);
    if (v->rm.disp != 0) {
        add_distance(a, ADDRESS, base, v->rm.disp);
        base = ADDRESS;
    }
    two(a, code, v->reg, base);
}

/* The halves of a vector, or the lanes of each half, change places. */
static void exchange(mc_asm *a, const mc_vec *v, uint32_t code) {
    int from = in_vector(a, &v->rm);
    if (v->imm == 0x4E)
        three(a, 0x6E004000, v->reg, from, from); /* ext #8 */
    else
        two(a, code, v->reg, from);
}

/* A general register's bit k is lane k of a mask. */
static void mask_bits(mc_asm *a, const mc_vec *v, uint32_t code) {
    static const int32_t bits[4] = {1, 2, 4, 8};
    mc_rm constant = mc_pool(kir_mc_constant_vector(a, bits));
    load_vector(a, 4, TEMP_VECTOR, &constant);
    three(a, 0x4E201C00, TEMP_VECTOR, TEMP_VECTOR, in_vector(a, &v->rm)); /* and */
    two(a, 0x4EB1B800, TEMP_VECTOR, TEMP_VECTOR);                         /* addv */
    two(a, code, v->reg, TEMP_VECTOR);
}

typedef struct a64_row {
    encode_fn *encode; /* NULL: the steps for NEON do not use it */
    uint32_t code;
} a64_row;

static const a64_row ROWS[MC_OP_COUNT] = {
    [MC_ADDF] = {binary, 0x4E20D400},
    [MC_MULF] = {binary, 0x6E20DC00},
    [MC_SUBF] = {binary, 0x4EA0D400},
    [MC_MINF] = {binary, 0x4EA0F400},
    [MC_DIVF] = {binary, 0x6E20FC00},
    [MC_MAXF] = {binary, 0x4E20F400},
    [MC_SQRTF] = {unary, 0x6EA1F800},
    [MC_FMA231] = {binary, 0x4E20CC00},
    [MC_ROUNDPS] = {round_vector, 0x4E218800},
    [MC_CMPF] = {compare_floats, 0x4E20E400},
    [MC_ADDI] = {binary, 0x4EA08400},
    [MC_SUBI] = {binary, 0x6EA08400},
    [MC_MULI] = {binary, 0x4EA09C00},
    [MC_MINS] = {binary, 0x4EA06C00},
    [MC_MINU] = {binary, 0x6EA06C00},
    [MC_MAXS] = {binary, 0x4EA06400},
    [MC_MAXU] = {binary, 0x6EA06400},
    [MC_ABSI] = {unary, 0x4EA0B800},
    [MC_AND] = {binary, 0x4E201C00},
    [MC_ANDN] = {binary_turned, 0x4E601C00},
    [MC_OR] = {binary, 0x4EA01C00},
    [MC_XOR] = {binary, 0x6E201C00},
    [MC_SLLV] = {shift_by_lanes, 0x6EA04400},
    [MC_SRLV] = {shift_by_lanes, 0x6EA04400},
    [MC_SRAV] = {shift_by_lanes, 0x4EA04400},
    [MC_SLL] = {shift_left, 0x4F005400},
    [MC_SRL] = {shift_right, 0x6F000400},
    [MC_SRA] = {shift_right, 0x4F000400},
    [MC_CMPEQ] = {binary, 0x6EA08C00},
    [MC_CMPGT] = {binary, 0x4EA03400},
    [MC_BLENDV] = {blend, 0x6E601C00},
    [MC_I2F] = {unary, 0x4E21D800},
    [MC_U2F] = {unary, 0x6E21D800},
    [MC_F2I] = {unary, 0x4EA1B800},
    [MC_LOADU] = {load_or_move, 0},
    [MC_MOVE] = {load_or_move, 0},
    [MC_BCAST4] = {spread_from_memory, 0x4D40C800},
    [MC_BCAST2] = {spread_from_memory, 0x0D40C400},
    [MC_BCAST1] = {spread_from_memory, 0x0D40C000},
    [MC_BCASTI] = {unary, 0x4E040400},
    [MC_S8] = {widen_bytes, 0x0F10A400},
    [MC_U8] = {widen_bytes, 0x2F10A400},
    [MC_S16] = {widen_halves, 0x0F10A400},
    [MC_U16] = {widen_halves, 0x2F10A400},
    [MC_FROM_HALF] = {widen_halves, 0x0E217800},
    [MC_STOREU] = {store_whole_vector, 0},
    [MC_DOWN8] = {store_bytes, 0x0E612800},
    [MC_DOWN16] = {store_halves, 0x0E612800},
    [MC_TO_HALF] = {store_halves, 0x0E216800},
    [MC_SHUFFLE] = {exchange, 0x4EA00800},
    [MC_MOVEMASK] = {mask_bits, 0x1E260000},
    [MC_FROM_R32] = {unary, 0x1E270000},
};

void kir_mc_emit(mc_asm *a, const mc_vec *v) { ROWS[v->op].encode(a, v, ROWS[v->op].code); }

/* ---- scalar instructions ----------------------------------------------------------------------------------------- */

void kir_mc_load(mc_asm *a, int reg, mc_rm from) { move_memory(a, LOADS, 3, reg, &from); }
void kir_mc_store(mc_asm *a, mc_rm to, int reg) { move_memory(a, STORES, 3, reg, &to); }
void kir_mc_load_element(mc_asm *a, int reg, mc_rm from, int size) {
    move_memory(a, LOADS, kir_log2((size_t)size), reg, &from);
}
void kir_mc_store_element(mc_asm *a, mc_rm to, int reg, int size) {
    move_memory(a, STORES, kir_log2((size_t)size), reg, &to);
}
/* Nothing: these processors look further ahead by themselves. */
void kir_mc_ask_for(TN_UNUSED mc_asm *a, TN_UNUSED mc_rm line) {}
void kir_mc_address(mc_asm *a, int reg, mc_rm of) { add_distance(a, reg, base_of_a64(a, &of), of.disp); }

void kir_mc_set(mc_asm *a, int reg, int32_t value) {
    enum { SET = 0xD2800000, SET_NOT = 0x92800000, KEEP = 0xF2A00000 };
    uint32_t bits = (uint32_t)value;
    a64_word(a, (value < 0 ? SET_NOT | (~bits & 0xffff) << 5 : SET | (bits & 0xffff) << 5) | (uint32_t)reg);
    if (bits >> 16 != (value < 0 ? 0xffff : 0)) a64_word(a, KEEP | bits >> 16 << 5 | (uint32_t)reg);
}

void kir_mc_move(mc_asm *a, int to, int from) { three(a, 0xAA000000, to, ZERO, from); }
void kir_mc_add(mc_asm *a, int to, int from) { three(a, 0x8B000000, to, to, from); }
void kir_mc_sub(mc_asm *a, int to, int from) { three(a, 0xCB000000, to, to, from); }
void kir_mc_multiply(mc_asm *a, int to, int from) { three(a, 0x9B007C00, to, to, from); }
void kir_mc_compare(mc_asm *a, int x, int y) { three(a, 0xEB000000, ZERO, x, y); }
void kir_mc_lowest_bits(mc_asm *a, int to, int from, int count) { (void)a, (void)to, (void)from, (void)count; }

/* to = from + value, with the condition of a comparison with -value. A value has 12 bits, or 12 bits and 12 zeros. */
static void add_and_compare(mc_asm *a, int to, int from, int32_t value) {
    uint32_t size = (uint32_t)(value < 0 ? -value : value), code = value > 0 ? 0xB1000000 : 0xF1000000; /* adds, subs */
    bool high = size > 0xfff;
    a->far |= high && ((size & 0xfff) != 0 || size >> 24 != 0);
    two(a, code | (uint32_t)high << 22 | (high ? size >> 12 : size) << 10, to, from);
}
void kir_mc_add_imm(mc_asm *a, int to, int32_t value) { add_and_compare(a, to, to, value); }
void kir_mc_compare_imm(mc_asm *a, int x, int32_t value) { add_and_compare(a, ZERO, x, -value); }

void kir_mc_test_bit(mc_asm *a, int of, int number) {
    three(a, 0x9AC02400, ADDRESS, of, number); /* lsr */
    two(a, 0x92400000, ADDRESS, ADDRESS);      /* and #1 */
    three(a, 0xEB000000, ZERO, ZERO, ADDRESS); /* 0 - bit: below if it is set */
}

static uint32_t condition(mc_condition c) {
    static const uint8_t conditions[] = {[MC_B] = 3, [MC_AE] = 2, [MC_E] = 0, [MC_NE] = 1, [MC_BE] = 9, [MC_A] = 8};
    return conditions[c];
}

void kir_mc_move_if(mc_asm *a, mc_condition c, int to, int from) {
    three(a, 0x9A800000 | condition(c) << 12, to, from, to);
}

/* ---- jumps ------------------------------------------------------------------------------------------------------- */

size_t kir_mc_jump(mc_asm *a) {
    a64_word(a, 0x14000000);
    return a->n;
}

size_t kir_mc_jump_if(mc_asm *a, mc_condition c) {
    a64_word(a, 0x54000000 | condition(c));
    return a->n;
}

/* Puts the distance, in instructions, from the one at `at` into its 19 or 26 bits. */
static void put_distance(mc_asm *a, size_t at, size_t to, int bits, int shift) {
    int64_t distance = ((int64_t)to - (int64_t)at) / 4, most = (int64_t)1 << (bits - 1);
    uint32_t code;
    if (a->failed) return;
    if (distance < -most || distance >= most) a->far = true;
    memcpy(&code, a->bytes + at, sizeof code);
    code |= ((uint32_t)distance & (((uint32_t)1 << bits) - 1)) << shift;
    memcpy(a->bytes + at, &code, sizeof code);
}

static void patch(mc_asm *a, size_t behind, size_t to) {
    if (a->failed) return;
    bool conditional = a->bytes[behind - 1] == 0x54;
    put_distance(a, behind - 4, to, conditional ? 19 : 26, conditional ? 5 : 0);
}

void kir_mc_land(mc_asm *a, size_t jump) { patch(a, jump, a->n); }
void kir_mc_jump_back_if(mc_asm *a, mc_condition c, size_t to) { patch(a, kir_mc_jump_if(a, c), to); }
void kir_mc_jump_back(mc_asm *a, size_t to) { patch(a, kir_mc_jump(a), to); }

void kir_mc_resolve(mc_asm *a) {
    for (size_t i = 0; i < a->n_fixups; i++) {
        size_t constant = kir_mc_pool_offset(a) + (size_t)a->fixups[i].pool * (size_t)a->vector;
        put_distance(a, a->fixups[i].at, constant, 19, 5);
    }
}

/* ---- a function -------------------------------------------------------------------------------------------------- */

const uint8_t kir_mc_pointers[MC_POINTERS] = {9, 10, 11, 12, 13, 14, 15, 19, 20, 21, 22, 23, 24, 25, 26, 27};

/* The pairs of registers that belong to the caller, from 16 bytes above the frame on: x19 … x28, then d8 … d15. */
static void move_saved(mc_asm *a, uint32_t general, uint32_t vectors) {
    for (int k = 0; k < 9; k++) {
        int first = k < 5 ? 19 + 2 * k : 8 + 2 * (k - 5);
        uint32_t place = (uint32_t)(2 + 2 * k) << 15 | (uint32_t)(first + 1) << 10;
        two(a, (k < 5 ? general : vectors) | place, first, FRAME);
    }
}

size_t kir_mc_entry(mc_asm *a) {
    a64_word(a, 0xA9B67BFD); /* stp x29, x30, [sp, -160]! */
    two(a, 0x91000000, FRAME, MC_STACK);
    move_saved(a, 0xA9000000, 0x6D000000); /* stp */
    two(a, 0xD1400000, MC_STACK, MC_STACK);
    two(a, 0xD1000000, MC_STACK, MC_STACK);
    return a->n - 8;
}

void kir_mc_exit(mc_asm *a, size_t entry, int slots, TN_UNUSED bool streams) {
    uint32_t size = (uint32_t)slots * 64, parts[2] = {size >> 12, size & 0xfff};
    move_saved(a, 0xA9400000, 0x6D400000); /* ldp */
    two(a, 0x91000000, MC_STACK, FRAME);
    a64_word(a, 0xA8CA7BFD); /* ldp x29, x30, [sp], 160 */
    a64_word(a, 0xD65F03C0); /* ret */
    for (int k = 0; k < 2 && !a->failed; k++) {
        uint32_t code;
        memcpy(&code, a->bytes + entry + 4 * k, sizeof code);
        code |= parts[k] << 10;
        memcpy(a->bytes + entry + 4 * k, &code, sizeof code);
    }
}

#endif
