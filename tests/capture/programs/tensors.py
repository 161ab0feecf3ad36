"""Tensors: views, in-place operators, aliasing, out=, types, random numbers, modes, subclasses."""

import numpy as np
import torch

from capture.harness import program


@program
def inputs_are_changed_in_place(w):
    def f(x, y):
        x.add_(1)
        y[0] = x[1] * 2
        x.mul_(y)
        return x, y.sum()

    f = w.compile(f)
    for _ in range(3):
        w.call(f, w.t(3), w.t(3))


@program
def views_of_inputs_are_changed(w):
    def f(x):
        row, column = x[1], x[:, 0]
        row.add_(10)
        column.zero_()
        x.t()[1].fill_(7)
        x.view(-1)[::2] *= 2
        return x.sum(), row

    f = w.compile(f)
    for sizes in ((3, 4), (3, 4), (2, 2)):
        w.call(f, w.t(*sizes))


@program
def inputs_that_overlap(w):
    def f(x, y):
        y.mul_(2)
        return x + y

    f = w.compile(f)
    base = w.t(8)
    w.call(f, w.t(7), w.t(7))
    w.call(f, base[:7], base[1:])
    w.call(f, base[:4], base[4:])
    w.call(f, base[:7], base[:7])
    w.note(base)


@program
def copies_between_inputs_that_overlap(w):
    def f(x, y):
        x.add_(1)
        y.copy_(x)
        return y * 2, y.view(-1)  # which fails for some

    f = w.compile(f)
    for _ in range(2):
        base = w.t(4, 4)
        w.call(f, base[:3, :3], base[1:, 1:])
        w.call(f, base[:2], base[2:])
        w.call(f, base[1:3], base[:2])
        w.note(base)


@program
def writes_over_their_own_operands(w):
    def f(x, k):
        x.unsqueeze(0)[:, 1:].add_(x[1:])
        return x

    def g(x, k):
        x[:k].copy_(x[x.shape[0] - k :])
        x[0].add_(x[1])
        return x * 2

    f, g = w.compile(f), w.compile(g)
    for n in (2, 5, 4, 7):
        w.call(f, w.t(n), n)
        for k in (2, 3, 4):
            w.call(g, w.t(4 + n), k)


@program
def results_that_alias(w):
    def f(x):
        y = x * 2
        return x, x.view(-1), y, y[0], y.t(), x.detach(), (y, y)

    f = w.compile(f)
    for _ in range(3):
        w.call(f, w.t(2, 3))


@program
def layouts_of_results(w):
    def f(x):
        y = x.transpose(0, 1)
        return y, y + 1, y.contiguous(), y.reshape(-1), x.expand(2, *x.shape), x[::2], y.clone()

    f = w.compile(f)
    w.call(f, w.t(4, 6))
    w.call(f, w.t(4, 6).t())
    w.call(f, w.t(4, 12)[:, ::2])


@program
def channels_last(w):
    def f(x):
        return x * 2, x.contiguous(memory_format=torch.channels_last), x.is_contiguous()

    f = w.compile(f)
    x = w.t(2, 3, 4, 5)
    for value in (x, x.contiguous(memory_format=torch.channels_last), x):
        w.call(f, value)


@program
def out_arguments(w):
    def f(x, y, out):
        torch.add(x, y, out=out)
        result = torch.mul(x, 2, out=out[0:1])
        return result, out

    f = w.compile(f)
    for _ in range(2):
        w.call(f, w.t(1, 3), w.t(2, 3), w.t(2, 3))
    w.call(f, w.t(1, 3), w.t(2, 3), torch.empty(0))


@program
def metadata_changed_in_place(w):
    def f(x):
        x.unsqueeze_(0)
        x.t_()
        y = x * 2
        y.squeeze_()
        return x, y, x.shape

    f = w.compile(f)
    for _ in range(2):
        w.call(f, w.t(3))


