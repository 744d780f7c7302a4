/* render.c — the frame of rendered kernels, and the table of language dialects. */
#include <stdio.h>
#include <string.h>

#include "kir/kir_math.h"
#include "kir/render.h"
#include "kir/render_text.h"
#include "kir/rules.h"
#include "trunnion/backend.h"

#include "gen/render_prelude.h"

enum { NEEDED = PRELUDE_TABLES + PRELUDE_ROWS + 1 };

/* ---- the prelude ------------------------------------------------------------------------------------------------- */

void kir_render_need(render *r, const char *function) {
    for (int i = 0; i < PRELUDE_ROWS; i++)
        if (strcmp(PRELUDE[i].name, function) == 0) r->needed[PRELUDE_TABLES + 1 + i] = true;
}

/* Marks what the marked rows call; those come before them. */
static void close_needs(bool *needed) {
    for (int i = PRELUDE_ROWS - 1; i >= 0; i--) {
        if (!needed[PRELUDE_TABLES + 1 + i]) continue;
        for (const char *other = PRELUDE[i].needs; *other; other++)
            needed[(unsigned char)*other] = true;
    }
}

static const char *double_user(const bool *needed) {
    for (int i = 0; i < PRELUDE_ROWS; i++)
        if (needed[PRELUDE_TABLES + 1 + i] && PRELUDE[i].f64) return PRELUDE[i].name;
    return NULL;
}

static void put_two_over_pi(render *r) {
    kir_render_words(r, "$table $u32 kir_two_over_pi[42] = {");
    for (int i = 0; i < 42; i++)
        kir_render_put(r, "%s0x%08xU", i ? ", " : "", kir_two_over_pi[i]);
    kir_render_words(r, "};\n");
}

static void put_erf_table(render *r) {
    kir_render_put(r, "$table $f64 kir_erf_table[%d][%d] = {\n", KIR_ERF_DEGREE + 1, KIR_ERF_PIECES);
    for (int k = 0; k <= KIR_ERF_DEGREE; k++) {
        for (int piece = 0; piece < KIR_ERF_PIECES; piece++)
            kir_render_put(r, "%s%a", piece ? ", " : "    {", kir_erf_table[k][piece]);
        kir_render_words(r, "},\n");
    }
    kir_render_words(r, "};\n");
}

/* A function of the prelude, or the device's own if it is available. */
static void put_function(render *r, const prelude_row *row) {
    const kir_dialect *d = r->t->dialect;
    const char *own = !d->halves.condition                     ? NULL
                      : strcmp(row->name, "kir_from_f16") == 0 ? d->halves.from
                      : strcmp(row->name, "kir_to_f16") == 0   ? d->halves.to
                                                               : NULL;
    if (own) kir_render_put(r, "#ifdef %s\n%s#else\n", d->halves.condition, own);
    kir_render_words(r, row->text);
    if (own) kir_render_words(r, "#endif\n");
}

static void put_prelude(render *r) {
    kir_render_words(r, "\n");
    if (r->needed[PRELUDE_TWO_OVER_PI]) put_two_over_pi(r);
    if (r->needed[PRELUDE_ERF_TABLE]) put_erf_table(r);
    for (int i = 0; i < PRELUDE_ROWS; i++)
        if (r->needed[PRELUDE_TABLES + 1 + i]) put_function(r, &PRELUDE[i]);
}

/* ---- what the target must have ----------------------------------------------------------------------------------- */

static bool has_type(const kir_program *p, kir_type a, kir_type b) {
    for (int i = 0; i < p->n_ins; i++)
        if (kir_yields((kir_op)p->ins[i].op) && (p->ins[i].type == a || p->ins[i].type == b)) return true;
    return false;
}

static tn_status refuse_program(const kir_program *p, const kir_target *t, const char *why) {
    return tn_fail(TN_ERR_UNSUPPORTED, "kernel %016llx in %s: %s", (unsigned long long)p->hash, t->dialect->name, why);
}

