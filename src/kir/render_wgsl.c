/* render_wgsl.c — WGSL, the language of WebGPU: its dialect row, memory access, heads, and the driver's own kernels.
 *
 * render_c.c writes its statements as for all other languages. Memory differs: a buffer is an array of 32-bit words,
 * which the head of the source provides (render.h), and each buffer gets two functions, get3(i) and set3(i, v), that
 * convert elements to words and back. If elements are smaller, several items may store into one word; a store then xors
 * the bits that differ atomically, which leaves the neighbours' unchanged.
 *
 * WGSL wants parentheses where operators on bits are mixed; naga, of wgpu-native, does without, browsers do not.
 *
 * Functions of kir_math.h are not written, because programs come without them (legal.c). Infinities and NaN are made at
 * run time, because constants must be finite. */
#include <stdio.h>
#include <string.h>

#include "kir/render.h"
#include "kir/render_text.h"
#include "trunnion/backend.h"

/* Elements that are smaller than a word: 2^shift of them in one, of `bits` each. */
typedef struct packing {
    int shift, bits;
    const char *read;  /* the value, of a word w and the number of bits before the element, s */
    const char *write; /* the element's bits, of a value v; what is above them is of no account */
} packing;

static const packing PACKINGS[TN_PLAIN_DTYPES] = {
    [TN_BOOL] = {2, 8, "extractBits(w, s, 8u) != 0u", "u32(v)"},
    [TN_U8] = {2, 8, "i32(extractBits(w, s, 8u))", "u32(v)"},
    [TN_I8] = {2, 8, "extractBits(bitcast<i32>(w), s, 8u)", "u32(v)"},
    [TN_U16] = {1, 16, "i32(extractBits(w, s, 16u))", "u32(v)"},
    [TN_I16] = {1, 16, "extractBits(bitcast<i32>(w), s, 16u)", "u32(v)"},
    /* where the device converts them as IEEE 754 has it: elsewhere programs have none (KIR_LEGAL_HALVES) */
    [TN_F16] = {1, 16, "unpack2x16float(w >> s).x", "pack2x16float(vec2<f32>(v, 0.0f))"},
    [TN_BF16] = {1, 16, "bitcast<f32>(extractBits(w, s, 16u) << 16u)", "to_bf16(v)"},
};

static const packing *packing_of(const kir_program *p, int buffer) {
    const packing *k = &PACKINGS[p->buffer_dtype[buffer]];
    return k->bits ? k : NULL;
}

/* Elements of 64 bits are two words, and an access names the one that it means. */
static bool in_pairs(const kir_program *p, int buffer) { return tn_dtype_size((tn_dtype)p->buffer_dtype[buffer]) == 8; }

/* Each buffer has its own binding. */
static void put_head(render *r) {
    uint8_t uses[KIR_MAX_BUFFERS], slot_of[KIR_MAX_BUFFERS];
    bool written[KIR_MAX_BUFFERS];
    tn_dtype elements[KIR_MAX_BUFFERS];
    char kinds[KIR_WGSL_BINDINGS + 1];
    int n = 0;
    for (int b = 0; b < r->p->n_buffers; b++) {
        if (r->p->local[b] > 0) continue;
        written[n] = r->p->buffer_written[b];
        elements[n] = (tn_dtype)r->p->buffer_dtype[b];
        slot_of[n] = (uint8_t)n;
        n++;
    }
    kir_wgsl_uses(n, written, elements, uses);
    const kir_wgsl_head head = {
        .buffers = n, .slots = n, .uses = uses, .slot_of = slot_of, .params_bytes = r->kernel->params_bytes};
    kir_wgsl_put_head(r->text, &head, kinds);
    r->head_size = r->text->length;
}

