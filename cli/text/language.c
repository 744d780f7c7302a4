/* language.c — opening a language model for a subcommand; reading a text. */
#include "cli/text/language.h"
#include "trunnion/llm.h"

#include <errno.h>
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
    const char *at = text + strspn(text, ", \t\r\n");
    while (*at) {
        char *end;
        errno = 0;
        long id = strtol(at, &end, 10);
        if (end == at || errno != 0 || id < 0 || id > INT32_MAX)
            return tn_backend_fail(TN_ERR_ARGUMENT, "\"%.20s\" is not a token id", at);
        TRY(tn_ids_append(out, (int32_t)id));
        at = end + strspn(end, ", \t\r\n");
    }
    return TN_OK;
}

static tn_status read_stream(FILE *f, const char *path, tn_bytes *out) {
    char part[65536];
    size_t n;
    tn_status status = tn_bytes_append(out, "", 0);
    while (status == TN_OK && !feof(f) && !ferror(f)) { /* a terminal's end of file comes once, behind a short read */
        n = fread(part, 1, sizeof part, f);
        status = tn_bytes_append(out, part, n);
    }
    if (status != TN_OK) return status;
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