static tn_status check_target(const kir_program *p, const kir_target *t) {
    if (t->group_size < 1 || t->group_size > KIR_MAX_ITEMS)
        return tn_fail(TN_ERR_ARGUMENT, "rendering: workgroups of %d items, should be 1 to %d", t->group_size,
                       KIR_MAX_ITEMS);
    int lanes = kir_lanes(p);
    if (lanes > 0 && !t->dialect->matrices.text) return refuse_program(p, t, "it has matrices, the language has none");
    if (lanes == KIR_WIDE && !(t->wide && t->dialect->matrices.wide))
        return refuse_program(p, t, "it has wide matrices, the device has none");
    if (lanes > 0 && kir_shortens(p) && !t->dialect->matrices.short_f32)
        return refuse_program(p, t, "it has matrices of shortened 32-bit floats, the language has none");
    if (lanes > 0 && lanes != KIR_WIDE && lanes != t->lanes)
        return refuse_program(p, t, "it has matrices of other subgroups than the device");
    if (p->n_items > 0 && !t->dialect->groups) return refuse_program(p, t, "it has workgroups, the language has none");
    if (!t->f64 && has_type(p, KIR_F64, KIR_F64))
        return refuse_program(p, t, "it computes with 64-bit floats, the device has none");
    if (!t->dialect->words[WORD_i64] && !t->dialect->write && !t->index32)
        return refuse_program(p, t, "this launch has indices beyond 32 bits, the language has none");
    return TN_OK;
}

bool kir_dialect_has_words(const kir_dialect *d) { return (d->legal & KIR_LEGAL_I64) != 0; }

/* ---- one kernel -------------------------------------------------------------------------------------------------- */

static bool is_dynamic_shared(const kir_target *t, int64_t local_bytes) {
    return t->dialect->memory.most_declared && local_bytes > t->dialect->memory.most_declared;
}

/* Bytes of a local buffer, up to the begin of the next one. */
static int local_room(const kir_program *p, int buffer) {
    return (p->local[buffer] * (int)tn_dtype_size((tn_dtype)p->buffer_dtype[buffer]) + 15) & ~15;
}

static void describe_rendering(const kir_program *p, const kir_target *t, kir_rendering *out) {
    int64_t apart = 0;
    *out = (kir_rendering){.local_bytes = kir_local_bytes(p), .lanes = kir_lanes(p)};
    for (int i = 0; i < p->n_buffers; i++) {
        out->buffer_count += p->local[i] == 0;
        apart += local_room(p, i);
    }
    if (is_dynamic_shared(t, apart)) out->local_bytes = apart;
    out->bases_at = (kir_sizes_count(p) + (size_t)p->n_scalars) * 8;
    out->params_bytes = out->bases_at + (size_t)out->buffer_count * 8;
    size_t most = t->dialect->params.most_by_value ? (size_t)t->dialect->params.most_by_value : 1000;
    out->params_in_buffer =
        t->dialect->params.by_address_always || out->params_bytes + (size_t)out->buffer_count * 8 > most;
    out->group[0] = (uint32_t)(p->n_items > 0 ? kir_items(p) : t->group_size);
    out->group[1] = out->group[2] = 1;
    snprintf(out->entry, sizeof out->entry, "kernel_%016llx", (unsigned long long)p->hash);
}

/* Writes `text` for each buffer that is global or not; $base: of its base among the parameters, or of its bytes. */
static void each_buffer(render *r, bool local, const char *text) {
    int base = local ? 0 : (int)(r->kernel->bases_at / 8);
    for (r->n = 0; r->n < r->p->n_buffers; r->n++) {
        r->type = kir_render_memory(r, r->n);
        r->size = r->p->local[r->n];
        r->base = base;
        if ((r->size > 0) == local) kir_render_words(r, text);
        base += local ? local_room(r->p, r->n) : r->size == 0;
    }
    r->n = 0;
}

static void put_extents(render *r) {
    int axes = r->p->n_par + r->p->n_loop, lead = kir_lead_axes(r->p);
    for (int axis = 0; axis < axes; axis++) {
        kir_render_put(r, "    $let $ix n%d = ", axis);
        if (axis < lead || axis >= r->p->n_par)
            kir_render_size(r, (size_t)axis);
        else
            kir_render_put(r, "%d", r->p->item[axis - lead]);
        kir_render_put(r, ";\n");
    }
    kir_render_put(r, "    $let $ix count = ");
    for (int axis = 0; axis < lead; axis++)
        kir_render_put(r, "%sn%d", axis ? " * " : "", axis);
    kir_render_put(r, "%s;\n", lead == 0 ? "1" : "");
}

