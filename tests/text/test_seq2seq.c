/* test_seq2seq.c — small encoder-decoder models: their logits are those of transformers, a text does not depend on the
 * one before, and what does not fit is refused.
 *
 * tools/text/hf_folders.py compares more kinds, and whole answers of `trunnion generate`. */
#include "test_support.h"

#include <errno.h>
#include <math.h>

#include "tests/golden/seq2seq.h"
#include "text/text_common.h"
#include "trunnion/llm.h"
#include "trunnion/seq2seq.h"
#include "trunnion/trunnion.h"

enum { HIDDEN = 8, WIDTH = 12, INNER = 12, WORDS = 20, HEADS = 2, BUCKETS = 4, MOST = 80, LAYERS = 2, PLACES = 10 };

static const char config[] =
    "{\"d_model\":8,\"d_kv\":6,\"d_ff\":12,\"num_layers\":2,\"num_heads\":2,\"vocab_size\":20,"
    "\"relative_attention_num_buckets\":4,\"relative_attention_max_distance\":5,\"decoder_start_token_id\":0,"
    "\"eos_token_id\":1";

typedef struct weights {
    tn_named_tensor list[MOST];
    char names[MOST][96];
    int count;
} weights;

/* As tools/pytorch/torch_seq2seq.py fills them; columns 0: a norm. */
static void add_weight(weights *w, const char *name, int64_t rows, int64_t columns) {
    static float room[WORDS * INNER];
    double seed = 0;
    for (const char *c = name; *c; c++)
        seed += *c;
    for (int64_t i = 0; i < rows * (columns ? columns : 1); i++)
        room[i] = (float)(0.3 * sin(0.7 * (double)i + seed) + (columns ? 0 : 1));
    snprintf(w->names[w->count], sizeof w->names[0], "%s", name);
    int64_t shape[] = {rows, columns};
    w->list[w->count] = (tn_named_tensor){w->names[w->count], tn_from_data(room, shape, columns ? 2 : 1, TN_F32)};
    w->count++;
}

static void add_part(weights *w, const char *block, const char *part, int64_t rows, int64_t columns) {
    char name[160];
    snprintf(name, sizeof name, "%s.%s.weight", block, part);
    add_weight(w, name, rows, columns);
}

static void add_attention(weights *w, const char *block, const char *name) {
    char part[64];
    for (const char *c = "qkvo"; *c; c++) {
        snprintf(part, sizeof part, "%s.%c", name, *c);
        add_part(w, block, part, *c == 'o' ? HIDDEN : WIDTH, *c == 'o' ? WIDTH : HIDDEN);
    }
}

static void add_block(weights *w, const char *side, int i, bool modern) {
    char block[48], part[64];
    int ffn = side[0] == 'd' ? 2 : 1;
    snprintf(block, sizeof block, "%s.block.%d", side, i);
    add_attention(w, block, "layer.0.SelfAttention");
    if (modern || i == 0) add_part(w, block, "layer.0.SelfAttention.relative_attention_bias", BUCKETS, HEADS);
    if (ffn == 2) add_attention(w, block, "layer.1.EncDecAttention");
    for (int k = 0; k <= ffn; k++) {
        snprintf(part, sizeof part, "layer.%d.layer_norm", k);
        add_part(w, block, part, HIDDEN, 0);
    }
    static const char *const matrices[] = {"wi", "wi_0", "wi_1", "wo"};
    for (int k = 0; k < 4; k++) {
        if ((k == 0 && modern) || ((k == 1 || k == 2) && !modern)) continue;
        snprintf(part, sizeof part, "layer.%d.DenseReluDense.%s", ffn, matrices[k]);
        add_part(w, block, part, k == 3 ? HIDDEN : INNER, k == 3 ? INNER : HIDDEN);
    }
}

static const char *extra_table; /* NULL, or a further table of words that make_model writes */

