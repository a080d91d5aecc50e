"""What was evicted lately, remembered by its tokens, so that a miss can be explained."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Ghost:
    """Tokens that were cached under a node, or under another ghost, and were evicted."""

    data: bytes
    ghosts: dict[bytes, Ghost] | None
    evicted: float
