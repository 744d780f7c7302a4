/* test_llm_model.c — language models made for the test: every family computes what its definition says in f64, the same
 * bits come however a text is cut, a token makes no plan, and what a file has wrong is refused by name. */
#include "test_support.h"

#include <inttypes.h>
#include <math.h>

#include "far_driver.h"
#include "gguf_make.h"
#include "text/text_common.h"
#include "trunnion/llm.h"
#include "trunnion/ops.h"
#include "trunnion/text.h"

enum { F32 = 0, F16 = 1, Q8_0 = 8, F64 = 28, BLOCK = 32 };

/* ---- a small model ----------------------------------------------------------------------------------------------- */

typedef struct spec {
    const char *architecture;
    int64_t layers, hidden, heads, kv_heads, head_dim, intermediate, vocabulary, context, window;
    double base, factor; /* factor: of linear rope scaling; 0: none */
    bool biases, output_bias, head_norms, output, rope_factors;
    int type;                                 /* of matrices: the file's number */
    int64_t experts, choices, expert, shared; /* of a mixture: how many, and inner widths */
    bool whole_choice;                        /* what the chosen weigh adds up to 1 */
    /* Gemma's */
    bool post_norms, gelu;
    int64_t pattern; /* the last of so many layers has no window; 0: all have one */
    double attention_cap, final_cap, embedding_scale, local_base;
    /* how the file says it */
    enum { UNTOLD, TOLD, LISTED } told; /* the pattern, as a number or layer by layer */
    bool apart;                         /* experts have a tensor each */
} spec;

static const spec llama = {"llama", 2,     32, 4,     2,     8,     64,    48,    320,
                           0,       10000, 0,  false, false, false, false, false, .type = F32};

static const spec gemma2 = {.architecture = "gemma2",
                            .layers = 3,
                            .hidden = 32,
                            .heads = 4,
                            .kv_heads = 2,
                            .head_dim = 16,
                            .intermediate = 64,
                            .vocabulary = 48,
                            .context = 320,
                            .window = 9,
                            .base = 10000,
                            .post_norms = true,
                            .gelu = true,
                            .pattern = 2,
                            .attention_cap = 2,
                            .final_cap = 3,
                            .embedding_scale = 5.656854249492381};

static const spec qwen3moe = {.architecture = "qwen3moe",
                              .layers = 2,
                              .hidden = 32,
                              .heads = 4,
                              .kv_heads = 2,
                              .head_dim = 8,
                              .intermediate = 64,
                              .vocabulary = 48,
                              .context = 320,
                              .base = 10000,
                              .head_norms = true,
                              .experts = 7,
                              .choices = 3,
                              .expert = 32,
                              .whole_choice = true};

enum { MOST_TENSORS = 128 };

typedef struct matrix {
    char name[64];
    int rank;
    int64_t rows, columns; /* columns 1 for vectors: [rows]; rows of all experts */
    float *data;
} matrix;

typedef struct model {
    spec s;
    matrix weights[MOST_TENSORS];
    int count;
    uint64_t random;
} model;

static double uniform(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

/* Numbers around `middle`, as wide as keeps products near 1. */
static void add_weight(model *m, int rank, int64_t rows, int64_t columns, double middle, const char *name) {
    matrix *w = &m->weights[m->count++];
    assert_true(m->count <= MOST_TENSORS);
    *w = (matrix){.rank = rank, .rows = rows, .columns = columns};
    snprintf(w->name, sizeof w->name, "%s", name);
    w->data = malloc((size_t)(rows * columns) * sizeof *w->data);
    assert_non_null(w->data);
    double width = rank >= 2 ? 2 / sqrt((double)columns) : 0.3;
    for (int64_t i = 0; i < rows * columns; i++)
        w->data[i] = (float)(middle + width * (2 * uniform(&m->random) - 1));
    /* What the type can hold exactly. */
    double step = m->s.type == F16 ? 0x1p-10 : 0x1p-6;
    for (int64_t i = 0; i < rows * columns && rank >= 2 && m->s.type != F32; i++)
        w->data[i] = (float)(round((double)w->data[i] / step) * step);
}

static void add_layer_weight(model *m, int64_t layer, int rank, int64_t rows, int64_t columns, double middle,
                             const char *what) {
    char name[64];
    snprintf(name, sizeof name, "blk.%" PRId64 ".%s", layer, what);
    add_weight(m, rank, rows, columns, middle, name);
}

static void add_mixture(model *m, int64_t i) {
    const spec *s = &m->s;
    add_layer_weight(m, i, 2, s->experts, s->hidden, 0, "ffn_gate_inp.weight");
    add_layer_weight(m, i, 3, s->experts * s->expert, s->hidden, 0, "ffn_gate_exps.weight");
    add_layer_weight(m, i, 3, s->experts * s->expert, s->hidden, 0, "ffn_up_exps.weight");
    add_layer_weight(m, i, 3, s->experts * s->hidden, s->expert, 0, "ffn_down_exps.weight");
    if (!s->shared) return;
    add_layer_weight(m, i, 1, s->hidden, 1, 0, "ffn_gate_inp_shexp.weight");
    add_layer_weight(m, i, 2, s->shared, s->hidden, 0, "ffn_gate_shexp.weight");
    add_layer_weight(m, i, 2, s->shared, s->hidden, 0, "ffn_up_shexp.weight");
    add_layer_weight(m, i, 2, s->hidden, s->shared, 0, "ffn_down_shexp.weight");
}

static void add_layer(model *m, int64_t i) {
    const spec *s = &m->s;
    int64_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    add_layer_weight(m, i, 1, s->hidden, 1, 1, "attn_norm.weight");
    add_layer_weight(m, i, 2, q, s->hidden, 0, "attn_q.weight");
    add_layer_weight(m, i, 2, kv, s->hidden, 0, "attn_k.weight");
    add_layer_weight(m, i, 2, kv, s->hidden, 0, "attn_v.weight");
    add_layer_weight(m, i, 2, s->hidden, q, 0, "attn_output.weight");
    add_layer_weight(m, i, 1, s->hidden, 1, 1, "ffn_norm.weight");
    if (s->experts) {
        add_mixture(m, i);
    } else {
        add_layer_weight(m, i, 2, s->intermediate, s->hidden, 0, "ffn_gate.weight");
        add_layer_weight(m, i, 2, s->intermediate, s->hidden, 0, "ffn_up.weight");
        add_layer_weight(m, i, 2, s->hidden, s->intermediate, 0, "ffn_down.weight");
    }
    if (s->biases) {
        add_layer_weight(m, i, 1, q, 1, 0, "attn_q.bias");
        add_layer_weight(m, i, 1, kv, 1, 0, "attn_k.bias");
        add_layer_weight(m, i, 1, kv, 1, 0, "attn_v.bias");
    }
    if (s->output_bias) add_layer_weight(m, i, 1, s->hidden, 1, 0, "attn_output.bias");
    if (s->head_norms) {
        add_layer_weight(m, i, 1, s->head_dim, 1, 1, "attn_q_norm.weight");
        add_layer_weight(m, i, 1, s->head_dim, 1, 1, "attn_k_norm.weight");
    }
    if (s->post_norms) {
        add_layer_weight(m, i, 1, s->hidden, 1, 1, "post_attention_norm.weight");
        add_layer_weight(m, i, 1, s->hidden, 1, 1, "post_ffw_norm.weight");
    }
}

static void make_model(model *m, const spec *s) {
    *m = (model){.s = *s, .random = 7};
    add_weight(m, 2, s->vocabulary, s->hidden, 0, "token_embd.weight");
    for (int64_t i = 0; i < s->layers; i++)
        add_layer(m, i);
    add_weight(m, 1, s->hidden, 1, 1, "output_norm.weight");
    if (s->output) add_weight(m, 2, s->vocabulary, s->hidden, 0, "output.weight");
    if (s->rope_factors) add_weight(m, 1, s->head_dim / 2, 1, 2, "rope_freqs.weight");
}

static void free_model(model *m) {
    for (int i = 0; i < m->count; i++)
        free(m->weights[i].data);
}

static float *data_of(const model *m, int64_t layer, const char *what) {
    char name[64];
    if (layer < 0)
        snprintf(name, sizeof name, "%s", what);
    else
        snprintf(name, sizeof name, "blk.%" PRId64 ".%s", layer, what);
    for (int i = 0; i < m->count; i++)
        if (strcmp(m->weights[i].name, name) == 0) return m->weights[i].data;
    return NULL;
}

/* ---- as a file --------------------------------------------------------------------------------------------------- */

/* One thing to get wrong: a key to leave out or change, a number to give it; a tensor to leave out; an extra pair. */
typedef struct fault {
    const char *key, *without;
    uint32_t value;
    bool absent, extra_tensor;
    float real; /* where the key's value is one */
} fault;

typedef struct pairs {
    gguf_make bytes;
    uint64_t count;
    const fault *wrong;
    const char *architecture;
} pairs;

static void put_u32(pairs *p, const char *what, int64_t value) {
    char key[96];
    snprintf(key, sizeof key, "%s.%s", p->architecture, what);
    bool hit = p->wrong->key && strcmp(p->wrong->key, what) == 0;
    if (hit && p->wrong->absent) return;
    make_key_u32(&p->bytes, key, hit ? p->wrong->value : (uint32_t)value);
    p->count++;
}

static void put_f32(pairs *p, const char *what, double value) {
    char key[96];
    snprintf(key, sizeof key, "%s.%s", p->architecture, what);
    bool hit = p->wrong->key && strcmp(p->wrong->key, what) == 0;
    make_key_f32(&p->bytes, key, hit ? p->wrong->real : (float)value);
    p->count++;
}

static void put_windows(pairs *p, const spec *s) {
    char key[96];
    bool hit = p->wrong->key && strcmp(p->wrong->key, "windows") == 0;
    uint64_t count = hit ? p->wrong->value : (uint64_t)s->layers;
    snprintf(key, sizeof key, "%s.attention.sliding_window_pattern", s->architecture);
    make_key_array(&p->bytes, key, TN_GGUF_BOOL, count);
    for (uint64_t i = 0; i < count; i++)
        make_number(&p->bytes, i % (uint64_t)s->pattern != (uint64_t)s->pattern - 1, 1);
    p->count++;
}

static void put_pairs(pairs *p, const spec *s) {
    make_key_text(&p->bytes, "general.architecture", s->architecture);
    make_key_text(&p->bytes, "general.name", "made");
    p->count += 2;
    put_u32(p, "block_count", s->layers);
    put_u32(p, "embedding_length", s->hidden);
    put_u32(p, "feed_forward_length", s->intermediate);
    put_u32(p, "context_length", s->context);
    put_u32(p, "attention.head_count", s->heads);
    put_u32(p, "attention.head_count_kv", s->kv_heads);
    put_u32(p, "attention.key_length", s->head_dim);
    put_u32(p, "attention.value_length", s->head_dim);
    if (s->window) put_u32(p, "attention.sliding_window", s->window);
    put_f32(p, "attention.layer_norm_rms_epsilon", 1e-5);
    put_f32(p, "rope.freq_base", s->base);
    if (s->attention_cap > 0) put_f32(p, "attn_logit_softcapping", s->attention_cap);
    if (s->final_cap > 0) put_f32(p, "final_logit_softcapping", s->final_cap);
    bool says = p->wrong->key && strcmp(p->wrong->key, "attention.sliding_window_pattern") == 0;
    if (says || s->told == TOLD) put_u32(p, "attention.sliding_window_pattern", s->pattern);
    if (s->told == LISTED) put_windows(p, s);
    if (s->factor > 0) {
        char key[96];
        snprintf(key, sizeof key, "%s.rope.scaling.type", s->architecture);
        make_key_text(&p->bytes, key, "linear");
        p->count++;
        put_f32(p, "rope.scaling.factor", s->factor);
    }
    says = p->wrong->key && strcmp(p->wrong->key, "expert_count") == 0;
    if (s->experts || says) put_u32(p, "expert_count", s->experts);
    if (s->experts) put_u32(p, "expert_used_count", s->choices);
    if (s->experts && s->expert != s->intermediate) put_u32(p, "expert_feed_forward_length", s->expert);
    if (s->shared) put_u32(p, "expert_shared_feed_forward_length", s->shared);
    if (p->wrong->key && strcmp(p->wrong->key, "expert_weights_scale") == 0) put_f32(p, p->wrong->key, 1);
    if (p->wrong->key && strcmp(p->wrong->key, "split") == 0) {
        make_key_u32(&p->bytes, "split.count", p->wrong->value);
        p->count++;
    }
}

static bool is_left_out(const fault *wrong, const char *name) {
    return wrong->without && strcmp(wrong->without, name) == 0;
}

/* The bits of a number that half precision holds exactly. */
static uint16_t half_of(float v) {
    int exponent;
    double part = frexp(fabs((double)v), &exponent);
    if (part == 0) return 0;
    unsigned bits = (unsigned)(exponent - 1 + 15) << 10 | (unsigned)((2 * part - 1) * 1024);
    return (uint16_t)(v < 0 ? bits | 0x8000u : bits);
}

static int type_of(const model *m, const matrix *w) { return w->rank >= 2 ? m->s.type : F32; }

static uint64_t bytes_of(const model *m, const matrix *w) {
    uint64_t count = (uint64_t)(w->rows * w->columns);
    if (type_of(m, w) == Q8_0) return count / BLOCK * (BLOCK + 2);
    return count * (type_of(m, w) == F16 ? 2 : type_of(m, w) == F64 ? 8 : 4);
}

static void put_data(gguf_make *g, const model *m, const matrix *w) {
    int type = type_of(m, w);
    for (int64_t i = 0; i < w->rows * w->columns; i++) {
        if (type == Q8_0 && i % BLOCK == 0) make_number(g, half_of(0x1p-6F), 2);
        if (type == Q8_0)
            make_number(g, (uint64_t)(int64_t)(w->data[i] * 64), 1);
        else if (type == F16)
            make_number(g, half_of(w->data[i]), 2);
        else if (type == F64)
            make_number(g, 0, 8);
        else
            make_f32(g, w->data[i]);
    }
}

/* "blk.0.ffn_up_exps.weight" as "blk.0.ffn_up.0.weight" and so on; bytes follow each other in either case. */
static void make_tensors_apart(gguf_make *g, const model *m, const matrix *w, uint64_t place) {
    uint64_t dims[2] = {(uint64_t)w->columns, (uint64_t)(w->rows / m->s.experts)};
    uint64_t bytes = bytes_of(m, w) / (uint64_t)m->s.experts;
    const char *middle = strstr(w->name, "_exps");
    assert_true(middle && bytes % 32 == 0);
    for (int64_t e = 0; e < m->s.experts; e++) {
        char name[64];
        snprintf(name, sizeof name, "%.*s.%" PRId64 "%s", (int)(middle - w->name), w->name, e, middle + 5);
        make_tensor(g, name, 2, dims, (uint32_t)type_of(m, w), place + (uint64_t)e * bytes);
    }
}

static uint64_t count_tensors(const model *m) {
    uint64_t count = (uint64_t)m->count;
    for (int i = 0; i < m->count; i++)
        if (m->s.apart && m->weights[i].rank == 3) count += (uint64_t)m->s.experts - 1;
    return count;
}

static void put_tensors(gguf_make *g, const model *m, const fault *wrong) {
    uint64_t place = 0;
    for (int i = 0; i < m->count; i++) {
        const matrix *w = &m->weights[i];
        uint64_t dims[3] = {(uint64_t)(w->rank >= 2 ? w->columns : w->rows), (uint64_t)w->rows, (uint64_t)m->s.experts};
        if (w->rank == 3) dims[1] /= dims[2];
        if (is_left_out(wrong, w->name)) continue;
        if (m->s.apart && w->rank == 3)
            make_tensors_apart(g, m, w, place);
        else
            make_tensor(g, w->name, w->rank, dims, (uint32_t)type_of(m, w), place);
        place += (bytes_of(m, w) + 31) / 32 * 32;
    }
    if (wrong->extra_tensor) make_tensor(g, "blk.0.ffn_gate_inp.weight", 0, NULL, 0, place);
    for (int i = 0; i < m->count; i++) {
        const matrix *w = &m->weights[i];
        if (is_left_out(wrong, w->name)) continue;
        make_padding(g, 32);
        put_data(g, m, w);
    }
    make_padding(g, 32);
    make_number(g, 0, 32);
}

static const char *write_model(const model *m, const fault *wrong, const char *name) {
    static const fault none;
    gguf_make g = {0};
    pairs p = {.wrong = wrong ? wrong : &none, .architecture = m->s.architecture};
    put_pairs(&p, &m->s);
    make_head(&g, count_tensors(m) - (p.wrong->without != NULL) + p.wrong->extra_tensor, p.count);
    make_bytes(&g, p.bytes.data, p.bytes.size);
    put_tensors(&g, m, p.wrong);
    const char *path = test_scratch(name);
    assert_int_equal(make_write(&g, path), 0);
    make_free(&g);
    make_free(&p.bytes);
    return path;
}

/* ---- the definition, in f64 -------------------------------------------------------------------------------------- */

static void ref_norm(const double *x, const float *weight, int64_t n, double *out) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    double scale = 1 / sqrt(sum / (double)n + (double)1e-5F);
    for (int64_t i = 0; i < n; i++)
        out[i] = x[i] * scale * (double)weight[i];
}

