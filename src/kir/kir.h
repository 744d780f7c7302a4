/* kir.h — the kernel language: what a kernel computes, in a form that can be run or rendered for every device.
 *
 * A program is a list of instructions in order of execution. Each has at most one result; operands name earlier
 * instructions. It runs once for every point of its parallel axes. LOOP … END repeats a region over a range of loop
 * axes; REDUCE inside such a region has a result that is available after END. Memory is addressed through accesses: a
 * buffer and an affine index (offset + Σ axis · stride, in elements), plus at most one computed index (a gather).
 *
 * The structure (instructions) and the sizes (extents, offsets, strides) are separate: two shapes of one kernel share
 * the structure, so a device compiles it once, and a plan is resized without being planned again.
 *
 * Semantics are exact, and the interpreter (interp.c) defines them. Every other way to run a program gives the same
 * bits under `exact`:
 *   float arithmetic   IEEE 754, round to nearest even, nothing contracted; FMA rounds once.
 *   MAX(a,b), MIN      (a > b || a != a) ? a : b, and with <: NaN wins, b wins a tie (so MAX(-0,+0) is +0).
 *   EXP LOG SIN COS TANH ERF   the polynomials of kir_math.h, in f32 and f64.
 *   integer + - * NEG  wrap; DIV truncates, x/0 = 0, MIN/-1 = MIN; MOD is the remainder of DIV, x%0 = 0; float
 *                      MOD is fmod.
 *   SHL, SHR           a count outside [0, width) gives 0 (or the sign fill of a signed SHR).
 *   CAST               float to integer truncates and saturates (the types of 8 and 16 bits: as I32, whose lower bits
 *                      they take), NaN gives 0; integers wrap; to BOOL: x != 0.
 *   LOAD, STORE        convert between the buffer's dtype and the value's type; float to f16/bf16 rounds to nearest
 *                      even, small integers wrap. A LOAD whose mask is false accesses no memory and gives 0.
 *   REDUCE             float SUM, PROD, MAX, MIN: see KIR_LANES below. ARGMAX, ARGMIN: the first extreme element's flat
 *                      loop index; a NaN counts as extreme. CHAIN(a,b): Σ a·b as chains of KIR_KSUM ascending FMAs,
 *                      each chain begun at +0; the results are added in order, beginning with the first. SEQ: plain
 *                      ascending sum from −0, to which adding changes nothing.
 *   SCAN               the running SUM, PROD, MAX or MIN up to and including this point, ascending from the identity.
 *   PHILOX(key, ctr)   word 0 of Philox-4x32-10 (Salmon et al. 2011), counter = (ctr low, ctr high, 0, 0).
 *   order              parallel points run in any order or concurrently; a point must not access memory that another
 *                      one writes. A point may store where it loads (in place), at the same index. BOOL in memory is
 *                      0 or 1.
 *   LOOP               in workgroups it may have an operand (one axis, no reduction or scan of its own), which limits
 *                      the number of its points; below 0 is 0. The operand is equal in all items.
 *   VAR, GET, SET      a variable of this point, set to VAR's operand each time that VAR is executed.
 *   NaN                it is defined whether a result is NaN, but not which one (sign, payload).
 *
 * Workgroups. In a *group program* the last n_items parallel axes are the items of a workgroup, whose number is part of
 * the structure. Items share local buffers (one copy per workgroup, initially undefined) and BARRIER: no item passes it
 * before all items of its workgroup have reached it, and then all see what the others stored before it, in local and
 * global memory. Between two barriers the rule above applies to items too: an item must not access an element that
 * another one writes. Barriers may be in loops, because extents are the same for all items. The interpreter runs the
 * items of a workgroup in lockstep and reports violations of these rules.
 *
 * Matrices. A program with matrices has subgroups: the items along its last axis, whose number is that of the device's
 * subgroups (tn_caps). A MATRIX is a variable of a subgroup, 16×16 values of f32 that begin as 0; how its items share
 * them is undefined. MMA adds the product of two fragments to it, 16×16 factors from workgroup memory: f16 or bf16,
 * exact in f32, or f32 rounded to 10 bits of fraction, ties away from 0. The order in which the 16 products of an
 * element are added, and their rounding, are undefined: this is the only operation without defined bits (the
 * interpreter: FMAs in ascending order). All items of a subgroup must give a matrix instruction the same index and the
 * same mask, and it counts as executed by their first item, so barriers are needed as for single elements. Memory is
 * read in lines: 16 neighbours, the next line at a given distance in elements.
 *   FETCH, PUT         move 8 neighbours of 16 bits as one packet, from global to workgroup memory, at indices that are
 *                      multiples of 16 bytes. A packet that is not loaded (mask) has zeros.
 *   late PUTs          may write, and read their packet, at any time up to the WAIT: COMMIT ends a batch of an item's
 *                      late PUTs; WAIT n waits until all of the item's batches except the last n have been written; a
 *                      barrier after it makes them visible to all items. Until then nothing may read that memory. No
 *                      batch may be open at the program's end. Such a PUT is in the region of its FETCH. (The
 *                      interpreter: NaN until then.)
 *
 * Wide matrices. If the last axis has KIR_WIDE items, they form one subgroup: four consecutive ones of the device's.
 * Its matrices have 64 rows and 16 columns for each 1 in the MATRIX's kind. The factors of 64×16 and 16×columns are
 * stored in packets of 8 neighbours, packet p of line i at 8·i + p·pitch elements, with pitch 8·(2^n + 1) and n in the
 * FRAGMENT's kind: lines are close to each other, and the packets of a line are in different banks. A MATRIX_STORE
 * stores 16 columns, the first of which is in its kind. MMAs are late: COMMIT of kind 1 ends a batch of a subgroup's
 * MMAs; WAIT of kind 1 waits until all of its batches except the last n are done. Until then they may read their
 * factors, which nothing may write, and their matrix must not be stored. No batch may be open at the program's end.
 *
 * A program of *words* (made by legal.c) has no value of type I64 or U64, for machines without such integers. INDEX, a
 * computed index, the operand of LOOP, and the results of ARGMAX and ARGMIN are I32 instead of I64; its launches have
 * indices that fit. Buffers of i64 and u64 are laid out as usual, but a LOAD or STORE accesses one word of an element,
 * as U32, and a SCALAR reads one word of its 8 bytes: the low one if `kind` is 0, the high one if it is 1. */
