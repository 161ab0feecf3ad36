"""Writes reference_cases.ir: for every prim that PyTorch has, a graph over constants that returns
its result and, next to it, PyTorch's. Run it again when a prim is added:

    python tests/ir/make_reference_cases.py
"""

import math
import pathlib

import torch
import torch.nn.functional as F

torch.manual_seed(0)
NAMES = {
    torch.bool: "b8",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.complex64: "c64",
    torch.complex128: "c128",
}
cases = []


def attr(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, torch.dtype):
        return NAMES[value]
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(map(str, value)) + ")"
    return str(value)


def type_of(t):
    return f"{NAMES[t.dtype]}[{', '.join(map(str, t.shape))}]"


def constant(t):
    data = t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes().hex()
    return f"constant() {{dtype={NAMES[t.dtype]}, sizes={attr(tuple(t.shape))}, data=0x{data}}}"


def case(prim, operands, attrs, results):
    if isinstance(results, torch.Tensor):
        results = [results]
    text = "graph() {\n"
    for i, t in enumerate(operands):
        text += f"  %a{i}: {type_of(t)} = {constant(t)}\n"
    got = ", ".join(f"%r{i}: {type_of(t)}" for i, t in enumerate(results))
    given = ", ".join(f"{k}={attr(v)}" for k, v in attrs.items())
    text += f"  {got} = {prim}({', '.join(f'%a{i}' for i in range(len(operands)))})"
    text += f" {{{given}}}\n" if given else "\n"
    for i, t in enumerate(results):
        text += f"  %w{i}: {type_of(t)} = {constant(t)}\n"
    pairs = ", ".join(f"%r{i}, %w{i}" for i in range(len(results)))
    cases.append(text + f"  return {pairs}\n}}\n")


SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, 1e-5, -3.7, 7.25, 30.0]
SPECIAL += [math.inf, -math.inf, math.nan]
REAL = torch.tensor(SPECIAL + torch.randn(10).tolist(), dtype=torch.float64)
INTS = torch.tensor([0, 1, -1, 2, -7, 100, -128, 127, 3, 5], dtype=torch.int64)
COMPLEX = torch.randn(8, dtype=torch.complex128)


def named(module, names):
    return {name: getattr(module, name) for name in names.split()}


def pointwise():
    s = torch.special
    unary = named(
        torch,
        "abs acos acosh angle asin asinh atan atanh ceil cos cosh digamma erf erfc erfinv exp exp2 "
        "expm1 floor frac isfinite isinf isnan lgamma log log10 log1p log2 logical_not neg "
        "reciprocal relu round rsqrt sigmoid signbit sin sinc sinh sqrt tan tanh trunc",
    )
    unary |= named(
        s,
        "bessel_j0 bessel_j1 bessel_y0 bessel_y1 erfcx log_ndtr modified_bessel_k0 "
        "modified_bessel_k1 ndtri spherical_bessel_j0",
    )
    unary |= {"bessel_i0": s.i0, "bessel_i0e": s.i0e, "bessel_i1": s.i1, "bessel_i1e": s.i1e}
    unary["sign"] = torch.sgn
    no_infinity = [n for n in unary if "bessel" in n] + ["digamma", "frac"]
    for name, f in unary.items():
        x = REAL[torch.isfinite(REAL)] if name in no_infinity else REAL
        case(name, [x], {}, f(x))
        if name in {"sin", "exp", "tanh", "sqrt", "neg", "round", "sigmoid"}:
            for t in (torch.float32, torch.bfloat16, torch.float16):
                case(name, [x.to(t)], {}, f(x.to(t)))
    complex_too = named(
        torch,
        "acos acosh asin asinh atan atanh abs angle cos cosh exp expm1 log log10 log1p log2 neg "
        "reciprocal rsqrt sigmoid sgn sin sinh sqrt tan tanh",
    )
    for name, f in complex_too.items():
        case(name.replace("sgn", "sign"), [COMPLEX], {}, f(COMPLEX))
    case("conj", [COMPLEX], {}, torch.conj_physical(COMPLEX))
    case("real", [COMPLEX], {}, torch.real(COMPLEX).clone())
    case("imag", [COMPLEX], {}, torch.imag(COMPLEX).clone())
    for t in (torch.int8, torch.int32, torch.int64, torch.uint8):
        x = INTS.to(t)
        for name in ("abs", "neg", "sign", "relu", "logical_not"):
            if t is torch.uint8 and name == "relu":
                continue
            case(name, [x], {}, unary[name](x))
        case("bitwise_not", [x], {}, ~x)
    for d in (0, 2, -1):
        case("round_decimals", [REAL * 13], {"decimals": d}, torch.round(REAL * 13, decimals=d))
        x = (REAL * 13).float()
        case("round_decimals", [x], {"decimals": d}, torch.round(x, decimals=d))
    for n in (0, 1, 2, 3):
        x = torch.rand(8, dtype=torch.float64) * 5 + 0.1
        case("polygamma", [x], {"order": n}, torch.polygamma(n, x))


