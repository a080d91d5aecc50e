"""Mask and compile times of the `fsm` backend, xgrammar and llguidance, in one process.

Each constraint of `benchmarks/data/grammars.json` comes with texts that satisfy it; all engines
follow their tokens, as if a model had written them, and fill a mask before each. An engine's first
texts after compiling are cold, since some engines build masks when they are asked for them;
followed again by new matchers, they are warm. xgrammar and llguidance are used raw, with their
own tokenizers and their defaults (xgrammar allows properties that are not declared, as fsm does),
and without any of the checks that our wrappers put before them.

Times are microseconds per mask and per accepted token, milliseconds per compilation; `first text`
is compiling and all masks of a text right after it, wherever an engine puts the work. The engines
take turns, so that a machine that slows down does so for all. `vs_best` is ours over the better of
the other two: below 1 is faster. Run it on a machine that does nothing else. As in the server's
scheduler, what is there before the first constraint is out of the garbage collector's sight; and a
backend serves all constraints, so that what fsm found out of the vocabulary for one is there for
the next.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

import llguidance
import llguidance.hf
import llguidance.numpy
import numpy as np
import xgrammar
from transformers import AutoTokenizer

from benchmarks.report import Figures, run
from phloem.grammar import Constraint, Vocabulary
from phloem.grammar.fsm_backend import FsmBackend
from phloem.model_runner.sources import resolve_model

CASES = Path(__file__).parents[1] / "data" / "grammars.json"


@dataclass(frozen=True)
class Case:
    """A constraint, and the tokens of texts that satisfy it."""

    name: str
    kind: str
    source: Any
    texts: list[list[int]]


class Follower(Protocol):
    """Follows one text in one engine."""

    def mask(self) -> None:
        """Fill the mask of the next token."""
        ...

    def accept(self, token: int) -> bool:
        """Take a token."""
        ...


class Engine(Protocol):
    """One of those that are compared."""

    def compile(self, case: Case) -> Callable[[], Follower]:
        """Compile a constraint without any cache; gives what makes followers."""
        ...


class Ours:
    """The `fsm` backend."""

    def __init__(self, tokenizer: Any) -> None:
        self._vocabulary = Vocabulary.from_transformers(tokenizer)
        self._backend = FsmBackend(self._vocabulary)
        self._mask = np.zeros((1, self._vocabulary.words), np.int32)

    def compile(self, case: Case) -> Callable[[], Follower]:
        """With the defaults: bounded whitespace, properties in order."""
        constraint = (
            Constraint.regex(case.source)
            if case.kind == "regex"
            else Constraint.json_schema(case.source)
        )
        grammar = self._backend.compile(constraint)
        return lambda: _OurFollower(grammar.matcher(), self._mask)


class _OurFollower:
    def __init__(self, matcher: Any, mask: Any) -> None:
        self._matcher = matcher
        self._mask = mask
        self.accept = matcher.accept

    def mask(self) -> None:
        self._matcher.fill_mask(self._mask, 0)


class XGrammar:
    """Raw xgrammar on one thread."""

    def __init__(self, tokenizer: Any) -> None:
        info = xgrammar.TokenizerInfo.from_huggingface(tokenizer)
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._mask = xgrammar.allocate_token_bitmask(1, info.vocab_size)

    def compile(self, case: Case) -> Callable[[], Follower]:
        """With its defaults, but for properties that are not declared."""
        if case.kind == "regex":
            compiled = self._compiler.compile_regex(case.source)
        else:
            compiled = self._compiler.compile_json_schema(
                json.dumps(case.source), strict_mode=False
            )
        return lambda: _XFollower(xgrammar.GrammarMatcher(compiled), self._mask)


class _XFollower:
    def __init__(self, matcher: Any, mask: Any) -> None:
        self._matcher = matcher
        self._mask = mask
        self.accept = matcher.accept_token

    def mask(self) -> None:
        self._matcher.fill_next_token_bitmask(self._mask)


class LLGuidance:
    """Raw llguidance."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = llguidance.hf.from_tokenizer(tokenizer)
        self._mask = llguidance.numpy.allocate_token_bitmask(1, self._tokenizer.vocab_size)

    def compile(self, case: Case) -> Callable[[], Follower]:
        """With its defaults."""
        if case.kind == "regex":
            grammar = llguidance.LLMatcher.grammar_from_regex(case.source)
        else:
            grammar = llguidance.LLMatcher.grammar_from_json_schema(case.source)
        matcher = llguidance.LLMatcher(self._tokenizer, grammar)
        if matcher.is_error():
            raise RuntimeError(f"llguidance refuses {case.name}: {matcher.get_error()[:200]}")
        return lambda: _LLFollower(matcher.deep_copy(), self._mask)


class _LLFollower:
    def __init__(self, matcher: Any, mask: Any) -> None:
        self._matcher = matcher
        self._mask = mask

    def accept(self, token: int) -> bool:
        return bool(self._matcher.consume_token(token))

    def mask(self) -> None:
        llguidance.numpy.fill_next_token_bitmask(self._matcher, self._mask)


ENGINES: dict[str, Callable[[Any], Engine]] = {
    "fsm": Ours,
    "xgrammar": XGrammar,
    "llguidance": LLGuidance,
}


