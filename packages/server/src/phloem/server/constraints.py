"""What a caller asks of a text's form, from the fields of a request to one constraint.

Owns the names under which a constraint may be given, and the rule that there is one at most. What a
constraint means is `phloem.grammar`'s; compiling it, `phloem.server.compiling`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from phloem.grammar import Constraint
from phloem.grammar.constraint import Formats, PropertyOrder, Whitespace

FIELDS = (
    "response_format",
    "json_schema",
    "json_object",
    "regex",
    "ebnf",
    "choices",
    "structural_tag",
)
"""The engine's own names, of which a request may have one."""

ALIASES: Mapping[str, str] = {
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_choice": "choices",
    "guided_grammar": "ebnf",
    "grammar": "ebnf",
}
"""What other engines call the same."""

BUNDLE = "structured_outputs"
"""vLLM's one field for all of them."""

_BUNDLED: Mapping[str, str] = {
    "json": "json_schema",
    "json_object": "json_object",
    "regex": "regex",
    "choice": "choices",
    "grammar": "ebnf",
    "structural_tag": "structural_tag",
}


MOST_CHOICES = 10_000
_LARGEST = 1 << 20
_LARGEST_OF: Mapping[str, int] = {"regex": 32_768, "ebnf": 32_768}
"""Characters of a constraint, so that one that only takes time is refused before it does."""


class BadConstraint(ValueError):
    """A constraint that cannot be used; `field` is the request's field that has it."""

    def __init__(self, field: str, message: str) -> None:
        # A sentence that begins with the name already says which field is meant.
        super().__init__(message if message.startswith(field) else f"{field}: {message}")
        self.field = field


