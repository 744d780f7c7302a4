/* varying.c — numbers and offsets that differ from run to run: learned from missed plans.
 *
 * Attributes are part of a plan's key, so a scale or a slice that moves on with each step would make a plan each. When
 * no plan is found, the key is compared with those of the plans made last. If only numbers differ that may come with a
 * run, or offsets of views into memory, the lines that recorded them are noted. What is recorded there from now on
 * leaves them out of the key: a number becomes a runtime scalar, a view is bound as memory of its own. The bits are
 * those of the constant. If a line misses again and again for another reason, one warning says so. */
#include <stdio.h>
#include <string.h>

#include "core/core.h"

enum {
    MOST_SITES = 64,     /* lines that are noted, */
    MOST_AT_ONCE = 12,   /* … and by one miss: the next one notes others */
    WARN_AFTER = 8,      /* misses of one line, */
    WARN_OF_SHAPES = 32, /* … or so many for shapes: data has some, and each makes its plan once */
};

typedef enum cause { NUMBERS, ARGUMENTS, SHAPE, CAUSES } cause;

static const struct {
    const char *what, *instead;
} causes[CAUSES] = {
    [NUMBERS] = {"the numbers it is given differ", "give the number as a tensor made by tn_runtime_scalar"},
    [ARGUMENTS] = {"the integers it is given differ",
                   "take what moves by tn_index_select or tn_gather with indices made by tn_runtime_scalar_int"},
    [SHAPE] = {"its shape differs", "pad to a few shapes, or mark the extent with tn_symbolic"}};

/* How a key differs from a plan's. */
typedef struct difference {
    const tn_binding *b;
    const uint64_t *old;
    size_t at;      /* the word that is looked at */
    size_t last;    /* the last one that differed */
    uint64_t fresh; /* leaves described so far */
    const tn_node *varying[MOST_AT_ONCE];
    int varying_count;
    const tn_node *blamed; /* the first that cannot vary */
    cause why;
    size_t blamed_at; /* a word of it that differs */
    bool other; /* another program: nothing to learn */
} difference;

static bool differs(difference *d) {
    bool is = d->old[d->at] != d->b->key[d->at];
    if (is) d->last = d->at;
    d->at++;
    return is;
}

static bool any_differs(difference *d, int words) {
    bool any = false;
    for (int k = 0; k < words; k++)
        any |= differs(d);
    return any;
}

static void blame(difference *d, const tn_node *n, cause why, size_t at) {
    if (d->blamed) return;
    d->blamed = n;
    d->why = why;
    d->blamed_at = at;
}

/* Something of n differs that may vary, if it does not do so already. */
static void vary(difference *d, const tn_node *n, cause why, size_t at) {
    const tn_site *s = tn_recorder_site(d->b->recorder, n);
    if ((n->flags & TN_NODE_VARIES) || (s && s->stays))
        blame(d, n, why, at);
    else if (d->varying_count < MOST_AT_ONCE)
        d->varying[d->varying_count++] = n;
}

/* ---- the words of a key, as plan_key.c writes them
 * -------------------------------------------------------------------- */

static void compare_leaf(difference *d, const tn_node *n) {
    bool apart = d->b->key[d->at] >> 56 & 1;
    d->other |= differs(d);
    if (any_differs(d, n->rank)) blame(d, n, SHAPE, d->last);
    if (!(n->flags & TN_NODE_VIEW)) return;
    if (differs(d) && !apart) vary(d, n, ARGUMENTS, d->last); /* bound apart: a few plans, one an alignment */
    if (any_differs(d, n->rank)) blame(d, n, SHAPE, d->last);
}

static void compare_input(difference *d, const tn_node *in) {
    uint64_t word = d->b->key[d->at];
    d->other |= differs(d);
    if ((word & 3) != TN_KEY_LEAF || word >> 2 != d->fresh) return;
    d->fresh++;
    compare_leaf(d, in);
}

