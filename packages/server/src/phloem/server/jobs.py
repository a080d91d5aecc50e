"""From what a caller asks to the sequences that are generated for it.

Owns the forms in which prompts and sampling parameters may be given: one or several, text or token
ids, `n` outputs of each, and a constraint beside the parameters.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from phloem.grammar.constraint import Constraint, Whitespace
from phloem.scheduler import PoolingMode, SamplingParams
from phloem.server.constraints import ConstraintRequest, take_constraint
from phloem.server.tokenizer import Tokenizer

Params = Mapping[str, Any] | SamplingParams | None
TokenIds = Sequence[int]
Namespace = tuple[object, ...]

POOLED = SamplingParams(max_new_tokens=0)
"""Of a prompt that is pooled, which makes no tokens."""
MAX_N = 128
"""Outputs that one prompt may ask for."""


@dataclass(frozen=True, slots=True)
class Job:
    """One sequence to generate."""

    rid: str
    prompt_ids: TokenIds
    params: SamplingParams
    namespace: Namespace
    priority: int = 0
    tenant: str | None = None
    constraint: ConstraintRequest | None = None
    """Not compiled yet."""
    pooling: PoolingMode | None = None
    """How the prompt becomes one vector, instead of being continued."""


def make_jobs(
    tokenizer: Tokenizer,
    prompts: str | Sequence[str] | None,
    sampling_params: Params | Sequence[Params],
    input_ids: Sequence[int] | Sequence[TokenIds] | None,
    namespace: Namespace,
    *,
    priority: int = 0,
    tenant: str | None = None,
    whitespace: Whitespace = "bounded",
    constraint: Constraint | None = None,
) -> tuple[list[Job], bool]:
    """The sequences to generate, and whether the caller wants one result and no list.

    `whitespace` is that of JSON outputs where a constraint's options do not say; `constraint` is
    that of all of them, beside which the parameters have none.

    Raises:
        ValueError: for input of another form, or parameters out of their range.
    """
    ids, single = _prompt_ids(tokenizer, prompts, input_ids)
    jobs = []
    asked = _params_of(sampling_params, len(ids), whitespace, constraint)
    for prompt, (params, n, kept) in zip(ids, asked, strict=True):
        single = single and n == 1
        for i in range(n):
            # Equal seeds would make n equal outputs.
            own = params if params.seed is None else replace(params, seed=params.seed + i)
            rid = uuid.uuid4().hex
            jobs.append(Job(rid, prompt, own, namespace, priority, tenant, kept))
    return jobs, single


def make_pooling_jobs(
    tokenizer: Tokenizer,
    prompts: str | Sequence[str] | None,
    input_ids: Sequence[int] | Sequence[TokenIds] | None,
    pooling: PoolingMode,
    namespace: Namespace,
    *,
    priority: int = 0,
    tenant: str | None = None,
) -> tuple[list[Job], bool]:
    """The prompts to pool to a vector each, and whether the caller wants one and no list.

    Raises:
        ValueError: for input of another form.
    """
    ids, single = _prompt_ids(tokenizer, prompts, input_ids)
    jobs = [
        Job(uuid.uuid4().hex, each, POOLED, namespace, priority, tenant, pooling=pooling)
        for each in ids
    ]
    return jobs, single


def only(jobs: Sequence[Job]) -> Job:
    """The job of a call that allows just one.

    Raises:
        ValueError: when there are others.
    """
    if len(jobs) != 1:
        raise ValueError(f"streaming takes one prompt and one output, not {len(jobs)}")
    return jobs[0]


def _prompt_ids(
    tokenizer: Tokenizer, prompts: str | Sequence[str] | None, input_ids: Any
) -> tuple[list[TokenIds], bool]:
    if (prompts is None) == (input_ids is None):
        raise ValueError("give either prompts or input_ids")
    if isinstance(prompts, str):
        return [tokenizer.encode(prompts)], True
    if prompts is not None:
        return [tokenizer.encode(prompt) for prompt in _listed(prompts, "prompts")], False
    ids = _listed(input_ids, "input_ids")
    # An array or tensor has rows or numbers, a list has lists (of arrays, maybe) or numbers.
    nested = len(ids) > 0 and isinstance(ids[0], (list, tuple, np.ndarray))
    return ([_listed(row, "input_ids") for row in ids], False) if nested else ([ids], True)


def _listed(given: Any, name: str) -> Any:
    """`given` as a sequence: a list, a tuple, or a numpy array."""
    if not isinstance(given, (list, tuple, np.ndarray)):
        if not hasattr(given, "tolist"):
            raise ValueError(f"{name} is a {type(given).__name__}: give a list")
        given = given.tolist()  # tensors of other libraries
    return given


_Asked = tuple[SamplingParams, int, ConstraintRequest | None]
"""The parameters of a prompt, its `n`, and its constraint."""


def _params_of(
    given: Any, prompts: int, whitespace: Whitespace, constraint: Constraint | None
) -> list[_Asked]:
    if given is None or isinstance(given, (Mapping, SamplingParams)):
        return [_one_params(given, whitespace, constraint)] * prompts
    if len(_listed(given, "sampling_params")) != prompts:
        raise ValueError(f"{len(given)} sampling_params were given for {prompts} prompts")
    return [_one_params(params, whitespace, constraint) for params in given]


def _one_params(given: Params, whitespace: Whitespace, constraint: Constraint | None) -> _Asked:
    if isinstance(given, SamplingParams):
        return given, 1, take_constraint({}, whitespace, constraint)
    if given is not None and not isinstance(given, Mapping):
        raise ValueError(f"sampling_params is a {type(given).__name__}: give a dict")
    fields = dict(given or {})
    n = fields.pop("n", 1)
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MAX_N:
        raise ValueError(f"n is {n!r}: give an integer from 1 to {MAX_N}")
    # Of a large body, the reader has made it.
    made = {n: value for n, value in fields.items() if isinstance(value, ConstraintRequest)}
    for name in made:
        del fields[name]
    taken = take_constraint(fields, whitespace, constraint) or next(iter(made.values()), None)
    return SamplingParams.from_dict(fields), n, taken
