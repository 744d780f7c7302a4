/* run_output.h — the outputs of `trunnion run`: shown, and written as NumPy files. */
#ifndef TRUNNION_CLI_RUN_OUTPUT_H
#define TRUNNION_CLI_RUN_OUTPUT_H

#include "cli/cli.h"
#include "trunnion/onnx.h"

/* --top K --labels FILE: the largest values of each row of an output, as a classifier's classes. */
typedef struct run_top {
    int64_t count;    /* 0: not asked for */
    const char *path; /* of the labels; NULL: none */
    char *text;       /* of that file, its lines ended by zeros */
    char **labels;
    int64_t label_count;
} run_top;

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
/* Writes all outputs that are tensors to `folder`, which is made. */
tn_status run_output_write(const tn_onnx *m, tn_onnx_value **out, const char *folder);

#endif
