/* process.c — this command once more, or another program, in a process of its own: what may crash or hang, or must
 * start afresh.
 *
 * The child's output is dropped or kept, a time limit kills it, and a signal that ends this
 * process ends the child too (signals.c). */
#include "cli/process.h"

#include <errno.h>
#include <string.h>

#include "cli/cli.h"

#if CLI_HAS_PROCESSES

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__APPLE__)
#include <mach-o/dyld.h>
#endif

#if !defined(_WIN32)
extern char **environ;
#endif

bool cli_own_path(char *out, size_t size) {
#if defined(__APPLE__)
    uint32_t room = (uint32_t)size;
    return _NSGetExecutablePath(out, &room) == 0;
#else
    ssize_t n = readlink("/proc/self/exe", out, size - 1);
    if (n <= 0) return false;
    out[n] = 0;
    return true;
#endif
}

/* Reads the child's output until it ends; keeps the last bytes. False: the time is over. */
static bool read_output(int from, double until, cli_process *p) {
    char dropped[4096], *room = p->output ? p->output : dropped;
    size_t size = p->output ? p->output_size : sizeof dropped, have = 0;
    for (;;) {
        double left = until > 0 ? until - cli_now() : 0;
        struct pollfd ready = {.fd = from, .events = POLLIN};
        int found = until > 0 && left <= 0 ? 0 : poll(&ready, 1, until > 0 ? (int)(left * 1000) + 1 : -1);
        if (found < 0 && errno == EINTR) continue;
        if (found <= 0) break;
        if (have + 1 >= size) have = 0; /* what is looked for is at the end */
        ssize_t n = read(from, room + have, size - 1 - have);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            room[have] = 0;
            return true;
        }
        have += (size_t)n;
    }
    room[have] = 0;
    return false;
}

/* input: -1: that of this process. */
static int start(const char *path, char *const arguments[], int input, int output, int other, pid_t *child) {
    posix_spawn_file_actions_t files;
    int error = posix_spawn_file_actions_init(&files);
    if (error) return error;
    error = posix_spawn_file_actions_adddup2(&files, output, STDOUT_FILENO);
    if (!error && input >= 0) error = posix_spawn_file_actions_adddup2(&files, input, STDIN_FILENO);
    if (!error) error = posix_spawn_file_actions_addclose(&files, other);
    if (!error) error = posix_spawnp(child, path, &files, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&files);
    return error;
}

/* A pipe that holds the text; -1 where that fails. */
static int filled_pipe(const char *text) {
    int ends[2];
    size_t size = strlen(text);
    if (size > PIPE_BUF || pipe(ends) != 0) return -1;
    (void)fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    ssize_t written = write(ends[1], text, size);
    close(ends[1]);
    if (written == (ssize_t)size) return ends[0];
    close(ends[0]);
    return -1;
}

cli_process_end cli_process_run(char *const arguments[], cli_process *p) {
    char path[4096];
    int ends[2], status = 0;
    pid_t child = 0;
    p->status = -1;
    p->error = ENOENT;
    if (!p->program && !cli_own_path(path, sizeof path)) return CLI_PROCESS_NOT_STARTED;
    int input = p->input ? filled_pipe(p->input) : -1;
    if ((p->input && input < 0) || pipe(ends) != 0) {
        p->error = errno ? errno : EINVAL;
        if (input >= 0) close(input);
        return CLI_PROCESS_NOT_STARTED;
    }
    (void)fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    (void)fcntl(ends[1], F_SETFD, FD_CLOEXEC);
    double begun = cli_now();
    p->error = start(p->program ? p->program : path, arguments, input, ends[1], ends[0], &child);
    close(ends[1]);
    if (input >= 0) close(input);
    if (p->error == 0) cli_child_begin((int)child);
    bool late = p->error == 0 && !read_output(ends[0], p->limit > 0 ? begun + p->limit : 0, p);
    close(ends[0]);
    if (p->error) return CLI_PROCESS_NOT_STARTED;
    if (late) kill(child, SIGKILL);
    pid_t ended;
    do
        ended = waitpid(child, &status, 0);
    while (ended < 0 && errno == EINTR);
    cli_child_end();
    p->seconds = cli_now() - begun;
    if (late) return CLI_PROCESS_LATE;
    if (ended != child || !WIFEXITED(status)) return CLI_PROCESS_CRASHED;
    p->status = WEXITSTATUS(status);
    return CLI_PROCESS_EXITED;
}

#else /* a system without processes */

bool cli_own_path(char *out, size_t size) {
    (void)out, (void)size;
    return false;
}

cli_process_end cli_process_run(TN_UNUSED char *const arguments[], cli_process *p) {
    p->status = -1;
    p->error = ENOSYS;
    return CLI_PROCESS_NOT_STARTED;
}

#endif
