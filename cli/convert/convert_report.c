/* convert_report.c — what `trunnion convert` did, as a table and as JSON. */
#include <math.h>
#include <stdio.h>

#include "cli/convert/convert.h"

enum { MOST_ROWS = 40 };

static double share(const convert_class *row) { return row->size > 0 ? sqrt(row->squares / row->size) : 0; }
static double rms(const convert_class *row) { return row->numel ? sqrt(row->squares / (double)row->numel) : 0; }

void convert_put_text(const convert_wishes *w, const convert_report *r) {
    int64_t weights = 0;
    if (r->count == 0 && !w->verify) { /* a network, whose weights only --verify compares */
        printf("%s: %lld bytes in %.1f s, of %lld tensors of %lld bytes\n", w->out, (long long)r->bytes, r->seconds,
               (long long)r->tensors, (long long)r->input_bytes);
        return;
    }
    printf("%-40s %7s  %-18s %12s %10s %10s %9s\n", "class", "tensors", "type", "bytes", "max error", "rms error",
           "relative");
    for (int i = 0; i < r->count; i++) {
        const convert_class *row = &r->rows[i];
        weights += row->bytes;
        if (i == MOST_ROWS) printf("… %d more; --json has all\n", r->count - i);
        if (i >= MOST_ROWS) continue;
        char type[40];
        snprintf(type, sizeof type, "%s → %s", row->from, row->to);
        cli_print(stdout, "%-40s %7lld  %-20s %12lld %10.3g %10.3g %8.3f%%\n", row->name, (long long)row->tensors, type,
                  (long long)row->bytes, row->most, rms(row), 100 * share(row));
    }
    printf("%s: %lld bytes in %.1f s; %lld tensors of %lld bytes, %lld before\n", w->out, (long long)r->bytes,
           r->seconds, (long long)r->tensors, (long long)weights, (long long)r->input_bytes);
    if (w->verify) printf("verified: %lld tensors were read back as written\n", (long long)r->compared);
    if (r->outputs) printf("verified: %s differ by at most %.2g of the largest\n", r->outputs, r->output_error);
    if (w->text) printf("perplexity: %.4f before, %.4f after\n", r->perplexity[0], r->perplexity[1]);
}

void convert_put_json(const convert_wishes *w, const convert_report *r) {
    cli_json j = {.out = stdout};
    cli_json_write(&j,
                   "{'tensors': %jd, 'bytes': %jd, 'input_bytes': %jd, 'requantized': %jd, 'seconds': %g, 'classes': [",
                   r->tensors, r->bytes, r->input_bytes, r->requantized, r->seconds);
    for (int i = 0; i < r->count; i++) {
        const convert_class *row = &r->rows[i];
        cli_json_write(&j,
                       "{'name': %s, 'tensors': %jd, 'from': %s, 'to': %s, 'bytes': %jd, 'max_error': %g, 'rms_error': "
                       "%g, 'relative_error': %g}",
                       row->name, row->tensors, row->from, row->to, row->bytes, row->most, rms(row), share(row));
    }
    cli_json_write(&j, "]");
    if (w->verify) cli_json_write(&j, "'verified': %jd", r->compared);
    if (r->outputs) cli_json_write(&j, "'output_error': %g", r->output_error);
    if (w->text) {
        cli_json_write(&j, "'perplexity': {'before': %g, 'after': %g}", r->perplexity[0], r->perplexity[1]);
    }
    cli_json_write(&j, "}");
}
