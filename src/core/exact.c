/* exact.c — is a device as exact as its driver says (caps.exact)? One kernel of the operations in question, over values
 * that are chosen to tell, compared with the interpreter to the bit.
 *
 * Bits are promised of exact devices alone (kir/kir.h), so a driver's word is worth trying: compilers contract, flush
 * denormals and divide by reciprocals unless they are told not to, and some do so all the same. */
#include <stdio.h>
#include <string.h>

#include "core/core.h"

enum { OPERANDS = 3, VALUES = 4096 };

/* The operations, in the order in which they are stored. */
static const struct {
    const char *name;
    int operands;
    kir_op op;
} ASKED[] = {
    {"division", 2, KIR_DIV}, {"the square root", 1, KIR_SQRT}, {"fma", 3, KIR_FMA},
    {"addition", 2, KIR_ADD}, {"multiplication", 2, KIR_MUL},   {"exp", 1, KIR_EXP},
};

static kir_val exact_result_of(kir_builder *b, size_t asked, const kir_val *x) {
    if (ASKED[asked].operands == 3) return kir_fma(b, x[0], x[1], x[2]);
    kir_op op = ASKED[asked].op;
    return ASKED[asked].operands == 1 ? kir_unary(b, op, x[0]) : kir_binary(b, op, x[0], x[1]);
}

/* results[k · VALUES + i] = operation k of the i-th values of each operand. */
static tn_status make_program(kir_program **p, int64_t **sizes) {
    kir_builder *b = NULL;
    kir_val x[OPERANDS];
    int64_t extent = VALUES;
    kir_aff at = kir_aff_const(0);
    TRY(kir_begin(1, 0, &extent, &b));
    at.s[0] = 1;
    int in = kir_buffer(b, TN_F32), out = kir_buffer(b, TN_F32);
    for (int k = 0; k < OPERANDS; k++) {
        at.c = k * VALUES;
        x[k] = kir_load(b, in, &at, KIR_NONE);
    }
    for (size_t k = 0; k < TN_COUNT(ASKED); k++) {
        at.c = (int64_t)k * VALUES;
        kir_store(b, out, &at, exact_result_of(b, k, x), KIR_NONE);
    }
    return kir_finish(b, p, sizes);
}

/* Each of the special values with each, then any bits, half of them of ordinary size. */
static void make_values(uint64_t seed, uint32_t *values) {
    static const uint32_t special[] = {0,          0x80000000, 1,          0x807FFFFF, 0x00400000, 0x00800000,
                                       0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x3F800000, 0xBF800001,
                                       0x40490FDB, 0x34000000, 0x4B800001, 0xC2AEAC50};
    enum { COUNT = TN_COUNT(special) };
    for (size_t i = 0; i < OPERANDS * VALUES; i++) {
        uint64_t word[2] = {seed, i};
        uint32_t any = (uint32_t)tn_hash64(word, sizeof word, 7);
        values[i] = i % 2 ? any : (any & 0x87FFFFFF) | 0x38000000;
    }
    for (size_t i = 0; i < COUNT * COUNT; i++) {
        values[i] = special[i % COUNT];
        values[VALUES + i] = special[i / COUNT];
        values[2 * VALUES + i] = special[i * 7 % COUNT];
    }
}

static bool is_nan(uint32_t bits) { return (bits & 0x7FFFFFFF) > 0x7F800000; }

static float exact_number_of(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static bool compare_exact(const uint32_t *values, const uint32_t *got, const uint32_t *want, char *why, size_t size) {
    for (size_t i = 0; i < TN_COUNT(ASKED) * VALUES; i++) {
        if (got[i] == want[i] || (is_nan(got[i]) && is_nan(want[i]))) continue;
        const uint32_t *x = values + i % VALUES;
        char of[96];
        int n = snprintf(of, sizeof of, "%.9g", (double)exact_number_of(x[0]));
        for (int k = 1; k < ASKED[i / VALUES].operands; k++)
            n += snprintf(of + n, sizeof of - (size_t)n, ", %.9g", (double)exact_number_of(x[k * VALUES]));
        snprintf(why, size,
                 "%s of %s is %.9g (%08x), it should be %.9g (%08x): the driver promises bits that it does "
                 "not keep (caps.exact)",
                 ASKED[i / VALUES].name, of, (double)exact_number_of(got[i]), got[i], (double)exact_number_of(want[i]),
                 want[i]);
        return false;
    }
    return true;
}

/* Operands to the device, the kernel, its results back. */
static tn_status run_there(tn_device *d, const kir_program *p, const int64_t *sizes, const uint32_t *values,
                           tn_buffer *const *memory, uint32_t *got) {
    tn_kernel *k = NULL;
    TRY(tn_buffer_write(memory[0], 0, values, OPERANDS * VALUES * sizeof *values));
    TRY(tn_kernel_get(d, p, &k));
    tn_launch launch = {.sizes = sizes, .buffers = (void *[]){memory[0]->address, memory[1]->address}};
    tn_status s = tn_kernel_launch(d, k, &launch, 1);
    if (s == TN_OK) s = tn_device_synchronize(d);
    tn_kernel_release(k);
    return s == TN_OK ? tn_buffer_read(memory[1], 0, got, TN_COUNT(ASKED) * VALUES * sizeof *got) : s;
}

tn_status tn_device_try_exact(tn_device *d, uint64_t seed, bool *exact, char *why, size_t size) {
    enum { RESULTS = TN_COUNT(ASKED) * VALUES };
    kir_program *p = NULL;
    int64_t *sizes = NULL;
    tn_buffer *memory[2] = {NULL, NULL};
    TRY(make_program(&p, &sizes));
    uint32_t *values = tn_mem_zalloc(OPERANDS * VALUES + 2 * RESULTS, sizeof *values);
    uint32_t *got = values ? values + OPERANDS * VALUES : NULL, *want = values ? got + RESULTS : NULL;
    tn_status s = values ? tn_buffer_new(d, OPERANDS * VALUES * sizeof *values, &memory[0]) : TN_ERR_MEMORY;
    if (s == TN_OK) s = tn_buffer_new(d, RESULTS * sizeof *got, &memory[1]);
    if (s == TN_OK) {
        make_values(seed, values);
        s = kir_interpret(p, &(kir_launch){.sizes = sizes, .buffers = (void *[]){values, want}});
    }
    if (s == TN_OK) s = run_there(d, p, sizes, values, memory, got);
    *exact = s == TN_OK && compare_exact(values, got, want, why, size);
    tn_buffer_release(memory[0]);
    tn_buffer_release(memory[1]);
    tn_mem_free(values);
    tn_mem_free(sizes);
    kir_free(p);
    return s;
}