#ifndef KIR_H
#define KIR_H

#include "base/base.h"

enum {
    KIR_MAX_AXES = 12, /* parallel and loop axes together */
    KIR_MAX_BUFFERS = 32,
    KIR_MAX_INS = 4096,
    KIR_MAX_LEGAL_INS = 16384, /* … of programs that legal.c has made of others */
    KIR_MAX_ITEM_AXES = 3,
    KIR_MAX_ITEMS = 1024, /* of a workgroup */
    KIR_EDGE = 16,        /* of a matrix */
    KIR_WIDE = 128,       /* items that share a wide matrix */
    KIR_WIDE_ROWS = 64,
    KIR_WIDE_COLUMNS = 256,    /* at most */
    KIR_MAX_LOCAL = 256 << 10, /* bytes of workgroup memory, more than any device has; what one has is in its caps */
    KIR_KSUM = 256,            /* length of an fma chain: part of the numerics contract */
    /* A reduction keeps 64 partial results: element i goes to lane i % 64, in order, from the identity. After each
     * block of KIR_BLOCK elements the lanes are folded by halves (32, 16 … 1), and the block's result is combined with
     * the earlier ones, in order. The first block's result is used as it is. */
    KIR_LANES = 64,
    KIR_BLOCK = 16384
};

typedef enum kir_type { KIR_F32, KIR_F64, KIR_I32, KIR_I64, KIR_U32, KIR_U64, KIR_BOOL, KIR_TYPE_COUNT } kir_type;

