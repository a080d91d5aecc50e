"""What the algebra of terms asks of the normalizer that it works for."""

from __future__ import annotations

from typing import Protocol

from phloem.grammar.dfa import Budget
from phloem.grammar.json_schema.formula import Formula, Formulas


class Judge(Protocol):
    """Combines formulas, and looks into them where that helps to keep terms few."""

    @property
    def formulas(self) -> Formulas:
        """Makes formulas."""
        ...

    @property
    def budget(self) -> Budget:
        """For automata."""
        ...

    def is_void(self, formula: Formula) -> bool:
        """True only if no value meets it; False may also mean that this is not known yet."""
        ...

    def few_values(self, formula: Formula, limit: int) -> tuple[Formula, ...] | None:
        """The values that meet it, as formulas that are different for different values.

        None if there are more than `limit`, or if they are not easily told apart.
        """
        ...
