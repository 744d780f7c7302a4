/* test_onnx_invalid.c — ONNX models that break the standard's rules are refused, with the name of what is wrong.
 *
 * Attributes: every attribute of every operator that the import has (onnx_attributes.c) is given as another kind,
 * outside its values, twice, misspelled and not at all. Inputs: a table of nodes over constants, some right and some
 * wrong. The models are written here, a field at a time. */
#include "test_support.h"

#include "onnx/export.h"
#include "onnx/model.h"
#include "trunnion/onnx.h"

/* ---- writing models ---------------------------------------------------------------------------------------------- */

static void put_name(tn_str *s, int field, const char *text) { onnx_put_text(s, field, text); }

/* TensorProto: `count` numbers that are all `fill`. */
static tn_str tensor_of(int type, const int64_t *shape, int rank, double fill) {
    tn_str t = {0}, raw = {0};
    int64_t count = 1;
    for (int d = 0; d < rank; d++) {
        onnx_put_int(&t, 1, shape[d]);
        count *= shape[d];
    }
    onnx_put_int(&t, 2, type);
    for (int64_t i = 0; i < count; i++) {
        float f = (float)fill;
        int64_t wide = (int64_t)fill;
        int32_t word = (int32_t)fill;
        int8_t byte = (int8_t)(uint8_t)(int)fill;
        switch (type) {
        case ONNX_FLOAT: tn_str_addn(&raw, (const char *)&f, sizeof f); break;
        case ONNX_INT64: tn_str_addn(&raw, (const char *)&wide, sizeof wide); break;
        case ONNX_INT32: tn_str_addn(&raw, (const char *)&word, sizeof word); break;
        default: tn_str_addn(&raw, (const char *)&byte, sizeof byte);
        }
    }
    onnx_put_message(&t, 9, &raw);
    tn_str_free(&raw);
    return t;
}

static void add_constant(tn_str *graph, const char *name, int type, const int64_t *shape, int rank, double fill) {
    tn_str t = tensor_of(type, shape, rank, fill);
    put_name(&t, 8, name);
    onnx_put_message(graph, 5, &t);
    tn_str_free(&t);
}

static void add_port(tn_str *graph, int field, const char *name) {
    tn_str port = {0};
    put_name(&port, 1, name);
    onnx_put_message(graph, field, &port);
    tn_str_free(&port);
}

/* The body of a Loop that returns its input `condition` as the condition; else a branch with one result. */
static tn_str graph_of(bool body, const char *condition) {
    tn_str g = {0};
    if (body) {
        add_port(&g, 11, "step");
        add_port(&g, 11, "go_on");
        add_port(&g, 12, condition);
    } else {
        add_constant(&g, "t", ONNX_FLOAT, NULL, 0, 1);
        add_port(&g, 12, "t");
    }
    return g;
}

/* An attribute without a value: name and kind. */
static tn_str begin_attribute(const char *name, size_t size, int kind) {
    tn_str a = {0};
    onnx_put_bytes(&a, 1, name, size);
    onnx_put_int(&a, 20, kind);
    return a;
}

/* The value of an attribute of `kind`, from text: a number, a string, or several with commas. */
static void put_value(tn_str *a, int kind, const char *text, size_t size) {
    static const int fields[] = {
        [ONNX_KIND_FLOAT] = 2,   [ONNX_KIND_INT] = 3,     [ONNX_KIND_STRING] = 4, [ONNX_KIND_TENSOR] = 5,
        [ONNX_KIND_GRAPH] = 6,   [ONNX_KIND_FLOATS] = 7,  [ONNX_KIND_INTS] = 8,   [ONNX_KIND_STRINGS] = 9,
        [ONNX_KIND_GRAPHS] = 11, [ONNX_KIND_SPARSE] = 22, [ONNX_KIND_TYPE] = 14};
    tn_str part = {0};
    int field = fields[kind];
    if (kind == ONNX_KIND_TENSOR) {
        part = tensor_of(ONNX_FLOAT, NULL, 0, 1);
        onnx_put_message(a, field, &part);
    } else if (kind == ONNX_KIND_GRAPH || kind == ONNX_KIND_GRAPHS) {
        bool body = size > 1;
        char condition[16];
        snprintf(condition, sizeof condition, "%.*s", (int)size, text);
        part = graph_of(body, condition);
        onnx_put_message(a, field, &part);
    } else if (kind == ONNX_KIND_SPARSE) {
        tn_str values = tensor_of(ONNX_FLOAT, (int64_t[]){0}, 1, 1),
               indices = tensor_of(ONNX_INT64, (int64_t[]){0}, 1, 0);
        put_name(&values, 8, "values");
        onnx_put_message(&part, 1, &values);
        onnx_put_message(&part, 2, &indices);
        onnx_put_int(&part, 3, 4);
        onnx_put_message(a, field, &part);
        tn_str_free(&values);
        tn_str_free(&indices);
    } else if (kind == ONNX_KIND_TYPE) {
        onnx_put_text(a, field, "");
    } else {
        const char *end = text + size;
        bool list = kind == ONNX_KIND_FLOATS || kind == ONNX_KIND_INTS || kind == ONNX_KIND_STRINGS;
        for (const char *at = text; at <= end;) {
            const char *comma = list ? memchr(at, ',', (size_t)(end - at)) : NULL;
            size_t n = (size_t)((comma ? comma : end) - at);
            char number[64];
            snprintf(number, sizeof number, "%.*s", (int)n, at);
            if (kind == ONNX_KIND_STRING || kind == ONNX_KIND_STRINGS)
                onnx_put_bytes(a, field, at, n);
            else if (kind == ONNX_KIND_FLOAT || kind == ONNX_KIND_FLOATS)
                onnx_put_float(a, field, strtof(number, NULL));
            else
                onnx_put_int(a, field, strtoll(number, NULL, 10));
            at = (comma ? comma : end) + 1;
        }
    }
    tn_str_free(&part);
}

