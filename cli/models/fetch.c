/* fetch.c — one file over HTTP, by the system's curl: it knows proxies, certificates and redirections.
 *
 * curl gets its options on standard input, so that neither addresses nor tokens are words of a command line. A file is
 * downloaded beside its place, as NAME.part with its address in NAME.part.url, and takes its place when it is whole.
 * NAME.part is locked during the download, so that two processes cannot both append to it. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/models/models.h"
#include "cli/process.h"

#if CLI_HAS_PROCESSES && !defined(_WIN32) /* Windows renames no open file */
#include <sys/file.h>
#endif

enum { MOST_TRIES = 4, OPTIONS = 4096 };

typedef struct transfer {
    const models_file *file;
    char part[CLI_PATH], origin[CLI_PATH]; /* NAME.part, NAME.part.url */
    int http;                              /* status of the last answer, 0: none */
    int lock;                              /* NAME.part, open and locked; -1: without a lock */
} transfer;

bool models_make_folders(const char *path) {
    char folder[CLI_PATH];
    if (snprintf(folder, sizeof folder, "%s", path) >= (int)sizeof folder) return false;
    for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(folder, 0777) != 0 && errno != EEXIST) return false;
        *slash = '/';
    }
    return true;
}

static int64_t size_of(const char *path) {
    struct stat s;
    return stat(path, &s) == 0 ? (int64_t)s.st_size : -1;
}

static void forget(const transfer *t) {
    (void)unlink(t->part);
    (void)unlink(t->origin);
}

/* Empties NAME.part, which keeps its lock. */
static bool begin_anew(const transfer *t) { return t->lock < 0 ? unlink(t->part) == 0 : ftruncate(t->lock, 0) == 0; }

#if CLI_HAS_PROCESSES && !defined(_WIN32)
static bool is_same_file(int fd, const char *path) {
    struct stat a, b;
    return fstat(fd, &a) == 0 && stat(path, &b) == 0 && a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

/* Locks NAME.part; waits while another process downloads it. true: that process has completed the file. curl inherits
 * the lock, so the lock lasts as long as curl runs even if this process is killed. */
static bool wait_for_others(transfer *t) {
    enum { MICROSECONDS = 100000 };
    for (bool waited = false; !cli_stopped(); usleep(MICROSECONDS)) {
        if (t->lock < 0) t->lock = open(t->part, O_RDWR | O_CREAT, 0666);
        if (t->lock < 0) return false; /* curl will say why nothing can be written there */
        bool busy = flock(t->lock, LOCK_EX | LOCK_NB) != 0;
        if (busy && errno != EWOULDBLOCK && errno != EINTR) return false; /* a file system without locks */
        if (!busy && is_same_file(t->lock, t->part)) return false;
        if (busy && !waited && !cli_quiet)
            fprintf(stderr, "trunnion: another process downloads '%s'; waiting for it\n", t->file->target);
        waited = true;
        if (busy) continue;
        close(t->lock); /* the locked file has been renamed or removed meanwhile: open the new one */
        t->lock = -1;
        if (size_of(t->file->target) >= 0) return true;
    }
    return false;
}
#else
static bool wait_for_others(transfer *t) { return t->lock >= 0; }
#endif

/* What is there of another address is not continued. */
static void check_origin(const transfer *t) {
    char url[OPTIONS] = "";
    FILE *f = fopen(t->origin, "r");
    if (f && !fgets(url, sizeof url, f)) url[0] = 0;
    if (f) fclose(f);
    if (strcmp(url, t->file->url) == 0) return;
    (void)begin_anew(t);
    f = fopen(t->origin, "w");
    if (!f) return; /* curl will say why nothing can be written there */
    fputs(t->file->url, f);
    fclose(f);
}

/* A value of curl's configuration, in quotes. */
static bool add_value(char *out, const char *key, const char *before, const char *value) {
    size_t used = strlen(out);
    int n = snprintf(out + used, OPTIONS - used, "%s = \"%s", key, before);
    if (n < 0 || (size_t)n >= OPTIONS - used) return false;
    used += (size_t)n;
    for (; *value; value++) {
        if ((unsigned char)*value < ' ' || used + 4 >= OPTIONS) return false;
        if (*value == '"' || *value == '\\') out[used++] = '\\';
        out[used++] = *value;
    }
    memcpy(out + used, "\"\n", 3);
    return true;
}

/* curl's exit status; -1 after a message. */
static int run_curl(transfer *t) {
    char options[OPTIONS], answer[64] = "";
    char *arguments[] = {"curl", "--config", "-", NULL};
    cli_process p = {.program = "curl", .input = options, .output = answer, .output_size = sizeof answer};
    snprintf(
        options, sizeof options,
        "fail\nlocation\ngloboff\nproto = \"=http,https\"\nproto-redir = \"=http,https\"\nmax-redirs = 10\n"
        "continue-at = -\nconnect-timeout = 30\nspeed-limit = 1\nspeed-time = 60\nwrite-out = \"%%{http_code}\"\n%s",
        cli_is_terminal(stderr) && !cli_quiet ? "progress-bar\n" : "silent\n");
    bool fits = add_value(options, "url", "", t->file->url) && add_value(options, "output", "", t->part);
    if (fits && t->file->token) fits = add_value(options, "header", "Authorization: Bearer ", t->file->token);
    if (!fits) {
        (void)cli_fail(TN_ERR_ARGUMENT, "'%s' is too long, or contains control characters", t->file->url);
        return -1;
    }
    cli_process_end end = cli_process_run(arguments, &p);
    t->http = atoi(answer);
    if (end == CLI_PROCESS_EXITED) return p.status;
    (void)cli_fail(TN_ERR_IO,
                   end == CLI_PROCESS_NOT_STARTED
                       ? "cannot start the program 'curl' (%s), which downloads files; install it"
                       : "the program 'curl' crashed (%s)",
                   strerror(p.error));
    return -1;
}

static int tell(const transfer *t, int status) {
    static const struct {
        int status;
        const char *what;
    } rows[] = {{3, "this is not an address"},        {1, "only http and https are supported"},
                {5, "the proxy's name is not known"}, {6, "the host's name is not known"},
                {7, "the host does not answer"},      {23, "writing to the cache folder failed; is the disk full?"},
                {28, "no data for a minute"},         {35, "the TLS connection failed"},
                {47, "too many redirections"},        {60, "the server's certificate is not trusted"}};
    const char *url = t->file->url;
    if (status == 22 && t->http == 404) return cli_fail(TN_ERR_IO, "'%s' does not exist (HTTP status 404)", url);
    if (status == 22 && (t->http == 401 || t->http == 403))
        return cli_fail(TN_ERR_IO,
                        "'%s': access denied (HTTP status %d); if the model requires consent, accept it there and set "
                        "HF_TOKEN",
                        url, t->http);
    if (status == 22) return cli_fail(TN_ERR_IO, "'%s': HTTP status %d", url, t->http);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].status == status) return cli_fail(TN_ERR_IO, "'%s': %s", url, rows[i].what);
    return cli_fail(TN_ERR_IO, "'%s': the transfer was interrupted (curl's status %d); the same command continues it",
                    url, status);
}

