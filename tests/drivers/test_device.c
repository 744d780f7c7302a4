/* test_device.c — promises of listing: every reason comes from a library that really behaves that way (tests/fakes,
 * built here), what is found is told, and the record on disk. Choosing, memory and kernels: test_hal.c.
 *
 * Started with --list [fresh] it prints the listing, for the tests that need a fresh process. */
#include "device_support.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "hal/discovery.h"

/* ---- helpers ---------------------------------------------------------------------------------------------------- */

/* Looks anew and compares one backend's reason; `part` has to be in its text. */
static void assert_reason(const char *name, const char *code, const char *part) {
    tn_device_list *l = list_new(true);
    const tn_backend_info *b = backend_in(l, name);
    if (strcmp(b->reason_code, code) != 0) fail_msg("%s: %s (%s), not %s", name, b->reason_code, b->reason, code);
    assert_text_has(b->reason, part);
    assert_false(b->available);
    tn_device_list_free(l);
}

/* Runs this program in a fresh process; its output, valid until the next call. */
static const char *run_self(const char *arguments) {
    static char text[8192];
    char self[512], command[600];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(n > 0);
    self[n] = 0;
    snprintf(command, sizeof command, "%s %s", self, arguments);
    FILE *p = popen(command, "r");
    assert_non_null(p);
    text[fread(text, 1, sizeof text - 1, p)] = 0;
    assert_int_equal(pclose(p), 0);
    return text;
}

static const char *list_elsewhere(void) { return run_self("--list"); }

static int print_list(const char *how) {
    bool fresh = !strcmp(how, "fresh");
    if (!strcmp(how, "without-files")) (void)setrlimit(RLIMIT_NOFILE, &(struct rlimit){4, 4});
    if (!strcmp(how, "in-little-space")) (void)setrlimit(RLIMIT_AS, &(struct rlimit){(rlim_t)1 << 46, (rlim_t)1 << 46});
    tn_device_list *l;
    double begun = tn_now();
    if (tn_device_list_new(fresh, &l) != TN_OK) return 1;
    double seconds = tn_now() - begun;
    for (int i = 0; i < tn_device_list_count(l); i++) {
        const tn_backend_info *b = tn_device_list_at(l, i);
        printf("%s=%s devices %d\n", b->name, b->reason_code, b->device_count);
        for (int k = 0; k < b->device_count; k++)
            printf("  %s: %s\n", b->devices[k].id, b->devices[k].name);
    }
    printf("milliseconds %.1f\n", seconds * 1e3);
    tn_device_list_free(l);
    return 0;
}

static long size_of(const char *path) {
    struct stat s;
    return stat(path, &s) == 0 ? (long)s.st_size : -1;
}

/* ---- reasons ----------------------------------------------------------------------------------------------------- */

static void absent_library_is_named(void **state) {
    (void)state;
    assert_reason("cuda", "library_not_found", "/nowhere/at-all.so");
    assert_reason("engine:torch", "library_not_found", "TRUNNION_TORCH_LIB");
}

static void a_long_reason_is_whole_or_says_that_it_is_not(void **state) {
    (void)state;
    static const int lengths[] = {300, 700};
    for (size_t i = 0; i < TN_COUNT(lengths); i++) {
        char path[800];
        snprintf(path, sizeof path, "/nowhere/%0*d", lengths[i], 0);
        setenv("TRUNNION_CUDA_LIB", path, 1);
        assert_reason("cuda", "library_not_found", lengths[i] < TN_REASON_BYTES ? path : "0…");
    }
}

static void toolkit_stub_counts_as_no_library(void **state) {
    (void)state;
    setenv("TRUNNION_CUDA_LIB", build_fake("gpu.c", "libcuda.so.1", ""), 1);
    setenv("FAKE_RESULT", "34", 1);
    assert_reason("cuda", "library_not_found", "stub");
}

