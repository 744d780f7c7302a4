/* regions.c — recomputation without marks: divides the forward pass on a tape into regions (tn_set_auto_recompute).
 *
 * The tape is cut where few bytes are needed behind the cut. What crosses a cut is stored; all else between two cuts is
 * a region, whose values the backward pass computes a second time (autograd.c). The last part is no region: its values
 * are needed at once. The number of cuts is the one that needs the fewest bytes by an estimate: what is stored, and the
 * largest region. Source: Chen et al. 2016, "Training deep nets with sublinear memory cost".
 *
 * Parameters that are gathered from other processes are gathered once in each region, so all ranks must choose the same
 * regions although they may have different numbers of rows: then each stored value counts the same. */
#include <string.h>

#include "autograd/tape.h"

enum { MOST_SEGMENTS = 24 };
static const double WORTH_IT = 0.9; /* of the bytes without recomputation: an estimate above it changes nothing */

/* ---- choosing ---------------------------------------------------------------------------------------------------- */

/* The tape's order, as arrays over positions. */
typedef struct cuts {
    int count;         /* positions */
    int *last;         /* position of the last user of each */
    int64_t *bytes;    /* that it stores; 0 for views, leaves and composed operations */
    int64_t *before;   /* sum of `bytes` before each position, and of all */
    int64_t *crossing; /* bytes from up to this position that are used behind it */
    int at[MOST_SEGMENTS], best[MOST_SEGMENTS];
} cuts;

static tape_entry *entry_at(const tape *t, int position) { return &t->entries[t->order[position]]; }

/* Leaves, and values that are in memory already. */
static bool is_given(const tn_node *n) { return (n->flags & TN_NODE_LEAF) || tn_node_computed(n); }

static bool gathers(const tape *t, int count) {
    int p = 0;
    while (p < count && !tn_op_has(entry_at(t, p)->node, TN_FACT_WHOLE))
        p++;
    return p < count;
}

static int64_t bytes_stored(const tn_node *n, bool alike) {
    enum { EACH = 1 << 10 }; /* any number that divides well */
    bool stores = !is_given(n) && !(n->flags & TN_NODE_VIEW) && !tn_tape_through_expansion(n);
    if (!stores || tn_op_has(n, TN_FACT_WHOLE)) return 0; /* gathered values are not kept */
    return alike ? EACH : (int64_t)tn_node_bytes(n);
}

/* Notes that `user` reads n, and with it what n is a view or a composition of. */
static void note_use(const tape *t, const cuts *c, const tn_node *n, int user) {
    for (const tape_entry *e; n && (e = tn_tape_find(t, n)) && !is_given(n);) {
        if (c->last[e->position] < user) c->last[e->position] = user;
        n = tn_tape_through_expansion(n) ? n->expansion : n->flags & TN_NODE_VIEW && n->n_in ? n->in[0] : NULL;
    }
}

static void measure(const tape *t, const cuts *c) {
    const bool alike = gathers(t, c->count);
    for (int p = 0; p < c->count; p++) {
        c->last[p] = p;
        c->bytes[p] = bytes_stored(entry_at(t, p)->node, alike);
        c->before[p + 1] = c->before[p] + c->bytes[p];
    }
    for (int p = 0; p < c->count; p++) {
        const tn_node *n = entry_at(t, p)->node;
        if (n->flags & TN_NODE_LEAF) continue;
        if (tn_tape_through_expansion(n))
            note_use(t, c, n->expansion, p);
        else
            for (int k = 0; k < n->n_in; k++)
                note_use(t, c, n->in[k], p);
    }
    for (int p = 0; p < c->count; p++) {
        c->crossing[p] += c->bytes[p];
        c->crossing[c->last[p]] -= c->bytes[p];
    }
    for (int p = 1; p < c->count; p++)
        c->crossing[p] += c->crossing[p - 1];
}

static bool is_kept_by(const cuts *c, const int *at, int segments, int p) {
    for (int k = 0; k < segments - 1; k++)
        if (p <= at[k] && at[k] < c->last[p]) return true;
    return false;
}

/* Cuts near even shares of the bytes, where the fewest cross. */
static void place_cuts(cuts *c, int segments) {
    int64_t all = c->before[c->count];
    for (int k = 0, p = 0; k < segments - 1; k++) {
        int64_t low = all / segments * (k + 1) - all / segments / 2, high = low + all / segments;
        while (p < c->count - 1 && c->before[p + 1] < low)
            p++;
        c->at[k] = p;
        for (; p < c->count - 1 && c->before[p + 1] < high; p++)
            if (c->crossing[p] < c->crossing[c->at[k]]) c->at[k] = p;
    }
}

/* Bytes in use when the largest segment is computed again: what is kept, and that segment. */
static int64_t bytes_needed(const cuts *c, int segments) {
    int64_t kept = 0, own = 0, largest = 0;
    for (int p = 0, s = 0; p < c->count; p++) {
        if (s < segments - 1 && p > c->at[s]) s++, own = 0;
        bool keeps = is_kept_by(c, c->at, segments, p);
        kept += keeps ? c->bytes[p] : 0;
        own += keeps ? 0 : c->bytes[p];
        if (own > largest) largest = own;
    }
    return kept + largest;
}

/* Marked nodes stay in their regions, and what was computed before is there anyway. */
static void assign_regions(tape *t, const cuts *c, int segments) {
    int32_t first = tn_recompute_regions(segments);
    for (int p = 0, s = 0; p < c->count; p++) {
        tape_entry *e = entry_at(t, p);
        while (s < segments - 1 && p > c->best[s])
            s++;
        if (s == segments - 1 || e->node->origin > 0 || is_given(e->node)) continue;
        e->node->origin = first + s;
        e->chosen = true;
    }
}

static void choose_segments(tape *t, cuts *c) {
    int best = 0;
    int64_t least = (int64_t)(WORTH_IT * (double)c->before[c->count]);
    for (int segments = 2; segments <= MOST_SEGMENTS && segments <= c->count; segments++) {
        place_cuts(c, segments);
        int64_t bytes = bytes_needed(c, segments);
        if (bytes >= least) continue;
        least = bytes;
        best = segments;
        memcpy(c->best, c->at, sizeof c->best);
    }
    if (best) assign_regions(t, c, best);
}

tn_status tn_regions_choose(tape *t) {
    size_t count = t->order_count;
    AUTO_FREE void *last = tn_mem_alloc((count + 1) * sizeof(int)),
                   *bytes = tn_mem_zalloc(3 * count + 1, sizeof(int64_t));
    cuts c = {.count = (int)count, .last = last, .bytes = bytes};
    if (!last || !bytes) return TN_ERR_MEMORY;
    c.before = c.bytes + count;
    c.crossing = c.before + count + 1;
    for (int p = 0; p < c.count; p++)
        entry_at(t, p)->position = p;
    measure(t, &c);
    choose_segments(t, &c);
    return TN_OK;
}

void tn_regions_forget(const tape *t) {
    for (size_t i = 0; i < t->count; i++)
        if (t->entries[i].chosen) t->entries[i].node->origin = 0;
}
