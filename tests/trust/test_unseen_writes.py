"""Whatever operator writes a tensor, the version counter moves or Ingot notes it.

Over all operators of the installed PyTorch: the dispatcher is asked which kernels they have, and
they are called (operator_sweep.py). What neither counts nor can be noted stands in a table, and is
left to the comparison of contents.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ingot import _ingot
from trust import operator_sweep

# They have a kernel of PyTorch's own that counts what they return and not what they write beside.
LEFT_TO_COMPARISON = {
    "aten::_batch_norm_with_update.out": {"running_mean", "running_var"},
    "aten::_native_batch_norm_legit.out": {"running_mean", "running_var"},
    "aten::batch_norm_update_stats.out": {"running_mean", "running_var"},
    "aten::native_batch_norm.out": {"running_mean", "running_var"},
    "aten::rrelu_with_noise.out": {"noise"},
    "aten::rrelu_with_noise_": {"noise"},
}

# Written, but no contents of a tensor.
METADATA = {"aten::detach_", "aten::record_stream", "prims::as_strided", "prims::resize"}


@pytest.fixture(scope="module")
def rows():
    script = Path(operator_sweep.__file__)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_write_is_counted_or_noted(rows):
    missed = {
        (name, argument)
        for name, _, found in rows
        if isinstance(found, dict)
        for argument, (counted, noted) in found.items()
        if not counted and not noted and argument not in LEFT_TO_COMPARISON.get(name, ())
    }
    assert not missed


def test_the_table_has_nothing_too_much(rows):
    found = {}
    for name, _, written in rows:
        if isinstance(written, dict) and name in LEFT_TO_COMPARISON:
            lost = {a for a, (counted, noted) in written.items() if not counted and not noted}
            found.setdefault(name, set()).update(lost)
    assert found == LEFT_TO_COMPARISON


def test_the_sweep_reaches_most_operators(rows):
    says = {name for name, schema in operator_sweep.operators() if operator_sweep.writes(schema)}
    wrote = {name for name, _, found in rows if isinstance(found, dict) and found and name in says}
    assert len(wrote) > len(says) / 2
    crashes = {name for name, _, found in rows if found == "crash"}
    assert len(crashes) < 20
    # What the loops of users call.
    for name in ("aten::add_.Tensor", "aten::add.out", "aten::_fused_sgd_", "aten::copy_",
                 "aten::_foreach_mul_.Scalar", "aten::normal_", "aten::index_put_"):  # fmt: skip
        assert name in wrote


def test_every_operator_that_writes_has_a_kernel_that_counts_or_notes():
    watched = set(_ingot.watched_operators())
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    missing = []
    for name, schema in operator_sweep.operators():
        if not operator_sweep.writes(schema) or name in watched or name in METADATA:
            continue
        # PyTorch's own that are made of others call ones that count; the sweep looks.
        made_of_others = name.startswith(("aten::", "prims::")) and (
            has(name, "CompositeImplicitAutograd")
            or (has(name, "CompositeExplicitAutograd") and not has(name, "CPU"))
            or has(name, "CompositeExplicitAutogradNonFunctional")
        )
        if not made_of_others and not has(name, "ADInplaceOrView"):
            missing.append(name)
    assert missing == []


def test_collectives_and_fused_optimizers_are_watched():

    watched = set(_ingot.watched_operators())
    wanted = {name for name, _ in operator_sweep.operators()
              if name.startswith("c10d::") or (name.startswith("aten::_fused_")
              and name.split(".")[0].endswith("_"))}  # fmt: skip
    wanted |= {"_c10d_functional::all_reduce_", "_c10d_functional::broadcast_",
               "_c10d_functional::wait_tensor", "aten::native_batch_norm",
               "aten::_native_batch_norm_legit", "aten::cudnn_batch_norm"}  # fmt: skip
    assert wanted <= watched


def test_an_operator_that_is_registered_later_is_watched():
    library = torch.library.Library("ingot_test_later", "DEF")
    library.define("one(Tensor(a!) p) -> ()")
    library.impl("one", lambda p: None, "CPU")
    library.define("two(Tensor p) -> ()")
    watched = _ingot.watched_operators()
    assert "ingot_test_later::one" in watched
    assert "ingot_test_later::two" not in watched


def test_a_custom_operator_counts_by_itself():
    @torch.library.custom_op("ingot_test_counts::one", mutates_args={"p"})
    def one(p: torch.Tensor) -> None:
        p.numpy()[:] = 2

    assert "ingot_test_counts::one" not in _ingot.watched_operators()
    p = torch.ones(2)
    version = p._version
    one(p)
    assert p._version == version + 1


def test_watched_operators_give_what_they_gave():
    """Gradients, in-place checks and transforms are those of the operator itself."""
    library = torch.library.Library("ingot_test_same", "DEF")
    library.define("composite(Tensor(a!) p, Tensor q) -> Tensor")

    def composite(p, q):
        p.add_(1)
        return p * q

    library.impl("composite", composite, "CompositeImplicitAutograd")
    results = []
    for look in (False, True):
        if look:
            assert "ingot_test_same::composite" in _ingot.watched_operators()
        q = torch.ones(3, requires_grad=True)
        y = torch.ops.ingot_test_same.composite(torch.zeros(3), q)
        y.sum().backward()
        with torch.inference_mode():
            inference = torch.ops.ingot_test_same.composite(torch.zeros(3), torch.ones(3))
        gradient = torch.func.grad(
            lambda q: torch.ops.ingot_test_same.composite(torch.zeros(3), q).sum()
        )(torch.rand(3))
        results.append((y.detach(), q.grad, inference, gradient))
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)
