#!/usr/bin/env bash
# All tests, in the order of how fast they say no: lint, the core's tests, pytest, the core's tests under
# sanitizers, the wheel, the demo in its quick form. Every step runs; the end repeats what each said.
# STEPS="ctest pytest" runs a part. Settings: PYTHON, JOBS.
set -uo pipefail
cd "$(dirname "$0")/.."
BUILD=${1:-build}
export PYTHON=${PYTHON:-$PWD/.venv/bin/python} PYTHONPATH=$PWD/python
JOBS=${JOBS:-$(nproc)}
STEPS=${STEPS:-lint ctest pytest sanitize wheel demo}
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
failed=()

step_lint() { scripts/lint.sh; }
step_ctest() { ctest --test-dir "$BUILD" --output-on-failure --no-tests=error -j "$JOBS"; }
step_pytest() { "$PYTHON" -m pytest tests -q; }
step_sanitize() {
    # The core needs no PyTorch, so its tests run whole under AddressSanitizer and UBSan.
    scripts/build.sh build-sanitize -DINGOT_BUILD_TORCH=OFF -DINGOT_SANITIZE=ON &&
        ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
            ctest --test-dir build-sanitize --output-on-failure --no-tests=error -j "$JOBS"
}
step_wheel() { scripts/wheel_test.sh; }
step_demo() { "$PYTHON" -m ingot.bench.demo --quick; }

for step in $STEPS; do
    printf '\n== %s\n' "$step"
    start=$SECONDS
    "step_$step" 2>&1 | tee "$logs/$step"
    [ "${PIPESTATUS[0]}" = 0 ] || failed+=("$step")
    printf -- '-- %s: %d s\n' "$step" $((SECONDS - start))
done

printf '\n== summary\n'
for step in $STEPS; do
    case $step in
        ctest | sanitize) line=$(grep -E 'tests passed|tests failed|No tests' "$logs/$step" | tail -n 1) ;;
        *) line=$(grep -v '^$' "$logs/$step" | tail -n 1) ;;
    esac
    printf '%-9s %s\n' "$step" "$line"
done
if [ ${#failed[@]} != 0 ]; then
    echo "failed: ${failed[*]}"
    exit 1
fi
echo "all tests passed"
