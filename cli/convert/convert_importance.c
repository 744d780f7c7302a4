/* convert_importance.c — which columns of a model's matrices count: the model is run over a text, and how large the
 * numbers are that each column is multiplied with is kept for quantising. */
#include <stdlib.h>
#include <string.h>

#include "cli/convert/convert.h"
#include "cli/text/language.h"
#include "trunnion/backend.h"
#include "trunnion/llm.h"

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
