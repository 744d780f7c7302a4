#!/usr/bin/env bash
# webgpu.sh BUILD [--all] — the WebGPU driver on the wgpu-native that tools/setup.sh fetched, over Vulkan on the processor:
# its declarations are the library's, its promises are kept, also through bindings of a kilobyte, a sample of operations
# is right, random kernels have the interpreter's bits, and a training loses what it loses on the processor. One operation
# in twelve is tried, with --all each, and all of the driver's tests through small bindings, and kernels.h's: compiling
# their kernels takes most of the time.
set -u
cd "$(dirname "$0")/../.."
build=$1 some="" few="" full=TRUNNION_TEST_FULL=1 steps=4
passed=0 failed=0

library=$(compgen -G ".deps/venv/lib/python3*/site-packages/wgpu/resources/libwgpu_native*" | head -n 1)
if [ -z "$library" ]; then
    echo "skipped: wgpu-native is not here; run tools/setup.sh check"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi

logs=$build/check/webgpu
rm -rf "$logs"
mkdir -p "$logs/cache"
export TRUNNION_WEBGPU_LIB=$PWD/$library TRUNNION_CACHE=$PWD/$logs/cache
unset XDG_RUNTIME_DIR VK_ICD_FILENAMES VK_DRIVER_FILES

# good NAME COMMAND… — the command succeeds.
good() {
    local name=$1
    shift
    if timeout $((200 * ${PATIENCE:-1})) "$@" >"$logs/$name.log" 2>"$logs/$name.err"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "failed: $name"
        tail -n 20 "$logs/$name.log" "$logs/$name.err" | cut -c1-400 | sed 's/^/  | /'
    fi
}

# What reads at computed places, moves, packs bits, multiplies and reduces.
windows=index_select,embedding,gather,scatter_add,cat,flip,softmax,matmul,sum,cumsum,bitwise_not

if [ "${2:-}" != --all ]; then
    some="--only $(python3 tools/checks/some_operations.py "$build/trunnion" 12 "${SEED:-1}")" few="--sample 8" full="" steps=2
fi

# loss DEVICE — of a short training, in full.
loss() {
    env -u TRUNNION_CACHE "$build/trunnion" train digits --steps "$steps" --seed 7 --device "$1" --strict --json 2>>"$logs/train.log" |
        sed -n 's/.*"final_loss": *\([0-9.e+-]*\).*/\1/p'
}

# The same library with bindings of a few bytes: memory is reached through several.
small=$logs/libwgpu_native.so
${CC:-cc} -std=c17 -shared -fPIC -Isrc -o "$small" tests/fakes/wgpu_faults.c -Wl,--no-as-needed "$PWD/$library" -ldl
shrunk="env TRUNNION_WEBGPU_LIB=$PWD/$small SHRINK"

good layouts ${CC:-cc} -std=c17 -O1 -c -o /dev/null -Isrc "-I${library%/*}" tools/checks/webgpu_layouts.c
good driver "$build/test_webgpu"
good kernels env TRUNNION_TEST_DEVICE=webgpu "$build/test_conform"
good words env $full TRUNNION_TEST_DEVICE=webgpu "$build/test_wgsl"
[ -n "$some" ] || good small-driver $shrunk=4096 "$build/test_webgpu"
good small-bindings $shrunk=1024 "$build/trunnion" certify --device webgpu --only "$windows" $few
# An adapter through whose bindings nothing can be reached is refused by its limit's name.
good tiny-bindings bash -c "$shrunk=48 '$build/trunnion' train digits --steps 1 --device webgpu --strict 2>&1 |
    grep 'maxStorageBufferBindingSize is 48'"
good queues env TRUNNION_TEST_DEVICE=webgpu "$build/test_queue"
[ -n "$some" ] || good immediate-kernels env TRUNNION_TEST_DEVICE=webgpu "$build/test_device_kernels"
good certify "$build/trunnion" certify --device webgpu --sample 100 $some --seed "${SEED:-1}"
"$build/trunnion" devices >"$logs/listing" 2>&1
good twins grep -q 'webgpu:0.*the same as vulkan:0' "$logs/listing" # one software device behind two interfaces
good silence test ! -s "$logs/certify.err" # what a user sees: no word of the library or of a driver
there=$(loss webgpu) here=$(loss cpu)
echo "a training of $steps steps: loss $there, on the processor $here" | tee -a "$logs/train.log"
good training awk "BEGIN { exit !(\"$there\" != \"\" && ($there - $here) ^ 2 <= (1e-4 * $here) ^ 2) }"

[ $failed = 0 ] && grep -h '^ran on: webgpu' "$logs"/*.log
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
