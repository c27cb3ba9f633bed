#!/usr/bin/env bash
# Set up a virtual environment in which this project runs: envs/install.sh VENV PYTHON EXTRAS
#
# uv installs in half a minute; where it cannot be had, pip does the same in three. Versions are
# pinned, uv's too; no hashes: pip takes them for all packages of all platforms or for none, and of
# no editable install. Beside a folder wheelhouse/ (`make wheelhouse`, elsewhere) a new environment
# is made of that and of what PYTHON has, such as torch: no network is used.
set -euo pipefail
venv=$1 python=$2 extras=$3
cd "$(dirname "$0")/.."
"$python" -c 'import sys; sys.exit("Python 3.11 or newer is needed; say which with PYTHON=...") if sys.version_info < (3, 11) else 0'
if compgen -G 'wheelhouse/*.whl' > /dev/null && { [ ! -e "$venv" ] || [ -e "$venv/.wheelhouse" ]; }; then
  mkdir -p "$venv" && touch "$venv/.wheelhouse"  # first: an interrupted installation is repeated
  "$python" -m venv --without-pip "$venv"
  # The environment sees PYTHON's own packages, also where PYTHON is of an environment itself.
  "$python" -c 'import site; print(*site.getsitepackages(), sep="\n")' > "$("$venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')/node.pth"
  into() { "$python" -m pip --python "$venv/bin/python" install --quiet --no-index --no-deps "$@"; }
  into wheelhouse/*.whl
  into --no-build-isolation -e .
  exit
fi
echo "installing into $venv, once: about half a minute, or three where there is pip alone" >&2
"$venv/bin/python" -m pip --version > /dev/null 2>&1 || "$python" -m venv "$venv"
if "$venv/bin/python" -m pip install --quiet -c envs/constraints.txt uv; then
  UV_FIND_LINKS="${PIP_FIND_LINKS:-}" "$venv/bin/python" -m uv pip install --quiet --compile-bytecode \
    --python "$venv/bin/python" -c envs/constraints.txt -e ".[$extras]" && exit
fi
"$venv/bin/python" -m pip install --quiet -c envs/constraints.txt -e ".[$extras]"
