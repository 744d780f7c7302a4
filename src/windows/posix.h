/* posix.h — the POSIX functions that the sources use and Windows lacks or spells differently. Every file of a build for
 * Windows includes it first (CMakeLists.txt); posix.c and spawn.c implement it on Win32.
 *
 * Paths are UTF-8 with '/' or '\'. Files are opened in binary mode and shared, so that an open file can be renamed and
 * removed. Everything belongs to one user: owners and permissions are not examined. The headers that the sources
 * include for these functions elsewhere are empty files, which CMake writes. */
#ifndef TN_POSIX_H
#define TN_POSIX_H

/* The system's declarations come before the macros below that replace their names. */
#include <direct.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <io.h>
#include <limits.h>
#include <locale.h>
#include <process.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

/* UTF-16 of a text, for libraries that take paths so; NULL with errno set: out of memory, or not Unicode. Freed by
 * free(). */
wchar_t *tn_win_wide(const char *text);

/* ---- files ------------------------------------------------------------------------------------------------------- */

#undef PATH_MAX
#define PATH_MAX 4096
#define PIPE_BUF 4096
#undef X_OK
#define X_OK 0 /* files have no permission to be run */
#define popen _popen
#define pclose _pclose

#define O_CLOEXEC _O_NOINHERIT
#define O_NONBLOCK 0
#define O_NOCTTY 0
#define O_NOFOLLOW 0
#define O_DIRECTORY 0x4000000 /* always fails with EACCES: folders cannot be synced */
#define AT_FDCWD (-100)
#define AT_SYMLINK_NOFOLLOW 0x100
#define S_IFLNK 0xA000
#define S_ISLNK(m) (((m)&S_IFMT) == S_IFLNK)
#ifndef S_IWGRP
#define S_IWGRP 020
#define S_IWOTH 002
#endif
#define LOCK_EX 2
#define LOCK_NB 4
#ifndef EWOULDBLOCK
#define EWOULDBLOCK EAGAIN
#endif

struct tn_win_stat {
    uint64_t st_dev, st_ino;
    unsigned st_mode, st_nlink, st_uid, st_gid;
    uint64_t st_rdev;
    int64_t st_size;
    struct timespec st_mtim;
};
#undef st_mtime
#define st_mtime st_mtim.tv_sec

typedef struct tn_win_dir tn_win_dir;
struct tn_win_dirent {
    char d_name[1024];
};

int tn_win_open(const char *path, int flags, ...);
int tn_win_close(int fd);
ssize_t tn_win_read(int fd, void *to, size_t bytes);
ssize_t tn_win_write(int fd, const void *from, size_t bytes);
ssize_t tn_win_pread(int fd, void *to, size_t bytes, int64_t offset);
int tn_win_fsync(int fd);
int tn_win_flock(int fd, int operation);
int tn_win_isatty(int fd);
int tn_win_stat(const char *path, struct tn_win_stat *s);
int tn_win_lstat(const char *path, struct tn_win_stat *s);
int tn_win_fstat(int fd, struct tn_win_stat *s);
int tn_win_fstatat(int folder, const char *name, struct tn_win_stat *s, int flags);
int tn_win_access(const char *path, int mode);
int tn_win_unlink(const char *path);
int tn_win_unlinkat(int folder, const char *name, int flags);
int tn_win_rename(const char *from, const char *to);
int tn_win_mkdir(const char *path, unsigned mode);
int tn_win_rmdir(const char *path);
int tn_win_remove(const char *path);
int tn_win_chmod(const char *path, unsigned mode);
int tn_win_fchmod(int fd, unsigned mode);
int tn_win_utimensat(int folder, const char *path, const struct timespec *times, int flags);
char *tn_win_realpath(const char *path, char *out);
ssize_t tn_win_readlink(const char *path, char *out, size_t size); /* of /proc/self/exe only: this program's file */
char *tn_win_mkdtemp(char *name);
tn_win_dir *tn_win_opendir(const char *path);
struct tn_win_dirent *tn_win_readdir(tn_win_dir *d);
int tn_win_closedir(tn_win_dir *d);
int tn_win_dirfd(tn_win_dir *d);
FILE *tn_win_fopen(const char *path, const char *mode);
FILE *tn_win_freopen(const char *path, const char *mode, FILE *f);
FILE *tn_win_open_memstream(char **text, size_t *size);
int tn_win_fflush(FILE *f);
int tn_win_fclose(FILE *f);
ssize_t tn_win_getline(char **line, size_t *room, FILE *f);

