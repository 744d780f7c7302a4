/* bench.c — `trunnion bench`: how fast this machine does some everyday work, and which part of its limit that is.
 *
 * A work is run until it is warm, then timed twenty times or for some seconds, and the median is shown. Its limit —
 * fused multiply-adds, or reading as many bytes — is measured in the same run. bench/compare.py puts other libraries
 * beside it. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/bench/bench.h"
#include "cli/cli.h"
#include "cli/process.h"

enum { MOST_SAMPLES = 20, LEAST_SAMPLES = 3, WARM_RUNS = 3, STARTS = 7, PROFILED_RUNS = 8 };
static const double SAMPLE_SECONDS = 2e-3, WORK_SECONDS = 1.5, LONG_RUN = 0.3;

static const char help_text[] =
    "works: gemm-f32-256 … download-64m (--list prints them; default: all except gemm-f16-…, …-4096, attention-…,\n"
    "upload-… and download-…, which are for GPUs), and:\n"
    "  start                 a whole `trunnion devices`\n"
    "  size                  bytes of this command\n"
    "  peak-memory-WORK      the most memory of a process that does WORK\n"
    "  quiet                 speed of a thread while all threads compute, divided by that of one thread; near 1\n"
    "                        if nothing else runs\n"
    "A name that ends in * selects all works with that prefix. The limit of a work, if it has one, is the machine's\n"
    "rate of arithmetic or of reading memory.\n"
    "\n"
    "      --list            print the names of the works\n"
    "      --seconds S       time each work for at most S seconds (default 1.5)\n"
    "      --model MODEL     the GGUF file for the works llm-…, or the folder for minilm-… (default: SmolLM2 and\n"
    "                        MiniLM in the cache folder)\n"
    "      --save FOLDER     do not time: write inputs, weights and results of each work to files there\n"
    "      --profile         also show each command: time, fraction of the arithmetic limit, GB/s\n"
    "\n"
    "examples:\n"
    "  trunnion bench add-16 gemm-f32-256\n"
    "  trunnion bench 'policy-*' --json\n"
    "  trunnion bench peak-memory-policy-train-64 start size\n"
    "  trunnion bench policy-train-64 --save .\n";

static int run_bench(int argc, char **argv);

const cli_command cli_bench = {
    .name = "bench",
    .summary = "time everyday work, as a fraction of the machine's limit",
    .usage = "bench [WORK…] [options]",
    .help = help_text,
    .accepts = CLI_ALL & ~CLI_SEED, /* every work has its own seed, so that runs compare */
    .run = run_bench,
};

typedef struct bench_row {
    const char *work, *unit;
    double value, fraction; /* fraction: NAN where there is no limit */
    double best;            /* of the samples; 0: one sample */
    int samples;
    tn_profile *profile; /* NULL: none */
} bench_row;

typedef struct bench {
    cli_options common;
    cli_json json;
    double seconds; /* a work is timed for at most */
    bool profile, list;
    const char *model, *folder;
    double fma, read, read_bytes; /* limits a second; 0: not measured yet */
} bench;

/* ---- showing ----------------------------------------------------------------------------------------------------- */

static void show_value(const bench_row *r, char *text, size_t size) {
    if (strcmp(r->unit, "bytes") == 0)
        snprintf(text, size, "%.2f MB", r->value * 1e-6);
    else if (strcmp(r->unit, "fraction") == 0)
        snprintf(text, size, "%.3f", r->value);
    else if (r->value < 1e-3)
        snprintf(text, size, "%.2f µs", r->value * 1e6);
    else if (r->value < 1)
        snprintf(text, size, "%.2f ms", r->value * 1e3);
    else
        snprintf(text, size, "%.2f s", r->value);
}

/* A command of a profile: in microseconds, of the limit of arithmetic, and what it moves. */
static void show_command(bench *b, const tn_profile_row *r) {
    double once = r->seconds / (double)r->runs, part = b->fma > 0 ? r->flops / r->seconds / b->fma : 0;
    double rate = (double)r->bytes / r->seconds;
    if (b->common.json) {
        cli_json_write(&b->json,
                       "{'command': %s, 'seconds': %g, 'times': %g, 'limit_fraction': %g, 'bytes_per_second': %g}",
                       r->label, once, (double)r->runs / PROFILED_RUNS, part, rate);
        return;
    }
    char limit[32] = "";
    if (part > 0.005) snprintf(limit, sizeof limit, "%.0f %%", 100 * part);
    cli_print(stdout, "%12.1f µs × %-4lld %6s %6.1f GB/s  %-6s %s\n", once * 1e6, (long long)r->runs / PROFILED_RUNS,
              limit, rate * 1e-9, r->kind, r->label);
}

