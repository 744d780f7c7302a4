/* binding.c — see binding.h. */
#include "hal/binding.h"

enum { NONE = 0xFF };

tn_sharing tn_sharing_apart(int buffers) {
    tn_sharing s = {.slots = buffers};
    for (int i = 0; i < buffers; i++) {
        s.slot_of[i] = s.twin[i] = (uint8_t)i;
        s.windows[i] = 1;
    }
    return s;
}

/* Bindings that would hold all allocations of a launch. */
static uint64_t bindings_for_all(const tn_bindings *b, int buffers, const tn_bind_limits *l) {
    uint64_t all = 0;
    for (int i = 0, k; i < buffers; i++) {
        for (k = 0; k < i && b->buffers[k].memory != b->buffers[i].memory;)
            k++;
        all += k == i ? (b->buffers[i].bytes - 1) / l->window + 1 : 0;
    }
    return all;
}

/* Where the bindings of a buffer may begin. */
static uint64_t binding_place_of(const tn_bound *b, const tn_bind_limits *l) {
    uint64_t at = b->at < b->bytes ? b->at : b->bytes - 1;
    return at / l->unit * l->unit;
}

/* Puts buffers without a slot into the one that buffer i begins: all in its memory whose `each` bindings meet those
 * that the slot has. They make it longer by no more than that. */
static void fill_slot(tn_bindings *b, int buffers, const tn_bind_limits *l, int i, uint64_t each, int slot) {
    const tn_bound *first = &b->buffers[i];
    uint64_t reach = each * l->window;
    bool large = (first->bytes - 1) / l->window + 1 > each;
    uint64_t from = large ? binding_place_of(first, l) : 0, end = large ? from + reach : first->bytes;
    for (int k = i; large && k < buffers;) {
        uint64_t at = binding_place_of(&b->buffers[k], l);
        bool meets = b->buffers[k].memory == first->memory && at < end && at + reach > from;
        if (!meets || (at >= from && at + reach <= end)) {
            k++;
            continue;
        }
        end = at + reach > end ? at + reach : end;
        from = at < from ? at : from;
        k = i; /* what did not meet it before may now */
    }
    for (int k = i; k < buffers; k++) {
        uint64_t at = binding_place_of(&b->buffers[k], l);
        if (b->buffers[k].memory == first->memory && (!large || (at >= from && at < end)))
            b->sharing.slot_of[k] = (uint8_t)slot;
    }
    b->first[slot] = i;
    b->from[slot] = from;
    b->end[slot] = end < first->bytes ? end : first->bytes;
    b->sharing.windows[slot] = (uint8_t)((b->end[slot] - from - 1) / l->window + 1);
}

void tn_bindings_choose(tn_bindings *b, int buffers, const tn_bind_limits *l) {
    tn_sharing *s = &b->sharing;
    uint64_t each = l->most;
    if (bindings_for_all(b, buffers, l) > each) each /= (uint64_t)buffers;
    for (int i = 0; i < buffers; i++)
        s->slot_of[i] = NONE;
    for (int i = 0; i < buffers; i++) {
        if (s->slot_of[i] != NONE) continue;
        for (int k = s->slots; k >= 0; k--)
            if (k == s->slots || b->buffers[b->first[k]].memory == b->buffers[i].memory) s->twin[s->slots] = (uint8_t)k;
        fill_slot(b, buffers, l, i, each, s->slots++);
    }
}

int tn_bindings_list(const tn_bindings *b, const tn_bind_limits *l, tn_bind_entry *out) {
    int n = 0;
    for (int slot = 0; slot < b->sharing.slots; slot++)
        for (int k = 0; k < b->sharing.windows[slot]; k++) {
            uint64_t from = b->from[slot] + (uint64_t)k * l->window, rest = b->end[slot] - from;
            out[n++] = (tn_bind_entry){b->buffers[b->first[slot]].memory, from, rest < l->window ? rest : l->window};
        }
    return n;
}