/* A device that does not answer keeps its number, and those behind it theirs. */
static void a_mute_device_is_listed(void **state) {
    (void)state;
    tn_device_info devices[2];
    tn_probe probe = {.struct_size = sizeof probe, .devices = devices, .capacity = 2};
    setenv("TRUNNION_CUDA_LIB", build_fake("gpu.c", "libcuda.so.1", ""), 1);
    setenv("TRUNNION_NVRTC_LIB", getenv("TRUNNION_CUDA_LIB"), 1);
    setenv("FAKE_MUTE", "1", 1);
    tn_backend_driver("cuda")->probe(&probe);
    unsetenv("FAKE_MUTE");
    unsetenv("TRUNNION_NVRTC_LIB");
    assert_int_equal(probe.count, 2);
    assert_string_equal(devices[0].name, "CUDA driver");
    assert_string_equal(devices[1].name, "Fake GPU 1");
}

static void missing_function_is_named(void **state) {
    (void)state;
    setenv("TRUNNION_CUDA_LIB", build_fake("gpu.c", "libpartial.so", "-DWITHOUT_NAME"), 1);
    assert_reason("cuda", "symbol_missing", "cuDeviceGetName");
}

static void error_codes_become_reasons(void **state) {
    (void)state;
    const struct {
        const char *backend, *result, *code, *part;
    } rows[] = {
        {"cuda", "100", "no_device", "error 100"},     {"cuda", "35", "too_old", "older"},
        {"cuda", "803", "too_old", "different"},       {"cuda", "304", "init_failed", "operating system"},
        {"cuda", "999", "init_failed", "error 999"},   {"rocm", "100", "no_device", "error 100"},
        {"rocm", "101", "no_device", "error 101"},     {"rocm", "7", "init_failed", "error 7"},
        {"opencl", "-1001", "no_device", "no driver"}, {"opencl", "-6", "init_failed", "error -6"},
        {"vulkan", "-9", "no_device", "no driver"},    {"vulkan", "-3", "init_failed", "error -3"},
        {"vulkan", "0", "no_device", "no device"},     {"webgpu", "1", "init_failed", "no instance"},
        {"metal", "1", "no_device", "no device"},
    };
    setenv("TRUNNION_CUDA_LIB", build_fake("gpu.c", "libcuda.so.1", ""), 1);
    setenv("TRUNNION_ROCM_LIB", build_fake("gpu.c", "libamdhip64.so", "-DHIP"), 1);
    setenv("TRUNNION_OPENCL_LIB", build_fake("opencl.c", "libOpenCL.so.1", ""), 1);
    setenv("TRUNNION_VULKAN_LIB", build_fake("vulkan.c", "libvulkan.so.1", ""), 1);
    setenv("TRUNNION_WEBGPU_LIB", build_fake("wgpu.c", "libwgpu_native.so", "-DVERSION=29"), 1);
    setenv("TRUNNION_METAL_LIB", build_fake("metal.c", "Metal.so", ""), 1);
    setenv("TRUNNION_OBJC_LIB", getenv("TRUNNION_METAL_LIB"), 1);
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        setenv("FAKE_RESULT", rows[i].result, 1);
        assert_reason(rows[i].backend, rows[i].code, rows[i].part);
    }
}

static void crash_is_survived_and_named(void **state) {
    (void)state;
    setenv("TRUNNION_CUDA_LIB", build_fake("gpu.c", "libcuda.so.1", ""), 1);
    setenv("FAKE_DOES", "crash", 1);
    assert_reason("cuda", "crashed", "SIGSEGV");
    setenv("FAKE_DOES", "abort", 1);
    assert_reason("cuda", "crashed", "SIGABRT");
    setenv("FAKE_DOES", "loading-crash", 1);
    assert_reason("cuda", "crashed", "SIGSEGV");
    setenv("FAKE_DOES", "end", 1);
    assert_reason("cuda", "crashed", "ended the process");
}

static void hanging_library_costs_its_time_once(void **state) {
    (void)state;
    setenv("TRUNNION_CUDA_LIB", build_fake("gpu.c", "libcuda.so.1", ""), 1);
    setenv("TRUNNION_ROCM_LIB", build_fake("gpu.c", "libamdhip64.so", "-DHIP"), 1);
    setenv("TRUNNION_PROBE_SECONDS", "1", 1);
    setenv("FAKE_DOES", "hang", 1);
    double least = INFINITY; /* one after the other they can never take less than 2 s; side by side, one try will do */
    for (int tries = 0; tries < 10 && least >= 2; tries++) {
        double begun = tn_now();
        assert_reason("cuda", "crashed", "1 seconds");
        least = fmin(least, tn_now() - begun);
    }
    if (least >= 2) fail_msg("two hanging libraries took %.1f s; they should hang side by side", least);
}

