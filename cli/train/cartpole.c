/* cartpole.c — the cart with a pole: Gymnasium's CartPole-v1, in double precision as there.
 *
 * A pole stands on a cart by a hinge without friction; each step pushes the cart to the left or to the right.
 * Equations: Florian 2005, "Correct equations for the dynamics of the cart-pole system"; explicit Euler steps. */
#include <math.h>

#include "cli/train/cartpole.h"
#include "cli/train/train.h"

static const double gravity = 9.8;
static const double cart_mass = 1.0;
static const double pole_mass = 0.1;
static const double half_length = 0.5; /* of the pole */
static const double force = 10.0;
static const double seconds = 0.02; /* a step */
static const double x_limit = 2.4;
static const double theta_limit = 12 * 2 * 3.14159265358979323846 / 360;
static const double reset_range = 0.05;

void cartpole_seed(cartpole *env, uint64_t seed) {
    *env = (cartpole){.random = seed};
    cartpole_reset(env);
}

void cartpole_reset(cartpole *env) {
    double *values[] = {&env->x, &env->x_dot, &env->theta, &env->theta_dot};
    for (int i = 0; i < CARTPOLE_OBSERVATIONS; i++)
        *values[i] = (2 * random_uniform(&env->random) - 1) * reset_range;
    env->steps = 0;
}

cartpole_result cartpole_step(cartpole *env, int action) {
    double total_mass = pole_mass + cart_mass;
    double pole_moment = pole_mass * half_length;
    double push = action == 1 ? force : -force;
    double cosine = cos(env->theta), sine = sin(env->theta);

    double pushed = (push + pole_moment * (env->theta_dot * env->theta_dot) * sine) / total_mass;
    double theta_acceleration =
        (gravity * sine - cosine * pushed) / (half_length * (4.0 / 3.0 - pole_mass * (cosine * cosine) / total_mass));
    double x_acceleration = pushed - pole_moment * theta_acceleration * cosine / total_mass;

    env->x += seconds * env->x_dot;
    env->x_dot += seconds * x_acceleration;
    env->theta += seconds * env->theta_dot;
    env->theta_dot += seconds * theta_acceleration;
    env->steps++;

    bool fallen = fabs(env->x) > x_limit || fabs(env->theta) > theta_limit;
    return (cartpole_result){.terminated = fallen, .truncated = env->steps >= CARTPOLE_LIMIT};
}

void cartpole_observe(const cartpole *env, float observation[CARTPOLE_OBSERVATIONS]) {
    observation[0] = (float)env->x;
    observation[1] = (float)env->x_dot;
    observation[2] = (float)env->theta;
    observation[3] = (float)env->theta_dot;
}
