"""How big the smallest value of each node is, about, in bytes: found by a least fixpoint.

Weights need no vocabulary, so they belong to the compiled form. They choose between alternatives
on the way to the end of a text such that the way ends: what a value is made of weighs less than it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from phloem.grammar.dfa import Budget

INFINITE = 1 << 50
"""A weight that is not known to be finite."""


def least_fixpoint(
    count: int,
    weigh: Callable[[int], int],
    parts: Callable[[int], Sequence[int]],
    weights: list[int],
    budget: Budget,
) -> None:
    """Lower `weights` [count], all infinite at first, until each is what `weigh` says.

    `weigh(node)` reads the weights of `parts(node)`, and only falls as they fall.

    Raises:
        ConstraintTooComplex: if the budget's time is over.
    """
    users: list[list[int]] = [[] for _ in range(count)]
    for node in range(count):
        for part in set(parts(node)):
            users[part].append(node)
    pending = deque(range(count))
    waiting = [True] * count
    while pending:
        budget.check(0)
        node = pending.popleft()
        waiting[node] = False
        weight = weigh(node)
        if weight < weights[node]:
            weights[node] = weight
            for user in users[node]:
                if not waiting[user]:
                    waiting[user] = True
                    pending.append(user)
