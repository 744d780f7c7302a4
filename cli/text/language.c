/* language.c — opening a language model for a subcommand; reading a text. */
#include "cli/text/language.h"
#include "trunnion/llm.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "trunnion/backend.h"

void cli_return_memory(void) {
#if defined(__GLIBC__)
    (void)mallopt(M_MMAP_THRESHOLD, 128 << 10); /* said by us, it stays: else it grows with what is freed */
#endif
}

bool cli_language_open(cli_language *l, const cli_options *o, const char *path, const tn_llm_options *options,
                       bool text) {
    *l = (cli_language){.code = CLI_OK};
    cli_return_memory();
    l->device = cli_choose_device(o, &l->selection, &l->code);
    if (!l->device) return false;
    bool good =
        tn_llm_open(path, options, &l->model) == TN_OK && (!text || tn_tokenizer_open(path, &l->tokenizer) == TN_OK);
    if (!good) l->code = cli_failed();
    return good;
}

void cli_language_close(cli_language *l) {
    tn_tokenizer_free(l->tokenizer);
    tn_llm_close(l->model);
    tn_device_close(l->device);
    *l = (cli_language){.code = l->code};
}

tn_status cli_language_estimate(const cli_language *l, int64_t context, tn_memory_estimate *out) {
    tn_llm_facts f = {.struct_size = sizeof f};
    tn_status status = tn_llm_get_facts(l->model, &f);
    tn_model_sizes sizes = TN_MODEL_SIZES_DEFAULTS;
    sizes.hidden = f.hidden;
    sizes.intermediate = f.intermediate;
    sizes.layers = f.layers;
    sizes.vocabulary = f.vocabulary;
    sizes.heads = f.heads;
    sizes.kv_heads = f.kv_heads;
    sizes.head_dim = f.head_dim;
    sizes.sequence = context;
    sizes.weights_bytes = f.weights_bytes;
    sizes.tied_embeddings = f.tied_embeddings;
    return status == TN_OK ? tn_estimate_inference_memory(&sizes, out) : status;
}

tn_status cli_read_ids(const char *text, tn_ids *out) {
    static const char blanks[] = " \t\r\n";
    const char *at = text + strspn(text, blanks);
    while (*at) {
        char *end;
        errno = 0;
        long id = strtol(at, &end, 10);
        if (end == at || errno != 0 || id < 0 || id > INT32_MAX)
            return tn_backend_fail(TN_ERR_ARGUMENT, "\"%.20s\" is not a token id", at);
        TRY(tn_ids_append(out, (int32_t)id));
        at = end + strspn(end, blanks);
        if (*at == ',') at += 1 + strspn(at + 1, blanks);
    }
    return TN_OK;
}

static tn_status read_stream(FILE *f, const char *path, tn_bytes *out) {
    char part[65536];
    size_t n;
    TRY(tn_bytes_append(out, "", 0));
    while (!feof(f) && !ferror(f)) { /* a terminal's end of file comes once, behind a short read */
        n = fread(part, 1, sizeof part, f);
        TRY(tn_bytes_append(out, part, n));
    }
    return ferror(f) ? tn_backend_fail(TN_ERR_IO, "reading '%s': %s", path, strerror(errno)) : TN_OK;
}

tn_status cli_read_file(const char *path, tn_bytes *out) {
    if (!strcmp(path, "-")) return read_stream(stdin, "standard input", out);
    FILE *f = fopen(path, "rb");
    if (!f) return tn_backend_fail(TN_ERR_IO, "cannot open '%s': %s", path, strerror(errno));
    tn_status status = read_stream(f, path, out);
    fclose(f);
    return status;
}

tn_status cli_take_text(const char *argument, tn_bytes *out) {
    return strcmp(argument, "-") == 0 ? cli_read_file("-", out) : tn_bytes_append(out, argument, strlen(argument));
}

void cli_json_ids(cli_json *j, const char *key, const tn_ids *ids) {
    cli_json_write(j, "%s: [", key);
    for (size_t i = 0; i < ids->count; i++)
        cli_json_write(j, "%d", ids->data[i]);
    cli_json_write(j, "]");
}

/* ---- the device after one that failed ---------------------------------------------------------------------------- */

bool cli_moves_on(tn_status s) { return s == TN_ERR_LOST || s == TN_ERR_DEVICE || s == TN_ERR_MEMORY; }

