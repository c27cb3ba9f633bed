# make help      this list
# make study     install, then run the study (paper on a CUDA machine, smoke elsewhere); GPUS=all, or a number:
#                that many GPUs at once
# make cells     install, then measure only: neither tables nor figures
# make test      install, then lint, verify what ships, and run the whole test suite
# make test-slurm   the executor for Slurm on a real Slurm of one node; as root, installs Debian's packages
# make soak      random deaths, hangs, full disks: make soak SEED=7 MINUTES=120; what it found: build/soak-SEED
# make figures   install without torch, then draw what is there; plans no GPU job
# make report    Snakemake's report of what is there, as report.zip and report.html in the study's folder
# make compare   two studies side by side: make compare A=results/x B=results/y; OUT: another folder
# make verify    do the shipped results follow from the raw files? STUDY=h200; default: all that ship; ALL=1: each artefact
# make artifact  one archive of code, raw and derived results, and how to evaluate it: STUDY=h200 OUT=FILE
# make merge     take in cells of the same study from elsewhere: make merge FROM=FOLDER_OR_BUNDLE
# make seal      check a finished study and make it one that ships: STUDY=h200
# make readme    write README.md and the generated pages of docs/ from the study that ships: STUDY=h200
# make explain   the cells and arithmetic behind a published number: make explain ID=stp:... STUDY=h200
# make advise    how many of a job, by which method: make advise STUDY=h200 SLOWDOWN=2 MEMORY=80
# make plan      what would run, minutes by claim and figure: make plan STUDY=kick BUDGET=25m; on another card
#                with CARD=tests/cards/FILE, on this one with CARD=here: what will not fit, every MIG layout
# make doctor    what measuring needs of this machine, how noisy it is, and what to do; exit 1 if it cannot
# make bench     our training loop against a bare PyTorch loop, and the cost of a cell; BENCH=--help;
#                BENCH="--sampler 20": what monitoring costs
# make schemas   write config models as JSON Schema
# make wheelhouse   wheels for an air-gapped GPU node that has its own torch; ALL=1: numpy etc. too
#
# Variables: STUDY, BUDGET, GPUS, CONFIG="key=value ...", A, B, FROM, OUT, ID, SLOWDOWN, MEMORY, CARD, TABLE, BENCH, SEED, MINUTES, PYTHON, VENV.
# `make PYTHON=python3 VENV= study` uses that Python as it is and installs nothing.

PYTHON ?= python3
VENV ?= .venv
STUDY ?= auto
BUDGET ?=
GPUS ?=
CONFIG ?=

ifeq ($(strip $(VENV)),)
PY := $(PYTHON)
else
PY := $(VENV)/bin/python
endif
BASE := $(if $(strip $(VENV)),$(VENV)/.base)
TRAIN := $(if $(strip $(VENV)),$(VENV)/.train)
DEV := $(if $(strip $(VENV)),$(VENV)/.dev)

SETTINGS = $(strip study=$(STUDY) $(if $(BUDGET),budget=$(BUDGET)) $(CONFIG))
RESULTS = $(patsubst results=%,%,$(or $(filter results=%,$(CONFIG)),results=results))
MANY = $(GPUS:all=1000)
BESIDE = $(if $(GPUS),--cores all --resources gpu=$(MANY))
QUIET = $(PY) -m workflow.collocation.plan.terminal
SNAKEMAKE = $(QUIET) snakemake

.DEFAULT_GOAL := help
.PHONY: help study cells figures report compare verify artifact merge seal readme explain advise plan doctor test test-slurm soak lint format schemas bench wheelhouse clean

help:
	@sed -n '/^[^#]/q; s/^# \{0,1\}//p' Makefile

study: $(TRAIN)
	$(SNAKEMAKE) $(BESIDE) --config $(SETTINGS)

cells: $(TRAIN)
	$(SNAKEMAKE) $(BESIDE) --config $(SETTINGS) --until collocate

figures: $(BASE)
	$(SNAKEMAKE) --config measure=false $(SETTINGS) -- figures

report: $(BASE)
	$(SNAKEMAKE) --config measure=false $(SETTINGS) -- report

OUT ?= results/compare/$(notdir $(patsubst %/,%,$(A)))-$(notdir $(patsubst %/,%,$(B)))
compare: $(BASE)
	@$(if $(and $(A),$(B)),,echo "make compare A=results/x B=results/y" >&2; exit 2)
	@$(PY) -m analysis compare $(A) $(B) --output $(OUT)

verify: $(BASE)
	@$(PY) -m release verify $(if $(ALL),--all) $(if $(filter-out auto,$(STUDY)),$(RESULTS)/$(STUDY))