static void add_attribute(tn_str *node, const char *name, size_t name_size, int kind, const char *text, size_t size) {
    tn_str a = begin_attribute(name, name_size, kind);
    put_value(&a, kind, text, size);
    onnx_put_message(node, 5, &a);
    tn_str_free(&a);
}

/* Opens a model of this graph. */
static tn_status open_graph(tn_str *graph, const char *domain, int opset, tn_onnx **out) {
    tn_str model = {0}, import = {0};
    onnx_put_int(&model, 1, 10);
    put_name(&import, 1, domain);
    onnx_put_int(&import, 2, opset);
    onnx_put_message(&model, 8, &import);
    if (*domain) { /* for what an operator of another domain is made of */
        put_name(&import, 1, "");
        onnx_put_int(&import, 2, 21);
        onnx_put_message(&model, 8, &import);
    }
    onnx_put_message(&model, 7, graph);
    tn_status status = tn_onnx_open_memory(tn_str_text(&model), model.length, NULL, out);
    tn_str_free(&model);
    tn_str_free(&import);
    return status;
}

/* Opens a model of this node; frees the node. */
static tn_status open_node(tn_str *node, const char *domain, int opset) {
    tn_str graph = {0};
    tn_onnx *m = NULL;
    onnx_put_message(&graph, 1, node);
    tn_status status = open_graph(&graph, domain, opset, &m);
    tn_onnx_close(m);
    tn_str_free(&graph);
    tn_str_free(node);
    return status;
}

/* ---- attributes -------------------------------------------------------------------------------------------------- */

/* A rule of the table, and where it stands. */
typedef struct place {
    const char *domain;
    const onnx_attribute_row *row;
    char name[64]; /* one of the row's */
    onnx_rule rule;
} place;

static const char *named(const place *p) {
    static char text[160];
    snprintf(text, sizeof text, "%s %d, %.*s", p->name, p->row->since, (int)p->rule.name.size, p->rule.name.at);
    return text;
}

/* A value that the rule allows; a string without a terminator. */
static onnx_text allowed_value(const onnx_rule *r) {
    if (!r->allowed.size) return (onnx_text){"1", 1};
    onnx_text first = {r->allowed.at, strcspn(r->allowed.at, "|. ")};
    if (first.size) return first;
    return (onnx_text){r->allowed.at + 1, strcspn(r->allowed.at + 1, "|. ")};
}

static tn_str begin_node(const place *p) {
    tn_str node = {0};
    put_name(&node, 2, "y");
    put_name(&node, 3, "the_node");
    put_name(&node, 4, p->name);
    put_name(&node, 7, p->domain);
    return node;
}

/* The attributes that the operator must have, but not `but`. */
static void add_required(tn_str *node, const place *p, const onnx_rule *but) {
    const char *at = p->row->attributes;
    onnx_rule r;
    while (onnx_next_rule(&at, &r)) {
        if (!r.required || (but && onnx_text_equal(r.name, but->name))) continue;
        onnx_text v = allowed_value(&r);
        add_attribute(node, r.name.at, r.name.size, r.kind, v.at, v.size);
    }
}

