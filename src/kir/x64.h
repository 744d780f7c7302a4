/* x64.h — x86-64 code for KIR programs: from instructions to steps on vector registers, from steps to bytes. */
#ifndef TN_X64_H
#define TN_X64_H

#include "base/base.h"
#include "kir/vm.h"

/* ==== encoder ===================================================================================================== */
/* Both encodings share opcodes, so an operation is one row of a table; the assembler's state selects the encoding.
 * Bytes are collected in ordinary memory; kir_x64_asm_finish makes them executable. Constants follow the code as whole
 * vectors and have indices. After a failure (memory) calls do nothing; it is returned at the end. */

enum { X64_RAX, X64_RCX, X64_RDX, X64_RBX, X64_RSP, X64_RBP, X64_RSI, X64_RDI, X64_R8, X64_R9, X64_R10, X64_R11 };
enum { X64_R12 = 12, X64_R13, X64_R14, X64_R15 };

/* Condition codes of conditional jumps; unsigned comparisons. */
typedef enum x64_condition { X64_B = 2, X64_AE = 3, X64_E = 4, X64_NE = 5, X64_BE = 6, X64_A = 7 } x64_condition;

/* X(name, prefix, map, opcode, W, digit): prefix 0 none, 1 66, 2 F3, 3 F2, 4: none for f32, 66 for f64; W 2: set for
 * 8-byte elements; digit: of an immediate shift, whose result is encoded where others have their first operand. */
#define X64_OPS(X)                  \
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

typedef enum x64_op {
#define X(name, prefix, map, opcode, w, digit) X64_##name,
    X64_OPS(X)
#undef X
        X64_OP_COUNT
} x64_op;

/* A register, or memory: base + index·scale + disp, or constant number `pool`. Registers are -1 where absent. */
typedef struct x64_rm {
    bool memory;
    int8_t reg, base, index, shift;
    int32_t disp, pool;
} x64_rm;

static inline x64_rm x64_reg(int reg) { return (x64_rm){.reg = (int8_t)reg, .base = -1, .index = -1, .pool = -1}; }
static inline x64_rm x64_at(int base, int32_t disp) {
    return (x64_rm){.memory = true, .reg = -1, .base = (int8_t)base, .index = -1, .disp = disp, .pool = -1};
}
static inline x64_rm x64_indexed(int base, int index, int shift, int32_t disp) {
    x64_rm m = x64_at(base, disp);
    m.index = (int8_t)index;
    m.shift = (int8_t)shift;
    return m;
}
static inline x64_rm x64_pool(int number) {
    x64_rm m = x64_at(-1, 0);
    m.pool = number;
    return m;
}

typedef struct x64_fixup {
    size_t at, end; /* of the four bytes; of the instruction */
    int32_t pool;
} x64_fixup;

typedef struct x64_asm {
    uint8_t *bytes, *pool;
    size_t n, room, pool_room;
    x64_fixup *fixups;
    size_t n_fixups, fixup_room;
    int n_pool, vector; /* bytes of a whole vector */
    bool evex, failed;
} x64_asm;

/* One vector instruction. bytes: vector length (16, 32, 64); wide: 8-byte elements; first: the operand between result
 * and rm, 0: none; mask, zeroing, rounding (of registers; 0: as set): only EVEX; imm: -1 without. */
enum { X64_DOWNWARD = 1, X64_UPWARD = 2 };
typedef struct x64_vec {
    x64_op op;
    int bytes;
    bool wide;
    int reg, first;
    x64_rm rm;
    int mask;
    bool zeroing;
    int imm, rounding;
} x64_vec;

void kir_x64_emit(x64_asm *a, const x64_vec *v);

