"""Random schemas of the keywords that are enforced, and random values that often meet them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

_NAMES = ["a", "b", "ab", "é", 'q"', ""]
_PATTERNS = ["^a", "b$", "^[a-c]{2,3}$", "^(é|\\\\|\n)*$", "^x|y$"]
_SCALARS: list[Any] = [None, True, False, 0, 1, -3, 7, 2.5, "", "a", "ab", "é", "\n\\", "yx", "😀b"]

scalars = st.sampled_from(_SCALARS)
names = st.sampled_from([*_NAMES, "c", "xa"])
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)

_counts = st.integers(0, 3)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    objects = st.fixed_dictionaries(
        {"type": st.just("object")},
        optional={
            "properties": st.dictionaries(st.sampled_from(_NAMES), inner, max_size=3),
            "required": st.lists(names, max_size=2, unique=True),
            "additionalProperties": inner,
            "patternProperties": st.dictionaries(st.sampled_from(_PATTERNS[:3]), inner, max_size=1),
            "propertyNames": st.sampled_from([{"pattern": "^[ab]+$"}, {"maxLength": 1}]),
            "minProperties": _counts,
            "maxProperties": _counts,
        },
    )
    counted = {"contains": inner, "minItems": _counts, "maxItems": _counts}
    lists = st.fixed_dictionaries({"type": st.just("array")}, optional={"items": inner, **counted})
    tuples = st.fixed_dictionaries(
        {"type": st.just("array"), "items": st.lists(inner, min_size=1, max_size=2)},
        optional={"additionalItems": inner, **counted},
    )
    several = st.lists(inner, min_size=1, max_size=3)
    mixed = st.fixed_dictionaries(
        {}, optional={"anyOf": several, "allOf": several, "oneOf": several, "not": inner}
    )
    return objects | lists | objects | tuples | mixed


_leaves = st.one_of(
    st.booleans(),
    st.builds(
        lambda kind: {"type": kind}, st.sampled_from(["null", "boolean", "string", "number"])
    ),
    st.builds(lambda chosen: {"enum": chosen}, st.lists(scalars, min_size=1, max_size=3)),
    st.fixed_dictionaries(
        {"type": st.just("integer")},
        optional={"minimum": st.integers(-5, 5), "exclusiveMaximum": st.integers(-5, 8)},
    ),
    st.fixed_dictionaries(
        {"type": st.just("string")},
        optional={
            "pattern": st.sampled_from(_PATTERNS),
            "minLength": _counts,
            "maxLength": _counts,
        },
    ),
)
schemas = st.recursive(_leaves, _containers, max_leaves=6)
