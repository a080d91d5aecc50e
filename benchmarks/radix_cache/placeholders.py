"""Imports single modules of a large distribution without the rest of it.

Owns an import hook: the modules named as real are loaded from the distribution, every other module
of it (and of the third-party packages named as absent) is an empty placeholder. Whatever is called
on a placeholder raises, so nothing that is measured can run through one unseen.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, NoReturn


class _Placeholder(type):
    """Stands for any name: a base class, an annotation, a decorator's host; never a function."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return _placeholder(f"{cls.__name__}.{name}")

    def __getitem__(cls, item: object) -> type:
        return cls

    def __call__(cls, *args: object, **kwargs: object) -> Any:
        if cls.__bases__ != (object,):  # a real class that inherits from a placeholder
            return super().__call__(*args, **kwargs)
        _refuse(cls.__name__)


def _placeholder(name: str) -> type:
    return _Placeholder(name, (), {})


def _refuse(name: str) -> NoReturn:
    raise RuntimeError(f"{name} is only a placeholder here: name its module as real to call it")


class _Module(ModuleType):
    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _placeholder(f"{self.__name__}.{name}")


class _Finder(MetaPathFinder, Loader):
    def __init__(
        self, real: Iterable[str], absent: Iterable[str], given: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self._real = frozenset(real)
        self._tops = frozenset(name.partition(".")[0] for name in (*real, *absent, *given))
        self._given = given

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] not in self._tops or name in self._real:
            return None
        spec = ModuleSpec(name, self)
        found = PathFinder.find_spec(name, path)
        # A package keeps its folder, so that the real modules in it are found, and loses its code.
        spec.submodule_search_locations = list(
            (found.submodule_search_locations if found else None) or ()
        )
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(self._given.get(module.__name__, {}))


def install(
    *,
    real: Iterable[str],
    absent: Iterable[str] = (),
    given: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Replace all modules but the real ones, for the rest of this process.

    `real`: dotted names of modules to load as they are. `absent`: top-level packages to pretend.
    `given`: names that a placeholder module is to have after all, by module.
    """
    sys.meta_path.insert(0, _Finder(tuple(real), tuple(absent), given or {}))
