/* train.h — what a training task is, so that train.c can run, show, save and resume any of them. */
#ifndef TRUNNION_CLI_TRAIN_H
#define TRUNNION_CLI_TRAIN_H

#include "cli/cli.h"
#include "trunnion/backend.h"
#include "trunnion/trunnion.h"

/* The devices of a run, the model's first, and how they share batches (train_devices.c). */
enum { TRAIN_MOST_DEVICES = 16 };
typedef struct train_team {
    tn_device *devices[TRAIN_MOST_DEVICES];
    int count;
    tn_group *group;     /* of the processes that a launcher started */
    tn_group *divides;   /* the same, if they divide the layers or parameters; otherwise NULL */
    int64_t memory_peak; /* of the steps, with --memory or several processes */
    tn_data_parallel_options options;
} train_team;

/* What the command line says. Texts live as long as argv. */
typedef struct train_options {
    cli_options common;
    int64_t steps;      /* -1: the task's own number */
    int64_t save_every; /* 0: at the end alone */
    const char *save, *resume, *log, *report, *tensorboard;
    const char *data;     /* digits: the table; NULL: in the cache folder. chars: the text; NULL: the command's help */
    const char *model;    /* digits: mlp, cnn */
    const char *policy;   /* cartpole: mlp, lstm */
    const char *devices;  /* names with commas between; NULL: the one of `common` */
    int64_t parts;        /* of a batch; 0: one per device of each process */
    int64_t zero;         /* stage of ZeRO, divided among processes: 1: optimizer state; 2: gradients too; 3: parameters
                           * too; 0: nothing */
    bool tensor_parallel; /* processes divide the layers, not the batches */
    int64_t memory;       /* that steps may take on the device, in bytes; 0: no limit */
    const char *amp;      /* f16, bf16; NULL: everything in f32 */
    train_team *team;     /* once they are open */
} train_options;

/* Options that have a meaning for some tasks alone. */
enum {
    TRAIN_TAKES_MODEL = 1 << 0,
    TRAIN_TAKES_POLICY = 1 << 1,
    TRAIN_TAKES_DATA = 1 << 2,
    TRAIN_TAKES_DEVICES = 1 << 3,
    TRAIN_TAKES_AMP = 1 << 4,
    TRAIN_TAKES_LAYERS = 1 << 5 /* divided among processes */
};

/* One task. Functions return a status; the words are those of tn_error. */
typedef struct train_task {
    const char *name;
    const char *unit;   /* what a step is, in the plural */
    const char *metric; /* what `metric` of the result means */
    unsigned takes;     /* TRAIN_TAKES_… */
    int64_t steps;      /* the number made unless --steps says otherwise */
    tn_status (*begin)(const train_options *o, void **self);
    /* A member of a JSON object that tells this run's networks and data from another's, for its checkpoints. */
    void (*describe)(void *self, char *text, size_t size);
    /* Goes on from `step`; *made: how many steps further, at least 1. */
    tn_status (*advance)(void *self, int64_t step, int64_t *made, double *loss);
    /* A few words on how it goes, for the live line. */
    void (*status_text)(void *self, char *text, size_t size);
    /* What tells more than the loss, for the curve and the log: its name, and its value now. NULL: the loss it is. */
    const char *shown;
    double (*shown_now)(void *self);
    /* Model, optimiser and extras of a checkpoint. before_save: brings the extras up to
     * date; after_load: takes them. */
    void (*checkpoint)(void *self, tn_checkpoint *c);
    tn_status (*before_save)(void *self);
    tn_status (*after_load)(void *self);
    tn_status (*measure)(void *self, double *metric);
    tn_status (*show)(void *self, FILE *to);       /* what there is to see at the end; may be NULL */
    const tn_data_parallel *(*shared)(void *self); /* who computes; NULL: the task takes no further devices */
    void (*end)(void *self);                       /* NULL is fine */
} train_task;

extern const train_task train_digits, train_cartpole, train_chars;

/* ---- mixed precision (train.c) ----------------------------------------------------------------------------------- */

tn_dtype train_amp_dtype(const train_options *o); /* for TN_AUTOCAST; TN_F32 without --amp */
/* f16 needs a loss scale; bf16 has the range of f32. */
tn_status train_amp_prepare(const train_options *o, tn_optimizer *optimizer);

/* ---- several devices (train_devices.c) --------------------------------------------------------------------------- */

/* Opens the devices that the options ask for; the first becomes the current one. CLI_OK, or the exit status after a
 * message; train_close either way. */
int train_open(const train_options *o, train_team *team, tn_selection *selection);
void train_close(train_team *team);
/* Another device holds the model from now on. */
void train_replace(train_team *team, tn_device *device);
/* A complete model, before its optimizer is made: divides its parameters among the processes with --zero 3. */
tn_status train_divide(const train_options *o, tn_module *root);
/* What a task computes its batches with. */
tn_status train_share(const train_options *o, tn_module *root, tn_data_parallel **out);
void train_devices_json(cli_json *j, const tn_data_parallel *all); /* the member `devices` */
void train_devices_text(FILE *to, const tn_data_parallel *all);    /* a line each where there are several */
/* After the steps, for which --memory is: notes their peak; removes the limit. */
void train_note_peak(train_team *team);
/* Members `memory_limit`, `memory_peak`, `recomputes`, `parts` of a run with --memory; a line. */
void train_memory_json(cli_json *j, const train_options *o, const tn_data_parallel *all);
void train_memory_text(FILE *to, const train_options *o, const tn_data_parallel *all);
/* Joins the processes that a launcher started: CLI_OK, or the exit status after a message, which is that of all ranks.
 * Only rank 0 keeps its standard output. */
int train_join(train_team *team, const train_options *o, const train_task *task);
/* Fails on every rank unless all ranks have rank 0's text: what they do (describe the run, or its options). */
tn_status train_compare(tn_group *group, const char *what);
/* Only rank 0 keeps its standard output. CLI_OK, or the exit status after a message. */
int train_silence(const tn_group *group);
/* "cuda" for several processes: each process of a machine takes another of its devices. room: for the name. */
void train_own_device(const char **device, char *room, size_t size);
/* The exit status if another process of the group was told to stop: that of SIGTERM. */
enum { TRAIN_STOPPED_ELSEWHERE = 128 + 15 };
/* Whether any process has been told to stop: all must stop after the same step. */
tn_status train_any_stopped(tn_group *group, bool *stopped);
/* Members `processes`, `group`, and of this one `optimizer_bytes` and `pool_peak_bytes`, if there are several. */
void train_processes_json(cli_json *j, const train_team *team, int64_t optimizer_bytes);
void train_processes_text(FILE *to, const train_team *team);

/* ---- random numbers of the host side (random.c): data order, environments, actions ------------------------------- */

/* The next 64 bits of a state (SplitMix64: Steele, Lea and Flood 2014); uniform in [0, 1); a permutation of 0 … n-1. */
uint64_t random_next(uint64_t *state);
double random_uniform(uint64_t *state);
void random_shuffle(uint64_t *state, int32_t *items, int64_t n);

#endif
