/* test_tokenizer_json.c — promises of tokenizers made of a tokenizer.json: the ids, types and texts of Hugging Face's
 * tokenizers package for every part of the format, and no file that breaks or stalls them.
 *
 * Reference: tests/golden/tokenizers.json (ref_tokenizers.py). Its probes share a model that spells out bytes and
 * marks each word's end, so that decoded ids tell what a normalizer and a pre-tokenizer made. */
#include "test_support.h"

#include <sys/stat.h>

#include "json_tree.h"
#include "text/hf.h"

static const char golden_path[] = "tests/golden/tokenizers.json";

typedef struct golden {
    char *text;
    tn_json_doc *doc;
    const tn_json *root, *texts;
} golden;

static golden open_golden(void) {
    golden g;
    size_t size;
    assert_ok(tn_file_read(golden_path, &g.text, &size, 1 << 24));
    assert_ok(tn_json_parse(g.text, size, &g.doc));
    g.root = tn_json_root(g.doc);
    g.texts = tn_json_get(g.root, "texts");
    assert_true(tn_json_length(g.texts) >= 60);
    return g;
}

static void close_golden(golden *g) {
    tn_json_free(g->doc);
    tn_mem_free(g->text);
}

static tn_text_slice slice_of(const tn_json *v) { return (tn_text_slice){tn_json_string(v, ""), tn_json_length(v)}; }

static tn_tokenizer *made_of(const char *name, const char *file, size_t size) {
    tn_tokenizer *t = NULL;
    if (tn_tokenizer_from_json(file, size, NULL, 0, &t) != TN_OK) fail_msg("%s: %s", name, tn_error());
    return t;
}

static bool same_ids(const tn_ids *got, const tn_json *want) {
    bool same = got->count == tn_json_length(want);
    for (size_t i = 0; i < got->count && same; i++)
        same = got->data[i] == tn_json_int(tn_json_at(want, i), -1);
    return same;
}

/* ---- against the reference --------------------------------------------------------------------------------------- */

/* Whether a text is the wanted one, in which U+FFFD stands for bytes that are no UTF-8. */
static bool same_text(const tn_bytes *got, const char *want) {
    tn_bytes whole = {0};
    for (size_t at = 0; at < got->size;) {
        size_t good = tn_txt_utf8_valid(got->data + at, got->size - at);
        assert_ok(tn_bytes_append(&whole, got->data + at, good));
        at += good;
        if (at < got->size) assert_ok(tn_bytes_append(&whole, "\xef\xbf\xbd", 3));
        at++;
    }
    assert_ok(tn_bytes_append(&whole, "", 0));
    bool same = !strcmp(whole.data, want);
    tn_bytes_free(&whole);
    return same;
}

static size_t differing_texts(const char *name, const tn_tokenizer *t, const golden *g, const tn_json *row) {
    size_t wrong = 0;
    for (size_t i = 0; i < tn_json_length(g->texts); i++) {
        tn_text_slice text = slice_of(tn_json_at(g->texts, i));
        const tn_json *back = tn_json_at(tn_json_get(row, "texts"), i);
        tn_ids ids = {0};
        tn_bytes decoded = {0};
        assert_ok(tn_tokenizer_encode(t, text.data, text.size, TN_ENCODE_SPECIAL | TN_ENCODE_ENDS, &ids));
        assert_ok(tn_tokenizer_decode(t, ids.data, ids.count, 0, &decoded));
        bool same = same_ids(&ids, tn_json_at(tn_json_get(row, "ids"), i));
        if (tn_json_kind_of(back) == TN_JSON_STRING) same &= same_text(&decoded, tn_json_string(back, ""));
        if (!same) print_error("%s: \"%s\" comes back as \"%s\"\n", name, text.data, decoded.data);
        wrong += !same;
        tn_ids_free(&ids);
        tn_bytes_free(&decoded);
    }
    return wrong;
}

