/* native.h — shared by the files that make native groups: a command prepared for one kernel of cpu/.
 *
 * Each kernel has two functions here. `make` computes once what does not change between runs: sizes, strides,
 * workspace. `run` sets the addresses of the operands' first elements and calls the kernel. A new kernel is a row in
 * native.c, a member of the union, and these two functions in the file of its kind. */
#ifndef TN_NATIVE_H
#define TN_NATIVE_H

#include "cpu/blas.h"
#include "cpu/conv.h"
#include "cpu/linalg.h"
#include "plan/plan.h"

/* Where a product finds its operands among the pointers; others have the result, the inputs in order, the workspace. */
enum { TN_PRODUCT_A, TN_PRODUCT_B, TN_PRODUCT_C, TN_PRODUCT_WORKSPACE, TN_PRODUCT_POINTERS };
/* A program that became native (block_ops.c) has the workspace, and then its own buffers. */
enum { TN_PROGRAM_POINTERS = 1 };

struct tn_native {
    void (*run)(tn_native *n, void *const *pointers);
    const struct tn_native_row *row;
    tn_dtype dtype;     /* the result's */
    size_t result_from; /* bytes of the first operand that are copied to the result first, unless they share memory */
    struct {            /* the epilogue */
        tn_kernel *kernel; /* of the program, compiled once a structure */
        kir_vm *vm;        /* the same, with its own caches */
        int64_t *sizes;
        tn_fused_program *program; /* the kernel's, in its arguments; NULL: none */
        const kir_scalar *scalars; /* of a program that became native */
        tn_fused_epilogue ops;     /* the same, where it is one */
    } fused;
    struct {                     /* the packed weight that the kernel reads */
        tn_packed_weight packed; /* of the buffer bound to `slot` */
        int slot;                /* -1: none */
        uint32_t uses;
        const tn_buffer *of; /* what was found: in this buffer … */
        uint64_t version;    /* … as it was then */
        void *found;
        void **target; /* where the kernel looks for it */
        bool valid;
        void *memory;
        size_t at; /* offset in the workspace of a weight that is packed at each run */
    } weight;
    const tn_blas *library; /* computes a product of floats instead; NULL: our kernel does */
    const char *by;         /* the library, or the way that measured fastest; NULL: neither */
    void *own;              /* memory of the kernel's arguments, or NULL */
    bool conv_in_bytes;     /* image and results of `conv` are u8 or i8, and may lie in words (byte_layout.c) */
    /* a further kernel of the same launch, and what it is run with */
    tn_native *next;
    void *const *pointers;
    const kir_scalar *scalars;
    union {
        struct {
            tn_gemm_args gemm;
            tn_byte_rounding gemm_rounding; /* of a quantized_mm */
        };
        tn_qmat_args qmat;
        tn_experts_args experts;
        tn_argsort_args argsort;
        tn_scatter_args scatter;
        tn_cat_args *cat; /* `own`: large and rare */
        tn_take_args take;
        tn_resample_args resample;
        tn_kv_cache_write_args append;
        tn_attention_args attention;
        tn_rope_args rope;
        struct {
            tn_conv_args conv;
            tn_gemm_args few_pixels; /* the same convolution as a product whose rows are places */
            int joined_out;          /* 1 + the epilogue's buffer that the convolution's result would be; 0: none */
            uint8_t conv_outside;    /* of images of bytes */
            int32_t conv_zero;       /* of results of bytes */
            tn_byte_addend conv_addend;
            bool conv_adds;
        };
        tn_linalg_args linalg;
        struct {
            tn_block_program block;
            size_t block_scratch;              /* bytes of scratch memory before the sums */
            int64_t block_first[KIR_MAX_AXES]; /* zeros: where the rest of a sum's program begins */
        };
        struct {
            void *process_group; /* a tn_group of distributed.h */
            tn_group_step posted;
        };
        struct {
            tn_sdpa_args sdpa;
            int64_t sdpa_at[2]; /* gradients: of k and of v in the result, elements */
        };
        struct {
            tn_recurrent_args recurrent;
            int recurrent_op, recurrent_inputs; /* row of recurrent_ops; operands */
        };
    };
};

typedef tn_status tn_native_maker(const tn_graph_plan *g, const tn_group *group, tn_native *n, size_t *workspace);

/* The epilogue of a kernel that is not a product: whether it passes on blocks that are large enough, and how the
 * program's sizes, made for the lead's dims, are converted to those that the kernel runs (false: an index does not
 * fit). */
typedef struct tn_native_epilogue {
    bool (*pays)(const tn_node *lead);
    bool (*fit)(const tn_node *lead, const tn_group *group);
} tn_native_epilogue;

