/* convert_folder.c — a language model's Hugging Face folder as a GGUF file has it: names of tensors, the order of rows
 * in q and k, sizes from config.json; tokens come from convert_tokenizer.c. The table of llama's names is read in the
 * other direction too (convert_to_folder.c).
 *
 * In llama files rope turns neighbours, in folders the
 * halves of a head, so rows of q and k change places.  Folders of GPT-2 have matrices [in, out], GGUF files [out, in].
 * Those of Gemma have the weights of norms less 1. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/convert/convert.h"
#include "trunnion/backend.h"
#include "trunnion/ops.h"

enum { KEY_SIZE = 96 };

/* ---- names ------------------------------------------------------------------------------------------------------- */

/* How rows are converted: the rows of a head are permuted, or the matrix is transposed. OF_MODEL: not in a layer. */
enum { HEADS = 1, KV_HEADS = 2, TRANSPOSED = 3, OF_MODEL = 4 };

typedef struct name_row {
    const char *hf, *gguf;
    int rows;
} name_row;

static const name_row llama_names[] = {
    {"embed_tokens.weight", "token_embd.weight", OF_MODEL},
    {"norm.weight", "output_norm.weight", OF_MODEL},
    {"input_layernorm.weight", "attn_norm.weight", 0},
    {"post_attention_layernorm.weight", "ffn_norm.weight", 0},
    {"self_attn.q_proj.weight", "attn_q.weight", HEADS},
    {"self_attn.k_proj.weight", "attn_k.weight", KV_HEADS},
    {"self_attn.v_proj.weight", "attn_v.weight", 0},
    {"self_attn.o_proj.weight", "attn_output.weight", 0},
    {"self_attn.q_proj.bias", "attn_q.bias", HEADS},
    {"self_attn.k_proj.bias", "attn_k.bias", KV_HEADS},
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
    {"block_sparse_moe.gate.weight", "ffn_gate_inp.weight", 0}, /* Mixtral's */
    {NULL, NULL, 0},
};

/* Tensors whose names in a family differ from those of Llama. */
static const name_row qwen_moe_names[] = {
    {"mlp.gate.weight", "ffn_gate_inp.weight", 0},
    {"mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight", 0},
    {"mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight", 0},
    {"mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight", 0},
    {"mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight", 0},
    {NULL, NULL, 0},
};

static const name_row phi3_names[] = {
    {"self_attn.qkv_proj.weight", "attn_qkv.weight", 0},
    {"mlp.gate_up_proj.weight", "ffn_up.weight", 0},
    {NULL, NULL, 0},
};

static const name_row gemma_names[] = {
    {"post_attention_layernorm.weight", "post_attention_norm.weight", 0},
    {"pre_feedforward_layernorm.weight", "ffn_norm.weight", 0},
    {"post_feedforward_layernorm.weight", "post_ffw_norm.weight", 0},
    {NULL, NULL, 0},
};

static const name_row gpt2_names[] = {
    {"wte.weight", "token_embd.weight", OF_MODEL},
    {"wpe.weight", "position_embd.weight", OF_MODEL},
    {"ln_f.weight", "output_norm.weight", OF_MODEL},
    {"ln_f.bias", "output_norm.bias", OF_MODEL},
    {"ln_1.weight", "attn_norm.weight", 0},
    {"ln_1.bias", "attn_norm.bias", 0},
    {"attn.c_attn.weight", "attn_qkv.weight", TRANSPOSED},
    {"attn.c_attn.bias", "attn_qkv.bias", 0},
    {"attn.c_proj.weight", "attn_output.weight", TRANSPOSED},
    {"attn.c_proj.bias", "attn_output.bias", 0},
    {"ln_2.weight", "ffn_norm.weight", 0},
    {"ln_2.bias", "ffn_norm.bias", 0},
    {"mlp.c_fc.weight", "ffn_up.weight", TRANSPOSED},
    {"mlp.c_fc.bias", "ffn_up.bias", 0},
    {"mlp.c_proj.weight", "ffn_down.weight", TRANSPOSED},
    {"mlp.c_proj.bias", "ffn_down.bias", 0},
    {NULL, NULL, 0},
};

