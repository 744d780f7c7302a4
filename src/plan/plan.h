/* plan.h — from a recording to a run: what the passes of plan/ hand to each other, in this order.
 *
 *   flush.c            the way of a flush: find the plan in the cache, run it, give nodes their buffers
 *   plan_key.c         the key of a recording; which plans are equal
 *   values.c           nodes → values: composed ops expanded, equal values shared, numbers that differ from run to run
 *   fuse.c             values → groups: what becomes one kernel, what is rematerialized, what is written in place
 *   placement.c        which groups the plan's device computes, which the host or a vendor's library, and why
 *   native_product.c   products of one left operand in one launch; row-fused chains of products
 *   lower.c            a group → a KIR program, with decoding of block-quantised weights
 *   workgroup_lower.c  the same for products and native ops on devices with workgroups
 *   native.c           groups that a kernel of cpu/ computes; native_conv.c: convolutions
 *   index_check.c      indices compared with their range while a plan runs
 *   engine_plan.c      plans of devices whose graphs another library computes (engine.h)
 *   engine_ops.c       single operations that another library computes (engine.h)
 *   layout.c           where the values of a plan lie: states, the arena
 *   plan.c             groups → commands: order, the commit section; running them
 *   tuner.c            measures the ways to compute a product
 *   capture.c          explicit replay;   host_read.c  values back to the host;   profile.c  what commands cost
 *
 * A plan knows no node: it refers to slots (bound buffers, outputs, the arena) and runs with whatever is bound. */
#ifndef TN_PLAN_H
#define TN_PLAN_H

#include "base/base.h"
#include "cpu/cpu_kernels.h"
#include "hal/hal.h"
#include "plan/engine.h"
#include "tensor/graph.h"

/* ---- a pointer table: node or buffer → small number (plan_key.c) ------------------------------------------------- */

typedef struct tn_pointer_map {
    const void **keys;
    int32_t *values;
    size_t count, capacity; /* capacity is a power of two, or 0 */
} tn_pointer_map;
int32_t tn_map_find(const tn_pointer_map *m, const void *key); /* -1 when absent */
tn_status tn_map_put(tn_pointer_map *m, const void *key, int32_t value);
void tn_map_free(tn_pointer_map *m);

/* ---- what a flush binds ------------------------------------------------------------------------------------------ */

/* One result that outlives the run. */
typedef struct tn_output {
    tn_node *node;
    int home; /* slot of the state's memory, or -1: a new buffer */
} tn_output;

/* A kept value that was left out of an evaluation because there is no memory for it. */
typedef struct tn_postponed {
    tn_node *node;
    char *why;
} tn_postponed;

/* A slot that is bound some bytes behind the beginning of its buffer. */
typedef struct tn_shift {
    int32_t slot;
    int64_t bytes;
} tn_shift;

/* Flag of a node that an evaluation needs; low bits of an input's word in the key if it is a leaf, which is described
 * after that word on its first use; words before the first node. */
enum { TN_MARK_NEEDED = 1, TN_KEY_LEAF = 2, TN_KEY_HEAD = 5 };

/* Everything about one recording that a plan does not know: nodes in order, buffers, runtime scalar values. */
typedef struct tn_binding {
    tn_recorder *recorder;
    tn_device *device;
    tn_numerics numerics; /* as the key has them: other threads may change them meanwhile */
    bool elsewhere;       /* there are also outputs on other devices, which get their own plan */
    struct {              /* set by the caller of tn_binding_make */
        /* Views whose offset changes from run to run are bound separately (plan_key.c); false for captured graphs. */
        bool varies;
        /* For engines' devices (engine.h): only these nodes are computed, and no state is written; the cpu's kernels
         * compute it; nothing may be computed before. */
        const tn_node *const *only;
        int only_count;
        bool on_host, whole;
    } request;
    tn_output *outputs;
    size_t output_count, output_capacity;
    tn_postponed *postponed; /* nodes that have handles but are left out of this run */
    size_t postponed_count, postponed_capacity;
    tn_buffer **buffers; /* slots */
    size_t buffer_count, buffer_capacity;
    tn_shift *shifts; /* by slot */
    size_t shift_count, shift_capacity;
    const tn_node **scalar_nodes; /* runtime scalars, and numbers that vary */
    size_t scalar_count, scalar_capacity;
    struct {
        uint64_t *words;
        size_t count, capacity;
        int64_t *sizes; /* values of symbolic extents, in key order */
        size_t size_count, size_capacity;
        const tn_node **checked; /* indices with a check, in key order */
        size_t checked_count, checked_capacity;
    } key;
    struct {            /* memory for making it */
        uint8_t *marks; /* these two by place in the recorder's list */
        int32_t *numbers;
        size_t mark_capacity, number_capacity;
        const tn_node **work;
        size_t work_capacity;
        tn_pointer_map buffer_slots, leaf_ids;
        const tn_node *last_leaf; /* the leaf met last: often the next one too */
        int32_t last_leaf_id;
    } scratch;
} tn_binding;

