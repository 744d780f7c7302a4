/* module.c — the tree of modules and the variables that it owns.
 *
 * A variable is a state tensor: made once, written in place ever after, so plans that use it stay valid. The root keeps
 * the first failure of its tree; makers return NULL from then on and callers need to ask only once. This folder uses
 * the public headers alone, as a user's own layers would. */
#include <stdlib.h>
#include <string.h>

#include "nn/make.h"
#include "nn/ranks.h"
#include "trunnion/autograd.h"
#include "trunnion/backend.h"
#include "trunnion/nn.h"

typedef struct variable {
    char *name;
    tn_tensor *tensor;
    bool parameter;
    tn_division division;
} variable;

struct tn_module {
    const tn_module_type *type;
    void *self;
    char *name; /* NULL for a root */
    tn_module *parent, *root;
    tn_module **children;
    size_t child_count, child_capacity;
    variable *variables;
    size_t variable_count, variable_capacity;
    bool training, recompute;
    bool divided;     /* roots: variables of the tree are divided among ranks */
    tn_status status; /* roots: the first failure of the tree */
    char *error;
};

static const tn_module_type container_type = {sizeof(tn_module_type), "container", NULL, NULL};

/* Room for one more item; false when memory is out. */
static bool reserve(void **items, size_t *capacity, size_t count, size_t size) {
    if (count < *capacity) return true;
    size_t wanted = *capacity ? *capacity * 2 : 4;
    void *grown = wanted <= SIZE_MAX / size ? realloc(*items, wanted * size) : NULL;
    if (!grown) return false;
    *items = grown;
    *capacity = wanted;
    return true;
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

tn_status tn_module_fail(tn_module *m, tn_status status) {
    if (!m || status == TN_OK || m->root->status != TN_OK) return status;
    m->root->status = status;
    m->root->error = strdup(tn_error());
    return status;
}

tn_status tn_module_status(const tn_module *m) {
    if (!m) return tn_backend_fail(TN_ERR_ARGUMENT, "the module is NULL: creating it failed (see tn_module_status)");
    if (m->root->status == TN_OK) return TN_OK;
    return tn_backend_fail(m->root->status, "%s", m->root->error ? m->root->error : "out of memory");
}

tn_status tn_nn_need(const void *p, const char *what) {
    return p ? TN_OK : tn_backend_fail(TN_ERR_ARGUMENT, "%s is NULL", what);
}

/* A name may stand between dots: not empty, no dot, no control characters. */
static bool name_is_valid(const char *name) {
    if (!name || !*name) return false;
    for (const char *c = name; *c; c++)
        if (*c == '.' || (unsigned char)*c < 0x20) return false;
    return true;
}

static tn_module *find_child(const tn_module *m, const char *name, size_t length) {
    for (size_t i = 0; i < m->child_count; i++) {
        const char *other = m->children[i]->name;
        if (strlen(other) == length && memcmp(other, name, length) == 0) return m->children[i];
    }
    return NULL;
}

static variable *find_variable(const tn_module *m, const char *name) {
    for (size_t i = 0; i < m->variable_count; i++)
        if (strcmp(m->variables[i].name, name) == 0) return &m->variables[i];
    return NULL;
}

static tn_status check_name(const tn_module *m, const char *name) {
    if (!name_is_valid(name))
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "module: the name \"%s\" is empty or contains a dot or control character",
                               name ? name : "");
    if (find_child(m, name, strlen(name)) || find_variable(m, name))
        return tn_backend_fail(TN_ERR_ARGUMENT, "module: the name \"%s\" is already in use; choose another", name);
    return TN_OK;
}

/* ---- making and freeing ------------------------------------------------------------------------------------------ */

static void destroy(const tn_module_type *type, void *self) {
    if (type && type->destroy) type->destroy(self);
}

