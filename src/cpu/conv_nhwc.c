/* conv_nhwc.c — convolutions as products with other operand orders: filters as columns, batch as rows. */
#include <string.h>

#include "cpu/conv_paths.h"
#include "cpu/isa.h"

/* ==== filters as columns ========================================================================================== */
/* out[output pixels, filters] = im2col[output pixels, taps] · weight[taps, filters]. Filters are packed as panels of
 * columns. A tile's rows are output pixels side by side in one row of the image, and whichever tap it is at, what they
 * see lies side by side in the input tile (conv_paths.h), so that nothing is packed there, whatever the stride, and no
 * output pixel is one that does not exist. Where windows never leave the image, it is its own input tile. Meanwhile
 * tiles ask for what is far away: filling the input tile and writing out would wait for it with nothing to compute. The
 * tile brings a number of the input tile to all lanes: nothing but the aligned panel is loaded as a vector.
 *
 * Images may lie in blocks of channels (conv.h): a pixel is then a vector of its channels, so windows with a stride
 * read whole vectors, and results leave the tile's registers as they are.
 *
 * A block is some rows of output pixels, of one or several images. Their input tile holds all channels; panel after
 * panel is multiplied over it, chunk after chunk of k. What comes out is a panel wide and is turned as it is written
 * out, or handed to the epilogue. The chains are those of conv.c.
 *
 * Where a larger image's pixels are a convolution each s-th (the way back of a stride), these phases share a block and
 * its input tile: sums of the phases of a row lie beside each other, so that whole rows of pixels are written out. */

enum {
    CHUNK = KIR_KSUM,
    MOST_PIXELS = TN_GEMM_BLOCK_LD, /* of a block */
    INPUT_TILE = 1 << 17,           /* elements of a block's input tile, at most, if the second cache is large */
    LEAST_PIXELS = 48,              /* of a block: with fewer, reading filters takes longer than multiplying */
    LEAST_ACROSS = 2,               /* output pixels in a row, or tiles are too low */
    LEAST_STEPS = 8,                /* of k, or turning results takes longer than it gains; … */
    LEAST_DEAR_STEPS = 64,          /* … of windows of one tap, and of vectors of 16 lanes (measured) */
    LINE = 16,                      /* elements of a line of the cache */
    PANEL = 6144                    /* elements that a panel takes of the first cache, at most: half of it */
};

/* A convolution in its own right, of windows that lie within the others'. */
typedef struct phase {
    const float *packed;
    int64_t *tap, depth; /* where each step of k lies, from where the largest window begins */
    int64_t *ahead;      /* what to prefetch at each step; NULL: nothing */
} phase;

typedef struct nhwc_nhwc {
    tn_conv_args a;
    im2col_plan w; /* with `x_blocks`, of blocks in place of channels, and distances are in pixels */
    const tile_set *tiles;
    int64_t split[2]; /* phases along the axes: 1 where the results are the image */
    phase phase[NHWC_PHASES];
    int64_t panel, panels;  /* columns of a panel; panels of a group's filters */
    int64_t all_rows, rows; /* of output pixels: of all images; of a block, at most */
    int64_t blocks, parts;  /* of rows; of panels */
    int64_t pieces;         /* of a part, so that the thread that ends first takes some of the other's */
    int64_t depth;          /* of all phases */
    bool in_pixel;          /* windows are read from the image: they never leave it */
    bool cut;               /* blocks are parts of a single row of output pixels */
    int64_t step;           /* elements of a pixel in what tiles read: of a block of channels, or one */
    size_t tap_bytes, input_tile_bytes, sums_bytes, begun_bytes, block_bytes, part_bytes;
    epilogue_ops epilogue_ops; /* with addresses, of channel 0 … */
    bool ends;                 /* … if that is all that the epilogue does */
    char *memory;
} nhwc_nhwc;

static int64_t phase_depth(const tn_conv_args *a) { return a->channels * a->kernel[0] * a->kernel[1]; }

/* Steps of a panel from k0 on that are taken at once. A chunk whose panel would push what tiles see out of the first
 * cache is taken in halves: the chains go on where they were. In blocks, windows see the same lines at many steps. */
static int64_t steps_at(const nhwc_nhwc *t, int64_t depth, int64_t k0) {
    int64_t left = tn_min64(CHUNK - k0 % CHUNK, depth - k0);
    return left * t->panel > PANEL && !(t->a.x_blocks && t->w.taps > 1) ? left / 2 : left;
}

/* Elements that a block sees, at most: all panels of filters read them from the second cache. */
static int64_t near_elements(void) { return tn_cpu().l2 / 2 / (int64_t)sizeof(float); }

/* The number of rows of output pixels whose windows together read at most `elements` elements. */
static int64_t rows_seeing(const tn_conv_args *a, int64_t row, int64_t elements) {
    return (elements / (row * a->channels) - window_reach(a, 0)) / a->stride[0] + 1;
}

/* Rows that see few enough elements; whole images where there are several. Else as many as are pooled together, or a
 * multiple of that. */
static int64_t rows_of_block(const tn_conv_args *a, int64_t row, bool in_pixel) {
    const int64_t down = a->out_size[0], unit = pooled_rows(a);
    const int64_t near = in_pixel ? near_elements() : tn_min64(near_elements(), INPUT_TILE);
    int64_t rows = tn_min64(a->batch * down, tn_max64(MOST_PIXELS / a->out_size[1], 1));
    int64_t image = ((down - 1) * a->stride[0] + window_reach(a, 0)) * row * a->channels;
    if (rows >= down && image <= near) return tn_min64(rows / down, near / image) * down;
    const int64_t least = tn_min64(rows_seeing(a, row, INPUT_TILE), tn_ceil_div(LEAST_PIXELS, a->out_size[1]));
    rows = tn_min64(tn_min64(rows, down), tn_max64(tn_max64(rows_seeing(a, row, near), least), 1));
    return tn_max64(rows / unit, 1) * unit;
}

/* Not where all channels would meet in the same few sets of the first cache. */
static bool is_in_pixel(const tn_conv_args *a) {
    enum { SETS = 4096 / sizeof(float) };
    if (a->stride[1] != 1) return false;
    if (!a->x_blocks && (a->x_stride[3] != 1 || a->x_stride[1] % SETS == 0)) return false;
    for (int d = 0; d < 2; d++) {
        int64_t last = (a->out_size[d] - 1) * a->stride[d] - a->pad_before[d];
        if (a->pad_before[d] > 0 || last + window_reach(a, d) > a->size[d]) return false;
    }
    return true;
}

/* Whether a tile prefetches the image: other threads probably wrote parts of it; each step of k reads a new line, which
 * the panel before has pushed out of the first cache. */
static bool asks_for_image(const nhwc_nhwc *t, const nhwc_phases *phases) {
    return t->in_pixel && !phases && !t->a.quads && t->a.kernel[0] * t->a.kernel[1] == 1;
}

