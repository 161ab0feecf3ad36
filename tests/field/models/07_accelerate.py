"""accelerate: a compiled model through `prepare`, mixed precision, gradient accumulation, save and load of states, `unwrap_model`."""

import os

import field_common as common
import torch
from field_common import measure, workdir

TOL = 4.0


def run(compile_fn):
    from accelerate import Accelerator
    from accelerate.utils import set_seed
    from torch import nn

    out = {}
    for precision in ("no", "bf16"):
        set_seed(3)
        acc = Accelerator(cpu=True, mixed_precision=precision, gradient_accumulation_steps=2)
        model = nn.Sequential(
            nn.Linear(32, 256),
            nn.GELU(),
            nn.LayerNorm(256),
            nn.Dropout(0.1),
            nn.Linear(256, 256),
            nn.GELU(),
            nn.Linear(256, 10),
        )
        model = compile_fn(model)
        opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 20)
        data = torch.utils.data.TensorDataset(torch.randn(200, 32), torch.randint(0, 10, (200,)))
        loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
        model, opt, loader, sched = acc.prepare(model, opt, loader, sched)
        losses = []

        def epoch():
            for x, y in loader:
                with acc.accumulate(model):
                    loss = nn.functional.cross_entropy(model(x), y)
                    acc.backward(loss)
                    if acc.sync_gradients:
                        acc.clip_grad_norm_(model.parameters(), 1.0)
                    opt.step()
                    sched.step()
                    opt.zero_grad()
                losses.append(loss.detach().float())
            return losses[-1]

        out[precision] = measure(f"epoch {precision}", epoch, reps=2)
        out[precision + " losses"] = torch.stack(losses)
        with workdir() as d:
            acc.save_state(d)
            files = sorted(os.listdir(d))
            before = common.digest(p for p in model.parameters())
            with torch.no_grad():
                for p in model.parameters():
                    p.zero_()
            acc.load_state(d)
            out[precision + " restored"] = [
                before == common.digest(p for p in model.parameters()),
                "model.safetensors" in files,
            ]
        plain = acc.unwrap_model(model)
        out[precision + " keys"] = list(plain.state_dict())
        with torch.no_grad():
            model.eval()
            out[precision + " out"] = model(torch.ones(3, 32)).to(
                torch.bfloat16 if precision == "bf16" else torch.float32
            )
        acc.free_memory()
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(reset_partial_state=True)
    return out