merge: $(BASE)
	@$(if $(FROM),,echo "make merge FROM=FOLDER_OR_BUNDLE" >&2; exit 2)
	@$(PY) -m release merge $(FROM) --config $(SETTINGS)

seal: $(BASE)
	@$(call named)
	@$(PY) -m release seal $(RESULTS)/$(STUDY)

readme: $(BASE)
	@$(call named)
	@$(PY) -m analysis pages --readme --folder $(RESULTS)/$(STUDY)

explain advise: $(BASE)
	@$(call named)
	@$(PY) -m analysis $@ $(if $(filter explain,$@),'$(ID)') --folder $(RESULTS)/$(STUDY) $(if $(SLOWDOWN),--slowdown $(SLOWDOWN)) $(if $(MEMORY),--memory $(MEMORY))

artifact: $(BASE)
	@$(call named)
	@$(PY) -m release $@ $(RESULTS)/$(STUDY) --output $(if $(filter file,$(origin OUT)),build/$(STUDY)-$@.tar.gz,$(OUT))

named = $(if $(filter auto,$(STUDY)),echo "make $@ STUDY=NAME" >&2; exit 2)

plan: $(BASE)
	@$(QUIET) workflow.collocation.plan.$(if $(CARD),mig_plan,show) --config $(SETTINGS) $(if $(CARD),$(if $(filter-out here,$(CARD)),--card $(CARD)),$(if $(GPUS),--gpus $(MANY)))

doctor: $(TRAIN)
	@$(QUIET) workflow.collocation.plan.doctor --config $(SETTINGS)

test: lint
	@mkdir -p build && $(PY) -m release verify > build/verify.txt || { cat build/verify.txt; exit 1; }
	$(PY) -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

# An environment of its own: see the extra `slurm` in pyproject.toml.
test-slurm:
	command -v slurmd slurmctld sbatch > /dev/null || (apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends slurmctld slurmd slurm-client)
	$(MAKE) VENV=$(VENV)-slurm $(VENV)-slurm/.slurm
	COLLOCATION_SLURM=1 $(VENV)-slurm/bin/python -m pytest -v tests/test_slurm.py

SEED ?= 1
MINUTES ?= 120
soak: $(DEV)
	$(PY) -m tests.soak --seed $(SEED) --minutes $(MINUTES) --folder build/soak-$(SEED)

lint: $(DEV)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m snakefmt --check Snakefile workflow
	$(PY) -m pytest --quiet tests/test_packaging.py

format: $(DEV)
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .
	$(PY) -m snakefmt Snakefile workflow

schemas: $(BASE)
	$(PY) -m workflow.collocation.spec.study

bench: $(TRAIN)
	$(PY) -m bench $(BENCH)

# Wheels of what the base install needs, less what a node with its own torch has anyway; install with
#   python3 -m pip install --no-index --no-deps --target site wheelhouse/*.whl
# and run with PYTHONPATH=site. WHEEL_PYTHON and WHEEL_PLATFORM are the node's.
WHEEL_PYTHON ?= 3.12
WHEEL_PLATFORM ?= manylinux_2_28_x86_64 manylinux_2_27_x86_64 manylinux_2_17_x86_64 manylinux2014_x86_64 manylinux1_x86_64 manylinux_2_5_x86_64
wheelhouse: $(BASE)
	$(PY) envs/wheelhouse.py $(if $(ALL),--all) --python $(WHEEL_PYTHON) --platform $(WHEEL_PLATFORM)

clean:
	rm -rf $(VENV) .snakemake build wheelhouse

# uv installs in half a minute; where it cannot be had, pip does the same in three. Versions are pinned, uv's
# too; no hashes: pip takes them for all packages of all platforms or for none, and of no editable install.
define install
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; say which with PYTHON=...") if sys.version_info < (3, 11) else 0'
	@echo "installing into $(VENV), once: about half a minute, or three where there is pip alone" >&2
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@if $(PY) -m pip install --quiet -c envs/constraints.txt uv; then \
	  UV_FIND_LINKS="$${PIP_FIND_LINKS:-}" $(PY) -m uv pip install --quiet --compile-bytecode --python $(PY) -c envs/constraints.txt -e '.$(1)'; \
	else false; fi || $(PY) -m pip install --quiet -c envs/constraints.txt -e '.$(1)'
	@touch $@
endef

$(VENV)/.base: pyproject.toml envs/constraints.txt
	$(call install,)

$(VENV)/.train: pyproject.toml envs/constraints.txt
	$(call install,[train])
	@touch $(VENV)/.base

$(VENV)/.dev: pyproject.toml envs/constraints.txt
	$(call install,[train$(comma)dev])
	@touch $(VENV)/.base $(VENV)/.train

$(VENV)/.slurm: pyproject.toml envs/constraints.txt
	$(call install,[train$(comma)dev$(comma)slurm])

comma := ,
