/* test_folder.c — Hugging Face folders made for the test: an embedding does not depend on the texts beside it, a folder
 * that does not fit is refused by name, and memory may run out anywhere.
 *
 * That the numbers are those of transformers is what tools/text/hf_folders.py looks at. */
#include "test_support.h"

#include <errno.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "text/text_common.h"
#include "trunnion/embed.h"
#include "trunnion/llm.h"
#include "trunnion/onnx.h"
#include "trunnion/trunnion.h"

enum { HIDDEN = 8, INNER = 12, WORDS = 20, PLACES = 10, MOST = 64 };

static const char bert_config[] =
    "{\"model_type\":\"bert\",\"hidden_size\":8,\"intermediate_size\":12,\"num_hidden_layers\":1,"
    "\"num_attention_heads\":2,\"max_position_embeddings\":10,\"layer_norm_eps\":1e-12,\"hidden_act\":\"gelu\"";
static const char llama_config[] =
    "{\"model_type\":\"llama\",\"hidden_size\":8,\"intermediate_size\":12,\"num_hidden_layers\":1,"
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"max_position_embeddings\":10,\"rms_norm_eps\":1e-6,"
    "\"vocab_size\":20,\"tie_word_embeddings\":true,\"eos_token_id\":[2,7]";

static const char mistral_config[] =
    "{\"model_type\":\"mistral\",\"hidden_size\":8,\"intermediate_size\":12,\"num_hidden_layers\":1,"
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"max_position_embeddings\":10,\"rms_norm_eps\":1e-6,"
    "\"vocab_size\":20,\"tie_word_embeddings\":true";

typedef struct row {
    const char *name;
    int64_t rows, columns; /* columns 0: a vector */
} row;

static const row bert_rows[] = {
    {"embeddings.word_embeddings.weight", WORDS, HIDDEN},
    {"embeddings.position_embeddings.weight", PLACES, HIDDEN},
    {"embeddings.token_type_embeddings.weight", 2, HIDDEN},
    {"embeddings.LayerNorm.weight", HIDDEN, 0},
    {"embeddings.LayerNorm.bias", HIDDEN, 0},
    {"encoder.layer.0.attention.self.query.weight", HIDDEN, HIDDEN},
    {"encoder.layer.0.attention.self.query.bias", HIDDEN, 0},
    {"encoder.layer.0.attention.self.key.weight", HIDDEN, HIDDEN},
    {"encoder.layer.0.attention.self.key.bias", HIDDEN, 0},
    {"encoder.layer.0.attention.self.value.weight", HIDDEN, HIDDEN},
    {"encoder.layer.0.attention.self.value.bias", HIDDEN, 0},
    {"encoder.layer.0.attention.output.dense.weight", HIDDEN, HIDDEN},
    {"encoder.layer.0.attention.output.dense.bias", HIDDEN, 0},
    {"encoder.layer.0.attention.output.LayerNorm.weight", HIDDEN, 0},
    {"encoder.layer.0.attention.output.LayerNorm.bias", HIDDEN, 0},
    {"encoder.layer.0.intermediate.dense.weight", INNER, HIDDEN},
    {"encoder.layer.0.intermediate.dense.bias", INNER, 0},
    {"encoder.layer.0.output.dense.weight", HIDDEN, INNER},
    {"encoder.layer.0.output.dense.bias", HIDDEN, 0},
    {"encoder.layer.0.output.LayerNorm.weight", HIDDEN, 0},
    {"encoder.layer.0.output.LayerNorm.bias", HIDDEN, 0},
    {"pooler.dense.weight", HIDDEN, HIDDEN},
};
static const row llama_rows[] = {
    {"model.embed_tokens.weight", WORDS, HIDDEN},
    {"model.norm.weight", HIDDEN, 0},
    {"model.layers.0.input_layernorm.weight", HIDDEN, 0},
    {"model.layers.0.self_attn.q_proj.weight", HIDDEN, HIDDEN},
    {"model.layers.0.self_attn.k_proj.weight", HIDDEN / 2, HIDDEN},
    {"model.layers.0.self_attn.v_proj.weight", HIDDEN / 2, HIDDEN},
    {"model.layers.0.self_attn.o_proj.weight", HIDDEN, HIDDEN},
    {"model.layers.0.post_attention_layernorm.weight", HIDDEN, 0},
    {"model.layers.0.mlp.gate_proj.weight", INNER, HIDDEN},
    {"model.layers.0.mlp.up_proj.weight", INNER, HIDDEN},
    {"model.layers.0.mlp.down_proj.weight", HIDDEN, INNER},
};

/* A folder in the scratch folder with random weights and this text of config.json, completed by `more`. */
static const char *make_folder(const char *name, const row *rows, int count, const char *config, const char *more) {
    const char *folder = test_scratch(name);
    char path[600], text[1024];
    tn_named_tensor tensors[MOST];
    assert_true(mkdir(folder, 0700) == 0 || errno == EEXIST);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    tn_manual_seed(3);
    {
        TN_SCOPE;
        for (int i = 0; i < count; i++) {
            int64_t shape[] = {rows[i].rows, rows[i].columns};
            tensors[i] = (tn_named_tensor){rows[i].name, tn_randn(shape, rows[i].columns ? 2 : 1)};
        }
        assert_ok(tn_safetensors_save(path, tensors, count, NULL, 0));
    }
    snprintf(path, sizeof path, "%s/config.json", folder);
    snprintf(text, sizeof text, "%s%s}", config, more);
    write_file(path, text);
    return folder;
}

static const char *make_bert(const char *name, const char *more) {
    return make_folder(name, bert_rows, TN_COUNT(bert_rows), bert_config, more);
}

static const char *make_llama(const char *name, const char *more) {
    return make_folder(name, llama_rows, TN_COUNT(llama_rows), llama_config, more);
}

/* ---- embeddings -------------------------------------------------------------------------------------------------- */

static const int32_t ids[] = {3, 4, 5, 6, 7, /* */ 8, /* */ 9, 10, 11, 12, 13, 14, 15, /* */ 3, 2, 1};
static const int64_t lengths[] = {5, 1, 7, 3};
enum { TEXTS = 4 };

static void texts_together_are_as_texts_alone(void **state) {
    (void)state;
    const char *folder = make_bert("bert", "");
    for (int pooling = TN_POOLING_MEAN; pooling <= TN_POOLING_LAST; pooling++) {
        tn_embedder_options o = TN_EMBEDDER_DEFAULTS;
        o.pooling = (tn_pooling)pooling;
        o.norm = TN_EMBED_NORM_UNIT;
        tn_embedder *e;
        float all[TEXTS * HIDDEN], alone[HIDDEN];
        const int32_t *at = ids;
        assert_ok(tn_embedder_open(folder, &o, &e));
        assert_ok(tn_embedder_run(e, ids, lengths, TEXTS, all));
        for (int t = 0; t < TEXTS; at += lengths[t], t++) {
            double square = 0;
            assert_ok(tn_embedder_run(e, at, &lengths[t], 1, alone));
            for (int i = 0; i < HIDDEN; i++) {
                assert_true(fabsf(all[t * HIDDEN + i] - alone[i]) <= 2e-6F);
                square += (double)alone[i] * (double)alone[i];
            }
            assert_true(fabs(square - 1) < 1e-5);
        }
        tn_embedder_close(e);
    }
}

/* ---- modules and other files ------------------------------------------------------------------------------------- */

static void put_file(const char *folder, const char *name, const char *text) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    write_file(path, text);
}

static void remove_file(const char *folder, const char *name) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(remove(path), 0);
}

/* All texts, with a folder's own pooling; *width numbers each. */
static void embed_all(const char *folder, tn_embed_norm norm, float *out, int64_t *width) {
    tn_embedder_options o = TN_EMBEDDER_DEFAULTS;
    o.norm = norm;
    tn_embedder_facts facts = {.struct_size = sizeof facts};
    tn_embedder *e;
    assert_ok(tn_embedder_open(folder, &o, &e));
    assert_ok(tn_embedder_get_facts(e, &facts));
    *width = facts.width;
    assert_ok(tn_embedder_run(e, ids, lengths, TEXTS, out));
    tn_embedder_close(e);
}

