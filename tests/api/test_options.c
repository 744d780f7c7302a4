/* test_options.c — every struct of options: only one that was started from its initialiser is accepted, a field means
 * what it says, and programs with an earlier, shorter struct keep working.
 *
 * The table has a row for each initialiser; a test reads the public headers and fails if one is missing there. */
#include "test_support.h"

#include <dirent.h>
#include <math.h>
#include <stddef.h>

#include "trunnion/amp.h"
#include "trunnion/certify.h"
#include "trunnion/classify.h"
#include "trunnion/data.h"
#include "trunnion/data_parallel.h"
#include "trunnion/distributed.h"
#include "trunnion/embed.h"
#include "trunnion/engine.h"
#include "trunnion/finetune.h"
#include "trunnion/functions.h"
#include "trunnion/llm.h"
#include "trunnion/onnx.h"
#include "trunnion/ops.h"
#include "trunnion/optim.h"
#include "trunnion/seq2seq.h"
#include "trunnion/speech.h"
#include "trunnion/survive.h"
#include "trunnion/text.h"
#include "trunnion/tune.h"

/* ---- what takes options ------------------------------------------------------------------------------------------ */

/* Numbers -0.7, -0.4, -0.1, 0.2 … of this shape. */
static tn_tensor *ramp(const int64_t *shape, int rank) {
    int64_t count = 1;
    for (int i = 0; i < rank; i++)
        count *= shape[i];
    tn_tensor *flat = tn_sub_scalar(tn_mul_scalar(tn_arange(0, (double)count, 1, TN_F32), 0.3), 0.7);
    return tn_reshape(flat, shape, rank);
}

static tn_tensor *classes(void) { return tn_from_data((int64_t[]){1, 0, 2}, TN_DIMS(3), TN_I64); }

static tn_tensor *cached(const tn_cached_attention_options *o) {
    tn_tensor *x = ramp(TN_DIMS(2, 1, 4)), *cache = tn_zeros(TN_DIMS(1, 1, 64, 4), TN_F32);
    return tn_cached_attention(x, x, x, cache, cache, tn_zeros(TN_ALL, TN_I64), tn_zeros(TN_DIMS(1), TN_I64), NULL, o);
}

#define IMAGE ramp(TN_DIMS(1, 2, 6, 6))
#define FILTER ramp(TN_DIMS(2, 2, 3, 3))
#define BYTES(...) tn_cast(tn_ones(TN_DIMS(__VA_ARGS__), TN_F32), TN_U8)
#define MATRIX ramp(TN_DIMS(3, 4))
#define KERNEL ((int64_t[]){3, 2})
#define MEAN TN_REDUCTION_MEAN

/* X(operation, its initialiser, a call with options o) */
#define OPERATIONS(X)                                                                                             \
    X(cosine_similarity, COSINE_SIMILARITY, tn_cosine_similarity(MATRIX, tn_add_scalar(MATRIX, 1), 1, o))         \
    X(softplus, SOFTPLUS, tn_softplus(MATRIX, o))                                                                 \
    X(gelu, GELU, tn_gelu(MATRIX, o))                                                                             \
    X(layer_norm, LAYER_NORM, tn_layer_norm(MATRIX, TN_DIMS(4), NULL, NULL, o))                                   \
    X(rms_norm, RMS_NORM, tn_rms_norm(MATRIX, TN_DIMS(4), NULL, o))                                               \
    X(group_norm, GROUP_NORM, tn_group_norm(MATRIX, 2, NULL, NULL, o))                                            \
    X(instance_norm, INSTANCE_NORM, tn_instance_norm(IMAGE, NULL, NULL, o))                                       \
    X(batch_norm, BATCH_NORM, tn_batch_norm(MATRIX, NULL, NULL, NULL, NULL, true, o))                             \
    X(conv1d, CONV1D, tn_conv1d(ramp(TN_DIMS(1, 2, 6)), ramp(TN_DIMS(2, 2, 3)), NULL, o))                         \
    X(conv2d, CONV2D, tn_conv2d(IMAGE, FILTER, NULL, o))                                                          \
    X(int_conv2d, INT_CONV2D, tn_int_conv2d(BYTES(1, 2, 6, 6), tn_cast(BYTES(2, 2, 3, 3), TN_I8), o))             \
    X(quantized_mm, QUANTIZED_MM,                                                                                 \
      tn_quantized_mm(BYTES(2, 6), tn_cast(BYTES(6, 3), TN_I8), tn_zeros(TN_DIMS(3), TN_I32),                     \
                      tn_full(TN_DIMS(3), 0.1, TN_F32), o))                                                       \
    X(quantized_conv2d, QUANTIZED_CONV2D,                                                                         \
      tn_quantized_conv2d(BYTES(1, 2, 6, 6), tn_cast(BYTES(2, 2, 3, 3), TN_I8), tn_zeros(TN_DIMS(2), TN_I32),     \
                          tn_full(TN_DIMS(2), 0.1, TN_F32), NULL, o))                                             \
    X(conv_transpose2d, CONV_TRANSPOSE2D, tn_conv_transpose2d(IMAGE, FILTER, NULL, o))                            \
    X(max_pool2d, MAX_POOL2D, tn_max_pool2d(IMAGE, KERNEL, o))                                                    \
    X(max_pool2d_indices, MAX_POOL2D_INDICES, tn_max_pool2d_indices(IMAGE, KERNEL, o))                            \
    X(avg_pool2d, AVG_POOL2D, tn_avg_pool2d(IMAGE, KERNEL, o))                                                    \
    X(rope, ROPE, tn_rope(MATRIX, tn_cos(ramp(TN_DIMS(3, 2))), tn_sin(ramp(TN_DIMS(3, 2))), o))                   \
    X(scaled_dot_product_attention, SCALED_DOT_PRODUCT_ATTENTION,                                                 \
      tn_scaled_dot_product_attention(MATRIX, MATRIX, MATRIX, NULL, o))                                           \
    X(cached_attention, CACHED_ATTENTION, cached(o))                                                              \
    X(smooth_l1_loss, SMOOTH_L1_LOSS, tn_smooth_l1_loss(MATRIX, tn_zeros_like(MATRIX), MEAN, o))                  \
    X(huber_loss, HUBER_LOSS, tn_huber_loss(MATRIX, tn_zeros_like(MATRIX), MEAN, o))                              \
    X(isclose, ISCLOSE, tn_cast(tn_isclose(MATRIX, tn_add_scalar(MATRIX, 1e-6), o), TN_F32))                      \
    X(allclose, ALLCLOSE, tn_cast(tn_allclose(MATRIX, tn_add_scalar(MATRIX, 1e-6), o), TN_F32))                   \
    X(hinge_embedding_loss, HINGE_EMBEDDING_LOSS, tn_hinge_embedding_loss(MATRIX, tn_ones_like(MATRIX), MEAN, o)) \
    X(margin_ranking_loss, MARGIN_RANKING_LOSS,                                                                   \
      tn_margin_ranking_loss(MATRIX, tn_zeros_like(MATRIX), tn_ones_like(MATRIX), MEAN, o))                       \
    X(poisson_nll_loss, POISSON_NLL_LOSS, tn_poisson_nll_loss(MATRIX, tn_ones_like(MATRIX), MEAN, o))             \
    X(gaussian_nll_loss, GAUSSIAN_NLL_LOSS,                                                                       \
      tn_gaussian_nll_loss(MATRIX, tn_zeros_like(MATRIX), tn_zeros_like(MATRIX), MEAN, o))                        \
    X(kl_div, KL_DIV, tn_kl_div(MATRIX, tn_ones_like(MATRIX), MEAN, o))                                           \
    X(nll_loss, NLL_LOSS, tn_nll_loss(MATRIX, classes(), NULL, o))                                                \
    X(cross_entropy, CROSS_ENTROPY, tn_cross_entropy(MATRIX, classes(), NULL, o))

#define RUN(op, NAME, call)                         \
    static tn_tensor *run_##op(const void *given) { \
        const tn_##op##_options *o = given;         \
        return call;                                \
    }                                               \
    static const tn_##op##_options op##_defaults = TN_##NAME##_DEFAULTS;
OPERATIONS(RUN)

/* Each calls a function with these options and frees what it made. Other arguments may be wrong: options are read
 * first. */
typedef tn_status attempt(const void *options);

static tn_module *small_module(void) {
    tn_module *root = tn_module_root();
    tn_nn_linear(root, "linear", 2, 2, true);
    return root;
}

static tn_status optimizer(tn_status (*make)(tn_module *, const void *, tn_optimizer **), const void *options) {
    tn_module *root = small_module();
    tn_optimizer *o;
    tn_status s = make(root, options, &o);
    tn_optimizer_free(o);
    tn_module_free(root);
    return s;
}
static tn_status new_sgd(tn_module *m, const void *o, tn_optimizer **out) { return tn_optimizer_sgd(m, o, out); }
static tn_status new_adam(tn_module *m, const void *o, tn_optimizer **out) { return tn_optimizer_adam(m, o, out); }
static tn_status new_adamw(tn_module *m, const void *o, tn_optimizer **out) { return tn_optimizer_adamw(m, o, out); }
static tn_status new_rmsprop(tn_module *m, const void *o, tn_optimizer **out) {
    return tn_optimizer_rmsprop(m, o, out);
}
static tn_status new_adagrad(tn_module *m, const void *o, tn_optimizer **out) {
    return tn_optimizer_adagrad(m, o, out);
}
static tn_status new_lion(tn_module *m, const void *o, tn_optimizer **out) { return tn_optimizer_lion(m, o, out); }
static tn_status new_lamb(tn_module *m, const void *o, tn_optimizer **out) { return tn_optimizer_lamb(m, o, out); }
static tn_status try_rmsprop(const void *o) { return optimizer(new_rmsprop, o); }
static tn_status try_adagrad(const void *o) { return optimizer(new_adagrad, o); }
static tn_status try_lion(const void *o) { return optimizer(new_lion, o); }
static tn_status new_adafactor(tn_module *m, const void *o, tn_optimizer **out) {
    return tn_optimizer_adafactor(m, o, out);
}
static tn_status try_adafactor(const void *o) { return optimizer(new_adafactor, o); }
static tn_status try_muon(const void *options) {
    tn_module *root = tn_module_root();
    tn_optimizer *o;
    tn_nn_linear(root, "linear", 2, 2, false);
    tn_status s = tn_optimizer_muon(root, options, &o);
    tn_optimizer_free(o);
    tn_module_free(root);
    return s;
}
static tn_status try_lamb(const void *o) { return optimizer(new_lamb, o); }

