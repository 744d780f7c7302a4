/* finetune.c — `trunnion finetune`: trains a language model, or an adapter for one, on a file of texts.
 *
 * A step is a function of its number: the order of the texts follows from the seed, the learning rate from the
 * schedule. So a checkpoint needs only the trained numbers, the optimizer and the step, and a resumed run has
 * the same bits, as has one that moves to another device (survive.h): `tuning` is the run, `share` what one device
 * has of it. */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/text/language.h"
#include "cli/train/finetune_data.h"
#include "cli/train/report.h"
#include "cli/train/train.h"
#include "trunnion/backend.h"
#include "trunnion/data.h"
#include "trunnion/finetune.h"
#include "trunnion/survive.h"

static const char CHECKPOINT[] = "checkpoint.safetensors", MERGED[] = "model.gguf";
enum { PLOT_ROWS = 8, SAMPLE_TOKENS = 48, VALIDATION_BATCH = 8, MOST_DESCRIPTION = 768, DEFAULT_CONTEXT = 512 };

static const char help_text[] =
    "  -m, --model MODEL     a GGUF file (also quantized), or a Hugging Face model folder\n"
    "      --data FILE       NAME.jsonl: an object a line, with \"messages\" (as for chat; the model's\n"
    "                        template is applied), \"prompt\" and \"completion\", or \"text\"; the loss\n"
    "                        counts answers, completions and texts. Other names: plain text\n"
    "      --out DIR         folder for the result and checkpoints\n"
    "      --lora R          rank of the adapter (8)\n"
    "      --lora-alpha A    the adapter is scaled by A / R (twice the rank)\n"
    "      --targets NAMES   matrices with an adapter, as in q,v or q_proj,v_proj (all)\n"
    "      --full            train all weights in f32 instead of an adapter\n"
    "      --lr X            highest learning rate (2e-4; with --full 2e-5)\n"
    "      --schedule KIND   cosine, linear or constant (cosine, to 0)\n"
    "      --warmup N        steps in which the rate rises (3 % of all)\n"
    "      --weight-decay X  of AdamW (0)\n"
    "      --clip X          limit of the gradient's norm (1)\n"
    "      --epochs N        passes over the data (1)\n"
    "      --steps N         this many steps instead\n"
    "      --batch N         texts of a batch (8)\n"
    "      --accumulate N    batches of a step (1); memory does not depend on either\n"
    "      --context N       most tokens of a text; longer ones are cut (512)\n"
    "      --validation V    a file like --data, or a share of the data between 0 and 1, whose\n"
    "                        loss is measured at the start, after each epoch and at the end\n"
    "      --save-every N    write a checkpoint after every N steps; always when stopped\n"
    "      --resume          go on from the checkpoint in --out, with the same options: the\n"
    "                        result has the bits of a run that was not interrupted\n"
    "      --log FILE        a JSON object a line for each step\n"
    "      --report FILE     an HTML page with charts and samples, written while training\n"
    "      --tensorboard DIR the same as an event file of TensorBoard in this folder\n"
    "      --amp f16|bf16    mixed precision: products in this type, weights and optimizer in f32; f16\n"
    "                        with a loss scale, and steps that overflow are skipped\n"
    "      --parts N         cut the texts of a step into N parts, which processes share; gradients\n"
    "                        are added in the order of the parts (one part for each process)\n"
    "      --memory SIZE     the most memory of the device that training may take, as in 500M: values are\n"
    "                        computed twice, then a pass has fewer texts; or the training is refused before\n"
    "                        loading, with what is missing. A run within a limit does not change devices\n"
    "      --json            loss, validation_loss, validation_loss_before, steps, tokens,\n"
    "                        tokens_per_second, trained_parameters, texts, texts_cut,\n"
    "                        texts_left_out, out, peak_bytes,\n"
    "                        device, fallback[], seed, interrupted, failed_devices[],\n"
    "                        recomputed_steps, state_copies, steps_between_copies,\n"
    "                        state_copy_seconds; with --memory:\n"
    "                        memory_limit, memory_peak, recomputes, pass_tokens; on several\n"
    "                        processes: processes, group; with --amp: amp,\n"
    "                        loss_scale, skipped_steps\n"
    "\n"
    "Writes DIR/adapter_model.safetensors and adapter_config.json (PEFT's format), which\n"
    "generate, chat and convert take with --lora DIR. With --full: DIR/model.gguf, or a model\n"
    "folder. Ctrl-C saves a checkpoint and ends the run. If the device is lost, out of memory or\n"
    "hangs, the run continues on the next one from a copy of its state in host memory, and a line\n"
    "says so; --strict turns this off.\n"
    "\n"
    "Several processes, started by mpirun, torchrun or srun, share the texts of a step. With the same\n"
    "--parts the result has the bits of one process, and a run can be resumed by another number\n"
    "of processes. Rank 0 writes files and output. A process that dies ends the job.\n"
    "\n"
    "examples:\n"
    "  trunnion finetune -m model.gguf --data qa.jsonl --out adapter --report r.html\n"
    "  trunnion finetune -m folder --data notes.txt --out tuned --full --epochs 2\n"
    "  mpirun -n 4 trunnion finetune -m model.gguf --data qa.jsonl --out adapter\n"
    "  trunnion generate -m model.gguf --lora adapter --chat -p 'Hello'\n";

static int run_finetune(int argc, char **argv);

const cli_command cli_finetune = {
    .name = "finetune",
    .summary = "fine-tune a language model on your texts",
    .usage = "finetune -m MODEL --data FILE --out DIR [options]",
    .help = help_text,
    .accepts = CLI_ALL,
    .run = run_finetune,
};

/* ---- options ----------------------------------------------------------------------------------------------------- */

typedef struct order {
    cli_options common;
    const char *model, *data, *out, *targets, *validation, *log, *report, *tensorboard, *schedule, *amp;
    int64_t rank, epochs, steps, batch, accumulate, context, save_every, warmup; /* 0: not given; warmup: -1 */
    double alpha, lr, decay, clip;                                               /* alpha, lr: 0: not given */
    int64_t memory;                                                              /* bytes; 0: no limit */
    int64_t parts;                                                               /* of a step; 0: not given */
    bool full, resume;
} order;

/* ---- a run ------------------------------------------------------------------------------------------------------- */

