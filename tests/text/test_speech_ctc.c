/* test_speech_ctc.c — small models of CTC: sound becomes letters, and what does not fit is refused.
 *
 * tools/text/hf_folders.py compares logits and texts with transformers. */
#include "test_support.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "text/text_common.h"
#include "trunnion/speech.h"
#include "trunnion/trunnion.h"

enum { HIDDEN = 8, INNER = 12, WORDS = 5, CHANNELS = 6, MOST = 40, SAMPLES = 200 };

static const char config[] =
    "{\"model_type\":\"wav2vec2\",\"hidden_size\":8,\"num_hidden_layers\":1,\"num_attention_heads\":2,"
    "\"intermediate_size\":12,\"vocab_size\":5,\"conv_dim\":[6,6],\"conv_kernel\":[10,3],\"conv_stride\":[5,2],"
    "\"num_conv_pos_embeddings\":4,\"num_conv_pos_embedding_groups\":2,\"pad_token_id\":0";
static const char letters[] = "{\"<pad>\":0,\"|\":1,\"A\":2,\"B\":3,\"<unk>\":4}";

static const struct {
    const char *name;
    int64_t shape[4]; /* ends with 0 */
} rows[] = {
    {"wav2vec2.feature_extractor.conv_layers.0.conv.weight", {CHANNELS, 1, 10}},
    {"wav2vec2.feature_extractor.conv_layers.0.layer_norm.weight", {CHANNELS}},
    {"wav2vec2.feature_extractor.conv_layers.0.layer_norm.bias", {CHANNELS}},
    {"wav2vec2.feature_extractor.conv_layers.1.conv.weight", {CHANNELS, CHANNELS, 3}},
    {"wav2vec2.feature_projection.layer_norm.weight", {CHANNELS}},
    {"wav2vec2.feature_projection.layer_norm.bias", {CHANNELS}},
    {"wav2vec2.feature_projection.projection.weight", {HIDDEN, CHANNELS}},
    {"wav2vec2.feature_projection.projection.bias", {HIDDEN}},
    {"wav2vec2.encoder.pos_conv_embed.conv.weight_g", {1, 1, 4}},
    {"wav2vec2.encoder.pos_conv_embed.conv.weight_v", {HIDDEN, HIDDEN / 2, 4}},
    {"wav2vec2.encoder.pos_conv_embed.conv.bias", {HIDDEN}},
    {"wav2vec2.encoder.layer_norm.weight", {HIDDEN}},
    {"wav2vec2.encoder.layer_norm.bias", {HIDDEN}},
    {"wav2vec2.encoder.layers.0.attention.q_proj.weight", {HIDDEN, HIDDEN}},
    {"wav2vec2.encoder.layers.0.attention.q_proj.bias", {HIDDEN}},
    {"wav2vec2.encoder.layers.0.attention.k_proj.weight", {HIDDEN, HIDDEN}},
    {"wav2vec2.encoder.layers.0.attention.k_proj.bias", {HIDDEN}},
    {"wav2vec2.encoder.layers.0.attention.v_proj.weight", {HIDDEN, HIDDEN}},
    {"wav2vec2.encoder.layers.0.attention.v_proj.bias", {HIDDEN}},
    {"wav2vec2.encoder.layers.0.attention.out_proj.weight", {HIDDEN, HIDDEN}},
    {"wav2vec2.encoder.layers.0.attention.out_proj.bias", {HIDDEN}},
    {"wav2vec2.encoder.layers.0.layer_norm.weight", {HIDDEN}},
    {"wav2vec2.encoder.layers.0.layer_norm.bias", {HIDDEN}},
    {"wav2vec2.encoder.layers.0.feed_forward.intermediate_dense.weight", {INNER, HIDDEN}},
    {"wav2vec2.encoder.layers.0.feed_forward.intermediate_dense.bias", {INNER}},
    {"wav2vec2.encoder.layers.0.feed_forward.output_dense.weight", {HIDDEN, INNER}},
    {"wav2vec2.encoder.layers.0.feed_forward.output_dense.bias", {HIDDEN}},
    {"wav2vec2.encoder.layers.0.final_layer_norm.weight", {HIDDEN}},
    {"wav2vec2.encoder.layers.0.final_layer_norm.bias", {HIDDEN}},
    {"lm_head.weight", {WORDS, HIDDEN}},
    {"lm_head.bias", {WORDS}},
    {"wav2vec2.adapter.layers.0.conv.weight", {HIDDEN}}, /* left out unless asked for */
};