/* Scalar instructions on 64-bit registers; with `narrow`, on their lower halves. */
void kir_x64_load(x64_asm *a, int reg, x64_rm from);
void kir_x64_store(x64_asm *a, x64_rm to, int reg);
void kir_x64_load_element(x64_asm *a, int reg, x64_rm from, int size); /* zero-extended */
void kir_x64_store_element(x64_asm *a, x64_rm to, int reg, int size);
void kir_x64_address(x64_asm *a, int reg, x64_rm of);
void kir_x64_ask_for(x64_asm *a, x64_rm line); /* a cache line; any address will do */
void kir_x64_set(x64_asm *a, int reg, int32_t value);
void kir_x64_move(x64_asm *a, int to, int from);
void kir_x64_add(x64_asm *a, int to, int from);
void kir_x64_sub(x64_asm *a, int to, int from);
void kir_x64_multiply(x64_asm *a, int to, int from);
void kir_x64_add_imm(x64_asm *a, int to, int32_t value);
void kir_x64_compare(x64_asm *a, int x, int y);
void kir_x64_compare_imm(x64_asm *a, int x, int32_t value);
void kir_x64_lowest_bits(x64_asm *a, int to, int from, int count); /* bzhi */
void kir_x64_test_bit(x64_asm *a, int of, int number);             /* carry: X64_B when it is set */
void kir_x64_move_if(x64_asm *a, x64_condition c, int to, int from);
void kir_x64_bytes(x64_asm *a, const char *hex, int n); /* as they are */

/* Jumps. A forward jump returns the position that kir_x64_land fills in; x64_here is a position to jump back to. */
size_t kir_x64_jump(x64_asm *a);
size_t kir_x64_jump_if(x64_asm *a, x64_condition c);
void kir_x64_land(x64_asm *a, size_t jump);
void kir_x64_jump_back_if(x64_asm *a, x64_condition c, size_t to);
void kir_x64_jump_back(x64_asm *a, size_t to);

/* The number of a constant whose vector is the `width` bytes at `element` again and again; equal ones are shared. */
int kir_x64_constant(x64_asm *a, const void *element, int width);
int kir_x64_constant_vector(x64_asm *a, const void *vector);

/* Puts code and constants into separate memory, first writable, then executable, never both. refuse: as if the system
 * did not allow that. */
tn_status kir_x64_asm_finish(x64_asm *a, bool refuse, void **code, size_t *size);
void kir_x64_code_free(void *code, size_t size);
void kir_x64_asm_free(x64_asm *a);

/* ==== segments and steps ========================================================================================== */
/* The code computes rows. A row is a run of points along the inner direction (KIR_POINTS: the last parallel axis;
 * KIR_ALONG: the loop). One call computes many rows, which are a fixed distance apart in every buffer. The work on a
 * row is divided into segments: row segments compute once per row what does not vary along it (in all lanes), loop
 * segments run along the row, `lanes` elements at a time.
 *     x64_lower.c    instructions to steps: each one machine operation or one memory access
 *     x64_emit.c     the steps of a segment to code: allocates registers, spells out loads and stores
 *     render_x64.c   rows, loops and reductions around the segments; when code is made, and running it
 *
 * All elements of a program use as many lanes as its widest type allows in a vector, so a lane is one point for any
 * type. Booleans are mask registers in AVX-512, lanes of ones or zeros in AVX2. */

enum {
    X64_MOST_ACCESS = 40,
    X64_MOST_STEPS = 3000, /* of a program */
    X64_MOST_BODY = 1200,  /* steps of a loop's body, all its copies together */
    X64_MOST_SLOTS = 300,  /* vectors of stack */
    X64_MOST_CONSTANTS = 256,
    X64_MOST_REDUCTIONS = 8 /* of a loop */
};

/* Arguments of the code. at: per access, the address of the row's first element, or the index itself; row_step: from
 * row to row, step: from element to element, both in bytes (INDEX: in ones). */
typedef struct x64_args {
    int64_t n, rows;
    const kir_value *scalars;
    int64_t at[X64_MOST_ACCESS], row_step[X64_MOST_ACCESS], step[X64_MOST_ACCESS];
} x64_args;
/* The code takes its argument in rdi, as on Linux, and may change every vector register. */
#if defined(__x86_64__)
typedef void __attribute__((sysv_abi)) x64_fn(x64_args *args);
#else
typedef void x64_fn(x64_args *args);
#endif

typedef enum x64_class { X64_SAME, X64_NEXT, X64_FAR } x64_class; /* a step along the row: none, one element, any */

