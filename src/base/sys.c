/* sys.c — files, directories, the clock and the environment.
 *
 * Saves are atomic. Bytes go to a temporary file next to the target, under a name with one of a few slot numbers; the
 * writer locks it. A lock ends with its process, so a later save recognizes the file of a killed one, removes it and
 * uses the slot again. However often a process is killed, the target is complete and left-over files do not
 * accumulate. */
#include "base/base.h"
#include "base/os.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

double tn_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A program with more rights than its caller (setuid) ignores the environment, because variables name libraries to be
 * loaded. */
const char *tn_env(const char *name) {
#if defined(__GLIBC__)
    const char *value = secure_getenv(name);
#else
    const char *value = getenv(name);
#endif
    return value != NULL && value[0] != '\0' ? value : NULL;
}

/* Some variables are read again and again: one notice in a row about the same one is enough. */
static void say_wrong_value(const char *name, const char *value, const char *allowed) {
    static _Atomic(const char *) last;
    if (atomic_exchange(&last, name) != name)
        tn_log_line(TN_LOG_NOTICE, "%s=%s is ignored: it must be %s", name, value, allowed);
}

int tn_env_word(const char *name, const char *const *words) {
    const char *value = tn_env(name);
    char allowed[128];
    size_t used = 0;
    for (int i = 0; value != NULL && words[i] != NULL; i++) {
        if (strcmp(value, words[i]) == 0) return i;
        const char *between = i == 0 ? "" : words[i + 1] == NULL ? " or " : ", ";
        used = tn_text_put(allowed, sizeof allowed, used, between);
        used = tn_text_put(allowed, sizeof allowed, used, words[i]);
    }
    if (value != NULL) say_wrong_value(name, value, allowed);
    return -1;
}

bool tn_env_switch(const char *name, bool otherwise) {
    int place = tn_env_word(name, (const char *const[]){"0", "1", NULL});
    return place < 0 ? otherwise : place == 1;
}

int tn_env_int(const char *name, int least, int most, int otherwise) {
    const char *value = tn_env(name);
    char *end, allowed[64];
    if (value == NULL) return otherwise;
    long n = strtol(value, &end, 10);
    if (end != value && *end == '\0' && n >= least && n <= most) return (int)n;
    snprintf(allowed, sizeof allowed, "%d to %d", least, most);
    say_wrong_value(name, value, allowed);
    return otherwise;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* Close without losing the errno of what failed before. */
static void close_quietly(int fd) {
    int saved = errno;
    close(fd);
    errno = saved;
}

/* O_NONBLOCK: opening a pipe would wait for its writer. */
static tn_status open_regular(const char *path, int *fd, struct stat *info) {
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (*fd < 0) return tn_fail(TN_ERR_IO, "cannot open '%s': %s", path, strerror(errno));
    tn_status s = TN_OK;
    if (fstat(*fd, info) != 0)
        s = tn_fail(TN_ERR_IO, "cannot examine '%s': %s", path, strerror(errno));
    else if (S_ISDIR(info->st_mode))
        s = tn_fail(TN_ERR_IO, "cannot read '%s': it is a folder", path);
    else if (!S_ISREG(info->st_mode))
        s = tn_fail(TN_ERR_IO, "cannot read '%s': it is not a regular file", path);
    if (s != TN_OK) close_quietly(*fd);
    return s;
}

tn_status tn_file_open(const char *path, FILE **out) {
    int fd;
    struct stat info;
    *out = NULL;
    TRY(open_regular(path, &fd, &info));
    *out = fdopen(fd, "rb");
    if (*out) return TN_OK;
    close_quietly(fd);
    return tn_fail(TN_ERR_IO, "cannot open '%s': %s", path, strerror(errno));
}

/* The mappings that there are: only of these pages is it known that they can be read again. */
typedef struct mapping {
    uintptr_t begin, end; /* end: up to the last page's */
    struct mapping *next;
} mapping;
static mapping *mappings;
static pthread_mutex_t mappings_lock = PTHREAD_MUTEX_INITIALIZER;

static tn_status mapping_add(const void *pages, size_t size) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    mapping *m = tn_mem_alloc(sizeof *m);
    if (!m) return TN_ERR_MEMORY;
    AUTO_LOCK(&mappings_lock);
    *m = (mapping){(uintptr_t)pages, ((uintptr_t)pages + size + page - 1) / page * page, mappings};
    mappings = m;
    return TN_OK;
}