static void find_one(tn_probe *out) { out->count = 1; }

/* A driver that hangs takes all the time that there is; those that answered meanwhile are heard all the same. */
static void answer_is_heard_however_late(void **state) {
    (void)state;
    const tn_driver quick = {.struct_size = sizeof quick, .name = "quick", .title = "Quick", .probe = find_one};
    static tn_probe_result found;
    tn_child c;
    tn_child_start(&quick, &c);
    struct pollfd answer = {.fd = c.fd, .events = POLLIN};
    assert_int_equal(poll(&answer, 1, 60000), 1);
    c.deadline = tn_now() - 1;
    tn_child_finish(&c, &found);
    assert_string_equal(found.reason, "");
    assert_int_equal(found.count, 1);
}

/* A host that ignores the end of its children is not told how they ended: what they wrote decides. */
static void children_are_heard_though_their_end_is_ignored(void **state) {
    (void)state;
    setenv("TRUNNION_CUDA_LIB", build_fake("gpu.c", "libcuda.so.1", ""), 1);
    void (*before)(int) = signal(SIGCHLD, SIG_IGN);
    tn_device_list *l = list_new(true);
    assert_true(backend_in(l, "cuda")->available);
    tn_device_list_free(l);
    setenv("FAKE_DOES", "crash", 1);
    assert_reason("cuda", "crashed", "ended the process");
    signal(SIGCHLD, before);
}

static void old_wgpu_is_refused_before_any_other_call(void **state) {
    (void)state;
    setenv("TRUNNION_WEBGPU_LIB", build_fake("wgpu.c", "libwgpu_native.so", ""), 1);
    assert_reason("webgpu", "too_old", "22.1");
}

static void metal_is_for_apple(void **state) {
    (void)state;
#ifdef __APPLE__
    skip();
#endif
    assert_reason("metal", "platform", "Apple");
}

/* Root may open everything, so root becomes somebody else for this. */
static int look_without_rights(void) {
    if (geteuid() == 0 && setuid(65534) != 0) return 2;
    tn_device_list *l;
    if (tn_device_list_new(true, &l) != TN_OK) return 3;
    for (int i = 0; i < tn_device_list_count(l); i++) {
        const tn_backend_info *b = tn_device_list_at(l, i);
        if (strcmp(b->name, "cuda") != 0) continue;
        bool right = !strcmp(b->reason_code, "permission") && strstr(b->reason, "nvidiactl") && strstr(b->fix, "group");
        if (!right) printf("%s: %s → %s\n", b->reason_code, b->reason, b->fix);
        return right ? 0 : 1;
    }
    return 4;
}

static void device_node_of_others_is_a_permission_problem(void **state) {
    (void)state;
    char node[600];
    snprintf(node, sizeof node, "%s/nvidiactl", test_scratch("dev"));
    assert_int_equal(mkdir(test_scratch("dev"), 0755), 0);
    write_file(node, "");
    assert_int_equal(chmod(node, 0), 0);
    assert_int_equal(chmod(scratch_folder, 0755), 0);
    const char *library = build_fake("gpu.c", "libcuda.so.1", "");
    assert_int_equal(chmod(library, 0755), 0);
    setenv("TRUNNION_CUDA_LIB", library, 1);
    setenv("TRUNNION_DEV", test_scratch("dev"), 1);
    setenv("FAKE_RESULT", "999", 1);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) _exit(look_without_rights());
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void library_noise_stays_out(void **state) {
    (void)state;
    setenv("TRUNNION_CUDA_LIB", build_fake("gpu.c", "libcuda.so.1", ""), 1);
    setenv("FAKE_DOES", "chatter", 1);
    assert_null(strstr(run_self("--list fresh 2>&1"), "noise"));
}

/* ---- what is found ----------------------------------------------------------------------------------------------- */

