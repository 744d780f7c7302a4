/* environment.c — the environment variables: their help, and the check of their values before a subcommand runs.
 *
 * The library only warns of a wrong value and goes on with the default; the command refuses it, as it refuses a wrong
 * value of an option. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"

static const struct {
    const char *name;
    const char *words;   /* allowed values, separated by spaces; NULL: any text, or a number */
    int64_t least, most; /* of a number; 0 and 0: none */
    const char *help;    /* lines; NULL: only docs/devices.md lists it */
} variables[] = {
    {"TRUNNION_DEVICE", .help = "  TRUNNION_DEVICE       the device if --device is not given: cpu, opencl, cuda:1 …\n"},
    {"TRUNNION_THREADS", NULL, 1, 512, "  TRUNNION_THREADS      CPU threads if --threads is not given\n"},
    {"TRUNNION_CACHE", .help = "  TRUNNION_CACHE        folder of models, compiled kernels and tuning\n"
                               "                        (default ~/.cache/trunnion)\n"},
    {"HF_ENDPOINT", .help = "  HF_ENDPOINT, HF_TOKEN  address of the model hub (default https://huggingface.co) and\n"
                            "                        access token, for `trunnion pull`\n"},
    {"TRUNNION_LOG", "0 1 2", .help = "  TRUNNION_LOG          0: silent, 1: notices, 2: details\n"},
    {"TRUNNION_LIBRARY", .help = "  TRUNNION_LIBRARY      libraries for matrix products, as --library\n"},
    {"TRUNNION_NUMERICS", "exact fast", .help = "  TRUNNION_NUMERICS     exact or fast, as --numerics\n"},
    {"TRUNNION_MATRIX", "0 1 tf32",
     .help = "  TRUNNION_MATRIX       0: no matrix units; 1: for f16 and bf16 products (default);\n"
             "                        tf32: f32 products use them too\n"},
    {"TRUNNION_GRAPHS", "0 1",
     .help = "  TRUNNION_GRAPHS       0: no graphs or command buffers of the driver for repeated work\n"},
    {"TRUNNION_TUNE", "0 1",
     .help = "  TRUNNION_TUNE         1: measure products at their first use; 0: ignore the\n"
             "                        tuning file\n"},
    {"TRUNNION_CHECK_INDICES", "0 1",
     .help = "  TRUNNION_CHECK_INDICES  1: indices that a device computes are checked before their use\n"},
    {"TRUNNION_DETECT_ANOMALY", "nan inf",
     .help = "  TRUNNION_DETECT_ANOMALY  nan or inf: the first operation that makes one is an error\n"},
    {"TRUNNION_ISA", "baseline avx2 avx512",
     .help = "  TRUNNION_ISA          highest instruction set of the CPU: baseline, avx2, avx512\n"},
    {"TRUNNION_PROBE_SECONDS", NULL, 1, 600,
     "  TRUNNION_PROBE_SECONDS  time limit of looking for devices, per backend (default 5)\n"},
    {"TRUNNION_CUDA_LIB", .help =
                              "  TRUNNION_CUDA_LIB     the library of a backend: a file, or the folder with it; also\n"
                              "                        ROCM, VULKAN, OPENCL, WEBGPU, METAL, ONNXRUNTIME, TORCH,\n"
                              "                        MPI, OPENBLAS, MKL, ONEDNN, BLIS\n"},
    {"NO_COLOR", .help = "  NO_COLOR              any text: no colors and no progress lines\n"},
    {"TRUNNION_JIT", "0 1", .help = NULL},
    {"TRUNNION_PIN", "0 1", .help = NULL},
    {"TRUNNION_ONNXRUNTIME_LEVEL", "none basic extended all", .help = NULL},
};
enum { VARIABLES = sizeof variables / sizeof variables[0] };

void cli_help_environment(FILE *to) {
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    if (!f) return;
    fputs("environment variables\n\n", f);
    for (int i = 0; i < VARIABLES; i++)
        if (variables[i].help) fputs(variables[i].help, f);
    fputs("\nOptions take precedence. docs/devices.md has the full list.\n", f);
    fclose(f);
    cli_put_help(text, to);
    free(text);
}

static bool is_among(const char *value, const char *words) {
    size_t length = strlen(value);
    for (const char *at = words; *at; at += strspn(at, " ")) {
        size_t n = strcspn(at, " ");
        if (n == length && strncmp(at, value, n) == 0) return true;
        at += n;
    }
    return false;
}

/* What keeps the cache folder from being one; NULL: nothing that can be seen without making it. A folder that may only
 * be read can hold models. */
static const char *fault_of_cache(const char *path) {
    char above[CLI_PATH];
    struct stat s;
    if (stat(path, &s) == 0) return S_ISDIR(s.st_mode) ? NULL : "it is not a folder";
    if (snprintf(above, sizeof above, "%s", path) >= (int)sizeof above) return "its name is too long";
    for (char *slash = strrchr(above, '/'); slash && slash > above; slash = strrchr(above, '/')) {
        *slash = 0;
        if (stat(above, &s) != 0) continue;
        if (!S_ISDIR(s.st_mode)) return "a part of its path is not a folder";
        return access(above, W_OK | X_OK) == 0 ? NULL : "it does not exist, and no folder may be made there";
    }
    return NULL;
}

bool cli_environment_is_valid(const cli_command *c) {
    int64_t number;
    for (int i = 0; i < VARIABLES; i++) {
        const char *name = variables[i].name, *value = getenv(name), *words = variables[i].words;
        if (!value || !*value) continue;
        if (words && !is_among(value, words)) {
            (void)cli_wrong_usage(c, "%s is \"%s\"; it must be one of: %s", name, value, words);
            return false;
        }
        if (variables[i].most && !cli_parse_int(value, variables[i].least, variables[i].most, &number)) {
            (void)cli_wrong_usage(c, "%s is \"%s\"; it must be %d to %d", name, value, (int)variables[i].least,
                                  (int)variables[i].most);
            return false;
        }
        const char *fault = strcmp(name, "TRUNNION_CACHE") == 0 ? fault_of_cache(value) : NULL;
        if (!fault) continue;
        (void)cli_wrong_usage(c, "TRUNNION_CACHE is \"%s\": %s; it must be a folder, or the name of one to be made",
                              value, fault);
        return false;
    }
    return true;
}