static tn_status new_group(tn_module *m, const void *group, tn_optimizer **out) {
    tn_sgd_options o = TN_SGD_DEFAULTS;
    o.groups = (const tn_param_group *[]){group};
    o.group_count = 1;
    return tn_optimizer_sgd(m, &o, out);
}
static tn_status try_group(const void *o) { return optimizer(new_group, o); }

static tn_status try_plateau(const void *given) {
    tn_plateau p;
    memcpy(&p, given, sizeof p);
    return isnan(tn_plateau_step(&p, 1)) ? TN_ERR_ARGUMENT : TN_OK;
}

static tn_status try_sgd(const void *o) { return optimizer(new_sgd, o); }
static tn_status try_adam(const void *o) { return optimizer(new_adam, o); }
static tn_status try_adamw(const void *o) { return optimizer(new_adamw, o); }

static tn_status try_grad_scaler(const void *options) {
    tn_module *root = small_module();
    tn_optimizer *o = NULL;
    tn_status s = tn_optimizer_sgd(root, NULL, &o);
    if (s == TN_OK) s = tn_optimizer_set_grad_scaler(o, options);
    tn_optimizer_free(o);
    tn_module_free(root);
    return s;
}

static tn_status try_schedule(const void *o) { return isnan(tn_schedule_at(o, 0)) ? TN_ERR_ARGUMENT : TN_OK; }

static tn_status made(tn_module *root) {
    tn_status s = tn_module_status(root);
    tn_module_free(root);
    return s;
}

static tn_status try_nn_conv2d(const void *o) {
    tn_module *root = tn_module_root();
    tn_nn_conv2d(root, "conv", 2, 2, 3, o);
    return made(root);
}

static tn_status try_nn_norm(const void *o) {
    tn_module *root = tn_module_root(), *other = tn_module_root();
    tn_nn_layer_norm(root, "layer", 2, o);
    tn_nn_batch_norm2d(other, "batch", 2, o);
    tn_status a = made(root), b = made(other);
    assert_int_equal(a, b);
    return a;
}

static tn_status try_nn_recurrent(const void *o) {
    tn_module *root = tn_module_root();
    tn_nn_lstm(root, "lstm", 4, 2, o);
    return made(root);
}

static tn_status try_nn_encoder(const void *o) {
    tn_module *root = tn_module_root();
    tn_nn_transformer_encoder_layer(root, "block", 4, 2, o);
    return made(root);
}

static tn_status try_policy(const void *o) {
    tn_policy *p;
    tn_status s = tn_policy_mlp(o, &p);
    tn_policy_free(p);
    return s;
}

static tn_status nothing(void *ctx, tn_device *device) { return ctx || !device ? TN_ERR_INTERNAL : TN_OK; }

static tn_status try_device(const void *o) {
    tn_device *d;
    tn_status s = tn_device_open("cpu", o, NULL, &d);
    tn_device_close(d);
    assert_int_equal(tn_try((const char *[]){"cpu"}, 1, o, nothing, NULL, NULL), s);
    return s;
}

static tn_status try_llm(const void *o) {
    tn_llm *m;
    return tn_llm_open("no such model", o, &m);
}
static tn_status try_draft(const void *o) { return tn_llm_set_draft(NULL, o); }
static tn_status try_finetune(const void *o) {
    tn_finetune *t;
    return tn_finetune_new(NULL, o, &t);
}
static tn_status try_loader(const void *o) {
    tn_loader *l;
    return tn_loader_new(NULL, o, &l);
}
static tn_status try_batches(const void *o) { return tn_batches_per_epoch(o) ? TN_OK : TN_ERR_ARGUMENT; }
static tn_status try_llm_export_onnx(const void *o) { return tn_llm_export_onnx(NULL, "no such folder/x", o); }

static tn_status try_embedder(const void *o) {
    tn_embedder *e;
    return tn_embedder_open("no such folder", o, &e);
}

static tn_status try_seq2seq(const void *o) {
    tn_seq2seq *m;
    return tn_seq2seq_open("no such folder", o, &m);
}

static tn_status try_speech(const void *o) {
    tn_speech *s;
    return tn_speech_open("no such folder", o, &s);
}

static tn_status try_classifier(const void *o) {
    tn_classifier *c;
    return tn_classifier_open("no such folder", o, &c);
}

static tn_status try_transcribe(const void *o) { return tn_speech_transcribe(NULL, NULL, 0, o, NULL, NULL); }

static tn_status try_vocabulary(const void *o) {
    tn_tokenizer *t;
    return tn_tokenizer_new(o, &t);
}

static tn_status try_pair(const void *o) {
    tn_encoding out = {0};
    return tn_tokenizer_encode_pair(NULL, (tn_text_slice){"a", 1}, (tn_text_slice){0}, o, &out);
}

static tn_status render(const tn_chat *chat, const tn_chat_template_options *o) {
    tn_chat_template *t;
    tn_bytes out = {0};
    assert_ok(tn_chat_template_new("x", 1, &t));
    tn_status s = chat ? tn_chat_template_apply(t, chat, o, &out) : tn_chat_template_render(t, NULL, 0, o, &out);
    tn_bytes_free(&out);
    tn_chat_template_free(t);
    return s;
}
static tn_status try_template(const void *o) { return render(NULL, o); }
static tn_status try_chat(const void *o) {
    const tn_chat none = TN_CHAT_DEFAULTS;
    return render(o ? o : &none, NULL);
}

static tn_status try_sampler(const void *o) {
    tn_sampler *s;
    tn_status status = tn_sampler_new(o, &s);
    tn_sampler_free(s);
    return status;
}

static tn_status try_onnx(const void *o) {
    tn_onnx *m;
    return tn_onnx_open("no such model", o, &m);
}
static tn_status try_onnx_export(const void *o) { return tn_onnx_export("no such folder/x", NULL, 0, NULL, 0, o); }

static tn_status try_checkpoint(const void *o) {
    tn_status s = tn_checkpoint_save("no such folder/x", o);
    tn_checkpoint c;
    if (!o) return s;
    memcpy(&c, o, sizeof c);
    assert_int_equal(tn_checkpoint_load("no such folder/x", &c) == TN_ERR_ARGUMENT, s == TN_ERR_ARGUMENT);
    return s;
}

static tn_status try_model_sizes(const void *o) {
    tn_memory_estimate e = {.struct_size = sizeof e};
    return tn_estimate_inference_memory(o, &e);
}

static tn_status try_processes(const void *o) {
    tn_group *g;
    tn_status s = tn_group_open(o, &g);
    tn_group_close(g);
    return s;
}

static tn_status try_data_parallel(const void *o) {
    tn_module *root = small_module();
    tn_device *device = tn_current_device();
    tn_data_parallel *p;
    tn_status s = tn_data_parallel_new(root, &device, 1, o, &p);
    tn_data_parallel_free(p);
    tn_module_free(root);
    return s;
}

static tn_status begin_nothing(void *ctx, tn_device *device, void **self) {
    (void)ctx, (void)device;
    *self = NULL;
    return TN_OK;
}
static tn_status step_nothing(void *self, int64_t step, int64_t *made) {
    (void)self, (void)step, (void)made;
    return TN_OK;
}
static tn_status state_of_nothing(void *self, tn_checkpoint *c) {
    (void)self, (void)c;
    return TN_OK;
}
static void end_nothing(void *self) { (void)self; }

static tn_status try_survive(const void *o) {
    tn_survivor work = TN_SURVIVOR_DEFAULTS;
    work.begin = begin_nothing;
    work.step = step_nothing;
    work.state = state_of_nothing;
    work.end = end_nothing;
    return tn_survive(&work, NULL, (const char *[]){"cpu"}, 1, o, NULL);
}

static tn_status try_survivor(const void *work) {
    return tn_survive(work, NULL, (const char *[]){"cpu"}, 1, NULL, NULL);
}

static tn_tensor *square_of(void *ctx, tn_tensor *const *in) {
    (void)ctx;
    return tn_mul(in[0], in[0]);
}

static tn_status try_gradcheck(const void *o) {
    TN_SCOPE;
    tn_tensor *x = tn_ones(TN_DIMS(2), TN_F64);
    assert_ok(tn_set_requires_grad(x, true));
    return tn_gradcheck(square_of, NULL, &x, 1, o);
}

static tn_status try_lbfgs(const void *o) {
    tn_lbfgs *l = NULL;
    tn_module *root = tn_module_root();
    tn_nn_linear(root, "fc", 2, 1, true);
    tn_status s = tn_lbfgs_new(root, o, &l);
    tn_lbfgs_free(l);
    tn_module_free(root);
    return s;
}

