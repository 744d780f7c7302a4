/* mpi.c — MPI through dlopen: Open MPI, and MPICH and those with its binary interface (Intel MPI, MVAPICH).
 *
 * Which of the two a library is follows from its symbols: Open MPI exports the objects that its handles point to,
 * MPICH's handles are constants that its binary interface fixes. The launcher decides which one is loaded: processes
 * that Open MPI's mpirun started would each be alone in MPICH.
 *
 * Source: MPI 3.1; mpi.h of Open MPI 4 and MPICH 4; the MPICH ABI Compatibility Initiative. */
#include "vendor/mpi.h"

#include <string.h>

#include "trunnion/status.h"

enum {
    FUNNELED = 1,         /* MPI_THREAD_FUNNELED, the same number in both: only one thread calls */
    VERSION_BYTES = 8192, /* MPI_MAX_LIBRARY_VERSION_STRING of MPICH; Open MPI has 256 */
    ERROR_BYTES = 1024,   /* MPI_MAX_ERROR_STRING is 512 in MPICH, 256 in Open MPI */
    OLDEST_MAJOR = 3,
    MPICH_BYTE = 0x4c00010d, /* MPI_BYTE, MPI_COMM_WORLD, MPI_ERRORS_RETURN of MPICH's binary interface */
    MPICH_WORLD = 0x44000000,
    MPICH_ERRORS_RETURN = 0x54000001
};
static const size_t PIECE = (size_t)64 << 20; /* bytes: counts are int, and long messages need buffers */

static int (*init_thread)(int *argc, char ***argv, int required, int *provided);
static int (*initialized)(int *flag), (*finalized)(int *flag), (*finalize)(void);
static int (*get_version)(int *major, int *minor), (*get_library_version)(char *text, int *length);
static int (*error_string)(int code, char *text, int *length);
static int (*abort_job)(intptr_t comm, int code);
static int (*comm_rank)(intptr_t comm, int *rank), (*comm_size)(intptr_t comm, int *size);
static int (*set_errhandler)(intptr_t comm, intptr_t handler);
static int (*barrier)(intptr_t comm);
static int (*bcast)(void *data, int count, intptr_t type, int root, intptr_t comm);
static int (*allgather)(const void *send, int send_count, intptr_t send_type, void *receive, int receive_count,
                        intptr_t receive_type, intptr_t comm);
static int (*alltoall)(const void *send, int send_count, intptr_t send_type, void *receive, int receive_count,
                       intptr_t receive_type, intptr_t comm);
static int (*isend)(const void *data, int count, intptr_t type, int to, int tag, intptr_t comm, void *request);
static int (*irecv)(void *data, int count, intptr_t type, int from, int tag, intptr_t comm, void *request);
static int (*wait_for)(void *request, intptr_t status), (*cancel)(void *request);
static void *open_world, *open_byte, *open_errors_return; /* Open MPI's objects; NULL in MPICH */

static const tn_symbol symbols[] = {
    {"MPI_Init_thread", (void **)&init_thread, false},
    {"MPI_Initialized", (void **)&initialized, false},
    {"MPI_Finalized", (void **)&finalized, false},
    {"MPI_Finalize", (void **)&finalize, false},
    {"MPI_Get_version", (void **)&get_version, false},
    {"MPI_Get_library_version", (void **)&get_library_version, false},
    {"MPI_Error_string", (void **)&error_string, false},
    {"MPI_Abort", (void **)&abort_job, false},
    {"MPI_Comm_rank", (void **)&comm_rank, false},
    {"MPI_Comm_size", (void **)&comm_size, false},
    {"MPI_Comm_set_errhandler", (void **)&set_errhandler, false},
    {"MPI_Barrier", (void **)&barrier, false},
    {"MPI_Bcast", (void **)&bcast, false},
    {"MPI_Allgather", (void **)&allgather, false},
    {"MPI_Alltoall", (void **)&alltoall, false},
    {"MPI_Isend", (void **)&isend, false},
    {"MPI_Irecv", (void **)&irecv, false},
    {"MPI_Wait", (void **)&wait_for, false},
    {"MPI_Cancel", (void **)&cancel, false},
    {"ompi_mpi_comm_world", &open_world, true},
    {"ompi_mpi_byte", &open_byte, true},
    {"ompi_mpi_errors_return", &open_errors_return, true},
};

static const char *const open_mpi_names[] = {"libmpi.so.40", "libmpi.so.80",   "libmpi.so.*",
                                             "libmpi.dylib", "libmpich.so.12", NULL};
static const char *const mpich_names[] = {"libmpich.so.12", "libmpi.so.12", "libmpich.so.*",
                                          "libmpi.so.40",   "libmpi.dylib", NULL};
#define FIX "install Open MPI or MPICH (packages openmpi-bin, mpich), or set TRUNNION_MPI_LIB to libmpi.so"
#define LIBRARY(names) \
    { "MPI", "TRUNNION_MPI_LIB", names, symbols, TN_COUNT(symbols), FIX }
const tn_library_spec tn_mpi_library = LIBRARY(open_mpi_names);
static const tn_library_spec mpich_library = LIBRARY(mpich_names);

