"""What the garbage collector of a server's process has to do: little.

Streams make many objects that live for a step and are in no cycle. Looking for cycles among them,
and again and again among what the start has left, took a sixth of the API process's time.
"""

from __future__ import annotations

import gc

_NEW_OBJECTS = 10_000
"""More of these than have gone make the collector look through them; some requests' worth."""


def settle() -> None:
    """What this process has made so far stays; what comes is looked through more seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, *gc.get_threshold()[1:])
