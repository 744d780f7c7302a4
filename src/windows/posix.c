/* posix.c — files, folders and mappings of posix.h on Win32. */
#if defined(_WIN32)
#include "windows/wide.h"

#include <sys/mman.h>
#include <wchar.h>
#include <winioctl.h>

#undef fclose
#undef fflush
#undef remove

/* ---- names and errors -------------------------------------------------------------------------------------------- */

wchar_t *tn_win_wide(const char *text) {
    int n = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, text, -1, NULL, 0);
    wchar_t *wide = n > 0 ? malloc((size_t)n * sizeof *wide) : NULL;
    if (wide) MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, text, -1, wide, n);
    return wide;
}

char *tn_win_narrow(const wchar_t *text) {
    int n = WideCharToMultiByte(CP_UTF8, 0, text, -1, NULL, 0, NULL, NULL);
    char *narrow = n > 0 ? malloc((size_t)n) : NULL;
    if (narrow) WideCharToMultiByte(CP_UTF8, 0, text, -1, narrow, n, NULL, NULL);
    return narrow;
}

int tn_win_error(void) {
    static const struct {
        DWORD error;
        int number;
    } rows[] = {{ERROR_FILE_NOT_FOUND, ENOENT},
                {ERROR_PATH_NOT_FOUND, ENOENT},
                {ERROR_INVALID_NAME, ENOENT},
                {ERROR_BAD_NETPATH, ENOENT},
                {ERROR_BAD_PATHNAME, ENOENT},
                {ERROR_INVALID_DRIVE, ENOENT},
                {ERROR_ALREADY_EXISTS, EEXIST},
                {ERROR_FILE_EXISTS, EEXIST},
                {ERROR_ACCESS_DENIED, EACCES},
                {ERROR_SHARING_VIOLATION, EACCES},
                {ERROR_LOCK_VIOLATION, EWOULDBLOCK},
                {ERROR_USER_MAPPED_FILE, EBUSY},
                {ERROR_DISK_FULL, ENOSPC},
                {ERROR_HANDLE_DISK_FULL, ENOSPC},
                {ERROR_NOT_ENOUGH_MEMORY, ENOMEM},
                {ERROR_OUTOFMEMORY, ENOMEM},
                {ERROR_COMMITMENT_LIMIT, ENOMEM},
                {ERROR_INVALID_HANDLE, EBADF},
                {ERROR_DIRECTORY, ENOTDIR},
                {ERROR_DIR_NOT_EMPTY, ENOTEMPTY},
                {ERROR_BROKEN_PIPE, EPIPE},
                {ERROR_NO_DATA, EPIPE},
                {ERROR_TOO_MANY_OPEN_FILES, EMFILE},
                {ERROR_WRITE_PROTECT, EROFS},
                {ERROR_NOT_SAME_DEVICE, EXDEV},
                {ERROR_FILENAME_EXCED_RANGE, ENAMETOOLONG},
                {ERROR_BUFFER_OVERFLOW, ENAMETOOLONG},
                {ERROR_CANT_RESOLVE_FILENAME, ELOOP}};
    DWORD error = GetLastError();
    errno = EIO;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].error == error) errno = rows[i].number;
    return -1;
}

/* Names at least so long get the prefix; folders are limited to 248 characters. */
enum { LONG_NAME = 240 };

static bool lift_limit(wchar_t path[TN_WIDE_PATH]) {
    wchar_t full[TN_WIDE_PATH];
    DWORD n = GetFullPathNameW(path, TN_WIDE_PATH, full, NULL);
    bool fits = n > 0 && n < TN_WIDE_PATH - 8;
    if (fits && !wcsncmp(full, L"\\\\", 2))
        (void)swprintf(path, TN_WIDE_PATH, L"\\\\?\\UNC\\%ls", full + 2);
    else if (fits)
        (void)swprintf(path, TN_WIDE_PATH, L"\\\\?\\%ls", full);
    else
        errno = ENAMETOOLONG;
    return fits;
}