@program
def resize_and_set_data(w):
    def f(x, y):
        x.data = y * 2
        z = torch.zeros(2)
        z.resize_(4).fill_(1)
        return x, z

    f = w.compile(f)
    for _ in range(2):
        w.call(f, w.t(3), w.t(3))


@program
def indexing_of_all_kinds(w):
    def f(x, index, mask):
        y = x.clone()
        y[index] = 0
        y[mask] += 5
        y[0, ..., -1] = 9
        y[:, [0, 2]] = y[:, [2, 0]]
        return y, x[index], x[index, :2], x[None], x[:, index % 2], torch.where(mask, x, -x)

    f = w.compile(f)
    for _ in range(3):
        x = w.t(4, 3)
        w.call(f, x, torch.tensor([2, 0]), x > 0)


@program
def gather_scatter_and_friends(w):
    def f(x, index):
        y = torch.zeros(4, 3).scatter_add_(0, index, x[:2])
        z = x.index_add(0, torch.tensor([0, 1]), x[:2])
        return y, z, x.gather(0, index), torch.cumsum(x, 0), x.masked_fill(x > 0, 0.0)

    f = w.compile(f)
    for _ in range(2):
        w.call(f, w.t(4, 3), torch.tensor([[0, 1, 2], [3, 0, 1]]))


@program
def types_and_promotion(w):
    def f(x, y):
        return x + y, x * 2.5, x / 3, x // 2, x > y, x.to(torch.float64), (x + True).dtype

    f = w.compile(f)
    for a, b in ((torch.float32, torch.int64), (torch.int32, torch.int64),
                 (torch.bfloat16, torch.float32), (torch.float32, torch.int64)):  # fmt: skip
        w.call(f, w.t(3, dtype=a), w.t(3, dtype=b))


@program
def creation(w):
    def f(x, n):
        made = [torch.zeros(n), torch.ones_like(x), torch.full((2, n), 3.5), torch.arange(n)]
        made += [torch.eye(n), torch.linspace(0, 1, n), torch.tensor([1, n]), x.new_zeros(2)]
        made += [torch.empty(n).fill_(2), torch.tensor(2.5), torch.as_tensor([n, 2.0])]
        return made, torch.tensor([[x.shape[0], n]]) * 2

    f = w.compile(f)
    for n in (2, 2, 3):
        w.call(f, w.t(3), n)


@program
def constants_made_outside(w):
    table = w.t(3)
    values = [1.0, 2.0, 3.0]

    def f(x):
        return x * table + torch.tensor(values)

    f = w.compile(f)
    w.call(f, w.t(3))
    table.add_(1)
    w.call(f, w.t(3))
    values[0] = 10.0
    w.call(f, w.t(3))
    table.resize_(1)
    w.call(f, w.t(3))


@program
def shapes_change(w):
    def f(x):
        n, m = x.shape
        if n > 3:
            x = x[:3]
        return x.reshape(m, -1), x.sum(0) / n, x.numel(), x.size(-1) * 2, torch.zeros(n, m)

    f = w.compile(f)
    for sizes in ((2, 3), (2, 3), (3, 3), (5, 2), (2, 3), (1, 1), (0, 4)):
        w.call(f, w.t(*sizes))


@program
def shapes_change_when_dynamic(w):
    def f(x, y):
        return (x @ y).relu().sum(1), torch.cat([x, x]), x.view(-1, 2)

    f = w.compile(f, dynamic=True)
    for n, m in ((2, 4), (3, 4), (3, 6), (1, 2)):
        w.call(f, w.t(n, m), w.t(m, n))


@program
def ranks_and_types_change(w):
    def f(x):
        return x.mean(), x.flatten(), x.dim()

    f = w.compile(f)
    for sizes in ((), (2,), (2, 3), (2, 3, 4), (2,)):
        w.call(f, w.t(*sizes))
    w.call(f, w.t(2, dtype=torch.int64))
    w.call(f, w.t(2, dtype=torch.float64))