class GrammarOptions(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """How a constraint is meant and followed; what is left out is as the engine is configured.

    They say nothing where there is no constraint.
    """

    whitespace: Literal["bounded", "compact"] | None = None
    """JSON: compact and pretty-printed are both allowed, or no whitespace at all."""
    property_order: Literal["fixed", "free"] | None = None
    """JSON: properties come in the order of the schema (the default), or in any."""
    formats: Literal["assert", "annotate"] | None = None
    """JSON: whether `format` is enforced (the default) or says nothing."""
    jump_forward: bool | None = None
    """Whether forced text is taken without asking the model; the output is the same."""
    steering: bool | None = None
    """Whether the text is brought to its end within its tokens."""


@dataclass(frozen=True, slots=True)
class ConstraintRequest:
    """A constraint that somebody asked for, not compiled yet."""

    constraint: Constraint
    field: str
    """The request's field that has it."""
    jump_forward: bool | None = None
    steering: bool | None = None
    owner: str = ""
    """Who asked, if what is compiled is kept apart for each."""


@dataclass(frozen=True, slots=True)
class _Meaning:
    whitespace: Whitespace
    property_order: PropertyOrder
    formats: Formats


def take_constraint(
    fields: dict[str, Any],
    whitespace: Whitespace = "bounded",
    constraint: Constraint | None = None,
) -> ConstraintRequest | None:
    """The constraint among the engine's own fields, which are taken out of `fields`; or the one
    that was given beside them as `constraint`.

    Raises:
        BadConstraint: there are two, or it is malformed.
    """
    options = fields.pop("grammar_options", None)
    given = {name: fields.pop(name) for name in FIELDS if name in fields}
    among_fields = constraint_of(given, options, whitespace)
    if constraint is None:
        return among_fields
    if among_fields is not None:
        check_one(["constraint", among_fields.field])
    chosen = grammar_options(options)
    return ConstraintRequest(constraint, "constraint", chosen.jump_forward, chosen.steering)


def constraint_of(
    fields: Mapping[str, Any], options: Any = None, whitespace: Whitespace = "bounded"
) -> ConstraintRequest | None:
    """The constraint that some fields ask for; null asks for none.

    Args:
        fields: by the names of `FIELDS`, `ALIASES` and `BUNDLE`; others do not matter.
        options: as `GrammarOptions` has them, or None.
        whitespace: where the options do not say.

    Raises:
        BadConstraint: there are two, or it is malformed.
    """
    chosen = grammar_options(options)
    given = [(name, *each) for name, value in fields.items() for each in _asked(name, value)]
    check_one([name for name, _, _ in given])
    if not given:
        return None
    name, kind, value = given[0]
    if name == BUNDLE and fields[BUNDLE].get("disable_any_whitespace"):
        whitespace = "compact"
    meaning = _Meaning(
        chosen.whitespace or whitespace,
        chosen.property_order or "fixed",
        chosen.formats or "assert",
    )
    try:
        constraint = _MAKERS[kind](value, meaning)
        _refuse_large(constraint)
    except ValueError as error:
        raise BadConstraint(name, str(error)) from error
    return ConstraintRequest(constraint, name, chosen.jump_forward, chosen.steering)


def check_one(fields: list[str]) -> None:
    """Refuse constraints in more than one field.

    Raises:
        BadConstraint: naming two of them.
    """
    if len(fields) > 1:
        first, second = fields[:2]
        raise BadConstraint(
            second,
            f"{second} was given beside {first}, and an output keeps to one constraint: leave one "
            "of them out",
        )


def _asked(name: str, value: Any) -> list[tuple[str, Any]]:
    """The kinds of constraint that a field asks for, and their values."""
    if name == BUNDLE:
        return [] if value is None else _bundled(value)
    kind = ALIASES.get(name, name)
    if kind not in FIELDS or value is None:
        return []
    if kind == "json_object" and value is False:
        return []
    if kind == "response_format":
        return _response_format(value)
    return [(kind, value)]


def _bundled(value: Any) -> list[tuple[str, Any]]:
    known = (*_BUNDLED, "disable_any_whitespace")
    if not isinstance(value, dict) or not set(value) <= set(known):
        raise BadConstraint(BUNDLE, f"it takes an object with one of {', '.join(known)}")
    if not value:
        raise BadConstraint(BUNDLE, f"it is empty: give one of {', '.join(known)}, or leave it out")
    asked = [pair for name, kind in _BUNDLED.items() for pair in _asked(kind, value.get(name))]
    if len(asked) > 1:
        kinds = " and ".join(kind for kind, _ in asked[:2])
        raise BadConstraint(BUNDLE, f"it has both {kinds}: an output keeps to one constraint")
    compact = value.get("disable_any_whitespace")
    if not isinstance(compact, bool | None):
        raise BadConstraint(
            BUNDLE, f"its disable_any_whitespace is {kind_of(compact)}: give true or false"
        )
    return asked


def _response_format(value: Any) -> list[tuple[str, Any]]:
    name = "response_format"
    if not isinstance(value, dict):
        raise BadConstraint(name, f"{name} is {kind_of(value)}: give an object with a type")
    kind = value.get("type")
    if kind == "text":
        return []
    if kind == "json_object":
        return [("json_object", True)]
    if kind == "structural_tag":
        return [("structural_tag", value)]
    if kind != "json_schema":
        raise BadConstraint(
            name,
            f"{name} has type {str(kind)[:100]!r}: types are text, json_object, json_schema and "
            "structural_tag",
        )
    inner = value.get("json_schema")
    if not isinstance(inner, dict) or inner.get("schema") is None:
        raise BadConstraint(
            name, f"{name} has no schema: give it as json_schema: {{name, schema, strict}}"
        )
    return [("json_schema", inner["schema"])]


def grammar_options(given: Any) -> GrammarOptions:
    """The options in a request's field of that name, or None.

    Raises:
        BadConstraint: they are malformed.
    """
    try:
        return GrammarOptions() if given is None else msgspec.convert(given, GrammarOptions)
    except msgspec.ValidationError as error:
        raise BadConstraint("grammar_options", str(error)) from error


def kind_of(value: Any) -> str:
    """What a value from JSON is called, with its article."""
    return _KINDS.get(type(value), f"of type {type(value).__name__}")


_KINDS: Mapping[type, str] = {
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


def _schema(value: Any, meaning: _Meaning) -> Constraint:
    if not isinstance(value, bool | dict | str):
        raise ValueError(f"the schema is {kind_of(value)}: give an object, true or false")
    _refuse_empty(value)
    return Constraint.json_schema(
        value,
        whitespace=meaning.whitespace,
        property_order=meaning.property_order,
        formats=meaning.formats,
    )


def _object(value: Any, meaning: _Meaning) -> Constraint:
    if value is not True:
        raise ValueError(f"it is {kind_of(value)}: give true or false")
    return Constraint.json_object(whitespace=meaning.whitespace)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"it is {kind_of(value)}: give a string")
    _refuse_empty(value)
    return value


def _refuse_empty(value: Any) -> None:
    """An empty text is a field that nobody filled in: a text without a constraint is not meant."""
    if value == "":
        raise ValueError("it is empty: give a constraint, or leave it out")


def _refuse_large(constraint: Constraint) -> None:
    size, most = len(constraint.source), _LARGEST_OF.get(constraint.kind, _LARGEST)
    if size > most:
        raise ValueError(f"it has {size} characters: give at most {most}")


def _choices(value: Any) -> Constraint:
    if not isinstance(value, list | tuple):
        raise ValueError(f"it is {kind_of(value)}: give a list of strings")
    if len(value) > MOST_CHOICES:
        raise ValueError(f"there are {len(value)} choices: give at most {MOST_CHOICES}")
    return Constraint.choice(value)


def _tag(value: Any) -> Constraint:
    if not isinstance(value, dict | str):
        raise ValueError(f"it is {kind_of(value)}: give an object")
    _refuse_empty(value)
    return Constraint.structural_tag(value)


_MAKERS: Mapping[str, Callable[[Any, _Meaning], Constraint]] = {
    "json_schema": _schema,
    "json_object": _object,
    "regex": lambda value, _: Constraint.regex(_text(value)),
    "ebnf": lambda value, _: Constraint.ebnf(_text(value)),
    "choices": lambda value, _: _choices(value),
    "structural_tag": lambda value, _: _tag(value),
}
