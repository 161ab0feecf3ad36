"""A process that compiles Triton's kernels for `_triton.py`: requests come as lines of JSON.

The first line is `sys.path`; each further one a kernel, answered by a line: the cubin in base64,
the kernel's name, the threads of a block and its shared memory, or a string that says why not.
Imports nothing of Ingot and, but for what Triton does, nothing of PyTorch.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import sys
import tempfile
from types import ModuleType


def load(folder: str, number: int, source: str) -> ModuleType:
    """The text as a module: Triton reads functions from their file."""
    path = os.path.join(folder, f"kernel{number}.py")
    with open(path, "w") as file:
        file.write(source)
    spec = importlib.util.spec_from_file_location(f"kernel{number}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compile_one(module: ModuleType, request: list) -> list | str:
    from triton import compile
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    _, name, types, x_block, r_block, warps, capability = request
    function = getattr(module, name)
    constants = {"XBLOCK": x_block, "RBLOCK": r_block}
    names = [n for n in function.arg_names if n not in constants]
    signature = dict(zip(names, types, strict=True)) | dict.fromkeys(constants, "constexpr")
    # Programs see to it that all memory begins at a multiple of 16 bytes.
    attributes = {
        (function.arg_names.index(n),): [["tt.divisibility", 16]]
        for n, t in zip(names, types, strict=True)
        if t.startswith("*") and n != "error"
    }
    target = GPUTarget("cuda", capability, 32)
    options = {"num_warps": warps, "enable_fp_fusion": False}
    source = ASTSource(function, signature, constants, attributes)
    made = compile(source, target=target, options=options)
    meta = made.metadata
    for what in ("global_scratch_size", "profile_scratch_size"):
        if getattr(meta, what, 0):
            return f"Triton asks for memory of its own ({what})"
    if getattr(meta, "num_ctas", 1) != 1 or getattr(meta, "launch_cooperative_grid", False):
        return "Triton asks for a launch of another kind"
    cubin = base64.b64encode(made.asm["cubin"]).decode()
    return [cubin, meta.name, meta.num_warps * 32, meta.shared]


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what anybody prints is no answer
    sys.path[:] = json.loads(sys.stdin.readline())
    with tempfile.TemporaryDirectory() as folder:
        for number, line in enumerate(sys.stdin):
            request = json.loads(line)
            try:
                answer = compile_one(load(folder, number, request[0]), request)
            except Exception as error:
                lines = [x.strip() for x in str(error).splitlines() if x.strip()]
                answer = f"Triton: {type(error).__name__}: {lines[-1] if lines else ''}"[:300]
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
