/* machine_code.h — code for KIR programs: from instructions to steps on vector registers, from steps to x86-64 (AVX2,
 * AVX-512) or ARM64 (NEON) instructions. */
#ifndef TN_MACHINE_CODE_H
#define TN_MACHINE_CODE_H

#include "base/base.h"
#include "kir/vm.h"

/* ==== encoder ===================================================================================================== */
/* Operations have the names of AVX-512's instructions. mc_x64.c encodes one as VEX or EVEX, which share opcodes;
 * mc_a64.c as one or a few NEON instructions. Code is collected in ordinary memory; machine_code.c makes it executable.
 * Constants follow the code as whole vectors and have indices. After a failure (memory) calls do nothing; it is
 * returned at the end. */

/* General registers by their use. ARM64: x16, x17, v30 and v31 are the encoder's own. */
#if defined(__aarch64__)
enum {
    MC_NEON = true,
    MC_ARGS = 0,
    MC_END,
    MC_I,
    MC_LEFT,
    MC_BITS,
    MC_TEMP,
    MC_COUNT,
    MC_WALK,
    MC_STEP,
    MC_STACK = 31
};
enum { MC_POINTERS = 16 };
#else
enum {
    MC_NEON = false,
    MC_TEMP = 0,
    MC_COUNT,
    MC_WALK,
    MC_STACK = 4,
    MC_END = 6,
    MC_ARGS,
    MC_BITS,
    MC_I,
    MC_LEFT,
    MC_STEP
};
enum { MC_POINTERS = 5 };
#endif
/* Those that hold addresses of accesses; the code's entry saves them. */
extern const uint8_t kir_mc_pointers[MC_POINTERS];

/* Condition codes of conditional jumps; unsigned comparisons. */
typedef enum mc_condition { MC_B = 2, MC_AE = 3, MC_E = 4, MC_NE = 5, MC_BE = 6, MC_A = 7 } mc_condition;

/* X(name, prefix, map, opcode, W, digit): prefix 0 none, 1 66, 2 F3, 3 F2, 4: none for f32, 66 for f64; W 2: set for
 * 8-byte elements; digit: of an immediate shift, whose result is encoded where others have their first operand. */
