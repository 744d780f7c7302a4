/* wav.c — WAV files as one channel of floats at a wanted rate; log-mel features of sound.
 *
 * A file is a list of chunks; "fmt " says how the samples of "data" are stored. Resampling convolves with a windowed
 * sinc. The ratio of the rates is a fraction up / down, so only `up` different sets of filter taps occur: they are
 * computed once, and an output sample is one dot product. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/speech_model.h"
#include "text/text_common.h"
#include "trunnion/speech.h"

enum {
    LEAST_RATE = 1000,
    MOST_RATE = 192000, /* bounds the table of taps: 16000 sets of 3072 … */
    MOST_CHANNELS = 64,
    ZEROS = 32 /* zero crossings of the sinc to either side */
};
static const double ROLLOFF = 0.945, BETA = 10.06; /* pass band, and a Kaiser window with 100 dB stop band */
static const double PI = 3.14159265358979323846;

/* ---- chunks ------------------------------------------------------------------------------------------------------ */

typedef struct wav_bytes {
    const uint8_t *data;
    size_t size;
} wav_bytes;

enum { CODE_PCM = 1, CODE_FLOAT = 3, CODE_EXTENSIBLE = 0xfffe };

/* How samples are stored. */
typedef struct wav_format {
    unsigned code, channels, bits, frame_bytes;
    int64_t rate;
} wav_format;

static uint32_t little16(const uint8_t *p) { return p[0] | (uint32_t)p[1] << 8; }
static uint32_t little32(const uint8_t *p) { return little16(p) | little16(p + 2) << 16; }

static tn_status bad(const char *what) { return tn_backend_fail(TN_ERR_FORMAT, "WAV: %s", what); }

/* Programs that write to a pipe do not know the length, and write nearly the greatest number, or 0 for all lengths. */
static bool is_open_end(uint32_t size) { return size >= 0x7fff0000u; }

/* The first chunk with this name; chunks begin at even bytes. */
static tn_status find_chunk(wav_bytes file, const char *name, wav_bytes *out) {
    bool open = little32(file.data + 4) == 0 && memcmp(name, "data", 4) == 0;
    size_t at = 12;
    while (file.size - at >= 8) {
        const uint8_t *head = file.data + at;
        uint32_t size = little32(head + 4);
        size_t left = file.size - at - 8;
        bool wanted = memcmp(head, name, 4) == 0;
        if (wanted && (is_open_end(size) || (size == 0 && open)))
            size = (uint32_t)(left < UINT32_MAX ? left : UINT32_MAX);
        if (size > left)
            return tn_backend_fail(TN_ERR_FORMAT,
                                   "WAV: the chunk at byte %zu has %" PRIu32 " bytes, but only %zu follow: is the file "
                                   "complete?",
                                   at, size, left);
        *out = (wav_bytes){head + 8, size};
        if (wanted) return TN_OK;
        at += 8 + (size_t)size + (size & 1 && size < left);
    }
    return tn_backend_fail(TN_ERR_FORMAT, "WAV: the chunk '%s' is missing", name);
}

static tn_status read_format(wav_bytes chunk, wav_format *f) {
    if (chunk.size < 16) return bad("the chunk 'fmt ' is shorter than 16 bytes");
    const uint8_t *p = chunk.data;
    *f = (wav_format){little16(p), little16(p + 2), little16(p + 14), little16(p + 12), little32(p + 4)};
    if (f->code == CODE_EXTENSIBLE && chunk.size >= 26) f->code = little16(p + 24);
    bool pcm = f->code == CODE_PCM && (f->bits == 8 || f->bits == 16 || f->bits == 24 || f->bits == 32);
    bool real = f->code == CODE_FLOAT && (f->bits == 32 || f->bits == 64);
    if (!pcm && !real)
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "WAV: encoding %u with %u bits is not supported; convert the file to 16-bit PCM "
                               "(ffmpeg -i IN -c:a pcm_s16le OUT.wav)",
                               f->code, f->bits);
    if (f->channels < 1 || f->channels > MOST_CHANNELS)
        return tn_backend_fail(TN_ERR_UNSUPPORTED, "WAV: %u channels; supported are 1 to %d", f->channels,
                               MOST_CHANNELS);
    if (f->frame_bytes != f->channels * f->bits / 8)
        return tn_backend_fail(TN_ERR_FORMAT, "WAV: %u channels of %u bits take %u bytes, but the file says %u",
                               f->channels, f->bits, f->channels * f->bits / 8, f->frame_bytes);
    if (f->rate >= LEAST_RATE && f->rate <= MOST_RATE) return TN_OK;
    return tn_backend_fail(TN_ERR_UNSUPPORTED, "WAV: %" PRId64 " samples per second; supported are %d to %d", f->rate,
                           LEAST_RATE, MOST_RATE);
}

