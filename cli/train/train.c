/* train.c — `trunnion train`: runs a task, shows how it goes, saves and resumes, and tells the result.
 *
 * A run that is stopped (Ctrl-C, SIGTERM) and has --save is saved before it ends. A checkpoint holds, besides the
 * tensors, one line that says which run it belongs to; a checkpoint of another run is refused. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/train/report.h"
#include "cli/train/train.h"

enum { PLOT_ROWS = 8, PLOT_POINTS = 4096, DESCRIPTION_BYTES = 256 };

static const train_task *const tasks[] = {&train_digits, &train_cartpole, &train_chars};
enum { TASKS = sizeof tasks / sizeof tasks[0] };

static const char help_text[] =
    "tasks:\n"
    "  digits                classify handwritten digits of 8 by 8 pixels; metric: accuracy on a held-out fifth\n"
    "  chars                 a character-level transformer; metric: bits per character on a held-out tenth\n"
    "  cartpole              balance a pole on a cart with PPO; metric: mean return of 100 episodes (at most 500)\n"
    "\n"
    "options:\n"
    "  --steps N             a whole number; digits: batches of 64 (1000); chars: batches of 16 (500);\n"
    "                        cartpole: steps in the environment (100000)\n"
    "  --model mlp|cnn       digits: the network (mlp)\n"
    "  --policy mlp|lstm     cartpole: the policy (mlp)\n"
    "  --devices A,B         digits, chars: share each batch, as in cuda:0,cuda:1; the first holds the model\n"
    "  --parts N             digits, chars: parts per batch (default: one per device of each process); the bits of "
    "the\n"
    "                        results depend on the number of parts, not on the devices and processes\n"
    "  --zero 0|1|2|3        digits, chars: stage of ZeRO: what is divided among the processes: 1: optimizer state;\n"
    "                        2: gradients too; 3: parameters too (on the CPU, one part each); the bits of the results\n"
    "                        stay the same (0)\n"
    "  --tensor-parallel     chars: the processes divide the layers instead of the batches: each keeps a part of the\n"
    "                        heads and hidden features; a checkpoint fits any number of processes\n"
    "  --amp f16|bf16        digits, chars: mixed precision: products in f16 or bf16, weights and optimizer state in\n"
    "                        f32; f16 with a dynamic loss scale\n"
    "  --memory SIZE         digits, chars: the most memory of the device that training may take, as in 500M: values\n"
    "                        are computed twice, then batches are divided into parts; or the training is refused "
    "before\n"
    "                        loading, with what is missing. One device; a run within a limit does not change devices\n"
    "  --data FILE           digits: a table, 65 integers per line: 64 pixels from 0 to 16, then the digit;\n"
    "                        chars: the text (default: the help of some commands)\n"
    "  --save FILE           write a checkpoint at the end, or when stopped (Ctrl-C, SIGTERM)\n"
    "  --save-every N        also save after every N steps\n"
    "  --resume FILE         continue from a checkpoint; with the same options the result has the same bits as an\n"
    "                        uninterrupted run\n"
    "  --report FILE         an HTML page with charts, written while training\n"
    "  --tensorboard DIR     the same as an event file of TensorBoard in this folder\n"
    "  --log FILE            one JSON object per line for each step shown: step, loss; cartpole: mean return\n"
    "  --json                task, final_loss, steps, steps_per_second, metric, metric_name, device, devices[],\n"
    "                        fallback[], interrupted, stopped, seed, failed_devices[], recomputed_steps,\n"
    "                        state_copies, steps_between_copies, state_copy_seconds; with --memory: memory_limit,\n"
    "                        memory_peak, recomputes, parts; on several processes: processes, group, transport,\n"
    "                        device_library, optimizer_bytes, pool_peak_bytes; with --amp: amp,\n"
    "                        loss_scale, skipped_steps\n"
    "\n"
    "If the device is lost, out of memory or hangs, the run continues on the next one from a copy of its state in "
    "host\n"
    "memory, and a line says so. Copies take at most 2 % of the time. --strict turns this off; with --devices the "
    "first\n"
    "device is indispensable.\n"
    "\n"
    "digits and chars also train on several processes, started by mpirun (Open MPI, MPICH), torchrun or srun: each "
    "computes its parts\n"
    "of the batches; rank 0 prints, saves and writes log and events.\n"
    "\n"
    "examples:\n"
    "  trunnion train digits\n"
    "  trunnion train digits --model cnn --save digits.safetensors\n"
    "  trunnion train chars --devices cuda:0,cuda:1\n"
    "  mpirun -n 4 trunnion train chars --save chars.safetensors\n"
    "  trunnion train chars --data text.txt\n"
    "  trunnion train cartpole --policy lstm --seed 3 --json\n";

static int run_train(int argc, char **argv);

const cli_command cli_train = {
    .name = "train",
    .summary = "train a small network",
    .usage = "train digits|chars|cartpole [options]",
    .help = help_text,
    .accepts = CLI_ALL,
    .run = run_train,
};

/* ---- options ----------------------------------------------------------------------------------------------------- */

