/* classify.c — classifiers of pictures and sound: the table of families, opening, running. */
#include "text/classify.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#define ATTENTION(query, key, value, output, ...) \
    .attention = {.names = {query, key, value, output}, .biases = {__VA_ARGS__}}
#define VIT_ATTENTION(...)                                                                         \
    ATTENTION("attention.attention.query", "attention.attention.key", "attention.attention.value", \
              "attention.output.dense", __VA_ARGS__)
#define VIT_REST .norm = {"layernorm_before", "layernorm_after"}, .up = "intermediate.dense", .down = "output.dense"
static const net_layer vit_layer = {VIT_ATTENTION(true, true, true, true), VIT_REST};
static const net_layer beit_layer = {VIT_ATTENTION(true, false, true, true), VIT_REST,
                                     .scale = {"lambda_1", "lambda_2"}};
static const net_layer dino_layer = {
    VIT_ATTENTION(true, true, true, true),
    .norm = {"norm1", "norm2"},
    .up = "mlp.fc1",
    .down = "mlp.fc2",
    .scale = {"layer_scale1.lambda1", "layer_scale2.lambda1"},
};
static const net_layer swin_layer = {ATTENTION("attention.self.query", "attention.self.key", "attention.self.value",
                                               "attention.output.dense", true, true, true, true),
                                     VIT_REST};
static const net_layer whisper_layer = {
    ATTENTION("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj", true, false, true,
              true),
    .norm = {"self_attn_layer_norm", "final_layer_norm"},
    .up = "fc1",
    .down = "fc2",
};

static const classifier_family families[] = {
    {"vit", "vit.", INPUT_PICTURE, 1e-12, tn_record_vit, &vit_layer},
    {"deit", "deit.", INPUT_PICTURE, 1e-12, tn_record_vit, &vit_layer},
    {"beit", "beit.", INPUT_PICTURE, 1e-12, tn_record_vit, &beit_layer},
    {"data2vec-vision", "data2vec_vision.", INPUT_PICTURE, 1e-12, tn_record_vit, &beit_layer},
    {"dinov2", "dinov2.", INPUT_PICTURE, 1e-6, tn_record_vit, &dino_layer},
    {"swin", "swin.", INPUT_PICTURE, 1e-5, tn_record_swin, &swin_layer},
    {"resnet", "resnet.", INPUT_PICTURE, 1e-5, tn_record_resnet, NULL},
    {"convnext", "convnext.", INPUT_PICTURE, 1e-12, tn_record_convnext, NULL},
    {"convnextv2", "convnextv2.", INPUT_PICTURE, 1e-12, tn_record_convnext, NULL},
    {"mobilenet_v2", "mobilenet_v2.", INPUT_PICTURE, 1e-3, tn_record_mobilenet, NULL},
    {"audio-spectrogram-transformer", "audio_spectrogram_transformer.", INPUT_FILTER_BANK, 1e-12, tn_record_vit,
     &vit_layer},
    {"whisper", "", INPUT_LOG_MEL, 1e-5, tn_record_whisper, &whisper_layer},
};
enum { FAMILIES = sizeof families / sizeof *families };
static const classifier_family waves = {"wav2vec2", "", INPUT_WAVES, 1e-5, tn_record_waves, NULL};

static const classifier_family *find_family(const char *type) {
    for (size_t i = 0; i < FAMILIES; i++)
        if (strcmp(families[i].type, type) == 0) return &families[i];
    return tn_ctc_encoder_knows(type) ? &waves : NULL;
}

static bool is_known(const char *type) { return find_family(type) != NULL; }

bool tn_classifier_knows(const char *path) { return tn_hf_is_of(path, is_known); }

/* ---- config.json ------------------------------------------------------------------------------------------------- */

static const char *const numbers[] = {"frequency_stride", "time_stride", "window_size", "output_stride"};

static tn_status check_numbers(const hf_folder *f) {
    int64_t value;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        TRY(tn_hf_size(f, numbers[i], 1, HF_MOST_WIDTH, &value));
    return TN_OK;
}

int64_t tn_classifier_int(const tn_classifier *c, const char *key, int64_t fallback) {
    return tn_json_int(tn_json_get(c->net.folder.config, key), fallback);
}

bool tn_classifier_bool(const tn_classifier *c, const char *key, bool fallback) {
    return tn_json_bool(tn_json_get(c->net.folder.config, key), fallback);
}

static tn_status read_transformer(tn_classifier *c) {
    const hf_folder *f = &c->net.folder;
    bool encoder = tn_hf_has(f, "encoder_layers");
    TRY(tn_hf_size(f, encoder ? "encoder_layers" : "num_hidden_layers", 12, HF_MOST_LAYERS, &c->layers));
    if (strcmp(c->family->type, "swin") != 0) /* which has a list, of its stages */
        TRY(tn_hf_size(f, encoder ? "encoder_attention_heads" : "num_attention_heads", 12, HF_MOST_HEADS, &c->heads));
    TRY(tn_hf_refuse(f, "use_swiglu_ffn"));
    if (tn_classifier_bool(c, "qkv_bias", true)) return TN_OK;
    return tn_hf_fail(f->path, TN_ERR_UNSUPPORTED, "'qkv_bias' is false, which is not supported");
}