/* In workgroup memory, with functions as global ones have them. */
static void put_local(render *r, int b) {
    const packing *k = packing_of(r->p, b);
    int elements = r->p->local[b], words = k ? ((elements - 1) >> k->shift) + 1 : elements << in_pairs(r->p, b);
    kir_render_put(r, "var<workgroup> b%d: array<%s, %d>;\n", b, k ? "atomic<u32>" : "u32", words);
    kir_render_put(r, "fn load%d(i: u32) -> u32 { return %sb%d[i]%s; }\n", b, k ? "atomicLoad(&" : "", b, k ? ")" : "");
    kir_render_put(r, "fn %s%d(i: u32, v: u32) { %sb%d[i]%s; }\n", k ? "change" : "store", b, k ? "atomicXor(&" : "", b,
                   k ? ", v)" : " = v");
}

/* Elements of buffer b, whose words are reached by functions: `read` and so on are name and parenthesis. */
static void put_accessors(render *r, int b, const char *read, const char *put, const char *flip) {
    const packing *k = packing_of(r->p, b);
    const char *type = in_pairs(r->p, b) ? "u32" : kir_render_type(kir_type_of((tn_dtype)r->p->buffer_dtype[b]));
    kir_render_put(r, "fn get%d(i: i32) -> %s { ", b, type);
    if (k)
        kir_render_put(r, "let w = %su32(i >> %du)); let s = (u32(i) & %uu) * %du; return %s; }\n", read, k->shift,
                       (1U << k->shift) - 1, k->bits, k->read);
    else
        kir_render_put(r, "return bitcast<%s>(%su32(i))); }\n", type, read);
    if (!r->p->buffer_written[b]) return;
    kir_render_put(r, "fn set%d(i: i32, v: %s) { ", b, type);
    if (k)
        kir_render_put(r,
                       "let at = u32(i >> %du); let s = (u32(i) & %uu) * %du; "
                       "%sat, (((%sat) >> s) ^ (%s)) & %uu) << s); }\n",
                       k->shift, (1U << k->shift) - 1, k->bits, flip, read, k->write, (1U << k->bits) - 1);
    else
        kir_render_put(r, "%su32(i), bitcast<u32>(v)); }\n", put);
}

static void put_memory(render *r) {
    static const char *const ways[2][3] = {{"word", "put", "flip"}, {"load", "store", "change"}};
    char names[3][24];
    for (int b = 0, n = 0; b < r->p->n_buffers; b++) {
        bool local = r->p->local[b] > 0;
        if (local) put_local(r, b);
        for (int i = 0; i < 3; i++)
            snprintf(names[i], sizeof names[i], "%s%d(", ways[local][i], local ? b : n);
        put_accessors(r, b, names[0], names[1], names[2]);
        n += !local;
    }
}

static void put_offsets(render *r) {
    size_t base = r->kernel->bases_at / 8;
    for (int b = 0; b < r->p->n_buffers; b++) {
        if (r->p->local[b] > 0) continue;
        const packing *k = packing_of(r->p, b);
        kir_render_put(r, "    let at%d = ", b);
        kir_render_size(r, base++);
        kir_render_put(r, " >> %du;\n", k ? 2 - k->shift : 2 + in_pairs(r->p, b));
    }
}

/* Compilers may change comparisons with a NaN, and operations based on them (a maximum with a NaN operand). So these
 * are done on bits here. */
static const char FUNCTIONS[] =
    "fn float_of(bits: u32) -> f32 { return bitcast<f32>(bits); }\n"
    "fn is_number(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) <= 0x7f800000u; }\n"
    "fn less(a: f32, b: f32) -> bool { return is_number(a) && is_number(b) && a < b; }\n"
    "fn kir_max_f32(a: f32, b: f32) -> f32 { return select(b, a, less(b, a) || !is_number(a)); }\n"
    "fn kir_min_f32(a: f32, b: f32) -> f32 { return select(b, a, less(a, b) || !is_number(a)); }\n"
    "fn kir_max_i32(a: i32, b: i32) -> i32 { return max(a, b); }\n"
    "fn kir_min_i32(a: i32, b: i32) -> i32 { return min(a, b); }\n"
    "fn kir_max_u32(a: u32, b: u32) -> u32 { return max(a, b); }\n"
    "fn kir_min_u32(a: u32, b: u32) -> u32 { return min(a, b); }\n"
    "fn to_bf16(x: f32) -> u32 {\n"
    "    let u = bitcast<u32>(x);\n"
    "    return select((u >> 16u) | 64u, (u + 0x7fffu + ((u >> 16u) & 1u)) >> 16u, is_number(x));\n"
    "}\n";

