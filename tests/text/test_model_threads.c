/* test_model_threads.c — one set of weights, several threads: modules, policies, ONNX models, embedders and the
 * conversations of a language model give each thread what they give one, and a conversation costs its cache. */
#include "test_support.h"

#include <inttypes.h>
#include <pthread.h>

#include "gguf_make.h"
#include "trunnion/embed.h"
#include "trunnion/llm.h"
#include "trunnion/onnx.h"
#include "trunnion/trunnion.h"

enum { THREADS = 4, ROUNDS = 6, ROWS = 3, FEATURES = 8, CLASSES = 5 };

/* Runs `body` on THREADS threads at once; each gets its number and ctx, and returns whether all was well. */
typedef bool work(void *ctx, int thread);
typedef struct job {
    work *body;
    void *ctx;
    int thread;
    bool good;
    char why[512];
} job;

static void *start(void *argument) {
    job *j = argument;
    j->good = j->body(j->ctx, j->thread);
    snprintf(j->why, sizeof j->why, "%s", tn_error());
    return NULL;
}

static void on_all_threads(work *body, void *ctx) {
    pthread_t threads[THREADS];
    job jobs[THREADS];
    for (int i = 0; i < THREADS; i++) {
        jobs[i] = (job){.body = body, .ctx = ctx, .thread = i};
        assert_int_equal(pthread_create(&threads[i], NULL, start, &jobs[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < THREADS; i++)
        if (!jobs[i].good) fail_msg("thread %d differs (%s)", i, jobs[i].why);
}

/* What thread `thread` puts in at round `round`: each something else. */
static tn_tensor *input_of(int thread, int round) {
    float x[ROWS * FEATURES];
    for (int i = 0; i < ROWS * FEATURES; i++)
        x[i] = (float)((i * 29 + thread * 7 + round * 13) % 32) / 16 - 1;
    return tn_from_data(x, TN_DIMS(ROWS, FEATURES), TN_F32);
}

typedef float outputs[THREADS][ROUNDS][ROWS * CLASSES];

/* ---- modules and policies ---------------------------------------------------------------------------------------- */

typedef struct net {
    tn_module *root, *net;
    tn_policy *policy;
    outputs expected;
} net;

static tn_tensor *as_image(const tn_tensor *x) { return tn_reshape(x, TN_DIMS(ROWS, 2, 2, 2)); }
static tn_tensor *flat(const tn_tensor *x) { return tn_flatten(x, 1, -1); }

static void net_new(net *n) {
    tn_manual_seed(5);
    n->root = tn_module_root();
    n->net = tn_nn_sequential(n->root, "net");
    tn_nn_linear(n->net, "0", FEATURES, FEATURES, true);
    tn_nn_layer_norm(n->net, "1", FEATURES, NULL);
    tn_nn_function(n->net, "2", as_image);
    tn_nn_conv2d(n->net, "3", 2, 4, 1, NULL);
    tn_nn_batch_norm2d(n->net, "4", 4, NULL);
    tn_nn_function(n->net, "5", flat);
    tn_nn_dropout(n->net, "6", 0.5);
    tn_nn_linear(n->net, "7", 16, CLASSES, true);
    assert_ok(tn_module_status(n->root));
    tn_module_train(n->root, false);
}

static bool forward_once(const net *n, int thread, int round, float out[ROWS * CLASSES]) {
    TN_SCOPE;
    TN_NO_GRAD;
    return tn_read(tn_forward(n->net, input_of(thread, round)), out, ROWS * CLASSES * sizeof *out) == TN_OK;
}

static bool forward(void *ctx, int thread) {
    const net *n = ctx;
    float got[ROWS * CLASSES];
    bool good = true;
    for (int i = 0; i < ROUNDS && good; i++)
        good = forward_once(n, thread, i, got) && !memcmp(got, n->expected[thread][i], sizeof got);
    return good;
}

static void a_module_in_evaluation_mode_serves_several_threads(void **state) {
    (void)state;
    static net n;
    net_new(&n);
    for (int t = 0; t < THREADS; t++)
        for (int i = 0; i < ROUNDS; i++)
            assert_true(forward_once(&n, t, i, n.expected[t][i]));
    on_all_threads(forward, &n);
    tn_module_free(n.root);
}

/* An episode: the state goes from step to step. Logits of the last one. */
static bool play(const net *n, int thread, float out[ROWS * CLASSES]) {
    TN_NO_GRAD;
    tn_tensor *memory[2], *next[2], *logits = NULL, *value = NULL;
    tn_policy_initial_state(n->policy, ROWS, memory);
    for (int i = 0; i < ROUNDS; i++) {
        tn_tensor *x = input_of(thread, i);
        tn_free(logits);
        tn_free(value);
        tn_policy_forward(n->policy, x, memory, &logits, &value, next);
        for (int k = 0; k < 2; k++) {
            tn_free(memory[k]);
            memory[k] = next[k];
        }
        tn_free(x);
        if (tn_eval(memory, 2) != TN_OK) break;
    }
    bool good = tn_read(logits, out, ROWS * CLASSES * sizeof *out) == TN_OK;
    tn_free(logits);
    tn_free(value);
    tn_free(memory[0]);
    tn_free(memory[1]);
    return good;
}

static bool play_again(void *ctx, int thread) {
    const net *n = ctx;
    float got[ROWS * CLASSES];
    return play(n, thread, got) && !memcmp(got, n->expected[thread][0], sizeof got);
}

static void a_policy_plays_for_several_threads(void **state) {
    (void)state;
    static net n;
    tn_manual_seed(6);
    tn_policy_options o = TN_POLICY_DEFAULTS;
    o.observations = FEATURES;
    o.actions = CLASSES;
    o.recurrent = 6;
    assert_ok(tn_policy_lstm(&o, &n.policy));
    tn_module_train(tn_policy_module(n.policy), false);
    for (int t = 0; t < THREADS; t++)
        assert_true(play(&n, t, n.expected[t][0]));
    on_all_threads(play_again, &n);
    tn_policy_free(n.policy);
}

/* ---- ONNX -------------------------------------------------------------------------------------------------------- */

typedef struct onnx {
    tn_onnx *model;
    outputs expected;
} onnx;

static bool run_once(tn_onnx *m, int thread, int round, float out[ROWS * CLASSES]) {
    TN_SCOPE;
    tn_onnx_value *in = tn_onnx_value_tensor(input_of(thread, round)), *result = NULL;
    bool good = tn_onnx_run(m, &in, &result) == TN_OK &&
                tn_read(tn_onnx_value_get(result), out, ROWS * CLASSES * sizeof *out) == TN_OK;
    tn_onnx_value_free(in);
    tn_onnx_value_free(result);
    return good;
}

static bool run(void *ctx, int thread) {
    const onnx *o = ctx;
    float got[ROWS * CLASSES];
    bool good = true;
    for (int i = 0; i < 2 * ROUNDS && good; i++)
        good = run_once(o->model, thread, i % ROUNDS, got) && !memcmp(got, o->expected[thread][i % ROUNDS], sizeof got);
    return good;
}

static const char *export_net(const net *n) {
    const char *path = test_scratch("net.onnx");
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *x = input_of(0, 0), *y = tn_forward(n->net, x);
    assert_ok(tn_onnx_export(path, &(tn_named_tensor){"x", x}, 1, &(tn_named_tensor){"y", y}, 1, NULL));
    return path;
}

/* Once with a model that nobody has run: its first runs, captures and launches meet. */
static void an_onnx_model_is_run_by_several_threads(void **state) {
    (void)state;
    static net n;
    static onnx o;
    net_new(&n);
    const char *path = export_net(&n);
    tn_module_free(n.root);
    assert_ok(tn_onnx_open(path, NULL, &o.model));
    for (int t = 0; t < THREADS; t++)
        for (int i = 0; i < ROUNDS; i++)
            assert_true(run_once(o.model, t, i, o.expected[t][i]));
    on_all_threads(run, &o);
    tn_onnx_close(o.model);
    assert_ok(tn_onnx_open(path, NULL, &o.model));
    on_all_threads(run, &o);
    tn_onnx_close(o.model);
}

/* ---- an encoder -------------------------------------------------------------------------------------------------- */

enum { WORDS = 20, PLACES = 10, EMBEDDING = 8, FEEDFORWARD = 12, TEXTS = 2, TEXT_IDS = 7 };

static const char encoder_config[] =
    "{\"model_type\":\"bert\",\"hidden_size\":8,\"intermediate_size\":12,\"num_hidden_layers\":1,"
    "\"num_attention_heads\":2,\"max_position_embeddings\":10,\"layer_norm_eps\":1e-12,\"hidden_act\":\"gelu\"}";

static const struct {
    const char *name;
    int64_t rows, columns; /* columns 0: a vector */
} encoder_rows[] = {
    {"embeddings.word_embeddings.weight", WORDS, EMBEDDING},
    {"embeddings.position_embeddings.weight", PLACES, EMBEDDING},
    {"embeddings.token_type_embeddings.weight", 2, EMBEDDING},
    {"embeddings.LayerNorm.weight", EMBEDDING, 0},
    {"embeddings.LayerNorm.bias", EMBEDDING, 0},
    {"encoder.layer.0.attention.self.query.weight", EMBEDDING, EMBEDDING},
    {"encoder.layer.0.attention.self.query.bias", EMBEDDING, 0},
    {"encoder.layer.0.attention.self.key.weight", EMBEDDING, EMBEDDING},
    {"encoder.layer.0.attention.self.key.bias", EMBEDDING, 0},
    {"encoder.layer.0.attention.self.value.weight", EMBEDDING, EMBEDDING},
    {"encoder.layer.0.attention.self.value.bias", EMBEDDING, 0},
    {"encoder.layer.0.attention.output.dense.weight", EMBEDDING, EMBEDDING},
    {"encoder.layer.0.attention.output.dense.bias", EMBEDDING, 0},
    {"encoder.layer.0.attention.output.LayerNorm.weight", EMBEDDING, 0},
    {"encoder.layer.0.attention.output.LayerNorm.bias", EMBEDDING, 0},
    {"encoder.layer.0.intermediate.dense.weight", FEEDFORWARD, EMBEDDING},
    {"encoder.layer.0.intermediate.dense.bias", FEEDFORWARD, 0},
    {"encoder.layer.0.output.dense.weight", EMBEDDING, FEEDFORWARD},
    {"encoder.layer.0.output.dense.bias", EMBEDDING, 0},
    {"encoder.layer.0.output.LayerNorm.weight", EMBEDDING, 0},
    {"encoder.layer.0.output.LayerNorm.bias", EMBEDDING, 0},
};

static const char *write_encoder(void) {
    enum { COUNT = sizeof encoder_rows / sizeof *encoder_rows };
    const char *folder = test_scratch("encoder");
    char path[600];
    tn_named_tensor tensors[COUNT];
    assert_int_equal(mkdir(folder, 0700), 0);
    tn_manual_seed(3);
    TN_SCOPE;
    for (int i = 0; i < COUNT; i++) {
        int64_t shape[] = {encoder_rows[i].rows, encoder_rows[i].columns};
        tensors[i] = (tn_named_tensor){encoder_rows[i].name, tn_randn(shape, shape[1] ? 2 : 1)};
    }
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_ok(tn_safetensors_save(path, tensors, COUNT, NULL, 0));
    snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(encoder_config, f) >= 0 && fclose(f) == 0);
    return folder;
}

typedef struct embedding {
    tn_embedder *embedder;
    float expected[THREADS][ROUNDS][TEXTS * EMBEDDING];
} embedding;

static bool embed_once(tn_embedder *e, int thread, int round, float out[TEXTS * EMBEDDING]) {
    int32_t ids[TEXT_IDS];
    const int64_t first = 1 + (thread + round) % 4, lengths[TEXTS] = {first, TEXT_IDS - first};
    for (int i = 0; i < TEXT_IDS; i++)
        ids[i] = (i * 5 + thread * 3 + round) % WORDS;
    return tn_embedder_run(e, ids, lengths, TEXTS, out) == TN_OK;
}

static bool embed(void *ctx, int thread) {
    const embedding *e = ctx;
    float got[TEXTS * EMBEDDING];
    bool good = true;
    for (int i = 0; i < ROUNDS && good; i++)
        good = embed_once(e->embedder, thread, i, got) && !memcmp(got, e->expected[thread][i], sizeof got);
    return good;
}

static void an_embedder_serves_several_threads(void **state) {
    (void)state;
    static embedding e;
    assert_ok(tn_embedder_open(write_encoder(), NULL, &e.embedder));
    for (int t = 0; t < THREADS; t++)
        for (int i = 0; i < ROUNDS; i++)
            assert_true(embed_once(e.embedder, t, i, e.expected[t][i]));
    on_all_threads(embed, &e);
    tn_embedder_close(e.embedder);
}

/* ---- a language model of two layers, weights in blocks of 8 bits ------------------------------------------------- */

enum {
    LAYERS = 2,
    HIDDEN = 256,
    HEADS = 4,
    KV_HEADS = 2,
    WIDTH = HIDDEN / HEADS,
    INNER = 512,
    VOCABULARY = 768,
    CONTEXT = 128,
    TOKENS = 12,
    F32_TYPE = 0,
    Q8_0_TYPE = 8,
    BLOCK = 32
};

typedef struct file {
    gguf_make head, data;
    int tensors;
    uint32_t random;
} file;

static void put_weight(file *f, const char *name, int64_t rows, int64_t columns) {
    const uint64_t dims[2] = {(uint64_t)columns, (uint64_t)rows};
    make_padding(&f->data, 32);
    make_tensor(&f->head, name, rows ? 2 : 1, dims, rows ? Q8_0_TYPE : F32_TYPE, f->data.size);
    f->tensors++;
    for (int64_t i = 0; i < (rows ? rows : 1) * columns; i++) {
        f->random = f->random * 1664525 + 1013904223;
        if (!rows) {
            make_f32(&f->data, 1);
            continue;
        }
        if (i % BLOCK == 0) make_number(&f->data, 0x1400, 2); /* 2^-10 as a half */
        make_number(&f->data, f->random >> 24, 1);
    }
}

static void put_layer(file *f, int layer) {
    static const struct {
        const char *name;
        int64_t rows, columns;
    } weights[] = {{"attn_norm", 0, HIDDEN},
                   {"attn_q", HIDDEN, HIDDEN},
                   {"attn_k", KV_HEADS * WIDTH, HIDDEN},
                   {"attn_v", KV_HEADS * WIDTH, HIDDEN},
                   {"attn_output", HIDDEN, HIDDEN},
                   {"ffn_norm", 0, HIDDEN},
                   {"ffn_gate", INNER, HIDDEN},
                   {"ffn_up", INNER, HIDDEN},
                   {"ffn_down", HIDDEN, INNER}};
    char name[64];
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) {
        snprintf(name, sizeof name, "blk.%d.%s.weight", layer, weights[i].name);
        put_weight(f, name, weights[i].rows, weights[i].columns);
    }
}

static const char *write_llm(void) {
    static const struct {
        const char *key;
        uint32_t value;
    } sizes[] = {{"llama.block_count", LAYERS},         {"llama.embedding_length", HIDDEN},
                 {"llama.feed_forward_length", INNER},  {"llama.context_length", CONTEXT},
                 {"llama.attention.head_count", HEADS}, {"llama.attention.head_count_kv", KV_HEADS},
                 {"llama.attention.key_length", WIDTH}, {"llama.attention.value_length", WIDTH}};
    enum { SIZES = sizeof sizes / sizeof *sizes };
    file f = {.random = 3};
    put_weight(&f, "token_embd.weight", VOCABULARY, HIDDEN);
    for (int i = 0; i < LAYERS; i++)
        put_layer(&f, i);
    put_weight(&f, "output_norm.weight", 0, HIDDEN);
    make_padding(&f.data, 32);
    gguf_make g = {0};
    make_head(&g, (uint64_t)f.tensors, SIZES + 3);
    make_key_text(&g, "general.architecture", "llama");
    make_key_f32(&g, "llama.attention.layer_norm_rms_epsilon", 1e-5F);
    make_key_f32(&g, "llama.rope.freq_base", 10000);
    for (int i = 0; i < SIZES; i++)
        make_key_u32(&g, sizes[i].key, sizes[i].value);
    make_bytes(&g, f.head.data, f.head.size);
    make_padding(&g, 32);
    make_bytes(&g, f.data.data, f.data.size);
    const char *path = test_scratch("small.gguf");
    assert_int_equal(make_write(&g, path), 0);
    make_free(&f.head);
    make_free(&f.data);
    make_free(&g);
    return path;
}

/* What a conversation says: a prompt of its own, then always the likeliest token; and the last logits. */
typedef struct talk {
    int32_t said[TOKENS];
    float logits[VOCABULARY];
} talk;

static int32_t likeliest(const float *logits) {
    int32_t best = 0;
    for (int32_t i = 1; i < VOCABULARY; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

static bool begin_talk(tn_llm *m, int who, const float **logits) {
    const int32_t prompt[] = {1 + who, 40 + 3 * who, 7, 300 - who};
    return tn_llm_rewind(m, 0) == TN_OK && tn_llm_prompt(m, prompt, 4, logits) == TN_OK;
}

static bool say(tn_llm *m, talk *t, int at, const float **logits) {
    t->said[at] = likeliest(*logits);
    return tn_llm_step(m, t->said[at], logits) == TN_OK;
}

static bool talk_through(tn_llm *m, int who, talk *t) {
    const float *logits = NULL;
    bool good = begin_talk(m, who, &logits);
    for (int i = 0; i < TOKENS && good; i++)
        good = say(m, t, i, &logits);
    if (good) memcpy(t->logits, logits, sizeof t->logits);
    return good;
}

static bool same_talk(const talk *a, const talk *b) { return memcmp(a, b, sizeof *a) == 0; }

static tn_llm *open_llm(void) {
    tn_llm *m = NULL;
    assert_ok(tn_llm_open(write_llm(), NULL, &m));
    return m;
}

static void expect_talks(talk expected[THREADS]) {
    tn_llm *alone = open_llm();
    for (int i = 0; i < THREADS; i++)
        assert_true(talk_through(alone, i, &expected[i]));
    tn_llm_close(alone);
}

static int64_t live_bytes(void) {
    tn_runtime_stats s = {.struct_size = sizeof s};
    assert_ok(tn_get_runtime_stats(&s));
    return s.live_bytes;
}

static void a_second_conversation_costs_its_cache(void **state) {
    (void)state;
    enum { SLACK = 64 << 10 }; /* frequencies, page numbers, logits that are shown */
    static talk t;
    tn_llm *first = open_llm(), *second = NULL;
    tn_llm_facts facts = {.struct_size = sizeof facts};
    assert_ok(tn_llm_get_facts(first, &facts));
    assert_ok(tn_llm_prepare(first));
    assert_true(talk_through(first, 0, &t));
    int64_t before = live_bytes();
    assert_ok(tn_llm_new_conversation(first, NULL, &second));
    assert_ok(tn_llm_prepare(second));
    assert_true(talk_through(second, 1, &t));
    int64_t cost = live_bytes() - before;
    if (cost > facts.cache_bytes + SLACK || cost > facts.weights_bytes / 4)
        fail_msg("the second conversation takes %" PRId64 " bytes; its cache has %" PRId64 ", the weights %" PRId64,
                 cost, facts.cache_bytes, facts.weights_bytes);
    tn_llm_close(first);
    tn_llm_close(second);
}

/* Token by token in turns, and closed in either order. */
static void conversations_do_not_see_each_other(void **state) {
    (void)state;
    static talk expected[THREADS], got[2];
    expect_talks(expected);
    for (int order = 0; order < 2; order++) {
        tn_llm *m[2] = {open_llm(), NULL};
        const float *logits[2];
        assert_ok(tn_llm_new_conversation(m[0], NULL, &m[1]));
        for (int k = 0; k < 2; k++)
            assert_true(begin_talk(m[k], k, &logits[k]));
        for (int i = 0; i < TOKENS; i++)
            for (int k = 0; k < 2; k++)
                assert_true(say(m[k], &got[k], i, &logits[k]));
        for (int k = 0; k < 2; k++) {
            memcpy(got[k].logits, logits[k], sizeof got[k].logits);
            assert_true(same_talk(&got[k], &expected[k]));
        }
        tn_llm_close(m[order]);
        assert_true(talk_through(m[!order], 2, &got[0])); /* the one that is left has all it needs */
        assert_true(same_talk(&got[0], &expected[2]));
        tn_llm_close(m[!order]);
    }
}

typedef struct talks {
    tn_llm *of[THREADS];
    talk expected[THREADS];
} talks;

static bool talk_here(void *ctx, int thread) {
    talks *t = ctx;
    talk *got = malloc(sizeof *got);
    bool good = true;
    for (int i = 0; i < 2 && good && got; i++)
        good = talk_through(t->of[thread], thread, got) && same_talk(got, &t->expected[thread]);
    free(got);
    return good && got;
}

/* Made and closed by the threads themselves, while the first one is in use. */
static bool talk_anew(void *ctx, int thread) {
    const talks *t = ctx;
    tn_llm *own = NULL;
    talk *got = malloc(sizeof *got);
    bool good = got && tn_llm_new_conversation(t->of[0], NULL, &own) == TN_OK && talk_through(own, thread, got) &&
                same_talk(got, &t->expected[thread]);
    tn_llm_close(own);
    free(got);
    return good;
}

static void each_thread_has_a_conversation(void **state) {
    (void)state;
    static talks t;
    expect_talks(t.expected);
    t.of[0] = open_llm();
    for (int i = 1; i < THREADS; i++)
        assert_ok(tn_llm_new_conversation(t.of[0], NULL, &t.of[i]));
    on_all_threads(talk_here, &t);
    on_all_threads(talk_anew, &t);
    static talk got;
    for (int i = 0; i < THREADS; i++) { /* and this thread goes on with each of them */
        assert_true(talk_through(t.of[i], i, &got));
        assert_true(same_talk(&got, &t.expected[i]));
        tn_llm_close(t.of[i]);
    }
}

static void options_of_a_conversation_count(void **state) {
    (void)state;
    tn_llm *first = open_llm(), *second = NULL;
    tn_llm_options o = TN_LLM_DEFAULTS;
    o.context = 64;
    o.cache = TN_LLM_CACHE_F32;
    tn_llm_facts facts = {.struct_size = sizeof facts};
    assert_ok(tn_llm_new_conversation(first, &o, &second));
    assert_ok(tn_llm_get_facts(second, &facts));
    assert_int_equal(facts.context, 64);
    tn_llm_close(second);
    o.memory = 1000;
    assert_int_equal(tn_llm_new_conversation(first, &o, &second), TN_ERR_MEMORY);
    assert_null(second);
    assert_int_equal(tn_llm_new_conversation(NULL, NULL, &second), TN_ERR_ARGUMENT);
    assert_int_equal(tn_llm_new_conversation(first, NULL, NULL), TN_ERR_ARGUMENT);
    tn_llm_close(first);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_module_in_evaluation_mode_serves_several_threads),
        cmocka_unit_test(a_policy_plays_for_several_threads),
        cmocka_unit_test(an_onnx_model_is_run_by_several_threads),
        cmocka_unit_test(an_embedder_serves_several_threads),
        cmocka_unit_test(a_second_conversation_costs_its_cache),
        cmocka_unit_test(conversations_do_not_see_each_other),
        cmocka_unit_test(each_thread_has_a_conversation),
        cmocka_unit_test(options_of_a_conversation_count),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