/* ---- values (values.c) ------------------------------------------------------------------------------------------- */

typedef struct tn_value {
    const tn_node *node;
    const tn_op_row *row;                /* NULL: a leaf, bound to a slot */
    int *in, n_in;                       /* values; -1 for an absent optional input */
    int root;                            /* views: the value whose memory they look into; else itself */
    int64_t offset, stride[TN_MAX_RANK]; /* views and leaves: place in root's memory, in elements */
    int slot;                            /* leaves: bound buffer */
    int output;                          /* index among the plan's outputs, or -1 */
    int scalar;                          /* runtime scalars: index among the binding's runtime scalars, or -1 */
    bool stored;                         /* gets memory */
    bool copied;                         /* a cat_few: its parts are made first and copied */
    bool alone;                          /* joining it failed: always stored, in a group of its own */
    bool plain;                          /* none of the device's workgroup kernels can be made of what joins it */
    int group;                           /* where it is computed, -1 while inlined */
    struct {                             /* fuse.c */
        float weight;                    /* work to compute it again from what is in memory */
        int loads;                       /* memory operands behind it */
        int *pulls;                      /* groups that need it, while inlined; then those that read it */
        int pull_count;
        size_t pull_capacity;
        bool wants_memory; /* some user can only read it from memory, or … */
        bool heavy;        /* … only its program would be too large: a group that computes it need not store it */
        bool apart;        /* bytes that groups of readers do not compute: these look results up, or pass over rows */
        bool reduced;      /* bytes on whose functions a reduction of rows depends */
        int byte;          /* each element follows from one byte of this value; -1: of none */
        int last_byte;     /* the last bytes on the way from that byte to this value; -1: none */
        float byte_work;   /* operations from that byte to this value */
        uint32_t counted;  /* stamp of the last count of a group's buffers that met it */
        int *users;
        int user_count;
    } fusion;
    struct {                  /* lower.c */
        uint32_t phase_stamp; /* phase is known for the group being lowered */
        int phase;
    } lowering;
    struct {                   /* where its bytes are: layout.c, fuse.c */
        int place;             /* slot of its memory once planned (bound, output or arena), -1: none */
        int64_t offset, bytes; /* in that slot */
        int64_t padded;        /* bytes of an image in blocks or words of channels, if more than its own; else 0 */
        int64_t first;         /* leaves: the first byte, from the beginning of what is bound; `bytes` follow */
        int into;              /* value whose memory contains this one's, from byte into_at; -1: it has its own */
        int64_t into_at;
    } memory;
    struct {                             /* what the host does for a device: placement.c, layout.c */
        bool only;                       /* the device refused it; as a native group the host computes it */
        const tn_kernel_answer *refusal; /* why it refused; NULL: it did not, or nobody knows any more */
        int from;                        /* position of the first group of the host that makes or reads it; -1: none */
        int64_t offset;                  /* in the host's part of the plan's memory */
        bool fetched;                    /* a command that copies it there has been made */
    } host;
    struct {                           /* what computes it instead of our kernels: placement.c, engine_ops.c */
        struct tn_vendor_call *vendor; /* a library on the device, unfused; NULL: none */
        const char *vendor_why;        /* … though a library was asked for; NULL: none was */
        bool engine;                   /* the device's engine, alone (engine.h) */
        const char *engine_why;        /* … or why not: the rest of a sentence; NULL: nobody was asked */
        bool of_nothing;               /* constants, counters, random bits, or made of nothing else */
    } by;
} tn_value;

enum { TN_BLOCK = -3 };
/* Index of a number among a group's runtime scalars; those of the binding are ≥ 0. */
enum { TN_GROUP_SCALARS = 32 };
static inline int tn_scalar_of_number(int value) { return -1 - value; }
static inline int tn_number_of_scalar(int scalar) { return -1 - scalar; }

typedef struct tn_native tn_native;
typedef enum tn_group_kind {
    TN_GROUP_MAP,
    TN_GROUP_ROWS,
    TN_GROUP_SCAN,
    TN_GROUP_MATMUL,
    TN_GROUP_NATIVE
} tn_group_kind;