static void mapping_remove(const void *pages) {
    pthread_mutex_lock(&mappings_lock);
    mapping **link = &mappings;
    while (*link && (*link)->begin != (uintptr_t)pages)
        link = &(*link)->next;
    mapping *m = *link;
    if (m) *link = m->next;
    pthread_mutex_unlock(&mappings_lock);
    tn_mem_free(m);
}

/* A file that another process shortens while it is mapped raises SIGBUS at the lost pages, as
 * every mapping does; Trunnion's own saves replace files and never shorten them. */
tn_status tn_map_open(const char *path, tn_map *out) {
    *out = (tn_map){0};
    int fd;
    struct stat info;
    TRY(open_regular(path, &fd, &info));
    if ((uint64_t)info.st_size > (uint64_t)PTRDIFF_MAX) {
        close(fd);
        return tn_fail(TN_ERR_IO, "cannot map '%s': %lld bytes exceed the address space", path,
                       (long long)info.st_size);
    }
    if (info.st_size == 0) {
        close(fd);
        return TN_OK;
    }
    size_t size = (size_t)info.st_size;
    void *pages = mmap(NULL, size, TN_BIG_ENDIAN ? PROT_READ | PROT_WRITE : PROT_READ, MAP_PRIVATE, fd, 0);
    if (pages == MAP_FAILED) {
        close_quietly(fd);
        return tn_fail(TN_ERR_IO, "cannot map '%s' (%zu bytes): %s", path, size, strerror(errno));
    }
#if defined(MADV_NOHUGEPAGE)
    /* Else a look at one number may bring two megabytes along, where the system keeps the file in large pages. */
    tn_advise(pages, size, MADV_NOHUGEPAGE);
#endif
    if (mapping_add(pages, size) != TN_OK) {
        munmap(pages, size);
        close(fd);
        return TN_ERR_MEMORY;
    }
    *out = (tn_map){.data = pages, .size = size, .handle = pages, .file = fd};
    return TN_OK;
}

void tn_map_close(tn_map *m) {
    if (m->handle != NULL) {
        mapping_remove(m->handle);
        munmap(m->handle, m->size);
        close(m->file);
    }
    *m = (tn_map){0};
}

tn_status tn_map_read(const tn_map *m, size_t offset, void *out, size_t bytes) {
    if (offset > m->size || bytes > m->size - offset)
        return tn_fail(TN_ERR_ARGUMENT, "cannot read %zu bytes at offset %zu: the file has %zu bytes", bytes, offset,
                       m->size);
    char *to = out;
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(m->file, to + done, bytes - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0)
            return tn_fail(TN_ERR_IO, "cannot read %zu bytes at offset %zu of a mapped file: %s", bytes, offset,
                           got < 0 ? strerror(errno) : "the file was truncated");
        done += (size_t)got;
    }
    return TN_OK;
}

/* The caller holds the lock. */
static bool is_mapped(uintptr_t first, uintptr_t end) {
    const mapping *m = mappings;
    while (m && !(first >= m->begin && end <= m->end))
        m = m->next;
    return m != NULL;
}

bool tn_map_has(const void *address, size_t bytes) {
    AUTO_LOCK(&mappings_lock);
    return is_mapped((uintptr_t)address, (uintptr_t)address + bytes);
}

