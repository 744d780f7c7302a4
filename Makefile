# Makefile — short names for what the scripts and CMake do. `make demo` shows it, `make check` proves it.
#
#   make                 the library and the command, in build/
#   make demo            sets up, builds, lists the devices, lets a language model answer, trains two small models
#   make check           sets up, runs all tests (ONLY="unit layers" runs just these suites)
#   make check-all       the slower suites too
#   make cross           builds for other processors and systems (ONLY="wasm32-wasi": just this one; docs/platforms.md)
#   make web             builds the web page and the npm package, in build-web (docs/platforms.md)
#   make gpu-report      checks and times a GPU, writes a record (ARGS="--device cuda --stage train"; ARGS=--help)
#   make bench           measures (WORK="gemm policy" just these; bench/README.md says what and how)
#   BUILD=elsewhere      another build folder; WERROR=OFF builds in spite of warnings; JOBS=1 on a small machine

BUILD  ?= build
WERROR ?= ON
JOBS   ?= $(shell nproc 2>/dev/null || echo 2)
PREFIX ?= /usr/local
ONLY   ?=
ARGS   ?=
WORK   ?= $(patsubst bench/%.c,%,$(sort $(wildcard bench/*.c)))

MAKEFLAGS += --no-print-directory
export BUILD WERROR JOBS

.PHONY: all demo check check-all cross web bench gpu-report format clean install

all:
	@tools/build.sh $(BUILD) all -DTRUNNION_WERROR=$(WERROR)

demo:
	@tools/setup.sh build
	@$(MAKE) all
	@tools/demo.sh $(BUILD)

check:
	@tools/check.sh check $(ONLY)

check-all:
	@tools/check.sh check-all $(ONLY)

cross:
	@python3 tools/cross.py $(ONLY)

web:
	@python3 tools/web.py

bench:
	@tools/build.sh $(BUILD) benches -DTRUNNION_WERROR=$(WERROR)
	@for work in $(WORK); do echo "== $$work"; $(BUILD)/bench_$$work || exit 1; done

gpu-report: all
	@python3 tools/gpu_report --build $(BUILD) $(ARGS)

format:
	@git ls-files -z --cached --others --exclude-standard '*.c' '*.h' ':!src/gen' ':!tests/golden' | xargs -0 clang-format -i

clean:
	rm -rf $(BUILD) build-web $(BUILD)-asan $(BUILD)-asan-full $(BUILD)-tsan $(BUILD)-tsan-full $(BUILD)-fuzz $(BUILD)-minimal

install: all
	cmake --install $(BUILD) --prefix $(PREFIX)