static tn_status try_certify(const void *o) {
    tn_certify_counts counts = {.struct_size = sizeof counts};
    return tn_certify(NULL, o, &counts);
}

/* The options are checked before the device, which is none: where it is reached they were accepted. */
static tn_status try_engine(const void *o) {
    tn_status s = tn_engine_set_options(tn_current_device(), o);
    return strstr(tn_error(), "is not engine:onnxruntime") ? TN_OK : s;
}

/* X(initialiser, type, attempt) */
#define OTHERS(X)                                                       \
    X(SGD, tn_sgd_options, try_sgd)                                     \
    X(ADAM, tn_adam_options, try_adam)                                  \
    X(ADAMW, tn_adam_options, try_adamw)                                \
    X(RMSPROP, tn_rmsprop_options, try_rmsprop)                         \
    X(ADAGRAD, tn_adagrad_options, try_adagrad)                         \
    X(LION, tn_lion_options, try_lion)                                  \
    X(LAMB, tn_lamb_options, try_lamb)                                  \
    X(ADAFACTOR, tn_adafactor_options, try_adafactor)                   \
    X(MUON, tn_muon_options, try_muon)                                  \
    X(PARAM_GROUP, tn_param_group, try_group)                           \
    X(PLATEAU, tn_plateau, try_plateau)                                 \
    X(GRAD_SCALER, tn_grad_scaler_options, try_grad_scaler)             \
    X(SCHEDULE, tn_schedule, try_schedule)                              \
    X(NN_CONV2D, tn_nn_conv2d_options, try_nn_conv2d)                   \
    X(NN_NORM, tn_nn_norm_options, try_nn_norm)                         \
    X(NN_RECURRENT, tn_nn_recurrent_options, try_nn_recurrent)          \
    X(NN_ENCODER, tn_nn_encoder_options, try_nn_encoder)                \
    X(POLICY, tn_policy_options, try_policy)                            \
    X(DEVICE, tn_device_options, try_device)                            \
    X(LLM, tn_llm_options, try_llm)                                     \
    X(LLM_EXPORT_ONNX, tn_llm_export_onnx_options, try_llm_export_onnx) \
    X(LLM_DRAFT, tn_llm_draft_options, try_draft)                       \
    X(FINETUNE, tn_finetune_options, try_finetune)                      \
    X(BATCHES, tn_batches, try_batches)                                 \
    X(LOADER, tn_loader_options, try_loader)                            \
    X(EMBEDDER, tn_embedder_options, try_embedder)                      \
    X(SEQ2SEQ, tn_seq2seq_options, try_seq2seq)                         \
    X(SPEECH, tn_speech_options, try_speech)                            \
    X(CLASSIFIER, tn_classifier_options, try_classifier)                \
    X(TRANSCRIBE, tn_transcribe_options, try_transcribe)                \
    X(VOCABULARY, tn_vocabulary, try_vocabulary)                        \
    X(PAIR, tn_pair_options, try_pair)                                  \
    X(CHAT_TEMPLATE, tn_chat_template_options, try_template)            \
    X(CHAT, tn_chat, try_chat)                                          \
    X(SAMPLER, tn_sampler_options, try_sampler)                         \
    X(ONNX, tn_onnx_options, try_onnx)                                  \
    X(ONNX_EXPORT, tn_onnx_export_options, try_onnx_export)             \
    X(CHECKPOINT, tn_checkpoint, try_checkpoint)                        \
    X(MODEL_SIZES, tn_model_sizes, try_model_sizes)                     \
    X(DATA_PARALLEL, tn_data_parallel_options, try_data_parallel)       \
    X(GROUP, tn_group_options, try_processes)                           \
    X(SURVIVE, tn_survive_options, try_survive)                         \
    X(SURVIVOR, tn_survivor, try_survivor)                              \
    X(ENGINE, tn_engine_options, try_engine)                            \
    X(CERTIFY, tn_certify_options, try_certify)                         \
    X(GRADCHECK, tn_gradcheck_options, try_gradcheck)                   \
    X(LBFGS, tn_lbfgs_options, try_lbfgs)

#define OTHER_DEFAULTS(NAME, type, call) static const type NAME##_defaults = TN_##NAME##_DEFAULTS;
OTHERS(OTHER_DEFAULTS)

typedef struct row {
    const char *initialiser, *type;
    const void *defaults;
    size_t bytes;
    tn_tensor *(*run)(const void *options); /* of an operation, else: */
    attempt *call;
} row;

#define OPERATION_ROW(op, NAME, call) \
    {"TN_" #NAME "_DEFAULTS", "tn_" #op "_options", &op##_defaults, sizeof op##_defaults, run_##op, NULL},
#define OTHER_ROW(NAME, type, call) {"TN_" #NAME "_DEFAULTS", #type, &NAME##_defaults, sizeof(type), NULL, call},
static const row rows[] = {OPERATIONS(OPERATION_ROW) OTHERS(OTHER_ROW)};

enum { MOST_BYTES = 512, MOST_NUMBERS = 1024 };

/* The status of a call with these options, and an operation's numbers. */
static tn_status call(const row *r, const void *options, uint8_t *numbers) {
    if (r->call) return r->call(options);
    TN_SCOPE;
    tn_tensor *y = r->run(options);
    tn_status s = tn_status_of(y);
    if (s == TN_OK) assert_ok(tn_read(y, numbers, (size_t)tn_numel(y) * tn_dtype_size(tn_dtype_of(y))));
    return s;
}

/* ---- the promises of all structs --------------------------------------------------------------------------------- */

static void assert_refused(const row *r, const void *options, const char *words) {
    uint8_t numbers[4 * MOST_NUMBERS];
    if (call(r, options, numbers) != TN_ERR_ARGUMENT) fail_msg("%s: accepted", r->type);
    if (!strstr(tn_error(), words)) fail_msg("%s: \"%s\" has no \"%s\"", r->type, tn_error(), words);
}

static void what_was_not_started_from_the_initialiser_is_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        union {
            size_t struct_size;
            uint8_t bytes[MOST_BYTES];
        } o = {0};
        assert_true(rows[i].bytes <= MOST_BYTES);
        char words[160];
        snprintf(words, sizeof words, "%s o = %s;", rows[i].type, rows[i].initialiser);
        char *name = strstr(words, " o = "); /* structs that are no options have other names than o */
        if (!strstr(rows[i].type, "_options")) memmove(words, name + 5, strlen(name + 5) + 1);
        assert_refused(&rows[i], &o, words);
        assert_refused(&rows[i], &o, "struct_size is 0");
        o.struct_size = rows[i].bytes; /* sizeof, by hand: what is not set would be zeros */
        assert_refused(&rows[i], &o, words);
        memset(&o, 0xFF, sizeof o);
        assert_refused(&rows[i], &o, words);
    }
}

static void what_is_newer_than_the_library_is_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        size_t o[MOST_BYTES / sizeof(size_t)] = {0};
        memcpy(o, rows[i].defaults, rows[i].bytes);
        o[0] += 8;
        assert_refused(&rows[i], o, "newer");
    }
}

/* Behaves as NULL, or, where a struct is required, is refused for what it lacks. */
static void assert_defaults(const row *r, const void *options) {
    static uint8_t usual[4 * MOST_NUMBERS], numbers[4 * MOST_NUMBERS];
    memset(usual, 0, sizeof usual);
    memset(numbers, 0, sizeof numbers);
    tn_status s = call(r, options, numbers);
    if (s != TN_OK && strstr(tn_error(), "struct_size")) fail_msg("%s: %s", r->type, tn_error());
    if (!r->run) return;
    assert_ok(s);
    assert_ok(call(r, NULL, usual));
    if (memcmp(numbers, usual, sizeof usual) != 0) fail_msg("%s: the defaults are not what NULL means", r->type);
}

static void the_initialiser_is_what_null_means(void **state) {
    (void)state;
    for (size_t i = 0; i < TN_COUNT(rows); i++)
        assert_defaults(&rows[i], rows[i].defaults);
}

/* The shortest struct there could have been, with nothing that can be used behind its end. */
static void fields_that_an_older_program_lacks_have_their_defaults(void **state) {
    (void)state;
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        size_t o[MOST_BYTES / sizeof(size_t)];
        memset(o, 0xFF, sizeof o);
        o[0] = TN_OPTIONS_MARK | sizeof(size_t);
        assert_defaults(&rows[i], o);
    }
}

/* ---- none is forgotten ------------------------------------------------------------------------------------------- */

/* Structs that functions fill in, and tables of functions. */
static bool is_no_option(const char *type) {
    static const char *const endings[] = {"_info",     "_facts", "_stats",  "_counts",    "_type",      "_hook",
                                          "_estimate", "_row",   "_report", "_device",    "_selection", "_use",
                                          "_op",       "_tuned", "_part",   "_placement", "_operation"};
    static const char *const drivers[] = {"tn_caps", "tn_probe", "tn_lent", "tn_driver", "tn_backend_host"};
    for (size_t i = 0; i < TN_COUNT(drivers); i++)
        if (!strcmp(type, drivers[i])) return true;
    for (size_t i = 0; i < TN_COUNT(endings); i++) {
        size_t n = strlen(type), m = strlen(endings[i]);
        if (n > m && !strcmp(type + n - m, endings[i])) return true;
    }
    return false;
}

static bool has_row(const char *initialiser, const char *type) {
    for (size_t i = 0; i < TN_COUNT(rows); i++)
        if ((initialiser && !strcmp(rows[i].initialiser, initialiser)) || (type && !strcmp(rows[i].type, type)))
            return true;
    return false;
}