static void module_delete(tn_module *m) {
    for (size_t i = 0; i < m->child_count; i++)
        module_delete(m->children[i]);
    for (size_t i = 0; i < m->variable_count; i++) {
        tn_free(m->variables[i].tensor);
        free(m->variables[i].name);
    }
    destroy(m->type, m->self);
    free(m->children);
    free(m->variables);
    free(m->name);
    free(m->error);
    free(m);
}

tn_module *tn_module_root(void) {
    tn_module *m = calloc(1, sizeof *m);
    if (!m) {
        tn_backend_fail(TN_ERR_MEMORY, "module: out of memory");
        return NULL;
    }
    m->type = &container_type;
    m->root = m;
    m->training = true;
    return m;
}

/* Hangs a new module into its parent; NULL when memory is out, and then self is not yet taken. */
static tn_module *attach(tn_module *parent, const char *name, const tn_module_type *type) {
    if (!reserve((void **)&parent->children, &parent->child_capacity, parent->child_count, sizeof(tn_module *)))
        return NULL;
    tn_module *m = calloc(1, sizeof *m);
    char *copy = strdup(name);
    if (!m || !copy) {
        free(m);
        free(copy);
        return NULL;
    }
    m->type = type ? type : &container_type;
    m->name = copy;
    m->parent = parent;
    m->root = parent->root;
    m->training = parent->training;
    parent->children[parent->child_count++] = m;
    return m;
}

tn_module *tn_module_new(tn_module *parent, const char *name, const tn_module_type *type, void *self) {
    tn_module *m = NULL;
    if (parent && parent->root->status == TN_OK) {
        tn_status status = check_name(parent, name);
        m = status == TN_OK ? attach(parent, name, type) : NULL;
        if (!m)
            tn_module_fail(parent, status != TN_OK ? status : tn_backend_fail(TN_ERR_MEMORY, "module: out of memory"));
    }
    if (m)
        m->self = self;
    else
        destroy(type, self);
    return m;
}

tn_module *tn_nn_made(tn_module *m) {
    if (!m || m->root->status == TN_OK) return m;
    tn_module *parent = m->parent;
    size_t i = 0;
    while (parent->children[i] != m)
        i++;
    memmove(parent->children + i, parent->children + i + 1, (--parent->child_count - i) * sizeof(tn_module *));
    module_delete(m);
    return NULL;
}

void *tn_module_self(const tn_module *m) { return m ? m->self : NULL; }

void tn_module_free(tn_module *root) {
    if (root && root->root == root) module_delete(root);
}

/* ---- variables --------------------------------------------------------------------------------------------------- */

static tn_status append_variable(tn_module *m, const char *name, tn_tensor *initial, bool parameter) {
    if (m->root->status != TN_OK) return m->root->status;
    TRY(check_name(m, name));
    if (!initial) TRY(tn_backend_fail(TN_ERR_ARGUMENT, "module: variable \"%s\" has no value", name));
    TRY(tn_make_state(initial));
    if (parameter) TRY(tn_set_requires_grad(initial, true));

    char *copy = strdup(name);
    if (!copy || !reserve((void **)&m->variables, &m->variable_capacity, m->variable_count, sizeof(variable))) {
        free(copy);
        return tn_backend_fail(TN_ERR_MEMORY, "module: out of memory");
    }
    m->variables[m->variable_count++] = (variable){copy, tn_retain(initial), parameter, {0}};
    return TN_OK;
}

static tn_tensor *add_variable(tn_module *m, const char *name, tn_tensor *initial, bool parameter) {
    if (!m) return NULL;
    if (tn_module_fail(m, append_variable(m, name, initial, parameter)) != TN_OK) return NULL;
    return initial;
}

tn_tensor *tn_module_add_parameter(tn_module *m, const char *name, tn_tensor *initial) {
    return add_variable(m, name, initial, true);
}

tn_tensor *tn_module_add_buffer(tn_module *m, const char *name, tn_tensor *initial) {
    return add_variable(m, name, initial, false);
}

