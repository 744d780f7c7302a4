/* device_summary.c — the listing in words, for `trunnion devices` and for programs that want to show the same. */
#include <stdio.h>
#include <string.h>

#include "hal/hal.h"

typedef struct printer {
    void (*write)(void *ctx, const char *text);
    void *ctx;
    bool verbose, colour;
    int name_width; /* columns of the longest device name */
} printer;

enum { INDENT = 2, BACKEND_COLUMNS = 20, MOST_NAME_COLUMNS = 48 };

static const char GOOD[] = "\033[32m", BAD[] = "\033[31m", FAINT[] = "\033[2m", STRONG[] = "\033[1m",
                  PLAIN[] = "\033[0m";

static void put_summary(const printer *p, const char *style, const char *text) {
    if (p->colour && style) p->write(p->ctx, style);
    p->write(p->ctx, text);
    if (p->colour && style) p->write(p->ctx, PLAIN);
}

/* Characters of UTF-8 text, which is what a terminal gives a column each. */
static int columns(const char *text) {
    int n = 0;
    for (; *text; text++)
        n += ((unsigned char)*text & 0xC0) != 0x80;
    return n;
}

static void pad(const printer *p, int n) {
    for (; n > 0; n--)
        p->write(p->ctx, " ");
}

static void put_padded(const printer *p, const char *style, const char *text, int width) {
    put_summary(p, style, text);
    pad(p, width - columns(text));
}

/* "23.5 GiB, 23.1 GiB free · avx512 · 2 threads": what is known, apart by dots. */
static void facts_of(const tn_device_info *d, char *out, size_t size) {
    char total[24], unused[24], threads[24] = "", memory[64] = "";
    if (d->total_memory) snprintf(memory, sizeof memory, "%s", tn_bytes_text(total, d->total_memory));
    if (d->total_memory && d->free_memory)
        snprintf(memory, sizeof memory, "%s, %s free", total, tn_bytes_text(unused, d->free_memory));
    if (d->threads) snprintf(threads, sizeof threads, "%d thread%s", d->threads, d->threads > 1 ? "s" : "");
    const char *facts[] = {memory, d->compute_capability, threads, d->software ? "software" : ""};
    out[0] = 0;
    for (size_t i = 0; i < TN_COUNT(facts); i++) {
        size_t n = strlen(out);
        if (facts[i][0]) snprintf(out + n, size - n, "%s%s", n ? " · " : "", facts[i]);
    }
}

static void put_device(const printer *p, const tn_device_info *d) {
    char facts[200], note[96] = "";
    facts_of(d, facts, sizeof facts);
    put_summary(p, d->usable ? NULL : FAINT, d->name);
    if (facts[0]) pad(p, (int)tn_max64(p->name_width - columns(d->name), 0) + 2);
    put_summary(p, FAINT, facts);
    if (d->same_as[0]) snprintf(note, sizeof note, "  the same as %s", d->same_as);
    put_summary(p, FAINT, note);
    if (p->verbose && (d->uuid[0] || d->pci[0])) {
        snprintf(note, sizeof note, "%s%s%s%s", d->pci[0] ? "  pci " : "", d->pci, d->uuid[0] ? "  uuid " : "",
                 d->uuid);
        put_summary(p, FAINT, note);
    }
    p->write(p->ctx, "\n");
}

static void put_line(const printer *p, const char *label, const char *text) {
    if (!text[0]) return;
    pad(p, INDENT + BACKEND_COLUMNS);
    put_summary(p, FAINT, label);
    put_summary(p, FAINT, text);
    p->write(p->ctx, "\n");
}

static void put_devices(const printer *p, const tn_backend_info *b) {
    for (int i = 0; i < b->device_count; i++) {
        const char *id = b->devices[i].id;
        bool own_line = i > 0 || !b->available; /* the first usable device stands beside the tick */
        if (own_line) {
            pad(p, INDENT);
            put_padded(p, FAINT, b->available || b->device_count > 1 || strcmp(id, b->name) ? id : "", BACKEND_COLUMNS);
        }
        put_device(p, &b->devices[i]);
    }
}

