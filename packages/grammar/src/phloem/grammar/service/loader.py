"""Compiled constraints made grammars again, in the process that decodes."""

from __future__ import annotations

from collections import OrderedDict

from phloem.grammar.base import Grammar, GrammarBackend
from phloem.grammar.errors import GrammarError
from phloem.grammar.service.caches import CompiledConstraint


class GrammarLoader:
    """Loads compiled constraints, and keeps the grammars that were used last. For one thread."""

    def __init__(self, backend: GrammarBackend, capacity: int = 256) -> None:
        """`backend` is one like that which compiled, over an equal vocabulary.

        `capacity` is the number of grammars that are kept; one that matchers still use lives as
        long as they do.
        """
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}: one grammar at least must be kept")
        self._backend = backend
        self._capacity = capacity
        self._grammars: OrderedDict[str, Grammar] = OrderedDict()

    def load(self, compiled: CompiledConstraint) -> Grammar:
        """The grammar of a compiled constraint, the same object while it is kept.

        Raises:
            GrammarError: if it is damaged, or was made for something else.
        """
        if compiled.backend != self._backend.name:
            raise GrammarError(
                f"this constraint was compiled by {compiled.backend!r}, which "
                f"{self._backend.name!r} does not read: configure both alike"
            )
        grammar = self._grammars.get(compiled.key)
        if grammar is None:
            grammar = self._backend.deserialize(compiled.data)
            self._grammars[compiled.key] = grammar
            if len(self._grammars) > self._capacity:
                self._grammars.popitem(last=False)
        self._grammars.move_to_end(compiled.key)
        return grammar
