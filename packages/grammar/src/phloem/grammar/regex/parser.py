"""From the notation of a regular expression to its tree, in Python's or ECMAScript's dialect."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

from phloem.grammar.errors import ConstraintTooComplex
from phloem.grammar.regex.charset import (
    ANY,
    ASCII_WORD,
    CharSet,
    as_python_matches,
    complement,
    ignoring_case,
    union,
)
from phloem.grammar.regex.escapes import Dialect, escaped_char, named_class
from phloem.grammar.regex.scanner import Scanner
from phloem.grammar.regex.tree import Alternatives, Assertion, Chars, Node, Repeat, Sequence

_DEEPEST = 100
_LINE_ENDS: CharSet = ((10, 10), (13, 13), (0x2028, 0x2029))


@dataclass(frozen=True, slots=True)
class Flags:
    """Python's flags, as far as they change which texts match."""

    ignore_case: bool = False
    multiline: bool = False
    dot_all: bool = False
    ascii_only: bool = False
    verbose: bool = False

    def changed(self, letters: str, value: bool) -> Flags:
        """With some of them set or cleared."""
        return replace(self, **{_FLAGS[letter]: value for letter in letters if letter != "u"})


_FLAGS = {
    "i": "ignore_case",
    "m": "multiline",
    "s": "dot_all",
    "a": "ascii_only",
    "x": "verbose",
}


def read(pattern: str, dialect: Dialect) -> tuple[Node, CharSet]:
    """The tree of a pattern, and the characters of words, which `\\b` is about.

    Raises:
        GrammarError: if it is malformed.
        UnsupportedConstraint: for what no automaton can follow, with the offset as its pointer.
        ConstraintTooComplex: if groups are nested too deeply.
    """
    scanner = Scanner(pattern)
    parser = _Parser(scanner, dialect)
    flags = parser.leading_flags()
    node = parser.alternatives(flags, 0)
    if not scanner.done:
        raise scanner.error("')' closes nothing")
    return node, parser.word


_SIMPLE_CLASS = re.compile(r"\[\^?(?:[^]^\\-](?:-[^]^\\-])?){1,40}\]")
"""Brackets in which nothing means different things in different places."""


@lru_cache(maxsize=512)
def _simple_class(text: str) -> CharSet | None:
    """The set of such brackets; the same few are in most patterns. None: a range is malformed."""
    begin = 2 if text[1] == "^" else 1
    at, end = begin, len(text) - 1
    ranges = []
    while at < end:
        last = at + 2 if text[at + 1] == "-" else at
        ranges.append((ord(text[at]), ord(text[last])))
        at = last + 1
    if any(first > last for first, last in ranges):
        return None
    chars = union(ranges)
    return complement(chars) if begin == 2 else chars


