/* status.h — common to all public headers: status codes, error text, options, data types, version.
 *
 * Errors are values. A function that can fail returns a tn_status. tn_error() returns the text of the calling thread's
 * last failure: what failed, with which values, and what to do. */
#ifndef TRUNNION_STATUS_H
#define TRUNNION_STATUS_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define TN_API __declspec(dllexport)
#else
#define TN_API __attribute__((visibility("default")))
#endif

/* Whether the compiler can call a function where a variable's block ends. TN_SCOPE, TN_NO_GRAD and TN_AUTOCAST need it,
 * or C++; without it their functions (tn_scope_begin and tn_scope_end, …) are called by hand. */
#if !defined(TN_HAS_CLEANUP)
#if defined(__GNUC__)
#define TN_HAS_CLEANUP 1
#else
#define TN_HAS_CLEANUP 0
#endif
#endif

/* Declares `name` of `type` with the value `begin`; end(&name) is called where its block ends. */
#if TN_HAS_CLEANUP
#define TN_AT_BLOCK_END_(type, end, begin, name) type name __attribute__((cleanup(end), unused)) = begin
#elif defined(__cplusplus)
#define TN_AT_BLOCK_END_(type, end, begin, name) \
    struct name##_guard {                        \
        type value;                              \
        ~name##_guard() { end(&value); }         \
    } name = {begin}
#else
#define TN_AT_BLOCK_END_(type, end, begin, name) \
    this compiler has no attribute cleanup : call the functions that begin and end this block by hand
#endif

/* gcc and clang check the arguments of a function whose format is argument number `text`. */
#if defined(__GNUC__)
#define TN_FORMAT_(text, arguments) __attribute__((format(printf, text, arguments)))
#define TN_UNUSED __attribute__((unused)) /* before a parameter that a function must have but does not use */
#else
#define TN_FORMAT_(text, arguments)
#define TN_UNUSED
#endif

/* Evaluates an expression of type tn_status; unless it is TN_OK, returns it from the enclosing function. */
#define TN_TRY(expr)                                  \
    do {                                              \
        tn_status try_status_ = (expr);               \
        if (try_status_ != TN_OK) return try_status_; \
    } while (0)

