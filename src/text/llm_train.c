/* llm_train.c — training a language model: which variables are trained, the loss of a batch, a step.
 *
 * The graph is that of inference (llm_record.c): the tokens of several texts are one list, and a mask lets each see
 * only the earlier ones of its own text. So nothing is padded, and one plan with two symbolic extents, tokens and
 * predicted tokens, serves all passes. Logits are computed only where a token is predicted. Texts of a pass that begin
 * with the same tokens (a system message) share these: the tokens form a tree, and each sees those above it. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/llm_model.h"
#include "trunnion/finetune.h"

enum { SYMBOL_TOKENS, SYMBOL_PREDICTED };
enum { MOST_PARTS = 256 };

struct tn_finetune {
    tn_llm *m;
    tn_module *root;
    tn_optimizer *optimizer;
    int64_t rank; /* 0: all weights are trained */
    double alpha, max_grad_norm;
    tn_variable *parameters;
    int parameter_count;
    tn_tensor **grads; /* [parameter_count + 1]: what a pass evaluates */
    /* of a pass: at most `context` tokens */
    int64_t *ids, *rows, *targets;
    float *positions;
    int64_t *parents; /* the token before each; -1: it begins a text */
    bool *seen, *near;
    void *embedded; /* rows of the embedding, as in the file */
    int64_t tokens, predicted;
    int64_t most; /* tokens of a pass, or one text */
    bool saves, recomputes;
    tn_group *group;
    tn_dtype amp; /* of products; TN_F32: all */
    bool (*stop)(void *ctx);
    void *stop_ctx;
    int parts;       /* of a batch; 1: its gradients are added as they come */
    int64_t refused; /* the fewest bytes that a batch would have needed that ran out of memory; 0: none did */
};

/* ==== the trained variables ======================================================================================= */

/* Adds the variable under its dotted name, in modules made on the way. Returns a handle of its own for the model. */
static tn_status add_variable(tn_finetune *t, const char *name, tn_tensor *initial, tn_tensor **out) {
    tn_module *at = t->root;
    const char *part = name, *dot;
    for (; (dot = strchr(part, '.')) != NULL; part = dot + 1) {
        char own[LLM_NAME_SIZE];
        snprintf(own, sizeof own, "%.*s", (int)(dot - part), part);
        tn_module *child = tn_module_child(at, own);
        at = child ? child : tn_module_new(at, own, NULL, NULL);
        if (!at) return tn_module_status(t->root);
    }
    tn_tensor *variable = tn_module_add_parameter(at, part, initial);
    if (!variable) return tn_module_status(t->root);
    *out = tn_retain(variable);
    return TN_OK;
}

/* Takes the place of *slot in the model. */
static tn_status train_in_place(tn_finetune *t, const char *name, tn_tensor *initial, tn_tensor **slot) {
    tn_tensor *variable = NULL;
    TRY(add_variable(t, name, initial, &variable));
    tn_free(*slot);
    *slot = variable;
    return TN_OK;
}

/* ---- LoRA -------------------------------------------------------------------------------------------------------- */

/* "q_proj" of "model.layers.0.self_attn.q_proj" is asked for as "q_proj" or "q". */
static bool is_target(const char *targets, const char *name) {
    const char *last = strrchr(name, '.') ? strrchr(name, '.') + 1 : name;
    size_t length = strlen(last), plain = length;
    if (length > 5 && strcmp(last + length - 5, "_proj") == 0) plain = length - 5;
    for (const char *at = targets; at && *at;) {
        size_t size = strcspn(at, ",");
        if ((size == length || size == plain) && strncmp(at, last, size) == 0) return true;
        at += size + (at[size] == ',');
    }
    return targets == NULL;
}

/* Every word of the targets must be one of the model's modules. */
static tn_status check_targets(const llm_config *c, const char *targets) {
    char known[512] = "";
    for (int slot = 0; slot < LAYER_SLOTS; slot++) {
        char name[LLM_NAME_SIZE];
        if (!tn_llm_lora_slot(c, 0, slot, name)) continue;
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", strrchr(name, '.') + 1);
    }
    for (const char *at = targets; at && (*at || at == targets);) {
        char word[64], name[LLM_NAME_SIZE];
        size_t size = strcspn(at, ",");
        bool found = false;
        snprintf(word, sizeof word, "%.*s", (int)(size < 60 ? size : 60), at);
        for (int slot = 0; slot < LAYER_SLOTS && !found; slot++)
            found = tn_llm_lora_slot(c, 0, slot, name) && is_target(word, name);
        if (!found)
            return tn_backend_fail(TN_ERR_ARGUMENT, "tn_finetune_new: \"%s\" is not a matrix of this model; it has %s",
                                   word, known);
        at += size + (at[size] == ',');
    }
    return TN_OK;
}