class _Parser:
    def __init__(self, scanner: Scanner, dialect: Dialect) -> None:
        self._scanner = scanner
        self._dialect = dialect
        self.word: CharSet = ()

    def leading_flags(self) -> Flags:
        """Flags for the whole pattern, `(?i)` at its very beginning."""
        flags = Flags()
        scanner = self._scanner
        while self._dialect == "python" and scanner.peek(2) == "(?":
            before = scanner.at
            scanner.at += 2
            letters = scanner.digits("aimsxu", 9)
            if not letters or not scanner.take(")"):
                scanner.at = before
                break
            flags = flags.changed(letters, True)
        return flags

    def alternatives(self, flags: Flags, depth: int) -> Node:
        if depth > _DEEPEST:
            raise ConstraintTooComplex(
                f"groups of the regular expression are nested more than {_DEEPEST} deep: use fewer"
            )
        options = [self._sequence(flags, depth)]
        while self._scanner.take("|"):
            options.append(self._sequence(flags, depth))
        return options[0] if len(options) == 1 else Alternatives(tuple(options))

    def _sequence(self, flags: Flags, depth: int) -> Node:
        items: list[Node] = []
        scanner = self._scanner
        pattern, length = scanner.pattern, len(scanner.pattern)
        literal = not (flags.verbose or flags.ignore_case)
        while scanner.at < length:
            char = pattern[scanner.at]
            item: Node | None
            if literal and char not in _SPECIAL:
                scanner.at += 1
                item = Chars(((ord(char), ord(char)),))
            elif char in "|)":
                break
            elif flags.verbose and self._skip_blank():
                continue
            else:
                item = self._item(flags, depth)
            if item is not None:
                items.append(self._repeated(item, flags))
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def _skip_blank(self) -> bool:
        scanner = self._scanner
        if scanner.peek() in " \t\n\r\v\f":
            scanner.next()
            return True
        if scanner.take("#"):
            while not scanner.done and scanner.next() != "\n":
                pass
            return True
        return False

    def _item(self, flags: Flags, depth: int) -> Node | None:
        """What stands before a quantifier; None for a comment."""
        scanner = self._scanner
        at = scanner.at
        char = scanner.next()
        if char == "(":
            return self._group(flags, depth, at)
        if char == "[":
            return Chars(self._brackets(flags))
        if char == "\\":
            return self._escape(flags)
        if char == "^":
            return Assertion("start of line" if flags.multiline else "start")
        if char == "$":
            if flags.multiline:
                return Assertion("end of line")
            return Assertion("end" if self._dialect == "ecma" else "end or last newline")
        if char == ".":
            if flags.dot_all:
                return Chars(ANY)
            return Chars(complement(_LINE_ENDS if self._dialect == "ecma" else ((10, 10),)))
        if char in "*+?" or (char == "{" and self._counts_at(at) is not None):
            raise scanner.error(f"{char!r} has nothing to repeat", at)
        return Chars(self._folded([(ord(char), ord(char))], flags))

    def _folded(self, ranges: list[tuple[int, int]], flags: Flags) -> CharSet:
        chars = union(ranges)
        return ignoring_case(chars, flags.ascii_only) if flags.ignore_case else chars

    def _escape(self, flags: Flags) -> Node:
        scanner = self._scanner
        chars = named_class(scanner, self._dialect, flags.ascii_only)
        if chars is not None:
            return Chars(chars)
        letter = scanner.peek()
        if letter and letter in "bB":
            return self._boundary(flags)
        if self._dialect == "python" and letter in ("A", "Z"):
            scanner.next()
            return Assertion("start" if letter == "A" else "end")
        code = escaped_char(scanner, self._dialect, in_class=False)
        return Chars(self._folded([(code, code)], flags))

    def _boundary(self, flags: Flags) -> Assertion:
        scanner = self._scanner
        at = scanner.at - 1
        letter = scanner.next()
        word = ASCII_WORD
        if self._dialect == "python" and not flags.ascii_only:
            word = as_python_matches(r"\w")
        if self.word not in ((), word):
            raise scanner.unsupported(
                f"\\{letter}", "it must be ASCII, or not, everywhere: set the flag for all", at
            )
        self.word = word
        if letter == "b":
            return Assertion("boundary")
        # Python held until 3.13 that there is none of either kind in the empty text.
        return Assertion("no boundary" if self._dialect == "ecma" else "no boundary, no empty text")

    # Groups.

    def _group(self, flags: Flags, depth: int, at: int) -> Node | None:
        scanner = self._scanner
        if scanner.take("?"):
            inner = self._extension(flags, at)
            if inner is None:
                return None
            flags = inner
        node = self.alternatives(flags, depth + 1)
        if not scanner.take(")"):
            raise scanner.error("')' is missing", at)
        # A group by itself: `(?:a*)*` is legal where `a**` is not.
        return Alternatives((node,))

    def _extension(self, flags: Flags, at: int) -> Flags | None:
        """The flags within a group that begins with `(?`; None if it is a comment."""
        scanner = self._scanner
        for sign, construct in _UNSUPPORTED_GROUPS.items():
            if scanner.peek(len(sign)) == sign:
                raise scanner.unsupported(construct, "an automaton cannot follow it", at)
        if scanner.take(":"):
            return flags
        if self._dialect == "ecma":
            if scanner.take("<"):
                self._name(">", at)
                return flags
            raise scanner.error("'(?' is followed by nothing known", at)
        if scanner.take("#"):
            scanner.until(")")
            return None
        if scanner.take("P<"):
            self._name(">", at)
            return flags
        return self._local_flags(flags, at)

    def _name(self, end: str, at: int) -> None:
        if not self._scanner.until(end).isidentifier():
            raise self._scanner.error("the name of a group must be an identifier", at)

    def _local_flags(self, flags: Flags, at: int) -> Flags:
        scanner = self._scanner
        added = scanner.digits("aimsxu", 9)
        removed = scanner.digits("imsx", 9) if scanner.take("-") else ""
        if not scanner.take(":") or not (added or removed):
            raise scanner.error("'(?' is followed by nothing known", at)
        if "u" in added:
            flags = flags.changed("a", False)
        return flags.changed(added, True).changed(removed, False)

    # Quantifiers.

    def _repeated(self, item: Node, flags: Flags) -> Node:
        scanner = self._scanner
        if flags.verbose:
            while not scanner.done and self._skip_blank():
                pass
        at = scanner.at
        if scanner.pattern[at : at + 1] not in _QUANTIFIERS:
            return item
        counts = self._counts()
        if counts is None:
            return item
        fewest, most = counts
        if isinstance(item, Assertion):
            raise scanner.error("an anchor cannot be repeated", at)
        if most is not None and most < fewest:
            raise scanner.error(f"{fewest} is more than {most}", at)
        if not scanner.take("?") and scanner.peek() == "+" and self._dialect == "python":
            raise scanner.unsupported("possessive quantifier", "an automaton cannot follow it", at)
        if scanner.peek() in _QUANTIFIERS and self._counts_at(scanner.at) is not None:
            raise scanner.error("a repetition cannot be repeated: put it into a group")
        return Repeat(item, fewest, most)

    def _counts_at(self, at: int) -> tuple[int, int | None] | None:
        scanner = self._scanner
        before, scanner.at = scanner.at, at
        counts = self._counts()
        scanner.at = before
        return counts

    def _counts(self) -> tuple[int, int | None] | None:
        """The numbers of a quantifier that comes next, past it; None if none does."""
        scanner = self._scanner
        counts = _COUNTS.get(scanner.peek())
        if counts is not None:
            scanner.at += 1
            return counts
        before = scanner.at
        if scanner.take("{"):
            fewest = scanner.digits("0123456789", _LONGEST_COUNT)
            comma = scanner.take(",")
            most = scanner.digits("0123456789", _LONGEST_COUNT) if comma else fewest
            # `{,n}` is a quantifier in Python, and text in ECMAScript; `{}` is text in both.
            told = bool(fewest) or (comma and self._dialect == "python")
            if told and scanner.take("}"):
                return int(fewest or 0), int(most) if most else None
            scanner.at = before
        return None

    # Brackets.

    def _brackets(self, flags: Flags) -> CharSet:
        scanner = self._scanner
        at = scanner.at - 1
        simple = _SIMPLE_CLASS.match(scanner.pattern, at) if not flags.ignore_case else None
        known = _simple_class(simple[0]) if simple is not None else None
        if simple is not None and known is not None:
            scanner.at = simple.end()
            return known
        negated = scanner.take("^")
        ranges: list[tuple[int, int]] = []
        classes: list[tuple[int, int]] = []
        begin = scanner.at
        while True:
            if scanner.done:
                raise scanner.error("']' is missing", at)
            if scanner.peek() == "]" and (self._dialect == "ecma" or scanner.at > begin):
                scanner.next()
                break
            first = self._member(flags)
            if isinstance(first, tuple):
                if self._dialect == "python" and self._range_follows():
                    raise scanner.error("a class cannot begin a range")
                classes += first
                continue
            last = first
            if self._range_follows():
                place = scanner.at
                scanner.next()
                end = self._member(flags)
                if isinstance(end, tuple) or end < first:
                    raise scanner.error("the range ends before it begins, or in a class", place)
                last = end
            ranges.append((first, last))
        chars = union([*self._folded(ranges, flags), *classes])
        return complement(chars) if negated else chars

    def _range_follows(self) -> bool:
        return self._scanner.peek() == "-" and self._scanner.peek(2) not in ("-", "-]")

    def _member(self, flags: Flags) -> int | CharSet:
        scanner = self._scanner
        char = scanner.next()
        if char != "\\":
            return ord(char)
        chars = named_class(scanner, self._dialect, flags.ascii_only)
        if chars is not None:
            return chars
        return escaped_char(scanner, self._dialect, in_class=True)


_LONGEST_COUNT = 4000
_COUNTS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_QUANTIFIERS = ("*", "+", "?", "{")
_SPECIAL = frozenset("()[\\^$.|*+?{")
"""What may mean something else than itself outside of brackets."""
_UNSUPPORTED_GROUPS = {
    "=": "lookahead",
    "!": "lookahead",
    "<=": "lookbehind",
    "<!": "lookbehind",
    ">": "atomic group",
    "(": "conditional group",
    "P=": "backreference",
}
