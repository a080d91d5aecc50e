r"""How the characters of a string are written in JSON: plainly, by short escapes, by \uXXXX."""

from __future__ import annotations

SHORT_ESCAPES = {
    0x22: 0x22,
    0x5C: 0x5C,
    0x2F: 0x2F,
    0x62: 0x08,
    0x66: 0x0C,
    0x6E: 0x0A,
    0x72: 0x0D,
    0x74: 0x09,
}
"""The byte behind a backslash, and the character that both mean."""

NEEDED_ESCAPES = {meant: byte for byte, meant in SHORT_ESCAPES.items() if meant != 0x2F}
"""The characters that have a short escape and cannot stand for themselves."""

QUOTE, BACKSLASH = 0x22, 0x5C
PLAIN = bytes(byte for byte in range(0x20, 256) if byte not in (QUOTE, BACKSLASH))
"""The bytes of UTF-8 that stand for themselves."""

HEX_DIGITS = b"0123456789ABCDEFabcdef"
UNSPELLED = [(0x00, 0x07), (0x0B, 0x0B), (0x0E, 0x1F), (0x80, 0x10FFFF)]
r"""Characters, as ranges of code points, for which \uXXXX is the only escape of a tidy text."""

_FORCED = bytes(byte for byte in PLAIN if byte < 0xC0)


def forced_part(content: bytes) -> bytes:
    """The beginning of content, or all, that a tidy text can write in one way only."""
    others = content.translate(None, _FORCED)
    return content[: content.index(others[0])] if others else content


_SPELLED = [bytes([byte]) for byte in range(256)]
for _byte in range(0x20):
    _SPELLED[_byte] = b"\\u%04x" % _byte
for _meant, _byte in NEEDED_ESCAPES.items():
    _SPELLED[_meant] = bytes([BACKSLASH, _byte])


def spelled(content: bytes) -> bytes:
    """Content, or a part of it, with the escapes that it needs and no others."""
    return b"".join([_SPELLED[byte] for byte in content])


def unicode_escape(point: int) -> bytes:
    r"""The `\uXXXX` of a code point, two of them for one beyond U+FFFF; in lower case."""
    if point < 0x10000:
        return b"\\u%04x" % point
    point -= 0x10000
    return b"\\u%04x\\u%04x" % (0xD800 + (point >> 10), 0xDC00 + (point & 0x3FF))


def code_points(pending: bytes) -> list[tuple[int, int]]:
    r"""The code points that an unfinished `\uXXXX...` can still become, as ascending ranges.

    `pending` begins with `\u` and has up to 11 bytes of a surrogate pair; hexadecimal digits and
    their places are taken to be right.
    """
    low, high = _units(pending[2:6])
    if len(pending) <= 6:
        ranges = [(low, min(high, 0xD7FF)), (max(low, 0xE000), high)]
        first, last = max(low, 0xD800), min(high, 0xDBFF)
        if first <= last:
            ranges.append((_pair(first, 0xDC00), _pair(last, 0xDFFF)))
    else:
        second, third = _units(pending[8:])
        ranges = [(_pair(low, max(second, 0xDC00)), _pair(low, min(third, 0xDFFF)))]
    return [span for span in ranges if span[0] <= span[1]]


def _units(digits: bytes) -> tuple[int, int]:
    """The first and the last 16-bit number that begins with some hexadecimal digits."""
    free = 16 - 4 * len(digits)
    first = int(digits, 16) << free if digits else 0
    return first, first | ((1 << free) - 1)


def _pair(high: int, low: int) -> int:
    return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00)
