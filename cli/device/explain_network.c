/* explain_network.c — `trunnion explain` of an ONNX network: some runs with the same random inputs. */
#define TN_NO_CALLER_LINES 1 /* errors name nodes; a line of this file would tell nothing */
#include <math.h>
#include <stdlib.h>

#include "cli/device/explain.h"
#include "trunnion/backend.h"
#include "trunnion/onnx.h"

enum { RUNS = 8 }; /* the third with the same shapes is the first to be replayed */

typedef struct network {
    tn_onnx *model;
    tn_onnx_value **in, **out;
    tn_device *device;
    tn_device_info info;
    tn_selection selection;
    explain_speeds speeds;
    explain_phase phase;
    int64_t peak_bytes;
    bool ran; /* failures come from the network itself */
} network;

static tn_status run_network(void *ctx) {
    network *n = ctx;
    n->ran = true;
    for (int i = 0; i < RUNS; i++) {
        onnx_free_values(n->out, tn_onnx_output_count(n->model));
        TRY(tn_onnx_run(n->model, n->in, n->out));
    }
    return tn_device_synchronize(n->device);
}

static tn_status open_network(network *n, explain_wishes *w, uint64_t seed, const char *path) {
    tn_onnx_options o = TN_ONNX_DEFAULTS;
    o.recorded = true; /* only of a recording is there a plan to show */
    TRY(tn_onnx_open(path, &o, &n->model));
    int inputs = tn_onnx_input_count(n->model);
    n->in = calloc((size_t)inputs + 1, sizeof *n->in);
    n->out = calloc((size_t)tn_onnx_output_count(n->model) + 1, sizeof *n->out);
    if (!n->in || !n->out) return tn_backend_fail(TN_ERR_MEMORY, "out of memory for inputs and outputs");
    uint64_t state = seed + 1;
    for (int i = 0; i < inputs; i++) {
        tn_onnx_info info = {.struct_size = sizeof info};
        TRY(tn_onnx_input_at(n->model, i, &info));
        TRY(onnx_random_input(&info, &w->dims, &state, &n->in[i]));
    }
    return onnx_dims_are_used(&w->dims);
}

static tn_status explain(network *n, explain_wishes *w, uint64_t seed, const char *path) {
    TRY(tn_device_get_info(n->device, &n->info));
    TRY(open_network(n, w, seed, path));
    n->phase = (explain_phase){.name = "run", .unit = "run", .count = RUNS};
    TRY(explain_measure(&n->phase, run_network, n));
    n->peak_bytes = cli_peak_bytes(); /* before the probes take memory of their own */
    return explain_find_speeds(&n->speeds);
}

static void put_text_network(const network *n, const char *path, bool verbose) {
    cli_print(stdout, "%s: %s on %s; %.1f MB at the peak\n", path,
              tn_device_host_count(n->device) ? "most of it runs" : "everything runs", n->info.id,
              1e-6 * (double)n->peak_bytes);
    explain_put_host(n->device, n->info.id);
    explain_put_speeds(&n->speeds, false);
    explain_put_phase(&n->phase, &n->speeds, verbose);
}

static void put_json_network(const network *n) {
    cli_json j = {.out = stdout};
    cli_json_write(&j, "{'device': %s", n->info.id);
    cli_json_fallback(&j, &n->selection, n->device);
    explain_put_phase_json(&j, &n->phase, &n->speeds);
    cli_json_write(&j, "'ops': [");
    explain_put_ops_json(&j, &n->phase, &n->speeds);
    cli_json_write(&j, "], 'predicted_peak_bytes': %g, 'measured_peak_bytes': %jd}", NAN, n->peak_bytes);
}

int explain_network(const cli_options *o, explain_wishes *w, const char *path) {
    network n = {.selection.struct_size = sizeof n.selection, .info.struct_size = sizeof n.info};
    int code;
    n.device = cli_choose_device(o, &n.selection, &code);
    if (!n.device) return code;
    tn_manual_seed(o->seed);
    code = explain(&n, w, o->seed, path) == TN_OK ? CLI_OK : cli_failed();
    if (code != CLI_OK && n.ran) onnx_tell_guess(&w->dims);
    if (code == CLI_OK && o->json) put_json_network(&n);
    if (code == CLI_OK && !o->json) put_text_network(&n, path, o->verbose);
    explain_phase_free(&n.phase);
    onnx_free_values(n.in, n.model ? tn_onnx_input_count(n.model) : 0);
    onnx_free_values(n.out, n.model ? tn_onnx_output_count(n.model) : 0);
    tn_onnx_close(n.model);
    free(n.in);
    free(n.out);
    return code;
}