/* 2_Dense: 8 numbers to 3, a tenth of place k of the row as weight, row / 4 as bias. */
enum { NARROW = 3 };
static void put_dense(const char *folder, const char *activation) {
    char path[600], text[300];
    float weight[NARROW * HIDDEN], bias[NARROW];
    snprintf(path, sizeof path, "%s/2_Dense", folder);
    assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
    for (int i = 0; i < NARROW * HIDDEN; i++)
        weight[i] = (float)(i % 5) / 10 - 0.2F;
    for (int i = 0; i < NARROW; i++)
        bias[i] = (float)i / 4;
    snprintf(path, sizeof path, "%s/2_Dense/model.safetensors", folder);
    {
        TN_SCOPE;
        tn_named_tensor tensors[] = {{"linear.weight", tn_from_data(weight, TN_DIMS(NARROW, HIDDEN), TN_F32)},
                                     {"linear.bias", tn_from_data(bias, TN_DIMS(NARROW), TN_F32)}};
        assert_ok(tn_safetensors_save(path, tensors, 2, NULL, 0));
    }
    snprintf(text, sizeof text,
             "{\"in_features\":8,\"out_features\":3,\"bias\":true,\"activation_function\":\"torch.nn.modules.%s\"}",
             activation);
    put_file(folder, "2_Dense/config.json", text);
    put_file(folder, "modules.json",
             "[{\"path\":\"\",\"type\":\"sentence_transformers.models.Transformer\"},"
             "{\"path\":\"1_Pooling\",\"type\":\"sentence_transformers.models.Pooling\"},"
             "{\"path\":\"2_Dense\",\"type\":\"sentence_transformers.models.Dense\"},"
             "{\"path\":\"3_Normalize\",\"type\":\"sentence_transformers.models.Normalize\"}]");
}

/* Whatever norm the caller asks for, the dense layer is computed. */
static void dense_layers_are_computed_with_any_norm(void **state) {
    (void)state;
    static const char *const activations[] = {"activation.Tanh", "linear.Identity"};
    float plain[TEXTS * HIDDEN], want[TEXTS * NARROW], got[TEXTS * HIDDEN];
    int64_t width;
    embed_all(make_bert("bare", ""), TN_EMBED_NORM_NONE, plain, &width);
    assert_int_equal(width, HIDDEN);
    for (int a = 0; a < 2; a++)
        for (int norm = TN_EMBED_NORM_DEFAULT; norm <= TN_EMBED_NORM_UNIT; norm++) {
            const char *folder = make_bert("dense", "");
            put_dense(folder, activations[a]);
            for (int t = 0; t < TEXTS; t++) {
                double square = 0, sum[NARROW];
                for (int r = 0; r < NARROW; r++) {
                    sum[r] = (double)r / 4;
                    for (int k = 0; k < HIDDEN; k++)
                        sum[r] += (double)plain[t * HIDDEN + k] * ((double)((r * HIDDEN + k) % 5) / 10 - 0.2);
                    if (a == 0) sum[r] = tanh(sum[r]);
                    square += sum[r] * sum[r];
                }
                for (int r = 0; r < NARROW; r++)
                    want[t * NARROW + r] = (float)(sum[r] / (norm == TN_EMBED_NORM_NONE ? 1 : sqrt(square)));
            }
            embed_all(folder, (tn_embed_norm)norm, got, &width);
            assert_int_equal(width, NARROW);
            for (int i = 0; i < TEXTS * NARROW; i++)
                if (fabsf(got[i] - want[i]) > 2e-6F) fail_msg("number %d: %.8g, not %.8g", i, got[i], want[i]);
        }
}

static void a_dense_layer_that_does_not_fit_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *config, *reason;
    } rows[] = {{"{\"in_features\":7,\"out_features\":3}", "from 7 to 3 features does not fit embeddings of 8"},
                {"{\"in_features\":8,\"out_features\":4}", "it must have 2, [4, 8]"},
                {"{\"in_features\":8,\"out_features\":3,\"bias\":false}", "2 tensors"},
                {"{\"in_features\":8,\"out_features\":3,\"activation_function\":\"my.Sine\"}", "'my.Sine'"},
                {"{\"in_features\":8,\"out_features\":3,\"use_residual\":true}", "'use_residual'"}};
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        const char *folder = make_bert("dense", "");
        tn_embedder *e = NULL;
        put_dense(folder, "activation.Tanh");
        put_file(folder, "2_Dense/config.json", rows[i].config);
        tn_embedder_options o = TN_EMBEDDER_DEFAULTS;
        o.norm = TN_EMBED_NORM_UNIT;
        assert_int_not_equal(tn_embedder_open(folder, &o, &e), TN_OK);
        assert_null(e);
        assert_text_has(tn_error(), rows[i].reason);
    }
}

/* The norms of checkpoints that were TensorFlow's. */
static void norms_may_be_called_gamma_and_beta(void **state) {
    (void)state;
    row rows[TN_COUNT(bert_rows)];
    char names[TN_COUNT(bert_rows)][80];
    float want[TEXTS * HIDDEN], got[TEXTS * HIDDEN];
    int64_t width;
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        const char *norm = strstr(bert_rows[i].name, "LayerNorm.");
        int stem = norm ? (int)(norm - bert_rows[i].name) : 80;
        snprintf(names[i], sizeof names[i], "%.*s%s", stem, bert_rows[i].name,
                 !norm                    ? ""
                 : strstr(norm, "weight") ? "LayerNorm.gamma"
                                          : "LayerNorm.beta");
        rows[i] = (row){names[i], bert_rows[i].rows, bert_rows[i].columns};
    }
    embed_all(make_bert("now", ""), TN_EMBED_NORM_NONE, want, &width);
    embed_all(make_folder("once", rows, TN_COUNT(rows), bert_config, ""), TN_EMBED_NORM_NONE, got, &width);
    assert_memory_equal(got, want, sizeof want);
}

/* Files of models that were trained with a table of tasks have it also where config.json turns it off. */
static void a_table_of_tasks_counts_if_config_json_says_so(void **state) {
    (void)state;
    enum { COUNT = TN_COUNT(bert_rows) + 1 };
    row rows[COUNT] = {[COUNT - 1] = {"embeddings.task_type_embeddings.weight", 3, HIDDEN}};
    float want[TEXTS * HIDDEN], got[TEXTS * HIDDEN];
    int64_t width;
    memcpy(rows, bert_rows, sizeof bert_rows);
    embed_all(make_bert("none", ""), TN_EMBED_NORM_NONE, want, &width);
    const char *folder = make_folder("tasks", rows, COUNT, bert_config, ",\"use_task_id\":false");
    embed_all(folder, TN_EMBED_NORM_NONE, got, &width);
    assert_memory_equal(got, want, sizeof want);
    folder = make_folder("tasks", rows, COUNT, bert_config, ",\"use_task_id\":true");
    embed_all(folder, TN_EMBED_NORM_NONE, got, &width);
    assert_memory_not_equal(got, want, sizeof want);
    memmove(rows + 2, rows + 3, (COUNT - 3) * sizeof *rows); /* no table of types */
    folder = make_folder("tasks", rows, COUNT - 1, bert_config, ",\"use_task_id\":true,\"type_vocab_size\":0");
    embed_all(folder, TN_EMBED_NORM_NONE, got, &width);
}

static tn_status open_encoder(const char *path) {
    tn_embedder *e;
    return tn_embedder_open(path, NULL, &e);
}

static tn_status open_model(const char *path) {
    tn_llm *m;
    return tn_llm_open(path, NULL, &m);
}

static tn_status open_tokenizer(const char *path) {
    tn_tokenizer *t;
    return tn_tokenizer_open(path, &t);
}

static tn_status open_table(const char *path) {
    tn_dataset *d;
    return tn_dataset_csv(path, -1, &d);
}

static tn_status open_array(const char *path) {
    tn_dataset *d;
    return tn_dataset_npy(&path, 1, &d);
}

static tn_status open_tokens(const char *path) {
    tn_dataset *d;
    return tn_dataset_tokens(path, 2, 4, &d);
}

static tn_status open_weights(const char *path) {
    tn_safetensors *f;
    return tn_safetensors_open(path, &f);
}

static tn_status open_pickled(const char *path) {
    tn_pickle *f;
    return tn_pickle_open(path, &f);
}

static tn_status open_network(const char *path) {
    tn_onnx *m;
    return tn_onnx_open(path, NULL, &m);
}

static tn_status open_sizes(const char *path) {
    tn_model_sizes s = TN_MODEL_SIZES_DEFAULTS;
    return tn_read_model_sizes(path, &s);
}