bool tn_win_path(const char *path, wchar_t out[TN_WIDE_PATH]) {
    if (!strcmp(path, "/dev/null")) path = "NUL";
    int n = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, out, TN_WIDE_PATH);
    if (n <= 1) {
        bool long_name = n == 0 && GetLastError() == ERROR_INSUFFICIENT_BUFFER;
        errno = long_name ? ENAMETOOLONG : n == 0 ? EILSEQ : ENOENT;
        return false;
    }
    for (wchar_t *p = out; *p; p++)
        if (*p == L'/') *p = L'\\';
    return n < LONG_NAME || !wcsncmp(out, L"\\\\?\\", 4) || lift_limit(out);
}

static HANDLE handle_of(int fd) { return fd < 0 ? INVALID_HANDLE_VALUE : (HANDLE)_get_osfhandle(fd); }

/* A handle that changes nothing, of a file or folder. */
static HANDLE open_to_look(const char *path, DWORD access, DWORD flags) {
    wchar_t wide[TN_WIDE_PATH];
    if (!tn_win_path(path, wide)) return INVALID_HANDLE_VALUE;
    HANDLE h = CreateFileW(wide, access, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, NULL, OPEN_EXISTING,
                           FILE_FLAG_BACKUP_SEMANTICS | flags, NULL);
    if (h == INVALID_HANDLE_VALUE) tn_win_error();
    return h;
}

/* ---- open files -------------------------------------------------------------------------------------------------- */

static DWORD how_to_create(int flags) {
    if (flags & _O_CREAT) return (flags & _O_EXCL) ? CREATE_NEW : (flags & _O_TRUNC) ? CREATE_ALWAYS : OPEN_ALWAYS;
    return (flags & _O_TRUNC) ? TRUNCATE_EXISTING : OPEN_EXISTING;
}

int tn_win_open(const char *path, int flags, ...) {
    wchar_t wide[TN_WIDE_PATH];
    if (flags & O_DIRECTORY) {
        errno = EACCES;
        return -1;
    }
    if (!tn_win_path(path, wide)) return -1;
    DWORD access = flags & _O_RDWR ? GENERIC_READ | GENERIC_WRITE : flags & _O_WRONLY ? GENERIC_WRITE : GENERIC_READ;
    HANDLE h = CreateFileW(wide, access, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, NULL,
                           how_to_create(flags), FILE_ATTRIBUTE_NORMAL, NULL);
    if (h == INVALID_HANDLE_VALUE) {
        DWORD error = GetLastError(), kind = GetFileAttributesW(wide);
        bool folder = kind != INVALID_FILE_ATTRIBUTES && (kind & FILE_ATTRIBUTE_DIRECTORY);
        SetLastError(error);
        tn_win_error();
        if (folder && !(flags & _O_EXCL)) errno = EISDIR;
        return -1;
    }
    int fd = _open_osfhandle((intptr_t)h, (flags & (_O_RDWR | _O_WRONLY | _O_APPEND)) | _O_BINARY | _O_NOINHERIT);
    if (fd < 0) CloseHandle(h);
    return fd;
}

int tn_win_close(int fd) {
    if (fd >= 0) return _close(fd);
    errno = EBADF; /* the C library would end the program */
    return -1;
}

enum { MOST_AT_ONCE = 1 << 30 }; /* bytes: the C library counts them in 32 bits */

ssize_t tn_win_read(int fd, void *to, size_t bytes) {
    if (handle_of(fd) == INVALID_HANDLE_VALUE) return -1;
    return _read(fd, to, (unsigned)(bytes < MOST_AT_ONCE ? bytes : MOST_AT_ONCE));
}

ssize_t tn_win_write(int fd, const void *from, size_t bytes) {
    if (handle_of(fd) == INVALID_HANDLE_VALUE) return -1;
    return _write(fd, from, (unsigned)(bytes < MOST_AT_ONCE ? bytes : MOST_AT_ONCE));
}