/* A and B of a module, at first as they were read or as PEFT draws them. */
static tn_status add_pair(tn_finetune *t, const char *module, const tn_tensor *weight, llm_lora *pair) {
    char name[2 * LLM_NAME_SIZE];
    TN_SCOPE;
    tn_tensor *a = pair->a, *b = pair->b;
    if (!a) a = tn_init_kaiming_uniform(TN_DIMS(t->rank, tn_size(weight, 1)), sqrt(5));
    if (!b) b = tn_init_constant(TN_DIMS(tn_size(weight, 0), t->rank), 0);
    snprintf(name, sizeof name, "base_model.model.%s.lora_A.weight", module);
    TRY(train_in_place(t, name, a, &pair->a));
    snprintf(name, sizeof name, "base_model.model.%s.lora_B.weight", module);
    return train_in_place(t, name, b, &pair->b);
}

static tn_status add_pairs(tn_finetune *t, const char *targets) {
    tn_llm *m = t->m;
    bool fresh = !m->weights.lora;
    if (fresh) {
        TRY(tn_llm_lora_new(&m->config, &m->weights.lora));
        m->weights.lora_scale = t->alpha / (double)t->rank;
    }
    for (int64_t i = 0; i < m->config.layers; i++)
        for (int slot = 0; slot < LAYER_SLOTS; slot++) {
            char name[LLM_NAME_SIZE];
            const tn_tensor *weight = m->weights.layers[i].weight[slot];
            llm_lora *pair = &m->weights.lora[i * LAYER_SLOTS + slot];
            if (!weight || !tn_llm_lora_slot(&m->config, i, slot, name)) continue;
            if (fresh ? !is_target(targets, name) : !pair->a) continue;
            if (!fresh) {
                t->rank = tn_size(pair->a, 0);
                t->alpha = m->weights.lora_scale * (double)t->rank;
            }
            TRY(add_pair(t, name, weight, pair));
        }
    return TN_OK;
}

/* ---- all weights ------------------------------------------------------------------------------------------------- */

static tn_status add_weight(tn_finetune *t, int64_t layer, int slot, tn_tensor **weight) {
    const llm_config *c = &t->m->config;
    char name[LLM_NAME_SIZE], whole[2 * LLM_NAME_SIZE];
    if (!*weight || !tn_llm_name(c->file.naming, name, layer, slot)) return TN_OK;
    char *star = strstr(name, "*.");
    if (star) memmove(star, star + 2, strlen(star + 2) + 1); /* experts that were joined */
    snprintf(whole, sizeof whole, "%s%s", layer < 0 && slot == SLOT_OUTPUT ? "" : c->file.naming->prefix, name);
    TN_SCOPE;
    return train_in_place(t, whole, tn_cast(*weight, TN_F32), weight);
}

static tn_status add_weights(tn_finetune *t) {
    llm_weights *w = &t->m->weights;
    static const uint8_t trained[HEAD_SLOTS] = {
        [SLOT_EMBEDDING] = 1,       [SLOT_OUTPUT_NORM] = 1,         [SLOT_OUTPUT] = 1,     [SLOT_OUTPUT_NORM_BIAS] = 1,
        [SLOT_POSITIONS] = 1,       [SLOT_OUTPUT_BIAS] = 1,         [SLOT_LAST_DENSE] = 1, [SLOT_LAST_DENSE_BIAS] = 1,
        [SLOT_LAST_DENSE_NORM] = 1, [SLOT_LAST_DENSE_NORM_BIAS] = 1};
    for (int slot = 0; slot < HEAD_SLOTS; slot++)
        if (trained[slot]) TRY(add_weight(t, -1, slot, &w->head[slot]));
    for (int64_t i = 0; i < t->m->config.layers; i++) {
        for (int slot = 0; slot < LAYER_SLOTS; slot++)
            TRY(add_weight(t, i, slot, &w->layers[i].weight[slot]));
        tn_free(w->layers[i].key_up); /* its source changes */
        w->layers[i].key_up = NULL;
    }
    return tn_llm_train_embedding(t->m);
}

/* ==== creating ==================================================================================================== */

static tn_status take_buffers(tn_finetune *t) {
    size_t n = (size_t)t->m->config.context;
    t->ids = tn_txt_alloc(n, sizeof *t->ids);
    t->rows = tn_txt_alloc(n, sizeof *t->rows);
    t->targets = tn_txt_alloc(n, sizeof *t->targets);
    t->positions = tn_txt_alloc(n, sizeof *t->positions);
    t->parents = tn_txt_alloc(n, sizeof *t->parents);
    t->grads = tn_txt_zalloc((size_t)t->parameter_count + 1, sizeof(tn_tensor *));
    bool all = t->ids && t->rows && t->targets && t->positions && t->parents && t->grads;
    return all ? TN_OK : TN_ERR_MEMORY;
}