/* Does nothing, but only the high word of a base, which is 0, shows that. */
static void put_keeper(render *r) {
    r->n = (int)(r->kernel->bases_at / 8);
    r->half = 1;
    kir_render_words(r, "fn kept(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ p[$pair].$part); }\n");
    r->half = 0;
}

static void open_kernel(render *r) {
    put_head(r);
    kir_render_words(r, FUNCTIONS);
    bool rounds_once = r->t->features & TN_WGSL_FUSED;
    if (rounds_once)
        kir_render_words(r, "fn fused(a: f32, b: f32, c: f32) -> f32 { return fma(a, b, c); }\n");
    else
        kir_render_words(r, kir_fused_wgsl);
    put_keeper(r);
    put_memory(r);
    kir_render_words(r, "var<workgroup> same: i32;\n"
                        "@compute @workgroup_size($items) fn $entry(@builtin(workgroup_id) wg: vec3<u32>, "
                        "@builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) li: u32) {\n");
    put_offsets(r);
}

#define ONE_NAME(name, spelled) [WORD_##name##_f32] = spelled

const kir_dialect kir_dialect_wgsl = {
    .name = "WGSL",
    .words =
        {
            [WORD_f32] = "f32",
            [WORD_i32] = "i32",
            [WORD_u32] = "u32",
            [WORD_bool] = "bool",
            [WORD_i] = "i",
            [WORD_inf] = "float_of(0x7f800000u)",
            [WORD_nan] = "float_of(0x7fc00000u)",
            [WORD_barrier] = "workgroupBarrier(); storageBarrier();",
            [WORD_group] = "(wg.x + nwg.x * (wg.y + nwg.y * wg.z))",
            [WORD_item] = "li",
            ONE_NAME(bits, "bitcast<u32>"),
            ONE_NAME(from_bits, "bitcast<f32>"),
            ONE_NAME(fabs, "abs"),
            ONE_NAME(sqrt, "sqrt"),
            ONE_NAME(floor, "floor"),
            ONE_NAME(ceil, "ceil"),
            ONE_NAME(trunc, "trunc"),
            ONE_NAME(rint, "round"),
            ONE_NAME(fma, "fused"),
        },
    .open_kernel = open_kernel,
    .head = "",
    .points = "    let begin = $group * u32($items);\n"
              "    if (begin + $item >= u32(count)) { return; }\n"
              "    let start = i32(begin);\n"
              "    let item = i32($item);\n",
    .items = "    let group = i32($group);\n"
             "    if (group >= count) { return; }\n"
             "    let item = i32($item);\n",
    .close = "}\n",
    .params.by_address_always = true,
    .groups = true,
    .infers = true,
    .choice = "select(#2, #1, #0)",
    .floats.number = "is_number(#0)",
    .floats.less = "less(#0, #1)",
    .floats.nothing = "select(float_of(0x7fc00000u), 0.0f, less(abs(#0), float_of(0x7f800000u)))",
    .regroups = true,
    .same = "    if (item == 0) { same = u$n; }\n    u$n = workgroupUniformLoad(&same);\n",
    .floats.truth = "(bitcast<u32>(#0) & 0x7fffffffu) != 0u",
    .params.word = "p[$pair].$part",
    .memory.array = "var s$n: array<$type, $size>;\n",
    .legal = KIR_LEGAL_MATHS | KIR_LEGAL_I64 | KIR_LEGAL_HALVES | KIR_LEGAL_SCALARS | KIR_LEGAL_BRAINS,
};

