/* processor.c — the processor: instruction sets, caches, quotas and memory limits of this process.
 *
 * Instruction sets come from cpuid together with xgetbv, because a processor may have registers that the system does
 * not save. What does not change is read once; a second thread that asks at the same time waits for the first. */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/os.h"

#if TN_HAS_PROCESSES
#include <sys/resource.h>
#endif

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

static const char *const isa_names[TN_ISA_COUNT] = {
    [TN_ISA_BASE] = "baseline",
    [TN_ISA_AVX2] = "avx2",
    [TN_ISA_AVX512] = "avx512",
};

const char *tn_isa_name(tn_isa isa) { return (unsigned)isa < TN_ISA_COUNT ? isa_names[isa] : "unknown"; }

/* ---- instruction sets -------------------------------------------------------------------------------------------- */

#if defined(__x86_64__) || defined(__i386__)

enum {
    OSXSAVE_AVX_FMA_F16C = 1 << 27 | 1 << 28 | 1 << 12 | 1 << 29, /* leaf 1, ecx */
    YMM_STATE = 0x06,                                             /* xcr0: xmm and ymm */
    ZMM_STATE = 0xE6                                              /* and mask registers and both parts of zmm */
};

typedef struct cpuid_words {
    unsigned a, b, c, d;
} cpuid_words;

/* All zero when the processor does not have the leaf. */
static cpuid_words cpuid_leaf(unsigned leaf, unsigned subleaf) {
    cpuid_words w = {0};
    if (__get_cpuid_count(leaf, subleaf, &w.a, &w.b, &w.c, &w.d) == 0) return (cpuid_words){0};
    return w;
}