static intptr_t world, type_byte, errors_return, status_ignore;
static char version_text[VERSION_BYTES];
static int own_rank, world_size = 1;

/* Turns a return code into a status, with the library's words. */
static tn_status check_mpi(int code, const char *call) {
    char text[ERROR_BYTES] = "no reason given";
    int length = 0;
    if (code == 0) return TN_OK;
    (void)error_string(code, text, &length);
    return tn_fail(TN_ERR_DEVICE, "MPI: %s: %s (error %d)", call, text, code);
}

static void choose_handles(void) {
    bool open_mpi = open_world && open_byte && open_errors_return;
    world = open_mpi ? (intptr_t)open_world : (intptr_t)MPICH_WORLD;
    type_byte = open_mpi ? (intptr_t)open_byte : (intptr_t)MPICH_BYTE;
    status_ignore = open_mpi ? 0 : 1; /* MPI_STATUS_IGNORE */
    errors_return = open_mpi ? (intptr_t)open_errors_return : (intptr_t)MPICH_ERRORS_RETURN;
}

static tn_status check_version(void) {
    int major = 0, minor = 0, length = 0;
    TRY(check_mpi(get_version(&major, &minor), "MPI_Get_version"));
    if (major < OLDEST_MAJOR)
        return tn_fail(TN_ERR_UNAVAILABLE, "MPI: the library has version %d.%d of the interface; needed is %d.0 (%s)",
                       major, minor, OLDEST_MAJOR, FIX);
    TRY(check_mpi(get_library_version(version_text, &length), "MPI_Get_library_version"));
    version_text[strcspn(version_text, ",\n")] = 0;
    for (char *tab = version_text; (tab = strchr(tab, '\t'));)
        *tab = ' ';
    return TN_OK;
}

static tn_status start(bool *started) {
    int flag = 0, provided = 0;
    TRY(check_mpi(finalized(&flag), "MPI_Finalized"));
    if (flag) return tn_fail(TN_ERR_STATE, "MPI has been ended (MPI_Finalize) and cannot be started again");
    TRY(check_mpi(initialized(&flag), "MPI_Initialized"));
    if (!flag) TRY(check_mpi(init_thread(NULL, NULL, FUNNELED, &provided), "MPI_Init_thread"));
    *started = !flag;
    if (!flag && provided < FUNNELED)
        return tn_fail(TN_ERR_UNAVAILABLE, "MPI: %s does not allow programs with threads", version_text);
    return TN_OK;
}

tn_status tn_mpi_begin(bool *started) {
    tn_reason why;
    const char *hydra = tn_env("PMI_SIZE"), *open_mpi = tn_env("OMPI_COMM_WORLD_SIZE");
    *started = false;
    if (!tn_library_open(hydra && !open_mpi ? &mpich_library : &tn_mpi_library, &why))
        return tn_fail(TN_ERR_UNAVAILABLE, "%s (%s)", why.text, why.fix);
    choose_handles();
    TRY(check_version());
    TRY(start(started));
    TRY(check_mpi(set_errhandler(world, errors_return), "MPI_Comm_set_errhandler"));
    TRY(check_mpi(comm_rank(world, &own_rank), "MPI_Comm_rank"));
    return check_mpi(comm_size(world, &world_size), "MPI_Comm_size");
}

void tn_mpi_end(void) { (void)finalize(); }
void tn_mpi_abort(int code) { (void)abort_job(world, code); }
int tn_mpi_rank(void) { return own_rank; }
int tn_mpi_size(void) { return world_size; }
const char *tn_mpi_version(void) { return version_text; }

tn_status tn_mpi_barrier(void) { return check_mpi(barrier(world), "MPI_Barrier"); }

tn_status tn_mpi_broadcast(void *data, size_t bytes, int root) {
    for (size_t at = 0; at < bytes; at += PIECE) {
        size_t count = bytes - at < PIECE ? bytes - at : PIECE;
        TRY(check_mpi(bcast((char *)data + at, (int)count, type_byte, root, world), "MPI_Bcast"));
    }
    return TN_OK;
}

/* A block that is longer than a piece lies in strides of `bytes` in the longer buffer, which MPI_Allgather and
 * MPI_Alltoall cannot express for a part of it: pieces go through a buffer of their own. */
typedef tn_status exchange_piece(const char *send, size_t bytes, char *receive);

static tn_status gather_piece(const char *send, size_t bytes, char *receive) {
    return check_mpi(allgather(send, (int)bytes, type_byte, receive, (int)bytes, type_byte, world), "MPI_Allgather");
}

static tn_status trade_piece(const char *send, size_t bytes, char *receive) {
    return check_mpi(alltoall(send, (int)bytes, type_byte, receive, (int)bytes, type_byte, world), "MPI_Alltoall");
}