static int check_header(const char *name) {
    char path[512], line[512], type[128] = "", word[128];
    snprintf(path, sizeof path, "include/trunnion/%.200s", name);
    FILE *f = fopen(path, "r");
    int seen = 0;
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "typedef struct %127[a-z0-9_] {", word) == 1) snprintf(type, sizeof type, "%s", word);
        if (!strncmp(line, "    size_t struct_size;", 23) && !is_no_option(type) && !has_row(NULL, type))
            fail_msg("%s: %s has no row in %s", name, type, __FILE__);
        size_t n = sscanf(line, "#define %127[A-Z0-9_]", word) == 1 ? strlen(word) : 0;
        if (n < 9 || strcmp(word + n - 9, "_DEFAULTS") != 0) continue;
        if (!has_row(word, NULL)) fail_msg("%s: %s has no row in %s", name, word, __FILE__);
        seen++;
    }
    fclose(f);
    return seen;
}

static void every_struct_of_the_headers_is_in_the_table(void **state) {
    (void)state;
    DIR *folder = opendir("include/trunnion");
    size_t seen = 0;
    assert_non_null(folder);
    for (struct dirent *e = readdir(folder); e; e = readdir(folder))
        if (e->d_name[0] != '.') seen += (size_t)check_header(e->d_name);
    closedir(folder);
    assert_int_equal(seen, TN_COUNT(rows));
}

/* ---- structs that are filled in ---------------------------------------------------------------------------------- */

/* Each fills in `out` by one function. */
typedef tn_status filling(void *out);

static tn_status fill_device_info(void *out) { return tn_device_get_info(tn_current_device(), out); }
static tn_status fill_pool_stats(void *out) { return tn_device_get_pool_stats(tn_current_device(), out); }
static tn_status fill_library_info(void *out) { return tn_library_at(0, out); }
static tn_status fill_runtime_stats(void *out) { return tn_get_runtime_stats(out); }
static tn_status fill_placement(void *out) { return tn_get_placement(out); }
static tn_status fill_try_report(void *out) { return tn_try((const char *[]){"cpu"}, 1, NULL, nothing, NULL, out); }

static tn_status fill_selection(void *out) {
    tn_device *d = NULL;
    tn_status s = tn_device_open("cpu", NULL, out, &d);
    tn_device_close(d);
    return s;
}

static tn_status fill_survive_report(void *out) {
    tn_survivor work = TN_SURVIVOR_DEFAULTS;
    work.begin = begin_nothing;
    work.step = step_nothing;
    work.state = state_of_nothing;
    work.end = end_nothing;
    return tn_survive(&work, NULL, (const char *[]){"cpu"}, 1, NULL, out);
}

static tn_status fill_certify_counts(void *out) {
    tn_certify_options o = TN_CERTIFY_DEFAULTS;
    o.every = 100000;
    return tn_certify(tn_current_device(), &o, out);
}

static tn_status fill_profile_row(void *out) {
    TN_SCOPE;
    tn_profile *p = tn_profile_begin();
    tn_tensor *x = tn_add(tn_ones(TN_DIMS(3), TN_F32), tn_ones(TN_DIMS(3), TN_F32));
    tn_status s = tn_eval(&x, 1);
    tn_profile_end(p);
    if (s == TN_OK) s = tn_profile_at(p, 0, out);
    tn_profile_free(p);
    return s;
}

static tn_status fill_memory_estimate(void *out) {
    tn_model_sizes sizes = TN_MODEL_SIZES_DEFAULTS;
    sizes.layers = sizes.heads = 1;
    sizes.bytes_per_weight = 4;
    sizes.hidden = sizes.intermediate = sizes.vocabulary = sizes.sequence = 8;
    return tn_estimate_inference_memory(&sizes, out);
}

static tn_status fill_of_data_parallel(void *out, bool of_device) {
    tn_module *root = small_module();
    tn_device *device = tn_current_device();
    tn_data_parallel *p;
    tn_status s = tn_data_parallel_new(root, &device, 1, NULL, &p);
    if (s == TN_OK) s = of_device ? tn_data_parallel_device_at(p, 0, out) : tn_data_parallel_get_saving(p, out);
    tn_data_parallel_free(p);
    tn_module_free(root);
    return s;
}
static tn_status fill_data_parallel_device(void *out) { return fill_of_data_parallel(out, true); }
static tn_status fill_memory_report(void *out) { return fill_of_data_parallel(out, false); }

#define OF_FILE(type, name, open, path, look) \
    static tn_status fill_##name(void *out) { \
        type *f = NULL;                       \
        tn_status s = open;                   \
        if (s == TN_OK) s = look;             \
        path(f);                              \
        return s;                             \
    }
OF_FILE(tn_safetensors, safetensors_info, tn_safetensors_open("tests/corpus/safetensors/one", &f), tn_safetensors_close,
        tn_safetensors_at(f, 0, out))
OF_FILE(tn_gguf, gguf_info, tn_gguf_open("tests/corpus/gguf/tensors", &f), tn_gguf_close, tn_gguf_at(f, 0, out))
OF_FILE(tn_pickle, pickle_info, tn_pickle_open("tests/corpus/pickle/sample.pt", &f), tn_pickle_close,
        tn_pickle_at(f, 0, out))
OF_FILE(tn_onnx, onnx_info, tn_onnx_open("tests/corpus/onnx/mlp.onnx", NULL, &f), tn_onnx_close,
        tn_onnx_input_at(f, 0, out))

/* A program that was compiled with earlier headers gets the fields that it knows; one with later headers is told which
 * ones there are. */
static void structs_are_filled_in_as_far_as_the_program_knows_them(void **state) {
    (void)state;
    static const struct {
        const char *type;
        filling *fill;
        size_t bytes;
    } results[] = {
#define RESULT(name) {#name, fill_##name, sizeof(tn_##name)}
        RESULT(device_info),    RESULT(pool_stats),       RESULT(library_info),    RESULT(runtime_stats),
        RESULT(placement),      RESULT(try_report),       RESULT(selection),       RESULT(survive_report),
        RESULT(certify_counts), RESULT(profile_row),      RESULT(memory_estimate), RESULT(data_parallel_device),
        RESULT(memory_report),  RESULT(safetensors_info), RESULT(gguf_info),       RESULT(pickle_info),
        RESULT(onnx_info),
#undef RESULT
    };
    enum { ROOM = 1 << 16, FILLED = 0xAA };
    for (size_t i = 0; i < TN_COUNT(results); i++) {
        size_t bytes = results[i].bytes;
        assert_true(bytes + 64 <= ROOM);
        for (size_t size = sizeof(size_t); size <= bytes + 64; size += bytes / 2 + 8) {
            union {
                size_t struct_size;
                uint8_t bytes[ROOM];
            } *out = malloc(sizeof *out);
            assert_non_null(out);
            memset(out, FILLED, sizeof *out);
            out->struct_size = size;
            tn_status s = results[i].fill(out);
            if (s != TN_OK) fail_msg("%s with %zu of %zu bytes: %s", results[i].type, size, bytes, tn_error());
            if (out->struct_size != (size < bytes ? size : bytes))
                fail_msg("%s: struct_size is %zu afterwards", results[i].type, out->struct_size);
            for (size_t at = out->struct_size; at < bytes + 64; at++)
                if (out->bytes[at] != FILLED) fail_msg("%s: byte %zu was written", results[i].type, at);
            out->struct_size = 0;
            if (results[i].fill(out) != TN_ERR_ARGUMENT || !strstr(tn_error(), "struct_size"))
                fail_msg("%s without a size: %s", results[i].type, tn_error());
            free(out);
        }
    }
}

/* ---- zero is zero ------------------------------------------------------------------------------------------------ */

static void assert_numbers(tn_tensor *t, const double *expected, int count, double bound) {
    float got[16];
    assert_ok(tn_status_of(t));
    assert_int_equal(tn_numel(t), count);
    assert_ok(tn_read(t, got, (size_t)count * sizeof *got));
    for (int i = 0; i < count; i++)
        if (!(fabs(got[i] - expected[i]) <= bound)) fail_msg("number %d is %g, not %g", i, (double)got[i], expected[i]);
}

static void an_eps_of_zero_adds_nothing(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = tn_from_data((float[]){-1e-4f, 1e-4f}, TN_DIMS(1, 2), TN_F32);
    tn_layer_norm_options layer = TN_LAYER_NORM_DEFAULTS;
    layer.eps = 0;
    assert_numbers(tn_layer_norm(x, TN_DIMS(2), NULL, NULL, &layer), (double[]){-1, 1}, 2, 1e-6);
    tn_rms_norm_options rms = TN_RMS_NORM_DEFAULTS;
    rms.eps = 0;
    assert_numbers(tn_rms_norm(x, TN_DIMS(2), NULL, &rms), (double[]){-1, 1}, 2, 1e-6);
}

static void a_beta_of_zero_is_the_l1_loss(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = tn_from_data((float[]){-0.5f, 2}, TN_DIMS(2), TN_F32);
    tn_smooth_l1_loss_options o = TN_SMOOTH_L1_LOSS_DEFAULTS;
    o.beta = 0;
    tn_tensor *loss = tn_smooth_l1_loss(x, tn_zeros_like(x), TN_REDUCTION_NONE, &o);
    assert_numbers(loss, (double[]){0.5, 2}, 2, 0);
}

