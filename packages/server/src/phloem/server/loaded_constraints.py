"""The constraints of the API process's requests, in the scheduler process.

Owns which are loaded, under the keys by which requests name them, and which requests wait for one
that is not: loading takes seconds where it has to load a library first, and the scheduler's loop
goes on meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future

from phloem.grammar.base import Grammar
from phloem.server.grammars import Grammars, Guidance, thinking_guidance
from phloem.server.messages import ConstraintUse, Generate, Load


class LoadedConstraints:
    """For one thread, the scheduler's."""

    def __init__(self, grammars: Grammars | None) -> None:
        """Without `grammars` constraints are refused."""
        self._grammars = grammars
        self._loads: dict[str, Future[Grammar]] = {}
        self._waiting: dict[str, Generate] = {}

    def load(self, compiled: Load) -> None:
        """Begin to load one that requests will name."""
        if self._grammars is not None:
            self._loads[compiled.key] = self._grammars.load(compiled)

    def forget(self, keys: Iterable[str]) -> None:
        """No request names them any more."""
        for key in keys:
            self._loads.pop(key, None)

    def hold(self, request: Generate) -> bool:
        """Keep a request whose constraint is not loaded yet, and say whether it is kept."""
        load = None if request.constraint is None else self._loads.get(request.constraint.key)
        if load is None or load.done():
            return False
        self._waiting[request.rid] = request
        return True

    def take(self) -> Iterable[Generate]:
        """Those held that can go on now, in the order in which they came."""
        if not self._waiting:
            return ()
        # Looked at once: a load that ends meanwhile must not let a later request ahead.
        loading = {key for key, load in self._loads.items() if not load.done()}
        ready = [
            each
            for each in self._waiting.values()
            if each.constraint is None or each.constraint.key not in loading
        ]
        for each in ready:
            del self._waiting[each.rid]
        return ready

    def drop(self, rid: str) -> Generate | None:
        """Hold a request no longer; it, if it was held."""
        return self._waiting.pop(rid, None)

    @property
    def holds_any(self) -> bool:
        """Whether a request waits."""
        return bool(self._waiting)

    def guidance(self, use: ConstraintUse | None) -> Guidance:
        """What a request's constraint means to the scheduler.

        Raises:
            GrammarError: it cannot be read.
            ValueError: none can be, or it was never sent.
        """
        if use is None:
            return Guidance()
        if not use.key:
            return thinking_guidance(use)
        if self._grammars is None:
            raise ValueError("the request has a constraint, which this server does not enforce")
        if use.key not in self._loads:
            raise ValueError("the request names a constraint that was not sent before it")
        return self._grammars.guidance_by(self._loads[use.key].result(), use)
