/* output.c — files that appear whole or not at all: a temporary file beside the target, renamed at the end.
 *
 * A file that exists stays as it is until the rename. A signal removes the temporary file (signals.c). Targets that are
 * not regular files (/dev/stdout, a pipe) are written directly. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"
#include "trunnion/backend.h"

enum { MOST_NAMES = 1000 };

static tn_status fails(cli_output *o, const char *step) {
    return tn_backend_fail(TN_ERR_IO, "cannot write '%s': %s: %s", o->path, step, strerror(errno));
}

/* "folder/.name.PID.N.tmp" for "folder/name". Listed before it is created, so that no signal finds it unlisted; the
 * process's number in it keeps others from having the same one. */
static int open_temporary(cli_output *o) {
    const char *slash = strrchr(o->target, '/');
    int folder = slash ? (int)(slash - o->target) + 1 : 0;
    for (int n = 0; n < MOST_NAMES; n++) {
        int length = snprintf(o->temporary, sizeof o->temporary, "%.*s.%s.%ld.%d.tmp", folder, o->target,
                              o->target + folder, (long)getpid(), n);
        if (length >= (int)sizeof o->temporary) {
            errno = ENAMETOOLONG;
            return -1;
        }
        o->entry = cli_temporary_begin(o->temporary);
        int file = open(o->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (file >= 0) return file;
        cli_temporary_end(o->entry);
        o->entry = -1;
        if (errno != EEXIST) return -1;
    }
    return -1;
}

/* Through symbolic links, so that a link stays one; a target that exists keeps its permissions. */
static tn_status open_beside(cli_output *o, bool exists, mode_t mode) {
    if (exists ? !realpath(o->path, o->target)
               : snprintf(o->target, sizeof o->target, "%s", o->path) >= (int)sizeof o->target)
        return fails(o, "resolving the name");
    int file = open_temporary(o);
    if (file < 0) return fails(o, "creating a temporary file next to it");
    if (exists && fchmod(file, mode & 07777) != 0) errno = 0; /* not all file systems can */
    o->file = fdopen(file, "wb");
    if (o->file) return TN_OK;
    close(file);
    cli_output_abandon(o);
    return fails(o, "opening");
}

tn_status cli_output_begin(cli_output *o, const char *path) {
    struct stat facts;
    *o = (cli_output){.path = path, .entry = -1};
    bool exists = stat(path, &facts) == 0;
    if (!exists || S_ISREG(facts.st_mode)) return open_beside(o, exists, (mode_t)(exists ? facts.st_mode : 0));
    o->file = fopen(path, "wb");
    return o->file ? TN_OK : fails(o, "opening");
}

tn_status cli_output_check(const char *path) {
    struct stat facts;
    cli_output o;
    if (!path || (stat(path, &facts) == 0 && !S_ISREG(facts.st_mode) && !S_ISDIR(facts.st_mode))) return TN_OK;
    TRY(cli_output_begin(&o, path));
    cli_output_abandon(&o);
    return TN_OK;
}

tn_status cli_output_commit(cli_output *o) {
    bool good = !ferror(o->file) && fflush(o->file) == 0;
    tn_status status = good ? TN_OK : fails(o, "writing");
    if (good && *o->temporary && fsync(fileno(o->file)) != 0 && errno != EINVAL) status = fails(o, "syncing");
    if (fclose(o->file) != 0 && status == TN_OK) status = fails(o, "closing");
    o->file = NULL;
    if (status == TN_OK && *o->temporary && rename(o->temporary, o->target) != 0) status = fails(o, "renaming");
    if (status == TN_OK) *o->temporary = 0; /* its name is the target's now */
    cli_output_abandon(o);
    return status;
}

void cli_output_abandon(cli_output *o) {
    if (o->file) fclose(o->file);
    if (*o->temporary) unlink(o->temporary);
    cli_temporary_end(o->entry);
    o->file = NULL;
    *o->temporary = 0;
    o->entry = -1;
}
