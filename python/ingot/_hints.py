"""What to do about a break, by its reason: one table of phrases, the first that is found counts."""

from __future__ import annotations

LIMIT = (
    "dynamic=True or ingot.mark_dynamic for sizes and numbers that change, recompile_limit= for "
    "more recordings"
)

_TABLE = (
    ("a tensor decides a branch", "torch.where for both sides, or decide outside"),
    ("data of a tensor", "keep it a tensor, or move the use of its value behind the compiled part"),
    ("a tensor is an index", "index with the tensor itself (torch.index_select, gather)"),
    ("a tensor as text", "print or format it outside"),
    ("print", "call it outside, or under ingot.disable"),
    ("logging", "log outside, or under ingot.disable"),
    ("subclass", "compile what works on its plain tensors"),
    ("traces Python", "compile outside of debuggers, coverage and profilers of Python"),
    ("anomaly detection", "compiled code runs without torch.autograd.detect_anomaly only"),
    ("saved-tensor hooks", "compile what is called outside of them"),
    ("transform of torch.func", "compile the function that calls the transform"),
    ("not to be compiled", "it is marked with disable"),
    ("from outside", "make it in the compiled function, or pass what it gives"),
    ("generator", "return or pass a list"),
    ("finalizer", "keep objects with __del__ out of the compiled function"),
    ("is left changed", "set and restore the mode within the compiled function, or outside"),
    ("custom autograd.Function", "keep effects (prints, writes to what is outside) out of it"),
    ("cannot be made again", "return tensors and plain containers"),
    ("torch.Generator", "draw from the default generator"),
    ("fails, and the program goes on", "check before the operator instead of catching its error"),
    ("an operator raises", "eager raises it, too"),
)


def hint(reason: str) -> str:
    """What may cure it; "" if nothing is known."""
    return next((cure for phrase, cure in _TABLE if phrase in reason), "")