typedef struct tn_group {
    tn_group_kind kind;
    int *members; /* values computed here, in order */
    size_t member_count, member_capacity;
    int lead;       /* the value whose shape is the space: MAP: any member; ROWS: a reduction; MATMUL: the product */
    int pool;       /* pooling of the only result, done by the lead's kernel before it stores; -1: none */
    bool workgroup; /* its product or native op is a program with workgroups after all */
    bool updates;   /* … and updates elements of its first operand's memory, if the result shares it */
    bool sibling;   /* it is computed in the launch of the one before it, together with that */
    bool row_fused; /* … or behind it; row by row */
    const char
        *host;     /* placement.c: a word for why the host computes it, not the plan's device; NULL: the device does */
    struct {       /* fuse.c */
        int *deps; /* groups whose results it reads */
        size_t dep_count, dep_capacity;
        uint32_t seen;   /* stamp of the last search that met it */
        int position;    /* in the order of execution */
        int next_append; /* the next of those that wait for the same group, -1: none */
        bool commit;     /* computes a state's new value, and only such groups read its results: runs last */
        bool appends;    /* commits, but by appending to a state: runs as soon as no group needs the old state */
        bool checked;    /* it makes indices that have a range: it runs before anything commits */
    } order;
    struct { /* lower.c */
        kir_program *program;
        int64_t *sizes;
        /* Behind each buffer of the program: the value (TN_BLOCK: the epilogue's, a workgroup's), and what its elements
         * are there: blocks are read as bytes and as f16. */
        int buffer_values[KIR_MAX_BUFFERS];
        uint8_t buffer_dtypes[KIR_MAX_BUFFERS];
        bool buffer_same_place[KIR_MAX_BUFFERS]; /* every load of it is where results are stored: may be overwritten */
        int buffer_count, block_buffer;
        int scalars[TN_GROUP_SCALARS]; /* in the program's order: the binding's, or of the number that is a value's */
        int scalar_count;
    } lowered;
    struct {        /* plan.c */
        int *reads; /* roots of what it reads */
        int read_count;
        size_t workspace; /* bytes of the arena it needs while it runs */
        int64_t workspace_offset;
        tn_native *native;
        tn_engine_op *engine_op;
        const tn_op_engine *engine; /* whose engine_op is */
        tn_kernel *kernel;          /* of the program; placement.c loads it early to see whether the device takes it */
    } run;
} tn_group;

/* A vendor library's answer for a convolution (placement.c). */
typedef struct tn_vendor_answer {
    const tn_node *node;
    bool taken;
    struct tn_vendor_call *call; /* until a value has it; NULL: it refused, and `why` is the rest of a sentence */
    const char *why;
} tn_vendor_answer;

/* A node whose elements are indices with a range (graph.h), and the value whose memory has them. */
typedef struct tn_checked_value {
    const tn_node *node;
    int value;
} tn_checked_value;

/* How products read a slot: along its columns, its rows, or both, as forward and backward pass read a frozen weight. */
enum { TN_READ_COLUMNS = 1, TN_READ_ROWS = 2, TN_READ_BOTH = TN_READ_COLUMNS | TN_READ_ROWS };

typedef struct tn_graph_plan {
    const tn_binding *binding;
    const tn_op_engine *engine; /* of the device; NULL: none */
    tn_recorder *recorder;
    size_t pending_before; /* nodes behind it in the recorder belong to the planner */
    tn_scratch scratch;    /* memory of the arrays below and those of values and groups */
    tn_build build;
    tn_value *values;
    size_t value_count, value_capacity;
    tn_group *groups;
    size_t group_count, group_capacity;
    tn_pointer_map value_of; /* node → value */
    struct {                 /* values.c */
        tn_pointer_map of;   /* composed node → index in list */
        tn_node **list;
        size_t count, capacity;
        bool copying; /* contiguous() copies even a value that is in order, to get an output of its own */
    } expansions;
    struct {               /* index_check.c */
        tn_pointer_map of; /* node → index in list */
        tn_checked_value *list;
        size_t count, capacity;
    } checked;
    struct {               /* placement.c */
        tn_pointer_map of; /* convolution → index in list */
        tn_vendor_answer *list;
        size_t count, capacity;
    } answers;
    struct {                 /* fuse.c */
        int *order;          /* groups in order of execution */
        int *users;          /* of all values */
        uint8_t *read_along; /* by slot: TN_READ_…; NULL where nothing trains */
        uint32_t stamp;
        int64_t work;        /* values and groups looked at, each round and search counted */
        bool counts_buffers; /* … of each group, since one had too many */
        bool trains;         /* some value requires gradients */
        bool gathers;        /* other processes keep parts of parameters: exchanges run in the recording's order */
        bool recomputes;     /* there are regions of TN_RECOMPUTE: memory comes before speed */
    } fusion;
    struct {                  /* lower.c */
        struct tn_memo *memo; /* passes.h */
        int forbid;           /* value that must not join a group, found while lowering; -1 */
        bool crowded;         /* … because the group needs too many buffers */
    } lowering;
} tn_graph_plan;

tn_status tn_values_make(tn_graph_plan *g);
void tn_graph_plan_free(tn_graph_plan *g);
void tn_group_free(tn_group *group);
tn_op_class tn_value_class(const tn_value *v);
int tn_value_of(const tn_graph_plan *g, const tn_node *n);  /* compositions followed; -1 when it has none */
bool tn_value_in_memory(const tn_graph_plan *g, int value); /* its root is a leaf or stored */
int64_t tn_value_numel(const tn_value *v);
bool tn_value_dense(const tn_value *v); /* its elements are contiguous in row-major order */

