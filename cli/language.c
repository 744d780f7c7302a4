/* language.c — opening a language model for a subcommand; reading a text. */
#include "language.h"
#include "trunnion/llm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "trunnion/backend.h"

bool cli_language_open(cli_language *l, const cli_options *o, const char *path, int64_t context) {
    *l = (cli_language){.code = CLI_OK};
    l->device = cli_choose_device(o, &l->selection, &l->code);
    if (!l->device) return false;
    tn_llm_options options = {.struct_size = sizeof options, .context = context};
    bool good = tn_llm_open(path, &options, &l->model) == TN_OK &&
                tn_tokenizer_from_gguf(tn_llm_file(l->model), &l->tokenizer) == TN_OK;
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
    tn_model_sizes sizes = {.struct_size = sizeof sizes};
    tn_status status = tn_gguf_model_sizes(tn_llm_file(l->model), &sizes);
    sizes.sequence = context;
    return status == TN_OK ? tn_estimate_inference_memory(&sizes, out) : status;
}

static tn_status read_all(FILE *f, const char *path, tn_bytes *out) {
    char part[65536];
    size_t n;
    tn_status status = tn_bytes_append(out, "", 0);
    while (status == TN_OK && (n = fread(part, 1, sizeof part, f)) > 0)
        status = tn_bytes_append(out, part, n);
    if (status != TN_OK) return status;
    return ferror(f) ? tn_backend_fail(TN_ERR_IO, "reading '%s': %s", path, strerror(errno)) : TN_OK;
}

tn_status cli_read_file(const char *path, tn_bytes *out) {
    if (!strcmp(path, "-")) return read_all(stdin, "standard input", out);
    FILE *f = fopen(path, "rb");
    if (!f) return tn_backend_fail(TN_ERR_IO, "cannot open '%s': %s", path, strerror(errno));
    tn_status status = read_all(f, path, out);
    fclose(f);
    return status;
}

tn_status cli_take_text(const char *argument, tn_bytes *out) {
    return strcmp(argument, "-") == 0 ? cli_read_file("-", out) : tn_bytes_append(out, argument, strlen(argument));
}

void cli_json_ids(cli_json *j, const char *key, const tn_ids *ids) {
    cli_json_array(j, key);
    for (size_t i = 0; i < ids->count; i++)
        cli_json_int(j, NULL, ids->data[i]);
    cli_json_end(j, ']');
}
