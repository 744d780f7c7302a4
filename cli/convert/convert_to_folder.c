/* convert_to_folder.c — a GGUF language model as a Hugging Face folder: model.safetensors, config.json, tokenizer.json,
 * tokenizer_config.json, generation_config.json.
 *
 * Blocks become plain numbers. Tokenizers: byte-level BPE by the patterns that have a row below, and SentencePiece's
 * BPE, whose merges are all ways to put a token together of two others, the highest score first. A model whose
 * tokenizer or rope cannot be said in a folder is refused before anything is written. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/convert/convert.h"
#include "trunnion/backend.h"

enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5, PATH_SIZE = 4096, KEY = 96 };

typedef struct folder_writer {
    const convert_file *in;
    const tn_gguf *file;
    const char *architecture, *folder;
    char **tokens; /* [count] */
    int64_t count;
    cli_json j;
    bool no_memory; /* for something of the file that is being written */
} folder_writer;

/* ---- metadata ---------------------------------------------------------------------------------------------------- */

static const char *to_folder_key_of(const folder_writer *f, const char *what, char out[KEY]) {
    snprintf(out, KEY, "%s.%s", f->architecture, what);
    return out;
}

static double to_folder_number_of(const folder_writer *f, const char *what, double otherwise) {
    char key[KEY];
    double v;
    const tn_gguf_value *value = tn_gguf_get(f->file, to_folder_key_of(f, what, key));
    return value && tn_gguf_float(value, 0, &v) == TN_OK ? v : otherwise;
}

static int64_t whole_of(const tn_gguf *file, const char *key, int64_t otherwise) {
    int64_t v;
    const tn_gguf_value *value = tn_gguf_get(file, key);
    return value && tn_gguf_int(value, 0, &v) == TN_OK ? v : otherwise;
}

static int64_t to_folder_count_of(const folder_writer *f, const char *what, int64_t otherwise) {
    char key[KEY];
    return whole_of(f->file, to_folder_key_of(f, what, key), otherwise);
}

static bool truth_of(const tn_gguf *file, const char *key, bool otherwise) {
    bool v;
    const tn_gguf_value *value = tn_gguf_get(file, key);
    return value && tn_gguf_bool(value, 0, &v) == TN_OK ? v : otherwise;
}

/* Free it; NULL where there is none. */
static char *to_folder_text_of(const tn_gguf *file, const char *key) {
    const char *text;
    int64_t length;
    const tn_gguf_value *value = tn_gguf_get(file, key);
    return value && tn_gguf_string(value, 0, &text, &length) == TN_OK ? strndup(text, (size_t)length) : NULL;
}