static void a_scale_of_zero_weighs_all_keys_alike(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = tn_from_data((float[]){1, 5, 3, -1}, TN_DIMS(2, 2), TN_F32);
    tn_scaled_dot_product_attention_options o = TN_SCALED_DOT_PRODUCT_ATTENTION_DEFAULTS;
    o.scale = 0;
    assert_numbers(tn_scaled_dot_product_attention(x, x, x, NULL, &o), (double[]){2, 2, 2, 2}, 4, 1e-6);
}

static void the_class_to_ignore_may_be_any(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *logits = tn_from_data((float[]){0, 1, 2, 5, 0, 0}, TN_DIMS(2, 3), TN_F32);
    tn_tensor *target = tn_from_data((int64_t[]){0, 2}, TN_DIMS(2), TN_I64);
    double first = -log(1.0 / (1.0 + exp(1.0) + exp(2.0))), second = -log(1.0 / (exp(5.0) + 2.0));
    tn_cross_entropy_options o = TN_CROSS_ENTROPY_DEFAULTS;
    assert_true(fabs(tn_item(tn_cross_entropy(logits, target, NULL, &o)) - (first + second) / 2) < 1e-5);
    o.ignore_index = 2;
    assert_true(fabs(tn_item(tn_cross_entropy(logits, target, NULL, &o)) - first) < 1e-5);
    o.ignore_index = 0;
    assert_true(fabs(tn_item(tn_cross_entropy(logits, target, NULL, &o)) - second) < 1e-5);
}

/* Weights of a linear layer after one step on the loss sum(3·weight). */
static void after_a_step(tn_status (*make)(tn_module *, const void *, tn_optimizer **), const void *options,
                         double expected) {
    tn_module *root = tn_module_root();
    tn_optimizer *o;
    float weight;
    TN_SCOPE;
    tn_tensor *w = tn_module_add_parameter(root, "w", tn_full(TN_DIMS(1), 1, TN_F32));
    assert_ok(make(root, options, &o));
    assert_ok(tn_minimize(o, tn_sum(tn_mul_scalar(w, 3), TN_ALL, false)));
    assert_ok(tn_read(w, &weight, sizeof weight));
    if (!(fabs(weight - expected) < 1e-6)) fail_msg("the weight is %.9g, not %.9g", (double)weight, expected);
    tn_optimizer_free(o);
    tn_module_free(root);
}

static void optimizers_take_zeros(void **state) {
    (void)state;
    tn_sgd_options sgd = TN_SGD_DEFAULTS;
    after_a_step(new_sgd, &sgd, 1 - 3e-3);
    sgd.lr = 0;
    after_a_step(new_sgd, &sgd, 1);
    sgd.lr = 0.1;
    sgd.max_grad_norm = 0;
    after_a_step(new_sgd, &sgd, 1);
    tn_adam_options adam = TN_ADAM_DEFAULTS;
    adam.lr = 0;
    after_a_step(new_adam, &adam, 1);
    adam.lr = 0.1;
    adam.beta1 = adam.beta2 = adam.eps = 0; /* the sign of the gradient */
    after_a_step(new_adam, &adam, 0.9);
    tn_adam_options adamw = TN_ADAMW_DEFAULTS;
    adamw.lr = 0.1;
    after_a_step(new_adamw, &adamw, 0.9 - 1e-3);
    adamw.weight_decay = 0;
    after_a_step(new_adamw, &adamw, 0.9);
}

static void a_momentum_of_zero_keeps_the_running_statistics(void **state) {
    (void)state;
    TN_SCOPE;
    tn_module *root = tn_module_root();
    tn_nn_norm_options o = TN_NN_NORM_DEFAULTS;
    o.momentum = 0;
    tn_module *norm = tn_nn_batch_norm2d(root, "norm", 2, &o);
    assert_ok(tn_status_of(tn_forward(norm, ramp(TN_DIMS(2, 2, 3, 3)))));
    assert_numbers(tn_module_variable(root, "norm.running_mean"), (double[]){0, 0}, 2, 0);
    tn_module_free(root);
}

static void a_time_of_zero_is_1970(void **state) {
    (void)state;
    static const char source[] = "{{ strftime_now('%Y') }}";
    tn_chat_template_options o = TN_CHAT_TEMPLATE_DEFAULTS;
    tn_chat_template *t;
    tn_bytes out = {0};
    o.now = 43200; /* noon, the same year in every time zone */
    assert_ok(tn_chat_template_new(source, sizeof source - 1, &t));
    assert_ok(tn_chat_template_render(t, NULL, 0, &o, &out));
    assert_string_equal(out.data, "1970");
    out.size = 0;
    o.now = 0;
    assert_ok(tn_chat_template_render(t, NULL, 0, &o, &out));
    assert_true(!strcmp(out.data, "1970") || !strcmp(out.data, "1969"));
    tn_bytes_free(&out);
    tn_chat_template_free(t);
}

/* ---- values without a meaning ------------------------------------------------------------------------------------ */

static void refused(tn_tensor *t, const char *words) {
    assert_int_equal(tn_status_of(t), TN_ERR_ARGUMENT);
    if (!strstr(tn_error(), words)) fail_msg("\"%s\" has no \"%s\"", tn_error(), words);
}

static void values_without_a_meaning_are_refused(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = MATRIX, *zero = tn_zeros_like(x);
    tn_huber_loss_options huber = TN_HUBER_LOSS_DEFAULTS;
    tn_smooth_l1_loss_options smooth = TN_SMOOTH_L1_LOSS_DEFAULTS;
    tn_cross_entropy_options classes_of = TN_CROSS_ENTROPY_DEFAULTS;
    tn_layer_norm_options layer = TN_LAYER_NORM_DEFAULTS;
    tn_rms_norm_options rms = TN_RMS_NORM_DEFAULTS;
    tn_group_norm_options group = TN_GROUP_NORM_DEFAULTS;
    tn_cosine_similarity_options cosine = TN_COSINE_SIMILARITY_DEFAULTS;
    tn_scaled_dot_product_attention_options attention = TN_SCALED_DOT_PRODUCT_ATTENTION_DEFAULTS;
    tn_cached_attention_options over_cache = TN_CACHED_ATTENTION_DEFAULTS;
    huber.delta = -1;
    smooth.beta = -0.5;
    classes_of.label_smoothing = 1.5;
    layer.eps = INFINITY; /* a negative one is PyTorch's too */
    rms.eps = NAN;
    group.eps = NAN;
    cosine.eps = -1;
    refused(tn_huber_loss(x, zero, MEAN, &huber), "delta is -1");
    refused(tn_smooth_l1_loss(x, zero, MEAN, &smooth), "beta is -0.5");
    refused(tn_cross_entropy(x, classes(), NULL, &classes_of), "label_smoothing is 1.5");
    refused(tn_layer_norm(x, TN_DIMS(4), NULL, NULL, &layer), "eps is inf");
    refused(tn_rms_norm(x, TN_DIMS(4), NULL, &rms), "eps is nan");
    refused(tn_group_norm(x, 2, NULL, NULL, &group), "eps is nan");
    refused(tn_cosine_similarity(x, x, 1, &cosine), "eps is -1");
    refused(tn_hardtanh(x, 1, -1), "min_val is 1 and max_val -1");
    refused(tn_uniform(3, -1, TN_DIMS(2)), "low is 3 and high -1");
    refused(tn_uniform(0, NAN, TN_DIMS(2)), "high nan");
    refused(tn_uniform(NAN, 1, TN_DIMS(2)), "low is nan");
    attention.scale = NAN;
    refused(tn_scaled_dot_product_attention(x, x, x, NULL, &attention), "scale is nan");
    over_cache.scale = INFINITY;
    refused(cached(&over_cache), "scale is inf");
    refused(tn_normal(0, -1, TN_DIMS(2)), "std is -1");
    refused(tn_dropout(x, 1.5, false), "p is 1.5");
    refused(tn_dropout(x, NAN, true), "p is nan");
}

/* ---- NaN in numbers ---------------------------------------------------------------------------------------------- */

/* Every floating-point field of every struct, and where it lies. */
typedef struct number {
    const char *type, *field;
    size_t at;
} number;

