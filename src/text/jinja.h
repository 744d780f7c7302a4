/* jinja.h — the subset of Jinja that chat templates use: values and the syntax tree.
 *
 * jinja_parse.c makes tokens and a syntax tree; jinja_eval.c evaluates it; jinja_value.c has Python's rules for values
 * and JSON; jinja_filters.c and jinja_methods.c have tables of the functions that templates can call.
 *
 * Templates come from untrusted files. All values of a template are in arenas with a size limit; the number of steps
 * and the depth of nesting are limited; nothing in the language has access to the system. */
#ifndef TN_TEXT_JINJA_H
#define TN_TEXT_JINJA_H

#include "text/text_common.h"

enum {
    JJ_MAX_DEPTH = 100,      /* of expressions and blocks in a template, and of JSON */
    JJ_MAX_RUN_DEPTH = 400,  /* of the nodes being computed: long sums are deep, macros call macros */
    JJ_MAX_SOURCE = 1 << 22, /* bytes of a template */
    JJ_MAX_ARGUMENTS = 8     /* that a function of ours takes */
};

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Memory that is given back all at once, at most `limit` bytes. */
typedef struct jj_arena {
    struct jj_block *blocks;
    size_t used, limit;
} jj_arena;

/* Zeroed; NULL after a failure. */
void *tn_jj_alloc(jj_arena *a, size_t count, size_t size);
void tn_jj_arena_free(jj_arena *a);

/* ---- values ------------------------------------------------------------------------------------------------------ */

typedef enum jj_kind {
    JJ_UNDEFINED = 0,
    JJ_NONE,
    JJ_BOOL,
    JJ_INT,
    JJ_FLOAT,
    JJ_STRING,
    JJ_LIST,
    JJ_DICT,
    JJ_NAMESPACE, /* a dict that templates may change */
    JJ_LOOP,
    JJ_CALLABLE
} jj_kind;

typedef struct jj_value {
    jj_kind kind;
    union {
        bool truth;
        int64_t integer;
        double number;
        const char *text; /* `size` bytes, UTF-8 by convention */
        struct jj_list *list;
        struct jj_dict *dict;
        struct jj_loop *loop;
        const struct jj_callable *callable;
    };
    size_t size; /* of a string */
} jj_value;

typedef struct jj_list {
    jj_value *items;
    size_t count, capacity;
    bool tuple;
} jj_list;

typedef struct jj_pair {
    jj_value key, value;
} jj_pair;

typedef struct jj_dict { /* in the order of insertion */
    jj_pair *pairs;
    size_t count, capacity;
} jj_dict;

typedef struct jj_loop {
    const jj_list *items;
    size_t index;
    jj_value changed; /* what changed() saw last */
    bool asked;
} jj_loop;

/* ---- the tree ---------------------------------------------------------------------------------------------------- */

typedef enum jj_node_kind {
    /* expressions */
    JJ_CONSTANT,
    JJ_NAME,
    JJ_LIST_OF,  /* items */
    JJ_TUPLE_OF, /* items */
    JJ_DICT_OF,  /* items: key, value, key, value … */
    JJ_MEMBER,   /* a.name */
    JJ_ITEM,     /* a[b] */
    JJ_SLICE,    /* a[b:c:d] */
    JJ_CALL,     /* a(items) */
    JJ_FILTER,   /* a | name(items) */
    JJ_TEST,     /* a is name(items) */
    JJ_NOT,
    JJ_NEGATIVE,
    JJ_POSITIVE,
    JJ_BINARY,  /* a op b */
    JJ_COMPARE, /* a, then items: each with op and a */
    JJ_AND,
    JJ_OR,
    JJ_CHOICE, /* a if b else c */
    /* statements; `body` and `other` are chains */
    JJ_TEXT,     /* constant */
    JJ_OUTPUT,   /* a */
    JJ_IF,       /* if a: body, else other */
    JJ_FOR,      /* for a in b if c: body, else other */
    JJ_SET,      /* a = b, or a = body through filters b */
    JJ_MACRO,    /* name(items: names with defaults in a): body */
    JJ_FILTERED, /* body through filters a */
    JJ_WITH,     /* items: names with values in a; body */
    JJ_BLOCK,    /* body */
    JJ_BREAK,
    JJ_CONTINUE
} jj_node_kind;

typedef enum jj_op {
    JJ_OP_NONE = 0,
    JJ_ADD,
    JJ_SUBTRACT,
    JJ_MULTIPLY,
    JJ_DIVIDE,
    JJ_FLOOR,
    JJ_MODULO,
    JJ_POWER,
    JJ_CONCAT,
    JJ_EQUAL,
    JJ_UNEQUAL,
    JJ_LESS,
    JJ_LESS_EQUAL,
    JJ_GREATER,
    JJ_GREATER_EQUAL,
    JJ_IN,
    JJ_NOT_IN
} jj_op;

