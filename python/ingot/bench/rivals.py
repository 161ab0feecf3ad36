"""How each rival turns a `Case` into a callable; used inside the rival's own worker process.

`prepare` is cheap: whatever a rival compiles, it compiles at the first call, which is timed.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from typing import Any

import torch

from . import models


class Unavailable(Exception):
    """The rival is not installed or cannot run this model; the message says why."""


class Timer:
    """Seconds a compiler spent between a captured graph and a callable."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.graphs = 0

    def wrap(self, backend: Callable) -> Callable:
        """The same backend, timed."""

        def timed(gm: Any, example_inputs: Any) -> Callable:
            start = time.perf_counter()
            try:
                return backend(gm, example_inputs)
            finally:
                self.seconds += time.perf_counter() - start
                self.graphs += 1

        return timed


def _eager(case: models.Case, timer: Timer) -> Callable[[], Any]:
    return lambda: case.module(*case.args, **case.kwargs)


def _compiled(case: models.Case, timer: Timer, backend: Callable) -> Callable[[], Any]:
    compiled = torch.compile(case.module, backend=timer.wrap(backend))
    return lambda: compiled(*case.args, **case.kwargs)


def _ingot(case: models.Case, timer: Timer) -> Callable[[], Any]:
    import ingot

    compiled = ingot.compile(case.module)

    def call() -> Any:
        result = compiled(*case.args, **case.kwargs)
        stats = ingot.stats()
        timer.seconds, timer.graphs = stats.compile_seconds, stats.graphs
        return result

    return call


def _inductor(case: models.Case, timer: Timer) -> Callable[[], Any]:
    def backend(gm: Any, example_inputs: Any) -> Callable:
        from torch._inductor.compile_fx import compile_fx

        return compile_fx(gm, example_inputs)

    return _compiled(case, timer, backend)


def _inductor_freeze(case: models.Case, timer: Timer) -> Callable[[], Any]:
    import torch._inductor.config

    torch._inductor.config.freezing = True
    return _inductor(case, timer)


def _export_onnx(case: models.Case) -> bytes:
    import io

    for module in ("onnx", "onnxscript"):
        if importlib.util.find_spec(module) is None:
            raise Unavailable(f"{module} is not installed")
    buffer = io.BytesIO()
    program = torch.onnx.export(
        case.module, case.args, kwargs=case.kwargs, dynamo=True, verbose=False
    )
    program.save(buffer)
    return buffer.getvalue()


def _inputs(case: models.Case) -> list[Any]:
    return [value.numpy() for value in (*case.args, *case.kwargs.values())]


def _onnxruntime(case: models.Case, timer: Timer) -> Callable[[], Any]:
    if importlib.util.find_spec("onnxruntime") is None:
        raise Unavailable("onnxruntime is not installed")
    import onnxruntime

    session: list[Any] = []

    def call() -> Any:
        if not session:
            settings = onnxruntime.SessionOptions()
            settings.intra_op_num_threads = torch.get_num_threads()
            session.append(onnxruntime.InferenceSession(_export_onnx(case), settings))
        names = [one.name for one in session[0].get_inputs()]
        results = session[0].run(None, dict(zip(names, _inputs(case), strict=True)))
        return [torch.from_numpy(one) for one in results]

    return call


def _openvino(case: models.Case, timer: Timer) -> Callable[[], Any]:
    if importlib.util.find_spec("openvino") is None:
        raise Unavailable("openvino is not installed")
    import openvino

    state: list[Any] = []

    def call() -> Any:
        if not state:
            example = case.kwargs or case.args
            model = openvino.convert_model(case.module, example_input=example)
            settings = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY",
                        "INFERENCE_NUM_THREADS": torch.get_num_threads()}  # fmt: skip
            state.append(openvino.compile_model(model, "CPU", settings))
        results = state[0](_inputs(case))
        return [torch.from_numpy(results[k]) for k in range(len(state[0].outputs))]

    return call


RIVALS: dict[str, Callable[[models.Case, Timer], Callable[[], Any]]] = {
    "eager": _eager,
    "inductor": _inductor,
    "inductor-freeze": _inductor_freeze,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "ingot": _ingot,
}
FOREIGN = ("onnxruntime", "openvino")  # they take fp32 only and numpy arrays


def prepare(rival: str, case: models.Case, dtype: str, timer: Timer) -> Callable[[], Any]:
    """A callable without arguments that runs the case under the rival."""
    if rival in FOREIGN and dtype != "fp32":
        raise Unavailable(f"{rival} is measured in fp32 only")
    return RIVALS[rival](case, timer)
