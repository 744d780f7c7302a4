/* stream.c — see stream.h. */
#include "hal/stream.h"

void tn_stream_open(tn_stream *s, const tn_stream_calls *calls, void *device, tn_device_lost *lost_state) {
    *s = (tn_stream){.calls = calls, .device = device, .lost_state = lost_state};
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->left, NULL);
}

void tn_stream_close(tn_stream *s) {
    pthread_cond_destroy(&s->left);
    pthread_mutex_destroy(&s->lock);
}

void tn_stream_submitted(tn_stream *s) {
    uint64_t number = ++s->submitted;
    s->slots[tn_stream_slot(number)].number = number;
}

tn_status tn_stream_submit(tn_stream *s) { return s->recording ? s->calls->submit(s->device) : TN_OK; }

tn_status tn_stream_await(tn_stream *s, uint64_t number) {
    int slot = tn_stream_slot(number);
    TRY(tn_device_lost_check(s->lost_state));
    if (number <= s->done) return TN_OK;
    s->slots[slot].waiters++;
    pthread_mutex_unlock(&s->lock);
    tn_status status = s->calls->wait(s->device, slot, number);
    pthread_mutex_lock(&s->lock);
    s->slots[slot].waiters--;
    pthread_cond_broadcast(&s->left);
    if (status == TN_OK && number > s->done) s->done = number;
    return status;
}

tn_status tn_stream_finish(tn_stream *s) {
    TRY(tn_device_lost_check(s->lost_state));
    TRY(tn_stream_submit(s));
    return tn_stream_await(s, s->submitted);
}

tn_status tn_stream_query(tn_stream *s, uint64_t number, bool *ended) {
    int slot = tn_stream_slot(number);
    *ended = number <= s->done || s->slots[slot].number != number;
    tn_status status = *ended ? TN_OK : s->calls->query(s->device, slot, number, ended);
    if (*ended && number > s->done) s->done = number;
    return status;
}

bool tn_stream_is_idle(tn_stream *s) {
    bool ended = false;
    return !s->recording && tn_stream_query(s, s->submitted, &ended) == TN_OK && ended;
}

tn_status tn_stream_record(tn_stream *s, size_t bytes, int bindings, int *out) {
    for (;;) {
        int slot = *out = tn_stream_slot(s->submitted + 1);
        TRY(tn_device_lost_check(s->lost_state));
        if (s->recording && s->calls->has_room(s->device, slot, bytes, bindings)) return TN_OK;
        if (s->recording)
            TRY(tn_stream_submit(s));
        else if (s->slots[slot].number > s->done)
            TRY(tn_stream_await(s, s->slots[slot].number));
        else if (s->slots[slot].waiters)
            pthread_cond_wait(&s->left, &s->lock);
        else {
            TRY(s->calls->begin(s->device, slot));
            s->recording = true;
        }
    }
}

void tn_stream_wait_unused(tn_stream *s, uint64_t last) {
    pthread_mutex_lock(&s->lock);
    if (last > s->done) {
        if (!tn_is_lost(s->lost_state) && last > s->submitted) (void)tn_stream_submit(s);
        if (tn_is_lost(s->lost_state) || tn_stream_await(s, last) != TN_OK) s->calls->idle(s->device);
    }
    pthread_mutex_unlock(&s->lock);
}

tn_status tn_stream_queue_new(void *device, void **queue) {
    *queue = device;
    return tn_device_lost_check(device);
}

void tn_stream_queue_free(void *device, void *queue) {
    (void)device;
    (void)queue;
}

tn_status tn_stream_event_wait(void *queue, void *event) {
    (void)event;
    return tn_device_lost_check(queue);
}
