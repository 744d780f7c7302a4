/* run.h — what `trunnion run` and `trunnion onnx-test` are made of. */
#ifndef TRUNNION_CLI_RUN_H
#define TRUNNION_CLI_RUN_H

#include <stdbool.h>
#include <stddef.h>

#include "cli/cli.h"
#include "cli/run/image.h"
#include "trunnion/json.h"
#include "trunnion/onnx.h"
#include "trunnion/tensor.h"

/* ---- the outputs of `trunnion run` (run_output.c) ---------------------------------------------------------------- */

/* --top K --labels FILE: the largest values of each row of an output, as a classifier's classes. */
typedef struct run_top {
    int64_t count;    /* 0: not asked for */
    const char *path; /* of the labels; NULL: none */
    char *text;       /* of that file, its lines ended by zeros */
    char **labels;
    int64_t label_count;
    tn_json_doc *config; /* config.json, which owns the labels if no file of labels is given; otherwise NULL */
} run_top;
enum { RUN_PATH = 4096 };

tn_status run_top_open(run_top *t);
/* TN_ERR_ARGUMENT if no output has classes, or not as many as there are labels. */
tn_status run_top_check(const run_top *t, const tn_onnx *m, tn_onnx_value **out);
void run_top_close(run_top *t);

void run_output_text(const char *name, const tn_onnx_value *v, const run_top *top);
/* The member `name`: shape, dtype; values (all, in row-major order) of a small output, min, max and mean of a larger
 * one; file, if it was written; top. */
void run_output_json(cli_json *j, const char *name, const tn_onnx_value *v, const run_top *top, const char *file);

/* The name of output k's file, NAME.npy, without any folder: characters that could lead out of one or hide the file
 * are replaced, and equal names are told apart. */
void run_output_file(const tn_onnx *m, int k, char *out, size_t size);
/* Fails if files cannot be written to `folder`, as run_output_write would. NULL: TN_OK. */
tn_status run_output_check(const char *folder);
/* Writes all outputs that are tensors to `folder`, which is made. */
tn_status run_output_write(const tn_onnx *m, tn_onnx_value **out, const char *folder);

/* The index of the largest value below that of `last` (ties: by index); -1 for `last` begins. */
int64_t run_next_largest(const double *row, int64_t count, int64_t last);
/* A class's name and the end of the line. The name comes from a file: '?' replaces control characters. */
void run_put_label(const char *label);

/* ---- `trunnion run FOLDER FILE…` (classify_files.c) -------------------------------------------------------------- */

/* Shows the `top` most probable classes of each picture or sound. Returns the command's code. */
int run_classifier(const cli_options *options, const char *folder, char *const *files, int count, int64_t top);

/* ---- pictures for an ONNX network (prepared_picture.c) ----------------------------------------------------------- */

/* The folder with preprocessor_config.json: that of the file, or the one above. */
bool run_find_preparation(const char *model, char folder[RUN_PATH]);
/* The picture as an input, prepared as this folder says. Errors: TN_ERR_SHAPE for an input of other extents. */
tn_status run_prepare_picture(const char *folder, const image *picture, const tn_onnx_info *input, tn_tensor **out);
/* Names of classes from config.json there, if it has some and no file was given. */
tn_status run_read_names(const char *folder, run_top *t);

/* ---- `trunnion run --steps` (run_steps.c) ------------------------------------------------------------------------ */

enum { STEPS_MOST_PAIRS = 64 };

/* OUTPUT=INPUT; a * in both stands for the same text. */
typedef struct steps_pair {
    const char *from, *to;
} steps_pair;

typedef struct run_steps {
    int64_t count; /* how many runs; 0: the command was not asked for steps */
    steps_pair pairs[STEPS_MOST_PAIRS];
    int pair_count;                        /* 0: those that exporters use */
    const char *twice;                     /* an output or input that two pairs name; NULL: none */
    int *fed;                              /* [outputs] the input that an output is given to; -1: none */
    int ids, mask, places, branch, logits; /* inputs and an output that a language model has; -1: none */
    bool cached;                           /* a pair was found */
    int64_t batch;
    int64_t *tokens; /* [count][batch] what was chosen; NULL: it is no language model */
} run_steps;

