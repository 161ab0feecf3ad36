"""transformers' Trainer: with `torch_compile=True, torch_compile_backend=...`, and given a compiled model. Evaluation, checkpoints
and their keys, gradient clipping, a scheduler, and going on from a checkpoint."""

import os

import field_common as common
import torch
from field_common import measure, workdir

TOL = 5.0


class Data(torch.utils.data.Dataset):
    def __init__(self, n, vocab=200):
        g = torch.Generator().manual_seed(n)
        self.items = []
        for _ in range(n):
            length = int(torch.randint(8, 25, (1,), generator=g))
            ids = torch.randint(3, vocab, (length,), generator=g)
            self.items.append({"input_ids": ids, "labels": (ids.sum() % 4).reshape(())})

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(items):
    n = max(len(i["input_ids"]) for i in items)
    ids = torch.zeros(len(items), n, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for b, i in enumerate(items):
        ids[b, : len(i["input_ids"])] = i["input_ids"]
        mask[b, : len(i["input_ids"])] = 1
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": torch.stack([i["labels"] for i in items]),
    }


def make():
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    common.seed(0)
    return DistilBertForSequenceClassification(
        DistilBertConfig(
            vocab_size=200,
            dim=128,
            n_layers=3,
            n_heads=4,
            hidden_dim=256,
            max_position_embeddings=64,
            dropout=0.1,
            attention_dropout=0.1,
            num_labels=4,
        )
    )


def run(compile_fn):
    from transformers import Trainer, TrainingArguments

    out = {}
    with workdir() as d:

        def arguments(name, **kw):
            return TrainingArguments(
                output_dir=os.path.join(d, name),
                per_device_train_batch_size=8,
                per_device_eval_batch_size=8,
                num_train_epochs=2,
                learning_rate=1e-3,
                warmup_steps=3,
                logging_steps=4,
                save_steps=10,
                eval_strategy="steps",
                eval_steps=10,
                report_to=[],
                use_cpu=True,
                seed=7,
                dataloader_num_workers=0,
                disable_tqdm=True,
                max_grad_norm=1.0,
                **kw,
            )

        def metrics(p):
            logits = p.predictions[0] if isinstance(p.predictions, tuple) else p.predictions
            return {"accuracy": float((logits.argmax(-1) == p.label_ids).mean())}

        def log(t):
            return [
                {
                    k: v
                    for k, v in e.items()
                    if k
                    in ("loss", "grad_norm", "learning_rate", "eval_loss", "eval_accuracy", "step")
                }
                for e in t.state.log_history
            ]

        # 1. the arguments of the trainer compile the model
        kw = (
            {"torch_compile": True, "torch_compile_backend": common.backend()}
            if common.backend()
            else {}
        )
        out["accepted"] = True
        if common.mode() == "ingot":
            import ingot  # noqa: F401

            try:
                arguments("a", **kw)
                Trainer(model=make(), args=arguments("a", **kw), data_collator=collate)
            except ValueError as e:  # accelerate has a closed list of names
                common.note("torch_compile_backend", str(e))
                kw = {}
        t = Trainer(
            model=make(),
            args=arguments("a", **kw),
            train_dataset=Data(80),
            eval_dataset=Data(24),
            data_collator=collate,
            compute_metrics=metrics,
        )
        measure("Trainer, torch_compile", lambda: t.train(), reps=0)
        out["a"] = log(t)
        t.save_model(os.path.join(d, "saved"))
        from safetensors.torch import load_file

        out["keys"] = sorted(load_file(os.path.join(d, "saved", "model.safetensors")))
        out["a eval"] = {
            k: v for k, v in t.evaluate().items() if k in ("eval_loss", "eval_accuracy")
        }
        # 2. a compiled model is given, and training goes on from a checkpoint
        t = Trainer(
            model=compile_fn(make()),
            args=arguments("b"),
            train_dataset=Data(80),
            eval_dataset=Data(24),
            data_collator=collate,
            compute_metrics=metrics,
        )
        measure("Trainer, compiled model", lambda: t.train(), reps=0)
        out["b"] = log(t)
        t2 = Trainer(
            model=compile_fn(make()),
            args=arguments("b"),
            train_dataset=Data(80),
            eval_dataset=Data(24),
            data_collator=collate,
            compute_metrics=metrics,
        )
        t2.train(resume_from_checkpoint=os.path.join(d, "b", "checkpoint-10"))
        out["resumed"] = log(t2)
        p = t2.predict(Data(24))
        out["predicted"] = p.predictions
    return out
