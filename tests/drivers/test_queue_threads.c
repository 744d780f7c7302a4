/* test_queue_threads.c — queues used by many threads at once; also run under the thread sanitizer. */
#include "test_support.h"

#include <pthread.h>
#include <unistd.h>

#include "async_driver.h"
#include "far_driver.h"
#include "hal/queue.h"
#include "trunnion/trunnion.h"

enum { THREADS = 4, MOST_DEVICES = 3, ROUNDS = 12 };

static tn_device *devices[MOST_DEVICES];
static const char *const names[] = {"cpu", "far", "async"};

static int open_devices(void **state) {
    tn_device_options o = TN_DEVICE_DEFAULTS;
    o.fallback = TN_FALLBACK_STRICT;
    tn_device_options s = TN_DEVICE_DEFAULTS;
    s.fallback = TN_FALLBACK_SILENT;
    if (make_scratch(state) != 0 || tn_device_open("cpu", &o, NULL, &devices[0]) != TN_OK) return -1;
    devices[1] = far_open(0, &s);
    devices[2] = async_open(0, &s);
    return 0;
}

static int close_devices(void **state) {
    for (int i = 0; i < MOST_DEVICES; i++)
        tn_device_close(devices[i]);
    return remove_scratch(state);
}

static atomic_int wrong; /* cmocka's checks are for one thread: the others count */

static void run_everywhere(void *(*body)(void *)) {
    pthread_t threads[THREADS];
    wrong = 0;
    for (intptr_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, body, (void *)i), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(wrong, 0);
    assert_string_equal(async_fault(), "");
}

/* ---- copies at random -------------------------------------------------------------------------------------------- */

/* Each thread copies one buffer to another on a queue of its own. The order in which copies are given is noted under a
 * lock, and what must come out follows from it. */
enum { BUFFERS = 12, WORDS = 300, COPIES = 250 };
static pthread_mutex_t giving = PTHREAD_MUTEX_INITIALIZER;
static tn_buffer *buffers[BUFFERS];
static int expected[BUFFERS], next_value;
static tn_device *device;

static uint32_t next_random(uint32_t *state) {
    *state = *state * 1664525U + 1013904223U;
    return *state >> 8;
}

static void write_anew(int at) {
    int words[WORDS];
    expected[at] = ++next_value;
    for (int i = 0; i < WORDS; i++)
        words[i] = expected[at];
    wrong += tn_buffer_write(buffers[at], 0, words, sizeof words) != TN_OK;
}

static void check_value(int at) {
    int words[WORDS];
    wrong += tn_buffer_read(buffers[at], 0, words, sizeof words) != TN_OK;
    for (int i = 0; i < WORDS; i++)
        wrong += words[i] != expected[at];
}

/* Another block in its place; the old one may be in use. */
static void replace(int at) {
    tn_buffer *fresh;
    if (tn_buffer_new(device, WORDS * sizeof(int), &fresh) != TN_OK) {
        wrong++;
        return;
    }
    wrong += tn_buffer_copy(fresh, buffers[at], WORDS * sizeof(int)) != TN_OK;
    tn_buffer_release(buffers[at]);
    buffers[at] = fresh;
}

static void *copy_at_random(void *number) {
    uint32_t state = (uint32_t)(intptr_t)number + 1;
    tn_queue *q = NULL;
    wrong += tn_queue_new(device, &q) != TN_OK;
    for (int i = 0; i < COPIES; i++) {
        int from = (int)(next_random(&state) % BUFFERS), to = (int)(next_random(&state) % BUFFERS);
        uint32_t kind = next_random(&state) % 16;
        tn_set_current_queue(kind == 15 ? NULL : q);
        pthread_mutex_lock(&giving);
        if (kind == 0) {
            write_anew(to);
        } else if (kind == 1) {
            check_value(to);
        } else if (kind < 4) {
            replace(to);
        } else if (from != to) {
            wrong += tn_buffer_copy(buffers[to], buffers[from], WORDS * sizeof(int)) != TN_OK;
            expected[to] = expected[from];
        }
        pthread_mutex_unlock(&giving);
    }
    tn_set_current_queue(NULL);
    tn_queue_free(q);
    return NULL;
}

static void copies_at_random_keep_their_order(void **state) {
    (void)state;
    for (int d = 0; d < MOST_DEVICES; d++) {
        device = devices[d];
        for (int i = 0; i < BUFFERS; i++) {
            assert_ok(tn_buffer_new(device, WORDS * sizeof(int), &buffers[i]));
            write_anew(i);
        }
        run_everywhere(copy_at_random);
        for (int i = 0; i < BUFFERS; i++) {
            check_value(i);
            tn_buffer_release(buffers[i]);
        }
        assert_int_equal(wrong, 0);
        print_message("ran on: %s\n", names[d]);
    }
}