/* `phases`: NULL where the results are the image. */
static void plan_nhwc(nhwc_nhwc *t, const tn_conv_args *args, const nhwc_phases *phases) {
    const conv_vec *with = tn_conv_vec();
    const int64_t step = args->x_blocks ? with->tiles->lanes : 1, channels = tn_ceil_div(args->channels, step);
    *t = (nhwc_nhwc){.a = *args, .panel = 2 * with->tiles->lanes, .step = step};
    t->all_rows = args->batch * args->out_size[0];
    t->tiles = args->quads ? tn_byte_tiles() : with->tiles;
    for (int d = 0; d < 2; d++)
        t->split[d] = phases ? phases->split[d] : 1;
    t->panels = tn_ceil_div(args->out_channels, t->panel);
    tn_im2col_plan(&t->w, with, &t->a, 1, channels);
    t->in_pixel = is_in_pixel(args);
    t->rows = rows_of_block(args, t->w.row, t->in_pixel);
    tn_im2col_plan(&t->w, with, &t->a, (t->rows - 1) * args->out_size[1] + 1, channels);
    const int64_t line = args->x_blocks ? 1 : LINE;
    t->w.channel = (tn_ceil_div(t->w.channel, line) | 1) * line; /* channels begin in all sets of the first cache */
    t->depth = t->w.depth;
    for (int k = 0; phases && k < t->split[0] * t->split[1]; k++)
        t->depth = (k > 0 ? t->depth : 0) + phase_depth(&phases->of[k]);
    t->tap_bytes = tn_whole_lines((size_t)t->depth * (asks_for_image(t, phases) ? 2 : 1) * sizeof(int64_t));
    t->input_tile_bytes = t->in_pixel ? 0 : im2col_bytes(im2col_elements(&t->w) * step);
    t->sums_bytes = im2col_bytes(t->rows * args->out_size[1] * t->split[1] * t->panel);
    t->begun_bytes = t->depth > CHUNK && CHUNK * t->panel > PANEL ? t->sums_bytes : 0;
    t->block_bytes = args->epilogue.vm ? im2col_bytes(t->panel * TN_GEMM_BLOCK_LD) : 0;
    t->part_bytes = IM2COL_BYTES + t->input_tile_bytes + t->sums_bytes + t->begun_bytes + t->block_bytes;
    t->part_bytes += fused_call_scratch(&args->epilogue, 0);
}

/* The last panel may have unused columns, which are computed too: at most an eighth, of bytes half; of windows
 * of one tap, which have few others to choose from, the last vector's. Sums that are rounded to bytes have no other
 * kernel. Rows that are pooled together are those of one
 * block: rows are counted through all images. */
bool tn_conv_nhwc_fits(const tn_conv_args *a) {
    nhwc_nhwc t;
    const bool blocks = a->x_blocks || a->y_blocks;
    const bool turns = !a->quads && !blocks, one_tap = a->kernel[0] * a->kernel[1] == 1;
    const bool dear = turns && (one_tap || tn_conv_vec()->tiles->lanes == MOST_LANES);
    const int64_t unit = pooled_rows(a), least = dear ? LEAST_DEAR_STEPS : LEAST_STEPS;
    if ((a->out_size[1] < LEAST_ACROSS && !a->rounding) || unit * a->out_size[1] > MOST_PIXELS) return false;
    if (a->batch > 1 && a->out_size[0] % unit != 0) return false;
    if (a->channels * a->kernel[0] * a->kernel[1] < least && !a->rounding) return false;
    plan_nhwc(&t, a, NULL);
    const int64_t columns = round_up(a->out_channels, one_tap ? t.tiles->lanes : t.panel);
    bool full = a->rounding          ? true
                : a->quads || blocks ? columns <= 2 * a->out_channels
                                     : 8 * columns <= 9 * a->out_channels;
    return full && im2col_elements(&t.w) * t.step <= 4 * INPUT_TILE;
}

/* ---- filters, packed --------------------------------------------------------------------------------------------- */

size_t tn_conv_nhwc_packed_bytes(const tn_conv_args *a) {
    int64_t panel = 2 * tn_conv_vec()->tiles->lanes;
    return im2col_bytes(a->groups * round_up(a->out_channels, panel) * a->channels * a->kernel[0] * a->kernel[1]);
}

typedef struct packing {
    const tn_conv_args *a;
    const tile_set *with;
    int64_t panels;
    float *to;
} packing;

/* All of k of a panel's filters; unused columns are zero. */
static void pack_panel(const packing *p, const float *from, int64_t out_channels, float *to) {
    const tn_conv_args *a = p->a;
    const int64_t *s = a->weight_stride, panel = 2 * p->with->lanes;
    int64_t taps = a->kernel[0] * a->kernel[1];
    if (out_channels < panel) memset(to, 0, (size_t)(panel * taps * a->channels) * sizeof *to);
    for (int64_t row = 0; row < a->kernel[0]; row++)
        for (int64_t column = 0; column < a->kernel[1]; column++)
            p->with->pack(&(pack){.to = to + (row * a->kernel[1] + column) * panel,
                                  .distance = taps * panel,
                                  .group = panel,
                                  .from = from + row * s[2] + column * s[3],
                                  .along = s[1],
                                  .across = s[0],
                                  .steps = a->channels,
                                  .lines = out_channels});
}

static void pack_panels(void *ctx, int64_t begin, int64_t end, TN_UNUSED int worker) {
    const packing *p = ctx;
    const tn_conv_args *a = p->a;
    const int64_t panel = 2 * p->with->lanes, depth = a->channels * a->kernel[0] * a->kernel[1];
    for (int64_t n = begin; n < end; n++) {
        int64_t first = n % p->panels * panel;
        const float *from = a->weight + n / p->panels * a->weight_group + first * a->weight_stride[0];
        pack_panel(p, from, tn_min64(panel, a->out_channels - first), p->to + n * depth * panel);
    }
}

void tn_conv_nhwc_pack(const tn_conv_args *a, void *to) {
    enum { PART_ELEMENTS = 1 << 14 };
    const tile_set *with = tn_conv_vec()->tiles;
    packing p = {a, with, tn_ceil_div(a->out_channels, 2 * with->lanes), to};
    int64_t elements = 2 * with->lanes * a->channels * a->kernel[0] * a->kernel[1];
    tn_parallel(a->groups * p.panels, tn_max64(PART_ELEMENTS / elements, 1), pack_panels, &p);
}

/* ---- a block ----------------------------------------------------------------------------------------------------- */