static void found_devices_are_told_with_the_truth(void **state) {
    (void)state;
    setenv("TRUNNION_CUDA_LIB", build_fake("gpu.c", "libcuda.so.1", ""), 1);
    setenv("TRUNNION_NVML_LIB", getenv("TRUNNION_CUDA_LIB"), 1);
    tn_device_list *l = list_new(true);
    const tn_backend_info *b = backend_in(l, "cuda");
    assert_true(b->available);
    assert_string_equal(b->reason_code, "none");
    assert_string_equal(b->reason, "");
    assert_string_equal(b->fix, "");
    assert_int_equal(b->device_count, 2);
    const tn_device_info *d = &b->devices[1];
    assert_string_equal(d->id, "cuda:1");
    assert_string_equal(d->backend, "cuda");
    assert_string_equal(d->name, "Fake GPU 1");
    assert_int_equal(d->total_memory, (int64_t)80 << 30);
    assert_int_equal(d->free_memory, (int64_t)60 << 30);
    assert_string_equal(d->compute_capability, "9.0");
    assert_string_equal(d->pci, "0000:66:00.0");
    assert_string_equal(d->uuid, "29292929292929292929292929292929");
    assert_true(d->usable);
    assert_false(d->software || d->unified_memory);
    assert_string_equal(tn_device_list_recommended(l), "cuda:0");
    tn_device_list_free(l);
}

static void devices_without_a_compiler_are_of_no_use(void **state) {
    (void)state;
    setenv("TRUNNION_CUDA_LIB", build_fake("gpu.c", "libcuda.so.1", ""), 1);
    setenv("TRUNNION_NVRTC_LIB", "/nowhere/at-all.so", 1);
    assert_reason("cuda", "library_not_found", "2 devices (Fake GPU 0), but the kernel compiler NVRTC was not found");
}

static void one_gpu_behind_two_interfaces_is_recognised(void **state) {
    (void)state;
    setenv("TRUNNION_CUDA_LIB", build_fake("gpu.c", "libcuda.so.1", ""), 1);
    setenv("TRUNNION_OPENCL_LIB", build_fake("opencl.c", "libOpenCL.so.1", ""), 1);
    tn_device_list *l = list_new(true);
    const tn_backend_info *b = backend_in(l, "opencl");
    assert_int_equal(b->device_count, 1);
    assert_string_equal(b->devices[0].name, "Fake GPU 0 (OpenCL)");
    assert_string_equal(b->devices[0].compute_capability, "OpenCL 3.0");
    assert_string_equal(b->devices[0].same_as, "cuda:0");
    assert_string_equal(backend_in(l, "cuda")->devices[0].same_as, "");
    tn_device_list_free(l);
}

static void rocm_webgpu_and_metal_are_read(void **state) {
    (void)state;
    setenv("TRUNNION_ROCM_LIB", build_fake("gpu.c", "libamdhip64.so", "-DHIP"), 1);
    setenv("TRUNNION_WEBGPU_LIB", build_fake("wgpu.c", "libwgpu_native.so", "-DVERSION=29"), 1);
    setenv("TRUNNION_METAL_LIB", build_fake("metal.c", "Metal.so", ""), 1);
    setenv("TRUNNION_OBJC_LIB", getenv("TRUNNION_METAL_LIB"), 1);
    tn_device_list *l = list_new(true);
    assert_int_equal(backend_in(l, "rocm")->device_count, 2);
    assert_string_equal(backend_in(l, "rocm")->devices[0].pci, "0000:65:00.0");
    assert_string_equal(backend_in(l, "rocm")->devices[0].compute_capability, "gfx90a");
    assert_int_equal(backend_in(l, "webgpu")->device_count, 1);
    assert_string_equal(backend_in(l, "webgpu")->devices[0].name, "Fake adapter");
    assert_string_equal(backend_in(l, "webgpu")->devices[0].compute_capability, "over Vulkan");
    const tn_device_info *m = backend_in(l, "metal")->devices;
    assert_int_equal(backend_in(l, "metal")->device_count, 1);
    assert_string_equal(m->name, "Fake M9");
    assert_int_equal(m->free_memory, (int64_t)15 << 30);
    assert_true(m->unified_memory);
    tn_device_list_free(l);
}

