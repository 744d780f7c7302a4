/* test_tokenizer.c — promises of the tokenizers: the same ids as the references on hostile texts, text back out of ids,
 * and no vocabulary or text that breaks or stalls them.
 *
 * References: tests/golden/tokenizer_small.json (Hugging Face's tokenizers, Google's sentencepiece; small vocabularies
 * that lie in the file) and tokenizer_smollm2.json (llama.cpp on SmolLM2's own file, where
 * that is in the cache folder). */
#include "test_support.h"

#include <math.h>

#include "text/tokenizer.h"

/* ---- golden files ------------------------------------------------------------------------------------------------ */

typedef struct golden {
    char *text;
    tn_json_doc *doc;
    const tn_json *root;
} golden;

static golden open_golden(const char *path) {
    golden g;
    size_t size;
    assert_ok(tn_file_read(path, &g.text, &size, 1 << 24));
    assert_ok(tn_json_parse(g.text, size, &g.doc));
    g.root = tn_json_root(g.doc);
    return g;
}

static void close_golden(golden *g) {
    tn_json_free(g->doc);
    tn_mem_free(g->text);
}

static tn_text_slice slice_of(const tn_json *v) { return (tn_text_slice){tn_json_string(v, ""), tn_json_length(v)}; }

static tn_text_slice *slices_of(const tn_json *list) {
    size_t count = tn_json_length(list);
    tn_text_slice *slices = calloc(count + 1, sizeof *slices);
    assert_non_null(slices);
    for (size_t i = 0; i < count; i++)
        slices[i] = slice_of(tn_json_at(list, i));
    return slices;
}

/* The small vocabulary with this rule; NULL: SentencePiece's. */
static tn_tokenizer *small_tokenizer(const golden *g, const char *rule) {
    const tn_json *part = tn_json_get(g->root, rule ? "bpe" : "sentence");
    const tn_json *tokens = tn_json_get(part, "tokens"), *merges = tn_json_get(part, "merges");
    size_t count = tn_json_length(tokens);
    float *scores = calloc(count, sizeof *scores);
    int32_t *types = calloc(count, sizeof *types);
    assert_non_null(scores);
    assert_non_null(types);
    for (size_t i = 0; i < count; i++) {
        scores[i] = (float)tn_json_number(tn_json_at(tn_json_get(part, "scores"), i), 0);
        types[i] = (int32_t)tn_json_int(tn_json_at(tn_json_get(part, "types"), i), TN_TOKEN_NORMAL);
    }
    tn_vocabulary v = TN_VOCABULARY_DEFAULTS;
    v.model = rule ? "gpt2" : "llama";
    v.pre = rule;
    v.count = (int32_t)count;
    v.tokens = slices_of(tokens);
    v.scores = scores;
    v.types = types;
    v.merges = slices_of(merges);
    v.merge_count = (int32_t)tn_json_length(merges);
    v.special[TN_SPECIAL_BOS] = (int32_t)tn_json_int(tn_json_get(part, "bos"), -1);
    v.special[TN_SPECIAL_EOS] = (int32_t)tn_json_int(tn_json_get(part, "eos"), -1);
    v.special[TN_SPECIAL_UNKNOWN] = (int32_t)tn_json_int(tn_json_get(part, "unknown"), -1);
    tn_tokenizer *t;
    assert_ok(tn_tokenizer_new(&v, &t));
    free((void *)v.tokens);
    free((void *)v.merges);
    free(scores);
    free(types);
    return t;
}

static void print_ids(const char *who, const int32_t *ids, size_t count) {
    char line[1024];
    size_t length = 0;
    for (size_t i = 0; i < count && length < sizeof line - 16; i++)
        length += (size_t)snprintf(line + length, sizeof line - length, " %d", (int)ids[i]);
    print_error("  %s:%s\n", who, count ? line : "");
}

/* Whether a text gives these ids; tells what differs. */
static bool gives(const tn_tokenizer *t, const char *text, size_t size, unsigned flags, const tn_json *want) {
    tn_ids ids = {0};
    assert_ok(tn_tokenizer_encode(t, text, size, flags, &ids));
    int32_t *wanted = calloc(tn_json_length(want) + 1, sizeof *wanted);
    assert_non_null(wanted);
    bool same = ids.count == tn_json_length(want);
    for (size_t i = 0; i < tn_json_length(want); i++) {
        wanted[i] = (int32_t)tn_json_int(tn_json_at(want, i), -1);
        same = same && wanted[i] == ids.data[i];
    }
    if (!same) {
        print_error("\"%.*s\" (%zu bytes)\n", (int)size, text, size);
        print_ids("reference", wanted, tn_json_length(want));
        print_ids("ours", ids.data, ids.count);
    }
    free(wanted);
    tn_ids_free(&ids);
    return same;
}

static void assert_all_agree(const golden *g, const tn_tokenizer *t, const tn_json *lists) {
    enum { LEAST = 300 };
    const tn_json *texts = tn_json_get(g->root, "texts");
    size_t wrong = 0;
    assert_true(tn_json_length(texts) >= LEAST);
    assert_int_equal(tn_json_length(lists), tn_json_length(texts));
    for (size_t i = 0; i < tn_json_length(texts); i++) {
        tn_text_slice text = slice_of(tn_json_at(texts, i));
        wrong += !gives(t, text.data, text.size, 0, tn_json_at(lists, i));
    }
    assert_int_equal(wrong, 0);
}

