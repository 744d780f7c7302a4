/* machine_code.c — machine code for a program: rows, loops and reductions around the segments, and when it is used.
 *
 * Code is made at a launch that is long enough to repay it, or at the second one, for the pattern of strides along the
 * rows that this launch has; it is cached with the program under that pattern. The tile VM runs everything else:
 * programs and launches that are refused here, x86-64 processors without AVX2, systems without executable memory. */
#include "kir/machine_code.h"
#include "kir/rules.h"

#if defined(__x86_64__) || defined(__aarch64__)
#define MC_ENCODES 1
#include <pthread.h>
#include <sys/mman.h>
#else
#define MC_ENCODES 0
#endif
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

/* ==== code and constants being collected ========================================================================== */

void kir_mc_put(mc_asm *a, uint32_t value, int bytes) {
    if (a->failed || tn_mem_reserve(&a->bytes, &a->room, a->n + 4, 1) != TN_OK) {
        a->failed = true;
        return;
    }
    for (int k = 0; k < bytes; k++)
        a->bytes[a->n++] = (uint8_t)(value >> 8 * k);
}

void kir_mc_refer(mc_asm *a, int32_t pool, int behind) {
    if (a->failed || tn_mem_reserve(&a->fixups, &a->fixup_room, a->n_fixups + 1, sizeof *a->fixups) != TN_OK) {
        a->failed = true;
        return;
    }
    a->fixups[a->n_fixups++] = (mc_fixup){a->n, a->n + (size_t)behind, pool};
}

int kir_mc_constant_vector(mc_asm *a, const void *vector) {
    size_t size = (size_t)a->vector;
    for (int i = 0; i < a->n_pool; i++)
        if (memcmp(a->pool + (size_t)i * size, vector, size) == 0) return i;
    if (a->failed || tn_mem_reserve(&a->pool, &a->pool_room, ((size_t)a->n_pool + 1) * size, 1) != TN_OK) {
        a->failed = true;
        return 0;
    }
    memcpy(a->pool + (size_t)a->n_pool * size, vector, size);
    return a->n_pool++;
}

int kir_mc_constant(mc_asm *a, const void *element, int width) {
    char vector[64];
    for (int at = 0; at < a->vector; at += width)
        memcpy(vector + at, element, (size_t)width);
    return kir_mc_constant_vector(a, vector);
}

static void asm_free(mc_asm *a) {
    tn_mem_free_each(a->bytes, a->pool, a->fixups);
    *a = (mc_asm){.n = 0};
}

/* ==== rows and loops ============================================================================================== */

enum { KEY_HEAD = 3, UNIT = 8192, LANES_MOST = KIR_LANES };

struct kir_code {
    mc_fn *fn; /* NULL: there is none for this key */
    size_t bytes;
    uint8_t key[KEY_HEAD + MC_MOST_ACCESS];
};

/* ---- a loop ------------------------------------------------------------------------------------------------------ */

/* Does some element take less than 4 bytes? */
static bool moves_narrow(const mc_segment *s) {
    for (int i = 0; i < s->n; i++)
        if (s->steps[i].size > 0 && s->steps[i].size < 4) return true;
    return false;
}

/* How often a loop without reductions repeats its body before it looks whether it is over. */
static int copies_of(const mc_build *b, const mc_segment *s) {
    if (s->n_reductions > 0) return KIR_LANES / b->lanes;
    if (!b->evex && moves_narrow(s)) return 1; /* what is left over is slow: let it be little */
    return s->n <= 6 ? 4 : s->n <= 16 ? 2 : 1;
}