@program
def empty_and_scalar_tensors(w):
    def f(x):
        return x.sum(), x + 1, x.max() if x.numel() else None, torch.cat([x, x]) if x.dim() else x

    f = w.compile(f)
    for sizes in ((0,), (0, 3), (), (2,)):
        w.call(f, w.t(*sizes))


@program
def random_numbers(w):
    def f(x):
        noise = torch.randn_like(x)
        kept = torch.nn.functional.dropout(x, 0.5)
        return noise, kept, torch.rand(2), torch.randint(0, 10, (3,)), torch.bernoulli(x.sigmoid())

    f = w.compile(f)
    for _ in range(3):
        w.call(f, w.t(4))
    torch.manual_seed(5)
    w.call(f, w.t(4))


@program
def random_numbers_nobody_reads(w):
    def alone(x):
        torch.rand(3)
        return 5

    def beside(x):
        torch.nn.functional.dropout(x, 0.5)
        torch.rand(3)
        return x + 1

    for f in (w.compile(alone), w.compile(beside)):
        for _ in range(3):
            w.call(f, w.t(4))
            w.note(torch.rand(2))


@program
def generators_of_random_numbers(w):
    generator = torch.Generator().manual_seed(3)

    def f(x):
        x = x + torch.rand(x.shape, generator=generator)
        x.normal_(generator=generator)
        return x, torch.randperm(4, generator=generator)

    f = w.compile(f)
    for _ in range(2):
        w.call(f, w.t(3))
    generator.manual_seed(3)
    w.call(f, w.t(3))


@program
def seeding_inside(w):
    def f(x):
        torch.manual_seed(11)
        a = torch.rand(2)
        with torch.random.fork_rng(devices=[]):
            b = torch.rand(2)
        return x, a, b, torch.rand(2)

    f = w.compile(f)
    for _ in range(2):
        w.call(f, w.t(2))


@program
def default_dtype(w):
    def f(x):
        return x + torch.ones(2), torch.tensor(1.5), torch.zeros(2) / 3

    f = w.compile(f)
    w.call(f, w.t(2))
    torch.set_default_dtype(torch.float64)
    w.call(f, w.t(2))
    torch.set_default_dtype(torch.float32)
    w.call(f, w.t(2))


