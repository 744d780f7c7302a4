/* torch.c — LibTorch's stable C interface, loaded when it is first needed (torch.h). */
#include "vendor/torch.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TORCH_ROW(number, name, overload, takes, results) {name, overload, takes, results},
const tn_torch_signature tn_torch_signatures[TORCH_OVERLOADS] = {TORCH_SIGNATURES(TORCH_ROW)};

enum {
    TITLE_BYTES = 32,
    MOST_ARGUMENTS = 16,
    SLOTS = 32, /* of a stack: arguments that a later release adds find zeros, which mean none */
    CPU_INDEX = 0
};

/* StableIValue: an int, the bits of a double, a bool in the low byte, a code, a handle, or a pointer to another one. */
typedef uint64_t slot;
typedef int32_t code; /* 0: success */

/* ---- the library ------------------------------------------------------------------------------------------------- */

static struct {
    uint64_t (*abi_version)(void);
    code (*call_dispatcher)(const char *op, const char *overload, slot *stack, uint64_t build);
    code (*from_blob)(void *data, int64_t rank, const int64_t *sizes, const int64_t *strides, int64_t offset,
                      int32_t dtype, int32_t device, int32_t index, tn_torch_tensor **out);
    code (*empty_strided)(int64_t rank, const int64_t *sizes, const int64_t *strides, int32_t dtype, int32_t device,
                          int32_t index, tn_torch_tensor **out);
    code (*new_handle)(tn_torch_tensor *t, tn_torch_tensor **out);
    code (*delete_tensor)(tn_torch_tensor *t);
    code (*data_ptr)(tn_torch_tensor *t, void **data);
    code (*dim)(tn_torch_tensor *t, int64_t *rank);
    code (*sizes)(tn_torch_tensor *t, int64_t **sizes);
    code (*strides)(tn_torch_tensor *t, int64_t **strides);
    code (*list_new)(size_t room, void **list);
    code (*list_push)(void *list, slot item);
    code (*string_new)(const char *text, size_t length, void **string);
    code (*subtract)(tn_torch_tensor *a, tn_torch_tensor *b, double alpha, tn_torch_tensor **out);
    int32_t (*device_cpu)(void);
    void (*set_grad_mode)(bool enabled);
    int32_t (*f32)(void), (*f64)(void), (*f16)(void), (*bf16)(void), (*i8)(void), (*u8)(void), (*i16)(void),
        (*i32)(void), (*i64)(void), (*boolean)(void), (*u16)(void), (*u32)(void), (*u64)(void);
    /* optional */
    code (*box_new)(slot **box);    /* since 2.13; memory of malloc before */
    const char *(*what)(void);      /* since 2.13 */
    void (*set_threads)(int count); /* at::set_num_threads(int): a plain function of the C++ interface */
} torch;

#define NEED(name, field) \
    { name, (void **)&torch.field, false }
#define MAY(name, field) \
    { name, (void **)&torch.field, true }
static const tn_symbol symbols[] = {
    NEED("aoti_torch_abi_version", abi_version),
    NEED("torch_call_dispatcher", call_dispatcher),
    NEED("aoti_torch_create_tensor_from_blob", from_blob),
    NEED("aoti_torch_empty_strided", empty_strided),
    NEED("aoti_torch_new_tensor_handle", new_handle),
    NEED("aoti_torch_delete_tensor_object", delete_tensor),
    NEED("aoti_torch_get_data_ptr", data_ptr),
    NEED("aoti_torch_get_dim", dim),
    NEED("aoti_torch_get_sizes", sizes),
    NEED("aoti_torch_get_strides", strides),
    NEED("torch_new_list_reserve_size", list_new),
    NEED("torch_list_push_back", list_push),
    NEED("torch_new_string_handle", string_new),
    NEED("aoti_torch_aten_subtract_Tensor", subtract),
    NEED("aoti_torch_device_type_cpu", device_cpu),
    NEED("aoti_torch_grad_mode_set_enabled", set_grad_mode),
    NEED("aoti_torch_dtype_float32", f32),
    NEED("aoti_torch_dtype_float64", f64),
    NEED("aoti_torch_dtype_float16", f16),
    NEED("aoti_torch_dtype_bfloat16", bf16),
    NEED("aoti_torch_dtype_int8", i8),
    NEED("aoti_torch_dtype_uint8", u8),
    NEED("aoti_torch_dtype_int16", i16),
    NEED("aoti_torch_dtype_int32", i32),
    NEED("aoti_torch_dtype_int64", i64),
    NEED("aoti_torch_dtype_bool", boolean),
    NEED("aoti_torch_dtype_uint16", u16),
    NEED("aoti_torch_dtype_uint32", u32),
    NEED("aoti_torch_dtype_uint64", u64),
    MAY("torch_new_stable_ivalue", box_new),
    MAY("torch_exception_get_what_without_backtrace", what),
    MAY("_ZN2at15set_num_threadsEi", set_threads),
};

