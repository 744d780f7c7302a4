/* convert_verify.c — the proof: the file that was written is opened again and every number compared. */
#include <stdlib.h>
#include <string.h>

#include "cli/convert/convert.h"
#include "trunnion/backend.h"

tn_status convert_find(const convert_file *f, const char *name, convert_tensor *out) {
    for (int64_t i = 0; i < f->count; i++)
        if (convert_at(f, i, out) == TN_OK && strcmp(out->name, name) == 0) return TN_OK;
    return tn_backend_fail(TN_ERR_FORMAT, "verification failed: '%s' lacks the tensor '%s'", f->path, name);
}

static tn_status verify_bytes(const convert_file *in, const convert_file *out, const convert_tensor *t,
                              const convert_tensor *back) {
    AUTO_CALL(convert_bytes_free) convert_bytes x = {0}, y = {0};
    TRY(convert_read_same(in, t, &x));
    TRY(convert_read_same(out, back, &y));
    if (x.size == y.size && memcmp(x.bytes, y.bytes, (size_t)x.size) == 0) return TN_OK;
    return tn_backend_fail(TN_ERR_FORMAT, "verification failed: '%s' was read back with other bytes", t->name);
}

static tn_status verify_tensor(const convert_file *in, const convert_file *out, const convert_wishes *w,
                               const convert_tensor *t, convert_report *again) {
    convert_tensor back;
    bool same;
    tn_dtype to = convert_type_for(w, t, out->gguf != NULL, &same);
    TRY(convert_find(out, t->name, &back));
    if (back.rank != t->rank || memcmp(back.shape, t->shape, sizeof back.shape) != 0 || back.dtype != to)
        return tn_backend_fail(TN_ERR_FORMAT, "verification failed: '%s' was read back with another shape or type",
                               t->name);
    if (same) return verify_bytes(in, out, t, &back);
    AUTO_CLI_FREE float *x = convert_numbers(in, t), *y = convert_numbers(out, &back);
    if (!x || !y) return TN_ERR_FORMAT;
    convert_measure(convert_class_of(again, t, tn_dtype_name(to)), x, y, t->numel);
    return TN_OK;
}

/* Every tensor is there; what was not rounded has its bits, what was has the errors that were measured. */
tn_status convert_verify(const convert_file *in, const convert_wishes *w, convert_report *r) {
    AUTO_CALL(convert_close) convert_file out = {.count = 0};
    AUTO_CLI_FREE convert_report *again = calloc(1, sizeof *again);
    if (!again) return tn_backend_fail(TN_ERR_MEMORY, "out of memory for the comparison");
    TRY(convert_open(w->out, &out));
    if (out.count != in->count)
        return tn_backend_fail(TN_ERR_FORMAT, "verification failed: '%s' has %lld tensors; expected %lld", w->out,
                               (long long)out.count, (long long)in->count);
    for (int64_t i = 0; i < in->count; i++) {
        convert_tensor t;
        TRY(convert_at(in, i, &t));
        TRY(verify_tensor(in, &out, w, &t, again));
        r->compared++;
    }
    for (int i = 0; i < r->count; i++) {
        const convert_class *a = &r->rows[i];
        for (int k = 0; k < again->count; k++) {
            const convert_class *b = &again->rows[k];
            if (strcmp(a->name, b->name) || strcmp(a->to, b->to)) continue;
            bool rounded = a->squares > 0 || b->squares > 0;
            if (rounded && (a->most != b->most || a->squares != b->squares))
                return tn_backend_fail(
                    TN_ERR_FORMAT,
                    "verification failed: the errors of '%s' differ from those reported when it was written", a->name);
        }
    }
    return TN_OK;
}
