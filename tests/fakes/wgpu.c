/* wgpu.c — a wgpu-native of version 22, or of the version that -DVERSION gives. Below 24 any call but the first
 * crashes. */
#include "fake.h"

#ifndef VERSION
#define VERSION 22
#endif

uint32_t wgpuGetVersion(void) { return (uint32_t)VERSION << 24 | 1 << 16; }

static void be_new_enough(void) {
    if (VERSION < 24) raise(SIGSEGV);
}

void *wgpuCreateInstance(const void *descriptor) {
    (void)descriptor;
    be_new_enough();
    return fake_first_call() ? NULL : (void *)1;
}

size_t wgpuInstanceEnumerateAdapters(void *instance, const void *options, void **adapters) {
    (void)instance;
    (void)options;
    be_new_enough();
    if (adapters) adapters[0] = (void *)2;
    return getenv("FAKE_COUNT") ? (size_t)atoi(getenv("FAKE_COUNT")) : 1;
}

typedef struct text {
    const char *data;
    size_t length;
} text;

typedef struct adapter_info {
    void *next;
    text vendor, architecture, device, description;
    uint32_t backend, type, vendor_id, device_id;
} adapter_info;

uint32_t wgpuAdapterGetInfo(void *adapter, adapter_info *info) {
    (void)adapter;
    be_new_enough();
    info->device = (text){"Fake adapter, and more", 12};
    info->backend = 6;
    info->type = 1;
    return 1;
}

/* The rest of what a driver looks for. */
// clang-format off
#define CALL(name) \
    void wgpu##name(void) { be_new_enough(); }
CALL(AdapterInfoFreeMembers)
CALL(InstanceRelease) CALL(InstanceProcessEvents) CALL(AdapterGetLimits) CALL(AdapterRequestDevice)
CALL(AdapterRelease) CALL(DeviceGetQueue) CALL(DeviceRelease) CALL(DevicePushErrorScope) CALL(DevicePopErrorScope)
CALL(DeviceCreateBuffer) CALL(DeviceCreateShaderModule) CALL(DeviceCreateBindGroupLayout)
CALL(DeviceCreatePipelineLayout) CALL(DeviceCreateComputePipeline) CALL(DeviceCreateBindGroup)
CALL(DeviceCreateCommandEncoder) CALL(BufferMapAsync) CALL(BufferGetConstMappedRange) CALL(BufferUnmap)
CALL(BufferRelease) CALL(ShaderModuleRelease) CALL(BindGroupLayoutRelease) CALL(PipelineLayoutRelease)
CALL(ComputePipelineRelease) CALL(BindGroupRelease) CALL(CommandEncoderBeginComputePass)
CALL(CommandEncoderCopyBufferToBuffer) CALL(CommandEncoderClearBuffer) CALL(CommandEncoderFinish)
CALL(CommandEncoderRelease) CALL(CommandBufferRelease) CALL(ComputePassEncoderSetPipeline)
CALL(ComputePassEncoderSetBindGroup) CALL(ComputePassEncoderDispatchWorkgroups) CALL(ComputePassEncoderEnd)
CALL(ComputePassEncoderRelease) CALL(QueueWriteBuffer) CALL(QueueSubmit) CALL(QueueRelease)
