/* cgroup.c — the processor quota and the memory limit of a container or a service.
 *
 * /proc/self/cgroup names the group of this process in each hierarchy. A limit of any group above it holds too, so each
 * is asked on the way up to the mount point; and where the name belongs to a world outside the container, its folders
 * do not exist here and the mount point alone answers. Files that cannot be read mean "no limit". */
#include "base/cgroup.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"

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
    if (read_group_file(folder, "cpu.max", text, sizeof text) && sscanf(text, "%lld %lld", &quota, &period) == 2) {
        take_processors(limits, (double)quota, (double)period);
    }
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
    for (size_t i = 0; i < TN_COUNT(hierarchies); i++) {
        if (has_word(controllers, hierarchies[i].controller)) walk_up(limits, &hierarchies[i], root, group);
    }
}

tn_cgroup_limits tn_cgroup_read(const char *root) {
    tn_cgroup_limits limits = {0};
    char path[PATH_SIZE], text[FILE_SIZE];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    if (!read_text(path, text, sizeof text)) return limits;
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        take_line(&limits, root, line);
    }
    return limits;
}
