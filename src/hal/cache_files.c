/* cache_files.c — files of the cache folder: compiled kernels, certify.list, tune.json. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/os.h"
#include "hal/hal.h"
#include "hal/kernel_code.h"

/* ==== compiled kernels ============================================================================================ */
/* A file is named after the hash of its key and contains the key itself (source text, entry, options, format, device,
 * driver version), so a hit is the same kernel and not only the same hash. A file is used only if folder and file
 * belong to this user, nobody else can write them, and the hash of the contents is right; anything else is removed,
 * compiled again and replaced. Files appear atomically (tn_save renames), so processes do not wait for each other: if
 * two compile the same kernel, the later file stays.
 *
 * Nothing here is ever an error: if the folder is missing, full or read-only, kernels are compiled again. */

enum { PATH_ROOM = 4096, MOST_ENTRY_BYTES = 64 << 20, MOST_ENTRIES = 8192, NAME_ROOM = 48 };

static const char FORMAT[8] = "TNKERN1";
static const char SUFFIX[] = ".kernel";

/* Bytes of all files together. A kernel takes 3 KiB (PTX) to 150 KiB (PoCL): this holds thousands of them. */
static _Atomic int64_t limit = (int64_t)256 << 20;

int64_t tn_kernel_cache_set_limit(int64_t bytes) { return atomic_exchange(&limit, bytes); }

bool tn_path_trusted(const char *path, bool folder) {
    struct stat s;
    if (lstat(path, &s)) return false;
    bool kind = folder ? S_ISDIR(s.st_mode) : S_ISREG(s.st_mode);
    return kind && tn_is_ours(&s) && !(s.st_mode & (S_IWGRP | S_IWOTH));
}

/* A folder or file of the cache folder in `out`; false when there is none that can be trusted. */
static bool tn_cache_path(const char *name, char *out, size_t size) {
    char folder[PATH_ROOM];
    if (tn_cache_dir(folder, sizeof folder) != TN_OK || !tn_path_trusted(folder, true)) return false;
    int n = snprintf(out, size, "%s/%s", folder, name);
    return n > 0 && (size_t)n < size;
}

static bool kernels_folder(char *out, size_t size) {
    return tn_cache_path("kernels", out, size) && tn_make_dirs(out, 0700) == TN_OK && tn_path_trusted(out, true);
}

/* ---- one entry --------------------------------------------------------------------------------------------------- */

typedef struct header {
    char format[sizeof FORMAT];
    uint64_t key_bytes, data_bytes;
    uint64_t hash; /* of key and data */
} header;

/* Everything that the driver's result depends on. Fields end with a NUL, so that none can run into the next. */
static bool key_make(const tn_device *d, const tn_code *code, tn_str *key) {
    const char *const words[] = {d->driver->name, d->info.name, d->caps.version, code->entry,
                                 code->options ? code->options : ""};
    for (size_t i = 0; i < TN_COUNT(words); i++)
        tn_str_addn(key, words[i], strlen(words[i]) + 1);
    tn_str_add(key, "%d", (int)code->format);
    tn_str_addn(key, "", 1);
    tn_str_addn(key, code->data, code->size);
    return !key->failed;
}

static uint64_t content_hash(const tn_str *key, const void *data, size_t size) {
    return tn_hash64(data, size, tn_hash64(key->text, key->length, 0));
}

static bool entry_path(const tn_str *key, char *out, size_t size) {
    char folder[PATH_ROOM];
    if (!kernels_folder(folder, sizeof folder)) return false;
    int n = snprintf(out, size, "%s/%016llx%016llx%s", folder, (unsigned long long)tn_hash64(key->text, key->length, 1),
                     (unsigned long long)tn_hash64(key->text, key->length, 2), SUFFIX);
    return n > 0 && (size_t)n < size;
}

/* Where the data begin in the file's content, or 0: it is not this key's entry, or not whole. */
static size_t data_in(const char *content, size_t size, const tn_str *key) {
    header h;
    if (size < sizeof h) return 0;
    memcpy(&h, content, sizeof h);
    size_t rest = size - sizeof h;
    if (memcmp(h.format, FORMAT, sizeof FORMAT) != 0 || h.key_bytes != key->length || h.key_bytes > rest ||
        h.data_bytes == 0 || h.data_bytes != rest - h.key_bytes)
        return 0;
    if (memcmp(content + sizeof h, key->text, key->length) != 0) return 0;
    size_t at = sizeof h + key->length;
    return h.hash == content_hash(key, content + at, size - at) ? at : 0;
}

