/* test_queue.c — promises of queues, events, copies beside the caller and the order between queues, on every kind of
 * queue that there is: a thread of ours (cpu, far) and one of an interface (async_driver.h). */
#include "test_support.h"

#include <pthread.h>
#include <unistd.h>

#include "async_driver.h"
#include "far_driver.h"
#include "hal/queue.h"
#include "trunnion/trunnion.h"
#include "wrap_driver.h"

/* ---- devices ----------------------------------------------------------------------------------------------------- */

/* The last only where there is one, or TRUNNION_TEST_DEVICE names another, which has to be there; it cannot be held
 * up. */
static tn_device *devices[4];
static const char *names[] = {"cpu", "far", "async", "opencl"};
enum { OPENCL = 3 };

static int open_devices(void **state) {
    tn_device_options o = TN_DEVICE_DEFAULTS;
    o.fallback = TN_FALLBACK_STRICT;
    if (make_scratch(state) != 0 || tn_device_open("cpu", &o, NULL, &devices[0]) != TN_OK) return -1;
    devices[1] = far_open(0, NULL);
    devices[2] = async_open(0, NULL);
    const char *another = getenv("TRUNNION_TEST_DEVICE");
    if (another) names[3] = another;
    return tn_device_open(names[3], &o, NULL, &devices[3]) != TN_OK && another ? -1 : 0;
}

static int close_devices(void **state) {
    for (size_t i = 0; i < TN_COUNT(devices); i++)
        tn_device_close(devices[i]);
    return remove_scratch(state);
}

static void on_each(void (*test)(tn_device *d)) {
    for (size_t i = 0; i < TN_COUNT(devices); i++) {
        if (!devices[i]) continue;
        test(devices[i]);
        print_message("ran on: %s\n", names[i]);
    }
}

static tn_queue *queue_of(tn_device *d) {
    tn_queue *q;
    assert_ok(tn_queue_new(d, &q));
    return q;
}

/* ---- a gate: work that lies in a queue until it is let go -------------------------------------------------------- */

typedef struct gate {
    tn_task task;
    pthread_mutex_t lock;
    pthread_cond_t moved;
    bool open, failing;
} gate;

static tn_status stand_at_gate(tn_task *t) {
    gate *g = (gate *)t;
    pthread_mutex_lock(&g->lock);
    while (!g->open)
        pthread_cond_wait(&g->moved, &g->lock);
    pthread_mutex_unlock(&g->lock);
    return g->failing ? tn_fail(TN_ERR_DEVICE, "the gate broke") : TN_OK;
}

static void close_gate(gate *g, tn_queue *q, tn_buffer *written) {
    memset(g, 0, sizeof *g);
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->moved, NULL);
    if (!tn_queue_has_thread(q)) {
        if (q->device != devices[OPENCL]) async_hold(q->handle, true);
        return;
    }
    g->task.run = stand_at_gate;
    tn_submission o;
    tn_submission_begin(&o, q->device, q);
    if (written) tn_submission_use(&o, written, true, false);
    tn_submission_enqueue(&o, &g->task);
}

static void open_gate(gate *g, tn_queue *q) {
    if (!tn_queue_has_thread(q)) {
        if (q->device != devices[OPENCL]) async_hold(q->handle, false);
        return;
    }
    pthread_mutex_lock(&g->lock);
    g->open = true;
    pthread_cond_signal(&g->moved);
    pthread_mutex_unlock(&g->lock);
}

static bool reached(const tn_event *e) {
    bool passed = false;
    assert_ok(tn_event_query(e, &passed));
    return passed;
}

static void assert_not_reached(const tn_device *d, const tn_event *e) {
    if (d != devices[OPENCL]) assert_false(reached(e));
}

/* A place behind all that the queue was given so far. */
static tn_event *event_behind(tn_queue *q) {
    tn_event *e;
    assert_ok(tn_event_new(false, &e));
    assert_ok(tn_event_record(e, q));
    return e;
}

static tn_buffer *buffer_of(tn_device *d, int value) {
    tn_buffer *b;
    assert_ok(tn_buffer_new(d, sizeof value, &b));
    assert_ok(tn_buffer_write(b, 0, &value, sizeof value));
    return b;
}