static uint64_t read_xcr0(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static bool has_all(unsigned word, unsigned bits) { return (word & bits) == bits; }

static tn_isa detect_isa(void) {
    if (!has_all(cpuid_leaf(1, 0).c, OSXSAVE_AVX_FMA_F16C)) return TN_ISA_BASE;
    uint64_t saved = read_xcr0();
    unsigned features = cpuid_leaf(7, 0).b;
    bool avx2 = has_all(features, 1u << 5);
    if (!avx2 || (saved & YMM_STATE) != YMM_STATE) return TN_ISA_BASE;
    bool avx512 = has_all(features, 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31); /* F, DQ, BW, VL */
    return avx512 && (saved & ZMM_STATE) == ZMM_STATE ? TN_ISA_AVX512 : TN_ISA_AVX2;
}

/* The dot-product and bf16 instructions count in the encoding of the chosen level: AVX512_VNNI and AVX512_BF16 there,
 * AVX_VNNI on AVX2. */
static void detect_features(tn_cpu_info *info) {
    cpuid_words first = cpuid_leaf(7, 0);
    unsigned second = cpuid_leaf(7, 1).a;
    info->f16c = info->isa >= TN_ISA_AVX2;
    info->avx_vnni = info->isa >= TN_ISA_AVX2 && has_all(second, 1u << 4);
    info->vnni = info->isa == TN_ISA_AVX512 ? has_all(first.c, 1u << 11) : info->avx_vnni;
    info->bf16 = info->isa == TN_ISA_AVX512 && has_all(second, 1u << 5);
    info->vbmi = info->isa == TN_ISA_AVX512 && has_all(first.c, 1u << 1);
}

static void read_name(tn_cpu_info *info) {
    unsigned text[13] = {0};
    for (unsigned i = 0; i < 3; i++) {
        cpuid_words w = cpuid_leaf(0x80000002u + i, 0);
        memcpy(text + 4 * i, (unsigned[]){w.a, w.b, w.c, w.d}, 16);
    }
    snprintf(info->name, sizeof info->name, "%s", (const char *)text);
}

#else

static tn_isa detect_isa(void) { return TN_ISA_BASE; }

/* A feature of ARM64 processors: macOS tells by name, Linux by a bit of one of two words (the C library's headers may
 * be older than these bits). Neither needs files, so this works without /proc. */
static bool arm64_has(TN_UNUSED const char *name, TN_UNUSED bool second, TN_UNUSED unsigned long bit) {
#if defined(__aarch64__) && defined(__APPLE__)
    int has = 0;
    size_t size = sizeof has;
    return sysctlbyname(name, &has, &size, NULL, 0) == 0 && has != 0;
#elif defined(__aarch64__) && defined(__linux__)
    return (getauxval(second ? AT_HWCAP2 : AT_HWCAP) & bit) != 0;
#else
    return false;
#endif
}

static void detect_features(tn_cpu_info *info) {
    const char *wanted = tn_env("TRUNNION_ISA");
    bool limited = wanted && strcmp(wanted, isa_names[TN_ISA_BASE]) == 0;
#if defined(__aarch64__)
    info->neon = true; /* part of the architecture */
#endif
    info->vnni = !limited && arm64_has("hw.optional.arm.FEAT_DotProd", false, 1ul << 20);
    info->i8mm = info->vnni && arm64_has("hw.optional.arm.FEAT_I8MM", true, 1ul << 13);
    info->bf16 = !limited && arm64_has("hw.optional.arm.FEAT_BF16", true, 1ul << 14);
}

static void read_name(tn_cpu_info *info) {
    FILE *f = fopen("/proc/cpuinfo", "re");
    if (f == NULL) return;
    char line[256];
    while (fgets(line, sizeof line, f) != NULL && info->name[0] == '\0')
        if (strncmp(line, "model name", 10) == 0) sscanf(line, "%*[^:]: %95[^\n]", info->name);
    fclose(f);
}

#endif

/* TRUNNION_ISA lowers the level, so that a fast machine can test the code of a slow one. */
static tn_isa limited_isa(tn_isa best) {
    const char *wanted = tn_env("TRUNNION_ISA");
    if (wanted == NULL) return best;
    for (int i = 0; i < TN_ISA_COUNT; i++) {
        if (strcmp(wanted, isa_names[i]) != 0) continue;
        if (i <= (int)best) return (tn_isa)i;
        tn_log_line(TN_LOG_NOTICE, "TRUNNION_ISA=%s: this processor supports at most %s", wanted, tn_isa_name(best));
        return best;
    }
    tn_log_line(TN_LOG_NOTICE, "TRUNNION_ISA=%s is unknown (baseline, avx2, avx512): using %s", wanted,
                tn_isa_name(best));
    return best;
}

/* Brand strings are padded with spaces on either side. */
static void trim(char *text) {
    size_t start = strspn(text, " \t");
    size_t n = strlen(text + start);
    memmove(text, text + start, n + 1);
    while (n > 0 && (text[n - 1] == ' ' || text[n - 1] == '\t'))
        text[--n] = '\0';
}

/* ---- caches ------------------------------------------------------------------------------------------------------ */

static bool read_line(const char *path, char *out, int size) {
    FILE *f = fopen(path, "re");
    if (f == NULL) return false;
    bool ok = fgets(out, size, f) != NULL;
    fclose(f);
    return ok;
}

static bool read_cache_attribute(int index, const char *attribute, char *out, int size) {
    char path[128];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", index, attribute);
    return read_line(path, out, size);
}

/* "48K", "2048K", "260M". */
static int64_t parse_cache_size(const char *text) {
    char *unit = NULL;
    int64_t n = strtoll(text, &unit, 10);
    if (*unit == 'K') return n << 10;
    if (*unit == 'M') return n << 20;
    return n;
}

static void read_caches(tn_cpu_info *info) {
    char level[16], type[32], size[32];
    int64_t *by_level[4] = {NULL, &info->l1d, &info->l2, &info->l3};
    for (int i = 0; read_cache_attribute(i, "level", level, sizeof level); i++) {
        int n = atoi(level);
        if (n < 1 || n > 3 || !read_cache_attribute(i, "type", type, sizeof type)) continue;
        if (strncmp(type, "Instruction", 11) == 0 || !read_cache_attribute(i, "size", size, sizeof size)) continue;
        *by_level[n] = parse_cache_size(size);
    }
    /* Where the system keeps silent: small enough for most processors of the last ten years. */
    if (info->l1d <= 0) info->l1d = 32 << 10;
    if (info->l2 <= 0) info->l2 = 512 << 10;
    if (info->l3 <= 0) info->l3 = 8 << 20;
}

/* ---- what we may use --------------------------------------------------------------------------------------------- */

/* The affinity mask, in a set of 65,536 processors: the kernel refuses a set smaller than its own. */
static int count_cores(void) {
#if defined(__linux__)
    cpu_set_t sets[64];
    memset(sets, 0, sizeof sets);
    int count = sched_getaffinity(0, sizeof sets, sets) == 0 ? CPU_COUNT_S(sizeof sets, sets) : 0;
    if (count > 0) return count;
#endif
    int64_t online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

/* A quota of 2.5 processors keeps two threads busy; a third would be stopped half of the time and delay the others. */
static int cut_by_quota(int cores, double quota) {
    if (quota <= 0 || quota >= cores) return cores;
    return quota < 1 ? 1 : (int)quota;
}

/* The bytes on the line "key: N kB" of a file of /proc; 0: there is none. */
static int64_t read_kib(const char *path, const char *key) {
    FILE *f = fopen(path, "re");
    if (f == NULL) return 0;
    char line[128];
    int64_t bytes = 0;
    size_t n = strlen(key);
    while (bytes == 0 && fgets(line, sizeof line, f) != NULL)
        if (strncmp(line, key, n) == 0 && line[n] == ':') bytes = strtoll(line + n + 1, NULL, 10) << 10;
    fclose(f);
    return bytes;
}

tn_host_memory tn_host_memory_now(void) {
    const tn_cgroup_limits limits = tn_cgroup_read("");
    tn_host_memory m = {read_kib("/proc/meminfo", "MemTotal"), read_kib("/proc/meminfo", "MemAvailable")};
#if defined(__wasm32__)
    enum { WASM_PAGE = 65536 };
    if (m.total <= 0) {
        m.total = (int64_t)UINT32_MAX + 1;
        m.unused = m.total - (int64_t)__builtin_wasm_memory_size(0) * WASM_PAGE;
    }
#endif
    if (m.total <= 0) m.total = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    if (m.unused <= 0) m.unused = m.total;
    if (limits.memory > 0)
        m = (tn_host_memory){tn_min64(m.total, limits.memory), tn_min64(m.unused, limits.memory_free)};
    int64_t space = tn_address_space_limit();
    if (space == INT64_MAX) return m;
    return (tn_host_memory){m.total, tn_min64(m.unused, tn_max64(0, space - read_kib("/proc/self/status", "VmSize")))};
}

int64_t tn_resident_bytes(void) { return read_kib("/proc/self/status", "VmRSS"); }

int64_t tn_address_space_limit(void) {
#if TN_HAS_PROCESSES
    struct rlimit space;
    if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur < INT64_MAX) return (int64_t)space.rlim_cur;
#endif
    return INT64_MAX;
}

/* ---- all of it, once --------------------------------------------------------------------------------------------- */

static tn_cpu_info fixed_info;

static void read_fixed_info(void) {
    tn_cpu_info *info = &fixed_info;
    read_name(info);
    trim(info->name);
    if (info->name[0] == '\0') snprintf(info->name, sizeof info->name, "unnamed processor");
    info->isa = limited_isa(detect_isa());
    detect_features(info);
    read_caches(info);
    info->cores = count_cores();
    info->usable_threads = cut_by_quota(info->cores, tn_cgroup_read("").processors);
}

static _Atomic int most_isa = TN_ISA_COUNT;

void tn_cpu_limit(tn_isa most) { atomic_store(&most_isa, (int)most); }

/* Leaves out what belongs to the levels above `most`. */
static void lower_isa(tn_cpu_info *info, tn_isa most) {
    if (info->isa <= most) return;
    info->isa = most;
    info->avx_vnni = info->avx_vnni && most >= TN_ISA_AVX2;
    info->vnni = info->avx_vnni;
    info->bf16 = info->vbmi = false;
    info->f16c = info->f16c && most >= TN_ISA_AVX2;
}

tn_cpu_info tn_cpu(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_fixed_info);
    tn_cpu_info info = fixed_info;
    lower_isa(&info, (tn_isa)atomic_load(&most_isa));
    return info;
}

