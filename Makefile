# Everything a clone needs, from nothing but Python and a C++ compiler. `make` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
# The compilers work while pip waits for the network. Programs that are no make get MAKEFLAGS= in front: Ninja would take
# it for an invitation to share make's jobs, and complain that it cannot.
MAKEFLAGS += --jobs=2

# Byte code is kept, even where a machine's settings say otherwise: hundreds of processes of a test import PyTorch, and
# would each compile it for five seconds.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BUILD := build/make
# One more than the two cores that tests are made for: many wait, for a compiler, other processes, a time to pass.
WORKERS ?= 3
PYTEST = MAKEFLAGS= $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# Only what this machine can run is built: CUDA=1 builds the CUDA library on a machine without a GPU too, and goes on
# doing so wherever that library lies already, so that it never falls behind its sources.
HAS_CUDA = $(or $(shell nvidia-smi --list-gpus 2>/dev/null),$(wildcard src/torchgraft/lib/torchgraft_cuda.so))
CUDA ?= $(if $(and $(shell command -v $${CUDACXX:-nvcc}),$(HAS_CUDA)),1,0)
# One architecture is enough here: that of the GPU that is present, else 9.0. Wheels hold all.
CUDA_ARCHITECTURE ?= $(or $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n1 | tr -d .),90)-real

# Prepares a build in a folder, with options for CMake; what CMake says is shown where it fails.
configure = mkdir -p $(1) && $(BIN)/cmake -S . -B $(1) -G Ninja -Wno-author -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) \
    -DPython_EXECUTABLE=$(abspath $(BIN)/python) $(2) > $(1)/configure.log 2>&1 || { cat $(1)/configure.log; exit 1; }

# What does the installing. Byte code is made when a module is first imported: of PyTorch few are. What pip says is shown
# where it fails: else it only warns of the machine's own settings. $(2) is the bin folder of another environment.
pip = said=$$($(or $(2),$(BIN))/pip install --quiet --disable-pip-version-check --no-compile $(1) 2>&1) \
    || { echo "$$said"; exit 1; }
# uv takes a fifth of pip's time; pip goes where its own settings alone lead, and says what is wrong where nothing does.
# PyTorch is left to pip: a machine's settings say which build of it is meant.
install = MAKEFLAGS= $(BIN)/uv pip install --quiet --python $(or $(2),$(BIN))/python $(1) 2> /dev/null \
    || { $(call pip,$(1),$(2)); }

SOURCES = $(shell git ls-files '*.h' '*.cpp' '*.cu' '*.cuh')

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

.PHONY: demo
demo: build $(VENV)/demo.done ## train small networks through PyTorch's layers and through ours: two to three minutes from a fresh clone
	@MAKEFLAGS= $(BIN)/graft demo

.PHONY: test
test: build $(VENV)/test.done ## run the tests: twenty minutes from a fresh clone, on two cores
	@$(PYTEST) $(ARGS)

.PHONY: test-all
test-all: test ## run the tests, and then what is slow and rarely finds more: test-slow, test-cuda and test-torch
	@$(MAKE) --no-print-directory test-slow
	@$(MAKE) --no-print-directory test-cuda
	@$(MAKE) --no-print-directory test-torch

.PHONY: test-slow
test-slow: build $(VENV)/test.done ## run the tests marked slow: thousands of random calls, and the emulator of other GPUs (MINUTES=20: as many as that allows, in an order that ORDER=a-word draws)
	@$(PYTEST) -m slow $(addprefix --minutes=,$(MINUTES)) $(addprefix --order=,$(ORDER)) $(ARGS)

.PHONY: languages
languages: $(VENV)/languages.done ## install tvm-ffi, TileLang, Helion and CuTe DSL, without which their tests are skipped: 190 MB of wheels

.PHONY: test-cuda
test-cuda: $(VENV)/build.done ## compile every CUDA kernel for every architecture (ARCHITECTURES=90-real: for one)
	@command -v nvcc > /dev/null || { echo "there is no nvcc: install the CUDA toolkit"; exit 1; }
	@# Nothing runs what is made here: the compiler leaves out what costs most time, where it knows how.
	@$(call configure,build/cuda,-DTORCHGRAFT_CUDA=ALL $(if $(ARCHITECTURES),-DCMAKE_CUDA_ARCHITECTURES="$(ARCHITECTURES)",-UCMAKE_CUDA_ARCHITECTURES) \
	    -DCMAKE_CUDA_FLAGS="$$(nvcc --help | grep -q -e --Ofast-compile && echo --Ofast-compile=max)")
	@MAKEFLAGS= NINJA_STATUS="compiling the CUDA library, %f of %t, %w: " $(BIN)/cmake --build build/cuda \
	    --target torchgraft_cuda torchgraft_recurrences_cuda

