/* x64.h — machine code for KIR programs: from instructions to steps on vector registers, from steps to bytes.
 *
 * Code computes rows. A row is a run of points along the inner direction (KIR_POINTS: the last parallel axis;
 * KIR_ALONG: the loop); one call does many rows, which lie a fixed step apart in every buffer. What the points of a row
 * do is cut into segments: row segments compute once a row what does not vary along it (all lanes hold it), loop
 * segments run over the row, `lanes` elements at a time.
 *     x64_lower.c, x64_math.c    instructions become steps: each one machine operation or one access to memory
 *     x64_emit.c, x64_memory.c   a segment's steps become code: registers are given out, loads and stores spelled out
 *     render_x64.c               rows, loops and reductions around the segments; when there is code, and running it
 *
 * All elements of a program have as many lanes as its widest type leaves room for in a vector, so that a lane is one
 * point whatever the type. Booleans are mask registers in AVX-512, lanes of ones or zeros in AVX2. */
#ifndef X64_H
#define X64_H

#include "kir/vm.h"
#include "kir/x64_asm.h"

enum {
    X64_MOST_ACCESS = 40,
    X64_MOST_STEPS = 3000, /* of a program */
    X64_MOST_BODY = 1200,  /* steps of a loop's body, all its copies together */
    X64_MOST_SLOTS = 300,  /* vectors of stack */
    X64_MOST_CONSTANTS = 256,
    X64_MOST_REDUCTIONS = 8 /* of a loop */
};

/* What code is called with. at: by access, the address of the row's first element, or the index itself; row_step: from
 * row to row, step: from element to element, both in bytes (INDEX: in ones). */
typedef struct x64_args {
    int64_t n, rows;
    const kir_value *scalars;
    int64_t at[X64_MOST_ACCESS], row_step[X64_MOST_ACCESS], step[X64_MOST_ACCESS];
} x64_args;
typedef void x64_fn(x64_args *args);

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
    bool evex, streams, revises; /* results go past the caches in whole vectors; two lie over what is read */
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
/* What the code of a launch is called with when all its rows are one run. */
void kir_code_args(const kir_frame *f, x64_args *args);

/* ---- steps (x64_lower.c) ----------------------------------------------------------------------------------------- */

/* NULL, or why no program of this kind gets code. */
const char *kir_x64_refusal_of(const kir_program *p, bool evex);
/* Fills the segments; b->refusal says why not. */
void kir_x64_lower(x64_build *b);
void kir_x64_refuse(x64_build *b, const char *why);
void kir_x64_lack_memory(x64_build *b);

/* Each adds one step and yields its value; all do nothing after a refusal. The width is that of the last operand. */
int kir_x64_unary(x64_build *b, x64_op op, int x);
int kir_x64_binary(x64_build *b, x64_op op, int x, int y);
int kir_x64_with_imm(x64_build *b, x64_op op, int x, int imm); /* shifts, roundings */
int kir_x64_fma(x64_build *b, int x, int y, int z);
int kir_x64_choose(x64_build *b, int mask, int yes, int no);
int kir_x64_compare_f(x64_build *b, int predicate, int x, int y); /* as VCMPPS has them */
int kir_x64_f32(x64_build *b, float x);
int kir_x64_u32(x64_build *b, uint32_t x);

enum { X64_EQUAL = 0, X64_LESS = 1, X64_LESS_EQUAL = 2, X64_UNORDERED = 3, X64_NOT_EQUAL = 4, X64_ORDERED = 7 };

/* ---- functions (x64_math.c) -------------------------------------------------------------------------------------- */

int kir_x64_exp(x64_build *b, int x);
int kir_x64_log(x64_build *b, int x);
int kir_x64_tanh(x64_build *b, int x);
int kir_x64_erf(x64_build *b, int x);
int kir_x64_to_bf16(x64_build *b, int x); /* its bits, in 32-bit lanes */

/* ---- code of a segment (x64_emit.c, x64_memory.c) ---------------------------------------------------------------- */

enum { X64_VECTORS = 0, X64_MASKS = 1 };

/* Registers that code is laid out around. */
enum {
    X64_ARGS = X64_RDI, /* x64_args */
    X64_END = X64_RSI,  /* one past the elements of this block */
    X64_I = X64_R9,     /* the element that lane 0 stands at */
    X64_LEFT = X64_R10, /* tails: elements left, not more than lanes */
    X64_BITS = X64_R8,  /* a mask's bits */
    X64_POINTERS = 5,   /* accesses whose address has a register */
    X64_TAIL_MASK = 1,  /* mask registers: lanes that exist, and one for nobody */
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
/* acc = acc ∘ x for reduction number r, on whole vectors or on the lanes that exist. acc must not be scratch 0 or 1;
 * x may be scratch 1. */
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