/* Layers of each stage. */
static tn_status check_depths(const hf_folder *f) {
    const tn_json *depths = tn_json_get(f->config, "depths");
    int64_t left = HF_MOST_LAYERS;
    bool fits = !tn_hf_has(f, "depths") || tn_json_kind_of(depths) == TN_JSON_ARRAY;
    for (size_t s = 0; fits && s < tn_json_length(depths); s++) {
        int64_t layers = tn_json_int(tn_json_at(depths, s), 0);
        fits = layers >= 1 && layers <= left;
        left -= layers;
    }
    if (fits) return TN_OK;
    return tn_hf_fail(f->path, TN_ERR_FORMAT, "'depths' must be a list of integers from 1 on, in total at most %d",
                      HF_MOST_LAYERS);
}

static tn_status read_config(tn_classifier *c) {
    const hf_folder *f = &c->net.folder;
    const char *type = tn_hf_text(f, "model_type", "");
    const tn_json *labels = tn_json_get(f->config, "id2label");
    c->family = find_family(type);
    if (!c->family)
        return tn_hf_fail(
            f->path, TN_ERR_UNSUPPORTED,
            "model_type is '%s'; classification supports vit, deit, beit, data2vec-vision, dinov2, swin, "
            "resnet, convnext, convnextv2, mobilenet_v2, audio-spectrogram-transformer, whisper, wav2vec2 "
            "and its siblings",
            tn_txt_shown(type, strlen(type)).text);
    c->net.folder.prefix = c->family->prefix;
    c->classes = tn_json_kind_of(labels) == TN_JSON_OBJECT ? (int64_t)tn_json_length(labels) : 2;
    const char *act = tn_hf_has(f, "activation_function") ? "activation_function" : "hidden_act";
    bool relu = c->family->record == tn_record_resnet, relu6 = c->family->record == tn_record_mobilenet;
    TRY(tn_hf_activation(f, act, relu ? "relu" : relu6 ? "relu6" : "gelu", &c->net.activation));
    TRY(tn_hf_real(f, f->config, "layer_norm_eps", c->family->eps, 1e-20, 1, &c->net.eps));
    if (c->family->layer) TRY(read_transformer(c));
    TRY(check_depths(f));
    TRY(check_numbers(f));
    return c->family->input == INPUT_PICTURE ? tn_picture_read(f, &c->picture) : tn_sound_read(c);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static tn_tensor *empty_input(const tn_classifier *c) {
    switch (c->family->input) {
    case INPUT_PICTURE: return tn_zeros(TN_DIMS(1, 3, c->picture.height, c->picture.width), TN_F32);
    case INPUT_LOG_MEL: return tn_zeros(TN_DIMS(1, c->mels, c->frames), TN_F32);
    case INPUT_FILTER_BANK: return tn_zeros(TN_DIMS(1, c->frames, c->mels), TN_F32);
    default: return tn_zeros(TN_DIMS(tn_ctc_encoder_least(&c->waves)), TN_F32);
    }
}

/* Loads the weights, and records once what is not run: weights that are missing or do not fit are found. */
static tn_status load(tn_classifier *c) {
    TRY(tn_net_load(&c->net));
    if (c->family->input == INPUT_WAVES) TRY(tn_ctc_encoder_load(&c->net, &c->waves));
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *logits = c->family->record(c, empty_input(c));
    TRY(tn_net_check(&c->net, tn_status_of(logits)));
    if (tn_rank(logits) == 2 && tn_size(logits, 1) == c->classes) return TN_OK;
    return tn_hf_fail(c->net.folder.path, TN_ERR_FORMAT, "'id2label' has %" PRId64 " classes, but the weights %" PRId64,
                      c->classes, tn_size(logits, -1));
}

static tn_status open_classifier(void *model, const char *folder, tn_device *device, TN_UNUSED const void *options) {
    tn_classifier *c = model;
    TRY(tn_net_open(&c->net, folder, device));
    TRY(read_config(c));
    AUTO_DEVICE(device);
    return load(c);
}

static void close_classifier(void *model) {
    tn_classifier *c = model;
    if (!c) return;
    tn_ctc_encoder_free(&c->waves);
    tn_log_mel_free(&c->mel);
    tn_net_close(&c->net);
    tn_txt_free(c);
}

void tn_classifier_close(tn_classifier *c) { close_classifier(c); }

tn_status tn_classifier_open(const char *folder, const tn_classifier_options *options, tn_classifier **out) {
    static const hf_kind kind = {"tn_classifier_open",  "tn_classifier_options o = TN_CLASSIFIER_DEFAULTS",
                                 sizeof(tn_classifier), offsetof(tn_classifier_options, device),
                                 open_classifier,       close_classifier};
    return tn_hf_open_model(&kind, folder, options, &(tn_classifier_options)TN_CLASSIFIER_DEFAULTS, out);
}

tn_status tn_classifier_get_facts(const tn_classifier *c, tn_classifier_facts *facts) {
    TRY(tn_txt_check_facts("tn_classifier_get_facts: facts", c, facts));
    const hf_folder *f = &c->net.folder;
    tn_classifier_facts full = {
        .struct_size = sizeof full,
        .architecture = tn_hf_text(f, "model_type", ""),
        .hears = c->family->input != INPUT_PICTURE,
        .classes = c->classes,
        .height = c->picture.height,
        .width = c->picture.width,
        .independent = c->classes == 1 || strcmp(tn_hf_text(f, "problem_type", ""), "multi_label_classification") == 0,
        .parameters = c->net.parameters,
        .weights_bytes = c->net.bytes};
    return tn_result_write(facts, &full, sizeof full, "tn_classifier_get_facts: facts");
}

const char *tn_classifier_label(const tn_classifier *c, int64_t index) {
    char key[24];
    snprintf(key, sizeof key, "%" PRId64, index);
    return c ? tn_json_string(tn_json_get(tn_json_get(c->net.folder.config, "id2label"), key), "") : "";
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static tn_status run(tn_classifier *c, const uint8_t *rgb, int64_t height, int64_t width, const float *samples,
                     int64_t count, float *out) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *x = rgb ? tn_picture_record(&c->picture, rgb, height, width) : tn_sound_record(c, samples, count);
    return tn_read(c->family->record(c, x), out, (size_t)c->classes * sizeof *out);
}

tn_status tn_classifier_picture(tn_classifier *c, const uint8_t *rgb, int64_t height, int64_t width, float *out) {
    if (!c || !rgb || !out) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_classifier_picture: an argument is NULL");
    if (c->family->input != INPUT_PICTURE)
        return tn_backend_fail(TN_ERR_ARGUMENT, "'%s' classifies sound, not pictures", c->net.folder.path);
    AUTO_DEVICE(c->net.device);
    return run(c, rgb, height, width, NULL, 0, out);
}

tn_status tn_classifier_prepare(const tn_classifier *c, const uint8_t *rgb, int64_t height, int64_t width, float *out) {
    if (!c || !rgb || !out || c->family->input != INPUT_PICTURE)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "tn_classifier_prepare: an argument is NULL, or the classifier is one of sound");
    TN_SCOPE;
    TN_NO_GRAD;
    return tn_read(tn_picture_record(&c->picture, rgb, height, width), out,
                   (size_t)(3 * c->picture.height * c->picture.width) * sizeof *out);
}