/* ---- parameters divided among the ranks of a group --------------------------------------------------------------- */

tn_status tn_module_divide(tn_module *m, const char *name, tn_group *group, int dim, int64_t sections) {
    variable *v = m && name ? find_variable(m, name) : NULL;
    if (!v) return tn_module_fail(m, tn_nn_need(NULL, "tn_module_divide: the module, the name or its variable"));
    int size = tn_group_size(group);
    const tn_tensor *t = v->tensor;
    if (dim < 0 || dim >= tn_rank(t) || sections < 1 || tn_size(t, dim) % sections || tn_size(t, dim) / sections % size)
        return tn_module_fail(m, tn_backend_fail(TN_ERR_SHAPE,
                                                 "tn_module_divide: \"%s\" of rank %d has extent %lld in dim %d, which "
                                                 "cannot be divided among %d ranks in %lld sections",
                                                 name, tn_rank(t), (long long)(dim < tn_rank(t) ? tn_size(t, dim) : 0),
                                                 dim, size, (long long)sections));
    if (v->division.group)
        return tn_module_fail(m, tn_backend_fail(TN_ERR_STATE, "tn_module_divide: \"%s\" is divided", name));
    if (size == 1) return TN_OK;
    v->division = (tn_division){.group = group, .dim = dim, .sections = sections, .whole = tn_size(t, dim)};
    m->root->divided = true;
    return tn_module_fail(m, tn_nn_split(&v->division, v->tensor));
}

/* The first of the variables below m that stand for t; of tied ones, the one whose division is known. */
static variable *variable_of(const tn_module *m, const tn_tensor *t) {
    variable *found = NULL;
    for (size_t i = 0; i < m->variable_count + m->child_count; i++) {
        bool own = i < m->variable_count;
        variable *v = own ? &m->variables[i] : variable_of(m->children[i - m->variable_count], t);
        if (!v || v->tensor != t) continue;
        if (v->division.group) return v;
        if (!found) found = v;
    }
    return found;
}

/* All ranks get rank 0's value. Without elements there is nothing to divide. */
static tn_status shard_variable(variable *v, tn_group *group) {
    const tn_tensor *t = v->tensor;
    if (tn_numel(t) == 0) return TN_OK;
    int64_t elements = tn_numel(t), size = tn_group_size(group), whole = ((elements - 1) / size + 1) * size;
    tn_division d = {.group = group, .sections = 1, .whole = whole, .elements = elements, .rank = tn_rank(t)};
    if (d.rank) memcpy(d.shape, tn_shape(t), (size_t)d.rank * sizeof *d.shape);
    TN_SCOPE;
    tn_tensor *first = tn_group_broadcast_tensor(group, t, 0);
    TRY(tn_status_of(first));
    {
        TN_NO_GRAD;
        TRY(tn_status_of(tn_copy_(v->tensor, first)));
    }
    v->division = d;
    return tn_nn_split(&v->division, v->tensor);
}

tn_status tn_module_shard(tn_module *m, tn_group *group) {
    tn_variable *items = NULL;
    int count = 0;
    TRY(tn_nn_need(m, "tn_module_shard: the module"));
    TRY(tn_nn_need(group, "tn_module_shard: the group"));
    if (tn_group_size(group) == 1) return TN_OK;
    tn_status status = tn_module_parameters(m, &items, &count);
    for (int i = 0; i < count && status == TN_OK; i++)
        if (tn_nn_division(m, items[i].tensor).group)
            status = tn_backend_fail(TN_ERR_STATE, "tn_module_shard: %s is divided", items[i].name);
    status = tn_ranks_status(group, status, "tn_module_shard");
    bool divides = status == TN_OK;
    if (divides) m->root->divided = true;
    for (int i = 0; i < count && divides; i++) { /* also after a failure, because the other ranks wait for this one */
        tn_status one = shard_variable(variable_of(m, items[i].tensor), group);
        if (status == TN_OK) status = one;
    }
    tn_variables_free(items);
    return divides ? tn_ranks_status(group, status, "tn_module_shard") : status;
}

