/* test_convert_model.c — `trunnion convert` with whole language models: a GGUF file becomes a Hugging Face folder that
 * computes the same logits and cuts texts into the same tokens, and comes back as a GGUF file that does too. */
#include "test_support.h"

#include <math.h>

#include "trunnion/llm.h"
#include "trunnion/text.h"
#include "trunnion/trunnion.h"

enum { HIDDEN = 8, INNER = 12, HEADS = 2, HEAD = 4, MOST_TOKENS = 400 };

static void convert(const char *arguments) {
    char said[4096];
    if (run_convert(arguments, said, sizeof said) != 0) fail_msg("convert %s: %s", arguments, said);
}

/* ---- a small model ----------------------------------------------------------------------------------------------- */

typedef struct words {
    char text[MOST_TOKENS][16];
    const char *list[MOST_TOKENS];
    float scores[MOST_TOKENS];
    int32_t types[MOST_TOKENS];
    int count;
} words;

static void add(words *w, const char *text, float score, int32_t type) {
    snprintf(w->text[w->count], sizeof w->text[0], "%s", text);
    w->list[w->count] = w->text[w->count];
    w->scores[w->count] = score;
    w->types[w->count++] = type;
}

/* SentencePiece's kind: bytes, letters, and pieces of two or more, the better the earlier. */
static void make_sentence_words(words *w) {
    static const char *const pieces[] = {"▁t", "he", "▁the", "in", "an",     "▁a", "nd", "▁and", "ing", "er",
                                         "▁w", "or", "▁wor", "ld", "▁world", "▁▁", "äö", "aa",   "aaa"};
    *w = (words){0};
    add(w, "<unk>", 0, TN_TOKEN_UNKNOWN);
    add(w, "<s>", 0, TN_TOKEN_CONTROL);
    add(w, "</s>", 0, TN_TOKEN_CONTROL);
    for (int b = 0; b < 256; b++) {
        char text[16];
        snprintf(text, sizeof text, "<0x%02X>", b);
        add(w, text, 0, TN_TOKEN_BYTE);
    }
    for (size_t i = 0; i < TN_COUNT(pieces); i++)
        add(w, pieces[i], -(float)i, TN_TOKEN_NORMAL);
    for (char c = 'a'; c <= 'z'; c++)
        add(w, (char[]){c, 0}, -1000, TN_TOKEN_NORMAL);
    add(w, "▁", -1000, TN_TOKEN_NORMAL);
    add(w, "ä", -1000, TN_TOKEN_NORMAL);
    add(w, "ö", -1000, TN_TOKEN_NORMAL);
}

