/* indexed_rows.c — operations on rows whose destinations depend on data: appending to a cache, adding rows by index,
 * sorting.
 *
 * They store at computed indices. Each element still has one owner: of several tokens for one row of a cache the last
 * one stores, sums are computed by one item per column in ascending order, and a row is sorted by one workgroup. */
#include "gpu/gpu.h"

static kir_val in_range(kir_builder *kb, kir_val v, int64_t end) {
    kir_val low = kir_le(kb, kir_whole(kb, 0), v);
    return kir_and(kb, low, kir_lt(kb, v, tn_launch_size(kb, end)));
}

/* ---- appending --------------------------------------------------------------------------------------------------- */

enum { PAGE_SHIFT = 6 };
_Static_assert(1 << PAGE_SHIFT == TN_PAGE_TOKENS, "a token's page by shifting");

enum { APPEND_TOKEN, APPEND_HEAD, APPEND_FEATURE, APPEND_PARALLEL, APPEND_LATER = APPEND_PARALLEL, APPEND_AXES };
enum { APPEND_X = 1, APPEND_POSITION, APPEND_PAGES }; /* operands */

/* Where `there` and no later token goes to this page and row: a list may name a page twice. */
static kir_val last_of_row(kir_builder *kb, const tn_append_shape *s, const tn_operand_callbacks *callbacks,
                           kir_aff number, kir_val page, kir_val there) {
    kir_aff next = number, end = tn_along(APPEND_TOKEN, 1);
    kir_loop(kb, APPEND_LATER, 1);
    next.s[APPEND_LATER] = 1;
    next.c = 1;
    end.s[APPEND_LATER] = TN_PAGE_TOKENS;
    end.c = TN_PAGE_TOKENS - s->n;
    kir_val also = kir_lt(kb, kir_index(kb, &end), kir_whole(kb, 0));
    also = kir_and(kb, kir_and(kb, also, there), in_range(kb, kir_index(kb, &next), s->page_count));
    kir_val same = kir_eq(kb, callbacks->load(callbacks->context, APPEND_PAGES, &next, also), page);
    kir_val hit = kir_cast(kb, KIR_I64, kir_and(kb, also, same));
    kir_val hits = kir_reduce_value(kb, KIR_SUM, hit, KIR_NONE);
    kir_end(kb);
    return kir_and(kb, there, kir_eq(kb, hits, kir_whole(kb, 0)));
}

tn_status tn_append_workgroup(const tn_append_shape *s, const tn_operand_callbacks *callbacks,
                              tn_workgroup_program *out) {
    kir_builder *kb;
    int64_t extents[APPEND_AXES] = {s->n, s->kv_heads, s->width, s->n > 0 ? (s->n - 1) / TN_PAGE_TOKENS : 0};
    TRY(kir_begin(APPEND_PARALLEL, s->batch ? 0 : 1, extents, &kb));
    callbacks->begin(callbacks->context, kb);
    kir_aff token = tn_along(APPEND_TOKEN, 1);
    kir_val place = callbacks->load(callbacks->context, APPEND_POSITION, s->batch ? &token : NULL, KIR_NONE);
    if (!s->batch) place = kir_add(kb, place, kir_index(kb, &token));
    kir_val there = in_range(kb, place, s->page_count * TN_PAGE_TOKENS);
    kir_aff number = kir_aff_value(kir_shr(kb, place, kir_whole(kb, PAGE_SHIFT)));
    kir_aff in_batch[2] = {token, number};
    kir_val page = callbacks->load(callbacks->context, APPEND_PAGES, s->batch ? in_batch : &number, there);
    there = kir_and(kb, there, in_range(kb, page, s->n_pages));
    if (!s->batch) there = last_of_row(kb, s, callbacks, number, page, there);
    kir_val row = kir_and(kb, place, kir_whole(kb, TN_PAGE_TOKENS - 1));
    kir_aff head = tn_along(APPEND_HEAD, 1), feature = tn_along(APPEND_FEATURE, 1);
    kir_aff from[3] = {token, head, feature}, to[4] = {kir_aff_value(page), head, kir_aff_value(row), feature};
    callbacks->store(callbacks->context, to, callbacks->load(callbacks->context, APPEND_X, from, there), there);
    return kir_finish(kb, &out->program, &out->sizes);
}