tn_division tn_nn_division(const tn_module *m, const tn_tensor *t) {
    const variable *v = m ? variable_of(m, t) : NULL;
    return v ? v->division : (tn_division){0};
}

/* Every rank goes on after a failure, because the others wait for it. */
tn_status tn_nn_change_divided(tn_division *d, tn_tensor *const *t, int count, tn_division_change *change) {
    tn_status first = TN_OK;
    for (int i = 0; i < count && d->group; i++) {
        tn_status status = t[i] ? change(d, t[i]) : TN_OK;
        if (first == TN_OK) first = status;
    }
    if (first == TN_OK) d->joined = change == tn_nn_join;
    return first;
}

static tn_status change_divided(tn_module *m, tn_division_change *change) {
    tn_status first = TN_OK;
    for (size_t i = 0; i < m->variable_count + m->child_count; i++) {
        variable *v = i < m->variable_count ? &m->variables[i] : NULL;
        tn_status status = v ? tn_nn_change_divided(&v->division, &v->tensor, 1, change)
                             : change_divided(m->children[i - m->variable_count], change);
        if (first == TN_OK) first = status;
    }
    return first;
}

static tn_status change_all_divided(tn_module *m, tn_optimizer *o, tn_division_change *change, const char *what) {
    TRY(tn_nn_need(m, what));
    tn_status first = change_divided(m, change), status = o ? tn_optim_change_divided(o, change) : TN_OK;
    return first != TN_OK ? first : status;
}

tn_status tn_module_join(tn_module *m, tn_optimizer *o) {
    return change_all_divided(m, o, tn_nn_join, "tn_module_join: the module");
}

tn_status tn_module_split(tn_module *m, tn_optimizer *o) {
    return change_all_divided(m, o, tn_nn_split, "tn_module_split: the module");
}

tn_status tn_nn_refuse_shares(const tn_module *m, tn_status status, const char *what, const char *advice) {
    tn_variable *items = NULL;
    int count = 0;
    if (!m || !m->root->divided) return TN_OK;
    TRY(tn_module_variables(m, &items, &count));
    tn_status refused = TN_OK;
    for (int i = 0; i < count && refused == TN_OK; i++) {
        tn_division d = tn_nn_division(m, items[i].tensor);
        if (tn_nn_is_share(&d))
            refused = tn_backend_fail(status, "%s: %s is divided among %d processes, and this one has its share; %s",
                                      what, items[i].name, tn_group_size(d.group), advice);
    }
    tn_variables_free(items);
    return refused;
}

tn_status tn_module_check_whole(const tn_module *m, const tn_optimizer *o, const char *what) {
    static const char advice[] = "call tn_module_join on all of them first, and tn_module_split afterwards";
    TRY(tn_nn_need(what, "tn_module_check_whole: what"));
    TRY(tn_nn_refuse_shares(m, TN_ERR_STATE, what, advice));
    return o ? tn_optim_refuse_shares(o, what, advice) : TN_OK;
}

/* Walks down all parts of a dotted path but the last, which *last receives. */
static const tn_module *walk_module(const tn_module *m, const char *path, const char **last) {
    for (const char *dot = strchr(path, '.'); m && dot; dot = strchr(path, '.')) {
        m = find_child(m, path, (size_t)(dot - path));
        path = dot + 1;
    }
    *last = path;
    return m;
}

tn_tensor *tn_module_variable(const tn_module *m, const char *path) {
    const char *last;
    m = walk_module(m, path ? path : "", &last);
    const variable *v = m ? find_variable(m, last) : NULL;
    return v ? v->tensor : NULL;
}

tn_module *tn_module_child(const tn_module *m, const char *path) {
    const char *last;
    m = walk_module(m, path ? path : "", &last);
    return m ? find_child(m, last, strlen(last)) : NULL;
}