#define MC_OPS(X)                   \
    X(ADDF, 4, 1, 0x58, 2, 0)       \
    X(MULF, 4, 1, 0x59, 2, 0)       \
    X(SUBF, 4, 1, 0x5C, 2, 0)       \
    X(MINF, 4, 1, 0x5D, 2, 0)       \
    X(DIVF, 4, 1, 0x5E, 2, 0)       \
    X(MAXF, 4, 1, 0x5F, 2, 0)       \
    X(SQRTF, 4, 1, 0x51, 2, 0)      \
    X(FMA132, 1, 2, 0x98, 2, 0)     \
    X(FMA213, 1, 2, 0xA8, 2, 0)     \
    X(FMA231, 1, 2, 0xB8, 2, 0)     \
    X(ROUNDPS, 1, 3, 0x08, 0, 0)    \
    X(ROUNDPD, 1, 3, 0x09, 1, 0)    \
    X(CMPF, 4, 1, 0xC2, 2, 0)       \
    X(SCALEF, 1, 2, 0x2C, 2, 0)     \
    X(ADDI, 1, 1, 0xFE, 0, 0)       \
    X(ADDQ, 1, 1, 0xD4, 1, 0)       \
    X(SUBI, 1, 1, 0xFA, 0, 0)       \
    X(SUBQ, 1, 1, 0xFB, 1, 0)       \
    X(MULI, 1, 2, 0x40, 2, 0)       \
    X(MULUDQ, 1, 1, 0xF4, 1, 0)     \
    X(MINS, 1, 2, 0x39, 2, 0)       \
    X(MINU, 1, 2, 0x3B, 2, 0)       \
    X(MAXS, 1, 2, 0x3D, 2, 0)       \
    X(MAXU, 1, 2, 0x3F, 2, 0)       \
    X(ABSI, 1, 2, 0x1E, 0, 0)       \
    X(ABSQ, 1, 2, 0x1F, 1, 0)       \
    X(AND, 1, 1, 0xDB, 2, 0)        \
    X(ANDN, 1, 1, 0xDF, 2, 0)       \
    X(OR, 1, 1, 0xEB, 2, 0)         \
    X(XOR, 1, 1, 0xEF, 2, 0)        \
    X(SLLV, 1, 2, 0x47, 2, 0)       \
    X(SRLV, 1, 2, 0x45, 2, 0)       \
    X(SRAV, 1, 2, 0x46, 2, 0)       \
    X(SLL, 1, 1, 0x72, 0, 6)        \
    X(SRL, 1, 1, 0x72, 0, 2)        \
    X(SRA, 1, 1, 0x72, 2, 4)        \
    X(SLLQ, 1, 1, 0x73, 1, 6)       \
    X(SRLQ, 1, 1, 0x73, 1, 2)       \
    X(CMPEQ, 1, 1, 0x76, 0, 0)      \
    X(CMPGT, 1, 1, 0x66, 0, 0)      \
    X(CMPI, 1, 3, 0x1F, 2, 0)       \
    X(CMPU, 1, 3, 0x1E, 2, 0)       \
    X(BLENDV, 1, 3, 0x4A, 0, 0)     \
    X(BLENDM, 1, 2, 0x64, 2, 0)     \
    X(I2F, 0, 1, 0x5B, 0, 0)        \
    X(U2F, 3, 1, 0x7A, 0, 0)        \
    X(F2I, 2, 1, 0x5B, 0, 0)        \
    X(F2U, 0, 1, 0x78, 0, 0)        \
    X(F2D, 0, 1, 0x5A, 0, 0)        \
    X(D2F, 1, 1, 0x5A, 1, 0)        \
    X(I2D, 2, 1, 0xE6, 0, 0)        \
    X(U2D, 2, 1, 0x7A, 0, 0)        \
    X(Q2F, 0, 1, 0x5B, 1, 0)        \
    X(Q2D, 2, 1, 0xE6, 1, 0)        \
    X(I2Q, 1, 2, 0x25, 0, 0)        \
    X(U2Q, 1, 2, 0x35, 0, 0)        \
    X(Q2I, 2, 2, 0x35, 0, 0)        \
    X(LOADU, 4, 1, 0x10, 2, 0)      \
    X(LOAD_SOME, 1, 2, 0x2C, 0, 0)  \
    X(STORE_SOME, 1, 2, 0x2E, 0, 0) \
    X(MOVE, 4, 1, 0x28, 2, 0)       \
    X(BCAST4, 1, 2, 0x18, 0, 0)     \
    X(BCAST8, 1, 2, 0x59, 1, 0)     \
    X(BCAST2, 1, 2, 0x79, 0, 0)     \
    X(BCAST1, 1, 2, 0x78, 0, 0)     \
    X(BCASTI, 1, 2, 0x58, 0, 0)     \
    X(S8, 1, 2, 0x21, 0, 0)         \
    X(U8, 1, 2, 0x31, 0, 0)         \
    X(S16, 1, 2, 0x23, 0, 0)        \
    X(U16, 1, 2, 0x33, 0, 0)        \
    X(FROM_HALF, 1, 2, 0x13, 0, 0)  \
    X(PACKD, 1, 2, 0x2B, 0, 0)      \
    X(PACKW, 1, 1, 0x67, 0, 0)      \
    X(STOREU, 4, 1, 0x11, 2, 0)     \
    X(STREAM, 4, 1, 0x2B, 2, 0)     \
    X(STORE8, 1, 1, 0xD6, 0, 0)     \
    X(DOWN8, 2, 2, 0x31, 0, 0)      \
    X(DOWN16, 2, 2, 0x33, 0, 0)     \
    X(TO_HALF, 1, 3, 0x1D, 0, 0)    \
    X(HIGH16, 1, 3, 0x39, 0, 0)     \
    X(HIGH32, 1, 3, 0x3B, 1, 0)     \
    X(JOIN32, 1, 3, 0x3A, 1, 0)     \
    X(CLASSF, 1, 3, 0x66, 2, 0)     \
    X(SHUFFLE, 1, 1, 0x70, 0, 0)    \
    X(MOVEMASK, 0, 1, 0x50, 0, 0)   \
    X(FROM_R32, 1, 1, 0x6E, 0, 0)   \
    X(FROM_R64, 1, 1, 0x6E, 1, 0)   \
    X(KAND, 0, 1, 0x41, 0, 0)       \
    X(KANDN, 0, 1, 0x42, 0, 0)      \
    X(KNOT, 0, 1, 0x44, 0, 0)       \
    X(KOR, 0, 1, 0x45, 0, 0)        \
    X(KXNOR, 0, 1, 0x46, 0, 0)      \
    X(KXOR, 0, 1, 0x47, 0, 0)       \
    X(KLOAD, 0, 1, 0x90, 0, 0)      \
    X(KORTEST, 0, 1, 0x98, 0, 0)    \
    X(KSTORE, 0, 1, 0x91, 0, 0)     \
    X(KFROM, 0, 1, 0x92, 0, 0)      \
    X(KTO, 0, 1, 0x93, 0, 0)

