"""The text of one request's output, from its tokens: decoded, without the stop string.

Owns the order of these steps, so that streamed and whole text are one thing: the joined returns of
an `OutputText`. Where an output ends is the scheduler's decision, which `finish` takes over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from phloem.server.detokenizer import MarkedText, TokenText
from phloem.server.stop_strings import StopTrimmer
from phloem.server.token_bytes import TokenId


class OutputText:
    """Turns the output tokens of one request into the text that its client sees.

    Stop strings are cut from the text with special tokens in it, as the scheduler matched them;
    skipped special tokens are taken out after that.

    ```
    text:  [ returned        | held back: may be a stop string ]
           0          _returned                            _length
    ```
    """

    def __init__(
        self,
        tokenizer: TokenText,
        stop: Iterable[str] = (),
        skip_special_tokens: bool = True,
        keep_stop: bool = False,
        shown_ids: Iterable[TokenId] = (),
    ) -> None:
        """With `keep_stop` the text ends with what ended it, if that is text; `shown_ids` are
        special tokens that are not skipped.
        """
        self._keep_stop = keep_stop
        self._text = MarkedText(tokenizer)
        self._trimmer = StopTrimmer(stop)
        skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._skipped = skipped.difference(shown_ids) if shown_ids else skipped
        self._hidden: deque[tuple[int, int]] = deque()
        """Where skipped special tokens begin and end, from the first not yet passed."""
        self._length = 0
        self._returned = 0

    def push(self, ids: Iterable[TokenId]) -> str:
        """Take the next tokens; return the text that is now certain to be shown."""
        return "".join([self._push_one(token_id) for token_id in ids])

    def finish(self, ids: Sequence[TokenId] = (), matched: TokenId | str | None = None) -> str:
        """End the output with its last tokens; return the rest of the text.

        `matched` is what ended it: a stop string is cut, a stop token (the last of `ids`) is not
        shown; None for an output that ended otherwise.
        """
        if isinstance(matched, str):
            rest = self.push(ids) + self._visible(self._trimmer.finish(matched))
            return rest + matched if self._keep_stop else rest
        shown = ids if matched is None or self._keep_stop else ids[:-1]
        rest = self.push(shown) + self._visible(self._trimmer.finish())
        return rest + self._text.flush()

    def _push_one(self, token_id: TokenId) -> str:
        text = self._text.push(token_id)
        begin, self._length = self._length, self._length + len(text)
        if token_id in self._skipped:
            self._hidden.append((begin, self._length))
        return self._visible(self._trimmer.push(text))

    def _visible(self, text: str) -> str:
        """The next stretch of the text without its hidden parts."""
        start = at = self._returned
        end = self._returned = start + len(text)
        kept = []
        while self._hidden and self._hidden[0][0] < end:
            first, last = self._hidden[0]
            kept.append(text[at - start : max(first - start, 0)])
            at = min(last, end)
            if last > end:
                break
            self._hidden.popleft()
        return "".join([*kept, text[at - start :]])
