#!/usr/bin/env bash
# Makes the virtual environment $1 and installs the pinned dependencies, the project (editable) and the tools.
# Checks the interpreter, the venv module and the free space first; whatever is wrong ends in one line with the remedy.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv}
needed_mib=8192 # torch's default build brings CUDA libraries
[ -z "${TORCH_INDEX_URL:-}" ] || needed_mib=4096

fail() {
  echo "setup: $1" >&2
  exit 2
}

supported() {
  "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null
}

choose_python() {
  if [ -n "${PYTHON:-}" ]; then
    supported "$PYTHON" || fail "PYTHON=$PYTHON is not a Python from 3.11 to 3.13. Name one, for instance PYTHON=python3.11"
    echo "$PYTHON"
    return
  fi
  for candidate in python3.13 python3.12 python3.11 python3; do
    if supported "$candidate"; then
      echo "$candidate"
      return
    fi
  done
  fail "no Python from 3.11 to 3.13 found. Install one, or name it: make setup PYTHON=/path/to/python3.11"
}

if [ ! -x "$venv/bin/python" ]; then
  python=$(choose_python)
  free_mib=$(df -Pm . | awk 'NR == 2 { print $4 }')
  [ "$free_mib" -ge "$needed_mib" ] ||
    fail "$free_mib MiB free here, $needed_mib needed. Free some space, or take a CPU build of torch (4096 MiB) by TORCH_INDEX_URL"
  "$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$python has no venv module. Install it, for instance: apt-get install python3-venv"
  echo "setup: making $venv with $("$python" --version)"
  "$python" -m venv "$venv" || { rm -rf "$venv"; fail "$venv could not be made. Check that the folder can be written"; }
fi

pip=("$venv/bin/python" -m pip --disable-pip-version-check)
"${pip[@]}" install --quiet --upgrade 'pip>=25.1'
if [ -n "${TORCH_INDEX_URL:-}" ]; then
  echo "setup: installing torch from $TORCH_INDEX_URL"
  PIP_INDEX_URL="$TORCH_INDEX_URL" "${pip[@]}" install --quiet --constraint constraints.txt torch
fi
echo "setup: installing dependencies, which takes some minutes the first time"
"${pip[@]}" install --quiet --constraint constraints.txt --editable ".[datasets,eval,http]" --group dev
