/* mps.c — Metal Performance Shaders: matrix products in f32 on Apple's devices.
 *
 * Its matrices have contiguous rows, as ours. It wants all of a batch in memory, matrix behind matrix and row behind
 * row: what lies otherwise is left to our kernels, and so are halves, of whose sums Apple says nothing. A product is
 * encoded into the command buffer that the driver lends, beside the driver's own work. Types and numbers are those of
 * Apple's documentation; nothing of this has run on a Mac. */
#include "vendor/vendor.h"

#if TRUNNION_WITH_METAL

typedef struct mps_object *object;
typedef struct mps_selector *selector;

static struct {
    void (*send)(void);
    selector (*selector_named)(const char *);
    object (*class_named)(const char *);
    signed char (*supports)(object device);
} mps;

static const char *const names[] = {
    "/System/Library/Frameworks/MetalPerformanceShaders.framework/MetalPerformanceShaders",
    NULL,
};
static const tn_symbol symbols[] = {
    {"objc_msgSend", (void **)&mps.send, false},
    {"sel_registerName", (void **)&mps.selector_named, false},
    {"objc_getClass", (void **)&mps.class_named, false},
    {"MPSSupportsMTLDevice", (void **)&mps.supports, false},
};

/* X(our name, selector, result, types of receiver, selector and arguments) */
#define MESSAGES(X)                                                                                               \
    X(retain, "retain", object, (object, selector))                                                               \
    X(release, "release", void, (object, selector))                                                               \
    X(alloc, "alloc", object, (object, selector))                                                                 \
    X(describe_mps, "matrixDescriptorWithRows:columns:matrices:rowBytes:matrixBytes:dataType:", object,           \
      (object, selector, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint32_t))                             \
    X(init_matrix, "initWithBuffer:offset:descriptor:", object, (object, selector, object, uint64_t, object))     \
    X(init_product,                                                                                               \
      "initWithDevice:transposeLeft:transposeRight:resultRows:resultColumns:interiorColumns:alpha:beta:", object, \
      (object, selector, object, signed char, signed char, uint64_t, uint64_t, uint64_t, double, double))         \
    X(encode, "encodeToCommandBuffer:leftMatrix:rightMatrix:resultMatrix:", void,                                 \
      (object, selector, object, object, object, object))

#define X(name, text, result, parameters) typedef result message_##name parameters;
MESSAGES(X)
#undef X
enum {
#define X(name, text, result, parameters) MESSAGE_##name,
    MESSAGES(X)
#undef X
};
static const char *const texts[] = {
#define X(name, text, result, parameters) text,
    MESSAGES(X)
#undef X
};

enum { MPS_FLOAT_32 = 0x10000000 | 32 };

/* A message to NULL does nothing and yields 0. */
#define SEND(message, ...) ((message_##message *)mps.send)(__VA_ARGS__)
#define SELECTOR(message) mps.selector_named(texts[MESSAGE_##message])

static void release(object o) {
    if (o) SEND(release, o, SELECTOR(release));
}

static tn_status failed(const char *what) {
    return tn_fail(TN_ERR_DEVICE, "%s: %s returned nil", tn_vendor_mps.spec.title, what);
}

/* The device is all that it needs; the queue comes with each call. */
static tn_status mps_open(const tn_lent *lent, void **handle) {
    if (!mps.supports(lent->device))
        return tn_fail(TN_ERR_UNSUPPORTED, "%s: it does not support this device", tn_vendor_mps.spec.title);
    *handle = lent->device;
    return TN_OK;
}

static void mps_close(TN_UNUSED const tn_lent *lent, TN_UNUSED void *handle) {}

/* ---- products ---------------------------------------------------------------------------------------------------- */

typedef struct mps_call {
    object product, descriptor[TN_VENDOR_SIDES];
    size_t bytes[TN_VENDOR_SIDES];
} mps_call;

static void mps_free(void *call) {
    mps_call *c = call;
    for (int s = 0; s < TN_VENDOR_SIDES; s++)
        release(c->descriptor[s]);
    release(c->product);
    tn_mem_free(c);
}