/* "OUTPUT=INPUT" of argv, which is cut in two. */
bool steps_take_pair(void *steps, const char *arg);

/* Which outputs are fed to which inputs; an error where there are none. */
tn_status steps_begin(run_steps *s, const tn_onnx *m);

/* Inputs that were not given and that steps know how to begin with: empty caches, a mask of ones, places from the
 * caches' end on. extent: of an open dim that was named on the command line, or `otherwise`. */
tn_status steps_make_inputs(run_steps *s, const tn_onnx *m, tn_onnx_value **in,
                            int64_t (*extent)(void *ctx, const tn_onnx_info *info, int d, int64_t otherwise),
                            void *ctx);

/* After run number i: notes the chosen tokens and, unless it was the last run, makes inputs of outputs. */
tn_status steps_advance(run_steps *s, int64_t i, const tn_onnx *m, tn_onnx_value **in, tn_onnx_value **out);

void steps_put_text(const run_steps *s);
void steps_put_json(const run_steps *s, cli_json *j); /* the member `tokens` */
void steps_end(run_steps *s);

/* ---- inputs of an ONNX network that are made at random (onnx_input.c) -------------------------------------------- */

/* By the ending of its name. */
bool onnx_is_network(const char *path);

enum { ONNX_MOST_DIMS = 64 };

/* Open dims that were given an extent: --dim NAME=N. */
typedef struct onnx_dims {
    struct onnx_dim {
        const char *name; /* of argv: NAME, ended by '=' */
        int64_t extent;
        bool used;
    } list[ONNX_MOST_DIMS];
    int count;
    const char *twice; /* a NAME=N whose name was given before; NULL: none */
    bool guessed;      /* a dim of an input made at random was open and not given: it is 1 */
} onnx_dims;

/* "NAME=N" into an onnx_dims; the argument has to live as long. */
bool onnx_take_dim(void *at, const char *arg);

/* Says which name was given more than once, as wrong usage. */
int onnx_dim_twice(const cli_command *c, const onnx_dims *dims);

/* ctx: onnx_dims. The extent of dim d: the model's own, else that given by name or place (x.2), else `otherwise`. */
int64_t onnx_extent(void *ctx, const tn_onnx_info *info, int d, int64_t otherwise);

/* An error where a dim was given that no input made at random has. */
tn_status onnx_dims_are_used(const onnx_dims *dims);

/* After a run failed: if shapes did not fit and open dims were guessed, says so on standard error. */
void onnx_tell_guess(const onnx_dims *dims);

void onnx_free_values(tn_onnx_value **values, int count); /* and sets each to NULL; values may be NULL */

/* Floats from the normal distribution's middle, whole numbers 0 and 1: a valid index of anything. */
tn_status onnx_random_input(const tn_onnx_info *info, onnx_dims *dims, uint64_t *state, tn_onnx_value **out);

/* ---- one case of ONNX's test layout (onnx_case.c) ---------------------------------------------------------------- */

typedef enum onnx_result { ONNX_PASSED, ONNX_FAILED, ONNX_SKIPPED, ONNX_RESULTS } onnx_result;

/* A number fits when |number − expected| ≤ absolute + relative · |expected|; NaN fits NaN. */
typedef struct onnx_tolerance {
    double absolute, relative; /* negative: as the case's data.json says, else 1e-7 and 1e-3 */
} onnx_tolerance;

/* Runs all data sets of a folder on the current device. recorded: as of tn_onnx_options. why: what differs, or what the
 * model has that cannot be run (skipped); "" where it passed. */
onnx_result onnx_case_run(const char *folder, onnx_tolerance tolerance, bool recorded, char *why, size_t size);

/* ---- a WAV file as a network's input (sound_input.c) ------------------------------------------------------------- */

/* The samples of one channel, -1 to 1, as an input of this shape takes them: [n], [1, n] or [1, 1, n]. n < 0 stands for
 * any number; a fixed number is filled up with silence. rate: samples per second; 0: as in the file. dtype: floats.
 * Errors: those of tn_audio_parse; TN_ERR_ARGUMENT for another shape or dtype, or too many samples. */
tn_status sound_tensor(const unsigned char *bytes, size_t size, int64_t rate, const int64_t *shape, int rank,
                       tn_dtype dtype, tn_tensor **out);

#endif