static void ref_linear(const double *x, const float *weight, const float *bias, int64_t rows, int64_t columns,
                       double *out) {
    for (int64_t r = 0; r < rows; r++) {
        out[r] = bias ? (double)bias[r] : 0;
        for (int64_t c = 0; c < columns; c++)
            out[r] += x[c] * (double)weight[r * columns + c];
    }
}

static bool is_local(const spec *s, int64_t layer) {
    return s->window && (s->pattern == 0 || layer % s->pattern < s->pattern - 1);
}

static void ref_rope(const model *m, double base, double *head, int64_t position) {
    int64_t half = m->s.head_dim / 2;
    const float *factors = data_of(m, -1, "rope_freqs.weight");
    bool neighbours = strcmp(m->s.architecture, "llama") == 0;
    for (int64_t i = 0; i < half; i++) {
        double angle = (double)position * pow(base, -(double)i / (double)half);
        if (factors) angle /= (double)factors[i];
        if (m->s.factor > 0) angle /= m->s.factor;
        int64_t a = neighbours ? 2 * i : i, b = neighbours ? 2 * i + 1 : i + half;
        double x = head[a], y = head[b];
        head[a] = x * cos(angle) - y * sin(angle);
        head[b] = x * sin(angle) + y * cos(angle);
    }
}

/* Projects, normalises by head and turns: out [heads · head_dim]. */
static void ref_heads(const model *m, const double *x, int64_t layer, const char *which, int64_t heads,
                      int64_t position, double *out) {
    char name[32];
    int64_t width = m->s.head_dim;
    snprintf(name, sizeof name, "attn_%s.weight", which);
    const float *weight = data_of(m, layer, name);
    snprintf(name, sizeof name, "attn_%s.bias", which);
    ref_linear(x, weight, data_of(m, layer, name), heads * width, m->s.hidden, out);
    snprintf(name, sizeof name, "attn_%s_norm.weight", which);
    const float *norm = data_of(m, layer, name);
    for (int64_t h = 0; h < heads && strcmp(which, "v") != 0; h++) {
        if (norm) ref_norm(out + h * width, norm, width, out + h * width);
        ref_rope(m, m->s.local_base > 0 && is_local(&m->s, layer) ? m->s.local_base : m->s.base, out + h * width,
                 position);
    }
}

static double ref_bend(double x, double cap) { return cap > 0 ? cap * tanh(x / cap) : x; }

static void ref_attend(const spec *s, const double *q, const double *k, const double *v, int64_t layer, int64_t at,
                       double *out) {
    int64_t width = s->head_dim, kv = s->kv_heads * width;
    int64_t first = is_local(s, layer) && at >= s->window ? at - s->window + 1 : 0;
    double *share = malloc((size_t)(at + 1) * sizeof *share);
    for (int64_t h = 0; h < s->heads; h++) {
        int64_t shared = h / (s->heads / s->kv_heads) * width;
        double total = 0, most = -INFINITY;
        for (int64_t j = first; j <= at; j++) {
            share[j] = 0;
            for (int64_t d = 0; d < width; d++)
                share[j] += q[h * width + d] * k[j * kv + shared + d] / sqrt((double)width);
            share[j] = ref_bend(share[j], s->attention_cap);
            most = fmax(most, share[j]);
        }
        for (int64_t j = first; j <= at; j++)
            total += share[j] = exp(share[j] - most);
        for (int64_t d = 0; d < width; d++) {
            out[h * width + d] = 0;
            for (int64_t j = first; j <= at; j++)
                out[h * width + d] += share[j] / total * v[j * kv + shared + d];
        }
    }
    free(share);
}

/* y += by · down(silu(gate x) · up x), with the matrices of one expert. */
static void ref_gated(const double *x, const float *gate, const float *up, const float *down, int64_t hidden,
                      int64_t inner, double by, double *y) {
    double *g = malloc((size_t)(2 * inner + hidden) * sizeof *g), *u = g + inner, *made = u + inner;
    ref_linear(x, gate, NULL, inner, hidden, g);
    ref_linear(x, up, NULL, inner, hidden, u);
    for (int64_t i = 0; i < inner; i++)
        u[i] *= g[i] / (1 + exp(-g[i]));
    ref_linear(u, down, NULL, hidden, inner, made);
    for (int64_t i = 0; i < hidden; i++)
        y[i] += by * made[i];
    free(g);
}

static void ref_mixture(const model *m, int64_t layer, const double *x, double *y) {
    const spec *s = &m->s;
    double *likes = malloc((size_t)s->experts * sizeof *likes), total = 0, taken = 0, wish = 0;
    bool *used = calloc((size_t)s->experts, sizeof *used);
    ref_linear(x, data_of(m, layer, "ffn_gate_inp.weight"), NULL, s->experts, s->hidden, likes);
    for (int64_t e = 0; e < s->experts; e++)
        total += likes[e] = exp(likes[e]);
    for (int64_t i = 0; i < s->choices; i++) {
        int64_t best = -1;
        for (int64_t e = 0; e < s->experts; e++)
            if (!used[e] && (best < 0 || likes[e] > likes[best])) best = e;
        used[best] = true;
        taken += likes[best];
    }
    memset(y, 0, (size_t)s->hidden * sizeof *y);
    for (int64_t e = 0, size = s->expert * s->hidden; e < s->experts; e++)
        if (used[e])
            ref_gated(x, data_of(m, layer, "ffn_gate_exps.weight") + e * size,
                      data_of(m, layer, "ffn_up_exps.weight") + e * size,
                      data_of(m, layer, "ffn_down_exps.weight") + e * size, s->hidden, s->expert,
                      likes[e] / (s->whole_choice ? taken : total), y);
    if (s->shared) {
        ref_linear(x, data_of(m, layer, "ffn_gate_inp_shexp.weight"), NULL, 1, s->hidden, &wish);
        ref_gated(x, data_of(m, layer, "ffn_gate_shexp.weight"), data_of(m, layer, "ffn_up_shexp.weight"),
                  data_of(m, layer, "ffn_down_shexp.weight"), s->hidden, s->shared, 1 / (1 + exp(-wish)), y);
    }
    free(used);
    free(likes);
}

