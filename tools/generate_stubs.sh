#!/usr/bin/env bash
# Regenerates splitwire/v1 from proto/. With --check it only compares, and fails when the committed stubs differ.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
out=.
if [ "${1:-}" = --check ]; then
  out=$(mktemp -d)
  trap 'rm -rf "$out"' EXIT
fi
"$python" -m grpc_tools.protoc -I proto --python_out="$out" --pyi_out="$out" proto/splitwire/v1/*.proto
if [ "$out" != . ]; then
  for stub in "$out"/splitwire/v1/*; do
    diff -u "splitwire/v1/$(basename "$stub")" "$stub" || {
      echo "stubs differ from proto/: run 'make stubs' and commit the result" >&2
      exit 1
    }
  done
fi
