/* vm.c — the tile VM: runs tiles.
 *
 * A launch is divided into units (tiles of points, blocks of rows, lines of columns) that may run in any order on any
 * thread. If there are few units but long loops, each loop is divided into blocks of KIR_BLOCK elements instead, whose
 * results are combined in order. The bits are the same either way. */
#include <pthread.h>
#include <string.h>

#include "kir/vm.h"

/* Work below this, in nanoseconds, is not worth waking another thread. */
static double worth_a_thread = 5000;
enum { PIECES_A_THREAD = 16 }; /* more of them only cost: a frame is opened for each */

void kir_vm_worth_a_thread(double nanoseconds) { worth_a_thread = nanoseconds; }

/* ---- which instruction set --------------------------------------------------------------------------------------- */

_Atomic(int) kir_vm_choices;

static const kir_simd_table *const TABLES[TN_ISA_COUNT] = {
    [TN_ISA_BASE] = &kir_simd_base,
#ifdef TN_HAVE_AVX2
    [TN_ISA_AVX2] = &kir_simd_avx2,
#endif
#ifdef TN_HAVE_AVX512
    [TN_ISA_AVX512] = &kir_simd_avx512,
#endif
};

static _Atomic(int) chosen = -1;

static tn_isa isa_of_tables(void) {
    int isa = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (isa >= 0) return (tn_isa)isa;
    isa = (int)tn_cpu().isa;
    while (!TABLES[isa])
        isa--;
    atomic_store_explicit(&chosen, isa, memory_order_relaxed);
    return (tn_isa)isa;
}

bool kir_vm_use(tn_isa isa) {
    if (isa > tn_cpu().isa || !TABLES[isa]) return false;
    atomic_store(&chosen, (int)isa);
    atomic_store(&kir_vm_choices, (atomic_load(&kir_vm_choices) & 3) | ((int)isa + 1) << 2);
    return true;
}

/* ---- a thread's memory ------------------------------------------------------------------------------------------- */

/* Each thread that calls the VM keeps what it once needed, until it ends or kir_vm_trim. */
static _Thread_local struct {
    char *memory;
    size_t bytes;
} mine;

static pthread_key_t at_thread_end;
static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static bool has_key;

static void release(void *memory) { tn_mem_free(memory); }

static void make_key(void) { has_key = pthread_key_create(&at_thread_end, release) == 0; }

void kir_vm_trim(void) {
    if (has_key) pthread_setspecific(at_thread_end, NULL);
    tn_mem_free(mine.memory);
    mine.memory = NULL;
    mine.bytes = 0;
}

static char *thread_memory(size_t bytes) {
    if (mine.bytes >= bytes) return mine.memory;
    pthread_once(&key_once, make_key);
    kir_vm_trim();
    mine.memory = tn_mem_alloc(bytes);
    mine.bytes = mine.memory ? bytes : 0;
    if (has_key) pthread_setspecific(at_thread_end, mine.memory);
    return mine.memory;
}