static tn_status set_up_trainer(tn_finetune *t, const tn_finetune_options *o) {
    t->root = tn_module_root();
    if (!t->root) return TN_ERR_MEMORY;
    TRY(t->rank > 0 || t->m->weights.lora ? add_pairs(t, o->targets) : add_weights(t));
    TRY(tn_module_parameters(t->root, &t->parameters, &t->parameter_count));
    tn_adam_options adam = o->adam;
    adam.max_grad_norm = INFINITY; /* tn_finetune_step clips, because it also reports the norm */
    TRY(tn_optimizer_adamw(t->root, &adam, &t->optimizer));
    if (t->amp == TN_F16) TRY(tn_optimizer_set_grad_scaler(t->optimizer, NULL));
    return take_buffers(t);
}

/* The optimizer's own checks of its settings, before the model is changed. */
static tn_status check_adam(tn_adam_options o) {
    TN_SCOPE;
    tn_module *root = tn_module_root();
    tn_optimizer *trial = NULL;
    if (root) tn_module_add_parameter(root, "w", tn_init_constant(NULL, 0, 0));
    tn_status status = root ? tn_module_status(root) : TN_ERR_MEMORY;
    if (status == TN_OK) status = tn_optimizer_adamw(root, &o, &trial);
    tn_optimizer_free(trial);
    tn_module_free(root);
    return status;
}

static tn_status check_trainer_options(const tn_llm *m, const tn_finetune_options *o) {
    if (m->trained) return tn_backend_fail(TN_ERR_STATE, "tn_finetune_new: the model has a trainer or trained weights");
    if (o->rank < 0 || o->rank > m->config.size[SIZE_HIDDEN] || (o->rank && !(o->alpha > 0 && o->alpha < INFINITY)))
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "tn_finetune_new: rank is %" PRId64 " and alpha %g; rank must be 0 to %" PRId64
                               " (the width of the model), alpha positive",
                               o->rank, o->alpha, m->config.size[SIZE_HIDDEN]);
    if (!(o->adam.max_grad_norm >= 0) || o->adam.groups)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "tn_finetune_new: adam.max_grad_norm is %g; it must be at least 0 (INFINITY: no limit), "
                               "and adam.groups must be NULL",
                               o->adam.max_grad_norm);
    int parts = o->parts ? o->parts : tn_group_size(o->group);
    if (parts < 1 || parts > MOST_PARTS)
        return tn_backend_fail(TN_ERR_ARGUMENT, "tn_finetune_new: %d parts; there must be 1 to %d", parts, MOST_PARTS);
    if (o->amp != TN_F32 && o->amp != TN_F16 && o->amp != TN_BF16)
        return tn_backend_fail(TN_ERR_DTYPE, "tn_finetune_new: amp is %s; it must be f32, f16 or bf16",
                               tn_dtype_name(o->amp));
    return check_adam(o->adam);
}

tn_status tn_finetune_new(tn_llm *m, const tn_finetune_options *options, tn_finetune **out) {
    tn_finetune_options o = TN_FINETUNE_DEFAULTS;
    TRY(tn_options_read(&o, options, "tn_finetune_new", "tn_finetune_options o = TN_FINETUNE_DEFAULTS"));
    if (!m || !out) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_finetune_new: the model or out is NULL");
    *out = NULL;
    TRY(tn_llm_refuse_recurrent(m, "tn_finetune_new", "their states are written in place and have no gradients"));
    TRY(check_trainer_options(m, &o));
    if (o.rank > 0 && !m->weights.lora) TRY(check_targets(&m->config, o.targets));
    tn_finetune *t = tn_txt_zalloc(1, sizeof *t);
    if (!t) return TN_ERR_MEMORY;
    *t = (tn_finetune){.m = m, .rank = o.rank, .alpha = o.alpha, .max_grad_norm = o.adam.max_grad_norm};
    t->most = m->config.context;
    t->saves = o.save_memory;
    t->group = o.group;
    t->amp = o.amp;
    t->stop = o.stop;
    t->stop_ctx = o.stop_ctx;
    t->parts = o.parts ? o.parts : tn_group_size(o.group);
    m->position = 0;
    tn_graph_free(m->token); /* it computes with the weights of before */
    m->token = NULL;
    m->renewals++; /* so do those of batches */
    tn_llm_drop_draft_graphs(m);
    AUTO_DEVICE(m->device);
    tn_status status = set_up_trainer(t, &o);
    m->trained = true;
    if (status == TN_OK) {
        *out = t;
        return TN_OK;
    }
    tn_finetune_free(t);
    return status;
}

