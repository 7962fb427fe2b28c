# The verbs people type. Everything is built under build/; `make` leaves the tool at build/release/halftone.
.DEFAULT_GOAL := release
.PHONY: release dev demo test test-unit bench bench-peers bench-accuracy lint format dependencies reference clean

JOBS ?= $(shell nproc)
REFERENCE_PYTHON := build/reference/bin/python3

dependencies:
	@tools/install_dependencies.sh

build/%/build.ninja: CMakeLists.txt cmake/halftone.cmake CMakePresets.json | dependencies
	cmake --preset $*

release: build/release/build.ninja
	cmake --build --preset release --target halftone -j $(JOBS)

dev: build/dev/build.ninja
	cmake --build --preset dev --target unit_tests -j $(JOBS)

# The main job on a real model: fetch, quantize three ways, compare with the original, answer a prompt.
demo: release
	python3 tools/demo.py

# Python packages to compare with (torch, transformers, ...), in an environment of their own. Without them (no network)
# the tests that need them say SKIPPED.
reference: | dependencies
	@tools/reference_environment.sh || echo "reference environment not available: tests that need it will be SKIPPED"

# Unit tests under ASan and UBSan, then everything that runs the release tool.
test: release dev reference
	ctest --test-dir build/dev -L unit --output-on-failure -j $(JOBS)
	ctest --test-dir build/release -LE unit --output-on-failure

test-unit: build/release/build.ninja
	cmake --build --preset release --target unit_tests -j $(JOBS)
	ctest --test-dir build/release -L unit --output-on-failure -j $(JOBS)

# Single products against memory bandwidth and FP32 peak, then a whole model.
bench: release
	build/release/halftone bench --ops
	build/release/halftone bench $$(build/release/halftone get smollm2-135m)

# The same models in Halftone, llama.cpp, PyTorch and OpenVINO GenAI, turn about in one run.
bench-peers: release
	@tools/bench_peers.sh

# What bits buy, on the model of all accuracy figures, with llama.cpp's quantizer as rows beside. About an hour.
bench-accuracy: release reference
	python3 tools/bench_accuracy.py

lint:
	@tools/install_dependencies.sh --lint
	git ls-files '*.h' '*.cc' | xargs clang-format --dry-run -Werror
	cmake --preset separate
	git ls-files 'src/**/*.cc' | grep -v -e _avx -e _fuzz | xargs -P $(JOBS) -n 4 clang-tidy -p build/separate --quiet

format:
	@tools/install_dependencies.sh --lint
	git ls-files '*.h' '*.cc' | xargs clang-format -i

clean:
	rm -rf build
