/* block_ops.c — operations without windows over images in blocks of channels (conv.h): element-wise programs, sums over
 * images, concatenations of whole blocks.
 *
 * native_conv.c decides which images lie in blocks. A group that was to be a program then becomes a native one: an
 * element-wise program runs over all elements in a row, a sum is made by a kernel of its own, and the rest of its
 * program gets the sums. */
#include <string.h>

#include "kir/rules.h"
#include "plan/native.h"

/* How a program accesses memory. */
typedef enum access_kind { ACCESS_OTHER, ACCESS_NUMBER, ACCESS_CHANNEL, ACCESS_IMAGE } access_kind;

enum { IMAGE_AXES = 4, AXIS_CHANNEL = 1, AXIS_ROW = 2 };

/* A program whose images may lie in blocks. */
typedef struct image_program {
    int images[KIR_MAX_BUFFERS], count; /* values */
    bool sums;                          /* it adds up the pixels of its only image */
    int load, reduce;                   /* … by these instructions */
} image_program;

static bool is_image(const tn_value *v) { return v->node->rank == IMAGE_AXES && v->node->dtype == TN_F32; }

static const kir_access *access_of(const kir_program *p, int instruction) {
    return &p->access[p->ins[instruction].imm.i];
}

/* ---- element-wise programs --------------------------------------------------------------------------------------- */

/* The axis of an element-wise program that runs along a dim of its images; -1: none, because the extent is 1. */
typedef struct image_space {
    const int64_t *shape;
    int axis[IMAGE_AXES];
} image_space;

static bool find_space(const tn_graph_plan *g, const tn_group *group, image_space *s) {
    const tn_node *n = g->values[group->lead].node;
    int axes = 0;
    if (n->rank != IMAGE_AXES || n->shape[AXIS_ROW] * n->shape[AXIS_ROW + 1] == 1) return false;
    s->shape = n->shape;
    for (int d = 0; d < IMAGE_AXES; d++)
        s->axis[d] = n->shape[d] > 1 ? axes++ : -1;
    return group->lowered.program->n_par == axes;
}

static int64_t stride_along(const image_space *s, const int64_t *at, int d) {
    return s->axis[d] < 0 ? 0 : at[1 + s->axis[d]];
}

static access_kind kind_of_access(const tn_group *group, const image_space *s, int access) {
    const kir_program *p = group->lowered.program;
    const int64_t *at = kir_sizes_access(p, group->lowered.sizes, access);
    bool image = at[0] == 0, channel = p->buffer_dtype[p->access[access].buffer] == TN_F32, number = true;
    int64_t inside = 1;
    for (int d = IMAGE_AXES - 1; d >= 0; inside *= s->shape[d--]) {
        const int64_t stride = stride_along(s, at, d);
        number = number && stride == 0;
        image = image && (s->axis[d] < 0 || stride == inside);
        channel = channel && (stride == 0 || d < AXIS_ROW);
    }
    if (p->access[access].dyn != KIR_NONE) return ACCESS_OTHER;
    return number ? ACCESS_NUMBER : image ? ACCESS_IMAGE : channel ? ACCESS_CHANNEL : ACCESS_OTHER;
}

/* Notes the value if it is an image of the program's size. */
static bool note_image(const tn_graph_plan *g, const tn_group *group, int buffer, image_program *found) {
    const int value = group->lowered.buffer_values[buffer];
    if (value < 0 || !is_image(&g->values[value])) return false;
    if (!tn_same_shape(g->values[value].node, g->values[group->lead].node)) return false;
    for (int i = 0; i < found->count; i++)
        if (found->images[i] == value) return true;
    found->images[found->count++] = value;
    return true;
}