/* name, operands, what the operands' types must be: S same as result, B bool, I I64, * any, - none */
#define KIR_OPS(X)                                                                                          \
    X(CONST, 0, "")  /* imm */                                                                              \
    X(SCALAR, 0, "") /* runtime scalars[imm.i]: a scalar that may change at each launch */                  \
    X(INDEX, 0, "")  /* I64: the affine value of access imm.i (its buffer is -1) */                         \
    X(NEG, 1, "S")                                                                                          \
    X(ABS, 1, "S")                                                                                          \
    X(ROUND, 1, "S") /* imm.i: a kir_round */                                                               \
    X(SQRT, 1, "S")                                                                                         \
    X(EXP, 1, "S")                                                                                          \
    X(LOG, 1, "S")                                                                                          \
    X(SIN, 1, "S")                                                                                          \
    X(COS, 1, "S")                                                                                          \
    X(TANH, 1, "S")                                                                                         \
    X(ERF, 1, "S")                                                                                          \
    X(CAST, 1, "*")                                                                                         \
    X(BITCAST, 1, "*") /* same width */                                                                     \
    X(ADD, 2, "SS")                                                                                         \
    X(SUB, 2, "SS")                                                                                         \
    X(MUL, 2, "SS")                                                                                         \
    X(DIV, 2, "SS")                                                                                         \
    X(MOD, 2, "SS")                                                                                         \
    X(MIN, 2, "SS")                                                                                         \
    X(MAX, 2, "SS")                                                                                         \
    X(AND, 2, "SS") /* integers and bool */                                                                 \
    X(OR, 2, "SS")                                                                                          \
    X(XOR, 2, "SS")                                                                                         \
    X(SHL, 2, "SS")                                                                                         \
    X(SHR, 2, "SS")                                                                                         \
    X(EQ, 2, "**") /* BOOL; operands of one type */                                                         \
    X(LT, 2, "**")                                                                                          \
    X(LE, 2, "**")                                                                                          \
    X(FMA, 3, "SSS")    /* a·b + c, float */                                                               \
    X(SELECT, 3, "BSS") /* a ? b : c */                                                                     \
    X(PHILOX, 2, "**")  /* U32 of (U64 key, U64 counter) */                                                 \
    X(LOAD, 1, "B")     /* access imm.i; a: mask or KIR_NONE */                                             \
    X(STORE, 2, "*B")   /* access imm.i; a: value, b: mask or KIR_NONE; no result */                        \
    X(LOOP, 1, "I")     /* imm.i: first axis | count << 8; a: see below; no value */                        \
    X(END, 0, "")                                                                                           \
    X(REDUCE, 2, "**")       /* kind: a kir_reduce; b only for CHAIN */                                     \
    X(SCAN, 1, "S")          /* kind: a kir_reduce (SUM, PROD, MAX, MIN) */                                 \
    X(VAR, 1, "S")           /* a variable that begins as a; only GET and SET may name it */                \
    X(GET, 1, "S")           /* the value of variable a now */                                              \
    X(SET, 2, "SS")          /* variable a becomes b; no result */                                          \
    X(BARRIER, 0, "")        /* of a workgroup; no result */                                                \
    X(MATRIX, 0, "")         /* a subgroup's; kind: of a wide one; only MMA and MATRIX_STORE may name it */ \
    X(FRAGMENT, 0, "")       /* access imm.i; kind: below; only MMA may name it */                          \
    X(MMA, 3, "***")         /* matrix a += fragment b · fragment c; no result */                          \
    X(MATRIX_STORE, 2, "*B") /* access imm.i; a: matrix, b: mask; kind: below; no value */                  \
    X(FETCH, 1, "B")         /* a packet from access imm.i; a: mask; only PUT may name it */                \
    X(PUT, 1, "*")           /* packet a to access imm.i; kind 1: late; no result */                        \
    X(COMMIT, 0, "")         /* kind 1: of MMAs */                                                          \
    X(WAIT, 0, "")           /* imm.i: batches that may be under way, 0 … 7; kind 1: of MMAs */

