"""Endpoints for whoever operates a server: what is it, what does it do, stop that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from phloem.scheduler import checked_seconds
from phloem.server.bodies.reader import BodyReader
from phloem.server.frontend import EVERYBODY, Frontend, ServiceUnavailable
from phloem.server.http.auth import admin_wanted
from phloem.server.http.body import checked, read_json
from phloem.server.http.describe import body_of
from phloem.server.http.errors import ApiError, json_response, refusing
from phloem.server.http.health import add_health
from phloem.server.http.metrics import Metrics
from phloem.server.http.prepare import ANSWER_IDS, sequence_id
from phloem.server.http.protocol import MAX_SEQUENCES
from phloem.server.http.tenancy import caller_of


class AbortRequest(msgspec.Struct, kw_only=True):
    """The body of `POST /abort_request`."""

    rid: str | None = None
    abort_all: bool | None = None


class PauseRequest(msgspec.Struct, kw_only=True):
    """The body of `POST /pause_generation`."""

    mode: str = "abort"
    """"abort", "retract" or "in_place"; see `phloem.scheduler.PauseMode`."""


class WeightVersionRequest(msgspec.Struct, kw_only=True):
    """The body of `POST /update_weight_version`."""

    new_version: str


_LONGEST_VERSION = 256
"""Characters; each request's namespace has it."""

BODIES = (AbortRequest, PauseRequest, WeightVersionRequest)


def operation_router(
    frontend: Frontend,
    metrics: Metrics,
    model: str,
    info: Mapping[str, Any],
    health_timeout: float,
    max_body_bytes: int,
    bodies: BodyReader | None = None,
) -> APIRouter:
    """The routes, over what they report of."""
    router = APIRouter()
    add_health(router, frontend, health_timeout)
    _add_models(router, frontend, model)
    _add_reports(router, frontend, metrics, {"model": model, **info}, health_timeout)
    _add_control(router, frontend, max_body_bytes, bodies)
    _add_cache_control(router, frontend, max_body_bytes, bodies)
    return router


def _add_models(router: APIRouter, frontend: Frontend, model: str) -> None:
    started = int(time.time())

    @router.get("/v1/models")
    async def models() -> Response:
        """The model that is served."""
        return json_response({"object": "list", "data": [_model(frontend, model, started)]})

    @router.get("/v1/models/{id:path}")
    async def one_model(id: str) -> Response:
        """The same, by its name."""
        check_model(id, model)
        return json_response(_model(frontend, model, started))


def _add_reports(
    router: APIRouter,
    frontend: Frontend,
    metrics: Metrics,
    info: Mapping[str, Any],
    timeout: float,
) -> None:
    @router.get("/server_info")
    async def server_info(request: Request) -> Response:
        """Version and limits; where there are keys, the options and what the scheduler and the
        compiler are doing for the admin key alone.
        """
        limits = msgspec.structs.asdict(frontend.limits)
        # Asked in any case: whether it answers is no secret.
        state = await _state(frontend, timeout)
        shown: dict[str, Any] = {"limits": limits, **info}
        if caller_of(request).admin:
            shown |= {"state": state, "grammar": frontend.grammar.stats()}
        else:
            # The options have paths and names of the machine, the rest tells of other callers.
            shown.pop("options", None)
        return json_response(shown)

    @router.get("/metrics")
    async def read_metrics() -> Response:
        """Prometheus's text; the counters also where the scheduler is gone."""
        try:
            state = await _state(frontend, timeout)
        except ServiceUnavailable:
            state = {}
        text = metrics.exposition(state, frontend.grammar.stats())
        return Response(text, media_type=CONTENT_TYPE_LATEST)


