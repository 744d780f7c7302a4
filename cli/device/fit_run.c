/* fit_run.c — `trunnion fit COMMAND …`: runs a command in a dry run (tn_device_options.dry_run) and prints how much
 * memory a real run would take. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/device/fit.h"
#include "cli/process.h"
#include "cli/run/run.h"

/* Arguments appended to those of the caller: a few steps show the peak. */
static const struct fitted {
    const cli_command *command;
    const char *extra[2];
} fitted[] = {
    {&cli_run, {NULL, NULL}},
    {&cli_train, {"--steps", "4"}},
    {&cli_finetune, {"--steps", "2"}},
};
enum { FITTED = sizeof fitted / sizeof fitted[0] };

static const struct fitted *find_fitted(const char *word) {
    for (int i = 0; i < FITTED; i++)
        if (!strcmp(word, fitted[i].command->name)) return &fitted[i];
    return onnx_is_network(word) ? &fitted[0] : NULL;
}

int fit_command_at(int argc, char **argv) {
    int i = 1;
    while (i < argc && (!strcmp(argv[i], "--json") || !strcmp(argv[i], "--measure")))
        i++;
    return i < argc && find_fitted(argv[i]) ? i : 0;
}

#if CLI_HAS_FORK /* and other functions of POSIX */

static bool has_inputs(char *const *arguments, int count) {
    for (int i = 0; i < count; i++)
        if (!strncmp(arguments[i], "-i", 2) || !strncmp(arguments[i], "--input", 7) ||
            !strcmp(arguments[i], "--random"))
            return true;
    return false;
}

/* Runs the command with its standard output discarded. */
static int run_silently(const cli_command *c, int argc, char **argv) {
    fflush(stdout);
    int kept = dup(STDOUT_FILENO);
    if (kept < 0 || !freopen("/dev/null", "w", stdout))
        return cli_fail(TN_ERR_IO, "standard output cannot be redirected");
    optind = 1;
    int code = c->run(argc, argv);
    fflush(stdout);
    dup2(kept, STDOUT_FILENO);
    close(kept);
    return code;
}

static void remove_folder(const char *folder) {
    char path[CLI_PATH];
    DIR *d = opendir(folder);
    for (const struct dirent *e; d && (e = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        (void)unlink(path);
    }
    if (d) closedir(d);
    (void)rmdir(folder);
}

static void put_result(bool json, const tn_device_info *d, int64_t bytes, bool measured) {
    int64_t room = d->free_memory > 0 ? d->free_memory : d->total_memory;
    if (!json) {
        printf("%s: %.1f MiB %s; %.1f MiB are free: %s\n", d->id, (double)bytes / 0x1p20, measured ? "used" : "needed",
               (double)room / 0x1p20, bytes <= room ? "fits" : "does not fit");
        return;
    }
    cli_json j = {.out = stdout};
    cli_json_write(&j, "{'device': %s, 'total_bytes': %jd, 'free_bytes': %jd, 'fits': %i, 'measured': %i}", d->id,
                   bytes, room, bytes <= room, measured);
}

typedef struct request {
    const struct fitted *fitted;
    char **arguments; /* of the command, ended by NULL; free it */
    int count;
    bool json, helps;
} request;

/* Takes fit's own options out, wherever they are: before the command (at argv[at]) or among its arguments. */
static void take_own_options(request *r, int argc, char **argv, int at) {
    bool is_named = !onnx_is_network(argv[at]);
    r->arguments[r->count++] = (char *)(uintptr_t)r->fitted->command->name;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--json"))
            r->json = true;
        else if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
            r->helps = true;
        else if (!strcmp(argv[i], "--measure"))
            cli_fit_state.measures = true;
        else if (i >= at + is_named)
            r->arguments[r->count++] = argv[i];
    }
}

/* out: a folder for what the command must write; "" if it writes nothing. */
static void append_extra(request *r, char *out) {
    if (r->fitted->command == &cli_run && !has_inputs(r->arguments, r->count))
        r->arguments[r->count++] = (char *)(uintptr_t) "--random";
    for (int i = 0; i < 2 && r->fitted->extra[i]; i++)
        r->arguments[r->count++] = (char *)(uintptr_t)r->fitted->extra[i];
    if (*out) {
        r->arguments[r->count++] = (char *)(uintptr_t) "--out";
        r->arguments[r->count++] = out;
    }
}

/* Prints the memory that the command's device, which is still open, has counted. */
static int report(bool json) {
    tn_device *device = cli_fit_state.device;
    tn_device_info info = {.struct_size = sizeof info};
    tn_pool_stats s = {.struct_size = sizeof s};
    if (!device || tn_device_get_info(device, &info) != TN_OK || tn_device_get_pool_stats(device, &s) != TN_OK)
        return cli_fail(TN_ERR_STATE, "the command opened no device");
    int64_t bytes = s.peak_bytes;
    if (!strcmp(info.backend, "cpu")) bytes = s.dry_peak_bytes ? s.dry_peak_bytes : cli_peak_bytes();
    put_result(json, &info, bytes, cli_fit_state.measures);
    return CLI_OK;
}

int fit_run_command(int argc, char **argv, int at) {
    char out[] = "/tmp/trunnion-fit-XXXXXX";
    request r = {.fitted = find_fitted(argv[at]), .arguments = calloc((size_t)argc + 8, sizeof *r.arguments)};
    if (!r.arguments) return cli_fail(TN_ERR_MEMORY, "out of memory");
    take_own_options(&r, argc, argv, at);
    if (r.helps) {
        free(r.arguments);
        cli_help(&cli_fit, stdout);
        return CLI_OK;
    }
    if (r.fitted->command != &cli_finetune || !mkdtemp(out)) *out = 0;
    append_extra(&r, out);
    cli_fit_state.on = true;
    int code = run_silently(r.fitted->command, r.count, r.arguments);
    if (*out) remove_folder(out);
    free(r.arguments);
    if (code == CLI_OK) code = report(r.json);
    tn_device_close(cli_fit_state.device);
    return code;
}

#else

int fit_run_command(TN_UNUSED int argc, char **argv, int at) {
    return cli_fail(TN_ERR_UNSUPPORTED, "fit of the command %s is not supported on this system", argv[at]);
}

#endif
