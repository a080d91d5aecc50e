"""How one request wants its tokens chosen, and the same for a whole batch as flat arrays.

Owns the meaning, the limits and the batched form of sampling parameters. It does not sample: that
is the runner's work (`phloem.model_runner`), from the arrays built here.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

TokenId = int

MAX_STOP_STRINGS = 32
MAX_STOP_CHARACTERS = 1024
"""Of one stop string."""
MAX_ALL_STOP_CHARACTERS = 4096
"""Of all of a request: they are matched by an automaton with about as many states."""
MAX_TOKEN_IDS = 1024
"""Of `stop_token_ids`, and of `logit_bias`."""
MAX_TOP_LOGPROBS = 128
ALL_TOKENS = -1
"""`top_k` that keeps the whole vocabulary."""

_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What one request asks of the sampler and of the stop checks.

    Logits are changed in this order: logit_bias, penalties, suppression below `min_new_tokens`,
    then temperature, top_k, top_p, min_p. `temperature=0` is greedy: the filters have no effect
    then. `frequency_penalty` and `presence_penalty` look at the output only, `repetition_penalty`
    at prompt and output (as in CTRL, arXiv 1909.05858: positive logits are divided by it, negative
    ones multiplied).
    """

    max_new_tokens: int | None = None
    """Tokens to produce at most; None takes `DEFAULT_MAX_NEW_TOKENS`, cut to what the context
    allows.
    """
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = ALL_TOKENS
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    """Equal seeds give equal output for equal requests, whatever else runs; None draws one."""
    logit_bias: Mapping[TokenId, float] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[TokenId, ...] = ()
    ignore_eos: bool = False
    top_logprobs: int | None = None
    """None: no logprobs; 0: of the chosen tokens; n: and of the n likeliest at each step."""
    prompt_logprobs_from: int | None = None
    """First prompt position whose logprob is wanted (position 0 has none); None: no prompt
    logprobs.
    """

    def __post_init__(self) -> None:
        set_field = functools.partial(object.__setattr__, self)
        for name in ("min_new_tokens", "top_k", *_OPTIONAL_INTEGERS):
            value = getattr(self, name)
            if value is not None or name not in _OPTIONAL_INTEGERS:
                set_field(name, _as_int(value, f"{name} is"))
        for name in _NUMBERS:
            set_field(name, _as_number(getattr(self, name), name))
        if not isinstance(self.ignore_eos, (bool, np.bool_)):
            raise ValueError(f"ignore_eos is {self.ignore_eos!r}: give true or false")
        set_field("stop", _as_strings(self.stop))
        set_field("stop_token_ids", _as_ids(self.stop_token_ids))
        set_field("logit_bias", _as_bias(self.logit_bias))
        _check_ranges(self)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> SamplingParams:
        """Build from user input.

        Raises:
            ValueError: naming an unknown field, or a value out of its range.
        """
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(given) - known)
        if unknown:
            raise ValueError(
                f"unknown sampling parameter {unknown[0]!r}: known are {', '.join(sorted(known))}"
            )
        return cls(**given)

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1

    @property
    def has_penalties(self) -> bool:
        """Whether choosing a token needs the tokens before it."""
        return (
            self.frequency_penalty != 0.0
            or self.presence_penalty != 0.0
            or self.repetition_penalty != 1.0
        )

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuse token ids that the model does not have.

        Raises:
            ValueError: naming the first id outside `[0, vocab_size)`.
        """
        for name, ids in (
            ("stop_token_ids", self.stop_token_ids),
            ("logit_bias", tuple(self.logit_bias)),
        ):
            for token in ids:
                if not 0 <= token < vocab_size:
                    raise ValueError(
                        f"{name} has token id {token}, but the vocabulary has ids 0 to "
                        f"{vocab_size - 1}"
                    )


DEFAULT_MAX_NEW_TOKENS = 128
GREEDY_BELOW = 1e-6
"""Temperatures below this are greedy: dividing logits by them would overflow."""


_OPTIONAL_INTEGERS = ("max_new_tokens", "seed", "top_logprobs", "prompt_logprobs_from")
_NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
)


def _as_int(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise ValueError(f"{what} {value!r}: give an integer")
    return int(value)


def _as_number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise ValueError(f"{name} is {value!r}: give a number")
    try:
        number = float(value)
    except OverflowError:  # an integer beyond what a float can hold
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name} is {number}: give a finite number")
    return number


def _as_strings(stop: Any) -> tuple[str, ...]:
    if stop is None:
        return ()
    if not isinstance(stop, (str, list, tuple)):
        raise ValueError(f"stop is {stop!r}: give a string or a list of strings")
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    if len(stops) > MAX_STOP_STRINGS:
        raise ValueError(f"stop has {len(stops)} strings: give at most {MAX_STOP_STRINGS}")
    for text in stops:
        if not isinstance(text, str) or not text:
            raise ValueError(f"stop has {text!r}: give non-empty strings")
    longest, characters = max(map(len, stops), default=0), sum(map(len, stops))
    if longest > MAX_STOP_CHARACTERS or characters > MAX_ALL_STOP_CHARACTERS:
        raise ValueError(
            f"stop has a string of {longest} characters, and {characters} altogether: give at most "
            f"{MAX_STOP_CHARACTERS} in each and {MAX_ALL_STOP_CHARACTERS} in all"
        )
    return stops


def _as_ids(ids: Any) -> tuple[TokenId, ...]:
    if ids is None:
        return ()
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
        raise ValueError(f"stop_token_ids is {ids!r}: give a list of token ids")
    ids = tuple(ids)
    _check_count("stop_token_ids", len(ids))
    return tuple(_as_int(token, "stop_token_ids has") for token in ids)


def _as_bias(bias: Any) -> dict[TokenId, float]:
    if bias is None:
        return {}
    if not isinstance(bias, Mapping):
        raise ValueError(f"logit_bias is {bias!r}: give an object of token ids and numbers")
    _check_count("logit_bias", len(bias))
    out = {}
    for token, value in bias.items():
        # JSON has only strings for keys.
        key = int(token) if _is_number(token) else token
        number = _as_number(value, f"logit_bias of token {token}")
        if not -100.0 <= number <= 100.0:
            raise ValueError(f"logit_bias of token {token} is {value}: give a value in [-100, 100]")
        out[_as_int(key, "logit_bias has token id")] = number
    return out


def _check_count(name: str, count: int) -> None:
    if count > MAX_TOKEN_IDS:
        raise ValueError(f"{name} has {count} token ids: give at most {MAX_TOKEN_IDS}")


def _is_number(token: Any) -> bool:
    """Whether it is the ASCII digits of one; `int` would also take other scripts' and spaces."""
    return isinstance(token, str) and token.isascii() and token.isdigit()


