/* convert_folder.c — a language model's Hugging Face folder as a GGUF file has it: names of tensors, the order of rows
 * in q and k, sizes from config.json, tokens from tokenizer.json. The table of names is read in the other direction too
 * (convert_to_folder.c).
 *
 * The families that GGUF calls llama, qwen2 and qwen3. In llama files rope turns neighbours, in folders the halves of a
 * head, so rows of q and k change places. Tokenizers: byte-level BPE, with the patterns that these families have. */
#include <stdlib.h>
#include <string.h>

#include "convert.h"
#include "trunnion/backend.h"
#include "trunnion/ops.h"

enum { KEY_SIZE = 96, TOKEN_NORMAL = 1, TOKEN_CONTROL = 3, TOKEN_USER = 4, TOKEN_UNUSED = 5, MOST_TOKENS = 1 << 22 };

/* ---- names ------------------------------------------------------------------------------------------------------- */

static const struct {
    const char *hf, *gguf;
    int heads; /* rows of a head change places: 1 heads, 2 key-value heads */
} names[] = {
    {"embed_tokens.weight", "token_embd.weight", 0},
    {"norm.weight", "output_norm.weight", 0},
    {"input_layernorm.weight", "attn_norm.weight", 0},
    {"post_attention_layernorm.weight", "ffn_norm.weight", 0},
    {"self_attn.q_proj.weight", "attn_q.weight", 1},
    {"self_attn.k_proj.weight", "attn_k.weight", 2},
    {"self_attn.v_proj.weight", "attn_v.weight", 0},
    {"self_attn.o_proj.weight", "attn_output.weight", 0},
    {"self_attn.q_proj.bias", "attn_q.bias", 1},
    {"self_attn.k_proj.bias", "attn_k.bias", 2},
    {"self_attn.v_proj.bias", "attn_v.bias", 0},
    {"self_attn.o_proj.bias", "attn_output.bias", 0},
    {"self_attn.q_norm.weight", "attn_q_norm.weight", 0},
    {"self_attn.k_norm.weight", "attn_k_norm.weight", 0},
    {"mlp.gate_proj.weight", "ffn_gate.weight", 0},
    {"mlp.up_proj.weight", "ffn_up.weight", 0},
    {"mlp.down_proj.weight", "ffn_down.weight", 0},
    {"mlp.gate_proj.bias", "ffn_gate.bias", 0},
    {"mlp.up_proj.bias", "ffn_up.bias", 0},
    {"mlp.down_proj.bias", "ffn_down.bias", 0},
};

static const struct {
    const char *type, *architecture;
} families[] = {{"llama", "llama"}, {"mistral", "llama"}, {"qwen2", "qwen2"}, {"qwen3", "qwen3"}};

static tn_status map_name(const convert_folder *f, const char *name, char *out, int64_t *heads) {
    const char *rest = strncmp(name, "model.", 6) == 0 ? name + 6 : name;
    long layer = -1;
    *heads = 0;
    if (strcmp(name, "lm_head.weight") == 0) {
        snprintf(out, CONVERT_NAME, "output.weight");
        return TN_OK;
    }
    if (strncmp(rest, "layers.", 7) == 0) {
        char *end;
        layer = strtol(rest + 7, &end, 10);
        rest = *end == '.' ? end + 1 : end;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(names[i].hf, rest) != 0 || (i < 2) != (layer < 0)) continue;
        if (layer < 0) snprintf(out, CONVERT_NAME, "%s", names[i].gguf);
        if (layer >= 0) snprintf(out, CONVERT_NAME, "blk.%ld.%s", layer, names[i].gguf);
        if (f->turned) *heads = names[i].heads == 1 ? f->heads : names[i].heads == 2 ? f->kv_heads : 0;
        return TN_OK;
    }
    return tn_backend_fail(TN_ERR_UNSUPPORTED, "'%s': the tensor '%.100s' is none that %s models have in GGUF files",
                           f->path, name, f->architecture);
}

