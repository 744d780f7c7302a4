/* fit_run.c — `trunnion fit COMMAND …`: runs a command on a device that plans everything and computes nothing, and
 * tells how much memory a real run would take. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/device/fit.h"
#include "cli/process.h"
#include "cli/run/run.h"

/* What a command is given besides, behind the caller's own arguments: a few steps show the peak. */
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

#if CLI_HAS_FORK /* and what else POSIX has */

static bool has_inputs(char *const *arguments, int count) {
    for (int i = 0; i < count; i++)
        if (!strncmp(arguments[i], "-i", 2) || !strncmp(arguments[i], "--input", 7) ||
            !strcmp(arguments[i], "--random"))
            return true;
    return false;
}

/* An option that writes a file: nothing is there to be written. NULL: there is none. */
static const char *find_writing(char *const *arguments, int count) {
    static const char *const names[] = {"--save",        "--save-every", "--log",    "--report",
                                        "--tensorboard", "--trace",      "--output", "-o"};
    for (int i = 0; i < count; i++)
        for (size_t k = 0; k < sizeof names / sizeof *names; k++)
            if (!strncmp(arguments[i], names[k], strcspn(arguments[i], "=")) && arguments[i][0] == '-' &&
                strlen(names[k]) == strcspn(arguments[i], "="))
                return names[k];
    return NULL;
}

/* The command's output goes nowhere. */
static int run_silently(const cli_command *c, int argc, char **argv) {
    fflush(stdout);
    int kept = dup(STDOUT_FILENO);
    if (kept < 0 || !freopen("/dev/null", "w", stdout))
        return cli_fail(TN_ERR_IO, "standard output cannot be set aside");
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
        printf("%s: %.1f MiB %s; %.1f MiB are free: %s\n", d->id, (double)bytes / 0x1p20,
               measured ? "were taken" : "needed", (double)room / 0x1p20, bytes <= room ? "fits" : "does not fit");
        return;
    }
    cli_json j = {.out = stdout};
    cli_json_write(&j, "{'device': %s, 'total_bytes': %jd, 'free_bytes': %jd, 'fits': %i, 'measured': %i}", d->id,
                   bytes, room, bytes <= room, measured);
}

int fit_run_command(int argc, char **argv, int at) {
    const struct fitted *f = find_fitted(argv[at]);
    char out[] = "/tmp/trunnion-fit-XXXXXX";
    char **list = calloc((size_t)argc + 8, sizeof *list);
    bool json = false, named = !onnx_is_network(argv[at]), tunes = f->command == &cli_finetune;
    int n = 0;
    if (!list) return cli_fail(TN_ERR_MEMORY, "out of memory");
    list[n++] = (char *)(uintptr_t)f->command->name;
    for (int i = at + named; i < argc; i++)
        list[n++] = argv[i];
    int given = n;
    for (int i = 1, k = 1; i < given; i++, n = k) /* fit's own options may follow the command */
        if (!strcmp(list[i], "--json"))
            json = true;
        else if (!strcmp(list[i], "--measure"))
            cli_fit_state.measures = true;
        else
            list[k++] = list[i];
    for (int i = 1; i < at; i++) {
        json |= !strcmp(argv[i], "--json");
        cli_fit_state.measures |= !strcmp(argv[i], "--measure");
    }
    const char *writes = find_writing(list, n);
    if (writes) {
        free(list);
        return cli_wrong_usage(&cli_fit, "%s has no effect: fit computes nothing that could be written; remove it",
                               writes);
    }
    if (f->command == &cli_run && !has_inputs(list, n)) list[n++] = "--random";
    for (int i = 0; i < 2 && f->extra[i]; i++)
        list[n++] = (char *)(uintptr_t)f->extra[i];
    if (tunes && mkdtemp(out)) {
        list[n++] = "--out";
        list[n++] = out;
    }
    list[n] = NULL;
    cli_fit_state.on = true;
    int code = run_silently(f->command, n, list);
    if (tunes) remove_folder(out);
    free(list);
    tn_device *device = cli_fit_state.device;
    tn_device_info info = {.struct_size = sizeof info};
    tn_pool_stats s = {.struct_size = sizeof s};
    if (code == CLI_OK &&
        (!device || tn_device_get_info(device, &info) != TN_OK || tn_device_get_pool_stats(device, &s) != TN_OK))
        code = cli_fail(TN_ERR_STATE, "the command opened no device");
    if (code == CLI_OK) {
        bool on_host = !strcmp(info.backend, "cpu");
        put_result(json, &info, on_host ? (s.dry_peak_bytes ? s.dry_peak_bytes : cli_peak_bytes()) : s.peak_bytes,
                   cli_fit_state.measures);
    }
    tn_device_close(device);
    return code;
}

#else

int fit_run_command(int argc, char **argv, int at) {
    (void)argc;
    return cli_fail(TN_ERR_UNSUPPORTED, "fit of the command %s is not supported on this system", argv[at]);
}

#endif
