/* arm64.c — what ARM64 processors have beyond NEON: Linux tells by getauxval, macOS by sysctl.
 *
 * Neither needs files, so this works without /proc. */
#include "base/arm64.h"

#include <string.h>

#include "base/base.h"

#if defined(__aarch64__) && defined(__APPLE__)

#include <sys/sysctl.h>

static bool has_feature(const char *name) {
    int has = 0;
    size_t size = sizeof has;
    return sysctlbyname(name, &has, &size, NULL, 0) == 0 && has != 0;
}

static bool has_dotprod(void) { return has_feature("hw.optional.arm.FEAT_DotProd"); }
static bool has_i8mm(void) { return has_feature("hw.optional.arm.FEAT_I8MM"); }
static bool has_bf16(void) { return has_feature("hw.optional.arm.FEAT_BF16"); }

#elif defined(__aarch64__) && defined(__linux__)

#include <sys/auxv.h>

/* Linux's ABI; the C library's headers may be older than these bits. */
enum { HWCAP_BIT_ASIMDDP = 1 << 20, HWCAP2_BIT_I8MM = 1 << 13, HWCAP2_BIT_BF16 = 1 << 14 };

static bool has_dotprod(void) { return (getauxval(AT_HWCAP) & HWCAP_BIT_ASIMDDP) != 0; }
static bool has_i8mm(void) { return (getauxval(AT_HWCAP2) & HWCAP2_BIT_I8MM) != 0; }
static bool has_bf16(void) { return (getauxval(AT_HWCAP2) & HWCAP2_BIT_BF16) != 0; }

#else

static bool has_dotprod(void) { return false; }
static bool has_i8mm(void) { return false; }
static bool has_bf16(void) { return false; }

#endif

static bool is_limited(void) {
    const char *wanted = tn_env("TRUNNION_ISA");
    return wanted != NULL && strcmp(wanted, tn_isa_name(TN_ISA_BASE)) == 0;
}

bool tn_arm64_has_dotprod(void) { return has_dotprod() && !is_limited(); }
bool tn_arm64_has_i8mm(void) { return tn_arm64_has_dotprod() && has_i8mm(); }
bool tn_arm64_has_bf16(void) { return has_bf16() && !is_limited(); }