ssize_t tn_win_pread(int fd, void *to, size_t bytes, int64_t offset) {
    OVERLAPPED at = {.Offset = (DWORD)offset, .OffsetHigh = (DWORD)(offset >> 32)};
    DWORD got = 0;
    if (ReadFile(handle_of(fd), to, (DWORD)(bytes < MOST_AT_ONCE ? bytes : MOST_AT_ONCE), &got, &at)) return got;
    return GetLastError() == ERROR_HANDLE_EOF ? 0 : tn_win_error();
}

int tn_win_fsync(int fd) {
    HANDLE h = handle_of(fd);
    if (GetFileType(h) != FILE_TYPE_DISK) {
        errno = EINVAL;
        return -1;
    }
    return FlushFileBuffers(h) ? 0 : tn_win_error();
}

/* The lock lies far behind the end of any file, because locked bytes could not be read or written by others. */
int tn_win_flock(int fd, int operation) {
    OVERLAPPED at = {.OffsetHigh = 0x40000000};
    DWORD flags = LOCKFILE_EXCLUSIVE_LOCK | (operation & LOCK_NB ? LOCKFILE_FAIL_IMMEDIATELY : 0);
    if (LockFileEx(handle_of(fd), flags, 0, 1, 0, &at)) return 0;
    if (GetLastError() == ERROR_IO_PENDING) SetLastError(ERROR_LOCK_VIOLATION);
    return tn_win_error();
}

int tn_win_isatty(int fd) {
    DWORD mode;
    return GetConsoleMode(handle_of(fd), &mode) ? 1 : 0;
}

/* ---- what a name stands for -------------------------------------------------------------------------------------- */

static struct timespec time_of(FILETIME t) {
    const int64_t to_1970 = 116444736000000000; /* in units of 100 nanoseconds, since 1601 */
    int64_t units = ((int64_t)t.dwHighDateTime << 32 | t.dwLowDateTime) - to_1970;
    return (struct timespec){.tv_sec = units / 10000000, .tv_nsec = (long)(units % 10000000) * 100};
}

static int look(HANDLE h, struct tn_win_stat *s) {
    BY_HANDLE_FILE_INFORMATION i;
    DWORD type = GetFileType(h);
    *s = (struct tn_win_stat){.st_nlink = 1, .st_mode = type == FILE_TYPE_PIPE ? S_IFIFO : S_IFCHR};
    if (type == FILE_TYPE_PIPE || type == FILE_TYPE_CHAR) return 0;
    if (!GetFileInformationByHandle(h, &i)) return tn_win_error();
    bool link = i.dwFileAttributes & FILE_ATTRIBUTE_REPARSE_POINT;
    bool folder = i.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY;
    s->st_mode = (link ? S_IFLNK : folder ? S_IFDIR : S_IFREG) | (folder ? 0755U : 0644U);
    if (i.dwFileAttributes & FILE_ATTRIBUTE_READONLY) s->st_mode &= ~0222U;
    s->st_dev = i.dwVolumeSerialNumber;
    s->st_ino = (uint64_t)i.nFileIndexHigh << 32 | i.nFileIndexLow;
    s->st_nlink = i.nNumberOfLinks;
    s->st_size = (int64_t)i.nFileSizeHigh << 32 | i.nFileSizeLow;
    s->st_mtim = time_of(i.ftLastWriteTime);
    return 0;
}

static int look_at(const char *path, struct tn_win_stat *s, DWORD flags) {
    HANDLE h = open_to_look(path, FILE_READ_ATTRIBUTES, flags);
    if (h == INVALID_HANDLE_VALUE) return -1;
    int failed = look(h, s);
    CloseHandle(h);
    return failed;
}

int tn_win_stat(const char *path, struct tn_win_stat *s) { return look_at(path, s, 0); }

int tn_win_lstat(const char *path, struct tn_win_stat *s) { return look_at(path, s, FILE_FLAG_OPEN_REPARSE_POINT); }

int tn_win_fstat(int fd, struct tn_win_stat *s) {
    HANDLE h = handle_of(fd);
    if (h != INVALID_HANDLE_VALUE) return look(h, s);
    errno = EBADF;
    return -1;
}

