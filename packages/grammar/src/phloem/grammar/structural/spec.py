"""What a structural tag asks for, read from the notations that clients send.

    {"triggers": ["<call"], "tags": [{"begin": "<call:f>", "schema": {...}, "end": "</call>"}],
     "at_least_one": false, "stop_after_first": false}

is our own. A tag has one of `schema` (a JSON schema), `regex`, `choices` and `text` (a literal);
without `triggers` there is no free text, and tags follow each other with `separator` between them.
The two notations of OpenAI-compatible servers and xgrammar are read as well: `structures` for
`tags`, and `format` with a `type` of `triggered_tags`, `tags_with_separator` or `tag`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phloem.grammar.constraint import Constraint
from phloem.grammar.errors import GrammarError, UnsupportedConstraint


@dataclass(frozen=True, slots=True)
class Tag:
    """A begin, what may stand behind it, and an end."""

    begin: bytes
    content: Constraint
    end: bytes
    pointer: str
    """Where its content is in the structural tag, for errors."""


@dataclass(frozen=True, slots=True)
class StructuralTag:
    """What a structural tag asks for."""

    tags: tuple[Tag, ...]
    triggers: tuple[bytes, ...]
    """What free text ends at: after one of them, a tag that begins with it must follow. Empty if
    there is no free text at all."""
    separator: bytes
    """Between tags, where there is no free text."""
    at_least_one: bool
    """Whether the text may not end before the first tag did."""
    stop_after_first: bool
    """Whether the text ends with its first tag."""


def parse_structural_tag(constraint: Constraint) -> StructuralTag:
    """The content of a constraint of the kind `structural_tag`, checked.

    Raises:
        UnsupportedConstraint: for a field or a type that is not known.
        GrammarError: if something is missing, or does not fit.
    """
    given = json.loads(constraint.source)
    at = ""
    if isinstance(given, dict) and "format" in given:
        _check_fields(given, {"type", "format"}, at)
        given, at = given["format"], "/format"
    reader = _Reader(constraint)
    parsed = reader.structure(given, at)
    _check_triggers(parsed, at)
    return parsed


class _Reader:
    def __init__(self, constraint: Constraint) -> None:
        self._options = constraint

    def structure(self, given: Any, at: str) -> StructuralTag:
        _check_object(given, at)
        kind = given.get("type", "structural_tag")
        if kind == "tag":
            tags = (self._tag(given, at),)
            return StructuralTag(tags, (), b"", at_least_one=True, stop_after_first=True)
        if kind not in ("structural_tag", "triggered_tags", "tags_with_separator"):
            raise UnsupportedConstraint(
                f"{at}/type", str(kind), "use triggered_tags, tags_with_separator or tag"
            )
        fields = {"type", "tags", "structures", "triggers", "separator"}
        _check_fields(given, fields | {"at_least_one", "stop_after_first"}, at)
        name = "structures" if "structures" in given else "tags"
        listed = given.get(name)
        if not isinstance(listed, list) or not listed:
            raise GrammarError(f"{name} at {at or 'the root'} is not a list of tags: give one")
        return StructuralTag(
            tags=tuple(self._tag(tag, f"{at}/{name}/{i}") for i, tag in enumerate(listed)),
            triggers=tuple(_text(one, f"{at}/triggers") for one in _list(given, "triggers", at)),
            separator=_text(given.get("separator", ""), f"{at}/separator", empty=True),
            at_least_one=_flag(given, "at_least_one", at),
            stop_after_first=_flag(given, "stop_after_first", at),
        )

    def _tag(self, given: Any, at: str) -> Tag:
        _check_object(given, at)
        _check_fields(given, {"type", "begin", "content", "end", *_CONTENTS}, at)
        if "content" in given:
            content, where = self._content(given["content"], f"{at}/content")
        else:
            content, where = self._plain_content(given, at)
        return Tag(
            _text(given.get("begin"), f"{at}/begin"),
            content,
            _text(given.get("end"), f"{at}/end", empty=True),
            where,
        )

    def _plain_content(self, given: Mapping[str, Any], at: str) -> tuple[Constraint, str]:
        names = [name for name in _CONTENTS if name in given]
        if len(names) != 1:
            raise GrammarError(
                f"the tag at {at or 'the root'} has {names or 'nothing'} as its content: give one "
                f"of {', '.join(_CONTENTS)}"
            )
        return self._constraint(_CONTENTS[names[0]], given[names[0]]), f"{at}/{names[0]}"

    def _content(self, given: Any, at: str) -> tuple[Constraint, str]:
        _check_object(given, at)
        kind = given.get("type")
        field = {"json_schema": "json_schema", "regex": "pattern", "const_string": "value"}.get(
            kind
        )
        if field is None:
            raise UnsupportedConstraint(
                f"{at}/type", str(kind), "use json_schema, regex or const_string"
            )
        _check_fields(given, {"type", field}, at)
        return self._constraint(kind, given.get(field)), f"{at}/{field}"

    def _constraint(self, kind: str, value: Any) -> Constraint:
        if kind == "json_schema":
            return Constraint.json_schema(
                value,
                whitespace=self._options.whitespace,
                property_order=self._options.property_order,
                formats=self._options.formats,
            )
        if kind == "regex":
            return Constraint.regex(_text(value, "regex", empty=True).decode())
        return Constraint.choice([value] if kind == "const_string" else value)


_CONTENTS = {
    "schema": "json_schema",
    "regex": "regex",
    "choices": "choices",
    "text": "const_string",
}


def _check_triggers(parsed: StructuralTag, at: str) -> None:
    for trigger in parsed.triggers:
        if not any(tag.begin.startswith(trigger) for tag in parsed.tags):
            raise GrammarError(
                f"no tag begins with the trigger {trigger.decode()!r} at {at}/triggers: drop it"
            )
        for other in parsed.triggers:
            if other is not trigger and other in trigger:
                raise GrammarError(
                    f"the trigger {trigger.decode()!r} at {at}/triggers contains another one, "
                    f"{other.decode()!r}, and would never be reached: keep the shorter"
                )
    for tag in parsed.tags if parsed.triggers else ():
        if not any(tag.begin.startswith(trigger) for trigger in parsed.triggers):
            raise GrammarError(
                f"no trigger leads to the tag that begins with {tag.begin.decode()!r}: add one to "
                f"{at}/triggers"
            )


def _check_object(given: Any, at: str) -> None:
    if not isinstance(given, dict):
        raise GrammarError(f"{str(given)[:50]!r} at {at or 'the root'} is not an object: give one")


def _check_fields(given: Mapping[str, Any], known: set[str], at: str) -> None:
    for name in given:
        if name not in known:
            raise UnsupportedConstraint(
                f"{at}/{name}", name, f"known here are {', '.join(sorted(known))}"
            )


def _text(value: Any, at: str, *, empty: bool = False) -> bytes:
    if not isinstance(value, str) or not (value or empty):
        raise GrammarError(f"{str(value)[:50]!r} at {at} is not a text: give one")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise GrammarError(f"the text at {at} has half a surrogate pair: correct it") from error


def _list(given: Mapping[str, Any], name: str, at: str) -> list[Any]:
    value = given.get(name, [])
    if not isinstance(value, list):
        raise GrammarError(f"{name} at {at or 'the root'} is not a list: give one")
    return value


def _flag(given: Mapping[str, Any], name: str, at: str) -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise GrammarError(f"{name} at {at or 'the root'} is {value!r}: give true or false")
    return value