/* ---- adding rows ------------------------------------------------------------------------------------------------- */

enum { ADD_ITEMS = 64 };

bool tn_index_add_workgroup_fits(const tn_group_limits *limits) { return limits->items >= ADD_ITEMS; }

tn_status tn_index_add_workgroup(const tn_index_add_shape *s, const tn_operand_callbacks *callbacks,
                                 tn_workgroup_program *out) {
    enum { ACROSS, ITEM, PARALLEL, NUMBER = PARALLEL, AXES };
    enum { INDEX = 1, SOURCE }; /* operands */
    kir_builder *kb;
    int64_t extents[AXES] = {(s->width + ADD_ITEMS - 1) / ADD_ITEMS, ADD_ITEMS, s->count};
    TRY(kir_begin(PARALLEL, AXES - PARALLEL, extents, &kb));
    kir_group(kb, 1);
    callbacks->begin(callbacks->context, kb);
    kir_aff column = tn_along(ACROSS, ADD_ITEMS), number = tn_along(NUMBER, 1), left;
    column.s[ITEM] = 1;
    left = column;
    left.c = -s->width;
    kir_val inside = kir_lt(kb, kir_index(kb, &left), kir_whole(kb, 0));
    kir_loop(kb, NUMBER, 1);
    kir_val place = callbacks->load(callbacks->context, INDEX, &number, KIR_NONE);
    kir_val mask = kir_and(kb, inside, in_range(kb, place, s->rows));
    kir_aff from[2] = {number, column}, to[2] = {kir_aff_value(place), column};
    kir_val sum = callbacks->load(callbacks->context, TN_RESULT, to, mask);
    sum = kir_add(kb, sum, callbacks->load(callbacks->context, SOURCE, from, mask));
    callbacks->store(callbacks->context, to, sum, mask);
    kir_end(kb);
    return kir_finish(kb, &out->program, &out->sizes);
}

/* ---- sorting ----------------------------------------------------------------------------------------------------- */

/* A workgroup merges its row's indices, in the result's memory, by a bitonic network whose merges begin with a mirrored
 * step: all comparisons have the same direction, so anything beyond the end of the row can be left out. Equal elements
 * are ordered by their positions, so the result is unique. */
enum { SORT_ITEMS = 64 };

bool tn_argsort_workgroup_fits(const tn_group_limits *limits) { return limits->items >= SORT_ITEMS; }

typedef struct sorter {
    const tn_argsort_shape *s;
    const tn_operand_callbacks *callbacks;
    kir_builder *kb;
} sorter;

enum { ROW, ITEM, SORT_PARALLEL, MERGE = SORT_PARALLEL, STEP, PAIRS, PLACES, SORT_AXES };

static kir_val is_nan(const sorter *m, kir_val v) {
    return kir_eq(m->kb, kir_eq(m->kb, v, v), kir_const_i(m->kb, KIR_BOOL, 0));
}

static kir_val rows_less(const sorter *m, kir_val x, kir_val y) {
    kir_val smaller = kir_lt(m->kb, x, y);
    kir_type t = kir_val_type(m->kb, x);
    if (t != KIR_F32 && t != KIR_F64) return smaller;
    kir_val ordered = kir_eq(m->kb, x, x);
    return kir_or(m->kb, smaller, kir_and(m->kb, is_nan(m, y), ordered));
}

/* Whether the element at position i must come before that at position j. */
static kir_val before(const sorter *m, kir_val x, kir_val i, kir_val y, kir_val j) {
    kir_val first = m->s->descending ? rows_less(m, y, x) : rows_less(m, x, y);
    kir_val second = m->s->descending ? rows_less(m, x, y) : rows_less(m, y, x);
    kir_val tie = kir_and(m->kb, kir_eq(m->kb, second, kir_const_i(m->kb, KIR_BOOL, 0)), kir_lt(m->kb, i, j));
    return kir_or(m->kb, first, tie);
}

