/* run_steps.c — runs one after another in which a network is given its own outputs again: states of recurrent networks,
 * and the keys and values of language models as exporters write them.
 *
 * An output is fed to the input that a pair of names says; without pairs from the user, those below are looked for. A
 * network with `input_ids` and `logits` is taken for a language model: each step's likeliest token is the next one's
 * input, and mask and places grow with the text. One that has no cache is given the whole text each time. */
#define TN_NO_CALLER_LINES 1 /* errors name inputs */
#include "cli/run/run.h"

#include <stdlib.h>
#include <string.h>

#include "trunnion/backend.h"
#include "trunnion/ops.h"

/* As Hugging Face's, ONNX Runtime's and our own exporter call them. */
static const steps_pair usual_pairs[] = {
    {"present.*", "past_key_values.*"},
    {"present.*", "past.*"},
    {"present_key_values.*", "past_key_values.*"},
    {"present_*", "past_*"},
    {"present*", "past*"},
    {"*_out", "*"},
};

/* ---- names ------------------------------------------------------------------------------------------------------- */

bool steps_take_pair(void *steps, const char *arg) {
    run_steps *s = steps;
    char *equals = strchr((char *)(uintptr_t)arg, '='); /* of argv, which is ours */
    if (!equals || equals == arg || !equals[1] || s->pair_count == STEPS_MOST_PAIRS) return false;
    *equals = 0;
    steps_pair added = {arg, equals + 1};
    for (int i = 0; i < s->pair_count; i++) {
        if (strcmp(s->pairs[i].from, added.from) == 0) s->twice = added.from;
        if (strcmp(s->pairs[i].to, added.to) == 0) s->twice = added.to;
    }
    s->pairs[s->pair_count++] = added;
    return true;
}

/* Does `name` fit the pattern? Then *rest is what its * stands for, of *length bytes. */
static bool step_pair_fits(const char *pattern, const char *name, const char **rest, size_t *length) {
    const char *star = strchr(pattern, '*');
    if (!star) {
        *length = 0;
        return strcmp(pattern, name) == 0;
    }
    size_t before = (size_t)(star - pattern), after = strlen(star + 1), whole = strlen(name);
    if (whole < before + after || strncmp(pattern, name, before) != 0 || strcmp(name + whole - after, star + 1) != 0)
        return false;
    *rest = name + before;
    *length = whole - before - after;
    return true;
}

static bool names_pair(const steps_pair *p, const char *output, const char *input) {
    const char *a = "", *b = "";
    size_t n, m;
    return step_pair_fits(p->from, output, &a, &n) && step_pair_fits(p->to, input, &b, &m) && n == m &&
           memcmp(a, b, n) == 0;
}

static tn_onnx_info info_of(const tn_onnx *m, int i, bool output) {
    tn_onnx_info info = {.struct_size = sizeof info};
    (void)(output ? tn_onnx_output_at(m, i, &info) : tn_onnx_input_at(m, i, &info));
    return info;
}

static int find_step_pair(const tn_onnx *m, const char *name, bool output) {
    int count = output ? tn_onnx_output_count(m) : tn_onnx_input_count(m);
    for (int i = 0; i < count; i++)
        if (strcmp(info_of(m, i, output).name, name) == 0) return i;
    return -1;
}

static int paired_input(const run_steps *s, const tn_onnx *m, const char *output) {
    const steps_pair *pairs = s->pair_count ? s->pairs : usual_pairs;
    size_t count = s->pair_count ? (size_t)s->pair_count : sizeof usual_pairs / sizeof *usual_pairs;
    for (size_t p = 0; p < count; p++)
        for (int i = 0; i < tn_onnx_input_count(m); i++)
            if (names_pair(&pairs[p], output, info_of(m, i, false).name)) return i;
    return -1;
}

static bool is_fed(const run_steps *s, const tn_onnx *m, int input) {
    for (int k = 0; k < tn_onnx_output_count(m); k++)
        if (s->fed[k] == input) return true;
    return false;
}

/* A user's pair that names nothing is a mistake. */
static tn_status check_pairs(const run_steps *s, const tn_onnx *m) {
    for (int p = 0; p < s->pair_count; p++) {
        bool used = false;
        for (int k = 0; k < tn_onnx_output_count(m); k++)
            used |=
                s->fed[k] >= 0 && names_pair(&s->pairs[p], info_of(m, k, true).name, info_of(m, s->fed[k], false).name);
        if (!used)
            return tn_backend_fail(TN_ERR_ARGUMENT, "--feed %s=%s: unknown output or input (-v lists them)",
                                   s->pairs[p].from, s->pairs[p].to);
    }
    return TN_OK;
}