def _check_ranges(p: SamplingParams) -> None:
    """Each rule with the sentence that states it; NaN fails every comparison."""
    rules = (
        ("temperature", 0.0 <= p.temperature <= MAX_TEMPERATURE, f"[0, {MAX_TEMPERATURE:g}]"),
        ("top_p", 0.0 < p.top_p <= 1.0, "(0, 1]"),
        ("min_p", 0.0 <= p.min_p <= 1.0, "[0, 1]"),
        ("frequency_penalty", -2.0 <= p.frequency_penalty <= 2.0, "[-2, 2]"),
        ("presence_penalty", -2.0 <= p.presence_penalty <= 2.0, "[-2, 2]"),
        ("repetition_penalty", 0.0 < p.repetition_penalty <= 2.0, "(0, 2]"),
        ("min_new_tokens", p.min_new_tokens >= 0, "0 or more"),
        ("top_k", p.top_k == ALL_TOKENS or 1 <= p.top_k < 2**31, "-1 (all) or 1 and more"),
    )
    for name, holds, allowed in rules:
        if not holds:
            raise ValueError(f"{name} is {getattr(p, name)}: allowed is {allowed}")
    if p.max_new_tokens is not None and not 0 <= p.max_new_tokens < 2**31:
        raise ValueError(f"max_new_tokens is {p.max_new_tokens}: allowed is 0 or more")
    if p.max_new_tokens is not None and p.min_new_tokens > p.max_new_tokens:
        raise ValueError(
            f"min_new_tokens {p.min_new_tokens} is more than max_new_tokens {p.max_new_tokens}"
        )
    if p.seed is not None and p.seed not in _INT64:
        raise ValueError(f"seed is {p.seed}: allowed is a signed 64-bit integer")
    if p.top_logprobs is not None and not 0 <= p.top_logprobs <= MAX_TOP_LOGPROBS:
        raise ValueError(f"top_logprobs is {p.top_logprobs}: allowed is 0 to {MAX_TOP_LOGPROBS}")
    if p.prompt_logprobs_from is not None and p.prompt_logprobs_from < 0:
        raise ValueError(f"prompt_logprobs_from is {p.prompt_logprobs_from}: allowed is 0 or more")


MAX_TEMPERATURE = 2.0


