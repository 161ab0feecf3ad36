"""The table of switches: order of precedence, and errors that name their cause."""

import pytest

from ingot import _options, list_mode_options, list_options


def test_order_of_precedence():
    assert _options.resolve(environ={}).freezing is True
    assert _options.resolve(environ={"INGOT_FREEZING": "0"}).freezing is False
    options = {"freezing": True}
    assert _options.resolve(options=options, environ={"INGOT_FREEZING": "0"}).freezing is True
    assert _options.resolve(mode="max-autotune", environ={}).max_autotune is True


def test_dashes_are_underscores():
    assert _options.resolve(options={"max-autotune": True}, environ={}).max_autotune is True


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"mode": "fastest"}, "fastest"),
        ({"options": {"frezing": True}}, "frezing"),
        ({"options": {"freezing": "yes"}}, "freezing, got str should be bool"),
        ({"options": {"size_limit": True}}, "size_limit, got bool should be int"),
        ({"mode": "default", "options": {}}, "mode or options"),
        ({"environ": {"INGOT_CACHE": "maybe"}}, "INGOT_CACHE='maybe'"),
        ({"environ": {"INGOT_SIZE_LIMIT": "many"}}, "INGOT_SIZE_LIMIT='many'"),
    ],
)
def test_errors_name_their_cause(arguments, part):
    with pytest.raises(RuntimeError, match=part):
        _options.resolve(**arguments)


def test_known_foreign_option_is_accepted_with_a_warning():
    with pytest.warns(UserWarning, match="epilogue_fusion"):
        values = _options.resolve(options={"epilogue_fusion": True}, environ={})
    assert "epilogue_fusion" not in values


def test_every_row_is_documented_and_typed():
    assert len({row.name for row in _options.TABLE}) == len(_options.TABLE)
    for row in _options.TABLE:
        assert isinstance(row.default, row.type) and len(row.doc) > 10, row.name
        assert row.env == "INGOT_" + row.name.upper()
    assert list_options() == [row.name for row in _options.TABLE]


def test_modes_are_torch_compiles():
    modes = list_mode_options()
    names = {"default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"}
    assert set(modes) == names
    assert list_mode_options("max-autotune") == {"max_autotune": True, "cudagraphs": True}
    assert all(key in list_options() for values in modes.values() for key in values)