static const convert_size llama_sizes[] = {
    {"num_hidden_layers", "block_count", true},
    {"max_position_embeddings", "context_length", true},
    {"hidden_size", "embedding_length", true},
    {"intermediate_size", "feed_forward_length", true},
    {"num_attention_heads", "attention.head_count", true},
    {"vocab_size", "vocab_size", true},
    {"head_dim", "attention.key_length", false},
    {"head_dim", "attention.value_length", false},
    {"num_local_experts", "expert_count", false},
    {"num_experts_per_tok", "expert_used_count", false},
    {"moe_intermediate_size", "expert_feed_forward_length", false},
    {"shared_expert_intermediate_size", "expert_shared_feed_forward_length", false},
    {NULL, NULL, false},
};

static const convert_size gpt2_sizes[] = {
    {"n_layer", "block_count", true},     {"n_positions", "context_length", true},
    {"n_embd", "embedding_length", true}, {"n_head", "attention.head_count", true},
    {"vocab_size", "vocab_size", true},   {NULL, NULL, false},
};

struct convert_family {
    const char *type, *architecture, *prefix, *layer;
    const name_row *own, *names; /* own: looked up first; NULL: none */
    const convert_size *sizes;
    const char *heads, *eps, *gguf_eps;
    bool turns;                                              /* rope */
    bool rotates_neighbours;                                 /* in GGUF files: rows of q and k change places */
    bool norms_from_one;                                     /* the weights of norms are less 1 */
    double base;                                             /* of rope where config.json says nothing; 0: 10000 */
    enum { NO_MIXTURE, ANY_WEIGHTS, WHOLE_WEIGHTS } mixture; /* whole: those of the chosen experts add up to 1 */
    int64_t window;                                          /* where config.json says nothing; 0: only on request */
    const char *beside[2];                                   /* ends of names of what is no weight */
};

#define LLAMA_LIKE_BUT(table)                                                                              \
    .prefix = "model.", .layer = "layers.", .own = table, .names = llama_names, .sizes = llama_sizes,      \
    .heads = "num_attention_heads", .eps = "rms_norm_eps", .gguf_eps = "attention.layer_norm_rms_epsilon", \
    .turns = true
#define LLAMA_LIKE LLAMA_LIKE_BUT(NULL), .beside = {".rotary_emb.inv_freq"}
#define GEMMA_LIKE LLAMA_LIKE_BUT(gemma_names), .norms_from_one = true
static const struct convert_family families[] = {
    {"llama", "llama", LLAMA_LIKE, .rotates_neighbours = true},
    {"mistral", "llama", LLAMA_LIKE, .rotates_neighbours = true, .window = 4096},
    {"qwen2", "qwen2", LLAMA_LIKE},
    {"qwen3", "qwen3", LLAMA_LIKE},
    {"mixtral", "llama", LLAMA_LIKE, .rotates_neighbours = true, .base = 1e6, .mixture = WHOLE_WEIGHTS,
     .window = 1 << 30},
    {"qwen2_moe", "qwen2moe", LLAMA_LIKE_BUT(qwen_moe_names), .mixture = ANY_WEIGHTS},
    {"qwen3_moe", "qwen3moe", LLAMA_LIKE_BUT(qwen_moe_names), .mixture = WHOLE_WEIGHTS},
    {"phi3", "phi3", LLAMA_LIKE_BUT(phi3_names), .window = 1 << 30},
    {"gemma", "gemma", LLAMA_LIKE, .norms_from_one = true},
    {"gemma2", "gemma2", GEMMA_LIKE},
    {"gemma3_text", "gemma3", GEMMA_LIKE, .base = 1e6},
    {"granite", "granite", LLAMA_LIKE, .rotates_neighbours = true},
    {"smollm3", "smollm3", LLAMA_LIKE, .rotates_neighbours = true, .base = 2e6},
    {"arcee", "arcee", LLAMA_LIKE, .rotates_neighbours = true},
    {"olmo2", "olmo2", LLAMA_LIKE_BUT(gemma_names)},
    {"gpt2", "gpt2", .prefix = "transformer.", .layer = "h.", .names = gpt2_names, .sizes = gpt2_sizes,
     .heads = "n_head", .eps = "layer_norm_epsilon", .gguf_eps = "attention.layer_norm_epsilon",
     .beside = {".attn.bias", ".attn.masked_bias"}},
};
enum { FAMILIES = sizeof families / sizeof *families };

