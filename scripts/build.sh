#!/usr/bin/env bash
# Configures and builds into the folder $1 (build) and links the libraries into python/ingot, so that
# PYTHONPATH=python works from the tree. Further arguments go to cmake. Settings: PYTHON, JOBS.
set -euo pipefail
cd "$(dirname "$0")/.."
BUILD=${1:-build}
shift || true
PYTHON=${PYTHON:-$PWD/.venv/bin/python}
JOBS=${JOBS:-$(nproc)}

options=(-DCMAKE_BUILD_TYPE=Release "-DPython_EXECUTABLE=$PYTHON" "-DPython3_EXECUTABLE=$PYTHON" "$@")
if command -v ccache >/dev/null; then
    options+=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
fi
# Configure again only when the question changed; a half-configured folder is started afresh.
question=$(printf '%s\n' "$PWD" "${options[@]}" "$("$PYTHON" -c 'import torch; print(torch.__version__)')" | sha256sum)
if [ ! -f "$BUILD/build.ninja" ] || [ "$(cat "$BUILD/.question" 2>/dev/null)" != "$question" ]; then
    rm -rf "$BUILD/CMakeCache.txt" "$BUILD/CMakeFiles" "$BUILD/.question"
    cmake -S . -B "$BUILD" -G Ninja "${options[@]}" >"$BUILD.log" 2>&1 ||
        { cat "$BUILD.log" >&2; exit 1; }
    mkdir -p "$BUILD" && mv "$BUILD.log" "$BUILD/configure.log"
    echo "$question" >"$BUILD/.question"
fi
# Quiet when there is nothing to do; a failed build shows all of its output.
if [ -t 1 ]; then
    cmake --build "$BUILD" -j "$JOBS"
else
    cmake --build "$BUILD" -j "$JOBS" >"$BUILD/build.log" 2>&1 || { tail -n 100 "$BUILD/build.log" >&2; exit 1; }
    echo "built: $BUILD"
fi
if [ "$BUILD" = build ]; then
    find "$PWD/$BUILD" \( -name '_ingot*.so' -o -name 'libingot_*.so' \) -not -path '*/CMakeFiles/*' |
        while read -r library; do ln -sf "$library" "python/ingot/$(basename "$library")"; done
    # The entry point as the wheel has it, so that torch.compile(backend="ingot") works from the tree too.
    version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
    information=python/torch_ingot-$version.dist-info
    mkdir -p "$information"
    printf 'Metadata-Version: 2.1\nName: torch-ingot\nVersion: %s\n' "$version" >"$information/METADATA"
    printf '[torch_dynamo_backends]\ningot = ingot._backend:dynamo_backend\n' >"$information/entry_points.txt"
fi