static void show_profile(bench *b, const tn_profile *profile) {
    if (!profile) return;
    if (b->common.json) cli_json_write(&b->json, "'profile': [");
    for (int64_t i = 0; i < tn_profile_count(profile); i++) {
        tn_profile_row r = {.struct_size = sizeof r};
        if (tn_profile_at(profile, i, &r) == TN_OK) show_command(b, &r);
    }
    if (b->common.json) cli_json_write(&b->json, "]");
}

static void show_bench(bench *b, const bench_row *r) {
    if (b->common.json) {
        cli_json_write(
            &b->json, "{'work': %s, 'unit': %s, 'value': %g, 'limit_fraction': %g, 'best': %g, 'samples': %d", r->work,
            r->unit, r->value, r->fraction, r->best > 0 ? r->best : r->value, r->samples > 0 ? r->samples : 1);
        show_profile(b, r->profile);
        cli_json_write(&b->json, "}");
        return;
    }
    char value[32], part[32] = "";
    show_value(r, value, sizeof value);
    if (!isnan(r->fraction)) snprintf(part, sizeof part, "%3.0f %% of the limit", 100 * r->fraction);
    int wide = strstr(value, "µ") != NULL; /* two bytes, one column */
    cli_print(stdout, "%-28s %*s%s%s\n", r->work, 12 + wide, value, part[0] ? "   " : "", part);
    show_profile(b, r->profile);
    fflush(stdout);
}

/* ---- timing ------------------------------------------------------------------------------------------------------ */

/* Seconds of `count` runs. */
static tn_status time_runs(const bench_work *w, void *self, int64_t count, double *seconds) {
    double begun = cli_now();
    for (int64_t i = 0; i < count; i++) {
        TRY(w->run(self));
    }
    tn_status s = tn_device_synchronize(tn_current_device()); /* which may still compute */
    *seconds = cli_now() - begun;
    return s;
}

/* The first run plans, the second may compile; one that is long by itself needs no third. */
static tn_status warm_up(const bench_work *w, void *self, double *once) {
    tn_status s = TN_OK;
    for (int i = 0; i <= WARM_RUNS && s == TN_OK && (i < 2 || *once < LONG_RUN); i++)
        s = time_runs(w, self, 1, once);
    return s;
}

/* Runs so short that a clock would show are timed many at once. */
static tn_status time_work(const bench_work *w, void *self, double most_seconds, bench_row *row) {
    double once = 0, samples[MOST_SAMPLES], spent = 0;
    tn_status s = warm_up(w, self, &once);
    int64_t count = once < SAMPLE_SECONDS ? (int64_t)(SAMPLE_SECONDS / fmax(once, 1e-7)) + 1 : 1;
    int n = 0;
    while (s == TN_OK && n < MOST_SAMPLES && (n < LEAST_SAMPLES || spent < most_seconds)) {
        double seconds = 0;
        s = time_runs(w, self, count, &seconds);
        samples[n++] = seconds / (double)count;
        spent += seconds;
    }
    if (s != TN_OK) return s;
    row->value = bench_median(samples, n);
    row->best = samples[0];
    row->samples = n;
    return TN_OK;
}

/* A few more runs, each command timed: those alike are one row. */
static tn_status profile_work(const bench_work *w, void *self, bench_row *row) {
    double seconds = 0;
    row->profile = tn_profile_begin();
    if (!row->profile) return TN_ERR_MEMORY;
    tn_status s = time_runs(w, self, PROFILED_RUNS, &seconds);
    tn_profile_end(row->profile);
    return s;
}

/* Of the limit that is nearer; probed when a work asks. Reading depends on the bytes: caches hold few of them. */
static double fraction_of_limit(bench *b, const bench_work *w, double seconds) {
    int threads = tn_get_num_threads();
    if (w->flops > 0) b->fma = fmax(b->fma, bench_fma_limit(threads));
    if (w->bytes > 0 && b->read_bytes != w->bytes) b->read = bench_read_limit(threads, w->bytes);
    if (w->bytes > 0) b->read_bytes = w->bytes;
    if (w->flops > 0 && b->fma > 0) return w->flops / seconds / b->fma;
    if (w->bytes > 0 && b->read > 0) return w->bytes * w->passes / seconds / b->read;
    return NAN;
}

static int run_work(bench *b, const bench_work *work) {
    bench_work w = *work;
    bench_row row = {.work = w.name, .unit = "s"};
    void *self = NULL;
    w.model = b->model;
    if (b->folder) return bench_save(&w, b->folder) == TN_OK ? CLI_OK : cli_failed();
    tn_status s = w.begin(&w, &self);
    if (s == TN_OK) s = time_work(&w, self, b->seconds, &row);
    if (s == TN_OK && b->profile) s = profile_work(&w, self, &row);
    w.end(self);
    if (s == TN_OK) row.fraction = fraction_of_limit(b, &w, row.value);
    if (s == TN_OK) show_bench(b, &row);
    tn_profile_free(row.profile);
    return s == TN_OK ? CLI_OK : cli_failed();
}