static bool read_entry(const char *path, const tn_str *key, void **data, size_t *size) {
    char *content;
    size_t bytes;
    if (!tn_path_trusted(path, false) || tn_file_read(path, &content, &bytes, MOST_ENTRY_BYTES) != TN_OK) return false;
    size_t at = data_in(content, bytes, key);
    if (!at) {
        tn_mem_free(content);
        return false;
    }
    memmove(content, content + at, bytes - at);
    *data = content;
    *size = bytes - at;
    return true;
}

bool tn_kernel_cache_find(const tn_device *d, const tn_code *code, void **data, size_t *size) {
    char path[PATH_ROOM];
    AUTO_STR tn_str key = {0};
    bool found = false;
    if (key_make(d, code, &key) && entry_path(&key, path, sizeof path)) {
        found = read_entry(path, &key, data, size);
        if (found)
            (void)utimensat(AT_FDCWD, path, NULL, 0); /* used now: others are older */
        else
            (void)unlink(path); /* if there is something, it cannot be used */
    }
    return found;
}

void tn_kernel_cache_drop(const tn_device *d, const tn_code *code) {
    char path[PATH_ROOM];
    tn_str key = {0};
    if (key_make(d, code, &key) && entry_path(&key, path, sizeof path)) (void)unlink(path);
    tn_str_free(&key);
}

/* ---- the bound --------------------------------------------------------------------------------------------------- */

typedef struct cache_entry {
    char name[NAME_ROOM];
    struct timespec used;
    int64_t bytes;
} cache_entry;

static int by_age(const void *a, const void *b) {
    const struct timespec *x = &((const cache_entry *)a)->used, *y = &((const cache_entry *)b)->used;
    if (x->tv_sec != y->tv_sec) return x->tv_sec < y->tv_sec ? -1 : 1;
    return (x->tv_nsec > y->tv_nsec) - (x->tv_nsec < y->tv_nsec);
}

static bool is_entry(const char *name) {
    size_t n = strlen(name), s = sizeof SUFFIX - 1;
    return n < NAME_ROOM && n > s && !strcmp(name + n - s, SUFFIX);
}

/* ".NAME.kernel.tmp3" of a process that was killed while writing: no writer takes this long. */
static bool is_left_over(const char *name, const struct stat *s, time_t now) {
    enum { SECONDS = 3600 };
    const char *end = strstr(name, SUFFIX);
    return name[0] == '.' && end && !strncmp(end + sizeof SUFFIX - 1, ".tmp", 4) && s->st_mtime < now - SECONDS;
}

/* The entries of an open folder, after removing left-over files; *count: their number. NULL: none, or out of memory. */
static cache_entry *list_entries(DIR *folder, size_t *count) {
    cache_entry *all = NULL;
    size_t capacity = 0;
    struct stat s;
    time_t now = time(NULL);
    *count = 0;
    for (const struct dirent *e; (e = readdir(folder));) {
        if (fstatat(dirfd(folder), e->d_name, &s, AT_SYMLINK_NOFOLLOW)) continue;
        if (is_left_over(e->d_name, &s, now)) (void)unlinkat(dirfd(folder), e->d_name, 0);
        if (!is_entry(e->d_name)) continue;
        if (tn_mem_reserve(&all, &capacity, *count + 1, sizeof *all) != TN_OK) break;
        cache_entry *at = &all[(*count)++];
        memcpy(at->name, e->d_name, strlen(e->d_name) + 1);
        at->used = tn_modified_at(&s);
        at->bytes = s.st_size;
    }
    return all;
}

/* Removes the oldest entries until the rest leave an eighth of the room: not each entry is to cause removals. */
static void make_room_cache(const char *path) {
    DIR *folder = opendir(path);
    if (!folder) return;
    size_t count;
    cache_entry *all = list_entries(folder, &count);
    int64_t most = atomic_load(&limit), bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += all[i].bytes;
    if (bytes > most || count > MOST_ENTRIES) {
        qsort(all, count, sizeof *all, by_age);
        size_t left = count;
        for (size_t i = 0; i < count && (bytes > most / 8 * 7 || left > MOST_ENTRIES / 8 * 7); i++, left--) {
            (void)unlinkat(dirfd(folder), all[i].name, 0);
            bytes -= all[i].bytes;
        }
    }
    tn_mem_free(all);
    closedir(folder);
}

