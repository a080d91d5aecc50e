"""Policies whose order is no sum of tokens and age; `Patient` bounds their waits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from phloem.scheduler.policies.base import Outlook
from phloem.scheduler.request import Request

_TOKEN_BYTES = 4


class HighestResponseRatioNext:
    """hrrn: the longest wait in relation to the tokens to compute first.

    Use it for the quick answers of shortest-prefill-first where long prompts must not pay as much:
    every wait makes a request more urgent, that of a short one sooner.
    """

    def order(self, waiting: Sequence[Request], outlook: Outlook) -> Sequence[Request]:
        """By the passes waited, this one included, per token; ties as they came."""

        def ratio(request: Request) -> float:
            missing = request.num_tokens - outlook.cached(request)
            return (1 + outlook.waited(request)) / max(missing, 1)

        return sorted(waiting, key=lambda request: -ratio(request))


class DepthFirstByWeight:
    """dfs-weight: along the tree of the cached prefixes, the subtree with the most requests first.

    Requests under one subtree come one after the other, so that what they share is used while it is
    there and then not needed again. Use it for offline work with deep shared prefixes (trees of
    few-shot prompts, branching searches) on a cache much smaller than all of them.
    """

    def order(self, waiting: Sequence[Request], outlook: Outlook) -> Sequence[Request]:
        """Depth first; of those on one path the longest match first, ties as they came."""
        by_namespace: dict[tuple[object, ...], list[_Path]] = {}
        for request in waiting:
            path = request.tokens[: outlook.cached(request)].tobytes()
            by_namespace.setdefault(request.namespace, []).append((path, request))
        heaviest_first = sorted(by_namespace.values(), key=len, reverse=True)
        return list(chain.from_iterable(map(_depth_first, heaviest_first)))


class Patient:
    """Another policy for those who have not waited long: who has waited `patience` passes goes
    before all others, in order of arrival.

    Wait: at most patience + W + 1 passes.
    """

    def __init__(self, inner: HighestResponseRatioNext | DepthFirstByWeight, patience: int) -> None:
        self._inner = inner
        self._patience = patience

    def order(self, waiting: Sequence[Request], outlook: Outlook) -> Sequence[Request]:
        """Those who are overdue, then the others by the other policy."""
        overdue = [r for r in waiting if outlook.waited(r) >= self._patience]
        if not overdue:
            return self._inner.order(waiting, outlook)
        others = [r for r in waiting if outlook.waited(r) < self._patience]
        return [*overdue, *self._inner.order(others, outlook)]


_Path = tuple[bytes, Request]
"""A request behind the tokens of its cached prefix."""


def _depth_first(paths: list[_Path]) -> list[Request]:
    """The requests of some paths, those below the heaviest branch first.

    Paths that share their first tokens are one branch, which parts where the smallest and the
    largest of them do. It is walked with a stack: a branch may be as deep as there are requests.
    """
    order: list[Request] = []
    stack = [(paths, 0)]
    while stack:
        paths, depth = stack.pop()
        branches: dict[bytes, list[_Path]] = {}
        for path in paths:
            branches.setdefault(path[0][depth : depth + _TOKEN_BYTES], []).append(path)
        ended = branches.pop(b"", [])
        if not branches:
            order.extend(request for _, request in ended)
            continue
        if ended:
            stack.append((ended, depth))
        heaviest_first = sorted(branches.values(), key=len, reverse=True)
        for branch in heaviest_first[::-1]:  # so that it is on top
            keys = [key for key, _ in branch]
            stack.append((branch, _common(min(keys), max(keys), depth)))
    return order


def _common(one: bytes, other: bytes, start: int) -> int:
    """How many bytes, in whole tokens, two paths share that share the first `start`."""
    end = min(len(one), len(other))
    a = np.frombuffer(one[start:end], np.int32)
    b = np.frombuffer(other[start:end], np.int32)
    different = np.flatnonzero(a != b)
    return start + int(different[0]) * _TOKEN_BYTES if len(different) else end
