/* test_null.c — NULL where a pointer is needed: a clear error or the neutral value that the header states, never a
 * crash.
 *
 * Every public function that takes a pointer stands in one of the tables below (tools/checks/source.py looks for them);
 * those of ops.h are generated. A row is a call and what it must yield:
 *   REFUSES(call)        an error tensor with words
 *   FAILS(call)          a status other than TN_OK, with words
 *   YIELDS(value, call)  this value
 *   RETURNS(call)        anything: the call is all
 * Errors of calls that were refused name the caller's line too: the last tests look at that. */
#include "test_support.h"

#include <math.h>

#include "trunnion/amp.h"
#include "trunnion/autograd.h"
#include "trunnion/backend.h"
#include "trunnion/certify.h"
#include "trunnion/data.h"
#include "trunnion/data_parallel.h"
#include "trunnion/engine.h"
#include "trunnion/functions.h"
#include "trunnion/json.h"
#include "trunnion/kernels.h"
#include "trunnion/linalg.h"
#include "trunnion/model.h"
#include "trunnion/nn.h"
#include "trunnion/onnx.h"
#include "trunnion/ops.h"
#include "trunnion/optim.h"
#include "trunnion/survive.h"
#include "trunnion/tune.h"

/* A failure must bring words of its own, not those of an earlier one. */
static void forget_error(void) { tn_backend_fail(TN_ERR_INTERNAL, "an earlier failure"); }

static void check_words(const char *call) {
    if (tn_error()[0] == '\0' || strstr(tn_error(), "an earlier failure")) fail_msg("%s: no words", call);
}

/* "tn_take(NULL, NULL)": the error names take, not an operation inside. */
static void check_name(const char *call) {
    char name[64];
    size_t length = strspn(call, "abcdefghijklmnopqrstuvwxyz0123456789_");
    if (call[length] != '(') return; /* a result of a call before */
    snprintf(name, sizeof name, ": %.*s: ", (int)length - 3, call + 3);
    if (!strstr(tn_error(), name)) fail_msg("%s: \"%s\"", call, tn_error());
}

static void check_refused(const char *call, tn_tensor *t) {
    if (!t) fail_msg("%s: NULL instead of an error tensor", call);
    if (tn_status_of(t) == TN_OK) fail_msg("%s: not refused", call);
    check_words(call);
    tn_free(t);
}

static void check_failed(const char *call, tn_status status) {
    if (status == TN_OK) fail_msg("%s: not refused", call);
    check_words(call);
}