/* native.c. Whether the elements follow each other in memory. */
bool tn_node_is_dense(const tn_node *n);
/* The program that joins a product's result, if its group has one. */
tn_status tn_native_join(tn_native *n, const tn_group *group, tn_fused_program *epilogue);
/* The same if rows and columns of the program are those of the product, which may then apply it in registers. */
tn_status tn_native_join_product(tn_native *n, const tn_group *group, tn_fused_program *epilogue);
/* Whether the slot's memory is the host's and not written by this plan. */
bool tn_native_may_pack(const tn_graph_plan *g, int slot);
/* An operand as a kernel of products sees it: the last two dims are rows and columns, those before them the batch. */
void tn_native_matrix(const tn_value *v, tn_matrix *m);
/* native_product.c. A product of two operands in memory, `c` its result; no fused programs, no data yet. */
void tn_native_product(const tn_graph_plan *g, const tn_value *c, tn_gemm_args *out);

tn_native_maker tn_make_matmul, tn_make_quantized_mm, tn_make_linear_stored; /* native_product.c */
bool tn_takes_quantized_mm(const tn_node *n);
/* Whether two products with the same left operand can be one launch; adding `next` to the launch of `n`. */
enum { TN_MOST_SIBLINGS = TN_QMAT_MOST_SIBLINGS };
/* Whether its rows can be computed independently; running `count` such products in one launch, each row as soon as the
 * rows before it are there, and the memory for that. */
tn_native_maker tn_make_rope, tn_make_cache_append, tn_make_cached_attention;       /* native.c */
tn_native_maker tn_make_conv2d_forward, tn_make_conv2d_dgrad, tn_make_conv2d_wgrad; /* native_conv.c */
tn_native_maker tn_make_max_pool2d, tn_make_int_conv2d, tn_make_quantized_conv2d;
bool tn_takes_conv2d_forward(const tn_node *n);
bool tn_takes_conv_product(const tn_node *n); /* the same, but one filter a channel */
bool tn_takes_max_pool2d(const tn_node *n);
bool tn_takes_int_conv2d(const tn_node *n); /* bytes, where the processor multiplies them four at a time */
bool tn_takes_quantized_conv2d(const tn_node *n);
enum { TN_CONV_ADDEND = 4 };                                       /* input of a quantized_conv2d */
bool tn_conv_joins_pool(const tn_node *conv, const tn_node *pool); /* … of what joined it, as its last step */
bool tn_takes_conv2d_dgrad(const tn_node *n);
bool tn_takes_conv2d_wgrad(const tn_node *n);
extern const tn_native_epilogue tn_conv2d_epilogue, tn_max_pool2d_epilogue;
/* Whether n is a convolution or max pooling of f32, whose image may lie in blocks of channels. */
bool tn_conv_is_window(const tn_native *n);
/* Lays an image in blocks of channels (conv.h) if all groups that write and read it support that layout. convs: by
 * group, whether it is such a kernel on the CPU; blocked: by value, false at first. On return `blocked` says which
 * images lie in blocks; the arguments of the kernels are set. */
tn_status tn_conv_lay_in_blocks(const tn_graph_plan *g, const bool *convs, bool *blocked);
/* block_ops.c: other operations over such images. Whether the group reads or makes this value as an image that may lie
 * in blocks; removing its images from `blocked` unless all are there (true: that changed something); making it
 * native. */
bool tn_block_op_has(const tn_graph_plan *g, const tn_group *group, int value);
bool tn_block_op_agree(const tn_graph_plan *g, const tn_group *group, bool *blocked);
tn_status tn_block_op_lay(const tn_graph_plan *g, tn_group *group, const bool *blocked);
/* native.c: a group that was to be a program, as a native one without a kernel yet. */
tn_status tn_native_of_program(const tn_graph_plan *g, tn_group *group, const kir_program *program);
bool tn_native_is_cat(const tn_native *n); /* a concatenation or a copy */
/* Sets the sizes of a concatenation of whole blocks. */
void tn_native_lay_cat_in_blocks(const tn_graph_plan *g, const tn_group *group);
/* The same for images of bytes, in words of four channels (byte_layout.c). */
tn_status tn_lay_bytes_in_words(const tn_graph_plan *g);
/* of a conv2d_forward, conv2d_dgrad or conv2d_wgrad; no more than sizes */
tn_conv_args tn_conv_sizes(const tn_node *n);
void tn_cost_of_conv(const tn_native *n, tn_cost *cost);
tn_native_maker tn_make_linalg;                          /* native.c */
tn_native_maker tn_make_group_post, tn_make_group_await; /* group_tensors.c */
tn_native_maker tn_make_sdpa, tn_make_sdpa_gradient;
tn_native_maker tn_make_experts; /* native_product.c */
void tn_cost_of_experts(const tn_native *n, tn_cost *cost);

#endif
