"""All that a step brought, as the messages of the scheduler's process."""

from __future__ import annotations

from collections.abc import Iterable

from phloem.scheduler import News, PlainTokens
from phloem.server.messages import TextOptions, TokenNews
from phloem.server.news import token_news


def step_news(news: News, options: dict[str, TextOptions]) -> list[TokenNews]:
    """The messages about all that a step brought. `options` are of requests that had no news yet;
    those of who has now are taken from it.
    """
    messages: list[TokenNews] = []
    for part in news.parts:
        if not isinstance(part, PlainTokens):
            messages.append(token_news(part, options.pop(part.rid, None)))
        elif options:
            messages += [token_news(output, options.pop(output.rid, None)) for output in part]
        else:
            messages += _plain_news(part)
    return messages


def _plain_news(part: PlainTokens) -> Iterable[TokenNews]:
    """What `token_news` makes of each, without an output between: these are most of all news."""
    counts = zip(part.requests, part.token_ids.tolist(), part.num_tokens.tolist(), strict=True)
    for request, token, num_tokens in counts:
        num_prompt = request.num_prompt
        yield TokenNews(
            request.rid,
            [token],
            None,
            num_prompt,
            num_tokens - num_prompt,
            request.cached_tokens or 0,
            request.retractions,
            brought=request.brought,
        )