int tn_win_access(const char *path, int mode) {
    struct tn_win_stat s;
    if (tn_win_stat(path, &s) != 0) return -1;
    if (!(mode & W_OK) || s.st_mode & 0200) return 0;
    errno = EACCES;
    return -1;
}

/* The path of an open file or folder, with '/' and without the prefix. */
static bool path_of(HANDLE h, char *out, size_t size) {
    wchar_t wide[TN_WIDE_PATH];
    DWORD n = GetFinalPathNameByHandleW(h, wide, TN_WIDE_PATH, FILE_NAME_NORMALIZED | VOLUME_NAME_DOS);
    if (n == 0 || n >= TN_WIDE_PATH) return false;
    const wchar_t *from = wide;
    if (!wcsncmp(wide, L"\\\\?\\UNC\\", 8)) {
        from = wide + 6;
        wide[6] = L'\\';
    } else if (!wcsncmp(wide, L"\\\\?\\", 4)) {
        from = wide + 4;
    }
    if (!WideCharToMultiByte(CP_UTF8, 0, from, -1, out, (int)size, NULL, NULL)) return false;
    for (char *p = out; *p; p++)
        if (*p == '\\') *p = '/';
    return true;
}

char *tn_win_realpath(const char *path, char *out) {
    HANDLE h = open_to_look(path, FILE_READ_ATTRIBUTES, 0);
    if (h == INVALID_HANDLE_VALUE) return NULL;
    char found[PATH_MAX];
    bool ok = path_of(h, found, sizeof found);
    CloseHandle(h);
    if (!ok) {
        errno = ENAMETOOLONG;
        return NULL;
    }
    if (!out) return _strdup(found);
    return strcpy(out, found);
}

ssize_t tn_win_readlink(const char *path, char *out, size_t size) {
    wchar_t wide[TN_WIDE_PATH];
    DWORD n = strcmp(path, "/proc/self/exe") == 0 ? GetModuleFileNameW(NULL, wide, TN_WIDE_PATH) : 0;
    errno = EINVAL;
    if (n == 0 || n >= TN_WIDE_PATH) return -1;
    int bytes = WideCharToMultiByte(CP_UTF8, 0, wide, (int)n, out, (int)size, NULL, NULL);
    return bytes > 0 ? bytes : -1;
}

/* ---- changing names ---------------------------------------------------------------------------------------------- */

int tn_win_unlink(const char *path) {
    wchar_t wide[TN_WIDE_PATH];
    if (!tn_win_path(path, wide)) return -1;
    if (DeleteFileW(wide)) return 0;
    return tn_win_error();
}

/* Windows 10's way, which also replaces a file that others have open. */
static bool rename_as_posix(const wchar_t *from, const wchar_t *to) {
    enum { RENAME_INFO_EX = 22, REPLACE_IF_EXISTS = 1, POSIX_SEMANTICS = 2 }; /* not in all headers */
    struct {
        DWORD flags;
        HANDLE folder;
        DWORD bytes;
        wchar_t name[TN_WIDE_PATH];
    } target = {.flags = REPLACE_IF_EXISTS | POSIX_SEMANTICS};
    DWORD n = GetFullPathNameW(to, TN_WIDE_PATH, target.name, NULL);
    HANDLE h = CreateFileW(from, DELETE | SYNCHRONIZE, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, NULL,
                           OPEN_EXISTING, FILE_FLAG_BACKUP_SEMANTICS, NULL);
    if (h == INVALID_HANDLE_VALUE) return false;
    target.bytes = n * (DWORD)sizeof(wchar_t);
    BOOL done = n > 0 && n < TN_WIDE_PATH && SetFileInformationByHandle(h, RENAME_INFO_EX, &target, sizeof target);
    CloseHandle(h);
    return done;
}

