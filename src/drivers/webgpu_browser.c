/* webgpu_browser.c — WebGPU's functions in a browser: imports of the module, which web/webgpu.js provides.
 *
 * That file reads and writes the structures of webgpu.h by numbers; the assertions here say where each member lies. */
#include "drivers/webgpu_device.h"

#if defined(__wasm__) && TRUNNION_WITH_WEBGPU

#define X(name, result, parameters) \
    __attribute__((import_module("webgpu"), import_name("wgpu" #name))) result wgpu##name parameters;
CALLS(X)
#undef X

void tn_wg_import(void) {
#define X(name, result, parameters) .name = wgpu##name,
    tn_wg_gpu = (wg_calls){CALLS(X)};
#undef X
    tn_wg_gpu.DevicePoll = NULL; /* a browser has no such function */
}

#define AT(type, member, offset) _Static_assert(offsetof(wgpu_##type, member) == (offset), #type "." #member)
AT(adapter_info, vendor, 4);
AT(adapter_info, architecture, 12);
AT(adapter_info, device, 20);
AT(adapter_info, description, 28);
AT(adapter_info, backend, 36);
AT(adapter_info, type, 40);
AT(limits, bind_groups, 20);
AT(limits, storage_buffers, 48);
AT(limits, uniform_buffers, 56);
AT(limits, uniform_binding, 64);
AT(limits, storage_binding, 72);
AT(limits, uniform_alignment, 80);
AT(limits, buffer, 96);
AT(limits, group_storage, 124);
AT(limits, groups, 144);
AT(callback, call, 8);
AT(device_descriptor, limits, 20);
AT(device_descriptor, lost, 36);
AT(device_descriptor, error, 56);
AT(error_callback, call, 4);
AT(buffer_descriptor, usage, 16);
AT(labelled, next, 0);
AT(wgsl, code, 8);
AT(layout_entry, visibility, 8);
AT(layout_entry, buffer, 16);
_Static_assert(sizeof(wgpu_layout_entry) == 104, "layout_entry");
AT(bind_group_layout_descriptor, count, 12);
AT(pipeline_layout_descriptor, count, 12);
AT(bind_group_entry, buffer, 8);
AT(bind_group_entry, offset, 16);
_Static_assert(sizeof(wgpu_bind_group_entry) == 40, "bind_group_entry");
AT(bind_group_descriptor, layout, 12);
AT(pipeline_descriptor, layout, 12);
AT(pipeline_descriptor, module, 20);

#endif
