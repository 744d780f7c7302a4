/* tune_cache.c — the record of measured choices: a table in memory, a JSON file on disk.
 *
 * The file is read once, when something is looked up first, and again before it is written, so that what other
 * processes added is kept; tn_save replaces it whole. It is bounded, and whatever is wrong with it, it is as if it were
 * not there. */
#include "hal/tune_cache.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "hal/kernel_code.h"

enum { PATH_ROOM = 4096, MOST_ENTRIES = 4096, MOST_BYTES = 2 << 20, FORMAT = 1 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tn_tuned *entries; /* the lock's */
static size_t count, capacity;
static bool loaded;

static _Atomic uint64_t generation = 1;
static _Atomic int mode = -1; /* -1: the environment has not been looked at */

tn_tuning tn_tuning_mode(void) {
    int now = atomic_load_explicit(&mode, memory_order_relaxed);
    if (now >= 0) return (tn_tuning)now;
    const char *word = tn_env("TRUNNION_TUNE");
    tn_tuning said = !word ? TN_TUNING_USE : strcmp(word, "0") == 0 ? TN_TUNING_OFF : TN_TUNING_FIRST_USE;
    int unset = -1;
    atomic_compare_exchange_strong(&mode, &unset, (int)said);
    return (tn_tuning)atomic_load(&mode);
}

tn_status tn_set_tuning(tn_tuning wanted) {
    if (wanted > TN_TUNING_OFF) return tn_fail(TN_ERR_ARGUMENT, "tn_set_tuning: %d is no mode", (int)wanted);
    atomic_store(&mode, (int)wanted);
    pthread_mutex_lock(&lock);
    loaded = false; /* other processes may have added to it */
    pthread_mutex_unlock(&lock);
    atomic_fetch_add(&generation, 1);
    return TN_OK;
}

uint64_t tn_tune_generation(void) { return atomic_load_explicit(&generation, memory_order_relaxed); }

/* ---- the table (the caller holds the lock) ----------------------------------------------------------------------- */

static tn_tuned *entry_of(const char *key) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(entries[i].key, key) == 0) return &entries[i];
    return NULL;
}

/* Where an entry of this key goes; in a full table one that was there before makes room. NULL: no memory. */
static tn_tuned *place_for(const char *key) {
    tn_tuned *known = entry_of(key);
    if (known) return known;
    if (count == MOST_ENTRIES) return &entries[tn_hash64(key, strlen(key), 0) % MOST_ENTRIES];
    return tn_mem_reserve(&entries, &capacity, count + 1, sizeof *entries) == TN_OK ? &entries[count++] : NULL;
}

