/* onnx_input.h — inputs of an ONNX network that are made at random, and the extents of its open dims. */
#ifndef TRUNNION_CLI_ONNX_INPUT_H
#define TRUNNION_CLI_ONNX_INPUT_H

#include "cli/cli.h"
#include "trunnion/onnx.h"

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

#endif
