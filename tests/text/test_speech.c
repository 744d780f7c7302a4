/* test_speech.c — sound files, log-mel features and a small Whisper, compared with transformers' numbers; the rules by
 * which tokens are chosen; files and calls that are wrong.
 *
 * tools/text/speech.py compares whole transcriptions with those of transformers. */
#include "test_support.h"

#include <errno.h>
#include <math.h>

#include "tests/golden/speech.h"
#include "text/text_common.h"
#include "trunnion/speech.h"
#include "trunnion/trunnion.h"

static const double PI = 3.14159265358979323846;

/* ---- WAV files --------------------------------------------------------------------------------------------------- */

enum { WAV_HEAD = 44, MOST_WAV = 1 << 20 };
static uint8_t wav[MOST_WAV];

static void put(uint8_t *at, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

/* A head for `bytes` of samples. Returns the size of the file. */
static size_t put_head(unsigned code, unsigned channels, unsigned bits, unsigned rate, size_t bytes) {
    memcpy(wav, "RIFF....WAVEfmt ", 16);
    put(wav + 4, 36 + bytes, 4);
    put(wav + 16, 16, 4);
    put(wav + 20, code, 2);
    put(wav + 22, channels, 2);
    put(wav + 24, rate, 4);
    put(wav + 28, rate * channels * bits / 8, 4);
    put(wav + 32, channels * bits / 8, 2);
    put(wav + 34, bits, 2);
    memcpy(wav + 36, "data", 4);
    put(wav + 40, bytes, 4);
    return WAV_HEAD + bytes;
}

static void put_sample(uint8_t *at, double x, unsigned code, unsigned bits) {
    if (code == 3 && bits == 32) memcpy(at, &(float){(float)x}, 4);
    if (code == 3 && bits == 64) memcpy(at, &x, 8);
    if (code != 3 && bits == 8) at[0] = (uint8_t)(lrint(x * 128) + 128);
    if (code != 3 && bits > 8) put(at, (uint64_t)llrint(ldexp(x, (int)bits - 1)), (int)bits / 8);
}

/* Each encoding, with one and two channels. */
static void every_encoding_is_read(void **state) {
    (void)state;
    static const unsigned encodings[][2] = {{1, 8}, {1, 16}, {1, 24}, {1, 32}, {3, 32}, {3, 64}};
    static const double values[] = {0, 0.5, -0.25, -1, 0.75};
    for (size_t e = 0; e < TN_COUNT(encodings); e++)
        for (unsigned channels = 1; channels <= 2; channels++) {
            unsigned code = encodings[e][0], bits = encodings[e][1], step = bits / 8;
            size_t size = put_head(code, channels, bits, 8000, TN_COUNT(values) * channels * step);
            for (size_t i = 0; i < TN_COUNT(values); i++)
                for (unsigned c = 0; c < channels; c++) /* the second channel is silent */
                    put_sample(wav + WAV_HEAD + (i * channels + c) * step, c ? 0 : values[i], code, bits);
            tn_audio a;
            assert_ok(tn_audio_parse(wav, size, 0, &a));
            assert_int_equal(a.count, TN_COUNT(values));
            assert_int_equal(a.rate, 8000);
            assert_int_equal(a.channels, channels);
            for (size_t i = 0; i < TN_COUNT(values); i++)
                assert_true((double)a.samples[i] == values[i] / channels);
            tn_audio_free(&a);
        }
}

/* Other chunks, of odd sizes too, and the length that programs write to a pipe. */
static void chunks_are_found(void **state) {
    (void)state;
    size_t size = put_head(1, 1, 16, 16000, 8);
    memmove(wav + 36 + 12, wav + 36, size - 36);
    memcpy(wav + 36, "LIST\3\0\0\0abc", 12);
    for (int round = 0; round < 2; round++) {
        tn_audio a;
        assert_ok(tn_audio_parse(wav, size + 12, 16000, &a));
        assert_int_equal(a.count, 4);
        tn_audio_free(&a);
        put(wav + 36 + 12 + 4, round ? 0 : 0xffffffff, 4);
    }
    put_head(0xfffe, 1, 16, 16000, 0);
    memmove(wav + 36 + 24, wav + 36, 8);
    put(wav + 16, 40, 4);
    put(wav + 44, 1, 2);
    put(wav + 64, 2, 4);
    tn_audio a;
    assert_ok(tn_audio_parse(wav, 70, 0, &a));
    tn_audio_free(&a);
}

typedef struct wrong {
    int at, value, bytes; /* what is overwritten */
    tn_status status;
    const char *says;
} wrong;

static void wrong_files_are_refused(void **state) {
    (void)state;
    static const wrong rows[] = {
        {0, 'X', 1, TN_ERR_FORMAT, "not a WAV file"},
        {8, 'X', 1, TN_ERR_FORMAT, "not a WAV file"},
        {12, 'X', 1, TN_ERR_FORMAT, "'fmt ' is missing"},
        {36, 'X', 1, TN_ERR_FORMAT, "'data' is missing"},
        {16, 12, 4, TN_ERR_FORMAT, "shorter than 16"},
        {16, 1 << 30, 4, TN_ERR_FORMAT, "is the file complete"},
        {40, 100, 4, TN_ERR_FORMAT, "is the file complete"},
        {40, 1, 4, TN_ERR_FORMAT, "no samples"},
        {20, 6, 2, TN_ERR_UNSUPPORTED, "encoding 6 with 16 bits"},
        {34, 12, 2, TN_ERR_UNSUPPORTED, "encoding 1 with 12 bits"},
        {22, 0, 2, TN_ERR_UNSUPPORTED, "0 channels"},
        {22, 65, 2, TN_ERR_UNSUPPORTED, "65 channels"},
        {32, 3, 2, TN_ERR_FORMAT, "the file says 3"},
        {24, 0, 4, TN_ERR_UNSUPPORTED, "0 samples per second"},
        {24, 1 << 24, 4, TN_ERR_UNSUPPORTED, "16777216 samples per second"},
    };
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        size_t size = put_head(1, 1, 16, 16000, 8);
        put(wav + rows[i].at, (uint64_t)rows[i].value, rows[i].bytes);
        tn_audio a;
        assert_int_equal(tn_audio_parse(wav, size, 16000, &a), rows[i].status);
        assert_non_null(strstr(tn_error(), rows[i].says));
        assert_null(a.samples);
    }
    tn_audio a;
    size_t size = put_head(3, 1, 32, 16000, 4);
    memcpy(wav + WAV_HEAD, &(float){NAN}, 4);
    assert_int_equal(tn_audio_parse(wav, size, 0, &a), TN_ERR_FORMAT);
    for (size_t n = 0; n < WAV_HEAD; n++) { /* cut short anywhere */
        put_head(1, 1, 16, 16000, 8);
        assert_int_equal(tn_audio_parse(wav, n, 0, &a), TN_ERR_FORMAT);
    }
    assert_int_equal(tn_audio_parse(wav, WAV_HEAD, 999, &a), TN_ERR_ARGUMENT);
    assert_int_equal(tn_audio_parse(wav, WAV_HEAD, 200000, &a), TN_ERR_ARGUMENT);
    assert_int_equal(tn_audio_parse(NULL, 1, 0, &a), TN_ERR_ARGUMENT);
    assert_int_equal(tn_audio_read("no such file", 0, &a), TN_ERR_IO);
    assert_int_equal(tn_audio_read("README.md", 0, &a), TN_ERR_FORMAT);
    assert_non_null(strstr(tn_error(), "'README.md': WAV: not a WAV file"));
}