/* ---- lists ------------------------------------------------------------------------------------------------------- */

typedef struct listing {
    tn_variable *items; /* NULL while measuring */
    char *text;         /* where the next name goes */
    size_t count, text_size;
} listing;

static void list_one(listing *l, const char *prefix, const variable *v) {
    size_t size = strlen(prefix) + strlen(v->name) + 1;
    if (l->items) {
        l->items[l->count] = (tn_variable){l->text, v->tensor, v->parameter};
        strcpy(l->text, prefix);
        strcat(l->text, v->name);
        l->text += size;
    }
    l->count++;
    l->text_size += size;
}

/* prefix: the dotted path of m with a dot behind it, "" for the top. False when memory is out. */
static bool list_all(listing *l, const char *prefix, const tn_module *m) {
    for (size_t i = 0; i < m->variable_count; i++)
        list_one(l, prefix, &m->variables[i]);
    for (size_t i = 0; i < m->child_count; i++) {
        const tn_module *child = m->children[i];
        size_t size = strlen(prefix) + strlen(child->name) + 2;
        char *path = malloc(size);
        if (!path) return false;
        strcpy(path, prefix);
        strcat(path, child->name);
        strcat(path, ".");
        bool done = list_all(l, path, child);
        free(path);
        if (!done) return false;
    }
    return true;
}

tn_status tn_module_variables(const tn_module *m, tn_variable **items, int *count) {
    if (!items || !count) return tn_nn_need(NULL, items ? "tn_module_variables: count" : "tn_module_variables: items");
    *items = NULL;
    *count = 0;
    if (!m) return tn_module_status(m);
    listing measure = {0};
    bool done = list_all(&measure, "", m);
    if (done && measure.count == 0) return TN_OK;
    tn_variable *block = done ? malloc(measure.count * sizeof(tn_variable) + measure.text_size) : NULL;
    listing fill = {.items = block, .text = block ? (char *)(block + measure.count) : NULL};
    if (!block || !list_all(&fill, "", m)) {
        free(block);
        return tn_backend_fail(TN_ERR_MEMORY, "module: out of memory while listing the variables");
    }
    *items = block;
    *count = (int)measure.count;
    return TN_OK;
}

void tn_variables_free(tn_variable *items) { free(items); }

/* ---- tied variables ---------------------------------------------------------------------------------------------- */

/* Where `id` is in an open-addressing table of a power of two, or the empty place where it belongs. */
static size_t id_place(const uint64_t *table, size_t size, uint64_t id) {
    size_t at = (size_t)(id * UINT64_C(0x9E3779B97F4A7C15) >> 20) & (size - 1);
    while (table[at] && table[at] != id)
        at = (at + 1) & (size - 1);
    return at;
}

tn_status tn_nn_untie(tn_variable *items, int *count) {
    size_t size = 16;
    while (size < 2 * (size_t)*count)
        size *= 2;
    AUTO_NN_FREE uint64_t *seen = calloc(size, sizeof *seen);
    if (!seen) return tn_backend_fail(TN_ERR_MEMORY, "module: out of memory while looking for tied variables");
    int kept = 0;
    for (int i = 0; i < *count; i++) {
        uint64_t id = tn_value_id(items[i].tensor);
        size_t at = id_place(seen, size, id);
        if (id && seen[at]) {
            for (int k = 0; k < kept && items[i].parameter; k++)
                if (tn_value_id(items[k].tensor) == id) items[k].parameter = true; /* under any of its names */
            continue;
        }
        seen[at] = id;
        items[kept++] = items[i];
    }
    *count = kept;
    return TN_OK;
}