static void absurd_counts_are_bounded(void **state) {
    (void)state;
    setenv("TRUNNION_CUDA_LIB", build_fake("gpu.c", "libcuda.so.1", ""), 1);
    setenv("TRUNNION_WEBGPU_LIB", build_fake("wgpu.c", "libwgpu_native.so", "-DVERSION=29"), 1);
    setenv("FAKE_COUNT", "1000", 1);
    tn_device_list *l = list_new(true);
    assert_int_equal(backend_in(l, "cuda")->device_count, 16);
    assert_string_equal(backend_in(l, "webgpu")->reason_code, "init_failed");
    tn_device_list_free(l);
    setenv("FAKE_COUNT", "-5", 1);
    assert_reason("cuda", "no_device", "no device");
}

static void engines_are_found_without_being_loaded(void **state) {
    (void)state;
    const char *loaded = test_scratch("engine-loaded");
    setenv("FAKE_LOADED", loaded, 1);
    setenv("TRUNNION_ONNXRUNTIME_LIB", build_fake("engine.c", "libonnxruntime.so.1.31.1", ""), 1);
    char folder[600];
    snprintf(folder, sizeof folder, "mkdir -p %s/site/torch/lib %s/site/torch-2.15.0+cu132.dist-info", scratch_folder,
             scratch_folder);
    assert_int_equal(system(folder), 0);
    setenv("TRUNNION_TORCH_LIB", build_fake("engine.c", "site/torch/lib/libtorch_cpu.so", ""), 1);
    tn_device_list *l = list_new(true);
    const tn_backend_info *ort = backend_in(l, "engine:onnxruntime"), *torch = backend_in(l, "engine:torch");
    assert_true(ort->available && ort->devices[0].usable);
    assert_string_equal(ort->reason_code, "none");
    assert_string_equal(ort->fix, "");
    assert_string_equal(ort->devices[0].id, "engine:onnxruntime");
    assert_string_equal(ort->devices[0].name, "ONNX Runtime 1.31.1");
    assert_string_equal(torch->devices[0].name, "LibTorch 2.15.0");
    assert_text_has(torch->library, "libtorch_cpu.so");
    tn_device_list_free(l);
    assert_int_equal(size_of(loaded), -1);
    /* A name without a version, as on Windows: pip's folder has it. */
    snprintf(folder, sizeof folder, "mkdir -p %s/site/onnxruntime/capi %s/site/onnxruntime-1.32.0.dist-info",
             scratch_folder, scratch_folder);
    assert_int_equal(system(folder), 0);
    setenv("TRUNNION_ONNXRUNTIME_LIB", build_fake("engine.c", "site/onnxruntime/capi/onnxruntime.dll", ""), 1);
    l = list_new(true);
    assert_string_equal(backend_in(l, "engine:onnxruntime")->devices[0].name, "ONNX Runtime 1.32.0");
    tn_device_list_free(l);
    assert_int_equal(size_of(loaded), -1);
}

static void old_engine_is_refused_by_its_file_name(void **state) {
    (void)state;
    setenv("TRUNNION_ONNXRUNTIME_LIB", build_fake("engine.c", "libonnxruntime.so.1.17.3", ""), 1);
    setenv("TRUNNION_TORCH_LIB", build_fake("engine.c", "libtorch_cpu.so.1.13", ""), 1);
    assert_reason("engine:onnxruntime", "too_old", "1.17.3");
    assert_reason("engine:torch", "too_old", "1.13");
}

static void cpu_is_always_there(void **state) {
    (void)state;
    tn_device_list *l = list_new(false);
    const tn_backend_info *b = backend_in(l, "cpu");
    assert_true(b->available);
    assert_string_equal(b->reason_code, "none");
    assert_string_equal(b->reason, "");
    assert_int_equal(b->device_count, 1);
    assert_string_equal(b->devices[0].id, "cpu");
    assert_true(b->devices[0].usable && b->devices[0].unified_memory && !b->devices[0].software);
    assert_true(b->devices[0].free_memory > 0 && b->devices[0].free_memory <= b->devices[0].total_memory);
    assert_true(b->devices[0].threads >= 1);
    assert_null(tn_device_list_at(l, -1));
    assert_null(tn_device_list_at(l, tn_device_list_count(l)));
    tn_device_list_free(l);
    tn_device_list_free(NULL);
}