static const char *const merges[] = {"Ġ t", "h e", "Ġt he", "i n", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld"};

/* Byte-level BPE: GPT-2's letters of all bytes would do; here those of ASCII, and what is merged. */
static void make_byte_words(words *w) {
    *w = (words){0};
    add(w, "<|end|>", 0, TN_TOKEN_CONTROL);
    add(w, "<|tool|>", 0, TN_TOKEN_USER_DEFINED);
    for (char c = '!'; c <= '~'; c++)
        add(w, (char[]){c, 0}, 0, TN_TOKEN_NORMAL);
    add(w, "Ġ", 0, TN_TOKEN_NORMAL);
    add(w, "Ċ", 0, TN_TOKEN_NORMAL);
    for (size_t i = 0; i < TN_COUNT(merges); i++) {
        char joined[16];
        const char *blank = strchr(merges[i], ' ');
        snprintf(joined, sizeof joined, "%.*s%s", (int)(blank - merges[i]), merges[i], blank + 1);
        add(w, joined, 0, TN_TOKEN_NORMAL);
    }
}

static void put_int(tn_gguf_writer *w, const char *architecture, const char *what, int64_t v) {
    char key[96];
    snprintf(key, sizeof key, "%s.%s", architecture, what);
    assert_ok(tn_gguf_put_int(w, key, TN_GGUF_U32, v));
}

static void put_text(tn_gguf_writer *w, const char *key, const char *text) {
    assert_ok(tn_gguf_put_string(w, key, text, (int64_t)strlen(text)));
}

static const struct {
    const char *name;
    int64_t rows, columns; /* 0: as many as there are tokens; columns 1: a vector */
} matrices[] = {
    {"token_embd.weight", 0, HIDDEN},
    {"output_norm.weight", HIDDEN, 1},
    {"output.weight", 0, HIDDEN},
    {"blk.0.attn_norm.weight", HIDDEN, 1},
    {"blk.0.ffn_norm.weight", HIDDEN, 1},
    {"blk.0.attn_q.weight", HEADS *HEAD, HIDDEN},
    {"blk.0.attn_k.weight", HEAD, HIDDEN},
    {"blk.0.attn_v.weight", HEAD, HIDDEN},
    {"blk.0.attn_output.weight", HIDDEN, HEADS *HEAD},
    {"blk.0.ffn_gate.weight", INNER, HIDDEN},
    {"blk.0.ffn_up.weight", INNER, HIDDEN},
    {"blk.0.ffn_down.weight", HIDDEN, INNER},
    {"blk.0.attn_q.bias", HEADS *HEAD, 1}, /* only where a family has them */
    {"blk.0.attn_k.bias", HEAD, 1},
    {"blk.0.attn_v.bias", HEAD, 1},
};
enum { BIASES = 3 };

/* Rope's keys and table, as GGUF files have them; NULL, 0, 0, false: none. */
typedef struct rope_keys {
    const char *type;
    double factor, amplitude;
    bool table;
    double local_base; /* of layers with a window */
} rope_keys;

static void put_rope(tn_gguf_writer *w, const char *architecture, const rope_keys *r) {
    const struct {
        const char *what;
        double v;
    } reals[] = {{"factor", r->factor}, {"attn_factor", r->amplitude}};
    char key[96];
    snprintf(key, sizeof key, "%s.rope.scaling.type", architecture);
    if (r->type) put_text(w, key, r->type);
    for (size_t i = 0; i < TN_COUNT(reals); i++) {
        snprintf(key, sizeof key, "%s.rope.scaling.%s", architecture, reals[i].what);
        if (reals[i].v != 0) assert_ok(tn_gguf_put_float(w, key, TN_GGUF_F32, reals[i].v));
    }
    snprintf(key, sizeof key, "%s.rope.freq_base_swa", architecture);
    if (r->local_base != 0) assert_ok(tn_gguf_put_float(w, key, TN_GGUF_F32, r->local_base));
}

static void put_weights(tn_gguf_writer *w, int count, int64_t tokens, bool table) {
    tn_gguf_info rope = {.struct_size = sizeof rope, .name = "rope_freqs.weight", .rank = 1, .dtype = TN_F32};
    rope.shape[0] = HEAD / 2;
    for (int i = 0; i < count; i++) {
        bool vector = matrices[i].columns == 1;
        tn_gguf_info t = {.struct_size = sizeof t, .name = matrices[i].name, .rank = vector ? 1 : 2, .dtype = TN_F32};
        t.shape[0] = matrices[i].rows ? matrices[i].rows : tokens;
        t.shape[1] = matrices[i].columns;
        assert_ok(tn_gguf_add(w, &t));
    }
    if (table) assert_ok(tn_gguf_add(w, &rope));
    for (int i = 0; i < count; i++) {
        float x[MOST_TOKENS * HIDDEN];
        int64_t n = (matrices[i].rows ? matrices[i].rows : tokens) * matrices[i].columns;
        for (int64_t k = 0; k < n; k++)
            x[k] = sinf((float)(k * 13 + i * 7 + 1));
        assert_ok(tn_gguf_write(w, x, n * (int64_t)sizeof *x));
    }
    if (table) assert_ok(tn_gguf_write(w, (float[HEAD / 2]){3, 7}, HEAD / 2 * (int64_t)sizeof(float)));
}

static void make_model_with(const char *name, const char *architecture, const char *pre, const words *vocabulary,
                            const rope_keys *rope) {
    tn_gguf_writer *w;
    const char *a = architecture;
    char key[96];
    assert_ok(tn_gguf_create(test_scratch(name), 0, &w));
    put_text(w, "general.architecture", a);
    put_int(w, a, "block_count", 1);
    put_int(w, a, "context_length", 64);
    put_int(w, a, "embedding_length", HIDDEN);
    put_int(w, a, "feed_forward_length", INNER);
    put_int(w, a, "attention.head_count", HEADS);
    put_int(w, a, "attention.head_count_kv", 1);
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", a);
    assert_ok(tn_gguf_put_float(w, key, TN_GGUF_F32, 1e-5));
    snprintf(key, sizeof key, "%s.rope.freq_base", a);
    assert_ok(tn_gguf_put_float(w, key, TN_GGUF_F32, 5000));
    put_rope(w, a, rope);
    put_text(w, "tokenizer.ggml.model", pre ? "gpt2" : "llama");
    if (pre) put_text(w, "tokenizer.ggml.pre", pre);
    assert_ok(tn_gguf_put_strings(w, "tokenizer.ggml.tokens", vocabulary->count, vocabulary->list, NULL));
    assert_ok(tn_gguf_put_array(w, "tokenizer.ggml.token_type", TN_GGUF_I32, vocabulary->count, vocabulary->types));
    assert_ok(tn_gguf_put_int(w, "tokenizer.ggml.eos_token_id", TN_GGUF_U32, pre ? 0 : 2));
    put_text(w, "tokenizer.chat_template", "{% for m in messages %}{{ m.content }}\n\"quoted\"{% endfor %}");
    if (pre) assert_ok(tn_gguf_put_strings(w, "tokenizer.ggml.merges", TN_COUNT(merges), merges, NULL));
    if (!pre) {
        assert_ok(tn_gguf_put_array(w, "tokenizer.ggml.scores", TN_GGUF_F32, vocabulary->count, vocabulary->scores));
        assert_ok(tn_gguf_put_int(w, "tokenizer.ggml.bos_token_id", TN_GGUF_U32, 1));
        assert_ok(tn_gguf_put_int(w, "tokenizer.ggml.unknown_token_id", TN_GGUF_U32, 0));
    }
    put_weights(w, (int)TN_COUNT(matrices) - (strcmp(a, "qwen2") == 0 ? 0 : BIASES), vocabulary->count, rope->table);
    assert_ok(tn_gguf_commit(w));
}

static void make_model(const char *name, const char *architecture, const char *pre, const words *vocabulary) {
    make_model_with(name, architecture, pre, vocabulary, &(rope_keys){0});
}

/* ---- the same ---------------------------------------------------------------------------------------------------- */

static void read_logits(const char *name, const tn_ids *ids, float *out) {
    tn_llm_options o = TN_LLM_DEFAULTS;
    o.cache = TN_LLM_CACHE_F32;
    tn_llm *m;
    assert_ok(tn_llm_open(test_scratch(name), &o, &m));
    assert_ok(tn_llm_logits(m, ids->data, (int64_t)ids->count, out));
    tn_llm_close(m);
}

static void assert_same_ids(const tn_tokenizer *a, const tn_tokenizer *b, const char *text, unsigned flags) {
    tn_ids x = {0}, y = {0};
    assert_ok(tn_tokenizer_encode(a, text, strlen(text), flags, &x));
    assert_ok(tn_tokenizer_encode(b, text, strlen(text), flags, &y));
    if (x.count != y.count || memcmp(x.data, y.data, x.count * sizeof *x.data) != 0)
        fail_msg("\"%s\" (%u): %zu tokens and %zu, or others", text, flags, x.count, y.count);
    tn_bytes back = {0}, again = {0};
    assert_ok(tn_tokenizer_decode(a, x.data, x.count, 0, &back));
    assert_ok(tn_tokenizer_decode(b, x.data, x.count, 0, &again));
    assert_string_equal(back.data ? back.data : "", again.data ? again.data : "");
    tn_bytes_free(&back);
    tn_bytes_free(&again);
    tn_ids_free(&x);
    tn_ids_free(&y);
}

static void assert_same_model(const char *one, const char *other) {
    static const char *const texts[] = {"the world",    "The world, and in the world", " aaaa  wor", "12345 the\nin",
                                        "hand in hand", "<|tool|>the<|end|>",          "</s>in<s>"};
    tn_tokenizer *a, *b;
    tn_ids ids = {0};
    static float x[64 * MOST_TOKENS], y[64 * MOST_TOKENS];
    assert_ok(tn_tokenizer_open(test_scratch(one), &a));
    assert_ok(tn_tokenizer_open(test_scratch(other), &b));
    assert_int_equal(tn_tokenizer_count(a), tn_tokenizer_count(b));
    assert_string_equal(tn_tokenizer_chat_template(a), tn_tokenizer_chat_template(b));
    for (size_t i = 0; i < TN_COUNT(texts); i++)
        for (unsigned flags = 0; flags <= (TN_ENCODE_SPECIAL | TN_ENCODE_ENDS); flags++)
            assert_same_ids(a, b, texts[i], flags);
    assert_ok(tn_tokenizer_encode(a, texts[1], strlen(texts[1]), 0, &ids));
    read_logits(one, &ids, x);
    read_logits(other, &ids, y);
    for (size_t i = 0; i < ids.count * (size_t)tn_tokenizer_count(a); i++)
        if (!(fabsf(x[i] - y[i]) <= 1e-4f)) fail_msg("logit %zu: %g and %g", i, (double)x[i], (double)y[i]);
    tn_ids_free(&ids);
    tn_tokenizer_free(a);
    tn_tokenizer_free(b);
}

static void sentencepiece_models_become_folders_and_come_back(void **state) {
    (void)state;
    static words w;
    make_sentence_words(&w);
    make_model("sentence.gguf", "llama", NULL, &w);
    convert("sentence.gguf sentence/ --verify");
    assert_same_model("sentence.gguf", "sentence");
    convert("sentence again.gguf --verify");
    assert_same_model("sentence.gguf", "again.gguf");
}

/* tokenizer.json with other steps before and behind its model. */
static void write_tokenizer(const char *from, const char *to, const char *normalizer, const char *cuts) {
    static char text[1 << 16];
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    assert_true(in && out);
    text[fread(text, 1, sizeof text - 1, in)] = 0;
    char *begin = strstr(text, "\"normalizer\""), *end = strstr(text, "\"post_processor\"");
    assert_true(begin && end && begin < end);
    fprintf(out,
            "%.*s\"normalizer\": %s, \"pre_tokenizer\": %s, \"decoder\": {\"type\": \"Sequence\", \"decoders\": "
            "[{\"type\": \"Replace\", \"pattern\": {\"String\": \"▁\"}, \"content\": \" \"}, "
            "{\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}]}, %s",
            (int)(begin - text), text, normalizer, cuts, end);
    assert_int_equal(fclose(in) | fclose(out), 0);
}

/* Gemma's: the mark by a step of its own, nothing in front, and a cut at blanks, of which none are left. */
static void other_ways_to_mark_blanks_are_taken_or_refused(void **state) {
    (void)state;
    static const char mark[] = "{\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"▁\"}";
    static const struct {
        const char *normalizer, *cuts;
        bool taken;
    } rows[] = {
        {mark,
         "{\"type\": \"Split\", \"pattern\": {\"String\": \" \"}, \"behavior\": \"MergedWithPrevious\", "
         "\"invert\": false}",
         true},
        {mark, "null", true},
        {mark,
         "{\"type\": \"Split\", \"pattern\": {\"String\": \"e\"}, \"behavior\": \"Isolated\", "
         "\"invert\": false}",
         false},
        {"{\"type\": \"Lowercase\"}", "{\"type\": \"Metaspace\", \"replacement\": \"▁\"}", false},
        {"{\"type\": \"Replace\", \"pattern\": {\"String\": \"o\"}, \"content\": \"0\"}",
         "{\"type\": \"Metaspace\", \"replacement\": \"▁\"}", false},
        {"null", "null", false},
    };
    static words w;
    char said[4096], whole[256];
    make_sentence_words(&w);
    make_model("sentence.gguf", "llama", NULL, &w);
    convert("sentence.gguf marks/");
    snprintf(whole, sizeof whole, "%s", test_scratch("marks/whole.json"));
    assert_int_equal(rename(test_scratch("marks/tokenizer.json"), whole), 0);
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        write_tokenizer(whole, test_scratch("marks/tokenizer.json"), rows[i].normalizer, rows[i].cuts);
        int code = run_convert("marks marks.gguf", said, sizeof said);
        if ((code == 0) != rows[i].taken) fail_msg("case %zu: code %d: %s", i, code, said);
        if (rows[i].taken)
            assert_same_model("marks", "marks.gguf");
        else
            assert_text_has(said, "neither byte-level BPE nor SentencePiece BPE");
    }
}

