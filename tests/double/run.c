/* run.c — runs a kernel's workgroups, item by item.
 *
 * A thread of execution that takes items one after the other until none is left is enough for a kernel without
 * barriers. An item that meets a barrier leaves that thread's stack where it is, and a new thread takes the items
 * behind it; when all items wait, they go on one by one, in a new order. So the number of stacks is that of the items
 * that wait.
 *
 * A fault in a kernel (SIGSEGV and its like) ends the launch: the handler describes the place and jumps back to
 * engine_run; what the items had on their stacks is forgotten. */
#include "parts.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- switching stacks -------------------------------------------------------------------------------------------- */

enum { PAGE = 4096, STACK = 128 << 10 };

typedef struct fiber {
    void *stack; /* where its registers lie while it waits */
    char *memory;
    uint32_t linear; /* the item that waits on it */
    uint32_t line;   /* … at the barrier in this line */
} fiber;

static void fiber_body(void);

#if (defined(__x86_64__) || defined(__aarch64__)) && !defined(ENGINE_UCONTEXT)
/* Keeps the callee's registers on the present stack, *from = that stack, and goes on with another one. */
void engine_switch(void **from, void *to) __attribute__((visibility("hidden")));
#if defined(__x86_64__)
__asm__(".text\n"
        ".globl engine_switch\n"
        ".hidden engine_switch\n"
        ".type engine_switch,@function\n"
        "engine_switch:\n"
        "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n    popq %rbp\n"
        "    ret\n"
        ".size engine_switch,.-engine_switch\n");
enum { SAVED = 6 }; /* words, then the address to return to */

static void fiber_start(fiber *f) {
    uint64_t *top = (uint64_t *)(f->memory + STACK) - 1; /* a function begins 8 bytes off 16 */
    *top = 0;
    *--top = (uint64_t)(uintptr_t)fiber_body;
    top -= SAVED;
    memset(top, 0, SAVED * sizeof *top);
    f->stack = top;
}
#else
__asm__(".text\n"
        ".globl engine_switch\n"
        ".hidden engine_switch\n"
        ".type engine_switch,%function\n"
        "engine_switch:\n"
        "    sub sp, sp, #160\n"
        "    stp x19, x20, [sp]\n    stp x21, x22, [sp, #16]\n    stp x23, x24, [sp, #32]\n"
        "    stp x25, x26, [sp, #48]\n    stp x27, x28, [sp, #64]\n    stp x29, x30, [sp, #80]\n"
        "    stp d8, d9, [sp, #96]\n    stp d10, d11, [sp, #112]\n    stp d12, d13, [sp, #128]\n"
        "    stp d14, d15, [sp, #144]\n"
        "    mov x9, sp\n    str x9, [x0]\n    mov sp, x1\n"
        "    ldp x19, x20, [sp]\n    ldp x21, x22, [sp, #16]\n    ldp x23, x24, [sp, #32]\n"
        "    ldp x25, x26, [sp, #48]\n    ldp x27, x28, [sp, #64]\n    ldp x29, x30, [sp, #80]\n"
        "    ldp d8, d9, [sp, #96]\n    ldp d10, d11, [sp, #112]\n    ldp d12, d13, [sp, #128]\n"
        "    ldp d14, d15, [sp, #144]\n"
        "    add sp, sp, #160\n"
        "    ret\n"
        ".size engine_switch,.-engine_switch\n");
enum { SAVED = 20, LINK = 11 };

static void fiber_start(fiber *f) {
    uint64_t *top = (uint64_t *)(f->memory + STACK) - SAVED;
    memset(top, 0, SAVED * sizeof *top);
    top[LINK] = (uint64_t)(uintptr_t)fiber_body;
    f->stack = top;
}
#endif
#else
#include <ucontext.h>
static ucontext_t contexts[ENGINE_MOST_ITEMS], base_context;
static void *scheduler;

/* Only from the scheduler to a fiber and back: where it comes from shows who goes. */
static void engine_switch(void **from, void *to) {
    ucontext_t *me = from == &scheduler ? &base_context : *from;
    *from = me;
    swapcontext(me, to);
}

static fiber fibers[ENGINE_MOST_ITEMS];

static void fiber_start(fiber *f) {
    ucontext_t *c = &contexts[f - fibers];
    getcontext(c);
    c->uc_stack.ss_sp = f->memory;
    c->uc_stack.ss_size = STACK;
    c->uc_link = NULL;
    makecontext(c, fiber_body, 0);
    f->stack = c;
}
#endif

