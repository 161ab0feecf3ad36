"""Gradients of whole models, all losses of torch.nn, and modules' own cases, against float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from judge import assert_as_good, compile_all, double, gradients

import ingot
from ingot.bench.models import import_torchvision, import_transformers

SIDE = 64


def images(count: int = 4) -> tuple:
    return torch.randn(count, 3, SIDE, SIDE), torch.randint(0, 10, (count,))


def resnet():
    models = import_torchvision().models
    return models.resnet.ResNet(models.resnet.BasicBlock, [1, 1, 1, 1], num_classes=10)


def mobilenet():
    return import_torchvision().models.mobilenet_v3_small(num_classes=10, dropout=0.2)


def vit():
    return import_torchvision().models.VisionTransformer(
        image_size=SIDE, patch_size=16, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=64,
        num_classes=10, dropout=0.1,
    )  # fmt: skip


SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 64, "vocab_size": 100}  # fmt: skip


def bert():
    t = import_transformers()
    return t.BertForSequenceClassification(t.BertConfig(**SMALL))


def distilbert():
    t = import_transformers()
    return t.DistilBertForSequenceClassification(
        t.DistilBertConfig(dim=32, n_layers=2, n_heads=4, hidden_dim=64, vocab_size=100)
    )


def gpt2():
    t = import_transformers()
    return t.GPT2LMHeadModel(
        t.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=100, loss_type="ForCausalLM")
    )


def image_loss(model: Callable, data: tuple) -> torch.Tensor:
    return F.cross_entropy(model(data[0]), data[1])


def class_loss(model: Callable, data: tuple) -> torch.Tensor:
    return model(input_ids=data[0], attention_mask=data[1], labels=data[2]).loss


def text_loss(model: Callable, data: tuple) -> torch.Tensor:
    logits = model(input_ids=data[0], use_cache=False).logits
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), data[0][:, 1:].flatten())


def sentences() -> tuple:
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 9:] = 0
    return torch.randint(0, 100, (2, 12)), mask, torch.randint(0, 2, (2,))


MODELS = {
    "resnet": (resnet, images, image_loss),
    "mobilenet": (mobilenet, images, image_loss),
    "vit": (vit, images, image_loss),
    "bert": (bert, sentences, class_loss),
    "distilbert": (distilbert, sentences, class_loss),
    "gpt2": (gpt2, sentences, text_loss),
}


def prepared(name: str) -> tuple:
    """The model, its data, loss and leaves, and a copy of the state it starts from."""
    build, make, loss = MODELS[name]
    torch.manual_seed(0)
    model, data = build().train(), make()
    start = {k: v.clone() for k, v in model.state_dict().items()}
    return model, data, loss, list(model.parameters()), start


@pytest.mark.parametrize("name", MODELS)
def test_model(name):
    model, data, loss, leaves, start = prepared(name)
    want_loss, _ = gradients(lambda: loss(model, data), leaves)
    model.load_state_dict(start)
    compiled = compile_all(model)
    got_loss, _ = gradients(lambda: loss(compiled, data), leaves)
    torch.testing.assert_close(got_loss, want_loss)
    without_dropout(model)
    ingot.reset()
    assert_gradients_as_good(model, compile_all(model), start, data, loss)


@pytest.mark.parametrize("name", MODELS)
def test_model_with_the_least_memory(name):
    # Nearly all of the forward is computed again. Dropout's masks are not: they are eager's still.
    model, data, loss, leaves, start = prepared(name)
    options = {"memory_budget": 0.0, "fallback": False}
    want_loss, want = gradients(lambda: loss(model, data), leaves)
    want_state = {k: v.clone() for k, v in model.state_dict().items()}
    model.load_state_dict(start)
    compiled = ingot.compile(model, fullgraph=True, options=options)
    got_loss, got = gradients(lambda: loss(compiled, data), leaves)
    torch.testing.assert_close(got_loss, want_loss)
    torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-3)
    # Statistics of batch norms move once.
    torch.testing.assert_close(dict(model.state_dict()), want_state)
    without_dropout(model)
    ingot.reset()
    compiled = ingot.compile(model, fullgraph=True, options=options)
    assert_gradients_as_good(model, compiled, start, data, loss)


def without_dropout(model: torch.nn.Module) -> None:
    """A float64 model draws other masks, so the judgement is passed without dropout."""
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
        for key in ("attn_pdrop", "attention_dropout"):
            if isinstance(getattr(part, key, None), float):
                setattr(part, key, 0.0)


def assert_gradients_as_good(model, compiled, start, data, loss):
    names, leaves = zip(*model.named_parameters(), strict=True)
    model.load_state_dict(start)
    _, want = gradients(lambda: loss(model, data), leaves)
    model.load_state_dict(start)
    _, got = gradients(lambda: loss(compiled, data), leaves)
    model.load_state_dict(start)
    wide = double(model)
    _, exact = gradients(lambda: loss(wide, double(data)), list(wide.parameters()))
    assert_model_as_good(got, want, exact, names)


def assert_model_as_good(got, want, exact, names):
    """By the whole gradient: a single parameter's error is a matter of chance."""
    error = {"got": 0.0, "want": 0.0, "norm": 0.0}
    for name, g, w, x in zip(names, got, want, exact, strict=True):
        assert (g is None) == (w is None), name
        if w is None:
            continue
        assert (g.dtype, g.shape, g.stride()) == (w.dtype, w.shape, w.stride()), name
        error["got"] += (g.double() - x).square().sum().item()
        error["want"] += (w.double() - x).square().sum().item()
        error["norm"] += x.square().sum().item()
    eps = torch.finfo(torch.float32).eps
    assert error["got"] ** 0.5 <= 2 * error["want"] ** 0.5 + 2 * eps * error["norm"] ** 0.5, error


