"""nn.Module: parameters, buffers, hooks, parametrizations, containers, changes between calls."""

import copy
import weakref

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize

from capture.harness import program


class Block(nn.Module):
    def __init__(self, n=4, scale=1.0):
        super().__init__()
        torch.manual_seed(7)
        self.first = nn.Linear(n, n)
        self.norm = nn.LayerNorm(n)
        self.scale = scale
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        return F.gelu(self.norm(self.first(x))) * self.scale + x


def frozen(module):
    return module.eval().requires_grad_(False)


@program
def a_module_with_changes_between_calls(w):
    module = frozen(Block())
    f = w.compile(module)
    w.call(f, w.t(2, 4))
    w.call(f, w.t(2, 4))
    module.scale = 3.0
    w.call(f, w.t(2, 4))
    module.first.weight.mul_(2)
    w.call(f, w.t(2, 4))
    module.first = frozen(nn.Linear(4, 4))
    w.call(f, w.t(2, 4))
    module.norm = nn.Identity()
    w.call(f, w.t(5, 4))


@program
def weights_are_replaced_and_loaded(w):
    module = frozen(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    f = w.compile(module)
    for _ in range(3):
        for parameter in module.parameters():
            parameter.data = w.t(*parameter.shape)
        w.call(f, w.t(2, 4))
    module.load_state_dict({k: w.t(*v.shape) for k, v in module.state_dict().items()})
    w.call(f, w.t(2, 4))
    module[0].bias = None
    w.call(f, w.t(2, 4))
    module[0].weight = nn.Parameter(w.t(3, 4), requires_grad=False)
    w.call(f, w.t(2, 4))


@program
def buffers_changed_in_place(w):
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))
            self.register_buffer("last", None)

        def forward(self, x):
            self.seen += 1
            self.last = x.mean()
            return x * self.seen

    module = Counter()
    f = w.compile(module)
    for _ in range(4):
        w.call(f, w.t(3))
        w.note(module.seen, module.last)
    module.seen.zero_()
    w.call(f, w.t(3))


@program
def batch_norm_in_both_modes(w):
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU())
    module.requires_grad_(False)
    f = w.compile(module)
    for mode in (True, True, False, True, False):
        module.train(mode)
        w.call(f, w.t(2, 2, 5, 5))
        w.note(module[1].running_mean, module[1].running_var, module[1].num_batches_tracked)


@program
def dropout_and_train_mode(w):
    module = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5))
    module.requires_grad_(False)
    f = w.compile(module)
    for mode in (True, False, True, True):
        module.train(mode)
        w.call(f, w.t(2, 4))
    module[1].p = 0.1
    w.call(f, w.t(2, 4))


@program
def forward_hooks(w):
    module = frozen(Block())
    seen = []

    def pre(_, args):
        seen.append("pre")
        return (args[0] * 2,)

    def post(_, args, output):
        seen.append(tuple(output.shape))
        return output + 1

    f = w.compile(module)
    w.call(f, w.t(2, 4))
    first = module.register_forward_pre_hook(pre)
    w.call(f, w.t(2, 4))
    second = module.norm.register_forward_hook(post)
    w.call(f, w.t(2, 4))
    w.call(f, w.t(2, 4))
    first.remove()
    w.call(f, w.t(2, 4))
    second.remove()
    w.call(f, w.t(2, 4))
    w.note(seen)


@program
def hooks_on_gradients_of_modules(w):
    module, seen = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), []
    for parameter in module.parameters():
        parameter.data = w.t(*parameter.shape)
    f = w.compile(module)

    def changed(module, into, out):
        seen.append([len(into), len(out)])
        return tuple(None if g is None else g * 2 for g in into)

    w.backward(w.call(f, w.t(2, 4)), *module.parameters())
    handle = module[2].register_full_backward_hook(changed)
    for _ in range(2):
        w.backward(w.call(f, w.t(2, 4)), *module.parameters())
    handle.remove()
    handle = module[0].register_full_backward_pre_hook(lambda module, out: (out[0] * 3,))
    x = w.t(2, 4, grad=True)
    w.backward(w.call(f, x), x, *module.parameters())
    handle.remove()
    w.backward(w.call(f, x), x, *module.parameters())
    w.note(seen)


