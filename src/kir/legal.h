/* legal.h — programs made simpler, with the same meaning and bits, for languages that lack functions and types.
 *
 * A rewritten program has the axes, sizes, dials, buffers and accesses of the one it was made of, so a launch of one is
 * a launch of the other; only instructions differ, and with KIR_LEGAL_HALVES the dtypes that buffers are declared
 * with. The interpreter runs it like any other. Its steps are those of kir_math.h (legal_table.h is generated from it):
 * there is one definition of each function. */
#ifndef KIR_LEGAL_H
#define KIR_LEGAL_H

#include "kir/kir.h"

enum {
    /* No EXP, LOG, SIN, COS, TANH, ERF, PHILOX, MIN, MAX, float MOD, ABS of an integer, LT or LE of BOOLs. Integer DIV
     * and MOD have divisors that are not 0 and quotients that fit; counts of SHL and SHR lie inside the type's width; a
     * CAST from float to integer has a value that fits (truncating), where its result is of use: behind a SELECT the
     * other operand may come from anything. Reductions and scans stay: MAX and MIN of floats there are kir.h's. */
    KIR_LEGAL_MATHS = 1,
    /* Buffers of f16 and bf16 become buffers of u16, local ones too; conversions are arithmetic. */
    KIR_LEGAL_HALVES = 2,
    /* An f32 DIAL becomes the U64 DIAL of its bits and arithmetic: for devices without f64. */
    KIR_LEGAL_DIALS = 4,
};

/* Errors: TN_ERR_UNSUPPORTED for what has no steps (SIN and COS of f64), TN_ERR_ARGUMENT when the program grows beyond
 * KIR_MAX_INS, TN_ERR_MEMORY. The result is freed with kir_free. */
tn_status kir_legalise(const kir_program *p, unsigned what, kir_program **out);

#endif