static void every_rule_agrees_with_tokenizers(void **state) {
    (void)state;
    golden g = open_golden("tests/golden/tokenizer_small.json");
    const tn_json *rules = tn_json_get(tn_json_get(g.root, "bpe"), "rules");
    assert_true(tn_json_length(rules) >= 11);
    for (size_t i = 0; i < tn_json_length(rules); i++) {
        tn_tokenizer *t = small_tokenizer(&g, tn_json_key(rules, i));
        assert_string_equal(tn_tokenizer_rule(t), tn_json_key(rules, i));
        assert_string_equal(tn_tokenizer_model(t), "gpt2");
        assert_all_agree(&g, t, tn_json_at(rules, i));
        tn_tokenizer_free(t);
    }
    close_golden(&g);
}

static void merging_by_score_agrees_with_sentencepiece(void **state) {
    (void)state;
    golden g = open_golden("tests/golden/tokenizer_small.json");
    tn_tokenizer *t = small_tokenizer(&g, NULL);
    assert_string_equal(tn_tokenizer_model(t), "llama");
    assert_all_agree(&g, t, tn_json_get(tn_json_get(g.root, "sentence"), "ids"));
    tn_tokenizer_free(t);
    close_golden(&g);
}

/* ---- the model's own file ---------------------------------------------------------------------------------------- */

/* The tokenizer of SmolLM2; NULL, and a word about it, where the file is not there. */
static tn_tokenizer *smollm2(void) {
    char path[4096];
    tn_gguf *file;
    tn_tokenizer *t;
    assert_ok(tn_cache_dir(path, sizeof path - 64));
    strcat(path, "/models/SmolLM2-135M-Instruct.Q4_1.gguf");
    if (access(path, R_OK) != 0) {
        print_message("skipped: ids of SmolLM2, %s is not there (python3 tools/text/smollm2.py fetches it)\n", path);
        return NULL;
    }
    assert_ok(tn_gguf_open(path, &file));
    assert_ok(tn_tokenizer_from_gguf(file, &t));
    tn_gguf_close(file);
    return t;
}

static size_t from_hex(const char *hex, char *out) {
    size_t n = 0;
    for (unsigned byte; sscanf(hex + 2 * n, "%2x", &byte) == 1; n++)
        out[n] = (char)byte;
    return n;
}

static void smollm2_agrees_with_llama_cpp(void **state) {
    (void)state;
    enum { LEAST = 500 };
    tn_tokenizer *t = smollm2();
    if (!t) skip();
    assert_string_equal(tn_tokenizer_rule(t), "smollm");
    assert_int_equal(tn_tokenizer_count(t), 49152);
    assert_int_equal(tn_tokenizer_special(t, TN_SPECIAL_EOS), 2);
    assert_true(tn_tokenizer_ends(t, 2) && !tn_tokenizer_ends(t, 1) && !tn_tokenizer_adds_bos(t));
    assert_text_has(tn_tokenizer_chat_template(t), "<|im_start|>");

    golden g = open_golden("tests/golden/tokenizer_smollm2.json");
    const tn_json *rows = tn_json_get(g.root, "strings");
    size_t wrong = 0;
    assert_true(tn_json_length(rows) >= LEAST);
    for (size_t i = 0; i < tn_json_length(rows); i++) {
        const tn_json *row = tn_json_at(rows, i), *text = tn_json_get(row, "text");
        const char *hex = tn_json_string(tn_json_get(row, "hex"), "");
        char *bytes = malloc(strlen(hex) / 2 + 1);
        assert_non_null(bytes);
        size_t size = text ? tn_json_length(text) : from_hex(hex, bytes);
        unsigned flags = tn_json_bool(tn_json_get(row, "parse_special"), false) ? TN_ENCODE_SPECIAL : 0;
        wrong += !gives(t, text ? tn_json_string(text, "") : bytes, size, flags, tn_json_get(row, "ids"));
        free(bytes);
    }
    assert_int_equal(wrong, 0);
    close_golden(&g);
    tn_tokenizer_free(t);
}

/* ---- back to text ------------------------------------------------------------------------------------------------ */

static void assert_comes_back(const tn_tokenizer *t, const char *text, size_t size) {
    tn_ids ids = {0};
    tn_bytes whole = {0}, streamed = {0};
    tn_text_stream s = {0};
    assert_ok(tn_tokenizer_encode(t, text, size, TN_ENCODE_ENDS, &ids));
    assert_ok(tn_tokenizer_decode(t, ids.data, ids.count, 0, &whole));
    if (whole.size != size || memcmp(whole.data, text, size) != 0)
        fail_msg("\"%.*s\" came back as \"%s\"", (int)size, text, whole.data);
    for (size_t i = 0; i < ids.count; i++) {
        assert_ok(tn_tokenizer_stream(t, &s, ids.data[i], 0, &streamed));
        assert_int_equal(tn_txt_utf8_valid(streamed.data, streamed.size), streamed.size); /* no half characters */
    }
    assert_ok(tn_tokenizer_stream_end(&s, &streamed));
    size_t front = streamed.size - size; /* a space in front, where the model has one */
    assert_true(front == 0 || (front == 1 && streamed.data[0] == ' '));
    assert_memory_equal(streamed.data + front, text, size);
    tn_bytes_free(&whole);
    tn_bytes_free(&streamed);
    tn_ids_free(&ids);
}

