/* run.c — `trunnion run`: an ONNX network with given or random inputs; times it and writes what comes out. Folders
 * are classifiers: classify_files.c.
 *
 * The first run reads shapes and plans, the second is captured, all later ones are replayed: those are timed. */
#define TN_NO_CALLER_LINES 1 /* errors name nodes; a line of this file would tell nothing */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/bench/bench_limits.h"
#include "cli/cli.h"
#include "cli/run/image.h"
#include "cli/run/npy.h"
#include "cli/run/run.h"
#include "trunnion/backend.h"
#include "trunnion/onnx.h"
#include "trunnion/ops.h"

enum { MOST = 64, WARM = 3, USUAL_TOP = 5 };

static int run_network(int argc, char **argv);

const cli_command cli_run = {
    .name = "run",
    .summary = "run an ONNX network, or a classifier in a model folder",
    .usage = "run MODEL.onnx [FILE] [-i NAME=FILE.npy]… [-o DIR] [--random] [--repeat N] | FOLDER FILE… [--top K]",
    .help = "  FOLDER FILE…           show the most probable classes (5, or --top K) of images or WAV\n"
            "                         files by a Hugging Face folder: ViT, DeiT, BEiT, DINOv2, Swin,\n"
            "                         ResNet, ConvNeXt, MobileNetV2; AST, Whisper, Wav2Vec 2 and\n"
            "                         its siblings\n"
            "  MODEL.onnx FILE        the same of an ONNX file's first input: an image is prepared as\n"
            "                         preprocessor_config.json beside the file or one folder up says\n"
            "                         (also one of -i), classes are named as in config.json there\n"
            "  -i, --input NAME=FILE  a NumPy file (.npy, numbers or strings) or an image (JPEG, PNG,\n"
            "                         PNM, BMP) or sound (WAV) for an input; FILE.npz: one input\n"
            "                         per member\n"
            "      --size HxW         scale images to this size if the input has an open size\n"
            "      --resize HOW       if sizes differ: stretch (default), crop or fit\n"
            "      --scale X          multiply pixels, 0 to 255, by X (default 1/255; for\n"
            "                         integer inputs 1),\n"
            "      --mean R,G,B       then subtract a mean (default 0),\n"
            "      --std R,G,B        and divide by this (default 1)\n"
            "      --bgr              order the channels blue, green, red\n"
            "      --rate N           resample sound to N samples per second (default: as in\n"
            "                         the file)\n"
            "  -o, --output DIR       write NAME.npy for each output\n"
            "      --top K            show the K largest values of each output, as classes\n"
            "      --labels FILE      class names, one per line\n"
            "      --random           use random numbers for inputs that are not given\n"
            "      --dim NAME=N       size of an open dimension of random inputs (default 1),\n"
            "                         by its name or by its position, as in x.2=48\n"
            "      --repeat N         run N more times and show the median time\n"
            "      --steps N          N runs, each fed with outputs of the previous one: states,\n"
            "                         caches of language models (-i input_ids=FILE.npy), whose\n"
            "                         most probable tokens are shown\n"
            "      --feed OUT=IN      output that becomes an input; a * in both stands for\n"
            "                         the same text\n"
            "      --recorded         on engine:onnxruntime: record the model's operators and\n"
            "                         have the engine compute that, not the file\n"
            "      --memory SIZE      fail before weights are loaded if the run would take more, as in\n"
            "                         500M (default: of large files, more than is free)\n"
            "      --profile          show the time of each command\n"
            "      --trace FILE.json  write the times in the format of chrome://tracing\n"
            "  --json                 outputs{NAME: {shape[], dtype, values[] of at most 64, else\n"
            "                         min, max, mean; file, top[][]}}, tokens[][],\n"
            "                         median_seconds (null without --repeat), first_run_seconds,\n"
            "                         profile[], device, placement, fallback[]\n"
            "\n"
            "examples:\n"
            "  trunnion run model.onnx --random --repeat 100\n"
            "  trunnion run model.onnx -i input=image.npy -o results\n"
            "  trunnion run model.onnx photo.jpg\n"
            "  trunnion run model.onnx -i input=photo.jpg --top 1\n"
            "  trunnion run vit-base-patch16-224 photo.jpg\n"
            "  trunnion run decoder.onnx -i input_ids=prompt.npy --steps 20\n"
            "  trunnion run recurrent.onnx -i x=frame.npy --steps 100 --feed hn=h --feed cn=c\n"
            "  trunnion run model.onnx -i input=photo.jpg --mean 0.48,0.45,0.4 --std 0.22\n",
    .accepts = CLI_ALL,
    .run = run_network,
};

