/* convert_rope.c — rope that is stretched for longer texts, as config.json and as GGUF files say it.
 *
 * GGUF has keys for what is a rule (linear, yarn) and tables of divisors, one a frequency, for what is not: one for all
 * texts (Llama 3's rule, worked out), or one within the trained length and one beyond it (longrope). Back in a folder
 * a table of Llama 3's rule is told as that rule again; any other one as a longrope whose two tables are the same. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/convert/convert.h"
#include "trunnion/backend.h"
#include "trunnion/ops.h"

static const double PI = 3.14159265358979323846;

static const char *const table_names[] = {"rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"};
enum { TABLE_ALL, TABLE_SHORT, TABLE_LONG, TABLES, KEY = 96, MOST_HALF = 1 << 20 };

bool convert_rope_is_table(const char *name) {
    for (int i = 0; i < TABLES; i++)
        if (strcmp(name, table_names[i]) == 0) return true;
    return false;
}

/* ---- rules ------------------------------------------------------------------------------------------------------- */

typedef struct llama3_rule {
    double factor, low, high, trained;
} llama3_rule;

/* What divides frequency i of `half`. Source: Llama 3.1's configuration, as transformers computes it. */
static double llama3_divisor(const llama3_rule *r, double base, int64_t half, int64_t i) {
    double turns = r->trained * pow(base, -(double)i / (double)half) / (2 * PI);
    double mix = fmin(fmax((turns - r->low) / (r->high - r->low), 0), 1);
    return 1 / ((1 - mix) / r->factor + mix);
}

/* The numbers of all published models of the family but for the factor and the trained length, which is a power of 2;
 * false where no such rule makes this table. */
static bool find_llama3(const float *table, int64_t half, double base, llama3_rule *r) {
    *r = (llama3_rule){.low = 1, .high = 4};
    for (int64_t i = 0; i < half; i++)
        r->factor = fmax(r->factor, (double)table[i]);
    for (r->trained = 16; r->trained <= 1 << 24; r->trained *= 2) {
        int64_t i = 0;
        while (i < half && fabs(llama3_divisor(r, base, half, i) / (double)table[i] - 1) < 1e-5)
            i++;
        if (i == half) return true;
    }
    return false;
}

static double usual_yarn(double factor) { return factor <= 1 ? 1 : 0.1 * log(factor) + 1; }

/* ---- from a folder ----------------------------------------------------------------------------------------------- */

static const tn_json *rope_of(const convert_folder *f) {
    const tn_json *root = tn_json_root(f->config), *rope = tn_json_get(root, "rope_parameters");
    const tn_json *own = tn_json_get(rope, "full_attention"); /* layers with a window have another one */
    if (tn_json_kind_of(own) == TN_JSON_OBJECT) return own;
    return tn_json_kind_of(rope) == TN_JSON_OBJECT ? rope : tn_json_get(root, "rope_scaling");
}

static double real_of(const tn_json *o, const char *key, double otherwise) {
    return tn_json_number(tn_json_get(o, key), otherwise);
}

static double base_of(const convert_folder *f) {
    return real_of(rope_of(f), "rope_theta", real_of(tn_json_root(f->config), "rope_theta", f->base));
}

static const char *rope_type_of(const convert_folder *f) {
    const tn_json *o = rope_of(f);
    const char *type = tn_json_string(tn_json_get(o, "rope_type"), tn_json_string(tn_json_get(o, "type"), "default"));
    return strcmp(type, "su") == 0 ? "longrope" : type; /* its old name */
}

static int64_t whole_of(const tn_json *o, const char *key, int64_t otherwise) {
    return tn_json_int(tn_json_get(o, key), otherwise);
}

static int64_t context_of(const convert_folder *f) {
    return whole_of(tn_json_root(f->config), "max_position_embeddings", 0);
}

static int64_t trained_of(const convert_folder *f) {
    const char *key = "original_max_position_embeddings";
    return whole_of(rope_of(f), key, whole_of(tn_json_root(f->config), key, context_of(f)));
}

static int64_t head_of(const convert_folder *f) {
    const tn_json *root = tn_json_root(f->config);
    return whole_of(root, "head_dim", whole_of(root, "hidden_size", 0) / f->heads);
}

/* Elements of a head that rope rotates: all of them, except in the one of these families that has the key. */
static int64_t rotated_of(const convert_folder *f) {
    if (strcmp(f->architecture, "phi3") != 0) return head_of(f);
    double part =
        real_of(rope_of(f), "partial_rotary_factor", real_of(tn_json_root(f->config), "partial_rotary_factor", 1));
    return part > 0 && part < 1 ? (int64_t)((double)head_of(f) * part) : head_of(f);
}

