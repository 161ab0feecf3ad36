"""Random small nets beside eager: two training steps of other sizes, one in eval mode, from seeds.

    python tests/training/random_nets.py --first 0 --count 200

A seed decides the layers, their arguments, the sizes, the memory format and which layers are
frozen. Each net is one `ingot.compile`d module; results, gradients and buffers of each step are
judged as in sweep.py.
"""

from __future__ import annotations

import argparse
import copy
import random
import sys
import warnings

import sweep
import torch
from torch import nn

import ingot

SHAPES = {1: (9, 16), 2: (7, 12), 3: (4, 6)}  # of images by their number of dims


def convolution(r: random.Random, dims: int, channels: int) -> tuple[nn.Module, int]:
    kind = r.choice([f"Conv{dims}d", f"ConvTranspose{dims}d", f"Conv{dims}d"])
    groups = r.choice([g for g in (1, 1, 2, channels) if channels % g == 0])
    out = groups * r.randint(1, 4)
    kernel = r.choice([1, 2, 3])
    arguments = {"stride": r.choice([1, 1, 2]), "padding": r.randint(0, kernel // 2)}
    if kind.startswith("Conv" + str(dims)):
        arguments["padding_mode"] = r.choice(["zeros", "zeros", "reflect", "circular", "replicate"])
        arguments["dilation"] = r.choice([1, 1, 2]) if kernel == 2 else 1
    layer = getattr(nn, kind)
    return layer(channels, out, kernel, groups=groups, bias=r.random() < 0.7, **arguments), out


def layer(r: random.Random, dims: int, channels: int) -> tuple[nn.Module, int]:
    def of(name: str, *arguments, **kwargs) -> nn.Module:
        return getattr(nn, f"{name}{dims}d")(*arguments, **kwargs)

    choice = r.randrange(12)
    if choice < 4:
        return convolution(r, dims, channels)
    if choice == 4:
        momentum = r.choice([0.1, None, 0.5])
        return of("BatchNorm", channels, momentum=momentum, affine=r.random() < 0.8), channels
    if choice == 5:
        kept = r.random() < 0.4
        return of(
            "InstanceNorm", channels, affine=r.random() < 0.5, track_running_stats=kept
        ), channels
    if choice == 6:
        groups = r.choice([g for g in (1, 2, channels) if channels % g == 0])
        return nn.GroupNorm(groups, channels), channels
    if choice == 7:
        return of(
            "MaxPool", r.choice([2, 3]), r.choice([1, 2]), 1, ceil_mode=r.random() < 0.4
        ), channels
    if choice == 8:
        counted = r.random() < 0.5
        return of(
            "AvgPool", r.choice([2, 3]), r.choice([1, 2]), 1, count_include_pad=counted
        ), channels
    if choice == 9:
        return of(r.choice(["ZeroPad", "ReflectionPad", "ReplicationPad"]), 1), channels
    if choice == 10:
        return nn.Dropout(r.choice([0.0, 0.3])), channels
    kinds = [nn.ReLU, nn.GELU, nn.SiLU, nn.ELU, nn.Hardswish, nn.Mish, nn.LeakyReLU, nn.PReLU]
    kinds += [nn.Softplus, nn.Tanh, nn.Sigmoid, nn.Hardtanh, nn.SELU, nn.LogSigmoid, nn.Softsign]
    kind = r.choice(kinds)
    in_place = kind in (nn.ReLU, nn.SiLU, nn.ELU, nn.LeakyReLU) and r.random() < 0.3
    return kind(inplace=True) if in_place else kind(), channels


def net(r: random.Random) -> tuple[nn.Sequential, list[torch.Tensor]]:
    """A net and inputs of three batch sizes on which it runs."""
    while True:
        dims = r.choice([1, 2, 2, 2, 3])
        first = channels = r.randint(1, 8)
        layers = []
        for _ in range(r.randint(2, 7)):
            made, channels = layer(r, dims, channels)
            layers.append(made)
        if r.random() < 0.5:
            layers += [
                getattr(nn, f"AdaptiveAvgPool{dims}d")(1),
                nn.Flatten(),
                nn.Linear(channels, 5),
            ]
        module = nn.Sequential(*layers)
        if r.random() < 0.2:
            layers[0].requires_grad_(False)
        sizes = [r.randint(*SHAPES[dims]) for _ in range(dims)]
        last = dims == 2 and r.random() < 0.4
        inputs = [torch.randn(n, first, *sizes) for n in (3, r.randint(2, 5), 2)]
        if last:
            module = module.to(memory_format=torch.channels_last)
            inputs = [x.to(memory_format=torch.channels_last) for x in inputs]
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                copy.deepcopy(module).eval()(inputs[1])
                copy.deepcopy(module).train()(inputs[0])
            steps(module, [x.clone().requires_grad_() for x in inputs], False, False)
        except (RuntimeError, ValueError):  # an image that has become too small
            continue
        wants = r.random() < 0.7
        return module, [x.requires_grad_(wants) for x in inputs]


def steps(module: nn.Module, inputs: list[torch.Tensor], compiled: bool, wide: bool) -> list:
    """What three calls show, the last in eval mode; gradients add up over the first two."""
    module = copy.deepcopy(module)
    module = module.double() if wide else module
    call = ingot.compile(module) if compiled else module
    shown = []
    for k, x in enumerate(inputs):
        module.train(k < 2)
        x = x.detach().to(torch.float64 if wide else x.dtype).requires_grad_(x.requires_grad)
        torch.manual_seed(k)
        y = call(x)
        if y.requires_grad:
            weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(k))
            (y * weight.to(y.dtype)).sum().backward()
        leaves = [x, *module.parameters()]
        shown.append([y.detach(), *(None if t.grad is None else t.grad.clone() for t in leaves)])
        shown[-1] += [b.clone() for b in module.buffers()]
    return shown


def _again(module: nn.Module, inputs: list[torch.Tensor]):
    """What the three ways show of other inputs, flat."""
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)
        factors = [1 + 0.2 * torch.rand(x.shape, generator=generator) for x in inputs]
        stretched = [
            (x.detach() * f).requires_grad_(x.requires_grad)
            for x, f in zip(inputs, factors, strict=True)
        ]
        ways = [(True, False), (False, False), (False, True)]
        yield tuple([t for shown in steps(module, stretched, *way) for t in shown] for way in ways)


