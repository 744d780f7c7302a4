/* render_x64.c — machine code for a program: rows, loops and reductions around the segments, and when it is used.
 *
 * Code is made at a launch that is long enough to repay it, or at the second one, for the pattern of strides along the
 * rows that this launch has; it is cached with the program under that pattern. The tile VM runs everything else:
 * programs and launches that are refused here, processors without AVX2, systems without executable memory. */
#include "kir/rules.h"
#include "kir/x64.h"

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

enum { KEY_HEAD = 3, UNIT = 8192, LANES_MOST = KIR_LANES };

struct kir_code {
    x64_fn *fn; /* NULL: there is none for this key */
    size_t bytes;
    uint8_t key[KEY_HEAD + X64_MOST_ACCESS];
};

/* ---- a loop ------------------------------------------------------------------------------------------------------ */

/* Does some element take less than 4 bytes? */
static bool moves_narrow(const x64_segment *s) {
    for (int i = 0; i < s->n; i++) {
        if (s->steps[i].size > 0 && s->steps[i].size < 4) return true;
    }
    return false;
}

/* How often a loop without reductions repeats its body before it looks whether it is over. */
static int copies_of(const x64_build *b, const x64_segment *s) {
    if (s->n_reductions > 0) return KIR_LANES / b->lanes;
    if (!b->evex && moves_narrow(s)) return 1; /* what is left over is slow: let it be little */
    return s->n <= 6 ? 4 : s->n <= 16 ? 2 : 1;
}

static void set_tail(x64_emitter *e) {
    x64_asm *a = e->a;
    kir_x64_move(a, X64_LEFT, X64_END);
    kir_x64_sub(a, X64_LEFT, X64_I);
    kir_x64_set(a, X64_RAX, e->b->lanes);
    kir_x64_compare(a, X64_LEFT, X64_RAX);
    kir_x64_move_if(a, X64_A, X64_LEFT, X64_RAX);
    if (!e->b->evex) {
        static const int32_t ramp[8] = {0, 1, 2, 3, 4, 5, 6, 7};
        kir_x64_op3(e, X64_FROM_R32, 16, e->tail, 0, x64_reg(X64_LEFT));
        kir_x64_op3(e, X64_BCASTI, 32, e->tail, 0, x64_reg(e->tail));
        kir_x64_op3(e, X64_CMPGT, 32, e->tail, e->tail, x64_pool(kir_x64_constant_vector(a, ramp)));
        return;
    }
    kir_x64_set(a, X64_RAX, -1);
    kir_x64_lowest_bits(a, X64_RAX, X64_RAX, X64_LEFT);
    kir_x64_op3(e, X64_KFROM, 16, X64_TAIL_MASK, 0, x64_reg(X64_RAX));
}

/* The bodies for vectors with subnormal elements, outside the loop: where they are entered from and where they
 * return. */
static void emit_careful(x64_emitter *e, const size_t *from, const size_t *back) {
    size_t past = kir_x64_jump(e->a);
    e->careful = true;
    for (int copy = 0; copy < e->copies; copy++) {
        kir_x64_land(e->a, from[copy]);
        kir_x64_segment_body(e, X64_WHOLE, copy);
        kir_x64_jump_back(e->a, back[copy]);
    }
    e->careful = false;
    kir_x64_land(e->a, past);
}

/* The whole stretches of [i, end). */
static void emit_main(x64_emitter *e) {
    x64_asm *a = e->a;
    int stretch = e->copies * e->b->lanes;
    kir_x64_address(a, X64_RCX, x64_at(X64_I, stretch));
    kir_x64_compare(a, X64_RCX, X64_END);
    size_t over = kir_x64_jump_if(a, X64_A), again = a->n, subnormal[LANES_MOST], behind[LANES_MOST];
    bool heeds = kir_x64_heeds_subnormals(e);
    for (int copy = 0; copy < e->copies; copy++) {
        if (heeds) subnormal[copy] = kir_x64_jump_if_subnormal(e, copy);
        kir_x64_segment_body(e, X64_WHOLE, copy);
        behind[copy] = a->n;
    }
    kir_x64_add_imm(a, X64_I, stretch);
    kir_x64_address(a, X64_RCX, x64_at(X64_I, stretch));
    kir_x64_compare(a, X64_RCX, X64_END);
    kir_x64_jump_back_if(a, X64_BE, again);
    if (heeds) emit_careful(e, subnormal, behind);
    kir_x64_land(a, over);
}