static void set_tail(mc_emitter *e) {
    mc_asm *a = e->a;
    kir_mc_move(a, MC_LEFT, MC_END);
    kir_mc_sub(a, MC_LEFT, MC_I);
    kir_mc_set(a, MC_TEMP, e->b->lanes);
    kir_mc_compare(a, MC_LEFT, MC_TEMP);
    kir_mc_move_if(a, MC_A, MC_LEFT, MC_TEMP);
    if (!e->b->evex) {
        static const int32_t ramp[8] = {0, 1, 2, 3, 4, 5, 6, 7};
        kir_mc_op3(e, MC_FROM_R32, 16, e->tail, 0, mc_reg(MC_LEFT));
        kir_mc_op3(e, MC_BCASTI, 32, e->tail, 0, mc_reg(e->tail));
        kir_mc_op3(e, MC_CMPGT, 32, e->tail, e->tail, mc_pool(kir_mc_constant_vector(a, ramp)));
        return;
    }
    kir_mc_set(a, MC_TEMP, -1);
    kir_mc_lowest_bits(a, MC_TEMP, MC_TEMP, MC_LEFT);
    kir_mc_op3(e, MC_KFROM, 16, MC_TAIL_MASK, 0, mc_reg(MC_TEMP));
}

/* The bodies for vectors with subnormal elements, outside the loop: where they are entered from and where they
 * return. */
static void emit_careful(mc_emitter *e, const size_t *from, const size_t *back) {
    size_t past = kir_mc_jump(e->a);
    e->careful = true;
    for (int copy = 0; copy < e->copies; copy++) {
        kir_mc_land(e->a, from[copy]);
        kir_mc_segment_body(e, MC_WHOLE, copy);
        kir_mc_jump_back(e->a, back[copy]);
    }
    e->careful = false;
    kir_mc_land(e->a, past);
}

/* The whole stretches of [i, end). */
static void emit_main(mc_emitter *e) {
    mc_asm *a = e->a;
    int stretch = e->copies * e->b->lanes;
    kir_mc_address(a, MC_COUNT, mc_at(MC_I, stretch));
    kir_mc_compare(a, MC_COUNT, MC_END);
    size_t over = kir_mc_jump_if(a, MC_A), again = a->n, subnormal[LANES_MOST], behind[LANES_MOST];
    bool heeds = kir_mc_heeds_subnormals(e);
    for (int copy = 0; copy < e->copies; copy++) {
        if (heeds) subnormal[copy] = kir_mc_jump_if_subnormal(e, copy);
        kir_mc_segment_body(e, MC_WHOLE, copy);
        behind[copy] = a->n;
    }
    kir_mc_add_imm(a, MC_I, stretch);
    kir_mc_address(a, MC_COUNT, mc_at(MC_I, stretch));
    kir_mc_compare(a, MC_COUNT, MC_END);
    kir_mc_jump_back_if(a, MC_BE, again);
    if (heeds) emit_careful(e, subnormal, behind);
    kir_mc_land(a, over);
}

/* ARM64, at the begin of a tail: a vector whose lanes all exist has a body of its own, because the lanes of others are
 * moved one by one. Returns the jump to what follows the tail's body. */
static size_t emit_single(mc_emitter *e, int copy, size_t again) {
    mc_asm *a = e->a;
    kir_mc_move(a, MC_LEFT, MC_END);
    kir_mc_sub(a, MC_LEFT, MC_I);
    kir_mc_compare_imm(a, MC_LEFT, e->b->lanes);
    size_t partial = kir_mc_jump_if(a, MC_B), done = 0;
    kir_mc_segment_body(e, MC_SINGLE, copy);
    kir_mc_add_imm(a, MC_I, e->b->lanes);
    if (again)
        kir_mc_jump_back(a, again);
    else
        done = kir_mc_jump(a);
    kir_mc_land(a, partial);
    return done;
}

/* The remaining elements. With reductions, each copy has its own partial results, so each has its own code. */
static void emit_tail(mc_emitter *e) {
    mc_asm *a = e->a;
    size_t over[LANES_MOST], again = a->n;
    bool turns = e->s->n_reductions == 0;
    int n = turns ? 1 : e->copies;
    for (int copy = 0; copy < n; copy++) {
        kir_mc_compare(a, MC_I, MC_END);
        over[copy] = kir_mc_jump_if(a, MC_AE);
        bool single = MC_NEON && (e->copies > 1 || !turns);
        size_t done = single ? emit_single(e, copy, turns ? again : 0) : 0;
        set_tail(e);
        kir_mc_segment_body(e, MC_TAIL, copy);
        kir_mc_add_imm(a, MC_I, e->b->lanes);
        if (done) kir_mc_land(a, done);
    }
    if (turns) {
        kir_mc_compare(a, MC_I, MC_END);
        kir_mc_jump_back_if(a, MC_B, again);
    }
    for (int copy = 0; copy < n; copy++)
        kir_mc_land(a, over[copy]);
    kir_mc_move(a, MC_I, MC_END);
}