/* Whether the next try may go on: after a broken connection, or from the beginning, where a server cannot continue. */
static bool try_again(const transfer *t, int status) {
    static const int broken[] = {18, 52, 55, 56, 92};
    if (status == 33 || t->http == 416) return begin_anew(t);
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++)
        if (status == broken[i]) return true;
    return false;
}

static int download(transfer *t) {
    int status = 18;
    if (t->file->size > 0 && size_of(t->part) == t->file->size) return CLI_OK;
    for (int i = 0; i < MOST_TRIES && status != 0 && !cli_stopped(); i++) {
        status = run_curl(t);
        if (status == 0 && t->http == 416) status = 33; /* the partial file is as long as the remote one, or longer */
        if (status != 0 && (status < 0 || !try_again(t, status))) break;
    }
    if (status == 0) return CLI_OK;
    if (size_of(t->part) < 1) forget(t);
    return status < 0 ? CLI_FAILED : tell(t, status);
}

static int check_file(const transfer *t) {
    char sum[MODELS_SUM];
    int64_t size = size_of(t->part);
    if (t->file->size > 0 && size != t->file->size) {
        forget(t);
        return cli_fail(TN_ERR_FORMAT, "'%s' has %lld bytes, but %lld were announced; it was removed", t->file->url,
                        (long long)size, (long long)t->file->size);
    }
    if (!t->file->sum) return CLI_OK;
    if (!models_sum(t->part, sum)) return cli_fail(TN_ERR_IO, "reading '%s' failed: %s", t->part, strerror(errno));
    if (strcasecmp(sum, t->file->sum) == 0) return CLI_OK;
    forget(t);
    return cli_fail(TN_ERR_FORMAT, "'%s' has the SHA-256 %s, expected %s; it was removed", t->file->url, sum,
                    t->file->sum);
}

static int fetch_alone(transfer *t) {
    check_origin(t);
    int status = download(t);
    if (status == CLI_OK) status = check_file(t);
    if (status != CLI_OK) return status;
    if (rename(t->part, t->file->target) != 0)
        return cli_fail(TN_ERR_IO, "cannot rename '%s' to '%s': %s", t->part, t->file->target, strerror(errno));
    (void)unlink(t->origin);
    return CLI_OK;
}

int models_fetch(const models_file *f) {
    transfer t = {.file = f, .lock = -1};
    int a = snprintf(t.part, sizeof t.part, "%s.part", f->target);
    int b = snprintf(t.origin, sizeof t.origin, "%s.part.url", f->target);
    if (a >= (int)sizeof t.part || b >= (int)sizeof t.origin)
        return cli_fail(TN_ERR_ARGUMENT, "the path '%s' is too long", f->target);
    int status = CLI_OK;
    if (!wait_for_others(&t)) status = cli_stopped() ? tell(&t, 18) : fetch_alone(&t);
    if (t.lock >= 0) close(t.lock);
    return status;
}