tn_status steps_begin(run_steps *s, const tn_onnx *m) {
    s->fed = malloc(((size_t)tn_onnx_output_count(m) + 1) * sizeof *s->fed);
    if (!s->fed) return tn_backend_fail(TN_ERR_MEMORY, "out of memory for the names of outputs");
    for (int k = 0; k < tn_onnx_output_count(m); k++)
        s->cached |= (s->fed[k] = paired_input(s, m, info_of(m, k, true).name)) >= 0;
    s->ids = find_step_pair(m, "input_ids", false), s->logits = find_step_pair(m, "logits", true);
    s->mask = find_step_pair(m, "attention_mask", false), s->places = find_step_pair(m, "position_ids", false);
    s->branch = find_step_pair(m, "use_cache_branch", false);
    tn_status status = check_pairs(s, m);
    if (status != TN_OK || s->cached || (s->ids >= 0 && s->logits >= 0)) return status;
    return tn_backend_fail(
        TN_ERR_ARGUMENT, "--steps: no output of this model matches an input of its next run; pass --feed OUTPUT=INPUT");
}

/* ---- what the first run begins with ------------------------------------------------------------------------------ */

/* The value takes t over. */
static tn_status put_step_pair(tn_onnx_value **in, tn_tensor *t) {
    tn_status status = tn_eval(&t, 1);
    tn_onnx_value *v = status == TN_OK ? tn_onnx_value_tensor(t) : NULL;
    tn_free(t);
    if (!v) return status == TN_OK ? TN_ERR_MEMORY : status;
    tn_onnx_value_free(*in);
    *in = v;
    return TN_OK;
}

static tn_dtype step_pair_dtype_of(const tn_onnx *m, int i) {
    tn_dtype t = info_of(m, i, false).dtype;
    return t == TN_DTYPE_COUNT ? TN_F32 : t;
}

enum { ONES = -1 }; /* instead of a first number */

/* [batch, count]: ones, or first, first + 1 … */
static tn_status put_row(const run_steps *s, const tn_onnx *m, tn_onnx_value **in, int i, int64_t first,
                         int64_t count) {
    tn_tensor *t = NULL;
    {
        TN_SCOPE;
        tn_tensor *row = first == ONES ? tn_ones(TN_DIMS(count), TN_I64)
                                       : tn_arange((double)first, (double)(first + count), 1, TN_I64);
        tn_tensor *all = tn_expand(tn_unsqueeze(row, 0), TN_DIMS(s->batch, count));
        t = tn_retain(tn_contiguous(tn_cast(all, step_pair_dtype_of(m, i))));
    }
    return put_step_pair(&in[i], t);
}

static bool begins(const char *name, const char *with) { return name && strncmp(name, with, strlen(with)) == 0; }

/* Zeros, as many as there are before the first token: none. */
static tn_status put_empty(const run_steps *s, const tn_onnx *m, tn_onnx_value **in, int i,
                           int64_t (*extent)(void *, const tn_onnx_info *, int, int64_t), void *ctx) {
    tn_onnx_info info = info_of(m, i, false);
    int64_t shape[TN_MAX_RANK];
    if (info.kind != TN_ONNX_TENSOR || info.rank < 0)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "the first value of input '%s' is unknown: its rank is not fixed; pass it with -i",
                               info.name);
    for (int d = 0; d < info.rank; d++) {
        bool of_batch = d == 0 || begins(info.dims[d], "batch");
        shape[d] = info.shape[d] >= 0 ? info.shape[d] : extent(ctx, &info, d, of_batch ? s->batch : 0);
    }
    return put_step_pair(&in[i], tn_zeros(shape, info.rank, step_pair_dtype_of(m, i)));
}

/* How many tokens the caches hold: of the first one, which is [batch, heads, positions, features] in all exports. */
static int64_t held(const run_steps *s, const tn_onnx *m, tn_onnx_value *const *in) {
    for (int k = 0; k < tn_onnx_output_count(m); k++) {
        const tn_tensor *t = s->fed[k] >= 0 && in[s->fed[k]] ? tn_onnx_value_get(in[s->fed[k]]) : NULL;
        if (t && tn_rank(t) == 4) return tn_size(t, 2);
    }
    return 0;
}

tn_status steps_make_inputs(run_steps *s, const tn_onnx *m, tn_onnx_value **in,
                            int64_t (*extent)(void *ctx, const tn_onnx_info *info, int d, int64_t otherwise),
                            void *ctx) {
    const tn_tensor *ids = s->ids >= 0 && in[s->ids] ? tn_onnx_value_get(in[s->ids]) : NULL;
    s->batch = ids && tn_rank(ids) > 0 ? tn_size(ids, 0) : 1;
    for (int i = 0; i < tn_onnx_input_count(m); i++)
        if (!in[i] && is_fed(s, m, i)) TRY(put_empty(s, m, in, i, extent, ctx));
    if (s->ids < 0 || s->logits < 0) return TN_OK;
    if (!ids || tn_rank(ids) != 2 || tn_numel(ids) < 1)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "--steps: a language model requires -i input_ids=FILE.npy, integers [texts, tokens]");
    int64_t count = tn_size(ids, 1), past = held(s, m, in);
    if (s->mask >= 0 && !in[s->mask]) TRY(put_row(s, m, in, s->mask, ONES, past + count));
    if (s->places >= 0 && !in[s->places]) TRY(put_row(s, m, in, s->places, past, count));
    if (s->branch >= 0 && !in[s->branch])
        TRY(put_step_pair(&in[s->branch], tn_zeros(TN_DIMS(1), step_pair_dtype_of(m, s->branch))));
    if (s->batch > 0 && (uint64_t)s->count < SIZE_MAX / 8 / (size_t)s->batch)
        s->tokens = calloc((size_t)(s->count * s->batch), sizeof *s->tokens);
    return s->tokens ? TN_OK : tn_backend_fail(TN_ERR_MEMORY, "out of memory for tokens");
}

