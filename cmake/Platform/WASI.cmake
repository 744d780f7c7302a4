# WASI.cmake — what CMake must know of WebAssembly outside a browser: programs end in .wasm, libraries are archives.
set(CMAKE_EXECUTABLE_SUFFIX ".wasm")
set(CMAKE_STATIC_LIBRARY_PREFIX "lib")
set(CMAKE_STATIC_LIBRARY_SUFFIX ".a")
