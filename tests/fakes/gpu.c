/* gpu.c — a libcuda, with -DHIP a libamdhip64, with two devices. -DWITHOUT_NAME: one function is missing. */
#include "fake.h"

#ifdef HIP
#define CALL(cuda, hip) hip
#else
#define CALL(cuda, hip) cuda
#endif

int CALL(cuInit, hipInit)(unsigned flags) {
    (void)flags;
    return fake_first_call();
}

int CALL(cuDeviceGetCount, hipGetDeviceCount)(int *count) {
    const char *wanted = getenv("FAKE_COUNT");
    *count = wanted ? atoi(wanted) : 2;
    return 0;
}

int CALL(cuDeviceGet, hipDeviceGet)(int *device, int ordinal) {
    *device = 40 + ordinal;
    return getenv("FAKE_MUTE") && ordinal == 0 ? 999 : 0;
}

#ifndef WITHOUT_NAME
int CALL(cuDeviceGetName, hipDeviceGetName)(char *name, int size, int device) {
    snprintf(name, (size_t)size, "Fake GPU %d", device - 40);
    return 0;
}
#endif

int CALL(cuDeviceTotalMem_v2, hipDeviceTotalMem)(size_t *bytes, int device) {
    (void)device;
    *bytes = (size_t)80 << 30;
    return 0;
}

int CALL(cuDeviceGetPCIBusId, hipDeviceGetPCIBusId)(char *text, int size, int device) {
    snprintf(text, (size_t)size, "0000:%02X:00.0", 0x65 + device - 40);
    return 0;
}

int CALL(cuDeviceGetUuid, hipDeviceGetUuid)(unsigned char bytes[16], int device) {
    memset(bytes, device, 16);
    return 0;
}

int CALL(cuDeviceGetAttribute, hipDeviceGetAttribute)(int *value, int attribute, int device) {
    (void)device;
    *value = attribute == 75 ? 9 : 0;
    return 0;
}

#ifdef HIP
/* The struct of ROCm 6 has the name of the instruction set here. */
int hipGetDevicePropertiesR0600(char *properties, int device) {
    (void)device;
    strcpy(properties, "Fake gfx1 GPU");
    strcpy(properties + 1160, "gfx90a:sramecc+:xnack-");
    return 0;
}
#endif

/* The management library, for free memory. */
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, void **device) {
    *device = (void *)(intptr_t)strtol(pci + 5, NULL, 16);
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long total_free_used[3]) {
    total_free_used[0] = 80ull << 30;
    total_free_used[1] = device == (void *)0x65 ? 70ull << 30 : 60ull << 30;
    total_free_used[2] = total_free_used[0] - total_free_used[1];
    return 0;
}