#define NUMBER(type, field) \
    { #type, #field, offsetof(type, field) }
static const number numbers[] = {
    NUMBER(tn_grad_scaler_options, init_scale),
    NUMBER(tn_grad_scaler_options, growth_factor),
    NUMBER(tn_grad_scaler_options, backoff_factor),
    NUMBER(tn_gradcheck_options, eps),
    NUMBER(tn_gradcheck_options, atol),
    NUMBER(tn_gradcheck_options, rtol),
    NUMBER(tn_finetune_options, alpha),
    NUMBER(tn_llm_draft_options, least_probability),
    NUMBER(tn_model_sizes, bytes_per_weight),
    NUMBER(tn_model_sizes, bytes_per_cache),
    NUMBER(tn_nn_norm_options, eps),
    NUMBER(tn_nn_norm_options, momentum),
    NUMBER(tn_nn_recurrent_options, dropout),
    NUMBER(tn_nn_encoder_options, dropout),
    NUMBER(tn_nn_encoder_options, eps),
    NUMBER(tn_policy_options, hidden_gain),
    NUMBER(tn_policy_options, logits_gain),
    NUMBER(tn_policy_options, value_gain),
    NUMBER(tn_isclose_options, rtol),
    NUMBER(tn_isclose_options, atol),
    NUMBER(tn_allclose_options, rtol),
    NUMBER(tn_allclose_options, atol),
    NUMBER(tn_cosine_similarity_options, eps),
    NUMBER(tn_softplus_options, beta),
    NUMBER(tn_softplus_options, threshold),
    NUMBER(tn_layer_norm_options, eps),
    NUMBER(tn_rms_norm_options, eps),
    NUMBER(tn_group_norm_options, eps),
    NUMBER(tn_instance_norm_options, eps),
    NUMBER(tn_batch_norm_options, eps),
    NUMBER(tn_scaled_dot_product_attention_options, scale),
    NUMBER(tn_cached_attention_options, scale),
    NUMBER(tn_cached_attention_options, softcap),
    NUMBER(tn_quantized_conv2d_options, own_scale),
    NUMBER(tn_quantized_conv2d_options, addend_scale),
    NUMBER(tn_quantized_conv2d_options, sum_scale),
    NUMBER(tn_smooth_l1_loss_options, beta),
    NUMBER(tn_huber_loss_options, delta),
    NUMBER(tn_hinge_embedding_loss_options, margin),
    NUMBER(tn_margin_ranking_loss_options, margin),
    NUMBER(tn_poisson_nll_loss_options, eps),
    NUMBER(tn_gaussian_nll_loss_options, eps),
    NUMBER(tn_cross_entropy_options, label_smoothing),
    NUMBER(tn_param_group, lr_factor),
    NUMBER(tn_param_group, weight_decay),
    NUMBER(tn_param_group, beta1),
    NUMBER(tn_param_group, beta2),
    NUMBER(tn_param_group, eps),
    NUMBER(tn_sgd_options, lr),
    NUMBER(tn_sgd_options, momentum),
    NUMBER(tn_sgd_options, dampening),
    NUMBER(tn_sgd_options, weight_decay),
    NUMBER(tn_sgd_options, max_grad_norm),
    NUMBER(tn_adam_options, lr),
    NUMBER(tn_adam_options, beta1),
    NUMBER(tn_adam_options, beta2),
    NUMBER(tn_adam_options, eps),
    NUMBER(tn_adam_options, weight_decay),
    NUMBER(tn_adam_options, max_grad_norm),
    NUMBER(tn_rmsprop_options, lr),
    NUMBER(tn_rmsprop_options, alpha),
    NUMBER(tn_rmsprop_options, eps),
    NUMBER(tn_rmsprop_options, momentum),
    NUMBER(tn_rmsprop_options, weight_decay),
    NUMBER(tn_rmsprop_options, max_grad_norm),
    NUMBER(tn_adagrad_options, lr),
    NUMBER(tn_adagrad_options, lr_decay),
    NUMBER(tn_adagrad_options, weight_decay),
    NUMBER(tn_adagrad_options, initial_accumulator_value),
    NUMBER(tn_adagrad_options, eps),
    NUMBER(tn_adagrad_options, max_grad_norm),
    NUMBER(tn_lion_options, lr),
    NUMBER(tn_lion_options, beta1),
    NUMBER(tn_lion_options, beta2),
    NUMBER(tn_lion_options, weight_decay),
    NUMBER(tn_lion_options, max_grad_norm),
    NUMBER(tn_lamb_options, lr),
    NUMBER(tn_lamb_options, beta1),
    NUMBER(tn_lamb_options, beta2),
    NUMBER(tn_lamb_options, eps),
    NUMBER(tn_lamb_options, weight_decay),
    NUMBER(tn_lamb_options, max_grad_norm),
    NUMBER(tn_adafactor_options, lr),
    NUMBER(tn_adafactor_options, beta2_decay),
    NUMBER(tn_adafactor_options, eps1),
    NUMBER(tn_adafactor_options, eps2),
    NUMBER(tn_adafactor_options, d),
    NUMBER(tn_adafactor_options, weight_decay),
    NUMBER(tn_adafactor_options, max_grad_norm),
    NUMBER(tn_muon_options, lr),
    NUMBER(tn_muon_options, momentum),
    NUMBER(tn_muon_options, weight_decay),
    NUMBER(tn_muon_options, ns_coefficients),
    NUMBER(tn_muon_options, eps),
    NUMBER(tn_muon_options, max_grad_norm),
    NUMBER(tn_lbfgs_options, lr),
    NUMBER(tn_lbfgs_options, tolerance_grad),
    NUMBER(tn_lbfgs_options, tolerance_change),
    NUMBER(tn_schedule, lr),
    NUMBER(tn_schedule, final_lr),
    NUMBER(tn_schedule, gamma),
    NUMBER(tn_schedule, pct_start),
    NUMBER(tn_schedule, div_factor),
    NUMBER(tn_schedule, final_div_factor),
    NUMBER(tn_plateau, lr),
    NUMBER(tn_plateau, factor),
    NUMBER(tn_plateau, min_lr),
    NUMBER(tn_plateau, threshold),
    NUMBER(tn_survive_options, overhead),
    NUMBER(tn_survive_options, time_limit),
    NUMBER(tn_device_options, time_limit),
    NUMBER(tn_sampler_options, temperature),
    NUMBER(tn_sampler_options, top_p),
    NUMBER(tn_sampler_options, min_p),
    NUMBER(tn_sampler_options, repeat_penalty),
    NUMBER(tn_sampler_options, frequency_penalty),
    NUMBER(tn_sampler_options, presence_penalty),
    NUMBER(tn_sampler_options, dry_multiplier),
    NUMBER(tn_sampler_options, dry_base),
    NUMBER(tn_sampler_options, mirostat_tau),
    NUMBER(tn_sampler_options, mirostat_eta),
};

/* Gives fields that are checked before its numbers a value. */
static void complete(const char *type, void *options) {
    if (!strcmp(type, "tn_policy_options")) {
        tn_policy_options *o = options;
        o->observations = o->actions = 2;
    }
    if (!strcmp(type, "tn_model_sizes")) {
        tn_model_sizes *s = options;
        s->hidden = s->intermediate = s->layers = s->vocabulary = s->heads = s->kv_heads = s->sequence = 2;
    }
}

/* Read after a model that there is none of here; test_finetune and test_llm_model pass NaN there. */
static bool needs_a_model(const char *type) {
    return !strcmp(type, "tn_finetune_options") || !strcmp(type, "tn_llm_draft_options");
}

static void nan_is_refused_for_every_number(void **state) {
    (void)state;
    const double nan = NAN;
    for (size_t i = 0; i < TN_COUNT(numbers); i++)
        for (size_t k = 0; k < TN_COUNT(rows); k++) {
            const number *n = &numbers[i];
            size_t o[MOST_BYTES / sizeof(size_t)] = {0};
            if (strcmp(rows[k].type, n->type) != 0 || needs_a_model(n->type)) continue;
            memcpy(o, rows[k].defaults, rows[k].bytes);
            complete(n->type, o);
            memcpy((uint8_t *)o + n->at, &nan, sizeof nan);
            assert_refused(&rows[k], o, "nan");
        }
}

/* In text such as "double lr, final_lr; ": is each name in the table? best of tn_plateau may be NaN: none yet. */
static void check_numbers_of(const char *type, char *names) {
    for (char *name = strtok(names, ", ;[\n"); name; name = strtok(NULL, ", ;[\n")) {
        int found = !strcmp(type, "tn_plateau") && !strcmp(name, "best");
        if (strchr("/*0123456789]", *name)) return;
        for (size_t i = 0; i < TN_COUNT(numbers); i++)
            found += !strcmp(numbers[i].type, type) && !strcmp(numbers[i].field, name);
        if (!found) fail_msg("%s.%s has no row in %s", type, name, __FILE__);
    }
}

static void check_header_numbers(const char *path) {
    char line[512], type[128] = "", word[128];
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "typedef struct %127[a-z0-9_] {", word) == 1) snprintf(type, sizeof type, "%s", word);
        if (!strncmp(line, "    double ", 11) && strchr(line, ';') && has_row(NULL, type))
            check_numbers_of(type, line + 11);
    }
    fclose(f);
}

static void every_number_of_the_headers_is_in_the_table(void **state) {
    (void)state;
    DIR *folder = opendir("include/trunnion");
    assert_non_null(folder);
    for (struct dirent *e = readdir(folder); e; e = readdir(folder)) {
        char path[512];
        snprintf(path, sizeof path, "include/trunnion/%.200s", e->d_name);
        if (e->d_name[0] != '.') check_header_numbers(path);
    }
    closedir(folder);
}

static void probabilities_and_quantiles_without_a_meaning_show_in_the_result(void **state) {
    (void)state;
    TN_SCOPE;
    const float bad[] = {NAN, -1, INFINITY};
    for (size_t i = 0; i < TN_COUNT(bad); i++) {
        tn_tensor *p = tn_from_data((float[]){0.5f, bad[i], 0.5f}, TN_DIMS(3), TN_F32);
        assert_true(isnan(tn_item(tn_select(tn_bernoulli(p), 0, 1))));
        tn_tensor *q = tn_quantile(ramp(TN_DIMS(3)), p, 0, false, TN_QUANTILE_LINEAR);
        assert_true(tn_item(tn_sum(tn_cast(tn_isnan(q), TN_F32), TN_ALL, false)) == 1);
    }
}

/* ---- choices ----------------------------------------------------------------------------------------------------- */

/* The status of an op's result, which is freed. */
static tn_status outcome(tn_tensor *t) {
    tn_status s = tn_status_of(t);
    tn_free(t);
    return s;
}

static tn_status choose_approximate(int v) {
    TN_SCOPE;
    tn_gelu_options o = TN_GELU_DEFAULTS;
    o.approximate = (tn_approximate)v;
    return outcome(tn_gelu(MATRIX, &o));
}

static tn_status choose_reduction(int v) {
    TN_SCOPE;
    return outcome(tn_mse_loss(MATRIX, MATRIX, (tn_reduction)v));
}

