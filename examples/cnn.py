"""Adam steps of a torchvision network on random images: `python examples/cnn.py --help`."""

import torch
import torch.nn.functional as F
from steps import parse, train

from ingot.bench.models import import_torchvision

arguments = parse(__doc__, "resnet18", 16)
torch.manual_seed(0)
model = import_torchvision().models.get_model(arguments.model, weights=None)
images = torch.randn(arguments.batch_size, 3, 224, 224)
labels = torch.randint(0, 1000, (arguments.batch_size,))
train(model, lambda f: F.cross_entropy(f(images), labels), arguments)
