/* legal_words.h — what the files of kir_legalise share: running the steps of a function, and the pass that leaves no
 * integers of 64 bits. */
#ifndef KIR_LEGAL_WORDS_H
#define KIR_LEGAL_WORDS_H

#include "kir/kir.h"
#include "kir/legal_table.h"

/* Appends the steps of a function (LEGAL_EXP_F32 …) on these arguments; *high, unless NULL: what its pointer gets. */
kir_val kir_legal_run(kir_builder *b, int function, const kir_val *arguments, kir_val *high);

/* The program of words with the meaning of p, which has been through KIR_LEGAL_MATHS but for DIV, MOD, MIN and MAX of
 * 64-bit integers. */
tn_status kir_legal_words(const kir_program *p, kir_program **out);

#endif
