/* log_mel.c — Whisper's input: the power of 10 ms steps of sound in bands of the mel scale, as logarithms.
 *
 * Everything is f64, because the logarithm enlarges rounding errors of quiet bands. The 400-point Fourier transform of
 * real frames is two matrix products: sums of mirrored samples times cosines, and differences times sines. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "text/speech_model.h"

enum {
    POINTS = 400, /* of a frame: 25 ms */
    HALF = POINTS / 2,
    BINS = HALF + 1, /* frequencies of 0 to 8000 Hz */
    ODD = HALF - 1,  /* samples that have a mirror image */
    CHUNK = 1000     /* frames that are computed at once */
};
static const double PI = 3.14159265358979323846;

/* ---- tables ------------------------------------------------------------------------------------------------------ */

/* Slaney's scale: linear up to 1000 Hz, logarithmic above. */
static double mel_of(double hertz) { return hertz < 1000 ? 3 * hertz / 200 : 15 + log(hertz / 1000) * 27 / log(6.4); }
static double hertz_of(double mel) { return mel < 15 ? 200 * mel / 3 : 1000 * exp(log(6.4) / 27 * (mel - 15)); }

/* Triangles between neighbouring points of the scale, each of area 1: [BINS, mels]. */
static void fill_filters(int64_t mels, double *out) {
    double top = mel_of(8000), step = top / (double)(mels + 1);
    for (int64_t m = 0; m < mels; m++) {
        double low = hertz_of(step * (double)m), middle = hertz_of(step * (double)(m + 1));
        double high = hertz_of(m == mels - 1 ? top : step * (double)(m + 2));
        for (int k = 0; k < BINS; k++) {
            double hertz = 8000.0 * k / HALF;
            double up = (hertz - low) / (middle - low), down = (high - hertz) / (high - middle);
            double height = up < down ? up : down;
            out[k * mels + m] = height > 0 ? height * 2 / (high - low) : 0;
        }
    }
}

static void fill_waves(double *cosines, double *sines) {
    for (int n = 0; n < BINS; n++)
        for (int k = 0; k < BINS; k++) {
            cosines[n * BINS + k] = cos(2 * PI * (n * k % POINTS) / POINTS);
            if (n > 0 && n < HALF) sines[(n - 1) * BINS + k] = sin(2 * PI * (n * k % POINTS) / POINTS);
        }
}

static tn_status make_tables(log_mel *m) {
    double *room = tn_txt_alloc((size_t)BINS * (size_t)(BINS + ODD + m->mels), sizeof *room);
    if (!room) return TN_ERR_MEMORY;
    double *cosines = room, *sines = room + BINS * BINS, *filters = sines + ODD * BINS;
    fill_waves(cosines, sines);
    fill_filters(m->mels, filters);
    {
        TN_SCOPE;
        m->cosines = tn_retain(tn_from_data(cosines, TN_DIMS(BINS, BINS), TN_F64));
        m->sines = tn_retain(tn_from_data(sines, TN_DIMS(ODD, BINS), TN_F64));
        m->filters = tn_retain(tn_from_data(filters, TN_DIMS(BINS, m->mels), TN_F64));
    }
    tn_txt_free(room);
    return tn_eval((tn_tensor *[]){m->cosines, m->sines, m->filters}, 3);
}

tn_status tn_log_mel_init(log_mel *m, int64_t mels) {
    *m = (log_mel){.mels = mels};
    TRY(tn_device_open("cpu", NULL, NULL, &m->device));
    tn_device *before = tn_txt_enter(m->device);
    return tn_txt_leave(m->device, before, make_tables(m));
}

void tn_log_mel_free(log_mel *m) {
    tn_free(m->cosines);
    tn_free(m->sines);
    tn_free(m->filters);
    tn_device_close(m->device);
    *m = (log_mel){0};
}

/* ---- frames ------------------------------------------------------------------------------------------------------ */

int64_t tn_log_mel_frames(int64_t count) {
    int64_t frames = count / MEL_HOP;
    return frames > MEL_WINDOW_FRAMES ? frames : MEL_WINDOW_FRAMES;
}

/* The sound, with silence behind it up to `length`, and mirrored at both ends. */
typedef struct mirrored {
    const float *samples;
    int64_t count, length;
} mirrored;

static double sample_at(const mirrored *x, int64_t i) {
    if (i < 0) i = -i;
    if (i >= x->length) i = 2 * (x->length - 1) - i;
    return i < x->count ? (double)x->samples[i] : 0;
}

/* The windowed frame centered at sample `at`: even [BINS], odd [ODD]. */
static void fill_frame(const mirrored *x, int64_t at, const double *window, double *even, double *odd) {
    even[0] = 0; /* the window is 0 there */
    even[HALF] = sample_at(x, at) * window[HALF];
    for (int n = 1; n < HALF; n++) {
        double first = sample_at(x, at - HALF + n), mirror = sample_at(x, at + HALF - n);
        even[n] = (first + mirror) * window[n];
        odd[n - 1] = (first - mirror) * window[n];
    }
}

/* A chunk's frames as log10 of their bands, [CHUNK, mels]. */
static tn_status transform(const log_mel *m, const double *even, const double *odd, double *out) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *real = tn_matmul(tn_from_data(even, TN_DIMS(CHUNK, BINS), TN_F64), m->cosines);
    tn_tensor *imaginary = tn_matmul(tn_from_data(odd, TN_DIMS(CHUNK, ODD), TN_F64), m->sines);
    tn_tensor *power = tn_add(tn_mul(real, real), tn_mul(imaginary, imaginary));
    tn_tensor *bands = tn_log10(tn_clamp(tn_matmul(power, m->filters), 1e-10, INFINITY));
    return tn_read_as(bands, out, CHUNK * m->mels, TN_F64);
}

static tn_status run_chunks(const log_mel *m, const mirrored *x, double *room, float *out) {
    int64_t frames = tn_log_mel_frames(x->count);
    double *even = room, *odd = even + CHUNK * BINS, *bands = odd + CHUNK * ODD, window[POINTS];
    float most = -INFINITY;
    for (int n = 0; n < POINTS; n++)
        window[n] = 0.5 - 0.5 * cos(2 * PI * n / POINTS);
    for (int64_t done = 0; done < frames; done += CHUNK) {
        int64_t n = frames - done < CHUNK ? frames - done : CHUNK;
        for (int64_t f = 0; f < n; f++)
            fill_frame(x, (done + f) * MEL_HOP, window, even + f * BINS, odd + f * ODD);
        TRY(transform(m, even, odd, bands));
        for (int64_t f = 0; f < n; f++)
            for (int64_t k = 0; k < m->mels; k++) {
                float value = (float)bands[f * m->mels + k];
                out[k * frames + done + f] = value;
                if (value > most) most = value;
            }
    }
    for (int64_t i = 0; i < frames * m->mels; i++)
        out[i] = ((out[i] > most - 8 ? out[i] : most - 8) + 4) / 4;
    return TN_OK;
}

tn_status tn_log_mel_run(const log_mel *m, const float *samples, int64_t count, float *out) {
    int64_t window = MEL_WINDOW_FRAMES * MEL_HOP;
    const mirrored x = {samples, count, count > window ? count : window};
    double *room = tn_txt_zalloc((size_t)CHUNK * (size_t)(BINS + ODD + m->mels), sizeof *room);
    if (!room) return TN_ERR_MEMORY;
    tn_device *before = tn_txt_enter(m->device);
    tn_status status = tn_txt_leave(m->device, before, run_chunks(m, &x, room, out));
    tn_txt_free(room);
    return status;
}
