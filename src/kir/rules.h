/* rules.h — rules for valid instructions, and evaluation of one operation on one point.
 *
 * The row of an operation has its number of operands, the types of its result and how the operands' types relate to it.
 * Everything that depends on an instruction's position (visibility, loops) is in kir.c. */
#ifndef TN_RULES_H
#define TN_RULES_H

#include "kir/kir.h"

/* Number of operands an instruction really has: kir_op's arity, less an absent mask or second factor. */
int kir_arity(const kir_ins *in);

static inline kir_val kir_operand(const kir_ins *in, int k) { return k == 0 ? in->a : k == 1 ? in->b : in->c; }

/* Is this a pure operation (NEG … PHILOX) of `n` operands? */
bool kir_op_takes(kir_op op, int n);

/* STORE, LOOP, END, SET and BARRIER have no result. The result of a VAR is a name, used only by GET and SET; so are
 * matrices and packets. */
static inline bool kir_yields(kir_op op) {
    if (op > KIR_BARRIER) return op == KIR_MATRIX || op == KIR_FRAGMENT || op == KIR_FETCH;
    return op != KIR_STORE && op != KIR_LOOP && op != KIR_END && op != KIR_SET && op != KIR_BARRIER;
}

/* Instructions whose result is only a name: VAR, MATRIX, FRAGMENT, FETCH. */
static inline bool kir_names(kir_op op) {
    return op == KIR_VAR || op == KIR_MATRIX || op == KIR_FRAGMENT || op == KIR_FETCH;
}

/* The operation whose name operand `k` of this one is; KIR_CONST: it is a value. */
static inline kir_op kir_wants(kir_op op, int k) {
    if (op == KIR_GET || op == KIR_SET) return k == 0 ? KIR_VAR : KIR_CONST;
    if (op == KIR_MMA) return k == 0 ? KIR_MATRIX : KIR_FRAGMENT;
    if (op == KIR_MATRIX_STORE && k == 0) return KIR_MATRIX;
    return op == KIR_PUT ? KIR_FETCH : KIR_CONST;
}

static inline bool kir_is_float(kir_type t) { return t == KIR_F32 || t == KIR_F64; }

/* Instructions with an access, and those of them that write. */
static inline bool kir_has_access(kir_op op) {
    if (op > KIR_BARRIER) return op == KIR_FRAGMENT || op == KIR_MATRIX_STORE || op == KIR_FETCH || op == KIR_PUT;
    return op == KIR_LOAD || op == KIR_STORE || op == KIR_INDEX;
}
static inline bool kir_writes(kir_op op) { return op == KIR_STORE || op == KIR_MATRIX_STORE || op == KIR_PUT; }

/* From line to line, of a FRAGMENT or MATRIX_STORE. */
static inline int kir_line(const kir_ins *in) { return (in->kind >> KIR_LINE_SHIFT) * KIR_LINE_UNIT; }

/* Of wide ones: from packet to packet of a line; from line to line, and the first column. */
static inline int kir_pitch(const kir_ins *in) { return KIR_LINE_UNIT * ((1 << (in->kind >> KIR_LINE_SHIFT)) + 1); }
static inline int kir_wide_line(const kir_ins *in) { return (in->kind >> KIR_WIDE_SHIFT) * KIR_LINE_UNIT; }
static inline int kir_wide_column(const kir_ins *in) { return (in->kind & ((1 << KIR_WIDE_SHIFT) - 1)) * KIR_EDGE; }

/* The first axis and the number of axes of a LOOP. */
static inline int kir_loop_first(const kir_ins *in) { return (int)(in->imm.i & 0xff); }
static inline int kir_loop_count(const kir_ins *in) { return (int)(in->imm.i >> 8 & 0xff); }

/* NULL if the types fit the operation; else what is wrong. `types`: of the operands that are present; `words`: in a
 * program of words. */
const char *kir_type_error(const kir_ins *in, const kir_type types[3], bool words);

/* ==== evaluation of one operation ================================================================================= */

typedef union kir_value {
    float f32;
    double f64;
    int32_t i32;
    int64_t i64;
    uint32_t u32;
    uint64_t u64;
    uint8_t b;
} kir_value;

/* Evaluates a pure operation (NEG … PHILOX) on operands of type `operand` (SELECT: that of b and c). false for any
 * other operation; *out is then unchanged. */
bool kir_eval(const kir_ins *in, kir_type operand, const kir_value values[3], kir_value *out);

/* acc = op(acc, x) for SUM, PROD, MAX, MIN; the value a reduction of this kind begins with. */
kir_value kir_combine(kir_reduce kind, kir_type t, kir_value acc, kir_value x);
kir_value kir_identity(kir_reduce kind, kir_type t);

/* Whether x replaces `best` as the extreme of ARGMAX or ARGMIN: strictly beyond it, or the first NaN. */
bool kir_beats(kir_reduce kind, kir_type t, kir_value x, kir_value best);

/* A CONST's value, and the CONST (op, type and imm set) of a value. */
kir_value kir_const_value(const kir_ins *in);
kir_ins kir_const_ins(kir_type t, kir_value v);

#endif
