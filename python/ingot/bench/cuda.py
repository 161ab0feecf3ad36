"""`python -m ingot.bench.cuda`: eager, torch.compile and Ingot on an NVIDIA GPU, side by side.

Three tables: `inference` and `training` of models under bf16 autocast over fp32 weights, and
`kernels`, operators that only move memory, as a share of the measured copy bandwidth. Rivals are
`eager`, `compile` and `ingot`, the last two also with a mode behind a colon
(`ingot:reduce-overhead`).
Reported for each: the first call, wall time of a call (many calls in a row, by the processor), time
by events on the GPU, the sum of the kernels' times, peak memory above what was there before: of
tensors, and of what PyTorch's allocator holds for them (with its caches emptied before, which says
what a process needs; the memory of CUDA graphs that are replayed is counted only there), and the
relative error of the result (or of all gradients) against float64.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.nn import functional

from . import models

Function = Callable[..., Any]
INFERENCE = ("bert", "resnet50", "vit", "gpt2", "llama", "llama-token")
TRAINING = ("bert", "resnet50", "vit", "gpt2", "mobilenetv2")
RIVALS = (
    "eager", "compile", "compile:reduce-overhead", "compile:max-autotune", "ingot",
    "ingot:reduce-overhead", "ingot:max-autotune",
)  # fmt: skip


@dataclass
class Row:
    """What one rival takes for one case."""

    case: str
    rival: str
    first_s: float = 0.0
    wall_ms: float = 0.0
    event_ms: float = 0.0
    busy_ms: float = 0.0
    peak_mib: float = 0.0
    held_mib: float = 0.0
    error: float = 0.0
    failure: str = ""

    def text(self) -> str:
        if self.failure:
            return f"{self.case:<14} {self.rival:<24} failed: {self.failure}"
        return (
            f"{self.case:<14} {self.rival:<24} first {self.first_s:7.2f} s"
            f"  wall {self.wall_ms:8.3f}  events {self.event_ms:8.3f}  busy {self.busy_ms:8.3f} ms"
            f"  peak {self.peak_mib:8.0f} held {self.held_mib:8.0f} MiB  error {self.error:.2e}"
        )


def make_model(name: str, training: bool) -> tuple[torch.nn.Module, tuple, dict]:
    """A model with random weights and its inputs, on the GPU."""
    torch.manual_seed(0)
    batch = 64 if training else 8
    if name in ("resnet50", "vit", "mobilenetv2"):
        zoo = models.import_torchvision().models
        known = {"resnet50": "resnet50", "vit": "vit_b_16", "mobilenetv2": "mobilenet_v2"}
        model = zoo.get_model(known[name], weights=None)
        models._stir(model)
        inputs, named = (torch.randn(batch, 3, 224, 224),), {}
    else:
        zoo = models.import_transformers()
        length = 128 if name == "bert" else 512
        if name == "bert":
            config = zoo.BertConfig()
            model = (zoo.BertForSequenceClassification if training else zoo.BertModel)(config)
        elif name == "gpt2":
            config = zoo.GPT2Config(use_cache=False)
            model = zoo.GPT2LMHeadModel(config)
        else:
            config = zoo.LlamaConfig(
                hidden_size=2048, num_hidden_layers=16, intermediate_size=5632,
                num_attention_heads=16, num_key_value_heads=16, vocab_size=32000, use_cache=False,
            )  # fmt: skip
            model = zoo.LlamaForCausalLM(config)
            batch, length = 1, (1 if name == "llama-token" else 512)
        inputs = ()
        named = {"input_ids": torch.randint(0, config.vocab_size, (batch, length))}
    model.train(training)
    return model.cuda(), tuple(x.cuda() for x in inputs), {k: v.cuda() for k, v in named.items()}


def result_of(output: Any) -> torch.Tensor:
    """The first tensor of what a model returns."""
    if isinstance(output, torch.Tensor):
        return output
    return output[0] if isinstance(output, (tuple, list)) else next(iter(output.values()))


def loss_of(name: str, output: Any, ids: torch.Tensor | None, labels: torch.Tensor) -> Any:
    logits = result_of(output)
    if name == "gpt2":
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    return functional.cross_entropy(logits, labels)


def compiled(rival: str, function: Any) -> Any:
    kind, _, mode = rival.partition(":")
    if kind == "eager":
        return function
    if kind == "compile":
        torch._dynamo.reset()
        return torch.compile(function, mode=mode or None)
    import ingot

    options = ingot.list_mode_options(mode or "default") | {"fallback": False}
    return ingot.compile(function, options=options)


# ---- measuring ----


def kernel_times(call: Function, repeats: int = 5) -> list[tuple[float, float, str]]:
    """(us a call, launches a call, name) of each kernel, the longest first.

    A kernel that is launched while the one before it still runs, and waits for that one's end,
    counts from that end: the times add up to those in which the GPU was busy.
    """
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as record:
        for _ in range(repeats):
            call()
        torch.cuda.synchronize()
    spans = sorted(
        (e.start_ns(), e.start_ns() + e.duration_ns(), e.name())
        for e in record.profiler.kineto_results.events()
        if e.device_type() == DeviceType.CUDA and e.duration_ns() > 0 and not e.is_user_annotation()
    )
    times: dict[str, list[float]] = {}
    before = 0
    for start, end, name in spans:
        if "Activity Buffer" in name:
            continue
        own = times.setdefault(name, [0.0, 0.0])
        own[0] += max(0, end - max(start, before)) / 1e3 / repeats
        own[1] += 1 / repeats
        before = max(before, end)
    return sorted(((us, count, name) for name, (us, count) in times.items()), reverse=True)


def time_calls(call: Function, seconds: float = 0.3) -> tuple[float, float]:
    """Wall and event milliseconds of a call: medians of five runs of calls in a row."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    count = max(3, min(100, int(seconds / 5 / (time.perf_counter() - start))))
    walls, events = [], []
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start = time.perf_counter()
        begin.record()
        for _ in range(count):
            call()
        end.record()
        torch.cuda.synchronize()
        walls.append((time.perf_counter() - start) / count * 1e3)
        events.append(begin.elapsed_time(end) / count)
    return statistics.median(walls), statistics.median(events)


