"""What the parsers are made of: a text that comes in pieces, read by a coroutine.

A parser reads from front to back as if all of the text were there, and waits (`yield`) where it
needs more of it. What it decides depends on text that it has seen alone, never on where a piece
ends; so its parts do not depend on how the text was cut.

```
text:  [ told | taken: content if no call comes of it | rest: not looked at, or undecided ]
               _taken                                   _rest
```
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator
from typing import Any, TypeVar

from phloem.server.parsers.base import CallArguments, CallBegin, CallEnd, Content, Part
from phloem.server.parsers.nesting import Nesting

T = TypeVar("T")
Steps = Generator[None, None, T]
"""A part of the reading, which waits for more text by yielding, and comes to a T."""

LONGEST = 512
"""Characters of a name, a key or a header: what is longer is none."""

_PIECE = 2048
_SPACE = " \t\r\n"
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_WORD = re.compile(r"[A-Za-z0-9_-]*")
_SCALAR = re.compile(r"[A-Za-z0-9+.-]*")
"""A JSON number or literal, and some that are none."""


class NotACallError(Exception):
    """What was taken for a call is none, or is not whole."""


class Reader(ABC):
    """Base of the parsers; a subclass says how it reads."""

    def __init__(self, tools: Collection[str] = ()) -> None:
        """`tools` are the names that calls may have: what looks like a call of another is text."""
        self._tools = tools
        self._rest = ""
        self._taken: list[str] = []
        self._ended = False
        self._calls = 0
        """That have begun."""
        self._new: list[Part] = []
        self._steps = self._read()

    def feed(self, text: str) -> list[Part]:
        """The parts that more of the text makes certain."""
        # In pieces: what is taken moves the rest, which must not be a whole long output.
        parts: list[Part] = []
        for begin in range(0, len(text), _PIECE):
            self._rest += text[begin : begin + _PIECE]
            parts += self._go_on()
        return parts

    def end(self) -> list[Part]:
        """What was held back, at the end of the text."""
        self._ended = True
        return self._go_on()

    @abstractmethod
    def _read(self) -> Steps[None]:
        """Read all of the text, up to its end."""

    def _go_on(self) -> list[Part]:
        next(self._steps, None)
        new, self._new = self._new, []
        return new

    # Text.

    def _more(self) -> Steps[bool]:
        """Wait for more text; False: there is no more."""
        if self._ended:
            return False
        yield
        return True

    def _take(self, count: int) -> str:
        text, self._rest = self._rest[:count], self._rest[count:]
        self._taken.append(text)
        return text

    def _drop(self) -> None:
        """What was taken is done with."""
        self._taken = []

    def _give_back(self) -> None:
        """What was taken is content."""
        text, self._taken = "".join(self._taken), []
        self._say(text)

    def _say(self, text: str) -> None:
        if text:
            self._new.append(Content(text))

    def _text(
        self, marks: Collection[str], tell: Callable[[str], None] | None = None
    ) -> Steps[str | None]:
        """Tell the text up to one of the marks, as content or by `tell`; the mark is taken. None:
        the text ended without.
        """
        tell = tell or self._say
        while True:
            at, mark = first_of(self._rest, marks)
            end = at if mark or self._ended else len(self._rest) - held_back(self._rest, marks)
            text = self._take(end)
            self._drop()
            tell(text)
            if mark:
                return self._take(len(mark))
            if not (yield from self._more()):
                return None

    def _space(self) -> Steps[None]:
        """Take white space."""
        while True:
            self._take(len(self._rest) - len(self._rest.lstrip(_SPACE)))
            if self._rest or not (yield from self._more()):
                return

    def _next(self) -> Steps[str]:
        """The next character behind white space, which is taken; empty at the end."""
        yield from self._space()
        return self._rest[:1]

    def _comes(self, mark: str) -> Steps[bool]:
        """Take a mark, if it is what comes."""
        while not self._rest.startswith(mark):
            if not mark.startswith(self._rest) or not (yield from self._more()):
                return False
        self._take(len(mark))
        return True

    def _expect(self, mark: str) -> Steps[None]:
        """Take a mark behind white space.

        Raises:
            NotACallError: something else comes.
        """
        yield from self._space()
        if not (yield from self._comes(mark)):
            raise NotACallError

    def _one_of(self, characters: str) -> Steps[str]:
        """Take one of some characters behind white space, as `_expect`."""
        found = yield from self._next()
        if not found or found not in characters:
            raise NotACallError
        return self._take(1)

    def _word(self, pattern: re.Pattern[str] = _WORD) -> Steps[str]:
        """Take what may be a name; empty if none comes."""
        while True:
            found = pattern.match(self._rest, 0, LONGEST)
            end = found.end() if found else 0
            if end < len(self._rest) or not (yield from self._more()):
                return self._take(end)

    def _short_string(self) -> Steps[str]:
        """Take a JSON string that is a key or a name, as `_expect`."""
        if (yield from self._next()) != '"':
            raise NotACallError
        while not (found := _STRING.match(self._rest, 0, LONGEST)):
            if len(self._rest) >= LONGEST or not (yield from self._more()):
                raise NotACallError
        return _decoded(self._take(found.end()))

    # Calls.

    def _attempt(self, call: Steps[None]) -> Steps[None]:
        """Read calls; as far as they are none, their text is content."""
        try:
            yield from call
        except NotACallError:
            self._give_back()

    def _known(self, name: str) -> str:
        if name not in self._tools:
            raise NotACallError
        return name

    def _call(self, name: str) -> Steps[None]:
        """Read the arguments of a call, told as they come."""
        if (yield from self._next()) != "{":
            self._whole_call(name, (yield from self._arguments_text()))
            return
        self._begin(name)
        arguments = yield from self._value(self._add)
        if not is_object(arguments):
            raise NotACallError
        self._end_call()

    def _arguments_text(self) -> Steps[str]:
        """Take arguments: an object, a string that has its text, or null for none."""
        first = yield from self._next()
        if first == "{":
            return (yield from self._value())
        if first == '"':
            return _decoded((yield from self._value())).strip() or "{}"
        if (yield from self._comes("null")):
            return "{}"
        raise NotACallError

    def _any_value(self) -> Steps[None]:
        """Take a JSON value that says nothing here."""
        first = yield from self._next()
        if first and first in '"{[':
            yield from self._value()
        elif not (yield from self._word(_SCALAR)):
            raise NotACallError

    def _whole_call(self, name: str, arguments: str) -> None:
        """Tell a call whose arguments are all there."""
        if not is_object(arguments):
            raise NotACallError
        self._begin(name)
        self._add(arguments)
        self._end_call()

    def _begin(self, name: str) -> None:
        self._drop()
        self._new.append(CallBegin(self._calls, name))
        self._calls += 1

    def _add(self, arguments: str) -> None:
        self._drop()
        if arguments:
            self._new.append(CallArguments(self._calls - 1, arguments))

    def _end_call(self) -> None:
        self._drop()
        self._new.append(CallEnd(self._calls - 1))

    def _value(self, tell: Callable[[str], None] = lambda _: None) -> Steps[str]:
        """Take a JSON string, object or array, which comes; its pieces are told, too."""
        nesting, pieces = Nesting(), []
        while True:
            end = nesting.end_of_value(self._rest)
            pieces.append(self._take(len(self._rest) if end is None else end))
            tell(pieces[-1])
            if end is not None:
                return "".join(pieces)
            if not (yield from self._more()):
                raise NotACallError


def first_of(text: str, marks: Collection[str]) -> tuple[int, str]:
    """Where the first of some marks is, and which; the text's length and none if none is there."""
    found = [(at, mark) for mark in marks if (at := text.find(mark)) >= 0]
    return min(found, default=(len(text), ""))


def held_back(text: str, marks: Collection[str]) -> int:
    """How many characters at the end of a text may be the beginning of a mark."""
    for count in range(min(len(text), max(map(len, marks)) - 1), 0, -1):
        suffix = text[-count:]
        if any(mark.startswith(suffix) for mark in marks):
            return count
    return 0


def json_object(text: str) -> dict[str, Any] | None:
    """The JSON object whose whole text this is, or None."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def is_object(text: str) -> bool:
    """Whether a text is a whole JSON object."""
    return json_object(text) is not None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON: Python alone reads it")


def _decoded(string: str) -> str:
    """The text of a JSON string.

    Raises:
        NotACallError: it is none, or has half of a surrogate pair, which no client could be told.
    """
    try:
        text = str(json.loads(string))
        text.encode()
        return text
    except ValueError as error:
        raise NotACallError from error
