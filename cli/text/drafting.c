/* drafting.c — the draft of --draft: n-grams, or a model whose tokens are those of the large one. */
#include "cli/text/drafting.h"

#include <inttypes.h>
#include <string.h>

#include "trunnion/backend.h"
#include "trunnion/llm.h"

static const char NGRAMS[] = "ngrams";

const char *cli_draft_conflict(const cli_draft *d) {
    return d->tokens > 0 && !d->path ? "--draft-tokens requires --draft" : NULL;
}

static bool has_model(const cli_draft *d) { return d->path && strcmp(d->path, NGRAMS) != 0; }

bool cli_draft_find(cli_draft *d) {
    if (!has_model(d) || cli_find_model(&d->path, d->found)) return true;
    fprintf(stderr, "  --draft takes a model or \"%s\"\n", NGRAMS);
    return false;
}

/* Models of one family may have unused tokens at the end, a different number of them. */
static tn_status compare_words(const cli_draft *d, const tn_tokenizer *words) {
    tn_tokenizer *own = NULL;
    const tn_gguf *file = tn_llm_file(d->model);
    tn_status status = file ? tn_tokenizer_from_gguf(file, &own) : tn_tokenizer_open(d->path, &own);
    int32_t most = status == TN_OK ? tn_tokenizer_count(own) : 0, given = tn_tokenizer_count(words);
    for (int32_t id = 0; id < most && id < given && status == TN_OK; id++) {
        size_t n = 0, m = 0;
        const char *a = tn_tokenizer_spelling(own, id, &n), *b = tn_tokenizer_spelling(words, id, &m);
        if (!a == !b && n == m && (!a || memcmp(a, b, n) == 0)) continue;
        status =
            tn_backend_fail(TN_ERR_ARGUMENT,
                            "'%s': token %" PRId32 " is \"%.*s\", that of the model is \"%.*s\"; a draft must have "
                            "the tokenizer of the model",
                            d->path, id, a ? (int)n : 0, a ? a : "", b ? (int)m : 0, b ? b : "");
    }
    tn_tokenizer_free(own);
    return status;
}

tn_status cli_draft_set(const cli_draft *d, tn_llm *m) {
    tn_llm_draft_options o = TN_LLM_DRAFT_DEFAULTS;
    if (!d->path) return TN_OK;
    o.model = d->model;
    if (d->tokens > 0) o.tokens = (int)d->tokens;
    return tn_llm_set_draft(m, &o);
}

tn_status cli_draft_open(cli_draft *d, tn_llm *m, tn_device *device, const tn_tokenizer *words) {
    if (has_model(d)) {
        tn_llm_options o = TN_LLM_DEFAULTS;
        tn_llm_facts facts = {.struct_size = sizeof facts}, own = {.struct_size = sizeof own};
        TRY(tn_llm_get_facts(m, &facts));
        TRY(tn_llm_inspect_path(d->path, NULL, &own));
        o.context = facts.context < own.trained_context ? facts.context : own.trained_context;
        o.device = device;
        TRY(tn_llm_open(d->path, &o, &d->model));
        if (words) TRY(compare_words(d, words));
        TRY(tn_llm_prepare(d->model));
    }
    return cli_draft_set(d, m);
}

void cli_draft_close(cli_draft *d) {
    tn_llm_close(d->model);
    d->model = NULL;
}