bool convert_folder_leaves_out(const convert_folder *f, const char *name) {
    size_t length = strlen(name);
    if (convert_experts_has(f, name)) return true;   /* they count otherwise */
    if (f->back) return convert_rope_is_table(name); /* config.json has them */
    for (int i = 0; i < 2 && f->family->beside[i]; i++) {
        size_t n = strlen(f->family->beside[i]);
        if (length > n && strcmp(name + length - n, f->family->beside[i]) == 0) return true;
    }
    return false;
}

static bool is_norm(const name_row *n) {
    static const char ending[] = "norm.weight";
    size_t length = strlen(n->hf);
    return length >= sizeof ending - 1 && strcmp(n->hf + length - (sizeof ending - 1), ending) == 0;
}

static int64_t folder_rows_of(const convert_folder *f, const name_row *n) {
    if (f->family->norms_from_one && is_norm(n)) return f->back ? CONVERT_LESS_ONE : CONVERT_PLUS_ONE;
    if (n->rows == TRANSPOSED) return CONVERT_TRANSPOSED;
    return !f->turned ? 0 : n->rows == HEADS ? f->heads : n->rows == KV_HEADS ? f->kv_heads : 0;
}

static const name_row *find_name(const convert_folder *f, const char *name, bool of_model) {
    const name_row *const tables[] = {f->family->own, f->family->names};
    for (int i = 0; i < 2; i++)
        for (const name_row *n = tables[i]; n && n->hf; n++)
            if (strcmp(f->back ? n->gguf : n->hf, name) == 0 && (n->rows == OF_MODEL) == of_model) return n;
    return NULL;
}

/* A folder's name to that of a GGUF file, or back. */
static tn_status map_name(const convert_folder *f, const char *name, char *out, int64_t *heads) {
    static const char *const outputs[] = {"lm_head.weight", "output.weight"};
    const char *prefix = f->family->prefix, *layers[] = {f->family->layer, "blk."}, *from = layers[f->back];
    const char *rest = name;
    long layer = -1;
    *heads = 0;
    if (strcmp(name, outputs[f->back]) == 0) {
        snprintf(out, CONVERT_NAME, "%s", outputs[!f->back]);
        return TN_OK;
    }
    if (!f->back && strncmp(name, prefix, strlen(prefix)) == 0) rest += strlen(prefix);
    if (strncmp(rest, from, strlen(from)) == 0) {
        char *end;
        layer = strtol(rest + strlen(from), &end, 10);
        rest = *end == '.' ? end + 1 : end;
    }
    const name_row *n = find_name(f, rest, layer < 0);
    if (!n)
        return tn_backend_fail(TN_ERR_UNSUPPORTED, "'%s': the tensor '%.100s' is not known in %s of %s models", f->path,
                               name, f->back ? "folders" : "GGUF files", f->architecture);
    if (!f->back) prefix = "";
    if (layer < 0) snprintf(out, CONVERT_NAME, "%s%s", prefix, f->back ? n->hf : n->gguf);
    if (layer >= 0)
        snprintf(out, CONVERT_NAME, "%s%s%ld.%s", prefix, layers[!f->back], layer, f->back ? n->hf : n->gguf);
    int64_t rows = folder_rows_of(f, n);
    *heads = f->back && rows < CONVERT_NO_HEADS ? -rows : rows;
    return TN_OK;
}