/* An option that was given and has no meaning for this task; NULL when there is none. */
static const char *foreign_option(const train_options *o, const train_task *task) {
    const struct {
        unsigned bit;
        const char *given, *name;
    } rows[] = {{TRAIN_TAKES_MODEL, o->model, "--model"},
                {TRAIN_TAKES_POLICY, o->policy, "--policy"},
                {TRAIN_TAKES_DEVICES, o->devices, "--devices"},
                {TRAIN_TAKES_DEVICES, o->parts ? "" : NULL, "--parts"},
                {TRAIN_TAKES_AMP, o->amp, "--amp"},
                {TRAIN_TAKES_DEVICES, o->zero ? "" : NULL, "--zero"},
                {TRAIN_TAKES_LAYERS, o->tensor_parallel ? "" : NULL, "--tensor-parallel"},
                {TRAIN_TAKES_DEVICES, o->memory ? "" : NULL, "--memory"},
                {TRAIN_TAKES_DATA, o->data, "--data"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].given && !(task->takes & rows[i].bit)) return rows[i].name;
    return NULL;
}

static const train_task *find_task(const char *name) {
    for (int i = 0; i < TASKS; i++)
        if (strcmp(tasks[i]->name, name) == 0) return tasks[i];
    return NULL;
}

tn_dtype train_amp_dtype(const train_options *o) {
    if (!o->amp) return TN_F32;
    return strcmp(o->amp, "f16") == 0 ? TN_F16 : TN_BF16;
}

tn_status train_amp_prepare(const train_options *o, tn_optimizer *optimizer) {
    return train_amp_dtype(o) == TN_F16 ? tn_optimizer_set_grad_scaler(optimizer, NULL) : TN_OK;
}

/* ---- a run ------------------------------------------------------------------------------------------------------- */

typedef struct run {
    int64_t optimizer_bytes; /* state of the optimizer that this process kept during the steps */
    const train_options *options;
    const train_task *task;
    void *self;
    char description[DESCRIPTION_BYTES]; /* which run a checkpoint belongs to */
    int64_t first, step, last;           /* steps made before, now, and at the end */
    double loss;
    double *curve; /* losses for the plot, every `stride` advances */
    int points;
    int64_t stride, advances;
    FILE *log;
    report report;
    bool stopped;           /* by a signal to this process or another one of its group */
    tn_selection selection; /* how the device was chosen */
    cli_progress progress;
    bool shows; /* the progress line is on */
    double latest, rate;
    int code;                   /* the exit status, once a message was written */
    tn_survive_report survived; /* which devices failed */
} run;