def binary():
    s = torch.special
    left = torch.tensor([0.0, -0.0, 1.0, -3.7, 7.25, 0.1, math.inf, math.nan], dtype=torch.float64)
    a = left.repeat_interleave(6)
    b = torch.tensor([2.0, -1.5, 0.0, 3.0, math.inf, math.nan], dtype=torch.float64).repeat(
        len(left)
    )
    floating = named(
        torch,
        "add sub mul div fmod remainder pow atan2 hypot copysign nextafter maximum minimum fmax "
        "fmin xlogy eq ne lt le gt ge logical_and logical_or logical_xor",
    )
    floating |= {"floor_div": torch.floor_divide, "xlog1py": s.xlog1py}
    for name, f in floating.items():
        for t in (torch.float64, torch.float32):
            if name == "fmod" or name == "remainder" or name == "floor_div":
                keep = torch.isfinite(a) & torch.isfinite(b)
            else:
                keep = torch.ones_like(a, dtype=torch.bool)
            x, y = a[keep].to(t), b[keep].to(t)
            case(name, [x, y], {}, f(x, y))
    case("trunc_div", [a, b], {}, torch.div(a, b, rounding_mode="trunc"))
    for t in (torch.bfloat16, torch.float16):
        for name in ("add", "mul", "div", "nextafter"):
            if name == "nextafter" and t is torch.float16:
                continue
            case(name, [a.to(t), b.to(t)], {}, floating[name](a.to(t), b.to(t)))
    ia = INTS.repeat_interleave(4)
    ib = torch.tensor([1, -1, 3, 5]).repeat(len(INTS))
    integer = named(
        torch,
        "add sub mul fmod remainder maximum minimum gcd lcm bitwise_and bitwise_or bitwise_xor lt "
        "ge eq",
    )
    integer["floor_div"] = torch.floor_divide
    for name, f in integer.items():
        for t in (torch.int64, torch.int32, torch.int8):
            x = ia.clamp(min=-127) if name in ("gcd", "lcm") else ia
            case(name, [x.to(t), ib.to(t)], {}, f(x.to(t), ib.to(t)))
    case("trunc_div", [ia, ib], {}, torch.div(ia, ib, rounding_mode="trunc"))
    shifts = torch.tensor([0, 1, 3, 7]).repeat(len(INTS))
    for t in (torch.int64, torch.int32):
        case("shift_left", [ia.to(t), shifts.to(t)], {}, ia.to(t) << shifts.to(t))
        case("shift_right", [ia.to(t), shifts.to(t)], {}, ia.to(t) >> shifts.to(t))
        case("pow", [ia.to(t), shifts.to(t)], {}, ia.to(t) ** shifts.to(t))
    c, d = COMPLEX, COMPLEX.flip(0)
    for name in ("add", "sub", "mul", "div", "pow", "eq"):
        case(name, [c, d], {}, floating[name](c, d))
    case("complex", [REAL, REAL.flip(0)], {}, torch.complex(REAL, REAL.flip(0)))
    p, q = torch.rand(12, dtype=torch.float64) * 8 + 0.1, torch.rand(12, dtype=torch.float64) * 12
    case("igamma", [p, q], {}, torch.special.gammainc(p, q))
    case("igammac", [p, q], {}, torch.special.gammaincc(p, q))
    case("zeta", [p + 1.5, q + 0.3], {}, s.zeta(p + 1.5, q + 0.3))
    x = torch.rand(12, dtype=torch.float64) * 2.4 - 1.2
    n = torch.arange(12, dtype=torch.float64)
    case("chebyshev_polynomial_t", [x, n], {}, s.chebyshev_polynomial_t(x, n))
    case("chebyshev_polynomial_u", [x, n], {}, s.chebyshev_polynomial_u(x, n))
    case("hermite_polynomial_h", [x, n], {}, s.hermite_polynomial_h(x, n))
    case("laguerre_polynomial_l", [x, n], {}, s.laguerre_polynomial_l(x, n))
    case("legendre_polynomial_p", [x, n], {}, s.legendre_polynomial_p(x, n))
    y, w = REAL.flip(0), torch.rand(len(REAL), dtype=torch.float64)
    case("select", [REAL > 0, REAL, y], {}, torch.where(REAL > 0, REAL, y))
    case(
        "clamp",
        [REAL, torch.minimum(y, w), torch.maximum(y, w)],
        {},
        torch.clamp(REAL, torch.minimum(y, w), torch.maximum(y, w)),
    )
    for t in (torch.float64, torch.float32):
        u, v = torch.randn(20).to(t), torch.randn(20).to(t)
        w2 = torch.rand(20).to(t)
        case("lerp", [u, v, w2], {}, torch.lerp(u, v, w2))


