/* fuzz_wav.c — any bytes as a sound file: refused with a reason, or samples that are finite and as many as can be in
 * it. */
#include "fuzz_file.h"
#include "trunnion/backend.h"
#include "trunnion/speech.h"

#include <math.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    tn_audio a;
    tn_status status = tn_audio_parse(data, size, 0, &a);
    require((status == TN_OK) == (a.samples != NULL) && (a.samples || *tn_error() != '\0'));
    require(a.count >= 0 && (size_t)a.count <= size);
    for (int64_t i = 0; i < a.count; i++)
        require(isfinite(a.samples[i]));
    tn_audio_free(&a);
    return 0;
}