static double ref_gelu(double x) {
    return x / 2 * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

static void ref_layer(const model *m, int64_t layer, double *x, int64_t n) {
    const spec *s = &m->s;
    int64_t q_width = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    double *h = calloc((size_t)(s->hidden + 2 * q_width + 2 * s->intermediate), sizeof *h);
    double *q = h + s->hidden, *mixed = q + q_width, *gate = mixed + q_width, *up = gate + s->intermediate;
    double *k = calloc((size_t)(2 * n * kv), sizeof *k), *v = k + n * kv;
    for (int64_t t = 0; t < n; t++) {
        double *row = x + t * s->hidden;
        ref_norm(row, data_of(m, layer, "attn_norm.weight"), s->hidden, h);
        ref_heads(m, h, layer, "q", s->heads, t, q);
        ref_heads(m, h, layer, "k", s->kv_heads, t, k + t * kv);
        ref_heads(m, h, layer, "v", s->kv_heads, t, v + t * kv);
        ref_attend(s, q, k, v, layer, t, mixed);
        ref_linear(mixed, data_of(m, layer, "attn_output.weight"), data_of(m, layer, "attn_output.bias"), s->hidden,
                   q_width, h);
        if (s->post_norms) ref_norm(h, data_of(m, layer, "post_attention_norm.weight"), s->hidden, h);
        for (int64_t i = 0; i < s->hidden; i++)
            row[i] += h[i];
        ref_norm(row, data_of(m, layer, "ffn_norm.weight"), s->hidden, h);
        if (s->experts) {
            ref_mixture(m, layer, h, mixed);
            memcpy(h, mixed, (size_t)s->hidden * sizeof *h);
        } else {
            ref_linear(h, data_of(m, layer, "ffn_gate.weight"), NULL, s->intermediate, s->hidden, gate);
            ref_linear(h, data_of(m, layer, "ffn_up.weight"), NULL, s->intermediate, s->hidden, up);
            for (int64_t i = 0; i < s->intermediate; i++)
                up[i] *= s->gelu ? ref_gelu(gate[i]) : gate[i] / (1 + exp(-gate[i]));
            ref_linear(up, data_of(m, layer, "ffn_down.weight"), NULL, s->hidden, s->intermediate, h);
        }
        if (s->post_norms) ref_norm(h, data_of(m, layer, "post_ffw_norm.weight"), s->hidden, h);
        for (int64_t i = 0; i < s->hidden; i++)
            row[i] += h[i];
    }
    free(h);
    free(k);
}

static void ref_logits(const model *m, const int32_t *ids, int64_t n, double *out) {
    const spec *s = &m->s;
    const float *embedding = data_of(m, -1, "token_embd.weight"), *output = data_of(m, -1, "output.weight");
    double *x = calloc((size_t)((n + 1) * s->hidden), sizeof *x), *h = x + n * s->hidden;
    for (int64_t i = 0; i < n * s->hidden; i++)
        x[i] = (double)embedding[ids[i / s->hidden] * s->hidden + i % s->hidden] *
               (s->embedding_scale > 0 ? s->embedding_scale : 1);
    for (int64_t layer = 0; layer < s->layers; layer++)
        ref_layer(m, layer, x, n);
    for (int64_t t = 0; t < n; t++) {
        ref_norm(x + t * s->hidden, data_of(m, -1, "output_norm.weight"), s->hidden, h);
        ref_linear(h, output ? output : embedding, NULL, s->vocabulary, s->hidden, out + t * s->vocabulary);
        for (int64_t i = 0; i < s->vocabulary; i++)
            out[t * s->vocabulary + i] = ref_bend(out[t * s->vocabulary + i], s->final_cap);
    }
    free(x);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static void fill_ids(int32_t *ids, int64_t n, int64_t vocabulary) {
    for (int64_t i = 0; i < n; i++)
        ids[i] = (int32_t)((i * i * 7 + i * 3 + 1) % vocabulary);
}

static tn_llm *open_with_caches(const char *path, tn_llm_cache keys, tn_llm_cache values) {
    tn_llm *llm = NULL;
    tn_llm_options o = TN_LLM_DEFAULTS;
    o.cache = keys;
    o.value_cache = values;
    assert_ok(tn_llm_open(path, &o, &llm));
    return llm;
}

static tn_llm *open_llm(const char *path, tn_llm_cache cache) {
    return open_with_caches(path, cache, TN_LLM_CACHE_SAME);
}

/* How far logits are from the definition: at most, as a part of 1 + their size; and root mean square by theirs. */
typedef struct distance {
    double most, mean;
} distance;

static distance distance_with_caches(const spec *s, tn_llm_cache keys, tn_llm_cache values) {
    enum { TOKENS = 100 };
    model m;
    int32_t ids[TOKENS];
    make_model(&m, s);
    fill_ids(ids, TOKENS, s->vocabulary);
    double *want = calloc((size_t)(TOKENS * s->vocabulary), sizeof *want);
    float *got = calloc((size_t)(TOKENS * s->vocabulary), sizeof *got);
    ref_logits(&m, ids, TOKENS, want);
    tn_llm *llm = open_with_caches(write_model(&m, NULL, "family.gguf"), keys, values);
    assert_ok(tn_llm_logits(llm, ids, TOKENS, got));
    assert_int_equal(tn_llm_position(llm), TOKENS);
    double most = 0, errors = 0, squares = 0;
    for (int64_t i = 0; i < TOKENS * s->vocabulary; i++) {
        double error = fabs((double)got[i] - want[i]);
        most = isnan(error) ? INFINITY : fmax(most, error / (1 + fabs(want[i])));
        errors += error * error;
        squares += want[i] * want[i];
    }
    tn_llm_close(llm);
    free(want);
    free(got);
    free_model(&m);
    return (distance){most, sqrt(errors / squares)};
}

static distance distance_from_definition(const spec *s, tn_llm_cache cache) {
    return distance_with_caches(s, cache, TN_LLM_CACHE_SAME);
}

/* Logits are about 1; each comes through some hundred f32 roundings, and half precision of keys and values where
 * asked. */
static void compare_with_definition(const spec *s, tn_llm_cache cache, double tolerance) {
    distance d = distance_from_definition(s, cache);
    if (!(d.most <= tolerance))
        fail_msg("%s, type %d: a logit is %g from the definition", s->architecture, s->type, d.most);
}

static void families_compute_what_they_are_defined_as(void **state) {
    (void)state;
    spec s = llama;
    compare_with_definition(&s, TN_LLM_CACHE_F32, 5e-5);
    compare_with_definition(&s, TN_LLM_CACHE_F16, 5e-3);
    compare_with_definition(&s, TN_LLM_CACHE_BF16, 4e-2);
    s.output = s.rope_factors = s.biases = s.output_bias = true;
    compare_with_definition(&s, TN_LLM_CACHE_F32, 5e-5);
    s = llama;
    s.factor = 4;
    s.window = 17;
    compare_with_definition(&s, TN_LLM_CACHE_F32, 5e-5);
    s = (spec){"qwen2", 3, 48, 3, 1, 16, 80, 50, 300, 0, 1e6, 0, true, false, false, true, false, .type = F32};
    compare_with_definition(&s, TN_LLM_CACHE_F32, 5e-5);
    s = (spec){"qwen3", 2, 32, 4, 2, 16, 64, 48, 300, 0, 1e6, 0, false, false, true, false, false, .type = F32};
    compare_with_definition(&s, TN_LLM_CACHE_F32, 5e-5);
}

/* Layers with a window and without, caps, norms behind attention and feed-forward; of Gemma 3 a second base of rope. */
static void gemmas_compute_what_they_are_defined_as(void **state) {
    (void)state;
    spec s = gemma2;
    compare_with_definition(&s, TN_LLM_CACHE_F32, 5e-5);
    s.architecture = "gemma3";
    s.layers = 7;
    s.head_norms = true;
    s.pattern = 6;
    s.attention_cap = s.final_cap = 0;
    s.base = 1000;
    s.local_base = 10000;
    compare_with_definition(&s, TN_LLM_CACHE_F32, 2e-4); /* through twice the layers */
    s.window = 0;
    s.local_base = 0;
    compare_with_definition(&s, TN_LLM_CACHE_F32, 2e-4);
    s = gemma2;
    s.layers = 4;
    s.pattern = 3;
    s.told = TOLD;
    compare_with_definition(&s, TN_LLM_CACHE_F32, 1e-4);
    s.told = LISTED;
    compare_with_definition(&s, TN_LLM_CACHE_F32, 1e-4);
    s = (spec){.architecture = "gemma",
               .layers = 2,
               .hidden = 32,
               .heads = 4,
               .kv_heads = 1,
               .head_dim = 16,
               .intermediate = 64,
               .vocabulary = 48,
               .context = 320,
               .base = 10000,
               .gelu = true,
               .embedding_scale = 5.656854249492381};
    compare_with_definition(&s, TN_LLM_CACHE_F32, 5e-5);
}

static void numbers_of_gemma_that_are_none_are_refused(void **state) {
    (void)state;
    static const struct {
        fault wrong;
        const char *reason;
    } rows[] = {
        {{.key = "attention.sliding_window", .value = UINT32_MAX}, "'gemma2.attention.sliding_window' is "},
        {{.key = "attention.sliding_window_pattern", .value = 0}, "'gemma2.attention.sliding_window_pattern' is 0"},
        {{.key = "attn_logit_softcapping", .real = NAN}, "'gemma2.attn_logit_softcapping' is"},
        {{.key = "attn_logit_softcapping", .real = -1}, "'gemma2.attn_logit_softcapping' is -1"},
        {{.key = "final_logit_softcapping", .real = INFINITY}, "'gemma2.final_logit_softcapping' is inf"},
        {{.without = "blk.1.post_ffw_norm.weight"}, "no tensor 'blk.1.post_ffw_norm.weight'"}};
    model m;
    make_model(&m, &gemma2);
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        tn_llm *llm = NULL;
        if (tn_llm_open(write_model(&m, &rows[i].wrong, "wrong.gguf"), NULL, &llm) == TN_OK)
            fail_msg("a model that should be refused for \"%s\" was opened", rows[i].reason);
        assert_text_has(tn_error(), rows[i].reason);
    }
    free_model(&m);
    spec listed = gemma2;
    listed.told = LISTED;
    make_model(&m, &listed);
    tn_llm *llm = NULL;
    const fault shorter = {.key = "windows", .value = 2};
    assert_int_equal(tn_llm_open(write_model(&m, &shorter, "wrong.gguf"), NULL, &llm), TN_ERR_FORMAT);
    assert_text_has(tn_error(), "has 2 elements, but the model has 3 layers");
    free_model(&m);
}

static void mixtures_compute_what_they_are_defined_as(void **state) {
    (void)state;
    spec s = qwen3moe;
    compare_with_definition(&s, TN_LLM_CACHE_F32, 5e-5);
    s.type = F16;
    compare_with_definition(&s, TN_LLM_CACHE_F32, 5e-5);
    s = qwen3moe;
    s.architecture = "qwen2moe";
    s.head_norms = s.whole_choice = false;
    s.biases = true;
    s.shared = 48;
    compare_with_definition(&s, TN_LLM_CACHE_F32, 5e-5);
    s = llama; /* Mixtral */
    s.experts = 4;
    s.choices = 2;
    s.expert = s.intermediate;
    s.whole_choice = true;
    compare_with_definition(&s, TN_LLM_CACHE_F32, 5e-5);
    s.apart = true;
    compare_with_definition(&s, TN_LLM_CACHE_F32, 5e-5);
    s.type = F16;
    compare_with_definition(&s, TN_LLM_CACHE_F32, 5e-5);
    s.choices = 4;
    s.type = Q8_0; /* all experts: what is rounded must not decide which ones a token has */
    distance d = distance_from_definition(&s, TN_LLM_CACHE_F32);
    if (!(d.mean <= 3e-2)) fail_msg("a mixture in Q8_0: the logits are %g of their size from the definition", d.mean);
}

/* A token reads the experts that it chose, which here are three of seven. */
static void of_a_mixture_a_token_reads_what_it_chose(void **state) {
    (void)state;
    for (int apart = 0; apart < 2; apart++) {
        model m;
        spec s = qwen3moe;
        tn_llm_facts facts = {.struct_size = sizeof facts};
        s.apart = apart;
        make_model(&m, &s);
        assert_ok(tn_llm_inspect_path(write_model(&m, NULL, "facts.gguf"), NULL, &facts));
        int64_t expert = 3 * s.expert * s.hidden * (int64_t)sizeof(float);
        assert_int_equal(facts.weights_bytes - facts.token_bytes, s.layers * (s.experts - s.choices) * expert);
        free_model(&m);
    }
}

static void mixtures_that_cannot_be_are_refused(void **state) {
    (void)state;
    static const struct {
        fault wrong;
        const char *reason;
    } rows[] = {{{.key = "expert_count", .absent = true}, "has 0 experts and uses 3 per token"},
                {{.key = "expert_count", .value = 2}, "has 2 experts and uses 3 per token"},
                {{.key = "expert_count", .value = UINT32_MAX}, "experts and uses 3 per token"},
                {{.key = "expert_count", .value = 8}, "'blk.0.ffn_gate_inp.weight' has 2 dimensions, [7, 32]"},
                {{.key = "expert_used_count", .value = 0}, "uses 0 per token"},
                {{.key = "expert_weights_scale", .real = INFINITY}, "'qwen3moe.expert_weights_scale' is inf"},
                {{.key = "expert_used_count", .value = 8}, "has 7 experts and uses 8 per token"},
                {{.key = "expert_feed_forward_length", .value = 16},
                 "has 3 dimensions, [7, 32, 32]; according to the metadata it "
                 "must have 3, [7, 16, 32]"},
                {{.without = "blk.1.ffn_up_exps.weight"}, "no tensor 'blk.1.ffn_up_exps.weight'"}};
    model m;
    spec s = qwen3moe;
    s.intermediate = 80; /* so that the width of an expert is said */
    make_model(&m, &s);
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        tn_llm *llm = NULL;
        if (tn_llm_open(write_model(&m, &rows[i].wrong, "wrong.gguf"), NULL, &llm) == TN_OK)
            fail_msg("a model that should be refused for \"%s\" was opened", rows[i].reason);
        assert_text_has(tn_error(), rows[i].reason);
    }
    free_model(&m);
}