tn_status convert_folder_name(const convert_folder *f, int64_t i, const char *name, const char **out, int64_t *heads) {
    if (!f->names[i]) {
        char mapped[CONVERT_NAME];
        TRY(map_name(f, name, mapped, heads));
        if (!(f->names[i] = strdup(mapped))) return tn_backend_fail(TN_ERR_MEMORY, "out of memory for a name");
        f->turns[i] = *heads;
    }
    *out = f->names[i];
    *heads = f->turns[i];
    return TN_OK;
}

/* [heads, 2, half, …] → [heads, half, 2, …]: element i of the first half stands beside element i of the second. With
 * heads < 0 the other way round. Or what stands in the place of a number of heads. */
tn_tensor *convert_turn(const tn_tensor *blocks, int64_t heads) {
    tn_tensor *t = tn_dtype_block(tn_dtype_of(blocks)) > 1 ? tn_cast(blocks, TN_F32) : tn_contiguous(blocks);
    if (heads == CONVERT_TRANSPOSED) {
        tn_tensor *view = tn_transpose(t, 0, 1), *turned = tn_contiguous(view);
        tn_free(view);
        tn_free(t);
        return turned;
    }
    if (heads >= CONVERT_PLUS_ONE) {
        tn_tensor *wide = tn_cast(t, TN_F32), *sum = tn_add_scalar(wide, heads == CONVERT_PLUS_ONE ? 1 : -1);
        tn_free(wide);
        tn_free(t);
        return sum;
    }
    bool back = heads < 0;
    int64_t count = back ? -heads : heads;
    int64_t rows = tn_size(t, 0), columns = tn_rank(t) > 1 ? tn_size(t, 1) : 1, half = rows / count / 2;
    tn_tensor *split = tn_reshape(t, (int64_t[]){count, back ? half : 2, back ? 2 : half, columns}, 4);
    tn_tensor *turned = tn_transpose(split, 1, 2);
    tn_tensor *joined = tn_reshape(turned, (int64_t[]){rows, columns}, tn_rank(t));
    tn_free(split);
    tn_free(turned);
    tn_free(t);
    return joined;
}

static const char *folder_key_of(const convert_folder *f, const char *what, char *out) {
    snprintf(out, KEY_SIZE, "%s.%s", f->architecture, what);
    return out;
}

tn_status convert_fail(const char *folder, tn_status code, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return tn_backend_fail(code, "'%s/config.json': %s", folder, text);
}

/* ---- config.json ------------------------------------------------------------------------------------------------- */

tn_status convert_folder_json(const convert_folder *f, const char *name, bool needed, tn_json_doc **out) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", f->path, name);
    *out = NULL;
    if (!needed && access(path, F_OK) != 0) return TN_OK;
    return tn_json_open(path, out);
}

static int64_t folder_number_of(const convert_folder *f, const char *key, int64_t fallback) {
    return tn_json_int(tn_json_get(tn_json_root(f->config), key), fallback);
}

