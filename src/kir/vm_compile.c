/* vm_compile.c — makes a kir_vm of a program: schedules, constants, what a point costs, how much memory a thread
 * needs. */
#include "kir/rules.h"
#include "kir/vm.h"

#include <stddef.h>
#include <string.h>

/* Rough nanoseconds an element of one operation takes on one core; only the decision to use threads depends on them. */
static const float COSTS[KIR_OP_COUNT] = {
    [KIR_SQRT] = 0.2f, [KIR_EXP] = 0.2f,   [KIR_LOG] = 0.3f,  [KIR_SIN] = 0.3f,     [KIR_COS] = 0.3f,
    [KIR_TANH] = 0.3f, [KIR_ERF] = 0.4f,   [KIR_DIV] = 0.15f, [KIR_MOD] = 5.0f,     [KIR_PHILOX] = 0.6f,
    [KIR_LOAD] = 0.1f, [KIR_STORE] = 0.1f, [KIR_SCAN] = 1.0f, [KIR_REDUCE] = 0.08f,
};
static const float COST_OF_OTHERS = 0.05f, COST_OF_COMPUTED_INDEX = 1.0f, COST_OF_CHAIN = 0.5f;

static double cost_of(const kir_step *s) {
    double cost = COSTS[s->op] > 0 ? (double)COSTS[s->op] : (double)COST_OF_OTHERS;
    if (s->op == KIR_REDUCE && s->kind >= KIR_ARGMAX) cost = (double)COST_OF_CHAIN;
    if (s->dyn != KIR_NONE) cost += (double)COST_OF_COMPUTED_INDEX;
    return kir_type_size((kir_type)s->type) == 8 ? 2 * cost : cost;
}

static void sum_costs(kir_vm *vm) {
    for (int i = 0; i < vm->parts.n_steps; i++) {
        const kir_step *s = &vm->parts.steps[i];
        if (s->op == KIR_LOOP || s->op == KIR_END) continue;
        if (s->in_loop)
            vm->loop_cost += cost_of(s);
        else
            vm->point_cost += cost_of(s);
    }
}

/* The VM computes a tile of points at once: none waits for another, and none has variables. */
static tn_status check_plain(const kir_program *p) {
    if (p->n_items > 0) return tn_fail(TN_ERR_UNSUPPORTED, "tile VM: a program with workgroups");
    if (p->words) return tn_fail(TN_ERR_UNSUPPORTED, "tile VM: a program of words");
    for (int i = 0; i < p->n_ins; i++) {
        if (p->ins[i].op == KIR_VAR)
            return tn_fail(TN_ERR_UNSUPPORTED, "tile VM: a program with variables (instruction %d)", i);
    }
    return TN_OK;
}

/* The VM's loops: all over the same axes, none inside another. */
static tn_status check_loops(const kir_program *p, kir_vm *vm) {
    int depth = 0;
    for (int i = 0; i < p->n_ins; i++) {
        const kir_ins *in = &p->ins[i];
        depth += (in->op == KIR_LOOP) - (in->op == KIR_END);
        if (in->op != KIR_LOOP) continue;
        int first = kir_loop_first(in), count = kir_loop_count(in);
        bool fits = !vm->has_loop || (first == vm->loop_first && count == vm->loop_count);
        if (depth > 1 || !fits) {
            return tn_fail(TN_ERR_UNSUPPORTED,
                           "tile VM: loop at instruction %d is nested or ranges over other axes than"
                           " the first; loops must be at depth one, all over the same axes",
                           i);
        }
        vm->has_loop = true;
        vm->loop_first = first;
        vm->loop_count = count;
    }
    return TN_OK;
}

static bool splits_in_blocks(const kir_step *s) {
    return s->state == KIR_NONE || (s->op == KIR_REDUCE && s->kind <= KIR_ARGMIN);
}

static tn_status note_states(kir_vm *vm) {
    vm->in_blocks = vm->has_loop;
    for (int i = 0; i < vm->parts.n_steps; i++) {
        const kir_step *s = &vm->parts.steps[i];
        if (!splits_in_blocks(s)) vm->in_blocks = false;
        if (s->state != KIR_NONE) vm->n_states++;
    }
    vm->state_width = tn_mem_zalloc((size_t)vm->n_states + 1, sizeof *vm->state_width);
    if (!vm->state_width) return TN_ERR_MEMORY;
    for (int i = 0; i < vm->parts.n_steps; i++) {
        const kir_step *s = &vm->parts.steps[i];
        if (s->state != KIR_NONE) vm->state_width[s->state] = (uint8_t)kir_type_size((kir_type)s->operand);
    }
    return TN_OK;
}

