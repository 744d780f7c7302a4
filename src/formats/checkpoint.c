/* checkpoint.c — a module's weights and whole training runs in safetensors files.
 *
 * Loading is all or nothing: first everything in the file is held against everything that waits for it, then all values
 * are recorded as writes to state, and one run commits them together. Numbers that must come back exactly (counters,
 * the state of the random numbers) stand in the metadata as decimal text. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "trunnion/autograd.h"
#include "trunnion/json.h"
#include "trunnion/model.h"

static const char kind_key[] = "trunnion.kind", kind_value[] = "checkpoint";
static const char version_key[] = "trunnion.version";
static const char step_key[] = "step", json_key[] = "json", steps_key[] = "optimizer.steps";
static const char rate_key[] = "optimizer.lr";
static const char seed_key[] = "random.seed", offset_key[] = "random.offset";

/* Variables that stand in the file under a prefix. */
typedef struct part {
    const char *prefix;
    const tn_variable *items;
    int count;
} part;

enum { PART_MODEL, PART_OPTIMIZER, PART_EXTRA, PARTS };

typedef struct parts {
    part part[PARTS];
    tn_variable *model, *optimizer; /* owned lists after the first two */
} parts;

static void parts_free(parts *p) {
    tn_variables_free(p->model);
    tn_variables_free(p->optimizer);
}

static tn_status parts_collect(const tn_checkpoint *c, parts *p) {
    *p = (parts){0};
    if (c->step < 0 || c->extra_count < 0)
        return tn_fail(TN_ERR_ARGUMENT, "checkpoint: step is %lld and extra_count %d; they must be at least 0",
                       (long long)c->step, c->extra_count);
    *p = (parts){.part = {{"model.", NULL, 0}, {"optimizer.", NULL, 0}, {"extra.", c->extras, c->extra_count}}};
    tn_status status = TN_OK;
    if (c->model) status = tn_module_variables(c->model, &p->model, &p->part[PART_MODEL].count);
    if (status == TN_OK && c->optimizer)
        status = tn_optimizer_variables(c->optimizer, &p->optimizer, &p->part[PART_OPTIMIZER].count);
    p->part[PART_MODEL].items = p->model;
    p->part[PART_OPTIMIZER].items = p->optimizer;
    if (status == TN_OK && c->extra_count > 0 && !c->extras)
        status = tn_fail(TN_ERR_ARGUMENT, "checkpoint: %d extras, but the list is NULL", c->extra_count);
    return status;
}

/* ---- saving ------------------------------------------------------------------------------------------------------ */

static tn_status read_checkpoint(const tn_checkpoint *given, const char *function, tn_checkpoint *c) {
    *c = (tn_checkpoint)TN_CHECKPOINT_DEFAULTS;
    return tn_options_read(c, given, function, "tn_checkpoint c = TN_CHECKPOINT_DEFAULTS");
}

static int parts_total(const parts *p) {
    int total = 0;
    for (int i = 0; i < PARTS; i++)
        total += p->part[i].count;
    return total;
}

/* Full names, each after the other in `names`; the list points into it. */
static tn_status name_all(const parts *p, tn_named_tensor *list, tn_str *names) {
    for (int i = 0; i < PARTS; i++)
        for (int k = 0; k < p->part[i].count; k++) {
            tn_str_add(names, "%s%s", p->part[i].prefix, p->part[i].items[k].name);
            tn_str_addn(names, "", 1);
        }
    if (names->failed) return tn_fail(TN_ERR_MEMORY, "checkpoint: out of memory while naming the tensors");
    const char *next = names->text;
    for (int i = 0, n = 0; i < PARTS; i++)
        for (int k = 0; k < p->part[i].count; k++) {
            list[n++] = (tn_named_tensor){next, p->part[i].items[k].tensor};
            next += strlen(next) + 1;
        }
    return TN_OK;
}

