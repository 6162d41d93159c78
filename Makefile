# Open Pathways. `make` lists the targets; each does its own set-up in .venv (and in .venv-3.13 where Python 3.13 is found).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
ifndef AT_ONCE
.NOTPARALLEL:
endif
.DEFAULT_GOAL := help

comma := ,
GO := $(shell command -v go || echo /usr/local/go/bin/go)
# A name on PATH may be a stub that only says which versions there are, so each is tried.
runs = $(shell for p in $(1); do "$$p" -c 'import sys; sys.exit(not ($(2)))' >/dev/null 2>&1 && { command -v "$$p"; break; }; done)
PYTHON := $(call runs,python3 python3.11 python3.12 python3.13 python3.14,sys.version_info >= (3$(comma) 11))
PYTHON_NEW := $(call runs,python3.13 $(wildcard $(or $(PYENV_ROOT),$(HOME)/.pyenv)/versions/3.13*/bin/python3.13),sys.version_info[:2] == (3$(comma) 13))

VENV := .venv
VENV_NEW := .venv-3.13
# The second environment is for another Python and the newest JAX; none where the first is that already.
NEW := $(if $(PYTHON_NEW),$(if $(call runs,$(PYTHON),sys.version_info[:2] == (3$(comma) 13)),,$(VENV_NEW)))
VENVS := $(VENV) $(NEW)
PEERS := .venv-peers

LIBRARY := python/pathways/libpathways.so
SOURCES := go.mod $(wildcard go.sum) pyproject.toml hatch_build.py $(shell find $(wildcard capi core device transport python) -type f \
	-not -name '*_test.go' -not -name '*.so' -not -path '*/__pycache__/*' -not -path '*/testdata/*')
FUZZTIME ?= 20s
# Where Go's tests find a plugin: the packages of an environment.
plugins = PATHWAYS_PLUGIN_DIRS="$$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
# What Go's tests are compiled with. Lint reads the code as compiled with the same, so that it is compiled once.
strictly = GOEXPERIMENT=cgocheck2
strict := -race -tags=invariants
# Nothing is left to find in the second that the race detector waits at the end of each process: tests end clean.
# One package more than processors, since many tests wait; no more than processors where pytest runs beside.
race = $(strictly) GORACE=atexit_sleep_ms=0 $(GO) test -vet=off -p $$(($$(nproc)$(if $(AT_ONCE),, + 1))) $(strict)
say = @echo; echo "== $(1)"

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(VENV)/.installed ## train a small transformer on eight devices, beside stock JAX; writes out/
	$(VENV)/bin/python examples/train_transformer.py

.PHONY: test
test: $(VENVS:=/.installed) ## run all tests once, and those that ask for it on every Python and size of cluster
	$(three_at_once) $(tests)

# With this set, nothing is left out, and tests of rare faults repeat more often what may fail.
.PHONY: test-all
test-all: export PATHWAYS_TEST_THOROUGH = 1
test-all: test ## run all tests, on every Python and on clusters of 1, 2 and 4 workers

# Each test runs once, as strictly as can be; vet is part of lint. Beside it runs only what that cannot show: that steps
# do not allocate (the invariants do); the files that their first line keeps out of it, since they are about one
# goroutine and take many times as long and as much memory so strictly (long messages, many steps of simulated time);
# the newest plugin, in the packages whose tests open one; and that what may not use cgo compiles without it, which is
# all there is to try, since core/rules_test.go keeps cgo out of its tests too.
.PHONY: test-go
test-go: $(if $(AT_ONCE),,$(VENVS:=/.installed)) race ## run Go's tests with the race detector, and with the plugins of every Python found
	$(if $(NEW),$(call say,go test with the plugins of $(NEW)))
	$(if $(NEW),$(call plugins,$(NEW)) $(race) ./device/pjrt ./capi/embedded)
	$(call say,go test of what allocates nothing$(comma) and of what is only about one goroutine)
	CGO_ENABLED=0 $(GO) test -vet=off -run DoesNotAllocate ./core/schedule ./core/ledger ./core/wire
	CGO_ENABLED=0 $(GO) test -vet=off -run '^($(in_one_goroutine))$$' $(sort $(addprefix ./,$(dir $(of_one_goroutine))))
	$(call say,go build without cgo)
	CGO_ENABLED=0 $(GO) build $(pure)
	$(if $(PATHWAYS_TEST_THOROUGH),$(call say,go test$(comma) also without cgo))
	$(if $(PATHWAYS_TEST_THOROUGH),$(call plugins,$(VENV)) $(GO) test -vet=off ./... && CGO_ENABLED=0 $(GO) test -vet=off $(pure))