size_t tn_map_absent(const void *address, size_t bytes) {
    enum { ENTRIES = 512 };
    static const uint64_t PRESENT = (uint64_t)1 << 63; /* of an entry in /proc/self/pagemap */
    if (!tn_map_has(address, bytes)) return 0;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)address / page, absent = bytes;
    size_t end = ((uintptr_t)address + bytes + page - 1) / page;
    FILE *f = fopen("/proc/self/pagemap", "rb");
    uint64_t entries[ENTRIES];
    bool there = f && fseek(f, (long)(at * sizeof *entries), SEEK_SET) == 0;
    while (there && at < end) {
        size_t n = fread(entries, sizeof *entries, end - at < ENTRIES ? end - at : ENTRIES, f);
        for (size_t i = 0; i < n; i++)
            if (entries[i] & PRESENT) absent -= absent < page ? absent : page;
        there = n > 0;
        at += n;
    }
    if (f) fclose(f);
    return absent;
}

void tn_map_return_pages(const void *address, size_t bytes) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = ((uintptr_t)address + page - 1) / page * page, end = ((uintptr_t)address + bytes) / page * page;
    if (TN_BIG_ENDIAN || end <= first) return;
    AUTO_LOCK(&mappings_lock);
    if (is_mapped(first, end)) tn_advise((void *)first, end - first, MADV_DONTNEED);
}

void *tn_address_space(size_t bytes) {
#if TN_HAS_PROCESSES
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages != MAP_FAILED) return pages;
    tn_fail(TN_ERR_MEMORY, "%zu bytes of address space could not be reserved: %s", bytes, strerror(errno));
    return NULL;
#else
    return tn_mem_alloc_pages(bytes);
#endif
}

void tn_address_space_free(void *address, TN_UNUSED size_t bytes) {
#if TN_HAS_PROCESSES
    munmap(address, bytes);
#else
    tn_mem_free(address);
#endif
}

void tn_large_pages(TN_UNUSED void *address, TN_UNUSED size_t bytes) {
#if defined(MADV_HUGEPAGE)
    const uintptr_t page = TN_LARGE_PAGE; /* the usual size; where it is another, the system rounds */
    uintptr_t first = ((uintptr_t)address + page - 1) / page * page, end = ((uintptr_t)address + bytes) / page * page;
    if (end > first) tn_advise((void *)first, end - first, MADV_HUGEPAGE);
#else
#endif
}

void tn_large_pages_until(TN_UNUSED void *address, TN_UNUSED size_t used, TN_UNUSED size_t bytes) {
#if defined(MADV_NOHUGEPAGE)
    const uintptr_t page = TN_LARGE_PAGE;
    uintptr_t first = ((uintptr_t)address + used) / page * page, end = ((uintptr_t)address + bytes) / page * page;
    if (bytes >= page && end > first) tn_advise((void *)first, end - first, MADV_NOHUGEPAGE);
#else
#endif
}

/* read() that continues after a signal. */
static ssize_t read_some(int fd, char *buffer, size_t n) {
    ssize_t got;
    do {
        got = read(fd, buffer, n);
    } while (got < 0 && errno == EINTR);
    return got;
}

/* Reads to the end of the file, whatever size it reports: files in /proc report 0. Asks for one byte more than
 * expected, to reach the end or to detect that the file is too large. */
static tn_status read_to_end(int fd, const char *path, size_t expected, size_t limit, tn_str *s) {
    enum { READ_STEP = 64 << 10 };
    size_t room = (expected < limit ? expected : limit) + 1;
    for (;;) {
        TRY(tn_mem_grow(&s->text, &s->capacity, s->length + room + 1, 1));
        ssize_t got = read_some(fd, s->text + s->length, room);
        if (got < 0) return tn_fail(TN_ERR_IO, "cannot read '%s': %s", path, strerror(errno));
        if (got == 0) break;
        s->length += (size_t)got;
        if (s->length > limit) return tn_fail(TN_ERR_FORMAT, "'%s' exceeds the limit of %zu bytes", path, limit);
        size_t spare = s->capacity - s->length - 1;
        size_t until_limit = limit - s->length + 1;
        room = spare > 0 ? spare : READ_STEP;
        if (room > until_limit) room = until_limit;
    }
    s->text[s->length] = '\0';
    return TN_OK;
}

