/* render.h — KIR programs as source text or words of a device language; the WGSL head that drivers write.
 *
 * One renderer (render_c.c) writes all languages of C's family; their differences are a row of words and short texts,
 * the dialect (render.c). A language outside this family has its own writer. The functions of kir_math.h are inserted
 * as text generated from that header (render_prelude.h), so a rendered kernel gives the interpreter's bits wherever the
 * device rounds as IEEE 754 requires. A program's text depends only on its structure and the target: it is the same in
 * every process.
 *
 * A kernel's parameters are one buffer per global buffer, in order, and a block of 8-byte words: the sizes
 * (kir_sizes_count), the runtime scalars, and for each global buffer a base, in bytes, which is added to its address.
 * One item computes one point of a plain program; a group program's workgroup is the kernel's. */
#ifndef TN_RENDER_H
#define TN_RENDER_H

#include "base/base.h"
#include "kir/kir.h"

typedef struct kir_dialect kir_dialect;
extern const kir_dialect kir_dialect_opencl;                /* OpenCL C 1.2 */
extern const kir_dialect kir_dialect_msl;                   /* Metal's, 2.3 */
extern const kir_dialect kir_dialect_wgsl;                  /* WGSL */
extern const kir_dialect kir_dialect_cuda, kir_dialect_hip; /* as NVRTC and hiprtc take them, without any header */
extern const kir_dialect kir_dialect_spirv;                 /* SPIR-V 1.3, for Vulkan 1.1 */
/* C11. `void entry(const void *params, void *const *buffers, uint64_t first, uint64_t last)` computes workgroups first
 * … last-1 of a plain program. */
extern const kir_dialect kir_dialect_c;

/* Whether it writes programs of words (kir.h) for targets without 64-bit integers; launches must be narrow then. */
bool kir_dialect_has_words(const kir_dialect *d);

typedef struct kir_target {
    const kir_dialect *dialect;
    int group_size;    /* items of a workgroup for plain programs, 1 … KIR_MAX_ITEMS */
    bool index32;      /* for launches whose indices, and numbers of points and loop points plus 1024, fit an int32_t */
    bool f64, f16;     /* types in which the device computes */
    bool i64;          /* (C's family takes it for granted) */
    bool words_only;   /* memory is read and written in words of 32 bits */
    uint32_t features; /* as in tn_caps */
    int64_t window;    /* bytes of a binding where a buffer takes several: a power of two */
    int lanes;         /* items of a subgroup, of devices with matrices; 0: the device has none */
    bool wide;         /* … and whether four subgroups multiply wide matrices */
} kir_target;

typedef struct kir_rendering {
    tn_str text; /* of SPIR-V: words in the machine's byte order */
    char entry[40];
    uint32_t group[3];     /* items of a workgroup */
    size_t params_bytes;   /* of the block of words */
    size_t bases_at;       /* bytes before the first base */
    int64_t local_bytes;   /* workgroup memory */
    int buffer_count;      /* global ones */
    bool params_in_buffer; /* the block is too large to be passed by value: its address is passed */
    size_t head_size;      /* WGSL: bytes at the start that the driver may replace (below) */
    int lanes;             /* items of its subgroups, if it has any (kir_lanes) */
} kir_rendering;

/* Errors: TN_ERR_UNSUPPORTED for what the target lacks (doubles, workgroups), TN_ERR_MEMORY. */
tn_status kir_render(const kir_program *p, const kir_target *t, kir_rendering *out);
void kir_rendering_free(kir_rendering *r);

/* Several kernels in one source: out[0].text has all of them, the others' texts are empty. */
tn_status kir_render_all(const kir_program *const *programs, int count, const kir_target *t, kir_rendering *out);

/* How many workgroups a launch takes; all zero when it has no point. `limit_x`: the most along the first axis. */
void kir_count_groups(const kir_program *p, const int64_t *sizes, const kir_target *t, uint64_t limit_x,
                      uint32_t groups[3]);

/* ==== WGSL heads ================================================================================================== */
/* Which buffers of a launch share an allocation, and how many bindings an allocation takes, is known only at the
 * launch. The driver then replaces the head that came with the kernel (tn_code.head_size) by another one. The rest of
 * the kernel accesses buffers by word3(i), put3(i, v) and flip3(i, v), which read, write and xor word i of buffer 3,
 * and its parameters by p, an array of vec4<u32>. */

enum { KIR_WGSL_BINDINGS = KIR_MAX_BUFFERS + 1 }; /* at most, with the parameters' */

/* How a kernel changes a buffer. */
enum {
    KIR_WGSL_WRITES = 1,
    KIR_WGSL_FLIPS = 2 /* changes parts of words, which other items share: by atomic operations */
};

/* Buffers are in slots, numbered in order of appearance. A slot has consecutive bindings, each of window_words words
 * except the last. */