/* Output pixels [first, first + count) of all images: whole rows, or a part of one. */
static void see_pixels_of_images(const im2col_plan *w, im2col_run *s, int64_t first, int64_t count) {
    const tn_conv_args *a = w->a;
    const int64_t across = a->out_size[1], plane = a->out_size[0] * across;
    int k = 0, before = s->sections;
    bool alike = before > 0, whole = before > 0;
    for (int64_t at = first; at < first + count; k++) {
        section now = {.image = at / plane, .at = at % plane, .to = at - first};
        now.count = tn_min64(plane - now.at, first + count - at);
        tn_im2col_section(a, &now);
        alike = alike && k < before && s->section[k].at == now.at && s->section[k].count == now.count;
        whole = whole && now.low == 0 && now.high == (now.count / across - 1) * a->stride[0] + window_reach(a, 0);
        s->section[k] = now;
        at += now.count;
    }
    s->sections = k;
    s->clean = (alike && k == before) || whole; /* left and right of the rows are the zeros that always were there */
}

/* Images whose channels lie side by side are turned on the way into the input tile. */
static bool channels_follow(const tn_conv_args *a) {
    return a->x_stride[1] == 1 && a->x_stride[3] != 1 && a->channels > 1 && a->stride[1] == 1;
}

static void turn_into_input_tile(const im2col_plan *w, im2col_run *s, int64_t group) {
    const tn_conv_args *a = w->a;
    const inside in = tn_inside_phase(w, 0, -a->pad_before[1]);
    tn_clear_input_tile(w, s);
    for (int k = 0; k < s->sections && in.low < in.high; k++) {
        const section *now = &s->section[k];
        const float *x = a->x + now->image * a->x_stride[0] + group * a->channels + in.first * a->x_stride[3];
        for (int64_t r = now->low; r < now->high; r++)
            w->with->tiles->pack(&(pack){.to = s->input_tile + k * w->section + r * w->row + in.low,
                                         .distance = w->channel,
                                         .group = in.high - in.low,
                                         .from = x + (now->first + r) * a->x_stride[2],
                                         .along = 1,
                                         .across = a->x_stride[3],
                                         .steps = a->channels,
                                         .lines = in.high - in.low});
    }
}

/* Blocks of channels of an image, of all groups. */
static int64_t blocks_of(const nhwc_nhwc *t) {
    return tn_ceil_div(t->a.groups * t->a.channels, t->w.with->tiles->lanes);
}

/* Pixels of blocks of channels are copied as they are; with a stride one by one, and only rows that windows reach. */
static void copy_blocks(const nhwc_nhwc *t, const section *now, const float *x, const inside *in, float *to) {
    const int64_t step = t->step, stride = t->a.stride[1], across = t->a.size[1], count = in->high - in->low;
    const int64_t down = t->a.stride[0], reach = window_reach(&t->a, 0);
    const im2col_plan *w = &t->w;
    x += ((now->first + now->low) * across + in->first) * step;
    to += (now->low * w->row + in->phase * w->phase + in->low) * step;
    if (stride == 1) {
        w->with->copy_rows(to, w->row * step, x, across * step, now->high - now->low, 1, count * step);
        return;
    }
    for (int64_t r = now->low; r < now->high; r++, to += w->row * step, x += across * step)
        if (r % down < reach) w->with->copy_rows(to, step, x, stride * step, count, 1, step);
}

static void copy_blocks_into_input_tile(const nhwc_nhwc *t, im2col_run *s, int64_t group) {
    const tn_conv_args *a = &t->a;
    const im2col_plan *w = &t->w;
    const int64_t blocks = w->channels, block = a->size[0] * a->size[1] * t->step;
    if (!s->clean) memset(s->input_tile, 0, t->input_tile_bytes);
    s->clean = true;
    for (int64_t i = 0; i < tn_min64(a->stride[1], window_reach(a, 1)); i++) {
        const inside in = tn_inside_phase(w, i, -a->pad_before[1]);
        for (int64_t n = 0; n < blocks * s->sections && in.low < in.high; n++) {
            const section *now = &s->section[n % s->sections];
            const float *x = a->x + (now->image * blocks_of(t) + group * blocks + n / s->sections) * block;
            float *to = s->input_tile + (n / s->sections * w->channel + n % s->sections * w->section) * t->step;
            copy_blocks(t, now, x, &in, to);
        }
    }
}

/* Memory that will be wanted, which tiles ask the second cache for: some strips of lines, `apart` elements from each
 * other; then `again` as many of each of the images behind, `image` elements from the end of the last. */
typedef struct strips {
    const float *at;
    int64_t apart, count, lines, line;
    int64_t batch, again, image;
} strips;

/* Memory of one thread. */
typedef struct nhwc_part {
    im2col_run *s;
    float *sums, *begun, *block; /* begun: chains of which half is summed */
    fused_call epilogue;
    /* The filters of the next chunk; where this panel's results go; what the next block sees that this one does not. */
    strips out_channels, results, next;
    int64_t lines_at_once; /* of filters, that a tile asks for */
} nhwc_part;

static void fill_nhwc(const nhwc_nhwc *w, nhwc_part *p, int64_t group) {
    if (w->in_pixel) return;
    if (w->a.x_blocks)
        copy_blocks_into_input_tile(w, p->s, group);
    else if (channels_follow(&w->a))
        turn_into_input_tile(&w->w, p->s, group);
    else
        tn_fill_input_tile(&w->w, p->s, group, 0, w->a.channels);
}

/* Worth it where images are not in that cache anyway. */
static bool comes_from_afar(const nhwc_nhwc *w) {
    enum { SECOND_CACHE = 2 << 20 };
    const tn_conv_args *a = &w->a;
    int64_t x = a->channels * a->size[0] * a->size[1], y = a->out_channels * a->out_size[0] * a->out_size[1];
    y *= w->split[0] * w->split[1];
    return a->batch * a->groups * (x + y) * (int64_t)sizeof(float) > SECOND_CACHE;
}

static strips make_strips(const float *at, int64_t apart, int64_t count, int64_t strip) {
    return (strips){.at = at, .apart = apart, .count = count, .again = count, .lines = tn_ceil_div(strip, LINE) + 1};
}

/* The same of `images`, `distance` elements from each other. */
static strips of_images(strips s, int64_t batch, int64_t distance) {
    s.batch = batch - 1;
    s.image = distance - s.again * s.apart;
    return s;
}

/* Of images whose rows follow each other: the rows behind a part of one, or the images behind whole ones. */
static strips next_rows(const nhwc_nhwc *w, const section *s, int64_t group, int64_t rows) {
    const tn_conv_args *a = &w->a;
    if (a->x_stride[3] != 1 || a->x_stride[2] != a->size[1]) return (strips){0};
    const int64_t batch = rows / a->out_size[0], image = s->image + batch, left = tn_min64(batch, a->batch - image);
    const int64_t first = batch > 0 ? 0 : s->first + s->high, reach = batch > 0 ? a->size[0] : rows * a->stride[0];
    const int64_t last = tn_min64(first + reach, a->size[0]);
    if (first >= last || (batch > 0 && left <= 0)) return (strips){0};
    const float *x = a->x + image * a->x_stride[0] + group * a->channels * a->x_stride[1];
    const int64_t row = a->x_stride[2];
    strips next = make_strips(x + first * row, a->x_stride[1], a->channels, (last - first) * row);
    return batch > 0 ? of_images(next, left, a->x_stride[0]) : next;
}

