"""Tool calls and reasoning in a model's text: one incremental parser for each notation.

A parser takes text in any pieces and tells what is in it; streamed and whole outputs go through the
same one. Nothing here knows of HTTP, tokens or engines.
"""

from phloem.server.parsers.base import (
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    OutputParser,
    Part,
    PlainText,
    Reasoning,
)

__all__ = [
    "CallArguments",
    "CallBegin",
    "CallEnd",
    "Content",
    "OutputParser",
    "Part",
    "PlainText",
    "Reasoning",
]