static size_t differing_pairs(const char *name, const tn_tokenizer *t, const golden *g, const tn_json *row) {
    tn_pair_options o = TN_PAIR_DEFAULTS;
    o.flags = TN_ENCODE_SPECIAL | TN_ENCODE_ENDS | TN_ENCODE_TRUNCATE | TN_ENCODE_PAD;
    const tn_json *pairs = tn_json_get(row, "pairs");
    size_t wrong = 0;
    for (size_t i = 0; i < tn_json_length(pairs); i++) {
        const tn_json *want = tn_json_at(pairs, i);
        tn_encoding e = {0};
        tn_status status = tn_tokenizer_encode_pair(t, slice_of(tn_json_at(g->texts, i)),
                                                    slice_of(tn_json_at(g->texts, i + 12)), &o, &e);
        bool refused = tn_json_kind_of(want) == TN_JSON_NULL;
        bool same = refused ? status == TN_ERR_ARGUMENT
                            : status == TN_OK && same_ids(&e.ids, tn_json_at(want, 0)) &&
                                  same_ids(&e.types, tn_json_at(want, 1)) && same_ids(&e.mask, tn_json_at(want, 2));
        if (!same) print_error("%s: pair %zu differs: %s\n", name, i, tn_error());
        wrong += !same;
        tn_encoding_free(&e);
    }
    return wrong;
}

static void every_model_agrees_with_tokenizers(void **state) {
    (void)state;
    golden g = open_golden();
    const tn_json *rows = tn_json_get(g.root, "tokenizers");
    size_t wrong = 0;
    assert_true(tn_json_length(rows) >= 14);
    for (size_t i = 0; i < tn_json_length(rows); i++) {
        const tn_json *row = tn_json_at(rows, i);
        tn_text_slice file = slice_of(tn_json_get(row, "file"));
        tn_tokenizer *t = made_of(tn_json_key(rows, i), file.data, file.size);
        wrong += differing_texts(tn_json_key(rows, i), t, &g, row);
        wrong += differing_pairs(tn_json_key(rows, i), t, &g, row);
        tn_tokenizer_free(t);
    }
    assert_int_equal(wrong, 0);
    close_golden(&g);
}

static void put_member(tn_str *out, const char *key, const tn_json *v) {
    tn_json_writer w = {.out = out};
    tn_str_add(out, "%s\"%s\":", out->length > 1 ? "," : "", key);
    write_json_value(&w, v);
}

/* The file of a probe. */
static tn_str probe_file(const golden *g, const tn_json *row) {
    static const char *const shared[] = {"model", "decoder"}, *const own[] = {"normalizer", "pre_tokenizer"};
    tn_str file = {0};
    tn_str_add(&file, "{");
    for (int i = 0; i < 2; i++) {
        put_member(&file, shared[i], tn_json_get(tn_json_get(g->root, "probe"), shared[i]));
        put_member(&file, own[i], tn_json_get(row, own[i]));
    }
    tn_str_add(&file, "}");
    assert_false(file.failed);
    return file;
}

static void every_step_agrees_with_tokenizers(void **state) {
    (void)state;
    golden g = open_golden();
    const tn_json *rows = tn_json_get(g.root, "probes");
    size_t wrong = 0;
    assert_true(tn_json_length(rows) >= 60);
    for (size_t i = 0; i < tn_json_length(rows); i++) {
        const tn_json *words = tn_json_get(tn_json_at(rows, i), "words");
        tn_str file = probe_file(&g, tn_json_at(rows, i));
        tn_tokenizer *t = made_of(tn_json_key(rows, i), file.text, file.length);
        for (size_t k = 0; k < tn_json_length(g.texts); k++) {
            tn_text_slice text = slice_of(tn_json_at(g.texts, k));
            tn_ids ids = {0};
            tn_bytes got = {0};
            assert_ok(tn_tokenizer_encode(t, text.data, text.size, 0, &ids));
            assert_ok(tn_tokenizer_decode(t, ids.data, ids.count, 0, &got));
            const char *want = tn_json_string(tn_json_at(words, k), "");
            if (strcmp(got.data, want) != 0) {
                print_error("%s: \"%s\" becomes \"%s\", not \"%s\"\n", tn_json_key(rows, i), text.data, got.data, want);
                wrong++;
            }
            tn_ids_free(&ids);
            tn_bytes_free(&got);
        }
        tn_tokenizer_free(t);
        tn_str_free(&file);
    }
    assert_int_equal(wrong, 0);
    close_golden(&g);
}

