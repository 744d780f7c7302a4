#!/usr/bin/env bash
# setup.sh [build|tests|check] — installs what building, building the tests or (the default) checking needs, and nothing
# twice. check.sh asks for `tests` first and fetches the rest while it builds.
#
# With root or a sudo that asks nothing, packages come from apt. Otherwise CMake comes from pip into .deps/venv, and for
# the rest the script says exactly what is missing and fails. When all is there it only looks, and takes no time.
set -u
cd "$(dirname "$0")/.."
purpose=${1:-check}
venv=.deps/venv
PATH="$PWD/$venv/bin:$PATH"

say() { echo "setup: $*"; }
have() { command -v "$1" >/dev/null 2>&1; }

# ---- what is needed: a test, the Debian package, and what it is for --------------------------------------------------

have_cmake() {
    local version
    version=$(cmake --version 2>/dev/null | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p')
    [ -n "$version" ] && [ "$(printf '%s\n3.21\n' "$version" | sort -V | head -n 1)" = 3.21 ]
}
have_compiler() { have "${CC:-cc}"; }
have_generator() { have make || have ninja; }
have_cmocka() { have pkg-config && pkg-config --exists cmocka; }
have_pcre2() { have pkg-config && pkg-config --exists libpcre2-8; }
have_utf8proc() { have pkg-config && pkg-config --exists libutf8proc; }
have_png() { have pkg-config && pkg-config --exists libpng; }
have_jpeg() { have pkg-config && pkg-config --exists libjpeg; }
have_microhttpd() { have pkg-config && pkg-config --exists libmicrohttpd; }
have_curl() { have curl; }
have_zlib() { have pkg-config && pkg-config --exists zlib; }
have_venv() { [ -x $venv/bin/python ] && [ -d "$(echo $venv/lib/python3*/site-packages/pip)" ]; }
have_ensurepip() { have_venv || python3 -c 'import venv, ensurepip' 2>/dev/null; }

# test | package | needed for | what it does. `text` is needed to build the tests; a build goes on without it, and then
# says which subcommands are left out.
needs="
have_compiler     | gcc libc6-dev  | build | the C compiler
have_generator    | make           | build | runs the compiler
have_cmake        | cmake          | build | CMake 3.21 or later
have_python       | python3        | build | the scripts in tools/
have_ensurepip    | python3-venv   | build | pip, which fetches the data sets
have_pkg_config   | pkg-config     | text  | finds the libraries that trunnion-text and the tests use
have_pcre2        | libpcre2-dev   | text  | regular expressions of the tokenizers
have_utf8proc     | libutf8proc-dev | text | Unicode tables of the tokenizers and chat templates
have_png          | libpng-dev     | text  | pictures as inputs of trunnion run
have_jpeg         | libjpeg-dev    | text  | the same
have_zlib         | zlib1g-dev     | text  | packed .npz files
have_microhttpd   | libmicrohttpd-dev | text | HTTP of trunnion serve, which loads it at its start
have_curl         | curl           | check | downloads of trunnion pull, which starts it if it is there
have_libedit      | libedit2       | check | line editing of trunnion chat, which loads it if it is there
have_readelf      | binutils       | check | looks into the built library
have_cmocka       | libcmocka-dev  | tests | the test framework
have_cxx          | g++            | tests | proves that C++ programs can include the headers, compiles kernels for doubles
have_opencl       | ocl-icd-libopencl1 | check | finds OpenCL drivers
have_opencl_driver | pocl-opencl-icd | check | OpenCL on the processor, where the tests run kernels made for GPUs
have_oclgrind     | oclgrind       | check | an OpenCL that finds data races and stray accesses in kernels
have_vulkan       | libvulkan1     | check | finds Vulkan drivers
have_vulkan_driver | mesa-vulkan-drivers | check | Vulkan on the processor
have_vulkan_layer | vulkan-validationlayers | check | says what a program does wrong with Vulkan
have_vulkan_header | libvulkan-dev | check | what the Vulkan driver's own declarations are compared with
have_open_mpi     | openmpi-bin    | check | starts training on several processes
have_mpich        | mpich          | check | the same, by the other kind of MPI
have_spirv_val    | spirv-tools    | check | validates kernels made for Vulkan
"
have_python() { have python3; }
have_libedit() { PATH="$PATH:/sbin:/usr/sbin" ldconfig -p | grep -q 'libedit\.so\.[02] '; }
have_readelf() { have readelf; }
have_pkg_config() { have pkg-config; }
have_cxx() { have "${CXX:-c++}"; }
have_opencl() { PATH="$PATH:/sbin:/usr/sbin" ldconfig -p | grep -q 'libOpenCL\.so\.1 '; }
have_opencl_driver() { compgen -G "${OCL_ICD_VENDORS:-/etc/OpenCL/vendors}/*.icd" >/dev/null; }
have_oclgrind() { have oclgrind; }
have_vulkan() { PATH="$PATH:/sbin:/usr/sbin" ldconfig -p | grep -q 'libvulkan\.so\.1 '; }
have_vulkan_driver() { compgen -G "/usr/share/vulkan/icd.d/lvp_icd*.json" >/dev/null; }
have_vulkan_layer() { compgen -G "/usr/share/vulkan/explicit_layer.d/*validation*.json" >/dev/null; }
have_vulkan_header() { [ -e /usr/include/vulkan/vulkan_core.h ]; }
have_open_mpi() { have mpirun.openmpi; }
have_mpich() { have mpirun.mpich; }
have_spirv_val() { have spirv-val; }

case $purpose in # kinds of rows that are not asked for
build) not_asked="tests check" ;;
tests) not_asked="check" ;;
*) not_asked="" ;;
esac

