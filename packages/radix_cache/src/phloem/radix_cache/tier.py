"""The tiers a cache may keep values in."""

from __future__ import annotations

from enum import IntEnum


class Tier(IntEnum):
    """Where a copy of values lives: in device memory, which a step reads, or in host memory."""

    DEVICE = 0
    HOST = 1
