/* im2col.c — the planning of windows, and the filling of their input tile (im2col.h). */
#include "kern/cpu/im2col.h"

#include <string.h>

int tn_conv_threads(const tn_conv_args *a) {
    double out_pixels = (double)(a->batch * a->out_size[0] * a->out_size[1]);
    double parts =
        (double)(a->groups * a->out_channels * a->channels * a->kernel[0] * a->kernel[1]) * 2 * out_pixels / PART_FLOPS;
    if (parts < 2) return 1;
    int most = tn_threads();
    return parts < most ? (int)parts : most;
}

bool tn_im2col_is_small(const tn_conv_args *a) {
    bool some = a->batch > 0 && a->groups > 0 && a->channels > 0 && a->out_channels > 0;
    for (int axis = 0; axis < 2; axis++) {
        some = some && a->size[axis] > 0 && a->kernel[axis] > 0 && a->out_size[axis] > 0;
        if (!some || (double)a->dilation[axis] * (double)a->kernel[axis] > INPUT_TILE_ELEMENTS) return false;
        if ((double)a->out_size[axis] * (double)a->stride[axis] > INPUT_TILE_ELEMENTS) return false;
    }
    return true;
}

void tn_im2col_plan(im2col_plan *w, const conv_vec *with, const tn_conv_args *a, int64_t width, int64_t channels,
                    bool lines) {
    int64_t across = a->out_size[1], down = a->out_size[0];
    *w = (im2col_plan){.a = a, .with = with, .plane = across * down, .channels = channels};
    w->taps = a->kernel[0] * a->kernel[1];
    w->depth = a->channels * w->taps;
    bool apart = w->apart = lines && across > WIDE_ROW;
    w->line = apart ? across : a->batch * w->plane;
    width = tn_min64(width, w->line);
    int64_t pixel_rows = apart ? 1 : tn_min64(down, tn_ceil_div(width - 1, across) + 1);
    int64_t sections = apart ? 1 : tn_min64(a->batch, tn_ceil_div(width - 1, w->plane) + 1);
    int64_t columns = ((apart ? width : across) - 1) * a->stride[1] + window_reach(a, 1);
    w->phase = tn_ceil_div(columns, a->stride[1]);
    w->row = w->phase * a->stride[1];
    w->rows = (pixel_rows - 1) * a->stride[0] + window_reach(a, 0);
    w->section = w->rows * w->row;
    w->channel = w->section * sections;
}

void tn_im2col_find_taps(im2col_plan *w, int64_t *tap) {
    const tn_conv_args *a = w->a;
    w->tap = tap;
    for (int64_t k = 0; k < w->taps; k++) {
        int64_t i = k / a->kernel[1] * a->dilation[0], j = k % a->kernel[1] * a->dilation[1];
        tap[k] = i * w->row + j % a->stride[1] * w->phase + j / a->stride[1];
    }
    for (int64_t k = w->taps; k < w->depth; k++)
        tap[k] = tap[k - w->taps] + w->channel;
}

/* ---- a run of output pixels
 * --------------------------------------------------------------------------------------------- */

static void see_pieces(im2col_run *s, int64_t lanes, int64_t to, int64_t count, int64_t from, int64_t panel) {
    for (int64_t i = 0, n = 0; i < count; i += n) {
        n = tn_min64(tn_min64(lanes, count - i), panel - (to + i) % panel);
        s->piece[s->pieces++] = (piece){(int32_t)(from + i), (int32_t)(to + i), (int32_t)n};
    }
}

void tn_im2col_section(const tn_conv_args *a, section *s) {
    int64_t top = s->at / a->out_size[1], down = (s->at + s->count - 1) / a->out_size[1] - top;
    s->first = top * a->stride[0] - a->pad_before[0];
    s->low = s->first < 0 ? -s->first : 0;
    s->high = tn_min64(down * a->stride[0] + window_reach(a, 0), a->size[0] - s->first);
}

