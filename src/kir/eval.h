/* eval.h — one operation on one point: what constant folding and the interpreter share. */
#ifndef KIR_EVAL_H
#define KIR_EVAL_H

#include "kir/kir.h"

typedef union kir_value {
    float f32;
    double f64;
    int32_t i32;
    int64_t i64;
    uint32_t u32;
    uint64_t u64;
    uint8_t b;
} kir_value;

/* Evaluates a pure operation (NEG … PHILOX) on operands of type `operand` (a SELECT: that of b and c). false for any
 * other operation; *out is untouched then. */
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
