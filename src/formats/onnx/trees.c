/* trees.c — ensembles of decision trees, in both of the standard's notations.
 *
 * Either notation becomes the same array of nodes: a split with the places of its two followers, or a leaf with its
 * votes. A row of features walks down each tree; a walk longer than there are nodes goes in a circle, and the model is
 * wrong. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/onnx/ml.h"

/* Newer models number the comparisons in this order. */
typedef enum tree_mode { LEQ, LT, GTE, GT, EQ, NEQ, MEMBER, LEAF } tree_mode;

typedef struct tree_node {
    int64_t tree, id; /* older notation: what others refer to it by */
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
    int64_t node_count, vote_count, root_count, member_count, base_count, targets, features;
    aggregate how;
    bool all_positive; /* votes */
} forest;

static void forget(forest *f) {
    void *all[] = {f->nodes, f->votes, f->members, f->base, f->roots};
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

/* The leaf that a row comes to; NULL when it never does. */
static const tree_node *walk(const forest *f, int64_t root, const double *row) {
    const tree_node *n = &f->nodes[root];
    for (int64_t steps = 0; steps <= f->node_count; steps++) {
        if (n->mode == LEAF) return n;
        n = &f->nodes[decide(f, n, row[n->feature]) ? n->yes : n->no];
    }
    return NULL;
}

static tn_status score_row(const onnx_call *c, const forest *f, const double *row, double *out) {
    for (int64_t t = 0; t < f->targets; t++)
        out[t] = f->how == MIN ? (double)3.402823466e38f : f->how == MAX ? (double)-3.402823466e38f : 0;
    for (int64_t i = 0; i < f->root_count; i++) {
        const tree_node *leaf = walk(f, f->roots[i], row);
        if (!leaf) return wrong(c, "a tree goes in a circle");
        for (int64_t k = leaf->first; k < leaf->first + leaf->count; k++) {
            double *at = &out[f->votes[k].target], w = f->votes[k].weight;
            *at = f->how == MIN ? fmin(*at, w) : f->how == MAX ? fmax(*at, w) : *at + w;
        }
    }
    for (int64_t t = 0; t < f->targets; t++) {
        if (fabs(out[t]) > 3.4e38 && f->how >= MIN) out[t] = 0; /* nobody voted */
        if (f->how == AVERAGE && f->root_count) out[t] /= (double)f->root_count;
        if (t < f->base_count) out[t] += f->base[t];
    }
    return TN_OK;
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

static int by_leaf(const void *a, const void *b) {
    const vote *x = a, *y = b;
    return (x->leaf > y->leaf) - (x->leaf < y->leaf);
}

/* All places are looked at once, so that no walk has to; votes are sorted by leaf, and leaves told where theirs lie. */
static tn_status finish(const onnx_call *c, forest *f) {
    f->all_positive = true;
    if (f->targets < 1 || f->targets > ONNX_MOST_NUMBERS) return wrong(c, "no targets");
    for (int64_t i = 0; i < f->node_count; i++) {
        const tree_node *n = &f->nodes[i];
        if (n->mode > LEAF) return wrong(c, "a node's mode is not known");
        if (n->mode == LEAF) continue;
        if (n->yes < 0 || n->no < 0 || n->yes >= f->node_count || n->no >= f->node_count)
            return wrong(c, "a node's follower is missing");
        if (n->feature < 0 || n->feature >= f->features) return wrong(c, "a node asks for a feature that is not there");
    }
    for (int64_t i = 0; i < f->root_count; i++)
        if (f->roots[i] < 0 || f->roots[i] >= f->node_count) return wrong(c, "a root is missing");
    if (f->vote_count) qsort(f->votes, (size_t)f->vote_count, sizeof *f->votes, by_leaf);
    for (int64_t i = 0; i < f->vote_count; i++) {
        const vote *v = &f->votes[i];
        if (v->target < 0 || v->target >= f->targets) return wrong(c, "a leaf votes for a target that is not there");
        if (v->leaf < 0 || v->leaf >= f->node_count || f->nodes[v->leaf].mode != LEAF)
            return wrong(c, "a vote belongs to no leaf");
        tree_node *leaf = &f->nodes[v->leaf];
        if (!leaf->count++) leaf->first = i;
        if (v->weight < 0) f->all_positive = false;
    }
    return TN_OK;
}

static tn_status make(forest *f, int64_t nodes, int64_t votes, int64_t roots) {
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
               : tn_fail(TN_ERR_FORMAT, "%s: %s has %d items, not %lld", c->row->name, name, n, (long long)count);
}

/* ---- TreeEnsemble ------------------------------------------------------------------------------------------------ */

/* Values between NaNs, one set a MEMBER node in the order of the nodes. */
static tn_status share_members(const onnx_call *c, forest *f, int64_t splits) {
    int64_t at = 0;
    for (int64_t i = 0; i < splits; i++) {
        tree_node *n = &f->nodes[i];
        if (n->mode != MEMBER) continue;
        if (at >= f->member_count) return wrong(c, "a set of members is missing");
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

static tn_status plant(const onnx_call *c, const newer *w, forest *f) {
    const int64_t *feature, *yes, *no, *yes_leaf, *no_leaf, *missing, *target, *roots;
    int64_t n = w->split_count, leaves = w->leaf_count;
    int root_count = 0;
    roots = onnx_ints(c, "tree_roots", &root_count);
    if (w->mode_count != n) return wrong(c, "nodes_modes is not as long as nodes_splits");
    TRY(list(c, "nodes_featureids", n, true, &feature));
    TRY(list(c, "nodes_truenodeids", n, true, &yes));
    TRY(list(c, "nodes_falsenodeids", n, true, &no));
    TRY(list(c, "nodes_trueleafs", n, true, &yes_leaf));
    TRY(list(c, "nodes_falseleafs", n, true, &no_leaf));
    TRY(list(c, "nodes_missing_value_tracks_true", n, false, &missing));
    TRY(list(c, "leaf_targetids", leaves, true, &target));
    TRY(make(f, n + leaves, leaves, root_count));
    for (int64_t i = 0; i < n; i++) {
        int64_t limit[2] = {yes_leaf[i] ? leaves : n, no_leaf[i] ? leaves : n};
        if (yes[i] < 0 || yes[i] >= limit[0] || no[i] < 0 || no[i] >= limit[1])
            return wrong(c, "a node's follower is missing");
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
    return finish(c, f);
}

static tn_status plant_newer(const onnx_call *c, forest *f) {
    newer w = {0};
    f->how = (aggregate)onnx_int(c, "aggregate_function", SUM);
    f->targets = onnx_int(c, "n_targets", 1);
    tn_status status = onnx_numbers_of(c, "nodes_splits", &w.splits, &w.split_count);
    if (status == TN_OK) status = onnx_numbers_of(c, "nodes_modes", &w.modes, &w.mode_count);
    if (status == TN_OK) status = onnx_numbers_of(c, "leaf_weights", &w.weights, &w.leaf_count);
    if (status == TN_OK) status = onnx_numbers_of(c, "membership_values", &f->members, &f->member_count);
    if (status == TN_OK) status = plant(c, &w, f);
    tn_mem_free(w.splits);
    tn_mem_free(w.modes);
    tn_mem_free(w.weights);
    return status;
}

/* ---- TreeEnsembleRegressor, TreeEnsembleClassifier --------------------------------------------------------------- */

static int by_name(const void *a, const void *b) {
    const tree_node *x = a, *y = b;
    if (x->tree != y->tree) return x->tree < y->tree ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* The place of a node among the sorted ones; -1: there is none. */
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
        if (!by_name(&f->nodes[i - 1], &f->nodes[i])) return wrong(c, "two nodes have one name");
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

static tn_status gather(const onnx_call *c, const char *prefix, older *w, forest *f) {
    char name[32];
    snprintf(name, sizeof name, "%s_weights", prefix);
    TRY(onnx_numbers_of(c, "nodes_values", &w->splits, &w->split_count));
    TRY(onnx_numbers_of(c, name, &w->weights, &w->weight_count));
    TRY(onnx_numbers_of(c, "base_values", &f->base, &f->base_count));
    int64_t n = w->split_count;
    w->modes = onnx_find_list(c, "nodes_modes", ONNX_LIST_TEXTS);
    if (!w->modes || (int64_t)w->modes->count != n) return wrong(c, "nodes_modes is missing");
    TRY(list(c, "nodes_treeids", n, true, &w->tree));
    TRY(list(c, "nodes_nodeids", n, true, &w->id));
    TRY(list(c, "nodes_featureids", n, true, &w->feature));
    TRY(list(c, "nodes_truenodeids", n, true, &w->yes));
    TRY(list(c, "nodes_falsenodeids", n, true, &w->no));
    TRY(list(c, "nodes_missing_value_tracks_true", n, false, &w->missing));
    TRY(make(f, n, w->weight_count, n));
    TRY(plant_nodes(c, w, f));
    TRY(plant_votes(c, w, prefix, f));
    return finish(c, f);
}

static tn_status plant_older(const onnx_call *c, bool classes, forest *f) {
    static const char *const names[] = {"AVERAGE", "SUM", "MIN", "MAX"};
    onnx_text how = onnx_string(c, "aggregate_function", "SUM");
    older w = {0};
    f->how = SUM;
    for (size_t i = 0; i < TN_COUNT(names); i++)
        if (onnx_is(how, names[i])) f->how = (aggregate)i;
    f->targets = classes ? onnx_label_count(c, "classlabels_int64s") : onnx_int(c, "n_targets", 1);
    tn_status status = gather(c, classes ? "class" : "target", &w, f);
    tn_mem_free(w.splits);
    tn_mem_free(w.weights);
    return status;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* Two classes of which only the first is voted for: its score stands for both, and is for the second one. */
static bool one_score(const forest *f) {
    for (int64_t i = 0; i < f->vote_count; i++)
        if (f->votes[i].target != 0) return false;
    return f->targets == 2;
}

static int64_t classify(const forest *f, onnx_transform t, bool one, double *row) {
    if (!one) {
        int64_t best = onnx_largest(row, f->targets);
        onnx_transform_row(t, row, f->targets);
        return best;
    }
    double s = row[0];
    onnx_both_scores(t, f->all_positive, row, s);
    return s > (f->all_positive ? 0.5 : 0);
}

static tn_status run_forest(onnx_call *c, forest *f, const onnx_rows *x, bool classes, onnx_transform t) {
    onnx_rows y;
    bool one = classes && one_score(f);
    int64_t *best = tn_mem_zalloc((size_t)x->count, sizeof *best);
    if (!best) return tn_error_code();
    tn_status status = onnx_make_rows(x->count, f->targets, &y);
    for (int64_t i = 0; i < x->count && status == TN_OK; i++) {
        double *row = y.at + i * f->targets;
        status = score_row(c, f, x->at + i * x->width, row);
        if (status == TN_OK && classes) best[i] = classify(f, t, one, row);
        if (status == TN_OK && !classes) onnx_transform_row(t, row, f->targets);
    }
    if (status == TN_OK && classes) status = onnx_put_labels(c, 0, "classlabels_int64s", best, x->count);
    if (status == TN_OK && (!classes || onnx_wants(c, 1)))
        status = onnx_put_rows(c, classes, &y, classes ? TN_F32 : tn_dtype_of(onnx_in(c, 0)));
    tn_mem_free(y.at);
    tn_mem_free(best);
    return status;
}

tn_status onnx_run_trees(onnx_call *c) {
    onnx_rows x;
    forest f = {0};
    TRY(onnx_read_rows(c, 0, &x));
    f.features = x.width;
    int64_t t = onnx_int(c, "post_transform", TRANSFORM_NONE);
    tn_status status = plant_newer(c, &f);
    if (status == TN_OK && (t < TRANSFORM_NONE || t > PROBIT)) status = wrong(c, "post_transform is not known");
    if (status == TN_OK) status = run_forest(c, &f, &x, false, (onnx_transform)t);
    forget(&f);
    tn_mem_free(x.at);
    return status;
}

tn_status onnx_run_older_trees(onnx_call *c) {
    onnx_rows x;
    forest f = {0};
    bool classes = c->row->with;
    TRY(onnx_read_rows(c, 0, &x));
    f.features = x.width;
    tn_status status = plant_older(c, classes, &f);
    if (status == TN_OK) status = run_forest(c, &f, &x, classes, onnx_transform_of(c));
    forget(&f);
    tn_mem_free(x.at);
    return status;
}
