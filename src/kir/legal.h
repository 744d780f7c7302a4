/* legal.h — rewrites programs, with the same meaning and bits, for languages that lack functions and types.
 *
 * A rewritten program has the axes, sizes, runtime scalars, buffers and accesses of the original, so it takes the same
 * launches. Only instructions differ, and with KIR_LEGAL_HALVES and KIR_LEGAL_BRAINS the dtypes that buffers are
 * declared with. The interpreter runs it like any other. Its steps are those of kir_math.h (legal_table.h is generated
 * from it), so each function has one definition. */
#ifndef KIR_LEGAL_H
#define KIR_LEGAL_H

#include "kir/kir.h"

enum {
    /* No EXP, LOG, SIN, COS, TANH, ERF, PHILOX, MIN, MAX, float MOD, ABS of an integer, LT or LE of BOOLs. Integer DIV
     * and MOD have nonzero divisors and quotients that fit; counts of SHL and SHR are within the type's width; a CAST
     * from float to integer has a value that fits (truncating) wherever its result is used: the operand that a SELECT
     * drops may be anything. Reductions and scans stay: their MAX and MIN of floats are those of kir.h. */
    KIR_LEGAL_MATHS = 1,
    /* No I64 and U64: a program of words (kir.h). Implies MATHS and SCALARS. Sizes and
     * parameters are unchanged, and each is read as a 32-bit integer, so only narrow launches may run it: those in
     * which the numbers of points and of loop points, and the affine part of every index and of every INDEX, fit an
     * int32_t (kir_target.index32), on buffers of fewer than 2^31 elements. What is known to fit 32 bits is computed in
     * 32 bits, everything else in pairs; reductions of 64-bit integers become variables. Conversions between f64 and
     * 64-bit integers are TN_ERR_UNSUPPORTED. */
    KIR_LEGAL_I64 = 2,
    /* Buffers of f16 become buffers of u16, local ones too; conversions are arithmetic. The same for bf16 below. */
    KIR_LEGAL_HALVES = 4,
    /* An f32 SCALAR becomes the U64 SCALAR of its bits and arithmetic: for devices without f64. */
    KIR_LEGAL_SCALARS = 8,
    KIR_LEGAL_BRAINS = 16,
};

/* p is a verified program. Errors: TN_ERR_UNSUPPORTED if it grows beyond KIR_MAX_LEGAL_INS, and as above;
 * TN_ERR_MEMORY. The result is freed with kir_free. */
tn_status kir_legalise(const kir_program *p, unsigned what, kir_program **out);

#endif
