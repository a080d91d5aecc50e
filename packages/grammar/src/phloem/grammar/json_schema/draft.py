"""Which drafts of JSON Schema there are, how a schema says its own, and what keywords each knows.

A schema without `$schema` may use the spellings of every draft, as far as they do not clash.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from phloem.grammar.errors import UnsupportedConstraint
from phloem.grammar.json_schema.values import shown


class Draft(IntEnum):
    """The drafts, in the order of their age; ANY is that of a schema that names none."""

    ANY = 0
    D4 = 4
    D6 = 6
    D7 = 7
    D2019 = 2019
    D2020 = 2020


_URIS = {
    "json-schema.org/draft-04/schema": Draft.D4,
    "json-schema.org/draft-06/schema": Draft.D6,
    "json-schema.org/draft-07/schema": Draft.D7,
    "json-schema.org/draft/2019-09/schema": Draft.D2019,
    "json-schema.org/draft/2020-12/schema": Draft.D2020,
}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ANNOTATIONS = _words(
    "title description default examples deprecated readOnly writeOnly $comment contentMediaType "
    "contentEncoding contentSchema discriminator example externalDocs xml"
)
"""Keywords that say nothing about which values are valid, in every draft or in OpenAPI."""

_COMMON = _words(
    "$schema $ref $defs definitions type enum allOf anyOf oneOf not properties patternProperties "
    "additionalProperties required minProperties maxProperties items minItems maxItems uniqueItems "
    "minLength maxLength pattern format minimum maximum exclusiveMinimum exclusiveMaximum "
    "multipleOf"
)
_NEW_IN_6 = _words("$id const contains propertyNames")
_NEW_IN_7 = _words("if then else")
_NEW_IN_2019 = _words("$anchor dependentRequired dependentSchemas minContains maxContains")
_UNTIL_2019 = _words("additionalItems")
_UNTIL_7 = _words("dependencies")
_KEYWORDS: dict[Draft, frozenset[str]] = {
    Draft.D4: _COMMON | _UNTIL_7 | _UNTIL_2019 | {"id"},
    Draft.D6: _COMMON | _NEW_IN_6 | _UNTIL_7 | _UNTIL_2019,
    Draft.D7: _COMMON | _NEW_IN_6 | _NEW_IN_7 | _UNTIL_7 | _UNTIL_2019,
    Draft.D2019: _COMMON | _NEW_IN_6 | _NEW_IN_7 | _NEW_IN_2019 | _UNTIL_2019,
    Draft.D2020: _COMMON | _NEW_IN_6 | _NEW_IN_7 | _NEW_IN_2019 | {"prefixItems"},
}
_KEYWORDS[Draft.ANY] = (_KEYWORDS[Draft.D7] | _KEYWORDS[Draft.D2019]) | {"prefixItems"}

_REASONS = {
    "unevaluatedProperties": "use 'additionalProperties' in a schema that lists all properties",
    "unevaluatedItems": "use 'items' in a schema that lists all items",
    "$dynamicRef": "use '$ref'",
    "$recursiveRef": "use '$ref'",
    "nullable": "it is not JSON Schema: use 'type' with a list that contains 'null'",
}

SCHEMA_MAPS = _words("properties patternProperties definitions $defs dependentSchemas dependencies")
"""Keywords whose value maps names to schemas (in `dependencies`, maybe to lists of names)."""
SCHEMA_LISTS = _words("allOf anyOf oneOf prefixItems items")
"""Keywords whose value is a list of schemas (`items`: or one)."""
SCHEMAS = _words(
    "not if then else items additionalItems contains additionalProperties propertyNames"
)
"""Keywords whose value is a schema."""


def draft_of(schema: Any, default: Draft) -> Draft:
    """The draft that a schema's `$schema` names, or the default.

    Raises:
        UnsupportedConstraint: if it names one that is not known here.
    """
    if not isinstance(schema, dict) or "$schema" not in schema:
        return default
    uri = schema["$schema"]
    if isinstance(uri, str):
        draft = _URIS.get(uri.removesuffix("#").partition("://")[2])
        if draft is not None:
            return draft
    raise UnsupportedConstraint(
        "", "$schema", f"{shown(uri)} is not one of drafts 4, 6, 7, 2019-09 and 2020-12: name one"
    )


def check_keywords(schema: dict[str, Any], pointer: str, draft: Draft) -> None:
    """Refuse a keyword that would otherwise be passed over in silence.

    Raises:
        UnsupportedConstraint: naming the keyword.
    """
    known = _KEYWORDS[draft]
    for keyword in schema:
        if keyword in known or keyword in ANNOTATIONS or keyword.startswith("x-"):
            continue
        reason = _REASONS.get(keyword)
        if reason is None and any(keyword in words for words in _KEYWORDS.values()):
            reason = f"draft {draft.value} does not know it: name another in '$schema'"
        raise UnsupportedConstraint(
            pointer, keyword, reason or "it is not a keyword that can be enforced: remove it"
        )


def ref_hides_siblings(schema: dict[str, Any], root: Any, draft: Draft, pointer: str) -> bool:
    """Whether a `$ref` stands for its whole object (until draft 7), or beside its siblings.

    Without `$schema`, `$defs` at the root tells that it is a later one; `definitions`, which is in
    use to this day, tells nothing.

    Raises:
        UnsupportedConstraint: if neither tells, and it matters.
    """
    if draft is not Draft.ANY:
        return draft < Draft.D2019
    ignored = ANNOTATIONS | {"$ref", "$schema", "$defs", "definitions", "$id", "$anchor"}
    if all(keyword in ignored for keyword in schema):
        return True
    if isinstance(root, dict) and "$defs" in root and "definitions" not in root:
        return False
    raise UnsupportedConstraint(
        pointer,
        "$ref",
        "until draft 7 it replaces the keywords beside it, later it adds to them: name the draft "
        "in '$schema', or put the reference into an 'allOf'",
    )