/* more: for config.json; words: vocab.json, NULL for none; damaged: a weight that is not a number; extra: one more. */
static const char *make_damaged(const char *more, const char *words, const char *damaged, bool extra) {
    const char *folder = test_scratch("ctc");
    char path[600], text[1200];
    tn_named_tensor list[MOST];
    assert_true(mkdir(folder, 0700) == 0 || errno == EEXIST);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    tn_manual_seed(5);
    {
        TN_SCOPE;
        for (size_t i = 0; i < TN_COUNT(rows); i++) {
            const int64_t *shape = rows[i].shape;
            int rank = shape[2] ? 3 : shape[1] ? 2 : 1;
            bool bad = damaged && strcmp(rows[i].name, damaged) == 0;
            list[i] = (tn_named_tensor){rows[i].name, bad ? tn_full(shape, rank, NAN, TN_F32) : tn_randn(shape, rank)};
        }
        assert_ok(tn_safetensors_save(path, list, (int)TN_COUNT(rows) - !extra, NULL, 0));
    }
    snprintf(path, sizeof path, "%s/config.json", folder);
    snprintf(text, sizeof text, "%s%s}", config, more);
    write_file(path, text);
    snprintf(path, sizeof path, "%s/vocab.json", folder);
    remove(path);
    if (words) write_file(path, words);
    return folder;
}

static const char *make_folder(const char *more, const char *words) { return make_damaged(more, words, NULL, false); }

static const float *make_sound(void) {
    static float sound[SAMPLES];
    for (int i = 0; i < SAMPLES; i++)
        sound[i] = (float)(i * 7919 % 101) / 101 - 0.5F;
    return sound;
}

typedef struct heard {
    char text[256];
    int64_t count;
    int segments;
} heard;

static tn_status hear(void *ctx, const tn_speech_segment *s) {
    heard *h = ctx;
    snprintf(h->text, sizeof h->text, "%s", s->text);
    h->count = s->count;
    h->segments++;
    return h->segments > 1 ? TN_ERR_STATE : TN_OK;
}

/* What is written down are the best tokens of the logits, without blanks, repetitions and what is in <>. */
static void text_follows_from_logits(void **state) {
    (void)state;
    tn_ctc *m;
    heard h = {{0}, 0, 0};
    const char *folder = make_folder("", letters);
    assert_true(tn_ctc_knows(folder) && !tn_ctc_knows("README.md") && !tn_ctc_knows("src"));
    assert_ok(tn_ctc_open(folder, NULL, &m));
    assert_int_equal(tn_ctc_vocabulary(m), WORDS);
    assert_int_equal(tn_ctc_frames(m, SAMPLES), ((SAMPLES - 10) / 5 + 1 - 3) / 2 + 1);
    assert_int_equal(tn_ctc_frames(m, 9), 0);
    int64_t frames = tn_ctc_frames(m, SAMPLES), last = -1;
    float logits[SAMPLES * WORDS];
    char wanted[256] = "";
    assert_ok(tn_ctc_logits(m, make_sound(), SAMPLES, logits));
    for (int64_t t = 0; t < frames; t++) {
        static const char *const as[] = {"", " ", "A", "B", ""};
        int64_t best = 0;
        for (int64_t i = 1; i < WORDS; i++)
            if (logits[t * WORDS + i] > logits[t * WORDS + best]) best = i;
        if (best != last) strcat(wanted, as[best]);
        last = best;
    }
    assert_ok(tn_ctc_transcribe(m, make_sound(), SAMPLES, hear, &h));
    assert_string_equal(h.text, wanted);
    assert_true(h.segments == 1 && strlen(wanted) >= 1);
    assert_int_equal(tn_ctc_logits(m, make_sound(), 9, logits), TN_ERR_ARGUMENT);
    assert_int_equal(tn_ctc_transcribe(m, make_sound(), 0, hear, &h), TN_ERR_ARGUMENT);
    assert_ok(tn_ctc_transcribe(m, make_sound(), 9, hear, &h)); /* nothing is heard */
    assert_int_equal(h.segments, 1);
    tn_ctc_close(m);
    tn_ctc_close(NULL);
}

static void damaged_and_unknown_weights_are_noticed(void **state) {
    (void)state;
    tn_ctc *m;
    heard h = {{0}, 0, 0};
    assert_ok(tn_ctc_open(make_damaged("", letters, "lm_head.bias", false), NULL, &m));
    assert_int_equal(tn_ctc_transcribe(m, make_sound(), SAMPLES, hear, &h), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "the logit of token 0 is not a number");
    tn_ctc_close(m);
    assert_int_equal(tn_ctc_open(make_damaged("", letters, NULL, true), NULL, &m), TN_ERR_UNSUPPORTED);
    assert_text_has(tn_error(), "'wav2vec2.adapter.layers.0.conv.weight' is not known");
}

