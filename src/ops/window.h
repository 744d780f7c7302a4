/* window.h — a window that slides over images: its shapes, what it sees, and the way back.
 *
 * What it sees is made without masks: the image is padded once, then every place of the window is an affine step away.
 * The way back (a gradient, a transposed convolution) is made so too: seen from a pixel, the windows that cover it are
 * again a window over the results. With a stride s there are s classes of pixels along an axis, which meet different
 * taps of the kernel; each class is computed by itself (a phase), and the classes are interleaved. */
#ifndef TN_WINDOW_H
#define TN_WINDOW_H

#include "ops/common.h"

typedef struct tn_window {
    int64_t kernel[2], stride[2], padding[2], dilation[2];
} tn_window;

int64_t tn_window_reach(const tn_window *w, int axis);
/* Places of the window along an axis, -1 when it does not fit. Rounding up, the last one must still begin inside. */
int64_t tn_window_out_size(const tn_window *w, int axis, int64_t size, bool ceil_mode);
tn_status tn_window_check(const tn_infer *c, const tn_window *w, int first_axis);
tn_status tn_window_too_large(const tn_infer *c, const tn_window *w, int axis, int64_t size);

/* Images come as [batch, channels, size…] with `axes` sizes, or without the batch. */
tn_status tn_nchw_check(const tn_infer *c, int axes);
int tn_nchw_channel_dim(const tn_node *x, int axes);
void tn_nchw_infer(tn_infer *c, int axes, int64_t channels,
                   const int64_t *size);                  /* the batch, if any, is the input's */
tn_node *tn_b_as_nchw(tn_build *b, tn_node *x, int axes); /* as [n, c, h, w], whatever it was */

/* What the window sees of x [n, c, h, w] at places[0] × places[1]: [n, c, kernel, kernel,
 * places, places]; `value` outside. */
tn_node *tn_b_im2col(tn_build *b, tn_node *x, const tn_window *w, const int64_t *places, double value);

/* tn_b_pad of an image; what is only cut off is a view. */
tn_node *tn_b_padded(tn_build *b, tn_node *x, const int64_t pads[4], double value);

enum { TN_MAX_PHASES = 8 }; /* along an axis */

/* One class of pixels: the taps that meet it, as a window over the results. */
typedef struct tn_phase {
    int64_t first[2];   /* its lowest tap; then every stride-th */
    int64_t taps[2];    /* how many; 0: nothing reaches these pixels */
    int64_t spacing[2]; /* of the results that neighbouring taps lead to */
    int64_t pads[4];    /* of the results, as tn_b_pad takes them */
    int64_t pixels[2];  /* of this class (one too many where the image ends before) */
} tn_phase;

/* Can the way back be made of phases? Not with both a stride and a dilation. */
bool tn_window_has_phases(const tn_window *w);
/* The class of pixels `number` (down, across) of an image of `size`, seen from results at `places`. */
tn_phase tn_phase_of(const tn_window *w, const int64_t *number, const int64_t *size, const int64_t *places);
/* Has the phase pixels that nothing reaches? */
static inline bool tn_phase_is_empty(const tn_phase *p) { return p->taps[0] == 0 || p->taps[1] == 0; }
/* Results [n, c, places, places] under the phase's window: [n, c, taps, taps, pixels, pixels]. Taps run downwards. */
tn_node *tn_b_im2col_phase(tn_build *b, tn_node *y, const tn_phase *p, double value);
/* Taps that the composition of one filter a channel adds up before it adds these sums; 0: the products themselves are
 * the elements of one reduction. */
int64_t tn_depthwise_pass(const int64_t kernel[2], const int64_t stride[2]);
/* All phases' pixels [n, c, pixels, pixels], row by row, as images of `size`. */
tn_node *tn_b_join_phases(tn_build *b, tn_node *const *parts, const tn_window *w, const int64_t *size);

#endif