/* ---- works of a process ------------------------------------------------------------------------------------------ */

/* Runs this command; true if it succeeded. `output` receives the last bytes of what it writes. */
static bool run_self(char *const arguments[], char *output, size_t size, double *seconds) {
    cli_process p = {.output = output, .output_size = size};
    bool good = cli_process_run(arguments, &p) == CLI_PROCESS_EXITED && p.status == CLI_OK;
    *seconds = p.seconds;
    return good;
}

static int cannot(const char *what) {
    return cli_fail(TN_ERR_INTERNAL, "%s could not be measured: cannot run this command in another process", what);
}

static int run_start(bench *b, const char *name) {
    char *const arguments[] = {"trunnion", "devices", NULL};
    char output[4096];
    double samples[STARTS];
    for (int i = 0; i < STARTS; i++)
        if (!run_self(arguments, output, sizeof output, &samples[i])) return cannot(name);
    bench_row row = {name, "s", bench_median(samples, STARTS), NAN, samples[0], STARTS, NULL};
    show_bench(b, &row);
    return CLI_OK;
}

static int run_size(bench *b, const char *name) {
    char path[4096];
    struct stat s;
    if (!cli_own_path(path, sizeof path) || stat(path, &s) != 0) return cannot(name);
    show_bench(b, &(bench_row){name, "bytes", (double)s.st_size, NAN, 0, 1, NULL});
    return CLI_OK;
}

static int run_quiet(bench *b, const char *name) {
    show_bench(b, &(bench_row){name, "fraction", bench_quiet(tn_get_num_threads()), NAN, 0, 1, NULL});
    return CLI_OK;
}

static const char PEAK[] = "peak-memory-", PEAK_KEY[] = "\"peak_bytes\": ";

