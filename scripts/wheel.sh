#!/usr/bin/env bash
# Builds the wheel into $1 (dist) against the PyTorch of PYTHON's environment, out of what stands in build/: nothing is
# compiled twice, and scripts/build.sh finds its own objects again afterwards.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-$PWD/.venv/bin/python}
mkdir -p "${1:-dist}"
rm -f "${1:-dist}"/torch_ingot-*.whl
# Not -C: the pip of Debian 12 knows the long form only.
launchers=()
if command -v ccache >/dev/null; then
    launchers=(--config-settings=cmake.define.CMAKE_C_COMPILER_LAUNCHER=ccache --config-settings=cmake.define.CMAKE_CXX_COMPILER_LAUNCHER=ccache)
fi
CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-$(nproc)} "$PYTHON" -m pip wheel . --quiet --no-deps --no-build-isolation \
    --disable-pip-version-check -w "${1:-dist}" --config-settings=build-dir=build --config-settings=cmake.define.INGOT_BUILD_TESTS=ON "${launchers[@]}" \
    "--config-settings=cmake.define.Python_EXECUTABLE=$PYTHON" "--config-settings=cmake.define.Python3_EXECUTABLE=$PYTHON" \
    ${INGOT_PREBUILT_CORE:+--config-settings=cmake.define.INGOT_PREBUILT_CORE="$INGOT_PREBUILT_CORE"}
ls "${1:-dist}"/torch_ingot-*.whl
