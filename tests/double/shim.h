/* shim.h — the part of a kernel's translation unit that all of the doubles' languages share; it stands before the
 * rendered text and is C++17 without any header.
 *
 * The compiled object and the engine meet in two places: `engine_here`, where the engine says which item runs, and
 * for each kernel a function engine_run_NAME that runs items of the present workgroup until none is left. A kernel is
 * compiled into that loop, so one without barriers runs as fast as a plain loop. */

typedef __UINT8_TYPE__ engine_u8;
typedef __UINT32_TYPE__ engine_u32;
typedef __UINT64_TYPE__ engine_u64;

struct engine_triple {
    engine_u32 x, y, z;
};

/* The same struct stands in parts.h. */
struct engine_context {
    engine_triple item, group, items, groups;
    engine_u32 cursor, count, linear, warp;
    const engine_u32 *order;
    const engine_triple *places;
    engine_u8 *dynamic;
    void (*barrier)(engine_u32 line);
};

#define ENGINE_EXPORT extern "C" __attribute__((visibility("default"), used, externally_visible))

ENGINE_EXPORT engine_context *engine_here;
engine_context *engine_here;

/* Workgroup memory is one section, which the engine fills before each workgroup. */
#define ENGINE_WORKGROUP static __attribute__((section("engine_local")))
extern "C" __attribute__((weak, visibility("hidden"))) engine_u8 __start_engine_local[], __stop_engine_local[];
ENGINE_EXPORT engine_u8 *const engine_shared[2];
engine_u8 *const engine_shared[2] = {__start_engine_local, __stop_engine_local};

#define ENGINE_BARRIER() (engine_here->barrier(__LINE__))

static inline bool engine_next() {
    engine_context *c = engine_here;
    if (c->cursor == c->count) return false;
    c->linear = c->order[c->cursor++];
    c->item = c->places[c->linear];
    return true;
}

/* ---- kernels whose parameters are values and pointers ------------------------------------------------------------ */

template <int... I> struct engine_numbers {};
#ifdef __clang__
template <class T, T... I> struct engine_list { typedef engine_numbers<I...> type; };
template <int N> using engine_up_to = typename __make_integer_seq<engine_list, int, N>::type;
#else
template <int N> using engine_up_to = engine_numbers<__integer_pack(N)...>;
#endif

template <class T> constexpr engine_u32 engine_pointer_bit = 0;
template <class T> constexpr engine_u32 engine_pointer_bit<T *> = 0x80000000u;

template <auto K> struct engine_signature;
template <class... A, void (*K)(A...)> struct engine_signature<K> {
    static constexpr engine_u32 sizes[sizeof...(A) + 1] = {(sizeof(A) | engine_pointer_bit<A>)..., 0};

    template <int... I> static inline __attribute__((always_inline)) void run(void **args, engine_numbers<I...>) {
        while (engine_next())
            K(*(A *)args[I]...);
    }
    static inline __attribute__((always_inline)) void all(void **args) { run(args, engine_up_to<sizeof...(A)>()); }
};

#define ENGINE_KERNEL(name)                                                       \
    ENGINE_EXPORT const engine_u32 *const engine_sizes_##name;                    \
    const engine_u32 *const engine_sizes_##name = engine_signature<&name>::sizes; \
    ENGINE_EXPORT void engine_run_##name(void **args) { engine_signature<&name>::all(args); }
