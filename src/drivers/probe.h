/* probe.h — shared by the probes: texts of results, and facts about libraries and device nodes.
 *
 * A probe fills a tn_probe: devices, or the reason why there are none. Most run in a child process (hal/discovery.c),
 * so they need not clean up: the process ends with them. */
#ifndef TN_DRIVERS_PROBE_H
#define TN_DRIVERS_PROBE_H

#include "base/base.h"
#include "trunnion/backend.h"

/* A probe that loads a vendor's code runs in a child process. Apple's frameworks do not work in a forked child, and
 * Windows and WebAssembly cannot fork: there it runs in this process. */
#if defined(__APPLE__)
enum { TN_PROBE_ON_APPLE = 1, TN_PROBE_ISOLATE = 0 };
#elif defined(_WIN32) || defined(__wasm__)
enum { TN_PROBE_ON_APPLE = 0, TN_PROBE_ISOLATE = 0 };
#else
enum { TN_PROBE_ON_APPLE = 0, TN_PROBE_ISOLATE = 1 };
#endif

typedef void tn_watch_add(void *ctx, const char *what);

void tn_probe_reason(tn_probe *out, tn_reason_code code, const char *fix, const char *format, ...) TN_PRINTF(4, 5);

/* Opens the library of a probe and notes its file; NULL, with the reason noted, if that fails. */
void *tn_probe_library(tn_probe *out, const tn_library_spec *spec);

/* The next device to fill, zeroed; NULL if there is no room for more. */
tn_device_info *tn_probe_device(tn_probe *out);

/* Watches what decides which library tn_probe_library opens. */
void tn_probe_watch(const tn_library_spec *spec, tn_watch_add *add, void *ctx);

/* node: a device node ("nvidiactl", "dri/renderD128") below /dev, or below TRUNNION_DEV, which is for tests. */
void tn_probe_watch_node(const char *node, tn_watch_add *add, void *ctx);

/* If the node is there but not for this user: notes the reason "permission" and returns true. */
bool tn_probe_denied(tn_probe *out, const char *node);
/* The same for any of dri/renderD128 … renderD143. */
bool tn_probe_render_denied(tn_probe *out);

/* The same for a library that loads Vulkan drivers: also what decides which of these there are. */
void tn_probe_watch_vulkan(const tn_library_spec *spec, tn_watch_add *add, void *ctx);

/* "0:65:0.0", "00000000:65:00.0" → "0000:65:00.0"; "" for anything else. */
void tn_probe_pci(char out[16], const char *text);
void tn_probe_pci_numbers(char out[16], unsigned domain, unsigned bus, unsigned device, unsigned function);
void tn_probe_uuid(char out[40], const unsigned char bytes[16]); /* "" for all zeros */

#endif