/* The same backwards: a GGUF file's name to the folder's. */
static tn_status map_back(const convert_folder *f, const char *name, char *out, int64_t *heads) {
    const char *rest = name;
    long layer = -1;
    *heads = 0;
    if (strcmp(name, "output.weight") == 0) {
        snprintf(out, CONVERT_NAME, "lm_head.weight");
        return TN_OK;
    }
    if (strncmp(name, "blk.", 4) == 0) {
        char *end;
        layer = strtol(name + 4, &end, 10);
        rest = *end == '.' ? end + 1 : end;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(names[i].gguf, rest) != 0 || (i < 2) != (layer < 0)) continue;
        if (layer < 0) snprintf(out, CONVERT_NAME, "model.%s", names[i].hf);
        if (layer >= 0) snprintf(out, CONVERT_NAME, "model.layers.%ld.%s", layer, names[i].hf);
        if (f->turned) *heads = names[i].heads == 1 ? -f->heads : names[i].heads == 2 ? -f->kv_heads : 0;
        return TN_OK;
    }
    return tn_backend_fail(TN_ERR_UNSUPPORTED, "'%s': the tensor '%.100s' is none that %s models have in folders",
                           f->path, name, f->architecture);
}

tn_status convert_folder_name(const convert_folder *f, int64_t i, const char *name, const char **out, int64_t *heads) {
    if (!f->names[i]) {
        char mapped[CONVERT_NAME];
        tn_status status = (f->back ? map_back : map_name)(f, name, mapped, heads);
        if (status != TN_OK) return status;
        if (!(f->names[i] = strdup(mapped))) return tn_backend_fail(TN_ERR_MEMORY, "no memory for a name");
        f->turns[i] = *heads;
    }
    *out = f->names[i];
    *heads = f->turns[i];
    return TN_OK;
}

/* [heads, 2, half, …] → [heads, half, 2, …]: element i of the first half stands beside element i of the second. With
 * heads < 0 the other way round. */
tn_tensor *convert_turn(const tn_tensor *blocks, int64_t heads) {
    bool back = heads < 0;
    int64_t count = back ? -heads : heads;
    tn_tensor *t = tn_dtype_block(tn_dtype_of(blocks)) > 1 ? tn_cast(blocks, TN_F32) : tn_contiguous(blocks);
    int64_t rows = tn_size(t, 0), columns = tn_rank(t) > 1 ? tn_size(t, 1) : 1, half = rows / count / 2;
    tn_tensor *split = tn_reshape(t, (int64_t[]){count, back ? half : 2, back ? 2 : half, columns}, 4);
    tn_tensor *turned = tn_transpose(split, 1, 2);
    tn_tensor *joined = tn_reshape(turned, (int64_t[]){rows, columns}, tn_rank(t));
    tn_free(split);
    tn_free(turned);
    tn_free(t);
    return joined;
}

static const char *key_of(const convert_folder *f, const char *what, char *out) {
    snprintf(out, KEY_SIZE, "%s.%s", f->architecture, what);
    return out;
}

/* ---- config.json ------------------------------------------------------------------------------------------------- */

static tn_status parse(const convert_folder *f, const char *name, bool needed, tn_json_doc **out) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", f->path, name);
    FILE *there = fopen(path, "rb");
    *out = NULL;
    if (!there && !needed) return TN_OK;
    if (there) fclose(there);
    return tn_json_open(path, out);
}

static int64_t number_of(const convert_folder *f, const char *key, int64_t fallback) {
    return tn_json_int(tn_json_get(tn_json_root(f->config), key), fallback);
}

tn_status convert_folder_open(const char *path, int64_t tensors, convert_folder *f) {
    *f = (convert_folder){.path = path, .count = tensors};
    tn_status status = parse(f, "config.json", true, &f->config);
    if (status != TN_OK) return status;
    const char *type = tn_json_string(tn_json_get(tn_json_root(f->config), "model_type"), "");
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strcmp(families[i].type, type) == 0) f->architecture = families[i].architecture;
    if (!f->architecture)
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "'%s/config.json': models of type '%.40s' are not converted to GGUF; llama, mistral, "
                               "qwen2 and qwen3 are",
                               path, type);
    f->heads = number_of(f, "num_attention_heads", 0);
    f->kv_heads = number_of(f, "num_key_value_heads", f->heads);
    f->turned = strcmp(f->architecture, "llama") == 0;
    f->names = calloc((size_t)tensors + 1, sizeof *f->names);
    f->turns = calloc((size_t)tensors + 1, sizeof *f->turns);
    if (!f->names || !f->turns) return tn_backend_fail(TN_ERR_MEMORY, "no memory for %lld names", (long long)tensors);
    if (f->heads > 0 && f->kv_heads > 0) return TN_OK;
    return tn_backend_fail(TN_ERR_FORMAT, "'%s/config.json' does not say how many heads there are", path);
}

