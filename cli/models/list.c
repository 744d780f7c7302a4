/* list.c — `trunnion list`: the models in the cache folder. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/cli.h"
#include "cli/models/models.h"

static int run_list(int argc, char **argv);

const cli_command cli_list = {
    .name = "list",
    .summary = "list the models in the cache folder",
    .usage = "list",
    .help =
        "      --json            models[{name, path, kind, bytes, complete}], folder\n"
        "\n"
        "Other commands take these names after -m. Incomplete downloads are marked: `trunnion pull` continues them.\n"
        "\n"
        "examples:\n"
        "  trunnion list\n",
    .accepts = CLI_JSON,
    .run = run_list,
};

enum { DEPTH = 4 };

typedef struct entry {
    char name[256], path[CLI_PATH];
    char kind[16]; /* "folder", or the ending of a file's name */
    int64_t bytes;
    bool complete;
} entry;

static int64_t bytes_below(const char *path, int depth) {
    struct stat s;
    if (stat(path, &s) != 0) return 0;
    if (!S_ISDIR(s.st_mode)) return (int64_t)s.st_size;
    DIR *d = depth < DEPTH ? opendir(path) : NULL;
    int64_t sum = 0;
    for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
        char below[CLI_PATH];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        if (snprintf(below, sizeof below, "%s/%s", path, e->d_name) < (int)sizeof below)
            sum += bytes_below(below, depth + 1);
    }
    if (d) closedir(d);
    return sum;
}

static bool fill_entry(const char *folder, const char *name, entry *e) {
    *e = (entry){.complete = !models_ends_with(name, ".part")};
    if (name[0] == '.' || models_ends_with(name, ".part.url")) return false;
    if (snprintf(e->path, sizeof e->path, "%s/%s", folder, name) >= (int)sizeof e->path) return false;
    if (strlen(name) >= sizeof e->name) return false;
    strcpy(e->name, name);
    const char *dot = strrchr(name, '.');
    snprintf(e->kind, sizeof e->kind, "%s", cli_is_folder(e->path) ? "folder" : dot && e->complete ? dot + 1 : "file");
    e->bytes = bytes_below(e->path, 0);
    return true;
}

static int by_name(const void *a, const void *b) { return strcmp(((const entry *)a)->name, ((const entry *)b)->name); }

/* All of them in memory, sorted; free it. NULL with *count 0: there are none; -1: out of memory. */
static entry *read_entries(const char *folder, int *count) {
    DIR *d = opendir(folder);
    entry *all = NULL;
    int room = 0;
    *count = 0;
    for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
        if (*count == room) {
            entry *more = realloc(all, (size_t)(room = 2 * room + 16) * sizeof *more);
            if (!more) {
                free(all);
                closedir(d);
                *count = -1;
                return NULL;
            }
            all = more;
        }
        *count += fill_entry(folder, e->d_name, &all[*count]);
    }
    if (d) closedir(d);
    if (all) qsort(all, (size_t)*count, sizeof *all, by_name);
    return all;
}

static void put_lines_list(const entry *all, int count, const char *folder) {
    int width = 4;
    for (int i = 0; i < count; i++)
        width = cli_text_columns(all[i].name, strlen(all[i].name)) > width
                    ? cli_text_columns(all[i].name, strlen(all[i].name))
                    : width;
    for (int i = 0; i < count; i++) {
        char size[32];
        cli_size_text(size, all[i].bytes, 1);
        cli_print(stdout, "%-*s %12s  %s%s\n", width, all[i].name, size, all[i].kind,
                  all[i].complete ? "" : ", incomplete");
    }
    if (count == 0) cli_print(stdout, "no models in %s; `trunnion pull` fetches one\n", folder);
}

static void put_json_list(const entry *all, int count, const char *folder) {
    cli_json j = {.out = stdout};
    cli_json_write(&j, "{'models': [");
    for (int i = 0; i < count; i++) {
        cli_json_write(&j, "{'name': %s, 'path': %s, 'kind': %s, 'bytes': %jd, 'complete': %i}", all[i].name,
                       all[i].path, all[i].kind, all[i].bytes, all[i].complete);
    }
    cli_json_write(&j, "], 'folder': %s}", folder);
}

static int run_list(int argc, char **argv) {
    cli_options o;
    char folder[CLI_PATH];
    int code = CLI_OK, count, first = cli_parse(&cli_list, argc, argv, &o, NULL, NULL, &code);
    if (first < 0) return code;
    if (first < argc) return cli_wrong_usage(&cli_list, "no argument is expected");
    if (!cli_cache_path("models", folder, sizeof folder))
        return cli_fail(TN_ERR_IO, "no cache folder: HOME is not set; set it, or TRUNNION_CACHE");
    entry *all = read_entries(folder, &count);
    if (count < 0) return cli_fail(TN_ERR_MEMORY, "out of memory for the list");
    (o.json ? put_json_list : put_lines_list)(all, count, folder);
    free(all);
    return CLI_OK;
}
