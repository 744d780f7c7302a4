/* hello.c — a first tensor: make two, compute, read the result; and what an error looks like.
 *
 *   cc hello.c $(pkg-config --cflags --libs trunnion) && ./a.out */
#include <stdio.h>

#include <trunnion/trunnion.h>

int main(void) {
    const float a[] = {1, 2, 3, 4, 5, 6}, b[] = {1, 0, 0, 1, 1, 1};
    float product[4];

    TN_SCOPE; /* what is made inside is freed at its end */
    tn_tensor *x = tn_from_data(a, (int64_t[]){2, 3}, 2, TN_F32);
    tn_tensor *y = tn_from_data(b, (int64_t[]){3, 2}, 2, TN_F32);
    tn_tensor *z = tn_relu(tn_matmul(x, y));
    if (tn_read(z, product, sizeof product) != TN_OK) { /* everything above is computed here, as one plan */
        fprintf(stderr, "%s\n", tn_error());
        return 1;
    }
    printf("%g %g\n%g %g\n", (double)product[0], (double)product[1], (double)product[2], (double)product[3]);

    tn_tensor *wrong = tn_exp(tn_matmul(x, x)); /* no need to check: it passes the first error on */
    if (tn_status_of(wrong) != TN_OK) printf("as expected: %s\n", tn_error());
    return 0;
}
