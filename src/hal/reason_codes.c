/* reason_codes.c — the meaning of reason codes, from reason_codes.def. */
#include "hal/hal.h"

static const tn_reason_help reasons[] = {
#define REASON(code, meaning, fix) {#code, meaning, fix},
#include "hal/reason_codes.def"
#undef REASON
};

const tn_reason_help *tn_reason_help_at(int i) { return i >= 0 && i < (int)TN_COUNT(reasons) ? &reasons[i] : NULL; }
