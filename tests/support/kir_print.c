/* kir_print.c — programs of the kernel language as text. */
#include "kir_print.h"

#include "kir/rules.h"

static const char *const REDUCE_NAMES[] = {"SUM", "PROD", "MAX", "MIN", "ARGMAX", "ARGMIN", "CHAIN", "SEQ"};
static const char *const TYPE_NAMES[KIR_TYPE_COUNT] = {"f32", "f64", "i32", "i64", "u32", "u64", "bool"};
static const char *const ROUND_NAMES[] = {"floor", "ceil", "trunc", "nearest"};

const char *kir_type_name(kir_type t) { return (unsigned)t < KIR_TYPE_COUNT ? TYPE_NAMES[t] : "invalid"; }

static void print_affine(const kir_program *p, const int64_t *sizes, int access, tn_str *out) {
    const int64_t *affine = kir_sizes_access(p, sizes, access);
    tn_str_add(out, "%lld", (long long)affine[0]);
    for (int axis = 0; axis < p->n_par + p->n_loop; axis++) {
        if (affine[1 + axis]) tn_str_add(out, " + %lld·x%d", (long long)affine[1 + axis], axis);
    }
}

static void print_access(const kir_program *p, const int64_t *sizes, int access, tn_str *out) {
    const kir_access *a = &p->access[access];
    if (a->buffer >= 0)
        tn_str_add(out, " b%d[", a->buffer);
    else
        tn_str_add(out, " [");
    if (sizes || access >= p->n_sized)
        print_affine(p, sizes, access, out);
    else
        tn_str_add(out, "access %d", access);
    if (a->dyn != KIR_NONE) tn_str_add(out, " + %%%d", a->dyn);
    tn_str_add(out, "]");
}

static void print_lines(const kir_program *p, const kir_ins *in, tn_str *out) {
    if (p->n_items == 0 || p->item[p->n_items - 1] != KIR_WIDE)
        tn_str_add(out, " in lines of %d", kir_line(in));
    else if (in->op == KIR_FRAGMENT)
        tn_str_add(out, " in packets %d apart", kir_pitch(in));
    else
        tn_str_add(out, " from column %d in lines of %d", kir_wide_column(in), kir_wide_line(in));
}

static void print_details(const kir_program *p, const int64_t *sizes, const kir_ins *in, tn_str *out) {
    switch (in->op) {
    case KIR_CONST:
        if (kir_is_float((kir_type)in->type))
            tn_str_add(out, " %.17g", in->imm.f);
        else
            tn_str_add(out, " %lld", (long long)in->imm.i);
        break;
    case KIR_SCALAR: tn_str_add(out, " #%lld", (long long)in->imm.i); break;
    case KIR_ROUND: tn_str_add(out, " %s", ROUND_NAMES[in->imm.i & 3]); break;
    case KIR_WAIT: tn_str_add(out, " for all but %lld%s", (long long)in->imm.i, in->kind ? " of MMAs" : ""); break;
    case KIR_LOOP: tn_str_add(out, " over %d axes from x%d", kir_loop_count(in), kir_loop_first(in)); break;
    case KIR_REDUCE:
    case KIR_SCAN: tn_str_add(out, " %s", REDUCE_NAMES[in->kind & 7]); break;
    default:
        if (kir_has_access((kir_op)in->op)) print_access(p, sizes, (int)in->imm.i, out);
        if (in->op == KIR_FRAGMENT || in->op == KIR_MATRIX_STORE) print_lines(p, in, out);
        if (in->op == KIR_FRAGMENT && in->kind & KIR_ALONG_K) tn_str_add(out, " along k");
        if (in->op == KIR_PUT && in->kind) tn_str_add(out, " late");
    }
}

static void print_ins(const kir_program *p, const int64_t *sizes, int i, int depth, tn_str *out) {
    const kir_ins *in = &p->ins[i];
    tn_str_add(out, "%*s", depth * 2, "");
    if (kir_yields((kir_op)in->op)) tn_str_add(out, "%%%d = ", i);
    tn_str_add(out, "%s", kir_op_name((kir_op)in->op));
    if (in->op != KIR_LOOP && in->op != KIR_END && in->op < KIR_BARRIER)
        tn_str_add(out, " %s", kir_type_name((kir_type)in->type));
    print_details(p, sizes, in, out);
    bool loads = in->op == KIR_LOAD || in->op == KIR_FETCH, stores = in->op == KIR_STORE || in->op == KIR_MATRIX_STORE;
    int condition = loads ? 0 : stores ? 1 : -1; /* the operand that may be absent */
    for (int k = 0; k < kir_arity(in); k++) {
        kir_val operand = kir_operand(in, k);
        const char *word = in->op == KIR_LOOP ? " until " : k == condition ? " if " : " ";
        if (operand != KIR_NONE) tn_str_add(out, "%s%%%d", word, operand);
    }
    tn_str_add(out, "\n");
}

void kir_print(const kir_program *p, const int64_t *sizes, tn_str *out) {
    tn_str_add(out, "kernel %016llx: %d parallel axes, %d loop axes", (unsigned long long)p->hash, p->n_par, p->n_loop);
    for (int k = 0; k < p->n_items; k++)
        tn_str_add(out, "%s%d", k == 0 ? ", workgroups of " : "×", p->item[k]);
    tn_str_add(out, "\n");
    if (sizes) {
        tn_str_add(out, "extents");
        for (int axis = 0; axis < p->n_par + p->n_loop; axis++)
            tn_str_add(out, " x%d=%lld", axis, (long long)sizes[axis]);
        tn_str_add(out, "\n");
    }
    for (int i = 0; i < p->n_buffers; i++) {
        const char *mark = p->buffer_written[i] ? " written" : "";
        tn_str_add(out, "b%d: %s", i, tn_dtype_name((tn_dtype)p->buffer_dtype[i]));
        if (p->local[i] > 0) tn_str_add(out, " local, %d elements", p->local[i]);
        tn_str_add(out, "%s\n", mark);
    }
    int depth = 0;
    for (int i = 0; i < p->n_ins; i++) {
        if (p->ins[i].op == KIR_END && depth > 0) depth--;
        print_ins(p, sizes, i, depth, out);
        if (p->ins[i].op == KIR_LOOP) depth++;
    }
}
