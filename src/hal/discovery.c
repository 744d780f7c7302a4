/* discovery.c — looking at backends, and the list that comes of it.
 *
 * A look is answered from the quickest source that is still true: this process's last look, the record on disk, a
 * probe. What decides is a key: a hash over all that the probe's findings depend on (the driver names its files,
 * folders, device nodes and environment variables), so that nothing has to be loaded to know that nothing has
 * changed. Probes that load no foreign code are cheap and simply run each time. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hal/discovery.h"

enum { FREE_MEMORY_SECONDS = 10 }; /* how long what a probe said about free memory is repeated */

enum { PROBES = 2 }; /* raise it when a probe finds or says something else than before: old records are then ignored */

/* ---- keys -------------------------------------------------------------------------------------------------------- */

static uint64_t mix_text(uint64_t key, const char *text) { return tn_hash64(text, strlen(text) + 1, key); }

#ifdef __APPLE__
#define st_mtim st_mtimespec
#endif

/* What a file, folder or device node looks like from outside. Of a node the times say nothing; whether this user may
 * open it does. */
static void mix_path(uint64_t *key, const char *path) {
    struct stat s;
    int64_t facts[6] = {-1};
    if (stat(path, &s) == 0) {
        bool node = S_ISCHR(s.st_mode);
        facts[0] = s.st_mode;
        facts[1] = (int64_t)s.st_ino;
        facts[2] = node ? (int64_t)s.st_rdev : (int64_t)s.st_size;
        facts[3] = node ? 0 : (int64_t)s.st_mtim.tv_sec;
        facts[4] = node ? 0 : (int64_t)s.st_mtim.tv_nsec;
        facts[5] = access(path, R_OK | W_OK);
    }
    *key = tn_hash64(facts, sizeof facts, mix_text(*key, path));
}

static void mix_watched(void *ctx, const char *what) {
    uint64_t *key = ctx;
    if (what[0] != '$') {
        mix_path(key, what);
        return;
    }
    const char *value = tn_env(what + 1);
    *key = mix_text(mix_text(*key, what), value ? value : "");
}

/* What this start of the system is called: drivers and device nodes come and go with a restart. */
static uint64_t mix_boot(uint64_t key) {
    char *id = NULL;
    size_t size;
    if (tn_file_read("/proc/sys/kernel/random/boot_id", &id, &size, 256) == TN_OK) key = mix_text(key, id);
    tn_mem_free(id);
    return key;
}

static uint64_t discovery_key_of(const tn_backend *b, uint64_t common) {
    uint64_t key = mix_text(common, b->name);
    if (b->driver->watch) b->driver->watch(mix_watched, &key);
    return key ? key : 1;
}

/* The part of a key that all backends share. */
static uint64_t common_key(void) {
    uint64_t seed = PROBES + ((uint64_t)geteuid() << 32);
    return mix_boot(mix_text(seed, tn_version()));
}

/* ---- looking ----------------------------------------------------------------------------------------------------- */

void tn_probe_here(const tn_driver *driver, tn_probe_result *f) {
    memset(f, 0, sizeof *f);
    tn_probe p = {.struct_size = sizeof p, .devices = f->devices, .capacity = TN_MOST_DEVICES};
    driver->probe(&p);
    f->count = p.count < 0 ? 0 : (int)tn_min64(p.count, TN_MOST_DEVICES);
    const char *code = p.reason_code[0] ? p.reason_code : tn_reason_code_name(TN_REASON_NO_DEVICE);
    snprintf(f->code, sizeof f->code, "%s", code);
    bool silent = f->count == 0 && !p.reason[0];
    snprintf(f->reason, sizeof f->reason, "%s", silent ? "its driver finds no device, and does not say why" : p.reason);
    snprintf(f->fix, sizeof f->fix, "%s", p.fix);
    snprintf(f->library, sizeof f->library, "%s", p.library);
}

static void say_not_built(const tn_backend *b, tn_probe_result *f) {
    memset(f, 0, sizeof *f);
    const char *part = strrchr(b->name, ':') ? strrchr(b->name, ':') + 1 : b->name;
    char option[24] = "";
    for (size_t i = 0; part[i] && i + 1 < sizeof option; i++)
        option[i] = (char)(part[i] >= 'a' && part[i] <= 'z' ? part[i] - 'a' + 'A' : part[i]);
    snprintf(f->code, sizeof f->code, "%s", tn_reason_code_name(TN_REASON_NOT_BUILT));
    snprintf(f->reason, sizeof f->reason, "left out when this library was built");
    snprintf(f->fix, sizeof f->fix, "build with the CMake option -DTRUNNION_%s=ON", option);
}