def scores(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, requires_grad=True)


def chances(*sizes: int) -> torch.Tensor:
    return torch.rand(*sizes).clamp(0.05, 0.95).requires_grad_()


def targets(*sizes: int) -> torch.Tensor:
    return torch.randint(0, 5, sizes)


SIGNS = torch.tensor([1, -1, 1, 1, -1, -1])
LOSSES = {
    "L1": (torch.nn.L1Loss, lambda: (scores(6, 5), torch.randn(6, 5))),
    "MSE": (torch.nn.MSELoss, lambda: (scores(6, 5), torch.randn(6, 5))),
    "CrossEntropy": (torch.nn.CrossEntropyLoss, lambda: (scores(6, 5), targets(6))),
    "CrossEntropy2d": (torch.nn.CrossEntropyLoss, lambda: (scores(2, 5, 3, 4), targets(2, 3, 4))),
    "CrossEntropyProb": (
        torch.nn.CrossEntropyLoss,
        lambda: (scores(6, 5), torch.rand(6, 5).softmax(1)),
    ),
    "CTC": (
        torch.nn.CTCLoss,
        lambda: (
            scores(12, 2, 5).log_softmax(2).detach().requires_grad_(),
            torch.randint(1, 5, (2, 4)),
            (12, 12),
            (4, 3),
        ),
    ),
    "NLL": (torch.nn.NLLLoss, lambda: (scores(6, 5), targets(6))),
    "PoissonNLL": (torch.nn.PoissonNLLLoss, lambda: (scores(6, 5), torch.rand(6, 5))),
    "GaussianNLL": (
        torch.nn.GaussianNLLLoss,
        lambda: (scores(6, 5), torch.randn(6, 5), torch.rand(6, 5) + 0.1),
    ),
    "KLDiv": (torch.nn.KLDivLoss, lambda: (scores(6, 5), torch.rand(6, 5).softmax(1))),
    "BCE": (torch.nn.BCELoss, lambda: (chances(6, 5), torch.rand(6, 5))),
    "BCEWithLogits": (torch.nn.BCEWithLogitsLoss, lambda: (scores(6, 5), torch.rand(6, 5))),
    "MarginRanking": (torch.nn.MarginRankingLoss, lambda: (scores(6), scores(6), SIGNS)),
    "HingeEmbedding": (torch.nn.HingeEmbeddingLoss, lambda: (scores(6), SIGNS)),
    "MultiLabelMargin": (torch.nn.MultiLabelMarginLoss, lambda: (scores(6, 5), targets(6, 5))),
    "Huber": (torch.nn.HuberLoss, lambda: (scores(6, 5), torch.randn(6, 5) * 2)),
    "SmoothL1": (torch.nn.SmoothL1Loss, lambda: (scores(6, 5), torch.randn(6, 5) * 2)),
    "SoftMargin": (torch.nn.SoftMarginLoss, lambda: (scores(6), SIGNS)),
    "MultiLabelSoftMargin": (
        torch.nn.MultiLabelSoftMarginLoss,
        lambda: (scores(6, 5), torch.randint(0, 2, (6, 5)).float()),
    ),
    "CosineEmbedding": (
        torch.nn.CosineEmbeddingLoss,
        lambda: (scores(6, 5), scores(6, 5), SIGNS),
    ),
    "MultiMargin": (torch.nn.MultiMarginLoss, lambda: (scores(6, 5), targets(6))),
    "TripletMargin": (
        torch.nn.TripletMarginLoss,
        lambda: (scores(6, 5), scores(6, 5), scores(6, 5)),
    ),
}


