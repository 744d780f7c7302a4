/* test_moonshine.c — small models of Moonshine: sound becomes tokens, and what does not fit is refused.
 *
 * tools/text/hf_folders.py compares tokens with transformers. */
#include "test_support.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "text/text_common.h"
#include "trunnion/speech.h"
#include "trunnion/trunnion.h"

enum { HIDDEN = 8, INNER = 6, WORDS = 19, SAMPLES = 2 * TN_SPEECH_RATE, MOST = 64 };

static const char config[] =
    "{\"model_type\":\"moonshine\",\"hidden_size\":8,\"vocab_size\":19,\"max_position_embeddings\":40,"
    "\"encoder_num_hidden_layers\":1,\"decoder_num_hidden_layers\":1,\"encoder_num_attention_heads\":2,"
    "\"decoder_num_attention_heads\":2,\"rope_parameters\":{\"partial_rotary_factor\":0.5}";

static const struct {
    const char *name;
    int64_t shape[4]; /* ends with 0 */
} front[] = {
    {"model.encoder.conv1.weight", {HIDDEN, 1, 127}},
    {"model.encoder.groupnorm.weight", {HIDDEN}},
    {"model.encoder.groupnorm.bias", {HIDDEN}},
    {"model.encoder.conv2.weight", {2 * HIDDEN, HIDDEN, 7}},
    {"model.encoder.conv2.bias", {2 * HIDDEN}},
    {"model.encoder.conv3.weight", {HIDDEN, 2 * HIDDEN, 3}},
    {"model.encoder.conv3.bias", {HIDDEN}},
    {"model.encoder.layer_norm.weight", {HIDDEN}},
    {"model.decoder.embed_tokens.weight", {WORDS, HIDDEN}},
    {"model.decoder.norm.weight", {HIDDEN}},
};

typedef struct weights {
    char names[MOST][96];
    tn_named_tensor list[MOST];
    int count;
    const char *without, *damaged; /* is left out; is not a number */
} weights;

static void add(weights *w, const char *side, const char *name, const int64_t *shape, int rank) {
    char *room = w->names[w->count];
    snprintf(room, sizeof w->names[0], "%s%s", side, name);
    if (w->without && strstr(room, w->without)) return;
    bool bad = w->damaged && strstr(room, w->damaged);
    w->list[w->count++] = (tn_named_tensor){room, bad ? tn_full(shape, rank, NAN, TN_F32) : tn_randn(shape, rank)};
}

static void add_layer(weights *w, const char *side, bool decodes) {
    static const char *const parts[] = {"q_proj", "k_proj", "v_proj", "o_proj"};
    char name[64];
    for (int cross = 0; cross <= decodes; cross++)
        for (int i = 0; i < 4; i++) {
            snprintf(name, sizeof name, "%s.%s.weight", cross ? "encoder_attn" : "self_attn", parts[i]);
            add(w, side, name, TN_DIMS(HIDDEN, HIDDEN));
        }
    add(w, side, "mlp.fc1.weight", TN_DIMS(decodes ? 2 * INNER : INNER, HIDDEN));
    add(w, side, "mlp.fc1.bias", TN_DIMS(decodes ? 2 * INNER : INNER));
    add(w, side, "mlp.fc2.weight", TN_DIMS(HIDDEN, INNER));
    add(w, side, "mlp.fc2.bias", TN_DIMS(HIDDEN));
    add(w, side, "input_layernorm.weight", TN_DIMS(HIDDEN));
    add(w, side, "post_attention_layernorm.weight", TN_DIMS(HIDDEN));
    if (decodes) add(w, side, "final_layernorm.weight", TN_DIMS(HIDDEN));
}

/* more: for config.json; without, damaged: of weights' names. */
static const char *make_damaged(const char *more, const char *without, const char *damaged) {
    static weights w;
    const char *folder = test_scratch("moonshine");
    char path[600], text[1200];
    assert_true(mkdir(folder, 0700) == 0 || errno == EEXIST);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    w = (weights){.without = without, .damaged = damaged};
    tn_manual_seed(9);
    {
        TN_SCOPE;
        for (size_t i = 0; i < TN_COUNT(front); i++)
            add(&w, "", front[i].name, front[i].shape, front[i].shape[1] ? front[i].shape[2] ? 3 : 2 : 1);
        add_layer(&w, "model.encoder.layers.0.", false);
        add_layer(&w, "model.decoder.layers.0.", true);
        assert_ok(tn_safetensors_save(path, w.list, w.count, NULL, 0));
    }
    snprintf(path, sizeof path, "%s/config.json", folder);
    snprintf(text, sizeof text, "%s%s}", config, more);
    write_file(path, text);
    size_t n = (size_t)snprintf(text, sizeof text,
                                "{\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\","
                                "\"merges\":[],\"vocab\":{");
    for (int i = 0; i < WORDS; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s\"%c\":%d", i ? "," : "", 'a' + i, i);
    snprintf(text + n, sizeof text - n, "}}}");
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    write_file(path, text);
    return folder;
}

