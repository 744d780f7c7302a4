/* os.h — what operating systems spell differently or lack: signal masks, user ids, file locks, times of files.
 *
 * The sources are written for POSIX. WebAssembly (WASI) has one user, no signals, no processes and no locks of files;
 * there each function below does what is right for a program that is alone. Windows gets the POSIX functions that it
 * lacks from src/windows, except fork, masks of signals and owners of files. */
#ifndef TN_OS_H
#define TN_OS_H

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#if defined(__wasi__) || defined(_WIN32)
#define TN_HAS_PROCESSES 0       /* fork, and what belongs to it */
#elif !defined(TN_HAS_PROCESSES) /* a test compiles the ways without processes on a system that has them */
#define TN_HAS_PROCESSES 1
#endif
#if TN_HAS_PROCESSES
#include <sys/file.h>
#endif

/* Does the range lie in a file that tn_map_open mapped? Such memory is never written. */
bool tn_map_has(const void *address, size_t bytes);
/* Bytes of such a range whose pages this process has not read yet; 0: the range lies in no mapped file. */
size_t tn_map_absent(const void *address, size_t bytes);

/* When a file was last changed. */
static inline struct timespec tn_modified_at(const struct stat *s) {
#if defined(__APPLE__)
    return s->st_mtimespec;
#else
    return s->st_mtim;
#endif
}

/* Blocks every signal of this thread until tn_signals_restore, with the same object. */
typedef struct tn_signals {
#if TN_HAS_PROCESSES
    sigset_t before;
#else
    char none;
#endif
} tn_signals;

static inline void tn_signals_block(tn_signals *s) {
#if TN_HAS_PROCESSES
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &s->before);
#else
    s->none = 0;
#endif
}

static inline void tn_signals_restore(const tn_signals *s) {
#if TN_HAS_PROCESSES
    pthread_sigmask(SIG_SETMASK, &s->before, NULL);
#else
    (void)s;
#endif
}

#if defined(_WIN32)
#define TN_SEPARATORS "/\\" /* of a path's components */
#define TN_PATH_LIST ";"
enum { TN_ON_WINDOWS = 1 };
#else
#define TN_SEPARATORS "/"
#define TN_PATH_LIST ":;"
enum { TN_ON_WINDOWS = 0 };
#endif

/* Whether a path does not depend on the working directory. */
static inline bool tn_is_absolute(const char *path) {
    return path[0] == '/' || (TN_ON_WINDOWS && path[0] != '\0' && (path[0] == '\\' || path[1] == ':'));
}

/* Takes the lock of an open file, which ends with the process; false with errno EWOULDBLOCK: another process has it. */
static inline bool tn_lock_file(int fd) {
#if TN_HAS_PROCESSES || defined(_WIN32)
    return flock(fd, LOCK_EX | LOCK_NB) == 0;
#else
    return fd >= 0;
#endif
}

/* Tells the system how pages will be used; nothing depends on whether it listens. */
static inline void tn_advise(void *pages, size_t bytes, int advice) {
#if TN_HAS_PROCESSES
    (void)madvise(pages, bytes, advice);
#else
    (void)pages, (void)bytes, (void)advice;
#endif
}

/* The user whose rights this process has. */
static inline uint64_t tn_user_id(void) {
#if TN_HAS_PROCESSES
    return geteuid();
#else
    return 0; /* WASI gives this owner to every file */
#endif
}

static inline bool tn_is_ours(const struct stat *s) { return s->st_uid == tn_user_id(); }

#endif
