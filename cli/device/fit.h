/* fit.h — `trunnion fit` of a command, and what `fit` asks of the text library. */
#ifndef TN_CLI_FIT_H
#define TN_CLI_FIT_H

#include "trunnion/model.h"

/* fit_run.c. The index in argv of the command or ONNX network whose memory is to be estimated; 0: there is none. */
int fit_command_at(int argc, char **argv);
int fit_run_command(int argc, char **argv, int at);

/* The sizes of a language model as the library opens it; false if it does not, or is not in this build. What layers
 * keep of a token may be less than their heads say, or a state.
 *   context: 0 is the model's own; cache: the dtype of keys and values */
bool fit_inspect(const char *path, int64_t context, tn_dtype cache, tn_model_sizes *s);

#endif