void tn_finetune_free(tn_finetune *t) {
    if (!t) return;
    tn_optimizer_free(t->optimizer);
    tn_variables_free(t->parameters);
    tn_module_free(t->root);
    tn_txt_free_each(t->grads, t->ids, t->rows, t->targets, t->positions, t->parents, t->seen, t->near, t->embedded, t);
}

tn_module *tn_finetune_module(tn_finetune *t) { return t ? t->root : NULL; }
tn_optimizer *tn_finetune_optimizer(tn_finetune *t) { return t ? t->optimizer : NULL; }
int64_t tn_finetune_parameter_count(tn_finetune *t) { return t ? tn_module_parameter_count(t->root) : -1; }

/* ==== a batch ===================================================================================================== */

static tn_status check_example(const tn_finetune *t, const tn_finetune_example *e, int64_t index) {
    const llm_config *c = &t->m->config;
    if (!e->ids || e->count < 2 || e->count > c->context)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "finetune: text %" PRId64 " has %" PRId64
                               " tokens; it must have at least 2 and at most the context of %" PRId64,
                               index, e->ids ? e->count : 0, c->context);
    for (int64_t i = 0; i < e->count; i++)
        if (e->ids[i] < 0 || e->ids[i] >= c->size[SIZE_VOCABULARY])
            return tn_backend_fail(TN_ERR_ARGUMENT,
                                   "finetune: text %" PRId64 ": token %" PRId64 " is %" PRId32
                                   ", but the vocabulary has %" PRId64 " tokens",
                                   index, i, e->ids[i], c->size[SIZE_VOCABULARY]);
    return TN_OK;
}

static bool is_answer(const tn_finetune_example *e, int64_t i) { return !e->answer || e->answer[i]; }

static tn_status check_batch(const tn_finetune *t, const tn_finetune_example *examples, int64_t count,
                             const tn_finetune_stats *result, tn_finetune_stats *out) {
    if (result) TRY(tn_result_check(result, "finetune: result"));
    if (!t || !examples || count < 1)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "finetune: the trainer or the texts are NULL, or their number is %" PRId64, count);
    *out = (tn_finetune_stats){.struct_size = sizeof *out, .grad_norm = NAN};
    for (int64_t k = 0; k < count; k++) {
        TRY(check_example(t, &examples[k], k));
        out->tokens += examples[k].count - 1;
        for (int64_t i = 1; i < examples[k].count; i++)
            out->predicted += is_answer(&examples[k], i);
    }
    if (out->predicted > 0) return TN_OK;
    return tn_backend_fail(TN_ERR_ARGUMENT, "finetune: the %" PRId64 " texts have no token to predict", count);
}

/* The token of the pass that continues `parent` with this id, or -1. */
static int64_t find_child(const tn_finetune *t, int64_t parent, int32_t id) {
    for (int64_t i = parent + 1; i < t->tokens; i++)
        if (t->parents[i] == parent && t->ids[i] == id) return i;
    return -1;
}

/* Appends what the pass does not have of a text but its last token, which predicts nothing. */
static void append_text(tn_finetune *t, const tn_finetune_example *e) {
    for (int64_t i = 0, parent = -1, at; i + 1 < e->count; i++, parent = at) {
        at = find_child(t, parent, e->ids[i]);
        if (at < 0) at = t->tokens++;
        t->ids[at] = e->ids[i];
        t->positions[at] = (float)i;
        t->parents[at] = parent;
        if (!is_answer(e, i + 1)) continue;
        t->rows[t->predicted] = at;
        t->targets[t->predicted++] = e->ids[i + 1];
    }
}

/* The texts from `first` on that fit into a pass. Returns the first of the next pass. */
static int64_t fill_pass(tn_finetune *t, const tn_finetune_example *examples, int64_t first, int64_t count) {
    int64_t k = first, length = 0;
    t->tokens = t->predicted = 0;
    for (; k < count && (k == first || length + examples[k].count <= t->most); k++) {
        append_text(t, &examples[k]);
        length += examples[k].count - 1;
    }
    return k;
}

/* Each token sees itself and what its parent sees. */
static void fill_masks(tn_finetune *t) {
    int64_t n = t->tokens, window = t->m->config.attention.window;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            bool seen = i == j || (j < i && t->parents[i] >= 0 && t->seen[t->parents[i] * n + j]);
            t->seen[i * n + j] = seen;
            if (t->near) t->near[i * n + j] = seen && t->positions[i] - t->positions[j] < (float)window;
        }
}