/* modern: UMT5, with a gate and a bias in each layer; else T5. more: for config.json. */
static const char *make_model(const char *name, bool modern, const char *more, const char *without) {
    const char *folder = test_scratch(name);
    static weights w;
    char path[700], text[900];
    w.count = 0;
    assert_true(mkdir(folder, 0700) == 0 || errno == EEXIST);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    {
        TN_SCOPE;
        add_weight(&w, "shared.weight", WORDS, HIDDEN);
        if (extra_table) add_weight(&w, extra_table, WORDS, HIDDEN);
        add_weight(&w, "encoder.final_layer_norm.weight", HIDDEN, 0);
        add_weight(&w, "decoder.final_layer_norm.weight", HIDDEN, 0);
        for (int i = 0; i < LAYERS; i++) {
            add_block(&w, "encoder", i, modern);
            add_block(&w, "decoder", i, modern);
        }
        for (int i = 0; i < w.count; i++)
            if (without && strcmp(w.names[i], without) == 0) w.list[i] = w.list[--w.count];
        assert_ok(tn_safetensors_save(path, w.list, w.count, NULL, 0));
    }
    snprintf(path, sizeof path, "%s/config.json", folder);
    snprintf(text, sizeof text, "%s,\"model_type\":\"%s\",\"feed_forward_proj\":\"%s\"%s}", config,
             modern ? "umt5" : "t5", modern ? "gated-gelu" : "relu", more);
    write_file(path, text);
    return folder;
}

/* A model of BART's kind; kind: "bart" or "marian". more: for config.json. */
static const char *make_bart(const char *name, const char *kind, const char *more) {
    static const char *const matrices[] = {"self_attn.q_proj",
                                           "self_attn.k_proj",
                                           "self_attn.v_proj",
                                           "self_attn.out_proj",
                                           "fc1",
                                           "fc2",
                                           "encoder_attn.q_proj",
                                           "encoder_attn.k_proj",
                                           "encoder_attn.v_proj",
                                           "encoder_attn.out_proj",
                                           "self_attn_layer_norm",
                                           "final_layer_norm",
                                           "encoder_attn_layer_norm"};
    static const char *const sides[] = {"encoder", "decoder"};
    const char *folder = test_scratch(name);
    static weights w;
    char path[700], text[900], block[96], part[96];
    w.count = 0;
    assert_true(mkdir(folder, 0700) == 0 || errno == EEXIST);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    {
        TN_SCOPE;
        add_weight(&w, "model.shared.weight", WORDS, HIDDEN);
        add_weight(&w, "final_logits_bias", 1, WORDS);
        for (int side = 0; side < 2; side++) {
            snprintf(block, sizeof block, "model.%s", sides[side]);
            add_part(&w, block, "embed_positions", PLACES + 2, HIDDEN);
            add_part(&w, block, "layernorm_embedding", HIDDEN, 0);
            add_weight(&w, side ? "model.decoder.layernorm_embedding.bias" : "model.encoder.layernorm_embedding.bias",
                       HIDDEN, 0);
            for (size_t i = 0; i < TN_COUNT(matrices); i++) {
                if (side == 0 && strncmp(matrices[i], "encoder_attn", 12) == 0) continue;
                bool up = strcmp(matrices[i], "fc1") == 0, down = strcmp(matrices[i], "fc2") == 0;
                bool is_norm = strstr(matrices[i], "norm") != NULL;
                snprintf(block, sizeof block, "model.%s.layers.0", sides[side]);
                add_part(&w, block, matrices[i], up ? INNER : HIDDEN, is_norm ? 0 : down ? INNER : HIDDEN);
                snprintf(part, sizeof part, "%s.%s.bias", block, matrices[i]);
                add_weight(&w, part, up ? INNER : HIDDEN, 0);
            }
        }
        assert_ok(tn_safetensors_save(path, w.list, w.count, NULL, 0));
    }
    snprintf(path, sizeof path, "%s/config.json", folder);
    snprintf(
        text, sizeof text,
        "{\"model_type\":\"%s\",\"d_model\":8,\"encoder_layers\":1,\"decoder_layers\":1,\"encoder_attention_heads\":2,"
        "\"decoder_attention_heads\":2,\"encoder_ffn_dim\":12,\"decoder_ffn_dim\":12,\"vocab_size\":20,"
        "\"max_position_embeddings\":10,\"decoder_start_token_id\":2,\"eos_token_id\":2%s}",
        kind, more);
    write_file(path, text);
    return folder;
}

