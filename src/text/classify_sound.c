/* classify_sound.c — networks that classify sound: Whisper's encoder, Wav2Vec 2 and its siblings; features of AST,
 * whose network is in vision.c.
 *
 * Sources: Radford et al. 2022; Yang et al. 2021, "SUPERB" (the weighted sum of layers); Gong et al. 2021, "AST". */
#include <inttypes.h>

#include "text/classify.h"

enum { MOST_FRAMES = 1 << 16, MOST_MELS = 1024 };
enum { MOST_SECONDS = 300 }; /* of sound that attends to itself as a whole */

/* ---- preparation ------------------------------------------------------------------------------------------------- */

static const hf_key keys[] = {{"do_normalize", TN_JSON_BOOL},
                              {"mean", TN_JSON_NUMBER},
                              {"std", TN_JSON_NUMBER},
                              {"sampling_rate", TN_JSON_NUMBER},
                              {NULL, TN_JSON_NULL}};

static tn_status read_filter_bank(tn_classifier *c) {
    const hf_folder *f = &c->net.folder;
    tn_json_doc *doc;
    TRY(tn_hf_json(f, "preprocessor_config.json", &doc));
    const tn_json *o = tn_json_root(doc);
    tn_status status = tn_hf_check_kinds(f, "preprocessor_config.json", o, keys);
    bool normalizes = tn_json_bool(tn_json_get(o, "do_normalize"), true);
    c->mean = normalizes ? tn_json_number(tn_json_get(o, "mean"), -4.2677393) : 0;
    c->std = normalizes ? tn_json_number(tn_json_get(o, "std"), 4.5689974) : 0.5;
    double rate = tn_json_number(tn_json_get(o, "sampling_rate"), TN_SPEECH_RATE);
    tn_json_free(doc);
    TRY(status);
    TRY(tn_hf_size(f, "max_length", 1024, MOST_FRAMES, &c->frames));
    TRY(tn_hf_size(f, "num_mel_bins", 128, MOST_MELS, &c->mels));
    if (rate != TN_SPEECH_RATE || c->std == 0)
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "'%s/preprocessor_config.json': 'sampling_rate' must be %d and 'std' not 0", f->path,
                               (int)TN_SPEECH_RATE);
    return tn_log_mel_init(&c->mel, c->mels, true);
}

tn_status tn_sound_read(tn_classifier *c) {
    if (c->family->input == INPUT_FILTER_BANK) return read_filter_bank(c);
    c->weighted = tn_classifier_bool(c, "use_weighted_layer_sum", false);
    if (c->family->input == INPUT_WAVES) {
        TRY(tn_ctc_encoder_read(&c->net, &c->waves));
        c->layers = c->waves.layers;
        return TN_OK;
    }
    c->frames = MEL_WINDOW_FRAMES;
    TRY(tn_hf_size(&c->net.folder, "num_mel_bins", 80, MOST_MELS, &c->mels));
    return tn_log_mel_init(&c->mel, c->mels, false);
}

static tn_tensor *failed(tn_status status) { return tn_txt_failed(status, "%s", tn_error()); }

tn_tensor *tn_sound_record(tn_classifier *c, const float *samples, int64_t count) {
    const int64_t window = MEL_WINDOW_FRAMES * MEL_HOP;
    AUTO_TXT_FREE float *room = NULL;
    tn_status status = TN_OK;
    bool waves = c->family->input == INPUT_WAVES, bank = c->family->input == INPUT_FILTER_BANK;
    if (waves && (count > MOST_SECONDS * TN_SPEECH_RATE || tn_ctc_encoder_frames(&c->waves, count) < 1))
        return tn_txt_failed(TN_ERR_ARGUMENT, "%" PRId64 " samples; supported are %" PRId64 " to %d", count,
                             tn_ctc_encoder_least(&c->waves), MOST_SECONDS * TN_SPEECH_RATE);
    if (waves) status = tn_ctc_encoder_prepare(&c->waves, samples, count, &room);
    if (!waves) room = tn_txt_zalloc((size_t)c->frames, (size_t)c->mels * sizeof *room);
    if (!room) return failed(status == TN_OK ? TN_ERR_MEMORY : status);
    if (bank) status = tn_log_mel_kaldi(&c->mel, samples, count, c->frames, room);
    for (int64_t i = 0; bank && i < c->frames * c->mels; i++)
        room[i] = (float)(((double)room[i] - c->mean) / (2 * c->std));
    if (!waves && !bank) status = tn_log_mel_run(&c->mel, samples, count < window ? count : window, room);
    return status != TN_OK ? failed(status)
           : waves         ? tn_from_data(room, TN_DIMS(count), TN_F32)
           : bank          ? tn_from_data(room, TN_DIMS(1, c->frames, c->mels), TN_F32)
                           : tn_from_data(room, TN_DIMS(1, c->mels, c->frames), TN_F32);
}

/* ---- networks ---------------------------------------------------------------------------------------------------- */

/* The rows [1, n, hidden] after all layers, or the weighted sum of those before and after each, classified by their
 * mean. */
static tn_tensor *classified(tn_classifier *c, tn_tensor *x, tn_tensor *const *states) {
    net *n = &c->net;
    tn_net_at(n, "%s", "");
    if (c->weighted) x = tn_net_weighted_sum(n, states, (int)c->layers + 1, "layer_weights");
    return tn_net_linear(n, tn_mean(tn_net_linear(n, x, "projector", true), (int64_t[]){1}, 1, false), "classifier",
                         true);
}

tn_tensor *tn_record_whisper(tn_classifier *c, tn_tensor *x) {
    net *n = &c->net;
    AUTO_TXT_FREE tn_tensor **states = tn_txt_zalloc((size_t)c->layers + 1, sizeof(tn_tensor *));
    if (!states) return failed(TN_ERR_MEMORY);
    tn_net_at(n, "encoder.");
    x = n->activation(tn_net_conv1d(n, x, "conv1", true, 1, 1));
    x = n->activation(tn_net_conv1d(n, x, "conv2", true, 2, 1));
    x = tn_net_add(n, tn_transpose(x, 1, 2), "embed_positions.weight");
    for (int64_t i = 0; i < c->layers; i++) {
        states[i] = x;
        tn_net_at(n, "encoder.layers.%" PRId64 ".", i);
        x = tn_net_layer(n, x, c->family->layer, c->heads, NULL);
    }
    tn_net_at(n, "encoder.");
    states[c->layers] = x = tn_net_norm(n, x, "layer_norm");
    return classified(c, x, states);
}

tn_tensor *tn_record_waves(tn_classifier *c, tn_tensor *x) {
    AUTO_TXT_FREE tn_tensor **states = tn_txt_zalloc((size_t)c->layers + 1, sizeof(tn_tensor *));
    if (!states) return failed(TN_ERR_MEMORY);
    x = tn_ctc_encoder_record(&c->waves, &c->net, x, states);
    return classified(c, x, states);
}
