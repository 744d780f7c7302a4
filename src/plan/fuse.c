/* fuse.c — values to groups: what becomes one kernel, what is rematerialized, what is written in place.
 *
 * One rule a line:
 *   - An element-wise, movement or generated value is inlined: computed inside each group that uses it. It is stored if
 *     it is an output, if a user can only read it from memory, or if several groups use it and computing it again costs
 *     more than reading it (for large values: more memory traffic).
 *   - A stored value joins a group that uses it and has the same loop space, as a further result of one pass.
 *   - A reduction joins the group that runs over its rows or over its input, so softmax and norms are one kernel. It
 *     never joins a group that writes a state: updates run last, in place, equal ones in one launch, and the reduced
 *     value is often needed earlier. Reductions over the same rows of the same values are one pass.
 *   - On the CPU a reduction of columns is its own group and reads memory: its operand is computed faster separately or
 *     as the epilogue of a product, and columns are then reduced at the speed of memory (kir/vm.c).
 *   - The element-wise group after a product or convolution becomes its epilogue, unless a vendor library computes it.
 *   - Pooling becomes the last step of the convolution before it, if that has an epilogue and nothing else uses its
 *     result.
 *   - On the CPU, a tensor of bytes from which other bytes are computed by many operations is a group of its own, and
 *     so are those bytes. Readers compute 256 results and look them up (kir/vm_table.c). Dear bytes whose rows are
 *     reduced are a group of their own too.
 *   - Everything else is a group of its own.
 * Users are visited before their operands, so all uses of a value are known when it is visited. Joins are decided on
 * shapes. If an index does not fit, lowering reports the value, and fusing starts again with that value separate. */
#include <string.h>

#include "plan/native.h"
#include "plan/plan.h"

/* Whether this element-wise value, which several groups use, is computed in each of them instead of stored. */
static bool is_rematerialized(const tn_graph_plan *g, const tn_value *v);
static void concat_choose(tn_graph_plan *g); /* sets `joined` of all values, whose users are known */

enum {
    MAX_PULLS = 16,         /* groups that may each compute an inlined value again */
    CHEAP_WEIGHT = 6,       /* work below which computing again beats storing */
    MOVED_WEIGHT = 3,       /* the same where each element is read several times */
    SPREAD_WEIGHT = 16,     /* the same under a broadcast */
    MOST_DECODED = 1 << 15, /* numbers that are decoded once for all, whatever of them is needed */
    MAX_WEIGHT = 256,       /* bounds the size and the depth of one program */
    MAX_LOADS = 20,         /* buffers of a program (KIR_MAX_BUFFERS) less room for results */
    FREE_BUFFERS = 8,       /* buffers that one value may not use up */
    FEW_ROWS = 8,           /* rows too few to share out a long second pass over them */
    WIDE = 16,              /* columns that are worth a separate kernel, … */
    SHORT = 4,              /* … or this many if their rows are contiguous, */
    MANY_ELEMENTS = 2048    /* … and elements of them */
};

/* ---- facts ------------------------------------------------------------------------------------------------------- */

static bool over_dims(const tn_value *v) { return v->row->impl->loops == tn_loops_over_dims; }

/* A reduction that leaves the last dim, for which there are enough elements. */
static bool of_columns(const tn_graph_plan *g, const tn_value *v) {
    if (!g->binding->device->is_cpu || tn_value_class(v) != TN_REDUCTION || !over_dims(v)) return false;
    const tn_node *r = v->node, *in = r->in[0];
    if (in->rank == 0 || r->i[0] == 0 || tn_node_numel(in) < MANY_ELEMENTS) return false;
    int64_t columns = in->shape[in->rank - 1], least = r->i[0] == in->rank - 1 ? SHORT : WIDE;
    if (columns < least) return false;
    for (int64_t k = 0; k < r->i[0]; k++)
        if (r->i[1 + k] == in->rank - 1) return false;
    return true;
}

/* A view whose index can be mapped to its input's: all but a reshape that merges dimensions, and raw strides. */
static bool view_maps(const tn_value *v) {
    if (!v->row->impl->lower || tn_op_has(v->node, TN_FACT_RAW_STRIDES)) return false;
    if (!tn_op_has(v->node, TN_FACT_RESHAPE)) return true;
    /* Each input extent must be the product of consecutive extents of the result. */
    const tn_node *out = v->node, *in = v->node->in[0];
    int o = 0;
    for (int d = 0; d < in->rank; d++) {
        int64_t product = 1;
        while (o < out->rank && product < in->shape[d])
            product *= out->shape[o++];
        if (product != in->shape[d]) return false;
    }
    return true;
}

/* All in one array, which is as large in a later round. */
static tn_status find_users(tn_graph_plan *g) {
    size_t all = 0;
    for (size_t i = 0; i < g->value_count; i++)
        g->values[i].fusion.user_count = 0;
    for (size_t i = 0; i < g->value_count; i++)
        for (int k = 0; k < g->values[i].n_in; k++)
            if (g->values[i].in[k] >= 0) g->values[g->values[i].in[k]].fusion.user_count++;
    for (size_t i = 0; i < g->value_count; i++)
        all += (size_t)g->values[i].fusion.user_count;
    if (!g->fusion.users) g->fusion.users = tn_scratch_take(&g->scratch, all * sizeof *g->fusion.users);
    if (!g->fusion.users) return TN_ERR_MEMORY;
    int *next = g->fusion.users;
    for (size_t i = 0; i < g->value_count; i++) {
        tn_value *v = &g->values[i];
        v->fusion.users = next;
        next += v->fusion.user_count;
        v->fusion.user_count = 0;
    }
    for (size_t i = 0; i < g->value_count; i++)
        for (int k = 0; k < g->values[i].n_in; k++) {
            if (g->values[i].in[k] < 0) continue;
            tn_value *in = &g->values[g->values[i].in[k]];
            in->fusion.users[in->fusion.user_count++] = (int)i;
        }
    return TN_OK;
}

/* ---- weights: what it costs to compute a value again, and who insists on memory ---------------------------------- */

static bool kernel_of_its_own(tn_op_class c) {
    return c == TN_MATMUL || c == TN_NATIVE || c == TN_REDUCTION || c == TN_SCANNING;
}

static void want_memory(tn_graph_plan *g, int value) {
    tn_value *root = &g->values[g->values[value].root];
    root->fusion.wants_memory = true;
    root->fusion.heavy = false;
}

/* A reshaped concatenation: a fused reader would compute for each element which part its index falls into. */
static bool reshapes_joined(const tn_graph_plan *g, const tn_value *u, const tn_value *in) {
    return g->binding->device->is_cpu && tn_op_has(u->node, TN_FACT_RESHAPE) && tn_op_has(in->node, TN_FACT_CONCAT) &&
           tn_value_numel(in) >= MANY_ELEMENTS;
}