pure := ./core/... ./transport/... ./device/sim/...
of_one_goroutine = $(shell git grep --untracked -lE '^//go:build !race && !invariants' -- '*_test.go')
in_one_goroutine = $(subst $() ,|,$(strip $(shell sed -n 's/^func \(Test[A-Za-z0-9_]*\).*/\1/p' $(of_one_goroutine))))

# Go's tests, and runs of pytest. Three run at once, since much of what tests take is waiting; the longest come first.
# The package is installed before: make would begin what waits for nothing first, and Go's tests last.
tests = test-go $(embedded) $(newest) $(on_workers)
embedded = pytest-embedded pytest-cluster
on_workers = pytest-on-2 $(if $(NEW),pytest-newest-on-2) pytest-on-4 pytest-on-1
newest = $(if $(NEW),pytest-newest pytest-newest-default)
three_at_once = @$(MAKE) --no-print-directory --keep-going --jobs 3 --output-sync AT_ONCE=3

.PHONY: test-python
test-python: $(VENVS:=/.installed) ## run pytest: on the devices of one process, of clusters of its own, and on workers
	$(three_at_once) $(embedded) $(newest) $(on_workers)

.PHONY: test-cluster
test-cluster: $(VENVS:=/.installed) ## run the tests of one process on clusters of 1, 2 and 4 workers
	$(three_at_once) $(on_workers)

.PHONY: test-gpu
test-gpu: $(VENV)/.installed ## run the tests about GPUs, on a machine with an NVIDIA GPU
	$(VENV)/bin/python -m pip install --quiet "jax[cuda13]==$$($(VENV)/bin/python -c 'import jax; print(jax.__version__)')"
	$(VENV)/bin/python -m pytest tests/gpu

# As tests/conftest.py says of the tests' own process.
unoptimized = $(if $(PATHWAYS_TEST_THOROUGH),,XLA_FLAGS="$$(PYTHONPATH=tests $(1)/bin/python -c \
	'import fresh; print(fresh.UNOPTIMIZED)')")
# Which tests run where is said by marks, which tests/conftest.py explains.
all := $(if $(PATHWAYS_TEST_THOROUGH),,-m "not again")
of_newest := $(if $(PATHWAYS_TEST_THOROUGH),,-m "(versions or newest) and not again")
newest_on_workers := $(if $(PATHWAYS_TEST_THOROUGH),,-m "(versions or newest and sizes) and not again")
sizes := $(if $(PATHWAYS_TEST_THOROUGH),,-m "sizes and not again")

# What these move or run at once is on several devices of one worker; so it is on each of two workers, too.
of_several := tests/test_order.py tests/test_partition.py tests/test_passage.py tests/test_program_random.py \
	tests/test_reshard.py

.PHONY: pytest-embedded pytest-cluster pytest-newest pytest-newest-default pytest-on-1 pytest-on-2 pytest-on-4 pytest-newest-on-2
pytest-embedded:
	@$(call pytest,$(VENV),,--ignore tests/cluster --ignore tests/gpu $(all))
pytest-cluster:
	@$(call pytest,$(VENV),,tests/cluster $(all))
pytest-newest:
	@$(call pytest,$(VENV_NEW),,$(of_newest))
# The newest JAX and the plugin that the package depends on: what pip installs. They are of different ages.
pytest-newest-default: export PATHWAYS_PLUGIN = $(shell $(VENV_NEW)/bin/python -c 'import fastatomstruct_xla_cpu as p; print(p.__path__[0])' 2>/dev/null)/libpjrt_cpu.so
pytest-newest-default:
	@$(call pytest,$(VENV_NEW),,$(of_newest) tests/test_jax.py tests/test_partition.py)