def conversions():
    values = torch.tensor([0.0, -0.0, 1.0, -1.5, 2.5, 100.7, 1e-9, 3.0], dtype=torch.float64)
    for source in (
        torch.float64,
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.int64,
        torch.int8,
        torch.bool,
        torch.complex64,
    ):
        for target in NAMES:
            if target is torch.uint8 and source.is_floating_point:
                x = values.abs().to(source)
            else:
                x = values.to(source)
            if source.is_complex and not target.is_complex:
                continue
            case("convert", [x], {"dtype": target}, x.to(target))
    big = torch.tensor([16777217, 2**53 + 1, -(2**62) - 1, 2**63 - 1], dtype=torch.int64)
    for target in (torch.float32, torch.float64, torch.bfloat16, torch.int32):
        case("convert", [big], {"dtype": target}, big.to(target))
    x = torch.randn(6)
    case("bitcast", [x], {"dtype": torch.int32}, x.view(torch.int32))


def reductions():
    x = torch.randn(3, 4, 5, dtype=torch.float64)
    nan = x.clone()
    nan[1, 2, 3] = math.nan
    i = torch.randint(-5, 6, (3, 4, 5))
    for dims in ([0], [1], [2], [0, 2], [0, 1, 2]):
        d = tuple(dims)
        case("sum", [x], {"dims": d}, x.sum(d))
        case("sum", [i], {"dims": d}, i.sum(d))
        case("amax", [nan], {"dims": d}, nan.amax(d))
        case("amin", [i], {"dims": d}, i.amin(d))
        case("var", [x], {"dims": d, "correction": 1.0}, x.var(d, correction=1))
        case("norm2", [x], {"dims": d}, torch.linalg.vector_norm(x, dim=d))
        case(
            "all",
            [i > -5],
            {"dims": d},
            (i > -5).all(d) if len(d) == 1 else torch.amin((i > -5).int(), d).bool(),
        )
        case("any", [i], {"dims": d}, (i != 0).int().amax(d).bool())
    for d in range(3):
        case("prod", [x], {"dims": (d,)}, x.prod(d))
        case("argmax", [nan], {"dims": (d,)}, nan.argmax(d))
        case("argmin", [x], {"dims": (d,)}, x.argmin(d))
        case("cumsum", [x], {"dim": d}, x.cumsum(d))
        case("cumsum", [i], {"dim": d}, i.cumsum(d))
        case("cumprod", [x], {"dim": d}, x.cumprod(d))
        case("cummax", [i], {"dim": d}, list(i.cummax(d)))
        case("cummin", [nan], {"dim": d}, list(nan.cummin(d)))
        case("logcumsumexp", [x], {"dim": d}, x.logcumsumexp(d))
        for descending in (False, True):
            case(
                "sort",
                [nan],
                {"dim": d, "descending": descending, "stable": True},
                list(torch.sort(nan, dim=d, descending=descending, stable=True)),
            )
        case("topk", [x], {"dim": d, "k": 2, "largest": True, "sorted": True}, list(x.topk(2, d)))
        case(
            "topk",
            [x],
            {"dim": d, "k": 2, "largest": False, "sorted": True},
            list(x.topk(2, d, largest=False)),
        )
        case("kthvalue", [x], {"dim": d, "k": 2}, list(x.kthvalue(2, d)))
        case("median", [x], {"dim": d, "ignore_nan": False}, list(x.median(d)))
        case("median", [nan], {"dim": d, "ignore_nan": True}, list(nan.nanmedian(d)))
    b = i != 0
    case("xor_sum", [b], {"dims": (1,)}, b.sum(1) % 2 == 1)
    case("argmax", [x], {"dims": (0, 1, 2)}, x.argmax())
    z = torch.randn(4, 3, dtype=torch.complex128)
    case("sum", [z], {"dims": (0,)}, z.sum(0))
    case("trace", [torch.arange(12.0).reshape(3, 4)], {}, torch.arange(12.0).reshape(3, 4).trace())
    a, h, out = torch.rand(6, dtype=torch.float64), torch.zeros((), dtype=torch.float64), []
    b = torch.randn(6, dtype=torch.float64)
    for t in range(6):
        h = a[t] * h + b[t]
        out.append(h)
    case("linear_scan", [a, b], {"dim": 0}, torch.stack(out))


