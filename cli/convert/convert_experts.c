/* convert_experts.c — the matrices of a mixture's experts: a folder has a tensor for each, a GGUF file one for all.
 *
 * Of a folder's, those of a layer count as one tensor, put side by side when it is read; of a GGUF file, each expert's
 * part counts as a tensor. They stand behind all other tensors of the file. */
#include <stdlib.h>
#include <string.h>

#include "cli/convert/convert.h"
#include "trunnion/backend.h"
#include "trunnion/ops.h"

enum { KINDS = 3, MOST_LAYERS = 4096, MOST_EXPERTS = 4096 };

static const char *const in_gguf[KINDS] = {"ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight"};
static const char *const in_qwen[KINDS] = {"mlp.experts.%lld.gate_proj.weight", "mlp.experts.%lld.up_proj.weight",
                                           "mlp.experts.%lld.down_proj.weight"};
static const char *const in_mixtral[KINDS] = {"block_sparse_moe.experts.%lld.w1.weight",
                                              "block_sparse_moe.experts.%lld.w3.weight",
                                              "block_sparse_moe.experts.%lld.w2.weight"};

/* Which expert's matrix it is: number i of those that count. */
typedef struct place {
    int64_t layer, kind, expert;
} place;

static place expert_place_of(const convert_folder *f, int64_t i) {
    int64_t each = f->back ? f->experts : 1;
    return (place){i / each / KINDS, i / each % KINDS, i % each};
}

static void folder_name(const convert_folder *f, place p, char out[CONVERT_NAME]) {
    const char *const *names = strcmp(f->architecture, "llama") == 0 ? in_mixtral : in_qwen;
    char end[CONVERT_NAME / 2];
    snprintf(end, sizeof end, names[p.kind], (long long)p.expert);
    snprintf(out, CONVERT_NAME, "model.layers.%lld.%s", (long long)p.layer, end);
}

static void gguf_name(place p, char out[CONVERT_NAME]) {
    snprintf(out, CONVERT_NAME, "blk.%lld.%s", (long long)p.layer, in_gguf[p.kind]);
}

bool convert_experts_has(const convert_folder *f, const char *name) {
    const char *const *names = strcmp(f->architecture, "llama") == 0 ? in_mixtral : in_qwen;
    for (int k = 0; k < KINDS && f->experts > 0; k++) {
        const char *wanted = f->back ? in_gguf[k] : strrchr(names[k], 'd') + 1; /* behind the expert's number */
        size_t length = strlen(name), n = strlen(wanted);
        bool among = f->back || strstr(name, ".experts.");
        if (among && length > n && strcmp(name + length - n, wanted) == 0) return true;
    }
    return false;
}

int64_t convert_experts_count(const convert_folder *f) {
    return f->experts > 0 ? f->layers * KINDS * (f->back ? f->experts : 1) : 0;
}

tn_status convert_experts_open(convert_folder *f, int64_t experts, int64_t layers) {
    if (experts == 0) return TN_OK;
    if (experts < 1 || experts > MOST_EXPERTS || layers < 1 || layers > MOST_LAYERS)
        return tn_backend_fail(TN_ERR_FORMAT, "'%s' has %lld experts in each of %lld layers; the limits are %d and %d",
                               f->path, (long long)experts, (long long)layers, MOST_EXPERTS, MOST_LAYERS);
    f->experts = experts;
    f->layers = layers;
    return TN_OK;
}

/* A folder's tensor of one expert. */
static tn_status find_one(const convert_file *f, place p, tn_safetensors_info *info) {
    char name[CONVERT_NAME];
    folder_name(f->folder, p, name);
    *info = (tn_safetensors_info){.struct_size = sizeof *info};
    TRY(tn_safetensors_find(f->safetensors, name, info));
    return info->rank != 2 ? tn_backend_fail(TN_ERR_FORMAT, "'%s': '%s' is not a matrix", f->path, name) : TN_OK;
}

static tn_status joined_at(const convert_file *f, place p, convert_tensor *t) {
    tn_safetensors_info one;
    TRY(find_one(f, p, &one));
    int64_t experts = f->folder->experts;
    *t = (convert_tensor){.source = one.name,
                          .type = one.dtype_name,
                          .dtype = one.dtype,
                          .rank = 3,
                          .shape = {experts, one.shape[0], one.shape[1]},
                          .numel = experts * one.shape[0] * one.shape[1],
                          .bytes = experts * one.bytes,
                          .heads = CONVERT_JOINED};
    return TN_OK;
}

static tn_status part_at(const convert_file *f, place p, convert_tensor *t) {
    char name[CONVERT_NAME];
    tn_gguf_info all = {.struct_size = sizeof all};
    gguf_name(p, name);
    TRY(tn_gguf_find(f->gguf, name, &all));
    int64_t experts = f->folder->experts;
    if (all.rank != 3 || all.shape[0] != experts)
        return tn_backend_fail(TN_ERR_FORMAT, "'%s': '%s' does not contain the matrices of %lld experts", f->path, name,
                               (long long)experts);
    int64_t bytes = all.bytes / experts;
    *t = (convert_tensor){.source = all.name,
                          .type = all.dtype_name,
                          .dtype = all.dtype,
                          .rank = 2,
                          .shape = {all.shape[1], all.shape[2]},
                          .numel = all.shape[1] * all.shape[2],
                          .bytes = bytes,
                          .data = (const char *)all.data + p.expert * bytes,
                          .heads = CONVERT_PART};
    return TN_OK;
}

tn_status convert_experts_at(const convert_file *f, int64_t i, char **name, convert_tensor *t) {
    place p = expert_place_of(f->folder, i);
    char made[CONVERT_NAME];
    TRY(f->folder->back ? part_at(f, p, t) : joined_at(f, p, t));
    if (f->folder->back)
        folder_name(f->folder, p, made);
    else
        gguf_name(p, made);
    if (!*name && !(*name = strdup(made))) return tn_backend_fail(TN_ERR_MEMORY, "out of memory for a name");
    t->name = *name;
    t->expert = i;
    return TN_OK;
}

static tn_tensor *join_expert(const convert_file *f, const convert_tensor *t) {
    place p = expert_place_of(f->folder, t->expert);
    tn_safetensors_info one;
    AUTO_CLI_FREE char *all = malloc((size_t)t->bytes + 1);
    if (!all) return (void)tn_backend_fail(TN_ERR_MEMORY, "out of memory for '%s'", t->name), NULL;
    for (p.expert = 0; p.expert < t->shape[0]; p.expert++) {
        if (find_one(f, p, &one) != TN_OK) return NULL;
        if (one.dtype != t->dtype || one.bytes != t->bytes / t->shape[0]) {
            (void)tn_backend_fail(TN_ERR_FORMAT, "'%s' has another type or shape than that of the first expert",
                                  one.name);
            return NULL;
        }
        memcpy(all + p.expert * one.bytes, one.data, (size_t)one.bytes);
    }
    return tn_from_data(all, t->shape, 3, t->dtype);
}

tn_tensor *convert_experts_tensor(const convert_file *f, const convert_tensor *t) {
    if (!f->folder->back) return join_expert(f, t);
    tn_tensor *all = tn_gguf_tensor(f->gguf, t->source);
    tn_tensor *part = tn_select(all, 0, expert_place_of(f->folder, t->expert).expert);
    tn_free(all);
    return part;
}
