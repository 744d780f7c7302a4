/* kir_print.h — for messages of tests: programs of the kernel language as text. */
#ifndef TN_TESTS_KIR_PRINT_H
#define TN_TESTS_KIR_PRINT_H

#include "base/base.h"
#include "kir/kir.h"

void kir_print(const kir_program *p, const int64_t *sizes, tn_str *out); /* one instruction a line; sizes may be NULL */
const char *kir_type_name(kir_type t);

#endif
