/* test_llm_recurrent.c — language models with recurrent layers, or caches of latent vectors: their state follows the
 * sequence wherever it goes.
 *
 * That the numbers are those of transformers is what tools/text/hf_folders.py looks at. */
#include "test_support.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "text/text_common.h"
#include "trunnion/embed.h"
#include "trunnion/finetune.h"
#include "trunnion/llm.h"
#include "trunnion/model.h"
#include "trunnion/trunnion.h"

enum {
    HIDDEN = 8,
    INNER = 12,
    WORDS = 20,
    LENGTH = 40,
    LATENT_RANK = 5,
    LATENT_ROPE = 2,
    LATENT_PLAIN = 4,
    LATENT_VALUE = 6,
    MOST = 40
}; /* a prompt has pieces of 16 tokens, and the rest */

typedef struct row {
    const char *name;
    int64_t shape[3]; /* ends with 0 */
} row;

typedef struct model {
    const char *name, *config;
    const row *rows;
    int count;
} model;

#define SIZES                                                                                                   \
    "\"hidden_size\":8,\"intermediate_size\":12,\"num_hidden_layers\":2,\"num_attention_heads\":2,"             \
    "\"num_key_value_heads\":1,\"max_position_embeddings\":100,\"norm_eps\":1e-6,\"tie_word_embeddings\":true," \
    "\"block_auto_adjust_ff_dim\":false"