tn_status convert_folder_from(const tn_gguf *file, int64_t tensors, convert_folder *f) {
    const char *word;
    char key[KEY_SIZE];
    int64_t length;
    *f = (convert_folder){.path = tn_gguf_path(file), .count = tensors, .back = true};
    tn_status status = tn_gguf_get_string(file, "general.architecture", &word, &length);
    for (size_t i = 0; i < sizeof families / sizeof *families && status == TN_OK && !f->architecture; i++)
        if (strlen(families[i].architecture) == (size_t)length &&
            memcmp(families[i].architecture, word, (size_t)length) == 0)
            f->architecture = families[i].architecture;
    if (status != TN_OK) return status;
    if (!f->architecture)
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "'%s': models of architecture '%.*s' do not become folders; llama, qwen2 and qwen3 do",
                               f->path, (int)length, word);
    f->turned = strcmp(f->architecture, "llama") == 0;
    status = tn_gguf_get_int(file, key_of(f, "attention.head_count", key), &f->heads);
    f->kv_heads = f->heads;
    if (tn_gguf_get(file, key_of(f, "attention.head_count_kv", key)) && status == TN_OK)
        status = tn_gguf_get_int(file, key, &f->kv_heads);
    f->names = calloc((size_t)tensors + 1, sizeof *f->names);
    f->turns = calloc((size_t)tensors + 1, sizeof *f->turns);
    if (!f->names || !f->turns) return tn_backend_fail(TN_ERR_MEMORY, "no memory for %lld names", (long long)tensors);
    if (status != TN_OK || (f->heads > 0 && f->kv_heads > 0)) return status;
    return tn_backend_fail(TN_ERR_FORMAT, "'%s' does not say how many heads there are", f->path);
}

void convert_folder_close(convert_folder *f) {
    for (int64_t i = 0; i < f->count && f->names; i++)
        free(f->names[i]);
    free(f->names);
    free(f->turns);
    tn_json_free(f->config);
    *f = (convert_folder){0};
}

const convert_size convert_sizes[] = {
    {"num_hidden_layers", "block_count", true},
    {"max_position_embeddings", "context_length", true},
    {"hidden_size", "embedding_length", true},
    {"intermediate_size", "feed_forward_length", true},
    {"num_attention_heads", "attention.head_count", true},
    {"vocab_size", "vocab_size", true},
    {"head_dim", "attention.key_length", false},
    {"head_dim", "attention.value_length", false},
    {NULL, NULL, false},
};

static tn_status put_sizes(const convert_folder *f, tn_gguf_writer *w) {
    char key[KEY_SIZE];
    for (size_t i = 0; convert_sizes[i].hf; i++) {
        int64_t v = number_of(f, convert_sizes[i].hf, -1);
        if (v < 0 && !convert_sizes[i].needed) continue;
        if (v < 0)
            return tn_backend_fail(TN_ERR_FORMAT, "'%s/config.json' has no number '%s'", f->path, convert_sizes[i].hf);
        tn_status status = tn_gguf_put_int(w, key_of(f, convert_sizes[i].gguf, key), TN_GGUF_U32, v);
        if (status != TN_OK) return status;
    }
    int64_t head = number_of(f, "head_dim", number_of(f, "hidden_size", 0) / f->heads);
    tn_status status = tn_gguf_put_int(w, key_of(f, "rope.dimension_count", key), TN_GGUF_U32, head);
    if (status != TN_OK) return status;
    return tn_gguf_put_int(w, key_of(f, "attention.head_count_kv", key), TN_GGUF_U32, f->kv_heads);
}

static tn_status put_rope(const convert_folder *f, tn_gguf_writer *w) {
    char key[KEY_SIZE];
    const tn_json *root = tn_json_root(f->config), *rope = tn_json_get(root, "rope_parameters");
    if (tn_json_kind_of(rope) != TN_JSON_OBJECT) rope = tn_json_get(root, "rope_scaling");
    double base =
        tn_json_number(tn_json_get(rope, "rope_theta"), tn_json_number(tn_json_get(root, "rope_theta"), 10000));
    const char *type =
        tn_json_string(tn_json_get(rope, "rope_type"), tn_json_string(tn_json_get(rope, "type"), "default"));
    tn_status status = tn_gguf_put_float(w, key_of(f, "rope.freq_base", key), TN_GGUF_F32, base);
    if (status != TN_OK || strcmp(type, "default") == 0) return status;
    if (strcmp(type, "linear") != 0)
        return tn_backend_fail(TN_ERR_UNSUPPORTED, "'%s/config.json': rope of type '%.40s' is not converted to GGUF",
                               f->path, type);
    status = tn_gguf_put_string(w, key_of(f, "rope.scaling.type", key), "linear", 6);
    if (status != TN_OK) return status;
    return tn_gguf_put_float(w, key_of(f, "rope.scaling.factor", key), TN_GGUF_F32,
                             tn_json_number(tn_json_get(rope, "factor"), 1));
}