static void say_refused(const tn_refusal *r, tn_probe_result *f) {
    memset(f, 0, sizeof *f);
    snprintf(f->code, sizeof f->code, "%s", tn_reason_code_name(r->code));
    snprintf(f->reason, sizeof f->reason, "%s", r->reason);
    snprintf(f->fix, sizeof f->fix, "TRUNNION_DRIVERS names this file: name another, or build it anew");
    snprintf(f->library, sizeof f->library, "%s", r->path);
}

static void say_usable(tn_probe_result *f) {
    snprintf(f->code, sizeof f->code, "%s", tn_reason_code_name(TN_REASON_NONE));
    f->reason[0] = f->fix[0] = 0;
}

/* Devices that answer but that this version cannot compute on. */
static void say_no_driver(const tn_backend *b, tn_probe_result *f) {
    snprintf(f->code, sizeof f->code, "%s", tn_reason_code_name(TN_REASON_NO_DRIVER));
    if (tn_backend_by_name(b))
        snprintf(f->reason, sizeof f->reason, "found %.80s; this version of Trunnion has no driver for it yet",
                 f->devices[0].name);
    else
        snprintf(f->reason, sizeof f->reason, "found %d device%s; this version of Trunnion has no driver for %s yet",
                 f->count, f->count > 1 ? "s" : "", f->count > 1 ? "them" : "it");
    f->fix[0] = 0;
}

/* Numbers the devices and adds what a driver need not know. */
static void complete(const tn_backend *b, tn_probe_result *f) {
    bool usable = tn_backend_usable(b), single = b->is_cpu || tn_backend_by_name(b);
    for (int i = 0; i < f->count; i++) {
        tn_device_info *d = &f->devices[i];
        d->struct_size = sizeof *d;
        d->index = i;
        d->usable = usable;
        snprintf(d->backend, sizeof d->backend, "%s", b->name);
        if (single)
            snprintf(d->id, sizeof d->id, "%s", b->name);
        else
            snprintf(d->id, sizeof d->id, "%s:%d", b->name, i);
    }
    if (f->count && usable) say_usable(f);
    if (f->count && !usable) say_no_driver(b, f);
}

/* Whether a backend's findings have to be made anew; its key becomes the present one. */
static bool outdated(tn_backend *b, uint64_t common, bool fresh) {
    if (!tn_backend_isolated(b)) return true;
    uint64_t key = discovery_key_of(b, common);
    bool same = key == b->key;
    b->key = key;
    return fresh || !same;
}

/* Starts what has to be asked in a child and answers the rest. */
static void discovery_begin(tn_backend *b, tn_child *child) {
    if (b->refused)
        say_refused(b->refused, b->found);
    else if (!b->driver)
        say_not_built(b, b->found);
    else if (b->driver->isolate)
        tn_child_start(b->driver, child);
    else
        tn_probe_here(b->driver, b->found);
}

/* Findings that are used again are still true, but for how much memory is free. */
static void forget_free_memory(tn_backend *b) {
    if (tn_now() - b->probed_at < FREE_MEMORY_SECONDS && b->probed_at > 0) return;
    for (int i = 0; i < b->found->count; i++)
        b->found->devices[i].free_memory = 0;
}

static tn_status make_room_discovery(tn_backend *b, int count) {
    for (int i = 0; i < count; i++) {
        if (!b[i].found) b[i].found = tn_mem_zalloc(1, sizeof *b[i].found);
        if (!b[i].found) return TN_ERR_MEMORY;
    }
    return TN_OK;
}

/* Reads the record, once a process, when an isolated backend is first looked at. */
static void recall(const tn_backend *b, int count) {
    static bool done;
    bool wanted = false;
    for (int i = 0; i < count; i++)
        wanted = wanted || tn_backend_isolated(&b[i]);
    if (done || !wanted) return;
    done = true;
    int all;
    tn_backend *table = tn_backends(&all);
    tn_discovery_cache_load(table, all);
}