static void texts_come_back_whole(void **state) {
    (void)state;
    golden g = open_golden("tests/golden/tokenizer_small.json");
    const tn_json *texts = tn_json_get(g.root, "texts");
    const char *const rules[] = {"llama-bpe", "smollm", NULL};
    for (size_t k = 0; k < TN_COUNT(rules); k++) {
        tn_tokenizer *t = small_tokenizer(&g, rules[k]);
        for (size_t i = 0; i < tn_json_length(texts); i++) {
            tn_text_slice text = slice_of(tn_json_at(texts, i));
            assert_comes_back(t, text.data, text.size);
        }
        tn_tokenizer_free(t);
    }
    close_golden(&g);
}

static void a_stream_gives_up_unfinished_bytes_at_the_end(void **state) {
    (void)state;
    golden g = open_golden("tests/golden/tokenizer_small.json");
    tn_tokenizer *t = small_tokenizer(&g, "gpt-2");
    static const uint8_t bytes[] = {0xf0, 0x9f, 0x98, 'a', 0xe6, 0x9d, 0xff, 0xc3};
    tn_text_stream s = {0};
    tn_bytes out = {0};
    for (size_t i = 0; i < sizeof bytes; i++) {
        assert_ok(tn_tokenizer_stream(t, &s, t->bytes[bytes[i]], 0, &out));
        if (i == 2 || i == 5) assert_int_equal(out.size, i == 2 ? 0 : 4);
    }
    assert_int_equal(out.size, sizeof bytes - 1); /* what can no longer become a character is given out */
    assert_ok(tn_tokenizer_stream_end(&s, &out));
    assert_memory_equal(out.data, bytes, sizeof bytes);
    assert_int_equal(out.size, sizeof bytes);

    tn_bytes before = {0};
    assert_ok(tn_bytes_append(&before, "kept", 4));
    assert_int_equal(tn_tokenizer_stream(t, &s, 99999, 0, &before), TN_ERR_ARGUMENT);
    assert_string_equal(before.data, "kept");
    tn_bytes_free(&before);
    tn_bytes_free(&out);
    tn_tokenizer_free(t);
    close_golden(&g);
}

/* ---- special tokens ---------------------------------------------------------------------------------------------- */

enum { S_BOS, S_EOS, S_MARK, S_LONG, S_THINK, S_A, S_B, S_AB, S_LESS, S_BAR, S_SPACE, SMALL };

static tn_vocabulary special_vocabulary(bool by_score) {
    static const tn_text_slice gpt2[] = {{"<s>", 3}, {"</s>", 4}, {"<|m|>", 5}, {"<|m|>x", 6}, {"<t>", 3},     {"a", 1},
                                         {"b", 1},   {"ab", 2},   {"<", 1},     {"|", 1},      {"\xc4\xa0", 2}};
    static const tn_text_slice llama[] = {{"<s>", 3}, {"</s>", 4}, {"<|m|>", 5},       {"<|m|>x", 6},
                                          {"<t>", 3}, {"a", 1},    {"b", 1},           {"ab", 2},
                                          {"<", 1},   {"|", 1},    {"\xe2\x96\x81", 3}};
    static const int32_t types[] = {3, 3, 3, 3, 4, 1, 1, 1, 1, 1, 1};
    static const float scores[] = {0, 0, 0, 0, 0, -3, -3, -1, -3, -3, -2};
    static const tn_text_slice merges[] = {{"a b", 3}};
    tn_vocabulary v = TN_VOCABULARY_DEFAULTS;
    v.model = by_score ? "llama" : "gpt2";
    v.pre = "gpt-2";
    v.count = SMALL;
    v.tokens = by_score ? llama : gpt2;
    v.scores = scores;
    v.types = types;
    v.merges = merges;
    v.merge_count = 1;
    v.special[TN_SPECIAL_BOS] = S_BOS;
    v.special[TN_SPECIAL_EOS] = S_EOS;
    return v;
}

static void assert_ids(const tn_vocabulary *v, const char *text, unsigned flags, const int32_t *want, size_t count) {
    tn_tokenizer *t;
    tn_ids ids = {0};
    assert_ok(tn_tokenizer_new(v, &t));
    assert_ok(tn_tokenizer_encode(t, text, strlen(text), flags, &ids));
    if (ids.count != count || memcmp(ids.data, want, count * sizeof *want) != 0) {
        print_ids("wanted", want, count);
        print_ids("ours", ids.data, ids.count);
        fail_msg("\"%s\" gives other ids", text);
    }
    tn_ids_free(&ids);
    tn_tokenizer_free(t);
}