#define REFUSES(call) (forget_error(), check_refused(#call, (call)));
#define NAMED(call) (forget_error(), check_refused(#call, (call)), check_name(#call));
#define FAILS(call) (forget_error(), check_failed(#call, (call)));
#define YIELDS(value, call) \
    if (!((call) == (value))) fail_msg("%s is not %s", #call, #value);
#define RETURNS(call) (void)(call);
#define CALLS(call) call;

static void ops_refuse(void **state) {
    (void)state;
#include "null_ops.h"
    tn_tensor *out[2] = {NULL, NULL};
    REFUSES(tn_cat(NULL, 0, 0))
    REFUSES(tn_cat(out, -1, 0))
    REFUSES(tn_cat(out, 1000, 0))
    YIELDS(2, tn_split(NULL, (int64_t[]){1, 1}, 2, 0, out))
    REFUSES(out[0])
    REFUSES(out[1])
    YIELDS(0, tn_split(NULL, NULL, 2, 0, NULL))
    YIELDS(1, tn_chunk(NULL, 2, 0, out))
    REFUSES(out[0])
    YIELDS(0, tn_chunk(NULL, 2, 0, NULL))
    tn_tensor *third = NULL;
    CALLS(tn_linalg_qr(NULL, &out[0], &out[1]))
    REFUSES(out[0])
    REFUSES(out[1])
    CALLS(tn_linalg_lu(NULL, &out[0], &out[1], &third))
    REFUSES(out[0])
    REFUSES(out[1])
    REFUSES(third)
    CALLS(tn_linalg_eigh(NULL, &out[0], &out[1]))
    REFUSES(out[0])
    REFUSES(out[1])
    CALLS(tn_linalg_eig(NULL, &out[0], &out[1]))
    REFUSES(out[0])
    REFUSES(out[1])
    CALLS(tn_linalg_svd(NULL, false, &out[0], &out[1], &third))
    REFUSES(out[0])
    REFUSES(out[1])
    REFUSES(third)
    CALLS(tn_linalg_slogdet(NULL, &out[0], &out[1]))
    REFUSES(out[0])
    REFUSES(out[1])
}

static void functions_refuse(void **state) {
    (void)state;
    FAILS(tn_tensor_text(NULL, NULL, 2, NULL))
    FAILS(tn_print(NULL))
    tn_function unnamed = tn_function_begin(NULL);
    CALLS(tn_function_end(&unnamed))
    CALLS(tn_function_end(NULL))
    NAMED(tn_index(NULL, NULL, 2))
    NAMED(tn_index_put(NULL, NULL, 2, NULL, false))
    NAMED(tn_nonzero(NULL))
    NAMED(tn_masked_select(NULL, NULL))
    NAMED(tn_masked_scatter(NULL, NULL, NULL))
    NAMED(tn_take(NULL, NULL))
    NAMED(tn_put(NULL, NULL, NULL, false))
    NAMED(tn_index_fill(NULL, 2, NULL, 0.5))
    NAMED(tn_index_copy(NULL, 2, NULL, NULL))
    NAMED(tn_index_reduce(NULL, 2, NULL, NULL, (tn_reduce)0, false))
    NAMED(tn_scatter_mean(NULL, 2, NULL, NULL, false))
    NAMED(tn_unique(NULL, NULL, NULL))
    NAMED(tn_unique_consecutive(NULL, NULL, NULL))
    NAMED(tn_bincount(NULL, NULL, 2))
    NAMED(tn_histc(NULL, 2, 0.5, 0.5))
    NAMED(tn_searchsorted(NULL, NULL, false))
    NAMED(tn_bucketize(NULL, NULL, false))
    NAMED(tn_isin(NULL, NULL, false))
    NAMED(tn_repeat_interleave(NULL, 2, 2))
    NAMED(tn_repeat_interleave_by(NULL, NULL, 2))
    NAMED(tn_clone(NULL))
    NAMED(tn_fft(NULL, -1, 0, TN_FFT_BACKWARD))
    NAMED(tn_ifft(NULL, -1, 0, TN_FFT_BACKWARD))
    NAMED(tn_rfft(NULL, -1, 0, TN_FFT_BACKWARD))
    NAMED(tn_irfft(NULL, -1, 0, TN_FFT_BACKWARD))
    NAMED(tn_fftn(NULL, NULL, NULL, 1, TN_FFT_BACKWARD))
    NAMED(tn_ifftn(NULL, NULL, NULL, 1, TN_FFT_BACKWARD))
    NAMED(tn_rfftn(NULL, NULL, NULL, 1, TN_FFT_BACKWARD))
    NAMED(tn_irfftn(NULL, NULL, NULL, 1, TN_FFT_BACKWARD))
    NAMED(tn_stft(NULL, 4, 2, NULL, false, false))
    NAMED(tn_istft(NULL, 4, 2, NULL, false, false, -1))
    NAMED(tn_diagonal_scatter(NULL, NULL, 2, 2, 2))
    NAMED(tn_select_scatter(NULL, NULL, 2, 2))
    NAMED(tn_slice_scatter(NULL, NULL, 2, 2, 2, 2))
    NAMED(tn_as_strided_scatter(NULL, NULL, NULL, 2, NULL, 2, 2))
    NAMED(tn_diagonal(NULL, 2, 2, 2))
    NAMED(tn_diag_embed(NULL, 2, 2, 2))
    NAMED(tn_diag(NULL, 2))
    NAMED(tn_diagflat(NULL, 2))
    FAILS(tn_meshgrid(NULL, 2, false, NULL))
    NAMED(tn_cartesian_prod(NULL, 2))
    NAMED(tn_combinations(NULL, 2, false))
    NAMED(tn_block_diag(NULL, 2))
    NAMED(tn_unfold(NULL, 2, 2, 2))
    NAMED(tn_vander(NULL, 2))
    NAMED(tn_einsum(NULL, NULL, 2))
    NAMED(tn_tensordot(NULL, NULL, NULL, 2, NULL, 2))
    NAMED(tn_inner(NULL, NULL))
    NAMED(tn_kron(NULL, NULL))
    NAMED(tn_linalg_cross(NULL, NULL, 2))
    NAMED(tn_bilinear(NULL, NULL, NULL, NULL))
    NAMED(tn_linalg_matrix_power(NULL, 2))
    NAMED(tn_linalg_matrix_exp(NULL))
    NAMED(tn_linalg_pinv(NULL, 0.5))
    NAMED(tn_linalg_lstsq(NULL, NULL, 0.5))
    NAMED(tn_linalg_lu_solve(NULL, NULL, NULL, NULL))
    NAMED(tn_polygamma(2, NULL))
    NAMED(tn_linalg_matrix_rank(NULL, 0.5))
    NAMED(tn_linalg_cond(NULL, 0.5))
    NAMED(tn_linalg_matrix_norm(NULL, (tn_matrix_norm)0, false))
    NAMED(tn_linalg_matrix_norm_of(NULL, 0.5, false))
    NAMED(tn_kthvalue(NULL, 2, 2, false, NULL))
    NAMED(tn_median(NULL, 2, false, NULL))
    NAMED(tn_nanmedian(NULL, 2, false, NULL))
    NAMED(tn_mode(NULL, 2, false, NULL))
    NAMED(tn_quantile(NULL, NULL, 2, false, (tn_quantile_mode)0))
    NAMED(tn_nanquantile(NULL, NULL, 2, false, (tn_quantile_mode)0))
    NAMED(tn_cummax(NULL, 2, NULL))
    NAMED(tn_cummin(NULL, 2, NULL))
    NAMED(tn_logcumsumexp(NULL, 2))
    NAMED(tn_diff(NULL, 2, 2))
    NAMED(tn_trapezoid(NULL, NULL, 0.5, 2))
    NAMED(tn_cumulative_trapezoid(NULL, NULL, 0.5, 2))
    NAMED(tn_cov(NULL, 2))
    NAMED(tn_corrcoef(NULL))
    NAMED(tn_renorm(NULL, 0.5, 2, 0.5))
    NAMED(tn_pairwise_distance(NULL, NULL, 0.5, 0.5, false))
    NAMED(tn_cdist(NULL, NULL, 0.5))
    NAMED(tn_pdist(NULL, 0.5))
    NAMED(tn_cosine_embedding_loss(NULL, NULL, NULL, 0.5, (tn_reduction)0))
    NAMED(tn_triplet_margin_loss(NULL, NULL, NULL, 0.5, 0.5, 0.5, false, (tn_reduction)0))
    NAMED(tn_multi_margin_loss(NULL, NULL, NULL, 0.5, 0.5, (tn_reduction)0))
    NAMED(tn_multilabel_margin_loss(NULL, NULL, (tn_reduction)0))
    NAMED(tn_multilabel_soft_margin_loss(NULL, NULL, NULL, (tn_reduction)0))
    NAMED(tn_ctc_loss(NULL, NULL, NULL, NULL, 2, (tn_reduction)0, false))
    NAMED(tn_pad_by(NULL, NULL, 2, (tn_pad_mode)0))
    NAMED(tn_interpolate(NULL, NULL, 2, NULL, (tn_interpolate_mode)0, false))
    NAMED(tn_pixel_shuffle(NULL, 2))
    NAMED(tn_pixel_unshuffle(NULL, 2))
    NAMED(tn_channel_shuffle(NULL, 2))
    NAMED(tn_local_response_norm(NULL, 2, 0.5, 0.5, 0.5))
    NAMED(tn_im2col(NULL, NULL, NULL, NULL, NULL))
    NAMED(tn_col2im(NULL, NULL, NULL, NULL, NULL, NULL))
    NAMED(tn_grid_sample(NULL, NULL, (tn_grid_mode)0, (tn_grid_padding)0, false))
    NAMED(tn_affine_grid(NULL, NULL, 2, false))
    NAMED(tn_max_pool(NULL, 2, NULL, NULL, NULL, NULL, false, NULL))
    NAMED(tn_avg_pool(NULL, 2, NULL, NULL, NULL, false, false, 2))
    NAMED(tn_lp_pool(NULL, 2, 0.5, NULL, NULL, false))
    NAMED(tn_adaptive_avg_pool(NULL, 2, NULL))
    NAMED(tn_adaptive_max_pool(NULL, 2, NULL, NULL))
    NAMED(tn_max_unpool(NULL, NULL, 2, NULL))
    NAMED(tn_conv3d(NULL, NULL, NULL, NULL, NULL, NULL, 2))
    NAMED(tn_conv_transpose1d(NULL, NULL, NULL, 2, 2, 2, 2, 2))
    NAMED(tn_conv_transpose3d(NULL, NULL, NULL, NULL, NULL, NULL, 2, NULL))
    NAMED(tn_embedding_bag(NULL, NULL, NULL, (tn_bag_mode)0, NULL))
    NAMED(tn_multinomial(NULL, 2, false))
    NAMED(tn_exponential(0.5, NULL, 2))
    NAMED(tn_cauchy(0.5, 0.5, NULL, 2))
    NAMED(tn_log_normal(0.5, 0.5, NULL, 2))
    NAMED(tn_geometric(0.5, NULL, 2))
    NAMED(tn_rrelu(NULL, 0.5, 0.5, false))
    NAMED(tn_feature_dropout(NULL, 0.5, false, false))
    NAMED(tn_alpha_dropout(NULL, 0.5, false))
}

static void kernels_refuse(void **state) {
    (void)state;
    float x[8] = {0}, y[8] = {0}, *made;
    const uint8_t blocks[34] = {0};
    tn_kernel_matrix *w;
    FAILS(tn_kernel_matmul_vec(NULL, 2, 2, x, &made))
    FAILS(tn_kernel_matmul_vec(x, 2, 2, NULL, &made))
    FAILS(tn_kernel_matmul_vec(x, 2, 2, y, NULL))
    FAILS(tn_kernel_matmul_vec_into(NULL, 2, 2, 2, x, y))
    FAILS(tn_kernel_matmul_vec_into(x, 2, 2, 2, NULL, y))
    FAILS(tn_kernel_matmul_vec_into(x, 2, 2, 2, y, NULL))
    CALLS(tn_kernel_free(NULL))
    FAILS(tn_kernel_matmul(NULL, x, 2, 2, 2, y))
    FAILS(tn_kernel_matmul(x, NULL, 2, 2, 2, y))
    FAILS(tn_kernel_matmul(x, x, 2, 2, 2, NULL))
    FAILS(tn_kernel_matmul_vec_quantized(TN_Q8_0, NULL, 1, 32, x, y))
    FAILS(tn_kernel_matmul_vec_quantized(TN_Q8_0, blocks, 1, 32, NULL, y))
    FAILS(tn_kernel_matmul_vec_quantized(TN_Q8_0, blocks, 1, 32, x, NULL))
    FAILS(tn_kernel_pack_quantized(TN_Q8_0, NULL, 1, 32, &w))
    FAILS(tn_kernel_pack_quantized(TN_Q8_0, blocks, 1, 32, NULL))
    FAILS(tn_kernel_matmul_packed(NULL, x, 1, y))
    CALLS(tn_kernel_matrix_free(NULL))
    FAILS(tn_kernel_rmsnorm(NULL, x, 2, 0))
    FAILS(tn_kernel_rmsnorm(x, NULL, 2, 0))
    FAILS(tn_kernel_softmax(NULL, 2))
    FAILS(tn_kernel_softmax_view(NULL, 2, 2))
    FAILS(tn_kernel_silu(NULL, 2, y))
    FAILS(tn_kernel_silu(x, 2, NULL))
    FAILS(tn_kernel_apply_rope(NULL, 1, 4, y, y, 2, false))
    FAILS(tn_kernel_apply_rope(x, 1, 4, NULL, y, 2, false))
    FAILS(tn_kernel_apply_rope(x, 1, 4, y, NULL, 2, false))
    FAILS(tn_kernel_attention_scores(NULL, x, 2, 2, 2, 1, y))
    FAILS(tn_kernel_attention_scores(y, NULL, 2, 2, 2, 1, x))
    FAILS(tn_kernel_attention_scores(y, x, 2, 2, 2, 1, NULL))
    FAILS(tn_kernel_weighted_sum_rows(NULL, x, 2, 2, 2, y))
    FAILS(tn_kernel_weighted_sum_rows(y, NULL, 2, 2, 2, x))
    FAILS(tn_kernel_weighted_sum_rows(y, x, 2, 2, 2, NULL))
    /* without a device they are those of the cpu */
    FAILS(tn_kernel_matmul_vec_on(NULL, NULL, 2, 2, 2, x, y))
    FAILS(tn_kernel_matmul_vec_on(NULL, x, 2, 2, 2, NULL, y))
    FAILS(tn_kernel_matmul_vec_on(NULL, x, 2, 2, 2, y, NULL))
    FAILS(tn_kernel_matmul_on(NULL, NULL, x, 2, 2, 2, y))
    FAILS(tn_kernel_matmul_on(NULL, x, NULL, 2, 2, 2, y))
    FAILS(tn_kernel_matmul_on(NULL, x, x, 2, 2, 2, NULL))
    FAILS(tn_kernel_matmul_vec_quantized_on(NULL, TN_Q8_0, NULL, 1, 32, x, y))
    FAILS(tn_kernel_matmul_vec_quantized_on(NULL, TN_Q8_0, blocks, 1, 32, NULL, y))
    FAILS(tn_kernel_matmul_vec_quantized_on(NULL, TN_Q8_0, blocks, 1, 32, x, NULL))
    FAILS(tn_kernel_rmsnorm_on(NULL, NULL, x, 2, 0))
    FAILS(tn_kernel_rmsnorm_on(NULL, x, NULL, 2, 0))
    FAILS(tn_kernel_softmax_on(NULL, NULL, 2))
    FAILS(tn_kernel_softmax_view_on(NULL, NULL, 2, 2))
    FAILS(tn_kernel_silu_on(NULL, NULL, 2, y))
    FAILS(tn_kernel_silu_on(NULL, x, 2, NULL))
    FAILS(tn_kernel_apply_rope_on(NULL, NULL, 1, 4, y, y, 2, false))
    FAILS(tn_kernel_apply_rope_on(NULL, x, 1, 4, NULL, y, 2, false))
    FAILS(tn_kernel_apply_rope_on(NULL, x, 1, 4, y, NULL, 2, false))
    FAILS(tn_kernel_attention_scores_on(NULL, NULL, x, 2, 2, 2, 1, y))
    FAILS(tn_kernel_attention_scores_on(NULL, y, NULL, 2, 2, 2, 1, x))
    FAILS(tn_kernel_attention_scores_on(NULL, y, x, 2, 2, 2, 1, NULL))
    FAILS(tn_kernel_weighted_sum_rows_on(NULL, NULL, x, 2, 2, 2, y))
    FAILS(tn_kernel_weighted_sum_rows_on(NULL, y, NULL, 2, 2, 2, x))
    FAILS(tn_kernel_weighted_sum_rows_on(NULL, y, x, 2, 2, 2, NULL))
    YIELDS(0, tn_kernel_is_available(NULL))
    FAILS(tn_kernel_device_name(NULL, NULL))
}

static void tensors_refuse(void **state) {
    (void)state;
    const int64_t shape[] = {2};
    float values[2] = {1, 2};
    tn_tensor *x = tn_from_data(values, shape, 1, TN_F32);
    assert_ok(tn_status_of(x));
    CALLS(tn_at(NULL, 0))
    REFUSES(tn_from_data(NULL, shape, 1, TN_F32))
    REFUSES(tn_from_data(values, NULL, 1, TN_F32))
    REFUSES(tn_from_ptr(NULL, shape, 1, TN_F32, NULL, NULL))
    REFUSES(tn_from_ptr(values, NULL, 1, TN_F32, NULL, NULL))
    REFUSES(tn_symbolic(NULL, 0, 0))
    REFUSES(tn_to_device(NULL, tn_best_device()))
    REFUSES(tn_to_device(x, NULL))
    FAILS(tn_make_state(NULL))
    FAILS(tn_zero_states(NULL, 0, TN_F32, NULL, 1))
    const char *no_format = NULL;
    REFUSES(tn_failed(TN_ERR_SHAPE, no_format, 0))
    YIELDS(0, tn_rank(NULL))
    YIELDS(-1, tn_size(NULL, 0))
    RETURNS(tn_shape(NULL))
    YIELDS(0, tn_numel(NULL))
    CALLS(tn_dtype_little_endian(TN_F32, NULL, 4))
    RETURNS(tn_dtype_of(NULL))
    YIELDS(NULL, tn_device_of(NULL))
    FAILS(tn_status_of(NULL))
    FAILS(tn_eval(NULL, 1))
    FAILS(tn_eval((tn_tensor *[]){NULL}, 1))
    assert_ok(tn_eval(NULL, 0));
    FAILS(tn_eval_async(NULL, 1, NULL, NULL))
    FAILS(tn_read(NULL, values, sizeof values))
    FAILS(tn_read(x, NULL, sizeof values))
    FAILS(tn_read_to_device(NULL, values, sizeof values))
    FAILS(tn_read_to_device(x, NULL, sizeof values))
    FAILS(tn_peek(x, NULL))
    FAILS(tn_peek(NULL, &(const void *){NULL}))
    FAILS(tn_read_as(NULL, values, 2, TN_F32))
    FAILS(tn_read_as(x, NULL, 2, TN_F32))
    FAILS(tn_read_item(NULL, &(double){0}))
    FAILS(tn_read_item(x, NULL))
    YIELDS(true, isnan(tn_item(NULL)))
    YIELDS(NULL, tn_retain(NULL))
    YIELDS(0, tn_write_count(NULL))
    YIELDS(0, tn_value_id(NULL))
    FAILS(tn_swap(NULL, x))
    FAILS(tn_swap(x, NULL))
    YIELDS(NULL, tn_keep(NULL))
    CALLS(tn_free(NULL))
    tn_scope scope = tn_scope_begin();
    (void)scope;
    CALLS(tn_scope_end(NULL))
    REFUSES(tn_copy_(NULL, x))
    YIELDS(0, tn_device_host_count(NULL))
    tn_host_use use = {.struct_size = sizeof use};
    FAILS(tn_device_host_at(NULL, 0, &use))
    FAILS(tn_engine_set_options(NULL, NULL))
    YIELDS(0, tn_engine_provider_count(NULL))
    YIELDS(NULL, tn_engine_provider_at(NULL, 0))
    FAILS(tn_try(NULL, 0, NULL, NULL, NULL, NULL))
    FAILS(tn_get_runtime_stats(NULL))
    FAILS(tn_get_placement(NULL))
    FAILS(tn_get_placed(0, NULL))
    CALLS(tn_text_free(NULL))
    tn_profile_row row = {.struct_size = sizeof row};
    CALLS(tn_profile_end(NULL))
    CALLS(tn_profile_free(NULL))
    YIELDS(0, tn_profile_count(NULL))
    FAILS(tn_profile_at(NULL, 0, &row))
    tn_tensor *failed = tn_retain(tn_copy_(x, NULL));
    REFUSES(failed)
    tn_free(x);
}

/* Rank 0 needs no shape. */
static void a_scalar_needs_no_shape(void **state) {
    (void)state;
    float value = 3;
    tn_tensor *x = tn_from_data(&value, NULL, 0, TN_F32), *y = tn_zeros(NULL, 0, TN_F32);
    assert_true(tn_item(x) == 3 && tn_item(y) == 0);
    tn_free(x);
    tn_free(y);
}

static void graphs_refuse(void **state) {
    (void)state;
    tn_graph *graph = NULL;
    tn_tensor *x = tn_full(TN_DIMS(2), 1, TN_F32), *out = NULL;
    assert_ok(tn_eval(&x, 1));
    FAILS(tn_capture_end(NULL, 0, NULL, 0, NULL))
    FAILS(tn_capture_add_hook(NULL, NULL, 0))
    assert_ok(tn_capture_begin());
    FAILS(tn_capture_end(&x, 1, NULL, 1, &graph))
    assert_ok(tn_capture_begin());
    FAILS(tn_capture_end(NULL, 1, &x, 1, &graph))
    assert_ok(tn_capture_begin());
    FAILS(tn_capture_end((tn_tensor *[]){NULL}, 1, &x, 1, &graph))
    assert_ok(tn_capture_begin());
    tn_tensor *y = tn_add(x, x);
    FAILS(tn_capture_end(&x, 1, &y, 1, NULL))
    tn_free(y);
    assert_ok(tn_capture_begin());
    y = tn_add(x, x);
    assert_ok(tn_capture_end(&x, 1, &y, 1, &graph));
    FAILS(tn_graph_launch(NULL, &x, &out))
    FAILS(tn_graph_launch(graph, NULL, &out))
    FAILS(tn_graph_launch(graph, (tn_tensor *[]){NULL}, &out))
    FAILS(tn_graph_launch(graph, &x, NULL))
    FAILS(tn_graph_launch_async(NULL, &x, &out, NULL, NULL))
    FAILS(tn_graph_launch_async(graph, NULL, &out, NULL, NULL))
    FAILS(tn_graph_launch_async(graph, &x, NULL, NULL, NULL))
    FAILS(tn_graph_set_runtime_scalar(NULL, 0, 1))
    CALLS(tn_graph_free(NULL))
    tn_graph_free(graph);
    tn_free(x);
    tn_free(y);
}

static tn_tensor *first_input(void *ctx, tn_tensor *const *in) {
    (void)ctx;
    return tn_contiguous(in[0]);
}

static void gradients_refuse(void **state) {
    (void)state;
    tn_tensor *x = tn_full(TN_DIMS(2), 1, TN_F32), *grad = NULL;
    FAILS(tn_set_requires_grad(NULL, true))
    YIELDS(false, tn_requires_grad(NULL))
    FAILS(tn_backward(NULL))
    FAILS(tn_gradients(NULL, 1, NULL, &x, 1, false, &grad))
    FAILS(tn_gradients(&x, 1, NULL, NULL, 1, false, &grad))
    FAILS(tn_gradients(&x, 1, NULL, &x, 1, false, NULL))
    FAILS(tn_gradients((tn_tensor *[]){NULL}, 1, NULL, &x, 1, false, &grad))
    YIELDS(NULL, tn_grad(NULL))
    CALLS(tn_zero_grad(NULL))
    CALLS(tn_no_grad_end(NULL))
    CALLS(tn_recompute_end(NULL))
    FAILS(tn_register_hook(NULL, NULL, NULL, NULL))
    FAILS(tn_remove_hook(NULL, 1))
    FAILS(tn_retain_grad(NULL))
    FAILS(tn_gradcheck(NULL, NULL, &x, 1, NULL))
    FAILS(tn_gradcheck(first_input, NULL, NULL, 1, NULL))
    FAILS(tn_jacobian(NULL, NULL, &x, 1, false, &grad))
    FAILS(tn_jacobian(first_input, NULL, NULL, 1, false, &grad))
    FAILS(tn_jacobian(first_input, NULL, &x, 1, false, NULL))
    FAILS(tn_hessian(NULL, NULL, &x, 1, false, &grad))
    FAILS(tn_hessian(first_input, NULL, &x, 1, false, NULL))
    FAILS(tn_jvp(first_input, NULL, &x, NULL, 1, false, NULL, &grad))
    FAILS(tn_jvp(first_input, NULL, &x, &x, 1, false, NULL, NULL))
    FAILS(tn_jvp(first_input, NULL, &x, (tn_tensor *[]){NULL}, 1, false, NULL, &grad))
    CALLS(tn_free(tn_vmap(NULL, NULL, &x, 1, NULL, 0)))
    CALLS(tn_free(tn_vmap(first_input, NULL, NULL, 1, NULL, 0)))
    CALLS(tn_autocast_end(NULL))
    tn_free(x);
}

static void options_refuse(void **state) {
    (void)state;
    tn_device_options o = TN_DEVICE_DEFAULTS;
    FAILS(tn_result_check(NULL, NULL))
    FAILS(tn_result_write(NULL, NULL, 8, NULL))
    FAILS(tn_options_read(NULL, &o, "function", "initialiser"))
    FAILS(tn_options_read(&o, &o, NULL, "initialiser"))
    FAILS(tn_options_read(&o, &o, "function", NULL))
    assert_ok(tn_options_read(&o, NULL, "function", "initialiser"));
}

static void devices_refuse(void **state) {
    (void)state;
    tn_device *cpu = NULL;
    void *address = NULL;
    tn_device_info info = {.struct_size = sizeof info};
    tn_certify_counts counts = {.struct_size = sizeof counts};
    assert_ok(tn_device_open("cpu", NULL, NULL, &cpu));
    FAILS(tn_device_list_new(false, NULL))
    CALLS(tn_device_list_free(NULL))
    YIELDS(0, tn_device_list_count(NULL))
    YIELDS(NULL, tn_device_list_at(NULL, 0))
    RETURNS(tn_device_list_recommended(NULL))
    FAILS(tn_print_backend_summary(NULL, NULL, false, false))
    FAILS(tn_device_open("cpu", NULL, NULL, NULL))
    CALLS(tn_device_close(NULL))
    assert_ok(tn_set_current_device(NULL)); /* the default */
    FAILS(tn_device_get_info(NULL, &info))
    FAILS(tn_device_get_info(cpu, NULL))
    FAILS(tn_device_alloc(NULL, 8, 64, &address))
    FAILS(tn_device_alloc(cpu, 8, 64, NULL))
    CALLS(tn_device_dealloc(cpu, NULL))
    YIELDS(0, tn_device_owns(NULL, &info, 1))
    YIELDS(0, tn_device_owns(cpu, NULL, 1))
    CALLS(tn_device_dealloc(NULL, &info))
    FAILS(tn_device_copy(cpu, NULL, NULL, &info, 8))
    FAILS(tn_device_copy(cpu, &info, NULL, NULL, 8))
    FAILS(tn_device_synchronize(NULL))
    FAILS(tn_certify(NULL, NULL, &counts))
    FAILS(tn_certify(cpu, NULL, NULL))
    FAILS(tn_library_at(0, NULL))
    FAILS(tn_tuned_at(0, NULL))
    YIELDS(TN_OK, tn_set_library(NULL))
    FAILS(tn_backend_register(NULL))
    CALLS(tn_c_locale_end(NULL))
    FAILS(tn_backend_load(NULL))
    FILE *f;
    YIELDS(NULL, tn_backend_driver(NULL))
    FAILS(tn_backend_open(NULL, &f))
    FAILS(tn_backend_open("x", NULL))
    const char *no_format = NULL;
    FAILS(tn_backend_fail(TN_ERR_SHAPE, no_format, 0))
    tn_device_close(cpu);
}

static void queues_refuse(void **state) {
    (void)state;
    bool passed;
    double seconds;
    void *out;
    tn_event *event;
    tn_queue *queue;
    FAILS(tn_queue_new(NULL, &queue))
    FAILS(tn_queue_new(tn_best_device(), NULL))
    CALLS(tn_queue_free(NULL))
    FAILS(tn_queue_synchronize(NULL))
    YIELDS(NULL, tn_queue_device(NULL))
    YIELDS(false, tn_queue_is_thread(NULL))
    assert_ok(tn_set_current_queue(NULL)); /* the device's own */
    YIELDS(NULL, tn_current_queue())
    FAILS(tn_event_new(false, NULL))
    assert_ok(tn_event_new(false, &event));
    CALLS(tn_event_free(NULL))
    CALLS(tn_on_kernel_load(NULL, NULL))
    FAILS(tn_event_record(NULL, NULL))
    FAILS(tn_event_query(NULL, &passed))
    FAILS(tn_event_query(event, NULL))
    FAILS(tn_event_synchronize(NULL))
    FAILS(tn_event_elapsed(NULL, event, &seconds))
    FAILS(tn_event_elapsed(event, NULL, &seconds))
    FAILS(tn_event_elapsed(event, event, NULL))
    FAILS(tn_queue_wait(NULL, event))
    assert_ok(tn_queue_new(tn_best_device(), &queue));
    FAILS(tn_queue_wait(queue, NULL))
    FAILS(tn_device_copy_async(NULL, NULL, NULL, &passed, 1, queue, event))
    FAILS(tn_device_copy_async(NULL, &passed, NULL, NULL, 1, queue, event))
    tn_queue_free(queue);
    tn_event_free(event);
    tn_pool_stats pool = {.struct_size = sizeof pool}, unset = {0};
    FAILS(tn_device_get_pool_stats(NULL, &pool))
    FAILS(tn_device_get_pool_stats(tn_best_device(), NULL))
    FAILS(tn_device_get_pool_stats(tn_best_device(), &unset))
    CALLS(tn_device_reset_pool_peak(NULL))
    FAILS(tn_device_trim(NULL, NULL))
    FAILS(tn_device_set_pool_max(NULL, 0))
    FAILS(tn_device_defragment(NULL, NULL))
    FAILS(tn_host_alloc(NULL, 4, &out, NULL))
    FAILS(tn_host_alloc(tn_best_device(), 4, NULL, NULL))
    CALLS(tn_host_free(NULL))
    FAILS(tn_device_map(NULL, &passed, 1, true, &out))
    FAILS(tn_device_map(tn_best_device(), NULL, 1, true, &out))
    FAILS(tn_device_map(tn_best_device(), &passed, 1, true, NULL))
    FAILS(tn_device_unmap(NULL, &passed, &passed))
    FAILS(tn_device_unmap(tn_best_device(), &passed, NULL))
}

static void modules_refuse(void **state) {
    (void)state;
    tn_module *root = tn_module_root();
    tn_variable *items = NULL;
    int count = 0;
    YIELDS(NULL, tn_module_new(NULL, "x", NULL, NULL))
    YIELDS(NULL, tn_module_self(NULL))
    CALLS(tn_module_free(NULL))
    FAILS(tn_module_status(NULL))
    YIELDS(TN_ERR_SHAPE, tn_module_fail(NULL, TN_ERR_SHAPE))
    YIELDS(NULL, tn_module_add_parameter(NULL, "x", NULL))
    YIELDS(NULL, tn_module_add_buffer(NULL, "x", NULL))
    YIELDS(NULL, tn_module_variable(NULL, "x"))
    YIELDS(NULL, tn_module_variable(root, NULL))
    YIELDS(NULL, tn_module_child(NULL, "x"))
    YIELDS(NULL, tn_module_child(root, NULL))
    FAILS(tn_module_variables(NULL, &items, &count))
    FAILS(tn_module_variables(root, NULL, &count))
    FAILS(tn_module_variables(root, &items, NULL))
    FAILS(tn_module_parameters(NULL, &items, &count))
    FAILS(tn_module_parameters(root, NULL, &count))
    FAILS(tn_module_parameters(root, &items, NULL))
    CALLS(tn_variables_free(NULL))
    YIELDS(0, tn_module_parameter_count(NULL))
    CALLS(tn_module_train(NULL, true))
    CALLS(tn_module_set_recompute(NULL, true))
    YIELDS(false, tn_module_is_training(NULL))
    REFUSES(tn_forward(NULL, NULL))
    REFUSES(tn_init_uniform(NULL, 2, 0, 1))
    REFUSES(tn_init_normal(NULL, 2, 0, 1))
    REFUSES(tn_init_constant(NULL, 2, 0))
    REFUSES(tn_init_kaiming_uniform(NULL, 2, 0))
    REFUSES(tn_init_xavier_uniform(NULL, 2, 0))
    FAILS(tn_module_save(NULL, "x"))
    FAILS(tn_module_save(root, NULL))
    FAILS(tn_module_load(NULL, "x"))
    FAILS(tn_module_load(root, NULL))
    YIELDS(NULL, tn_module_add_parameter(root, "x", NULL))
    assert_int_not_equal(tn_module_status(root), TN_OK);
    tn_module_free(root);
}

/* Inside NULL nothing can be made; without a name neither, and the root knows why. */
static void layers_refuse(void **state) {
    (void)state;
    YIELDS(NULL, tn_nn_linear(NULL, "x", 1, 1, true))
    YIELDS(NULL, tn_nn_column_parallel_linear(NULL, "x", 1, 1, true, NULL))
    YIELDS(NULL, tn_nn_row_parallel_linear(NULL, "x", 1, 1, true, NULL))
    FAILS(tn_module_divide(NULL, NULL, NULL, 0, 1))
    FAILS(tn_module_shard(NULL, NULL))
    FAILS(tn_module_join(NULL, NULL))
    FAILS(tn_module_split(NULL, NULL))
    FAILS(tn_module_check_whole(NULL, NULL, NULL))
    YIELDS(NULL, tn_nn_conv2d(NULL, "x", 1, 1, 1, NULL))
    YIELDS(NULL, tn_nn_conv1d(NULL, "x", 1, 1, 1, NULL))
    YIELDS(NULL, tn_nn_conv3d(NULL, "x", 1, 1, 1, NULL))
    YIELDS(NULL, tn_nn_batch_norm1d(NULL, "x", 1, NULL))
    YIELDS(NULL, tn_nn_batch_norm3d(NULL, "x", 1, NULL))
    YIELDS(NULL, tn_nn_group_norm(NULL, "x", 1, 1, NULL))
    YIELDS(NULL, tn_nn_rms_norm(NULL, "x", 1, 0))
    YIELDS(NULL, tn_nn_batch_norm2d(NULL, "x", 1, NULL))
    YIELDS(NULL, tn_nn_layer_norm(NULL, "x", 1, NULL))
    YIELDS(NULL, tn_nn_embedding(NULL, "x", 1, 1))
    YIELDS(NULL, tn_nn_dropout(NULL, "x", 0))
    YIELDS(NULL, tn_nn_function(NULL, "x", tn_relu))
    YIELDS(NULL, tn_nn_sequential(NULL, "x"))
    YIELDS(NULL, tn_nn_lstm_cell(NULL, "x", 1, 1))
    YIELDS(NULL, tn_nn_rnn(NULL, "x", 1, 1, NULL))
    YIELDS(NULL, tn_nn_gru(NULL, "x", 1, 1, NULL))
    YIELDS(NULL, tn_nn_lstm(NULL, "x", 1, 1, NULL))
    REFUSES(tn_recurrent_forward(NULL, NULL, NULL, NULL, NULL, NULL, NULL))
    YIELDS(NULL, tn_nn_multihead_attention(NULL, "x", 1, 1, 0))
    YIELDS(NULL, tn_nn_transformer_encoder_layer(NULL, "x", 1, 1, NULL))
    for (int i = 0; i < 4; i++) {
        tn_module *root = tn_module_root(), *m = NULL;
        if (i == 0) m = tn_nn_linear(root, NULL, 1, 1, true);
        if (i == 1) m = tn_nn_function(root, "f", NULL);
        if (i == 2) m = tn_nn_conv2d(root, NULL, 1, 1, 1, NULL);
        if (i == 3) m = tn_nn_transformer_encoder_layer(root, NULL, 4, 2, NULL);
        assert_null(m);
        FAILS(tn_module_status(root))
        tn_module_free(root);
    }
    REFUSES(tn_multihead_attention_forward(NULL, NULL, NULL, NULL, NULL))
    REFUSES(tn_transformer_encoder_layer_forward(NULL, NULL, NULL))
    tn_tensor *h = NULL, *c = NULL;
    tn_lstm_cell_forward(NULL, NULL, NULL, NULL, &h, &c);
    REFUSES(h)
    REFUSES(c)
    CALLS(tn_lstm_cell_forward(NULL, NULL, NULL, NULL, NULL, NULL))
    tn_module *root = tn_module_root(), *linear = tn_nn_linear(root, "linear", 2, 2, true),
              *cell = tn_nn_lstm_cell(root, "cell", 2, 2);
    tn_module *attention = tn_nn_multihead_attention(root, "attention", 4, 2, 0);
    assert_ok(tn_module_status(root));
    REFUSES(tn_forward(linear, NULL))
    REFUSES(tn_multihead_attention_forward(attention, NULL, NULL, NULL, NULL))
    tn_lstm_cell_forward(cell, NULL, NULL, NULL, &h, NULL);
    REFUSES(h)
    tn_module_free(root);
}

static void policies_refuse(void **state) {
    (void)state;
    tn_policy *p = NULL;
    tn_tensor *logits = NULL, *value = NULL;
    FAILS(tn_policy_new(NULL, NULL, NULL, &p))
    FAILS(tn_policy_new(NULL, NULL, NULL, NULL))
    CALLS(tn_policy_free(NULL))
    YIELDS(NULL, tn_policy_self(NULL))
    YIELDS(NULL, tn_policy_module(NULL))
    assert_string_equal(tn_policy_name(NULL), "");
    YIELDS(0, tn_policy_state_count(NULL))
    CALLS(tn_policy_initial_state(NULL, 1, NULL))
    tn_policy_forward(NULL, NULL, NULL, &logits, &value, NULL);
    REFUSES(logits)
    REFUSES(value)
    CALLS(tn_policy_forward(NULL, NULL, NULL, NULL, NULL, NULL))
    FAILS(tn_policy_mlp(NULL, &p))
    FAILS(tn_policy_lstm(NULL, &p))
    tn_policy_options options = TN_POLICY_DEFAULTS;
    options.observations = 2;
    options.actions = 2;
    FAILS(tn_policy_mlp(&options, NULL))
    FAILS(tn_policy_lstm(&options, NULL))
    assert_ok(tn_policy_lstm(&options, &p));
    tn_policy_forward(p, NULL, NULL, &logits, NULL, NULL);
    REFUSES(logits)
    CALLS(tn_policy_initial_state(p, 1, NULL))
    tn_policy_free(p);
}

static void optimizers_refuse(void **state) {
    (void)state;
    tn_module *root = tn_module_root();
    tn_nn_linear(root, "linear", 2, 2, true);
    tn_optimizer *o = NULL;
    tn_variable *items = NULL;
    int count = 0;
    FAILS(tn_optimizer_sgd(NULL, NULL, &o))
    FAILS(tn_optimizer_sgd(root, NULL, NULL))
    FAILS(tn_optimizer_adam(NULL, NULL, &o))
    FAILS(tn_optimizer_adam(root, NULL, NULL))
    FAILS(tn_optimizer_adamw(NULL, NULL, &o))
    FAILS(tn_optimizer_adamw(root, NULL, NULL))
    FAILS(tn_optimizer_rmsprop(NULL, NULL, &o))
    FAILS(tn_optimizer_rmsprop(root, NULL, NULL))
    FAILS(tn_optimizer_adagrad(NULL, NULL, &o))
    FAILS(tn_optimizer_adagrad(root, NULL, NULL))
    FAILS(tn_optimizer_lion(NULL, NULL, &o))
    FAILS(tn_optimizer_lion(root, NULL, NULL))
    FAILS(tn_optimizer_lamb(NULL, NULL, &o))
    FAILS(tn_optimizer_lamb(root, NULL, NULL))
    FAILS(tn_optimizer_adafactor(NULL, NULL, &o))
    FAILS(tn_optimizer_adafactor(root, NULL, NULL))
    FAILS(tn_optimizer_muon(NULL, NULL, &o))
    FAILS(tn_optimizer_muon(root, NULL, NULL))
    FAILS(tn_fused_adam_step(NULL, NULL, NULL, NULL, 1, 1, NULL))
    FAILS(tn_fused_adamw_step(NULL, NULL, NULL, NULL, 1, 1, NULL))
    tn_tensor *const nothing[1] = {NULL};
    FAILS(tn_fused_adam_step(nothing, nothing, nothing, nothing, 1, 1, NULL))
    YIELDS(true, isnan(tn_plateau_step(NULL, 1)))
    YIELDS(true, tn_batches_per_epoch(NULL) == 0)
    YIELDS(true, tn_batches_next(NULL, NULL) == 0)
    tn_dataset *source = NULL;
    FAILS(tn_dataset_new(1, NULL, 1, NULL, NULL, NULL, &source))
    tn_dataset_free(NULL);
    YIELDS(true, tn_dataset_count(NULL) == 0)
    YIELDS(true, tn_dataset_fields(NULL) == 0)
    FAILS(tn_dataset_npy(NULL, 1, &source))
    FAILS(tn_dataset_idx(NULL, NULL, &source))
    FAILS(tn_dataset_tokens(NULL, 2, 1, &source))
    FAILS(tn_dataset_csv(NULL, 0, &source))
    tn_loader *loader = NULL;
    FAILS(tn_loader_new(NULL, NULL, &loader))
    tn_loader_free(NULL);
    FAILS(tn_loader_next(NULL, NULL, NULL))
    tn_loader_position(NULL, NULL, NULL);
    FAILS(tn_loader_seek(NULL, 0, 0))
    tn_ema *averages = NULL;
    FAILS(tn_ema_new(NULL, 0.9, &averages))
    FAILS(tn_ema_new(root, 0.9, NULL))
    FAILS(tn_ema_join(NULL))
    FAILS(tn_ema_split(NULL))
    FAILS(tn_ema_update(NULL))
    FAILS(tn_ema_swap(NULL))
    FAILS(tn_ema_variables(NULL, &items, &count))
    CALLS(tn_ema_free(NULL))
    CALLS(tn_optimizer_free(NULL))
    CALLS(tn_lbfgs_free(NULL))
    FAILS(tn_lbfgs_new(NULL, NULL, NULL))
    FAILS(tn_lbfgs_step(NULL, NULL, NULL, NULL))
    FAILS(tn_optimizer_step(NULL))
    CALLS(tn_optimizer_zero_grad(NULL))
    FAILS(tn_minimize(NULL, NULL))
    FAILS(tn_clip_grad_norm(NULL, 1, NULL))
    FAILS(tn_clip_grad_value(NULL, 1))
    FAILS(tn_optimizer_set_grad_scaler(NULL, NULL))
    FAILS(tn_optimizer_unscale(NULL))
    REFUSES(tn_optimizer_scale_loss(NULL, NULL))
    YIELDS(1, tn_optimizer_loss_scale(NULL))
    YIELDS(0, tn_optimizer_skipped_steps(NULL))
    REFUSES(tn_grad_is_finite(NULL))
    YIELDS(0, tn_optimizer_lr(NULL))
    FAILS(tn_optimizer_set_lr(NULL, 1))
    FAILS(tn_optimizer_variables(NULL, &items, &count))
    YIELDS(0, tn_optimizer_count(NULL))
    YIELDS(-1, tn_optimizer_steps(NULL, 0))
    FAILS(tn_optimizer_set_steps(NULL, 0, 0))
    YIELDS(true, isnan(tn_schedule_at(NULL, 0)))
    assert_ok(tn_optimizer_sgd(root, NULL, &o));
    FAILS(tn_minimize(o, NULL))
    REFUSES(tn_optimizer_scale_loss(o, NULL))
    FAILS(tn_optimizer_variables(o, NULL, &count))
    FAILS(tn_optimizer_variables(o, &items, NULL))
    tn_optimizer_free(o);
    tn_module_free(root);
}

static tn_tensor *no_part(void *ctx, const tn_part *part) {
    (void)ctx, (void)part;
    return NULL;
}

static void data_parallel_refuses(void **state) {
    (void)state;
    tn_module *root = tn_module_root();
    tn_nn_linear(root, "linear", 2, 2, true);
    tn_device *cpu = tn_current_device(), *missing = NULL;
    tn_optimizer *o = NULL;
    tn_data_parallel *p = NULL;
    tn_part part = {sizeof part, 0, 1, 0, 1, 1, cpu};
    tn_data_parallel_device device = {.struct_size = sizeof device};
    assert_ok(tn_optimizer_sgd(root, NULL, &o));
    tn_data_parallel_options options = TN_DATA_PARALLEL_DEFAULTS;
    options.parts = 2;
    char byte = 0;
    FAILS(tn_optimizer_shard(NULL, NULL))
    FAILS(tn_optimizer_shard(o, NULL))
    FAILS(tn_optimizer_gather(NULL, 0))
    YIELDS(0, tn_optimizer_state_bytes(NULL))
    FAILS(tn_group_open(NULL, NULL))
    CALLS(tn_group_close(NULL))
    CALLS(tn_group_abort(NULL, 1))
    YIELDS(0, tn_group_rank(NULL))
    YIELDS(1, tn_group_size(NULL))
    RETURNS(tn_group_backend(NULL))
    RETURNS(tn_group_library(NULL))
    FAILS(tn_group_broadcast(NULL, NULL, 1, 0))
    FAILS(tn_group_all_gather(NULL, &byte, 1, &byte))
    FAILS(tn_group_all_to_all(NULL, &byte, 1, &byte))
    FAILS(tn_group_barrier(NULL))
    RETURNS(tn_group_device_library(NULL))
    REFUSES(tn_group_broadcast_tensor(NULL, NULL, 0))
    REFUSES(tn_group_all_gather_tensor(NULL, NULL))
    REFUSES(tn_group_all_to_all_tensor(NULL, NULL))
    REFUSES(tn_group_all_reduce_tensor(NULL, NULL))
    REFUSES(tn_group_post_scatter(NULL, NULL, NULL, NULL))
    REFUSES(tn_group_post_all_gather(NULL, NULL, NULL))
    REFUSES(tn_group_receive(NULL, NULL, NULL, NULL))
    FAILS(tn_group_settle(NULL, TN_OK))
    REFUSES(tn_group_sum_forward(NULL, NULL))
    REFUSES(tn_group_sum_backward(NULL, NULL))
    REFUSES(tn_group_whole(NULL, NULL, NULL, 0))
    FAILS(tn_survive(NULL, NULL, NULL, 0, NULL, NULL))
    FAILS(tn_data_parallel_new(NULL, &cpu, 1, NULL, &p))
    FAILS(tn_data_parallel_new(root, NULL, 1, NULL, &p))
    FAILS(tn_data_parallel_new(root, &missing, 1, NULL, &p))
    FAILS(tn_data_parallel_new(root, &cpu, 1, NULL, NULL))
    CALLS(tn_data_parallel_free(NULL))
    FAILS(tn_data_parallel_minimize(NULL, o, 1, no_part, NULL, NULL))
    REFUSES(tn_data_parallel_forward(NULL, 1, no_part, NULL))
    YIELDS(0, tn_data_parallel_device_count(NULL))
    FAILS(tn_data_parallel_device_at(NULL, 0, &device))
    FAILS(tn_data_parallel_get_saving(NULL, &(tn_memory_report){.struct_size = sizeof(tn_memory_report)}))
    REFUSES(tn_part_rows(NULL, NULL))
    REFUSES(tn_part_rows(&part, NULL))
    assert_ok(tn_data_parallel_new(root, &cpu, 1, &options, &p));
    FAILS(tn_data_parallel_minimize(p, NULL, 1, no_part, NULL, NULL))
    FAILS(tn_data_parallel_minimize(p, o, 1, NULL, NULL, NULL))
    FAILS(tn_data_parallel_minimize(p, o, 1, no_part, NULL, NULL))
    REFUSES(tn_data_parallel_forward(p, 1, NULL, NULL))
    REFUSES(tn_data_parallel_forward(p, 1, no_part, NULL))
    FAILS(tn_data_parallel_device_at(p, 0, NULL))
    tn_data_parallel_free(p);
    tn_optimizer_free(o);
    tn_module_free(root);
}

static void files_refuse(void **state) {
    (void)state;
    const char *path = test_scratch("null.safetensors");
    tn_safetensors *file = NULL;
    tn_safetensors_info info = {.struct_size = sizeof info};
    tn_checkpoint checkpoint = TN_CHECKPOINT_DEFAULTS;
    tn_tensor *x = tn_zeros(TN_DIMS(2), TN_F32);
    tn_model_sizes sizes = TN_MODEL_SIZES_DEFAULTS;
    tn_memory_estimate estimate = {.struct_size = sizeof estimate};
    FAILS(tn_safetensors_open(NULL, &file))
    FAILS(tn_safetensors_open(path, NULL))
    CALLS(tn_safetensors_close(NULL))
    YIELDS(0, tn_safetensors_count(NULL))
    FAILS(tn_safetensors_at(NULL, 0, &info))
    FAILS(tn_safetensors_find(NULL, "x", &info))
    REFUSES(tn_safetensors_tensor(NULL, "x"))
    YIELDS(NULL, tn_safetensors_metadata(NULL, "x"))
    YIELDS(NULL, tn_safetensors_metadata_key(NULL, 0))
    FAILS(tn_safetensors_save(NULL, &(tn_named_tensor){"x", x}, 1, NULL, 0))
    FAILS(tn_safetensors_save(path, NULL, 1, NULL, 0))
    FAILS(tn_safetensors_save(path, &(tn_named_tensor){NULL, x}, 1, NULL, 0))
    FAILS(tn_safetensors_save(path, &(tn_named_tensor){"x", NULL}, 1, NULL, 0))
    FAILS(tn_safetensors_save(path, &(tn_named_tensor){"x", x}, 1, NULL, 1))
    assert_ok(tn_safetensors_save(path, &(tn_named_tensor){"x", x}, 1, NULL, 0));
    assert_ok(tn_safetensors_open(path, &file));
    FAILS(tn_safetensors_at(file, 0, NULL))
    FAILS(tn_safetensors_find(file, NULL, &info))
    FAILS(tn_safetensors_find(file, "x", NULL))
    REFUSES(tn_safetensors_tensor(file, NULL))
    YIELDS(NULL, tn_safetensors_metadata(file, NULL))
    tn_safetensors_close(file);
    FAILS(tn_checkpoint_save(NULL, &checkpoint))
    FAILS(tn_checkpoint_save(path, NULL))
    FAILS(tn_checkpoint_load(NULL, &checkpoint))
    FAILS(tn_checkpoint_load(path, NULL))
    FAILS(tn_estimate_inference_memory(NULL, &estimate))
    FAILS(tn_estimate_inference_memory(&sizes, NULL))
    FAILS(tn_estimate_training_memory(NULL, 1, 0, &estimate))
    FAILS(tn_estimate_training_memory(&sizes, 1, 0, NULL))
    tn_free(x);
}

static void json_refuses(void **state) {
    (void)state;
    tn_json_doc *doc = NULL;
    FAILS(tn_json_parse(NULL, 0, &doc))
    FAILS(tn_json_parse("1", 1, NULL))
    FAILS(tn_json_open(NULL, &doc))
    FAILS(tn_json_open("x", NULL))
    CALLS(tn_json_free(NULL))
    YIELDS(NULL, tn_json_root(NULL))
    YIELDS(TN_JSON_NULL, tn_json_kind_of(NULL))
    YIELDS(0, tn_json_length(NULL))
    YIELDS(NULL, tn_json_at(NULL, 0))
    YIELDS(NULL, tn_json_key(NULL, 0))
    YIELDS(0, tn_json_key_length(NULL, 0))
    YIELDS(NULL, tn_json_get(NULL, "x"))
    YIELDS(true, tn_json_bool(NULL, true))
    YIELDS(7, tn_json_number(NULL, 7))
    YIELDS(7, tn_json_int(NULL, 7))
    YIELDS(NULL, tn_json_string(NULL, NULL))
    assert_ok(tn_json_parse("{}", 2, &doc));
    YIELDS(NULL, tn_json_get(tn_json_root(doc), NULL))
    tn_json_free(doc);
}

static void pickle_refuses(void **state) {
    (void)state;
    tn_pickle *file = NULL;
    tn_pickle_info info = {.struct_size = sizeof info};
    FAILS(tn_pickle_open(NULL, &file))
    FAILS(tn_pickle_open("x", NULL))
    CALLS(tn_pickle_close(NULL))
    YIELDS(0, tn_pickle_count(NULL))
    FAILS(tn_pickle_at(NULL, 0, &info))
    FAILS(tn_pickle_find(NULL, "x", &info))
    REFUSES(tn_pickle_tensor(NULL, "x"))
}

static void gguf_refuses(void **state) {
    (void)state;
    tn_gguf *file = NULL;
    tn_gguf_info info = {.struct_size = sizeof info};
    int64_t number = 0;
    double real = 0;
    bool yes = false;
    const char *text = NULL;
    FAILS(tn_gguf_open(NULL, &file))
    FAILS(tn_gguf_open("x", NULL))
    CALLS(tn_gguf_close(NULL))
    assert_string_equal(tn_gguf_path(NULL), "");
    YIELDS(0, tn_gguf_key_count(NULL))
    YIELDS(NULL, tn_gguf_key(NULL, 0))
    YIELDS(NULL, tn_gguf_get(NULL, "x"))
    YIELDS(TN_GGUF_TYPE_COUNT, tn_gguf_type_of(NULL))
    YIELDS(TN_GGUF_TYPE_COUNT, tn_gguf_item_type(NULL))
    YIELDS(0, tn_gguf_length(NULL))
    YIELDS(-1, tn_gguf_offset(NULL))
    FAILS(tn_gguf_int(NULL, 0, &number))
    FAILS(tn_gguf_float(NULL, 0, &real))
    FAILS(tn_gguf_bool(NULL, 0, &yes))
    FAILS(tn_gguf_string(NULL, 0, &text, &number))
    FAILS(tn_gguf_get_int(NULL, "x", &number))
    FAILS(tn_gguf_get_float(NULL, "x", &real))
    FAILS(tn_gguf_get_bool(NULL, "x", &yes))
    FAILS(tn_gguf_get_string(NULL, "x", &text, &number))
    YIELDS(0, tn_gguf_count(NULL))
    FAILS(tn_gguf_at(NULL, 0, &info))
    FAILS(tn_gguf_find(NULL, "x", &info))
    FAILS(tn_gguf_rows(NULL, "x", NULL, 0, NULL))
    tn_gguf_writer *w = NULL;
    FAILS(tn_gguf_create(NULL, 0, &w))
    FAILS(tn_gguf_create("x", 0, NULL))
    FAILS(tn_gguf_put_int(NULL, "x", TN_GGUF_U8, 1))
    FAILS(tn_gguf_put_float(NULL, "x", TN_GGUF_F32, 1))
    FAILS(tn_gguf_put_string(NULL, "x", "y", 1))
    FAILS(tn_gguf_put_array(NULL, "x", TN_GGUF_U8, 1, "y"))
    FAILS(tn_gguf_put_strings(NULL, "x", 0, NULL, NULL))
    FAILS(tn_gguf_put_value(NULL, "x", NULL))
    FAILS(tn_gguf_add(NULL, &info))
    FAILS(tn_gguf_write(NULL, "x", 1))
    FAILS(tn_gguf_commit(NULL))
    CALLS(tn_gguf_abandon(NULL))
    FAILS(tn_gguf_save(NULL, NULL, 0, NULL, 0))
    FAILS(tn_quantize_rows(TN_F32, NULL, 0, NULL, 0, NULL))
    FAILS(tn_quantize_blocks(TN_Q4_0, NULL, 32, NULL))
    REFUSES(tn_gguf_tensor(NULL, "x"))
    tn_model_sizes sizes = TN_MODEL_SIZES_DEFAULTS;
    FAILS(tn_gguf_model_sizes(NULL, &sizes))
    FAILS(tn_read_model_sizes(NULL, &sizes))
    FAILS(tn_read_model_sizes("x", NULL))
}

/* ---- the caller's line ------------------------------------------------------------------------------------------- */

static void check_line(tn_tensor *t, int line, const char *words) {
    char where[64];
    snprintf(where, sizeof where, "test_null.c:%d: %s", line, words);
    assert_int_not_equal(tn_status_of(t), TN_OK);
    assert_text_has(tn_error(), where);
    if (strstr(strstr(tn_error(), where) + 12, ".c:")) fail_msg("two lines: %s", tn_error());
    tn_free(t);
}

/* The function that was called, and where: also where it stands for others, or fails inside a layer. */
static void onnx_refuses(void **state) {
    (void)state;
    tn_onnx *m = NULL;
    tn_onnx_value *v = NULL;
    tn_onnx_info info = {.struct_size = sizeof info};
    size_t length = 0;
    int64_t shape[TN_MAX_RANK];
    FAILS(tn_onnx_open(NULL, NULL, &m))
    FAILS(tn_onnx_open("x", NULL, NULL))
    FAILS(tn_onnx_open_memory(NULL, 0, NULL, &m))
    FAILS(tn_onnx_open_memory("x", 1, NULL, NULL))
    CALLS(tn_onnx_close(NULL))
    FAILS(tn_onnx_export(NULL, NULL, 0, NULL, 0, NULL))
    FAILS(tn_onnx_export("x", NULL, 1, NULL, 0, NULL))
    FAILS(tn_onnx_export("x", NULL, 0, NULL, 1, NULL))
    FAILS(tn_onnx_export("x", NULL, 0, &(tn_named_tensor){"y", NULL}, 1, NULL))
    YIELDS(0, tn_onnx_input_count(NULL))
    YIELDS(0, tn_onnx_output_count(NULL))
    FAILS(tn_onnx_input_at(NULL, 0, &info))
    FAILS(tn_onnx_output_at(NULL, 0, &info))
    YIELDS(0, tn_onnx_weight_count(NULL))
    YIELDS(NULL, tn_onnx_weight_at(NULL, 0, NULL))
    CALLS(tn_onnx_set_image_decoder(NULL))
    FAILS(tn_onnx_run(NULL, &v, &v))
    YIELDS(NULL, tn_onnx_value_tensor(NULL))
    YIELDS(NULL, tn_onnx_value_strings(NULL, NULL, shape, 0))
    YIELDS(NULL, tn_onnx_value_strings(NULL, NULL, NULL, 1))
    YIELDS(NULL, tn_onnx_value_sequence(NULL, 1))
    YIELDS(NULL, tn_onnx_value_map(NULL, NULL, 0))
    tn_onnx_value *empty = tn_onnx_value_optional(NULL);
    YIELDS(0, tn_onnx_value_count(empty))
    tn_onnx_value_free(empty);
    FAILS(tn_onnx_value_decode(NULL, 0, TN_ONNX_TENSOR, &v))
    FAILS(tn_onnx_value_decode("x", 1, TN_ONNX_TENSOR, NULL))
    CALLS(tn_onnx_value_free(NULL))
    YIELDS(TN_ONNX_TENSOR, tn_onnx_value_kind(NULL))
    YIELDS(0, strcmp(tn_onnx_value_type(NULL), "UNDEFINED"))
    YIELDS(NULL, tn_onnx_value_get(NULL))
    YIELDS(0, tn_onnx_value_count(NULL))
    YIELDS(-1, tn_onnx_value_shape(NULL, shape))
    YIELDS(NULL, tn_onnx_value_string(NULL, 0, &length))
    YIELDS(NULL, tn_onnx_value_item(NULL, 0))
    YIELDS(NULL, tn_onnx_value_keys(NULL))
}

static void errors_name_function_and_line(void **state) {
    (void)state;
    tn_tensor *x = tn_zeros(TN_DIMS(2, 3), TN_F32);
    check_line(tn_add(x, NULL), __LINE__, "add: tensor 2 is NULL");
    check_line(tn_reshape(x, TN_DIMS(4)), __LINE__, "reshape:");
    check_line(tn_view(x, TN_DIMS(4)), __LINE__, "view:");
    check_line(tn_broadcast_to(x, TN_DIMS(4, 4)), __LINE__, "broadcast_to:");
    check_line(tn_narrow(x, 5, 0, 1), __LINE__, "narrow:");
    check_line(tn_rand(NULL, 2), __LINE__, "rand:");
    check_line(tn_from_data(NULL, TN_DIMS(2), TN_F32), __LINE__, "tn_from_data: data is NULL");
    check_line(tn_from_data(x, TN_DIMS(-2), TN_F32), __LINE__, "tn_from_data: extent 0");
    check_line(tn_copy_(x, NULL), __LINE__, "tn_copy_: src is NULL");
    tn_free(x);
}

static void errors_of_writes_name_function_and_line(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = tn_zeros(TN_DIMS(2, 3), TN_F32), *wide = tn_expand(tn_zeros(TN_DIMS(1, 3), TN_F32), TN_DIMS(2, 3));
    check_line(tn_add_(wide, x), __LINE__, "add_: in-place write");
    tn_tensor *leaf = tn_zeros(TN_DIMS(2), TN_F32);
    assert_ok(tn_set_requires_grad(leaf, true));
    check_line(tn_mul_(leaf, leaf), __LINE__, "mul_: in-place write to a leaf");
    tn_tensor *small = tn_zeros(TN_DIMS(3), TN_F32);
    check_line(tn_copy_(small, x), __LINE__, "copy_:");
}

static int square_line;

static tn_tensor *square(tn_module *m, const tn_tensor *x) {
    (void)m;
    square_line = __LINE__ + 1;
    return tn_matmul(x, x);
}

static void errors_inside_layers_name_the_line_of_the_call(void **state) {
    (void)state;
    static const tn_module_type own = {sizeof own, "own", square, NULL};
    tn_module *root = tn_module_root(), *linear = tn_nn_linear(root, "linear", 4, 2, true);
    tn_module *list = tn_nn_sequential(root, "list"), *mine = tn_module_new(root, "mine", &own, NULL);
    tn_nn_linear(list, "0", 3, 5, true);
    tn_nn_linear(list, "1", 4, 5, true);
    tn_module *encoder = tn_nn_transformer_encoder_layer(root, "encoder", 4, 2, NULL);
    assert_ok(tn_module_status(root));
    tn_tensor *x = tn_zeros(TN_DIMS(2, 3), TN_F32), *logits = NULL;
    check_line(tn_forward(linear, x), __LINE__, "linear:");
    check_line(tn_forward(list, x), __LINE__, "linear:");
    check_line(tn_forward(encoder, x), __LINE__, "multihead_attention:");
    tn_tensor *own_failure = tn_forward(mine, x); /* in a function of the user's own, its line */
    check_line(own_failure, square_line, "matmul:");
    tn_policy *policy = NULL;
    tn_policy_options o = TN_POLICY_DEFAULTS;
    o.observations = 4;
    o.actions = 2;
    assert_ok(tn_policy_mlp(&o, &policy));
    tn_policy_forward(policy, x, NULL, &logits, NULL, NULL);
    check_line(logits, __LINE__ - 1, "reshape:");
    tn_policy_free(policy);
    tn_free(x);
    tn_module_free(root);
}

/* A layer that could not be made is not in the tree, nor are its parts. */
static void failed_layers_are_not_found(void **state) {
    (void)state;
    tn_module *root = tn_module_root();
    assert_non_null(tn_nn_linear(root, "good", 4, 2, true));
    assert_null(tn_nn_transformer_encoder_layer(root, "block", 6, 4, NULL)); /* 6 features are no 4 heads */
    assert_int_not_equal(tn_module_status(root), TN_OK);
    assert_null(tn_module_child(root, "block"));
    assert_null(tn_module_child(root, "block.linear1"));
    assert_non_null(tn_module_child(root, "good"));
    tn_module_free(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ops_refuse),
        cmocka_unit_test(functions_refuse),
        cmocka_unit_test(kernels_refuse),
        cmocka_unit_test(tensors_refuse),
        cmocka_unit_test(a_scalar_needs_no_shape),
        cmocka_unit_test(graphs_refuse),
        cmocka_unit_test(gradients_refuse),
        cmocka_unit_test(options_refuse),
        cmocka_unit_test(devices_refuse),
        cmocka_unit_test(queues_refuse),
        cmocka_unit_test(modules_refuse),
        cmocka_unit_test(layers_refuse),
        cmocka_unit_test(policies_refuse),
        cmocka_unit_test(optimizers_refuse),
        cmocka_unit_test(data_parallel_refuses),
        cmocka_unit_test(files_refuse),
        cmocka_unit_test(json_refuses),
        cmocka_unit_test(gguf_refuses),
        cmocka_unit_test(pickle_refuses),
        cmocka_unit_test(onnx_refuses),
        cmocka_unit_test(errors_name_function_and_line),
        cmocka_unit_test(errors_of_writes_name_function_and_line),
        cmocka_unit_test(errors_inside_layers_name_the_line_of_the_call),
        cmocka_unit_test(failed_layers_are_not_found),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
