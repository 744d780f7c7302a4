/* trunnion.h — everything that programs need; each header also stands on its own. Authors of drivers: backend.h. */
#ifndef TRUNNION_TRUNNION_H
#define TRUNNION_TRUNNION_H

#include "trunnion/amp.h"
#include "trunnion/autograd.h"
#include "trunnion/certify.h"
#include "trunnion/data.h"
#include "trunnion/data_parallel.h"
#include "trunnion/device.h"
#include "trunnion/distributed.h"
#include "trunnion/engine.h"
#include "trunnion/functions.h"
#include "trunnion/json.h"
#include "trunnion/kernels.h"
#include "trunnion/linalg.h"
#include "trunnion/model.h"
#include "trunnion/nn.h"
#include "trunnion/onnx.h"
#include "trunnion/ops.h"
#include "trunnion/optim.h"
#include "trunnion/status.h"
#include "trunnion/survive.h"
#include "trunnion/tensor.h"
#include "trunnion/tune.h"

#endif