/* The coordinates first … end-1, named with `letter`, of an index that runs through them, the last one fastest. */
static void put_coordinates(render *r, char letter, const char *number, int first, int end) {
    char rest[24];
    snprintf(rest, sizeof rest, "%s", number);
    for (int axis = end - 1; axis > first; axis--) {
        kir_render_line(r, "$let $ix f%d = %s / n%d;\n", axis, rest, axis);
        kir_render_line(r, "$let $ix %c%d = %s - f%d * n%d;\n", letter, axis, rest, axis, axis);
        snprintf(rest, sizeof rest, "f%d", axis);
    }
    if (end == first) return;
    kir_render_line(r, "$let $ix %c%d = %s;\n", letter, first, rest);
}

/* Coordinates of a plain program: those of the workgroup's first point, u, which all items share, then the offset to
 * this item with carries, which are small: a quotient of small numbers, or 0 or 1 along an axis longer than a
 * workgroup. */
static void put_point(render *r, int end) {
    put_coordinates(r, 'u', "start", 0, end);
    for (int axis = end - 1; axis >= 0; axis--) {
        char carry[16] = "item";
        if (axis < end - 1) snprintf(carry, sizeof carry, "q%d", axis + 1);
        if (axis == 0) {
            kir_render_line(r, "$let $ix x0 = u0 + %s;\n", carry);
            return;
        }
        kir_render_line(r, "$let $ix y%d = u%d + %s;\n", axis, axis, carry);
        kir_render_line(r, "$var $ix q%d = 0;\n", axis);
        kir_render_line(r, "if (n%d < $items) { q%d = $ix(($f32($i32(y%d)) + 0.5f) * r%d); }\n", axis, axis, axis,
                        axis);
        kir_render_line(r, "else if (y%d >= n%d) { q%d = 1; }\n", axis, axis, axis);
        kir_render_line(r, "$let $ix x%d = y%d - q%d * n%d;\n", axis, axis, axis, axis);
    }
}

static void put_reciprocals(render *r, int end) {
    for (int axis = 1; axis < end; axis++)
        kir_render_put(r, "    $let $f32 r%d = 1.0f / $f32(n%d);\n", axis, axis);
}

static void open_kernel(render *r) {
    const kir_dialect *d = r->t->dialect;
    if (!r->kernel->params_in_buffer) kir_render_words(r, d->params.type);
    kir_render_words(r, d->open);
    each_buffer(r, false, d->buffer);
    kir_render_words(r, r->kernel->params_in_buffer ? d->params.by_address : d->params.by_value);
    each_buffer(r, false, d->bind);
    bool dynamic_shared = is_dynamic_shared(r->t, r->kernel->local_bytes);
    if (dynamic_shared) kir_render_words(r, d->memory.dynamic);
    each_buffer(r, true, dynamic_shared ? d->memory.local_dynamic : d->memory.local);
}

static void put_kernel(render *r) {
    const kir_dialect *d = r->t->dialect;
    int lead = kir_lead_axes(r->p);
    bool group = r->p->n_items > 0;
    r->aligned = kir_lanes(r->p) > 0;
    r->wide = kir_lanes(r->p) == KIR_WIDE;
    kir_render_put(r, "\n/* program %016llx */\n", (unsigned long long)r->p->hash);
    if (d->open_kernel)
        d->open_kernel(r);
    else
        open_kernel(r);
    put_extents(r);
    if (!group) put_reciprocals(r, lead);
    r->depth = d->loops ? 3 : 1;
    r->axes_open = (1U << r->p->n_par) - 1;
    kir_render_words(r, group ? d->items : d->points);
    if (group) {
        put_coordinates(r, 'x', "group", 0, lead);
        put_coordinates(r, 'x', "item", lead, r->p->n_par);
    } else {
        put_point(r, lead);
    }
    kir_render_range(r, 0, r->p->n_ins);
    kir_render_words(r, d->close);
}

/* ---- sources ----------------------------------------------------------------------------------------------------- */

/* A kernel of the program as the language can have it. */
static tn_status put_legal_kernel(render *r, const kir_program *p) {
    kir_program *legal;
    const kir_dialect *d = r->t->dialect;
    const unsigned halves = KIR_LEGAL_HALVES | KIR_LEGAL_BRAINS;
    TRY(kir_legalise(p, r->t->f16 ? d->legal & ~halves : d->legal, &legal));
    bool whole = !d->words[WORD_i64] && has_type(legal, KIR_I64, KIR_U64);
    r->p = legal;
    if (!whole) put_kernel(r);
    kir_free(legal);
    return whole ? refuse_program(p, r->t, "it computes with 64-bit integers, the language has none") : TN_OK;
}