static void expect_answer(tn_seq2seq *m, const double *wanted) {
    const float *logits;
    assert_ok(tn_seq2seq_encode(m, seq2seq_text, TN_COUNT(seq2seq_text)));
    for (size_t i = 0; i < TN_COUNT(seq2seq_answer); i++) {
        assert_ok(tn_seq2seq_step(m, seq2seq_answer[i], &logits));
        for (size_t k = 0; k < WORDS; k++)
            if (fabs((double)logits[k] - wanted[WORDS * i + k]) > 1e-5)
                fail_msg("token %zu, logit %zu: %.7g, by transformers %.7g", i, k, (double)logits[k],
                         wanted[WORDS * i + k]);
    }
}

/* Another text in between, of another number of pages, leaves nothing behind. */
static void logits_are_those_of_transformers(void **state) {
    (void)state;
    int32_t longer[100];
    for (int i = 0; i < 100; i++)
        longer[i] = 3 + i % 15;
    for (int modern = 0; modern < 2; modern++) {
        tn_seq2seq *m;
        const double *wanted = modern ? seq2seq_umt5 : seq2seq_t5;
        assert_ok(tn_seq2seq_open(make_model(modern ? "umt5" : "t5", modern, "", NULL), NULL, &m));
        expect_answer(m, wanted);
        assert_ok(tn_seq2seq_encode(m, longer, 100));
        for (int i = 0; i < 70; i++) /* more than a page of the cache */
            assert_ok(tn_seq2seq_step(m, longer[i], NULL));
        expect_answer(m, wanted);
        expect_answer(m, wanted);
        tn_seq2seq_close(m);
    }
}

static void facts_and_ends_are_those_of_the_folder(void **state) {
    (void)state;
    tn_seq2seq *m;
    tn_seq2seq_facts facts = {.struct_size = sizeof facts};
    const char *folder = make_model("facts", false, ",\"eos_token_id\":[1,7]", NULL);
    assert_true(tn_seq2seq_knows(folder));
    assert_false(tn_seq2seq_knows("README.md"));
    assert_false(tn_seq2seq_knows("tests"));
    assert_ok(tn_seq2seq_open(folder, NULL, &m));
    assert_ok(tn_seq2seq_get_facts(m, &facts));
    assert_string_equal(facts.architecture, "t5");
    assert_int_equal(facts.vocabulary, WORDS);
    assert_int_equal(facts.weights_bytes, 4 * facts.parameters);
    assert_true(tn_seq2seq_ends(m, 7) || tn_seq2seq_ends(m, 1));
    assert_false(tn_seq2seq_ends(m, 2));
    assert_false(tn_seq2seq_ends(NULL, 1));
    tn_seq2seq_close(m);
}

