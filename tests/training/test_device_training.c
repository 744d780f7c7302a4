/* test_device_training.c — the command trains on every device of this machine that is not the cpu, strictly: the losses
 * are the cpu's, since exact kernels have its bits, and nothing is left to the host. */
#include "test_support.h"

#include "trunnion/trunnion.h"

typedef struct outcome {
    double loss, metric;
    int64_t host_rows;
} outcome;

static outcome train(const char *task, int steps, const char *device) {
    static char line[4096];
    char command[256];
    snprintf(command, sizeof command, "%%s train %s --steps %d --seed 3 --device %s --strict --json 2>%s", task, steps,
             device, test_scratch("said"));
    int code = run_trunnion(command, line, sizeof line);
    char *json = strchr(line, '{'); /* a compiler of a driver may talk before it */
    if (code != 0 || !json) fail_msg("train %s on %s: exit %d: %s", task, device, code, line);
    outcome o = {0};
    char *at = strstr(json, "\"final_loss\": "), *metric = strstr(json, "\"metric\": "),
         *list = strstr(json, "\"fallback\": [");
    assert_non_null(at);
    assert_non_null(metric);
    assert_non_null(list);
    o.loss = atof(at + strlen("\"final_loss\": "));
    o.metric = atof(metric + strlen("\"metric\": "));
    o.host_rows = list[strlen("\"fallback\": [")] != ']';
    return o;
}

static void train_everywhere(const char *task, int steps) {
    tn_device_list *list = NULL;
    outcome here = train(task, steps, "cpu"); /* first: it skips where there is no command */
    assert_ok(tn_device_list_new(false, &list));
    int count = 0;
    for (int i = 0; i < tn_device_list_count(list); i++) {
        const tn_backend_info *b = tn_device_list_at(list, i);
        bool is_engine = strncmp(b->name, "engine:", strlen("engine:")) == 0; /* adds in an order of its own */
        if (!b->available || is_engine || strcmp(b->name, "cpu") == 0) continue;
        const char *id = b->devices[0].id;
        outcome there = train(task, steps, id);
        print_message("%s, %d steps: loss %.9g on the cpu, %.9g on %s (%s); %lld host nodes\n", task, steps, here.loss,
                      there.loss, id, b->devices[0].name, (long long)there.host_rows);
        assert_true(here.loss == there.loss);
        assert_true(here.metric == there.metric);
        assert_int_equal(there.host_rows, 0);
        count++;
    }
    tn_device_list_free(list);
    if (count == 0) {
        print_message("skipped: this machine has the cpu alone\n");
        skip();
    }
}

static void digits_are_learned_with_the_cpus_bits(void **state) {
    (void)state;
    train_everywhere("digits", test_is_full() ? 20 : 6);
    if (test_is_full()) train_everywhere("digits --amp f16", 20); /* most of the time is the drivers' compilers' */
}

static void cartpole_is_learned_with_the_cpus_bits(void **state) {
    (void)state;
    train_everywhere("cartpole", test_is_full() ? 512 : 128);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digits_are_learned_with_the_cpus_bits),
        cmocka_unit_test(cartpole_is_learned_with_the_cpus_bits),
    };
    return cmocka_run_group_tests_name("device_training", tests, make_scratch, remove_scratch);
}
