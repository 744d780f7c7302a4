/* discovery.c — probing backends, the record of the last probe, the device list and its summary.
 *
 * A query is answered by the fastest source that is still valid: this process's last probe, the record on disk, a new
 * probe. Validity is decided by a key: a hash over everything that the probe's result depends on (the driver names its
 * files, folders, device nodes and environment variables), so nothing has to be loaded to see that nothing has changed.
 * Probes that load no foreign code are cheap and run each time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/os.h"
#include "hal/discovery.h"
#include "hal/hal.h"
#include "hal/kernel_code.h"

/* Results and keys of isolated backends on disk. A record that cannot be read, trusted or written is
 * ignored: it costs a probe and is never an error. */
static void discovery_cache_load(tn_backend *b, int count); /* into backends that have no findings yet */
static void discovery_cache_save(const tn_backend *b, int count);

enum { FREE_MEMORY_SECONDS = 10 }; /* how long what a probe said about free memory is repeated */

enum { PROBES = 3 }; /* raise it when a probe finds or says something else than before: old records are then ignored */

/* ---- keys -------------------------------------------------------------------------------------------------------- */

static uint64_t mix_text(uint64_t key, const char *text) { return tn_hash64(text, strlen(text) + 1, key); }

/* Adds the metadata of a file, folder or device node. For a node, times mean nothing; whether this user may open it
 * counts. */
