/* moving.c — which device comes after one that failed; the order is that of tn_survive (survive.h). */
#include "cli/text/moving.h"

#include <string.h>

#include "trunnion/backend.h"

bool cli_moves_on(tn_status s) { return s == TN_ERR_LOST || s == TN_ERR_DEVICE || s == TN_ERR_MEMORY; }

void cli_moves_note(cli_moves *m, const tn_device *device) {
    tn_device_info info = {.struct_size = sizeof info};
    snprintf(m->reason, sizeof m->reason, "%s", tn_error());
    (void)tn_device_get_info(device, &info);
    if (m->count < CLI_MOST_MOVES) snprintf(m->failed[m->count++], sizeof m->failed[0], "%s", info.id);
}

static bool has_failed(const cli_moves *m, const char *id) {
    for (int i = 0; i < m->count; i++)
        if (strcmp(m->failed[i], id) == 0) return true;
    return false;
}

static tn_device *open_other(const cli_moves *m, const tn_device_list *list, char id[32]) {
    tn_device *device = NULL;
    tn_device_options how = cli_device_options(m->options);
    for (int b = 0; b < tn_device_list_count(list); b++) {
        const tn_backend_info *backend = tn_device_list_at(list, b);
        bool other = strncmp(backend->name, "engine:", 7) == 0 || strcmp(backend->name, "cpu") == 0;
        for (int i = 0; !other && i < backend->device_count; i++) {
            const tn_device_info *d = &backend->devices[i];
            if (!d->usable || d->software || d->same_as[0] || has_failed(m, d->id)) continue;
            if (tn_device_open(d->id, &how, NULL, &device) != TN_OK) continue;
            snprintf(id, 32, "%s", d->id);
            return device;
        }
    }
    return NULL;
}

tn_status cli_moves_next(cli_moves *m, tn_status why, tn_device **out) {
    char id[32] = "cpu";
    tn_device_list *list = NULL;
    tn_device_options how = cli_device_options(m->options);
    *out = NULL;
    if (m->count < CLI_MOST_MOVES && tn_device_list_new(false, &list) == TN_OK) *out = open_other(m, list, id);
    tn_device_list_free(list);
    if (!*out && !has_failed(m, "cpu")) (void)tn_device_open("cpu", &how, NULL, out);
    if (!*out) return tn_backend_fail(why, "%s", m->reason);
    const char *failed = m->count > 0 ? m->failed[m->count - 1] : "the device";
    cli_print(stderr, "trunnion: %s failed (%s); continuing on %s\n", failed, m->reason, id);
    return tn_set_current_device(*out);
}
