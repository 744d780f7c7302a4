/* onnx_trees.c — ensembles of decision trees, in both of the standard's notations.
 *
 * Either notation becomes the same array of nodes, once a model: a split with its two children, or a leaf with its
 * votes. Rows walk down each tree eight at a time: the steps of one walk depend on each other, those of eight do not.
 * If no node tests for equality or membership, a step has no branch: x < s is x <= the next number below s, x > s is
 * the opposite of x <= s, and a leaf is its own child, so that all eight take as many steps as the tree is deep. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onnx/operator_support.h"

/* Newer models number the comparisons in this order. */
typedef enum tree_mode { LEQ, LT, GTE, GT, EQ, NEQ, MEMBER, LEAF } tree_mode;

typedef struct tree_node {
    int64_t tree, id; /* older notation: other nodes refer to it by this number */
    double split;
    int64_t feature, yes, no; /* yes, no: places of nodes */
    int64_t first, count;     /* of a leaf's votes, or of a MEMBER's values */
    uint8_t mode;
    bool missing_is_yes;
} tree_node;

typedef struct vote {
    int64_t leaf, target;
    double weight;
} vote;

typedef enum aggregate { AVERAGE, SUM, MIN, MAX } aggregate;

typedef struct forest {
    tree_node *nodes;
    vote *votes;
    double *members, *base;
    int64_t *roots;
    struct step *steps; /* of each node, where all can be compared by <=; NULL */
    int32_t *depths;    /* of each root's tree */
    int64_t node_count, vote_count, root_count, member_count, base_count, targets, features;
    aggregate how;
    bool all_positive, one_score; /* two classes, and the trees vote for the first only: its score determines both */
    bool single_vote;             /* each leaf has one, and it stands in the leaf's step */
} forest;

/* A node as it is walked: next[0] where x <= split, or x is NaN and `missing`. A leaf follows itself; its weight and
 * target are those of a single vote. */
typedef struct step {
    union {
        double split, weight;
    };
    int32_t feature, next[2];
    union {
        int32_t missing, target;
    };
} step;

static void drop_forest(void *data) {
    forest *f = data;
    void *all[] = {f->nodes, f->votes, f->members, f->base, f->roots, f->steps, f->depths, f};
    for (size_t i = 0; i < TN_COUNT(all); i++)
        tn_mem_free(all[i]);
}

static tn_status wrong(const onnx_call *c, const char *what) {
    return tn_fail(TN_ERR_FORMAT, "%s: %s", c->row->name, what);
}

/* ---- walking ----------------------------------------------------------------------------------------------------- */

static bool is_member(const forest *f, const tree_node *n, double x) {
    for (int64_t i = n->first; i < n->first + n->count; i++)
        if (f->members[i] == x) return true;
    return false;
}

static bool decide(const forest *f, const tree_node *n, double x) {
    if (isnan(x) && n->missing_is_yes) return true;
    switch ((tree_mode)n->mode) {
    case LEQ: return x <= n->split;
    case LT: return x < n->split;
    case GTE: return x >= n->split;
    case GT: return x > n->split;
    case EQ: return x == n->split;
    case NEQ: return x != n->split;
    default: return is_member(f, n, x);
    }
}

enum { TOGETHER = 8 }; /* walks */

/* Takes walks from nodes `at` to leaves, each with a row of its own; none is longer than `depth`. */
static void walk_trees(const forest *f, int64_t depth, const double *const row[TOGETHER], int32_t at[TOGETHER]) {
    const step *steps = f->steps;
    for (int64_t d = 0; steps && d < depth; d++)
        for (int k = 0; k < TOGETHER; k++) {
            const step *s = &steps[at[k]];
            double x = row[k][s->feature];
            bool yes = (x <= s->split) | ((x != x) & (s->missing != 0));
            at[k] = s->next[!yes];
        }
    for (int k = 0; !steps && k < TOGETHER; k++)
        for (const tree_node *n = &f->nodes[at[k]]; n->mode != LEAF; n = &f->nodes[at[k]])
            at[k] = (int32_t)(decide(f, n, row[k][n->feature]) ? n->yes : n->no);
}

static inline void add_vote(const forest *f, double *at, double w) {
    *at = f->how == MIN ? fmin(*at, w) : f->how == MAX ? fmax(*at, w) : *at + w;
}

