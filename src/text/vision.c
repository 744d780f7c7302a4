/* vision.c — networks that classify pictures, each a function that records it: Vision Transformers (ViT, DeiT, BEiT,
 * DINOv2, and AST, whose picture is a spectrogram), Swin, ResNet, ConvNeXt, MobileNetV2.
 *
 * Sources: Dosovitskiy et al. 2021; Touvron et al. 2021; Bao et al. 2022; Oquab et al. 2023; Gong et al. 2021; He et
 * al. 2016; Liu et al. 2021 (Swin), 2022 (ConvNeXt); Woo et al. 2023; Sandler et al. 2018; as transformers has them. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "text/classify.h"

static tn_tensor *mean(const tn_tensor *x, int64_t dim) { return tn_mean(x, (int64_t[]){dim}, 1, false); }

/* x [1, channels, h, w] as [1, h · w, channels]. */
static tn_tensor *rows_of(const tn_tensor *x) { return tn_transpose(tn_flatten(x, 2, 3), 1, 2); }

static tn_tensor *strided(net *n, const tn_tensor *x, const char *name, int64_t vertical, int64_t horizontal) {
    tn_conv2d_options o = TN_CONV2D_DEFAULTS;
    o.stride[0] = vertical;
    o.stride[1] = horizontal;
    return tn_net_conv2d(n, x, name, true, &o);
}

/* Patches that do not overlap. */
static tn_tensor *patches(net *n, const tn_tensor *x, const char *name) {
    char full[HF_NAME_SIZE];
    snprintf(full, sizeof full, "%s.weight", name);
    const tn_tensor *w = tn_net_weight(n, full);
    return strided(n, x, name, tn_size(w, 2), tn_size(w, 3));
}

/* ---- positions --------------------------------------------------------------------------------------------------- */

/* The bias of each pair of places in a window of h by w, from a table of distances: [1, heads, n, n]. With `first`
 * there is a class token in front, whose distances are the last three rows. */
static tn_tensor *bias_of_distances(tn_tensor *table, int64_t h, int64_t w, bool first) {
    int64_t n = h * w + first, rows = (2 * h - 1) * (2 * w - 1);
    if (n < 1 || n > HF_MOST_HEADS || tn_rank(table) != 2 || tn_size(table, 0) != rows + 3 * first)
        return tn_txt_failed(TN_ERR_FORMAT,
                             "a table of distances does not have the %" PRId64 " rows of %" PRId64 " by %" PRId64
                             " places",
                             rows + 3 * first, h, w);
    int64_t *index = tn_txt_alloc((size_t)n, (size_t)n * sizeof *index);
    if (!index) return tn_txt_failed(TN_ERR_MEMORY, "%s", tn_error());
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            int64_t a = i - first, b = j - first;
            int64_t row = (a / w - b / w + h - 1) * (2 * w - 1) + a % w - b % w + w - 1;
            if (a < 0) row = rows;
            if (b < 0) row = a < 0 ? rows + 2 : rows + 1;
            index[i * n + j] = row;
        }
    tn_tensor *at = tn_from_data(index, TN_DIMS(n, n), TN_I64);
    tn_txt_free(index);
    return tn_unsqueeze(tn_permute(tn_embedding(at, table), TN_DIMS(2, 0, 1)), 0);
}

/* Positions [1, extra + m², hidden] of a square of places, interpolated to h by w. */
static tn_tensor *interpolated(tn_tensor *positions, int64_t extra, int64_t h, int64_t w) {
    int64_t count = tn_size(positions, 1) - extra, side = (int64_t)sqrt((double)(count > 0 ? count : 0));
    if ((h == side && w == side) || side * side != count) return positions;
    tn_tensor *grid = tn_reshape(tn_narrow(positions, 1, extra, count), TN_DIMS(1, side, side, tn_size(positions, 2)));
    grid =
        tn_interpolate(tn_permute(grid, TN_DIMS(0, 3, 1, 2)), (int64_t[]){h, w}, 2, NULL, TN_INTERPOLATE_CUBIC, false);
    return tn_cat((tn_tensor *[]){tn_narrow(positions, 1, 0, extra), rows_of(grid)}, 2, 1);
}

/* ---- Vision Transformers ----------------------------------------------------------------------------------------- */

static tn_tensor *mean_of_rest(const tn_tensor *x, int64_t extra) {
    return mean(tn_narrow(x, 1, extra, tn_size(x, 1) - extra), 1);
}

