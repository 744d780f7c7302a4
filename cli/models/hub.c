/* hub.c — a repository of a model hub (huggingface.co, or what HF_ENDPOINT names): its list of files, and those of them
 * that are needed.
 *
 * The list says how large files are, and the SHA-256 of large ones. A folder is put together as NAME.part and renamed
 * when all of it is there. Names come from a stranger: none may lead out of the folder. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/models/models.h"
#include "trunnion/json.h"

enum { PAGE_FILES = 1000 }; /* entries of a list's first page, and only that is read */

typedef struct repository {
    const char *name, *endpoint, *token;
    tn_json_doc *doc;
    const tn_json *list;
} repository;

static const char *file_name(const tn_json *entry) { return tn_json_string(tn_json_get(entry, "path"), ""); }

/* Parts of names that are no path of their own: not empty, not hidden, not "..". */
static bool is_plain(const char *path) {
    for (const char *at = path; *at; at++) {
        bool begins = at == path || at[-1] == '/';
        if ((begins && (*at == '.' || *at == '/')) || *at == '\\' || (unsigned char)*at <= ' ' || *at == '%' ||
            *at == '?' || *at == '#')
            return false;
    }
    return path[0] && !models_ends_with(path, "/");
}

/* What a folder of a language model or an encoder is made of: files at its top, and in modules' folders (1_Pooling). */
static bool is_needed(const repository *r, const char *path) {
    static const char *const endings[] = {".json", ".safetensors", ".jinja", "merges.txt", "vocab.txt", ".model"};
    const char *slash = strchr(path, '/');
    bool safe = false;
    if (slash && !(isdigit((unsigned char)path[0]) && path[1] == '_')) return false;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (models_ends_with(path, endings[i])) return true;
    for (size_t i = 0; i < tn_json_length(r->list); i++)
        safe |= models_ends_with(file_name(tn_json_at(r->list, i)), ".safetensors");
    return !safe && models_ends_with(path, ".bin") && strstr(path, "pytorch_model");
}

/* Of GGUF files: the one of that name, or whose name has the word in it: "Q4_K_M". */
static bool is_chosen(const char *path, const char *choice) {
    if (strcmp(path, choice) == 0) return true;
    size_t n = strlen(choice);
    for (const char *at = path; models_ends_with(path, ".gguf") && *at; at++)
        if (strncasecmp(at, choice, n) == 0) return true;
    return false;
}

static int fetch_list(repository *r, const char *models) {
    char url[CLI_PATH], target[CLI_PATH];
    (void)snprintf(target, sizeof target, "%s/.files.%lld.json", models, (long long)(cli_now() * 1e6));
    (void)snprintf(url, sizeof url, "%s/api/models/%s/tree/main?recursive=true", r->endpoint, r->name);
    int status = models_fetch(&(models_file){.url = url, .target = target, .token = r->token});
    if (status != CLI_OK) return status;
    status = tn_json_open(target, &r->doc) == TN_OK ? CLI_OK : cli_failed();
    (void)unlink(target);
    r->list = tn_json_root(r->doc);
    if (status != CLI_OK || tn_json_kind_of(r->list) == TN_JSON_ARRAY) return status;
    return cli_fail(TN_ERR_FORMAT, "'%s': the answer is not a list of files", url);
}

/* A file of the same size may be another repository's, from a download that was interrupted. */
static bool is_there(const models_file *f) {
    char sum[MODELS_SUM];
    struct stat s;
    return f->sum && stat(f->target, &s) == 0 && (int64_t)s.st_size == f->size && models_sum(f->target, sum) &&
           strcasecmp(sum, f->sum) == 0;
}

/* Fetches a file of the list as `as` into the folder. */
static int fetch_file(const repository *r, const tn_json *entry, const char *folder, const char *as) {
    char url[CLI_PATH], target[CLI_PATH];
    const char *path = file_name(entry);
    const tn_json *large = tn_json_get(entry, "lfs");
    models_file f = {.url = url,
                     .target = target,
                     .token = r->token,
                     .sum = tn_json_string(tn_json_get(large, "oid"), NULL),
                     .size = tn_json_int(tn_json_get(entry, "size"), 0)};
    if (f.sum && !models_is_sum(f.sum)) f.sum = NULL;
    if (!is_plain(path)) return cli_fail(TN_ERR_FORMAT, "'%s': a file's name leads out of its folder", r->name);
    bool fits = snprintf(url, sizeof url, "%s/%s/resolve/main/%s", r->endpoint, r->name, path) < (int)sizeof url &&
                snprintf(target, sizeof target, "%s/%s", folder, as) < (int)sizeof target;
    if (!fits) return cli_fail(TN_ERR_ARGUMENT, "'%s': the name '%.80s' is too long", r->name, path);
    if (is_there(&f)) return CLI_OK;
    if (!models_make_folders(target))
        return cli_fail(TN_ERR_IO, "cannot create the folder of '%s': %s", target, strerror(errno));
    cli_print(stderr, "%s\n", path);
    return models_fetch(&f);
}

