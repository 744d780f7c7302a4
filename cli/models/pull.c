/* pull.c — `trunnion pull`: a model from an address or a hub into the cache folder, where other commands find it by its
 * name. */
#include <errno.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "cli/cli.h"
#include "cli/models/models.h"

static int run_pull(int argc, char **argv);

const cli_command cli_pull = {
    .name = "pull",
    .summary = "download a model into the cache folder",
    .usage = "pull URL [--name NAME] [--sha256 SUM] | pull OWNER/MODEL[:FILE] [--name NAME]",
    .help = "  URL                   address of a GGUF file, or of another model file (http, https)\n"
            "  OWNER/MODEL           a repository of huggingface.co (or of HF_ENDPOINT): its folder, with checksums\n"
            "  OWNER/MODEL:FILE      one GGUF file of it; FILE may be a part of its name, such as Q4_K_M\n"
            "      --name NAME       its name in the cache folder (default: the last part of the address)\n"
            "      --sha256 SUM      the SHA-256 that the file must have\n"
            "      --json            name, path, bytes, files\n"
            "\n"
            "An interrupted download is continued by the same command. The program curl must be installed. For models\n"
            "that require consent, set HF_TOKEN. Other commands find the model by its name: -m NAME.\n"
            "\n"
            "examples:\n"
            "  trunnion pull HuggingFaceTB/SmolLM2-135M-Instruct\n"
            "  trunnion pull bartowski/SmolLM2-135M-Instruct-GGUF:Q4_K_M\n"
            "  trunnion pull https://example.org/model.gguf --name mine.gguf\n",
    .accepts = CLI_JSON,
    .run = run_pull,
};

typedef struct wishes {
    const char *name, *sum;
} wishes;

static bool is_url(const char *text) { return strstr(text, "://") != NULL; }

/* The last part of an address, without what follows a ? or #. */
static bool name_of_url(const char *url, char out[CLI_PATH]) {
    const char *host = strstr(url, "://") + 3, *path = strchr(host, '/');
    size_t length = path ? strcspn(path, "?#") : 0;
    while (length > 0 && path[length - 1] == '/')
        length--;
    size_t from = length;
    while (from > 0 && path[from - 1] != '/')
        from--;
    if (!path || length == from || length - from >= CLI_PATH) return false;
    memcpy(out, path + from, length - from);
    out[length - from] = 0;
    return out[0] != '.' && !strpbrk(out, "%\\");
}

static int pull_url(const char *url, const wishes *w, const char *models, char target[CLI_PATH], int *files) {
    char name[CLI_PATH];
    struct stat s;
    if (!w->name && !name_of_url(url, name))
        return cli_wrong_usage(&cli_pull, "the address does not end in the name of a file; choose one with --name");
    if (snprintf(target, CLI_PATH, "%s/%s", models, w->name ? w->name : name) >= CLI_PATH)
        return cli_fail(TN_ERR_ARGUMENT, "the path '%s' is too long", models);
    if (stat(target, &s) != 0) {
        ++*files;
        return models_fetch(&(models_file){.url = url, .target = target, .sum = w->sum});
    }
    char sum[MODELS_SUM];
    if (!w->sum) return CLI_OK;
    if (models_sum(target, sum) && strcasecmp(sum, w->sum) == 0) return CLI_OK;
    return cli_fail(TN_ERR_FORMAT, "'%s' is there already, with another SHA-256; delete it to fetch it again", target);
}

/* OWNER/MODEL, and FILE behind a colon. */
static int pull_repository(const char *what, const wishes *w, const char *models, char target[CLI_PATH], int *files) {
    char name[CLI_PATH];
    const char *colon = strchr(what, ':'), *slash = strchr(what, '/');
    size_t length = colon ? (size_t)(colon - what) : strlen(what);
    bool plain = slash && slash > what && slash + 1 < what + length &&
                 !memchr(slash + 1, '/', length - (size_t)(slash + 1 - what));
    plain = plain && what[0] != '.' && slash[1] != '.' && length < sizeof name && !strpbrk(what, " ?#%\\\"");
    if (!plain || (colon && !colon[1]))
        return cli_wrong_usage(&cli_pull, "\"%s\" is neither an address (https://…) nor OWNER/MODEL[:FILE]", what);
    if (w->sum) return cli_wrong_usage(&cli_pull, "--sha256 requires an address; a repository has its own checksums");
    if (w->name && colon) return cli_wrong_usage(&cli_pull, "--name has no effect with OWNER/MODEL:FILE");
    memcpy(name, what, length);
    name[length] = 0;
    return models_fetch_repository(name, colon ? colon + 1 : NULL, w->name ? w->name : strchr(name, '/') + 1, models,
                                   target, files);
}

static int64_t bytes_at(const char *path) {
    struct stat s;
    return stat(path, &s) == 0 && S_ISREG(s.st_mode) ? (int64_t)s.st_size : -1;
}

static void put_pulled(const cli_options *o, const char *target, int files) {
    const char *name = strrchr(target, '/') + 1;
    int64_t bytes = bytes_at(target);
    if (!o->json) {
        cli_print(stdout, "%s %s; use it with -m %s\n", target, files ? "is ready" : "is there already", name);
        return;
    }
    cli_json j = {.out = stdout};
    cli_json_write(&j, "{'name': %s, 'path': %s", name, target);
    if (bytes >= 0) cli_json_write(&j, "'bytes': %jd", bytes);
    cli_json_write(&j, "'files': %d}", files);
}

static bool take_name(void *at, const char *name) {
    *(const char **)at = name;
    return *name && *name != '.' && !strpbrk(name, "/\\");
}

static bool take_sum(void *at, const char *sum) {
    *(const char **)at = sum;
    return models_is_sum(sum);
}

static int run_pull(int argc, char **argv) {
    static const cli_option own[] = {
        CLI_TAKE("name", 0, wishes, name, take_name),
        CLI_TAKE("sha256", 0, wishes, sum, take_sum),
        {0},
    };
    wishes w = {0};
    cli_options o;
    char models[CLI_PATH], inside[CLI_PATH], target[CLI_PATH] = "";
    int code = CLI_OK, files = 0, first = cli_parse(&cli_pull, argc, argv, &o, own, &w, &code);
    if (first < 0) return code;
    if (argc - first != 1) return cli_wrong_usage(&cli_pull, "expected one address or OWNER/MODEL");
    if (!cli_cache_path("models", models, sizeof models) || !cli_cache_path("models/x", inside, sizeof inside))
        return cli_fail(TN_ERR_IO, "no cache folder: HOME is not set; set it, or TRUNNION_CACHE");
    if (!models_make_folders(inside))
        return cli_fail(TN_ERR_IO, "cannot create the folder '%s': %s", models, strerror(errno));
    code = (is_url(argv[first]) ? pull_url : pull_repository)(argv[first], &w, models, target, &files);
    if (code == CLI_OK) put_pulled(&o, target, files);
    return code;
}
