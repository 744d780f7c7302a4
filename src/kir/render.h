/* render.h — a kernel program as source text, or words, of a language that a device's compiler takes.
 *
 * One renderer (render_c.c, render_loop.c) writes all languages of C's family; what they spell differently is a row of
 * words and short texts, the dialect (render_dialects.c). A language outside of this family has a writer of its own.
 * The functions of kir_math.h are put in as text that is made from that header (render_prelude.h), so a rendered kernel
 * yields the interpreter's bits wherever the device rounds as IEEE 754 has it. A program's text depends on its
 * structure and the target alone: it is the same in every process.
 *
 * A kernel's parameters are one buffer for each global buffer, in order, and a block of 8-byte words: the sizes
 * (kir_sizes_count), the runtime scalars as they are, and for each global buffer a base, in bytes, that is added to its
 * address. One item computes one point of a plain program; a group program's workgroup is the kernel's. */
#ifndef KIR_RENDER_H
#define KIR_RENDER_H

#include "kir/kir.h"

typedef struct kir_dialect kir_dialect;
extern const kir_dialect kir_dialect_opencl;                /* OpenCL C 1.2 */
extern const kir_dialect kir_dialect_msl;                   /* Metal's, 2.3 */
extern const kir_dialect kir_dialect_wgsl;                  /* WGSL */
extern const kir_dialect kir_dialect_cuda, kir_dialect_hip; /* as NVRTC and hiprtc take them, without any header */
extern const kir_dialect kir_dialect_spirv;                 /* SPIR-V 1.3, for Vulkan 1.1 */
/* C11. `void entry(const void *params, void *const *buffers, uint64_t first, uint64_t last)` computes the workgroups
 * first … last-1 of a plain program. */
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
    bool params_in_buffer; /* the block is more than every device takes by value: its address comes instead */
    size_t head_size;      /* bytes of a WGSL source that may be replaced (wgsl.h) */
    int lanes;             /* items of its subgroups, where it has such (kir_lanes) */
} kir_rendering;

/* Errors: TN_ERR_UNSUPPORTED for what the target lacks (doubles, workgroups), TN_ERR_MEMORY. */
tn_status kir_render(const kir_program *p, const kir_target *t, kir_rendering *out);
void kir_rendering_free(kir_rendering *r);

/* Several kernels in one source: out[0].text is that of all, the others' texts are empty. */
tn_status kir_render_all(const kir_program *const *programs, int count, const kir_target *t, kir_rendering *out);

/* How many workgroups a launch takes; all zero when it has no point. `limit_x`: the most along the first axis. */
void kir_count_groups(const kir_program *p, const int64_t *sizes, const kir_target *t, uint64_t limit_x,
                      uint32_t groups[3]);

#endif
