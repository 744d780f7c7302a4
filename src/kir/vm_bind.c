/* vm_bind.c — picks the routine of each step once it is known in which directions every value varies.
 *
 * A routine runs over elements side by side, so operands that vary in fewer directions than the result need care: a
 * single element is handed over as such; otherwise there is a call for each row, or, when rows are short, the operand
 * is spread out first. Joined steps become one routine when there is one for their operands. */
#include "kir/rules.h"
#include "kir/vm.h"

typedef struct binder {
    const kir_frame *f;
    const kir_schedule *s;
    const uint8_t *pattern;
    kir_bind *out;
} binder;

static int bind_kind_of(const binder *m, int v) { return v == KIR_NONE ? 0 : m->out->kinds[v]; }

static int directions(const binder *m) { return m->pattern[3]; }

/* The directions of the points that a step runs over. */
static int region_kind(const binder *m, const kir_step *s) {
    if (s->in_loop || !m->f->vm->has_loop) return directions(m);
    return directions(m) & (m->f->layout == KIR_ALONG ? KIR_OUTER : KIR_INNER);
}

static int access_kind(const binder *m, const kir_step *s) {
    return m->pattern[KIR_PATTERN_HEAD + s->access] & region_kind(m, s);
}

static int result_kind(const binder *m, const kir_step *s) {
    int kind = bind_kind_of(m, s->a) | bind_kind_of(m, s->b) | bind_kind_of(m, s->c) | bind_kind_of(m, s->dyn);
    if (s->op == KIR_LOAD || s->op == KIR_INDEX) return kind | access_kind(m, s);
    if (s->op == KIR_STORE || s->op == KIR_SCAN) return region_kind(m, s);
    if (s->op == KIR_REDUCE) return directions(m) & (m->f->layout == KIR_ALONG ? KIR_OUTER : KIR_INNER);
    return kind;
}

/* How an operation with these operands is called; operands of its own kind or none are given as they are. */
static kir_act plan_call(const binder *m, int kind, const int16_t *values, int n) {
    bool mixed = false;
    for (int k = 0; k < n; k++) {
        int own = bind_kind_of(m, values[k]);
        mixed |= own != 0 && own != kind;
    }
    if (!mixed) return KIR_DO_CALL;
    return m->pattern[2] ? KIR_DO_SPREAD : KIR_DO_ROWS;
}

/* Is the operand one element for the routine? */
static bool is_single(const binder *m, kir_act act, int kind, int v) {
    if (act == KIR_DO_ROWS) return !(bind_kind_of(m, v) & KIR_INNER);
    return act == KIR_DO_CALL && kind != 0 && bind_kind_of(m, v) == 0;
}

static kir_fn *find_binary(const binder *m, const kir_step *s, const bool *single) {
    const kir_simd_table *t = m->f->simd;
    if (single[0] && single[1]) return NULL;
    int shape = single[0] ? KIR_SV : single[1] ? KIR_VS : KIR_VV;
    return t->binary[shape][s->op][s->operand];
}

static kir_fn *find_unary(const binder *m, const kir_step *s) {
    const kir_simd_table *t = m->f->simd;
    if (s->op == KIR_CAST) return t->cast[s->operand][s->type];
    if (s->op == KIR_ROUND) return t->round[s->mode][s->operand];
    return t->unary[s->op][s->operand];
}

/* Where a·b is the same as b·a, the single one comes second. */
static void order_operands(kir_op op, kir_bound *b, bool *single) {
    static const bool EVEN[KIR_OP_COUNT] = {[KIR_FMA] = true, [KIR_ADD] = true, [KIR_MUL] = true, [KIR_AND] = true,
                                            [KIR_OR] = true,  [KIR_XOR] = true, [KIR_EQ] = true};
    if (!EVEN[op] || !single[0] || single[1]) return;
    int16_t swap = b->a;
    b->a = b->b;
    b->b = swap;
    single[0] = false;
    single[1] = true;
}