static bool read_elementwise(const tn_graph_plan *g, const tn_group *group, image_program *found) {
    const kir_program *p = group->lowered.program;
    access_kind of[KIR_MAX_BUFFERS] = {ACCESS_OTHER};
    image_space space;
    int operands = 0;
    if (p->n_loop > 0 || !find_space(g, group, &space)) return false;
    for (int i = 0; i < p->n_ins; i++) {
        const kir_ins *in = &p->ins[i];
        if (in->op == KIR_INDEX) return false;
        if (in->op != KIR_LOAD && in->op != KIR_STORE) continue;
        const int buffer = access_of(p, i)->buffer;
        const access_kind kind = kind_of_access(group, &space, (int)in->imm.i);
        if (kind == ACCESS_OTHER || (of[buffer] != ACCESS_OTHER && of[buffer] != kind)) return false;
        if (kind == ACCESS_CHANNEL && of[buffer] == kind) return false; /* perhaps at another place */
        if (kind == ACCESS_IMAGE ? !note_image(g, group, buffer, found) : in->op == KIR_STORE) return false;
        operands += kind == ACCESS_CHANNEL;
        of[buffer] = kind;
    }
    return found->count > 0 && operands <= TN_BLOCK_OPERANDS;
}

/* ---- sums over images -------------------------------------------------------------------------------------------- */

/* Whether the access reads all pixels of each image and channel of v: the loop runs through the pixels, the other axes
 * through channels and images. */
static bool reads_planes(const kir_program *p, const int64_t *extent, int access, const tn_value *v) {
    const int64_t *at = kir_sizes_access(p, extent, access), *stride = at + 1, *shape = v->node->shape;
    const int64_t plane = shape[AXIS_ROW] * shape[AXIS_ROW + 1];
    int64_t pixels = 1, images = 1;
    bool dense = at[0] == 0 && p->access[access].dyn == KIR_NONE;
    for (int d = p->n_par + p->n_loop - 1; d >= p->n_par; pixels *= extent[d--])
        dense = dense && (extent[d] == 1 || stride[d] == pixels);
    for (int d = p->n_par - 1; d >= 0; images *= extent[d--])
        dense = dense && (extent[d] == 1 || (stride[d] == plane && extent[d] == shape[AXIS_CHANNEL]) ||
                          (stride[d] == plane * shape[AXIS_CHANNEL] && extent[d] == shape[0]));
    return dense && pixels == plane && images == shape[0] * shape[AXIS_CHANNEL];
}

/* Of the loop in which a program adds up pixels: it only loads and adds. */
static bool read_sum(const tn_graph_plan *g, const tn_group *group, image_program *found) {
    const kir_program *p = group->lowered.program;
    int loop = -1, others = 0;
    for (int i = 0; i < p->n_ins; i++) {
        if (p->ins[i].op == KIR_INDEX || (p->ins[i].op == KIR_LOOP && loop >= 0)) return false;
        if (p->ins[i].op == KIR_LOOP) loop = i;
    }
    if (loop < 0 || loop + 3 >= p->n_ins || p->ins[loop + 3].op != KIR_END) return false;
    const kir_ins *load = &p->ins[loop + 1], *reduce = &p->ins[loop + 2];
    if (load->op != KIR_LOAD || load->a != KIR_NONE || reduce->op != KIR_REDUCE || reduce->kind != KIR_SUM)
        return false;
    const int buffer = access_of(p, loop + 1)->buffer, value = group->lowered.buffer_values[buffer];
    for (int i = 0; i < p->n_access; i++)
        others += p->access[i].buffer == buffer && i != load->imm.i;
    if (others > 0 || reduce->a != loop + 1 || reduce->type != KIR_F32 || value < 0) return false;
    if (!is_image(&g->values[value]) || !reads_planes(p, group->lowered.sizes, (int)load->imm.i, &g->values[value]))
        return false;
    *found = (image_program){.images = {value}, .count = 1, .sums = true, .load = loop + 1, .reduce = loop + 2};
    return true;
}

static bool read_program(const tn_graph_plan *g, const tn_group *group, image_program *found) {
    found->count = 0;
    found->sums = false;
    if (group->host || group->order.commit || group->sibling || group->row_fused) return false;
    if (!group->lowered.program || group->lowered.program->n_items > 0) return false;
    if (group->kind == TN_GROUP_MAP) return read_elementwise(g, group, found);
    return group->kind == TN_GROUP_ROWS && read_sum(g, group, found);
}

/* ---- native groups ----------------------------------------------------------------------------------------------- */