static int64_t special(const folder_writer *f, const char *which) {
    char key[KEY];
    snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", which);
    int64_t id = whole_of(f->file, key, -1);
    return id < f->count ? id : -1;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static tn_status write_file(folder_writer *f, const char *name, void (*put)(folder_writer *f)) {
    char path[PATH_SIZE];
    cli_output out;
    if (snprintf(path, sizeof path, "%s/%s", f->folder, name) >= PATH_SIZE)
        return tn_backend_fail(TN_ERR_ARGUMENT, "the path '%s' is too long", f->folder);
    TRY(cli_output_begin(&out, path));
    f->j = (cli_json){.out = out.file};
    f->no_memory = false;
    cli_json_write(&f->j, "{");
    put(f);
    cli_json_write(&f->j, "}");
    if (!f->no_memory) return cli_output_commit(&out);
    cli_output_abandon(&out);
    return tn_backend_fail(TN_ERR_MEMORY, "out of memory while writing '%s'", path);
}

/* ---- kinds of tokenizers ----------------------------------------------------------------------------------------- */

#define SUFFIXES "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
#define REST "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* What the rules that GGUF files name are in a folder. */
static const struct {
    const char *pre, *split; /* split: a pattern of its own; NULL: that of GPT-2, which ByteLevel has */
    bool digits;             /* each digit by itself, before */
    bool whole_first;        /* a word that is a token is not merged */
} rules[] = {
    {"gpt-2", NULL, false, false},
    {"smollm", NULL, true, false},
    {"llama-bpe", SUFFIXES "{1,3}" REST, false, true},
    {"llama3", SUFFIXES "{1,3}" REST, false, true},
    {"qwen2", SUFFIXES REST, false, false},
    {"deepseek-r1-qwen", SUFFIXES REST, false, false},
};
enum { RULES = sizeof rules / sizeof *rules };

static int rule_of(const tn_gguf *file) {
    char *pre = to_folder_text_of(file, "tokenizer.ggml.pre");
    int found = -1;
    for (int i = 0; i < RULES && pre; i++)
        if (strcmp(rules[i].pre, pre) == 0) found = i;
    free(pre);
    return found;
}

static bool is_model(const tn_gguf *file, const char *name) {
    char *model = to_folder_text_of(file, "tokenizer.ggml.model");
    bool same = model && strcmp(model, name) == 0;
    free(model);
    return same;
}

/* Where the file does not say so, its kind of tokenizer does. */
static bool adds_bos(const folder_writer *f) {
    int rule = rule_of(f->file);
    bool usual = is_model(f->file, "llama") || (rule >= 0 && rules[rule].whole_first);
    return truth_of(f->file, "tokenizer.ggml.add_bos_token", usual);
}

/* ---- config.json ------------------------------------------------------------------------------------------------- */

static const struct {
    const char *type, *class;
} classes[] = {
    {"llama", "LlamaForCausalLM"},     {"mistral", "MistralForCausalLM"},    {"qwen2", "Qwen2ForCausalLM"},
    {"qwen3", "Qwen3ForCausalLM"},     {"phi3", "Phi3ForCausalLM"},          {"gpt2", "GPT2LMHeadModel"},
    {"mixtral", "MixtralForCausalLM"}, {"qwen2_moe", "Qwen2MoeForCausalLM"}, {"qwen3_moe", "Qwen3MoeForCausalLM"},
    {"gemma", "GemmaForCausalLM"},     {"gemma2", "Gemma2ForCausalLM"},      {"gemma3_text", "Gemma3ForCausalLM"},
    {"granite", "GraniteForCausalLM"}, {"smollm3", "SmolLM3ForCausalLM"},    {"arcee", "ArceeForCausalLM"},
    {"olmo2", "Olmo2ForCausalLM"}};

static bool has_tensor(const folder_writer *f, const char *name) {
    tn_gguf_info info = {.struct_size = sizeof info};
    return tn_gguf_find(f->file, name, &info) == TN_OK;
}

static void put_id(folder_writer *f, const char *key, const char *which) {
    if (special(f, which) >= 0) cli_json_write(&f->j, "%s: %jd", key, special(f, which));
}

static void put_type(folder_writer *f, const char *type) {
    cli_json_write(&f->j, "'model_type': %s", type);
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        if (strcmp(classes[i].type, type) != 0) continue;
        cli_json_write(&f->j, "'architectures': [%s]", classes[i].class);
    }
}

/* A size by config.json's name, where a tensor says it: files need not have keys for these. */
static int64_t size_of_tensor(const folder_writer *f, const char *hf, int64_t otherwise) {
    static const struct {
        const char *hf, *tensor;
        int axis;
    } told[] = {{"vocab_size", "token_embd.weight", 0},
                {"moe_intermediate_size", "blk.0.ffn_gate_exps.weight", 1},
                {"shared_expert_intermediate_size", "blk.0.ffn_gate_shexp.weight", 0}};
    tn_gguf_info info = {.struct_size = sizeof info};
    for (size_t i = 0; i < sizeof told / sizeof *told; i++)
        if (strcmp(told[i].hf, hf) == 0 && tn_gguf_find(f->file, told[i].tensor, &info) == TN_OK)
            return info.shape[told[i].axis];
    return otherwise;
}

static void put_sizes(folder_writer *f) {
    const char *written = "";
    for (const convert_size *s = convert_folder_sizes(f->in->folder); s->hf; s++) {
        int64_t v = size_of_tensor(f, s->hf, to_folder_count_of(f, s->gguf, -1));
        if (v < 0 || strcmp(written, s->hf) == 0) continue;
        cli_json_write(&f->j, "%s: %jd", s->hf, v);
        written = s->hf;
    }
}