# Dynamo leaves these, or what they ask of their arguments, to Python.
BREAKS = {"CTC", "GaussianNLL", "MultiLabelMargin", "MultiMargin"}


def compiled_whole_or_not(name: str, function: Callable) -> Callable:
    return ingot.compile(function) if name in BREAKS else compile_all(function)


@pytest.mark.parametrize("name", LOSSES)
def test_loss(name):
    build, make = LOSSES[name]
    torch.manual_seed(0)
    arguments = make()
    leaves = [a for a in arguments if isinstance(a, torch.Tensor) and a.requires_grad]
    wide = double(arguments)
    wide_leaves = [a for a in wide if isinstance(a, torch.Tensor) and a.requires_grad]
    for reduction in ("mean", "sum"):
        loss = build(reduction=reduction)
        _, want = gradients(lambda loss=loss: loss(*arguments), leaves)
        compiled = compiled_whole_or_not(name, loss)
        _, got = gradients(lambda f=compiled: f(*arguments), leaves)
        _, exact = gradients(lambda loss=loss: loss(*wide), wide_leaves)
        assert_as_good(got, want, exact)


ACTIVATIONS = [
    "ELU", "Hardshrink", "Hardsigmoid", "Hardtanh", "Hardswish", "LeakyReLU", "LogSigmoid",
    "PReLU", "ReLU", "ReLU6", "SELU", "CELU", "GELU", "Sigmoid", "SiLU", "Mish", "Softplus",
    "Softshrink", "Softsign", "Tanh", "Tanhshrink", "GLU",
]  # fmt: skip


def test_activations():
    """All of them as one function, at their corners too."""
    layers = [getattr(torch.nn, name)() for name in ACTIVATIONS]
    x = torch.cat([torch.linspace(-25, 25, 200), torch.tensor([-3.0, 3.0, 0.0, 6.0])])
    x = x.repeat(2, 1).requires_grad_()

    def f(x):
        return [layer(x) for layer in layers]

    wide_layers = [double(layer) for layer in layers]
    wide = double(x)
    exact = [layer(wide) for layer in wide_layers]
    compiled = compile_all(f)(x)
    for name, got, want, truth in zip(ACTIVATIONS, compiled, f(x), exact, strict=True):
        (g,) = torch.autograd.grad(got, [x], torch.ones_like(got), retain_graph=True)
        (w,) = torch.autograd.grad(want, [x], torch.ones_like(want))
        (t,) = torch.autograd.grad(truth, [wide], torch.ones_like(truth))
        assert_as_good([g], [w], [t], [name])


LAYERS = {
    "conv1d": (lambda: torch.nn.Conv1d(3, 4, 3, stride=2, padding=1), (2, 3, 11)),
    "conv2d": (lambda: torch.nn.Conv2d(4, 6, 3, padding=1, groups=2), (2, 4, 9, 7)),
    "conv3d": (lambda: torch.nn.Conv3d(2, 3, 2, dilation=2), (1, 2, 6, 6, 6)),
    "conv_transpose2d": (lambda: torch.nn.ConvTranspose2d(3, 4, 3, stride=2), (2, 3, 5, 5)),
    "batch_norm": (lambda: torch.nn.BatchNorm2d(3), (4, 3, 5, 5)),
    "batch_norm_eval": (lambda: torch.nn.BatchNorm2d(3).eval(), (4, 3, 5, 5)),
    "group_norm": (lambda: torch.nn.GroupNorm(2, 4), (2, 4, 5, 5)),
    "layer_norm": (lambda: torch.nn.LayerNorm([4, 5]), (3, 4, 5)),
    "layer_norm_plain": (lambda: torch.nn.LayerNorm(5, elementwise_affine=False), (3, 4, 5)),
    "instance_norm": (lambda: torch.nn.InstanceNorm2d(3, affine=True), (2, 3, 5, 5)),
    "rms_norm": (lambda: torch.nn.RMSNorm(5), (3, 4, 5)),
    "max_pool": (lambda: torch.nn.MaxPool2d(3, 2, 1), (2, 3, 9, 9)),
    "avg_pool": (lambda: torch.nn.AvgPool2d(3, 2, 1), (2, 3, 9, 9)),
    "adaptive_pool": (lambda: torch.nn.AdaptiveAvgPool2d((2, 3)), (2, 3, 9, 9)),
    "upsample": (lambda: torch.nn.Upsample(scale_factor=2, mode="bilinear"), (2, 3, 5, 5)),
    "lstm": (lambda: First(torch.nn.LSTM(5, 6, batch_first=True)), (2, 4, 5)),
    "gru": (lambda: First(torch.nn.GRU(5, 6, batch_first=True)), (2, 4, 5)),
    "attention": (lambda: SelfAttention(8, 2), (2, 5, 8)),
    "encoder": (
        lambda: torch.nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), (2, 5, 8)
    ),
}  # fmt: skip