static void wrong_calls_are_refused(void **state) {
    (void)state;
    tn_seq2seq *m;
    tn_seq2seq_options o = TN_SEQ2SEQ_DEFAULTS;
    const char *folder = make_model("calls", false, "", NULL);
    static int32_t many[TN_SEQ2SEQ_TEXT + 1];
    o.context = 2;
    assert_ok(tn_seq2seq_open(folder, &o, &m));
    assert_int_equal(tn_seq2seq_step(m, 0, NULL), TN_ERR_STATE);
    assert_int_equal(tn_seq2seq_encode(m, many, 0), TN_ERR_ARGUMENT);
    assert_int_equal(tn_seq2seq_encode(m, many, TN_SEQ2SEQ_TEXT + 1), TN_ERR_ARGUMENT);
    assert_int_equal(tn_seq2seq_encode(m, &(int32_t){WORDS}, 1), TN_ERR_ARGUMENT);
    assert_ok(tn_seq2seq_encode(m, many, 1));
    assert_int_equal(tn_seq2seq_step(m, -1, NULL), TN_ERR_ARGUMENT);
    assert_ok(tn_seq2seq_step(m, 0, NULL));
    assert_ok(tn_seq2seq_step(m, 0, NULL));
    assert_int_equal(tn_seq2seq_step(m, 0, NULL), TN_ERR_ARGUMENT);
    tn_seq2seq_close(m);
    for (int64_t wrong = 0; wrong <= 8193; wrong += 8193) {
        o.context = wrong;
        assert_int_equal(tn_seq2seq_open(folder, &o, &m), TN_ERR_ARGUMENT);
    }
    tn_llm *decoder;
    assert_int_equal(tn_llm_open(folder, NULL, &decoder), TN_ERR_UNSUPPORTED);
    assert_non_null(strstr(tn_error(), "use tn_seq2seq_open"));
    assert_int_equal(tn_seq2seq_open("README.md", NULL, &m), TN_ERR_IO);
    assert_int_equal(tn_seq2seq_open(NULL, NULL, &m), TN_ERR_ARGUMENT);
    tn_seq2seq_close(NULL);
}

/* The second copy of the shared table that files may have must be a copy. */
static void another_table_of_words_for_one_side_is_refused(void **state) {
    (void)state;
    tn_seq2seq *m;
    extra_table = "decoder.embed_tokens.weight";
    const char *folder = make_model("tables", false, "", NULL);
    extra_table = NULL;
    assert_true(tn_seq2seq_open(folder, NULL, &m) == TN_ERR_UNSUPPORTED);
    assert_null(m);
    assert_text_has(tn_error(), "'shared.weight' and 'decoder.embed_tokens.weight' differ");
}

static void folders_that_do_not_fit_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *more, *without;
        tn_status status;
        const char *says;
    } rows[] = {
        {",\"model_type\":\"longt5\"", NULL, TN_ERR_UNSUPPORTED, "model_type is 'longt5'"},
        {",\"d_model\":10", NULL, TN_ERR_FORMAT, "according to config.json"},
        {",\"num_heads\":0", NULL, TN_ERR_FORMAT, "num_heads"},
        {",\"num_layers\":3", NULL, TN_ERR_FORMAT, "no tensor 'encoder.block.2"},
        {",\"num_decoder_layers\":3", NULL, TN_ERR_FORMAT, "no tensor 'decoder.block.2"},
        {",\"feed_forward_proj\":\"gated-mish\"", NULL, TN_ERR_UNSUPPORTED, "gated-mish"},
        {",\"feed_forward_proj\":\"gated-gelu\"", NULL, TN_ERR_FORMAT, "wi_1"},
        {",\"relative_attention_num_buckets\":3", NULL, TN_ERR_FORMAT, "must be even"},
        {",\"relative_attention_max_distance\":2", NULL, TN_ERR_FORMAT, "more than its half"},
        {",\"decoder_start_token_id\":20", NULL, TN_ERR_FORMAT, "decoder_start_token_id 20"},
        {"", "decoder.block.1.layer.1.EncDecAttention.k.weight", TN_ERR_FORMAT, "EncDecAttention.k"},
    };
    tn_seq2seq *m;
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        tn_status status = tn_seq2seq_open(make_model("wrong", false, rows[i].more, rows[i].without), NULL, &m);
        if (status != rows[i].status || !strstr(tn_error(), rows[i].says))
            fail_msg("row %zu: %s", i, status == TN_OK ? "opened" : tn_error());
        assert_null(m);
    }
}

