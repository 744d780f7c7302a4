/* gpu_nccl.c — of the double of CUDA and ROCm: NCCL and RCCL between processes of one machine.
 *
 * A communicator is a folder, whose name is its identifier. An operation is put into a stream and done when that is
 * waited for: what goes to a rank is a file, which that rank waits for, reads and removes. A rank that does not come
 * within a minute ends the process, where the library itself would wait. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "gpu.h"

enum { OK = 0, UNHANDLED = 1, SYSTEM = 2, INVALID = 4, BYTE = 1, MOST_PIECES = 128, SECONDS = 60 };

typedef struct nccl_id {
    char bytes[128];
} nccl_id;

typedef struct communicator {
    gpu_object object;
    char folder[128];
    int rank, size;
    unsigned operations;
} communicator;

/* Bytes to or from another rank. */
typedef struct piece {
    char *data;
    size_t bytes;
    int peer;
} piece;

typedef struct operation {
    char folder[128];
    int rank, send_count, receive_count;
    unsigned number;
    piece sends[MOST_PIECES], receives[MOST_PIECES];
} operation;

#pragma GCC visibility push(default)
int ncclGetVersion(int *version);
const char *ncclGetErrorString(int code);
int ncclGetUniqueId(nccl_id *id);
int ncclCommInitRank(void **comm, int size, nccl_id id, int rank);
int ncclCommDestroy(void *comm);
int ncclGroupStart(void);
int ncclGroupEnd(void);
int ncclSend(const void *data, size_t count, int type, int peer, void *comm, void *stream);
int ncclRecv(void *data, size_t count, int type, int peer, void *comm, void *stream);
int ncclAllGather(const void *send, void *receive, size_t count, int type, void *comm, void *stream);
int ncclBroadcast(const void *send, void *receive, size_t count, int type, int root, void *comm, void *stream);
#pragma GCC visibility pop

static operation grouped; /* since ncclGroupStart */
static int depth;
static communicator *grouped_in;
static void *grouped_stream;

#define ENTER_NCCL(needs)                                                                     \
    gpu_call call __attribute__((cleanup(gpu_leave), unused)) = gpu_enter(__func__, (needs)); \
    if (call.error) return UNHANDLED

static void give_up(const char *path) {
    fprintf(stderr, "the double of NCCL waited %d seconds for %s\n", SECONDS, path);
    _exit(70);
}