tn_status tn_file_read(const char *path, char **data, size_t *size, size_t limit) {
    *data = NULL;
    *size = 0;
    int fd;
    struct stat info;
    TRY(open_regular(path, &fd, &info));
    size_t most = limit < PTRDIFF_MAX / 2 ? limit : PTRDIFF_MAX / 2; /* so that sums of sizes cannot overflow */
    size_t expected = info.st_size > 0 ? (size_t)info.st_size : 0;   /* those of /proc say 0 */
    if (expected > most) {
        close(fd);
        return tn_fail(TN_ERR_FORMAT, "'%s' has %zu bytes, which exceeds the limit of %zu", path, expected, limit);
    }
    tn_str content = {0};
    tn_status status = read_to_end(fd, path, expected, most, &content);
    close(fd);
    if (status != TN_OK) {
        tn_str_free(&content);
        return status;
    }
    *data = content.text;
    *size = content.length;
    return TN_OK;
}

/* ---- atomic save ------------------------------------------------------------------------------------------------- */

enum {
    SAVE_BUFFER_SIZE = 256 << 10, /* few calls of write for many small pieces */
    SAVE_SLOTS = 64,              /* saves of one file that may be under way at the same time */
    LISTED_SAVES = 32             /* saves whose temporary file tn_discard_saves finds */
};

/* Temporary files of this process, for tn_discard_saves: a signal handler may read atomics and static memory, but must
 * not lock or allocate. A save that finds no free entry, or has a longer name, is not listed. */
typedef enum entry_state { ENTRY_FREE, ENTRY_CHANGING, ENTRY_LISTED } entry_state;
static struct {
    _Atomic int state;
    pid_t owner; /* a forked child has a copy of this list, but its parent's saves do not belong to it */
    char name[PATH_MAX];
} listed[LISTED_SAVES];

/* Takes an entry before a file is made; -1: there is none. Until it is settled tn_discard_saves waits for it. */
static int hold_entry(void) {
    for (int i = 0; i < LISTED_SAVES; i++) {
        int expected = ENTRY_FREE;
        if (atomic_compare_exchange_strong(&listed[i].state, &expected, ENTRY_CHANGING)) return i;
    }
    return -1;
}

/* Lists the file that was made, or with NULL gives the entry back. Returns the entry, -1 if no file is listed. */
static int settle_entry(int entry, const char *name) {
    if (entry < 0) return -1;
    bool made = name != NULL && strlen(name) < PATH_MAX;
    if (made) strcpy(listed[entry].name, name);
    listed[entry].owner = getpid();
    atomic_store(&listed[entry].state, made ? ENTRY_LISTED : ENTRY_FREE);
    return made ? entry : -1;
}

static void unlist_save(int entry) {
    if (entry >= 0) atomic_store(&listed[entry].state, ENTRY_FREE);
}

/* A thread that creates a file blocks signals until the file is listed, so the thread that waits here is another one. A
 * forked child may have a copy of an entry that is never settled; hence the limit. */
static void wait_for_entry(int entry) {
    const struct timespec pause = {.tv_nsec = 1000 * 1000};
    for (int tries = 0; tries < 100 && atomic_load(&listed[entry].state) == ENTRY_CHANGING; tries++)
        nanosleep(&pause, NULL);
}

void tn_discard_saves(void) {
    int error = errno;
    for (int i = 0; i < LISTED_SAVES; i++) {
        wait_for_entry(i);
        if (atomic_load(&listed[i].state) == ENTRY_LISTED && listed[i].owner == getpid()) unlink(listed[i].name);
    }
    errno = error;
}

