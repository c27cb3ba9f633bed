# make help      this list
# make study     install, then measure what is left of a study and make its tables, figures and pages: 'paper' on a
#                machine with a CUDA card, 'smoke' elsewhere, or STUDY=name; GPUS=all or a number: that many GPUs at once
# make cells     install, then only measure
# make figures   install (without torch), then make tables, figures and pages of what is there
# make plan      what would run, in which order and how long it takes, and what failed: STUDY=kick BUDGET=25m
# make report    Snakemake's report of what is there: report.html and report.zip in the study's folder
# make advise    how many of your job to run on one GPU, by which method: measures it for three minutes.
#                RUN="python train.py --lr 0.1" FOLDER=where it runs, or JOB=name of the catalogue, or MODEL=resnet50
#                BATCH=64; SLOWDOWN=2 MEMORY=80 MAX=8 BUDGET=3m VERIFY=0 JSON=1 FIRST_STEP=120. With STUDY=ladder: from what it measured
# make recipe    a script that starts a set: ADVICE=results/advise-x/advice.json > start.sh, or
#                JOBS=4 METHOD=mps (or separate) CORES=2 RUN="python train.py"; SYSTEM=slurm
# make explain   the cells and the arithmetic behind a published number: ID=stp:... STUDY=ladder
# make compare   two studies side by side: A=results/x B=results/y; OUT: another folder
# make verify    do the published numbers follow from the raw files? STUDY=ladder; by default all studies that ship
# make doctor    what this machine lacks for measuring, and what to do about it; exits with 1 if it cannot measure
# make artifact  one archive of code, raw and derived results, with instructions: STUDY=ladder OUT=FILE
# make export    a study's cells into MLflow, with its names or radT's: STUDY=ladder TO=mlflow (or radt)
# make merge     take in cells of the same study that were measured elsewhere: FROM=FOLDER_OR_BUNDLE
# make seal      check a finished study, and list its files with their hashes, so that it can ship: STUDY=ladder
# make readme    write README.md and the generated pages of docs/ from a study that ships: STUDY=ladder
# make bench     what the training loop costs; BENCH=watching (what monitors cost), BENCH=graph-speeds, BENCH=--help
# make test      install, then lint, verify what ships, and run the test suite
# make test-slurm   measure on a real Slurm of one node; as root, installs Debian's packages
# make wheelhouse   packages for a GPU node without a network that has its own torch; ALL=1: numpy etc. too
#
# CONFIG="key=value ..." sets keys of config/config.yaml.
# 'make PYTHON=python3 VENV= study' uses that Python as it is, and installs nothing.

KNOWN := STUDY BUDGET GPUS CONFIG A B FROM OUT ID BENCH TO RUN FOLDER STEPS FIRST_STEP JOB MODEL BATCH SIZE SLOWDOWN MEMORY MAX VERIFY JSON ADVICE SYSTEM JOBS METHOD CORES PYTHON VENV ALL WHEEL_PYTHON WHEEL_PLATFORM
$(foreach v,$(filter-out $(KNOWN) SHELL MAKEFLAGS,$(.VARIABLES)),$(if $(filter command,$(origin $v)),$(error $v: unknown variable; allowed: $(KNOWN))))

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
$(if $(filter command,$(origin CONFIG)),$(if $(findstring =,$(CONFIG)),,$(error CONFIG=$(CONFIG): allowed: key=value)))
RESULTS = $(patsubst results=%,%,$(or $(filter results=%,$(CONFIG)),results=results))
MANY = $(GPUS:all=1000)
$(if $(filter command,$(origin GPUS)),$(if $(shell test '$(MANY)' -ge 1 2> /dev/null && echo 1),,$(error GPUS=$(GPUS): allowed: all, 1 or more)))
BESIDE = $(if $(GPUS),--cores all --resources gpu=$(MANY))
# By this it ends with make, whatever ended that.
TIED = COLLOCATION_PARENT=$$PPID exec $(PY)
QUIET = $(TIED) -m workflow.collocation.plan.terminal
SNAKEMAKE = $(QUIET) snakemake

.DEFAULT_GOAL := help
.PHONY: help study cells figures report compare verify artifact export merge seal readme explain advise recipe plan doctor test test-slurm lint format bench wheelhouse clean

help:
	@sed -n '/^[^#]/q; s/^# \{0,1\}//p' Makefile
	@echo 'Variables: $(KNOWN).'

study: $(TRAIN)
	$(SNAKEMAKE) $(BESIDE) --config $(SETTINGS)

cells: $(TRAIN)
	$(SNAKEMAKE) $(BESIDE) --config $(SETTINGS) --until collocate

figures: $(BASE)
	$(SNAKEMAKE) --config measure=false $(SETTINGS) -- figures

report: $(BASE)
	@$(SNAKEMAKE) --config measure=false $(SETTINGS) -- report

OUT ?= results/compare/$(notdir $(patsubst %/,%,$(A)))-$(notdir $(patsubst %/,%,$(B)))
compare: $(BASE)
	@$(if $(and $(A),$(B)),,echo "make compare A=results/x B=results/y" >&2; exit 2)
	@$(TIED) -m analysis compare $(A) $(B) --output $(OUT)

verify: $(BASE)
	@$(TIED) -m release verify $(if $(filter-out auto,$(STUDY)),$(RESULTS)/$(STUDY))