/* Asks a library that was chosen for the plan's kind of device for a convolution; nodes of other ops are not taken. */
tn_status tn_vendor_ask(tn_graph_plan *g, const tn_node *n, bool *taken);
void tn_vendor_forget(tn_graph_plan *g);
/* Asks it for each product, and hands over what it said to convolutions (placement.c). */
tn_status tn_vendor_choose(tn_graph_plan *g);
tn_status tn_fuse(tn_graph_plan *g);
/* Does the group compute a value that another one stores, since it reads all that this is made of anyway? */
bool tn_group_rematerializes(const tn_graph_plan *g, int group, int value);
/* Computed by a kernel of src/cpu, or by a vendor library on the device: its operands must be in memory. */
static inline bool tn_group_is_native(const tn_group *group) {
    return (group->kind == TN_GROUP_MATMUL || group->kind == TN_GROUP_NATIVE) && !group->workgroup;
}
/* Whether the group pools this value, which then exists only in the kernel's block. */
static inline bool tn_group_pools(const tn_graph_plan *g, const tn_group *group, int value) {
    return group->pool >= 0 && g->values[group->pool].in[0] == value;
}
bool tn_group_writes_state(const tn_graph_plan *g, const tn_group *group); /* some member is a state's new value */

/* Builds the program of a group. TN_OK with g->forbid ≥ 0: this value cannot be joined, fuse again. */
tn_status tn_lower_group(tn_graph_plan *g, int group);
int tn_most_buffers(const tn_graph_plan *g); /* of one kernel on the plan's device */
/* Is this product or native op a program of workgroups on its device (workgroup_lower.c)? */
bool tn_workgroup_takes(const tn_value *v);
bool tn_workgroup_takes_node(const tn_node *n);            /* the same before it is a value */
bool tn_workgroup_fuses(const tn_value *v);                /* it is one that element-wise values behind it may join */
tn_status tn_workgroup_lower(tn_graph_plan *g, int group); /* builds it; g->forbid as above */

/* ---- parts (fuse.c) ---------------------------------------------------------------------------------------------- */

void tn_concat_leave_host(tn_graph_plan *g);                   /* … of groups that the host computes: not after all */
bool tn_concat_is_in_place(const tn_graph_plan *g, int value); /* concatenated in place */
bool tn_concat_agree(const tn_graph_plan *g, bool *chosen);    /* parts and wholes both or not; did that change any? */
/* Whether the part and the concatenation it lies in are images of the same pixels, and not views of other shapes. */
bool tn_concat_of_channels(const tn_graph_plan *g, const tn_value *part);
/* Whether the group only concatenates this part, which lies where it belongs. */
bool tn_concat_reads(const tn_graph_plan *g, const tn_value *part, int group);
int tn_last_reader(const tn_graph_plan *g, int value); /* position of the last group that needs its memory */

/* Limits of one launch of several products: bytes of results (none is freed before all are computed), and how many
 * products (native_product.c). */
enum { TN_MOST_MADE = 16 << 20 };
/* Merges products with the same left operand into one launch, and chooses their order (native_product.c). Called after
 * native groups are made, before the layout of memory. */
void tn_fuse_siblings(tn_graph_plan *g);
/* Merges products of which each needs only the same rows of the one before (native_product.c). */
tn_status tn_fuse_gemm_rows(tn_graph_plan *g);
/* Results that only convolutions and poolings read get blocks of channels (fuse.c). Called after native groups are
 * made, before the layout of memory. */
tn_status tn_lay_out_conv_results(tn_graph_plan *g);

/* ---- memory (layout.c) ------------------------------------------------------------------------------------------- */

tn_status tn_group_find_reads(tn_graph_plan *g, tn_group *group);
bool tn_group_reads_slot(const tn_graph_plan *g, const tn_group *group, int slot);
/* Places for all values. copies: new values of states that could not be made in their homes. */
tn_status tn_lay_out(tn_graph_plan *g, size_t *arena_bytes, size_t *host_bytes, size_t *copies);
void tn_leaf_byte_range(tn_value *v); /* memory.first and memory.bytes of one that has a slot */

/* ---- plans (plan.c) ---------------------------------------------------------------------------------------------- */

/* FETCH and SEND copy between the device and the host's part of the memory, for what the host computes. */
typedef enum tn_command_kind {
    TN_CMD_KERNEL,
    TN_CMD_NATIVE,
    TN_CMD_VENDOR,
    TN_CMD_COPY,
    TN_CMD_FETCH,
    TN_CMD_SEND,
    TN_CMD_ENGINE,
    TN_CMD_ENGINE_OP
} tn_command_kind;

/* pointers[pointer] = address of slot + offset, done when a run is bound to another address. */
typedef struct tn_patch {
    int32_t pointer, slot;
    int64_t offset;
} tn_patch;