/* send: `blocks` blocks of `bytes`; receive: one block of `bytes` for each rank. */
static tn_status in_pieces(exchange_piece *exchange, const char *send, int blocks, size_t bytes, char *receive) {
    if (bytes <= PIECE) return exchange(send, bytes, receive);
    size_t size = (size_t)world_size;
    AUTO_FREE char *from = tn_mem_alloc((size_t)blocks * PIECE), *to = tn_mem_alloc(size * PIECE);
    TRY(from && to ? TN_OK : tn_fail(TN_ERR_MEMORY, "MPI: out of memory for a long message"));
    for (size_t at = 0; at < bytes; at += PIECE) {
        size_t count = bytes - at < PIECE ? bytes - at : PIECE;
        for (int i = 0; i < blocks; i++)
            memcpy(from + (size_t)i * count, send + (size_t)i * bytes + at, count);
        TRY(exchange(from, count, to));
        for (size_t i = 0; i < size; i++)
            memcpy(receive + i * bytes + at, to + i * count, count);
    }
    return TN_OK;
}

tn_status tn_mpi_all_gather(const void *send, size_t bytes, void *receive) {
    return in_pieces(gather_piece, send, 1, bytes, receive);
}

tn_status tn_mpi_all_to_all(const void *send, size_t bytes, void *receive) {
    return in_pieces(trade_piece, send, world_size, bytes, receive);
}

/* ---- without waiting --------------------------------------------------------------------------------------------- */

static int pieces_of(size_t bytes) { return (int)((bytes + PIECE - 1) / PIECE); }

static tn_status start_pieces(tn_mpi_request *r, bool sends, char *data, size_t bytes, int peer) {
    for (size_t at = 0; at < bytes; at += PIECE) {
        int count = (int)(bytes - at < PIECE ? bytes - at : PIECE);
        intptr_t *handle = &r->handles[r->count];
        int code = sends ? isend(data + at, count, type_byte, peer, r->tag, world, handle)
                         : irecv(data + at, count, type_byte, peer, r->tag, world, handle);
        TRY(check_mpi(code, sends ? "MPI_Isend" : "MPI_Irecv"));
        r->count++;
    }
    return TN_OK;
}

/* Each rank begins to send with another peer: its k-th, k = 1 … size - 1. */
static int peer_of(int rank, int k) { return (rank + k) % world_size; }

int tn_mpi_messages(const size_t *bytes, int rank) {
    int n = 0;
    for (int k = 1; k < world_size; k++)
        n += pieces_of(bytes[peer_of(rank, k)]);
    return n;
}

int tn_mpi_begun(const tn_mpi_request *r) { return r->count - r->received; }

tn_status tn_mpi_receive(const size_t *bytes, void *receive, int tag, tn_mpi_request *r) {
    size_t own = bytes[own_rank];
    int most = (world_size - 1) * pieces_of(own) + tn_mpi_messages(bytes, own_rank);
    *r = (tn_mpi_request){.handles = tn_mem_zalloc((size_t)most + 1, sizeof *r->handles), .tag = tag};
    tn_status status = r->handles ? TN_OK : tn_fail(TN_ERR_MEMORY, "MPI: out of memory for an exchange");
    for (int k = 1; k < world_size && status == TN_OK; k++) {
        int peer = peer_of(own_rank, world_size - k);
        status = start_pieces(r, false, (char *)receive + (size_t)peer * own, own, peer);
    }
    r->received = r->count;
    if (status != TN_OK) tn_mpi_cancel(bytes, NULL, r);
    return status;
}

tn_status tn_mpi_send(const void *send, const size_t *from, const size_t *bytes, void *receive, tn_mpi_request *r) {
    size_t own = bytes[own_rank];
    for (int k = 1; k < world_size; k++) {
        int peer = peer_of(own_rank, k);
        TRY(start_pieces(r, true, (char *)(uintptr_t)send + from[peer], bytes[peer], peer));
    }
    if (own) memcpy((char *)receive + (size_t)own_rank * own, (const char *)send + from[own_rank], own);
    return TN_OK;
}

/* Messages that `rank` sends to others before those for this rank. */
static int messages_before(const size_t *bytes, int rank) {
    int n = 0;
    for (int k = 1; peer_of(rank, k) != own_rank; k++)
        n += pieces_of(bytes[peer_of(rank, k)]);
    return n;
}

void tn_mpi_cancel(const size_t *bytes, const uint64_t *begun, tn_mpi_request *r) {
    int pieces = pieces_of(bytes[own_rank]);
    for (int i = 0; i < r->received; i++) {
        int peer = peer_of(own_rank, world_size - 1 - i / pieces);
        int arrives = begun ? (int)begun[peer] - messages_before(bytes, peer) : 0;
        if (i % pieces >= arrives) (void)cancel(&r->handles[i]);
    }
    for (int i = 0; i < r->count; i++)
        (void)wait_for(&r->handles[i], status_ignore);
    tn_mem_free(r->handles);
    *r = (tn_mpi_request){0};
}

tn_status tn_mpi_finish(tn_mpi_request *r) {
    tn_status status = TN_OK;
    for (int i = 0; i < r->count; i++) {
        tn_status one = check_mpi(wait_for(&r->handles[i], status_ignore), "MPI_Wait");
        if (status == TN_OK) status = one;
    }
    tn_mem_free(r->handles);
    *r = (tn_mpi_request){0};
    return status;
}
