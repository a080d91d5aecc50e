"""The notation of DeepSeek's V3 and V3.1."""

from __future__ import annotations

from phloem.server.parsers.reading import Reader, Steps

BAR = "\uff5c"
"""Fullwidth, as in all of DeepSeek's marks."""
CALLS_BEGIN = f"<{BAR}tool▁calls▁begin{BAR}>"

_CALLS_END = f"<{BAR}tool▁calls▁end{BAR}>"
_CALL, _CALL_END = f"<{BAR}tool▁call▁begin{BAR}>", f"<{BAR}tool▁call▁end{BAR}>"
_SEPARATOR = f"<{BAR}tool▁sep{BAR}>"


class DeepSeekParser(Reader):
    """Calls in a list of marks of their own. V3.1 has `NAME`, separator, arguments; V3 the word
    `function`, separator, `NAME` and the arguments in a fenced block.
    """

    MARKS = (CALLS_BEGIN, _CALLS_END, _CALL, _CALL_END, _SEPARATOR)

    def _read(self) -> Steps[None]:
        while mark := (yield from self._text((CALLS_BEGIN, _CALL))):
            yield from self._attempt(self._list(mark))

    def _list(self, mark: str) -> Steps[None]:
        if mark == CALLS_BEGIN:
            yield from self._expect(_CALL)
        while True:
            yield from self._one()
            yield from self._space()
            yield from self._comes(_CALL_END)
            yield from self._space()
            self._drop()
            if not (yield from self._comes(_CALL)):
                break
        yield from self._comes(_CALLS_END)
        yield from self._space()
        self._drop()

    def _one(self) -> Steps[None]:
        name = yield from self._word()
        yield from self._expect(_SEPARATOR)
        if (yield from self._next()) == "{":
            yield from self._call(self._known(name))
            return
        name = self._known((yield from self._word()))
        yield from self._expect("```json")
        yield from self._call(name)
        yield from self._expect("```")