/* Notes how user u reads its input x. */
static void input_needs(tn_graph_plan *g, const tn_value *u, int x) {
    const tn_value *root = &g->values[g->values[x].root], *in = &g->values[x];
    tn_op_class c = tn_value_class(u);
    bool dear = in->fusion.loads > 0 && in->fusion.weight > MOVED_WEIGHT;
    bool spread = in->fusion.weight > SPREAD_WEIGHT && tn_value_numel(u) > 4 * tn_value_numel(in) && c != TN_REDUCTION;
    if (root->slot >= 0 || (u->by.engine && tn_engine_has_constant(g, x))) return;
    /* it has an epilogue, which elements pass a few times */
    if (c == TN_MATMUL && !u->by.vendor && tn_workgroup_takes(u)) {
        if (dear) want_memory(g, x);
        return;
    }
    if (c == TN_NATIVE && !u->by.vendor && in->scalar >= 0 && tn_workgroup_takes(u)) return; /* a runtime scalar */
    if (c == TN_MATMUL || c == TN_NATIVE || (c == TN_VIEW_OP && (!view_maps(u) || reshapes_joined(g, u, in))) ||
        (c == TN_MOVEMENT && dear) || spread)
        want_memory(g, x);
    if (c == TN_REDUCTION && !over_dims(u) && dear) want_memory(g, x);
    if (of_columns(g, u) && in->fusion.loads > 0 && in->fusion.weight > 1) want_memory(g, x);
}

/* Notes whether each element of v follows from one byte of another value, and the last bytes on the way to it. */
static void note_byte(const tn_graph_plan *g, tn_value *v) {
    enum { MANY = 1 << 14 };
    v->fusion.byte = v->fusion.last_byte = -1;
    v->fusion.byte_work = 0;
    if (!v->row || !g->binding->device->is_cpu || tn_value_class(v) != TN_ELEMENTWISE || tn_value_numel(v) < MANY)
        return;
    int source = -1, last = -1;
    float work = 1.0f + (float)v->row->impl->flops;
    for (int k = 0; k < v->n_in; k++) {
        const tn_value *in = v->in[k] >= 0 ? &g->values[v->in[k]] : NULL;
        if (!in || tn_value_numel(in) == 1) continue;
        const int from = in->fusion.byte < 0 && tn_dtype_is_byte(in->node->dtype) ? v->in[k] : in->fusion.byte;
        if (from < 0 || tn_value_numel(in) != tn_value_numel(v) || (source >= 0 && from != source)) return;
        last = source < 0 || last == in->fusion.last_byte ? in->fusion.last_byte : -1;
        source = from;
        work += in->fusion.byte_work;
    }
    v->fusion.byte = source;
    v->fusion.byte_work = work;
    v->fusion.last_byte = source >= 0 && tn_dtype_is_byte(v->node->dtype) ? (int)(v - g->values) : last;
}

static void store_alone(tn_graph_plan *g, int value) {
    want_memory(g, value);
    g->values[g->values[value].root].fusion.apart = true;
}

/* If other values than functions of one byte read `value`, such a function: bytes that follow from bytes by many
 * operations are stored, and so are those, in groups of their own. 256 results are then computed and looked up
 * (kir/vm_table.c), instead of one for each element. */
static void store_bytes(tn_graph_plan *g, int value) {
    enum { DEAR = 40 };
    const int ends[] = {g->values[value].fusion.last_byte, g->values[value].fusion.byte};
    if (ends[0] < 0 || g->values[ends[0]].fusion.byte_work < DEAR) return;
    for (int k = 0; k < 2; k++)
        store_alone(g, ends[k]);
}

/* Notes functions of bytes, and the bytes of which rows are reduced: norms pass over them several times, and would
 * compute them in each pass. */

static void find_bytes(tn_graph_plan *g) {
    for (size_t i = 0; i < g->value_count; i++) {
        tn_value *v = &g->values[i];
        note_byte(g, v);
        const int reduced = tn_value_class(v) == TN_REDUCTION && over_dims(v) ? g->values[v->in[0]].fusion.byte : -1;
        if (reduced >= 0) g->values[g->values[reduced].root].fusion.reduced = true;
        if (v->output >= 0) store_bytes(g, (int)i);
        for (int k = 0; k < v->n_in; k++)
            if (v->in[k] >= 0 && g->values[v->in[k]].fusion.byte != v->fusion.byte) store_bytes(g, v->in[k]);
    }
}

