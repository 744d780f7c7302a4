/* explain_phase.c — work of a model under a profile, and beside each command's time what its operands let expect: the
 * bytes that it moves at the memory's speed, or its arithmetic at the processor's, whichever takes longer. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/device/explain.h"
#include "trunnion/backend.h"
#include "trunnion/ops.h"

/* ---- speeds of this machine -------------------------------------------------------------------------------------- */

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

static tn_tensor *probe_sum(const tn_tensor *x, TN_UNUSED const tn_tensor *y) { return tn_sum(x, NULL, 0, false); }
static tn_tensor *probe_matmul(const tn_tensor *x, const tn_tensor *y) { return tn_matmul(x, y); }
static tn_tensor *probe_linear(const tn_tensor *x, const tn_tensor *y) { return tn_linear(x, y, NULL); }

tn_status explain_find_speeds(explain_speeds *s) {
    *s = (explain_speeds){.bytes = NAN, .f32 = NAN, .blocks = NAN};
    size_t packed = tn_dtype_bytes(TN_Q4_0, (int64_t)PROBE_SIDE * PROBE_SIDE);
    void *blocks = calloc(1, packed);
    if (!blocks) return tn_backend_fail(TN_ERR_MEMORY, "out of memory for measuring matrix products");
    {
        TN_SCOPE;
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

static double predict(const explain_speeds *s, const tn_profile_row *row) {
    bool blocks = strstr(row->label, "quantized") != NULL, product = strcmp(row->kind, "native") == 0;
    double moving = (double)row->bytes / s->bytes, computing = row->flops / (blocks ? s->blocks : s->f32);
    return product && computing > moving ? computing : moving;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static int64_t plan_misses(void) {
    tn_runtime_stats stats = {.struct_size = sizeof stats};
    return tn_get_runtime_stats(&stats) == TN_OK ? stats.plan_misses : 0;
}

tn_status explain_measure(explain_phase *p, tn_status (*work)(void *ctx), void *ctx) {
    TRY(work(ctx));
    p->plan = tn_explain_last();
    int64_t misses = plan_misses();
    double begun = cli_now();
    tn_status status = work(ctx);
    p->seconds = cli_now() - begun;
    p->plan_misses = plan_misses() - misses;
    if (status != TN_OK) return status;
    p->profile = tn_profile_begin();
    if (!p->profile) return TN_ERR_MEMORY;
    begun = cli_now();
    status = work(ctx);
    p->profiled = cli_now() - begun;
    tn_profile_end(p->profile);
    return status;
}

void explain_phase_free(explain_phase *p) {
    tn_profile_free(p->profile);
    tn_text_free(p->plan);
}

/* ---- the answer -------------------------------------------------------------------------------------------------- */

void explain_put_speeds(const explain_speeds *s, bool blocks) {
    printf("measured speeds: %.1f GB/s read, %.0f GFLOP/s in f32 products", 1e-9 * s->bytes, 1e-9 * s->f32);
    if (blocks) printf(", %.0f GOP/s in block-quantized products", 1e-9 * s->blocks);
    printf("\n");
}

typedef struct sums {
    double measured, predicted;
    int64_t commands;
} sums;

static tn_profile_row row_at(const explain_phase *p, int64_t i) {
    tn_profile_row row = {.struct_size = sizeof row};
    (void)tn_profile_at(p->profile, i, &row);
    return row;
}

static sums sum_up(const explain_phase *p, const explain_speeds *s) {
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
static double host_share(const explain_phase *p, const sums *all) {
    double outside = p->profiled - all->measured;
    return outside > 0 ? outside / p->profiled : 0;
}

static int slower_first(const void *a, const void *b) {
    double x = ((const tn_profile_row *)a)->seconds, y = ((const tn_profile_row *)b)->seconds;
    return (x < y) - (x > y);
}

/* The n rows of a phase, those that took longest first; NULL when memory is out. */
static tn_profile_row *sorted_rows(const explain_phase *p, int64_t n) {
    tn_profile_row *rows = malloc((size_t)(n + 1) * sizeof *rows);
    for (int64_t i = 0; rows && i < n; i++)
        rows[i] = row_at(p, i);
    if (rows) qsort(rows, (size_t)n, sizeof *rows, slower_first);
    return rows;
}

static void put_rows(const explain_phase *p, const explain_speeds *s, bool all) {
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

void explain_put_phase(const explain_phase *p, const explain_speeds *s, bool verbose) {
    sums all = sum_up(p, s);
    printf("\n%s: %lld %s%s in %.2f ms (%.0f %ss/s), %lld commands\n", p->name, (long long)p->count, p->unit,
           p->count == 1 ? "" : "s", 1e3 * p->seconds, (double)p->count / p->seconds, p->unit, (long long)all.commands);
    printf("  commands %.2f ms, predicted %.2f ms; host share %.1f %%\n", 1e3 * all.measured, 1e3 * all.predicted,
           100 * host_share(p, &all));
    if (p->plan) put_plan(p->plan, verbose);
    put_rows(p, s, verbose);
}

void explain_put_phase_json(cli_json *j, const explain_phase *p, const explain_speeds *s) {
    sums all = sum_up(p, s);
    cli_json_write(j, "%s: {", p->name);
    char many[16];
    snprintf(many, sizeof many, "%ss", p->unit);
    cli_json_write(j,
                   "%s: %jd, 'seconds': %g, 'commands': %jd, 'plan_misses': %jd, 'measured_seconds': %g, "
                   "'predicted_seconds': %g, 'host_share': %g}",
                   many, p->count, p->seconds, all.commands, p->plan_misses, all.measured, all.predicted,
                   host_share(p, &all));
}

void explain_put_ops_json(cli_json *j, const explain_phase *p, const explain_speeds *s) {
    for (int64_t i = 0; i < tn_profile_count(p->profile); i++) {
        tn_profile_row row = row_at(p, i);
        cli_json_write(j,
                       "{'phase': %s, 'kind': %s, 'label': %s, 'runs': %jd, 'bytes': %jd, 'flops': %g, "
                       "'predicted_seconds': %g, 'measured_seconds': %g}",
                       p->name, row.kind, row.label, row.runs, row.bytes, row.flops, predict(s, &row), row.seconds);
    }
}

void explain_put_host(tn_device *where, const char *id) {
    tn_host_use use = {.struct_size = sizeof use};
    int count = tn_device_host_count(where);
    for (int i = 0; i < count && tn_device_host_at(where, i, &use) == TN_OK; i++)
        cli_print(stdout, "  on the cpu: %lld × %s, because %s %s (%s)\n", (long long)use.operations, use.op, id,
                  use.reason, use.code);
}
