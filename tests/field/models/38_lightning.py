"""PyTorch Lightning: a LightningModule compiled whole (`self.log` inside steps) and one that holds a compiled network; validation,
checkpoints, metrics of torchmetrics, schedulers, gradient clipping."""

import field_common as common
import torch
from field_common import measure, workdir
from torch import nn
from torch.nn import functional as F

TOL = 5.0


def make(compile_fn, inner):
    import pytorch_lightning as pl
    import torchmetrics

    class Lit(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(
                nn.Linear(32, 64), nn.ReLU(), nn.BatchNorm1d(64), nn.Linear(64, 5)
            )
            if inner:
                self.net = compile_fn(self.net)
            self.acc = torchmetrics.Accuracy(task="multiclass", num_classes=5)

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, i):
            x, y = batch
            loss = F.cross_entropy(self(x), y)
            self.log("train_loss", loss, prog_bar=False)
            return loss

        def validation_step(self, batch, i):
            x, y = batch
            p = self(x)
            self.acc(p, y)
            self.log("val_loss", F.cross_entropy(p, y), on_epoch=True)
            self.log("val_acc", self.acc, on_epoch=True)

        def configure_optimizers(self):
            o = torch.optim.AdamW(self.parameters(), lr=1e-2)
            return [o], [torch.optim.lr_scheduler.StepLR(o, 1, 0.5)]

    common.seed(0)
    m = Lit()
    return m if inner else compile_fn(m)


def run(compile_fn):
    import logging

    import pytorch_lightning as pl

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    out = {}
    g = torch.Generator().manual_seed(2)
    data = torch.utils.data.TensorDataset(
        torch.randn(100, 32, generator=g), torch.randint(0, 5, (100,), generator=g)
    )
    for inner in (True, False):
        with workdir() as d:
            model = make(compile_fn, inner)
            t = pl.Trainer(
                max_epochs=3,
                accelerator="cpu",
                devices=1,
                logger=False,
                enable_checkpointing=True,
                default_root_dir=d,
                enable_progress_bar=False,
                enable_model_summary=False,
                gradient_clip_val=1.0,
                num_sanity_val_steps=1,
            )
            loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=False)
            try:
                measure(
                    f"fit, inner={inner}",
                    lambda: t.fit(model, loader, torch.utils.data.DataLoader(data, batch_size=30)),
                    reps=0,
                )
                out[f"metrics {inner}"] = {k: v for k, v in t.callback_metrics.items()}
                ck = torch.load(t.checkpoint_callback.best_model_path, weights_only=False)
                out[f"keys {inner}"] = [k.replace("_orig_mod.", "") for k in ck["state_dict"]]
                common.note(f"keys {inner}", list(ck["state_dict"])[:2])
            except Exception as e:
                out[f"fit {inner}"] = f"raised {type(e).__name__}"
                common.note(f"fit {inner}", str(e)[:300])
    return out