typedef enum mc_op {
#define X(name, prefix, map, opcode, w, digit) MC_##name,
    MC_OPS(X)
#undef X
        MC_OP_COUNT
} mc_op;

/* A register, or memory: base + index·scale + disp, or constant number `pool`. Registers are -1 where absent. */
typedef struct mc_rm {
    bool memory;
    int8_t reg, base, index, shift;
    int32_t disp, pool;
    uint8_t advance; /* ARM64: bytes that the base moves by afterwards; 32: LOADU loads `reg` and `first` */
} mc_rm;

static inline mc_rm mc_reg(int reg) { return (mc_rm){.reg = (int8_t)reg, .base = -1, .index = -1, .pool = -1}; }
static inline mc_rm mc_at(int base, int32_t disp) {
    return (mc_rm){.memory = true, .reg = -1, .base = (int8_t)base, .index = -1, .disp = disp, .pool = -1};
}
static inline mc_rm mc_indexed(int base, int index, int shift, int32_t disp) {
    mc_rm m = mc_at(base, disp);
    m.index = (int8_t)index;
    m.shift = (int8_t)shift;
    return m;
}
static inline mc_rm mc_pool(int number) {
    mc_rm m = mc_at(-1, 0);
    m.pool = number;
    return m;
}

typedef struct mc_fixup {
    size_t at, end; /* of the four bytes; of the instruction */
    int32_t pool;
} mc_fixup;

typedef struct mc_asm {
    uint8_t *bytes, *pool;
    size_t n, room, pool_room;
    mc_fixup *fixups;
    size_t n_fixups, fixup_room;
    int n_pool, vector;     /* bytes of a whole vector */
    bool evex, failed, far; /* far: some distance does not fit its instruction */
} mc_asm;

/* One vector instruction. bytes: vector length (16, 32, 64); wide: 8-byte elements; first: the operand between result
 * and rm, 0: none; mask, zeroing, rounding (of registers; 0: as set): only EVEX; imm: -1 without. */
enum { MC_DOWNWARD = 1, MC_UPWARD = 2 };
typedef struct mc_vec {
    mc_op op;
    int bytes;
    bool wide;
    int reg, first;
    mc_rm rm;
    int mask;
    bool zeroing;
    int imm, rounding;
} mc_vec;

void kir_mc_emit(mc_asm *a, const mc_vec *v);