/* GGUF has no word for an activation: readers take the one that the family has. */
static tn_status refuse_activation(const convert_folder *f) {
    static const struct {
        const char *key, *usual, *same[2];
    } kinds[] = {{"activation_function", "gelu_new", {"gelu_pytorch_tanh", ""}},
                 {"hidden_act", "silu", {"swish", ""}},
                 {"hidden_act", "gelu_pytorch_tanh", {"gelu_new", "gelu"}}, /* Gemma 1, whose "gelu" means this one */
                 {"hidden_activation", "gelu_pytorch_tanh", {"gelu_new", ""}},
                 {"hidden_act", "relu2", {"", ""}}};
    bool arcee = strcmp(f->architecture, "arcee") == 0;
    int kind = arcee                                ? 4
               : !f->family->turns                  ? 0
               : !f->family->norms_from_one         ? 1
               : !convert_is_gemma(f->architecture) ? 2
                                                    : 3;
    const char *key = kinds[kind].key, *usual = kinds[kind].usual;
    const char *told = tn_json_string(tn_json_get(tn_json_root(f->config), key), usual);
    bool known = strcmp(told, usual) == 0;
    for (int i = 0; i < 2; i++)
        known |= strcmp(told, kinds[kind].same[i]) == 0;
    if (known) return TN_OK;
    return convert_fail(
        f->path, TN_ERR_UNSUPPORTED,
        "the activation '%.40s' ('%s') differs from the one that %s GGUF files imply, and GGUF cannot store it", told,
        key, f->architecture);
}

/* Nor for other forms of GPT-2. */
static tn_status refuse_forms(const convert_folder *f) {
    const tn_json *root = tn_json_root(f->config);
    bool usual = tn_json_bool(tn_json_get(root, "scale_attn_weights"), true);
    usual = usual && !tn_json_bool(tn_json_get(root, "scale_attn_by_inverse_layer_idx"), false);
    if (f->family->turns || usual) return refuse_activation(f);
    return convert_fail(f->path, TN_ERR_UNSUPPORTED,
                        "this GPT-2 variant cannot be converted: GGUF cannot store another attention scale");
}

/* "llama, mistral", for messages: config.json's words or GGUF's. */
static const char *known_types(bool gguf, char *out, size_t size) {
    out[0] = 0;
    for (int i = 0; i < FAMILIES; i++) {
        size_t used = strlen(out);
        const char *word = gguf ? families[i].architecture : families[i].type;
        if (!gguf || i == 0 || strcmp(families[i - 1].architecture, word) != 0)
            snprintf(out + used, size - used, "%s%s", i ? ", " : "", word);
    }
    return out;
}

static int64_t experts_of(const convert_folder *f) {
    return folder_number_of(f, "num_experts", folder_number_of(f, "num_local_experts", 0));
}

/* GGUF has no word for how the chosen experts are weighed, nor for layers without a mixture. */
static tn_status open_mixture(convert_folder *f) {
    const tn_json *root = tn_json_root(f->config);
    bool own = strcmp(f->architecture, "llama") != 0, whole = f->family->mixture == WHOLE_WEIGHTS;
    bool told = own ? tn_json_bool(tn_json_get(root, "norm_topk_prob"), false) : whole;
    bool all =
        tn_json_length(tn_json_get(root, "mlp_only_layers")) == 0 && folder_number_of(f, "decoder_sparse_step", 1) == 1;
    if (f->family->mixture == NO_MIXTURE) return TN_OK;
    if (told == whole && all)
        return convert_experts_open(f, experts_of(f), folder_number_of(f, "num_hidden_layers", 0));
    return convert_fail(
        f->path, TN_ERR_UNSUPPORTED,
        "'norm_topk_prob', 'mlp_only_layers' or 'decoder_sparse_step' cannot be stored in %s GGUF files",
        f->architecture);
}

static tn_status take_names(convert_folder *f) {
    f->names = calloc((size_t)f->count + 1, sizeof *f->names);
    f->turns = calloc((size_t)f->count + 1, sizeof *f->turns);
    f->expert_names = calloc((size_t)convert_experts_count(f) + 1, sizeof *f->expert_names);
    if (f->names && f->turns && f->expert_names) return TN_OK;
    return tn_backend_fail(TN_ERR_MEMORY, "out of memory for %lld names", (long long)f->count);
}

static bool is_count(int64_t n) { return n > 0 && n <= UINT32_MAX; } /* that a GGUF file can say */

