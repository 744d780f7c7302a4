/* probe_webgpu.h — the library wgpu-native for probe and driver: its functions, and the adapters that it has. */
#ifndef TN_DRIVERS_PROBE_WEBGPU_H
#define TN_DRIVERS_PROBE_WEBGPU_H

#include "drivers/probe.h"
#include "drivers/webgpu.h"

/* The library's functions, by their names without "wgpu". */
typedef struct wg_calls {
#define X(name, result, parameters) result(*name) parameters;
    CALLS(X)
#undef X
} wg_calls;
extern wg_calls tn_wg_gpu;

/* Opens the library once a process; hal probes and opens under one lock. A probe's own process looks anew. */
bool tn_wg_load(bool anew, tn_reason *why);
uint32_t tn_wg_major_version(void);
void tn_wg_text(char *out, size_t size, wgpu_text t);  /* a text of the library's, cut short where it must be */
void tn_wg_words(char *out, size_t size, wgpu_text t); /* … on one line: its words come in paragraphs */

void tn_wg_probe(tn_probe *out);
void tn_wg_watch(tn_watch_add *add, void *ctx);
/* The index-th adapter of the listing, which the caller releases. */
tn_status tn_wg_find(void *instance, int index, void **out);

#endif
