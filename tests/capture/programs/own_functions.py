"""Custom `autograd.Function`s: forwards and backwards of the program's own, some of them nasty."""

import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from capture.harness import program

LOG = []
SCALE = 2.0


def go(w, output, *leaves, **arguments):
    """A backward of which everything is noted: an exception, what is printed, the gradients."""

    def backward():
        total = sum(t.square().sum() for t in (output if isinstance(output, tuple) else (output,)))
        total.backward(**arguments)

    if isinstance(output, (torch.Tensor, tuple)):
        w.call(backward)
    w.note([leaf.grad for leaf in leaves], list(LOG))
    LOG.clear()
    for leaf in leaves:
        leaf.grad = None


def steps(w, function, count=3, size=3):
    function = w.compile(function)
    for _ in range(count):
        x = w.t(size, grad=True)
        go(w, w.call(function, x), x)
    return function


class Wrong(Function):
    """Its gradient is not that of its forward: ours must be called."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x + 7)


@program
def a_gradient_of_its_own(w):
    steps(w, lambda x: Wrong.apply(x * 2).exp() + x)


@program
def in_a_loop_and_in_a_module(w):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(w.t(3))

        def forward(self, x):
            for _ in range(3):
                x = Wrong.apply(x * self.weight)
            return x

    net = Net()
    f = w.compile(net)
    for _ in range(3):
        x = w.t(3, grad=True)
        go(w, w.call(f, x), x, net.weight)


class Two(Function):
    @staticmethod
    def forward(ctx, x, y, scale, name=None):
        ctx.scale, ctx.name = scale, name
        ctx.mask = x > 0
        ctx.save_for_backward(x, y)
        return x * y, x + y * scale, name

    @staticmethod
    def backward(ctx, a, b, c):
        x, y = ctx.saved_tensors
        gx = gy = None
        if ctx.needs_input_grad[0]:
            gx = torch.where(ctx.mask, a * y + b, b * 3)
        if ctx.needs_input_grad[1]:
            gy = a * x + b * ctx.scale
        return gx, gy, None, None


@program
def several_outputs_and_things_that_are_no_tensors(w):
    def f(x, y, scale):
        a, b, name = Two.apply(x, y, scale, "name")
        return a.sin() + b, name

    f = w.compile(f)
    for needs in ((True, True), (True, False), (False, True), (True, True)):
        x, y = w.t(3, grad=needs[0]), w.t(3, grad=needs[1])
        out = w.call(f, x, y, 0.5)
        go(w, out[0], *(t for t in (x, y) if t.requires_grad))


@program
def only_some_results_are_used(w):
    f = w.compile(lambda x, y: Two.apply(x, y, 2.0)[:2])
    for used in ((0,), (1,), (0, 1), (0,)):
        x, y = w.t(3, grad=True), w.t(3, grad=True)
        out = w.call(f, x, y)
        go(w, tuple(out[i] for i in used), x, y)


class Constant(Function):
    """Makes something of a zero gradient."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad / grad.norm() + 1


@program
def a_backward_that_is_not_linear(w):
    f = w.compile(lambda x: (Constant.apply(x), x * 3))
    for used in ((0, 1), (1,), (0,), (1,)):
        x = w.t(3, grad=True)
        out = w.call(f, x)
        go(w, tuple(out[i] for i in used), x)


class NoZeros(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, a, b):
        if a is None:
            return b * 100
        return a if b is None else a + b


@program
def gradients_that_are_not_made(w):
    steps(w, lambda x: NoZeros.apply(x)[0] + 1)
    f = w.compile(lambda x: NoZeros.apply(x))
    for used in ((0,), (1,), (0, 1)):
        x = w.t(3, grad=True)
        out = w.call(f, x)
        go(w, tuple(out[i] for i in used), x)


class Sorted(Function):
    @staticmethod
    def forward(ctx, x):
        values, indices = x.sort()
        ctx.mark_non_differentiable(indices)
        ctx.save_for_backward(indices)
        return values, indices

    @staticmethod
    def backward(ctx, grad, _):
        (indices,) = ctx.saved_tensors
        return torch.zeros_like(grad).index_add(0, indices, grad) * 2


