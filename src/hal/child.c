/* child.c — work in a child process: probes of drivers, trials of libraries and of tuned kernels.
 *
 * Loading a driver's library can crash, hang, start threads or print. None of this may reach the host program, so a
 * probe that loads such code runs in a forked child, which writes its result to a pipe and exits. The parent reads
 * until a deadline, kills a child that is still running, and turns a crash or timeout into a reason. The children of
 * all backends run concurrently. Only this file forks and calls _exit. */
#include "base/os.h"
#include "hal/discovery.h"
#include "hal/hal.h"

#include <stdio.h>
#include <string.h>

static const char CRASH_FIX[] = "update or reinstall this driver; the other devices are not affected";

static void put_failure(tn_probe_result *f, tn_reason_code code, const char *text, const char *fix) {
    memset(f, 0, sizeof *f);
    snprintf(f->code, sizeof f->code, "%s", tn_reason_code_name(code));
    snprintf(f->reason, sizeof f->reason, "%s", text);
    snprintf(f->fix, sizeof f->fix, "%s", fix);
}

#if TN_HAS_PROCESSES

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

enum { SECONDS = 5, MOST_SECONDS = 600 };

/* Seconds that a probe may take; TRUNNION_PROBE_SECONDS is for machines whose drivers take longer to start. */
static int probe_seconds(void) { return tn_env_int("TRUNNION_PROBE_SECONDS", 1, MOST_SECONDS, SECONDS); }

/* ---- in the child ------------------------------------------------------------------------------------------------ */

/* A crash must end only the child, and at once: without handlers of the host program, core file or output. */
static void child_prepare(TN_UNUSED pid_t parent, int seconds) {
    static const int crash[] = {SIGSEGV, SIGABRT, SIGBUS, SIGILL, SIGFPE, SIGTERM, SIGALRM, SIGPIPE};
    for (size_t i = 0; i < TN_COUNT(crash); i++)
        signal(crash[i], SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; null >= 0 && fd < 3; fd++)
        dup2(null, fd);
#ifdef __linux__
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
#else
#endif
    tn_mem_fail_at(0);            /* a test's fault is meant for the parent */
    alarm((unsigned)seconds + 1); /* a child whose parent has died exits too */
}

/* The work of a child: leaves its answer in `out`. */
typedef struct task {
    void (*body)(void *ctx, void *out);
    void *ctx, *out;
    size_t bytes;
    int seconds;
} task;

static void child_run(const task *t, int fd, pid_t parent) {
    /* The pipe may have the number of a standard stream that the host program closed; child_prepare redirects it. */
    if (fd <= STDERR_FILENO) fd = fcntl(fd, F_DUPFD, STDERR_FILENO + 1);
    child_prepare(parent, t->seconds);
    t->body(t->ctx, t->out);
    const char *at = t->out;
    for (size_t left = t->bytes; left;) {
        ssize_t n = write(fd, at, left);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        at += n;
        left -= (size_t)n;
    }
    _exit(0);
}

/* ---- in the parent ----------------------------------------------------------------------------------------------- */

static void start(const task *t, tn_child *c) {
    int ends[2];
    *c = (tn_child){.pid = -1, .fd = -1, .deadline = tn_now() + t->seconds};
    if (pipe(ends)) return;
    (void)fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    (void)fcntl(ends[1], F_SETFD, FD_CLOEXEC);
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) child_run(t, ends[1], parent);
    close(ends[1]);
    c->pid = (int)pid;
    c->fd = ends[0];
}

static void probe(void *ctx, void *out) {
    const tn_driver *const *driver = ctx;
    tn_probe_here(*driver, out);
}

void tn_child_start(const tn_driver *driver, tn_child *c) {
    static tn_probe_result f; /* the child's copy */
    start(&(task){probe, &driver, &f, sizeof f, probe_seconds()}, c);
}

/* Reads a complete answer; false if the child ends or the deadline passes first. Bytes that are already in the pipe are
 * read even after the deadline, because it may have passed while another child was waited for. */
static bool read_answer(const tn_child *c, void *answer, size_t bytes, bool *late) {
    size_t got = 0;
    *late = false;
    while (got < bytes) {
        double left = c->deadline - tn_now();
        struct pollfd p = {.fd = c->fd, .events = POLLIN};
        int ready = poll(&p, 1, left > 0 ? (int)(left * 1000) + 1 : 0);
        if (ready < 0 && errno == EINTR) continue;
        if (ready <= 0) {
            *late = true;
            return false;
        }
        ssize_t n = read(c->fd, (char *)answer + got, bytes - got);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        got += (size_t)n;
    }
    return true;
}

