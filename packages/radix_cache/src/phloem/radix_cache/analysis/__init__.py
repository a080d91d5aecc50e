"""How much prefix caching would save on given traffic, and what keeps it from saving more.

`PrefixStats` takes requests one by one; `python -m phloem.radix_cache analyze` feeds it from a
file.
"""

from .report import Curve, Point, Pollution, PollutionReport, PrefixReport, SharedPrefix
from .stats import PrefixStats
from .units import BYTES, TOKENS, Unit

__all__ = [
    "BYTES",
    "TOKENS",
    "Curve",
    "Point",
    "Pollution",
    "PollutionReport",
    "PrefixReport",
    "PrefixStats",
    "SharedPrefix",
    "Unit",
]
