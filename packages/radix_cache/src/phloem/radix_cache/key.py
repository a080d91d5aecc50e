"""Keys of the prefix cache: token ids packed as int32 bytes, and the namespace they belong to.

Owns packing, slicing and comparing. Bytes are compared by `memcmp` (`startswith`, slices), never
token by token in Python. Knows nothing of pages beyond the unit that a comparison is rounded to.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import index
from struct import unpack
from typing import Final

TokenId = int
Namespace = tuple[object, ...]

TOKEN_BYTES: Final = 4
_INT32: Final = range(-(2**31), 2**31)
_NAMESPACE_TYPES: Final = (str, int, bytes, type(None))
# Formats of buffers, as in the module `struct`.
_BYTE_ORDERS: Final = ("", "@", "=", "<", ">", "!")
_INT_FORMATS: Final = tuple("?bBhHiIlLqQnN")
_FLOAT_FORMATS: Final = {"e": "float16", "f": "float32", "d": "float64"}


class Key:
    """Token ids in a namespace; immutable, hashable, cheap to cut.

    `tokens` is any sequence of ints that fit int32. Buffers of 4-byte signed ints (numpy int32
    arrays, `array('i')`) are copied as one block; anything else is packed once, here, so keep the
    Key and cut it. A Key is cut by slices, in one piece; `tokens()` gives the ids.

    `namespace` is a tuple of str, int, bytes, None, or tuples of these. Two keys share cached
    values only if their namespaces are equal. Other types are refused because equality across types
    (`True == 1 == 1.0`) would let two namespaces collide.

    Raises `ValueError` for a token outside int32, `TypeError` for a token that is no int or a
    namespace that is no such tuple.
    """

    __slots__ = ("data", "namespace")

    data: bytes
    namespace: Namespace

    def __init__(self, tokens: Sequence[TokenId], namespace: Namespace = ()) -> None:
        if namespace != ():
            check_namespace(namespace)
        self.data = _pack(tokens)
        self.namespace = namespace

    def head(self, n: int) -> Key:
        """The key of the first `n` tokens (all of them if there are fewer)."""
        if n < 0:
            raise ValueError(f"head({n}): n counts tokens from the front, give 0 or more")
        return self._cut(0, n)

    def tokens(self) -> array[int]:
        """The token ids, a fresh `array('i')`."""
        return array("i", self.data)

    def _cut(self, start: int, stop: int) -> Key:
        part = object.__new__(Key)
        part.data = self.data[start * TOKEN_BYTES : stop * TOKEN_BYTES]
        part.namespace = self.namespace
        return part

    def __getitem__(self, cut: slice) -> Key:
        if not isinstance(cut, slice):  # Also what iteration and `in` come to.
            raise TypeError(
                f"a key is cut by slices such as key[:3], not by {cut!r}: key.tokens() gives its "
                "ids, to index, to iterate over and to search"
            )
        start, stop, step = cut.indices(len(self))
        if step != 1:
            raise ValueError(f"a key is cut in one piece, not with step {step}: use step 1")
        return self._cut(start, max(start, stop))

    def __len__(self) -> int:
        return len(self.data) // TOKEN_BYTES

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Key):
            return NotImplemented
        return self.data == other.data and self.namespace == other.namespace

    def __hash__(self) -> int:
        return hash((self.data, self.namespace))

    def __repr__(self) -> str:
        shown = self.head(8).tokens().tolist()
        more = ", ..." if len(self) > len(shown) else ""
        return f"Key({len(self)} tokens: {str(shown)[1:-1]}{more}; namespace={self.namespace!r})"


def check_namespace(namespace: Namespace) -> None:
    """Raises `TypeError` for what is no namespace; see `Key`."""
    if type(namespace) is not tuple:
        raise TypeError(f"namespace {namespace!r} is no tuple: write ({namespace!r},)")
    for part in namespace:
        if type(part) is tuple:
            check_namespace(part)
        elif type(part) not in _NAMESPACE_TYPES:
            raise TypeError(
                f"namespace part {part!r} is a {type(part).__name__}: parts are str, int, bytes, "
                "None or tuples of these, so that parts of different types can never be equal"
            )


def common_prefix(edge: bytes, data: bytes, at: int, unit: int) -> int:
    """How many bytes `edge` shares with `data[at:]`, rounded down to a multiple of `unit` bytes.

    Gallops in doubling windows to the first window that differs, then halves that one: each byte is
    compared a small constant number of times, at the speed of `memcmp`.
    """
    limit = min(len(edge), len(data) - at)
    limit -= limit % unit
    low, step = 0, unit
    while True:
        if low == limit:
            return limit
        high = min(low + step, limit)
        if not data.startswith(edge[low:high], at + low):
            break
        low, step = high, step * 2
    while high - low > unit:
        middle = low + (high - low) // (2 * unit) * unit
        if data.startswith(edge[low:middle], at + low):
            low = middle
        else:
            high = middle
    return low


def _pack(tokens: Sequence[TokenId]) -> bytes:
    """Native-endian int32 bytes of `tokens`."""
    items = tokens
    try:
        view = memoryview(tokens)  # type: ignore[arg-type]  # not every sequence is a buffer
    except TypeError:
        if not isinstance(tokens, (list, tuple)):
            items = list(tokens)  # An iterator could not be read again, to name what does not fit.
    else:
        if view.ndim != 1:
            raise ValueError(f"tokens have {view.ndim} dimensions: pass one sequence of ints")
        if view.itemsize == TOKEN_BYTES and view.format in ("i", "l"):
            return view.tobytes()
        # array() would take the raw bytes of a buffer such as b"ab" for machine ints: hand it ints.
        items = _ints(view)
    try:
        return array("i", items).tobytes()
    except OverflowError:
        # Compared as plain ints: `in` would walk through the range for one of numpy's.
        at, token = next((i, t) for i, t in enumerate(map(index, items)) if t not in _INT32)
        raise ValueError(
            f"token {token} at position {at} does not fit int32, in which token ids are stored"
        ) from None


def _ints(view: memoryview) -> Sequence[int]:
    """The ints of a buffer, of any size and byte order."""
    order, kind = view.format[:-1], view.format[-1:]
    if order not in _BYTE_ORDERS or kind not in _INT_FORMATS:
        name = _FLOAT_FORMATS.get(view.format.lstrip("@=<>!"), f"format {view.format!r}")
        raise TypeError(f"tokens are a buffer of {name}, not of ints: convert them to int32 first")
    return unpack(f"{order}{len(view)}{kind}", view.tobytes())
