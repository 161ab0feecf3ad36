"""Adam steps of a vision transformer on random images: `python examples/vit.py --help`."""

import torch
import torch.nn.functional as F
from steps import parse, train

from ingot.bench.models import import_torchvision

arguments = parse(__doc__, "vit_small_patch16_224", 8)
torch.manual_seed(0)
import_torchvision()
import timm  # noqa: E402  (needs torchvision first)

model = timm.create_model(arguments.model, pretrained=False)
images = torch.randn(arguments.batch_size, 3, 224, 224)
labels = torch.randint(0, 1000, (arguments.batch_size,))
train(model, lambda f: F.cross_entropy(f(images), labels), arguments)