static strips results_of(const nhwc_nhwc *w, const nhwc_part *p, int64_t first, int64_t out_channels) {
    const tn_conv_args *a = &w->a;
    const section *s = &p->s->section[0];
    const int64_t area = w->split[0] * w->split[1], plane = result_plane(a) * area;
    const int64_t channels = a->groups * a->out_channels, row = result_extent(a, 1) * area;
    if (!a->out || a->rounding || a->pool[0] > 0) return (strips){0};
    const float *to = a->out + (s->image * channels + first) * plane + s->at / a->out_size[1] * row;
    if (w->cut) return make_strips(to + s->at, plane, out_channels, s->count);
    return of_images(make_strips(to, plane, out_channels, s->count / a->out_size[1] * row), p->s->sections,
                     channels * plane);
}

/* As many lines as the tile has time for: a panel of filters is complete when its first tile begins. */
static void look_ahead_nhwc(nhwc_part *p, tile *t) {
    strips *s = p->out_channels.count > 0 ? &p->out_channels : p->results.count > 0 ? &p->results : &p->next;
    t->ahead_rows = 0;
    if (s->count == 0) return;
    t->ahead = s->at + s->line * LINE;
    t->ahead_row = s == &p->out_channels ? p->lines_at_once : 1;
    t->ahead_rows = tn_min64(s->lines - s->line, t->k / NHWC_AHEAD * t->ahead_row);
    s->line += t->ahead_rows;
    if (s->line < s->lines) return;
    s->line = 0;
    s->at += s->apart;
    if (--s->count > 0 || s->batch == 0) return;
    s->batch--;
    s->count = s->again;
    s->at += s->image;
}

/* Pixels from row to row of the image, or elements. */
static int64_t x_row(const tn_conv_args *a) { return a->x_blocks ? a->size[1] : a->x_stride[2]; }

/* Where section k's first window begins, channel 0 of the group. */
static const float *section_begin(const nhwc_nhwc *w, const nhwc_part *p, int64_t group, int k) {
    const tn_conv_args *a = &w->a;
    const section *s = &p->s->section[k];
    if (!w->in_pixel) return p->s->input_tile + k * w->w.section * w->step;
    const int64_t first = s->first * x_row(a) - a->pad_before[1] + s->at % a->out_size[1];
    if (!a->x_blocks) return a->x + s->image * a->x_stride[0] + group * a->channels * a->x_stride[1] + first;
    const int64_t block = s->image * blocks_of(w) + group * w->w.channels;
    return a->x + (block * a->size[0] * a->size[1] + first) * w->step;
}

/* Some steps of k over the whole block; `t` has the panel, and an output pixel's sums are `from` behind its first in
 * `to`. */
static void multiply_pixels(const nhwc_nhwc *w, nhwc_part *p, int64_t group, float *to, int64_t from, tile t,
                            tile_fn *const *tiles) {
    float *const results = t.to;
    const float *const also = t.also;
    const tile_set *with = w->tiles;
    const int64_t across = w->a.out_size[1], full = w->a.order ? ORDER_ROWS : with->rows;
    const int64_t down = w->a.stride[0] * (w->in_pixel ? x_row(&w->a) : w->w.row) * w->step;
    for (int k = 0; k < p->s->sections; k++) {
        const section *now = &p->s->section[k];
        const float *begin = section_begin(w, p, group, k);
        t.c = to + now->to * t.c_row + from;
        const int64_t blocks = tn_ceil_div(w->a.groups * w->a.out_channels, with->lanes);
        const int64_t in_results = now->image * blocks * t.to_block + now->at * with->lanes;
        if (results) t.to = results + in_results;
        if (also) t.also = also + in_results;
        for (int64_t at = 0; at < now->count; at += across, begin += down) {
            t.a = begin;
            for (int64_t left = tn_min64(across, now->count - at), rows = 0; left > 0;
                 left -= rows, t.a += rows * w->step, t.c += rows * t.c_row) {
                rows = tile_nhwc_height(left, full);
                look_ahead_nhwc(p, &t);
                tiles[rows](&t);
                if (results) t.to += rows * with->lanes;
                if (also) t.also += rows * with->lanes;
            }
        }
    }
}

/* `filters` of them from channel `first` on (of all groups), to where results go, or to the epilogue; what that does to
 * each channel is done while they are turned. */
static void write_out_channels(const nhwc_nhwc *w, nhwc_part *p, const section *now, const float *sums, int64_t first,
                               int64_t out_channels) {
    const tn_conv_args *a = &w->a;
    if (a->rounding) {
        const int64_t plane = a->out_size[0] * a->out_size[1], together = a->rounding->words ? 4 : 1;
        const int64_t channels = round_up(a->groups * a->out_channels, together);
        const int64_t at = (now->image * channels + first) * plane + now->at * together;
        const tn_byte_addend *addend = a->rounding->addend;
        w->tiles->bytes->round(&(byte_result){.rounding = a->rounding,
                                              .channel = first,
                                              .from = (const int32_t *)(const void *)(sums + now->to * w->panel),
                                              .from_row = w->panel,
                                              .to = (uint8_t *)(void *)a->out + at,
                                              .addend = addend ? addend->data + at : NULL,
                                              .plane = plane,
                                              .channels = out_channels,
                                              .pixels = now->count});
        return;
    }
    const int64_t row = now->at / a->out_size[1];
    const bool joined = p->epilogue.vm && !w->ends, pooled = a->pool[0] > 0;
    const box at = {first, out_channels, now->at, now->count};
    epilogue_ops end = w->epilogue_ops;
    if (end.add) end.add += first;
    pack turn = {.to = p->block,
                 .distance = TN_GEMM_BLOCK_LD,
                 .group = now->count,
                 .from = sums + now->to * w->panel,
                 .along = 1,
                 .across = w->panel,
                 .steps = out_channels,
                 .lines = now->count,
                 .epilogue_ops = w->ends ? &end : NULL};
    if (!joined && !pooled) {
        turn.to = result_at(a, now->image, first, row) + now->at % a->out_size[1];
        turn.distance = result_plane(a);
    }
    w->w.with->tiles->pack(&turn);
    if (joined)
        hand_over_result(&p->epilogue, w->w.with, a, now->image, at, p->block);
    else if (pooled)
        pool_block(w->w.with, a, now->image, at, p->block);
}