/* Activations are rounded to 8 bits before each product with blocks, to a 127th of the largest of 32: that is half a
 * percent of their root mean square, nine times on a token's way through two layers, so about 1.5 % together. */
static void weights_of_other_types_are_what_they_stand_for(void **state) {
    (void)state;
    spec s = llama;
    s.type = F16;
    compare_with_definition(&s, TN_LLM_CACHE_F32, 5e-5);
    s.type = Q8_0;
    distance d = distance_from_definition(&s, TN_LLM_CACHE_F32);
    if (!(d.mean <= 3e-2)) fail_msg("Q8_0: the logits are %g of their size from the definition", d.mean);
}

/* What a token's logits are does not depend on how the text before it came. */
static void check_cuts(const spec *s) {
    enum { TOKENS = 200 };
    static const int64_t cuts[][5] = {{200}, {1, 63, 5, 81, 50}, {64, 64, 72}, {199, 1}};
    model m;
    int32_t ids[TOKENS];
    make_model(&m, s);
    fill_ids(ids, TOKENS, s->vocabulary);
    tn_llm *llm = open_llm(write_model(&m, NULL, "cuts.gguf"), TN_LLM_CACHE_F16);
    size_t width = (size_t)s->vocabulary;
    float *all = calloc(TOKENS * width, sizeof *all);
    const float *logits;
    assert_ok(tn_llm_logits(llm, ids, TOKENS, all));
    for (size_t i = 0; i < TN_COUNT(cuts); i++) {
        assert_ok(tn_llm_rewind(llm, 0));
        for (int64_t done = 0, k = 0; done < TOKENS; done += cuts[i][k++])
            assert_ok(tn_llm_prompt(llm, ids + done, cuts[i][k], &logits));
        assert_memory_equal(logits, all + (TOKENS - 1) * width, width * sizeof *all);
    }
    assert_ok(tn_llm_rewind(llm, 0));
    assert_ok(tn_llm_prepare(llm));
    assert_int_equal(tn_llm_position(llm), 0);
    for (int i = 0; i < TOKENS; i++) {
        assert_ok(tn_llm_step(llm, ids[i], &logits));
        assert_memory_equal(logits, all + (size_t)i * width, width * sizeof *all);
    }
    assert_memory_equal(tn_llm_tokens(llm), ids, sizeof ids);
    assert_int_equal(tn_llm_common_prefix(llm, ids, TOKENS), TOKENS - 1); /* the last one's logits are to be computed */
    assert_int_equal(tn_llm_common_prefix(llm, ids, 0), 0);
    assert_ok(tn_llm_rewind(llm, 70));
    assert_int_equal(tn_llm_common_prefix(llm, ids, TOKENS), 70);
    assert_ok(tn_llm_prompt(llm, ids + 70, 9, &logits));
    assert_memory_equal(logits, all + 78 * width, width * sizeof *all);
    ids[33]++;
    assert_int_equal(tn_llm_common_prefix(llm, ids, TOKENS), 33);
    tn_llm_close(llm);
    free(all);
    free_model(&m);
}

static void every_cut_gives_the_same_bits(void **state) {
    (void)state;
    static const int types[] = {F32, F16, Q8_0};
    for (size_t i = 0; i < TN_COUNT(types); i++) {
        spec s = llama;
        s.type = types[i];
        check_cuts(&s);
    }
    check_cuts(&gemma2);
    check_cuts(&qwen3moe);
    spec mixture = qwen3moe;
    mixture.type = Q8_0;
    check_cuts(&mixture);
}

static int64_t misses(void) {
    tn_runtime_stats stats = {.struct_size = sizeof stats};
    assert_ok(tn_get_runtime_stats(&stats));
    return stats.plan_misses;
}

static void neither_tokens_nor_lengths_make_plans(void **state) {
    (void)state;
    model m;
    int32_t ids[100];
    make_model(&m, &llama);
    fill_ids(ids, 100, llama.vocabulary);
    tn_llm *llm = open_llm(write_model(&m, NULL, "plans.gguf"), TN_LLM_CACHE_F16);
    const float *logits;
    assert_ok(tn_llm_prepare(llm));
    int64_t before = misses();
    assert_ok(tn_llm_prompt(llm, ids, 30, &logits));
    for (int i = 0; i < 50; i++)
        assert_ok(tn_llm_step(llm, ids[i], &logits));
    assert_ok(tn_llm_prompt(llm, ids, 77, &logits));
    assert_ok(tn_llm_prompt(llm, ids, 2, &logits));
    assert_int_equal(misses(), before);
    tn_llm_close(llm);
    free_model(&m);
}

static void what_cannot_be_appended_is_refused(void **state) {
    (void)state;
    model m;
    make_model(&m, &llama);
    const char *path = write_model(&m, NULL, "limits.gguf");
    tn_llm_options o = TN_LLM_DEFAULTS;
    o.context = 10;
    tn_llm *llm;
    const float *logits;
    int32_t ids[11] = {0};
    assert_ok(tn_llm_open(path, &o, &llm));
    assert_int_equal(tn_llm_prompt(llm, ids, 11, &logits), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "--context");
    ids[2] = 48;
    assert_int_equal(tn_llm_prompt(llm, ids, 3, &logits), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "token 2 is 48, but the vocabulary has 48");
    assert_int_equal(tn_llm_prompt(llm, ids, 0, &logits), TN_ERR_ARGUMENT);
    assert_int_equal(tn_llm_step(llm, -1, &logits), TN_ERR_ARGUMENT);
    assert_int_equal(tn_llm_position(llm), 0);
    assert_ok(tn_llm_prompt(llm, ids, 2, NULL));
    assert_int_equal(tn_llm_rewind(llm, 3), TN_ERR_ARGUMENT);
    ids[2] = 0;
    assert_ok(tn_llm_prompt(llm, ids, 8, &logits));
    assert_int_equal(tn_llm_step(llm, 0, &logits), TN_ERR_ARGUMENT);
    tn_llm_close(llm);
    o.context = 321;
    assert_int_equal(tn_llm_open(path, &o, &llm), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "supports 1 to 320");
    free_model(&m);
}

static void too_little_memory_is_told_before_the_start(void **state) {
    (void)state;
    model m;
    make_model(&m, &llama);
    const char *path = write_model(&m, NULL, "memory.gguf");
    tn_gguf *file;
    tn_llm *llm;
    tn_llm_facts facts = {.struct_size = sizeof facts};
    assert_ok(tn_gguf_open(path, &file));
    assert_ok(tn_llm_inspect(file, NULL, &facts));
    assert_int_equal(facts.context, 320);
    assert_int_equal(facts.cache_bytes, 2 * 2 * 320 * 2 * 8 * 2);
    assert_int_equal(facts.total_bytes,
                     facts.weights_bytes + facts.cache_bytes + facts.activation_bytes + facts.runtime_bytes);
    assert_string_equal(facts.name, "made");
    assert_string_equal(facts.quantisation, "F32");
    tn_gguf_close(file);
    tn_llm_options o = TN_LLM_DEFAULTS;
    o.memory = facts.total_bytes - 1;
    assert_int_equal(tn_llm_open(path, &o, &llm), TN_ERR_MEMORY);
    assert_text_has(tn_error(), " MiB: "); /* 0.00 GiB would tell nothing */
    assert_text_has(tn_error(), " MiB are free");
    assert_text_has(tn_error(), "a context of 256 tokens would fit");
    o.memory = facts.weights_bytes;
    assert_int_equal(tn_llm_open(path, &o, &llm), TN_ERR_MEMORY);
    assert_text_has(tn_error(), "a smaller or more quantized model");
    o.memory = facts.total_bytes;
    o.cache = (tn_llm_cache)4;
    assert_int_equal(tn_llm_open(path, &o, &llm), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "cache is 4; it must be one of TN_LLM_CACHE_F16, TN_LLM_CACHE_BF16, TN_LLM_CACHE_F32");
    o.cache = TN_LLM_CACHE_F16;
    assert_ok(tn_llm_open(path, &o, &llm));
    tn_llm_close(llm);
    free_model(&m);
}

/* Frequencies are divided by them: all logits were NaN, silently. */
static void factors_of_rope_are_above_zero(void **state) {
    (void)state;
    static const float wrong[] = {0, -1, NAN, INFINITY};
    spec s = llama;
    s.rope_factors = true;
    for (size_t i = 0; i < TN_COUNT(wrong); i++) {
        model m;
        tn_llm *llm = NULL;
        make_model(&m, &s);
        data_of(&m, -1, "rope_freqs.weight")[2] = wrong[i];
        assert_int_equal(tn_llm_open(write_model(&m, NULL, "factors.gguf"), NULL, &llm), TN_ERR_FORMAT);
        assert_null(llm);
        assert_text_has(tn_error(), "factors.gguf");
        assert_text_has(tn_error(), "factor 2 of rope");
        free_model(&m);
    }
}