static void byte_level_models_become_folders_and_come_back(void **state) {
    (void)state;
    static const char *const rules[][2] = {
        {"llama", "smollm"}, {"llama", "gpt-2"}, {"llama", "llama-bpe"}, {"qwen2", "qwen2"}};
    static words w;
    make_byte_words(&w);
    for (size_t i = 0; i < TN_COUNT(rules); i++) {
        make_model("bytes.gguf", rules[i][0], rules[i][1], &w);
        convert("bytes.gguf bytes/ --verify");
        assert_same_model("bytes.gguf", "bytes");
        convert("bytes again.gguf --verify");
        assert_same_model("bytes.gguf", "again.gguf");
    }
}

/* A folder computes what the file does, or there is none. */
static void rope_of_a_file_comes_to_a_folder_or_is_refused(void **state) {
    (void)state;
    static const struct {
        rope_keys keys;
        bool refused;
    } cases[] = {
        {{"none", 0, 0, false, 0}, false},     {{"none", 4, 0, false, 0}, false},
        {{"linear", 4, 0, false, 0}, false},   {{NULL, 4, 0, false, 0}, false},
        {{"yarn", 4, 1.25, false, 0}, false},  {{"yarn", 1, 1.25, false, 0}, false},
        {{NULL, 0, 0, true, 0}, false},        {{NULL, 0, 1.25, true, 0}, false},
        {{"linear", 4, 0, true, 0}, true},     {{"yarn", 4, 0, true, 0}, true},
        {{NULL, 4, 0, true, 0}, true},         {{NULL, 0, 1.25, false, 0}, true},
        {{"linear", 4, 1.25, false, 0}, true}, {{"longrope", 0, 0, true, 0}, true},
    };
    static words w;
    char said[4096];
    make_byte_words(&w);
    for (size_t i = 0; i < TN_COUNT(cases); i++) {
        make_model_with("bytes.gguf", "llama", "gpt-2", &w, &cases[i].keys);
        int code = run_convert("bytes.gguf rope/", said, sizeof said);
        if ((code != 0) != cases[i].refused) fail_msg("case %zu: code %d: %s", i, code, said);
        if (cases[i].refused)
            assert_text_has(said, "this rope scaling");
        else
            assert_same_model("bytes.gguf", "rope");
    }
}

