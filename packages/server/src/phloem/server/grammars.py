"""Constraints in the process that decodes: compiled ones become matchers, forced text tokens.

Owns the backend that reads what was compiled, and what the scheduler asks about forced text. Where
constraints are compiled is not its business.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from phloem.grammar import GrammarError
from phloem.grammar.base import Grammar, Matcher
from phloem.grammar.reasoning import Reasoning
from phloem.grammar.registry import create_backend
from phloem.grammar.service import CompiledConstraint as Compiled
from phloem.grammar.service import GrammarLoader
from phloem.grammar.vocabulary import Vocabulary
from phloem.grammar.warm_up import warm_up
from phloem.server.maybe_thinking import MaybeThinking
from phloem.server.messages import CompiledConstraint, ConstraintUse, Load
from phloem.server.thinking_budget import ThinkingBudget
from phloem.server.token_bytes import TokenBytes, TokenId
from phloem.server.tokenizer import Tokenizer

log = logging.getLogger(__name__)


class Guidance(NamedTuple):
    """What the scheduler is told of a request's constraint; see `Scheduler.add`."""

    matcher: Matcher | None = None
    steer: bool = False
    jump_forward: bool | None = None


class Grammars:
    """Makes matchers of compiled constraints."""

    def __init__(
        self, backend: str, vocabulary: Callable[[], Vocabulary], *, steering: bool
    ) -> None:
        """Nothing is made yet.

        Args:
            backend: the name of the one that compiles.
            vocabulary: makes that for which it compiles.
            steering: whether texts are brought to their end where a constraint does not say.
        """
        self._backend = backend
        self._make_vocabulary = vocabulary
        self._steering = steering
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar-load")
        self._vocabulary: Future[Vocabulary] | None = None
        self._loader: Future[GrammarLoader] | None = None
        self._reasonings: dict[tuple[TokenId, ...], Reasoning] = {}
        """By what ends the reasoning, which is one thing for a model."""

    def prepare(self) -> Future[Vocabulary]:
        """Begin to make what constraints need, in a thread, unless that was done; any thread may
        call it."""
        with self._lock:
            if self._vocabulary is None:
                vocabulary = self._vocabulary = self._thread.submit(self._make_vocabulary)
                self._loader = self._thread.submit(lambda: self._make_loader(vocabulary.result()))
            return self._vocabulary

    def _make_loader(self, vocabulary: Vocabulary) -> GrammarLoader:
        backend = create_backend(self._backend, vocabulary)
        try:
            warm_up(backend, vocabulary)
        except Exception:  # constraints take longer at first, no more
            log.exception("what masks share could not be found out ahead")
        return GrammarLoader(backend)

    def load(self, compiled: Load) -> Future[Grammar]:
        """Begin to load a compiled constraint, in a thread, since that may have to load a library
        first; any thread may call it.

        The future raises GrammarError: it was compiled for something else, or cannot be read.
        """
        self.prepare()
        return self._thread.submit(self._load, compiled)

    def guidance(self, compiled: CompiledConstraint | None) -> Guidance:
        """What a request's constraint means to the scheduler, with a matcher at the beginning of a
        text. In the scheduler's thread; waits until it is loaded.

        Raises:
            GrammarError: as `load`.
        """
        if compiled is None:
            return Guidance()
        if compiled.load is None:
            return thinking_guidance(compiled.use)
        return self.guidance_by(self.load(compiled.load).result(), compiled.use)

    def guidance_by(self, grammar: Grammar, use: ConstraintUse) -> Guidance:
        """The same of one that is loaded."""
        steer = self._steering if use.steering is None else use.steering
        thinking, matcher = use.thinking, grammar.matcher()
        if thinking is not None:
            behind = self._reasoning(tuple(thinking.end)).wrap(matcher, thinking.budget)
            begin = thinking.begin
            matcher = behind if begin is None else MaybeThinking(begin, behind, grammar.matcher())
        return Guidance(matcher, steer, use.jump_forward)

    def _reasoning(self, end: tuple[TokenId, ...]) -> Reasoning:
        known = self._reasonings.get(end)
        if known is None:
            known = self._reasonings[end] = Reasoning(self.prepare().result(), end)
        return known

    def _load(self, compiled: Load) -> Grammar:
        assert self._loader is not None, "`load` has prepared it"
        try:
            loader = self._loader.result()
            return loader.load(Compiled(compiled.key, compiled.backend, compiled.data))
        except GrammarError:
            raise
        except Exception as error:  # of a library: one request must not end all others
            raise GrammarError(f"the constraint cannot be read: {error}") from error


def thinking_guidance(use: ConstraintUse) -> Guidance:
    """That of a request of which only the reasoning is bound."""
    thinking = use.thinking
    if thinking is None or thinking.budget is None:
        return Guidance()
    matcher = ThinkingBudget(thinking.end, thinking.budget, thinking.begin)
    return Guidance(matcher, jump_forward=False)


class ForcedTokens:
    """What the scheduler asks about forced text; implements its `TextTokenizer`."""

    def __init__(self, tokenizer: Tokenizer, token_bytes: TokenBytes) -> None:
        self._encode = tokenizer.backend.encode
        self._token_bytes = token_bytes
        self._special_ids = tokenizer.special_ids

    def encode(self, text: bytes) -> Sequence[TokenId] | None:
        """The tokens of a piece of text; None where it is none, as with half a character."""
        try:
            decoded = text.decode()
        except UnicodeDecodeError:
            return None
        ids: list[TokenId] = self._encode(decoded, add_special_tokens=False).ids
        return ids

    def token_bytes(self, token: TokenId) -> bytes:
        """What a token spells; nothing for special tokens."""
        return b"" if token in self._special_ids else self._token_bytes(token)


def forced_tokens(tokenizer: Tokenizer) -> ForcedTokens | None:
    """What knows the tokens of forced text; None where tokens do not spell texts in bytes."""
    token_bytes = tokenizer.token_bytes
    return None if token_bytes is None else ForcedTokens(tokenizer, token_bytes)