/* A convolution, then attention. */
static const row lfm2_rows[] = {
    {"model.embed_tokens.weight", {WORDS, HIDDEN}},
    {"model.embedding_norm.weight", {HIDDEN}},
    {"model.layers.0.operator_norm.weight", {HIDDEN}},
    {"model.layers.0.conv.in_proj.weight", {3 * HIDDEN, HIDDEN}},
    {"model.layers.0.conv.conv.weight", {HIDDEN, 1, 3}},
    {"model.layers.0.conv.out_proj.weight", {HIDDEN, HIDDEN}},
    {"model.layers.0.ffn_norm.weight", {HIDDEN}},
    {"model.layers.0.feed_forward.w1.weight", {INNER, HIDDEN}},
    {"model.layers.0.feed_forward.w3.weight", {INNER, HIDDEN}},
    {"model.layers.0.feed_forward.w2.weight", {HIDDEN, INNER}},
    {"model.layers.1.operator_norm.weight", {HIDDEN}},
    {"model.layers.1.self_attn.q_proj.weight", {HIDDEN, HIDDEN}},
    {"model.layers.1.self_attn.k_proj.weight", {HIDDEN / 2, HIDDEN}},
    {"model.layers.1.self_attn.v_proj.weight", {HIDDEN / 2, HIDDEN}},
    {"model.layers.1.self_attn.out_proj.weight", {HIDDEN, HIDDEN}},
    {"model.layers.1.self_attn.q_layernorm.weight", {HIDDEN / 2}},
    {"model.layers.1.self_attn.k_layernorm.weight", {HIDDEN / 2}},
    {"model.layers.1.ffn_norm.weight", {HIDDEN}},
    {"model.layers.1.feed_forward.w1.weight", {INNER, HIDDEN}},
    {"model.layers.1.feed_forward.w3.weight", {INNER, HIDDEN}},
    {"model.layers.1.feed_forward.w2.weight", {HIDDEN, INNER}},
};
/* No attention at all. */
static const row mamba2_rows[] = {
    {"backbone.embeddings.weight", {WORDS, HIDDEN}},
    {"backbone.norm_f.weight", {HIDDEN}},
    {"backbone.layers.0.norm.weight", {HIDDEN}},
    {"backbone.layers.0.mixer.in_proj.weight", {16 + 28 + 4, HIDDEN}},
    {"backbone.layers.0.mixer.conv1d.weight", {28, 1, 4}},
    {"backbone.layers.0.mixer.conv1d.bias", {28}},
    {"backbone.layers.0.mixer.dt_bias", {4}},
    {"backbone.layers.0.mixer.A_log", {4}},
    {"backbone.layers.0.mixer.D", {4}},
    {"backbone.layers.0.mixer.norm.weight", {16}},
    {"backbone.layers.0.mixer.out_proj.weight", {HIDDEN, 16}},
};
static const row mamba_rows[] = {
    {"backbone.embeddings.weight", {WORDS, HIDDEN}},
    {"backbone.norm_f.weight", {HIDDEN}},
    {"backbone.layers.0.norm.weight", {HIDDEN}},
    {"backbone.layers.0.mixer.in_proj.weight", {2 * 16, HIDDEN}},
    {"backbone.layers.0.mixer.conv1d.weight", {16, 1, 4}},
    {"backbone.layers.0.mixer.x_proj.weight", {2 + 2 * 3, 16}},
    {"backbone.layers.0.mixer.dt_proj.weight", {16, 2}},
    {"backbone.layers.0.mixer.dt_proj.bias", {16}},
    {"backbone.layers.0.mixer.A_log", {16, 3}},
    {"backbone.layers.0.mixer.D", {16}},
    {"backbone.layers.0.mixer.out_proj.weight", {HIDDEN, 16}},
};
/* Mamba with norms of its own, then feed-forward; the epsilon is so large that it counts. */
static const row jamba_rows[] = {
    {"model.embed_tokens.weight", {WORDS, HIDDEN}},
    {"model.final_layernorm.weight", {HIDDEN}},
    {"model.layers.0.input_layernorm.weight", {HIDDEN}},
    {"model.layers.0.mamba.in_proj.weight", {2 * 16, HIDDEN}},
    {"model.layers.0.mamba.conv1d.weight", {16, 1, 4}},
    {"model.layers.0.mamba.x_proj.weight", {2 + 2 * 3, 16}},
    {"model.layers.0.mamba.dt_proj.weight", {16, 2}},
    {"model.layers.0.mamba.dt_proj.bias", {16}},
    {"model.layers.0.mamba.A_log", {16, 3}},
    {"model.layers.0.mamba.D", {16}},
    {"model.layers.0.mamba.dt_layernorm.weight", {2}},
    {"model.layers.0.mamba.b_layernorm.weight", {3}},
    {"model.layers.0.mamba.c_layernorm.weight", {3}},
    {"model.layers.0.mamba.out_proj.weight", {HIDDEN, 16}},
    {"model.layers.0.pre_ff_layernorm.weight", {HIDDEN}},
    {"model.layers.0.feed_forward.gate_proj.weight", {INNER, HIDDEN}},
    {"model.layers.0.feed_forward.up_proj.weight", {INNER, HIDDEN}},
    {"model.layers.0.feed_forward.down_proj.weight", {HIDDEN, INNER}},
};
/* Feed-forward has a state too. */
static const row rwkv_rows[] = {
    {"rwkv.embeddings.weight", {WORDS, HIDDEN}},
    {"rwkv.blocks.0.pre_ln.weight", {HIDDEN}},
    {"rwkv.blocks.0.pre_ln.bias", {HIDDEN}},
    {"rwkv.blocks.0.ln1.weight", {HIDDEN}},
    {"rwkv.blocks.0.ln1.bias", {HIDDEN}},
    {"rwkv.blocks.0.attention.time_decay", {HIDDEN}},
    {"rwkv.blocks.0.attention.time_first", {HIDDEN}},
    {"rwkv.blocks.0.attention.time_mix_key", {1, 1, HIDDEN}},
    {"rwkv.blocks.0.attention.time_mix_value", {1, 1, HIDDEN}},
    {"rwkv.blocks.0.attention.time_mix_receptance", {1, 1, HIDDEN}},
    {"rwkv.blocks.0.attention.key.weight", {HIDDEN, HIDDEN}},
    {"rwkv.blocks.0.attention.value.weight", {HIDDEN, HIDDEN}},
    {"rwkv.blocks.0.attention.receptance.weight", {HIDDEN, HIDDEN}},
    {"rwkv.blocks.0.attention.output.weight", {HIDDEN, HIDDEN}},
    {"rwkv.blocks.0.ln2.weight", {HIDDEN}},
    {"rwkv.blocks.0.ln2.bias", {HIDDEN}},
    {"rwkv.blocks.0.feed_forward.time_mix_key", {1, 1, HIDDEN}},
    {"rwkv.blocks.0.feed_forward.time_mix_receptance", {1, 1, HIDDEN}},
    {"rwkv.blocks.0.feed_forward.key.weight", {INNER, HIDDEN}},
    {"rwkv.blocks.0.feed_forward.receptance.weight", {HIDDEN, HIDDEN}},
    {"rwkv.blocks.0.feed_forward.value.weight", {HIDDEN, INNER}},
    {"rwkv.ln_out.weight", {HIDDEN}},
    {"rwkv.ln_out.bias", {HIDDEN}},
    {"head.weight", {WORDS, HIDDEN}},
};
static const char rwkv_config[] =
    "{\"model_type\":\"rwkv\",\"hidden_size\":8,\"num_hidden_layers\":1,\"attention_hidden_size\":8,"
    "\"intermediate_size\":12,\"context_length\":100,\"tie_word_embeddings\":false";
