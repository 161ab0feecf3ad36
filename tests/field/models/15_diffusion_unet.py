"""diffusers with random weights: UNet2DConditionModel in a denoising loop with classifier-free guidance (DDIM, Euler, DPM-Solver), the
decoder of an AutoencoderKL, channels last, two resolutions, and a training step with the noise scheduler."""

import field_common as common
import torch
from field_common import grads, measure, note

TOL = 5.0


def run(compile_fn):
    from diffusers import (
        AutoencoderKL,
        DDIMScheduler,
        DDPMScheduler,
        DPMSolverMultistepScheduler,
        EulerDiscreteScheduler,
        UNet2DConditionModel,
    )

    out = {}
    unet = UNet2DConditionModel(
        sample_size=16,
        in_channels=4,
        out_channels=4,
        block_out_channels=(32, 64),
        layers_per_block=1,
        cross_attention_dim=32,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        attention_head_dim=8,
        norm_num_groups=8,
    ).eval()
    unet = unet.to(memory_format=torch.channels_last)
    vae = AutoencoderKL(
        in_channels=3,
        out_channels=3,
        latent_channels=4,
        block_out_channels=(16, 32),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        sample_size=32,
    ).eval()
    unet = compile_fn(unet)
    vae.decode = compile_fn(vae.decode)
    text, empty = torch.randn(2, 7, 32), torch.zeros(2, 7, 32)

    def denoise(scheduler, size, steps=6, guidance=4.0):
        common.seed(1)
        scheduler.set_timesteps(steps)
        x = torch.randn(2, 4, size, size) * scheduler.init_noise_sigma
        for t in scheduler.timesteps:
            y = scheduler.scale_model_input(torch.cat([x, x]), t)
            noise = unet(y, t, encoder_hidden_states=torch.cat([empty, text])).sample
            a, b = noise.chunk(2)
            x = scheduler.step(a + guidance * (b - a), t, x).prev_sample
        return x

    with torch.no_grad():
        for name, cls in (
            ("ddim", DDIMScheduler),
            ("euler", EulerDiscreteScheduler),
            ("dpm", DPMSolverMultistepScheduler),
        ):
            made = common.counters()["made"]
            out[name] = measure(name, lambda: denoise(cls(), 16), reps=2)
            note(f"made by {name}", common.counters()["made"] - made)
        made = common.counters()["made"]
        out["larger"] = measure("other size", lambda: denoise(DDIMScheduler(), 24), reps=1)
        note("made by another size", common.counters()["made"] - made)
        out["image"] = measure(
            "vae decode", lambda: vae.decode(out["ddim"][0] / 0.18).sample, reps=2
        )
    ddpm = DDPMScheduler()
    unet.train()
    x0 = torch.randn(2, 4, 16, 16)

    def step():
        common.seed(6)
        unet.zero_grad()
        noise, t = torch.randn_like(x0), torch.randint(0, 1000, (2,))
        loss = torch.nn.functional.mse_loss(
            unet(ddpm.add_noise(x0, noise, t), t, encoder_hidden_states=text).sample, noise
        )
        loss.backward()
        return loss.detach()

    out["train"] = measure("unet train", step, reps=2)
    out["grads"] = common.digest(grads(unet).values())
    return out