static const char gpt2_config[] = "{\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_positions\": 64, \"n_embd\": 8, "
                                  "\"n_inner\": 12, \"n_head\": 2, \"vocab_size\": %d, \"layer_norm_epsilon\": 1e-5, "
                                  "\"activation_function\": \"gelu_new\", \"eos_token_id\": 0}";

/* Matrices stand [in, out]; a mask that older folders have is no weight. */
static void make_gpt2_weights(const char *path, int64_t tokens) {
    static const struct {
        const char *name;
        int64_t rows, columns; /* columns 0: a vector */
    } parts[] = {{"wte.weight", 0, HIDDEN},
                 {"wpe.weight", 64, HIDDEN},
                 {"ln_f.weight", HIDDEN, 0},
                 {"ln_f.bias", HIDDEN, 0},
                 {"h.0.ln_1.weight", HIDDEN, 0},
                 {"h.0.ln_1.bias", HIDDEN, 0},
                 {"h.0.ln_2.weight", HIDDEN, 0},
                 {"h.0.ln_2.bias", HIDDEN, 0},
                 {"h.0.attn.c_attn.weight", HIDDEN, 3 * HIDDEN},
                 {"h.0.attn.c_attn.bias", 3 * HIDDEN, 0},
                 {"h.0.attn.c_proj.weight", HIDDEN, HIDDEN},
                 {"h.0.attn.c_proj.bias", HIDDEN, 0},
                 {"h.0.attn.bias", 64, 64},
                 {"h.0.mlp.c_fc.weight", HIDDEN, INNER},
                 {"h.0.mlp.c_fc.bias", INNER, 0},
                 {"h.0.mlp.c_proj.weight", INNER, HIDDEN},
                 {"h.0.mlp.c_proj.bias", HIDDEN, 0}};
    tn_named_tensor items[TN_COUNT(parts)];
    TN_SCOPE;
    for (size_t i = 0; i < TN_COUNT(parts); i++) {
        float x[MOST_TOKENS * HIDDEN];
        int64_t shape[] = {parts[i].rows ? parts[i].rows : tokens, parts[i].columns};
        int64_t n = shape[0] * (shape[1] ? shape[1] : 1);
        assert_true(n <= (int64_t)TN_COUNT(x) || i == 12);
        for (int64_t k = 0; k < n && k < (int64_t)TN_COUNT(x); k++)
            x[k] = sinf((float)(k * 13 + (int64_t)i * 7 + 1));
        items[i] = (tn_named_tensor){parts[i].name, i == 12 ? tn_ones(TN_DIMS(1, 1, 64, 64), TN_F32)
                                                            : tn_from_data(x, shape, shape[1] ? 2 : 1, TN_F32)};
    }
    assert_ok(tn_safetensors_save(path, items, TN_COUNT(parts), NULL, 0));
}

