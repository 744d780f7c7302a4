/* models.h — what `trunnion pull` is made of: one file over HTTP, a hub's list of files, checksums. */
#ifndef TRUNNION_CLI_MODELS_H
#define TRUNNION_CLI_MODELS_H

#include <string.h>
#include <strings.h>

#include "cli/cli.h"

enum { MODELS_SUM = 65 }; /* a SHA-256 as text */

/* Whether a file's name or path ends so, in capitals or not. */
static inline bool models_ends_with(const char *text, const char *ending) {
    size_t n = strlen(text), m = strlen(ending);
    return n >= m && strcasecmp(text + n - m, ending) == 0;
}

/* ---- sha256.c ---------------------------------------------------------------------------------------------------- */

/* The SHA-256 of a file, in lower case; false with errno set if it cannot be read. */
bool models_sum(const char *path, char out[MODELS_SUM]);
bool models_is_sum(const char *text); /* 64 hexadecimal digits */

/* ---- fetch.c ----------------------------------------------------------------------------------------------------- */

typedef struct models_file {
    const char *url;
    const char *target; /* its folder exists */
    const char *token;  /* NULL, or sent as "Authorization: Bearer" */
    const char *sum;    /* NULL, or its SHA-256 */
    int64_t size;       /* 0: unknown */
} models_file;

/* Downloads a file to TARGET.part, continuing one that is there from the same address; checks size and SHA-256, and
 * renames it to TARGET. Returns CLI_OK, or CLI_FAILED after a message; what has arrived stays for the next time, unless
 * its checksum is wrong. */
int models_fetch(const models_file *f);
bool models_make_folders(const char *path); /* those above a file */

/* ---- hub.c ------------------------------------------------------------------------------------------------------- */

/* Fetches the repository ("owner/name") into the folder `models`, as a folder with the name `as`. If `choice` is not
 * NULL, fetches only the GGUF file that it names; `as` is not used then. target: the path of the result. *files grows
 * by the number of files. Returns as models_fetch. */
int models_fetch_repository(const char *repository, const char *choice, const char *as, const char *models,
                            char target[CLI_PATH], int *files);

#endif