/* Calls check for each attribute of each operator; returns how many there are. */
static int each_attribute(void (*check)(const place *p)) {
    int count = 0;
    for (int t = 0; t < onnx_attribute_table_count; t++)
        for (const onnx_attribute_row *row = onnx_attribute_tables[t].rows; row->names; row++)
            for (const char *name = row->names; *name; name += strcspn(name, " "), name += *name == ' ') {
                const char *at = row->attributes;
                place p = {.domain = onnx_attribute_tables[t].domain, .row = row};
                snprintf(p.name, sizeof p.name, "%.*s", (int)strcspn(name, " "), name);
                for (; onnx_next_rule(&at, &p.rule); count++)
                    check(&p);
            }
    return count;
}

static void assert_refused(const place *p, tn_status status, tn_status expected, const char *with) {
    if (status != expected) fail_msg("%s: %s is %s (%s)", named(p), with, tn_status_name(status), tn_error());
    char quoted[128];
    snprintf(quoted, sizeof quoted, "attribute '%.*s'", (int)p->rule.name.size, p->rule.name.at);
    assert_text_has(tn_error(), quoted);
    assert_text_has(tn_error(), "the_node");
}

/* The library alone has no decoder, and so not this operator. */
static bool is_skipped(const place *p) { return strcmp(p->name, "ImageDecoder") == 0; }

static void check_right(const place *p) {
    if (is_skipped(p)) return;
    onnx_text v = allowed_value(&p->rule);
    tn_str node = begin_node(p);
    add_required(&node, p, &p->rule);
    add_attribute(&node, p->rule.name.at, p->rule.name.size, p->rule.kind, v.at, v.size);
    tn_status status = open_node(&node, p->domain, p->row->since);
    if (status != TN_OK) fail_msg("%s: %s", named(p), tn_error());
}

static void every_attribute_with_an_allowed_value_is_taken(void **state) {
    (void)state;
    assert_true(each_attribute(check_right) > 700);
}

static void check_kinds(const place *p) {
    static const int kinds[] = {ONNX_KIND_FLOAT,  ONNX_KIND_INT,    ONNX_KIND_STRING, ONNX_KIND_TENSOR,
                                ONNX_KIND_GRAPH,  ONNX_KIND_FLOATS, ONNX_KIND_INTS,   ONNX_KIND_STRINGS,
                                ONNX_KIND_GRAPHS, ONNX_KIND_SPARSE, ONNX_KIND_TYPE};
    for (size_t k = 0; k < TN_COUNT(kinds) && !is_skipped(p); k++) {
        if (kinds[k] == p->rule.kind) continue;
        tn_str node = begin_node(p);
        add_required(&node, p, &p->rule);
        add_attribute(&node, p->rule.name.at, p->rule.name.size, kinds[k], "1", 1);
        assert_refused(p, open_node(&node, p->domain, p->row->since), TN_ERR_FORMAT, "another kind");
    }
}

static void every_attribute_of_another_kind_is_refused(void **state) {
    (void)state;
    each_attribute(check_kinds);
}

static void refuse_value(const place *p, const char *value) {
    char what[80];
    tn_str node = begin_node(p);
    add_required(&node, p, &p->rule);
    add_attribute(&node, p->rule.name.at, p->rule.name.size, p->rule.kind, value, strlen(value));
    snprintf(what, sizeof what, "value %s", value);
    assert_refused(p, open_node(&node, p->domain, p->row->since), TN_ERR_UNSUPPORTED, what);
}

static void check_values(const place *p) {
    if (!p->rule.allowed.size || is_skipped(p)) return;
    bool text = p->rule.kind == ONNX_KIND_STRING || p->rule.kind == ONNX_KIND_STRINGS;
    bool open = p->rule.allowed.at[p->rule.allowed.size - 1] == '.'; /* a range without an end */
    if (text) {
        refuse_value(p, "bogus");
        refuse_value(p, "none of these");
        return;
    }
    refuse_value(p, "-9223372036854775807");
    refuse_value(p, "-2");
    if (!open) refuse_value(p, "9223372036854775807");
    if (!open) refuse_value(p, "29");
    if (p->rule.kind == ONNX_KIND_FLOAT) refuse_value(p, "nan");
}

static void every_value_outside_the_allowed_ones_is_refused(void **state) {
    (void)state;
    each_attribute(check_values);
}