/* Whether the group concatenates whole blocks. */
static bool joins_blocks(const tn_graph_plan *g, const tn_group *group) {
    const tn_value *y = &g->values[group->lead];
    const int64_t lanes = tn_conv_block_elements(1, 1, 1);
    bool whole = tn_native_is_cat(group->run.native) && tn_op_has(y->node, TN_FACT_CONCAT) &&
                 y->node->i[0] == AXIS_CHANNEL && y->n_in <= KIR_MAX_BUFFERS - 1;
    for (int k = 0; k < y->n_in && whole; k++)
        whole = g->values[y->in[k]].root == y->in[k] && g->values[y->in[k]].node->shape[AXIS_CHANNEL] % lanes == 0;
    return whole;
}

/* The images of a group, all of which have to lie in blocks if one does. */
static bool read_group(const tn_graph_plan *g, const tn_group *group, image_program *found) {
    const tn_value *y = &g->values[group->lead];
    if (!group->run.native) return read_program(g, group, found);
    found->count = 0;
    if (group->host || group->order.commit || !is_image(y)) return false;
    const int inputs = joins_blocks(g, group) ? y->n_in : 0;
    for (int k = 0; k < inputs; k++)
        found->images[found->count++] = y->in[k];
    found->images[found->count++] = group->lead;
    return inputs > 0;
}

/* ---- which images ------------------------------------------------------------------------------------------------ */

bool tn_block_op_has(const tn_graph_plan *g, const tn_group *group, int value) {
    image_program p;
    if (!read_group(g, group, &p)) return false;
    for (int i = 0; i < p.count; i++)
        if (p.images[i] == value) return true;
    return false;
}

bool tn_block_op_agree(const tn_graph_plan *g, const tn_group *group, bool *blocked) {
    image_program p;
    int there = 0;
    if (!read_group(g, group, &p)) return false;
    for (int i = 0; i < p.count; i++)
        there += blocked[p.images[i]];
    for (int i = 0; i < p.count && there < p.count; i++)
        blocked[p.images[i]] = false;
    return there > 0 && there < p.count;
}

/* ---- as native groups -------------------------------------------------------------------------------------------- */

static void run_elementwise(tn_native *n, void *const *pointers) {
    n->block.workspace = pointers[0];
    n->block.launch.buffers = pointers + TN_PROGRAM_POINTERS;
    n->block.launch.scalars = n->fused.scalars;
    tn_block_program_run(&n->block);
}

/* All elements in one row. */
static tn_status make_elementwise(const tn_graph_plan *g, tn_group *group, tn_native *n, const tn_node *image) {
    const kir_program *p = group->lowered.program;
    const int64_t plane = image->shape[AXIS_ROW] * image->shape[AXIS_ROW + 1];
    const int axes = p->n_par;
    int64_t *sizes = n->fused.sizes;
    image_space space;
    tn_block_program *a = &n->block;
    (void)find_space(g, group, &space);
    *a = (tn_block_program){.vm = n->fused.vm,
                            .launch.sizes = sizes,
                            .axes = axes,
                            .buffer_count = group->lowered.buffer_count,
                            .batch = image->shape[0],
                            .channels = image->shape[AXIS_CHANNEL],
                            .plane = plane};
    for (int i = 0; i < p->n_sized; i++) {
        const access_kind kind = kind_of_access(group, &space, i);
        int64_t *at = sizes + axes + i * (axes + 1);
        if (kind == ACCESS_CHANNEL)
            a->operand[a->operand_count++] = (tn_channel_operand){
                p->access[i].buffer, at[0], stride_along(&space, at, 0), stride_along(&space, at, AXIS_CHANNEL)};
        if (kind == ACCESS_NUMBER) continue;
        memset(at, 0, (size_t)axes * sizeof *at);
        at[axes] = 1;
    }
    for (int d = 0; d < axes; d++)
        sizes[d] = d + 1 < axes ? 1 : tn_conv_block_elements(a->batch, a->channels, plane);
    n->run = run_elementwise;
    group->run.workspace = tn_block_program_workspace(a, tn_threads());
    return TN_OK;
}

