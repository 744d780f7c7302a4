/* metal_mps.c — of the double of Metal: matrix products of Metal Performance Shaders.
 *
 * Descriptors, matrices and products know what Apple documents of them; a product is one more command of a command
 * buffer, done when that is. Sums run from the last element to the first, so that they are not the bits of our own
 * kernels. */
#include "metal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FLOAT_32 = 0x10000000 | 32 };

typedef struct descriptor {
    object object;
    uint64_t rows, columns, matrices, row_bytes, matrix_bytes;
} descriptor;

typedef struct matrix {
    object object;
    metal_buffer *buffer;
    uint64_t offset;
    descriptor *is;
} matrix;

typedef struct product {
    object object;
    bool turn_left, turn_right;
    uint64_t rows, columns, inner;
    double alpha;
} product;

static const method no_methods[] = {{NULL, NULL, FAULT_NEVER}};
const metal_class metal_descriptor_class = {"MPSMatrixDescriptor", no_methods, sizeof(descriptor), NULL};

object *metal_describe_matrix(object *o, selector s, uint64_t rows, uint64_t columns, uint64_t matrices,
                              uint64_t row_bytes, uint64_t matrix_bytes, uint32_t type) {
    HOLD;
    if (o->isa != &metal_descriptor_class || type != FLOAT_32 || !rows || !columns || !matrices ||
        row_bytes < columns * sizeof(float) || row_bytes % sizeof(float) || matrix_bytes < rows * row_bytes ||
        matrix_bytes % row_bytes)
        metal_misuse("%s %llu x %llu, %llu of them, %llu and %llu bytes, type %x", s, (unsigned long long)rows,
                     (unsigned long long)columns, (unsigned long long)matrices, (unsigned long long)row_bytes,
                     (unsigned long long)matrix_bytes, type);
    descriptor *d = metal_new(&metal_descriptor_class);
    if (!d) return NULL;
    *d = (descriptor){d->object, rows, columns, matrices, row_bytes, matrix_bytes};
    return metal_autorelease(d);
}

static void end_matrix(object *o) {
    metal_release(((matrix *)o)->buffer);
    metal_release(((matrix *)o)->is);
}

static object *init_matrix(matrix *m, selector s, metal_buffer *buffer, uint64_t offset, descriptor *d) {
    HOLD;
    if (!metal_is(buffer, &metal_buffer_class, s) || !metal_is(d, &metal_descriptor_class, s)) return &m->object;
    if (offset % sizeof(float) || offset + d->matrices * d->matrix_bytes > buffer->bytes)
        metal_misuse("%s %llu bytes from %llu on, in a buffer of %zu", s,
                     (unsigned long long)(d->matrices * d->matrix_bytes), (unsigned long long)offset, buffer->bytes);
    metal_retain(buffer);
    metal_retain(d);
    m->buffer = buffer;
    m->offset = offset;
    m->is = d;
    return &m->object;
}

static const method matrix_methods[] = {
    METHOD("initWithBuffer:offset:descriptor:", init_matrix, FAULT_NEVER),
    {NULL, NULL, FAULT_NEVER},
};
const metal_class metal_matrix_class = {"MPSMatrix", matrix_methods, sizeof(matrix), end_matrix};

static object *init_product(product *p, selector s, metal_device *device, signed char left, signed char right,
                            uint64_t rows, uint64_t columns, uint64_t inner, double alpha, double beta) {
    HOLD;
    if (!metal_is(device, &metal_device_class, s)) return &p->object;
    if (beta != 0) metal_misuse("%s beta is %g, which the double does not know", s, beta);
    *p = (product){p->object, left, right, rows, columns, inner, alpha};
    return &p->object;
}

/* ---- work -------------------------------------------------------------------------------------------------------- */

typedef struct multiplication {
    product p;
    matrix *left, *right, *result;
} multiplication;

static float *element(const matrix *m, uint64_t batch, uint64_t row, uint64_t column) {
    return (float *)(void *)(m->buffer->memory + m->offset + batch * m->is->matrix_bytes + row * m->is->row_bytes) +
           column;
}

static void run(void *data) {
    const multiplication *w = data;
    for (uint64_t e = 0; e < w->result->is->matrices; e++)
        for (uint64_t i = 0; i < w->p.rows; i++)
            for (uint64_t j = 0; j < w->p.columns; j++) {
                float sum = 0;
                for (uint64_t k = w->p.inner; k-- > 0;)
                    sum += *element(w->left, e, w->p.turn_left ? k : i, w->p.turn_left ? i : k) *
                           *element(w->right, e, w->p.turn_right ? j : k, w->p.turn_right ? k : j);
                *element(w->result, e, i, j) = (float)w->p.alpha * sum;
            }
}

static void drop(void *data) {
    multiplication *w = data;
    metal_release(w->left);
    metal_release(w->right);
    metal_release(w->result);
    free(w);
}

static bool has_extents(const matrix *m, uint64_t rows, uint64_t columns, bool turned) {
    return m->is && m->is->rows == (turned ? columns : rows) && m->is->columns == (turned ? rows : columns);
}

static void encode(product *p, selector s, object *buffer, matrix *left, matrix *right, matrix *result) {
    HOLD;
    if (!metal_is(left, &metal_matrix_class, s) || !metal_is(right, &metal_matrix_class, s) ||
        !metal_is(result, &metal_matrix_class, s))
        return;
    if (!has_extents(left, p->rows, p->inner, p->turn_left) ||
        !has_extents(right, p->inner, p->columns, p->turn_right) || !has_extents(result, p->rows, p->columns, false) ||
        left->is->matrices != result->is->matrices || right->is->matrices != result->is->matrices) {
        metal_misuse("%s extents do not fit", s);
        return;
    }
    multiplication *w = malloc(sizeof *w);
    if (!w) return;
    *w = (multiplication){*p, left, right, result};
    metal_retain(left);
    metal_retain(right);
    metal_retain(result);
    metal_add_work(buffer, s, run, drop, w);
}

static const method product_methods[] = {
    METHOD("initWithDevice:transposeLeft:transposeRight:resultRows:resultColumns:interiorColumns:alpha:beta:",
           init_product, FAULT_NEVER),
    METHOD("encodeToCommandBuffer:leftMatrix:rightMatrix:resultMatrix:", encode, FAULT_NEVER),
    {NULL, NULL, FAULT_NEVER},
};
const metal_class metal_product_class = {"MPSMatrixMultiplication", product_methods, sizeof(product), NULL};

METAL_EXPORT signed char MPSSupportsMTLDevice(object *device);
signed char MPSSupportsMTLDevice(object *device) {
    return metal_is(device, &metal_device_class, "MPSSupportsMTLDevice");
}
