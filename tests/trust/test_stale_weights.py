"""No call ever reads a weight as it was before something wrote it."""

import contextlib
import ctypes
import gc
import random
import warnings

import pytest
import torch

import ingot
from ingot import _unseen_writes
from trust import weight_writers as writers

EVALUATIONS = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "grad": contextlib.nullcontext,
}


@pytest.fixture(autouse=True)
def quiet():
    _unseen_writes._said.clear()
    torch.set_num_threads(1)  # what is found later is found within 512 calls a thread
    yield
    torch.set_num_threads(2)
    gc.collect()


class Evaluated:
    """A model, compiled and called until its weights are packed."""

    def __init__(self, evaluation, compiled_training=False, options=None):
        self.model = writers.made_from_arrays(writers.model())
        if evaluation == "grad":
            # Gradients of something else are on: what needs one itself is never packed.
            self.model.requires_grad_(False)
        self.compiled = ingot.compile(self.model, options=options)
        self.written = self.compiled if compiled_training else self.model
        self.evaluation, self.x = EVALUATIONS[evaluation], writers.sample()
        for _ in range(4):
            self.agrees()

    def results(self):
        with self.evaluation():
            return self.compiled(self.x), self.model(self.x)

    def agrees(self):
        got, expected = self.results()
        return torch.allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.fixture(params=list(EVALUATIONS))
def evaluation(request):
    return request.param


@pytest.mark.parametrize("write", writers.AT_ONCE, ids=lambda w: w.__name__)
def test_the_next_call_sees_a_write(write, evaluation):
    e = Evaluated(evaluation)
    before, _ = e.results()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", RuntimeWarning)
        kept = write(e.model)
        got, expected = e.results()
        assert not torch.equal(expected, before)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
        for _ in range(3):
            assert e.agrees()
    found = [w for w in said if "was written" in str(w.message)]
    # The others are known to have written; nothing had to be found out.
    assert bool(found) == (write in writers.FOREIGN)
    del kept


@pytest.mark.parametrize("training", ["train", "no_grad", "force_eager", "step"])
def test_the_next_call_sees_what_compiled_training_wrote(training, evaluation):
    e = Evaluated(evaluation)
    optimizer = torch.optim.AdamW(e.model.parameters(), lr=0.1, fused=True)
    for _ in range(3):
        e.compiled.train()
        stance = ingot.set_stance("force_eager" if training == "force_eager" else "default")
        with stance, torch.no_grad() if training == "no_grad" else contextlib.nullcontext():
            y = e.compiled(e.x).square().mean()
        if training == "step" and y.requires_grad:
            optimizer.zero_grad()
            y.backward()
            optimizer.step()
        e.compiled.eval()
        assert e.agrees()
        assert e.agrees()


@pytest.mark.parametrize("write", writers.LATER, ids=lambda w: w.__name__)
def test_what_nobody_learns_of_is_found_within_so_many_calls(write, evaluation):
    e = Evaluated(evaluation)
    write(e.model)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(512 * torch.get_num_threads() + 1):
            if e.agrees():
                break
        for _ in range(20):
            assert e.agrees()
    names = [str(w.message).split()[2] for w in said if w.category is RuntimeWarning]
    # Which of the two is found first makes no difference; each is named once at most.
    assert names and len(set(names)) == len(names)
    assert set(names) <= {"0.weight", "4.weight"}
    assert ingot.stats().unseen_writes >= len(names)


@pytest.mark.parametrize("write", writers.LATER, ids=lambda w: w.__name__)
def test_strict_checks_find_it_at_the_next_call(write, evaluation):
    e = Evaluated(evaluation, options={"weight_checks": "all"})
    write(e.model)
    with pytest.warns(RuntimeWarning, match="weight was written"):
        assert e.agrees()


def test_without_freezing_there_is_nothing_to_be_stale(evaluation):
    e = Evaluated(evaluation, options={"freezing": False})
    writers.address(e.model)
    assert e.agrees()


def test_the_other_tests_look_at_copies(evaluation):
    """Without checks a foreign write is not seen: the model's weights are folded and packed."""
    e = Evaluated(evaluation, options={"weight_checks": "none"})
    writers.address(e.model)
    assert not e.agrees()
    for p in e.model.parameters():
        torch.autograd.graph.increment_version(p)
    assert e.agrees()


def _step_of_another_model():
    p = torch.nn.Parameter(torch.ones(2))
    p.grad = torch.ones(2)
    torch.optim.SGD([p], lr=0.1).step()


