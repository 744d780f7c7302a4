/* engines.c — the list of engines. plan/ finds that of a device here by its backend's name. */
#include "engines/engines.h"

const tn_engine *const tn_engines[] = {
#if TRUNNION_WITH_ONNXRUNTIME
    &tn_engine_onnxruntime,
#endif
    NULL,
};

const tn_op_engine *const tn_op_engines[] = {
#if TRUNNION_WITH_TORCH
    &tn_op_engine_torch,
#endif
    NULL,
};
