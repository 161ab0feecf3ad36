"""Training steps of whole models, compiled and eager, from the libraries that people train with.

    python tests/training/sweep_models.py timm|torchvision|transformers [--only PATTERN]

One model of each family of timm, all of torchvision and every configuration of transformers, made
small, with random weights: a forward and a backward of a loss over all results, in training mode,
without what is drawn at random (dropout at zero). Results, gradients and buffers are compared with
eager's; where they differ by more than roundings, both with a float64 run. Prints what differs and
what did not compile. A library may compute something else for compilers, as transformers' mask of
PaliGemma without token types, which torch.compile gives too. Takes an hour or two; the models of
the tests are in test_training_models.py.
"""

from __future__ import annotations

import argparse
import copy
import faulthandler
import fnmatch
import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from judge import strides

import ingot
from ingot.bench.models import import_torchvision, import_transformers, tensors_of


@dataclass
class Subject:
    """A model and how it is called."""

    name: str
    build: Callable[[], tuple[torch.nn.Module, dict[str, Any]]]


def without_randomness(module: torch.nn.Module) -> torch.nn.Module:
    for part in module.modules():
        for name, value in vars(part).items():
            if isinstance(value, float) and ("drop" in name or name in ("p", "prob")):
                setattr(part, name, 0.0)
        config = getattr(part, "config", None)
        for name, value in list(vars(config).items()) if config is not None else []:
            if isinstance(value, float) and "drop" in name:
                setattr(config, name, 0.0)
    return module


# The libraries ----------------------------------------------------------------------------------

SMALL_NAMES = (
    "test_",
    "atto",
    "femto",
    "pico",
    "xxs",
    "xx_small",
    "nano",
    "tiny",
    "18",
    "_s",
    "b0",
)


def timm_subjects() -> Iterator[Subject]:
    import_torchvision()
    import timm

    for family in timm.list_modules():
        names = timm.list_models(module=family)
        if not names:
            continue

        def rank(name: str) -> tuple[int, str]:
            hits = [k for k, part in enumerate(SMALL_NAMES) if part in name]
            return (min(hits, default=99), name)

        smallest = min(names, key=rank)

        def build(name: str = smallest):
            module = timm.create_model(name, pretrained=False, num_classes=10)
            channels, height, width = timm.data.resolve_data_config(model=module)["input_size"]
            return module, {"x": torch.randn(2, channels, height, width)}

        yield Subject(f"timm/{smallest}", build)


def torchvision_subjects() -> Iterator[Subject]:
    models = import_torchvision().models
    for name in models.list_models(module=models):

        def build(name: str = name):
            module = models.get_model(name, num_classes=10, weights=None)
            module.aux_logits = False
            side = 299 if "inception" in name else 224
            return module, {"x": torch.randn(2, 3, side, side)}

        yield Subject(f"torchvision/{name}", build)


# What makes a configuration small; each only where the configuration has it.
SIZES: dict[str, Any] = {
    "hidden_size": 32, "d_model": 32, "n_embd": 32, "dim": 32, "embed_dim": 32, "hidden_dim": 48,
    "intermediate_size": 48, "d_ff": 48, "ffn_dim": 48, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48, "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2,
    "encoder_layers": 2, "decoder_layers": 2, "num_decoder_layers": 2, "num_attention_heads": 4,
    "n_head": 4, "n_heads": 4, "num_heads": 4, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "d_kv": 8,
    "vocab_size": 64, "max_position_embeddings": 64, "n_positions": 64, "n_ctx": 64,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "image_size": 32, "patch_size": 8, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    "decoder_start_token_id": 1, "moe_intermediate_size": 16, "embedding_size": 16,
    "moe_num_experts": 4, "shared_expert_intermediate_size": 16, "emb_dim": 32,
}  # fmt: skip


def shrink(config: Any) -> None:
    for key, value in SIZES.items():
        known = getattr(config, key, None)
        if isinstance(known, int) and not isinstance(known, bool):
            try:
                setattr(config, key, value)
            except (AttributeError, NotImplementedError):
                continue
    if isinstance(getattr(config, "layer_types", None), list):
        config.layer_types = config.layer_types[:2]
    for value in list(vars(config).values()):
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            shrink(value)


