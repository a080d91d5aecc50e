"""The formats that can be asserted; those of strings as regular expressions.

Where a standard allows what readers in use do not take (leap seconds, the year 0000, quoted mailbox
names, labels of more than 35 characters), the format here is the part that everybody takes.
"""

from __future__ import annotations

from functools import cache

from phloem.grammar.dfa import Dfa
from phloem.grammar.errors import UnsupportedConstraint
from phloem.grammar.regex import parse

_LEAP_YEAR = r"([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_YEAR = r"([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_DATE = (
    rf"({_YEAR}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    rf"|02-(0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_TIME = (
    r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?"
    r"([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)
_CLOCK = r"T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S)"
_DURATION = (
    rf"P(([0-9]+Y([0-9]+M([0-9]+D)?)?|[0-9]+M([0-9]+D)?|[0-9]+D)({_CLOCK})?|{_CLOCK}|[0-9]+W)"
)
# 7 labels of 35 characters stay below the 253 of a name without counting them, and 5 below the 254
# of a mailbox.
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,33}[A-Za-z0-9])?"
_ATOMS = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LOCAL = rf"{_ATOMS}(\.{_ATOMS})*"
_OCTET = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_OCTET}(\.{_OCTET}){{3}}"
_GROUP = "[0-9A-Fa-f]{1,4}"
_LAST = rf"({_GROUP}:{_GROUP}|{_IPV4})"
_IPV6 = "|".join(
    [
        rf"({_GROUP}:){{6}}{_LAST}",
        rf"::({_GROUP}:){{5}}{_LAST}",
        *(
            rf"(({_GROUP}:){{0,{before}}}{_GROUP})?::({_GROUP}:){{{4 - before}}}{_LAST}"
            for before in range(5)
        ),
        rf"(({_GROUP}:){{0,5}}{_GROUP})?::{_GROUP}",
        rf"(({_GROUP}:){{0,6}}{_GROUP})?::",
    ]
)
_POINTER = r"(/([^/~]|~[01])*)*"

_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}[Tt]{_TIME}",
    "duration": _DURATION,
    "email": rf"{_LOCAL}@{_LABEL}(\.{_LABEL}){{0,4}}",
    "hostname": rf"{_LABEL}(\.{_LABEL}){{0,6}}",
    "uuid": "-".join(f"[0-9A-Fa-f]{{{digits}}}" for digits in (8, 4, 4, 4, 12)),
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(0|[1-9][0-9]*)(#|{_POINTER})",
}

_UNICODE = r"\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef\U00010000-\U000dffff"


def _uri(letters: str, *, relative: bool) -> str:
    """RFC 3986, or RFC 3987 with more `letters`: absolute, or maybe relative."""
    escaped = "%[0-9A-Fa-f]{2}"
    plain = rf"[A-Za-z0-9._~!$&'()*+,;={letters}-]|{escaped}"
    segment = f"({plain}|[:@])"
    authority = rf"(({plain}|:)*@)?(\[({_IPV6})\]|({plain})*)(:[0-9]*)?"
    rooted = f"//{authority}(/{segment}*)*|/({segment}+(/{segment}*)*)?"
    absolute = f"[A-Za-z][A-Za-z0-9+.-]*:({rooted}|({segment}+(/{segment}*)*)?)"
    path = absolute
    if relative:
        path = f"({absolute}|{rooted}|(({plain}|@)+(/{segment}*)*)?)"
    return rf"{path}(\?({segment}|[/?])*)?(#({segment}|[/?])*)?"


_FORMATS |= {
    "uri": _uri("", relative=False),
    "uri-reference": _uri("", relative=True),
    "iri": _uri(_UNICODE, relative=False),
    "iri-reference": _uri(_UNICODE, relative=True),
}


INTEGER_FORMATS = {
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**64 - 1),
}
"""Formats of numbers, as OpenAPI has them: integers from the first to the last."""


def check_format(name: str, pointer: str) -> None:
    """Refuse a format that would otherwise be passed over in silence.

    Raises:
        UnsupportedConstraint: naming those that are known.
    """
    if name not in _FORMATS and name not in INTEGER_FORMATS:
        known = ", ".join(sorted([*_FORMATS, *INTEGER_FORMATS]))
        raise UnsupportedConstraint(
            pointer,
            "format",
            f"{name!r} is not one of {known}: use 'pattern', or let formats be annotations",
        )


def format_language(name: str) -> Dfa | None:
    """The strings of a format; None where it says nothing about strings."""
    return _language(name) if name in _FORMATS else None


@cache
def _language(name: str) -> Dfa:
    language = parse(_FORMATS[name])
    if name != "email":
        return language
    local = parse(_LOCAL).intersect(Dfa.of_lengths(1, 64))
    return language.intersect(local.concat(parse("@.*")))