@dataclass(frozen=True, slots=True)
class TokenHistory:
    """The tokens of one batch row before the one to be sampled, for its penalties.

    Under overlap the newest token is not known yet when the batch is made; then `pending` is True
    and the runner adds the token that it relays for that row.
    """

    index: int
    """Which row of the batch."""
    prompt: npt.NDArray[np.int32]
    output: npt.NDArray[np.int32]
    pending: bool = False


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """The sampling parameters of a batch: one entry a row, sparse parts named by row index.

    `seeds` and `positions` make the randomness counter-based: the token at `positions[i]` (its
    index in the request, the prompt counted) is a function of these two and of the logits alone.
    """

    temperature: npt.NDArray[np.float32]
    top_p: npt.NDArray[np.float32]
    top_k: npt.NDArray[np.int32]
    min_p: npt.NDArray[np.float32]
    frequency_penalty: npt.NDArray[np.float32]
    presence_penalty: npt.NDArray[np.float32]
    repetition_penalty: npt.NDArray[np.float32]
    seeds: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int32]
    top_logprobs: npt.NDArray[np.int32]
    """-1: no logprobs for this row; n: of the chosen token and of the n likeliest."""
    all_greedy: bool = False
    """Whether each row takes the largest of its logits, but for `logit_bias`, `suppressed`,
    `histories` and masks, and asks for no logprobs. False: nobody has looked.
    """
    logit_bias: tuple[tuple[int, npt.NDArray[np.int32], npt.NDArray[np.float32]], ...] = ()
    suppressed: tuple[tuple[int, npt.NDArray[np.int32]], ...] = ()
    """Token ids that a row may not produce yet (its stop ids below `min_new_tokens`)."""
    histories: tuple[TokenHistory, ...] = ()

    @property
    def changes_logits(self) -> bool:
        """Whether anything but temperatures and filters makes some row's logits other ones."""
        return bool(self.logit_bias or self.histories or self.suppressed)

    def at(self, positions: npt.NDArray[np.int32]) -> SamplingBatch:
        """The same for tokens at other positions; by hand, since `replace` takes thrice as long."""
        return SamplingBatch(
            self.temperature,
            self.top_p,
            self.top_k,
            self.min_p,
            self.frequency_penalty,
            self.presence_penalty,
            self.repetition_penalty,
            self.seeds,
            positions,
            self.top_logprobs,
            self.all_greedy,
            self.logit_bias,
            self.suppressed,
            self.histories,
        )

    @staticmethod
    def from_params(
        params: Sequence[SamplingParams],
        seeds: Iterable[int],
        positions: Iterable[int],
        suppressed: tuple[tuple[int, npt.NDArray[np.int32]], ...] = (),
        histories: tuple[TokenHistory, ...] = (),
    ) -> SamplingBatch:
        """Gather the parameters of a batch's rows, in row order."""
        rows = SamplingRows(len(params))
        for row, (p, seed) in enumerate(zip(params, seeds, strict=True)):
            rows.put(row, p, seed)
        return replace(
            rows.batch(np.arange(len(params))),
            positions=np.fromiter(positions, np.int32, len(params)),
            suppressed=suppressed,
            histories=histories,
        )


_FLOATS = (
    "temperature",
    "top_p",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
)
_INTS = ("top_k", "top_logprobs")
_TEMPERATURE, _TOP_LOGPROBS = _FLOATS.index("temperature"), _INTS.index("top_logprobs")
_Bias = tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]


class SamplingRows:
    """The sampling parameters of requests, by the row that each holds; a batch is cut out of it."""

    def __init__(self, max_rows: int) -> None:
        self._floats = np.zeros((len(_FLOATS), max_rows), np.float32)
        self._ints = np.zeros((len(_INTS), max_rows), np.int32)
        self._seeds = np.zeros(max_rows, np.int64)
        self._bias: dict[int, _Bias] = {}

    def put(self, row: int, params: SamplingParams, seed: int) -> None:
        """Enter a request's parameters, in place of what stood there."""
        self._floats[:, row] = (
            0.0 if params.greedy else params.temperature,
            params.top_p,
            params.min_p,
            params.frequency_penalty,
            params.presence_penalty,
            params.repetition_penalty,
        )
        self._ints[:, row] = (
            params.top_k,
            -1 if params.top_logprobs is None else params.top_logprobs,
        )
        self._seeds[row] = seed
        self._bias.pop(row, None)
        bias = params.logit_bias
        if bias:
            self._bias[row] = (
                np.fromiter(bias.keys(), np.int32, len(bias)),
                np.fromiter(bias.values(), np.float32, len(bias)),
            )

    def batch(self, rows: npt.NDArray[np.intp]) -> SamplingBatch:
        """The parameters of these rows; its positions, all 0, are the caller's to replace."""
        bias = self._bias
        floats, ints = self._floats[:, rows], self._ints[:, rows]
        return SamplingBatch(
            **dict(zip(_FLOATS, floats, strict=True)),
            **dict(zip(_INTS, ints, strict=True)),
            all_greedy=bool(
                (floats[_TEMPERATURE] <= 0.0).all() and (ints[_TOP_LOGPROBS] < 0).all()
            ),
            seeds=self._seeds[rows],
            positions=np.zeros(len(rows), np.int32),
            logit_bias=tuple((i, *bias[r]) for i, r in enumerate(rows.tolist()) if r in bias)
            if bias
            else (),
        )
