/* certify_list.c — kernels and operations that a device is known to compute wrongly, in the cache folder's
 * certify.list.
 *
 * One line each: device, driver version, name and reason, with tabs between them. The name is an operation's or, for a
 * kernel, its structure's hash. Another version of the driver starts with a clean slate. The file is believed only if
 * it belongs to this user and nobody else can write it; it is read when it has changed. Who changes it holds a lock on
 * a file beside it, so that processes do not lose each other's lines. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hal/kernel_code.h"

enum { PATH_ROOM = 4096, MOST_BYTES = 1 << 20 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *text; /* the file's content, NULL: none */
static struct stat seen;

static bool list_path(char *out, size_t size) { return tn_cache_path("certify.list", out, size); }

/* Waits until no other process changes the list, but for one that was stopped meanwhile. -1: there is nowhere to lock,
 * and the list is changed all the same. */
static int list_lock(void) {
    enum { TRIES = 1000, MICROSECONDS = 1000 };
    char path[PATH_ROOM];
    if (!tn_cache_path("certify.lock", path, sizeof path)) return -1;
    int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    for (int i = 0; fd >= 0 && i < TRIES && flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK; i++)
        usleep(MICROSECONDS);
    return fd;
}

static void list_unlock(int fd) {
    if (fd >= 0) close(fd);
}

/* Same file with the same content, as far as can be told without reading it. */
static bool unchanged(const struct stat *s) {
    return s->st_ino == seen.st_ino && s->st_size == seen.st_size && s->st_mtim.tv_sec == seen.st_mtim.tv_sec &&
           s->st_mtim.tv_nsec == seen.st_mtim.tv_nsec;
}

/* The caller holds the lock. */
static void refresh(void) {
    char path[PATH_ROOM];
    struct stat now = {0};
    size_t size;
    bool there = list_path(path, sizeof path) && tn_path_trusted(path, false) && lstat(path, &now) == 0;
    if (!there) memset(&now, 0, sizeof now);
    if (unchanged(&now)) return;
    tn_mem_free(text);
    text = NULL;
    seen = now;
    if (there && tn_file_read(path, &text, &size, MOST_BYTES) != TN_OK) text = NULL;
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
    const char *at = text;
    while (at && strncmp(at, begin->text, begin->length) != 0) {
        at = strchr(at, '\n');
        at = at && at[1] ? at + 1 : NULL;
    }
    return at ? at + begin->length : NULL;
}

bool tn_certify_list_has(const tn_device *d, const char *name, char *why, size_t size) {
    tn_str begin = {0};
    bool found = false;
    if (line_begin(d, name, &begin)) {
        pthread_mutex_lock(&lock);
        refresh();
        const char *reason = find_reason(&begin);
        if (reason && size) snprintf(why, size, "%.*s", (int)strcspn(reason, "\n"), reason);
        found = reason != NULL;
        pthread_mutex_unlock(&lock);
    }
    tn_str_free(&begin);
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
    char path[PATH_ROOM];
    if (!list_path(path, sizeof path))
        return tn_fail(TN_ERR_IO, "no cache folder of one's own for the list of failed kernels; set TRUNNION_CACHE");
    refresh();
    if (find_reason(begin)) return TN_OK;
    size_t n = text ? strlen(text) : 0;
    tn_str line = {0};
    if (n && text[n - 1] != '\n') tn_str_addn(&line, "\n", 1); /* what a killed process left unfinished */
    tn_str_addn(&line, begin->text, begin->length);
    add_field(&line, reason, '\n');
    tn_status s = line.failed ? TN_ERR_MEMORY : TN_OK;
    if (s == TN_OK && n + line.length > MOST_BYTES)
        s = tn_fail(TN_ERR_IO, "'%s' would be larger than %d bytes; remove it", path, (int)MOST_BYTES);
    if (s == TN_OK) s = append_certify_list(path, &line);
    tn_str_free(&line);
    return s;
}

tn_status tn_certify_list_add(const tn_device *d, const char *name, const char *reason) {
    tn_str begin = {0};
    tn_status s = TN_ERR_MEMORY;
    if (line_begin(d, name, &begin)) {
        pthread_mutex_lock(&lock);
        int held = list_lock();
        s = add_line(&begin, reason);
        list_unlock(held);
        pthread_mutex_unlock(&lock);
    }
    tn_str_free(&begin);
    return s;
}

/* Writes the list without the lines that begin like this. The caller holds the lock. */
static tn_status write_without(const char *path, const tn_str *begin) {
    tn_save *save = NULL;
    TRY(tn_save_begin(path, &save));
    tn_status s = TN_OK;
    for (const char *at = text; *at && s == TN_OK;) {
        size_t length = strcspn(at, "\n");
        length += at[length] == '\n';
        if (strncmp(at, begin->text, begin->length) != 0) s = tn_save_write(save, at, length);
        at += length;
    }
    if (s == TN_OK) return tn_save_commit(save);
    tn_save_abandon(save);
    return s;
}

tn_status tn_certify_list_forget(const tn_device *d, const char *name) {
    char path[PATH_ROOM];
    tn_str begin = {0};
    tn_status s = TN_ERR_MEMORY;
    if (line_begin(d, name, &begin)) {
        pthread_mutex_lock(&lock);
        int held = list_lock();
        refresh();
        s = find_reason(&begin) && list_path(path, sizeof path) ? write_without(path, &begin) : TN_OK;
        list_unlock(held);
        pthread_mutex_unlock(&lock);
    }
    tn_str_free(&begin);
    return s;
}
