/* llm_rope.c — how fast each pair of a head turns with the position: plainly, or slowed down for longer texts. */
#include <math.h>

#include "text/llm_model.h"

static const double PI = 3.14159265358979323846;

static double clamp(double v, double least, double most) { return v < least ? least : v > most ? most : v; }

/* Frequencies that turn rarely within the trained context are divided, fast ones stay, those between are mixed by how
 * often they turn. Source: Llama 3.1's configuration, as transformers computes it. */
static double llama3(const llm_rope *r, double frequency) {
    double turns = r->trained * frequency / (2 * PI);
    double mix = clamp((turns - r->low) / (r->high - r->low), 0, 1);
    return (1 - mix) * frequency / r->factor + mix * frequency;
}

double tn_llm_yarn_amplitude(double factor, double by) { return factor <= 1 ? 1 : 0.1 * by * log(factor) + 1; }

void tn_llm_lengthen(llm_config *c) {
    double longer = c->rope.trained * c->rope.factor;
    if (longer > (double)c->trained_context && longer <= LLM_MOST_CONTEXT) c->trained_context = (int64_t)longer;
}

/* The pair, counted in halves of a head, that turns so many times within the trained context. */
static double pair_of_turns(const llm_rope *r, int64_t half, double turns) {
    return (double)half * log(r->trained / (turns * 2 * PI)) / log(r->base);
}

/* The same mixing, by the number of the frequency. Source: Peng et al. 2023, "YaRN", section 3.2. */
static double yarn(const llm_rope *r, int64_t half, int64_t i, double frequency) {
    double first = pair_of_turns(r, half, r->high), last = pair_of_turns(r, half, r->low);
    if (r->whole) {
        first = floor(first);
        last = ceil(last);
    }
    first = fmax(first, 0);
    last = fmin(last, (double)(2 * half - 1));
    if (first == last) last += 0.001;
    double slow = clamp(((double)i - first) / (last - first), 0, 1);
    return slow * frequency / r->factor + (1 - slow) * frequency;
}

void tn_llm_rope_fill(const llm_rope *r, int64_t half, const float *factors, float *out) {
    for (int64_t i = 0; i < half; i++) {
        double frequency = r->scale * pow(r->base, -(double)i / (double)half);
        if (r->kind == ROPE_LLAMA3) frequency = llama3(r, frequency);
        if (r->kind == ROPE_YARN) frequency = yarn(r, half, i, frequency);
        out[i] = (float)(factors ? frequency / (double)factors[i] : frequency);
    }
}