/* Opening a pipe would wait for a writer, for ever if there is none. */
static void pipes_in_the_place_of_files_are_refused_at_once(void **state) {
    (void)state;
    static const struct {
        tn_status (*open)(const char *path);
        const char *name; /* of the file in a folder that is a pipe; NULL: the path itself is one */
    } rows[] = {{open_encoder, "config.json"},
                {open_encoder, "model.safetensors"},
                {open_model, "config.json"},
                {open_model, "model.safetensors"},
                {open_tokenizer, "tokenizer.json"},
                {open_tokenizer, NULL},
                {open_model, NULL},
                {open_encoder, NULL},
                {open_table, NULL},
                {open_array, NULL},
                {open_tokens, NULL},
                {open_weights, NULL},
                {open_weights, "model.safetensors"},
                {open_pickled, NULL},
                {open_network, NULL},
                {open_sizes, NULL},
                {open_sizes, "config.json"}};
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        char path[700];
        const char *folder =
            rows[i].open == open_encoder ? make_bert("pipes", "") : make_llama("pipes", ",\"vocab_size\":20");
        snprintf(path, sizeof path, "%s/%s", folder, rows[i].name ? rows[i].name : "pipe");
        (void)remove(path);
        assert_int_equal(mkfifo(path, 0600), 0);
        alarm(20);
        tn_status s = rows[i].open(rows[i].name ? folder : path);
        alarm(0);
        if (s == TN_OK || !strstr(tn_error(), "pipe")) fail_msg("row %zu: %d, %s", i, (int)s, tn_error());
        (void)remove(path);
    }
}

static void put_word(FILE *f, const char *text) {
    uint32_t length = (uint32_t)strlen(text);
    fputc('X', f);
    fwrite(&length, sizeof length, 1, f);
    fputs(text, f);
}

static void put_number(FILE *f, int64_t v) {
    int32_t number = (int32_t)v;
    fputc('J', f);
    fwrite(&number, sizeof number, 1, f);
}

/* What torch.save wrote before version 1.6: tensors `first` to `end` of a file, each a storage of its own. */
static void put_pickle(const char *folder, const char *name, const tn_safetensors *from, int first, int end) {
    static const char head[] = "\x80\x02\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}.\x80\x02}(";
    char path[600];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fwrite(head, sizeof head - 1, 1, f);
    for (int i = first; i < end; i++) {
        tn_safetensors_info t = {.struct_size = sizeof t};
        assert_ok(tn_safetensors_at(from, i, &t));
        put_word(f, t.name);
        fputs("ctorch._utils\n_rebuild_tensor_v2\n((", f);
        put_word(f, "storage");
        fputs("ctorch\nFloatStorage\n", f);
        put_word(f, t.name); /* its key */
        put_word(f, "cpu");
        put_number(f, t.bytes / 4);
        fputs("NtQ", f);
        put_number(f, 0);
        for (int strides = 0; strides < 2; strides++) {
            fputc('(', f);
            for (int d = 0; d < t.rank; d++)
                put_number(f, !strides ? t.shape[d] : d == t.rank - 1 ? 1 : t.shape[1]);
            fputc('t', f);
        }
        fputs("\x89}tR", f);
    }
    fputs("u.\x80\x02](", f);
    for (int i = first; i < end; i++) {
        tn_safetensors_info t = {.struct_size = sizeof t};
        assert_ok(tn_safetensors_at(from, i, &t));
        put_word(f, t.name);
    }
    fputs("e.", f);
    for (int i = first; i < end; i++) {
        tn_safetensors_info t = {.struct_size = sizeof t};
        assert_ok(tn_safetensors_at(from, i, &t));
        int64_t count = t.bytes / 4;
        fwrite(&count, sizeof count, 1, f);
        fwrite(t.data, 1, (size_t)t.bytes, f);
    }
    assert_int_equal(fclose(f), 0);
}

/* Moves a folder's weights to pickles, one or two and an index. */
static void pickle_folder(const char *folder, bool shards) {
    tn_safetensors *from;
    assert_ok(tn_safetensors_open(folder, &from));
    int count = tn_safetensors_count(from);
    if (!shards) put_pickle(folder, "pytorch_model.bin", from, 0, count);
    if (shards) {
        put_pickle(folder, "pytorch_model-00001-of-00002.bin", from, 0, count / 2);
        put_pickle(folder, "pytorch_model-00002-of-00002.bin", from, count / 2, count);
        put_file(folder, "pytorch_model.bin.index.json",
                 "{\"weight_map\":{\"a\":\"pytorch_model-00001-of-00002.bin\","
                 "\"b\":\"pytorch_model-00002-of-00002.bin\",\"c\":\"pytorch_model-00001-of-00002.bin\"}}");
    }
    tn_safetensors_close(from);
    remove_file(folder, "model.safetensors");
}

static void pickled_weights_are_as_safetensors(void **state) {
    (void)state;
    float want[TEXTS * HIDDEN], got[TEXTS * HIDDEN], logits[2][WORDS];
    int64_t width;
    embed_all(make_bert("safe", ""), TN_EMBED_NORM_UNIT, want, &width);
    for (int shards = 0; shards < 2; shards++) {
        const char *folder = make_bert(shards ? "pickles" : "pickle", "");
        pickle_folder(folder, shards);
        embed_all(folder, TN_EMBED_NORM_UNIT, got, &width);
        assert_memory_equal(got, want, sizeof want);
    }
    for (int i = 0; i < 2; i++) {
        const char *folder = make_llama(i ? "llama-pickle" : "llama-safe", "");
        tn_llm *m;
        const float *last;
        if (i) pickle_folder(folder, true);
        assert_ok(tn_llm_open(folder, NULL, &m));
        assert_ok(tn_llm_prompt(m, ids, 5, &last));
        memcpy(logits[i], last, sizeof logits[i]);
        tn_llm_close(m);
    }
    assert_memory_equal(logits[1], logits[0], sizeof logits[0]);
}

static void a_folder_without_weights_says_what_it_looked_for(void **state) {
    (void)state;
    const char *folder = make_bert("none", "");
    tn_embedder *e = NULL;
    remove_file(folder, "model.safetensors");
    assert_int_equal(tn_embedder_open(folder, NULL, &e), TN_ERR_IO);
    assert_text_has(tn_error(), "neither model.safetensors nor pytorch_model.bin");
    put_file(folder, "pytorch_model.bin.index.json", "{\"weight_map\":{\"a\":\"../other.bin\"}}");
    assert_int_equal(tn_embedder_open(folder, NULL, &e), TN_ERR_FORMAT);
    assert_text_has(tn_error(), "is not the name of a file in the folder");
}

static void damaged_weights_make_no_embedding(void **state) {
    (void)state;
    tn_embedder *e;
    char path[600];
    float out[HIDDEN];
    snprintf(path, sizeof path, "%s/model.safetensors", make_bert("damaged", ""));
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, -2 * HIDDEN * HIDDEN * (int)sizeof(float), SEEK_END), 0);
    for (int i = 0; i < 2 * HIDDEN * HIDDEN * (int)sizeof(float); i++)
        fputc(0xff, f);
    assert_int_equal(fclose(f), 0);
    assert_ok(tn_embedder_open(test_scratch("damaged"), NULL, &e));
    assert_int_equal(tn_embedder_run(e, ids, lengths, 1, out), TN_ERR_FORMAT);
    assert_text_has(tn_error(), "is not a number");
    tn_embedder_close(e);
}

static void what_is_no_text_is_refused(void **state) {
    (void)state;
    tn_embedder *e;
    tn_embedder_facts f = {.struct_size = sizeof f};
    float out[HIDDEN];
    assert_ok(tn_embedder_open(make_bert("bert", ""), NULL, &e));
    assert_ok(tn_embedder_get_facts(e, &f));
    assert_int_equal(f.longest, PLACES);
    assert_int_equal(f.vocabulary, WORDS);
    assert_int_equal(f.pooling, TN_POOLING_MEAN);
    f = (tn_embedder_facts){.struct_size = offsetof(tn_embedder_facts, vocabulary), .vocabulary = -5};
    assert_ok(tn_embedder_get_facts(e, &f)); /* as an older program's */
    assert_int_equal(f.hidden, HIDDEN);
    assert_int_equal(f.vocabulary, -5);
    assert_int_equal(tn_embedder_run(e, (int32_t[]){WORDS}, (int64_t[]){1}, 1, out), TN_ERR_ARGUMENT);
    assert_int_equal(tn_embedder_run(e, ids, (int64_t[]){PLACES + 1}, 1, out), TN_ERR_ARGUMENT);
    assert_int_equal(tn_embedder_run(e, ids, (int64_t[]){0}, 1, out), TN_ERR_ARGUMENT);
    assert_int_equal(tn_embedder_run(e, ids, lengths, 0, out), TN_ERR_ARGUMENT);
    assert_int_equal(tn_embedder_run(NULL, ids, lengths, 1, out), TN_ERR_ARGUMENT);
    tn_embedder_close(e);
    assert_int_equal(tn_embedder_open(NULL, NULL, &e), TN_ERR_ARGUMENT);
    assert_int_equal(tn_embedder_open("x", NULL, NULL), TN_ERR_ARGUMENT);
    assert_int_equal(tn_embedder_open(test_scratch("absent"), NULL, &e), TN_ERR_IO);
    assert_int_equal(tn_embedder_get_facts(NULL, &f), TN_ERR_ARGUMENT);
    tn_embedder_close(NULL);
}