/* ---- the launch under way ---------------------------------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* one launch at a time */
static engine_context context;
static const engine_launch *launch;
static fiber fibers[ENGINE_MOST_ITEMS];
static fiber *waiting[ENGINE_MOST_ITEMS], *spare[ENGINE_MOST_ITEMS], *present;
static uint32_t waiting_count, spare_count, made;
static void *scheduler;
static uint64_t numbers; /* of engine_random */
static engine_counts counts;
static sigjmp_buf back;
static volatile sig_atomic_t running;
static pthread_t runner;
static char fault_words[400];
static engine_result fault;

static void end_launch(engine_result result) __attribute__((noreturn));
static void end_launch(engine_result result) {
    fault = result;
    siglongjmp(back, 1);
}

/* An item waits: its stack goes to those that wait, and the scheduler goes on. */
static void wait_at_barrier(uint32_t line) {
    fiber *me = present;
    me->linear = context.linear;
    me->line = line;
    waiting[waiting_count++] = me;
    counts.switches++;
    engine_switch(&me->stack, scheduler);
}

/* Items one after the other; the last act of a stack, which never returns. */
static void fiber_body(void) {
    for (;;) {
        launch->kernel->run(launch->args);
        spare[spare_count++] = present;
        engine_switch(&present->stack, scheduler);
    }
}

static fiber *new_fiber(void) {
    if (spare_count) return spare[--spare_count];
    if (made == ENGINE_MOST_ITEMS) return NULL;
    fiber *f = &fibers[made];
    if (!f->memory) {
        char *m = mmap(NULL, STACK + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (m == MAP_FAILED || mprotect(m, PAGE, PROT_NONE)) return NULL;
        f->memory = m + PAGE;
    }
    made++;
    fiber_start(f);
    return f;
}

static void resume(fiber *f) {
    present = f;
    counts.switches++;
    engine_switch(&scheduler, f->stack);
}

/* ---- faults ------------------------------------------------------------------------------------------------------ */

static const int SIGNALS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
enum { SIGNAL_COUNT = sizeof SIGNALS / sizeof *SIGNALS };
static struct sigaction before[SIGNAL_COUNT];

static void place(char *out, size_t room, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void place(char *out, size_t room, const char *format, ...) {
    const engine_triple *g = &context.group, *i = &context.item;
    int n = snprintf(out, room, "%s: workgroup (%u, %u, %u), item (%u, %u, %u): ", launch->kernel->name, g->x, g->y,
                     g->z, i->x, i->y, i->z);
    va_list args;
    va_start(args, format);
    if (n > 0 && (size_t)n < room) vsnprintf(out + n, room - (size_t)n, format, args);
    va_end(args);
}

static bool in_stack_guard(const char *address) {
    for (uint32_t i = 0; i < made; i++)
        if (address >= fibers[i].memory - PAGE && address < fibers[i].memory) return true;
    return false;
}

static void on_signal(int number, siginfo_t *info, void *ignored) {
    (void)ignored;
    if (!running || !pthread_equal(runner, pthread_self())) { /* somebody else's: as it would have been without us */
        for (int i = 0; i < SIGNAL_COUNT; i++)
            if (SIGNALS[i] == number) sigaction(number, &before[i], NULL);
        return;
    }
    char where[200];
    if (number == SIGSEGV || number == SIGBUS) {
        engine_describe(info->si_addr, where, sizeof where);
        if (in_stack_guard(info->si_addr)) snprintf(where, sizeof where, "the end of its stack");
        place(fault_words, sizeof fault_words, "access to %p: %s", info->si_addr, where);
        end_launch(ENGINE_ILLEGAL_ADDRESS);
    }
    place(fault_words, sizeof fault_words, "%s",
          number == SIGFPE ? "division of an integer by zero"
                           : "an index outside of an array, a shift by too much or an overflow");
    end_launch(ENGINE_OUT_OF_ARRAY);
}

static void catch_signals(void) {
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < SIGNAL_COUNT; i++)
        sigaction(SIGNALS[i], &action, &before[i]);
}

static void leave_signals(void) {
    for (int i = 0; i < SIGNAL_COUNT; i++)
        sigaction(SIGNALS[i], &before[i], NULL);
}

/* ---- one workgroup ----------------------------------------------------------------------------------------------- */

static void shuffle(uint32_t n, void *array, size_t width) {
    if (!launch->seed) return;
    char *a = array, kept[sizeof(void *)];
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = (uint32_t)(((engine_random(&numbers) >> 32) * i) >> 32);
        memcpy(kept, a + (i - 1) * width, width);
        memcpy(a + (i - 1) * width, a + j * width, width);
        memcpy(a + j * width, kept, width);
    }
}

