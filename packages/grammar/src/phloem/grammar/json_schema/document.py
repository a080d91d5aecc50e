"""A schema document: where its subschemas are, and which of them a `$ref` means.

Only places that hold schemas are known here; `const`, `enum` and unknown keywords hold values.
Nothing is fetched: a reference leads inside of the document or is refused.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from phloem.grammar.errors import GrammarError, UnsupportedConstraint
from phloem.grammar.json_schema.draft import (
    SCHEMA_LISTS,
    SCHEMA_MAPS,
    SCHEMAS,
    Draft,
    draft_of,
)
from phloem.grammar.json_schema.values import check_values, escape, key_of, shown

_SMALL = 48
_BOUND_TO_A_PLACE = frozenset(["$ref", "$id", "id", "$anchor", "$schema"])


@dataclass(frozen=True, slots=True)
class Location:
    """One subschema: its JSON pointer, what is there, and the URI that references resolve by."""

    pointer: str
    schema: Any
    base: str
    key: Hashable
    """Equal for subschemas that mean the same."""


class Document:
    """The subschemas of a schema, by pointer, URI and anchor."""

    def __init__(self, schema: Any, default: Draft = Draft.ANY) -> None:
        """Find all subschemas.

        Raises:
            GrammarError, UnsupportedConstraint, ConstraintTooComplex: for what cannot be a schema
                here; keywords are checked later, where they are used.
        """
        check_values(schema)
        self.schema = schema
        self.draft = draft_of(schema, default)
        self._locations: dict[str, Location] = {}
        self._resources: dict[str, str | None] = {"": ""}
        self._anchors: dict[tuple[str, str], str | None] = {}
        self._find_all()

    @property
    def locations(self) -> Iterable[Location]:
        """All subschemas, also those that nothing refers to."""
        return self._locations.values()

    def at(self, pointer: str) -> Location:
        """The subschema at a pointer that was found."""
        return self._locations[pointer]

    def has(self, pointer: str) -> bool:
        """Whether a subschema is there."""
        return pointer in self._locations

    def resolve(self, reference: Any, source: Location) -> Location:
        """The subschema that a `$ref` in `source` means.

        Raises:
            GrammarError: if it is not a string.
            UnsupportedConstraint: if it leads out of the document, or to what is not a schema.
        """
        if not isinstance(reference, str):
            raise GrammarError(
                f"$ref at {source.pointer or 'the root'} is {shown(reference)}: name a URI"
            )
        uri, fragment = urldefrag(_join(source.base, reference))
        fragment = unquote(fragment)
        target: str | None
        if fragment and not fragment.startswith("/"):
            target = self._anchors.get((uri, fragment))
        else:
            root = self._resources.get(uri)
            target = None if root is None else root + fragment
        if target is None or target not in self._locations:
            raise UnsupportedConstraint(
                source.pointer,
                "$ref",
                f"{reference!r} is not a schema in this document: put it into '$defs', once",
            )
        return self._locations[target]

    def _find_all(self) -> None:
        stack = [("", self.schema, "")]
        while stack:
            pointer, schema, base = stack.pop()
            if isinstance(schema, dict):
                base = self._identify(pointer, schema, base)
                stack.extend(
                    (f"{pointer}/{token}", each, base) for token, each in _subschemas(schema)
                )
            key = _content(schema, pointer)
            self._locations[pointer] = Location(pointer, schema, base, key)

    def _identify(self, pointer: str, schema: dict[str, Any], base: str) -> str:
        """Register the names of a schema; the base URI inside of it."""
        if draft_of(schema, self.draft) is not self.draft and self.draft is not Draft.ANY:
            raise UnsupportedConstraint(
                pointer, "$schema", "one document is of one draft: name the root's"
            )
        if self.draft is Draft.ANY and isinstance(schema.get("id"), str):
            # Draft 4 would resolve by it and no other draft: nothing is resolved by guessing.
            return f"{base} or {pointer}"
        anchor = schema.get("$anchor")
        keyword = "id" if self.draft is Draft.D4 else "$id"
        identifier = schema.get(keyword)
        if identifier is not None and not (self._ref_hides_id() and "$ref" in schema):
            if not isinstance(identifier, str):
                raise GrammarError(
                    f"{keyword} at {pointer or 'the root'} is not a URI: use a string"
                )
            uri, fragment = urldefrag(_join(base, identifier))
            if not identifier.startswith("#"):
                base = uri
                self._resources[base] = None if base in self._resources and base else pointer
            anchor = fragment or anchor
        if anchor is not None:
            name = (base, str(anchor))
            self._anchors[name] = None if name in self._anchors else pointer
        return base

    def _ref_hides_id(self) -> bool:
        if self.draft is not Draft.ANY:
            return self.draft < Draft.D2019
        return not (isinstance(self.schema, dict) and "$defs" in self.schema)


def _subschemas(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The places of the schemas directly inside of one, as ends of pointers."""
    for keyword, value in schema.items():
        if keyword in SCHEMAS and isinstance(value, (dict, bool)):
            yield keyword, value
        elif keyword in SCHEMA_LISTS and isinstance(value, list):
            yield from ((f"{keyword}/{place}", each) for place, each in enumerate(value))
        elif keyword in SCHEMA_MAPS and isinstance(value, dict):
            for name, each in value.items():
                if isinstance(each, (dict, bool)):
                    yield f"{keyword}/{escape(name)}", each


def _join(base: str, reference: str) -> str:
    """RFC 3986, also for schemes that `urljoin` does not know."""
    if reference.startswith("#"):
        return urldefrag(base).url + reference
    if urlsplit(reference).scheme:
        return reference
    return urljoin(base, reference)


def _content(schema: Any, pointer: str) -> Hashable:
    """What a small schema says, if that does not depend on its place; else its place."""
    stack, left = [schema], _SMALL
    while stack and left:
        value = stack.pop()
        left -= 1
        if isinstance(value, dict):
            if not _BOUND_TO_A_PLACE.isdisjoint(value):
                return (pointer,)
            stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)
    # The order of properties matters to texts, so keys are in the order of the schema.
    return (pointer,) if stack else ("schema", repr_of(schema))


def repr_of(value: Any) -> str:
    """Like `key_of`, but schemas whose keywords stand in another order differ."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{name!r}:{repr_of(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return f"[{','.join(map(repr_of, value))}]"
    return key_of(value)
