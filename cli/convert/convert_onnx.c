/* convert_onnx.c — language models and encoders as ONNX models, and the proof that they are the same.
 *
 * The libraries write the network (trunnion/llm.h, trunnion/embed.h). What was written is opened and run again: its
 * weights are the file's, number for number, and it computes what the model computes that was read, for texts of two
 * lengths; a network with a cache is given them in pieces, with its own outputs as what was before. Where weights are
 * multiplied in blocks the two round differently: there activations are rounded to 8 bits for the product, in ONNX they
 * are not. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/convert/convert.h"
#include "cli/run/run.h"
#include "trunnion/backend.h"
#include "trunnion/embed.h"
#include "trunnion/llm.h"
#include "trunnion/ops.h"

enum { SHORT_TEXT = 5, LONG_TEXT = 23 };

/* Either of the two. */
typedef struct whole_model {
    tn_llm *llm;
    tn_embedder *embedder;
    int64_t vocabulary, width; /* width: numbers of a result's row */
    bool in_blocks;
} whole_model;

static void close_model(whole_model *m) {
    tn_llm_close(m->llm);
    tn_embedder_close(m->embedder);
}

static tn_status open_encoder(const char *path, whole_model *m) {
    tn_embedder_facts f = {.struct_size = sizeof f};
    tn_status status = tn_embedder_open(path, NULL, &m->embedder);
    if (status == TN_OK) status = tn_embedder_get_facts(m->embedder, &f);
    m->vocabulary = f.vocabulary;
    m->width = f.width;
    return status;
}

static tn_status open_model(const char *path, whole_model *m) {
    tn_llm_options o = TN_LLM_DEFAULTS;
    o.context = 2 * LONG_TEXT;
    o.cache = TN_LLM_CACHE_F32;
    tn_llm_facts f = {.struct_size = sizeof f};
    *m = (whole_model){0};
    tn_status status = tn_llm_open(path, &o, &m->llm);
    if (status == TN_ERR_UNSUPPORTED && cli_is_folder(path)) {
        char why[500];
        snprintf(why, sizeof why, "%s", tn_error());
        if (open_encoder(path, m) == TN_OK) return TN_OK;
        return tn_backend_fail(status, "%s; as an encoder: %s", why, tn_error());
    }
    TRY(status);
    TRY(tn_llm_get_facts(m->llm, &f));
    m->vocabulary = m->width = f.vocabulary;
    m->in_blocks = strncmp(f.quantisation, "F", 1) != 0 && strncmp(f.quantisation, "BF", 2) != 0;
    return TN_OK;
}

tn_status convert_is_computed(const char *path) {
    tn_llm_facts facts = {.struct_size = sizeof facts};
    return tn_llm_inspect_path(path, NULL, &facts);
}

