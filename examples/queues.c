/* queues.c — work beside the caller: a product on a queue of its own while the program does something else, with events
 * that tell when it was reached.
 *
 *   cc queues.c $(pkg-config --cflags --libs trunnion) && ./a.out [cpu|opencl|…] */
#include <stdio.h>

#include <trunnion/trunnion.h>

enum { SIDE = 256 };

static int failed(void) {
    fprintf(stderr, "%s\n", tn_error());
    return 1;
}

/* What the caller does meanwhile: an estimate of pi. */
static double something_else(void) {
    double sum = 0;
    for (int i = 0; i < 100000; i++)
        sum += (i % 2 ? -4.0 : 4.0) / (2.0 * i + 1);
    return sum;
}

static int compute(tn_queue *products, tn_queue *sums, tn_event *begin, tn_event *end) {
    const int64_t shape[] = {SIDE, SIDE};
    tn_tensor *x = tn_full(shape, 2, 0.5, TN_F32), *y = tn_matmul(x, x);
    if (tn_event_record(begin, products) != TN_OK) return failed();
    if (tn_eval_async(&y, 1, products, end) != TN_OK) return failed(); /* returns at once */

    /* On another queue, from what the first has yet to make: the order between them is the library's care. */
    tn_tensor *sum = tn_sum(y, NULL, 0, false);
    if (tn_eval_async(&sum, 1, sums, NULL) != TN_OK) return failed();

    double pi = something_else(), seconds = 0;
    double value = tn_item(sum); /* waits */
    if (tn_event_elapsed(begin, end, &seconds) != TN_OK) return failed();
    printf("meanwhile: %.3f; the product's sum: %g, made in %.2f ms\n", pi, value, 1e3 * seconds);
    return value == 0.25 * SIDE * SIDE * SIDE ? 0 : 1;
}

int main(int argc, char **argv) {
    tn_device *device;
    tn_queue *products = NULL, *sums = NULL;
    tn_event *begin = NULL, *end = NULL;
    int result = 1;
    if (tn_device_open(argc > 1 ? argv[1] : "cpu", NULL, NULL, &device) != TN_OK) return failed();
    if (tn_set_current_device(device) != TN_OK || tn_queue_new(device, &products) != TN_OK ||
        tn_queue_new(device, &sums) != TN_OK || tn_event_new(true, &begin) != TN_OK ||
        tn_event_new(true, &end) != TN_OK)
        failed();
    else {
        TN_SCOPE;
        result = compute(products, sums, begin, end);
    }

    tn_pool_stats pool = {.struct_size = sizeof pool};
    if (tn_device_get_pool_stats(device, &pool) == TN_OK)
        printf("memory: %lld KiB at most, %lld KiB kept for the next time\n", (long long)(pool.peak_bytes >> 10),
               (long long)(pool.kept_bytes >> 10));
    tn_event_free(begin);
    tn_event_free(end);
    tn_queue_free(products);
    tn_queue_free(sums);
    tn_device_close(device);
    return result;
}
