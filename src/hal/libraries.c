/* libraries.c — the public face of the libraries for matrix products (kern/blas.c). */
#include <stdio.h>
#include <string.h>

#include "hal/hal.h"
#include "kern/blas.h"

int tn_library_count(void) { return tn_blas_count(); }

tn_status tn_library_at(int i, tn_library_info *out) {
    TRY(tn_need(out, "tn_library_at: out"));
    if (out->struct_size < sizeof(size_t))
        return tn_fail(TN_ERR_ARGUMENT, "tn_library_at: out->struct_size is not set");
    if (i < 0 || i >= tn_blas_count())
        return tn_fail(TN_ERR_ARGUMENT, "tn_library_at: row %d; there are %d", i, tn_blas_count());
    tn_blas_facts facts;
    tn_blas_look(i, &facts);
    tn_library_info full = {
        .struct_size = out->struct_size, .available = facts.why.code == TN_REASON_NONE, .in_use = facts.chosen};
    snprintf(full.name, sizeof full.name, "%s", facts.name);
    snprintf(full.title, sizeof full.title, "%s", facts.title);
    snprintf(full.path, sizeof full.path, "%s", facts.path);
    snprintf(full.description, sizeof full.description, "%s", facts.description);
    snprintf(full.reason_code, sizeof full.reason_code, "%s", tn_reason_code_name(facts.why.code));
    snprintf(full.reason, sizeof full.reason, "%s", facts.why.text);
    snprintf(full.fix, sizeof full.fix, "%s", facts.why.fix);
    memcpy(out, &full, out->struct_size < sizeof full ? out->struct_size : sizeof full);
    return TN_OK;
}

tn_status tn_set_library(const char *name) { return tn_blas_choose(name); }

const char *tn_get_library(void) { return tn_blas_name(tn_blas_chosen()); }
