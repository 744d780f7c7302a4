/* zip.h — the directory of a zip archive whose entries are stored as they are. */
#ifndef TN_ZIP_H
#define TN_ZIP_H

#include "base/base.h"

typedef struct tn_zip_entry {
    const char *name; /* in the archive's bytes, not terminated */
    size_t name_length;
    const uint8_t *data;
    size_t size;
} tn_zip_entry;

typedef struct tn_zip {
    tn_zip_entry *entries; /* sorted by name */
    size_t count;
} tn_zip;

/* Reads the directory of an archive in memory, which must stay there. Errors: TN_ERR_FORMAT naming the byte;
 * TN_ERR_UNSUPPORTED for entries that are compressed or encrypted. Source: PKWARE's APPNOTE.TXT 6.3, with zip64. */
tn_status tn_zip_open(const uint8_t *bytes, size_t size, tn_zip *out);
void tn_zip_close(tn_zip *z);
const tn_zip_entry *tn_zip_find(const tn_zip *z, const char *name, size_t length); /* NULL when absent */

#endif