static tn_tensor *head_of(tn_classifier *c, tn_tensor *x, int64_t extra) {
    net *n = &c->net;
    tn_net_at(n, "%s", "");
    if (tn_net_has(n, "pooler.layernorm.weight"))
        return tn_net_linear(n, tn_net_norm(n, mean_of_rest(x, extra), "pooler.layernorm"), "classifier", true);
    x = tn_net_norm(n, x, "layernorm");
    tn_tensor *first = tn_select(x, 1, 0);
    if (c->family->input == INPUT_FILTER_BANK) {
        tn_tensor *both = tn_net_norm(n, mean(tn_narrow(x, 1, 0, 2), 1), "classifier.layernorm");
        return tn_net_linear(n, both, "classifier.dense", true);
    }
    if (tn_net_has(n, "cls_classifier.weight"))
        return tn_mul_scalar(tn_add(tn_net_linear(n, first, "cls_classifier", true),
                                    tn_net_linear(n, tn_select(x, 1, 1), "distillation_classifier", true)),
                             0.5);
    if (strcmp(c->family->type, "dinov2") == 0) first = tn_cat((tn_tensor *[]){first, mean_of_rest(x, extra)}, 2, 1);
    return tn_net_linear(n, first, "classifier", true);
}

tn_tensor *tn_record_vit(tn_classifier *c, tn_tensor *x) {
    static const char table[] = "relative_position_bias.relative_position_bias_table";
    net *n = &c->net;
    char of_layer[HF_NAME_SIZE];
    tn_net_at(n, "embeddings.");
    if (c->family->input == INPUT_FILTER_BANK) /* time runs to the right */
        x = strided(n, tn_unsqueeze(tn_transpose(x, 1, 2), 1), "patch_embeddings.projection",
                    tn_classifier_int(c, "frequency_stride", 10), tn_classifier_int(c, "time_stride", 10));
    else
        x = patches(n, x, "patch_embeddings.projection");
    int64_t h = tn_size(x, 2), w = tn_size(x, 3), extra = 1;
    tn_tensor *parts[3] = {tn_net_weight(n, "cls_token")}, *shared = NULL;
    if (tn_net_has(n, "distillation_token")) parts[extra++] = tn_net_weight(n, "distillation_token");
    parts[extra] = rows_of(x);
    x = tn_cat(parts, (int)extra + 1, 1);
    if (strcmp(c->family->type, "dinov2") == 0)
        x = tn_add(x, interpolated(tn_net_weight(n, "position_embeddings"), extra, h, w));
    else if (tn_net_has(n, "position_embeddings"))
        x = tn_net_add(n, x, "position_embeddings");
    tn_net_at(n, "encoder.");
    if (tn_net_has(n, table)) shared = bias_of_distances(tn_net_weight(n, table), h, w, true);
    snprintf(of_layer, sizeof of_layer, "attention.attention.%s", table);
    for (int64_t i = 0; i < c->layers; i++) {
        tn_net_at(n, "encoder.layer.%" PRId64 ".", i);
        tn_tensor *bias = shared;
        if (tn_net_has(n, of_layer)) bias = bias_of_distances(tn_net_weight(n, of_layer), h, w, true);
        x = tn_net_layer(n, x, c->family->layer, c->heads, bias);
    }
    return head_of(c, x, extra);
}

/* ---- Swin -------------------------------------------------------------------------------------------------------- */

/* x [1, h, w, channels] as windows [count, size², channels], and back. */
static tn_tensor *windows_of(const tn_tensor *x, int64_t size) {
    int64_t h = tn_size(x, 1), w = tn_size(x, 2), channels = tn_size(x, 3);
    x = tn_transpose(tn_reshape(x, TN_DIMS(h / size, size, w / size, size, channels)), 1, 2);
    return tn_reshape(x, TN_DIMS(-1, size * size, channels));
}
static tn_tensor *from_windows(const tn_tensor *x, int64_t size, int64_t h, int64_t w) {
    x = tn_transpose(tn_reshape(x, TN_DIMS(h / size, w / size, size, size, tn_size(x, 2))), 1, 2);
    return tn_reshape(x, TN_DIMS(1, h, w, tn_size(x, 4)));
}

/* Windows of a picture that was rolled see parts of it that are not neighbours; what is added to their scores,
 * [count, 1, size², size²]: -100 between different parts. */
