"""A training step defines a helper class on the spot that counts, records shapes and serves as a context manager.

Reported: pytorch/pytorch#197896 (changes of captured lists and dicts by methods of a local class are lost).
Right: every append, item and count is there after each call; the context's exit runs also when its body raises.
"""

import torch


def make(history, totals):
    class Recorder:
        made = 0

        def __init__(self, name):
            self.name = name
            Recorder.made += 1

        def note(self, x):
            history.append((self.name, tuple(x.shape)))
            totals["n"] += 1
            totals[self.name] = totals.get(self.name, 0) + x.shape[0]
            return x * totals["n"]

        def __enter__(self):
            history.append("in " + self.name)
            return self

        def __exit__(self, kind, value, trace):
            history.append("out " + self.name + (" " + kind.__name__ if kind else ""))
            return kind is KeyError

    def step(x, key):
        first = Recorder("first")
        y = first.note(x)
        with Recorder("second") as second:
            y = second.note(y)
            if key is not None:
                y = y + {"a": 1.0}[key]
            history.append("inner")
        return y, Recorder.made

    return step


def whole(x, log):
    class Scale:
        factor = x.shape[0]

        def __call__(self, t):
            log.append(self.factor)
            return t * self.factor

    return Scale()(x) + Scale().factor, Scale.__name__


def run(compile_fn):
    notes = []
    history, totals = [], {"n": 0}
    step = compile_fn(make(history, totals))
    for key in (None, "a", "b", None, "a"):
        for n in (2, 3):
            notes.append([step(torch.ones(n), key), list(history), dict(totals)])
            history.clear()
    log = []
    fast = compile_fn(whole)
    for n in (2, 2, 5):
        notes.append([fast(torch.ones(n), log), list(log)])
    return notes
