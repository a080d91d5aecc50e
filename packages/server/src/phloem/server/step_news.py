"""All that a step brought, as the messages of the scheduler's process."""

from __future__ import annotations

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
            _add_plain(messages, part)
    return messages


def _add_plain(messages: list[TokenNews], part: PlainTokens) -> None:
    """What `token_news` makes of each, without an output between: these are most of all news."""
    counts = zip(part.requests, part.token_ids.tolist(), part.num_tokens.tolist(), strict=True)
    for request, token, num_tokens in counts:
        num_prompt = len(request.prompt_ids)
        # In the order of the fields, as in `token_news`.
        news = TokenNews(
            request.rid,
            [token],
            None,
            num_prompt,
            num_tokens - num_prompt,
            request.cached_tokens or 0,
            request.retractions,
        )
        if request.guide is not None:
            news.jump_forward_tokens = request.guide.jumped
        if request.brought is not None:
            news.brought = request.brought
        messages.append(news)