merge: $(BASE)
	@$(if $(FROM),,echo "make merge FROM=FOLDER_OR_BUNDLE" >&2; exit 2)
	@$(TIED) -m release merge $(FROM) --config $(SETTINGS)

seal: $(BASE)
	@$(call named)
	@$(TIED) -m release seal $(RESULTS)/$(STUDY)

readme: $(BASE)
	@$(call named)
	@$(TIED) -m analysis pages --readme --folder $(RESULTS)/$(STUDY)

# RUN and STEPS reach the program as they were given, whatever quotes and dollars are in them; the
# others, which make would export, are no part of a script's environment.
override RUN := $(value RUN)
override STEPS := $(value STEPS)
export RUN
unexport STUDY GPUS CONFIG FOLDER STEPS FIRST_STEP JOB MODEL BATCH SIZE SLOWDOWN MEMORY MAX BUDGET VERIFY JSON
ifeq ($(STUDY),auto)
advise: $(TRAIN)
	$(foreach v,VERIFY JSON,$(if $(filter-out 0 1,$($v)),$(error $v=$($v): allowed: 0, 1)))
	@$(TIED) -m analysis advise-job $(if $(RUN),--run "$$RUN") $(if $(JOB),--job $(JOB)) $(if $(MODEL),--model $(MODEL)) $(if $(BATCH),--batch $(BATCH)) $(if $(SIZE),--size $(SIZE)) $(if $(FOLDER),--directory '$(FOLDER)') $(if $(STEPS),--steps '$(STEPS)') $(if $(FIRST_STEP),--first-step $(FIRST_STEP)) $(if $(SLOWDOWN),--slowdown $(SLOWDOWN)) $(if $(MEMORY),--memory $(MEMORY)) $(if $(MAX),--max $(MAX)) $(if $(BUDGET),--budget $(BUDGET)) $(if $(filter 0,$(VERIFY)),--no-verify) $(if $(CONFIG),--config '$(CONFIG)') $(if $(filter 1,$(JSON)),--json)
else
advise: $(BASE)
	$(foreach v,RUN MODEL BATCH SIZE FOLDER STEPS FIRST_STEP MAX BUDGET VERIFY JSON,$(if $($v),$(if $(filter environment,$(origin $v)),,$(error $v: not with STUDY=$(STUDY), whose jobs were measured; allowed: JOB SLOWDOWN MEMORY))))
	@$(TIED) -m analysis advise --folder $(RESULTS)/$(STUDY) $(if $(SLOWDOWN),--slowdown $(SLOWDOWN)) $(if $(MEMORY),--memory $(MEMORY)) $(if $(JOB),--job $(JOB))
endif

explain: $(BASE)
	@$(call named)
	@$(TIED) -m analysis explain '$(ID)' --folder $(RESULTS)/$(STUDY)

recipe: $(BASE)
	@$(TIED) -m analysis recipe $(if $(SYSTEM),--system '$(SYSTEM)') $(if $(ADVICE),--advice '$(ADVICE)') $(if $(JOBS),--jobs $(JOBS)) $(if $(METHOD),--method $(METHOD)) $(if $(CORES),--cores $(CORES)) $(if $(FOLDER),--folder '$(FOLDER)') $(if $(RUN),--run "$$RUN")

artifact: $(BASE)
	@$(call named)
	@$(TIED) -m release $@ $(RESULTS)/$(STUDY) --output $(if $(filter file,$(origin OUT)),build/$(STUDY)-$@.tar.xz,$(OUT))

export: $(BASE)
	@$(call named)
	@$(TIED) -m analysis export --folder $(RESULTS)/$(STUDY) --to '$(TO)'

named = $(if $(filter auto,$(STUDY)),echo "make $@ STUDY=NAME$(if $(filter explain,$@), ID=... (an id of the study's estimates.csv))" >&2; exit 2)

plan: $(BASE)
	@$(QUIET) workflow.collocation.plan.show --config $(SETTINGS) $(if $(GPUS),--gpus $(MANY))

doctor: $(TRAIN)
	@$(QUIET) workflow.collocation.plan.doctor --config $(SETTINGS)

test: lint
	@$(PY) -m compileall -q $(OURS)
	@mkdir -p build && $(PY) -m release verify > build/verify.txt || { cat build/verify.txt; exit 1; }
	$(PY) -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

# An environment of its own: see the extra `slurm` in pyproject.toml.
test-slurm:
	command -v slurmd slurmctld sbatch > /dev/null || (apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends slurmctld slurmd slurm-client)
	$(MAKE) VENV=$(VENV)-slurm $(VENV)-slurm/.slurm
	COLLOCATION_SLURM=1 $(VENV)-slurm/bin/python -m pytest -v tests/test_slurm.py

OURS = analysis bench envs models release tests workflow
lint: $(DEV)
	$(PY) -m ruff check $(OURS)
	$(PY) -m ruff format --check $(OURS)
	$(PY) -m snakefmt --check Snakefile workflow
	$(PY) -m pytest --quiet tests/test_packaging.py

format: $(DEV)
	$(PY) -m ruff check --fix $(OURS)
	$(PY) -m ruff format $(OURS)
	$(PY) -m snakefmt Snakefile workflow

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
	@$(PY) -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
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