static void folders_that_do_not_fit_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *more, *words, *says;
    } wrong[] = {
        {",\"model_type\":\"sew\"", letters, "supports wav2vec2, hubert"},
        {",\"model_type\":\"wavlm\",\"num_buckets\":7", letters, "num_buckets"},
        {",\"model_type\":\"wavlm\",\"max_bucket_distance\":80", letters, "max_bucket_distance"},
        {",\"model_type\":\"data2vec-audio\",\"num_conv_pos_embeddings\":99", letters, "num_conv_pos_embeddings"},
        {",\"add_adapter\":true", letters, "add_adapter"},
        {",\"num_attention_heads\":3", letters, "must be a multiple"},
        {",\"conv_dim\":[6]", letters, "of the same length"},
        {",\"conv_stride\":[5,0]", letters, "conv_stride"},
        {",\"conv_dim\":[6,7]", letters, "according to config.json it must have 3"},
        {",\"num_hidden_layers\":2", letters, "encoder.layers.1"},
        {",\"do_stable_layer_norm\":true,\"feat_extract_norm\":\"layer\"", letters, "conv_layers.1.layer_norm"},
        {",\"feat_extract_norm\":\"batch\"", letters, "supported are group and layer"},
        {",\"hidden_act\":3", letters, "'hidden_act' must be the name"},
        {"", "[]", "vocab.json"},
        {"", "[1, 2]", "vocab.json"},
        {"", "\"letters\"", "vocab.json"},
        {"", "{\"eng\":{\"A\":1}}", "vocab.json"},
        {"", NULL, "vocab.json"},
    };
    for (size_t i = 0; i < TN_COUNT(wrong); i++) {
        tn_ctc *m;
        if (tn_ctc_open(make_folder(wrong[i].more, wrong[i].words), NULL, &m) == TN_OK) fail_msg("row %zu opens", i);
        if (!strstr(tn_error(), wrong[i].says)) fail_msg("row %zu: %s", i, tn_error());
        assert_null(m);
    }
}

/* What other files of the folder say about sound and text is honoured or refused. */
static void files_of_the_tokenizer_count(void **state) {
    (void)state;
    static const struct {
        const char *file, *text, *says; /* says NULL: it opens */
    } rows_of_files[] = {
        {"preprocessor_config.json", "{\"sampling_rate\":8000}", "'sampling_rate' is 8000"},
        {"tokenizer_config.json", "{\"do_lower_case\":true}", "'do_lower_case'"},
        {"tokenizer_config.json", "{\"word_delimiter_token\":\"0123456789012345678901234567890123\"}", "32 bytes"},
        {"tokenizer_config.json", "{\"word_delimiter_token\":\"B\"}", NULL},
    };
    for (size_t i = 0; i < TN_COUNT(rows_of_files); i++) {
        tn_ctc *m;
        char path[600];
        heard h = {{0}, 0, 0};
        const char *folder = make_folder("", letters);
        snprintf(path, sizeof path, "%s/%s", folder, rows_of_files[i].file);
        write_file(path, rows_of_files[i].text);
        tn_status status = tn_ctc_open(folder, NULL, &m);
        remove(path);
        assert_int_equal(status, rows_of_files[i].says ? TN_ERR_UNSUPPORTED : TN_OK);
        if (rows_of_files[i].says) assert_text_has(tn_error(), rows_of_files[i].says);
        if (status == TN_OK) assert_ok(tn_ctc_transcribe(m, make_sound(), SAMPLES, hear, &h));
        assert_null(strchr(h.text, 'B'));
        tn_ctc_close(m);
    }
}

static tn_status use_once(const char *folder) {
    tn_ctc *m;
    heard h = {{0}, 0, 0};
    tn_status status = tn_ctc_open(folder, NULL, &m);
    if (status == TN_OK) status = tn_ctc_transcribe(m, make_sound(), SAMPLES, hear, &h);
    tn_ctc_close(m);
    return status;
}

static void memory_may_run_out_anywhere(void **state) {
    (void)state;
    const char *folder = make_folder("", letters);
    tn_status status = TN_ERR_MEMORY;
    for (int64_t n = 1; status != TN_OK && n < 500; n++) {
        tn_txt_fail_at(n);
        status = use_once(folder);
        tn_txt_fail_at(0);
        assert_true(status == TN_OK || status == TN_ERR_MEMORY);
        assert_int_equal(tn_txt_live_blocks(), 0);
    }
    assert_ok(status);
}

static void the_command_says_which_options_are_whispers(void **state) {
    (void)state;
    char line[700], said[2000];
    snprintf(line, sizeof line, "%%s transcribe -m %s README.md --language de 2>&1", make_folder("", letters));
    assert_int_equal(run_trunnion(line, said, sizeof said), 1);
    assert_text_has(said, "require a Whisper model");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_follows_from_logits),
        cmocka_unit_test(damaged_and_unknown_weights_are_noticed),
        cmocka_unit_test(folders_that_do_not_fit_are_refused),
        cmocka_unit_test(files_of_the_tokenizer_count),
        cmocka_unit_test(memory_may_run_out_anywhere),
        cmocka_unit_test(the_command_says_which_options_are_whispers),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
