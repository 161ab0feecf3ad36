"""A short run of the random programs that write through views (view_programs.py)."""

import torch

import ingot
from trust import view_programs


def test_random_programs_that_write_through_views():
    torch.set_num_threads(1)
    done, failures = view_programs.run(0, 100, seed=8, parts=False, strides=False)
    assert done == 100
    assert not failures, "\n".join(failures)


def test_what_is_wrong_is_found():
    def forgets_a_write(function, **_):
        return lambda x, w, s: tuple(t.detach() for t in function(x.detach(), w, s))

    case = next(
        c
        for k in range(50)
        if any((c := view_programs.Case(f"3:{k}")).needs) and "raises" not in str(c)
    )
    function = case.function()
    found = [view_programs.outcome(case, f, 0) for f in (function, forgets_a_write(function))]
    assert view_programs.difference(found[0], found[0]) is None
    assert view_programs.difference(*found) is not None
    ingot.reset()