/* hf_folders.py compares their logits with transformers'. */
static void a_model_of_barts_kind_has_limits_of_its_own(void **state) {
    (void)state;
    static const int32_t text[PLACES + 1] = {3, 4, 5};
    const char *folder =
        make_bart("bart", "bart", ",\"forced_bos_token_id\":7,\"bad_words_ids\":[[4],[5,6],[-1],[20]]");
    tn_seq2seq *m;
    tn_seq2seq_facts facts = {.struct_size = sizeof facts};
    const float *logits;
    float first[WORDS];
    assert_ok(tn_seq2seq_open(folder, NULL, &m));
    assert_ok(tn_seq2seq_get_facts(m, &facts));
    assert_true(facts.forced == 7 && facts.start == 2 && facts.context == PLACES);
    for (int again = 0; again < 2; again++) { /* the same after a text of another length */
        assert_ok(tn_seq2seq_encode(m, text, 3));
        for (int i = 0; i < PLACES; i++)
            assert_ok(tn_seq2seq_step(m, 2 + i, &logits));
        assert_true(isinf(logits[4]) && isfinite(logits[5]) && isfinite(logits[6]));
        if (again) assert_memory_equal(first, logits, sizeof first);
        memcpy(first, logits, sizeof first);
        assert_int_equal(tn_seq2seq_step(m, 2, &logits), TN_ERR_ARGUMENT);
        assert_ok(tn_seq2seq_encode(m, text, PLACES));
    }
    assert_int_equal(tn_seq2seq_encode(m, text, PLACES + 1), TN_ERR_ARGUMENT);
    tn_seq2seq_close(m);
    static const struct {
        const char *more, *says;
    } rows[] = {{",\"decoder_attention_heads\":4", "2 heads of the encoder, 4 of the decoder"},
                {",\"share_encoder_decoder_embeddings\":false", "an embedding each"},
                {",\"max_position_embeddings\":9", "embed_positions"},
                {",\"encoder_layers\":2", "model.encoder.layers.1"},
                {",\"activation_function\":\"mash\"", "mash"}};
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        assert_int_not_equal(tn_seq2seq_open(make_bart("bart", "bart", rows[i].more), NULL, &m), TN_OK);
        assert_text_has(tn_error(), rows[i].says);
    }
}

/* Newer files say in generation_config.json what concerns answers. */
static void generation_config_goes_before_config(void **state) {
    (void)state;
    static const int32_t text[] = {3, 4, 5};
    char path[700];
    tn_seq2seq *m;
    tn_seq2seq_facts facts = {.struct_size = sizeof facts};
    const float *logits;
    const char *folder = make_bart("said", "bart", ",\"bad_words_ids\":[[4]]");
    snprintf(path, sizeof path, "%s/generation_config.json", folder);
    write_file(path, "{\"bad_words_ids\":[[6]],\"decoder_start_token_id\":3,\"eos_token_id\":[8,9],"
                     "\"forced_bos_token_id\":5}");
    assert_ok(tn_seq2seq_open(folder, NULL, &m));
    assert_ok(tn_seq2seq_get_facts(m, &facts));
    assert_true(facts.start == 3 && facts.forced == 5);
    assert_true(tn_seq2seq_ends(m, 8) && tn_seq2seq_ends(m, 9) && !tn_seq2seq_ends(m, 2));
    assert_ok(tn_seq2seq_encode(m, text, 3));
    assert_ok(tn_seq2seq_step(m, 3, &logits));
    assert_true(isfinite(logits[4]) && isinf(logits[6]));
    tn_seq2seq_close(m);
    write_file(path, "{\"eos_token_id\":null,\"decoder_start_token_id\":null}");
    (void)make_bart("said", "bart", ",\"eos_token_id\":null,\"decoder_start_token_id\":null"); /* BART's own then */
    assert_ok(tn_seq2seq_open(folder, NULL, &m));
    assert_ok(tn_seq2seq_get_facts(m, &facts));
    assert_true(facts.start == 2 && tn_seq2seq_ends(m, 2) && !tn_seq2seq_ends(m, 8));
    tn_seq2seq_close(m);
    remove(path);
}