static void put_gpt2(folder_writer *f) {
    cli_json_write(&f->j, "'n_inner': %jd, 'layer_norm_epsilon': %g, 'activation_function': 'gelu_new'",
                   to_folder_count_of(f, "feed_forward_length", 0),
                   to_folder_number_of(f, "attention.layer_norm_epsilon", 1e-5));
}

static void put_llama_like(folder_writer *f, const char *type, int64_t window) {
    cli_json_write(&f->j, "'num_key_value_heads': %jd, 'rms_norm_eps': %g", f->in->folder->kv_heads,
                   to_folder_number_of(f, "attention.layer_norm_rms_epsilon", 1e-6));
    int64_t hidden = to_folder_count_of(f, "embedding_length", 0), heads = f->in->folder->heads;
    int64_t head = to_folder_count_of(f, "attention.key_length", heads > 0 ? hidden / heads : 0);
    convert_rope_back(f->file, f->architecture, to_folder_count_of(f, "context_length", 0), head, &f->j);
    bool gemma = strncmp(type, "gemma", 5) == 0, newer = convert_is_gemma(f->architecture);
    const char *activation = gemma ? "gelu_pytorch_tanh" : strcmp(type, "arcee") == 0 ? "relu2" : "silu";
    cli_json_write(&f->j, "%s: %s", newer ? "hidden_activation" : "hidden_act", activation);
    convert_scales_back(f->file, f->architecture, &f->j);
    if (convert_is_gemma(f->architecture)) {
        convert_gemma_back(f->file, f->architecture, f->in->folder->heads, &f->j);
        return;
    }
    int64_t trained = to_folder_count_of(f, "rope.scaling.original_context_length", 0);
    if (trained > 0)
        cli_json_write(&f->j, "'original_max_position_embeddings': %jd", trained); /* Phi-3's place for it */
    if (window > 0)
        cli_json_write(&f->j, "'use_sliding_window': true, 'sliding_window': %jd, 'max_window_layers': 0", window);
    if (f->in->folder->experts > 0)
        cli_json_write(&f->j, "'num_experts': %jd, 'norm_topk_prob': %i, 'attention_bias': %i", f->in->folder->experts,
                       convert_folder_weighs_whole(f->in->folder), has_tensor(f, "blk.0.attn_q.bias"));
    static const char *const biased[] = {"llama", "granite", "smollm3", "arcee"};
    bool may_have = false;
    for (size_t i = 0; i < sizeof biased / sizeof *biased; i++)
        may_have |= strcmp(type, biased[i]) == 0;
    if (!may_have) return;
    cli_json_write(&f->j, "'attention_bias': %i, 'mlp_bias': %i", has_tensor(f, "blk.0.attn_q.bias"),
                   has_tensor(f, "blk.0.ffn_up.bias"));
}

static void put_config(folder_writer *f) {
    int64_t window = to_folder_count_of(f, "attention.sliding_window", 0);
    const char *type = convert_folder_type(f->in->folder, window > 0);
    put_type(f, type);
    put_sizes(f);
    if (strcmp(type, "gpt2") == 0)
        put_gpt2(f);
    else
        put_llama_like(f, type, window);
    cli_json_write(&f->j, "'tie_word_embeddings': %i", !has_tensor(f, "output.weight"));
    put_id(f, "bos_token_id", "bos");
    put_id(f, "eos_token_id", "eos");
    put_id(f, "pad_token_id", "padding");
    if (special(f, "padding") < 0) cli_json_write(&f->j, "'pad_token_id': null"); /* else Phi-3's default applies */
}

static void put_generation(folder_writer *f) {
    put_id(f, "bos_token_id", "bos");
    put_id(f, "eos_token_id", "eos");
    put_id(f, "pad_token_id", "padding");
}

static void put_tokenizer_config(folder_writer *f) {
    static const char *const names[][2] = {
        {"bos_token", "bos"}, {"eos_token", "eos"}, {"unk_token", "unknown"}, {"pad_token", "padding"}};
    char *template = to_folder_text_of(f->file, "tokenizer.chat_template");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (special(f, names[i][1]) >= 0)
            cli_json_write(&f->j, "%s: %s", names[i][0], f->tokens[special(f, names[i][1])]);
    cli_json_write(
        &f->j,
        "'add_bos_token': %i, 'tokenizer_class': 'PreTrainedTokenizerFast', 'clean_up_tokenization_spaces': false",
        adds_bos(f));
    if (template) cli_json_write(&f->j, "'chat_template': %s", template);
    free(template);
}

