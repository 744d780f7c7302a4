/* profile.c — cost and time of each command.
 *
 * While a profile is active, every command that this thread runs, of any plan, is timed and added to the row of its
 * label, so thirty equal layers are one row. A profile belongs to its caller; the thread has a pointer to the active
 * one. */
#include <string.h>

#include "plan/plan.h"

const char *tn_command_kind_name(const tn_command *c) {
    static const char *const name[] = {
        [TN_CMD_KERNEL] = "kernel", [TN_CMD_NATIVE] = "native",    [TN_CMD_COPY] = "copy",
        [TN_CMD_FETCH] = "fetch",   [TN_CMD_SEND] = "send",        [TN_CMD_VENDOR] = "library",
        [TN_CMD_ENGINE] = "engine", [TN_CMD_ENGINE_OP] = "engine",
    };
    return c->host ? "host" : name[c->kind];
}

typedef struct profile_row {
    const char *kind;
    char label[TN_LABEL];
    int64_t runs, bytes;
    double flops, seconds;
} profile_row;

struct tn_profile {
    profile_row *rows;
    int64_t count, capacity;
};

static _Thread_local tn_profile *active;

/* ---- cost -------------------------------------------------------------------------------------------------------- */

static int64_t bytes_of(const tn_value *v, int64_t elements) {
    return (int64_t)tn_dtype_bytes((tn_dtype)v->node->dtype, elements);
}

/* The places that a kernel visits; a native one visits what it likes. */
static int64_t places_of(const tn_graph_plan *g, const tn_group *group) {
    const tn_value *lead = &g->values[group->lead];
    if (group->kind == TN_GROUP_MAP) return tn_value_numel(lead);
    if (group->kind != TN_GROUP_ROWS || !lead->row->impl->loops) return INT64_MAX;
    int64_t extent[TN_MAX_RANK];
    int rank = lead->row->impl->loops(lead->node, extent);
    return tn_value_numel(lead) * tn_product(extent, rank);
}

/* Each access reads one element per point, so for a lookup table at most the rows that are read are counted. */
static int64_t bytes_read(const tn_graph_plan *g, const tn_group *group, const tn_value *operand) {
    return bytes_of(operand, tn_min64(tn_value_numel(operand), places_of(g, group)));
}

static bool is_product(const tn_graph_plan *g, const tn_group *group, int value) {
    return group->kind == TN_GROUP_MATMUL && value == group->lead && g->values[value].n_in >= 2;
}

/* How many products are summed up in each element of a convolution or of its filters' gradient; else 0. */
static double convolved(const tn_node *n) {
    if (!tn_op_has(n, TN_FACT_CONV_FORWARD | TN_FACT_CONV_WGRAD)) return 0;
    const tn_node *other = n->in[1];
    int64_t apart = other->shape[tn_op_has(n, TN_FACT_CONV_FORWARD) ? 0 : other->rank - 3];
    return apart ? (double)tn_node_numel(other) / (double)apart : 0;
}

/* Per element of the group's value: a product has one multiplication and one addition per element of a row. */
static double flops_of(const tn_graph_plan *g, const tn_group *group, int value) {
    const tn_value *v = &g->values[value];
    if (convolved(v->node) > 0) return 2 * convolved(v->node);
    if (!is_product(g, group, value)) return v->row->impl->flops;
    const tn_node *x = g->values[v->in[0]].node;
    return 2 * (double)x->shape[x->rank - 1];
}

tn_cost tn_group_cost(const tn_graph_plan *g, const tn_group *group) {
    tn_cost cost = {0};
    for (size_t i = 0; i < group->member_count; i++) {
        const tn_value *v = &g->values[group->members[i]];
        if (v->stored) cost.bytes += bytes_of(v, tn_value_numel(v));
        cost.flops += flops_of(g, group, group->members[i]) * (double)tn_value_numel(v);
    }
    for (int i = 0; i < group->run.read_count; i++) {
        const tn_value *v = &g->values[group->run.reads[i]];
        if (v->stored || v->group < 0) cost.bytes += bytes_read(g, group, v); /* else it is made where it is read */
    }
    return cost;
}

/* ---- the rows ---------------------------------------------------------------------------------------------------- */

static profile_row *find_or_add_row(tn_profile *p, const char *kind, const char *label) {
    for (int64_t i = 0; i < p->count; i++)
        if (p->rows[i].kind == kind && !strcmp(p->rows[i].label, label)) return &p->rows[i];
    if (p->count == p->capacity) {
        int64_t capacity = p->capacity ? 2 * p->capacity : 64;
        profile_row *rows = tn_mem_realloc(p->rows, (size_t)capacity * sizeof *rows);
        if (!rows) return NULL;
        p->rows = rows;
        p->capacity = capacity;
    }
    profile_row *row = &p->rows[p->count++];
    *row = (profile_row){.kind = kind};
    memcpy(row->label, label, sizeof row->label);
    return row;
}

tn_profile *tn_profile_here(void) { return active; }

void tn_profile_add(tn_profile *p, const tn_command *c, double seconds) {
    profile_row *row = find_or_add_row(p, tn_command_kind_name(c), c->label);
    if (!row) return; /* out of memory: the profile lacks this row */
    tn_cost cost = c->cost;
    if (c->native) tn_native_cost(c->native, &cost);
    row->runs++;
    row->bytes += cost.bytes;
    row->flops += cost.flops;
    row->seconds += seconds;
}

tn_profile *tn_profile_begin(void) {
    tn_profile *p = tn_mem_zalloc(1, sizeof *p);
    if (p) active = p;
    return p;
}

void tn_profile_end(tn_profile *p) {
    if (p && active == p) active = NULL;
}

void tn_profile_free(tn_profile *p) {
    if (!p) return;
    tn_profile_end(p);
    tn_mem_free_each(p->rows, p);
}

int64_t tn_profile_count(const tn_profile *p) { return p ? p->count : 0; }

tn_status tn_profile_at(const tn_profile *p, int64_t i, tn_profile_row *out) {
    TRY(tn_need(p, "tn_profile_at: the profile"));
    if (i < 0 || i >= p->count)
        return tn_fail(TN_ERR_ARGUMENT, "tn_profile_at: row %lld is out of range; there are %lld", (long long)i,
                       (long long)p->count);
    const profile_row *row = &p->rows[i];
    tn_profile_row full = {.struct_size = sizeof full,
                           .kind = row->kind,
                           .label = row->label,
                           .runs = row->runs,
                           .bytes = row->bytes,
                           .flops = row->flops,
                           .seconds = row->seconds};
    return tn_result_write(out, &full, sizeof full, "tn_profile_at: out");
}
