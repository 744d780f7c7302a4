/* devices.c — what this machine can compute on, and why not; then opens the best device and computes on it.
 *
 *   cc devices.c $(pkg-config --cflags --libs trunnion) && ./a.out [cpu|cuda|vulkan|…] */
#include <stdio.h>

#include <trunnion/trunnion.h>

static int failed(void) {
    fprintf(stderr, "%s\n", tn_error());
    return 1;
}

static int list(void) {
    tn_device_list *all;
    if (tn_device_list_new(false, &all) != TN_OK) return failed();
    for (int i = 0; i < tn_device_list_count(all); i++) {
        const tn_backend_info *b = tn_device_list_at(all, i);
        printf("%-20s %s\n", b->title, b->available ? "yes" : b->reason);
    }
    tn_device_list_free(all);
    return 0;
}

int main(int argc, char **argv) {
    if (list() != 0) return 1;

    tn_device *device;
    tn_device_info info = {.struct_size = sizeof info};
    if (tn_device_open(argc > 1 ? argv[1] : "auto", NULL, NULL, &device) != TN_OK) return failed();
    if (tn_set_current_device(device) != TN_OK || tn_device_get_info(device, &info) != TN_OK) return failed();
    printf("\nopened %s: %s\n", info.id, info.name);

    double sum = 0;
    {
        TN_SCOPE;
        sum = tn_item(tn_sum(tn_arange(0, 1000, 1, TN_F32), NULL, 0, false));
    }
    printf("0 + 1 + … + 999 = %g\n", sum);
    tn_device_close(device);
    return sum == 499500 ? 0 : 1;
}