typedef struct named {
    const char *name, *text;
} named;

typedef struct work {
    cli_options options;
    named inputs[MOST];
    int input_count;
    onnx_dims dims;
    const char *output, *trace;
    bool random, profile, recorded;
    image_options picture;
    bool for_pictures, has_picture; /* an option of theirs was given; an input is one */
    int64_t rate;                   /* of sounds; 0: as in the file */
    bool has_sound;
    int64_t repeat;
    run_steps steps;
    tn_onnx *model;
    tn_onnx_value **in, **out;
    bool twice;           /* an input was given a second time: wrong usage */
    double median, first; /* seconds; median NAN: only one run, which also planned */
    int64_t memory;       /* most bytes that the run may take; 0: free memory */
    tn_profile *profiled;
    run_top top;
    char preparation[RUN_PATH]; /* the folder that says how pictures are prepared, unless options do; "": none */
    bool prepared;              /* a picture was prepared so */
    bool ranks;                 /* a picture stands behind the model, and --top was not given */
    bool ran;                   /* failures come from the network itself */
} work;

/* "NAME=TEXT" in two; without '=' the name is empty. Names have '=' seldom, files more often: the first one counts. */
/* Takes "NAME=FILE" or "FILE" apart; the text is argv's, which is ours. */
static bool take_input(void *wishes, const char *arg) {
    work *w = wishes;
    if (w->input_count == MOST || !*arg || *arg == '=') return false;
    char *equals = strchr((char *)(uintptr_t)arg, '=');
    if (equals) *equals = 0;
    w->inputs[w->input_count++] = (named){.name = equals ? arg : "", .text = equals ? equals + 1 : arg};
    return true;
}

/* "1/255" is a number too; a single one stands for all. */
static bool take_numbers(const char *arg, double *out, int count) {
    for (int i = 0; i < count; i++) {
        char *end;
        out[i] = strtod(arg, &end);
        if (end != arg && *end == '/') {
            const char *below = end + 1;
            out[i] /= strtod(below, &end);
            if (end == below) return false;
        }
        if (end == arg || !isfinite(out[i]) || (*end && *end != ',')) return false;
        for (int k = i; i == 0 && k < count; k++)
            out[k] = out[0];
        if (!*end) return i == 0 || i == count - 1;
        arg = end + 1;
    }
    return false;
}

/* "480x640", or "224" for both. */
static bool take_size(void *at, const char *arg) {
    enum { MOST_PIXELS = 1 << 20 };
    int64_t *size = at;
    char *end;
    size[0] = size[1] = strtoll(arg, &end, 10);
    if (end != arg && *end == 'x') {
        arg = end + 1;
        size[1] = strtoll(arg, &end, 10);
    }
    return end != arg && !*end && size[0] > 0 && size[1] > 0 && size[0] <= MOST_PIXELS && size[1] <= MOST_PIXELS;
}

static bool take_scale(void *at, const char *arg) { return take_numbers(arg, at, 1); }
static bool take_mean(void *at, const char *arg) { return take_numbers(arg, at, 3); }

static bool take_std(void *at, const char *arg) {
    const double *numbers = at;
    return take_numbers(arg, at, 3) && numbers[0] != 0 && numbers[1] != 0 && numbers[2] != 0;
}

/* ---- inputs ------------------------------------------------------------------------------------------------------ */

static bool is_wav(const unsigned char *bytes, size_t size) {
    return size >= 12 && memcmp(bytes, "RIFF", 4) == 0 && memcmp(bytes + 8, "WAVE", 4) == 0;
}

