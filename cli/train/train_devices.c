/* train_devices.c — `trunnion train --devices a,b` and `mpirun trunnion train`: the devices and processes that share a
 * task's batches, and how they did.
 *
 * The first one holds the model. The number of parts follows from what was asked for, so a run yields the same bits
 * when one of the devices could not be opened. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/train/train.h"

/* Cuts the next name off a list; NULL at its end. */
static char *next_name(char **list) {
    char *name = *list, *comma = name ? strchr(name, ',') : NULL;
    if (comma) *comma = 0;
    *list = comma ? comma + 1 : NULL;
    return name;
}

static int open_further(const train_options *o, train_team *team, const char *name) {
    tn_device_options d = TN_DEVICE_DEFAULTS;
    d.fallback = TN_FALLBACK_STRICT;
    d.threads = o->common.threads;
    d.minimum_memory = o->common.memory;
    tn_status status = tn_device_open(name, &d, NULL, &team->devices[team->count]);
    if (status == TN_OK) {
        team->count++;
        return CLI_OK;
    }
    if (o->common.strict || status == TN_ERR_ARGUMENT) {
        (void)cli_failed();
        return status == TN_ERR_ARGUMENT ? CLI_USAGE : CLI_FAILED;
    }
    cli_print(stderr, "trunnion train: %s is not used: %s\n", name, tn_error());
    return CLI_OK;
}

void train_own_device(const char **device, char *room, size_t size) {
    tn_device_list *list = NULL;
    int local = tn_group_launched_local_rank();
    if (!*device || strchr(*device, ':') || tn_device_list_new(false, &list) != TN_OK) return;
    for (int i = 0; i < tn_device_list_count(list); i++) {
        const tn_backend_info *b = tn_device_list_at(list, i);
        if (strcmp(b->name, *device) != 0 || b->device_count < 2) continue;
        snprintf(room, size, "%s:%d", *device, local % b->device_count);
        *device = room;
        break;
    }
    tn_device_list_free(list);
}

int train_open(const train_options *o, train_team *team, tn_selection *selection) {
    cli_options common = o->common;
    char *names = o->devices ? strdup(o->devices) : NULL, *rest = names;
    int code = CLI_OK, named = 1;
    char own[64];
    if ((o->tensor_parallel || o->zero == 3) && tn_group_size(team->group) > 1) common.device = "cpu";
    if (o->devices && !names) {
        (void)cli_fail(TN_ERR_MEMORY, "out of memory");
        return CLI_FAILED;
    }
    if (names) common.device = next_name(&rest);
    if (tn_group_size(team->group) > 1) train_own_device(&common.device, own, sizeof own);
    team->devices[0] = cli_choose_device(&common, selection, &code);
    team->count = team->devices[0] != NULL;
    for (char *name; team->count && code == CLI_OK && (name = next_name(&rest)); named++)
        if (named < TRAIN_MOST_DEVICES) code = open_further(o, team, name);
    free(names);
    if (named > TRAIN_MOST_DEVICES) {
        (void)cli_fail(TN_ERR_ARGUMENT, "%d devices exceed the limit of %d", named, TRAIN_MOST_DEVICES);
        code = CLI_USAGE;
    }
    team->options = (tn_data_parallel_options)TN_DATA_PARALLEL_DEFAULTS;
    if (o->tensor_parallel || o->zero == 3) team->divides = team->group;
    team->options.group = o->tensor_parallel ? NULL : team->group;
    team->options.parts = o->parts ? (int)o->parts : named * tn_group_size(team->options.group);
    team->options.shard_gradients = o->zero == 2;
    team->options.fallback = o->common.strict ? TN_FALLBACK_STRICT : TN_FALLBACK_WARN;
    if (o->memory && code == CLI_OK && (named > 1 || tn_group_size(team->group) > 1)) {
        (void)cli_fail(TN_ERR_ARGUMENT, "--memory limits one device of one process; leave it out, or --devices");
        return CLI_USAGE;
    }
    team->options.save_memory = o->memory != 0;
    if (o->memory && team->count) (void)tn_device_set_pool_max(team->devices[0], (size_t)o->memory);
    return code;
}

