"""RT-DETR and Segformer of transformers with tiny configurations (Hungarian matching in the loss), U-Net of
segmentation_models_pytorch with a Dice loss, DeepLabV3 of torchvision; training with images of two sizes."""

import field_common as common
import torch
from field_common import measure
from torch import nn

TOL = 6.0


def run(compile_fn):
    out = {}
    from transformers import (
        RTDetrConfig,
        RTDetrForObjectDetection,
        RTDetrResNetConfig,
        SegformerConfig,
        SegformerForSemanticSegmentation,
    )

    backbone = RTDetrResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16, 32, 64],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
        out_indices=[2, 3, 4],
    )
    config = RTDetrConfig(
        backbone_config=backbone,
        encoder_hidden_dim=32,
        encoder_in_channels=[16, 32, 64],
        d_model=32,
        num_queries=20,
        decoder_layers=2,
        decoder_attention_heads=4,
        encoder_attention_heads=2,
        decoder_ffn_dim=48,
        encoder_ffn_dim=48,
        decoder_in_channels=[32, 32, 32],
        num_denoising=10,
        num_labels=5,
        anchor_image_size=None,
        feat_strides=[8, 16, 32],
        eval_size=None,
    )
    model = compile_fn(RTDetrForObjectDetection(config))
    pixels = torch.randn(2, 3, 64, 64)
    labels = [
        {
            "class_labels": torch.tensor([1, 3]),
            "boxes": torch.tensor([[0.4, 0.4, 0.3, 0.2], [0.6, 0.5, 0.2, 0.4]]),
        },
        {"class_labels": torch.tensor([2]), "boxes": torch.tensor([[0.5, 0.5, 0.5, 0.5]])},
    ]
    model.eval()
    with torch.no_grad():
        out["rt-detr"] = measure(
            "rt-detr inference",
            lambda: [(r := model(pixel_values=pixels)).logits, r.pred_boxes],
            reps=2,
        )
    model.train()

    def step():
        common.seed(1)
        model.zero_grad()
        loss = model(pixel_values=pixels, labels=labels).loss
        loss.backward()
        return loss.detach()

    out["rt-detr train"] = measure("rt-detr train", step, reps=2)

    common.seed(2)
    seg = compile_fn(
        SegformerForSemanticSegmentation(
            SegformerConfig(
                hidden_sizes=[16, 32, 40, 64],
                depths=[1, 1, 1, 1],
                num_attention_heads=[1, 2, 2, 4],
                decoder_hidden_size=32,
                num_labels=4,
                drop_path_rate=0.1,
            )
        )
    )
    opt = torch.optim.AdamW(seg.parameters(), lr=1e-3)

    def segstep(n=64):
        common.seed(3)
        opt.zero_grad()
        loss = seg(pixel_values=torch.randn(2, 3, n, n), labels=torch.randint(0, 4, (2, n, n))).loss
        loss.backward()
        opt.step()
        return loss.detach()

    out["segformer"] = measure("segformer train", segstep, reps=3)
    out["segformer 96"] = segstep(96)

    import segmentation_models_pytorch as smp

    common.seed(4)
    unet = smp.Unet(
        "resnet18", encoder_weights=None, classes=2, decoder_channels=(64, 32, 16, 8, 8)
    ).to(memory_format=torch.channels_last)
    unet = compile_fn(unet)
    dice = smp.losses.DiceLoss("multiclass")
    opt2 = torch.optim.SGD(unet.parameters(), lr=0.01, momentum=0.9)

    def unetstep():
        opt2.zero_grad()
        x = torch.randn(2, 3, 64, 64).to(memory_format=torch.channels_last)
        y = torch.randint(0, 2, (2, 64, 64))
        p = unet(x)
        loss = dice(p, y) + nn.functional.cross_entropy(p, y)
        loss.backward()
        opt2.step()
        return loss.detach()

    out["unet"] = measure("unet train", unetstep, reps=3)
    from torchvision.models.segmentation import deeplabv3_mobilenet_v3_large

    common.seed(5)
    deep = deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3).eval()
    deep = compile_fn(deep)
    with torch.no_grad():
        x = torch.randn(1, 3, 96, 96)
        out["deeplab"] = measure("deeplabv3 inference", lambda: deep(x), reps=3)
    return out
