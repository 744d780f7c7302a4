/* torch.c — a stand-in for LibTorch, for its failures: it has the functions of the C interface, and every operator
 * fails. FAKE_VERSION: what it says of itself. Handles are cells of one array, never given back. */
#include "fake.h"

static uint64_t cells[1 << 16];
static int used;

static int cell(void **out) {
    *out = &cells[used++ % (1 << 16)];
    return 0;
}

uint64_t aoti_torch_abi_version(void) {
    const char *version = getenv("FAKE_VERSION");
    unsigned long major = 2, minor = 15;
    (void)fake_first_call();
    if (version) (void)sscanf(version, "%lu.%lu", &major, &minor);
    return (uint64_t)major << 56 | (uint64_t)minor << 48;
}

int torch_call_dispatcher(const char *op, const char *overload, uint64_t *stack, uint64_t build) {
    (void)op;
    (void)overload;
    (void)stack;
    (void)build;
    return 1;
}

const char *torch_exception_get_what_without_backtrace(void) { return "the fake refuses\nand has more to say"; }

int aoti_torch_create_tensor_from_blob(void *data, int64_t rank, const int64_t *sizes, const int64_t *strides,
                                       int64_t offset, int32_t dtype, int32_t device, int32_t index, void **out) {
    (void)data, (void)rank, (void)sizes, (void)strides, (void)offset, (void)dtype, (void)device, (void)index;
    return cell(out);
}

int aoti_torch_empty_strided(int64_t rank, const int64_t *sizes, const int64_t *strides, int32_t dtype, int32_t device,
                             int32_t index, void **out) {
    (void)rank, (void)sizes, (void)strides, (void)dtype, (void)device, (void)index;
    return cell(out);
}

#define GIVES_CELL(name, parameters) \
    int name parameters { return cell(out); }
GIVES_CELL(aoti_torch_new_tensor_handle, (void *t __attribute__((unused)), void **out))
GIVES_CELL(aoti_torch_get_data_ptr, (void *t __attribute__((unused)), void **out))
GIVES_CELL(aoti_torch_get_sizes, (void *t __attribute__((unused)), void **out))
GIVES_CELL(aoti_torch_get_strides, (void *t __attribute__((unused)), void **out))
GIVES_CELL(torch_new_list_reserve_size, (size_t room __attribute__((unused)), void **out))
GIVES_CELL(torch_new_string_handle,
           (const char *text __attribute__((unused)), size_t length __attribute__((unused)), void **out))
GIVES_CELL(torch_new_stable_ivalue, (void **out))

int aoti_torch_get_dim(void *t, int64_t *rank) {
    (void)t;
    *rank = 0;
    return 0;
}

int aoti_torch_delete_tensor_object(void *t) { return t == NULL; }
int torch_list_push_back(void *list, uint64_t item) { return !list && !item; }
int aoti_torch_aten_subtract_Tensor(void *a, void *b, double alpha, void **out) {
    (void)a, (void)b, (void)alpha, (void)out;
    return 1;
}
void aoti_torch_grad_mode_set_enabled(int enabled) { (void)enabled; }
int32_t aoti_torch_device_type_cpu(void) { return 0; }

#define DTYPE(name, code) \
    int32_t aoti_torch_dtype_##name(void) { return code; }
DTYPE(float32, 6)
DTYPE(float64, 7)
DTYPE(float16, 5)
DTYPE(bfloat16, 15)
DTYPE(int8, 1)
DTYPE(uint8, 0)
DTYPE(int16, 2)
DTYPE(int32, 3)
DTYPE(int64, 4)
DTYPE(bool, 11)
DTYPE(uint16, 27)
DTYPE(uint32, 28)
DTYPE(uint64, 29)
