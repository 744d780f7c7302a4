/* token.c — a language model of SmolLM2-135M's shape with random Q4_1 weights: how long a prompt and a token take, how
 * many commands their plans have, and what the host spends beside the kernels.
 *
 *   bench_token [prompt] [tokens]   sizes; 512 and 128
 *   bench_token explain             what the plan of a token does
 *
 * A token is a captured graph, launched with its number and its position, as a program that generates text would. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "trunnion/trunnion.h"

enum {
    LAYERS = 30,
    HIDDEN = 576,
    HEADS = 9,
    KV_HEADS = 3,
    WIDTH = 64,
    FEED = 1536,
    VOCABULARY = 49152,
    PAGES = 16,
    PAGE = 64
};
enum { BLOCK = 32, BLOCK_BYTES = 20, SCALE_HALF = 0x2C00, MINIMUM_HALF = 0xAC00 }; /* 1/16 and -1/16: values around 0 */

typedef struct layer {
    tn_tensor *norm_in, *q, *k, *v, *o, *norm_feed, *gate, *up, *down, *keys, *values;
} layer;

static struct {
    layer layers[LAYERS];
    tn_tensor *embedding, *norm_out, *pages, *frequencies;
} model;

static void check(tn_status status) {
    if (status == TN_OK) return;
    fprintf(stderr, "bench_token: %s\n", tn_error());
    exit(1);
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

static uint32_t noise(void) {
    static uint32_t state = 1;
    state = state * 1664525U + 1013904223U;
    return state >> 8;
}

static tn_tensor *weight(int64_t rows, int64_t columns) {
    size_t bytes = tn_dtype_bytes(TN_Q4_1, rows * columns);
    unsigned char *blocks = malloc(bytes);
    if (!blocks) exit(1);
    for (size_t i = 0; i < bytes; i++)
        blocks[i] = (unsigned char)noise();
    for (size_t i = 0; i < bytes; i += BLOCK_BYTES) {
        uint16_t halves[2] = {SCALE_HALF - 0x1400, MINIMUM_HALF};
        memcpy(blocks + i, halves, sizeof halves);
    }
    tn_tensor *w = tn_from_data(blocks, TN_DIMS(rows, columns), TN_Q4_1);
    free(blocks);
    return w;
}

static tn_tensor *kept(tn_tensor *t) {
    check(tn_eval(&t, 1));
    return t;
}

static tn_tensor *ones(int64_t n) { return kept(tn_contiguous(tn_ones(TN_DIMS(n), TN_F32))); }

static tn_tensor *cache(void) {
    tn_tensor *t = tn_contiguous(tn_zeros(TN_DIMS(PAGES, KV_HEADS, PAGE, WIDTH), TN_F16));
    check(tn_make_state(t));
    return t;
}

static void make_model(void) {
    int64_t pages[PAGES];
    for (int i = 0; i < PAGES; i++)
        pages[i] = i;
    for (int i = 0; i < LAYERS; i++)
        model.layers[i] = (layer){.norm_in = ones(HIDDEN),
                                  .q = weight(HEADS * WIDTH, HIDDEN),
                                  .k = weight(KV_HEADS * WIDTH, HIDDEN),
                                  .v = weight(KV_HEADS * WIDTH, HIDDEN),
                                  .o = weight(HIDDEN, HEADS * WIDTH),
                                  .norm_feed = ones(HIDDEN),
                                  .gate = weight(FEED, HIDDEN),
                                  .up = weight(FEED, HIDDEN),
                                  .down = weight(HIDDEN, FEED),
                                  .keys = cache(),
                                  .values = cache()};
    model.embedding = weight(VOCABULARY, HIDDEN);
    model.norm_out = ones(HIDDEN);
    model.pages = tn_from_data(pages, TN_DIMS(PAGES), TN_I64);
    model.frequencies = kept(tn_exp(tn_mul_scalar(tn_arange(0, WIDTH / 2, 1, TN_F32), -9.21 / (WIDTH / 2))));
}

static tn_tensor *norm(tn_tensor *x, tn_tensor *weight) {
    tn_rms_norm_options o = TN_RMS_NORM_DEFAULTS;
    o.eps = 1e-5;
    return tn_rms_norm(x, TN_DIMS(HIDDEN), weight, &o);
}

static tn_tensor *heads_of(tn_tensor *x, int64_t heads) { return tn_reshape(x, TN_DIMS(tn_size(x, 0), heads, WIDTH)); }

static tn_tensor *turned(tn_tensor *x, tn_tensor *cosine, tn_tensor *sine) {
    tn_rope_options o = TN_ROPE_DEFAULTS;
    o.interleaved = true;
    return tn_rope(x, cosine, sine, &o);
}

static tn_tensor *run_layer(const layer *l, tn_tensor *x, tn_tensor *position, tn_tensor *cosine, tn_tensor *sine) {
    int64_t n = tn_size(x, 0);
    tn_tensor *in = norm(x, l->norm_in);
    tn_tensor *q = tn_linear(in, l->q, NULL), *k = tn_linear(in, l->k, NULL),
              *v = heads_of(tn_linear(in, l->v, NULL), KV_HEADS);
    q = turned(heads_of(q, HEADS), cosine, sine);
    k = turned(heads_of(k, KV_HEADS), cosine, sine);
    tn_tensor *a = tn_cached_attention(q, k, v, l->keys, l->values, position, model.pages, NULL, NULL);
    tn_cache_append_(l->keys, k, position, model.pages);
    tn_cache_append_(l->values, v, position, model.pages);
    x = tn_add(x, tn_linear(tn_reshape(a, TN_DIMS(n, HIDDEN)), l->o, NULL));
    in = norm(x, l->norm_feed);
    tn_tensor *wide = tn_mul(tn_silu(tn_linear(in, l->gate, NULL)), tn_linear(in, l->up, NULL));
    return tn_add(x, tn_linear(wide, l->down, NULL));
}

/* Logits of the last token, [1, vocabulary]. What lies between is given up before anything is computed. */
static tn_tensor *forward(tn_tensor *ids, tn_tensor *position) {
    int64_t n = tn_size(ids, 0);
    tn_tensor *logits = NULL;
    TN_SCOPE;
    tn_tensor *places = tn_cast(tn_add(tn_arange(0, (double)n, 1, TN_I64), position), TN_F32);
    tn_tensor *angles = tn_mul(tn_unsqueeze(tn_unsqueeze(places, 1), 1), model.frequencies); /* [n, 1, half] */
    tn_tensor *cosine = tn_cos(angles), *sine = tn_sin(angles), *x = tn_embedding(ids, model.embedding);
    for (int i = 0; i < LAYERS; i++)
        x = run_layer(&model.layers[i], x, position, cosine, sine);
    if (n > 1) x = tn_slice(x, 0, n - 1, n, 1);
    logits = tn_keep(tn_linear(norm(x, model.norm_out), model.embedding, NULL));
    return logits;
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */

static float logits[VOCABULARY];

static double prompt_seconds(int64_t n) {
    double start = cli_now();
    {
        TN_SCOPE;
        int64_t ids[PAGES * PAGE];
        for (int64_t i = 0; i < n; i++)
            ids[i] = i * 97 % VOCABULARY;
        check(tn_read(forward(tn_from_data(ids, TN_DIMS(n), TN_I64), tn_runtime_scalar_int(0)), logits, sizeof logits));
    }
    return cli_now() - start;
}

static tn_graph *capture(void) {
    tn_graph *graph = NULL;
    TN_SCOPE;
    tn_tensor *id = tn_from_data((int64_t[]){1}, TN_DIMS(1), TN_I64);
    check(tn_capture_begin());
    tn_tensor *y = forward(id, tn_runtime_scalar_int(0));
    check(tn_capture_end(&id, 1, &y, 1, &graph));
    return graph;
}

static double token_seconds(tn_graph *graph, int64_t position) {
    double start = cli_now();
    {
        TN_SCOPE;
        tn_tensor *id = tn_from_data((int64_t[]){position * 31 % VOCABULARY}, TN_DIMS(1), TN_I64), *y = NULL;
        check(tn_graph_set_runtime_scalar(graph, 0, (double)position));
        check(tn_graph_launch(graph, &id, &y));
        check(tn_read(y, logits, sizeof logits));
    }
    return cli_now() - start;
}

static void explain(void) {
    char *text = tn_explain_last();
    if (text) puts(text);
    tn_text_free(text);
}

int main(int count, char **words) {
    bool explaining = count > 1 && strcmp(words[1], "explain") == 0;
    int64_t prompt = count > 1 && !explaining ? atoll(words[1]) : 512, tokens = count > 2 ? atoll(words[2]) : 128;
    if (prompt < 1 || tokens < 1 || prompt + tokens > PAGES * PAGE) return fprintf(stderr, "bench_token: sizes\n"), 1;
    make_model();
    double first = prompt_seconds(prompt);
    if (explaining) explain();
    tn_graph *graph = capture();
    if (explaining) explain();
    if (explaining) return 0;
    double again = prompt_seconds(prompt), third = prompt_seconds(prompt);
    again = third < again ? third : again;
    tn_runtime_stats s = {.struct_size = sizeof s};
    tn_reset_runtime_stats();
    static double seconds[PAGES * PAGE];
    double start = cli_now();
    for (int64_t i = 0; i < tokens; i++)
        seconds[i] = token_seconds(graph, prompt + i);
    double all = cli_now() - start;
    check(tn_get_runtime_stats(&s));
    times t = sorted(seconds, (int)tokens);
    printf("prompt of %lld: %.1f ms, %.0f tokens/s (the first time %.1f ms)\n", (long long)prompt, again * 1e3,
           (double)prompt / again, first * 1e3);
    printf("token: median %.3f ms, least %.3f ms, %.1f tokens/s; %lld commands; plans made %lld\n", t.median * 1e3,
           t.best * 1e3, (double)tokens / all, (long long)(s.launches / tokens), (long long)s.plans_made);
    printf("host: %.1f us a token (%.2f %%)\n", (all - s.run_seconds) / (double)tokens * 1e6,
           (all - s.run_seconds) / all * 100);
    tn_graph_free(graph);
    return 0;
}