/* In one step even if the target exists. */
int tn_win_rename(const char *from, const char *to) {
    wchar_t wide_from[TN_WIDE_PATH], wide_to[TN_WIDE_PATH];
    if (!tn_win_path(from, wide_from) || !tn_win_path(to, wide_to)) return -1;
    if (rename_as_posix(wide_from, wide_to)) return 0;
    if (MoveFileExW(wide_from, wide_to, MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH)) return 0;
    return tn_win_error();
}

int tn_win_mkdir(const char *path, TN_UNUSED unsigned mode) {
    wchar_t wide[TN_WIDE_PATH];
    if (!tn_win_path(path, wide)) return -1;
    return CreateDirectoryW(wide, NULL) ? 0 : tn_win_error();
}

int tn_win_rmdir(const char *path) {
    wchar_t wide[TN_WIDE_PATH];
    if (!tn_win_path(path, wide)) return -1;
    return RemoveDirectoryW(wide) ? 0 : tn_win_error();
}

int tn_win_remove(const char *path) {
    struct tn_win_stat s;
    if (tn_win_lstat(path, &s) != 0) return -1;
    return S_ISDIR(s.st_mode) ? tn_win_rmdir(path) : tn_win_unlink(path);
}

int tn_win_chmod(const char *path, TN_UNUSED unsigned mode) { return tn_win_access(path, F_OK); }

int tn_win_fchmod(TN_UNUSED int fd, TN_UNUSED unsigned mode) { return 0; }

/* The six X at the end become a number that nobody else has. */
char *tn_win_mkdtemp(char *name) {
    static _Atomic unsigned last;
    char *mark = name + strlen(name) - 6;
    for (int tries = 0; tries < 1000; tries++) {
        unsigned n = (unsigned)GetCurrentProcessId() * 31 + last++ * 7919;
        (void)snprintf(mark, 7, "%06x", n & 0xffffff);
        if (tn_win_mkdir(name, 0700) == 0) return name;
        if (errno != EEXIST) return NULL;
    }
    return NULL;
}

/* Only "now" is ever asked for. */
int tn_win_utimensat(TN_UNUSED int folder, const char *path, TN_UNUSED const struct timespec *times,
                     TN_UNUSED int flags) {
    HANDLE h = open_to_look(path, FILE_WRITE_ATTRIBUTES, 0);
    if (h == INVALID_HANDLE_VALUE) return -1;
    FILETIME now;
    GetSystemTimeAsFileTime(&now);
    int failed = SetFileTime(h, NULL, NULL, &now) ? 0 : tn_win_error();
    CloseHandle(h);
    return failed;
}

/* ---- folders ----------------------------------------------------------------------------------------------------- */

struct tn_win_dir {
    HANDLE find;
    int fd; /* of the folder, for fstatat and unlinkat; -1: not asked for */
    bool first;
    WIN32_FIND_DATAW data;
    struct tn_win_dirent entry;
    char path[]; /* of the folder */
};

tn_win_dir *tn_win_opendir(const char *path) {
    wchar_t wide[TN_WIDE_PATH];
    size_t n = strlen(path);
    struct tn_win_stat s;
    if (tn_win_stat(path, &s) != 0) return NULL;
    if (!S_ISDIR(s.st_mode)) {
        errno = ENOTDIR;
        return NULL;
    }
    tn_win_dir *d = malloc(sizeof *d + n + 3);
    if (!d) return NULL;
    memcpy(d->path, path, n);
    memcpy(d->path + n, "/*", 3);
    d->fd = -1;
    d->first = true;
    d->find = tn_win_path(d->path, wide) ? FindFirstFileW(wide, &d->data) : INVALID_HANDLE_VALUE;
    d->path[n] = 0;
    if (d->find != INVALID_HANDLE_VALUE) return d;
    tn_win_error();
    free(d);
    return NULL;
}

struct tn_win_dirent *tn_win_readdir(tn_win_dir *d) {
    if (!d->first && !FindNextFileW(d->find, &d->data)) return NULL;
    d->first = false;
    int n = WideCharToMultiByte(CP_UTF8, 0, d->data.cFileName, -1, d->entry.d_name, sizeof d->entry.d_name, NULL, NULL);
    return n > 0 ? &d->entry : tn_win_readdir(d);
}

