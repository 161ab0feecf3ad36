"""What a program of this folder returned, in a form that crosses processes, and what differs
between two such.

Exact where eager is exact: types, sizes, strides, dtypes, integers, texts, keys and their order.
Floating numbers may differ by a share of their tensor's largest magnitude that depends on the
dtype (`TOLERANCE`), times the factor that a program may name (`TOL`, for training, where
differences grow).
"""

import math

import numpy as np
import torch

# dtype: (relative to each number, relative to the tensor's largest, absolute)
TOLERANCE = {
    torch.float64: (1e-8, 1e-9, 1e-14),
    torch.float32: (1e-4, 1e-5, 1e-7),
    torch.bfloat16: (1.6e-2, 1e-2, 1e-6),
    torch.float16: (3e-3, 2e-3, 1e-6),
}
REAL_OF = {torch.complex128: torch.float64, torch.complex64: torch.float32}


def describe(value):
    """A copy of nested containers, tensors, arrays, numbers and texts that pickles and compares."""
    if isinstance(value, torch.Tensor):
        return describe_tensor(value)
    if isinstance(value, (np.ndarray, np.generic)):
        return {"numpy": type(value).__name__, "dtype": str(value.dtype), "shape": value.shape}, (
            value.tolist()
        )
    if value is None or isinstance(value, (bool, int, float, complex, str)):
        return value
    if isinstance(value, dict):
        return type(value).__name__, [(describe(k), describe(v)) for k, v in value.items()]
    if isinstance(value, (set, frozenset)):
        return type(value).__name__, [describe(v) for v in sorted(value, key=repr)]
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [describe(v) for v in value]
    return "object", type(value).__name__


def describe_tensor(value):
    plain = value.detach()
    if type(plain) not in (torch.Tensor, torch.nn.Parameter):
        if hasattr(plain, "full_tensor"):  # DTensor
            plain = plain.full_tensor()
        plain = plain.as_subclass(torch.Tensor)
    about = {
        "class": type(value).__name__,
        "dtype": value.dtype,
        "shape": tuple(value.shape),
        "requires_grad": value.requires_grad,
    }
    if plain.is_nested:
        return about, [describe(part) for part in plain.unbind()]
    if plain.is_quantized:
        return about, describe(plain.dequantize())
    if plain.layout is not torch.strided:
        return about | {"layout": str(plain.layout)}, plain.to_dense().contiguous()
    # Strides of axes of size one, and of tensors without elements, say nothing.
    if plain.numel():
        about["stride"] = [s for s, n in zip(plain.stride(), plain.shape, strict=True) if n > 1]
    return about, plain.clone().contiguous().resolve_conj().resolve_neg()


def differences(expected, found, scale=1.0, where="result", noisy=()):
    """What differs, a sentence each; `scale` widens the tolerances.

    `noisy` are what the program returned in eager runs whose products and sums were off by a
    rounding each: where those are as far from eager as the compiled run is, up to eight times,
    the program enlarges roundings, and that is no difference.
    """
    if type(expected) is not type(found):
        return [f"{where}: {brief(expected)} became {brief(found)}"]
    if isinstance(expected, torch.Tensor):
        return tensor_differences(expected, found, scale, where, noisy)
    if isinstance(expected, (float, complex)):
        far = max((abs(expected - n) for n in noisy if type(n) is type(expected)), default=0.0)
        right = close(expected, found, scale) or abs(expected - found) <= 8 * far
        return [] if right else [f"{where}: {expected!r} became {found!r}"]
    raised = raised_kinds(expected), raised_kinds(found)
    if all(raised):  # an exception is right if it is of eager's class or one derived from it
        right = raised[0][0] in raised[1]
        return [] if right else [f"{where}: raised {raised[0][0]}, became {raised[1][0]}"]
    if isinstance(expected, (list, tuple)):
        if len(expected) != len(found):
            return [f"{where}: length {len(expected)} became {len(found)}"]
        return [
            line
            for k, (a, b) in enumerate(zip(expected, found, strict=True))
            for line in differences(
                a, b, scale, f"{where}.{k}", [n[k] for n in noisy if same_length(n, expected)]
            )
        ]
    if isinstance(expected, dict):  # what describe_tensor says about a tensor
        return [
            f"{where}: {key} {expected.get(key)} became {found.get(key)}"
            for key in expected.keys() | found.keys()
            if expected.get(key) != found.get(key)
        ]
    return [] if expected == found else [f"{where}: {expected!r} became {found!r}"]


def same_length(noisy, expected):
    return type(noisy) is type(expected) and len(noisy) == len(expected)


def raised_kinds(described):
    """The classes of an exception reported as {'raised': name, 'kinds': names}, or None."""
    if not (isinstance(described, tuple) and len(described) == 2 and described[0] == "dict"):
        return None
    entries = {k: v for k, v in described[1] if isinstance(k, str)}
    if "raised" not in entries:
        return None
    kinds = entries.get("kinds")
    return [entries["raised"], *(kinds[1] if isinstance(kinds, tuple) else [])]


def close(a, b, scale):
    if isinstance(a, float) and (math.isnan(a) or math.isnan(b)):
        return math.isnan(a) and math.isnan(b)
    return a == b or abs(a - b) <= 2e-4 * scale * max(abs(a), 1e-2)


def tensor_differences(a, b, scale, where, noisy=()):
    if a.shape != b.shape or a.dtype != b.dtype:
        return [f"{where}: {brief(a)} became {brief(b)}"]
    if not (a.is_floating_point() or a.is_complex()):
        wrong = a != b
        return [f"{where}: {int(wrong.sum())} of {a.numel()} differ"] if wrong.any() else []
    tolerance = TOLERANCE.get(REAL_OF.get(a.dtype, a.dtype), TOLERANCE[torch.bfloat16])
    relative, of_largest, absolute = (t * scale for t in tolerance)
    noisy = [n for n in noisy if isinstance(n, torch.Tensor) and n.shape == a.shape]
    a, b, *noisy = (torch.view_as_real(t) if t.is_complex() else t for t in (a, b, *noisy))
    a, b, *noisy = (t.double() for t in (a, b, *noisy))
    far = max((float((n - a).abs().nan_to_num(0.0, 0.0).max()) for n in noisy), default=0.0)
    finite = a[a.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    allowed = max(of_largest * largest + absolute, 8 * far)
    wrong = ~torch.isclose(b, a, rtol=relative, atol=allowed, equal_nan=True)
    if not wrong.any():
        return []
    k = int(wrong.flatten().nonzero()[0])
    pair = f"{a.flatten()[k].item():.9g} became {b.flatten()[k].item():.9g}"
    return [f"{where}: {int(wrong.sum())} of {a.numel()} differ, e.g. {pair}"]


def brief(value):
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{tuple(value.shape)}"
    return repr(value)[:160]