static void describe_training(run *r) {
    char own[128], amp[32] = "";
    r->task->describe(r->self, own, sizeof own);
    if (r->options->amp) snprintf(amp, sizeof amp, ", \"amp\": \"%s\"", r->options->amp);
    snprintf(r->description, sizeof r->description, "{\"task\": \"%s\", %s%s, \"seed\": %llu}", r->task->name, own, amp,
             (unsigned long long)r->options->common.seed);
}

static tn_checkpoint checkpoint_of(const run *r) {
    tn_checkpoint c = TN_CHECKPOINT_DEFAULTS;
    c.step = r->step;
    c.json = r->description;
    r->task->checkpoint(r->self, &c);
    return c;
}

static bool is_first_rank(const run *r) { return tn_group_rank(r->options->team->group) == 0; }

static tn_status write_checkpoint(const run *r) {
    if (!is_first_rank(r)) return TN_OK;
    TRY(r->task->before_save(r->self));
    tn_checkpoint c = checkpoint_of(r);
    return tn_checkpoint_save(r->options->save, &c);
}

static tn_status save_training(const run *r) {
    tn_checkpoint c = checkpoint_of(r);
    bool divided = r->options->team->divides;
    if (r->options->zero) TRY(tn_optimizer_gather(c.optimizer, 0));
    if (divided) TRY(tn_module_join(c.model, c.optimizer));
    tn_status saved = write_checkpoint(r);
    return divided && saved == TN_OK ? tn_module_split(c.model, c.optimizer) : saved;
}

/* All processes must train on the same data, from the same step. */
static tn_status compare_ranks(const run *r) {
    char text[DESCRIPTION_BYTES + 64];
    snprintf(text, sizeof text, "%s from step %lld", r->description, (long long)r->first);
    return train_compare(r->options->team->group, text);
}

/* Looks whose checkpoint it is before anything is loaded. 0, or the exit status after a message. */
static int check_belongs(const run *r) {
    tn_safetensors *file = NULL;
    const char *kind = cli_file_kind(r->options->resume);
    if (kind && strcmp(kind, "a safetensors file") != 0)
        return cli_fail(TN_ERR_FORMAT,
                        "'%s' is not a checkpoint: it looks like %s; --resume requires a file that --save "
                        "wrote",
                        r->options->resume, kind);
    if (tn_safetensors_open(r->options->resume, &file) != TN_OK) return cli_failed();
    const char *whose = tn_safetensors_metadata(file, "json");
    bool same = whose && strcmp(whose, r->description) == 0;
    if (!same)
        (void)cli_fail(TN_ERR_ARGUMENT, "'%s' belongs to another run: %s, not %s; use the options of that run",
                       r->options->resume, whose ? whose : "unknown", r->description);
    tn_safetensors_close(file);
    return same ? CLI_OK : CLI_FAILED;
}

/* Loads the checkpoint of --resume; *step: the steps that were made before. */
static int load_training(const run *r, int64_t *step) {
    if (!r->options->resume) return CLI_OK;
    int code = check_belongs(r);
    if (code != CLI_OK) return code;
    tn_checkpoint c = checkpoint_of(r);
    bool divided = r->options->team->divides;
    if (divided && tn_module_join(c.model, c.optimizer) != TN_OK) return cli_failed();
    if (tn_checkpoint_load(r->options->resume, &c) != TN_OK) return cli_failed();
    tn_text_free(c.loaded_json);
    if (divided && tn_module_split(c.model, c.optimizer) != TN_OK) return cli_failed();
    *step = c.step;
    return r->task->after_load(r->self) == TN_OK ? CLI_OK : cli_failed();
}

/* The steps of a checkpoint, before it is loaded; 0 if it cannot be read, which load_training tells. */
static int64_t steps_before(const run *r) {
    tn_safetensors *file = NULL;
    int64_t step = 0;
    if (!r->options->resume || tn_safetensors_open(r->options->resume, &file) != TN_OK) return 0;
    const char *text = tn_safetensors_metadata(file, "step");
    if (text && !cli_parse_int(text, 0, INT64_MAX, &step)) step = 0;
    tn_safetensors_close(file);
    return step < r->last ? step : r->last;
}