def transformers_subjects() -> Iterator[Subject]:
    transformers = import_transformers()
    for name in transformers.CONFIG_MAPPING:

        def build(name: str = name):
            config = transformers.CONFIG_MAPPING[name]()
            shrink(config)
            module = transformers.AutoModel.from_config(config)
            ids = torch.randint(3, 60, (2, 16))
            main = module.main_input_name
            if main == "pixel_values":
                side = getattr(config, "image_size", 32)
                side = side if isinstance(side, int) else 32
                channels = getattr(config, "num_channels", 3)
                inputs = {main: torch.randn(2, channels, side, side)}
            elif main in ("input_values", "input_features"):
                inputs = {main: torch.randn(2, 4000)}
            else:
                inputs = {main: ids, "attention_mask": torch.ones_like(ids)}
            if config.is_encoder_decoder:
                inputs["decoder_input_ids"] = ids[:, :8]
            if hasattr(config, "use_cache"):
                inputs["use_cache"] = False
            return module, inputs

        yield Subject(f"transformers/{name}", build)


LIBRARIES = {
    "timm": timm_subjects,
    "torchvision": torchvision_subjects,
    "transformers": transformers_subjects,
}

DRAWS = 5
WORDS = ("result", "gradient", "buffer")

# The comparison ---------------------------------------------------------------------------------


def step(
    module: torch.nn.Module, inputs: dict, compiled: bool, autocast: bool
) -> tuple[dict, dict, dict]:
    """Results by number, gradients and buffers by name (WORDS); the model is a copy."""
    module = copy.deepcopy(module)
    inputs = {
        k: v.detach().clone().requires_grad_(v.is_floating_point())
        if isinstance(v, torch.Tensor)
        else v
        for k, v in inputs.items()
    }
    call = ingot.compile(module) if compiled else module
    torch.manual_seed(1)
    with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
        results = [t for t in tensors_of(plain(call(**inputs))) if t.grad_fn is not None]
    # Not a sum of squares, which behind a norm is the same whatever the parameters are.
    generator = torch.Generator().manual_seed(2)
    weights = [torch.randn(t.shape, generator=generator).to(t.dtype) / t.numel() for t in results]
    torch.autograd.backward(results, weights)
    gradients = {n: p.grad for n, p in module.named_parameters()}
    gradients |= {k: v.grad for k, v in inputs.items() if isinstance(v, torch.Tensor)}
    numbered = {str(k): t.detach() for k, t in enumerate(results)}
    return numbered, gradients, dict(module.named_buffers())


def plain(value: Any) -> Any:
    return value.to_tuple() if hasattr(value, "to_tuple") else value


def wide(inputs: dict) -> dict:
    def one(v: Any) -> Any:
        return v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v

    return {k: one(v) for k, v in inputs.items()}


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return (a.double() - b.double()).norm().item()


def differences(module: torch.nn.Module, inputs: dict, autocast: bool) -> list[str]:
    eager = step(module, inputs, False, autocast)
    ours = step(module, inputs, True, autocast)
    found: list[str] = []
    if len(eager[0]) != len(ours[0]):
        return [f"{len(ours[0])} results instead of {len(eager[0])}"]
    suspects: list[tuple[int, str]] = []
    for group, word in enumerate(WORDS):
        for name, w in eager[group].items():
            g = ours[group].get(name)
            if (g is None) != (w is None):
                found.append(f"{word} {name}: {'None' if g is None else 'a tensor'}, not as eager")
            elif w is not None:
                if (g.dtype, g.shape) != (w.dtype, w.shape):
                    found.append(f"{word} {name}: {g.dtype} {tuple(g.shape)}")
                elif strides(g) != strides(w):
                    found.append(f"{word} {name}: strides {g.stride()} instead of {w.stride()}")
                elif not torch.equal(g.isnan(), w.isnan()):
                    found.append(f"{word} {name}: NaN elsewhere")
                elif not w.is_floating_point():
                    if not torch.equal(g, w):
                        found.append(f"{word} {name}: other integers")
                elif distance(g, w) > 1e-6 * w.double().norm().item() + 1e-12:
                    suspects.append((group, name))
    if suspects:
        found += worse(module, inputs, suspects, autocast)
    return found