#define ASSERT_IDS(v, text, flags, ...) \
    assert_ids(v, text, flags, (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

static void special_tokens_are_found_only_when_asked_for(void **state) {
    (void)state;
    tn_vocabulary v = special_vocabulary(false);
    ASSERT_IDS(&v, "ab<|m|>a", TN_ENCODE_SPECIAL, S_AB, S_MARK, S_A);
    ASSERT_IDS(&v, "a<|m|>xb", TN_ENCODE_SPECIAL, S_A, S_LONG, S_B); /* the longest */
    ASSERT_IDS(&v, "<s><<|m|>", TN_ENCODE_SPECIAL, S_BOS, S_LESS, S_MARK);
    ASSERT_IDS(&v, "<|m|>", 0, S_LESS, S_BAR, S_BAR); /* the letters that have no token are left out */
    ASSERT_IDS(&v, "a<t>b", 0, S_A, S_THINK, S_B); /* user-defined ones are always found, and nothing merges across */
    ASSERT_IDS(&v, "ab", TN_ENCODE_ENDS, S_AB);    /* this rule adds none … */
    v.add_bos = v.add_eos = 1;
    ASSERT_IDS(&v, "ab", TN_ENCODE_ENDS, S_BOS, S_AB, S_EOS);
    ASSERT_IDS(&v, "<s>", TN_ENCODE_ENDS | TN_ENCODE_SPECIAL, S_BOS, S_BOS, S_EOS); /* … and an own one stays */
    v.special[TN_SPECIAL_BOS] = -1;
    ASSERT_IDS(&v, "ab", TN_ENCODE_ENDS, S_AB, S_EOS);
}

static void a_space_is_put_in_front_and_taken_away(void **state) {
    (void)state;
    tn_vocabulary v = special_vocabulary(true);
    ASSERT_IDS(&v, "ab", TN_ENCODE_ENDS, S_BOS, S_SPACE, S_AB);
    ASSERT_IDS(&v, "a<|m|>b", TN_ENCODE_SPECIAL, S_SPACE, S_A, S_MARK, S_SPACE, S_B); /* behind a special token too */
    v.add_space_prefix = 0;
    ASSERT_IDS(&v, "a b", 0, S_A, S_SPACE, S_B);
    v.add_space_prefix = 1;

    const int32_t ids[] = {S_BOS, S_SPACE, S_AB, S_SPACE, S_A, S_EOS};
    tn_tokenizer *t;
    tn_bytes out = {0};
    assert_ok(tn_tokenizer_new(&v, &t));
    assert_ok(tn_tokenizer_decode(t, ids, 6, 0, &out));
    assert_string_equal(out.data, "ab a");
    out.size = 0;
    assert_ok(tn_tokenizer_decode(t, ids, 6, TN_DECODE_SPECIAL, &out));
    assert_string_equal(out.data, "<s>ab a</s>");
    out.size = 0;
    assert_ok(tn_tokenizer_decode(t, NULL, 0, 0, &out));
    assert_string_equal(out.data, "");
    const int32_t wrong[] = {S_A, SMALL};
    assert_int_equal(tn_tokenizer_decode(t, wrong, 2, 0, &out), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "token 11 is outside the vocabulary of 11");
    assert_int_equal(out.size, 0);
    tn_bytes_free(&out);
    tn_tokenizer_free(t);
}

static void facts_are_told(void **state) {
    (void)state;
    tn_vocabulary v = special_vocabulary(false);
    tn_tokenizer *t;
    size_t size;
    v.chat_template = "{{ x }}";
    assert_ok(tn_tokenizer_new(&v, &t));
    assert_int_equal(tn_tokenizer_count(t), SMALL);
    assert_int_equal(tn_tokenizer_type(t, S_MARK), TN_TOKEN_CONTROL);
    assert_int_equal(tn_tokenizer_type(t, -1), 0);
    assert_int_equal(tn_tokenizer_type(t, SMALL), 0);
    assert_string_equal(tn_tokenizer_spelling(t, S_LONG, &size), "<|m|>x");
    assert_int_equal(size, 6);
    assert_null(tn_tokenizer_spelling(t, SMALL, &size));
    assert_int_equal(tn_tokenizer_find(t, "</s>", 4), S_EOS);
    assert_int_equal(tn_tokenizer_find(t, "nope", 4), -1);
    assert_int_equal(tn_tokenizer_find(t, "", 0), -1);
    assert_int_equal(tn_tokenizer_special(t, TN_SPECIAL_EOS), S_EOS);
    assert_int_equal(tn_tokenizer_special(t, TN_SPECIAL_PADDING), -1);
    assert_true(tn_tokenizer_ends(t, S_EOS));
    assert_false(tn_tokenizer_ends(t, S_A) || tn_tokenizer_ends(t, -5));
    assert_string_equal(tn_tokenizer_chat_template(t), "{{ x }}");
    tn_tokenizer_free(t);
    tn_tokenizer_free(NULL);
}

/* ---- from a file ------------------------------------------------------------------------------------------------- */

/* A GGUF file of metadata alone, written value by value. */
static void put_u32(FILE *f, uint32_t v) {
    tn_dtype_little_endian(TN_U32, &v, 1);
    assert_int_equal(fwrite(&v, sizeof v, 1, f), 1);
}

static void put_u64(FILE *f, uint64_t v) {
    tn_dtype_little_endian(TN_U64, &v, 1);
    assert_int_equal(fwrite(&v, sizeof v, 1, f), 1);
}

static void put_string(FILE *f, const char *text, size_t size) {
    put_u64(f, size);
    assert_int_equal(fwrite(text, 1, size, f), size);
}

static void put_key(FILE *f, const char *key, tn_gguf_type type) {
    put_string(f, key, strlen(key));
    put_u32(f, type);
}

static void put_text(FILE *f, const char *key, const char *text) {
    put_key(f, key, TN_GGUF_STRING);
    put_string(f, text, strlen(text));
}

static void put_number(FILE *f, const char *key, uint32_t v) {
    put_key(f, key, TN_GGUF_U32);
    put_u32(f, v);
}

static void put_strings(FILE *f, const char *key, const tn_text_slice *items, size_t count) {
    put_key(f, key, TN_GGUF_ARRAY);
    put_u32(f, TN_GGUF_STRING);
    put_u64(f, count);
    for (size_t i = 0; i < count; i++)
        put_string(f, items[i].data, items[i].size);
}

static void put_integers(FILE *f, const char *key, const int32_t *items, size_t count) {
    put_key(f, key, TN_GGUF_ARRAY);
    put_u32(f, TN_GGUF_I32);
    put_u64(f, count);
    for (size_t i = 0; i < count; i++)
        put_u32(f, (uint32_t)items[i]);
}

static void put_flag(FILE *f, const char *key, bool v) {
    put_key(f, key, TN_GGUF_BOOL);
    fputc(v, f);
}

/* Writes the special vocabulary; `types` of them, and these ids for the begin and end. Returns the path. */
static const char *write_vocabulary(const char *model, size_t types, uint32_t bos, uint32_t eos) {
    const tn_vocabulary v = special_vocabulary(false);
    const char *path = test_scratch("vocabulary.gguf");
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite("GGUF", 1, 4, f), 4);
    put_u32(f, 3);
    put_u64(f, 0);
    put_u64(f, model ? 9 : 8);
    if (model) put_text(f, "tokenizer.ggml.model", model);
    put_text(f, "tokenizer.ggml.pre", "gpt-2");
    put_strings(f, "tokenizer.ggml.tokens", v.tokens, SMALL);
    put_strings(f, "tokenizer.ggml.merges", v.merges, 1);
    put_integers(f, "tokenizer.ggml.token_type", v.types, types);
    put_number(f, "tokenizer.ggml.bos_token_id", bos);
    put_number(f, "tokenizer.ggml.eos_token_id", eos);
    put_flag(f, "tokenizer.ggml.add_bos_token", true);
    put_text(f, "tokenizer.chat_template", "{{ messages }}");
    assert_int_equal(fclose(f), 0);
    return path;
}

static tn_status open_vocabulary(const char *path, tn_tokenizer **t) {
    tn_gguf *file;
    assert_ok(tn_gguf_open(path, &file));
    tn_status status = tn_tokenizer_from_gguf(file, t);
    tn_gguf_close(file);
    return status;
}

static void a_vocabulary_is_read_from_a_file(void **state) {
    (void)state;
    tn_tokenizer *t;
    tn_ids ids = {0};
    assert_ok(open_vocabulary(write_vocabulary("gpt2", SMALL, S_BOS, UINT32_MAX), &t));
    assert_int_equal(tn_tokenizer_special(t, TN_SPECIAL_BOS), S_BOS);
    assert_int_equal(tn_tokenizer_special(t, TN_SPECIAL_EOS), -1); /* UINT32_MAX says none */
    assert_string_equal(tn_tokenizer_rule(t), "gpt-2");
    assert_string_equal(tn_tokenizer_chat_template(t), "{{ messages }}");
    assert_ok(tn_tokenizer_encode(t, "ab", 2, TN_ENCODE_ENDS, &ids));
    assert_int_equal(ids.count, 2);
    assert_int_equal(ids.data[1], S_AB);
    tn_ids_free(&ids);
    tn_tokenizer_free(t);
}

static void senseless_files_are_refused(void **state) {
    (void)state;
    tn_tokenizer *t;
    assert_int_equal(open_vocabulary(write_vocabulary(NULL, SMALL, 0, 1), &t), TN_ERR_FORMAT);
    assert_text_has(tn_error(), "vocabulary.gguf: the file has no tokenizer");
    assert_int_equal(open_vocabulary(write_vocabulary("bert", SMALL, 0, 1), &t), TN_ERR_UNSUPPORTED);
    assert_int_equal(open_vocabulary(write_vocabulary("llama", SMALL, 0, 1), &t), TN_ERR_FORMAT);
    assert_text_has(tn_error(), "requires scores");
    assert_int_equal(open_vocabulary(write_vocabulary("gpt2", 3, 0, 1), &t), TN_ERR_FORMAT);
    assert_text_has(tn_error(), "token_type has 3 items, but there are 11 tokens");
    assert_int_equal(open_vocabulary(write_vocabulary("gpt2", SMALL, SMALL, 1), &t), TN_ERR_FORMAT);
    assert_text_has(tn_error(), "bos_token_id is 11, outside the vocabulary of 11");
    assert_null(t);
}

/* Runs `trunnion tokenize -m FILE ARGUMENTS`; gives its exit code and what it says. */
static int run_command(const char *path, const char *arguments, char *heard, size_t size) {
    char command[2048];
    snprintf(command, sizeof command, "printf 'a<t>b' | %%s tokenize -m %s %s", path, arguments);
    return run_trunnion(command, heard, size);
}

static void the_command_shows_ids_and_pieces(void **state) {
    (void)state;
    static const struct {
        const char *arguments;
        int code;
        const char *said;
    } rows[] = {
        {"'ab<|m|>'", 0, "      0  '<s>'\n      7  'ab'\n      2  '<|m|>'\n"},
        {"--no-ends --no-special 'ab<'", 0, "      7  'ab'\n      8  '<'\n"},
        {"- --no-ends", 0, "      5  'a'\n      4  '<t>'\n      6  'b'\n"},
        {"--json ab", 0, "\"pieces\": ["},
        {"--decode 0,7,10 6", 2, ""},
        {"--decode '0,7, 10 6'", 0, "<s>ab b\n"},
        {"--no-special --decode 0,7", 0, "ab\n"},
        {"--decode - --json </dev/null", 0, "{\"text\": \"\"}"},
        {"--decode 0,x 2>&1", 1, "\"x\" is not a token id"},
        {"--decode 99 2>&1", 1, "token 99 is outside the vocabulary of 11"},
        {"2>&1", 2, "missing text"},
        {"a b 2>&1", 2, "expected one text"},
    };
    const char *path = write_vocabulary("gpt2", SMALL, S_BOS, S_EOS);
    char heard[4096];
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        int code = run_command(path, rows[i].arguments, heard, sizeof heard);
        if (code != rows[i].code || !strstr(heard, rows[i].said))
            fail_msg("trunnion tokenize %s ends with %d: %s", rows[i].arguments, code, heard);
    }
    assert_int_equal(run_command("/no/such/file", "a 2>&1", heard, sizeof heard), 1);
    assert_text_has(heard, "/no/such/file");
}