/* All that wait have to be all items, in one place. */
static void check_barrier(void) {
    if (waiting_count != context.count) {
        context.item = context.places[waiting[0]->linear];
        place(fault_words, sizeof fault_words, "waits at a barrier (line %u) with %u items; %u have ended",
              waiting[0]->line, waiting_count - 1, context.count - waiting_count);
        end_launch(ENGINE_DIVERGENT);
    }
    for (uint32_t i = 1; i < waiting_count; i++) {
        if (waiting[i]->line == waiting[0]->line) continue;
        context.item = context.places[waiting[i]->linear];
        place(fault_words, sizeof fault_words, "waits at the barrier in line %u, others at that in line %u",
              waiting[i]->line, waiting[0]->line);
        end_launch(ENGINE_DIVERGENT);
    }
}

/* From the barrier at which all wait to the next one, or to the end. */
static void next_phase(void) {
    fiber *all[ENGINE_MOST_ITEMS];
    uint32_t n = waiting_count;
    check_barrier();
    memcpy(all, waiting, n * sizeof *all);
    shuffle(n, all, sizeof *all);
    waiting_count = 0;
    for (uint32_t i = 0; i < n; i++) {
        context.linear = all[i]->linear;
        context.item = context.places[all[i]->linear];
        resume(all[i]);
    }
}

static void run_group(uint32_t *order) {
    const engine_module *m = launch->kernel->module;
    memset(m->shared, ENGINE_POISON, (size_t)(m->shared_end - m->shared));
    if (launch->dynamic) memset(launch->dynamic, ENGINE_POISON, launch->dynamic_bytes);
    shuffle(context.count, order, sizeof *order);
    context.cursor = 0;
    waiting_count = 0;
    while (context.cursor < context.count) {
        fiber *f = new_fiber();
        if (!f) {
            place(fault_words, sizeof fault_words, "no memory for the stacks of its items");
            end_launch(ENGINE_ILLEGAL_ADDRESS);
        }
        resume(f);
    }
    while (waiting_count)
        next_phase();
}

static void run_groups(uint32_t *order) {
    engine_triple *g = &context.group;
    for (g->z = 0; g->z < context.groups.z; g->z++)
        for (g->y = 0; g->y < context.groups.y; g->y++)
            for (g->x = 0; g->x < context.groups.x; g->x++)
                run_group(order);
}

/* ---- a launch ---------------------------------------------------------------------------------------------------- */

static uint32_t order[ENGINE_MOST_ITEMS];
static engine_triple places[ENGINE_MOST_ITEMS];

static void start_context(const engine_launch *l) {
    context = (engine_context){
        .items = {l->items[0], l->items[1], l->items[2]},
        .groups = {l->groups[0], l->groups[1], l->groups[2]},
        .count = l->items[0] * l->items[1] * l->items[2],
        .warp = l->warp,
        .order = order,
        .places = places,
        .dynamic = l->dynamic,
        .barrier = wait_at_barrier,
    };
    for (uint32_t i = 0; i < context.count; i++) {
        order[i] = i;
        places[i] = (engine_triple){i % l->items[0], i / l->items[0] % l->items[1], i / l->items[0] / l->items[1]};
    }
    launch = l;
    numbers = l->seed;
    runner = pthread_self();
    spare_count = made = 0; /* a launch that ended early left stacks behind: all begin anew */
    fault = ENGINE_OK;
    fault_words[0] = 0;
    *l->kernel->module->here = &context;
    counts.launches++;
    counts.items += (uint64_t)context.count * l->groups[0] * l->groups[1] * l->groups[2];
}

/* A stack of its own for the handler: a kernel's may be what ran over. One for all threads, of which one launches. */
static bool signal_stack(stack_t *old) {
    static char memory[64 << 10];
    stack_t mine = {.ss_sp = memory, .ss_size = sizeof memory};
    return !sigaltstack(&mine, old);
}

engine_result engine_run(const engine_launch *l, char *report, size_t room) {
    stack_t old = {0};
    pthread_mutex_lock(&lock);
    start_context(l);
    bool stacked = signal_stack(&old);
    catch_signals();
    running = 1;
    if (sigsetjmp(back, 0) == 0) run_groups(order);
    running = 0;
    leave_signals();
    if (stacked) sigaltstack(&old, NULL);
    if (room) snprintf(report, room, "%s", fault_words);
    engine_result result = fault;
    pthread_mutex_unlock(&lock);
    return result;
}

engine_counts engine_get_counts(void) {
    pthread_mutex_lock(&lock);
    engine_counts out = counts;
    pthread_mutex_unlock(&lock);
    engine_count_compiled(&out);
    return out;
}