static tn_status write_entry(const char *path, const tn_str *key, const void *data, size_t size) {
    header h = {.key_bytes = key->length, .data_bytes = size, .hash = content_hash(key, data, size)};
    memcpy(h.format, FORMAT, sizeof FORMAT);
    tn_save *s;
    TRY(tn_save_begin(path, &s));
    tn_status status = tn_save_write(s, &h, sizeof h);
    if (status == TN_OK) status = tn_save_write(s, key->text, key->length);
    if (status == TN_OK) status = tn_save_write(s, data, size);
    return tn_save_end(s, status);
}

void tn_kernel_cache_put(const tn_device *d, const tn_code *code, const void *data, size_t size) {
    char path[PATH_ROOM], folder[PATH_ROOM];
    tn_str key = {0};
    size_t most = (size_t)tn_min64(MOST_ENTRY_BYTES, atomic_load(&limit));
    if (size && size < most && key_make(d, code, &key) && key.length < most - size &&
        entry_path(&key, path, sizeof path) && kernels_folder(folder, sizeof folder)) {
        if (write_entry(path, &key, data, size) == TN_OK) {
            (void)chmod(path, 0600); /* whatever the process's mask is: what others can write is not believed */
            make_room_cache(folder);
        } else {
            tn_log_line(TN_LOG_VERBOSE, "a compiled kernel was not cached: %s", tn_error());
        }
    }
    tn_str_free(&key);
}

/* ==== certify.list: operations that a device computes wrongly ===================================================== */
/* One line each: device, driver version, name and reason, separated by tabs. The name is an op's or, for a kernel, its
 * structure's hash. Entries of another driver version are ignored. The file is used only if it belongs to this user and
 * nobody else can write it; it is read again when it has changed. A writer locks a second file, so that processes do
 * not lose each other's lines. */

