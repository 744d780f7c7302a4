/* onnx_input.c — random inputs of an ONNX network; see run.h. */
#define TN_NO_CALLER_LINES 1 /* errors name nodes; a line of this file would tell nothing */
#include "cli/run/run.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cli/train/train.h"
#include "trunnion/backend.h"
#include "trunnion/ops.h"

enum { OPEN = -1 };

bool onnx_is_network(const char *path) {
    const char *ending = strrchr(path, '.');
    return ending && strcasecmp(ending, ".onnx") == 0;
}

static bool is_called(const struct onnx_dim *d, const char *name, size_t length) {
    return strncmp(d->name, name, length) == 0 && d->name[length] == '=';
}

bool onnx_take_dim(void *at, const char *arg) {
    onnx_dims *dims = at;
    const char *equals = strchr(arg, '=');
    if (!equals || equals == arg || dims->count == ONNX_MOST_DIMS) return false;
    struct onnx_dim *d = &dims->list[dims->count];
    *d = (struct onnx_dim){.name = arg};
    if (!cli_parse_int(equals + 1, 0, INT64_C(1) << 40, &d->extent)) return false;
    for (int i = 0; i < dims->count; i++)
        if (is_called(&dims->list[i], arg, (size_t)(equals - arg))) dims->twice = arg;
    dims->count++;
    return true;
}

int onnx_dim_twice(const cli_command *c, const onnx_dims *dims) {
    return cli_wrong_usage(c, "--dim gives \"%.*s\" more than once", (int)strcspn(dims->twice, "="), dims->twice);
}

/* Is it the dim's own name, or INPUT.PLACE? Files often leave open dims without names. */
static bool names_dim(const struct onnx_dim *given, const tn_onnx_info *info, int d) {
    char place[16];
    size_t length = strlen(info->name);
    snprintf(place, sizeof place, ".%d=", d);
    return (info->dims[d] && is_called(given, info->dims[d], strlen(info->dims[d]))) ||
           (strncmp(given->name, info->name, length) == 0 && strncmp(given->name + length, place, strlen(place)) == 0);
}

int64_t onnx_extent(void *ctx, const tn_onnx_info *info, int d, int64_t otherwise) {
    onnx_dims *dims = ctx;
    if (info->shape[d] >= 0) return info->shape[d];
    for (int i = 0; i < dims->count; i++) {
        if (!names_dim(&dims->list[i], info, d)) continue;
        dims->list[i].used = true;
        return dims->list[i].extent;
    }
    return otherwise;
}

tn_status onnx_dims_are_used(const onnx_dims *dims) {
    for (int i = 0; i < dims->count; i++) {
        const char *name = dims->list[i].name;
        if (!dims->list[i].used)
            return tn_backend_fail(
                TN_ERR_ARGUMENT,
                "--dim %.*s: no random input has an open dimension of this name (trunnion run -v lists them)",
                (int)strcspn(name, "="), name);
    }
    return TN_OK;
}

void onnx_tell_guess(const onnx_dims *dims) {
    if (!dims->guessed || (tn_error_code() != TN_ERR_SHAPE && tn_error_code() != TN_ERR_ARGUMENT)) return;
    fputs("  open dimensions of random inputs were set to 1; --dim NAME=N sets one (trunnion run -v lists them)\n",
          stderr);
}

void onnx_free_values(tn_onnx_value **values, int count) {
    for (int i = 0; values && i < count; i++) {
        tn_onnx_value_free(values[i]);
        values[i] = NULL;
    }
}

tn_status onnx_random_input(const tn_onnx_info *info, onnx_dims *dims, uint64_t *state, tn_onnx_value **out) {
    int64_t shape[TN_MAX_RANK], count = 1;
    if (info->kind != TN_ONNX_TENSOR || info->dtype == TN_DTYPE_COUNT || info->rank < 0)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "input '%s' cannot be random: it is not a tensor of numbers, or its type or rank is "
                               "unknown; pass a file with trunnion run -i",
                               info->name);
    bool fits = true;
    for (int d = 0; d < info->rank; d++) {
        shape[d] = onnx_extent(dims, info, d, OPEN);
        dims->guessed |= shape[d] == OPEN;
        if (shape[d] == OPEN) shape[d] = 1;
        fits = fits && !__builtin_mul_overflow(count, shape[d], &count);
    }
    float *numbers = fits && count < INT64_MAX / 8 ? malloc((size_t)count * sizeof *numbers + 1) : NULL;
    if (!numbers) return tn_backend_fail(TN_ERR_MEMORY, "out of memory for input '%s'", info->name);
    for (int64_t k = 0; k < count; k++) {
        double u = random_uniform(state) + random_uniform(state) + random_uniform(state) - 1.5;
        numbers[k] = tn_dtype_is_float(info->dtype) ? (float)(2 * u) : (float)(u > 0);
    }
    tn_tensor *made = tn_from_data(numbers, shape, info->rank, TN_F32), *cast = tn_cast(made, info->dtype);
    free(numbers);
    tn_free(made);
    tn_status status = tn_eval(&cast, 1);
    if (status == TN_OK) *out = tn_onnx_value_tensor(cast);
    tn_free(cast);
    return status == TN_OK && !*out ? TN_ERR_MEMORY : status;
}
