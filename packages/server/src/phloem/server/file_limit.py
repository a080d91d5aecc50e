"""How many files and connections the system lets this process have open."""

from __future__ import annotations

import sys

_OTHERS = 256
"""Files that are none of clients' connections: sockets between processes, models, logs."""


def room_for_connections(wanted: int) -> int:
    """Raise this process's limit on open files; how many of `wanted` connections fit in it."""
    if sys.platform == "win32":
        return wanted
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    needed = wanted + _OTHERS
    most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if most > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    return max(min(wanted, soft - _OTHERS), 1)