/* ---- tokenizer.json ---------------------------------------------------------------------------------------------- */

typedef struct vocabulary {
    const char **tokens, **merges;
    int32_t *types;
    char **joined; /* merges that were pairs */
    int64_t count, merge_count;
} vocabulary;

static void vocabulary_free(vocabulary *v) {
    for (int64_t i = 0; i < v->merge_count && v->joined; i++)
        free(v->joined[i]);
    free(v->tokens);
    free(v->merges);
    free(v->types);
    free(v->joined);
}

static tn_status place_token(vocabulary *v, const char *text, int64_t id, int32_t type) {
    if (!text || id < 0 || id >= v->count)
        return tn_backend_fail(TN_ERR_FORMAT, "tokenizer.json: a token of number %lld, of %lld", (long long)id,
                               (long long)v->count);
    v->tokens[id] = text;
    v->types[id] = type;
    return TN_OK;
}

static tn_status read_tokens(const convert_folder *f, const tn_json *root, vocabulary *v) {
    const tn_json *vocab = tn_json_get(tn_json_get(root, "model"), "vocab"), *added = tn_json_get(root, "added_tokens");
    v->count = number_of(f, "vocab_size", 0);
    if (v->count < 1 || v->count > MOST_TOKENS) return tn_backend_fail(TN_ERR_FORMAT, "config.json: no vocab_size");
    v->tokens = calloc((size_t)v->count, sizeof *v->tokens);
    v->types = calloc((size_t)v->count, sizeof *v->types);
    if (!v->tokens || !v->types)
        return tn_backend_fail(TN_ERR_MEMORY, "no memory for %lld tokens", (long long)v->count);
    tn_status status = TN_OK;
    for (size_t i = 0; tn_json_key(vocab, i) && status == TN_OK; i++)
        status = place_token(v, tn_json_key(vocab, i), tn_json_int(tn_json_at(vocab, i), -1), TOKEN_NORMAL);
    for (size_t i = 0; i < tn_json_length(added) && status == TN_OK; i++) {
        const tn_json *t = tn_json_at(added, i);
        status = place_token(v, tn_json_string(tn_json_get(t, "content"), NULL), tn_json_int(tn_json_get(t, "id"), -1),
                             tn_json_bool(tn_json_get(t, "special"), false) ? TOKEN_CONTROL : TOKEN_USER);
    }
    for (int64_t i = 0; i < v->count; i++) {
        if (v->tokens[i]) continue;
        v->tokens[i] = "[unused]";
        v->types[i] = TOKEN_UNUSED;
    }
    return status;
}

/* Older files have a merge as one text, newer ones as a pair. */
static tn_status read_merges(const tn_json *root, vocabulary *v) {
    const tn_json *merges = tn_json_get(tn_json_get(root, "model"), "merges");
    size_t count = tn_json_length(merges);
    v->merges = calloc(count + 1, sizeof *v->merges);
    v->joined = calloc(count + 1, sizeof *v->joined);
    if (!v->merges || !v->joined) return tn_backend_fail(TN_ERR_MEMORY, "no memory for %zu merges", count);
    for (size_t i = 0; i < count; i++) {
        const tn_json *m = tn_json_at(merges, i);
        const char *a = tn_json_string(tn_json_at(m, 0), NULL), *b = tn_json_string(tn_json_at(m, 1), NULL);
        size_t size = a && b ? strlen(a) + strlen(b) + 2 : 1;
        v->merge_count = (int64_t)i + 1;
        v->merges[i] = tn_json_string(m, NULL);
        if (v->merges[i]) continue;
        v->merges[i] = v->joined[i] = malloc(size);
        if (!a || !b || !v->joined[i]) return tn_backend_fail(TN_ERR_FORMAT, "tokenizer.json: merge %zu is none", i);
        snprintf(v->joined[i], size, "%s %s", a, b);
    }
    return TN_OK;
}

static bool has_step(const tn_json *pre, const char *type) {
    const tn_json *list = tn_json_get(pre, "pretokenizers");
    if (strcmp(tn_json_string(tn_json_get(pre, "type"), ""), type) == 0) return true;
    for (size_t i = 0; i < tn_json_length(list); i++)
        if (strcmp(tn_json_string(tn_json_get(tn_json_at(list, i), "type"), ""), type) == 0) return true;
    return false;
}

