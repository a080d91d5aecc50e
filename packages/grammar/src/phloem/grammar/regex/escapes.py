"""What a backslash means, outside and inside of brackets, in each dialect."""

from __future__ import annotations

import unicodedata
from typing import Literal, TypeAlias

from phloem.grammar.regex.charset import (
    ASCII_DIGITS,
    ASCII_SPACE,
    ASCII_WORD,
    CharSet,
    as_python_matches,
    complement,
    of_property,
    union,
)
from phloem.grammar.regex.scanner import Scanner

Dialect: TypeAlias = Literal["python", "ecma"]

_HEX = "0123456789abcdefABCDEF"
_OCTAL = "01234567"
_CONTROLS = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11}
_ECMA_SPACE = union(
    (
        *ASCII_SPACE,
        *((code, code) for code in (0xA0, 0x1680, 0x202F, 0x205F, 0x3000, 0xFEFF)),
        (0x2000, 0x200A),
        (0x2028, 0x2029),
    )
)


def named_class(scanner: Scanner, dialect: Dialect, ascii_only: bool) -> CharSet | None:
    """The set of a class such as `\\d` whose letter comes next, past it; None if it is none.

    Raises:
        GrammarError, UnsupportedConstraint: for an unknown `\\p{...}`.
    """
    letter = scanner.peek()
    if letter and letter in "dDwWsS":
        scanner.next()
        chars = _shorthand(letter.lower(), dialect, ascii_only)
    elif letter and letter in "pP" and dialect == "ecma":
        at = scanner.at - 1
        scanner.next()
        if not scanner.take("{"):
            raise scanner.error("'{' and the name of a property must follow", at)
        name = scanner.until("}")
        found = of_property(name)
        if found is None:
            raise scanner.unsupported(
                f"\\p{{{name}}}", "only general categories are known: list the characters", at
            )
        chars = found
    else:
        return None
    return complement(chars) if letter.isupper() else chars


def _shorthand(letter: str, dialect: Dialect, ascii_only: bool) -> CharSet:
    if dialect == "ecma":
        return {"d": ASCII_DIGITS, "w": ASCII_WORD, "s": _ECMA_SPACE}[letter]
    if ascii_only:
        return {"d": ASCII_DIGITS, "w": ASCII_WORD, "s": ASCII_SPACE}[letter]
    return as_python_matches(f"\\{letter}")


def escaped_char(scanner: Scanner, dialect: Dialect, in_class: bool) -> int:
    """The code point of an escape of one character, the backslash being past.

    Raises:
        GrammarError: if it is no such escape.
        UnsupportedConstraint: for a backreference.
    """
    at = scanner.at - 1
    char = scanner.next()
    if char in _CONTROLS:
        return _CONTROLS[char]
    if char == "b" and in_class:
        return 8
    if char == "x":
        return _hex(scanner, 2, at)
    if char == "u":
        return _unicode(scanner, dialect, at)
    if char in "0123456789":
        return _octal(scanner, char, dialect, in_class, at)
    if dialect == "python":
        return _python_only(scanner, char, at)
    if char == "c" and scanner.peek().isascii() and scanner.peek().isalpha():
        return ord(scanner.next()) % 32
    if char == "k":
        raise scanner.unsupported("\\k", "an automaton cannot follow backreferences", at)
    if char.isascii() and (char.isalnum() or char == "_"):
        raise scanner.error(f"\\{char} means nothing", at)
    return ord(char)


def _python_only(scanner: Scanner, char: str, at: int) -> int:
    if char == "a":
        return 7
    if char == "U":
        code = _hex(scanner, 8, at)
        if code > 0x10FFFF:
            raise scanner.error(f"{code:#x} is beyond the last character", at)
        return code
    if char == "N":
        name = scanner.until("}") if scanner.take("{") else ""
        try:
            return ord(unicodedata.lookup(name))
        except (KeyError, TypeError):
            raise scanner.error(f"there is no character named {name!r}", at) from None
    if char.isascii() and char.isalpha():
        raise scanner.error(f"\\{char} means nothing", at)
    return ord(char)


def _hex(scanner: Scanner, length: int, at: int) -> int:
    digits = scanner.digits(_HEX, length)
    if len(digits) != length:
        raise scanner.error(f"{length} hexadecimal digits must follow", at)
    return int(digits, 16)


def _unicode(scanner: Scanner, dialect: Dialect, at: int) -> int:
    if dialect == "ecma" and scanner.take("{"):
        try:
            code = int(scanner.until("}"), 16)
        except ValueError:
            raise scanner.error("hexadecimal digits must stand in \\u{}", at) from None
        if not 0 <= code <= 0x10FFFF:
            raise scanner.error(f"{code:#x} is beyond the last character", at)
        return code
    code = _hex(scanner, 4, at)
    if dialect == "ecma" and 0xD800 <= code < 0xDC00 and scanner.peek(2) == "\\u":
        before = scanner.at
        scanner.at += 2
        low = scanner.digits(_HEX, 4)
        if len(low) == 4 and 0xDC00 <= int(low, 16) < 0xE000:
            return 0x10000 + ((code - 0xD800) << 10) + int(low, 16) - 0xDC00
        scanner.at = before
    return code


def _octal(scanner: Scanner, first: str, dialect: Dialect, in_class: bool, at: int) -> int:
    if dialect == "ecma":
        if first == "0" and not scanner.peek().isdigit():
            return 0
    elif first == "0" or (in_class and first in _OCTAL):
        code = int(first + scanner.digits(_OCTAL, 2), 8)
        if code > 0o377:
            raise scanner.error(f"\\{code:o} is beyond \\377", at)
        return code
    else:
        octal = first + scanner.peek(2)
        if first in _OCTAL and len(octal) == 3 and all(digit in _OCTAL for digit in octal):
            scanner.at += 2
            if int(octal, 8) > 0o377:
                raise scanner.error(f"\\{octal} is beyond \\377", at)
            return int(octal, 8)
    if in_class:
        raise scanner.error(f"\\{first} means nothing in brackets", at)
    raise scanner.unsupported(f"\\{first}", "an automaton cannot follow backreferences", at)
