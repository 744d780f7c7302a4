/* llm_lora.c — LoRA adapters of language models in PEFT's format: which matrices have one, reading, merging.
 *
 * An adapter names the modules of the Hugging Face folder. For a GGUF file the names follow from the family. The one
 * difference between the two: GGUF files of the llama architecture have the rows of q and k in another order, so rows
 * of B are moved on the way in and out. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "text/llm_model.h"

static const slot_set MATRICES = BIT(SLOT_Q) | BIT(SLOT_K) | BIT(SLOT_V) | BIT(SLOT_O) | BIT(SLOT_QKV) |
                                 BIT(SLOT_GATE) | BIT(SLOT_UP) | BIT(SLOT_DOWN) | BIT(SLOT_SHARED_GATE) |
                                 BIT(SLOT_SHARED_UP) | BIT(SLOT_SHARED_DOWN);
static const char WEIGHT[] = ".weight", BEFORE[] = "base_model.model.";

/* Of the model's folder, also if it was read from a GGUF file. */
static const llm_naming *folder_naming(const llm_config *c) {
    return c->file.naming->gguf ? c->family->naming : c->file.naming;
}

bool tn_llm_lora_slot(const llm_config *c, int64_t layer, int slot, char name[LLM_NAME_SIZE]) {
    char own[LLM_NAME_SIZE];
    if (!(MATRICES & BIT(slot)) || !((c->needs | c->allows) & BIT(slot))) return false;
    if (!tn_llm_name(folder_naming(c), own, layer, slot)) return false;
    if (name)
        snprintf(name, LLM_NAME_SIZE, "%s%.*s", folder_naming(c)->prefix, (int)(strlen(own) - strlen(WEIGHT)), own);
    return true;
}

tn_status tn_llm_lora_new(const llm_config *c, llm_lora **out) {
    *out = tn_txt_zalloc((size_t)c->layers * LAYER_SLOTS, sizeof **out);
    return *out ? TN_OK : TN_ERR_MEMORY;
}

void tn_llm_lora_free(llm_lora *list, const llm_config *c) {
    for (int64_t i = 0; list && i < c->layers * LAYER_SLOTS; i++) {
        tn_free(list[i].a);
        tn_free(list[i].b);
    }
    tn_txt_free(list);
}

tn_tensor *tn_llm_lora_rows(const llm_config *c, int slot, const tn_tensor *b, bool to_folder) {
    if (!c->file.naming->gguf || !c->positions.interleaved || c->family->positions.folder_interleaved ||
        (slot != SLOT_Q && slot != SLOT_K))
        return tn_retain((tn_tensor *)(uintptr_t)b);
    TN_SCOPE;
    int64_t half = c->size[SIZE_HALF], heads = tn_size(b, 0) / (2 * half), rank = tn_size(b, 1);
    tn_tensor *by_head =
        to_folder ? tn_reshape(b, TN_DIMS(heads, half, 2, rank)) : tn_reshape(b, TN_DIMS(heads, 2, half, rank));
    tn_tensor *moved = tn_contiguous(tn_permute(by_head, TN_DIMS(0, 2, 1, 3)));
    return tn_retain(tn_reshape(moved, TN_DIMS(tn_size(b, 0), rank)));
}

/* ---- merging ----------------------------------------------------------------------------------------------------- */

tn_tensor *tn_llm_merged(const tn_llm *m, int64_t layer, int slot) {
    const llm_weights *w = &m->weights;
    const tn_tensor *weight = layer < 0 ? w->head[slot] : w->layers[layer].weight[slot];
    const llm_lora *l = layer >= 0 && w->lora ? &w->lora[layer * LAYER_SLOTS + slot] : NULL;
    if (!weight) return NULL;
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *whole = tn_cast(weight, TN_F32);
    if (l && l->a) whole = tn_add(whole, tn_mul_scalar(tn_matmul(l->b, l->a), w->lora_scale));
    return tn_retain(whole);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

typedef struct adapter_file {
    tn_llm *m;
    const char *folder;
    tn_safetensors *tensors;
    int64_t rank;
    int pairs;
} adapter_file;

/* Initializations that also change the base weights: without those, the adapter is incomplete. */
static tn_status refuse_changed_base(const adapter_file *f, const tn_json *o) {
    static const char *const kinds[] = {"pissa", "olora", "corda", "loftq"};
    const char *kind = tn_json_string(tn_json_get(o, "init_lora_weights"), "");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strncasecmp(kind, kinds[i], strlen(kinds[i])) == 0)
            return tn_backend_fail(
                TN_ERR_UNSUPPORTED,
                "'%s': init_lora_weights is \"%.40s\", which changes the model's own weights; save it "
                "with PEFT's path_initial_model_for_weight_conversion",
                f->folder, kind);
    return TN_OK;
}