static int64_t half_of(const convert_folder *f) { return rotated_of(f) / 2; }

static tn_status add_table(convert_folder *f, int which, const float *numbers, int64_t half) {
    f->table_names[f->table_count] = table_names[which];
    tn_tensor *t = f->tables[f->table_count++] = tn_from_data(numbers, &half, 1, TN_F32);
    return tn_status_of(t);
}

static tn_status add_list(convert_folder *f, int which, const char *key, float *numbers, int64_t half) {
    const tn_json *list = tn_json_get(rope_of(f), key);
    bool fits = tn_json_kind_of(list) == TN_JSON_ARRAY && tn_json_length(list) == (size_t)half;
    for (int64_t i = 0; i < half && fits; i++) {
        numbers[i] = (float)tn_json_number(tn_json_at(list, (size_t)i), 0);
        fits = numbers[i] > 0 && isfinite(numbers[i]);
    }
    if (fits) return add_table(f, which, numbers, half);
    return convert_fail(f->path, TN_ERR_FORMAT, "'%s' must be a list of %lld numbers greater than 0", key,
                        (long long)half);
}

tn_status convert_rope_open(convert_folder *f) {
    const char *type = rope_type_of(f);
    const tn_json *o = rope_of(f);
    int64_t half = half_of(f);
    bool llama3 = strcmp(type, "llama3") == 0, two = strcmp(type, "longrope") == 0;
    if (!llama3 && !two) return TN_OK;
    if (half < 1 || half > MOST_HALF) return convert_fail(f->path, TN_ERR_FORMAT, "the head size is missing");
    llama3_rule r = {real_of(o, "factor", 0), real_of(o, "low_freq_factor", 0), real_of(o, "high_freq_factor", 0),
                     (double)trained_of(f)};
    if (llama3 && !(r.factor >= 1 && r.low > 0 && r.high > r.low && r.trained >= 1))
        return convert_fail(f->path, TN_ERR_FORMAT,
                            "rope type llama3 requires 'factor', 'low_freq_factor', a larger 'high_freq_factor' and "
                            "'original_max_position_embeddings'");
    float *numbers = malloc((size_t)half * sizeof *numbers);
    if (!numbers) return tn_backend_fail(TN_ERR_MEMORY, "out of memory for rope tables");
    for (int64_t i = 0; i < half && llama3; i++)
        numbers[i] = (float)llama3_divisor(&r, base_of(f), half, i);
    tn_status status = llama3 ? add_table(f, TABLE_ALL, numbers, half) : TN_OK;
    if (two) status = add_list(f, TABLE_LONG, "long_factor", numbers, half);
    if (two && status == TN_OK) status = add_list(f, TABLE_SHORT, "short_factor", numbers, half);
    free(numbers);
    return status;
}

static const char *rope_key_of(const char *architecture, const char *what, char out[KEY]) {
    snprintf(out, KEY, "%s.rope.%s", architecture, what);
    return out;
}

static tn_status put_real(const convert_folder *f, tn_gguf_writer *w, const char *what, double v) {
    char key[KEY];
    return tn_gguf_put_float(w, rope_key_of(f->architecture, what, key), TN_GGUF_F32, v);
}

static tn_status put_trained(const convert_folder *f, tn_gguf_writer *w) {
    char key[KEY];
    return tn_gguf_put_int(w, rope_key_of(f->architecture, "scaling.original_context_length", key), TN_GGUF_U32,
                           trained_of(f));
}

static tn_status put_linear(const convert_folder *f, tn_gguf_writer *w) {
    return put_real(f, w, "scaling.factor", real_of(rope_of(f), "factor", 1));
}

static tn_status put_yarn(const convert_folder *f, tn_gguf_writer *w) {
    const tn_json *o = rope_of(f);
    double factor = real_of(o, "factor", 1), usual = usual_yarn(factor);
    double part = real_of(o, "mscale", 0), all = real_of(o, "mscale_all_dim", 0);
    double fast = real_of(o, "beta_fast", 32), slow = real_of(o, "beta_slow", 1);
    if (!tn_json_bool(tn_json_get(o, "truncate"), true) || (part > 0 && all > 0))
        return convert_fail(f->path, TN_ERR_UNSUPPORTED,
                            "yarn with 'truncate' false or with 'mscale' cannot be converted to GGUF");
    double amplitude = real_of(o, "attention_factor", usual) / usual;
    TRY(put_real(f, w, "scaling.factor", factor));
    TRY(put_trained(f, w));
    if (amplitude != 1) TRY(put_real(f, w, "scaling.attn_factor", amplitude));
    if (fast != 32) TRY(put_real(f, w, "scaling.yarn_beta_fast", fast));
    return slow != 1 ? put_real(f, w, "scaling.yarn_beta_slow", slow) : TN_OK;
}

