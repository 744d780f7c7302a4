/* render_c.c — writes kernels in C's family of languages: instructions, loops, reductions, matrix instructions.
 *
 * Each instruction becomes one line that names a constant, v and its number; CONST becomes a literal where it is used.
 * Operations are texts of a table, chosen by the class of the operands' type: #0 … #2 are the operands, #t the result's
 * type, #u the unsigned type of its width, #s the operands' suffix (f32), and !max( a function of the prelude, named
 * without prefix and suffix. Texts are C; words stand for what differs between languages. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kir/render_text.h"
#include "kir/rules.h"

/* Begins a line. */
static void render_indent(render *r);
static void render_matrix(render *r, int i);
static int render_loop(render *r, int loop);
/* A SCAN's or REDUCE's statements inside its loop. */
static void render_feed(render *r, int i);

/* ---- words ------------------------------------------------------------------------------------------------------- */

static const char *const WORD_NAMES[WORD_COUNT] = {
#define X(word) #word,
    RENDER_WORDS(X)
#undef X
};

static const char *const TYPE_WORDS[KIR_TYPE_COUNT] = {"$f32", "$f64", "$i32", "$i64", "$u32", "$u64", "$bool"};
static const char *const SUFFIXES[KIR_TYPE_COUNT] = {"f32", "f64", "i32", "i64", "u32", "u64", "b8"};
static const char *const UNSIGNED_WORDS[KIR_TYPE_COUNT] = {"$u32", "$u64", "$u32", "$u64", "$u32", "$u64", "$bool"};

/* The type of a dtype in memory. */
static const char *const MEMORY_WORDS[TN_PLAIN_DTYPES] = {
    [TN_F32] = "f32", [TN_F64] = "f64", [TN_I32] = "i32", [TN_I64] = "i64",  [TN_U32] = "u32",
    [TN_U64] = "u64", [TN_BOOL] = "u8", [TN_F16] = "u16", [TN_BF16] = "u16", [TN_I8] = "i8",
    [TN_U8] = "u8",   [TN_I16] = "i16", [TN_U16] = "u16",
};

/* In front of a parenthesis it is a cast. */
static bool is_type_word(const char *word) {
    for (int t = 0; t < KIR_TYPE_COUNT; t++)
        if (strcmp(TYPE_WORDS[t] + 1, word) == 0) return true;
    return strcmp(word, "ix") == 0;
}

static const char *spelling(const render *r, const char *word) {
    for (int w = 0; w < WORD_COUNT; w++)
        if (strcmp(WORD_NAMES[w], word) == 0) return r->t->dialect->words[w] ? r->t->dialect->words[w] : "";
    return NULL;
}

const char *kir_render_type(kir_type t) { return TYPE_WORDS[t]; }

const char *kir_render_memory(const render *r, int buffer) {
    return spelling(r, MEMORY_WORDS[r->p->buffer_dtype[buffer]]);
}

/* Declares the array s<i> with `count` values. */
static void kir_render_array(render *r, int i, int count, kir_type t) {
    r->n = i;
    r->size = count;
    r->type = spelling(r, TYPE_WORDS[t] + 1);
    render_indent(r);
    kir_render_words(r, r->t->dialect->memory.array);
}

/* The words of the kernel being written. */
static bool put_own_word(render *r, const char *word) {
    const kir_rendering *k = r->kernel;
    const kir_dialect *d = r->t->dialect;
    const struct {
        const char *word;
        long long number;
    } numbers[] = {{"n", r->n},
                   {"base", r->base},
                   {"slot", r->base - (long long)(k->bases_at / 8)},
                   {"buffers", k->buffer_count},
                   {"size", r->size},
                   {"pair", r->n / 2},
                   {"items", k->group[0]},
                   {"words", (long long)(k->params_bytes / 8)}};
    for (size_t i = 0; i < TN_COUNT(numbers); i++) {
        if (strcmp(numbers[i].word, word) != 0) continue;
        tn_str_add(r->text, "%lld", numbers[i].number);
        return true;
    }
    const struct {
        const char *word, *text;
    } texts[] = {{"entry", k->entry},
                 {"part", (const char *const[4]){"x", "y", "z", "w"}[r->n % 2 * 2 + r->half]},
                 {"p", k->params_in_buffer ? d->params.array_by_address : d->params.array_by_value},
                 {"ix", spelling(r, r->t->index32 ? "i32" : "i64")},
                 {"type", r->type},
                 {"aligned", r->aligned ? " __attribute__((aligned(16)))" : ""},
                 {"const", r->n < r->p->n_buffers && r->p->buffer_written[r->n] ? "" : "const "}};
    for (size_t i = 0; i < TN_COUNT(texts); i++) {
        if (strcmp(texts[i].word, word) != 0) continue;
        tn_str_add(r->text, "%s", texts[i].text);
        return true;
    }
    return false;
}

static bool is_word_char(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; }

typedef struct word_text {
    char text[24];
} word_text;

/* The word behind the dollar sign at *text, which moves behind it. */
static word_text next_word(const char **text) {
    word_text word;
    size_t n = 0;
    for (++*text; is_word_char(**text) && n + 1 < sizeof word.text; ++*text)
        word.text[n++] = **text;
    word.text[n] = '\0';
    return word;
}

static void put_word(render *r, const char *word) {
    const char *spelled = spelling(r, word);
    if (spelled)
        tn_str_add(r->text, "%s", spelled);
    else
        put_own_word(r, word);
}

/* `$let $f32 v1`, `$var $f32 v1`, from behind the first word on: what begins the declaration. */
static const char *put_declaration(render *r, const char *word, const char *text) {
    while (*text == ' ')
        text++;
    word_text type = next_word(&text);
    if (r->t->dialect->infers) {
        tn_str_add(r->text, "%s", word);
        return text;
    }
    if (strcmp(word, "let") == 0) tn_str_add(r->text, "const ");
    put_word(r, type.text);
    return text;
}

void kir_render_words(render *r, const char *text) {
    for (;;) {
        size_t plain = strcspn(text, "$");
        tn_str_addn(r->text, text, plain);
        text += plain;
        if (!*text) return;
        word_text word = next_word(&text);
        bool casts = *text == '(' && is_type_word(word.text) && !r->t->dialect->infers;
        if (strcmp(word.text, "let") == 0 || strcmp(word.text, "var") == 0) {
            text = put_declaration(r, word.text, text);
            continue;
        }
        tn_str_add(r->text, casts ? "(" : "");
        put_word(r, word.text);
        tn_str_add(r->text, casts ? ")" : "");
    }
}