static double shown_now(const run *r) { return r->task->shown ? r->task->shown_now(r->self) : r->loss; }

/* Keeps one value out of `stride`; when the curve is full every second one goes. */
static void note_loss(run *r, double loss) {
    r->loss = loss;
    if (r->advances++ % r->stride != 0) return;
    if (r->points == PLOT_POINTS) {
        for (int i = 0; i < PLOT_POINTS / 2; i++)
            r->curve[i] = r->curve[2 * i];
        r->points = PLOT_POINTS / 2;
        r->stride *= 2;
    }
    r->curve[r->points++] = shown_now(r);
}

static bool log_step(const run *r) {
    if (!r->log) return true;
    cli_json j = {.out = r->log};
    cli_json_write(&j, "{'step': %jd, 'loss': %g", r->step, r->loss);
    if (r->task->shown) cli_json_write(&j, "%s: %g", r->task->shown, shown_now(r));
    cli_json_write(&j, "}");
    return fflush(r->log) == 0;
}

static bool time_to_save(const run *r, int64_t before) {
    int64_t every = r->options->save_every;
    return r->options->save && every > 0 && r->step < r->last && r->step / every != before / every;
}

static void begin_run_report(run *r, const char *device) {
    if (!is_first_rank(r)) return;
    r->report = (report){.path = r->options->report, .title = "trunnion train", .speed_unit = "steps a second"};
    report_fact(&r->report, "task", "%s: %s", r->task->name, r->task->unit);
    report_fact(&r->report, "run", "%s", r->description);
    report_fact(&r->report, "device", "%s", device);
}

/* made: steps since `begun`. */
static tn_status add_to_report(run *r, int64_t made, double begun) {
    const tn_optimizer *optimizer = checkpoint_of(r).optimizer;
    double seconds = cli_now() - begun;
    const report_point p = {.step = r->step,
                            .loss = r->loss,
                            .validation = NAN,
                            .rate = optimizer ? tn_optimizer_lr(optimizer) : NAN,
                            .norm = NAN,
                            .speed = seconds > 0 ? (double)made / seconds : NAN,
                            .memory = (double)cli_peak_bytes()};
    if (r->task->shown) r->report.shown = (event_scalar){r->task->shown, shown_now(r)};
    return report_add(&r->report, &p);
}

/* Writes the log and the report. If that fails, the run ends, and one process saves the steps so far. */
static tn_status tell_step(run *r, int64_t made, double begun) {
    char why[TN_REASON_BYTES];
    const char *log = r->options->log, *save = r->options->save;
    tn_status status = log_step(r) ? TN_OK : tn_backend_fail(TN_ERR_IO, "writing '%s': %s", log, strerror(errno));
    if (status == TN_OK) status = add_to_report(r, made, begun);
    if (status == TN_OK || !save || tn_group_size(r->options->team->group) > 1) return status;
    snprintf(why, sizeof why, "%s", tn_error());
    bool saved = save_training(r) == TN_OK;
    return tn_backend_fail(status, "%s%s%s", why, saved ? "; the steps so far are saved: pass --resume " : "",
                           saved ? save : "");
}

/* Whether any process was told to stop; asked before each step, by all of them. */
static tn_status ask_stopped(run *r, bool *stop) {
    tn_status status = r->step < r->last ? train_any_stopped(r->options->team->group, &r->stopped) : TN_OK;
    *stop = r->stopped;
    return status;
}

/* begun: when the step began. */
static tn_status note_step(run *r, int64_t step, double begun, bool *stop) {
    int64_t before = r->step;
    r->step = step;
    note_loss(r, r->latest);
    TRY(tell_step(r, r->step - before, begun));
    if (time_to_save(r, before)) TRY(save_training(r));
    char words[96], text[128];
    r->task->status_text(r->self, words, sizeof words);
    snprintf(text, sizeof text, "loss %.3g  %s", r->loss, words);
    cli_progress_update(&r->progress, r->step - r->first, text);
    return ask_stopped(r, stop);
}

