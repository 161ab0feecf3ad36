"""Adam steps of a BERT classifier on random text: `python examples/bert.py --help`.

`--model` is the number of layers: base has 12, tiny has 2.
"""

import torch
import torch.nn.functional as F
from steps import parse, train

from ingot.bench.models import import_transformers

SIZES = {
    "base": {},
    "tiny": {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
             "intermediate_size": 512},
}  # fmt: skip
arguments = parse(__doc__, "base", 4)
torch.manual_seed(0)
transformers = import_transformers()
config = transformers.BertConfig(**SIZES[arguments.model])
model = transformers.BertForSequenceClassification(config)
ids = torch.randint(0, config.vocab_size, (arguments.batch_size, 128))
labels = torch.randint(0, 2, (arguments.batch_size,))
train(model, lambda f: F.cross_entropy(f(input_ids=ids).logits, labels), arguments)
