/* mpi_faults.c — makes a call of a real MPI library fail, chosen by number (fault_counter.h).
 *
 * It is linked with that library, and TRUNNION_MPI_LIB names it. The functions here shadow the library's; all others
 * are the library's own. A call that fails does nothing, except MPI_Wait: it waits and then fails, because its memory
 * must belong to the caller afterwards. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>

#include "fault_counter.h"

typedef int call(intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t);

/* All parameters are integers and pointers; a function with fewer does not look at the rest. */
static call *real(const char *name) {
    call *f;
    *(void **)&f = dlsym(RTLD_NEXT, name);
    if (!f) fprintf(stderr, "mpi_faults: %s\n", dlerror());
    return f;
}

#define FORWARD(NAME)                                                                                          \
    FAULT_EXPORT int NAME(intptr_t a, intptr_t b, intptr_t c, intptr_t d, intptr_t e, intptr_t f, intptr_t g); \
    int NAME(intptr_t a, intptr_t b, intptr_t c, intptr_t d, intptr_t e, intptr_t f, intptr_t g) {             \
        return fails(#NAME, true) ? fault.with : real(#NAME)(a, b, c, d, e, f, g);                             \
    }
FORWARD(MPI_Isend)
FORWARD(MPI_Irecv)

FAULT_EXPORT int MPI_Wait(intptr_t request, intptr_t status);
int MPI_Wait(intptr_t request, intptr_t status) {
    int code = real("MPI_Wait")(request, status, 0, 0, 0, 0, 0);
    return fails("MPI_Wait", true) ? fault.with : code;
}

__attribute__((constructor)) static void arm_from_environment(void) { fault_arm_by("FAULT"); }