tn_status tn_classifier_prepare_by(const char *folder, const uint8_t *rgb, int64_t height, int64_t width,
                                   tn_tensor **out) {
    picture_preparation p;
    if (!folder || !rgb || !out)
        return tn_backend_fail(TN_ERR_ARGUMENT, "tn_classifier_prepare_by: an argument is NULL");
    *out = NULL;
    TRY(tn_picture_read(&(hf_folder){.path = (char *)(uintptr_t)folder}, &p));
    {
        TN_SCOPE;
        TN_NO_GRAD;
        *out = tn_retain(tn_picture_record(&p, rgb, height, width));
    }
    tn_status status = tn_eval(out, 1);
    if (status == TN_OK) return TN_OK;
    tn_free(*out);
    *out = NULL;
    return status;
}

tn_status tn_classifier_sound(tn_classifier *c, const float *samples, int64_t count, float *out) {
    if (!c || !samples || !out || count < 1)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "tn_classifier_sound: a pointer is NULL, or the number of samples is %" PRId64, count);
    if (c->family->input == INPUT_PICTURE)
        return tn_backend_fail(TN_ERR_ARGUMENT, "'%s' classifies pictures, not sound", c->net.folder.path);
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(samples[i]))
            return tn_backend_fail(TN_ERR_ARGUMENT, "sample %" PRId64 " is %g; it must be finite", i,
                                   (double)samples[i]);
    AUTO_DEVICE(c->net.device);
    return run(c, NULL, 0, 0, samples, count, out);
}

void tn_classifier_probabilities(const tn_classifier *c, float *logits) {
    tn_classifier_facts facts = {.struct_size = sizeof facts};
    double most = -INFINITY, sum = 0;
    if (tn_classifier_get_facts(c, &facts) != TN_OK || !logits) return;
    for (int64_t i = 0; i < facts.classes; i++)
        most = fmax(most, (double)logits[i]);
    for (int64_t i = 0; i < facts.classes; i++)
        sum += exp((double)logits[i] - most);
    for (int64_t i = 0; i < facts.classes; i++)
        logits[i] =
            (float)(facts.independent ? 1 / (1 + exp(-(double)logits[i])) : exp((double)logits[i] - most) / sum);
}
