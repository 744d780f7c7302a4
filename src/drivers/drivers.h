/* drivers.h — the drivers, one file each. */
#ifndef TN_DRIVERS_H
#define TN_DRIVERS_H

#include "hal/hal.h"

extern const tn_driver tn_driver_cuda, tn_driver_rocm, tn_driver_metal, tn_driver_vulkan, tn_driver_opencl,
    tn_driver_webgpu, tn_driver_cpu, tn_driver_onnxruntime, tn_driver_torch, tn_driver_null;

#endif