static int value_of(const tn_buffer *b) {
    int value = -1;
    assert_ok(tn_buffer_read(b, 0, &value, sizeof value));
    return value;
}

/* In the order of q. */
static void copy_on(tn_queue *q, tn_buffer *to, tn_buffer *from) {
    tn_queue *before = tn_current_queue();
    assert_ok(tn_set_current_queue(q));
    assert_ok(tn_buffer_copy(to, from, sizeof(int)));
    assert_ok(tn_set_current_queue(before));
}

/* ---- order within a queue and between queues --------------------------------------------------------------------- */

static void events_are_reached_in_order_on(tn_device *d) {
    tn_queue *q = queue_of(d);
    tn_event *never, *first, *second;
    gate g;
    assert_ok(tn_event_new(false, &never));
    assert_true(reached(never));
    close_gate(&g, q, NULL);
    first = event_behind(q);
    second = event_behind(q);
    assert_not_reached(d, first);
    assert_not_reached(d, second);
    open_gate(&g, q);
    assert_ok(tn_event_synchronize(second));
    assert_true(reached(first));
    assert_ok(tn_queue_synchronize(q));
    tn_event_free(never);
    tn_event_free(first);
    tn_event_free(second);
    tn_queue_free(q);
}

static void events_are_reached_in_order(void **state) {
    (void)state;
    on_each(events_are_reached_in_order_on);
}

static void a_queue_waits_for_an_event_on(tn_device *d) {
    tn_queue *a = queue_of(d), *b = queue_of(d);
    gate g;
    close_gate(&g, a, NULL);
    tn_event *of_a = event_behind(a);
    assert_ok(tn_queue_wait(b, of_a));
    tn_event *of_b = event_behind(b);
    assert_not_reached(d, of_b);
    open_gate(&g, a);
    assert_ok(tn_event_synchronize(of_b));
    assert_true(reached(of_a));
    tn_event_free(of_a);
    tn_event_free(of_b);
    tn_queue_free(a);
    tn_queue_free(b);
}

static void a_queue_waits_for_an_event(void **state) {
    (void)state;
    on_each(a_queue_waits_for_an_event_on);
}

/* a writes x while the gate is closed; b reads x: it must see what a wrote. Then a third one overwrites x, which must
 * not disturb b. */
static void memory_is_right_between_queues_on(tn_device *d) {
    tn_queue *a = queue_of(d), *b = queue_of(d), *c = queue_of(d);
    tn_buffer *one = buffer_of(d, 1), *two = buffer_of(d, 2), *x = buffer_of(d, 0), *y = buffer_of(d, 0);
    gate g;
    close_gate(&g, a, NULL);
    copy_on(a, x, one);
    copy_on(b, y, x);
    copy_on(c, x, two);
    tn_event *of_b = event_behind(b), *of_c = event_behind(c);
    assert_not_reached(d, of_b);
    assert_not_reached(d, of_c);
    open_gate(&g, a);
    assert_int_equal(value_of(y), 1);
    assert_int_equal(value_of(x), 2);
    tn_event_free(of_b);
    tn_event_free(of_c);
    tn_buffer_release(one);
    tn_buffer_release(two);
    tn_buffer_release(x);
    tn_buffer_release(y);
    tn_queue_free(a);
    tn_queue_free(b);
    tn_queue_free(c);
}

static void memory_is_right_between_queues(void **state) {
    (void)state;
    on_each(memory_is_right_between_queues_on);
}

/* More readers than a buffer has places for marks. */
static void a_write_waits_for_every_reader_on(tn_device *d) {
    enum { READERS = 7 };
    tn_buffer *x = buffer_of(d, 5), *two = buffer_of(d, 2), *y[READERS];
    tn_queue *q[READERS], *writer = queue_of(d);
    gate g[READERS];
    for (int i = 0; i < READERS; i++) {
        q[i] = queue_of(d);
        y[i] = buffer_of(d, 0);
        close_gate(&g[i], q[i], NULL);
        copy_on(q[i], y[i], x);
    }
    copy_on(writer, x, two);
    tn_event *written = event_behind(writer);
    for (int i = 0; i < READERS; i++) {
        assert_not_reached(d, written);
        open_gate(&g[i], q[i]);
    }
    assert_ok(tn_event_synchronize(written));
    for (int i = 0; i < READERS; i++) {
        assert_int_equal(value_of(y[i]), 5);
        tn_buffer_release(y[i]);
        tn_queue_free(q[i]);
    }
    assert_int_equal(value_of(x), 2);
    tn_event_free(written);
    tn_buffer_release(x);
    tn_buffer_release(two);
    tn_queue_free(writer);
}

