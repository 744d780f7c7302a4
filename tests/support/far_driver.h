/* far_driver.h — a device for tests: it computes, but its memory is not the host's.
 *
 * It takes kernel programs and runs them itself, so everything above a driver can be tried as on a graphics processor,
 * sanitizers included, without one: addresses are no pointers, each allocation is a block of its own, and what it can
 * do may be taken away. Backend "far", two devices. */
#ifndef TN_FAR_DRIVER_H
#define TN_FAR_DRIVER_H

#include "hal/hal.h"

/* What the far devices are like. Read when one is opened (caps, memory) and at each call (the rest). */
typedef struct far_nature {
    bool no_f64, no_i64, no_f16; /* types they lack */
    int64_t max_buffer;          /* bytes in one binding; 0: no limit */
    int64_t shared_memory;       /* bytes of workgroup memory; 0: 32 KiB */
    int64_t max_group;           /* items of a workgroup; 0: 1024 */
    int64_t memory;              /* bytes a device has; 0: no limit */
    bool refuses_code;           /* load fails, as a compiler does */
    uint32_t matrix;             /* TN_MATRIX_… */
    int64_t subgroup, processors;
    int wrong_op;          /* a kir_op of one operand that it computes as NEG; 0: none */
    int64_t launches_left; /* launches until the device is lost, if `loses` */
    bool loses;
} far_nature;
extern far_nature far_nature_now;

/* While not negative: so many launches until one that does not return before this is negative again. */
extern _Atomic int64_t far_hangs_after;
extern _Atomic bool far_sync_hangs; /* waits for the device do not return before this is false again */

/* Calls since the process began, of all far devices. */
typedef struct far_counts {
    _Atomic int64_t allocs, frees, loads, launches, group_launches, copies_in, copies_out, copies_within, bytes_in,
        bytes_out, syncs;
} far_counts;
extern far_counts far_counts_now;

/* Called with each program that is loaded, and before each launch, unless NULL. */
extern void (*far_loaded)(const kir_program *p);
extern void (*far_launching)(void);

extern const tn_driver far_driver;

/* Registers the driver (once a process) and opens far:index; fails the test program with words when it cannot. */
tn_device *far_open(int index, const tn_device_options *options);

#endif
