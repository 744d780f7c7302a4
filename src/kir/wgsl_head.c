/* wgsl_head.c — see wgsl.h. A word of a slot with several bindings is looked for in one after the other: comparing a
 * number costs little beside going to memory. */
#include "kir/wgsl.h"

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

/* One of a buffer's functions: what stands around its name, and around the word in its body. */
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