static kir_fn *find_fn(const binder *m, const kir_step *s, kir_bound *b, bool *single) {
    const kir_simd_table *t = m->f->simd;
    order_operands((kir_op)s->op, b, single);
    int bits = single[0] | single[1] << 1 | single[2] << 2;
    switch (s->op) {
    case KIR_FMA: return t->fma[bits][s->operand];
    case KIR_SELECT: return t->select[bits][kir_log2(kir_type_size((kir_type)s->type))];
    case KIR_PHILOX: return bits > 1 ? NULL : t->philox[bits];
    default: return s->b == KIR_NONE ? find_unary(m, s) : find_binary(m, s, single);
    }
}

static void bind_call(const binder *m, const kir_step *s, kir_bound *b) {
    const int16_t values[3] = {s->a, s->b, s->c};
    bool single[3] = {false, false, false};
    int n = s->c != KIR_NONE ? 3 : s->b != KIR_NONE ? 2 : 1;
    kir_act act = plan_call(m, b->kind, values, n);
    for (int k = 0; k < n; k++)
        single[k] = is_single(m, act, b->kind, values[k]);
    b->fn = find_fn(m, s, b, single);
    if (!b->fn) {
        b->a = s->a;
        b->b = s->b == KIR_NONE ? s->d : s->b;
        b->fn = find_fn(m, s, b, (bool[3]){false, false, false});
        act = KIR_DO_SPREAD;
    }
    b->act = (uint8_t)act;
    b->operands = (uint8_t)n;
}

static const kir_act FIXED_ACTS[KIR_OP_COUNT] = {
    [KIR_LOAD] = KIR_DO_LOAD, [KIR_STORE] = KIR_DO_STORE,   [KIR_INDEX] = KIR_DO_INDEX, [KIR_LOOP] = KIR_DO_LOOP,
    [KIR_END] = KIR_DO_END,   [KIR_REDUCE] = KIR_DO_REDUCE, [KIR_SCAN] = KIR_DO_SCAN,   [KIR_BITCAST] = KIR_DO_RENAME,
};

/* Operands that are absent point to the result: an address that is always good. */
static int16_t present(const kir_step *s, int16_t v) { return v == KIR_NONE && s->d != KIR_NONE ? s->d : v; }

static void bind_step(const binder *m, int i) {
    const kir_step *s = &m->s->steps[i];
    kir_bound *b = &m->out->bound[i];
    *b = (kir_bound){.d = s->d, .step = (int16_t)i, .kind = (uint8_t)result_kind(m, s), .direct = s->direct};
    b->a = present(s, s->a);
    b->b = present(s, s->b);
    b->c = present(s, s->c);
    if (s->d != KIR_NONE) m->out->kinds[s->d] = b->kind;
    if (b->kind != region_kind(m, s)) b->direct = KIR_NONE;
    b->act = (uint8_t)FIXED_ACTS[s->op];
    if (b->act == KIR_DO_NOTHING) bind_call(m, s, b);
}

/* ---- joined steps ------------------------------------------------------------------------------------------------ */

static const int8_t FIRSTS[KIR_OP_COUNT] = {
    [KIR_ADD] = KIR_1_ADD + 1,
    [KIR_SUB] = KIR_1_SUB + 1,
    [KIR_MUL] = KIR_1_MUL + 1,
};
static const int8_t SECONDS[KIR_OP_COUNT][2] = {
    /* with the first result on the left, on the right */
    [KIR_ADD] = {KIR_2_ADD, KIR_2_ADD},  [KIR_SUB] = {KIR_2_SUB, KIR_2_RSUB}, [KIR_MUL] = {KIR_2_MUL, KIR_2_MUL},
    [KIR_DIV] = {KIR_2_DIV, KIR_2_RDIV}, [KIR_MAX] = {KIR_2_MAX, KIR_2_MAX},
};