static void check_presence(const place *p) {
    if (is_skipped(p)) return;
    onnx_text v = allowed_value(&p->rule);
    for (int times = p->rule.required ? 0 : 2; times <= 2; times += 2) {
        tn_str node = begin_node(p);
        add_required(&node, p, &p->rule);
        for (int i = 0; i < times; i++)
            add_attribute(&node, p->rule.name.at, p->rule.name.size, p->rule.kind, v.at, v.size);
        assert_refused(p, open_node(&node, p->domain, p->row->since), TN_ERR_FORMAT, times ? "twice" : "missing");
    }
    tn_str node = begin_node(p);
    place misspelled = *p;
    char name[64];
    snprintf(name, sizeof name, "%.*ss", (int)p->rule.name.size, p->rule.name.at);
    misspelled.rule.name = (onnx_text){name, strlen(name)};
    const char *at = p->row->attributes;
    for (onnx_rule r; onnx_next_rule(&at, &r);)
        if (onnx_text_equal(r.name, misspelled.rule.name)) return tn_str_free(&node);
    add_attribute(&node, name, strlen(name), p->rule.kind, v.at, v.size);
    assert_refused(&misspelled, open_node(&node, p->domain, p->row->since), TN_ERR_FORMAT, "misspelled");
}

static void a_missing_a_twofold_and_a_misspelled_attribute_is_refused(void **state) {
    (void)state;
    each_attribute(check_presence);
}

static void an_operator_without_attributes_takes_none_but_notes(void **state) {
    (void)state;
    static const onnx_attribute_row sin_row = {"Sin", 7, ""};
    place p = {"", &sin_row, "Sin", {.name = {"axis", 4}}};
    tn_str node = begin_node(&p);
    add_attribute(&node, "_note", 5, ONNX_KIND_INT, "1", 1);
    assert_ok(open_node(&node, "", 13));
    node = begin_node(&p);
    add_attribute(&node, "axis", 4, ONNX_KIND_INT, "1", 1);
    assert_refused(&p, open_node(&node, "", 13), TN_ERR_FORMAT, "axis");
}

/* Says that it is an integer, but holds a string; is of a kind that there is not. */
static void an_attribute_that_contradicts_itself_is_refused(void **state) {
    (void)state;
    static const onnx_attribute_row row = {"Softmax", 13, "axis:i"};
    static const int kinds[] = {ONNX_KIND_INT, 0x101, 99};
    place p = {"", &row, "Softmax", {.name = {"axis", 4}}};
    for (size_t k = 0; k < TN_COUNT(kinds); k++) {
        tn_str node = begin_node(&p), a = begin_attribute("axis", 4, kinds[k]);
        if (k == 0)
            onnx_put_text(&a, 4, "1");
        else
            onnx_put_int(&a, 3, 1);
        onnx_put_message(&node, 5, &a);
        tn_str_free(&a);
        assert_int_equal(open_node(&node, "", 13), TN_ERR_FORMAT);
        assert_text_has(tn_error(), "attribute 'axis'");
    }
}

/* ---- references of model functions ------------------------------------------------------------------------------- */

/* A function of the model whose body is Trilu with upper = @up, called with `kind` and `value` as up, or without. */
static tn_status run_function(int kind, const char *value) {
    tn_str model = {0}, import = {0}, graph = {0}, node = {0}, function = {0}, inner = {0}, a = {0};
    onnx_put_int(&model, 1, 10);
    for (int i = 0; i < 2; i++) {
        put_name(&import, 1, i ? "own" : "");
        onnx_put_int(&import, 2, i ? 1 : 18);
        onnx_put_message(&model, 8, &import);
    }
    put_name(&inner, 1, "u");
    put_name(&inner, 2, "v");
    put_name(&inner, 4, "Trilu");
    a = begin_attribute("upper", 5, ONNX_KIND_INT);
    put_name(&a, 21, "up");
    onnx_put_message(&inner, 5, &a);
    put_name(&function, 1, "Fn");
    put_name(&function, 4, "u");
    put_name(&function, 5, "v");
    put_name(&function, 6, "up");
    onnx_put_message(&function, 7, &inner);
    put_name(&import, 1, "");
    onnx_put_int(&import, 2, 18);
    onnx_put_message(&function, 9, &import);
    put_name(&function, 10, "own");
    onnx_put_message(&model, 25, &function);
    put_name(&node, 1, "x");
    put_name(&node, 2, "y");
    put_name(&node, 4, "Fn");
    put_name(&node, 7, "own");
    if (kind) add_attribute(&node, "up", 2, kind, value, strlen(value));
    onnx_put_message(&graph, 1, &node);
    add_constant(&graph, "x", ONNX_FLOAT, (int64_t[]){2, 3}, 2, 1);
    add_port(&graph, 12, "y");
    onnx_put_message(&model, 7, &graph);
    tn_onnx *m = NULL;
    tn_onnx_value *y = NULL;
    tn_status status = tn_onnx_open_memory(tn_str_text(&model), model.length, NULL, &m);
    if (status == TN_OK) status = tn_onnx_run(m, NULL, &y);
    tn_onnx_value_free(y);
    tn_onnx_close(m);
    tn_str *all[] = {&model, &import, &graph, &node, &function, &inner, &a};
    for (size_t i = 0; i < TN_COUNT(all); i++)
        tn_str_free(all[i]);
    return status;
}

