"""Calls that are JSON objects with a name and arguments, as most notations have them."""

from __future__ import annotations

from phloem.server.parsers.reading import NotACallError, Reader, Steps

_NAMES = ("name", "function")
_ARGUMENTS = ("arguments", "parameters")
_PASSED_OVER = ("id", "type")


class CallObjectReader(Reader):
    """A `Reader` that can read such an object."""

    def _call_object(self) -> Steps[None]:
        """Read `{"name": NAME, "arguments": {...}}`, told as it comes where the name comes first.

        A call without arguments has the empty object. Arguments may be a string that has the
        object's text. What stands behind name and arguments belongs to the object, and says
        nothing; other keys before mean that it is no call.
        """
        yield from self._expect("{")
        name: str | None = None
        arguments: str | None = None
        told = False
        while True:
            key = yield from self._short_string()
            yield from self._expect(":")
            if key in _NAMES and name is None:
                name = self._known((yield from self._short_string()))
            elif key in _ARGUMENTS and arguments is None and not told:
                if name is None:
                    arguments = yield from self._arguments_text()
                else:
                    yield from self._call(name)
                    told = True
            elif key in _PASSED_OVER or told or None not in (name, arguments):
                yield from self._any_value()
            else:
                raise NotACallError
            if (yield from self._one_of(",}")) == "}":
                break
        if name is None:
            raise NotACallError
        if not told:
            self._whole_call(name, arguments or "{}")
        self._drop()

    def _list(self) -> Steps[None]:
        """Read `[OBJECT, ...]`."""
        yield from self._expect("[")
        while True:
            yield from self._call_object()
            if (yield from self._one_of(",]")) == "]":
                self._drop()
                return


class HermesParser(CallObjectReader):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, of Hermes, Qwen and others; also
    with several objects, or a list of them, between the marks.
    """

    MARKS = ("<tool_call>", "</tool_call>")

    def _read(self) -> Steps[None]:
        while (yield from self._text(self.MARKS[:1])):
            yield from self._attempt(self._tool_call())

    def _tool_call(self) -> Steps[None]:
        if (yield from self._next()) == "[":
            yield from self._list()
        else:
            yield from self._call_object()
        while (yield from self._next()) == "{":
            yield from self._call_object()
        yield from self._comes(self.MARKS[1])
        yield from self._space()
        self._drop()


class Llama3Parser(CallObjectReader):
    """`<|python_tag|>{"name": ..., "parameters": {...}}`, several with `;` between them; without
    the mark where the output begins with one. Llama 4 has other marks around it.
    """

    MARKS = ("<|python_tag|>", "<|python_start|>", "<|python_end|>")

    def _read(self) -> Steps[None]:
        if (yield from self._next()) == "{":
            yield from self._attempt(self._objects())
        self._give_back()
        while (yield from self._text(self.MARKS[:2])):
            yield from self._attempt(self._objects())

    def _objects(self) -> Steps[None]:
        while True:
            yield from self._call_object()
            yield from self._space()
            self._drop()
            if (yield from self._comes(self.MARKS[2])):
                yield from self._space()
                self._drop()
                return
            if not (yield from self._comes(";")) and self._rest[:1] != "{":
                return
            yield from self._space()
            yield from self._comes(self.MARKS[0])


class MistralParser(CallObjectReader):
    """`[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]`, and the newer
    `[TOOL_CALLS]NAME[ARGS]{...}` for each call.
    """

    MARKS = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")

    def _read(self) -> Steps[None]:
        while (yield from self._text(self.MARKS[:1])):
            yield from self._attempt(self._calls_behind_the_mark())

    def _calls_behind_the_mark(self) -> Steps[None]:
        first = yield from self._next()
        if first == "[":
            yield from self._list()
        elif first == "{":
            yield from self._call_object()
        else:
            yield from self._named()
        yield from self._space()
        self._drop()

    def _named(self) -> Steps[None]:
        name = self._known((yield from self._word()))
        if (yield from self._comes(self.MARKS[2])):
            yield from self._word()
        yield from self._comes(self.MARKS[1])
        yield from self._call(name)