static void vote_of(const forest *f, int32_t place, double *out) {
    if (f->single_vote) { /* two accesses less to memory that is rarely cached */
        add_vote(f, &out[f->steps[place].target], f->steps[place].weight);
        return;
    }
    const tree_node *leaf = &f->nodes[place];
    for (int64_t k = leaf->first; k < leaf->first + leaf->count; k++)
        add_vote(f, &out[f->votes[k].target], f->votes[k].weight);
}

/* Several rows down one tree after another. */
static void score_together(const forest *f, const double *const row[TOGETHER], int count, double *out) {
    for (int64_t i = 0; i < f->root_count; i++) {
        int32_t at[TOGETHER];
        for (int k = 0; k < TOGETHER; k++)
            at[k] = (int32_t)f->roots[i];
        walk_trees(f, f->depths[i], row, at);
        for (int k = 0; k < count; k++)
            vote_of(f, at[k], out + k * f->targets);
    }
}

/* One row down several trees at once. */
static void score_one(const forest *f, const double *row, double *out) {
    const double *same[TOGETHER];
    for (int k = 0; k < TOGETHER; k++)
        same[k] = row;
    for (int64_t i = 0; i < f->root_count; i += TOGETHER) {
        int32_t at[TOGETHER], depth = 0;
        int64_t count = tn_min64(TOGETHER, f->root_count - i);
        for (int64_t k = 0; k < TOGETHER; k++) {
            int64_t tree = i + (k < count ? k : 0);
            at[k] = (int32_t)f->roots[tree];
            depth = f->depths[tree] > depth ? f->depths[tree] : depth;
        }
        walk_trees(f, depth, same, at);
        for (int64_t k = 0; k < count; k++)
            vote_of(f, at[k], out);
    }
}

/* Fewer than TOGETHER rows, or as many: out [count, targets]. */
static void score_rows(const forest *f, const double *x, int64_t width, int count, double *out) {
    const double *row[TOGETHER];
    double begin = f->how == MIN ? (double)3.402823466e38f : f->how == MAX ? (double)-3.402823466e38f : 0;
    for (int64_t t = 0; t < count * f->targets; t++)
        out[t] = begin;
    for (int k = 0; k < TOGETHER; k++)
        row[k] = x + (k < count ? k : 0) * width;
    if (2 * count > TOGETHER)
        score_together(f, row, count, out);
    else
        for (int k = 0; k < count; k++)
            score_one(f, row[k], out + k * f->targets);
}