/* ---- reductions -------------------------------------------------------------------------------------------------- */

static mc_rm accumulator(const mc_emitter *e, int reduction, int copy) {
    int place = e->accumulators[reduction][copy];
    return place >= 0 ? mc_reg(place) : kir_mc_slot(-1 - place);
}

static void move_in(mc_emitter *e, int reg, mc_rm from) {
    kir_mc_op3(e, from.memory ? MC_LOADU : MC_MOVE, kir_mc_vector_bytes(e->b), reg, 0, from);
}

static void move_out(mc_emitter *e, mc_rm to, int reg) {
    kir_mc_op3(e, to.memory ? MC_STOREU : MC_MOVE, kir_mc_vector_bytes(e->b), to.memory ? reg : to.reg, 0,
               to.memory ? to : mc_reg(reg));
}

static void clear_accumulators(mc_emitter *e) {
    for (int r = 0; r < e->s->n_reductions; r++) {
        mc_rm identity = kir_mc_place(e, e->s->reductions[r].identity);
        for (int copy = 0; copy < e->copies; copy++) {
            mc_rm to = accumulator(e, r, copy);
            int reg = to.memory ? e->scratch[2] : to.reg;
            if (!to.memory || copy == 0) move_in(e, reg, identity);
            if (to.memory) move_out(e, to, reg);
        }
    }
}

/* Moves the upper half, quarter … of a vector to the lower end of scratch 1. */
static void upper_part(mc_emitter *e, int from, int bytes) {
    int d = e->scratch[1];
    mc_vec v = {.bytes = 16, .reg = d, .rm = mc_reg(from), .imm = bytes == 8 ? 0x4E : 0xB1};
    v.op = MC_SHUFFLE;
    if (bytes >= 16) {
        v.op = bytes == 32 ? MC_HIGH32 : MC_HIGH16;
        v.bytes = 2 * bytes;
        v.reg = from;
        v.rm = mc_reg(d);
        v.imm = 1;
    }
    kir_mc_emit(e->a, &v);
}

/* Folds the lanes of a block by halves and combines the result with those of earlier blocks. */
static void emit_fold(mc_emitter *e, int number) {
    const mc_reduction *r = &e->s->reductions[number];
    int acc = e->scratch[2], width = e->b->values[r->result].width;
    for (int half = e->copies / 2; half > 0; half /= 2) {
        for (int copy = 0; copy < half; copy++) {
            mc_rm lower = accumulator(e, number, copy);
            int reg = lower.memory ? acc : lower.reg;
            if (lower.memory) move_in(e, reg, lower);
            kir_mc_combine(e, r, reg, accumulator(e, number, copy + half), false);
            if (lower.memory) move_out(e, lower, reg);
        }
    }
    move_in(e, acc, accumulator(e, number, 0));
    for (int half = e->b->lanes / 2; half > 0; half /= 2) {
        upper_part(e, acc, half * width);
        kir_mc_combine(e, r, acc, mc_reg(e->scratch[1]), false);
    }
    kir_mc_op3(e, width == 8 ? MC_BCAST8 : MC_BCASTI, kir_mc_vector_bytes(e->b), acc, 0, mc_reg(acc));
    mc_rm result = kir_mc_slot(e->b->values[r->result].slot), block = kir_mc_slot(MC_SCRATCH_SLOT);
    kir_mc_compare_imm(e->a, MC_I, KIR_BLOCK);
    size_t first = kir_mc_jump_if(e->a, MC_BE);
    move_out(e, block, acc);
    move_in(e, acc, result);
    kir_mc_combine(e, r, acc, block, false);
    kir_mc_land(e->a, first);
    move_out(e, result, acc);
}