/* What is pooled is read and written four times: as much at a time as stays in the first cache meanwhile. */
static void write_out(const nhwc_nhwc *w, nhwc_part *p, int64_t first, int64_t out_channels) {
    const int64_t most = w->a.pool[0] > 0 ? w->panel / 2 : w->panel;
    for (int k = 0; k < p->s->sections && !w->a.y_blocks; k++) /* blocks of channels are there */
        for (int64_t i = 0; i < out_channels; i += most)
            write_out_channels(w, p, &p->s->section[k], p->sums + i, first + i, tn_min64(most, out_channels - i));
}

/* What is left of the epilogue, over some results in blocks of channels, which are in the cache. */
static void end_in_blocks(const nhwc_nhwc *w, nhwc_part *p, int64_t first, int64_t out_channels) {
    const int64_t lanes = w->tiles->lanes, blocks = tn_ceil_div(w->a.groups * w->a.out_channels, lanes);
    for (int k = 0; k < p->s->sections; k++) {
        const section *now = &p->s->section[k];
        for (int64_t j = first / lanes; j < tn_ceil_div(first + out_channels, lanes); j++)
            fused_call_flat(&p->epilogue, w->a.out, ((now->image * blocks + j) * w->w.plane + now->at) * lanes,
                            now->count * lanes);
    }
}

/* The sums of a row of phases, every split[0]-th row of pixels from `row` on: of these each output pixel is split[1].
 * */
static void write_pixels(const nhwc_nhwc *w, nhwc_part *p, int64_t first, int64_t out_channels, int64_t row) {
    const tn_conv_args *a = &w->a;
    const int64_t down = w->split[0], side = w->split[1], across = a->out_size[1] * side;
    const int64_t plane = a->out_size[0] * down * across;
    for (int k = 0; k < p->s->sections; k++) {
        const section *now = &p->s->section[k];
        float *image = a->out + (now->image * a->groups * a->out_channels + first) * plane;
        w->w.with->tiles->pack(&(pack){.to = image + now->at * side * down + row * across,
                                       .distance = plane,
                                       .group = across,
                                       .jump = down * across,
                                       .from = p->sums + now->to * side * w->panel,
                                       .along = 1,
                                       .across = w->panel,
                                       .steps = out_channels,
                                       .lines = now->count * side});
    }
}

/* Whether panel n has filters in its first vector only. */
static bool is_half(const nhwc_nhwc *w, int64_t n) { return w->a.out_channels - n * w->panel <= w->tiles->lanes; }

/* Panel n of the filters at one phase, whose sums begin `from` behind an output pixel's first ones. */
static void multiply_phase(const nhwc_nhwc *w, nhwc_part *p, const phase *at, int64_t group, int64_t n, int64_t from) {
    const float *packed = at->packed + (group * w->panels + n) * at->depth * w->panel;
    const int64_t channel = group * w->a.out_channels + n * w->panel;
    const tile_set *with = w->tiles;
    tile_fn *const *tiles = !is_half(w, n)  ? (w->a.x_blocks ? with->blocks : with->nhwc)
                            : w->a.x_blocks ? with->blocks_half
                                            : with->nhwc_half;
    epilogue_ops end = w->epilogue_ops;
    if (end.add) end.add += channel;
    for (int64_t k0 = 0, next; k0 < at->depth; k0 = next) {
        tile t = {.b = packed + k0 * w->panel, .tap = at->tap + k0, .k = steps_at(w, at->depth, k0)};
        next = k0 + t.k;
        int64_t after = next < at->depth ? steps_at(w, at->depth, next) : 0;
        const bool more = n + 1 < w->panels || group + 1 < w->a.groups;
        if (after == 0 && more) after = steps_at(w, at->depth, 0);
        p->out_channels = after > 0 ? make_strips(t.b + t.k * w->panel, 0, 1, after * w->panel) : (strips){0};
        bool first = k0 < CHUNK, whole = next % CHUNK == 0 || next == at->depth;
        t.ahead_tap = at->ahead ? at->ahead + k0 : NULL;
        t.goes_on = k0 % CHUNK > 0;
        t.begun = first ? 0 : p->begun - p->sums;
        t.add = !first && whole;
        t.c_row = w->split[1] * w->panel;
        if (w->a.y_blocks && next == at->depth) {
            t.to_block = w->w.plane * w->tiles->lanes;
            t.columns = tn_min64(w->panel, w->a.out_channels - n * w->panel);
            t.to = w->a.out + channel * w->w.plane;
            t.epilogue_ops = w->ends ? &end : NULL;
            t.also = w->ends && end.also ? end.also + channel * w->w.plane : NULL;
        }
        multiply_pixels(w, p, group, first || whole ? p->sums : p->begun, from, t, tiles);
    }
}

/* The same of bytes whose steps have an order. */
static void multiply_ordered(const nhwc_nhwc *w, nhwc_part *p, const phase *at, int64_t group, int64_t n) {
    const int64_t panel = group * w->panels + n;
    const int32_t *order = w->a.order + panel * (2 + at->depth);
    const byte_kernels *with = w->tiles->bytes;
    tile t = {.b = at->packed + 2 * panel * at->depth * w->panel, .c_row = w->panel};
    int64_t tap[CHUNK], two = order[0], one = order[1];
    p->out_channels = (strips){0};
    for (int64_t k = 0; k < at->depth; k += t.k, two -= t.two, one -= t.one) {
        t.two = tn_min64(two, CHUNK);
        t.one = tn_min64(one, CHUNK - t.two);
        t.k = t.two + t.one + tn_min64(at->depth - k - two - one, (CHUNK - t.two - t.one) / 2);
        t.tap = tap;
        t.add = k > 0;
        for (int64_t i = 0; i < t.k; i++)
            tap[i] = at->tap[order[2 + k + i]];
        multiply_pixels(w, p, group, p->sums, 0, t, is_half(w, n) ? with->order_half : with->order);
        t.b += (2 * t.k - t.two - t.one) * w->panel;
    }
}

/* Output pixels [at, at + count) of all images, some panels. */
static void compute_block(const nhwc_nhwc *w, nhwc_part *p, int64_t group, int64_t at, int64_t count, range panels) {
    const tn_conv_args *a = &w->a;
    const int64_t across = a->out_size[1], plane = a->out_size[0] * across, side = w->split[1];
    const int64_t begin = group * w->all_rows * across + at + 1;
    if (p->s->rows != begin) { /* else a thread takes some more panels */
        see_pixels_of_images(&w->w, p->s, at, count);
        fill_nhwc(w, p, group);
        p->s->rows = begin;
    }
    bool whole = at % plane == 0 && count % plane == 0;
    const bool blocks = a->x_blocks || a->y_blocks;
    bool afar = !blocks && comes_from_afar(w) && (whole || p->s->sections == 1);
    const int64_t tiles = tn_ceil_div(count, w->tiles->rows);
    p->lines_at_once = tn_ceil_div(NHWC_AHEAD * w->panel / LINE, tiles);
    p->results = (strips){0};
    p->next = afar ? next_rows(w, &p->s->section[0], group, count / across) : (strips){0};
    for (int64_t n = panels.first; n < panels.first + panels.count; n++) {
        const int64_t out_channels = tn_min64(w->panel, a->out_channels - n * w->panel);
        const int64_t first = group * a->out_channels + n * w->panel;
        if (afar) p->results = results_of(w, p, first, out_channels);
        for (int64_t k = 0; k < w->split[0] * side; k++) {
            if (a->order)
                multiply_ordered(w, p, &w->phase[k], group, n);
            else
                multiply_phase(w, p, &w->phase[k], group, n, k % side * w->panel);
            if (k % side < side - 1) continue;
            if (w->split[0] * side > 1)
                write_pixels(w, p, first, out_channels, k / side);
            else
                write_out(w, p, first, out_channels);
        }
        if (a->epilogue.flat) end_in_blocks(w, p, first, out_channels);
    }
}