/* ---- configurations that do not fit ------------------------------------------------------------------------------ */

typedef struct refusal {
    const char *more, *reason; /* the last of equal keys counts */
} refusal;

static const refusal bert_refusals[] = {
    {",\"model_type\":\"t5\"", "'t5'"},
    {",\"hidden_size\":-8", "'hidden_size'"},
    {",\"hidden_size\":9", "do not divide"},
    {",\"num_attention_heads\":1e30", "'num_attention_heads'"},
    {",\"num_hidden_layers\":2", "no tensor 'encoder.layer.1."},
    {",\"num_hidden_layers\":[1]", "'num_hidden_layers'"},
    {",\"intermediate_size\":13", "according to config.json"},
    {",\"position_embedding_type\":\"relative_key\"", "relative_key"},
    {",\"is_decoder\":true", "is_decoder"},
    {",\"hidden_act\":\"x\\u0007y\"", "'x?y'"},
    {",\"layer_norm_eps\":\"small\"", "'layer_norm_eps'"},
};
#define FALCON_H1 \
    ",\"model_type\":\"falcon_h1\",\"mamba_d_ssm\":8,\"mamba_n_heads\":2,\"mamba_d_head\":4,\"mamba_n_groups\":1"
#define GEMMA4 ",\"model_type\":\"gemma4_text\",\"layer_types\":[\"sliding_attention\"]"
#define GEMMA3N ",\"model_type\":\"gemma3n_text\",\"num_kv_shared_layers\":0"
#define ERNIE ",\"model_type\":\"ernie4_5_moe\",\"moe_num_experts\":2,\"moe_k\":1,\"moe_intermediate_size\":4"
#define DEEPSEEK \
    ",\"model_type\":\"deepseek_v2\",\"num_experts\":2,\"num_experts_per_tok\":1,\"moe_intermediate_size\":4"
static const refusal llama_refusals[] = {
    {GEMMA4 ",\"num_kv_shared_layers\":1", "'num_kv_shared_layers'"},
    {GEMMA4 ",\"num_kv_shared_layers\":-1", "'num_kv_shared_layers'"},
    {GEMMA4 ",\"enable_moe_block\":true", "'num_experts'"},
    {GEMMA4 ",\"enable_moe_block\":true,\"num_experts\":4", "'num_experts_per_tok'"},
    {GEMMA4 ",\"enable_moe_block\":true,\"num_experts\":4,\"top_k_experts\":5", "at most all"},
    {GEMMA4 ",\"global_head_dim\":3", "do not fit"},
    {",\"model_type\":\"gemma4_text\",\"num_hidden_layers\":2,\"per_layer_config\":{\"0\":{\"head_dim\":8}}",
     "'per_layer_config'"},
    {GEMMA4 ",\"hidden_size_per_layer_input\":99999999999", "'hidden_size_per_layer_input'"},
    {GEMMA3N ",\"altup_num_inputs\":1", "'altup_num_inputs'"},
    {GEMMA3N ",\"altup_num_inputs\":9", "'altup_num_inputs'"},
    {GEMMA3N ",\"altup_active_idx\":4", "'altup_active_idx'"},
    {GEMMA3N ",\"activation_sparsity_pattern\":[1]", "'activation_sparsity_pattern'"},
    {GEMMA3N ",\"activation_sparsity_pattern\":[]", "'activation_sparsity_pattern'"},
    {GEMMA3N ",\"hidden_size_per_layer_input\":0", "'hidden_size_per_layer_input'"},
    {GEMMA3N ",\"activation_sparsity_pattern\":0.5", "'activation_sparsity_pattern'"},
    {GEMMA3N ",\"intermediate_size\":[8,9]", "'intermediate_size'"},
    {GEMMA3N ",\"num_kv_shared_layers\":1", "'num_kv_shared_layers'"},
    {",\"num_attention_heads\":[]", "'num_attention_heads'"},
    {",\"num_key_value_heads\":[]", "'num_key_value_heads'"},
    {GEMMA3N, "embed_tokens_per_layer.weight"},
    {",\"model_type\":\"granite_swa\",\"layer_rope_theta\":[5]", "'layer_rope_theta'"},
    {",\"model_type\":\"flint\",\"num_experts\":2,\"num_experts_per_tok\":1,\"moe_intermediate_size\":4",
     "'layer_types'"},
    {",\"model_type\":\"rwkv\",\"layer_norm_epsilon\":1e-6", "'layer_norm_epsilon'"},
    {",\"model_type\":\"rwkv\",\"attention_hidden_size\":2", "'attention_hidden_size'"},
    {ERNIE ",\"moe_norm_min\":0.5", "'moe_norm_min'"},
    {DEEPSEEK ",\"norm_topk_prob\":true", "'norm_topk_prob'"},
    {",\"model_type\":\"mpt\",\"d_model\":4,\"n_layers\":1,\"max_seq_len\":8,\"attn_config\":{\"alibi\":false}",
     "'alibi'"},
    {",\"model_type\":\"mpt\",\"d_model\":4,\"n_layers\":1,\"max_seq_len\":8,\"attn_config\":{\"alibi_bias_max\":4}",
     "'alibi_bias_max'"},
    {",\"model_type\":\"phi3\",\"partial_rotary_factor\":0", "at least 2"},
    {",\"model_type\":\"cwm\"", "'rope_parameters'"},
    {DEEPSEEK ",\"qk_rope_head_dim\":2,\"qk_nope_head_dim\":2,\"v_head_dim\":2,\"kv_lora_rank\":2,\"head_dim\":1",
     "'head_dim'"},
    {",\"model_type\":\"nanochat\",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}", "in nanochat models"},
    {",\"model_type\":null", "model_type"},
    {",\"model_type\":\"nope\"", ", persimmon, gpt_neox_japanese, xglm, ctrl, opt"}, /* the list is complete */
    {",\"num_hidden_layers\":0", "'num_hidden_layers'"},
    {FALCON_H1 ",\"ssm_multipliers\":[1,1,1]", "'ssm_multipliers'"},
    {FALCON_H1 ",\"mlp_multipliers\":[1,1e300]", "'mlp_multipliers'"},
    {FALCON_H1 ",\"mlp_multipliers\":\"1\"", "'mlp_multipliers'"},
    {",\"model_type\":\"nemotron_h\",\"layers_block_type\":[\"attention\"],\"time_step_min\":0.01", "'time_step_min'"},
    {",\"num_key_value_heads\":3", "is not a multiple"},
    {",\"head_dim\":3", "must be even"},
    {",\"tie_word_embeddings\":false", "lm_head.weight"},
    {",\"rope_scaling\":{\"type\":\"axial\"}", "axial"},
    {",\"rope_scaling\":{\"type\":\"longrope\"}", "short_factor"},
    {",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,0],\"long_factor\":[1,2]}", "short_factor"},
    {",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,2],\"long_factor\":[1,2,3]}", "long_factor"},
    {",\"rope_scaling\":{\"rope_type\":\"llama3\"}", "'factor'"},
    {",\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":0}", "'factor'"},
    {",\"rope_theta\":1e300", "'rope_theta'"},
    {",\"max_position_embeddings\":1e12", "'max_position_embeddings'"},
    {",\"quantization_config\":{}", "quantization_config"},
    {",\"use_sliding_window\":true,\"sliding_window\":0", "'sliding_window'"},
    {",\"use_sliding_window\":true,\"sliding_window\":4,\"layer_types\":[\"chunked\"]", "chunked"},
};

static void configurations_that_do_not_fit_are_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < TN_COUNT(bert_refusals); i++) {
        tn_embedder *e;
        assert_true(tn_embedder_open(make_bert("wrong", bert_refusals[i].more), NULL, &e) != TN_OK);
        assert_null(e);
        assert_text_has(tn_error(), bert_refusals[i].reason);
    }
    for (size_t i = 0; i < TN_COUNT(llama_refusals); i++) {
        tn_llm *m;
        assert_true(tn_llm_open(make_llama("wrong", llama_refusals[i].more), NULL, &m) != TN_OK);
        assert_null(m);
        assert_text_has(tn_error(), llama_refusals[i].reason);
    }
}

