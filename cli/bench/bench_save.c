/* bench_save.c — what a work of `trunnion bench` starts from and what it yields, as files: whoever times the same work
 * in another library (bench/compare.py) starts from these numbers and shows first that it gets the same results. */
#include <stdlib.h>

#include "cli/bench/bench.h"
#include "trunnion/backend.h"

enum { NAME_BYTES = 96 };

/* Named tensors on their way into a file. */
typedef struct list {
    tn_named_tensor *items;
    char (*names)[NAME_BYTES];
    int count, room;
} list;

static tn_status make_list(list *l, int room) {
    *l = (list){calloc((size_t)room, sizeof *l->items), calloc((size_t)room, sizeof *l->names), 0, room};
    return l->items && l->names ? TN_OK : tn_backend_fail(TN_ERR_MEMORY, "out of memory");
}

static void free_list(list *l) {
    free(l->items);
    free(l->names);
}

static void add_saved(list *l, const tn_tensor *t, const char *kind, const char *name) {
    if (!t || l->count == l->room) return;
    snprintf(l->names[l->count], NAME_BYTES, "%s.%s", kind, name);
    l->items[l->count] = (tn_named_tensor){l->names[l->count], t};
    l->count++;
}

static void add_numbered(list *l, tn_tensor *const *t, int count, const char *kind) {
    for (int i = 0; i < count; i++) {
        char number[16];
        snprintf(number, sizeof number, "%d", i);
        add_saved(l, t[i], kind, number);
    }
}

static tn_status save_saved(const char *folder, const char *work, const char *when, const list *l) {
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/%s.%s.safetensors", folder, work, when);
    if (n >= (int)sizeof path)
        return tn_backend_fail(TN_ERR_ARGUMENT, "the name of the folder '%s' is too long", folder);
    return tn_safetensors_save(path, l->items, l->count, NULL, 0);
}

static tn_status save_start(const bench_work *w, const bench_parts *p, const tn_variable *v, int count,
                            const char *folder) {
    list l;
    tn_status s = make_list(&l, p->input_count + count + 1);
    if (s == TN_OK) {
        add_numbered(&l, p->inputs, p->input_count, "input");
        for (int i = 0; i < count; i++)
            add_saved(&l, v[i].tensor, "model", v[i].name);
        s = save_saved(folder, w->name, "start", &l);
    }
    free_list(&l);
    return s;
}

static tn_status save_result(const bench_work *w, const bench_parts *p, const tn_variable *v, int count,
                             const char *folder) {
    list l;
    tn_status s = make_list(&l, p->result_count + 2 * count + 1);
    if (s == TN_OK) {
        TN_SCOPE;
        add_numbered(&l, p->results, p->result_count, "result");
        for (int i = 0; i < count; i++)
            add_saved(&l, v[i].tensor, "model", v[i].name);
        for (int i = 0; i < count; i++)
            add_saved(&l, tn_grad(v[i].tensor), "gradient", v[i].name);
        s = save_saved(folder, w->name, "result", &l);
    }
    free_list(&l);
    return s;
}

static tn_status save_both(const bench_work *w, void *self, const char *folder) {
    tn_variable *v = NULL;
    int count = 0;
    bench_parts p = w->parts(self);
    tn_status s = p.module ? tn_module_variables(p.module, &v, &count) : TN_OK;
    if (s == TN_OK) s = save_start(w, &p, v, count, folder);
    if (s == TN_OK) {
        w->keep(self);
        s = w->run(self);
    }
    p = w->parts(self);
    if (s == TN_OK) s = save_result(w, &p, v, count, folder);
    tn_variables_free(v);
    return s;
}

tn_status bench_save(const bench_work *work, const char *folder) {
    if (!work->keep) return TN_OK;
    bench_work w = *work;
    void *self = NULL;
    tn_status s = w.begin(&w, &self);
    if (s == TN_OK) s = save_both(&w, self, folder);
    w.end(self);
    return s;
}
