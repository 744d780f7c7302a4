/* pickle.c — reads a pickle without running it.
 *
 * A pickle is a program for a stack machine that makes values and calls functions. Here it can make numbers, texts and
 * containers; of functions it may name those in the table below, and what they would do is done here: a tensor becomes
 * a row of numbers that say where its elements lie. Any other name is refused, with the name. Every opcode makes one
 * node and a few cells at most, so memory stays in proportion to the pickle. */
#include "formats/torch_file.h"

#include <string.h>

enum {
    MAX_NODES = 1 << 24,
    MAX_STORAGES = 1 << 18,
    MAX_TENSORS = 1 << 18,
    MAX_MARKS = 1 << 10, /* marks that are open at once: depth of containers on their way */
    NO_NODE = 0xffffffff
};

const tn_pickle_type tn_pickle_types[] = {
    {"FloatStorage", "float32", TN_F32, 4},
    {"DoubleStorage", "float64", TN_F64, 8},
    {"HalfStorage", "float16", TN_F16, 2},
    {"BFloat16Storage", "bfloat16", TN_BF16, 2},
    {"LongStorage", "int64", TN_I64, 8},
    {"IntStorage", "int32", TN_I32, 4},
    {"ShortStorage", "int16", TN_I16, 2},
    {"CharStorage", "int8", TN_I8, 1},
    {"ByteStorage", "uint8", TN_U8, 1},
    {"BoolStorage", "bool", TN_BOOL, 1},
    {"", "uint16", TN_U16, 2},
    {"", "uint32", TN_U32, 4},
    {"", "uint64", TN_U64, 8},
    {"", "float8_e4m3fn", TN_DTYPE_COUNT, 1},
    {"", "float8_e5m2", TN_DTYPE_COUNT, 1},
    {"ComplexFloatStorage", "complex64", TN_DTYPE_COUNT, 8},
    {"ComplexDoubleStorage", "complex128", TN_DTYPE_COUNT, 16},
    {"UntypedStorage", "", TN_U8, 1},
};

typedef struct machine {
    const uint8_t *bytes;
    size_t size, at, base;
    tn_pickle_values *v;
    uint32_t *stack, *memo;
    size_t depth, stack_capacity, memo_count, memo_capacity;
    size_t marks[MAX_MARKS];
    int mark_count;
    bool stopped;
} machine;

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static tn_status fault(const machine *m, const char *what) {
    return tn_fail(TN_ERR_FORMAT, "byte %zu: %s", m->base + m->at, what);
}

static tn_status take_pickle(machine *m, size_t n, const uint8_t **out) {
    if (n > m->size - m->at) return fault(m, "the pickle ends within an instruction");
    *out = m->bytes + m->at;
    m->at += n;
    return TN_OK;
}

static tn_status take_number(machine *m, int bytes, uint64_t *out) {
    const uint8_t *p;
    TRY(take_pickle(m, (size_t)bytes, &p));
    *out = 0;
    for (int i = bytes; i > 0; i--)
        *out = *out << 8 | p[i - 1];
    return TN_OK;
}

/* Up to the end of the line. */
static tn_status take_line(machine *m, const char **text, size_t *length) {
    const uint8_t *begin = m->bytes + m->at, *end = memchr(begin, '\n', m->size - m->at);
    if (!end) return fault(m, "the pickle ends within a name");
    *text = (const char *)begin;
    *length = (size_t)(end - begin);
    m->at += *length + 1;
    return TN_OK;
}

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

static tn_status push_pickle(machine *m, uint32_t node) {
    TRY(tn_mem_reserve(&m->stack, &m->stack_capacity, m->depth + 1, sizeof *m->stack));
    m->stack[m->depth++] = node;
    return TN_OK;
}

static tn_status push_new(machine *m, tn_pickle_node node) {
    tn_pickle_values *v = m->v;
    if (v->node_count >= MAX_NODES) return fault(m, "too many values");
    TRY(tn_mem_reserve(&v->nodes, &v->node_capacity, v->node_count + 1, sizeof *v->nodes));
    v->nodes[v->node_count] = node;
    return push_pickle(m, (uint32_t)v->node_count++);
}