@program
def autocast(w):
    def f(x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = x @ y
            with torch.autocast("cpu", enabled=False):
                kept = z.float() + 1
        return z, kept, x @ y

    f = w.compile(f)
    w.call(f, w.t(2, 3), w.t(3, 2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        w.call(f, w.t(2, 3), w.t(3, 2))
    w.call(f, w.t(2, 3), w.t(3, 2))


@program
def types_of_autocast_where_it_is_off(w):
    def asks(x):
        kinds = torch.get_autocast_dtype("cpu"), torch.get_autocast_dtype("cuda")
        return x.to(kinds[0]), kinds, torch.is_autocast_cache_enabled()

    def asks_for_another_device(x):
        return x * 2, torch.get_autocast_dtype("xpu")

    def sets(x, dtype):
        torch.set_autocast_dtype("cpu", dtype)
        torch.set_autocast_cache_enabled(dtype is torch.bfloat16)
        return x * 2

    asks, sets = w.compile(asks), w.compile(sets)
    asks_for_another_device = w.compile(asks_for_another_device)
    before = {device: torch.get_autocast_dtype(device) for device in ("cpu", "cuda", "xpu")}
    try:
        for dtype in (torch.bfloat16, torch.bfloat16, torch.float16, torch.float16, torch.bfloat16):
            for device in before:
                torch.set_autocast_dtype(device, dtype)
            w.call(asks, w.t(2))
            w.call(asks_for_another_device, w.t(2))
        for dtype in (torch.bfloat16, torch.float16, torch.float16, torch.bfloat16, torch.float16):
            torch.set_autocast_cache_enabled(True)
            torch.set_autocast_dtype("cpu", torch.bfloat16)
            w.call(sets, w.t(2), dtype)
            w.note(torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled())
    finally:
        torch.set_autocast_cache_enabled(True)
        for device, dtype in before.items():
            torch.set_autocast_dtype(device, dtype)


@program
def inference_mode(w):
    def f(x):
        return x * 2, torch.is_inference_mode_enabled()

    f = w.compile(f)
    w.call(f, w.t(2))
    with torch.inference_mode():
        x = w.t(2)
        result = f(x)
        w.note(result[1], result[0].is_inference())
    w.call(f, w.t(2))


@program
def complex_numbers(w):
    def f(x):
        z = torch.complex(x, x * 2)
        return z * 1j, z.abs(), z.conj(), torch.view_as_real(z), z.real

    f = w.compile(f)
    for _ in range(2):
        w.call(f, w.t(3))


@program
def unbind_split_chunk_stack(w):
    def f(x):
        a, b = x.chunk(2)
        parts = torch.split(x, [1, 3])
        rows = x.unbind(0)
        a += 1
        return torch.stack(rows), torch.cat(parts, 0), b, [p.shape for p in parts], x

    f = w.compile(f)
    for _ in range(2):
        w.call(f, w.t(4, 2))


@program
def einsum_matmul_and_linear_algebra(w):
    def f(x, y):
        q = torch.einsum("ij,kj->ik", x, y)
        return q, x @ y.T, torch.linalg.norm(x), torch.outer(x[0], y[0]), (x * y).softmax(-1)

    f = w.compile(f)
    for _ in range(2):
        w.call(f, w.t(3, 4), w.t(3, 4))


class Marked(torch.Tensor):
    """A subclass that remembers what was done to it."""

    calls: list = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls.append(getattr(func, "__name__", "?"))
        return super().__torch_function__(func, types, args, kwargs or {})


@program
def tensor_subclasses(w):
    Marked.calls.clear()

    def f(x):
        return x * 2 + 1

    f = w.compile(f)
    w.call(f, w.t(2))
    w.call(f, w.t(2).as_subclass(Marked))
    w.call(f, torch.nn.Parameter(w.t(2), requires_grad=False))
    w.note([name for name in Marked.calls if name in ("mul", "add")])


@program
def tensor_attributes(w):
    def f(x):
        x.tag = "seen"
        x.note = x * 2
        return x.note + 1, x.device, x.is_leaf, x.requires_grad, x.ndim, x.T.shape, x.itemsize

    f = w.compile(f)
    for _ in range(2):
        x = w.t(2, 2)
        w.call(f, x)
        w.note(x.tag, x.note)


@program
def comparisons_of_tensors(w):
    def f(x, y):
        return (
            x == y,
            x != 1,
            x.eq(y).all(),
            torch.equal(x, x),
            torch.allclose(x, y),
            x.isnan().any(),
        )

    f = w.compile(f)
    for _ in range(2):
        w.call(f, w.t(3), w.t(3))


@program
def numbers_meet_tensors(w):
    def f(x, n):
        return (
            n - x,
            n / x,
            x**n,
            2**x,
            -x % 3,
            x << 1 if not x.is_floating_point() else x,
            n * x.shape[0],
        )

    f = w.compile(f)
    for n in (2, 2, 3, 0.5):
        w.call(f, w.t(3).abs() + 1, n)
    w.call(f, w.t(3, dtype=torch.int64).abs() + 1, 2)


@program
def detached_tensors_share_no_history(w):
    """A change of what is detached changes the numbers of both, and the history of one."""

    def changes(x, y):
        y = y.detach()
        y.add_(x - 2)

    def gives(x, y):
        z = y * x.detach()
        return y.detach(), y[1:], z, z.detach(), z.view(-1)

    changes, gives = w.compile(changes), w.compile(gives)
    for grad in (True, True, False):
        x, y = w.t(4, grad=grad), w.t(4)
        w.call(changes, x, y)
        w.note(y.requires_grad, y._is_view())
        results = w.call(gives, x, w.t(4))
        w.note([(r._is_view(), r.requires_grad) for r in results])
        for r in results[::3]:
            r.mul_(w.t(*r.shape, grad=True))
        w.note([(r.requires_grad, r.detach()) for r in results])


@program
def strange_layouts_fall_back(w):
    def f(x):
        return x.to_dense() if x.is_sparse else x * 2

    f = w.compile(f)
    w.call(f, w.t(2, 2))
    w.call(f, torch.eye(2).to_sparse())
    w.call(f, w.t(2, 2))


@program
def places_in_storages_change(w):
    def second(x):
        return torch.as_strided(x, (2,), (1,), 1) * 2

    def first(x):
        return x.as_strided((2,), (1,)) + 1, x.storage_offset()

    def moved(x):
        x.as_strided((1,), (1,), 2).add_(1)
        return x.as_strided((2,), (1,), 2)

    def as_complex(x):
        return torch.view_as_complex(x) * 1j

    for function in (second, first, moved):
        f = w.compile(function)
        for k in (0, 0, 2, 1, 0, 2):
            w.call(f, w.t(6)[k : k + 3])
    f = w.compile(as_complex)
    for k in (0, 1, 2):
        w.call(f, w.t(8)[k : k + 4].view(2, 2))


@program
def whether_tensors_are_one(w):
    def f(x, y):
        return x * 2 + y, x.is_set_to(y)

    f = w.compile(f)
    for _ in range(2):
        w.call(f, w.t(3), w.t(3))
        x = w.t(3)
        w.call(f, x, x)
        w.call(f, x, x.view(3))


@program
def meta_and_quantised_tensors(w):
    def f(x):
        return (x + 1).shape, str(x.device)

    f = w.compile(f)
    w.call(f, w.t(2))
    w.call(f, torch.empty(2, device="meta"))


@program
def data_has_a_version_of_its_own(w):
    def f(x, y):
        data = x.data
        data.mul_(2)
        part = y.detach()
        part.add_(1)
        z = x * 3
        return data, part, z.data, z, data[0]

    f = w.compile(f)
    for _ in range(3):
        x, y = w.t(3), w.t(3)
        before = x._version, y._version
        data, part, other, z, first = w.call(f, x, y)
        changed = x._version != before[0], y._version != before[1]
        data.add_(1), part.add_(1), other.mul_(2), first.zero_()
        w.note(changed, x, y, z, x._version, z._version)


@program
def backward_behind_a_change_of_data(w):
    weight = w.t(3, grad=True)

    def f(x):
        y = (weight * weight * x).sum()
        weight.data.clamp_(-0.5, 0.5)
        return y

    f = w.compile(f)
    for _ in range(3):
        y = w.call(f, w.t(3))
        w.backward(y, weight)
        w.note(weight)


@program
def weights_changed_through_data(w):
    layer = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32)).eval()
    kept = layer[0].bias.data

    def f(x):
        return layer(x)

    def halve(x):
        layer[0].weight.data.mul_(0.5)
        return x + 1

    f, halve = w.compile(f), w.compile(halve)
    with torch.no_grad():
        for step in range(8):
            w.call(f, w.t(4, 16))
            w.call(f, w.t(4, 16))
            if step % 3 == 0:
                layer[0].weight.data.mul_(1.5)
            elif step % 3 == 1:
                kept.add_(1)
            else:
                w.call(halve, w.t(2))
            layer[1].running_mean.data.add_(0.1)


@program
def weights_changed_through_other_aliases(w):
    def folded():
        return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32)).eval()

    def flat(layer):
        whole = torch.cat([p.detach().flatten() for p in layer[0].parameters()])
        layer[0].weight.data = whole[: 16 * 32].view(32, 16)
        layer[0].bias.data = whole[16 * 32 :]
        return lambda: whole.mul_(1.5)

    def other_memory(layer):
        memory = torch.ones(32, 16)
        layer[0].weight.set_(memory)
        return lambda: memory.mul_(0.5)

    def array_of_weight(layer):
        array = layer[0].weight.detach().numpy()[3:]
        return lambda: np.multiply(array, 2, out=array)

    def array_of_buffer(layer):
        array = np.asarray(layer[1].running_mean)[1:]
        return lambda: np.add(array, 1, out=array)

    def vector(layer):
        parameters = list(layer.parameters())
        whole = torch.nn.utils.parameters_to_vector(parameters)
        torch.nn.utils.vector_to_parameters(whole, parameters)
        return lambda: whole.mul_(0.5)

    def kept(layer):
        copies = [p.data for p in layer.parameters()]
        return lambda: [c.copy_(c * 2 + 1) for c in copies]

    def kept_in_compiled_code(layer):
        copies = w.compile(lambda: [p.data for p in layer.parameters()])()
        return lambda: [c.copy_(c * 2 + 1) for c in copies]

    def other_process(layer):
        layer.share_memory()
        descriptor, size = layer[0].weight.untyped_storage()._share_fd_cpu_()
        again = torch.UntypedStorage._new_shared_fd_cpu(descriptor, size)
        there = torch.empty(0).set_(again, 0, (32, 16), (16, 1))
        return lambda: there.mul_(2)

    with torch.no_grad():
        for early in (True, False):
            arrays = (array_of_weight, array_of_buffer)
            tensors = (flat, other_memory, vector, kept, kept_in_compiled_code)
            for way in (*arrays, *tensors, other_process):
                layer = folded()
                f = w.compile(lambda x, layer=layer: layer(x))
                if not early:
                    w.call(f, w.t(4, 16))
                    w.call(f, w.t(4, 16))
                write = way(layer)
                w.call(f, w.t(4, 16))
                w.call(f, w.t(4, 16))
                write()
                w.call(f, w.t(4, 16))
                w.call(f, w.t(4, 16))
                write()
                del write
                w.call(f, w.t(4, 16))


