/* main.c — the command `trunnion`: finds the subcommand and runs it.
 *
 * A subcommand is one line of the table below and one file. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

static const cli_command *const commands[] = {
    &cli_bench,    &cli_certify,   &cli_chat,       &cli_convert,  &cli_devices, &cli_embed,
    &cli_explain,  &cli_finetune,  &cli_fit,        &cli_generate, &cli_info,    &cli_list,
    &cli_logits,   &cli_onnx_test, &cli_perplexity, &cli_pull,     &cli_run,     &cli_serve,
    &cli_tokenize, &cli_train,     &cli_transcribe, &cli_tune,
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

static void write_overview(FILE *to) {
    fprintf(to, "usage: trunnion COMMAND [options]\n\ncommands:\n");
    for (int i = 0; i < COMMANDS; i++)
        fprintf(to, "  %-12s %s\n", commands[i]->name, commands[i]->summary);
    fprintf(to, "  %-12s %s\n", "help CMD", "show what a command does, with examples");
    fprintf(to, "  %-12s %s\n", "help environment", "list the environment variables");
    cli_common_help(NULL, to);
    fprintf(
        to,
        "\nexit status: 0 success, 1 failure, 2 wrong usage, 130 and 143 stopped by\nSIGINT (Ctrl-C) and SIGTERM\n");
}

static void print_overview(FILE *to) {
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    if (!f) return;
    write_overview(f);
    fclose(f);
    cli_put_help(text, to);
    free(text);
}

static const cli_command *find_command(const char *name) {
    for (int i = 0; i < COMMANDS; i++)
        if (!strcmp(commands[i]->name, name)) return commands[i];
    return NULL;
}

/* ---- unknown commands -------------------------------------------------------------------------------------------- */

static int unknown_command(const char *name) {
    const char *names[COMMANDS];
    for (int i = 0; i < COMMANDS; i++)
        names[i] = commands[i]->name;
    const char *near = cli_nearest(name, names, COMMANDS);
    return cli_wrong_usage(NULL, "unknown command \"%s\"%s%s%s", name, near ? "; did you mean " : "", near ? near : "",
                           near ? "?" : "");
}

/* ---- start ------------------------------------------------------------------------------------------------------- */

static int run_help(const char *name) {
    if (name && !strcmp(name, "help")) name = NULL;
    if (name && !strcmp(name, "environment")) {
        cli_help_environment(stdout);
        return CLI_OK;
    }
    const cli_command *c = name ? find_command(name) : NULL;
    if (name && !c) return unknown_command(name);
    if (c)
        cli_help(c, stdout);
    else
        print_overview(stdout);
    return CLI_OK;
}

/* What was written has to have arrived: a full disk or a closed pipe is a failure like another. */
static int finish_command(int status, bool json) {
    cli_failure_end(json, status);
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) return cli_stopped() && status == CLI_OK ? cli_stop_status() : status;
    if (status != CLI_OK && errno == 0) return status; /* an earlier write failed, and the command told so */
    fprintf(stderr, "trunnion: writing to standard output: %s\n", errno ? strerror(errno) : "an earlier write failed");
    return status != CLI_OK ? status : CLI_FAILED;
}

/* Before the options are parsed: what is wrong with them is told as JSON too. */
static bool asks_for_json(const cli_command *c, int argc, char **argv) {
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (c->accepts & CLI_JSON && !strcmp(argv[i], "--json")) return true;
    return false;
}

#if !defined(_WIN32)
/* If a standard stream is closed, the next file that is opened gets its number, and printed text would be written to
 * that file. /dev/null, opened for reading only, takes the place: reading gives nothing, and writing fails. */
static void occupy_standard_streams(void) {
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDONLY) != fd) return;
}
#endif

int main(int argc, char **argv) {
#if defined(_WIN32)
    tn_win_begin(&argc, &argv);
#else
    occupy_standard_streams();
#endif
    const char *name = argc > 1 ? argv[1] : NULL;
    cli_signals_begin();
    setenv("XDG_RUNTIME_DIR", "/nowhere", 0); /* without one, Mesa's Vulkan complains on standard error */
    if (!name) {
        print_overview(stderr);
        return CLI_USAGE;
    }
    if (!strcmp(name, "--version") || !strcmp(name, "version")) {
        printf("trunnion %s\n", tn_version());
        return finish_command(CLI_OK, false);
    }
    if (!strcmp(name, "help") || !strcmp(name, "--help") || !strcmp(name, "-h"))
        return finish_command(argc > 3 ? cli_wrong_usage(NULL, "unexpected argument \"%s\"", argv[3])
                                       : run_help(argc > 2 ? argv[2] : NULL),
                              false);
    const cli_command *c = find_command(name);
    if (!c) return unknown_command(name);
    bool json = asks_for_json(c, argc - 2, argv + 2);
    if (json) cli_signals_json();
    return finish_command(c->run(argc - 1, argv + 1), json);
}