/* ---- from one run to the next ------------------------------------------------------------------------------------ */

/* The likeliest token behind each text. */
static tn_status choose_step_pair(const run_steps *s, const tn_onnx_value *logits, int64_t *tokens) {
    const tn_tensor *t = tn_onnx_value_get(logits);
    if (!t || tn_rank(t) != 3 || tn_size(t, 0) != s->batch || tn_size(t, 1) < 1)
        return tn_backend_fail(TN_ERR_SHAPE, "--steps: 'logits' must be [%lld texts, tokens, vocabulary]",
                               (long long)s->batch);
    TN_SCOPE;
    tn_tensor *best = tn_argmax(tn_select(t, 1, tn_size(t, 1) - 1), TN_DIMS(1), false);
    return tn_read(tn_cast(best, TN_I64), tokens, (size_t)s->batch * sizeof *tokens);
}

/* Behind what input i holds along dim 1: a column, or (whole = false) the column alone. */
static tn_status append_step_pair(tn_onnx_value **in, int i, const tn_tensor *column, bool whole) {
    const tn_tensor *old = tn_onnx_value_get(in[i]);
    tn_tensor *t = NULL;
    {
        TN_SCOPE;
        tn_tensor *own = tn_cast(column, tn_dtype_of(old));
        t = tn_retain(tn_contiguous(whole ? tn_cat((tn_tensor *[]){tn_detach(old), own}, 2, 1) : own));
    }
    return put_step_pair(&in[i], t);
}

static tn_status lengthen(const run_steps *s, const int64_t *tokens, tn_onnx_value **in) {
    TN_SCOPE;
    tn_tensor *chosen = tn_from_data(tokens, TN_DIMS(s->batch, 1), TN_I64);
    TRY(append_step_pair(in, s->ids, chosen, !s->cached));
    if (s->mask >= 0) TRY(append_step_pair(in, s->mask, tn_ones(TN_DIMS(s->batch, 1), TN_I64), true));
    if (s->places < 0) return TN_OK;
    const tn_tensor *old = tn_onnx_value_get(in[s->places]);
    tn_tensor *next = tn_add(tn_narrow(old, 1, tn_size(old, 1) - 1, 1), tn_scalar_int(1));
    return append_step_pair(in, s->places, next, !s->cached);
}

tn_status steps_advance(run_steps *s, int64_t i, const tn_onnx *m, tn_onnx_value **in, tn_onnx_value **out) {
    int64_t *tokens = s->tokens ? s->tokens + i * s->batch : NULL;
    tn_status status = tokens ? choose_step_pair(s, out[s->logits], tokens) : TN_OK;
    if (status != TN_OK || i + 1 == s->count) return status;
    if (tokens) status = lengthen(s, tokens, in);
    if (status == TN_OK && s->branch >= 0)
        status = put_step_pair(&in[s->branch], tn_ones(TN_DIMS(1), step_pair_dtype_of(m, s->branch)));
    for (int k = 0; k < tn_onnx_output_count(m); k++) {
        if (status == TN_OK && s->fed[k] >= 0) {
            tn_onnx_value_free(in[s->fed[k]]);
            in[s->fed[k]] = out[k];
        } else {
            tn_onnx_value_free(out[k]);
        }
        out[k] = NULL;
    }
    return status;
}

/* ---- what came out ----------------------------------------------------------------------------------------------- */

void steps_put_text(const run_steps *s) {
    for (int64_t b = 0; s->tokens && b < s->batch; b++) {
        printf("tokens:");
        for (int64_t i = 0; i < s->count; i++)
            printf(" %lld", (long long)s->tokens[i * s->batch + b]);
        printf("\n");
    }
}

void steps_put_json(const run_steps *s, cli_json *j) {
    cli_json_write(j, "'tokens': [");
    for (int64_t b = 0; s->tokens && b < s->batch; b++) {
        cli_json_write(j, "[");
        for (int64_t i = 0; i < s->count; i++)
            cli_json_write(j, "%jd", s->tokens[i * s->batch + b]);
        cli_json_write(j, "]");
    }
    cli_json_write(j, "]");
}

void steps_end(run_steps *s) {
    free(s->fed);
    free(s->tokens);
    *s = (run_steps){0};
}
