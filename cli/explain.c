/* explain.c — `trunnion explain`: what a model's prompt and tokens are made of, and where time and memory go.
 *
 * Runs a piece of prompt and some tokens under a profile and puts beside each command's time what its operands let
 * expect: the bytes that it moves at the memory's speed, or its arithmetic at the processor's, whichever takes longer.
 * Both speeds are found just before, with the library's own plainest work. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "language.h"
#include "trunnion/backend.h"
#include "trunnion/llm.h"
#include "trunnion/ops.h"

enum { OPT_PROMPT = 256, OPT_TOKENS, OPT_CONTEXT };

static int run(int argc, char **argv);

const cli_command cli_explain = {
    .name = "explain",
    .summary = "say what a model's prompt and tokens are made of, and where time and memory go",
    .usage = "explain MODEL [--prompt N] [--tokens N] [-v]",
    .help = "  MODEL                 a GGUF file, or a folder as Hugging Face has them\n"
            "  --prompt N            tokens of the prompt (default 128)\n"
            "  --tokens N            tokens generated behind it (default 32)\n"
            "  --context N           tokens that the model can look back on\n"
            "  -v, --verbose         every command, and the last plan as it runs\n"
            "  --json                device, fallback[], prompt{}, token{}, ops[{phase, kind, label, runs, bytes,\n"
            "                        flops, predicted_seconds, measured_seconds}], predicted_peak_bytes,\n"
            "                        measured_peak_bytes\n"
            "\n"
            "Predicted: bytes or arithmetic of a command at speeds probed just before. Measured: under a profile.\n"
            "\n"
            "examples:\n"
            "  trunnion explain model.gguf\n"
            "  trunnion explain model.gguf --prompt 512 --tokens 1 -v\n",
    .accepts = CLI_JSON | CLI_DEVICE | CLI_THREADS | CLI_VERBOSE,
    .run = run,
};

typedef struct wishes {
    int64_t prompt, tokens, context;
} wishes;

static bool take(void *ctx, int val, const char *arg) {
    wishes *w = ctx;
    int64_t *at = val == OPT_PROMPT ? &w->prompt : val == OPT_TOKENS ? &w->tokens : &w->context;
    return cli_parse_int(arg, 1, INT64_C(1) << 30, at);
}

/* ---- speeds of this machine -------------------------------------------------------------------------------------- */

typedef struct speeds {
    double bytes, f32, blocks; /* a second: read, operations of f32 products, of products with weights in blocks */
} speeds;

enum { PROBES = 4, PROBE_BYTES = 64 << 20, PROBE_SIDE = 1024, PROBE_ROWS = 256 };

/* Evaluates op(x, y) a few times; the shortest in seconds, NAN on failure. */
static double probe(tn_tensor *(*op)(const tn_tensor *x, const tn_tensor *y), const tn_tensor *x, const tn_tensor *y) {
    double best = INFINITY;
    for (int i = 0; i <= PROBES; i++) {
        double begun = cli_now();
        tn_tensor *r = op(x, y);
        tn_status status = tn_eval(&r, 1);
        if (status == TN_OK) status = tn_device_synchronize(tn_current_device());
        tn_free(r);
        if (status != TN_OK) return NAN;
        double passed = cli_now() - begun;
        if (i > 0 && passed < best) best = passed; /* the first one plans */
    }
    return best;
}

static tn_tensor *probe_sum(const tn_tensor *x, const tn_tensor *y) {
    (void)y;
    return tn_sum(x, NULL, 0, false);
}
static tn_tensor *probe_matmul(const tn_tensor *x, const tn_tensor *y) { return tn_matmul(x, y); }
static tn_tensor *probe_linear(const tn_tensor *x, const tn_tensor *y) { return tn_linear(x, y, NULL); }

static tn_status find_speeds(speeds *s) {
    *s = (speeds){.bytes = NAN, .f32 = NAN, .blocks = NAN};
    size_t packed = tn_dtype_bytes(TN_Q4_0, (int64_t)PROBE_SIDE * PROBE_SIDE);
    void *blocks = calloc(1, packed);
    if (!blocks) return tn_backend_fail(TN_ERR_MEMORY, "no memory to probe the speed of products");
    TN_SCOPE {
        int64_t many = PROBE_BYTES / 4, rows[] = {PROBE_ROWS, PROBE_SIDE}, square[] = {PROBE_SIDE, PROBE_SIDE};
        tn_tensor *long_one = tn_full(&many, 1, 1, TN_F32);
        tn_tensor *x = tn_full(rows, 2, 1, TN_F32), *y = tn_full(square, 2, 1, TN_F32);
        tn_tensor *w = tn_from_data(blocks, square, 2, TN_Q4_0);
        tn_tensor *all[] = {long_one, x, y, w};
        if (tn_eval(all, 4) == TN_OK) {
            double operations = 2.0 * PROBE_ROWS * PROBE_SIDE * PROBE_SIDE;
            s->bytes = PROBE_BYTES / probe(probe_sum, long_one, NULL);
            s->f32 = operations / probe(probe_matmul, x, y);
            s->blocks = operations / probe(probe_linear, x, w);
        }
    }
    free(blocks);
    return isnan(s->bytes) || isnan(s->f32) || isnan(s->blocks) ? TN_ERR_DEVICE : TN_OK;
}