/* ---- what small files show --------------------------------------------------------------------------------------- */

static const char small[] =
    "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":3,\"content\":\"<s>\",\"special\":true,\"normalized\":false},"
    "{\"id\":7,\"content\":\"NEW\",\"special\":false,\"normalized\":true,\"lstrip\":true}],"
    "\"normalizer\":{\"type\":\"Lowercase\"},\"pre_tokenizer\":{\"type\":\"Whitespace\"},"
    "\"post_processor\":{\"type\":\"BertProcessing\",\"cls\":[\"<s>\",3],\"sep\":[\"<s>\",3]},"
    "\"decoder\":{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":false},"
    "\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"?\",\"continuing_subword_prefix\":\"##\","
    "\"max_input_chars_per_word\":9,\"vocab\":{\"?\":0,\"a\":1,\"##b\":2,\"<s>\":3,\"##bc\":4}}}";
static const char config[] = "{\"bos_token\":{\"content\":\"<s>\"},\"eos_token\":\"<s>\",\"chat_template\":"
                             "[{\"name\":\"tools\",\"template\":\"T\"},{\"name\":\"default\",\"template\":\"D\"}]}";

static void facts_are_told(void **state) {
    (void)state;
    tn_tokenizer *t;
    assert_ok(tn_tokenizer_from_json(small, sizeof small - 1, config, sizeof config - 1, &t));
    assert_string_equal(tn_tokenizer_model(t), "WordPiece");
    assert_string_equal(tn_tokenizer_rule(t), "");
    assert_string_equal(tn_tokenizer_chat_template(t), "D");
    assert_int_equal(tn_tokenizer_count(t), 6); /* a declared id of an added token does not count */
    assert_int_equal(tn_tokenizer_special(t, TN_SPECIAL_EOS), 3);
    assert_int_equal(tn_tokenizer_special(t, TN_SPECIAL_UNKNOWN), 0);
    assert_int_equal(tn_tokenizer_type(t, 3), TN_TOKEN_CONTROL);
    assert_int_equal(tn_tokenizer_type(t, 5), TN_TOKEN_USER_DEFINED);
    assert_int_equal(tn_tokenizer_find(t, "NEW", 3), 5);
    assert_true(tn_tokenizer_ends(t, 3) && !tn_tokenizer_ends(t, 1) && tn_tokenizer_adds_bos(t));
    tn_tokenizer_free(t);
}

/* A folder: what stands beside tokenizer.json counts, what is missing does not. */
static void a_folder_is_opened_with_what_stands_beside(void **state) {
    (void)state;
    char folder[512];
    tn_tokenizer *t;
    snprintf(folder, sizeof folder, "%s", test_scratch(""));
    assert_int_equal(tn_tokenizer_open(folder, &t), TN_ERR_IO);
    assert_text_has(tn_error(), "tokenizer.json");
    write_file(test_scratch("tokenizer.json"), small);
    assert_ok(tn_tokenizer_open(folder, &t));
    assert_null(tn_tokenizer_chat_template(t));
    assert_int_equal(tn_tokenizer_special(t, TN_SPECIAL_EOS), -1);
    tn_tokenizer_free(t);

    write_file(test_scratch("special_tokens_map.json"), "{\"eos_token\":\"a\",\"pad_token\":{\"content\":\"?\"}}");
    write_file(test_scratch("tokenizer_config.json"), config);
    write_file(test_scratch("chat_template.jinja"), "J");
    write_file(test_scratch("generation_config.json"), "{\"eos_token_id\":[2,4]}");
    assert_ok(tn_tokenizer_open(test_scratch("tokenizer.json"), &t));
    assert_string_equal(tn_tokenizer_chat_template(t), "J");
    assert_int_equal(tn_tokenizer_special(t, TN_SPECIAL_EOS), 3); /* the config's word, not the map's */
    assert_int_equal(tn_tokenizer_special(t, TN_SPECIAL_PADDING), 0);
    assert_true(tn_tokenizer_ends(t, 2) && tn_tokenizer_ends(t, 3) && tn_tokenizer_ends(t, 4));
    assert_false(tn_tokenizer_ends(t, 0));
    tn_tokenizer_free(t);
    write_file(test_scratch("tokenizer_config.json"), "{");
    assert_int_equal(tn_tokenizer_open(folder, &t), TN_ERR_FORMAT);
    assert_text_has(tn_error(), "tokenizer_config.json");
}

