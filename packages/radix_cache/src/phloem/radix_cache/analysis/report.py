"""What the analysis says: plain frozen data, ready for JSON. Rendering as text is elsewhere.

Lengths count the report's unit: token ids, or bytes of text where no tokenizer was at hand.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from ..key import Namespace


@dataclass(frozen=True, slots=True)
class Point:
    """A cache of `size` units found `hits` units of prompts, `rate` of all that were sent."""

    size: int
    hits: int
    rate: float


@dataclass(frozen=True, slots=True)
class Curve:
    """Hit rate by cache size under one eviction policy; sizes ascend."""

    policy: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """The stretch [start, end) of a prefix that `requests` requests share.

    All but the first of them found it, which saved `saved` units. `begins` and `ends` show the
    prefix from its own beginning (not the stretch's) and up to its end; `ends` is empty if the
    prefix is short enough to be shown whole.
    """

    start: int
    end: int
    requests: int
    saved: int
    namespace: Namespace
    begins: str
    ends: str


@dataclass(frozen=True, slots=True)
class Pollution:
    """A part near the front that differs between prompts which then go on alike.

    The part begins at `start` and is `length` units long (the median); what follows is the same in
    many requests for `shared` units (the median). `kind` says what it looks like, such as
    "timestamp" or "counter". `before`, `examples` and `after` show it. `requests` of the sample
    have it, with `distinct` different contents.

    `gain` is what moving it to the end of the prompt adds to the unbounded hit rate of the sample:
    counted in these requests, while all parts listed are really moved, not estimated.
    """

    kind: str
    start: int
    length: int
    shared: int
    requests: int
    distinct: int
    before: str
    examples: tuple[str, ...]
    after: str
    gain: float
    advice: str


@dataclass(frozen=True, slots=True)
class PollutionReport:
    """Polluted prefixes in the most recent `requests` requests (`prompt` units of prompts).

    `rate` and `moved_rate` are the unbounded hit rates of this sample as it is, and with all parts
    listed moved to the end; `curve` and `moved_curve` are the same by size of an LRU cache.
    """

    requests: int
    prompt: int
    rate: float
    moved_rate: float
    found: tuple[Pollution, ...]
    curve: Curve
    moved_curve: Curve


@dataclass(frozen=True, slots=True)
class PrefixReport:
    """How much prefix caching would save on the traffic seen.

    `prompt` and `output` are the units sent and (where given) generated; `reusable` those of
    `prompt` that an unbounded cache finds, whole pages only and never a prompt's last unit, in
    `requests_with_hit` requests; `unique` what such a cache holds at the end. Where `complete` is
    False the cache behind these three was bounded to `unique`, and `reusable` is a lower bound.
    """

    unit: str
    units_per_token: float
    page_size: int
    requests: int
    namespaces: int
    prompt: int
    output: int
    reusable: int
    requests_with_hit: int
    unique: int
    complete: bool
    curves: tuple[Curve, ...]
    shared: tuple[SharedPrefix, ...]
    pollution: PollutionReport | None

    @property
    def rate(self) -> float:
        """The share of prompts that an unbounded cache finds; 0 without any prompt."""
        return self.reusable / self.prompt if self.prompt else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The report as dicts and lists; namespaces become their `repr`, which JSON can hold."""
        fields = asdict(self)
        fields["rate"] = self.rate
        for prefix in fields["shared"]:
            prefix["namespace"] = repr(prefix["namespace"])
        return fields

    def to_json(self) -> str:
        """`to_dict` as indented JSON."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)