def movement():
    x = torch.arange(24.0).reshape(2, 3, 4)
    case("permute", [x], {"dims": (2, 0, 1)}, x.permute(2, 0, 1))
    case(
        "broadcast",
        [x[:, :1, 0]],
        {"sizes": (3, 2, 5), "dims": (1, 2)},
        x[:, :1, 0].expand(3, 2, 5),
    )
    case("reshape", [x], {"sizes": (6, 4)}, x.reshape(6, 4))
    case("slice", [x], {"starts": (0, 1, 0), "ends": (2, 3, 4), "steps": (1, 1, 3)}, x[:, 1:3, ::3])
    case("flip", [x], {"dims": (0, 2)}, x.flip(0, 2))
    case(
        "pad",
        [x],
        {"low": (0, 1, 2), "high": (1, 0, -1), "value": 7.5},
        F.pad(x, (2, -1, 1, 0, 0, 1), value=7.5),
    )
    case("concat", [x, x[:, :1]], {"dim": 1}, torch.cat([x, x[:, :1]], 1))
    case(
        "window",
        [x],
        {"dims": (2, 1), "sizes": (2, 2), "steps": (2, 1), "dilations": (1, 1)},
        x.unfold(2, 2, 2).unfold(1, 2, 1),
    )
    for offset in (-1, 0, 2):
        case("diagonal", [x], {"dim1": 0, "dim2": 2, "offset": offset}, x.diagonal(offset, 0, 2))
        d = x.diagonal(offset, 0, 2)
        case(
            "update_diagonal",
            [x, d * 0 - 1],
            {"dim1": 0, "dim2": 2, "offset": offset},
            x.diagonal_scatter(d * 0 - 1, offset, 0, 2),
        )
    case(
        "as_strided",
        [x],
        {"sizes": (3, 4), "strides": (2, 5), "offset": 1},
        x.as_strided((3, 4), (2, 5), 1),
    )
    y = x.clone()
    y.as_strided((3, 2), (2, 7), 1).copy_(-torch.ones(3, 2))
    case("update_strided", [x, -torch.ones(3, 2)], {"strides": (2, 7), "offset": 1}, y)
    y = x.clone()
    y[:, 1:3, 0:4:2] = -1
    case("update", [x, -torch.ones(2, 2, 2)], {"starts": (0, 1, 0), "steps": (1, 1, 2)}, y)
    z = torch.view_as_complex(x.reshape(2, 6, 2))
    case("view_as_real", [z], {}, torch.view_as_real(z))
    case("view_as_complex", [x.reshape(2, 6, 2)], {}, z)
    case("view_bits", [x], {"dtype": torch.int16}, x.view(torch.int16))
    case(
        "iota",
        [],
        {"dtype": torch.float32, "sizes": (2, 5), "dim": 1, "start": 1.0, "step": 0.5},
        torch.arange(1, 3.5, 0.5).expand(2, 5),
    )