/* ---- the result -------------------------------------------------------------------------------------------------- */

static void put_json_training(const run *r, double rate, double metric, const char *id, const tn_device *device) {
    cli_json j = {.out = stdout};
    const tn_optimizer *optimizer = checkpoint_of(r).optimizer;
    cli_json_write(&j,
                   "{'task': %s, 'final_loss': %g, 'steps': %jd, 'steps_per_second': %g, 'metric': %g, 'metric_name': "
                   "%s, 'device': %s",
                   r->task->name, r->loss, r->step, rate, metric, r->task->metric, id);
    if (r->task->shared) train_devices_json(&j, r->task->shared(r->self));
    if (r->options->memory) train_memory_json(&j, r->options, r->task->shared(r->self));
    train_processes_json(&j, r->options->team, r->optimizer_bytes);
    if (r->options->amp) cli_json_write(&j, "'amp': %s", r->options->amp);
    if (r->options->amp) cli_json_write(&j, "'loss_scale': %g", tn_optimizer_loss_scale(optimizer));
    if (r->options->amp) cli_json_write(&j, "'skipped_steps': %jd", tn_optimizer_skipped_steps(optimizer));
    cli_json_fallback(&j, &r->selection, device);
    cli_json_survived(&j, &r->survived);
    cli_json_write(&j, "'interrupted': %i, 'stopped': %s, 'seed': %ju}", r->stopped, r->stopped ? "cancelled" : "end",
                   r->options->common.seed);
}

static void put_text_training(const run *r, double rate, double metric, const char *device) {
    if (r->points > 1)
        cli_plot(stdout, r->task->shown ? r->task->shown : "loss", r->task->unit, r->curve, r->points, PLOT_ROWS);
    printf("%s on %s: %lld %s", r->task->name, device, (long long)r->step, r->task->unit);
    if (r->step > r->first) printf(", %.0f a second, loss %.4g", rate, r->loss);
    printf("\n");
    if (!r->stopped) printf("%s: %.4g\n", r->task->metric, metric);
    const tn_optimizer *optimizer = checkpoint_of(r).optimizer;
    if (r->options->amp)
        printf("mixed precision with %s: loss scale %g, %lld steps skipped\n", r->options->amp,
               tn_optimizer_loss_scale(optimizer), (long long)tn_optimizer_skipped_steps(optimizer));
    if (r->task->shared) train_devices_text(stdout, r->task->shared(r->self));
    if (r->options->memory) train_memory_text(stdout, r->options, r->task->shared(r->self));
    train_processes_text(stdout, r->options->team);
    if (r->options->save) printf("saved: %s (continue with --resume %s)\n", r->options->save, r->options->save);
}

/* Ends a run whose message was written; the status only says that it failed. */
static tn_status give_code(run *r, int code) {
    r->code = code;
    return code == CLI_OK ? TN_OK : TN_ERR_IO;
}

static void put_result(const run *r, double metric, const tn_device *device) {
    tn_device_info info = {.struct_size = sizeof info};
    (void)tn_device_get_info(device, &info);
    if (r->options->common.json)
        put_json_training(r, r->rate, metric, info.id, device);
    else
        put_text_training(r, r->rate, metric, info.id);
}

/* ---- a run on one device (survive.h) ----------------------------------------------------------------------------- */

/* One device's share of a run. A thread that hangs keeps it, so a step writes only here. */
typedef struct share {
    run *r;
    void *self;
    double loss, begun; /* of the last step */
} share;

