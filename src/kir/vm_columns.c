/* vm_columns.c — columns reduced where they lie: loops across memory that do nothing but load and reduce.
 *
 * Sums over rows (the gradients of biases and norms) have a body too short to pay for tiles: here a row of some columns
 * is combined with its lane straight from the buffer, and the lanes of a strip of columns stay in the first cache. The
 * order is that of kir.h, as in vm_reduce.c. */
#include "kir/rules.h"
#include "kir/vm.h"

#include <string.h>

enum { AT_LOOP, AT_LOAD, AT_REDUCE, AT_END, AT_STORE, STEPS };
enum { STRIP = KIR_LANES * KIR_COLUMNS / 2 }; /* elements of all lanes: 16 KiB in f32 */

static bool moves_plainly(const kir_step *s, int16_t mask) {
    return mask == KIR_NONE && s->dyn == KIR_NONE && !s->converts;
}

static bool is_column_program(const kir_schedule *s) {
    static const uint8_t ops[STEPS] = {KIR_LOOP, KIR_LOAD, KIR_REDUCE, KIR_END, KIR_STORE};
    if (s->n_steps != STEPS) return false;
    for (int i = 0; i < STEPS; i++)
        if (s->steps[i].op != ops[i]) return false;
    const kir_step *load = &s->steps[AT_LOAD], *reduce = &s->steps[AT_REDUCE], *store = &s->steps[AT_STORE];
    return moves_plainly(load, load->a) && moves_plainly(store, store->b) && reduce->kind <= KIR_RMIN &&
           reduce->a == load->d && store->a == reduce->d && load->type == reduce->type;
}

static const int64_t *strides_of(const kir_frame *f, int at) {
    return f->strides + (size_t)f->schedule->steps[at].access * (size_t)f->stride_width;
}

/* Few columns and a long loop are left to threads that share the loop's blocks, unless a row is shorter than a vector;
 * gapless rows of not too many columns are one line, and all of it one strip. */
bool kir_columns_choose(kir_frame *f) {
    const kir_space *rows = &f->outer_space, *columns = &f->inner_space;
    if (f->layout != KIR_ACROSS || rows->n > 1 || columns->n != 1 || rows->total < 1) return false;
    if (!is_column_program(f->schedule)) return false;
    if (strides_of(f, AT_LOAD)[f->stride_width - 1] != 1 || strides_of(f, AT_STORE)[f->stride_width - 1] != 1)
        return false;
    int64_t lanes = tn_min64(rows->total, KIR_LANES);
    bool gapless = rows->n == 1 && strides_of(f, AT_LOAD)[1] == columns->total && columns->total <= KIR_COLUMNS;
    int64_t most = gapless ? KIR_COLUMNS : tn_min64(STRIP / lanes / KIR_NARROW * KIR_NARROW, KIR_TILE);
    int64_t step = kir_piece_of(columns->total, most);
    int64_t units = tn_ceil_div(columns->total, step);
    bool short_rows = columns->total < KIR_NARROW;
    if (units < tn_threads() && rows->total >= 2 * KIR_BLOCK && !short_rows) return false;
    f->inner_step = step;
    f->inner_pieces = f->units = units;
    return true;
}

/* A strip of one launch. */
typedef struct strip {
    kir_fn *combine;
    const char *x; /* the next row */
    int64_t row;   /* bytes to the one behind it */
    int64_t columns;
    size_t line; /* bytes of the strip's part of a row */
    char *lanes;
} strip;

/* Lanes that no row comes to are left out: combining with the identity leaves what a lane may hold as it is. */
static void clear_lanes(const kir_frame *f, const strip *s, int64_t used) {
    const kir_step *reduce = &f->schedule->steps[AT_REDUCE];
    kir_value identity = kir_identity((kir_reduce)reduce->kind, (kir_type)reduce->operand);
    kir_block block = {.d = s->lanes, .s = &identity, .d_inner = 1, .outer = 1, .inner = used * s->columns};
    f->simd->copy[kir_log2(kir_type_size((kir_type)reduce->operand))](&block);
}

/* Rows [r, end), `together` of them at once, join their lanes. */
static void feed_rows(const strip *s, int64_t r, int64_t end, int64_t together) {
    for (; r < end; r += together) {
        char *lane = s->lanes + (size_t)(r % KIR_LANES) * s->line;
        s->combine(lane, lane, s->x + r * s->row, NULL, tn_min64(together, end - r) * s->columns);
    }
}

/* Rows that follow each other without a gap are combined with several lanes at once, as these follow each other too: as
 * many as stay in the first cache while the rows pass by. */
static void feed_block(strip *s, int64_t rows) {
    enum { NEAR = 8 << 10 }; /* bytes of lanes */
    bool gapless = s->row == (int64_t)s->line;
    int64_t group = KIR_LANES;
    while (gapless && group > 1 && group * s->row > NEAR)
        group /= 2;
    for (int64_t first = 0; first < KIR_LANES; first += group) {
        for (int64_t r = first; r < rows; r += KIR_LANES)
            feed_rows(s, r, tn_min64(r + group, rows), gapless ? group : 1);
    }
    s->x += rows * s->row;
}

static void fold_lanes(const strip *s, int64_t used) {
    for (int64_t half = KIR_LANES / 2; half > 0; half /= 2) {
        int64_t pairs = tn_min64(half, used - half);
        if (pairs > 0) s->combine(s->lanes, s->lanes, s->lanes + (size_t)half * s->line, NULL, pairs * s->columns);
    }
}

static char *columns_place_of(const kir_frame *f, int at, int64_t column) {
    const kir_view *view = &f->views[f->schedule->steps[at].access];
    return view->origin + (strides_of(f, at)[0] + column) * view->size;
}

void kir_run_columns(const kir_frame *f, int64_t unit) {
    static const kir_op combines[] = {
        [KIR_SUM] = KIR_ADD, [KIR_PROD] = KIR_MUL, [KIR_RMAX] = KIR_MAX, [KIR_RMIN] = KIR_MIN};
    const kir_step *reduce = &f->schedule->steps[AT_REDUCE];
    int64_t column = unit * f->inner_step, rows = f->outer_space.total;
    size_t width = kir_type_size((kir_type)reduce->operand);
    strip s = {.combine = f->simd->binary[KIR_VV][combines[reduce->kind]][reduce->operand],
               .x = columns_place_of(f, AT_LOAD, column),
               .columns = tn_min64(f->inner_step, f->inner_space.total - column),
               .lanes = f->states[reduce->state].lanes};
    s.row = f->outer_space.n > 0 ? strides_of(f, AT_LOAD)[1] * (int64_t)width : 0;
    s.line = (size_t)s.columns * width;
    char *out = columns_place_of(f, AT_STORE, column);
    for (int64_t first = 0; first < rows; first += KIR_BLOCK) {
        int64_t n = tn_min64(KIR_BLOCK, rows - first), used = tn_min64(n, KIR_LANES);
        clear_lanes(f, &s, used);
        feed_block(&s, n);
        fold_lanes(&s, used);
        if (first == 0)
            memcpy(out, s.lanes, s.line);
        else
            s.combine(out, out, s.lanes, NULL, s.columns);
    }
}
