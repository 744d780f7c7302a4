/* cartpole.h — the cart with a pole, many at once: Gymnasium's CartPole-v1. */
#ifndef TRUNNION_CLI_CARTPOLE_H
#define TRUNNION_CLI_CARTPOLE_H

#include <stdbool.h>
#include <stdint.h>

enum {
    CARTPOLE_OBSERVATIONS = 4, /* position, speed, angle, angular speed */
    CARTPOLE_ACTIONS = 2,      /* push to the left, to the right */
    CARTPOLE_LIMIT = 500       /* steps, then the episode is cut */
};

/* One environment. A checkpoint carries its numbers as they are. */
typedef struct cartpole {
    double x, x_dot, theta, theta_dot;
    int64_t steps;   /* in this episode */
    uint64_t random; /* state of its own random numbers */
} cartpole;

typedef struct cartpole_result {
    bool terminated; /* the pole fell or the cart left the track */
    bool truncated;  /* the step limit was reached */
} cartpole_result;

void cartpole_seed(cartpole *env, uint64_t seed);
void cartpole_reset(cartpole *env); /* each of the four values uniform in [-0.05, 0.05) */
/* One step with action 0 or 1; its reward is always 1. The state afterwards is the episode's last when it ended. */
cartpole_result cartpole_step(cartpole *env, int action);
void cartpole_observe(const cartpole *env, float observation[CARTPOLE_OBSERVATIONS]);

#endif