void train_close(train_team *team) {
    tn_group_close(team->group); /* which may use a device */
    for (int i = 0; i < team->count; i++)
        tn_device_close(team->devices[i]);
}

void train_replace(train_team *team, tn_device *device) {
    tn_device_info info = {.struct_size = sizeof info};
    tn_device *opened = NULL;
    if (tn_device_get_info(device, &info) != TN_OK || tn_device_open(info.id, NULL, NULL, &opened) != TN_OK) return;
    tn_device_close(team->devices[0]);
    team->devices[0] = opened;
}

tn_status train_divide(const train_options *o, tn_module *root) {
    TRY(tn_module_status(root));
    return o->zero == 3 ? tn_module_shard(root, o->team->group) : TN_OK;
}

tn_status train_share(const train_options *o, tn_module *root, tn_data_parallel **out) {
    return tn_data_parallel_new(root, o->team->devices, o->team->count, &o->team->options, out);
}

void train_devices_json(cli_json *j, const tn_data_parallel *all) {
    tn_data_parallel_device d = {.struct_size = sizeof d};
    cli_json_write(j, "'devices': [");
    for (int i = 0; tn_data_parallel_device_at(all, i, &d) == TN_OK; i++) {
        cli_json_write(j, "{'id': %s, 'parts': %jd, 'lost': %i, 'reason': %s}", d.id, d.parts, d.lost, d.reason);
    }
    cli_json_write(j, "]");
}

void train_devices_text(FILE *to, const tn_data_parallel *all) {
    tn_data_parallel_device d = {.struct_size = sizeof d};
    for (int i = 0; tn_data_parallel_device_count(all) > 1 && tn_data_parallel_device_at(all, i, &d) == TN_OK; i++)
        cli_print(to, "  %s: %lld parts of batches%s%s\n", d.id, (long long)d.parts, d.lost ? ", then it failed: " : "",
                  d.reason);
}

/* ---- a limit of memory ------------------------------------------------------------------------------------------- */

void train_note_peak(train_team *team) {
    tn_pool_stats s = {.struct_size = sizeof s};
    if (tn_device_get_pool_stats(team->devices[0], &s) == TN_OK) team->memory_peak = s.peak_bytes;
    (void)tn_device_set_pool_max(team->devices[0], 0);
}

void train_memory_json(cli_json *j, const train_options *o, const tn_data_parallel *all) {
    tn_memory_report m = {.struct_size = sizeof m};
    (void)tn_data_parallel_get_saving(all, &m);
    cli_json_write(j, "'memory_limit': %jd, 'memory_peak': %jd, 'recomputes': %i, 'parts': %d", o->memory,
                   o->team->memory_peak, m.recomputes, m.parts);
}

void train_memory_text(FILE *to, const train_options *o, const tn_data_parallel *all) {
    tn_memory_report m = {.struct_size = sizeof m};
    (void)tn_data_parallel_get_saving(all, &m);
    cli_print(to, "memory: at most %.1f of %.1f MiB%s; batches in %d part%s\n", (double)o->team->memory_peak / 0x1p20,
              (double)o->memory / 0x1p20, m.recomputes ? ", values computed twice" : "", m.parts,
              m.parts > 1 ? "s" : "");
}

/* ---- several processes ------------------------------------------------------------------------------------------- */

tn_status train_compare(tn_group *group, const char *what) {
    enum { MOST = 1024 };
    char own[MOST];
    size_t size = (size_t)tn_group_size(group);
    char *all = malloc(size * sizeof own);
    if (!all) return tn_backend_fail(TN_ERR_MEMORY, "out of memory");
    memset(own, 0, sizeof own);
    snprintf(own, sizeof own, "%s", what);
    tn_status status = tn_group_all_gather(group, own, sizeof own, all);
    for (size_t rank = 1; rank < size && status == TN_OK; rank++)
        if (memcmp(all, all + rank * sizeof own, sizeof own) != 0)
            status = tn_backend_fail(
                TN_ERR_STATE, "rank %zu trains another run than rank 0: %s, not %s; start all with the same options",
                rank, all + rank * sizeof own, all);
    free(all);
    return status;
}

