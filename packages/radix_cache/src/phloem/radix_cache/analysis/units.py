"""What a prompt is counted in: token ids, or the bytes of a text where no tokenizer is at hand.

Owns packing prompts into bytes, cutting them into pages, and turning them back into something that
a person can read. Everything after it works on packed bytes and never looks at single tokens.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ..key import TOKEN_BYTES, Key, Namespace, TokenId

PAGE_WORDS: Final = 2
"""A digested page is a pair of int32 words: one page of a tree with this page size."""


@dataclass(frozen=True, slots=True)
class Unit:
    """How prompts are packed and shown.

    `name` is the plural noun, `width` the packed bytes of one unit, `per_token` how many units make
    a token (1, or an estimate), `decode` gives the text of ids, where somebody knows it.
    """

    name: str
    width: int
    per_token: float = 1.0
    decode: Callable[[Sequence[TokenId]], str] | None = None

    def pack(self, prompt: Sequence[TokenId] | str | bytes) -> bytes:
        """The packed bytes of a prompt.

        Raises `TypeError` for a text where token ids are counted, `ValueError` for an id that does
        not fit.
        """
        if isinstance(prompt, str):
            if self.width != 1:
                raise TypeError(
                    f"a text of {len(prompt)} characters was added where {self.name} are counted: "
                    "tokenize it, or count BYTES"
                )
            return prompt.encode("utf-8", "surrogatepass")
        return bytes(prompt) if self.width == 1 else Key(prompt).data

    def ids(self, data: bytes) -> Sequence[TokenId]:
        """The ids (or byte values) of packed bytes."""
        return data if self.width == 1 else array("i", data)

    def pieces(self, data: bytes) -> list[str] | None:
        """The text of every single unit, so that places in text are places in units.

        None if nobody knows the text. Bytes are shown as Latin-1, one character each.
        """
        if self.width == 1:
            return list(data.decode("latin-1"))
        decode = self.decode
        return None if decode is None else [decode([token]) for token in array("i", data)]

    def show(self, data: bytes) -> str:
        """A readable form on one line: the text if it is known, else the ids."""
        if self.width == 1:
            text = data.decode("utf-8", "replace").strip("\ufffd")
        elif self.decode is not None:
            text = self.decode(array("i", data).tolist())
        else:
            return " ".join(map(str, array("i", data)))
        return text.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")


TOKENS: Final = Unit("tokens", TOKEN_BYTES)
BYTES: Final = Unit("bytes", 1, per_token=4.0)
"""UTF-8 bytes of texts; English prose has about four to a token."""


def digest(data: bytes, page_bytes: int, namespace: Namespace) -> Key:
    """The whole pages of `data`, each as `PAGE_WORDS` words of a 64-bit hash.

    A tree over digests has the shape of the tree over the tokens (but for one chance in 2^64 for
    each pair of siblings) and takes `page_bytes / 8` times less memory.
    """
    stop = len(data) - len(data) % page_bytes
    hashes = array("q", [hash(data[at : at + page_bytes]) for at in range(0, stop, page_bytes)])
    return Key(memoryview(hashes.tobytes()).cast("i"), namespace)
