/* signals.c — SIGINT, SIGTERM and SIGHUP for all subcommands.
 *
 * Unless a subcommand says otherwise, a signal ends the process at once: unfinished files are removed, the exit status
 * is 128 + the signal's number. Between cli_stop_begin and cli_stop_end the first signal only sets what cli_stopped()
 * returns, and the work stops by itself and keeps what it has. A second signal ends it all the same; wrappers often
 * send the first one twice, so the second counts only after SECOND_AFTER. The handler uses async-signal-safe calls
 * only. */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/process.h"
#include "trunnion/status.h"

enum { MOST_FILES = 16, SIGNAL_STATUS = 128 };

static volatile sig_atomic_t gentle;   /* the work stops by itself */
static volatile sig_atomic_t received; /* the first signal, 0: none */
static volatile sig_atomic_t child;    /* a process that ends with this one */
static volatile sig_atomic_t json;

static struct {
    _Atomic int used; /* 0 free, 1 changing, 2 a name stands there */
    char name[PATH_MAX];
} files[MOST_FILES];

#if CLI_HAS_PROCESSES

static const int handled[] = {SIGINT, SIGTERM, SIGHUP};
enum { HANDLED = sizeof handled / sizeof handled[0] };
static const int64_t SECOND_AFTER = 500000000; /* nanoseconds */
static int64_t received_at;
static pid_t process; /* a forked child leaves files and output to its parent */

static int64_t nanoseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void say(int to, const char *text) {
    ssize_t n = write(to, text, strlen(text));
    (void)n; /* the process ends, whether anybody reads this or not */
}

static const char *signal_name_of(int number) {
    return number == SIGINT ? "SIGINT" : number == SIGTERM ? "SIGTERM" : "SIGHUP";
}

static void end_process(int number) {
    if (getpid() == process) {
        tn_discard_saves();
        for (int i = 0; i < MOST_FILES; i++)
            if (atomic_load(&files[i].used) == 2) unlink(files[i].name);
        if (child > 0) kill((pid_t)child, SIGKILL);
        say(STDERR_FILENO, "\ntrunnion: stopped by ");
        say(STDERR_FILENO, signal_name_of(number));
        say(STDERR_FILENO, "\n");
        if (json && !cli_json_begun) {
            say(STDOUT_FILENO, "{\"error\": {\"code\": \"cancelled\", \"message\": \"stopped by ");
            say(STDOUT_FILENO, signal_name_of(number));
            say(STDOUT_FILENO, "\", \"fix\": null}}\n");
        }
    }
    _exit(SIGNAL_STATUS + number);
}

static void on_signal(int number) {
    int error = errno;
    int64_t t = nanoseconds();
    bool first = received == 0;
    if (!gentle || getpid() != process || (!first && t - received_at > SECOND_AFTER)) end_process(number);
    if (first) {
        received_at = t;
        received = number;
    }
    errno = error;
}

void cli_signals_begin(void) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, before;
    process = getpid();
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < HANDLED; i++)
        sigaddset(&action.sa_mask, handled[i]);
    for (int i = 0; i < HANDLED; i++) /* nohup and background jobs ignore some: they stay ignored */
        if (sigaction(handled[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(handled[i], &action, NULL);
#if CLI_HAS_FORK
    signal(SIGXFSZ, SIG_IGN); /* a file beyond the size limit is then an error of write */
    signal(SIGCHLD, SIG_DFL); /* if the caller ignored it, waitpid could not tell how a child ended */
#endif
}

#else /* no signals come */

static const char *signal_name_of(TN_UNUSED int number) { return ""; }

void cli_signals_begin(void) {}

#endif

void cli_signals_json(void) { json = 1; }

void cli_stop_begin(void) { gentle = 1; }

void cli_stop_end(void) { gentle = 0; }

bool cli_stopped(void) { return received != 0; }

bool cli_stop_resume(void) {
    if (received == SIGINT) received = 0;
    return received == 0;
}

int cli_stop_status(void) { return SIGNAL_STATUS + (int)received; }

const char *cli_stop_signal(void) { return signal_name_of((int)received); }

void cli_child_begin(int pid) { child = pid; }

void cli_child_end(void) { child = 0; }

int cli_temporary_begin(const char *path) {
    for (int i = 0; i < MOST_FILES && strlen(path) < PATH_MAX; i++) {
        int expected = 0;
        if (!atomic_compare_exchange_strong(&files[i].used, &expected, 1)) continue;
        memcpy(files[i].name, path, strlen(path) + 1);
        atomic_store(&files[i].used, 2);
        return i;
    }
    return -1;
}

void cli_temporary_end(int entry) {
    if (entry >= 0) atomic_store(&files[entry].used, 0);
}