static void put_list(render *r, const char *format, va_list args) {
    char line[400]; /* texts with numbers and names of bounded length */
    vsnprintf(line, sizeof line, format, args);
    kir_render_words(r, line);
}

void kir_render_put(render *r, const char *format, ...) {
    va_list args;
    va_start(args, format);
    put_list(r, format, args);
    va_end(args);
}

static void render_indent(render *r) { tn_str_add(r->text, "%*s", r->depth * 4, ""); }

void kir_render_line(render *r, const char *format, ...) {
    va_list args;
    render_indent(r);
    va_start(args, format);
    put_list(r, format, args);
    va_end(args);
}

void kir_render_size(render *r, size_t n) {
    r->n = (int)n;
    kir_render_words(r, "$ix(");
    kir_render_words(r, r->t->dialect->params.word);
    tn_str_add(r->text, ")");
}

/* ---- operands ---------------------------------------------------------------------------------------------------- */

static void write_float(char *out, size_t size, double x, bool single) {
    const char *f = single ? "f" : "", *cast = single ? "" : "($f64)";
    bool minus = signbit(x);
    if (x != x)
        snprintf(out, size, "%s$nan", cast);
    else if (isinf(x))
        snprintf(out, size, minus ? "(-%s$inf)" : "%s$inf", cast);
    else if (fabs(x) < 1e6 && x == (double)(int)x)
        snprintf(out, size, minus ? "(-%.1f%s)" : "%.1f%s", fabs(x), f);
    else
        snprintf(out, size, minus ? "(-%a%s)" : "%a%s", fabs(x), f);
}

static void write_whole(char *out, size_t size, kir_type t, int64_t x) {
    static const char *const ends[KIR_TYPE_COUNT] = {
        [KIR_I32] = "$i", [KIR_I64] = "$l", [KIR_U32] = "u", [KIR_U64] = "$ul"};
    const char *end = ends[t] ? ends[t] : "";
    if (t == KIR_BOOL)
        snprintf(out, size, "%s", x ? "true" : "false");
    else if (t == KIR_U64)
        snprintf(out, size, "%llu%s", (unsigned long long)x, end);
    else if (x == INT64_MIN || (t == KIR_I32 && x == INT32_MIN)) /* no literal has the least number */
        snprintf(out, size, "(-%lld%s - 1)", (long long)-(x + 1), end);
    else
        snprintf(out, size, x < 0 ? "(%lld%s)" : "%lld%s", (long long)x, end);
}

static render_name kir_render_literal(kir_type t, const kir_ins *constant) {
    render_name name;
    if (kir_is_float(t))
        write_float(name.text, sizeof name.text, constant->imm.f, t == KIR_F32);
    else
        write_whole(name.text, sizeof name.text, t, constant->imm.i);
    return name;
}