static tn_onnx_info input_info(const work *w, int i) {
    tn_onnx_info info = {.struct_size = sizeof info};
    (void)tn_onnx_input_at(w->model, i, &info);
    return info;
}

static tn_status no_such_input(const work *w, const char *name) {
    char names[256] = "";
    const char *weight = NULL;
    for (int i = 0; i < tn_onnx_weight_count(w->model); i++)
        if (tn_onnx_weight_at(w->model, i, &weight) && strcmp(weight, name) == 0)
            return tn_backend_fail(TN_ERR_ARGUMENT,
                                   "'%s' has a value in the model (an initializer): it can be given only by its name, "
                                   "-i %s=FILE.npy, and only if the model lists it as an input too",
                                   name, name);
    for (int i = 0; i < tn_onnx_input_count(w->model); i++) {
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", input_info(w, i).name);
    }
    return tn_backend_fail(TN_ERR_ARGUMENT, "the model has no input '%s'; its inputs are %s", name, names);
}

/* v, which is taken over, as the input of this name. */
static tn_status give_value(work *w, const char *name, tn_onnx_value *v) {
    if (!v) return tn_error_code();
    for (int i = 0; i < tn_onnx_input_count(w->model); i++) {
        if (strcmp(input_info(w, i).name, name) != 0) continue;
        w->twice = w->in[i] != NULL;
        if (w->twice) break;
        w->in[i] = v;
        return TN_OK;
    }
    tn_onnx_value_free(v);
    if (!w->twice) return no_such_input(w, name);
    return tn_backend_fail(TN_ERR_ARGUMENT, "input '%s' is given more than once; pass one -i for it", name);
}

static tn_status give_network(work *w, const char *name, tn_tensor *t) {
    tn_onnx_value *v = tn_onnx_value_tensor(t);
    tn_free(t);
    return give_value(w, name, v);
}

static tn_status give_texts(work *w, const char *name, const unsigned char *bytes, size_t size, const char *what) {
    npy_texts t;
    TRY(npy_decode_texts(bytes, size, what, &t));
    tn_onnx_value *v = tn_onnx_value_strings((const char *const *)t.list, NULL, t.shape, t.rank);
    npy_texts_free(&t);
    return give_value(w, name, v);
}

static tn_status give_members(work *w, const char *path, const unsigned char *bytes, size_t size) {
    npz_member m;
    size_t at = 0;
    while (npz_next(bytes, size, &at, &m)) {
        tn_tensor *t;
        tn_status status;
        if (!m.packed && npy_is_text(m.bytes, m.size)) {
            status = give_texts(w, m.name, m.bytes, m.size, m.name);
        } else {
            status = npz_decode(&m, &t);
            if (status == TN_OK) status = give_network(w, m.name, t);
        }
        if (status != TN_OK) return status;
    }
    if (npz_is_end(bytes, size, at)) return TN_OK;
    return tn_backend_fail(TN_ERR_FORMAT, "'%s' is damaged or truncated: no member and no directory at byte %zu of %zu",
                           path, at, size);
}

/* Sounds, as the input of this name takes them. */
static tn_status decode_sound(const work *w, const char *name, const unsigned char *bytes, size_t size,
                              const char *path, tn_tensor **out) {
    for (int i = 0; i < tn_onnx_input_count(w->model); i++) {
        tn_onnx_info info = input_info(w, i);
        if (strcmp(info.name, name) != 0) continue;
        tn_dtype dtype = info.dtype == TN_DTYPE_COUNT ? TN_F32 : info.dtype;
        tn_status status = sound_tensor(bytes, size, w->rate, info.shape, info.rank, dtype, out);
        return status == TN_OK ? status : tn_backend_fail(status, "'%s' for input '%s': %s", path, name, tn_error());
    }
    return no_such_input(w, name);
}