@program
def hooks_with_keyword_arguments(w):
    class Scaled(nn.Module):
        def forward(self, x, *, scale=1):
            return x * scale

    module = Scaled()
    module.register_forward_pre_hook(
        lambda _, args, kwargs: (args, {"scale": kwargs.get("scale", 1) + 1}), with_kwargs=True
    )
    module.register_forward_hook(
        lambda _, args, kwargs, out: out + kwargs["scale"], with_kwargs=True
    )
    f = w.compile(module)
    w.call(f, w.t(2), scale=3)
    w.call(f, w.t(2))
    w.call(f, w.t(2), scale=3)


@program
def containers_of_modules(w):
    class Many(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
            self.heads = nn.ModuleDict({"a": nn.Linear(3, 1), "b": nn.Tanh()})
            self.gains = nn.ParameterList([nn.Parameter(torch.ones(3)) for _ in range(2)])
            self.named = nn.ParameterDict({"shift": nn.Parameter(torch.zeros(3))})

        def forward(self, x, which="a"):
            for k, layer in enumerate(self.layers):
                x = layer(x) + k
            for gain in self.gains:
                x = x * gain
            x = x + self.named["shift"]
            return self.heads[which](x), len(self.layers), list(self.heads)

    module = frozen(Many())
    f = w.compile(module)
    w.call(f, w.t(2, 3))
    w.call(f, w.t(2, 3), "b")
    module.layers.append(frozen(nn.Linear(3, 3)))
    w.call(f, w.t(2, 3))
    module.heads["a"] = nn.Identity()
    w.call(f, w.t(2, 3))
    w.call(f, w.t(2, 3), "missing")


@program
def shared_modules_and_parameters(w):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(10, 4)
            self.head = nn.Linear(4, 10, bias=False)
            self.head.weight = self.embed.weight
            self.layer = nn.Linear(4, 4)
            self.again = self.layer

        def forward(self, tokens):
            return self.head(self.again(self.layer(self.embed(tokens))))

    module = frozen(Tied())
    f = w.compile(module)
    for _ in range(2):
        w.call(f, torch.tensor([[1, 2, 3], [4, 5, 9]]))
    module.embed.weight.add_(1)
    w.call(f, torch.tensor([[1, 2, 3], [4, 5, 9]]))
    w.call(f, torch.tensor([[1, 20]]))


@program
def parametrizations_of_weights(w):
    class Symmetric(nn.Module):
        def forward(self, weight):
            return weight.triu() + weight.triu(1).transpose(-1, -2)

    module = nn.Linear(3, 3)
    f = w.compile(module)
    with torch.no_grad():
        w.call(f, w.t(2, 3))
        parametrize.register_parametrization(module, "weight", Symmetric())
        w.call(f, w.t(2, 3))
        module.parametrizations.weight.original.mul_(2)
        w.call(f, w.t(2, 3))
        with parametrize.cached():
            w.call(f, w.t(2, 3))


@program
def weight_norm(w):
    module = parametrizations.weight_norm(nn.Linear(3, 4)).eval().requires_grad_(False)
    f = w.compile(module)
    for _ in range(3):
        w.call(f, w.t(2, 3))


@program
def spectral_norm_in_training(w):
    module = parametrizations.spectral_norm(nn.Linear(3, 4)).requires_grad_(False)
    f = w.compile(module)
    for _ in range(3):
        w.call(f, w.t(2, 3))
        w.note(module.parametrizations.weight[0]._u)


@program
def methods_other_than_forward(w):
    class Coder(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 2)

        def encode(self, x):
            return self.inner(x).relu()

        def decode(self, z):
            return z @ self.inner.weight

        def forward(self, x):
            return self.decode(self.encode(x))

    module = frozen(Coder())
    encode = w.compile(module.encode)
    for _ in range(2):
        w.call(encode, w.t(2, 3))
    f = w.compile(module)
    w.call(f, w.t(2, 3))
    w.call(f.decode, w.t(2, 2))


@program
def attributes_are_set_in_forward(w):
    class Caching(nn.Module):
        def __init__(self):
            super().__init__()
            self.cache = None
            self.steps = 0

        def forward(self, x):
            self.steps += 1
            self.cache = x if self.cache is None else torch.cat([self.cache, x])
            return self.cache * self.steps

    module = Caching()
    f = w.compile(module)
    for _ in range(4):
        w.call(f, w.t(2))
    module.cache = None
    w.call(f, w.t(2))
    w.note(module.cache, module.steps)


@program
def a_module_is_moved_to_another_type(w):
    module = frozen(Block())
    f = w.compile(module)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float32):
        module.to(dtype)
        w.call(f, w.t(2, 4, dtype=dtype))


