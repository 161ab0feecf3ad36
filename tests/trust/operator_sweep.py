"""Calls every operator of the installed PyTorch with made-up arguments and looks what it wrote.

`sweep()` gives one row an operator that ran and changed a tensor it was given: whether its version
counter moved, and whether Ingot noted the write. Arguments are made from the schema alone, so many
calls raise; several sizes and types are tried. Operators get arguments that nobody would give them,
and some crash: they run in forked children, and the parent goes on behind the one that did.
"""

import itertools
import json
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives  # registers operators

# Other processes, other devices, files, a debugger, or the process itself.
SKIPPED = ("symm_mem::", "c10d::", "_c10d_functional", "_dtensor::", "rngprims::", "debugprims::")
SKIPPED_WORDS = ("cuda", "cudnn", "miopen", "mps", "xpu", "from_file", "load", "save", "pin_memory",
                 "manual_seed", "_nested", "record_stream", "wait", "print", "sleep", "_assert",
                 "vulkan", "metal", "fork", "share")  # fmt: skip


def operators():
    """Names of all operators, with their schemas."""
    found = []
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        space, rest = name.split("::")
        base, _, overload = rest.partition(".")
        try:
            found.append((name, torch._C._get_schema(f"{space}::{base}", overload)))
        except RuntimeError:
            continue
    return found


def writes(schema):
    return any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)


def _value(kind, name, tensor, number):
    """A value of the schema's type `kind`; `tensor` makes tensors."""
    if kind.startswith("Optional["):
        inner = kind[len("Optional[") : -1]
        return _value(inner, name, tensor, number) if "Tensor" in inner else None
    if kind.startswith("List["):
        inner = kind[len("List[") : -1]
        count = 2 if "Tensor" in inner or name in ("dim", "dims") else number
        if name in ("dim", "dims"):
            return [0, 1]
        return [_value(inner, name, tensor, number) for _ in range(count)]
    if kind == "Tensor":
        return tensor(name)
    if kind in ("int", "SymInt"):
        return 0 if "dim" in name else 1
    if kind in ("float", "SymFloat"):
        return 0.5
    if kind in ("number", "Scalar"):
        return 2
    if kind in ("bool", "SymBool"):
        return name in ("training", "train", "use_input_stats", "update")
    if kind == "str":
        return "mean"
    raise TypeError(kind)


def _arguments(schema, tensor, number):
    positional, named = [], {}
    for a in schema.arguments:
        if a.has_default_value() and "Tensor" not in str(a.type):
            if a.name not in ("training", "train"):
                continue
            value = True
        else:
            value = _value(str(a.type), a.name, tensor, number)
        named[a.name] = value
    return positional, named


def _tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)


_HALVES = {"running_var", "running_mean", "weight", "bias", "save_mean", "save_invstd"}


def _makers():
    """Ways to make the tensors of a call: sizes and types by the argument's name."""

    def plain(shape, dtype=torch.float32):
        def make(name):
            if dtype == torch.float32 and ("ind" in name or name in ("target", "offsets")):
                return torch.zeros(shape, dtype=torch.long)
            if dtype.is_floating_point:
                return torch.rand(shape, dtype=dtype) + 0.5
            return torch.ones(shape, dtype=dtype)

        return make

    def norm(name):
        return torch.rand(2) + 0.5 if name in _HALVES else torch.rand(3, 2, 4) + 0.5

    def step(name):
        return torch.ones(()) if "step" in name else torch.rand(3, 2) + 0.5

    def scales(name):
        return torch.rand(1) + 0.5

    return [(plain((2, 2)), 2), (plain((3,)), 1), (norm, 1), (step, 2), (plain((2, 2, 2)), 3),
            (scales, 1), (plain((1, 2, 4, 4)), 2), (plain((2, 2), torch.long), 2),
            (plain((2, 2), torch.bool), 2), (plain(()), 1),
            (plain((2, 2), torch.complex64), 2)]  # fmt: skip


def _bits(t):
    return t.detach().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)


def _ordinary(t):
    return type(t) is torch.Tensor and t.layout is torch.strided and not t.is_quantized


def call(name, schema, inference):
    """{argument: (counted, noted)} of what the operator wrote, or None where no call succeeded."""
    from ingot import _ingot

    space, rest = name.split("::")
    base, _, overload = rest.partition(".")
    op = getattr(getattr(getattr(torch.ops, space), base), overload or "default")
    ran, found = False, {}
    makers = _makers()
    # An operator that does not say that it writes hardly does; statistics are what it could write.
    for make, number in makers if writes(schema) else (makers[0], makers[2]):
        made = []

        def tensor(argument, make=make, made=made):
            t = make(argument)
            made.append((argument, t))
            return t

        try:
            positional, named = _arguments(schema, tensor, number)
        except TypeError:
            return None
        before = [(a, t, _bits(t).clone(), t._version, _ingot.unseen_changes(t), t.data_ptr())
                  for a, t in made]  # fmt: skip
        try:
            with torch.inference_mode() if inference else torch.no_grad():
                op(*positional, **named)
        except Exception:  # made-up arguments
            continue
        ran = True
        for argument, t, bits, version, noted, place in before:
            # One that has got other memory is another one to whoever looks.
            if not _ordinary(t) or t.data_ptr() != place or _bits(t).shape != bits.shape:
                continue
            if not torch.equal(_bits(t), bits):
                found[argument] = (t._version > version, _ingot.unseen_changes(t) != noted)
        if found:
            return found
    return found if ran else None


def _children(names):
    """Rows (name, inference, result), one child after another; a crash costs one operator."""
    at = 0
    while at < len(names):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            with os.fdopen(writing, "w", buffering=1) as out:
                for name, schema, inference in names[at:]:
                    torch.manual_seed(0)
                    print(json.dumps([name, inference, "begins"]), file=out)
                    print(json.dumps([name, inference, call(name, schema, inference)]), file=out)
            os._exit(0)
        os.close(writing)
        rows = 0
        with os.fdopen(reading) as lines:
            for line in lines:
                row = json.loads(line)
                if row[2] != "begins":
                    rows += 1
                    yield row
        os.waitpid(child, 0)
        at += rows
        if at < len(names):
            yield [names[at][0], names[at][2], "crash"]
            at += 1


def sweep():
    """Rows (name, in inference mode, what `call` gave or 'crash') of all operators."""
    torch.set_num_threads(1)
    from ingot import _ingot

    _ingot.watched_operators()
    wanted = [
        (name, schema, inference)
        for (name, schema), inference in itertools.product(operators(), (False, True))
        if not name.startswith(SKIPPED)
        and not any(w in name.split("::")[1] for w in SKIPPED_WORDS)
        and (writes(schema) or not inference)
    ]
    yield from _children(wanted)


if __name__ == "__main__":
    assert dist.is_available()
    for row in sweep():
        print(json.dumps(row))
        sys.stdout.flush()