static void what_does_not_fit_is_refused_by_name(void **state) {
    (void)state;
    static const struct {
        fault wrong;
        const char *reason;
    } rows[] = {
        {{.key = "block_count", .absent = true}, "no key 'llama.block_count'"},
        {{.key = "block_count", .value = 0}, "'llama.block_count' is 0"},
        {{.key = "block_count", .value = 3}, "no tensor 'blk.2.attn_norm.weight'"},
        {{.key = "block_count", .value = 1}, "'blk.1.attn_norm.weight' is not known"},
        {{.key = "block_count", .value = UINT32_MAX}, "must lie between 1 and 4096"},
        {{.key = "embedding_length", .value = 64}, "'token_embd.weight' has 2 dimensions, [48, 32]"},
        {{.key = "feed_forward_length", .value = 96}, "'blk.0.ffn_gate.weight'"},
        {{.key = "attention.head_count", .value = 6}, "'blk.0.attn_q.weight'"},
        {{.key = "attention.head_count", .value = 0}, "'llama.attention.head_count' is 0"},
        {{.key = "attention.head_count_kv", .value = 3}, "4 heads is not a multiple of 3"},
        {{.key = "attention.key_length", .value = 16}, "'llama.attention.value_length' is 8"},
        {{.key = "attention.value_length", .value = 16}, "'llama.attention.value_length' is 16"},
        {{.key = "context_length", .value = 0}, "'llama.context_length' is 0"},
        {{.key = "expert_count", .value = 8}, "8 experts"},
        {{.key = "split", .value = 2}, "split into 2 files"},
        {{.without = "blk.1.ffn_up.weight"}, "no tensor 'blk.1.ffn_up.weight'"},
        {{.without = "token_embd.weight"}, "no tensor 'token_embd.weight'"},
        {{.extra_tensor = true}, "'blk.0.ffn_gate_inp.weight' is not known"},
    };
    model m;
    make_model(&m, &llama);
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        tn_llm *llm = NULL;
        tn_status status = tn_llm_open(write_model(&m, &rows[i].wrong, "wrong.gguf"), NULL, &llm);
        if (status == TN_OK) fail_msg("a model that should be refused for \"%s\" was opened", rows[i].reason);
        assert_null(llm);
        assert_text_has(tn_error(), "wrong.gguf");
        assert_text_has(tn_error(), rows[i].reason);
    }
    free_model(&m);

    spec mystery = llama, wide = llama, odd = llama;
    mystery.architecture = "mystery";
    wide.type = F64;
    odd.head_dim = 7;
    const struct {
        const spec *s;
        const char *reason;
    } specs[] = {{&mystery, "'mystery' is not supported; supported are llama"},
                 {&wide, "'token_embd.weight' has type F64"},
                 {&odd, "must be even"}};
    for (size_t i = 0; i < TN_COUNT(specs); i++) {
        tn_llm *llm = NULL;
        make_model(&m, specs[i].s);
        if (tn_llm_open(write_model(&m, NULL, "wrong.gguf"), NULL, &llm) == TN_OK)
            fail_msg("a model that should be refused for \"%s\" was opened", specs[i].reason);
        assert_text_has(tn_error(), specs[i].reason);
        free_model(&m);
    }
}

/* In libtrunnion-text's own memory; libtrunnion's is let fail by its own tests. */
static void memory_may_run_out_anywhere(void **state) {
    (void)state;
    model m;
    make_model(&m, &llama);
    const char *path = write_model(&m, NULL, "failing.gguf");
    int64_t before = tn_txt_live_blocks();
    tn_status status = TN_ERR_MEMORY;
    for (int64_t n = 1; status != TN_OK; n++) {
        tn_llm *llm = NULL;
        tn_txt_fail_at(n);
        status = tn_llm_open(path, NULL, &llm);
        tn_txt_fail_at(0);
        assert_true(status == TN_OK || (status == TN_ERR_MEMORY && !llm));
        tn_llm_close(llm);
        assert_int_equal(tn_txt_live_blocks(), before);
    }
    free_model(&m);
}

/* Memory may run out in the middle of a prompt or token: nothing is appended, or the sequence begins anew, and the next
 * try gives what it should. */
static void after_a_failure_all_goes_on(void **state) {
    (void)state;
    model m;
    int32_t ids[9];
    make_model(&m, &llama);
    fill_ids(ids, 9, llama.vocabulary);
    tn_llm *llm = open_llm(write_model(&m, NULL, "again.gguf"), TN_LLM_CACHE_F16);
    size_t width = (size_t)llama.vocabulary;
    float *all = calloc(9 * width, sizeof *all);
    const float *logits;
    assert_ok(tn_llm_logits(llm, ids, 9, all));
    assert_ok(tn_llm_rewind(llm, 0));
    bool whole = false;
    for (int64_t n = 1; !whole; n++) {
        assert_ok(tn_llm_rewind(llm, 0));
        tn_mem_fail_at(n);
        bool prompt = tn_llm_prompt(llm, ids, 8, &logits) == TN_OK;
        bool step = prompt && tn_llm_step(llm, ids[8], &logits) == TN_OK;
        tn_mem_fail_at(0);
        whole = step;
        int64_t at = tn_llm_position(llm);
        if (!step && at == 0 && prompt) prompt = strstr(tn_error(), "starts again") == NULL;
        assert_int_equal(at, prompt ? 8 + step : 0);
        if (!prompt) assert_ok(tn_llm_prompt(llm, ids, 8, &logits));
        if (!step) assert_ok(tn_llm_step(llm, ids[8], &logits));
        assert_memory_equal(logits, all + 8 * width, width * sizeof *all);
    }
    tn_llm_close(llm);
    free(all);
    free_model(&m);
}

/* Of every family: the cache's contents are the same bits, so what follows is, too. */
static void a_saved_sequence_goes_on_with_the_same_bits(void **state) {
    (void)state;
    static const spec *const kinds[] = {&llama, &gemma2};
    for (size_t k = 0; k < TN_COUNT(kinds); k++) {
        enum { BEFORE = 70, AFTER = 5 };
        model m;
        int32_t ids[BEFORE + AFTER];
        make_model(&m, kinds[k]);
        fill_ids(ids, BEFORE + AFTER, kinds[k]->vocabulary);
        const char *path = write_model(&m, NULL, "saved.gguf");
        char file[600];
        snprintf(file, sizeof file, "%s", test_scratch("sequence.safetensors"));
        size_t width = (size_t)kinds[k]->vocabulary;
        float *all = calloc(AFTER * width, sizeof *all), *again = calloc(AFTER * width, sizeof *again);
        tn_llm *llm = open_llm(path, TN_LLM_CACHE_F16);
        assert_int_equal(tn_llm_save(llm, file), TN_ERR_STATE);
        assert_ok(tn_llm_prompt(llm, ids, BEFORE, NULL));
        assert_ok(tn_llm_save(llm, file));
        assert_ok(tn_llm_logits(llm, ids + BEFORE, AFTER, all));
        tn_llm_close(llm);
        llm = open_llm(path, TN_LLM_CACHE_F16);
        assert_ok(tn_llm_prompt(llm, ids + 3, 40, NULL)); /* something else */
        assert_ok(tn_llm_load(llm, file));
        assert_int_equal(tn_llm_position(llm), BEFORE);
        assert_memory_equal(tn_llm_tokens(llm), ids, BEFORE * sizeof *ids);
        assert_ok(tn_llm_logits(llm, ids + BEFORE, AFTER, again));
        assert_memory_equal(all, again, AFTER * width * sizeof *all);
        assert_ok(tn_llm_rewind(llm, 10));
        assert_ok(tn_llm_load(llm, file));
        for (int i = 0; i < AFTER; i++) { /* by the captured plan, too */
            const float *logits;
            assert_ok(tn_llm_step(llm, ids[BEFORE + i], &logits));
            assert_memory_equal(logits, all + (size_t)i * width, width * sizeof *all);
        }
        tn_llm_close(llm);
        free(all);
        free(again);
        free_model(&m);
    }
}

/* Half the memory, logits that are a little off, and the same sequence from a file. */
static void a_cache_in_q8_0_is_half_as_large(void **state) {
    (void)state;
    spec wide = llama;
    wide.head_dim = 32;
    distance f16 = distance_from_definition(&wide, TN_LLM_CACHE_F16),
             q8 = distance_from_definition(&wide, TN_LLM_CACHE_Q8_0);
    if (!(q8.mean < 0.02 && q8.mean > f16.mean)) fail_msg("mean distances: f16 %g, q8_0 %g", f16.mean, q8.mean);
    model m;
    int32_t ids[70];
    const float *logits;
    tn_llm_facts half = {.struct_size = sizeof half}, small = {.struct_size = sizeof small};
    make_model(&m, &wide);
    fill_ids(ids, 70, wide.vocabulary);
    const char *path = write_model(&m, NULL, "q8.gguf");
    size_t row = (size_t)wide.vocabulary * sizeof(float);
    float *kept = malloc(row);
    tn_llm *f = open_llm(path, TN_LLM_CACHE_F16), *q = open_llm(path, TN_LLM_CACHE_Q8_0);
    assert_ok(tn_llm_get_facts(f, &half));
    assert_ok(tn_llm_get_facts(q, &small));
    assert_int_equal(small.cache_bytes * 32, half.cache_bytes * 17);
    assert_ok(tn_llm_prompt(q, ids, 70, NULL));
    assert_ok(tn_llm_save(q, test_scratch("q8.safetensors")));
    assert_ok(tn_llm_step(q, 3, &logits));
    memcpy(kept, logits, row);
    assert_ok(tn_llm_rewind(q, 0));
    for (int i = 0; i < 70; i++)
        assert_ok(tn_llm_step(q, ids[i], NULL));
    assert_ok(tn_llm_step(q, 3, &logits));
    assert_memory_equal(logits, kept, row); /* however the text is cut */
    assert_ok(tn_llm_load(q, test_scratch("q8.safetensors")));
    assert_ok(tn_llm_step(q, 3, &logits));
    assert_memory_equal(logits, kept, row);
    assert_int_equal(tn_llm_load(f, test_scratch("q8.safetensors")), TN_ERR_DTYPE);
    assert_text_has(tn_error(), "the cache is q8_0");
    free(kept);
    tn_llm_close(f);
    tn_llm_close(q);
    free_model(&m);
    tn_llm_options o = TN_LLM_DEFAULTS;
    o.cache = TN_LLM_CACHE_Q8_0;
    make_model(&m, &llama); /* heads of 8 */
    assert_int_equal(tn_llm_open(write_model(&m, NULL, "narrow.gguf"), &o, &q), TN_ERR_UNSUPPORTED);
    assert_text_has(tn_error(), "a multiple of 32: use f16");
    o.cache = TN_LLM_CACHE_F16;
    o.value_cache = TN_LLM_CACHE_Q8_0;
    assert_int_equal(tn_llm_open(test_scratch("narrow.gguf"), &o, &q), TN_ERR_UNSUPPORTED);
    o.value_cache = (tn_llm_cache)5;
    assert_int_equal(tn_llm_open(test_scratch("narrow.gguf"), &o, &q), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "value_cache is 5; it must be a tn_llm_cache");
    free_model(&m);
}

/* Each is rounded to its own type, so the error is between those of both types; bytes are the mean. The bits do not
 * depend on the cut, the batch or a saved file. */
