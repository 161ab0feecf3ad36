"""Carries out the cases of ingot_gpu_cases on a GPU, as PTX and as Triton, and compares.

    python run_cases.py FOLDER

Needs PyTorch with CUDA and Triton; PTX is loaded through the driver (cuda-bindings).
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import pathlib
import sys
from collections import Counter

import torch
from cuda.bindings import driver

DTYPES = {
    "b8": torch.bool, "u8": torch.uint8, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32,
    "i64": torch.int64, "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32,
    "f64": torch.float64, "c64": torch.complex64, "c128": torch.complex128,
    "u16": torch.uint16, "u32": torch.uint32, "u64": torch.uint64,
}  # fmt: skip


def check(result: tuple) -> object:
    """The value of a driver call; raises with the driver's error."""
    error, *values = result
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(str(error))
    return values[0] if values else None


def read(path: pathlib.Path, dtype: torch.dtype, sizes: list[int]) -> torch.Tensor:
    data = bytearray(path.read_bytes())
    if not data:
        return torch.empty(sizes, dtype=dtype)
    return torch.frombuffer(data, dtype=torch.uint8).view(dtype).reshape(sizes)


class Case:
    """The memory of a case, poisoned first, so that an element nobody writes shows."""

    def __init__(self, folder: pathlib.Path, case: dict) -> None:
        self.folder, self.case = folder, case
        self.arena = self.poisoned(case["arena"])
        self.memory = []
        for b in case["buffers"]:
            if b["base"] >= 0:
                self.memory.append(self.memory_of(b["base"])[b["offset"] :])
            elif b["arena"]:
                self.memory.append(self.arena[b["offset"] :])
            elif "file" in b:
                raw = (folder / b["file"]).read_bytes() or b"\0"
                self.memory.append(torch.frombuffer(bytearray(raw), dtype=torch.uint8).cuda())
            else:
                self.memory.append(self.poisoned(b["bytes"]))
        for i in case["inputs"]:
            view = self.view(i["buffer"])
            view.copy_(read(folder / i["file"], view.dtype, list(view.shape)))

    @staticmethod
    def poisoned(count: int) -> torch.Tensor:
        return torch.full((max(count, 16),), 0xEE, dtype=torch.uint8, device="cuda")

    def memory_of(self, buffer: int) -> torch.Tensor:
        return self.memory[buffer]

    def flat(self, buffer: int) -> torch.Tensor:
        """The buffer's memory as a flat tensor of its type."""
        dtype = DTYPES[self.case["buffers"][buffer]["dtype"]]
        raw = self.memory[buffer]
        return raw[: raw.numel() // dtype.itemsize * dtype.itemsize].view(dtype)

    def view(self, buffer: int) -> torch.Tensor:
        b = self.case["buffers"][buffer]
        return self.flat(buffer).as_strided(b["sizes"], b["strides"])

    def differences(self) -> list[str]:
        found = []
        for k, o in enumerate(self.case["outputs"]):
            got = self.view(o["buffer"]).cpu()
            want = read(self.folder / o["file"], got.dtype, list(got.shape))
            if not want.dtype.is_floating_point:
                if not torch.equal(got, want):
                    found.append(f"output {k}: other values")
                continue
            a, b = got.double(), want.double()
            same = (a == b) | (a.isnan() & b.isnan())
            finite = b[torch.isfinite(b)].abs()
            scale = max(1.0, finite.max().item() if finite.numel() else 1.0)
            distance = (a - b).abs()
            bad = ~(same | (distance <= o["tolerance"] * scale))
            if bad.any():
                i = bad.flatten().nonzero()[0].item()
                found.append(f"output {k}, element {i}: {a.flatten()[i]:.9g}"
                             f" instead of {b.flatten()[i]:.9g}")  # fmt: skip
        return found


def run_ptx(case: Case, step: dict, error: torch.Tensor) -> None:
    text = (case.folder / (step["id"] + ".ptx")).read_bytes() + b"\0"
    module = check(driver.cuModuleLoadData(text))
    stream = torch.cuda.current_stream().cuda_stream
    for launch in step["launches"]:
        function = check(driver.cuModuleGetFunction(module, launch["symbol"].encode()))
        if launch["shared"] > 48 << 10:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(driver.cuFuncSetAttribute(function, attribute, launch["shared"]))
        values = [case.memory[b].data_ptr() for b in step["buffers"]] + [error.data_ptr()]
        types = (ctypes.c_void_p,) * len(values)
        if launch["blocks"] > 0:
            grid, block = (launch["blocks"], 1, 1), (launch["threads"], 1, 1)
            arguments = (tuple(values), types)
            shared = launch["shared"]
            check(driver.cuLaunchKernel(function, *grid, *block, shared, stream, arguments, 0))
    torch.cuda.synchronize()
    check(driver.cuModuleUnload(module))


def run_triton(case: Case, step: dict, error: torch.Tensor) -> None:
    path = case.folder / (step["id"] + ".py")
    spec = importlib.util.spec_from_file_location(step["id"], path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.run([case.flat(b) for b in step["buffers"]], [], error)
    torch.cuda.synchronize()


def main() -> int:
    folder = pathlib.Path(sys.argv[1])
    ways = sys.argv[2].split(",") if len(sys.argv) > 2 else ["ptx", "triton"]
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    cases = json.loads((folder / "cases.json").read_text())
    counts: Counter[str] = Counter()
    for way in ways:
        run = run_ptx if way == "ptx" else run_triton
        for description in cases:
            if way == "triton" and not all(s["triton"] for s in description["steps"]):
                counts["triton: no text"] += 1
                continue
            try:
                case = Case(folder, description)
                error = torch.zeros(1, dtype=torch.int64, device="cuda")
                for step in description["steps"]:
                    run(case, step, error)
                found = case.differences()
                if error.item():
                    found.append("the error flag is set")
            except Exception as problem:
                found = [f"{type(problem).__name__}: {str(problem).strip().splitlines()[-1][:300]}"]
            counts[f"{way}: {'wrong' if found else 'right'}"] += 1
            for line in found:
                print(f"{way} {description['name']}: {line}", flush=True)
    for key, count in sorted(counts.items()):
        print(f"{key} {count}")
    return 1 if any("wrong" in key for key in counts) else 0


if __name__ == "__main__":
    sys.exit(main())