typedef enum kir_op {
#define X(name, arity, types) KIR_##name,
    KIR_OPS(X)
#undef X
        KIR_OP_COUNT
} kir_op;

typedef enum kir_round { KIR_FLOOR, KIR_CEIL, KIR_TRUNC, KIR_NEAREST_EVEN } kir_round;
typedef enum kir_reduce {
    KIR_SUM,
    KIR_PROD,
    KIR_RMAX,
    KIR_RMIN,
    KIR_ARGMAX,
    KIR_ARGMIN,
    KIR_CHAIN,
    KIR_SEQ
} kir_reduce;

/* Layout in memory of a FRAGMENT, or of a MATRIX_STORE's rows (ALONG_K and FACTOR_B unset): the bits of `kind`. Lines
 * of a first factor are its rows with ALONG_K, else its columns; those of a second factor its columns, else its
 * rows. */
enum {
    KIR_FACTOR_B = 1,   /* the second factor */
    KIR_ALONG_K = 2,    /* neighbours in a line are neighbours along k, the index that is summed over */
    KIR_LINE_SHIFT = 2, /* from here on: from line to line, in … */
    KIR_LINE_UNIT = 8,  /* … elements; offsets and strides of such an access are multiples of it too */
    /* Wide matrices: a FRAGMENT has log2(lines) from KIR_LINE_SHIFT on; a MATRIX_STORE has its first column / 16 there,
     * and its line from here on. */
    KIR_WIDE_SHIFT = 4
};

typedef int16_t kir_val; /* the number of an instruction */
enum { KIR_NONE = -1 };

typedef struct kir_ins {
    uint8_t op, type, kind; /* kir_op, kir_type of the result, kir_reduce (in programs of words also which word) */
    kir_val a, b, c;
    union {
        double f;  /* CONST of a float type */
        int64_t i; /* CONST of another type; round mode, access, runtime scalar or loop range */
    } imm;
} kir_ins;

/* The buffer of an access. Offset and strides are part of the sizes, except for local buffers: these are part of the
 * structure, so that they become constants in the code. Such accesses are last. */
typedef struct kir_access {
    int16_t buffer;                  /* -1 for INDEX */
    kir_val dyn;                     /* an I64 value added to the index, or KIR_NONE */
    int64_t fixed[KIR_MAX_AXES + 1]; /* of a local buffer: offset, stride[axes]; else 0 */
} kir_access;

typedef struct kir_program {
    /* parallel axes are 0 … n_par-1, loop axes follow; the last axis of each group is innermost */
    uint8_t n_par, n_loop;
    int16_t n_ins, n_access, n_buffers, n_scalars;
    int16_t n_sized; /* accesses with sizes: those of global buffers and of INDEX, which come first */
    kir_ins *ins;
    kir_access *access;
    uint8_t buffer_dtype[KIR_MAX_BUFFERS]; /* tn_dtype */
    bool buffer_written[KIR_MAX_BUFFERS];
    uint8_t n_items; /* of the parallel axes, the last ones are items of a workgroup; 0: no workgroups */
    uint16_t item[KIR_MAX_ITEM_AXES]; /* their extents, outermost first */
    int32_t local[KIR_MAX_BUFFERS];   /* elements of a buffer in workgroup memory; 0: a global buffer */
    bool words;                       /* no value has 64 bits: see below */
    /* Number of consecutive bindings for a global buffer that does not fit into one (kir_set_windows), bound as a whole
     * in each launch; 0: one binding, of what the launch needs. Code for devices without such limits ignores this. */
    uint8_t windows[KIR_MAX_BUFFERS];
    uint64_t hash; /* of the structure only */
} kir_program;

