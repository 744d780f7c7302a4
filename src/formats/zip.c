/* zip.c — the directory of a zip archive, which stands at its end: each entry's place is looked up and checked once. */
#include "formats/zip.h"

#include <stdlib.h>
#include <string.h>

enum {
    END_BYTES = 22,       /* the record at the end, without its comment of at most … */
    MOST_COMMENT = 65535, /* … so many bytes */
    LOCATOR_BYTES = 20,   /* of zip64, before that record */
    END64_BYTES = 56,
    ROW_BYTES = 46,  /* of an entry in the directory, without its texts */
    HEAD_BYTES = 30, /* before an entry's data, without its texts */
    MAX_ENTRIES = 1 << 20
};

typedef struct archive {
    const uint8_t *bytes;
    size_t size;
} archive;

static uint64_t little(const uint8_t *p, int n) {
    uint64_t v = 0;
    for (int i = n; i > 0; i--)
        v = v << 8 | p[i - 1];
    return v;
}

/* `n` bytes at `at` that begin with the signature. */
static tn_status record_at(const archive *a, uint64_t at, size_t n, uint32_t signature, const uint8_t **out) {
    if (at > a->size || a->size - at < n)
        return tn_fail(TN_ERR_FORMAT, "byte %llu: a zip record that reaches beyond the file", (unsigned long long)at);
    *out = a->bytes + at;
    if (little(*out, 4) != signature)
        return tn_fail(TN_ERR_FORMAT, "byte %llu: no zip record of the kind that should be there",
                       (unsigned long long)at);
    return TN_OK;
}

static tn_status find_end(const archive *a, size_t *out) {
    size_t least = a->size > END_BYTES + MOST_COMMENT ? a->size - END_BYTES - MOST_COMMENT : 0;
    for (size_t at = a->size < END_BYTES ? 0 : a->size - END_BYTES + 1; at > least; at--) {
        const uint8_t *p = a->bytes + at - 1;
        if (little(p, 4) != 0x06054b50 || little(p + 20, 2) != a->size - (at - 1) - END_BYTES) continue;
        *out = at - 1;
        return TN_OK;
    }
    return tn_fail(TN_ERR_FORMAT, "byte %zu: the archive has no end: it is cut short, or no zip file", a->size);
}

/* Number of entries and place of the directory; those that do not fit are in the zip64 record. */
static tn_status read_end(const archive *a, uint64_t *count, uint64_t *place) {
    size_t at = 0;
    const uint8_t *p;
    TRY(find_end(a, &at));
    *count = little(a->bytes + at + 10, 2);
    *place = little(a->bytes + at + 16, 4);
    if (*count != 0xffff && *place != 0xffffffff) return TN_OK;
    if (at < LOCATOR_BYTES) return tn_fail(TN_ERR_FORMAT, "byte %zu: the zip64 record is missing", at);
    TRY(record_at(a, at - LOCATOR_BYTES, LOCATOR_BYTES, 0x07064b50, &p));
    TRY(record_at(a, little(p + 8, 8), END64_BYTES, 0x06064b50, &p));
    *count = little(p + 32, 8);
    *place = little(p + 48, 8);
    return TN_OK;
}

typedef struct row {
    uint64_t size, stored, place;
} row;

/* Numbers that do not fit in 32 bits stand in an extra field, in this order. */
static tn_status read_extra(const uint8_t *p, size_t n, row *r, size_t at) {
    uint64_t *wide[] = {&r->size, &r->stored, &r->place};
    for (size_t i = 0; n - i >= 4;) {
        size_t length = (size_t)little(p + i + 2, 2), used = 0;
        if (length > n - i - 4) break;
        for (size_t k = 0; k < TN_COUNT(wide) && little(p + i, 2) == 1; k++) {
            if (*wide[k] != 0xffffffff) continue;
            if (length - used < 8) return tn_fail(TN_ERR_FORMAT, "byte %zu: a zip64 field that is too short", at);
            *wide[k] = little(p + i + 4 + used, 8);
            used += 8;
        }
        i += 4 + length;
    }
    return TN_OK;
}