/* The same of pictures. */
static tn_status decode_picture(work *w, const char *name, const unsigned char *bytes, size_t size, const char *path,
                                tn_tensor **out) {
    image picture;
    tn_status status = image_decode(bytes, size, path, &picture);
    for (int i = 0; i < tn_onnx_input_count(w->model) && status == TN_OK; i++) {
        tn_onnx_info info = input_info(w, i);
        if (strcmp(info.name, name) != 0) continue;
        tn_dtype dtype = info.dtype == TN_DTYPE_COUNT ? TN_F32 : info.dtype;
        bool prepares = w->preparation[0] && !w->for_pictures && tn_dtype_is_float(dtype);
        w->prepared |= prepares;
        status = prepares ? run_prepare_picture(w->preparation, &picture, &info, out)
                          : image_tensor(&picture, &w->picture, info.shape, info.rank, dtype, out);
        free(picture.rgb);
        return status == TN_OK ? status : tn_backend_fail(status, "'%s' for input '%s': %s", path, name, tn_error());
    }
    free(picture.rgb);
    return status == TN_OK ? no_such_input(w, name) : status;
}

static tn_status give_file(work *w, const named *n) {
    AUTO_CLI_FREE unsigned char *bytes = NULL;
    size_t size;
    tn_tensor *t;
    TRY(npy_load(n->text, &bytes, &size));
    const char *name = *n->name || tn_onnx_input_count(w->model) == 0 ? n->name : input_info(w, 0).name;
    if (npz_is(bytes, size)) return give_members(w, n->text, bytes, size);
    if (npy_is_text(bytes, size)) return give_texts(w, name, bytes, size, n->text);
    w->has_sound |= is_wav(bytes, size);
    w->has_picture |= image_is(bytes, size);
    TRY(image_is(bytes, size) ? decode_picture(w, name, bytes, size, n->text, &t)
        : is_wav(bytes, size) ? decode_sound(w, name, bytes, size, n->text, &t)
                              : npy_decode(bytes, size, n->text, &t));
    return give_network(w, name, t);
}