#define GRIFFIN "model.layers.0.temporal_block."
static const row griffin_rows[] = {
    {"model.embed_tokens.weight", {WORDS, HIDDEN}},
    {"model.final_norm.weight", {HIDDEN}},
    {"model.layers.0.temporal_pre_norm.weight", {HIDDEN}},
    {GRIFFIN "linear_x.weight", {HIDDEN, HIDDEN}},
    {GRIFFIN "linear_x.bias", {HIDDEN}},
    {GRIFFIN "linear_y.weight", {HIDDEN, HIDDEN}},
    {GRIFFIN "linear_y.bias", {HIDDEN}},
    {GRIFFIN "linear_out.weight", {HIDDEN, HIDDEN}},
    {GRIFFIN "linear_out.bias", {HIDDEN}},
    {GRIFFIN "conv_1d.weight", {HIDDEN, 1, 4}},
    {GRIFFIN "conv_1d.bias", {HIDDEN}},
    {GRIFFIN "rg_lru.recurrent_param", {HIDDEN}},
    {GRIFFIN "rg_lru.input_gate_weight", {2, HIDDEN / 2, HIDDEN / 2}},
    {GRIFFIN "rg_lru.input_gate_bias", {2, HIDDEN / 2}},
    {GRIFFIN "rg_lru.recurrent_gate_weight", {2, HIDDEN / 2, HIDDEN / 2}},
    {GRIFFIN "rg_lru.recurrent_gate_bias", {2, HIDDEN / 2}},
    {"model.layers.0.channel_pre_norm.weight", {HIDDEN}},
    {"model.layers.0.mlp_block.gate_proj.weight", {INNER, HIDDEN}},
    {"model.layers.0.mlp_block.gate_proj.bias", {INNER}},
    {"model.layers.0.mlp_block.up_proj.weight", {INNER, HIDDEN}},
    {"model.layers.0.mlp_block.up_proj.bias", {INNER}},
    {"model.layers.0.mlp_block.down_proj.weight", {HIDDEN, INNER}},
    {"model.layers.0.mlp_block.down_proj.bias", {HIDDEN}},
};
static const char griffin_config[] =
    "{\"model_type\":\"recurrent_gemma\",\"hidden_size\":8,\"intermediate_size\":24,\"num_hidden_layers\":1,"
    "\"num_attention_heads\":2,\"block_types\":[\"recurrent\"],\"tie_word_embeddings\":true";
static const row latent_rows[] = {
    {"model.embed_tokens.weight", {WORDS, HIDDEN}},
    {"model.norm.weight", {HIDDEN}},
    {"model.layers.0.input_layernorm.weight", {HIDDEN}},
    {"model.layers.0.self_attn.q_proj.weight", {2 * (LATENT_PLAIN + LATENT_ROPE), HIDDEN}},
    {"model.layers.0.self_attn.kv_a_proj_with_mqa.weight", {LATENT_RANK + LATENT_ROPE, HIDDEN}},
    {"model.layers.0.self_attn.kv_a_layernorm.weight", {LATENT_RANK}},
    {"model.layers.0.self_attn.kv_b_proj.weight", {2 * (LATENT_PLAIN + LATENT_VALUE), LATENT_RANK}},
    {"model.layers.0.self_attn.o_proj.weight", {HIDDEN, 2 * LATENT_VALUE}},
    {"model.layers.0.post_attention_layernorm.weight", {HIDDEN}},
    {"model.layers.0.mlp.gate_proj.weight", {INNER, HIDDEN}},
    {"model.layers.0.mlp.up_proj.weight", {INNER, HIDDEN}},
    {"model.layers.0.mlp.down_proj.weight", {HIDDEN, INNER}},
};
static const char latent_config[] =
    "{\"model_type\":\"youtu\",\"hidden_size\":8,\"intermediate_size\":12,\"num_hidden_layers\":1,"
    "\"num_attention_heads\":2,\"num_key_value_heads\":2,\"max_position_embeddings\":100,\"kv_lora_rank\":5,"
    "\"qk_rope_head_dim\":2,\"qk_nope_head_dim\":4,\"v_head_dim\":6,\"q_lora_rank\":null,"
    "\"tie_word_embeddings\":true";
static const char jamba_config[] =
    "{\"model_type\":\"jamba\",\"hidden_size\":8,\"intermediate_size\":12,\"num_hidden_layers\":1,"
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"max_position_embeddings\":100,\"num_experts\":1,"
    "\"attn_layer_period\":8,\"attn_layer_offset\":4,\"mamba_d_state\":3,\"mamba_dt_rank\":2,"
    "\"rms_norm_eps\":0.25,\"tie_word_embeddings\":true";
static const char mamba_config[] =
    "{\"model_type\":\"mamba\",\"hidden_size\":8,\"num_hidden_layers\":1,\"intermediate_size\":16,\"state_size\":3,"
    "\"time_step_rank\":2,\"layer_norm_epsilon\":1e-6,\"tie_word_embeddings\":true";
static const char lfm2_config[] = "{\"model_type\":\"lfm2\"," SIZES ",\"layer_types\":[\"conv\",\"full_attention\"]";
static const char mamba2_config[] =
    "{\"model_type\":\"mamba2\",\"hidden_size\":8,\"num_hidden_layers\":1,\"num_heads\":4,\"head_dim\":4,"
    "\"n_groups\":2,\"state_size\":3,\"layer_norm_epsilon\":1e-6,\"tie_word_embeddings\":true";
