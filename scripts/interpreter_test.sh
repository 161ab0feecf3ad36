#!/usr/bin/env bash
# Builds the interpreter by itself against the CPython $1 (no PyTorch, no LLVM) and runs its tests: CPython's own,
# and with pytest in that Python also those of tests/capture/test_{interpreter,observer}.py. QUICK=1 takes a part
# of CPython's tests. Settings: CXX, CC, JOBS.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${1:-$PWD/.venv/bin/python}
JOBS=${JOBS:-2}
include=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
out=$PWD/build-interpreter/$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
mkdir -p "$out"

compile() {
    local source=$1 object=$2
    local compiler=(${CXX:-g++} -std=c++20)
    [ "${source##*.}" = c ] && compiler=(${CC:-gcc})
    "${compiler[@]}" -O2 -g1 -fPIC -fvisibility=hidden -DPy_BUILD_CORE=1 -Wall -Wextra -Werror -Wno-unused-parameter \
        -Wno-missing-field-initializers -Wno-restrict ${FLAGS:-} -isystem "$include" -Isrc -c "$source" -o "$object"
}
objects=()
for source in src/capture/interpreter/*.c src/capture/interpreter/*.cpp tests/capture/interpreter_module.cpp; do
    object=$out/$(basename "$source").o
    objects+=("$object")
    while [ "$(jobs -r | wc -l)" -ge "$JOBS" ]; do wait -n; done
    compile "$source" "$object" &
done
wait
${CXX:-g++} -shared ${FLAGS:-} -o "$out/_interpreter_test.so" "${objects[@]}"

status=0
quick=()
[ -n "${QUICK:-}" ] && quick=(--quick)
"$PYTHON" tests/capture/cpython_tests.py --module-dir "$out" --jobs "$JOBS" "${quick[@]}" || status=1
if "$PYTHON" -c 'import pytest' 2>/dev/null; then
    INGOT_INTERPRETER_TEST=$out "$PYTHON" -m pytest -q -p no:cacheprovider --noconftest \
        tests/capture/test_observer.py tests/capture/test_interpreter.py -k "not cpython_agrees" || status=1
else
    echo "no pytest in $PYTHON: only CPython's tests ran"
fi
exit $status