.PHONY: test-emulated
test-emulated: build $(VENV)/test.done ## draw calls of CUDA kernels on an emulated GPU, under AddressSanitizer: a night (CALLS=100: of each operator)
	@MAKEFLAGS= $(BIN)/python -m torchgraft.emulation --sanitize address --multiprocessors 16 -- \
	    --stress $(or $(CALLS),1000) $(ARGS)

.PHONY: coverage
coverage: build $(VENV)/test.done ## count the lines and branches of kernels that a check reaches: hours, it goes on where it ended (ARGS=shift: of one operator)
	@MAKEFLAGS= $(BIN)/python tools/coverage/reached.py $(ARGS)

# Some builds of PyTorch for CUDA bring five gigabytes with them.
TORCH_ENVIRONMENT = build/torch-$(or $(TORCH),newest)
.PHONY: test-torch
test-torch: build ## run `graft check --quick` under another PyTorch, in an environment of its own (TORCH=2.15.0; without: the newest)
	@[ -d $(TORCH_ENVIRONMENT) ] || $(PYTHON) -m venv $(TORCH_ENVIRONMENT)
	@$(call pip,--upgrade torch$(addprefix ==,$(filter-out newest,$(TORCH))),$(TORCH_ENVIRONMENT)/bin)
	@grep -hE '^(typer|rich|numpy|hypothesis|expecttest)==' requirements/*.txt > $(TORCH_ENVIRONMENT)/requirements.txt
	@$(call install,-r $(TORCH_ENVIRONMENT)/requirements.txt,$(TORCH_ENVIRONMENT)/bin)
	@MAKEFLAGS= PYTHONPATH=src $(TORCH_ENVIRONMENT)/bin/python tools/torch_versions.py $(ARGS)

.PHONY: test-platforms
test-platforms: build $(VENV)/test.done ## ask other compilers that are installed whether the CPU library compiles for other platforms: some minutes
	@$(BIN)/python tools/platforms.py $(ARGS)

.PHONY: mutants
mutants: build $(VENV)/test.done ## change kernels in small ways and see that a sample tells: half an hour (ARGS=--emulated: CUDA kernels)
	@MAKEFLAGS= $(BIN)/python tools/mutants.py $(ARGS)

.PHONY: lint
lint: $(VENV)/test.done ## check format, style, types, first words of docstrings, and commit subjects
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/clang-format --dry-run --Werror $(SOURCES)
	@$(BIN)/python tools/lint/docstrings.py
	@$(BIN)/python tools/lint/subjects.py

.PHONY: format
format: $(VENV)/test.done ## put the sources into shape
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .
	@$(BIN)/clang-format -i $(SOURCES)

.PHONY: build
build: $(VENV)/package.done ## compile the libraries into src/torchgraft/lib; CUDA=1: for a GPU too, where there is none
	@$(call configure,$(BUILD),-DTORCHGRAFT_NATIVE=ON -DTORCHGRAFT_CUDA=$(if $(filter 1,$(CUDA)),ON,OFF) \
	    -DCMAKE_CUDA_ARCHITECTURES=$(CUDA_ARCHITECTURE))
	@MAKEFLAGS= NINJA_STATUS="compiling the $(if $(filter 1,$(CUDA)),CPU and CUDA libraries,CPU library), %f of %t, %w: " \
	    $(BIN)/cmake --build $(BUILD)
	@# Not over the old ones: a process that runs on those would crash.
	@mkdir -p src/torchgraft/lib && install -C $(BUILD)/*.so src/torchgraft/lib/

.PHONY: schemas
schemas: $(VENV)/package.done ## write what C++ programs without Python need, from the declarations of our operators
	@$(BIN)/python -c 'from torchgraft.authoring.cpp import write_own; write_own()'

.PHONY: wheel
wheel: $(VENV)/wheel.done ## make a wheel for every supported CUDA architecture, in dist/
	@MAKEFLAGS= $(BIN)/graft wheel

.PHONY: distributions
distributions: $(VENV)/wheel.done ## make what a release publishes, in dist/: the sources, and a wheel that is built from them
	@rm -rf build/distributions && mkdir -p build/distributions
	@MAKEFLAGS= $(BIN)/python -m build --sdist --no-isolation --outdir build/distributions . > build/distributions/log 2>&1 \
	    || { cat build/distributions/log; exit 1; }
	@tar -xzf build/distributions/torchgraft-*.tar.gz -C build/distributions
	@MAKEFLAGS= $(BIN)/graft wheel build/distributions/torchgraft-*/ --directory dist
	@cp build/distributions/torchgraft-*.tar.gz dist/