static void frame_open(kir_frame *f, const kir_vm *vm, void *memory) {
    kir_frame_carve(f, vm, memory);
    f->vm = vm;
    f->isa = isa_of_tables();
    f->simd = TABLES[f->isa];
    f->bind = NULL;
    f->team = NULL;
    f->machine.is_given = false;
    if (vm->n_access > 0) memcpy(f->access.views, vm->views, (size_t)vm->n_access * sizeof *f->access.views);
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static void cursor_set(kir_cursor *c, const kir_space *s, int64_t begin, int64_t count) {
    c->space = s;
    c->begin = begin;
    c->count = count;
    for (int k = s->n - 1; k > 0; k--) {
        c->at[k] = begin % s->extent[k];
        begin /= s->extent[k];
    }
    c->at[0] = begin;
    c->simple = s->n == 0 || c->at[s->n - 1] + count <= s->extent[s->n - 1];
}

static const kir_space *loop_space(const kir_frame *f) {
    return f->grid.layout == KIR_ALONG ? &f->grid.inner : &f->grid.outer;
}

static void set_loop(kir_frame *f, int64_t begin, int64_t count) {
    cursor_set(f->grid.layout == KIR_ALONG ? &f->inner : &f->outer, loop_space(f), begin, count);
}

/* Outside loops, the loop axes are at their first point, even if they have none. */
static void leave_loop(kir_frame *f) {
    static const kir_space nowhere = {.n = 0, .total = 1};
    kir_cursor *c = f->grid.layout == KIR_ALONG ? &f->inner : &f->outer;
    c->space = &nowhere;
    c->begin = 0;
    c->count = 1;
    c->simple = true;
    for (int k = 0; k < loop_space(f)->n; k++)
        c->at[k] = 0;
}

static char *result_address(kir_frame *f, const kir_bound *b) {
    if (b->direct == KIR_NONE) return f->tile.at[b->d];
    char *direct = kir_direct_address(f, b->direct);
    f->tile.at[b->d] = direct ? direct : f->tile.slots + f->schedule->slots[b->d];
    return f->tile.at[b->d];
}

static void do_call(kir_frame *f, const kir_bound *b) {
    char *d = result_address(f, b);
    b->fn(d, f->tile.at[b->a], f->tile.at[b->b], f->tile.at[b->c], kir_count(f, b->kind));
}

static kir_type operand_type(const kir_step *s, int k) {
    if (s->op == KIR_SELECT && k == 0) return KIR_BOOL;
    return (kir_type)s->operand;
}

/* Bytes that an operand moves from row to row. */
static size_t row_bytes(const kir_frame *f, int v, size_t width) {
    int kind = f->bind->kinds[v];
    if (!(kind & KIR_OUTER)) return 0;
    return kind & KIR_INNER ? (size_t)f->inner.count * width : width;
}

/* Calls the routine once per row: operands that vary only from row to row are single elements, those that vary only
 * along rows do not move. */
static void do_rows(kir_frame *f, const kir_bound *b) {
    const kir_step *s = &f->schedule->steps[b->step];
    const int16_t values[3] = {b->a, b->b, b->c};
    const char *at[3];
    size_t move[3];
    for (int k = 0; k < b->operands; k++) {
        at[k] = f->tile.at[values[k]];
        move[k] = row_bytes(f, values[k], kir_type_size(operand_type(s, k)));
    }
    char *d = result_address(f, b);
    size_t d_move = (size_t)f->inner.count * kir_type_size((kir_type)s->type);
    for (int64_t r = 0; r < f->outer.count; r++, d += d_move) {
        b->fn(d, at[0], b->operands > 1 ? at[1] : at[0], b->operands > 2 ? at[2] : at[0], f->inner.count);
        for (int k = 0; k < b->operands; k++)
            at[k] += move[k];
    }
}

static void do_spread(kir_frame *f, const kir_bound *b) {
    const kir_step *s = &f->schedule->steps[b->step];
    const int16_t values[3] = {b->a, b->b, b->c};
    const char *at[3] = {NULL, NULL, NULL};
    for (int k = 0; k < b->operands; k++)
        at[k] = kir_spread(f, values[k], operand_type(s, k), b->kind, k);
    b->fn(result_address(f, b), at[0], at[1], at[2], kir_count(f, b->kind));
}

static void do_rename(kir_frame *f, const kir_bound *b) { f->tile.at[b->d] = f->tile.at[b->a]; }

/* With whole rows in the tile, a loop is just the full range; parts are run by run_loop. */
static void do_loop(kir_frame *f, TN_UNUSED const kir_bound *b) { set_loop(f, 0, loop_space(f)->total); }

static void do_end(kir_frame *f, TN_UNUSED const kir_bound *b) { leave_loop(f); }

typedef void act_fn(kir_frame *f, const kir_bound *b);
static act_fn *const ACTS[KIR_ACTS] = {
    [KIR_DO_CALL] = do_call,         [KIR_DO_ROWS] = do_rows,     [KIR_DO_SPREAD] = do_spread,
    [KIR_DO_RENAME] = do_rename,     [KIR_DO_LOAD] = kir_do_load, [KIR_DO_STORE] = kir_do_store,
    [KIR_DO_INDEX] = kir_do_index,   [KIR_DO_LOOP] = do_loop,     [KIR_DO_END] = do_end,
    [KIR_DO_REDUCE] = kir_do_reduce, [KIR_DO_SCAN] = kir_do_scan,
};

static void run_loop(kir_frame *f, int loop, int end);

static void run_steps(kir_frame *f, int from, int to) {
    for (int i = from; i < to; i++) {
        const kir_bound *b = &f->bind->bound[i];
        if (b->act == KIR_DO_LOOP && !f->grid.whole) {
            int end = f->schedule->steps[i].partner;
            run_loop(f, i, end);
            i = end;
            continue;
        }
        ACTS[b->act](f, b);
    }
}

/* ---- loops in parts ---------------------------------------------------------------------------------------------- */

/* Number of elements from `at` on for the next chunk: at most a tile, not past `end`, nor past the end of a contiguous
 * run, so that loads can use the memory directly. */
static int64_t chunk_at(const kir_frame *f, int64_t at, int64_t end) {
    enum { LONG_RUN = 64 };
    const kir_space *s = loop_space(f);
    int64_t n = tn_min64(end - at, f->grid.layout == KIR_ALONG ? f->grid.inner_step : f->grid.outer_step);
    if (s->n < 2 || s->extent[s->n - 1] < LONG_RUN) return n;
    return tn_min64(n, s->extent[s->n - 1] - at % s->extent[s->n - 1]);
}

/* Runs a loop's body over [at, end), which is in one block. */
static void run_block(kir_frame *f, int loop, int loop_end, int64_t at, int64_t end) {
    while (at < end) {
        int64_t n = chunk_at(f, at, end);
        set_loop(f, at, n);
        run_steps(f, loop + 1, loop_end);
        at += n;
    }
}

/* Threads that share the blocks of a loop. */
typedef struct kir_team {
    kir_frame *leader;
    int loop, end, threads;
    int64_t blocks;
    char *memory, *parts;
} kir_team;

static char *part_of(const kir_team *t, int64_t block, int state) {
    return t->parts + ((size_t)block * (size_t)t->leader->vm->n_states + (size_t)state) * kir_part_bytes();
}

/* A member's frame: the leader's, but for the memory that loops write. */
static void member_open(kir_frame *f, const kir_team *t, int worker) {
    const kir_frame *leader = t->leader;
    kir_frame own;
    kir_frame_carve(&own, leader->vm, t->memory + (size_t)worker * leader->vm->thread_bytes);
    *f = *leader;
    f->team = NULL;
    f->tile.at = own.tile.at;
    f->tile.flags = own.tile.flags;
    f->tile.slots = own.tile.slots;
    f->tile.states = own.tile.states;
    memcpy(f->tile.stage, own.tile.stage, sizeof f->tile.stage);
    memcpy(f->tile.at, leader->tile.at, (size_t)f->vm->n_values * sizeof *f->tile.at);
    memcpy(f->tile.flags, leader->tile.flags, (size_t)f->schedule->n_steps);
    for (int i = 0; i < f->schedule->n_steps; i++) {
        const kir_step *s = &f->schedule->steps[i];
        if (s->in_loop && s->d != KIR_NONE && s->op != KIR_REDUCE)
            f->tile.at[s->d] = f->tile.slots + f->schedule->slots[s->d];
    }
    cursor_set(&f->inner, &f->grid.inner, leader->inner.begin, leader->inner.count);
    cursor_set(&f->outer, &f->grid.outer, leader->outer.begin, leader->outer.count);
}

static void member_blocks(void *ctx, int64_t begin, int64_t end, int worker) {
    const kir_team *t = ctx;
    kir_frame f;
    member_open(&f, t, worker);
    for (int64_t block = begin; block < end; block++) {
        int64_t at = block * KIR_BLOCK;
        kir_states_begin(&f, t->loop, t->end);
        run_block(&f, t->loop, t->end, at, tn_min64(at + KIR_BLOCK, loop_space(&f)->total));
        for (int i = t->loop + 1; i < t->end; i++) {
            const kir_step *s = &f.schedule->steps[i];
            if (s->op == KIR_REDUCE) kir_part_save(&f, s, part_of(t, block, s->state));
        }
    }
}

static void run_loop_by_team(kir_frame *f, int loop, int end) {
    kir_team *t = f->team;
    t->loop = loop;
    t->end = end;
    tn_parallel(t->blocks, tn_ceil_div(t->blocks, t->threads), member_blocks, t);
    leave_loop(f);
    kir_states_begin(f, loop, end);
    for (int i = loop + 1; i < end; i++) {
        const kir_step *s = &f->schedule->steps[i];
        if (s->op != KIR_REDUCE) continue;
        for (int64_t block = 0; block < t->blocks; block++)
            kir_part_add(f, s, part_of(t, block, s->state), block * KIR_BLOCK);
        kir_parts_end(f, s);
    }
}

static void run_loop(kir_frame *f, int loop, int end) {
    if (f->team) {
        run_loop_by_team(f, loop, end);
        return;
    }
    int64_t total = loop_space(f)->total;
    kir_states_begin(f, loop, end);
    for (int64_t at = 0; at < total; at += KIR_BLOCK)
        run_block(f, loop, end, at, tn_min64(at + KIR_BLOCK, total));
    leave_loop(f);
    kir_states_end(f, loop, end);
}

/* ---- units ------------------------------------------------------------------------------------------------------- */

static void set_range(kir_cursor *c, const kir_space *s, int64_t unit, int64_t step) {
    int64_t begin = unit * step;
    cursor_set(c, s, begin, tn_min64(step, s->total - begin));
}

/* Columns: pieces of a run, or any stretch when runs are short. */
static void set_columns(kir_frame *f, int64_t unit) {
    const kir_space *s = &f->grid.inner;
    if (f->grid.inner_pieces == 0) {
        set_range(&f->inner, s, unit, f->grid.inner_step);
        return;
    }
    int64_t run = s->n > 0 ? s->extent[s->n - 1] : 1;
    int64_t begin = unit % f->grid.inner_pieces * f->grid.inner_step;
    cursor_set(&f->inner, s, unit / f->grid.inner_pieces * run + begin, tn_min64(f->grid.inner_step, run - begin));
}

/* Square tiles visit memory in squares of tiles, so that the pages read along one side and written along the other stay
 * in the TLB. */
static void place_square(const kir_frame *f, int64_t unit, int64_t *row, int64_t *column) {
    enum { SIDE = 16 };
    int64_t across = f->grid.inner_pieces, down = f->grid.units / across;
    int64_t band = unit / (SIDE * across), in_band = unit % (SIDE * across);
    int64_t height = tn_min64(SIDE, down - band * SIDE);
    int64_t block = in_band / (height * SIDE), in_block = in_band % (height * SIDE);
    int64_t width = tn_min64(SIDE, across - block * SIDE);
    *row = band * SIDE + in_block / width;
    *column = block * SIDE + in_block % width;
}

static void set_tile(kir_frame *f, int64_t unit) {
    int64_t row = unit / f->grid.inner_pieces, column = unit % f->grid.inner_pieces;
    if (f->grid.square) place_square(f, unit, &row, &column);
    set_range(&f->outer, &f->grid.outer, row, f->grid.outer_step);
    set_range(&f->inner, &f->grid.inner, column, f->grid.inner_step);
}

static void run_unit(kir_frame *f, int64_t unit) {
    if (f->grid.layout == KIR_POINTS) {
        set_tile(f, unit);
    } else if (f->grid.layout == KIR_ALONG) {
        set_range(&f->outer, &f->grid.outer, unit, f->grid.outer_step);
        leave_loop(f);
    } else {
        set_columns(f, unit);
        leave_loop(f);
    }
    run_steps(f, 0, f->schedule->n_steps);
}

static void run_units(kir_frame *f, int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; unit++) {
        if (f->machine.code)
            kir_code_run(f, unit);
        else
            run_unit(f, unit);
    }
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

typedef struct job {
    const kir_vm *vm;
    const kir_launch *launches;
    int64_t count;
    int64_t *first_unit;    /* by launch, and one past the last */
    const kir_code **codes; /* by launch */
    char *memory;
} job;

static int64_t launch_of(const job *j, int64_t unit) {
    int64_t low = 0, high = j->count - 1;
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if (j->first_unit[middle] <= unit)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static void run_share(void *ctx, int64_t begin, int64_t end, int worker) {
    const job *j = ctx;
    kir_frame f;
    frame_open(&f, j->vm, j->memory + (size_t)worker * j->vm->thread_bytes);
    for (int64_t i = launch_of(j, begin); i < j->count && j->first_unit[i] < end; i++) {
        int64_t first = j->first_unit[i], last = j->first_unit[i + 1];
        if (first == last) continue;
        f.machine.is_given = true;
        f.machine.given = j->codes[i];
        kir_frame_launch(&f, &j->launches[i], NULL, NULL);
        run_units(&f, tn_max64(begin - first, 0), tn_min64(end, last) - first);
    }
}

/* Is the launch better divided inside its loops? It has fewer units than threads, and each is long. */
static bool wants_team(const kir_frame *f, int threads) {
    return f->vm->in_blocks && !f->machine.code && !f->grid.whole && f->grid.units < threads && f->grid.units > 0 &&
           loop_space(f)->total >= 2 * KIR_BLOCK;
}

static void run_with_team(kir_frame *f, int threads, char *memory) {
    kir_team t = {.leader = f, .threads = threads, .blocks = tn_ceil_div(loop_space(f)->total, KIR_BLOCK)};
    t.memory = memory;
    t.parts = t.memory + (size_t)threads * f->vm->thread_bytes;
    f->team = &t;
    run_units(f, 0, f->grid.units);
    f->team = NULL;
}

/* The memory of a run on several threads: their frames, the table of units, what a team needs. */
typedef struct shares {
    size_t frames, table, team;
} shares;

static shares shares_of(const kir_vm *vm, const kir_launch *launches, int64_t count, int threads) {
    shares s = {.frames = (size_t)threads * vm->thread_bytes};
    s.table = tn_whole_lines(((size_t)count + 1) * (sizeof(int64_t) + sizeof(kir_code *)));
    for (int64_t i = 0; i < count && vm->in_blocks; i++) {
        int64_t loop = tn_product(launches[i].sizes + vm->loop_first, vm->loop_count);
        size_t parts = (size_t)tn_ceil_div(loop, KIR_BLOCK) * (size_t)vm->n_states * kir_part_bytes();
        if (loop >= 2 * KIR_BLOCK && s.frames + parts > s.team) s.team = s.frames + parts;
    }
    return s;
}

/* Several launches, or one, as one piece of parallel work. `f` is ready for launch 0 if there is only one. */
static tn_status run_shared(const kir_vm *vm, const kir_launch *launches, int64_t count, int threads) {
    shares s = shares_of(vm, launches, count, threads);
    job j = {.vm = vm, .launches = launches, .count = count};
    j.memory = thread_memory(s.frames + s.table + s.team);
    if (!j.memory) return TN_ERR_MEMORY;
    j.first_unit = (int64_t *)(void *)(j.memory + s.frames);
    j.codes = (const kir_code **)(void *)(j.first_unit + count + 1);
    int64_t units = 0;
    double cost = 0;
    kir_frame f;
    frame_open(&f, vm, j.memory);
    for (int64_t i = 0; i < count; i++) {
        kir_frame_launch(&f, &launches[i], NULL, NULL);
        if (count == 1) kir_recipe_note(&f, NULL, NULL);
        j.first_unit[i] = units;
        j.codes[i] = f.machine.code;
        if (wants_team(&f, threads)) {
            run_with_team(&f, threads, j.memory + s.frames + s.table);
            continue;
        }
        units += f.grid.units;
        cost += f.grid.cost;
    }
    j.first_unit[count] = units;
    if (units == 0) return TN_OK;
    int64_t grain = (int64_t)(worth_a_thread / (cost / (double)units)) + 1;
    tn_parallel_shared(units, tn_max64(grain, units / (PIECES_A_THREAD * threads)), run_share, &j);
    return TN_OK;
}

/* A cheap upper guess of what the launches cost, in nanoseconds. */
static double guess_cost(const kir_vm *vm, const kir_launch *launches, int64_t count) {
    double total = 0;
    for (int64_t i = 0; i < count; i++) {
        double points = 1, loop = 1;
        for (int k = 0; k < vm->n_par; k++)
            points *= (double)launches[i].sizes[k];
        for (int k = 0; k < vm->loop_count; k++)
            loop *= (double)launches[i].sizes[vm->loop_first + k];
        total += points * (vm->point_cost + loop * vm->loop_cost);
    }
    return total;
}

tn_status kir_vm_run(const kir_vm *vm, const kir_launch *launches, int64_t count) {
    if (count == 1 && kir_recipe_run(vm, launches, NULL, NULL)) return TN_OK;
    if (count == 1 && vm->table_store >= 0 && kir_table_run(vm, launches)) return TN_OK;
    int threads = tn_threads();
    if (threads > 1 && guess_cost(vm, launches, count) > worth_a_thread) {
        int limit = tn_threads_limit(threads); /* memory is measured out for these */
        tn_status s = run_shared(vm, launches, count, threads);
        tn_threads_limit(limit);
        return s;
    }
    char *memory = thread_memory(vm->thread_bytes);
    if (!memory) return TN_ERR_MEMORY;
    kir_frame f;
    frame_open(&f, vm, memory);
    for (int64_t i = 0; i < count; i++) {
        kir_frame_launch(&f, &launches[i], NULL, NULL);
        run_units(&f, 0, f.grid.units);
    }
    if (count == 1) kir_recipe_note(&f, NULL, NULL);
    return TN_OK;
}

tn_status kir_vm_reserve(const kir_vm *vm, const kir_launch *launches, int64_t count) {
    shares s = shares_of(vm, launches, count, tn_threads());
    return thread_memory(s.frames + s.table + s.team) ? TN_OK : TN_ERR_MEMORY;
}

tn_status kir_vm_rehearse(const kir_vm *vm, const kir_launch *launches, int64_t count) {
    int threads = tn_threads();
    shares s = {.frames = vm->thread_bytes};
    if (threads > 1 && guess_cost(vm, launches, count) > worth_a_thread) s = shares_of(vm, launches, count, threads);
    size_t bytes = s.frames + s.table + s.team;
    char *memory = thread_memory(bytes);
    if (!memory) return TN_ERR_MEMORY;
    kir_frame f;
    frame_open(&f, vm, memory);
    for (int64_t i = 0; i < count; i++)
        kir_frame_launch(&f, &launches[i], NULL, NULL);
    return TN_OK;
}

size_t kir_vm_scratch(const kir_vm *vm) { return vm->thread_bytes; }

void kir_vm_run_box(const kir_vm *vm, const kir_launch *launch, const int64_t *lo, const int64_t *hi, void *scratch) {
    if (kir_recipe_run(vm, launch, lo, hi)) return;
    kir_frame f;
    frame_open(&f, vm, scratch);
    kir_frame_launch(&f, launch, lo, hi);
    run_units(&f, 0, f.grid.units);
    kir_recipe_note(&f, lo, hi);
}