/* The remaining elements. With reductions, each copy has its own partial results, so each has its own code. */
static void emit_tail(x64_emitter *e) {
    x64_asm *a = e->a;
    size_t over[LANES_MOST], again = a->n;
    bool turns = e->s->n_reductions == 0;
    int n = turns ? 1 : e->copies;
    for (int copy = 0; copy < n; copy++) {
        kir_x64_compare(a, X64_I, X64_END);
        over[copy] = kir_x64_jump_if(a, X64_AE);
        set_tail(e);
        kir_x64_segment_body(e, X64_TAIL, copy);
        kir_x64_add_imm(a, X64_I, e->b->lanes);
    }
    if (turns) {
        kir_x64_compare(a, X64_I, X64_END);
        kir_x64_jump_back_if(a, X64_B, again);
    }
    for (int copy = 0; copy < n; copy++)
        kir_x64_land(a, over[copy]);
    kir_x64_move(a, X64_I, X64_END);
}

/* ---- reductions -------------------------------------------------------------------------------------------------- */

static x64_rm accumulator(const x64_emitter *e, int reduction, int copy) {
    int place = e->accumulators[reduction][copy];
    return place >= 0 ? x64_reg(place) : kir_x64_slot(-1 - place);
}

static void move_in(x64_emitter *e, int reg, x64_rm from) {
    kir_x64_op3(e, from.memory ? X64_LOADU : X64_MOVE, kir_x64_vector_bytes(e->b), reg, 0, from);
}

static void move_out(x64_emitter *e, x64_rm to, int reg) {
    kir_x64_op3(e, to.memory ? X64_STOREU : X64_MOVE, kir_x64_vector_bytes(e->b), to.memory ? reg : to.reg, 0,
                to.memory ? to : x64_reg(reg));
}

static void clear_accumulators(x64_emitter *e) {
    for (int r = 0; r < e->s->n_reductions; r++) {
        x64_rm identity = kir_x64_place(e, e->s->reductions[r].identity);
        for (int copy = 0; copy < e->copies; copy++) {
            x64_rm to = accumulator(e, r, copy);
            int reg = to.memory ? e->scratch[2] : to.reg;
            if (!to.memory || copy == 0) move_in(e, reg, identity);
            if (to.memory) move_out(e, to, reg);
        }
    }
}

/* Moves the upper half, quarter … of a vector to the lower end of scratch 1. */
static void upper_part(x64_emitter *e, int from, int bytes) {
    int d = e->scratch[1];
    x64_vec v = {.bytes = 16, .reg = d, .rm = x64_reg(from), .imm = bytes == 8 ? 0x4E : 0xB1};
    v.op = X64_SHUFFLE;
    if (bytes >= 16) {
        v.op = bytes == 32 ? X64_HIGH32 : X64_HIGH16;
        v.bytes = 2 * bytes;
        v.reg = from;
        v.rm = x64_reg(d);
        v.imm = 1;
    }
    kir_x64_emit(e->a, &v);
}

/* Folds the lanes of a block by halves and combines the result with those of earlier blocks. */
static void emit_fold(x64_emitter *e, int number) {
    const x64_reduction *r = &e->s->reductions[number];
    int acc = e->scratch[2], width = e->b->values[r->result].width;
    for (int half = e->copies / 2; half > 0; half /= 2) {
        for (int copy = 0; copy < half; copy++) {
            x64_rm lower = accumulator(e, number, copy);
            int reg = lower.memory ? acc : lower.reg;
            if (lower.memory) move_in(e, reg, lower);
            kir_x64_combine(e, r, reg, accumulator(e, number, copy + half), false);
            if (lower.memory) move_out(e, lower, reg);
        }
    }
    move_in(e, acc, accumulator(e, number, 0));
    for (int half = e->b->lanes / 2; half > 0; half /= 2) {
        upper_part(e, acc, half * width);
        kir_x64_combine(e, r, acc, x64_reg(e->scratch[1]), false);
    }
    kir_x64_op3(e, width == 8 ? X64_BCAST8 : X64_BCASTI, kir_x64_vector_bytes(e->b), acc, 0, x64_reg(acc));
    x64_rm result = kir_x64_slot(e->b->values[r->result].slot), block = kir_x64_slot(X64_SCRATCH_SLOT);
    kir_x64_compare_imm(e->a, X64_I, KIR_BLOCK);
    size_t first = kir_x64_jump_if(e->a, X64_BE);
    move_out(e, block, acc);
    move_in(e, acc, result);
    kir_x64_combine(e, r, acc, block, false);
    kir_x64_land(e->a, first);
    move_out(e, result, acc);
}

