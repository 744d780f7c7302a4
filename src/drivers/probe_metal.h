/* probe_metal.h — Metal's two libraries once they are open: sending the messages of metal.h, and finding devices. */
#ifndef TN_DRIVERS_PROBE_METAL_H
#define TN_DRIVERS_PROBE_METAL_H

#include "drivers/metal.h"
#include "drivers/probe.h"

/* The functions of the two libraries. */
typedef struct metal_functions {
    void (*send)(void);
    selector (*selector_named)(const char *);
    object (*class_named)(const char *);
    void *(*pool_push)(void);
    void (*pool_pop)(void *);
    object (*all_devices)(void);    /* macOS */
    object (*default_device)(void); /* everywhere */
} metal_functions;
extern metal_functions tn_objc;

enum {
#define X(name, text, result, parameters) MESSAGE_##name,
    MESSAGES(X)
#undef X
        MESSAGE_COUNT
};

#define X(name, text, result, parameters) typedef result message_##name parameters;
MESSAGES(X)
#undef X
extern selector tn_metal_selectors[MESSAGE_COUNT];

/* ASK sends a message without arguments, SEND one with. A message to NULL does nothing and yields 0. */
#define ASK(message, to) (((message_##message *)tn_objc.send)((to), tn_metal_selectors[MESSAGE_##message]))
#define SEND(message, to, ...) \
    (((message_##message *)tn_objc.send)((to), tn_metal_selectors[MESSAGE_##message], __VA_ARGS__))

static inline void metal_release(object o) {
    if (o) ASK(release, o);
}

static inline const char *metal_text(object string, const char *otherwise) {
    const char *text = string ? ASK(utf8, string) : NULL;
    return text ? text : otherwise;
}

/* The device of this number, retained. Opens the libraries if that was not done yet. */
tn_status tn_metal_find(int index, object *out);
void tn_metal_probe(tn_probe *out);
void tn_metal_watch(tn_watch_add *add, void *ctx);

#endif