void cli_moves_note(cli_moves *m, const tn_device *device) {
    tn_device_info info = {.struct_size = sizeof info};
    snprintf(m->reason, sizeof m->reason, "%s", tn_error());
    (void)tn_device_get_info(device, &info);
    if (m->count < CLI_MOST_MOVES) snprintf(m->failed[m->count++], sizeof m->failed[0], "%s", info.id);
}

static bool has_failed(const cli_moves *m, const char *id) {
    for (int i = 0; i < m->count; i++)
        if (strcmp(m->failed[i], id) == 0) return true;
    return false;
}

static tn_device *open_other(const cli_moves *m, const tn_device_list *list, char id[32]) {
    tn_device *device = NULL;
    tn_device_options how = cli_device_options(m->options);
    for (int b = 0; b < tn_device_list_count(list); b++) {
        const tn_backend_info *backend = tn_device_list_at(list, b);
        bool other = strncmp(backend->name, "engine:", 7) == 0 || strcmp(backend->name, "cpu") == 0;
        for (int i = 0; !other && i < backend->device_count; i++) {
            const tn_device_info *d = &backend->devices[i];
            if (!d->usable || d->software || d->same_as[0] || has_failed(m, d->id)) continue;
            if (tn_device_open(d->id, &how, NULL, &device) != TN_OK) continue;
            snprintf(id, 32, "%s", d->id);
            return device;
        }
    }
    return NULL;
}

tn_status cli_moves_next(cli_moves *m, tn_status why, tn_device **out) {
    char id[32] = "cpu";
    tn_device_list *list = NULL;
    tn_device_options how = cli_device_options(m->options);
    *out = NULL;
    if (m->count < CLI_MOST_MOVES && tn_device_list_new(false, &list) == TN_OK) *out = open_other(m, list, id);
    tn_device_list_free(list);
    if (!*out && !has_failed(m, "cpu")) (void)tn_device_open("cpu", &how, NULL, out);
    if (!*out) return tn_backend_fail(why, "%s", m->reason);
    const char *failed = m->count > 0 ? m->failed[m->count - 1] : "the device";
    cli_print(stderr, "trunnion: %s failed (%s); continuing on %s\n", failed, m->reason, id);
    return tn_set_current_device(*out);
}

/* ---- drafts ------------------------------------------------------------------------------------------------------ */

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

static void free_tokenizer(tn_tokenizer **t) { tn_tokenizer_free(*t); }

/* Models of one family may differ in the number of unused tokens at the end. */
static tn_status compare_words(const cli_draft *d, const tn_tokenizer *words) {
    AUTO_CALL(free_tokenizer) tn_tokenizer *own = NULL;
    const tn_gguf *file = tn_llm_file(d->model);
    TRY(file ? tn_tokenizer_from_gguf(file, &own) : tn_tokenizer_open(d->path, &own));
    int32_t most = tn_tokenizer_count(own), given = tn_tokenizer_count(words);
    for (int32_t id = 0; id < most && id < given; id++) {
        size_t n = 0, m = 0;
        const char *a = tn_tokenizer_spelling(own, id, &n), *b = tn_tokenizer_spelling(words, id, &m);
        if (!a == !b && n == m && (!a || memcmp(a, b, n) == 0)) continue;
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "'%s': token %" PRId32 " is \"%.*s\", that of the model is \"%.*s\"; a draft must have "
                               "the tokenizer of the model",
                               d->path, id, a ? (int)n : 0, a ? a : "", b ? (int)m : 0, b ? b : "");
    }
    return TN_OK;
}

static tn_status set_draft(const cli_draft *d, tn_llm *m, tn_llm *model) {
    tn_llm_draft_options o = TN_LLM_DRAFT_DEFAULTS;
    if (!d->path) return TN_OK;
    o.model = model;
    if (d->tokens > 0) o.tokens = (int)d->tokens;
    return tn_llm_set_draft(m, &o);
}

tn_status cli_draft_add(cli_draft *d, tn_llm *m) {
    tn_llm *own = NULL;
    if (d->model) {
        TRY(tn_llm_new_conversation(d->model, NULL, &own));
        d->others[d->count++] = own;
    }
    return set_draft(d, m, own);
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
    return set_draft(d, m, d->model);
}

void cli_draft_close(cli_draft *d) {
    while (d->count > 0)
        tn_llm_close(d->others[--d->count]);
    tn_llm_close(d->model);
    d->model = NULL;
}