static void values_have_another_type_than_keys(void **state) {
    (void)state;
    enum { TOKENS = 70 };
    spec wide = llama;
    wide.head_dim = 32;
    distance f32 = distance_with_caches(&wide, TN_LLM_CACHE_F32, TN_LLM_CACHE_F32);
    distance values = distance_with_caches(&wide, TN_LLM_CACHE_F32, TN_LLM_CACHE_Q8_0);
    distance keys = distance_with_caches(&wide, TN_LLM_CACHE_Q8_0, TN_LLM_CACHE_F32);
    distance both = distance_from_definition(&wide, TN_LLM_CACHE_Q8_0);
    bool own = 10 * f32.mean < fmin(values.mean, keys.mean) && keys.mean != values.mean &&
               fmax(values.mean, keys.mean) < 1.2 * both.mean;
    if (!own)
        fail_msg("f32 %g, q8_0 of values %g, of keys %g, of both %g", f32.mean, values.mean, keys.mean, both.mean);
    model m;
    int32_t ids[TOKENS];
    const float *logits;
    tn_llm_facts half = {.struct_size = sizeof half}, mixed = {.struct_size = sizeof mixed};
    make_model(&m, &wide);
    fill_ids(ids, TOKENS, wide.vocabulary);
    const char *path = write_model(&m, NULL, "mixed.gguf");
    size_t row = (size_t)wide.vocabulary * sizeof(float);
    float *kept = malloc(row);
    tn_llm *f = open_llm(path, TN_LLM_CACHE_F16);
    tn_llm *q = open_with_caches(path, TN_LLM_CACHE_F16, TN_LLM_CACHE_Q8_0), *other;
    assert_ok(tn_llm_get_facts(f, &half));
    assert_ok(tn_llm_get_facts(q, &mixed));
    assert_int_equal(mixed.cache_bytes * 64, half.cache_bytes * 49);
    assert_ok(tn_llm_prompt(q, ids, TOKENS, NULL));
    assert_ok(tn_llm_save(q, test_scratch("mixed.safetensors")));
    assert_ok(tn_llm_step(q, 3, &logits));
    memcpy(kept, logits, row);
    assert_ok(tn_llm_rewind(q, 0));
    for (int i = 0; i < TOKENS; i++)
        assert_ok(tn_llm_step(q, ids[i], NULL));
    assert_ok(tn_llm_new_conversation(q, NULL, &other));
    assert_ok(tn_llm_load(other, test_scratch("mixed.safetensors")));
    tn_llm_batch *batch;
    assert_ok(tn_llm_batch_new((tn_llm *[]){q, other}, 2, &batch));
    assert_ok(tn_llm_batch_step(batch, (int32_t[]){3, 3}, &logits));
    assert_memory_equal(logits, kept, row);
    assert_memory_equal(logits + wide.vocabulary, kept, row);
    assert_int_equal(tn_llm_load(f, test_scratch("mixed.safetensors")), TN_ERR_DTYPE);
    free(kept);
    tn_llm_batch_free(batch);
    tn_llm_close(other);
    tn_llm_close(f);
    tn_llm_close(q);
    free_model(&m);
}

static void sequences_that_do_not_fit_are_refused(void **state) {
    (void)state;
    model m, other;
    int32_t ids[20];
    spec changed = llama;
    char file[600], wrong[600];
    make_model(&m, &llama);
    fill_ids(ids, 20, llama.vocabulary);
    snprintf(file, sizeof file, "%s", test_scratch("sequence.safetensors"));
    snprintf(wrong, sizeof wrong, "%s", test_scratch("other.safetensors"));
    tn_llm *llm = open_llm(write_model(&m, NULL, "one.gguf"), TN_LLM_CACHE_F16);
    assert_ok(tn_llm_prompt(llm, ids, 20, NULL));
    assert_ok(tn_llm_save(llm, file));
    {
        TN_SCOPE;
        assert_ok(tn_safetensors_save(wrong, &(tn_named_tensor){"x", tn_zeros(TN_DIMS(2), TN_F32)}, 1, NULL, 0));
    }
    assert_int_equal(tn_llm_load(llm, wrong), TN_ERR_FORMAT);
    assert_text_has(tn_error(), "its format is");
    assert_int_equal(tn_llm_load(llm, "/not/there"), TN_ERR_IO);
    assert_int_equal(tn_llm_position(llm), 20); /* as before */
    tn_llm_close(llm);
    llm = open_llm(test_scratch("one.gguf"), TN_LLM_CACHE_F32);
    assert_int_equal(tn_llm_load(llm, file), TN_ERR_DTYPE);
    tn_llm_close(llm);
    tn_llm_options o = TN_LLM_DEFAULTS;
    o.context = 19;
    assert_ok(tn_llm_open(test_scratch("one.gguf"), &o, &llm));
    assert_int_equal(tn_llm_load(llm, file), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "--context of the command");
    tn_llm_close(llm);
    changed.layers++;
    make_model(&other, &changed);
    llm = open_llm(write_model(&other, NULL, "two.gguf"), TN_LLM_CACHE_F16);
    assert_int_equal(tn_llm_load(llm, file), TN_ERR_FORMAT);
    assert_text_has(tn_error(), "another model");
    tn_llm_close(llm);
    free_model(&m);
    free_model(&other);
}

enum { TALKS = 5, BATCH_STEPS = 12 };

/* talks[i] have the first 17 · i ids; alone[i] are equal to them. A pool has room for the talks only. */
static void open_talks(const char *path, bool pool, const int32_t *ids, tn_llm **talks, tn_llm **alone) {
    tn_llm_options o = TN_LLM_DEFAULTS;
    tn_llm *gone;
    o.conversations = pool ? TALKS : 1;
    assert_ok(tn_llm_open(path, &o, &talks[0]));
    assert_ok(tn_llm_new_conversation(talks[0], NULL, &gone)); /* leaves its room to another one */
    for (int i = 1; i < TALKS; i++) {
        o.context = 90 + i;
        if (pool && i == TALKS - 1) tn_llm_close(gone);
        assert_ok(tn_llm_new_conversation(talks[0], pool ? NULL : &o, &talks[i]));
    }
    if (!pool) tn_llm_close(gone);
    for (int i = 0; i < TALKS; i++) {
        assert_ok(tn_llm_new_conversation(talks[0], NULL, &alone[i]));
        for (int j = 0; j < 2; j++)
            if (i > 0) assert_ok(tn_llm_prompt(j ? talks[i] : alone[i], ids + i, 17 * i, NULL));
    }
}

/* One of the conversations waits now and then, and goes on alone between steps. */
static void batch_like_alone(const char *path, bool pool, const int32_t *ids, size_t width) {
    tn_llm *talks[TALKS], *alone[TALKS];
    tn_llm_batch *batch;
    open_talks(path, pool, ids, talks, alone);
    assert_ok(tn_llm_batch_new(talks, TALKS, &batch));
    for (int s = 0; s < BATCH_STEPS; s++) {
        int32_t next[TALKS];
        const float *logits, *own;
        for (int i = 0; i < TALKS; i++)
            next[i] = (s + i) % 4 == 3 ? -1 : ids[10 * i + s];
        assert_ok(tn_llm_batch_step(batch, next, &logits));
        for (int i = 0; i < TALKS; i++) {
            if (next[i] < 0) continue;
            assert_ok(tn_llm_step(alone[i], next[i], &own));
            assert_memory_equal(logits + (size_t)i * width, own, width * sizeof *own);
        }
        if (s == 5) {
            assert_ok(tn_llm_prompt(talks[2], ids, 3, NULL));
            assert_ok(tn_llm_prompt(alone[2], ids, 3, NULL));
        }
        if (s == 8) { /* from one sequence's pages to another's */
            assert_ok(tn_llm_save(talks[3], test_scratch("talk.safetensors")));
            assert_ok(tn_llm_load(talks[1], test_scratch("talk.safetensors")));
            assert_ok(tn_llm_load(alone[1], test_scratch("talk.safetensors")));
        }
        for (int i = 0; i < TALKS; i++)
            assert_int_equal(tn_llm_position(talks[i]), tn_llm_position(alone[i]));
    }
    assert_int_equal(tn_llm_batch_step(batch, (int32_t[]){0, 0, 0, 0, (int32_t)width}, NULL), TN_ERR_ARGUMENT);
    tn_llm_batch_free(batch);
    assert_int_equal(tn_llm_batch_new((tn_llm *[]){talks[0], talks[0]}, 2, &batch), TN_ERR_ARGUMENT);
    assert_int_equal(tn_llm_batch_new(talks, 0, &batch), TN_ERR_ARGUMENT);
    assert_int_equal(tn_llm_batch_new((tn_llm *[]){NULL}, 1, &batch), TN_ERR_ARGUMENT);
    tn_llm_batch_free(NULL);
    for (int i = 0; i < TALKS; i++) {
        tn_llm_close(talks[i]);
        tn_llm_close(alone[i]);
    }
}

static void a_batch_computes_what_each_conversation_does_alone(void **state) {
    (void)state;
    static const spec *const kinds[] = {&llama, &gemma2, &qwen3moe};
    for (size_t k = 0; k < TN_COUNT(kinds); k++) {
        model m;
        int32_t ids[100];
        make_model(&m, kinds[k]);
        fill_ids(ids, 100, kinds[k]->vocabulary);
        const char *path = write_model(&m, NULL, "batch.gguf");
        for (int pool = 0; pool < 2; pool++)
            batch_like_alone(path, pool, ids, (size_t)kinds[k]->vocabulary);
        free_model(&m);
    }
}

static void a_pool_of_caches_has_limits(void **state) {
    (void)state;
    model m;
    tn_llm *llm = NULL;
    tn_llm_facts facts = {.struct_size = sizeof facts};
    tn_llm_options o = TN_LLM_DEFAULTS;
    make_model(&m, &llama);
    const char *path = write_model(&m, NULL, "pool.gguf");
    for (int i = 0; i < 2; i++) {
        o.conversations = i ? TN_LLM_BATCH + 1 : 0;
        assert_int_equal(tn_llm_open(path, &o, &llm), TN_ERR_ARGUMENT);
        assert_text_has(tn_error(), "1 to 64");
    }
    o.conversations = 8;
    assert_ok(tn_llm_inspect_path(path, NULL, &facts));
    o.memory = facts.total_bytes + 3 * facts.cache_bytes; /* enough for four */
    assert_int_equal(tn_llm_open(path, &o, &llm), TN_ERR_MEMORY);
    o.conversations = 4;
    assert_ok(tn_llm_open(path, &o, &llm));
    tn_llm_close(llm);
    free_model(&m);
}

/* ---- speculative decoding ---------------------------------------------------------------------------------------- */

enum { DRAFT_STEPS = 60 };

/* Generates after a prompt and compares the logits of every step with those of a sequence without a draft; text and
 * context end together. Rewinds once, and once adds a prompt. Returns what the draft did. */
static tn_llm_draft_facts generate_with_draft(tn_llm *m, tn_llm *plain, const tn_llm_draft_options *o,
                                              int64_t vocabulary, double temperature) {
    tn_llm_draft_facts facts = {.struct_size = sizeof facts};
    tn_sampler_options so = TN_SAMPLER_DEFAULTS;
    so.temperature = temperature;
    so.seed = 7;
    tn_sampler *sampler;
    int32_t ids[16], id;
    const float *logits, *wanted;
    fill_ids(ids, 16, vocabulary);
    assert_ok(tn_sampler_new(&so, &sampler));
    assert_ok(tn_llm_set_draft(m, o));
    assert_ok(tn_llm_rewind(m, 0));
    assert_ok(tn_llm_rewind(plain, 0));
    assert_ok(tn_llm_prompt(m, ids, 16, &logits));
    assert_ok(tn_llm_prompt(plain, ids, 16, &wanted));
    for (int s = 0; s < DRAFT_STEPS; s++) {
        assert_memory_equal(logits, wanted, (size_t)vocabulary * sizeof *logits);
        assert_ok(tn_sampler_pick(sampler, wanted, (int32_t)vocabulary, &id));
        if (s == 20) {
            assert_ok(tn_llm_rewind(m, tn_llm_position(m) - 1));
            assert_ok(tn_llm_rewind(plain, tn_llm_position(plain) - 1));
        }
        if (s == 40) {
            assert_ok(tn_llm_prompt(m, ids, 3, NULL));
            assert_ok(tn_llm_prompt(plain, ids, 3, NULL));
        }
        assert_ok(tn_llm_step(m, id, &logits));
        assert_ok(tn_llm_step(plain, id, &wanted));
        assert_int_equal(tn_llm_position(m), tn_llm_position(plain));
        assert_memory_equal(tn_llm_tokens(m), tn_llm_tokens(plain), (size_t)tn_llm_position(m) * sizeof(int32_t));
    }
    assert_int_equal(tn_llm_step(m, 0, NULL), TN_ERR_ARGUMENT); /* the context is full */
    tn_sampler_free(sampler);
    assert_ok(tn_llm_get_draft_facts(m, &facts));
    assert_true(facts.accepted <= facts.drafted && facts.passes <= facts.drafted);
    return facts;
}