static tn_status share_begin(void *ctx, tn_device *device, void **out) {
    run *r = ctx;
    share *s = calloc(1, sizeof *s);
    *out = s;
    if (!s) return tn_backend_fail(TN_ERR_MEMORY, "out of memory");
    s->r = r;
    s->loss = NAN;
    if (r->options->team->devices[0] != device) train_replace(r->options->team, device);
    tn_manual_seed(r->options->common.seed);
    tn_status status = r->task->begin(r->options, &s->self);
    if (status != TN_OK) return status;
    r->self = s->self;
    describe_training(r);
    int64_t loaded = 0;
    int code = load_training(r, &loaded);
    if (code != CLI_OK) return give_code(r, code);
    if (r->options->zero && !r->options->team->divides)
        status = tn_optimizer_shard(checkpoint_of(r).optimizer, r->options->team->group);
    if (status != TN_OK) return status;
    if (r->shows) return TN_OK; /* on a further device: a copy of the state follows */
    r->first = r->step = loaded;
    if ((status = compare_ranks(r)) != TN_OK) return status;
    begin_run_report(r, r->selection.chosen);
    if (r->step >= r->last && r->options->resume)
        return give_code(r, cli_fail(TN_ERR_ARGUMENT,
                                     "'%s' has already made %lld of %lld steps: nothing is left to do; pass a larger "
                                     "--steps",
                                     r->options->resume, (long long)r->step, (long long)r->last));
    if (is_first_rank(r))
        status = report_open_events(&r->report, r->options->tensorboard, r->first, r->options->resume);
    if (status != TN_OK) return status;
    cli_stop_begin();
    cli_progress_begin(&r->progress, r->task->name, "steps", r->last - r->first);
    r->shows = true;
    bool stop;
    return ask_stopped(r, &stop);
}

static tn_status share_step(void *self, int64_t step, int64_t *made) {
    share *s = self;
    s->begun = cli_now();
    bool repeated = step < s->r->step; /* on a further device, which must reach the step that was stopped */
    return s->r->stopped && !repeated ? TN_OK : s->r->task->advance(s->self, step, made, &s->loss);
}

static tn_status share_stepped(void *ctx, void *self, int64_t step, bool *stop) {
    run *r = ctx;
    *stop = r->stopped;
    if (r->stopped) return TN_OK; /* before the first step */
    const share *s = self;
    r->latest = s->loss;
    return note_step(r, step, s->begun, stop);
}

static tn_status share_state(void *self, tn_checkpoint *c) {
    share *s = self;
    tn_status status = s->r->task->before_save(s->self);
    if (status == TN_OK) s->r->task->checkpoint(s->self, c);
    return status;
}

static tn_status share_restored(void *self) {
    share *s = self;
    return s->r->task->after_load(s->self);
}

static void end_progress(run *r) {
    if (!r->shows || r->rate > 0) return;
    r->progress.done = r->step - r->first;
    r->rate = cli_progress_rate(&r->progress);
    cli_progress_end(&r->progress);
}

/* Saves, measures and shows the result. The metric takes as long as many steps, so a stopped run does without. */
static tn_status share_finish(void *ctx, void *self) {
    run *r = ctx;
    double metric = NAN;
    end_progress(r);
    if (r->stopped && is_first_rank(r))
        fprintf(stderr, "trunnion train: stopped by %s after %lld steps%s\n",
                cli_stopped() ? cli_stop_signal() : "a signal to another process", (long long)r->step,
                r->options->save ? "; saving" : "");
    r->optimizer_bytes = tn_optimizer_state_bytes(checkpoint_of(r).optimizer);
    train_note_peak(r->options->team);
    tn_status status = r->options->save ? save_training(r) : TN_OK;
    if (status != TN_OK) return status;
    if (report_write(&r->report, true) != TN_OK) return give_code(r, cli_failed());
    cli_stop_end(); /* what a signal could lose is saved */
    if (r->log && fflush(r->log) != 0)
        return give_code(r, cli_fail(TN_ERR_IO, "writing the log '%s': %s", r->options->log, strerror(errno)));
    bool divided = r->options->zero == 3 && r->options->team->divides;
    if (divided && !r->stopped) status = tn_module_join(checkpoint_of(r).model, NULL);
    if (!r->stopped && status == TN_OK) status = r->task->measure(((share *)self)->self, &metric);
    if (status != TN_OK) return status;
    put_result(r, metric, r->options->team->devices[0]);
    if (r->stopped || r->options->common.json || !r->task->show) return TN_OK;
    return r->task->show(r->self, stdout) == TN_OK ? TN_OK : give_code(r, cli_failed());
}

