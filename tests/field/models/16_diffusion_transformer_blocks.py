"""Flux-like transformer of diffusers, compiled by repeated blocks (`block.compile` / one compiled forward for equal blocks), changing
resolutions and text lengths; a LoRA loaded into it and its scale changed between images; a DiT with AdaLN."""

import field_common as common
import torch
from field_common import measure, note

TOL = 3.0


def run(compile_fn):
    from diffusers import FlowMatchEulerDiscreteScheduler, FluxTransformer2DModel

    out = {}

    def make():
        common.seed(0)
        return FluxTransformer2DModel(
            patch_size=1,
            in_channels=16,
            num_layers=2,
            num_single_layers=3,
            attention_head_dim=16,
            num_attention_heads=4,
            joint_attention_dim=32,
            pooled_projection_dim=24,
            guidance_embeds=True,
            axes_dims_rope=(4, 6, 6),
        ).eval()

    def image_ids(n):
        ids = torch.zeros(n, n, 3)
        ids[..., 1] += torch.arange(n)[:, None]
        ids[..., 2] += torch.arange(n)[None]
        return ids.reshape(-1, 3)

    def sample(model, n, length, steps=4):
        common.seed(2)
        sched = FlowMatchEulerDiscreteScheduler()
        sched.set_timesteps(steps)
        x = torch.randn(1, n * n, 16)
        text, pooled = torch.randn(1, length, 32), torch.randn(1, 24)
        for t in sched.timesteps:
            v = model(
                hidden_states=x,
                timestep=t.expand(1) / 1000,
                guidance=torch.full((1,), 3.5),
                pooled_projections=pooled,
                encoder_hidden_states=text,
                txt_ids=torch.zeros(length, 3),
                img_ids=image_ids(n),
                return_dict=False,
            )[0]
            x = sched.step(v, t, x, return_dict=False)[0]
        return x

    with torch.no_grad():
        whole = compile_fn(make())
        out["whole"] = measure("whole model", lambda: sample(whole, 8, 12), reps=2)
        blocks = make()
        for b in list(blocks.transformer_blocks) + list(blocks.single_transformer_blocks):
            if common.mode() == "ingot":
                import ingot

                ingot.compile_in_place(b)
            elif common.backend():
                b.compile(backend=common.backend())
        made = common.counters()["made"]
        out["blocks"] = measure("repeated blocks", lambda: sample(blocks, 8, 12), reps=2)
        note("made by 5 blocks", common.counters()["made"] - made)
        made = common.counters()["made"]
        for n, length in ((6, 12), (10, 9), (7, 16), (12, 20)):
            out[f"{n} {length}"] = measure("other sizes", lambda: sample(whole, n, length), reps=1)
        note("made by 4 sizes", common.counters()["made"] - made)
        # a LoRA as diffusers loads it (peft layers inside), its scale changed between images
        from peft import LoraConfig, inject_adapter_in_model
        from peft.tuners.tuners_utils import BaseTunerLayer

        m = make()
        inject_adapter_in_model(
            LoraConfig(
                r=4, lora_alpha=4, target_modules=["to_q", "to_k", "to_v"], init_lora_weights=False
            ),
            m,
            "style",
        )
        m.eval()
        m = compile_fn(m)
        made = common.counters()["made"]
        for scale in (1.0, 0.7, 0.3, 0.0, 1.0):
            for layer in m.modules():
                if isinstance(layer, BaseTunerLayer):
                    layer.set_scale("style", scale)
            out[f"lora {scale}"] = measure("lora scales", lambda: sample(m, 6, 10, 2), reps=1)
        note("made by 5 scales", common.counters()["made"] - made)
    return out