/* Their number is that of the layers where nothing else says it. */
static void more_kinds_of_layers_than_layers_may_be_are_refused(void **state) {
    (void)state;
    enum { LAYERS = 100000 };
    static const char *const head = "{\"model_type\":\"nemotron_h\",\"hidden_size\":8,\"layers_block_type\":[";
    char *text = malloc(strlen(head) + (size_t)LAYERS * 6 + 4), *at = text;
    assert_non_null(text);
    at += sprintf(at, "%s", head);
    for (int i = 0; i < LAYERS; i++)
        at += sprintf(at, "%s\"mlp\"", i ? "," : "");
    sprintf(at, "]}");
    const char *folder = make_llama("wrong", "");
    put_file(folder, "config.json", text);
    free(text);
    tn_llm *m;
    assert_true(tn_llm_open(folder, NULL, &m) == TN_ERR_FORMAT);
    assert_text_has(tn_error(), "'num_hidden_layers'");
}

/* A norm's weight as a row of a matrix is no vector: said where the file is opened, not where it is computed with. */
static void a_vector_that_is_a_row_is_refused(void **state) {
    (void)state;
    row rows[TN_COUNT(llama_rows)];
    memcpy(rows, llama_rows, sizeof rows);
    rows[1].columns = rows[1].rows;
    rows[1].rows = 1;
    tn_llm *m;
    assert_true(tn_llm_open(make_folder("row", rows, TN_COUNT(rows), llama_config, ""), NULL, &m) != TN_OK);
    assert_null(m);
    assert_text_has(tn_error(), "tensor 'model.norm.weight' has 2 dimensions");
}

/* Another base is taken past the trained context alone, where no text may reach: within it nothing differs. */
static void rope_that_grows_counts_within_the_trained_context(void **state) {
    (void)state;
    const char *more[] = {"", ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}"};
    float kept[WORDS];
    for (size_t i = 0; i < TN_COUNT(more); i++) {
        tn_llm *m;
        const float *logits;
        assert_ok(tn_llm_open(make_llama("rope", more[i]), NULL, &m));
        assert_ok(tn_llm_prompt(m, ids, 5, &logits));
        if (i == 0) memcpy(kept, logits, sizeof kept);
        assert_memory_equal(logits, kept, sizeof kept);
        tn_llm_close(m);
    }
}

static void tensors_that_nobody_knows_are_refused(void **state) {
    (void)state;
    row more[TN_COUNT(llama_rows) + 1];
    tn_llm *m;
    memcpy(more, llama_rows, sizeof llama_rows);
    more[TN_COUNT(llama_rows)] = (row){"model.layers.0.mlp.extra.weight", 2, 2};
    const char *folder = make_folder("more", more, TN_COUNT(more), llama_config, "");
    assert_int_equal(tn_llm_open(folder, NULL, &m), TN_ERR_UNSUPPORTED);
    assert_text_has(tn_error(), "extra");
}

/* ---- families ---------------------------------------------------------------------------------------------------- */

static void logits_of_folder(const char *folder, float out[WORDS]) {
    tn_llm *m;
    const float *last;
    tn_llm_options o = TN_LLM_DEFAULTS;
    o.cache = TN_LLM_CACHE_F32;
    assert_ok(tn_llm_open(folder, &o, &m));
    assert_ok(tn_llm_prompt(m, ids, 5, &last));
    memcpy(out, last, WORDS * sizeof *out);
    tn_llm_close(m);
}

/* A language model by this type with llama's weights; what `more` says makes it compute the same but for a factor. */
static void a_family_computes_as_its_configuration_says(void **state) {
    (void)state;
    static const char sizes[] =
        "\"hidden_size\":8,\"intermediate_size\":12,\"num_hidden_layers\":1,\"num_attention_heads\":2,"
        "\"num_key_value_heads\":1,\"max_position_embeddings\":10,\"rms_norm_eps\":1e-6,\"vocab_size\":20,"
        "\"tie_word_embeddings\":true";
    static const struct {
        const char *begin, *more;
        double factor;
    } rows[] = {
        {"{\"model_type\":\"granite\",", ",\"attention_multiplier\":0.5,\"logits_scaling\":4", 0.25},
        {"{\"model_type\":\"smollm3\",", ",\"no_rope_layers\":[1],\"rope_theta\":10000", 1},
        {"{\"model_type\":\"ministral3\",", ",\"sliding_window\":null,\"rope_parameters\":{\"rope_type\":\"default\"}",
         1},
        {"{\"vision_config\":{},\"text_config\":{\"model_type\":\"llama\",", "}", 1},
        {"{\"model_type\":\"ministral\",", ",\"layer_types\":[\"full_attention\"],\"sliding_window\":2", 1},
    };
    float want[WORDS], got[WORDS];
    logits_of_folder(make_llama("family", ""), want);
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        char config[600];
        snprintf(config, sizeof config, "%s%s", rows[i].begin, sizes);
        logits_of_folder(make_folder("family", llama_rows, TN_COUNT(llama_rows), config, rows[i].more), got);
        for (int w = 0; w < WORDS; w++)
            if (fabs((double)got[w] - rows[i].factor * (double)want[w]) > 1e-6)
                fail_msg("%s: logit %d is %g, not %g times %g", rows[i].begin, w, (double)got[w], rows[i].factor,
                         (double)want[w]);
    }
}

/* Where config.json calls two matrices the same that are not, both are used, as transformers does. */
static void an_output_that_is_not_tied_is_used(void **state) {
    (void)state;
    row rows[TN_COUNT(llama_rows) + 1];
    float tied[WORDS], told[WORDS], apart[WORDS];
    memcpy(rows, llama_rows, sizeof llama_rows);
    rows[TN_COUNT(llama_rows)] = (row){"lm_head.weight", WORDS, HIDDEN};
    logits_of_folder(make_llama("tied", ""), tied);
    logits_of_folder(make_folder("told", rows, TN_COUNT(rows), llama_config, ""), told);
    logits_of_folder(make_folder("apart", rows, TN_COUNT(rows), llama_config, ",\"tie_word_embeddings\":false"), apart);
    assert_memory_equal(told, apart, sizeof told);
    assert_memory_not_equal(told, tied, sizeof told);
}

/* The weights of a model with pictures: the text's behind a prefix, the output matrix before it, others beside. */
static void a_model_with_pictures_is_read_for_its_text(void **state) {
    (void)state;
    enum { MORE = TN_COUNT(llama_rows) + 2 };
    row rows[MORE];
    char names[MORE][96], config[600];
    tn_llm *m;
    float got[WORDS];
    for (size_t i = 0; i < TN_COUNT(llama_rows); i++) {
        snprintf(names[i], sizeof names[i], "language_model.%s", llama_rows[i].name);
        rows[i] = (row){names[i], llama_rows[i].rows, llama_rows[i].columns};
    }
    rows[MORE - 2] = (row){"language_model.lm_head.weight", WORDS, HIDDEN};
    rows[MORE - 1] = (row){"vision_tower.patch.weight", 2, 2};
    snprintf(config, sizeof config, "{\"vision_config\":{},\"tie_word_embeddings\":false,\"text_config\":%s",
             llama_config);
    logits_of_folder(make_folder("pictures", rows, MORE, config, "}"), got);
    rows[MORE - 1].name = "language_model.model.layers.0.more.weight"; /* of the text's own part */
    assert_int_equal(tn_llm_open(make_folder("pictures", rows, MORE, config, "}"), NULL, &m), TN_ERR_UNSUPPORTED);
    assert_text_has(tn_error(), "layers.0.more");
}

/* Its last token's hidden state, with the embedding's rows: the logits. With one layer, that token sees the same keys
 * where each sees the whole text; such a model is not for generating. */
static void a_language_model_embeds_texts(void **state) {
    (void)state;
    const char *folder = make_llama("reader", "");
    float want[WORDS], words[WORDS * HIDDEN], all[TEXTS * HIDDEN];
    tn_embedder_facts f = {.struct_size = sizeof f};
    tn_embedder_options last = TN_EMBEDDER_DEFAULTS;
    tn_embedder *e;
    tn_llm *m;
    tn_safetensors *file;
    logits_of_folder(folder, want);
    assert_ok(tn_safetensors_open(folder, &file));
    {
        TN_SCOPE;
        assert_ok(tn_read(tn_safetensors_tensor(file, "model.embed_tokens.weight"), words, sizeof words));
    }
    tn_safetensors_close(file);
    last.pooling = TN_POOLING_LAST;
    for (int both = 0; both < 2; both++) {
        if (both) make_llama("reader", ",\"use_bidirectional_attention\":true");
        assert_ok(tn_embedder_open(folder, NULL, &e));
        assert_ok(tn_embedder_get_facts(e, &f));
        assert_int_equal(f.pooling, both ? TN_POOLING_MEAN : TN_POOLING_LAST);
        assert_int_equal(f.longest, 10);
        tn_embedder_close(e);
        assert_ok(tn_embedder_open(folder, &last, &e));
        assert_ok(tn_embedder_run(e, ids, lengths, TEXTS, all));
        assert_int_equal(tn_embedder_export_onnx(e, test_scratch("x.onnx")), TN_ERR_UNSUPPORTED);
        tn_embedder_close(e);
        for (int w = 0; w < WORDS; w++) {
            double sum = 0;
            for (int i = 0; i < HIDDEN; i++)
                sum += (double)words[w * HIDDEN + i] * (double)all[i];
            assert_true(fabs(sum - (double)want[w]) < 1e-5);
        }
    }
    assert_int_equal(tn_llm_open(folder, NULL, &m), TN_ERR_UNSUPPORTED);
    assert_text_has(tn_error(), "embeds texts");
}

