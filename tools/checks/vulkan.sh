#!/usr/bin/env bash
# vulkan.sh BUILD [--all] — the Vulkan driver on the Vulkan devices that run on the processor, under Khronos' validation
# layer.
#
# The layer says on standard output what a program does wrong with Vulkan: one message, and the run has failed. First
# three mistakes are seeded, calls that the fake library between driver and loader leaves out, and have to be found. Then
# the driver's promises are tried, also with memory that the host does not see, a sample of one operation in three (with
# --all of each), and a training whose loss must be the processor's. SwiftShader, where it is, is the minimal device: no
# f16, f64, or 64-bit integers, and no memory in less than words. Matrices are multiplied by Mesa from 26 on: where
# TRUNNION_NEWER_ROOT is the folder of a system that has it (in_root.sh), products of halves are tried there.
set -u
cd "$(dirname "$0")/../.."
build=$1 some=""
passed=0 failed=0
swiftshader=${SWIFTSHADER_ICD:-/usr/lib/chromium/vk_swiftshader_icd.json}

logs=$build/check/vulkan
rm -rf "$logs"
mkdir -p "$logs/cache"
export TRUNNION_CACHE=$PWD/$logs/cache
unset XDG_RUNTIME_DIR VK_ICD_FILENAMES VK_DRIVER_FILES TRUNNION_VULKAN_LIB TRUNNION_VULKAN_STAGING

# Operations that read where they compute, or all of an operand at once.
windows=index_select,embedding,gather,scatter_add,cat,flip,softmax,matmul,sum,cumsum,bitwise_not

if [ "${2:-}" != --all ]; then
    some="--only $(python3 tools/checks/some_operations.py "$build/trunnion" 3 "${SEED:-1}")"
fi

verdict() {
    if [ "$1" = 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "failed: $2"
        tail -n 20 "$logs/$3.log" | cut -c1-400 | sed 's/^/  | /'
    fi
}

messages() { grep -cE 'VUID-|UNASSIGNED-|Validation (Error|Warning)' "$logs/$1.log"; }

# clean NAME COMMAND… — the program succeeds and the layer says nothing.
clean() {
    local name=$1 code found
    shift
    timeout $((120 * ${PATIENCE:-1})) "$@" >"$logs/$name.log" 2>&1
    code=$?
    found=$(messages "$name")
    [ $code = 0 ] && [ "$found" = 0 ]
    verdict $? "$name: ended with $code, $found messages of the validation layer" "$name"
}

# wrong CALL WORDS — without this call the layer finds something.
wrong() {
    timeout $((60 * ${PATIENCE:-1})) env FAULT="$1:1:0" TRUNNION_VULKAN_LIB="$logs/libvulkan.so" \
        "$build/test_vulkan" --work >"$logs/$1.log" 2>&1
    grep -q "$2" "$logs/$1.log"
    verdict $? "that $1 was left out was not found" "$1"
}

python3 tools/checks/vulkan_headers.py >"$logs/headers.log" 2>&1
verdict $? "src/drivers/vulkan.h is not what the vendors' header says" headers
grep '^skipped' "$logs/headers.log"

# What a user sees: no word of the loader or of a driver.
"$build/trunnion" certify --device vulkan --only silu >"$logs/quiet.log" 2>"$logs/noise.log"
[ $? = 0 ] && [ ! -s "$logs/noise.log" ]
verdict $? "the command has noise on its standard error: $(head -c 300 "$logs/noise.log")" quiet

clean staging env TRUNNION_VULKAN_STAGING=1 "$build/test_vulkan"
clean certify "$build/trunnion" certify --device vulkan --sample 60 $some --seed "${SEED:-1}"

# loss DEVICE — of a short training, in full; llvmpipe computes the processor's bits.
loss() {
    env -u TRUNNION_CACHE "$build/trunnion" train digits --steps 4 --seed 7 --device "$1" --strict --json 2>>"$logs/train.log" |
        sed -n 's/.*"final_loss": *\([0-9.e+-]*\).*/\1/p'
}
there=$(loss vulkan) here=$(loss cpu)
echo "a training of 4 steps: loss $there, on the processor $here" | tee -a "$logs/train.log"
[ -n "$there" ] && [ "$there" = "$here" ]
verdict $? "the training's loss is not the processor's" train

if [ -e "$swiftshader" ]; then
    export VK_ICD_FILENAMES=$swiftshader
    clean swiftshader "$build/test_vulkan"
    clean certify-minimal "$build/trunnion" certify --device vulkan --sample 80 $some --seed "${SEED:-1}"
    unset VK_ICD_FILENAMES
    echo "ran on: vulkan:0 (SwiftShader, software): the driver's promises and a sample of operations"
else
    echo "skipped: SwiftShader is not here ($swiftshader), which comes with Chromium"
fi

export VK_INSTANCE_LAYERS=VK_LAYER_KHRONOS_validation
${CC:-cc} -shared -fPIC -o "$logs/libvulkan.so" tests/fakes/vulkan_faults.c -ldl >"$logs/fake.log" 2>&1
verdict $? "the fake library does not compile" fake
wrong vkDestroyBuffer 'VUID-vkDestroyDevice'
wrong vkCmdBindDescriptorSets 'VUID-vkCmdDispatch'
wrong vkDestroyPipelineLayout 'VUID-vkDestroyDevice'
clean validated "$build/test_vulkan"
clean promises env TRUNNION_TEST_DEVICE=vulkan "$build/test_conform"
small="env SHRINK=2048 TRUNNION_VULKAN_LIB=$PWD/$logs/libvulkan.so" # memory is reached through several bindings
clean small-driver $small "$build/test_vulkan"
clean small-bindings $small "$build/trunnion" certify --device vulkan --strict --only "$windows"
small=$(SHRINK=65536 TRUNNION_VULKAN_LIB=$PWD/$logs/libvulkan.so loss vulkan)
[ -n "$small" ] && [ "$small" = "$here" ]
verdict $? "with bindings of 64 KiB the training's loss is $small, on the processor $here" train
clean queues env TRUNNION_TEST_DEVICE=vulkan "$build/test_queue"
clean immediate-kernels env TRUNNION_TEST_DEVICE=vulkan "$build/test_device_kernels"
clean validated-staging env TRUNNION_VULKAN_STAGING=1 "$build/test_vulkan"
clean validated-certify "$build/trunnion" certify --device vulkan --sample 500 $some --seed "${SEED:-1}"

if [ -n "${TRUNNION_NEWER_ROOT:-}" ]; then
    newer=tools/checks/in_root.sh
    clean matrices env TRUNNION_TEST_DEVICE=vulkan $newer "$TRUNNION_NEWER_ROOT" "$build/test_matrix"
    clean certify-matrices $newer "$TRUNNION_NEWER_ROOT" "$build/trunnion" certify --device vulkan --only matmul
    clean modules env TRUNNION_SPIRV_VAL="$newer $TRUNNION_NEWER_ROOT spirv-val" "$build/test_matrix"
    echo "ran on: vulkan:0 of $TRUNNION_NEWER_ROOT (cooperative matrices, under Khronos' validation layer)"
else
    echo "skipped: cooperative matrices: Mesa multiplies them from 26 on (TRUNNION_NEWER_ROOT: the folder of a system)"
fi

[ $failed = 0 ] && echo "ran on: vulkan:0 (Khronos' validation layer found nothing)"
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