typedef struct tuning {
    const order *asked;
    tn_group *group; /* of the processes that share the steps */
    tn_device *device;
    tn_selection selection;
    tn_llm_facts facts;
    vocabulary words;
    finetune_data data, other; /* other: of --validation FILE */
    int64_t *train, *held;     /* numbers of texts; held: of `other`, if it has texts */
    int64_t train_count, held_count;
    tn_batches batches; /* of the first step */
    tn_schedule schedule;
    int64_t first, step, last, tokens; /* step: steps that were noted */
    double loss, before, after;        /* before, after: of validation; NAN: not measured */
    double *curve, seconds;
    int64_t parameters;  /* trained numbers */
    int64_t memory_peak; /* bytes, with a limit */
    bool recomputes;     /* of the last step */
    double scale;        /* of the loss, at the end */
    int64_t skipped;     /* steps that overflowed */
    int64_t pass;
    bool shows;    /* the progress line */
    bool compared; /* what the model is before the first step was measured */
    bool stopped;  /* by a signal to a process, before the last step */
    bool made_out; /* the folder of the result did not exist */
    bool unlike;   /* the processes train different runs: all of them end, and an abort could cut their messages off */
    uint64_t model_hash;
    FILE *log;
    report report;
    cli_progress progress;
    tn_survive_report survived;
    char description[MOST_DESCRIPTION]; /* which run a checkpoint belongs to */
} tuning;

/* One device's share of a run. A thread that hangs keeps it, so a step writes only here. */
typedef struct share {
    tuning *t;
    tn_llm *model;
    tn_finetune *trainer;
    tn_finetune_example *batch;
    int64_t *numbers; /* of the batch's texts */
    tn_finetune_stats stats;
    double rate, seconds; /* of the last step */
    bool told;            /* a process was told to stop before the last step */
    bool repeats;         /* the step was made before, on another device */
    bool cut;             /* the last step ended between two passes, because the run was stopped */
    bool idle;            /* the last step was not computed, because the run was stopped before it */
    bool last;            /* no other device continues if this one fails */
} share;

static bool is_first_rank(const tuning *t) { return tn_group_rank(t->group) == 0; }

static tn_status join(const char *folder, const char *name, char out[CLI_PATH]) {
    if (snprintf(out, CLI_PATH, "%s/%s", folder, name) < CLI_PATH) return TN_OK;
    return tn_backend_fail(TN_ERR_ARGUMENT, "the path '%.80s…/%s' is too long", folder, name);
}

/* Where --full saves: the model's kind of file. `path` may hold it. */
static tn_status result_path(const order *o, char path[CLI_PATH], const char **out) {
    *out = o->out;
    if (cli_is_folder(o->model)) return TN_OK;
    *out = path;
    return join(o->out, MERGED, path);
}

/* Nobody should learn after the training that the result cannot be saved. */
static tn_status check_result(const share *s) {
    char path[CLI_PATH];
    const char *to;
    TRY(result_path(s->t->asked, path, &to));
    return tn_llm_can_save_model(s->model, to);
}

/* A refused run leaves no folder. */
static tn_status make_out(tuning *t) {
    const char *out = t->asked->out;
    if (!is_first_rank(t)) return TN_OK;
    t->made_out = mkdir(out, 0777) == 0;
    if (t->made_out || errno == EEXIST) return TN_OK;
    return tn_backend_fail(TN_ERR_IO, "cannot make the folder '%s': %s", out, strerror(errno));
}

/* The folder of the result, before anything is read. */
static tn_status check_out(const order *o) {
    char path[CLI_PATH];
    if (access(o->out, F_OK) != 0 && !o->resume) return TN_OK;
    if (access(o->out, F_OK) != 0)
        return tn_backend_fail(TN_ERR_IO, "'%s' is not there, so it has no %s to resume from", o->out, CHECKPOINT);
    if (!cli_is_folder(o->out) || access(o->out, W_OK | X_OK) != 0)
        return tn_backend_fail(TN_ERR_IO, "'%s' is not a folder that can be written to; pass another --out", o->out);
    TRY(join(o->out, CHECKPOINT, path));
    bool there = access(path, F_OK) == 0;
    if (there && !o->resume)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "'%s' has the checkpoint of a run; pass --resume to go on with it, or "
                               "another --out",
                               o->out);
    if (!there && o->resume) return tn_backend_fail(TN_ERR_IO, "'%s' has no %s to resume from", o->out, CHECKPOINT);
    return TN_OK;
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

/* A share of the data is held out: the texts that come first in an order of its own. */
static tn_status split_texts(tuning *t, double held_share) {
    int64_t n = t->data.count, held = held_share > 0 ? (int64_t)ceil(held_share * (double)n) : 0;
    if (held >= n)
        return tn_backend_fail(TN_ERR_ARGUMENT, "'%s' has %lld texts, and --validation leaves none to learn from",
                               t->asked->data, (long long)n);
    tn_batches all = TN_BATCHES_DEFAULTS;
    all.count = all.batch = n;
    all.seed = t->asked->common.seed + 0x5EED;
    all.shuffle = held > 0;
    t->train = malloc((size_t)n * sizeof *t->train);
    t->held = malloc((size_t)n * sizeof *t->held);
    if (!t->train || !t->held) return tn_backend_fail(TN_ERR_MEMORY, "out of memory");
    if (tn_batches_next(&all, t->held) != n) return TN_ERR_ARGUMENT;
    t->held_count = held;
    t->train_count = n - held;
    memcpy(t->train, t->held + held, (size_t)t->train_count * sizeof *t->train);
    return TN_OK;
}

static tn_status read_texts(tuning *t, const tn_llm_facts *facts) {
    const order *o = t->asked;
    double held_share = 0;
    bool file = o->validation && !cli_parse_real(o->validation, 0, 1, &held_share);
    char *end = NULL;
    if (file) (void)strtod(o->validation, &end);
    if (file && !*end && access(o->validation, F_OK) != 0) /* a number out of range, and no file of that name */
        return tn_backend_fail(TN_ERR_ARGUMENT, "--validation %s: it must be a file or a number from 0 to 1",
                               o->validation);
    TRY(vocabulary_open(&t->words, o->model, facts));
    TRY(finetune_data_read(&t->data, o->data, &t->words, facts->context));
    TRY(split_texts(t, held_share));
    if (!file) return TN_OK;
    t->held_count = 0;
    TRY(finetune_data_read(&t->other, o->validation, &t->words, facts->context));
    t->held_count = t->other.count;
    return TN_OK;
}