/* A part of this family has no bias: one in the file would be left out of the computation. */
static void a_bias_that_is_not_computed_is_refused(void **state) {
    (void)state;
    static const char config[] =
        "{\"model_type\":\"nomic_bert\",\"hidden_size\":8,\"intermediate_size\":12,\"num_hidden_layers\":1,"
        "\"num_attention_heads\":2,\"max_position_embeddings\":10,\"layer_norm_eps\":1e-12";
    static const row rows[] = {
        {"embeddings.word_embeddings.weight", WORDS, HIDDEN},
        {"embeddings.token_type_embeddings.weight", 2, HIDDEN},
        {"emb_ln.weight", HIDDEN, 0},
        {"emb_ln.bias", HIDDEN, 0},
        {"encoder.layers.0.attn.Wqkv.weight", 3 * HIDDEN, HIDDEN},
        {"encoder.layers.0.attn.out_proj.weight", HIDDEN, HIDDEN},
        {"encoder.layers.0.norm1.weight", HIDDEN, 0},
        {"encoder.layers.0.norm1.bias", HIDDEN, 0},
        {"encoder.layers.0.mlp.fc11.weight", INNER, HIDDEN},
        {"encoder.layers.0.mlp.fc12.weight", INNER, HIDDEN},
        {"encoder.layers.0.mlp.fc2.weight", HIDDEN, INNER},
        {"encoder.layers.0.norm2.weight", HIDDEN, 0},
        {"encoder.layers.0.norm2.bias", HIDDEN, 0},
        {"encoder.layers.0.mlp.fc2.bias", HIDDEN, 0},
    };
    tn_embedder *e;
    float out[TEXTS * HIDDEN];
    assert_ok(tn_embedder_open(make_folder("nomic", rows, TN_COUNT(rows) - 1, config, ""), NULL, &e));
    assert_ok(tn_embedder_run(e, ids, lengths, TEXTS, out));
    tn_embedder_close(e);
    assert_int_equal(tn_embedder_open(make_folder("nomic", rows, TN_COUNT(rows), config, ""), NULL, &e),
                     TN_ERR_UNSUPPORTED);
    assert_text_has(tn_error(), "mlp.fc2.bias");
}

/* hf_folders.py compares its vectors with transformers'. Of the other kinds of DeBERTa none is computed wrongly. */
static void deberta_knows_distances(void **state) {
    (void)state;
    static const char config[] =
        "{\"model_type\":\"deberta-v2\",\"hidden_size\":8,\"intermediate_size\":12,\"num_hidden_layers\":1,"
        "\"num_attention_heads\":2,\"max_position_embeddings\":10,\"relative_attention\":true,\"position_buckets\":4,"
        "\"norm_rel_ebd\":\"layer_norm\",\"share_att_key\":true,\"pos_att_type\":[\"p2c\",\"c2p\"],"
        "\"position_biased_input\":false,\"type_vocab_size\":0";
    static const row rows[] = {
        {"deberta.embeddings.word_embeddings.weight", WORDS, HIDDEN},
        {"deberta.embeddings.LayerNorm.weight", HIDDEN, 0},
        {"deberta.embeddings.LayerNorm.bias", HIDDEN, 0},
        {"deberta.encoder.rel_embeddings.weight", 8, HIDDEN},
        {"deberta.encoder.LayerNorm.weight", HIDDEN, 0},
        {"deberta.encoder.LayerNorm.bias", HIDDEN, 0},
        {"deberta.encoder.layer.0.attention.self.query_proj.weight", HIDDEN, HIDDEN},
        {"deberta.encoder.layer.0.attention.self.query_proj.bias", HIDDEN, 0},
        {"deberta.encoder.layer.0.attention.self.key_proj.weight", HIDDEN, HIDDEN},
        {"deberta.encoder.layer.0.attention.self.key_proj.bias", HIDDEN, 0},
        {"deberta.encoder.layer.0.attention.self.value_proj.weight", HIDDEN, HIDDEN},
        {"deberta.encoder.layer.0.attention.self.value_proj.bias", HIDDEN, 0},
        {"deberta.encoder.layer.0.attention.output.dense.weight", HIDDEN, HIDDEN},
        {"deberta.encoder.layer.0.attention.output.dense.bias", HIDDEN, 0},
        {"deberta.encoder.layer.0.attention.output.LayerNorm.weight", HIDDEN, 0},
        {"deberta.encoder.layer.0.attention.output.LayerNorm.bias", HIDDEN, 0},
        {"deberta.encoder.layer.0.intermediate.dense.weight", INNER, HIDDEN},
        {"deberta.encoder.layer.0.intermediate.dense.bias", INNER, 0},
        {"deberta.encoder.layer.0.output.dense.weight", HIDDEN, INNER},
        {"deberta.encoder.layer.0.output.dense.bias", HIDDEN, 0},
        {"deberta.encoder.layer.0.output.LayerNorm.weight", HIDDEN, 0},
        {"deberta.encoder.layer.0.output.LayerNorm.bias", HIDDEN, 0},
    };
    static const char *const wrong[] = {
        ",\"relative_attention\":false", ",\"share_att_key\":false",   ",\"pos_att_type\":[\"c2p\"]",
        ",\"pos_att_type\":\"p2c\"",     ",\"norm_rel_ebd\":\"none\"", ",\"position_biased_input\":true",
        ",\"conv_kernel_size\":3",       ",\"embedding_size\":4",      ",\"max_relative_positions\":5",
        ",\"position_buckets\":2",       ",\"position_buckets\":99"};
    tn_embedder *e;
    float out[2 * HIDDEN];
    const int32_t both[] = {3, 4, 5, 6, 6, 5, 4, 3};
    const char *folder = make_folder("deberta", rows, TN_COUNT(rows), config, "");
    assert_ok(tn_embedder_open(folder, NULL, &e));
    assert_ok(tn_embedder_run(e, both, (int64_t[]){4, 4}, 2, out));
    float away = 0;
    for (int i = 0; i < HIDDEN; i++)
        away = fmaxf(away, fabsf(out[i] - out[HIDDEN + i]));
    assert_true(away > 1e-4F); /* the mean over the same tokens in another order */
    assert_int_equal(tn_embedder_export_onnx(e, test_scratch("deberta.onnx")), TN_ERR_UNSUPPORTED);
    tn_embedder_close(e);
    for (size_t i = 0; i < TN_COUNT(wrong); i++)
        if (tn_embedder_open(make_folder("deberta", rows, TN_COUNT(rows), config, wrong[i]), NULL, &e) == TN_OK)
            fail_msg("%s opens", wrong[i]);
    folder = make_folder("deberta", rows, TN_COUNT(rows), config, "");
    tn_status status = TN_ERR_MEMORY;
    for (int64_t n = 1; status != TN_OK && n < 500; n++) {
        tn_txt_fail_at(n);
        status = tn_embedder_open(folder, NULL, &e);
        tn_txt_fail_at(0);
        assert_true(status == TN_OK || status == TN_ERR_MEMORY);
    }
    assert_ok(status);
    tn_embedder_close(e);
}

/* The sizes of a language model whose weights are elsewhere. */
static void config_json_alone_tells_the_sizes(void **state) {
    (void)state;
    const char *folder = make_llama("alone", "");
    tn_model_sizes with = TN_MODEL_SIZES_DEFAULTS, without = TN_MODEL_SIZES_DEFAULTS;
    char path[600];
    assert_ok(tn_read_model_sizes(folder, &with));
    remove_file(folder, "model.safetensors");
    snprintf(path, sizeof path, "%s/config.json", folder);
    for (int i = 0; i < 2; i++) {
        assert_ok(tn_read_model_sizes(i ? path : folder, &without));
        assert_int_equal(without.weights_bytes, 0);
        assert_int_equal(without.hidden, with.hidden);
        assert_true(without.tied_embeddings && without.bytes_per_weight == 4);
    }
    make_llama("alone", ",\"num_local_experts\":8");
    assert_int_equal(tn_read_model_sizes(path, &without), TN_ERR_UNSUPPORTED);
    assert_text_has(tn_error(), "'num_local_experts' is 8");
}