static void compare_pair(const sorter *m) {
    kir_builder *kb = m->kb;
    kir_aff merge_axis = tn_along(MERGE, 1), step_axis = tn_along(STEP, 1), pair_axis = tn_along(PAIRS, SORT_ITEMS);
    pair_axis.s[ITEM] = 1;
    kir_val merge = kir_index(kb, &merge_axis), step = kir_index(kb, &step_axis), pair = kir_index(kb, &pair_axis);
    kir_val one = kir_whole(kb, 1), shift = kir_sub(m->kb, merge, step), half = kir_shl(m->kb, one, shift);
    kir_val block = kir_shl(m->kb, kir_shr(m->kb, pair, shift), kir_add(m->kb, shift, one));
    kir_val within = kir_and(kb, pair, kir_sub(m->kb, half, one));
    kir_val low = kir_add(m->kb, block, within), next = kir_add(m->kb, low, half);
    kir_val mirrored = kir_add(m->kb, block, kir_sub(m->kb, kir_sub(m->kb, kir_add(m->kb, half, half), one), within));
    kir_val first = kir_eq(kb, step, kir_whole(kb, 0)), high = kir_select(kb, first, mirrored, next);
    kir_val active = kir_and(kb, kir_le(kb, step, merge), kir_lt(kb, high, tn_launch_size(kb, m->s->length)));
    kir_aff at_low[2] = {tn_along(ROW, 1), kir_aff_value(low)}, at_high[2] = {tn_along(ROW, 1), kir_aff_value(high)};
    void *context = m->callbacks->context;
    kir_val i = m->callbacks->load(context, TN_RESULT, at_low, active);
    kir_val j = m->callbacks->load(context, TN_RESULT, at_high, active);
    kir_aff x_at[2] = {tn_along(ROW, 1), kir_aff_value(i)}, y_at[2] = {tn_along(ROW, 1), kir_aff_value(j)};
    kir_val x = m->callbacks->load(context, 0, x_at, active), y = m->callbacks->load(context, 0, y_at, active);
    kir_val swap = kir_and(kb, active, before(m, y, j, x, i));
    m->callbacks->store(context, at_low, j, swap);
    m->callbacks->store(context, at_high, i, swap);
}

tn_status tn_argsort_workgroup(const tn_argsort_shape *s, const tn_operand_callbacks *callbacks,
                               tn_workgroup_program *out) {
    sorter m = {.s = s, .callbacks = callbacks};
    int64_t merges = 0;
    while ((int64_t)1 << merges < s->length)
        merges++;
    int64_t pairs = merges ? (int64_t)1 << (merges - 1) : 0;
    int64_t extents[SORT_AXES] = {[ROW] = s->rows,
                                  [ITEM] = SORT_ITEMS,
                                  [MERGE] = merges,
                                  [STEP] = merges,
                                  [PAIRS] = (pairs + SORT_ITEMS - 1) / SORT_ITEMS,
                                  [PLACES] = (s->length + SORT_ITEMS - 1) / SORT_ITEMS};
    TRY(kir_begin(SORT_PARALLEL, SORT_AXES - SORT_PARALLEL, extents, &m.kb));
    kir_group(m.kb, 1);
    callbacks->begin(callbacks->context, m.kb);
    kir_aff place = tn_along(PLACES, SORT_ITEMS), to[2] = {tn_along(ROW, 1), place}, left;
    place.s[ITEM] = 1;
    to[1] = left = place;
    left.c = -s->length;
    kir_loop(m.kb, PLACES, 1);
    kir_val inside = kir_lt(m.kb, kir_index(m.kb, &left), kir_whole(m.kb, 0));
    callbacks->store(callbacks->context, to, kir_index(m.kb, &place), inside);
    kir_end(m.kb);
    kir_barrier(m.kb);
    kir_loop(m.kb, MERGE, 1);
    kir_loop(m.kb, STEP, 1);
    kir_loop(m.kb, PAIRS, 1);
    compare_pair(&m);
    kir_end(m.kb);
    kir_barrier(m.kb);
    kir_end(m.kb);
    kir_end(m.kb);
    return kir_finish(m.kb, &out->program, &out->sizes);
}