static tn_status put_longrope(const convert_folder *f, tn_gguf_writer *w) {
    double trained = (double)trained_of(f), factor = real_of(rope_of(f), "factor", (double)context_of(f) / trained);
    double usual = factor <= 1 || trained <= 1 ? 1 : sqrt(1 + log(factor) / log(trained));
    TRY(put_trained(f, w));
    return put_real(f, w, "scaling.attn_factor", real_of(rope_of(f), "attention_factor", usual));
}

/* by config.json's word; named: GGUF says it too */
static const struct {
    const char *type;
    bool named;
    tn_status (*put)(const convert_folder *f, tn_gguf_writer *w);
} ways[] = {
    {"default", false, NULL}, {"dynamic", false, NULL} /* another base beyond the trained length alone */,
    {"llama3", false, NULL},  {"linear", true, put_linear},
    {"yarn", true, put_yarn}, {"longrope", true, put_longrope},
};

tn_status convert_rope_put(const convert_folder *f, tn_gguf_writer *w) {
    char key[KEY];
    const char *type = rope_type_of(f);
    TRY(put_real(f, w, "freq_base", base_of(f)));
    TRY(tn_gguf_put_int(w, rope_key_of(f->architecture, "dimension_count", key), TN_GGUF_U32, rotated_of(f)));
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        if (strcmp(ways[i].type, type) != 0) continue;
        if (ways[i].named)
            TRY(tn_gguf_put_string(w, rope_key_of(f->architecture, "scaling.type", key), type, (int64_t)strlen(type)));
        return ways[i].put ? ways[i].put(f, w) : TN_OK;
    }
    return convert_fail(f->path, TN_ERR_UNSUPPORTED, "rope type '%.40s' cannot be converted to GGUF", type);
}

/* ---- to a folder ------------------------------------------------------------------------------------------------- */

typedef struct rope_back {
    const tn_gguf *file;
    const char *architecture;
    cli_json *j;
} rope_back;

static double key_real(const rope_back *b, const char *what, double otherwise) {
    char key[KEY];
    double v;
    const tn_gguf_value *value = tn_gguf_get(b->file, rope_key_of(b->architecture, what, key));
    return value && tn_gguf_float(value, 0, &v) == TN_OK ? v : otherwise;
}

static int64_t key_whole(const rope_back *b, const char *what, int64_t otherwise) {
    char key[KEY];
    int64_t v;
    const tn_gguf_value *value = tn_gguf_get(b->file, rope_key_of(b->architecture, what, key));
    return value && tn_gguf_int(value, 0, &v) == TN_OK ? v : otherwise;
}

static bool type_is(const rope_back *b, const char *word) {
    char key[KEY];
    const char *text;
    int64_t length;
    const tn_gguf_value *value = tn_gguf_get(b->file, rope_key_of(b->architecture, "scaling.type", key));
    return value && tn_gguf_string(value, 0, &text, &length) == TN_OK && (size_t)length == strlen(word) &&
           memcmp(text, word, (size_t)length) == 0;
}

static bool has_key(const rope_back *b, const char *what) {
    char key[KEY];
    return tn_gguf_get(b->file, rope_key_of(b->architecture, what, key)) != NULL;
}

/* Files of before scaling had types have a factor alone. */
static bool is_linear(const rope_back *b) {
    return has_key(b, "scaling.type") ? type_is(b, "linear") : has_key(b, "scaling.factor");
}

/* How many divisors a table has; 0: the file has none, -1: it is no list of them. */
static int64_t table_length(const rope_back *b, int which) {
    tn_gguf_info info = {.struct_size = sizeof info};
    if (tn_gguf_find(b->file, table_names[which], &info) != TN_OK) return 0;
    return info.rank == 1 && info.shape[0] > 0 && info.shape[0] <= MOST_HALF ? info.shape[0] : -1;
}

/* The numbers of a table; NULL where the file has none. Free them. */
static float *read_table(const rope_back *b, int which, int64_t *half) {
    *half = table_length(b, which);
    if (*half < 1) return NULL;
    float *numbers = malloc((size_t)*half * sizeof *numbers + 1);
    tn_tensor *t = tn_gguf_tensor(b->file, table_names[which]), *cast = tn_cast(t, TN_F32);
    bool read = numbers && tn_read(cast, numbers, (size_t)*half * sizeof *numbers) == TN_OK;
    tn_free(cast);
    tn_free(t);
    if (read) return numbers;
    free(numbers);
    return NULL;
}

