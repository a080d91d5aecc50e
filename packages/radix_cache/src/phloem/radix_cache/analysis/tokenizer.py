"""A model's tokenizer and chat template, through transformers; imported only when one is asked for.

Needs the extra `analyze`. Nothing is fetched: the folder has to be there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from ..key import TokenId
from .traffic_log import plain_chat


class ModelTokenizer:
    """The tokenizer in a model's folder."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer: Any = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)

    def encode(self, text: str) -> list[TokenId]:
        """The ids of a prompt, with what the tokenizer puts in front of every sequence."""
        return list(self._tokenizer.encode(text))

    def encode_output(self, text: str) -> list[TokenId]:
        """The ids of generated text."""
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def encode_chat(self, messages: Sequence[Any], tools: Sequence[Any] | None) -> list[TokenId]:
        """The ids of a chat in the model's template, or in a neutral one if it has none.

        Raises `ValueError` for messages that the template refuses.
        """
        if self._tokenizer.chat_template is None:
            return self.encode(plain_chat(messages, tools))
        try:
            text = self._tokenizer.apply_chat_template(
                list(messages),
                tools=None if tools is None else list(tools),
                tokenize=False,
                add_generation_prompt=True,
            )
        except Exception as error:
            # A template is a program of the model's author: it may raise anything.
            raise ValueError(f"the chat template refuses these messages: {error}") from error
        return self.encode_output(text)

    def decode(self, ids: Sequence[TokenId]) -> str:
        """The text of ids, special tokens included."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))
