/* bench_llm.c — the works of `trunnion bench` that run models out of files: taking in a prompt of 512 tokens, and
 * giving 128 tokens from an empty cache, as llama-bench's `-p 512 -n 128` does on the same file; embedding sentences.
 *
 * A token reads all weights once, so generating has reading them as its limit. Which tokens they are makes no
 * difference to the work. */
#include <stdlib.h>
#include <unistd.h>

#include "cli/bench/bench.h"
#include "trunnion/backend.h"
#include "trunnion/embed.h"
#include "trunnion/llm.h"

enum { MOST_IDS = 512, CONTEXT = 1024 };
static const char MODEL[] = "models/SmolLM2-135M-Instruct.Q4_1.gguf", FOLDER[] = "models/all-MiniLM-L6-v2";

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

/* What --model names counts where it is a file, or a folder, as the work needs. */
static tn_status find_model(const bench_work *w, bool folder, char *path, size_t size) {
    if (w->model && cli_is_folder(w->model) == folder)
        return snprintf(path, size, "%s", w->model) < (int)size ? TN_OK : TN_ERR_ARGUMENT;
    if (!cli_cache_path(folder ? FOLDER : MODEL, path, size))
        return tn_backend_fail(TN_ERR_IO, "no cache folder: HOME is not set; set it, or pass --model FILE");
    if (access(path, R_OK) == 0) return TN_OK;
    return tn_backend_fail(TN_ERR_IO, "no model at '%s'; put one there, or pass %s with --model", path,
                           folder ? "an encoder's folder" : "a GGUF file");
}

static tn_status begin_llm(bench_work *w, void **self) {
    char path[4096];
    speaker *s = *self = calloc(1, sizeof *s);
    tn_llm_facts facts = {.struct_size = sizeof facts};
    tn_llm_options o = TN_LLM_DEFAULTS;
    o.context = CONTEXT;
    if (!s) return tn_backend_fail(TN_ERR_MEMORY, "out of memory");
    TRY(find_model(w, false, path, sizeof path));
    TRY(tn_llm_open(path, &o, &s->model));
    TRY(tn_llm_prepare(s->model));
    TRY(tn_llm_get_facts(s->model, &facts));
    s->count = w->size[0];
    for (int i = 0; i < MOST_IDS; i++)
        s->ids[i] = (int32_t)((int64_t)i * 7919 % facts.vocabulary);
    if (w->bytes > 0) w->bytes = (double)facts.token_bytes, w->passes = (double)s->count;
    return TN_OK;
}

static tn_status run_prompt_bench_llm(void *self) {
    speaker *s = self;
    const float *logits;
    TRY(tn_llm_rewind(s->model, 0));
    return tn_llm_prompt(s->model, s->ids, s->count, &logits);
}

static tn_status run_generate(void *self) {
    speaker *s = self;
    const float *logits;
    tn_status status = tn_llm_rewind(s->model, 0);
    for (int64_t i = 0; i < s->count && status == TN_OK; i++)
        status = tn_llm_step(s->model, s->ids[i], &logits);
    return status;
}

/* ---- sentences --------------------------------------------------------------------------------------------------- */

enum { SENTENCE = 27, MOST_SENTENCES = 32, FIRST_TOKEN = 101, LAST_TOKEN = 102, PLAIN_TOKEN = 1000 };

typedef struct reader {
    tn_embedder *embedder;
    tn_embedder_facts facts;
    int64_t count, lengths[MOST_SENTENCES];
    int32_t ids[MOST_SENTENCES * SENTENCE];
    float *out;
    tn_tensor *input, *result; /* ids, and what became of them at last: for other programs */
} reader;

static void end_embed(void *self) {
    reader *r = self;
    if (!r) return;
    tn_embedder_close(r->embedder);
    tn_free(r->input);
    tn_free(r->result);
    free(r->out);
    free(r);
}

/* Sentences of words that differ, between the tokens that begin and end a text. */
static void fill_ids(reader *r) {
    for (int64_t i = 0; i < r->count * SENTENCE; i++)
        r->ids[i] = (int32_t)(PLAIN_TOKEN + i * 7919 % (r->facts.vocabulary - PLAIN_TOKEN));
    for (int64_t i = 0; i < r->count; i++) {
        r->lengths[i] = SENTENCE;
        r->ids[i * SENTENCE] = FIRST_TOKEN;
        r->ids[(i + 1) * SENTENCE - 1] = LAST_TOKEN;
    }
}

/* As BLOCK_FLOPS in bench_work.c. */
static double embed_flops(const tn_embedder_facts *f, double sentences) {
    double width = (double)f->hidden, tokens = sentences * SENTENCE;
    double products = 2 * (4 * width * width + 2 * width * (double)f->intermediate) * tokens;
    return (double)f->layers * (products + 4 * tokens * SENTENCE * width);
}

static tn_status begin_embed(bench_work *w, void **self) {
    char path[4096];
    reader *r = *self = calloc(1, sizeof *r);
    if (!r) return tn_backend_fail(TN_ERR_MEMORY, "out of memory");
    r->facts.struct_size = sizeof r->facts;
    TRY(find_model(w, true, path, sizeof path));
    TRY(tn_embedder_open(path, NULL, &r->embedder));
    TRY(tn_embedder_get_facts(r->embedder, &r->facts));
    r->count = w->size[0];
    r->out = calloc((size_t)(r->count * r->facts.width), sizeof *r->out);
    if (!r->out || r->facts.vocabulary <= PLAIN_TOKEN)
        return tn_backend_fail(TN_ERR_ARGUMENT, "cannot use '%s': it has %lld tokens, or memory is out", path,
                               (long long)r->facts.vocabulary);
    fill_ids(r);
    w->flops = embed_flops(&r->facts, (double)r->count);
    r->input = tn_from_data(r->ids, TN_DIMS(r->count, SENTENCE), TN_I32);
    return tn_status_of(r->input);
}

static tn_status run_embed(void *self) {
    reader *r = self;
    return tn_embedder_run(r->embedder, r->ids, r->lengths, r->count, r->out);
}

static void keep_embed(void *self) { (void)self; /* the last results are there */ }

static bench_parts embed_parts(const void *self) {
    reader *r = (reader *)(uintptr_t)self;
    tn_free(r->result);
    r->result = tn_from_data(r->out, TN_DIMS(r->count, r->facts.width), TN_F32);
    return (bench_parts){&r->input, &r->result, 1, 1, NULL};
}

#define EMBED(work, sentences)                                                                       \
    {                                                                                                \
        .name = work, .size = {sentences}, .begin = begin_embed, .run = run_embed, .end = end_embed, \
        .keep = keep_embed, .parts = embed_parts                                                     \
    }

const bench_work bench_llm_works[] = {
    {.name = "llm-prompt-512", .size = {512}, .begin = begin_llm, .run = run_prompt_bench_llm, .end = end_llm},
    {.name = "llm-generate-128", .size = {128}, .begin = begin_llm, .run = run_generate, .end = end_llm, .bytes = 1},
    EMBED("minilm-1", 1),
    EMBED("minilm-32", 32),
};
const int bench_llm_work_count = sizeof bench_llm_works / sizeof bench_llm_works[0];
