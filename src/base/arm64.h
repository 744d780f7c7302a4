/* arm64.h — what ARM64 processors have beyond NEON, which all of them have. */
#ifndef TN_ARM64_H
#define TN_ARM64_H

#include <stdbool.h>

/* Dot products of four bytes of one sign (sdot, udot). False on other processors, and with TRUNNION_ISA=baseline. */
bool tn_arm64_has_dotprod(void);
/* The extension i8mm: those of a byte without a sign and one with a sign (usdot), too. */
bool tn_arm64_has_i8mm(void);
/* Dot products of pairs of bf16 (bfdot). */
bool tn_arm64_has_bf16(void);

#endif
