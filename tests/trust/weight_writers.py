"""Ways to write a parameter or buffer, one function each.

A writer gets the model (see `model`) and writes some of its weights; what it returns is kept alive
over the calls that follow. `AT_ONCE` are those that the next call must see, of which `FOREIGN` are
only found because something ran that may have written; `LATER` those of which nobody learns and
which are found within a bounded number of calls.
"""

import ctypes

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

AT_ONCE, LATER = [], []


def at_once(function):
    AT_ONCE.append(function)
    return function


def later(function):
    LATER.append(function)
    return function


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 16)
    ).eval()


def sample():
    return torch.rand(2, 3, 6, 6) * 3 + 1


def _weights(m):
    return [m[0].weight, m[4].weight]


def _other(p):
    return torch.full_like(p, 0.25).detach()


def _raw(p):
    """Writes at the address, as foreign code does."""
    values = np.full(p.numel(), 0.125, np.float32)
    ctypes.memmove(p.data_ptr(), values.ctypes.data, values.nbytes)


# ---- optimizers ----


def _step(m, make):
    for p in m.parameters():
        p.grad = torch.ones_like(p)
    make(m.parameters()).step()


def _optimizers():
    kinds = {
        "adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD,
        "adagrad": torch.optim.Adagrad,
    }  # fmt: skip
    for name, kind in kinds.items():
        for way in ("fused", "foreach", "plain"):
            chosen = {} if way == "plain" else {way: True}
            if way == "plain":
                chosen = {"foreach": False}

            def step(m, kind=kind, chosen=chosen):
                _step(m, lambda ps: kind(ps, lr=0.1, **chosen))

            step.__name__ = f"step_of_{way}_{name}"
            at_once(step)


_optimizers()


@at_once
def step_of_an_optimizer_of_ones_own(m):
    class Raw(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {})

        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    _raw(p)

    Raw(m.parameters()).step()


@at_once
def foreign_write_and_a_backward(m):
    for p in _weights(m):
        _raw(p)
    torch.ones(2, requires_grad=True).sum().backward()


FOREIGN = (step_of_an_optimizer_of_ones_own, foreign_write_and_a_backward)

# ---- aliases ----


@at_once
def data(m):
    for p in _weights(m):
        p.data.mul_(2)


@at_once
def data_kept_and_written_later(m):
    kept = [p.data for p in _weights(m)]
    for k in kept:
        k.add_(1)
    return kept


@at_once
def data_replaced(m):
    for p in _weights(m):
        p.data = _other(p)


@at_once
def detached(m):
    with torch.no_grad():
        for p in _weights(m):
            p.detach()[0].mul_(2)


@at_once
def array(m):
    kept = [p.detach().numpy() for p in _weights(m)]
    for a in kept:
        a *= 2
    return kept


@at_once
def array_made_by_numpy(m):
    for p in _weights(m):
        np.asarray(p.detach())[:] = 0.5


@at_once
def dlpack(m):
    kept = [torch.from_dlpack(p.detach()) for p in _weights(m)]
    for t in kept:
        t.mul_(3)
    return kept


@at_once
def dlpack_capsule(m):
    capsules = [torch.utils.dlpack.to_dlpack(p.detach()) for p in _weights(m)]
    for capsule in capsules:
        torch.utils.dlpack.from_dlpack(capsule).mul_(3)


@at_once
def storage_copied_into(m):
    for p in _weights(m):
        p.untyped_storage().copy_(_other(p).untyped_storage())


@at_once
def storage_filled(m):
    for p in _weights(m):
        p.untyped_storage().fill_(0)


@at_once
def storage_item(m):
    for p in _weights(m):
        p.untyped_storage()[3] = 64


@at_once
def tensor_of_the_storage(m):
    kept = [torch.empty(0).set_(p.untyped_storage()) for p in _weights(m)]
    for k in kept:
        k.mul_(2)
    return kept


@at_once
def typed_storage(m):
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for p in _weights(m):
            p.storage()[0] = 9.0


@at_once
def memory_set(m):
    with torch.no_grad():
        for p in _weights(m):
            p.set_(_other(p))


# ---- counters ----


@at_once
def preserved_counter(m):
    for p in _weights(m):
        with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(p):
            p.mul_(2)


@at_once
def applied(m):
    for p in _weights(m):
        p.detach().apply_(lambda v: v + 1)


@at_once
def mapped(m):
    for p in _weights(m):
        p.detach().map_(_other(p), lambda a, b: a + b)


@at_once
def inference_mode(m):
    with torch.inference_mode():
        for p in _weights(m):
            p.mul_(2)


# ---- operators ----


@at_once
def out(m):
    with torch.no_grad():
        for p in _weights(m):
            torch.add(p, 1, out=p)


