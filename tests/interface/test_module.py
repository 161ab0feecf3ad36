"""The compiled form of a module: the module itself for everything but the speed of its calls."""

import copy
import inspect
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import ingot


class Net(nn.Module):
    """Parameters, a buffer, a child, a plain attribute, a property, a method that calls itself."""

    registry: list = []  # noqa: RUF012

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        Net.registry.append(cls)

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)
        self.register_buffer("shift", torch.ones(6))
        self.scale = 2.0

    @property
    def width(self):
        return self.first.out_features

    def forward(self, x, *, flip: bool = False):
        y = self.norm(self.first(x)) * self.scale + self.shift
        return -y if flip else y

    def twice(self, x):
        return self(x) + self(x, flip=True)


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture
def x():
    return torch.randn(3, 4)


def test_it_is_of_the_modules_class_and_calls_alike(net, x):
    compiled = ingot.compile(net)
    assert isinstance(compiled, Net) and isinstance(compiled, ingot.CompiledModule)
    assert compiled.__class__ is Net and type(compiled).__name__ == "Net"
    assert repr(compiled) == repr(net)
    assert compiled._orig_mod is net
    assert Net.registry == []
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), net(x))
        torch.testing.assert_close(compiled(x, flip=True), net(x, flip=True))
        torch.testing.assert_close(compiled.twice(x), net.twice(x))
    assert inspect.signature(compiled.forward) == inspect.signature(net.forward)
    assert inspect.signature(compiled.__call__) == inspect.signature(net.__call__)
    with pytest.raises(TypeError, match="unexpected keyword"):
        compiled(x, flop=True)


def test_attributes_are_shared_both_ways(net, x):
    compiled = ingot.compile(net)
    compiled.scale = 3.0
    assert net.scale == 3.0
    net.extra = "seen"
    assert compiled.extra == "seen" and compiled.width == 6
    compiled.first.weight.data.zero_()
    compiled.shift = torch.full((6,), 7.0)
    assert net.shift[0] == 7
    del compiled.extra
    assert not hasattr(net, "extra")
    compiled.head = nn.Linear(6, 1)
    assert net.head is compiled.head
    with pytest.raises(AttributeError, match="'Net' object has no attribute 'missing'"):
        _ = compiled.missing
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), net(x))


def test_changes_between_calls_are_seen(net, x):
    compiled = ingot.compile(net)
    with torch.no_grad():
        for change in (
            lambda: setattr(net, "scale", -1.5),
            lambda: net.first.weight.mul_(2),
            lambda: setattr(compiled, "shift", torch.randn(6)),
            lambda: setattr(net, "first", nn.Linear(4, 6)),
            lambda: compiled.register_forward_hook(lambda module, args, out: out + 1),
            lambda: net.register_forward_pre_hook(lambda module, args: (args[0] * 2,)),
            lambda: net.double(),
        ):
            change()
            value = x.to(net.first.weight.dtype)
            torch.testing.assert_close(compiled(value), net(value))


def test_state_and_moves(net, x):
    compiled = ingot.compile(net)
    assert list(compiled.state_dict()) == list(net.state_dict())
    assert "first.weight" in compiled.state_dict()
    assert [id(p) for p in compiled.parameters()] == [id(p) for p in net.parameters()]
    assert [name for name, _ in compiled.named_modules()] == ["", "first", "norm"]
    assert compiled.train() is compiled and net.training
    assert compiled.eval() is compiled and not net.training
    assert compiled.to(torch.float64) is compiled and net.shift.dtype == torch.float64
    compiled.float()
    other = Net().eval()
    compiled.load_state_dict(other.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), other(x))
    compiled.requires_grad_(False)
    assert not any(p.requires_grad for p in net.parameters())


