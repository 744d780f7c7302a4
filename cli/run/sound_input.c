/* sound_input.c — a WAV file as a network's input (the reader is libtrunnion-text's). */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/run/run.h"
#include "trunnion/backend.h"
#include "trunnion/ops.h"
#include "trunnion/speech.h"

static bool takes_sound(const int64_t *shape, int rank) {
    for (int i = 0; i < rank - 1; i++)
        if (shape[i] > 1) return false;
    return rank >= 1 && rank <= 3;
}

static tn_status fit(const tn_audio *a, const int64_t *shape, int rank, tn_dtype dtype, tn_tensor **out) {
    if (!takes_sound(shape, rank) || (dtype != TN_F32 && dtype != TN_F16 && dtype != TN_BF16 && dtype != TN_F64))
        return tn_backend_fail(TN_ERR_ARGUMENT, "the input does not take sound: it must be floats [n], [1, n] or "
                                                "[1, 1, n]");
    int64_t n = shape[rank - 1] >= 0 ? shape[rank - 1] : a->count;
    if (a->count > n)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "%" PRId64 " samples at %" PRId64 " per second, but the input takes %" PRId64
                               "; cut the file, or resample it with --rate",
                               a->count, a->rate, n);
    int64_t extents[3] = {1, 1, 1};
    extents[rank - 1] = n;
    float *samples = calloc((size_t)n + 1, sizeof *samples);
    if (!samples) return tn_backend_fail(TN_ERR_MEMORY, "out of memory for %" PRId64 " samples", n);
    memcpy(samples, a->samples, (size_t)a->count * sizeof *samples);
    {
        TN_SCOPE;
        tn_tensor *t = tn_from_data(samples, extents, rank, TN_F32);
        *out = tn_retain(dtype == TN_F32 ? t : tn_cast(t, dtype));
    }
    free(samples);
    return tn_eval(out, 1);
}

tn_status sound_tensor(const unsigned char *bytes, size_t size, int64_t rate, const int64_t *shape, int rank,
                       tn_dtype dtype, tn_tensor **out) {
    tn_audio a;
    tn_status status = tn_audio_parse(bytes, size, rate, &a);
    *out = NULL;
    if (status == TN_OK) status = fit(&a, shape, rank, dtype, out);
    tn_audio_free(&a);
    return status;
}