static void gpt2_folders_become_gguf_files(void **state) {
    (void)state;
    static words w;
    char config[512];
    make_byte_words(&w);
    make_model("bytes.gguf", "llama", "gpt-2", &w);
    convert("bytes.gguf gpt2/"); /* for its tokenizer */
    snprintf(config, sizeof config, gpt2_config, w.count);
    write_file(test_scratch("gpt2/config.json"), config);
    make_gpt2_weights(test_scratch("gpt2/model.safetensors"), w.count);
    convert("gpt2 gpt2.gguf --verify");
    assert_same_model("gpt2", "gpt2.gguf");
    convert("gpt2 gpt2.gguf --quantize F16 --verify");
    tn_gguf *file;
    tn_gguf_info places = {.struct_size = sizeof places}, table = {.struct_size = sizeof table};
    assert_ok(tn_gguf_open(test_scratch("gpt2.gguf"), &file));
    assert_ok(tn_gguf_find(file, "position_embd.weight", &places));
    assert_ok(tn_gguf_find(file, "token_embd.weight", &table));
    assert_int_equal(places.dtype, TN_F32); /* as other converters leave it */
    assert_int_equal(table.dtype, TN_F16);
    tn_gguf_close(file);
}

/* As in many models the matrix of the embedding has more rows than there are tokens; readers look tokens up by name. */
static void rows_without_a_token_have_names_of_their_own(void **state) {
    (void)state;
    static words w;
    char config[512], wanted[32];
    make_byte_words(&w);
    make_model("bytes.gguf", "llama", "gpt-2", &w);
    convert("bytes.gguf wide/"); /* for its tokenizer */
    snprintf(config, sizeof config, gpt2_config, w.count + 2);
    write_file(test_scratch("wide/config.json"), config);
    make_gpt2_weights(test_scratch("wide/model.safetensors"), w.count + 2);
    convert("wide wide.gguf --verify");
    tn_gguf *file;
    assert_ok(tn_gguf_open(test_scratch("wide.gguf"), &file));
    for (int64_t i = w.count; i < w.count + 2; i++) {
        const char *text = NULL;
        int64_t length = 0, type = 0;
        assert_ok(tn_gguf_string(tn_gguf_get(file, "tokenizer.ggml.tokens"), i, &text, &length));
        assert_ok(tn_gguf_int(tn_gguf_get(file, "tokenizer.ggml.token_type"), i, &type));
        snprintf(wanted, sizeof wanted, "[PAD%lld]", (long long)i);
        assert_int_equal(length, strlen(wanted));
        assert_memory_equal(text, wanted, (size_t)length);
        assert_int_equal(type, 5); /* unused */
    }
    tn_gguf_close(file);
}

enum { EXPERTS = 3 };

static tn_tensor *some_numbers(int64_t rows, int64_t columns, int seed) {
    float x[MOST_TOKENS * HIDDEN];
    assert_true(rows * (columns ? columns : 1) <= (int64_t)TN_COUNT(x));
    for (int64_t k = 0; k < rows * (columns ? columns : 1); k++)
        x[k] = sinf((float)(k * 13 + seed * 7 + 1));
    return tn_from_data(x, (int64_t[]){rows, columns}, columns ? 2 : 1, TN_F32);
}