class First(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)[0]


class SelfAttention(torch.nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.inner = torch.nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x, x, x, need_weights=False)[0]


@pytest.mark.parametrize("name", LAYERS)
def test_layer(name):
    build, sizes = LAYERS[name]
    torch.manual_seed(0)
    layer, x = build(), torch.randn(*sizes, requires_grad=True)
    wide, wide_x = double(layer), double(x)
    weight = None

    def loss(f, x):
        nonlocal weight
        y = f(x)
        if weight is None:
            weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(7))
        return (y * weight.to(y.dtype)).sum()

    leaves = [x, *layer.parameters()]
    _, want = gradients(lambda: loss(layer, x), leaves)
    compiled = compiled_whole_or_not(name, layer)
    _, got = gradients(lambda: loss(compiled, x), leaves)
    _, exact = gradients(lambda: loss(wide, wide_x), [wide_x, *wide.parameters()])
    assert_as_good(got, want, exact)


@pytest.mark.parametrize("name", ["resnet", "bert"])
def test_bf16_autocast(name):
    build, make, loss = MODELS[name]
    torch.manual_seed(0)
    model, data = build().eval(), make()
    names, leaves = zip(*model.named_parameters(), strict=True)

    def step(f):
        with torch.autocast("cpu", torch.bfloat16):
            return loss(f, data)

    _, want = gradients(lambda: step(model), leaves)
    compiled = compile_all(model)
    _, got = gradients(lambda: step(compiled), leaves)
    wide = double(model)
    _, exact = gradients(lambda: loss(wide, double(data)), list(wide.parameters()))
    assert_model_as_good(got, want, exact, names)


class Heads(torch.nn.Module):
    """Attention whose heads are pieces of one product's result, however they lie in it."""

    def __init__(self, order: str, masked: bool = False, causal: bool = False) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(24, 72), torch.nn.Linear(24, 24)
        self.order, self.masked, self.causal = order, masked, causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, c = x.shape
        y, heads = self.first(x), 3
        if self.order == "rows":
            q, k, v = y.view(b, n, 3, heads, 8).permute(2, 0, 3, 1, 4).unbind(0)
        elif self.order == "between":  # a head's elements lie apart
            q, k, v = y.view(b, n, 3, 8, heads).permute(2, 0, 4, 1, 3).unbind(0)
        else:
            q, k, v = (p.reshape(b, heads, n, 8) for p in y.chunk(3, -1))
        mask = torch.full((n, n), -1.0).triu() if self.masked else None
        a = F.scaled_dot_product_attention(q, k, v, mask, is_causal=self.causal)
        return self.last(a.transpose(1, 2).reshape(b, n, c))


@pytest.mark.parametrize("order", ["rows", "between", "blocks"])
@pytest.mark.parametrize("more", [{}, {"masked": True}, {"causal": True}])
def test_heads_that_lie_anywhere(order, more):
    torch.manual_seed(0)
    model = torch.nn.Sequential(Heads("rows"), Heads(order, **more))
    x = torch.randn(2, 11, 24, requires_grad=True)
    wide, wide_x = double(model), double(x)

    def loss(f, x):
        return f(x).square().sum()

    leaves = [x, *model.parameters()]
    _, want = gradients(lambda: loss(model, x), leaves)
    _, exact = gradients(lambda: loss(wide, wide_x), [wide_x, *wide.parameters()])
    compiled = compile_all(model)
    for _ in range(2):
        _, got = gradients(lambda: loss(compiled, x), leaves)
        assert_as_good(got, want, exact)


def test_attentions_gradient_is_given_heads_as_they_lie():
    model, x = torch.nn.Sequential(Heads("rows"), Heads("rows")), torch.randn(2, 11, 24)
    compiled = compile_all(model)
    compiled(x).sum().backward()
    loss = compiled(x).sum()
    with torch.profiler.profile(record_shapes=True) as record:
        loss.backward()
    names = [e.name for e in record.events()]
    assert "aten::_scaled_dot_product_flash_attention_for_cpu_backward" in names
    copied = [e.input_shapes[0] for e in record.events() if e.name == "aten::copy_"]
    assert [2, 3, 11, 8] not in copied