.PHONY: release
release: ## commit and tag VERSION, with its notes from CHANGELOG.md; whoever pushes the tag publishes it
	@$(PYTHON) tools/release.py $(VERSION)

.PHONY: bench
bench: build $(VENV)/bench.done ## measure a few rows of every operator: within a minute
	@MAKEFLAGS= $(BIN)/graft bench --quick $(ARGS)

.PHONY: bench-overhead
bench-overhead: build $(VENV)/demo.done ## print what a call costs on each path
	@MAKEFLAGS= $(BIN)/graft bench overhead

.PHONY: results
results: build $(VENV)/test.done ## measure again what was measured at an earlier commit (ARGS=--check: only list it)
	@MAKEFLAGS= $(BIN)/python benchmarks/measure.py $(if $(CHIP),--chip $(CHIP)) $(ARGS)
# CHIP is a folder of benchmarks/results, for a machine that has none yet; without, all of them are looked at.

.PHONY: docs
docs: build $(VENV)/test.done ## write the tables and plots that the docs show, from what `make results` measured
	@# What goes into the pages comes last.
	@for script in results properties sharding stressed goals depthwise diagrams pictures support evidence census recurrences translations include; do \
	    $(BIN)/python tools/docs/$$script.py || exit 1; \
	done

.PHONY: docs-site
docs-site: $(VENV)/site.done ## make the site of the docs in build/site: half a minute
	@# What Sphinx warns of is an error: a link that leads nowhere, a docstring that does not parse.
	@rm -rf build/site
	@$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -c tools/site -d build/site-read -E . build/site
	@echo "open build/site/index.html"

.PHONY: clean
clean: ## remove what was built; the environment stays
	@rm -rf build dist src/torchgraft/lib

# The environment, in layers, each made again only when its own list changes.

$(VENV)/venv.done:
	@command -v $(PYTHON) > /dev/null || { echo "torchgraft needs Python 3.10 or newer: install python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	    { echo "torchgraft needs Python 3.10 or newer, $$($(PYTHON) --version) is older: install a newer one"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null || \
	    { echo "Python cannot make environments here: install python3-venv"; exit 1; }
	@command -v $${CXX:-c++} > /dev/null || { echo "there is no C++ compiler: install g++"; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/build.done: requirements/build.txt requirements/demo.txt $(VENV)/venv.done
	@echo "installing PyTorch and what builds torchgraft (once)"
	@$(call pip,-r requirements/build.txt $$(grep '^torch==' requirements/demo.txt))
	@touch $@

# The package itself, editable and without its libraries: `make build` puts those beside the sources.
$(VENV)/package.done: pyproject.toml src/torchgraft/version.py $(VENV)/build.done $(VENV)/modules.list
	@$(call pip,--no-deps --no-build-isolation -C wheel.cmake=false -e .)
	@touch $@

# An editable installation lists the modules that were there when it was made.
$(VENV)/modules.list: $(VENV)/build.done FORCE
	@find src/torchgraft -name '*.py' | sort > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@

.PHONY: FORCE
FORCE:

$(VENV)/demo.done: requirements/demo.txt $(VENV)/package.done
	@echo "installing what the demo needs (once)"
	@$(call install,-r requirements/demo.txt)
	@touch $@

# What more is needed for benchmarks, wheels and the site.
EXTRAS = $(addprefix $(VENV)/,bench.done wheel.done site.done)
$(EXTRAS): $(VENV)/%.done: requirements/%.txt $(VENV)/demo.done
	@echo "installing what stands in $< (once)"
	@$(call install,-r $<)
	@touch $@

# What these packages ask for is there, or stands in the list too: with PyTorch among it, as they do not say which build.
$(VENV)/languages.done: requirements/languages.txt $(VENV)/test.done
	@echo "installing what stands in $< (once)"
	@$(call install,--no-deps -r $<)
	@touch $@

# All of it at once: demo, benchmark, wheels and the site are tested too.
$(VENV)/test.done: $(wildcard requirements/*.txt) $(VENV)/package.done
	@echo "installing what the tests need (once)"
	@$(call install,-r requirements/test.txt)
	@touch $(VENV)/demo.done $(EXTRAS) $@