static void a_limit_on_tokens_takes_from_the_longer_text(void **state) {
    (void)state;
    tn_tokenizer *t;
    tn_encoding e = {0};
    assert_ok(tn_tokenizer_from_json(small, sizeof small - 1, NULL, 0, &t));
    tn_pair_options o = TN_PAIR_DEFAULTS;
    o.flags = TN_ENCODE_ENDS;
    o.max_tokens = 7;
    assert_ok(tn_tokenizer_encode_pair(t, (tn_text_slice){"a a a a a", 9}, (tn_text_slice){"abc", 3}, &o, &e));
    const int32_t ids[] = {3, 1, 1, 3, 1, 4, 3}, types[] = {0, 0, 0, 0, 1, 1, 1};
    assert_int_equal(e.ids.count, 7);
    assert_memory_equal(e.ids.data, ids, sizeof ids);
    assert_memory_equal(e.types.data, types, sizeof types);
    assert_int_equal(e.mask.count, 7);
    tn_encoding_free(&e);
    tn_tokenizer_free(t);
}

static void a_stream_shows_what_decoding_at_once_shows(void **state) {
    (void)state;
    static const char *const names[] = {"wordpiece", "bpe_bytes", "sentencepiece_bpe", "unigram", "unigram_bytes"};
    golden g = open_golden();
    for (size_t n = 0; n < TN_COUNT(names); n++) {
        const tn_json *row = tn_json_get(tn_json_get(g.root, "tokenizers"), names[n]);
        tn_text_slice file = slice_of(tn_json_get(row, "file"));
        tn_tokenizer *t = made_of(names[n], file.data, file.size);
        for (size_t i = 0; i < tn_json_length(g.texts); i++) {
            const tn_json *ids = tn_json_at(tn_json_get(row, "ids"), i);
            tn_bytes out = {0};
            tn_text_stream s = {0};
            assert_ok(tn_bytes_append(&out, "", 0));
            for (size_t k = 0; k < tn_json_length(ids); k++)
                assert_ok(tn_tokenizer_stream(t, &s, (int32_t)tn_json_int(tn_json_at(ids, k), -1), 0, &out));
            assert_ok(tn_tokenizer_stream_end(&s, &out));
            assert_string_equal(out.data, tn_json_string(tn_json_at(tn_json_get(row, "texts"), i), ""));
            tn_bytes_free(&out);
        }
        tn_tokenizer_free(t);
    }
    close_golden(&g);
}

/* ---- hostile files ----------------------------------------------------------------------------------------------- */

#define MODEL "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}"