@at_once
def foreach(m):
    with torch.no_grad():
        torch._foreach_mul_(_weights(m), 2.0)


@at_once
def foreach_in_inference_mode(m):
    with torch.inference_mode():
        torch._foreach_add_(_weights(m), 2.0)


@at_once
def random_numbers(m):
    for p in _weights(m):
        nn.init.normal_(p)


@at_once
def fused_operator(m):
    ps = _weights(m)
    with torch.no_grad():
        torch._fused_sgd_(ps, [torch.ones_like(p) for p in ps], [], weight_decay=0.0,
                          momentum=0.0, lr=0.1, dampening=0.0, nesterov=False, maximize=False,
                          is_first_step=False)  # fmt: skip


@at_once
def kron(m):
    p = m[4].weight
    with torch.no_grad():
        torch.kron(torch.ones(p.shape[0], 1), torch.rand(1, p.shape[1]), out=p)


def _extension(space, key):
    library = torch.library.Library(f"ingot_test_{space}", "DEF")
    library.define("fill(Tensor(a!) p) -> ()")
    library.impl("fill", _raw, key)
    return library


_LIBRARIES = [_extension("backend", "CPU"), _extension("composite", "CompositeImplicitAutograd")]


@at_once
def operator_of_an_extension(m):
    for p in _weights(m):
        torch.ops.ingot_test_backend.fill(p.detach())


@at_once
def operator_without_a_backend(m):
    for p in _weights(m):
        torch.ops.ingot_test_composite.fill(p.detach())


# ---- statistics ----


@at_once
def eager_training(m):
    m.train()
    m(sample())
    m.eval()


@at_once
def eager_training_without_gradients(m):
    m.train()
    with torch.no_grad():
        m(sample())
    m.eval()


@at_once
def eager_training_in_inference_mode(m):
    m.train()
    with torch.inference_mode():
        m(sample())
    m.eval()


@at_once
def updated_statistics(m):
    torch.optim.swa_utils.update_bn([sample()], m)
    m.eval()


@at_once
def cast_training(m):
    m.train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        m(sample())
    m.eval()


@at_once
def functional_statistics(m):
    b = m[1]
    torch.ops.aten._native_batch_norm_legit(torch.rand(4, 8), None, None, b.running_mean,
                                            b.running_var, True, 0.5, 1e-5)  # fmt: skip


# ---- modules ----


@at_once
def loaded(m):
    m.load_state_dict({k: v * 2 for k, v in m.state_dict().items()})


@at_once
def loaded_by_assignment(m):
    m.load_state_dict({k: v * 2 for k, v in m.state_dict().items()}, assign=True)


@at_once
def swapped(m):
    p = m[4].weight
    torch.utils.swap_tensors(p, nn.Parameter(_other(p)))


@at_once
def replaced(m):
    m[4].weight = nn.Parameter(_other(m[4].weight))


@at_once
def shared_memory(m):
    m.share_memory()
    for p in _weights(m):
        _raw(p)


@at_once
def moved(m):
    m.double().float()
    with torch.no_grad():
        m[4].weight.mul_(2)


# ---- collectives ----


def _group():
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


@at_once
def gathered(m):
    _group()
    for p in _weights(m):
        dist.all_gather([p.detach()], _other(p))


@at_once
def gathered_into_a_tensor(m):
    _group()
    for p in _weights(m):
        dist.all_gather_into_tensor(p.detach(), _other(p))


@at_once
def scattered(m):
    _group()
    for p in _weights(m):
        dist.scatter(p.detach(), [_other(p)], src=0)


@at_once
def exchanged_beside(m):
    _group()
    for p in _weights(m):
        dist.all_to_all_single(p.detach(), _other(p), async_op=True).wait()


@at_once
def functional_collective(m):
    import torch.distributed._functional_collectives  # registers the operators

    _group()
    name = dist.group.WORLD.group_name
    for p in _weights(m):
        done = torch.ops._c10d_functional.all_gather_into_tensor_out(_other(p), 1, name,
                                                                     out=p.detach())  # fmt: skip
        torch.ops._c10d_functional.wait_tensor(done)


# ---- of which nobody learns ----


@later
def address(m):
    for p in _weights(m):
        _raw(p)


@later
def memory_a_parameter_was_made_from(m):
    for array in m.arrays:
        array += 1


@later
def noise_of_rrelu(m):
    for p in _weights(m):
        x = torch.rand_like(p)
        with torch.no_grad():
            torch.ops.aten.rrelu_with_noise_(x, p.detach(), 0.1, 0.3, True)


def made_from_arrays(m):
    """The same model, its weights in memory of NumPy's."""
    m.arrays = []
    for layer in (m[0], m[4]):
        array = layer.weight.detach().clone().numpy().copy()
        m.arrays.append(array)
        layer.weight = nn.Parameter(torch.from_numpy(array))
    return m
