/* ppo.h — proximal policy optimisation on any policy and a batch of environments. */
#ifndef TRUNNION_CLI_PPO_H
#define TRUNNION_CLI_PPO_H

#include "trunnion/trunnion.h"

/* What the algorithm needs of environments: all of them at once, each starting anew when its episode ends. */
typedef struct ppo_environments {
    int64_t count, observations, actions;
    void *self;
    /* The current observations [count][observations]. */
    void (*observe)(void *self, float *observations);
    /* One step each. ended: the episode ended; cut: by a limit alone, and then `last` (for those) holds the observation
     * behind it. The environments that ended have been started anew. */
    void (*step)(void *self, const int32_t *actions, float *rewards, bool *ended, bool *cut, float *last);
} ppo_environments;

typedef struct ppo_settings {
    int64_t horizon;     /* steps of each environment between updates */
    int64_t stretch;     /* of a policy with state: steps through which the gradient flows back; divides the horizon */
    int64_t epochs;      /* passes over what was collected */
    int64_t minibatches; /* parts of a pass */
    double discount, trace;     /* gamma and lambda */
    double clip, learning_rate; /* at the start; both fall to `floor` of it along a line … */
    double floor;
    int64_t decay_steps; /* … in this many environment steps */
    double value_weight, entropy_weight, max_grad_norm;
    uint64_t seed;
} ppo_settings;

typedef struct ppo ppo;

/* policy and environments are borrowed. */
tn_status ppo_new(tn_policy *policy, const ppo_environments *environments, const ppo_settings *settings, ppo **out);
void ppo_free(ppo *p);

/* Collects horizon steps of every environment and learns from them. step: environment steps made before. *loss: the
 * mean over all updates. */
tn_status ppo_iterate(ppo *p, int64_t step, double *loss);
int64_t ppo_steps_an_iteration(const ppo *p);

/* Of a checkpoint: the optimiser, and tensors that are brought up to date by ppo_store and taken by ppo_restore. */
tn_optimizer *ppo_optimizer(const ppo *p);
int ppo_extras(const ppo *p, tn_variable extras[TN_MAX_POLICY_STATE + 1]);
tn_status ppo_store(ppo *p);
tn_status ppo_restore(ppo *p);

/* The most likely action of each row of logits [count][actions]. */
void ppo_greedy(const float *logits, int64_t count, int64_t actions, int32_t *out);

#endif