static tn_status push_kind(machine *m, tn_pickle_kind kind, int64_t number) {
    return push_new(m, (tn_pickle_node){.kind = (uint8_t)kind, .number = number});
}

/* Nothing is taken from below the last mark. */
static tn_status pop(machine *m, uint32_t *out) {
    size_t floor = m->mark_count > 0 ? m->marks[m->mark_count - 1] : 0;
    if (m->depth <= floor) return fault(m, "the stack is empty");
    *out = m->stack[--m->depth];
    return TN_OK;
}

static tn_status top(const machine *m, tn_pickle_node **out) {
    if (m->depth == 0) return fault(m, "the stack is empty");
    *out = &m->v->nodes[m->stack[m->depth - 1]];
    return TN_OK;
}

static tn_status append_pickle(machine *m, uint32_t to, uint32_t node) {
    tn_pickle_values *v = m->v;
    if (v->cell_count >= 4 * (size_t)MAX_NODES) return fault(m, "too many values");
    TRY(tn_mem_reserve(&v->cells, &v->cell_capacity, v->cell_count + 2, sizeof *v->cells));
    if (v->cell_count == 0) v->cells[v->cell_count++] = (tn_pickle_cell){0};
    uint32_t cell = (uint32_t)v->cell_count++;
    v->cells[cell] = (tn_pickle_cell){node, 0};
    tn_pickle_node *n = &v->nodes[to];
    if (n->last) v->cells[n->last].next = cell;
    if (!n->first) n->first = cell;
    n->last = cell;
    return TN_OK;
}

/* A new container of what lies on the stack from `begin` on. */
static tn_status gather_pickle(machine *m, tn_pickle_kind kind, size_t begin) {
    size_t end = m->depth;
    TRY(push_kind(m, kind, 0));
    uint32_t made = m->stack[end];
    for (size_t i = begin; i < end; i++)
        TRY(append_pickle(m, made, m->stack[i]));
    m->depth = begin;
    return push_pickle(m, made);
}

static tn_status pop_mark(machine *m, size_t *begin) {
    if (m->mark_count == 0) return fault(m, "a mark is missing");
    *begin = m->marks[--m->mark_count];
    return TN_OK;
}

/* Adds what lies above `begin` to the container below it. */
static tn_status extend(machine *m, size_t begin, bool dict) {
    size_t floor = m->mark_count > 0 ? m->marks[m->mark_count - 1] : 0;
    if (begin <= floor || m->depth < begin) return fault(m, "a container is missing");
    uint32_t to = m->stack[begin - 1];
    int kind = m->v->nodes[to].kind;
    if (kind != (dict ? TN_PICKLE_DICT : TN_PICKLE_LIST) || (dict && (m->depth - begin) % 2 != 0))
        return fault(m, "items for a value that is not a container");
    for (size_t i = begin; i < m->depth; i++)
        TRY(append_pickle(m, to, m->stack[i]));
    m->depth = begin;
    return TN_OK;
}

/* ---- what the allowed names would do ----------------------------------------------------------------------------- */

enum { MOST_ARGUMENTS = 8 };

typedef struct arguments {
    const tn_pickle_node *at[MOST_ARGUMENTS];
    int count;
} arguments;

/* The first items of a container. */
static arguments items_of(const tn_pickle_values *v, const tn_pickle_node *n) {
    arguments a = {.count = 0};
    for (uint32_t c = n->first; c && a.count < MOST_ARGUMENTS; c = v->cells[c].next)
        a.at[a.count++] = &v->nodes[v->cells[c].node];
    return a;
}

static bool is(const tn_pickle_node *n, tn_pickle_kind kind) { return n->kind == kind; }

static tn_status make_dict(machine *m, const arguments *a, TN_UNUSED int row) {
    if (a->count > 0) return fault(m, "an OrderedDict with arguments");
    return push_kind(m, TN_PICKLE_DICT, 0);
}

static tn_status make_nothing(machine *m, TN_UNUSED const arguments *a, TN_UNUSED int row) {
    return push_kind(m, TN_PICKLE_NONE, 0);
}

/* A parameter is its tensor, a size its tuple. */
static tn_status make_first(machine *m, const arguments *a, TN_UNUSED int row) {
    if (a->count < 1) return fault(m, "a call without an argument");
    return push_pickle(m, (uint32_t)(a->at[0] - m->v->nodes));
}

