/* drivers.c — the list of backends: one row per driver, in the order in which devices are chosen.
 *
 * hal/ opens devices from this list and knows no driver by name, so a program can link hal/ with its own list. */
#include "drivers/drivers.h"

/* CMake defines each TRUNNION_WITH_… as 1 or 0 (option TRUNNION_…). */
#define BUILT(part, driver) ((part) ? &(driver) : NULL)

const tn_backend_row tn_backend_rows[] = {
    {.name = "cuda", .title = "NVIDIA CUDA", .driver = BUILT(TRUNNION_WITH_CUDA, tn_driver_cuda)},
    {.name = "rocm", .title = "AMD ROCm", .driver = BUILT(TRUNNION_WITH_ROCM, tn_driver_rocm)},
    {.name = "metal", .title = "Apple Metal", .driver = BUILT(TRUNNION_WITH_METAL, tn_driver_metal)},
    {.name = "vulkan", .title = "Vulkan", .driver = BUILT(TRUNNION_WITH_VULKAN, tn_driver_vulkan)},
    {.name = "opencl", .title = "OpenCL", .driver = BUILT(TRUNNION_WITH_OPENCL, tn_driver_opencl)},
    {.name = "webgpu", .title = "WebGPU", .driver = BUILT(TRUNNION_WITH_WEBGPU, tn_driver_webgpu)},
    {.name = "null", .title = "Null driver", .driver = &tn_driver_null, .wanted_by = "TRUNNION_NULL"},
    {.name = "cpu", .title = "CPU", .driver = &tn_driver_cpu, .is_cpu = true},
    {.name = "engine:onnxruntime",
     .title = "ONNX Runtime",
     .driver = BUILT(TRUNNION_WITH_ONNXRUNTIME, tn_driver_onnxruntime),
     .is_engine = true},
    {.name = "engine:torch",
     .title = "LibTorch",
     .driver = BUILT(TRUNNION_WITH_TORCH, tn_driver_torch),
     .is_engine = true},
    {0},
};
