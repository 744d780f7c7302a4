/* cli_certify.c — `trunnion certify`: is a device of this machine right? The library's suite (certify.h), shown. */
#include <string.h>

#include "cli/cli.h"
#include "cli/device/conform.h"
#include "trunnion/trunnion.h"

static const char help_text[] =
    "Checks the device's driver (memory, copies, order, threads, errors). Then runs every operation, forward and\n"
    "backward, on the device and compares the results with its definition in double precision.\n"
    "Operations that fail are recorded in the cache folder and run on the CPU from then on. Cases that the device\n"
    "does not support (dtypes, sizes, kernels that its compiler rejects) are skipped.\n"
    "\n"
    "options:\n"
    "  --only NAME[,NAME…]   only these operations (the header trunnion/ops.h declares them), without the driver "
    "checks\n"
    "  --sample N            about one case in N, a whole number from 1 (1: all)\n"
    "  --strict              count skipped cases as failures: no operation may run on another device\n"
    "  -v, --verbose         a line for every operation, and why cases are skipped\n"
    "  --json                device, driver{}, ops{name: {forward_passed, forward_failed, …, why}}, passed,\n"
    "                        failed, skipped\n"
    "\n"
    "examples:\n"
    "  trunnion certify --sample 20\n"
    "  trunnion certify --device cpu --only matmul,softmax\n"
    "  trunnion certify --device cpu --only silu --json\n";

static int run_certify(int argc, char **argv);

const cli_command cli_certify = {
    .name = "certify",
    .summary = "test every operation on a device of this machine",
    .usage = "certify [--device NAME] [options]",
    .help = help_text,
    .accepts = CLI_ALL,
    .run = run_certify,
};

typedef struct certify_run {
    cli_options common;
    tn_certify_options o;
    cli_progress progress;
    cli_json json;
    bool all;      /* --strict */
    char why[400]; /* why the first case was skipped; "" */
} certify_run;

static void put_json_certify(cli_json *j, const tn_certify_op *op) {
    cli_json_write(j,
                   "%s: {'forward_passed': %jd, 'forward_failed': %jd, 'backward_passed': %jd, 'backward_failed': %jd, "
                   "'skipped': %jd, 'why': %s}",
                   op->name, op->forward_passed, op->forward_failed, op->backward_passed, op->backward_failed,
                   op->skipped, op->why);
}

static void on_found(void *ctx, const tn_certify_op *op, int done, int total) {
    certify_run *r = ctx;
    bool failed = op->forward_failed || op->backward_failed;
    r->progress.total = total;
    cli_progress_update(&r->progress, done, op->name);
    if (op->skipped && !failed && !r->why[0]) snprintf(r->why, sizeof r->why, "%s: %s", op->name, op->why);
    if (r->common.json) {
        put_json_certify(&r->json, op);
    } else if (failed || (op->skipped && r->common.verbose)) {
        cli_print(stdout, "%s %-24s %s\n", failed ? "✗" : "–", op->name, op->why);
    } else if (r->common.verbose) {
        cli_print(stdout, "✓ %-24s %lld forward, %lld backward\n", op->name, (long long)op->forward_passed,
                  (long long)op->backward_passed);
    }
}

/* The driver's promises; each that is broken is a line. */
static int certify_driver(certify_run *r, const tn_device_info *info) {
    const tn_driver *driver = tn_backend_driver(info->backend);
    if (!driver || r->o.only) return 0;
    conform_result found = conform_driver(driver, info->index, NULL, r->common.json ? stderr : stdout);
    if (r->common.json) {
        cli_json_write(&r->json, "'driver': {'promises': %d, 'not_offered': %d, 'broken': %d}", found.promises,
                       found.skipped, found.broken);
    }
    return found.broken;
}

static void put_counts(const certify_run *r, const tn_device_info *info, const tn_certify_counts *counts) {
    if (r->why[0] && !r->common.verbose) cli_print(stdout, "– skipped, for example (all with -v): %s\n", r->why);
    printf("%s (%s): %lld passed, %lld failed, %lld skipped\n", info->id, info->name, (long long)counts->passed,
           (long long)counts->failed, (long long)counts->skipped);
}

static int certify_on(certify_run *r, tn_device *device) {
    tn_certify_counts counts = {.struct_size = sizeof counts};
    tn_device_info info = {.struct_size = sizeof info};
    if (tn_device_get_info(device, &info) != TN_OK) return cli_failed();
    if (r->common.json) {
        cli_json_hold(&r->json);
        cli_json_write(&r->json, "{'device': %s", info.id);
    }
    int broken = certify_driver(r, &info);
    if (r->common.json) cli_json_write(&r->json, "'ops': {");
    cli_progress_begin(&r->progress, "certify", "operations", 0);
    tn_status status = tn_certify(device, &r->o, &counts);
    cli_progress_end(&r->progress);
    int code = status == TN_OK ? CLI_OK : cli_failed();
    if (r->common.json) {
        cli_json_write(&r->json, "}, 'passed': %jd, 'failed': %jd, 'skipped': %jd", counts.passed, counts.failed,
                       counts.skipped);
        if (code != CLI_OK) cli_json_error(&r->json);
        cli_json_write(&r->json, "}");
        cli_json_release(&r->json);
    }
    if (status != TN_OK) return status == TN_ERR_ARGUMENT ? CLI_USAGE : code; /* a name that no operation has */
    if (!r->common.json) put_counts(r, &info, &counts);
    return counts.failed || broken || (r->all && counts.skipped) ? CLI_FAILED : CLI_OK;
}

static const cli_option own_options[] = {
    CLI_NAME("only", 0, certify_run, o.only),
    CLI_INT("sample", 0, certify_run, o.every, 1, INT64_C(1) << 40),
    {0},
};

static int run_certify(int argc, char **argv) {
    certify_run r = {.o = TN_CERTIFY_DEFAULTS};
    r.o.found = on_found;
    int status = CLI_USAGE;
    int at = cli_parse(&cli_certify, argc, argv, &r.common, own_options, &r, &status);
    if (at < 0) return status;
    if (at < argc)
        return cli_wrong_usage(&cli_certify, "unexpected argument \"%s\"; select operations with --only", argv[at]);
    r.o.ctx = &r;
    r.o.seed = r.common.seed;
    r.all = r.common.strict;
    r.common.strict = true; /* what another device computes says nothing of this one */
    int code = CLI_OK;
    tn_device *device = cli_open_device(&r.common, &code);
    if (!device) return code;
    code = certify_on(&r, device);
    tn_device_close(device);
    return code;
}