static const model models[] = {{"lfm2", lfm2_config, lfm2_rows, TN_COUNT(lfm2_rows)},
                               {"mamba2", mamba2_config, mamba2_rows, TN_COUNT(mamba2_rows)},
                               {"mamba", mamba_config, mamba_rows, TN_COUNT(mamba_rows)},
                               {"jamba", jamba_config, jamba_rows, TN_COUNT(jamba_rows)},
                               {"rwkv", rwkv_config, rwkv_rows, TN_COUNT(rwkv_rows)},
                               {"griffin", griffin_config, griffin_rows, TN_COUNT(griffin_rows)},
                               {"youtu", latent_config, latent_rows, TN_COUNT(latent_rows)}};
enum { LATENT = TN_COUNT(models) - 1 };

static const int32_t text[LENGTH] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4,
                                     6, 2, 6, 4, 3, 3, 8, 3, 2, 7, 9, 5, 0, 2, 8, 8, 4, 1, 9, 7};

static const char *make_folder(const model *of, const char *more) {
    const char *folder = test_scratch(of->name);
    char path[600], config[1024];
    tn_named_tensor tensors[MOST];
    assert_true(mkdir(folder, 0700) == 0 || errno == EEXIST);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    tn_manual_seed(3);
    {
        TN_SCOPE;
        for (int i = 0; i < of->count; i++) {
            const int64_t *shape = of->rows[i].shape;
            tensors[i] = (tn_named_tensor){of->rows[i].name, tn_randn(shape, shape[2] ? 3 : shape[1] ? 2 : 1)};
        }
        assert_ok(tn_safetensors_save(path, tensors, of->count, NULL, 0));
    }
    snprintf(path, sizeof path, "%s/config.json", folder);
    snprintf(config, sizeof config, "%s%s}", of->config, more);
    write_file(path, config);
    return folder;
}

static tn_llm *open_model(const model *of) {
    tn_llm_options o = TN_LLM_DEFAULTS;
    tn_llm *m;
    o.conversations = 3;
    assert_ok(tn_llm_open(make_folder(of, ""), &o, &m));
    return m;
}

static void assert_same(const float *got, const float *want) { assert_memory_equal(got, want, WORDS * sizeof *got); }

/* Logits of the text's last token, as a conversation of its own computes them. */
static void logits_of(const tn_llm *with, const int32_t *ids, int64_t count, float out[WORDS]) {
    tn_llm *m;
    const float *logits;
    assert_ok(tn_llm_new_conversation(with, NULL, &m));
    assert_ok(tn_llm_prompt(m, ids, count, &logits));
    memcpy(out, logits, WORDS * sizeof *out);
    tn_llm_close(m);
}

/* A prompt, single tokens and all logits agree, whatever was computed in between. */
static void states_follow_the_sequence(void **state) {
    (void)state;
    for (size_t k = 0; k < TN_COUNT(models); k++) {
        tn_llm *m = open_model(&models[k]);
        float want[WORDS], other[WORDS], all[LENGTH * WORDS];
        const int32_t changed[] = {3, 1, 4, 1, 7, 7};
        const float *got;
        logits_of(m, text, LENGTH, want);
        logits_of(m, changed, 6, other);
        assert_ok(tn_llm_prepare(m));
        assert_ok(tn_llm_prompt(m, text, 4, NULL));
        assert_ok(tn_llm_prepare(m));
        for (int i = 4; i < LENGTH; i++)
            assert_ok(tn_llm_step(m, text[i], &got));
        assert_same(got, want);
        assert_ok(tn_llm_rewind(m, 4));
        assert_ok(tn_llm_prompt(m, changed + 4, 2, &got));
        assert_same(got, other);
        assert_ok(tn_llm_rewind(m, 0));
        assert_ok(tn_llm_logits(m, text, LENGTH, all));
        assert_same(all + (LENGTH - 1) * WORDS, want);
        assert_true(memcmp(want, other, sizeof want) != 0);
        assert_ok(tn_llm_rewind(m, LENGTH - 1)); /* states are computed anew, in pieces as well */
        assert_ok(tn_llm_step(m, text[LENGTH - 1], &got));
        assert_same(got, want);
        tn_llm_close(m);
    }
}

