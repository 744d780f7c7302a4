/* render_matrix.c — matrices and packets in C's family of languages: the instructions as calls of functions that stand
 * in a source for them.
 *
 * Each language has one text of these (texts/matrix.cu, matrix.hip, matrix.metal): types mat_c (a matrix of 16×16
 * sums), mat_f16, mat_bf16 and mat_tf32 (fragments), mat_packet, and mat_zero, mat_load<kind>, mat_mul, mat_store,
 * mat_fetch, mat_put, mat_copy (a late PUT), mat_commit, mat_wait. How a subgroup's items share a matrix is known there
 * and nowhere else: CUDA's from PTX's tables of mma and ldmatrix, AMD's from those of v_mfma_f32_16x16x16 (64 items)
 * and v_wmma_f32_16x16x16 (32 items); Metal keeps it to itself. The instructions proper are functions called ptx_… and
 * amd_…; a compiler that makes no code for these machines must be given them (the tests' doubles do). */
#include "kir/render_text.h"
#include "kir/rules.h"

#include <stdio.h>

/* b3 + (index */
static void put_pointer(render *r, const kir_ins *in) {
    kir_render_put(r, "b%d + (", r->p->access[in->imm.i].buffer);
    kir_render_index(r, in);
    kir_render_put(r, ")");
}

static render_name matrix_mask_of(const render *r, kir_val mask) {
    render_name always = {"true"};
    return mask == KIR_NONE ? always : kir_render_operand(r, mask);
}

static void put_wide_fragment(render *r, int i, const kir_ins *in, bool half) {
    bool across = !(in->kind & KIR_ALONG_K);
    kir_render_put(r, "const mat_place<%d, %d> v%d = mat_factor_at<%d, %d>(", !half, across, i, !half, across);
    put_pointer(r, in);
    kir_render_put(r, ", %d);\n", kir_pitch(in));
}

static void put_fragment(render *r, int i, const kir_ins *in) {
    tn_dtype t = (tn_dtype)r->p->buffer_dtype[r->p->access[in->imm.i].buffer];
    if (r->wide) {
        put_wide_fragment(r, i, in, t == TN_F16);
        return;
    }
    kir_render_put(r, "mat_%s v%d; mat_load<%d>(v%d, ",
                   t == TN_F32   ? "tf32"
                   : t == TN_F16 ? "f16"
                                 : "bf16",
                   i, in->kind & (KIR_FACTOR_B | KIR_ALONG_K), i);
    put_pointer(r, in);
    kir_render_put(r, ", %d);\n", kir_line(in));
}

static void put_matrix_store(render *r, const kir_ins *in) {
    if (in->b != KIR_NONE) kir_render_put(r, "if (%s) ", kir_render_operand(r, in->b).text);
    if (r->wide)
        kir_render_put(r, "mat_store<%d>(", kir_wide_column(in));
    else
        kir_render_put(r, "mat_store(");
    put_pointer(r, in);
    kir_render_put(r, ", %d, v%d);\n", r->wide ? kir_wide_line(in) : kir_line(in), in->a);
}

static void put_matrix(render *r, int i, const kir_ins *in) {
    if (r->wide)
        kir_render_put(r, "mat_wide<%d> v%d; mat_zero(v%d);\n", in->kind * KIR_EDGE, i, i);
    else
        kir_render_put(r, "mat_c v%d; mat_zero(v%d);\n", i, i);
}

/* Does an MMA stand before instruction i, with nothing between them but values and places? */
static bool follows_mma(const kir_program *p, int i) {
    while (--i >= 0)
        if (p->ins[i].op == KIR_MMA || (p->ins[i].op >= KIR_LOAD && p->ins[i].op != KIR_FRAGMENT))
            return p->ins[i].op == KIR_MMA;
    return false;
}

static void put_mma(render *r, int i, const kir_ins *in) {
    if (r->wide && !follows_mma(r->p, i)) kir_render_put(r, "ptx_wgmma_fence(); ");
    kir_render_put(r, "mat_mul(v%d, v%d, v%d);\n", in->a, in->b, in->c);
}

/* Until then nothing else may be done with the sums that are waited for. */
static void put_wide_wait(render *r, int i, const kir_ins *in) {
    kir_render_put(r, "ptx_wgmma_wait<%d>();", (int)in->imm.i);
    for (int v = 0; v < i; v++)
        if (r->p->ins[v].op == KIR_MATRIX) kir_render_put(r, " mat_hold(v%d);", v);
    kir_render_put(r, "\n");
}

static void put_packet(render *r, int i, const kir_ins *in) {
    kir_render_put(r, "const mat_packet v%d = mat_fetch(", i);
    put_pointer(r, in);
    kir_render_put(r, ", %s);\n", matrix_mask_of(r, in->a).text);
}

static void put_put(render *r, const kir_ins *in) {
    const kir_ins *packet = &r->p->ins[in->a];
    kir_render_put(r, in->kind ? "mat_copy(" : "mat_put(");
    put_pointer(r, in);
    kir_render_put(r, ", ");
    if (in->kind)
        put_pointer(r, packet);
    else
        kir_render_put(r, "v%d", in->a);
    if (in->kind) kir_render_put(r, ", %s", matrix_mask_of(r, packet->a).text);
    kir_render_put(r, ");\n");
}

/* A packet that is put late alone never is in registers. */
static bool is_held(const kir_program *p, int fetch) {
    for (int i = fetch + 1; i < p->n_ins; i++)
        if (p->ins[i].op == KIR_PUT && p->ins[i].a == fetch && !p->ins[i].kind) return true;
    return false;
}

void kir_render_matrix(render *r, int i) {
    const kir_ins *in = &r->p->ins[i];
    if (in->op == KIR_FETCH && !is_held(r->p, i)) return;
    kir_render_indent(r);
    switch (in->op) {
    case KIR_MATRIX: put_matrix(r, i, in); break;
    case KIR_FRAGMENT: put_fragment(r, i, in); break;
    case KIR_MMA: put_mma(r, i, in); break;
    case KIR_MATRIX_STORE: put_matrix_store(r, in); break;
    case KIR_FETCH: put_packet(r, i, in); break;
    case KIR_PUT: put_put(r, in); break;
    case KIR_COMMIT: kir_render_put(r, in->kind ? "ptx_wgmma_commit();\n" : "mat_commit();\n"); break;
    default:
        if (in->kind)
            put_wide_wait(r, i, in);
        else
            kir_render_put(r, "mat_wait<%d>();\n", (int)in->imm.i);
    }
}