/* ---- waiting for the same work ----------------------------------------------------------------------------------- */

static tn_timeline_point last_work;
static atomic_int at_the_mark;

static void *wait_for_last_work(void *number) {
    (void)number;
    at_the_mark++;
    wrong += tn_timeline_point_wait(last_work) != TN_OK;
    return NULL;
}

static void *let_go_when_all_wait(void *queue) {
    while (at_the_mark < THREADS)
        usleep(100);
    usleep(5000); /* from the count to the event is a short way, and nothing shows that it was gone */
    async_hold(queue, false);
    return NULL;
}

/* They all stand at one event; each must leave it though the others still stand there. */
static void threads_wait_for_the_same_work(void **state) {
    pthread_t other;
    tn_queue *q;
    tn_buffer *from, *to;
    (void)state;
    device = devices[2];
    assert_ok(tn_queue_new(device, &q));
    assert_ok(tn_buffer_new(device, sizeof(int), &from));
    assert_ok(tn_buffer_new(device, sizeof(int), &to));
    for (int round = 0; round < ROUNDS; round++) {
        assert_ok(tn_queue_synchronize(q));
        async_hold(q->handle, true);
        tn_set_current_queue(q);
        assert_ok(tn_buffer_copy(to, from, sizeof(int)));
        tn_set_current_queue(NULL);
        last_work = tn_timeline_point_at(q->timeline, tn_timeline_submitted(q->timeline));
        at_the_mark = 0;
        alarm(60);
        assert_int_equal(pthread_create(&other, NULL, let_go_when_all_wait, q->handle), 0);
        run_everywhere(wait_for_last_work);
        pthread_join(other, NULL);
        alarm(0);
    }
    tn_buffer_release(from);
    tn_buffer_release(to);
    tn_queue_free(q);
}

/* ---- evaluations ------------------------------------------------------------------------------------------------- */

enum { SIDE = 16 };
static tn_tensor *shared_weight;
static float answers[ROUNDS];

static tn_tensor *input_of(int round) {
    float x[SIDE * SIDE];
    for (int i = 0; i < SIDE * SIDE; i++)
        x[i] = (float)((i + round) % 7) - 3;
    return tn_from_data(x, (int64_t[]){SIDE, SIDE}, 2, TN_F32);
}

static tn_tensor *compute(int round) {
    tn_tensor *y = NULL;
    TN_SCOPE;
    y = tn_keep(tn_sum(tn_tanh(tn_matmul(input_of(round), shared_weight)), NULL, 0, false));
    return y;
}

/* All threads multiply with one weight, each on its queue, none waits before the end. */
static void *multiply(void *number) {
    tn_tensor *y[ROUNDS];
    tn_queue *q = NULL;
    (void)number;
    tn_set_current_device(device);
    wrong += tn_queue_new(device, &q) != TN_OK;
    for (int i = 0; i < ROUNDS; i++) {
        y[i] = compute(i);
        wrong += tn_eval_async(&y[i], 1, q, NULL) != TN_OK;
    }
    for (int i = 0; i < ROUNDS; i++) {
        wrong += (float)tn_item(y[i]) != answers[i];
        tn_free(y[i]);
    }
    tn_queue_free(q);
    return NULL;
}

static void threads_share_a_weight_on_their_queues(void **state) {
    (void)state;
    for (int d = 0; d < MOST_DEVICES; d++) {
        device = devices[d];
        assert_ok(tn_set_current_device(device));
        shared_weight = input_of(3);
        for (int i = 0; i < ROUNDS; i++) {
            tn_tensor *y = compute(i);
            answers[i] = (float)tn_item(y);
            tn_free(y);
        }
        run_everywhere(multiply);
        tn_free(shared_weight);
        print_message("ran on: %s\n", names[d]);
    }
    assert_ok(tn_set_current_device(NULL));
}