/* Constants come first, then runtime scalars, whose values each launch fills in. */
static tn_status note_constants(const kir_program *p, kir_vm *vm) {
    size_t room = (size_t)p->n_ins + 1;
    vm->constants = tn_mem_zalloc(room, sizeof *vm->constants);
    vm->constant_of = tn_mem_zalloc(room, sizeof *vm->constant_of);
    vm->constant_values = tn_mem_zalloc(room, sizeof *vm->constant_values);
    if (!vm->constants || !vm->constant_of || !vm->constant_values) return TN_ERR_MEMORY;
    const kir_op kinds[2] = {KIR_CONST, KIR_SCALAR};
    int n = 0;
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < p->n_ins; i++) {
            if (p->ins[i].op != kinds[k]) continue;
            vm->constants[n] = p->ins[i];
            if (k == 0) vm->constant_values[n] = kir_const_value(&p->ins[i]);
            vm->constant_of[n++] = (int16_t)i;
        }
        if (k == 0) vm->n_constants = n;
    }
    vm->n_scalars = n - vm->n_constants;
    return TN_OK;
}

static tn_status note_access(const kir_program *p, kir_vm *vm) {
    vm->n_access = p->n_access;
    vm->buffer_of = tn_mem_zalloc((size_t)p->n_access + 1, sizeof *vm->buffer_of);
    vm->views = tn_mem_zalloc((size_t)p->n_access + 1, sizeof *vm->views);
    if (!vm->buffer_of || !vm->views) return TN_ERR_MEMORY;
    for (int i = 0; i < p->n_access; i++) {
        int buffer = vm->buffer_of[i] = p->access[i].buffer;
        if (buffer < 0) continue;
        size_t size = tn_dtype_size((tn_dtype)p->buffer_dtype[buffer]);
        vm->views[i] = (kir_view){NULL, (uint8_t)size, (uint8_t)kir_log2(size), p->buffer_dtype[buffer]};
    }
    vm->first_store = -1;
    for (int i = p->n_ins - 1; i >= 0; i--) {
        if (p->ins[i].op == KIR_STORE) vm->first_store = (int)p->ins[i].imm.i;
    }
    return TN_OK;
}

/* A tile's values and the memory that it reads and writes are to stay in first-level cache from step to step. */
static int64_t points_tile(const kir_vm *vm) {
    enum { CACHE = 20 << 10, MOST = 1024, LEAST = 256, WHOLE = 64 };
    size_t bytes = vm->parts.slot_bytes / KIR_TILE + 1;
    for (int i = 0; i < vm->n_access; i++)
        bytes += vm->views[i].size;
    return tn_max64(LEAST, tn_min64(MOST, (int64_t)(CACHE / bytes) / WHOLE * WHOLE));
}

static tn_status compile_vm(const kir_program *p, kir_vm *vm) {
    TRY(kir_verify(p));
    TRY(check_plain(p));
    TRY(check_loops(p, vm));
    vm->n_par = p->n_par;
    vm->n_loop = p->n_loop;
    vm->n_values = p->n_ins;
    TRY(note_access(p, vm));
    TRY(note_constants(p, vm));
    TRY(kir_schedule_make(p, false, &vm->parts));
    if (vm->has_loop) TRY(kir_schedule_make(p, true, &vm->whole));
    TRY(note_states(vm));
    sum_costs(vm);
    vm->points_tile = points_tile(vm);
    vm->thread_bytes = kir_frame_carve(NULL, vm, NULL);
    return kir_code_prepare(vm, p);
}

static void compiled_free(kir_vm *vm) {
    kir_schedule_free(&vm->parts);
    kir_schedule_free(&vm->whole);
    tn_mem_free(vm->buffer_of);
    tn_mem_free(vm->views);
    tn_mem_free(vm->constants);
    tn_mem_free(vm->constant_of);
    tn_mem_free(vm->constant_values);
    tn_mem_free(vm->state_width);
    tn_mem_free(vm->source);
}

void kir_vm_free(kir_vm *vm) {
    if (!vm) return;
    kir_code_release(vm);
    kir_recipes_free(vm);
    for (int i = 0; i < KIR_BINDS; i++)
        tn_mem_free(atomic_load_explicit(&vm->binds[i], memory_order_relaxed));
    if (!vm->shared) compiled_free(vm);
    tn_mem_free(vm);
}

tn_status kir_vm_share(const kir_vm *of, kir_vm **out) {
    *out = tn_mem_zalloc(1, sizeof **out);
    if (!*out) return TN_ERR_MEMORY;
    memcpy(*out, of, offsetof(kir_vm, binds));
    (*out)->shared = true;
    return TN_OK;
}

tn_status kir_vm_compile(const kir_program *p, kir_vm **out) {
    *out = NULL;
    kir_vm *vm = tn_mem_zalloc(1, sizeof *vm);
    if (!vm) return TN_ERR_MEMORY;
    tn_status status = compile_vm(p, vm);
    if (status != TN_OK) {
        kir_vm_free(vm);
        return status;
    }
    *out = vm;
    return TN_OK;
}
