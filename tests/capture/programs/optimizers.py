"""What steps of optimizers are made of: state by tensor, gradients, defaults; warnings, imports."""

import collections
import sys
import warnings

import torch

from capture.harness import program


def _parameters(w, count=3):
    return [torch.nn.Parameter(w.t(4)) for _ in range(count)]


def _give_gradients(w, parameters):
    for p in parameters:
        p.grad = w.t(4)


@program
def state_by_tensor(w):
    parameters = _parameters(w)
    state = {p: {"sum": torch.zeros(4), "n": i} for i, p in enumerate(parameters)}

    @torch.no_grad()
    def step():
        for p in parameters:
            own = state[p]
            own["sum"].add_(p)
            own["n"] += 1
            p.mul_(0.5).add_(own["sum"], alpha=own["n"])

    step = w.compile(step)
    for i in range(6):
        w.call(step)
        w.note([p.detach().clone() for p in parameters], [own["n"] for own in state.values()])
        if i == 2:
            parameters[0], parameters[1] = parameters[1], parameters[0]
        if i == 3:
            parameters[2] = torch.nn.Parameter(w.t(4))  # has no state


@program
def a_default_for_a_tensor(w):
    parameters = _parameters(w)
    state = collections.defaultdict(dict)
    counts = collections.defaultdict(int)

    @torch.no_grad()
    def step(name):
        for p in parameters:
            own = state[p]
            if not own:
                own["sum"] = torch.zeros_like(p)
            own["sum"] += p
            p.sub_(own["sum"])
        counts[name] += 1

    step = w.compile(step)
    for i in range(6):
        w.call(step, "ab"[i % 2])
        w.note([p.detach().clone() for p in parameters], len(state), dict(counts))
        if i == 3:
            state.clear()


@program
def gradients_are_read(w):
    parameters = _parameters(w)

    @torch.no_grad()
    def step():
        done = 0
        for p in parameters:
            if p.grad is not None:
                p.sub_(p.grad, alpha=0.1)
                done += 1
        return done

    step = w.compile(step)
    for i in range(6):
        _give_gradients(w, parameters)
        if i == 2:
            parameters[1].grad = None
        if i == 4:
            parameters[0].grad = w.t(4).to(torch.float32)[torch.arange(3, -1, -1)]
        w.call(step)
        w.note([p.detach().clone() for p in parameters])


@program
def gradients_are_dropped(w):
    parameters = _parameters(w)

    @torch.no_grad()
    def step(x):
        for p in parameters:
            p.add_(p.grad)
            p.grad = None
        return x + sum(p.grad is None for p in parameters)

    step = w.compile(step)
    for _ in range(4):
        _give_gradients(w, parameters)
        w.call(step, w.t(2))
        w.note([p.grad for p in parameters], [p.detach().clone() for p in parameters])
    w.call(step, w.t(2))  # without gradients: an error


@program
def a_gradient_of_an_argument(w):
    def f(p):
        return p.grad * 2 if p.grad is not None else p.detach() * 3

    f = w.compile(f)
    parameters = _parameters(w)
    parameters[1].grad = w.t(4)
    for p in parameters * 2:
        w.call(f, p)


@program
def two_tensors_become_one(w):
    module = torch.nn.Module()
    module.a, module.b = w.t(3), w.t(3)
    module.f = lambda x: x * 2 if module.a is module.b else x + module.a

    f = w.compile(module.f)
    for i in range(5):
        w.call(f, w.t(3))
        if i == 1:
            module.a = module.b
        if i == 3:
            module.a = w.t(3)


@program
def warnings_are_given(w):
    def inner(x, loud):
        if loud:
            warnings.warn("careful", RuntimeWarning, stacklevel=2)
        return x + 1

    def f(x, loud):
        warnings.warn(f"loud is {loud}")
        try:
            return inner(x, loud) * 2
        except RuntimeWarning:
            return x

    f = w.compile(f)
    for filters in ["always", "always", "default", "error", "once", "always", "ignore"]:
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter(filters)
            if filters == "error":
                warnings.simplefilter("ignore", UserWarning)
            w.call(f, w.t(2), True)
            w.call(f, w.t(2), False)
            w.call(f, w.t(2), True)
        w.note([(str(one.message), one.category.__name__, one.lineno > 0) for one in given])


@program
def an_import_inside(w):
    def f(x):
        import colorsys

        return x * colorsys.rgb_to_hls(0.5, 0.25, 0.125)[0]

    sys.modules.pop("colorsys", None)
    f = w.compile(f)
    for _ in range(3):
        w.call(f, w.t(2))


@program
def annotations_of_profilers(w):
    def f(x):
        with torch.profiler.record_function("outer"):
            y = x * 2
            with torch.autograd.profiler.record_function("inner"):
                if y.sum() > 0:  # a break within
                    return y + 1
        return y - 1

    f = w.compile(f)
    for _ in range(5):
        w.call(f, w.t(3))


def _optimizer(kind, **settings):
    def run(w):
        parameters = _parameters(w)
        optimizer = kind(parameters, **settings)
        step = w.compile(optimizer.step)
        for i in range(5):
            _give_gradients(w, parameters)
            w.call(step)
            w.note(
                [p.detach().clone() for p in parameters], sorted(optimizer.state_dict()["state"])
            )
            if i == 2:
                optimizer.zero_grad()

    return run


@program
def sgd_with_momentum(w):
    _optimizer(torch.optim.SGD, lr=0.1, momentum=0.9)(w)


@program
def adam_by_foreach(w):
    _optimizer(torch.optim.Adam, lr=0.1, foreach=True)(w)


@program
def adam_by_a_loop(w):
    _optimizer(torch.optim.Adam, lr=0.1, foreach=False, weight_decay=0.1)(w)