/* Buffers that grow with the longest pass: masks and rows of the embedding. */
static tn_status prepare_pass(tn_finetune *t) {
    size_t n = (size_t)t->tokens;
    tn_txt_free_each(t->seen, t->near, t->embedded);
    t->near = NULL;
    t->embedded = NULL;
    t->seen = tn_txt_alloc(n * n, sizeof *t->seen);
    if (!t->seen) return TN_ERR_MEMORY;
    if (t->m->config.attention.window && !(t->near = tn_txt_alloc(n * n, sizeof *t->near))) return TN_ERR_MEMORY;
    fill_masks(t);
    if (t->rank == 0) return TN_OK;
    char name[LLM_NAME_SIZE];
    t->embedded = tn_txt_alloc(n, tn_llm_embedding_row(t->m));
    if (!t->embedded) return TN_ERR_MEMORY;
    tn_llm_name(t->m->config.file.naming, name, -1, SLOT_EMBEDDING);
    return tn_llm_source_rows(&t->m->file->source, name, t->ids, t->tokens, t->embedded);
}

static tn_tensor *symbolic_list(const void *data, int64_t n, tn_dtype dtype, int symbol) {
    return tn_symbolic(tn_from_data(data, TN_DIMS(n), dtype), 0, symbol);
}

static tn_tensor *mask_of(const bool *mask, int64_t n) {
    return mask ? tn_symbolic(tn_symbolic(tn_from_data(mask, TN_DIMS(n, n), TN_BOOL), 0, SYMBOL_TOKENS), 1,
                              SYMBOL_TOKENS)
                : NULL;
}

static tn_tensor *embedding_rows(const tn_finetune *t) {
    const tn_tensor *table = t->m->weights.head[SLOT_EMBEDDING];
    int64_t n = t->tokens;
    if (t->rank == 0) return tn_embedding(symbolic_list(t->ids, n, TN_I64, SYMBOL_TOKENS), table);
    return tn_symbolic(tn_from_data(t->embedded, TN_DIMS(n, t->m->config.size[SIZE_HIDDEN]), tn_dtype_of(table)), 0,
                       SYMBOL_TOKENS);
}

/* The sum of the cross-entropies of a pass. */
static tn_tensor *pass_loss(const tn_finetune *t, bool trains) {
    int64_t n = t->tokens;
    llm_inputs in = {.rows = embedding_rows(t),
                     .positions = tn_symbolic(tn_from_data(t->positions, TN_DIMS(n, 1, 1), TN_F32), 0, SYMBOL_TOKENS),
                     .last = symbolic_list(t->rows, t->predicted, TN_I64, SYMBOL_PREDICTED),
                     .seen = mask_of(t->seen, n),
                     .near = mask_of(t->near, n),
                     .trains = trains};
    TN_AUTOCAST(t->amp);
    tn_tensor *targets = symbolic_list(t->targets, t->predicted, TN_I64, SYMBOL_PREDICTED);
    tn_cross_entropy_options o = TN_CROSS_ENTROPY_DEFAULTS;
    o.reduction = TN_REDUCTION_SUM;
    AUTO_TXT_TENSOR tn_tensor *logits = tn_llm_record(&t->m->config, &t->m->weights, &in, LLM_LAST_ROW);
    return tn_cross_entropy(logits, targets, NULL, &o);
}

/* Unlike tn_item, tells the failure of a device from a number that is NaN. x: one f32. */
static tn_status add_number(const tn_tensor *x, double divisor, double *sum) {
    float value;
    TRY(tn_read(x, &value, sizeof value));
    *sum += (double)value / divisor;
    return TN_OK;
}

/* Adds the gradients of the pass's share of the mean and evaluates them together with the loss. */
static tn_status backward_pass(tn_finetune *t, int64_t predicted, double *loss) {
    TRY(prepare_pass(t));
    TN_SCOPE;
    tn_tensor *share = tn_mul(pass_loss(t, true), tn_runtime_scalar(1.0 / (double)predicted));
    TRY(tn_backward(tn_optimizer_scale_loss(t->optimizer, share)));
    int count = 0;
    t->grads[count++] = share;
    for (int i = 0; i < t->parameter_count; i++) {
        tn_tensor *g = tn_grad(t->parameters[i].tensor);
        if (g) t->grads[count++] = g;
    }
    TRY(tn_eval(t->grads, count));
    return add_number(share, 1, loss);
}

static tn_status evaluate_pass(tn_finetune *t, int64_t predicted, double *loss) {
    TRY(prepare_pass(t));
    TN_SCOPE; /* gradients stay on: plans without them would keep packed copies of all weights */
    tn_tensor *sum = pass_loss(t, false);
    TRY(tn_eval(&sum, 1));
    return add_number(sum, (double)predicted, loss);
}