/* A tone of `hertz` at `from` samples per second, at `to`: the largest difference from that tone times `height`, away
 * from the ends. */
static double tone_error(unsigned from, unsigned to, double hertz, double height) {
    size_t count = from / 2;
    size_t size = put_head(3, 1, 32, from, count * 4);
    for (size_t i = 0; i < count; i++)
        put_sample(wav + WAV_HEAD + 4 * i, sin(2 * PI * hertz * (double)i / from), 3, 32);
    tn_audio a;
    double worst = 0;
    assert_ok(tn_audio_parse(wav, size, to, &a));
    assert_int_equal(a.count, (count * to + from - 1) / from);
    assert_int_equal(a.rate, to);
    assert_int_equal(a.source_rate, from);
    for (int64_t i = a.count / 5; i < a.count * 4 / 5; i++)
        worst = fmax(worst, fabs((double)a.samples[i] - height * sin(2 * PI * hertz * (double)i / to)));
    tn_audio_free(&a);
    return worst;
}

static void resampling_keeps_tones_below_the_new_limit(void **state) {
    (void)state;
    static const unsigned rates[] = {8000, 11025, 22050, 44100, 48000, 96000, 16001};
    for (size_t i = 0; i < TN_COUNT(rates); i++)
        assert_true(tone_error(rates[i], 16000, 440, 1) < 2e-5);
    assert_true(tone_error(44100, 16000, 6500, 1) < 2e-5);
    assert_true(tone_error(44100, 16000, 9500, 0) < 2e-5);
    assert_true(tone_error(48000, 16000, 15000, 0) < 2e-5);
}

