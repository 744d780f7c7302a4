/* device_support.h — shared by the tests of devices: a clean environment, the fakes of tests/fakes, listings. */
#ifndef TN_DEVICE_SUPPORT_H
#define TN_DEVICE_SUPPORT_H

#include "test_support.h"

#include "hal/hal.h"

static const char *const cleared[] = {
    "TRUNNION_CUDA_LIB",
    "TRUNNION_NVML_LIB",
    "TRUNNION_ROCM_LIB",
    "TRUNNION_CUBLASLT_LIB",
    "TRUNNION_CUDNN_LIB",
    "TRUNNION_ROCBLAS_LIB",
    "TRUNNION_MPS_LIB",
    "TRUNNION_OPENCL_LIB",
    "TRUNNION_VULKAN_LIB",
    "TRUNNION_WEBGPU_LIB",
    "TRUNNION_METAL_LIB",
    "TRUNNION_OBJC_LIB",
    "TRUNNION_ONNXRUNTIME_LIB",
    "TRUNNION_TORCH_LIB",
    "TRUNNION_DEV",
    "TRUNNION_NULL",
    "TRUNNION_PROBE_SECONDS",
    "FAKE_LOADED",
    "FAKE_DOES",
    "FAKE_RESULT",
    "FAKE_COUNT",
    "FAKE_VERSION",
};

/* Compilers without which devices are of no use: files that are there, and are never loaded by looking. */
static const char *const compilers[] = {"TRUNNION_NVRTC_LIB", "TRUNNION_HIPRTC_LIB"};

/* No library of this machine takes part unless a test asks for it: all overrides point to nothing. */
static inline int clean_environment(void **state) {
    (void)state;
    for (size_t i = 0; i < TN_COUNT(cleared); i++) {
        bool library = strstr(cleared[i], "_LIB") != NULL;
        if (library && strcmp(cleared[i], "TRUNNION_METAL_LIB") != 0)
            setenv(cleared[i], "/nowhere/at-all.so", 1);
        else
            unsetenv(cleared[i]);
    }
    for (size_t i = 0; i < TN_COUNT(compilers); i++)
        setenv(compilers[i], "/proc/self/exe", 1);
    setenv("TRUNNION_CACHE", test_scratch("cache"), 1);
    return 0;
}

/* Builds tests/fakes/<source> as scratch/<name>. */
static inline const char *build_fake(const char *source, const char *name, const char *flags) {
    char command[1400];
    const char *path = test_scratch(name);
    snprintf(command, sizeof command, "${CC:-cc} -shared -fPIC %s -o %s tests/fakes/%s", flags, path, source);
    if (system(command) != 0) fail_msg("%s failed; tests run from the root of the repository", command);
    return path;
}

static inline tn_device_list *list_new(bool fresh) {
    tn_device_list *l = NULL;
    assert_ok(tn_device_list_new(fresh, &l));
    return l;
}

static inline const tn_backend_info *backend_in(const tn_device_list *l, const char *name) {
    for (int i = 0; i < tn_device_list_count(l); i++)
        if (!strcmp(tn_device_list_at(l, i)->name, name)) return tn_device_list_at(l, i);
    fail_msg("no backend %s in the listing", name);
    return NULL;
}

#endif
