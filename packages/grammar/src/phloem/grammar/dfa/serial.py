"""The compact form of a table: sizes, classes, acceptance, transitions, deflated."""

from __future__ import annotations

import struct
import zlib

import numpy as np

from phloem.grammar.dfa.table import Table
from phloem.grammar.errors import GrammarError

_HEADER = struct.Struct("<II")
_MOST_BYTES = 1 << 30


def packed(table: Table) -> bytes:
    """The form that `unpacked` reads."""
    states, classes = table.next.shape
    parts = (
        _HEADER.pack(states, classes),
        table.classes.tobytes(),
        np.packbits(table.accepting).tobytes(),
        table.next.astype("<i4").tobytes(),
    )
    return zlib.compress(b"".join(parts), 1)


def unpacked(data: bytes) -> Table:
    """A table from its packed form.

    Raises:
        GrammarError: if the bytes are not a packed table.
    """
    try:
        inflater = zlib.decompressobj()
        raw = inflater.decompress(data, _MOST_BYTES)
        if not inflater.eof:
            raise ValueError("it is cut short")
        states, classes = _HEADER.unpack_from(raw)
        ends = np.cumsum([_HEADER.size, 256, (states + 7) // 8, states * classes * 4])
        if len(raw) != ends[-1] or not 1 <= classes <= 256:
            raise ValueError(f"{len(raw)} bytes for {states} states of {classes} classes")
        by_byte = np.frombuffer(raw, np.uint8, 256, ends[0])
        bits = np.frombuffer(raw, np.uint8, (states + 7) // 8, ends[1])
        following = np.frombuffer(raw, "<i4", states * classes, ends[2]).reshape(states, classes)
        if by_byte.max() >= classes or (states and following.min() < -1):
            raise ValueError("a class or a state is out of range")
        if states and following.max() >= states:
            raise ValueError("a state is out of range")
    except (ValueError, zlib.error, struct.error) as error:
        raise GrammarError(
            f"the compiled automaton is damaged ({error}): compile the constraint again"
        ) from error
    accepting = np.unpackbits(bits, count=states).astype(bool)
    return Table(following.astype(np.int32), accepting, by_byte.copy())