/* ---- tokenizer.json ---------------------------------------------------------------------------------------------- */

#define BYTE_LEVEL "{'type': 'ByteLevel', 'add_prefix_space': false, 'trim_offsets': true, 'use_regex': %i}"
#define REPLACE "{'type': 'Replace', 'pattern': {'String': %s}, 'content': %s}"

static void put_cuts(cli_json *j, int rule) {
    cli_json_write(j, "'normalizer': null, 'pre_tokenizer': {'type': 'Sequence', 'pretokenizers': [");
    if (rules[rule].digits) cli_json_write(j, "{'type': 'Digits', 'individual_digits': true}");
    if (rules[rule].split)
        cli_json_write(j, "{'type': 'Split', 'pattern': {'Regex': %s}, 'behavior': 'Isolated', 'invert': false}",
                       rules[rule].split);
    cli_json_write(j, BYTE_LEVEL "]}, 'decoder': " BYTE_LEVEL, !rules[rule].split, true);
}

/* SentencePiece's: a mark for each blank, and one in front. */
static void put_marks(cli_json *j, bool in_front) {
    cli_json_write(j, "'normalizer': {'type': 'Sequence', 'normalizers': [");
    if (in_front) cli_json_write(j, "{'type': 'Prepend', 'prepend': '▁'}");
    cli_json_write(j, REPLACE "]}, 'pre_tokenizer': null", " ", "▁");
    cli_json_write(j, "'decoder': {'type': 'Sequence', 'decoders': [" REPLACE, "▁", " ");
    cli_json_write(j, "{'type': 'ByteFallback'}, {'type': 'Fuse'}");
    if (in_front) cli_json_write(j, "{'type': 'Strip', 'content': ' ', 'start': 1, 'stop': 0}");
    cli_json_write(j, "]}");
}

/* The begin token in front, where the model was trained with it. */
static void put_ends(folder_writer *f, bool add_bos) {
    int64_t id = special(f, "bos");
    const char *bos = id < 0 ? NULL : f->tokens[id];
    if (!add_bos || !bos) {
        cli_json_write(&f->j, "'post_processor': null");
        return;
    }
    cli_json_write(&f->j, "'post_processor': {'type': 'TemplateProcessing'");
    for (int texts = 1; texts <= 2; texts++) {
        cli_json_write(&f->j, "%s: [", texts == 1 ? "single" : "pair");
        for (int i = 0; i < texts; i++)
            cli_json_write(&f->j,
                           "{'SpecialToken': {'id': %s, 'type_id': %d}}, {'Sequence': {'id': %s, 'type_id': %d}}", bos,
                           i, i ? "B" : "A", i);
        cli_json_write(&f->j, "]");
    }
    cli_json_write(&f->j, "'special_tokens': {%s: {'id': %s, 'ids': [%jd], 'tokens': [%s]}}}", bos, bos, id, bos);
}

static int64_t to_folder_type_of(const folder_writer *f, int64_t id) {
    int64_t type;
    const tn_gguf_value *types = tn_gguf_get(f->file, "tokenizer.ggml.token_type");
    return types && tn_gguf_int(types, id, &type) == TN_OK ? type : NORMAL;
}

static void put_added(folder_writer *f) {
    cli_json *j = &f->j;
    cli_json_write(j, "'added_tokens': [");
    for (int64_t i = 0; i < f->count; i++) {
        int64_t type = to_folder_type_of(f, i);
        if (type != CONTROL && type != USER_DEFINED && type != UNKNOWN) continue;
        cli_json_write(j,
                       "{'id': %jd, 'content': %s, 'single_word': false, 'lstrip': false, 'rstrip': false, "
                       "'normalized': false, 'special': %i}",
                       i, f->tokens[i], type != USER_DEFINED);
    }
    cli_json_write(j, "]");
}

/* A way to put a token together of two others. */
typedef struct merge {
    int64_t whole;
    size_t cut; /* bytes of the left one */
    double score;
} merge;

