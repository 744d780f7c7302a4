/* test_finetune.c — fine-tuning follows transformers and peft, resumes to the same bits, and what it saves computes the
 * same when it is opened again. */
#include "test_support.h"

#include <inttypes.h>
#include <math.h>

#include "tests/golden/lora.h"
#include "text/text_common.h"
#include "trunnion/data.h"
#include "trunnion/finetune.h"
#include "trunnion/trunnion.h"

enum { ROWS = sizeof lora_rows / sizeof *lora_rows, MOST_NAMED = 64, LONGEST = 20 };

static const lora_row *row_named(const char *name) {
    for (int i = 0; i < ROWS; i++)
        if (!strcmp(lora_rows[i].name, name)) return &lora_rows[i];
    fail_msg("no row %s", name);
    return NULL;
}

/* ---- the models of tools/pytorch/torch_lora.py ------------------------------------------------------------------- */

/* numbers() there: the same bits. */
static void fill(float *out, int64_t count, int64_t seed, double middle, double width) {
    for (int64_t i = 0; i < count; i++) {
        uint64_t h = (uint64_t)(i * INT64_C(2654435761) + seed * 40503 + 977) % (UINT64_C(1) << 32);
        h = h * 2246822519u % (UINT64_C(1) << 32) >> 16;
        out[i] = (float)(middle + width * ((double)h / 32768 - 1));
    }
}

static tn_tensor *tensor_of(const lora_tensor *t, int64_t seed, double middle, double width) {
    int64_t count = 1;
    for (int d = 0; d < t->rank; d++)
        count *= t->shape[d];
    float *data = malloc((size_t)count * sizeof *data);
    assert_non_null(data);
    fill(data, count, seed, middle, width);
    tn_tensor *x = tn_from_data(data, t->shape, t->rank, TN_F32);
    free(data);
    return x;
}