static tn_tensor *mask_of(int64_t h, int64_t w, int64_t size, int64_t shift) {
    tn_tensor *part[2];
    for (int d = 0; d < 2; d++) {
        int64_t extent = d ? w : h;
        tn_tensor *at = tn_arange(0, (double)extent, 1, TN_F32);
        tn_tensor *number = tn_add(tn_cast(tn_ge_scalar(at, (double)(extent - size)), TN_F32),
                                   tn_cast(tn_ge_scalar(at, (double)(extent - shift)), TN_F32));
        part[d] = tn_reshape(number, TN_DIMS(1, d ? 1 : h, d ? w : 1, 1));
    }
    tn_tensor *parts = windows_of(tn_contiguous(tn_add(tn_mul_scalar(part[0], 3), part[1])), size);
    tn_tensor *differ = tn_ne(parts, tn_transpose(parts, 1, 2));
    return tn_unsqueeze(tn_mul_scalar(tn_cast(differ, TN_F32), -100), 1);
}

/* x [1, h, w, channels] through a block; the norm, attention in windows, and the feed-forward. */
static tn_tensor *swin_block(tn_classifier *c, tn_tensor *x, int64_t size, int64_t shift) {
    net *n = &c->net;
    int64_t h = tn_size(x, 1), w = tn_size(x, 2);
    tn_tensor *y = tn_net_norm(n, x, c->family->layer->norm[0]);
    tn_tensor *bias =
        bias_of_distances(tn_net_weight(n, "attention.self.relative_position_bias_table"), size, size, false);
    if (shift) {
        y = tn_roll(y, (int64_t[]){-shift, -shift}, 2, (int64_t[]){1, 2}, 2);
        bias = tn_add(bias, mask_of(h, w, size, shift));
    }
    y = tn_net_attend(n, windows_of(y, size), &c->family->layer->attention, c->heads, bias);
    y = from_windows(y, size, h, w);
    if (shift) y = tn_roll(y, (int64_t[]){shift, shift}, 2, (int64_t[]){1, 2}, 2);
    return tn_net_feed(n, tn_add(x, y), c->family->layer);
}

/* Four neighbours become one place with twice the channels. */
static tn_tensor *merge(net *n, const tn_tensor *x) {
    int64_t h = tn_size(x, 1), w = tn_size(x, 2), channels = tn_size(x, 3);
    x = tn_permute(tn_reshape(x, TN_DIMS(h / 2, 2, w / 2, 2, channels)), TN_DIMS(0, 2, 3, 1, 4));
    x = tn_net_norm(n, tn_reshape(x, TN_DIMS(1, h / 2, w / 2, 4 * channels)), "downsample.norm");
    return tn_net_linear(n, x, "downsample.reduction", false);
}

tn_tensor *tn_record_swin(tn_classifier *c, tn_tensor *x) {
    net *n = &c->net;
    const tn_json *depths = tn_json_get(n->folder.config, "depths"),
                  *heads = tn_json_get(n->folder.config, "num_heads");
    int64_t size = tn_classifier_int(c, "window_size", 7), stages = (int64_t)tn_json_length(depths);
    tn_net_at(n, "embeddings.");
    x = tn_net_norm(n, tn_permute(patches(n, x, "patch_embeddings.projection"), TN_DIMS(0, 2, 3, 1)), "norm");
    if (tn_net_has(n, "position_embeddings")) x = tn_add(x, tn_view_as(tn_net_weight(n, "position_embeddings"), x));
    for (int64_t s = 0; s < stages; s++) {
        int64_t h = tn_size(x, 1), w = tn_size(x, 2), least = h < w ? h : w;
        c->heads = tn_json_int(tn_json_at(heads, (size_t)s), 0);
        if (tn_status_of(x) != TN_OK) return x;
        if (h % size || w % size || c->heads < 1)
            return tn_txt_failed(TN_ERR_UNSUPPORTED,
                                 "Swin: stage %" PRId64 " has %" PRId64 " by %" PRId64 " places and %" PRId64
                                 " heads; supported are multiples of the window, %" PRId64,
                                 s, h, w, c->heads, size);
        for (int64_t b = 0; b < tn_json_int(tn_json_at(depths, (size_t)s), 0); b++) {
            tn_net_at(n, "encoder.layers.%" PRId64 ".blocks.%" PRId64 ".", s, b);
            x = swin_block(c, x, size, b % 2 && least > size ? size / 2 : 0);
        }
        tn_net_at(n, "encoder.layers.%" PRId64 ".", s);
        if (s + 1 < stages) x = merge(n, x);
    }
    tn_net_at(n, "%s", "");
    return tn_net_linear(n, mean(tn_flatten(tn_net_norm(n, x, "layernorm"), 1, 2), 1), "classifier", true);
}

