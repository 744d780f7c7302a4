/* engines.h — the engines, one file each (plan/engine.h). */
#ifndef TN_ENGINES_H
#define TN_ENGINES_H

#include "plan/engine.h"

extern const tn_engine tn_engine_onnxruntime;
extern const tn_op_engine tn_op_engine_torch;

#endif
