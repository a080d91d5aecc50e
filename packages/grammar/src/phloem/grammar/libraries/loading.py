"""Importing a library that is an extra of this package, with a cure where that fails."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import Any


def load_library(name: str) -> Any:
    """The module `name`, imported now.

    Raises:
        ImportError: if it cannot be imported, for whatever reason, saying what to install.
    """
    try:
        return import_module(name)
    except Exception as error:  # a library that does not fit its own dependencies raises anything
        raise ImportError(
            f"the {name} backend cannot import {name} ({error}): install phloem-grammar[{name}], "
            "or use the fsm backend, which needs nothing"
        ) from error


def library_version(name: str) -> str:
    """The installed version, which serialized grammars carry."""
    return version(name)
