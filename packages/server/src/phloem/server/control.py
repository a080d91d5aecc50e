"""What can be asked of a scheduler between two steps, beside requests.

The engine in process and the scheduler process answer alike.
"""

from __future__ import annotations

from typing import Any

from phloem.scheduler import Scheduler


def flush_cache(scheduler: Scheduler) -> int:
    """Forget all cached prefixes; returns the tokens freed.

    Raises:
        ValueError: while requests are running.
    """
    if scheduler.num_active:
        raise ValueError(
            f"{scheduler.num_active} requests use the cache: wait for them, or abort them"
        )
    return scheduler.manager.flush()


def state(scheduler: Scheduler) -> dict[str, Any]:
    """Requests `running` and `waiting`; tokens of the KV cache: `used` + `cached` + `free` make
    `total`.

    `used` is what running requests hold, shared prefixes counted once; `cached` is what could be
    evicted.
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
    }


def answer(scheduler: Scheduler, action: str) -> dict[str, Any]:
    """The value of a `Control` message's reply.

    Raises:
        ValueError: it cannot be done now, or there is no such action.
    """
    if action == "ping":
        return {}
    if action == "state":
        return state(scheduler)
    if action == "flush_cache":
        return {"freed": flush_cache(scheduler)}
    raise ValueError(f"there is no action {action!r}: ask for ping, state or flush_cache")