static tn_status run_passes(tn_finetune *t, const tn_finetune_example *examples, int64_t count, bool trains,
                            tn_finetune_stats *result) {
    result->loss = 0;
    for (int64_t at = 0; at < count;) {
        if (t->stop && t->stop(t->stop_ctx)) return tn_backend_fail(TN_ERR_STATE, "finetune: stopped by the caller");
        at = fill_pass(t, examples, at, count);
        if (t->predicted == 0) continue;
        TRY((trains ? backward_pass : evaluate_pass)(t, result->predicted, &result->loss));
    }
    return TN_OK;
}

/* ---- less memory ------------------------------------------------------------------------------------------------- */

static int64_t longest_text(const tn_finetune_example *examples, int64_t count) {
    int64_t longest = 0;
    for (int64_t i = 0; i < count; i++)
        if (examples[i].count > longest) longest = examples[i].count;
    return longest;
}

/* Chooses the next way to use less memory; false if all are in use. */
static bool save_more(tn_finetune *t, bool trains, int64_t longest) {
    if (trains && !t->recomputes) return t->recomputes = true;
    if (t->most <= longest) return false;
    t->most = t->most / 2 > longest ? t->most / 2 : longest;
    return true;
}

static tn_status memory_is_missing(const tn_finetune *t) {
    tn_pool_stats s = {.struct_size = sizeof s};
    if (tn_device_get_pool_stats(t->m->device, &s) != TN_OK || !s.limit || !t->refused) return TN_ERR_MEMORY;
    return tn_backend_fail(TN_ERR_MEMORY,
                           "finetune: a pass of one text needs at least %.1f MiB with recomputation, but the limit is "
                           "%.1f MiB: %.1f MiB are missing; use a shorter context, a lower rank or fewer targets",
                           (double)t->refused / 0x1p20, (double)s.limit / 0x1p20,
                           (double)(t->refused - s.limit) / 0x1p20);
}

static tn_status run_batch(tn_finetune *t, const tn_finetune_example *examples, int64_t count, bool trains,
                           tn_finetune_stats *result) {
    bool before = tn_set_auto_recompute(t->recomputes), recomputes = t->recomputes;
    int64_t longest = longest_text(examples, count), most = t->most;
    tn_status status = run_passes(t, examples, count, trains, result);
    while (status == TN_ERR_MEMORY && t->saves) {
        tn_pool_stats s = {.struct_size = sizeof s};
        if (tn_device_get_pool_stats(t->m->device, &s) == TN_OK && s.refused_bytes > 0 &&
            (!t->refused || s.refused_bytes < t->refused))
            t->refused = s.refused_bytes;
        if (trains) tn_optimizer_zero_grad(t->optimizer);
        tn_clear_plans(); /* their memory, too */
        if (!save_more(t, trains, longest)) {
            status = memory_is_missing(t);
            t->recomputes = recomputes;
            t->most = most;
            break;
        }
        (void)tn_set_auto_recompute(t->recomputes);
        status = run_passes(t, examples, count, trains, result);
    }
    (void)tn_set_auto_recompute(before);
    result->recomputes = t->recomputes;
    result->pass = t->most;
    return status;
}

/* ---- parts, also on several processes ---------------------------------------------------------------------------- */

/* The result of one part, which all processes exchange. */
typedef struct part_report {
    double loss;
    int64_t status;
} part_report;

static int first_part(const tn_finetune *t, int rank) { return t->parts * rank / tn_group_size(t->group); }

/* Concatenates and evaluates all gradients (zeros for parameters without one) and `padding` zeros. */
static tn_status flatten(tn_finetune *t, int64_t padding, tn_tensor **out) {
    TN_SCOPE;
    TN_NO_GRAD;
    int count = 0;
    for (int i = 0; i < t->parameter_count; i++) {
        const tn_tensor *like = t->parameters[i].tensor;
        tn_tensor *g = tn_grad(like);
        t->grads[count++] = g ? tn_reshape(g, TN_DIMS(-1)) : tn_zeros(TN_DIMS(tn_numel(like)), TN_F32);
    }
    if (padding) t->grads[count++] = tn_zeros(TN_DIMS(padding), TN_F32);
    *out = tn_keep(tn_cat(t->grads, count, 0));
    return tn_eval(out, 1);
}

