/* compiling.c — a live line while a device's compiler makes kernels: the first run of a model may need dozens of them,
 * and some compilers take a second for each. Quick ones are never seen. */
#include "cli/cli.h"

static const double PATIENCE = 0.5; /* seconds of compiling before it is told */
static double spent, begun;
static bool shown;

/* Called by the one thread that a subcommand works with. */
static void on_load(void *ctx, const char *device, int64_t number, bool done) {
    (void)ctx;
    if (done) {
        spent += cli_now() - begun;
        if (shown) fputs("\r\033[K", stderr);
        shown = false;
        return;
    }
    begun = cli_now();
    shown = spent > PATIENCE;
    if (!shown) return;
    fprintf(stderr, "\r%s: compiling kernels: %lld\033[K", device, (long long)number);
    fflush(stderr);
}

void cli_show_compiling(bool show) {
    bool live = show && cli_colour(stderr) && !cli_quiet;
    tn_on_kernel_load(live ? on_load : NULL, NULL);
}