static tn_finetune_example held_text(const tuning *t, int64_t i) {
    return t->other.count > 0 ? finetune_data_at(&t->other, i) : finetune_data_at(&t->data, t->held[i]);
}

/* ---- setting up -------------------------------------------------------------------------------------------------- */

static int64_t default_warmup(int64_t steps) { return (steps * 3 + 99) / 100; }

static tn_status plan_steps(tuning *t) {
    const order *o = t->asked;
    t->batches = (tn_batches)TN_BATCHES_DEFAULTS;
    t->batches.count = t->train_count;
    t->batches.batch = o->batch * o->accumulate;
    t->batches.seed = o->common.seed;
    int64_t each = tn_batches_per_epoch(&t->batches);
    if (each == 0) return TN_ERR_ARGUMENT;
    t->last = o->steps ? o->steps : (o->epochs ? o->epochs : 1) * each;
    t->schedule = (tn_schedule)TN_SCHEDULE_DEFAULTS;
    t->schedule.kind = !strcmp(o->schedule, "cosine")   ? TN_SCHEDULE_COSINE
                       : !strcmp(o->schedule, "linear") ? TN_SCHEDULE_LINEAR
                                                        : TN_SCHEDULE_CONSTANT;
    t->schedule.lr = o->lr > 0 ? o->lr : o->full ? 2e-5 : 2e-4;
    t->schedule.warmup = o->warmup >= 0 ? o->warmup : default_warmup(t->last);
    t->schedule.total = t->last;
    t->curve = calloc((size_t)t->last, sizeof *t->curve);
    return t->curve ? TN_OK : tn_backend_fail(TN_ERR_MEMORY, "out of memory");
}

/* FNV-1a over a file's size and samples of its bytes; 0 if it cannot be read. */
static uint64_t sampled_hash(const char *path) {
    enum { SAMPLES = 64, BYTES = 1024 };
    unsigned char data[BYTES];
    struct stat s;
    FILE *f = fopen(path, "rb");
    if (!f || fstat(fileno(f), &s) != 0) {
        if (f) fclose(f);
        return 0;
    }
    uint64_t hash = 0xCBF29CE484222325u ^ (uint64_t)s.st_size;
    for (int64_t i = 0; i < SAMPLES && fseeko(f, (off_t)((int64_t)s.st_size / SAMPLES * i), SEEK_SET) == 0; i++) {
        size_t size = fread(data, 1, BYTES, f);
        for (size_t k = 0; k < size; k++)
            hash = (hash ^ data[k]) * 0x100000001B3u;
    }
    fclose(f);
    return hash;
}

/* Tells models apart by their weights, wherever they are. */
static uint64_t hash_model(const char *model) {
    static const char ending[] = ".safetensors";
    char path[CLI_PATH];
    uint64_t hash = 0;
    DIR *d = cli_is_folder(model) ? opendir(model) : NULL;
    if (!d) return sampled_hash(model);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        size_t length = strlen(e->d_name), size = sizeof ending - 1;
        bool weights = length > size && strcmp(e->d_name + length - size, ending) == 0;
        if (!weights || strcmp(e->d_name, CHECKPOINT) == 0) continue;
        if (join(model, e->d_name, path) == TN_OK) hash += sampled_hash(path); /* in any order */
    }
    closedir(d);
    return hash;
}

static int parts_of(const tuning *t) { return t->asked->parts ? (int)t->asked->parts : tn_group_size(t->group); }

static void describe(tuning *t) {
    const order *o = t->asked;
    char parts[32] = "", amp[32] = "";
    if (parts_of(t) > 1) snprintf(parts, sizeof parts, "\"parts\": %d, ", parts_of(t));
    if (o->amp) snprintf(amp, sizeof amp, "\"amp\": \"%s\", ", o->amp);
    t->model_hash = hash_model(o->model);
    snprintf(
        t->description, sizeof t->description,
        "{\"finetune\": \"%016llx\", \"rank\": %lld, \"alpha\": %.9g, \"targets\": \"%.80s\", \"lr\": %.9g, "
        "\"schedule\": \"%s\", \"warmup\": %lld, \"decay\": %.9g, \"clip\": %.9g, \"steps\": %lld, \"batch\": %lld, "
        "\"context\": %lld, \"texts\": %lld, \"held\": %lld, \"validation\": \"%016llx\", \"model\": \"%016llx\", "
        "%s%s\"seed\": %llu}",
        (unsigned long long)t->data.hash, (long long)o->rank, o->alpha, o->targets ? o->targets : "all", t->schedule.lr,
        o->schedule, (long long)t->schedule.warmup, o->decay, o->clip, (long long)t->last, (long long)t->batches.batch,
        (long long)o->context, (long long)t->train_count, (long long)t->held_count, (unsigned long long)t->other.hash,
        (unsigned long long)t->model_hash, parts, amp, (unsigned long long)o->common.seed);
}

static tn_checkpoint checkpoint_of(const share *s) {
    tn_checkpoint c = TN_CHECKPOINT_DEFAULTS;
    c.json = s->t->description;
    c.model = tn_finetune_module(s->trainer);
    c.optimizer = tn_finetune_optimizer(s->trainer);
    return c;
}

static tn_status save_checkpoint(const share *s, int64_t step) {
    char path[CLI_PATH];
    tn_checkpoint c = checkpoint_of(s);
    if (!is_first_rank(s->t)) return TN_OK;
    c.step = step;
    TRY(join(s->t->asked->out, CHECKPOINT, path));
    return tn_checkpoint_save(path, &c);
}

static tn_status load_checkpoint(const share *s) {
    char path[CLI_PATH];
    const tuning *t = s->t;
    tn_checkpoint c = checkpoint_of(s);
    TRY(join(t->asked->out, CHECKPOINT, path));
    TRY(tn_checkpoint_load(path, &c));
    bool same = c.step == t->first && c.loaded_json && strcmp(c.loaded_json, t->description) == 0;
    tn_text_free(c.loaded_json);
    if (same) return TN_OK;
    return tn_backend_fail(TN_ERR_STATE, "'%s' was replaced by another program during this run", path);
}