tn_status tn_discover(tn_backend *b, int count, bool fresh) {
    recall(b, count);
    TRY(make_room_discovery(b, count));
    tn_child child[TN_MOST_BACKENDS];
    bool due[TN_MOST_BACKENDS], asked = false;
    uint64_t common = common_key();
    for (int i = 0; i < count; i++) {
        due[i] = outdated(&b[i], common, fresh);
        if (due[i]) discovery_begin(&b[i], &child[i]);
    }
    for (int i = 0; i < count; i++) {
        if (due[i] && tn_backend_isolated(&b[i])) {
            tn_child_finish(&child[i], b[i].found);
            b[i].probed_at = tn_now();
            asked = true;
        }
        if (!due[i]) forget_free_memory(&b[i]);
        complete(&b[i], b[i].found);
    }
    if (asked) {
        int all;
        const tn_backend *table = tn_backends(&all);
        tn_discovery_cache_save(table, all);
    }
    return TN_OK;
}

/* ---- the list ---------------------------------------------------------------------------------------------------- */

typedef struct entry {
    tn_backend_info info;
    tn_probe_result found;
} entry;

struct tn_device_list {
    int count;
    char recommended[32];
    entry entries[];
};

/* Whether two descriptions are of one processor. Software has made-up identities; names tell program and version. */
static bool same_processor(const tn_device_info *a, const tn_device_info *b) {
    if (a->software != b->software) return false;
    if (a->software) return a->name[0] && !strcmp(a->name, b->name);
    return (a->uuid[0] && !strcmp(a->uuid, b->uuid)) || (a->pci[0] && !strcmp(a->pci, b->pci));
}

/* The first device further up that is the same processor as `d`, a device of entry `e`. */
static const tn_device_info *seen_before(const tn_device_list *l, int e, const tn_device_info *d) {
    for (int i = 0; i < e; i++)
        for (int k = 0; k < l->entries[i].found.count; k++)
            if (same_processor(&l->entries[i].found.devices[k], d)) return &l->entries[i].found.devices[k];
    return NULL;
}

static void fill_entry(tn_device_list *l, int i, const tn_backend *b) {
    entry *e = &l->entries[i];
    e->found = *b->found;
    for (int k = 0; k < e->found.count; k++) {
        tn_device_info *d = &e->found.devices[k];
        const tn_device_info *twin = seen_before(l, i, d);
        if (twin) snprintf(d->same_as, sizeof d->same_as, "%s", twin->id);
    }
    e->info = (tn_backend_info){
        .struct_size = sizeof e->info,
        .name = b->name,
        .title = b->title,
        .available = e->found.count > 0 && tn_backend_usable(b),
        .reason_code = e->found.code,
        .reason = e->found.reason,
        .fix = e->found.fix,
        .library = e->found.library,
        .devices = e->found.devices,
        .device_count = e->found.count,
    };
}

/* What `auto` would take, by the same order as in device.c: software only when there is nothing else. */
static void recommend(tn_device_list *l, const tn_backend *table) {
    snprintf(l->recommended, sizeof l->recommended, "cpu");
    for (int software = 0; software < 2; software++)
        for (int i = 0; i < l->count; i++) {
            const entry *e = &l->entries[i];
            if (!e->info.available || tn_backend_by_name(&table[i])) continue;
            for (int k = 0; k < e->found.count; k++) {
                if (e->found.devices[k].software != software) continue;
                snprintf(l->recommended, sizeof l->recommended, "%s", e->found.devices[k].id);
                return;
            }
        }
}

static tn_status list_make(bool fresh, tn_device_list **out) {
    int count;
    tn_backend *table = tn_backends(&count);
    TRY(tn_discover(table, count, fresh));
    tn_device_list *l = tn_mem_zalloc(1, sizeof *l + (size_t)count * sizeof l->entries[0]);
    if (!l) return TN_ERR_MEMORY;
    l->count = count;
    for (int i = 0; i < count; i++)
        fill_entry(l, i, &table[i]);
    recommend(l, table);
    *out = l;
    return TN_OK;
}

tn_status tn_device_list_new(bool fresh, tn_device_list **out) {
    if (!out) return tn_fail(TN_ERR_ARGUMENT, "tn_device_list_new: out is NULL");
    *out = NULL;
    tn_registry_lock();
    tn_status s = list_make(fresh, out);
    tn_registry_unlock();
    return s;
}

void tn_device_list_free(tn_device_list *list) { tn_mem_free(list); }

int tn_device_list_count(const tn_device_list *list) { return list ? list->count : 0; }

const tn_backend_info *tn_device_list_at(const tn_device_list *list, int i) {
    return list && i >= 0 && i < list->count ? &list->entries[i].info : NULL;
}

const char *tn_device_list_recommended(const tn_device_list *list) { return list ? list->recommended : "cpu"; }
