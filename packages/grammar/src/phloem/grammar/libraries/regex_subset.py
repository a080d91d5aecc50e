"""The regular expressions that mean the same to Python, ECMAScript and the libraries' parsers.

Dialects disagree on classes like `\\w`, on anchors inside of a pattern, on what `.` leaves out and
on many rarer constructs, and some parsers take what they do not know for a literal, or ignore it.
So this is a list of what is known to agree: literals, escaped punctuation, sets of characters and
ranges, groups, alternatives and repetition. Everything else is refused by its name and offset.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from phloem.grammar.errors import GrammarError, UnsupportedConstraint

_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ ")
_TOKEN = re.compile(
    r"""
    (?P<escape>\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.|$))
  | (?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])
  | (?P<group>\((?:\?.?)?)
  | (?P<repeat>(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})[?+]?)
  | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_LIST_INSTEAD = "engines disagree on what it matches; list the characters in brackets"


@dataclass(frozen=True)
class Reading:
    """How a pattern is to be read, and what takes the place of what can be translated."""

    searches: bool = False
    """A JSON schema's `pattern`, which may match anywhere: anchors mean something. Otherwise
    the whole text has to match, and anchors around a pattern are dropped."""
    dot: str | None = None
    """What takes the place of `.`; None refuses it."""
    classes: tuple[tuple[str, str], ...] = ()
    """Escapes like `\\d`, and what takes their place outside of sets and within (sans brackets)."""


def translate(pattern: str, reading: Reading, place: tuple[str, str] | None = None) -> str:
    """A pattern in the common subset, with what `reading` translates.

    Args:
        place: the pointer and keyword that an error names; by default, the offset and the
            construct.

    Raises:
        GrammarError: if the pattern is not a regular expression.
        UnsupportedConstraint: if it is outside of the subset.
    """
    body, shift = (pattern, 0) if reading.searches else _without_anchors(pattern)
    translator = _Translator(reading, shift, place)
    translated = "".join(translator.token(match) for match in _TOKEN.finditer(body))
    # Last, since Python warns of constructs that the scan refuses.
    _check_syntax(pattern)
    return translated


def _check_syntax(pattern: str) -> None:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise GrammarError(
            f"{pattern[:100]!r} is not a regular expression ({error}): correct it"
        ) from error


def _without_anchors(pattern: str) -> tuple[str, int]:
    """A pattern without `^` before and `$` after the whole of it, and the characters dropped."""
    anchored = pattern.startswith("^")
    body = pattern[1:] if anchored else pattern
    if body.endswith("$") and (len(body) - len(body[:-1].rstrip("\\"))) % 2:
        body = body[:-1]
    if body == pattern:
        return pattern, 0
    # `^a|b$` anchors each alternative by half: that is left in place, and refused there.
    return (pattern, 0) if _has_open_alternatives(body) else (body, int(anchored))


def _has_open_alternatives(body: str) -> bool:
    depth = 0
    for match in _TOKEN.finditer(body):
        if match.lastgroup == "group":
            depth += 1
        elif match.lastgroup == "other":
            depth -= match.group() == ")"
            if match.group() == "|" and depth == 0:
                return True
    return False


class _Translator:
    def __init__(self, reading: Reading, shift: int, place: tuple[str, str] | None) -> None:
        self._reading = reading
        self._shift = shift
        self._place = place

    def token(self, match: re.Match[str]) -> str:
        text, start = match.group(), match.start()
        if match.lastgroup == "escape":
            return self._escape(text, start, in_set=False)
        if match.lastgroup == "set":
            return self._set(text, start)
        if match.lastgroup == "group" and text not in ("(", "(?:"):
            raise self._refusal(start, text, "write a plain group, or use the fsm backend")
        if match.lastgroup == "repeat" and text[1:].endswith("+"):
            raise self._refusal(start, text, "possessive repetition; drop the second +")
        if match.lastgroup == "other":
            return self._other(text, start)
        return text

    def _other(self, text: str, start: int) -> str:
        if text == "." and self._reading.dot is not None:
            return self._reading.dot
        if text == ".":
            raise self._refusal(start, text, _LIST_INSTEAD)
        if text in "^$" and not self._reading.searches:
            raise self._refusal(start, text, "anchors may only stand around the whole pattern")
        if text in "{}[]":
            raise self._refusal(start, text, "escape it with a backslash")
        return text

    def _escape(self, text: str, start: int, in_set: bool) -> str:
        if text[1:] in _PUNCTUATION or text[1:] in ("n", "r", "t", "f"):
            return text
        if len(text) > 2 and chr(int(text[2:], 16)).isprintable():
            # Written out, since parsers disagree on how many digits belong to an escape.
            character = chr(int(text[2:], 16))
            return "\\" + character if character in _PUNCTUATION else character
        for name, instead in self._reading.classes:
            if text == name:
                return instead if in_set else f"[{instead}]"
        raise self._refusal(start, text, _LIST_INSTEAD)

    def _set(self, text: str, start: int) -> str:
        first = 2 if text.startswith("[^") else 1
        inner = text[first:-1]
        if inner.startswith("]"):
            raise self._refusal(start, "]", "escape it with a backslash")
        parts, after = [text[:first]], 0
        for match in re.finditer(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", inner, re.DOTALL):
            parts.append(self._plain(inner[after : match.start()], start))
            parts.append(self._escape(match.group(), start + first + match.start(), in_set=True))
            after = match.end()
        return "".join([*parts, self._plain(inner[after:], start), "]"])

    def _plain(self, text: str, start: int) -> str:
        for construct in ("[", "&&", "--", "~~", "||"):
            if construct in text:
                raise self._refusal(start, construct, "escape it with a backslash")
        return text

    def _refusal(self, start: int, construct: str, reason: str) -> UnsupportedConstraint:
        offset = self._shift + start
        if self._place is None:
            return UnsupportedConstraint(str(offset), construct, reason)
        return UnsupportedConstraint(*self._place, f"{construct!r} at {offset} of it: {reason}")