typedef struct jj_node {
    jj_node_kind kind;
    jj_op op;
    bool negated;          /* JJ_TEST: is not */
    uint32_t line, column; /* from 1 */
    jj_value constant;
    const char *name;
    const char *keyword; /* of a named argument, else NULL */
    struct jj_node *a, *b, *c, *d, *items, *body, *other;
    struct jj_node *next; /* in the list or chain that it is part of */
} jj_node;

struct tn_chat_template {
    jj_arena arena;
    jj_node *body;
};

/* ---- tokens (jinja_parse.c) -------------------------------------------------------------------------------------- */

typedef enum jj_token_kind {
    JJ_T_END,
    JJ_T_TEXT,
    JJ_T_BLOCK_BEGIN,
    JJ_T_BLOCK_END,
    JJ_T_OUTPUT_BEGIN,
    JJ_T_OUTPUT_END,
    JJ_T_NAME,
    JJ_T_STRING,
    JJ_T_INT,
    JJ_T_FLOAT,
    JJ_T_OPERATOR
} jj_token_kind;

typedef struct jj_token {
    jj_token_kind kind;
    uint32_t line, column;
    jj_value value;       /* text, string or number */
    const char *spelling; /* of a name or operator, with a NUL */
    struct jj_token *next;
} jj_token;