/* Predicted from the operands: bytes read and written, operations on elements. */
typedef struct tn_cost {
    int64_t bytes;
    double flops;
} tn_cost;

enum { TN_LABEL = 192 };
typedef struct tn_command {
    tn_command_kind kind;
    tn_kernel *kernel; /* KERNEL: launches that do not depend on each other */
    tn_launch *launches;
    int64_t launch_count;
    tn_native *native;             /* NATIVE */
    struct tn_vendor_call *vendor; /* VENDOR */
    struct tn_engine_call *engine; /* ENGINE */
    const tn_op_engine *op_engine; /* TN_CMD_ENGINE_OP */
    tn_engine_op *engine_op;
    tn_device *device;   /* KERNEL: where; the plan's, or the cpu */
    void **pointers;     /* operands, inside the plan's pointers; COPY, FETCH, SEND: to, from */
    kir_scalar *scalars; /* NATIVE: its epilogue's; ENGINE: the recording's */
    size_t bytes;        /* COPY, FETCH, SEND */
    bool commit;
    tn_command_list *list; /* KERNEL: this and the next listed - 1 commands gathered, NULL: not (yet) */
    int32_t listed;        /* commands in it */
    bool row_fused;        /* NATIVE: it and those in its launch */
    bool host;             /* KERNEL, NATIVE: the host computes it for another device */
    char label[TN_LABEL];  /* for explain: the ops joined in it, the shape it runs over */
    tn_cost cost;          /* of all its launches */
} tn_command;

/* What a plan is found by: the recording in words, and the symbolic extents as planned. */
typedef struct tn_plan_key {
    uint64_t *words;
    size_t count;
    int64_t *sizes;
    size_t size_count;
} tn_plan_key;

/* Blocks that are freed with the plan (tn_plan_own). */
typedef struct tn_plan_blocks {
    void **owned;
    size_t owned_count, owned_capacity;
    char *spare; /* of the last of them: what small blocks are cut from */
    size_t spare_bytes;
} tn_plan_blocks;

/* The checks of indices, ordered by the command before which they run; those of bound memory are first. */
typedef struct tn_plan_checks {
    struct tn_plan_check *list;
    size_t count, leaf_count;
    size_t counted;              /* by commands: the device counts what is outside */
    tn_error_counters *counters; /* one for each; NULL: the host compares */
} tn_plan_checks;

/* What the host computes for the plan's device. */
typedef struct tn_plan_placement {
    struct tn_placed *placed; /* an operation each */
    size_t placed_count;
    int64_t operations;     /* computed here and there, as fused */
    int32_t *first_on_host; /* engines: numbers of nodes in the key that are to be computed before (engine.h) */
    size_t first_count;
} tn_plan_placement;

/* What runs leave behind; all else of a plan stays as it was planned. */
typedef struct tn_plan_runs {
    void **addresses;                   /* of the slots, at the last run */
    int64_t count, untimed;             /* untimed: since one was timed */
    double last_seconds;                /* what that one took */
    bool partially_committed;           /* the last run failed when it had begun to write states */
    bool failed_there;                  /* an engine failed to run it: the host computes it from then on */
    const struct tn_plan_check *failed; /* the check that ended the last run, or NULL */
    tn_timeline_point point; /* its last run by a queue's thread, which uses its pointers and runtime scalars */
} tn_plan_runs;

/* What messages and tn_explain_last tell of the planning. */
typedef struct tn_plan_report {
    int64_t values_planned, planning_work; /* planning_work: tn_graph_plan's */
    char largest[160];                     /* of the values in the arena: line, op, shape */
} tn_plan_report;

typedef struct tn_plan {
    tn_plan_key key;
    tn_device *device;
    int bound_count, output_count; /* slots: bound buffers, outputs, the arena, the host's part */
    tn_shift *shifts;              /* of bound buffers, at the last run */
    size_t shift_count, varying_numbers;
    int64_t *output_bytes;
    int *output_home; /* slot of the state's memory, or -1: a new buffer */
    size_t arena_bytes, host_bytes;
    tn_plan_placement placement;
    tn_command *commands;
    size_t command_count;
    void **pointers;
    size_t pointer_count;
    tn_patch *patches; /* by slots … */
    size_t patch_count;
    size_t *patches_of; /* … where those of each slot begin, and the end of all */
    kir_scalar *scalars;
    int *scalar_source; /* runtime scalar of the binding for each; -1: a constant number */
    size_t scalar_count;
    tn_plan_runs runs;
    tn_plan_report report;
    uint64_t last_used;
    int followed_by; /* place in the cache of the plan that was asked for after this one */
    size_t bytes;    /* of host memory that it takes, kernels apart: these are shared */
    tn_plan_blocks blocks;
    tn_native **natives;
    size_t native_count;
    tn_plan_checks checks;
    int threads; /* that memory was measured out for: a run uses no more, however many there are by then */
} tn_plan;

