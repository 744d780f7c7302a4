/* discovery_cache.c — what the last look at the backends found, kept in the cache folder as devices.json.
 *
 * Each backend's entry holds a key made of all that its findings depended on (discovery.c); an entry whose key no
 * longer fits is ignored, so a new driver or library is seen at once. What may pass by itself (a crash, a device that
 * was busy) is believed for an hour. The file is used only if it belongs to this user and nobody else can write it;
 * it is rewritten as a whole and atomically. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "hal/discovery.h"

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

/* Whether the file is this user's own and nobody else's to write. */
static bool trusted(const char *path) {
    struct stat s;
    if (lstat(path, &s)) return false;
    return S_ISREG(s.st_mode) && s.st_uid == geteuid() && !(s.st_mode & (S_IWGRP | S_IWOTH));
}

void tn_discovery_cache_load(tn_backend *b, int count) {
    char path[PATH_ROOM];
    char *text = NULL;
    size_t size;
    tn_json_doc *doc = NULL;
    if (!record_path(path, sizeof path) || !trusted(path)) return;
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

static void write_all_record(tn_str *out, const tn_backend *b, int count) {
    tn_json_writer w = {.out = out};
    tn_json_begin_object(&w);
    tn_json_put_key(&w, "format");
    tn_json_put_int(&w, FORMAT);
    tn_json_put_key(&w, "backends");
    tn_json_begin_object(&w);
    for (int i = 0; i < count; i++)
        if (tn_backend_isolated(&b[i]) && b[i].found && b[i].key) write_entry(&w, &b[i]);
    tn_json_end_object(&w);
    tn_json_end_object(&w);
}

static tn_status save_record(const char *path, const tn_str *text) {
    tn_save *s;
    TRY(tn_save_begin(path, &s));
    tn_status status = tn_save_write(s, tn_str_text(text), text->length);
    if (status == TN_OK) return tn_save_commit(s);
    tn_save_abandon(s);
    return status;
}

void tn_discovery_cache_save(const tn_backend *b, int count) {
    char path[PATH_ROOM];
    tn_str text = {0};
    write_all_record(&text, b, count);
    if (!text.failed && record_path(path, sizeof path) && save_record(path, &text) != TN_OK)
        tn_log_line(TN_LOG_VERBOSE, "the record of devices is not kept: %s", tn_error());
    tn_str_free(&text);
}