/* Sizes of one launch: extents[axes], then offset and stride[axes] of each access that is not of a local buffer. */
static inline size_t kir_sizes_count(const kir_program *p) {
    size_t axes = (size_t)(p->n_par + p->n_loop);
    return axes + (size_t)p->n_sized * (axes + 1);
}
static inline const int64_t *kir_sizes_access(const kir_program *p, const int64_t *sizes, int access) {
    size_t axes = (size_t)(p->n_par + p->n_loop);
    return access < p->n_sized ? sizes + axes + (size_t)access * (axes + 1) : p->access[access].fixed;
}

typedef union kir_scalar {
    double f;  /* read by float SCALARs */
    int64_t i; /* read by all others */
} kir_scalar;

/* Parallel axes that are not items of a workgroup. */
static inline int kir_lead_axes(const kir_program *p) { return p->n_par - p->n_items; }
/* The END of the LOOP that is instruction `loop`. */
int kir_loop_end(const kir_program *p, int loop);
/* Items of a workgroup (1 where there are none), bytes of its memory. */
static inline int kir_items(const kir_program *p) {
    int items = 1;
    for (int k = 0; k < p->n_items; k++)
        items *= p->item[k];
    return items;
}
int64_t kir_local_bytes(const kir_program *p);
/* Items of a subgroup; 0: a program without matrices and packets. */
int kir_lanes(const kir_program *p);
/* Whether matrices multiply 32-bit floats, which their units shorten. */
bool kir_shortens(const kir_program *p);

/* Arguments of one launch. Buffers: the address of element 0 of each buffer; ignored for local ones. */
typedef struct kir_launch {
    const int64_t *sizes;
    void *const *buffers;
    const kir_scalar *scalars;
} kir_launch;

const char *kir_op_name(kir_op op);
size_t kir_type_size(kir_type t);
/* The type in which a dtype computes. f32 for block-quantized dtypes, whose bytes a program decodes: its buffers have
 * plain dtypes. */
kir_type kir_type_of(tn_dtype t);

/* ---- building (kir.c) ------------------------------------------------------------------------------------------- */

/* An affine index: c + Σ axis · s[axis] (+ the I64 value dyn · 1). */
typedef struct kir_aff {
    int64_t c;
    int64_t s[KIR_MAX_AXES];
    kir_val dyn;
} kir_aff;
static inline kir_aff kir_aff_const(int64_t c) { return (kir_aff){.c = c, .dyn = KIR_NONE}; }
static inline kir_aff kir_aff_value(kir_val v) { return (kir_aff){.dyn = v}; } /* the I64 value v */

/* A builder. Its functions return instructions; equal instructions of a region are shared, constants are folded. After
 * a failure (memory, too many instructions, wrong types) all calls do nothing, and kir_finish returns the error. */
typedef struct kir_builder kir_builder;

tn_status kir_begin(int n_par, int n_loop, const int64_t *extents, kir_builder **out);
/* Makes a group program: the last `n_items` parallel axes, with the extents given to kir_begin, are its items. Call it
 * before anything is appended. */