def drawn_anew(inputs: dict, seed: int) -> dict:
    generator = torch.Generator().manual_seed(seed)
    return {
        k: torch.randn(v.shape, generator=generator, dtype=v.dtype)
        if isinstance(v, torch.Tensor) and v.is_floating_point()
        else v
        for k, v in inputs.items()
    }


def worse(
    module: torch.nn.Module, inputs: dict, suspects: list[tuple[int, str]], autocast: bool
) -> list[str]:
    """Those that are further from float64 than eager's may be, in the sum of some draws: on few
    elements eager's error is a matter of luck. Where the model does not run in float64, its
    difference from eager counts, with what rounding a whole network may bring about."""
    mine, theirs, norms = Counter(), Counter(), Counter()
    largest = [0.0] * 3
    double = copy.deepcopy(module).double()
    for seed in range(DRAWS):
        now = inputs if seed == 0 else drawn_anew(inputs, seed)
        ours, eager = (step(module, now, compiled, autocast) for compiled in (True, False))
        try:
            exact = step(double, wide(now), False, False)
        except Exception:
            exact = eager
        for group, tensors in enumerate(exact):
            floats = [t for t in tensors.values() if t is not None and t.isfinite().all()]
            largest[group] += max((t.double().norm().item() for t in floats), default=0.0)
        for group, name in suspects:
            x = exact[group][name]
            if not x.isfinite().all():  # a mask's least number is no such in float64
                x = eager[group][name]
            mine[group, name] += distance(ours[group][name], x)
            theirs[group, name] += distance(eager[group][name], x)
            norms[group, name] += x.double().norm().item()
    eps = torch.finfo(torch.bfloat16 if autocast else torch.float32).eps
    found = []
    for group, name in suspects:
        key = group, name
        room = 4 * eps if theirs[key] else 1e4 * eps
        # What is zero but for roundings, as the gradient of a key's bias, is as uncertain as the
        # largest beside it.
        least = 1e-2 * eps * largest[group]
        if not mine[key] <= 2 * theirs[key] + room * norms[key] + least:
            found.append(
                f"{WORDS[group]} {name}: error {mine[key]:.2e}, eager {theirs[key]:.2e}, "
                f"norm {norms[key]:.2e}"
            )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", choices=list(LIBRARIES))
    parser.add_argument("--only", default="*")
    parser.add_argument("--part", default="0/1", help="k/n: every n-th model from the k-th")
    parser.add_argument("--autocast", action="store_true", help="in bfloat16")
    parser.add_argument("--largest", type=float, default=40, help="millions of parameters")
    options = parser.parse_args()
    faulthandler.enable()
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    part, parts = map(int, options.part.split("/"))
    subjects = (s for s in LIBRARIES[options.library]() if fnmatch.fnmatch(s.name, options.only))
    for subject in itertools.islice(subjects, part, None, parts):
        torch.manual_seed(0)
        try:
            with torch.device("meta"):
                size = sum(p.numel() for p in subject.build()[0].parameters())
        except Exception:
            size = 0
        if size > 1e6 * options.largest:
            counts["too large"] += 1
            continue
        try:
            torch.manual_seed(0)
            module, inputs = subject.build()
            without_randomness(module).train()
            step(module, inputs, False, options.autocast)
        except Exception as error:
            counts["eager does not run"] += 1
            print(f"{subject.name}: eager: {type(error).__name__} {str(error)[:100]!r}", flush=True)
            continue
        ingot.reset()
        try:
            found = differences(module, inputs, options.autocast)
        except Exception as error:
            found = [f"raises {type(error).__name__}: {str(error)[:200]}"]
        stats = ingot.stats()
        state = "differs" if found else "compiled" if not stats.reasons else "fell back"
        counts[state] += 1
        print(f"{subject.name}: {state}, {stats.graphs} graphs, {stats.breaks} breaks", flush=True)
        for line in found[:6] if found else [r[:160] for r in stats.reasons[:3]]:
            print(f"    {line}", flush=True)
    print(dict(counts))
    return 1 if counts["differs"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