static tn_status choose_class_reduction(int v) {
    TN_SCOPE;
    tn_cross_entropy_options o = TN_CROSS_ENTROPY_DEFAULTS;
    o.reduction = (tn_reduction)v;
    return outcome(tn_cross_entropy(MATRIX, classes(), NULL, &o));
}

static tn_status choose_reduce(int v) {
    TN_SCOPE;
    tn_tensor *x = ramp(TN_DIMS(3));
    return outcome(tn_scatter_reduce(x, 0, classes(), x, (tn_reduce)v, true));
}

static tn_status choose_pad_mode(int v) {
    TN_SCOPE;
    return outcome(tn_pad_by(MATRIX, (int64_t[]){1, 1}, 2, (tn_pad_mode)v));
}

static tn_status choose_interpolate_mode(int v) {
    TN_SCOPE;
    return outcome(tn_interpolate(IMAGE, (int64_t[]){3, 4}, 2, NULL, (tn_interpolate_mode)v, false));
}

static tn_status choose_grid_mode(int v) {
    TN_SCOPE;
    return outcome(tn_grid_sample(IMAGE, ramp(TN_DIMS(1, 2, 2, 2)), (tn_grid_mode)v, TN_GRID_ZEROS, false));
}

static tn_status choose_grid_padding(int v) {
    TN_SCOPE;
    return outcome(tn_grid_sample(IMAGE, ramp(TN_DIMS(1, 2, 2, 2)), TN_GRID_BILINEAR, (tn_grid_padding)v, false));
}

static tn_status choose_bag_mode(int v) {
    TN_SCOPE;
    return outcome(tn_embedding_bag(tn_unsqueeze(classes(), 0), MATRIX, NULL, (tn_bag_mode)v, NULL));
}

static tn_status choose_quantile_mode(int v) {
    TN_SCOPE;
    return outcome(tn_quantile(MATRIX, tn_full(TN_DIMS(2), 0.3, TN_F32), 0, false, (tn_quantile_mode)v));
}

static tn_status choose_matrix_norm(int v) {
    TN_SCOPE;
    return outcome(tn_linalg_matrix_norm(MATRIX, (tn_matrix_norm)v, false));
}

static tn_status choose_loss_reduction(int v) {
    TN_SCOPE;
    return outcome(tn_triplet_margin_loss(MATRIX, MATRIX, MATRIX, 1, 2, 1e-6, false, (tn_reduction)v));
}

static tn_status choose_schedule(int v) {
    tn_schedule o = TN_SCHEDULE_DEFAULTS;
    o.kind = (tn_schedule_kind)v;
    o.total = 10;
    return try_schedule(&o);
}

static tn_status choose_fallback(int v) {
    tn_device_options o = TN_DEVICE_DEFAULTS;
    o.fallback = (tn_fallback)v;
    return try_device(&o);
}

static tn_status choose_parallel_fallback(int v) {
    tn_data_parallel_options o = TN_DATA_PARALLEL_DEFAULTS;
    o.fallback = (tn_fallback)v;
    return try_data_parallel(&o);
}

static tn_status choose_survival(int v) {
    tn_survive_options o = TN_SURVIVE_DEFAULTS;
    o.fallback = (tn_fallback)v;
    return try_survive(&o);
}

static tn_status choose_split(int v) {
    const double share = 1;
    tn_data_parallel_options o = TN_DATA_PARALLEL_DEFAULTS;
    o.split = (tn_data_split)v;
    o.shares = &share;
    return try_data_parallel(&o);
}

static tn_status choose_level(int v) {
    tn_engine_options o = TN_ENGINE_DEFAULTS;
    o.level = (tn_engine_level)v;
    return try_engine(&o);
}

static tn_status choose_fft_norm(int v) {
    TN_SCOPE;
    return outcome(tn_rfft(MATRIX, -1, 0, (tn_fft_norm)v));
}
static tn_status choose_anomaly(int v) { return tn_set_detect_anomaly((tn_anomaly)v); }

static tn_status choose_numerics(int v) { return tn_set_numerics((tn_numerics)v); }
static tn_status choose_tuning(int v) { return tn_set_tuning((tn_tuning)v); }

static tn_status choose_pooling(int v) {
    tn_embedder_options o = TN_EMBEDDER_DEFAULTS;
    o.pooling = (tn_pooling)v;
    return try_embedder(&o);
}

static tn_status choose_norm(int v) {
    tn_embedder_options o = TN_EMBEDDER_DEFAULTS;
    o.norm = (tn_embed_norm)v;
    return try_embedder(&o);
}

typedef struct choice {
    const char *type, *words, *last_name;
    int last;
    tn_status (*call)(int v);
} choice;

#define CHOICE(type, words, last, call) \
    { #type, words " is ", #last, last, call }
static const choice choices[] = {
    CHOICE(tn_approximate, "gelu: approximate", TN_APPROXIMATE_TANH, choose_approximate),
    CHOICE(tn_reduction, "mse_loss: reduction", TN_REDUCTION_NONE, choose_reduction),
    CHOICE(tn_reduction, "cross_entropy: reduction", TN_REDUCTION_NONE, choose_class_reduction),
    CHOICE(tn_reduce, "scatter_reduce: reduce", TN_REDUCE_AMIN, choose_reduce),
    CHOICE(tn_pad_mode, "pad_by: mode", TN_PAD_CIRCULAR, choose_pad_mode),
    CHOICE(tn_interpolate_mode, "interpolate: mode", TN_INTERPOLATE_CUBIC_ANTIALIAS, choose_interpolate_mode),
    CHOICE(tn_grid_mode, "grid_sample: mode", TN_GRID_NEAREST, choose_grid_mode),
    CHOICE(tn_grid_padding, "grid_sample: padding", TN_GRID_REFLECTION, choose_grid_padding),
    CHOICE(tn_bag_mode, "embedding_bag: mode", TN_BAG_MAX, choose_bag_mode),
    CHOICE(tn_quantile_mode, "quantile: mode", TN_QUANTILE_NEAREST, choose_quantile_mode),
    CHOICE(tn_matrix_norm, "linalg_matrix_norm: ord", TN_MATRIX_NORM_NUC, choose_matrix_norm),
    CHOICE(tn_reduction, "loss: reduction", TN_REDUCTION_NONE, choose_loss_reduction),
    CHOICE(tn_schedule_kind, "tn_schedule_at: kind", TN_SCHEDULE_ONE_CYCLE, choose_schedule),
    CHOICE(tn_fallback, "fallback", TN_FALLBACK_SILENT, choose_fallback),
    CHOICE(tn_fallback, "data parallel: fallback", TN_FALLBACK_SILENT, choose_parallel_fallback),
    CHOICE(tn_fallback, "tn_survive: fallback", TN_FALLBACK_SILENT, choose_survival),
    CHOICE(tn_data_split, "data parallel: split", TN_SPLIT_SHARES, choose_split),
    CHOICE(tn_engine_level, "tn_engine_set_options: level", TN_ENGINE_LEVEL_EXTENDED, choose_level),
    CHOICE(tn_fft_norm, "fft: norm", TN_FFT_FORWARD, choose_fft_norm),
    CHOICE(tn_anomaly, "tn_set_detect_anomaly: mode", TN_ANOMALY_INF, choose_anomaly),
    CHOICE(tn_numerics, "tn_set_numerics: numerics", TN_NUMERICS_FAST, choose_numerics),
    CHOICE(tn_tuning, "tn_set_tuning: mode", TN_TUNING_OFF, choose_tuning),
    CHOICE(tn_pooling, "tn_embedder_open: pooling", TN_POOLING_LAST, choose_pooling),
    CHOICE(tn_embed_norm, "tn_embedder_open: norm", TN_EMBED_NORM_UNIT, choose_norm),
};

static void a_choice_that_there_is_not_is_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < TN_COUNT(choices); i++) {
        const choice *c = &choices[i];
        const int wrong[] = {-1, c->last + 1, 77, INT32_MIN};
        for (size_t k = 0; k < TN_COUNT(wrong); k++) {
            char words[96];
            snprintf(words, sizeof words, "%s%d; it must be one of ", c->words, wrong[k]);
            if (c->call(wrong[k]) != TN_ERR_ARGUMENT) fail_msg("%s: %d is accepted", c->words, wrong[k]);
            assert_text_has(tn_error(), words);
            assert_text_has(tn_error(), c->last_name);
        }
        for (int v = c->last; v >= 0; v--) /* what is chosen last is the default */
            if (c->call(v) == TN_ERR_ARGUMENT) fail_msg("%s: %d is refused: %s", c->words, v, tn_error());
    }
}

/* Enumerations that are no options: what functions tell, types of what is stored; and one that its own test covers. */
static bool is_no_choice(const char *type) {
    static const char *const others[] = {"tn_code_format", "tn_json_kind",  "tn_gguf_type", "tn_onnx_kind", "tn_status",
                                         "tn_dtype",       "tn_token_type", "tn_special",   "tn_llm_cache"};
    for (size_t i = 0; i < TN_COUNT(others); i++)
        if (!strcmp(type, others[i])) return true;
    for (size_t i = 0; i < TN_COUNT(choices); i++)
        if (!strcmp(type, choices[i].type)) return true;
    return false;
}