static tn_status read_extents(const machine *m, const tn_pickle_node *n, int *rank, int64_t *out) {
    arguments a = items_of(m->v, n);
    if (!is(n, TN_PICKLE_TUPLE)) return fault(m, "a shape that is not a tuple");
    *rank = a.count;
    for (int i = 0; i < a.count; i++) {
        if (!is(a.at[i], TN_PICKLE_INT) || a.at[i]->number < 0)
            return fault(m, "an extent or stride that is not a number, or is negative");
        out[i] = a.at[i]->number;
    }
    uint32_t last = n->last, cell = n->first;
    for (int i = 1; i < a.count; i++)
        cell = m->v->cells[cell].next;
    return cell == last ? TN_OK : fault(m, "more than 8 dimensions");
}

static int type_of_global(const tn_pickle_node *n);

static tn_status make_tensor(machine *m, const arguments *a, TN_UNUSED int row) {
    tn_pickle_values *v = m->v;
    tn_pickle_place t = {0};
    int strides;
    if (a->count < 4 || !is(a->at[0], TN_PICKLE_STORAGE) || !is(a->at[1], TN_PICKLE_INT) || a->at[1]->number < 0)
        return fault(m, "a tensor without storage, offset, shape and strides");
    t.storage = (uint32_t)a->at[0]->number;
    t.offset = a->at[1]->number;
    t.type = v->storages[t.storage].type;
    TRY(read_extents(m, a->at[2], &t.rank, t.shape));
    TRY(read_extents(m, a->at[3], &strides, t.stride));
    if (strides != t.rank) return fault(m, "a tensor must have as many strides as dimensions");
    for (int i = 6; i < a->count; i++)
        if (is(a->at[i], TN_PICKLE_GLOBAL) && type_of_global(a->at[i]) >= 0) t.type = type_of_global(a->at[i]);
    if (v->tensor_count >= MAX_TENSORS) return fault(m, "too many tensors");
    TRY(tn_mem_reserve(&v->tensors, &v->tensor_capacity, v->tensor_count + 1, sizeof *v->tensors));
    v->tensors[v->tensor_count] = t;
    return push_kind(m, TN_PICKLE_TENSOR, (int64_t)v->tensor_count++);
}

typedef struct allowed {
    const char *module, *name;
    tn_status (*call)(machine *m, const arguments *a, int row);
} allowed;

static const allowed globals[] = {
    {"collections", "OrderedDict", make_dict},
    {"torch._utils", "_rebuild_tensor", make_tensor},
    {"torch._utils", "_rebuild_tensor_v2", make_tensor},
    {"torch._utils", "_rebuild_tensor_v3", make_tensor},
    {"torch._utils", "_rebuild_parameter", make_first},
    {"torch.nn.parameter", "Parameter", make_first},
    {"torch", "Size", make_first},
    {"torch", "device", make_nothing},
    {"torch.serialization", "_get_layout", make_nothing},
};

/* Types stand after the functions: row TN_COUNT(globals) + i is tn_pickle_types[i]. */
static int type_of_global(const tn_pickle_node *n) { return n->row - (int)TN_COUNT(globals); }

static bool same(const char *a, const char *text, size_t length) {
    return strlen(a) == length && memcmp(a, text, length) == 0;
}

static int find_type(const char *name, size_t length) {
    for (size_t i = 0; i < TN_COUNT(tn_pickle_types) && length > 0; i++)
        if (same(tn_pickle_types[i].storage, name, length) || same(tn_pickle_types[i].name, name, length))
            return (int)i;
    return -1;
}

static tn_status push_global(machine *m, const char *module, size_t n, const char *name, size_t length) {
    int row = -1;
    for (size_t i = 0; i < TN_COUNT(globals); i++)
        if (same(globals[i].module, module, n) && same(globals[i].name, name, length)) row = (int)i;
    if (row < 0 && (same("torch", module, n) || same("torch.storage", module, n))) {
        int type = find_type(name, length);
        row = type < 0 ? -1 : (int)TN_COUNT(globals) + type;
    }
    if (row < 0)
        return tn_fail(TN_ERR_UNSUPPORTED,
                       "byte %zu: the file uses '%.*s.%.*s', which is not allowed: only tensors in dicts and lists are "
                       "read. Save the state_dict instead",
                       m->base + m->at, (int)(n < 64 ? n : 64), module, (int)(length < 64 ? length : 64), name);
    return push_new(m, (tn_pickle_node){.kind = TN_PICKLE_GLOBAL, .row = row});
}