/* ---- samples ----------------------------------------------------------------------------------------------------- */

static double sample_of(const uint8_t *p, const wav_format *f) {
    float single;
    double number;
    uint64_t wide;
    uint32_t word;
    if (f->code == CODE_FLOAT && f->bits == 32) {
        word = little32(p);
        memcpy(&single, &word, sizeof single);
        return single;
    }
    if (f->code == CODE_FLOAT) {
        wide = little32(p) | (uint64_t)little32(p + 4) << 32;
        memcpy(&number, &wide, sizeof number);
        return number;
    }
    if (f->bits == 8) return (p[0] - 128.0) / 128;
    if (f->bits == 16) return (int16_t)little16(p) / 32768.0;
    if (f->bits == 24) return (int32_t)((little16(p) << 8) | (uint32_t)p[2] << 24) / 2147483648.0;
    return (int32_t)little32(p) / 2147483648.0;
}

static tn_status read_samples(wav_bytes data, const wav_format *f, tn_audio *out) {
    int64_t count = (int64_t)(data.size / f->frame_bytes);
    if (count < 1) return bad("it has no samples");
    out->samples = tn_txt_alloc((size_t)count, sizeof *out->samples);
    if (!out->samples) return TN_ERR_MEMORY;
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *frame = data.data + (size_t)i * f->frame_bytes;
        double sum = 0;
        for (unsigned c = 0; c < f->channels; c++)
            sum += sample_of(frame + c * f->bits / 8, f);
        out->samples[i] = (float)(sum / f->channels);
        if (!isfinite(out->samples[i]))
            return tn_backend_fail(TN_ERR_FORMAT, "WAV: sample %" PRId64 " is %g, not a finite number of f32", i, sum);
    }
    out->count = count;
    out->rate = out->source_rate = f->rate;
    out->channels = (int)f->channels;
    return TN_OK;
}

/* ---- resampling -------------------------------------------------------------------------------------------------- */

/* The modified Bessel function I0, by its series. */
static double bessel(double x) {
    double sum = 1, term = 1;
    for (int k = 1; term > sum * 1e-17; k++) {
        term *= x / (2 * k) * (x / (2 * k));
        sum += term;
    }
    return sum;
}

/* The filter at a distance in zero crossings: a sinc inside a Kaiser window. peak: bessel(BETA). */
static double filter_at(double x, double peak) {
    double inside = 1 - x / ZEROS * (x / ZEROS);
    if (inside <= 0) return 0;
    double sinc = x == 0 ? 1 : sin(PI * x) / (PI * x);
    return sinc * bessel(BETA * sqrt(inside)) / peak;
}

typedef struct resampler {
    int64_t up, down; /* output rate : input rate, without a common factor */
    int64_t taps;     /* of one set */
    double scale;     /* zero crossings per input sample */
    float *table;     /* [up, taps] */
} resampler;

static int64_t common_factor(int64_t a, int64_t b) { return b ? common_factor(b, a % b) : a; }

/* Output sample i lies at i · down / up of the input. Taps of set p = i · down mod up begin at the first input sample
 * within reach of it. */
static tn_status make_taps(int64_t from, int64_t to, resampler *r) {
    double peak = bessel(BETA);
    int64_t factor = common_factor(from, to);
    r->up = to / factor;
    r->down = from / factor;
    r->scale = ROLLOFF * (to < from ? (double)to / (double)from : 1);
    int64_t reach = (int64_t)ceil(ZEROS / r->scale);
    r->taps = 2 * reach;
    r->table = tn_txt_alloc((size_t)r->up, (size_t)r->taps * sizeof *r->table);
    if (!r->table) return TN_ERR_MEMORY;
    for (int64_t p = 0; p < r->up; p++) {
        float *set = r->table + p * r->taps;
        double sum = 0;
        for (int64_t k = 0; k < r->taps; k++) {
            double away = fabs((double)(k - reach + 1) - (double)p / (double)r->up);
            set[k] = (float)filter_at(away * r->scale, peak);
            sum += (double)set[k];
        }
        for (int64_t k = 0; k < r->taps; k++)
            set[k] = (float)((double)set[k] / sum); /* a constant stays what it is */
    }
    return TN_OK;
}