static void write_text(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void save_tensors(const lora_tensor *list, int count, bool adapter, const char *path) {
    TN_SCOPE;
    tn_named_tensor named[MOST_NAMED];
    assert_true(count <= MOST_NAMED);
    for (int i = 0; i < count; i++) {
        bool bias = strlen(list[i].name) > 4 && !strcmp(list[i].name + strlen(list[i].name) - 4, "bias");
        double middle = !adapter && list[i].rank == 1 && !bias ? 1 : 0;
        double width = adapter || list[i].rank == 1 ? 0.125 : 0.25;
        named[i] = (tn_named_tensor){list[i].name, tensor_of(&list[i], adapter ? 1000 + i : i, middle, width)};
    }
    assert_ok(tn_safetensors_save(path, named, count, NULL, 0));
}

typedef struct paths {
    char model[512], adapter[512];
} paths;

static void in_folder(const char *folder, const char *name, char out[512]) {
    assert_true(snprintf(out, 512, "%s/%s", folder, name) < 512);
}

static void write_model(const lora_row *r, paths *p) {
    char path[512], config[256];
    snprintf(p->model, sizeof p->model, "%s-model", test_scratch(r->name));
    snprintf(p->adapter, sizeof p->adapter, "%s-adapter", test_scratch(r->name));
    mkdir(p->model, 0777);
    mkdir(p->adapter, 0777);
    in_folder(p->model, "config.json", path);
    write_text(path, r->config);
    in_folder(p->model, "model.safetensors", path);
    save_tensors(r->weights, r->weight_count, false, path);
    if (!*r->targets) return;
    in_folder(p->adapter, "adapter_config.json", path);
    snprintf(config, sizeof config, "{\"peft_type\": \"LORA\", \"r\": %d, \"lora_alpha\": %d, \"bias\": \"none\"}",
             LORA_RANK, LORA_ALPHA);
    write_text(path, config);
    in_folder(p->adapter, "adapter_model.safetensors", path);
    save_tensors(r->adapter, r->adapter_count, true, path);
}

static tn_llm *open_model(const char *path, const char *adapter) {
    tn_llm_options o = TN_LLM_DEFAULTS;
    tn_llm *m;
    o.context = 64;
    o.cache = TN_LLM_CACHE_F32;
    o.adapter = adapter;
    assert_ok(tn_llm_open(path, &o, &m));
    return m;
}

static tn_finetune *train(tn_llm *m, const lora_row *r) {
    tn_finetune_options o = TN_FINETUNE_DEFAULTS;
    tn_finetune *t;
    o.rank = *r->targets ? LORA_RANK : 0;
    o.alpha = LORA_ALPHA;
    o.targets = *r->targets ? r->targets : NULL;
    o.adam.lr = LORA_RATE;
    assert_ok(tn_finetune_new(m, &o, &t));
    return t;
}

typedef struct batch {
    int32_t ids[LORA_TEXTS][LONGEST];
    uint8_t answer[LORA_TEXTS][LONGEST];
    tn_finetune_example examples[LORA_TEXTS];
} batch;

static void make_batch(batch *b, int64_t step) {
    for (int64_t k = 0; k < LORA_TEXTS; k++) {
        for (int64_t i = 0; i < lora_lengths[k]; i++) {
            b->ids[k][i] = (int32_t)(3 + (i * i * 7 + i * 5 + k * 11 + step * 3) % 61);
            b->answer[k][i] = i >= lora_answers[k];
        }
        b->examples[k] = (tn_finetune_example){b->ids[k], b->answer[k], lora_lengths[k]};
    }
}

static tn_finetune_stats step_once(tn_finetune *t, int64_t step) {
    batch b;
    tn_finetune_stats r = {.struct_size = sizeof r};
    make_batch(&b, step);
    assert_ok(tn_finetune_step(t, b.examples, LORA_TEXTS, &r));
    return r;
}

static void close_all(tn_finetune *t, tn_llm *m) {
    tn_finetune_free(t);
    tn_llm_close(m);
}

/* ---- against transformers and peft ------------------------------------------------------------------------------- */

static void assert_near(double got, double want, double bound, const char *row, const char *what, int i) {
    if (fabs(got - want) <= bound * fabs(want)) return;
    fail_msg("%s: %s %d is %.9g, expected %.9g (bound %.1g)", row, what, i, got, want, bound);
}

static double absolute_sum(const tn_tensor *x) {
    TN_SCOPE;
    TN_NO_GRAD;
    return tn_item(tn_sum(tn_abs(tn_cast(x, TN_F64)), NULL, 0, false));
}

/* Both compute in f32; rounding differs, and Adam divides small gradients by their size. */
static void check_row(const lora_row *r) {
    enum { LOSS, NORM, SUM };
    static const double bound[] = {[LOSS] = 2e-5, [NORM] = 1e-3, [SUM] = 1e-3};
    paths p;
    write_model(r, &p);
    tn_llm *m = open_model(p.model, *r->targets ? p.adapter : NULL);
    tn_finetune *t = train(m, r);
    for (int i = 0; i < LORA_STEPS; i++) {
        tn_finetune_stats got = step_once(t, i);
        assert_near(got.loss, r->losses[i], bound[LOSS], r->name, "loss", i);
        assert_near(got.grad_norm, r->norms[i], bound[NORM], r->name, "gradient norm", i);
        assert_int_equal(got.predicted, 11 + 9 + 6);
        assert_int_equal(got.tokens, 19 + 12 + 6);
    }
    for (int i = 0; i < r->adapter_count; i++) {
        const tn_tensor *x = tn_module_variable(tn_finetune_module(t), r->adapter[i].name);
        if (!x) fail_msg("%s: no variable %s", r->name, r->adapter[i].name);
        assert_near(absolute_sum(x), r->adapter[i].sum, bound[SUM], r->adapter[i].name, "sum", i);
    }
    close_all(t, m);
}

static void training_follows_transformers_and_peft(void **state) {
    (void)state;
    for (int i = 0; i < ROWS; i++)
        check_row(&lora_rows[i]);
}

/* ---- passes ------------------------------------------------------------------------------------------------------ */

/* Texts in one pass do not see each other, and a batch of several passes has the loss of all. */
static void the_loss_does_not_depend_on_how_texts_are_grouped(void **state) {
    (void)state;
    const lora_row *r = row_named("llama");
    paths p;
    batch b;
    write_model(r, &p);
    make_batch(&b, 0);
    double together, sum = 0;
    tn_llm *m = open_model(p.model, p.adapter);
    tn_finetune *t = train(m, r);
    tn_finetune_stats got = {.struct_size = sizeof got};
    assert_ok(tn_finetune_evaluate(t, b.examples, LORA_TEXTS, &got));
    together = got.loss;
    for (int k = 0; k < LORA_TEXTS; k++) {
        assert_ok(tn_finetune_evaluate(t, &b.examples[k], 1, &got));
        sum += got.loss * (double)got.predicted;
    }
    assert_near(sum / 26, together, 1e-6, "llama", "loss", 0);
    tn_finetune_example many[9];
    for (int k = 0; k < 9; k++)
        many[k] = b.examples[k % LORA_TEXTS]; /* 120 tokens: two passes of at most 64 */
    assert_ok(tn_finetune_evaluate(t, many, 9, &got));
    assert_near(got.loss, together, 1e-6, "llama", "loss of passes", 0);
    assert_true(isnan(got.grad_norm));
    close_all(t, m);
}

/* The gradient's norm after a step on a batch, or after two batches. */
static double norm_of_parts(const paths *p, const batch *b, int parts, bool twice, double *loss) {
    tn_llm *m = open_model(p->model, p->adapter);
    tn_finetune_options o = TN_FINETUNE_DEFAULTS;
    tn_finetune *t;
    tn_finetune_stats got = {.struct_size = sizeof got};
    o.parts = parts;
    assert_ok(tn_finetune_new(m, &o, &t));
    if (twice) assert_ok(tn_finetune_backward(t, b->examples, LORA_TEXTS, NULL));
    assert_ok(tn_finetune_step(t, b->examples, LORA_TEXTS, &got));
    *loss = got.loss;
    close_all(t, m);
    return got.grad_norm;
}

/* More parts than texts leave some empty; gradients of an earlier batch are kept. */
static void parts_add_up_to_the_batch(void **state) {
    (void)state;
    const lora_row *r = row_named("llama");
    paths p;
    batch b;
    double whole, loss;
    write_model(r, &p);
    make_batch(&b, 0);
    double norm = norm_of_parts(&p, &b, 1, false, &whole);
    for (int parts = 2; parts <= LORA_TEXTS + 2; parts++) {
        assert_near(norm_of_parts(&p, &b, parts, false, &loss), norm, 1e-5, "llama", "norm of parts", parts);
        assert_near(loss, whole, 1e-6, "llama", "loss of parts", parts);
        assert_near(norm_of_parts(&p, &b, parts, true, &loss), 2 * norm, 1e-5, "llama", "norm of two batches", parts);
    }
}

static void read_all(tn_finetune *t, float *out, size_t room) {
    tn_variable *list;
    int count;
    size_t at = 0;
    assert_ok(tn_module_parameters(tn_finetune_module(t), &list, &count));
    for (int i = 0; i < count; i++) {
        size_t n = (size_t)tn_numel(list[i].tensor);
        assert_true(at + n <= room);
        assert_ok(tn_read(list[i].tensor, out + at, n * sizeof *out));
        at += n;
    }
    tn_variables_free(list);
}

static tn_tensor *scale_of(tn_finetune *t, tn_variable **list) {
    int count;
    assert_ok(tn_optimizer_variables(tn_finetune_optimizer(t), list, &count));
    for (int i = 0; i < count; i++)
        if (strcmp((*list)[i].name, "grad_scaler.scale") == 0) return (*list)[i].tensor;
    fail_msg("the optimizer has no grad_scaler.scale");
    return NULL;
}

/* A scale that makes every gradient overflow: the step changes nothing, and the scale becomes smaller. */
static void check_overflow(tn_finetune *t) {
    enum { ROOM = 1 << 16 };
    static float before[ROOM], after[ROOM];
    tn_variable *list;
    tn_tensor *scale = scale_of(t, &list);
    double huge = 0x1p127;
    {
        TN_SCOPE;
        TN_NO_GRAD;
        tn_copy_(scale, tn_cast(tn_scalar(huge), tn_dtype_of(scale)));
    }
    read_all(t, before, ROOM);
    assert_true(!isfinite(step_once(t, 5).grad_norm));
    read_all(t, after, ROOM);
    assert_memory_equal(before, after, sizeof before);
    assert_int_equal(tn_optimizer_skipped_steps(tn_finetune_optimizer(t)), 1);
    assert_true(tn_optimizer_loss_scale(tn_finetune_optimizer(t)) == huge / 2);
    tn_variables_free(list);
}

/* A loss that is NaN stays so with every scale. */
static void check_lost(tn_finetune *t) {
    tn_variable *list;
    int count;
    batch b;
    make_batch(&b, 0);
    assert_ok(tn_module_parameters(tn_finetune_module(t), &list, &count));
    {
        TN_SCOPE;
        TN_NO_GRAD;
        assert_ok(tn_status_of(tn_mul_(list[count - 1].tensor, tn_scalar((double)NAN))));
    }
    tn_variables_free(list);
    assert_int_equal(tn_finetune_step(t, b.examples, LORA_TEXTS, NULL), TN_ERR_STATE);
    assert_text_has(tn_error(), "the loss is nan");
}

static void mixed_precision_follows_f32(void **state) {
    enum { STEPS = 5 };
    static const tn_dtype types[] = {TN_F32, TN_BF16, TN_F16};
    (void)state;
    const lora_row *r = row_named("llama");
    paths p;
    double losses[3][STEPS];
    write_model(r, &p);
    for (int k = 0; k < 3; k++) {
        tn_llm *m = open_model(p.model, p.adapter);
        tn_finetune_options o = TN_FINETUNE_DEFAULTS;
        tn_finetune *t;
        o.adam.lr = LORA_RATE;
        o.amp = types[k];
        assert_ok(tn_finetune_new(m, &o, &t));
        for (int i = 0; i < STEPS; i++) {
            losses[k][i] = step_once(t, i).loss;
            assert_near(losses[k][i], losses[0][i], 0.02, "llama", tn_dtype_name(types[k]), i);
        }
        if (types[k] == TN_F16) check_overflow(t);
        if (types[k] == TN_F16) check_lost(t);
        close_all(t, m);
    }
    assert_true(losses[1][STEPS - 1] != losses[0][STEPS - 1]); /* products were rounded */
}

/* ---- resuming ---------------------------------------------------------------------------------------------------- */

static double flops_of_parts(const paths *p, const batch *b, int parts, double *norm, double *loss) {
    tn_profile *profile = tn_profile_begin();
    double sum = 0;
    tn_profile_row row = {.struct_size = sizeof row};
    *norm = norm_of_parts(p, b, parts, false, loss);
    tn_profile_end(profile);
    for (int64_t i = 0; i < tn_profile_count(profile); i++, sum += row.flops)
        assert_ok(tn_profile_at(profile, i, &row));
    tn_profile_free(profile);
    return sum;
}

/* A beginning that texts share is computed once if they are in the same pass, and nothing else changes: also if it is
 * trained, a whole text, or longer than the window. */
static void texts_share_their_beginning(void **state) {
    static const int shared[LORA_TEXTS] = {0, 12, 6};
    (void)state;
    for (int i = 0; i < ROWS; i++) {
        paths p;
        batch b;
        double norm, loss, norms, losses;
        if (!*lora_rows[i].targets) continue;
        write_model(&lora_rows[i], &p);
        make_batch(&b, 0);
        memset(b.answer, 1, sizeof b.answer);
        for (int k = 1; k < LORA_TEXTS; k++)
            memcpy(b.ids[k], b.ids[0], (size_t)shared[k] * sizeof b.ids[0][0]);
        double together = flops_of_parts(&p, &b, 1, &norm, &loss);
        double apart = flops_of_parts(&p, &b, LORA_TEXTS, &norms, &losses);
        assert_near(norm, norms, 1e-5, lora_rows[i].name, "norm of shared texts", i);
        assert_near(loss, losses, 1e-6, lora_rows[i].name, "loss of shared texts", i);
        if (together > 0.75 * apart) fail_msg("%s: %.0f operations of %.0f", lora_rows[i].name, together, apart);
    }
}

static void a_resumed_run_has_the_same_bits(const char *name) {
    enum { ROOM = 1 << 16 };
    static float straight[ROOM], resumed[ROOM];
    const lora_row *r = row_named(name);
    paths p;
    write_model(r, &p);
    memset(straight, 0, sizeof straight);
    memset(resumed, 0, sizeof resumed);
    for (int run = 0; run < 3; run++) { /* 0: four steps; 1: two, saved; 2: two more */
        tn_manual_seed(5);
        tn_llm *m = open_model(p.model, NULL);
        tn_finetune *t = train(m, r);
        tn_checkpoint c = TN_CHECKPOINT_DEFAULTS;
        c.model = tn_finetune_module(t);
        c.optimizer = tn_finetune_optimizer(t);
        if (run == 2) assert_ok(tn_checkpoint_load(test_scratch("resume"), &c));
        for (int i = run == 2 ? 2 : 0; i < (run == 1 ? 2 : 4); i++)
            step_once(t, i);
        if (run == 1) assert_ok(tn_checkpoint_save(test_scratch("resume"), &c));
        if (run != 1) read_all(t, run == 0 ? straight : resumed, ROOM);
        close_all(t, m);
    }
    assert_memory_equal(straight, resumed, sizeof straight);
}

static void a_resumed_adapter_has_the_same_bits(void **state) {
    (void)state;
    a_resumed_run_has_the_same_bits("llama");
}

static void resumed_weights_have_the_same_bits(void **state) {
    (void)state;
    a_resumed_run_has_the_same_bits("whole");
}

/* ---- a limit of memory ------------------------------------------------------------------------------------------- */

enum { WEIGHTS_ROOM = 1 << 14, TEXTS = 9 };

typedef struct limited {
    tn_finetune_stats stats;
    float weights[WEIGHTS_ROOM];
    int64_t before, peak; /* bytes in use before the step; the most in it */
} limited;

/* A step on two passes of at most 64 tokens. limit: bytes beyond those in use before; 0: none. */
static tn_status step_within(const char *model, int64_t limit, limited *out) {
    batch b;
    tn_finetune_example many[TEXTS];
    tn_pool_stats s = {.struct_size = sizeof s};
    tn_finetune_options o = TN_FINETUNE_DEFAULTS;
    tn_finetune *t;
    o.save_memory = true;
    make_batch(&b, 0);
    for (int k = 0; k < TEXTS; k++)
        many[k] = b.examples[k % LORA_TEXTS];
    *out = (limited){.stats = {.struct_size = sizeof out->stats}};
    tn_clear_plans();
    tn_manual_seed(5);
    tn_llm *m = open_model(model, NULL);
    tn_device *device = tn_current_device();
    assert_ok(tn_finetune_new(m, &o, &t));
    assert_ok(tn_device_trim(device, NULL));
    assert_ok(tn_device_get_pool_stats(device, &s));
    out->before = s.in_use_bytes;
    tn_device_reset_pool_peak(device);
    if (limit) assert_ok(tn_device_set_pool_max(device, (size_t)(s.in_use_bytes + limit)));
    tn_status status = tn_finetune_step(t, many, TEXTS, &out->stats);
    assert_ok(tn_device_get_pool_stats(device, &s));
    out->peak = s.peak_bytes;
    assert_ok(tn_device_set_pool_max(device, 0));
    if (status == TN_OK) read_all(t, out->weights, WEIGHTS_ROOM);
    close_all(t, m);
    return status;
}

/* First with recomputation and the same bits, then in smaller passes, at last with what is missing. */
static void a_limit_of_memory_is_kept_or_told(void **state) {
    (void)state;
    static limited wide, tight;
    paths p;
    int same = 0, divided = 0;
    write_model(row_named("llama"), &p);
    assert_ok(step_within(p.model, 0, &wide));
    assert_false(wide.stats.recomputes);
    assert_int_equal(wide.stats.pass, 64);
    for (int percent = 96;; percent -= 4) {
        int64_t limit = (wide.peak - wide.before) * percent / 100;
        tn_status status = step_within(p.model, limit, &tight);
        assert_true(percent > 0);
        if (status == TN_ERR_MEMORY) break;
        assert_ok(status);
        assert_true(tight.peak <= tight.before + limit);
        if (tight.stats.pass == 64) assert_memory_equal(tight.weights, wide.weights, sizeof wide.weights);
        assert_near(tight.stats.loss, wide.stats.loss, 1e-6, "llama", "loss within a limit", percent);
        same += tight.stats.recomputes && tight.stats.pass == 64;
        divided += tight.stats.pass < 64;
    }
    assert_non_null(strstr(tn_error(), "are missing"));
    assert_true(same > 0);
    assert_true(divided > 0);
}

/* ---- adapters ---------------------------------------------------------------------------------------------------- */

enum { VOCABULARY = 64, PROMPT = 12 };

static void logits_of(tn_llm *m, float out[PROMPT * VOCABULARY]) {
    int32_t ids[PROMPT];
    for (int i = 0; i < PROMPT; i++)
        ids[i] = 5 + i * 3;
    assert_ok(tn_llm_rewind(m, 0));
    assert_ok(tn_llm_logits(m, ids, PROMPT, out));
}

static double difference(const float *x, const float *y, int n) {
    double most = 0;
    for (int i = 0; i < n; i++)
        most = fmax(most, fabs((double)x[i] - (double)y[i]));
    return most;
}

/* The model with its trainer, the model with the saved adapter, and the model in which it is merged. */
static void saved_models_compute_what_was_trained(void **state) {
    (void)state;
    static float plain[PROMPT * VOCABULARY], trained[PROMPT * VOCABULARY], again[PROMPT * VOCABULARY];
    for (int i = 0; i < ROWS; i++) {
        const lora_row *r = &lora_rows[i];
        paths p;
        char adapter[512], merged[512];
        snprintf(adapter, sizeof adapter, "%s-saved", test_scratch(r->name));
        snprintf(merged, sizeof merged, "%s-merged", test_scratch(r->name));
        write_model(r, &p);
        tn_llm *m = open_model(p.model, NULL);
        logits_of(m, plain);
        tn_finetune *t = train(m, r);
        step_once(t, 0);
        step_once(t, 1);
        logits_of(m, trained);
        assert_true(difference(plain, trained, PROMPT * VOCABULARY) > 1e-2);
        if (*r->targets) assert_ok(tn_finetune_save_adapter(t, adapter, NULL));
        if (!*r->targets) assert_int_equal(tn_finetune_save_adapter(t, adapter, NULL), TN_ERR_STATE);
        assert_ok(tn_llm_save_model(m, merged));
        close_all(t, m);
        if (*r->targets) {
            m = open_model(p.model, adapter);
            logits_of(m, again);
            assert_memory_equal(again, trained, sizeof again);
            tn_llm_close(m);
        }
        m = open_model(merged, NULL);
        logits_of(m, again);
        if (difference(again, trained, PROMPT * VOCABULARY) > 2e-5)
            fail_msg("%s: merged differs by %g", r->name, difference(again, trained, PROMPT * VOCABULARY));
        tn_llm_close(m);
    }
}

static void adapters_have_points_in_every_locale(void **state) {
    (void)state;
    paths p;
    const char *adapter = test_scratch("comma");
    tn_finetune_options o = TN_FINETUNE_DEFAULTS;
    tn_finetune *t;
    test_enter_comma_locale();
    write_model(&lora_rows[0], &p);
    tn_llm *m = open_model(p.model, NULL);
    o.alpha = 2.5;
    assert_ok(tn_finetune_new(m, &o, &t));
    assert_ok(tn_finetune_save_adapter(t, adapter, NULL));
    close_all(t, m);
    tn_llm_close(open_model(p.model, adapter));
    setlocale(LC_ALL, "C");
}

static void assert_steps(tn_llm_batch *b, tn_llm *const *models, int count, const float want[PROMPT][VOCABULARY],
                         const char *row) {
    for (int k = 0; k < count; k++)
        assert_ok(tn_llm_rewind(models[k], 0));
    for (int i = 0; i < PROMPT; i++) {
        const int32_t ids[] = {5 + i * 3, 5 + i * 3};
        const float *logits;
        if (b) assert_ok(tn_llm_batch_step(b, ids, &logits));
        if (!b) assert_ok(tn_llm_step(models[0], ids[0], &logits));
        for (int k = 0; k < count; k++)
            if (memcmp(logits + (size_t)k * VOCABULARY, want[i], sizeof want[i]) != 0)
                fail_msg("%s: conversation %d of %d, token %d: other logits", row, k, count, i);
    }
}

/* Batches from before and behind the beginning of training, and a later conversation, compute what the model does. An
 * earlier conversation keeps the weights of before, so it cannot be in a batch with the model. */
static void batches_compute_what_was_trained(void **state) {
    (void)state;
    static float want[PROMPT][VOCABULARY];
    for (int i = 0; i < ROWS; i++) {
        const lora_row *r = &lora_rows[i];
        paths p;
        write_model(r, &p);
        tn_llm *m = open_model(p.model, NULL), *earlier, *later;
        tn_llm_batch *own, *mixed, *both;
        const float *logits;
        assert_ok(tn_llm_new_conversation(m, NULL, &earlier));
        assert_ok(tn_llm_batch_new(&m, 1, &own));
        assert_ok(tn_llm_batch_new((tn_llm *[]){m, earlier}, 2, &mixed));
        assert_ok(tn_llm_batch_step(own, (int32_t[]){5}, NULL));
        assert_ok(tn_llm_batch_step(mixed, (int32_t[]){5, 5}, NULL));
        tn_finetune *t = train(m, r);
        step_once(t, 0);
        for (int k = 0; k < PROMPT; k++) {
            assert_ok(tn_llm_step(m, 5 + k * 3, &logits));
            memcpy(want[k], logits, sizeof want[k]);
        }
        assert_ok(tn_llm_new_conversation(m, NULL, &later));
        assert_steps(NULL, &later, 1, want, r->name);
        assert_steps(own, &m, 1, want, r->name);
        assert_int_equal(tn_llm_batch_step(mixed, (int32_t[]){5, 5}, NULL), TN_ERR_ARGUMENT);
        assert_text_has(tn_error(), "conversation 1 has other weights than the first");
        tn_llm_batch_free(mixed);
        assert_int_equal(tn_llm_batch_new((tn_llm *[]){m, earlier}, 2, &mixed), TN_ERR_ARGUMENT);
        assert_ok(tn_llm_batch_new((tn_llm *[]){m, later}, 2, &both));
        assert_steps(both, (tn_llm *[]){m, later}, 2, want, r->name);
        tn_llm_batch_free(both);
        tn_llm_batch_free(own);
        tn_llm_close(later);
        tn_llm_close(earlier);
        close_all(t, m);
    }
}

static void hostile_adapters_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *config, *error;
    } rows[] = {
        {"{\"peft_type\": \"IA3\", \"r\": 4, \"lora_alpha\": 8}", "peft_type"},
        {"{\"peft_type\": \"LORA\", \"r\": 0, \"lora_alpha\": 8}", "r must be at least 1"},
        {"{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8, \"use_dora\": true}", "use_dora"},
        {"{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8, \"bias\": \"all\"}", "bias"},
        {"{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8, \"modules_to_save\": [\"x\"]}", "modules_to_save"},
        {"{\"peft_type\": \"LORA\", \"r\": 4}", "lora_alpha a finite number"},
        {"{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": \"8\"}", "lora_alpha a finite number"},
        {"{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8, \"alora_invocation_tokens\": [1]}",
         "alora_invocation_tokens"},
        {"{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8, \"init_lora_weights\": \"pissa_niter_16\"}",
         "init_lora_weights"},
        {"{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8, \"init_lora_weights\": \"OLoRA\"}",
         "init_lora_weights"},
        {"{\"peft_type\": \"LORA\", \"r\": 5, \"lora_alpha\": 8}", "this model needs [5, 48]"},
        {"[", "adapter_config.json"}};
    paths p;
    char path[512];
    write_model(row_named("llama"), &p);
    in_folder(p.adapter, "adapter_config.json", path);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tn_llm_options o = TN_LLM_DEFAULTS;
        tn_llm *m = NULL;
        write_text(path, rows[i].config);
        o.adapter = p.adapter;
        assert_true(tn_llm_open(p.model, &o, &m) != TN_OK);
        assert_null(m);
        assert_text_has(tn_error(), rows[i].error);
    }
    tn_llm_options o = TN_LLM_DEFAULTS;
    tn_llm *m = NULL;
    write_model(row_named("gpt2"), &p); /* another family's adapter */
    snprintf(p.model, sizeof p.model, "%s-model", test_scratch("llama"));
    o.adapter = p.adapter;
    assert_int_equal(tn_llm_open(p.model, &o, &m), TN_ERR_UNSUPPORTED);
    assert_text_has(tn_error(), "not an adapter of a matrix of this llama model");
}

