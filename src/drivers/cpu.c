/* cpu.c — the driver of the CPU: memory is the process's own, a module is a program of the tile VM.
 *
 * Calls have completed when they return, so sync does nothing. Native kernels (src/cpu) do not use this driver: they
 * work directly on the buffers' addresses, which are plain pointers. */
#include <stdio.h>
#include <string.h>

#include "drivers/drivers.h"

/* hal passes a launch to the VM unchanged. */
_Static_assert(sizeof(tn_launch) == sizeof(kir_launch), "tn_launch and kir_launch have one layout");
_Static_assert(offsetof(tn_launch, sizes) == offsetof(kir_launch, sizes), "tn_launch and kir_launch have one layout");
_Static_assert(offsetof(tn_launch, buffers) == offsetof(kir_launch, buffers),
               "tn_launch and kir_launch have one layout");
_Static_assert(offsetof(tn_launch, scalars) == offsetof(kir_launch, scalars),
               "tn_launch and kir_launch have one layout");

static int the_processor; /* the handle of every open: there is one CPU, without state of its own */

static void cpu_probe(tn_probe *out) {
    const tn_cpu_info cpu = tn_cpu();
    const tn_host_memory memory = tn_host_memory_now();
    if (out->capacity < 1) return;
    tn_device_info *d = &out->devices[0];
    snprintf(d->name, sizeof d->name, "%s", cpu.name);
    snprintf(d->compute_capability, sizeof d->compute_capability, "%s", cpu.neon ? "neon" : tn_isa_name(cpu.isa));
    d->total_memory = memory.total;
    d->free_memory = memory.unused;
    d->unified_memory = true;
    d->threads = tn_threads();
    out->count = 1;
}

static tn_status cpu_open(int index, const tn_device_options *options, void **device) {
    if (index != 0) return tn_fail(TN_ERR_ARGUMENT, "cpu:%d does not exist; the only CPU device is cpu:0", index);
    if (options->threads) TRY(tn_threads_set(options->threads));
    if (options->simd) tn_cpu_limit((tn_isa)(options->simd - 1)); /* 1 is the baseline, which is level 0 */
    *device = &the_processor;
    return TN_OK;
}

void tn_cpu_close(void *device) { (void)device; }

static tn_status cpu_caps(TN_UNUSED void *device, tn_caps *out) {
    *out = (tn_caps){
        .struct_size = sizeof *out,
        .code = TN_CODE_KIR,
        .f64 = true,
        .i64 = true,
        .max_buffer = INT64_MAX,
        .max_group = 1,
        .alignment = 64,
        .host_visible = true,
        .exact = true,
    };
    return TN_OK;
}

tn_status tn_cpu_alloc(TN_UNUSED void *device, size_t bytes, void **address) {
    *address = tn_mem_alloc_pages(bytes);
    return *address ? TN_OK : TN_ERR_MEMORY;
}

void tn_cpu_free(TN_UNUSED void *device, void *address) { tn_mem_free(address); }

tn_status tn_cpu_load(TN_UNUSED void *device, const tn_code *code, void **module) {
    kir_vm *vm = NULL;
    TRY(kir_vm_compile(code->data, &vm));
    *module = vm;
    return TN_OK;
}

void tn_cpu_unload(TN_UNUSED void *device, void *module) { kir_vm_free(module); }

tn_status tn_cpu_launch(TN_UNUSED void *device, void *module, const tn_launch *launches, int64_t count) {
    return kir_vm_run(module, (const kir_launch *)launches, count);
}

tn_status tn_cpu_prepare(TN_UNUSED void *device, void *module, const tn_launch *launches, int64_t count) {
    return kir_vm_reserve(module, (const kir_launch *)launches, count);
}

typedef struct copying {
    char *to;
    const char *from;
} copying;

static void copy_part(void *ctx, int64_t begin, int64_t end, TN_UNUSED int worker) {
    const copying *c = ctx;
    memcpy(c->to + begin, c->from + begin, (size_t)(end - begin));
}

/* Data written by several threads is in their caches, and each thread copies about what it wrote. */
tn_status tn_cpu_copy(TN_UNUSED void *device, void *dst, const void *src, size_t bytes, TN_UNUSED int kind) {
    enum { PART_BYTES = 48 << 10 }; /* some microseconds out of another processor's cache */
    tn_parallel((int64_t)bytes, PART_BYTES, copy_part, &(copying){dst, src});
    return TN_OK;
}

tn_status tn_cpu_sync(TN_UNUSED void *device) { return TN_OK; }

tn_status tn_cpu_memory(TN_UNUSED void *device, int64_t *total, int64_t *unused) {
    const tn_host_memory memory = tn_host_memory_now();
    *total = memory.total;
    *unused = memory.unused;
    return TN_OK;
}

const tn_driver tn_driver_cpu = {
    .struct_size = sizeof(tn_driver),
    .abi = TN_BACKEND_ABI,
    .name = "cpu",
    .title = "CPU",
    .probe = cpu_probe,
    .open = cpu_open,
    .close = tn_cpu_close,
    .caps = cpu_caps,
    .alloc = tn_cpu_alloc,
    .free = tn_cpu_free,
    .load = tn_cpu_load,
    .unload = tn_cpu_unload,
    .launch = tn_cpu_launch,
    .copy = tn_cpu_copy,
    .sync = tn_cpu_sync,
    .memory = tn_cpu_memory,
    .prepare = tn_cpu_prepare,
};