/* Steps that are made again on a further device must reach the one that was noted last. */
static bool is_stopped(void *ctx) {
    share *s = ctx;
    s->cut = cli_stopped() && !s->repeats;
    return s->cut;
}

static tn_status open_trainer(share *s, tn_device *device) {
    const tuning *t = s->t;
    const order *o = t->asked;
    tn_llm_options model = TN_LLM_DEFAULTS;
    tn_finetune_options f = TN_FINETUNE_DEFAULTS;
    model.context = o->context;
    model.device = device;
    f.rank = o->full ? 0 : o->rank;
    f.alpha = o->alpha;
    f.targets = o->targets;
    f.adam.lr = t->schedule.lr;
    f.adam.weight_decay = o->decay;
    f.adam.max_grad_norm = o->clip;
    f.save_memory = o->memory > 0;
    f.group = t->group;
    f.parts = parts_of(t);
    if (tn_group_size(t->group) == 1) f.stop = is_stopped;
    f.stop_ctx = s;
    if (o->amp) f.amp = !strcmp(o->amp, "f16") ? TN_F16 : TN_BF16;
    tn_manual_seed(o->common.seed);
    s->batch = calloc((size_t)t->batches.batch, sizeof *s->batch);
    s->numbers = calloc((size_t)t->batches.batch, sizeof *s->numbers);
    if (!s->batch || !s->numbers) return tn_backend_fail(TN_ERR_MEMORY, "out of memory");
    TRY(tn_llm_open(o->model, &model, &s->model));
    return tn_finetune_new(s->model, &f, &s->trainer);
}

/* With --resume: sets the first step to the checkpoint's, if the checkpoint is one of this run. */
static tn_status find_first(tuning *t) {
    char path[CLI_PATH];
    tn_safetensors *file;
    if (!t->asked->resume) return TN_OK;
    tn_status status = join(t->asked->out, CHECKPOINT, path);
    if (status == TN_OK) status = tn_safetensors_open(path, &file);
    if (status != TN_OK) return status;
    const char *run = tn_safetensors_metadata(file, "json"), *step = tn_safetensors_metadata(file, "step");
    int64_t made = step ? strtoll(step, NULL, 10) : 0;
    if (!run || strcmp(run, t->description) != 0)
        status =
            tn_backend_fail(TN_ERR_ARGUMENT, "'%s' belongs to another run: %s, not %s; use the options of that run",
                            path, run ? run : "unknown", t->description);
    else if (made < 0 || made > t->last)
        status = tn_backend_fail(TN_ERR_FORMAT, "'%s' has made %lld of %lld steps", path, (long long)made,
                                 (long long)t->last);
    tn_safetensors_close(file);
    if (status == TN_OK) t->first = t->step = made;
    return status;
}

/* All processes must train the same model on the same texts. */
static tn_status compare_ranks(tuning *t) {
    char text[MOST_DESCRIPTION + 64];
    snprintf(text, sizeof text, "%s from step %lld", t->description, (long long)t->first);
    tn_status status = train_compare(t->group, text);
    t->unlike = status == TN_ERR_STATE;
    return status;
}

