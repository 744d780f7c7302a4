/* parts.h — what compile.c and run.c share: modules, and the struct through which a compiled object and the engine
 * meet. */
#ifndef TN_DOUBLE_PARTS_H
#define TN_DOUBLE_PARTS_H

#include "engine.h"

typedef struct engine_triple {
    uint32_t x, y, z;
} engine_triple;

/* The same struct stands in shim.h. */
typedef struct engine_context {
    engine_triple item, group, items, groups;
    uint32_t cursor, count, linear, warp;
    const uint32_t *order;
    const engine_triple *places;
    uint8_t *dynamic;
    void (*barrier)(uint32_t line);
} engine_context;

struct engine_kernel {
    engine_kernel *next;
    const engine_module *module;
    void (*run)(void **args);
    const uint32_t *sizes; /* of the parameters, the highest bit set for pointers, 0 at the end; or NULL */
    char name[];
};

struct engine_module {
    void *library;
    engine_context **here;
    uint8_t *shared, *shared_end;
    engine_kernel *kernels; /* those asked for */
};

void engine_count_compiled(engine_counts *out); /* compile.c's part */

#endif