/* ---- networks of convolutions ------------------------------------------------------------------------------------ */

/* A convolution and the norm of its channels, "convolution" and "normalization". tensorflow: the border is padded as
 * TensorFlow does, more at the end. */
typedef struct window {
    int64_t stride;
    bool depthwise, tensorflow;
} window;

static tn_tensor *normed(net *n, const tn_tensor *x, double eps, window how) {
    const tn_tensor *w = tn_net_weight(n, "convolution.weight");
    int64_t kernel = tn_size(w, 2), rest = tn_size(x, 2) % how.stride, across = tn_size(x, 3) % how.stride;
    tn_conv2d_options o = TN_CONV2D_DEFAULTS;
    tn_batch_norm_options b = TN_BATCH_NORM_DEFAULTS;
    b.eps = eps;
    o.stride[0] = o.stride[1] = how.stride;
    o.groups = how.depthwise ? tn_size(w, 0) : 1;
    if (how.tensorflow) {
        int64_t tall = kernel - (rest ? rest : how.stride), wide = kernel - (across ? across : how.stride);
        tall = tall > 0 ? tall : 0;
        wide = wide > 0 ? wide : 0;
        x = tn_pad(x, (int64_t[]){wide / 2, wide - wide / 2, tall / 2, tall - tall / 2}, 4, 0);
    } else {
        o.padding[0] = o.padding[1] = (kernel - 1) / 2;
    }
    return tn_batch_norm(tn_conv2d(x, w, NULL, &o), tn_net_weight(n, "normalization.running_mean"),
                         tn_net_weight(n, "normalization.running_var"), tn_net_weight(n, "normalization.weight"),
                         tn_net_weight(n, "normalization.bias"), false, &b);
}

/* The mean of each channel, classified. */
static tn_tensor *classified(net *n, const tn_tensor *x, const char *name) {
    tn_net_at(n, "%s", "");
    return tn_net_linear(n, tn_mean(x, (int64_t[]){2, 3}, 2, false), name, true);
}

static const double NORM_EPS = 1e-5; /* of torch.nn.BatchNorm2d */

/* A residual layer of `count` convolutions, number `where` has the stride. */
static tn_tensor *resnet_layer(net *n, tn_tensor *x, int64_t s, int64_t l, int64_t count, int64_t where,
                               int64_t stride) {
    tn_tensor *y = x;
    for (int64_t i = 0; i < count; i++) {
        tn_net_at(n, "encoder.stages.%" PRId64 ".layers.%" PRId64 ".layer.%" PRId64 ".", s, l, i);
        y = normed(n, y, NORM_EPS, (window){i == where ? stride : 1, false, false});
        if (i + 1 < count) y = n->activation(y);
    }
    tn_net_at(n, "encoder.stages.%" PRId64 ".layers.%" PRId64 ".shortcut.", s, l);
    if (tn_net_has(n, "convolution.weight")) x = normed(n, x, NORM_EPS, (window){stride, false, false});
    return n->activation(tn_add(x, y));
}

tn_tensor *tn_record_resnet(tn_classifier *c, tn_tensor *x) {
    net *n = &c->net;
    const tn_json *depths = tn_json_get(n->folder.config, "depths");
    bool bottleneck = strcmp(tn_hf_text(&n->folder, "layer_type", "bottleneck"), "bottleneck") == 0;
    int64_t where = bottleneck && !tn_classifier_bool(c, "downsample_in_bottleneck", false);
    tn_max_pool2d_options o = TN_MAX_POOL2D_DEFAULTS;
    o.stride[0] = o.stride[1] = 2;
    o.padding[0] = o.padding[1] = 1;
    tn_net_at(n, "embedder.embedder.");
    x = tn_max_pool2d(n->activation(normed(n, x, NORM_EPS, (window){2, false, false})), (int64_t[]){3, 3}, &o);
    for (size_t s = 0; s < tn_json_length(depths); s++)
        for (int64_t l = 0; l < tn_json_int(tn_json_at(depths, s), 0); l++) {
            bool halves = l == 0 && (s > 0 || tn_classifier_bool(c, "downsample_in_first_stage", false));
            x = resnet_layer(n, x, (int64_t)s, l, bottleneck ? 3 : 2, where, halves ? 2 : 1);
        }
    return classified(n, x, "classifier.1");
}

static const double CONVNEXT_EPS = 1e-6; /* of all norms but the last; not in config.json */

