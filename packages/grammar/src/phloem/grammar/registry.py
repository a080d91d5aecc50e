"""Backends by name: the ones of this package, and those that others add."""

from __future__ import annotations

from importlib import import_module

from phloem.grammar.auto import ORDER, AutoBackend, BackendMaker
from phloem.grammar.base import GrammarBackend
from phloem.grammar.errors import GrammarError
from phloem.grammar.vocabulary import Vocabulary

_MAKERS: dict[str, BackendMaker] = {"auto": AutoBackend, **ORDER}


def create_backend(name: str, vocabulary: Vocabulary) -> GrammarBackend:
    """The backend `name` (`auto`, `fsm`, `xgrammar`, `llguidance` or a registered one), or what
    the function of `module:function` makes, in any process that can import it.

    Raises:
        GrammarError: if there is none of that name.
        ImportError: if it needs a library that is not installed, or that module is not there.
    """
    module, colon, function = name.partition(":")
    if colon:
        backend: GrammarBackend = getattr(import_module(module), function)(vocabulary)
        return backend
    if name not in _MAKERS:
        raise GrammarError(
            f"there is no grammar backend {name!r}: take one of {', '.join(backend_names())}"
        )
    return _MAKERS[name](vocabulary)


def register_backend(name: str, maker: BackendMaker) -> None:
    """Let `create_backend` make backends of another kind, in this process.

    Raises:
        GrammarError: if the name is taken.
    """
    if _MAKERS.setdefault(name, maker) is not maker:
        raise GrammarError(f"the grammar backend {name!r} is registered already: take another name")


def backend_names() -> tuple[str, ...]:
    """The names that `create_backend` knows."""
    return tuple(_MAKERS)