def test_training_updates_buffers(net):
    compiled = ingot.compile(net).train()
    twin = copy.deepcopy(net).train()
    for _ in range(3):
        x = torch.randn(5, 4)
        torch.testing.assert_close(compiled(x), twin(x))
        torch.testing.assert_close(net.norm.running_mean, twin.norm.running_mean)
        assert net.norm.num_batches_tracked == twin.norm.num_batches_tracked


def test_gradients(net, x):
    compiled = ingot.compile(net)
    twin = copy.deepcopy(net)
    compiled(x).square().sum().backward()
    twin(x).square().sum().backward()
    for one, other in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("kind", ["deepcopy", "copy", "pickle", "torch.save"])
def test_copies_are_compiled_modules_of_their_own(net, x, kind):
    compiled = ingot.compile(net, dynamic=False)
    if kind == "deepcopy":
        twin = copy.deepcopy(compiled)
    elif kind == "copy":
        twin = copy.copy(compiled)
    elif kind == "pickle":
        twin = pickle.loads(pickle.dumps(compiled))
    else:
        file = io.BytesIO()
        torch.save(compiled, file)
        file.seek(0)
        twin = torch.load(file, weights_only=False)
    assert isinstance(twin, ingot.CompiledModule) and isinstance(twin, Net)
    assert twin._orig_mod is not net and twin._ingot_settings.dynamic is False
    with torch.no_grad():
        torch.testing.assert_close(twin(x), net(x))
    twin.scale = 100.0
    assert net.scale == 2.0


def test_it_is_a_child_like_any_other(net, x):
    outer = nn.Sequential(ingot.compile(net), nn.ReLU())
    assert "0.first.weight" in outer.state_dict()
    with torch.no_grad():
        torch.testing.assert_close(outer(x), net(x).relu())
        torch.testing.assert_close(ingot.compile(outer)(x), net(x).relu())


def test_compiling_twice_wraps_once(net):
    compiled = ingot.compile(ingot.compile(net), dynamic=True)
    assert compiled._orig_mod is net


def test_lazy_and_parametrized_modules_change_their_class(x):
    lazy = ingot.compile(nn.LazyLinear(3))
    with torch.no_grad():
        assert lazy(x).shape == (3, 3)
        assert type(lazy._orig_mod) is nn.Linear and isinstance(lazy, nn.Linear)
        torch.testing.assert_close(lazy(x), lazy._orig_mod(x))

        class Double(nn.Module):
            def forward(self, weight):
                return weight * 2

        parametrize.register_parametrization(lazy, "weight", Double())
        assert parametrize.is_parametrized(lazy._orig_mod)
        torch.testing.assert_close(lazy(x), lazy._orig_mod(x))


def test_containers_keep_their_protocols(x):
    layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    compiled = ingot.compile(layers)
    assert len(compiled) == 2 and compiled[0] is layers[0] and list(compiled) == list(layers)


def test_in_place(net, x):
    with torch.no_grad():
        expected = net(x)
        assert ingot.compile_in_place(net, dynamic=False) is None
        torch.testing.assert_close(net(x), expected)
    assert type(net) is Net
    assert net._compiled_call_impl._ingot_settings.dynamic is False
    with pytest.raises(TypeError, match="expected a torch"):
        ingot.compile_in_place(len)


def test_script_modules_are_refused():
    with pytest.raises(RuntimeError, match="compile the original eager module instead"):
        ingot.compile(torch.jit.script(nn.Linear(2, 2)))


def test_who_asks_for_the_name_of_torch_compiles_wrapper(net):
    """The original is there for who reads it; who asks whether it is there (as PEFT's
    hotswap_adapter does) would go on to expect the name in the keys of the state.
    """
    compiled = ingot.compile(net)
    assert compiled._orig_mod is net and compiled._orig_mod.state_dict().keys()
    assert not hasattr(compiled, "_orig_mod")
    assert getattr(compiled, "_orig_mod", compiled) is compiled
    keys = set(compiled.state_dict())
    for key in net.state_dict():
        keys.remove("_orig_mod." + key if hasattr(compiled, "_orig_mod") else key)
    assert not keys
