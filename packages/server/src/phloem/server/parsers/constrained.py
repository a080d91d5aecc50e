"""Calls whose text a constraint makes sure of: a list of them, or one of a known function."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from phloem.server.parsers.base import CallArguments, CallBegin, CallEnd, Part
from phloem.server.parsers.reading import is_object


class NamedCall:
    """Reads the text of one call of a known function: all of it is the arguments."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._arguments: list[str] = []

    def feed(self, text: str) -> list[Part]:
        """More arguments, behind the name the first time."""
        if not text:
            return []
        begin: list[Part] = [] if self._arguments else [CallBegin(0, self._name)]
        self._arguments.append(text)
        return [*begin, CallArguments(0, text)]

    def end(self) -> list[Part]:
        """The call's end, if its arguments are whole."""
        return [CallEnd(0)] if is_object("".join(self._arguments)) else []


@dataclass
class CallList:
    """Reads a list of calls, `[{"name": ..., "arguments": {...}}]`.

    A call is told of once its name is known, which comes before its arguments, and its end when the
    list goes on to another call or ends. Text that no call was made of is no content either: it is
    the constraint's. What is no such list, as the constraint does not let it be, ends the reading.
    """

    _index: int = -1
    """Of the latest call."""
    _head: str = ""
    """The latest call's text up to its arguments."""
    _depth: int = 0
    """Brackets that are open: one in the list, two in a call, more in its arguments."""
    _in_string: bool = False
    _escaped: bool = False
    _over: bool = False
    """Whether the list has ended, or the text is none."""
    _new: list[Part] = field(default_factory=list)

    def feed(self, text: str) -> list[Part]:
        """What more of the text says."""
        if self._over:
            return []
        arguments = 0
        for position, character in enumerate(text):
            before = self._depth
            self._take(character)
            if before == 2 and self._depth > 2:
                arguments = position
                self._begin()
            elif before > 2 and self._depth == 2:
                self._add(text[arguments : position + 1])
            elif before <= 2 and self._depth == 2:
                self._head += character
            elif before == 1 and self._depth == 0 and self._index >= 0:
                self._new.append(CallEnd(self._index))
                self._over = True
            if self._over:
                break
        if self._depth > 2 and not self._over:
            self._add(text[arguments:])
        new, self._new = self._new, []
        return new

    def end(self) -> list[Part]:
        """Nothing was held back that is worth telling."""
        return []

    def _take(self, character: str) -> None:
        """Follow the nesting."""
        if self._in_string:
            if self._escaped or character == "\\":
                self._escaped = not self._escaped
            elif character == '"':
                self._in_string = False
        elif character == '"':
            self._in_string = True
        elif character in "[{":
            self._depth += 1
            if self._depth == 2:
                self._head = ""
        elif character in "]}":
            self._depth -= 1
            self._over = self._depth < 0

    def _begin(self) -> None:
        name = _name_in(self._head)
        if name is None:
            self._over = True
            return
        if self._index >= 0:
            self._new.append(CallEnd(self._index))
        self._index += 1
        self._new.append(CallBegin(self._index, name))

    def _add(self, arguments: str) -> None:
        if arguments:
            self._new.append(CallArguments(self._index, arguments))


def _name_in(head: str) -> str | None:
    """The name in an object's text up to where the value of its arguments begins."""
    try:
        call = json.loads(f"{head}null}}")
        name = call["name"]
        name.encode()
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    return str(name)