static int by_score(const void *a, const void *b) {
    const merge *x = a, *y = b;
    if (x->score != y->score) return x->score < y->score ? 1 : -1;
    if (x->whole != y->whole) return x->whole > y->whole ? 1 : -1;
    return (x->cut < y->cut) - (x->cut > y->cut); /* the longer left one first */
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static bool is_token(char **sorted, int64_t count, const char *text) {
    return bsearch(&text, sorted, (size_t)count, sizeof *sorted, by_text) != NULL;
}

static size_t list_cuts(const folder_writer *f, int64_t id, char **sorted, merge *out) {
    double score = 0;
    char *text = f->tokens[id], left[256];
    size_t length = strlen(text), found = 0;
    if (to_folder_type_of(f, id) != NORMAL || length >= sizeof left) return 0;
    (void)tn_gguf_float(tn_gguf_get(f->file, "tokenizer.ggml.scores"), id, &score);
    for (size_t cut = 1; cut < length; cut++) {
        if (((unsigned char)text[cut] & 0xC0) == 0x80) continue; /* inside a character */
        memcpy(left, text, cut);
        left[cut] = 0;
        if (is_token(sorted, f->count, left) && is_token(sorted, f->count, text + cut))
            out[found++] = (merge){id, cut, score};
    }
    return found;
}

static void put_scored_merges(folder_writer *f) {
    char **sorted = malloc((size_t)f->count * sizeof *sorted);
    merge *merges = NULL;
    size_t count = 0, room = 0;
    f->no_memory |= !sorted;
    if (sorted) memcpy(sorted, f->tokens, (size_t)f->count * sizeof *sorted);
    if (sorted) qsort(sorted, (size_t)f->count, sizeof *sorted, by_text);
    for (int64_t i = 0; i < f->count && sorted; i++) {
        if (count + 256 > room) {
            merge *more = realloc(merges, (room = 2 * room + 4096) * sizeof *merges);
            f->no_memory |= !more;
            if (!more) break;
            merges = more;
        }
        count += list_cuts(f, i, sorted, merges + count);
    }
    if (merges) qsort(merges, count, sizeof *merges, by_score);
    for (size_t i = 0; i < count; i++) {
        char line[600];
        const char *text = f->tokens[merges[i].whole];
        snprintf(line, sizeof line, "%.*s %s", (int)merges[i].cut, text, text + merges[i].cut);
        cli_json_write(&f->j, "%s", line);
    }
    free(sorted);
    free(merges);
}

static void put_ranked_merges(folder_writer *f) {
    const tn_gguf_value *merges = tn_gguf_get(f->file, "tokenizer.ggml.merges");
    for (int64_t i = 0; i < tn_gguf_length(merges); i++) {
        const char *text;
        int64_t length;
        if (tn_gguf_string(merges, i, &text, &length) != TN_OK) continue;
        char *line = strndup(text, (size_t)length);
        if (line) cli_json_write(&f->j, "%s", line);
        f->no_memory |= !line;
        free(line);
    }
}

static void put_model(folder_writer *f, bool sentence, bool whole_first) {
    cli_json *j = &f->j;
    int64_t unknown = special(f, "unknown");
    cli_json_write(j,
                   "'model': {'type': 'BPE', 'unk_token': %s, 'fuse_unk': %i, 'byte_fallback': %i, 'ignore_merges': "
                   "%i, 'vocab': {",
                   sentence && unknown >= 0 ? f->tokens[unknown] : NULL, sentence, sentence, whole_first);
    for (int64_t i = 0; i < f->count; i++)
        if (to_folder_type_of(f, i) != UNUSED) cli_json_write(j, "%s: %jd", f->tokens[i], i);
    cli_json_write(j, "}, 'merges': [");
    (sentence ? put_scored_merges : put_ranked_merges)(f);
    cli_json_write(j, "]}");
}

static void put_tokenizer(folder_writer *f) {
    bool sentence = is_model(f->file, "llama");
    int rule = sentence ? 0 : rule_of(f->file);
    cli_json_write(&f->j, "'version': '1.0', 'truncation': null, 'padding': null");
    put_added(f);
    if (sentence)
        put_marks(&f->j, truth_of(f->file, "tokenizer.ggml.add_space_prefix", true));
    else
        put_cuts(&f->j, rule);
    put_ends(f, adds_bos(f));
    put_model(f, sentence, !sentence && rules[rule].whole_first);
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static tn_status read_tokens(folder_writer *f) {
    const tn_gguf_value *tokens = tn_gguf_get(f->file, "tokenizer.ggml.tokens");
    f->count = tn_gguf_length(tokens);
    f->tokens = calloc((size_t)f->count + 1, sizeof *f->tokens);
    if (!f->tokens) return tn_backend_fail(TN_ERR_MEMORY, "out of memory for %lld tokens", (long long)f->count);
    for (int64_t i = 0; i < f->count; i++) {
        const char *text;
        int64_t length;
        TRY(tn_gguf_string(tokens, i, &text, &length));
        if (!(f->tokens[i] = strndup(text, (size_t)length)))
            return tn_backend_fail(TN_ERR_MEMORY, "out of memory for the tokens");
    }
    return TN_OK;
}

static tn_status refuse_to_folder(const folder_writer *f) {
    if (!convert_rope_is_known(f->file, f->architecture))
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "'%s': this rope scaling cannot be written to folders; linear, yarn without extra keys, "
                               "longrope and a plain table can",
                               tn_gguf_path(f->file));
    if (!convert_gemma_is_known(f->file, f->architecture))
        return tn_backend_fail(
            TN_ERR_UNSUPPORTED,
            "'%s': its sliding-window layers have their own rope base, which folders of %s models cannot store",
            tn_gguf_path(f->file), f->architecture);
    if (is_model(f->file, "llama") || (is_model(f->file, "gpt2") && rule_of(f->file) >= 0))
        return convert_is_computed(tn_gguf_path(f->file));
    char *model = to_folder_text_of(f->file, "tokenizer.ggml.model"),
         *pre = to_folder_text_of(f->file, "tokenizer.ggml.pre");
    tn_status status = tn_backend_fail(
        TN_ERR_UNSUPPORTED,
        "'%s': its tokenizer (%s, %s) cannot be written to folders; SentencePiece BPE can, and byte-level BPE with the "
        "pre-tokenizers gpt-2, smollm, llama-bpe and qwen2. To convert only the weights: OUT.safetensors",
        tn_gguf_path(f->file), model ? model : "none", pre ? pre : "no pre-tokenizer");
    free(model);
    free(pre);
    return status;
}

static tn_status write_all_to_folder(folder_writer *f, const convert_wishes *w, convert_report *r) {
    static const struct {
        const char *name;
        void (*put)(folder_writer *f);
    } files[] = {{"config.json", put_config},
                 {"generation_config.json", put_generation},
                 {"tokenizer.json", put_tokenizer},
                 {"tokenizer_config.json", put_tokenizer_config}};
    char path[PATH_SIZE];
    convert_wishes weights = *w;
    struct stat s;
    if (mkdir(f->folder, 0777) != 0 && errno != EEXIST)
        return tn_backend_fail(TN_ERR_IO, "cannot create the folder '%s': %s", f->folder, strerror(errno));
    if (snprintf(path, sizeof path, "%s/model.safetensors", f->folder) >= PATH_SIZE)
        return tn_backend_fail(TN_ERR_ARGUMENT, "the path '%s' is too long", f->folder);
    weights.out = path;
    tn_status status = convert_to_safetensors(f->in, &weights, r);
    for (size_t i = 0; i < sizeof files / sizeof *files && status == TN_OK; i++)
        status = write_file(f, files[i].name, files[i].put);
    r->bytes = stat(path, &s) == 0 ? (int64_t)s.st_size : 0;
    return status;
}

tn_status convert_to_folder(const convert_file *in, const convert_wishes *w, convert_report *r) {
    folder_writer f = {.in = in, .file = in->gguf, .architecture = in->folder->architecture, .folder = w->out};
    tn_status status = read_tokens(&f);
    if (status == TN_OK) status = refuse_to_folder(&f);
    if (status == TN_OK) status = write_all_to_folder(&f, w, r);
    for (int64_t i = 0; i < f.count && f.tokens; i++)
        free(f.tokens[i]);
    free(f.tokens);
    return status;
}