struct tn_save {
    int fd;
    tn_status status; /* the first failure; every later step repeats it */
    char *target;     /* the file to replace, links followed */
    char *temporary;
    int entry; /* in `listed`, -1: none */
    size_t buffered;
    char buffer[SAVE_BUFFER_SIZE];
};

/* Follows a link, so that saving through one changes its target; a name that does not exist yet is kept. Anything else
 * than a regular file is refused, because the rename would replace a device by a file. */
static tn_status resolve_target(const char *path, char **target) {
    struct stat info;
    *target = NULL;
    if (stat(path, &info) != 0) {
        if (errno != ENOENT) return tn_fail(TN_ERR_IO, "cannot save '%s': %s", path, strerror(errno));
        *target = tn_mem_strdup(path);
        return *target != NULL ? TN_OK : TN_ERR_MEMORY;
    }
    if (!S_ISREG(info.st_mode)) return tn_fail(TN_ERR_IO, "cannot save '%s': it is not a regular file", path);
    char real[PATH_MAX];
    if (realpath(path, real) == NULL) return tn_fail(TN_ERR_IO, "cannot save '%s': %s", path, strerror(errno));
    *target = tn_mem_strdup(real);
    return *target != NULL ? TN_OK : TN_ERR_MEMORY;
}

/* "folder/.name.tmp7" for "folder/name" and slot 7. */
static char *temporary_name(const char *target, int slot) {
    const char *slash = strrchr(target, '/');
    int folder = slash != NULL ? (int)(slash - target) + 1 : 0;
    tn_str s = {0};
    tn_str_add(&s, "%.*s.%s.tmp%d", folder, target, target + folder, slot);
    if (s.failed) tn_str_free(&s);
    return s.text;
}

/* Whether `fd` is still the file at `path`, and a regular file of ours without another hard link. */
static bool is_our_file(int fd, const char *path) {
    struct stat open_file, named_file;
    if (fstat(fd, &open_file) != 0 || lstat(path, &named_file) != 0) return false;
    bool same = open_file.st_dev == named_file.st_dev && open_file.st_ino == named_file.st_ino;
    return same && S_ISREG(open_file.st_mode) && tn_is_ours(&open_file) && open_file.st_nlink == 1;
}

/* Removes the file of a killed process at `path`, whose lock has ended; a locked file belongs to a running save. On
 * failure errno is EEXIST: another save may have removed or renamed the file meanwhile, and this slot is then not
 * ours. */
static bool remove_orphan(const char *path) {
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    bool removed = fd < 0 ? errno == ENOENT : tn_lock_file(fd) && is_our_file(fd, path) && unlink(path) == 0;
    if (fd >= 0) close(fd);
    if (!removed) errno = EEXIST;
    return removed;
}

/* Creates and locks `path`; -1 with errno set, EEXIST if it is taken. Between creation and lock another process may
 * take the new file for a left-over; then it is no longer ours. On file systems without locks the save still works, but
 * left-over files stay. */
static int create_locked(const char *path) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0) return -1;
    bool busy = !tn_lock_file(fd) && errno == EWOULDBLOCK;
    if (!busy && is_our_file(fd, path)) return fd;
    close(fd);
    errno = EEXIST;
    return -1;
}

/* Creates, locks and lists `name`; -1 with errno set. A signal handler that discards saves finds either no file or a
 * listed one. */
static int create_listed(tn_save *s, const char *name) {
    tn_signals before;
    tn_signals_block(&before);
    int entry = hold_entry();
    int fd = create_locked(name);
    if (fd < 0 && errno == EEXIST && remove_orphan(name)) fd = create_locked(name);
    int error = errno;
    s->entry = settle_entry(entry, fd >= 0 ? name : NULL);
    tn_signals_restore(&before);
    errno = error;
    return fd;
}