/* Block by block. */
static void emit_reducing(x64_emitter *e, x64_rm count) {
    x64_asm *a = e->a;
    size_t again = a->n;
    kir_x64_address(a, X64_END, x64_at(X64_I, KIR_BLOCK));
    kir_x64_load(a, X64_RAX, count);
    kir_x64_compare(a, X64_END, X64_RAX);
    kir_x64_move_if(a, X64_A, X64_END, X64_RAX);
    clear_accumulators(e);
    emit_main(e);
    emit_tail(e);
    for (int r = 0; r < e->s->n_reductions; r++)
        emit_fold(e, r);
    kir_x64_load(a, X64_RAX, count);
    kir_x64_compare(a, X64_I, X64_RAX);
    kir_x64_jump_back_if(a, X64_B, again);
}

static void emit_loop(x64_emitter *e, int segment) {
    x64_rm count = x64_at(X64_ARGS, (int32_t)offsetof(x64_args, n));
    const x64_segment *s = &e->b->segments[segment];
    int copies = copies_of(e->b, s);
    if (s->n * copies > X64_MOST_BODY) kir_x64_refuse(e->b, "a long loop");
    if (e->b->refusal || s->n == 0) return;
    kir_x64_segment_begin(e, segment, copies);
    kir_x64_set(e->a, X64_I, 0);
    if (s->n_reductions > 0) {
        emit_reducing(e, count);
        return;
    }
    kir_x64_load(e->a, X64_END, count);
    emit_main(e);
    emit_tail(e);
}

/* ---- a function -------------------------------------------------------------------------------------------------- */

static x64_rm field(size_t array, int access) {
    return x64_at(X64_ARGS, (int32_t)(array + (size_t)access * sizeof(int64_t)));
}

/* The first accesses have their addresses in registers that calls preserve. */
static void load_pointers(x64_emitter *e) {
    static const uint8_t registers[X64_POINTERS] = {X64_RBX, X64_R12, X64_R13, X64_R14, X64_R15};
    for (int i = 0, n = 0; i < e->b->p->n_access; i++) {
        bool has_one = e->b->p->access[i].buffer >= 0 && n < X64_POINTERS;
        e->pointer[i] = has_one ? registers[n++] : -1;
        if (has_one) kir_x64_load(e->a, e->pointer[i], field(offsetof(x64_args, at), i));
    }
}

static void next_row(x64_emitter *e) {
    x64_asm *a = e->a;
    for (int i = 0; i < e->b->p->n_access; i++) {
        kir_x64_load(a, X64_RAX, field(offsetof(x64_args, row_step), i));
        kir_x64_load(a, X64_RCX, field(offsetof(x64_args, at), i));
        kir_x64_add(a, X64_RCX, X64_RAX);
        kir_x64_store(a, field(offsetof(x64_args, at), i), X64_RCX);
    }
}

static void emit_rows(x64_emitter *e) {
    x64_asm *a = e->a;
    x64_rm rows = x64_at(X64_ARGS, (int32_t)offsetof(x64_args, rows));
    size_t again = a->n;
    load_pointers(e);
    for (int i = 0; i < e->b->n_segments; i++) {
        if (e->b->segments[i].loop) {
            emit_loop(e, i);
            continue;
        }
        kir_x64_segment_begin(e, i, 1);
        kir_x64_segment_body(e, X64_ROW, 0);
    }
    kir_x64_load(a, X64_RAX, rows);
    kir_x64_add_imm(a, X64_RAX, -1);
    kir_x64_store(a, rows, X64_RAX);
    kir_x64_compare_imm(a, X64_RAX, 0);
    size_t over = kir_x64_jump_if(a, X64_E);
    next_row(e);
    kir_x64_jump_back(a, again);
    kir_x64_land(a, over);
}