static tn_status save_parts(const char *path, const parts *p, const tn_metadata *metadata, int metadata_count) {
    int total = parts_total(p);
    AUTO_FREE tn_named_tensor *list = tn_mem_zalloc((size_t)total, sizeof *list);
    if (!list) return TN_ERR_MEMORY;
    AUTO_STR tn_str names = {0};
    TRY(name_all(p, list, &names));
    return tn_safetensors_save(path, list, total, metadata, metadata_count);
}

/* "12,12,12": the step counts of the optimiser's variables. */
static void add_steps(tn_str *s, const tn_optimizer *o) {
    for (int i = 0; i < tn_optimizer_count(o); i++)
        tn_str_add(s, "%s%" PRId64, i ? "," : "", tn_optimizer_steps(o, i));
}

tn_status tn_checkpoint_save(const char *path, const tn_checkpoint *checkpoint) {
    tn_checkpoint read, *c = &read;
    TRY(tn_need(path, "tn_checkpoint_save: the path"));
    TRY(tn_need(checkpoint, "tn_checkpoint_save: the checkpoint"));
    TRY(read_checkpoint(checkpoint, "tn_checkpoint_save", c));
    TRY(tn_module_check_whole(c->model, c->optimizer, "tn_checkpoint_save"));
    AUTO_CALL(parts_free) parts p = {.model = NULL};
    TRY(parts_collect(c, &p));
    AUTO_STR tn_str steps = {0}, rate = {0};
    if (c->optimizer) add_steps(&steps, c->optimizer);
    if (c->optimizer) tn_json_put_number(&(tn_json_writer){.out = &rate}, tn_optimizer_lr(c->optimizer));
    tn_random_state random = tn_get_random_state();
    char step[24], seed[24], offset[24];
    snprintf(step, sizeof step, "%" PRId64, c->step);
    snprintf(seed, sizeof seed, "%" PRIu64, random.seed);
    snprintf(offset, sizeof offset, "%" PRIu64, random.offset);
    tn_metadata metadata[8] = {
        {kind_key, kind_value}, {version_key, tn_version()}, {step_key, step}, {seed_key, seed}, {offset_key, offset}};
    int count = 5;
    if (c->optimizer) metadata[count++] = (tn_metadata){steps_key, tn_str_text(&steps)};
    if (c->optimizer) metadata[count++] = (tn_metadata){rate_key, tn_str_text(&rate)};
    if (c->json) metadata[count++] = (tn_metadata){json_key, c->json};
    if (steps.failed || rate.failed) return TN_ERR_MEMORY;
    return save_parts(path, &p, metadata, count);
}

tn_status tn_module_save(const tn_module *m, const char *path) {
    TRY(tn_need(path, "tn_module_save: the path"));
    TRY(tn_module_check_whole(m, NULL, "tn_module_save"));
    AUTO_CALL(parts_free) parts p = {.part = {{"", NULL, 0}, {"", NULL, 0}, {"", NULL, 0}}};
    TRY(tn_module_variables(m, &p.model, &p.part[PART_MODEL].count));
    p.part[PART_MODEL].items = p.model;
    static const tn_metadata format = {"format", "pt"};
    return save_parts(path, &p, &format, 1);
}

/* ---- loading ----------------------------------------------------------------------------------------------------- */

static tn_status find_named(const tn_safetensors *f, const char *prefix, const char *name, tn_str *full,
                            tn_safetensors_info *info) {
    if (full->length) full->text[full->length = 0] = '\0';
    tn_str_add(full, "%s%s", prefix, name);
    if (full->failed) return tn_fail(TN_ERR_MEMORY, "out of memory while looking for '%s'", name);
    if (tn_safetensors_find(f, full->text, info) == TN_OK) return TN_OK;
    return tn_fail(TN_ERR_FORMAT, "'%s' is missing from the file: the file belongs to another model", full->text);
}