/* Scalar instructions on 64-bit registers; with `narrow`, on their lower halves. */
void kir_mc_load(mc_asm *a, int reg, mc_rm from);
void kir_mc_store(mc_asm *a, mc_rm to, int reg);
void kir_mc_load_element(mc_asm *a, int reg, mc_rm from, int size); /* zero-extended */
void kir_mc_store_element(mc_asm *a, mc_rm to, int reg, int size);
void kir_mc_address(mc_asm *a, int reg, mc_rm of);
void kir_mc_ask_for(mc_asm *a, mc_rm line); /* a cache line; any address will do */
void kir_mc_set(mc_asm *a, int reg, int32_t value);
void kir_mc_move(mc_asm *a, int to, int from);
void kir_mc_add(mc_asm *a, int to, int from);
void kir_mc_sub(mc_asm *a, int to, int from);
void kir_mc_multiply(mc_asm *a, int to, int from);
void kir_mc_add_imm(mc_asm *a, int to, int32_t value);
void kir_mc_compare(mc_asm *a, int x, int y);
void kir_mc_compare_imm(mc_asm *a, int x, int32_t value);
void kir_mc_lowest_bits(mc_asm *a, int to, int from, int count); /* bzhi */
void kir_mc_test_bit(mc_asm *a, int of, int number);             /* carry: MC_B when it is set */
void kir_mc_move_if(mc_asm *a, mc_condition c, int to, int from);

void kir_mc_put(mc_asm *a, uint32_t value, int bytes);  /* code, as it is */
void kir_mc_refer(mc_asm *a, int32_t pool, int behind); /* a reference to a constant stands here */

/* Jumps. A forward jump returns the position that kir_mc_land fills in; one can jump back to
 * any position of the code (mc_asm.n). */
size_t kir_mc_jump(mc_asm *a);
size_t kir_mc_jump_if(mc_asm *a, mc_condition c);
void kir_mc_land(mc_asm *a, size_t jump);
void kir_mc_jump_back_if(mc_asm *a, mc_condition c, size_t to);
void kir_mc_jump_back(mc_asm *a, size_t to);

/* The number of a constant whose vector is the `width` bytes at `element` again and again; equal ones are shared. */
int kir_mc_constant(mc_asm *a, const void *element, int width);
int kir_mc_constant_vector(mc_asm *a, const void *vector);

/* Saves the registers that belong to the caller and makes room for the slots, whose number is known at the end; returns
 * where to put it. */
size_t kir_mc_entry(mc_asm *a);
void kir_mc_exit(mc_asm *a, size_t entry, int slots, bool streams);

/* Fills in the distances to constants, which lie behind the code from kir_mc_pool_offset on. */
void kir_mc_resolve(mc_asm *a);
static inline size_t kir_mc_pool_offset(const mc_asm *a) { return tn_whole_lines(a->n); }

/* ==== segments and steps ========================================================================================== */
/* The code computes rows. A row is a run of points along the inner direction (KIR_POINTS: the last parallel axis;
 * KIR_ALONG: the loop). One call computes many rows, which are a fixed distance apart in every buffer. The work on a
 * row is divided into segments: row segments compute once per row what does not vary along it (in all lanes), loop
 * segments run along the row, `lanes` elements at a time.
 *     mc_lower.c      instructions to steps: each one machine operation or one memory access
 *     mc_emit.c       the steps of a segment to code: allocates registers, spells out loads and stores
 *     machine_code.c  rows, loops and reductions around the segments; when code is made, and running it
 *
 * All elements of a program use as many lanes as its widest type allows in a vector, so a lane is one point for any
 * type. Booleans are mask registers in AVX-512, lanes of ones or zeros in AVX2 and NEON. */