static void mix_path(uint64_t *key, const char *path) {
    struct stat s;
    int64_t facts[6] = {-1};
    if (stat(path, &s) == 0) {
        bool node = S_ISCHR(s.st_mode);
        facts[0] = s.st_mode;
        facts[1] = (int64_t)s.st_ino;
        facts[2] = node ? (int64_t)s.st_rdev : (int64_t)s.st_size;
        facts[3] = node ? 0 : (int64_t)tn_modified_at(&s).tv_sec;
        facts[4] = node ? 0 : (int64_t)tn_modified_at(&s).tv_nsec;
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

/* Adds the identifier of this boot of the system, because drivers and device nodes may change with a restart. */
static uint64_t mix_boot(uint64_t key) {
    AUTO_FREE char *id = NULL;
    size_t size;
    if (tn_file_read("/proc/sys/kernel/random/boot_id", &id, &size, 256) == TN_OK) key = mix_text(key, id);
    return key;
}

static uint64_t backend_key(const tn_backend *b, uint64_t common) {
    uint64_t key = mix_text(common, b->name);
    if (b->driver->watch) b->driver->watch(mix_watched, &key);
    return key ? key : 1;
}

/* The part of a key that is common to all backends. Includes the limit of address space, because a driver may need
 * more. */
static uint64_t common_key(void) {
    uint64_t seed = PROBES + (tn_user_id() << 32);
    int64_t space = tn_address_space_limit();
    return mix_boot(tn_hash64(&space, sizeof space, mix_text(seed, tn_version())));
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
    snprintf(f->reason, sizeof f->reason, "%s", silent ? "its driver found no device and gave no reason" : p.reason);
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
    snprintf(f->reason, sizeof f->reason, "not built into this library");
    snprintf(f->fix, sizeof f->fix, "build with the CMake option -DTRUNNION_%s=ON", option);
}

static void say_refused(const tn_refusal *r, tn_probe_result *f) {
    memset(f, 0, sizeof *f);
    snprintf(f->code, sizeof f->code, "%s", tn_reason_code_name(r->code));
    snprintf(f->reason, sizeof f->reason, "%s", r->reason);
    snprintf(f->fix, sizeof f->fix, "TRUNNION_DRIVERS lists this file: list another, or rebuild it");
    snprintf(f->library, sizeof f->library, "%s", r->path);
}

static void say_usable(tn_probe_result *f) {
    snprintf(f->code, sizeof f->code, "%s", tn_reason_code_name(TN_REASON_NONE));
    f->reason[0] = f->fix[0] = 0;
}

/* Numbers the devices and adds what a driver need not know. */
static void complete_findings(const tn_backend *b, tn_probe_result *f) {
    bool single = b->is_cpu || tn_backend_by_name(b);
    for (int i = 0; i < f->count; i++) {
        tn_device_info *d = &f->devices[i];
        d->struct_size = sizeof *d;
        d->index = i;
        d->usable = true;
        snprintf(d->backend, sizeof d->backend, "%s", b->name);
        if (single)
            snprintf(d->id, sizeof d->id, "%s", b->name);
        else
            snprintf(d->id, sizeof d->id, "%s:%d", b->name, i);
    }
    if (f->count) say_usable(f);
}

/* Whether a backend must be probed again; stores its current key. */
static bool outdated(tn_backend *b, uint64_t common, bool fresh) {
    if (!tn_backend_isolated(b)) return true;
    uint64_t key = backend_key(b, common);
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

static tn_status allocate_findings(tn_backend *b, int count) {
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
    discovery_cache_load(table, all);
}

tn_status tn_discover(tn_backend *b, int count, bool fresh) {
    recall(b, count);
    TRY(allocate_findings(b, count));
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
        complete_findings(&b[i], b[i].found);
    }
    if (asked) {
        int all;
        const tn_backend *table = tn_backends(&all);
        discovery_cache_save(table, all);
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

/* Whether two descriptions are of one physical device. Software implementations have made-up UUIDs, so their names are
 * compared. */
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
        .available = e->found.count > 0,
        .reason_code = e->found.code,
        .reason = e->found.reason,
        .fix = e->found.fix,
        .library = e->found.library,
        .devices = e->found.devices,
        .device_count = e->found.count,
    };
}

/* The device that `auto` would choose, in the order of device.c: software only if there is nothing else. */
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

/* ==== devices.json: the record of the last probe ================================================================== */
/* The entry of each backend has a key made from everything that its result depended on (library files, environment). An
 * entry with another key is ignored, so a new driver or library is noticed at once. Failures that may pass by
 * themselves (a crash, a busy device) expire after an hour. The file is used only if it belongs to this user and nobody
 * else can write it. It is always replaced as a whole, atomically. */

enum { FORMAT = 1, MOST_BYTES = 1 << 20, PATH_ROOM = 4096, TROUBLE_SECONDS = 3600 };

static bool record_path(char *out, size_t size) {
    char folder[PATH_ROOM];
    if (tn_cache_dir(folder, sizeof folder) != TN_OK) return false;
    int n = snprintf(out, size, "%s/devices.json", folder);
    return n > 0 && (size_t)n < size;
}

/* ---- the text fields of findings and devices, in the file's words ------------------------------------------------ */

#define FIELD(type, name) \
    { #name, offsetof(type, name), sizeof(((type *)0)->name) }
typedef struct field {
    const char *name;
    size_t offset, size;
} field;

static const field of_findings[] = {FIELD(tn_probe_result, code), FIELD(tn_probe_result, reason),
                                    FIELD(tn_probe_result, fix), FIELD(tn_probe_result, library)};
static const field of_device[] = {FIELD(tn_device_info, name), FIELD(tn_device_info, compute_capability),
                                  FIELD(tn_device_info, uuid), FIELD(tn_device_info, pci)};

static void read_texts(const tn_json *v, const field *fields, size_t count, void *into) {
    for (size_t i = 0; i < count; i++)
        snprintf((char *)into + fields[i].offset, fields[i].size, "%s",
                 tn_json_string(tn_json_get(v, fields[i].name), ""));
}

static void write_texts(tn_json_writer *w, const field *fields, size_t count, const void *from) {
    for (size_t i = 0; i < count; i++) {
        tn_json_put_key(w, fields[i].name);
        tn_json_put_string(w, (const char *)from + fields[i].offset);
    }
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* A device as recorded. Its free memory was true then and is not repeated. */
static void read_device(const tn_json *v, tn_device_info *d) {
    read_texts(v, of_device, TN_COUNT(of_device), d);
    d->total_memory = tn_max64(0, tn_json_int(tn_json_get(v, "total_memory"), 0));
    d->unified_memory = tn_json_bool(tn_json_get(v, "unified_memory"), false);
    d->software = tn_json_bool(tn_json_get(v, "software"), false);
}

/* The time until which findings are believed; 0: as long as the key fits. */
static int64_t believed_until(const tn_probe_result *f) {
    static const tn_reason_code may_pass[] = {TN_REASON_CRASHED, TN_REASON_INIT_FAILED, TN_REASON_NO_MEMORY};
    for (size_t i = 0; i < TN_COUNT(may_pass); i++)
        if (!strcmp(f->code, tn_reason_code_name(may_pass[i]))) return (int64_t)time(NULL) + TROUBLE_SECONDS;
    return 0;
}

static void read_entry(const tn_json *v, tn_backend *b) {
    int64_t now = (int64_t)time(NULL), until = tn_json_int(tn_json_get(v, "until"), 0);
    if (until && (until < now || until > now + TROUBLE_SECONDS)) return;
    uint64_t key = strtoull(tn_json_string(tn_json_get(v, "key"), "0"), NULL, 16);
    tn_probe_result *f = key ? tn_mem_zalloc(1, sizeof *f) : NULL;
    if (!f) return;
    read_texts(v, of_findings, TN_COUNT(of_findings), f);
    const tn_json *devices = tn_json_get(v, "devices");
    size_t n = tn_json_kind_of(devices) == TN_JSON_ARRAY ? tn_json_length(devices) : 0;
    f->count = n < TN_MOST_DEVICES ? (int)n : TN_MOST_DEVICES;
    for (int i = 0; i < f->count; i++)
        read_device(tn_json_at(devices, (size_t)i), &f->devices[i]);
    b->found = f;
    b->key = key;
}

static void discovery_cache_load(tn_backend *b, int count) {
    char path[PATH_ROOM];
    char *text = NULL;
    size_t size;
    tn_json_doc *doc = NULL;
    if (!record_path(path, sizeof path) || !tn_path_trusted(path, false)) return;
    if (tn_file_read(path, &text, &size, MOST_BYTES) == TN_OK && tn_json_parse(text, size, &doc) == TN_OK) {
        const tn_json *root = tn_json_root(doc);
        const tn_json *entries = tn_json_get(root, "backends");
        bool ours = tn_json_int(tn_json_get(root, "format"), 0) == FORMAT;
        for (int i = 0; ours && i < count; i++) {
            const tn_json *v = tn_json_get(entries, b[i].name);
            if (v && !b[i].found && tn_backend_isolated(&b[i])) read_entry(v, &b[i]);
        }
    }
    tn_json_free(doc);
    tn_mem_free(text);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static void write_device(tn_json_writer *w, const tn_device_info *d) {
    tn_json_begin_object(w);
    write_texts(w, of_device, TN_COUNT(of_device), d);
    tn_json_put_key(w, "total_memory");
    tn_json_put_int(w, d->total_memory);
    tn_json_put_key(w, "unified_memory");
    tn_json_put_bool(w, d->unified_memory);
    tn_json_put_key(w, "software");
    tn_json_put_bool(w, d->software);
    tn_json_end_object(w);
}

static void write_entry(tn_json_writer *w, const tn_backend *b) {
    char key[20];
    snprintf(key, sizeof key, "%016llx", (unsigned long long)b->key);
    tn_json_put_key(w, b->name);
    tn_json_begin_object(w);
    tn_json_put_key(w, "key");
    tn_json_put_string(w, key);
    write_texts(w, of_findings, TN_COUNT(of_findings), b->found);
    tn_json_put_key(w, "until");
    tn_json_put_int(w, believed_until(b->found));
    tn_json_put_key(w, "devices");
    tn_json_begin_array(w);
    for (int i = 0; i < b->found->count; i++)
        write_device(w, &b->found->devices[i]);
    tn_json_end_array(w);
    tn_json_end_object(w);
}

/* Not cached: other processes may not have this limit. */
static bool is_own_limit(const tn_probe_result *f) {
    return !strcmp(f->code, tn_reason_code_name(TN_REASON_PROCESS_LIMIT));
}

static void write_all_record(tn_str *out, const tn_backend *b, int count) {
    tn_json_writer w = {.out = out};
    tn_json_begin_object(&w);
    tn_json_put_key(&w, "format");
    tn_json_put_int(&w, FORMAT);
    tn_json_put_key(&w, "backends");
    tn_json_begin_object(&w);
    for (int i = 0; i < count; i++)
        if (tn_backend_isolated(&b[i]) && b[i].found && b[i].key && !is_own_limit(b[i].found)) write_entry(&w, &b[i]);
    tn_json_end_object(&w);
    tn_json_end_object(&w);
}

static tn_status save_record(const char *path, const tn_str *text) {
    tn_save *s;
    TRY(tn_save_begin(path, &s));
    return tn_save_end(s, tn_save_write(s, tn_str_text(text), text->length));
}

static void discovery_cache_save(const tn_backend *b, int count) {
    char path[PATH_ROOM];
    tn_str text = {0};
    write_all_record(&text, b, count);
    if (!text.failed && record_path(path, sizeof path) && save_record(path, &text) != TN_OK)
        tn_log_line(TN_LOG_VERBOSE, "the device list was not cached: %s", tn_error());
    tn_str_free(&text);
}

/* ==== the list in words =========================================================================================== */

typedef struct printer {
    void (*write)(void *ctx, const char *text);
    void *ctx;
    bool verbose, colour;
    int name_width; /* columns of the longest device name */
} printer;

enum { INDENT = 2, BACKEND_COLUMNS = 20, MOST_NAME_COLUMNS = 48 };

static const char GOOD[] = "\033[32m", BAD[] = "\033[31m", FAINT[] = "\033[2m", STRONG[] = "\033[1m",
                  PLAIN[] = "\033[0m";

static void put_summary(const printer *p, const char *style, const char *text) {
    if (p->colour && style) p->write(p->ctx, style);
    p->write(p->ctx, text);
    if (p->colour && style) p->write(p->ctx, PLAIN);
}

/* Characters of UTF-8 text, which is what a terminal gives a column each. */
static int columns(const char *text) {
    int n = 0;
    for (; *text; text++)
        n += ((unsigned char)*text & 0xC0) != 0x80;
    return n;
}

static void pad(const printer *p, int n) {
    for (; n > 0; n--)
        p->write(p->ctx, " ");
}

static void put_padded(const printer *p, const char *style, const char *text, int width) {
    put_summary(p, style, text);
    pad(p, width - columns(text));
}

/* "23.5 GiB, 23.1 GiB free · avx512 · 2 threads": what is known, apart by dots. */
static void facts_of(const tn_device_info *d, char *out, size_t size) {
    char total[24], unused[24], threads[24] = "", memory[64] = "";
    if (d->total_memory) snprintf(memory, sizeof memory, "%s", tn_bytes_text(total, d->total_memory));
    if (d->total_memory && d->free_memory)
        snprintf(memory, sizeof memory, "%s, %s free", total, tn_bytes_text(unused, d->free_memory));
    if (d->threads) snprintf(threads, sizeof threads, "%d thread%s", d->threads, d->threads > 1 ? "s" : "");
    const char *facts[] = {memory, d->compute_capability, threads, d->software ? "software" : ""};
    out[0] = 0;
    for (size_t i = 0; i < TN_COUNT(facts); i++) {
        size_t n = strlen(out);
        if (facts[i][0]) snprintf(out + n, size - n, "%s%s", n ? " · " : "", facts[i]);
    }
}

static void put_device(const printer *p, const tn_device_info *d) {
    char facts[200], note[96] = "";
    facts_of(d, facts, sizeof facts);
    put_summary(p, d->usable ? NULL : FAINT, d->name);
    if (facts[0]) pad(p, (int)tn_max64(p->name_width - columns(d->name), 0) + 2);
    put_summary(p, FAINT, facts);
    if (d->same_as[0]) snprintf(note, sizeof note, "  the same as %s", d->same_as);
    put_summary(p, FAINT, note);
    if (p->verbose && (d->uuid[0] || d->pci[0])) {
        snprintf(note, sizeof note, "%s%s%s%s", d->pci[0] ? "  pci " : "", d->pci, d->uuid[0] ? "  uuid " : "",
                 d->uuid);
        put_summary(p, FAINT, note);
    }
    p->write(p->ctx, "\n");
}

static void put_line(const printer *p, const char *label, const char *text) {
    if (!text[0]) return;
    pad(p, INDENT + BACKEND_COLUMNS);
    put_summary(p, FAINT, label);
    put_summary(p, FAINT, text);
    p->write(p->ctx, "\n");
}

static void put_devices(const printer *p, const tn_backend_info *b) {
    for (int i = 0; i < b->device_count; i++) {
        const char *id = b->devices[i].id;
        bool own_line = i > 0 || !b->available; /* the first usable device is on the line with the tick */
        if (own_line) {
            pad(p, INDENT);
            put_padded(p, FAINT, b->available || b->device_count > 1 || strcmp(id, b->name) ? id : "", BACKEND_COLUMNS);
        }
        put_device(p, &b->devices[i]);
    }
}

static void put_backend(const printer *p, const tn_backend_info *b) {
    put_summary(p, b->available ? GOOD : BAD, b->available ? "✓ " : "✗ ");
    put_padded(p, b->available ? STRONG : NULL, b->available ? b->devices[0].id : b->name, BACKEND_COLUMNS);
    if (!b->available) {
        p->write(p->ctx, b->reason);
        if (p->verbose) {
            p->write(p->ctx, " [");
            p->write(p->ctx, b->reason_code);
            p->write(p->ctx, "]");
        }
        p->write(p->ctx, "\n");
    }
    put_devices(p, b);
    if (!b->available) put_line(p, "→ ", b->fix);
    if (p->verbose) put_line(p, "library: ", b->library);
}

static int widest_name(const tn_device_list *list) {
    int widest = 0;
    for (int i = 0; i < tn_device_list_count(list); i++) {
        const tn_backend_info *b = tn_device_list_at(list, i);
        for (int k = 0; k < b->device_count; k++) {
            int n = columns(b->devices[k].name);
            if (n > widest) widest = n;
        }
    }
    return widest < MOST_NAME_COLUMNS ? widest : MOST_NAME_COLUMNS;
}

static bool has_device(const tn_device_list *list, const char *backend) {
    for (int i = 0; i < tn_device_list_count(list); i++) {
        const tn_backend_info *b = tn_device_list_at(list, i);
        if (b->available && strcmp(b->name, backend) == 0) return true;
    }
    return false;
}

/* One line with the usable ones; with `verbose` all, with file or reason. A vendor library without a device of that
 * vendor cannot be used. */
static void put_libraries(const printer *p, const tn_device_list *list) {
    tn_library_info l = {.struct_size = sizeof l};
    p->write(p->ctx, "libraries for --library:");
    int found = 0;
    for (int i = 0; i < tn_library_count(); i++) {
        if (tn_library_at(i, &l) != TN_OK) continue;
        bool usable = l.available && has_device(list, l.backend);
        if (!usable && !p->verbose) continue;
        p->write(p->ctx, p->verbose ? "\n  " : found ? ", " : " ");
        put_summary(p, usable ? GOOD : BAD, p->verbose ? usable ? "✓ " : "✗ " : "");
        put_summary(p, l.in_use ? STRONG : NULL, l.name);
        if (strcmp(l.backend, "cpu") != 0) {
            p->write(p->ctx, " on ");
            p->write(p->ctx, l.backend);
        }
        if (l.in_use) p->write(p->ctx, " (in use)");
        if (p->verbose) put_summary(p, FAINT, ": ");
        if (p->verbose && l.available && !usable) put_summary(p, FAINT, "no device for it; found at ");
        if (p->verbose) put_summary(p, FAINT, l.available ? l.path : l.reason);
        if (p->verbose && !l.available && l.fix[0]) put_summary(p, FAINT, " → ");
        if (p->verbose && !l.available) put_summary(p, FAINT, l.fix);
        found += usable;
    }
    p->write(p->ctx, found || p->verbose ? "\n" : " none\n");
}

tn_status tn_print_backend_summary(void (*write)(void *ctx, const char *text), void *ctx, bool verbose, bool colour) {
    if (!write) return tn_fail(TN_ERR_ARGUMENT, "tn_print_backend_summary: write is NULL");
    tn_device_list *list;
    TRY(tn_device_list_new(false, &list));
    const printer p = {write, ctx, verbose, colour, widest_name(list)};
    for (int i = 0; i < tn_device_list_count(list); i++)
        put_backend(&p, tn_device_list_at(list, i));
    write(ctx, "\nrecommended: ");
    put_summary(&p, STRONG, tn_device_list_recommended(list));
    write(ctx, "\n");
    put_libraries(&p, list);
    tn_device_list_free(list);
    return TN_OK;
}