/* The first output pixel of a block. Rows of one image are shared out evenly; of several images, so that blocks are
 * alike. */
static int64_t block_begin(const nhwc_nhwc *w, int64_t n) {
    const int64_t unit = pooled_rows(&w->a), units = tn_ceil_div(w->all_rows, unit), across = w->a.out_size[1];
    if (w->cut) return across * n / w->blocks;
    return tn_min64(w->a.batch == 1 ? units * n / w->blocks * unit : n * w->rows, w->all_rows) * across;
}

static void compute_blocks(void *ctx, int64_t begin, int64_t end, int worker) {
    const nhwc_nhwc *w = ctx;
    char *memory = w->memory + (size_t)worker * w->part_bytes;
    nhwc_part p = {.s = (im2col_run *)(void *)memory};
    memory += IM2COL_BYTES;
    p.s->input_tile = (float *)(void *)memory;
    p.sums = (float *)(void *)(memory + w->input_tile_bytes);
    p.begun = (float *)(void *)(memory + w->input_tile_bytes + w->sums_bytes);
    p.block = (float *)(void *)(memory + w->input_tile_bytes + w->sums_bytes + w->begun_bytes);
    fused_call_open(&p.epilogue, &w->a.epilogue, (char *)p.block + w->block_bytes);
    for (int64_t n = begin; n < end; n++) {
        const int64_t block = n / w->pieces, at = block % w->blocks, part = block / w->blocks % w->parts;
        const int64_t first = block_begin(w, at), count = block_begin(w, at + 1) - first;
        const range panels = split_range(w->panels, w->parts * w->pieces, part * w->pieces + n % w->pieces);
        compute_block(w, &p, block / w->blocks / w->parts, first, count, panels);
    }
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

/* Cost of dividing a single row of output pixels into blocks, and the panels of each block into parts: multiplications
 * of the busiest thread, and its reads. Reading pixels costs most, as other threads have probably just written them. */
static int64_t cut_cost(const nhwc_nhwc *t, int64_t blocks, int64_t parts, int threads) {
    enum { READ_IMAGE = 32, READ_FILTER = 8 }; /* multiplications that take as long (measured) */
    const int64_t pixels = tn_ceil_div(t->a.out_size[1], blocks);
    const int64_t columns = tn_ceil_div(t->panels, parts) * t->panel, rounds = tn_ceil_div(blocks * parts, threads);
    /* Threads divide the depthwise windows behind blocks of channels by channel: if pixels are divided here, they read
     * results of other cores. */
    const int64_t fetched = t->a.y_blocks ? READ_IMAGE * pixels * (blocks - 1) * (t->panels * t->panel / threads) : 0;
    return rounds * t->depth * (pixels * columns + READ_IMAGE * pixels + READ_FILTER * columns) + fetched;
}

/* Threads share the output pixels of a single row, its panels, or both. */
static void share_row(nhwc_nhwc *t, int threads) {
    enum { NEAR_PIXELS = 336 }; /* a panel's results and a vector of channels of these stay in the first cache */
    const int64_t near = tn_min64(tn_max64(near_elements() / t->depth, LEAST_PIXELS), NEAR_PIXELS);
    const int64_t most = tn_max64(tn_min64(t->a.out_size[1] / t->tiles->rows, threads), 1);
    int64_t best = INT64_MAX;
    for (int64_t blocks = 1; blocks <= most; blocks++) {
        const int64_t parts = tn_min64(tn_ceil_div(threads, blocks), t->panels);
        const int64_t cost = cut_cost(t, blocks, parts, threads);
        if (cost >= best) continue;
        best = cost;
        t->blocks = blocks;
        t->parts = parts;
    }
    t->blocks *= tn_max64(t->a.out_size[1] / t->blocks / near, 1);
    t->cut = t->blocks > 1;
}

/* Threads share rows; of few rows, where that comes out even or rows are fewer than threads, panels: each of those is
 * then read by one thread. Either in several pieces each, of some output pixels. */
static void share_out(nhwc_nhwc *t, int threads) {
    enum { PIECES = 8, PLACES = 96 };
    const int64_t unit = pooled_rows(&t->a), units = tn_ceil_div(t->all_rows, unit);
    int64_t share = t->a.groups % threads == 0 ? 1 : threads;
    if (t->all_rows == 1 && t->in_pixel && t->a.pool[0] == 0) {
        share_row(t, (int)share);
        return;
    }
    const bool even = t->panels % share == 0 || units < share;
    t->parts = share > 1 && t->all_rows <= t->rows && even ? t->panels : 1;
    if (t->parts == 1 && share > 1 && t->a.batch == 1) {
        int64_t pieces = tn_min64(t->all_rows * t->a.out_size[1] / PLACES / share, PIECES);
        t->rows = tn_min64(t->rows, tn_ceil_div(units, tn_max64(pieces, 1) * share) * unit);
    }
    if (t->parts == 1) {
        t->blocks = tn_min64(round_up(tn_ceil_div(t->all_rows, t->rows), share), units);
        t->rows = tn_min64(tn_ceil_div(units, t->blocks) * unit, t->rows);
    }
    if (t->parts > 1 || t->a.batch > 1) t->blocks = tn_ceil_div(t->all_rows, t->rows);
}

/* Work for a few microseconds, or a panel. */
static int64_t pieces_of_part(const nhwc_nhwc *t) {
    enum { PIECE = 1 << 18 }; /* multiplications */
    const int64_t panels = t->panels / t->parts, pixels = t->all_rows * t->a.out_size[1] / t->blocks;
    return tn_max64(tn_min64(panels * t->panel * t->depth * pixels / PIECE, panels), 1);
}

size_t tn_conv_nhwc_workspace(const tn_conv_args *args, const nhwc_phases *phases, int threads) {
    nhwc_nhwc t;
    plan_nhwc(&t, args, phases);
    return t.tap_bytes + (size_t)(threads > 1 ? threads : 1) * t.part_bytes;
}

/* Where each step of k of a window lies, from where the largest one begins, in the image or in the input tile. */
static void find_taps(const nhwc_nhwc *t, const tn_conv_args *p, int64_t *tap) {
    const tn_conv_args *a = &t->a;
    const int64_t x_channel = a->x_blocks ? a->size[0] * a->size[1] : a->x_stride[1], stride = a->stride[1];
    const int64_t channel = t->in_pixel ? x_channel : t->w.channel, taps = p->kernel[0] * p->kernel[1];
    const int64_t row = t->in_pixel ? x_row(a) : t->w.row;
    for (int64_t k = 0; k < taps; k++) {
        int64_t i = k / p->kernel[1] * p->dilation[0] + a->pad_before[0] - p->pad_before[0];
        int64_t j = k % p->kernel[1] * p->dilation[1] + a->pad_before[1] - p->pad_before[1];
        tap[k] = (i * row + j % stride * t->w.phase + j / stride) * t->step;
    }
    for (int64_t c = 1, lane = 1 % t->step; c < p->channels; c++, lane = lane + 1 < t->step ? lane + 1 : 0) {
        const int64_t back = lane > 0 ? taps : t->step * taps, further = lane > 0 ? 1 : channel * t->step;
        for (int64_t k = c * taps; k < (c + 1) * taps; k++)
            tap[k] = tap[k - back] + further;
    }
}

/* Sets which line a tile prefetches at each step of k: one that it reads FAR steps later; in its last steps, one that
 * the next tile reads first. In blocks of channels this is a pixel of the second next block. */
static void find_ahead(const nhwc_nhwc *t, const phase *p, int64_t *ahead) {
    enum { FAR = 16 }; /* steps: longer than another processor's cache takes to answer */
    const bool blocks = t->a.x_blocks;
    const int64_t far = blocks ? 2 * t->step : FAR, tile_rows = t->tiles->rows;
    for (int64_t k0 = 0, count; k0 < p->depth; k0 += count) {
        count = steps_at(t, p->depth, k0);
        for (int64_t k = 0; k < count; k++) {
            const int64_t at = k + far < count ? k + far : (k + far - count) % count;
            const int64_t next = k + far < count ? 0 : tile_rows * t->step;
            const int64_t row = blocks ? (k & (t->step - 1)) * (t->step - 1) : tile_rows - 1;
            ahead[k0 + k] = p->tap[k0 + at] + next + row;
        }
    }
}

static void find_phases(nhwc_nhwc *t, const nhwc_phases *phases, int64_t *tap) {
    for (int k = 0; k < t->split[0] * t->split[1]; k++, tap += t->phase[k - 1].depth) {
        const tn_conv_args *p = phases ? &phases->of[k] : &t->a;
        t->phase[k] = (phase){.packed = p->packed, .tap = tap, .depth = phase_depth(p)};
        find_taps(t, p, tap);
    }
    if (!asks_for_image(t, phases)) return;
    t->phase[0].ahead = tap;
    find_ahead(t, &t->phase[0], tap);
}

void tn_conv_nhwc(const tn_conv_args *args, const nhwc_phases *phases, void *workspace) {
    nhwc_nhwc t;
    plan_nhwc(&t, args, phases);
    t.ends = epilogue_by_channels(&args->epilogue, &t.epilogue_ops);
    int threads = tn_conv_threads(args);
    find_phases(&t, phases, workspace);
    t.memory = (char *)workspace + t.tap_bytes;
    share_out(&t, threads);
    t.pieces = threads > 1 ? pieces_of_part(&t) : 1;
    im2col_open(t.memory, t.part_bytes, threads);
    int64_t tasks = t.a.groups * t.parts * t.blocks * t.pieces;
    im2col_parallel(tasks, threads, compute_blocks, &t);
}

/* ==== batch as rows =============================================================================================== */
/* For images with few output pixels in a row, the tiles of the kernel above would have few rows. So several images are
 * transposed into one input tile: a row of it holds the same element of each image, and elements outside the images are
 * a row of zeros. At each tap of each output pixel the operands of all images then lie next to each other. Each output
 * pixel has its own table of the positions of its taps. Sums of an image lie together; they are transposed when they
 * are stored or passed to the epilogue. The chains are those of conv.c, so the bits are equal. */

enum {
    MOST_IMAGES = 28,      /* of a block: two tiles of full height */
    LEAST_IMAGES = 4,      /* tiles are no lower */
    ACROSS = 6,            /* from so many output pixels in a row on, tiles along it are as good */
    MOST_TAPS = 1 << 12,   /* of all output pixels: tables are made at each run */
    BATCH_LEAST_DEPTH = 64 /* steps of k, or turning takes longer than it gains */
};

typedef struct batch_rows {
    tn_conv_args a;
    const conv_vec *with;
    int64_t panel, panels;           /* columns of a panel; panels of the filters */
    int64_t out_size, pixels, depth; /* of an image; of all its channels; steps of k */
    int64_t row;                     /* distance of the input tile's rows */
    int64_t blocks, parts;           /* of images; of panels */
    const float *packed;
    int64_t *tap; /* [output pixels, depth] */
    size_t tap_bytes, input_tile_bytes, sums_bytes, block_bytes, part_bytes;
    char *memory;
} batch_rows;

static void plan_batch_rows(batch_rows *b, const tn_conv_args *args) {
    *b = (batch_rows){.a = *args, .with = tn_conv_vec(), .packed = args->packed};
    b->panel = 2 * b->with->tiles->lanes;
    b->panels = tn_ceil_div(args->out_channels, b->panel);
    b->out_size = args->out_size[0] * args->out_size[1];
    b->pixels = args->channels * args->size[0] * args->size[1];
    b->depth = args->channels * args->kernel[0] * args->kernel[1];
    b->blocks = tn_ceil_div(args->batch, MOST_IMAGES);
    b->parts = 1;
    b->row = tn_ceil_div(args->batch, b->blocks);
    b->tap_bytes = tn_whole_lines((size_t)(b->out_size * b->depth) * sizeof(int64_t));
    b->input_tile_bytes = im2col_bytes((b->pixels + 1) * b->row + MOST_LANES);
    b->sums_bytes = im2col_bytes(b->row * b->out_size * b->panel);
    b->block_bytes = args->epilogue.vm ? im2col_bytes(b->panel * TN_GEMM_BLOCK_LD) : 0;
    b->part_bytes = b->input_tile_bytes + b->sums_bytes + b->block_bytes + fused_call_scratch(&args->epilogue, 0);
}

/* The last panel may have unused columns, which are computed too: at most an eighth. */
bool tn_conv_batch_rows_fits(const tn_conv_args *a) {
    batch_rows b;
    if (a->groups != 1 || a->pool[0] > 0 || a->batch < LEAST_IMAGES || a->out_size[1] >= ACROSS) return false;
    if ((double)a->size[0] * (double)a->size[1] * (double)a->channels > INPUT_TILE) return false;
    plan_batch_rows(&b, a);
    bool deep = b.depth >= BATCH_LEAST_DEPTH && (double)b.depth * (double)b.out_size <= MOST_TAPS;
    return deep && (b.pixels + 1) * b.row <= INPUT_TILE && 8 * b.panels * b.panel <= 9 * a->out_channels;
}

/* ---- what is seen ------------------------------------------------------------------------------------------------ */

/* An output pixel's taps of the first channel, then those of the others: as many rows further, or the row of zeros
 * again. */
static void batch_find_taps(const batch_rows *b, int64_t place, int64_t *tap) {
    const tn_conv_args *a = &b->a;
    const int64_t taps = a->kernel[0] * a->kernel[1], channel = a->size[0] * a->size[1] * b->row;
    for (int64_t k = 0; k < taps; k++) {
        int64_t y = place / a->out_size[1] * a->stride[0] - a->pad_before[0] + k / a->kernel[1] * a->dilation[0];
        int64_t x = place % a->out_size[1] * a->stride[1] - a->pad_before[1] + k % a->kernel[1] * a->dilation[1];
        bool there = y >= 0 && y < a->size[0] && x >= 0 && x < a->size[1];
        const int64_t step = there ? channel : 0;
        int64_t at = there ? (y * a->size[1] + x) * b->row : b->pixels * b->row;
        for (int64_t n = k; n < b->depth; n += taps, at += step)
            tap[n] = at;
    }
}

/* Elements of an image that follow each other are turned together. */
static void fill_batch_rows(const batch_rows *b, int64_t first, int64_t batch, float *input_tile) {
    const tn_conv_args *a = &b->a;
    const int64_t *s = a->x_stride, across = a->size[1], down = a->size[0];
    bool rows = down == 1 || s[2] == across * s[3], planes = rows && (a->channels == 1 || s[1] == down * across * s[3]);
    const int64_t run = planes ? b->pixels : rows ? down * across : across;
    for (int64_t at = 0; at < b->pixels; at += run) {
        int64_t channel = at / (down * across), line = at / across % down;
        b->with->tiles->pack(&(pack){.to = input_tile + at * b->row,
                                     .distance = b->row,
                                     .group = batch,
                                     .from = a->x + first * s[0] + channel * s[1] + line * s[2],
                                     .along = s[3],
                                     .across = s[0],
                                     .steps = run,
                                     .lines = batch});
    }
    memset(input_tile + b->pixels * b->row, 0, (size_t)b->row * sizeof *input_tile);
}

/* ---- a block ----------------------------------------------------------------------------------------------------- */

/* Panel n of the filters over all output pixels of some images. */
static void multiply_batch_rows(const batch_rows *b, int64_t n, int64_t batch, const float *input_tile, float *sums) {
    const tile_set *with = b->with->tiles;
    const int64_t c_row = b->out_size * b->panel;
    for (int64_t k0 = 0; k0 < b->depth; k0 += CHUNK)
        for (int64_t place = 0; place < b->out_size; place++) {
            tile t = {.a = input_tile,
                      .b = b->packed + (n * b->depth + k0) * b->panel,
                      .tap = b->tap + place * b->depth + k0,
                      .c = sums + place * b->panel,
                      .c_row = c_row,
                      .k = tn_min64(CHUNK, b->depth - k0),
                      .add = k0 > 0};
            for (int64_t left = batch, rows = 0; left > 0; left -= rows, t.a += rows, t.c += rows * c_row) {
                rows = tile_nhwc_height(left, with->rows);
                with->nhwc[rows](&t);
            }
        }
}

/* `filters` of them from `first` on, of images from `image` on: to where results go, or one image after the other to
 * the epilogue. */
static void batch_write_out(const batch_rows *b, fused_call *epilogue, box out_channels, int64_t image, int64_t batch,
                            const float *sums, float *block) {
    const tn_conv_args *a = &b->a;
    pack turn = {.to = block,
                 .distance = TN_GEMM_BLOCK_LD,
                 .group = b->out_size,
                 .from = sums,
                 .along = 1,
                 .across = b->panel,
                 .steps = out_channels.rows,
                 .lines = b->out_size};
    if (!epilogue->vm) {
        turn.to = a->out + (image * a->out_channels + out_channels.row) * b->out_size;
        turn.distance = b->out_size;
        turn.jump = a->out_channels * b->out_size;
        turn.lines = batch * b->out_size;
        b->with->tiles->pack(&turn);
        return;
    }
    for (int64_t i = 0; i < batch; i++) {
        turn.from = sums + i * b->out_size * b->panel;
        b->with->tiles->pack(&turn);
        fused_call_run(epilogue, (const int64_t[TN_GEMM_BATCH_AXES]){0, 0, 0, image + i}, out_channels, block);
    }
}

static void batch_compute_blocks(void *ctx, int64_t begin, int64_t end, int worker) {
    const batch_rows *b = ctx;
    char *memory = b->memory + (size_t)worker * b->part_bytes;
    float *input_tile = (float *)(void *)memory, *sums = (float *)(void *)(memory + b->input_tile_bytes);
    float *block = (float *)(void *)(memory + b->input_tile_bytes + b->sums_bytes);
    fused_call epilogue;
    fused_call_open(&epilogue, &b->a.epilogue, (char *)block + b->block_bytes);
    for (int64_t task = begin; task < end; task++) {
        const int64_t number = task / b->parts, part = task % b->parts;
        const int64_t image = b->a.batch * number / b->blocks, batch = b->a.batch * (number + 1) / b->blocks - image;
        fill_batch_rows(b, image, batch, input_tile);
        for (int64_t n = b->panels * part / b->parts; n < b->panels * (part + 1) / b->parts; n++) {
            box out_channels = {n * b->panel, tn_min64(b->panel, b->a.out_channels - n * b->panel), 0, b->out_size};
            multiply_batch_rows(b, n, batch, input_tile, sums);
            batch_write_out(b, &epilogue, out_channels, image, batch, sums, block);
        }
    }
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

size_t tn_conv_batch_rows_workspace(const tn_conv_args *args, int threads) {
    batch_rows b;
    plan_batch_rows(&b, args);
    return b.tap_bytes + (size_t)(threads > 1 ? threads : 1) * b.part_bytes;
}

/* Threads share images; of a few of them panels, each of which is then read by one thread. */
void tn_conv_batch_rows(const tn_conv_args *args, void *workspace) {
    batch_rows b;
    plan_batch_rows(&b, args);
    const int threads = tn_conv_threads(args);
    b.tap = workspace;
    b.memory = (char *)workspace + b.tap_bytes;
    for (int64_t place = 0; place < b.out_size; place++)
        batch_find_taps(&b, place, b.tap + place * b.depth);
    if (b.blocks < threads) b.parts = tn_min64(threads / b.blocks, b.panels);
    im2col_parallel(b.blocks * b.parts, threads, batch_compute_blocks, &b);
}
