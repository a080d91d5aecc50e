"""Constraints in requests: which fields ask for one, and its compilation while the client waits.

Nothing is sent and nothing started before it is compiled, so that a constraint that cannot be
enforced is a 400 with the field's name, streamed or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from phloem.grammar.constraint import Whitespace
from phloem.server.bodies.decoding import is_large
from phloem.server.concurrency import all_of
from phloem.server.constraints import ALIASES, BUNDLE, FIELDS, ConstraintRequest, constraint_of
from phloem.server.frontend import ConstraintCompiler, GenerationRequest
from phloem.server.http.errors import refusing
from phloem.server.http.metrics import Metrics
from phloem.server.http.protocol import ConstraintFields
from phloem.server.messages import CompiledConstraint, ConstraintUse

NAMES = (*FIELDS, *ALIASES, BUNDLE)
"""All fields of a request that may have a constraint."""

MOST_AT_ONCE = 8
"""Constraints of one request that are compiled at once: others have their turn in between."""


async def asked_constraint(
    request: ConstraintFields, whitespace: Whitespace
) -> ConstraintRequest | None:
    """The constraint in a request's fields, if `phloem.server.bodies` has not made it already; a
    large one is read in a thread.

    Raises:
        ApiError: there are two, or it is malformed.
    """
    fields = {name: getattr(request, name) for name in NAMES}
    for value in fields.values():
        if isinstance(value, ConstraintRequest):
            return value
    with refusing():
        if is_large(fields):
            return await asyncio.to_thread(
                constraint_of, fields, request.grammar_options, whitespace
            )
        return constraint_of(fields, request.grammar_options, whitespace)


async def with_constraints(
    compiler: ConstraintCompiler,
    metrics: Metrics,
    requests: Sequence[GenerationRequest],
    asked: Sequence[ConstraintRequest | None],
    owner: str = "",
) -> Sequence[GenerationRequest]:
    """The requests with what was asked of each, compiled: equal constraints once, different ones
    side by side. What others than `owner` have had compiled is not used.

    Cancelling it cancels what is being compiled.

    Raises:
        ApiError: one cannot be enforced here, or not compiled within the limits.
    """
    asked = [None if each is None else replace(each, owner=owner) for each in asked]
    distinct = list(dict.fromkeys(each for each in asked if each is not None))
    if not distinct:
        return [_bound(request, None) for request in requests]
    turn = asyncio.Semaphore(MOST_AT_ONCE)

    async def compile(each: ConstraintRequest) -> CompiledConstraint:
        with metrics.compiling(each.constraint.kind):
            async with turn:
                return await compiler.compile(each)

    with refusing():
        compiled = dict(zip(distinct, await all_of([compile(each) for each in distinct])))
    return [
        _bound(request, None if each is None else compiled[each])
        for request, each in zip(requests, asked, strict=True)
    ]


def _bound(request: GenerationRequest, constraint: CompiledConstraint | None) -> GenerationRequest:
    """A request with what binds it: its constraint, behind its reasoning, and how long that is."""
    thinking = request.thinking
    if constraint is None and thinking is not None and thinking.budget is not None:
        constraint = CompiledConstraint(None, ConstraintUse(""))
    if constraint is None:
        return request
    if thinking is not None:
        constraint = constraint.behind(thinking)
    return replace(request, constraint=constraint)