static void every_enumeration_of_the_headers_is_in_the_table(void **state) {
    (void)state;
    DIR *folder = opendir("include/trunnion");
    assert_non_null(folder);
    for (struct dirent *e = readdir(folder); e; e = readdir(folder)) {
        char path[512], line[512], type[128];
        snprintf(path, sizeof path, "include/trunnion/%.200s", e->d_name);
        FILE *f = e->d_name[0] == '.' ? NULL : fopen(path, "r");
        while (f && fgets(line, sizeof line, f))
            if (sscanf(line, "typedef enum %127[a-z0-9_] {", type) == 1 && !is_no_choice(type))
                fail_msg("%s: %s has no row in %s", e->d_name, type, __FILE__);
        if (f) fclose(f);
    }
    closedir(folder);
}

/* ---- settings of training ---------------------------------------------------------------------------------------- */

static void initial_values_without_a_meaning_are_refused(void **state) {
    (void)state;
    TN_SCOPE;
    refused(tn_init_uniform(TN_DIMS(2, 2), 3, -1), "low is 3 and high -1");
    refused(tn_init_uniform(TN_DIMS(2, 2), NAN, 1), "low is nan");
    refused(tn_init_normal(TN_DIMS(2, 2), 0, -1), "std is -1");
    refused(tn_init_normal(TN_DIMS(2, 2), 0, NAN), "std is nan");
    refused(tn_init_kaiming_uniform(TN_DIMS(2, 2), NAN), "a is nan");
    refused(tn_init_xavier_uniform(TN_DIMS(2, 2), -1), "gain is -1");
    refused(tn_init_xavier_uniform(TN_DIMS(2, 2), NAN), "gain is nan");
    refused(tn_init_orthogonal(2, 2, NAN), "gain is nan");
    assert_ok(tn_status_of(tn_init_orthogonal(2, 2, -1))); /* as PyTorch */
}

static void a_schedule_without_a_meaning_is_refused(void **state) {
    (void)state;
    const struct {
        double lr, final_lr;
        int64_t warmup, total, step;
        const char *words;
    } cases[] = {
        {NAN, 0, 0, 9, 0, "lr is nan"}, {1, NAN, 0, 9, 0, "final_lr nan"},
        {-1, 0, 0, 9, 0, "lr is -1"},   {1, INFINITY, 0, 9, 0, "final_lr inf"},
        {1, 0, -3, 9, 0, "warmup -3"},  {1, 0, 0, -9, 0, "total -9"},
        {1, 0, 0, 9, -1, "step -1"},
    };
    for (size_t i = 0; i < TN_COUNT(cases); i++) {
        tn_schedule s = TN_SCHEDULE_DEFAULTS;
        s.lr = cases[i].lr;
        s.final_lr = cases[i].final_lr;
        s.warmup = cases[i].warmup;
        s.total = cases[i].total;
        if (!isnan(tn_schedule_at(&s, cases[i].step))) fail_msg("\"%s\" is accepted", cases[i].words);
        assert_text_has(tn_error(), cases[i].words);
    }
}

static void a_clipping_bound_without_a_meaning_is_refused(void **state) {
    (void)state;
    tn_module *root = small_module();
    tn_tensor *norm;
    assert_int_equal(tn_clip_grad_norm(root, -1, &norm), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "max_norm is -1");
    assert_null(norm);
    assert_int_equal(tn_clip_grad_norm(root, NAN, NULL), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "max_norm is nan");
    assert_ok(tn_clip_grad_norm(root, INFINITY, NULL));
    tn_module_free(root);
}

static void a_wrong_learning_rate_is_refused_and_changes_nothing(void **state) {
    (void)state;
    const double wrong[] = {NAN, -1, INFINITY};
    tn_module *root = small_module();
    tn_optimizer *o;
    assert_ok(tn_optimizer_sgd(root, NULL, &o));
    for (size_t i = 0; i < TN_COUNT(wrong); i++) {
        assert_int_equal(tn_optimizer_set_lr(o, wrong[i]), TN_ERR_ARGUMENT);
        assert_text_has(tn_error(), "lr is ");
        assert_true(tn_optimizer_lr(o) == 1e-3);
    }
    assert_ok(tn_optimizer_set_lr(o, 0));
    assert_true(tn_optimizer_lr(o) == 0);
    tn_optimizer_free(o);
    tn_module_free(root);
}

/* ---- extremes ---------------------------------------------------------------------------------------------------- */

static void messages_name_what_is_wrong(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = MATRIX;
    refused(tn_slice(x, 1, 0, 4, 0), "step is 0");
    refused(tn_arange(0, 1e300, 1, TN_F32), "has 1e+300 elements");
    refused(tn_arange(0, INFINITY, 1, TN_F32), "must be finite");
    refused(tn_arange(0, 9, 0, TN_F32), "step not 0");
    refused(tn_arange(0, 9, -1, TN_F32), "change the sign of step");
    assert_int_equal(tn_status_of(tn_randperm(-1)), TN_ERR_SHAPE);
    assert_text_has(tn_error(), "randperm: n is -1");
    assert_int_equal(tn_status_of(tn_pad(x, TN_DIMS(INT64_MAX, INT64_MAX), 0)), TN_ERR_SHAPE);
    assert_text_has(tn_error(), "more than 64 bits hold");
    assert_int_equal(tn_status_of(tn_randn(TN_DIMS(-2))), TN_ERR_SHAPE);
    assert_text_has(tn_error(), "randn: extent -2");
    assert_int_equal(tn_status_of(tn_randn(TN_DIMS(INT64_MAX))), TN_ERR_SHAPE);
    assert_int_equal(tn_status_of(tn_eye(2, 2, (tn_dtype)99)), TN_ERR_DTYPE);
    assert_text_has(tn_error(), "eye: 99 is not a dtype");
}

static tn_tensor *own_function(const tn_tensor *x) {
    TN_FUNCTION("own_function");
    return tn_keep(tn_trapezoid(x, tn_ones(TN_DIMS(5), TN_F32), 1, -1));
}

static void wrong(tn_tensor *t, const char *words) {
    assert_int_not_equal(tn_status_of(t), TN_OK);
    if (!strstr(tn_error(), words)) fail_msg("\"%s\" has no \"%s\"", tn_error(), words);
}

/* An operation inside a function is nothing that its caller knows. */
static void messages_name_the_function_that_was_called(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = MATRIX, *half = tn_cast(x, TN_F16), *y,
              *bad = tn_add(tn_zeros(TN_DIMS(2), TN_I64), tn_scalar_int(1000000));
    wrong(tn_trapezoid(x, tn_ones(TN_DIMS(5), TN_F32), 1, -1), ": trapezoid: x must be a vector");
    wrong(tn_scatter_mean(x, 0, x, x, true), ": scatter_mean: dtype f32 of input 2");
    wrong(tn_linalg_cond(half, 2), ": linalg_cond: only f32 and f64");
    wrong(tn_select_scatter(x, x, 7, 0), ": select_scatter: dim 7");
    wrong(tn_uniform(0, 1, TN_DIMS(-2)), ": uniform: extent -2");
    wrong(tn_rfftn(x, (int64_t[]){-3}, NULL, 1, TN_FFT_BACKWARD), ": rfftn: -3 points");
    wrong(own_function(x), ": own_function: x must be a vector");
    wrong(tn_reshape(x, TN_DIMS(99)), ": reshape: ");
    y = tn_take(x, bad); /* found when it is computed */
    assert_int_equal(tn_eval(&y, 1), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), ": take: index ");
    y = tn_index_select(x, 0, bad);
    assert_int_equal(tn_eval(&y, 1), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), ": index_select: index 1000000");
}

static void a_step_beyond_the_end_takes_the_first_element(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = tn_arange(0, 4, 1, TN_F32);
    assert_numbers(tn_slice(x, 0, 1, INT64_MAX, INT64_MAX), (double[]){1}, 1, 0);
    assert_numbers(tn_slice(x, 0, 2, INT64_MIN, INT64_MIN), (double[]){2}, 1, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_not_started_from_the_initialiser_is_refused),
        cmocka_unit_test(what_is_newer_than_the_library_is_refused),
        cmocka_unit_test(the_initialiser_is_what_null_means),
        cmocka_unit_test(fields_that_an_older_program_lacks_have_their_defaults),
        cmocka_unit_test(every_struct_of_the_headers_is_in_the_table),
        cmocka_unit_test(structs_are_filled_in_as_far_as_the_program_knows_them),
        cmocka_unit_test(an_eps_of_zero_adds_nothing),
        cmocka_unit_test(a_beta_of_zero_is_the_l1_loss),
        cmocka_unit_test(a_scale_of_zero_weighs_all_keys_alike),
        cmocka_unit_test(the_class_to_ignore_may_be_any),
        cmocka_unit_test(optimizers_take_zeros),
        cmocka_unit_test(a_momentum_of_zero_keeps_the_running_statistics),
        cmocka_unit_test(a_time_of_zero_is_1970),
        cmocka_unit_test(values_without_a_meaning_are_refused),
        cmocka_unit_test(nan_is_refused_for_every_number),
        cmocka_unit_test(every_number_of_the_headers_is_in_the_table),
        cmocka_unit_test(probabilities_and_quantiles_without_a_meaning_show_in_the_result),
        cmocka_unit_test(a_choice_that_there_is_not_is_refused),
        cmocka_unit_test(every_enumeration_of_the_headers_is_in_the_table),
        cmocka_unit_test(initial_values_without_a_meaning_are_refused),
        cmocka_unit_test(a_schedule_without_a_meaning_is_refused),
        cmocka_unit_test(a_clipping_bound_without_a_meaning_is_refused),
        cmocka_unit_test(messages_name_what_is_wrong),
        cmocka_unit_test(messages_name_the_function_that_was_called),
        cmocka_unit_test(a_step_beyond_the_end_takes_the_first_element),
        cmocka_unit_test(a_wrong_learning_rate_is_refused_and_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
