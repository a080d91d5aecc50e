"""`POST /v1/completions`: prompts in all their forms, and OpenAI's text completion objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from phloem.server.http.errors import ApiError, raise_if_failed
from phloem.server.http.forms import Head, OpenAIForm, finish_fields
from phloem.server.http.logprobs import CompletionLogprobs
from phloem.server.http.sse import json_line
from phloem.server.messages import TextNews
from phloem.server.tokenizer import Tokenizer


@dataclass
class Choice:
    """What a choice needs besides its news."""

    echo: str = ""
    """The prompt, where it is repeated before the output."""
    logprobs: CompletionLogprobs | None = None


class CompletionForm(OpenAIForm):
    """Answers as `text_completion` objects."""

    def __init__(
        self, id: str, model: str, n: int, include_usage: bool, choices: Sequence[Choice]
    ) -> None:
        head = Head(id, "text_completion", model)
        super().__init__(head, head.object, n, include_usage, len(choices))
        self._choices = choices
        self._before = [
            self._opening + str(index).encode() + b',"text":' for index in range(len(choices))
        ]
        self._after = b',"logprobs":null,"finish_reason":null' + self._closing

    def chunk(self, index: int, news: TextNews) -> bytes:
        """What is new of a choice."""
        choice = self._choices[index]
        if news.finish is None and choice.logprobs is None and not choice.echo:
            if not news.text:
                return b""
            return b"".join((self._before[index], json_line(news.text), self._after))
        return self._rare_chunk(choice, index, news)

    def _rare_chunk(self, choice: Choice, index: int, news: TextNews) -> bytes:
        """With a choice's end, an echo, or logprobs."""
        raise_if_failed(news.finish)
        text, choice.echo = choice.echo + news.text, ""
        logprobs = b"null" if choice.logprobs is None else json_line(choice.logprobs.of(news))
        parts = [self._before[index], json_line(text), b',"logprobs":', logprobs]
        if news.finish is None:
            parts.append(b',"finish_reason":null')
        else:
            parts += [b",", json_line(finish_fields(news))[1:-1]]
        return b"".join([*parts, self._ending(index, news) if news.finish else self._closing])

    def _choice(self, index: int, output: TextNews) -> dict[str, Any]:
        choice = self._choices[index]
        return {
            "index": index,
            "text": choice.echo + output.text,
            "logprobs": None if choice.logprobs is None else choice.logprobs.of(output),
        } | finish_fields(output)


def prompt_ids(tokenizer: Tokenizer, prompt: str | Sequence[Any]) -> list[list[int]]:
    """The token ids of each prompt: of a text, of texts, of ids, or of lists of ids.

    Raises:
        ApiError, ValueError: it is none of these.
    """
    if isinstance(prompt, str):
        return [tokenizer.encode(prompt)]
    if prompt and all(isinstance(text, str) for text in prompt):
        return [tokenizer.encode(text) for text in prompt]
    return token_lists(prompt, "prompt")


def token_lists(given: Sequence[Any], param: str) -> list[list[int]]:
    """One list of token ids, or several, as several.

    Raises:
        ApiError: it is neither.
    """
    lists = given if given and all(isinstance(item, list) for item in given) else [given]
    for ids in lists:
        if not ids or not all(type(token) is int for token in ids):
            raise ApiError(
                f"{param} is of no form that is known: give texts, or lists of token ids, and "
                "nothing empty",
                param=param,
            )
    return list(lists)