/* Between the two calls nodes are recorded without gradients on `device` and freed at the end: the nodes of
 * compositions. */
typedef struct tn_planner_state {
    tn_device *chosen;
    size_t pending;
    int64_t recorded;
    bool no_grad;
} tn_planner_state;
tn_planner_state tn_planner_begin(tn_recorder *r, tn_device *device);
void tn_planner_end(tn_recorder *r, const tn_planner_state *before);
tn_status tn_plan_make(const tn_binding *b, tn_plan **out);
void tn_plan_free(tn_plan *p);
/* Runs with `arena` (at least arena_bytes). outputs[i]: the buffers of the outputs (homes of states, or new ones). The
 * time of the commands is added to *seconds, now or by a later run. */
tn_status tn_plan_run(tn_plan *p, tn_buffer *const *bound, tn_buffer *const *outputs, tn_buffer *arena, tn_buffer *host,
                      const kir_scalar *scalars, double *seconds);
/* In a dry run: allocates packed weights, counts the pages of files that would be read, and computes nothing. */
tn_status tn_plan_run_dry(tn_plan *p, tn_buffer *const *bound, tn_buffer *const *outputs, const tn_buffer *memory,
                          const tn_buffer *host, const kir_scalar *scalars);
/* The same in two steps, for a queue's thread: addresses are resolved at submission. slots: addresses of all slots, in
 * order; packed_weights: from tn_native_packed_weight, one per native; scalars: the plan's own copy. */
size_t tn_plan_slots(const tn_plan *p);
/* Where a bound slot begins; slots are asked for in order, *shift is 0 at the first. */
void *tn_plan_address(const tn_plan *p, tn_buffer *const *bound, int slot, size_t *shift);
tn_status tn_plan_execute(tn_plan *p, void *const *slots, void *const *packed_weights, const kir_scalar *scalars);
void tn_plan_await(tn_plan *p);                                   /* until no thread of a queue runs it */
void tn_node_describe(const tn_node *n, char *text, size_t size); /* its line, op, shape and dtype, for messages */
void *tn_plan_own(tn_plan *p, size_t bytes); /* zeroed memory that lives as long as the plan; NULL on failure */
/* Each run sets *at to the slot's address + offset. */
void tn_plan_patch(tn_plan *p, void **at, int slot, int64_t offset);

/* ---- indices (index_check.c) ------------------------------------------------------------------------------------- */

tn_status tn_note_checked(tn_graph_plan *g, const tn_node *n); /* a node with a check that the plan needs */
tn_status tn_find_checked(tn_graph_plan *g);                   /* their values; all values are there */
void tn_want_checked(tn_graph_plan *g);                        /* they must be stored in memory */
void tn_mark_checked(tn_graph_plan *g);                        /* … and their groups do not commit */
tn_status tn_make_checks(const tn_graph_plan *g, tn_plan *p);  /* room for them */
void tn_free_checks(tn_plan *p);
void tn_name_counted(const tn_plan *p, const tn_binding *b); /* the next run's calls are those that errors name */
/* Adds the checks of the values that `group` makes, before the next command; group -1: of those in bound memory.
 * *pointer: the next of the plan's. */
tn_status tn_add_checks(const tn_graph_plan *g, tn_plan *p, int group, void ***pointer);
/* TN_ERR_ARGUMENT with the first index outside its range, and p->runs.failed. bound: NULL if not known. */
tn_status tn_check_leaves(tn_plan *p, tn_buffer *const *bound);
tn_status tn_check_before(tn_plan *p, size_t command, size_t *next); /* those that stand before the command */
/* The node of the recording whose check has ended the run; NULL if it is not known. */
const tn_node *tn_failed_indices(const tn_plan *p, const tn_binding *b);
/* Puts the line of the op in front of the error of a run that a check has ended: from that node, or, if it is NULL, the
 * line where the plan was made. */
tn_status tn_check_name_line(const tn_plan *p, const tn_node *indices, tn_status s);

/* ---- who computes what (placement.c) ----------------------------------------------------------------------------- */

/* An operation that the host computes. */
typedef struct tn_placed {
    const char *op, *code;        /* code: a word of the table in placement.c */
    char reason[TN_REASON_BYTES]; /* what follows the device's name: "has no f64" */
    char where[160];              /* line, op, shape and dtype */
} tn_placed;

/* Assigns each group to the plan's device or to the host, and loads the kernels. *again: a value turned out to be a
 * native group on the host, so fusing must be repeated. Not for the CPU. Errors: TN_ERR_UNSUPPORTED if the host is
 * needed but the device was opened with the strict policy. */
tn_status tn_place_groups(tn_graph_plan *g, tn_plan *p, bool *again);
/* Notes with the device what the host computes, and says so on standard error once a reason. */
void tn_place_tell(const tn_plan *p);
/* The cpu, opened once a process. NULL: see tn_error. */
tn_device *tn_host_device(void);

