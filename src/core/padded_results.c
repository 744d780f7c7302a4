/* padded_results.c — results that one convolution alone reads lie with zeros around them, or nowhere.
 *
 * Windows at the edge of an image see zeros outside of it. A convolution copies what it sees to a slab that has them,
 * a large part of its image at a time. Where the image is the result of another convolution, that one can as well leave
 * room around it and write the zeros while it writes the rows; then nothing is copied. A large image that a few taps
 * make of a small one had rather be made in the slab, rows at a time: then it is never in memory. No op knows: strides
 * say where elements are, and only two kernels that agreed about it meet them. */
#include "core/native.h"

/* Is the value nobody's but this group's, which reads it as it lies, once? */
static bool is_read_once(const tn_graph_plan *g, int value, int reader) {
    const tn_value *v = &g->values[value];
    const tn_group *group = &g->groups[reader];
    if (!v->stored || v->output >= 0 || v->concat_into >= 0 || v->pull_count != 1 || v->pulls[0] != reader)
        return false;
    int reads = 0;
    for (int k = 0; k < group->read_count; k++)
        reads += group->reads[k] == value;
    return reads == 1;
}

static bool is_here(const tn_group *group) { return group->native && !group->host && !group->commit; }

static void leave_border(tn_graph_plan *g, tn_group *reader) {
    int image = g->values[reader->lead].in[0];
    tn_value *v = &g->values[image];
    if (!is_here(reader) || v->group < 0 || !is_read_once(g, image, (int)(reader - g->groups))) return;
    tn_group *producer = &g->groups[v->group];
    if (!is_here(producer)) return;
    bool beside = reader->position == producer->position + 1 && !producer->sibling && !producer->row_fused;
    if (beside && tn_conv_agree_on_producer(v, producer, reader)) return;
    tn_conv_agree_on_border(v, producer, reader);
}

void tn_pad_conv_results(tn_graph_plan *g) {
    if (!g->binding->device->is_cpu) return;
    for (size_t i = 0; i < g->group_count; i++)
        if (g->values[g->groups[i].lead].node->op == TN_OP_CONV2D_FORWARD) leave_border(g, &g->groups[i]);
}