static double predict(const speeds *s, const tn_profile_row *row) {
    bool blocks = strstr(row->label, "quantized") != NULL, product = strcmp(row->kind, "native") == 0;
    double moving = (double)row->bytes / s->bytes, computing = row->flops / (blocks ? s->blocks : s->f32);
    return product && computing > moving ? computing : moving;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* One of the two things a model does: taking in a prompt, giving tokens. */
typedef struct phase {
    const char *name;
    int64_t tokens;
    double profiled;     /* seconds of the run that was profiled */
    double seconds;      /* of all tokens, by the clock, without a profile */
    int64_t plan_misses; /* meanwhile */
    tn_profile *profile;
    char *plan; /* the last plan in words */
} phase;

static void make_ids(int32_t *ids, int64_t count, int64_t vocabulary) {
    for (int64_t i = 0; i < count; i++)
        ids[i] = (int32_t)(i * 7919 % vocabulary);
}

static tn_status run_prompt(tn_llm *m, const int32_t *ids, int64_t prompt, int64_t tokens) {
    (void)tokens;
    const float *logits;
    tn_status status = tn_llm_rewind(m, 0);
    return status == TN_OK ? tn_llm_prompt(m, ids, prompt, &logits) : status;
}

static tn_status run_tokens(tn_llm *m, const int32_t *ids, int64_t prompt, int64_t tokens) {
    const float *logits;
    tn_status status = tn_llm_rewind(m, prompt);
    for (int64_t i = 0; i < tokens && status == TN_OK; i++)
        status = tn_llm_step(m, ids[prompt + i], &logits);
    return status;
}

static int64_t plan_misses(void) {
    tn_runtime_stats stats = {.struct_size = sizeof stats};
    return tn_get_runtime_stats(&stats) == TN_OK ? stats.plan_misses : 0;
}

/* Three times the same: to plan and pack, by the clock, under the profile. */
static tn_status run_phase(phase *p, tn_llm *m, const int32_t *ids, int64_t prompt, int64_t tokens,
                           tn_status (*work)(tn_llm *m, const int32_t *ids, int64_t prompt, int64_t tokens)) {
    tn_status status = work(m, ids, prompt, tokens);
    if (status != TN_OK) return status;
    p->plan = tn_explain_last();
    int64_t misses = plan_misses();
    double begun = cli_now();
    status = work(m, ids, prompt, tokens);
    p->seconds = cli_now() - begun;
    p->plan_misses = plan_misses() - misses;
    if (status != TN_OK) return status;
    p->profile = tn_profile_begin();
    if (!p->profile) return TN_ERR_MEMORY;
    begun = cli_now();
    status = work(m, ids, prompt, tokens);
    p->profiled = cli_now() - begun;
    tn_profile_end(p->profile);
    return status;
}

static tn_status run_model(const cli_language *l, const wishes *w, const tn_llm_facts *f, phase phases[2]) {
    if (w->prompt + w->tokens > f->context)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "%lld tokens of prompt and %lld behind it exceed the context of %lld; --context N makes "
                               "it longer, up to %lld",
                               (long long)w->prompt, (long long)w->tokens, (long long)f->context,
                               (long long)f->trained_context);
    int32_t *ids = malloc((size_t)(w->prompt + w->tokens) * sizeof *ids);
    if (!ids) return tn_backend_fail(TN_ERR_MEMORY, "no memory for %lld tokens", (long long)(w->prompt + w->tokens));
    make_ids(ids, w->prompt + w->tokens, f->vocabulary);
    phases[0] = (phase){.name = "prompt", .tokens = w->prompt};
    phases[1] = (phase){.name = "token", .tokens = w->tokens};
    tn_status status = run_phase(&phases[0], l->model, ids, w->prompt, w->tokens, run_prompt);
    if (status == TN_OK) status = run_phase(&phases[1], l->model, ids, w->prompt, w->tokens, run_tokens);
    free(ids);
    return status;
}

/* ---- the answer -------------------------------------------------------------------------------------------------- */

typedef struct report {
    tn_llm_facts facts;
    tn_device *where;
    const tn_selection *selection;
    tn_device_info device;
    tn_memory_estimate predicted;
    int64_t peak_bytes;
    speeds speeds;
    phase phases[2];
} report;

