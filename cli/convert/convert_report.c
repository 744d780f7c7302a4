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
    cli_json_object(&j, NULL);
    cli_json_int(&j, "tensors", r->tensors);
    cli_json_int(&j, "bytes", r->bytes);
    cli_json_int(&j, "input_bytes", r->input_bytes);
    cli_json_int(&j, "requantized", r->requantized);
    cli_json_number(&j, "seconds", r->seconds);
    cli_json_array(&j, "classes");
    for (int i = 0; i < r->count; i++) {
        const convert_class *row = &r->rows[i];
        cli_json_object(&j, NULL);
        cli_json_string(&j, "name", row->name);
        cli_json_int(&j, "tensors", row->tensors);
        cli_json_string(&j, "from", row->from);
        cli_json_string(&j, "to", row->to);
        cli_json_int(&j, "bytes", row->bytes);
        cli_json_number(&j, "max_error", row->most);
        cli_json_number(&j, "rms_error", rms(row));
        cli_json_number(&j, "relative_error", share(row));
        cli_json_end(&j, '}');
    }
    cli_json_end(&j, ']');
    if (w->verify) cli_json_int(&j, "verified", r->compared);
    if (r->outputs) cli_json_number(&j, "output_error", r->output_error);
    if (w->text) {
        cli_json_object(&j, "perplexity");
        cli_json_number(&j, "before", r->perplexity[0]);
        cli_json_number(&j, "after", r->perplexity[1]);
        cli_json_end(&j, '}');
    }
    cli_json_end(&j, '}');
}
