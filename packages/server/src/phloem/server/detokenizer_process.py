"""The detokenizer process: tokens in, text out, a batch at a time.

Owns the text of every running request. It imports neither torch nor numpy.
"""

from __future__ import annotations

import zmq

from phloem.server.children import enter_child
from phloem.server.detokenizer import TokenText
from phloem.server.garbage import settle
from phloem.server.ipc import Inbox, Outbox
from phloem.server.messages import Beat, Heard, TextBatch, TextNews, TokenBatch, TokenNews
from phloem.server.news import text_news
from phloem.server.output_text import OutputText
from phloem.server.tokenizer import Tokenizer


class DetokenizerService:
    """Keeps an `OutputText` for each request, from its first news to its last."""

    def __init__(self, tokenizer: TokenText) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[str, OutputText] = {}

    def __len__(self) -> int:
        return len(self._texts)

    def answer(self, message: TokenBatch | Beat) -> TextBatch | Heard:
        """What a message becomes."""
        if isinstance(message, Beat):
            return Heard("detokenizer", message.number)
        return self.text_batch(message)

    def text_batch(self, batch: TokenBatch) -> TextBatch:
        """The batch with its text, in the same order."""
        return TextBatch([self._text_news(news) for news in batch.news])

    def _text_news(self, news: TokenNews) -> TextNews:
        options = news.options
        if options is not None:
            self._texts[news.rid] = OutputText(
                self._tokenizer,
                options.stop,
                options.skip_special_tokens,
                options.keep_stop,
                options.shown_ids,
            )
        text = self._texts[news.rid] if news.finish is None else self._texts.pop(news.rid)
        return text_news(news, text)


def main() -> None:
    """Run in a process of its own."""
    config = enter_child("detokenizer")
    context = zmq.Context()
    inbox: Inbox[TokenBatch | Beat] = Inbox(
        context, config.endpoints.detokenizer, TokenBatch | Beat
    )
    frontend: Outbox[TextBatch | Heard] = Outbox(context, config.endpoints.frontend)
    service = DetokenizerService(Tokenizer.from_folder(config.tokenizer_folder))
    settle()
    while True:
        for message in inbox.wait():
            frontend.send(service.answer(message))
