/* metal_objc.c — of the double of Metal: the Objective-C run time and Foundation's few classes.
 *
 * objc_msgSend looks the selector up in the receiver's class and jumps to the method with all arguments as they came,
 * so that methods are plain functions of their own types. An object whose count has come to nothing stays in memory,
 * without what it held: a message to it is told with its class's name. */
#include "../fakes/fault_counter.h"
#include "metal.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t metal_seed = 1;
bool metal_old;

static pthread_mutex_t lock;
static long live, misuses;
static bool ends_on_misuse;
static uint64_t random_state;

/* ---- faults and counts ------------------------------------------------------------------------------------------- */

METAL_EXPORT long faults_live(void);
METAL_EXPORT long double_misuses(void);

long faults_live(void) { return live; }
long double_misuses(void) { return misuses; }

/* `error`: of command buffers (MTLCommandBufferError). */
bool metal_fails(const char *name, int *error) {
    *error = fault.with;
    return fails(name, true);
}

uint64_t metal_random(uint64_t n) { return metal_seed && n ? engine_random(&random_state) % n : 0; }

static void tell_counts(void) {
    engine_counts c = engine_get_counts();
    fprintf(stderr, "double: Metal: %llu launches, %llu items, %llu switches, %llu compiled, %llu from disk\n",
            (unsigned long long)c.launches, (unsigned long long)c.items, (unsigned long long)c.switches,
            (unsigned long long)c.compiled, (unsigned long long)c.from_disk);
}

__attribute__((constructor)) static void start(void) {
    pthread_mutexattr_t recursive;
    const char *seed = getenv("DOUBLE_SEED");
    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&lock, &recursive);
    if (seed) metal_seed = strtoull(seed, NULL, 10);
    random_state = metal_seed;
    metal_old = getenv("DOUBLE_OLD") != NULL;
    ends_on_misuse = getenv("DOUBLE_ABORT") != NULL;
    fault_arm_by("DOUBLE_FAULT");
    if (getenv("DOUBLE_COUNTS")) atexit(tell_counts);
}

void metal_lock(void) { pthread_mutex_lock(&lock); }

void metal_unlock(int *unused) {
    (void)unused;
    pthread_mutex_unlock(&lock);
}

