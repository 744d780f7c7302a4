/* tune.c — `trunnion tune`: measures in which way products of matrices are computed fastest here, and keeps that.
 *
 * A work is planned with measuring at first use turned on; what the library adds to its record is what is shown. What
 * begins on a device cannot be forked, so for a device this command starts itself anew, once a work and with a time
 * limit: a driver that hangs or dies there costs one entry. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench/bench.h"
#include "cli/cli.h"
#include "cli/process.h"

static int run_tune(int argc, char **argv);

const cli_command cli_tune = {
    .name = "tune",
    .summary = "measure the fastest way to compute products, and keep it",
    .usage = "tune [MxNxK | WORK]... [--device NAME] [--library auto] [--threads N]",
    .help =
        "  MxNxK                 a product of matrices in f32 of this size, as in 512x512x512\n"
        "  WORK                  a work of `trunnion bench`, as in policy-train-64\n"
        "  --device NAME         tune the tiles of products on this device, as in cuda:0 (default cpu)\n"
        "  --json                tuned (new entries), speedup (their mean), entries[{key, way, seconds, rule_seconds,\n"
        "                        date}] (all)\n"
        "\n"
        "An entry holds for a class of sizes and is named after the largest: 1000x64x300 is shown as 1024x64x320.\n"
        "\n"
        "Without names it measures some usual sizes. Entries in the cache are not measured again. The cache is\n"
        "tune.json in the cache folder, or the file that TRUNNION_TUNE_CACHE names; delete it to start again.\n"
        "TRUNNION_TUNE=1 measures at the first use in any command, TRUNNION_TUNE=0 ignores the cache and uses rules.\n"
        "Tuning does not change the bits of results, except with --library auto: libraries round differently. A "
        "device\n"
        "is measured in a separate process, for at most ten minutes per work; with TRUNNION_TUNE=1 in the process "
        "that\n"
        "computes.\n"
        "\n"
        "examples:\n"
        "  trunnion tune 512x512x512 policy-train-64\n"
        "  trunnion tune 1000x64x300 --threads 1 --json\n"
        "  trunnion tune --device cuda:0 1024x1024x1024\n",
    .accepts = CLI_JSON | CLI_DEVICE | CLI_THREADS,
    .run = run_tune,
};

/* ---- works ------------------------------------------------------------------------------------------------------- */

static tn_status tune_product(const int64_t size[3]) {
    TN_SCOPE;
    tn_tensor *a = tn_rand(TN_DIMS(size[0], size[2])), *b = tn_rand(TN_DIMS(size[2], size[1]));
    tn_status s = tn_eval((tn_tensor *[]){a, b}, 2);
    tn_tensor *kept = tn_matmul(a, b), *fresh = tn_matmul(a, tn_mul_scalar(b, 2));
    if (s == TN_OK) s = tn_eval(&kept, 1);
    if (s == TN_OK) s = tn_eval(&fresh, 1);
    return s;
}

static tn_status tune_work(const bench_work *work) {
    bench_work w = *work;
    void *self = NULL;
    tn_status s = w.begin(&w, &self);
    for (int i = 0; i < 2 && s == TN_OK; i++)
        s = w.run(self);
    w.end(self);
    return s;
}

static const bench_work *find_work(const char *name) {
    for (int i = 0; i < bench_work_count; i++)
        if (strcmp(bench_works[i].name, name) == 0) return &bench_works[i];
    return NULL;
}

static bool read_size(const char *text, int64_t size[3]) {
    char *end = NULL;
    for (int i = 0; i < 3; i++) {
        size[i] = strtoll(text, &end, 10);
        if (end == text || size[i] < 1 || size[i] > 65536 || *end != (i < 2 ? 'x' : 0)) return false;
        text = end + 1;
    }
    return true;
}

static int tune_one(const char *name) {
    int64_t size[3];
    const bench_work *work = find_work(name);
    if (!work && !read_size(name, size))
        return cli_wrong_usage(&cli_tune, "\"%s\" is neither MxNxK nor a work of `trunnion bench`", name);
    return (work ? tune_work(work) : tune_product(size)) == TN_OK ? CLI_OK : cli_failed();
}

/* ---- in a process of its own ------------------------------------------------------------------------------------- */

enum { SECONDS = 600 };
static const char HERE[] = "TRUNNION_TUNE_HERE"; /* set for the process that measures */

