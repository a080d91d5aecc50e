"""Calls written as a list of Python calls, of Llama 3.2 and 4 and others."""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from phloem.server.parsers.nesting import Nesting
from phloem.server.parsers.reading import NotACallError, Reader, Steps

_MOST_CHARACTERS = 100_000
"""Of one call: more than a model writes, and little enough to be read at once."""


class PythonicParser(Reader):
    """`[f(a=1), g(b="x")]` at the beginning of an output, or behind a mark.

    Arguments are keywords whose values are literals; nothing is evaluated. A call is told once it
    is whole.
    """

    MARKS = ("<|python_start|>", "<|python_end|>")

    def _read(self) -> Steps[None]:
        if (yield from self._next()) == "[":
            yield from self._attempt(self._list())
        self._give_back()
        while (yield from self._text(self.MARKS[:1])):
            yield from self._attempt(self._list())

    def _list(self) -> Steps[None]:
        yield from self._expect("[")
        while True:
            yield from self._one()
            if (yield from self._one_of(",]")) == "]":
                break
        self._drop()
        yield from self._space()
        yield from self._comes(self.MARKS[1])
        yield from self._space()
        self._drop()

    def _one(self) -> Steps[None]:
        yield from self._space()
        name = self._known((yield from self._word()))
        if (yield from self._next()) != "(":
            raise NotACallError
        nesting, pieces = Nesting("\"'"), []
        while (end := nesting.end_of_value(self._rest)) is None:
            pieces.append(self._take(len(self._rest)))
            if not (yield from self._more()):
                raise NotACallError
        pieces.append(self._take(end))
        self._whole_call(name, _arguments("".join(pieces)))


def _arguments(text: str) -> str:
    """The arguments in `(a=1, b="x")`, as the JSON text of an object.

    Raises:
        NotACallError: there is more in it than keywords and literals that JSON has.
    """
    if len(text) > _MOST_CHARACTERS:
        raise NotACallError
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python does not know
            call = ast.parse(f"f{text}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise NotACallError
        literals = _JsonNames()
        values = {
            keyword.arg: ast.literal_eval(literals.visit(keyword.value))
            for keyword in call.keywords
        }
        if len(values) < len(call.keywords):
            raise NotACallError
        _check_keys(values)
        made = json.dumps(values, ensure_ascii=False, allow_nan=False)
        made.encode()
        return made
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        raise NotACallError from error


class _JsonNames(ast.NodeTransformer):
    """Puts the values of JSON's literals in the place of what Python takes for names."""

    _VALUES: ClassVar[Mapping[str, bool | None]] = MappingProxyType(
        {"true": True, "false": False, "null": None}
    )

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(self._VALUES[node.id]) if node.id in self._VALUES else node


def _check_keys(value: Any) -> None:
    """Refuse what JSON would have to change: keys that are no strings, `**` among keywords."""
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise NotACallError
        for each in value.values():
            _check_keys(each)
    elif isinstance(value, list | tuple):
        for each in value:
            _check_keys(each)
