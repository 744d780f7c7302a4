#!/usr/bin/env bash
# check.sh [check|check-all] [SUITE…] — runs the suites of the table below and tells what passed.
#
# A suite is a command with a budget of seconds. If the last line of its output reads "N passed, N failed, N skipped",
# these are its counts; any other suite counts as one test. Past its budget it is stopped and has failed. A line
# "ran on: DEVICE" says that a device or engine really computed, "skipped: …" why something did not run, "listing: …" is
# the text of `trunnion devices`, "size: …" how large a binary is; these are shown.
# Each suite builds what it needs, so every one can be run alone. Logs: build/check/SUITE.log. What a suite came to is
# also a line of build/check/ran.tsv, of which tools/checks/record.py makes a page. PATIENCE=4 in the environment makes
# every budget four times as long, for machines that are slow or have other work. PERCENT=10 lets the suites that try an
# amount of random work (programs, files, moments, seconds) try a tenth of it, PERCENT=500 five times as much, with
# budgets to match. The amounts are meant for one night of 8 hours on two processors. Most of these
# suites draw by SEED: in check-all a new one each day, which is printed, so SEED=N in the environment repeats a night;
# otherwise 1. serve-load and fuzz-long do not use it.
#
# The last line of all is the sum. No quiet pass: what is `expected` below must have said "ran on".
set -u
cd "$(dirname "$0")/.."
export PATH="$PWD/.deps/venv/bin:$PATH"
export BUILD=${BUILD:-build} WERROR=${WERROR:-ON} JOBS=${JOBS:-2}
export POCL_WORK_GROUP_SPECIALIZATION=0 # PoCL compiles each kernel once, not anew for a launch's size; it runs as fast

level=${1:-check}
case $level in
check | check-all) ;;
*)
    sed -n '2,4p' "$0" | sed 's/^# *//' >&2
    exit 2
    ;;