pytest-on-2:
	@$(call pytest,$(VENV),2,$(all))
pytest-on-4:
	@$(call pytest,$(VENV),4,$(sizes))
pytest-on-1:
	@$(call pytest,$(VENV),1,$(sizes) $(if $(PATHWAYS_TEST_THOROUGH),,$(of_several:%=--ignore %)))
pytest-newest-on-2:
	@$(call pytest,$(VENV_NEW),2,$(newest_on_workers))

# In an environment, on so many workers or on the process's own devices, with these options.
pytest = echo; echo "== $@: $$($(1)/bin/python -V), jax $$($(1)/bin/python -c 'import importlib.metadata as m; print(m.version("jax"))')"; \
	$(if $(2),$(call on_cluster,$(1),$(2),$(3)),$(1)/bin/python -m pytest $(3))
on_cluster = $(unoptimized) $(1)/bin/pathways up --cluster test$(patsubst $(VENV)%,%,$(1))-$(2) --workers $(2) --devices $$((8 / $(2))) -- \
	sh -c 'PATHWAYS_TEST_ADDRESS=$$PATHWAYS_ADDRESS exec $(1)/bin/python -m pytest --ignore tests/cluster --ignore tests/gpu --ignore tests/python $(3)'

.PHONY: lint check-format vet staticcheck ruff
lint: check-format vet staticcheck ruff ## check format, vet, staticcheck, ruff, and that generated code is fresh

# Compilers and linters are short and have room: they need not collect garbage as often.
check-generated vet staticcheck $(VENV)/.wheel: export GOGC = 400

check-format: check-generated
	$(call say,gofmt)
	@unformatted=$$($(dir $(GO))gofmt -l $$(git ls-files -co --exclude-standard '*.go')); \
	test -z "$$unformatted" || { echo "not formatted; run gofmt -w on:"; echo "$$unformatted"; exit 1; }

vet: check-generated
	$(call say,go vet)
	$(strictly) $(GO) vet $(strict) ./...
	CGO_ENABLED=0 $(GO) vet $(addprefix ./,$(dir $(shell git grep -lE '^//go:build !(race|invariants)' -- '*.go')))

staticcheck: vet # which compiles what this reads
	$(call say,staticcheck)
	staticcheck=$$($(GO) tool -n staticcheck); $(strictly) GOFLAGS="$$($(GO) env GOFLAGS) $(strict)" "$$staticcheck" ./...

ruff: check-generated $(VENV)/.dependencies
	$(call say,ruff)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

.PHONY: bench
bench: $(VENV)/.installed $(PEERS)/.installed ## measure against stock JAX, and clusters against their peers, ratios first
	GO=$(GO) $(VENV)/bin/python tests/bench/run.py $(BENCH)

.PHONY: bench-c
bench-c: $(VENV)/.installed ## measure a tiny run through the C API against the plugin alone
	@mkdir -p out
	@package=$$($(VENV)/bin/python -c 'import pathways; print(pathways.__path__[0])'); \
	$${CC:-gcc} -O2 -I$$package/include -Idevice/pjrt/abi tests/clients/overhead.c -o out/overhead \
		-L$$package -lpathways -Wl,-rpath,$$package -ldl; \
	TF_CPP_MIN_LOG_LEVEL=3 PATHWAYS_PLUGIN=$$($(VENV)/bin/python -c 'from pathways import _native; print(_native.info()["plugin"]["path"])') \
		out/overhead

.PHONY: bench-paper
bench-paper: $(VENV)/.installed $(PEERS)/.installed ## repeat the paper's experiments; writes out/paper/README.md
	GO=$(GO) $(VENV)/bin/python tests/bench/paper.py $(BENCH)

.PHONY: bench-peers
bench-peers: $(PEERS)/.installed ## install the peers that bench compares clusters with: 8 GB

