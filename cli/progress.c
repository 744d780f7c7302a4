/* progress.c — a live line on standard error while work goes on. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"

enum { BAR_COLUMNS = 24, LEAST_BAR_COLUMNS = 6, LINE_BYTES = 512 };
static const double BETWEEN = 0.05;  /* seconds from one showing to the next */
static const double SMOOTHING = 0.3; /* weight of the newest rate */

void cli_progress_begin(cli_progress *p, const char *what, const char *unit, int64_t total) {
    double t = cli_now();
    *p = (cli_progress){.what = what, .unit = unit, .total = total, .begun = t, .shown = t};
    p->live = cli_colour(stderr) && !cli_quiet;
}

/* A bar in eighths of a column, or in whole ones where the locale has no such characters. */
static void bar_text(char *out, size_t size, double part, int columns) {
    static const char *const eighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    int filled = (int)(part * columns * 8);
    if (filled < 0) filled = 0;
    if (filled > columns * 8) filled = columns * 8;
    bool fine = cli_utf8();
    size_t n = 0;
    for (int i = 0; i < columns && n + 4 < size; i++) {
        int left = filled - i * 8;
        const char *cell = left >= 8 ? (fine ? "█" : "#") : left > 0 && fine ? eighths[left] : " ";
        n += (size_t)snprintf(out + n, size - n, "%s", cell);
    }
}

static void left_text(char *out, size_t size, double seconds) {
    if (seconds < 100)
        snprintf(out, size, "%.0f s left", seconds);
    else if (seconds < 6000)
        snprintf(out, size, "%.0f min left", seconds / 60);
    else
        snprintf(out, size, "%.1f h left", seconds / 3600);
}

/* Cuts UTF-8 text to so many characters. */
static void cut_progress(char *text, int columns) {
    for (char *c = text; *c; c++) {
        if (((unsigned char)*c & 0xC0) == 0x80) continue;
        if (columns-- == 0) {
            *c = 0;
            return;
        }
    }
}

/* All but the bar is put together first; the bar takes what the terminal leaves it, or goes. */
static void line_text(char *line, size_t size, const cli_progress *p, const char *text, int width) {
    char rest[LINE_BYTES / 2], bar[BAR_COLUMNS * 3 + 4] = "", left[32] = "";
    if (p->total <= 0) {
        snprintf(line, size, "%s %lld  %s  %.3g %s/s", p->what, (long long)p->done, text, p->rate, p->unit);
        return;
    }
    long long done = p->done < p->total ? p->done : p->total;
    if (p->rate > 0) left_text(left, sizeof left, (double)(p->total - done) / p->rate);
    snprintf(rest, sizeof rest, "%lld/%lld  %s  %.3g %s/s  %s", done, (long long)p->total, text, p->rate, p->unit,
             left);
    int room = width - cli_text_columns(p->what, strlen(p->what)) - cli_text_columns(rest, strlen(rest)) - 2;
    if (room > BAR_COLUMNS) room = BAR_COLUMNS;
    if (room >= LEAST_BAR_COLUMNS) bar_text(bar, sizeof bar, (double)done / (double)p->total, room);
    snprintf(line, size, "%s %s%s%s", p->what, bar, bar[0] ? " " : "", rest);
}

static void show_progress(const cli_progress *p, const char *text) {
    char line[LINE_BYTES];
    int width = cli_columns(stderr) - 1;
    line_text(line, sizeof line, p, text, width);
    cut_progress(line, width);
    fprintf(stderr, "\r%s\033[K", line);
    fflush(stderr);
}

void cli_progress_update(cli_progress *p, int64_t done, const char *text) {
    p->done = done;
    if (!p->live) return;
    double t = cli_now(), passed = t - p->shown;
    if (passed < BETWEEN && done < p->total) return;
    double rate = passed > 0 ? (double)(done - p->shown_done) / passed : p->rate;
    p->rate = p->rate > 0 ? p->rate + SMOOTHING * (rate - p->rate) : rate;
    p->shown = t;
    p->shown_done = done;
    show_progress(p, text);
}

void cli_progress_end(cli_progress *p) {
    if (p->live) fputs("\r\033[K", stderr);
    p->live = false;
}

double cli_progress_rate(const cli_progress *p) {
    double passed = cli_now() - p->begun;
    return passed > 0 ? (double)p->done / passed : 0;
}

