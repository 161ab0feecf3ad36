"""torchao: int8 and int4 weight-only and int8 dynamic quantisation (tensor subclasses as weights), then compile; also QLoRA-like
training over frozen quantised weights. Linear layers of the sizes of a small transformer."""

import field_common as common
import torch
from field_common import measure, note
from torch import nn


class Block(nn.Module):
    def __init__(self, d=256):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.up = nn.Linear(d, 4 * d)
        self.down = nn.Linear(4 * d, d)

    def forward(self, x):
        return x + self.down(torch.nn.functional.silu(self.up(self.norm(x))))


def run(compile_fn):
    from torchao.quantization import (
        Int8DynamicActivationInt8WeightConfig,
        Int8DynamicActivationIntxWeightConfig,
        Int8WeightOnlyConfig,
        IntxWeightOnlyConfig,
        quantize_,
    )
    from torchao.quantization.granularity import PerGroup

    x = torch.randn(8, 256)
    big = torch.randn(64, 256)
    out = {}
    plans = {
        "int8 weight only": lambda: Int8WeightOnlyConfig(),
        "int8 dynamic": lambda: Int8DynamicActivationInt8WeightConfig(),
        "int4 weight only": lambda: IntxWeightOnlyConfig(
            weight_dtype=torch.int4, granularity=PerGroup(32)
        ),
        "int8 activations, int4 weights": lambda: Int8DynamicActivationIntxWeightConfig(
            weight_dtype=torch.int4, weight_granularity=PerGroup(32)
        ),
    }
    for name, plan in plans.items():
        common.seed(0)
        model = nn.Sequential(*[Block() for _ in range(3)]).eval()
        quantize_(model, plan())
        note(name, type(model[0].up.weight).__name__)
        made = common.counters()
        model = compile_fn(model)
        with torch.no_grad():
            out[name] = measure(name, lambda: model(x), reps=5)
            out[name + " 64"] = model(big)
        note(name + " counters", {k: v - made[k] for k, v in common.counters().items()})
    # training of what stands beside frozen quantised weights
    common.seed(1)
    model = nn.Sequential(*[Block() for _ in range(2)])
    model.requires_grad_(False)
    quantize_(model, Int8WeightOnlyConfig())
    a, b = nn.Linear(256, 8, bias=False), nn.Linear(8, 256, bias=False)

    def forward(x):
        for block in model:
            x = block(x) + b(a(x))
        return x.square().mean()

    f = compile_fn(forward)

    def step():
        a.zero_grad()
        b.zero_grad()
        loss = f(big)
        loss.backward()
        return [loss, a.weight.grad.clone(), b.weight.grad.clone()]

    out["qlora"] = measure("qlora", step, reps=3)
    return out