/* ---- hostile texts ----------------------------------------------------------------------------------------------- */

/* Merging by its definition: look for the best pair, again and again. */
static void merge_plainly(const tn_tokenizer *t, const uint8_t *word, size_t size, tn_ids *out) {
    int32_t *ids = malloc((size + 1) * sizeof *ids);
    assert_non_null(ids);
    for (size_t i = 0; i < size; i++)
        ids[i] = t->bytes[word[i]];
    for (;;) {
        int32_t best = INT32_MAX;
        size_t place = 0;
        for (size_t i = 0; i + 1 < size; i++) {
            int32_t rank = tn_txt_find_merge(t, ids[i], ids[i + 1]);
            if (rank < 0 || rank >= best) continue;
            best = rank;
            place = i;
        }
        if (best == INT32_MAX) break;
        ids[place] = t->merges[best].result;
        memmove(ids + place + 1, ids + place + 2, (size - place - 2) * sizeof *ids);
        size--;
    }
    for (size_t i = 0; i < size; i++)
        assert_ok(tn_ids_append(out, ids[i]));
    free(ids);
}

static void the_heap_merges_as_the_definition_says(void **state) {
    (void)state;
    golden g = open_golden("tests/golden/tokenizer_small.json");
    tn_tokenizer *t = small_tokenizer(&g, "gpt-2");
    uint32_t random = 1;
    for (int round = 0; round < 600; round += test_every(1, 3)) {
        static const char letters[] = "aeilnorst he\xc3\xa9";
        uint8_t word[300];
        size_t size = 1 + (size_t)(round % 299);
        for (size_t i = 0; i < size; i++) {
            random = random * 1664525u + 1013904223u;
            word[i] = (uint8_t)letters[(random >> 16) % (round % 2 ? sizeof letters - 1 : 3)];
        }
        tn_ids want = {0}, got = {0};
        tn_txt_work w = {.tokenizer = t, .out = &got};
        merge_plainly(t, word, size, &want);
        assert_ok(tn_txt_bpe(&w, (const char *)word, size));
        assert_int_equal(got.count, want.count);
        assert_memory_equal(got.data, want.data, want.count * sizeof *want.data);
        tn_txt_work_free(&w);
        tn_ids_free(&want);
        tn_ids_free(&got);
    }
    tn_tokenizer_free(t);
    close_golden(&g);
}