static tn_llm *open_for_drafts(const spec *kind, const char *name, int64_t context) {
    model m;
    tn_llm *llm = NULL;
    tn_llm_options o = TN_LLM_DEFAULTS;
    o.context = context;
    make_model(&m, kind);
    assert_ok(tn_llm_open(write_model(&m, NULL, name), &o, &llm));
    free_model(&m);
    return llm;
}

static void drafts_change_no_bits(void **state) {
    (void)state;
    static const spec *const kinds[] = {&llama, &gemma2, &qwen3moe};
    for (size_t k = 0; k < TN_COUNT(kinds); k++) {
        const int64_t context = 16 - 1 + 3 + DRAFT_STEPS, vocabulary = kinds[k]->vocabulary;
        tn_llm *m = open_for_drafts(kinds[k], "drafted.gguf", context), *plain, *same, *other;
        assert_ok(tn_llm_new_conversation(m, NULL, &plain));
        assert_ok(tn_llm_new_conversation(m, NULL, &same));
        spec changed = *kinds[k];
        changed.layers = 1;                               /* other guesses, most of which are wrong */
        if (kinds[k] == &llama) changed.vocabulary -= 20; /* and which does not know all tokens */
        other = open_for_drafts(&changed, "draft.gguf", context);
        for (int i = 0; i < 2; i++) {
            double temperature = i ? 0.5 : 0;
            tn_llm_draft_options o = TN_LLM_DRAFT_DEFAULTS;
            o.tokens = i ? 3 : TN_LLM_DRAFT;
            o.ngram = 2;
            generate_with_draft(m, plain, &o, vocabulary, temperature);
            o.least_probability = 0;
            o.model = other;
            generate_with_draft(m, plain, &o, vocabulary, temperature);
            o.model = same;
            tn_llm_draft_facts facts = generate_with_draft(m, plain, &o, vocabulary, temperature);
            if (i == 0 && (facts.accepted * 4 < DRAFT_STEPS * 3 || facts.passes * 3 > DRAFT_STEPS))
                fail_msg("%lld of %lld guesses accepted in %lld passes, though the draft is the model",
                         (long long)facts.accepted, (long long)facts.drafted, (long long)facts.passes);
        }
        assert_ok(tn_llm_set_draft(m, NULL));
        tn_llm_close(m);
        tn_llm_close(plain);
        tn_llm_close(same);
        tn_llm_close(other);
    }
}

/* A text that repeats itself is guessed from itself. */
static void ngrams_guess_what_occurred_before(void **state) {
    (void)state;
    tn_llm *m = open_for_drafts(&llama, "drafted.gguf", 200);
    tn_llm_draft_options o = TN_LLM_DRAFT_DEFAULTS;
    tn_llm_draft_facts facts = {.struct_size = sizeof facts};
    int32_t ids[120];
    for (int i = 0; i < 120; i++)
        ids[i] = (i % 24) * (i % 24) % 97 % (int32_t)llama.vocabulary;
    assert_ok(tn_llm_set_draft(m, &o));
    assert_ok(tn_llm_prompt(m, ids, 30, NULL));
    for (int i = 30; i < 120; i++)
        assert_ok(tn_llm_step(m, ids[i], NULL));
    assert_ok(tn_llm_get_draft_facts(m, &facts));
    assert_true(facts.accepted >= 70 && facts.passes <= 20);
    assert_int_equal(tn_llm_position(m), 120);
    tn_llm_close(m);
}

/* Dummy tokens of a batch that a conversation waits in, and those of tn_llm_prepare, overwrite what the cache has of
 * its guesses: these must not be taken any more. */
static void guesses_end_when_the_cache_is_overwritten(void **state) {
    (void)state;
    const int64_t vocabulary = llama.vocabulary;
    tn_llm *m = open_for_drafts(&llama, "drafted.gguf", 60), *plain, *same, *busy;
    tn_llm_draft_options o = TN_LLM_DRAFT_DEFAULTS;
    tn_llm_batch *batch;
    int32_t ids[16];
    const float *logits, *wanted;
    assert_ok(tn_llm_new_conversation(m, NULL, &plain));
    assert_ok(tn_llm_new_conversation(m, NULL, &same));
    assert_ok(tn_llm_new_conversation(m, NULL, &busy));
    assert_ok(tn_llm_batch_new((tn_llm *[]){m, busy}, 2, &batch));
    o.model = same; /* guesses right */
    o.least_probability = 0;
    assert_ok(tn_llm_set_draft(m, &o));
    fill_ids(ids, 16, vocabulary);
    for (int prepares = 0; prepares < 2; prepares++) {
        assert_ok(tn_llm_rewind(m, 0));
        assert_ok(tn_llm_rewind(plain, 0));
        assert_ok(tn_llm_prompt(m, ids, 16, &logits));
        assert_ok(tn_llm_prompt(plain, ids, 16, &wanted));
        for (int s = 0; s < 20; s++) { /* beyond the guesses that are there at the overwriting */
            int32_t id = 0;
            for (int32_t i = 1; i < vocabulary; i++)
                if (wanted[i] > wanted[id]) id = i;
            assert_ok(tn_llm_step(m, id, &logits));
            assert_ok(tn_llm_step(plain, id, &wanted));
            assert_memory_equal(logits, wanted, (size_t)vocabulary * sizeof *logits);
            if (s == 2) assert_ok(prepares ? tn_llm_prepare(m) : tn_llm_batch_step(batch, (int32_t[]){-1, 1}, NULL));
        }
    }
    tn_llm_batch_free(batch);
    tn_llm_close(m);
    tn_llm_close(plain);
    tn_llm_close(same);
    tn_llm_close(busy);
}