void kir_group(kir_builder *b, int n_items);
int kir_buffer(kir_builder *b, tn_dtype dtype);                  /* declares the next buffer, returns its number */
int kir_local(kir_builder *b, tn_dtype dtype, int64_t elements); /* one in workgroup memory */
kir_val kir_const(kir_builder *b, kir_type t, double v);         /* converted as CAST does */
kir_val kir_const_i(kir_builder *b, kir_type t, int64_t v);      /* exact for 64-bit integers */
kir_val kir_scalar_value(kir_builder *b, kir_type t, int scalar);
kir_val kir_index(kir_builder *b, const kir_aff *index); /* its value as I64 */
kir_val kir_unary(kir_builder *b, kir_op op, kir_val a);
kir_val kir_rounding(kir_builder *b, kir_round mode, kir_val a);
kir_val kir_binary(kir_builder *b, kir_op op, kir_val a, kir_val c); /* arithmetic and comparisons */
kir_val kir_fma(kir_builder *b, kir_val a, kir_val c, kir_val d);
kir_val kir_select(kir_builder *b, kir_val cond, kir_val yes, kir_val no);
kir_val kir_cast(kir_builder *b, kir_type t, kir_val a); /* a itself when the type fits */
kir_val kir_bitcast(kir_builder *b, kir_type t, kir_val a);
kir_val kir_philox(kir_builder *b, kir_val key, kir_val counter);
kir_val kir_load(kir_builder *b, int buffer, const kir_aff *index, kir_val mask);
void kir_store(kir_builder *b, int buffer, const kir_aff *index, kir_val value, kir_val mask);
void kir_loop(kir_builder *b, int first_axis, int count);
void kir_loop_until(kir_builder *b, int axis, kir_val points); /* in a group program: the first `points` of the axis */
void kir_end(kir_builder *b);
kir_val kir_reduce_value(kir_builder *b, kir_reduce kind, kir_val a, kir_val c); /* ready behind kir_end */
kir_val kir_scan(kir_builder *b, kir_reduce kind, kir_val a);
kir_val kir_var(kir_builder *b, kir_val init); /* only for GET and SET, in its region and those inside */
kir_val kir_get(kir_builder *b, kir_val var);
void kir_set(kir_builder *b, kir_val var, kir_val value);
void kir_barrier(kir_builder *b);
/* kir_binary by the name of its operation: kir_add(b, a, c) is a + c. */
#define KIR_BY_NAME(X) \
    X(ADD, add)        \
    X(SUB, sub)        \
    X(MUL, mul)        \
    X(DIV, div)        \
    X(MOD, mod)        \
    X(MIN, min) X(MAX, max) X(EQ, eq) X(LT, lt) X(LE, le) X(AND, and) X(OR, or) X(XOR, xor) X(SHL, shl) X(SHR, shr)
#define X(OP, op) \
    static inline kir_val kir_##op(kir_builder *b, kir_val a, kir_val c) { return kir_binary(b, KIR_##OP, a, c); }
KIR_BY_NAME(X)
#undef X

static inline kir_val kir_neg(kir_builder *b, kir_val a) { return kir_unary(b, KIR_NEG, a); }
static inline kir_val kir_whole(kir_builder *b, int64_t v) { return kir_const_i(b, KIR_I64, v); } /* I64 constant */
static inline kir_val kir_real(kir_builder *b, double v) { return kir_const(b, KIR_F32, v); }     /* F32 constant */

/* Matrices; `line`: elements from line to line, a multiple of KIR_LINE_UNIT. `factor`: KIR_FACTOR_B, KIR_ALONG_K. */
kir_val kir_matrix(kir_builder *b);
kir_val kir_fragment(kir_builder *b, int buffer, const kir_aff *index, int factor, int line);
void kir_mma(kir_builder *b, kir_val matrix, kir_val x, kir_val y);
void kir_matrix_store(kir_builder *b, int buffer, const kir_aff *index, int line, kir_val matrix, kir_val mask);
kir_val kir_fetch(kir_builder *b, int buffer, const kir_aff *index, kir_val mask);
void kir_put(kir_builder *b, int buffer, const kir_aff *index, kir_val packet, bool late);
void kir_commit(kir_builder *b);
void kir_wait(kir_builder *b, int under_way);
/* Wide matrices; `lines`, a power of two: of the factor's buffer. */
kir_val kir_wide_matrix(kir_builder *b, int columns);
kir_val kir_wide_fragment(kir_builder *b, int buffer, const kir_aff *index, int factor, int lines);
void kir_wide_store(kir_builder *b, int buffer, const kir_aff *index, int line, kir_val matrix, int column,
                    kir_val mask);
void kir_wide_commit(kir_builder *b);
void kir_wide_wait(kir_builder *b, int under_way);
kir_type kir_val_type(const kir_builder *b, kir_val v);
int kir_axes(const kir_builder *b); /* parallel and loop axes; the others of an index count for nothing */
/* For rewriting: a builder of a program with the axes, buffers, runtime scalars and accesses of p, which must outlive
 * it. kir_finish keeps the numbers of accesses; its sizes are meaningless. kir_append takes any instruction whose
 * operands, and the `dyn` of its access, belong to this builder. Instructions without a result give KIR_NONE. */