/* ---- operations of an engine (engine_ops.c) ---------------------------------------------------------------------- */

/* Does the device's engine compute this node? Else *why says why not, if it was asked. */
bool tn_engine_takes(const tn_graph_plan *g, const tn_node *n, const char **why);
/* Is a value numbers that come from the host as data do: constants, counters, random bits, or made of nothing else? */
bool tn_engine_made_of_nothing(const tn_graph_plan *g, const tn_value *v);
/* Is an input of an operation of the engine a number, which is a part of the operation and needs no memory? */
bool tn_engine_has_constant(const tn_graph_plan *g, int value);
tn_status tn_engine_op_make(tn_graph_plan *g, tn_group *group);
/* Notes what the cpu's kernels compute instead of the engine. Errors: TN_ERR_UNSUPPORTED when there is something and
 * the device was opened strictly. */
tn_status tn_engine_note_rest(const tn_graph_plan *g, tn_plan *p);

/* ---- where the time goes (profile.c) ------------------------------------------------------------------ */

tn_cost tn_group_cost(const tn_graph_plan *g, const tn_group *group);
tn_profile *tn_profile_here(void); /* the profile that is on for this thread, or NULL */
void tn_profile_add(tn_profile *p, const tn_command *c, double seconds);
const char *tn_command_kind_name(const tn_command *c);

/* ---- native kernels (native.c) ----------------------------------------------------------------------------------- */

/* The values whose memory a native group reads and writes, in the order of its pointers: operands, the workspace, the
 * buffers of its epilogue. Negative: -1 none, TN_WORKSPACE. */
enum { TN_WORKSPACE = -2, TN_NATIVE_POINTERS = TN_CAT_PARTS + 2 };
/* Has the processor a kernel for it? What has none is its composition there too. */
bool tn_native_takes(const tn_node *n);
bool tn_native_joins(const tn_value *v); /* not a product, and element-wise values after its kernel may join it */
/* Can `lead`, which may be joined, do this pooling of what joins it? */
bool tn_native_pools(const tn_value *lead, const tn_value *pool);
/* Makes the epilogue's sizes, which know the lead's dims, those that its kernel runs. false: an index does not fit. */
bool tn_native_epilogue_fits(const tn_value *lead, const tn_group *group);
int tn_native_operands(const tn_graph_plan *g, const tn_group *group, int values[TN_NATIVE_POINTERS]);
size_t tn_native_byte_offset(const tn_value *v); /* of its first element in its root's memory */
/* Whether this group overwrites its first operand, writing only elements that it owns, and reads nothing else of that
 * memory. */
bool tn_native_updates(const tn_graph_plan *g, const tn_group *group, int slot);
/* … and is what it writes of no account when the plan fails later? */
bool tn_native_appends(const tn_graph_plan *g, const tn_group *group, int slot);
tn_status tn_native_make(const tn_graph_plan *g, const tn_group *group, tn_native **out, size_t *workspace);
/* before the first launch: takes what memory it needs */
tn_status tn_native_prepare(tn_native *n, tn_buffer *const *bound);
/* The same in two steps: the packed weight that it needs (NULL: none), and storing it. */
tn_status tn_native_packed_weight(tn_native *n, tn_buffer *const *bound, void **form);
void tn_native_set_packed(tn_native *n, void *form);
bool tn_native_packs(const tn_native *n, int slot); /* does it read the slot's buffer only to pack it? */
void tn_native_run(tn_native *n, void *const *pointers, const kir_scalar *scalars);
/* What a product that is part of another one's launch is run with. */
void tn_native_run_sibling(tn_native *n, void *const *pointers, const kir_scalar *scalars);
/* corrects it by what the last run met: how many keys there were */
void tn_native_cost(const tn_native *n, tn_cost *cost);
/* The library that computes it, or the measured choice of a way; NULL: neither. */
const char *tn_native_by(const tn_native *n);
void tn_native_free(tn_native *n);
size_t tn_native_bytes(void);

/* ---- running (plan_key.c, flush.c) ------------------------------------------------------------------------------- */

/* Finds what must be computed and writes the key: equal keys mean equal plans. */
static inline bool tn_number_varies(const tn_binding *b, const tn_node *n) {
    return (n->flags & TN_NODE_VARIES) && !(n->flags & TN_NODE_VIEW) && b->request.varies;
}
/* tn_evaluator's flush: computes what is pending. */
/* A computed tensor with the value of t whose elements are contiguous from the start of its memory (host_read.c). */
tn_status tn_whole_value(const tn_tensor *t, tn_tensor **whole, const tn_node **node);
tn_status tn_find_anomaly(tn_node *const *nodes, size_t count); /* tn_evaluator.find_anomaly (anomaly.c) */
tn_status tn_flush(tn_recorder *r, tn_node *const *targets, int count);
tn_status tn_binding_make(tn_binding *b, tn_recorder *r, const tn_node *const *targets, int count);
void tn_binding_free(tn_binding *b);
/* Called if no plan was found: notes the source lines of numbers that may vary, and warns about other lines
 * (values.c). */