/* ==== control groups: processor quota and memory limit of a container or service ================================== */
/* /proc/self/cgroup names the group of this process in each hierarchy. A limit of any group above it holds too, so each
 * is asked on the way up to the mount point; and where the name belongs to a world outside the container, its folders
 * do not exist here and the mount point alone answers. Files that cannot be read mean "no limit". */

enum { PATH_SIZE = 1024, FILE_SIZE = 8192 };

/* Small files of the kernel, read without allocation: this must work when memory is short. */
static bool read_text(const char *path, char *out, size_t size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    size_t length = 0;
    ssize_t got;
    while (length < size - 1 && (got = read(fd, out + length, size - 1 - length)) > 0)
        length += (size_t)got;
    close(fd);
    out[length] = '\0';
    return length > 0;
}

static bool read_group_file(const char *folder, const char *name, char *out, size_t size) {
    char path[PATH_SIZE + 64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return read_text(path, out, size);
}

/* A byte count; "max", what is missing, and version 1's huge "unlimited" are all 0. */
static int64_t read_bytes(const char *folder, const char *name) {
    char text[64];
    if (!read_group_file(folder, name, text, sizeof text)) return 0;
    long long value = strtoll(text, NULL, 10);
    return value > 0 && value < INT64_MAX / 2 - 65536 ? value : 0;
}

/* The value behind "key " at the start of a line of memory.stat. */
static int64_t read_stat(const char *folder, const char *key) {
    char text[FILE_SIZE];
    if (!read_group_file(folder, "memory.stat", text, sizeof text)) return 0;
    size_t n = strlen(key);
    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        if (*line == '\n') line++;
        if (strncmp(line, key, n) == 0 && line[n] == ' ') return strtoll(line + n, NULL, 10);
    }
    return 0;
}