/* Saves the registers that belong to the caller, makes room for the slots; their number is known at the end. */
static size_t emit_entry(x64_asm *a) {
    kir_x64_bytes(a, "\x55\x48\x89\xE5\x53\x41\x54\x41\x55\x41\x56\x41\x57", 13); /* push rbp … r15 */
    kir_x64_bytes(a, "\x48\x81\xEC\0\0\0\0", 7);                                  /* sub rsp, size */
    size_t size = a->n - 4;
    kir_x64_bytes(a, "\x48\x83\xE4\xC0", 4); /* and rsp, -64 */
    return size;
}

static void emit_exit(x64_asm *a, size_t size_at, int slots, bool streams) {
    int32_t size = slots * 64;
    if (streams) kir_x64_bytes(a, "\x0F\xAE\xF8", 3); /* sfence: orders later stores after these */
    kir_x64_bytes(a, "\x48\x8D\x65\xD8\x41\x5F\x41\x5E\x41\x5D\x41\x5C\x5B\x5D", 14); /* pop r15 … rbp */
    kir_x64_bytes(a, "\xC5\xF8\x77\xC3", 4);                                          /* vzeroupper; ret */
    if (!a->failed) memcpy(a->bytes + size_at, &size, sizeof size);
}

static void render(x64_build *b) {
    kir_x64_lower(b);
    x64_emitter e;
    if (b->refusal) return;
    if (kir_x64_emitter_open(&e, b) != TN_OK) {
        kir_x64_lack_memory(b);
        return;
    }
    size_t size = emit_entry(b->a);
    emit_rows(&e);
    emit_exit(b->a, size, b->n_slots, b->streams);
    kir_x64_emitter_close(&e);
}

/* ---- making it --------------------------------------------------------------------------------------------------- */

static _Atomic(bool) refuses_memory;
static _Atomic(int64_t) made, bytes_made;
static _Atomic(const char *) state;

void kir_code_refuse_memory(bool yes) { atomic_store(&refuses_memory, yes); }

int64_t kir_code_made(void) { return atomic_load(&made); }

static int segments_of(const kir_program *p) {
    int n = 2;
    for (int i = 0; i < p->n_ins; i++)
        n += p->ins[i].op == KIR_LOOP || p->ins[i].op == KIR_END;
    return n;
}

/* Lanes in a whole vector of the widest type that the program has. */
static int lanes_of(const kir_program *p, bool evex) {
    for (int i = 0; i < p->n_ins; i++) {
        if (kir_yields((kir_op)p->ins[i].op) && kir_type_size((kir_type)p->ins[i].type) == 8) return 8;
    }
    return evex ? 16 : 8;
}

static void close_build(x64_build *b) {
    for (int i = 0; b->segments && i < b->n_segments; i++)
        tn_mem_free(b->segments[i].steps);
    tn_mem_free(b->segments);
    tn_mem_free(b->values);
    tn_mem_free(b->value_of);
}

/* Said once; the VM does the work. */
static void note_refusal(void) {
    static const char *const why = "the system refuses executable memory";
    if (atomic_exchange(&state, why) == NULL) {
        tn_log_line(TN_LOG_NOTICE, "cpu: %s: kernels run without machine code, which is slower", why);
    }
}

static tn_status build_code(const kir_program *p, kir_layout layout, bool evex, kir_code *out) {
    x64_asm a = {.vector = evex ? 64 : 32, .evex = evex};
    x64_build b = {.a = &a,
                   .p = p,
                   .classes = out->key + KEY_HEAD,
                   .layout = layout,
                   .lanes = lanes_of(p, evex),
                   .evex = evex,
                   .streams = out->key[2] & 1,
                   .revises = out->key[2] >> 1,
                   .n_segments = segments_of(p),
                   .n_slots = 1};
    memset(b.constant_of, 0xff, sizeof b.constant_of);
    b.segments = tn_mem_zalloc((size_t)b.n_segments, sizeof *b.segments);
    b.value_of = tn_mem_zalloc((size_t)p->n_ins + 1, sizeof *b.value_of);
    tn_status status = b.segments && b.value_of ? TN_OK : TN_ERR_MEMORY;
    if (status == TN_OK) render(&b);
    void *code = NULL;
    if (status == TN_OK) {
        status = b.no_memory ? TN_ERR_MEMORY
                 : b.refusal ? TN_ERR_UNSUPPORTED
                             : kir_x64_asm_finish(&a, atomic_load(&refuses_memory), &code, &out->bytes);
        if (!b.refusal && status == TN_ERR_UNSUPPORTED) note_refusal();
    }
    _Static_assert(sizeof code == sizeof out->fn, "addresses have one size");
    memcpy(&out->fn, &code, sizeof code);
    close_build(&b);
    kir_x64_asm_free(&a);
    return status;
}