#define open tn_win_open
#define close tn_win_close
#define read tn_win_read
#define write tn_win_write
#define pread tn_win_pread
#define fsync tn_win_fsync
#define flock tn_win_flock
#define isatty tn_win_isatty
#undef stat
#define stat tn_win_stat /* the structure too */
#define lstat tn_win_lstat
#undef fstat
#define fstat tn_win_fstat
#define fstatat tn_win_fstatat
#define access tn_win_access
#define unlink tn_win_unlink
#define unlinkat tn_win_unlinkat
#define rename tn_win_rename
#define mkdir tn_win_mkdir
#define rmdir tn_win_rmdir
#define remove tn_win_remove
#define chmod tn_win_chmod
#define fchmod tn_win_fchmod
#define utimensat tn_win_utimensat
#define realpath tn_win_realpath
#define readlink tn_win_readlink
#define mkdtemp tn_win_mkdtemp
#define DIR tn_win_dir
#define dirent tn_win_dirent
#define opendir tn_win_opendir
#define readdir tn_win_readdir
#define closedir tn_win_closedir
#define dirfd tn_win_dirfd
#define fopen tn_win_fopen
#define freopen tn_win_freopen
#define open_memstream tn_win_open_memstream
#define fflush tn_win_fflush
#define fclose tn_win_fclose
#define getline tn_win_getline

typedef struct tn_win_glob {
    size_t gl_pathc;
    char **gl_pathv;
} tn_win_glob_list;
int tn_win_glob(const char *pattern, int flags, int (*error)(const char *, int), tn_win_glob_list *out);
void tn_win_globfree(tn_win_glob_list *list);
#define glob_t tn_win_glob_list
#define glob tn_win_glob
#define globfree tn_win_globfree

struct FTW {
    int base, level;
};
enum { FTW_PHYS = 1, FTW_DEPTH = 8 };
/* Calls `visit` for everything below `path` and for it, contents before folders. */
int tn_win_nftw(const char *path, int (*visit)(const char *, const struct tn_win_stat *, int, struct FTW *),
                int open_most, int flags);
#define nftw tn_win_nftw

/* ---- memory and libraries ---------------------------------------------------------------------------------------- */

enum { PROT_READ = 1, PROT_WRITE = 2, PROT_EXEC = 4, MAP_PRIVATE = 2, MAP_ANONYMOUS = 0x20 };
#define MADV_DONTNEED 4
void *tn_win_mmap(void *at, size_t bytes, int protection, int flags, int fd, int64_t offset);
int tn_win_munmap(void *at, size_t bytes);
int tn_win_mprotect(void *at, size_t bytes, int protection);
#define mmap tn_win_mmap
#define munmap tn_win_munmap
#define mprotect tn_win_mprotect

enum { RTLD_NOW = 2, RTLD_LOCAL = 0 };
void *tn_win_dlopen(const char *path, int flags);
void *tn_win_dlsym(void *library, const char *name);
int tn_win_dlclose(void *library);
char *tn_win_dlerror(void);
#define dlopen tn_win_dlopen
#define dlsym tn_win_dlsym
#define dlclose tn_win_dlclose
#define dlerror tn_win_dlerror

/* ---- environment, text, system ----------------------------------------------------------------------------------- */

