"""The compiled form of a module: an object of the module's own class that shares its `__dict__`.

Parameters, buffers, hooks, submodules and plain attributes are therefore not forwarded but the
same, in both directions: `state_dict` has no prefix, `to` and `train` work on the original,
`isinstance` holds, and a method that calls `self(...)` (a `generate` loop) runs compiled. Only
calling differs. A call costs one Python function more than the compiled callable.
"""

from __future__ import annotations

import copy
import dis
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch

from ._settings import Settings

_subclasses: weakref.WeakValueDictionary[type, type] = weakref.WeakValueDictionary()


class CompiledModule:
    """Mixed into the class of every compiled module: `isinstance(m, ingot.CompiledModule)`."""

    __slots__ = ("_ingot_call", "_ingot_compile", "_ingot_original", "_ingot_settings")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Nothing: the registries of a user's base class must not see the class made here."""

    def __call__(self, *args, **kwargs):  # as nn.Module writes it, for inspect.signature
        try:
            return self._ingot_call(*args, **kwargs)
        finally:
            # A lazy module changes its class when it is called first, a parametrized one as well.
            if type(self)._ingot_class is not type(self._ingot_original):
                _adopt(self)

    @property
    def __class__(self) -> type:
        return type(self._ingot_original)

    @__class__.setter
    def __class__(self, value: type) -> None:
        self._ingot_original.__class__ = value
        _adopt(self)

    @property
    def _orig_mod(self) -> torch.nn.Module:
        """The module as it was before, by the name that `torch.compile`'s wrapper has for it.

        Only code that reads the attribute gets it. Who asks by `hasattr` or `getattr` whether there
        is one (PEFT's hotswap_adapter) goes on to expect the name in the keys of `state_dict`,
        where it is not, and takes this object for the module, which it is.
        """
        frame = sys._getframe(1)
        if dis.opname[frame.f_code.co_code[frame.f_lasti]] not in ("LOAD_ATTR", "LOAD_METHOD"):
            raise AttributeError("_orig_mod")
        return self._ingot_original

    def __copy__(self) -> Any:
        return self._ingot_again(copy.copy(self._ingot_original))

    def __deepcopy__(self, memo: dict) -> Any:
        return self._ingot_again(copy.deepcopy(self._ingot_original, memo))

    def __reduce_ex__(self, protocol: Any) -> tuple:
        return wrap_module, (self._ingot_original, self._ingot_settings, self._ingot_compile)

    def __reduce__(self) -> tuple:
        return self.__reduce_ex__(2)

    def _replicate_for_data_parallel(self) -> torch.nn.Module:
        return self._ingot_original._replicate_for_data_parallel()

    def _ingot_again(self, original: torch.nn.Module) -> Any:
        return wrap_module(original, self._ingot_settings, self._ingot_compile)


def wrap_module(
    original: torch.nn.Module,
    settings: Settings,
    compile_callable: Callable[[Callable, Settings], Callable],
) -> Any:
    """The compiled form of `original`; `compile_callable` makes its call (by name, for pickle)."""
    wrapper = object.__new__(_subclass_of(type(original)))
    CompiledModule._ingot_original.__set__(wrapper, original)
    CompiledModule._ingot_settings.__set__(wrapper, settings)
    CompiledModule._ingot_compile.__set__(wrapper, compile_callable)
    CompiledModule._ingot_call.__set__(wrapper, compile_callable(original.__call__, settings))
    object.__setattr__(wrapper, "__dict__", original.__dict__)
    return wrapper


def _subclass_of(original: type) -> type:
    made = _subclasses.get(original)
    if made is None:
        names = {
            "__slots__": (),
            "__module__": original.__module__,
            "__qualname__": original.__qualname__,
            "__doc__": original.__doc__,
            "_ingot_class": original,
        }
        # By type.__new__: a metaclass that registers its classes must not see this one.
        made = type.__new__(type(original), original.__name__, (CompiledModule, original), names)
        _subclasses[original] = made
    return made


def _adopt(wrapper: Any) -> None:
    """The original has another class now: so must the wrapper."""
    object.__dict__["__class__"].__set__(wrapper, _subclass_of(type(wrapper._ingot_original)))
