"""What cannot be meant is said where it is given: what was given, and what may be."""

import logging
import re

import pytest
import torch

import ingot
from ingot import _checks, _options


def f(x):
    return x + 1


ANY = (TypeError, ValueError, RuntimeError, AssertionError, IndexError)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({"dynamic": "yes"}, ["dynamic", "'yes'", "str", "True, False or None"]),
        ({"dynamic": 1}, ["dynamic is 1", "int"]),
        ({"fullgraph": "yes"}, ["fullgraph", "'yes'", "True or False"]),
        ({"fullgraph": None}, ["fullgraph is None"]),
        ({"disable": 0}, ["disable is 0"]),
        ({"isolate_recompiles": "no"}, ["isolate_recompiles"]),
        ({"recompile_limit": -1}, ["recompile_limit is -1", "from 0 on"]),
        ({"recompile_limit": "8"}, ["recompile_limit is '8'", "whole number"]),
        ({"recompile_limit": 2.5}, ["recompile_limit is 2.5"]),
        ({"recompile_limit": True}, ["recompile_limit is True"]),
        ({"name": 3}, ["name is 3", "a str or None"]),
        ({"mode": 3}, ["mode is 3"]),
        ({"mode": "max_autotune"}, ["did you mean max-autotune?", "reduce-overhead"]),
        ({"mode": "default", "options": {}}, ["mode or options"]),
        ({"shapes_spec": "nonsense"}, ["shapes_spec is 'nonsense'", "ShapesSpec"]),
        ({"shapes_spec": {}, "dynamic": True}, ["`dynamic` and `shapes_spec`"]),
        ({"dynamic_shapes": 3}, ["dynamic_shapes is 3"]),
        ({"shapes_spec": {}, "dynamic_shapes": {}}, ["two names"]),
        ({"backend": 3}, ["backend must be a string or callable"]),
        ({"backend": "inductr"}, ["'inductr'", "did you mean inductor?", "list_backends"]),
        ({"options": "freezing"}, ["options is 'freezing'", "a dict"]),
        ({"options": {"frezing": True}}, ["frezing", "did you mean freezing?", "memory_budget"]),
        ({"options": {3: True}}, ["the option 3 is no text"]),
        ({"options": {"memory_budget": 7.0}}, ["memory_budget=7.0", "from 0 to 1"]),
        ({"options": {"memory_budget": float("nan")}}, ["memory_budget=nan"]),
        ({"options": {"size_limit": -1}}, ["size_limit=-1", "from 1 on"]),
        ({"options": {"size_limit": "many"}}, ["size_limit, got str should be int"]),
        ({"options": {"codegen": "llvn"}}, ["codegen='llvn'", "did you mean llvm?", "triton"]),
        ({"options": {"capture": "dynmo"}}, ["did you mean dynamo?", "own"]),
        ({"options": {"target": "pentium9"}}, ["target='pentium9'"]),
        ({"options": {"debug": 3}}, ["debug, got int should be str"]),
    ],
)
def test_arguments_of_compile(arguments, parts):
    for call in (lambda: ingot.compile(f, **arguments), lambda: ingot.compile(**arguments)(f)):
        with pytest.raises(ANY) as caught:
            call()
        for part in parts:
            assert part in str(caught.value), str(caught.value)


@pytest.mark.parametrize(
    ("variable", "value", "part"),
    [
        ("INGOT_SIZE_LIMIT", "0", "INGOT_SIZE_LIMIT='0' is out of range: from 1 on"),
        ("INGOT_MEMORY_BUDGET", "2", "INGOT_MEMORY_BUDGET='2' is out of range: from 0 to 1"),
        ("INGOT_CAPTURE", "dinamo", "INGOT_CAPTURE='dinamo' (did you mean dynamo?)"),
        ("INGOT_CACHE", "perhaps", "INGOT_CACHE='perhaps' is not a truth value"),
        ("INGOT_TARGET", "pentium9", "INGOT_TARGET='pentium9'"),
    ],
)
def test_environment_variables(monkeypatch, variable, value, part):
    monkeypatch.setenv(variable, value)
    with pytest.raises(RuntimeError, match=re.escape(part)):
        ingot.compile(f)