tn_status convert_folder_open(const char *path, int64_t tensors, convert_folder *f) {
    char known[200];
    *f = (convert_folder){.path = path, .count = tensors};
    TRY(convert_folder_json(f, "config.json", true, &f->config));
    if (tn_json_kind_of(tn_json_get(tn_json_root(f->config), "quantization_config")) != TN_JSON_NULL)
        return convert_fail(path, TN_ERR_UNSUPPORTED,
                            "'quantization_config' is set, and convert does not decode quantized folders; convert the "
                            "model that this one was quantized from");
    const char *type = tn_json_string(tn_json_get(tn_json_root(f->config), "model_type"), "");
    for (int i = 0; i < FAMILIES; i++)
        if (strcmp(families[i].type, type) == 0) f->family = &families[i];
    if (!f->family)
        return convert_fail(path, TN_ERR_UNSUPPORTED,
                            "models of type '%.40s' cannot be converted to GGUF; supported are %s", type,
                            known_types(false, known, sizeof known));
    f->architecture = f->family->architecture;
    f->base = f->family->base > 0 ? f->family->base : 10000;
    f->heads = folder_number_of(f, f->family->heads, 0);
    f->kv_heads = folder_number_of(f, "num_key_value_heads", f->heads);
    f->turned = f->family->rotates_neighbours;
    TRY(open_mixture(f));
    TRY(take_names(f));
    if (!is_count(f->heads) || !is_count(f->kv_heads))
        return convert_fail(path, TN_ERR_FORMAT, "the number of heads is missing");
    TRY(refuse_forms(f));
    return f->family->turns ? convert_rope_open(f) : TN_OK;
}

/* Mixtral's files are llama's, with experts. */
static tn_status open_mixture_of(convert_folder *f, const tn_gguf *file) {
    char key[KEY_SIZE];
    int64_t experts = 0, layers = 0;
    if (tn_gguf_get(file, folder_key_of(f, "expert_count", key))) TRY(tn_gguf_get_int(file, key, &experts));
    if (experts == 0) return TN_OK;
    TRY(tn_gguf_get_int(file, folder_key_of(f, "block_count", key), &layers));
    for (int i = 0; i < FAMILIES; i++)
        if (families[i].mixture != NO_MIXTURE && strcmp(families[i].architecture, f->architecture) == 0)
            f->family = &families[i];
    if (f->family->mixture != NO_MIXTURE) return convert_experts_open(f, experts, layers);
    return tn_backend_fail(TN_ERR_UNSUPPORTED, "'%s': %s models with experts cannot be converted to folders", f->path,
                           f->architecture);
}

bool convert_folder_weighs_whole(const convert_folder *f) { return f->family->mixture == WHOLE_WEIGHTS; }

tn_status convert_folder_from(const tn_gguf *file, int64_t tensors, convert_folder *f) {
    const char *word;
    char key[KEY_SIZE], known[200];
    int64_t length;
    *f = (convert_folder){.path = tn_gguf_path(file), .count = tensors, .back = true};
    TRY(tn_gguf_get_string(file, "general.architecture", &word, &length));
    for (int i = 0; i < FAMILIES && !f->family; i++)
        if (strlen(families[i].architecture) == (size_t)length &&
            memcmp(families[i].architecture, word, (size_t)length) == 0)
            f->family = &families[i];
    if (!f->family)
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "'%s': models of architecture '%.*s' cannot be converted to folders; supported are %s",
                               f->path, (int)length, word, known_types(true, known, sizeof known));
    f->architecture = f->family->architecture;
    f->turned = f->family->rotates_neighbours;
    TRY(tn_gguf_get_int(file, folder_key_of(f, "attention.head_count", key), &f->heads));
    f->kv_heads = f->heads;
    if (tn_gguf_get(file, folder_key_of(f, "attention.head_count_kv", key)))
        TRY(tn_gguf_get_int(file, key, &f->kv_heads));
    TRY(open_mixture_of(f, file));
    TRY(take_names(f));
    if (is_count(f->heads) && is_count(f->kv_heads)) return TN_OK;
    return tn_backend_fail(TN_ERR_FORMAT, "'%s': the number of heads is missing", f->path);
}