/* Block by block. */
static void emit_reducing(mc_emitter *e, mc_rm count) {
    mc_asm *a = e->a;
    size_t again = a->n;
    kir_mc_address(a, MC_END, mc_at(MC_I, KIR_BLOCK));
    kir_mc_load(a, MC_TEMP, count);
    kir_mc_compare(a, MC_END, MC_TEMP);
    kir_mc_move_if(a, MC_A, MC_END, MC_TEMP);
    clear_accumulators(e);
    emit_main(e);
    emit_tail(e);
    for (int r = 0; r < e->s->n_reductions; r++)
        emit_fold(e, r);
    kir_mc_load(a, MC_TEMP, count);
    kir_mc_compare(a, MC_I, MC_TEMP);
    kir_mc_jump_back_if(a, MC_B, again);
}

static void emit_loop(mc_emitter *e, int segment) {
    mc_rm count = mc_at(MC_ARGS, (int32_t)offsetof(mc_args, n));
    const mc_segment *s = &e->b->segments[segment];
    int copies = copies_of(e->b, s);
    if (s->n * copies > MC_MOST_BODY) kir_mc_refuse(e->b, "a long loop");
    if (e->b->refusal || s->n == 0) return;
    kir_mc_segment_begin(e, segment, copies);
    kir_mc_set(e->a, MC_I, 0);
    if (s->n_reductions > 0) {
        emit_reducing(e, count);
        return;
    }
    kir_mc_load(e->a, MC_END, count);
    emit_main(e);
    emit_tail(e);
}

/* ---- a function -------------------------------------------------------------------------------------------------- */

static mc_rm field(size_t array, int access) {
    return mc_at(MC_ARGS, (int32_t)(array + (size_t)access * sizeof(int64_t)));
}

/* Which accesses a segment uses, and with which step it does so last. */
static void find_last_uses(mc_emitter *e, const mc_segment *s) {
    memset(e->last_use, 0xff, sizeof e->last_use);
    for (int i = 0; i < s->n; i++) {
        mc_what what = (mc_what)s->steps[i].what;
        if (what == MC_LOAD || what == MC_STORE || what == MC_INDEX) e->last_use[s->steps[i].access] = (int16_t)i;
    }
}

/* The first accesses have their addresses in registers: x86-64, those of a row's first elements; ARM64, a segment's
 * accesses, which move along the row. */
static void load_pointers(mc_emitter *e, const mc_segment *s) {
    if (s) find_last_uses(e, s);
    e->counts = false;
    for (int i = 0, n = 0; i < e->b->p->n_access; i++) {
        bool used = !s || e->last_use[i] >= 0;
        bool has_one = used && e->b->p->access[i].buffer >= 0 && n < MC_POINTERS;
        e->pointer[i] = has_one ? kir_mc_pointers[n++] : -1;
        e->counts |= used && !has_one;
        if (has_one) kir_mc_load(e->a, e->pointer[i], field(offsetof(mc_args, at), i));
    }
}

static void next_row(mc_emitter *e) {
    mc_asm *a = e->a;
    for (int i = 0; i < e->b->p->n_access; i++) {
        kir_mc_load(a, MC_TEMP, field(offsetof(mc_args, row_step), i));
        kir_mc_load(a, MC_COUNT, field(offsetof(mc_args, at), i));
        kir_mc_add(a, MC_COUNT, MC_TEMP);
        kir_mc_store(a, field(offsetof(mc_args, at), i), MC_COUNT);
    }
}