/* Code for the key, or a note that there is none. NULL without memory. */
static kir_code *make_code(const kir_vm *vm, kir_layout layout, const uint8_t *key, size_t n_key) {
    enum { MOST_BYTES = 1 << 28 }; /* of all programs */
    kir_code *code = tn_mem_zalloc(1, sizeof *code);
    if (!code) return NULL;
    memcpy(code->key, key, n_key);
    bool evex = key[0] == TN_ISA_AVX512;
    if (kir_x64_refusal_of(vm->source, evex) || atomic_load(&bytes_made) > MOST_BYTES) return code;
    tn_status status = build_code(vm->source, layout, evex, code);
    if (status == TN_ERR_MEMORY) {
        tn_mem_free(code);
        return NULL;
    }
    if (status != TN_OK) return code;
    atomic_store(&state, NULL);
    atomic_fetch_add(&made, 1);
    atomic_fetch_add(&bytes_made, (int64_t)code->bytes);
    return code;
}

static void free_code(kir_code *code) {
    if (!code) return;
    void *address;
    memcpy(&address, &code->fn, sizeof address);
    if (address) atomic_fetch_sub(&bytes_made, (int64_t)code->bytes);
    kir_x64_code_free(address, code->bytes);
    tn_mem_free(code);
}

tn_status kir_code_prepare(kir_vm *vm, const kir_program *p) {
    if (kir_x64_refusal_of(p, true)) return TN_OK;
    size_t ins = (size_t)p->n_ins * sizeof *p->ins, access = (size_t)p->n_access * sizeof *p->access;
    char *block = tn_mem_alloc(sizeof *p + ins + access);
    if (!block) return TN_ERR_MEMORY;
    kir_program *copy = (kir_program *)(void *)block;
    *copy = *p;
    copy->ins = (kir_ins *)(void *)(block + sizeof *p);
    copy->access = (kir_access *)(void *)(block + sizeof *p + ins);
    memcpy(copy->ins, p->ins, ins);
    memcpy(copy->access, p->access, access);
    vm->source = copy;
    return TN_OK;
}

void kir_code_release(kir_vm *vm) {
    for (int i = 0; i < KIR_BINDS; i++)
        free_code(atomic_load_explicit(&vm->codes[i], memory_order_relaxed));
}

/* ---- choosing it ------------------------------------------------------------------------------------------------- */

static _Atomic(int) use; /* 0: not decided, 1: on, 2: off */
static _Atomic(int64_t) worth_picoseconds = 30 * 1000 * 1000;

void kir_code_use(bool on) {
    atomic_store(&use, on ? 1 : 2);
    atomic_store(&kir_vm_choices, (atomic_load(&kir_vm_choices) & ~3) | (on ? 1 : 2));
}

void kir_code_worth(double nanoseconds) { atomic_store(&worth_picoseconds, (int64_t)(nanoseconds * 1e3)); }

bool kir_code_is_on(void) {
    int now = atomic_load_explicit(&use, memory_order_relaxed);
    if (now == 0) {
        const char *wish = tn_env("TRUNNION_JIT");
        now = wish && strcmp(wish, "0") == 0 ? 2 : 1;
        atomic_store(&use, now);
    }
    return now == 1;
}

const char *kir_code_state(void) {
    const char *why = atomic_load(&state);
    if (!kir_code_is_on()) return "turned off";
#if defined(__x86_64__)
    if (tn_cpu().isa < TN_ISA_AVX2) return "the processor has no AVX2";
#else
    if (!why) return "no code for this processor";
#endif
    return why ? why : "on";
}

static int64_t inner_stride(const kir_frame *f, int access) {
    if (f->inner_space.n == 0) return 0;
    return f->strides[(size_t)access * (size_t)f->stride_width + (size_t)f->stride_width - 1];
}

/* Results too large for the caches are stored non-temporally; otherwise each of their lines would be fetched from
 * memory before it is overwritten. All must cover whole lines and not overlap what is read. */
