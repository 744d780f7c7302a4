/* convert_llm.c — conversions that take the model itself: `--lora` merges an adapter into it, as a file or folder next
 * to OUT that goes when the conversion ends; importance runs it over a text and keeps how large the numbers are that
 * each column is multiplied with, for quantization. */
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/convert/convert.h"
#include "cli/text/language.h"
#include "trunnion/backend.h"
#include "trunnion/llm.h"

static int remove_one(const char *path, const struct stat *facts, int kind, struct FTW *place) {
    (void)facts, (void)kind, (void)place;
    return remove(path);
}

void convert_merge_end(const char *merged) {
    enum { OPEN_FOLDERS = 4 };
    if (*merged) (void)nftw(merged, remove_one, OPEN_FOLDERS, FTW_DEPTH | FTW_PHYS);
}

bool convert_merge(const char *in, const char *adapter, const char *out, char merged[CLI_PATH]) {
    enum { ONE_PAGE = 64 };
    tn_llm_options o = TN_LLM_DEFAULTS;
    tn_llm *m = NULL;
    int length = (int)strlen(out);
    while (length > 1 && out[length - 1] == '/')
        length--;
    if (snprintf(merged, CLI_PATH, "%.*s.merged%s", length, out, cli_is_folder(in) ? "" : ".gguf") >= CLI_PATH) {
        *merged = 0;
        (void)cli_fail(TN_ERR_ARGUMENT, "the path of OUT is too long");
        return false;
    }
    o.context = ONE_PAGE;
    o.adapter = adapter;
    tn_status status = tn_llm_open(in, &o, &m);
    if (status == TN_OK) status = tn_llm_save_model(m, merged);
    tn_llm_close(m);
    if (status == TN_OK) return true;
    (void)cli_failed();
    convert_merge_end(merged);
    *merged = 0;
    return false;
}

/* ---- importance of columns --------------------------------------------------------------------------------------- */

static tn_status keep_importance(void *ctx, const char *name, const float *squares, int64_t columns) {
    convert_importance *i = ctx;
    if (i->count == i->room) {
        int64_t room = 2 * i->room + 64;
        struct convert_columns *more = realloc(i->list, (size_t)room * sizeof *more);
        if (!more) return tn_backend_fail(TN_ERR_MEMORY, "out of memory for the importance of columns");
        i->list = more;
        i->room = room;
    }
    struct convert_columns *c = &i->list[i->count];
    *c = (struct convert_columns){strdup(name), malloc((size_t)columns * sizeof *squares + 1), columns};
    i->count++;
    if (!c->name || !c->squares) return tn_backend_fail(TN_ERR_MEMORY, "out of memory for the importance of columns");
    memcpy(c->squares, squares, (size_t)columns * sizeof *squares);
    return TN_OK;
}

bool convert_find_importance(const cli_options *o, const char *model, const char *text, convert_importance *out) {
    enum { WINDOW = 512 };
    cli_language l;
    tn_bytes read = {0};
    tn_ids ids = {0};
    tn_llm_facts f = {.struct_size = sizeof f};
    tn_llm_options options = TN_LLM_DEFAULTS;
    options.context = WINDOW;
    if (tn_llm_inspect_path(model, NULL, &f) == TN_OK && f.trained_context < WINDOW)
        options.context = f.trained_context;
    *out = (convert_importance){0};
    bool good = cli_language_open(&l, o, model, &options, true) && cli_read_file(text, &read) == TN_OK &&
                tn_tokenizer_encode(l.tokenizer, read.data, read.size, TN_ENCODE_ENDS, &ids) == TN_OK &&
                tn_llm_importance(l.model, ids.data, (int64_t)ids.count, keep_importance, out) == TN_OK;
    tn_bytes_free(&read);
    tn_ids_free(&ids);
    cli_language_close(&l);
    return good;
}