static void wait_for(const char *path) {
    for (int i = 0; access(path, F_OK) != 0; i++) {
        if (i > SECONDS * 1000) give_up(path);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

/* Complete when it has its name. */
static void write_file(const char *path, const void *data, size_t bytes) {
    char temporary[256];
    snprintf(temporary, sizeof temporary, "%s.part", path);
    FILE *f = fopen(temporary, "wb");
    if (!f || fwrite(data, 1, bytes, f) != bytes || fclose(f) != 0 || rename(temporary, path) != 0) give_up(path);
}

static void work_operation(const void *data) {
    const operation *o = data;
    char path[256];
    for (int i = 0; i < o->send_count; i++) {
        const piece *p = &o->sends[i];
        snprintf(path, sizeof path, "%s/%u.%d.%d", o->folder, o->number, o->rank, p->peer);
        write_file(path, p->data, p->bytes);
    }
    for (int i = 0; i < o->receive_count; i++) {
        const piece *p = &o->receives[i];
        snprintf(path, sizeof path, "%s/%u.%d.%d", o->folder, o->number, p->peer, o->rank);
        wait_for(path);
        FILE *f = fopen(path, "rb");
        struct stat is;
        if (!f || fstat(fileno(f), &is) != 0 || (size_t)is.st_size != p->bytes ||
            fread(p->data, 1, p->bytes, f) != p->bytes) {
            fprintf(stderr, "the double of NCCL: rank %d sent another number of bytes than rank %d expects\n", p->peer,
                    o->rank);
            _exit(70);
        }
        fclose(f);
        unlink(path);
    }
}

int ncclGetVersion(int *version) {
    *version = 22703;
    return OK;
}

const char *ncclGetErrorString(int code) { return code == INVALID ? "invalid argument" : "unhandled error"; }

int ncclGetUniqueId(nccl_id *id) {
    const char *tmp = getenv("TMPDIR");
    memset(id, 0, sizeof *id);
    snprintf(id->bytes, sizeof id->bytes, "%.100s/nccl-XXXXXX", tmp ? tmp : "/tmp");
    return mkdtemp(id->bytes) ? OK : SYSTEM;
}

int ncclCommInitRank(void **comm, int size, nccl_id id, int rank) {
    ENTER_NCCL(NEEDS_CONTEXT);
    if (rank < 0 || rank >= size) return gpu_misuse(&call, INVALID, "rank %d of %d", rank, size);
    communicator *c = gpu_object_new(call.context, OBJECT_LIBRARY, sizeof *c);
    if (!c) return SYSTEM;
    memcpy(c->folder, id.bytes, sizeof c->folder);
    c->folder[sizeof c->folder - 1] = 0;
    c->rank = rank;
    c->size = size;
    char path[256];
    snprintf(path, sizeof path, "%s/join.%d", c->folder, rank);
    write_file(path, "", 0);
    for (int r = 0; r < size; r++) {
        snprintf(path, sizeof path, "%s/join.%d", c->folder, r);
        wait_for(path);
    }
    *comm = c;
    return OK;
}

int ncclCommDestroy(void *comm) {
    ENTER_NCCL(NEEDS_CONTEXT | GIVES_BACK);
    communicator *c = comm;
    if (gpu_check(&call, comm, OBJECT_LIBRARY)) return INVALID;
    char path[256];
    if (c->rank == 0 && strstr(c->folder, "/nccl-")) { /* all have come to the group's end */
        for (int r = 0; r < c->size; r++) {
            snprintf(path, sizeof path, "%s/join.%d", c->folder, r);
            unlink(path);
        }
        rmdir(c->folder);
    }
    gpu_object_remove(comm);
    free(comm);
    return OK;
}

static int check_piece(const gpu_call *call, communicator *c, const void *data, size_t bytes, int type, int peer) {
    if (gpu_check(call, c, OBJECT_LIBRARY)) return INVALID;
    if (type != BYTE || peer < 0 || peer >= c->size) return gpu_misuse(call, INVALID, "type %d, rank %d", type, peer);
    return gpu_check_range(call, data, bytes, "piece") ? INVALID : OK;
}

static int add_piece(piece *pieces, int *count, const void *data, size_t bytes, int peer) {
    if (*count == MOST_PIECES) return INVALID;
    pieces[(*count)++] = (piece){(char *)(uintptr_t)data, bytes, peer};
    return OK;
}

static int give_operation(const gpu_call *call, communicator *c, operation *o, void *stream) {
    memcpy(o->folder, c->folder, sizeof o->folder);
    o->rank = c->rank;
    o->number = c->operations++;
    int error = gpu_queue_library(call, stream, work_operation, o, sizeof *o);
    *o = (operation){.send_count = 0};
    return error ? UNHANDLED : OK;
}

int ncclGroupStart(void) {
    depth++;
    return OK;
}

int ncclGroupEnd(void) {
    ENTER_NCCL(NEEDS_CONTEXT);
    if (depth == 0) return gpu_misuse(&call, INVALID, "no group was started");
    if (--depth > 0 || !grouped_in) return OK;
    communicator *c = grouped_in;
    grouped_in = NULL;
    return give_operation(&call, c, &grouped, grouped_stream);
}

int ncclSend(const void *data, size_t count, int type, int peer, void *comm, void *stream) {
    ENTER_NCCL(NEEDS_CONTEXT);
    int error = check_piece(&call, comm, data, count, type, peer);
    if (error || depth == 0) return error ? error : gpu_misuse(&call, INVALID, "the double sends in groups only");
    grouped_in = comm;
    grouped_stream = stream;
    return add_piece(grouped.sends, &grouped.send_count, data, count, peer);
}

int ncclRecv(void *data, size_t count, int type, int peer, void *comm, void *stream) {
    ENTER_NCCL(NEEDS_CONTEXT);
    int error = check_piece(&call, comm, data, count, type, peer);
    if (error || depth == 0) return error ? error : gpu_misuse(&call, INVALID, "the double receives in groups only");
    grouped_in = comm;
    grouped_stream = stream;
    return add_piece(grouped.receives, &grouped.receive_count, data, count, peer);
}

int ncclAllGather(const void *send, void *receive, size_t count, int type, void *comm, void *stream) {
    ENTER_NCCL(NEEDS_CONTEXT);
    communicator *c = comm;
    operation o = {.send_count = 0};
    int error = check_piece(&call, c, send, count, type, 0);
    if (!error) error = check_piece(&call, c, receive, count * (size_t)c->size, type, 0);
    for (int r = 0; !error && r < c->size; r++) {
        error = add_piece(o.sends, &o.send_count, send, count, r);
        if (!error) error = add_piece(o.receives, &o.receive_count, (char *)receive + (size_t)r * count, count, r);
    }
    return error ? error : give_operation(&call, c, &o, stream);
}

int ncclBroadcast(const void *send, void *receive, size_t count, int type, int root, void *comm, void *stream) {
    ENTER_NCCL(NEEDS_CONTEXT);
    communicator *c = comm;
    operation o = {.send_count = 0};
    int error = check_piece(&call, c, c->rank == root ? send : receive, count, type, root);
    for (int r = 0; !error && c->rank == root && r < c->size; r++)
        error = add_piece(o.sends, &o.send_count, send, count, r);
    if (!error) error = add_piece(o.receives, &o.receive_count, receive, count, root);
    return error ? error : give_operation(&call, c, &o, stream);
}