/* The file's entry for variable i. Tied variables share one storage: the entry of any of their names fills it, because
 * some writers keep only one. */
static tn_status find_variable(const tn_safetensors *f, const part *p, int i, tn_str *full, tn_safetensors_info *info) {
    tn_status status = find_named(f, p->prefix, p->items[i].name, full, info);
    uint64_t id = status == TN_ERR_FORMAT ? tn_value_id(p->items[i].tensor) : 0;
    for (int k = 0; id && k < p->count; k++) {
        if (k == i || tn_value_id(p->items[k].tensor) != id) continue;
        if (find_named(f, p->prefix, p->items[k].name, full, info) == TN_OK) return TN_OK;
    }
    return id ? find_named(f, p->prefix, p->items[i].name, full, info) : status;
}

static void add_shape(tn_str *s, const int64_t *shape, int rank) {
    tn_str_add(s, "[");
    for (int d = 0; d < rank; d++)
        tn_str_add(s, "%s%" PRId64, d ? ", " : "", shape[d]);
    tn_str_add(s, "]");
}

static tn_status check_fits(const tn_safetensors_info *info, const tn_tensor *t, bool same_dtype) {
    int rank = tn_rank(t);
    bool same =
        info->rank == rank && (rank == 0 || memcmp(info->shape, tn_shape(t), (size_t)rank * sizeof *info->shape) == 0);
    if (same && (!same_dtype || info->dtype == tn_dtype_of(t))) return TN_OK;
    AUTO_STR tn_str shapes = {0};
    add_shape(&shapes, info->shape, info->rank);
    tn_str_add(&shapes, " in the file, but %s ", tn_dtype_name(tn_dtype_of(t)));
    add_shape(&shapes, tn_shape(t), rank);
    return tn_fail(TN_ERR_FORMAT, "'%s' is %s %s in the model", info->name, info->dtype_name, tn_str_text(&shapes));
}

/* Tied variables hold one value: a file with another one for each name belongs to a model that does not tie them. */
static tn_status check_tied(const tn_safetensors *f, const part *p, int i, const tn_safetensors_info *info,
                            tn_str *full) {
    uint64_t id = tn_value_id(p->items[i].tensor);
    for (int k = 0; k < i; k++) {
        tn_safetensors_info other = {.struct_size = sizeof other};
        if (tn_value_id(p->items[k].tensor) != id) continue;
        TRY(find_variable(f, p, k, full, &other));
        bool same = other.dtype == info->dtype && other.bytes == info->bytes &&
                    memcmp(other.data, info->data, (size_t)info->bytes) == 0;
        if (!same)
            return tn_fail(TN_ERR_FORMAT,
                           "'%s' and '%s' differ in the file, but are one tied tensor in the model: the file belongs "
                           "to another model",
                           other.name, info->name);
        break; /* the others were compared with this one */
    }
    return TN_OK;
}

/* Holds every variable of a part against the file; touches nothing. */
static tn_status part_check(const tn_safetensors *f, const part *p, bool same_dtype) {
    AUTO_STR tn_str full = {0};
    for (int i = 0; i < p->count; i++) {
        tn_safetensors_info info = {.struct_size = sizeof info};
        TRY(find_variable(f, p, i, &full, &info));
        TRY(check_fits(&info, p->items[i].tensor, same_dtype));
        TRY(check_tied(f, p, i, &info, &full));
    }
    return TN_OK;
}

/* The values of a part as they stand in the file, one new handle each; on failure those made so far. */
static tn_status part_values(const tn_safetensors *f, const part *p, tn_tensor **values) {
    AUTO_STR tn_str full = {0};
    for (int i = 0; i < p->count; i++) {
        tn_safetensors_info info = {.struct_size = sizeof info};
        TRY(find_variable(f, p, i, &full, &info));
        values[i] = tn_safetensors_tensor(f, full.text);
        TRY(tn_status_of(values[i]));
    }
    return TN_OK;
}