/* A process's own number: the one that its parent is told counts what the parent had before it, too. */
static int run_peak(bench *b, const char *name) {
    char threads[16], *work = (char *)(uintptr_t)(name + sizeof PEAK - 1), *model = (char *)(uintptr_t)b->model;
    char *numerics = tn_get_numerics() == TN_NUMERICS_FAST ? "fast" : "exact";
    snprintf(threads, sizeof threads, "%d", tn_get_num_threads());
    char *const arguments[] = {"trunnion",
                               "bench",
                               work,
                               "--json",
                               "--threads",
                               threads,
                               "--seconds",
                               "0.5",
                               "--numerics",
                               numerics,
                               model ? "--model" : NULL,
                               model,
                               NULL};
    char output[4096];
    double seconds;
    if (!run_self(arguments, output, sizeof output, &seconds)) return cannot(name);
    const char *at = strstr(output, PEAK_KEY);
    if (!at) return cannot(name);
    show_bench(b, &(bench_row){name, "bytes", strtod(at + sizeof PEAK_KEY - 1, NULL), NAN, 0, 1, NULL});
    return CLI_OK;
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

static bool matches(const char *pattern, const char *name) {
    size_t length = strlen(pattern);
    if (length && pattern[length - 1] == '*') return strncmp(pattern, name, length - 1) == 0;
    return strcmp(pattern, name) == 0;
}

/* Works that are no rows of the tables, by their whole names. */
static const struct {
    const char *name;
    int (*run)(bench *b, const char *name);
} others[] = {{"start", run_start}, {"size", run_size}, {"quiet", run_quiet}};
enum { OTHERS = sizeof others / sizeof others[0] };

static const struct {
    const bench_work *works;
    const int *count;
} tables[] = {{bench_works, &bench_work_count},
              {bench_training_works, &bench_training_work_count},
              {bench_llm_works, &bench_llm_work_count},
              {bench_device_works, &bench_device_work_count}};
enum { TABLES = sizeof tables / sizeof tables[0] };

static const bench_work *work_at(int i) {
    int t = 0;
    while (i >= *tables[t].count)
        i -= *tables[t++].count;
    return &tables[t].works[i];
}

static int work_count(void) {
    int count = 0;
    for (int t = 0; t < TABLES; t++)
        count += *tables[t].count;
    return count;
}

static bool is_peak(const char *name) { return strncmp(name, PEAK, sizeof PEAK - 1) == 0 && !strchr(name, '*'); }

static int count_matches(const char *pattern) {
    int n = 0;
    for (int i = 0; i < OTHERS; i++)
        n += strcmp(pattern, others[i].name) == 0;
    if (is_peak(pattern)) pattern += sizeof PEAK - 1;
    for (int i = 0; i < work_count(); i++)
        n += matches(pattern, work_at(i)->name);
    return n;
}

static int run_named(bench *b, const char *pattern) {
    for (int i = 0; i < OTHERS; i++)
        if (strcmp(pattern, others[i].name) == 0) return others[i].run(b, pattern);
    if (is_peak(pattern)) return run_peak(b, pattern);
    int code = CLI_OK;
    for (int i = 0; i < work_count() && code == CLI_OK; i++)
        if (matches(pattern, work_at(i)->name)) code = run_work(b, work_at(i));
    return code;
}

/* Without the works for GPUs, and the language model's if its file is not there; that is said then. */
static int run_everything(bench *b) {
    static const char *const rest[] = {"peak-memory-policy-train-4096", "peak-memory-transformer-train-8x128",
                                       "peak-memory-cnn-train-32", "start", "size"};
    int code = CLI_OK;
    for (int i = 0; i < bench_work_count + bench_training_work_count && code == CLI_OK; i++)
        code = run_work(b, work_at(i));
    for (size_t i = 0; i < sizeof rest / sizeof rest[0] && code == CLI_OK && !b->folder; i++)
        code = run_named(b, rest[i]);
    for (int i = 0; i < bench_llm_work_count && code == CLI_OK && !b->folder; i++)
        if (run_work(b, &bench_llm_works[i]) != CLI_OK) break;
    return code;
}

static int run_all_bench(bench *b, int count, char **names) {
    int code = CLI_OK;
    for (int i = 0; i < count && code == CLI_OK; i++)
        code = run_named(b, names[i]);
    return count == 0 ? run_everything(b) : code;
}

static int list_works(const bench *b) {
    int count = work_count();
    cli_json j = {.out = stdout};
    if (b->common.json) cli_json_write(&j, "{");
    if (b->common.json) cli_json_write(&j, "'works': [");
    for (int i = 0; i < count + OTHERS; i++) {
        const char *name = i < count ? work_at(i)->name : others[i - count].name;
        if (b->common.json)
            cli_json_write(&j, "%s", name);
        else
            printf("%s\n", name);
    }
    if (b->common.json) cli_json_write(&j, "]");
    if (b->common.json) cli_json_write(&j, "}");
    return CLI_OK;
}

static int unknown_work(const char *name) {
    char known[1024] = "";
    for (int i = 0, n = 0; i < work_count() && n < (int)sizeof known; i++)
        n += snprintf(known + n, sizeof known - (size_t)n, "%s%s", i % 4 ? " " : "\n    ", work_at(i)->name);
    return cli_wrong_usage(&cli_bench, "there is no work \"%s\"; there are start, size, quiet, peak-memory-WORK and%s",
                           name, known);
}

static const cli_option options[] = {
    CLI_REAL("seconds", 0, bench, seconds, 0, 1e6),
    CLI_NAME("model", 0, bench, model),
    CLI_NAME("save", 0, bench, folder),
    CLI_FLAG("profile", 0, bench, profile),
    CLI_FLAG("list", 0, bench, list),
    {0},
};

static int run_bench(int argc, char **argv) {
    bench b = {.json = {.out = stdout}, .seconds = -1};
    int status = CLI_USAGE;
    int at = cli_parse(&cli_bench, argc, argv, &b.common, options, &b, &status);
    if (at < 0) return status;
    if (b.list && at < argc) return cli_wrong_usage(&cli_bench, "--list lists all works; leave the names out");
    if (b.list) return list_works(&b);
    for (int i = at; i < argc; i++)
        if (count_matches(argv[i]) == 0) return unknown_work(argv[i]);
    if (b.folder && (b.profile || b.seconds >= 0))
        return cli_wrong_usage(&cli_bench, "--save does not time, so --%s has no effect; leave one of them out",
                               b.profile ? "profile" : "seconds");
    if (b.seconds < 0) b.seconds = WORK_SECONDS;
    if (b.folder && mkdir(b.folder, 0777) != 0 && errno != EEXIST)
        return cli_fail(TN_ERR_IO, "cannot make the folder '%s': %s", b.folder, strerror(errno));
    tn_device *device = cli_open_device(&b.common, &status);
    if (!device) return status;
    if (b.common.json) {
        cli_json_hold(&b.json);
        cli_json_write(&b.json, "{'rows': [");
    }
    int code = run_all_bench(&b, argc - at, argv + at);
    if (b.common.json) {
        cli_json_write(&b.json, "], 'peak_bytes': %jd", cli_peak_bytes());
        if (code != CLI_OK) cli_json_error(&b.json);
        cli_json_write(&b.json, "}");
        cli_json_release(&b.json);
    }
    tn_device_close(device);
    return code;
}