void convert_folder_close(convert_folder *f) {
    for (int64_t i = 0; i < f->count && f->names; i++)
        free(f->names[i]);
    for (int64_t i = 0; i < convert_experts_count(f) && f->expert_names; i++)
        free(f->expert_names[i]);
    free(f->expert_names);
    for (int i = 0; i < f->table_count; i++)
        tn_free(f->tables[i]);
    free(f->names);
    free(f->turns);
    tn_json_free(f->config);
    *f = (convert_folder){0};
}

const convert_size *convert_folder_sizes(const convert_folder *f) { return f->family->sizes; }

const char *convert_folder_type(const convert_folder *f, bool window) {
    for (int i = 0; i < FAMILIES && window && !f->family->window; i++)
        if (families[i].window && strcmp(families[i].architecture, f->architecture) == 0) return families[i].type;
    return f->family->type;
}

/* In how many layers does a query see the last tokens alone? */
static int64_t layers_with_window(const convert_folder *f, int64_t layers) {
    const tn_json *root = tn_json_root(f->config), *types = tn_json_get(root, "layer_types");
    int64_t count = 0, from = f->family->window ? 0 : folder_number_of(f, "max_window_layers", 0);
    if (tn_json_kind_of(types) != TN_JSON_ARRAY) return from < layers ? layers - from : 0;
    for (size_t i = 0; i < tn_json_length(types); i++)
        count += strcmp(tn_json_string(tn_json_at(types, i), ""), "sliding_attention") == 0;
    return count;
}

/* GGUF has a word for windows of all layers alike. */
static tn_status put_window(const convert_folder *f, tn_gguf_writer *w) {
    char key[KEY_SIZE];
    const tn_json *root = tn_json_root(f->config), *given = tn_json_get(root, "sliding_window");
    bool used = tn_json_bool(tn_json_get(root, "use_sliding_window"), f->family->window > 0);
    int64_t layers = folder_number_of(f, "num_hidden_layers", 0), window = tn_json_int(given, f->family->window);
    if (!used || !f->family->turns || (given && tn_json_kind_of(given) == TN_JSON_NULL)) return TN_OK;
    int64_t count = layers_with_window(f, layers);
    if (count == 0 || window < 1 || window >= folder_number_of(f, "max_position_embeddings", 0)) return TN_OK;
    if (count == layers)
        return tn_gguf_put_int(w, folder_key_of(f, "attention.sliding_window", key), TN_GGUF_U32, window);
    return convert_fail(
        f->path, TN_ERR_UNSUPPORTED,
        "%lld of %lld layers have a window of %lld tokens; GGUF files of this kind cannot store windows of some layers",
        (long long)count, (long long)layers, (long long)window);
}

static tn_status put_sizes(const convert_folder *f, tn_gguf_writer *w) {
    char key[KEY_SIZE];
    for (const convert_size *s = f->family->sizes; s->hf; s++) {
        int64_t v = folder_number_of(f, s->hf, -1);
        if (strcmp(s->gguf, "expert_count") == 0 && f->experts > 0) v = f->experts;
        if (v < 0 && !s->needed) continue;
        if (v < 0) return convert_fail(f->path, TN_ERR_FORMAT, "'%s' is missing or not a number", s->hf);
        TRY(tn_gguf_put_int(w, folder_key_of(f, s->gguf, key), TN_GGUF_U32, v));
    }
    if (!f->family->turns) { /* GPT-2, whose n_inner may be absent or null */
        int64_t inner = folder_number_of(f, "n_inner", 4 * folder_number_of(f, "n_embd", 0));
        return tn_gguf_put_int(w, folder_key_of(f, "feed_forward_length", key), TN_GGUF_U32, inner);
    }
    return tn_gguf_put_int(w, folder_key_of(f, "attention.head_count_kv", key), TN_GGUF_U32, f->kv_heads);
}

