# make install     set up .venv, and put `collocate` on PATH: collocate --help
# make study       install, then measure and draw a study: 'paper' with an NVIDIA GPU, 'smoke' elsewhere; STUDY=name
# make test        install, then lint, verify the results that ship, and run the tests
# make test-slurm  measure on a real Slurm of one node; as root, it installs Debian's packages
# make lint        check the code's form; make format mends it
# make wheelhouse  packages for a machine without a network that has PyTorch, for the Python of PYTHON
# make clean       remove .venv and what was built
#
# PYTHON=python3.12 is the Python to install for. VENV=folder is where; VENV= installs nothing and uses PYTHON as it is.
PYTHON := python3
VENV := .venv
STUDY := auto
# A study's name reaches the shell by the environment; the others may hold nothing that a shell or make reads.
override STUDY := $(value STUDY)
export STUDY
odd = $(if $(findstring ',$(1))$(findstring ",$(1))$(findstring $$,$(1))$(findstring ;,$(1))$(findstring `,$(1))$(filter-out 0 1,$(words $(1))),yes)
$(foreach v,PYTHON VENV,$(if $(call odd,$(value $v)),$(error $v=$(value $v): allowed: a path without blanks, quotes, $$, ; and `)))

PY := $(if $(VENV),$(VENV)/bin/python,$(PYTHON))
installed = $(if $(VENV),$(VENV)/.$(1))
BIN := $(HOME)/.local/bin
OURS = analysis bench collocate envs models paper release tests workflow

.DEFAULT_GOAL := help
.PHONY: help install study test test-slurm lint format wheelhouse clean

help:
	@sed -n '/^[^#]/q; s/^# \{0,1\}//p' Makefile

install: $(call installed,train)
	@[ -n '$(VENV)' ] || { echo 'VENV= installs nothing' >&2; exit 2; }
	@mkdir -p '$(BIN)'; if [ -e '$(BIN)/collocate' ] && [ "$$(readlink '$(BIN)/collocate')" != '$(abspath $(VENV))/bin/collocate' ]; then \
	  echo '$(BIN)/collocate is there already and stays; run $(abspath $(VENV))/bin/collocate' >&2; exit 1; fi
	@ln -sfn '$(abspath $(VENV))/bin/collocate' '$(BIN)/collocate'
	@case ":$$PATH:" in *':$(BIN):'*) echo 'installed: collocate --help';; \
	  *) echo 'installed in $(BIN), which is not on PATH: export PATH="$(BIN):$$PATH"';; esac

study: $(call installed,train)
	@COLLOCATION_PARENT=$$PPID exec $(PY) -m collocate study -- "$$STUDY"

test: lint
	@$(PY) -m compileall -q $(OURS)
	@mkdir -p build && $(PY) -m collocate verify > build/verify.txt || { cat build/verify.txt; exit 1; }
	$(PY) -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

# An environment of its own: see the extra `slurm` in pyproject.toml.
test-slurm:
	command -v slurmd slurmctld sbatch > /dev/null || (apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends slurmctld slurmd slurm-client)
	$(MAKE) VENV=$(VENV)-slurm $(VENV)-slurm/.slurm
	COLLOCATION_SLURM=1 $(VENV)-slurm/bin/python -m pytest -v tests/workflow/test_slurm.py

lint: $(call installed,dev)
	$(PY) -m ruff check $(OURS)
	$(PY) -m ruff format --check $(OURS)
	$(PY) -m snakefmt --check Snakefile workflow
	$(PY) -m pytest --quiet tests/unit/test_packaging.py

format: $(call installed,dev)
	$(PY) -m ruff check --fix $(OURS)
	$(PY) -m ruff format $(OURS)
	$(PY) -m snakefmt Snakefile workflow

wheelhouse: $(call installed,train)
	@$(PY) envs/wheelhouse.py $$('$(PYTHON)' -c 'import sys; print("%d.%d" % sys.version_info[:2])')

clean:
	rm -rf '$(VENV)' .snakemake build

$(VENV)/.train: EXTRAS = train
$(VENV)/.dev: EXTRAS = train,dev
$(VENV)/.slurm: EXTRAS = train,dev,slurm
$(VENV)/.%: pyproject.toml envs/constraints.txt
	@envs/install.sh '$(VENV)' '$(PYTHON)' '$(EXTRAS)'
	@touch $@ $(VENV)/.train