static void a_write_waits_for_every_reader(void **state) {
    (void)state;
    on_each(a_write_waits_for_every_reader_on);
}

static void readers_do_not_wait_for_each_other_on(tn_device *d) {
    tn_queue *a = queue_of(d), *b = queue_of(d);
    tn_buffer *x = buffer_of(d, 5), *y = buffer_of(d, 0), *z = buffer_of(d, 0);
    gate g;
    close_gate(&g, a, NULL);
    copy_on(a, y, x);
    copy_on(b, z, x);
    assert_int_equal(value_of(z), 5);
    open_gate(&g, a);
    assert_int_equal(value_of(y), 5);
    tn_buffer_release(x);
    tn_buffer_release(y);
    tn_buffer_release(z);
    tn_queue_free(a);
    tn_queue_free(b);
}

static void readers_do_not_wait_for_each_other(void **state) {
    (void)state;
    on_each(readers_do_not_wait_for_each_other_on);
}

/* ---- memory that goes back to the pool --------------------------------------------------------------------------- */

static void blocks_in_use_are_not_given_to_others_on(tn_device *d) {
    tn_queue *a = queue_of(d), *b = queue_of(d);
    tn_buffer *one = buffer_of(d, 1), *x, *again;
    gate g;
    tn_memory_trim(d);
    assert_ok(tn_buffer_new(d, 300000, &x));
    void *address = x->address;
    close_gate(&g, a, NULL);
    copy_on(a, x, one);
    tn_buffer_release(x);
    assert_ok(tn_set_current_queue(b));
    tn_pool_stats before = {.struct_size = sizeof before}, after = {.struct_size = sizeof after};
    assert_ok(tn_device_get_pool_stats(d, &before));
    assert_ok(tn_buffer_new(d, 300000, &again));
    if (d != devices[OPENCL]) assert_ptr_not_equal(again->address, address); /* there the copy may be over by now */
    assert_ok(tn_device_get_pool_stats(d, &after));                          /* what was passed over was not used */
    assert_int_equal(after.allocations, before.allocations + 1);
    if (d != devices[OPENCL]) assert_int_equal(after.hits, before.hits);
    tn_buffer_release(again);
    assert_ok(tn_set_current_queue(a));
    tn_buffer *own[2]; /* that of the other queue, which is free, and the one that this queue is through with in time */
    for (int i = 0; i < 2; i++)
        assert_ok(tn_buffer_new(d, 300000, &own[i]));
    assert_true(own[0]->address == address || own[1]->address == address);
    assert_ok(tn_set_current_queue(NULL));
    open_gate(&g, a);
    for (int i = 0; i < 2; i++)
        tn_buffer_release(own[i]);
    assert_ok(tn_queue_synchronize(a));
    tn_buffer_release(one);
    tn_queue_free(a);
    tn_queue_free(b);
    tn_memory_trim(d);
}

static void blocks_in_use_are_not_given_to_others(void **state) {
    (void)state;
    on_each(blocks_in_use_are_not_given_to_others_on);
}

static int released;
static void count_release(void *ctx) {
    (void)ctx;
    released++;
}

typedef struct opener {
    gate *g;
    tn_queue *q;
} opener;
static void *open_later(void *argument) {
    const opener *o = argument;
    usleep(20000);
    open_gate(o->g, o->q);
    return NULL;
}