/* Makes slices of the sum the parameters' gradients: the gradient of sum(parameter * slice) is the slice. */
static tn_status spread(tn_finetune *t, const tn_tensor *sum) {
    TN_SCOPE;
    int64_t at = 0;
    for (int i = 0; i < t->parameter_count; i++) {
        tn_tensor *v = t->parameters[i].tensor, *own = tn_slice(sum, 0, at, at + tn_numel(v), 1);
        tn_tensor *g = tn_reshape(own, tn_shape(v), tn_rank(v));
        TRY(tn_backward(tn_sum(tn_mul(v, g), NULL, 0, false)));
        t->grads[i] = tn_grad(v);
        at += tn_numel(v);
    }
    return tn_eval(t->grads, t->parameter_count);
}

/* rows: this process's parts. Each process adds its piece of all parts in their order, and all gather the sums. */
static tn_tensor *exchange(const tn_finetune *t, tn_tensor **rows, int64_t most, int64_t length) {
    int64_t size = tn_group_size(t->group), piece = length / size;
    tn_tensor *all = tn_reshape(tn_stack(rows, (int)most, 0), TN_DIMS(most, size, piece)), *sum = NULL;
    tn_tensor *received = tn_group_all_to_all_tensor(t->group, tn_contiguous(tn_transpose(all, 0, 1)));
    for (int rank = 0; rank < size; rank++)
        for (int k = 0; k < first_part(t, rank + 1) - first_part(t, rank); k++) {
            tn_tensor *one = tn_select(tn_select(received, 0, rank), 0, k);
            sum = sum ? tn_add(sum, one) : one;
        }
    return tn_reshape(tn_group_all_gather_tensor(t->group, sum), TN_DIMS(-1));
}

/* Exchanges loss and status of all parts, `most` reports a process. Fails on every process if a part failed. */
static tn_status agree(const tn_finetune *t, int most, tn_status status, part_report *own, part_report *all,
                       double *loss) {
    int size = tn_group_size(t->group), here = tn_group_rank(t->group);
    own[0].status = status;
    memcpy(all, own, (size_t)most * sizeof *own);
    if (size > 1) TRY(tn_group_all_gather(t->group, own, (size_t)most * sizeof *own, all));
    *loss = 0;
    for (int rank = 0; rank < size; rank++) {
        const part_report *r = all + (ptrdiff_t)rank * most;
        for (int k = 0; k < first_part(t, rank + 1) - first_part(t, rank); k++)
            *loss += r[k].loss;
        if (status == TN_OK && r->status != TN_OK && rank != here)
            status = tn_backend_fail((tn_status)r->status, "finetune: rank %d failed: %s", rank,
                                     tn_status_name((tn_status)r->status));
    }
    return status;
}

/* Computes this process's parts, each by itself: flats[k] is new. */
static tn_status run_own_parts(tn_finetune *t, const tn_finetune_example *examples, int64_t count, int64_t padding,
                               tn_tensor **flats, part_report *own, tn_finetune_stats *result) {
    int first = first_part(t, tn_group_rank(t->group)), next = first_part(t, tn_group_rank(t->group) + 1);
    for (int part = first; part < next; part++) {
        int64_t begin = count * part / t->parts, end = count * (part + 1) / t->parts;
        tn_finetune_stats one = *result;
        one.loss = 0;
        tn_optimizer_zero_grad(t->optimizer);
        TRY(run_batch(t, examples + begin, end - begin, true, &one));
        TRY(flatten(t, padding, &flats[part - first]));
        own[part - first].loss = one.loss;
        result->recomputes = one.recomputes;
        result->pass = one.pass;
    }
    return TN_OK;
}

/* The sum of all parts of all processes and of what was there before (NULL: nothing). */
static tn_tensor *add_parts(const tn_finetune *t, tn_tensor **flats, int most, int64_t length,
                            const tn_tensor *before) {
    tn_tensor *sum = NULL;
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *none = tn_zeros(TN_DIMS(length), TN_F32), *rows[MOST_PARTS];
    for (int k = 0; k < most; k++)
        rows[k] = flats[k] ? flats[k] : none;
    bool alone = tn_group_size(t->group) == 1;
    sum = alone ? rows[0] : exchange(t, rows, most, length);
    for (int k = 1; alone && k < most; k++)
        sum = tn_add(sum, rows[k]);
    if (before) sum = tn_add(before, sum);
    return tn_retain(sum);
}

static bool has_gradients(const tn_finetune *t) {
    TN_SCOPE;
    for (int i = 0; i < t->parameter_count; i++)
        if (tn_grad(t->parameters[i].tensor)) return true;
    return false;
}