static void compare_attributes(difference *d, const tn_node *n) {
    if (n->op == TN_OP_RUNTIME_SCALAR) {
        d->other |= differs(d);
        return;
    }
    bool moved = any_differs(d, tn_attributes_are_extents(n->op) ? 0 : n->n_i);
    size_t moved_at = d->last;
    bool numbers = any_differs(d, tn_number_varies(d->b, n) ? 0 : n->n_f);
    bool view_of_memory = (n->flags & TN_NODE_VIEW) && n->root->buffer && d->b->device->is_cpu;
    if (moved && view_of_memory)
        vary(d, n, ARGUMENTS, moved_at);
    else if (moved)
        blame(d, n, ARGUMENTS, moved_at);
    if (numbers && tn_node_can_vary(n))
        vary(d, n, NUMBERS, d->last);
    else if (numbers)
        blame(d, n, NUMBERS, d->last);
}

static void compare_node(difference *d, const tn_node *n) {
    d->other |= differs(d);
    if (any_differs(d, n->rank)) blame(d, n, SHAPE, d->last);
    compare_attributes(d, n);
    for (int k = 0; k < (n->expansion ? 1 : n->n_in) && !d->other; k++)
        compare_input(d, n->expansion ? n->expansion : n->in[k]);
}

static void compare_varying(difference *d) {
    const tn_recorder *r = d->b->recorder;
    d->other = any_differs(d, TN_KEY_HEAD);
    for (size_t i = 0; i < r->count && !d->other && !d->blamed; i++)
        if (d->b->marks[i] & TN_MARK_NEEDED) compare_node(d, r->pending[i]);
    while (d->at < d->b->key_count && !d->other && !d->blamed)
        d->other = differs(d);
}

/* ---- what is learned --------------------------------------------------------------------------------------------- */

/* Compares the key with those of the newest plans until one differs in what may vary alone; else *d is of one that
 * differs in more. false: all are other programs'. */
static bool find_difference(const tn_plan_cache *c, const tn_binding *b, difference *d) {
    bool found = false;
    for (int i = 0; i < TN_NEWEST_PLANS; i++) {
        const tn_plan *p = c->newest[i];
        if (!p || p->key_count != b->key_count) continue;
        if (found && p->key[d->blamed_at] != b->key[d->blamed_at]) continue; /* it is to blame here too */
        difference with;
        with.b = b;
        with.old = p->key;
        with.at = with.last = with.fresh = 0;
        with.varying_count = 0;
        with.blamed = NULL;
        compare_varying(&with);
        if (with.other || (found && with.blamed)) continue;
        found = true;
        *d = with;
        if (!d->blamed) return true;
    }
    return found;
}

static tn_site *site_for(tn_recorder *r, const tn_node *n) {
    tn_site *s = tn_recorder_site(r, n);
    if (s || r->site_count == MOST_SITES) return s;
    if (tn_mem_reserve(&r->sites, &r->site_capacity, r->site_count + 1, sizeof *r->sites) != TN_OK) return NULL;
    s = &r->sites[r->site_count++];
    *s = (tn_site){.file = n->file, .line = n->line, .op = n->op};
    return s;
}

static void warn(const tn_site *s, const tn_node *n, cause why) {
    char text[160];
    tn_node_describe(n, text, sizeof text);
    tn_log_line(TN_LOG_NOTICE,
                "%s: %d evaluations could not reuse a plan, because %s from one to the next, and each made its own. To "
                "avoid this, %s",
                text, s->misses, causes[why].what, causes[why].instead);
}

void tn_vary_learn(const tn_plan_cache *c, const tn_binding *b) {
    tn_recorder *r = b->recorder;
    difference d;
    if (!b->varies || !find_difference(c, b, &d)) return;
    for (int i = 0; i < d.varying_count && !d.blamed; i++) {
        tn_site *s = site_for(r, d.varying[i]);
        if (!s) continue;
        s->varies = true;
        r->watches = true;
    }
    tn_site *s = d.blamed ? site_for(r, d.blamed) : NULL;
    if (!s || !s->file || ++s->misses < (d.why == SHAPE ? WARN_OF_SHAPES : WARN_AFTER) || s->warned) return;
    s->warned = true;
    warn(s, d.blamed, d.why);
}