static void a_reference_to_a_wrong_attribute_is_refused(void **state) {
    (void)state;
    assert_ok(run_function(ONNX_KIND_INT, "1"));
    assert_ok(run_function(0, ""));
    assert_int_equal(run_function(ONNX_KIND_INT, "7"), TN_ERR_UNSUPPORTED);
    assert_text_has(tn_error(), "attribute 'upper' is 7");
    assert_int_equal(run_function(ONNX_KIND_STRING, "1"), TN_ERR_FORMAT);
    assert_text_has(tn_error(), "attribute 'upper' must be an integer, not a string");
}

/* ---- inputs ------------------------------------------------------------------------------------------------------ */

enum { MOST_INPUTS = 12 };

typedef struct input {
    int type; /* 0: left out */
    int rank;
    int64_t shape[4];
    double fill; /* every element */
} input;

/* A node over constants. attributes: as "name:kind=value", kinds as in onnx_attributes.c; expected: NULL where it runs.
 * */
typedef struct one_node {
    const char *op, *domain;
    int outputs;
    const char *attributes, *expected;
    input in[MOST_INPUTS];
} one_node;

#define F(rank, fill, ...) \
    { ONNX_FLOAT, rank, {__VA_ARGS__}, fill }
#define I64(rank, fill, ...) \
    { ONNX_INT64, rank, {__VA_ARGS__}, fill }
#define I32(rank, fill, ...) \
    { ONNX_INT32, rank, {__VA_ARGS__}, fill }
#define U8(rank, fill, ...) \
    { ONNX_UINT8, rank, {__VA_ARGS__}, fill }
#define I8(rank, fill, ...) \
    { ONNX_INT8, rank, {__VA_ARGS__}, fill }
#define BOOL(fill) \
    { ONNX_BOOL, 0, {0}, fill }
#define NONE \
    { 0 }
#define MS "com.microsoft"
#define ML "ai.onnx.ml"
/* 4 steps, batch 1, 3 inputs, 2 hidden units; gates of as many. */
#define NET(dirs, gates) F(3, 0.1, 4, 1, 3), F(3, 0.1, dirs, 2 * (gates), 3), F(3, 0.1, dirs, 2 * (gates), 2)
#define NET_OF_BYTES(dirs)                                                                                         \
    F(3, 0.1, 4, 1, 3), I8(3, 1, dirs, 3, 8), I8(3, 1, dirs, 2, 8), NONE, NONE, NONE, NONE, NONE, F(1, 0.1, dirs), \
        I8(1, 0, dirs), F(1, 0.1, dirs), I8(1, 0, dirs)
#define GEMM_OF_BYTES U8(2, 3, 2, 3), F(0, 0.5, 0), U8(0, 1, 0), I8(2, 2, 3, 4), F(0, 0.5, 0), I8(0, 1, 0)