/* A layer of a mixture, each expert's matrices by themselves; `without`: a name that is left out. */
static void make_mixture_weights(const char *path, int64_t tokens, const char *without) {
    static const struct {
        const char *name;
        int64_t rows, columns;
    } parts[] = {{"embed_tokens.weight", 0, HIDDEN},
                 {"norm.weight", HIDDEN, 0},
                 {"layers.0.input_layernorm.weight", HIDDEN, 0},
                 {"layers.0.post_attention_layernorm.weight", HIDDEN, 0},
                 {"layers.0.self_attn.q_proj.weight", HIDDEN, HIDDEN},
                 {"layers.0.self_attn.k_proj.weight", HIDDEN / 2, HIDDEN},
                 {"layers.0.self_attn.v_proj.weight", HIDDEN / 2, HIDDEN},
                 {"layers.0.self_attn.o_proj.weight", HIDDEN, HIDDEN},
                 {"layers.0.self_attn.q_norm.weight", HIDDEN / 2, 0},
                 {"layers.0.self_attn.k_norm.weight", HIDDEN / 2, 0},
                 {"layers.0.mlp.gate.weight", EXPERTS, HIDDEN}};
    static const char *const kinds[] = {"gate", "up", "down"};
    char names[TN_COUNT(parts) + 3 * EXPERTS][80];
    tn_named_tensor items[TN_COUNT(names)];
    int count = 0, seed = 0;
    TN_SCOPE;
    for (size_t i = 0; i < TN_COUNT(parts); i++) {
        snprintf(names[count], sizeof names[count], "model.%s", parts[i].name);
        tn_tensor *t = some_numbers(parts[i].rows ? parts[i].rows : tokens, parts[i].columns, seed++);
        items[count] = (tn_named_tensor){names[count], t};
        count++;
    }
    for (int i = 0; i < 3 * EXPERTS; i++) {
        snprintf(names[count], sizeof names[count], "model.layers.0.mlp.experts.%d.%s_proj.weight", i / 3,
                 kinds[i % 3]);
        bool down = i % 3 == 2;
        tn_tensor *t = some_numbers(down ? HIDDEN : INNER, down ? INNER : HIDDEN, seed++);
        items[count] = (tn_named_tensor){names[count], t};
        count += !without || strcmp(names[count], without) != 0;
    }
    assert_ok(tn_safetensors_save(path, items, count, NULL, 0));
}

static const char mixture_config[] =
    "{\"model_type\": \"qwen3_moe\", \"num_hidden_layers\": 1, \"max_position_embeddings\": 64, \"hidden_size\": 8, "
    "\"intermediate_size\": 24, \"moe_intermediate_size\": 12, \"num_attention_heads\": 2, "
    "\"num_key_value_heads\": 1, \"head_dim\": 4, \"vocab_size\": %d, \"num_experts\": 3, "
    "\"num_experts_per_tok\": 2, \"norm_topk_prob\": true, \"rms_norm_eps\": 1e-5, \"tie_word_embeddings\": true, "
    "\"eos_token_id\": 0}";

/* The same file without a key. */
static void leave_key_out(const char *from, const char *to, const char *key) {
    tn_gguf *file;
    tn_gguf_writer *w;
    assert_ok(tn_gguf_open(test_scratch(from), &file));
    assert_ok(tn_gguf_create(test_scratch(to), 0, &w));
    for (int64_t i = 0; i < tn_gguf_key_count(file); i++) {
        const char *own = tn_gguf_key(file, i);
        if (strcmp(own, key) != 0) assert_ok(tn_gguf_put_value(w, own, tn_gguf_get(file, own)));
    }
    for (int write = 0; write < 2; write++)
        for (int64_t i = 0; i < tn_gguf_count(file); i++) {
            tn_gguf_info info = {.struct_size = sizeof info};
            assert_ok(tn_gguf_at(file, i, &info));
            assert_ok(write ? tn_gguf_write(w, info.data, info.bytes) : tn_gguf_add(w, &info));
        }
    assert_ok(tn_gguf_commit(w));
    tn_gguf_close(file);
}

/* A folder has a tensor for each expert, a GGUF file one for all of them. */
static void mixtures_become_gguf_files_and_come_back(void **state) {
    (void)state;
    static words w;
    char config[600], said[4096];
    make_byte_words(&w);
    make_model("bytes.gguf", "qwen2", "qwen2", &w);
    convert("bytes.gguf moe/"); /* for its tokenizer */
    snprintf(config, sizeof config, mixture_config, w.count);
    write_file(test_scratch("moe/config.json"), config);
    make_mixture_weights(test_scratch("moe/model.safetensors"), w.count, NULL);
    convert("moe moe.gguf --verify");
    assert_same_model("moe", "moe.gguf");
    convert("moe.gguf moe-back/ --verify");
    assert_same_model("moe-back", "moe.gguf");
    leave_key_out("moe.gguf", "older.gguf", "qwen3moe.expert_feed_forward_length"); /* as older files do */
    convert("older.gguf moe-back/ --verify");
    assert_same_model("moe-back", "moe.gguf");
    tn_gguf *file;
    tn_gguf_info all = {.struct_size = sizeof all}, router = {.struct_size = sizeof router};
    convert("moe moe.gguf --quantize F16 --verify");
    assert_ok(tn_gguf_open(test_scratch("moe.gguf"), &file));
    assert_ok(tn_gguf_find(file, "blk.0.ffn_down_exps.weight", &all));
    assert_ok(tn_gguf_find(file, "blk.0.ffn_gate_inp.weight", &router));
    assert_int_equal(all.rank, 3);
    assert_int_equal(all.shape[0], EXPERTS);
    assert_int_equal(all.dtype, TN_F16);
    assert_int_equal(router.dtype, TN_F32); /* it decides who computes */
    tn_gguf_close(file);

    make_mixture_weights(test_scratch("moe/model.safetensors"), w.count, "model.layers.0.mlp.experts.1.up_proj.weight");
    assert_int_equal(run_convert("moe moe.gguf", said, sizeof said), 1);
    assert_text_has(said, "experts.1.up_proj");
    memcpy(strstr(config, "true"), "null", 4);
    write_file(test_scratch("moe/config.json"), config);
    assert_int_equal(run_convert("moe moe.gguf", said, sizeof said), 1);
    assert_text_has(said, "'norm_topk_prob'");
}