def _add_control(
    router: APIRouter, frontend: Frontend, max_body_bytes: int, bodies: BodyReader | None
) -> None:
    """The routes for who ends requests, or holds them still."""

    @router.post("/abort_request", openapi_extra=body_of(AbortRequest))
    async def abort_request(request: Request) -> Response:
        """End one sequence or one answer by its id; one that has ended is no error, nor is one of
        another key, which goes on. The admin key may end those of all, and all at once.
        """
        given = checked(await read_json(request, max_body_bytes, bodies), AbortRequest, {}, ())
        if (given.rid is None) == (not given.abort_all):
            raise ApiError("give either rid or abort_all: true", param="rid")
        caller = caller_of(request)
        if given.abort_all and not caller.admin:
            raise admin_wanted("abort_all")
        tenant = EVERYBODY if caller.admin else caller.tenant
        aborted = [frontend.abort(rid, tenant) for rid in _rids(given.rid)]
        return json_response({"aborted": sum(aborted)})

    @router.post("/pause_generation", openapi_extra=body_of(PauseRequest))
    async def pause_generation(request: Request) -> Response:
        """Hold all sequences still; those that are there end, give their memory back, or stay."""
        given = checked(await read_json(request, max_body_bytes, bodies), PauseRequest, {}, ())
        with refusing("mode"):
            await frontend.pause(given.mode)
        return json_response({"paused": given.mode})

    @router.post("/continue_generation")
    async def continue_generation() -> Response:
        """Let them go on."""
        await frontend.resume()
        return json_response({"paused": None})


def _add_cache_control(
    router: APIRouter, frontend: Frontend, max_body_bytes: int, bodies: BodyReader | None
) -> None:
    """The routes for who changes the weights, or measures without a cache."""

    @router.post("/flush_cache")
    async def flush_cache(timeout: float | None = None) -> Response:
        """Forget cached prefixes; 400 where requests use them still after `timeout` seconds (0)."""
        with refusing(None if timeout is None else "timeout"):
            # 0, which does not wait, is no time limit but allowed here.
            seconds = checked_seconds(timeout, "timeout") if timeout else None
            return json_response({"freed_tokens": await frontend.flush_cache(seconds or 0.0)})

    @router.post("/update_weight_version", openapi_extra=body_of(WeightVersionRequest))
    async def update_weight_version(request: Request) -> Response:
        """Say that the weights have changed: what was cached under others is used no more."""
        given = checked(
            await read_json(request, max_body_bytes, bodies), WeightVersionRequest, {}, ()
        )
        _check_version(given.new_version)
        await frontend.set_weight_version(given.new_version)
        return json_response({"weight_version": given.new_version})


def _check_version(name: str) -> None:
    if not 1 <= len(name) <= _LONGEST_VERSION:
        raise ApiError(
            f"new_version has {len(name)} characters: give 1 to {_LONGEST_VERSION}",
            param="new_version",
        )


def _rids(id: str | None) -> Iterable[str | None]:
    """The sequences that an id stands for: the one of that name, or those of one answer."""
    yield id
    if id is not None and id.startswith(ANSWER_IDS):
        # Any of them may have ended, so that none tells how many there were.
        yield from (sequence_id(id, index) for index in range(MAX_SEQUENCES))


async def _state(frontend: Frontend, timeout: float) -> dict[str, Any]:
    try:
        return await asyncio.wait_for(frontend.state(), timeout)
    except asyncio.TimeoutError:
        raise ServiceUnavailable(f"the scheduler did not answer within {timeout:g} s") from None


def check_model(asked: str | None, served: str) -> None:
    """Refuse a model of another name; a request that names none takes what there is.

    Raises:
        ApiError: 404, as OpenAI's.
    """
    if asked is not None and asked != served:
        raise ApiError(
            f"the model {asked[:200]!r} does not exist here: this server has {served!r}",
            404,
            param="model",
            code="model_not_found",
        )


def _model(frontend: Frontend, model: str, created: int) -> dict[str, Any]:
    return {
        "id": model,
        "object": "model",
        "created": created,
        "owned_by": "phloem",
        "max_model_len": frontend.limits.context_len,
    }
