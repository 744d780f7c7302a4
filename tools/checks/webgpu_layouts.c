/* webgpu_layouts.c — src/drivers/webgpu.h beside the header of the library that tools/setup.sh fetched: places, sizes
 * and numbers are the same. It is compiled with optimisation, and never run. */
#include <stddef.h>

#include "drivers/webgpu.h"
#include "webgpu.h"

#define SAME(ours, field, theirs, name)                                                          \
    _Static_assert(offsetof(ours, field) == offsetof(theirs, name), #field " stands elsewhere"); \
    _Static_assert(sizeof(((ours *)0)->field) == sizeof(((theirs *)0)->name), #field " has another size")
#define SIZE(ours, theirs) _Static_assert(sizeof(ours) == sizeof(theirs), #ours " has another size")
#define NUMBER(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours " is another number")

SIZE(wgpu_text, WGPUStringView);
SAME(wgpu_text, length, WGPUStringView, length);
SAME(wgpu_adapter_info, device, WGPUAdapterInfo, device);
SAME(wgpu_adapter_info, description, WGPUAdapterInfo, description);
SAME(wgpu_adapter_info, backend, WGPUAdapterInfo, backendType);
SAME(wgpu_adapter_info, type, WGPUAdapterInfo, adapterType);
_Static_assert(sizeof(wgpu_adapter_info) >= sizeof(WGPUAdapterInfo), "no room for all of it");
SAME(wgpu_limits, storage_buffers, WGPULimits, maxStorageBuffersPerShaderStage);
SAME(wgpu_limits, uniform_binding, WGPULimits, maxUniformBufferBindingSize);
SAME(wgpu_limits, storage_binding, WGPULimits, maxStorageBufferBindingSize);
SAME(wgpu_limits, uniform_alignment, WGPULimits, minUniformBufferOffsetAlignment);
SAME(wgpu_limits, storage_alignment, WGPULimits, minStorageBufferOffsetAlignment);
SAME(wgpu_limits, buffer, WGPULimits, maxBufferSize);
SAME(wgpu_limits, group_storage, WGPULimits, maxComputeWorkgroupStorageSize);
SAME(wgpu_limits, group_items, WGPULimits, maxComputeInvocationsPerWorkgroup);
SAME(wgpu_limits, group_x, WGPULimits, maxComputeWorkgroupSizeX);
SAME(wgpu_limits, group_y, WGPULimits, maxComputeWorkgroupSizeY);
SAME(wgpu_limits, group_z, WGPULimits, maxComputeWorkgroupSizeZ);
SAME(wgpu_limits, groups, WGPULimits, maxComputeWorkgroupsPerDimension);
_Static_assert(sizeof(wgpu_limits) >= sizeof(WGPULimits), "no room for all of it");
SIZE(wgpu_callback, WGPUBufferMapCallbackInfo);
SIZE(wgpu_callback, WGPURequestDeviceCallbackInfo);
SIZE(wgpu_callback, WGPUPopErrorScopeCallbackInfo);
SAME(wgpu_callback, call, WGPUBufferMapCallbackInfo, callback);
SAME(wgpu_callback, b, WGPUBufferMapCallbackInfo, userdata2);
SIZE(wgpu_error_callback, WGPUUncapturedErrorCallbackInfo);
SAME(wgpu_error_callback, call, WGPUUncapturedErrorCallbackInfo, callback);
SIZE(wgpu_device_descriptor, WGPUDeviceDescriptor);
SAME(wgpu_device_descriptor, limits, WGPUDeviceDescriptor, requiredLimits);
SAME(wgpu_device_descriptor, lost, WGPUDeviceDescriptor, deviceLostCallbackInfo);
SAME(wgpu_device_descriptor, error, WGPUDeviceDescriptor, uncapturedErrorCallbackInfo);
SIZE(wgpu_buffer_descriptor, WGPUBufferDescriptor);
SAME(wgpu_buffer_descriptor, usage, WGPUBufferDescriptor, usage);
SAME(wgpu_buffer_descriptor, size, WGPUBufferDescriptor, size);
SIZE(wgpu_wgsl, WGPUShaderSourceWGSL);
SAME(wgpu_wgsl, type, WGPUShaderSourceWGSL, chain.sType);
SAME(wgpu_wgsl, code, WGPUShaderSourceWGSL, code);
SIZE(wgpu_labelled, WGPUShaderModuleDescriptor);
SIZE(wgpu_labelled, WGPUCommandEncoderDescriptor);
SIZE(wgpu_labelled, WGPUCommandBufferDescriptor);
SIZE(wgpu_buffer_layout, WGPUBufferBindingLayout);
SAME(wgpu_buffer_layout, has_dynamic_offset, WGPUBufferBindingLayout, hasDynamicOffset);
SIZE(wgpu_layout_entry_28, WGPUBindGroupLayoutEntry);
SAME(wgpu_layout_entry_28, visibility, WGPUBindGroupLayoutEntry, visibility);
SAME(wgpu_layout_entry_28, buffer, WGPUBindGroupLayoutEntry, buffer);
SIZE(wgpu_bind_group_layout_descriptor, WGPUBindGroupLayoutDescriptor);
SAME(wgpu_bind_group_layout_descriptor, entries, WGPUBindGroupLayoutDescriptor, entries);
SAME(wgpu_pipeline_layout_descriptor, layouts, WGPUPipelineLayoutDescriptor, bindGroupLayouts);
_Static_assert(sizeof(wgpu_pipeline_layout_descriptor) >= sizeof(WGPUPipelineLayoutDescriptor), "no room for it");
SIZE(wgpu_bind_group_entry, WGPUBindGroupEntry);
SAME(wgpu_bind_group_entry, buffer, WGPUBindGroupEntry, buffer);
SAME(wgpu_bind_group_entry, size, WGPUBindGroupEntry, size);
SIZE(wgpu_bind_group_descriptor, WGPUBindGroupDescriptor);
SAME(wgpu_bind_group_descriptor, entries, WGPUBindGroupDescriptor, entries);
SIZE(wgpu_pipeline_descriptor, WGPUComputePipelineDescriptor);
SAME(wgpu_pipeline_descriptor, module, WGPUComputePipelineDescriptor, compute.module);
SAME(wgpu_pipeline_descriptor, entry, WGPUComputePipelineDescriptor, compute.entryPoint);
SIZE(wgpu_future, WGPUFuture);

NUMBER(STATUS_SUCCESS, WGPUStatus_Success);
NUMBER(STATUS_SUCCESS, WGPURequestDeviceStatus_Success);
NUMBER(STATUS_SUCCESS, WGPUMapAsyncStatus_Success);
NUMBER(STATUS_SUCCESS, WGPUPopErrorScopeStatus_Success);
NUMBER(ADAPTER_INTEGRATED, WGPUAdapterType_IntegratedGPU);
NUMBER(ADAPTER_CPU, WGPUAdapterType_CPU);
NUMBER(ON_PROCESS_EVENTS, WGPUCallbackMode_AllowProcessEvents);
NUMBER(SPONTANEOUS, WGPUCallbackMode_AllowSpontaneous);
NUMBER(SCOPE_VALIDATION, WGPUErrorFilter_Validation);
NUMBER(SCOPE_MEMORY, WGPUErrorFilter_OutOfMemory);
NUMBER(ERROR_NONE, WGPUErrorType_NoError);
NUMBER(ERROR_VALIDATION, WGPUErrorType_Validation);
NUMBER(ERROR_MEMORY, WGPUErrorType_OutOfMemory);
NUMBER(ERROR_INTERNAL, WGPUErrorType_Internal);
NUMBER(LOST_DESTROYED, WGPUDeviceLostReason_Destroyed);
NUMBER(LOST_CANCELLED, WGPUDeviceLostReason_CallbackCancelled);
NUMBER(CHAIN_WGSL, WGPUSType_ShaderSourceWGSL);
NUMBER(BINDING_UNIFORM, WGPUBufferBindingType_Uniform);
NUMBER(BINDING_STORAGE, WGPUBufferBindingType_Storage);
NUMBER(BINDING_READ_ONLY, WGPUBufferBindingType_ReadOnlyStorage);

/* Flags are constants of a kind that only an optimising compiler can compare. */
void a_flag_differs(void) __attribute__((error("a flag is another number")));
void compare_flags(void);
void compare_flags(void) {
    if (STAGE_COMPUTE != WGPUShaderStage_Compute) a_flag_differs();
    if (USE_MAP_READ != WGPUBufferUsage_MapRead) a_flag_differs();
    if (USE_COPY_FROM != WGPUBufferUsage_CopySrc) a_flag_differs();
    if (USE_COPY_TO != WGPUBufferUsage_CopyDst) a_flag_differs();
    if (USE_UNIFORM != WGPUBufferUsage_Uniform) a_flag_differs();
    if (USE_STORAGE != WGPUBufferUsage_Storage) a_flag_differs();
    if (MAP_READ != WGPUMapMode_Read) a_flag_differs();
}