/* ---- a language model -------------------------------------------------------------------------------------------- */

static void a_folder_tells_its_sizes_and_ends(void **state) {
    (void)state;
    const char *folder = make_llama("llama", "");
    tn_llm_facts f = {.struct_size = sizeof f};
    tn_model_sizes sizes = TN_MODEL_SIZES_DEFAULTS;
    tn_llm *m;
    const float *logits;
    assert_ok(tn_llm_inspect_path(folder, NULL, &f));
    assert_string_equal(f.architecture, "llama");
    assert_int_equal(f.vocabulary, WORDS);
    assert_int_equal(f.trained_context, 10);
    assert_true(f.tied_embeddings);
    assert_ok(tn_read_model_sizes(folder, &sizes));
    assert_int_equal(sizes.weights_bytes, f.weights_bytes);
    assert_int_equal(sizes.kv_heads, 1);
    assert_ok(tn_llm_open(folder, NULL, &m));
    assert_null(tn_llm_file(m));
    assert_true(tn_llm_ends(m, 2) && tn_llm_ends(m, 7) && !tn_llm_ends(m, 3) && !tn_llm_ends(NULL, 2));
    assert_ok(tn_llm_prompt(m, ids, 5, &logits));
    assert_true(isfinite(logits[0]));
    tn_llm_close(m);
    assert_int_equal(tn_llm_inspect_path(NULL, NULL, &f), TN_ERR_ARGUMENT);
    assert_int_equal(tn_read_model_sizes(make_bert("encoder", ",\"vocab_size\":20"), &sizes), TN_ERR_UNSUPPORTED);
    assert_text_has(tn_error(), "encoder");
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static tn_status embed_once(const char *folder) {
    tn_embedder *e;
    float out[TEXTS * HIDDEN];
    tn_status status = tn_embedder_open(folder, NULL, &e);
    if (status == TN_OK) status = tn_embedder_run(e, ids, lengths, TEXTS, out);
    tn_embedder_close(e);
    return status;
}

/* Allocations of the second library fail one by one, then some of the first's. */
static void run_out_of_memory(const char *folder) {
    assert_ok(embed_once(folder));
    tn_status status = TN_ERR_MEMORY;
    for (int64_t n = 1; status != TN_OK; n++) {
        tn_txt_fail_at(n);
        status = embed_once(folder);
        tn_txt_fail_at(0);
        assert_true(status == TN_OK || status == TN_ERR_MEMORY);
        assert_int_equal(tn_txt_live_blocks(), 0);
        assert_true(n < 1000);
    }
    for (int64_t n = 1; n < 600; n += 7) {
        tn_mem_fail_at(n);
        status = embed_once(folder);
        tn_mem_fail_at(0);
        assert_true(status == TN_OK || status == TN_ERR_MEMORY);
    }
    assert_ok(embed_once(folder));
}

static void memory_may_run_out_anywhere(void **state) {
    (void)state;
    run_out_of_memory(make_bert("bert", ""));
    const char *folder = make_bert("others", "");
    put_dense(folder, "activation.Tanh");
    pickle_folder(folder, true);
    run_out_of_memory(folder);
}

/* ---- as ONNX models ---------------------------------------------------------------------------------------------- */

static void run_network(const char *path, int64_t batch, int64_t length, const int64_t *tokens, const int64_t *mask,
                        float *out, size_t bytes) {
    tn_onnx *network;
    tn_onnx_value *in[2], *result;
    assert_ok(tn_onnx_open(path, NULL, &network));
    {
        TN_SCOPE;
        in[0] = tn_onnx_value_tensor(tn_from_data(tokens, (int64_t[]){batch, length}, 2, TN_I64));
        in[1] = tn_onnx_value_tensor(tn_from_data(mask ? mask : tokens, (int64_t[]){batch, length}, 2, TN_I64));
        assert_ok(tn_onnx_run(network, in, &result));
        assert_ok(tn_read(tn_onnx_value_get(result), out, bytes));
    }
    tn_onnx_value_free(in[0]);
    tn_onnx_value_free(in[1]);
    tn_onnx_value_free(result);
    tn_onnx_close(network);
}

static void assert_near(const float *got, const float *want, int count) {
    for (int i = 0; i < count; i++)
        if (!(fabsf(got[i] - want[i]) <= 2e-5f))
            fail_msg("number %d is %g, not %g", i, (double)got[i], (double)want[i]);
}

/* Of any length, and with no cache: what a model of the file computes. */
static void a_language_model_becomes_a_network(void **state) {
    (void)state;
    static const char *const kinds[] = {"", ",\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2}"};
    const int64_t tokens[] = {3, 1, 4, 1, 5, 9, 2, 6, 5};
    const int32_t same[] = {3, 1, 4, 1, 5, 9, 2, 6, 5};
    float want[9 * WORDS], got[9 * WORDS];
    tn_llm_options o = TN_LLM_DEFAULTS;
    o.cache = TN_LLM_CACHE_F32;
    tn_llm_export_onnx_options whole = TN_LLM_EXPORT_ONNX_DEFAULTS;
    whole.cache = false;
    const char *path = test_scratch("llama.onnx");
    for (size_t k = 0; k < TN_COUNT(kinds); k++) {
        tn_llm *m;
        assert_ok(tn_llm_open(make_llama("network", kinds[k]), &o, &m));
        assert_ok(tn_llm_logits(m, same, 9, want));
        assert_ok(tn_llm_export_onnx(m, path, &whole));
        assert_int_equal(tn_llm_position(m), 9);
        tn_llm_close(m);
        run_network(path, 1, 9, tokens, NULL, got, sizeof got);
        assert_near(got, want, 9 * WORDS);
        run_network(path, 1, 4, tokens, NULL, got, 4 * WORDS * sizeof *got);
        assert_near(got, want, 4 * WORDS);
    }
}

/* Keys and values of `past` tokens before `count` others: the model's inputs, of which the mask hides the first. */
static void run_piece(tn_onnx *network, tn_onnx_value *cache[2], int64_t past, int64_t count, const int64_t *tokens,
                      int64_t hidden, float *out) {
    int64_t mask[MOST], places[MOST];
    tn_onnx_value *in[5] = {NULL, NULL, NULL, cache[0], cache[1]}, *got[3] = {NULL};
    for (int64_t i = 0; i < past + count; i++)
        mask[i] = i >= hidden;
    for (int64_t i = 0; i < count; i++)
        places[i] = past + i > hidden ? past + i - hidden : 0;
    {
        TN_SCOPE;
        in[0] = tn_onnx_value_tensor(tn_from_data(tokens, (int64_t[]){1, count}, 2, TN_I64));
        in[1] = tn_onnx_value_tensor(tn_from_data(mask, (int64_t[]){1, past + count}, 2, TN_I64));
        in[2] = tn_onnx_value_tensor(tn_from_data(places, (int64_t[]){1, count}, 2, TN_I64));
        if (past == 0) in[3] = in[4] = tn_onnx_value_tensor(tn_zeros(TN_DIMS(1, 1, 0, 4), TN_F32));
        assert_ok(tn_onnx_run(network, in, got));
        assert_ok(tn_read(tn_onnx_value_get(got[0]), out, (size_t)count * WORDS * sizeof *out));
    }
    for (int i = 0; i < 3; i++)
        tn_onnx_value_free(in[i]);
    tn_onnx_value_free(in[3]);
    if (past > 0) tn_onnx_value_free(in[4]);
    tn_onnx_value_free(got[0]);
    cache[0] = got[1];
    cache[1] = got[2];
}

static void run_text(tn_onnx *network, const int64_t *tokens, int64_t hidden, const int64_t *ends, float *out) {
    tn_onnx_value *cache[2] = {NULL};
    int64_t past = 0;
    for (int i = 0; i < 3; i++) {
        run_piece(network, cache, past, ends[i] - past, tokens + past, hidden, out + past * WORDS);
        past = ends[i];
    }
    tn_onnx_value_free(cache[0]);
    tn_onnx_value_free(cache[1]);
}

/* Cut anywhere, with windows, and with tokens in front that nobody sees. */
static void a_network_with_a_cache_goes_on(void **state) {
    (void)state;
    static const char *const kinds[] = {"", ",\"sliding_window\":3"};
    const int64_t tokens[] = {3, 1, 4, 1, 5, 9, 2, 6, 5}, ends[][3] = {{4, 5, 9}, {1, 2, 9}, {7, 8, 9}};
    const int32_t same[] = {3, 1, 4, 1, 5, 9, 2, 6, 5};
    float want[9 * WORDS], got[9 * WORDS];
    tn_llm_options o = TN_LLM_DEFAULTS;
    o.cache = TN_LLM_CACHE_F32;
    for (size_t k = 0; k < TN_COUNT(kinds); k++) {
        const char *path = test_scratch("cache.onnx");
        tn_onnx *network;
        tn_llm *m;
        char folder[256];
        snprintf(folder, sizeof folder, "%s",
                 make_folder("cache", llama_rows, TN_COUNT(llama_rows), k ? mistral_config : llama_config, kinds[k]));
        assert_ok(tn_llm_open(folder, &o, &m));
        assert_ok(tn_llm_export_onnx(m, path, NULL));
        assert_ok(tn_onnx_open(path, NULL, &network));
        for (int64_t hidden = 0; hidden < 3; hidden += 2) {
            assert_ok(tn_llm_rewind(m, 0));
            assert_ok(tn_llm_logits(m, same + hidden, 9 - hidden, want));
            for (size_t e = 0; e < TN_COUNT(ends); e++) {
                run_text(network, tokens, hidden, ends[e], got);
                assert_near(got + hidden * WORDS, want, (int)(9 - hidden) * WORDS);
            }
        }
        tn_onnx_close(network);
        tn_llm_close(m);
    }
}

/* Allocations of the second library fail one by one, then some of the first's: no file, and the model goes on. */
static void an_export_without_memory_leaves_nothing(void **state) {
    (void)state;
    tn_llm_options o = TN_LLM_DEFAULTS;
    tn_llm *m;
    const char *path = test_scratch("none.onnx");
    assert_ok(tn_llm_open(make_llama("memory", ""), &o, &m));
    int64_t blocks = tn_txt_live_blocks();
    tn_status status = TN_ERR_MEMORY;
    for (int64_t n = 1; status != TN_OK; n++) {
        tn_txt_fail_at(n);
        status = tn_llm_export_onnx(m, path, NULL);
        tn_txt_fail_at(0);
        assert_true(status == TN_ERR_MEMORY || status == TN_OK);
        assert_int_equal(tn_txt_live_blocks(), blocks);
        assert_int_equal(access(path, F_OK) == 0, status == TN_OK);
    }
    assert_int_equal(unlink(path), 0);
    status = TN_ERR_MEMORY;
    for (int64_t n = 1; status != TN_OK; n += 1 + n / 16) {
        tn_mem_fail_at(n);
        status = tn_llm_export_onnx(m, path, NULL);
        tn_mem_fail_at(0);
        assert_true(status == TN_ERR_MEMORY || status == TN_OK);
        assert_int_equal(access(path, F_OK) == 0, status == TN_OK);
    }
    tn_llm_close(m);
}

/* Of any number of texts and length, what fills up unseen. */
static void an_encoder_becomes_a_network(void **state) {
    (void)state;
    enum { LONGEST = 7 };
    int64_t tokens[TEXTS * LONGEST] = {0}, mask[TEXTS * LONGEST] = {0}, at = 0;
    float want[TEXTS * HIDDEN], got[TEXTS * HIDDEN];
    const char *path = test_scratch("bert.onnx");
    for (int i = 0; i < TEXTS; i++)
        for (int64_t k = 0; k < lengths[i]; k++) {
            tokens[i * LONGEST + k] = ids[at++];
            mask[i * LONGEST + k] = 1;
        }
    for (int pooling = TN_POOLING_MEAN; pooling <= TN_POOLING_LAST; pooling++) {
        tn_embedder_options o = TN_EMBEDDER_DEFAULTS;
        o.pooling = (tn_pooling)pooling;
        o.norm = TN_EMBED_NORM_UNIT;
        tn_embedder *e;
        assert_ok(tn_embedder_open(make_bert("network", ""), &o, &e));
        assert_ok(tn_embedder_run(e, ids, lengths, TEXTS, want));
        assert_ok(tn_embedder_export_onnx(e, path));
        tn_embedder_close(e);
        run_network(path, TEXTS, LONGEST, tokens, mask, got, sizeof got);
        assert_near(got, want, TEXTS * HIDDEN);
        run_network(path, 1, 5, tokens, mask, got, HIDDEN * sizeof *got);
        assert_near(got, want, HIDDEN);
    }
}

typedef struct seen {
    int matrices;
    float down[INNER];
} seen;

static tn_status look_at(void *ctx, const char *name, const float *squares, int64_t columns) {
    seen *s = ctx;
    s->matrices++;
    for (int64_t k = 0; k < columns; k++)
        if (!(squares[k] >= 0 && isfinite(squares[k]))) return TN_ERR_ARGUMENT;
    if (strstr(name, "down_proj")) memcpy(s->down, squares, sizeof s->down);
    return strcmp(name, "model.norm.weight") == 0 ? TN_ERR_ARGUMENT : TN_OK;
}

/* Every matrix is told of, and longer texts add to shorter ones. */
static void columns_are_told_by_what_they_multiply(void **state) {
    (void)state;
    const int32_t text[] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7}; /* longer than the context */
    tn_llm_options o = TN_LLM_DEFAULTS;
    o.context = 8;
    seen all = {0}, begin = {0}, rest = {0};
    tn_llm *m;
    assert_ok(tn_llm_open(make_llama("columns", ""), &o, &m));
    assert_ok(tn_llm_importance(m, text, 8, look_at, &begin));
    assert_ok(tn_llm_importance(m, text + 8, 6, look_at, &rest));
    assert_ok(tn_llm_importance(m, text, 14, look_at, &all));
    assert_int_equal(tn_llm_position(m), 0);
    assert_int_equal(all.matrices, 8); /* seven of the layer, and the embedding, which is the output too */
    for (int k = 0; k < INNER; k++)
        assert_float_equal(all.down[k], begin.down[k] + rest.down[k], 1e-4f * all.down[k]);
    const int32_t wrong[] = {1, WORDS};
    assert_int_equal(tn_llm_importance(m, wrong, 2, look_at, &all), TN_ERR_ARGUMENT);
    tn_llm_close(m);
}