/* What this machine really has; says so when it has nothing. */
static void stand_ins_of_this_machine_are_seen_as_software(void **state) {
    (void)state;
    static const char *const names[] = {"vulkan", "opencl", "webgpu"};
    unsetenv("TRUNNION_VULKAN_LIB");
    unsetenv("TRUNNION_OPENCL_LIB");
    unsetenv("TRUNNION_WEBGPU_LIB");
    tn_device_list *l = list_new(true);
    int found = 0;
    for (size_t i = 0; i < TN_COUNT(names); i++) {
        const tn_backend_info *b = backend_in(l, names[i]);
        found += b->device_count;
        for (int k = 0; k < b->device_count; k++) {
            const tn_device_info *d = &b->devices[k];
            assert_true(d->name[0]);
            bool known = strstr(d->name, "llvmpipe") || strstr(d->name, "SwiftShader") || strstr(d->name, "pthread-");
            assert_true(!known || d->software);
        }
    }
    tn_device_list_free(l);
    if (!found) {
        printf("skipped: no Vulkan, OpenCL or WebGPU device here to look at\n");
        skip();
    }
}

static void every_reason_is_explained(void **state) {
    (void)state;
    for (int i = 0; i <= TN_REASON_NOT_ASKED; i++) {
        const tn_reason_help *r = tn_reason_help_at(i);
        assert_non_null(r);
        assert_string_equal(r->code, tn_reason_code_name((tn_reason_code)i));
        assert_true(r->meaning[0] && r->fix[0]);
    }
    int count = TN_REASON_NOT_ASKED + 1; /* behind the probes' words stand those for single operations */
    for (const tn_reason_help *r; (r = tn_reason_help_at(count)); count++)
        assert_true(r->code[0] && r->meaning[0] && r->fix[0]);
    assert_true(count > TN_REASON_NOT_ASKED + 1);
    assert_null(tn_reason_help_at(-1));
    assert_null(tn_reason_help_at(count + 1));
}

static char printed[16384];

static void print_into(void *ctx, const char *text) {
    (void)ctx;
    size_t n = strlen(printed);
    snprintf(printed + n, sizeof printed - n, "%s", text);
}

static void summary_shows_tick_reason_and_fix(void **state) {
    (void)state;
    setenv("TRUNNION_CUDA_LIB", build_fake("gpu.c", "libcuda.so.1", ""), 1);
    setenv("FAKE_RESULT", "34", 1);
    tn_device_list_free(list_new(true));
    printed[0] = 0;
    assert_ok(tn_print_backend_summary(print_into, NULL, false, false));
    assert_text_has(printed, "✓ cpu");
    assert_text_has(printed, "✗ cuda");
    assert_text_has(printed, "stub");
    assert_text_has(printed, "→ install NVIDIA's driver");
    assert_text_has(printed, "recommended: cpu");
    assert_null(strchr(printed, '\033'));
    printed[0] = 0;
    assert_ok(tn_print_backend_summary(print_into, NULL, true, true));
    assert_text_has(printed, "[library_not_found]");
    assert_non_null(strchr(printed, '\033'));
    assert_int_equal(tn_print_backend_summary(NULL, NULL, false, false), TN_ERR_ARGUMENT);
}

/* ---- the record -------------------------------------------------------------------------------------------------- */

static const char *record_file(void) { return test_scratch("cache/devices.json"); }

/* A fake libcuda that counts how often it is loaded, and no record. */
static const char *begin_record_test(void) {
    static char loaded[512];
    snprintf(loaded, sizeof loaded, "%s", test_scratch("cuda-loaded"));
    (void)remove(loaded);
    (void)remove(record_file());
    setenv("TRUNNION_CUDA_LIB", build_fake("gpu.c", "libcuda.so.1", ""), 1);
    setenv("FAKE_LOADED", loaded, 1);
    return loaded;
}

static void listing_is_answered_from_the_record(void **state) {
    (void)state;
    const char *loaded = begin_record_test();
    assert_text_has(list_elsewhere(), "cuda=none devices 2");
    assert_int_equal(size_of(loaded), 1);
    double best = 1e9;
    for (int i = 0; i < 5; i++) {
        const char *text = list_elsewhere();
        assert_text_has(text, "cuda=none devices 2");
        assert_text_has(text, "cuda:1: Fake GPU 1");
        best = fmin(best, strtod(strstr(text, "milliseconds ") + 13, NULL));
    }
    assert_int_equal(size_of(loaded), 1);
    print_message("listing from the record: %.1f ms\n", best);
    if (best > 50) fail_msg("the record took %.1f ms to answer", best);
    assert_text_has(run_self("--list fresh"), "cuda=none");
    assert_int_equal(size_of(loaded), 2);
}