/* ---- quantized weights ------------------------------------------------------------------------------------------- */

/* y = x·Wᵀ + s·(x·Aᵀ)·Bᵀ with W in blocks: gradients to x, A and B against f64, with W's decoded values. */
static void gradients_beside_quantized_weights_match_f64(void **state) {
    (void)state;
    enum { N = 5, IN = 64, OUT = 48, R = 4 };
    static float w[OUT * IN], decoded[OUT * IN], x[N * IN], a[R * IN], b[OUT * R], dy[N * OUT], got[N * IN];
    static unsigned char blocks[OUT * IN * 4];
    static const tn_dtype dtypes[] = {TN_Q4_1, TN_Q8_0};
    fill(w, OUT * IN, 1, 0, 0.5);
    fill(x, N * IN, 2, 0, 1);
    fill(a, R * IN, 3, 0, 0.5);
    fill(b, OUT * R, 4, 0, 0.5);
    fill(dy, N * OUT, 5, 0, 1);
    for (size_t k = 0; k < 2; k++) {
        TN_SCOPE;
        assert_ok(tn_quantize_blocks(dtypes[k], w, OUT * IN, blocks));
        tn_tensor *weight = tn_from_data(blocks, TN_DIMS(OUT, IN), dtypes[k]);
        assert_ok(tn_read(tn_cast(weight, TN_F32), decoded, sizeof decoded));
        tn_tensor *tx = tn_from_data(x, TN_DIMS(N, IN), TN_F32), *ta = tn_from_data(a, TN_DIMS(R, IN), TN_F32);
        tn_tensor *tb = tn_from_data(b, TN_DIMS(OUT, R), TN_F32), *tdy = tn_from_data(dy, TN_DIMS(N, OUT), TN_F32);
        assert_ok(tn_set_requires_grad(tx, true));
        assert_ok(tn_set_requires_grad(ta, true));
        assert_ok(tn_set_requires_grad(tb, true));
        tn_tensor *y = tn_add(tn_linear(tx, weight, NULL), tn_linear(tn_linear(tx, ta, NULL), tb, NULL));
        assert_ok(tn_backward(tn_sum(tn_mul(y, tdy), NULL, 0, false)));
        assert_ok(tn_read(tn_grad(tx), got, sizeof got));
        for (int n = 0; n < N; n++)
            for (int i = 0; i < IN; i++) {
                double want = 0;
                for (int o = 0; o < OUT; o++) {
                    double whole = (double)decoded[o * IN + i];
                    for (int r = 0; r < R; r++)
                        whole += (double)b[o * R + r] * (double)a[r * IN + i];
                    want += (double)dy[n * OUT + o] * whole;
                }
                if (fabs((double)got[n * IN + i] - want) > 1e-5 * (1 + fabs(want)))
                    fail_msg("dtype %d: dx[%d, %d] is %g, expected %g", (int)dtypes[k], n, i, (double)got[n * IN + i],
                             want);
            }
    }
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

static void wrong_batches_and_options_are_refused(void **state) {
    (void)state;
    const lora_row *r = row_named("llama");
    paths p;
    batch b;
    write_model(r, &p);
    make_batch(&b, 0);
    tn_llm *m = open_model(p.model, NULL);
    tn_finetune_options o = TN_FINETUNE_DEFAULTS;
    tn_finetune *t = NULL;
    o.targets = "q_proj,w_proj";
    assert_int_equal(tn_finetune_new(m, &o, &t), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "\"w_proj\" is not a matrix of this model; it has q_proj, k_proj");
    o.targets = "";
    assert_int_equal(tn_finetune_new(m, &o, &t), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "\"\" is not a matrix");
    o.targets = NULL; /* refused before the model is changed */
    o.rank = 33;
    assert_int_equal(tn_finetune_new(m, &o, &t), TN_ERR_ARGUMENT);
    o.rank = 4;
    o.alpha = NAN;
    assert_int_equal(tn_finetune_new(m, &o, &t), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "alpha nan");
    o.alpha = 8;
    o.amp = TN_F64;
    assert_int_equal(tn_finetune_new(m, &o, &t), TN_ERR_DTYPE);
    o.amp = TN_F32;
    o.parts = 257;
    assert_int_equal(tn_finetune_new(m, &o, &t), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "257 parts");
    o.parts = 0;
    o.adam.beta1 = NAN;
    assert_int_equal(tn_finetune_new(m, &o, &t), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "beta1 is nan");
    o.adam.beta1 = 0.9;
    assert_ok(tn_finetune_new(m, &o, &t));
    tn_finetune *second = NULL;
    assert_int_equal(tn_finetune_new(m, &o, &second), TN_ERR_STATE);
    b.ids[1][3] = 64;
    assert_int_equal(tn_finetune_step(t, b.examples, LORA_TEXTS, NULL), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "text 1: token 3 is 64");
    make_batch(&b, 0);
    b.examples[2].count = 1;
    assert_int_equal(tn_finetune_step(t, b.examples, LORA_TEXTS, NULL), TN_ERR_ARGUMENT);
    memset(b.answer, 0, sizeof b.answer);
    b.examples[2].count = 7;
    assert_int_equal(tn_finetune_step(t, b.examples, LORA_TEXTS, NULL), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "no token to predict");
    close_all(t, m);
}

/* ---- stopping ---------------------------------------------------------------------------------------------------- */

/* Counts down; 0: stop. */
static bool stops_at_zero(void *left) { return (*(int *)left)-- <= 0; }

/* Wherever the hook stops a step, weights and the optimizer are as if the step had never begun. */
static void a_stopped_step_changes_nothing(void **state) {
    (void)state;
    enum { ROOM = 1 << 16, NEVER = 1 << 20 };
    static float start[ROOM], stopped[ROOM], want[ROOM], got[ROOM];
    paths p;
    batch b;
    write_model(row_named("llama"), &p);
    make_batch(&b, 0);
    for (int at = -1; at < 3; at++) { /* -1: never */
        int left = NEVER;
        tn_llm *m = open_model(p.model, NULL);
        tn_finetune_options o = TN_FINETUNE_DEFAULTS;
        tn_finetune *t;
        o.rank = LORA_RANK;
        o.parts = 3; /* several passes */
        o.stop = stops_at_zero;
        o.stop_ctx = &left;
        tn_manual_seed(5);
        assert_ok(tn_finetune_new(m, &o, &t));
        read_all(t, start, ROOM);
        if (at >= 0) {
            left = at;
            assert_int_equal(tn_finetune_step(t, b.examples, LORA_TEXTS, NULL), TN_ERR_STATE);
            assert_text_has(tn_error(), "stopped by the caller");
            read_all(t, stopped, ROOM);
            assert_memory_equal(start, stopped, sizeof start);
            left = 0;
            assert_int_equal(tn_finetune_evaluate(t, b.examples, LORA_TEXTS, NULL), TN_ERR_STATE);
            left = NEVER;
        }
        step_once(t, 0);
        step_once(t, 1);
        read_all(t, at < 0 ? want : got, ROOM);
        if (at >= 0) assert_memory_equal(want, got, sizeof want);
        close_all(t, m);
    }
}

/* ---- order of batches -------------------------------------------------------------------------------------------- */

/* Every sample once an epoch, another order each epoch, the same from a saved position. */
static void batches_visit_every_sample_once(void **state) {
    (void)state;
    for (int64_t count = 1; count < 70; count += 3) {
        tn_batches b = TN_BATCHES_DEFAULTS, second;
        int64_t got[8], seen[70] = {0}, moved = 0, at = 0;
        b.count = count;
        b.batch = 4;
        b.seed = 7;
        assert_int_equal(tn_batches_per_epoch(&b), (count + 3) / 4);
        for (int64_t k = 0; k < (count + 3) / 4; k++) {
            second = b;
            int64_t n = tn_batches_next(&b, got), twice[8];
            assert_int_equal(tn_batches_next(&second, twice), n);
            assert_memory_equal(got, twice, (size_t)n * sizeof *got);
            for (int64_t i = 0; i < n; i++) {
                assert_true(got[i] >= 0 && got[i] < count);
                seen[got[i]]++;
                moved += got[i] != at++;
            }
        }
        for (int64_t i = 0; i < count; i++)
            assert_int_equal(seen[i], 1);
        if (count > 20) assert_true(moved > count / 2);
        assert_true(tn_batches_next(&b, got) > 0);
        assert_int_equal(b.epoch, 1);
    }
    tn_batches b = TN_BATCHES_DEFAULTS;
    b.count = 10;
    b.batch = 4;
    b.drop_last = true;
    assert_int_equal(tn_batches_per_epoch(&b), 2);
    b.drop_last = false;
    b.batch = INT64_MAX;
    assert_int_equal(tn_batches_per_epoch(&b), 1);
    b.batch = 4;
    b.drop_last = true;
    b.count = 3;
    assert_int_equal(tn_batches_per_epoch(&b), 0);
    assert_text_has(tn_error(), "at least one batch");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(training_follows_transformers_and_peft),
        cmocka_unit_test(the_loss_does_not_depend_on_how_texts_are_grouped),
        cmocka_unit_test(parts_add_up_to_the_batch),
        cmocka_unit_test(texts_share_their_beginning),
        cmocka_unit_test(mixed_precision_follows_f32),
        cmocka_unit_test(a_resumed_adapter_has_the_same_bits),
        cmocka_unit_test(resumed_weights_have_the_same_bits),
        cmocka_unit_test(a_limit_of_memory_is_kept_or_told),
        cmocka_unit_test(saved_models_compute_what_was_trained),
        cmocka_unit_test(adapters_have_points_in_every_locale),
        cmocka_unit_test(batches_compute_what_was_trained),
        cmocka_unit_test(hostile_adapters_are_refused),
        cmocka_unit_test(gradients_beside_quantized_weights_match_f64),
        cmocka_unit_test(wrong_batches_and_options_are_refused),
        cmocka_unit_test(a_stopped_step_changes_nothing),
        cmocka_unit_test(batches_visit_every_sample_once),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
