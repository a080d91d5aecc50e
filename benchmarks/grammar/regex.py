"""Masks of regular expressions: the `fsm` backend beside xgrammar, in one process.

Sixteen texts a pattern are sampled from the masks; both engines then follow the same tokens and
fill the sixteen masks of each step, turn by turn. The first pass warms both up; the following ones
are timed. xgrammar fills its masks one by one or by its own batch class, whichever is faster. Times
are microseconds per batch. Before anything is timed, the masks of both are compared, save for the
special tokens, which xgrammar matches by the bytes of their names: `masks_that_differ` is to be 0.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xgrammar
from transformers import AutoTokenizer

from benchmarks.report import Figures, run
from phloem.grammar import Constraint
from phloem.grammar.fsm_backend import FsmBackend
from phloem.grammar.matcher import AutomatonGrammar, fill_masks
from phloem.grammar.vocabulary import Vocabulary
from phloem.model_runner.sources import resolve_model

# Digits are spelled out: `\d` is all of Unicode's in Python, and so in fsm, but ASCII in xgrammar.
PATTERNS = {
    "word": r"[a-z]+",
    "phone": r"(\+[0-9]{1,2} )?\([0-9]{3}\) [0-9]{3}-[0-9]{4}",
    "date_time": r"[0-9]{4}-(0[1-9]|1[0-2])-[0-9][0-9]T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]Z",
    "email": r"[a-zA-Z0-9._%+-]+@[a-zA-Z0-9-]+(\.[a-zA-Z]{2,8})+",
    "quoted": r'"([^"\\\n]|\\["\\n])*"',
    "uuid": r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "choice": r"(strongly )?(agree|disagree)|neither|no answer",
    "sentences": r"([A-Z][a-z]*( [a-z]+){2,12}[.!?] ?){1,3}",
    "call": r"[a-z_]+\(([a-z_]+=([0-9]+|'[^']*'))(, [a-z_]+=([0-9]+|'[^']*'))*\)",
}
ROWS = 16


@dataclass(frozen=True)
class Walk:
    """Per step, the token of each row; -1 begins the row's text anew."""

    steps: list[list[int]]


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> Figures:
    """All figures: per pattern and together."""
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("smollm2").path)
    vocabulary = Vocabulary.from_transformers(tokenizer)
    backend = FsmBackend(vocabulary)
    theirs = xgrammar.GrammarCompiler(
        xgrammar.TokenizerInfo.from_huggingface(tokenizer), max_threads=1
    )
    figures: Figures = {"masks_that_differ": 0}
    ours_all: list[float] = []
    theirs_all: list[float] = []
    for name, pattern in PATTERNS.items():
        begin = time.perf_counter()
        grammar = backend.compile(Constraint.regex(pattern))
        compiled = time.perf_counter()
        other = theirs.compile_regex(pattern)
        theirs_compiled = time.perf_counter()
        walk = _sampled(grammar, options.steps, options.seed)
        pair = _Pair(grammar, other)
        figures["masks_that_differ"] += pair.differing(walk)
        timed = [pair.times(walk) for _ in range(options.passes)]
        ours = [one for times in timed for one in times[0]]
        singles, batches = ([t for times in timed for t in times[i]] for i in (1, 2))
        best = min(singles, batches, key=lambda times: float(np.median(times)))
        ours_all += ours
        theirs_all += best
        figures[f"{name}_us"] = float(np.median(ours))
        figures[f"{name}_xgrammar_us"] = float(np.median(best))
        figures[f"{name}_compile_ms"] = (compiled - begin) * 1e3
        figures[f"{name}_xgrammar_compile_ms"] = (theirs_compiled - compiled) * 1e3
        say(f"{name}: {np.median(best) / np.median(ours):.1f} times as fast")
    for share in (50, 99):
        figures[f"all_p{share}_us"] = float(np.percentile(ours_all, share))
        figures[f"all_p{share}_xgrammar_us"] = float(np.percentile(theirs_all, share))
    figures["times_as_fast"] = sum(theirs_all) / sum(ours_all)
    return figures


