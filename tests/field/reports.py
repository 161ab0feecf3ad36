"""Programs after public reports of silently wrong results of torch.compile, in words of our own.

Each takes `compile` and returns what the reporter looked at: results, inputs that were written
to, gradients, what stood in containers. The number is the report's in PyTorch's tracker.
"""

import dataclasses

import torch
import torch.autograd.forward_ad as forward_ad
from torch import nn
from torch.nn import functional as F

REPORTS = {}  # number -> (what was wrong, program)


def report(number, what):
    def keep(program):
        REPORTS[number] = what, program
        return program

    return keep


def ramp(*shape, dtype=torch.float32):
    count = torch.Size(shape).numel()
    return (torch.arange(count, dtype=torch.float64) - count // 3).reshape(shape).to(dtype)


# --- writes, views and aliases --------------------------------------------------------------------


@report(138908, "an indexed sum with repeated indices was added twice")
def repeated_indices(compile):
    def double(where, table):
        where = where + 10
        table[where] += table[where]

    f, table = compile(double), ramp(2, 32)
    f(torch.full((1, 2), -10), table)
    f(torch.tensor([[-9, -10], [-10, -9]]), table)
    return table


@report(125999, "a copy into a slice of an input was lost")
def copy_into_a_slice(compile):
    def log_sum(a, b):
        high, low = torch.max(a, b), torch.min(a, b)
        a.copy_(high + torch.log(1 + torch.exp(low - high)))

    f, a = compile(log_sum), ramp(1, 4, 2, 26) / 50
    f(a[..., 1, :], ramp(1, 4, 26) / 30)
    return a


@report(198101, "a reader of a dtype view saw a later write to its base")
def dtype_view_before_write(compile):
    def program(x):
        y = x.view(torch.int32) * 2
        y.sub_(-4)
        x[:, 2:5] = 2
        return y.view(torch.int64)

    x = ramp(4, 6, dtype=torch.int64)
    return compile(program)(x), x


@report(94693, "an input that is written and read again served both readers the new values")
def trailing_copy(compile):
    def program(a):
        b = a + 1
        a.copy_(b)
        c = a + 2
        return a * b / c

    a = ramp(8, 8) + 100
    f = compile(program)
    return f(a), f(a), a


@report(133512, "a stride-sensitive copy behind an in-place operator saw other strides")
def copy_by_strides(compile):
    def program(x):
        x.add_(1)
        return torch.as_strided_copy(x, (3,), (2,))

    return compile(program)(torch.arange(10)[::2])


@report(152425, "a write to one element of an expanded tensor wrote only that one")
def write_through_an_expanded_tensor(compile):
    def program(n):
        numbers, seen = torch.arange(2), []
        for i in range(len(numbers)):
            wide = numbers[i].expand((n,))
            wide[-1] = 3
            seen.append(wide + 0)
        return seen

    return compile(program)(2)


@report(142118, "a written view came out with other strides")
def strides_of_a_written_view(compile):
    def program(x):
        y = x.clone()[:, 1]
        y.masked_fill_(torch.ones_like(y, dtype=torch.bool), 0)
        return y

    y = compile(program)(ramp(4, 4))
    return y, y.stride()


@report(198102, "a write through windows with gaps cleared what lies between them")
def windows_with_gaps(compile):
    def program(x):
        v = x.unfold(1, 1, 5)
        v.add_(v)
        return x

    x = ramp(4, 6, dtype=torch.int64)
    return compile(program)(x), x


@report(185888, "as_strided_ left the tensor's own sizes as they were")
def sizes_set_in_place(compile):
    def program():
        x = torch.arange(4.0)
        y = x.as_strided_((2, 2), (2, 1))
        return y, tuple(x.size()), tuple(y.size()), x.stride(), y.max()

    return compile(program)()


@report(197431, "as_strided of a part of what was computed read past the memory")
def strided_part(compile):
    def program(x):
        full = x.repeat((3, 2))
        return torch.as_strided(full[:, ::2], (3, 2), full.stride())

    return compile(program)(ramp(1, 1) + 2)


@report(104505, "as_strided of a view of something written saw only the view")
def strided_view_of_a_written_base(compile):
    def program(x):
        base = x * 2
        part = base[2:6]
        base.add_(1)
        return torch.as_strided(part, (3,), (2,), 1)

    return compile(program)(ramp(8))


@report(140171, "as_strided that leaves its input's elements raised or was wrong")
def strided_past_an_input(compile):
    def program(x):
        v = x.as_strided((10,), (1,), storage_offset=5)
        v.add_(1)
        return v

    base = torch.arange(20)
    return compile(program)(base[:10]), base


@report(183894, "argmin behind an in-place sine and a transposition gave other places")
def argmin_of_a_transposed(compile):
    def program(x):
        y = x * 1
        y.sin_()
        return y.t().argmin(), y.t().argmin(1), y.t().contiguous().argmin()

    return compile(program)(ramp(5, 7))


@report(174371, "a write through views that overlap differed")
def write_through_an_overlapping_view(compile):
    def program(x):
        y = x * 1
        torch.as_strided(y, (3, 2), (1, 1)).mul_(2)
        return y

    try:
        return compile(program)(ramp(4))
    except RuntimeError as error:  # eager may refuse: then so must a compiler
        return str(error).splitlines()[0]


# --- operators and dtypes -------------------------------------------------------------------------


@report(174172, "copysign with a negative zero gave positive numbers")
def copysign_of_negative_zero(compile):
    f = compile(lambda x: (torch.ops.aten.copysign(x, -0.0), torch.copysign(x, 0.0)))
    return f(ramp(6))


@report(179561, "a rounding to bfloat16 and back was left out")
def rounded_on_the_way(compile):
    def program(x, w):
        y = torch.matmul(x, w).to(torch.bfloat16).float()
        return (y * torch.sigmoid(y)).sum(dim=1)

    torch.manual_seed(2)
    return compile(program)(torch.randn(8, 16), torch.randn(16, 8))


@report(185337, "a rounding to float16 and back was left out")
def rounded_to_half(compile):
    f = compile(lambda x: x.to(torch.float16).to(torch.float32) - x)
    return f(ramp(100) / 7)


@report(132107, "a running sum of infinities was not a number")
def running_sum_of_infinities(compile):
    f = compile(lambda x: (x.cumsum(0), x.cumsum(0).sum()))
    return f(torch.full((300,), float("inf"), dtype=torch.float64)), f(torch.full((300,), 1e300))


@report(118266, "argmax and argmin passed over what is not a number")
def argmax_of_not_a_number(compile):
    x = ramp(4, 9)
    x[0, 3] = x[2, 0] = x[2, 5] = float("nan")
    f = compile(lambda x: (x.argmax(), x.argmin(), x.argmax(1), x.argmin(1), x.max(1), x.amin(0)))
    return f(x)


@report(109925, "running sums of small integers had another dtype")
def dtypes_of_running_sums(compile):
    f = compile(lambda x: (x.cumsum(0), x.cumprod(0), x.sum(), x.prod()))
    types = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32)
    return [f((torch.arange(40) % 3).to(dtype)) for dtype in types]