static void resample(const resampler *r, const float *in, int64_t count, float *out, int64_t out_count) {
    for (int64_t i = 0; i < out_count; i++) {
        int64_t at = i * r->down / r->up, p = i * r->down % r->up, first = at - r->taps / 2 + 1;
        const float *set = r->table + p * r->taps;
        double sum = 0;
        for (int64_t k = first < 0 ? -first : 0; k < r->taps && first + k < count; k++)
            sum += (double)set[k] * (double)in[first + k];
        out[i] = (float)sum;
    }
}

static tn_status change_rate(tn_audio *a, int64_t rate) {
    resampler r = {0};
    if (a->count > INT64_MAX / MOST_RATE) return bad("it is too long");
    int64_t count = (a->count * rate + a->rate - 1) / a->rate;
    AUTO_TXT_FREE float *out = tn_txt_alloc((size_t)count, sizeof *out);
    if (!out) return TN_ERR_MEMORY;
    TRY(make_taps(a->rate, rate, &r));
    resample(&r, a->samples, a->count, out, count);
    tn_txt_free_each(a->samples, r.table);
    a->samples = out;
    a->count = count;
    a->rate = rate;
    out = NULL;
    return TN_OK;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

void tn_audio_free(tn_audio *audio) {
    if (!audio) return;
    tn_txt_free(audio->samples);
    *audio = (tn_audio){0};
}

static tn_status parse(wav_bytes file, int64_t rate, tn_audio *out) {
    wav_bytes format, data;
    wav_format f = {0};
    if (file.size < 12 || memcmp(file.data, "RIFF", 4) != 0 || memcmp(file.data + 8, "WAVE", 4) != 0)
        return bad(
            "not a WAV file (it does not begin with RIFF and WAVE); convert it, such as with ffmpeg -i IN OUT.wav");
    TRY(find_chunk(file, "fmt ", &format));
    TRY(read_format(format, &f));
    TRY(find_chunk(file, "data", &data));
    TRY(read_samples(data, &f, out));
    return rate == 0 || rate == out->rate ? TN_OK : change_rate(out, rate);
}

tn_status tn_audio_parse(const void *data, size_t size, int64_t rate, tn_audio *out) {
    if (!out) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_audio_parse: out is NULL");
    *out = (tn_audio){0};
    if (!data) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_audio_parse: data is NULL");
    if (rate != 0 && (rate < LEAST_RATE || rate > MOST_RATE))
        return tn_backend_fail(TN_ERR_ARGUMENT, "tn_audio_parse: the rate is %" PRId64 "; it must be 0, or %d to %d",
                               rate, LEAST_RATE, MOST_RATE);
    tn_status status = parse((wav_bytes){data, size}, rate, out);
    if (status != TN_OK) tn_audio_free(out);
    return status;
}

/* Stops early where the file is something else, or longer than a WAV file can be: /dev/zero has no end. */
static tn_status read_wav(FILE *f, tn_bytes *out) {
    const size_t most = (size_t)UINT32_MAX;
    char part[1 << 14];
    size_t n;
    while ((n = fread(part, 1, sizeof part, f)) > 0) {
        TRY(tn_bytes_append(out, part, n));
        if (out->size >= 4 && memcmp(out->data, "RIFF", 4) != 0) return TN_OK;
        if (out->size > most - sizeof part) return bad("it is longer than 4 GiB");
    }
    return ferror(f) ? TN_ERR_IO : TN_OK;
}

tn_status tn_audio_read(const char *path, int64_t rate, tn_audio *out) {
    if (!path || !out) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_audio_read: the path or out is NULL");
    *out = (tn_audio){0};
    FILE *f = fopen(path, "rb");
    if (!f) return tn_backend_fail(TN_ERR_IO, "cannot open '%s': %s", path, strerror(errno));
    AUTO_BYTES tn_bytes bytes = {0};
    tn_status status = read_wav(f, &bytes);
    if (status == TN_ERR_IO) status = tn_backend_fail(TN_ERR_IO, "reading '%s' failed: %s", path, strerror(errno));
    fclose(f);
    TRY(status);
    status = tn_audio_parse(bytes.size ? bytes.data : "", bytes.size, rate, out);
    if (status != TN_ERR_FORMAT && status != TN_ERR_UNSUPPORTED) return status;
    char reason[400];
    snprintf(reason, sizeof reason, "%s", tn_error());
    return tn_backend_fail(status, "'%s': %s", path, reason);
}

/* ==== features of sound =========================================================================================== */
/* The power of 10 ms steps of sound in bands of the mel scale, as logarithms: Whisper's, and Kaldi's of AST.
 *
 * Everything is f64, because the logarithm enlarges rounding errors of quiet bands. */

enum {
    POINTS = 400, /* of a frame: 25 ms */
    HALF = POINTS / 2,
    KALDI_POINTS = 512, /* the frame with zeros after it */
    CHUNK = 1000        /* frames that are computed at once */
};
static const double PREEMPHASIS = 0.97, LOWEST = 20 /* hertz */; /* Kaldi's */

/* ---- filters ----------------------------------------------------------------------------------------------------- */

/* Slaney's scale: linear up to 1000 Hz, logarithmic above. */
static double mel_of(double hertz) { return hertz < 1000 ? 3 * hertz / 200 : 15 + log(hertz / 1000) * 27 / log(6.4); }
static double hertz_of(double mel) { return mel < 15 ? 200 * mel / 3 : 1000 * exp(log(6.4) / 27 * (mel - 15)); }

/* Triangles between neighbouring points of the scale, each of area 1: [bins, mels]. */
static void fill_filters(int64_t mels, double *out) {
    double top = mel_of(8000), step = top / (double)(mels + 1);
    for (int64_t m = 0; m < mels; m++) {
        double low = hertz_of(step * (double)m), middle = hertz_of(step * (double)(m + 1));
        double high = hertz_of(m == mels - 1 ? top : step * (double)(m + 2));
        for (int k = 0; k <= HALF; k++) {
            double hertz = 8000.0 * k / HALF;
            double up = (hertz - low) / (middle - low), down = (high - hertz) / (high - middle);
            double height = up < down ? up : down;
            out[k * mels + m] = height > 0 ? height * 2 / (high - low) : 0;
        }
    }
}

static double kaldi_mel(double hertz) { return 1127 * log(1 + hertz / 700); }

/* Triangles on Kaldi's scale itself, each of height 1. */
static void fill_kaldi_filters(int64_t mels, double *out) {
    double low = kaldi_mel(LOWEST), step = (kaldi_mel(TN_SPEECH_RATE / 2.0) - low) / (double)(mels + 1);
    for (int k = 0; k <= KALDI_POINTS / 2; k++)
        for (int64_t m = 0; m < mels; m++) {
            double at = (kaldi_mel((double)TN_SPEECH_RATE * k / KALDI_POINTS) - low) / step - (double)(m + 1);
            out[k * mels + m] = fabs(at) < 1 ? 1 - fabs(at) : 0;
        }
}

static tn_status make_filters(log_mel *m) {
    int64_t bins = m->points / 2 + 1;
    double *room = tn_txt_alloc((size_t)bins, (size_t)m->mels * sizeof *room);
    if (!room) return TN_ERR_MEMORY;
    if (m->points == POINTS)
        fill_filters(m->mels, room);
    else
        fill_kaldi_filters(m->mels, room);
    {
        TN_SCOPE;
        m->filters = tn_retain(tn_from_data(room, TN_DIMS(bins, m->mels), TN_F64));
    }
    tn_txt_free(room);
    return tn_eval(&m->filters, 1);
}

tn_status tn_log_mel_init(log_mel *m, int64_t mels, bool kaldi) {
    *m = (log_mel){.mels = mels, .points = kaldi ? KALDI_POINTS : POINTS};
    TRY(tn_device_open("cpu", NULL, NULL, &m->device));
    AUTO_DEVICE(m->device);
    return make_filters(m);
}

void tn_log_mel_free(log_mel *m) {
    tn_free(m->filters);
    tn_device_close(m->device);
    *m = (log_mel){0};
}

/* ---- frames ------------------------------------------------------------------------------------------------------ */

int64_t tn_log_mel_frames(int64_t count) {
    int64_t frames = count / MEL_HOP;
    return frames > MEL_WINDOW_FRAMES ? frames : MEL_WINDOW_FRAMES;
}

/* The sound, with silence after it up to `length`, and mirrored at both ends. */
typedef struct mirrored {
    const float *samples;
    int64_t count, length;
} mirrored;

static double sample_at(const mirrored *x, int64_t i) {
    if (i < 0) i = -i;
    if (i >= x->length) i = 2 * (x->length - 1) - i;
    return i < x->count ? (double)x->samples[i] : 0;
}

/* Samples around sample `at` of the sound, in a window: [POINTS]. */
static void fill_frame(const mirrored *x, int64_t at, const double *window, double *out) {
    for (int n = 0; n < POINTS; n++)
        out[n] = sample_at(x, at - HALF + n) * window[n];
}

/* Kaldi's frame from `at` on: without its mean, its higher frequencies raised, in a window. */
static void fill_kaldi_frame(const float *at, double *out) {
    double mean = 0;
    for (int i = 0; i < POINTS; i++)
        mean += (double)at[i] / POINTS;
    for (int i = 0; i < POINTS; i++) {
        double before = (double)at[i ? i - 1 : 0] - mean, window = 0.5 - 0.5 * cos(2 * PI * i / (POINTS - 1));
        out[i] = ((double)at[i] - mean - PREEMPHASIS * before) * window;
    }
}

/* The energy of frames [rows, points] in bands, [rows, mels], at least `floor`. */
static tn_status transform(const log_mel *m, const double *frames, int64_t rows, double floor, double *out) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *spectrum = tn_rfft(tn_from_data(frames, TN_DIMS(rows, m->points), TN_F64), -1, -1, TN_FFT_BACKWARD);
    tn_tensor *power = tn_sum(tn_mul(spectrum, spectrum), (int64_t[]){2}, 1, false);
    return tn_read_as(tn_clamp(tn_matmul(power, m->filters), floor, INFINITY), out, rows * m->mels, TN_F64);
}

