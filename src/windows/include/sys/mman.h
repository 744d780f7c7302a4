/* mman.h — empty but for the name that Vulkan's driver also has: posix.h, which every file includes, has the rest. */
#define MAP_FAILED ((void *)-1)