static void emit_rows(mc_emitter *e) {
    mc_asm *a = e->a;
    mc_rm rows = mc_at(MC_ARGS, (int32_t)offsetof(mc_args, rows));
    size_t again = a->n;
    if (!MC_NEON) load_pointers(e, NULL);
    for (int i = 0; i < e->b->n_segments; i++) {
        if (MC_NEON) load_pointers(e, &e->b->segments[i]);
        if (e->b->segments[i].loop) {
            emit_loop(e, i);
            continue;
        }
        kir_mc_segment_begin(e, i, 1);
        kir_mc_segment_body(e, MC_ROW, 0);
    }
    kir_mc_load(a, MC_TEMP, rows);
    kir_mc_add_imm(a, MC_TEMP, -1);
    kir_mc_store(a, rows, MC_TEMP);
    kir_mc_compare_imm(a, MC_TEMP, 0);
    size_t over = kir_mc_jump_if(a, MC_E);
    next_row(e);
    kir_mc_jump_back(a, again);
    kir_mc_land(a, over);
}

static void render(mc_build *b) {
    kir_mc_lower(b);
    mc_emitter e;
    if (b->refusal) return;
    if (kir_mc_emitter_open(&e, b) != TN_OK) {
        kir_mc_lack_memory(b);
        return;
    }
    size_t entry = kir_mc_entry(b->a);
    emit_rows(&e);
    kir_mc_exit(b->a, entry, b->n_slots, b->streams);
    kir_mc_emitter_close(&e);
}

/* ---- making it --------------------------------------------------------------------------------------------------- */

static _Atomic(bool) refuses_memory;
static _Atomic(int64_t) made, bytes_made;
static _Atomic(const char *) state;

void kir_code_refuse_memory(bool yes) { atomic_store(&refuses_memory, yes); }

int64_t kir_code_made(void) { return atomic_load(&made); }

/* Code and constants in memory of their own, first writable, then executable, never both; refuses_memory: as if the
 * system did not allow that. Apple's ARM64 systems want such memory to be marked, and switch it for each thread. */
#if MC_ENCODES
static tn_status make_executable(const mc_asm *a, void **code, size_t *size) {
    *size = (kir_mc_pool_offset(a) + (size_t)a->n_pool * (size_t)a->vector + 4095) & ~(size_t)4095;
#if defined(__APPLE__) && defined(__aarch64__)
    int protection = PROT_READ | PROT_WRITE | PROT_EXEC, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_JIT;
#else
    int protection = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
#endif
    char *memory = mmap(NULL, *size, protection, flags, -1, 0);
    if (memory == MAP_FAILED) return TN_ERR_MEMORY;
#if defined(__APPLE__) && defined(__aarch64__)
    pthread_jit_write_protect_np(false);
#endif
    memcpy(memory, a->bytes, a->n);
    if (a->n_pool > 0) memcpy(memory + kir_mc_pool_offset(a), a->pool, (size_t)a->n_pool * (size_t)a->vector);
    bool refused = atomic_load(&refuses_memory);
#if defined(__APPLE__) && defined(__aarch64__)
    pthread_jit_write_protect_np(true);
#else
    refused = refused || mprotect(memory, *size, PROT_READ | PROT_EXEC) != 0;
#endif
    if (refused) {
        munmap(memory, *size);
        return TN_ERR_UNSUPPORTED;
    }
    __builtin___clear_cache(memory, memory + *size); /* processors that do not keep instructions coherent with data */
    *code = memory;
    return TN_OK;
}
static void free_executable(void *code, size_t size) {
    if (code) munmap(code, size);
}
#else /* another processor: the code would not run */
static tn_status make_executable(TN_UNUSED const mc_asm *a, void **code, size_t *size) {
    *code = NULL;
    *size = 0;
    return TN_ERR_UNSUPPORTED;
}
static void free_executable(void *code, size_t size) { (void)code, (void)size; }
#endif

static int segments_of(const kir_program *p) {
    int n = 2;
    for (int i = 0; i < p->n_ins; i++)
        n += p->ins[i].op == KIR_LOOP || p->ins[i].op == KIR_END;
    return n;
}

