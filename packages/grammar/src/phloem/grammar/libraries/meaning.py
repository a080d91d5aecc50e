"""What a JSON schema means, before any library reads it: the reading of `json_schema`, for all.

Libraries take `$schema` for an annotation, and enforce or ignore keywords as none or any of its
drafts says. So what has no certain meaning here is given to none of them.
"""

from __future__ import annotations

from typing import Any

from phloem.grammar.errors import UnsupportedConstraint
from phloem.grammar.json_schema.document import Document
from phloem.grammar.json_schema.draft import Draft, check_keywords, draft_of, ref_hides_siblings

_EXCLUSIVE = ("exclusiveMinimum", "exclusiveMaximum")


def check_meaning(schema: Any) -> None:
    """Raise if it is not certain what a schema, or any part of it, means.

    Raises:
        UnsupportedConstraint: for an unknown draft, for a keyword that the draft does not have, and
            where the drafts that it may be of disagree.
        GrammarError, ConstraintTooComplex: as `Document`.
    """
    document = Document(schema)
    for location in document.locations:
        if isinstance(location.schema, dict):
            _check_one(location.schema, location.pointer, document)


def _check_one(schema: dict[str, Any], pointer: str, document: Document) -> None:
    draft = document.draft
    if draft_of(schema, draft) is not draft:
        raise UnsupportedConstraint(pointer, "$schema", "name the draft at the root")
    check_keywords(schema, pointer, draft)
    if "$ref" in schema:
        ref_hides_siblings(schema, document.schema, draft, pointer)
    if "additionalItems" in schema and "prefixItems" in schema:
        raise UnsupportedConstraint(
            pointer, "additionalItems", "no draft has it beside 'prefixItems': use 'items'"
        )
    if isinstance(schema.get("items"), list) and (draft is Draft.D2020 or "prefixItems" in schema):
        raise UnsupportedConstraint(
            pointer, "items", "it is one schema in draft 2020-12: put the list into 'prefixItems'"
        )
    for keyword in _EXCLUSIVE:
        if draft is Draft.D4 and not isinstance(schema.get(keyword, False), bool):
            raise UnsupportedConstraint(
                pointer, keyword, "it is true or false in draft 4: name a later one in '$schema'"
            )