static void put_list(cli_json *j, const char *key, const float *numbers, int64_t half) {
    cli_json_write(j, "%s: [", key);
    for (int64_t i = 0; i < half; i++)
        cli_json_write(j, "%g", (double)numbers[i]);
    cli_json_write(j, "]");
}

static void put_tables(const rope_back *b, const float *within, const float *beyond, int64_t half, int64_t trained,
                       double amplitude) {
    cli_json_write(b->j, "'rope_type': 'longrope'");
    put_list(b->j, "short_factor", within, half);
    put_list(b->j, "long_factor", beyond, half);
    cli_json_write(b->j, "'original_max_position_embeddings': %jd, 'attention_factor': %g", trained, amplitude);
}

static bool back_tables(const rope_back *b, int64_t context) {
    int64_t half = 0, other = -1;
    float *within = read_table(b, TABLE_SHORT, &half), *beyond = read_table(b, TABLE_LONG, &other);
    bool both = within && beyond && half == other;
    if (both) {
        int64_t trained = key_whole(b, "scaling.original_context_length", context);
        put_tables(b, within, beyond, half, trained, key_real(b, "scaling.attn_factor", 1));
    }
    free(within);
    free(beyond);
    return both;
}

static bool back_table(const rope_back *b, double base, int64_t context) {
    int64_t half = 0;
    llama3_rule r;
    double amplitude = key_real(b, "scaling.attn_factor", 1);
    float *all = read_table(b, TABLE_ALL, &half);
    if (all && amplitude == 1 && find_llama3(all, half, base, &r)) {
        cli_json_write(b->j,
                       "'rope_type': 'llama3', 'factor': %g, 'low_freq_factor': %g, 'high_freq_factor': %g, "
                       "'original_max_position_embeddings': %jd",
                       r.factor, r.low, r.high, (int64_t)r.trained);
    } else if (all) {
        put_tables(b, all, all, half, context, amplitude);
    }
    free(all);
    return all != NULL;
}

static void back_rule(const rope_back *b, double factor, int64_t context) {
    bool yarn = type_is(b, "yarn"), linear = is_linear(b);
    cli_json_write(b->j, "'rope_type': %s", yarn ? "yarn" : linear ? "linear" : "default");
    if (yarn || linear) cli_json_write(b->j, "'factor': %g", factor);
    if (!yarn) return;
    cli_json_write(b->j,
                   "'original_max_position_embeddings': %jd, 'attention_factor': %g, 'beta_fast': %g, 'beta_slow': %g",
                   key_whole(b, "scaling.original_context_length", context),
                   key_real(b, "scaling.attn_factor", 1) * usual_yarn(factor),
                   key_real(b, "scaling.yarn_beta_fast", 32), key_real(b, "scaling.yarn_beta_slow", 1));
}

/* A folder has a rule or tables, and a factor of sines and cosines beside yarn's rule and tables alone. */
bool convert_rope_is_known(const tn_gguf *file, const char *architecture) {
    static const char *const other[] = {"scaling.yarn_ext_factor", "scaling.yarn_attn_factor",
                                        "scaling.yarn_log_multiplier", "scaling.alpha"};
    rope_back b = {file, architecture, NULL};
    int64_t all = table_length(&b, TABLE_ALL), within = table_length(&b, TABLE_SHORT),
            beyond = table_length(&b, TABLE_LONG);
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        if (has_key(&b, other[i])) return false;
    if (beyond || type_is(&b, "longrope")) return beyond > 0 && beyond == within && !all;
    bool yarn = type_is(&b, "yarn"), linear = is_linear(&b);
    if (all < 0 || within || (all > 0 && (yarn || linear))) return false;
    if (all == 0 && !yarn && key_real(&b, "scaling.attn_factor", 1) != 1) return false;
    return yarn || linear || !has_key(&b, "scaling.type") || type_is(&b, "none");
}

void convert_rope_back(const tn_gguf *file, const char *architecture, int64_t context, int64_t head, cli_json *j) {
    rope_back b = {file, architecture, j};
    double base = key_real(&b, "freq_base", 10000), factor = key_real(&b, "scaling.factor", 1);
    cli_json_write(j, "'rope_theta': %g", base);
    if (has_key(&b, "dimension_count") && head > 0 && key_whole(&b, "dimension_count", head) < head)
        cli_json_write(j, "'partial_rotary_factor': %g", (double)key_whole(&b, "dimension_count", head) / (double)head);
    cli_json_write(j, "'rope_scaling': {");
    if (!back_tables(&b, context) && !back_table(&b, base, context)) back_rule(&b, factor, context);
    cli_json_write(j, "}");
}