class _Pair:
    """One constraint in both engines."""

    def __init__(self, grammar: AutomatonGrammar, other: xgrammar.CompiledGrammar) -> None:
        self._grammar = grammar
        self._other = other
        words = grammar.vocabulary.words
        self._batch = xgrammar.BatchGrammarMatcher(max_threads=1)
        self._mask = np.zeros((ROWS, words), np.int32)
        atomic = np.zeros(words * 32, bool)
        atomic[list(grammar.vocabulary.special_ids.difference(grammar.vocabulary.stop_ids))] = True
        self._compared = ~np.packbits(atomic, bitorder="little").view(np.int32)
        self._theirs = xgrammar.allocate_token_bitmask(ROWS, grammar.vocabulary.size)

    def differing(self, walk: Walk) -> int:
        """The masks in which the engines differ, and a warm-up."""
        count = 0
        for ours, theirs in self._followed(walk):
            self._ours(ours)
            self._singles(theirs)
            differing = (self._mask ^ self._theirs.numpy()) & self._compared
            count += int(differing.any(axis=1).sum())
        return count

    def times(self, walk: Walk) -> tuple[list[float], list[float], list[float]]:
        """Microseconds per step: ours, theirs one by one, and theirs as a batch."""
        found: tuple[list[float], list[float], list[float]] = ([], [], [])
        for ours, theirs in self._followed(walk):
            fills = (
                lambda rows=ours: self._ours(rows),
                lambda rows=theirs: self._singles(rows),
                lambda rows=theirs: self._batch.batch_fill_next_token_bitmask(rows, self._theirs),
            )
            for fill, times in zip(fills, found, strict=True):
                begin = time.perf_counter()
                fill()
                times.append((time.perf_counter() - begin) * 1e6)
        return found

    def _ours(self, matchers: list[Any]) -> None:
        fill_masks(matchers, self._mask, range(ROWS))

    def _singles(self, matchers: list[Any]) -> None:
        for row, matcher in enumerate(matchers):
            matcher.fill_next_token_bitmask(self._theirs, row)

    def _followed(self, walk: Walk) -> Iterator[tuple[list[Any], list[Any]]]:
        """Matchers of both engines before each step."""
        ours = [self._grammar.matcher() for _ in range(ROWS)]
        theirs = [xgrammar.GrammarMatcher(self._other) for _ in range(ROWS)]
        for tokens in walk.steps:
            yield ours, theirs
            for row, token in enumerate(tokens):
                if token < 0:
                    ours[row] = self._grammar.matcher()
                    theirs[row].reset()
                elif not (ours[row].accept(token) and theirs[row].accept_token(token)):
                    raise RuntimeError(f"token {token} is legal for one engine only")


def _sampled(grammar: AutomatonGrammar, steps: int, seed: int) -> Walk:
    """Tokens at random; half of the time one of the first sixteen, which are short."""
    random = np.random.default_rng(seed)
    matchers = [grammar.matcher() for _ in range(ROWS)]
    mask = np.zeros((1, grammar.vocabulary.words), np.int32)
    walk = []
    for _ in range(steps):
        tokens = []
        for row, matcher in enumerate(matchers):
            matcher.fill_mask(mask, 0)
            token = _choice(mask, grammar.vocabulary, random)
            if token < 0:
                matchers[row] = grammar.matcher()
            else:
                matcher.accept(token)
            tokens.append(token)
        walk.append(tokens)
    return Walk(walk)


def _choice(
    mask: npt.NDArray[np.int32], vocabulary: Vocabulary, random: np.random.Generator
) -> int:
    legal = np.flatnonzero(np.unpackbits(mask[0].view(np.uint8), bitorder="little"))
    legal = legal[~np.isin(legal, vocabulary.stop_ids)]
    if not len(legal) or random.random() < 0.05:
        return -1
    return int(random.choice(legal[:16] if random.random() < 0.5 else legal))


def add_options(parser: argparse.ArgumentParser) -> None:
    """How much to measure."""
    parser.add_argument("--steps", type=int, default=40, help="tokens per row")
    parser.add_argument("--passes", type=int, default=10, help="timed passes over each walk")
    parser.add_argument("--seed", type=int, default=0)


if __name__ == "__main__":
    run(__doc__, measure, add_options)