static void batches_compute_what_conversations_compute_alone(void **state) {
    (void)state;
    for (size_t k = 0; k < TN_COUNT(models); k++) {
        tn_llm *m[2] = {open_model(&models[k]), NULL};
        float want[2][WORDS];
        const int32_t other[] = {3, 1, 8};
        const float *got;
        tn_llm_batch *batch;
        tn_llm_options apart = TN_LLM_DEFAULTS;
        apart.context = 50; /* not in the pool of the others */
        logits_of(m[0], text, 4, want[0]);
        logits_of(m[0], other, 3, want[1]);
        for (int pool = 0; pool < 2; pool++) {
            assert_ok(tn_llm_new_conversation(m[0], pool ? NULL : &apart, &m[1]));
            assert_ok(tn_llm_rewind(m[0], 0));
            for (int i = 0; i < 2; i++)
                assert_ok(tn_llm_prompt(m[i], text, 2 + i, NULL));
            assert_ok(tn_llm_rewind(m[1], 2)); /* its states are computed anew when it goes on */
            assert_ok(tn_llm_batch_new(m, 2, &batch));
            assert_ok(tn_llm_batch_step(batch, (int32_t[]){4, -1}, NULL));
            assert_ok(tn_llm_batch_step(batch, (int32_t[]){1, 8}, &got));
            assert_same(got, want[0]);
            assert_same(got + WORDS, want[1]);
            assert_int_equal(tn_llm_position(m[1]), 3);
            assert_ok(tn_llm_batch_step(batch, (int32_t[]){7, -1}, NULL)); /* the other's states stay */
            assert_ok(tn_llm_rewind(m[0], 3));
            assert_ok(tn_llm_batch_step(batch, (int32_t[]){1, -1}, &got));
            assert_same(got, want[0]);
            assert_int_equal(tn_llm_batch_step(batch, (int32_t[]){1, WORDS}, &got), TN_ERR_ARGUMENT);
            assert_int_equal(tn_llm_position(m[0]), 4);
            tn_llm_batch_free(batch);
            float live[WORDS];
            assert_ok(tn_llm_prompt(m[1], text, 3, &got));
            memcpy(live, got, sizeof live);
            assert_ok(tn_llm_rewind(m[1], 3));
            assert_ok(tn_llm_prompt(m[1], text, 3, &got)); /* from states that were computed anew */
            assert_same(got, live);
            tn_llm_close(m[1]);
        }
        tn_llm_close(m[0]);
    }
}

/* Also one that was rewound: its file has no states. */
static void a_saved_sequence_goes_on(void **state) {
    (void)state;
    for (size_t k = 0; k < TN_COUNT(models); k++) {
        for (int rewound = 0; rewound < 2; rewound++) {
            tn_llm *m = open_model(&models[k]);
            char path[600];
            float want[WORDS];
            const float *got;
            snprintf(path, sizeof path, "%s", test_scratch("sequence"));
            logits_of(m, text, LENGTH, want);
            assert_ok(tn_llm_prompt(m, text, 5 + rewound, NULL));
            if (rewound) assert_ok(tn_llm_rewind(m, 5));
            assert_ok(tn_llm_save(m, path));
            assert_ok(tn_llm_rewind(m, 0));
            assert_ok(tn_llm_prompt(m, text + 3, 3, NULL));
            assert_ok(tn_llm_load(m, path));
            assert_int_equal(tn_llm_position(m), 5);
            assert_ok(tn_llm_prompt(m, text + 5, LENGTH - 5, &got));
            assert_same(got, want);
            tn_llm_close(m);
        }
    }
}

/* With one head, its keys can have the shape of latent vectors. */
static void keys_of_heads_are_not_read_as_latent_vectors(void **state) {
    (void)state;
    char path[600];
    tn_safetensors *f;
    tn_llm *m = open_model(&models[LATENT]);
    snprintf(path, sizeof path, "%s", test_scratch("sequence"));
    assert_ok(tn_llm_prompt(m, text, 5, NULL));
    assert_ok(tn_llm_save(m, path));
    assert_ok(tn_safetensors_open(path, &f));
    tn_metadata facts[] = {{"format", tn_safetensors_metadata(f, "format")},
                           {"model", tn_safetensors_metadata(f, "model")}};
    tn_tensor *tokens = tn_safetensors_tensor(f, "tokens"), *latents = tn_safetensors_tensor(f, "0.latents");
    assert_ok(tn_status_of(latents));
    snprintf(path, sizeof path, "%s", test_scratch("older"));
    assert_ok(tn_safetensors_save(path, (tn_named_tensor[]){{"tokens", tokens}, {"0.keys", latents}}, 2, facts, 2));
    assert_int_equal(tn_llm_load(m, path), TN_ERR_ARGUMENT);
    tn_free(tokens);
    tn_free(latents);
    tn_safetensors_close(f);
    tn_llm_close(m);
}

/* Training changes the matrix of which a transposed part is kept. */
static void trained_matrices_of_latent_vectors_are_used(void **state) {
    (void)state;
    char path[600];
    uint8_t answer[LENGTH];
    float before[WORDS], want[WORDS], got[WORDS];
    tn_llm *m = open_model(&models[LATENT]);
    tn_finetune_options o = TN_FINETUNE_DEFAULTS;
    tn_finetune_stats stats = {.struct_size = sizeof stats};
    tn_finetune *t;
    memset(answer, 1, sizeof answer);
    logits_of(m, text, LENGTH, before);
    o.rank = 0;
    o.adam.lr = 0.1;
    assert_ok(tn_finetune_new(m, &o, &t));
    assert_ok(tn_finetune_step(t, &(tn_finetune_example){text, answer, LENGTH}, 1, &stats));
    logits_of(m, text, LENGTH, want);
    assert_true(memcmp(before, want, sizeof want) != 0);
    snprintf(path, sizeof path, "%s", test_scratch("trained"));
    assert_ok(tn_llm_save_model(m, path));
    tn_finetune_free(t);
    tn_llm_close(m);
    assert_ok(tn_llm_open(path, NULL, &m));
    logits_of(m, text, LENGTH, got);
    assert_same(got, want);
    tn_llm_close(m);
}