/* What all ranks must have in common before one of them waits for another. */
static tn_status compare_options(const train_team *team, const train_options *o, const train_task *task) {
    char text[512];
    snprintf(text, sizeof text,
             "%s --seed %llu --steps %lld --parts %lld --zero %lld%s --amp %s --model %s --save-every %lld%s%s",
             task->name, (unsigned long long)o->common.seed, (long long)o->steps, (long long)o->parts,
             (long long)o->zero, o->tensor_parallel ? " --tensor-parallel" : "", o->amp ? o->amp : "f32", o->model,
             (long long)o->save_every, o->save ? " --save" : "", o->resume ? " --resume" : "");
    return train_compare(team->group, text);
}

static tn_status check_processes(const train_team *team, const train_options *o, const train_task *task) {
    int size = tn_group_size(team->group);
    const char *device = o->common.device;
    if (size == 1) return TN_OK;
    if (!(task->takes & TRAIN_TAKES_DEVICES))
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "%d processes were started, but %s is trained by one; start it without mpirun", size,
                               task->name);
    TRY(compare_options(team, o, task));
    const char *divides = o->tensor_parallel ? "--tensor-parallel" : o->zero == 3 ? "--zero 3" : NULL;
    if (divides && strcmp(device, "auto") != 0 && strcmp(device, "cpu") != 0)
        return tn_backend_fail(TN_ERR_UNSUPPORTED, "%s divides parameters on the CPU only; leave out --device %s",
                               divides, device);
    if (o->zero == 3 && (o->devices || (o->parts && o->parts != size)))
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "--zero 3 requires one part of a batch and one device for each of the %d processes; "
                               "leave out --parts and --devices",
                               size);
    return TN_OK;
}

int train_join(train_team *team, const train_options *o, const train_task *task) {
    if (tn_group_open(NULL, &team->group) != TN_OK) return cli_failed();
    if (check_processes(team, o, task) == TN_OK) return train_silence(team->group);
    int code = cli_failed();
    tn_group_close(team->group); /* all processes refuse: none waits, and an abort could cut their words off */
    team->group = NULL;
    return code;
}

int train_silence(const tn_group *group) {
    if (tn_group_rank(group) == 0 || freopen("/dev/null", "w", stdout)) return CLI_OK;
    return cli_fail(TN_ERR_IO, "/dev/null: %s", strerror(errno));
}

tn_status train_any_stopped(tn_group *group, bool *stopped) {
    enum { MOST_RANKS = 4096 };
    char own = cli_stopped() != 0, all[MOST_RANKS] = {own};
    int size = tn_group_size(group);
    tn_status status = TN_OK;
    if (size > MOST_RANKS) return tn_backend_fail(TN_ERR_UNSUPPORTED, "%d processes exceed %d", size, MOST_RANKS);
    if (size > 1) status = tn_group_all_gather(group, &own, 1, all);
    *stopped = memchr(all, 1, (size_t)size) != NULL;
    return status;
}

void train_processes_json(cli_json *j, const train_team *team, int64_t optimizer_bytes) {
    if (tn_group_size(team->group) == 1) return;
    cli_json_write(j, "'pool_peak_bytes': %jd", team->memory_peak);
    cli_json_write(j, "'optimizer_bytes': %jd, 'processes': %d, 'group': %s, 'transport': %s, 'device_library': %s",
                   optimizer_bytes, tn_group_size(team->group), tn_group_library(team->group),
                   tn_group_backend(team->group), tn_group_device_library(team->group));
}

void train_processes_text(FILE *to, const train_team *team) {
    if (tn_group_size(team->group) == 1) return;
    const char *library = tn_group_library(team->group), *device = tn_group_device_library(team->group);
    cli_print(to, "  %d processes, %s%s%s\n", tn_group_size(team->group),
              library[0] ? library : tn_group_backend(team->group), device[0] ? ", " : "", device);
}