enum {
    MC_MOST_ACCESS = 40,
    MC_MOST_STEPS = 3000, /* of a program */
    MC_MOST_BODY = 1200,  /* steps of a loop's body, all its copies together */
    MC_MOST_SLOTS = 300,  /* vectors of stack */
    MC_MOST_CONSTANTS = 256,
    MC_MOST_REDUCTIONS = 8 /* of a loop */
};

/* Arguments of the code. at: per access, the address of the row's first element, or the index itself; row_step: from
 * row to row, step: from element to element, both in bytes (INDEX: in ones). */
typedef struct mc_args {
    int64_t n, rows;
    const kir_value *scalars;
    int64_t at[MC_MOST_ACCESS], row_step[MC_MOST_ACCESS], step[MC_MOST_ACCESS];
} mc_args;
/* On x86-64 the code takes its argument in rdi, as on Linux, and may change every vector register. */
#if defined(__x86_64__)
typedef void __attribute__((sysv_abi)) mc_fn(mc_args *args);
#else
typedef void mc_fn(mc_args *args);
#endif

typedef enum mc_class { MC_SAME, MC_NEXT, MC_FAR } mc_class; /* a step along the row: none, one element, any */

typedef enum mc_what {
    MC_COMPUTE, /* d = op(a, b); an absent a is none */
    MC_COMPARE, /* the same, d a mask */
    MC_FUSE,    /* d = a·b + c */
    MC_CHOOSE,  /* d = c ? b : a */
    MC_LOGIC,   /* on masks in mask registers */
    MC_EXTRACT, /* d = upper half of a */
    MC_LOAD,    /* op brings elements of `size` bytes into lanes; a: mask or none */
    MC_STORE,   /* a: value, as `op` takes it to memory; b: mask or none */
    MC_INDEX,
    MC_SCALAR,
    MC_REDUCE /* a joins the partial results of reduction `access` */
} mc_what;

typedef struct mc_step {
    uint8_t what, op, bytes, size; /* bytes: of the operation's vectors */
    bool wide;                     /* elements of 8 bytes */
    int16_t imm;
    int16_t d, a, b, c;
    int16_t access;
} mc_step;

/* A value: a constant (pool >= 0), or what the steps of `segment` compute. One that other segments read has a slot. */
typedef struct mc_value {
    bool mask;     /* in a mask register */
    uint8_t width; /* bytes a lane */
    int16_t segment, slot;
    int32_t pool;
} mc_value;

typedef struct mc_reduction {
    uint8_t kind, type; /* kir_reduce, kir_type */
    int16_t result;     /* its value: a slot */
    int16_t identity;
} mc_reduction;

typedef struct mc_segment {
    bool loop;
    mc_step *steps;
    size_t room;
    int n;
    mc_reduction reductions[MC_MOST_REDUCTIONS];
    int n_reductions;
} mc_segment;

typedef struct mc_build {
    mc_asm *a;
    const kir_program *p;
    const uint8_t *classes; /* by access: mc_class along the row */
    kir_layout layout;
    int lanes;
    bool evex, streams, revises; /* results are stored non-temporally in whole vectors; two accesses overlap */
    mc_segment *segments;
    int n_segments, now; /* the one that steps are added to */
    mc_value *values;
    size_t value_room;
    int n_values, n_slots, n_steps;
    int16_t *value_of;                      /* by instruction */
    int16_t constant_of[MC_MOST_CONSTANTS]; /* by number of the constant: its value, or -1 */
    const char *refusal;                    /* why there will be no code; with no_memory it may be tried again */
    bool no_memory;
} mc_build;

/* ---- what has code (machine_code.c) ------------------------------------------------------------------------ */

mc_fn *kir_code_fn(const kir_code *code);
/* The arguments of a launch whose rows are one run. */
void kir_code_args(const kir_frame *f, mc_args *args);

/* ---- steps (mc_lower.c) ----------------------------------------------------------------------------------------- */

