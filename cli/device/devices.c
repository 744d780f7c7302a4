/* devices.c — `trunnion devices`: what this machine can compute on, and why not on the rest. */
#include "cli/cli.h"

static int run_devices(int argc, char **argv);

const cli_command cli_devices = {
    .name = "devices",
    .summary = "list the available devices, and why others are not available",
    .usage = "devices [-v] [--json] [--fresh | --reasons]",
    .help =
        "  --fresh               probe again instead of using the cached list\n"
        "  --reasons             explain each reason code, and what to do about it\n"
        "  -v, --verbose         also show reason codes (--reasons explains them), libraries, identities\n"
        "  --json                backends[{name, title, available, reason_code, reason, fix, library, devices[…]}], "
        "recommended,\n"
        "                        libraries[{name, title, backend, available, in_use, reason_code, reason, fix, path, "
        "description}]\n"
        "\n"
        "examples:\n"
        "  trunnion devices\n"
        "  trunnion devices --fresh -v         after installing a driver\n"
        "  trunnion devices --json | python3 -m json.tool\n",
    .accepts = CLI_JSON | CLI_VERBOSE,
    .run = run_devices,
};

static void put_device(cli_json *j, const tn_device_info *d) {
    cli_json_write(
        j,
        "{'id': %s, 'name': %s, 'total_memory': %jd, 'free_memory': %jd, 'compute_capability': %s, 'unified_memory': "
        "%i, 'software': %i, 'usable': %i, 'index': %d, 'threads': %d, 'uuid': %s, 'pci': %s, 'same_as': %s}",
        d->id, d->name, d->total_memory, d->free_memory, d->compute_capability, d->unified_memory, d->software,
        d->usable, d->index, d->threads, d->uuid, d->pci, d->same_as);
}

static void put_backend(cli_json *j, const tn_backend_info *b) {
    cli_json_write(j,
                   "{'name': %s, 'title': %s, 'available': %i, 'reason_code': %s, 'reason': %s, 'fix': %s, 'library': "
                   "%s, 'devices': [",
                   b->name, b->title, b->available, b->reason_code, b->reason, b->fix, b->library);
    for (int i = 0; i < b->device_count; i++)
        put_device(j, &b->devices[i]);
    cli_json_write(j, "]}");
}

static void put_library(cli_json *j, const tn_library_info *l) {
    cli_json_write(j,
                   "{'name': %s, 'title': %s, 'backend': %s, 'available': %i, 'in_use': %i, 'reason_code': %s, "
                   "'reason': %s, 'fix': %s, 'path': %s, 'description': %s}",
                   l->name, l->title, l->backend, l->available, l->in_use, l->reason_code, l->reason, l->fix, l->path,
                   l->description);
}

static void put_list(const tn_device_list *list) {
    cli_json j = {.out = stdout};
    cli_json_write(&j, "{'backends': [");
    for (int i = 0; i < tn_device_list_count(list); i++)
        put_backend(&j, tn_device_list_at(list, i));
    cli_json_write(&j, "], 'recommended': %s, 'libraries': [", tn_device_list_recommended(list));
    tn_library_info l = {.struct_size = sizeof l};
    for (int i = 0; i < tn_library_count(); i++)
        if (tn_library_at(i, &l) == TN_OK) put_library(&j, &l);
    cli_json_write(&j, "]}");
}

static void write_out(void *ctx, const char *text) { cli_put(ctx, text); }

static void put_reasons(bool json) {
    const tn_reason_help *r;
    cli_json j = {.out = stdout};
    if (json) {
        cli_json_write(&j, "{'reasons': [");
    }
    for (int i = 0; (r = tn_reason_help_at(i)); i++) {
        if (!json) {
            cli_print(stdout, "%s\n  %s\n  → %s\n", r->code, r->meaning, r->fix);
            continue;
        }
        cli_json_write(&j, "{'code': %s, 'meaning': %s, 'fix': %s}", r->code, r->meaning, r->fix);
    }
    if (json) {
        cli_json_write(&j, "]}");
    }
}

typedef struct wishes {
    bool fresh, reasons;
} wishes;

static int run_devices(int argc, char **argv) {
    static const cli_option own[] = {
        CLI_FLAG("fresh", 0, wishes, fresh),
        CLI_FLAG("reasons", 0, wishes, reasons),
        {0},
    };
    cli_options o;
    wishes w = {0};
    int status, at = cli_parse(&cli_devices, argc, argv, &o, own, &w, &status);
    if (at < 0) return status;
    if (at < argc) return cli_wrong_usage(&cli_devices, "unexpected argument \"%s\"", argv[at]);
    if (w.reasons) {
        put_reasons(o.json);
        return CLI_OK;
    }

    tn_device_list *list;
    if (tn_device_list_new(w.fresh, &list) != TN_OK) return cli_failed();
    if (o.json) put_list(list);
    tn_device_list_free(list);
    if (o.json) return CLI_OK;
    return tn_print_backend_summary(write_out, stdout, o.verbose, cli_colour(stdout)) == TN_OK ? CLI_OK : cli_failed();
}