static int fetch_folder(const repository *r, const char *target, int *files) {
    char part[CLI_PATH];
    bool config = false;
    if (snprintf(part, sizeof part, "%s.part", target) >= (int)sizeof part)
        return cli_fail(TN_ERR_ARGUMENT, "the path '%s' is too long", target);
    if (tn_json_length(r->list) >= PAGE_FILES)
        return cli_fail(TN_ERR_UNSUPPORTED,
                        "'%s' has %d files or more, too many for a model's folder; choose a GGUF file: %s:FILE",
                        r->name, (int)PAGE_FILES, r->name);
    for (size_t i = 0; i < tn_json_length(r->list); i++)
        config |= strcmp(file_name(tn_json_at(r->list, i)), "config.json") == 0;
    if (!config)
        return cli_fail(TN_ERR_UNSUPPORTED,
                        "'%s' has no config.json, so it is no folder of a model; choose a GGUF file: %s:FILE", r->name,
                        r->name);
    for (size_t i = 0; i < tn_json_length(r->list); i++) {
        const tn_json *entry = tn_json_at(r->list, i);
        if (strcmp(tn_json_string(tn_json_get(entry, "type"), ""), "file") != 0) continue;
        if (file_name(entry)[0] == '.' || !is_needed(r, file_name(entry))) continue;
        int status = cli_stopped() ? CLI_FAILED : fetch_file(r, entry, part, file_name(entry));
        if (status != CLI_OK) return status;
        ++*files;
    }
    if (rename(part, target) == 0) return CLI_OK;
    return cli_fail(TN_ERR_IO, "cannot rename '%s' to '%s': %s", part, target, strerror(errno));
}

static int fetch_choice(const repository *r, const char *choice, const char *models, char target[CLI_PATH]) {
    const tn_json *chosen = NULL;
    int found = 0;
    for (size_t i = 0; i < tn_json_length(r->list); i++) {
        const tn_json *entry = tn_json_at(r->list, i);
        if (!is_chosen(file_name(entry), choice)) continue;
        if (!chosen) chosen = entry;
        found++;
        if (strcmp(file_name(entry), choice) != 0) continue;
        chosen = entry;
        found = 1;
        break;
    }
    if (found != 1)
        return cli_fail(TN_ERR_ARGUMENT, "'%s' has %d GGUF files whose names contain '%s'%s%s; name one", r->name,
                        found, choice, found ? ", the first is " : "", found ? file_name(chosen) : "");
    const char *slash = strrchr(file_name(chosen), '/'), *base = slash ? slash + 1 : file_name(chosen);
    if (snprintf(target, CLI_PATH, "%s/%s", models, base) >= CLI_PATH)
        return cli_fail(TN_ERR_ARGUMENT, "the path '%s' is too long", models);
    return fetch_file(r, chosen, models, base);
}

int models_fetch_repository(const char *name, const char *choice, const char *as, const char *models,
                            char target[CLI_PATH], int *files) {
    const char *endpoint = getenv("HF_ENDPOINT"), *token = getenv("HF_TOKEN");
    repository r = {.name = name,
                    .endpoint = endpoint && *endpoint ? endpoint : "https://huggingface.co",
                    .token = token && *token ? token : NULL};
    struct stat s;
    int status = CLI_OK;
    if (!choice && snprintf(target, CLI_PATH, "%s/%s", models, as) >= CLI_PATH)
        return cli_fail(TN_ERR_ARGUMENT, "the path '%s' is too long", models);
    if (!choice && stat(target, &s) == 0) return CLI_OK; /* there already */
    status = fetch_list(&r, models);
    if (status == CLI_OK) status = choice ? fetch_choice(&r, choice, models, target) : fetch_folder(&r, target, files);
    if (status == CLI_OK && choice) ++*files;
    tn_json_free(r.doc);
    return status;
}
