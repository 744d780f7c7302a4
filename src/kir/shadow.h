/* shadow.h — what the items of a workgroup did to memory since the last barrier: how the interpreter finds races.
 *
 * Each element that is watched has a note: the phase (a stretch between two barriers) in which it was last touched, who
 * wrote and who read it then. Two items in one phase, one of them writing, are a race; so are two workgroups, whatever
 * their barriers, for those have no order at all. */
#ifndef KIR_SHADOW_H
#define KIR_SHADOW_H

#include "base/base.h"

typedef struct kir_shadow kir_shadow;

/* `local` is the memory of one workgroup after the other. */
tn_status kir_shadow_open(const char *local, int64_t bytes, kir_shadow **out);
void kir_shadow_close(kir_shadow *s);

void kir_shadow_group(kir_shadow *s); /* the next workgroup begins: local memory is undefined */
void kir_shadow_barrier(kir_shadow *s);

/* An item loads or stores the element at `at`, which is in local memory or not. *wrong: what is wrong with it. */
tn_status kir_shadow_load(kir_shadow *s, const char *at, bool local, int item, const char **wrong);
tn_status kir_shadow_store(kir_shadow *s, const char *at, bool local, int item, const char **wrong);

#endif