static void senseless_files_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *file;
        tn_status kind;
        const char *words;
    } rows[] = {
        {"", TN_ERR_FORMAT, "tokenizer.json: JSON: byte 0"},
        {"[]", TN_ERR_FORMAT, "object"},
        {"{}", TN_ERR_FORMAT, "no model"},
        {"{" MODEL "} x", TN_ERR_FORMAT, "after the value"},
        {"{\"version\":\"2.0\"," MODEL "}", TN_ERR_UNSUPPORTED, "version"},
        {"{\"model\":{\"type\":\"Magic\"}}", TN_ERR_UNSUPPORTED, "supported are BPE"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":900000000},\"merges\":[]}}", TN_ERR_FORMAT, "ids up to"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}", TN_ERR_FORMAT, "at least 0"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}", TN_ERR_FORMAT, "merge 0"},
        {"{\"model\":{\"type\":\"BPE\",\"dropout\":0.5,\"vocab\":{\"a\":0},\"merges\":[]}}", TN_ERR_UNSUPPORTED,
         "dropout"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\"]]}}", TN_ERR_FORMAT, "[text, score]"},
        {"{\"normalizer\":{\"type\":\"Rot13\"}," MODEL "}", TN_ERR_UNSUPPORTED, "normalizer \"Rot13\""},
        {"{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"/////w==\"}," MODEL "}", TN_ERR_FORMAT,
         "a tree of"},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"},\"behavior\":\"Isolated\"}," MODEL "}",
         TN_ERR_UNSUPPORTED, "compiling"},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a&&b]\"},\"behavior\":\"Removed\"}," MODEL
         "}",
         TN_ERR_UNSUPPORTED, "intersection"},
        {"{\"post_processor\":{\"type\":\"BertProcessing\",\"cls\":[\"x\",9],\"sep\":[\"x\",9]}," MODEL "}",
         TN_ERR_FORMAT, "outside the vocabulary"},
        {"{\"added_tokens\":[{\"id\":0}]," MODEL "}", TN_ERR_FORMAT, "no content"},
    };
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        tn_tokenizer *t;
        assert_int_equal(tn_tokenizer_from_json(rows[i].file, strlen(rows[i].file), NULL, 0, &t), rows[i].kind);
        assert_null(t);
        assert_text_has(tn_error(), rows[i].words);
    }
}

static void deep_files_are_refused(void **state) {
    (void)state;
    enum { DEEP = 100000 };
    char *text = malloc(DEEP + 1);
    assert_non_null(text);
    tn_tokenizer *t;
    memset(text, '[', DEEP);
    assert_int_equal(tn_tokenizer_from_json(text, DEEP, NULL, 0, &t), TN_ERR_FORMAT);
    assert_text_has(tn_error(), "levels deep");
    free(text);
}

/* A pattern that takes forever, a normalizer that writes without end, a text of marks alone. */
static void hostile_steps_come_to_an_end(void **state) {
    (void)state;
    enum { MANY = 1 << 18 };
    static const struct {
        const char *steps;
        tn_status kind;
    } rows[] = {
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a*)*(a*)*b\"},\"behavior\":\"Removed\"}",
         TN_ERR_UNSUPPORTED},
        {"\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":["
         "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aaaaaaaaaaaaaaaa\"},"
         "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aaaaaaaaaaaaaaaa\"}]}",
         TN_ERR_UNSUPPORTED},
        {"\"normalizer\":{\"type\":\"NFKC\"}", TN_OK},
    };
    char *text = malloc(2 * MANY);
    assert_non_null(text);
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        char file[1024];
        tn_ids ids = {0};
        snprintf(file, sizeof file, "{%s," MODEL "}", rows[i].steps);
        tn_tokenizer *t = made_of("hostile", file, strlen(file));
        for (size_t k = 0; k < MANY; k++)
            memcpy(text + 2 * k, rows[i].kind != TN_OK ? "aa" : k % 2 ? "\xcc\x81" : "\xcc\xa3", 2);
        assert_int_equal(tn_tokenizer_encode(t, text, 2 * MANY, 0, &ids), rows[i].kind);
        tn_ids_free(&ids);
        tn_tokenizer_free(t);
    }
    free(text);
}

static void failed_allocations_leave_nothing_behind(void **state) {
    (void)state;
    golden g = open_golden();
    int64_t before = tn_txt_live_blocks();
    for (int64_t n = 1;; n++) {
        tn_tokenizer *t;
        tn_encoding e = {0};
        tn_bytes text = {0};
        tn_txt_fail_at(n);
        tn_status status = tn_tokenizer_from_json(small, sizeof small - 1, config, sizeof config - 1, &t);
        if (status == TN_OK)
            status = tn_tokenizer_encode_pair(t, (tn_text_slice){"abc \xc3\x89 <s> NEW \xff", 15},
                                              (tn_text_slice){"a", 1}, NULL, &e);
        if (status == TN_OK) status = tn_tokenizer_decode(t, e.ids.data, e.ids.count, 0, &text);
        tn_txt_fail_at(0);
        tn_encoding_free(&e);
        tn_bytes_free(&text);
        tn_tokenizer_free(t);
        assert_int_equal(tn_txt_live_blocks(), before);
        if (status == TN_OK) break;
        assert_int_equal(status, TN_ERR_MEMORY);
        assert_true(n < 2000);
    }
    close_golden(&g);
}

