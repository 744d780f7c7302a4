/* classify_files.c — `trunnion run FOLDER FILE…`: what is in pictures or sounds, by a classifier in a Hugging Face
 * folder. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/run/image.h"
#include "cli/run/npy.h"
#include "cli/run/run.h"
#include "trunnion/backend.h"
#include "trunnion/classify.h"
#include "trunnion/speech.h"

typedef struct classifying {
    tn_classifier *model;
    tn_classifier_facts facts;
    float *logits;  /* [classes] */
    double *shares; /* [files, classes] probabilities */
    double seconds; /* of the first file */
} classifying;

static tn_status run_bytes(classifying *w, const unsigned char *bytes, size_t size, const char *file) {
    image picture = {0};
    tn_audio sound = {0};
    tn_status status = TN_OK;
    if (!w->facts.hears) TRY(image_decode(bytes, size, file, &picture)); /* its errors name the file */
    if (w->facts.hears)
        status = tn_audio_parse(bytes, size, TN_SPEECH_RATE, &sound);
    else
        status = tn_classifier_picture(w->model, picture.rgb, picture.height, picture.width, w->logits);
    if (status == TN_OK && w->facts.hears)
        status = tn_classifier_sound(w->model, sound.samples, sound.count, w->logits);
    tn_audio_free(&sound);
    free(picture.rgb);
    return status == TN_OK ? status : tn_backend_fail(status, "'%s': %s", file, tn_error());
}

static tn_status run_file(classifying *w, const char *file, double *shares) {
    unsigned char *bytes;
    size_t size;
    TRY(npy_load(file, &bytes, &size));
    tn_status status = run_bytes(w, bytes, size, file);
    free(bytes);
    if (status != TN_OK) return status;
    tn_classifier_probabilities(w->model, w->logits);
    for (int64_t i = 0; i < w->facts.classes; i++) {
        shares[i] = (double)w->logits[i];
        if (isnan(shares[i]))
            return tn_backend_fail(TN_ERR_FORMAT,
                                   "'%s': the model's result for class %lld is not a number; are its weights damaged?",
                                   file, (long long)i);
    }
    return TN_OK;
}

static tn_status run_files(classifying *w, char *const *files, int count) {
    size_t classes = (size_t)w->facts.classes;
    w->logits = malloc(classes * sizeof *w->logits);
    w->shares = calloc((size_t)count * classes, sizeof *w->shares);
    if (!w->logits || !w->shares) return tn_backend_fail(TN_ERR_MEMORY, "out of memory for %zu classes", classes);
    double begun = cli_now();
    for (int i = 0; i < count; i++) {
        TRY(run_file(w, files[i], w->shares + (size_t)i * classes));
        if (i == 0) w->seconds = cli_now() - begun;
    }
    return TN_OK;
}

static void put_text(const classifying *w, char *const *files, int count, int64_t top, const char *device) {
    for (int f = 0; f < count; f++) {
        const double *row = w->shares + f * w->facts.classes;
        int64_t at = -1;
        cli_print(stdout, "%s\n", files[f]);
        for (int64_t i = 0; i < top && (at = run_next_largest(row, w->facts.classes, at)) >= 0; i++) {
            printf("  %8lld  %.4f  ", (long long)at, row[at]);
            run_put_label(tn_classifier_label(w->model, at));
        }
    }
    printf("first run %.3f ms, including planning, on %s\n", w->seconds * 1e3, device);
}

static void put_json(const classifying *w, int count, int64_t top, const tn_selection *s, const tn_device *device) {
    cli_json j = {.out = stdout};
    cli_json_write(&j, "{'outputs': {'probabilities': {'shape': [%d, %jd], 'dtype': 'f32', 'top': [", count,
                   w->facts.classes);
    for (int f = 0; f < count; f++) {
        const double *row = w->shares + f * w->facts.classes;
        int64_t at = -1;
        cli_json_write(&j, "[");
        for (int64_t i = 0; i < top && (at = run_next_largest(row, w->facts.classes, at)) >= 0; i++)
            cli_json_write(&j, "{'index': %jd, 'value': %g, 'label': %s}", at, row[at],
                           tn_classifier_label(w->model, at));
        cli_json_write(&j, "]");
    }
    cli_json_write(&j, "]}}, 'first_run_seconds': %g, 'device': %s", w->seconds, s->chosen);
    cli_json_fallback(&j, s, device);
    cli_json_write(&j, "}");
}

int run_classifier(const cli_options *options, const char *folder, char *const *files, int count, int64_t top) {
    tn_selection s = {.struct_size = sizeof s};
    classifying w = {.facts = {.struct_size = sizeof w.facts}};
    int code = CLI_FAILED;
    tn_device *device = cli_choose_device(options, &s, &code);
    if (!device) return code;
    tn_classifier_options o = TN_CLASSIFIER_DEFAULTS;
    o.device = device;
    tn_status status = tn_classifier_open(folder, &o, &w.model);
    if (status == TN_OK) status = tn_classifier_get_facts(w.model, &w.facts);
    if (status == TN_OK) status = run_files(&w, files, count);
    if (status == TN_OK && options->json)
        put_json(&w, count, top, &s, device);
    else if (status == TN_OK)
        put_text(&w, files, count, top, s.chosen);
    code = status == TN_OK ? CLI_OK : cli_failed();
    free(w.logits);
    free(w.shares);
    tn_classifier_close(w.model);
    return code;
}
