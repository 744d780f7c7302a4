/* network.c — weights of a folder by name, and operations with them; see network.h. */
#include "text/network.h"

#include <stdarg.h>
#include <stdio.h>

/* Tensors that files have and no result depends on: counters, indices, what only training uses. */
static const char *const beside[] = {"num_batches_tracked", "relative_position_index", "position_ids", "mask_token",
                                     "masked_spec_embed",   "pooler.dense.",           "quantizer.",   "project_q.",
                                     "project_hid."};

/* ---- opening ----------------------------------------------------------------------------------------------------- */

tn_status tn_net_open(net *n, const char *path, tn_device *device) {
    *n = (net){.device = device};
    n->folder.prefix = "";
    if (!tn_hf_is_folder(path)) return tn_backend_fail(TN_ERR_IO, "'%s' is not a folder", path);
    return tn_hf_open(path, &n->folder);
}

static bool is_real(tn_dtype dtype) { return dtype == TN_F32 || dtype == TN_F16 || dtype == TN_BF16; }

/* All at once: casting a weight in the middle of a recording would run what is recorded so far. */
tn_status tn_net_load(net *n) {
    n->count = tn_hf_weights_count(n->folder.weights);
    n->weights = tn_txt_zalloc((size_t)n->count + 1, sizeof(tn_tensor *));
    n->used = tn_txt_zalloc((size_t)n->count + 1, sizeof *n->used);
    if (!n->weights || !n->used) return TN_ERR_MEMORY;
    for (int64_t i = 0; i < n->count; i++) {
        tn_safetensors_info info = {.struct_size = sizeof info};
        TRY(tn_hf_weights_at(n->folder.weights, i, &info));
        if (!is_real(info.dtype)) continue;
        TN_SCOPE;
        tn_tensor *t = tn_hf_weights_tensor(n->folder.weights, info.name);
        n->weights[i] = tn_retain(info.dtype == TN_F32 ? t : tn_cast(t, TN_F32));
        TRY(tn_eval(&n->weights[i], 1));
    }
    return TN_OK;
}

void tn_net_close(net *n) {
    for (int64_t i = 0; n->weights && i < n->count; i++)
        tn_free(n->weights[i]);
    tn_txt_free_each(n->weights, n->used);
    tn_hf_close(&n->folder);
    *n = (net){.device = NULL};
}

/* ---- weights by name --------------------------------------------------------------------------------------------- */

void tn_net_at(net *n, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(n->stem, sizeof n->stem, format, args);
    va_end(args);
}

static bool find(const net *n, const char *name, const char *ending, char full[HF_NAME_SIZE],
                 tn_safetensors_info *info) {
    bool fits = snprintf(full, HF_NAME_SIZE, "%s%s%s", n->stem, name, ending) < HF_NAME_SIZE;
    return fits && tn_hf_find(&n->folder, full, info);
}

bool tn_net_has(const net *n, const char *name) {
    char full[HF_NAME_SIZE];
    tn_safetensors_info info = {.struct_size = sizeof info};
    return find(n, name, "", full, &info);
}

static int64_t index_of(const net *n, const char *name) {
    for (int64_t i = 0; i < n->count; i++) {
        tn_safetensors_info info = {.struct_size = sizeof info};
        if (tn_hf_weights_at(n->folder.weights, i, &info) == TN_OK && strcmp(info.name, name) == 0) return i;
    }
    return -1;
}

static tn_tensor *weight(net *n, const char *name, const char *ending) {
    char full[HF_NAME_SIZE];
    tn_safetensors_info info = {.struct_size = sizeof info};
    if (!find(n, name, ending, full, &info))
        return tn_txt_failed(TN_ERR_FORMAT, "'%s' has no tensor '%s'", n->folder.path, full);
    int64_t i = index_of(n, info.name);
    if (i < 0 || !n->weights[i])
        return tn_txt_failed(TN_ERR_UNSUPPORTED, "'%s': tensor '%.100s' has type %s; weights must be F32, F16 or BF16",
                             n->folder.path, info.name, info.dtype_name);
    n->parameters += n->used[i] ? 0 : tn_numel(n->weights[i]);
    n->bytes += n->used[i] ? 0 : info.bytes;
    n->used[i] = true;
    return n->weights[i];
}

tn_tensor *tn_net_weight(net *n, const char *name) { return weight(n, name, ""); }

tn_tensor *tn_net_shaped(net *n, const char *name, const int64_t *shape) {
    char full[HF_NAME_SIZE];
    tn_safetensors_info info = {.struct_size = sizeof info};
    bool fits = !find(n, name, "", full, &info) || tn_hf_check(&n->folder, &info, shape) == TN_OK;
    return fits ? weight(n, name, "") : tn_txt_failed(TN_ERR_FORMAT, "%s", tn_error());
}

static bool is_beside(const char *name) {
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++)
        if (strstr(name, beside[i])) return true;
    return false;
}