@program
def copies_of_modules(w):
    module = frozen(Block())
    f = w.compile(module)
    w.call(f, w.t(2, 4))
    twin = copy.deepcopy(f)
    twin.scale = 5.0
    w.call(twin, w.t(2, 4))
    w.call(f, w.t(2, 4))


@program
def iterating_over_a_module(w):
    module = frozen(Block())

    def f(x):
        total = sum(p.sum() for p in module.parameters())
        names = [name for name, _ in module.named_parameters()]
        kinds = [type(m).__name__ for m in module.modules()]
        return x + total, names, kinds, sorted(module.state_dict())

    f = w.compile(f)
    w.call(f, w.t(2))
    module.extra = nn.Parameter(torch.ones(2), requires_grad=False)
    w.call(f, w.t(2))


@program
def get_submodule_and_apply(w):
    module = frozen(Block())
    seen = []

    def f(x):
        module.apply(lambda m: seen.append(type(m).__name__))
        return module.get_submodule("first")(x), module.training

    f = w.compile(f)
    for _ in range(2):
        w.call(f, w.t(2, 4))
        w.note(seen)


@program
def rnn_layers(w):
    module = frozen(nn.LSTM(3, 4, num_layers=2, batch_first=True))
    f = w.compile(module)
    out = w.call(f, w.t(2, 5, 3))
    w.call(f, w.t(2, 5, 3), out[1])
    w.call(w.compile(frozen(nn.GRUCell(3, 4))), w.t(2, 3))


@program
def attention_layers(w):
    layer = frozen(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True))
    f = w.compile(layer)
    w.call(f, w.t(2, 5, 8))
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1)
    w.call(f, w.t(2, 5, 8), src_mask=mask)
    attention = frozen(nn.MultiheadAttention(8, 2, batch_first=True))
    x = w.t(2, 5, 8)
    w.call(w.compile(attention), x, x, x)


@program
def lazy_layers(w):
    module = nn.Sequential(nn.LazyLinear(4), nn.ReLU())
    torch.manual_seed(1)
    f = w.compile(module)
    with torch.no_grad():
        for _ in range(2):
            w.call(f, w.t(2, 3))


@program
def functional_call(w):
    module = frozen(nn.Linear(3, 3))

    def f(x, weight):
        return torch.func.functional_call(module, {"weight": weight}, (x,))

    f = w.compile(f)
    for _ in range(2):
        w.call(f, w.t(2, 3), w.t(3, 3))


@program
def convolutions_pools_and_padding(w):
    module = frozen(
        nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.MaxPool2d(2), nn.Flatten())
    )

    def f(x):
        y = F.pad(F.interpolate(x, scale_factor=0.5), (1, 1, 0, 2), value=1.0)
        return module(x), F.avg_pool2d(y, 2), F.adaptive_avg_pool2d(x, 1)

    f = w.compile(f)
    for n in (8, 8, 12):
        w.call(f, w.t(1, 3, n, n))


@program
def recurrent_networks(w):
    torch.manual_seed(0)

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.LSTM(4, 3)
            self.second = nn.GRU(4, 3, bidirectional=True, batch_first=True)

        def forward(self, x, state=None):
            out, state = self.first(x, state)
            return out, state, self.second(x)[0]

    module = Two()
    f = w.compile(module)
    for rows in (5, 5, 6, 5):
        out = w.call(f, w.t(rows, 2, 4))
        w.call(f, w.t(rows, 2, 4), out[1])
    module.zero_grad()
    w.backward(w.call(f, w.t(5, 2, 4))[0], *module.first.parameters())
    with torch.no_grad():
        module.first.weight_ih_l0.mul_(2)
    w.call(f, w.t(5, 2, 4))
    module.first.weight_hh_l0 = nn.Parameter(w.t(12, 3))
    w.call(f, w.t(5, 2, 4))
    module.double()
    w.call(f, w.t(5, 2, 4).double())


@program
def weak_references_are_followed(w):
    class Part:
        def __init__(self, scale):
            self.scale = scale

    part = Part(2)
    holder = {"one": weakref.ref(part), "other": weakref.ref(part)}

    def f(x):
        found = holder["one"]()
        return x if found is None else x * found.scale

    f = w.compile(f)
    for _ in range(2):
        w.call(f, w.t(3))
    part.scale = 3
    w.call(f, w.t(3))
    second = Part(5)
    holder["one"] = weakref.ref(second)
    w.call(f, w.t(3))
    del second
    w.call(f, w.t(3))
    w.note(holder["one"]() is None, holder["other"]() is part)
    holder["one"] = weakref.ref(part)
    w.call(f, w.t(3))