/* ---- a small model ----------------------------------------------------------------------------------------------- */

enum { HIDDEN = 8, WORDS = 1527, CONTEXT = 70, MELS = 80, FRAMES = 3000, END = 16, START = 17, NO_TIMES = 25 };

static const char config[] =
    "{\"model_type\":\"whisper\",\"d_model\":8,\"encoder_layers\":1,\"decoder_layers\":2,\"encoder_attention_heads\":2,"
    "\"decoder_attention_heads\":4,\"encoder_ffn_dim\":12,\"decoder_ffn_dim\":16,\"num_mel_bins\":80,"
    "\"vocab_size\":1527,\"max_source_positions\":1500,\"max_target_positions\":70,\"activation_function\":\"gelu\"";
static const char generation[] =
    "{\"is_multilingual\":true,\"decoder_start_token_id\":17,\"eos_token_id\":16,\"no_timestamps_token_id\":25,"
    "\"suppress_tokens\":[2,-1],\"begin_suppress_tokens\":[16],\"max_initial_timestamp_index\":50}";

/* As tools/pytorch/torch_speech.py fills them. */
static void fill_weight(const char *name, float *out, int64_t count, bool norm) {
    double seed = 0;
    for (const char *c = name; *c; c++)
        seed += *c;
    for (int64_t i = 0; i < count; i++)
        out[i] = (float)(0.3 * sin(0.7 * (double)i + seed) + (norm ? 1 : 0));
}

typedef struct weights {
    tn_named_tensor list[128];
    char names[128][96];
    int count;
    const char *damaged; /* of a weight's name: it is not a number */
} weights;

static void add_weight(weights *w, const char *name, int64_t rows, int64_t columns, int64_t width) {
    static float room[WORDS * HIDDEN];
    int64_t shape[] = {rows, columns, width}, count = rows * (columns ? columns : 1) * (width ? width : 1);
    snprintf(w->names[w->count], sizeof w->names[0], "model.%s", name);
    fill_weight(name, room, count, !columns && strstr(name, ".weight"));
    if (w->damaged && strstr(name, w->damaged)) room[0] = NAN;
    w->list[w->count] = (tn_named_tensor){w->names[w->count], tn_from_data(room, shape,
                                                                           width     ? 3
                                                                           : columns ? 2
                                                                                     : 1,
                                                                           TN_F32)};
    w->count++;
}

static void add_pair(weights *w, const char *side, const char *name, int64_t rows, int64_t columns, bool bias) {
    char full[96];
    snprintf(full, sizeof full, "%s.%s.weight", side, name);
    add_weight(w, full, columns ? rows : HIDDEN, columns, 0);
    snprintf(full, sizeof full, "%s.%s.bias", side, name);
    if (bias) add_weight(w, full, rows, 0, 0);
}

static void add_attention(weights *w, const char *side, const char *name) {
    static const char *const parts[] = {"q_proj", "k_proj", "v_proj", "out_proj"};
    char full[64];
    for (int i = 0; i < 4; i++) {
        snprintf(full, sizeof full, "%s.%s", name, parts[i]);
        add_pair(w, side, full, HIDDEN, HIDDEN, i != 1);
    }
    snprintf(full, sizeof full, "%s_layer_norm", name);
    add_pair(w, side, full, HIDDEN, 0, true);
}