static int64_t likeliest_of(const float *logits, int64_t count) {
    int64_t best = 0;
    for (int64_t i = 1; i < count; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* In a batch some conversations have drafts, good and bad ones, others none; each waits now and then, and is rewound,
 * gets a prompt or a step of its own. All logits are those of conversations without drafts and batches. */
enum { DRAFTED = 4 }; /* fewer than the conversations of a step that do without guesses */

static void batch_drafts(tn_llm *const m[DRAFTED], tn_llm *const plain[DRAFTED], int64_t vocabulary, int steps) {
    tn_llm_batch *batch;
    int32_t ids[16], next[DRAFTED];
    const float *logits, *wanted;
    fill_ids(ids, 16, vocabulary);
    assert_ok(tn_llm_batch_new(m, DRAFTED, &batch));
    for (int i = 0; i < DRAFTED; i++) {
        assert_ok(tn_llm_rewind(m[i], 0));
        assert_ok(tn_llm_rewind(plain[i], 0));
        assert_ok(tn_llm_prompt(m[i], ids, 16 - i, NULL));
        assert_ok(tn_llm_prompt(plain[i], ids, 16 - i, &wanted));
        next[i] = (int32_t)likeliest_of(wanted, vocabulary);
    }
    for (int s = 0; s < steps; s++) {
        int32_t asked[DRAFTED];
        for (int i = 0; i < DRAFTED; i++)
            asked[i] = (s + i) % 7 == 6 ? -1 : next[i];
        assert_ok(tn_llm_batch_step(batch, asked, &logits));
        for (int i = 0; i < DRAFTED; i++) {
            if (asked[i] >= 0) {
                assert_ok(tn_llm_step(plain[i], asked[i], &wanted));
                assert_memory_equal(logits + i * vocabulary, wanted, (size_t)vocabulary * sizeof *logits);
                next[i] = (int32_t)likeliest_of(wanted, vocabulary);
            }
            assert_int_equal(tn_llm_position(m[i]), tn_llm_position(plain[i]));
        }
        for (int j = 0; j < 2 && s == 20; j++) {
            tn_llm *const *each = j ? plain : m;
            assert_ok(tn_llm_rewind(each[1], tn_llm_position(each[1]) - 2));
            assert_ok(tn_llm_prompt(each[2], ids, 3, NULL));
            assert_ok(tn_llm_step(each[0], next[0], NULL));
        }
    }
    tn_llm_batch_free(batch);
}

static void batches_check_the_guesses_of_each_conversation(void **state) {
    (void)state;
    static const spec *const kinds[] = {&llama, &gemma2, &qwen3moe};
    for (size_t k = 0; k < TN_COUNT(kinds); k++) {
        model made;
        tn_llm *m[DRAFTED], *plain[DRAFTED], *same;
        tn_llm_options o = TN_LLM_DEFAULTS;
        tn_llm_draft_facts facts = {.struct_size = sizeof facts};
        const int steps = 60;
        o.context = 16 + steps + 3;
        o.conversations = DRAFTED;
        spec changed = *kinds[k];
        changed.layers = 1;
        tn_llm *other = open_for_drafts(&changed, "draft.gguf", o.context);
        make_model(&made, kinds[k]);
        assert_ok(tn_llm_open(write_model(&made, NULL, "drafted.gguf"), &o, &m[0]));
        free_model(&made);
        for (int i = 1; i < DRAFTED; i++)
            assert_ok(tn_llm_new_conversation(m[0], NULL, &m[i]));
        for (int i = 0; i < DRAFTED; i++)
            assert_ok(tn_llm_new_conversation(m[0], NULL, &plain[i]));
        assert_ok(tn_llm_new_conversation(m[0], NULL, &same));
        tn_llm_draft_options drafts[DRAFTED - 1] = {TN_LLM_DRAFT_DEFAULTS, TN_LLM_DRAFT_DEFAULTS,
                                                    TN_LLM_DRAFT_DEFAULTS};
        drafts[0].model = same;
        drafts[1].model = other;
        drafts[0].least_probability = drafts[1].least_probability = 0;
        drafts[2].ngram = 2;
        for (int i = 0; i + 1 < DRAFTED; i++)
            assert_ok(tn_llm_set_draft(m[i], &drafts[i]));
        batch_drafts(m, plain, kinds[k]->vocabulary, steps);
        assert_ok(tn_llm_get_draft_facts(m[0], &facts));
        if (facts.accepted < 30 || facts.passes > 25)
            fail_msg("%lld of %lld guesses accepted in %lld passes, though the draft is the model",
                     (long long)facts.accepted, (long long)facts.drafted, (long long)facts.passes);
        assert_ok(tn_llm_get_draft_facts(m[1], &facts));
        assert_true(facts.drafted > facts.accepted); /* the batch saw wrong ones */
        for (int i = 0; i < DRAFTED; i++) {
            tn_llm_close(m[i]);
            tn_llm_close(plain[i]);
        }
        tn_llm_close(same);
        tn_llm_close(other);
    }
}

/* Conversations of one pool, the last of which waits with a full context. */
enum { FAILING = 3, FIRST_TOKENS = 8, MORE_TOKENS = 3, ALL_TOKENS = FIRST_TOKENS + MORE_TOKENS };

typedef struct failing {
    const char *path;
    tn_llm_options options;
    bool drafts;
    int64_t vocabulary;
    tn_llm *m[FAILING];
    int32_t ids[FAILING][ALL_TOKENS];
    float *want; /* [FAILING, MORE_TOKENS, vocabulary]: after each of the last tokens */
} failing;

static void open_failing(failing *f) {
    tn_llm_draft_options draft = TN_LLM_DRAFT_DEFAULTS;
    draft.ngram = 2;
    assert_ok(tn_llm_open(f->path, &f->options, &f->m[0]));
    for (int i = 1; i < FAILING; i++)
        assert_ok(tn_llm_new_conversation(f->m[0], NULL, &f->m[i]));
    for (int i = 0; i < FAILING && f->drafts; i++)
        assert_ok(tn_llm_set_draft(f->m[i], &draft));
}

static void close_failing(failing *f) {
    for (int i = FAILING - 1; i >= 0; i--)
        tn_llm_close(f->m[i]);
}

/* What conversation i has after s steps of the batch. */
static int64_t tokens_after(int i, int s) { return i == FAILING - 1 ? ALL_TOKENS : FIRST_TOKENS + s; }

/* After a failure each conversation has its tokens, or none: then it gets them again. Returns whether all had them. */
static bool mend_failing(failing *f, int s) {
    bool all = true;
    for (int i = 0; i < FAILING; i++) {
        int64_t at = tn_llm_position(f->m[i]), wanted = tokens_after(i, s);
        if (at == wanted) continue;
        assert_int_equal(at, 0);
        all = false;
        assert_ok(tn_llm_prompt(f->m[i], f->ids[i], wanted, NULL));
    }
    return all;
}

/* Lets the allocation `at` of the steps fail; false if they have fewer. *lost: a sequence was. */
static bool fail_in_steps(failing *f, int64_t at, bool *lost) {
    tn_llm_batch *batch;
    const float *logits;
    bool failed = false;
    size_t row = (size_t)f->vocabulary;
    for (int i = 0; i < FAILING; i++) {
        assert_ok(tn_llm_rewind(f->m[i], 0));
        assert_ok(tn_llm_prompt(f->m[i], f->ids[i], tokens_after(i, 0), NULL));
    }
    assert_ok(tn_llm_batch_new(f->m, FAILING, &batch));
    tn_mem_fail_at(at);
    for (int s = 0; s < MORE_TOKENS; s++) {
        int32_t next[FAILING] = {f->ids[0][FIRST_TOKENS + s], f->ids[1][FIRST_TOKENS + s], -1};
        tn_status status = tn_llm_batch_step(batch, next, &logits);
        if (status != TN_OK) {
            tn_mem_fail_at(0);
            assert_int_equal(status, TN_ERR_MEMORY);
            failed = true;
            *lost = !mend_failing(f, s) || *lost;
            assert_ok(tn_llm_batch_step(batch, next, &logits));
        }
        for (size_t i = 0; i + 1 < FAILING; i++)
            assert_memory_equal(logits + i * row, f->want + (i * MORE_TOKENS + (size_t)s) * row, row * sizeof *logits);
    }
    tn_mem_fail_at(0);
    tn_llm_batch_free(batch);
    assert_ok(tn_llm_rewind(f->m[FAILING - 1], ALL_TOKENS - 1));
    assert_ok(tn_llm_step(f->m[FAILING - 1], f->ids[FAILING - 1][ALL_TOKENS - 1], &logits));
    assert_memory_equal(logits, f->want + (FAILING * MORE_TOKENS - 1) * row, row * sizeof *logits);
    return failed;
}

static void after_a_failure_batches_go_on(void **state) {
    (void)state;
    static const struct {
        tn_llm_cache cache;
        bool drafts;
    } kinds[] = {{TN_LLM_CACHE_F16, false}, {TN_LLM_CACHE_Q8_0, true}};
    spec wide = llama;
    wide.head_dim = 32;
    model m;
    make_model(&m, &wide);
    for (size_t k = 0; k < TN_COUNT(kinds); k++) {
        failing f = {.path = write_model(&m, NULL, "failing-batch.gguf"),
                     .options = TN_LLM_DEFAULTS,
                     .drafts = kinds[k].drafts,
                     .vocabulary = wide.vocabulary};
        f.options.cache = kinds[k].cache;
        f.options.context = ALL_TOKENS;
        f.options.conversations = FAILING;
        f.want = calloc((size_t)(FAILING * MORE_TOKENS * f.vocabulary), sizeof *f.want);
        for (int i = 0; i < FAILING; i++)
            for (int t = 0; t < ALL_TOKENS; t++)
                f.ids[i][t] = 5 * i + t % 3; /* repeats itself, so that drafts guess */
        tn_llm *plain;
        assert_ok(tn_llm_open(f.path, &f.options, &plain));
        for (int i = 0; i < FAILING; i++) {
            assert_ok(tn_llm_rewind(plain, 0));
            assert_ok(tn_llm_prompt(plain, f.ids[i], FIRST_TOKENS, NULL));
            assert_ok(
                tn_llm_logits(plain, f.ids[i] + FIRST_TOKENS, MORE_TOKENS, f.want + i * MORE_TOKENS * f.vocabulary));
        }
        tn_llm_close(plain);
        open_failing(&f);
        bool failed = true;
        for (int64_t n = 1; failed; n += 1 + n / 8) {
            bool lost = false;
            failed = fail_in_steps(&f, n, &lost);
            if (!lost) continue;
            close_failing(&f); /* for the next one they are a pool again */
            open_failing(&f);
        }
        close_failing(&f);
        free(f.want);
    }
    free_model(&m);
}

static void wrong_drafts_are_refused(void **state) {
    (void)state;
    tn_llm *m = open_for_drafts(&llama, "drafted.gguf", 50), *other;
    assert_ok(tn_llm_new_conversation(m, NULL, &other));
    tn_llm_draft_options o = TN_LLM_DRAFT_DEFAULTS;
    o.tokens = 0;
    assert_int_equal(tn_llm_set_draft(m, &o), TN_ERR_ARGUMENT);
    o.tokens = TN_LLM_DRAFT + 1;
    assert_int_equal(tn_llm_set_draft(m, &o), TN_ERR_ARGUMENT);
    o.tokens = 3, o.ngram = 1;
    assert_int_equal(tn_llm_set_draft(m, &o), TN_ERR_ARGUMENT);
    o.ngram = 2, o.least_probability = NAN;
    assert_int_equal(tn_llm_set_draft(m, &o), TN_ERR_ARGUMENT);
    o.least_probability = 0.5, o.model = m;
    assert_int_equal(tn_llm_set_draft(m, &o), TN_ERR_ARGUMENT);
    o.model = NULL;
    assert_ok(tn_llm_set_draft(other, &o));
    o.model = other;
    assert_int_equal(tn_llm_set_draft(m, &o), TN_ERR_ARGUMENT); /* it has a draft itself */
    assert_int_equal(tn_llm_set_draft(NULL, &o), TN_ERR_ARGUMENT);
    assert_int_equal(tn_llm_get_draft_facts(m, NULL), TN_ERR_ARGUMENT);
    tn_llm_close(m);
    tn_llm_close(other);
}

static void null_arguments_are_answered(void **state) {
    (void)state;
    tn_llm *llm = NULL;
    tn_llm_facts facts = {.struct_size = sizeof facts};
    int32_t id = 0;
    float out;
    assert_int_equal(tn_llm_open(NULL, NULL, &llm), TN_ERR_ARGUMENT);
    assert_int_equal(tn_llm_open("x", NULL, NULL), TN_ERR_ARGUMENT);
    assert_int_equal(tn_llm_inspect(NULL, NULL, &facts), TN_ERR_ARGUMENT);
    assert_int_equal(tn_llm_get_facts(NULL, &facts), TN_ERR_ARGUMENT);
    assert_int_equal(tn_llm_prompt(NULL, &id, 1, NULL), TN_ERR_ARGUMENT);
    assert_int_equal(tn_llm_step(NULL, 0, NULL), TN_ERR_ARGUMENT);
    assert_int_equal(tn_llm_logits(NULL, &id, 1, &out), TN_ERR_ARGUMENT);
    assert_int_equal(tn_llm_rewind(NULL, 0), TN_ERR_ARGUMENT);
    assert_int_equal(tn_llm_prepare(NULL), TN_ERR_ARGUMENT);
    assert_int_equal(tn_llm_position(NULL), 0);
    assert_null(tn_llm_file(NULL));
    tn_llm_close(NULL);
}

/* ---- other devices ----------------------------------------------------------------------------------------------- */

/* The kernels of devices do not know the blocks. */
static void a_q8_0_cache_far_from_the_host_is_refused(void **state) {
    (void)state;
    model m;
    spec wide = llama;
    tn_llm *llm;
    tn_llm_options o = TN_LLM_DEFAULTS;
    far_nature_now = (far_nature){.max_group = 1};
    o.device = far_open(0, NULL);
    o.cache = TN_LLM_CACHE_Q8_0;
    wide.head_dim = BLOCK;
    make_model(&m, &wide);
    assert_int_equal(tn_llm_open(write_model(&m, NULL, "far.gguf"), &o, &llm), TN_ERR_UNSUPPORTED);
    assert_non_null(strstr(tn_error(), "supported on the device cpu only"));
    free_model(&m);
    tn_device_close(o.device);
    far_nature_now = (far_nature){0};
}

/* Everything is computed there, as the device is opened strictly; without workgroups, which the interpreter would take
 * minutes for. */
static void far_from_the_host_all_this_is_so_too(void **state) {
    far_nature_now = (far_nature){.max_group = 1};
    tn_device *far = far_open(0, NULL);
    assert_ok(tn_set_current_device(far));
    compare_with_definition(&llama, TN_LLM_CACHE_F32, 5e-5);
    weights_of_other_types_are_what_they_stand_for(state);
    neither_tokens_nor_lengths_make_plans(state);
    assert_int_equal(tn_device_host_count(far), 0);
    assert_ok(tn_set_current_device(NULL));
    tn_device_close(far);
    far_nature_now = (far_nature){0};
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_compute_what_they_are_defined_as),
        cmocka_unit_test(gemmas_compute_what_they_are_defined_as),
        cmocka_unit_test(numbers_of_gemma_that_are_none_are_refused),
        cmocka_unit_test(mixtures_compute_what_they_are_defined_as),
        cmocka_unit_test(of_a_mixture_a_token_reads_what_it_chose),
        cmocka_unit_test(mixtures_that_cannot_be_are_refused),
        cmocka_unit_test(weights_of_other_types_are_what_they_stand_for),
        cmocka_unit_test(every_cut_gives_the_same_bits),
        cmocka_unit_test(neither_tokens_nor_lengths_make_plans),
        cmocka_unit_test(what_cannot_be_appended_is_refused),
        cmocka_unit_test(too_little_memory_is_told_before_the_start),
        cmocka_unit_test(factors_of_rope_are_above_zero),
        cmocka_unit_test(what_does_not_fit_is_refused_by_name),
        cmocka_unit_test(memory_may_run_out_anywhere),
        cmocka_unit_test(after_a_failure_all_goes_on),
        cmocka_unit_test(a_saved_sequence_goes_on_with_the_same_bits),
        cmocka_unit_test(a_cache_in_q8_0_is_half_as_large),
        cmocka_unit_test(values_have_another_type_than_keys),
        cmocka_unit_test(sequences_that_do_not_fit_are_refused),
        cmocka_unit_test(a_batch_computes_what_each_conversation_does_alone),
        cmocka_unit_test(a_pool_of_caches_has_limits),
        cmocka_unit_test(drafts_change_no_bits),
        cmocka_unit_test(ngrams_guess_what_occurred_before),
        cmocka_unit_test(guesses_end_when_the_cache_is_overwritten),
        cmocka_unit_test(batches_check_the_guesses_of_each_conversation),
        cmocka_unit_test(after_a_failure_batches_go_on),
        cmocka_unit_test(wrong_drafts_are_refused),
        cmocka_unit_test(null_arguments_are_answered),
        cmocka_unit_test(a_q8_0_cache_far_from_the_host_is_refused),
        cmocka_unit_test(far_from_the_host_all_this_is_so_too),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