static void share_end(void *self) {
    share *s = self;
    if (!s) return;
    s->r->task->end(s->self);
    free(s);
}

/* The first steps, on a device that computes nothing. */
static tn_status plan_training(void *ctx, tn_device *dry) {
    enum { STEPS = 2 }; /* the second one finds the optimizer's state */
    const run *r = ctx;
    train_team *team = r->options->team;
    tn_device *device = team->devices[0];
    void *self = NULL;
    double loss;
    team->devices[0] = dry;
    tn_manual_seed(r->options->common.seed);
    tn_status status = r->task->begin(r->options, &self);
    for (int64_t step = 0, made = 1; status == TN_OK && step < STEPS; step += made)
        status = r->task->advance(self, step, &made, &loss);
    r->task->end(self);
    team->devices[0] = device;
    return status;
}

static int execute(run *r, tn_device *device) {
    tn_survivor work = TN_SURVIVOR_DEFAULTS;
    tn_survive_options o = TN_SURVIVE_DEFAULTS;
    tn_device_info info = {.struct_size = sizeof info};
    work.begin = share_begin;
    work.step = share_step;
    work.stepped = share_stepped;
    work.state = share_state;
    work.restored = share_restored;
    work.finish = share_finish;
    work.end = share_end;
    const train_team *team = r->options->team;
    bool alone = team->count == 1 && tn_group_size(team->group) == 1;
    if (tn_device_get_info(device, &info) != TN_OK) return cli_failed();
    o.first = steps_before(r);
    o.last = r->last;
    bool stays = r->options->common.strict || r->options->memory || !alone;
    tn_device_options how = cli_device_options(&r->options->common);
    o.device = &how;
    o.fallback = stays ? TN_FALLBACK_STRICT : TN_FALLBACK_WARN;
    o.time_limit = strcmp(info.backend, "cpu") == 0 || !alone ? 0 : 2 * how.time_limit; /* waits end first */
    r->survived.struct_size = sizeof r->survived;
    const char *name = info.id;
    tn_status status = tn_survive(&work, r, &name, 1, &o, &r->survived);
    end_progress(r);
    if (r->code != CLI_OK) return r->code;
    if (status != TN_OK) return cli_failed();
    if (r->stopped) return cli_stopped() ? cli_stop_status() : TRAIN_STOPPED_ELSEWHERE;
    return CLI_OK;
}

/* Nobody should learn at the end of a run that it cannot be saved. */
static bool can_save(const char *path) {
    struct stat s;
    if (stat(path, &s) == 0 && !S_ISREG(s.st_mode)) {
        (void)cli_fail(TN_ERR_IO, "cannot save '%s': it is not a regular file", path);
        return false;
    }
    if (cli_output_check(path) == TN_OK) return true;
    (void)cli_failed();
    return false;
}

/* Opens what the run needs beside the task: curve and log. */
static int prepare_training(run *r) {
    r->curve = malloc(PLOT_POINTS * sizeof *r->curve);
    if (!r->curve) return cli_fail(TN_ERR_MEMORY, "out of memory");
    if (!is_first_rank(r)) return CLI_OK; /* rank 0 saves and writes the log */
    if (r->options->save && !can_save(r->options->save)) return CLI_FAILED;
    if (!r->options->log) return CLI_OK;
    r->log = fopen(r->options->log, r->options->resume ? "a" : "w");
    if (r->log) return CLI_OK;
    return cli_fail(TN_ERR_IO, "cannot open the log '%s': %s", r->options->log, strerror(errno));
}