static void record_is_ignored_when_the_library_changes(void **state) {
    (void)state;
    const char *loaded = begin_record_test();
    (void)list_elsewhere();
    setenv("TRUNNION_CUDA_LIB", build_fake("gpu.c", "libcuda.so.1", "-DWITHOUT_NAME"), 1);
    assert_text_has(list_elsewhere(), "cuda=symbol_missing");
    assert_int_equal(size_of(loaded), 2);
}

static void record_is_ignored_when_the_environment_changes(void **state) {
    (void)state;
    const char *loaded = begin_record_test();
    (void)list_elsewhere();
    setenv("CUDA_VISIBLE_DEVICES", "1", 1);
    (void)list_elsewhere();
    unsetenv("CUDA_VISIBLE_DEVICES");
    assert_int_equal(size_of(loaded), 2);
    setenv("TRUNNION_CUDA_LIB", "/nowhere/at-all.so", 1);
    assert_text_has(list_elsewhere(), "cuda=library_not_found");
}

static void spoilt_record_is_replaced(void **state) {
    (void)state;
    static const char *const spoilt[] = {
        "",
        "{",
        "[]",
        "{\"format\":1}",
        "{\"format\":1,\"backends\":7}",
        "{\"format\":1,\"backends\":{\"cuda\":[]}}",
        "{\"format\":2,\"backends\":{}}",
        "{\"format\":1,\"backends\":{\"cuda\":{\"key\":5,\"devices\":{}}}}",
        "\xff\xfe",
    };
    const char *loaded = begin_record_test();
    (void)list_elsewhere();
    for (size_t i = 0; i < TN_COUNT(spoilt); i++) {
        write_file(record_file(), spoilt[i]);
        assert_text_has(list_elsewhere(), "cuda=none devices 2");
        assert_int_equal(size_of(loaded), 2 + (long)i);
    }
    assert_text_has(list_elsewhere(), "cuda=none devices 2");
    assert_int_equal(size_of(loaded), 1 + (long)TN_COUNT(spoilt));
}

static void record_of_others_is_not_trusted(void **state) {
    (void)state;
    const char *loaded = begin_record_test();
    (void)list_elsewhere();
    assert_int_equal(chmod(record_file(), 0666), 0);
    (void)list_elsewhere();
    assert_int_equal(size_of(loaded), 2);
    if (geteuid() != 0) return;
    assert_int_equal(chown(record_file(), 65534, 65534), 0);
    (void)list_elsewhere();
    assert_int_equal(size_of(loaded), 3);
}

static void listing_works_without_a_place_for_the_record(void **state) {
    (void)state;
    const char *loaded = begin_record_test();
    setenv("TRUNNION_CACHE", "/proc/no/folder/can/be/here", 1);
    assert_text_has(list_elsewhere(), "cuda=none devices 2");
    assert_text_has(list_elsewhere(), "cpu=none devices 1");
    assert_int_equal(size_of(loaded), 2);
    setenv("TRUNNION_CACHE", test_scratch("cache"), 1);
    (void)remove(record_file());
    assert_int_equal(mkdir(record_file(), 0700), 0);
    assert_text_has(list_elsewhere(), "cuda=none devices 2");
    assert_int_equal(rmdir(record_file()), 0);
}

/* Rewrites the record so that trouble was noted an hour and a second ago. */
static void age_record(void) {
    char *text;
    size_t size;
    assert_ok(tn_file_read(record_file(), &text, &size, 1 << 20));
    char *cuda = strstr(text, "\"cuda\""), *until = strstr(cuda, "\"until\":") + 8;
    long long stamp = strtoll(until, NULL, 10) - 3601;
    char digits[24];
    snprintf(digits, sizeof digits, "%lld", stamp);
    memcpy(until, digits, strlen(digits));
    write_file(record_file(), text);
    tn_mem_free(text);
}