/* ---- SentencePiece models ---------------------------------------------------------------------------------------- */

typedef struct spm {
    char bytes[400];
    size_t size;
} spm;

/* A piece: field 1, with its text, its score (f32) and its type. */
static void add_piece(spm *m, const char *text, float score, int type) {
    char *p = m->bytes + m->size;
    size_t length = strlen(text);
    *p++ = 10;
    *p++ = (char)(length + 9);
    *p++ = 10;
    *p++ = (char)length;
    memcpy(p, text, length);
    p += length;
    *p++ = 21;
    memcpy(p, &score, sizeof score);
    p += sizeof score;
    *p++ = 24;
    *p++ = (char)type;
    m->size = (size_t)(p - m->bytes);
}

/* model: what trainer_spec calls the kind of model, 1 for unigram. */
static spm make_spm(int model) {
    spm m = {.size = 0};
    add_piece(&m, "<unk>", 0, 2);
    add_piece(&m, "\xe2\x96\x81", -2, 1);
    add_piece(&m, "a", -3, 1);
    add_piece(&m, "b", -3, 1);
    add_piece(&m, "ab", -4, 1);
    add_piece(&m,
              "\xe2\x96\x81"
              "a",
              -2.5f, 1);
    memcpy(m.bytes + m.size, (char[]){18, 2, 24, (char)model}, 4);
    m.size += 4;
    return m;
}

static const char spm_names[] = "{\"</s>\":0,\"<unk>\":1,\"ab\":2,\"\xe2\x96\x81\":3,\"c\":4,\"\xe2\x96\x81"
                                "a\":5,\"b\":6,"
                                "\"a\":7,\">>x<<\":8,\"abab\":9,\"<pad>\":10}";

static tn_status open_spm(const spm *m, const char *names, tn_tokenizer **out) {
    tn_json_doc *doc;
    *out = NULL;
    TRY(tn_json_parse(names, strlen(names), &doc));
    const tn_bytes file = {(char *)(uintptr_t)m->bytes, m->size, 0};
    tn_status status = tn_hf_from_sentencepiece(&file, "source.spm", tn_json_root(doc), "vocab.json", out);
    tn_json_free(doc);
    return status;
}

/* Scores choose between source.spm's pieces; ids are vocab.json's. What source.spm does not know is looked up whole. */
static void sentencepiece_models_are_read(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int32_t ids[6];
        size_t count;
    } rows[] = {{"ab", {5, 6, 0}, 3},    {"  bab  a ", {3, 6, 2, 5, 0}, 5}, {">>x<< b", {8, 3, 6, 0}, 4},
                {"bc", {3, 6, 4, 0}, 4}, {"bd", {3, 6, 1, 0}, 4},           {"babab", {3, 6, 2, 2, 0}, 5}};
    spm m = make_spm(1);
    tn_tokenizer *t;
    tn_bytes text = {0};
    assert_ok(open_spm(&m, spm_names, &t));
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        tn_ids ids = {0};
        assert_ok(tn_tokenizer_encode(t, rows[i].text, strlen(rows[i].text), TN_ENCODE_ENDS, &ids));
        assert_int_equal(ids.count, rows[i].count);
        assert_memory_equal(ids.data, rows[i].ids, rows[i].count * sizeof *ids.data);
        tn_ids_free(&ids);
    }
    assert_ok(tn_tokenizer_decode(t, (int32_t[]){5, 6, 3, 6, 9}, 5, 0, &text));
    assert_int_equal(text.size, 8);
    assert_memory_equal(text.data, "ab babab", 8);
    tn_bytes_free(&text);
    tn_tokenizer_free(t);
}

