/* kernel_cache.c — compiled kernels on disk: one file each in the cache folder's `kernels`.
 *
 * A file is named after the hash of its key and holds the key itself (source text, entry, options, form, device, driver
 * version), so that a hit is the same kernel and not merely the same hash. A file counts only when folder and file are
 * this user's own, nobody else can write them and the content's hash fits; anything else is removed, compiled anew and
 * replaced. Files appear under their name whole (tn_save renames), so processes need not wait for each other: of two
 * that compile the same kernel, the later one's file stays.
 *
 * Nothing here is ever an error: a folder that is missing, full or read-only costs compilations. */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "hal/kernel_code.h"

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
    return kind && s.st_uid == geteuid() && !(s.st_mode & (S_IWGRP | S_IWOTH));
}

bool tn_cache_path(const char *name, char *out, size_t size) {
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

/* All that the driver's result depends on. Fields end with a NUL, so that none can run into the next. */
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
    tn_str key = {0};
    bool found = false;
    if (key_make(d, code, &key) && entry_path(&key, path, sizeof path)) {
        found = read_entry(path, &key, data, size);
        if (found)
            (void)utimensat(AT_FDCWD, path, NULL, 0); /* used now: others are older */
        else
            (void)unlink(path); /* if there is something, it cannot be used */
    }
    tn_str_free(&key);
    return found;
}

void tn_kernel_cache_drop(const tn_device *d, const tn_code *code) {
    char path[PATH_ROOM];
    tn_str key = {0};
    if (key_make(d, code, &key) && entry_path(&key, path, sizeof path)) (void)unlink(path);
    tn_str_free(&key);
}

/* ---- the bound --------------------------------------------------------------------------------------------------- */

typedef struct entry {
    char name[NAME_ROOM];
    struct timespec used;
    int64_t bytes;
} entry;

static int by_age(const void *a, const void *b) {
    const struct timespec *x = &((const entry *)a)->used, *y = &((const entry *)b)->used;
    if (x->tv_sec != y->tv_sec) return x->tv_sec < y->tv_sec ? -1 : 1;
    return (x->tv_nsec > y->tv_nsec) - (x->tv_nsec < y->tv_nsec);
}

static bool is_entry(const char *name) {
    size_t n = strlen(name), s = sizeof SUFFIX - 1;
    return n < NAME_ROOM && n > s && !strcmp(name + n - s, SUFFIX);
}

/* ".NAME.kernel.tmp3" of a process that was killed while it wrote: none writes for so long. */
static bool is_left_over(const char *name, const struct stat *s, time_t now) {
    enum { SECONDS = 3600 };
    const char *end = strstr(name, SUFFIX);
    return name[0] == '.' && end && !strncmp(end + sizeof SUFFIX - 1, ".tmp", 4) && s->st_mtime < now - SECONDS;
}

/* The entries of an open folder, out of which left-overs go; *count says how many. NULL without any, or without
 * memory. */
static entry *list_entries(DIR *folder, size_t *count) {
    entry *all = NULL;
    size_t capacity = 0;
    struct stat s;
    time_t now = time(NULL);
    *count = 0;
    for (const struct dirent *e; (e = readdir(folder));) {
        if (fstatat(dirfd(folder), e->d_name, &s, AT_SYMLINK_NOFOLLOW)) continue;
        if (is_left_over(e->d_name, &s, now)) (void)unlinkat(dirfd(folder), e->d_name, 0);
        if (!is_entry(e->d_name)) continue;
        if (tn_mem_reserve(&all, &capacity, *count + 1, sizeof *all) != TN_OK) break;
        entry *at = &all[(*count)++];
        memcpy(at->name, e->d_name, strlen(e->d_name) + 1);
        at->used = s.st_mtim;
        at->bytes = s.st_size;
    }
    return all;
}

/* Removes the oldest entries until the rest leave an eighth of the room: not each entry is to cause removals. */
static void make_room_cache(const char *path) {
    DIR *folder = opendir(path);
    if (!folder) return;
    size_t count;
    entry *all = list_entries(folder, &count);
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
    if (status == TN_OK) return tn_save_commit(s);
    tn_save_abandon(s);
    return status;
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
            tn_log_line(TN_LOG_VERBOSE, "a compiled kernel is not kept: %s", tn_error());
        }
    }
    tn_str_free(&key);
}