/* Thread i computes on device i, on queues of its own; all at once. */
static void *on_a_device_each(void *number) {
    tn_device *d = devices[(intptr_t)number % MOST_DEVICES];
    tn_queue *q[2] = {NULL, NULL};
    tn_set_current_device(d);
    for (int i = 0; i < 2; i++)
        wrong += tn_queue_new(d, &q[i]) != TN_OK;
    tn_tensor *w = input_of(3), *sum = tn_zeros((int64_t[]){SIDE, SIDE}, 2, TN_F32);
    wrong += tn_make_state(sum) != TN_OK;
    for (int i = 0; i < ROUNDS; i++) {
        TN_SCOPE;
        tn_tensor *y = tn_matmul(input_of(i), w);
        wrong += tn_eval_async(&y, 1, q[i % 2], NULL) != TN_OK;
        tn_tensor *moved = tn_to_device(y, devices[((intptr_t)number + 1) % MOST_DEVICES]);
        wrong += tn_eval(&moved, 1) != TN_OK;
        (void)tn_add_(sum, y);
        wrong += tn_eval_async(&sum, 1, q[(i + 1) % 2], NULL) != TN_OK;
    }
    float got[SIDE * SIDE], x[SIDE * SIDE];
    wrong += tn_read(sum, got, sizeof got) != TN_OK;
    tn_tensor *again = tn_zeros((int64_t[]){SIDE, SIDE}, 2, TN_F32);
    for (int i = 0; i < ROUNDS; i++) {
        TN_SCOPE;
        (void)tn_add_(again, tn_matmul(input_of(i), w));
    }
    wrong += tn_read(again, x, sizeof x) != TN_OK;
    wrong += memcmp(got, x, sizeof x) != 0;
    tn_free(w);
    tn_free(sum);
    tn_free(again);
    for (int i = 0; i < 2; i++)
        tn_queue_free(q[i]);
    return NULL;
}

static void devices_compute_at_once(void **state) {
    (void)state;
    run_everywhere(on_a_device_each);
}

/* ---- one queue, many threads ------------------------------------------------------------------------------------- */

static tn_queue *one_queue;

static void *give_to_one(void *number) {
    tn_event *e = NULL;
    bool passed;
    (void)number;
    tn_set_current_device(device);
    wrong += tn_event_new(true, &e) != TN_OK;
    for (int i = 0; i < ROUNDS; i++) {
        tn_tensor *y = compute(i);
        wrong += tn_eval_async(&y, 1, one_queue, e) != TN_OK;
        wrong += tn_event_query(e, &passed) != TN_OK;
        wrong += tn_event_synchronize(e) != TN_OK;
        wrong += tn_event_query(e, &passed) != TN_OK || !passed;
        wrong += (float)tn_item(y) != answers[i];
        tn_free(y);
    }
    tn_event_free(e);
    return NULL;
}

static void threads_share_a_queue(void **state) {
    (void)state;
    for (int d = 0; d < MOST_DEVICES; d++) {
        device = devices[d];
        assert_ok(tn_set_current_device(device));
        shared_weight = input_of(3);
        assert_ok(tn_queue_new(device, &one_queue));
        run_everywhere(give_to_one);
        assert_ok(tn_queue_synchronize(one_queue));
        tn_queue_free(one_queue);
        tn_free(shared_weight);
    }
    assert_ok(tn_set_current_device(NULL));
}

/* Queues come and go while others compute. */
static void *make_and_free(void *number) {
    tn_device *d = devices[(intptr_t)number % MOST_DEVICES];
    for (int i = 0; i < ROUNDS; i++) {
        tn_queue *q = NULL;
        tn_buffer *a = NULL, *b = NULL;
        int got = 0;
        wrong += tn_queue_new(d, &q) != TN_OK;
        tn_set_current_queue(q);
        wrong += tn_buffer_new(d, sizeof i, &a) != TN_OK || tn_buffer_new(d, sizeof i, &b) != TN_OK;
        wrong += tn_buffer_write(a, 0, &i, sizeof i) != TN_OK || tn_buffer_copy(b, a, sizeof i) != TN_OK;
        tn_set_current_queue(NULL);
        if (i % 2) tn_queue_free(q);
        wrong += tn_buffer_read(b, 0, &got, sizeof got) != TN_OK || got != i;
        if (i % 2 == 0) tn_queue_free(q);
        tn_buffer_release(a);
        tn_buffer_release(b);
        wrong += tn_device_synchronize(d) != TN_OK;
    }
    return NULL;
}

static void queues_come_and_go(void **state) {
    (void)state;
    run_everywhere(make_and_free);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_at_random_keep_their_order),
        cmocka_unit_test(threads_wait_for_the_same_work),
        cmocka_unit_test(threads_share_a_weight_on_their_queues),
        cmocka_unit_test(devices_compute_at_once),
        cmocka_unit_test(threads_share_a_queue),
        cmocka_unit_test(queues_come_and_go),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