static void borrowed_memory_goes_back_when_queues_are_through(void **state) {
    (void)state;
    tn_device *d = devices[0];
    tn_queue *q = queue_of(d);
    int memory = 7;
    gate g;
    tn_buffer *x, *y = buffer_of(d, 0);
    assert_ok(tn_buffer_borrow(d, &memory, sizeof memory, count_release, NULL, &x));
    close_gate(&g, q, NULL);
    copy_on(q, y, x);
    pthread_t thread;
    opener o = {&g, q};
    assert_int_equal(pthread_create(&thread, NULL, open_later, &o), 0);
    released = 0;
    tn_buffer_release(x); /* waits: the owner may reuse the memory as soon as he is told */
    assert_int_equal(released, 1);
    memory = 8;
    pthread_join(thread, NULL);
    assert_int_equal(value_of(y), 7);
    tn_buffer_release(y);
    tn_queue_free(q);
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

static void after_a_failure_nothing_is_computed_from_it_on(tn_device *d) {
    tn_queue *q = queue_of(d), *other = queue_of(d);
    if (!tn_queue_has_thread(q)) { /* an interface's failures come from its calls */
        tn_queue_free(q);
        tn_queue_free(other);
        return;
    }
    tn_buffer *x = buffer_of(d, 1), *y = buffer_of(d, 2), *z = buffer_of(d, 3), *kept = buffer_of(d, 4);
    gate g;
    close_gate(&g, q, x);
    copy_on(q, y, x);     /* behind it in its queue */
    copy_on(other, z, x); /* of what it should have made, elsewhere */
    tn_submission o;      /* a state: it is as it was */
    tn_task nothing = {.run = NULL};
    tn_submission_begin(&o, d, q);
    tn_submission_use(&o, kept, true, true);
    tn_submission_enqueue(&o, &nothing);
    g.failing = true;
    open_gate(&g, q);
    int value;
    assert_int_equal(tn_buffer_read(x, 0, &value, sizeof value), TN_ERR_DEVICE);
    assert_text_has(tn_error(), "the gate broke");
    assert_int_equal(tn_buffer_read(y, 0, &value, sizeof value), TN_ERR_DEVICE);
    assert_int_equal(tn_buffer_read(z, 0, &value, sizeof value), TN_ERR_DEVICE);
    assert_int_equal(value_of(kept), 4);
    assert_int_equal(tn_queue_synchronize(other), TN_ERR_DEVICE);
    assert_int_equal(tn_queue_synchronize(q), TN_ERR_DEVICE);
    assert_text_has(tn_error(), "the gate broke");
    assert_ok(tn_queue_synchronize(q));                                          /* it was told */
    assert_int_equal(tn_buffer_read(x, 0, &value, sizeof value), TN_ERR_DEVICE); /* it stays unmade */
    copy_on(q, y, kept);
    assert_int_equal(value_of(y), 4); /* written anew */
    copy_on(q, z, x);
    assert_int_equal(tn_queue_synchronize(q), TN_ERR_DEVICE);
    assert_ok(tn_buffer_write(x, 0, &(int){9}, sizeof(int)));
    assert_int_equal(value_of(x), 9);
    tn_buffer_release(x);
    tn_buffer_release(y);
    tn_buffer_release(z);
    tn_buffer_release(kept);
    tn_queue_free(q);
    tn_queue_free(other);
    for (int i = 0; i < 8; i++) { /* a block does not remember */
        x = buffer_of(d, i);
        assert_int_equal(value_of(x), i);
        tn_buffer_release(x);
    }
}

static void after_a_failure_nothing_is_computed_from_it(void **state) {
    (void)state;
    on_each(after_a_failure_nothing_is_computed_from_it_on);
}

/* ---- copies by hand ---------------------------------------------------------------------------------------------- */

static void copies_go_beside_the_caller_on(tn_device *d) {
    enum { BYTES = 300001 };
    tn_queue *q = queue_of(d);
    tn_event *begin, *end;
    const char *reason = NULL;
    void *out, *back, *x, *y;
    double seconds = -1;
    assert_ok(tn_event_new(true, &begin));
    assert_ok(tn_event_new(true, &end));
    assert_ok(tn_host_alloc(d, BYTES, &out, &reason));
    assert_ok(tn_host_alloc(d, BYTES, &back, NULL));
    assert_non_null(reason);
    assert_int_equal((uintptr_t)out % 64, 0);
    assert_ok(tn_device_alloc(d, BYTES, 64, &x));
    assert_ok(tn_device_alloc(d, BYTES, 64, &y));
    for (int i = 0; i < BYTES; i++)
        ((unsigned char *)out)[i] = (unsigned char)(i * 7);
    gate g;
    close_gate(&g, q, NULL);
    assert_ok(tn_event_record(begin, q));
    assert_ok(tn_device_copy_async(d, x, NULL, out, BYTES, q, NULL));
    assert_ok(tn_device_copy_async(d, y, d, x, BYTES, q, NULL));
    assert_ok(tn_device_copy_async(NULL, back, d, y, BYTES, q, end));
    assert_not_reached(d, end);
    open_gate(&g, q);
    assert_ok(tn_event_elapsed(begin, end, &seconds));
    assert_true(seconds >= 0);
    assert_memory_equal(back, out, BYTES);
    assert_int_equal(tn_device_copy_async(NULL, back, devices[d == devices[0]], y, BYTES, q, NULL), TN_ERR_ARGUMENT);
    memset(back, 0, BYTES);
    assert_ok(tn_device_copy_async(NULL, back, d, y, BYTES, NULL, end)); /* no queue: it has ended */
    assert_memory_equal(back, out, BYTES);
    tn_device_dealloc(d, x);
    tn_device_dealloc(d, y);
    tn_host_free(out);
    tn_host_free(back);
    tn_host_free(NULL);
    tn_event_free(begin);
    tn_event_free(end);
    tn_queue_free(q);
}

static void copies_go_beside_the_caller(void **state) {
    (void)state;
    on_each(copies_go_beside_the_caller_on);
}

static void copies_between_devices(void **state) {
    (void)state;
    enum { BYTES = 2500000 };
    unsigned char *out = malloc(BYTES), *back = malloc(BYTES);
    for (int i = 0; i < BYTES; i++)
        out[i] = (unsigned char)(i * 11 + i / 300);
    for (size_t from = 0; from < TN_COUNT(devices); from++)
        for (size_t to = 0; to < TN_COUNT(devices); to++) {
            void *x, *y;
            if (from == to || !devices[from] || !devices[to]) continue;
            tn_queue *q = queue_of(devices[to]);
            assert_ok(tn_device_alloc(devices[from], BYTES, 64, &x));
            assert_ok(tn_device_alloc(devices[to], BYTES, 64, &y));
            memset(back, 0, BYTES);
            assert_ok(tn_device_copy(devices[from], x, NULL, out, BYTES));
            assert_ok(tn_device_copy_async(devices[to], y, devices[from], x, BYTES, q, NULL));
            assert_ok(tn_device_copy(NULL, back, devices[to], y, BYTES)); /* waits for the queue */
            assert_memory_equal(back, out, BYTES);
            tn_device_dealloc(devices[from], x);
            tn_device_dealloc(devices[to], y);
            tn_queue_free(q);
        }
    free(out);
    free(back);
}

static void mapped_memory_is_the_devices_on(tn_device *d) {
    void *x, *host;
    int in[4] = {1, 2, 3, 4}, out[4];
    assert_ok(tn_device_alloc(d, sizeof in, 64, &x));
    assert_ok(tn_device_copy(d, x, NULL, in, sizeof in));
    assert_ok(tn_device_map(d, x, sizeof in, true, &host));
    if (d->caps.host_visible) assert_ptr_equal(host, x); /* no copy */
    assert_memory_equal(host, in, sizeof in);
    ((int *)host)[2] = 30;
    tn_device *other = d == devices[0] ? devices[1] : devices[0];
    assert_int_equal(tn_device_unmap(other, x, host), TN_ERR_ARGUMENT);
    assert_ok(tn_device_unmap(d, x, host));
    assert_ok(tn_device_copy(NULL, out, d, x, sizeof out));
    assert_int_equal(out[2], 30);
    assert_int_equal(out[3], 4);
    assert_int_equal(tn_device_unmap(d, x, host), TN_ERR_ARGUMENT);
    tn_device_dealloc(d, x);
}

static void mapped_memory_is_the_devices(void **state) {
    (void)state;
    on_each(mapped_memory_is_the_devices_on);
}

static void pinned_memory_says_why_it_is_not(void **state) {
    (void)state;
    const char *reason = NULL;
    void *p;
    assert_ok(tn_host_alloc(devices[0], 100, &p, &reason));
    assert_text_has(reason, "nothing needs to be pinned");
    assert_int_equal((uintptr_t)p % 4096, 0);
    tn_host_free(p);
    assert_ok(tn_host_alloc(devices[1], 0, &p, &reason));
    assert_text_has(reason, "pinned memory");
    tn_host_free(p);
    assert_ok(tn_host_alloc(devices[2], 100, &p, &reason));
    assert_string_equal(reason, "");
    tn_host_free(p);
    assert_int_equal(tn_host_alloc(devices[0], SIZE_MAX, &p, &reason), TN_ERR_MEMORY);
    assert_null(p);
    tn_host_free(&p); /* not ours */
    assert_text_has(tn_error(), "was not allocated");
}

/* ---- times, lifetimes -------------------------------------------------------------------------------------------- */

static void times_need_timed_events_by_one_clock(void **state) {
    (void)state;
    double seconds;
    tn_event *plain, *timed, *elsewhere;
    tn_queue *q = queue_of(devices[2]);
    assert_ok(tn_event_new(false, &plain));
    assert_ok(tn_event_new(true, &timed));
    assert_ok(tn_event_new(true, &elsewhere));
    assert_int_equal(tn_event_elapsed(timed, timed, &seconds), TN_ERR_STATE); /* not recorded */
    assert_ok(tn_set_current_device(devices[0]));
    assert_ok(tn_event_record(timed, NULL));
    assert_ok(tn_event_record(plain, NULL));
    assert_int_equal(tn_event_elapsed(timed, plain, &seconds), TN_ERR_STATE);
    assert_ok(tn_event_record(elsewhere, q));
    assert_int_equal(tn_event_elapsed(timed, elsewhere, &seconds), TN_ERR_ARGUMENT);
    assert_ok(tn_event_record(elsewhere, NULL)); /* moved to the other clock */
    assert_ok(tn_event_elapsed(timed, elsewhere, &seconds));
    assert_true(seconds >= 0 && seconds < 60);
    assert_ok(tn_set_current_device(NULL));
    tn_event_free(plain);
    tn_event_free(timed);
    tn_event_free(elsewhere);
    tn_queue_free(q);
}

static void a_queue_keeps_its_device_open(void **state) {
    (void)state;
    int64_t before = tn_memory_get_stats().live_buffers;
    tn_device *d = far_open(1, NULL);
    tn_queue *q = queue_of(d);
    assert_ptr_equal(tn_queue_device(q), d);
    assert_true(tn_queue_is_thread(q));
    tn_device_close(d);
    tn_event *e = event_behind(q);
    assert_ok(tn_event_synchronize(e));
    tn_event_free(e);
    tn_queue_free(q);
    assert_int_equal(tn_memory_get_stats().live_buffers, before);
    d = async_open(1, NULL);
    q = queue_of(d);
    assert_false(tn_queue_is_thread(q));
    tn_device_close(d);
    tn_queue_free(q);
    assert_int_equal(tn_memory_get_stats().live_buffers, before);
    assert_string_equal(async_fault(), "");
}

static void queues_end_somewhere(void **state) {
    (void)state;
    tn_queue *q[TN_TIMELINES];
    int count = 0;
    while (count < TN_TIMELINES && tn_queue_new(devices[0], &q[count]) == TN_OK)
        count++;
    assert_true(count < TN_TIMELINES);
    assert_null(q[count]);
    assert_int_equal(tn_error_code(), TN_ERR_MEMORY);
    while (count > 0)
        tn_queue_free(q[--count]);
    for (int round = 0; round < 300; round++) { /* lines are used again */
        tn_queue *one = queue_of(devices[0]);
        tn_buffer *x = buffer_of(devices[0], round), *y = buffer_of(devices[0], 0);
        copy_on(one, y, x);
        tn_queue_free(one);
        assert_int_equal(value_of(y), round);
        tn_buffer_release(x);
        tn_buffer_release(y);
    }
}

static tn_status count_run(tn_task *t) {
    (void)t;
    released++;
    return TN_OK;
}

/* Work behind that of very many queues, none of which has ended: who gives it is not held up. */
static void giving_waits_for_no_other_queue(void **state) {
    (void)state;
    enum { QUEUES = 40 };
    static gate gates[QUEUES];
    static tn_task last;
    tn_queue *q[QUEUES], *end = queue_of(devices[0]);
    tn_timeline_point marks[QUEUES];
    tn_submission o;
    for (int i = 0; i < QUEUES; i++) {
        q[i] = queue_of(devices[0]);
        close_gate(&gates[i], q[i], NULL);
        marks[i] = tn_timeline_point_at(q[i]->timeline, tn_timeline_submitted(q[i]->timeline));
    }
    released = 0;
    last = (tn_task){.run = count_run};
    tn_submission_begin(&o, devices[0], end);
    for (int i = 0; i < QUEUES; i++)
        tn_submission_wait_for(&o, marks[i]);
    tn_submission_enqueue(&o, &last);
    tn_event *e = event_behind(end);
    for (int i = 0; i < QUEUES; i++) {
        assert_false(reached(e));
        open_gate(&gates[i], q[i]);
    }
    assert_ok(tn_queue_synchronize(end));
    assert_int_equal(released, 1);
    tn_event_free(e);
    for (int i = 0; i < QUEUES; i++)
        tn_queue_free(q[i]);
    tn_queue_free(end);
}

static void more_work_than_a_queue_holds_waits_on(tn_device *d) {
    enum { COPIES = 2000 };
    tn_queue *q = queue_of(d);
    tn_buffer *a = buffer_of(d, 1), *b = buffer_of(d, 2), *c = buffer_of(d, 0);
    for (int i = 0; i < COPIES; i++)
        copy_on(q, c, i % 2 ? a : b);
    assert_int_equal(value_of(c), 1);
    tn_buffer_release(a);
    tn_buffer_release(b);
    tn_buffer_release(c);
    tn_queue_free(q);
}

static void more_work_than_a_queue_holds_waits(void **state) {
    (void)state;
    on_each(more_work_than_a_queue_holds_waits_on);
}

/* Its failures are told by tn_device_synchronize, once: else the device would be of no use any more. */
static void a_devices_own_queue_goes_on_when_its_failure_was_told(void **state) {
    (void)state;
    const tn_driver *driver = wrap_driver(&async_driver);
    tn_device *d;
    assert_ok(tn_backend_register(driver));
    assert_ok(tn_device_open(driver->name, NULL, NULL, &d));
    assert_ok(tn_set_current_device(d));
    tn_queue *q = queue_of(d);
    {
        TN_SCOPE;
        float got[4];
        tn_tensor *x = tn_full(TN_DIMS(4), 2, TN_F32);
        assert_ok(tn_eval(&x, 1));
        tn_tensor *y = tn_add(x, x);
        wrap_now.fail_at = 1;
        wrap_now.fail_kind = WRAP_EVENT_RECORD;
        wrap_now.fail_with = TN_ERR_MEMORY;
        assert_int_equal(tn_eval(&y, 1), TN_ERR_MEMORY);
        assert_int_equal(tn_eval(&y, 1), TN_ERR_MEMORY); /* it has not been told yet */
        assert_int_equal(tn_device_synchronize(d), TN_ERR_MEMORY);
        assert_ok(tn_device_synchronize(d));
        assert_ok(tn_read(y, got, sizeof got));
        assert_float_equal(got[1], 4, 0);
    }
    wrap_reset();
    tn_queue_free(q);
    assert_ok(tn_set_current_device(NULL));
    tn_device_close(d);
}

/* An index outside its tensor, computed there: the CPU stops before its use, other devices count it, and the wait
 * for that work reports it once. */
static void counted_on(tn_device *d) {
    assert_ok(tn_set_current_device(d));
    tn_queue *further = queue_of(d), *const queues[] = {NULL, further};
    for (int i = 0; i < 4; i++) {
        TN_SCOPE;
        bool wrong = i % 2 == 0;
        tn_tensor *x = tn_from_data((float[]){5, 6, 7}, TN_DIMS(3), TN_F32);
        tn_tensor *sent = tn_from_data((int32_t[]){0, 1, 1}, TN_DIMS(3), TN_I32);
        tn_tensor *moved = tn_from_data((int32_t[]){0, wrong ? 2 : 1, wrong ? -2 : -1}, TN_DIMS(3), TN_I32);
        tn_tensor *index = tn_add(sent, moved), *y = tn_gather(x, 0, index);
        tn_status s = tn_eval_async(&y, 1, queues[i / 2], NULL);
        if (s == TN_OK && queues[i / 2]) s = tn_queue_synchronize(further);
        if (s == TN_OK) s = tn_device_synchronize(d);
        assert_int_equal(s, wrong ? TN_ERR_ARGUMENT : TN_OK);
        if (wrong) assert_text_has(tn_error(), d == devices[0] ? "gather: index 3" : "gather: 2 of the indices that");
        assert_ok(tn_device_synchronize(d));
        if (!wrong) assert_true(tn_item(tn_select(y, 0, 1)) == 7);
    }
    assert_ok(tn_set_current_device(NULL));
    tn_queue_free(further);
}

static void indices_outside_are_reported_by_the_wait(void **state) {
    (void)state;
    on_each(counted_on);
}

enum { COUNTING_TURNS = 200 };

/* Evaluates with computed indices and waits, while another thread does the same. */
static void *counts_and_waits(void *device) {
    bool good = tn_set_current_device(device) == TN_OK;
    for (int i = 0; i < COUNTING_TURNS && good; i++) {
        TN_SCOPE;
        tn_tensor *one = tn_from_data((int32_t[]){1, 0}, TN_DIMS(2), TN_I32);
        tn_tensor *y = tn_gather(tn_from_data((float[]){5, 6, 7}, TN_DIMS(3), TN_F32), 0, tn_add(one, one));
        good = tn_eval(&y, 1) == TN_OK && tn_device_synchronize(device) == TN_OK;
    }
    tn_clear_plans();
    return good ? device : NULL;
}

static void threads_count_and_wait_on(tn_device *d) {
    pthread_t other;
    void *ended = NULL;
    tn_queue *further = queue_of(d); /* so that the device's work is ordered */
    alarm(60);
    assert_int_equal(pthread_create(&other, NULL, counts_and_waits, d), 0);
    assert_non_null(counts_and_waits(d));
    assert_int_equal(pthread_join(other, &ended), 0);
    alarm(0);
    assert_non_null(ended);
    assert_ok(tn_set_current_device(NULL));
    tn_queue_free(further);
}

static void threads_that_count_do_not_wait_for_each_other(void **state) {
    (void)state;
    on_each(threads_count_and_wait_on);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_are_reached_in_order),
        cmocka_unit_test(indices_outside_are_reported_by_the_wait),
        cmocka_unit_test(threads_that_count_do_not_wait_for_each_other),
        cmocka_unit_test(a_queue_waits_for_an_event),
        cmocka_unit_test(memory_is_right_between_queues),
        cmocka_unit_test(a_write_waits_for_every_reader),
        cmocka_unit_test(readers_do_not_wait_for_each_other),
        cmocka_unit_test(blocks_in_use_are_not_given_to_others),
        cmocka_unit_test(borrowed_memory_goes_back_when_queues_are_through),
        cmocka_unit_test(after_a_failure_nothing_is_computed_from_it),
        cmocka_unit_test(copies_go_beside_the_caller),
        cmocka_unit_test(copies_between_devices),
        cmocka_unit_test(mapped_memory_is_the_devices),
        cmocka_unit_test(pinned_memory_says_why_it_is_not),
        cmocka_unit_test(times_need_timed_events_by_one_clock),
        cmocka_unit_test(a_queue_keeps_its_device_open),
        cmocka_unit_test(queues_end_somewhere),
        cmocka_unit_test(giving_waits_for_no_other_queue),
        cmocka_unit_test(more_work_than_a_queue_holds_waits),
        cmocka_unit_test(a_devices_own_queue_goes_on_when_its_failure_was_told),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