/* Over all kernels: 0, the lanes of a subgroup of the device, or KIR_WIDE. */
static int most_lanes(const kir_program *const *programs, int count) {
    int most = 0;
    for (int i = 0; i < count; i++)
        most = most > kir_lanes(programs[i]) ? most : kir_lanes(programs[i]);
    return most;
}

static tn_status put_source(const kir_program *const *programs, int count, const kir_target *t, bool *needed,
                            kir_rendering *out) {
    tn_str kernels = {0};
    render r = {.t = t, .text = &kernels, .needed = needed};
    tn_status status = TN_OK;
    for (int i = 0; i < count && status == TN_OK; i++) {
        r.p = programs[i];
        r.kernel = &out[i];
        if (t->dialect->legal)
            status = put_legal_kernel(&r, programs[i]);
        else
            put_kernel(&r);
        out[i].head_size = r.head_size;
    }
    if (!t->dialect->legal) close_needs(needed);
    r.text = &out[0].text;
    kir_render_words(&r, t->dialect->head);
    if (t->f64) kir_render_words(&r, t->dialect->head_f64);
    if (most_lanes(programs, count) > 0) {
        kir_render_put(&r, "#define MAT_LANES %d\n", t->lanes);
        kir_render_words(&r, t->dialect->matrices.text);
        if (most_lanes(programs, count) == KIR_WIDE) kir_render_words(&r, t->dialect->matrices.wide);
    }
    if (!t->dialect->legal) put_prelude(&r);
    tn_str_addn(&out[0].text, tn_str_text(&kernels), kernels.length);
    bool failed = kernels.failed || out[0].text.failed;
    tn_str_free(&kernels);
    TRY(status);
    const char *user = t->f64 ? NULL : double_user(needed);
    if (user) return refuse_program(programs[0], t, user);
    return failed ? TN_ERR_MEMORY : TN_OK;
}

tn_status kir_render_all(const kir_program *const *programs, int count, const kir_target *t, kir_rendering *out) {
    TN_C_LOCALE;
    for (int i = 0; i < count; i++) {
        out[i] = (kir_rendering){.local_bytes = 0};
        TRY(check_target(programs[i], t));
    }
    for (int i = 0; i < count; i++)
        describe_rendering(programs[i], t, &out[i]);
    bool needed[NEEDED] = {false};
    tn_status status =
        t->dialect->write ? t->dialect->write(programs, count, t, out) : put_source(programs, count, t, needed, out);
    if (status != TN_OK) kir_rendering_free(&out[0]);
    return status;
}

tn_status kir_render(const kir_program *p, const kir_target *t, kir_rendering *out) {
    return kir_render_all(&p, 1, t, out);
}

void kir_rendering_free(kir_rendering *r) {
    if (r) tn_str_free(&r->text);
}

void kir_count_groups(const kir_program *p, const int64_t *sizes, const kir_target *t, uint64_t limit_x,
                      uint32_t groups[3]) {
    uint64_t count = 1;
    groups[0] = groups[1] = groups[2] = 0;
    for (int axis = 0; axis < p->n_par; axis++) {
        if (sizes[axis] == 0) return;
        if (axis < kir_lead_axes(p)) count *= (uint64_t)sizes[axis];
    }
    if (p->n_items == 0) count = (count - 1) / (uint64_t)t->group_size + 1;
    if (limit_x == 0 || limit_x > INT32_MAX) limit_x = INT32_MAX;
    uint64_t x = count < limit_x ? count : limit_x, rows = (count - 1) / x + 1;
    uint64_t y = rows < UINT16_MAX ? rows : UINT16_MAX;
    groups[0] = (uint32_t)x;
    groups[1] = (uint32_t)y;
    groups[2] = (uint32_t)((rows - 1) / y + 1);
}

/* ==== dialects: one row a language ================================================================================ */
/* Another language of C's family is one more row. Texts may use the words of render_text.h. Of the kernel being
 * written: $entry its name, $items of a workgroup, $words in its block of parameters, $p that block, $ix the type of
 * indices. Of the current buffer: $n its number, $type its elements' type, $const ("const " unless it is written),
 * $base the index of its base, $slot its index among the global ones, which are $buffers, $size its number of elements
 * if it is local. */