/* `trunnion tune WORK` for the device, by another process; it says itself what failed. */
static int tune_apart(const char *name, const cli_options *o) {
    char memory[32],
        *arguments[12] = {"trunnion", "tune", (char *)(uintptr_t)name, "--device", (char *)(uintptr_t)o->device,
                          "--json"};
    int count = 6;
    if (o->library) {
        arguments[count++] = "--library";
        arguments[count++] = (char *)(uintptr_t)o->library;
    }
    if (o->memory) {
        snprintf(memory, sizeof memory, "%lld", (long long)o->memory);
        arguments[count++] = "--mem";
        arguments[count++] = memory;
    }
    int64_t size[3];
    if (!find_work(name) && !read_size(name, size)) return tune_one(name);
    if (setenv(HERE, "1", 1)) return cli_fail(TN_ERR_MEMORY, "no memory for an environment variable");
    cli_process p = {.limit = SECONDS};
    cli_process_end end = cli_process_run(arguments, &p);
    unsetenv(HERE);
    if (end == CLI_PROCESS_NOT_STARTED)
        return cli_fail(TN_ERR_INTERNAL, "cannot start this program again: %s", strerror(p.error));
    if (end == CLI_PROCESS_EXITED) return p.status;
    fprintf(stderr, "trunnion tune: %s on %s %s; the rules are used for it\n", name, o->device,
            end == CLI_PROCESS_CRASHED ? "crashed" : "took more than ten minutes");
    return CLI_OK;
}

/* ---- showing ----------------------------------------------------------------------------------------------------- */

/* The mean of what entries from `first` on gained over the rules. */
static double speedup_from(int first) {
    double logs = 0;
    int n = 0;
    tn_tuned e = {.struct_size = sizeof e};
    for (int i = first; tn_tuned_at(i, &e) == TN_OK; i++)
        if (e.seconds > 0) logs += log(e.rule_seconds / e.seconds), n++;
    return n ? exp(logs / n) : 1;
}

static void show_json(int first) {
    cli_json j = {.out = stdout};
    tn_tuned e = {.struct_size = sizeof e};
    cli_json_write(&j, "{'tuned': %d, 'speedup': %g, 'entries': [", tn_tuned_count() - first, speedup_from(first));
    for (int i = 0; tn_tuned_at(i, &e) == TN_OK; i++) {
        cli_json_write(&j, "{'key': %s, 'way': %s, 'seconds': %g, 'rule_seconds': %g, 'date': %s}", e.key, e.way,
                       e.seconds, e.rule_seconds, e.date);
    }
    cli_json_write(&j, "]}");
}

static void show_tune(int first) {
    tn_tuned e = {.struct_size = sizeof e};
    for (int i = first; tn_tuned_at(i, &e) == TN_OK; i++) {
        if (e.seconds == 0) {
            cli_print(stdout, "%-64s not measured: by rule\n", e.key);
            continue;
        }
        double gain = 100 * (e.rule_seconds / e.seconds - 1);
        cli_print(stdout, "%-64s %10.1f µs  %s", e.key, e.seconds * 1e6, e.way);
        if (gain > 0) cli_print(stdout, ", %.0f %% faster than by rule", gain);
        cli_print(stdout, "\n");
    }
    int fresh = tn_tuned_count() - first;
    if (fresh > 0)
        cli_print(stdout, "%d measured, %d known before; the new ones are %.2f times as fast as by rule\n", fresh,
                  first, speedup_from(first));
    else
        cli_print(stdout, "nothing new to measure: %d known before\n", first);
}

/* Every work, the usual ones if none is named; `o` when each is to be another process's. */
static int tune_all(const cli_options *o, char **names, int count) {
    static const char *const usual[] = {"256x256x256", "512x512x512", "1024x1024x1024", "64x512x512",
                                        "policy-train-64"};
    int code = CLI_OK, all = count ? count : (int)(sizeof usual / sizeof usual[0]);
    for (int i = 0; i < all && code == CLI_OK; i++) {
        const char *name = count ? names[i] : usual[i];
        code = o ? tune_apart(name, o) : tune_one(name);
    }
    return code;
}

static int run_tune(int argc, char **argv) {
    cli_options o;
    int status, first = cli_parse(&cli_tune, argc, argv, &o, NULL, NULL, &status);
    if (first < 0) return status;
    bool apart = strcmp(o.device, "auto") != 0 && strcmp(o.device, "cpu") != 0 && !getenv(HERE);
    if (apart && (o.threads || o.numerics))
        return cli_wrong_usage(&cli_tune, "--%s applies only to the CPU; it has no effect on %s",
                               o.threads ? "threads" : "numerics", o.device);
    if (apart) {
        int before = tn_tuned_count(), done = tune_all(&o, argv + first, argc - first);
        if (done == CLI_OK && tn_set_tuning(TN_TUNING_USE) != TN_OK) done = cli_failed(); /* reads the record anew */
        if (done == CLI_OK && o.json) show_json(before);
        if (done == CLI_OK && !o.json) show_tune(before);
        return done;
    }
    if (strcmp(o.device, "auto") == 0) o.device = "cpu";
    o.strict = true;
    tn_device *device = cli_open_device(&o, &status);
    if (!device) return status;
    int before = tn_tuned_count(), code = CLI_OK;
    if (tn_set_tuning(TN_TUNING_FIRST_USE) != TN_OK) code = cli_failed();
    if (code == CLI_OK) code = tune_all(NULL, argv + first, argc - first);
    if (code == CLI_OK && o.json) show_json(before);
    if (code == CLI_OK && !o.json) show_tune(before);
    tn_device_close(device);
    return code;
}