static tn_tensor *channels_last(const tn_tensor *x) { return tn_permute(x, TN_DIMS(0, 2, 3, 1)); }
static tn_tensor *channels_first(const tn_tensor *x) { return tn_permute(x, TN_DIMS(0, 3, 1, 2)); }

static tn_tensor *convnext_layer(net *n, tn_tensor *x) {
    tn_conv2d_options o = TN_CONV2D_DEFAULTS;
    o.padding[0] = o.padding[1] = 3;
    o.groups = tn_size(x, 1);
    tn_tensor *y = channels_last(tn_net_conv2d(n, x, "dwconv", true, &o));
    y = n->activation(tn_net_linear(n, tn_net_norm_by(n, y, "layernorm", CONVNEXT_EPS), "pwconv1", true));
    if (tn_net_has(n, "grn.weight")) { /* version 2: channels by their share of the picture's energy */
        tn_tensor *norms = tn_norm(y, 2, (int64_t[]){1, 2}, 2, true);
        norms = tn_div(norms, tn_add_scalar(tn_mean(norms, (int64_t[]){3}, 1, true), 1e-6));
        y = tn_add(y, tn_add(tn_mul(tn_net_weight(n, "grn.weight"), tn_mul(y, norms)), tn_net_weight(n, "grn.bias")));
    }
    y = tn_net_linear(n, y, "pwconv2", true);
    if (tn_net_has(n, "layer_scale_parameter")) y = tn_mul(y, tn_net_weight(n, "layer_scale_parameter"));
    return tn_add(x, channels_first(y));
}

tn_tensor *tn_record_convnext(tn_classifier *c, tn_tensor *x) {
    net *n = &c->net;
    const tn_json *depths = tn_json_get(n->folder.config, "depths");
    tn_net_at(n, "embeddings.");
    x = channels_first(tn_net_norm_by(n, channels_last(patches(n, x, "patch_embeddings")), "layernorm", CONVNEXT_EPS));
    for (size_t s = 0; s < tn_json_length(depths); s++) {
        tn_net_at(n, "encoder.stages.%zu.", s);
        if (s > 0)
            x = patches(n, channels_first(tn_net_norm_by(n, channels_last(x), "downsampling_layer.0", CONVNEXT_EPS)),
                        "downsampling_layer.1");
        for (int64_t l = 0; l < tn_json_int(tn_json_at(depths, s), 0); l++) {
            tn_net_at(n, "encoder.stages.%zu.layers.%" PRId64 ".", s, l);
            x = convnext_layer(n, x);
        }
    }
    tn_net_at(n, "%s", "");
    x = tn_net_norm(n, tn_mean(x, (int64_t[]){2, 3}, 2, false), "layernorm");
    return tn_net_linear(n, x, "classifier", true);
}

tn_tensor *tn_record_mobilenet(tn_classifier *c, tn_tensor *x) {
    static const char *const parts[] = {"first_conv", "expand_1x1", "conv_3x3", "reduce_1x1"};
    static const int64_t strides[] = {2, /* the stem */
                                      2, 1, 2, 1, 1, 2, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1};
    net *n = &c->net;
    bool tensorflow = tn_classifier_bool(c, "tf_padding", true);
    if (tn_classifier_int(c, "output_stride", 32) != 32)
        return tn_txt_failed(TN_ERR_UNSUPPORTED, "MobileNetV2: only an 'output_stride' of 32 is supported");
    for (int64_t l = 0; l < (int64_t)(sizeof strides / sizeof *strides); l++) {
        tn_tensor *y = x;
        for (int p = l == 0 ? 0 : 1; p < 4; p++) {
            bool middle = p == 2;
            tn_net_at(n, "conv_stem.%s.", parts[p]);
            if (l > 0) tn_net_at(n, "layer.%" PRId64 ".%s.", l - 1, parts[p]);
            if (p == 1 && l == 0 && tn_classifier_bool(c, "first_layer_is_expansion", true)) continue;
            int64_t stride = p == (l == 0 ? 0 : 2) ? strides[l] : 1;
            y = normed(n, y, n->eps, (window){stride, middle, tensorflow});
            if (p < 3) y = n->activation(y);
        }
        bool residual = l > 0 && strides[l] == 1 && tn_size(x, 1) == tn_size(y, 1);
        x = residual ? tn_add(x, y) : y;
    }
    tn_net_at(n, "conv_1x1.");
    return classified(n, n->activation(normed(n, x, n->eps, (window){1, false, tensorflow})), "classifier");
}