def indexing():
    x = torch.randn(5, 3, 4)
    i = torch.randint(0, 5, (3, 3, 4))
    case("gather", [x, i], {"dim": 0}, x.gather(0, i))
    src = torch.randn(3, 3, 4)
    perm = torch.stack([torch.randperm(5)[:3] for _ in range(12)], 1).reshape(3, 3, 4)
    case("scatter", [x, perm, src], {"dim": 0}, x.scatter(0, perm, src))
    for how in ("sum", "prod", "mean", "amax", "amin"):
        for include in (True, False):
            case(
                "scatter_reduce",
                [x, i, src],
                {"dim": 0, "reduce": how, "include_self": include},
                x.scatter_reduce(0, i, src, how, include_self=include),
            )
    a, b = torch.tensor([[0, -1], [-3, 2]]), torch.tensor([[1, 1], [-4, 3]])
    case("take", [x, a], {"dims": (0,)}, x[a])
    case("take", [x, a], {"dims": (1,)}, x[:, a])
    case("take", [x, a, b], {"dims": (0, 2)}, x.permute(0, 2, 1)[a, b])
    case("take", [x, a, b], {"dims": (1, 2)}, x[:, a, b])
    values = torch.randn(5, 2, 2)
    case(
        "put",
        [x, values, a, b],
        {"dims": (1, 2), "accumulate": False},
        x.index_put((torch.arange(5)[:, None, None], a, b), values),
    )
    same = torch.zeros(2, 2, dtype=torch.int64)
    case(
        "put",
        [x, values, same, same],
        {"dims": (1, 2), "accumulate": True},
        x.index_put(
            (
                torch.arange(5)[:, None, None].expand(5, 2, 2),
                same.expand(5, 2, 2),
                same.expand(5, 2, 2),
            ),
            values,
            accumulate=True,
        ),
    )
    mask = x > 0
    source = torch.randn(5 * 3 * 4)
    case("masked_scatter", [x, mask, source], {}, x.masked_scatter(mask, source))
    sorted_rows = torch.randn(3, 8).sort(1)[0]
    wanted = torch.cat([sorted_rows[:, 2:4], torch.randn(3, 3)], 1)
    for right in (False, True):
        case(
            "searchsorted",
            [sorted_rows, wanted],
            {"dtype": torch.int64, "right": right},
            torch.searchsorted(sorted_rows, wanted, right=right),
        )
    n = torch.randint(0, 2, (3, 4))
    case("nonzero", [n], {"count": int((n != 0).sum())}, n.nonzero())
    v = torch.randint(0, 6, (20,))
    case("bincount", [v], {"count": 6}, torch.bincount(v, minlength=6))
    w, at, off = torch.randn(9, 4), torch.randint(0, 9, (10,)), torch.tensor([0, 3, 3, 7])
    for mode in ("sum", "mean", "max"):
        case("embedding_bag", [w, at, off], {"mode": mode}, F.embedding_bag(at, w, off, mode=mode))
    img = torch.randn(1, 2, 7, 8)
    for ceil in (False, True):
        out, where = F.max_pool2d(img, (3, 2), (2, 2), (1, 0), (2, 1), ceil, True)
        case(
            "max_pool_indices",
            [img],
            {
                "kernel": (3, 2),
                "stride": (2, 2),
                "padding": (1, 0),
                "dilation": (2, 1),
                "ceil": ceil,
            },
            [out, where],
        )
    leaf = img.clone().requires_grad_()
    out, where = F.max_pool2d(leaf, 3, 2, return_indices=True)
    grad = torch.randn_like(out)
    out.backward(grad)
    case("max_pool_grad", [grad, where], {"sizes": tuple(img.shape)}, leaf.grad)