def measure(row: Row, call: Function, profile: int) -> None:
    gc.collect()  # what the rival before has left
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before, held = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    row.first_s = time.perf_counter() - start
    for _ in range(3):
        call()
    if row.rival == "ingot:max-autotune":
        from ingot import _ingot

        start = time.perf_counter()
        _ingot.wait_for_background()
        print(f"    measured for {time.perf_counter() - start:.1f} s", flush=True)
        for _ in range(5):  # goes over, and records anew
            call()
    for _ in range(2):  # the first time tensors move, and graphs may be recorded anew
        torch.cuda.synchronize()
        gc.collect()
        torch.cuda.empty_cache()
        for _ in range(4):
            call()
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    row.wall_ms, row.event_ms = time_calls(call)
    row.peak_mib = (torch.cuda.max_memory_allocated() - before) / 2**20
    row.held_mib = (torch.cuda.max_memory_reserved() - held) / 2**20
    kernels = kernel_times(call)
    row.busy_ms = sum(k[0] for k in kernels) / 1e3
    if row.rival.startswith("ingot"):
        for us, count, name in kernels[:profile]:
            print(f"    {us:9.1f} us {count:6.1f} x  {name[:100]}")


def relative(value: Iterable[torch.Tensor], exact: Iterable[torch.Tensor]) -> float:
    """The norm of all differences over the norm of all exact values."""
    wrong = right = 0.0
    for a, b in zip(value, exact, strict=True):
        wrong += (a.double() - b).norm().item() ** 2
        right += b.norm().item() ** 2
    return (wrong / right) ** 0.5


def run_inference(name: str, rivals: list[str], profile: int) -> Iterable[Row]:
    model, args, kwargs = make_model(name, False)
    with torch.no_grad():
        wide = [x.double() if x.is_floating_point() else x for x in args]
        exact = result_of(model.double()(*wide, **kwargs))
        model.float()
        for rival in rivals:
            row = Row(name, rival)
            try:
                function = compiled(rival, model)
                with torch.autocast("cuda", torch.bfloat16):
                    measure(row, lambda f=function: f(*args, **kwargs), profile)
                    row.error = relative([result_of(function(*args, **kwargs))], [exact])
            except Exception as e:
                traceback.print_exc()
                row.failure = f"{type(e).__name__}: {e}"[:300]
            yield row


def set_dropout(model: Any, p: float) -> None:
    """The same dropout everywhere, in models of transformers and of torchvision."""
    for m in model.modules():
        if isinstance(m, torch.nn.Dropout):
            m.p = p
        for name in ("dropout", "dropout_prob", "attention_dropout"):
            if isinstance(getattr(m, name, None), float):
                setattr(m, name, p)


def run_training(name: str, rivals: list[str], profile: int, dropout: float = 0.0) -> Iterable[Row]:
    """Forward, loss and backward; with dropout no error is measured (fp64 would draw others)."""
    model, args, kwargs = make_model(name, True)
    set_dropout(model, dropout)
    ids = kwargs.get("input_ids")
    labels = torch.randint(0, 2 if name == "bert" else 1000, (64,), device="cuda")
    parameters = [p for p in model.parameters() if p.requires_grad]
    state = {k: v.clone() for k, v in model.state_dict().items()}

    def step(function: Any, few: int = 64) -> None:
        for p in parameters:
            p.grad = None
        some = [x[:few] for x in args]
        named = {k: v[:few] for k, v in kwargs.items()}
        output = function(*some, **named)
        loss_of(name, output, None if ids is None else ids[:few], labels[:few]).backward()

    few = 8 if name == "gpt2" else 64
    if dropout == 0:
        model.double()
        args, narrow = tuple(x.double() for x in args), args
        step(model, few)
        exact = [p.grad.double() for p in parameters]
        model.float()
        args = narrow
    for rival in rivals:
        row = Row(name, rival)
        try:
            model.load_state_dict(state)
            function = compiled(rival, model)
            with torch.autocast("cuda", torch.bfloat16):
                measure(row, lambda f=function: step(f), profile)
                if few == 64 and dropout == 0:
                    model.load_state_dict(state)
                    step(function)
                    row.error = relative([p.grad for p in parameters], exact)
        except Exception as e:
            traceback.print_exc()
            row.failure = f"{type(e).__name__}: {e}"[:300]
        yield row
        for p in parameters:
            p.grad = None
        torch.cuda.empty_cache()


