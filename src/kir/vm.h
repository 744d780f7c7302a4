/* vm.h — structures of the tile VM: a compiled program, and the state of a launch.
 *
 * The VM works on tiles. A tile is the product of two ranges of points, `outer` × `inner`. Each range is over a
 * flattened list of axes:
 *     program without loops   outer: all parallel axes but the last    inner: the last parallel axis
 *     loops along memory      outer: parallel axes (rows)              inner: loop axes
 *     loops across memory     outer: loop axes                         inner: parallel axes (columns)
 * A value has elements only in the directions in which it varies (its `kind`): a bias is a line of inner, a row's
 * maximum a line of outer, a constant one element. A full tile has at most KIR_TILE elements; inner is contiguous.
 *
 *     kir_vm      one per program: instructions as steps, slots for values, possible aliases       vm_compile.c
 *     kir_bind    one per pattern of kinds: the routine of each step; kept in the kir_vm           vm_launch.c
 *     kir_frame   one per launch and thread: spaces, strides, addresses                            vm.c
 * vm_memory.c moves values between tiles and buffers, and reduces them. vm_launch.c caches the preparation of short
 * launches that have machine code and repeat with the same sizes. */
#ifndef KIR_VM_H
#define KIR_VM_H

#include "kir/rules.h"
#include "kir/simd.h"

enum { KIR_INNER = 1, KIR_OUTER = 2, KIR_FULL = 3 }; /* kinds: sets of directions */

enum {
    KIR_COLUMNS = 128, /* width of a tile of columns: 64 lanes of them in f32 fill half a first-level cache */
    KIR_STAGES = 5,    /* slots for values on their way (spread out, converted, indices) */
    KIR_BINDS = 8,     /* patterns of kinds kept for a program */
    KIR_RECIPES = 4,   /* sizes of short launches that are kept */
    KIR_NARROW = 16    /* rows shorter than this are not worth a call each */
};

typedef enum kir_layout { KIR_POINTS, KIR_ALONG, KIR_ACROSS } kir_layout; /* the three rows of the table above */

/* One instruction, prepared. Values keep the numbers of their instructions. */
typedef struct kir_step {
    uint8_t op, type, kind, mode; /* kir_op, result type, kir_reduce, kir_round */
    uint8_t operand;              /* type of the operands (of b for SELECT) */
    bool in_loop;
    bool converts;       /* LOAD, STORE: the buffer's elements are not what the value's are */
    int16_t d, a, b, c;  /* values; of a LOAD (mask), of a STORE (value, mask) */
    int16_t access, dyn; /* LOAD, STORE, INDEX */
    int16_t partner;     /* LOOP: step of its END; END: step of its LOOP */
    int16_t state;       /* REDUCE, SCAN: number of its state */
    int16_t feeds;       /* LOAD: only this state reads the value, row by row across memory; -1: others do */
    bool moves;          /* LOAD: only its STORE reads the value: elements can go from memory to memory */
    /* a value written by one STORE: the step of that STORE, into whose memory it may go at once; -1 */
    int16_t direct;
} kir_step;

/* Two steps that are safe only if their memory does not overlap; otherwise `loser` uses the slow path (a LOAD that uses
 * memory directly copies it, a STORE whose value is computed in place does not). */
typedef struct kir_conflict {
    int16_t loser, other;
} kir_conflict;

typedef struct kir_range {
    uintptr_t low, high;
} kir_range;

typedef struct kir_schedule {
    kir_step *steps;
    int32_t *slots; /* by value: offset of its slot in a thread's memory, -1 without one */
    kir_conflict *conflicts;
    int n_steps, n_conflicts;
    size_t slot_bytes;
} kir_schedule;

/* What a step does under one pattern of kinds. */
typedef enum kir_act {
    KIR_DO_CALL,   /* one call over all elements */
    KIR_DO_ROWS,   /* a call for each row */
    KIR_DO_SPREAD, /* operands spread out to the result's kind, then one call */
    KIR_DO_RENAME, /* BITCAST: the value is its operand's memory */
    KIR_DO_LOAD,
    KIR_DO_STORE,
    KIR_DO_INDEX,
    KIR_DO_LOOP,
    KIR_DO_END,
    KIR_DO_REDUCE,
    KIR_DO_SCAN,
    KIR_ACTS
} kir_act;

typedef struct kir_bound {
    kir_fn *fn;
    int16_t d, a, b, c; /* values */
    int16_t step, direct;
    uint8_t act, kind, operands;
} kir_bound;

