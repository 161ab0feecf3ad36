"""Computes the minimax polynomials of src/codegen/llvm/math_coefficients.h. Run by hand:

    python tools/minimax.py > src/codegen/llvm/math_coefficients.h

Remez exchange in multiple precision. Coefficients are then rounded to the precision they are used in one after the
other, lowest power first, and the rest is fitted again each time, so that rounding costs almost nothing.
"""

import mpmath as mp
import numpy as np

mp.mp.prec = 200


def remez(f, weight, powers, lo, hi, grid=600, iterations=12):
    """Coefficients c minimising max |weight(x) * (sum c_i x^powers_i - f(x))| over [lo, hi], and that maximum."""
    lo, hi = mp.mpf(lo), mp.mpf(hi)
    n = len(powers)
    xs = [(lo + hi) / 2 - (hi - lo) / 2 * mp.cos(mp.pi * k / grid) for k in range(grid + 1)]
    ws = [weight(x) for x in xs]
    floor = max(ws) * mp.mpf(2) ** -60
    xs = [x for x, w in zip(xs, ws) if w > floor]
    ws = [w for w in ws if w > floor]
    grid = len(xs) - 1
    fs = [f(x) for x in xs]
    ps = [[x**p for p in powers] for x in xs]
    ref = [round(k * grid / n) for k in range(n + 1)]
    coeffs, error = None, None
    for _ in range(iterations):
        a = mp.matrix(n + 1, n + 1)
        b = mp.matrix(n + 1, 1)
        for row, k in enumerate(ref):
            for col in range(n):
                a[row, col] = ps[k][col]
            a[row, n] = (-1) ** row / ws[k]
            b[row] = fs[k]
        sol = mp.lu_solve(a, b)
        coeffs = [sol[i] for i in range(n)]
        errs = [ws[k] * (mp.fdot(ps[k], coeffs) - fs[k]) for k in range(grid + 1)]
        error = max(abs(e) for e in errs)
        # New reference: the largest error of each run of equal signs.
        runs = []
        for k, e in enumerate(errs):
            if e == 0:
                continue
            if runs and (errs[runs[-1]] > 0) == (e > 0):
                if abs(e) > abs(errs[runs[-1]]):
                    runs[-1] = k
            else:
                runs.append(k)
        while len(runs) > n + 1:
            if len(runs) == n + 2:
                runs.pop(0 if abs(errs[runs[0]]) < abs(errs[runs[-1]]) else -1)
            else:
                i = min(
                    range(len(runs) - 1), key=lambda i: abs(errs[runs[i]]) + abs(errs[runs[i + 1]])
                )
                del runs[i : i + 2]
        if len(runs) < n + 1 or runs == ref:
            break
        ref = runs
    return coeffs, error


def rounded(value, bits):
    return mp.mpf(float(np.float32(float(value)))) if bits == 24 else mp.mpf(float(value))


def fit(name, f, powers, lo, hi, bits, weight=lambda x: mp.mpf(1), absolute=None):
    """Prints a C++ array of coefficients (lowest power first) of precision `bits` (24 or 53)."""
    fixed = []
    left = list(powers)
    error = None
    while left:
        g = lambda x: f(x) - sum(c * x**p for p, c in fixed)
        coeffs, error = remez(g, weight, left, lo, hi)
        fixed.append((left.pop(0), rounded(coeffs[0], bits)))
    xs = [mp.mpf(lo) + (mp.mpf(hi) - lo) * k / 1999 for k in range(1, 1999)]
    error = max(abs(weight(x) * (sum(c * x**p for p, c in fixed) - f(x))) for x in xs)
    hexes = [float(c).hex() for _, c in fixed]
    print(f"// error 2^{float(mp.log(error, 2)):.1f} on [{float(lo):.6g}, {float(hi):.6g}]")
    print(f"inline constexpr double {name}[] = {{")
    line = "   "
    for h in hexes:
        mantissa, exponent = h.split("p")
        if "." in mantissa:
            mantissa = mantissa.rstrip("0").rstrip(".")
        item = f" {mantissa}p{int(exponent)},"
        if len(line) + len(item) > 98:
            print(line)
            line = "   "
        line += item
    print(line)
    print("};")
    return [c for _, c in fixed]


HEADER = """// Minimax polynomials of the vector math, lowest power first. Written by tools/minimax.py; what
// each one approximates stands in tools/minimax_table.py. Those named 32 hold f32 values.
#pragma once

namespace ingot::codegen {
"""

if __name__ == "__main__":
    import pathlib
    import sys

    table = {}
    exec(pathlib.Path(__file__).with_name("minimax_table.py").read_text())
    print(HEADER)
    for entry_name, make in table.items():
        if not sys.argv[1:] or entry_name in sys.argv[1:]:
            make(entry_name)
    print("\n}  // namespace ingot::codegen")
