/* gpu_graph.c — of the double of CUDA and ROCm: graphs of kernels.
 *
 * A graph is a list of nodes in the order in which they were added; each may only stand behind earlier ones, so that
 * order is one of those that the edges allow, and the double demands a chain, for that is what the driver makes. What
 * is made of a graph has values of its own, which a later change of a node's parameters replaces: work that was given
 * before keeps the old ones. */
#include "gpu.h"

#include <stdlib.h>
#include <string.h>

#define CHECK(expression)                    \
    do {                                     \
        int error_of_it = (expression);      \
        if (error_of_it) return error_of_it; \
    } while (0)

struct gpu_node {
    gpu_node *next;
    int place; /* in its graph */
    void *function;
    gpu_launch launch;
};

typedef struct graph {
    gpu_object object;
    gpu_node *first, **last;
    int count;
} graph;

typedef struct made_node {
    const gpu_node *node; /* of the graph, which has to live as long as this one is changed */
    void *function;
    gpu_launch launch;
} made_node;

typedef struct made_graph {
    gpu_object object;
    int count;
    made_node *nodes;
} made_graph;

void gpu_free_graph(gpu_object *o) {
    if (o->kind == OBJECT_EXEC) {
        made_graph *m = (made_graph *)o;
        for (int i = 0; i < m->count; i++)
            free(m->nodes[i].launch.args);
        free(m->nodes);
    } else {
        graph *g = (graph *)o;
        while (g->first) {
            gpu_node *next = g->first->next;
            free(g->first->launch.args);
            free(g->first);
            g->first = next;
        }
    }
    free(o);
}

int API(cuGraphCreate, hipGraphCreate)(void **out, unsigned flags) {
    ENTER(NEEDS_CONTEXT);
    if (flags) return gpu_misuse(&call, E_VALUE, "flags %u, and there are none", flags);
    graph *g = gpu_object_new(call.context, OBJECT_GRAPH, sizeof *g);
    if (!g) return E_MEMORY;
    g->last = &g->first;
    *out = g;
    return E_OK;
}

static int destroy(const gpu_call *call, void *handle, object_kind kind) {
    CHECK(gpu_check(call, handle, kind));
    gpu_object_remove(handle);
    gpu_free_graph(handle);
    return E_OK;
}

int API(cuGraphDestroy, hipGraphDestroy)(void *handle) {
    ENTER(NEEDS_CONTEXT | GIVES_BACK);
    return destroy(&call, handle, OBJECT_GRAPH);
}

int API(cuGraphExecDestroy, hipGraphExecDestroy)(void *handle) {
    ENTER(NEEDS_CONTEXT | GIVES_BACK);
    return destroy(&call, handle, OBJECT_EXEC);
}

int API(cuGraphAddKernelNode, hipGraphAddKernelNode)(gpu_node **node, void *handle, gpu_node *const *behind,
                                                     size_t count, const gpu_node_params *params) {
    ENTER(NEEDS_CONTEXT);
    CHECK(gpu_check(&call, handle, OBJECT_GRAPH));
    graph *g = handle;
    const gpu_node *end = g->first ? (gpu_node *)((char *)g->last - offsetof(gpu_node, next)) : NULL;
    if (count != (end != NULL) || (count && behind[0] != end))
        return gpu_misuse(&call, E_VALUE, "a node that does not stand behind the one before it alone");
    gpu_node *n = calloc(1, sizeof *n);
    if (!n) return E_MEMORY;
    int error = gpu_make_launch(&call, params, &n->launch);
    if (error) {
        free(n);
        return error;
    }
    n->function = params->function;
    n->place = g->count++;
    *g->last = n;
    g->last = &n->next;
    *node = n;
    return E_OK;
}

/* The same launch with arguments of its own. */
static int copy_launch(const gpu_call *call, const gpu_launch *from, void *function, gpu_launch *out) {
    gpu_node_params p = {.function = function, .dynamic = from->dynamic_bytes, .values = from->args};
    memcpy(p.groups, from->groups, sizeof p.groups);
    memcpy(p.items, from->items, sizeof p.items);
    return gpu_make_launch(call, &p, out);
}

int API(cuGraphInstantiateWithFlags, hipGraphInstantiateWithFlags)(void **out, void *handle, unsigned long long flags) {
    ENTER(NEEDS_CONTEXT);
    CHECK(gpu_check(&call, handle, OBJECT_GRAPH));
    if (flags) return gpu_misuse(&call, E_VALUE, "flags %llu", flags);
    const graph *g = handle;
    made_graph *m = gpu_object_new(call.context, OBJECT_EXEC, sizeof *m);
    if (!m) return E_MEMORY;
    m->nodes = calloc((size_t)g->count + 1, sizeof *m->nodes);
    int error = m->nodes ? E_OK : E_MEMORY;
    for (const gpu_node *n = g->first; n && !error; n = n->next) {
        made_node *to = &m->nodes[m->count];
        *to = (made_node){.node = n, .function = n->function};
        error = copy_launch(&call, &n->launch, n->function, &to->launch);
        m->count += !error;
    }
    if (error) {
        gpu_object_remove(&m->object);
        gpu_free_graph(&m->object);
        return error;
    }
    *out = m;
    return E_OK;
}

int API(cuGraphExecKernelNodeSetParams, hipGraphExecKernelNodeSetParams)(void *handle, gpu_node *node,
                                                                         const gpu_node_params *params) {
    ENTER(NEEDS_CONTEXT);
    CHECK(gpu_check(&call, handle, OBJECT_EXEC));
    made_graph *m = handle;
    int i = 0;
    while (i < m->count && m->nodes[i].node != node)
        i++;
    if (i == m->count) return gpu_misuse(&call, E_VALUE, "a node of another graph");
    gpu_launch launch;
    CHECK(gpu_make_launch(&call, params, &launch));
    free(m->nodes[i].launch.args);
    m->nodes[i].launch = launch;
    m->nodes[i].function = params->function;
    return E_OK;
}

int API(cuGraphLaunch, hipGraphLaunch)(void *handle, void *stream) {
    ENTER(NEEDS_CONTEXT);
    CHECK(gpu_check(&call, handle, OBJECT_EXEC));
    const made_graph *m = handle;
    for (int i = 0; i < m->count; i++) {
        gpu_launch launch;
        CHECK(copy_launch(&call, &m->nodes[i].launch, m->nodes[i].function, &launch));
        CHECK(gpu_queue_launch(&call, stream, &launch));
    }
    return E_OK;
}