/* The sums take the image's place in the program. */
static void run_sum(tn_native *n, void *const *pointers) {
    const tn_block_program *a = &n->block;
    void *const *own = pointers + TN_PROGRAM_POINTERS;
    void *buffers[KIR_MAX_BUFFERS];
    float *sums = (float *)(void *)((char *)pointers[0] + n->block_scratch);
    kir_launch launch = {.sizes = n->fused.sizes, .buffers = buffers, .scalars = n->fused.scalars};
    memcpy(buffers, own, (size_t)a->buffer_count * sizeof *buffers);
    tn_block_sums(own[a->operand[0].buffer], a->batch, a->channels, a->plane, sums);
    buffers[a->operand[0].buffer] = sums;
    kir_vm_run_box(a->vm, &launch, n->block_first, n->fused.sizes, pointers[0]);
}

/* The same program without its loop: the image's access reads the sum. */
static tn_status without_loop(const kir_program *p, const image_program *found, kir_program **out) {
    kir_builder *b;
    AUTO_FREE int64_t *sizes = NULL;
    AUTO_FREE kir_val *of = tn_mem_zalloc((size_t)p->n_ins, sizeof *of);
    if (!of) return TN_ERR_MEMORY;
    TRY(kir_begin_like(p, &b));
    for (int i = 0; i < p->n_ins; i++) {
        kir_ins in = p->ins[i];
        if (i == found->reduce) of[i] = of[found->load];
        if (i == found->reduce || in.op == KIR_LOOP || in.op == KIR_END) continue;
        if (in.a != KIR_NONE) in.a = of[in.a];
        if (in.b != KIR_NONE) in.b = of[in.b];
        if (in.c != KIR_NONE) in.c = of[in.c];
        const kir_val dyn = kir_has_access((kir_op)in.op) ? access_of(p, i)->dyn : KIR_NONE;
        of[i] = kir_append(b, &in, dyn == KIR_NONE ? dyn : of[dyn]);
    }
    return kir_finish(b, out, &sizes);
}

static tn_status make_sum(tn_group *group, tn_native *n, const image_program *found, const tn_node *image) {
    const kir_program *p = group->lowered.program;
    const int axes = p->n_par + p->n_loop, access = (int)p->ins[found->load].imm.i;
    const int64_t *shape = image->shape, plane = shape[AXIS_ROW] * shape[AXIS_ROW + 1];
    int64_t *sizes = n->fused.sizes, *stride = sizes + axes + access * (axes + 1) + 1;
    for (int d = 0; d < axes; d++)
        stride[d] = d < p->n_par ? stride[d] / plane : 0;
    for (int d = p->n_par; d < axes; d++)
        sizes[d] = 1;
    n->block = (tn_block_program){.vm = n->fused.vm,
                                  .buffer_count = group->lowered.buffer_count,
                                  .operand = {{.buffer = p->access[access].buffer}},
                                  .batch = shape[0],
                                  .channels = shape[AXIS_CHANNEL],
                                  .plane = plane};
    n->run = run_sum;
    n->block_scratch = tn_whole_lines(kir_vm_scratch(n->fused.vm));
    group->run.workspace = n->block_scratch + (size_t)(shape[0] * shape[AXIS_CHANNEL]) * sizeof(float);
    return TN_OK;
}

tn_status tn_block_op_lay(const tn_graph_plan *g, tn_group *group, const bool *blocked) {
    image_program found;
    kir_program *plain = NULL;
    if (!read_group(g, group, &found) || !blocked[found.images[0]]) return TN_OK;
    if (group->run.native) {
        tn_native_lay_cat_in_blocks(g, group);
        return TN_OK;
    }
    const tn_node *image = g->values[found.images[0]].node;
    if (found.sums) TRY(without_loop(group->lowered.program, &found, &plain));
    tn_status s = tn_native_of_program(g, group, plain ? plain : group->lowered.program);
    kir_free(plain);
    TRY(s);
    tn_native *n = group->run.native;
    n->by = "in blocks of channels";
    return found.sums ? make_sum(group, n, &found, image) : make_elementwise(g, group, n, image);
}