static tn_status open_temporary(tn_save *s) {
    for (int slot = 0; slot < SAVE_SLOTS; slot++) {
        char *name = temporary_name(s->target, slot);
        if (name == NULL) return TN_ERR_MEMORY;
        int fd = create_listed(s, name);
        if (fd >= 0) {
            s->fd = fd;
            s->temporary = name;
            return TN_OK;
        }
        tn_status status = TN_OK;
        if (errno != EEXIST && errno != EWOULDBLOCK)
            status = tn_fail(TN_ERR_IO, "cannot save '%s': creating '%s': %s", s->target, name, strerror(errno));
        tn_mem_free(name);
        if (status != TN_OK) return status;
    }
    return tn_fail(TN_ERR_IO,
                   "cannot save '%s': all %d temporary names next to it exist (.*.tmp0 and so on); remove them",
                   s->target, SAVE_SLOTS);
}

/* A replaced file keeps its permissions. */
static void copy_mode(const tn_save *s) {
    struct stat info;
    if (stat(s->target, &info) != 0) return;
    if (fchmod(s->fd, info.st_mode & 07777) != 0)
        tn_log_line(TN_LOG_VERBOSE, "cannot keep the permissions of '%s'", s->target);
}

tn_status tn_save_begin(const char *path, tn_save **out) {
    *out = NULL;
    if (path[0] == '\0') return tn_fail(TN_ERR_ARGUMENT, "cannot save: the file name is empty");
    tn_save *s = tn_mem_alloc(sizeof *s);
    if (s == NULL) return TN_ERR_MEMORY;
    s->fd = -1;
    s->status = TN_OK;
    s->target = NULL;
    s->temporary = NULL;
    s->entry = -1;
    s->buffered = 0;
    tn_status status = resolve_target(path, &s->target);
    if (status == TN_OK) status = open_temporary(s);
    if (status != TN_OK) {
        tn_save_abandon(s);
        return status;
    }
    copy_mode(s);
    *out = s;
    return TN_OK;
}

static tn_status save_failed(tn_save *s, const char *step) {
    s->status = tn_fail(TN_ERR_IO, "cannot save '%s': %s: %s", s->target, step, strerror(errno));
    return s->status;
}

static tn_status write_through(tn_save *s, const char *bytes, size_t n) {
    while (n > 0) {
        ssize_t done = write(s->fd, bytes, n);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return save_failed(s, "writing");
        bytes += done;
        n -= (size_t)done;
    }
    return TN_OK;
}

static tn_status flush_buffer(tn_save *s) {
    size_t n = s->buffered;
    s->buffered = 0;
    return write_through(s, s->buffer, n);
}

tn_status tn_save_write(tn_save *s, const void *bytes, size_t n) {
    if (s->status != TN_OK) return tn_fail(s->status, "cannot save '%s': an earlier write failed", s->target);
    if (n > SAVE_BUFFER_SIZE - s->buffered) TRY(flush_buffer(s));
    if (n > SAVE_BUFFER_SIZE) return write_through(s, bytes, n);
    if (n > 0) memcpy(s->buffer + s->buffered, bytes, n);
    s->buffered += n;
    return TN_OK;
}

/* Makes the rename itself last. Some file systems cannot sync a folder and say EINVAL, WASI says EBADF: nothing more
 * can be done there. */