typedef struct sums {
    double measured, predicted;
    int64_t commands;
} sums;

static tn_profile_row row_at(const phase *p, int64_t i) {
    tn_profile_row row = {.struct_size = sizeof row};
    (void)tn_profile_at(p->profile, i, &row);
    return row;
}

static sums sum_up(const phase *p, const speeds *s) {
    sums all = {0};
    for (int64_t i = 0; i < tn_profile_count(p->profile); i++) {
        tn_profile_row row = row_at(p, i);
        all.measured += row.seconds;
        all.predicted += predict(s, &row);
        all.commands += row.runs;
    }
    return all;
}

/* Time outside all commands, as a share of the profiled run: it includes reading the clock around each. */
static double host_share(const phase *p, const sums *all) {
    double outside = p->profiled - all->measured;
    return outside > 0 ? outside / p->profiled : 0;
}

static int slower_first(const void *a, const void *b) {
    double x = ((const tn_profile_row *)a)->seconds, y = ((const tn_profile_row *)b)->seconds;
    return (x < y) - (x > y);
}

/* The n rows of a phase, those that took longest first; NULL when memory is out. */
static tn_profile_row *sorted_rows(const phase *p, int64_t n) {
    tn_profile_row *rows = malloc((size_t)(n + 1) * sizeof *rows);
    for (int64_t i = 0; rows && i < n; i++)
        rows[i] = row_at(p, i);
    if (rows) qsort(rows, (size_t)n, sizeof *rows, slower_first);
    return rows;
}

static void put_rows(const phase *p, const speeds *s, bool all) {
    enum { SHOWN = 12 };
    int64_t n = tn_profile_count(p->profile);
    tn_profile_row *rows = sorted_rows(p, n);
    if (!rows) return;
    printf("  %9s %9s %6s %9s  %s\n", "measured", "predicted", "runs", "MB", "command");
    for (int64_t i = 0; i < n && (all || i < SHOWN); i++)
        printf("  %6.3f ms %6.3f ms %6lld %9.2f  %s %s\n", 1e3 * rows[i].seconds, 1e3 * predict(s, &rows[i]),
               (long long)rows[i].runs, 1e-6 * (double)rows[i].bytes, rows[i].kind, rows[i].label);
    if (!all && n > SHOWN) cli_print(stdout, "  … and %lld more (-v shows them)\n", (long long)(n - SHOWN));
    free(rows);
}

/* The plan's first two lines: what was planned where, and what it takes; all of it with -v. */
static void put_plan(const char *plan, bool all) {
    for (int line = 0; *plan && (all || line < 2); line++) {
        int length = (int)strcspn(plan, "\n");
        printf("  %.*s\n", length, plan);
        plan += length + (plan[length] == '\n');
    }
}

static void put_phase(const phase *p, const speeds *s, bool verbose) {
    sums all = sum_up(p, s);
    printf("\n%s: %lld token%s in %.2f ms (%.0f tokens/s), %lld commands\n", p->name, (long long)p->tokens,
           p->tokens == 1 ? "" : "s", 1e3 * p->seconds, (double)p->tokens / p->seconds, (long long)all.commands);
    printf("  commands %.2f ms, predicted %.2f ms; the host's share %.1f %%\n", 1e3 * all.measured, 1e3 * all.predicted,
           100 * host_share(p, &all));
    if (p->plan) put_plan(p->plan, verbose);
    put_rows(p, s, verbose);
}

static void put_phase_json(cli_json *j, const phase *p, const speeds *s) {
    sums all = sum_up(p, s);
    cli_json_object(j, p->name);
    cli_json_int(j, "tokens", p->tokens);
    cli_json_number(j, "seconds", p->seconds);
    cli_json_int(j, "commands", all.commands);
    cli_json_int(j, "plan_misses", p->plan_misses);
    cli_json_number(j, "measured_seconds", all.measured);
    cli_json_number(j, "predicted_seconds", all.predicted);
    cli_json_number(j, "host_share", host_share(p, &all));
    cli_json_end(j, '}');
}

static void put_ops_json(cli_json *j, const phase *p, const speeds *s) {
    for (int64_t i = 0; i < tn_profile_count(p->profile); i++) {
        tn_profile_row row = row_at(p, i);
        cli_json_object(j, NULL);
        cli_json_string(j, "phase", p->name);
        cli_json_string(j, "kind", row.kind);
        cli_json_string(j, "label", row.label);
        cli_json_int(j, "runs", row.runs);
        cli_json_int(j, "bytes", row.bytes);
        cli_json_number(j, "flops", row.flops);
        cli_json_number(j, "predicted_seconds", predict(s, &row));
        cli_json_number(j, "measured_seconds", row.seconds);
        cli_json_end(j, '}');
    }
}

