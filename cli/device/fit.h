/* fit.h — what `trunnion fit` asks of the text library. */
#ifndef TN_CLI_FIT_H
#define TN_CLI_FIT_H

#include "trunnion/model.h"

/* The sizes of a language model as the library opens it; false if it does not, or is not in this build. What layers
 * keep of a token may be less than their heads say, or a state.
 *   context: 0 is the model's own; cache: the dtype of keys and values */
bool fit_inspect(const char *path, int64_t context, tn_dtype cache, tn_model_sizes *s);

#endif