/* What a user would otherwise find out late: a file without a tokenizer, and a form that no metadata can tell of. */
static void what_gguf_does_not_get_is_said(void **state) {
    (void)state;
    static words w;
    char config[512], said[4096];
    make_byte_words(&w);
    make_model("bytes.gguf", "llama", "gpt-2", &w);
    snprintf(config, sizeof config, gpt2_config, w.count);
    assert_int_equal(mkdir(test_scratch("bare"), 0700), 0);
    write_file(test_scratch("bare/config.json"), config);
    make_gpt2_weights(test_scratch("bare/model.safetensors"), w.count);
    assert_int_equal(run_convert("bare bare.gguf", said, sizeof said), 0);
    assert_text_has(said, "has no tokenizer.json");
    memcpy(strstr(config, "gelu_new"), "gelu_old", 8);
    write_file(test_scratch("bare/config.json"), config);
    assert_int_equal(run_convert("bare bare.gguf --like bytes.gguf", said, sizeof said), 1);
    assert_text_has(said, "the activation 'gelu_old'");
}

/* Readers of Gemma's GGUF files take for granted what a folder may say otherwise. */
static void what_gguf_has_no_word_for_is_refused(void **state) {
    (void)state;
    static const char gemma[] =
        "{\"model_type\": \"gemma2\", \"num_hidden_layers\": 3, \"max_position_embeddings\": 64, \"hidden_size\": 32, "
        "\"intermediate_size\": 32, \"num_attention_heads\": 2, \"vocab_size\": 9, \"head_dim\": 16, %s}";
    static const struct {
        const char *said, *named;
    } rows[] = {{"\"query_pre_attn_scalar\": 20", "'query_pre_attn_scalar' differs"},
                {"\"query_pre_attn_scalar\": 16, \"attn_logit_softcapping\": null", "'attn_logit_softcapping' differs"},
                {"\"query_pre_attn_scalar\": 16, \"sliding_window\": null", "'sliding_window' differs"},
                {"\"query_pre_attn_scalar\": 16, \"sliding_window\": 0", "'sliding_window' must be"},
                {"\"query_pre_attn_scalar\": 16, \"layer_types\": [\"full_attention\", \"sliding_attention\", "
                 "\"full_attention\"]",
                 "'layer_types' differs"}};
    char config[600], said[4096];
    assert_int_equal(mkdir(test_scratch("gemma"), 0700), 0);
    make_gpt2_weights(test_scratch("gemma/model.safetensors"), 9);
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        snprintf(config, sizeof config, gemma, rows[i].said);
        write_file(test_scratch("gemma/config.json"), config);
        assert_int_equal(run_convert("gemma gemma.gguf", said, sizeof said), 1);
        assert_text_has(said, rows[i].named);
    }
}

/* Metadata of another file say nothing of what the folder is. */
static void metadata_of_another_file_do_not_hide_what_is_not_computed(void **state) {
    (void)state;
    static words w;
    char config[600], said[4096];
    make_byte_words(&w);
    make_model("bytes.gguf", "qwen2", "qwen2", &w);
    convert("bytes.gguf other/"); /* for its tokenizer */
    snprintf(config, sizeof config, mixture_config, w.count);
    write_file(test_scratch("other/config.json"), config);
    make_mixture_weights(test_scratch("other/model.safetensors"), w.count, NULL);
    convert("other other.gguf");
    convert("other again.gguf --like other.gguf --verify");
    assert_same_model("other.gguf", "again.gguf");
    assert_int_equal(run_convert("other again.gguf --like bytes.gguf", said, sizeof said), 1);
    assert_text_has(said, "is a qwen2 model");
    snprintf(strrchr(config, '}'), 40, ", \"quantization_config\": {}}");
    write_file(test_scratch("other/config.json"), config);
    assert_int_equal(run_convert("other again.gguf --like other.gguf", said, sizeof said), 1);
    assert_text_has(said, "'quantization_config'");
    assert_int_equal(run_convert("other other.onnx", said, sizeof said), 1);
    assert_text_has(said, "quantization_config has the quant_method ''"); /* beside why it is no encoder */
    assert_text_has(said, "as an encoder");
}

/* Neither kind of file has a word for all that the other says: where a model is not computed as it stands, what is left
 * of it would be another one. */