typedef struct kir_wgsl_head {
    int buffers, slots;
    const uint8_t *uses, *slot_of; /* of a buffer */
    const uint8_t *windows;        /* of a slot; NULL: 1 */
    const uint8_t *twin;           /* … the first one in the same memory, if all or none are written; NULL: itself */
    uint32_t window_words;
    size_t params_bytes;
} kir_wgsl_head;

/* How a kernel uses buffers of these elements (NULL: words), of which it writes some (NULL: all). */
void kir_wgsl_uses(int buffers, const bool *written, const tn_dtype *elements, uint8_t *uses);

/* Adds the head. kinds: a letter for each binding, w(ritten), r(ead) or p(arameters), and a NUL. */
void kir_wgsl_put_head(tn_str *out, const kir_wgsl_head *h, char kinds[KIR_WGSL_BINDINGS + 1]);

/* Whether the text has a function of this name. */
bool kir_wgsl_has_entry(const char *text, const char *name);

/* ---- sources without a head (render_wgsl.c) ---------------------------------------------------------------------- */

/* WebGPU copies whole words between different buffers. patch_words, with 64 items per workgroup, does the rest: words
 * of the first buffer, from a given one on, become bytes of the second buffer, or of one word, where the masks of the
 * first and last word allow it. */
extern const char kir_wgsl_patch[];
enum { KIR_WGSL_PATCH_ITEMS = 64 };
typedef struct kir_wgsl_patch_params {
    uint64_t base[2];
    uint32_t count, first_mask, last_mask, copies, value;
    uint32_t skip; /* bytes of the second buffer before those for the first word */
    uint32_t row;  /* items of a row of workgroups */
    uint32_t pad;
} kir_wgsl_patch_params;

/* One item of `ask` computes with kir_wgsl_asked in its buffer, and leaves results in their place. */
enum { KIR_WGSL_ASKED = 18 };
extern const char kir_wgsl_ask[];
extern const uint32_t kir_wgsl_asked[KIR_WGSL_ASKED];
typedef struct kir_wgsl_answer {
    bool fused, halves; /* fma() rounds once; halves are converted as IEEE 754 has it */
} kir_wgsl_answer;
kir_wgsl_answer kir_wgsl_judge(const uint32_t said[KIR_WGSL_ASKED]);

/* ---- programs without what a language lacks (legal.c) ------------------------------------------------------------ */
/* Rewrites programs, with the same meaning and bits, for languages that lack functions and types.
 *
 * A rewritten program has the axes, sizes, runtime scalars, buffers and accesses of the original, so it takes the same
 * launches. Only instructions differ, and with KIR_LEGAL_HALVES and KIR_LEGAL_BRAINS the dtypes that buffers are
 * declared with. The interpreter runs it like any other. Its steps are those of kir_math.h (legal_table.h is generated
 * from it), so each function has one definition. */

enum {
    /* No EXP, LOG, SIN, COS, TANH, ERF, PHILOX, MIN, MAX, float MOD, ABS of an integer, LT or LE of BOOLs. Integer DIV
     * and MOD have nonzero divisors and quotients that fit; counts of SHL and SHR are within the type's width; a CAST
     * from float to integer has a value that fits (truncating) wherever its result is used: the operand that a SELECT
     * drops may be anything. Reductions and scans stay: their MAX and MIN of floats are those of kir.h. */
    KIR_LEGAL_MATHS = 1,
    /* No I64 and U64: a program of words (kir.h). Implies MATHS and SCALARS. Sizes and
     * parameters are unchanged, and each is read as a 32-bit integer, so only narrow launches may run it: those in
     * which the numbers of points and of loop points, and the affine part of every index and of every INDEX, fit an
     * int32_t (kir_target.index32), on buffers of fewer than 2^31 elements. What is known to fit 32 bits is computed in
     * 32 bits, everything else in pairs; reductions of 64-bit integers become variables. Conversions between f64 and
     * 64-bit integers are TN_ERR_UNSUPPORTED. */
    KIR_LEGAL_I64 = 2,
    /* Buffers of f16 become buffers of u16, local ones too; conversions are arithmetic. The same for bf16 below. */
    KIR_LEGAL_HALVES = 4,
    /* An f32 SCALAR becomes the U64 SCALAR of its bits and arithmetic: for devices without f64. */
    KIR_LEGAL_SCALARS = 8,
    KIR_LEGAL_BRAINS = 16,
};

/* p is a verified program. Errors: TN_ERR_UNSUPPORTED if it grows beyond KIR_MAX_LEGAL_INS, and as above;
 * TN_ERR_MEMORY. The result is freed with kir_free. */
tn_status kir_legalise(const kir_program *p, unsigned what, kir_program **out);

#endif