static bool streams(const kir_frame *f) {
    enum { LINE = 64, LEAST_BYTES = 32 << 20 };
    int64_t bytes = 0, total = f->inner_space.total * f->outer_space.total;
    if (f->layout != KIR_POINTS || total < LEAST_BYTES / (int)sizeof(kir_value)) return false;
    for (int i = 0; i < f->vm->source->n_ins; i++) {
        const kir_ins *in = &f->vm->source->ins[i];
        if (in->op != KIR_STORE) continue;
        const kir_view *to = &f->views[in->imm.i];
        const int64_t *strides = f->strides + in->imm.i * f->stride_width;
        int64_t at = (int64_t)(uintptr_t)to->origin, size = (int64_t)to->size;
        for (int k = 0; k <= f->outer_space.n; k++)
            at |= strides[k] * size;
        for (int k = 0; k < f->vm->n_access; k++)
            if (k != in->imm.i && f->vm->buffer_of[k] >= 0 && f->views[k].origin == to->origin) return false;
        if (at % LINE != 0) return false;
        bytes += total * size;
    }
    return bytes >= LEAST_BYTES;
}

/* Whether two results overwrite operands, as an optimizer's running mean and weight do. */
static bool revises(const kir_frame *f) {
    const kir_program *p = f->vm->source;
    int over = 0;
    for (int i = 0; i < p->n_ins; i++) {
        if (p->ins[i].op != KIR_STORE) continue;
        const char *to = f->views[p->ins[i].imm.i].origin;
        bool read = false;
        for (int k = 0; k < i && !read; k++)
            read = p->ins[k].op == KIR_LOAD && f->views[p->ins[k].imm.i].origin == to;
        over += read;
    }
    return over >= 2;
}

static size_t make_key(const kir_frame *f, uint8_t *key) {
    key[0] = (uint8_t)f->isa;
    key[1] = (uint8_t)f->layout;
    key[2] = (uint8_t)(streams(f) | (f->isa == TN_ISA_AVX512 && revises(f)) << 1);
    for (int i = 0; i < f->vm->n_access; i++) {
        int64_t stride = inner_stride(f, i);
        key[KEY_HEAD + i] = stride == 0 ? X64_SAME : stride == 1 ? X64_NEXT : X64_FAR;
    }
    return (size_t)(KEY_HEAD + f->vm->n_access);
}

/* Whether rows come in short runs, so that a tile has many. Then the VM moves its values in pieces: with rows of 2 to 8
 * points that takes 1.3 times as long as code at 16 rows per run, 4 times at 4. */
static bool in_short_runs(const kir_frame *f) {
    enum { SHORT_RUN = 32 };
    int n = f->outer_space.n;
    return f->layout == KIR_POINTS && n > 1 && f->outer_space.extent[n - 1] < SHORT_RUN;
}

/* Launches that the VM's routines do better: tiles that transpose memory, strided elements of a row, rows of a few
 * cheap elements, long loops that threads share in blocks. */
static bool suits(const kir_frame *f) {
    enum { SHORT_ROW = 12, MANY_ROWS = 64 };
    static const double DEAR_POINT = 1; /* ns: what varies from row to row costs the VM a few times as much */
    if (f->isa < TN_ISA_AVX2 || f->layout == KIR_ACROSS || f->inner_space.n > 1 || f->inner_space.total < 1)
        return false;
    if (f->layout == KIR_POINTS && f->square) return false;
    for (int i = 0; i < f->vm->n_access; i++) {
        int64_t stride = inner_stride(f, i);
        if (f->vm->buffer_of[i] >= 0 && stride != 0 && stride != 1) return false;
    }
    bool dear = f->layout == KIR_POINTS && f->vm->point_cost >= DEAR_POINT;
    bool cheap = f->inner_space.total < SHORT_ROW && f->outer_space.total >= MANY_ROWS && !dear;
    if (cheap && !in_short_runs(f)) return false;
    bool shared = f->vm->in_blocks && f->inner_space.total >= 2 * KIR_BLOCK && f->outer_space.total < tn_threads();
    return f->layout == KIR_POINTS || !shared;
}

static bool is_worth_making(const kir_frame *f, kir_vm *vm) {
    if (f->cost * 1e3 >= (double)atomic_load(&worth_picoseconds)) return true;
    return atomic_fetch_add_explicit(&vm->launches, 1, memory_order_relaxed) > 0;
}

