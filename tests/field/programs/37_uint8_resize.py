"""An image processor resizes uint8 pictures with torchvision's v2 transforms, jitters colours and normalises them.

Reported: pytorch/pytorch#185894, #155209 and intel/torch-xpu-ops#1830 (compiled uint8 resize differs by up to 255), pytorch/vision#8056.
Right: eager's bytes; with other sizes, antialias and interpolation each call.
"""

import torch

try:  # torchvision's compiled operators may not load here; only its Python is wanted.
    torch.ops.torchvision.nms
except (AttributeError, RuntimeError):
    _library = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _library.define(_name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

timed = True


def resize(image, size, mode, antialias):
    return F.resize(image, size, interpolation=mode, antialias=antialias)


def prepare(image, mean, std, factor):
    x = F.center_crop(image, [20, 18])
    bytes_ = F.adjust_brightness(x, factor)
    x = F.to_dtype(
        x, torch.float32, scale=True
    )  # on bytes the last bit of a float decides the level
    x = F.adjust_contrast(x, factor)
    x = F.adjust_saturation(x, 1 / factor)
    x = F.rgb_to_grayscale(x, num_output_channels=3) if factor > 1.2 else F.invert(x)
    y = F.normalize(x, mean, std)
    return (
        x,
        y,
        F.horizontal_flip(F.pad(bytes_, [1, 2, 3, 4], fill=7)),
        F.to_dtype(image, torch.float32, scale=True),
        F.to_dtype(image, torch.int16),
    )


def bend(image, factor):
    return (
        F.adjust_hue(image.float() / 255, factor),
        F.adjust_gamma(image, 1 + factor),
        F.posterize(image, 3),
        F.equalize(image),
        F.autocontrast(image),
        F.rotate(image, 30.0, InterpolationMode.NEAREST),
        F.gaussian_blur(image, [3, 5], [1.0, 1.5]),
    )


def run(compile_fn):
    notes = []
    fast, prepared, bent = compile_fn(resize), compile_fn(prepare), compile_fn(bend)
    for seed, (shape, size) in enumerate(
        (
            ((1, 2, 3, 33, 26), (18, 18)),
            ((1, 2, 3, 33, 26), (18, 18)),
            ((3, 41, 30), (64, 50)),
            ((2, 3, 24, 24), (12, 30)),
        )
    ):
        torch.manual_seed(seed)
        image = torch.randint(0, 256, shape, dtype=torch.uint8)
        for mode in (
            InterpolationMode.BICUBIC,
            InterpolationMode.BILINEAR,
            InterpolationMode.NEAREST,
            InterpolationMode.NEAREST_EXACT,
        ):
            for antialias in (True, False):
                notes.append(fast(image, size, mode, antialias))
        notes.append(fast(image.float(), size, InterpolationMode.BILINEAR, True))
        notes.append(prepared(image, [0.5, 0.4, 0.3], [0.2, 0.3, 0.4], 1.1 + 0.1 * seed))
        notes.append(bent(image, 0.1 * (seed + 1)))
    return notes


def bench(compile_fn):
    image = torch.randint(0, 256, (3, 120, 160), dtype=torch.uint8)

    def whole(image):
        x = F.resize(image, [64, 64], antialias=True)
        return F.normalize(F.to_dtype(x, torch.float32, scale=True), [0.5] * 3, [0.2] * 3)

    fast = compile_fn(whole)
    return lambda: fast(image)