static const char *make_folder(const char *more, const char *without) { return make_damaged(more, without, NULL); }

static const float *make_sound(void) {
    static float sound[SAMPLES];
    for (int i = 0; i < SAMPLES; i++)
        sound[i] = (float)(i * 7919 % 101) / 101 - 0.5F;
    return sound;
}

typedef struct heard {
    char text[64];
    int64_t count;
} heard;

static tn_status hear(void *ctx, const tn_speech_segment *s) {
    heard *h = ctx;
    snprintf(h->text, sizeof h->text, "%s", s->text);
    h->count = s->count;
    for (int64_t i = 0; i < s->count; i++)
        assert_int_equal(s->text[i], 'a' + s->ids[i]);
    return TN_OK;
}

/* No more tokens than 6.5 a second, and the same text however often the model was used. */
static void sound_becomes_tokens(void **state) {
    (void)state;
    tn_moonshine *m;
    heard first = {{0}, 0}, again = {{0}, 0};
    const char *folder = make_folder("", NULL);
    assert_true(tn_moonshine_knows(folder) && !tn_moonshine_knows("src"));
    assert_ok(tn_moonshine_open(folder, NULL, &m));
    assert_ok(tn_moonshine_transcribe(m, make_sound(), SAMPLES, hear, &first));
    assert_true(first.count <= 12);
    assert_ok(tn_moonshine_transcribe(m, make_sound(), SAMPLES / 2, hear, &again));
    assert_true(again.count <= 5);
    assert_ok(tn_moonshine_transcribe(m, make_sound(), SAMPLES, hear, &again));
    assert_string_equal(first.text, again.text);
    assert_int_equal(tn_moonshine_transcribe(m, make_sound(), 0, hear, &again), TN_ERR_ARGUMENT);
    tn_moonshine_close(m);
    tn_moonshine_close(NULL);
}

static void damaged_weights_are_noticed(void **state) {
    (void)state;
    tn_moonshine *m;
    heard h = {{0}, 0};
    assert_ok(tn_moonshine_open(make_damaged("", NULL, "decoder.norm"), NULL, &m));
    assert_int_equal(tn_moonshine_transcribe(m, make_sound(), SAMPLES, hear, &h), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "the logit of token 0 is not a number");
    tn_moonshine_close(m);
}

static void folders_that_do_not_fit_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *more, *without, *says;
    } wrong[] = {
        {",\"model_type\":\"whisper\"", NULL, "'moonshine'"},
        {",\"attention_bias\":true", NULL, "attention_bias"},
        {",\"decoder_num_key_value_heads\":1", NULL, "equal numbers"},
        {",\"encoder_num_attention_heads\":3", NULL, "divide hidden_size"},
        {",\"rope_parameters\":{\"partial_rotary_factor\":0.25}", NULL, "cannot be pairs"},
        {",\"rope_parameters\":{\"rope_type\":\"yarn\"}", NULL, "rope_type"},
        {",\"decoder_start_token_id\":19", NULL, "decoder_start_token_id"},
        {",\"encoder_num_hidden_layers\":2", NULL, "no tensor 'encoder.layers.1"},
        {"", "encoder_attn.v_proj", "encoder_attn.v_proj.weight'"},
        {"", "decoder.norm", "no tensor 'decoder.norm.weight'"},
        {",\"decoder_hidden_act\":\"mish\"", NULL, "mish"},
    };
    for (size_t i = 0; i < TN_COUNT(wrong); i++) {
        tn_moonshine *m;
        if (tn_moonshine_open(make_folder(wrong[i].more, wrong[i].without), NULL, &m) == TN_OK)
            fail_msg("row %zu opens", i);
        if (!strstr(tn_error(), wrong[i].says)) fail_msg("row %zu: %s", i, tn_error());
        assert_null(m);
    }
}

static void memory_may_run_out_anywhere(void **state) {
    (void)state;
    const char *folder = make_folder("", NULL);
    tn_status status = TN_ERR_MEMORY;
    for (int64_t n = 1; status != TN_OK && n < 500; n++) {
        tn_moonshine *m;
        heard h;
        tn_txt_fail_at(n);
        status = tn_moonshine_open(folder, NULL, &m);
        if (status == TN_OK) status = tn_moonshine_transcribe(m, make_sound(), SAMPLES / 4, hear, &h);
        tn_moonshine_close(m);
        tn_txt_fail_at(0);
        assert_true(status == TN_OK || status == TN_ERR_MEMORY);
        assert_int_equal(tn_txt_live_blocks(), 0);
    }
    assert_ok(status);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sound_becomes_tokens),
        cmocka_unit_test(damaged_weights_are_noticed),
        cmocka_unit_test(folders_that_do_not_fit_are_refused),
        cmocka_unit_test(memory_may_run_out_anywhere),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