void tn_im2col_pixels(const im2col_plan *w, im2col_run *s, int64_t line, int64_t first, int64_t count, int64_t panel) {
    int64_t across = w->a->out_size[1], left = w->apart ? first : 0;
    int k = 0, before = s->sections;
    bool alike = before > 0 && left == s->left;
    s->left = left;
    s->pieces = 0;
    for (int64_t q = 0; q < count; k++) {
        int64_t flat = line * w->line + first + q;
        section now = {.image = flat / w->plane, .at = flat % w->plane, .to = q};
        now.count = tn_min64(w->plane - now.at, count - q);
        alike = alike && k < before && s->section[k].at == now.at && s->section[k].count == now.count;
        tn_im2col_section(w->a, &now);
        s->section[k] = now;
        int64_t column = now.at % across, from = k * w->section + column - left, end = q + now.count;
        for (int64_t run = 0; q < end; q += run) {
            run = tn_min64(across - column, end - q);
            see_pieces(s, w->with->tiles->lanes, q, run, from, panel);
            from += w->a->stride[0] * w->row - column;
            column = 0;
        }
    }
    s->sections = k;
    s->clean = alike && k == before;
}

void tn_im2col_rows(const im2col_plan *w, im2col_run *s, int64_t image, int64_t top, int64_t count) {
    section now = {.image = image, .at = top * w->a->out_size[1], .count = count * w->a->out_size[1]};
    tn_im2col_section(w->a, &now);
    bool whole = now.low == 0 && now.high == (count - 1) * w->a->stride[0] + window_reach(w->a, 0);
    s->clean = s->sections == 1 && whole; /* left and right of its rows are the zeros that always were there */
    s->left = 0;
    s->pieces = 0;
    s->sections = 1;
    s->section[0] = now;
}

/* ---- the input tile
 * ---------------------------------------------------------------------------------------------------- */

inside tn_inside_phase(const im2col_plan *w, int64_t phase, int64_t left) {
    int64_t stride = w->a->stride[1], size = w->a->size[1], begin = left + phase;
    inside in = {.phase = phase};
    in.low = begin < 0 ? tn_ceil_div(-begin, stride) : 0;
    in.high = size > begin ? tn_min64(tn_ceil_div(size - begin, stride), w->phase) : 0;
    in.first = begin + in.low * stride;
    return in;
}

/* What one channel shows of one section. */
static void fill_section(const im2col_plan *w, const section *part, const float *x, const inside *in, float *to) {
    const tn_conv_args *a = w->a;
    to += in->phase * w->phase + in->low;
    int64_t first = part->first * a->x_stride[2] + in->first * a->x_stride[3];
    w->with->copy_rows(to + part->low * w->row, w->row, x + first + part->low * a->x_stride[2], a->x_stride[2],
                       part->high - part->low, a->stride[1] * a->x_stride[3], in->high - in->low);
}

void tn_clear_input_tile(const im2col_plan *w, im2col_run *s) {
    if (!s->clean) memset(s->input_tile, 0, (size_t)im2col_elements(w) * sizeof *s->input_tile);
    s->clean = true;
}

/* Some phases of channels [begin, end): one channel after the other, while it is in the first cache. */
static void fill_phases(const im2col_plan *w, const im2col_run *s, int64_t group, int64_t begin, int64_t end,
                        const inside *in, int count) {
    const tn_conv_args *a = w->a;
    for (int64_t c = begin; c < end; c++) {
        const float *x = a->x + (group * a->channels + c) * a->x_stride[1];
        float *to = s->input_tile + (c - begin) * w->channel;
        for (int k = 0; k < s->sections; k++)
            for (int p = 0; p < count; p++)
                fill_section(w, &s->section[k], x + s->section[k].image * a->x_stride[0], &in[p], to + k * w->section);
    }
}

void tn_fill_input_tile(const im2col_plan *w, im2col_run *s, int64_t group, int64_t begin, int64_t end) {
    enum { MOST = 4 };
    const tn_conv_args *a = w->a;
    inside in[MOST];
    int count = 0;
    tn_clear_input_tile(w, s);
    for (int64_t phase = 0; phase < a->stride[1]; phase++) {
        in[count] = tn_inside_phase(w, phase, s->left * a->stride[1] - a->pad_before[1]);
        count += in[count].low < in[count].high;
        if (count < MOST && phase < a->stride[1] - 1) continue;
        fill_phases(w, s, group, begin, end, in, count);
        count = 0;
    }
}