/* Kills the child if asked to, and collects its status; false if that is not possible. A process stuck inside a kernel
 * driver does not die even then; it is abandoned after half a second. */
static bool reap(int pid, bool end, int *status) {
    if (end) kill(pid, SIGKILL);
    for (int tries = 0; tries < 500; tries++) {
        pid_t r = waitpid(pid, status, WNOHANG);
        if (r == pid) return true;
        if (r < 0 && errno != EINTR) return false; /* the host program collects all children itself */
        if (tries == 100) kill(pid, SIGKILL);
        usleep(1000);
    }
    return false;
}

static const char *signal_name(int number, char *room, size_t size) {
    static const struct {
        int number;
        const char *name;
    } known[] = {
        {SIGSEGV, "SIGSEGV, an invalid memory access"}, {SIGABRT, "SIGABRT, it aborted"},
        {SIGBUS, "SIGBUS, an invalid memory access"},   {SIGILL, "SIGILL, an instruction that this processor lacks"},
        {SIGFPE, "SIGFPE, an arithmetic fault"},        {SIGKILL, "SIGKILL, killed from outside"},
    };
    for (size_t i = 0; i < TN_COUNT(known); i++)
        if (known[i].number == number) return known[i].name;
    snprintf(room, size, "signal %d", number);
    return room;
}

static void explain_silence(tn_probe_result *f, bool late, bool known, int status) {
    char text[200], room[32];
    if (late)
        snprintf(text, sizeof text,
                 "its library did not respond within %d seconds (TRUNNION_PROBE_SECONDS sets the limit)",
                 probe_seconds());
    else if (known && WIFSIGNALED(status))
        snprintf(text, sizeof text, "its library crashed while being probed: %s",
                 signal_name(WTERMSIG(status), room, sizeof room));
    else
        snprintf(text, sizeof text, "its library ended the process that probed it");
    put_failure(f, TN_REASON_CRASHED, text, CRASH_FIX);
}

/* A library may have corrupted the child's memory, so its answer is not assumed to be well formed. */
static void make_sane(tn_probe_result *f) {
    if (f->count < 0 || f->count > TN_MOST_DEVICES) f->count = 0;
    f->code[sizeof f->code - 1] = f->reason[sizeof f->reason - 1] = 0;
    f->fix[sizeof f->fix - 1] = f->library[sizeof f->library - 1] = 0;
    for (int i = 0; i < f->count; i++) {
        tn_device_info *d = &f->devices[i];
        d->name[sizeof d->name - 1] = d->compute_capability[sizeof d->compute_capability - 1] = 0;
        d->uuid[sizeof d->uuid - 1] = d->pci[sizeof d->pci - 1] = 0;
    }
}

void tn_child_finish(tn_child *c, tn_probe_result *f) {
    bool late = false, complete = false;
    int status = 0;
    if (c->pid > 0) {
        complete = read_answer(c, f, sizeof *f, &late);
        bool known = reap(c->pid, late, &status);
        if (!complete) explain_silence(f, late, known, status);
    } else {
        put_failure(f, TN_REASON_PROCESS_LIMIT, "the process that looks for it could not be created",
                    "raise the limit of open files (ulimit -n) and processes (-u), or close other programs");
    }
    if (c->fd >= 0) close(c->fd);
    if (complete) make_sane(f);
}

bool tn_child_run(void (*body)(void *ctx, void *out), void *ctx, void *out, size_t bytes, int seconds,
                  const char **why) {
    tn_child c;
    bool late = false;
    int status = 0;
    start(&(task){body, ctx, out, bytes, seconds}, &c);
    bool made = c.pid > 0, complete = made && read_answer(&c, out, bytes, &late);
    if (made) (void)reap(c.pid, late, &status);
    if (c.fd >= 0) close(c.fd);
    *why = "the process could not be created";
    if (!made) return false;
    *why = complete ? "" : late ? "it took too long" : "it crashed";
    return complete;
}

#else /* a system without processes: callers get an error */

void tn_child_start(TN_UNUSED const tn_driver *driver, tn_child *c) { *c = (tn_child){.pid = -1, .fd = -1}; }

void tn_child_finish(TN_UNUSED tn_child *c, tn_probe_result *f) {
    put_failure(f, TN_REASON_CRASHED, "this system has no processes, so drivers cannot be probed safely", CRASH_FIX);
}

bool tn_child_run(void (*body)(void *ctx, void *out), void *ctx, void *out, size_t bytes, int seconds,
                  const char **why) {
    (void)body, (void)ctx, (void)out, (void)bytes, (void)seconds;
    *why = "this system has no processes";
    return false;
}

#endif