static void put_json(const report *r) {
    cli_json j = {.out = stdout};
    cli_json_object(&j, NULL);
    cli_json_string(&j, "device", r->device.id);
    cli_json_fallback(&j, r->selection, r->where);
    cli_json_string(&j, "architecture", r->facts.architecture);
    cli_json_int(&j, "layers", r->facts.layers);
    cli_json_int(&j, "context", r->facts.context);
    for (int i = 0; i < 2; i++)
        put_phase_json(&j, &r->phases[i], &r->speeds);
    cli_json_array(&j, "ops");
    for (int i = 0; i < 2; i++)
        put_ops_json(&j, &r->phases[i], &r->speeds);
    cli_json_end(&j, ']');
    cli_json_int(&j, "predicted_peak_bytes", r->predicted.total_bytes);
    cli_json_int(&j, "measured_peak_bytes", r->peak_bytes);
    cli_json_end(&j, '}');
}

/* What the device left to the host. */
static void put_host(const report *r) {
    tn_host_use use = {.struct_size = sizeof use};
    int count = tn_device_host_count(r->where);
    for (int i = 0; i < count && tn_device_host_at(r->where, i, &use) == TN_OK; i++)
        cli_print(stdout, "  on the cpu: %lld × %s, since %s %s (%s)\n", (long long)use.operations, use.op,
                  r->device.id, use.reason, use.code);
}

static void put_text(const report *r, bool verbose) {
    const tn_llm_facts *f = &r->facts;
    const tn_memory_estimate *m = &r->predicted;
    printf("%s, %s: %lld layers, %.4g million weights in %s; %s on %s\n", f->name, f->architecture,
           (long long)f->layers, 1e-6 * (double)f->parameters, f->quantisation,
           tn_device_host_count(r->where) ? "most runs" : "everything runs", r->device.id);
    put_host(r);
    printf(
        "memory: %.1f MB predicted (weights %.1f, cache %.1f, activations %.1f, runtime %.1f), %.1f MB at the peak\n",
        1e-6 * (double)m->total_bytes, 1e-6 * (double)m->weights_bytes, 1e-6 * (double)m->cache_bytes,
        1e-6 * (double)m->activation_bytes, 1e-6 * (double)m->runtime_bytes, 1e-6 * (double)r->peak_bytes);
    printf("speeds probed: %.1f GB/s read, %.0f GFLOP/s in f32 products, %.0f GOP/s in products with blocks\n",
           1e-9 * r->speeds.bytes, 1e-9 * r->speeds.f32, 1e-9 * r->speeds.blocks);
    for (int i = 0; i < 2; i++)
        put_phase(&r->phases[i], &r->speeds, verbose);
}

static tn_status explain(const cli_language *l, const wishes *w, report *r) {
    r->where = l->device;
    r->selection = &l->selection;
    tn_status status = tn_llm_get_facts(l->model, &r->facts);
    if (status == TN_OK) status = tn_device_get_info(l->device, &r->device);
    if (status == TN_OK) status = cli_language_estimate(l, r->facts.context, &r->predicted);
    if (status == TN_OK) status = run_model(l, w, &r->facts, r->phases);
    r->peak_bytes = cli_peak_bytes(); /* before the probes take memory of their own */
    return status == TN_OK ? find_speeds(&r->speeds) : status;
}

static int run(int argc, char **argv) {
    static const struct option own[] = {
        {"prompt", required_argument, NULL, OPT_PROMPT},
        {"tokens", required_argument, NULL, OPT_TOKENS},
        {"context", required_argument, NULL, OPT_CONTEXT},
        {0},
    };
    wishes w = {.prompt = 128, .tokens = 32};
    cli_options o;
    int status, first = cli_parse(&cli_explain, argc, argv, &o, own, NULL, take, &w, &status);
    if (first < 0) return status;
    if (argc - first != 1) return cli_wrong_usage(&cli_explain, "which model? Give one GGUF file");

    cli_language l;
    report r = {.facts.struct_size = sizeof r.facts,
                .device.struct_size = sizeof r.device,
                .predicted.struct_size = sizeof r.predicted};
    tn_llm_options options = {.struct_size = sizeof options, .context = w.context};
    bool opened = cli_language_open(&l, &o, argv[first], &options, false);
    bool good = opened && explain(&l, &w, &r) == TN_OK;
    if (good && o.json) put_json(&r);
    if (good && !o.json) put_text(&r, o.verbose);
    int code = !opened ? l.code : good ? CLI_OK : cli_failed();
    for (int i = 0; i < 2; i++) {
        tn_profile_free(r.phases[i].profile);
        tn_text_free(r.phases[i].plan);
    }
    cli_language_close(&l);
    return code;
}
