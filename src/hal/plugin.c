/* plugin.c — drivers that come in shared libraries of their own (backend.h: tn_backend_load, TRUNNION_DRIVERS).
 *
 * Such a file has one symbol, which is handed what it may call and hands back its driver. A file that the environment
 * names and that cannot be used stays in the listing with its reason: who named it should see what became of it. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "hal/discovery.h"

enum { SEPARATOR = ':' };

static const tn_backend_host host = {sizeof host, TN_BACKEND_ABI, tn_backend_fail};

static tn_status open_driver(const char *path, const tn_driver **driver) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) return tn_fail(TN_ERR_UNAVAILABLE, "%s", dlerror());
    tn_backend_entry *entry = NULL;
    void *symbol = dlsym(library, TN_BACKEND_ENTRY);
    if (!symbol) return tn_fail(TN_ERR_UNAVAILABLE, "%s has no symbol " TN_BACKEND_ENTRY, path);
    memcpy(&entry, &symbol, sizeof entry);
    (void)tn_fail(TN_ERR_UNAVAILABLE, "%s: its " TN_BACKEND_ENTRY " refused without a reason", path);
    *driver = entry(&host);
    return *driver ? TN_OK : TN_ERR_UNAVAILABLE;
}

tn_status tn_backend_load(const char *path) {
    const tn_driver *driver = NULL;
    if (!path || !path[0]) return tn_fail(TN_ERR_ARGUMENT, "tn_backend_load: no path");
    TRY(open_driver(path, &driver));
    return tn_backend_register(driver);
}

/* Named after the file: "plugin:mychip" for /opt/mychip.so, with a number when there is one already. */
static void note_refusal(const char *path) {
    static tn_refusal refusals[TN_MOST_BACKENDS];
    static int count;
    if (count == TN_MOST_BACKENDS) return;
    tn_refusal *r = &refusals[count++];
    const char *file = strrchr(path, '/');
    file = file ? file + 1 : path;
    snprintf(r->path, sizeof r->path, "%s", path);
    snprintf(r->reason, sizeof r->reason, "%s", tn_error());
    r->code = access(path, R_OK) == 0 ? TN_REASON_INIT_FAILED : TN_REASON_LIBRARY_NOT_FOUND;
    snprintf(r->name, sizeof r->name, "plugin:%.*s", (int)strcspn(file, "."), file);
    if (tn_backend_insert_refused(r) == TN_OK) return;
    snprintf(r->name, sizeof r->name, "plugin:%d", count);
    (void)tn_backend_insert_refused(r);
}

static void add_file(const char *path) {
    const tn_driver *driver = NULL;
    tn_status s = open_driver(path, &driver);
    if (s == TN_OK) s = tn_backend_insert(driver);
    if (s != TN_OK) note_refusal(path);
}

void tn_plugins_add(void) {
    const char *list = tn_env("TRUNNION_DRIVERS");
    while (list && *list) {
        const char *end = strchr(list, SEPARATOR);
        size_t length = end ? (size_t)(end - list) : strlen(list);
        char *path = length > 0 ? tn_mem_zalloc(1, length + 1) : NULL;
        if (path) add_file(memcpy(path, list, length));
        tn_mem_free(path);
        list += length + (end != NULL);
    }
}