#define SAME_NAME(name) [WORD_##name##_f32] = #name, [WORD_##name##_f64] = #name
#define C_NAME(name) [WORD_##name##_f32] = #name "f", [WORD_##name##_f64] = #name
#define MSL_NAME(name) [WORD_##name##_f32] = #name
#define MATHS_BUT_SQRT(X) X(fabs), X(floor), X(ceil), X(trunc), X(rint), X(fmod), X(fma), X(copysign)
#define MATHS(X) X(sqrt), MATHS_BUT_SQRT(X)
#define SHORT_TYPES                                                                                             \
    [WORD_f32] = "float", [WORD_i32] = "int", [WORD_i64] = "long", [WORD_u32] = "uint", [WORD_u64] = "ulong",   \
    [WORD_i16] = "short", [WORD_u16] = "ushort", [WORD_i8] = "char", [WORD_u8] = "uchar", [WORD_bool] = "bool", \
    [WORD_function] = "static inline"

/* The texts of languages whose kernels run a workgroup at a time. */
#define WORKGROUPS                                                                     \
    .points = "    const $u64 begin = $group * $items;\n"                              \
              "    if (begin + $item >= ($u64)count) return;\n"                        \
              "    const $ix start = ($ix)begin, item = ($ix)$item;\n",                \
    .items = "    const $u64 workgroup = $group;\n"                                    \
             "    if (workgroup >= ($u64)count) return;\n"                             \
             "    const $ix group = ($ix)workgroup, item = ($ix)$item;\n",             \
    .close = "}\n", .groups = true, .choice = "#0 ? #1 : #2", .params.word = "$p[$n]", \
    .memory.array = "$type s$n[$size];\n"

const kir_dialect kir_dialect_opencl = {
    .name = "OpenCL C",
    .words =
        {
            SHORT_TYPES,
            [WORD_f64] = "double",
            [WORD_table] = "__constant const",
            [WORD_constant] = "__constant const",
            [WORD_global] = "__global ",
            [WORD_local] = "__local ",
            [WORD_l] = "L",
            [WORD_ul] = "UL",
            [WORD_inf] = "INFINITY",
            [WORD_nan] = "NAN",
            [WORD_barrier] = "barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);",
            [WORD_group] = "(get_group_id(0) + get_num_groups(0) * (get_group_id(1) + get_num_groups(1) * "
                           "get_group_id(2)))",
            [WORD_item] = "get_local_id(0)",
            [WORD_bits_f32] = "as_uint",
            [WORD_from_bits_f32] = "as_float",
            [WORD_bits_f64] = "as_ulong",
            [WORD_from_bits_f64] = "as_double",
            MATHS(SAME_NAME),
        },
    .head = "#pragma OPENCL FP_CONTRACT OFF\n",
    .head_f64 = "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n",
    .params.type = "typedef struct { $i64 w[$words]; } params_$entry;\n",
    .open = "__kernel __attribute__((reqd_work_group_size($items, 1, 1)))\nvoid $entry(",
    .buffer = "__global $const$u8 *a$n, ",
    .params.by_value = "const params_$entry p) {\n",
    .params.by_address = "__global const $i64 *restrict p) {\n",
    .bind = "    __global $const$type *b$n = (__global $const$type *)(a$n + $p[$base]);\n",
    WORKGROUPS,
    .params.array_by_value = "p.w",
    .params.array_by_address = "p",
    .memory.local = "    $local$type b$n[$size];\n",
};

/* Every pointer names its address space, and there are no conversions between them. The binding of the words is the one
 * after the buffers'. Apple's specification of safe mathematics says that sums, products, fma, quotients and square
 * roots are rounded correctly, but subnormal numbers may be zero; so tn_caps.exact is false there. Its `precise`
 * functions are used where there is a choice. Not compiled by Apple's compiler so far: see the tests' double. */