void metal_misuse(const char *format, ...) {
    HOLD;
    va_list args;
    va_start(args, format);
    fputs("double: Metal: misuse: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    misuses++;
    if (ends_on_misuse) abort();
}

/* ---- objects ----------------------------------------------------------------------------------------------------- */

static object *latest; /* and through it all others: nothing is lost to who looks for leaks */

void *metal_new(const metal_class *isa) {
    HOLD;
    object *o = calloc(1, isa->size);
    if (!o) return NULL;
    o->isa = isa;
    o->refs = 1;
    o->before = latest;
    latest = o;
    live++;
    return o;
}

bool metal_is(const void *o, const metal_class *isa, const char *where) {
    const object *x = o;
    if (x && x->isa == isa && x->refs > 0 && !x->is_class) return true;
    if (!x)
        metal_misuse("%s: nil where a %s should be", where, isa->name);
    else
        metal_misuse("%s: a %s%s where a %s should be", where, x->refs > 0 ? "" : "dead ", x->isa->name, isa->name);
    return false;
}

void metal_retain(void *o) {
    HOLD;
    object *x = o;
    if (!x->is_class) x->refs++;
}

void metal_release(void *o) {
    HOLD;
    object *x = o;
    if (!x || x->is_class) return;
    if (x->refs <= 0) {
        metal_misuse("a %s is released once too often", x->isa->name);
        return;
    }
    if (--x->refs) return;
    live--;
    if (x->isa->end) x->isa->end(x);
}

/* ---- pools ------------------------------------------------------------------------------------------------------- */

/* Of one thread: what was autoreleased, behind a NULL for each pool. */
static __thread object **pooled;
static __thread size_t pooled_count, pooled_room;

static void pool_add(object *o) {
    if (pooled_count == pooled_room) {
        size_t room = pooled_room ? 2 * pooled_room : 64;
        object **grown = realloc(pooled, room * sizeof *grown);
        if (!grown) return;
        pooled = grown;
        pooled_room = room;
    }
    pooled[pooled_count++] = o;
}

METAL_EXPORT void *objc_autoreleasePoolPush(void);
void *objc_autoreleasePoolPush(void) {
    pool_add(NULL);
    return (void *)pooled_count;
}

METAL_EXPORT void objc_autoreleasePoolPop(void *pool);
void objc_autoreleasePoolPop(void *pool) {
    size_t begin = (size_t)pool;
    if (begin < 1 || begin > pooled_count || pooled[begin - 1]) {
        metal_misuse("a pool is popped that is none of this thread, or was popped before");
        return;
    }
    while (pooled_count >= begin)
        metal_release(pooled[--pooled_count]);
    if (pooled_count) return;
    free(pooled);
    pooled = NULL;
    pooled_room = 0;
}

void *metal_autorelease(void *o) {
    object *x = o;
    if (!x) return NULL;
    if (!pooled_count)
        metal_misuse("a %s is autoreleased, and there is no pool: it stays for ever", x->isa->name);
    else
        pool_add(x);
    return x;
}

/* ---- selectors and messages -------------------------------------------------------------------------------------- */

enum { MOST_SELECTORS = 512 };
static char *selectors[MOST_SELECTORS];
static int selector_count;

METAL_EXPORT selector sel_registerName(const char *name);
selector sel_registerName(const char *name) {
    HOLD;
    for (int i = 0; i < selector_count; i++)
        if (!strcmp(selectors[i], name)) return selectors[i];
    if (selector_count == MOST_SELECTORS) return NULL;
    return selectors[selector_count++] = strdup(name);
}

static bool is_selector(selector s) {
    for (int i = 0; i < selector_count; i++)
        if (selectors[i] == s) return true;
    return false;
}

static object *any_retain(object *o, selector s) {
    (void)s;
    metal_retain(o);
    return o;
}

static void any_release(object *o, selector s) {
    (void)s;
    metal_release(o);
}

static signed char any_responds(object *o, selector s, selector asked);

static const method any_methods[] = {
    METHOD("retain", any_retain, FAULT_NEVER),
    METHOD("release", any_release, FAULT_NEVER),
    METHOD("respondsToSelector:", any_responds, FAULT_NEVER),
    {NULL, NULL, FAULT_NEVER},
};

static object *class_new(object *o, selector s) {
    (void)s;
    return metal_new(o->isa);
}
static object *process_info(object *o, selector s) {
    (void)s;
    return metal_autorelease(metal_new(o->isa));
}

static const method class_methods[] = {
    METHOD("alloc", class_new, FAULT_NOTHING),
    METHOD("new", class_new, FAULT_NOTHING),
    METHOD("processInfo", process_info, FAULT_NOTHING),
    METHOD("matrixDescriptorWithRows:columns:matrices:rowBytes:matrixBytes:dataType:", metal_describe_matrix,
           FAULT_NOTHING),
    {NULL, NULL, FAULT_NEVER},
};

static const method *method_in(const method *rows, const char *name) {
    for (; rows->name; rows++)
        if (!strcmp(rows->name, name)) return rows;
    return NULL;
}

static const method *find_method(const object *o, const char *name) {
    const method *m = method_in(o->is_class ? class_methods : o->isa->methods, name);
    bool newer = !strncmp(name, "setMath", 7);
    if (m && newer && metal_old) return NULL;
    return m ? m : method_in(any_methods, name);
}

static signed char any_responds(object *o, selector s, selector asked) {
    (void)s;
    return find_method(o, asked) != NULL;
}

static void *give_nothing(void) { return NULL; }

static void *give_error(object *o, selector s, object *a, object *b, object **error) {
    (void)o;
    (void)a;
    object *e = metal_autorelease(metal_error(1, "a fault that was asked for"));
    if (!strcmp(s, "newComputePipelineStateWithFunction:error:")) error = (object **)(void *)b;
    if (error) *error = e;
    return NULL;
}

/* What objc_msgSend jumps to; o is not NULL. */
method_body *double_lookup(object *o, selector s) __attribute__((visibility("hidden"), used));
method_body *double_lookup(object *o, selector s) {
    HOLD;
    int error;
    if (!is_selector(s)) {
        metal_misuse("a message to a %s whose selector was not registered", o->isa->name);
        return (method_body *)give_nothing;
    }
    if (o->refs <= 0) {
        metal_misuse("%s is sent to a %s that is gone", s, o->isa->name);
        return (method_body *)give_nothing;
    }
    const method *m = find_method(o, s);
    if (!m) {
        metal_misuse("a %s does not know %s", o->isa->name, s);
        return (method_body *)give_nothing;
    }
    bool at_once = m->fault == FAULT_NOTHING || m->fault == FAULT_ERROR;
    if (!at_once || !metal_fails(s, &error)) return m->body;
    return m->fault == FAULT_ERROR ? (method_body *)give_error : (method_body *)give_nothing;
}

/* Keeps all registers that can hold arguments while it looks. A message to nil yields 0. */
METAL_EXPORT void objc_msgSend(void);
#if defined(__x86_64__)
__asm__(".text\n"
        ".globl objc_msgSend\n"
        ".type objc_msgSend,@function\n"
        "objc_msgSend:\n"
        "    testq %rdi, %rdi\n"
        "    jne 1f\n"
        "    xorl %eax, %eax\n    xorl %edx, %edx\n    pxor %xmm0, %xmm0\n"
        "    ret\n"
        "1:  pushq %rdi\n    pushq %rsi\n    pushq %rdx\n    pushq %rcx\n    pushq %r8\n    pushq %r9\n    pushq %rax\n"
        "    subq $128, %rsp\n"
        "    movups %xmm0, (%rsp)\n    movups %xmm1, 16(%rsp)\n    movups %xmm2, 32(%rsp)\n"
        "    movups %xmm3, 48(%rsp)\n    movups %xmm4, 64(%rsp)\n    movups %xmm5, 80(%rsp)\n"
        "    movups %xmm6, 96(%rsp)\n    movups %xmm7, 112(%rsp)\n"
        "    call double_lookup\n"
        "    movq %rax, %r11\n"
        "    movups (%rsp), %xmm0\n    movups 16(%rsp), %xmm1\n    movups 32(%rsp), %xmm2\n"
        "    movups 48(%rsp), %xmm3\n    movups 64(%rsp), %xmm4\n    movups 80(%rsp), %xmm5\n"
        "    movups 96(%rsp), %xmm6\n    movups 112(%rsp), %xmm7\n"
        "    addq $128, %rsp\n"
        "    popq %rax\n    popq %r9\n    popq %r8\n    popq %rcx\n    popq %rdx\n    popq %rsi\n    popq %rdi\n"
        "    jmp *%r11\n"
        ".size objc_msgSend,.-objc_msgSend\n");
#elif defined(__aarch64__)
__asm__(
    ".text\n"
    ".globl objc_msgSend\n"
    ".type objc_msgSend,%function\n"
    "objc_msgSend:\n"
    "    cbnz x0, 1f\n"
    "    mov x1, #0\n    movi d0, #0\n"
    "    ret\n"
    "1:  stp x29, x30, [sp, #-224]!\n    mov x29, sp\n"
    "    stp x0, x1, [sp, #16]\n    stp x2, x3, [sp, #32]\n    stp x4, x5, [sp, #48]\n    stp x6, x7, [sp, #64]\n"
    "    str x8, [sp, #80]\n"
    "    stp q0, q1, [sp, #96]\n    stp q2, q3, [sp, #128]\n    stp q4, q5, [sp, #160]\n    stp q6, q7, [sp, #192]\n"
    "    bl double_lookup\n"
    "    mov x16, x0\n"
    "    ldp q6, q7, [sp, #192]\n    ldp q4, q5, [sp, #160]\n    ldp q2, q3, [sp, #128]\n    ldp q0, q1, [sp, #96]\n"
    "    ldr x8, [sp, #80]\n"
    "    ldp x6, x7, [sp, #64]\n    ldp x4, x5, [sp, #48]\n    ldp x2, x3, [sp, #32]\n    ldp x0, x1, [sp, #16]\n"
    "    ldp x29, x30, [sp], #224\n"
    "    br x16\n"
    ".size objc_msgSend,.-objc_msgSend\n");
#endif

/* ---- Foundation -------------------------------------------------------------------------------------------------- */

typedef struct text_object {
    object object;
    char *text;
} text_object;

static void end_text(object *o) {
    text_object *t = (text_object *)o;
    free(t->text);
    t->text = NULL;
}

static const char *text_utf8(text_object *t, selector s) {
    (void)s;
    return t->text;
}

static object *text_init(text_object *t, selector s, const char *bytes, uint64_t length, uint64_t encoding) {
    (void)s;
    if (encoding != 4) metal_misuse("initWithBytes: encoding %llu", (unsigned long long)encoding);
    t->text = strndup(bytes, length);
    return &t->object;
}

static const method text_methods[] = {
    METHOD("UTF8String", text_utf8, FAULT_NOTHING),
    METHOD("initWithBytes:length:encoding:", text_init, FAULT_NEVER),
    {NULL, NULL, FAULT_NEVER},
};
static const metal_class text_class = {"NSString", text_methods, sizeof(text_object), end_text};

object *metal_text(const char *text) {
    text_object *t = metal_new(&text_class);
    if (t) t->text = strdup(text);
    return t ? &t->object : NULL;
}

const char *metal_text_of(const object *string) {
    return metal_is(string, &text_class, "a name or source") ? ((const text_object *)string)->text : NULL;
}

typedef struct error_object {
    object object;
    object *text;
    int64_t code;
} error_object;

static void end_error(object *o) { metal_release(((error_object *)o)->text); }

static object *error_description(error_object *e, selector s) {
    (void)s;
    metal_retain(e->text);
    return metal_autorelease(e->text);
}

static int64_t error_code(error_object *e, selector s) {
    (void)s;
    return e->code;
}

static const method error_methods[] = {
    METHOD("localizedDescription", error_description, FAULT_NOTHING),
    METHOD("code", error_code, FAULT_NEVER),
    {NULL, NULL, FAULT_NEVER},
};
static const metal_class error_class = {"NSError", error_methods, sizeof(error_object), end_error};

object *metal_error(int64_t code, const char *text) {
    error_object *e = metal_new(&error_class);
    if (!e) return NULL;
    e->code = code;
    e->text = metal_text(text);
    return &e->object;
}

enum { MOST_ITEMS = 16 };
typedef struct list_object {
    object object;
    object *items[MOST_ITEMS];
    uint64_t count;
} list_object;

static void end_list(object *o) {
    list_object *l = (list_object *)o;
    for (uint64_t i = 0; i < l->count; i++)
        metal_release(l->items[i]);
}

static uint64_t list_count(list_object *l, selector s) {
    (void)s;
    return l->count;
}

static object *list_at(list_object *l, selector s, uint64_t i) {
    (void)s;
    if (i < l->count) return l->items[i];
    metal_misuse("objectAtIndex: %llu of %llu", (unsigned long long)i, (unsigned long long)l->count);
    return NULL;
}

static const method list_methods[] = {
    METHOD("count", list_count, FAULT_NEVER),
    METHOD("objectAtIndex:", list_at, FAULT_NEVER),
    {NULL, NULL, FAULT_NEVER},
};
static const metal_class list_class = {"NSArray", list_methods, sizeof(list_object), end_list};

object *metal_list(object **items, size_t count) {
    list_object *l = metal_new(&list_class);
    for (size_t i = 0; l && i < count && i < MOST_ITEMS; i++) {
        metal_retain(items[i]);
        l->items[l->count++] = items[i];
    }
    return l ? &l->object : NULL;
}

static object *system_version(object *o, selector s) {
    (void)o;
    (void)s;
    return metal_autorelease(metal_text("Version 0.0 (a double)"));
}

static const method process_methods[] = {
    METHOD("operatingSystemVersionString", system_version, FAULT_NOTHING),
    {NULL, NULL, FAULT_NEVER},
};
static const metal_class process_class = {"NSProcessInfo", process_methods, sizeof(object), NULL};

static void set_mode(compile_options *o, selector s, int64_t mode) {
    (void)s;
    o->mode = mode + 1; /* 0: nobody said */
}
static void set_functions(compile_options *o, selector s, int64_t functions) {
    (void)s;
    o->functions = functions;
}
static void set_fast(compile_options *o, selector s, signed char fast) {
    (void)s;
    o->fast_off = !fast;
}
static const method options_methods[] = {
    METHOD("setMathMode:", set_mode, FAULT_NEVER),
    METHOD("setMathFloatingPointFunctions:", set_functions, FAULT_NEVER),
    METHOD("setFastMathEnabled:", set_fast, FAULT_NEVER),
    {NULL, NULL, FAULT_NEVER},
};
const metal_class metal_compile_options = {"MTLCompileOptions", options_methods, sizeof(compile_options), NULL};

METAL_EXPORT object *objc_getClass(const char *name);
object *objc_getClass(const char *name) {
    static object classes[] = {{&text_class, NULL, 1, true},
                               {&process_class, NULL, 1, true},
                               {&metal_compile_options, NULL, 1, true},
                               {&metal_descriptor_class, NULL, 1, true},
                               {&metal_matrix_class, NULL, 1, true},
                               {&metal_product_class, NULL, 1, true}};
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (!strcmp(classes[i].isa->name, name)) return &classes[i];
    return NULL;
}