# Which operators let an index count from the end.
INDEXED = {
    "index": lambda x, i: x[i],
    "take": lambda x, i: x.take(i),
    "gather": lambda x, i: x.gather(0, i),
    "gathered rows": lambda x, i: x.view(2, 2).gather(1, i.view(1, 2)),
    "embedding": lambda x, i: torch.nn.functional.embedding(i, x.view(-1, 1)),
    "index_select": lambda x, i: x.index_select(0, i),
    "index_select of columns": lambda x, i: x.expand(3, 4).index_select(1, i),
    "index_put": lambda x, i: x.clone().index_put_((i,), x[:2]),
    "index_add": lambda x, i: x.index_add(0, i, x[:2]),
    "index_add of rows": lambda x, i: x.view(4, 1).index_add(0, i, x[:2].view(2, 1)),
    "index_copy": lambda x, i: x.index_copy(0, i, x[:2]),
    "index_fill": lambda x, i: x.index_fill(0, i, 2.0),
    "scatter": lambda x, i: x.scatter(0, i, x[:2]),
    "scatter_add": lambda x, i: x.scatter_add(0, i, x[:2]),
    "cross_entropy": lambda x, i: torch.nn.functional.cross_entropy(x.view(2, 2), i),
    "losses": lambda x, i: torch.nn.functional.cross_entropy(x.view(2, 2), i, reduction="none"),
    "weighted losses": lambda x, i: torch.nn.functional.cross_entropy(
        x.view(2, 2), i, x[:2].detach().abs()
    ),
    "a loss of an image": lambda x, i: torch.nn.functional.nll_loss(
        x.view(1, 2, 2), i.view(1, 2), x[2:].detach().abs(), reduction="sum"
    ),
    "one embedding and another": lambda x, i: (
        torch.nn.functional.embedding(i, x.view(-1, 1)) + x.view(-1, 1)[i]
    ),
}