/* The command takes such a folder as it takes others, and says which options it does not have for it. */
static void generate_answers_by_the_encoder(void **state) {
    (void)state;
    char line[1200], heard[2000];
    const char *folder = make_model("command", true, "", NULL);
    snprintf(line, sizeof line, "%%s generate -m %s --ids 5,9,2 -n 4 --greedy --json --device cpu", folder);
    assert_int_equal(run_trunnion(line, heard, sizeof heard), 0);
    assert_non_null(strstr(heard, "\"prompt_ids\": [5, 9, 2], \"ids\": ["));
    snprintf(line, sizeof line, "%%s generate -m %s -p a --chat --device cpu 2>&1", folder);
    assert_int_equal(run_trunnion(line, heard, sizeof heard), 1);
    assert_non_null(strstr(heard, "--chat is not supported for encoder-decoder models"));
    snprintf(line, sizeof line, "%%s generate -m %s --ids 5 --cache q8_0 --device cpu 2>&1", folder);
    assert_int_equal(run_trunnion(line, heard, sizeof heard), 1);
    assert_non_null(strstr(heard, "--cache is not supported for encoder-decoder models"));
}

/* As with decoders: what was generated is an answer, not a failure. */
static void a_full_context_ends_the_answer(void **state) {
    (void)state;
    char line[1200], heard[2000];
    const char *folder = make_model("full", true, ",\"eos_token_id\":[]", NULL);
    static const char *const limits[] = {"-n 9", "-n -1"};
    for (size_t i = 0; i < TN_COUNT(limits); i++) {
        snprintf(line, sizeof line, "%%s generate -m %s --ids 5 %s --context 3 --greedy --json --device cpu 2>&1",
                 folder, limits[i]);
        assert_int_equal(run_trunnion(line, heard, sizeof heard), 0);
        assert_non_null(strstr(heard, "\"stopped\": \"length\""));
        assert_non_null(strstr(heard, "the context of 3 tokens is full"));
    }
}

static tn_status use_once(const char *folder) {
    tn_seq2seq *m;
    tn_status status = tn_seq2seq_open(folder, NULL, &m);
    if (status == TN_OK) status = tn_seq2seq_encode(m, seq2seq_text, TN_COUNT(seq2seq_text));
    for (int i = 0; i < 2 && status == TN_OK; i++)
        status = tn_seq2seq_step(m, 0, NULL);
    tn_seq2seq_close(m);
    return status;
}

static void expect_no_leak(const char *folder) {
    assert_ok(use_once(folder));
    tn_status status = TN_ERR_MEMORY;
    for (int64_t n = 1; status != TN_OK; n++) {
        tn_txt_fail_at(n);
        status = use_once(folder);
        tn_txt_fail_at(0);
        assert_true(status == TN_OK || status == TN_ERR_MEMORY);
        assert_int_equal(tn_txt_live_blocks(), 0);
        assert_true(n < 500);
    }
    for (int64_t n = 1; n < 900; n += 29) {
        tn_mem_fail_at(n);
        status = use_once(folder);
        tn_mem_fail_at(0);
        assert_true(status == TN_OK || status == TN_ERR_MEMORY);
        assert_int_equal(tn_txt_live_blocks(), 0);
    }
    assert_ok(use_once(folder));
}

static void memory_may_run_out_anywhere(void **state) {
    (void)state;
    expect_no_leak(make_model("memory", false, "", NULL));
    expect_no_leak(make_bart("memory", "bart", ",\"bad_words_ids\":[[4]]"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_those_of_transformers),
        cmocka_unit_test(facts_and_ends_are_those_of_the_folder),
        cmocka_unit_test(wrong_calls_are_refused),
        cmocka_unit_test(another_table_of_words_for_one_side_is_refused),
        cmocka_unit_test(folders_that_do_not_fit_are_refused),
        cmocka_unit_test(generate_answers_by_the_encoder),
        cmocka_unit_test(a_full_context_ends_the_answer),
        cmocka_unit_test(memory_may_run_out_anywhere),
        cmocka_unit_test(a_model_of_barts_kind_has_limits_of_its_own),
        cmocka_unit_test(generation_config_goes_before_config),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