tn_status tn_net_check(net *n, tn_status status) {
    const char *named = strstr(tn_error(), n->folder.path);
    if (status != TN_OK && named && named > tn_error() && named[-1] == '\'') return status; /* not any "." */
    if (status != TN_OK)
        return tn_backend_fail(status, "'%s': config.json and the weights do not fit together: %s", n->folder.path,
                               tn_error());
    for (int64_t i = 0; i < n->count; i++) {
        tn_safetensors_info info = {.struct_size = sizeof info};
        TRY(tn_hf_weights_at(n->folder.weights, i, &info));
        if (!n->used[i] && !is_beside(info.name))
            return tn_backend_fail(TN_ERR_UNSUPPORTED,
                                   "'%s': tensor '%.100s' is not known in a model with this config.json; ignoring it "
                                   "could give wrong results",
                                   n->folder.path, info.name);
    }
    return TN_OK;
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

/* y, which was made of x, the weight w and, with `bias`, that; where it failed, an error that names the weight. */
static tn_tensor *named(net *n, const char *name, const tn_tensor *x, const hf_linear *l, tn_tensor *y) {
    const tn_tensor *parts[] = {x, l->weight, l->bias};
    tn_status status = tn_status_of(y);
    for (int i = 0; i < 3 && status != TN_OK; i++)
        if (parts[i] && tn_status_of(parts[i]) != TN_OK) return y;
    if (status == TN_OK) return y;
    return tn_txt_failed(status, "'%s': tensor '%s%s', %s, does not fit rows of %s: %s", n->folder.path, n->stem, name,
                         tn_txt_shape(tn_shape(l->weight), tn_rank(l->weight)).text,
                         tn_txt_shape(tn_shape(x), tn_rank(x)).text, tn_error());
}

static hf_linear linear_of(net *n, const char *name, bool bias) {
    return (hf_linear){weight(n, name, ".weight"), bias ? weight(n, name, ".bias") : NULL};
}

tn_tensor *tn_net_linear(net *n, const tn_tensor *x, const char *name, bool bias) {
    const hf_linear l = linear_of(n, name, bias);
    return named(n, name, x, &l, tn_hf_linear(x, &l));
}

tn_tensor *tn_net_norm_by(net *n, const tn_tensor *x, const char *name, double eps) {
    const hf_linear l = linear_of(n, name, !n->plain_norms);
    return named(n, name, x, &l, tn_hf_norm(x, &l, eps));
}

tn_tensor *tn_net_add(net *n, const tn_tensor *x, const char *name) {
    const hf_linear l = {weight(n, name, ""), NULL};
    return named(n, name, x, &l, tn_add(x, l.weight));
}

tn_tensor *tn_net_norm(net *n, const tn_tensor *x, const char *name) { return tn_net_norm_by(n, x, name, n->eps); }

tn_tensor *tn_net_conv1d(net *n, const tn_tensor *x, const char *name, bool bias, int64_t stride, int64_t padding) {
    tn_conv1d_options o = TN_CONV1D_DEFAULTS;
    o.stride = stride;
    o.padding = padding;
    const hf_linear l = linear_of(n, name, bias);
    return named(n, name, x, &l, tn_conv1d(x, l.weight, l.bias, &o));
}

tn_tensor *tn_net_conv2d(net *n, const tn_tensor *x, const char *name, bool bias, const tn_conv2d_options *o) {
    const hf_linear l = linear_of(n, name, bias);
    return named(n, name, x, &l, tn_conv2d(x, l.weight, l.bias, o));
}

tn_tensor *tn_net_heads(const tn_tensor *x, int64_t heads) {
    int64_t width = tn_size(x, 2) / heads;
    return tn_transpose(tn_reshape(x, TN_DIMS(tn_size(x, 0), tn_size(x, 1), heads, width)), 1, 2);
}

tn_tensor *tn_net_project(net *n, const tn_tensor *x, const net_attention *a, int part, int64_t heads) {
    tn_rope_options o = TN_ROPE_DEFAULTS;
    const hf_linear l = linear_of(n, a->names[part], a->biases[part]);
    tn_tensor *y = named(n, a->names[part], x, &l, tn_net_heads(tn_hf_linear(x, &l), heads));
    o.interleaved = true;
    return a->turned && part < 2 ? tn_rope(y, n->turns[0], n->turns[1], &o) : y;
}

tn_tensor *tn_net_project_back(net *n, const tn_tensor *mixed, const net_attention *a) {
    return tn_net_linear(n, tn_flatten(tn_transpose(mixed, 1, 2), 2, 3), a->names[3], a->biases[3]);
}

tn_tensor *tn_net_attend(net *n, const tn_tensor *x, const net_attention *a, int64_t heads, const tn_tensor *bias) {
    tn_tensor *qkv[3];
    for (int i = 0; i < 3; i++)
        qkv[i] = tn_net_project(n, x, a, i, heads);
    return tn_net_project_back(n, tn_scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], bias, NULL), a);
}

static tn_tensor *scaled(net *n, tn_tensor *x, const char *name) {
    return name && tn_net_has(n, name) ? tn_mul(x, tn_net_weight(n, name)) : x;
}

tn_tensor *tn_net_feed(net *n, tn_tensor *x, const net_layer *l) {
    tn_tensor *y = tn_net_linear(n, tn_net_norm(n, x, l->norm[1]), l->up, true);
    int64_t inner = tn_size(y, -1) / 2;
    y = l->gated ? tn_mul(n->activation(tn_narrow(y, -1, inner, inner)), tn_narrow(y, -1, 0, inner)) : n->activation(y);
    return tn_add(x, scaled(n, tn_net_linear(n, y, l->down, true), l->scale[1]));
}

tn_tensor *tn_net_layer(net *n, tn_tensor *x, const net_layer *l, int64_t heads, const tn_tensor *bias) {
    tn_tensor *y = tn_net_attend(n, tn_net_norm(n, x, l->norm[0]), &l->attention, heads, bias);
    return tn_net_feed(n, tn_add(x, scaled(n, y, l->scale[0])), l);
}

tn_tensor *tn_net_weighted_sum(net *n, tn_tensor *const *states, int count, const char *name) {
    tn_tensor *shares = tn_softmax(tn_net_weight(n, name), 0);
    tn_tensor *all = tn_flatten(tn_stack(states, count, 0), 1, -1);
    return tn_view_as(tn_matmul(tn_unsqueeze(shares, 0), all), states[0]);
}