static void finish_row(const forest *f, double *out) {
    for (int64_t t = 0; t < f->targets; t++) {
        if (fabs(out[t]) > 3.4e38 && f->how >= MIN) out[t] = 0; /* no leaf had a vote */
        if (f->how == AVERAGE && f->root_count) out[t] /= (double)f->root_count;
        if (t < f->base_count) out[t] += f->base[t];
    }
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

static int by_leaf(const void *a, const void *b) {
    const vote *x = a, *y = b;
    return (x->leaf > y->leaf) - (x->leaf < y->leaf);
}

/* x < s, > s and >= s by <=, for all numbers, NaN included; false for other modes. */
static bool as_step(const tree_node *n, step *out) {
    bool opposite = n->mode == GT || n->mode == GTE, below = n->mode == LT || n->mode == GTE;
    if (n->mode > GT) return false;
    double split = !below                          ? n->split
                   : n->split == -(double)INFINITY ? (double)NAN
                                                   : nextafter(n->split, -(double)INFINITY);
    *out = (step){.split = split,
                  .feature = (int32_t)n->feature,
                  .next = {(int32_t)(opposite ? n->no : n->yes), (int32_t)(opposite ? n->yes : n->no)},
                  .missing = n->missing_is_yes != opposite};
    return true;
}

/* The splits below each root at most; a node that is met again on its own path closes a cycle. state of each node:
 * -1 not met, -2 on the path, else its depth. path: a node each. */
static tn_status measure_trees(const onnx_call *c, forest *f, int32_t *state, int32_t *path) {
    for (int64_t i = 0; i < f->node_count; i++)
        state[i] = f->nodes[i].mode == LEAF ? 0 : -1;
    for (int64_t r = 0; r < f->root_count; r++) {
        int64_t depth = 0;
        if (state[f->roots[r]] == -1) path[depth++] = (int32_t)f->roots[r];
        while (depth > 0) {
            int32_t at = path[depth - 1];
            const int64_t next[] = {f->nodes[at].yes, f->nodes[at].no};
            state[at] = -2;
            int open = state[next[0]] < 0 ? 0 : state[next[1]] < 0 ? 1 : 2;
            if (open < 2 && state[next[open]] == -2) return wrong(c, "a tree contains a cycle");
            if (open < 2) {
                path[depth++] = (int32_t)next[open];
                continue;
            }
            state[at] = 1 + (state[next[0]] > state[next[1]] ? state[next[0]] : state[next[1]]);
            depth--;
        }
        f->depths[r] = state[f->roots[r]];
    }
    return TN_OK;
}

static tn_status make_steps(const onnx_call *c, forest *f) {
    if (f->node_count > INT32_MAX) return onnx_refuse(c, "%lld tree nodes are too many", (long long)f->node_count);
    int32_t *state = tn_mem_alloc((size_t)f->node_count * 2 * sizeof *state);
    f->depths = tn_mem_alloc((size_t)f->root_count * sizeof *f->depths);
    tn_status status = state && f->depths ? measure_trees(c, f, state, state + f->node_count) : TN_ERR_MEMORY;
    tn_mem_free(state);
    TRY(status);
    f->steps = tn_mem_alloc((size_t)f->node_count * sizeof *f->steps);
    bool all = f->steps != NULL;
    f->single_vote = all;
    for (int64_t i = 0; i < f->node_count && all; i++) {
        const tree_node *n = &f->nodes[i];
        f->steps[i] = (step){.next = {(int32_t)i, (int32_t)i}};
        all = n->mode == LEAF || as_step(n, &f->steps[i]);
        if (n->mode != LEAF) continue;
        f->single_vote &= n->count == 1;
        if (n->count != 1) continue;
        f->steps[i].weight = f->votes[n->first].weight;
        f->steps[i].target = (int32_t)f->votes[n->first].target;
    }
    if (all) return TN_OK;
    f->single_vote = false;
    tn_mem_free(f->steps);
    f->steps = NULL;
    return TN_OK;
}

/* All references are checked once, so that no walk has to. Votes are sorted by leaf; each leaf gets their range. */
static tn_status finish_trees(const onnx_call *c, forest *f) {
    f->all_positive = true;
    f->one_score = f->targets == 2;
    if (f->targets < 1 || f->targets > ONNX_MOST_NUMBERS) return wrong(c, "no targets");
    for (int64_t i = 0; i < f->node_count; i++) {
        const tree_node *n = &f->nodes[i];
        if (n->mode > LEAF) return wrong(c, "unknown node mode");
        if (n->mode == LEAF) continue;
        if (n->yes < 0 || n->no < 0 || n->yes >= f->node_count || n->no >= f->node_count)
            return wrong(c, "a child of a node is missing");
        if (n->feature < 0 || n->feature > INT32_MAX - 1)
            return wrong(c, "a node reads a feature that the input does not have");
        f->features = tn_max64(f->features, n->feature + 1);
    }
    for (int64_t i = 0; i < f->root_count; i++)
        if (f->roots[i] < 0 || f->roots[i] >= f->node_count) return wrong(c, "a root is missing");
    if (f->vote_count) qsort(f->votes, (size_t)f->vote_count, sizeof *f->votes, by_leaf);
    for (int64_t i = 0; i < f->vote_count; i++) {
        const vote *v = &f->votes[i];
        if (v->target < 0 || v->target >= f->targets) return wrong(c, "a leaf votes for an unknown target");
        if (v->leaf < 0 || v->leaf >= f->node_count || f->nodes[v->leaf].mode != LEAF)
            return wrong(c, "a vote does not belong to a leaf");
        tree_node *leaf = &f->nodes[v->leaf];
        if (!leaf->count++) leaf->first = i;
        if (v->weight < 0) f->all_positive = false;
        if (v->target != 0) f->one_score = false;
    }
    return make_steps(c, f);
}

static tn_status make_trees(forest *f, int64_t nodes, int64_t votes, int64_t roots) {
    f->nodes = tn_mem_zalloc((size_t)nodes, sizeof *f->nodes);
    f->votes = tn_mem_zalloc((size_t)votes, sizeof *f->votes);
    f->roots = tn_mem_zalloc((size_t)roots, sizeof *f->roots);
    f->node_count = nodes;
    f->vote_count = votes;
    f->root_count = roots;
    return f->nodes && f->votes && f->roots ? TN_OK : tn_error_code();
}

/* A list of integers that must have `count` items; *out NULL where it is absent and need not be there. */
static tn_status list(const onnx_call *c, const char *name, int64_t count, bool needed, const int64_t **out) {
    int n = 0;
    *out = onnx_ints(c, name, &n);
    if (*out && n == count) return TN_OK;
    return !n && (!needed || !count)
               ? TN_OK
               : tn_fail(TN_ERR_FORMAT, "%s: %s has %d items; expected %lld", c->row->name, name, n, (long long)count);
}

/* ---- TreeEnsemble ------------------------------------------------------------------------------------------------ */

/* Values between NaNs, one set a MEMBER node in the order of the nodes. */
static tn_status share_members(const onnx_call *c, forest *f, int64_t splits) {
    int64_t at = 0;
    for (int64_t i = 0; i < splits; i++) {
        tree_node *n = &f->nodes[i];
        if (n->mode != MEMBER) continue;
        if (at >= f->member_count) return wrong(c, "a member set is missing");
        n->first = at;
        while (at < f->member_count && !isnan(f->members[at]))
            at++;
        n->count = at++ - n->first;
    }
    return TN_OK;
}

typedef struct newer {
    double *splits, *modes, *weights;
    int64_t split_count, mode_count, leaf_count;
} newer;
static void free_newer(newer *w) { tn_mem_free_each(w->splits, w->modes, w->weights); }

static tn_status plant(const onnx_call *c, const newer *w, forest *f) {
    const int64_t *feature, *yes, *no, *yes_leaf, *no_leaf, *missing, *target, *roots;
    int64_t n = w->split_count, leaves = w->leaf_count;
    int root_count = 0;
    roots = onnx_ints(c, "tree_roots", &root_count);
    if (w->mode_count != n) return wrong(c, "nodes_modes must be as long as nodes_splits");
    TRY(list(c, "nodes_featureids", n, true, &feature));
    TRY(list(c, "nodes_truenodeids", n, true, &yes));
    TRY(list(c, "nodes_falsenodeids", n, true, &no));
    TRY(list(c, "nodes_trueleafs", n, true, &yes_leaf));
    TRY(list(c, "nodes_falseleafs", n, true, &no_leaf));
    TRY(list(c, "nodes_missing_value_tracks_true", n, false, &missing));
    TRY(list(c, "leaf_targetids", leaves, true, &target));
    TRY(make_trees(f, n + leaves, leaves, root_count));
    for (int64_t i = 0; i < n; i++) {
        int64_t limit[2] = {yes_leaf[i] ? leaves : n, no_leaf[i] ? leaves : n};
        if (yes[i] < 0 || yes[i] >= limit[0] || no[i] < 0 || no[i] >= limit[1])
            return wrong(c, "a child of a node is missing");
        bool mode_known = w->modes[i] >= 0 && w->modes[i] <= MEMBER;
        f->nodes[i] = (tree_node){.split = w->splits[i],
                                  .mode = mode_known ? (uint8_t)w->modes[i] : UINT8_MAX,
                                  .feature = feature[i],
                                  .yes = yes[i] + (yes_leaf[i] ? n : 0),
                                  .no = no[i] + (no_leaf[i] ? n : 0),
                                  .missing_is_yes = missing && missing[i]};
    }
    for (int64_t i = 0; i < leaves; i++) {
        f->nodes[n + i].mode = LEAF;
        f->votes[i] = (vote){n + i, target[i], w->weights[i]};
    }
    if (root_count) memcpy(f->roots, roots, (size_t)root_count * sizeof *roots);
    TRY(share_members(c, f, n));
    return finish_trees(c, f);
}

static tn_status plant_newer(const onnx_call *c, forest *f) {
    AUTO_CALL(free_newer) newer w = {0};
    f->how = (aggregate)onnx_int(c, "aggregate_function", SUM);
    f->targets = onnx_int(c, "n_targets", 1);
    TRY(onnx_numbers_of(c, "nodes_splits", &w.splits, &w.split_count));
    TRY(onnx_numbers_of(c, "nodes_modes", &w.modes, &w.mode_count));
    TRY(onnx_numbers_of(c, "leaf_weights", &w.weights, &w.leaf_count));
    TRY(onnx_numbers_of(c, "membership_values", &f->members, &f->member_count));
    return plant(c, &w, f);
}

/* ---- TreeEnsembleRegressor, TreeEnsembleClassifier --------------------------------------------------------------- */

static int by_name(const void *a, const void *b) {
    const tree_node *x = a, *y = b;
    if (x->tree != y->tree) return x->tree < y->tree ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* The index of a node in sorted order; -1 if it does not exist. */
static int64_t find_node(const forest *f, int64_t tree, int64_t id) {
    tree_node key = {.tree = tree, .id = id};
    const tree_node *n = f->node_count ? bsearch(&key, f->nodes, (size_t)f->node_count, sizeof key, by_name) : NULL;
    return n ? n - f->nodes : -1;
}

static tree_mode mode_of(onnx_text text) {
    static const char *const names[] = {"BRANCH_LEQ", "BRANCH_LT",  "BRANCH_GTE", "BRANCH_GT",
                                        "BRANCH_EQ",  "BRANCH_NEQ", "",           "LEAF"};
    for (size_t i = 0; i < TN_COUNT(names); i++)
        if (onnx_is(text, names[i])) return (tree_mode)i;
    return LEAF + 1;
}

typedef struct older {
    const onnx_attribute *modes;
    const int64_t *tree, *id, *feature, *yes, *no, *missing;
    double *splits, *weights;
    int64_t split_count, weight_count;
} older;

static tn_status plant_nodes(const onnx_call *c, const older *w, forest *f) {
    int64_t n = w->split_count;
    for (int64_t i = 0; i < n; i++)
        f->nodes[i] = (tree_node){.tree = w->tree[i],
                                  .id = w->id[i],
                                  .split = w->splits[i],
                                  .feature = w->feature[i],
                                  .yes = w->yes[i],
                                  .no = w->no[i],
                                  .mode = (uint8_t)mode_of(w->modes->strings[i]),
                                  .missing_is_yes = w->missing && w->missing[i]};
    /* The first node of a tree is its root. */
    int64_t roots = 0;
    for (int64_t i = 0; i < n; i++)
        if (i == 0 || w->tree[i] != w->tree[i - 1]) f->roots[roots++] = i;
    f->root_count = roots;
    qsort(f->nodes, (size_t)n, sizeof *f->nodes, by_name);
    for (int64_t i = 1; i < n; i++)
        if (!by_name(&f->nodes[i - 1], &f->nodes[i])) return wrong(c, "two nodes have the same id");
    for (int64_t i = 0; i < roots; i++)
        f->roots[i] = find_node(f, w->tree[f->roots[i]], w->id[f->roots[i]]);
    for (int64_t i = 0; i < n; i++) {
        tree_node *at = &f->nodes[i];
        if (at->mode == LEAF) continue;
        at->yes = find_node(f, at->tree, at->yes);
        at->no = find_node(f, at->tree, at->no);
    }
    return TN_OK;
}

/* prefix: "class" or "target", before "_treeids" and so on. */
static tn_status plant_votes(const onnx_call *c, const older *w, const char *prefix, forest *f) {
    static const char *const parts[] = {"treeids", "nodeids", "ids"};
    const int64_t *lists[3];
    char name[32];
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s_%s", prefix, parts[i]);
        TRY(list(c, name, w->weight_count, true, &lists[i]));
    }
    for (int64_t i = 0; i < w->weight_count; i++)
        f->votes[i] = (vote){find_node(f, lists[0][i], lists[1][i]), lists[2][i], w->weights[i]};
    return TN_OK;
}

static tn_status gather_trees(const onnx_call *c, const char *prefix, older *w, forest *f) {
    char name[32];
    snprintf(name, sizeof name, "%s_weights", prefix);
    TRY(onnx_numbers_of(c, "nodes_values", &w->splits, &w->split_count));
    TRY(onnx_numbers_of(c, name, &w->weights, &w->weight_count));
    TRY(onnx_numbers_of(c, "base_values", &f->base, &f->base_count));
    int64_t n = w->split_count;
    w->modes = onnx_find_list(c, "nodes_modes", ONNX_KIND_STRINGS);
    if (!w->modes || (int64_t)w->modes->count != n) return wrong(c, "nodes_modes is missing");
    TRY(list(c, "nodes_treeids", n, true, &w->tree));
    TRY(list(c, "nodes_nodeids", n, true, &w->id));
    TRY(list(c, "nodes_featureids", n, true, &w->feature));
    TRY(list(c, "nodes_truenodeids", n, true, &w->yes));
    TRY(list(c, "nodes_falsenodeids", n, true, &w->no));
    TRY(list(c, "nodes_missing_value_tracks_true", n, false, &w->missing));
    TRY(make_trees(f, n, w->weight_count, n));
    TRY(plant_nodes(c, w, f));
    TRY(plant_votes(c, w, prefix, f));
    return finish_trees(c, f);
}

static tn_status plant_older(const onnx_call *c, bool classes, forest *f) {
    static const char *const names[] = {"AVERAGE", "SUM", "MIN", "MAX"};
    onnx_text how = onnx_string(c, "aggregate_function", "SUM");
    older w = {0};
    f->how = SUM;
    for (size_t i = 0; i < TN_COUNT(names); i++)
        if (onnx_is(how, names[i])) f->how = (aggregate)i;
    f->targets = classes ? onnx_label_count(c, "classlabels_int64s") : onnx_int(c, "n_targets", 1);
    tn_status status = gather_trees(c, classes ? "class" : "target", &w, f);
    tn_mem_free_each(w.splits, w.weights);
    return status;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

static int64_t classify(const forest *f, onnx_transform t, double *row) {
    if (!f->one_score) {
        int64_t best = onnx_largest(row, f->targets);
        onnx_transform_row(t, row, f->targets);
        return best;
    }
    double s = row[0];
    onnx_both_scores(t, f->all_positive, row, s);
    return s > (f->all_positive ? 0.5 : 0);
}

/* All rows, to be shared by threads. */
typedef struct scoring {
    const forest *f;
    const onnx_rows *x;
    onnx_rows y;
    int64_t *best;
    onnx_transform t;
    bool classes;
} scoring;

/* Pieces of TOGETHER rows. */
static void score_pieces(void *ctx, int64_t begin, int64_t end, TN_UNUSED int worker) {
    const scoring *s = ctx;
    for (int64_t first = begin * TOGETHER; first < tn_min64(end * TOGETHER, s->x->count); first += TOGETHER) {
        int64_t count = tn_min64(TOGETHER, s->x->count - first);
        double *out = s->y.at + first * s->f->targets;
        score_rows(s->f, s->x->at + first * s->x->width, s->x->width, (int)count, out);
        for (int64_t i = 0; i < count; i++, out += s->f->targets) {
            finish_row(s->f, out);
            if (s->classes)
                s->best[first + i] = classify(s->f, s->t, out);
            else
                onnx_transform_row(s->t, out, s->f->targets);
        }
    }
}

static tn_status run_forest(onnx_call *c, const forest *f, const onnx_rows *x, bool classes, onnx_transform t) {
    enum { WORTH = 1 << 14 }; /* steps that pay for another thread */
    scoring s = {.f = f, .x = x, .t = t, .classes = classes};
    int64_t steps = TOGETHER;
    if (f->features > x->width) return wrong(c, "a node reads a feature that the input does not have");
    for (int64_t i = 0; i < f->root_count; i++)
        steps += TOGETHER * (int64_t)f->depths[i];
    AUTO_FREE int64_t *best = s.best = tn_mem_zalloc((size_t)x->count, sizeof *s.best);
    if (!best) return TN_ERR_MEMORY;
    AUTO_ROWS onnx_rows y = {0};
    TRY(onnx_make_rows(x->count, f->targets, &y));
    s.y = y;
    tn_parallel_shared(tn_ceil_div(x->count, TOGETHER), tn_max64(1, WORTH / steps), score_pieces, &s);
    if (classes) TRY(onnx_put_labels(c, 0, "classlabels_int64s", best, x->count));
    if (classes && !onnx_wants(c, 1)) return TN_OK;
    return onnx_put_rows(c, classes, &y, classes ? TN_F32 : tn_dtype_of(onnx_in(c, 0)));
}

/* ---- the operators ----------------------------------------------------------------------------------------------- */

static tn_status make_forest(const onnx_call *c, void **data) {
    forest *f = tn_mem_zalloc(1, sizeof *f);
    if (!f) return TN_ERR_MEMORY;
    tn_status status = c->row->run == onnx_run_trees ? plant_newer(c, f) : plant_older(c, c->row->with, f);
    if (status != TN_OK) return drop_forest(f), status;
    *data = f;
    return TN_OK;
}

static tn_status run_prepared(onnx_call *c, bool classes, onnx_transform t) {
    const void *f;
    AUTO_ROWS onnx_rows x = {0};
    TRY(onnx_prepare(c, make_forest, drop_forest, &f));
    TRY(onnx_read_rows(c, 0, &x));
    return run_forest(c, f, &x, classes, t);
}

tn_status onnx_run_trees(onnx_call *c) {
    int64_t t = onnx_int(c, "post_transform", TRANSFORM_NONE);
    if (t < TRANSFORM_NONE || t > TRANSFORM_PROBIT) return wrong(c, "unknown post_transform");
    return run_prepared(c, false, (onnx_transform)t);
}

tn_status onnx_run_older_trees(onnx_call *c) { return run_prepared(c, c->row->with, onnx_transform_of(c)); }
