"""What may be asked for: a constraint as plain data, equal and hashable by its content.

A `Constraint` is not checked here beyond its shape; a backend's `compile` does that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from phloem.grammar.errors import GrammarError

Kind: TypeAlias = Literal["json_schema", "json_object", "regex", "ebnf", "choice", "structural_tag"]
Whitespace: TypeAlias = Literal["bounded", "compact"]
PropertyOrder: TypeAlias = Literal["free", "fixed"]
Formats: TypeAlias = Literal["assert", "annotate"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint on a text. Use the constructors named after the kinds."""

    kind: Kind
    source: str
    """The schema, the choices or the structural tag as compact JSON; the pattern; the grammar."""
    whitespace: Whitespace = "bounded"
    """JSON only. `bounded`: compact and pretty-printed are both legal, long runs of blanks are not;
    `compact`: none at all outside of strings."""
    property_order: PropertyOrder = "fixed"
    """JSON only. `fixed`: declared properties come in the order of the schema, others after them;
    `free`: in any order."""
    formats: Formats = "assert"
    """JSON only. `assert`: `format` is enforced, an unknown one refused; `annotate`: it says
    nothing about which texts are legal, as in draft 7 by default."""

    def __post_init__(self) -> None:
        """Refuse what no backend knows: a misspelt option would mean the one that is not meant.

        Raises:
            GrammarError: for an unknown kind or option, or a NUL character.
        """
        for name, type_ in _OPTIONS.items():
            known, value = get_args(type_), getattr(self, name)
            if value not in known:
                raise GrammarError(
                    f"{name} is {value!r}: give one of {', '.join(map(repr, known))}"
                )
        if "\0" in self.source:
            raise GrammarError(
                f"the constraint ({self.kind}) contains a NUL character: remove it, or write it as "
                "an escape"
            )

    @classmethod
    def json_schema(
        cls,
        schema: Any,
        *,
        whitespace: Whitespace = "bounded",
        property_order: PropertyOrder = "fixed",
        formats: Formats = "assert",
    ) -> Constraint:
        """JSON that a schema holds valid: a dict, a bool, or either as JSON text.

        Raises:
            GrammarError: if it is not JSON.
        """
        return cls("json_schema", _compact(schema, "schema"), whitespace, property_order, formats)

    @classmethod
    def json_object(cls, *, whitespace: Whitespace = "bounded") -> Constraint:
        """Any JSON object."""
        return cls("json_object", "", whitespace)

    @classmethod
    def regex(cls, pattern: str) -> Constraint:
        """Texts that a regular expression matches as a whole."""
        return cls("regex", pattern)

    @classmethod
    def ebnf(cls, grammar: str) -> Constraint:
        """Texts that a context-free grammar in GBNF notation generates from its rule `root`."""
        return cls("ebnf", grammar)

    @classmethod
    def choice(cls, choices: Sequence[str]) -> Constraint:
        """One of some texts.

        Raises:
            GrammarError: if there is none, or one is not a string.
        """
        if not choices or isinstance(choices, str) or not all(isinstance(c, str) for c in choices):
            raise GrammarError(f"choices are {choices!r}: give a list of one string or more")
        return cls("choice", json.dumps(list(choices), separators=(",", ":")))

    @classmethod
    def structural_tag(cls, tag: Any) -> Constraint:
        """Free text with constrained parts between a begin and an end; see `structural/spec.py`.

        Raises:
            GrammarError: if it is not JSON.
        """
        return cls("structural_tag", _compact(tag, "structural tag"))

    @property
    def key(self) -> str:
        """A hash of the content, equal for equal constraints, for caches in memory and on disk."""
        parts = (self.kind, self.whitespace, self.property_order, self.formats, self.source)
        return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


_OPTIONS = {
    "kind": Kind,
    "whitespace": Whitespace,
    "property_order": PropertyOrder,
    "formats": Formats,
}


def _compact(value: Any, what: str) -> str:
    try:
        given = json.loads(value) if isinstance(value, str) else value
        return json.dumps(given, separators=(",", ":"), allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise GrammarError(
            f"the {what} is not JSON ({error}): give an object, or its JSON text"
        ) from error
