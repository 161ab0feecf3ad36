"""Small models of transformers with random weights: their structure is what capture has to follow.

Each architecture has the layers, masks, caches and output classes of its full size, at a width that
takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from .models import import_transformers

COMMON = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64,
          "intermediate_size": 48, "max_position_embeddings": 64}  # fmt: skip


@dataclass
class Small:
    """An architecture: its configuration, the class that is built from it, and how it is called."""

    config: str
    model: str
    changes: dict[str, Any] = field(default_factory=dict)
    generates: bool = False
    inputs: Callable[[], dict[str, torch.Tensor]] | None = None

    def build(self) -> torch.nn.Module:
        transformers = import_transformers()
        torch.manual_seed(3)
        config = getattr(transformers, self.config)(**{**COMMON, **self.changes})
        module = getattr(transformers, self.model)(config).eval().requires_grad_(False)
        if self.generates:
            module.generation_config.pad_token_id = 0
            module.generation_config.eos_token_id = 63
        return module

    def arguments(self, rows: int = 2, length: int = 7) -> dict[str, torch.Tensor]:
        """Seeded inputs of this size."""
        generator = torch.Generator().manual_seed(rows * 100 + length)
        if self.inputs is not None:
            return self.inputs(generator, rows, length)
        ids = torch.randint(1, 60, (rows, length), generator=generator)
        mask = torch.ones_like(ids)
        mask[0, :2] = 0
        return {"input_ids": ids, "attention_mask": mask}


def _images(generator, rows, length):
    return {"pixel_values": torch.randn(rows, 3, 16, 16, generator=generator)}


def _pairs(generator, rows, length):
    ids = torch.randint(1, 60, (rows, length), generator=generator)
    return {"input_ids": ids, "decoder_input_ids": ids[:, :3]}


def _both(generator, rows, length):
    ids = torch.randint(1, 60, (rows, length), generator=generator)
    return {"input_ids": ids, **_images(generator, rows, length)}


def _sounds(generator, rows, length):
    return {
        "input_features": torch.randn(rows, 8, 32, generator=generator),
        "decoder_input_ids": torch.randint(1, 60, (rows, 3), generator=generator),
    }


_T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
       "decoder_start_token_id": 0, "relative_attention_num_buckets": 8}  # fmt: skip
_BART = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
         "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
         "decoder_start_token_id": 2, "bos_token_id": 2}  # fmt: skip
_VISION = {"image_size": 16, "patch_size": 8, "num_channels": 3}
_CLIP_TEXT = {**COMMON, "eos_token_id": 63, "bos_token_id": 1, "pad_token_id": 0}

SMALL: dict[str, Small] = {
    "bert": Small("BertConfig", "BertForSequenceClassification"),
    "roberta": Small("RobertaConfig", "RobertaModel", {"pad_token_id": 1}),
    "distilbert": Small(
        "DistilBertConfig", "DistilBertModel", {"dim": 32, "n_layers": 2, "n_heads": 4}
    ),
    "electra": Small("ElectraConfig", "ElectraModel", {"embedding_size": 16}),
    "albert": Small("AlbertConfig", "AlbertModel", {"embedding_size": 16}),
    "deberta": Small(
        "DebertaV2Config", "DebertaV2Model", {"relative_attention": True, "pos_att_type": ["c2p"]}
    ),
    "vit": Small("ViTConfig", "ViTModel", _VISION, inputs=_images),
    "clip": Small(
        "CLIPConfig",
        "CLIPModel",
        {"text_config": _CLIP_TEXT, "vision_config": {**COMMON, **_VISION}, "projection_dim": 16},
        inputs=_both,
    ),
    "gpt2": Small("GPT2Config", "GPT2LMHeadModel", generates=True),
    "gpt-neox": Small("GPTNeoXConfig", "GPTNeoXForCausalLM", generates=True),
    "opt": Small(
        "OPTConfig", "OPTForCausalLM", {"ffn_dim": 48, "word_embed_proj_dim": 32}, generates=True
    ),
    "llama": Small("LlamaConfig", "LlamaForCausalLM", {"num_key_value_heads": 2}, generates=True),
    "mistral": Small(
        "MistralConfig",
        "MistralForCausalLM",
        {"num_key_value_heads": 2, "sliding_window": 4},
        generates=True,
    ),
    "qwen2": Small("Qwen2Config", "Qwen2ForCausalLM", {"num_key_value_heads": 2}, generates=True),
    "phi": Small("PhiConfig", "PhiForCausalLM", generates=True),
    "gemma": Small(
        "GemmaConfig", "GemmaForCausalLM", {"num_key_value_heads": 1, "head_dim": 8}, generates=True
    ),
    "mixtral": Small(
        "MixtralConfig",
        "MixtralForCausalLM",
        {"num_key_value_heads": 2, "num_local_experts": 4},
        generates=True,
    ),
    "t5": Small("T5Config", "T5ForConditionalGeneration", _T5, generates=True, inputs=_pairs),
    "bart": Small(
        "BartConfig", "BartForConditionalGeneration", _BART, generates=True, inputs=_pairs
    ),
    "whisper": Small(
        "WhisperConfig",
        "WhisperModel",
        {
            **_BART,
            "num_mel_bins": 8,
            "max_source_positions": 16,
            "max_target_positions": 16,
            "pad_token_id": 0,
        },
        inputs=_sounds,
    ),
}
