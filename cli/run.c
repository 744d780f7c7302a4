/* run.c — `trunnion run`: an ONNX network with given or random inputs; times it and writes what comes out.
 *
 * The first run reads shapes and plans, the second is captured, all later ones are replayed: those are timed. */
#define TN_NO_CALLER_LINES 1 /* errors name nodes; a line of this file would tell nothing */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "commands.h"
#include "image.h"
#include "npy.h"
#include "onnx_input.h"
#include "run_steps.h"
#include "trunnion/backend.h"
#include "trunnion/onnx.h"
#include "trunnion/ops.h"

enum {
    OPT_RANDOM = 256,
    OPT_REPEAT,
    OPT_STEPS,
    OPT_FEED,
    OPT_DIM,
    OPT_PROFILE,
    OPT_TRACE,
    OPT_RESIZE,
    OPT_SCALE,
    OPT_MEAN,
    OPT_STD,
    OPT_BGR,
    MOST = 64,
    WARM = 3
};

static int run(int argc, char **argv);

const cli_command cli_run = {
    .name = "run",
    .summary = "run an ONNX network",
    .usage = "run MODEL.onnx [-i NAME=FILE.npy]… [-o DIR] [--random] [--repeat N]",
    .help = "  -i, --input NAME=FILE  a NumPy file (.npy) or a picture (JPEG, PNG, PNM, BMP) for an input; FILE.npz "
            "alone:\n"
            "                         its members by name\n"
            "      --resize HOW       a picture whose extents the input has not: stretch (default), crop, fit\n"
            "      --scale X          its numbers, 0 to 255, are multiplied by X (default 1/255, of whole numbers 1),\n"
            "      --mean R,G,B       then a mean is subtracted (default 0),\n"
            "      --std R,G,B        and they are divided by this (default 1)\n"
            "      --bgr              channels the other way round\n"
            "  -o, --output DIR       writes NAME.npy for each output\n"
            "      --random           random numbers for inputs that are not given\n"
            "      --dim NAME=N       the extent of an open dim of random inputs (default 1): by its name, or by "
            "place, x.2=48\n"
            "      --repeat N         runs it N times more and tells the median\n"
            "      --steps N          N runs one after another, each given what came out of the last one: states, "
            "caches of\n"
            "                         language models (-i input_ids=FILE.npy), whose likeliest tokens are told\n"
            "      --feed OUT=IN      which output becomes which input then; a * in both stands for the same text\n"
            "      --profile          what each command takes\n"
            "      --trace FILE.json  the same for chrome://tracing\n"
            "  --json                 outputs{NAME: {shape[], dtype}}, tokens[][], median_seconds, device, placement,\n"
            "                         fallback[]\n"
            "\n"
            "examples:\n"
            "  trunnion run model.onnx --random --repeat 100\n"
            "  trunnion run model.onnx -i input=image.npy -o results\n"
            "  trunnion run decoder.onnx -i input_ids=prompt.npy --steps 20\n"
            "  trunnion run recurrent.onnx -i x=frame.npy --steps 100 --feed hn=h --feed cn=c\n"
            "  trunnion run model.onnx -i input=photo.jpg --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225\n",
    .accepts = CLI_ALL,
    .run = run,
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
    bool random, profile;
    image_options picture;
    bool for_pictures, has_picture; /* an option of theirs was given; an input is one */
    int64_t repeat;
    run_steps steps;
    tn_onnx *model;
    tn_onnx_value **in, **out;
    double median;
    tn_profile *profiled;
} work;

/* "NAME=TEXT" in two; without '=' the name is empty. Names have '=' seldom, files more often: the first one counts. */
static bool split(char *arg, named *list, int *count) {
    if (*count == MOST || !*arg) return false;
    char *equals = strchr(arg, '=');
    if (equals) *equals = 0;
    list[(*count)++] = (named){.name = equals ? arg : "", .text = equals ? equals + 1 : arg};
    return true;
}

