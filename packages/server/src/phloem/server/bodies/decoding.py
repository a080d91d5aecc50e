"""What a body holds: a JSON object, whose fields are not larger than any use has them.

This is imported by a process that starts when a client waits for it: by little else, therefore.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

MOST_FIELDS = 256
"""In one request, the unknown ones included."""
MOST_CONTAINERS = 200_000
"""Lists and objects, at all depths of a request."""
_LONGEST_NAME = 64
"""Characters that are quoted of a parameter's name."""
_LARGE = 20_000
"""Characters and items of a value from which reading it is felt by streams."""
SCALARS = {int, float, bool, type(None)}
"""Types of values from JSON that are all of a size."""
_LEAVES = {*SCALARS, str}
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F]|(?P<lone>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
"""One escape in JSON; of a surrogate pair, its beginning."""
_SEARCHED = 16 << 10
"""Bytes of a malformed body in which halves of characters are looked for."""
_ESCAPED_PAIR = 12
"""Bytes of a surrogate pair."""


class BadBody(ValueError):
    """A body that cannot be taken, in a sentence for the client; `param` is the field meant."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


def decoded(body: bytes) -> dict[str, Any]:
    """The JSON object that a body is.

    Raises:
        BadBody: it is none.
    """
    try:
        content = msgspec.json.decode(body)
    except (ValueError, RecursionError) as error:
        what = _lone_surrogate(body) or str(error)
        raise BadBody(f"the body cannot be read as JSON: {what}", code="invalid_json") from error
    if not isinstance(content, dict):
        raise BadBody("the body is JSON, but no object: send an object", code="invalid_json")
    return content


def _lone_surrogate(body: bytes) -> str | None:
    """What is wrong with the first escape that is half a character, of which the decoder says other
    things; None: there is none.
    """
    for escape in _ESCAPE.finditer(body[: _SEARCHED + _ESCAPED_PAIR]):
        # The last one may be cut.
        if escape["lone"] and escape.start() < _SEARCHED:
            return (
                f"the escape {escape[0].decode()} at byte {escape.start()} is half of a surrogate "
                "pair, which is no character: give both halves or leave it out"
            )
    return None


def check_sizes(content: Mapping[str, Any], most: int) -> None:
    """Refuse what has more fields, or more entries in one, than any use has: by its length alone,
    before the work that each entry is.

    Raises:
        BadBody: naming the field.
    """
    if len(content) > MOST_FIELDS:
        raise BadBody(
            f"the request has {len(content)} fields and may have {MOST_FIELDS}: leave some out"
        )
    for name, value in content.items():
        if isinstance(value, list | dict) and len(value) > most:
            name = name[:_LONGEST_NAME]
            raise BadBody(
                f"{name} has {len(value)} entries and may have {most} here: send fewer at once",
                param=name,
            )


def check_containers(content: Mapping[str, Any]) -> None:
    """Refuse what has more lists and objects in it, in all, than any use has.

    Raises:
        BadBody: it has.
    """
    count = 0
    rest: list[Any] = [content]
    while rest:
        value = rest.pop()
        count += 1
        inner = value.values() if isinstance(value, Mapping) else value
        if set(map(type, inner)) <= _LEAVES:
            continue
        rest += [one for one in inner if isinstance(one, list | dict)]
        if count + len(rest) > MOST_CONTAINERS:
            raise BadBody(
                f"the request has more than {MOST_CONTAINERS} lists and objects in it: send less "
                "at once"
            )


def is_large(given: Any) -> bool:
    """Whether a value from JSON is so large that reading it is felt, which is quickly seen."""
    return weight(given, _LARGE) > _LARGE


def weight(given: Any, enough: int) -> int:
    """Characters and items of a value from JSON; not all are counted once there are `enough`."""
    counted, rest = 0, [given]
    while rest and counted <= enough:
        value = rest.pop()
        counted += 1
        if isinstance(value, str | list | tuple | dict):
            counted += len(value)
        if counted > enough:
            break
        if isinstance(value, dict):
            rest += [*value, *value.values()]
        elif isinstance(value, list | tuple) and not set(map(type, value)) <= SCALARS:
            rest += value
    return counted