static render_name kir_render_operand(const render *r, kir_val v) {
    const kir_ins *in = &r->p->ins[v];
    if (in->op == KIR_CONST) return kir_render_literal((kir_type)in->type, in);
    render_name name;
    snprintf(name.text, sizeof name.text, "v%d", v);
    return name;
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

typedef enum type_class { FLOAT, SIGNED, UNSIGNED, BOOL, CLASS_COUNT } type_class;

static const type_class CLASSES[KIR_TYPE_COUNT] = {
    [KIR_F32] = FLOAT,    [KIR_F64] = FLOAT,    [KIR_I32] = SIGNED, [KIR_I64] = SIGNED,
    [KIR_U32] = UNSIGNED, [KIR_U64] = UNSIGNED, [KIR_BOOL] = BOOL,
};

#define WRAPPING(operator) "#0 " operator" #1", "#t(#u(#0) " operator" #u(#1))", "#0 " operator" #1"
#define EVERY(text) text, text, text, text

static const char *const OPERATIONS[KIR_OP_COUNT][CLASS_COUNT] = {
    [KIR_NEG] = {"-#0", "#t(0u - #u(#0))", "0u - #0"},
    [KIR_ABS] = {"$fabs_#s(#0)", "!abs(#0)", "#0"},
    [KIR_SQRT] = {"$sqrt_#s(#0)"},
    [KIR_EXP] = {"!exp(#0)"},
    [KIR_LOG] = {"!log(#0)"},
    [KIR_SIN] = {"!sin(#0)"},
    [KIR_COS] = {"!cos(#0)"},
    [KIR_TANH] = {"!tanh(#0)"},
    [KIR_ERF] = {"!erf(#0)"},
    [KIR_ADD] = {WRAPPING("+")},
    [KIR_SUB] = {WRAPPING("-")},
    [KIR_MUL] = {WRAPPING("*")},
    [KIR_DIV] = {"#0 / #1", "!div(#0, #1)", "!div(#0, #1)"},
    [KIR_MOD] = {"$fmod_#s(#0, #1)", "!mod(#0, #1)", "!mod(#0, #1)"},
    [KIR_MIN] = {"!min(#0, #1)", "!min(#0, #1)", "!min(#0, #1)", "#0 & #1"},
    [KIR_MAX] = {"!max(#0, #1)", "!max(#0, #1)", "!max(#0, #1)", "#0 | #1"},
    [KIR_AND] = {NULL, "#0 & #1", "#0 & #1", "#0 & #1"},
    [KIR_OR] = {NULL, "#0 | #1", "#0 | #1", "#0 | #1"},
    [KIR_XOR] = {NULL, "#0 ^ #1", "#0 ^ #1", "#0 != #1"},
    [KIR_SHL] = {NULL, "!shl(#0, #1)", "!shl(#0, #1)"},
    [KIR_SHR] = {NULL, "!shr(#0, #1)", "!shr(#0, #1)"},
    [KIR_EQ] = {EVERY("#0 == #1")},
    [KIR_LT] = {"#0 < #1", "#0 < #1", "#0 < #1", "!#0 & #1"},
    [KIR_LE] = {"#0 <= #1", "#0 <= #1", "#0 <= #1", "!#0 | #1"},
    [KIR_FMA] = {"$fma_#s(#0, #1, #2)"},
    [KIR_PHILOX] = {NULL, NULL, "kir_philox_u32(#0, #1)"},
};

/* … of integers, where operands are those that every machine can do (KIR_LEGAL_MATHS). */
static const char *const LEGAL_OPERATIONS[KIR_OP_COUNT] = {
    [KIR_DIV] = "#0 / #1", [KIR_MOD] = "#0 % #1", [KIR_SHL] = "#0 << $u32(#1)", [KIR_SHR] = "#0 >> $u32(#1)"};

static const char *const ROUNDINGS[] = {
    [KIR_FLOOR] = "$floor_#s(#0)",
    [KIR_CEIL] = "$ceil_#s(#0)",
    [KIR_TRUNC] = "$trunc_#s(#0)",
    [KIR_NEAREST_EVEN] = "$rint_#s(#0)",
};

/* `fits`: the value does, whatever its type. */
static const char *cast_text(kir_type from, kir_type to, bool fits, char *room, size_t size) {
    if (to == KIR_BOOL) return from == KIR_BOOL ? "#0" : "#0 != 0";
    if (!kir_is_float(from) || kir_is_float(to) || fits) return "#t(#0)";
    snprintf(room, size, "kir_cast_%s_%s(#0)", SUFFIXES[from], SUFFIXES[to]);
    return room;
}

static const char *bitcast_text(kir_type from, kir_type to) {
    if (kir_is_float(from)) return kir_is_float(to) ? "#0" : "#t($bits_#s(#0))";
    if (kir_is_float(to)) return to == KIR_F32 ? "$from_bits_f32($u32(#0))" : "$from_bits_f64($u64(#0))";
    return "#t(#0)";
}

static const char *operation_text(const render *r, const kir_ins *in, kir_type operand, char *room, size_t size) {
    bool legal = r->t->dialect->legal;
    if (legal && CLASSES[operand] != FLOAT && LEGAL_OPERATIONS[in->op]) return LEGAL_OPERATIONS[in->op];
    switch (in->op) {
    case KIR_SELECT: return r->t->dialect->choice;
    case KIR_ROUND: return ROUNDINGS[in->imm.i];
    case KIR_CAST: return cast_text(operand, (kir_type)in->type, legal, room, size);
    case KIR_BITCAST: return bitcast_text(operand, (kir_type)in->type);
    default: return OPERATIONS[in->op][CLASSES[operand]];
    }
}

/* A function's name in an operation's text, from `!max` on or written out; returns what is behind it. */
static const char *put_function(render *r, const char *text, const char *suffix) {
    char name[40];
    size_t n = strcspn(text, "(");
    if (*text == '!')
        snprintf(name, sizeof name, "kir_%.*s_%s", (int)n - 1, text + 1, suffix);
    else
        snprintf(name, sizeof name, "%.*s", (int)n, text);
    kir_render_need(r, name);
    tn_str_add(r->text, "%s", name);
    return text + n;
}

/* Adds the expression of a pure operation (but CONST … INDEX) on operands of type `operand`. */
static void kir_render_operation(render *r, const kir_ins *in, kir_type operand, const char *const names[3]) {
    char room[48], piece[2] = "";
    const char *at = operation_text(r, in, operand, room, sizeof room);
    const kir_dialect *d = r->t->dialect;
    if (d->floats.number && in->op == KIR_EQ && kir_is_float(operand) && strcmp(names[0], names[1]) == 0)
        at = d->floats.number;
    if (d->floats.less && in->op == KIR_LT && kir_is_float(operand)) at = d->floats.less;
    if (d->floats.nothing && in->op == KIR_SUB && kir_is_float(operand) && strcmp(names[0], names[1]) == 0)
        at = d->floats.nothing;
    if (d->floats.truth && in->op == KIR_CAST && in->type == KIR_BOOL && kir_is_float(operand)) at = d->floats.truth;
    tn_str expanded = {0};
    tn_str *whole = r->text;
    r->text = &expanded;
    while (*at) {
        if (*at == '!' && at[1] != '=' && at[1] != '#') {
            at = put_function(r, at, SUFFIXES[operand]);
        } else if (strncmp(at, "kir_", 4) == 0) {
            at = put_function(r, at, "");
        } else if (*at == '#') {
            const char *with = at[1] == 't'   ? TYPE_WORDS[in->type]
                               : at[1] == 'u' ? UNSIGNED_WORDS[in->type]
                               : at[1] == 's' ? SUFFIXES[operand]
                                              : names[at[1] - '0'];
            tn_str_add(&expanded, "%s", with);
            at += 2;
        } else {
            piece[0] = *at++;
            tn_str_addn(&expanded, piece, 1);
        }
    }
    r->text = whole;
    whole->failed = whole->failed || expanded.failed;
    kir_render_words(r, tn_str_text(&expanded));
    tn_str_free(&expanded);
}

/* Adds acc ∘ x for a reduction's kind. */
static void kir_render_combine(render *r, kir_reduce kind, kir_type t, const char *acc, const char *x) {
    static const kir_op ops[] = {
        [KIR_SUM] = KIR_ADD, [KIR_PROD] = KIR_MUL, [KIR_RMAX] = KIR_MAX, [KIR_RMIN] = KIR_MIN, [KIR_SEQ] = KIR_ADD,
    };
    kir_ins in = {.op = (uint8_t)ops[kind], .type = (uint8_t)t};
    kir_render_operation(r, &in, t, (const char *const[3]){acc, x, ""});
}

/* ---- indices and memory ------------------------------------------------------------------------------------------ */

/* The affine part of a global access, made of numbers of the launch. Only coordinates that exist here are included;
 * others are 0. */
static void put_sized(render *r, int access) {
    size_t axes = (size_t)(r->p->n_par + r->p->n_loop), at = axes + (size_t)access * (axes + 1);
    kir_render_size(r, at);
    for (size_t axis = 0; axis < axes; axis++) {
        if (!(r->axes_open >> axis & 1)) continue;
        kir_render_put(r, " + x%zu * ", axis);
        kir_render_size(r, at + 1 + axis);
    }
}

/* Of a local one: numbers of the program. */
static void put_fixed(render *r, const int64_t *affine) {
    const char *plus = "";
    for (int axis = 0; axis < r->p->n_par + r->p->n_loop; axis++) {
        int64_t stride = r->axes_open >> axis & 1 ? affine[1 + axis] : 0;
        if (stride == 1)
            kir_render_put(r, "%sx%d", plus, axis);
        else if (stride != 0)
            kir_render_put(r, "%sx%d * %lld", plus, axis, (long long)stride);
        if (stride != 0) plus = " + ";
    }
    if (affine[0] != 0 || *plus == '\0') kir_render_put(r, "%s%lld", plus, (long long)affine[0]);
}

static void put_affine(render *r, int access) {
    if (access < r->p->n_sized)
        put_sized(r, access);
    else
        put_fixed(r, r->p->access[access].fixed);
}

/* The index of instruction `in`'s access. */
static void kir_render_index(render *r, const kir_ins *in) {
    kir_val dyn = r->p->access[in->imm.i].dyn;
    if (dyn == KIR_NONE) {
        put_affine(r, (int)in->imm.i);
        return;
    }
    kir_type t = (kir_type)r->p->ins[dyn].type;
    kir_render_put(r, "%s(%s(", TYPE_WORDS[t], UNSIGNED_WORDS[t]); /* a masked access may have any index, which wraps */
    put_affine(r, (int)in->imm.i);
    kir_render_put(r, ") + %s(%s))", UNSIGNED_WORDS[t], kir_render_operand(r, dyn).text);
}

static tn_dtype c_dtype_of(const render *r, const kir_ins *in) {
    return (tn_dtype)r->p->buffer_dtype[r->p->access[in->imm.i].buffer];
}

static void put_element(render *r, const kir_ins *in) {
    kir_render_put(r, "b%d[", r->p->access[in->imm.i].buffer);
    kir_render_index(r, in);
    kir_render_put(r, "]");
}

/* `get3(at3 + index`, for languages that reach elements so. */
static void put_call(render *r, const kir_ins *in, const char *function) {
    int buffer = r->p->access[in->imm.i].buffer;
    bool pairs = tn_dtype_size(c_dtype_of(r, in)) == 8; /* kind: which half */
    kir_render_put(r, pairs ? "%s%d((" : "%s%d(", function, buffer);
    if (r->p->local[buffer] == 0) kir_render_put(r, "at%d + ", buffer);
    kir_render_index(r, in);
    if (pairs) kir_render_put(r, ") * 2 + %d", in->kind);
}

/* Text around an element that is loaded, and around a value that is stored. */
typedef struct conversion {
    const char *load, *load_end, *store, *store_end, *needs_load, *needs_store;
} conversion;

static const conversion CONVERSIONS[TN_PLAIN_DTYPES] = {
    [TN_F16] = {"kir_from_f16(", ")", "kir_to_f16(", ")", "kir_from_f16", "kir_to_f16"},
    [TN_BF16] = {"kir_from_bf16(", ")", "kir_to_bf16(", ")", "kir_from_bf16", "kir_to_bf16"},
    [TN_I8] = {"($i32)", "", "($i8)", "", NULL, NULL},
    [TN_U8] = {"($i32)", "", "($u8)", "", NULL, NULL},
    [TN_I16] = {"($i32)", "", "($i16)", "", NULL, NULL},
    [TN_U16] = {"($i32)", "", "($u16)", "", NULL, NULL},
    [TN_BOOL] = {"", " != 0", "($u8)", "", NULL, NULL},
};

static void put_converted(render *r, const kir_ins *in) {
    const conversion *c = &CONVERSIONS[c_dtype_of(r, in)];
    if (c->needs_load) kir_render_need(r, c->needs_load);
    kir_render_words(r, c->load ? c->load : "");
    put_element(r, in);
    kir_render_words(r, c->load_end ? c->load_end : "");
}

static void put_loaded(render *r, const kir_ins *in) {
    if (r->t->dialect->open_kernel) {
        put_call(r, in, "get");
        tn_str_add(r->text, ")");
    } else {
        put_converted(r, in);
    }
    tn_str_add(r->text, in->a == KIR_NONE ? ";\n" : "; }\n");
}

static void put_load(render *r, int i) {
    const kir_ins *in = &r->p->ins[i];
    const char *type = TYPE_WORDS[in->type];
    if (in->a == KIR_NONE) {
        kir_render_put(r, "$let %s v%d = ", type, i);
        put_loaded(r, in);
        return;
    }
    kir_ins zero = {.op = KIR_CONST};
    kir_render_put(r, "$var %s v%d = %s;\n", type, i, kir_render_literal((kir_type)in->type, &zero).text);
    kir_render_line(r, "if (%s) { v%d = ", kir_render_operand(r, in->a).text, i);
    put_loaded(r, in);
}

static void put_store(render *r, int i) {
    const kir_ins *in = &r->p->ins[i];
    const conversion *c = &CONVERSIONS[c_dtype_of(r, in)];
    render_name value = kir_render_operand(r, in->a);
    if (in->b != KIR_NONE) kir_render_put(r, "if (%s) { ", kir_render_operand(r, in->b).text);
    if (r->t->dialect->open_kernel) {
        put_call(r, in, "set");
        kir_render_put(r, ", %s);", value.text);
    } else {
        if (c->needs_store) kir_render_need(r, c->needs_store);
        put_element(r, in);
        kir_render_put(r, " = %s%s%s;", c->store ? c->store : "", value.text, c->store_end ? c->store_end : "");
    }
    tn_str_add(r->text, in->b != KIR_NONE ? " }\n" : "\n");
}

/* ---- instructions ------------------------------------------------------------------------------------------------ */

static bool is_sum(uint8_t op) { return op == KIR_ADD || op == KIR_SUB || op == KIR_FMA; }

/* Could operand `k` of a sum or product be taken apart, and what is left of it be joined with the other operand? */
static bool could_regroup(const render *r, const kir_ins *in, int k) {
    kir_val v = kir_operand(in, k), other = kir_operand(in, 1 - k);
    const kir_ins *inner = &r->p->ins[v];
    bool alike = in->op == KIR_MUL ? inner->op == KIR_MUL : is_sum(in->op) && is_sum(inner->op);
    for (int j = inner->op == KIR_FMA ? 2 : 0; alike && j < kir_arity(inner); j++) {
        kir_val part = kir_operand(inner, j);
        if (part == other || (r->p->ins[part].op == KIR_CONST && r->p->ins[other].op == KIR_CONST)) return true;
    }
    return false;
}

static void keep_operands(const render *r, const kir_ins *in, render_name names[3]) {
    bool asked = in->op == KIR_ADD || in->op == KIR_SUB || in->op == KIR_MUL;
    for (int k = 0; k < 2 && asked && kir_is_float((kir_type)in->type); k++)
        if (could_regroup(r, in, k)) snprintf(names[k].text, sizeof names[k].text, "kept(v%d)", kir_operand(in, k));
}

static void put_pure(render *r, int i) {
    const kir_ins *in = &r->p->ins[i];
    render_name names[3] = {{""}, {""}, {""}};
    kir_type operand = (kir_type)in->type;
    for (int k = 0; k < kir_arity(in); k++) {
        names[k] = kir_render_operand(r, kir_operand(in, k));
        operand = (kir_type)r->p->ins[kir_operand(in, k)].type;
    }
    if (r->t->dialect->regroups) keep_operands(r, in, names);
    kir_render_put(r, "$let %s v%d = ", TYPE_WORDS[in->type], i);
    kir_render_operation(r, in, operand, (const char *const[3]){names[0].text, names[1].text, names[2].text});
    tn_str_add(r->text, ";\n");
}

/* One half of it, where words have 32 bits; a truth value is in both. */
static void put_half_runtime_scalar(render *r, const kir_ins *in, size_t at) {
    bool truth = in->type == KIR_BOOL;
    r->n = (int)at;
    r->half = in->kind;
    kir_render_put(r, "%s(", truth ? "" : TYPE_WORDS[in->type]);
    kir_render_words(r, r->t->dialect->params.word);
    r->half = 1;
    if (truth) kir_render_words(r, " | ");
    if (truth) kir_render_words(r, r->t->dialect->params.word);
    r->half = 0;
    kir_render_words(r, truth ? ") != 0u;\n" : ");\n");
}

static void put_runtime_scalar(render *r, int i) {
    const kir_ins *in = &r->p->ins[i];
    size_t at = kir_sizes_count(r->p) + (size_t)in->imm.i;
    kir_render_put(r, "$let %s v%d = ", TYPE_WORDS[in->type], i);
    if (r->t->dialect->open_kernel) {
        put_half_runtime_scalar(r, in, at);
        return;
    }
    if (in->type == KIR_F32 && !r->t->f64) kir_render_need(r, "kir_narrow_bits");
    const char *from = in->type == KIR_BOOL  ? "$p[%zu] != 0;\n"
                       : in->type == KIR_F64 ? "$from_bits_f64(($u64)$p[%zu]);\n"
                       : in->type != KIR_F32 ? NULL
                       : r->t->f64           ? "($f32)$from_bits_f64(($u64)$p[%zu]);\n"
                                             : "kir_narrow_bits(($u64)$p[%zu]);\n";
    char text[64];
    if (from)
        snprintf(text, sizeof text, from, at);
    else
        snprintf(text, sizeof text, "(%s)$p[%zu];\n", TYPE_WORDS[in->type], at);
    kir_render_words(r, text);
}

static void put_instruction(render *r, int i) {
    const kir_ins *in = &r->p->ins[i];
    if (in->op == KIR_CONST) return;
    render_indent(r);
    switch (in->op) {
    case KIR_SCALAR: put_runtime_scalar(r, i); break;
    case KIR_INDEX:
        kir_render_put(r, "$let %s v%d = ", TYPE_WORDS[in->type], i);
        kir_render_index(r, in);
        tn_str_add(r->text, ";\n");
        break;
    case KIR_LOAD: put_load(r, i); break;
    case KIR_STORE: put_store(r, i); break;
    case KIR_VAR:
        kir_render_put(r, "$var %s v%d = %s;\n", TYPE_WORDS[in->type], i, kir_render_operand(r, in->a).text);
        break;
    case KIR_GET: kir_render_put(r, "$let %s v%d = v%d;\n", TYPE_WORDS[in->type], i, in->a); break;
    case KIR_SET: kir_render_put(r, "v%d = %s;\n", in->a, kir_render_operand(r, in->b).text); break;
    case KIR_BARRIER: kir_render_put(r, r->wide ? "mat_publish(); $barrier\n" : "$barrier\n"); break;
    default: put_pure(r, i);
    }
}

void kir_render_range(render *r, int begin, int end) {
    for (int i = begin; i < end; i++) {
        uint8_t op = r->p->ins[i].op;
        if (op == KIR_LOOP)
            i = render_loop(r, i);
        else if (op == KIR_REDUCE || op == KIR_SCAN)
            render_feed(r, i);
        else if (op > KIR_BARRIER)
            render_matrix(r, i);
        else
            put_instruction(r, i);
    }
}

/* ==== loops, reductions and scans ================================================================================= */
/* A loop that feeds lanes runs in blocks of that many points, whatever its axes are: its inner loop then does the same
 * for each lane and can be vectorized, and only the outer loop tests whether to fold. (A test at each point would cost
 * devices without branches one iteration of each folding loop.) The state of reduction 9 is s9, t9 and k9, declared
 * before its loop; its result is the constant v9 after it. In the loop that LOOP 8 begins, c8 counts the points so far,
 * and m8 is their total number. Float sums and the like keep the 64 lanes of kir.h in an array of the item; integers,
 * whose order does not matter, one accumulator. */

typedef enum state_form { ONE, LANES, CHAIN, EXTREME } state_form;

static state_form form_of(const render *r, const kir_ins *in) {
    bool is_float = kir_is_float((kir_type)r->p->ins[in->a].type);
    if (in->op == KIR_SCAN || in->kind == KIR_SEQ) return ONE;
    if (in->kind == KIR_ARGMAX || in->kind == KIR_ARGMIN) return EXTREME;
    if (!is_float) return ONE;
    return in->kind == KIR_CHAIN ? CHAIN : LANES;
}

static render_name c_loop_identity(const kir_ins *in, kir_type t) {
    kir_ins constant = kir_const_ins(t, kir_identity((kir_reduce)in->kind, t));
    return kir_render_literal(t, &constant);
}

/* Calls `fn` for the reductions and scans that belong to this loop and not to one inside it. */
static void each_own_state(render *r, int loop, int end, void (*fn)(render *r, int i)) {
    int depth = 0;
    for (int i = loop + 1; i < end; i++) {
        uint8_t op = r->p->ins[i].op;
        depth += (op == KIR_LOOP) - (op == KIR_END);
        if (depth == 0 && (op == KIR_REDUCE || op == KIR_SCAN)) fn(r, i);
    }
}

/* The state forms of the loop's own reductions, as bits. */
static unsigned forms_in(const render *r, int loop, int end) {
    unsigned forms = 0;
    int depth = 0;
    for (int i = loop + 1; i < end; i++) {
        const kir_ins *in = &r->p->ins[i];
        depth += (in->op == KIR_LOOP) - (in->op == KIR_END);
        if (depth == 0 && (in->op == KIR_REDUCE || in->op == KIR_SCAN)) forms |= 1U << form_of(r, in);
    }
    return forms;
}

static void open_brace(render *r) {
    kir_render_put(r, "{\n");
    r->depth++;
}

static void close_brace(render *r) {
    r->depth--;
    kir_render_line(r, "}\n");
}

/* ---- states ------------------------------------------------------------------------------------------------------ */

static void fill_lanes(render *r, int i, const char *with) {
    kir_render_line(r, "for ($var $i32 i = 0; i < %d; i++) { s%d[i] = %s; }\n", KIR_LANES, i, with);
}

static void begin_state(render *r, int i) {
    const kir_ins *in = &r->p->ins[i];
    kir_type t = (kir_type)r->p->ins[in->a].type;
    render_name zero = c_loop_identity(in, t);
    kir_ins none = {.op = KIR_CONST};
    const char *type = kir_render_type(t);
    switch (form_of(r, in)) {
    case ONE: kir_render_line(r, "$var %s s%d = %s;\n", type, i, zero.text); break;
    case CHAIN:
        kir_render_line(r, "$var %s s%d = %s;\n", type, i, zero.text);
        kir_render_line(r, "$var %s t%d = %s;\n", type, i, zero.text);
        break;
    case EXTREME:
        kir_render_line(r, "$var %s s%d = %s;\n", type, i, kir_render_literal(t, &none).text);
        kir_render_line(r, "$var %s k%d = 0%s;\n", kir_render_type((kir_type)in->type), i, "");
        break;
    case LANES:
        kir_render_line(r, "$var %s t%d = %s;\n", type, i, zero.text);
        kir_render_array(r, i, KIR_LANES, t);
        fill_lanes(r, i, zero.text);
    }
}

/* t = the block that the lanes of `i` hold, behind those before it; `first` says in the kernel that there is none. */
static void fold_lanes(render *r, int i, const char *first) {
    const kir_ins *in = &r->p->ins[i];
    kir_type t = (kir_type)in->type;
    char low[24], high[24];
    snprintf(low, sizeof low, "s%d[i]", i);
    snprintf(high, sizeof high, "s%d[i + h]", i);
    kir_render_line(r, "for ($var $i32 h = %d; h > 0; h /= 2) {\n", KIR_LANES / 2);
    r->depth++;
    kir_render_line(r, "for ($var $i32 i = 0; i < h; i++) { s%d[i] = ", i);
    kir_render_combine(r, (kir_reduce)in->kind, t, low, high);
    kir_render_put(r, "; }\n");
    close_brace(r);
    snprintf(low, sizeof low, "s%d[0]", i);
    snprintf(high, sizeof high, "t%d", i);
    kir_render_line(r, "if (%s) { t%d = %s; } else { t%d = ", first, i, low, i);
    kir_render_combine(r, (kir_reduce)in->kind, t, high, low);
    kir_render_put(r, "; }\n");
}

/* Folds the lanes after each KIR_BLOCK points and adds them to those before block o. */
static void fold_own_block(render *r, int i) {
    const kir_ins *in = &r->p->ins[i];
    char first[32];
    if (form_of(r, in) != LANES) return;
    snprintf(first, sizeof first, "o%d == %d", r->loop, KIR_BLOCK);
    kir_render_line(r, "if (o%d > 0 && (o%d & %d) == 0) {\n", r->loop, r->loop, KIR_BLOCK - 1);
    r->depth++;
    fold_lanes(r, i, first);
    fill_lanes(r, i, c_loop_identity(in, (kir_type)in->type).text);
    close_brace(r);
}

static void feed_lanes(render *r, int i) {
    const kir_ins *in = &r->p->ins[i];
    char lane[32];
    if (r->blocked)
        snprintf(lane, sizeof lane, "s%d[l%d]", i, r->loop);
    else
        snprintf(lane, sizeof lane, "s%d[0]", i); /* a loop of no axis has one point */
    kir_render_line(r, "%s = ", lane);
    kir_render_combine(r, (kir_reduce)in->kind, (kir_type)in->type, lane, kir_render_operand(r, in->a).text);
    kir_render_put(r, ";\n");
}

static void put_product(render *r, int i, const char *acc) {
    const kir_ins *in = &r->p->ins[i];
    bool is_float = kir_is_float((kir_type)in->type);
    kir_ins op = {.op = is_float ? KIR_FMA : KIR_MUL, .type = in->type};
    render_name a = kir_render_operand(r, in->a), b = kir_render_operand(r, in->b);
    kir_render_operation(r, &op, (kir_type)in->type, (const char *const[3]){a.text, b.text, acc});
    kir_render_put(r, ";\n");
}

static void feed_chain(render *r, int i) {
    render_name zero = c_loop_identity(&r->p->ins[i], (kir_type)r->p->ins[i].type);
    char acc[24];
    snprintf(acc, sizeof acc, "s%d", i);
    kir_render_line(r, "if (c%d > 0 && (c%d & %d) == 0) {\n", r->loop, r->loop, KIR_KSUM - 1);
    r->depth++;
    kir_render_line(r, "if (c%d == %d) { t%d = s%d; } else { t%d = t%d + s%d; }\n", r->loop, KIR_KSUM, i, i, i, i, i);
    kir_render_line(r, "s%d = %s;\n", i, zero.text);
    close_brace(r);
    kir_render_line(r, "s%d = ", i);
    put_product(r, i, acc);
}

static void put_test(render *r, kir_op op, kir_type t, const char *a, const char *b) {
    kir_ins in = {.op = (uint8_t)op, .type = KIR_BOOL};
    kir_render_operation(r, &in, t, (const char *const[3]){a, b, ""});
}

/* The first element, one beyond the best, or the first NaN. */
static void feed_extreme(render *r, int i) {
    const kir_ins *in = &r->p->ins[i];
    kir_type t = (kir_type)r->p->ins[in->a].type;
    render_name x = kir_render_operand(r, in->a);
    char best[24];
    snprintf(best, sizeof best, "s%d", i);
    const char *low = in->kind == KIR_ARGMAX ? best : x.text, *high = in->kind == KIR_ARGMAX ? x.text : best;
    kir_render_line(r, "if (c%d == 0 || (", r->loop);
    if (kir_is_float(t)) {
        put_test(r, KIR_EQ, t, best, best);
        kir_render_put(r, " && !(");
        put_test(r, KIR_LE, t, high, low);
        kir_render_put(r, ")");
    } else {
        put_test(r, KIR_LT, t, low, high);
    }
    kir_render_put(r, ")) {\n");
    r->depth++;
    kir_render_line(r, "s%d = %s;\n", i, x.text);
    kir_render_line(r, "k%d = c%d;\n", i, r->loop);
    close_brace(r);
}

static void feed_one(render *r, int i) {
    const kir_ins *in = &r->p->ins[i];
    kir_type t = (kir_type)in->type;
    render_name x = kir_render_operand(r, in->a);
    kir_reduce kind = (kir_reduce)in->kind;
    char acc[24];
    snprintf(acc, sizeof acc, "s%d", i);
    render_indent(r);
    if (kind == KIR_CHAIN) {
        kir_render_put(r, "$let %s q%d = ", kir_render_type(t), i);
        put_product(r, i, "");
        render_indent(r);
        snprintf(x.text, sizeof x.text, "q%d", i);
        kind = KIR_SUM;
    }
    kir_render_put(r, "%s = ", acc);
    kir_render_combine(r, kind, t, acc, x.text);
    kir_render_put(r, ";\n");
    if (in->op != KIR_SCAN) return;
    kir_render_line(r, "$let %s v%d = %s;\n", kir_render_type(t), i, acc);
}

static void render_feed(render *r, int i) {
    static void (*const feeds[])(render * r, int i) = {
        [ONE] = feed_one, [LANES] = feed_lanes, [CHAIN] = feed_chain, [EXTREME] = feed_extreme};
    feeds[form_of(r, &r->p->ins[i])](r, i);
}

static void end_state(render *r, int i) {
    const kir_ins *in = &r->p->ins[i];
    if (in->op == KIR_SCAN) return;
    char first[32];
    render_name zero = c_loop_identity(in, (kir_type)in->type);
    const char *type = kir_render_type((kir_type)in->type);
    switch (form_of(r, in)) {
    case ONE: kir_render_line(r, "$let %s v%d = s%d;\n", type, i, i); return;
    case EXTREME: kir_render_line(r, "$let %s v%d = k%d;\n", type, i, i); return;
    case CHAIN:
        kir_render_line(r, "$var %s v%d = s%d;\n", type, i, i);
        kir_render_line(r, "if (m%d == 0) { v%d = %s; }\n", r->loop, i, zero.text);
        kir_render_line(r, "if (m%d > %d) { v%d = t%d + s%d; }\n", r->loop, KIR_KSUM, i, i, i);
        return;
    case LANES: break;
    }
    snprintf(first, sizeof first, "m%d <= %d", r->loop, KIR_BLOCK);
    kir_render_line(r, "if (m%d > 0) {\n", r->loop);
    r->depth++;
    fold_lanes(r, i, first);
    close_brace(r);
    kir_render_line(r, "$let %s v%d = t%d;\n", type, i, i);
}

/* ---- loops ------------------------------------------------------------------------------------------------------- */

/* The number of points of the loop's axes: 1 when it has none. */
static void put_point_count(render *r, int first, int count) {
    kir_render_line(r, "$let $ix m%d = ", r->loop);
    for (int axis = first; axis < first + count; axis++)
        kir_render_put(r, "%sn%d", axis > first ? " * " : "", axis);
    kir_render_put(r, "%s;\n", count == 0 ? "1" : "");
}

/* The number of the point that the coordinates name. */
static void put_point(render *r, int first, int count) {
    kir_render_line(r, "$let $ix c%d = ", r->loop);
    for (int axis = first; axis < first + count - 2; axis++)
        kir_render_put(r, "(");
    for (int axis = first; axis < first + count; axis++) {
        if (axis > first) kir_render_put(r, " * n%d + ", axis);
        kir_render_put(r, "x%d%s", axis, axis > first && axis < first + count - 1 ? ")" : "");
    }
    kir_render_put(r, "%s;\n", count == 0 ? "0" : "");
}

static bool has_barrier(const kir_program *p, int loop) {
    for (int i = loop, end = kir_loop_end(p, loop); i < end; i++)
        if (p->ins[i].op == KIR_BARRIER) return true;
    return false;
}

/* An axis that ends at a computed number of points: u5 is that of loop 5. */
static void open_axis_until(render *r, int axis, kir_val points) {
    render_name n = kir_render_operand(r, points);
    kir_type t = (kir_type)r->p->ins[points].type;
    kir_render_line(r, "$var $ix u%d = n%d;\n", r->loop, axis);
    kir_render_line(r, "if (%s < %s(n%d)) { u%d = $ix(%s); }\n", n.text, kir_render_type(t), axis, r->loop, n.text);
    r->n = r->loop;
    if (r->t->dialect->same && has_barrier(r->p, r->loop)) kir_render_words(r, r->t->dialect->same);
    kir_render_line(r, "for ($var $ix x%d = 0; x%d < u%d; x%d++) ", axis, axis, r->loop, axis);
    open_brace(r);
}

static void open_axes(render *r, int first, int count) {
    kir_val points = r->p->ins[r->loop].a;
    if (points != KIR_NONE) {
        open_axis_until(r, first, points);
        return;
    }
    for (int axis = first; axis < first + count; axis++) {
        kir_render_line(r, "for ($var $ix x%d = 0; x%d < n%d; x%d++) ", axis, axis, axis, axis);
        open_brace(r);
    }
    if (count > 0) return;
    render_indent(r);
    open_brace(r);
}

/* All points in blocks of one a lane: block o, of e points, lane l. The coordinates of several axes are counted on. */
static void open_blocks(render *r, int first, int count, int end) {
    int loop = r->loop;
    open_brace(r);
    for (int axis = first; axis < first + count && count > 1; axis++)
        kir_render_line(r, "$var $ix x%d = 0;\n", axis);
    kir_render_line(r, "for ($var $ix o%d = 0; o%d < m%d; o%d += %d) ", loop, loop, loop, loop, KIR_LANES);
    open_brace(r);
    each_own_state(r, loop, end, fold_own_block);
    kir_render_line(r, "$var $i32 e%d = %d;\n", loop, KIR_LANES);
    kir_render_line(r, "if (m%d - o%d < %d) { e%d = $i32(m%d - o%d); }\n", loop, loop, KIR_LANES, loop, loop, loop);
    kir_render_line(r, "for ($var $i32 l%d = 0; l%d < e%d; l%d++) ", loop, loop, loop, loop);
    open_brace(r);
    if (count == 1) kir_render_line(r, "$let $ix x%d = o%d + $ix(l%d);\n", first, loop, loop);
}

/* The next point's coordinates: the last axis advances, and when it has reached its end, the one before it. */
static void close_blocks(render *r, int first, int count) {
    for (int axis = first + count - 1; axis > first; axis--) {
        kir_render_line(r, "x%d++;\n", axis);
        kir_render_line(r, "if (x%d == n%d) {\n", axis, axis);
        r->depth++;
        kir_render_line(r, "x%d = 0;\n", axis);
    }
    if (count > 1) kir_render_line(r, "x%d++;\n", first);
    for (int braces = count + 2; braces > 0; braces--)
        close_brace(r);
}

static void close_axes(render *r, int count) {
    for (int k = 0; k < (count > 0 ? count : 1); k++)
        close_brace(r);
}

static int render_loop(render *r, int loop) {
    int end = kir_loop_end(r->p, loop), outer = r->loop;
    int first = kir_loop_first(&r->p->ins[loop]), count = kir_loop_count(&r->p->ins[loop]);
    unsigned forms = forms_in(r, loop, end);
    uint32_t axes = ((1U << count) - 1) << first;
    bool counts = forms & ~(1U << ONE), outer_blocked = r->blocked;
    r->loop = loop;
    r->blocked = count > 0 && (forms & 1U << LANES);
    if (counts) put_point_count(r, first, count);
    each_own_state(r, loop, end, begin_state);
    if (r->blocked)
        open_blocks(r, first, count, end);
    else
        open_axes(r, first, count);
    r->axes_open |= axes;
    if (counts) put_point(r, first, count);
    kir_render_range(r, loop + 1, end);
    r->axes_open &= ~axes;
    if (r->blocked)
        close_blocks(r, first, count);
    else
        close_axes(r, count);
    each_own_state(r, loop, end, end_state);
    r->loop = outer;
    r->blocked = outer_blocked;
    return end;
}

/* ==== matrix instructions and packets ============================================================================= */
/* Each language has one text for matrices (texts/matrix.cu, matrix.hip, matrix.metal): types mat_c (a matrix of 16×16
 * sums), mat_f16, mat_bf16 and mat_tf32 (fragments), mat_packet, and mat_zero, mat_load<kind>, mat_mul, mat_store,
 * mat_fetch, mat_put, mat_copy (a late PUT), mat_commit, mat_wait. Only these texts know how a subgroup's items share a
 * matrix: CUDA's from PTX's tables of mma and ldmatrix, AMD's from those of v_mfma_f32_16x16x16 (64 items) and
 * v_wmma_f32_16x16x16 (32 items); Metal does not say. The instructions themselves are functions ptx_… and amd_…; a
 * compiler that makes no code for these machines must be given them (the tests' doubles do). */

/* b3 + (index */
static void put_pointer(render *r, const kir_ins *in) {
    kir_render_put(r, "b%d + (", r->p->access[in->imm.i].buffer);
    kir_render_index(r, in);
    kir_render_put(r, ")");
}

static render_name matrix_mask_of(const render *r, kir_val mask) {
    render_name always = {"true"};
    return mask == KIR_NONE ? always : kir_render_operand(r, mask);
}

static void put_wide_fragment(render *r, int i, const kir_ins *in, bool half) {
    bool across = !(in->kind & KIR_ALONG_K);
    kir_render_put(r, "const mat_place<%d, %d> v%d = mat_factor_at<%d, %d>(", !half, across, i, !half, across);
    put_pointer(r, in);
    kir_render_put(r, ", %d);\n", kir_pitch(in));
}

static void put_fragment(render *r, int i, const kir_ins *in) {
    tn_dtype t = (tn_dtype)r->p->buffer_dtype[r->p->access[in->imm.i].buffer];
    if (r->wide) {
        put_wide_fragment(r, i, in, t == TN_F16);
        return;
    }
    kir_render_put(r, "mat_%s v%d; mat_load<%d>(v%d, ",
                   t == TN_F32   ? "tf32"
                   : t == TN_F16 ? "f16"
                                 : "bf16",
                   i, in->kind & (KIR_FACTOR_B | KIR_ALONG_K), i);
    put_pointer(r, in);
    kir_render_put(r, ", %d);\n", kir_line(in));
}

static void put_matrix_store(render *r, const kir_ins *in) {
    if (in->b != KIR_NONE) kir_render_put(r, "if (%s) ", kir_render_operand(r, in->b).text);
    if (r->wide)
        kir_render_put(r, "mat_store<%d>(", kir_wide_column(in));
    else
        kir_render_put(r, "mat_store(");
    put_pointer(r, in);
    kir_render_put(r, ", %d, v%d);\n", r->wide ? kir_wide_line(in) : kir_line(in), in->a);
}

static void put_matrix(render *r, int i, const kir_ins *in) {
    if (r->wide)
        kir_render_put(r, "mat_wide<%d> v%d; mat_zero(v%d);\n", in->kind * KIR_EDGE, i, i);
    else
        kir_render_put(r, "mat_c v%d; mat_zero(v%d);\n", i, i);
}

/* Whether an MMA comes before instruction i with only values and indices between them. */
static bool follows_mma(const kir_program *p, int i) {
    while (--i >= 0)
        if (p->ins[i].op == KIR_MMA || (p->ins[i].op >= KIR_LOAD && p->ins[i].op != KIR_FRAGMENT))
            return p->ins[i].op == KIR_MMA;
    return false;
}

static void put_mma(render *r, int i, const kir_ins *in) {
    if (r->wide && !follows_mma(r->p, i)) kir_render_put(r, "ptx_wgmma_fence(); ");
    kir_render_put(r, "mat_mul(v%d, v%d, v%d);\n", in->a, in->b, in->c);
}

/* Until then nothing else may be done with the sums that are waited for. */
static void put_wide_wait(render *r, int i, const kir_ins *in) {
    kir_render_put(r, "ptx_wgmma_wait<%d>();", (int)in->imm.i);
    for (int v = 0; v < i; v++)
        if (r->p->ins[v].op == KIR_MATRIX) kir_render_put(r, " mat_hold(v%d);", v);
    kir_render_put(r, "\n");
}

static void put_packet(render *r, int i, const kir_ins *in) {
    kir_render_put(r, "const mat_packet v%d = mat_fetch(", i);
    put_pointer(r, in);
    kir_render_put(r, ", %s);\n", matrix_mask_of(r, in->a).text);
}

static void put_put(render *r, const kir_ins *in) {
    const kir_ins *packet = &r->p->ins[in->a];
    kir_render_put(r, in->kind ? "mat_copy(" : "mat_put(");
    put_pointer(r, in);
    kir_render_put(r, ", ");
    if (in->kind)
        put_pointer(r, packet);
    else
        kir_render_put(r, "v%d", in->a);
    if (in->kind) kir_render_put(r, ", %s", matrix_mask_of(r, packet->a).text);
    kir_render_put(r, ");\n");
}

/* A packet that is only put late is never in registers. */
static bool is_held(const kir_program *p, int fetch) {
    for (int i = fetch + 1; i < p->n_ins; i++)
        if (p->ins[i].op == KIR_PUT && p->ins[i].a == fetch && !p->ins[i].kind) return true;
    return false;
}

static void render_matrix(render *r, int i) {
    const kir_ins *in = &r->p->ins[i];
    if (in->op == KIR_FETCH && !is_held(r->p, i)) return;
    render_indent(r);
    switch (in->op) {
    case KIR_MATRIX: put_matrix(r, i, in); break;
    case KIR_FRAGMENT: put_fragment(r, i, in); break;
    case KIR_MMA: put_mma(r, i, in); break;
    case KIR_MATRIX_STORE: put_matrix_store(r, in); break;
    case KIR_FETCH: put_packet(r, i, in); break;
    case KIR_PUT: put_put(r, in); break;
    case KIR_COMMIT: kir_render_put(r, in->kind ? "ptx_wgmma_commit();\n" : "mat_commit();\n"); break;
    default:
        if (in->kind)
            put_wide_wait(r, i, in);
        else
            kir_render_put(r, "mat_wait<%d>();\n", (int)in->imm.i);
    }
}