# Beside the same JAX. A peer that cannot be installed here is left out, by the benchmark too.
$(PEERS)/.installed: $(VENV)/.dependencies
	@echo "== $(PEERS): the peers of the benchmark"
	@$(VENV)/bin/python -m venv --clear $(PEERS)
	@$(PEERS)/bin/python -m pip install --quiet $$($(VENV)/bin/python -m pip freeze | grep -E '^(jax|jaxlib|numpy)==')
	@for peer in ray torchmonarch torch tensorflow-cpu; do \
		$(PEERS)/bin/python -m pip install --quiet $$peer || echo "$$peer cannot be installed here; the benchmark leaves it out"; \
	done
	@touch $@

.PHONY: build
build: check-go $(LIBRARY) ## compile libpathways.so into the source tree

$(LIBRARY): $(SOURCES)
	CGO_ENABLED=1 $(GO) build -buildmode=c-shared -trimpath \
		-ldflags "-extldflags \"'-Wl,--version-script=$(CURDIR)/capi/lib/exports.map'\"" -o $@ ./capi/lib
	@rm -f $(LIBRARY:.so=.h)

.PHONY: wheel
wheel: $(VENV)/.dependencies ## make dist/*.whl and dist/*.tar.gz
	$(VENV)/bin/python -m build

.PHONY: generate
generate: check-go ## run go generate
	$(GO) generate ./...

# Generated files carry the usual mark; their hashes must be the same after generating.
generated = git ls-files -co --exclude-standard '*.go' '*.c' '*.h' '*.json' '*.py' '*.md' | xargs grep -l 'Code generated .* DO NOT EDIT' | sort | xargs sha256sum

# Go compiles the library by capi/lib/default.pgo, which says what runs often: these benchmarks of what a computation
# goes through, from the client's call to the devices of a worker and back.
hot := core/client:Run core/controller/server:Server/queues core/worker:Run core/executor:Enter \
	core/embedded:SubmitFree device/pjrt:Execute capi/cluster:Execute transport/stream:Conn/unix transport/collective:Scalar
