"""What can be asked of a scheduler between two steps, beside requests.

The engine in process and the scheduler process answer alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from phloem.scheduler import PauseMode, Scheduler
from phloem.server.inspection import tree, tree_node

Value = dict[str, Any]


def flush_cache(scheduler: Scheduler) -> int:
    """Forget all cached prefixes; returns the tokens freed.

    Raises:
        ValueError: while requests are running.
    """
    if scheduler.num_active:
        raise ValueError(
            f"{scheduler.num_active} requests use the cache: wait for them, abort them, or pause "
            "with mode retract"
        )
    return scheduler.manager.flush()


def state(scheduler: Scheduler) -> Value:
    """Requests `running` and `waiting`; tokens of the KV cache: `used` + `cached` + `free` make
    `total`.

    `used` is what running requests hold, shared prefixes counted once; `cached` is what could be
    evicted. `paused` is the mode, or None. `counts` is what was done since the start: retractions
    and what `CacheManager.counts` says.
    """
    manager = scheduler.manager
    free, available, total = manager.free_tokens, manager.available, manager.capacity
    return {
        "running": scheduler.num_active,
        "waiting": scheduler.num_waiting,
        "used": total - available,
        "cached": available - free,
        "free": free,
        "total": total,
        "max_running_requests": scheduler.config.max_running_requests,
        "paused": scheduler.paused and scheduler.paused.value,
        "weight_version": scheduler.weight_version,
        "new_token_ratio": scheduler.new_token_ratio,
        "counts": {"retractions": scheduler.num_retractions} | manager.counts(),
    }


def _pause(scheduler: Scheduler, mode: str) -> Value:
    scheduler.pause(PauseMode.of(mode))
    return {}


def _resume(scheduler: Scheduler) -> Value:
    scheduler.resume()
    return {}


def _set_weight_version(scheduler: Scheduler, name: str) -> Value:
    scheduler.set_weight_version(name)
    return {}


_ACTIONS: Mapping[str, Callable[..., Value]] = {
    "state": state,
    "flush_cache": lambda scheduler: {"freed": flush_cache(scheduler)},
    "pause": _pause,
    "resume": _resume,
    "set_weight_version": _set_weight_version,
    "tree": tree,
    "tree_node": tree_node,
}


def answer(scheduler: Scheduler, action: str, options: Mapping[str, Any]) -> Value:
    """The value of a `Control` message's reply.

    Raises:
        ValueError: it cannot be done now, or there is no such action.
    """
    if action not in _ACTIONS:
        raise ValueError(f"there is no action {action!r}: ask for one of {', '.join(_ACTIONS)}")
    return _ACTIONS[action](scheduler, **options)


@dataclass(frozen=True, slots=True)
class _Wish:
    due: float
    tell: Callable[[int | ValueError], None]


class WaitingFlushes:
    """Flushes of the cache that wait until nobody uses it.

    Requests go on to be let in meanwhile: who wants to be sure pauses the scheduler before.
    """

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float]) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._wishes: list[_Wish] = []

    def add(self, timeout: float, tell: Callable[[int | ValueError], None]) -> None:
        """Flush within `timeout` seconds; `tell` gets the tokens freed, or why there are none."""
        self._wishes.append(_Wish(self._clock() + timeout, tell))
        self.settle()

    def due_in(self) -> float | None:
        """Seconds until one has waited long enough; None: none waits."""
        due = min((wish.due for wish in self._wishes), default=None)
        return None if due is None else max(due - self._clock(), 0.0)

    def settle(self) -> None:
        """Do those that can be done now, and give up those that are overdue; call it after each
        step.
        """
        if not self._wishes:
            return
        now = self._clock()
        free = not self._scheduler.num_active
        over = [wish for wish in self._wishes if free or wish.due <= now]
        self._wishes = [wish for wish in self._wishes if not free and wish.due > now]
        for wish in over:
            wish.tell(self._outcome())

    def _outcome(self) -> int | ValueError:
        try:
            return flush_cache(self._scheduler)
        except ValueError as error:
            return error


def soonest(*seconds: float | None) -> float | None:
    """The least of some times to wait; None is for ever."""
    least = min((s for s in seconds if s is not None), default=math.inf)
    return None if least == math.inf else least