const kir_dialect kir_dialect_msl = {
    .name = "the Metal shading language",
    .words =
        {
            SHORT_TYPES,
            [WORD_table] = "constant",
            [WORD_constant] = "constant",
            [WORD_global] = "device ",
            [WORD_local] = "threadgroup ",
            [WORD_own] = "thread ",
            [WORD_l] = "L",
            [WORD_ul] = "UL",
            [WORD_inf] = "as_type<float>(0x7f800000U)",
            [WORD_nan] = "as_type<float>(0x7fc00000U)",
            [WORD_barrier] = "threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);",
            [WORD_group] = "((ulong)at.x + (ulong)across.x * ((ulong)at.y + (ulong)across.y * (ulong)at.z))",
            [WORD_item] = "me",
            [WORD_bits_f32] = "as_type<uint>",
            [WORD_from_bits_f32] = "as_type<float>",
            [WORD_sqrt_f32] = "precise::sqrt",
            MATHS_BUT_SQRT(MSL_NAME),
        },
    .head = "#include <metal_stdlib>\n"
            "#pragma METAL fp math_mode(safe)\n"
            "#pragma METAL fp contract(off)\n"
            "#pragma STDC FP_CONTRACT OFF\n"
            "using namespace metal;\n",
    .open = "[[kernel, max_total_threads_per_threadgroup($items)]] void $entry(\n    ",
    .buffer = "device $const$u8 *a$n [[buffer($slot)]], ",
    .params.by_address = "constant $i64 *p [[buffer($buffers)]],\n    uint3 at [[threadgroup_position_in_grid]], "
                         "uint3 across [[threadgroups_per_grid]],\n    uint me [[thread_index_in_threadgroup]]) {\n",
    .bind = "    device $const$type *b$n = (device $const$type *)(a$n + $p[$base]);\n",
    WORKGROUPS,
    .params.array_by_address = "p",
    .memory.local = "    $local$type b$n[$size]$aligned;\n",
    .params.by_address_always = true,
    .matrices.text = kir_matrix_msl,
};

const kir_dialect kir_dialect_c = {
    .name = "C",
    .words =
        {
            [WORD_f32] = "float",
            [WORD_f64] = "double",
            [WORD_i32] = "int32_t",
            [WORD_i64] = "int64_t",
            [WORD_u32] = "uint32_t",
            [WORD_u64] = "uint64_t",
            [WORD_i16] = "int16_t",
            [WORD_u16] = "uint16_t",
            [WORD_i8] = "int8_t",
            [WORD_u8] = "uint8_t",
            [WORD_bool] = "bool",
            [WORD_function] = "static inline",
            [WORD_table] = "const",
            [WORD_constant] = "const",
            [WORD_global] = "",
            [WORD_l] = "LL",
            [WORD_ul] = "ULL",
            [WORD_inf] = "INFINITY",
            [WORD_nan] = "NAN",
            [WORD_bits_f32] = "bits_f32",
            [WORD_from_bits_f32] = "from_bits_f32",
            [WORD_bits_f64] = "bits_f64",
            [WORD_from_bits_f64] = "from_bits_f64",
            MATHS(C_NAME),
        },
    .head = "/* to be compiled with -ffp-contract=off */\n"
            "#include <math.h>\n#include <stdbool.h>\n#include <stdint.h>\n#include <string.h>\n\n"
            "static inline uint32_t bits_f32(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }\n"
            "static inline float from_bits_f32(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }\n",
    .head_f64 = "static inline uint64_t bits_f64(double x) { uint64_t u; memcpy(&u, &x, 8); return u; }\n"
                "static inline double from_bits_f64(uint64_t u) { double x; memcpy(&x, &u, 8); return x; }\n",
    .params.type = "",
    .open = "void $entry(",
    .buffer = "",
    .params.by_value = "const void *params, void *const *a, uint64_t first, uint64_t last) {\n"
                       "    const int64_t *p = params;\n",
    .params.by_address = "const void *params, void *const *a, uint64_t first, uint64_t last) {\n"
                         "    const int64_t *p = params;\n",
    .bind = "    $const$type *b$n = ($const$type *)((char *)a[$n] + $p[$base]);\n",
    .points =
        "    for ($u64 group = first; group < last; group++) {\n"
        "        const $ix start = ($ix)(group * $items), most = count - start < $items ? count - start : $items;\n"
        "        for ($ix item = 0; item < most; item++) {\n",
    .close = "        }\n    }\n}\n",
    .params.array_by_value = "p",
    .params.array_by_address = "p",
    .loops = true,
    .choice = "#0 ? #1 : #2",
    .params.word = "$p[$n]",
    .memory.array = "$type s$n[$size];\n",
    .memory.local = "",
};