# ---- kernels ----


def kernel_cases() -> dict[str, tuple[Function, list[torch.Tensor], int]]:
    """A function, its inputs and the bytes it must move at least."""
    half = {"device": "cuda", "dtype": torch.bfloat16}
    x, y = torch.randn(16384, 4096, **half), torch.randn(16384, 4096, **half)
    w, b = torch.randn(4096, **half), torch.randn(4096, **half)
    logits = torch.randn(8192, 32000, **half)
    target = torch.randint(0, 32000, (8192,), device="cuda")
    p, m = torch.randn(100_000_000, device="cuda"), torch.randn(100_000_000, device="cuda")
    g, v = torch.randn(100_000_000, device="cuda"), torch.rand(100_000_000, device="cuda")

    def adam(p: Any, g: Any, m: Any, v: Any) -> Any:
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g * g
        return p - 1e-3 * m / (v.sqrt() + 1e-8), m, v

    def gelu_backward(x: Any, g: Any) -> Any:
        return torch.ops.aten.gelu_backward(g, x, approximate="tanh")

    def norm_backward(x: Any, g: Any, w: Any, b: Any) -> Any:
        _, mean, rstd = torch.ops.aten.native_layer_norm(x, [4096], w, b, 1e-5)
        return torch.ops.aten.native_layer_norm_backward(
            g, x, [4096], mean, rstd, w, b, [True, True, True]
        )

    n = x.nbytes
    return {
        "copy": (lambda x: x.clone(), [x], 2 * n),
        "add-norm": (
            lambda x, y, w, b: functional.layer_norm(x + y, (4096,), w, b), [x, y, w, b], 3 * n,
        ),
        "norm-backward": (norm_backward, [x, y, w, b], 3 * n),
        "gelu": (lambda x: functional.gelu(x), [x], 2 * n),
        "gelu-tanh": (lambda x: functional.gelu(x, approximate="tanh"), [x], 2 * n),
        "gelu-backward": (gelu_backward, [x, y], 3 * n),
        "softmax": (lambda x: torch.softmax(x, -1), [x], 2 * n),
        "column-sum": (lambda x: x.sum(0), [x], n),
        "cross-entropy": (
            lambda x, t: functional.cross_entropy(x.float(), t), [logits, target], logits.nbytes,
        ),
        "adam": (adam, [p, g, m, v], 7 * p.nbytes),
    }  # fmt: skip


def run_kernels(names: list[str], rivals: list[str]) -> None:
    cases = kernel_cases()
    with torch.no_grad():
        function, inputs, size = cases["copy"]
        bandwidth = size / time_calls(lambda: function(*inputs), 0.1)[1] / 1e9
        print(f"copy: {bandwidth:.2f} TB/s")
        for name in names or list(cases)[1:]:
            function, inputs, size = cases[name]
            parts = []
            for rival in rivals:
                try:
                    call = compiled(rival, function)
                    for _ in range(2):
                        call(*inputs)
                    ms = sum(k[0] for k in kernel_times(lambda c=call: c(*inputs))) / 1e3  # noqa: B023
                    parts.append(f"{rival} {ms:.3f} ms {size / ms / 1e9 / bandwidth:4.0%}")
                except Exception as e:
                    parts.append(f"{rival} failed: {type(e).__name__} {str(e)[:120]}")
            print(f"{name:<14} " + "   ".join(parts), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", choices=("inference", "training", "kernels"))
    parser.add_argument("--models", default="", help="names, by default all of the table")
    parser.add_argument("--against", default=",".join(RIVALS))
    parser.add_argument("--profile", type=int, default=0, help="longest kernels to show")
    parser.add_argument("--dropout", type=float, default=0.0, help="of training")
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no GPU that PyTorch can use")
    names = [n for n in options.models.split(",") if n]
    rivals = options.against.split(",")
    if options.table == "kernels":
        return run_kernels(names, rivals)
    run, known = (
        (run_inference, INFERENCE) if options.table == "inference" else (run_training, TRAINING)
    )
    rows = []
    for name in names or known:
        more = () if run is run_inference else (options.dropout,)
        for row in run(name, rivals, options.profile, *more):
            print(row.text(), flush=True)
            rows.append(asdict(row))
        torch.cuda.empty_cache()
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"gpu": torch.cuda.get_device_name(), "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