bool cli_cache_path(const char *name, char *out, size_t size) {
    const char *own = getenv("TRUNNION_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (own && *own) return snprintf(out, size, "%s/%s", own, name) < (int)size;
    if (xdg && *xdg == '/') return snprintf(out, size, "%s/trunnion/%s", xdg, name) < (int)size;
    return home && *home && snprintf(out, size, "%s/.cache/trunnion/%s", home, name) < (int)size;
}

/* Stores the name of the one model in the cache folder that begins with `word`; "" for none or several. */
static void find_similar(const char *folder, const char *word, char out[256]) {
    DIR *d = opendir(folder);
    int count = 0;
    for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d))
        if (e->d_name[0] != '.' && strncasecmp(e->d_name, word, strlen(word)) == 0 && count++ == 0)
            snprintf(out, 256, "%s", e->d_name);
    if (d) closedir(d);
    if (count != 1) out[0] = 0;
}

/* Of OWNER/NAME, as models on the hub are called, NAME; NULL: it is a path. */
static const char *hub_name(const char *path) {
    const char *slash = strchr(path, '/'), *ending = strrchr(path, '.');
    char owner[CLI_PATH];
    if (!slash || slash == path || !slash[1] || strchr(slash + 1, '/') || *path == '.') return NULL;
    if (ending && strcmp(ending, ".gguf") == 0) return NULL;
    snprintf(owner, sizeof owner, "%.*s", (int)(slash - path), path);
    return access(owner, F_OK) == 0 ? NULL : slash + 1;
}

bool cli_find_model(const char **path, char room[CLI_PATH]) {
    static const char *const endings[] = {"", ".gguf"};
    char name[CLI_PATH] = "", folder[CLI_PATH] = "", similar[256] = "";
    if (!**path) {
        (void)cli_fail(TN_ERR_ARGUMENT, "the name of the model is empty");
        return false;
    }
    if (access(*path, F_OK) == 0) return true;
    const char *last = hub_name(*path);
    if (!last && strchr(*path, '/')) return true; /* opening it says what failed */
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "models/%s%s", last ? last : *path, endings[i]);
        if (!cli_cache_path(name, room, CLI_PATH) || access(room, F_OK) != 0) continue;
        *path = last ? *path : room;
        if (!last) return true;
        (void)cli_fail(TN_ERR_IO, "'%s' does not exist; the cache folder has '%s': pass that name", *path, last);
        return false;
    }
    if (last) {
        (void)cli_fail(TN_ERR_IO,
                       "'%s' does not exist; if it is a model on the hub, download it with `trunnion pull %s`", *path,
                       *path);
        return false;
    }
    if (cli_cache_path("models", folder, sizeof folder)) find_similar(folder, *path, similar);
    (void)cli_fail(TN_ERR_IO, "'%s' does not exist, neither here nor in the cache folder '%s'%s%s%s", *path, folder,
                   *similar ? "; did you mean " : "", similar,
                   *similar
                       ? "? `trunnion list` lists all"
                       : "; pass the path of a GGUF file or of a Hugging Face folder, or download one with `trunnion "
                         "pull OWNER/NAME`");
    return false;
}

bool cli_is_folder(const char *path) {
    struct stat facts;
    return stat(path, &facts) == 0 && S_ISDIR(facts.st_mode);
}

/* Not getrusage: its figure begins with what the parent had when it started this program. */
int64_t cli_peak_bytes(void) {
    FILE *f = fopen("/proc/self/status", "r");
    if (!f) return 0;
    char line[256];
    long long kib = 0;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %lld kB", &kib) == 1) break;
    fclose(f);
    return kib * 1024;
}

/* ---- compiling kernels ------------------------------------------------------------------------------------------- */

static const double PATIENCE = 0.5; /* seconds of compiling before it is told */
static double spent, begun;
static bool shown;

/* Called by the one thread that a subcommand works with. */
static void on_load(TN_UNUSED void *ctx, const char *device, int64_t number, bool done) {
    if (done) {
        spent += cli_now() - begun;
        if (shown) fputs("\r\033[K", stderr);
        shown = false;
        return;
    }
    begun = cli_now();
    shown = spent > PATIENCE;
    if (!shown) return;
    fprintf(stderr, "\r%s: compiling kernels: %lld\033[K", device, (long long)number);
    fflush(stderr);
}

void cli_show_compiling(bool show) {
    bool live = show && cli_colour(stderr) && !cli_quiet;
    tn_on_kernel_load(live ? on_load : NULL, NULL);
}
