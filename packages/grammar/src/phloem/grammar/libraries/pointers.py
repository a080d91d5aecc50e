"""JSON pointers: writing names into them, and finding a keyword's place."""

from __future__ import annotations

from typing import Any


def escape(name: str) -> str:
    """A name as a part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def find_keyword(value: Any, keyword: str, at: str = "") -> str | None:
    """The pointer of the first place, in reading order, where an object has `keyword`."""
    named = value if isinstance(value, dict) else {}
    if isinstance(value, list):
        named = {str(index): part for index, part in enumerate(value)}
    for name, part in named.items():
        here = f"{at}/{escape(name)}"
        found = here if name == keyword else find_keyword(part, keyword, here)
        if found is not None:
            return found
    return None