static tn_status reduce(machine *m) {
    uint32_t with, what;
    TRY(pop(m, &with));
    TRY(pop(m, &what));
    const tn_pickle_node *f = &m->v->nodes[what], *args = &m->v->nodes[with];
    if (!is(f, TN_PICKLE_GLOBAL) || type_of_global(f) >= 0 || !is(args, TN_PICKLE_TUPLE))
        return fault(m, "a call of a value that is not a function");
    arguments a = items_of(m->v, args);
    return globals[f->row].call(m, &a, f->row);
}

/* ("storage", type, key, device, elements[, None]) */
static tn_status push_storage(machine *m) {
    uint32_t from;
    tn_pickle_values *v = m->v;
    TRY(pop(m, &from));
    arguments a = items_of(v, &v->nodes[from]);
    bool good = is(&v->nodes[from], TN_PICKLE_TUPLE) && a.count >= 5 && is(a.at[0], TN_PICKLE_STRING) &&
                same("storage", a.at[0]->text, (size_t)a.at[0]->number) && is(a.at[1], TN_PICKLE_GLOBAL) &&
                type_of_global(a.at[1]) >= 0 && is(a.at[2], TN_PICKLE_STRING) && is(a.at[4], TN_PICKLE_INT) &&
                a.at[4]->number >= 0 && (a.count == 5 || is(a.at[5], TN_PICKLE_NONE));
    if (!good) return fault(m, "a storage in a form that PyTorch does not write");
    if (v->storage_count >= MAX_STORAGES) return fault(m, "too many storages");
    TRY(tn_mem_reserve(&v->storages, &v->storage_capacity, v->storage_count + 1, sizeof *v->storages));
    v->storages[v->storage_count] = (tn_pickle_storage){.key = a.at[2]->text,
                                                        .key_length = (size_t)a.at[2]->number,
                                                        .type = type_of_global(a.at[1]),
                                                        .count = a.at[4]->number};
    return push_kind(m, TN_PICKLE_STORAGE, (int64_t)v->storage_count++);
}

/* ---- instructions: `size` is that of the number that follows ----------------------------------------------------- */

static tn_status do_skip(machine *m, int size) {
    uint64_t ignored;
    return take_number(m, size, &ignored);
}

static tn_status do_mark(machine *m, TN_UNUSED int size) {
    if (m->mark_count == MAX_MARKS) return fault(m, "containers are nested too deeply");
    m->marks[m->mark_count++] = m->depth;
    return TN_OK;
}

static tn_status do_stop(machine *m, TN_UNUSED int size) {
    m->stopped = true;
    return pop(m, &m->v->root);
}

static tn_status do_pop(machine *m, TN_UNUSED int size) {
    uint32_t ignored;
    return pop(m, &ignored);
}

static tn_status do_pop_mark(machine *m, TN_UNUSED int size) { return pop_mark(m, &m->depth); }

static tn_status do_none(machine *m, TN_UNUSED int size) { return push_kind(m, TN_PICKLE_NONE, 0); }

static tn_status do_bool(machine *m, int value) { return push_kind(m, TN_PICKLE_BOOL, value); }

static tn_status do_int(machine *m, int size) {
    uint64_t v;
    TRY(take_number(m, size, &v));
    return push_kind(m, TN_PICKLE_INT, size == 4 ? (int64_t)(int32_t)(uint32_t)v : (int64_t)v);
}

/* A whole number of any length; one of more than 64 bits cannot be a size. */
static tn_status do_long(machine *m, int size) {
    uint64_t n, v = 0;
    const uint8_t *p;
    TRY(take_number(m, size, &n));
    if (n > m->size) return fault(m, "the pickle ends within a number");
    TRY(take_pickle(m, (size_t)n, &p));
    if (n > 8) return push_kind(m, TN_PICKLE_NONE, 0);
    for (size_t i = (size_t)n; i > 0; i--)
        v = v << 8 | p[i - 1];
    if (n > 0 && n < 8 && p[n - 1] & 0x80) v |= ~(uint64_t)0 << (8 * n);
    return push_kind(m, TN_PICKLE_INT, (int64_t)v);
}