tn_status kir_begin_like(const kir_program *p, kir_builder **out);
kir_val kir_append(kir_builder *b, const kir_ins *in, kir_val dyn);
void kir_abandon(kir_builder *b);
/* Removes dead code and verifies; *sizes: the sizes of this launch (kir_sizes_count of them). Frees b. */
tn_status kir_finish(kir_builder *b, kir_program **program, int64_t **sizes);
/* The same without verification, for a caller that passes the program only to kir_vm_compile, which verifies it. Most
 * structures are compiled already, so most programs need no verification. */
tn_status kir_finish_unverified(kir_builder *b, kir_program **program, int64_t **sizes);
/* Sets the number of windows of each of the first buffers, for a device with such bindings. */
void kir_set_windows(kir_program *p, const uint8_t *windows, int buffers);

tn_status kir_verify(const kir_program *p);
/* Whether these sizes fit the structure: extents not negative, those of items as in the structure. */
tn_status kir_check_sizes(const kir_program *p, const int64_t *sizes);
void kir_free(kir_program *p);
#define AUTO_PROGRAM AUTO_CALL(kir_free_held) /* as AUTO_FREE */
static inline void kir_free_held(kir_program **p) { kir_free(*p); }
bool kir_equal(const kir_program *a, const kir_program *b); /* same structure */

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* The oracle: runs any valid program point by point, a workgroup in lockstep (interp.c). Errors: items race, read local
 * memory that none of them has written, or access beyond it; the text names instruction, item and element. */
tn_status kir_interpret(const kir_program *p, const kir_launch *launch);

/* The tile VM (vm.c): programs without workgroups and variables whose loops all have the same axes and are not nested;
 * others are TN_ERR_UNSUPPORTED. A value is a tile of up to KIR_TILE points; each instruction is one vector routine
 * (simd.c, compiled per instruction set) over the tile. Suitable programs and launches get machine code instead
 * (machine_code.c), with the same bits. */
enum { KIR_TILE = 4096 };
typedef struct kir_vm kir_vm;
tn_status kir_vm_compile(const kir_program *p, kir_vm **out); /* keeps nothing of p */
/* A further VM for a compiled program, which must outlive it: it has its own caches, for launches with other sizes and
 * memory. */
tn_status kir_vm_share(const kir_vm *of, kir_vm **out);
void kir_vm_free(kir_vm *vm);

/* Makes all later runs use the routines of this instruction set; false when processor or build lack it. For tests. */
bool kir_vm_use(tn_isa isa);

/* Frees what the calling thread keeps between runs; it is freed at the thread's end too. */
void kir_vm_trim(void);

/* Runs `count` launches of one program as one parallel job (one fork-join), serially if it is small. No launch may read
 * or write what another one writes. */
tn_status kir_vm_run(const kir_vm *vm, const kir_launch *launches, int64_t count);

/* Takes the memory that kir_vm_run of these launches needs on this thread: that run then cannot fail. */
tn_status kir_vm_reserve(const kir_vm *vm, const kir_launch *launches, int64_t count);

/* For a dry run: takes the memory of kir_vm_run, makes the code that it would make, and computes nothing. */
tn_status kir_vm_rehearse(const kir_vm *vm, const kir_launch *launches, int64_t count);

/* The epilogue of native kernels: evaluates the points lo ≤ axis < hi of the parallel axes on the calling thread. Only
 * for programs without loops. Scratch: kir_vm_scratch(vm) bytes, 64-byte aligned, one per thread. */
size_t kir_vm_scratch(const kir_vm *vm);
void kir_vm_run_box(const kir_vm *vm, const kir_launch *launch, const int64_t *lo, const int64_t *hi, void *scratch);

#endif
