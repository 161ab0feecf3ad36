#!/usr/bin/env bash
# Checks (or with --fix applies) the formatters and linters: ruff for Python, clang-format 19 for C++.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-$PWD/.venv/bin/python}
format=$(dirname "$PYTHON")/clang-format
[ -x "$format" ] || format=$(command -v clang-format-19 || true)
[ -n "$format" ] || { echo "lint: clang-format 19 is missing (pip install clang-format==19.1.7)" >&2; exit 1; }
mapfile -t sources < <(git ls-files '*.cpp' '*.h' 2>/dev/null | grep -v '^tests/golden/' || true)

if [ "${1:-}" = --fix ]; then
    "$PYTHON" -m ruff check --fix --quiet .
    "$PYTHON" -m ruff format --quiet .
    "$PYTHON" scripts/prims_doc.py
    [ ${#sources[@]} = 0 ] || "$format" -i "${sources[@]}"
    exit
fi
failed=0
"$PYTHON" -m ruff check . || failed=1
"$PYTHON" -m ruff format --check --quiet . || { echo "lint: Python needs 'make format'"; failed=1; }
if [ ${#sources[@]} != 0 ]; then
    "$format" --dry-run --Werror "${sources[@]}" 2>&1 | grep 'error:' | cut -d: -f1 | sort | uniq -c || true
    "$format" --dry-run --Werror "${sources[@]}" >/dev/null 2>&1 || { echo "lint: C++ needs 'make format'"; failed=1; }
fi
"$PYTHON" scripts/prims_doc.py --check || failed=1
bash -n scripts/*.sh .ci/run
[ $failed = 0 ] && echo "lint: clean"
exit $failed