static const char *const names[] = {
    "libtorch_cpu.so",
    "libtorch_cpu.so.*",
    "libtorch_cpu.dylib",
    "site-packages/torch/lib/libtorch_cpu.so",
    "site-packages/torch/lib/libtorch_cpu.dylib",
    "~/.pyenv/versions/*/lib/python3*/site-packages/torch/lib/libtorch_cpu.so",
    "/opt/libtorch/lib/libtorch_cpu.so",
    "/usr/local/libtorch/lib/libtorch_cpu.so",
    "~/libtorch/lib/libtorch_cpu.so",
    NULL,
};

const tn_library_spec tn_torch_library = {
    "LibTorch",
    "TRUNNION_TORCH_LIB",
    names,
    symbols,
    TN_COUNT(symbols),
    "pip install 'torch>=2.10', or set TRUNNION_TORCH_LIB to the file libtorch_cpu.so"};

static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool loaded;
static char version[TITLE_BYTES];
static uint64_t build; /* the release whose schemas our table has, in the form of abi_version */
static int32_t dtypes[TN_DTYPE_COUNT];

static void note_dtypes(void) {
    for (int t = 0; t < TN_DTYPE_COUNT; t++)
        dtypes[t] = -1;
    dtypes[TN_F32] = torch.f32();
    dtypes[TN_F64] = torch.f64();
    dtypes[TN_F16] = torch.f16();
    dtypes[TN_BF16] = torch.bf16();
    dtypes[TN_I8] = torch.i8();
    dtypes[TN_U8] = torch.u8();
    dtypes[TN_I16] = torch.i16();
    dtypes[TN_I32] = torch.i32();
    dtypes[TN_I64] = torch.i64();
    dtypes[TN_BOOL] = torch.boolean();
    dtypes[TN_U16] = torch.u16();
    dtypes[TN_U32] = torch.u32();
    dtypes[TN_U64] = torch.u64();
}

/* Threads of GNU OpenMP, which LibTorch brings along, spin for milliseconds when they have nothing to do, and on a busy
 * machine take the processor from those that have: a step of a small network took a hundred times as long. With this
 * they spin briefly, unless the user has decided. */
static void *open_quietly(tn_reason *why) {
    static const char SPIN[] = "GOMP_SPINCOUNT";
    bool decide = !getenv(SPIN) && !getenv("OMP_WAIT_POLICY");
    if (decide) setenv(SPIN, "100", 1);
    void *library = tn_library_open(&tn_torch_library, why);
    if (decide) unsetenv(SPIN);
    return library;
}

static tn_status load(void) {
    tn_reason why;
    if (!open_quietly(&why)) return tn_fail(TN_ERR_UNAVAILABLE, "%s; %s", why.text, why.fix);
    uint64_t abi = torch.abi_version();
    unsigned major = (unsigned)(abi >> 56 & 255), minor = (unsigned)(abi >> 48 & 255);
    unsigned patch = (unsigned)(abi >> 40 & 255);
    snprintf(version, sizeof version, "%u.%u.%u", major, minor, patch);
    if (major < 2 || (major == 2 && minor < 10))
        return tn_fail(TN_ERR_UNAVAILABLE, "LibTorch %s is older than 2.10, the first with the whole C interface; %s",
                       version, tn_torch_library.fix);
    build = (uint64_t)TORCH_SCHEMA_MAJOR << 56 | (uint64_t)TORCH_SCHEMA_MINOR << 48;
    if (build > abi) build = abi;
    note_dtypes();
    return TN_OK;
}