def check(seed: int) -> str:
    """What differs with this seed, or nothing."""
    ingot.reset()
    r = random.Random(seed)
    torch.manual_seed(seed)
    module, inputs = net(r)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = steps(module, inputs, False, False)
        draws = any(isinstance(m, nn.Dropout) and m.p > 0 for m in module)
        exact = want if draws else steps(module, inputs, False, True)
        got = steps(module, inputs, True, False)
    for step, (a, b, c) in enumerate(zip(got, want, exact, strict=True)):
        for k, (x, y, z) in enumerate(zip(a, b, c, strict=True)):
            if (x is None) != (y is None):
                return f"step {step}, {k}: None or not\n{module}"
            if x is None:
                continue
            z = None if draws else z
            what = sweep.compare(x, y, z)
            if what.startswith("error") and not sweep.worse_on_average(_again(module, inputs)):
                continue
            if what and not sweep.within_roundings(x, y, z, b):
                return f"step {step}, {k} {tuple(y.shape)}: {what}\n{module}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    options = parser.parse_args()
    wrong, fell_back = 0, 0
    for seed in range(options.first, options.first + options.count):
        try:
            what = check(seed)
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
        reasons = ingot.stats().reasons
        fell_back += bool(reasons)
        wrong += bool(what)
        if what or reasons:
            print(f"seed {seed}: {what or reasons}", flush=True)
    print(f"{options.count} nets from seed {options.first}: {wrong} wrong, {fell_back} fell back")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
