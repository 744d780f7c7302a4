/* convert_lora.c — `trunnion convert --lora`: the model with the adapter merged, as a file or folder beside OUT that
 * the conversion then reads and that goes when it ends. */
#include <ftw.h>
#include <stdio.h>
#include <string.h>

#include "cli/convert/convert.h"
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