static void crash_is_believed_for_an_hour(void **state) {
    (void)state;
    const char *loaded = begin_record_test();
    setenv("FAKE_DOES", "crash", 1);
    assert_text_has(list_elsewhere(), "cuda=crashed");
    assert_text_has(list_elsewhere(), "cuda=crashed");
    assert_int_equal(size_of(loaded), 1);
    age_record();
    unsetenv("FAKE_DOES");
    assert_text_has(list_elsewhere(), "cuda=none devices 2");
    assert_int_equal(size_of(loaded), 2);
}

static void limits_of_a_process_are_not_recorded(void **state) {
    (void)state;
    (void)begin_record_test();
    const char *text = run_self("--list without-files");
    assert_text_has(text, "cuda=process_limit");
    assert_text_has(text, "cpu=none devices 1");
    assert_text_has(list_elsewhere(), "cuda=none devices 2");
}

static void findings_belong_to_a_limit_of_address_space(void **state) {
    (void)state;
    const char *loaded = begin_record_test();
    assert_text_has(run_self("--list in-little-space"), "cuda=none");
    assert_text_has(run_self("--list in-little-space"), "cuda=none");
    assert_int_equal(size_of(loaded), 1);
    assert_text_has(list_elsewhere(), "cuda=none");
    assert_int_equal(size_of(loaded), 2);
}

static void closed_standard_streams_are_not_a_crash(void **state) {
    (void)state;
    (void)begin_record_test();
    assert_text_has(run_self("--list 0<&- 2>&-"), "cuda=none devices 2");
}

static int print_level_under_a_limit(void) {
    tn_device_options o = TN_DEVICE_DEFAULTS;
    o.simd = 1;
    o.threads = 2;
    tn_device *d;
    if (tn_device_open("cpu", &o, NULL, &d) != TN_OK) return 1;
    printf("%s %d\n", tn_isa_name(tn_cpu().isa), tn_get_num_threads());
    tn_device_close(d);
    return 0;
}

/* Both hold for the whole process, so it takes a fresh one. */
static void cpu_options_take_effect(void **state) {
    (void)state;
    assert_string_equal(run_self("--level"), "baseline 2\n");
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "--level")) return print_level_under_a_limit();
    if (argc > 1 && !strcmp(argv[1], "--list")) return print_list(argc > 2 ? argv[2] : "");
#define TEST(f) cmocka_unit_test_setup(f, clean_environment)
    const struct CMUnitTest tests[] = {
        TEST(absent_library_is_named),
        TEST(a_long_reason_is_whole_or_says_that_it_is_not),
        TEST(toolkit_stub_counts_as_no_library),
        TEST(missing_function_is_named),
        TEST(error_codes_become_reasons),
        TEST(crash_is_survived_and_named),
        TEST(hanging_library_costs_its_time_once),
        TEST(answer_is_heard_however_late),
        TEST(children_are_heard_though_their_end_is_ignored),
        TEST(old_wgpu_is_refused_before_any_other_call),
        TEST(metal_is_for_apple),
        TEST(device_node_of_others_is_a_permission_problem),
        TEST(library_noise_stays_out),
        TEST(found_devices_are_told_with_the_truth),
        TEST(devices_without_a_compiler_are_of_no_use),
        TEST(one_gpu_behind_two_interfaces_is_recognised),
        TEST(rocm_webgpu_and_metal_are_read),
        TEST(absurd_counts_are_bounded),
        TEST(engines_are_found_without_being_loaded),
        TEST(old_engine_is_refused_by_its_file_name),
        TEST(cpu_is_always_there),
        TEST(stand_ins_of_this_machine_are_seen_as_software),
        TEST(every_reason_is_explained),
        TEST(summary_shows_tick_reason_and_fix),
        TEST(listing_is_answered_from_the_record),
        TEST(record_is_ignored_when_the_library_changes),
        TEST(record_is_ignored_when_the_environment_changes),
        TEST(spoilt_record_is_replaced),
        TEST(record_of_others_is_not_trusted),
        TEST(listing_works_without_a_place_for_the_record),
        TEST(crash_is_believed_for_an_hour),
        TEST(limits_of_a_process_are_not_recorded),
        TEST(closed_standard_streams_are_not_a_crash),
        TEST(findings_belong_to_a_limit_of_address_space),
        TEST(cpu_options_take_effect),
        TEST(a_mute_device_is_listed), /* last: it leaves a library loaded */
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