static bool join_arithmetic(const binder *m, const kir_step *x, const kir_step *y, kir_bound *b) {
    bool left = y->a == x->d;
    int16_t other = left ? y->b : y->a;
    int first = FIRSTS[x->op] - 1, second = SECONDS[y->op][!left];
    const int16_t values[3] = {x->a, x->b, other};
    kir_act act = plan_call(m, b->kind, values, 3);
    if (act == KIR_DO_SPREAD) return false;
    bool single[3];
    for (int k = 0; k < 3; k++)
        single[k] = is_single(m, act, b->kind, values[k]);
    if (single[0] && single[1]) return false;
    b->a = x->a;
    b->b = x->b;
    b->c = other;
    if (single[0]) {
        b->a = x->b;
        b->b = x->a;
        single[1] = true;
        if (first == KIR_1_SUB) first = KIR_1_RSUB;
    }
    b->fn = m->f->simd->fused[first][second][single[1]][single[2]];
    b->act = (uint8_t)act;
    b->operands = 3;
    return b->fn != NULL;
}

static bool join_choice(const binder *m, const kir_step *x, const kir_step *y, kir_bound *b) {
    const int16_t values[4] = {x->a, x->b, y->b, y->c};
    kir_act act = plan_call(m, b->kind, values, 4);
    if (act == KIR_DO_SPREAD) return false;
    bool single[4];
    for (int k = 0; k < 4; k++)
        single[k] = is_single(m, act, b->kind, values[k]);
    if (single[0] && single[1]) return false;
    int shape = single[0] ? KIR_SV : single[1] ? KIR_VS : KIR_VV;
    b->a = x->a;
    b->b = x->b;
    b->c = y->b;
    b->e = y->c;
    b->fn = m->f->simd->choose[x->op - KIR_EQ][shape][single[2]][single[3]];
    b->act = (uint8_t)act;
    b->operands = 4;
    b->choice = true;
    return b->fn != NULL;
}

/* A sum of products over whole rows of the tile. */
static bool join_sum(const binder *m, const kir_step *x, kir_bound *b) {
    bool along = m->f->layout == KIR_ALONG && m->f->whole && bind_kind_of(m, x->a) & bind_kind_of(m, x->b) & KIR_INNER;
    if (!along || bind_kind_of(m, x->a) != directions(m) || bind_kind_of(m, x->b) != directions(m)) return false;
    b->a = x->a;
    b->b = x->b;
    b->fn = m->f->simd->rows_of_products;
    return b->fn != NULL;
}

/* Makes one routine of step i and the next, if there is one; the value between them must fill the result's kind, or it
 * would be computed again and again. */
static void try_join(const binder *m, int i) {
    const kir_step *x = &m->s->steps[i], *y = x + 1;
    kir_bound joined = m->out->bound[i + 1];
    bool sums = y->op == KIR_REDUCE;
    if (!sums && (bind_kind_of(m, x->d) != joined.kind || joined.kind == 0)) return;
    bool done = sums                  ? join_sum(m, x, &joined)
                : x->type == KIR_BOOL ? join_choice(m, x, y, &joined)
                                      : join_arithmetic(m, x, y, &joined);
    if (!done) return;
    m->out->bound[i + 1] = joined;
    m->out->bound[i].act = KIR_DO_NOTHING;
}

/* A load that only moves elements lends or copies memory, so its value is not surely where a store wants it. */
static void mark_in_place(const binder *m) {
    for (int i = 0; i < m->s->n_steps; i++) {
        const kir_bound *b = &m->out->bound[i];
        bool moves = b->act == KIR_DO_LOAD && !m->s->steps[i].converts;
        if (b->direct != KIR_NONE && !moves) m->out->bound[b->direct].in_place = true;
    }
}

void kir_bind_make(const kir_frame *f, const uint8_t *pattern, kir_bind *out) {
    binder m = {.f = f, .s = f->schedule, .pattern = pattern, .out = out};
    for (int v = 0; v < f->vm->n_values; v++)
        out->kinds[v] = 0;
    for (int i = 0; i < m.s->n_steps; i++) {
        bind_step(&m, i);
        if (i > 0 && m.s->steps[i - 1].joins) try_join(&m, i - 1);
    }
    mark_in_place(&m);
    out->straight = kir_bind_is_straight(m.s, out);
}
