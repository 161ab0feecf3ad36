#!/usr/bin/env bash
# Builds the wheel and tries it where no LLVM and no source tree is: no LLVM symbol exported, no libLLVM needed,
# and a compiled function gives eager's result without a fallback, in an environment of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-$PWD/.venv/bin/python}
# The checkout on the path would pass for an installed package, and pip would install nothing.
unset PYTHONPATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "wheel test: $*" >&2; exit 1; }

scripts/wheel.sh "$work/dist"
"$PYTHON" -m zipfile -e "$work"/dist/*.whl "$work/content"
libraries=$(find "$work/content" -name '*.so*')
echo "$libraries" | grep -q libingot_core || fail "the wheel holds no libingot_core"
echo "$libraries" | grep -q '_ingot\.' || fail "the wheel holds no extension module"
for library in $libraries; do
    # LLVM's C++ names hold its namespace in mangled form, its C interface begins with LLVM.
    exported=$(nm -D --defined-only "$library" | awk '{print $3}' |
        grep -E '^LLVM|^_Z[A-Z]*[NK]*(St[0-9a-zA-Z]*I)?N?K?4llvm' | head -n 3 || true)
    [ -z "$exported" ] || fail "$(basename "$library") exports LLVM symbols:" $exported
    readelf -d "$library" | grep NEEDED | grep -i llvm && fail "$(basename "$library") needs an LLVM library"
    readelf -d "$library" | grep -E 'RPATH|RUNPATH' | grep -v 'ORIGIN' && fail "$(basename "$library") has a fixed path"
done
others=$(nm -D --defined-only -C "$work"/content/ingot/libingot_core.so | grep -v '@@' | grep -cv 'ingot' || true)
[ "$others" = 0 ] || fail "libingot_core.so exports $others names that are not Ingot's"
"$PYTHON" -m venv "$work/venv"
site=$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-index "$work"/dist/*.whl
# PyTorch and what it needs come from the environment that the wheel was built against.
"$PYTHON" -c 'import sys; print(*(p for p in sys.path if p.endswith("-packages")), sep="\n")' >"$site/shared.pth"
cd "$work"
env -i HOME="$work" PATH=/nowhere INGOT_CACHE_DIR="$work/cache" "$work/venv/bin/python" - "$work" <<'PY'
import sys

import torch
import ingot

assert ingot.__file__.startswith(sys.argv[1]), ingot.__file__


def f(x, y):
    return torch.nn.functional.gelu(x) * y + x.sin()


x, y = torch.randn(64, 33), torch.randn(33)
for compiled in (ingot.compile(f), torch.compile(f, backend="ingot")):
    torch.testing.assert_close(compiled(x, y), f(x, y))
stats = ingot.stats()
assert stats.programs >= 1 and not stats.fallbacks, stats
with open("/proc/self/maps") as maps:
    assert not any("libLLVM" in line for line in maps)
print("wheel test: passed", stats.programs, "program(s)")
PY