static void nothing_is_exported_without_a_model(void **state) {
    (void)state;
    assert_int_equal(tn_llm_export_onnx(NULL, "x", NULL), TN_ERR_ARGUMENT);
    assert_int_equal(tn_embedder_export_onnx(NULL, "x"), TN_ERR_ARGUMENT);
    assert_int_equal(tn_llm_importance(NULL, ids, 1, NULL, NULL), TN_ERR_ARGUMENT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_together_are_as_texts_alone),
        cmocka_unit_test(dense_layers_are_computed_with_any_norm),
        cmocka_unit_test(a_dense_layer_that_does_not_fit_is_refused),
        cmocka_unit_test(norms_may_be_called_gamma_and_beta),
        cmocka_unit_test(a_table_of_tasks_counts_if_config_json_says_so),
        cmocka_unit_test(pipes_in_the_place_of_files_are_refused_at_once),
        cmocka_unit_test(pickled_weights_are_as_safetensors),
        cmocka_unit_test(a_folder_without_weights_says_what_it_looked_for),
        cmocka_unit_test(damaged_weights_make_no_embedding),
        cmocka_unit_test(what_is_no_text_is_refused),
        cmocka_unit_test(configurations_that_do_not_fit_are_refused),
        cmocka_unit_test(more_kinds_of_layers_than_layers_may_be_are_refused),
        cmocka_unit_test(a_vector_that_is_a_row_is_refused),
        cmocka_unit_test(rope_that_grows_counts_within_the_trained_context),
        cmocka_unit_test(tensors_that_nobody_knows_are_refused),
        cmocka_unit_test(a_family_computes_as_its_configuration_says),
        cmocka_unit_test(an_output_that_is_not_tied_is_used),
        cmocka_unit_test(a_model_with_pictures_is_read_for_its_text),
        cmocka_unit_test(a_language_model_embeds_texts),
        cmocka_unit_test(a_bias_that_is_not_computed_is_refused),
        cmocka_unit_test(deberta_knows_distances),
        cmocka_unit_test(config_json_alone_tells_the_sizes),
        cmocka_unit_test(a_folder_tells_its_sizes_and_ends),
        cmocka_unit_test(memory_may_run_out_anywhere),
        cmocka_unit_test(a_language_model_becomes_a_network),
        cmocka_unit_test(a_network_with_a_cache_goes_on),
        cmocka_unit_test(an_export_without_memory_leaves_nothing),
        cmocka_unit_test(an_encoder_becomes_a_network),
        cmocka_unit_test(columns_are_told_by_what_they_multiply),
        cmocka_unit_test(nothing_is_exported_without_a_model),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