enum { CERTIFY_LIST_PATH_ROOM = 4096, MOST_BYTES = 1 << 20 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *certify_list_text; /* the file's content, NULL: none */
static struct stat seen;

static bool list_path(char *out, size_t size) { return tn_cache_path("certify.list", out, size); }

/* Takes the lock of a cache file; waits for other processes that hold it, but not for one that is stopped. -1: locking
 * is not possible; the caller changes the file anyway. */
static int lock_for_processes(const char *name) {
    enum { TRIES = 1000, MICROSECONDS = 1000 };
    char path[CERTIFY_LIST_PATH_ROOM];
    if (!tn_cache_path(name, path, sizeof path)) return -1;
    int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    for (int i = 0; fd >= 0 && i < TRIES && !tn_lock_file(fd) && errno == EWOULDBLOCK; i++)
        usleep(MICROSECONDS);
    return fd;
}

static void unlock_for_processes(int fd) {
    if (fd >= 0) close(fd);
}

/* Whether the file is the same as before, as far as its metadata show. */
static bool unchanged(const struct stat *s) {
    struct timespec t = tn_modified_at(s), then = tn_modified_at(&seen);
    return s->st_ino == seen.st_ino && s->st_size == seen.st_size && t.tv_sec == then.tv_sec &&
           t.tv_nsec == then.tv_nsec;
}

/* The caller holds the lock. */
static void refresh(void) {
    char path[CERTIFY_LIST_PATH_ROOM];
    struct stat now = {0};
    size_t size;
    bool there = list_path(path, sizeof path) && tn_path_trusted(path, false) && lstat(path, &now) == 0;
    if (!there) memset(&now, 0, sizeof now);
    if (unchanged(&now)) return;
    tn_mem_free(certify_list_text);
    certify_list_text = NULL;
    seen = now;
    if (there && tn_file_read(path, &certify_list_text, &size, MOST_BYTES) != TN_OK) certify_list_text = NULL;
}

/* Appends `from` as one field: no tabs or ends of lines. */
static void add_field(tn_str *to, const char *from, char end) {
    for (; *from; from++)
        tn_str_addn(to, *from == '\t' || *from == '\n' || *from == '\r' ? " " : from, 1);
    tn_str_addn(to, &end, 1);
}

/* "device \t version \t name \t": how this device's line about `name` begins. */
static bool line_begin(const tn_device *d, const char *name, tn_str *out) {
    add_field(out, d->info.name, '\t');
    add_field(out, d->caps.version, '\t');
    add_field(out, name, '\t');
    return !out->failed;
}

/* The reason on the line that begins like this, or NULL. The caller holds the lock. */
static const char *find_reason(const tn_str *begin) {
    const char *at = certify_list_text;
    while (at && strncmp(at, begin->text, begin->length) != 0) {
        at = strchr(at, '\n');
        at = at && at[1] ? at + 1 : NULL;
    }
    return at ? at + begin->length : NULL;
}

bool tn_certify_list_has(const tn_device *d, const char *name, char *why, size_t size) {
    AUTO_STR tn_str begin = {0};
    bool found = false;
    if (line_begin(d, name, &begin)) {
        AUTO_LOCK(&lock);
        refresh();
        const char *reason = find_reason(&begin);
        if (reason && size) snprintf(why, size, "%.*s", (int)strcspn(reason, "\n"), reason);
        found = reason != NULL;
    }
    return found;
}

static tn_status append_certify_list(const char *path, const tn_str *line) {
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return tn_fail(TN_ERR_IO, "cannot open '%s': %s", path, strerror(errno));
    ssize_t done = write(fd, line->text, line->length);
    tn_status s = done == (ssize_t)line->length ? TN_OK : tn_fail(TN_ERR_IO, "cannot write '%s'", path);
    close(fd);
    return s;
}

/* The caller holds the lock. */
static tn_status add_line(const tn_str *begin, const char *reason) {
    char path[CERTIFY_LIST_PATH_ROOM];
    if (!list_path(path, sizeof path))
        return tn_fail(TN_ERR_IO, "no private cache folder for the list of failed kernels; set TRUNNION_CACHE");
    refresh();
    if (find_reason(begin)) return TN_OK;
    size_t n = certify_list_text ? strlen(certify_list_text) : 0;
    tn_str line = {0};
    if (n && certify_list_text[n - 1] != '\n') tn_str_addn(&line, "\n", 1); /* what a killed process left unfinished */
    tn_str_addn(&line, begin->text, begin->length);
    add_field(&line, reason, '\n');
    tn_status s = line.failed ? TN_ERR_MEMORY : TN_OK;
    if (s == TN_OK && n + line.length > MOST_BYTES)
        s = tn_fail(TN_ERR_IO, "'%s' would exceed %d bytes; remove it", path, (int)MOST_BYTES);
    if (s == TN_OK) s = append_certify_list(path, &line);
    tn_str_free(&line);
    return s;
}

tn_status tn_certify_list_add(const tn_device *d, const char *name, const char *reason) {
    tn_str begin = {0};
    tn_status s = TN_ERR_MEMORY;
    if (line_begin(d, name, &begin)) {
        AUTO_LOCK(&lock);
        int held = lock_for_processes("certify.lock");
        s = add_line(&begin, reason);
        unlock_for_processes(held);
    }
    tn_str_free(&begin);
    return s;
}

/* Writes the list without the lines that begin like this. The caller holds the lock. */
static tn_status write_without(const char *path, const tn_str *begin) {
    tn_save *save = NULL;
    TRY(tn_save_begin(path, &save));
    tn_status s = TN_OK;
    for (const char *at = certify_list_text; *at && s == TN_OK;) {
        size_t length = strcspn(at, "\n");
        length += at[length] == '\n';
        if (strncmp(at, begin->text, begin->length) != 0) s = tn_save_write(save, at, length);
        at += length;
    }
    return tn_save_end(save, s);
}

tn_status tn_certify_list_forget(const tn_device *d, const char *name) {
    char path[CERTIFY_LIST_PATH_ROOM];
    tn_str begin = {0};
    tn_status s = TN_ERR_MEMORY;
    if (line_begin(d, name, &begin)) {
        AUTO_LOCK(&lock);
        int held = lock_for_processes("certify.lock");
        refresh();
        s = find_reason(&begin) && list_path(path, sizeof path) ? write_without(path, &begin) : TN_OK;
        unlock_for_processes(held);
    }
    tn_str_free(&begin);
    return s;
}

/* ==== tune.json: measured choices ================================================================================= */
/* The file is read at the first look-up, and again before it is written, under a lock of the cache folder, so that
 * entries of other processes are kept; tn_save replaces it atomically. Its size is limited. A file that is invalid in
 * any way is ignored. */

enum { TUNE_PATH_ROOM = 4096, TUNE_MOST_ENTRIES = 4096, TUNE_MOST_BYTES = 2 << 20, TUNE_FORMAT = 1 };

static pthread_mutex_t tune_lock = PTHREAD_MUTEX_INITIALIZER;
/* The entries of one file, guarded by tune_lock. Never freed, because devices with the same path share a table. */
typedef struct tuning_table {
    char *path; /* NULL: the file of the process */
    tn_tuned *entries;
    size_t count, capacity;
    bool loaded;
    struct tuning_table *next;
} tuning_table;

static tuning_table of_process;

static _Atomic uint64_t generation = 1;
static _Atomic int mode = -1; /* -1: the environment has not been looked at */

tn_tuning tn_tuning_mode(void) {
    int now = atomic_load_explicit(&mode, memory_order_relaxed);
    if (now >= 0) return (tn_tuning)now;
    int word = tn_env_word("TRUNNION_TUNE", (const char *const[]){"0", "1", NULL}), unset = -1;
    tn_tuning said = word < 0 ? TN_TUNING_USE : word == 0 ? TN_TUNING_OFF : TN_TUNING_FIRST_USE;
    atomic_compare_exchange_strong(&mode, &unset, (int)said);
    return (tn_tuning)atomic_load(&mode);
}

tn_status tn_set_tuning(tn_tuning wanted) {
    if ((unsigned)wanted > TN_TUNING_OFF)
        return tn_fail(TN_ERR_ARGUMENT,
                       "tn_set_tuning: mode is %d; it must be one of TN_TUNING_USE, TN_TUNING_FIRST_USE, TN_TUNING_OFF",
                       (int)wanted);
    atomic_store(&mode, (int)wanted);
    pthread_mutex_lock(&tune_lock);
    for (tuning_table *t = &of_process; t; t = t->next)
        t->loaded = false; /* other processes may have added to it */
    pthread_mutex_unlock(&tune_lock);
    atomic_fetch_add(&generation, 1);
    return TN_OK;
}

uint64_t tn_tune_generation(void) { return atomic_load_explicit(&generation, memory_order_relaxed); }

/* ---- the table (the caller holds the lock) ----------------------------------------------------------------------- */

/* NULL: out of memory. */
static tuning_table *table_of(const tn_device *d) {
    const char *path = d->settings.tuning_file;
    tuning_table *t = &of_process;
    while (t && path && (!t->path || strcmp(t->path, path) != 0))
        t = t->next;
    if (t) return t;
    t = tn_mem_zalloc(1, sizeof *t);
    char *own = t ? tn_mem_strdup(path) : NULL;
    if (!own) {
        tn_mem_free(t);
        return NULL;
    }
    *t = (tuning_table){.path = own, .next = of_process.next};
    return of_process.next = t;
}

static tn_tuned *entry_of(const tuning_table *t, const char *key) {
    for (size_t i = 0; i < t->count; i++)
        if (strcmp(t->entries[i].key, key) == 0) return &t->entries[i];
    return NULL;
}

/* The place for an entry with this key; in a full table an older one is replaced. NULL: out of memory. */
static tn_tuned *place_for(tuning_table *t, const char *key) {
    tn_tuned *known = entry_of(t, key);
    if (known) return known;
    if (t->count == TUNE_MOST_ENTRIES) return &t->entries[tn_hash64(key, strlen(key), 0) % TUNE_MOST_ENTRIES];
    bool room = tn_mem_reserve(&t->entries, &t->capacity, t->count + 1, sizeof *t->entries) == TN_OK;
    return room ? &t->entries[t->count++] : NULL;
}

static void set_entry(tuning_table *t, const tn_tuned *e) {
    tn_tuned *known = place_for(t, e->key);
    if (!known) return;
    *known = *e;
    known->struct_size = sizeof *known;
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

static bool record_path(const tuning_table *t, char *out, size_t size) {
    const char *named = t->path ? t->path : tn_env("TRUNNION_TUNE_CACHE");
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

static void read_entries(tuning_table *t, const tn_json *root) {
    const tn_json *list = tn_json_get(root, "entries");
    size_t n = tn_json_kind_of(list) == TN_JSON_ARRAY ? tn_json_length(list) : 0;
    for (size_t i = 0; i < n && i < TUNE_MOST_ENTRIES; i++) {
        const tn_json *v = tn_json_at(list, i);
        tn_tuned e = {.seconds = tn_json_number(tn_json_get(v, "seconds"), 0),
                      .rule_seconds = tn_json_number(tn_json_get(v, "rule_seconds"), 0)};
        copy_text(e.key, sizeof e.key, v, "key");
        copy_text(e.way, sizeof e.way, v, "way");
        copy_text(e.date, sizeof e.date, v, "date");
        if (e.key[0] && e.way[0]) set_entry(t, &e);
    }
}

static void load_tune(tuning_table *t) {
    char path[TUNE_PATH_ROOM], here[160];
    char *text = NULL;
    size_t size;
    tn_json_doc *doc = NULL;
    t->loaded = true;
    if (!record_path(t, path, sizeof path) || !tn_path_trusted(path, false)) return;
    machine(here);
    if (tn_file_read(path, &text, &size, TUNE_MOST_BYTES) == TN_OK && tn_json_parse(text, size, &doc) == TN_OK) {
        const tn_json *root = tn_json_root(doc);
        bool ours = tn_json_int(tn_json_get(root, "format"), 0) == TUNE_FORMAT &&
                    strcmp(tn_json_string(tn_json_get(root, "machine"), ""), here) == 0;
        if (ours) read_entries(t, root);
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

static void write_all_tune(const tuning_table *t, tn_str *out) {
    char here[160];
    tn_json_writer w = {.out = out};
    machine(here);
    tn_json_begin_object(&w);
    tn_json_put_key(&w, "format");
    tn_json_put_int(&w, TUNE_FORMAT);
    put_text_tune(&w, "machine", here);
    tn_json_put_key(&w, "entries");
    tn_json_begin_array(&w);
    for (size_t i = 0; i < t->count; i++) {
        tn_json_begin_object(&w);
        put_text_tune(&w, "key", t->entries[i].key);
        put_text_tune(&w, "way", t->entries[i].way);
        put_number(&w, "seconds", t->entries[i].seconds);
        put_number(&w, "rule_seconds", t->entries[i].rule_seconds);
        put_text_tune(&w, "date", t->entries[i].date);
        tn_json_end_object(&w);
    }
    tn_json_end_array(&w);
    tn_json_end_object(&w);
}

static void save_tune(const tuning_table *t) {
    char path[TUNE_PATH_ROOM];
    tn_str text = {0};
    tn_save *s = NULL;
    write_all_tune(t, &text);
    tn_status status = TN_OK;
    if (text.failed)
        status = TN_ERR_MEMORY;
    else if (!record_path(t, path, sizeof path))
        status = tn_fail(TN_ERR_IO, "no cache folder, or its path is too long; set TRUNNION_TUNE_CACHE to a file");
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
        tn_log_line(told ? TN_LOG_VERBOSE : TN_LOG_NOTICE, "the tuning cache was not saved: %s", tn_error());
        told = true;
    }
    tn_str_free(&text);
}

/* ---- for others -------------------------------------------------------------------------------------------------- */

bool tn_tune_find(const tn_device *d, const char *key, tn_tuned *out) {
    AUTO_LOCK(&tune_lock);
    tuning_table *t = table_of(d);
    if (t && !t->loaded) load_tune(t);
    const tn_tuned *known = t ? entry_of(t, key) : NULL;
    if (known) *out = *known;
    return known != NULL;
}

void tn_tune_put(const tn_device *d, const tn_tuned *entry) {
    tn_tuned e = *entry;
    time_t now = time(NULL);
    struct tm day;
    if (gmtime_r(&now, &day)) strftime(e.date, sizeof e.date, "%Y-%m-%d", &day);
    pthread_mutex_lock(&tune_lock);
    tuning_table *t = table_of(d);
    if (t) {
        int held = lock_for_processes("tune.lock");
        load_tune(t);
        set_entry(t, &e);
        save_tune(t);
        unlock_for_processes(held);
    }
    pthread_mutex_unlock(&tune_lock);
    atomic_fetch_add(&generation, 1);
}

int tn_tuned_count(void) {
    AUTO_LOCK(&tune_lock);
    if (!of_process.loaded) load_tune(&of_process);
    return (int)of_process.count;
}

tn_status tn_tuned_at(int i, tn_tuned *out) {
    int n = tn_tuned_count();
    if (i < 0 || i >= n) return tn_fail(TN_ERR_ARGUMENT, "tn_tuned_at: entry %d is out of range; there are %d", i, n);
    pthread_mutex_lock(&tune_lock);
    tn_tuned full = of_process.entries[i];
    pthread_mutex_unlock(&tune_lock);
    return tn_result_write(out, &full, sizeof full, "tn_tuned_at: out");
}
