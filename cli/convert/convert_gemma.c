/* convert_gemma.c — what Gemma's models say beyond all others, as config.json and as GGUF files have it: which layers
 * have a window, rope's base in these, caps of scores and logits, and what scores are divided by.
 *
 * GGUF has no word for the last one: readers take a head's width, and in the largest models another number, told by how
 * many layers there are. What differs from that is refused. */
#include <string.h>

#include "cli/convert/convert.h"
#include "trunnion/backend.h"

enum { KEY = 96, MOST_LAYERS = 4096 };

/* What readers of GGUF files take for granted. */
typedef struct gemma {
    const char *architecture;
    int64_t pattern;     /* the last of so many layers has no window */
    int64_t wide_layers; /* a model of so many divides by the width that a head has of the whole */
    double attention_cap, final_cap, local_base; /* 0: none, or as in all layers */
} gemma;

static const gemma gemmas[] = {{"gemma2", 2, 46, 50, 30, 0}, {"gemma3", 6, 62, 0, 0, 1e4}};

static const gemma *find_gemma(const char *architecture) {
    for (size_t i = 0; i < sizeof gemmas / sizeof *gemmas; i++)
        if (strcmp(gemmas[i].architecture, architecture) == 0) return &gemmas[i];
    return NULL;
}

bool convert_is_gemma(const char *architecture) { return find_gemma(architecture) != NULL; }

static const char *gemma_key_of(const char *architecture, const char *what, char out[KEY]) {
    snprintf(out, KEY, "%s.%s", architecture, what);
    return out;
}

/* ---- to GGUF ----------------------------------------------------------------------------------------------------- */

static const tn_json *member(const convert_folder *f, const char *key) {
    return tn_json_get(tn_json_root(f->config), key);
}

static bool is_null(const tn_json *v) { return v && tn_json_kind_of(v) == TN_JSON_NULL; }

static tn_status no_word(const convert_folder *f, const char *key) {
    return convert_fail(f->path, TN_ERR_UNSUPPORTED,
                        "'%s' differs from the value that %s GGUF files imply, and GGUF cannot store it", key,
                        f->architecture);
}

static bool slides(const convert_folder *f, int64_t layer, int64_t pattern) {
    const tn_json *types = member(f, "layer_types");
    if (tn_json_kind_of(types) != TN_JSON_ARRAY) return layer % pattern < pattern - 1;
    return strcmp(tn_json_string(tn_json_at(types, (size_t)layer), ""), "sliding_attention") == 0;
}

/* The number of layers after which windows repeat; 0: there is none. */
static int64_t find_pattern(const convert_folder *f, int64_t layers, int64_t usual) {
    int64_t told = tn_json_int(member(f, "sliding_window_pattern"), usual);
    told = told >= 1 && told <= MOST_LAYERS ? told : usual;
    for (int64_t pattern = told, tried = 0; tried <= layers + 1; pattern = ++tried) {
        int64_t i = 0;
        while (pattern > 0 && i < layers && slides(f, i, told) == (i % pattern < pattern - 1))
            i++;
        if (i == layers) return pattern;
    }
    return 0;
}

static tn_status put_windows(const convert_folder *f, const gemma *g, int64_t layers, tn_gguf_writer *w) {
    char key[KEY];
    const tn_json *given = member(f, "sliding_window");
    int64_t window = tn_json_int(given, 4096), pattern = find_pattern(f, layers, g->pattern);
    if (is_null(given)) return g->attention_cap > 0 ? no_word(f, "sliding_window") : TN_OK;
    if (window < 1 || window > INT32_MAX)
        return convert_fail(f->path, TN_ERR_FORMAT, "'sliding_window' must be an integer greater than 0");
    if (pattern == 0) return no_word(f, "layer_types");
    tn_status status =
        tn_gguf_put_int(w, gemma_key_of(f->architecture, "attention.sliding_window", key), TN_GGUF_U32, window);
    if (status != TN_OK || pattern == g->pattern) return status;
    return tn_gguf_put_int(w, gemma_key_of(f->architecture, "attention.sliding_window_pattern", key), TN_GGUF_U32,
                           pattern);
}

static tn_status put_caps(const convert_folder *f, const gemma *g, tn_gguf_writer *w) {
    const struct {
        const char *hf, *gguf;
        double usual;
        bool may_lack, may_have; /* in a GGUF file */
    } caps[] = {{"attn_logit_softcapping", "attn_logit_softcapping", g->attention_cap, g->attention_cap == 0,
                 g->attention_cap > 0},
                {"final_logit_softcapping", "final_logit_softcapping", g->final_cap, g->final_cap == 0, true}};
    for (size_t i = 0; i < sizeof caps / sizeof *caps; i++) {
        char key[KEY];
        const tn_json *v = member(f, caps[i].hf);
        double cap = is_null(v) ? 0 : tn_json_number(v, caps[i].usual);
        if (cap > 0 ? !caps[i].may_have : !caps[i].may_lack) return no_word(f, caps[i].hf);
        if (cap == 0) continue;
        TRY(tn_gguf_put_float(w, gemma_key_of(f->architecture, caps[i].gguf, key), TN_GGUF_F32, cap));
    }
    return TN_OK;
}

