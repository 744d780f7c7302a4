# zig.cmake — CMake toolchain for cross builds with the C compiler of the package `ziglang` (tools/cross.py).
#
# Variables, as cache entries: TN_ZIG_TARGET (a Zig target triple) and TN_ZIG_WRAPPERS (a folder with the programs
# zig-cc, zig-ar and zig-ranlib that tools/cross.py writes).
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES TN_ZIG_TARGET TN_ZIG_WRAPPERS)
string(REGEX MATCH "^[a-z0-9_]+" CMAKE_SYSTEM_PROCESSOR "${TN_ZIG_TARGET}")
if(TN_ZIG_TARGET MATCHES "macos")
    set(CMAKE_SYSTEM_NAME Darwin)
elseif(TN_ZIG_TARGET MATCHES "wasi")
    set(CMAKE_SYSTEM_NAME WASI)
    list(APPEND CMAKE_MODULE_PATH ${CMAKE_CURRENT_LIST_DIR})
elseif(TN_ZIG_TARGET MATCHES "windows")
    set(CMAKE_SYSTEM_NAME Windows)
else()
    set(CMAKE_SYSTEM_NAME Linux)
endif()
set(CMAKE_C_COMPILER ${TN_ZIG_WRAPPERS}/zig-cc)
set(CMAKE_C_COMPILER_TARGET ${TN_ZIG_TARGET})
set(CMAKE_AR ${TN_ZIG_WRAPPERS}/zig-ar)
set(CMAKE_RANLIB ${TN_ZIG_WRAPPERS}/zig-ranlib)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE NEVER)