static tn_status do_float(machine *m, int size) {
    uint64_t v;
    tn_pickle_node n = {.kind = TN_PICKLE_FLOAT};
    TRY(take_number(m, size, &v));
    v = __builtin_bswap64(v);
    memcpy(&n.real, &v, sizeof v);
    return push_new(m, n);
}

static tn_status do_string(machine *m, int size) {
    uint64_t n;
    const uint8_t *p;
    TRY(take_number(m, size, &n));
    if (n > m->size) return fault(m, "the pickle ends within a text");
    TRY(take_pickle(m, (size_t)n, &p));
    return push_new(m, (tn_pickle_node){.kind = TN_PICKLE_STRING, .number = (int64_t)n, .text = (const char *)p});
}

static tn_status do_empty(machine *m, int kind) { return push_kind(m, (tn_pickle_kind)kind, 0); }

static tn_status do_gather(machine *m, int kind) {
    size_t begin;
    TRY(pop_mark(m, &begin));
    if (kind == TN_PICKLE_DICT && (m->depth - begin) % 2 != 0) return fault(m, "a key without a value");
    return gather_pickle(m, (tn_pickle_kind)kind, begin);
}

static tn_status do_tuple(machine *m, int count) {
    size_t floor = m->mark_count > 0 ? m->marks[m->mark_count - 1] : 0;
    if (m->depth - floor < (size_t)count) return fault(m, "the stack is empty");
    return gather_pickle(m, TN_PICKLE_TUPLE, m->depth - (size_t)count);
}

static tn_status do_append(machine *m, int count) {
    if (m->depth < (size_t)count) return fault(m, "the stack is empty");
    return extend(m, m->depth - (size_t)count, count == 2);
}

static tn_status do_extend(machine *m, int kind) {
    size_t begin;
    TRY(pop_mark(m, &begin));
    return extend(m, begin, kind == TN_PICKLE_DICT);
}

static tn_status do_global(machine *m, TN_UNUSED int size) {
    const char *module, *name;
    size_t n, length;
    TRY(take_line(m, &module, &n));
    TRY(take_line(m, &name, &length));
    return push_global(m, module, n, name, length);
}

static tn_status do_stack_global(machine *m, TN_UNUSED int size) {
    uint32_t name, module;
    TRY(pop(m, &name));
    TRY(pop(m, &module));
    const tn_pickle_node *a = &m->v->nodes[module], *b = &m->v->nodes[name];
    if (!is(a, TN_PICKLE_STRING) || !is(b, TN_PICKLE_STRING)) return fault(m, "a name that is not a string");
    return push_global(m, a->text, (size_t)a->number, b->text, (size_t)b->number);
}

static tn_status do_reduce(machine *m, TN_UNUSED int size) { return reduce(m); }

/* What is set on an object is not needed: an OrderedDict's metadata. */
static tn_status do_build(machine *m, TN_UNUSED int size) {
    uint32_t state;
    tn_pickle_node *object = NULL;
    TRY(pop(m, &state));
    TRY(top(m, &object));
    return is(object, TN_PICKLE_GLOBAL) ? fault(m, "a state for a name") : TN_OK;
}

static tn_status do_storage(machine *m, TN_UNUSED int size) { return push_storage(m); }

static tn_status put_pickle(machine *m, uint64_t place) {
    if (m->depth == 0) return fault(m, "the stack is empty");
    if (place > m->size || place >= MAX_NODES) return fault(m, "a memo index out of range");
    size_t before = m->memo_count;
    if (place >= before) {
        TRY(tn_mem_reserve(&m->memo, &m->memo_capacity, (size_t)place + 1, sizeof *m->memo));
        for (size_t i = before; i < place; i++)
            m->memo[i] = NO_NODE;
        m->memo_count = (size_t)place + 1;
    }
    m->memo[place] = m->stack[m->depth - 1];
    return TN_OK;
}