/* A write that could not even be recorded (memory ran out) has spoiled its variable: that must not pass for success. */
static tn_status write_values(const part *p, tn_tensor *const *values) {
    tn_status status = TN_OK;
    TN_NO_GRAD;
    for (int i = 0; i < p->count && status == TN_OK; i++)
        status = tn_status_of(tn_copy_(p->items[i].tensor, values[i]));
    return status;
}

/* Puts all parts' values from the file into their tensors, in one run, or changes nothing. */
static tn_status parts_load(const tn_safetensors *f, const parts *p, bool same_dtype) {
    for (int i = 0; i < PARTS; i++)
        TRY(part_check(f, &p->part[i], same_dtype));
    int total = parts_total(p);
    tn_tensor **values = tn_mem_zalloc((size_t)total, sizeof *values);
    if (!values) return TN_ERR_MEMORY;
    tn_status status = TN_OK;
    for (int i = 0, at = 0; i < PARTS && status == TN_OK; at += p->part[i++].count)
        status = part_values(f, &p->part[i], values + at);
    if (status == TN_OK) {
        for (int i = 0, at = 0; i < PARTS && status == TN_OK; at += p->part[i++].count)
            status = write_values(&p->part[i], values + at);
        if (status == TN_OK) status = tn_eval(NULL, 0);
    }
    for (int i = 0; i < total; i++)
        tn_free(values[i]);
    tn_mem_free(values);
    return status;
}

tn_status tn_module_load(tn_module *m, const char *path) {
    TRY(tn_need(path, "tn_module_load: the path"));
    TRY(tn_module_check_whole(m, NULL, "tn_module_load"));
    AUTO_CALL(parts_free) parts p = {.part = {{"", NULL, 0}, {"", NULL, 0}, {"", NULL, 0}}};
    TRY(tn_module_variables(m, &p.model, &p.part[PART_MODEL].count));
    p.part[PART_MODEL].items = p.model;
    tn_safetensors *f = NULL;
    tn_status status = tn_safetensors_open(path, &f);
    if (status == TN_OK && (status = parts_load(f, &p, false)) != TN_OK) tn_fail_prefix(status, "loading '%s'", path);
    tn_safetensors_close(f);
    return status;
}

/* ---- the numbers of a checkpoint --------------------------------------------------------------------------------- */

typedef struct numbers {
    int64_t step;
    tn_random_state random;
    int64_t *steps; /* the optimiser's, a variable each */
    double rate;    /* its learning rate; NaN: the file has none */
} numbers;

/* A decimal number at *text, which moves after it. */
static bool read_number(const char **text, uint64_t *out) {
    if (!*text || **text < '0' || **text > '9') return false;
    char *end;
    errno = 0;
    *out = strtoull(*text, &end, 10);
    *text = end;
    return errno == 0;
}

static tn_status read_field(const tn_safetensors *f, const char *key, uint64_t limit, uint64_t *out) {
    const char *text = tn_safetensors_metadata(f, key);
    if (read_number(&text, out) && *text == '\0' && *out <= limit) return TN_OK;
    return tn_fail(TN_ERR_FORMAT, "the metadata \"%s\" is missing or not a number in range", key);
}

static tn_status read_steps(const tn_safetensors *f, int count, int64_t *steps) {
    const char *text = tn_safetensors_metadata(f, steps_key);
    for (int i = 0; i < count; i++) {
        uint64_t n = 0;
        bool separated = i == 0 || (text && *text == ',' && text++);
        if (!separated || !read_number(&text, &n) || n > INT64_MAX)
            return tn_fail(TN_ERR_FORMAT, "the metadata \"%s\" does not contain %d step counts", steps_key, count);
        steps[i] = (int64_t)n;
    }
    if (text && *text)
        return tn_fail(TN_ERR_FORMAT, "the metadata \"%s\" contains more than %d step counts", steps_key, count);
    return TN_OK;
}