static tn_status put_local_rope(const convert_folder *f, const gemma *g, tn_gguf_writer *w) {
    char key[KEY];
    const tn_json *own = tn_json_get(member(f, "rope_parameters"), "sliding_attention");
    double base = tn_json_number(member(f, "rope_local_base_freq"), g->local_base);
    base = tn_json_number(tn_json_get(own, "rope_theta"), base);
    if (strcmp(tn_json_string(tn_json_get(own, "rope_type"), "default"), "default") != 0)
        return no_word(f, "rope_parameters");
    bool told = g->local_base > 0 || tn_json_kind_of(own) == TN_JSON_OBJECT; /* else all layers have the same */
    if (!told || base == g->local_base) return TN_OK;
    return tn_gguf_put_float(w, gemma_key_of(f->architecture, "rope.freq_base_swa", key), TN_GGUF_F32, base);
}

/* What scores are divided by the root of. */
static double divisor_of(const gemma *g, int64_t layers, int64_t hidden, int64_t heads, int64_t head) {
    return layers == g->wide_layers && heads > 0 ? (double)hidden / (double)heads : (double)head;
}

tn_status convert_gemma_put(const convert_folder *f, tn_gguf_writer *w) {
    const gemma *g = find_gemma(f->architecture);
    int64_t layers = tn_json_int(member(f, "num_hidden_layers"), 0), hidden = tn_json_int(member(f, "hidden_size"), 0);
    int64_t head = tn_json_int(member(f, "head_dim"), f->heads > 0 ? hidden / f->heads : 0);
    double scale = tn_json_number(member(f, "query_pre_attn_scalar"), 256);
    if (layers < 1 || layers > MOST_LAYERS)
        return convert_fail(f->path, TN_ERR_FORMAT, "'num_hidden_layers' must be from 1 to %d", MOST_LAYERS);
    if (scale != divisor_of(g, layers, hidden, f->heads, head)) return no_word(f, "query_pre_attn_scalar");
    TRY(put_windows(f, g, layers, w));
    TRY(put_caps(f, g, w));
    return put_local_rope(f, g, w);
}

/* ---- to a folder ------------------------------------------------------------------------------------------------- */

static double real_of(const tn_gguf *file, const char *architecture, const char *what, double otherwise) {
    char key[KEY];
    double v;
    const tn_gguf_value *value = tn_gguf_get(file, gemma_key_of(architecture, what, key));
    return value && tn_gguf_float(value, 0, &v) == TN_OK ? v : otherwise;
}

static int64_t whole_of(const tn_gguf *file, const char *architecture, const char *what, int64_t otherwise) {
    char key[KEY];
    int64_t v;
    const tn_gguf_value *value = tn_gguf_get(file, gemma_key_of(architecture, what, key));
    return value && tn_gguf_int(value, 0, &v) == TN_OK ? v : otherwise;
}

bool convert_gemma_is_known(const tn_gguf *file, const char *architecture) {
    const gemma *g = find_gemma(architecture);
    double base = real_of(file, architecture, "rope.freq_base", 1e4);
    return !g || g->local_base > 0 || real_of(file, architecture, "rope.freq_base_swa", base) == base;
}

static void put_types(const tn_gguf *file, const gemma *g, int64_t layers, cli_json *j) {
    char key[KEY];
    const tn_gguf_value *told =
        tn_gguf_get(file, gemma_key_of(g->architecture, "attention.sliding_window_pattern", key));
    bool each = told && tn_gguf_type_of(told) == TN_GGUF_ARRAY;
    int64_t pattern = each ? 0 : whole_of(file, g->architecture, "attention.sliding_window_pattern", g->pattern);
    cli_json_write(j, "'layer_types': [");
    for (int64_t i = 0; i < layers && i < MOST_LAYERS; i++) {
        bool slides = pattern < 1 || i % pattern < pattern - 1;
        if (each && tn_gguf_bool(told, i, &slides) != TN_OK) slides = false;
        cli_json_write(j, "%s", slides ? "sliding_attention" : "full_attention");
    }
    cli_json_write(j, "]");
}

static void put_cap(cli_json *j, const char *key, double cap) {
    if (cap > 0)
        cli_json_write(j, "%s: %f", key, cap);
    else
        cli_json_write(j, "%s: null", key);
}

void convert_gemma_back(const tn_gguf *file, const char *architecture, int64_t heads, cli_json *j) {
    const gemma *g = find_gemma(architecture);
    int64_t layers = whole_of(file, architecture, "block_count", 0);
    int64_t hidden = whole_of(file, architecture, "embedding_length", 0);
    int64_t head = whole_of(file, architecture, "attention.key_length", heads > 0 ? hidden / heads : 0);
    int64_t window = whole_of(file, architecture, "attention.sliding_window", g->attention_cap > 0 ? 4096 : 0);
    double base = real_of(file, architecture, "rope.freq_base", 1e4);
    cli_json_write(j, "'query_pre_attn_scalar': %g", divisor_of(g, layers, hidden, heads, head));
    if (window > 0)
        cli_json_write(j, "'sliding_window': %jd", window);
    else
        cli_json_write(j, "'sliding_window': null");
    put_types(file, g, layers, j);
    put_cap(j, "attn_logit_softcapping", real_of(file, architecture, "attn_logit_softcapping", g->attention_cap));
    put_cap(j, "final_logit_softcapping", real_of(file, architecture, "final_logit_softcapping", g->final_cap));
    cli_json_write(j, "'rope_local_base_freq': %g",
                   real_of(file, architecture, "rope.freq_base_swa", g->local_base > 0 ? g->local_base : base));
}