static void what_is_not_computed_is_not_converted(void **state) {
    (void)state;
    static const char *const faults[][3] = {
        {"\"silu\"", "\"gelu\"", "the activation 'gelu'"},
        {"\"hidden_size\"", "\"quantization_config\":{},\"hidden_size\"", "'quantization_config' is set"},
        {"\"rope_theta\"", "\"rope_theta\":-5,\"theta\"", "'rope_theta' is -5; it must be"}};
    static const rope_keys shrunk = {"yarn", 0.5, 0, false, 0}, local = {NULL, 0, 0, false, 700};
    static words w;
    char said[4096], config[4096], changed[4200];
    make_byte_words(&w);
    make_model("bytes.gguf", "llama", "gpt-2", &w);
    convert("bytes.gguf odd/");
    FILE *in = fopen(test_scratch("odd/config.json"), "rb");
    assert_non_null(in);
    config[fread(config, 1, sizeof config - 1, in)] = 0;
    fclose(in);
    for (size_t i = 0; i < TN_COUNT(faults); i++) {
        char *at = strstr(config, faults[i][0]);
        assert_non_null(at);
        snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - config), config, faults[i][1],
                 at + strlen(faults[i][0]));
        write_file(test_scratch("odd/config.json"), changed);
        assert_int_equal(run_convert("odd odd.gguf", said, sizeof said), 1);
        assert_text_has(said, faults[i][2]);
    }
    make_model_with("bytes.gguf", "llama", "gpt-2", &w, &shrunk);
    assert_int_equal(run_convert("bytes.gguf odd/", said, sizeof said), 1);
    assert_text_has(said, "'llama.rope.scaling.factor' is 0.5");
    make_model_with("bytes.gguf", "gemma2", "gpt-2", &w, &local);
    assert_int_equal(run_convert("bytes.gguf odd/", said, sizeof said), 1);
    assert_text_has(said, "their own rope base");
}

static void models_become_networks(void **state) {
    (void)state;
    static words w;
    make_byte_words(&w);
    make_model("bytes.gguf", "qwen2", "qwen2", &w);
    convert("bytes.gguf bytes.onnx --verify");
    write_file(test_scratch("text.txt"), "the world in the world");
    convert("bytes.gguf small.gguf --quantize Q8_0 --importance text.txt --verify");
    convert("bytes.onnx back.gguf --like bytes.gguf --verify");
    assert_same_model("bytes.gguf", "back.gguf");
}

/* The rules of Q4_K_M for 16 layers: the first two, the last two and every third between. Without an output matrix the
 * embedding has its type. */
static void a_mix_takes_larger_types_where_errors_harm(void **state) {
    (void)state;
    enum { LAYERS = 16, PARTS = 3, MOST = LAYERS * PARTS + 2 };
    static const char *const parts[PARTS] = {"attn_v", "ffn_down", "attn_q"};
    char names[MOST][64];
    const tn_metadata metadata = {"general.architecture", "llama"};
    for (int tied = 0; tied < 2; tied++) {
        tn_named_tensor tensors[MOST];
        int count = 0;
        tn_gguf *file;
        TN_SCOPE;
        tn_tensor *x = tn_randn(TN_DIMS(2, 256));
        for (int i = 0; i < LAYERS * PARTS; i++) {
            snprintf(names[count], sizeof names[count], "blk.%d.%s.weight", i / PARTS, parts[i % PARTS]);
            tensors[count] = (tn_named_tensor){names[count], x};
            count++;
        }
        tensors[count++] = (tn_named_tensor){"token_embd.weight", x};
        if (!tied) tensors[count++] = (tn_named_tensor){"output.weight", x};
        assert_ok(tn_safetensors_save(test_scratch("mix.safetensors"), tensors, count, &metadata, 1));
        convert("mix.safetensors mix.gguf --quantize q4_k_m --verify");
        assert_ok(tn_gguf_open(test_scratch("mix.gguf"), &file));
        for (int i = 0; i < count; i++) {
            tn_gguf_info info = {.struct_size = sizeof info};
            int layer = i / PARTS, part = i % PARTS;
            bool eager = layer < 2 || layer >= 14 || (layer - 2) % 3 == 2;
            bool six = i < LAYERS * PARTS ? part < 2 && eager : tied || i == count - 1;
            assert_ok(tn_gguf_find(file, tensors[i].name, &info));
            if (info.dtype != (six ? TN_Q6_K : TN_Q4_K)) fail_msg("%s is %s", info.name, info.dtype_name);
        }
        double type;
        assert_ok(tn_gguf_float(tn_gguf_get(file, "general.file_type"), 0, &type));
        assert_true(type == 15);
        tn_gguf_close(file);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sentencepiece_models_become_folders_and_come_back),
        cmocka_unit_test(other_ways_to_mark_blanks_are_taken_or_refused),
        cmocka_unit_test(byte_level_models_become_folders_and_come_back),
        cmocka_unit_test(rope_of_a_file_comes_to_a_folder_or_is_refused),
        cmocka_unit_test(gpt2_folders_become_gguf_files),
        cmocka_unit_test(rows_without_a_token_have_names_of_their_own),
        cmocka_unit_test(mixtures_become_gguf_files_and_come_back),
        cmocka_unit_test(what_gguf_does_not_get_is_said),
        cmocka_unit_test(what_gguf_has_no_word_for_is_refused),
        cmocka_unit_test(what_is_not_computed_is_not_converted),
        cmocka_unit_test(metadata_of_another_file_do_not_hide_what_is_not_computed),
        cmocka_unit_test(models_become_networks),
        cmocka_unit_test(a_mix_takes_larger_types_where_errors_harm),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