typedef enum x64_what {
    X64_COMPUTE, /* d = op(a, b); an absent a is none */
    X64_COMPARE, /* the same, d a mask */
    X64_FUSE,    /* d = a·b + c */
    X64_CHOOSE,  /* d = c ? b : a */
    X64_LOGIC,   /* on masks in mask registers */
    X64_EXTRACT, /* d = upper half of a */
    X64_LOAD,    /* op brings elements of `size` bytes into lanes; a: mask or none */
    X64_STORE,   /* a: value, as `op` takes it to memory; b: mask or none */
    X64_INDEX,
    X64_SCALAR,
    X64_REDUCE /* a joins the partial results of reduction `access` */
} x64_what;

typedef struct x64_step {
    uint8_t what, op, bytes, size; /* bytes: of the operation's vectors */
    bool wide;                     /* elements of 8 bytes */
    int16_t imm;
    int16_t d, a, b, c;
    int16_t access;
} x64_step;

/* A value: a constant (pool >= 0), or what the steps of `segment` compute. One that other segments read has a slot. */
typedef struct x64_value {
    bool mask;     /* in a mask register */
    uint8_t width; /* bytes a lane */
    int16_t segment, slot;
    int32_t pool;
} x64_value;

typedef struct x64_reduction {
    uint8_t kind, type; /* kir_reduce, kir_type */
    int16_t result;     /* its value: a slot */
    int16_t identity;
} x64_reduction;

typedef struct x64_segment {
    bool loop;
    x64_step *steps;
    size_t room;
    int n;
    x64_reduction reductions[X64_MOST_REDUCTIONS];
    int n_reductions;
} x64_segment;

typedef struct x64_build {
    x64_asm *a;
    const kir_program *p;
    const uint8_t *classes; /* by access: x64_class along the row */
    kir_layout layout;
    int lanes;
    bool evex, streams, revises; /* results are stored non-temporally in whole vectors; two accesses overlap */
    x64_segment *segments;
    int n_segments, now; /* the one that steps are added to */
    x64_value *values;
    size_t value_room;
    int n_values, n_slots, n_steps;
    int16_t *value_of;                       /* by instruction */
    int16_t constant_of[X64_MOST_CONSTANTS]; /* by number of the constant: its value, or -1 */
    const char *refusal;                     /* why there will be no code; with no_memory it may be tried again */
    bool no_memory;
} x64_build;

/* ---- what has code (render_x64.c) ----------------------------------------------------------------------------- */

x64_fn *kir_code_fn(const kir_code *code);
/* The arguments of a launch whose rows are one run. */
void kir_code_args(const kir_frame *f, x64_args *args);

/* ---- steps (x64_lower.c) ----------------------------------------------------------------------------------------- */

/* NULL, or why no program of this kind gets code. */
const char *kir_x64_refusal_of(const kir_program *p, bool evex);
/* Fills the segments; b->refusal says why not. */
void kir_x64_lower(x64_build *b);
void kir_x64_refuse(x64_build *b, const char *why);
void kir_x64_lack_memory(x64_build *b);

/* Each adds one step and returns its value; all do nothing after a refusal. The width is that of the last operand. */
int kir_x64_unary(x64_build *b, x64_op op, int x);
int kir_x64_binary(x64_build *b, x64_op op, int x, int y);
int kir_x64_with_imm(x64_build *b, x64_op op, int x, int imm); /* shifts, roundings */
int kir_x64_fma(x64_build *b, int x, int y, int z);
int kir_x64_choose(x64_build *b, int mask, int yes, int no);
int kir_x64_compare_f(x64_build *b, int predicate, int x, int y); /* as VCMPPS has them */
int kir_x64_f32(x64_build *b, float x);
int kir_x64_u32(x64_build *b, uint32_t x);

enum { X64_EQUAL = 0, X64_LESS = 1, X64_LESS_EQUAL = 2, X64_UNORDERED = 3, X64_NOT_EQUAL = 4, X64_ORDERED = 7 };

/* ---- functions (x64_lower.c) --------------------------------------------------------------------------------------
 * */

