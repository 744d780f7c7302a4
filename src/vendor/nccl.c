/* nccl.c — NCCL and RCCL through dlopen.
 *
 * Bytes are moved as they are and sums are made by our own kernels in the order of the ranks, so results do not depend
 * on the library's choice of algorithm. tools/checks/gpu_headers.py compares the declarations with NVIDIA's header. */
#include "vendor/mpi.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "trunnion/status.h"
#include "vendor/vendor.h"

enum { BYTE = 1 /* ncclUint8 */, UNHANDLED = 1, SYSTEM = 2 /* ncclResult_t */, OLDEST = 2700 /* has ncclSend */ };

/* X(field, name, parameters) */
#define CALLS(X)                                                                                        \
    X(version, "ncclGetVersion", (int *version))                                                        \
    X(make_id, "ncclGetUniqueId", (tn_nccl_id * id))                                                    \
    X(init_rank, "ncclCommInitRank", (void **comm, int size, tn_nccl_id id, int rank))                  \
    X(destroy, "ncclCommDestroy", (void *comm))                                                         \
    X(group_start, "ncclGroupStart", (void))                                                            \
    X(group_end, "ncclGroupEnd", (void))                                                                \
    X(broadcast, "ncclBroadcast",                                                                       \
      (const void *send, void *receive, size_t count, int type, int root, void *comm, void *stream))    \
    X(all_gather, "ncclAllGather",                                                                      \
      (const void *send, void *receive, size_t count, int type, void *comm, void *stream))              \
    X(send, "ncclSend", (const void *data, size_t count, int type, int peer, void *comm, void *stream)) \
    X(receive, "ncclRecv", (void *data, size_t count, int type, int peer, void *comm, void *stream))

TN_VENDOR_CALLS(CALLS);

static const char *(*error_string)(int code);

static const char *const nccl_names[] = {"libnccl.so.2", "site-packages/nvidia/nccl/lib/libnccl.so.2", NULL};
static const char *const rccl_names[] = {"librccl.so.1", "/opt/rocm*/lib/librccl.so.1", NULL};

static const tn_symbol error_symbol[] = {{"ncclGetErrorString", (void **)&error_string, false}};

#define SPEC(title, names, list, fix) \
    { title, "TRUNNION_NCCL_LIB", names, list, TN_COUNT(list), fix }
static const struct library {
    const char *backend;
    tn_library_spec calls, words;
} libraries[] = {
    {"cuda", SPEC("NCCL", nccl_names, symbols, "install libnccl2, or pip install nvidia-nccl-cu12"),
     SPEC("NCCL", nccl_names, error_symbol, "")},
    {"rocm", SPEC("RCCL", rccl_names, symbols, "install rccl"), SPEC("RCCL", rccl_names, error_symbol, "")},
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const struct library *loaded;
static char version_text[32];

static tn_status check_nccl(int code, const char *call) {
    if (code == 0) return TN_OK;
    bool device = code == UNHANDLED || code == SYSTEM;
    return tn_fail(device ? TN_ERR_DEVICE : TN_ERR_UNAVAILABLE, "%s: %s: %s (%d)", loaded->calls.title, call,
                   error_string(code), code);
}
#define CALL(field, arguments) check_nccl(calls.field arguments, symbols[CALL_##field].name)

static tn_status load_library(const struct library *l) {
    tn_reason why;
    int version = 0;
    if (loaded == l) return TN_OK;
    if (loaded)
        return tn_fail(TN_ERR_UNAVAILABLE, "%s: this process uses %s already", l->calls.title, loaded->calls.title);
    if (!tn_library_open(&l->calls, &why) || !tn_library_open(&l->words, &why))
        return tn_fail(TN_ERR_UNAVAILABLE, "%s (%s)", why.text, why.fix);
    loaded = l;
    tn_status s = CALL(version, (&version));
    if (s == TN_OK && version < OLDEST)
        s = tn_fail(TN_ERR_UNAVAILABLE, "%s has version %d; needed is 2.7 or later", l->calls.title, version);
    if (s != TN_OK) loaded = NULL;
    int scale = version >= 10000 ? 10000 : 1000; /* the coding changed with 2.9 */
    snprintf(version_text, sizeof version_text, "%s %d.%d.%d", l->calls.title, version / scale, version % scale / 100,
             version % 100);
    return s;
}

tn_status tn_nccl_load(const char *backend) {
    for (size_t i = 0; i < TN_COUNT(libraries); i++) {
        if (strcmp(libraries[i].backend, backend) != 0) continue;
        AUTO_LOCK(&lock);
        return load_library(&libraries[i]);
    }
    return tn_fail(TN_ERR_UNAVAILABLE, "no library for collective operations of %s devices is known", backend);
}

const char *tn_nccl_version(void) { return version_text; }

tn_status tn_nccl_make_id(tn_nccl_id *id) { return CALL(make_id, (id)); }

tn_status tn_nccl_join(const tn_nccl_id *id, int rank, int size, void **comm) {
    return CALL(init_rank, (comm, size, *id, rank));
}

void tn_nccl_leave(void *comm) { (void)calls.destroy(comm); }

tn_status tn_nccl_broadcast(void *comm, void *data, size_t bytes, int root, void *stream) {
    return CALL(broadcast, (data, data, bytes, BYTE, root, comm, stream));
}

tn_status tn_nccl_all_gather(void *comm, const void *send, size_t bytes, void *receive, void *stream) {
    return CALL(all_gather, (send, receive, bytes, BYTE, comm, stream));
}

tn_status tn_nccl_all_to_all(void *comm, const void *send, size_t bytes, void *receive, int size, void *stream) {
    tn_status s = CALL(group_start, ());
    for (int r = 0; r < size && s == TN_OK; r++) {
        s = CALL(send, ((const char *)send + (size_t)r * bytes, bytes, BYTE, r, comm, stream));
        if (s == TN_OK) s = CALL(receive, ((char *)receive + (size_t)r * bytes, bytes, BYTE, r, comm, stream));
    }
    tn_status ended = CALL(group_end, ());
    return s != TN_OK ? s : ended;
}