@pytest.fixture
def said(caplog):
    _checks._say.cache_clear()
    _checks.say_unwritable.cache_clear()
    caplog.set_level(logging.WARNING, "ingot")
    return lambda: [record.getMessage() for record in caplog.records]


def test_a_misspelt_variable_is_said_once(monkeypatch, said):
    monkeypatch.setenv("INGOT_FREEZNG", "0")
    monkeypatch.setenv("INGOT_BENCH_DUMP", "0")  # the benchmarks' own
    for _ in range(3):
        ingot.compile(f)
    (line,) = said()
    assert "INGOT_FREEZNG is read by nothing" in line and "did you mean INGOT_FREEZING?" in line


@pytest.mark.parametrize("name", ["debug", "cache_dir"])
def test_a_folder_that_cannot_be_written_is_said_once(name, tmp_path, said):
    (tmp_path / "file").write_text("in the way")
    folder = str(tmp_path / "file" / "folder")
    for _ in range(2):
        compiled = ingot.compile(f, options={name: folder})
    (line,) = said()
    assert f"the option {name}=" in line and folder in line and "cannot be written" in line
    torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 2.0))


def test_a_path_is_a_folder(tmp_path):
    assert _options.resolve(options={"debug": tmp_path}).debug == str(tmp_path)


def test_torch_compiles_name_for_cuda_graphs():
    assert _options.resolve(options={"triton.cudagraphs": True}).cudagraphs is True


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda x: ingot.mark_dynamic(x, 9), ["index is 9", "2 dims"]),
        (lambda x: ingot.mark_dynamic(x, [0, -3]), ["index is -3"]),
        (lambda x: ingot.mark_dynamic(x, True), ["Expected index"]),
        (lambda x: ingot.mark_dynamic(x, [1.0]), ["index is 1.0", "whole number"]),
        (lambda x: ingot.mark_dynamic([1, 2], 0), ["[1, 2]", "tensor"]),
        (lambda x: ingot.mark_dynamic(x, 0, min=5, max=2), ["min is 5 and max is 2"]),
        (lambda x: ingot.mark_dynamic(x, 0, min="1"), ["min is '1'"]),
        (lambda x: ingot.mark_dynamic(x, 0, max=-1), ["max is -1"]),
        (lambda x: ingot.mark_dynamic(x, 0, specialize_on=3), ["specialize_on is 3"]),
        (lambda x: ingot.maybe_mark_dynamic(x, 2), ["index is 2"]),
        (lambda x: ingot.mark_static(x, 2), ["index is 2"]),
        (lambda x: ingot.set_stance("force_eagr"), ["did you mean force_eager?"]),
        (lambda x: ingot.set_stance(3), ["invalid", "3"]),
        (lambda x: ingot.set_stance("default", force_backend="eagr"), ["'eagr'", "mean eager?"]),
        (lambda x: ingot.set_stance("default", skip_guard_eval_unsafe=1), ["skip_guard"]),
        (lambda x: ingot.disable(3), ["must be callable", "3"]),
        (lambda x: ingot.disable(f, "yes"), ["recursive is 'yes'"]),
        (lambda x: ingot.disable(f, reason=3), ["reason is 3"]),
        (lambda x: ingot.assume_constant_result(3), ["must be callable"]),
        (lambda x: ingot.compile(3), ["callable"]),
        (lambda x: ingot.compile_in_place(f), ["torch.nn.Module"]),
        (lambda x: ingot.list_mode_options("fast"), ["fast", "max-autotune"]),
    ],
)
def test_other_words_of_the_interface(call, parts):
    x = torch.ones(2, 3)
    with pytest.raises(ANY) as caught:
        call(x)
    for part in parts:
        assert part in str(caught.value), str(caught.value)
    assert not hasattr(x, "_dynamo_dynamic_indices")  # nothing is marked by halves


def test_what_own_capture_does_not_follow_is_said_once(said):
    ingot._backend._said.clear()
    for name in ("shapes_spec", "dynamic_shapes"):
        compiled = ingot.compile(f, **{name: {}})
    torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 2.0))
    (line,) = said()
    assert "shapes_spec is not followed" in line


def test_dims_are_counted_from_the_end_too():
    x = torch.ones(2, 3)
    ingot.mark_dynamic(x, -1)
    assert x._dynamo_dynamic_indices == {1}