/* Lanes in a whole vector of the widest type that the program has. */
static int lanes_of(const kir_program *p, bool evex) {
    for (int i = 0; i < p->n_ins; i++)
        if (kir_yields((kir_op)p->ins[i].op) && kir_type_size((kir_type)p->ins[i].type) == 8) return 8;
    return evex ? 16 : MC_NEON ? 4 : 8;
}

static void close_build(mc_build *b) {
    for (int i = 0; b->segments && i < b->n_segments; i++)
        tn_mem_free(b->segments[i].steps);
    tn_mem_free_each(b->segments, b->values, b->value_of);
}

/* Said once; the VM does the work. */
static void note_refusal(void) {
    static const char *const why = "the system refuses executable memory";
    if (atomic_exchange(&state, why) == NULL)
        tn_log_line(TN_LOG_NOTICE, "cpu: %s: kernels run without machine code, which is slower", why);
}

static tn_status build_code(const kir_program *p, kir_layout layout, bool evex, kir_code *out) {
    mc_asm a = {.vector = evex ? 64 : MC_NEON ? 16 : 32, .evex = evex};
    mc_build b = {.a = &a,
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
    if (status == TN_OK && !b.refusal && !a.failed) kir_mc_resolve(&a);
    if (a.far) kir_mc_refuse(&b, "too long");
    if (status == TN_OK) {
        status = b.no_memory || a.failed ? TN_ERR_MEMORY
                 : b.refusal             ? TN_ERR_UNSUPPORTED
                                         : make_executable(&a, &code, &out->bytes);
        if (!b.refusal && status == TN_ERR_UNSUPPORTED) note_refusal();
    }
    _Static_assert(sizeof code == sizeof out->fn, "addresses have one size");
    memcpy(&out->fn, &code, sizeof code);
    close_build(&b);
    asm_free(&a);
    return status;
}

/* Code for the key, or a note that there is none. NULL without memory. */
static kir_code *make_code(const kir_vm *vm, kir_layout layout, const uint8_t *key, size_t n_key) {
    enum { MOST_BYTES = 1 << 28 }; /* of all programs */
    kir_code *code = tn_mem_zalloc(1, sizeof *code);
    if (!code) return NULL;
    memcpy(code->key, key, n_key);
    bool evex = key[0] == TN_ISA_AVX512;
    if (kir_mc_refusal_of(vm->source, evex) || atomic_load(&bytes_made) > MOST_BYTES) return code;
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
    free_executable(address, code->bytes);
    tn_mem_free(code);
}

tn_status kir_code_prepare(kir_vm *vm, const kir_program *p) {
    if (kir_mc_refusal_of(p, true)) return TN_OK;
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

static bool is_on(void) {
    int now = atomic_load_explicit(&use, memory_order_relaxed);
    if (now == 0) {
        now = tn_env_switch("TRUNNION_JIT", true) ? 1 : 2;
        atomic_store(&use, now);
    }
    return now == 1;
}

const char *kir_code_state(void) {
    const char *why = atomic_load(&state);
    if (!is_on()) return "turned off";
    if (!MC_ENCODES) return "no code for this processor";
    if (!kir_code_has(tn_cpu().isa)) return "the processor has no AVX2";
    return why ? why : "on";
}

static int64_t inner_stride(const kir_frame *f, int access) {
    if (f->grid.inner.n == 0) return 0;
    return f->access.strides[(size_t)access * (size_t)f->access.stride_width + (size_t)f->access.stride_width - 1];
}

bool kir_code_has(tn_isa isa) { return MC_ENCODES && (MC_NEON || isa >= TN_ISA_AVX2); }

/* Results too large for the caches are stored non-temporally; otherwise each of their lines would be fetched from
 * memory before it is overwritten. All must cover whole lines and not overlap what is read. */
static bool streams(const kir_frame *f) {
    enum { LINE = 64, LEAST_BYTES = 32 << 20 };
    int64_t bytes = 0, total = f->grid.inner.total * f->grid.outer.total;
    if (MC_NEON || f->grid.layout != KIR_POINTS || total < LEAST_BYTES / (int)sizeof(kir_value)) return false;
    for (int i = 0; i < f->vm->source->n_ins; i++) {
        const kir_ins *in = &f->vm->source->ins[i];
        if (in->op != KIR_STORE) continue;
        const kir_view *to = &f->access.views[in->imm.i];
        const int64_t *strides = f->access.strides + in->imm.i * f->access.stride_width;
        int64_t at = (int64_t)(uintptr_t)to->origin, size = (int64_t)to->size;
        for (int k = 0; k <= f->grid.outer.n; k++)
            at |= strides[k] * size;
        for (int k = 0; k < f->vm->n_access; k++)
            if (k != in->imm.i && f->vm->buffer_of[k] >= 0 && f->access.views[k].origin == to->origin) return false;
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
        const char *to = f->access.views[p->ins[i].imm.i].origin;
        bool read = false;
        for (int k = 0; k < i && !read; k++)
            read = p->ins[k].op == KIR_LOAD && f->access.views[p->ins[k].imm.i].origin == to;
        over += read;
    }
    return over >= 2;
}

static size_t make_key(const kir_frame *f, uint8_t *key) {
    key[0] = (uint8_t)f->isa;
    key[1] = (uint8_t)f->grid.layout;
    key[2] = (uint8_t)(streams(f) | (f->isa == TN_ISA_AVX512 && revises(f)) << 1);
    for (int i = 0; i < f->vm->n_access; i++) {
        int64_t stride = inner_stride(f, i);
        key[KEY_HEAD + i] = stride == 0 ? MC_SAME : stride == 1 ? MC_NEXT : MC_FAR;
    }
    return (size_t)(KEY_HEAD + f->vm->n_access);
}

/* Whether rows come in short runs, so that a tile has many. Then the VM moves its values in pieces: with rows of 2 to 8
 * points that takes 1.3 times as long as code at 16 rows per run, 4 times at 4. */
static bool in_short_runs(const kir_frame *f) {
    enum { SHORT_RUN = 32 };
    int n = f->grid.outer.n;
    return f->grid.layout == KIR_POINTS && n > 1 && f->grid.outer.extent[n - 1] < SHORT_RUN;
}

/* Launches that the VM's routines do better: tiles that transpose memory, strided elements of a row, rows of a few
 * cheap elements, long loops that threads share in blocks. */
static bool suits(const kir_frame *f) {
    enum { SHORT_ROW = 12, MANY_ROWS = 64 };
    static const double DEAR_POINT = 1; /* ns: what varies from row to row costs the VM a few times as much */
    if (!kir_code_has(f->isa) || f->grid.layout == KIR_ACROSS || f->grid.inner.n > 1 || f->grid.inner.total < 1)
        return false;
    if (f->grid.layout == KIR_POINTS && f->grid.square) return false;
    for (int i = 0; i < f->vm->n_access; i++) {
        int64_t stride = inner_stride(f, i);
        if (f->vm->buffer_of[i] >= 0 && stride != 0 && stride != 1) return false;
    }
    bool dear = f->grid.layout == KIR_POINTS && f->vm->point_cost >= DEAR_POINT;
    bool cheap = f->grid.inner.total < SHORT_ROW && f->grid.outer.total >= MANY_ROWS && !dear;
    if (cheap && !in_short_runs(f)) return false;
    bool shared = f->vm->in_blocks && f->grid.inner.total >= 2 * KIR_BLOCK && f->grid.outer.total < tn_threads();
    return f->grid.layout == KIR_POINTS || !shared;
}

static bool is_worth_making(const kir_frame *f, kir_vm *vm) {
    if (f->grid.cost * 1e3 >= (double)atomic_load(&worth_picoseconds)) return true;
    return atomic_fetch_add_explicit(&vm->launches, 1, memory_order_relaxed) > 0;
}

/* Threads that make the same code at a time both succeed; one is thrown away. */
static const kir_code *find_code(const kir_frame *f) {
    uint8_t key[KEY_HEAD + MC_MOST_ACCESS];
    size_t n = make_key(f, key);
    kir_vm *vm = (kir_vm *)(uintptr_t)f->vm; /* only its cache changes */
    for (int i = 0; i < KIR_BINDS; i++) {
        kir_code *old = atomic_load_explicit(&vm->codes[i], memory_order_acquire);
        if (old) {
            if (memcmp(old->key, key, n) == 0) return old;
            continue;
        }
        if (!is_worth_making(f, vm)) return NULL;
        kir_code *code = make_code(vm, f->grid.layout, key, n);
        if (!code) return NULL;
        if (atomic_compare_exchange_strong(&vm->codes[i], &old, code)) return code;
        free_code(code);
        i--; /* someone else's is there now: look at it */
    }
    return NULL;
}

bool kir_code_choose(kir_frame *f) {
    if (f->machine.is_given ? !f->machine.given : !suits(f) || !is_on()) return false;
    const kir_code *code = f->machine.is_given ? f->machine.given : find_code(f);
    if (!code || !code->fn) return false;
    f->machine.code = code;
    int64_t length = f->grid.inner.total;
    if (length * f->grid.outer.total <= UNIT) { /* in one go, without divisions */
        f->grid.inner_step = length;
        f->grid.outer_step = f->grid.outer.total;
        f->grid.inner_pieces = f->grid.units = 1;
        return true;
    }
    f->grid.inner_step = f->grid.layout == KIR_POINTS ? kir_piece_of(length, UNIT) : length;
    f->grid.inner_pieces = tn_ceil_div(length, f->grid.inner_step);
    f->grid.outer_step = tn_max64(UNIT / length, 1);
    f->grid.units = f->grid.inner_pieces * tn_ceil_div(f->grid.outer.total, f->grid.outer_step);
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

static void set_access(const kir_frame *f, mc_args *args, int access, const int64_t *at, int64_t column) {
    const int64_t *strides = f->access.strides + (size_t)access * (size_t)f->access.stride_width;
    int n = f->grid.outer.n;
    int64_t index = strides[0], step = inner_stride(f, access), size = 1;
    for (int k = 0; k < n; k++)
        index += at[k] * strides[1 + k];
    index += column * step;
    int64_t row_step = n > 0 ? strides[n] : 0;
    if (f->vm->buffer_of[access] >= 0) size = f->access.views[access].size;
    args->at[access] =
        (int64_t)((uint64_t)index * (uint64_t)size + (uint64_t)(uintptr_t)f->access.views[access].origin);
    args->step[access] = step * size;
    args->row_step[access] = row_step * size;
}

/* `at`: of the first row along the outer axes. */
static void set_args(const kir_frame *f, mc_args *args, const int64_t *at, int64_t rows, int64_t column) {
    args->scalars = f->tile.scalars;
    args->n = tn_min64(f->grid.inner_step, f->grid.inner.total - column);
    args->rows = rows;
    for (int i = 0; i < f->vm->n_access; i++)
        set_access(f, args, i, at, column);
}

mc_fn *kir_code_fn(const kir_code *code) { return code->fn; }

void kir_code_args(const kir_frame *f, mc_args *args) {
    const int64_t at[KIR_MAX_AXES] = {0};
    set_args(f, args, at, f->grid.outer.total, 0);
}

void kir_code_run(const kir_frame *f, int64_t unit) {
    const kir_space *s = &f->grid.outer;
    int64_t row = 0, column = 0;
    if (f->grid.units > 1) {
        row = unit / f->grid.inner_pieces * f->grid.outer_step;
        column = unit % f->grid.inner_pieces * f->grid.inner_step;
    }
    int64_t end = tn_min64(row + f->grid.outer_step, s->total);
    int64_t at[KIR_MAX_AXES];
    mc_args args; /* with the program's accesses set */
    while (row < end) {
        find_row(s, row, at);
        int64_t run = s->n > 0 ? tn_min64(end - row, s->extent[s->n - 1] - at[s->n - 1]) : 1;
        set_args(f, &args, at, run, column);
        f->machine.code->fn(&args);
        row += run;
    }
}