static void set_entry(const tn_tuned *e) {
    tn_tuned *known = place_for(e->key);
    if (!known) return;
    *known = *e;
    known->struct_size = sizeof *known;
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

static bool record_path(char *out, size_t size) {
    const char *named = tn_env("TRUNNION_TUNE_CACHE");
    if (!named) return tn_cache_path("tune.json", out, size);
    int n = snprintf(out, size, "%s", named);
    return n > 0 && (size_t)n < size;
}

/* What the measurements depend on besides their keys. */
static void machine(char out[160]) {
    tn_cpu_info cpu = tn_cpu();
    snprintf(out, 160, "%s, %s, %d cores, %s", cpu.name, tn_isa_name(cpu.isa), cpu.cores, tn_version());
}

static void copy_text(char *out, size_t size, const tn_json *v, const char *key) {
    snprintf(out, size, "%s", tn_json_string(tn_json_get(v, key), ""));
}

static void read_entries(const tn_json *root) {
    const tn_json *list = tn_json_get(root, "entries");
    size_t n = tn_json_kind_of(list) == TN_JSON_ARRAY ? tn_json_length(list) : 0;
    for (size_t i = 0; i < n && i < MOST_ENTRIES; i++) {
        const tn_json *v = tn_json_at(list, i);
        tn_tuned e = {.seconds = tn_json_number(tn_json_get(v, "seconds"), 0),
                      .rule_seconds = tn_json_number(tn_json_get(v, "rule_seconds"), 0)};
        copy_text(e.key, sizeof e.key, v, "key");
        copy_text(e.way, sizeof e.way, v, "way");
        copy_text(e.date, sizeof e.date, v, "date");
        if (e.key[0] && e.way[0]) set_entry(&e);
    }
}

static void load_tune(void) {
    char path[PATH_ROOM], here[160];
    char *text = NULL;
    size_t size;
    tn_json_doc *doc = NULL;
    loaded = true;
    if (!record_path(path, sizeof path) || !tn_path_trusted(path, false)) return;
    machine(here);
    if (tn_file_read(path, &text, &size, MOST_BYTES) == TN_OK && tn_json_parse(text, size, &doc) == TN_OK) {
        const tn_json *root = tn_json_root(doc);
        bool ours = tn_json_int(tn_json_get(root, "format"), 0) == FORMAT &&
                    strcmp(tn_json_string(tn_json_get(root, "machine"), ""), here) == 0;
        if (ours) read_entries(root);
    }
    tn_json_free(doc);
    tn_mem_free(text);
}

static void put_text_tune(tn_json_writer *w, const char *key, const char *text) {
    tn_json_put_key(w, key);
    tn_json_put_string(w, text);
}

static void put_number(tn_json_writer *w, const char *key, double v) {
    tn_json_put_key(w, key);
    tn_json_put_number(w, v);
}

static void write_all_tune(tn_str *out) {
    char here[160];
    tn_json_writer w = {.out = out};
    machine(here);
    tn_json_begin_object(&w);
    tn_json_put_key(&w, "format");
    tn_json_put_int(&w, FORMAT);
    put_text_tune(&w, "machine", here);
    tn_json_put_key(&w, "entries");
    tn_json_begin_array(&w);
    for (size_t i = 0; i < count; i++) {
        tn_json_begin_object(&w);
        put_text_tune(&w, "key", entries[i].key);
        put_text_tune(&w, "way", entries[i].way);
        put_number(&w, "seconds", entries[i].seconds);
        put_number(&w, "rule_seconds", entries[i].rule_seconds);
        put_text_tune(&w, "date", entries[i].date);
        tn_json_end_object(&w);
    }
    tn_json_end_array(&w);
    tn_json_end_object(&w);
}

static void save_tune(void) {
    char path[PATH_ROOM];
    tn_str text = {0};
    tn_save *s = NULL;
    write_all_tune(&text);
    tn_status status = TN_OK;
    if (text.failed)
        status = TN_ERR_MEMORY;
    else if (!record_path(path, sizeof path))
        status = tn_fail(TN_ERR_IO, "no cache folder, or too long a path; TRUNNION_TUNE_CACHE names a file");
    else
        status = tn_save_begin(path, &s);
    if (status == TN_OK) {
        status = tn_save_write(s, tn_str_text(&text), text.length);
        if (status == TN_OK)
            status = tn_save_commit(s);
        else
            tn_save_abandon(s);
    }
    static bool told; /* once is enough */
    if (status != TN_OK) {
        tn_log_line(told ? TN_LOG_VERBOSE : TN_LOG_NOTICE, "the record of tuning is not kept: %s", tn_error());
        told = true;
    }
    tn_str_free(&text);
}

/* ---- for others -------------------------------------------------------------------------------------------------- */

bool tn_tune_find(const char *key, tn_tuned *out) {
    pthread_mutex_lock(&lock);
    if (!loaded) load_tune();
    const tn_tuned *known = entry_of(key);
    if (known) *out = *known;
    pthread_mutex_unlock(&lock);
    return known != NULL;
}

void tn_tune_put(const tn_tuned *entry) {
    tn_tuned e = *entry;
    time_t now = time(NULL);
    struct tm day;
    if (gmtime_r(&now, &day)) strftime(e.date, sizeof e.date, "%Y-%m-%d", &day);
    pthread_mutex_lock(&lock);
    load_tune();
    set_entry(&e);
    save_tune();
    pthread_mutex_unlock(&lock);
    atomic_fetch_add(&generation, 1);
}

int tn_tuned_count(void) {
    pthread_mutex_lock(&lock);
    if (!loaded) load_tune();
    int n = (int)count;
    pthread_mutex_unlock(&lock);
    return n;
}

tn_status tn_tuned_at(int i, tn_tuned *out) {
    TRY(tn_need(out, "tn_tuned_at: out"));
    if (out->struct_size < sizeof(size_t)) return tn_fail(TN_ERR_ARGUMENT, "tn_tuned_at: out->struct_size is not set");
    int n = tn_tuned_count();
    if (i < 0 || i >= n) return tn_fail(TN_ERR_ARGUMENT, "tn_tuned_at: entry %d; there are %d", i, n);
    pthread_mutex_lock(&lock);
    tn_tuned full = entries[i];
    pthread_mutex_unlock(&lock);
    full.struct_size = out->struct_size;
    memcpy(out, &full, out->struct_size < sizeof full ? out->struct_size : sizeof full);
    return TN_OK;
}