static const one_node nodes[] = {
    {"LSTM", "", 1, "hidden_size:i=2", NULL, {NET(1, 4)}},
    {"LSTM", "", 1, "hidden_size:i=5", "hidden_size is 5", {NET(1, 4)}},
    {"LSTM", "", 1, "hidden_size:i=2 direction:s=forward", "input 1 is [2, 8, 3]", {NET(2, 4)}},
    {"LSTM", "", 1, "hidden_size:i=2 direction:s=bidirectional", "input 1 is [1, 8, 3]", {NET(1, 4)}},
    {"LSTM", "", 1, "direction:s=bidirectional", NULL, {NET(2, 4)}},
    {"LSTM", "", 1, "activations:S=Tanh", "1 activations, but 3 are required", {NET(1, 4)}},
    {"LSTM", "", 1, "", "input 3 is [1, 8]", {NET(1, 4), F(2, 0, 1, 8)}},
    {"LSTM", "", 1, "", NULL, {NET(1, 4), NONE, I32(1, 4, 1)}},
    {"LSTM", "", 1, "", "out of bounds: valid indices are 0 to 4", {NET(1, 4), NONE, I32(1, 5, 1)}},
    {"LSTM", "", 1, "", "input 7 is [1, 4]", {NET(1, 4), NONE, NONE, NONE, NONE, F(2, 0, 1, 4)}},
    {"GRU", "", 1, "hidden_size:i=3", "hidden_size is 3", {NET(1, 3)}},
    {"GRU", "", 1, "", "input 1 is [2, 6, 3]", {NET(2, 3)}},
    {"RNN", "", 1, "hidden_size:i=3", "hidden_size is 3", {NET(1, 1)}},
    {"RNN", "", 1, "", "input 5 is [1, 2, 2]", {NET(1, 1), NONE, NONE, F(3, 0, 1, 2, 2)}},
    {"DynamicQuantizeLSTM", MS, 1, "hidden_size:i=2", NULL, {NET_OF_BYTES(1)}},
    {"DynamicQuantizeLSTM", MS, 1, "hidden_size:i=4", "hidden_size is 4", {NET_OF_BYTES(1)}},
    {"DynamicQuantizeLSTM", MS, 1, "direction:s=reverse", "dimension 1", {NET_OF_BYTES(2)}},
    {"DynamicQuantizeLSTM", MS, 1, "direction:s=bidirectional", "dimension 2", {NET_OF_BYTES(1)}},
    {"DynamicQuantizeLSTM", MS, 1, "direction:s=bidirectional", NULL, {NET_OF_BYTES(2)}},

    {"QGemm", MS, 1, "", NULL, {GEMM_OF_BYTES}},
    {"QGemm", MS, 1, "", NULL, {GEMM_OF_BYTES, I32(1, 5, 4), F(0, 0.5, 0), U8(0, 3, 0)}},
    {"QGemm", MS, 1, "", "scale 0 (input 7) is 0", {GEMM_OF_BYTES, NONE, F(0, 0, 0), U8(0, 3, 0)}},
    {"QGemm", MS, 1, "", "input 0 is UINT8 but its zero point INT8", {GEMM_OF_BYTES, NONE, F(0, 1, 0), I8(0, 3, 0)}},
    {"QGemm", MS, 1, "", "requires a scale", {GEMM_OF_BYTES, NONE, NONE, U8(0, 3, 0)}},
    {"QGemm", MS, 1, "", "input 6 must be INT32", {GEMM_OF_BYTES, F(1, 5, 4)}},
    {"QGemm",
     MS,
     1,
     "",
     "input 0 is UINT8 but its zero point INT8",
     {U8(2, 3, 2, 3), F(0, 0.5, 0), I8(0, 1, 0), I8(2, 2, 3, 4), F(0, 0.5, 0), I8(0, 1, 0)}},
    {"QGemm",
     MS,
     1,
     "",
     "input 3 is INT8 but its zero point FLOAT",
     {U8(2, 3, 2, 3), F(0, 0.5, 0), U8(0, 1, 0), I8(2, 2, 3, 4), F(0, 0.5, 0), F(0, 1, 0)}},
    {"QGemm",
     MS,
     1,
     "",
     "scale 0 (input 4) is inf",
     {U8(2, 3, 2, 3), F(0, 0.5, 0), U8(0, 1, 0), I8(2, 2, 3, 4), F(0, 1e39, 0), I8(0, 1, 0)}},
    {"QuantizeLinear", "", 1, "", NULL, {F(1, 2, 3), F(0, 0.5, 0), U8(0, 1, 0)}},
    {"QuantizeLinear", "", 1, "", "is 0; it must be finite and not 0", {F(1, 2, 3), F(0, 0, 0), U8(0, 1, 0)}},
    {"QuantizeLinear", "", 1, "", "cannot quantize to FLOAT", {F(1, 2, 3), F(0, 1, 0), F(0, 1, 0)}},
    {"QuantizeLinear", "", 1, "output_dtype:i=7", "quantize to INT64", {F(1, 2, 3), F(0, 1, 0)}},
    {"DequantizeLinear", "", 1, "", NULL, {U8(1, 2, 3), F(0, 0.5, 0), U8(0, 1, 0)}},
    {"DequantizeLinear", "", 1, "", "its zero point INT8", {U8(1, 2, 3), F(0, 0.5, 0), I8(0, 1, 0)}},
    {"DequantizeLinear", "", 1, "", "not a quantized type", {F(1, 2, 3), F(0, 0.5, 0)}},
    {"MatMulInteger", "", 1, "", NULL, {U8(2, 2, 3, 3), U8(2, 2, 3, 3), U8(0, 1, 0), U8(0, 1, 0)}},
    {"MatMulInteger", "", 1, "", "its zero point INT8", {U8(2, 2, 3, 3), U8(2, 2, 3, 3), U8(0, 1, 0), I8(0, 1, 0)}},
    {"QLinearMatMul",
     "",
     1,
     "",
     "its zero point INT8",
     {U8(2, 2, 3, 3), F(0, 1, 0), I8(0, 1, 0), U8(2, 2, 3, 3), F(0, 1, 0), U8(0, 1, 0), F(0, 1, 0), U8(0, 1, 0)}},
    {"QLinearMatMul",
     "",
     1,
     "",
     "scale 0 (input 6) is 0",
     {U8(2, 2, 3, 3), F(0, 1, 0), U8(0, 1, 0), U8(2, 2, 3, 3), F(0, 1, 0), U8(0, 1, 0), F(0, 0, 0), U8(0, 1, 0)}},

    {"Loop", "", 0, "body:g=go_on", NULL, {I64(0, 3, 0), BOOL(1)}},
    {"Loop", "", 0, "body:g=go_on", "input 1 must be a tensor of BOOL, not FLOAT", {I64(0, 3, 0), F(0, 1, 0)}},
    {"Loop", "", 0, "body:g=go_on", "input 0 must be a tensor of INT64, not FLOAT", {F(0, 3, 0), BOOL(1)}},
    {"Loop", "", 0, "body:g=step", "must be a tensor of BOOL, not INT64", {I64(0, 3, 0), BOOL(1)}},
    {"Loop", "", 0, "body:g=go_on", "trip count is 4611686018427387904", {I64(0, 0x1p62, 0), NONE}},
    {"Loop", "", 0, "body:g=go_on", "is empty", {I64(1, 3, 0), BOOL(1)}},
    {"Loop", "", 0, "body:g=go_on", "it needs 3 inputs", {I64(0, 3, 0), BOOL(1), F(0, 1, 0)}},
    {"If", "", 1, "then_branch:g= else_branch:g=", NULL, {BOOL(1)}},
    {"If", "", 1, "then_branch:g= else_branch:g=", "input 0 must be a tensor of BOOL, not FLOAT", {F(0, 1, 0)}},

    {"Gather", "", 1, "", NULL, {F(2, 1, 3, 2), I64(1, -3, 4)}},
    {"Gather",
     "",
     1,
     "",
     "index 3 (element 0 of input 1) is outside dimension 0 of extent 3",
     {F(2, 1, 3, 2), I64(1, 3, 4)}},
    {"Gather", "", 1, "axis:i=1", "index -3 (element 0", {F(2, 1, 3, 2), I64(1, -3, 4)}},
    {"Gather", "", 1, "", "index 9 is out of range for 3", {F(2, 1, 3, 2), I64(0, 9, 0)}},
    {"GatherElements", "", 1, "", NULL, {F(2, 1, 3, 2), I64(2, -3, 1, 2)}},
    {"GatherElements", "", 1, "", "index 3 (element 0 of input 1)", {F(2, 1, 3, 2), I64(2, 3, 1, 2)}},
    {"GatherND", "", 1, "", NULL, {F(2, 1, 3, 2), I64(2, 1, 4, 2)}},
    {"GatherND",
     "",
     1,
     "",
     "index 2 (element 1 of input 1) is outside dimension 1 of extent 2",
     {F(2, 1, 3, 2), I64(2, 2, 4, 2)}},
    {"GatherND",
     "",
     1,
     "batch_dims:i=1",
     "index 2 (element 0 of input 1) is outside dimension 1 of extent 2",
     {F(2, 1, 3, 2), I64(2, 2, 3, 1)}},
    {"ScatterND", "", 1, "", NULL, {F(2, 1, 3, 2), I64(2, -1, 1, 2), F(1, 1, 1)}},
    {"ScatterND", "", 1, "", "index -4 (element 0 of input 1)", {F(2, 1, 3, 2), I64(2, -4, 1, 2), F(1, 1, 1)}},
    {"ScatterElements", "", 1, "", "index 3 (element 0", {F(2, 1, 3, 2), I64(2, 3, 1, 2), F(2, 1, 1, 2)}},

    {"Split", "", 2, "num_outputs:i=2", NULL, {F(1, 1, 4)}},
    {"Split", "", 2, "num_outputs:i=3", "2 outputs, but must be split into 3", {F(1, 1, 4)}},
    {"Split", "", 2, "", "its outputs have 2 of 4 elements", {F(1, 1, 4), I64(1, 1, 2)}},
    {"Transpose", "", 1, "perm:I=1,0", NULL, {F(2, 1, 3, 2)}},
    {"Transpose", "", 1, "perm:I=0", "permute", {F(2, 1, 3, 2)}},
    {"TfIdfVectorizer",
     "",
     1,
     "max_gram_length:i=1 max_skip_count:i=0 min_gram_length:i=1 mode:s=TF ngram_counts:I=0 ngram_indexes:I=0,1 "
     "pool_int64s:I=5,6",
     NULL,
     {I64(1, 5, 3)}},
    {"TfIdfVectorizer",
     "",
     1,
     "max_gram_length:i=1 max_skip_count:i=0 min_gram_length:i=1 mode:s=TF ngram_counts:I=0 ngram_indexes:I=0,1,2 "
     "pool_int64s:I=5,6",
     "3 ngram_indexes for 2 n-grams",
     {I64(1, 5, 3)}},
    {"TfIdfVectorizer",
     "",
     1,
     "max_gram_length:i=1 max_skip_count:i=0 min_gram_length:i=2 mode:s=TF ngram_counts:I=0 ngram_indexes:I=0,1 "
     "pool_int64s:I=5,6",
     "n-grams of 2 to 1 words",
     {I64(1, 5, 3)}},
    {"TfIdfVectorizer",
     "",
     1,
     "max_gram_length:i=1 max_skip_count:i=0 min_gram_length:i=1 mode:s=IDF ngram_counts:I=0 ngram_indexes:I=0,1 "
     "pool_int64s:I=5,6 weights:F=1",
     "1 weights for 2 n-grams",
     {I64(1, 5, 3)}},
};