/* ==== heads: bindings and access to words ========================================================================= */

void kir_wgsl_uses(int buffers, const bool *written, const tn_dtype *elements, uint8_t *uses) {
    for (int b = 0; b < buffers; b++) {
        bool writes = !written || written[b], small = elements && tn_dtype_size(elements[b]) < 4;
        uses[b] = (uint8_t)(writes ? KIR_WGSL_WRITES | (small ? KIR_WGSL_FLIPS : 0) : 0);
    }
}

static int windows_of(const kir_wgsl_head *h, int slot) { return h->windows ? h->windows[slot] : 1; }

static int first_binding(const kir_wgsl_head *h, int slot) {
    int first = 0;
    for (int i = 0; i < slot; i++)
        first += windows_of(h, i);
    return first;
}

static unsigned slot_uses(const kir_wgsl_head *h, int slot) {
    unsigned uses = 0;
    for (int b = 0; b < h->buffers; b++) {
        int other = h->slot_of[b];
        if (other == slot) uses |= h->uses[b];
        if (h->twin && h->twin[other] == h->twin[slot]) uses |= h->uses[b] & KIR_WGSL_WRITES;
    }
    return uses;
}

/* One of a buffer's functions: the text around its name, and around the word in its body. */
typedef struct way {
    const char *name, *parameters, *before, *behind;
} way;

enum { READS, PUTS, FLIPS };
static const way WAYS[2][3] = {
    {{"word", "(i: u32) -> u32", "return ", ";"}, {"put", "(i: u32, v: u32)", "", " = v;"}, {0}},
    /* of slots in which parts of words change */
    {{"word", "(i: u32) -> u32", "return atomicLoad(&", ");"},
     {"put", "(i: u32, v: u32)", "atomicStore(&", ", v);"},
     {"flip", "(i: u32, v: u32)", "atomicXor(&", ", v);"}},
};

static void put_function(tn_str *out, const kir_wgsl_head *h, int buffer, const way *w, bool returns) {
    int slot = h->slot_of[buffer], last = windows_of(h, slot) - 1, binding = first_binding(h, slot);
    unsigned long long begin = 0;
    tn_str_add(out, "fn %s%d%s {", w->name, buffer, w->parameters);
    for (int k = 0; k <= last; k++, begin += h->window_words) {
        if (k < last) tn_str_add(out, "\n    if (i < %lluu) {", begin + h->window_words);
        tn_str_add(out, " %sm%d[i", w->before, binding + k);
        if (k) tn_str_add(out, " - %lluu", begin);
        tn_str_add(out, "]%s%s }", w->behind, k < last && !returns ? " return;" : "");
    }
    tn_str_add(out, "\n");
}

static void put_functions(tn_str *out, const kir_wgsl_head *h, int buffer) {
    const way *ways = WAYS[(slot_uses(h, h->slot_of[buffer]) & KIR_WGSL_FLIPS) != 0];
    put_function(out, h, buffer, &ways[READS], true);
    if (h->uses[buffer] & KIR_WGSL_WRITES) put_function(out, h, buffer, &ways[PUTS], false);
    if (h->uses[buffer] & KIR_WGSL_FLIPS) put_function(out, h, buffer, &ways[FLIPS], false);
}

void kir_wgsl_put_head(tn_str *out, const kir_wgsl_head *h, char kinds[KIR_WGSL_BINDINGS + 1]) {
    int n = 0;
    for (int slot = 0; slot < h->slots; slot++) {
        unsigned uses = slot_uses(h, slot);
        for (int k = 0; k < windows_of(h, slot); k++, n++) {
            kinds[n] = uses & KIR_WGSL_WRITES ? 'w' : 'r';
            tn_str_add(out, "@group(0) @binding(%d) var<storage, %s> m%d: array<%s>;\n", n,
                       kinds[n] == 'w' ? "read_write" : "read", n, uses & KIR_WGSL_FLIPS ? "atomic<u32>" : "u32");
        }
    }
    if (h->params_bytes) {
        tn_str_add(out, "@group(0) @binding(%d) var<uniform> p: array<vec4<u32>, %zu>;\n", n,
                   (h->params_bytes + 15) / 16);
        kinds[n++] = 'p';
    }
    kinds[n] = 0;
    for (int b = 0; b < h->buffers; b++)
        put_functions(out, h, b);
}