@dataclass
class Times:
    """What one engine took for a case, or for many: one value a compilation, a mask, a token.

    Each is the median over what was repeated, so that other programs of the machine do not count.
    """

    compile_ms: list[float]
    first_text_ms: list[float]
    """Compiling, and all masks of the first text after it."""
    cold_us: list[float]
    warm_us: list[float]
    accept_us: list[float]

    @classmethod
    def of(cls, repeated: dict[str, list[list[float]]]) -> Times:
        """From what was measured: by field, a list of values a repetition."""
        medians = {name: np.median(runs, axis=0).tolist() for name, runs in repeated.items()}
        return cls(**medians)

    @classmethod
    def of_all(cls, parts: Sequence[Times]) -> Times:
        """Those of many cases."""
        names = [one.name for one in fields(cls)]
        return cls(**{name: [t for one in parts for t in getattr(one, name)] for name in names})

    def figures(self, name: str) -> Figures:
        """By name."""
        found: Figures = {
            "compile_ms": float(np.median(self.compile_ms)),
            "first_text_ms": float(np.median(self.first_text_ms)),
        }
        for kind, times in (("cold", self.cold_us), ("warm", self.warm_us)):
            for share in (50, 99):
                found[f"{kind}_p{share}_us"] = float(np.percentile(times, share))
        found["accept_p50_us"] = float(np.median(self.accept_us))
        return {f"{name}{key}": value for key, value in found.items()}


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> Figures:
    """All figures: per case, per kind and together."""
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("smollm2").path)
    engines = {name: make(tokenizer) for name, make in ENGINES.items()}
    gc.collect()
    gc.freeze()
    cases = read_cases(lambda text: tokenizer.encode(text, add_special_tokens=False))
    figures: Figures = {}
    groups: dict[str, list[dict[str, Times]]] = {}
    say(_HEAD)
    for case in cases:
        if options.only and case.name not in options.only:
            continue
        times = measure_case(case, engines, options.rounds, options.passes)
        for group in (case.kind, "all"):
            groups.setdefault(group, []).append(times)
        figures |= _figures(case.name, times)
        say(_lines(case.name, times))
    for group, parts in groups.items():
        times = {name: Times.of_all([one[name] for one in parts]) for name in engines}
        figures |= _figures(group, times)
        say(_lines(group, times))
    return figures


def read_cases(encode: Callable[[str], list[int]]) -> list[Case]:
    """The constraints and texts of the data file."""
    given = json.loads(CASES.read_text(encoding="utf-8"))
    return [
        Case(one["name"], one["kind"], one["source"], [encode(text) for text in one["texts"]])
        for one in given
    ]


def measure_case(
    case: Case, engines: dict[str, Engine], rounds: int, passes: int
) -> dict[str, Times]:
    """Compile `rounds` times; after each, follow the texts once cold and `passes` times warm."""
    names = [one.name for one in fields(Times)]
    repeated: dict[str, dict[str, list[list[float]]]] = {
        engine: {name: [] for name in names} for engine in engines
    }
    for _ in range(rounds):
        for name, engine in engines.items():
            begin = time.perf_counter()
            make = engine.compile(case)
            compiling = (time.perf_counter() - begin) * 1e3
            masks, _ = _follow(case, make)
            first = sum(masks[: len(case.texts[0])]) / 1e3
            repeated[name]["compile_ms"].append([compiling])
            repeated[name]["first_text_ms"].append([compiling + first])
            repeated[name]["cold_us"].append(masks)
            for _ in range(passes):
                masks, accepts = _follow(case, make)
                repeated[name]["warm_us"].append(masks)
                repeated[name]["accept_us"].append(accepts)
    return {name: Times.of(measured) for name, measured in repeated.items()}


def _follow(case: Case, make: Callable[[], Follower]) -> tuple[list[float], list[float]]:
    """Microseconds of every mask, and of every accepted token."""
    clock = time.perf_counter
    masks: list[float] = []
    accepts: list[float] = []
    for tokens in case.texts:
        follower = make()
        for token in tokens:
            begin = clock()
            follower.mask()
            filled = clock()
            accepted = follower.accept(token)
            end = clock()
            if not accepted:
                raise RuntimeError(
                    f"{type(follower).__name__} refuses token {token} of {case.name}"
                )
            masks.append((filled - begin) * 1e6)
            accepts.append((end - filled) * 1e6)
    return masks, accepts


_HEAD = f"{'':26} compile ms first text  cold p50   p99 us warm p50   p99 us   accept"


def _lines(name: str, times: dict[str, Times]) -> str:
    lines = []
    for engine, one in times.items():
        values: Sequence[float] = list(one.figures("").values())
        cells = [*(f"{value:11.2f}" for value in values[:2]), *(f"{v:9.1f}" for v in values[2:])]
        lines.append(f"{name:16} {engine:10}" + "".join(cells))
    return "\n".join(lines)


def _figures(name: str, times: dict[str, Times]) -> Figures:
    figures: Figures = {}
    for engine, one in times.items():
        figures |= one.figures(f"{name}_{engine}_")
    for key in (
        "compile_ms",
        "first_text_ms",
        "cold_p50_us",
        "cold_p99_us",
        "warm_p50_us",
        "warm_p99_us",
    ):
        best = min(figures[f"{name}_{engine}_{key}"] for engine in times if engine != "fsm")
        figures[f"{name}_vs_best_{key}"] = figures[f"{name}_fsm_{key}"] / best
    return figures


def add_options(parser: argparse.ArgumentParser) -> None:
    """How much to measure."""
    parser.add_argument("--rounds", type=int, default=3, help="compilations of each constraint")
    parser.add_argument("--passes", type=int, default=5, help="warm passes after each of them")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="measure these constraints alone")


if __name__ == "__main__":
    run(__doc__, measure, add_options)