.PHONY: profile
profile: $(VENV)/.installed ## record what runs often, by which Go compiles the library
	@rm -rf out/profile && mkdir -p out/profile
	@for each in $(hot); do \
		package=$${each%%:*}; echo "== $$package"; \
		$(call plugins,$(VENV)) $(GO) test -vet=off -trimpath -run '^$$' -bench "$${each#*:}" -o out/profile/test \
			-cpuprofile out/profile/$${package//\//-}.cpu ./$$package; \
	done
	$(GO) tool pprof -symbolize=none -proto out/profile/*.cpu >out/profile/all
	@mv out/profile/all capi/lib/default.pgo

.PHONY: notebooks
notebooks: $(VENV)/.installed ## run the notebooks of examples/, and keep what they show
	$(VENV)/bin/python tests/python/run_notebooks.py

.PHONY: check-generated
check-generated: check-go
	$(call say,generated code)
	@before=$$($(generated)); $(GO) generate ./...; after=$$($(generated)); \
	diff <(echo "$$before") <(echo "$$after") || { echo "generated code was stale; commit what make generate wrote"; exit 1; }

.PHONY: race
race: $(if $(AT_ONCE),,$(VENV)/.installed) ## run Go's tests with the race detector, the checks of cgo and invariants
	$(call say,go test with the race detector$(comma) the checks of cgo and invariants)
	$(call plugins,$(VENV)) $(race) ./...

.PHONY: fuzz
fuzz: check-go ## fuzz each decoder for FUZZTIME (20s)
	@for file in $$(git ls-files -co --exclude-standard '*_test.go' | xargs grep -l '^func Fuzz' || true); do \
		for name in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p' $$file); do \
			echo "== $$file $$name"; $(GO) test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) ./$$(dirname $$file); \
		done; \
	done

# SOAK seconds: two fifths of them of Go's random checks (soak-go), and then random faults on real processes
# (soak-python), whose checks share the rest. One alone: make soak-python ONLY=random_partitions, make soak-go
# ONLY=TestSimulation.
# What fails says by which seed it does so again.
SOAK ?= 3600
soaks_of_python = $(if $(ONLY),1,$(shell git grep -h 'pytest\.mark\.soak$$' -- tests | wc -l))
.PHONY: soak soak-go soak-python
soak: ## run the checks that do random things for long: an hour (SOAK seconds)
	@$(MAKE) --no-print-directory soak-go SOAK=$$(($(SOAK) * 2 / 5))
	@$(MAKE) --no-print-directory soak-python SOAK=$$(($(SOAK) * 3 / 5))

soak-go: check-go
	$(call plugins,$(VENV)) tests/soak.sh $(SOAK) $(ONLY)

soak-python: $(VENV)/.installed
	PATHWAYS_SOAK_SECONDS=$$(($(SOAK) / $(soaks_of_python))) \
		$(VENV)/bin/python -m pytest -m soak -s tests $(if $(ONLY),-k $(ONLY))

.PHONY: clean
clean: ## remove everything that make made
	rm -rf build dist out $(VENV) $(VENV_NEW) $(PEERS) .pytest_cache .ruff_cache .hypothesis $(LIBRARY)
	find python tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: check-go
check-go:
	@test -x "$(GO)" || { echo "Go was not found: install Go 1.26 or newer (https://go.dev/dl) and put it on PATH." >&2; exit 1; }
	@command -v $${CC:-gcc} >/dev/null || { echo "The C compiler $${CC:-gcc} was not found: install it (Debian, Ubuntu: apt install gcc libc6-dev) or set CC." >&2; exit 1; }

.PHONY: check-python
check-python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer was not found: install it and put python3 on PATH, or run make PYTHON=/path/to/python3." >&2; exit 1; }

# Everything that the package, its tests and the checks need from others, by name, from pyproject.toml.
requirements = import tomllib; p = tomllib.load(open("pyproject.toml", "rb")); x = p["project"]["optional-dependencies"]; \
	print("\n".join(p["build-system"]["requires"] + p["project"]["dependencies"] + x["test"] + x["demo"] + x["dev"]))

$(VENV)/.dependencies: python_of = $(PYTHON)
$(VENV_NEW)/.dependencies: python_of = $(PYTHON_NEW)
%/.dependencies: pyproject.toml | check-python
	@echo "== $*: $$($(python_of) -V) and packages"
	@test -x $*/bin/python || $(python_of) -m venv --clear $* || { echo "Python's venv module is missing (Debian, Ubuntu: apt install python3-venv)." >&2; exit 1; }
	@$*/bin/python -m pip install --quiet --upgrade pip
	@$*/bin/python -m pip install --quiet -r <($*/bin/python -c '$(requirements)')
	@touch $@

.PHONY: installed
installed: $(VENVS:=/.installed) ## install the package, too

.PHONY: dependencies
dependencies: $(VENVS:=/.dependencies) $(NEW:=/.newest-plugin) ## install what the package, its tests and the checks need

# A newer XLA for the CPU beside the newest JAX; its metadata would downgrade jax, so it comes without its dependencies.
$(VENV_NEW)/.newest-plugin: $(VENV_NEW)/.dependencies
	@$(VENV_NEW)/bin/python -m pip install --quiet --no-deps lammps-jax-pjrt-cpu
	@touch $@

# One wheel serves every Python. CI checks beside it that generated code is fresh, which writes it: that is FIRST.
$(VENV)/.wheel: $(VENV)/.dependencies $(SOURCES) | check-go $(FIRST)
	@echo "== $(VENV): the package, built by pip"
	@rm -rf $(VENV)/wheel
	@$(VENV)/bin/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir $(VENV)/wheel .
	@touch $@

$(VENV_NEW)/.installed: $(VENV_NEW)/.newest-plugin
%/.installed: %/.dependencies $(VENV)/.wheel
	@echo "== $*: the package"
	@$*/bin/python -m pip install --quiet --no-deps --force-reinstall $(VENV)/wheel/*.whl
	@touch $@

.PRECIOUS: %/.dependencies %/.installed %/.wheel