/* Threads that make the same code at a time both succeed; one is thrown away. */
static const kir_code *find_code(const kir_frame *f) {
    uint8_t key[KEY_HEAD + X64_MOST_ACCESS];
    size_t n = make_key(f, key);
    kir_vm *vm = (kir_vm *)(uintptr_t)f->vm; /* only its cache changes */
    for (int i = 0; i < KIR_BINDS; i++) {
        kir_code *old = atomic_load_explicit(&vm->codes[i], memory_order_acquire);
        if (old) {
            if (memcmp(old->key, key, n) == 0) return old;
            continue;
        }
        if (!is_worth_making(f, vm)) return NULL;
        kir_code *code = make_code(vm, f->layout, key, n);
        if (!code) return NULL;
        if (atomic_compare_exchange_strong(&vm->codes[i], &old, code)) return code;
        free_code(code);
        i--; /* someone else's is there now: look at it */
    }
    return NULL;
}

bool kir_code_choose(kir_frame *f) {
    if (f->code_given ? !f->given : !suits(f) || !kir_code_is_on()) return false;
    const kir_code *code = f->code_given ? f->given : find_code(f);
    if (!code || !code->fn) return false;
    f->code = code;
    int64_t length = f->inner_space.total;
    if (length * f->outer_space.total <= UNIT) { /* in one go, without divisions */
        f->inner_step = length;
        f->outer_step = f->outer_space.total;
        f->inner_pieces = f->units = 1;
        return true;
    }
    f->inner_step = f->layout == KIR_POINTS ? kir_piece_of(length, UNIT) : length;
    f->inner_pieces = tn_ceil_div(length, f->inner_step);
    f->outer_step = tn_max64(UNIT / length, 1);
    f->units = f->inner_pieces * tn_ceil_div(f->outer_space.total, f->outer_step);
    return true;
}

/* ---- running it -------------------------------------------------------------------------------------------------- */

/* Where row number `row` begins along each outer axis. */
static void find_row(const kir_space *s, int64_t row, int64_t *at) {
    for (int k = s->n - 1; k > 0; k--) {
        at[k] = row == 0 ? 0 : row % s->extent[k];
        row = row == 0 ? 0 : row / s->extent[k];
    }
    at[0] = row;
}

static void set_access(const kir_frame *f, x64_args *args, int access, const int64_t *at, int64_t column) {
    const int64_t *strides = f->strides + (size_t)access * (size_t)f->stride_width;
    int n = f->outer_space.n;
    int64_t index = strides[0], step = inner_stride(f, access), size = 1;
    for (int k = 0; k < n; k++)
        index += at[k] * strides[1 + k];
    index += column * step;
    int64_t row_step = n > 0 ? strides[n] : 0;
    if (f->vm->buffer_of[access] >= 0) size = f->views[access].size;
    args->at[access] = (int64_t)((uint64_t)index * (uint64_t)size + (uint64_t)(uintptr_t)f->views[access].origin);
    args->step[access] = step * size;
    args->row_step[access] = row_step * size;
}

/* `at`: of the first row along the outer axes. */
static void set_args(const kir_frame *f, x64_args *args, const int64_t *at, int64_t rows, int64_t column) {
    args->scalars = f->scalars;
    args->n = tn_min64(f->inner_step, f->inner_space.total - column);
    args->rows = rows;
    for (int i = 0; i < f->vm->n_access; i++)
        set_access(f, args, i, at, column);
}

x64_fn *kir_code_fn(const kir_code *code) { return code->fn; }

void kir_code_args(const kir_frame *f, x64_args *args) {
    const int64_t at[KIR_MAX_AXES] = {0};
    set_args(f, args, at, f->outer_space.total, 0);
}

void kir_code_run(const kir_frame *f, int64_t unit) {
    const kir_space *s = &f->outer_space;
    int64_t row = 0, column = 0;
    if (f->units > 1) {
        row = unit / f->inner_pieces * f->outer_step;
        column = unit % f->inner_pieces * f->inner_step;
    }
    int64_t end = tn_min64(row + f->outer_step, s->total);
    int64_t at[KIR_MAX_AXES];
    x64_args args; /* with the program's accesses set */
    while (row < end) {
        find_row(s, row, at);
        int64_t run = s->n > 0 ? tn_min64(end - row, s->extent[s->n - 1] - at[s->n - 1]) : 1;
        set_args(f, &args, at, run, column);
        f->code->fn(&args);
        row += run;
    }
}