static tn_status sync_folder(tn_save *s) {
    char *slash = strrchr(s->temporary, '/');
    if (slash != NULL) slash[slash == s->temporary ? 1 : 0] = '\0';
    int fd = open(slash != NULL ? s->temporary : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return errno == EACCES ? TN_OK : save_failed(s, "opening its folder");
    bool failed = fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP && errno != EBADF;
    tn_status status = failed ? save_failed(s, "syncing its folder") : TN_OK;
    close(fd);
    return status;
}

static tn_status finish_save(tn_save *s) {
    if (s->status != TN_OK) return tn_fail(s->status, "cannot save '%s': an earlier write failed", s->target);
    TRY(flush_buffer(s));
    if (fsync(s->fd) != 0) return save_failed(s, "syncing");
    if (rename(s->temporary, s->target) != 0) return save_failed(s, "renaming");
    unlist_save(s->entry);
    close(s->fd);
    s->fd = -1; /* from here on there is no temporary file to remove */
    s->entry = -1;
    return sync_folder(s);
}

tn_status tn_save_commit(tn_save *s) {
    tn_status status = finish_save(s);
    tn_save_abandon(s);
    return status;
}

tn_status tn_save_end(tn_save *s, tn_status status) {
    if (status == TN_OK) return tn_save_commit(s);
    tn_save_abandon(s);
    return status;
}

void tn_save_abandon(tn_save *s) {
    if (s == NULL) return;
    if (s->fd >= 0) {
        unlink(s->temporary);
        unlist_save(s->entry);
        close(s->fd); /* after the name is gone: the lock guards it until then */
    }
    tn_mem_free_each(s->target, s->temporary, s);
}

/* ---- folders ----------------------------------------------------------------------------------------------------- */

static bool is_of_type(const char *path, mode_t type) {
    struct stat info;
    return stat(path, &info) == 0 && (info.st_mode & S_IFMT) == type;
}

bool tn_is_file(const char *path) { return is_of_type(path, S_IFREG); }

bool tn_is_folder(const char *path) { return is_of_type(path, S_IFDIR); }

static tn_status make_dir(const char *path, unsigned mode) {
    if (mkdir(path, (mode_t)mode) == 0) return TN_OK;
    int error = errno; /* a folder that exists may also answer EROFS or EACCES */
    if (tn_is_folder(path)) return TN_OK;
    return tn_fail(TN_ERR_IO, "cannot create the folder '%s': %s", path, strerror(error));
}

tn_status tn_make_dirs(const char *path, unsigned mode) {
    if (path[0] == '\0') return tn_fail(TN_ERR_ARGUMENT, "cannot create a folder: its name is empty");
    AUTO_FREE char *copy = tn_mem_strdup(path);
    if (copy == NULL) return TN_ERR_MEMORY;
    for (char *p = strpbrk(copy + 1, TN_SEPARATORS); p != NULL; p = strpbrk(p + 1, TN_SEPARATORS)) {
        char separator = *p;
        *p = '\0';
        TRY(make_dir(copy, mode));
        *p = separator;
    }
    return make_dir(copy, mode);
}

/* The folder's name from the environment; XDG asks that a relative XDG_CACHE_HOME be ignored. */
static int cache_dir_name(char *out, size_t size) {
    const char *own = tn_env("TRUNNION_CACHE");
    if (own != NULL) return snprintf(out, size, "%s", own);
    const char *xdg = tn_env("XDG_CACHE_HOME");
    if (xdg != NULL && tn_is_absolute(xdg)) return snprintf(out, size, "%s/trunnion", xdg);
    const char *home = tn_env("HOME");
    if (home != NULL) return snprintf(out, size, "%s/.cache/trunnion", home);
    return -1;
}

tn_status tn_cache_dir(char *out, size_t size) {
    int n = cache_dir_name(out, size);
    if (n < 0)
        return tn_fail(TN_ERR_IO, "no cache folder: none of TRUNNION_CACHE, XDG_CACHE_HOME and HOME is set; set "
                                  "TRUNNION_CACHE to a writable folder");
    if ((size_t)n >= size) return tn_fail(TN_ERR_IO, "the path of the cache folder is longer than %zu bytes", size);
    tn_status status = tn_make_dirs(out, 0700);
    if (status == TN_OK) return TN_OK;
    status = tn_fail_prefix(status, "cache folder (set TRUNNION_CACHE to use another one)");
    static atomic_flag said = ATOMIC_FLAG_INIT;
    if (tn_env("TRUNNION_CACHE") && !atomic_flag_test_and_set(&said))
        tn_log_line(TN_LOG_NOTICE, "TRUNNION_CACHE: %s; nothing is cached", tn_error());
    return status;
}
