/* sound.h — a WAV file as a network's input. */
#ifndef TRUNNION_CLI_SOUND_H
#define TRUNNION_CLI_SOUND_H

#include "trunnion/tensor.h"

/* Whether the bytes begin as a WAV file. */
bool sound_is(const unsigned char *bytes, size_t size);

/* The samples of one channel, -1 to 1, as an input of this shape takes them: [n], [1, n] or [1, 1, n]. n < 0 stands for
 * any number; a fixed number is filled up with silence. rate: samples per second; 0: as in the file. dtype: floats.
 * Errors: those of tn_audio_parse; TN_ERR_ARGUMENT for another shape or dtype, or too many samples. */
tn_status sound_tensor(const unsigned char *bytes, size_t size, int64_t rate, const int64_t *shape, int rank,
                       tn_dtype dtype, tn_tensor **out);

#endif
