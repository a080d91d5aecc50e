"""`POST /v1/completions`: prompts in all their forms, and OpenAI's text completion objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from phloem.server.http.errors import raise_if_failed
from phloem.server.http.forms import Head, OpenAIForm, finish_fields
from phloem.server.http.logprobs import CompletionLogprobs
from phloem.server.http.prepare import token_lists
from phloem.server.http.sse import json_line
from phloem.server.messages import TextNews
from phloem.server.tokenizer import Tokenizer


@dataclass
class Choice:
    """What a choice needs besides its news."""

    echo: str = ""
    """The prompt, where it is repeated before the output."""
    logprobs: CompletionLogprobs | None = None
    prompt_ids: Sequence[int] | None = None
    """The prompt's ids, where those and the output's are wanted."""

    @property
    def plain(self) -> bool:
        """Whether what is new of it is text alone."""
        return self.logprobs is None and self.prompt_ids is None and not self.echo

    def fields(self, news: TextNews, first: bool) -> dict[str, Any]:
        """What goes with its text; of the prompt's only the `first` time."""
        fields: dict[str, Any] = {
            "logprobs": None if self.logprobs is None else self.logprobs.of(news)
        }
        if self.prompt_ids is not None:
            fields["token_ids"] = news.token_ids
            if first:
                fields["prompt_token_ids"] = self.prompt_ids
        return fields


class CompletionForm(OpenAIForm):
    """Answers as `text_completion` objects."""

    def __init__(
        self, id: str, model: str, n: int, include_usage: bool, choices: Sequence[Choice]
    ) -> None:
        head = Head(id, "text_completion", model)
        super().__init__(head, head.object, n, include_usage, len(choices))
        self._choices = choices
        self._plain = [choice.plain for choice in choices]
        self._begun = [False] * len(choices)
        self._before = [
            self._opening + str(index).encode() + b',"text":' for index in range(len(choices))
        ]
        self._after = b',"logprobs":null,"finish_reason":null' + self._closing

    def chunk(self, index: int, news: TextNews) -> bytes:
        """What is new of a choice."""
        if news.finish is None and self._plain[index]:
            if not news.text:
                return b""
            return b"".join((self._before[index], json_line(news.text), self._after))
        return self._rare_chunk(index, news)

    def _rare_chunk(self, index: int, news: TextNews) -> bytes:
        """With a choice's end, or whatever a choice has beside its text."""
        raise_if_failed(news.finish)
        choice = self._choices[index]
        text, choice.echo = choice.echo + news.text, ""
        fields = choice.fields(news, not self._begun[index])
        self._begun[index], self._plain[index] = True, choice.plain
        end = {"finish_reason": None} if news.finish is None else finish_fields(news)
        closing = self._closing if news.finish is None else self._ending(index, news)
        more = json_line(fields | end)[1:-1]
        return b"".join((self._before[index], json_line(text), b",", more, closing))

    def _choice(self, index: int, output: TextNews) -> dict[str, Any]:
        choice = self._choices[index]
        text = {"index": index, "text": choice.echo + output.text}
        return text | choice.fields(output, True) | finish_fields(output)


class BestOfForm(CompletionForm):
    """Of the sequences of each prompt, answers with those of the highest mean logprob a token.

    All of them count in the usage. There is no stream of it: what is best shows at the end.
    """

    def __init__(
        self, id: str, model: str, n: int, choices: Sequence[Choice], best_of: int
    ) -> None:
        """`choices` are all sequences, `best_of` of each prompt, of which `n` are returned."""
        super().__init__(id, model, best_of, False, choices)
        self._best_of = best_of
        self._returned = n

    def _body(self, choices: Sequence[dict[str, Any]], outputs: Sequence[TextNews]) -> bytes:
        best = [
            index
            for first in range(0, len(choices), self._best_of)
            for index in sorted(
                range(first, first + self._best_of), key=lambda i: -_mean_logprob(outputs[i])
            )[: self._returned]
        ]
        chosen = [choices[old] | {"index": new} for new, old in enumerate(best)]
        return super()._body(chosen, [outputs[index] for index in best])


def _mean_logprob(output: TextNews) -> float:
    """Over the tokens of an output; an empty one is as likely as can be."""
    chosen = output.logprobs.chosen if output.logprobs else ()
    return sum(value or 0.0 for value in chosen) / max(len(chosen), 1)


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