static void what_needs_several_tokens_at_once_is_refused(void **state) {
    (void)state;
    tn_llm *m = open_model(&models[0]);
    tn_llm_draft_options draft = TN_LLM_DRAFT_DEFAULTS;
    tn_finetune *t;
    assert_int_equal(tn_llm_set_draft(m, &draft), TN_ERR_UNSUPPORTED);
    assert_non_null(strstr(tn_error(), "their states cannot go back"));
    assert_int_equal(tn_llm_export_onnx(m, test_scratch("x.onnx"), NULL), TN_ERR_UNSUPPORTED);
    assert_int_equal(tn_finetune_new(m, NULL, &t), TN_ERR_UNSUPPORTED);
    assert_non_null(strstr(tn_error(), "have no gradients"));
    tn_embedder *e;
    assert_int_equal(tn_embedder_open(make_folder(&models[0], ""), NULL, &e), TN_ERR_UNSUPPORTED);
    assert_non_null(strstr(tn_error(), "does not embed"));
    assert_int_equal(tn_llm_importance(m, text, LENGTH, NULL, NULL), TN_ERR_ARGUMENT);
    tn_llm_close(m);
}

static void estimates_count_states(void **state) {
    (void)state;
    tn_llm_facts f = {.struct_size = sizeof f};
    tn_llm_options o = TN_LLM_DEFAULTS;
    assert_ok(tn_llm_inspect_path(make_folder(&models[1], ""), &o, &f));
    assert_int_equal(f.cache_bytes, 4 * (28 * 3 + 4 * 4 * 3));
    o.context = 64;
    assert_ok(tn_llm_inspect_path(make_folder(&models[0], ""), &o, &f));
    assert_int_equal(f.cache_bytes, 4 * HIDDEN * 2 + 2 * 64 * (HIDDEN / 2) * 2);
    assert_ok(tn_llm_inspect_path(make_folder(&models[LATENT], ""), &o, &f));
    assert_int_equal(f.cache_bytes, 64 * (LATENT_RANK + LATENT_ROPE) * 2); /* one for both keys and values */
    o.value_cache = TN_LLM_CACHE_F32;
    assert_int_equal(tn_llm_inspect_path(make_folder(&models[LATENT], ""), &o, &f), TN_ERR_UNSUPPORTED);
}

typedef struct number {
    const char *key;
    int64_t value;
} number;

/* A model's tensors and sizes as llama.cpp's conversion names and shapes them. */
typedef struct gguf_model {
    const model *of;
    const char *const *names;
    number sizes[8];
    int layers; /* in the list of numbers of key heads; 0: there is none */
    double eps; /* 0: 1e-6 */
} gguf_model;

static const char *const lfm2_names[TN_COUNT(lfm2_rows)] = {
    "token_embd.weight",           "token_embd_norm.weight",
    "blk.0.attn_norm.weight",      "blk.0.shortconv.in_proj.weight",
    "blk.0.shortconv.conv.weight", "blk.0.shortconv.out_proj.weight",
    "blk.0.ffn_norm.weight",       "blk.0.ffn_gate.weight",
    "blk.0.ffn_up.weight",         "blk.0.ffn_down.weight",
    "blk.1.attn_norm.weight",      "blk.1.attn_q.weight",
    "blk.1.attn_k.weight",         "blk.1.attn_v.weight",
    "blk.1.attn_output.weight",    "blk.1.attn_q_norm.weight",
    "blk.1.attn_k_norm.weight",    "blk.1.ffn_norm.weight",
    "blk.1.ffn_gate.weight",       "blk.1.ffn_up.weight",
    "blk.1.ffn_down.weight",
};
static const char *const mamba2_names[TN_COUNT(mamba2_rows)] = {"token_embd.weight",
                                                                "output_norm.weight",
                                                                "blk.0.attn_norm.weight",
                                                                "blk.0.ssm_in.weight",
                                                                "blk.0.ssm_conv1d.weight",
                                                                "blk.0.ssm_conv1d.bias",
                                                                "blk.0.ssm_dt.bias",
                                                                "blk.0.ssm_a",
                                                                "blk.0.ssm_d",
                                                                "blk.0.ssm_norm.weight",
                                                                "blk.0.ssm_out.weight"};
static const char *const mamba_names[TN_COUNT(mamba_rows)] = {
    "token_embd.weight",   "output_norm.weight",      "blk.0.attn_norm.weight",
    "blk.0.ssm_in.weight", "blk.0.ssm_conv1d.weight", "blk.0.ssm_x.weight",
    "blk.0.ssm_dt.weight", "blk.0.ssm_dt.bias",       "blk.0.ssm_a",
    "blk.0.ssm_d",         "blk.0.ssm_out.weight"};