@report(113144, "products were taken in another order, abs of them differed")
def order_of_products(compile):
    f = compile(lambda x: (x * 0.3 * 7.1).abs() - (x * (0.3 * 7.1)).abs())
    return f(ramp(64, dtype=torch.float64) / 3)


@report(150993, "what eager refuses for its dtypes was computed")
def refused_dtypes(compile):
    def program(x, w):
        return x @ w

    try:
        return compile(program)(ramp(2, 2), ramp(2, 2, dtype=torch.float64))
    except RuntimeError as error:
        return str(error).splitlines()[0]


@report(149307, "isin of numbers that come with the call raised")
def members_of_a_range(compile):
    def program(start, end, member, unique):
        return torch.isin(torch.arange(start, end), member, assume_unique=unique)

    f = compile(program)
    return f(0, 64, 1, True), f(0, 64, 9, False), f(3, 80, 9, False)


@report(190764, "32-bit sums did not wrap")
def wrapping_sums(compile):
    f = compile(lambda x: (x + x, x * 3, (x + x) // 2, -x))
    return f(torch.tensor([2**31 - 1, -(2**31), 5, -7], dtype=torch.int32))


@report(187018, "abs of unsigned bytes through a concatenation")
def abs_of_bytes(compile):
    f = compile(lambda a, b: torch.cat([a, b]).abs() - torch.cat([b, a]))
    return f(ramp(9, dtype=torch.uint8), torch.full((3,), 200, dtype=torch.uint8))


# --- gradients and transforms ---------------------------------------------------------------------


class ZeroGradient(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return torch.sin(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        return torch.zeros_like(gradient)


@report(193279, "a custom backward was dropped within torch.func.grad")
def custom_backward_within_grad(compile):
    f = compile(torch.func.grad(lambda x: ZeroGradient.apply(x).sum()))
    return f(ramp(4)), f(ramp(4))


@report(136662, "two writes to one column counted once within torch.func.grad")
def writes_within_grad(compile):
    def program(x):
        y = torch.zeros_like(x)
        y[:, 0] += x[:, 2].abs()
        y[:, 0] += x[:, 2].abs()
        return y.sum()

    f = compile(lambda x: torch.func.grad(program)(x))
    return f(ramp(2, 3) - 0.5), f(ramp(2, 3) + 0.5)


@report(172386, "a compiled vjp gave zeros")
def compiled_vjp(compile):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 1)), torch.randn(4, 4)
    parameters = {k: v.detach() for k, v in model.named_parameters()}
    y, pull = torch.func.vjp(lambda p: torch.func.functional_call(model, p, x), parameters)
    return compile(pull)(torch.ones_like(y))[0]


@report(187284, "tangents of forward-mode differentiation were dropped")
def tangents(compile):
    f = compile(lambda x: (x**2).sum())
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.tensor([0.1, 0.2, 0.3]), torch.ones(3))
        return tuple(forward_ad.unpack_dual(f(dual)))


@report(185509, "gradients through resizing, convolution, pooling and where were wrong")
def gradients_through_a_mask(compile):
    torch.manual_seed(0)
    x, weight = torch.randn(2, 3, 6, 7), torch.randn(4, 3, 3, 3)

    def program(x, weight, bias, mask):
        y = F.interpolate(x, scale_factor=(1.5, 1.25), mode="bilinear", align_corners=False)
        conv = F.conv2d(y[:, :, 1:7, 1:8], weight, bias, padding=1)
        pool = F.max_pool2d(conv, kernel_size=3, stride=1, padding=1)
        return torch.where(mask, conv, pool)

    tensors = [t.requires_grad_() for t in (x, weight, torch.randn(4))]
    mask = torch.rand(2, 4, 6, 7) > 0.5
    y = compile(program)(*tensors, mask)
    return y, torch.autograd.grad(y.square().sum(), tensors)


@report(180164, "gradients of what a scatter overwrites were not zero")
def gradients_of_what_is_overwritten(compile):
    def program(canvas, patch):
        return torch.slice_scatter(canvas, patch, dim=1, start=1, end=3).sum(dim=1)

    canvas, patch = ramp(3, 5).requires_grad_(), ramp(3, 2).requires_grad_()
    y = compile(program)(canvas, patch)
    return y, torch.autograd.grad(y.square().sum(), (canvas, patch))


# --- Python state ---------------------------------------------------------------------------------


@report(185382, "an in-place step behind `item` in a loop went wrong from its third turn on")
def steps_behind_item(compile):
    def step(p, g, m, v, count):
        count.add_(1)
        m.mul_(0.9).add_(g, alpha=0.1)
        v.mul_(0.999).addcmul_(g, g, value=0.001)
        t = count.item()
        denominator = (v.sqrt() / ((1 - 0.999**t) ** 0.5)).add_(1e-8)
        p.addcdiv_(m, denominator, value=-0.001 / (1 - 0.9**t))

    def loop(p, g):
        p, m, v, count = p.clone(), torch.zeros_like(p), torch.zeros_like(p), torch.zeros(())
        for _ in range(6):
            step(p, g, m, v, count)
        return p, m, v, count

    return compile(loop)(ramp(8), ramp(8) / 3 + 0.1)


@dataclasses.dataclass
class Holder:
    hidden: torch.Tensor


held = Holder(torch.tensor(0))


@report(191821, "a global that a loop rebinds was read as it first was")
def rebound_global(compile):
    def program(hidden):
        global held
        for _ in range(3):
            held = Holder(hidden)
            hidden = held.hidden + 1
        return hidden

    return compile(program)(torch.tensor(0))


ORDER = [1, 2, 3]


@report(120861, "an argument that is a global, too, was not told from it")
def argument_and_global(compile):
    f, x = compile(lambda values, x: x + ORDER[-1] + values[-1]), torch.ones(1)
    return f(ORDER, x), f([3, 2, 1], x), f([1, 2], x), f([1, 2, 3, 2], x)


@report(169253, "what a call appends to its class's list was dropped")
def list_of_the_class(compile):
    class Model(nn.Module):
        items = []  # noqa: RUF012

        def forward(self, x):
            Model.items.append(x + 1)
            return x * len(Model.items)

    model = compile(Model())
    return [model(ramp(3)) for _ in range(3)], Model.items


@report(115774, "a buffer that was replaced between calls was not seen")
def replaced_buffer(compile):
    class Cache(nn.Module):
        def __init__(self):
            super().__init__()
            self.cache = torch.tensor([0, 0])

        def forward(self, x, place):
            self.cache[place] = x
            return self.cache

    module = Cache()
    f = compile(module)
    first = f(torch.tensor([2]), torch.tensor([0])).clone()
    module.cache = torch.tensor([0, 0])
    return first, f(torch.tensor([1]), torch.tensor([1])), module.cache


@report(103563, "a nested list that was filled in a loop kept its first members")
def nested_list(compile):
    def program(x):
        data = [[1, 2, 3], [4, 5, 6]]
        for i in range(3):
            data[0][i] = x if i == 0 else data[0][i - 1] + 1
        return data

    return compile(program)(ramp(2))


@report(197896, "what a method of a local class writes to a closure's list was dropped")
def closure_of_a_local_class(compile):
    def make():
        log, state = [], {"n": 0}

        def program(x):
            class Helper:
                def touch(self):
                    log.append(x.shape[0])
                    state["n"] += 1

            Helper().touch()
            return x * state["n"]

        return compile(program), log, state

    f, log, state = make()
    return [f(ramp(3)) for _ in range(3)], log, state


@report(176851, "an attribute of the class that was changed between calls was not seen")
def changed_class_attribute(compile):
    class Scaled(nn.Module):
        factor = 2.0

        def forward(self, x):
            return x * self.factor

    f = compile(Scaled())
    first = f(ramp(3))
    Scaled.factor = 5.0
    return first, f(ramp(3))


@report(197859, "a submodule that the object's own dict hides was still used")
def hidden_submodule(compile):
    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.sub = nn.Linear(4, 4, bias=False)
            nn.init.eye_(self.sub.weight)

        def forward(self, x):
            return self.sub(x)

    model, other = Wrapper(), nn.Linear(4, 4, bias=False)
    nn.init.constant_(other.weight, 5.0)
    f = compile(model)
    first = f(torch.arange(4.0))
    object.__setattr__(model, "sub", other)
    return first.detach(), f(torch.arange(4.0)).detach()


@report(196173, "a branch on which of two mutable objects came lost writes to it")
def branch_on_identity(compile):
    class State:
        def __init__(self):
            self.count = 0

    def program(a, b, x):
        if a is b:
            a.count += 10
        else:
            a.count += 1
        return x * a.count

    f, one, other = compile(program), State(), State()
    calls = (one, one), (one, other), (other, other), (other, one)
    return [f(a, b, ramp(2)) for a, b in calls], one.count, other.count


@report(188425, "random numbers of sizes that change were others")
def random_numbers_of_changing_sizes(compile):
    def program(x):
        y = x * torch.rand(x.shape[0], 1)
        return y + torch.randn_like(y) * torch.rand(())

    f, seen = compile(program), []
    for n in (4, 7, 9, 12):
        torch.manual_seed(n)
        seen.append((f(ramp(n, 3)), torch.rand(2)))
    return seen