static tn_status run_chunks(const log_mel *m, const mirrored *x, double *room, float *out) {
    int64_t frames = tn_log_mel_frames(x->count);
    double *bands = room + CHUNK * POINTS, window[POINTS];
    float most = -INFINITY;
    for (int n = 0; n < POINTS; n++)
        window[n] = 0.5 - 0.5 * cos(2 * PI * n / POINTS);
    for (int64_t done = 0; done < frames; done += CHUNK) {
        int64_t n = frames - done < CHUNK ? frames - done : CHUNK;
        for (int64_t f = 0; f < n; f++)
            fill_frame(x, (done + f) * MEL_HOP, window, room + f * POINTS);
        TRY(transform(m, room, CHUNK, 1e-10, bands));
        for (int64_t f = 0; f < n; f++)
            for (int64_t k = 0; k < m->mels; k++) {
                float value = (float)log10(bands[f * m->mels + k]);
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
    AUTO_TXT_FREE double *room = tn_txt_zalloc((size_t)CHUNK * (size_t)(POINTS + m->mels), sizeof *room);
    if (!room) return TN_ERR_MEMORY;
    AUTO_DEVICE(m->device);
    return run_chunks(m, &x, room, out);
}

tn_status tn_log_mel_kaldi(const log_mel *m, const float *samples, int64_t count, int64_t rows, float *out) {
    int64_t whole = count < POINTS ? 0 : (count - POINTS) / MEL_HOP + 1;
    if (whole < rows) rows = whole;
    if (rows < 1)
        return tn_backend_fail(TN_ERR_ARGUMENT, "%" PRId64 " samples are fewer than a frame has, %d", count, POINTS);
    AUTO_TXT_FREE double *room = tn_txt_zalloc((size_t)rows, (size_t)(m->points + m->mels) * sizeof *room);
    if (!room) return TN_ERR_MEMORY;
    for (int64_t i = 0; i < rows; i++)
        fill_kaldi_frame(samples + i * MEL_HOP, room + i * m->points);
    AUTO_DEVICE(m->device);
    double *bands = room + rows * m->points;
    TRY(transform(m, room, rows, 1.1920928955078125e-7, bands));
    for (int64_t i = 0; i < rows * m->mels; i++)
        out[i] = (float)log(bands[i]);
    return TN_OK;
}