static void add_layer(weights *w, const char *side, int64_t inner, bool cross) {
    add_attention(w, side, "self_attn");
    if (cross) add_attention(w, side, "encoder_attn");
    add_pair(w, side, "fc1", inner, HIDDEN, true);
    add_pair(w, side, "fc2", HIDDEN, inner, true);
    add_pair(w, side, "final_layer_norm", HIDDEN, 0, true);
}

static void write_text(const char *folder, const char *name, const char *text) {
    char path[700];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

/* Letters a to p, and special tokens. */
static void write_tokenizer(const char *folder) {
    static const char *const special[] = {"<|endoftext|>", "<|startoftranscript|>", "<|en|>",        "<|de|>",
                                          "<|translate|>", "<|transcribe|>",        "<|startoflm|>", "<|startofprev|>",
                                          "<|nospeech|>",  "<|notimestamps|>"};
    char text[4096];
    size_t n = (size_t)snprintf(text, sizeof text, "{\"added_tokens\":[");
    for (int i = 0; i < (int)TN_COUNT(special); i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s{\"id\":%d,\"content\":\"%s\",\"special\":true}",
                              i ? "," : "", 16 + i, special[i]);
    n += (size_t)snprintf(
        text + n, sizeof text - n,
        "],\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
    for (int i = 0; i < 16; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s\"%c\":%d", i ? "," : "", 'a' + i, i);
    snprintf(text + n, sizeof text - n, "}}}");
    write_text(folder, "tokenizer.json", text);
}

static weights w;

/* more: for config.json; without: a tensor that is left out, or NULL. */
static const char *make_model(const char *name, const char *more, const char *without) {
    const char *folder = test_scratch(name);
    char path[700], text[1200];
    w.count = 0;
    assert_true(mkdir(folder, 0700) == 0 || errno == EEXIST);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    {
        TN_SCOPE;
        add_weight(&w, "encoder.conv1.weight", HIDDEN, MELS, 3);
        add_weight(&w, "encoder.conv1.bias", HIDDEN, 0, 0);
        add_weight(&w, "encoder.conv2.weight", HIDDEN, HIDDEN, 3);
        add_weight(&w, "encoder.conv2.bias", HIDDEN, 0, 0);
        add_weight(&w, "encoder.embed_positions.weight", FRAMES / 2, HIDDEN, 0);
        add_weight(&w, "decoder.embed_positions.weight", CONTEXT, HIDDEN, 0);
        add_weight(&w, "decoder.embed_tokens.weight", WORDS, HIDDEN, 0);
        add_pair(&w, "encoder", "layer_norm", HIDDEN, 0, true);
        add_pair(&w, "decoder", "layer_norm", HIDDEN, 0, true);
        add_layer(&w, "encoder.layers.0", 12, false);
        add_layer(&w, "decoder.layers.0", 16, true);
        add_layer(&w, "decoder.layers.1", 16, true);
        for (int i = 0; i < w.count; i++)
            if (without && strstr(w.names[i], without)) w.list[i] = w.list[--w.count];
        assert_ok(tn_safetensors_save(path, w.list, w.count, NULL, 0));
    }
    snprintf(text, sizeof text, "%s%s}", config, more);
    write_text(folder, "config.json", text);
    write_text(folder, "generation_config.json", generation);
    write_tokenizer(folder);
    return folder;
}

static float *make_sound(int64_t count) {
    float *sound = malloc((size_t)count * sizeof *sound);
    assert_non_null(sound);
    for (int64_t i = 0; i < count; i++) {
        double t = (double)i;
        sound[i] = (float)(0.3 * sin(2 * PI * 440 * t / TN_SPEECH_RATE) + 0.1 * sin(1e-5 * t * t));
    }
    return sound;
}

static void features_are_those_of_transformers(void **state) {
    (void)state;
    tn_speech *s;
    enum { SHOWN = TN_COUNT(speech_frames) };
    float *sound = make_sound(2 * TN_SPEECH_RATE), *got = malloc(MELS * FRAMES * sizeof *got);
    assert_ok(tn_speech_open(make_model("features", "", NULL), NULL, &s));
    assert_int_equal(tn_speech_feature_frames(s, 2 * TN_SPEECH_RATE), FRAMES);
    assert_int_equal(tn_speech_feature_frames(s, 31 * TN_SPEECH_RATE), 3100);
    assert_ok(tn_speech_features(s, sound, 2 * TN_SPEECH_RATE, got));
    for (int m = 0; m < MELS; m++)
        for (int k = 0; k < (int)SHOWN; k++)
            assert_true(fabs((double)got[m * FRAMES + speech_frames[k]] - speech_features[m * (int)SHOWN + k]) < 1e-5);
    sound[7] = INFINITY;
    assert_int_equal(tn_speech_features(s, sound, 100, got), TN_ERR_ARGUMENT);
    assert_int_equal(tn_speech_features(s, sound, 0, got), TN_ERR_ARGUMENT);
    tn_speech_close(s);
    free(sound);
    free(got);
}

static void fill_features(float *out) {
    for (int m = 0; m < MELS; m++)
        for (int t = 0; t < FRAMES; t++)
            out[m * FRAMES + t] = (float)(0.5 * sin(0.1 * m + 0.01 * t));
}

static void logits_are_those_of_transformers(void **state) {
    (void)state;
    tn_speech *s;
    float *features = malloc(MELS * FRAMES * sizeof *features);
    const float *logits;
    tn_speech_facts facts = {.struct_size = sizeof facts};
    fill_features(features);
    assert_ok(tn_speech_open(make_model("logits", "", NULL), NULL, &s));
    assert_ok(tn_speech_get_facts(s, &facts));
    assert_int_equal(facts.vocabulary, WORDS);
    assert_int_equal(facts.weights_bytes, 4 * facts.parameters);
    assert_true(facts.multilingual);
    assert_int_equal(tn_speech_step(s, START, &logits), TN_ERR_STATE);
    for (int round = 0; round < 2; round++) { /* a window begins again */
        assert_ok(tn_speech_encode(s, features));
        for (size_t i = 0; i < TN_COUNT(speech_ids); i++) {
            assert_ok(tn_speech_step(s, speech_ids[i], &logits));
            for (size_t k = 0; k < 12; k++)
                assert_true(fabs((double)logits[k] - speech_logits[12 * i + k]) < 1e-5);
        }
    }
    assert_int_equal(tn_speech_step(s, WORDS, NULL), TN_ERR_ARGUMENT);
    assert_ok(tn_speech_encode(s, features));
    for (int i = 0; i < CONTEXT; i++)
        assert_ok(tn_speech_step(s, 3, NULL));
    assert_int_equal(tn_speech_step(s, 3, NULL), TN_ERR_ARGUMENT);
    tn_speech_close(s);
    free(features);
}

/* ---- transcriptions ---------------------------------------------------------------------------------------------- */

typedef struct heard {
    int64_t segments, tokens;
    double end;
    char language[16];
    bool timed; /* the model predicts times: one ends a segment, the next begins another */
    tn_status answer;
} heard;

static bool is_time(int32_t id) { return id > NO_TIMES; }

static tn_status listen(void *ctx, const tn_speech_segment *s) {
    heard *h = ctx;
    h->segments++;
    h->tokens += s->count;
    snprintf(h->language, sizeof h->language, "%s", s->language ? s->language : "none");
    for (int64_t i = 0; i < s->count; i++) {
        assert_int_not_equal(s->ids[i], END);
        if (h->timed) assert_int_not_equal(s->ids[i], 2); /* it is suppressed */
        if (h->timed && i > 0 && is_time(s->ids[i])) assert_int_equal(i, s->count - 1);
    }
    h->end = s->end;
    return h->answer;
}

static void timed_segments_follow_each_other(void **state) {
    (void)state;
    tn_speech *s;
    heard h = {.timed = true}, again = {.timed = true};
    enum { COUNT = 33 * TN_SPEECH_RATE };
    float *sound = make_sound(COUNT);
    tn_transcribe_options o = TN_TRANSCRIBE_DEFAULTS;
    assert_ok(tn_speech_open(make_model("timed", "", NULL), NULL, &s));
    o.language = "de";
    o.max_tokens = 5;
    assert_ok(tn_speech_transcribe(s, sound, COUNT, &o, listen, &h));
    assert_string_equal(h.language, "de");
    assert_true(h.segments >= 2);
    assert_ok(tn_speech_transcribe(s, sound, COUNT, &o, listen, &again)); /* a model may be used again */
    assert_int_equal(h.tokens, again.tokens);
    h = (heard){0};
    o.max_tokens = 0;
    o.language = NULL;
    assert_ok(tn_speech_transcribe(s, sound, TN_SPEECH_RATE, &o, listen, &h));
    assert_int_equal(h.segments, 1);
    assert_true(h.tokens <= CONTEXT - 4);
    assert_true(fabs(h.end - 1) < 1e-9);
    assert_true(strcmp(h.language, "en") == 0 || strcmp(h.language, "de") == 0);
    h = (heard){.answer = TN_ERR_STATE};
    assert_int_equal(tn_speech_transcribe(s, sound, COUNT, &o, listen, &h), TN_ERR_STATE);
    assert_int_equal(h.segments, 1);
    tn_speech_close(s);
    free(sound);
}

static void damaged_weights_are_noticed(void **state) {
    (void)state;
    tn_speech *s;
    heard h = {0};
    float *sound = make_sound(TN_SPEECH_RATE);
    w.damaged = "decoder.layer_norm.weight";
    assert_ok(tn_speech_open(make_model("damaged", "", NULL), NULL, &s));
    w.damaged = NULL;
    assert_int_equal(tn_speech_transcribe(s, sound, TN_SPEECH_RATE, NULL, listen, &h), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "is not a number");
    tn_speech_close(s);
    free(sound);
}

static void wrong_wishes_are_refused(void **state) {
    (void)state;
    tn_speech *s;
    heard h = {0};
    float sound[100] = {0};
    tn_transcribe_options o = TN_TRANSCRIBE_DEFAULTS;
    assert_ok(tn_speech_open(make_model("wishes", "", NULL), NULL, &s));
    assert_int_equal(tn_speech_transcribe(s, sound, 0, NULL, listen, &h), TN_ERR_ARGUMENT);
    o.language = "fr";
    assert_int_equal(tn_speech_transcribe(s, sound, 100, &o, listen, &h), TN_ERR_ARGUMENT);
    assert_non_null(strstr(tn_error(), "'fr' is not known to the model; it knows en de"));
    o.language = NULL;
    o.max_tokens = -1;
    assert_int_equal(tn_speech_transcribe(s, sound, 100, &o, listen, &h), TN_ERR_ARGUMENT);
    tn_speech_close(s);

    const char *folder = make_model("english", "", NULL);
    write_text(folder, "generation_config.json", "{\"is_multilingual\":false}");
    assert_ok(tn_speech_open(folder, NULL, &s));
    o = (tn_transcribe_options)TN_TRANSCRIBE_DEFAULTS;
    o.translate = true;
    assert_int_equal(tn_speech_transcribe(s, sound, 100, &o, listen, &h), TN_ERR_ARGUMENT);
    o.translate = false;
    o.language = "de";
    assert_int_equal(tn_speech_transcribe(s, sound, 100, &o, listen, &h), TN_ERR_ARGUMENT);
    o.language = "en";
    assert_ok(tn_speech_transcribe(s, sound, 100, &o, listen, &h));
    assert_string_equal(h.language, "none");
    tn_speech_close(s);
}

static void folders_that_do_not_fit_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *more, *without, *generation;
        tn_status status;
        const char *says;
    } rows[] = {
        {",\"model_type\":\"bert\"", NULL, NULL, TN_ERR_UNSUPPORTED, "model_type is 'bert'"},
        {",\"d_model\":6", NULL, NULL, TN_ERR_FORMAT, "not a multiple of decoder_attention_heads"},
        {",\"d_model\":16", NULL, NULL, TN_ERR_FORMAT, "according to config.json"},
        {",\"encoder_layers\":0", NULL, NULL, TN_ERR_FORMAT, "encoder_layers"},
        {",\"encoder_layers\":2", NULL, NULL, TN_ERR_FORMAT, "no tensor 'encoder.layers.1"},
        {",\"num_mel_bins\":81", NULL, NULL, TN_ERR_FORMAT, "conv1.weight"},
        {",\"max_source_positions\":100", NULL, NULL, TN_ERR_UNSUPPORTED, "max_source_positions is 100"},
        {",\"tie_word_embeddings\":false", NULL, NULL, TN_ERR_UNSUPPORTED, "tie_word_embeddings"},
        {",\"activation_function\":\"mish\"", NULL, NULL, TN_ERR_UNSUPPORTED, "mish"},
        {"", "decoder.layers.1.fc2.bias", NULL, TN_ERR_FORMAT, "no tensor 'decoder.layers.1.fc2.bias'"},
        {"", NULL, "{\"eos_token_id\":5000}", TN_ERR_FORMAT, "id 5000"},
        {"", NULL, "{\"suppress_tokens\":[1,90000]}", TN_ERR_FORMAT, "id 90000"},
        {"", NULL, "{\"is_multilingual\":true,\"decoder_start_token_id\":19}", TN_ERR_FORMAT, "no tokens of languages"},
        {"", NULL, "{\"max_initial_timestamp_index\":-1000000}", TN_ERR_FORMAT, "it must be at least 0"},
        {"", NULL, "[", TN_ERR_FORMAT, "generation_config.json"},
    };
    tn_speech *s;
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        const char *folder = make_model("wrong", rows[i].more, rows[i].without);
        if (rows[i].generation) write_text(folder, "generation_config.json", rows[i].generation);
        tn_status status = tn_speech_open(folder, NULL, &s);
        if (status != rows[i].status || !strstr(tn_error(), rows[i].says))
            fail_msg("row %zu: %s", i, status == TN_OK ? "opened" : tn_error());
        assert_null(s);
    }
    assert_int_equal(tn_speech_open("README.md", NULL, &s), TN_ERR_IO);
    assert_int_equal(tn_speech_open(NULL, NULL, &s), TN_ERR_ARGUMENT);
    tn_speech_close(NULL);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static tn_status use_once(const char *folder, const float *sound) {
    tn_speech *s;
    heard h = {0};
    tn_transcribe_options o = TN_TRANSCRIBE_DEFAULTS;
    o.max_tokens = 2;
    tn_status status = tn_speech_open(folder, NULL, &s);
    if (status == TN_OK) status = tn_speech_transcribe(s, sound, 1000, &o, listen, &h);
    tn_speech_close(s);
    return status;
}

static void memory_may_run_out_anywhere(void **state) {
    (void)state;
    float *sound = make_sound(1000);
    const char *folder = make_model("memory", "", NULL);
    assert_ok(use_once(folder, sound));
    tn_status status = TN_ERR_MEMORY;
    for (int64_t n = 1; status != TN_OK; n += n < 40 ? 1 : 7 * test_every(1, 5)) {
        tn_txt_fail_at(n);
        status = use_once(folder, sound);
        tn_txt_fail_at(0);
        assert_true(status == TN_OK || status == TN_ERR_MEMORY);
        assert_int_equal(tn_txt_live_blocks(), 0);
        assert_true(n < 2000);
    }
    for (int64_t n = 1; n < 900; n += 61 * test_every(1, 4)) {
        tn_mem_fail_at(n);
        status = use_once(folder, sound);
        tn_mem_fail_at(0);
        assert_true(status == TN_OK || status == TN_ERR_MEMORY);
        assert_int_equal(tn_txt_live_blocks(), 0);
    }
    assert_ok(use_once(folder, sound));
    free(sound);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_encoding_is_read),
        cmocka_unit_test(chunks_are_found),
        cmocka_unit_test(wrong_files_are_refused),
        cmocka_unit_test(resampling_keeps_tones_below_the_new_limit),
        cmocka_unit_test(features_are_those_of_transformers),
        cmocka_unit_test(logits_are_those_of_transformers),
        cmocka_unit_test(timed_segments_follow_each_other),
        cmocka_unit_test(damaged_weights_are_noticed),
        cmocka_unit_test(wrong_wishes_are_refused),
        cmocka_unit_test(folders_that_do_not_fit_are_refused),
        cmocka_unit_test(memory_may_run_out_anywhere),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