static tn_status locate_zip(const archive *a, const row *r, tn_zip_entry *e) {
    const uint8_t *head;
    TRY(record_at(a, r->place, HEAD_BYTES, 0x04034b50, &head));
    uint64_t begin = r->place + HEAD_BYTES + little(head + 26, 2) + little(head + 28, 2);
    if (begin > a->size || a->size - begin < r->size)
        return tn_fail(TN_ERR_FORMAT, "byte %llu: '%.*s' reaches beyond the file", (unsigned long long)r->place,
                       (int)e->name_length, e->name);
    e->data = a->bytes + begin;
    e->size = (size_t)r->size;
    return TN_OK;
}

static tn_status read_row(const archive *a, uint64_t *at, tn_zip_entry *e) {
    const uint8_t *p;
    TRY(record_at(a, *at, ROW_BYTES, 0x02014b50, &p));
    size_t name = (size_t)little(p + 28, 2), extra = (size_t)little(p + 30, 2), comment = (size_t)little(p + 32, 2);
    if (a->size - *at - ROW_BYTES < name + extra + comment)
        return tn_fail(TN_ERR_FORMAT, "byte %llu: an entry that reaches beyond the file", (unsigned long long)*at);
    e->name = (const char *)p + ROW_BYTES;
    e->name_length = name;
    if (little(p + 10, 2) != 0 || little(p + 8, 2) & 1)
        return tn_fail(TN_ERR_UNSUPPORTED, "byte %llu: '%.*s' is compressed or encrypted; entries must be stored",
                       (unsigned long long)*at, (int)name, e->name);
    row r = {.size = little(p + 24, 4), .stored = little(p + 20, 4), .place = little(p + 42, 4)};
    TRY(read_extra(p + ROW_BYTES + name, extra, &r, (size_t)*at));
    *at += ROW_BYTES + name + extra + comment;
    return locate_zip(a, &r, e);
}

static int compare_zip(const void *a, const void *b) {
    const tn_zip_entry *x = a, *y = b;
    size_t n = x->name_length < y->name_length ? x->name_length : y->name_length;
    int order = n ? memcmp(x->name, y->name, n) : 0;
    return order ? order : (x->name_length > y->name_length) - (x->name_length < y->name_length);
}

static tn_status read_rows(const archive *a, uint64_t at, tn_zip *z) {
    for (size_t i = 0; i < z->count; i++)
        TRY(read_row(a, &at, &z->entries[i]));
    qsort(z->entries, z->count, sizeof *z->entries, compare_zip);
    for (size_t i = 1; i < z->count; i++)
        if (compare_zip(&z->entries[i - 1], &z->entries[i]) == 0)
            return tn_fail(TN_ERR_FORMAT, "byte %zu: two entries are called '%.*s'",
                           (size_t)((const uint8_t *)z->entries[i].name - a->bytes), (int)z->entries[i].name_length,
                           z->entries[i].name);
    return TN_OK;
}

tn_status tn_zip_open(const uint8_t *bytes, size_t size, tn_zip *out) {
    archive a = {bytes, size};
    uint64_t count, place;
    *out = (tn_zip){0};
    TRY(read_end(&a, &count, &place));
    if (count > size / ROW_BYTES || count > MAX_ENTRIES)
        return tn_fail(TN_ERR_FORMAT, "byte %zu: the archive claims %llu entries", size, (unsigned long long)count);
    out->entries = tn_mem_zalloc((size_t)count, sizeof *out->entries);
    if (!out->entries) return TN_ERR_MEMORY;
    out->count = (size_t)count;
    tn_status status = read_rows(&a, place, out);
    if (status != TN_OK) tn_zip_close(out);
    return status;
}

void tn_zip_close(tn_zip *z) {
    tn_mem_free(z->entries);
    *z = (tn_zip){0};
}

const tn_zip_entry *tn_zip_find(const tn_zip *z, const char *name, size_t length) {
    const tn_zip_entry wanted = {.name = name, .name_length = length};
    return bsearch(&wanted, z->entries, z->count, sizeof wanted, compare_zip);
}
