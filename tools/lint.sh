#!/usr/bin/env bash
# Every static check, each with its name and outcome; all of them run even when one fails.
set -uo pipefail
cd "$(dirname "$0")/.."
failed=()

check() {
  local name=$1 output
  shift
  if output=$("$@" 2>&1); then
    printf 'lint: %-14s ok\n' "$name"
  else
    printf 'lint: %-14s FAILED\n%s\n' "$name" "$output"
    failed+=("$name")
  fi
}

check format ruff format --check .
check style ruff check .
check types mypy
check imports lint-imports
check dependencies deptry .
check contract buf lint
check stubs env PYTHON=python tools/generate_stubs.sh --check
check dashboards python tools/generate_dashboards.py --check
check configuration python tools/generate_configuration.py --check
[ "${#failed[@]}" -eq 0 ] || {
  echo "lint: failed: ${failed[*]}" >&2
  exit 1
}
