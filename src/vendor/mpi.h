/* mpi.h — MPI, loaded at run time: the few collective operations that a group of processes needs.
 *
 * Open MPI's handles are addresses of objects in its library, MPICH's are numbers; both are passed in one register, so
 * calls take them as intptr_t. Counts are limited to int by MPI 3: longer messages are sent in pieces. */
#ifndef TN_VENDOR_MPI_H
#define TN_VENDOR_MPI_H

#include "base/base.h"

extern const tn_library_spec tn_mpi_library;

/* Loads MPI and starts it unless the program has; *started: it was started here, so tn_mpi_end must be called.
 * Errors: TN_ERR_UNAVAILABLE with what to install, TN_ERR_STATE after MPI_Finalize. One thread. */
tn_status tn_mpi_begin(bool *started);
void tn_mpi_end(void);
void tn_mpi_abort(int code);

int tn_mpi_rank(void);
int tn_mpi_size(void);
const char *tn_mpi_version(void); /* the library's name and version */

tn_status tn_mpi_broadcast(void *data, size_t bytes, int root);
tn_status tn_mpi_all_gather(const void *send, size_t bytes, void *receive);
tn_status tn_mpi_all_to_all(const void *send, size_t bytes, void *receive);
tn_status tn_mpi_barrier(void);

#endif