/* CUDA C and HIP C. Both compilers have these functions without any header, and are told to round as IEEE 754 requires
 * (drivers/cuda.c): no contraction, correctly rounded division and square root, subnormal numbers kept. */
#define GPU_WORDS                                                                                                    \
    [WORD_f32] = "float", [WORD_f64] = "double", [WORD_i32] = "int", [WORD_i64] = "long long",                       \
    [WORD_u32] = "unsigned", [WORD_u64] = "unsigned long long", [WORD_i16] = "short", [WORD_u16] = "unsigned short", \
    [WORD_i8] = "signed char", [WORD_u8] = "unsigned char", [WORD_bool] = "bool",                                    \
    [WORD_function] = "static __device__ inline", [WORD_table] = "__device__ const", [WORD_constant] = "const",      \
    [WORD_global] = "", [WORD_local] = "__shared__ ", [WORD_l] = "LL", [WORD_ul] = "ULL",                            \
    [WORD_inf] = "__uint_as_float(0x7f800000U)", [WORD_nan] = "__uint_as_float(0x7fc00000U)",                        \
    [WORD_barrier] = "__syncthreads();",                                                                             \
    [WORD_group] = "(blockIdx.x + (unsigned long long)gridDim.x * (blockIdx.y + (unsigned long long)gridDim.y "      \
                   "* blockIdx.z))",                                                                                 \
    [WORD_item] = "threadIdx.x", [WORD_bits_f32] = "__float_as_uint", [WORD_from_bits_f32] = "__uint_as_float",      \
    [WORD_bits_f64] = "(unsigned long long)__double_as_longlong", [WORD_from_bits_f64] = "__longlong_as_double",     \
    MATHS(C_NAME)

#define GPU_TEXTS                                                                                                     \
    .head = "", .head_f64 = "", .params.type = "struct params_$entry { $i64 w[$words]; };\n",                         \
    .open = "extern \"C\" __global__ void __launch_bounds__($items) $entry(", .buffer = "$const$u8 *a$n, ",           \
    .params.by_value = "const params_$entry p) {\n", .params.by_address = "const $i64 *__restrict__ p) {\n",          \
    .bind = "    $const$type *b$n = ($const$type *)(a$n + $p[$base]);\n", WORKGROUPS, .params.array_by_value = "p.w", \
    .params.array_by_address = "p", .params.most_by_value = 4096,                                                     \
    .memory.local = "    $local$type b$n[$size]$aligned;\n"

const kir_dialect kir_dialect_cuda = {
    .name = "CUDA C",
    .memory.most_declared = TN_CUDA_DECLARED,
    .memory.dynamic = "#ifdef __CUDA_ARCH__\n"
                      "    extern __shared__ __attribute__((aligned(16))) unsigned char workgroup_memory[];\n"
                      "#endif\n",
    .memory.local_dynamic = "    $type *const b$n = ($type *)(workgroup_memory + $base);\n",
    .matrices.text = kir_matrix_cuda,
    .matrices.wide = kir_wide_cuda,
    .matrices.short_f32 = true,
    .words = {GPU_WORDS},
    GPU_TEXTS,
    .halves.condition = "__CUDA_ARCH__",
    .halves.from = "static __device__ inline float kir_from_f16(unsigned short h) {\n"
                   "    float x;\n"
                   "    asm(\"cvt.f32.f16 %0, %1;\" : \"=f\"(x) : \"h\"(h));\n"
                   "    return x;\n"
                   "}\n",
    .halves.to = "static __device__ inline unsigned short kir_to_f16(float x) {\n"
                 "    unsigned short h;\n"
                 "    asm(\"cvt.rn.f16.f32 %0, %1;\" : \"=h\"(h) : \"f\"(x));\n"
                 "    return h;\n"
                 "}\n",
};

const kir_dialect kir_dialect_hip = {
    .name = "HIP C",
    .matrices.text = kir_matrix_hip,
    .words = {GPU_WORDS},
    GPU_TEXTS,
    .halves.condition = "__AMDGCN__",
    .halves.from = "static __device__ inline float kir_from_f16(unsigned short h) {\n"
                   "    return (float)__builtin_bit_cast(_Float16, h);\n"
                   "}\n",
    .halves.to = "static __device__ inline unsigned short kir_to_f16(float x) {\n"
                 "    return __builtin_bit_cast(unsigned short, (_Float16)x);\n"
                 "}\n",
};