/* As it lies in memory: of a turned one, its transpose. */
static tn_status add_matrix(mps_call *c, const tn_vendor_product *p, int s, int64_t rows, int64_t columns) {
    const tn_vendor_side *side = &p->side[s];
    int64_t lines = side->transposed ? columns : rows, length = side->transposed ? rows : columns;
    if (side->ld != length || (p->batch > 1 && side->batch_stride != lines * length))
        return tn_fail(TN_ERR_UNSUPPORTED, "%s: its matrices are not at a constant distance", tn_vendor_mps.spec.title);
    uint64_t row = (uint64_t)length * sizeof(float), all = (uint64_t)lines * row, count = (uint64_t)p->batch;
    c->descriptor[s] = SEND(retain,
                            SEND(describe_mps, mps.class_named("MPSMatrixDescriptor"), SELECTOR(describe_mps),
                                 (uint64_t)lines, (uint64_t)length, count, row, all, (uint32_t)MPS_FLOAT_32),
                            SELECTOR(retain));
    c->bytes[s] = (size_t)(all * count);
    return c->descriptor[s] ? TN_OK : failed("matrixDescriptorWithRows");
}

static tn_status describe_mps(mps_call *c, object device, const tn_vendor_product *p) {
    if (p->dtype != TN_F32 || p->outer > 1)
        return tn_fail(TN_ERR_UNSUPPORTED, "%s: only f32 products in one batch are supported",
                       tn_vendor_mps.spec.title);
    TRY(add_matrix(c, p, TN_VENDOR_A, p->m, p->k));
    TRY(add_matrix(c, p, TN_VENDOR_B, p->k, p->n));
    TRY(add_matrix(c, p, TN_VENDOR_C, p->m, p->n));
    c->product = SEND(alloc, mps.class_named("MPSMatrixMultiplication"), SELECTOR(alloc));
    c->product = SEND(init_product, c->product, SELECTOR(init_product), device, p->side[TN_VENDOR_A].transposed,
                      p->side[TN_VENDOR_B].transposed, (uint64_t)p->m, (uint64_t)p->n, (uint64_t)p->k, 1.0, 0.0);
    return c->product ? TN_OK : failed("MPSMatrixMultiplication");
}

static tn_status mps_make(void *handle, TN_UNUSED const tn_lent *lent, const tn_vendor_product *p, void **call,
                          size_t *workspace) {
    mps_call *c = tn_mem_zalloc(1, sizeof *c);
    if (!c) return TN_ERR_MEMORY;
    *call = c;
    *workspace = 0;
    return describe_mps(c, handle, p);
}

static tn_status mps_run(TN_UNUSED void *handle, const tn_lent *lent, const void *call, void *const *pointers) {
    const mps_call *c = call;
    object matrix[TN_VENDOR_SIDES] = {NULL};
    tn_status status = TN_OK;
    for (int s = 0; s < TN_VENDOR_SIDES && status == TN_OK; s++) {
        size_t at = 0;
        object buffer = lent->find(lent, pointers[s], c->bytes[s], &at);
        if (buffer) matrix[s] = SEND(alloc, mps.class_named("MPSMatrix"), SELECTOR(alloc));
        matrix[s] = SEND(init_matrix, matrix[s], SELECTOR(init_matrix), buffer, at, c->descriptor[s]);
        if (!matrix[s]) status = failed("MPSMatrix");
    }
    if (status == TN_OK)
        SEND(encode, c->product, SELECTOR(encode), lent->stream, matrix[TN_VENDOR_A], matrix[TN_VENDOR_B],
             matrix[TN_VENDOR_C]);
    for (int s = 0; s < TN_VENDOR_SIDES; s++)
        release(matrix[s]); /* the command buffer keeps what it needs */
    return status;
}

const tn_vendor_library tn_vendor_mps = {
    .name = "mps",
    .backend = "metal",
    .spec = {"Metal Performance Shaders", "TRUNNION_MPS_LIB", names, symbols, TN_COUNT(symbols), "part of macOS"},
    .open = mps_open,
    .close = mps_close,
    .make = mps_make,
    .run = mps_run,
    .free = mps_free,
};

#endif