/* "name:kind=value …", each added to the node. */
static void add_attributes(tn_str *node, const char *text) {
    static const char letters[] = ".fistgFIS";
    while (*text) {
        size_t name = strcspn(text, ":"), value = strcspn(text + name + 3, " ");
        int kind = (int)(strchr(letters, text[name + 1]) - letters);
        add_attribute(node, text, name, kind, text + name + 3, value);
        text += name + 3 + value;
        text += *text == ' ';
    }
}

static tn_status run_one(const one_node *n) {
    tn_str graph = {0}, node = {0};
    tn_onnx *m = NULL;
    tn_onnx_value *out[4] = {NULL};
    int last = MOST_INPUTS;
    while (last > 0 && !n->in[last - 1].type)
        last--;
    for (int i = 0; i < last; i++) {
        char name[16];
        const input *in = &n->in[i];
        snprintf(name, sizeof name, "x%d", i);
        put_name(&node, 1, in->type ? name : "");
        if (in->type) add_constant(&graph, name, in->type, in->shape, in->rank, in->fill);
    }
    for (int k = 0; k < n->outputs; k++) {
        char name[16];
        snprintf(name, sizeof name, "y%d", k);
        put_name(&node, 2, name);
        add_port(&graph, 12, name);
    }
    put_name(&node, 3, "the_node");
    put_name(&node, 4, n->op);
    put_name(&node, 7, n->domain);
    add_attributes(&node, n->attributes);
    onnx_put_message(&graph, 1, &node);
    tn_status status = open_graph(&graph, n->domain, *n->domain ? 1 : 21, &m);
    if (status == TN_OK) status = tn_onnx_run(m, NULL, out);
    for (int k = 0; k < n->outputs; k++) {
        tn_tensor *t = out[k] && status == TN_OK ? tn_onnx_value_get(out[k]) : NULL;
        if (t) assert_ok(tn_eval(&t, 1));
        tn_onnx_value_free(out[k]);
    }
    tn_onnx_close(m);
    tn_str_free(&graph);
    tn_str_free(&node);
    return status;
}

static void a_node_whose_inputs_and_attributes_disagree_is_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < TN_COUNT(nodes); i++) {
        const one_node *n = &nodes[i];
        tn_status status = run_one(n);
        if (n->expected && status == TN_OK) fail_msg("%s (%s) runs; expected: %s", n->op, n->attributes, n->expected);
        if (!n->expected && status != TN_OK) fail_msg("%s (%s): %s", n->op, n->attributes, tn_error());
        if (n->expected) assert_text_has(tn_error(), n->expected);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_attribute_with_an_allowed_value_is_taken),
        cmocka_unit_test(every_attribute_of_another_kind_is_refused),
        cmocka_unit_test(every_value_outside_the_allowed_ones_is_refused),
        cmocka_unit_test(a_missing_a_twofold_and_a_misspelled_attribute_is_refused),
        cmocka_unit_test(an_operator_without_attributes_takes_none_but_notes),
        cmocka_unit_test(an_attribute_that_contradicts_itself_is_refused),
        cmocka_unit_test(a_reference_to_a_wrong_attribute_is_refused),
        cmocka_unit_test(a_node_whose_inputs_and_attributes_disagree_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