static const char *const jamba_names[TN_COUNT(jamba_rows)] = {"token_embd.weight",
                                                              "output_norm.weight",
                                                              "blk.0.attn_norm.weight",
                                                              "blk.0.ssm_in.weight",
                                                              "blk.0.ssm_conv1d.weight",
                                                              "blk.0.ssm_x.weight",
                                                              "blk.0.ssm_dt.weight",
                                                              "blk.0.ssm_dt.bias",
                                                              "blk.0.ssm_a",
                                                              "blk.0.ssm_d",
                                                              "blk.0.ssm_dt_norm.weight",
                                                              "blk.0.ssm_b_norm.weight",
                                                              "blk.0.ssm_c_norm.weight",
                                                              "blk.0.ssm_out.weight",
                                                              "blk.0.ffn_norm.weight",
                                                              "blk.0.ffn_gate.weight",
                                                              "blk.0.ffn_up.weight",
                                                              "blk.0.ffn_down.weight"};
static const gguf_model in_gguf[] = {
    {&models[0],
     lfm2_names,
     {{"block_count", 2}, {"feed_forward_length", INNER}, {"attention.head_count", 2}, {"shortconv.l_cache", 3}},
     .layers = 2},
    {&models[1],
     mamba2_names,
     {{"block_count", 1},
      {"ssm.conv_kernel", 4},
      {"ssm.inner_size", 16},
      {"ssm.state_size", 3},
      {"ssm.time_step_rank", 4},
      {"ssm.group_count", 2}},
     .layers = 0},
    {&models[2],
     mamba_names,
     {{"block_count", 1},
      {"ssm.conv_kernel", 4},
      {"ssm.inner_size", 16},
      {"ssm.state_size", 3},
      {"ssm.time_step_rank", 2}},
     .layers = 0},
    {&models[3],
     jamba_names,
     {{"block_count", 1},
      {"feed_forward_length", INNER},
      {"attention.head_count", 2},
      {"ssm.conv_kernel", 4},
      {"ssm.inner_size", 16},
      {"ssm.state_size", 3},
      {"ssm.time_step_rank", 2}},
     .layers = 1,
     .eps = 0.25},
};

static void put_sizes(tn_gguf_writer *w, const gguf_model *g, const number *other) {
    char key[100];
    const number all[] = {{"embedding_length", HIDDEN}, {"context_length", 100}};
    for (size_t i = 0; i < TN_COUNT(all) + TN_COUNT(g->sizes); i++) {
        const number *n = i < TN_COUNT(all) ? &all[i] : &g->sizes[i - TN_COUNT(all)];
        bool wrong = n->key && other && strcmp(other->key, n->key) == 0;
        snprintf(key, sizeof key, "%s.%s", g->of->name, n->key ? n->key : "");
        if (n->key) assert_ok(tn_gguf_put_int(w, key, TN_GGUF_U32, wrong ? other->value : n->value));
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", g->of->name);
    assert_ok(tn_gguf_put_float(w, key, TN_GGUF_F32, g->eps > 0 ? g->eps : 1e-6));
    snprintf(key, sizeof key, "%s.rope.freq_base", g->of->name);
    assert_ok(tn_gguf_put_float(w, key, TN_GGUF_F32, 1e6));
}

/* The tensors of make_folder in a GGUF file. kv_heads: of its layers; other: a size that is another one, or NULL. */
static const char *make_gguf(const gguf_model *g, const int32_t *kv_heads, const number *other) {
    const char *path = test_scratch("recurrent.gguf");
    int count = g->of->count;
    char key[100];
    tn_gguf_writer *w;
    assert_ok(tn_gguf_create(path, 32, &w));
    assert_ok(tn_gguf_put_string(w, "general.architecture", g->of->name, (int64_t)strlen(g->of->name)));
    put_sizes(w, g, other);
    snprintf(key, sizeof key, "%s.attention.head_count_kv", g->of->name);
    if (g->layers) assert_ok(tn_gguf_put_array(w, key, TN_GGUF_I32, g->layers, kv_heads));
    if (other && strcmp(other->key, "lfm2.attention.causal") == 0)
        assert_ok(tn_gguf_put_int(w, other->key, TN_GGUF_BOOL, other->value));
    tn_manual_seed(3);
    TN_SCOPE;
    tn_tensor *tensors[MOST];
    for (int i = 0; i < count; i++) {
        const int64_t *shape = g->of->rows[i].shape;
        tn_gguf_info info = {.struct_size = sizeof info, .name = g->names[i], .dtype = TN_F32};
        tensors[i] = tn_randn(shape, shape[2] ? 3 : shape[1] ? 2 : 1);
        for (int d = 0; d < 3; d++)
            if (shape[d] > 1) info.shape[info.rank++] = shape[d];
        if (strcmp(info.name, "blk.0.ssm_a") == 0) tensors[i] = tn_neg(tn_exp(tensors[i]));
        assert_ok(tn_gguf_add(w, &info));
    }
    for (int i = 0; i < count; i++) {
        float values[64 * WORDS];
        assert_ok(tn_read(tensors[i], values, (size_t)tn_numel(tensors[i]) * sizeof *values));
        assert_ok(tn_gguf_write(w, values, tn_numel(tensors[i]) * (int64_t)sizeof *values));
    }
    assert_ok(tn_gguf_commit(w));
    return path;
}

static void a_gguf_file_computes_what_its_folder_does(void **state) {
    (void)state;
    static const int32_t kv_heads[] = {0, 1};
    for (size_t k = 0; k < TN_COUNT(in_gguf); k++) {
        tn_llm *folder = open_model(in_gguf[k].of), *file;
        float want[WORDS], got[WORDS];
        logits_of(folder, text, LENGTH, want);
        tn_llm_close(folder);
        assert_ok(tn_llm_open(make_gguf(&in_gguf[k], kv_heads, NULL), NULL, &file));
        logits_of(file, text, LENGTH, got);
        tn_llm_close(file);
        assert_same(got, want);
    }
}

static void wrong_gguf_files_are_refused(void **state) {
    (void)state;
    static const struct {
        int model;
        int32_t heads[2];
        number other;
        const char *word;
    } rows[] = {{0, {0, -1}, {"", 0}, "-1 for layer 1"},
                {0, {1, 2}, {"", 0}, "2 for layer 1"},
                {0, {1, 1}, {"", 0}, "blk.0.attn_q.weight"},
                {1, {0}, {"ssm.group_count", 3}, "multiple"},
                {1, {0}, {"ssm.conv_kernel", 1}, "conv_kernel"},
                {1, {0}, {"ssm.state_size", 4}, "according to the metadata"},
                {2, {0}, {"ssm.inner_size", 0}, "inner_size"},
                {0, {0, 1}, {"lfm2.attention.causal", 0}, "attention.causal' = false"}};
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        tn_llm *m;
        const char *path = make_gguf(&in_gguf[rows[i].model], rows[i].heads, &rows[i].other);
        if (tn_llm_open(path, NULL, &m) == TN_OK) fail_msg("row %d was opened", (int)i);
        if (!strstr(tn_error(), rows[i].word)) fail_msg("row %d: %s", (int)i, tn_error());
    }
}

