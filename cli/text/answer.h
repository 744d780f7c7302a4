/* answer.h — one generated text: the prompt is computed, tokens are drawn until one of the limits, and the text appears
 * while it grows. What generate and chat share; serve drives the steps itself. */
#ifndef TRUNNION_CLI_ANSWER_H
#define TRUNNION_CLI_ANSWER_H

#include "cli/cli.h"
#include "trunnion/llm.h"
#include "trunnion/text.h"

enum { ANSWER_ALL = -1 };

/* Log probabilities of a token and of the most probable ones in its place. */
typedef struct answer_logprob {
    double own;
    int top_count;
    tn_logprob *top;
} answer_logprob;

/* Texts before which an answer ends. */
typedef struct cli_stops {
    tn_text_slice list[16];
    int count;
} cli_stops;
bool cli_take_stop(void *stops, const char *text); /* for an option; false: it is empty, or one too many */

typedef struct answer {
    /* set by the caller, who keeps them */
    tn_llm *model;
    const tn_tokenizer *tokenizer; /* NULL: the text is the ids */
    tn_sampler *sampler;
    tn_stop_strings *stops;
    tn_grammar_state *grammar; /* NULL: any text */
    int64_t most;              /* tokens, or ANSWER_ALL */
    int64_t keep; /* tokens of the model's sequence that the prompt begins with: they are not computed again */
    bool silent;  /* nothing goes to standard output */
    int logprobs; /* the most probable tokens to list in each place; -1: no log probabilities */
    /* NULL, or called if the model's device failed with `why` and the text of tn_error(): opens the model on another
     * one, or returns the failure. The text so far is then computed again there. */
    tn_status (*move)(void *ctx, tn_status why, tn_llm **model);
    void *ctx;
    /* results */
    tn_ids ids;
    tn_bytes text;
    answer_logprob *chances; /* [ids.count], with logprobs */
    const char *stopped;     /* "end", "length", "stop" or "cancelled" */
    int stop;                /* the stop string's index; -1: none */
    bool full;               /* length: the context's */
    double prompt_seconds, token_seconds;
    int64_t computed, steps; /* tokens of the prompt, and behind it, that were computed */
    /* private */
    const int32_t *prompt; /* [prompt_count], the caller's */
    int64_t prompt_count;
    tn_text_stream stream;
    tn_bytes raw;
    size_t shown, chance_room;
    bool heard; /* the sampler was given the prompt */
    int32_t vocabulary;
    int64_t context;
    bool *ends;    /* with a grammar: which tokens end the text */
    float *logits; /* and the logits of those that may come next */
} answer;

/* Computes ids[count] of the prompt but the first `keep`, with a bar for long ones; *logits as of tn_llm_prompt. A
 * signal between cli_stop_begin and cli_stop_end leaves the rest: a->stopped is then "cancelled" and *logits NULL. */
tn_status answer_prompt(answer *a, const int32_t *ids, int64_t count, const float **logits);
tn_status answer_generate(answer *a, const float *logits);

/* The parts of answer_generate. begin; while answer_continues: compute the last token, if there is one, and draw from
 * its logits; end. */
tn_status answer_begin(answer *a);
bool answer_continues(answer *a); /* false: a->stopped says why */
tn_status answer_draw(answer *a, const float *logits);
tn_status answer_end(answer *a);
void answer_free(answer *a); /* the results */

#endif