/* Granite's multipliers, by config.json's words and GGUF's. */
static const char *const scales[][2] = {{"embedding_multiplier", "embedding_scale"},
                                        {"residual_multiplier", "residual_scale"},
                                        {"attention_multiplier", "attention.scale"},
                                        {"logits_scaling", "logit_scale"}};
enum { SCALES = sizeof scales / sizeof *scales };

static tn_status put_scales(const convert_folder *f, tn_gguf_writer *w) {
    char key[KEY_SIZE];
    for (int i = 0; i < SCALES && strcmp(f->architecture, "granite") == 0; i++) {
        double v = tn_json_number(tn_json_get(tn_json_root(f->config), scales[i][0]), 1);
        TRY(tn_gguf_put_float(w, folder_key_of(f, scales[i][1], key), TN_GGUF_F32, v));
    }
    return TN_OK;
}

void convert_scales_back(const tn_gguf *file, const char *architecture, cli_json *j) {
    for (int i = 0; i < SCALES && strcmp(architecture, "granite") == 0; i++) {
        char key[KEY_SIZE];
        double v;
        snprintf(key, sizeof key, "%s.%s", architecture, scales[i][1]);
        if (tn_gguf_get(file, key) && tn_gguf_get_float(file, key, &v) == TN_OK)
            cli_json_write(j, "%s: %g", scales[i][0], v);
    }
}

/* GGUF has no word for the layers without rope of SmolLM 3: they are every fourth. */
static tn_status refuse_unrotated(const convert_folder *f) {
    const tn_json *root = tn_json_root(f->config), *list = tn_json_get(root, "no_rope_layers");
    bool usual = list || folder_number_of(f, "no_rope_layer_interval", 4) == 4;
    for (size_t i = 0; i < tn_json_length(list); i++)
        usual &= (tn_json_int(tn_json_at(list, i), 1) == 0) == ((i + 1) % 4 == 0);
    if (usual || strcmp(f->architecture, "smollm3") != 0) return TN_OK;
    return convert_fail(
        f->path, TN_ERR_UNSUPPORTED,
        "GGUF files of smollm3 models have no rope in every fourth layer; other layers without rope cannot be stored");
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

tn_status convert_folder_metadata(const convert_folder *f, tn_gguf_writer *w) {
    char key[KEY_SIZE];
    double small = tn_json_number(tn_json_get(tn_json_root(f->config), f->family->eps), f->family->turns ? 1e-6 : 1e-5);
    TRY(tn_gguf_put_string(w, "general.architecture", f->architecture, (int64_t)strlen(f->architecture)));
    TRY(refuse_unrotated(f));
    TRY(put_sizes(f, w));
    TRY(put_scales(f, w));
    if (f->family->turns) TRY(convert_rope_put(f, w));
    TRY(convert_is_gemma(f->architecture) ? convert_gemma_put(f, w) : put_window(f, w));
    TRY(tn_gguf_put_float(w, folder_key_of(f, f->family->gguf_eps, key), TN_GGUF_F32, small));
    TRY(convert_tokenizer(f, w));
    return convert_is_computed(f->path); /* a tensor without a row above would be lost */
}

tn_status convert_folder_is_like(const convert_folder *f, const tn_gguf *like) {
    const char *told = "";
    int64_t length = 0;
    (void)tn_gguf_get_string(like, "general.architecture", &told, &length);
    if (length == (int64_t)strlen(f->architecture) && memcmp(told, f->architecture, (size_t)length) == 0)
        return convert_is_computed(f->path);
    return tn_backend_fail(TN_ERR_ARGUMENT, "--like: '%s' is a %.*s model, but '%s' is a %s model", tn_gguf_path(like),
                           (int)length, told, f->path, f->architecture);
}
