/* render_text.h — shared by the files of the renderer: the dialect's row, the text being written, and how words,
 * operands and operations are added to it.
 *
 * Texts have words after a dollar sign ($f32, $barrier, $entry). The dialect spells a word, or the kernel being written
 * does (render.c lists those). A constant is declared as `$let $f32 v1 = …`, a variable as `$var $f32 x = …`, and
 * `$i32(x)` is a cast; how these look also depends on the dialect (its `infers`). */
#ifndef KIR_RENDER_TEXT_H
#define KIR_RENDER_TEXT_H

#include "kir/render.h"

// clang-format off
#define RENDER_BOTH(X, name) X(name##_f32) X(name##_f64)
#define RENDER_WORDS(X)                                                                                    \
    X(f32) X(f64) X(i32) X(i64) X(u32) X(u64) X(i16) X(u16) X(i8) X(u8) X(bool)                            \
    X(function)      /* before a function that kernels call */                                             \
    X(table)         /* before an array of constants at the top level */                                   \
    X(constant)      /* before what points into one */                                                     \
    X(global)        /* before what points into a buffer */                                                \
    X(local)         /* before an array in workgroup memory */                                             \
    X(own)           /* before what points to variables of the item */                                     \
    X(i) X(l) X(ul)  /* behind a literal of type i32, i64, u64 */                                          \
    X(inf) X(nan)    /* of type f32 */                                                                     \
    X(barrier)       /* the statement */                                                                   \
    X(group) X(item) /* numbers of the workgroup among all, of the item in it */                           \
    RENDER_BOTH(X, bits) RENDER_BOTH(X, from_bits)                                                         \
    RENDER_BOTH(X, fabs) RENDER_BOTH(X, sqrt) RENDER_BOTH(X, floor) RENDER_BOTH(X, ceil)                   \
    RENDER_BOTH(X, trunc) RENDER_BOTH(X, rint) RENDER_BOTH(X, fmod) RENDER_BOTH(X, fma)                    \
    RENDER_BOTH(X, copysign)
// clang-format on

typedef enum render_word {
#define X(word) WORD_##word,
    RENDER_WORDS(X)
#undef X
        WORD_COUNT
} render_word;

struct render;

struct kir_dialect {
    const char *name; /* for people */
    const char *words[WORD_COUNT];
    const char *head;     /* opens every source */
    const char *head_f64; /* … one with doubles */
    /* The device's own kir_from_f16 and kir_to_f16, and the macro that says whether they exist; NULL: computed by
     * arithmetic. They may give other NaNs. */
    struct {
        const char *condition, *from, *to;
    } halves;
    const char *open;   /* up to the first parameter */
    const char *buffer; /* one parameter; "" if one parameter has all */
    const char *bind;   /* makes b$n of the parameter a$n */
    /* Statements between the number of points or workgroups (`count`) and the coordinates: they skip surplus items, and
     * define the first point of the workgroup `start` or the workgroup `group`, and the `item`. */
    const char *points, *items;
    const char *close;
    struct {                               /* the words of the parameters */
        const char *type;                  /* before a kernel that gets them by value; may be "" */
        const char *by_value, *by_address; /* them as parameter, and the opening brace */
        const char *array_by_value, *array_by_address;
        int most_by_value;      /* bytes of all parameters; 0: 1000, every device takes 1024 */
        bool by_address_always; /* never passed by value */
        const char *word;       /* the $n-th */
    } params;
    bool groups; /* has workgroups, local memory and barriers */
    bool loops;  /* `points` opens two loops */
    /* A declaration takes the type of its value, `let v = …` and `var x = …`, and a cast is a call: `i32(x)`. Otherwise
     * they are C's. */
    bool infers;
    const char *choice; /* #0 ? #1 : #2 */
    /* For compilers that may ignore NaN: #0 == #0, #0 < #1, #0 != 0, and the value of #0 - #0. NULL: written as they
     * are. */
    struct {
        const char *number, *less, *truth, *nothing;
    } floats;
    bool regroups;    /* compilers make a + (b + c) of (a + b) + c: kept(v1) hides from them how v1 came about */
    const char *same; /* makes u$n uniform over all items; NULL: compilers assume it where barriers need it */
    struct {
        const char *array; /* declares s$n, $size elements of type $type */
        const char *local; /* … b$n in workgroup memory */
        /* Beyond `most_declared` bytes (0: never) that memory is dynamic shared memory: its declaration, and b$n at
         * byte $base of it. */
        int64_t most_declared;
        const char *dynamic, *local_dynamic;
    } memory;
    struct {
        const char *text; /* the functions for matrices and packets, a text of texts/; NULL: there are none */
        const char *wide; /* … for wide ones, behind them */
        bool short_f32;   /* … and whether `text` has fragments of f32 (tf32) */
    } matrices;
    unsigned legal; /* what programs must be rid of first (render.h); they then need no prelude */
    /* Writes everything up to the kernel's brace, instead of `params.type` … `memory.local`; elements are then accessed
     * by functions: get3(at3 + i) and set3(at3 + i, v) of buffer 3, without at3 in workgroup memory. */
    void (*open_kernel)(struct render *r);
    /* Writes the complete source into out[0].text; the other fields of each rendering are filled in. For languages
     * outside C's family, which use only name, groups and params.by_address_always of the above. */
    tn_status (*write)(const kir_program *const *programs, int count, const kir_target *t, kir_rendering *out);
};

typedef struct render {
    const kir_program *p;
    const kir_target *t;
    const kir_rendering *kernel;
    tn_str *text;
    bool *needed;       /* rows of the prelude, counted from 1 */
    uint32_t axes_open; /* coordinates that exist here */
    int depth, loop;    /* the number of the innermost LOOP around */
    bool blocked;       /* … runs in blocks */
    bool aligned;       /* local buffers begin at multiples of 16 bytes */
    bool wide;          /* its matrices are */
    /* words of the kernel being written */
    int n, half, base, size;
    const char *type;
    size_t head_size; /* of the kernel */
} render;

/* Adds the text made from the format, words spelled. */
void kir_render_put(render *r, const char *format, ...) TN_PRINTF(2, 3);
void kir_render_words(render *r, const char *text);
/* A statement on a line of its own. */
void kir_render_line(render *r, const char *format, ...) TN_PRINTF(2, 3);
/* The words of the $n-th parameter as an index. */
void kir_render_size(render *r, size_t n);
/* The source needs this function of the prelude (render.c). */
void kir_render_need(render *r, const char *function);

/* Room for an operand: a name or a literal. */
typedef struct render_name {
    char text[48];
} render_name;
const char *kir_render_type(kir_type t);                    /* "$f32" */
const char *kir_render_memory(const render *r, int buffer); /* how elements of this buffer are spelled */

/* One of the instructions that only groups have: MATRIX … WAIT (render_c.c). */
extern const char kir_matrix_cuda[], kir_wide_cuda[], kir_matrix_hip[], kir_matrix_msl[], kir_fused_wgsl[];

/* Both in render_c.c: the statements of instructions begin … end-1; those of the loop that begins at `loop`, up to its
 * END, whose number is returned. */
void kir_render_range(render *r, int begin, int end);

#endif