static tn_status make_inputs(work *w) {
    uint64_t state = w->options.seed + 1;
    tn_status status = TN_OK;
    bool made = false; /* an input at random */
    for (int i = 0; i < w->input_count && status == TN_OK; i++)
        status = give_file(w, &w->inputs[i]);
    if (status == TN_OK && w->steps.count) status = steps_begin(&w->steps, w->model);
    if (status == TN_OK && w->steps.count)
        status = steps_make_inputs(&w->steps, w->model, w->in, onnx_extent, &w->dims);
    for (int i = 0; i < tn_onnx_input_count(w->model) && status == TN_OK; i++) {
        if (w->in[i]) continue;
        tn_onnx_info info = input_info(w, i);
        made = true;
        if (w->random)
            status = onnx_random_input(&info, &w->dims, &state, &w->in[i]);
        else
            status = tn_backend_fail(TN_ERR_ARGUMENT, "input '%s' is missing: pass -i %s=FILE.npy, or --random",
                                     info.name, info.name);
    }
    if (status == TN_OK && w->random && !made && !cli_fit_state.on) /* fit appends --random */
        status = tn_backend_fail(TN_ERR_ARGUMENT, "--random has no effect: every input is given; remove it");
    if (status == TN_OK) status = onnx_dims_are_used(&w->dims);
    if (status == TN_OK && w->for_pictures && !w->has_picture)
        status = tn_backend_fail(
            TN_ERR_ARGUMENT,
            "--size, --resize, --scale, --mean, --std and --bgr apply to images, but no input is one; remove them");
    if (status == TN_OK && w->rate && !w->has_sound)
        status = tn_backend_fail(TN_ERR_ARGUMENT, "--rate applies to sound, but no input is a WAV file; remove it");
    return status;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static void free_outputs(work *w) { onnx_free_values(w->out, tn_onnx_output_count(w->model)); }

/* A run is over when its device is done with it: a device takes work and computes on beside its caller. */
static tn_status run_once(work *w, double *seconds) {
    double begun = cli_now();
    tn_status status = tn_onnx_run(w->model, w->in, w->out);
    if (status == TN_OK) status = tn_device_synchronize(tn_current_device());
    *seconds = cli_now() - begun;
    return status;
}

/* `count` runs, and the median of those behind the first `warm` ones, which also plan and compile. */
static tn_status run_many(work *w, int64_t warm, int64_t count) {
    double *seconds = malloc((size_t)count * sizeof *seconds);
    tn_status status =
        seconds ? TN_OK : tn_backend_fail(TN_ERR_MEMORY, "out of memory for %lld measurements", (long long)count);
    for (int64_t i = 0; i < count && status == TN_OK; i++) {
        free_outputs(w);
        status = run_once(w, &seconds[i]);
        if (status == TN_OK && w->steps.count) status = steps_advance(&w->steps, i, w->model, w->in, w->out);
    }
    if (status == TN_OK && w->steps.count) w->first = seconds[0];
    if (status == TN_OK && count > warm) {
        qsort(seconds + warm, (size_t)(count - warm), sizeof *seconds, bench_ascending);
        w->median = seconds[warm + (count - warm) / 2];
    }
    free(seconds);
    return status;
}

static tn_status run_profiled(work *w) {
    free_outputs(w);
    w->profiled = tn_profile_begin();
    if (!w->profiled) return TN_ERR_MEMORY;
    tn_status status = tn_onnx_run(w->model, w->in, w->out);
    tn_profile_end(w->profiled);
    return status;
}

static tn_status run_all_network(work *w) {
    w->ran = true;
    w->median = NAN;
    TRY(w->steps.count ? run_many(w, 1, w->steps.count) : run_once(w, &w->first));
    if (w->repeat) TRY(run_many(w, WARM, WARM + w->repeat));
    return (w->profile || w->trace) ? run_profiled(w) : TN_OK;
}

/* ---- what came out ----------------------------------------------------------------------------------------------- */

static tn_profile_row row_at(const work *w, int64_t i) {
    tn_profile_row row = {.struct_size = sizeof row};
    (void)tn_profile_at(w->profiled, i, &row);
    return row;
}

/* Commands one behind the other, in the order in which they first ran. */
static tn_status write_trace(const work *w) {
    cli_output file;
    TRY(cli_output_begin(&file, w->trace));
    cli_json j = {.out = file.file};
    double at = 0;
    cli_json_write(&j, "{'traceEvents': [");
    for (int64_t i = 0; i < tn_profile_count(w->profiled); i++) {
        tn_profile_row row = row_at(w, i);
        cli_json_write(&j, "{'name': %s, 'cat': %s, 'ph': 'X', 'ts': %g, 'dur': %g, 'pid': 1, 'tid': 1}", row.label,
                       row.kind, at, row.seconds * 1e6);
        at += row.seconds * 1e6;
    }
    cli_json_write(&j, "]}");
    return cli_output_commit(&file);
}

static void put_text_network(const work *w, const tn_placement *p) {
    for (int k = 0; k < tn_onnx_output_count(w->model); k++) {
        tn_onnx_info info = {.struct_size = sizeof info};
        (void)tn_onnx_output_at(w->model, k, &info);
        run_output_text(info.name, w->out[k], &w->top);
    }
    for (int64_t i = 0; w->profile && i < tn_profile_count(w->profiled); i++) {
        tn_profile_row row = row_at(w, i);
        printf("  %9.1f us  %-6s %s\n", row.seconds * 1e6, row.kind, row.label);
    }
    steps_put_text(&w->steps);
    if (isfinite(w->median))
        printf("median %.3f ms on %s", w->median * 1e3, p->device);
    else
        printf("first run %.3f ms, including planning, on %s", w->first * 1e3, p->device);
    if (p->on_host) printf(", %lld operations on the host", (long long)p->on_host);
    printf("\n");
}

static void put_profile(const work *w, cli_json *j) {
    cli_json_write(j, "'profile': [");
    for (int64_t i = 0; i < tn_profile_count(w->profiled); i++) {
        tn_profile_row row = row_at(w, i);
        cli_json_write(j, "{'command': %s, 'kind': %s, 'seconds': %g}", row.label, row.kind, row.seconds);
    }
    cli_json_write(j, "]");
}

static void put_json_network(const work *w, const tn_placement *p, const tn_selection *s, const tn_device *device) {
    cli_json j = {.out = stdout};
    cli_json_write(&j, "{'outputs': {");
    for (int k = 0; k < tn_onnx_output_count(w->model); k++) {
        tn_onnx_info info = {.struct_size = sizeof info};
        char file[300];
        (void)tn_onnx_output_at(w->model, k, &info);
        run_output_file(w->model, k, file, sizeof file);
        run_output_json(&j, info.name, w->out[k], &w->top, w->output ? file : NULL);
    }
    cli_json_write(&j, "}");
    steps_put_json(&w->steps, &j);
    cli_json_write(&j, "'median_seconds': %g, 'first_run_seconds': %g", w->median, w->first);
    if (w->profile) put_profile(w, &j);
    cli_json_write(&j, "'device': %s, 'placement': {'on_device': %jd, 'on_host': %jd}", p->device, p->on_device,
                   p->on_host);
    cli_json_fallback(&j, s, device);
    cli_json_write(&j, "}");
}

static void list_value(const char *kind, const tn_onnx_info *info) {
    fprintf(stderr, "%s %s: %s [", kind, info->name, info->type);
    for (int d = 0; d < info->rank; d++) {
        fprintf(stderr, "%s", d ? ", " : "");
        if (info->shape[d] >= 0)
            fprintf(stderr, "%lld", (long long)info->shape[d]);
        else
            fprintf(stderr, "%s", info->dims[d] ? info->dims[d] : "?");
    }
    fprintf(stderr, "]\n");
}

static void list_values(const work *w) {
    for (int i = 0; i < tn_onnx_input_count(w->model); i++) {
        tn_onnx_info info = input_info(w, i);
        list_value("input", &info);
    }
    for (int i = 0; i < tn_onnx_output_count(w->model); i++) {
        tn_onnx_info info = {.struct_size = sizeof info};
        if (tn_onnx_output_at(w->model, i, &info) == TN_OK) list_value("output", &info);
    }
}

/* An engine that runs the file makes no plan. */
static void name_device(const tn_device *device, tn_placement *p) {
    tn_device_info info = {.struct_size = sizeof info};
    if (tn_device_get_info(device, &info) == TN_OK) snprintf(p->device, sizeof p->device, "%s", info.id);
}

static tn_status open_network(work *w, const char *path) {
    tn_onnx_options o = TN_ONNX_DEFAULTS;
    o.recorded = w->recorded;
    const char *given[MOST + 1] = {NULL};
    for (int i = 0; i < w->input_count; i++)
        given[i] = w->inputs[i].name; /* in place of what the file has for it */
    o.given = given;
    tn_status status = tn_onnx_open(path, &o, &w->model);
    if (status != TN_OK) return status;
    w->in = calloc((size_t)tn_onnx_input_count(w->model) + 1, sizeof *w->in);
    w->out = calloc((size_t)tn_onnx_output_count(w->model) + 1, sizeof *w->out);
    return w->in && w->out ? TN_OK : tn_backend_fail(TN_ERR_MEMORY, "out of memory for inputs and outputs");
}

static void close_network(work *w) {
    if (w->out) free_outputs(w);
    if (w->in) onnx_free_values(w->in, tn_onnx_input_count(w->model));
    tn_onnx_close(w->model);
    free(w->in);
    free(w->out);
    w->model = NULL;
    w->in = w->out = NULL;
}

/* What is planned in a dry run. */
typedef struct dry_work {
    work *w;
    const char *path;
} dry_work;

static tn_status plan_network(void *ctx, tn_device *dry) {
    work *w = ((dry_work *)ctx)->w;
    (void)dry;
    tn_status status = open_network(w, ((dry_work *)ctx)->path);
    if (status == TN_OK) status = make_inputs(w);
    if (status == TN_OK) status = tn_onnx_run(w->model, w->in, w->out);
    close_network(w);
    return status;
}

/* Refuses a network that will not fit, before its weights are loaded. Without --memory only large files are checked. */
static tn_status check_memory(work *w, const char *path, tn_device *device) {
    enum { LARGE_SHARE = 8 };
    tn_device_info info = {.struct_size = sizeof info};
    struct stat file;
    int64_t bytes = 0;
    if (w->steps.count || cli_fit_state.on || tn_device_get_info(device, &info) != TN_OK) return TN_OK;
    bool large = info.free_memory > 0 && stat(path, &file) == 0 && file.st_size > info.free_memory / LARGE_SHARE;
    if (!w->memory && !large) return TN_OK;
    int64_t room = w->memory ? w->memory : info.free_memory;
    /* If planning fails, the run itself reports why. */
    if (cli_plan_dry(device, &w->options, 0, plan_network, &(dry_work){w, path}, &bytes, NULL) != TN_OK) return TN_OK;
    if (bytes <= room) return TN_OK;
    return tn_backend_fail(TN_ERR_MEMORY,
                           "%s needs %.1f MiB on %s, but may take %.1f MiB; run it with smaller inputs (--dim), on "
                           "another device (trunnion devices lists them), or allow more (--memory)",
                           path, (double)bytes / 0x1p20, info.id, (double)room / 0x1p20);
}

static void tell_rule(const work *w, const char *model) {
    if (w->prepared)
        cli_print(stderr, "trunnion: pictures are prepared as '%s/preprocessor_config.json' says\n", w->preparation);
    if (!w->ranks || !w->has_picture || w->for_pictures || w->preparation[0]) return;
    cli_print(stderr,
              "trunnion: '%s' has no preprocessor_config.json beside it or one folder up: a picture is stretched to "
              "the input's size and multiplied by 1/255 (see --resize, --scale, --mean, --std)\n",
              model);
}

static int do_work(work *w, const char *path) {
    tn_selection s = {.struct_size = sizeof s};
    tn_placement p = {.struct_size = sizeof p};
    int code = CLI_FAILED;
    tn_device *device = cli_choose_device(&w->options, &s, &code);
    if (!device) return code;
    tn_status status = cli_output_check(w->trace);
    if (status == TN_OK) status = run_output_check(w->output);
    if (status == TN_OK) status = check_memory(w, path, device);
    tn_manual_seed(w->options.seed);
    if (status == TN_OK) status = open_network(w, path);
    if (status == TN_OK) status = run_top_open(&w->top);
    if (status == TN_OK && w->top.count && w->preparation[0]) status = run_read_names(w->preparation, &w->top);
    if (status == TN_OK && w->options.verbose) list_values(w);
    if (status == TN_OK) status = make_inputs(w);
    if (status == TN_OK) tell_rule(w, path);
    if (status == TN_OK) status = run_all_network(w);
    if (status == TN_OK) status = tn_get_placement(&p);
    if (!p.device[0]) name_device(device, &p);
    bool asked = !w->ranks || w->top.path; /* for classes */
    if (status == TN_OK && !asked && run_top_check(&w->top, w->model, w->out) != TN_OK) w->top.count = 0;
    if (status == TN_OK && asked) status = run_top_check(&w->top, w->model, w->out);
    if (status == TN_OK && w->output) status = run_output_write(w->model, w->out, w->output);
    if (status == TN_OK && w->trace) status = write_trace(w);
    if (status != TN_OK) {
        code = cli_failed();
        if (w->twice) code = CLI_USAGE;
        if (w->ran) onnx_tell_guess(&w->dims);
        return code;
    }
    if (w->options.json)
        put_json_network(w, &p, &s, device);
    else
        put_text_network(w, &p);
    return CLI_OK;
}

/* FILE behind the model, as its first input: what a picture shows. */
static void take_file(work *w, const char *file) {
    w->inputs[w->input_count++] = (named){.name = "", .text = file};
    w->ranks = w->top.count == 0;
    if (w->ranks) w->top.count = USUAL_TOP;
}

/* A folder knows how its input is prepared. */
static int run_folder(work *w, const cli_option *own, char **words, int count) {
    for (const cli_option *o = own; o->name; o++)
        if (strcmp(o->name, "top") != 0 && cli_is_given(&w->options, own, o->name))
            return cli_wrong_usage(&cli_run, "--%s applies to ONNX networks, but '%s' is a folder; remove it", o->name,
                                   words[0]);
    if (count < 2) return cli_wrong_usage(&cli_run, "missing file: pass an image or a WAV file after the folder");
    return run_classifier(&w->options, words[0], words + 1, count - 1, w->top.count ? w->top.count : USUAL_TOP);
}

static int run_network(int argc, char **argv) {
    static const cli_option own[] = {
        CLI_EACH("input", 'i', work, options, take_input),
        CLI_NAME("output", 'o', work, output),
        CLI_FLAG("random", 0, work, random),
        CLI_INT("repeat", 0, work, repeat, 1, 1 << 30),
        CLI_INT("steps", 0, work, steps.count, 1, 1 << 20),
        CLI_EACH("feed", 0, work, steps, steps_take_pair),
        CLI_FLAG("recorded", 0, work, recorded),
        CLI_EACH("dim", 0, work, dims, onnx_take_dim),
        CLI_FLAG("profile", 0, work, profile),
        CLI_NAME("trace", 0, work, trace),
        CLI_BYTES("memory", 0, work, memory, 1, INT64_MAX),
        CLI_CHOICE("resize", 0, work, picture.resize, "stretch|crop|fit", IMAGE_STRETCH),
        CLI_TAKE("scale", 0, work, picture.scale, take_scale),
        CLI_TAKE("mean", 0, work, picture.mean, take_mean),
        CLI_TAKE("std", 0, work, picture.std, take_std),
        CLI_FLAG("bgr", 0, work, picture.bgr),
        CLI_TAKE("size", 0, work, picture.size, take_size),
        CLI_INT("rate", 0, work, rate, 1000, 192000),
        CLI_INT("top", 0, work, top.count, 1, 1 << 20),
        CLI_NAME("labels", 0, work, top.path),
        {0},
    };
    work w = {0};
    tn_onnx_set_image_decoder(image_decode_for_onnx);
    int status, first = cli_parse(&cli_run, argc, argv, &w.options, own, &w, &status);
    if (first < 0) return status;
    static const char *const of_pictures[] = {"resize", "scale", "mean", "std", "bgr", "size"};
    for (size_t i = 0; i < sizeof of_pictures / sizeof *of_pictures; i++)
        w.for_pictures |= cli_is_given(&w.options, own, of_pictures[i]);
    if (first == argc) return cli_wrong_usage(&cli_run, "missing model: pass an ONNX file or a folder");
    if (cli_is_folder(argv[first])) return run_folder(&w, own, argv + first, argc - first);
    if (first + 2 < argc || (first + 1 < argc && w.input_count == MOST))
        return cli_wrong_usage(&cli_run, "unexpected argument \"%s\"", argv[argc - 1]);
    if (first + 1 < argc) take_file(&w, argv[first + 1]);
    const char *kind = cli_file_kind(argv[first]);
    if (kind && strcmp(kind, "an ONNX model") != 0)
        return cli_fail(TN_ERR_FORMAT, "'%s' is not an ONNX model, nor the folder of a classifier", argv[first]);
    if (!run_find_preparation(argv[first], w.preparation)) w.preparation[0] = 0;
    if (w.steps.count && w.repeat)
        return cli_wrong_usage(
            &cli_run, "--steps and --repeat exclude each other: steps change the inputs, repeated runs do not");
    if (w.steps.count && w.memory)
        return cli_wrong_usage(&cli_run, "--memory has no effect with --steps: its runs are not planned ahead");
    if (w.steps.pair_count && !w.steps.count) return cli_wrong_usage(&cli_run, "--feed requires --steps");
    if (w.steps.twice) return cli_wrong_usage(&cli_run, "--feed names \"%s\" more than once", w.steps.twice);
    if (w.dims.twice) return onnx_dim_twice(&cli_run, &w.dims);
    if (w.top.path && !w.top.count) return cli_wrong_usage(&cli_run, "--labels requires --top K");
    int code = do_work(&w, argv[first]);
    run_top_close(&w.top);
    steps_end(&w.steps);
    close_network(&w);
    tn_profile_free(w.profiled);
    return code;
}