/* What GGUF calls the patterns that cut a text; NULL for others. */
static const char *pattern_name(const convert_folder *f, const tn_json *root) {
    const tn_json *pre = tn_json_get(root, "pre_tokenizer");
    if (strcmp(tn_json_string(tn_json_get(tn_json_get(root, "model"), "type"), ""), "BPE") != 0) return NULL;
    if (!has_step(pre, "ByteLevel")) return NULL;
    if (strncmp(f->architecture, "qwen", 4) == 0) return has_step(pre, "Split") ? "qwen2" : "gpt-2";
    if (has_step(pre, "Split")) return "llama-bpe";
    return has_step(pre, "Digits") ? "smollm" : "gpt-2";
}

/* A number, or the first of a list. */
static tn_status put_id(const convert_folder *f, tn_gguf_writer *w, const char *hf, const char *key) {
    const tn_json *v = tn_json_get(tn_json_root(f->config), hf);
    int64_t id = tn_json_int(tn_json_kind_of(v) == TN_JSON_ARRAY ? tn_json_at(v, 0) : v, -1);
    return id < 0 ? TN_OK : tn_gguf_put_int(w, key, TN_GGUF_U32, id);
}

static tn_status put_template(const convert_folder *f, tn_gguf_writer *w) {
    tn_json_doc *doc;
    tn_status status = parse(f, "tokenizer_config.json", false, &doc);
    const tn_json *root = tn_json_root(doc);
    const char *text = tn_json_string(tn_json_get(root, "chat_template"), NULL);
    if (status == TN_OK && text) status = tn_gguf_put_string(w, "tokenizer.chat_template", text, (int64_t)strlen(text));
    if (status == TN_OK && tn_json_kind_of(tn_json_get(root, "add_bos_token")) == TN_JSON_BOOL)
        status = tn_gguf_put_int(w, "tokenizer.ggml.add_bos_token", TN_GGUF_BOOL,
                                 tn_json_bool(tn_json_get(root, "add_bos_token"), false));
    tn_json_free(doc);
    return status;
}

static tn_status put_vocabulary(const convert_folder *f, const tn_json *root, tn_gguf_writer *w) {
    vocabulary v = {0};
    const char *pattern = pattern_name(f, root);
    if (!pattern)
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "'%s/tokenizer.json' is no byte-level BPE, which alone is converted; --like FILE.gguf "
                               "takes the tokenizer from another file",
                               f->path);
    tn_status status = read_tokens(f, root, &v);
    if (status == TN_OK) status = read_merges(root, &v);
    if (status == TN_OK) status = tn_gguf_put_string(w, "tokenizer.ggml.model", "gpt2", 4);
    if (status == TN_OK) status = tn_gguf_put_string(w, "tokenizer.ggml.pre", pattern, (int64_t)strlen(pattern));
    if (status == TN_OK) status = tn_gguf_put_strings(w, "tokenizer.ggml.tokens", v.count, v.tokens, NULL);
    if (status == TN_OK) status = tn_gguf_put_array(w, "tokenizer.ggml.token_type", TN_GGUF_I32, v.count, v.types);
    if (status == TN_OK) status = tn_gguf_put_strings(w, "tokenizer.ggml.merges", v.merge_count, v.merges, NULL);
    vocabulary_free(&v);
    if (status == TN_OK) status = put_id(f, w, "bos_token_id", "tokenizer.ggml.bos_token_id");
    if (status == TN_OK) status = put_id(f, w, "eos_token_id", "tokenizer.ggml.eos_token_id");
    return status == TN_OK ? put_template(f, w) : status;
}

static tn_status put_tokenizer(const convert_folder *f, tn_gguf_writer *w) {
    tn_json_doc *doc;
    tn_status status = parse(f, "tokenizer.json", false, &doc);
    if (status == TN_OK && doc) status = put_vocabulary(f, tn_json_root(doc), w);
    tn_json_free(doc);
    return status;
}

tn_status convert_folder_metadata(const convert_folder *f, tn_gguf_writer *w) {
    char key[KEY_SIZE];
    double small = tn_json_number(tn_json_get(tn_json_root(f->config), "rms_norm_eps"), 1e-6);
    tn_status status = tn_gguf_put_string(w, "general.architecture", f->architecture, (int64_t)strlen(f->architecture));
    if (status == TN_OK) status = put_sizes(f, w);
    if (status == TN_OK) status = put_rope(f, w);
    if (status == TN_OK)
        status = tn_gguf_put_float(w, key_of(f, "attention.layer_norm_rms_epsilon", key), TN_GGUF_F32, small);
    return status == TN_OK ? put_tokenizer(f, w) : status;
}
