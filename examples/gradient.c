/* gradient.c — the program of README.md: a gradient, and what every call that can fail says.
 *
 *   cc gradient.c $(pkg-config --cflags --libs trunnion) && ./a.out */
#include <stdio.h>
#include <trunnion/trunnion.h>

/* The gradient of f(x) = silu(x) · silu(x). */
int main(void) {
    const float values[] = {-1, 0, 1, 2};
    float gradient[4];
    TN_SCOPE; /* tensors made from here on are freed when the block ends, also by return */
    tn_tensor *x = tn_from_data(values, (int64_t[]){4}, 1, TN_F32);
    tn_set_requires_grad(x, true);
    tn_tensor *y = tn_silu(x);
    tn_status status = tn_backward(tn_matmul(y, y));
    if (status == TN_OK) status = tn_read(tn_grad(x), gradient, sizeof gradient); /* runs everything as one plan */
    if (status != TN_OK) {
        fprintf(stderr, "%s\n", tn_error());
        return 1;
    }
    for (int i = 0; i < 4; i++)
        printf("%g\n", (double)gradient[i]);
    return 0;
}