static void put_backend(const printer *p, const tn_backend_info *b) {
    put_summary(p, b->available ? GOOD : BAD, b->available ? "✓ " : "✗ ");
    put_padded(p, b->available ? STRONG : NULL, b->available ? b->devices[0].id : b->name, BACKEND_COLUMNS);
    if (!b->available) {
        p->write(p->ctx, b->reason);
        if (p->verbose) {
            p->write(p->ctx, " [");
            p->write(p->ctx, b->reason_code);
            p->write(p->ctx, "]");
        }
        p->write(p->ctx, "\n");
    }
    put_devices(p, b);
    if (!b->available) put_line(p, "→ ", b->fix);
    if (p->verbose) put_line(p, "library: ", b->library);
}

static int widest_name(const tn_device_list *list) {
    int widest = 0;
    for (int i = 0; i < tn_device_list_count(list); i++) {
        const tn_backend_info *b = tn_device_list_at(list, i);
        for (int k = 0; k < b->device_count; k++) {
            int n = columns(b->devices[k].name);
            if (n > widest) widest = n;
        }
    }
    return widest < MOST_NAME_COLUMNS ? widest : MOST_NAME_COLUMNS;
}

static bool has_device(const tn_device_list *list, const char *backend) {
    for (int i = 0; i < tn_device_list_count(list); i++) {
        const tn_backend_info *b = tn_device_list_at(list, i);
        if (b->available && strcmp(b->name, backend) == 0) return true;
    }
    return false;
}

/* Those that can be used in a line; with `verbose` all, with file or reason. A vendor's library without a device of
 * that vendor is of no use. */
static void put_libraries(const printer *p, const tn_device_list *list) {
    tn_library_info l = {.struct_size = sizeof l};
    p->write(p->ctx, "libraries for --library:");
    int found = 0;
    for (int i = 0; i < tn_library_count(); i++) {
        if (tn_library_at(i, &l) != TN_OK) continue;
        bool usable = l.available && has_device(list, l.backend);
        if (!usable && !p->verbose) continue;
        p->write(p->ctx, p->verbose ? "\n  " : found ? ", " : " ");
        put_summary(p, usable ? GOOD : BAD, p->verbose ? usable ? "✓ " : "✗ " : "");
        put_summary(p, l.in_use ? STRONG : NULL, l.name);
        if (strcmp(l.backend, "cpu") != 0) {
            p->write(p->ctx, " on ");
            p->write(p->ctx, l.backend);
        }
        if (l.in_use) p->write(p->ctx, " (in use)");
        if (p->verbose) put_summary(p, FAINT, ": ");
        if (p->verbose && l.available && !usable) put_summary(p, FAINT, "no device for it here; found at ");
        if (p->verbose) put_summary(p, FAINT, l.available ? l.path : l.reason);
        if (p->verbose && !l.available && l.fix[0]) put_summary(p, FAINT, " → ");
        if (p->verbose && !l.available) put_summary(p, FAINT, l.fix);
        found += usable;
    }
    p->write(p->ctx, found || p->verbose ? "\n" : " none\n");
}

tn_status tn_print_backend_summary(void (*write)(void *ctx, const char *text), void *ctx, bool verbose, bool colour) {
    if (!write) return tn_fail(TN_ERR_ARGUMENT, "tn_print_backend_summary: write is NULL");
    tn_device_list *list;
    TRY(tn_device_list_new(false, &list));
    const printer p = {write, ctx, verbose, colour, widest_name(list)};
    for (int i = 0; i < tn_device_list_count(list); i++)
        put_backend(&p, tn_device_list_at(list, i));
    write(ctx, "\nrecommended: ");
    put_summary(&p, STRONG, tn_device_list_recommended(list));
    write(ctx, "\n");
    put_libraries(&p, list);
    tn_device_list_free(list);
    return TN_OK;
}