/* Settings that would change the results and are not computed here. */
static tn_status refuse_settings(const adapter_file *f, const tn_json *o) {
    const char *type = tn_json_string(tn_json_get(o, "peft_type"), "?");
    const char *bias = tn_json_string(tn_json_get(o, "bias"), "none");
    if (strcmp(type, "LORA") != 0)
        return tn_backend_fail(TN_ERR_UNSUPPORTED, "'%s': peft_type is \"%.40s\"; only \"LORA\" is supported",
                               f->folder, type);
    if (strcmp(bias, "none") != 0)
        return tn_backend_fail(TN_ERR_UNSUPPORTED, "'%s': bias is \"%.40s\"; only \"none\" is supported", f->folder,
                               bias);
    static const char *const none[] = {"use_dora",          "lora_bias",       "megatron_config",
                                       "modules_to_save",   "rank_pattern",    "alpha_pattern",
                                       "layer_replication", "exclude_modules", "alora_invocation_tokens"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        const tn_json *v = tn_json_get(o, none[i]);
        bool empty =
            !v || tn_json_kind_of(v) == TN_JSON_NULL ||
            (tn_json_kind_of(v) == TN_JSON_BOOL && !tn_json_bool(v, true)) ||
            ((tn_json_kind_of(v) == TN_JSON_OBJECT || tn_json_kind_of(v) == TN_JSON_ARRAY) && tn_json_length(v) == 0);
        if (!empty)
            return tn_backend_fail(TN_ERR_UNSUPPORTED, "'%s': adapter_config.json sets %s, which is not supported",
                                   f->folder, none[i]);
    }
    return refuse_changed_base(f, o);
}

static tn_status read_settings(adapter_file *f, const tn_json *o) {
    TRY(refuse_settings(f, o));
    f->rank = tn_json_int(tn_json_get(o, "r"), 0);
    double alpha = tn_json_number(tn_json_get(o, "lora_alpha"), NAN);
    if (f->rank < 1 || f->rank > LLM_MOST_WIDTH || !(fabs(alpha) < INFINITY))
        return tn_backend_fail(TN_ERR_FORMAT,
                               "'%s': adapter_config.json: r is %" PRId64
                               " and lora_alpha %g; r must be at least 1, lora_alpha a finite number",
                               f->folder, f->rank, alpha);
    bool root = tn_json_bool(tn_json_get(o, "use_rslora"), false);
    f->m->weights.lora_scale = alpha / (root ? sqrt((double)f->rank) : (double)f->rank);
    return TN_OK;
}

/* "base_model.model.NAME.lora_A.weight" → the slot of NAME.weight. */
static bool find_pair(const llm_config *c, const char *name, int64_t *layer, int *slot, bool *is_b) {
    static const char *const endings[] = {".lora_A.weight", ".lora_B.weight"};
    const llm_naming *n = folder_naming(c);
    char own[LLM_NAME_SIZE];
    size_t length = strlen(name), before = strlen(BEFORE), ending = strlen(endings[0]), prefix = strlen(n->prefix);
    if (length < before + prefix + ending || strncmp(name, BEFORE, before) != 0) return false;
    if (strncmp(name + before, n->prefix, prefix) != 0) return false;
    *is_b = strcmp(name + length - ending, endings[1]) == 0;
    if (!*is_b && strcmp(name + length - ending, endings[0]) != 0) return false;
    int middle = (int)(length - before - prefix - ending);
    snprintf(own, sizeof own, "%.*s%s", middle, name + before + prefix, WEIGHT);
    return tn_llm_find_slot(c, n, own, layer, slot) && *layer >= 0 && *layer < c->layers &&
           tn_llm_lora_slot(c, *layer, *slot, NULL);
}