bool tn_torch_is_loaded(void) { return atomic_load(&loaded); }

tn_status tn_torch_load(void) {
    if (tn_torch_is_loaded()) return TN_OK;
    AUTO_LOCK(&load_lock);
    TRY(tn_torch_is_loaded() ? TN_OK : load());
    atomic_store(&loaded, true);
    return TN_OK;
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

/* Its words go on for lines: the first says what is wrong. */
static tn_status failed(const char *name, const char *overload, code error) {
    const char *words = torch.what ? torch.what() : NULL;
    char first[300];
    if (!words || !words[0]) words = "it says why on standard error";
    snprintf(first, sizeof first, "%.*s", (int)strcspn(words, "\n"), words);
    return tn_fail(TN_ERR_DEVICE, "LibTorch %s: %s%s%s failed (%d): %s", version, name, overload[0] ? "." : "",
                   overload, (int)error, first);
}

static tn_status check(code error, const char *function) { return error ? failed(function, "", error) : TN_OK; }

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

int32_t tn_torch_dtype(tn_dtype t) { return (unsigned)t < TN_DTYPE_COUNT && tn_torch_is_loaded() ? dtypes[t] : -1; }

tn_torch_tensor *tn_torch_over(void *data, const int64_t *shape, const int64_t *stride, int rank, tn_dtype dtype) {
    tn_torch_tensor *t = NULL;
    code error = torch.from_blob(data, rank, shape, stride, 0, dtypes[dtype], torch.device_cpu(), CPU_INDEX, &t);
    return check(error, "create_tensor_from_blob") == TN_OK ? t : NULL;
}

tn_torch_tensor *tn_torch_empty(const int64_t *shape, int rank, tn_dtype dtype) {
    int64_t stride[64], step = 1;
    tn_torch_tensor *t = NULL;
    for (int d = rank; d-- > 0;) {
        stride[d] = step;
        step *= shape[d] > 0 ? shape[d] : 1;
    }
    code error = torch.empty_strided(rank, shape, stride, dtypes[dtype], torch.device_cpu(), CPU_INDEX, &t);
    return check(error, "empty_strided") == TN_OK ? t : NULL;
}

void tn_torch_free(tn_torch_tensor *t) {
    if (t) (void)torch.delete_tensor(t);
}

tn_status tn_torch_data(tn_torch_tensor *t, void **data) { return check(torch.data_ptr(t, data), "get_data_ptr"); }

tn_status tn_torch_shape(tn_torch_tensor *t, const int64_t **shape, const int64_t **stride, int *rank) {
    int64_t dims = 0, *sizes = NULL, *strides = NULL;
    TRY(check(torch.dim(t, &dims), "get_dim"));
    TRY(check(torch.sizes(t, &sizes), "get_sizes"));
    TRY(check(torch.strides(t, &strides), "get_strides"));
    *shape = sizes;
    *stride = strides;
    *rank = (int)dims;
    return TN_OK;
}

/* ---- arguments --------------------------------------------------------------------------------------------------- */

static slot of_pointer(const void *p) { return (slot)(uintptr_t)p; }

static slot of_number(double f) {
    slot s;
    memcpy(&s, &f, sizeof s);
    return s;
}

/* The dispatcher consumes what it is given, so it gets a handle of its own. */
static tn_status of_tensor(tn_torch_tensor *t, slot *out) {
    tn_torch_tensor *own = NULL;
    TRY(check(torch.new_handle(t, &own), "new_tensor_handle"));
    *out = of_pointer(own);
    return TN_OK;
}

/* A value that may be none is a pointer to it. Before 2.13 there is no function for it: memory of malloc is taken. */
static tn_status boxed(slot value, slot *out) {
    slot *box = NULL;
    if (torch.box_new) TRY(check(torch.box_new(&box), "new_stable_ivalue"));
    if (!box) box = malloc(sizeof *box);
    if (!box) return tn_fail(TN_ERR_MEMORY, "LibTorch: no memory for an argument");
    *box = value;
    *out = of_pointer(box);
    return TN_OK;
}

static tn_status list_item(const tn_torch_arg *a, int k, slot *out) {
    switch (a->kind) {
    case 'N': *out = (slot)a->ints[k]; return TN_OK;
    case 'P': *out = a->bools[k]; return TN_OK;
    case 'L': return of_tensor(a->tensors[k], out);
    default: /* O */
        *out = 0;
        if (!a->tensors[k]) return TN_OK;
        TRY(of_tensor(a->tensors[k], out));
        return boxed(*out, out);
    }
}

static tn_status of_list(const tn_torch_arg *a, slot *out) {
    void *list = NULL;
    TRY(check(torch.list_new((size_t)a->count, &list), "new_list_reserve_size"));
    *out = of_pointer(list);
    for (int k = 0; k < a->count; k++) {
        slot item;
        TRY(list_item(a, k, &item));
        TRY(check(torch.list_push(list, item), "list_push_back"));
    }
    return TN_OK;
}

static tn_status of_text(const char *text, slot *out) {
    void *string = NULL;
    TRY(check(torch.string_new(text, strlen(text), &string), "new_string_handle"));
    *out = of_pointer(string);
    return TN_OK;
}

static tn_status convert(const tn_torch_arg *a, slot *out) {
    switch (a->kind) {
    case 'T': return of_tensor(a->tensor, out);
    case 'S': return of_text(a->text, out);
    case 'L':
    case 'O':
    case 'N':
    case 'P': return of_list(a, out);
    case 'F': *out = of_number(a->f); return TN_OK;
    case 'B': *out = a->i != 0; return TN_OK;
    case 'D':
    case 'M': *out = (uint32_t)a->i; return TN_OK;
    default: *out = (slot)a->i; return TN_OK;
    }
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static tn_status misfit(const tn_torch_signature *s, int at, char kind) {
    return tn_fail(TN_ERR_INTERNAL, "LibTorch: %s.%s takes (%s): argument %d of kind '%c' does not fit", s->name,
                   s->overload, s->takes, at, kind);
}

/* 'T' fits 'T' and 't'; none fits small letters alone. */
static bool fits(char wanted, char kind) {
    bool may_lack = wanted >= 'a';
    return kind == '-' ? may_lack : kind == (may_lack ? wanted - 'a' + 'A' : wanted);
}

static tn_status push_argument(char wanted, const tn_torch_arg *a, slot *out) {
    *out = 0;
    if (a->kind == '-') return TN_OK;
    TRY(convert(a, out));
    return wanted >= 'a' ? boxed(*out, out) : TN_OK;
}

tn_status tn_torch_call(tn_torch_overload which, const tn_torch_arg *args, int count, tn_torch_tensor **results) {
    const tn_torch_signature *s = &tn_torch_signatures[which];
    slot stack[SLOTS] = {0};
    int wanted = (int)strlen(s->takes);
    if (count != wanted || count > MOST_ARGUMENTS) return misfit(s, count, '#');
    for (int k = 0; k < count; k++)
        if (!fits(s->takes[k], args[k].kind)) return misfit(s, k, args[k].kind);
    for (int k = 0; k < count; k++)
        TRY(push_argument(s->takes[k], &args[k], &stack[k]));
    code error = torch.call_dispatcher(s->name, s->overload, stack, build);
    if (error) return failed(s->name, s->overload, error);
    for (int k = 0; k < s->results; k++) {
        tn_torch_tensor *t = (tn_torch_tensor *)(uintptr_t)stack[k];
        if (results)
            results[k] = t;
        else
            tn_torch_free(t);
    }
    return TN_OK;
}

tn_status tn_torch_add(tn_torch_tensor *a, tn_torch_tensor *b, double scale, tn_torch_tensor **result) {
    *result = NULL;
    return check(torch.subtract(a, b, -scale, result), "aten_subtract_Tensor");
}

/* Gradients are on in each new thread, and the number of threads is a thread's own where LibTorch uses OpenMP. */
void tn_torch_begin(int threads) {
    static _Thread_local int set;
    torch.set_grad_mode(false);
    if (set == threads || !torch.set_threads) return;
    torch.set_threads(threads);
    set = threads;
}