def _backward():
    torch.ones(2, requires_grad=True).sum().backward()


def _compiled_training():
    c = ingot.compile(torch.nn.Linear(3, 3))
    c(torch.ones(2, 3))


@pytest.mark.parametrize("event", [_step_of_another_model, _backward, _compiled_training])
def test_everything_is_compared_after(event):
    e = Evaluated("no_grad")
    writers.address(e.model)
    event()
    with pytest.warns(RuntimeWarning, match="weight was written"):
        assert e.agrees()


def test_a_parameter_that_is_written_unseen_at_every_call_is_not_kept():
    e = Evaluated("no_grad", options={"weight_checks": "all"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for k in range(6):
            e.model.arrays[1].fill(k)
            assert e.agrees()
    found = ingot.stats().unseen_writes
    e.model.arrays[1].fill(9)
    assert e.agrees()
    assert ingot.stats().unseen_writes == found


def test_two_functions_with_one_parameter_hear_of_it_together():
    e = Evaluated("no_grad", options={"weight_checks": "all"})
    other = ingot.compile(lambda x: e.model(x) + 1, options={"weight_checks": "none"})
    with torch.no_grad():
        for _ in range(3):
            other(e.x)
        writers.address(e.model)
        with pytest.warns(RuntimeWarning):
            assert e.agrees()
        torch.testing.assert_close(other(e.x), e.model(e.x) + 1, rtol=1e-4, atol=1e-4)


def test_evaluation_in_eager_training_does_not_count_as_a_write():
    from ingot import _ingot

    b = torch.nn.BatchNorm2d(3).eval()
    before = _ingot.unseen_changes(b.running_mean)
    b(torch.rand(2, 3, 4, 4))
    assert _ingot.unseen_changes(b.running_mean) == before
    b.train()(torch.rand(2, 3, 4, 4))
    assert _ingot.unseen_changes(b.running_mean) != before


def test_a_capsule_lets_the_memory_go():
    from ingot import _ingot

    p = torch.ones(4)
    t = torch.from_dlpack(p)
    assert _ingot.unseen_changes(p) is None
    t.mul_(2)
    del t
    assert isinstance(_ingot.unseen_changes(p), int)
    del p


OUT, IN, H, W = 8, 3, 3, 3
LAYOUTS = {
    "dense": lambda: torch.rand(OUT, IN, H, W),
    "channels_last": lambda: torch.rand(OUT, IN, H, W).to(memory_format=torch.channels_last),
    "every_second": lambda: torch.rand(2 * OUT, IN, H, W)[::2],
    "some_channels": lambda: torch.rand(OUT, IN + 2, H, W)[:, 1 : IN + 1],
    "apart": lambda: torch.rand(OUT, IN, H, 2 * W)[..., ::2],
    "turned": lambda: torch.rand(W, H, IN, OUT).permute(3, 2, 1, 0),
    "expanded": lambda: torch.rand(OUT, 1, H, W).expand(OUT, IN, H, W),
    "twice_expanded": lambda: torch.rand(OUT, IN, 1, 1).expand(OUT, IN, H, W),
    "behind_another": lambda: torch.rand(2, OUT, IN, H, W)[1],
}


def _flip_sign(tensor, index):
    """Of one element, at its address."""
    element = sum(i * s for i, s in zip(index, tensor.stride(), strict=True))
    address = tensor.data_ptr() + tensor.element_size() * (element + 1) - 1
    ctypes.c_uint8.from_address(address).value ^= 0x80


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_element_of_any_layout_is_compared(layout):
    # In fp64 a sign is the highest bit of a word.
    torch.set_default_dtype(torch.float64 if layout in ("dense", "apart") else torch.float32)
    weight, x, scale = LAYOUTS[layout](), torch.rand(2, IN, 6, 6), torch.rand(OUT, 1, 1)
    torch.set_default_dtype(torch.float32)

    def function(x):
        return torch.nn.functional.conv2d(x, weight) * scale

    compiled = ingot.compile(function, options={"weight_checks": "all"})
    unchecked = ingot.compile(function, options={"weight_checks": "none"})
    pick = random.Random(layout)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for _ in range(2):
            compiled(x)
            unchecked(x)
        for turn in range(4):
            _flip_sign(weight, [pick.randrange(n) for n in weight.shape])
            if turn == 0:
                assert not torch.allclose(unchecked(x), function(x), rtol=1e-5, atol=1e-7)
            for _ in range(2):
                torch.testing.assert_close(compiled(x), function(x), rtol=1e-4, atol=1e-4)