/* Rows or columns that the pair's half shares with the matrix. */
static int64_t width_of(const tn_llm *m, int64_t layer, int slot, bool rows) {
    const tn_tensor *weight = m->weights.layers[layer].weight[slot];
    return weight ? tn_size(weight, rows ? 0 : 1) : -1;
}

static tn_status take_half(adapter_file *f, const tn_safetensors_info *t) {
    const llm_config *c = &f->m->config;
    int64_t layer;
    int slot;
    bool is_b;
    if (!find_pair(c, t->name, &layer, &slot, &is_b))
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "'%s': tensor '%.200s' is not an adapter of a matrix of this %s model of %" PRId64
                               " layers; ignoring it would give wrong results",
                               f->folder, t->name, c->family->architecture, c->layers);
    int64_t width = width_of(f->m, layer, slot, is_b);
    int64_t wanted[2] = {is_b ? width : f->rank, is_b ? f->rank : width};
    if (t->rank != 2 || t->shape[0] != wanted[0] || t->shape[1] != wanted[1])
        return tn_backend_fail(TN_ERR_FORMAT,
                               "'%s': tensor '%.200s' has %d dimensions, [%" PRId64 ", %" PRId64
                               "]; this model needs [%" PRId64 ", %" PRId64 "]",
                               f->folder, t->name, t->rank, t->rank > 0 ? t->shape[0] : 0,
                               t->rank > 1 ? t->shape[1] : 0, wanted[0], wanted[1]);
    if (t->dtype != TN_F32 && t->dtype != TN_F16 && t->dtype != TN_BF16)
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "'%s': tensor '%.200s' has type %s; only F32, F16 and BF16 are supported", f->folder,
                               t->name, t->dtype_name);
    llm_lora *pair = &f->m->weights.lora[layer * LAYER_SLOTS + slot];
    tn_tensor **out = is_b ? &pair->b : &pair->a;
    {
        TN_SCOPE;
        TN_NO_GRAD;
        tn_tensor *x = tn_contiguous(tn_cast(tn_safetensors_tensor(f->tensors, t->name), TN_F32));
        *out = is_b ? tn_llm_lora_rows(c, slot, x, false) : tn_retain(x);
    }
    f->pairs++;
    return tn_eval(out, 1);
}

/* Each A must have its B. */
static tn_status check_pairs(const adapter_file *f) {
    const llm_config *c = &f->m->config;
    for (int64_t i = 0; i < c->layers * LAYER_SLOTS; i++) {
        const llm_lora *pair = &f->m->weights.lora[i];
        char name[LLM_NAME_SIZE] = "";
        if (!pair->a == !pair->b) continue;
        tn_llm_lora_slot(c, i / LAYER_SLOTS, (int)(i % LAYER_SLOTS), name);
        return tn_backend_fail(TN_ERR_FORMAT, "'%s': '%s' has lora_%c but no lora_%c", f->folder, name,
                               pair->a ? 'A' : 'B', pair->a ? 'B' : 'A');
    }
    if (f->pairs > 0) return TN_OK;
    return tn_backend_fail(TN_ERR_FORMAT, "'%s': adapter_model.safetensors has no tensors", f->folder);
}

static tn_status read_adapter(adapter_file *f) {
    char path[4096];
    tn_json_doc *doc;
    if (snprintf(path, sizeof path, "%s/adapter_config.json", f->folder) >= (int)sizeof path)
        return tn_backend_fail(TN_ERR_ARGUMENT, "the adapter's path is too long: '%.80s…'", f->folder);
    TRY(tn_json_open(path, &doc));
    tn_status status = read_settings(f, tn_json_root(doc));
    tn_json_free(doc);
    TRY(status);
    snprintf(path, sizeof path, "%.4000s/adapter_model.safetensors", f->folder);
    TRY(tn_safetensors_open(path, &f->tensors));
    TRY(tn_llm_lora_new(&f->m->config, &f->m->weights.lora));
    for (int i = 0; i < tn_safetensors_count(f->tensors); i++) {
        tn_safetensors_info t = {.struct_size = sizeof t};
        TRY(tn_safetensors_at(f->tensors, i, &t));
        TRY(take_half(f, &t));
    }
    return check_pairs(f);
}

tn_status tn_llm_lora_read(tn_llm *m, const char *folder) {
    adapter_file f = {.m = m, .folder = folder};
    tn_status status = read_adapter(&f);
    tn_safetensors_close(f.tensors);
    return status;
}