/* Files of earlier versions have no learning rate: the optimiser keeps its own. */
static tn_status read_rate(const tn_safetensors *f, double *rate) {
    const char *text = tn_safetensors_metadata(f, rate_key);
    *rate = NAN;
    if (!text) return TN_OK;
    tn_json_doc *d = NULL; /* JSON's numbers have a point whatever the locale */
    if (tn_json_parse(text, strlen(text), &d) == TN_OK) *rate = tn_json_number(tn_json_root(d), NAN);
    tn_json_free(d);
    if (*rate >= 0 && isfinite(*rate)) return TN_OK;
    return tn_fail(TN_ERR_FORMAT, "the metadata \"%s\" is \"%s\", which is not a learning rate", rate_key, text);
}

static tn_status read_numbers(const tn_safetensors *f, const tn_checkpoint *c, numbers *n) {
    const char *kind = tn_safetensors_metadata(f, kind_key);
    if (!kind || strcmp(kind, kind_value) != 0)
        return tn_fail(
            TN_ERR_FORMAT,
            "the file contains weights, but is not a checkpoint of a training run (metadata \"%s\" is missing)",
            kind_key);
    uint64_t step = 0;
    TRY(read_field(f, step_key, INT64_MAX, &step));
    TRY(read_field(f, seed_key, UINT64_MAX, &n->random.seed));
    TRY(read_field(f, offset_key, UINT64_MAX, &n->random.offset));
    n->step = (int64_t)step;
    if (!c->optimizer) return TN_OK;
    TRY(read_rate(f, &n->rate));
    int count = tn_optimizer_count(c->optimizer);
    n->steps = tn_mem_zalloc((size_t)count, sizeof *n->steps);
    return n->steps ? read_steps(f, count, n->steps) : TN_ERR_MEMORY;
}

static tn_status copy_json(const tn_safetensors *f, char **out) {
    const char *text = tn_safetensors_metadata(f, json_key);
    *out = text ? tn_mem_strdup(text) : NULL;
    return text && !*out ? TN_ERR_MEMORY : TN_OK;
}

static tn_status load_open(const tn_safetensors *f, tn_checkpoint *c, const parts *p) {
    numbers n = {0};
    char *json = NULL;
    tn_status status = read_numbers(f, c, &n);
    if (status == TN_OK) status = copy_json(f, &json);
    if (status == TN_OK) status = parts_load(f, p, true);
    if (status == TN_OK) {
        for (int i = 0; c->optimizer && i < tn_optimizer_count(c->optimizer); i++)
            tn_optimizer_set_steps(c->optimizer, i, n.steps[i]);
        if (c->optimizer && !isnan(n.rate)) tn_optimizer_set_lr(c->optimizer, n.rate);
        tn_set_random_state(n.random);
        c->step = n.step;
        c->loaded_json = json;
    } else {
        tn_mem_free(json);
    }
    tn_mem_free(n.steps);
    return status;
}

tn_status tn_checkpoint_load(const char *path, tn_checkpoint *checkpoint) {
    tn_checkpoint read, *c = &read;
    TRY(tn_need(path, "tn_checkpoint_load: the path"));
    TRY(tn_need(checkpoint, "tn_checkpoint_load: the checkpoint"));
    TRY(read_checkpoint(checkpoint, "tn_checkpoint_load", c));
    TRY(tn_module_check_whole(c->model, c->optimizer, "tn_checkpoint_load"));
    tn_safetensors *f = NULL;
    TRY(tn_safetensors_open(path, &f));
    parts p;
    tn_status status = parts_collect(c, &p);
    if (status == TN_OK) status = load_open(f, c, &p);
    parts_free(&p);
    tn_safetensors_close(f);
    if (status != TN_OK) return tn_fail_prefix(status, "checkpoint '%s'", path);
    tn_options_write(checkpoint, c);
    return TN_OK;
}
