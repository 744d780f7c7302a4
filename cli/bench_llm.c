/* bench_llm.c — the works of `trunnion bench` that run a language model: taking in a prompt of 512 tokens, and giving
 * 128 tokens from an empty cache, as llama-bench's `-p 512 -n 128` does on the same file.
 *
 * A token reads all weights once, so generating has reading them as its limit. Which tokens they are makes no
 * difference to the work. */
#include <stdlib.h>
#include <unistd.h>

#include "bench.h"
#include "trunnion/backend.h"
#include "trunnion/llm.h"

enum { MOST_IDS = 512, CONTEXT = 1024 };
static const char MODEL[] = "models/SmolLM2-135M-Instruct.Q4_1.gguf";

typedef struct speaker {
    tn_llm *model;
    int64_t count;
    int32_t ids[MOST_IDS];
} speaker;

static void end_llm(void *self) {
    speaker *s = self;
    if (s) tn_llm_close(s->model);
    free(s);
}

static tn_status find_model(const bench_work *w, char *path, size_t size) {
    if (w->model) return snprintf(path, size, "%s", w->model) < (int)size ? TN_OK : TN_ERR_ARGUMENT;
    if (!cli_cache_path(MODEL, path, size))
        return tn_backend_fail(TN_ERR_IO, "no cache folder is known: set HOME, or name a model with --model FILE");
    if (access(path, R_OK) == 0) return TN_OK;
    return tn_backend_fail(TN_ERR_IO,
                           "there is no model at '%s'; fetch it with: python3 tools/smollm2.py (or name a GGUF file "
                           "with --model FILE)",
                           path);
}

static tn_status begin_llm(bench_work *w, void **self) {
    char path[4096];
    speaker *s = *self = calloc(1, sizeof *s);
    tn_llm_facts facts = {.struct_size = sizeof facts};
    tn_llm_options o = {.struct_size = sizeof o, .context = CONTEXT};
    if (!s) return tn_backend_fail(TN_ERR_MEMORY, "out of memory");
    tn_status status = find_model(w, path, sizeof path);
    if (status == TN_OK) status = tn_llm_open(path, &o, &s->model);
    if (status == TN_OK) status = tn_llm_prepare(s->model);
    if (status == TN_OK) status = tn_llm_get_facts(s->model, &facts);
    if (status != TN_OK) return status;
    s->count = w->size[0];
    for (int i = 0; i < MOST_IDS; i++)
        s->ids[i] = (int32_t)((int64_t)i * 7919 % facts.vocabulary);
    if (w->bytes > 0) w->bytes = (double)facts.weights_bytes, w->passes = (double)s->count;
    return TN_OK;
}

static tn_status run_prompt(void *self) {
    speaker *s = self;
    const float *logits;
    tn_status status = tn_llm_rewind(s->model, 0);
    return status == TN_OK ? tn_llm_prompt(s->model, s->ids, s->count, &logits) : status;
}

static tn_status run_generate(void *self) {
    speaker *s = self;
    const float *logits;
    tn_status status = tn_llm_rewind(s->model, 0);
    for (int64_t i = 0; i < s->count && status == TN_OK; i++)
        status = tn_llm_step(s->model, s->ids[i], &logits);
    return status;
}

const bench_work bench_llm_works[] = {
    {.name = "llm-prompt-512", .size = {512}, .begin = begin_llm, .run = run_prompt, .end = end_llm},
    {.name = "llm-generate-128", .size = {128}, .begin = begin_llm, .run = run_generate, .end = end_llm, .bytes = 1},
};
const int bench_llm_work_count = sizeof bench_llm_works / sizeof bench_llm_works[0];