/* Everything that needs no device. */
static tn_status set_up_tuning(tuning *t) {
    const order *o = t->asked;
    tn_llm_options model = TN_LLM_DEFAULTS;
    model.context = o->context;
    cli_return_memory();
    TRY(is_first_rank(t) ? check_out(o) : TN_OK);
    TRY(tn_llm_inspect_path(o->model, &model, &t->facts));
    TRY(read_texts(t, &t->facts));
    TRY(plan_steps(t));
    describe(t);
    TRY(find_first(t));
    return compare_ranks(t);
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */

/* The loss of some held-out texts. */
typedef struct partial {
    double sum, predicted;
} partial;

/* Measures this process's share: batch k belongs to process k modulo their number. */
static tn_status validate_own(const share *s, partial *own) {
    const tuning *t = s->t;
    tn_finetune_example some[VALIDATION_BATCH];
    int64_t size = tn_group_size(t->group), first = tn_group_rank(t->group);
    for (int64_t k = first; k * VALIDATION_BATCH < t->held_count; k += size) {
        tn_finetune_stats stats = {.struct_size = sizeof stats};
        int64_t at = k * VALIDATION_BATCH, n = t->held_count - at;
        if (n > VALIDATION_BATCH) n = VALIDATION_BATCH;
        for (int64_t i = 0; i < n; i++)
            some[i] = held_text(t, at + i);
        tn_status status = tn_finetune_evaluate(s->trainer, some, n, &stats);
        if (status != TN_OK && !s->cut) return status;
        if (size == 1 && cli_stopped()) return TN_OK;
        own[k] = (partial){stats.loss * (double)stats.predicted, (double)stats.predicted};
    }
    return TN_OK;
}

/* The mean over all predicted tokens, of all processes; NAN without texts, or when stopped. */
static tn_status validate(const share *s, double *out) {
    const tuning *t = s->t;
    int64_t size = tn_group_size(t->group), batches = (t->held_count + VALIDATION_BATCH - 1) / VALIDATION_BATCH;
    *out = NAN;
    if (batches == 0) return TN_OK;
    AUTO_CLI_FREE partial *own = calloc((size_t)batches, sizeof *own);
    AUTO_CLI_FREE partial *all = calloc((size_t)(batches * size), sizeof *all);
    if (!own || !all) return tn_backend_fail(TN_ERR_MEMORY, "out of memory");
    TRY(validate_own(s, own));
    TRY(tn_group_all_gather(t->group, own, (size_t)batches * sizeof *own, all));
    partial total = {0, 0};
    for (int64_t k = 0; k < batches; k++) {
        const partial *of = &all[k % size * batches + k];
        total = (partial){total.sum + of->sum, total.predicted + of->predicted};
    }
    bool cut = size == 1 && cli_stopped();
    if (!cut && total.predicted > 0) *out = total.sum / total.predicted;
    return TN_OK;
}

static int32_t best_of(const float *logits, int64_t count) {
    int64_t best = 0;
    for (int64_t i = 1; i < count; i++)
        if (logits[i] > logits[best]) best = i;
    return (int32_t)best;
}

/* How the model answers the first text's prompt now, greedily: for the report. Left empty without a report. */
static tn_status make_sample(const share *s, tn_bytes *text) {
    const tuning *t = s->t;
    if (!report_wants_samples(&t->report)) return TN_OK;
    tn_finetune_example e = t->held_count > 0 ? held_text(t, 0) : finetune_data_at(&t->data, t->train[0]);
    int64_t count = 1;
    while (count < e.count - 1 && !e.answer[count])
        count++;
    if (count + SAMPLE_TOKENS > t->facts.context) return TN_OK;
    AUTO_IDS tn_ids ids = {0};
    const float *logits = NULL;
    TRY(tn_llm_rewind(s->model, 0));
    for (int64_t i = 0; i < count; i++)
        TRY(tn_ids_append(&ids, e.ids[i]));
    TRY(tn_llm_prompt(s->model, ids.data, count, &logits));
    for (int i = 0; i < SAMPLE_TOKENS && !cli_stopped(); i++) {
        int32_t id = best_of(logits, t->facts.vocabulary);
        TRY(tn_ids_append(&ids, id));
        if (tn_tokenizer_ends(t->words.tokenizer, id) || tn_llm_ends(s->model, id)) break;
        if (i + 1 < SAMPLE_TOKENS) TRY(tn_llm_step(s->model, id, &logits));
    }
    TRY(tn_tokenizer_decode(t->words.tokenizer, ids.data, ids.count, TN_DECODE_SPECIAL, text));
    return tn_bytes_append(text, "", 1);
}

/* What is measured between steps. It is computed completely before any of it is noted, because the device may fail,
 * and then the next one measures again. */
typedef struct measured {
    double validation;
    tn_bytes sample;
} measured;

static tn_status measure(const share *s, measured *m) {
    tn_status status = validate(s, &m->validation);
    return status == TN_OK && !cli_stopped() ? make_sample(s, &m->sample) : status;
}

static bool log_tuning(const tuning *t, const report_point *p) {
    if (!t->log) return true;
    cli_json j = {.out = t->log};
    cli_json_write(&j, "{'step': %jd", p->step);
    if (isfinite(p->loss)) cli_json_write(&j, "'loss': %g", p->loss);
    if (isfinite(p->validation)) cli_json_write(&j, "'validation_loss': %g", p->validation);
    if (isfinite(p->rate)) cli_json_write(&j, "'learning_rate': %g", p->rate);
    if (isfinite(p->norm)) cli_json_write(&j, "'gradient_norm': %g", p->norm);
    if (isfinite(p->speed)) cli_json_write(&j, "'tokens_per_second': %g", p->speed);
    cli_json_write(&j, "}");
    return fflush(t->log) == 0;
}

static tn_status note_point(tuning *t, const report_point *p) {
    if (!log_tuning(t, p)) return tn_backend_fail(TN_ERR_IO, "writing '%s': %s", t->asked->log, strerror(errno));
    return report_add(&t->report, p);
}

/* Takes over m; *out: where its validation loss belongs. */
static tn_status note_measured(tuning *t, measured *m, double *out) {
    const report_point p = {t->step, NAN, m->validation, NAN, NAN, NAN, NAN};
    *out = m->validation;
    tn_status status = isfinite(*out) ? note_point(t, &p) : TN_OK;
    if (status == TN_OK && m->sample.size > 0) {
        cli_whole_characters(m->sample.data, m->sample.size - 1);
        status = report_sample(&t->report, t->step, m->sample.data);
    }
    return status;
}

/* ---- training on one device (survive.h) -------------------------------------------------------------------------- */

static void begin_report(tuning *t) {
    const order *o = t->asked;
    const tn_llm_facts *facts = &t->facts;
    report *r = &t->report;
    *r = (report){.path = o->report, .title = "trunnion finetune", .speed_unit = "tokens a second"};
    report_fact(r, "model", "%s (%s, %lld weights)", o->model, facts->architecture, (long long)facts->parameters);
    report_fact(r, "data", "%s: %lld texts, %lld held out", o->data, (long long)t->train_count,
                (long long)t->held_count);
    report_fact(r, "trained", "%lld numbers, %s", (long long)t->parameters, o->full ? "all weights" : "LoRA");
    report_fact(r, "device", "%s", t->selection.chosen);
    report_fact(r, "steps", "%lld of %lld texts, context %lld", (long long)t->last, (long long)t->batches.batch,
                (long long)o->context);
    report_fact(r, "seed", "%llu", (unsigned long long)o->common.seed);
}

/* Once in a run: what the result looks like, and how good the model is before. */
static tn_status begin_tuning(share *s) {
    tuning *t = s->t;
    t->parameters = tn_finetune_parameter_count(s->trainer);
    if (t->asked->full) {
        TRY(check_result(s));
    }
    const char *log = t->asked->log;
    if (log && !(t->log = fopen(log, t->asked->resume ? "a" : "w")))
        return tn_backend_fail(TN_ERR_IO, "cannot open the log '%s': %s", log, strerror(errno));
    begin_report(t);
    TRY(report_open_events(&t->report, t->asked->tensorboard, t->first, t->asked->resume));
    cli_stop_begin();
    if (is_first_rank(t)) cli_progress_begin(&t->progress, "finetune", "steps", t->last - t->first);
    t->shows = true;
    return TN_OK;
}

static tn_status share_begin(void *ctx, tn_device *device, void **self) {
    tuning *t = ctx;
    share *s = calloc(1, sizeof *s);
    measured m = {.validation = NAN};
    *self = s;
    if (!s) return tn_backend_fail(TN_ERR_MEMORY, "out of memory");
    s->t = t;
    tn_device_info info = {.struct_size = sizeof info};
    tn_status status = tn_device_get_info(device, &info);
    s->last =
        t->asked->common.strict || t->asked->memory || tn_group_size(t->group) > 1 || strcmp(info.backend, "cpu") == 0;
    if (t->asked->memory) (void)tn_device_set_pool_max(device, (size_t)t->asked->memory);
    if (status == TN_OK) status = open_trainer(s, device);
    /* After the first step a further device gets tn_survive's copy; the checkpoint may be a later one of this run. */
    if (status == TN_OK && t->asked->resume && t->step == t->first) status = load_checkpoint(s);
    if (status == TN_OK && !t->shows) status = begin_tuning(s);
    if (status != TN_OK || t->compared) return status;
    status = measure(s, &m);
    t->compared = status == TN_OK;
    if (t->compared) status = note_measured(t, &m, &t->before);
    tn_bytes_free(&m.sample);
    return status;
}

/* If the training, its log or the saving of the result fails, and no other device continues, a checkpoint keeps the
 * steps so far. Returns that failure. */
static tn_status keep_steps(const share *s, tn_status status, int64_t step) {
    char why[TN_REASON_BYTES];
    if (status == TN_OK || step == 0 || (cli_moves_on(status) && !s->last)) return status;
    snprintf(why, sizeof why, "%s", tn_error());
    bool kept = save_checkpoint(s, step) == TN_OK;
    return tn_backend_fail(status, "%s%s", why, kept ? "; a checkpoint is in --out: pass --resume to go on" : "");
}

/* The texts of a step follow from its number. */
static int64_t take_batch(share *s, int64_t step) {
    const tuning *t = s->t;
    tn_batches batches = t->batches;
    int64_t each = tn_batches_per_epoch(&batches);
    batches.epoch = step / each;
    batches.next = step % each;
    int64_t count = tn_batches_next(&batches, s->numbers);
    for (int64_t i = 0; i < count; i++)
        s->batch[i] = finetune_data_at(&t->data, t->train[s->numbers[i]]);
    return count;
}

static tn_status share_step(void *self, int64_t step, TN_UNUSED int64_t *made) {
    share *s = self;
    const tuning *t = s->t;
    TRY(train_any_stopped(t->group, &s->told));
    s->idle = s->told && step >= t->step; /* what was noted is made again on a further device */
    if (s->idle) return TN_OK;
    s->repeats = step < t->step;
    s->cut = false;
    double begun = cli_now();
    s->stats = (tn_finetune_stats){.struct_size = sizeof s->stats};
    s->rate = tn_schedule_at(&t->schedule, step);
    tn_status status = tn_optimizer_set_lr(tn_finetune_optimizer(s->trainer), s->rate);
    if (status == TN_OK) status = tn_finetune_step(s->trainer, s->batch, take_batch(s, step), &s->stats);
    s->seconds = cli_now() - begun;
    s->idle = s->cut; /* not if a signal arrived in a step that failed by itself */
    if (s->idle) return TN_OK;
    return keep_steps(s, status, step);
}

static tn_status note_step(tuning *t, const share *s) {
    double speed = (double)s->stats.tokens / s->seconds;
    const report_point p = {t->step + 1, s->stats.loss,           NAN, s->rate, s->stats.grad_norm,
                            speed,       (double)cli_peak_bytes()};
    t->seconds += s->seconds;
    t->tokens += s->stats.tokens;
    t->loss = s->stats.loss;
    t->recomputes = s->stats.recomputes;
    t->pass = s->stats.pass;
    t->curve[t->step++ - t->first] = s->stats.loss;
    return note_point(t, &p);
}

static void show_step(tuning *t, const share *s) {
    char text[128], best[40] = "";
    if (!is_first_rank(t)) return;
    if (isfinite(t->after)) snprintf(best, sizeof best, "  validation %.4g", t->after);
    snprintf(text, sizeof text, "loss %.4g%s  %.0f tokens/s", t->loss, best, (double)s->stats.tokens / s->seconds);
    cli_progress_update(&t->progress, t->step - t->first, text);
}

static tn_status share_stepped(void *ctx, void *self, int64_t step, bool *stop) {
    tuning *t = ctx;
    const share *s = self;
    *stop = true;
    if (s->idle) return TN_OK;
    measured m = {.validation = NAN};
    bool ends = step % tn_batches_per_epoch(&t->batches) == 0 || step == t->last;
    bool saves = t->asked->save_every && step % t->asked->save_every == 0 && step < t->last;
    tn_status status = ends ? measure(s, &m) : TN_OK;
    if (status == TN_OK && saves) status = save_checkpoint(s, step);
    if (status == TN_OK) status = note_step(t, s);
    if (status == TN_OK && ends) status = note_measured(t, &m, &t->after);
    tn_bytes_free(&m.sample);
    show_step(t, s);
    *stop = tn_group_size(t->group) == 1 && cli_stopped(); /* several processes ask each other before a step */
    return keep_steps(s, status, step);
}

static tn_status share_state(void *self, tn_checkpoint *c) {
    *c = checkpoint_of(self);
    return TN_OK;
}

static tn_status save_result(const share *s) {
    char path[CLI_PATH];
    const char *to;
    const tuning *t = s->t;
    const order *o = t->asked;
    if (!is_first_rank(t)) return TN_OK;
    if (t->stopped) return save_checkpoint(s, t->step);
    if (!o->full) return tn_finetune_save_adapter(s->trainer, o->out, NULL);
    TRY(result_path(o, path, &to));
    return tn_llm_save_model(s->model, to);
}

/* The result is saved without the limit. */
static void lift_limit(tuning *t) {
    tn_pool_stats s = {.struct_size = sizeof s};
    if (tn_device_get_pool_stats(t->device, &s) == TN_OK) t->memory_peak = s.peak_bytes;
    (void)tn_device_set_pool_max(t->device, 0);
}

static tn_status share_finish(void *ctx, void *self) {
    tuning *t = ctx;
    if (t->asked->memory) lift_limit(t);
    const share *s = self;
    t->stopped = (s->told || (tn_group_size(t->group) == 1 && cli_stopped())) && t->step < t->last;
    t->scale = tn_optimizer_loss_scale(tn_finetune_optimizer(s->trainer));
    t->skipped = tn_optimizer_skipped_steps(tn_finetune_optimizer(s->trainer));
    if (t->first == t->last) t->after = t->before; /* resumed only for the result */
    tn_status status = save_result(self);
    return t->stopped ? status : keep_steps(self, status, t->step);
}

static void share_end(void *self) {
    share *s = self;
    if (!s) return;
    tn_finetune_free(s->trainer);
    tn_llm_close(s->model);
    free(s->batch);
    free(s->numbers);
    free(s);
}

/* A step, on a device that computes nothing, and what is measured before it. */
static tn_status plan_tuning(void *ctx, tn_device *dry) {
    enum { STEPS = 2 }; /* the second one finds the optimizer's state */
    tuning *t = ctx;
    share *s = calloc(1, sizeof *s);
    double loss;
    if (!s) return tn_backend_fail(TN_ERR_MEMORY, "out of memory");
    s->t = t;
    tn_status status = open_trainer(s, dry);
    if (status == TN_OK) status = validate(s, &loss);
    for (int64_t step = t->first; status == TN_OK && step < t->first + STEPS && step < t->last; step++) {
        s->stats = (tn_finetune_stats){.struct_size = sizeof s->stats};
        status = tn_finetune_step(s->trainer, s->batch, take_batch(s, step), &s->stats);
    }
    share_end(s);
    return status;
}

/* Refuses a training that will not fit, before the model is loaded. */
static tn_status check_fit(tuning *t) {
    const order *o = t->asked;
    if (!o->memory || tn_group_size(t->group) > 1) return TN_OK;
    return cli_check_training(t->device, &o->common, o->memory, plan_tuning, t);
}

static tn_status train_tuning(tuning *t) {
    tn_survivor work = TN_SURVIVOR_DEFAULTS;
    tn_survive_options o = TN_SURVIVE_DEFAULTS;
    char chosen[sizeof t->selection.chosen];
    work.begin = share_begin;
    work.step = share_step;
    work.stepped = share_stepped;
    work.state = share_state;
    work.finish = share_finish;
    work.end = share_end;
    o.first = t->first;
    o.last = t->last;
    bool alone = tn_group_size(t->group) == 1, stays = t->asked->common.strict || t->asked->memory || !alone;
    tn_device_options how = cli_device_options(&t->asked->common);
    o.device = &how;
    o.fallback = stays ? TN_FALLBACK_STRICT : TN_FALLBACK_WARN;
    bool cpu = strcmp(t->selection.chosen, "cpu") == 0;
    o.time_limit = cpu || !alone ? 0 : 2 * how.time_limit; /* waits end first */
    snprintf(chosen, sizeof chosen, "%s", t->selection.chosen);
    const char *name = chosen;
    t->survived.struct_size = sizeof t->survived;
    tn_status status = tn_survive(&work, t, &name, 1, &o, &t->survived);
    if (t->shows && is_first_rank(t)) cli_progress_end(&t->progress);
    if (status == TN_OK) snprintf(t->selection.chosen, sizeof t->selection.chosen, "%s", t->survived.ran);
    return status;
}

/* ---- the result -------------------------------------------------------------------------------------------------- */

/* A finished run has nothing to resume: removes its checkpoint. */
static void remove_checkpoint(const tuning *t) {
    char path[CLI_PATH];
    if (!t->stopped && is_first_rank(t) && join(t->asked->out, CHECKPOINT, path) == TN_OK) (void)unlink(path);
}

static double speed_of(const tuning *t) { return t->seconds > 0 ? (double)t->tokens / t->seconds : 0; }

static void put_json_finetune(const tuning *t) {
    cli_json j = {.out = stdout};
    cli_json_write(&j,
                   "{'loss': %g, 'validation_loss_before': %g, 'validation_loss': %g, 'steps': %jd, 'tokens': %jd, "
                   "'tokens_per_second': %g, 'trained_parameters': %jd, 'texts': %jd, 'texts_cut': %jd, "
                   "'texts_left_out': %jd, 'out': %s, 'peak_bytes': %jd, 'device': %s",
                   t->loss, t->before, t->after, t->step, t->tokens, speed_of(t), t->parameters, t->train_count,
                   t->data.truncated, t->data.left_out, t->asked->out, cli_peak_bytes(), t->selection.chosen);
    cli_json_fallback(&j, &t->selection, t->device);
    cli_json_write(&j, "'seed': %ju, 'interrupted': %i", t->asked->common.seed, t->stopped);
    cli_json_survived(&j, &t->survived);
    if (t->asked->amp)
        cli_json_write(&j, "'amp': %s, 'loss_scale': %g, 'skipped_steps': %jd", t->asked->amp, t->scale, t->skipped);
    if (tn_group_size(t->group) > 1)
        cli_json_write(&j, "'processes': %d, 'group': %s", tn_group_size(t->group), tn_group_library(t->group));
    if (t->asked->memory)
        cli_json_write(&j, "'memory_limit': %jd, 'memory_peak': %jd, 'recomputes': %i, 'pass_tokens': %jd",
                       t->asked->memory, t->memory_peak, t->recomputes, t->pass);
    cli_json_write(&j, "}");
}

static void put_text_finetune(const tuning *t) {
    const order *o = t->asked;
    int64_t made = t->step - t->first;
    if (made > 1) cli_plot(stdout, "loss", "steps", t->curve, (int)made, PLOT_ROWS);
    cli_print(stdout, "%lld steps on %lld texts, %lld trained numbers, %.0f tokens/s, loss %.4g\n", (long long)made,
              (long long)t->train_count, (long long)t->parameters, speed_of(t), t->loss);
    if (o->amp)
        cli_print(stdout, "mixed precision with %s: loss scale %g, %lld steps skipped\n", o->amp, t->scale,
                  (long long)t->skipped);
    if (isfinite(t->after)) cli_print(stdout, "validation loss: %.4g before, %.4g after\n", t->before, t->after);
    if (t->data.truncated || t->data.left_out)
        cli_print(stdout, "%lld texts were cut to the context, %lld left out without an answer\n",
                  (long long)t->data.truncated, (long long)t->data.left_out);
    if (o->memory)
        cli_print(stdout, "memory of the device: %.1f of %.1f MiB%s, passes of at most %lld tokens\n",
                  (double)t->memory_peak / 0x1p20, (double)o->memory / 0x1p20,
                  t->recomputes ? ", values are computed twice" : "", (long long)t->pass);
    if (t->stopped)
        cli_print(stdout, "saved: %s/%s (go on with --resume)\n", o->out, CHECKPOINT);
    else if (o->full)
        cli_print(stdout, "saved: %s%s%s\n", o->out, cli_is_folder(o->model) ? "" : "/",
                  cli_is_folder(o->model) ? "" : MERGED);
    else
        cli_print(stdout, "saved: %s (trunnion generate -m %s --lora %s)\n", o->out, o->model, o->out);
}

/* What was measured; a run without validation, or without a step, has less to tell. */
static void report_result(tuning *t) {
    char loss[40] = "", validation[96] = "";
    if (isfinite(t->loss)) snprintf(loss, sizeof loss, "loss %.5g, ", t->loss);
    if (isfinite(t->before) && isfinite(t->after))
        snprintf(validation, sizeof validation, "validation %.5g before, %.5g after, ", t->before, t->after);
    report_fact(&t->report, "result", "%s%s%.1f tokens/s", loss, validation, speed_of(t));
}

static int fail_tuning(tuning *t) {
    int code = cli_failed();
    report_failure(&t->report, tn_error());
    return code;
}

static int finish_tuning(tuning *t, tn_status status) {
    if (status == TN_OK) report_result(t);
    if (status == TN_OK) status = report_write(&t->report, true);
    cli_stop_end();
    if (status == TN_OK && t->log && fflush(t->log) != 0)
        status = tn_backend_fail(TN_ERR_IO, "writing '%s': %s", t->asked->log, strerror(errno));
    if (status != TN_OK) return fail_tuning(t);
    remove_checkpoint(t);
    if (t->stopped && is_first_rank(t))
        fprintf(stderr, "trunnion finetune: stopped by %s after %lld steps\n",
                cli_stopped() ? cli_stop_signal() : "a signal to another process", (long long)t->step);
    (t->asked->common.json ? put_json_finetune : put_text_finetune)(t);
    if (!t->stopped) return CLI_OK;
    return cli_stopped() ? cli_stop_status() : TRAIN_STOPPED_ELSEWHERE;
}

static void free_tuning(tuning *t) {
    vocabulary_close(&t->words);
    finetune_data_free(&t->data);
    finetune_data_free(&t->other);
    free(t->train);
    free(t->held);
    free(t->curve);
    report_free(&t->report);
    if (t->log) fclose(t->log);
    tn_group_close(t->group); /* which may use the device */
    tn_set_current_device(NULL);
    tn_device_close(t->device);
}

/* A process that fails ends the others, which would wait for it. */
static int tune_model(order *o) {
    tuning t = {.asked = o, .loss = NAN, .before = NAN, .after = NAN, .facts = {.struct_size = sizeof t.facts}};
    char own[64];
    if (tn_group_open(NULL, &t.group) != TN_OK) return cli_failed();
    int code = train_silence(t.group);
    if (tn_group_size(t.group) > 1) train_own_device(&o->common.device, own, sizeof own);
    if (!is_first_rank(&t)) o->log = o->report = o->tensorboard = NULL;
    if (code == CLI_OK) t.device = cli_choose_device(&o->common, &t.selection, &code);
    if (t.device)
        code = set_up_tuning(&t) == TN_OK && check_fit(&t) == TN_OK && make_out(&t) == TN_OK
                   ? finish_tuning(&t, train_tuning(&t))
                   : cli_failed();
    if (code != CLI_OK && t.made_out) (void)rmdir(o->out); /* fails if something is in it */
    if (code != CLI_OK && !t.stopped && !t.unlike) tn_group_abort(t.group, code);
    free_tuning(&t);
    return code;
}

static const char *conflict_in_order(const order *o) {
    if (!o->model) return "missing model: pass its GGUF file or folder with -m";
    if (!o->data) return "missing texts: pass a file with --data";
    if (!o->out) return "missing folder for the result: pass --out";
    if (o->full && (o->rank || o->alpha > 0 || o->targets)) return "--lora, --lora-alpha and --targets exclude --full";
    if (o->epochs && o->steps && !cli_fit_state.on)
        return "--epochs and --steps exclude each other; remove one of them";
    return NULL;
}

static const cli_option own_options[] = {
    CLI_NAME("model", 'm', order, model),
    CLI_NAME("data", 0, order, data),
    CLI_NAME("out", 0, order, out),
    CLI_INT("lora", 0, order, rank, 1, 1 << 16),
    CLI_REAL("lora-alpha", 0, order, alpha, 1e-6, 1e6),
    CLI_NAME("targets", 0, order, targets),
    CLI_FLAG("full", 0, order, full),
    CLI_REAL("lr", 0, order, lr, 1e-12, 10),
    CLI_ONE_OF("schedule", 0, order, schedule, "cosine|linear|constant"),
    CLI_INT("warmup", 0, order, warmup, 0, 1 << 30),
    CLI_REAL("weight-decay", 0, order, decay, 0, 10),
    CLI_REAL("clip", 0, order, clip, 1e-6, 1e9),
    CLI_INT("epochs", 0, order, epochs, 1, 1 << 30),
    CLI_INT("steps", 0, order, steps, 1, 1 << 30),
    CLI_INT("batch", 0, order, batch, 1, 4096),
    CLI_INT("accumulate", 0, order, accumulate, 1, 4096),
    CLI_INT("context", 0, order, context, 8, 1 << 20),
    CLI_NAME("validation", 0, order, validation),
    CLI_INT("save-every", 0, order, save_every, 1, 1 << 30),
    CLI_FLAG("resume", 0, order, resume),
    CLI_NAME("log", 0, order, log),
    CLI_NAME("report", 0, order, report),
    CLI_NAME("tensorboard", 0, order, tensorboard),
    CLI_BYTES("memory", 0, order, memory, 1, INT64_MAX),
    CLI_INT("parts", 0, order, parts, 1, 256),
    CLI_ONE_OF("amp", 0, order, amp, "f16|bf16"),
    {0},
};

static int run_finetune(int argc, char **argv) {
    order o = {.batch = 8, .accumulate = 1, .warmup = -1, .clip = 1, .schedule = "cosine"};
    int status;
    int at = cli_parse(&cli_finetune, argc, argv, &o.common, own_options, &o, &status);
    if (at < 0) return status;
    if (at < argc)
        return cli_wrong_usage(
            &cli_finetune, "unexpected argument \"%s\": pass the model with -m and the texts with --data", argv[at]);
    const char *wrong = conflict_in_order(&o);
    if (wrong) return cli_wrong_usage(&cli_finetune, "%s", wrong);
    char found[CLI_PATH];
    if (!cli_find_model(&o.model, found)) return CLI_FAILED;
    if (!o.full && !o.rank) o.rank = 8;
    if (!o.full && !(o.alpha > 0)) o.alpha = 2 * (double)o.rank;
    tn_llm_facts facts = {.struct_size = sizeof facts};
    if (!o.context && tn_llm_inspect_path(o.model, NULL, &facts) != TN_OK) return cli_failed();
    if (!o.context) o.context = facts.trained_context < DEFAULT_CONTEXT ? facts.trained_context : DEFAULT_CONTEXT;
    return tune_model(&o);
}
