"""Which version of the package runs."""

from __future__ import annotations

import importlib.metadata


def version() -> str:
    """Of the installed package."""
    try:
        return importlib.metadata.version("phloem-server")
    except importlib.metadata.PackageNotFoundError:
        return "0+source"