int kir_x64_exp(x64_build *b, int x);
int kir_x64_log(x64_build *b, int x);
int kir_x64_tanh(x64_build *b, int x);
int kir_x64_erf(x64_build *b, int x);
int kir_x64_to_bf16(x64_build *b, int x); /* its bits, in 32-bit lanes */

/* ---- code of a segment (x64_emit.c) ---------------------------------------------------------------- */

enum { X64_VECTORS = 0, X64_MASKS = 1 };

/* Registers that code is laid out around. */
enum {
    X64_ARGS = X64_RDI, /* x64_args */
    X64_END = X64_RSI,  /* one past the elements of this block */
    X64_I = X64_R9,     /* the element of lane 0 */
    X64_LEFT = X64_R10, /* tails: elements left, not more than lanes */
    X64_BITS = X64_R8,  /* a mask's bits */
    X64_POINTERS = 5,   /* accesses whose address has a register */
    X64_TAIL_MASK = 1,  /* mask registers: lanes that exist, and a scratch one */
    X64_FREE_MASK = 2,
    X64_SCRATCH_SLOT = 0 /* for elements on their way */
};

typedef enum x64_mode { X64_ROW, X64_WHOLE, X64_TAIL } x64_mode;

typedef struct x64_emitter {
    x64_build *b;
    x64_asm *a;
    const x64_segment *s;
    int index; /* of the segment */
    x64_mode mode;
    int copy;                                      /* which of the loop's copies */
    bool careful;                                  /* the body is the one for subnormal operands */
    int tail;                                      /* AVX2: the vector register that says which lanes of a tail exist */
    int scratch[3], n_vectors;                     /* vector registers: set aside, and given out */
    int16_t *in;                                   /* by value: its register, or -1 */
    int16_t *next;                                 /* by value: the next step that reads it */
    int16_t *next_use;                             /* by step: what `next` becomes for its operands and its result */
    int16_t *stored;                               /* by value: the body whose value is in its slot */
    int16_t body;                                  /* their count */
    int16_t owner[2][32];                          /* by register: value, -1 free, -2 set aside */
    bool locked[2][32];                            /* by register: in use by the current step */
    int16_t pointer[X64_MOST_ACCESS];              /* by access: the register with its address, or -1 */
    int16_t accumulators[X64_MOST_REDUCTIONS][16]; /* registers, or -1 - slot */
    int copies;
} x64_emitter;

tn_status kir_x64_emitter_open(x64_emitter *e, x64_build *b);
void kir_x64_emitter_close(x64_emitter *e);
void kir_x64_segment_begin(x64_emitter *e, int segment, int copies); /* pins, accumulators */
void kir_x64_segment_body(x64_emitter *e, x64_mode mode, int copy);
/* Is there a second body (`careful`) for vectors with subnormal elements? Jumps there if the next ones have any. */
bool kir_x64_heeds_subnormals(const x64_emitter *e);
size_t kir_x64_jump_if_subnormal(x64_emitter *e, int copy);
/* acc = acc ∘ x for reduction number r, on whole vectors or on the lanes that exist. acc must not be scratch 0 or 1; x
 * may be scratch 1. */
void kir_x64_combine(x64_emitter *e, const x64_reduction *r, int acc, x64_rm x, bool tail);

int kir_x64_take_slot(x64_build *b);
x64_rm kir_x64_slot(int slot);
x64_rm kir_x64_place(x64_emitter *e, int v); /* register or memory */
int kir_x64_in_register(x64_emitter *e, int v,
                        int scratch); /* its register; else it is brought into that scratch one */
int kir_x64_vector_bytes(const x64_build *b);
void kir_x64_op3(x64_emitter *e, x64_op op, int bytes, int d, int first, x64_rm rm);
x64_rm kir_x64_row_at(x64_emitter *e, const x64_step *s); /* elements side by side, from lane 0 on; may take rax */

void kir_x64_emit_load(x64_emitter *e, const x64_step *s, int d);
void kir_x64_emit_store(x64_emitter *e, const x64_step *s);
void kir_x64_emit_index(x64_emitter *e, const x64_step *s, int d);

#endif
