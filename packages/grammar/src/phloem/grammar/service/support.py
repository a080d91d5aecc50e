"""Which backends can enforce a constraint, and what stands in the way of those that cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from phloem.grammar.base import GrammarBackend
from phloem.grammar.constraint import Constraint
from phloem.grammar.errors import GrammarError, UnsupportedConstraint


@dataclass(frozen=True, slots=True)
class BackendSupport:
    """What one backend says about a constraint."""

    backend: str
    supported: bool
    message: str = ""
    """Why not, as a sentence; empty where it is supported."""
    pointer: str | None = None
    """Where, if a part of the constraint is to blame; see `UnsupportedConstraint`."""
    keyword: str | None = None
    reason: str | None = None
    final: bool = False
    """Whether the constraint itself is at fault, malformed or too complex, so that it is refused
    whatever other backends could do."""


@dataclass(frozen=True, slots=True)
class SupportReport:
    """What backends say about a constraint, in the order in which they were asked."""

    backends: tuple[BackendSupport, ...]

    @property
    def supported(self) -> bool:
        """Whether any backend can enforce it."""
        return any(backend.supported for backend in self.backends)

    @classmethod
    def from_json(cls, rows: Iterable[dict[str, Any]]) -> SupportReport:
        """The report of which each row is a `BackendSupport` as a dict."""
        return cls(tuple(BackendSupport(**row) for row in rows))


def check(
    constraint: Constraint, names: Iterable[str], create: Callable[[str], GrammarBackend]
) -> SupportReport:
    """Ask each backend whether it can enforce a constraint to the letter.

    As `auto` does, none is asked after one to which the constraint is malformed or too complex.
    `create` makes a backend of a name; one that cannot be made, because its library is missing
    or broken, supports nothing. Runs here and now: a hostile constraint takes its time, see
    `CompileService.check`.
    """
    said: list[BackendSupport] = []
    for name in names:
        said.append(_ask(constraint, name, create))
        if said[-1].final:
            break
    return SupportReport(tuple(said))


def _ask(
    constraint: Constraint, name: str, create: Callable[[str], GrammarBackend]
) -> BackendSupport:
    try:
        backend = create(name)
    except (ImportError, ValueError) as error:
        return BackendSupport(name, False, str(error))
    try:
        backend.check(constraint)
    except UnsupportedConstraint as error:
        return BackendSupport(name, False, str(error), error.pointer, error.keyword, error.reason)
    except GrammarError as error:
        return BackendSupport(name, False, str(error), final=True)
    return BackendSupport(name, True)