static bool take_resize(const char *arg, image_resize *out) {
    static const char *const words[] = {[IMAGE_STRETCH] = "stretch", [IMAGE_CROP] = "crop", [IMAGE_FIT] = "fit"};
    for (int i = 0; i <= IMAGE_FIT; i++) {
        if (strcmp(arg, words[i]) != 0) continue;
        *out = (image_resize)i;
        return true;
    }
    return false;
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

static bool none_is_zero(const double *numbers, int count) {
    for (int i = 0; i < count; i++)
        if (numbers[i] == 0) return false;
    return true;
}

static bool take(void *ctx, int val, const char *arg) {
    work *w = ctx;
    char *own = (char *)(uintptr_t)arg; /* of argv, which is ours */
    w->for_pictures |= val == OPT_RESIZE || val == OPT_SCALE || val == OPT_MEAN || val == OPT_STD || val == OPT_BGR;
    switch (val) {
    case 'i': return split(own, w->inputs, &w->input_count);
    case 'o': w->output = arg; return *arg != 0;
    case OPT_DIM: return onnx_take_dim(&w->dims, arg);
    case OPT_RANDOM: return w->random = true;
    case OPT_STEPS: return cli_parse_int(arg, 1, 1 << 20, &w->steps.count);
    case OPT_FEED: return steps_take_pair(&w->steps, own);
    case OPT_PROFILE: return w->profile = true;
    case OPT_TRACE: w->trace = arg; return *arg != 0;
    case OPT_RESIZE: return take_resize(arg, &w->picture.resize);
    case OPT_SCALE: return take_numbers(arg, &w->picture.scale, 1);
    case OPT_MEAN: return take_numbers(arg, w->picture.mean, 3);
    case OPT_STD: return take_numbers(arg, w->picture.std, 3) && none_is_zero(w->picture.std, 3);
    case OPT_BGR: return w->picture.bgr = true;
    default: return cli_parse_int(arg, 1, 1 << 30, &w->repeat);
    }
}

/* ---- inputs ------------------------------------------------------------------------------------------------------ */

static tn_onnx_info input_info(const work *w, int i) {
    tn_onnx_info info = {.struct_size = sizeof info};
    (void)tn_onnx_input_at(w->model, i, &info);
    return info;
}

static tn_status no_such_input(const char *name) {
    return tn_backend_fail(TN_ERR_ARGUMENT, "the model has no input '%s'; -v lists what it has", name);
}

static tn_status give(work *w, const char *name, tn_tensor *t) {
    for (int i = 0; i < tn_onnx_input_count(w->model); i++) {
        if (strcmp(input_info(w, i).name, name) != 0) continue;
        tn_onnx_value_free(w->in[i]);
        w->in[i] = tn_onnx_value_tensor(t);
        tn_free(t);
        return w->in[i] ? TN_OK : TN_ERR_MEMORY;
    }
    tn_free(t);
    return no_such_input(name);
}

static tn_status give_members(work *w, const unsigned char *bytes, size_t size) {
    npz_member m;
    for (size_t at = 0; npz_next(bytes, size, &at, &m);) {
        tn_tensor *t;
        tn_status status = npz_decode(&m, &t);
        if (status == TN_OK) status = give(w, m.name, t);
        if (status != TN_OK) return status;
    }
    return TN_OK;
}

/* As the input of this name takes it. */
static tn_status decode_picture(const work *w, const char *name, const unsigned char *bytes, size_t size,
                                const char *path, tn_tensor **out) {
    image picture;
    tn_status status = image_decode(bytes, size, path, &picture);
    for (int i = 0; i < tn_onnx_input_count(w->model) && status == TN_OK; i++) {
        tn_onnx_info info = input_info(w, i);
        if (strcmp(info.name, name) != 0) continue;
        tn_dtype dtype = info.dtype == TN_DTYPE_COUNT ? TN_F32 : info.dtype;
        status = image_tensor(&picture, &w->picture, info.shape, info.rank, dtype, out);
        free(picture.rgb);
        return status == TN_OK ? status : tn_backend_fail(status, "'%s' as input '%s': %s", path, name, tn_error());
    }
    free(picture.rgb);
    return status == TN_OK ? no_such_input(name) : status;
}

static tn_status give_file(work *w, const named *n) {
    unsigned char *bytes;
    size_t size;
    tn_tensor *t;
    tn_status status = npy_load(n->text, &bytes, &size);
    if (status != TN_OK) return status;
    const char *name = *n->name || tn_onnx_input_count(w->model) == 0 ? n->name : input_info(w, 0).name;
    if (npz_is(bytes, size)) {
        status = give_members(w, bytes, size);
    } else {
        status = image_is(bytes, size) ? decode_picture(w, name, bytes, size, n->text, &t)
                                       : npy_decode(bytes, size, n->text, &t);
        w->has_picture |= image_is(bytes, size);
        if (status == TN_OK) status = give(w, name, t);
    }
    free(bytes);
    return status;
}

static tn_status make_inputs(work *w) {
    uint64_t state = w->options.seed + 1;
    tn_status status = TN_OK;
    for (int i = 0; i < w->input_count && status == TN_OK; i++)
        status = give_file(w, &w->inputs[i]);
    if (status == TN_OK && w->steps.count) status = steps_begin(&w->steps, w->model);
    if (status == TN_OK && w->steps.count)
        status = steps_make_inputs(&w->steps, w->model, w->in, onnx_extent, &w->dims);
    for (int i = 0; i < tn_onnx_input_count(w->model) && status == TN_OK; i++) {
        if (w->in[i]) continue;
        tn_onnx_info info = input_info(w, i);
        if (w->random)
            status = onnx_random_input(&info, &w->dims, &state, &w->in[i]);
        else
            status = tn_backend_fail(TN_ERR_ARGUMENT, "input '%s' is not given: -i %s=FILE.npy, or --random", info.name,
                                     info.name);
    }
    if (status == TN_OK) status = onnx_dims_are_used(&w->dims);
    if (status == TN_OK && w->for_pictures && !w->has_picture)
        status = tn_backend_fail(TN_ERR_ARGUMENT, "--resize, --scale, --mean, --std and --bgr are for pictures, and "
                                                  "no input is one; numbers of .npy files are taken as they are");
    return status;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static void free_outputs(work *w) {
    for (int k = 0; w->out && k < tn_onnx_output_count(w->model); k++) {
        tn_onnx_value_free(w->out[k]);
        w->out[k] = NULL;
    }
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A run is over when its device is done with it: a device takes work and computes on beside its caller. */
static tn_status run_once(work *w, double *seconds) {
    double begun = cli_now();
    tn_status status = tn_onnx_run(w->model, w->in, w->out);
    if (status == TN_OK) status = tn_device_synchronize(tn_current_device());
    *seconds = cli_now() - begun;
    return status;
}

/* The median of `count` runs, behind `warm` ones that do not count. */
static tn_status run_many(work *w, int64_t warm, int64_t count) {
    double *seconds = malloc((size_t)count * sizeof *seconds);
    tn_status status = seconds ? TN_OK : tn_backend_fail(TN_ERR_MEMORY, "no memory for %lld times", (long long)count);
    for (int64_t i = -warm; i < count && status == TN_OK; i++) {
        free_outputs(w);
        status = run_once(w, &seconds[i < 0 ? 0 : i]);
        if (status == TN_OK && w->steps.count) status = steps_advance(&w->steps, i, w->model, w->in, w->out);
    }
    if (status == TN_OK) {
        qsort(seconds, (size_t)count, sizeof *seconds, compare);
        w->median = seconds[count / 2];
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

static tn_status run_all(work *w) {
    tn_status status = w->steps.count ? run_many(w, 0, w->steps.count) : run_once(w, &w->median);
    if (status == TN_OK && w->repeat) status = run_many(w, WARM, w->repeat);
    if (status == TN_OK && (w->profile || w->trace)) status = run_profiled(w);
    return status;
}

/* ---- what came out ----------------------------------------------------------------------------------------------- */

static tn_profile_row row_at(const work *w, int64_t i) {
    tn_profile_row row = {.struct_size = sizeof row};
    (void)tn_profile_at(w->profiled, i, &row);
    return row;
}

/* Commands one behind the other, in the order in which they first ran. */
static tn_status write_trace(const work *w) {
    FILE *f = fopen(w->trace, "wb");
    if (!f) return tn_backend_fail(TN_ERR_IO, "cannot write '%s': %s", w->trace, strerror(errno));
    cli_json j = {.out = f};
    double at = 0;
    cli_json_object(&j, NULL);
    cli_json_array(&j, "traceEvents");
    for (int64_t i = 0; i < tn_profile_count(w->profiled); i++) {
        tn_profile_row row = row_at(w, i);
        cli_json_object(&j, NULL);
        cli_json_string(&j, "name", row.label);
        cli_json_string(&j, "cat", row.kind);
        cli_json_string(&j, "ph", "X");
        cli_json_number(&j, "ts", at);
        cli_json_number(&j, "dur", row.seconds * 1e6);
        cli_json_int(&j, "pid", 1);
        cli_json_int(&j, "tid", 1);
        cli_json_end(&j, '}');
        at += row.seconds * 1e6;
    }
    cli_json_end(&j, ']');
    cli_json_end(&j, '}');
    return fclose(f) == 0 ? TN_OK : tn_backend_fail(TN_ERR_IO, "writing '%s': %s", w->trace, strerror(errno));
}

static tn_status write_outputs(const work *w) {
    if (mkdir(w->output, 0777) != 0 && errno != EEXIST)
        return tn_backend_fail(TN_ERR_IO, "cannot make the folder '%s': %s", w->output, strerror(errno));
    for (int k = 0; k < tn_onnx_output_count(w->model); k++) {
        tn_onnx_info info = {.struct_size = sizeof info};
        char name[256], path[4096];
        (void)tn_onnx_output_at(w->model, k, &info);
        if (tn_onnx_value_kind(w->out[k]) != TN_ONNX_TENSOR) continue; /* NumPy has no file for it */
        snprintf(name, sizeof name, "%s", info.name);
        for (char *c = name; *c; c++)
            if (*c == '/' || *c == '\\') *c = '_';
        if (snprintf(path, sizeof path, "%s/%s.npy", w->output, name) >= (int)sizeof path)
            return tn_backend_fail(TN_ERR_ARGUMENT, "'%s' is too long a path", w->output);
        tn_status status = npy_write(path, tn_onnx_value_get(w->out[k]));
        if (status != TN_OK) return status;
    }
    return TN_OK;
}

static void describe(const tn_onnx_value *v, char *text, size_t size) {
    int64_t shape[TN_MAX_RANK];
    int rank = tn_onnx_value_shape(v, shape), n = 0;
    if (rank < 0) {
        snprintf(text, size, "%lld values", (long long)tn_onnx_value_count(v));
        return;
    }
    n = snprintf(text, size, "%s [", tn_onnx_value_type(v));
    for (int d = 0; d < rank; d++)
        n += snprintf(text + n, size - (size_t)n, "%s%lld", d ? ", " : "", (long long)shape[d]);
    snprintf(text + n, size - (size_t)n, "]");
}

static void put_text(const work *w, const tn_placement *p) {
    for (int k = 0; k < tn_onnx_output_count(w->model); k++) {
        tn_onnx_info info = {.struct_size = sizeof info};
        char text[256];
        (void)tn_onnx_output_at(w->model, k, &info);
        describe(w->out[k], text, sizeof text);
        printf("%s: %s\n", info.name, text);
    }
    for (int64_t i = 0; w->profile && i < tn_profile_count(w->profiled); i++) {
        tn_profile_row row = row_at(w, i);
        printf("  %9.1f us  %-6s %s\n", row.seconds * 1e6, row.kind, row.label);
    }
    steps_put_text(&w->steps);
    printf("%s %.3f ms on %s", w->repeat || w->steps.count ? "median" : "first run", w->median * 1e3, p->device);
    if (p->on_host) printf(", %lld operations on the host", (long long)p->on_host);
    printf("\n");
}

static void put_json(const work *w, const tn_placement *p, const tn_selection *s, const tn_device *device) {
    cli_json j = {.out = stdout};
    cli_json_object(&j, NULL);
    cli_json_object(&j, "outputs");
    for (int k = 0; k < tn_onnx_output_count(w->model); k++) {
        tn_onnx_info info = {.struct_size = sizeof info};
        int64_t shape[TN_MAX_RANK];
        (void)tn_onnx_output_at(w->model, k, &info);
        int rank = tn_onnx_value_shape(w->out[k], shape);
        tn_tensor *t = tn_onnx_value_kind(w->out[k]) == TN_ONNX_TENSOR ? tn_onnx_value_get(w->out[k]) : NULL;
        cli_json_object(&j, info.name);
        cli_json_array(&j, "shape");
        for (int d = 0; d < rank; d++)
            cli_json_int(&j, NULL, shape[d]);
        cli_json_end(&j, ']');
        cli_json_string(&j, "dtype", t ? tn_dtype_name(tn_dtype_of(t)) : tn_onnx_value_type(w->out[k]));
        cli_json_end(&j, '}');
    }
    cli_json_end(&j, '}');
    steps_put_json(&w->steps, &j);
    cli_json_number(&j, "median_seconds", w->median);
    cli_json_string(&j, "device", p->device);
    cli_json_object(&j, "placement");
    cli_json_int(&j, "on_device", p->on_device);
    cli_json_int(&j, "on_host", p->on_host);
    cli_json_end(&j, '}');
    cli_json_fallback(&j, s, device);
    cli_json_end(&j, '}');
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

static int do_work(work *w, const char *path) {
    tn_selection s = {.struct_size = sizeof s};
    tn_placement p = {.struct_size = sizeof p};
    int code = CLI_FAILED;
    tn_device *device = cli_choose_device(&w->options, &s, &code);
    if (!device) return code;
    tn_manual_seed(w->options.seed);
    tn_status status = tn_onnx_open(path, NULL, &w->model);
    if (status == TN_OK) {
        w->in = calloc((size_t)tn_onnx_input_count(w->model) + 1, sizeof *w->in);
        w->out = calloc((size_t)tn_onnx_output_count(w->model) + 1, sizeof *w->out);
        if (!w->in || !w->out) status = tn_backend_fail(TN_ERR_MEMORY, "no memory for inputs and outputs");
    }
    if (status == TN_OK && w->options.verbose) list_values(w);
    if (status == TN_OK) status = make_inputs(w);
    if (status == TN_OK) status = run_all(w);
    if (status == TN_OK) status = tn_get_placement(&p);
    if (status == TN_OK && w->output) status = write_outputs(w);
    if (status == TN_OK && w->trace) status = write_trace(w);
    if (status != TN_OK) {
        code = cli_failed();
        onnx_tell_guess(&w->dims);
        return code;
    }
    if (w->options.json)
        put_json(w, &p, &s, device);
    else
        put_text(w, &p);
    return CLI_OK;
}

static int run(int argc, char **argv) {
    static const struct option own[] = {
        {"input", required_argument, NULL, 'i'},
        {"output", required_argument, NULL, 'o'},
        {"random", no_argument, NULL, OPT_RANDOM},
        {"repeat", required_argument, NULL, OPT_REPEAT},
        {"steps", required_argument, NULL, OPT_STEPS},
        {"feed", required_argument, NULL, OPT_FEED},
        {"dim", required_argument, NULL, OPT_DIM},
        {"profile", no_argument, NULL, OPT_PROFILE},
        {"trace", required_argument, NULL, OPT_TRACE},
        {"resize", required_argument, NULL, OPT_RESIZE},
        {"scale", required_argument, NULL, OPT_SCALE},
        {"mean", required_argument, NULL, OPT_MEAN},
        {"std", required_argument, NULL, OPT_STD},
        {"bgr", no_argument, NULL, OPT_BGR},
        {0},
    };
    work w = {0};
    tn_onnx_set_image_decoder(image_decode_for_onnx);
    int status, first = cli_parse(&cli_run, argc, argv, &w.options, own, "i:o:", take, &w, &status);
    if (first < 0) return status;
    if (first == argc) return cli_wrong_usage(&cli_run, "which model? Give its ONNX file");
    if (first + 1 < argc) return cli_wrong_usage(&cli_run, "\"%s\" belongs to no option", argv[first + 1]);
    if (w.steps.count && w.repeat)
        return cli_wrong_usage(&cli_run, "--steps and --repeat: steps change the inputs, repeated runs do not");
    if (w.steps.pair_count && !w.steps.count) return cli_wrong_usage(&cli_run, "--feed belongs to --steps");
    int code = do_work(&w, argv[first]);
    steps_end(&w.steps);
    free_outputs(&w);
    for (int i = 0; w.in && i < tn_onnx_input_count(w.model); i++)
        tn_onnx_value_free(w.in[i]);
    tn_profile_free(w.profiled);
    tn_onnx_close(w.model);
    free(w.in);
    free(w.out);
    return code;
}
