/* explain_language.c — `trunnion explain` of a language model: a piece of prompt and some tokens. */
#include <stdlib.h>

#include "cli/device/explain.h"
#include "cli/text/language.h"
#include "trunnion/backend.h"
#include "trunnion/llm.h"

enum { PROMPT = 128, TOKENS = 32 };

/* ---- running ----------------------------------------------------------------------------------------------------- */

typedef struct language_work {
    tn_llm *model;
    int64_t prompt, tokens;
    int32_t *ids; /* [prompt + tokens] */
} language_work;

static void make_ids(int32_t *ids, int64_t count, int64_t vocabulary) {
    for (int64_t i = 0; i < count; i++)
        ids[i] = (int32_t)(i * 7919 % vocabulary);
}

static tn_status run_prompt_language(void *ctx) {
    const language_work *w = ctx;
    const float *logits;
    TRY(tn_llm_rewind(w->model, 0));
    return tn_llm_prompt(w->model, w->ids, w->prompt, &logits);
}

static tn_status run_tokens(void *ctx) {
    const language_work *w = ctx;
    const float *logits;
    tn_status status = tn_llm_rewind(w->model, w->prompt);
    for (int64_t i = 0; i < w->tokens && status == TN_OK; i++)
        status = tn_llm_step(w->model, w->ids[w->prompt + i], &logits);
    return status;
}

static tn_status run_model(language_work *w, const tn_llm_facts *f, explain_phase phases[2]) {
    if (w->prompt + w->tokens > f->context)
        return tn_backend_fail(
            TN_ERR_ARGUMENT,
            "%lld prompt tokens and %lld generated ones exceed the context of %lld; --context N sets it, up to %lld",
            (long long)w->prompt, (long long)w->tokens, (long long)f->context, (long long)f->trained_context);
    w->ids = malloc((size_t)(w->prompt + w->tokens) * sizeof *w->ids);
    if (!w->ids)
        return tn_backend_fail(TN_ERR_MEMORY, "out of memory for %lld tokens", (long long)(w->prompt + w->tokens));
    make_ids(w->ids, w->prompt + w->tokens, f->vocabulary);
    phases[0] = (explain_phase){.name = "prompt", .unit = "token", .count = w->prompt};
    phases[1] = (explain_phase){.name = "token", .unit = "token", .count = w->tokens};
    tn_status status = explain_measure(&phases[0], run_prompt_language, w);
    if (status == TN_OK) status = explain_measure(&phases[1], run_tokens, w);
    free(w->ids);
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
    explain_speeds speeds;
    explain_phase phases[2];
} report;

static void put_json_language(const report *r) {
    cli_json j = {.out = stdout};
    cli_json_write(&j, "{'device': %s", r->device.id);
    cli_json_fallback(&j, r->selection, r->where);
    cli_json_write(&j, "'architecture': %s, 'layers': %jd, 'context': %jd", r->facts.architecture, r->facts.layers,
                   r->facts.context);
    for (int i = 0; i < 2; i++)
        explain_put_phase_json(&j, &r->phases[i], &r->speeds);
    cli_json_write(&j, "'ops': [");
    for (int i = 0; i < 2; i++)
        explain_put_ops_json(&j, &r->phases[i], &r->speeds);
    cli_json_write(&j, "], 'predicted_peak_bytes': %jd, 'measured_peak_bytes': %jd}", r->predicted.total_bytes,
                   r->peak_bytes);
}

static void put_text_language(const report *r, bool verbose) {
    const tn_llm_facts *f = &r->facts;
    const tn_memory_estimate *m = &r->predicted;
    printf("%s, %s: %lld layers, %.4g million weights in %s; %s on %s\n", f->name, f->architecture,
           (long long)f->layers, 1e-6 * (double)f->parameters, f->quantisation,
           tn_device_host_count(r->where) ? "most of it runs" : "everything runs", r->device.id);
    explain_put_host(r->where, r->device.id);
    printf(
        "memory: %.1f MB predicted (weights %.1f, cache %.1f, activations %.1f, runtime %.1f), %.1f MB at the peak\n",
        1e-6 * (double)m->total_bytes, 1e-6 * (double)m->weights_bytes, 1e-6 * (double)m->cache_bytes,
        1e-6 * (double)m->activation_bytes, 1e-6 * (double)m->runtime_bytes, 1e-6 * (double)r->peak_bytes);
    explain_put_speeds(&r->speeds, true);
    for (int i = 0; i < 2; i++)
        explain_put_phase(&r->phases[i], &r->speeds, verbose);
}

static tn_status explain(const cli_language *l, const explain_wishes *w, report *r) {
    language_work work = {l->model, w->prompt ? w->prompt : PROMPT, w->tokens ? w->tokens : TOKENS, NULL};
    r->where = l->device;
    r->selection = &l->selection;
    TRY(tn_llm_get_facts(l->model, &r->facts));
    TRY(tn_device_get_info(l->device, &r->device));
    TRY(cli_language_estimate(l, r->facts.context, &r->predicted));
    TRY(run_model(&work, &r->facts, r->phases));
    r->peak_bytes = cli_peak_bytes(); /* before the probes take memory of their own */
    return explain_find_speeds(&r->speeds);
}

int explain_language(const cli_options *o, const explain_wishes *w, const char *path) {
    cli_language l;
    report r = {.facts.struct_size = sizeof r.facts,
                .device.struct_size = sizeof r.device,
                .predicted.struct_size = sizeof r.predicted};
    tn_llm_options options = TN_LLM_DEFAULTS;
    options.context = w->context;
    bool opened = cli_language_open(&l, o, path, &options, false);
    bool good = opened && explain(&l, w, &r) == TN_OK;
    if (good && o->json) put_json_language(&r);
    if (good && !o->json) put_text_language(&r, o->verbose);
    int code = !opened ? l.code : good ? CLI_OK : cli_failed();
    for (int i = 0; i < 2; i++)
        explain_phase_free(&r.phases[i]);
    cli_language_close(&l);
    return code;
}