/* NULL, or why no program of this kind gets code. */
const char *kir_mc_refusal_of(const kir_program *p, bool evex);
/* Fills the segments; b->refusal says why not. */
void kir_mc_lower(mc_build *b);
void kir_mc_refuse(mc_build *b, const char *why);
void kir_mc_lack_memory(mc_build *b);

/* Predicates of comparisons of floats, as VCMPPS has them. */
enum { MC_EQUAL = 0, MC_LESS = 1, MC_LESS_EQUAL = 2, MC_UNORDERED = 3, MC_NOT_EQUAL = 4, MC_ORDERED = 7 };

/* ---- code of a segment (mc_emit.c) ---------------------------------------------------------------- */

enum { MC_VECTORS = 0, MC_MASKS = 1 };

enum {
    MC_TAIL_MASK = 1, /* mask registers: lanes that exist, and a scratch one */
    MC_FREE_MASK = 2,
    MC_SCRATCH_SLOT = 0 /* for elements on their way */
};

/* WHOLE: copy k's lanes are k vectors ahead of MC_I; SINGLE: they are at MC_I; TAIL: not all of them exist. */
typedef enum mc_mode { MC_ROW, MC_WHOLE, MC_SINGLE, MC_TAIL } mc_mode;

typedef struct mc_emitter {
    mc_build *b;
    mc_asm *a;
    const mc_segment *s;
    int index; /* of the segment */
    mc_mode mode;
    int copy;                         /* which of the loop's copies */
    bool careful;                     /* the body is the one for subnormal operands */
    int tail;                         /* AVX2: the vector register that says which lanes of a tail exist */
    int scratch[3], n_vectors;        /* vector registers: set aside, and given out */
    int16_t *in;                      /* by value: its register, or -1 */
    int16_t *next;                    /* by value: the next step that reads it */
    int16_t *next_use;                /* by step: what `next` becomes for its operands and its result */
    int16_t *stored;                  /* by value: the body whose value is in its slot */
    int16_t body;                     /* their count */
    int16_t owner[2][32];             /* by register: value, -1 free, -2 set aside */
    bool locked[2][32];               /* by register: in use by the current step */
    int16_t pointer[MC_MOST_ACCESS];  /* by access: the register with its address, or -1 */
    int16_t last_use[MC_MOST_ACCESS]; /* ARM64, by access: the last step of the body that uses it */
    int16_t twin[MC_MOST_ACCESS];     /* ARM64, by access: the next copy's vector is in this register, or -1 */
    int spare;                        /* ARM64: registers for such vectors */
    bool counts;                      /* ARM64: the loop's body reads MC_I */
    int16_t accumulators[MC_MOST_REDUCTIONS][16]; /* registers, or -1 - slot */
    int copies;
} mc_emitter;

tn_status kir_mc_emitter_open(mc_emitter *e, mc_build *b);
void kir_mc_emitter_close(mc_emitter *e);
void kir_mc_segment_begin(mc_emitter *e, int segment, int copies); /* pins, accumulators */
void kir_mc_segment_body(mc_emitter *e, mc_mode mode, int copy);
/* Is there a second body (`careful`) for vectors with subnormal elements? Jumps there if the next ones have any. */
bool kir_mc_heeds_subnormals(const mc_emitter *e);
size_t kir_mc_jump_if_subnormal(mc_emitter *e, int copy);
/* acc = acc ∘ x for reduction number r, on whole vectors or on the lanes that exist. acc must not be scratch 0 or 1; x
 * may be scratch 1. */
void kir_mc_combine(mc_emitter *e, const mc_reduction *r, int acc, mc_rm x, bool tail);

int kir_mc_take_slot(mc_build *b);
mc_rm kir_mc_slot(int slot);
mc_rm kir_mc_place(mc_emitter *e, int v); /* register or memory */
int kir_mc_vector_bytes(const mc_build *b);
void kir_mc_op3(mc_emitter *e, mc_op op, int bytes, int d, int first, mc_rm rm);

#endif
