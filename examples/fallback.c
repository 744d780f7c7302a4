/* fallback.c — the same work on the best device that can do it: what failed, why, and what ran.
 *
 *   cc fallback.c $(pkg-config --cflags --libs trunnion) && ./a.out opencl cpu */
#include <stdio.h>

#include <trunnion/trunnion.h>

/* The mean of squares, in f64: not every GPU has that. */
static tn_status work(void *ctx, tn_device *device) {
    (void)device; /* it is the current one: new tensors live there */
    tn_tensor *x = tn_arange(1, 5, 1, TN_F64);
    return tn_read(tn_mean(tn_square(x), NULL, 0, false), ctx, sizeof(double));
}

int main(int argc, char **argv) {
    const char *usual[] = {"cuda", "opencl", "cpu"};
    tn_device_options o = TN_DEVICE_DEFAULTS;
    o.fallback = TN_FALLBACK_SILENT; /* we say it ourselves */
    tn_try_report report = {.struct_size = sizeof report};
    double mean = 0;
    tn_status s =
        tn_try(argc > 1 ? (const char *const *)argv + 1 : usual, argc > 1 ? argc - 1 : 3, &o, work, &mean, &report);
    for (int i = 0; i < report.attempt_count; i++) {
        const tn_attempt *a = &report.attempts[i];
        printf("%-10s %s%s\n", a->id, a->status == TN_OK ? "did it" : "failed: ", a->reason);
    }
    if (s == TN_OK) printf("mean of squares: %g\n", mean);
    return s == TN_OK ? 0 : 1;
}
