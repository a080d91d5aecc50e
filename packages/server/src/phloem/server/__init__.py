"""Phloem's engine and command line: the wiring of its components.

`Engine` is loaded when it is first asked for, so that `phloem --help` does not wait for numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phloem.server.config import ServerArgs
    from phloem.server.engine import Engine, EngineDead

__all__ = ["Engine", "EngineDead", "ServerArgs"]


def __getattr__(name: str) -> Any:
    if name in ("Engine", "EngineDead"):
        from phloem.server import engine

        return getattr(engine, name)
    if name == "ServerArgs":
        from phloem.server.config import ServerArgs

        return ServerArgs
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
