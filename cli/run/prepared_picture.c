/* prepared_picture.c — a picture for an ONNX network as the folder that the network was exported from says:
 * preprocessor_config.json, and the names of classes in config.json, beside the file or one folder up. */
#define TN_NO_CALLER_LINES 1 /* errors name files */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/run/image.h"
#include "cli/run/run.h"
#include "trunnion/backend.h"
#include "trunnion/classify.h"
#include "trunnion/json.h"
#include "trunnion/ops.h"

static bool has_file(const char *folder, const char *name, char path[RUN_PATH]) {
    struct stat facts;
    return snprintf(path, RUN_PATH, "%s/%s", folder, name) < RUN_PATH && stat(path, &facts) == 0;
}

bool run_find_preparation(const char *model, char folder[RUN_PATH]) {
    const char *slash = strrchr(model, '/');
    char path[RUN_PATH];
    for (int up = 0; up < 2; up++) {
        int length = slash ? (int)(slash - model) + (slash == model) : 1;
        bool fits = snprintf(folder, RUN_PATH, "%.*s%s", length, slash ? model : ".", up ? "/.." : "") < RUN_PATH;
        if (fits && has_file(folder, "preprocessor_config.json", path)) return true;
    }
    return false;
}

/* The input's extents, -1 where they are open, are those of x, [1, 3, height, width]; or channels are last. */
static bool fits_input(const tn_tensor *x, const int64_t *shape, int rank, bool last) {
    static const int places[2][4] = {{0, 1, 2, 3}, {0, 2, 3, 1}};
    for (int d = 0; d < 4 && rank == 4; d++)
        if (shape[d] >= 0 && shape[d] != tn_size(x, places[last][d])) return false;
    return rank == 4;
}

tn_status run_prepare_picture(const char *folder, const image *picture, const tn_onnx_info *input, tn_tensor **out) {
    tn_tensor *x;
    *out = NULL;
    tn_status status = tn_classifier_prepare_by(folder, picture->rgb, picture->height, picture->width, &x);
    if (status != TN_OK)
        return tn_backend_fail(status, "%s; --resize, --scale, --mean or --std take its place", tn_error());
    int64_t height = tn_size(x, 2), width = tn_size(x, 3);
    bool first = fits_input(x, input->shape, input->rank, false);
    bool last = !first && fits_input(x, input->shape, input->rank, true);
    if (first || last) {
        TN_SCOPE;
        const tn_tensor *turned = last ? tn_contiguous(tn_permute(x, TN_DIMS(0, 2, 3, 1))) : x;
        *out = tn_retain(tn_cast(turned, input->dtype == TN_DTYPE_COUNT ? TN_F32 : input->dtype));
    }
    tn_free(x);
    if (*out) return tn_eval(out, 1);
    return tn_backend_fail(TN_ERR_SHAPE,
                           "'%s/preprocessor_config.json' makes pictures of 3 channels, height %" PRId64
                           " and width %" PRId64 ", which the input does not accept; --resize, --scale, --mean or "
                           "--std take its place",
                           folder, height, width);
}

tn_status run_read_names(const char *folder, run_top *t) {
    char path[RUN_PATH], key[24];
    if (t->path || !has_file(folder, "config.json", path)) return TN_OK;
    TRY(tn_json_open(path, &t->config));
    const tn_json *names = tn_json_get(tn_json_root(t->config), "id2label");
    if (tn_json_kind_of(names) != TN_JSON_OBJECT) return TN_OK;
    size_t count = tn_json_length(names);
    t->labels = calloc(count + 1, sizeof *t->labels);
    if (!t->labels) return tn_backend_fail(TN_ERR_MEMORY, "out of memory for the names of %zu classes", count);
    for (size_t i = 0; i < count; i++) {
        snprintf(key, sizeof key, "%zu", i);
        t->labels[i] = (char *)(uintptr_t)tn_json_string(tn_json_get(names, key), "");
    }
    t->label_count = (int64_t)count;
    return TN_OK;
}