typedef struct kir_bind {
    kir_bound *bound; /* one a step */
    uint8_t *kinds;   /* by value */
    uint8_t *pattern; /* what it was made for: layout, whole, narrow, directions, instruction set; kinds by access */
} kir_bind;

enum { KIR_PATTERN_HEAD = 5 };

/* Machine code of a program for one pattern of strides along its rows (machine_code.c). */
typedef struct kir_code kir_code;

/* How to run a short launch with sizes that were used before (vm_launch.c). */
typedef struct kir_recipe kir_recipe;

struct kir_vm {
    bool shared; /* everything except the caches, which are last, belongs to another one */
    int n_par, n_loop, n_access, n_values, n_states, n_constants, n_scalars;
    bool has_loop, has_loops,
        in_blocks; /* one or more, several; in_blocks: all reductions allow blocks to be computed separately */
    int loop_first, loop_count;
    int16_t *buffer_of;        /* by access; INDEX has -1 */
    struct kir_view *views;    /* by access; origins are the launch's */
    int table_store;           /* the access of a byte that a launch may look up (vm_table.c); -1 */
    int first_store;           /* its access; the parallel axes are put in the order of its strides; -1: no store */
    kir_schedule parts, whole; /* loops in chunks; whole rows in one tile (programs with loops) */
    kir_ins *constants;        /* CONSTs, then SCALARs */
    int16_t *constant_of;      /* the number of each one's value */
    kir_value *constant_values;
    uint8_t *state_width;         /* by state: bytes an element */
    double point_cost, loop_cost; /* nanoseconds a parallel point outside loops, a loop point */
    size_t thread_bytes;          /* memory of one frame */
    int64_t points_tile;          /* without loops: points of a tile whose values stay in first-level cache */
    kir_program *source;          /* a copy of the program, if it may get machine code; else NULL */
    _Atomic(kir_bind *) binds[KIR_BINDS];
    _Atomic(kir_code *) codes[KIR_BINDS];
    _Atomic(int) launches; /* that could have used code while there was none */
    _Atomic(kir_recipe *) recipes[KIR_RECIPES];
    _Atomic(int) repeats; /* launches that could have had a recipe */
};

/* A list of axes, flattened. */
typedef struct kir_space {
    int n;
    int64_t extent[KIR_MAX_AXES], total;
} kir_space;

/* A range of a space. `simple`: it is in one run of the last axis. */
typedef struct kir_cursor {
    const kir_space *space;
    int64_t begin, count;
    int64_t at[KIR_MAX_AXES];
    bool simple;
} kir_cursor;

/* A buffer as an access sees it. */
typedef struct kir_view {
    char *origin;
    uint8_t size, width; /* bytes an element, and their logarithm */
    uint8_t dtype;
} kir_view;

/* A reduction or scan on its way. */
typedef struct kir_state {
    int64_t count; /* elements so far */
    int64_t row;   /* across memory: bytes between the rows of the tile's elements; 0: they are contiguous */
    bool has_total;
    char *lanes, *total; /* across memory: KIR_LANES lines of columns, one line of totals */
} kir_state;

typedef struct kir_frame {
    const kir_vm *vm;
    const kir_schedule *schedule;
    const kir_simd_table *simd;
    tn_isa isa; /* of the table */
    const kir_bind *bind;
    const kir_launch *launch;
    const int64_t *sizes;
    struct { /* how the launch is divided */
        kir_layout layout;
        bool whole;
        kir_space outer, inner;
        int64_t outer_step, inner_step; /* a tile's size */
        bool square;                    /* tiles are square: something is transposed */
        int64_t inner_pieces, units;    /* pieces of an inner run; what a launch divides into */
        double cost;                    /* of the launch, nanoseconds */
    } grid;
    kir_cursor outer, inner; /* the current tile */
    struct {                 /* by access */
        int64_t *strides;    /* offset, outer strides, inner strides */
        int stride_width;
        kir_view *views;
    } access;
    struct {               /* memory of values */
        char **at;         /* by value */
        uint8_t *flags;    /* by step: KIR_FLAG_… */
        kir_range *ranges; /* by step that loads or stores: the bytes it may touch */
        char *slots;
        char *stage[KIR_STAGES];
        kir_state *states;
        kir_value *scalars;
        uint8_t *pattern;
    } tile;
    kir_bind own; /* when the program's table of binds is full */
    struct {
        const kir_code *code; /* not NULL: units are run by it */
        bool is_given; /* … and `given` says by which: a launch that is shared out has one division into units */
        const kir_code *given;
    } machine;
    struct kir_team *team; /* not NULL: loops are shared out block by block (vm.c) */
} kir_frame;