int tn_win_closedir(tn_win_dir *d) {
    FindClose(d->find);
    if (d->fd >= 0) _close(d->fd);
    free(d);
    return 0;
}

int tn_win_dirfd(tn_win_dir *d) {
    if (d->fd >= 0) return d->fd;
    HANDLE h = open_to_look(d->path, FILE_READ_ATTRIBUTES, 0);
    if (h == INVALID_HANDLE_VALUE) return -1;
    d->fd = _open_osfhandle((intptr_t)h, _O_RDONLY | _O_NOINHERIT);
    if (d->fd < 0) CloseHandle(h);
    return d->fd;
}

static bool path_in(int folder, const char *name, char out[2 * PATH_MAX]) {
    char base[PATH_MAX];
    if (folder == AT_FDCWD) return snprintf(out, 2 * PATH_MAX, "%s", name) < 2 * PATH_MAX;
    if (!path_of(handle_of(folder), base, sizeof base)) {
        errno = EBADF;
        return false;
    }
    return snprintf(out, 2 * PATH_MAX, "%s/%s", base, name) < 2 * PATH_MAX;
}

int tn_win_fstatat(int folder, const char *name, struct tn_win_stat *s, int flags) {
    char path[2 * PATH_MAX];
    if (!path_in(folder, name, path)) return -1;
    return flags & AT_SYMLINK_NOFOLLOW ? tn_win_lstat(path, s) : tn_win_stat(path, s);
}

int tn_win_unlinkat(int folder, const char *name, TN_UNUSED int flags) {
    char path[2 * PATH_MAX];
    return path_in(folder, name, path) ? tn_win_unlink(path) : -1;
}

static bool is_self_or_parent(const char *name) { return !strcmp(name, ".") || !strcmp(name, ".."); }

int tn_win_nftw(const char *path, int (*visit)(const char *, const struct tn_win_stat *, int, struct FTW *),
                int open_most, int flags) {
    struct tn_win_stat s;
    if (tn_win_lstat(path, &s) != 0) return -1;
    tn_win_dir *d = S_ISDIR(s.st_mode) ? tn_win_opendir(path) : NULL;
    int result = 0;
    for (struct tn_win_dirent *e; d && result == 0 && (e = tn_win_readdir(d));) {
        char below[2 * PATH_MAX];
        if (!is_self_or_parent(e->d_name) && snprintf(below, sizeof below, "%s/%s", path, e->d_name) < PATH_MAX)
            result = tn_win_nftw(below, visit, open_most, flags);
    }
    if (d) tn_win_closedir(d);
    return result ? result : visit(path, &s, 0, &(struct FTW){0, 0});
}

/* ---- patterns: '*' within a component ---------------------------------------------------------------------------- */

static bool matches(const char *pattern, const char *name) {
    if (*pattern == '*') return matches(pattern + 1, name) || (*name && matches(pattern, name + 1));
    return *pattern == *name && (!*name || matches(pattern + 1, name + 1));
}

static int add_match(tn_win_glob_list *list, const char *path) {
    char **grown = realloc(list->gl_pathv, (list->gl_pathc + 1) * sizeof *grown), *copy = _strdup(path);
    if (grown) list->gl_pathv = grown;
    if (!grown || !copy) {
        free(copy);
        return 1;
    }
    list->gl_pathv[list->gl_pathc++] = copy;
    return 0;
}