enum { _SC_PAGESIZE, _SC_NPROCESSORS_ONLN, _SC_PHYS_PAGES, _SC_AVPHYS_PAGES };
#define _SC_AVPHYS_PAGES _SC_AVPHYS_PAGES /* asked for by #if */
int64_t tn_win_sysconf(int what);
char *tn_win_getenv(const char *name); /* HOME and TMPDIR stand for USERPROFILE and TEMP */
int tn_win_setenv(const char *name, const char *value, int replace);
int tn_win_unsetenv(const char *name);
char *tn_win_strrchr(const char *text, int c); /* '/' is either separator of a path */
char *tn_win_strndup(const char *text, size_t most);
char *tn_win_strcasestr(const char *text, const char *part);
int tn_win_getentropy(void *to, size_t bytes);
void *tn_win_memmem(const void *in, size_t bytes, const void *part, size_t part_bytes);
#define sysconf tn_win_sysconf
#define getenv tn_win_getenv
#define setenv tn_win_setenv
#define unsetenv tn_win_unsetenv
#define strrchr tn_win_strrchr
#define strndup tn_win_strndup
#define strcasestr tn_win_strcasestr
#define memmem tn_win_memmem
#define getentropy tn_win_getentropy
#define tell tn_own_tell /* a name that the C library takes for a function of files */

/* A locale is only ever entered ("C") and left. */
typedef int locale_t;
enum { LC_ALL_MASK = 0x3f };
locale_t tn_win_newlocale(int mask, const char *name, locale_t base);
locale_t tn_win_uselocale(locale_t next);
#define newlocale tn_win_newlocale
#define uselocale tn_win_uselocale

/* ---- processes, signals, terminal (spawn.c) -------------------------------------------------------------------- */

#define sigset_t tn_win_signals
typedef uint32_t tn_win_signals;
#define SIGHUP 1
#define SIGKILL 9
#define SA_RESTART 0
#define WNOHANG 1
#define WIFEXITED(status) ((status) >= 0)
#define WEXITSTATUS(status) (status)
#define sigemptyset(set) ((void)(*(set) = 0))
#define sigaddset(set, number) ((void)(*(set) |= (sigset_t)1 << (number)))
struct tn_win_sigaction {
    void (*sa_handler)(int);
    int sa_flags;
    sigset_t sa_mask;
};
/* SIGINT (Ctrl-C, Ctrl-Break), SIGHUP (the window was closed), SIGTERM (the system shuts down). The handler runs in a
 * thread of its own. */
int tn_win_sigaction(int number, const struct tn_win_sigaction *action, struct tn_win_sigaction *before);
int tn_win_kill(pid_t process, int number); /* ends the process, whatever the number */
#define sigaction tn_win_sigaction
#define kill tn_win_kill

typedef struct tn_win_spawn_files {
    int input, output; /* -1: that of this process */
} posix_spawn_file_actions_t;
int tn_win_pipe(int ends[2]);
int posix_spawn_file_actions_init(posix_spawn_file_actions_t *files);
int posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t *files, int from, int to);
int posix_spawn_file_actions_addclose(posix_spawn_file_actions_t *files, int fd);
int posix_spawn_file_actions_destroy(posix_spawn_file_actions_t *files);
int posix_spawnp(pid_t *process, const char *program, const posix_spawn_file_actions_t *files, const void *attributes,
                 char *const arguments[], char *const environment[]);
pid_t tn_win_waitpid(pid_t process, int *status, int options);
#define pipe tn_win_pipe
#define waitpid tn_win_waitpid
enum { F_SETFD = 2, FD_CLOEXEC = 1 };
#define fcntl(fd, command, value) ((void)(fd), 0) /* no descriptor is inherited unless posix_spawnp passes it */

#define pollfd tn_win_pollfd
struct pollfd {
    int fd;
    short events, revents;
};
enum { POLLIN = 1, POLLERR = 8, POLLHUP = 16, POLLNVAL = 32 };
int tn_win_poll(struct pollfd *all, unsigned count, int milliseconds); /* one descriptor: terminal, pipe or file */
#define poll tn_win_poll

struct winsize {
    unsigned short ws_row, ws_col;
};
#define TIOCGWINSZ 1
int tn_win_ioctl(int fd, int request, struct winsize *out);
#define ioctl tn_win_ioctl

/* For the start of a program: its arguments in UTF-8, a terminal that shows UTF-8 and colours, streams without
 * translation of line ends. */
void tn_win_begin(int *argc, char ***argv);

#endif