tn_status convert_to_onnx(const convert_file *in, const convert_wishes *w, TN_UNUSED convert_report *r) {
    tn_llm_export_onnx_options o = TN_LLM_EXPORT_ONNX_DEFAULTS;
    o.cache = !w->no_cache;
    AUTO_CALL(close_model) whole_model m = {.llm = NULL};
    TRY(open_model(in->path, &m));
    return m.llm ? tn_llm_export_onnx(m.llm, w->out, &o) : tn_embedder_export_onnx(m.embedder, w->out);
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* Matrices that a file stores [in, out] are turned on the way; of a square one the shape does not tell. */
static bool are_same(const float *x, const float *y, const convert_tensor *t) {
    if (memcmp(x, y, (size_t)t->numel * sizeof *x) == 0) return true;
    int64_t n = t->shape[0];
    bool same = t->rank == 2 && t->shape[1] == n;
    for (int64_t i = 0; i < t->numel && same; i++)
        same = x[i] == y[i % n * n + i / n];
    return same;
}

static tn_status compare_weight(const convert_file *in, const convert_file *out, const convert_tensor *t,
                                const convert_tensor *back, convert_report *r) {
    AUTO_CLI_FREE float *x = convert_numbers(in, t), *y = convert_numbers(out, back);
    convert_class *row = convert_class_of(r, t, back->type);
    row->tensors++;
    row->numel += t->numel;
    row->bytes += back->bytes;
    if (!x || !y) return TN_ERR_FORMAT;
    if (!are_same(x, y, t))
        return tn_backend_fail(TN_ERR_FORMAT, "verification failed: '%s' was read back with other numbers", t->name);
    r->compared++;
    return TN_OK;
}

/* Those that are there as they were; others were turned or joined, which the outputs have to prove. */
static tn_status compare_weights(const convert_file *in, const char *path, convert_report *r) {
    AUTO_CALL(convert_close) convert_file out = {.count = 0};
    TRY(convert_open(path, &out));
    for (int64_t i = 0; i < out.count; i++) {
        convert_tensor t, back;
        TRY(convert_at(&out, i, &back));
        if (convert_find(in, back.name, &t) != TN_OK) continue;
        bool same_form = t.rank == back.rank && memcmp(t.shape, back.shape, sizeof t.shape) == 0;
        if (same_form) TRY(compare_weight(in, &out, &t, &back, r));
    }
    return TN_OK;
}

/* ---- outputs ----------------------------------------------------------------------------------------------------- */

/* What a run is given and what it yields: ids, mask, places, and a cache with two a layer. */
typedef struct run_values {
    tn_onnx_value **in, **out;
    int in_count, out_count;
    bool embeds; /* one vector, whatever the number of tokens */
} run_values;

enum { VALUE_IDS, VALUE_MASK, VALUE_PLACES, VALUES_OF_TOKENS, LOGITS = 0, OUTPUTS_OF_TOKENS };

static bool has_cache(const run_values *v) { return v->out_count > OUTPUTS_OF_TOKENS; }

static tn_onnx_value *row_value(const int64_t *row, int64_t count) {
    tn_tensor *t = tn_from_data(row, (int64_t[]){1, count}, 2, TN_I64);
    tn_onnx_value *v = tn_onnx_value_tensor(t);
    tn_free(t);
    return v;
}

/* Token `first` and those that follow it, `count` of them. */
static tn_status give_tokens(run_values *v, const int32_t *ids, int64_t first, int64_t count) {
    int64_t rows[VALUES_OF_TOKENS][LONG_TEXT];
    for (int64_t i = 0; i < first + count; i++)
        rows[VALUE_MASK][i] = 1;
    for (int64_t i = 0; i < count; i++) {
        rows[VALUE_IDS][i] = ids[first + i];
        rows[VALUE_PLACES][i] = first + i;
    }
    for (int i = 0; i < v->in_count && i < VALUES_OF_TOKENS; i++) {
        tn_onnx_value_free(v->in[i]);
        v->in[i] = row_value(rows[i], i == VALUE_MASK ? first + count : count);
        if (!v->in[i]) return TN_ERR_MEMORY;
    }
    return TN_OK;
}

static tn_status give_no_past(const tn_onnx *network, run_values *v) {
    for (int i = VALUES_OF_TOKENS; i < v->in_count; i++) {
        tn_onnx_info info = {.struct_size = sizeof info};
        TRY(tn_onnx_input_at(network, i, &info));
        tn_tensor *t = tn_zeros((int64_t[]){1, info.shape[1], 0, info.shape[3]}, 4, info.dtype);
        v->in[i] = tn_onnx_value_tensor(t);
        tn_free(t);
        if (!v->in[i]) return TN_ERR_MEMORY;
    }
    return TN_OK;
}

static void keep_present(run_values *v) {
    for (int i = OUTPUTS_OF_TOKENS; i < v->out_count; i++) {
        tn_onnx_value **past = &v->in[i - OUTPUTS_OF_TOKENS + VALUES_OF_TOKENS];
        tn_onnx_value_free(*past);
        *past = v->out[i];
        v->out[i] = NULL;
    }
}

static tn_status run_piece(tn_onnx *network, run_values *v, int64_t numbers, float *out) {
    tn_status status = tn_onnx_run(network, v->in, v->out);
    tn_tensor *t = status == TN_OK ? tn_onnx_value_get(v->out[LOGITS]) : NULL;
    if (t && tn_numel(t) != numbers)
        status = tn_backend_fail(TN_ERR_FORMAT, "the network returns %lld numbers; expected %lld",
                                 (long long)tn_numel(t), (long long)numbers);
    if (status == TN_OK) status = tn_read(t, out, (size_t)numbers * sizeof *out);
    if (status == TN_OK) keep_present(v);
    onnx_free_values(v->out, v->out_count);
    return status;
}

/* A network with a cache is given a beginning, a token, and the rest. */
static tn_status run_pieces(tn_onnx *network, run_values *v, const int32_t *ids, int64_t count, int64_t width,
                            float *out) {
    const int64_t ends[] = {has_cache(v) ? count / 2 : count, has_cache(v) ? count / 2 + 1 : count, count};
    int64_t first = 0;
    TRY(give_no_past(network, v));
    for (int i = 0; i < 3; i++) {
        int64_t here = ends[i] - first;
        if (here == 0) continue;
        TRY(give_tokens(v, ids, first, here));
        TRY(run_piece(network, v, (v->embeds ? 1 : here) * width, out + first * width));
        first = ends[i];
    }
    return TN_OK;
}

static tn_status run_network(tn_onnx *network, const whole_model *m, const int32_t *ids, int64_t count, float *out) {
    run_values v = {.in_count = tn_onnx_input_count(network),
                    .out_count = tn_onnx_output_count(network),
                    .embeds = m->embedder != NULL};
    v.in = calloc((size_t)v.in_count + 1, sizeof(tn_onnx_value *));
    v.out = calloc((size_t)v.out_count + 1, sizeof(tn_onnx_value *));
    tn_status status = v.in && v.out ? run_pieces(network, &v, ids, count, m->width, out)
                                     : tn_backend_fail(TN_ERR_MEMORY, "out of memory for the values of a network");
    onnx_free_values(v.in, v.in_count);
    free(v.in);
    free(v.out);
    return status;
}

static tn_status run_model(whole_model *m, const int32_t *ids, int64_t count, float *out) {
    if (m->embedder) return tn_embedder_run(m->embedder, ids, &count, 1, out);
    TRY(tn_llm_rewind(m->llm, 0));
    return tn_llm_logits(m->llm, ids, count, out);
}

static tn_status compare_text(whole_model *m, tn_onnx *network, int64_t count, convert_report *r) {
    int32_t ids[LONG_TEXT];
    int64_t numbers = m->width * (m->embedder ? 1 : count);
    AUTO_CLI_FREE float *want = malloc(2 * (size_t)numbers * sizeof *want);
    if (!want) return tn_backend_fail(TN_ERR_MEMORY, "out of memory for %lld numbers", (long long)numbers);
    for (int64_t i = 0; i < count; i++)
        ids[i] = (int32_t)((i + 1) * 7919 % m->vocabulary);
    double most = 0, difference = 0;
    const float *got = want + numbers;
    TRY(run_model(m, ids, count, want));
    TRY(run_network(network, m, ids, count, want + numbers));
    for (int64_t i = 0; i < numbers; i++) {
        most = fmax(most, fabs((double)want[i]));
        double error = fabs((double)got[i] - (double)want[i]);
        if (!isfinite(error))
            return tn_backend_fail(
                TN_ERR_FORMAT, "verification failed: number %lld of the results is %g, but %g in the original model",
                (long long)i, (double)got[i], (double)want[i]);
        difference = fmax(difference, error);
    }
    if (difference > 0) r->output_error = fmax(r->output_error, difference / most);
    return TN_OK;
}

static tn_status compare_outputs(const convert_file *in, const char *path, convert_report *r) {
    static const double most_plain = 1e-4, most_in_blocks = 0.1; /* sums in another order; activations in 8 bits */
    whole_model m;
    tn_onnx *network = NULL;
    tn_status status = open_model(in->path, &m);
    if (status == TN_OK) status = tn_onnx_open(path, NULL, &network);
    if (status == TN_OK) status = compare_text(&m, network, SHORT_TEXT, r);
    if (status == TN_OK) status = compare_text(&m, network, LONG_TEXT, r);
    r->outputs = m.embedder ? "embeddings" : "logits";
    if (status == TN_OK && !(r->output_error <= (m.in_blocks ? most_in_blocks : most_plain)))
        status = tn_backend_fail(TN_ERR_FORMAT,
                                 "verification failed: '%s' computes other %s: they differ by %.2g of the largest",
                                 path, r->outputs, r->output_error);
    tn_onnx_close(network);
    close_model(&m);
    return status;
}

tn_status convert_verify_onnx(const convert_file *in, const convert_wishes *w, convert_report *r) {
    TRY(compare_weights(in, w->out, r));
    return compare_outputs(in, w->out, r);
}
