"""The form of one stored block: a header that tells whether a file is what it should be, and data.

It knows bytes only, no folders.
"""

from __future__ import annotations

import struct
import zlib

from phloem.mem_pool.tier_ports import Bytes

_MAGIC = b"PHLMKV01"
_HEADER = struct.Struct("<8s32sQI")
"""Magic, name, bytes of data, CRC-32 of name and data."""
HEADER_BYTES = _HEADER.size


def header(name: bytes, data: Bytes) -> bytes:
    """What stands before `data` in the file of the block `name`."""
    return _HEADER.pack(_MAGIC, name, len(data), _checksum(name, data))


def content(name: bytes, file: bytes) -> memoryview | None:
    """The data in a file; None if it is cut short, changed, or of another block or program."""
    if len(file) < HEADER_BYTES:
        return None
    magic, own_name, length, checksum = _HEADER.unpack_from(file)
    data = memoryview(file)[HEADER_BYTES:]
    sound = magic == _MAGIC and own_name == name and length == len(data)
    return data if sound and checksum == _checksum(name, data) else None


def _checksum(name: bytes, data: Bytes) -> int:
    return zlib.crc32(data, zlib.crc32(name))