tn_status tn_module_parameters(const tn_module *m, tn_variable **items, int *count) {
    if (!items || !count)
        return tn_nn_need(NULL, items ? "tn_module_parameters: count" : "tn_module_parameters: items");
    TRY(tn_module_variables(m, items, count));
    int parameters = 0;
    for (int i = 0; i < *count; i++)
        if ((*items)[i].parameter) (*items)[parameters++] = (*items)[i];
    tn_status status = tn_nn_untie(*items, &parameters);
    if (status != TN_OK || parameters == 0) {
        tn_variables_free(*items);
        *items = NULL;
    }
    *count = status == TN_OK ? parameters : 0;
    return status;
}

int64_t tn_module_parameter_count(const tn_module *m) {
    tn_variable *items = NULL;
    int count = 0;
    if (!m) return 0;
    if (tn_module_parameters(m, &items, &count) != TN_OK) return -1;
    int64_t total = 0;
    for (int i = 0; i < count; i++) {
        tn_division d = m->root->divided ? tn_nn_division(m, items[i].tensor) : (tn_division){0};
        int64_t ranks = tn_nn_is_share(&d) ? tn_group_size(d.group) : 1;
        total += d.elements ? d.elements : ranks * tn_numel(items[i].tensor);
    }
    tn_variables_free(items);
    return total;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

void tn_module_train(tn_module *m, bool training) {
    if (!m) return;
    m->training = training;
    for (size_t i = 0; i < m->child_count; i++)
        tn_module_train(m->children[i], training);
}

void tn_module_set_recompute(tn_module *m, bool recompute) {
    if (m) m->recompute = recompute;
}

bool tn_module_is_training(const tn_module *m) { return m && m->training; }

/* tn_data_parallel_minimize puts whole parameters in the place of a module's shares. */
static tn_status check_no_shard(const tn_module *m) {
    for (size_t i = 0; i < m->variable_count; i++) {
        const variable *v = &m->variables[i];
        const tn_division *d = &v->division;
        bool whole = tn_rank(v->tensor) == d->rank &&
                     (!d->rank || !memcmp(tn_shape(v->tensor), d->shape, (size_t)d->rank * sizeof *d->shape));
        if (d->elements && !d->joined && !whole)
            return tn_backend_fail(TN_ERR_STATE,
                                   "forward: %s of %s is divided among %d processes (tn_module_shard); compute in "
                                   "tn_data_parallel_minimize, or call tn_module_join first",
                                   v->name, m->name ? m->name : m->type->name, tn_group_size(d->group));
    }
    return TN_OK;
}

tn_tensor *tn_forward(tn_module *m, const tn_tensor *x) {
    if (!m)
        return tn_failed(TN_ERR_ARGUMENT,
                         "forward: the module is NULL; creating it failed (see tn_module_status of its root)");
    if (!m->type->forward)
        return tn_failed(TN_ERR_ARGUMENT, "forward: \"%s\", of type %s, has no forward function of one tensor",
                         m->name ? m->name : "", m->type->name);
    tn_status status = m->root->divided ? check_no_shard(m) : TN_OK;
    if (status != TN_OK) return tn_failed(status, "%s", tn_error());
    if (!m->recompute) return m->type->forward(m, x);
    TN_RECOMPUTE;
    return m->type->forward(m, x);
}

/* A sequence knows its children only through the tree, so it lives here. */
static tn_tensor *sequential_forward(tn_module *m, const tn_tensor *x) {
    if (m->child_count == 0) return tn_failed(TN_ERR_ARGUMENT, "forward: the sequence \"%s\" is empty", m->name);
    tn_tensor *result = NULL;
    TN_SCOPE;
    result = tn_forward(m->children[0], x);
    for (size_t i = 1; i < m->child_count; i++)
        result = tn_forward(m->children[i], result);
    tn_keep(result);
    return result;
}

static const tn_module_type sequential_type = {sizeof(tn_module_type), "sequential", sequential_forward, NULL};

tn_module *tn_nn_sequential(tn_module *parent, const char *name) {
    return tn_module_new(parent, name, &sequential_type, NULL);
}
