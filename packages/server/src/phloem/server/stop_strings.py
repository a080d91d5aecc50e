"""Stop strings: noticing that an output has reached one, and keeping it out of the text.

Owns the matching on both sides of the scheduler: `TextStopChecker` tells the scheduler which token
completes a stop string (the port `phloem.scheduler.StopChecker`), `StopTrimmer` cuts the text. Both
run the same automaton, so they agree on where the match is: of several, the one that ends first,
and of those that end together, the longest. Turning tokens into text is the detokenizer's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from phloem.server.detokenizer import MarkedText, TokenText
from phloem.server.token_bytes import TokenId


class TextStopChecker:
    """Makes the matchers of requests; implements `phloem.scheduler.StopChecker`."""

    def __init__(self, tokenizer: TokenText) -> None:
        self._tokenizer = tokenizer

    def matcher(self, stop: Iterable[str]) -> TextStopMatcher:
        """A fresh matcher for these non-empty strings."""
        return TextStopMatcher(self._tokenizer, stop)


class TextStopMatcher:
    """Watches one output; the text that it matches has special tokens in it, as their own text.

    A stop string may begin and end inside tokens and span several. Each token costs time in its own
    characters, whatever the length of the output and of the stop strings.
    """

    def __init__(self, tokenizer: TokenText, stop: Iterable[str]) -> None:
        self._text = MarkedText(tokenizer)
        self._state = _automaton(tuple(stop))

    def push(self, token_id: TokenId) -> str | None:
        """Take the next output token; return the stop string that it completes, if any.

        A match that the caller lets pass does not disturb those that follow.
        """
        matched = None
        for character in self._text.push(token_id):
            self._state = self._state.step(character)
            matched = matched or self._state.match
        return matched


class StopTrimmer:
    """Holds back text of one output that may turn out to be a stop string, and nothing more.

    Push the text token by token and end with `finish`: what is returned, joined, is the text
    without the stop string, however it was streamed.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._state = _automaton(tuple(stops))
        self._held = ""
        self._matches: dict[str, int] = {}
        """Where in `_held` the matches that ended in the last pushed text begin."""

    def push(self, text: str) -> str:
        """Take more text; return what is now certain to be shown.

        A match in an earlier push was let pass by the scheduler (below `min_new_tokens`), as the
        output went on.
        """
        if not text:
            return ""
        self._matches.clear()
        held = self._held + text
        certain = len(held)
        for end, character in enumerate(text, len(self._held) + 1):
            self._state = self._state.step(character)
            match = self._state.match
            if match is not None:
                begin = self._matches.setdefault(match, end - len(match))
                certain = min(certain, begin)
        certain = min(certain, len(held) - self._state.depth)
        self._held = held[certain:]
        self._matches = {match: begin - certain for match, begin in self._matches.items()}
        return held[:certain]

    def finish(self, matched: str | None = None) -> str:
        """End the output; return what was held before the stop string that ended it, if one did."""
        return self._held[: self._matches.get(matched)] if matched else self._held


@dataclass(slots=True, eq=False)
class _State:
    """What has been read, as far as it matters: its longest suffix that begins a stop string."""

    depth: int
    """Characters of that suffix."""
    after: dict[str, _State] = field(default_factory=dict)
    shorter: _State | None = None
    """The state of the next shorter such suffix; None at the root."""
    match: str | None = None
    """The longest stop string that ends here."""

    def step(self, character: str) -> _State:
        """The state after one more character; constant time, amortised."""
        state = self
        while character not in state.after:
            if state.shorter is None:
                return state
            state = state.shorter
        return state.after[character]


@lru_cache(8)
def _automaton(stops: tuple[str, ...]) -> _State:
    """Aho and Corasick, "Efficient string matching", CACM 18 (1975).

    Kept for the next few calls: the sequences of one request come together and have the same. What
    follows an output never changes it.
    """
    root = _State(0)
    for stop in stops:
        state = root
        for character in stop:
            if character not in state.after:
                state.after[character] = _State(state.depth + 1)
            state = state.after[character]
        state.match = stop
    # Breadth first: a state's shorter suffixes are complete before it.
    queue = deque([root])
    while queue:
        parent = queue.popleft()
        for character, state in parent.after.items():
            state.shorter = root if parent.shorter is None else parent.shorter.step(character)
            state.match = state.match or state.shorter.match
            queue.append(state)
    return root