static tn_status do_put(machine *m, int size) {
    uint64_t place;
    TRY(take_number(m, size, &place));
    return put_pickle(m, place);
}

static tn_status do_memoize(machine *m, TN_UNUSED int size) { return put_pickle(m, m->memo_count); }

static tn_status do_get(machine *m, int size) {
    uint64_t place;
    TRY(take_number(m, size, &place));
    if (place >= m->memo_count || m->memo[place] == NO_NODE) return fault(m, "a memo entry that was not stored");
    return push_pickle(m, m->memo[place]);
}

typedef struct instruction {
    uint8_t code;
    tn_status (*run)(machine *m, int argument);
    int8_t argument;
} instruction;

static const instruction instructions[] = {
    {0x80, do_skip, 1},
    {0x95, do_skip, 8},
    {'(', do_mark, 0},
    {'.', do_stop, 0},
    {'0', do_pop, 0},
    {'1', do_pop_mark, 0},
    {'N', do_none, 0},
    {0x88, do_bool, 1},
    {0x89, do_bool, 0},
    {'K', do_int, 1},
    {'M', do_int, 2},
    {'J', do_int, 4},
    {0x8a, do_long, 1},
    {0x8b, do_long, 4},
    {'G', do_float, 8},
    {'X', do_string, 4},
    {0x8c, do_string, 1},
    {0x8d, do_string, 8},
    {'T', do_string, 4},
    {'U', do_string, 1},
    {'B', do_string, 4},
    {'C', do_string, 1},
    {')', do_empty, TN_PICKLE_TUPLE},
    {']', do_empty, TN_PICKLE_LIST},
    {'}', do_empty, TN_PICKLE_DICT},
    {0x8f, do_empty, TN_PICKLE_LIST}, /* a set */
    {'t', do_gather, TN_PICKLE_TUPLE},
    {'l', do_gather, TN_PICKLE_LIST},
    {'d', do_gather, TN_PICKLE_DICT},
    {0x85, do_tuple, 1},
    {0x86, do_tuple, 2},
    {0x87, do_tuple, 3},
    {'a', do_append, 1},
    {'s', do_append, 2},
    {'e', do_extend, TN_PICKLE_LIST},
    {'u', do_extend, TN_PICKLE_DICT},
    {0x90, do_extend, TN_PICKLE_LIST},
    {'c', do_global, 0},
    {0x93, do_stack_global, 0},
    {'R', do_reduce, 0},
    {0x81, do_reduce, 0}, /* a class instead of a function */
    {'b', do_build, 0},
    {'Q', do_storage, 0},
    {'q', do_put, 1},
    {'r', do_put, 4},
    {0x94, do_memoize, 0},
    {'h', do_get, 1},
    {'j', do_get, 4},
};

static const instruction *find_instruction(uint8_t code) {
    for (size_t i = 0; i < TN_COUNT(instructions); i++)
        if (instructions[i].code == code) return &instructions[i];
    return NULL;
}

static tn_status run_pickle(machine *m) {
    while (!m->stopped) {
        const uint8_t *code;
        TRY(take_pickle(m, 1, &code));
        const instruction *i = find_instruction(*code);
        if (!i)
            return tn_fail(TN_ERR_UNSUPPORTED,
                           "byte %zu: unsupported pickle instruction 0x%02x, which PyTorch does not write",
                           m->base + m->at - 1, *code);
        TRY(i->run(m, i->argument));
    }
    return TN_OK;
}

tn_status tn_pickle_read(const uint8_t *bytes, size_t size, size_t base, tn_pickle_values *out, size_t *used) {
    *out = (tn_pickle_values){0};
    machine *m = tn_mem_zalloc(1, sizeof *m);
    if (!m) return TN_ERR_MEMORY;
    m->bytes = bytes;
    m->size = size;
    m->base = base;
    m->v = out;
    tn_status status = run_pickle(m);
    *used = m->at;
    tn_mem_free_each(m->stack, m->memo, m);
    if (status != TN_OK) tn_pickle_values_free(out);
    return status;
}

void tn_pickle_values_free(tn_pickle_values *v) {
    tn_mem_free_each(v->nodes, v->cells, v->storages, v->tensors);
    *v = (tn_pickle_values){0};
}
