/* kernels.c — one layer's attention for one token by hand: kernels on plain memory, without tensors.
 *
 *   cc kernels.c $(pkg-config --cflags --libs trunnion) && ./a.out */
#include <stdio.h>

#include <trunnion/kernels.h>

enum { WIDTH = 4, TOKENS = 3 };

static void stop_on(tn_status status) {
    if (status != TN_OK) fprintf(stderr, "%s\n", tn_error());
}

int main(void) {
    float x[WIDTH] = {0.5f, -1.0f, 2.0f, 0.25f}, gain[WIDTH] = {1, 1, 1, 1};
    const float projection[WIDTH * WIDTH] = {1, 0, 0, 1, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0, 1, 0};
    const float keys[TOKENS * WIDTH] = {1, 0, 1, 0, 0, 1, 0, 1, 1, 1, 0, 0};
    const float values[TOKENS * WIDTH] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    const float cosine[WIDTH / 2] = {0.5403023f, 0.9999500f}, sine[WIDTH / 2] = {0.8414710f, 0.0099998f};
    float query[WIDTH], scores[TOKENS], result[WIDTH];

    stop_on(tn_kernel_rmsnorm(x, gain, WIDTH, 1e-5f));
    stop_on(tn_kernel_matmul_vec_into(projection, WIDTH, WIDTH, WIDTH, x, query));
    stop_on(tn_kernel_apply_rope(query, 1, WIDTH, cosine, sine, WIDTH / 2, false)); /* position 1 */
    stop_on(tn_kernel_attention_scores(query, keys, WIDTH, TOKENS, WIDTH, 0.5f, scores));
    stop_on(tn_kernel_softmax(scores, TOKENS));
    stop_on(tn_kernel_weighted_sum_rows(scores, values, WIDTH, TOKENS, WIDTH, result));

    printf("weights  %.4f %.4f %.4f\n", (double)scores[0], (double)scores[1], (double)scores[2]);
    printf("result   %.4f %.4f %.4f %.4f\n", (double)result[0], (double)result[1], (double)result[2],
           (double)result[3]);
    return 0;
}