/* Cuts a template into tokens, with white space taken away as Jinja does with trim_blocks and lstrip_blocks. */
tn_status tn_jj_lex(jj_arena *arena, const char *source, size_t size, jj_token **out);
tn_status tn_jj_fail_at(uint32_t line, uint32_t column, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* ---- parsing (jinja_parse.c) ------------------------------------------------------------------------------------- */

tn_status tn_jj_parse(jj_arena *arena, const jj_token *tokens, jj_node **out);

/* ---- running (jinja_eval.c) -------------------------------------------------------------------------------------- */

typedef struct jj_scope {
    jj_dict names;
    struct jj_scope *parent;
} jj_scope;

typedef struct jj_run {
    jj_arena arena;
    jj_scope *scope, *globals;
    tn_bytes *out;  /* what the template writes to now */
    size_t written; /* bytes, over all outputs */
    size_t max_written;
    int64_t steps_left;
    int depth;
    jj_node_kind flow; /* JJ_BREAK or JJ_CONTINUE where one has been met and its loop not yet, else 0 */
    int64_t now;
    const jj_node *at; /* what is being computed, for messages */
} jj_run;

typedef struct jj_arguments {
    const jj_value *values;   /* positional ones first */
    const char *const *names; /* NULL for a positional one */
    int count, positional;
} jj_arguments;

typedef tn_status (*jj_function)(jj_run *r, jj_value self, const jj_arguments *given, const jj_value *const *bound,
                                 jj_value *out);

/* Begins the definition of a jj_function; what it does not need of the arguments stays unused. */
#define JJ_FUNCTION(name)                                                                                          \
    static tn_status name(JJ_MAYBE_UNUSED jj_run *r, JJ_MAYBE_UNUSED jj_value self,                                \
                          JJ_MAYBE_UNUSED const jj_arguments *given, JJ_MAYBE_UNUSED const jj_value *const *bound, \
                          JJ_MAYBE_UNUSED jj_value *out)
#define JJ_MAYBE_UNUSED __attribute__((unused))

/* Something that templates can call. `names`: parameters with blanks between; a leading number of them, `needed`, must
 * be given; bound[i] is parameter i or NULL. names NULL: takes anything, as `given`. */
typedef struct jj_row {
    const char *name;
    jj_function call;
    const char *names;
    int needed;
} jj_row;

typedef struct jj_callable {
    const jj_row *row; /* a function of ours, on self … */
    jj_value self;
    const jj_node *macro; /* … or a macro, with the names around its definition */
    struct jj_scope *scope;
} jj_callable;

tn_status tn_jj_fail(const jj_run *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Counts work: about one step for each node and for each 64 bytes touched. */
tn_status tn_jj_charge(jj_run *r, size_t steps);
tn_status tn_jj_call_row(jj_run *r, const jj_row *row, jj_value self, const jj_arguments *given, jj_value *out);

/* ---- values (jinja_value.c) -------------------------------------------------------------------------------------- */

static inline jj_value jj_none(void) { return (jj_value){.kind = JJ_NONE}; }
static inline jj_value jj_bool(bool v) { return (jj_value){.kind = JJ_BOOL, .truth = v}; }
static inline jj_value jj_int(int64_t v) { return (jj_value){.kind = JJ_INT, .integer = v}; }
static inline jj_value jj_float(double v) { return (jj_value){.kind = JJ_FLOAT, .number = v}; }
static inline jj_value jj_text(const char *text, size_t size) {
    return (jj_value){.kind = JJ_STRING, .text = text, .size = size};
}
jj_value tn_jj_literal(const char *text); /* of a C string that outlives the run */

const char *tn_jj_kind_name(const jj_value *v);
bool tn_jj_truth(const jj_value *v);
bool tn_jj_is(const jj_value *v, const char *text);
/* Whether two values are equal, as Python sees it. */
tn_status tn_jj_equal(jj_run *r, const jj_value *a, const jj_value *b, bool *out);
/* Their order: negative, 0 or positive. Fails for values without one. */
tn_status tn_jj_order(jj_run *r, const jj_value *a, const jj_value *b, int *out);
tn_status tn_jj_contains(jj_run *r, const jj_value *whole, const jj_value *part, bool *out);
tn_status tn_jj_binary(jj_run *r, jj_op op, const jj_value *a, const jj_value *b, jj_value *out);

/* Characters of a string. */
size_t tn_jj_characters(const char *text, size_t size);
/* Bytes before character n (at most size). */
size_t tn_jj_offset(const char *text, size_t size, size_t n);

tn_status tn_jj_new_list(jj_run *r, jj_value *out, jj_list **list);
tn_status tn_jj_push(jj_run *r, jj_list *list, jj_value item);
tn_status tn_jj_new_dict(jj_run *r, jj_kind kind, jj_value *out, jj_dict **dict);
tn_status tn_jj_put(jj_run *r, jj_dict *dict, jj_value key, jj_value value);
/* The value under a key, NULL when absent; *failed is set when steps ran out. */
tn_status tn_jj_find(jj_run *r, const jj_dict *dict, const jj_value *key, jj_value **out);
/* A copy of bytes as a string of the run. */
tn_status tn_jj_copy(jj_run *r, const char *text, size_t size, jj_value *out);
/* What a for loop goes over: a list as it is, a dict's keys, a string's characters, nothing for undefined. */
tn_status tn_jj_items(jj_run *r, const jj_value *v, const jj_list **out);
/* Appends Python's str() or, quoted, repr() of a value. */
tn_status tn_jj_print(jj_run *r, const jj_value *v, bool quoted, tn_bytes *out);
/* A value as a string: itself, or its str(). */
tn_status tn_jj_string(jj_run *r, const jj_value *v, jj_value *out);
/* The part of a list or string that a[start:stop:step] names; NULL for what is left out. */
tn_status tn_jj_slice(jj_run *r, const jj_value *v, const jj_value *start, const jj_value *stop, const jj_value *step,
                      jj_value *out);
/* a[b] and a.name: a missing one is undefined. */
tn_status tn_jj_item(jj_run *r, const jj_value *v, const jj_value *key, jj_value *out);
tn_status tn_jj_member(jj_run *r, const jj_value *v, const char *name, jj_value *out);

/* ---- JSON (jinja_value.c) ---------------------------------------------------------------------------------------- */

tn_status tn_jj_read_json(jj_run *r, const char *text, size_t size, jj_value *out);
typedef struct jj_json_style {
    int indent; /* -1: on one line */
    bool ascii, sorted;
    const char *item_separator, *key_separator;
} jj_json_style;
tn_status tn_jj_write_json(jj_run *r, const jj_value *v, const jj_json_style *style, int level, tn_bytes *out);

/* ---- what templates can call (jinja_filters.c, jinja_methods.c) -------------------------------------------------- */

const jj_row *tn_jj_find_filter(const char *name);
const jj_row *tn_jj_find_test(const char *name);
const jj_row *tn_jj_find_function(const char *name);
const jj_row *tn_jj_find_method(jj_kind kind, const char *name);
/* Calls a test on a value. */
tn_status tn_jj_test(jj_run *r, const char *name, jj_value self, const jj_arguments *given, bool *out);

/* str.strip() of the characters in `set`, NULL: white space; side: 1 left, 2 right, 3 both. */
jj_value tn_jj_strip(jj_value v, const jj_value *set, int side);
/* Upper ('u') or lower ('l') case, title ('t') or capitalised ('c'). */
tn_status tn_jj_change_case(jj_run *r, const jj_value *v, char how, jj_value *out);
tn_status tn_jj_replace(jj_run *r, const jj_value *v, const jj_value *old, const jj_value *new_text, int64_t most,
                        jj_value *out);
tn_status tn_jj_join(jj_run *r, const jj_list *list, const jj_value *between, jj_value *out);

#endif
