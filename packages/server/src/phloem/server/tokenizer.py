"""Text and chats to token ids and back, from the files of a model folder.

Owns the reading of `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja`, through the
`tokenizers` library alone: `transformers` takes seconds to import and is not needed. The text of a
growing output is the detokenizer's.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from phloem.server.chat_template import ChatTemplate, Message
from phloem.server.token_bytes import TokenBound, TokenId, token_bound_of, token_bytes_of

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


class Tokenizer:
    """A model's tokenizer; safe to share between threads.

    `encode` and the chat methods give what `transformers.AutoTokenizer` gives for the same folder.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        special_tokens: Mapping[str, str] | None = None,
        chat_template: str | None = None,
    ) -> None:
        """Wrap `backend`.

        `special_tokens` maps names (`eos_token`) to their text. Padding and truncation that the
        backend may be set to are switched off: a prompt is never cut silently.
        """
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._special_tokens = dict(special_tokens or {})
        self._chat_template = (
            None if chat_template is None else ChatTemplate(chat_template, self._special_tokens)
        )
        self.special_ids = _special_ids(backend)
        self.token_bytes = token_bytes_of(backend)

    @classmethod
    def from_folder(cls, folder: str | Path) -> Tokenizer:
        """Load the tokenizer of a model folder.

        Raises:
            ValueError: when there is none, or it cannot be read.
        """
        folder = Path(folder)
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise ValueError(
                f"The folder {folder} has no tokenizer.json: save one there with transformers, "
                "AutoTokenizer.from_pretrained(...).save_pretrained(...)"
            )
        try:
            backend = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exception
            raise ValueError(f"{file} is no tokenizer ({error}): get the file again") from error
        config = _read_config(folder / "tokenizer_config.json")
        special_tokens = _named_tokens(config)
        _add_missing_tokens(backend, config, special_tokens.values())
        return cls(
            backend,
            special_tokens=special_tokens,
            chat_template=_find_template(folder / "chat_template.jinja", config),
        )

    @property
    def backend(self) -> tokenizers.Tokenizer:
        """What it wraps, for reading only."""
        return self._backend

    @property
    def vocab_size(self) -> int:
        """Tokens of the vocabulary, added ones counted; a model may have more rows than that."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    @property
    def bos_token_id(self) -> TokenId | None:
        """The token that begins a document."""
        return self._special_id("bos_token")

    @property
    def eos_token_id(self) -> TokenId | None:
        """The token that ends an answer; a model's generation config may name more."""
        return self._special_id("eos_token")

    @property
    def pad_token_id(self) -> TokenId | None:
        """The token that fills batches in training."""
        return self._special_id("pad_token")

    @cached_property
    def least_tokens(self) -> TokenBound | None:
        """How many tokens a text has at least, at the cost of a look at its length.

        None where that says nothing: a normalizer may shorten the text, for one.
        """
        return token_bound_of(self._backend)

    @property
    def has_chat_template(self) -> bool:
        """Whether chats can be encoded."""
        return self._chat_template is not None

    @property
    def chat_template(self) -> str | None:
        """The source of the chat template; None: there is none."""
        return None if self._chat_template is None else self._chat_template.source

    def with_chat_template(self, source: str) -> Tokenizer:
        """The same tokenizer with another chat template.

        Raises:
            ValueError: the template cannot be read.
        """
        template = ChatTemplate(source, self._special_tokens)
        template.check()
        other = copy.copy(self)
        other._chat_template = template
        return other

    def token_to_id(self, token: str) -> TokenId | None:
        """The id of a token given as the vocabulary writes it; None: not in it."""
        return self._backend.token_to_id(token)

    def id_to_token(self, token_id: TokenId) -> str | None:
        """A token as the vocabulary writes it; None: no such id."""
        return self._backend.id_to_token(token_id) if token_id >= 0 else None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[TokenId]:
        """The token ids of a text; with the tokens that the model wants around a document.

        Other threads run meanwhile.

        Raises:
            ValueError: when `text` is no string, or not one that UTF-8 can hold.
        """
        if not isinstance(text, str):
            raise ValueError(f"the prompt is a {type(text).__name__}: give a string")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"the prompt has half of a surrogate pair at character {error.start}: give text "
                "that UTF-8 can hold"
            ) from error
        # The batch call lets go of the interpreter lock, which `encode` holds for its whole work;
        # the fast one leaves out offsets, which nobody reads here.
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return encoding.ids

    def render_chat(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text of a conversation, by the model's chat template.

        `tools` are shown to the model where its template knows how, and `variables` are what else
        it may read.

        Raises:
            ValueError: when the model has no template, or the messages are malformed.
        """
        if self._chat_template is None:
            raise ValueError(
                "this model has no chat template, so it takes no messages: give it a text prompt, "
                "or put a chat_template.jinja into its folder"
            )
        return self._chat_template.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            variables=variables,
        )

    def encode_chat(
        self, messages: Sequence[Message], add_generation_prompt: bool = True
    ) -> list[TokenId]:
        """The token ids of a conversation; the template writes all special tokens itself.

        Raises:
            ValueError: as `render_chat`.
        """
        return self.encode(self.render_chat(messages, add_generation_prompt), False)

    def decode(self, ids: Sequence[TokenId], skip_special_tokens: bool = True) -> str:
        """The text of a whole document, as the library decodes it.

        Ids that the vocabulary lacks have no text. For generated tokens see `decode_all`, which
        keeps the space that a continuation begins with.
        """
        known = [i for i in ids if i >= 0]
        return self._backend.decode(known, skip_special_tokens=skip_special_tokens)

    def decode_each(
        self, lists: Sequence[Sequence[TokenId]], skip_special_tokens: bool = True
    ) -> list[str]:
        """As `decode` for each of several documents. Other threads run meanwhile."""
        return self._backend.decode_batch(lists, skip_special_tokens=skip_special_tokens)

    def _special_id(self, name: str) -> TokenId | None:
        token = self._special_tokens.get(name)
        return None if token is None else self._backend.token_to_id(token)


def _read_config(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is no JSON ({error}): get the file again") from error
    if not isinstance(config, dict):
        raise ValueError(f"{file} holds a {type(config).__name__}, not an object: get it again")
    return config


def _special_ids(backend: tokenizers.Tokenizer) -> frozenset[TokenId]:
    added = backend.get_added_tokens_decoder()
    return frozenset(token_id for token_id, token in added.items() if token.special)


def _add_missing_tokens(
    backend: tokenizers.Tokenizer, config: Mapping[str, Any], special_tokens: Iterable[str]
) -> None:
    """Tokens that only the config knows: older savers wrote those added after training there."""
    declared = config.get("added_tokens_decoder") or {}
    for _, token in sorted(declared.items(), key=lambda item: int(item[0])):
        if backend.token_to_id(token["content"]) is None:
            flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
            kept = {flag: token[flag] for flag in flags if flag in token}
            backend.add_tokens([tokenizers.AddedToken(token["content"], **kept)])
    special = _special_ids(backend)
    ordinary = [t for t in special_tokens if backend.token_to_id(t) not in special]
    backend.add_special_tokens([tokenizers.AddedToken(t, special=True) for t in ordinary])


def _named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The config's special tokens by name; each is a string, or an object that holds it."""
    given = {name: config[name] for name in _NAMED_TOKENS if config.get(name) is not None}
    return {
        name: token["content"] if isinstance(token, dict) else token
        for name, token in given.items()
    }


def _find_template(file: Path, config: Mapping[str, Any]) -> str | None:
    """The template file wins; the config has one template, or a list of named ones."""
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if not isinstance(template, list):
        return template
    return {entry["name"]: entry["template"] for entry in template}.get("default")