typedef struct tn_plan_cache tn_plan_cache;
void tn_vary_learn(const tn_plan_cache *c, const tn_binding *b);

/* Limits of one thread's plan cache (evict_plans in flush.c); the plan in use may exceed TN_MAX_PLAN_BYTES. An unrolled
 * network of 50 000 nodes takes 20 MiB. */
enum {
    TN_MAX_PLANS = 256,
    TN_MAX_PLAN_BYTES = 64 << 20,
    TN_NEWEST_PLANS = 16,
    TN_REFUSED_NONE = -1,
    TN_REFUSED_ARENA = -2
};
struct tn_plan_cache {
    tn_plan *plans[TN_MAX_PLANS];
    uint64_t hashes[TN_MAX_PLANS];
    int count;
    size_t bytes;                     /* of all */
    tn_plan *newest[TN_NEWEST_PLANS]; /* made of late, in a ring: what a key that is not found is compared with */
    size_t newest_at;
    uint64_t clock;
    tn_plan *last;
    tn_binding binding; /* reused, so that a hit allocates nothing */
    tn_buffer *arena;   /* shared by all plans of the thread: intermediates do not outlive a run */
    tn_buffer *staged;  /* the host's part of it, for plans of other devices */
    tn_buffer **outputs;
    size_t output_capacity;
    int refused;       /* what there was no memory for in the last run: an output, or TN_REFUSED_… */
    bool rest_is_open; /* a check of indices ended the last run, and what does not depend on them was not computed */
    kir_scalar *scalars;
    size_t scalar_capacity;
    struct tn_captured_host *capture; /* of the capture under way, or NULL */
    int64_t made, hits, misses, resized, launches;
    double plan_seconds, run_seconds;
};
tn_plan_cache *tn_plans_of(tn_recorder *r); /* NULL when memory is out */
/* Reserves memory for intermediates and results before anything runs; outputs that are not states get new buffers. */
tn_status tn_plan_reserve(tn_plan_cache *c, const tn_plan *p, tn_buffer *const *bound);
void tn_plan_release_outputs(tn_plan_cache *c, const tn_plan *p, int count);
kir_scalar tn_runtime_scalar_value_of(const tn_node *scalar);
/* Runs it on this thread's queue (flush.c), on what tn_plan_reserve took. */
tn_status tn_plan_submit(tn_plan_cache *c, tn_plan *p, tn_buffer *const *bound, const kir_scalar *scalars);

/* ---- what a launch of a captured graph changes on the host (capture.c) ------------------------------------------- */

/* Recording a training step changes more than tensors: the optimizer's step count, collected gradients, write counts of
 * states, the position in the random stream. A launch records nothing, so the graph makes these changes itself;
 * afterwards everything is as if the step had been recorded again. */

/* One registered hook; `nodes` until the capture ends, `runtime scalars` from then on. */
typedef struct captured_hook {
    tn_capture_hook hook;
    tn_node **nodes; /* retained */
    int *scalars;    /* of the graph; -1: the recording does not use it */
    double *values;
    int count;
} captured_hook;

/* A leaf whose gradient the recording reads, replaces or clears. */
typedef struct captured_gradient {
    tn_grad_slot *slot;
    bool cleared;   /* the recording itself clears it first */
    bool earlier;   /* it reads or adds to a gradient from before */
    int output;     /* of the plan; -1: none */
    tn_node *fixed; /* a gradient that was computed before the capture, the same each time */
    uint8_t dtype, rank;
    int64_t shape[TN_MAX_RANK];
} captured_gradient;

/* A state that the recording writes. */
typedef struct captured_state {
    tn_storage *storage;
    tn_node *next; /* during a launch: the new value's node, where others hold the old one */
} captured_state;

typedef struct tn_captured_host {
    captured_hook *hooks;
    captured_gradient *gradients;
    captured_state *states;
    size_t hook_count, hook_capacity, gradient_count, gradient_capacity, state_count, state_capacity;
    uint64_t random_start, random_used; /* numbers that the recording draws */
    uint64_t reseeds;                   /* of the recorder when the capture began */
    tn_status failed;                   /* memory ran out where no status could be returned */
} tn_captured_host;

void tn_captured_host_free(tn_captured_host *h);
/* Notes a use of a gradient, before it happens. */
typedef enum tn_gradient_use { TN_GRADIENT_READ, TN_GRADIENT_ADDED, TN_GRADIENT_CLEARED } tn_gradient_use;
tn_status tn_captured_gradient_note(tn_captured_host *h, tn_grad_slot *slot, tn_gradient_use use);

#endif
