/* kir_kernel.h — for tests of the kernel language: from a builder to a run on the interpreter or the tile VM. */
#ifndef TN_TESTS_KIR_KERNEL_H
#define TN_TESTS_KIR_KERNEL_H

#include "test_support.h"

#include "kir/kir.h"

typedef struct kernel {
    kir_builder *b;
    kir_program *p;
    int64_t *sizes;
} kernel;

static inline kernel begin(int n_par, int n_loop, const int64_t *extents) {
    kernel k = {0};
    assert_ok(kir_begin(n_par, n_loop, extents, &k.b));
    return k;
}

static inline void finish(kernel *k) { assert_ok(kir_finish(k->b, &k->p, &k->sizes)); }

static inline void release(kernel *k) {
    kir_free(k->p);
    tn_mem_free(k->sizes);
}

static inline kir_aff along(int axis) {
    kir_aff index = kir_aff_const(0);
    index.s[axis] = 1;
    return index;
}

static inline kir_val load_axis(kernel *k, int buffer, int axis) {
    kir_aff index = along(axis);
    return kir_load(k->b, buffer, &index, KIR_NONE);
}

static inline void store_axis(kernel *k, int buffer, int axis, kir_val v) {
    kir_aff index = along(axis);
    kir_store(k->b, buffer, &index, v, KIR_NONE);
}

static inline void store_first(kernel *k, int buffer, kir_val v) {
    kir_aff index = kir_aff_const(0);
    kir_store(k->b, buffer, &index, v, KIR_NONE);
}

typedef enum engine { INTERPRETER, TILE_VM, ENGINES } engine;

static inline void run_on(engine e, const kernel *k, void *const *buffers, const kir_scalar *scalars) {
    kir_launch launch = {k->sizes, buffers, scalars};
    if (e == INTERPRETER) {
        assert_ok(kir_interpret(k->p, &launch));
        return;
    }
    kir_vm *vm = NULL;
    assert_ok(kir_vm_compile(k->p, &vm));
    assert_ok(kir_vm_run(vm, &launch, 1));
    kir_vm_free(vm);
}

#endif
