// The Triton prelude of generated text: prims that are not one call of triton.language, and
// combining functions.
#pragma once
#include <string_view>

namespace ingot {

inline constexpr std::string_view kTritonPrelude = R"py(import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def floor_div(a, b):
    q = a // b
    return tl.where((a % b != 0) & ((a < 0) != (b < 0)), q - 1, q)


@triton.jit
def floor_mod(a, b):
    return a - b * floor_div(a, b)


@triton.jit
def p_philox(place, seed, offset, threads: tl.constexpr, width: tl.constexpr):
    unit = place // width
    turn = unit // threads
    thread = unit - turn * threads
    drawn = turn
    if width > 1:
        drawn = turn * (4 if width == 2 else width) + place % width
    block = (offset >> 2) + (drawn >> 2)
    c0 = (block & 0xFFFFFFFF).to(tl.uint32)
    c1 = ((block >> 32) & 0xFFFFFFFF).to(tl.uint32)
    c2 = (thread & 0xFFFFFFFF).to(tl.uint32)
    c3 = (thread * 0).to(tl.uint32)
    k0 = (seed & 0xFFFFFFFF).to(tl.uint32)
    k1 = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    for _ in tl.static_range(10):
        x = c0.to(tl.uint64) * 0xD2511F53
        y = c2.to(tl.uint64) * 0xCD9E8D57
        c0 = (y >> 32).to(tl.uint32) ^ c1 ^ k0
        c1 = y.to(tl.uint32)
        c2 = (x >> 32).to(tl.uint32) ^ c3 ^ k1
        c3 = x.to(tl.uint32)
        k0 = (k0.to(tl.uint64) + 0x9E3779B9).to(tl.uint32)
        k1 = (k1.to(tl.uint64) + 0xBB67AE85).to(tl.uint32)
    odd = (drawn & 1) != 0
    chosen = tl.where((drawn & 2) != 0, tl.where(odd, c3, c2), tl.where(odd, c1, c0))
    return chosen.to(tl.int64)


@triton.jit
def p_maximum(a, b):
    return tl.where((a != a) | (a > b), a, b)


@triton.jit
def p_minimum(a, b):
    return tl.where((a != a) | (a < b), a, b)


@triton.jit
def p_fmax(a, b):
    return tl.where((b != b) | (a > b), a, b)


@triton.jit
def p_fmin(a, b):
    return tl.where((b != b) | (a < b), a, b)


@triton.jit
def p_clamp(x, low, high):
    return p_minimum(p_maximum(x, low), high)


@triton.jit
def p_relu(x):
    return tl.where(x <= 0, x * 0, x)


@triton.jit
def p_sigmoid(x):
    return 1.0 / (1.0 + libdevice.exp(-x))


@triton.jit
def p_sign(x):
    return tl.where(x > 0, x * 0 + 1, tl.where(x < 0, x * 0 - 1, x * 0))


@triton.jit
def p_lerp(a, b, w):
    return tl.where(tl.abs(w) < 0.5, a + w * (b - a), b - (b - a) * (1.0 - w))


@triton.jit
def p_xlogy(a, b):
    return tl.where(b != b, b, tl.where(a == 0, a * 0, a * libdevice.log(b)))


@triton.jit
def p_xlog1py(a, b):
    return tl.where(b != b, b, tl.where(a == 0, a * 0, a * libdevice.log1p(b)))


@triton.jit
def p_float_remainder(a, b):
    m = libdevice.fmod(a, b)
    return tl.where((m != 0) & ((b < 0) != (m < 0)), m + b, m)


@triton.jit
def p_float_floor_div(a, b):
    m = libdevice.fmod(a, b)
    d = (a - m) / b
    d = tl.where((m != 0) & ((b < 0) != (m < 0)), d - 1, d)
    f = libdevice.floor(d)
    f = tl.where(d - f > 0.5, f + 1, f)
    return tl.where(b == 0, a / b, tl.where(d == 0, libdevice.copysign(d * 0, a / b), f))


@triton.jit
def p_int_trunc_div(a, b):
    return tl.where(b == 0, 0, a // tl.where(b == 0, 1, b))


@triton.jit
def p_int_floor_div(a, b):
    return tl.where(b == 0, 0, floor_div(a, tl.where(b == 0, 1, b)))


@triton.jit
def p_int_remainder(a, b):
    return tl.where(b == 0, 0, floor_mod(a, tl.where(b == 0, 1, b)))


@triton.jit
def p_int_fmod(a, b):
    return tl.where(b == 0, 0, a % tl.where(b == 0, 1, b))


@triton.jit
def combine_add(a, b):
    return a + b


@triton.jit
def combine_mul(a, b):
    return a * b


@triton.jit
def combine_and(a, b):
    return a & b


@triton.jit
def combine_or(a, b):
    return a | b


@triton.jit
def combine_xor(a, b):
    return a ^ b


@triton.jit
def better_max(a, i, b, j):
    return tl.where(b != b, (a != a) & (i < j), (a != a) | (a > b) | ((a == b) & (i < j)))


@triton.jit
def better_min(a, i, b, j):
    return tl.where(b != b, (a != a) & (i < j), (a != a) | (a < b) | ((a == b) & (i < j)))


@triton.jit
def combine_argmax(a, i, b, j):
    first = better_max(a, i, b, j)
    return tl.where(first, a, b), tl.where(first, i, j)


@triton.jit
def combine_argmin(a, i, b, j):
    first = better_min(a, i, b, j)
    return tl.where(first, a, b), tl.where(first, i, j)
)py";

}  // namespace ingot