static void a_megabyte_of_one_kind_is_no_trouble(void **state) {
    (void)state;
    enum { MEGABYTE = 1 << 20 };
    static const char *const parts[] = {"a", " ",    "\n", "1",     " a", "\xe4\xb8\xad",
                                        "'", "\xff", "<",  "\r\n ", "aA", "\xcc\x81"};
    static const char *const rules[] = {"gpt-2",  "smollm",      "llama-bpe", "gpt-4o",
                                        "tekken", "deepseek-v3", "default",   NULL};
    golden g = open_golden("tests/golden/tokenizer_small.json");
    char *text = malloc(MEGABYTE);
    assert_non_null(text);
    const size_t every = (size_t)test_every(4, 6); /* each part and each rule has its turn */
    for (size_t k = 0; k < TN_COUNT(rules); k++) {
        tn_tokenizer *t = small_tokenizer(&g, rules[k]);
        for (size_t p = 0; p < TN_COUNT(parts); p++) {
            if ((p + k) % every != 0) continue;
            size_t length = strlen(parts[p]);
            for (size_t i = 0; i < MEGABYTE; i++)
                text[i] = parts[p][i % length];
            tn_ids ids = {0};
            assert_ok(tn_tokenizer_encode(t, text, MEGABYTE, 0, &ids));
            assert_true(ids.count > 0);
            tn_ids_free(&ids);
        }
        tn_tokenizer_free(t);
    }
    free(text);
    close_golden(&g);
}