/* `path` up to `done` exists; `rest` is the pattern of what follows. */
static int expand(tn_win_glob_list *list, const char *path, size_t done, const char *rest) {
    char next[PATH_MAX], name[PATH_MAX];
    size_t n = strcspn(rest, "/\\");
    if (n == 0 && !*rest) return tn_win_access(path, F_OK) == 0 ? add_match(list, path) : 0;
    const char *after = rest + n + (rest[n] != 0);
    if (!memchr(rest, '*', n)) {
        if (snprintf(next, sizeof next, "%.*s%.*s%s", (int)done, path, (int)n, rest, rest[n] ? "/" : "") >= PATH_MAX)
            return 0;
        return expand(list, next, strlen(next), after);
    }
    if (snprintf(name, sizeof name, "%.*s", (int)n, rest) >= PATH_MAX) return 0;
    tn_win_dir *d = tn_win_opendir(done ? path : ".");
    int failed = 0;
    for (struct tn_win_dirent *e; d && !failed && (e = tn_win_readdir(d));) {
        if (e->d_name[0] == '.' || !matches(name, e->d_name)) continue;
        if (snprintf(next, sizeof next, "%.*s%s%s", (int)done, path, e->d_name, rest[n] ? "/" : "") < PATH_MAX)
            failed = expand(list, next, strlen(next), after);
    }
    if (d) tn_win_closedir(d);
    return failed;
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

int tn_win_glob(const char *pattern, int flags, int (*error)(const char *, int), tn_win_glob_list *out) {
    (void)flags, (void)error;
    *out = (tn_win_glob_list){0};
    if (expand(out, "", 0, pattern)) return 1;
    if (out->gl_pathc) qsort(out->gl_pathv, out->gl_pathc, sizeof *out->gl_pathv, by_text);
    return out->gl_pathc ? 0 : 3;
}

void tn_win_globfree(tn_win_glob_list *list) {
    for (size_t i = 0; i < list->gl_pathc; i++)
        free(list->gl_pathv[i]);
    free(list->gl_pathv);
    *list = (tn_win_glob_list){0};
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

FILE *tn_win_fopen(const char *path, const char *mode) {
    bool plus = strchr(mode, '+') != NULL;
    int flags = plus ? _O_RDWR : mode[0] == 'r' ? _O_RDONLY : _O_WRONLY;
    if (mode[0] == 'w') flags |= _O_CREAT | (strchr(mode, 'x') ? _O_EXCL : _O_TRUNC);
    if (mode[0] == 'a') flags |= _O_CREAT | _O_APPEND;
    int fd = tn_win_open(path, flags);
    if (fd < 0) return NULL;
    FILE *f = _fdopen(fd, (char[]){mode[0], 'b', plus ? '+' : 0, 0});
    if (!f) _close(fd);
    return f;
}

FILE *tn_win_freopen(const char *path, const char *mode, FILE *f) {
    wchar_t wide[TN_WIDE_PATH];
    return tn_win_path(path, wide) ? _wfreopen(wide, mode[0] == 'r' ? L"rb" : L"wb", f) : NULL;
}

/* A stream into memory is a temporary file that Windows keeps in memory; a flush copies it. */
typedef struct memory_stream {
    FILE *file;
    char **text;
    size_t *size;
    struct memory_stream *next;
} memory_stream;
static memory_stream *memory_streams;
static pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;

static FILE *temporary_file(void) {
    wchar_t folder[MAX_PATH + 1], name[MAX_PATH + 1];
    if (!GetTempPathW(MAX_PATH, folder) || !GetTempFileNameW(folder, L"tn", 0, name)) return NULL;
    HANDLE h = CreateFileW(name, GENERIC_READ | GENERIC_WRITE, FILE_SHARE_DELETE, NULL, CREATE_ALWAYS,
                           FILE_ATTRIBUTE_TEMPORARY | FILE_FLAG_DELETE_ON_CLOSE, NULL);
    if (h == INVALID_HANDLE_VALUE) return NULL;
    int fd = _open_osfhandle((intptr_t)h, _O_RDWR | _O_BINARY | _O_NOINHERIT);
    FILE *f = fd < 0 ? NULL : _fdopen(fd, "w+b");
    if (!f && fd >= 0) _close(fd);
    if (fd < 0) CloseHandle(h);
    return f;
}

FILE *tn_win_open_memstream(char **text, size_t *size) {
    memory_stream *m = malloc(sizeof *m);
    *text = calloc(1, 1);
    *size = 0;
    FILE *f = m && *text ? temporary_file() : NULL;
    if (!f) {
        free(m);
        free(*text);
        *text = NULL;
        if (errno == 0) errno = ENOMEM;
        return NULL;
    }
    pthread_mutex_lock(&memory_lock);
    *m = (memory_stream){f, text, size, memory_streams};
    memory_streams = m;
    pthread_mutex_unlock(&memory_lock);
    return f;
}

/* The place of the stream's entry in the list, or of the NULL at its end. The caller holds the lock. */
static memory_stream **find_stream(const FILE *f) {
    memory_stream **at = &memory_streams;
    while (*at && (*at)->file != f)
        at = &(*at)->next;
    return at;
}

static int copy_out(const memory_stream *m) {
    int64_t length = fflush(m->file) == 0 ? _ftelli64(m->file) : -1;
    char *grown = length >= 0 ? realloc(*m->text, (size_t)length + 1) : NULL;
    if (!grown) return EOF;
    *m->text = grown;
    *m->size = (size_t)length;
    rewind(m->file);
    bool complete = fread(grown, 1, (size_t)length, m->file) == (size_t)length;
    grown[length] = 0;
    return _fseeki64(m->file, 0, SEEK_END) == 0 && complete ? 0 : EOF;
}

int tn_win_fflush(FILE *f) {
    pthread_mutex_lock(&memory_lock);
    const memory_stream *m = *find_stream(f);
    int failed = m ? copy_out(m) : 0;
    pthread_mutex_unlock(&memory_lock);
    return m ? failed : fflush(f);
}

int tn_win_fclose(FILE *f) {
    pthread_mutex_lock(&memory_lock);
    memory_stream **at = find_stream(f), *m = *at;
    int failed = m ? copy_out(m) : 0;
    if (m) *at = m->next;
    pthread_mutex_unlock(&memory_lock);
    free(m);
    return fclose(f) || failed ? EOF : 0;
}

ssize_t tn_win_getline(char **line, size_t *room, FILE *f) {
    size_t n = 0;
    for (int c; (c = fgetc(f)) != EOF;) {
        if (n + 2 > *room) {
            size_t grown = *room ? 2 * *room : 128;
            char *larger = realloc(*line, grown);
            if (!larger) return -1;
            *line = larger;
            *room = grown;
        }
        (*line)[n++] = (char)c;
        if (c == '\n') break;
    }
    if (n == 0) return -1;
    (*line)[n] = 0;
    return (ssize_t)n;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void *map_file(size_t bytes, int fd, int64_t offset) {
    HANDLE mapping = CreateFileMappingW(handle_of(fd), NULL, PAGE_READONLY, 0, 0, NULL);
    if (!mapping) return NULL;
    void *at = MapViewOfFile(mapping, FILE_MAP_READ, (DWORD)(offset >> 32), (DWORD)offset, bytes);
    CloseHandle(mapping);
    return at;
}

void *tn_win_mmap(void *at, size_t bytes, int protection, int flags, int fd, int64_t offset) {
    (void)protection; /* files are only read; pages of memory are written until mprotect */
    void *pages = flags & MAP_ANONYMOUS ? VirtualAlloc(at, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE)
                                        : map_file(bytes, fd, offset);
    if (pages) return pages;
    tn_win_error();
    return MAP_FAILED;
}

int tn_win_munmap(void *at, TN_UNUSED size_t bytes) {
    return UnmapViewOfFile(at) || VirtualFree(at, 0, MEM_RELEASE) ? 0 : tn_win_error();
}

int tn_win_mprotect(void *at, size_t bytes, int protection) {
    DWORD before;
    DWORD now = protection & PROT_EXEC ? PAGE_EXECUTE_READ : protection & PROT_WRITE ? PAGE_READWRITE : PAGE_READONLY;
    if (!VirtualProtect(at, bytes, now, &before)) return tn_win_error();
    if (protection & PROT_EXEC) FlushInstructionCache(GetCurrentProcess(), at, bytes);
    return 0;
}

#else
typedef int tn_posix_is_there; /* a file of C is not empty */
#endif