/* ==== kernels that drivers need themselves ======================================================================== */

bool kir_wgsl_has_entry(const char *text, const char *name) {
    size_t n = strlen(name);
    for (const char *at = strstr(text, name); at; at = strstr(at + 1, name))
        if (at - text >= 3 && !memcmp(at - 3, "fn ", 3) && at[n] == '(') return true;
    return false;
}

const char kir_wgsl_patch[] =
    "@compute @workgroup_size(64) fn patch_words(@builtin(global_invocation_id) id: vec3<u32>) {\n"
    "    let i = id.x + id.y * p[2].z;\n"
    "    if (i >= p[1].x) { return; }\n"
    "    var mask = 0xffffffffu;\n"
    "    if (i == 0u) { mask &= p[1].y; }\n"
    "    if (i + 1u == p[1].x) { mask &= p[1].z; }\n"
    "    var v = p[2].x;\n"
    "    if (p[1].w != 0u) {\n"
    "        let byte = p[0].z + p[2].y + i * 4u;\n"
    "        let shift = byte % 4u * 8u;\n"
    "        v = word1(byte / 4u) >> shift;\n"
    "        if (shift != 0u) { v |= word1(byte / 4u + 1u) << (32u - shift); }\n"
    "    }\n"
    "    let at = p[0].x / 4u + i;\n"
    "    put0(at, (word0(at) & ~mask) | (v & mask));\n"
    "}\n";

/* What a device computes, to be compared with IEEE 754. First (1 + 2^-12)² - (1 + 2^-11), which is 2^-24 if fma()
 * rounds once, and 0 if it rounds the product first; then conversions to and from halves: ties, the ends of the range,
 * values beyond it, denormals. */
const char kir_wgsl_ask[] =
    "fn x(i: u32) -> f32 { return bitcast<f32>(word0(i)); }\n"
    "@compute @workgroup_size(1) fn ask() {\n"
    "    put0(0u, bitcast<u32>(fma(x(0u), x(1u), x(2u))));\n"
    "    for (var i = 3u; i < 13u; i++) { put0(i, pack2x16float(vec2<f32>(x(i), 0.0f)) & 0xffffu); }\n"
    "    for (var i = 13u; i < 18u; i++) { put0(i, bitcast<u32>(unpack2x16float(word0(i)).x)); }\n"
    "}\n";
const uint32_t kir_wgsl_asked[KIR_WGSL_ASKED] = {0x3f800800, 0x3f800800, 0xbf801000, 0x3f801000, 0x3f803000, 0x477fefff,
                                                 0x477ff000, 0x501502f9, 0xff800000, 0xb3800000, 0x33000000, 0x33400000,
                                                 0x387fe000, 0x0001,     0x83ff,     0x7bff,     0xfc00,     0x8000};
static const uint32_t RIGHT[KIR_WGSL_ASKED] = {0x33800000, 0x3f800800, 0xbf801000, 0x3c00,     0x3c02,     0x7bff,
                                               0x7c00,     0x7c00,     0xfc00,     0x8001,     0x0000,     0x0001,
                                               0x0400,     0x33800000, 0xb87fc000, 0x477fe000, 0xff800000, 0x80000000};

kir_wgsl_answer kir_wgsl_judge(const uint32_t said[KIR_WGSL_ASKED]) {
    return (kir_wgsl_answer){said[0] == RIGHT[0], !memcmp(said + 1, RIGHT + 1, sizeof RIGHT - sizeof RIGHT[0])};
}