static void bytes_that_are_no_utf8_do_not_disturb(void **state) {
    (void)state;
    golden g = open_golden("tests/golden/tokenizer_small.json");
    tn_tokenizer *bpe = small_tokenizer(&g, "gpt-2"), *sp = small_tokenizer(&g, NULL);
    uint32_t random = 7;
    for (int round = 0; round < 2000; round++) {
        uint8_t bytes[64];
        size_t size = (size_t)(round % 64);
        for (size_t i = 0; i < size; i++) {
            random = random * 1664525u + 1013904223u;
            bytes[i] = (uint8_t)(random >> (random & 1 ? 24 : 16));
        }
        tn_ids ids = {0};
        tn_bytes text = {0};
        assert_ok(tn_tokenizer_encode(bpe, (const char *)bytes, size, 0, &ids));
        ids.count = 0;
        assert_ok(tn_tokenizer_encode(sp, (const char *)bytes, size, 0, &ids));
        assert_ok(tn_tokenizer_decode(sp, ids.data, ids.count, 0, &text));
        assert_int_equal(text.size, size); /* byte tokens bring any byte back */
        assert_memory_equal(text.data, bytes, size);
        tn_ids_free(&ids);
        tn_bytes_free(&text);
    }
    tn_tokenizer_free(bpe);
    tn_tokenizer_free(sp);
    close_golden(&g);
}

/* ---- hostile vocabularies ---------------------------------------------------------------------------------------- */

static void assert_refused(const tn_vocabulary *v, tn_status kind, const char *words) {
    tn_tokenizer *t;
    assert_int_equal(tn_tokenizer_new(v, &t), kind);
    assert_null(t);
    assert_text_has(tn_error(), words);
}

static void senseless_vocabularies_are_refused(void **state) {
    (void)state;
    const tn_vocabulary good = special_vocabulary(false);
    tn_vocabulary v = good;
    v.model = "unigram";
    assert_refused(&v, TN_ERR_UNSUPPORTED, "supported are gpt2, llama");
    v = good;
    v.pre = "never-heard-of";
    assert_refused(&v, TN_ERR_UNSUPPORTED, "smollm");
    v = good;
    v.count = 0;
    assert_refused(&v, TN_ERR_FORMAT, "a vocabulary of 0 tokens");
    v = good;
    v.special[TN_SPECIAL_EOS] = SMALL;
    assert_refused(&v, TN_ERR_FORMAT, "outside the vocabulary");
    v = good;
    v.types = (const int32_t[SMALL]){1, 1, 7};
    assert_refused(&v, TN_ERR_FORMAT, "token 2 has type 7");
    v = good;
    v.tokens = (const tn_text_slice[SMALL]){{"x", 1}, {"", 0}, {"", 0}, {"x", 1}};
    assert_refused(&v, TN_ERR_FORMAT, "tokens 0 and 3 are both spelled \"x\"");
    v = special_vocabulary(true);
    v.scores = NULL;
    assert_refused(&v, TN_ERR_FORMAT, "requires scores");
    v.scores = (const float[SMALL]){0, NAN};
    assert_refused(&v, TN_ERR_FORMAT, "score of token 1");
    v = good;
    char *giant = calloc(1, 1000);
    memset(giant, 'x', 999);
    tn_text_slice tokens[SMALL] = {{giant, 999}};
    v.tokens = tokens;
    assert_refused(&v, TN_ERR_FORMAT, "has 999 bytes");
    free(giant);
    tn_vocabulary o = {0};
    assert_refused(&o, TN_ERR_ARGUMENT, "struct_size");
    assert_int_equal(tn_tokenizer_new(&good, NULL), TN_ERR_ARGUMENT);
    assert_int_equal(tn_tokenizer_from_gguf(NULL, NULL), TN_ERR_ARGUMENT);
}

static void merges_that_give_no_token_are_passed_over(void **state) {
    (void)state;
    static const tn_text_slice merges[] = {{"a", 1},   {"", 0},    {" ", 1},   {"a a", 3},  {"zz b", 4},
                                           {"b a", 3}, {"a b", 3}, {"a b", 3}, {"< s>", 4}, {"a  b", 4}};
    tn_vocabulary v = special_vocabulary(false);
    v.merges = merges;
    v.merge_count = TN_COUNT(merges);
    ASSERT_IDS(&v, "abab", 0, S_AB, S_AB);
}