def contractions():
    a, b = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    case("matmul", [a, b], {}, a @ b)
    c = torch.randint(-100, 100, (3, 4), dtype=torch.int32)
    case("matmul", [c, c.T.contiguous()], {}, c @ c.T)
    for transposed in (False, True):
        for groups in (1, 2):
            x = torch.randn(2, 4, 7, 6, dtype=torch.float64, requires_grad=True)
            shape = (4, 6 // groups, 3, 2) if transposed else (6, 4 // groups, 3, 2)
            w = torch.randn(*shape, dtype=torch.float64, requires_grad=True)
            extra = (1, 0) if transposed else (0, 0)
            attrs = {
                "stride": (2, 1),
                "padding": (1, 1),
                "dilation": (1, 2),
                "groups": groups,
                "transposed": transposed,
                "output_padding": extra,
            }
            f = F.conv_transpose2d if transposed else F.conv2d
            kw = {"output_padding": extra} if transposed else {}
            y = f(x, w, stride=(2, 1), padding=(1, 1), dilation=(1, 2), groups=groups, **kw)
            case("conv", [x.detach(), w.detach()], attrs, y.detach())
            g = torch.randn_like(y)
            y.backward(g)
            case("conv_grad_input", [g, w.detach()], {"sizes": tuple(x.shape), **attrs}, x.grad)
            case("conv_grad_weight", [g, x.detach()], {"sizes": tuple(w.shape), **attrs}, w.grad)
    x, w = torch.randn(2, 3, 9), torch.randn(5, 3, 4)
    case(
        "conv",
        [x, w],
        {
            "stride": (2,),
            "padding": (1,),
            "dilation": (1,),
            "groups": 1,
            "transposed": False,
            "output_padding": (0,),
        },
        F.conv1d(x, w, stride=2, padding=1),
    )
    q = torch.randn(2, 4, 5, 8, dtype=torch.float64)
    k, v = (torch.randn(2, 2, 6, 8, dtype=torch.float64) for _ in range(2))
    rk, rv = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    mask = torch.rand(2, 1, 5, 6) > 0.3
    mask[..., 0] = True
    extra = torch.randn(1, 4, 5, 6, dtype=torch.float64)

    def reference(mask=None, causal=False):
        s = q @ rk.transpose(-1, -2) * 0.3
        if causal:
            s = s.masked_fill(~torch.ones(5, 6).tril().bool(), -math.inf)
        if mask is not None:
            s = s.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else s + mask
        return s.softmax(-1) @ rv, s.logsumexp(-1).float()

    for m, causal in ((None, False), (None, True), (mask, False), (extra, False)):
        operands = [q, k, v] + ([m] if m is not None else [])
        case(
            "attention",
            operands,
            {"scale": 0.3, "causal": causal, "logsumexp": True},
            list(reference(m, causal)),
        )
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    s = leaves[0] @ leaves[1].repeat_interleave(2, 1).transpose(-1, -2) * 0.3
    out = s.softmax(-1) @ leaves[2].repeat_interleave(2, 1)
    g = torch.randn_like(out)
    out.backward(g)
    case(
        "attention_grad",
        [g, q, k, v, out.detach(), s.logsumexp(-1).detach().float()],
        {"scale": 0.3, "causal": False},
        [t.grad for t in leaves],
    )
    for p in (0.0, 1.0, 2.0, 3.0, math.inf):
        x, y = torch.randn(2, 4, 3, dtype=torch.float64), torch.randn(2, 5, 3, dtype=torch.float64)
        case("cdist", [x, y], {"p": p}, torch.cdist(x, y, p))
    a = torch.randint(-128, 128, (3, 6), dtype=torch.int8)
    b = torch.randint(-128, 128, (6, 4), dtype=torch.int8)
    r, c = torch.rand(3), torch.rand(4)
    case(
        "quantized_matmul",
        [a, b, r, c],
        {"dtype": torch.float32},
        ((a.long() @ b.long()).double() * r[:, None].double() * c[None].double()).float(),
    )


for family in (pointwise, binary, conversions, reductions, movement, indexing, contractions):
    family()
path = pathlib.Path(__file__).with_name("reference_cases.ir")
path.write_text("===\n".join(cases))
print(len(cases), "cases,", path.stat().st_size, "bytes")
