"""JSON values inside of schemas: their checks, exact numbers, and keys that equal values share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from json.encoder import encode_basestring_ascii
from typing import Any, NamedTuple

from phloem.grammar.errors import ConstraintTooComplex, GrammarError, UnsupportedConstraint

MAX_DEPTH = 192
"""How deep a schema may be nested, in JSON values."""
MAX_VALUES = 200_000
_MAX_EXPONENT = 400
_FIGURES = 15
_PLAIN_INTEGER = 10**_FIGURES


class Number(NamedTuple):
    """(-1 if negative) * digits * 10 ** exponent; digits neither begin nor end with 0.

    Zero has no digits, is not negative, and has the exponent 0: equal numbers are equal tuples.
    """

    negative: bool
    digits: str
    exponent: int

    @classmethod
    def of(cls, value: int | float | Decimal) -> Number:
        """The exact decimal; a float is the one that its shortest text says."""
        decimal = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
        sign, digits, exponent = decimal.as_tuple()
        text = "".join(map(str, digits)).lstrip("0")
        short = text.rstrip("0")
        if not short:
            return cls(False, "", 0)
        return cls(bool(sign), short, int(exponent) + len(text) - len(short))

    @property
    def integer(self) -> int | None:
        """As an int, where it is one."""
        if not self.digits:
            return 0
        magnitude = int(self.digits) * 10**self.exponent if self.exponent >= 0 else None
        return -magnitude if self.negative and magnitude is not None else magnitude


def is_number(value: Any) -> bool:
    """Whether it is a JSON number (True and False are not)."""
    return isinstance(value, (int, float, Decimal)) and not isinstance(value, bool)


def is_unicode(text: str) -> bool:
    """Whether it has no lone surrogate, which UTF-8 cannot say."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def key_of(value: Any) -> str:
    """A text that exactly the equal JSON values share: 1 and 1.0 are equal, 1 and true are not."""
    if isinstance(value, str):
        return encode_basestring_ascii(value)  # as `dumps` does in the end
    if is_number(value):
        number = Number.of(value)
        return f"{'-' if number.negative else ''}{number.digits}e{number.exponent}"
    if isinstance(value, list):
        return f"[{','.join(map(key_of, value))}]"
    if isinstance(value, dict):
        pairs = sorted((json.dumps(name), key_of(each)) for name, each in value.items())
        return "{" + ",".join(f"{name}:{each}" for name, each in pairs) + "}"
    return json.dumps(value)


def shown(value: Any) -> str:
    """A value for a message, as JSON."""
    return json.dumps(value, ensure_ascii=False, default=float)


def escape(name: str) -> str:
    """A name as a token of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def check_values(schema: Any) -> None:
    """Refuse what no later stage should meet: extreme nesting, size, numbers, broken text.

    Raises:
        ConstraintTooComplex, UnsupportedConstraint, GrammarError: naming the value and place.
    """
    stack: list[tuple[Any, str, int]] = [(schema, "", 0)]
    for count in _counting():
        if not stack:
            return
        value, pointer, depth = stack.pop()
        if depth > MAX_DEPTH:
            raise ConstraintTooComplex(
                f"the schema is nested deeper than {MAX_DEPTH} values: use '$ref' for deep parts"
            )
        if count + len(stack) > MAX_VALUES:
            raise ConstraintTooComplex(f"the schema has more than {MAX_VALUES} values: divide it")
        if isinstance(value, dict):
            for name, each in value.items():
                _check_text(name, pointer)
                stack.append((each, f"{pointer}/{escape(name)}", depth + 1))
        elif isinstance(value, list):
            stack.extend(
                (each, f"{pointer}/{place}", depth + 1) for place, each in enumerate(value)
            )
        else:
            _check_scalar(value, pointer)


def is_sound(schema: Any) -> bool:
    """Whether `check_values` would pass surely, which is found in a fraction of its time: it has
    to know no places. False says nothing."""
    level, values = [schema], 0
    for _ in range(MAX_DEPTH):
        following: list[Any] = []
        for value in level:
            type_ = type(value)
            if type_ is dict:
                if not all(map(is_unicode, value)):
                    return False
                following.extend(value.values())
            elif type_ is list:
                following.extend(value)
            elif type_ is str:
                if not is_unicode(value):
                    return False
            elif type_ is int:
                if abs(value) > _PLAIN_INTEGER:
                    return False
            elif type_ is Decimal:
                if not value.is_finite() or abs(value.adjusted()) > _FIGURES:
                    return False
            elif value is not None and type_ is not bool:
                return False
        values += len(level)
        if not following:
            return values <= MAX_VALUES
        level = following
    return False


def _counting() -> Iterator[int]:
    count = 0
    while True:
        yield count
        count += 1


def _check_scalar(value: Any, pointer: str) -> None:
    if isinstance(value, str):
        _check_text(value, pointer)
    elif is_number(value):
        decimal = Decimal(value)
        if not decimal.is_finite():
            raise GrammarError(f"{value!r} at {pointer or 'the root'} is not a JSON number")
        if abs(decimal.adjusted()) > _MAX_EXPONENT or len(decimal.as_tuple().digits) > 1100:
            raise ConstraintTooComplex(
                f"a number at {pointer or 'the root'} is beyond 1e+-{_MAX_EXPONENT}: use smaller "
                "ones"
            )
    elif value is not None and not isinstance(value, bool):
        raise GrammarError(
            f"{value!r} at {pointer or 'the root'} is a {type(value).__name__}, not a JSON value"
        )


def _check_text(text: str, pointer: str) -> None:
    if not is_unicode(text):
        raise UnsupportedConstraint(
            pointer, ascii(text), "a lone surrogate is not text: write whole characters"
        )