@program
def indices_that_count_from_the_end(w):
    for look in INDEXED.values():
        f = w.compile(look)
        for k in (1, -1, 1, -2, -100):
            w.call(f, w.t(4), torch.tensor([0, k]))


OVERLAPPING = {
    "index_put": lambda y, i, m: y.__setitem__(i, y[:2]),
    "index_put of itself": lambda y, i, m: y.__setitem__(i, y[1:3]),
    "index_put of all": lambda y, i, m: y.__setitem__((slice(None), i), y[:, :2]),
    "accumulate": lambda y, i, m: y.index_put_((i,), y[:2], accumulate=True),
    "copy_": lambda y, i, m: y[1:].copy_(y[:-1]),
    "copy_ of the other way": lambda y, i, m: y.copy_(y.t()),
    "set of a slice": lambda y, i, m: y.__setitem__(slice(1, None), y[:-1]),
    "add_": lambda y, i, m: y.add_(y.t()),
    "add_ to a view": lambda y, i, m: y.t().add_(y),
    "add_ of a row": lambda y, i, m: y.sub_(y[0]),
    "add_ of one": lambda y, i, m: y.mul_(y[0, 0]),
    "add_ of itself": lambda y, i, m: y.add_(y),
    "addcmul_": lambda y, i, m: y.addcmul_(y, y.t()),
    "addcmul_ of itself": lambda y, i, m: y.addcmul_(y, y),
    "addmm_": lambda y, i, m: y.addmm_(y, y),
    "lerp_": lambda y, i, m: y.lerp_(y.t(), 0.5),
    "clamp_": lambda y, i, m: y.clamp_(max=y[0]),
    "where": lambda y, i, m: torch.where(m, y.t(), y, out=y),
    "masked_fill_": lambda y, i, m: y.masked_fill_(m, y[0, 0]),
    "masked_scatter_": lambda y, i, m: y.masked_scatter_(m, y),
    "masked_scatter_ of a part": lambda y, i, m: y.masked_scatter_(m, y.flatten()[1:]),
    "scatter_": lambda y, i, m: y.scatter_(0, i[:, None].expand(2, 4), y[:2]),
    "scatter_add_": lambda y, i, m: y.scatter_add_(0, i[:, None].expand(2, 4), y[:2]),
    "scatter_reduce_": lambda y, i, m: y.scatter_reduce_(0, i[:, None].expand(2, 4), y[:2], "prod"),
    "index_copy_": lambda y, i, m: y.index_copy_(0, i, y[:2]),
    "index_add_": lambda y, i, m: y.index_add_(0, i, y[:2]),
    "index_fill_": lambda y, i, m: y.index_fill_(0, i, y[0, 0]),
    "put_": lambda y, i, m: y.put_(i, y[0, :2]),
    "out of a sum": lambda y, i, m: torch.add(y[1:], 1, out=y[:-1]),
    "out of a product": lambda y, i, m: torch.mm(y, y, out=y),
    "out of cumsum": lambda y, i, m: torch.cumsum(y[1:], 0, out=y[:-1]),
    "out of cat": lambda y, i, m: torch.cat([y[:2], y[2:]], out=y),
    "out of index_select": lambda y, i, m: torch.index_select(y, 0, i, out=y[:2]),
    "out of gather": lambda y, i, m: torch.gather(y, 0, i[:, None].expand(2, 4), out=y[:2]),
    "a list": lambda y, i, m: torch._foreach_add_([y[0], y[1]], [y[1], y[0]]),
    "a list of parts": lambda y, i, m: torch._foreach_mul_([y[:2], y[2:]], [y[1:3], y[1:3]]),
}


@program
def writes_from_the_memory_that_is_written(w):
    for write in OVERLAPPING.values():

        def f(y, i, m, write=write):
            write(y, i, m)
            return y + 1

        def inside(y, i, m, write=write):
            y = y * 2
            write(y, i, m)
            return y

        for function in (f, inside):
            compiled = w.compile(function)
            for n in (4, 4, 4):
                w.call(compiled, w.t(n, n), torch.tensor([1, 3]), w.t(n, n) > 0)