static int run_task(train_options *o, const train_task *task) {
    run r = {.options = o, .task = task, .stride = 1, .loss = NAN};
    train_team team = {.count = 0};
    o->team = &team;
    r.last = o->steps >= 0 ? o->steps : task->steps;
    int code = train_join(&team, o, task);
    if (code == CLI_OK) code = train_open(o, &team, &r.selection);
    if (code == CLI_OK) code = prepare_training(&r);
    if (code == CLI_OK && o->memory &&
        cli_check_training(team.devices[0], &o->common, o->memory, plan_training, &r) != TN_OK)
        code = cli_failed();
    if (code == CLI_OK) code = execute(&r, team.devices[0]);
    if (r.log && fclose(r.log) != 0 && code == CLI_OK) code = CLI_FAILED;
    if (code != CLI_OK && !r.stopped) report_failure(&r.report, NULL);
    report_free(&r.report);
    free(r.curve);
    if (code != CLI_OK && !r.stopped) tn_group_abort(team.group, code); /* the other processes wait for this one */
    train_close(&team);
    return code;
}

static const cli_option own_options[] = {
    CLI_INT("steps", 0, train_options, steps, 0, INT64_C(1) << 40),
    CLI_ONE_OF("model", 0, train_options, model, "mlp|cnn"),
    CLI_ONE_OF("policy", 0, train_options, policy, "mlp|lstm"),
    CLI_NAME("devices", 0, train_options, devices),
    CLI_INT("parts", 0, train_options, parts, 1, 256),
    CLI_ONE_OF("amp", 0, train_options, amp, "f16|bf16"),
    CLI_INT("zero", 0, train_options, zero, 0, 3),
    CLI_FLAG("tensor-parallel", 0, train_options, tensor_parallel),
    CLI_BYTES("memory", 0, train_options, memory, 1, INT64_MAX),
    CLI_NAME("data", 0, train_options, data),
    CLI_NAME("save", 0, train_options, save),
    CLI_INT("save-every", 0, train_options, save_every, 1, INT64_C(1) << 40),
    CLI_NAME("resume", 0, train_options, resume),
    CLI_NAME("report", 0, train_options, report),
    CLI_NAME("tensorboard", 0, train_options, tensorboard),
    CLI_NAME("log", 0, train_options, log),
    {0},
};

static int run_train(int argc, char **argv) {
    train_options o = {.steps = -1};
    int status = CLI_USAGE;
    int at = cli_parse(&cli_train, argc, argv, &o.common, own_options, &o, &status);
    if (at < 0) return status;
    if (at >= argc) return cli_wrong_usage(&cli_train, "missing task: digits, chars or cartpole");
    const train_task *task = find_task(argv[at]);
    if (!task)
        return cli_wrong_usage(&cli_train, "unknown task \"%s\"; known are digits, chars and cartpole", argv[at]);
    if (at + 1 < argc) return cli_wrong_usage(&cli_train, "only one task is expected, not also \"%s\"", argv[at + 1]);
    const char *foreign = foreign_option(&o, task);
    if (foreign) return cli_wrong_usage(&cli_train, "%s does not apply to the task %s", foreign, task->name);
    if (o.devices && strcmp(o.common.device, "auto") != 0)
        return cli_wrong_usage(&cli_train, "--device %s with --devices: put it first in --devices, to hold the model",
                               o.common.device);
    if (o.tensor_parallel && (o.zero || o.devices || o.parts || o.memory))
        return cli_wrong_usage(&cli_train, "--tensor-parallel excludes --zero, --devices, --parts and --memory");
    if (!o.model) o.model = "mlp";
    if (!o.policy) o.policy = "mlp";
    if (o.save_every && !o.save) return cli_wrong_usage(&cli_train, "--save-every requires --save FILE");
    return run_task(&o, task);
}