@program
def results_without_a_gradient(w):
    f = w.compile(lambda x: Sorted.apply(x * 2))
    for _ in range(3):
        x = w.t(5, grad=True)
        out = w.call(f, x)
        go(w, out[0] if isinstance(out, tuple) else out, x)


class Setup(Function):
    @staticmethod
    def forward(x, scale=3):
        return x * scale, x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, scale = inputs
        ctx.scale = scale
        ctx.save_for_backward(x, output[0])

    @staticmethod
    def backward(ctx, a, b):
        x, y = ctx.saved_tensors
        return a * ctx.scale + b * y + x, None


@program
def the_form_with_setup_context(w):
    def f(x):
        a, b = Setup.apply(x)
        c, _ = Setup.apply(a, 2)
        return b * c

    steps(w, f)


class Once(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 3 * x


@program
def differentiable_once(w):
    f = steps(w, lambda x: Once.apply(x).sin())
    x = w.t(3, grad=True)

    def twice():
        (g,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
        g.sum().backward()

    w.call(twice)


@program
def double_backwards(w):
    f = steps(w, lambda x: Wrong.apply(Wrong.apply(x) * x))
    for _ in range(2):
        x = w.t(3, grad=True)

        def twice(x):
            (g,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
            (h,) = torch.autograd.grad(g.square().sum(), x)
            return g, h

        w.call(twice, x)


class Shifted(Function):
    """Its backward reads a global number: a break."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x + SCALE)


@program
def double_backwards_through_breaks(w):
    """An input of a segment is computed from another: each has a gradient of its own."""
    weight = w.t(3, grad=True)
    seen = []

    def between(x):
        y = x * weight
        seen.append(y.sum().item())
        return (y * x).sin() + weight * y

    for function in (lambda x: Shifted.apply(Shifted.apply(x) * x), between):
        f = steps(w, function)
        for _ in range(2):
            x = w.t(3, grad=True)

            def twice(x, f=f):
                (g,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
                (h,) = torch.autograd.grad(g.square().sum(), x)
                return g, h

            w.call(twice, x)
            w.note(seen, weight.grad)


class Dirty(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        x.mul_(3)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * 5


@program
def a_forward_in_place(w):
    def f(x):
        y = x * 2
        z = Dirty.apply(y)
        return y + 1, z is y, z

    f = w.compile(f)
    for _ in range(3):
        x = w.t(3, grad=True)
        out = w.call(f, x)
        go(w, (out[0], out[2]) if isinstance(out, tuple) else out, x)


@program
def in_place_on_what_came_in(w):
    f = w.compile(lambda x, y: Dirty.apply(x) * y)
    for _ in range(3):
        x, y = w.t(3), w.t(3, grad=True)
        x = x * y
        go(w, w.call(f, x, y), y)


class Same(Function):
    @staticmethod
    def forward(ctx, x, y):
        return x, y * 2

    @staticmethod
    def backward(ctx, a, b):
        return a * 4, b * 5


@program
def an_argument_is_given_back(w):
    def f(x):
        a, b = Same.apply(x, x)
        return a + b, a is x

    f = w.compile(f)
    for _ in range(3):
        x = w.t(3, grad=True)
        out = w.call(f, x)
        go(w, out[0] if isinstance(out, tuple) else out, x)


class Printing(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        print("backward", tuple(grad.shape))
        return grad * 3


@program
def a_backward_that_prints(w):
    steps(w, lambda x: Printing.apply(x * 2).sin() + 1)


class Logging(Function):
    @staticmethod
    def forward(ctx, x, log):
        ctx.log = log
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        LOG.append("global")
        if ctx.log is not None:
            ctx.log.append("own")
        return grad * 3, None


@program
def a_backward_that_changes_a_global(w):
    steps(w, lambda x: Logging.apply(x * 2, None).sin() + 1)


class ListOnly(Function):
    @staticmethod
    def forward(ctx, x, log):
        ctx.log = log
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        ctx.log.append("backward")
        return grad * 3, None


@program
def a_backward_that_changes_a_list_of_the_call(w):
    def f(x):
        log = ["forward"]
        return ListOnly.apply(x * 2, log).sin(), log

    f = w.compile(f)
    for _ in range(3):
        x = w.t(3, grad=True)
        out, log = w.call(f, x)
        w.note(log)
        go(w, out, x)
        w.note(log)


class Building(Function):
    @staticmethod
    def forward(ctx, *tensors):
        ctx.save_for_backward(*tensors)
        total = 0
        parts = []
        for t in tensors:
            parts.append(t * 2)
            total = total + parts[-1]
        return total

    @staticmethod
    def backward(ctx, grad):
        grads = []
        for t in ctx.saved_tensors:
            grads.append(grad * t)
        made = {}
        made["last"] = grads[-1]
        grads[-1] = made["last"] + 1
        return tuple(grads)


@program
def lists_of_its_own(w):
    steps(w, lambda x: Building.apply(x, x * 2, x * 3).cos())


class Raising(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        raise ValueError("no gradient today")


@program
def a_backward_that_raises(w):
    steps(w, lambda x: Raising.apply(x * 2) + 1)


class TooMany(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad, grad


class Misshapen(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad[:2]


@program
def a_backward_of_another_number_or_shape(w):
    steps(w, lambda x: TooMany.apply(x * 2) + 1)
    steps(w, lambda x: Misshapen.apply(x * 2) + 1)


class ForwardRaises(Function):
    @staticmethod
    def forward(ctx, x, bad):
        LOG.append("forward")
        if bad:
            raise ValueError("not today")
        return x @ x if x.dim() == 2 else x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 3, None


@program
def a_forward_that_raises_and_one_that_logs(w):
    f = w.compile(lambda x, bad: ForwardRaises.apply(x * 2, bad).sin())
    for bad in (False, True, False, True):
        x = w.t(3, grad=True)
        go(w, w.call(f, x, bad), x)
    x = w.t(2, 3, grad=True)
    go(w, w.call(f, x, False), x)


class Modes(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.forward = torch.is_grad_enabled()
        return x * (1 if torch.is_grad_enabled() else 2)

    @staticmethod
    def backward(ctx, grad):
        return grad * (10 if torch.is_grad_enabled() else 20) + float(ctx.forward)


@program
def modes_are_read(w):
    f = steps(w, lambda x: Modes.apply(x).sin())
    x = w.t(3, grad=True)
    w.call(lambda x: torch.autograd.grad(f(x).sum(), x, create_graph=True), x)


class Global(Function):
    @staticmethod
    def forward(ctx, x):
        return x * SCALE

    @staticmethod
    def backward(ctx, grad):
        return grad * SCALE


@program
def a_global_changes_before_the_backward(w):
    global SCALE
    f = w.compile(lambda x: Global.apply(x).sin())
    for scale in (2.0, 2.0, 3.0, 2.0):
        x = w.t(3, grad=True)
        SCALE = scale
        out = w.call(f, x)
        SCALE = 5.0
        go(w, out, x)
    SCALE = 2.0


class Data(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.total = x.sum().item()
        return x * ctx.total

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.total if grad.sum().item() > 0 else grad * 0


@program
def data_is_looked_at(w):
    steps(w, lambda x: Data.apply(x * 2).sin(), count=4)


class DataLater(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 3 if grad.sum() > 0 else grad * 0


@program
def data_is_looked_at_in_the_backward(w):
    steps(w, lambda x: DataLater.apply(x * 2).sin(), count=4)


class Draws(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * torch.rand_like(grad)


@program
def a_backward_that_draws(w):
    steps(w, lambda x: Draws.apply(x * 2).sin() * torch.rand(3))


@program
def with_checkpoints(w):
    layer = nn.Linear(3, 3)
    with torch.no_grad():
        layer.weight.copy_(w.t(3, 3))

    def f(x, reentrant):
        out = checkpoint(lambda y: Wrong.apply(layer(y)), x, use_reentrant=reentrant)
        return out + Wrong.apply(x)

    f = w.compile(f)
    for reentrant in (False, False, True, True):
        x = w.t(2, 3, grad=True)
        go(w, w.call(f, x, reentrant), x, layer.weight)


@program
def graphs_that_are_kept(w):
    f = w.compile(lambda x: Wrong.apply(x * 2).sin())
    for keep in (True, False, True):
        x = w.t(3, grad=True)
        out = w.call(f, x)
        go(w, out, x, retain_graph=keep)
        go(w, out, x)


@program
def what_was_saved_changes(w):
    f = w.compile(lambda x: Wrong.apply(x).cos())
    for change in (False, True, False):
        x = w.t(3, grad=True)
        out = w.call(f, x)
        if change:
            with torch.no_grad():
                x.mul_(2)

        def backward(out):
            try:
                out.sum().backward()
            except RuntimeError as error:  # which tensor it was, its text says in other words
                return str(error).partition(":")[0]

        w.call(backward, out)
        w.note(x.grad)


class Exponential(Function):
    @staticmethod
    def forward(ctx, x, other):
        y = x.exp()
        ctx.save_for_backward(y, other)
        return y

    @staticmethod
    def backward(ctx, grad):
        y, other = ctx.saved_tensors
        return grad * y * 2, None


@program
def what_a_function_saved_changes(w):
    """Eager minds, whether or not the program reads what was saved."""

    def f(x, other):
        y = Exponential.apply(x, other)
        return y, y.sin()

    f = w.compile(f)
    for change in (None, 0, 1, 2, 0, None):
        x, other = w.t(3, grad=True), w.t(3)
        y, z = w.call(f, x, other)
        if change is not None:
            with torch.no_grad():
                (y, z, other)[change].mul_(2)

        def backward(z):
            try:
                z.sum().backward()
            except RuntimeError as error:  # which tensor it was, its text says in other words
                return str(error).partition(":")[0]

        w.call(backward, z)
        w.note(x.grad)


class Forgetful(Exponential):
    """Saves and, unless told to, never reads."""

    @staticmethod
    def forward(ctx, x, other, how):
        ctx.how = how
        return Exponential.forward(ctx, x, other)

    @staticmethod
    def backward(ctx, grad):
        if ctx.how == "attribute":
            return grad * ctx.saved_tensors[0], None, None
        if ctx.how == "getattr":
            return grad * getattr(ctx, "saved_tensors")[0], None, None  # noqa: B009
        if ctx.how == "expanded":
            return grad * getattr(*(ctx, "saved_tensors"))[0], None, None
        return grad * 3, None, None


@program
def what_a_function_saved_and_never_reads_changes(w):
    def made(how):
        def f(x, other):
            y = Forgetful.apply(x, other, how)
            return y, y + 1

        return w.compile(f)

    for f in map(made, (None, "attribute", "getattr", "expanded")):
        for change in (None, 0, 1, 2, 0, None):
            x, other = w.t(3, grad=True), w.t(3)
            y, z = w.call(f, x, other)
            if change is not None:
                with torch.no_grad():
                    (y, z, other)[change].mul_(2)

            def backward(y, z):
                try:
                    (y.sum() + z.sum()).backward()
                except RuntimeError as error:
                    return str(error).partition(":")[0]

            w.call(backward, y, z)
            w.note(x.grad)


class Swapped(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 3


@program
def the_class_gets_another_backward(w):
    f = w.compile(lambda x: Swapped.apply(x).sin())
    original = Swapped.backward
    for backward in (original, lambda ctx, grad: grad * 11, original):
        Swapped.backward = staticmethod(backward)
        x = w.t(3, grad=True)
        go(w, w.call(f, x), x)
    Swapped.backward = staticmethod(original)


@program
def whole_steps(w):
    weight = nn.Parameter(w.t(3))

    def step(x):
        weight.grad = None
        loss = Wrong.apply(x * weight).square().sum() + Two.apply(x, weight, 2.0)[0].sum()
        loss.backward()
        with torch.no_grad():
            weight.sub_(weight.grad * 0.1)
        return loss.detach()

    step = w.compile(step)
    for _ in range(4):
        w.call(step, w.t(3))
        w.note(weight, weight.grad)


@program
def sizes_change(w):
    class Mean(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.count = x.shape[0]
            return x.sum(0) / ctx.count

        @staticmethod
        def backward(ctx, grad):
            return grad.expand(ctx.count, *grad.shape) / ctx.count * 2

    f = w.compile(lambda x: Mean.apply(x * 2).sin())
    for size in (3, 3, 4, 5, 6, 3):
        x = w.t(size, 2, grad=True)
        go(w, w.call(f, x), x)
    x = w.t(7, 2, grad=True)
    w.call(lambda x: torch.autograd.grad(f(x).sum(), x, create_graph=True), x)


@torch.library.custom_op("ingot_tests::weighted", mutates_args=())
def weighted(x: torch.Tensor, scale: float) -> torch.Tensor:
    return torch.from_numpy(x.detach().numpy() * scale)


@weighted.register_fake
def _(x, scale):
    return torch.empty_like(x)


def _weighted_setup(ctx, inputs, output):
    ctx.scale = inputs[1]
    ctx.save_for_backward(inputs[0])


def _weighted_backward(ctx, grad):
    (x,) = ctx.saved_tensors
    return grad * ctx.scale * (x + 9), None


weighted.register_autograd(_weighted_backward, setup_context=_weighted_setup)


@program
def custom_operators(w):
    steps(w, lambda x: weighted(x * 2, 0.5).sin() + weighted(x, 2.0))
    f = w.compile(lambda x: weighted(x * 2, 0.5).sin())
    w.call(f, w.t(3))
    with torch.no_grad():
        w.call(f, w.t(3, grad=True))


@torch.library.custom_op("ingot_tests::summed", mutates_args=())
def summed(parts: list[torch.Tensor]) -> list[torch.Tensor]:
    return [sum(parts), parts[0].clone()]


@summed.register_fake
def _(parts):
    return [torch.empty_like(parts[0]), torch.empty_like(parts[0])]


def _summed_backward(ctx, grads):
    if ctx.loud:
        print("summed")
    return [grads[0] * (i + 2) + grads[1] for i in range(ctx.count)]


def _summed_setup(ctx, inputs, output):
    ctx.count = len(inputs[0])
    ctx.loud = ctx.count > 2


summed.register_autograd(_summed_backward, setup_context=_summed_setup)


@torch.library.custom_op("ingot_tests::scaled_", mutates_args={"parts"})
def scaled_(parts: list[torch.Tensor], by: float) -> None:
    for part in parts:
        part.mul_(by)


@program
def custom_operators_that_change_lists(w):
    def f(x, y):
        parts = [x * 2, y]
        scaled_(parts, 3.0)
        return parts[0] + y

    f = w.compile(f)
    for _ in range(3):
        x, y = w.t(3), w.t(3)
        w.call(f, x, y)
        w.note(y)


@torch.library.custom_op("ingot_tests::mixed", mutates_args=())
def mixed(
    parts: list[torch.Tensor], x: torch.Tensor, by: float
) -> tuple[list[torch.Tensor], torch.Tensor]:
    return [part * by for part in parts], x + sum(parts)


@mixed.register_fake
def _(parts, x, by):
    return [torch.empty_like(part) for part in parts], torch.empty_like(x)


def _mixed_backward(ctx, grads, grad):
    x, *parts = ctx.saved_tensors
    return [g * ctx.by + grad * part for g, part in zip(grads, parts)], grad * x, None


def _mixed_setup(ctx, inputs, output):
    parts, x, ctx.by = inputs
    ctx.save_for_backward(x, *parts)


mixed.register_autograd(_mixed_backward, setup_context=_mixed_setup)


@program
def custom_operators_over_lists_and_more(w):
    def f(x, y):
        parts, z = mixed([x * 2, y, x], x + y, 0.5)
        return parts[0].sin() + parts[2] + z

    f = w.compile(f)
    for _ in range(3):
        x, y = w.t(3, grad=True), w.t(3, grad=True)
        go(w, w.call(f, x, y), x, y)
    w.call(f, w.t(3), w.t(3))


@program
def custom_operators_over_lists(w):
    def f(x, count):
        a, b = torch.ops.ingot_tests.summed([x * (i + 1) for i in range(count)])
        return a.sin() + b

    f = w.compile(f)
    for count in (2, 2, 3, 3, 2):
        x = w.t(3, grad=True)
        go(w, w.call(f, x, count), x)