static void wrong_configurations_are_refused(void **state) {
    (void)state;
    static const struct {
        int model;
        const char *more, *word;
    } rows[] = {{0, ",\"conv_L_cache\":1", "at least 2"},
                {0, ",\"conv_L_cache\":4", "according to the metadata"},
                {0, ",\"layer_types\":[\"conv\",\"conv\"]", "conv.in_proj"},
                {1, ",\"n_groups\":3", "multiple"},
                {1, ",\"n_groups\":9", "n_groups"},
                {1, ",\"state_size\":99999999", "state_size"},
                {1, ",\"state_size\":4", "according to the metadata"},
                {1, ",\"time_step_limit\":[0.1,0.2]", "time_step_limit"}};
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        tn_llm *m;
        const char *folder = make_folder(&models[rows[i].model], rows[i].more); /* the last of equal keys counts */
        if (tn_llm_open(folder, NULL, &m) == TN_OK) fail_msg("row %d was opened", (int)i);
        if (!strstr(tn_error(), rows[i].word)) fail_msg("row %d: %s", (int)i, tn_error());
    }
}

/* Allocations of the second library fail one by one while a conversation opens and goes back. */
static void memory_may_run_out_anywhere(void **state) {
    (void)state;
    tn_llm *m = open_model(&models[0]);
    float want[WORDS];
    logits_of(m, text, 3, want);
    tn_status status = TN_ERR_MEMORY;
    for (int64_t n = 1; status != TN_OK; n++) {
        tn_llm *own;
        tn_txt_fail_at(n);
        status = tn_llm_new_conversation(m, NULL, &own);
        tn_txt_fail_at(0);
        assert_true(status == TN_ERR_MEMORY || status == TN_OK);
        if (status == TN_OK) tn_llm_close(own);
    }
    float got[WORDS];
    logits_of(m, text, 3, got);
    assert_same(got, want);
    tn_llm_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_follow_the_sequence),
        cmocka_unit_test(batches_compute_what_conversations_compute_alone),
        cmocka_unit_test(a_saved_sequence_goes_on),
        cmocka_unit_test(keys_of_heads_are_not_read_as_latent_vectors),
        cmocka_unit_test(trained_matrices_of_latent_vectors_are_used),
        cmocka_unit_test(what_needs_several_tokens_at_once_is_refused),
        cmocka_unit_test(estimates_count_states),
        cmocka_unit_test(a_gguf_file_computes_what_its_folder_does),
        cmocka_unit_test(wrong_gguf_files_are_refused),
        cmocka_unit_test(wrong_configurations_are_refused),
        cmocka_unit_test(memory_may_run_out_anywhere),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