static void wrong_arguments_are_refused(void **state) {
    (void)state;
    tn_vocabulary v = special_vocabulary(false);
    tn_tokenizer *t;
    tn_ids ids = {0};
    assert_ok(tn_tokenizer_new(&v, &t));
    assert_ok(tn_tokenizer_encode(t, NULL, 0, 0, &ids));
    assert_int_equal(ids.count, 0);
    assert_int_equal(tn_tokenizer_encode(t, NULL, 1, 0, &ids), TN_ERR_ARGUMENT);
    assert_int_equal(tn_tokenizer_encode(t, "a", SIZE_MAX / 2, 0, &ids), TN_ERR_ARGUMENT);
    assert_int_equal(tn_tokenizer_encode(NULL, "a", 1, 0, &ids), TN_ERR_ARGUMENT);
    assert_int_equal(tn_tokenizer_decode(t, NULL, 1, 0, NULL), TN_ERR_ARGUMENT);
    assert_int_equal(tn_tokenizer_count(NULL), 0);
    tn_tokenizer *none;
    tn_encoding encoding = {0};
    tn_text_slice text = {"a", 1};
    assert_int_equal(tn_tokenizer_from_json(NULL, 0, NULL, 0, &none), TN_ERR_ARGUMENT);
    assert_int_equal(tn_tokenizer_from_json("{}", 2, NULL, 0, NULL), TN_ERR_ARGUMENT);
    assert_int_equal(tn_tokenizer_open(NULL, &none), TN_ERR_ARGUMENT);
    assert_int_equal(tn_tokenizer_open("/nowhere", &none), TN_ERR_IO);
    assert_int_equal(tn_tokenizer_open("x", NULL), TN_ERR_ARGUMENT);
    assert_int_equal(tn_tokenizer_encode_pair(NULL, text, text, NULL, &encoding), TN_ERR_ARGUMENT);
    assert_int_equal(tn_tokenizer_encode_pair(t, text, text, NULL, NULL), TN_ERR_ARGUMENT);
    tn_pair_options o = {0};
    assert_int_equal(tn_tokenizer_encode_pair(t, text, text, &o, &encoding), TN_ERR_ARGUMENT);
    assert_int_equal(tn_tokenizer_encode_pair(t, text, text, NULL, &encoding), TN_ERR_UNSUPPORTED);
    assert_ok(tn_tokenizer_encode_pair(t, text, (tn_text_slice){0}, NULL, &encoding));
    assert_int_equal(encoding.ids.count, encoding.mask.count);
    tn_encoding_free(&encoding);
    tn_encoding_free(NULL);
    tn_tokenizer_free(t);
}

static void failed_allocations_leave_nothing_behind(void **state) {
    (void)state;
    for (int by_score = 0; by_score < 2; by_score++) {
        tn_vocabulary v = special_vocabulary(by_score);
        v.chat_template = "x";
        int64_t before = tn_txt_live_blocks();
        for (int64_t n = 1;; n++) {
            tn_tokenizer *t;
            tn_ids ids = {0};
            tn_bytes text = {0};
            tn_txt_fail_at(n);
            tn_status status = tn_tokenizer_new(&v, &t);
            if (status == TN_OK) status = tn_tokenizer_encode(t, "a<t>b\xff a ababab", 14, TN_ENCODE_ENDS, &ids);
            if (status == TN_OK) status = tn_tokenizer_decode(t, ids.data, ids.count, 0, &text);
            tn_txt_fail_at(0);
            tn_ids_free(&ids);
            tn_bytes_free(&text);
            tn_tokenizer_free(t);
            assert_int_equal(tn_txt_live_blocks(), before);
            if (status == TN_OK) break;
            assert_int_equal(status, TN_ERR_MEMORY);
            assert_true(n < 1000);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rule_agrees_with_tokenizers),
        cmocka_unit_test(merging_by_score_agrees_with_sentencepiece),
        cmocka_unit_test(smollm2_agrees_with_llama_cpp),
        cmocka_unit_test(texts_come_back_whole),
        cmocka_unit_test(a_stream_gives_up_unfinished_bytes_at_the_end),
        cmocka_unit_test(special_tokens_are_found_only_when_asked_for),
        cmocka_unit_test(a_space_is_put_in_front_and_taken_away),
        cmocka_unit_test(facts_are_told),
        cmocka_unit_test(a_vocabulary_is_read_from_a_file),
        cmocka_unit_test(senseless_files_are_refused),
        cmocka_unit_test(the_command_shows_ids_and_pieces),
        cmocka_unit_test(the_heap_merges_as_the_definition_says),
        cmocka_unit_test(a_megabyte_of_one_kind_is_no_trouble),
        cmocka_unit_test(bytes_that_are_no_utf8_do_not_disturb),
        cmocka_unit_test(senseless_vocabularies_are_refused),
        cmocka_unit_test(merges_that_give_no_token_are_passed_over),
        cmocka_unit_test(wrong_arguments_are_refused),
        cmocka_unit_test(failed_allocations_leave_nothing_behind),
    };
    return cmocka_run_group_tests_name("tokenizer", tests, make_scratch, remove_scratch);
}