static void a_folder_with_a_sentencepiece_model_is_opened(void **state) {
    (void)state;
    spm m = make_spm(1);
    tn_tokenizer *t;
    char folder[512];
    snprintf(folder, sizeof folder, "%s", test_scratch("marian"));
    assert_true(mkdir(folder, 0700) == 0);
    FILE *f = fopen(test_scratch("marian/source.spm"), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(m.bytes, 1, m.size, f), m.size);
    fclose(f);
    assert_int_equal(tn_tokenizer_open(folder, &t), TN_ERR_IO);
    assert_text_has(tn_error(), "vocab.json");
    write_file(test_scratch("marian/vocab.json"), spm_names);
    assert_ok(tn_tokenizer_open(folder, &t));
    assert_int_equal(tn_tokenizer_count(t), 11);
    assert_int_equal(tn_tokenizer_special(t, TN_SPECIAL_EOS), 0);
    tn_tokenizer_free(t);
}

static void damaged_sentencepiece_models_are_refused(void **state) {
    (void)state;
    static const char *const names[][2] = {{"[]", "no token <unk>"},
                                           {"{\"<unk>\":0}", "no token <unk>"},
                                           {"{\"<unk>\":0,\"</s>\":2}", "from 0 to 1"},
                                           {"{\"<unk>\":0,\"</s>\":0}", "from 0 to 1"}};
    spm whole = make_spm(1), pairs = make_spm(2);
    tn_tokenizer *t;
    int64_t before = tn_txt_live_blocks();
    assert_int_equal(open_spm(&pairs, spm_names, &t), TN_ERR_UNSUPPORTED);
    assert_text_has(tn_error(), "model type 2");
    for (size_t i = 0; i < TN_COUNT(names); i++) {
        assert_int_equal(open_spm(&whole, names[i][0], &t), TN_ERR_FORMAT);
        assert_text_has(tn_error(), names[i][1]);
    }
    for (size_t at = 0; at < whole.size; at++) {
        static const char values[] = {0, 1, 2, 10, 127, -128, -1};
        spm cut = whole;
        cut.size = at;
        tn_tokenizer_free(open_spm(&cut, spm_names, &t) == TN_OK ? t : NULL);
        for (size_t v = 0; v < sizeof values; v++) {
            spm changed = whole;
            changed.bytes[at] = values[v];
            tn_tokenizer_free(open_spm(&changed, spm_names, &t) == TN_OK ? t : NULL);
        }
    }
    for (int64_t n = 1;; n++) {
        tn_txt_fail_at(n);
        tn_status status = open_spm(&whole, spm_names, &t);
        tn_txt_fail_at(0);
        tn_tokenizer_free(t);
        assert_int_equal(tn_txt_live_blocks(), before);
        if (status == TN_OK) break;
        assert_int_equal(status, TN_ERR_MEMORY);
        assert_true(n < 2000);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sentencepiece_models_are_read),
        cmocka_unit_test(a_folder_with_a_sentencepiece_model_is_opened),
        cmocka_unit_test(damaged_sentencepiece_models_are_refused),
        cmocka_unit_test(every_model_agrees_with_tokenizers),
        cmocka_unit_test(every_step_agrees_with_tokenizers),
        cmocka_unit_test(facts_are_told),
        cmocka_unit_test(a_folder_is_opened_with_what_stands_beside),
        cmocka_unit_test(a_limit_on_tokens_takes_from_the_longer_text),
        cmocka_unit_test(a_stream_shows_what_decoding_at_once_shows),
        cmocka_unit_test(senseless_files_are_refused),
        cmocka_unit_test(deep_files_are_refused),
        cmocka_unit_test(hostile_steps_come_to_an_end),
        cmocka_unit_test(failed_allocations_leave_nothing_behind),
    };
    return cmocka_run_group_tests_name("tokenizer_json", tests, make_scratch, remove_scratch);
}