enum {
    KIR_FLAG_COPY = 1, /* LOAD: must not lend its memory */
    KIR_FLAG_LATE = 2, /* STORE: its value must not be computed in place */
    KIR_FLAG_DONE = 4  /* STORE: the value is already where it belongs (this tile) */
};

/* vm.c, for tests: how much work is divided among threads; before any run. */
void kir_vm_worth_a_thread(double nanoseconds);

/* vm_launch.c */
/* Divides a thread's memory (thread_bytes) among a frame's parts; with memory NULL only returns the size. */
size_t kir_frame_carve(kir_frame *f, const kir_vm *vm, void *memory);
/* Makes the frame ready for a launch, or for the box lo ≤ axis < hi of its parallel axes. */
void kir_frame_launch(kir_frame *f, const kir_launch *launch, const int64_t *lo, const int64_t *hi);
/* The size of equal pieces, none above `most`, whole vectors each, that `total` is cut into. */
int64_t kir_piece_of(int64_t total, int64_t most);

/* vm_launch.c */
/* Runs the launch, or the box lo ≤ axis < hi of it, if there is a recipe for it; else false. */
bool kir_recipe_run(const kir_vm *vm, const kir_launch *launch, const int64_t *lo, const int64_t *hi);
/* Keeps how the launch that the frame is laid out for is run, if it has code, is short enough and repeats. */
void kir_recipe_note(const kir_frame *f, const int64_t *lo, const int64_t *hi);
int kir_recipes_kept(const kir_vm *vm); /* for tests */
void kir_recipes_free(kir_vm *vm);

/* vm_table.c */
/* Sets vm->table_store. */
void kir_table_note(const kir_program *p, kir_vm *vm);
/* Runs the launch by a table of its results, if vm->table_store is one and there are enough points; else false. */
bool kir_table_run(const kir_vm *vm, const kir_launch *launch);

/* vm.c */
/* Choices of tests and benchmarks: an instruction set (+1) in the upper bits, code or none in the lower two. */
extern _Atomic(int) kir_vm_choices;

/* vm_memory.c */
void kir_do_load(kir_frame *f, const kir_bound *b);
void kir_do_store(kir_frame *f, const kir_bound *b);
void kir_do_index(kir_frame *f, const kir_bound *b);
/* Value `v` in all directions of `kind`: its own memory if it is that already, else expanded into a temporary. */
const char *kir_spread(kir_frame *f, int v, kir_type type, int kind, int stage);
/* The memory that the value of step `store` is to be computed into, or NULL when it has to be stored afterwards. */
char *kir_direct_address(kir_frame *f, int store);

/* vm_memory.c */
void kir_states_begin(kir_frame *f, int loop, int end);
void kir_states_end(kir_frame *f, int loop, int end);
void kir_do_reduce(kir_frame *f, const kir_bound *b);
void kir_do_scan(kir_frame *f, const kir_bound *b);
/* A loop whose blocks of KIR_BLOCK elements are reduced separately: a block's state is saved as a part; the parts are
 * added in order (`first`: index of a part's first element), then become the result. */
size_t kir_part_bytes(void);
void kir_part_save(kir_frame *f, const kir_step *s, char *part);
void kir_part_add(kir_frame *f, const kir_step *s, const char *part, int64_t first);
void kir_parts_end(kir_frame *f, const kir_step *s);

/* machine_code.c */
/* Keeps what is needed to make code later, when the program is one that can have some. */
tn_status kir_code_prepare(kir_vm *vm, const kir_program *p);
void kir_code_release(kir_vm *vm);
/* Finds or makes code for the launch that the frame is laid out for, and divides the launch into units. false: there is
 * none; the VM's routines run it. */
bool kir_code_choose(kir_frame *f);
void kir_code_run(const kir_frame *f, int64_t unit);
bool kir_code_has(tn_isa isa); /* is there code for this instruction set? */

/* For tests and benchmarks: code on or off (default: on, unless TRUNNION_JIT=0); nanoseconds of work from which a first
 * launch is worth making code; a system that refuses executable memory; how much was made. */
void kir_code_use(bool on);
void kir_code_worth(double nanoseconds);
void kir_code_refuse_memory(bool yes);
int64_t kir_code_made(void);
const char *kir_code_state(void); /* "on", or why there is no code */

/* The number of elements of a value of this kind in the current tile. */
static inline int64_t kir_count(const kir_frame *f, int kind) {
    return (kind & KIR_INNER ? f->inner.count : 1) * (kind & KIR_OUTER ? f->outer.count : 1);
}

static inline int kir_log2(size_t size) { return size >= 8 ? 3 : size >= 4 ? 2 : size >= 2 ? 1 : 0; }

#endif