static void take_processors(tn_cgroup_limits *limits, double quota, double period) {
    if (quota <= 0 || period <= 0) return;
    double processors = quota / period;
    if (limits->processors == 0 || processors < limits->processors) limits->processors = processors;
}

/* Pages of files that were not used lately count as used, but the kernel gives them back on demand. */
static void take_memory(tn_cgroup_limits *limits, int64_t limit, int64_t used, int64_t reclaimable) {
    if (limit <= 0) return;
    int64_t left = tn_max64(0, limit - tn_max64(0, used - reclaimable));
    if (limits->memory == 0 || left < limits->memory_free) limits->memory_free = left;
    if (limits->memory == 0 || limit < limits->memory) limits->memory = limit;
}

static void look_v2(tn_cgroup_limits *limits, const char *folder) {
    char text[128];
    long long quota, period;
    if (read_group_file(folder, "cpu.max", text, sizeof text) && sscanf(text, "%lld %lld", &quota, &period) == 2)
        take_processors(limits, (double)quota, (double)period);
    int64_t limit = read_bytes(folder, "memory.max");
    if (limit > 0) take_memory(limits, limit, read_bytes(folder, "memory.current"), read_stat(folder, "inactive_file"));
}

static void look_v1_cpu(tn_cgroup_limits *limits, const char *folder) {
    int64_t quota = read_bytes(folder, "cpu.cfs_quota_us");
    int64_t period = read_bytes(folder, "cpu.cfs_period_us");
    take_processors(limits, (double)quota, (double)period);
}

static void look_v1_memory(tn_cgroup_limits *limits, const char *folder) {
    int64_t limit = read_bytes(folder, "memory.limit_in_bytes");
    if (limit <= 0) return;
    int64_t used = read_bytes(folder, "memory.usage_in_bytes");
    take_memory(limits, limit, used, read_stat(folder, "total_inactive_file"));
}

/* Which look belongs to which hierarchy, and where distributions mount it. */
typedef struct hierarchy {
    const char *controller; /* "" for version 2 */
    const char *mount;
    void (*look)(tn_cgroup_limits *limits, const char *folder);
} hierarchy;

static const hierarchy hierarchies[] = {
    {"", "/sys/fs/cgroup", look_v2},
    {"", "/sys/fs/cgroup/unified", look_v2},
    {"cpu", "/sys/fs/cgroup/cpu", look_v1_cpu},
    {"cpu", "/sys/fs/cgroup/cpu,cpuacct", look_v1_cpu},
    {"memory", "/sys/fs/cgroup/memory", look_v1_memory},
};

/* From the group's own folder up to the mount point. */
static void walk_up(tn_cgroup_limits *limits, const hierarchy *h, const char *root, const char *group) {
    char folder[PATH_SIZE];
    int base = snprintf(folder, sizeof folder, "%s%s", root, h->mount);
    int length = snprintf(folder, sizeof folder, "%s%s%s", root, h->mount, group);
    if (base < 0 || length < 0 || (size_t)length >= sizeof folder) return;
    for (;;) {
        h->look(limits, folder);
        char *slash = strrchr(folder, '/');
        if (slash == NULL || slash < folder + base) return;
        *slash = '\0';
    }
}

/* Is `name` one of the comma-separated words of `list`? */
static bool has_word(const char *list, const char *name) {
    size_t n = strlen(name);
    if (n == 0) return list[0] == '\0';
    for (const char *word = list; word != NULL; word = strchr(word, ',')) {
        if (*word == ',') word++;
        if (strncmp(word, name, n) == 0 && (word[n] == ',' || word[n] == '\0')) return true;
    }
    return false;
}

/* One line of /proc/self/cgroup: "number:controllers:/group". */
static void take_line(tn_cgroup_limits *limits, const char *root, char *line) {
    char *controllers = strchr(line, ':');
    char *group = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
    if (group == NULL) return;
    controllers++;
    *group++ = '\0';
    if (strcmp(group, "/") == 0) group++;
    if (strstr(group, "..") != NULL) group += strlen(group); /* a group outside our view: ask the mount point alone */
    for (size_t i = 0; i < TN_COUNT(hierarchies); i++)
        if (has_word(controllers, hierarchies[i].controller)) walk_up(limits, &hierarchies[i], root, group);
}

tn_cgroup_limits tn_cgroup_read(const char *root) {
    tn_cgroup_limits limits = {0};
    char path[PATH_SIZE], text[FILE_SIZE];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    if (!read_text(path, text, sizeof text)) return limits;
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest))
        take_line(&limits, root, line);
    return limits;
}