/* The gradients become those of the whole batch, on every process; earlier ones are added. */
static tn_status run_parts(tn_finetune *t, const tn_finetune_example *examples, int64_t count,
                           tn_finetune_stats *result) {
    int size = tn_group_size(t->group), most = (t->parts + size - 1) / size;
    tn_tensor *flats[MOST_PARTS] = {NULL};
    AUTO_TXT_TENSOR tn_tensor *before = NULL, *sum = NULL;
    part_report own[MOST_PARTS] = {{0}};
    AUTO_TXT_FREE part_report *all = tn_txt_zalloc((size_t)most * (size_t)size, sizeof *all);
    int64_t length = 0;
    if (!all) return TN_ERR_MEMORY; /* the caller ends the group, so that the others do not wait */
    for (int i = 0; i < t->parameter_count; i++)
        length += tn_numel(t->parameters[i].tensor);
    int64_t padding = (size - length % size) % size;
    tn_status status = has_gradients(t) ? flatten(t, padding, &before) : TN_OK;
    if (status == TN_OK) status = run_own_parts(t, examples, count, padding, flats, own, result);
    tn_optimizer_zero_grad(t->optimizer);
    status = agree(t, most, status, own, all, &result->loss);
    if (status == TN_OK) {
        sum = add_parts(t, flats, most, length + padding, before);
        status = tn_eval(&sum, 1);
    }
    if (status == TN_OK) status = spread(t, sum);
    for (int k = 0; k < most; k++)
        tn_free(flats[k]);
    return status;
}

static tn_status add_gradients(tn_finetune *t, const tn_finetune_example *examples, int64_t count,
                               tn_finetune_stats *found) {
    return t->parts > 1 ? run_parts(t, examples, count, found) : run_batch(t, examples, count, true, found);
}

tn_status tn_finetune_backward(tn_finetune *t, const tn_finetune_example *examples, int64_t count,
                               tn_finetune_stats *result) {
    tn_finetune_stats found;
    TRY(check_batch(t, examples, count, result, &found));
    AUTO_DEVICE(t->m->device);
    tn_status status = add_gradients(t, examples, count, &found);
    if (status != TN_OK) tn_optimizer_zero_grad(t->optimizer);
    if (status == TN_OK && result) status = tn_result_write(result, &found, sizeof found, "finetune: result");
    return status;
}

tn_status tn_finetune_evaluate(tn_finetune *t, const tn_finetune_example *examples, int64_t count,
                               tn_finetune_stats *result) {
    tn_finetune_stats found;
    TRY(check_batch(t, examples, count, result, &found));
    AUTO_DEVICE(t->m->device);
    TRY(run_batch(t, examples, count, false, &found));
    if (result) TRY(tn_result_write(result, &found, sizeof found, "finetune: result"));
    return TN_OK;
}

static tn_status update(tn_finetune *t, double loss, double *norm) {
    TN_SCOPE;
    tn_tensor *total = NULL;
    if (t->amp == TN_F16 && !isfinite(loss)) /* else every step is skipped */
        return tn_backend_fail(TN_ERR_STATE,
                               "finetune: the loss is %g, which no loss scale mends; use bf16, no mixed precision, or "
                               "a smaller learning rate",
                               fabs(loss)); /* no sign of a NaN */
    TRY(tn_optimizer_unscale(t->optimizer));
    TRY(tn_clip_grad_norm(t->root, t->max_grad_norm, &total));
    TRY(tn_eval(&total, 1));
    *norm = 0;
    TRY(add_number(total, 1, norm));
    if (isfinite(*norm) || t->amp == TN_F16) return tn_optimizer_step(t->optimizer);
    return tn_backend_fail(TN_ERR_STATE, "finetune: the norm of the gradients is %g; use a smaller learning rate",
                           *norm);
}

tn_status tn_finetune_step(tn_finetune *t, const tn_finetune_example *examples, int64_t count,
                           tn_finetune_stats *result) {
    tn_finetune_stats found;
    TRY(check_batch(t, examples, count, result, &found));
    AUTO_DEVICE(t->m->device);
    tn_status status = add_gradients(t, examples, count, &found);
    if (status == TN_OK) status = update(t, found.loss, &found.grad_norm);
    tn_optimizer_zero_grad(t->optimizer);
    t->m->position = 0; /* the caches hold what other weights computed */
    tn_llm_drop_draft(t->m);
    if (status == TN_OK && result) status = tn_result_write(result, &found, sizeof found, "finetune: result");
    return status;
}

tn_status tn_finetune_save_adapter(tn_finetune *t, const char *folder, const char *base_model) {
    if (!t || !folder)
        return tn_backend_fail(TN_ERR_ARGUMENT, "tn_finetune_save_adapter: the trainer or folder is NULL");
    if (t->rank == 0)
        return tn_backend_fail(TN_ERR_STATE, "tn_finetune_save_adapter: all weights are trained, so there is no "
                                             "adapter; use tn_llm_save_model");
    AUTO_DEVICE(t->m->device);
    return tn_llm_save_adapter(t->m, folder, base_model);
}