esac
[ $# -gt 0 ] && shift
only=" $* "
if [ "$level" = check ]; then
    export SEED=${SEED:-1}
    # Compiling takes longer than the few launches of a kernel here: Mesa and PoCL do not optimise. In
    # check-all they do.
    export GALLIVM_PERF=nopt LP_NATIVE_VECTOR_WIDTH=128 POCL_EXTRA_BUILD_FLAGS=-cl-opt-disable
else
    export SEED=${SEED:-$(($(date +%s) / 86400 * 30000))}
fi

# Devices and engines that must take part on every machine, because tools/setup.sh provides for them; where there is no
# such device, its double (tests/double).
expected="cpu opencl vulkan webgpu cuda rocm metal onnxruntime"

run_programs="python3 tools/checks/programs.py"
run_command="python3 tools/checks/command.py"
plain="-DTRUNNION_WERROR=$WERROR"
asan="-DCMAKE_BUILD_TYPE=RelWithDebInfo -DTRUNNION_SHARED=OFF -DTRUNNION_SANITIZE=address,undefined"
tsan="-DCMAKE_BUILD_TYPE=RelWithDebInfo -DTRUNNION_SHARED=OFF -DTRUNNION_SANITIZE=thread"

# amount N: PERCENT of N, at least 1.
amount() {
    local n=$(($1 * ${PERCENT:-100} / 100))
    echo $((n > 0 ? n : 1))
}
export -f amount

# The tests that run threads against each other; each is built and run under the thread sanitizer.
threaded=$(find tests -name test_base.c -o -name 'test_*thread*.c' | sed 's|.*/||; s|\.c$||' | sort -u | tr '\n' ' ')

# Suites that keep all processors busy, or measure time or memory, and so run alone. Of the others, up to JOBS + 2 run at
# the same time, since they wait for servers, files and each other's builds: put rows next to each other, the longest
# first. `sanitized` only compiles for asan and fuzz, with a low priority, while the others wait.
alone=" setup unit signals asan fuzz tsan
    cross web bare onnx-all rendered-all asan-full tsan-full unit-full programs signals-all certified devwork memory serve-load
    gpu-report-all doubles-all llama fuzz-long mutated "
alone=$(tr -s '\n ' ' ' <<<"$alone")

# name | runs in | budget, seconds | command
table="
setup     | check     | 900 | tools/setup.sh tests
packages  | check     | 900 | tools/setup.sh check
layers    | check     | 120 | python3 tools/layers.py
source    | check     | 120 | python3 tools/checks/source.py
format    | check     | 120 | tools/checks/format.sh
generated | check     | 240 | python3 tools/check_generated.py
headers   | check     | 240 | tools/checks/headers.sh
build     | check     | 900 | tools/build.sh $BUILD 'tests examples benches' $plain && tools/build.sh $BUILD all $plain
digits    | check     | 600 | python3 tools/digits.py
model     | check     | 600 | python3 tools/text/smollm2.py --or-skip
unit      | check     | 600 | tools/build.sh $BUILD tests $plain && python3 tools/digits.py && $run_programs $BUILD tests
signals   | check     | 360 | tools/build.sh $BUILD all $plain && python3 tools/checks/signals.py $BUILD
sanitized | check     | 900 | nice tools/build.sh $BUILD-asan all_tests $asan
webgpu    | check     | 600 | tools/build.sh $BUILD all $plain && tools/build.sh $BUILD tests $plain && tools/checks/webgpu.sh $BUILD
vulkan    | check     | 480 | tools/build.sh $BUILD all $plain && tools/build.sh $BUILD tests $plain && tools/checks/vulkan.sh $BUILD
doubles   | check     | 600 | tools/build.sh $BUILD all $plain && tools/build.sh $BUILD tests $plain && python3 tools/checks/doubles.py $BUILD
survive   | check     | 360 | tools/build.sh $BUILD all $plain && tools/build.sh $BUILD doubles $plain && python3 tools/checks/survive.py $BUILD
processes | check     | 480 | tools/build.sh $BUILD all $plain && tools/build.sh $BUILD examples $plain && tools/build.sh $BUILD doubles $plain && python3 tools/checks/processes.py $BUILD
renderings | check    | 240 | tools/build.sh $BUILD tests $plain && python3 tools/checks/renderings.py $BUILD
help      | check     | 960 | tools/build.sh $BUILD all $plain && $run_command $BUILD help 3
backend   | check     | 480 | tools/build.sh $BUILD all $plain && python3 tools/checks/backend.py $BUILD
oclgrind  | check     | 600 | tools/build.sh $BUILD tests $plain && tools/checks/oclgrind.sh $BUILD
llm       | check     | 600 | tools/build.sh $BUILD all $plain && python3 tools/checks/llm.py $BUILD
serve     | check     | 360 | tools/build.sh $BUILD all $plain && python3 tools/checks/serve.py $BUILD
mutants   | check     | 240 | tools/build.sh $BUILD all $plain && python3 tools/formats/mutate_gguf.py $BUILD --count 200 --jobs $JOBS
hostile   | check     | 240 | tools/build.sh $BUILD all $plain && python3 tools/formats/hostile_gguf.py $BUILD 29
devices   | check     | 120 | tools/build.sh $BUILD all $plain && $run_command $BUILD devices
links     | check     | 120 | tools/build.sh $BUILD all $plain && python3 tools/checks/links.py $BUILD
library   | check     | 120 | tools/build.sh $BUILD all $plain && tools/checks/library.sh $BUILD
blas      | check     | 120 | tools/build.sh $BUILD 'test_library test_device_settings' $plain && tools/checks/blas.sh $BUILD
examples  | check     | 240 | tools/build.sh $BUILD examples $plain && $run_programs $BUILD examples
train     | check     | 480 | tools/build.sh $BUILD all $plain && $run_command $BUILD train
empty-root | check    |  60 | tools/build.sh $BUILD all $plain && python3 tools/digits.py && python3 tools/checks/empty_root.py $BUILD
bench     | check     | 120 | tools/build.sh $BUILD all $plain && $run_command $BUILD bench
pull      | check     | 120 | tools/build.sh $BUILD all $plain && python3 tools/checks/pull.py $BUILD
embed     | check     | 120 | tools/build.sh $BUILD all $plain && $run_command $BUILD embed
faults    | check     | 240 | tools/build.sh $BUILD all $plain && python3 tools/checks/command_faults.py $BUILD
surroundings | check  | 240 | tools/build.sh $BUILD all $plain && python3 tools/checks/surroundings.py $BUILD 3
gpu-report | check    | 120 | tools/build.sh $BUILD all $plain && python3 tools/checks/gpu_report.py $BUILD
finetune  | check     | 240 | tools/build.sh $BUILD all $plain && python3 tools/checks/finetune.py $BUILD
chat      | check     | 480 | tools/build.sh $BUILD all $plain && python3 tools/checks/chat.py $BUILD
install   | check     | 240 | tools/checks/install.sh $BUILD
onnx      | check     | 240 | tools/build.sh $BUILD all $plain && python3 tools/checks/onnx_nodes.py $BUILD
onnx-ocl  | check     | 240 | tools/build.sh $BUILD all $plain && python3 tools/checks/onnx_nodes.py $BUILD --device opencl --every 75
gpu-headers | check   | 120 | python3 tools/checks/gpu_headers.py
web-node  | check     | 900 | tools/build.sh $BUILD all $plain && python3 tools/checks/web.py $BUILD node
onnx-schemas | check  | 120 | python3 tools/checks/onnx_attributes.py
export    | check     | 240 | tools/build.sh $BUILD tests $plain && python3 tools/checks/onnx_export.py $BUILD
engine-nodes | check  | 360 | tools/build.sh $BUILD all $plain && tools/build.sh $BUILD test_engine_onnxruntime $plain && python3 tools/checks/onnx_engine.py $BUILD
runtime-ops | check   | 120 | tools/build.sh $BUILD all $plain && python3 tools/checks/onnx_runtime_ops.py $BUILD
decoders  | check     | 120 | tools/build.sh $BUILD all $plain && python3 tools/checks/onnx_decoders.py $BUILD
languages | check     | 240 | tools/build.sh $BUILD all $plain && python3 tools/checks/onnx_languages.py $BUILD llama gemma2 qwen2-moe
minimal   | check     | 600 | tools/build.sh $BUILD all $plain && tools/checks/minimal.sh $BUILD-minimal $BUILD
asan      | check     | 900 | tools/build.sh $BUILD-asan all_tests $asan && $run_programs $BUILD-asan tests --in all_tests --left-out tests/sweeps.txt --each 300
fuzz      | check     | 600 | tools/build.sh $BUILD-asan all_tests $asan && $run_programs $BUILD-asan fuzzers --in all_tests --fuzz 1
tsan      | check     | 600 | tools/checks/tsan.sh $BUILD-tsan '$tsan' $threaded
vulkan-all | check-all | 900 | tools/build.sh $BUILD all $plain && tools/build.sh $BUILD tests $plain && tools/checks/vulkan.sh $BUILD --all
webgpu-all | check-all | 1200 | tools/build.sh $BUILD all $plain && tools/build.sh $BUILD tests $plain && tools/checks/webgpu.sh $BUILD --all
oclgrind-all | check-all | 900 | tools/build.sh $BUILD tests $plain && tools/checks/oclgrind.sh $BUILD --all
backend-all | check-all | 480 | tools/build.sh $BUILD all $plain && python3 tools/checks/backend.py $BUILD --all
survive-all | check-all | 900 | tools/build.sh $BUILD all $plain && tools/build.sh $BUILD doubles $plain && python3 tools/checks/survive.py $BUILD \$(amount 40) $SEED
help-all  | check-all | 960 | tools/build.sh $BUILD all $plain && $run_command $BUILD help
llm-all   | check-all | 600 | tools/build.sh $BUILD all $plain && python3 tools/checks/llm.py $BUILD --all
surroundings-all | check-all | 240 | tools/build.sh $BUILD all $plain && python3 tools/checks/surroundings.py $BUILD
languages-all | check-all | 240 | tools/build.sh $BUILD all $plain && python3 tools/checks/onnx_languages.py $BUILD
cross     | check-all | 1800 | tools/build.sh $BUILD all $plain && python3 tools/cross.py --check $BUILD --part $((SEED / 30000))
web       | check-all | 1200 | tools/build.sh $BUILD all $plain && tools/build.sh $BUILD tests $plain && python3 tools/checks/web.py $BUILD
bare      | check-all | 2700 | tools/checks/bare.sh
onnx-all  | check-all | 600 | tools/build.sh $BUILD all $plain && python3 tools/checks/onnx_nodes.py $BUILD --device opencl
rendered-all | check-all | 600 | tools/build.sh $BUILD tests $plain && python3 tools/checks/renderings.py $BUILD --all \$(amount 50) $SEED
export-all | check-all | 300 | tools/build.sh $BUILD tests $plain && TRUNNION_TEST_FULL=1 python3 tools/checks/onnx_export.py $BUILD
networks  | check-all | 300 | tools/build.sh $BUILD all $plain && python3 tools/formats/onnx_models.py $BUILD --fast
engine-networks | check-all | 300 | tools/build.sh $BUILD all $plain && python3 tools/checks/onnx_engine.py $BUILD --networks
asan-full | check-all | 1800 | tools/build.sh $BUILD-asan-full all_tests $asan -DTRUNNION_SANITIZE_FULL=ON && TRUNNION_TEST_FULL=1 $run_programs $BUILD-asan-full tests --in all_tests --each 900 --percent \$(amount 25) --seed $SEED
tsan-full | check-all | 900 | tools/checks/tsan.sh $BUILD-tsan-full '$tsan -DTRUNNION_SANITIZE_FULL=ON' $threaded
unit-full | check-all | 1500 | tools/build.sh $BUILD tests $plain && TRUNNION_TEST_FULL=1 $run_programs $BUILD tests --each 900 --percent \$(amount 50) --seed $SEED
programs  | check-all | 900 | tools/build.sh $BUILD test_programs $plain && python3 tools/checks/many_programs.py $BUILD \$(amount 25000) $SEED
signals-all | check-all | 600 | tools/build.sh $BUILD all $plain && python3 tools/checks/signals.py $BUILD \$(amount 20) $SEED
finetune-all  | check-all | 300 | tools/build.sh $BUILD all $plain && python3 tools/checks/finetune.py $BUILD all
processes-all | check-all | 900 | tools/build.sh $BUILD all $plain && tools/build.sh $BUILD examples $plain && tools/build.sh $BUILD doubles $plain && python3 tools/checks/processes.py $BUILD \$(amount 4) $SEED
bugs      | check-all | 600 | python3 tools/checks/seed_bugs.py
certified | check-all | 1800 | tools/build.sh $BUILD all $plain && python3 tools/checks/certify_all.py $BUILD vulkan swiftshader webgpu oclgrind opencl --budget \$(amount 300) --seed $SEED
devwork   | check-all | 1200 | tools/build.sh $BUILD all $plain && python3 tools/checks/device_work.py $BUILD
opinfo    | check-all | 600 | tools/build.sh $BUILD all $plain && python3 tools/checks/opinfo.py $BUILD
random-chains | check-all | 600 | tools/build.sh $BUILD all $plain && python3 tools/checks/random_chains.py $BUILD --count \$(amount 10000) --seed $SEED
random-nodes | check-all | 600 | tools/build.sh $BUILD all $plain && python3 tools/checks/random_nodes.py $BUILD --count \$(amount 10000) --seed $SEED
torch-engine | check-all | 300 | tools/build.sh $BUILD all $plain && tools/build.sh $BUILD test_engine_torch $plain && python3 tools/digits.py && python3 tools/checks/torch_engine.py $BUILD
memory    | check-all | 300 | tools/build.sh $BUILD all $plain && python3 tools/text/smollm2.py --or-skip && python3 tools/checks/memory.py $BUILD
encoder   | check-all | 300 | tools/build.sh $BUILD all $plain && python3 tools/text/minilm.py --or-skip && python3 tools/text/hf_folders.py $BUILD/trunnion all-MiniLM-L6-v2
folders   | check-all | 300 | tools/build.sh $BUILD all $plain && python3 tools/text/hf_folders.py $BUILD/trunnion
classify  | check-all | 300 | tools/build.sh $BUILD all $plain && python3 tools/text/classify.py $BUILD/trunnion
speech    | check-all | 300 | tools/build.sh $BUILD all $plain && python3 tools/text/speech.py $BUILD/trunnion
serve-load | check-all | 600 | tools/build.sh $BUILD all $plain && python3 tools/checks/serve_load.py $BUILD \$(amount 300)
tokenize  | check-all | 600 | tools/build.sh $BUILD all $plain && tools/checks/tokenizers.sh $BUILD
gpu-report-all | check-all | 900 | tools/build.sh $BUILD all $plain && tools/build.sh $BUILD doubles $plain && python3 tools/checks/gpu_report.py $BUILD opencl vulkan cuda
doubles-all | check-all | 1200 | tools/build.sh $BUILD tests $plain && python3 tools/checks/doubles.py $BUILD --all
templates | check-all | 120 | tools/build.sh $BUILD all $plain && tools/checks/templates.sh $BUILD
llama     | check-all | 900 | tools/build.sh $BUILD all $plain && python3 bench/compare.py --build $BUILD --rounds 1 --rows 'llm-*'
fuzz-long | check-all | 1200 | tools/checks/libfuzzer.sh $BUILD-fuzz '$asan' \$(amount 150) \$(amount 40000)
mutated   | check-all | 600 | tools/build.sh $BUILD all $plain && python3 tools/formats/mutate_gguf.py $BUILD --count \$(amount 50000) --seed $SEED --jobs $JOBS
hostile-all | check-all | 300 | tools/build.sh $BUILD all $plain && python3 tools/formats/hostile_gguf.py $BUILD
"


# ---- running one suite -----------------------------------------------------------------------------------------------

logs=$BUILD/check
mkdir -p "$logs"
passed=0 failed=0 skipped=0
ran_on=""
commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
[ -z "$(git status --porcelain --untracked-files=no 2>/dev/null)" ] || commit+=+

# Reads the counts of a finished suite: counts_of LOG EXIT_CODE → "passed failed skipped".
counts_of() {
    local last
    last=$(tail -n 1 "$1")
    if [[ $last =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped$ ]]; then
        local bad=${BASH_REMATCH[2]}
        [ "$2" != 0 ] && [ "$bad" = 0 ] && bad=1
        echo "${BASH_REMATCH[1]} $bad ${BASH_REMATCH[3]}"
    elif [ "$2" = 0 ]; then
        echo "1 0 0"
    else
        echo "0 1 0"
    fi
}

# Runs a suite and prints, at once, what it came to. Suites run beside each other, so the counts go to LOG.counts.
run_suite() {
    local name=$1 budget=$2 command=$3 log=$logs/$1.log start=$EPOCHREALTIME code p f s seconds processor load percent=100
    [[ $command == *"(amount "* ]] && percent=${PERCENT:-100}
    [ "$percent" -le 100 ] || budget=$((budget * percent / 100))
    local TIMEFORMAT='%U %S'
    command="echo \$PPID >'$log.pid'; $command"
    { time timeout --kill-after=10 "$budget" bash -c "$command" >"$log" 2>&1 </dev/null; } 2>"$log.times"
    code=$?
    rm -f "$log.pid"
    seconds=$(awk "BEGIN { printf \"%.1f\", $EPOCHREALTIME - $start }")
    [ $code = 124 ] || [ $code = 137 ] && echo "stopped: it ran past its budget of $budget s" >>"$log"
    processor=$(tail -n 1 "$log.times" | awk '{ printf "%.1f", $1 + $2 }')
    read -r p f s <<<"$(counts_of "$log" $code)"
    load=$(cut -d ' ' -f 1 /proc/loadavg 2>/dev/null || echo unknown)
    printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$name" "$(date '+%F %H:%M')" "$commit" "$seconds" "$budget" \
        "$p" "$f" "$s" "$load" "$processor" "$percent" >>"$logs/ran.tsv"
    report "$name" "$seconds" "$p" "$f" "$s" "$processor" >"$log.report" 2>&1
    cat "$log.report"
    echo "$p $f $s" >"$log.counts"
}

report() {
    local name=$1 log=$logs/$1.log verdict=ok
    [ "$3 $4" = "0 0" ] && verdict=none
    [ "$4" != 0 ] && verdict=FAIL
    printf '%-4s  %-12s %7s s  (processor %7s s)   %s passed, %s failed, %s skipped\n' \
        "$verdict" "$name" "$2" "$6" "$3" "$4" "$5"
    grep '^skipped: ' "$log" | sort | uniq -c | sed 's/^ *\([0-9]*\) skipped: /        skipped (\1): /'
    sed -n 's/^listing: /        /p; s/^size: /        size: /p' "$log"
    if [ "$4" != 0 ]; then
        grep -A 1 -E '^[a-z0-9_]+: [0-9]+ passed, [1-9][0-9]* failed' "$log" | grep -v '^--' | head -n 20 | sed 's/^/      ! /'
        echo "        log: $log; its end:"
        tail -n 30 "$log" | sed 's/^/      | /'
    fi
}

# Adds what a suite came to; a suite that left no counts has failed.
add_counts() {
    local log=$logs/$1.log p=0 f=1 s=0
    [ -s "$log.counts" ] && read -r p f s <"$log.counts"
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    ran_on+=$(sed -n 's/^ran on: //p' "$log")$'\n'
}

# ---- all of them -----------------------------------------------------------------------------------------------------

trim() { sed 's/^ *//; s/ *$//' <<<"$1"; }

# A suite has a process group of its own, which Ctrl-C does not reach.
trap 'for name in $names; do cat "$logs/$name.log.pid" 2>/dev/null; done | xargs -r kill; exit 130' INT TERM

# Suites at the same time, if builds can wait for each other (tools/build.sh).
beside=1 running=0 names=""
command -v flock >/dev/null && [ "$JOBS" -gt 1 ] && beside=$((JOBS + 2))
while IFS='|' read -r name when budget command <&3; do
    name=$(trim "$name")
    [ -n "$name" ] || continue
    [ "$only" != "  " ] && [[ $only != *" $name "* ]] && continue
    [ "$only" = "  " ] && [ "$level" = check ] && [ "$(trim "$when")" != check ] && continue
    names+=" $name"
    rm -f "$logs/$name.log".*
    budget=$(($(trim "$budget") * ${PATIENCE:-1})) command=$(trim "$command")
    if [[ $alone == *" $name "* ]]; then
        wait
        run_suite "$name" "$budget" "$command" &
        wait
        running=0
        continue
    fi
    [ $running -lt "$beside" ] || { wait -n; running=$((running - 1)); }
    run_suite "$name" "$budget" "$command" &
    running=$((running + 1))
done 3<<<"$table"
wait
for name in $names; do
    add_counts "$name"
done

echo
echo "devices and engines that ran:"
sort -u <<<"$ran_on" | sed '/^$/d; s/^/    /'

# Only a whole run can say that somebody is missing, and only where there is a command to run.
if [ "$only" = "  " ] && [ -x "$BUILD/trunnion" ]; then
    for name in $expected; do
        if ! grep -qE "^$name( |:|$)" <<<"$ran_on"; then
            echo "FAIL  $name should have run, and no suite says that it did"
            failed=$((failed + 1))
        fi
    done
fi
[ "$level" = check ] || echo "seed: $SEED"
echo "time: $SECONDS s"
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