#ifdef __cplusplus
extern "C" {
#endif

#define TN_VERSION_MAJOR 0
#define TN_VERSION_MINOR 1
#define TN_VERSION_PATCH 0

/* Size of a reason or advice text, including the final 0; a longer text ends with an ellipsis. */
enum { TN_REASON_BYTES = 512 };

/* ---- options ------------------------------------------------------------------------------------------------------
 *
 * Start a struct of options from its initialiser, then set the fields that you need:
 *
 *     tn_sgd_options o = TN_SGD_DEFAULTS;
 *     o.lr = 0.1;
 *     tn_optimizer_sgd(net, &o, &sgd);
 *
 * The initialiser sets every field to its default, in C and in C++. From then on every field means what it says: 0 is
 * 0. NULL in place of a struct means all defaults.
 *
 * A struct that was not started so ({0}, or struct_size set by hand) fails with TN_ERR_ARGUMENT, and the text shows the
 * initialiser. struct_size also tells the library which fields the program was compiled with: structs grow at their
 * end, and fields that an older program lacks have their defaults. Options of a newer program than the library are
 * refused. (Structs that a function fills in, such as tn_device_info, and tables of functions, such as
 * tn_capture_hook, have no initialiser: set struct_size to their sizeof. A function fills in the fields that the
 * program was compiled with.) */

/* The value of struct_size in initialisers: a mark, and the number of bytes up to the end of the last field. */
#define TN_OPTIONS_MARK ((size_t)0x544E0000)
#define TN_OPTIONS_SIZE(type, last) (TN_OPTIONS_MARK | (offsetof(type, last) + sizeof(((type *)0)->last)))

/* In a field of type double: the library chooses the value, as the comment of the field says. */
#define TN_AUTO ((double)-INFINITY)

/* Kinds of failure; tn_error() has the text. */
typedef enum tn_status {
    TN_OK = 0,
    TN_ERR_ARGUMENT,    /* an argument is out of range, or NULL where it must not be */
    TN_ERR_SHAPE,       /* incompatible shapes */
    TN_ERR_DTYPE,       /* incompatible or unsupported data types */
    TN_ERR_MEMORY,      /* host or device memory ran out */
    TN_ERR_UNAVAILABLE, /* a device, library or symbol is missing */
    TN_ERR_DEVICE,      /* a driver call failed */
    TN_ERR_LOST,        /* the device is lost; its memory cannot be read */
    TN_ERR_IO,          /* a file could not be read or written */
    TN_ERR_FORMAT,      /* a file is malformed */
    TN_ERR_UNSUPPORTED, /* valid, but not supported by this build or device */
    TN_ERR_STATE,       /* called in the wrong state (capture inside capture, backward without gradients) */
    TN_ERR_INTERNAL     /* a bug in Trunnion: please report the text */
} tn_status;

/* Returns the text of the calling thread's last failure; "" if there was none. Valid until the thread's next
 * failure. */
TN_API const char *tn_error(void);

/* Returns the status of that failure; TN_OK if there was none. */
TN_API tn_status tn_error_code(void);

/* For functions that take options: copies the fields of `given` to `to`, which must have been started from its
 * initialiser. Fields that `given` lacks keep their values in `to`; given NULL has none. function and initialiser are
 * for the error text: "sgd", "tn_sgd_options o = TN_SGD_DEFAULTS".
 * Errors: TN_ERR_ARGUMENT if `given` was not started from its initialiser, or is newer than `to`; if another argument
 * is NULL. */
TN_API tn_status tn_options_read(void *to, const void *given, const char *function, const char *initialiser);

/* For functions that fill in a struct whose struct_size the caller has set: copies the fields of `from`, of `size`
 * bytes, as far as `given` has them. struct_size then counts the bytes that have fields, so that a program with newer
 * headers than the library sees which ones were filled in. what: begins the error text, "tn_llm_get_facts: facts".
 * Errors: TN_ERR_ARGUMENT if `given` is NULL, or its struct_size is not set. tn_result_check only looks. */
TN_API tn_status tn_result_write(void *given, const void *from, size_t size, const char *what);
TN_API tn_status tn_result_check(const void *given, const char *what);

/* Returns a short name of a status: "out of memory" for TN_ERR_MEMORY. Never NULL. */
TN_API const char *tn_status_name(tn_status s);

/* Removes the temporary files of all saves in progress in this process (checkpoints, safetensors, GGUF, ONNX …), for
 * signal handlers that end the process: call it, then _exit, because a save that continued would fail.
 * Async-signal-safe. It knows 32 saves at a time; the next save to the same path removes the temporary file of any
 * other. */
TN_API void tn_discard_saves(void);

/* Returns the library's version, "0.1.0". */
TN_API const char *tn_version(void);

/* Element types. F32 to BOOL are computed directly. F16 to U16 are converted on load and store: small integers are
 * computed as i32, f16 and bf16 as f32. Q4_0 and following are block-quantized: 32 or 256 neighbouring elements share
 * scales, in the memory layout of GGUF files (except TN_Q8_X, which is internal). They are types of weights, which
 * tn_linear, tn_embedding, tn_dequantize and tn_cast accept. Shapes count elements; the last extent is a multiple of
 * the block size. The values of the enumeration are stable: files and plug-ins store them. */
typedef enum tn_dtype {
    TN_F32 = 0,
    TN_F64 = 1,
    TN_I32 = 2,
    TN_I64 = 3,
    TN_U32 = 4,
    TN_U64 = 5,
    TN_BOOL = 6, /* one byte, 0 or 1 */
    TN_F16 = 7,
    TN_BF16 = 8,
    TN_I8 = 9,
    TN_U8 = 10,
    TN_I16 = 11,
    TN_U16 = 12,
    TN_Q4_0 = 13, /* blocks of 32 */
    TN_Q4_1 = 14,
    TN_Q5_0 = 15,
    TN_Q5_1 = 16,
    TN_Q8_0 = 17,
    TN_Q2_K = 18, /* blocks of 256 */
    TN_Q3_K = 19,
    TN_Q4_K = 20,
    TN_Q5_K = 21,
    TN_Q6_K = 22,
    TN_Q8_X = 23, /* blocks of 32: two f32 factors, for 16 weights each, and 32 signed bytes; i-quants become this */
    TN_DTYPE_COUNT
} tn_dtype;

/* Returns the bytes of an element, or of a block for block-quantized types; 0 for a value outside the enumeration. */
TN_API size_t tn_dtype_size(tn_dtype t);

/* Returns the elements of a block; 1 for other types and for a value outside the enumeration. */
TN_API int64_t tn_dtype_block(tn_dtype t);

/* Returns the bytes of numel elements; numel must be a multiple of the block size. */
TN_API size_t tn_dtype_bytes(tn_dtype t, int64_t numel);

/* Converts numel elements in place between this machine's byte order and little-endian, the order of files; the same
 * call converts in both directions. Does nothing on little-endian machines. Of block-quantized types, the factors of
 * each block are converted. numel must be a multiple of the block size; numbers may be unaligned; NULL is
 * allowed. */
TN_API void tn_dtype_little_endian(tn_dtype t, void *numbers, int64_t numel);

/* Returns the name: "f32", "i64", "q4_0" …; "invalid" for a value outside the enumeration. */
TN_API const char *tn_dtype_name(tn_dtype t);

/* Returns true for f16, bf16, f32 and f64; false for block-quantized types, which have no gradients. */
TN_API bool tn_dtype_is_float(tn_dtype t);

#ifdef __cplusplus
}
#endif
#endif
