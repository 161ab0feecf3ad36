"""A tensor subclass carries a physical unit through __torch_function__; another has no code at all.

Reported: pytorch/pytorch#176679, #176686 (wrong results with __torch_function__), #193932 (matmul of a bare subclass fails).
Right: what eager's override answers, with its unit, its class and its count of calls.
"""

import torch


class Quantity(torch.Tensor):
    calls = 0
    unit = ""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Quantity.calls += 1
        units = [a.unit for a in args if isinstance(a, Quantity)]
        out = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(out, Quantity):
            name = getattr(func, "__name__", "")
            if name in ("mul", "__mul__", "multiply"):
                out.unit = "*".join(u for u in units if u)
            elif name in ("add", "__add__", "sum", "mean"):
                out.unit = units[0] if units else ""
            else:
                out.unit = name + "(" + ",".join(units) + ")"
        return out


class Bare(torch.Tensor):
    pass


def quantity(data, unit):
    out = data.as_subclass(Quantity)
    out.unit = unit
    return out


def energy(mass, speed):
    kinetic = mass * speed * speed
    return (kinetic + kinetic).sum(), torch.exp(kinetic), mass.abs()


def gram(t):
    return t @ t.t() + 1


def run(compile_fn):
    torch.manual_seed(0)
    notes = []
    fast, fast_gram = compile_fn(energy), compile_fn(gram)
    for n in (3, 3, 5):
        Quantity.calls = 0
        results = fast(quantity(torch.rand(n), "kg"), quantity(torch.rand(n), "m/s"))
        notes.append(
            [[r.unit, r.as_subclass(torch.Tensor), type(r).__name__] for r in results]
            + [Quantity.calls]
        )
        plain = fast(torch.rand(n), torch.rand(n))
        notes.append(list(plain))
        out = fast_gram(torch.randn(n, 4).as_subclass(Bare))
        notes.append(
            [type(out).__name__, out.as_subclass(torch.Tensor), fast_gram(torch.randn(n, 4))]
        )
    mixed = fast(quantity(torch.rand(2), "kg"), torch.rand(2))
    notes.append(
        [[r.unit if isinstance(r, Quantity) else None, r.as_subclass(torch.Tensor)] for r in mixed]
    )
    return notes