# missing [NOT] — prints the rows of `needs` whose test fails, for this purpose; without those of the kind NOT.
missing() {
    while IFS='|' read -r test package for what; do
        [ -n "${test// /}" ] || continue
        [[ " $not_asked " == *" ${for// /} "* ]] && continue
        [ "${for// /}" = "${1:-}" ] && continue
        ${test// /} || echo "$(echo $package)|$what"
    done <<<"$needs"
}

# ---- ways to get it --------------------------------------------------------------------------------------------------

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    else
        sudo -n "$@"
    fi
}

may_install() { have apt-get && { [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; }; }

install_packages() {
    local packages=$1
    say "installing with apt-get:" $packages
    export DEBIAN_FRONTEND=noninteractive
    as_root apt-get update -q || say "apt-get update failed; going on with the package lists at hand"
    as_root apt-get install -q -y --no-install-recommends $packages
}

# A Python of our own, so that nothing is ever installed beside the system's packages.
make_venv() {
    have_venv && return 0
    say "making $venv"
    python3 -m venv $venv && return 0
    python3 -m venv --without-pip $venv && python3 -m pip --python $venv/bin/python install -q pip
}

cmake_from_pip() {
    say "taking CMake from pip"
    make_venv && $venv/bin/python -m pip install -q cmake && hash -r
}

# A BLAS library that the checks multiply with, beside whatever the system has.
have_openblas() { compgen -G "$venv/lib/python3*/site-packages/scipy_openblas32/lib/libscipy_openblas.*" >/dev/null; }

openblas_from_pip() {
    say "taking OpenBLAS from pip"
    make_venv && $venv/bin/python -m pip install -q scipy-openblas32
}

# ONNX's own test cases come with its Python package.
have_onnx() { compgen -G "$venv/lib/python3*/site-packages/onnx/backend/test" >/dev/null; }

onnx_from_pip() {
    say "taking onnx from pip"
    make_venv && $venv/bin/python -m pip install -q onnx
}

# What runs the models that we export; of what it names as its needs, its run time asks for numpy and protobuf alone,
# which onnx brings.
have_onnxruntime() { compgen -G "$venv/lib/python3*/site-packages/onnxruntime/capi" >/dev/null; }

onnxruntime_from_pip() {
    say "taking onnxruntime from pip"
    make_venv && $venv/bin/python -m pip install -q --no-deps onnxruntime
}

# A WebGPU library (wgpu-native) that runs kernels over whatever Vulkan driver is there.
have_wgpu() { compgen -G "$venv/lib/python3*/site-packages/wgpu/resources/libwgpu_native*" >/dev/null; }

wgpu_from_pip() {
    say "taking wgpu from pip"
    make_venv && $venv/bin/python -m pip install -q --no-deps wgpu==0.32.0
}

# ---- the work --------------------------------------------------------------------------------------------------------

lacking=$(missing)
if [ -n "$lacking" ] && may_install; then
    install_packages "$(cut -d'|' -f1 <<<"$lacking" | tr '\n' ' ')"
fi
have_cmake || cmake_from_pip
if [ "$purpose" = check ]; then
    have_openblas || openblas_from_pip || say "OpenBLAS could not be fetched with pip"
    have_onnx || onnx_from_pip || say "onnx could not be fetched with pip"
    have_onnxruntime || onnxruntime_from_pip || say "onnxruntime could not be fetched with pip"
    have_wgpu || wgpu_from_pip || say "wgpu could not be fetched with pip"
fi
have_venv || make_venv || say "no virtual environment for Python could be made: install python3-venv"

lacking=$(missing)
if [ -n "$lacking" ]; then
    if may_install; then
        say "these are still missing after apt-get, whose words are above:"
    else
        say "these are missing, and this account may not install them (that takes apt-get, and root or a free sudo):"
    fi
    while IFS='|' read -r package what; do
        say "  apt-get install $package —$what"
    done <<<"$lacking"
    [ "$purpose" = build ] && [ -z "$(missing text)" ] || exit 1
    say "the build goes on without them, and without the parts that need them"
    exit 0
fi
say "nothing that is needed for '$purpose' is missing"