static void weigh_fusion(tn_graph_plan *g) {
    for (size_t i = 0; i < g->value_count; i++) {
        g->values[i].fusion.wants_memory = g->values[i].memory.into >= 0;
        g->values[i].fusion.heavy = g->values[i].fusion.apart = g->values[i].fusion.reduced = false;
    }
    if (g->checked.count) tn_want_checked(g);
    find_bytes(g);
    for (size_t i = 0; i < g->value_count; i++) {
        tn_value *v = &g->values[i];
        tn_op_class c = tn_value_class(v);
        v->fusion.loads = 1;
        v->fusion.weight = 1;
        if (!v->row || kernel_of_its_own(c)) {
            for (int k = 0; v->row && v->scalar < 0 && k < v->n_in; k++)
                if (v->in[k] >= 0) input_needs(g, v, v->in[k]);
            continue;
        }
        float weight = c == TN_VIEW_OP ? 0.0f : 1.0f + (float)v->row->impl->flops;
        int loads = 0;
        for (int k = 0; k < v->n_in; k++) {
            if (v->in[k] < 0) continue;
            input_needs(g, v, v->in[k]);
            const tn_value *in = &g->values[v->in[k]];
            bool memory = g->values[in->root].fusion.wants_memory;
            weight += memory ? 1.0f : in->fusion.weight;
            bool output = g->values[in->root].output >= 0; /* stored, so it can be read instead of computed */
            loads += memory || (output && in->fusion.loads == 0) ? 1 : in->fusion.loads;
        }
        v->fusion.weight = weight;
        v->fusion.loads = loads;
        /* Many operands with many loads each (joined tensors): each of them is made first. */
        for (int k = 0; loads > KIR_MAX_BUFFERS - FREE_BUFFERS && k < v->n_in; k++)
            if (v->in[k] >= 0 && g->values[v->in[k]].fusion.loads > 1) want_memory(g, v->in[k]);
        if (v->fusion.reduced && weight > SPREAD_WEIGHT) store_alone(g, (int)i);
        if (weight > MAX_WEIGHT || loads > MAX_LOADS) {
            const bool wanted = g->values[v->root].fusion.wants_memory;
            want_memory(g, (int)i);
            v->fusion.heavy = !wanted && v->root == (int)i;
            v->fusion.weight = 1;
            v->fusion.loads = 1;
        }
    }
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

bool tn_group_writes_state(const tn_graph_plan *g, const tn_group *group) {
    for (size_t i = 0; i < group->member_count; i++) {
        const tn_value *v = &g->values[group->members[i]];
        if (v->output >= 0 && g->binding->outputs[v->output].home >= 0) return true;
    }
    return false;
}

/* For one item more. */
static inline tn_status room_for(tn_graph_plan *g, void *items_pointer, size_t *capacity, size_t count, size_t size) {
    enum { FIRST = 8 };
    if (count < *capacity) return TN_OK;
    return tn_scratch_grow(&g->scratch, items_pointer, capacity, count < FIRST ? FIRST : count + 1, size);
}

static tn_status group_new(tn_graph_plan *g, tn_group_kind kind, int lead, int *out) {
    TRY(room_for(g, &g->groups, &g->group_capacity, g->group_count, sizeof *g->groups));
    *out = (int)g->group_count++;
    g->groups[*out] = (tn_group){.kind = kind, .lead = lead, .pool = -1, .lowered.block_buffer = -1};
    return TN_OK;
}

static tn_status group_add(tn_graph_plan *g, int group, int value) {
    tn_group *to = &g->groups[group];
    TRY(room_for(g, &to->members, &to->member_capacity, to->member_count, sizeof *to->members));
    to->members[to->member_count++] = value;
    g->values[value].group = group;
    return TN_OK;
}

/* Does `from` read, directly or not, a result of one of `targets` (other than itself)? */
static bool reads_any(tn_graph_plan *g, int from, const int *targets, int count) {
    if (count == 0 || (count == 1 && targets[0] == from)) return false; /* usual: no search of all groups */
    g->fusion.stamp++;
    int *stack = g->fusion.order, top = 0; /* order is not made yet: its room serves as the stack */
    stack[top++] = from;
    g->groups[from].order.seen = g->fusion.stamp;
    while (top > 0) {
        const tn_group *at = &g->groups[stack[--top]];
        g->fusion.work++;
        for (size_t i = 0; i < at->order.dep_count; i++) {
            int d = at->order.deps[i];
            for (int k = 0; k < count; k++)
                if (targets[k] == d && d != from) return true;
            if (g->groups[d].order.seen == g->fusion.stamp) continue;
            g->groups[d].order.seen = g->fusion.stamp;
            stack[top++] = d;
        }
    }
    return false;
}

static bool same_rows(const tn_graph_plan *g, const tn_value *r, int lead) {
    const tn_value *l = &g->values[lead];
    if (!over_dims(r) || !over_dims(l) || !tn_same_shape(r->node, l->node) ||
        !tn_same_shape(r->node->in[0], l->node->in[0]))
        return false;
    return r->node->i[0] == l->node->i[0] &&
           memcmp(r->node->i + 1, l->node->i + 1, (size_t)r->node->i[0] * sizeof(int64_t)) == 0;
}

/* Can a reduction compute inside a map over `space`: per row, or in passes over its input? */
static bool rows_fit(const tn_value *r, const tn_node *space) {
    if (tn_same_shape(space, r->node)) return true;
    if (!over_dims(r) || !tn_same_shape(space, r->node->in[0])) return false;
    int64_t rows = tn_value_numel(r), all = tn_node_numel(space);
    return rows >= FEW_ROWS || all <= 4 * (int64_t)KIR_BLOCK;
}

/* A product, or a kernel that passes on finished elements as products do. */
static bool has_epilogue(const tn_value *v) {
    tn_op_class c = tn_value_class(v);
    return c == TN_MATMUL || (c == TN_NATIVE && (tn_workgroup_fuses(v) || tn_native_joins(v)));
}

/* Many rows of a few columns: an epilogue handles one row at a time, a separate kernel all of them at once. */
static bool rows_are_short(const tn_node *n) {
    enum { FEW_COLUMNS = 16 };
    return n->rank >= 2 && n->dtype == TN_F32 && n->shape[n->rank - 1] < FEW_COLUMNS &&
           n->shape[n->rank - 2] >= FEW_COLUMNS;
}

static bool epilogue_fits(const tn_value *v, const tn_node *space) {
    if (tn_workgroup_takes(v) || tn_native_joins(v)) return tn_same_shape(space, v->node) && tn_value_numel(v) > 0;
    bool joins = tn_dtype_is_float((tn_dtype)v->node->dtype) && v->node->dtype != TN_F64;
    return joins && v->node->rank >= 2 && v->node->rank <= TN_GEMM_BATCH_AXES + 2 && tn_same_shape(space, v->node) &&
           tn_value_numel(v) > 0;
}

/* Whether the group that product v may join consists of v and a bias per column. Then the sums start from the bias.
 * With many rows a separate kernel costs less than fetching the results' lines early (a policy's forward pass with 8
 * columns: 3 % faster with 64 rows, 1 % slower with 4096). */
static bool adds_bias(const tn_graph_plan *g, const tn_group *to, const tn_value *v) {
    enum { MANY_ROWS = 512 };
    const tn_value *sum = &g->values[to->lead];
    if (to->member_count != 1 || !tn_op_has(sum->node, TN_FACT_ADD) || sum->node->rank != 2) return false;
    if (sum->node->shape[0] > MANY_ROWS) return false;
    const tn_value *bias = &g->values[sum->in[&g->values[sum->in[0]] == v]];
    const tn_node *n = bias->node;
    int last = n->rank - 1;
    if (g->values[bias->root].slot < 0 || last < 0 || n->shape[last] != sum->node->shape[1]) return false;
    return (bias->stride[last] == 1 || n->shape[last] == 1) && (last == 0 || bias->stride[0] == 0);
}

static bool epilogue_pays(const tn_graph_plan *g, const tn_group *to, const tn_value *v) {
    return !rows_are_short(v->node) || tn_workgroup_takes(v) || tn_native_joins(v) || adds_bias(g, to, v);
}

/* The convolution whose results v is made of, element by element; NULL: there is none, or too far away. */
static const tn_value *convolution_behind(const tn_graph_plan *g, const tn_value *v) {
    enum { FAR = 4 };
    for (int steps = 0; v && steps < FAR; steps++) {
        const tn_value *next = NULL;
        if (tn_value_class(v) != TN_ELEMENTWISE) return NULL;
        for (int k = 0; k < v->n_in; k++) {
            const tn_value *in = v->in[k] >= 0 ? &g->values[v->in[k]] : NULL;
            if (!in || !in->row || !tn_same_shape(in->node, v->node)) continue;
            if (tn_native_joins(in) && epilogue_fits(in, v->node)) return in;
            next = next ? next : in;
        }
        v = next;
    }
    return NULL;
}

/* Whether v is an image that several groups read and a convolution or a pooling makes. As the further result of an
 * element-wise program it could not lie in blocks of channels (native_conv.c). Training has other readers. */
static bool is_shared_image(const tn_graph_plan *g, const tn_group *to, const tn_value *v) {
    if (to->kind == TN_GROUP_ROWS || v->node->rank != 4 || v->fusion.pull_count < 2) return false;
    if (!g->binding->device->is_cpu) return false;
    for (size_t i = 0; i < g->binding->output_count; i++)
        if (g->binding->outputs[i].home >= 0) return false;
    return tn_native_joins(v) || convolution_behind(g, v);
}

/* Whether the group is a pooling that is the only user of v and can be done where v is computed. */
static bool pools(const tn_graph_plan *g, const tn_group *to, const tn_value *v) {
    const tn_value *pool = &g->values[to->lead];
    if (to->kind != TN_GROUP_NATIVE || to->member_count != 1 || pool->in[0] < 0 || &g->values[pool->in[0]] != v ||
        v->fusion.user_count != 1 || v->output >= 0)
        return false;
    const tn_value *lead = convolution_behind(g, v);
    return lead && tn_native_pools(lead, pool);
}

static bool space_fits(const tn_graph_plan *g, const tn_group *to, const tn_value *v) {
    const tn_value *lead = &g->values[to->lead];
    tn_op_class c = tn_value_class(v);
    if (to->member_count >= 8 || of_columns(g, v) || of_columns(g, lead)) return false;
    if (c == TN_REDUCTION) {
        if (to->kind == TN_GROUP_MAP) return rows_fit(v, lead->node) && !tn_group_writes_state(g, to);
        return to->kind == TN_GROUP_ROWS && same_rows(g, v, to->lead);
    }
    if (has_epilogue(v)) return to->kind == TN_GROUP_MAP && epilogue_fits(v, lead->node) && epilogue_pays(g, to, v);
    if (c != TN_ELEMENTWISE && c != TN_MOVEMENT) return false;
    if (pools(g, to, v)) return true;
    if (to->kind == TN_GROUP_MATMUL && v < lead) return false; /* it may be an operand, which must be there before */
    if (tn_same_shape(v->node, lead->node) && to->kind != TN_GROUP_NATIVE && to->kind != TN_GROUP_SCAN) return true;
    return to->kind == TN_GROUP_ROWS && over_dims(lead) && tn_same_shape(v->node, lead->node->in[0]);
}

static void take_lead(tn_graph_plan *g, int group, int value) {
    bool reduces = tn_value_class(&g->values[value]) == TN_REDUCTION, joins = has_epilogue(&g->values[value]);
    tn_group *to = &g->groups[group];
    if (to->kind == TN_GROUP_NATIVE) { /* it pools */
        to->kind = TN_GROUP_MAP;
        to->pool = to->lead;
        to->lead = value;
    }
    if (to->kind != TN_GROUP_MAP) return;
    if (reduces) to->kind = TN_GROUP_ROWS;
    if (joins) to->kind = TN_GROUP_MATMUL;
    if (reduces || joins) to->lead = value;
}

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

/* Whether the value is read from memory. Some values that are inlined now are stored later; their operands are counted
 * instead, so the count is never too low. */
static bool is_operand(const tn_value *root) {
    return !root->row || root->fusion.wants_memory || root->output >= 0 || kernel_of_its_own(tn_value_class(root));
}

/* Buffers that computing `value` needs, besides those that this count has met; it stops above `most`. */
static int count_buffers(tn_graph_plan *g, int value, int most) {
    int count = 0;
    const tn_value *v = &g->values[value];
    for (int k = 0; k < v->n_in && count <= most; k++) {
        if (v->in[k] < 0) continue;
        tn_value *root = &g->values[g->values[v->in[k]].root], *in = is_operand(root) ? root : &g->values[v->in[k]];
        if (in->fusion.counted == g->fusion.stamp || in->scalar >= 0) continue;
        in->fusion.counted = g->fusion.stamp;
        count += in == root && is_operand(root) ? 1 : count_buffers(g, v->in[k], most - count);
    }
    return count;
}

static int count_member(tn_graph_plan *g, int value, int most) {
    bool met = g->values[value].fusion.counted == g->fusion.stamp;
    g->values[value].fusion.counted = g->fusion.stamp;
    return !met + count_buffers(g, value, most);
}

/* Does a kernel have enough buffers for the group and one more value? */
static bool buffers_suffice(tn_graph_plan *g, int group, int value) {
    const tn_group *to = &g->groups[group];
    int most = tn_most_buffers(g);
    g->fusion.stamp++;
    int count = count_member(g, value, most);
    for (size_t i = 0; i < to->member_count && count <= most; i++)
        count += count_member(g, to->members[i], most - count);
    return count <= most;
}

static bool has_zero_extent(const tn_node *n) { return tn_node_numel(n) == 0; }

/* A weight's gradient: updates run last, and until then its operands, which are larger, would be kept. */
static bool keeps_operands(const tn_graph_plan *g, const tn_group *to, const tn_value *v) {
    int64_t operands = 0;
    if (!g->fusion.recomputes || !kernel_of_its_own(tn_value_class(v)) || !tn_group_writes_state(g, to)) return false;
    for (int k = 0; k < v->n_in; k++)
        if (v->in[k] >= 0 && g->values[g->values[v->in[k]].root].slot < 0)
            operands += tn_value_numel(&g->values[v->in[k]]);
    return operands > tn_value_numel(v);
}

static bool may_join(tn_graph_plan *g, int group, int value) {
    const tn_value *v = &g->values[value];
    const tn_group *to = &g->groups[group];
    if (v->alone || v->fusion.apart || v->by.vendor || has_zero_extent(v->node) || keeps_operands(g, to, v))
        return false;
    for (size_t i = 0; i < to->member_count; i++)
        if (g->values[to->members[i]].alone || g->values[to->members[i]].by.vendor) return false;
    if (is_shared_image(g, to, v) || !space_fits(g, to, v) ||
        (g->fusion.counts_buffers && !buffers_suffice(g, group, value)))
        return false;
    return !reads_any(g, group, v->fusion.pulls, v->fusion.pull_count);
}

static tn_group_kind kind_alone(tn_op_class c) {
    switch (c) {
    case TN_REDUCTION: return TN_GROUP_ROWS;
    case TN_SCANNING: return TN_GROUP_SCAN;
    case TN_MATMUL: return TN_GROUP_MATMUL;
    case TN_NATIVE: return TN_GROUP_NATIVE;
    default: return TN_GROUP_MAP;
    }
}

/* Whether two reductions read the same value, directly or through one further operation. */
static bool read_alike(const tn_graph_plan *g, const tn_value *a, const tn_value *b) {
    const tn_value *x = &g->values[a->in[0]], *y = &g->values[b->in[0]];
    if (a->in[0] == b->in[0]) return true;
    for (int k = 0; k < x->n_in; k++)
        if (x->in[k] == b->in[0]) return true;
    for (int k = 0; k < y->n_in; k++)
        if (y->in[k] == a->in[0]) return true;
    return false;
}

/* A group of reductions over the same rows of the same values: one pass computes all of them; -1: none. A value never
 * depends on those placed before it, so only the opposite dependence matters, which may_join checks. */
static int sibling_of(tn_graph_plan *g, int value) {
    enum { RECENT = 64 };
    const tn_value *v = &g->values[value];
    if (tn_value_class(v) != TN_REDUCTION || !over_dims(v)) return -1;
    size_t last = g->group_count > RECENT ? g->group_count - RECENT : 0;
    for (size_t i = g->group_count; i-- > last;) {
        const tn_group *to = &g->groups[i];
        if (to->kind != TN_GROUP_ROWS || tn_group_writes_state(g, to) || !over_dims(&g->values[to->lead])) continue;
        if (read_alike(g, v, &g->values[to->lead]) && may_join(g, (int)i, value)) return (int)i;
    }
    return -1;
}

static tn_status place_value(tn_graph_plan *g, int value) {
    tn_value *v = &g->values[value];
    for (int k = 0; k < v->fusion.pull_count; k++) {
        int group = v->fusion.pulls[k];
        if (!may_join(g, group, value)) continue;
        take_lead(g, group, value);
        v->stored = !tn_group_pools(g, &g->groups[group], value) &&
                    (v->output >= 0 || (v->fusion.wants_memory && !v->fusion.heavy) || v->fusion.pull_count > 1);
        return group_add(g, group, value);
    }
    int sibling = sibling_of(g, value);
    if (sibling >= 0) {
        v->stored = true;
        return group_add(g, sibling, value);
    }
    int own = -1;
    TRY(group_new(g, kind_alone(tn_value_class(v)), value, &own));
    v->stored = true;
    return group_add(g, own, value);
}

/* ---- the pass ---------------------------------------------------------------------------------------------------- */

static tn_status pull_add(tn_graph_plan *g, tn_value *v, int group) {
    for (int k = 0; k < v->fusion.pull_count; k++)
        if (v->fusion.pulls[k] == group) return TN_OK;
    TRY(room_for(g, &v->fusion.pulls, &v->fusion.pull_capacity, (size_t)v->fusion.pull_count, sizeof *v->fusion.pulls));
    v->fusion.pulls[v->fusion.pull_count++] = group;
    return TN_OK;
}

/* Groups that compute or read v: those of its stored users, and those into which users are inlined. */
static tn_status collect_pulls(tn_graph_plan *g, tn_value *v) {
    v->fusion.pull_count = 0;
    for (int k = 0; k < v->fusion.user_count; k++) {
        const tn_value *u = &g->values[v->fusion.users[k]];
        if (u->group >= 0) TRY(pull_add(g, v, u->group));
        for (int j = 0; u->group < 0 && j < u->fusion.pull_count; j++)
            TRY(pull_add(g, v, u->fusion.pulls[j]));
    }
    return TN_OK;
}

static tn_status add_dependencies(tn_graph_plan *g, const tn_value *v) {
    for (int k = 0; k < v->fusion.pull_count; k++) {
        tn_group *reader = &g->groups[v->fusion.pulls[k]];
        if (v->fusion.pulls[k] == v->group) continue;
        TRY(room_for(g, &reader->order.deps, &reader->order.dep_capacity, reader->order.dep_count,
                     sizeof *reader->order.deps));
        reader->order.deps[reader->order.dep_count++] = v->group;
    }
    return TN_OK;
}

/* Numbers out of blocks take as long as ten operations each. */
static bool is_decoded(const tn_graph_plan *g, const tn_value *v) {
    const tn_value *in = v->n_in > 0 && v->in[0] >= 0 ? &g->values[v->in[0]] : NULL;
    return in && tn_dtype_block((tn_dtype)in->node->dtype) > tn_dtype_block((tn_dtype)v->node->dtype) &&
           tn_value_numel(v) <= MOST_DECODED;
}

/* Whether v follows a convolution and is read only by the epilogue of another one, as at a residual addition. Then v is
 * stored, as the epilogue of its own convolution; otherwise the other epilogue would compute v from bare sums. */
static bool ends_other_convolution(const tn_graph_plan *g, const tn_value *v) {
    const tn_value *conv = v->fusion.pull_count == 1 ? convolution_behind(g, v) : NULL;
    return conv && conv->fusion.user_count == 1 && g->groups[v->fusion.pulls[0]].kind == TN_GROUP_MATMUL;
}

static bool must_store(const tn_graph_plan *g, const tn_value *v) {
    if (v->output >= 0 || v->fusion.wants_memory || v->alone || ends_other_convolution(g, v)) return true;
    if (kernel_of_its_own(tn_value_class(v))) return true;
    bool dear = v->fusion.loads > 0 && (v->fusion.weight > CHEAP_WEIGHT || is_decoded(g, v));
    return (v->fusion.pull_count > 1 && dear && !is_rematerialized(g, v)) || v->fusion.pull_count > MAX_PULLS;
}

/* Views are never stored: a user reads the root's memory or computes through the view. */
static tn_status visit_group_value(tn_graph_plan *g, int value) {
    tn_value *v = &g->values[value];
    v->group = -1;
    v->stored = false;
    /* It is a runtime scalar and needs no memory. */
    bool in_launch = v->scalar >= 0 && v->output < 0 && !v->fusion.wants_memory && !v->alone;
    if (!v->row || in_launch) return TN_OK;
    TRY(collect_pulls(g, v));
    if (tn_value_class(v) == TN_VIEW_OP) return TN_OK;
    if (v->fusion.pull_count == 0 && v->output < 0) return TN_OK;
    if (!must_store(g, v)) return TN_OK;
    TRY(place_value(g, value));
    return add_dependencies(g, &g->values[value]);
}

static int compare_ints(const int *a, const int *b) { return *a < *b ? -1 : *a > *b; }

static void sort_members(tn_group *group) {
    for (size_t i = 1; i < group->member_count; i++)
        for (size_t j = i; j > 0 && compare_ints(&group->members[j - 1], &group->members[j]) > 0; j--) {
            int swap = group->members[j];
            group->members[j] = group->members[j - 1];
            group->members[j - 1] = swap;
        }
}

tn_status tn_fuse(tn_graph_plan *g) {
    if (!g->fusion.order)
        g->fusion.order = tn_scratch_take(&g->scratch, (g->value_count + 1) * sizeof *g->fusion.order);
    if (!g->fusion.order) return TN_ERR_MEMORY;
    TRY(find_users(g));
    concat_choose(g);
    weigh_fusion(g);
    for (size_t i = 0; i < g->group_count; i++)
        tn_group_free(&g->groups[i]);
    g->group_count = 0;
    g->fusion.work += (int64_t)g->value_count;
    for (size_t i = g->value_count; i-- > 0;)
        TRY(visit_group_value(g, (int)i));
    for (size_t i = 0; i < g->group_count; i++)
        sort_members(&g->groups[i]);
    return TN_OK;
}

/* ==== rematerialization =========================================================================================== */
/* A value that is too large for the caches costs one memory transfer for each group that reads it, and two for the one
 * that stores it (its lines are fetched before they are written). Element-wise values with few operands are often
 * cheaper to compute again: from the operand of a norm, its means and its deviations follows everything between, also
 * in the gradient. So such a value is not stored if rematerializing it does not cost more memory traffic, and a group
 * that reads all of its operands anyway computes it even if it is stored. The bits are the same, because rematerialized
 * values are rounded as if stored. */

enum {
    LARGE = 1 << 17, /* elements that caches do not keep */
    SPREAD = 4,      /* an operand this many times smaller counts as cached */
    CHEAP = 16,      /* operations on an element that take no longer than reading it */
    MOST_SOURCES = 3
};

static float work_of(const tn_value *v) { return 1.0f + (float)v->row->impl->flops; }

static bool is_candidate(const tn_graph_plan *g, const tn_value *v) {
    return g->binding->device->is_cpu && tn_value_class(v) == TN_ELEMENTWISE && tn_value_numel(v) >= LARGE;
}

/* Whether `in` has about as many elements as v, which is computed from it. */
static bool rematerialized_is_wide(const tn_value *in, const tn_value *v) {
    return tn_value_numel(in) > tn_value_numel(v) / SPREAD;
}

/* It is computed by its own kernel whatever is decided here. */
static bool must_lie_in_memory(const tn_value *v) {
    tn_op_class c = tn_value_class(v);
    return !v->row || v->fusion.wants_memory || (c != TN_ELEMENTWISE && c != TN_VIEW_OP && c != TN_MOVEMENT);
}

/* ---- not stored -------------------------------------------------------------------------------------------------- */

/* The stored values from which v is computed. */
typedef struct sources {
    int last; /* the last value that needs v */
    int of[MOST_SOURCES], count;
    int dying; /* of these, those that no group needs after v */
    float work;
} sources;

static bool add_source(const tn_graph_plan *g, sources *s, int value) {
    const tn_value *in = &g->values[value];
    bool later = in->slot >= 0 || in->output >= 0;
    for (int k = 0; k < s->count; k++)
        if (s->of[k] == value) return true;
    if (s->count == MOST_SOURCES) return false;
    for (int k = 0; k < in->fusion.user_count && !later; k++)
        later = in->fusion.users[k] > s->last;
    s->of[s->count++] = value;
    s->dying += !later;
    return true;
}

/* false: there are too many, or v reads elements at other places than its own. */
static bool find_sources(const tn_graph_plan *g, const tn_value *v, sources *s) {
    if (tn_value_class(v) != TN_ELEMENTWISE) return false;
    s->work += work_of(v);
    for (int k = 0; k < v->n_in && s->work <= CHEAP; k++) {
        const tn_value *in = v->in[k] >= 0 ? &g->values[v->in[k]] : NULL;
        if (!in || !rematerialized_is_wide(in, v)) continue;
        if (must_lie_in_memory(in) ? !add_source(g, s, v->in[k]) : !find_sources(g, in, s)) return false;
    }
    return s->work <= CHEAP;
}

static bool is_rematerialized(const tn_graph_plan *g, const tn_value *v) {
    sources s = {.last = -1};
    if (!is_candidate(g, v)) return false;
    for (int k = 0; k < v->fusion.user_count; k++)
        s.last = v->fusion.users[k] > s.last ? v->fusion.users[k] : s.last;
    bool saves = find_sources(g, v, &s) && (v->fusion.pull_count - 1) * s.count < v->fusion.pull_count + 1;
    return saves && s.dying <= 1; /* no more is kept for it than it would take itself */
}

/* ---- stored, but not read ---------------------------------------------------------------------------------------- */

/* Does the group read what this operand of v is made of for something else, or is that small and there? */
static bool is_there(const tn_graph_plan *g, const tn_value *v, int group, int operand, float *work) {
    const tn_value *in = &g->values[operand], *root = &g->values[in->root];
    bool wide = rematerialized_is_wide(in, v);
    if (!root->row || in->scalar >= 0) return !wide;
    for (int k = 0; root->stored && k < root->fusion.pull_count; k++)
        if (root->fusion.pulls[k] == group) return true;
    if (root->stored || (tn_value_class(in) != TN_ELEMENTWISE && tn_value_class(in) != TN_VIEW_OP)) return false;
    if (wide) *work += work_of(in);
    for (int k = 0; k < in->n_in; k++)
        if (in->in[k] >= 0 && (*work > CHEAP || !is_there(g, v, group, in->in[k], work))) return false;
    return true;
}

bool tn_group_rematerializes(const tn_graph_plan *g, int group, int value) {
    const tn_value *v = &g->values[value];
    if (!is_candidate(g, v) || tn_group_is_native(&g->groups[group])) return false;
    float work = work_of(v);
    for (int k = 0; k < v->n_in; k++)
        if (v->in[k] >= 0 && !is_there(g, v, group, v->in[k], &work)) return false;
    return work <= CHEAP;
}

/* ==== in-place concat ============================================================================================= */
/* In-place concat: if all dims before the joined one have extent 1, each part is one contiguous piece of the result. A
 * part that is computed here, is not kept and is joined only once is computed directly in the result, so nothing is
 * copied. Consecutive slices that together are a whole tensor are one part. On the CPU the remaining parts are copied.
 * Other devices use it for all parts or none, because a program that reads other parts' memory than it writes is not an
 * in-place update. */

enum {
    MANY = 512,     /* elements below which one pass over all is as good */
    PART_ALIGN = 64 /* bytes: alignment of values in an arena */
};

/* Whether this value may be inside another value's memory. */
static bool can_be_part(const tn_value *r) {
    tn_op_class c = tn_value_class(r);
    return r->row && r->slot < 0 && r->output < 0 && r->scalar < 0 && r->memory.into < 0 && r->n_in > 0 &&
           c != TN_LEAF_VALUE && c != TN_VIEW_OP && tn_value_numel(r) > 0;
}

/* Whether it would be stored even if only the cat needs it. Movement of data is as fast inside the concatenation. */
static bool is_made(const tn_graph_plan *g, int value, int depth) {
    enum { DEEPEST = 12 }; /* a change of scale of bytes has 9 steps */
    const tn_value *r = &g->values[g->values[value].root];
    tn_op_class c = tn_value_class(r);
    if (r->slot >= 0 || depth > DEEPEST) return false;
    if ((c != TN_ELEMENTWISE && c != TN_MOVEMENT) || (depth == 0 && r->fusion.user_count > 1) || r->alone) return true;
    for (int k = 0; k < r->n_in; k++)
        if (r->in[k] >= 0 && is_made(g, r->in[k], depth + 1)) return true;
    return false;
}

static bool lies_in_pieces(const tn_value *v) {
    for (int d = 0; d < (int)v->node->i[0]; d++)
        if (v->node->shape[d] != 1) return false;
    return true;
}

static bool can_be_in_place(const tn_graph_plan *g, const tn_value *v) {
    if (!tn_op_has(v->node, TN_FACT_CONCAT) || v->n_in < 2 || v->by.vendor || v->by.engine || v->host.only)
        return false;
    if (v->output >= 0 && g->binding->outputs[v->output].home >= 0) return false;
    return lies_in_pieces(v) && tn_value_numel(v) >= MANY && tn_dtype_block((tn_dtype)v->node->dtype) == 1;
}

/* Number of inputs, from k on, that are together a whole value in order, which may be a part at byte `at`; 0: none. */
static int run_of(const tn_graph_plan *g, const tn_value *v, int k, int64_t at) {
    int root = g->values[v->in[k]].root;
    const tn_value *r = &g->values[root];
    int64_t done = 0;
    if (at % PART_ALIGN != 0 || !can_be_part(r) || r->node->dtype != v->node->dtype) return 0;
    for (int count = 0; k + count < v->n_in;) {
        const tn_value *x = &g->values[v->in[k + count++]];
        if (x->root != root || x->offset != done || !tn_value_dense(x)) return 0;
        done += tn_value_numel(x);
        if (done == tn_value_numel(r)) return count;
    }
    return 0;
}

/* Notes the parts of a joined value. Returns the number of such inputs; *made: elements of those that would be in
 * memory anyway. */
static int note_parts(tn_graph_plan *g, int joined, int64_t *made) {
    const tn_value *v = &g->values[joined];
    int64_t element = (int64_t)tn_dtype_size((tn_dtype)v->node->dtype), at = 0;
    int found = 0;
    *made = 0;
    for (int k = 0, count; k < v->n_in; k += count ? count : 1) {
        tn_value *r = &g->values[g->values[v->in[k]].root];
        count = run_of(g, v, k, at);
        at += element * tn_value_numel(count ? r : &g->values[v->in[k]]);
        if (!count) continue;
        found += count;
        if (is_made(g, v->in[k], 0)) *made += tn_value_numel(r);
        r->memory.into = joined;
        r->memory.into_at = at - element * tn_value_numel(r);
    }
    return found;
}

static void leave_parts(tn_graph_plan *g, int joined) {
    for (size_t i = 0; i < g->value_count; i++)
        if (g->values[i].memory.into == joined) g->values[i].memory.into = -1;
}

static void choose_concat(tn_graph_plan *g, int value) {
    tn_value *v = &g->values[value];
    int64_t made;
    if (!can_be_in_place(g, v)) return;
    int found = note_parts(g, value, &made);
    bool copies = v->node->device->is_cpu && tn_value_class(v) == TN_NATIVE;
    if (found > 0 && (found == v->n_in || copies) && 2 * made >= tn_value_numel(v))
        v->alone = true;
    else
        leave_parts(g, value);
}

/* ---- copying ----------------------------------------------------------------------------------------------------- */

/* The computed input, of the same shape, whose epilogue the element-wise x may be; -1: none. */
static int computed_input(const tn_graph_plan *g, const tn_value *x) {
    for (int k = 0; k < x->n_in; k++) {
        const tn_value *in = x->in[k] >= 0 ? &g->values[x->in[k]] : NULL;
        if (!in || !in->row || in->node->rank != x->node->rank) continue;
        if (memcmp(in->node->shape, x->node->shape, (size_t)x->node->rank * sizeof *x->node->shape) == 0)
            return x->in[k];
    }
    return -1;
}

/* Does a kernel read it that can only read memory? */
static bool feeds_kernel(const tn_graph_plan *g, const tn_value *v, int depth) {
    enum { DEEPEST = 4 };
    for (int k = 0; k < v->fusion.user_count && depth < DEEPEST; k++) {
        const tn_value *u = &g->values[v->fusion.users[k]];
        tn_op_class c = tn_value_class(u);
        if (!tn_op_has(u->node, TN_FACT_CONCAT) && (c == TN_MATMUL || c == TN_NATIVE)) return true;
        if (c == TN_VIEW_OP && feeds_kernel(g, u, depth + 1)) return true;
    }
    return false;
}

/* Is the value stored in memory even if the concatenation does not ask for it? True for the epilogue of a product, a
 * convolution or a reduction, for operands of kernels and for long chains of element-wise steps (MOVED_WEIGHT); false
 * for short ones, which are better computed in the concatenation. */
static bool is_stored_anyway(const tn_graph_plan *g, int value) {
    enum { EPILOGUE = 4 }; /* steps */
    int steps = 0;
    while (value >= 0 && g->values[value].row) {
        const tn_value *v = &g->values[value];
        tn_op_class c = tn_value_class(v);
        if (c != TN_VIEW_OP && c != TN_ELEMENTWISE)
            return steps == 0 || c == TN_MATMUL || c == TN_NATIVE || c == TN_REDUCTION;
        if (c == TN_ELEMENTWISE && steps == 0 && (v->output >= 0 || feeds_kernel(g, v, 0))) return true;
        if (c == TN_ELEMENTWISE && steps++ == EPILOGUE) return true;
        if (c == TN_VIEW_OP && steps > 0) return false;
        value = c == TN_VIEW_OP ? v->in[0] : computed_input(g, v);
    }
    return value >= 0 && steps == 0;
}

/* A fused concatenation evaluates every part at each element and selects one. So parts are stored first and copied if
 * all are in memory anyway, if most of several parts are, if they are many, or if they alternate every few elements. */
static bool is_copied(const tn_graph_plan *g, const tn_value *v) {
    enum { FEW = 16, SEVERAL = 3, MANY_PARTS = 5 };
    const tn_node *n = v->node;
    const int64_t dim = n->i[0], inner = tn_product(n->shape + dim + 1, n->rank - dim - 1);
    int64_t longest = 0, stored = 0, all = tn_value_numel(v);
    for (int k = 0; k < v->n_in; k++) {
        const tn_node *x = g->values[v->in[k]].node;
        if (x->rank == n->rank) longest = tn_max64(longest, x->shape[dim] * inner);
        if (is_stored_anyway(g, v->in[k])) stored += tn_node_numel(x);
    }
    return stored == all || (v->n_in >= SEVERAL && 2 * stored >= all) || v->n_in >= MANY_PARTS || longest <= FEW;
}

/* The value whose memory contains this one's and that has its own; *at: bytes from its first one, added. */
static int outermost(const tn_graph_plan *g, int value, int64_t *at) {
    for (; g->values[value].memory.into >= 0; value = g->values[value].memory.into)
        *at += g->values[value].memory.into_at;
    return value;
}

/* If an input occurs twice, the second occurrence is at another place. */
bool tn_concat_is_in_place(const tn_graph_plan *g, int value) {
    const tn_value *v = &g->values[value];
    int64_t element = (int64_t)tn_dtype_size((tn_dtype)v->node->dtype), end = 0;
    if (!tn_op_has(v->node, TN_FACT_CONCAT)) return false; /* others may lack inputs */
    const int whole = outermost(g, value, &end);
    for (int k = 0; k < v->n_in; k++) {
        const tn_value *x = &g->values[v->in[k]];
        int64_t at = element * x->offset;
        if (x->root == whole || outermost(g, x->root, &at) != whole || at != end || !tn_value_dense(x)) return false;
        end += element * tn_value_numel(x);
    }
    return true;
}

bool tn_concat_agree(const tn_graph_plan *g, bool *chosen) {
    bool changed = false;
    for (size_t i = 0; i < g->value_count; i++) {
        const int whole = g->values[i].memory.into;
        if (whole < 0 || chosen[i] == chosen[whole]) continue;
        chosen[i] = chosen[whole] = false;
        changed = true;
    }
    return changed;
}

bool tn_concat_of_channels(const tn_graph_plan *g, const tn_value *part) {
    const tn_node *n = part->node, *whole = g->values[part->memory.into].node;
    return n->rank == 4 && whole->rank == 4 && whole->i[0] == 1 && n->shape[0] == whole->shape[0] &&
           n->shape[2] == whole->shape[2] && n->shape[3] == whole->shape[3];
}

bool tn_concat_reads(const tn_graph_plan *g, const tn_value *part, int group) {
    const int into = part->memory.into;
    return into >= 0 && (group == g->values[into].group || tn_concat_is_in_place(g, g->groups[group].lead));
}

/* Parts of a larger concatenation that follow each other there are concatenated already: of x0 x1, x0 x1 x2, … the
 * last one has all. */
static void choose_within(tn_graph_plan *g, int value) {
    tn_value *v = &g->values[value];
    int64_t at = 0;
    if (!v->node->device->is_cpu || !can_be_in_place(g, v) || !can_be_part(v)) return;
    const int first = g->values[v->in[0]].root, whole = outermost(g, first, &at);
    if (whole == first || whole == value) return;
    for (int k = 0; k < v->n_in; k++) /* a part of its own would be written where the whole has another */
        if (g->values[g->values[v->in[k]].root].memory.into == value) return;
    v->memory.into = whole;
    v->memory.into_at = at;
    if (tn_concat_is_in_place(g, value))
        v->alone = true;
    else
        v->memory.into = -1;
}

/* Of several concatenations of a part the last one is the largest. */
static void concat_choose(tn_graph_plan *g) {
    for (size_t i = 0; i < g->value_count; i++) {
        tn_value *v = &g->values[i];
        v->memory.into = -1;
        v->copied = tn_op_has(v->node, TN_FACT_CONCAT) && v->row && is_copied(g, v);
    }
    for (size_t i = g->value_count; i-- > 0;)
        choose_concat(g, (int)i);
    for (size_t i = 0; i < g->value_count; i++)
        choose_within(g, (int)i);
}

/* The host has its own memory. */
void tn_concat_leave_host(tn_graph_plan *g) {
    for (size_t i = 0; i < g->value_count; i++) {
        int joined = g->values[i].memory.into;
        if (joined < 0) continue;
        int own = g->values[i].group, whole = g->values[joined].group;
        if (own < 0 || whole < 0 || g->groups[own].host || g->groups[whole].host) leave_parts(g, joined);
    }
}

/* Readers of a concatenation of a part within a larger one read the part. */
static int last_reader(const tn_graph_plan *g, const tn_value *v) {
    int last = g->groups[v->group].order.position;
    for (int k = 0; k < v->fusion.pull_count; k++) {
        const int lead = g->groups[v->fusion.pulls[k]].lead;
        last = (int)tn_max64(last, g->groups[v->fusion.pulls[k]].order.position);
        if (g->values[lead].memory.into >= 0 && tn_concat_is_in_place(g, lead))
            last = (int)tn_max64(last, last_reader(g, &g->values[lead]));
    }
    return last;
}

int tn_last_reader(const tn_graph_plan *g, int value) {
    const tn_value *v = &g->values[value];
    int last = last_reader(g, v);
    for (int k = 0; k < v->n_in; k++) {
        int part = v->in[k] >= 0 ? g->values[v->in[k]].root : -1;
        if (part >= 0 && g->values[part].memory.into == value) last = (int)tn_max64(last, tn_last_reader(g, part));
    }
    return last;
}

/* ==== layout of images ============================================================================================ */

static bool is_here(const tn_group *group) { return group->run.native && !group->host && !group->order.commit; }

tn_status tn_lay_out_conv_results(tn_graph_plan *g) {
    if (!g->binding->device->is_cpu) return TN_OK;
    TRY(tn_lay_bytes_in_words(g));
    AUTO_FREE bool *convs = tn_mem_zalloc(g->group_count + g->value_count + 1, sizeof *convs);
    bool *blocked = convs + g->group_count;
    if (!convs) return TN_ERR_MEMORY;
    bool any = false;
    for (size_t i = 0; i < g->group_count; i++)
        any |= convs[i] = is_here(&g->groups[i]) && tn_conv_is_window(g->groups[i].run.native);
    return any ? tn_conv_lay_in_blocks(g, convs, blocked) : TN_OK;
}
