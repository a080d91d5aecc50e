"""`cache_control`: which beginning of a prompt is worth keeping, and for how long.

Everything is cached anyway; what is marked is evicted after all that is not, as long as its time
lasts from its last use on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from phloem.server.http.anthropic.protocol import CacheControl, CountRequest
from phloem.server.http.errors import ApiError

_SECONDS = {"5m": 300.0, "1h": 3600.0}
_MOST_MARKS = 4


@dataclass(frozen=True)
class Marked:
    """The beginning of a prompt that is to be retained."""

    seconds: float
    """The longest time of all marks: what is kept is one beginning, up to the last of them."""
    ttl: str
    beginning: CountRequest | None
    """A request whose prompt begins like that, and has no more in common with it; None: all of it
    is to be.
    """


def marked(request: CountRequest) -> Marked | None:
    """What the marks of a request come to; None: it has none.

    Raises:
        ApiError: one is malformed, or there are too many.
    """
    marks = list(_marks(request))
    if not marks:
        return None
    if len(marks) > _MOST_MARKS:
        raise ApiError(
            f"there are {len(marks)} blocks with cache_control: mark at most {_MOST_MARKS}",
            param="cache_control",
        )
    ttl = max((control.ttl for _, control in marks), key=_SECONDS.__getitem__)
    return Marked(_SECONDS[ttl], ttl, _beginning(request, marks[-1][0]))


Place = tuple[int, int]
"""A message and a block in it; message -1 is the system's, -2 are the tools, and the block after
any other is -1.
"""
_TOOLS, _SYSTEM, _LAST = -2, -1, -1


def _marks(request: CountRequest) -> Iterator[tuple[Place, CacheControl]]:
    """In the order of the prompt."""
    for tool in request.tools or ():
        if tool.cache_control is not None:
            yield (_TOOLS, _LAST), tool.cache_control
    yield from _marks_in(request.system, _SYSTEM, "system")
    for index, message in enumerate(request.messages or ()):
        if isinstance(message, dict):
            yield from _marks_in(message.get("content"), index, "messages")
    if request.cache_control is not None:
        yield (_last(request), _LAST), request.cache_control


def _marks_in(content: Any, index: int, param: str) -> Iterator[tuple[Place, CacheControl]]:
    blocks = content if isinstance(content, list) else ()
    for place, block in enumerate(blocks):
        for control in _controls(block, param):
            yield (index, _LAST if place == len(blocks) - 1 else place), control


def _controls(block: Any, param: str) -> Iterator[CacheControl]:
    """The marks of a block and of the blocks in it, after which it is the next place."""
    if not isinstance(block, dict):
        return
    if block.get("type") == "tool_result" and isinstance(block.get("content"), list):
        for inner in block["content"]:
            yield from _control_of(inner, param)
    yield from _control_of(block, param)


def _control_of(block: Any, param: str) -> Iterator[CacheControl]:
    given = block.get("cache_control") if isinstance(block, dict) else None
    if given is None:
        return
    try:
        yield msgspec.convert(given, CacheControl)
    except msgspec.ValidationError as error:
        raise ApiError(f"cache_control in {param} is wrong: {error}", param=param) from error


def _beginning(request: CountRequest, place: Place) -> CountRequest | None:
    """What of a request stands up to a place."""
    message, block = place
    if message == _last(request) and block == _LAST:
        return None
    given = request.messages or []
    system, messages = request.system, given[: max(message, 0)]
    if message == _TOOLS:
        system = None
    elif message == _SYSTEM:
        system = _cut(system, block)
    else:
        last = given[message]
        messages = [*messages, last | {"content": _cut(last["content"], block)}]
    # Templates want somebody to have said something.
    messages = messages or [{"role": "user", "content": ""}]
    return CountRequest(
        model=request.model,
        messages=messages,
        system=system,
        tools=request.tools,
        tool_choice=request.tool_choice,
        thinking=request.thinking,
    )


def _last(request: CountRequest) -> int:
    """Where the last message is; of none, at its place."""
    return max(len(request.messages or ()) - 1, 0)


def _cut(content: Any, last: int) -> Any:
    return content if last == _LAST else content[: last + 1]


def common_length(first: list[int], second: list[int]) -> int:
    """How many tokens two prompts begin with alike."""
    alike, end = 0, min(len(first), len(second))
    while alike < end:
        middle = (alike + end + 1) // 2
        if first[alike:middle] == second[alike:middle]:
            alike = middle
        else:
            end = middle - 1
    return alike
