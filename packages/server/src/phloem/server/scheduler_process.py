"""The scheduler process: the engine's loop between a mailbox and the detokenizer.

Owns the way of a step: take what has come in, run, send the news. It sleeps while there is nothing
to do. How the engine is made is `phloem.server.wiring`'s.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from functools import partial

import zmq

from phloem.mem_pool import Retention
from phloem.scheduler import EventLoop, QueueFullError, SamplingParams
from phloem.server.children import ChildConfig, enter_child
from phloem.server.control import WaitingFlushes, answer, soonest
from phloem.server.garbage import settle
from phloem.server.grammars import Grammars
from phloem.server.ipc import Inbox, Outbox
from phloem.server.loaded_constraints import LoadedConstraints
from phloem.server.messages import (
    Abort,
    Beat,
    Control,
    Failed,
    Finish,
    Forget,
    FromScheduler,
    Generate,
    Heard,
    Limits,
    Load,
    Ready,
    Reply,
    TextOptions,
    TokenBatch,
    TokenNews,
    ToScheduler,
)
from phloem.server.observability.steps import step_times
from phloem.server.step_news import step_news
from phloem.server.time_slice import come_as_usual
from phloem.server.watchdog import Watchdog
from phloem.server.wiring import EngineParts, build

_SECONDS_TO_REPORT = 5.0
_SECONDS_TO_LOAD = 0.002
"""How often an idle loop looks whether a constraint is loaded that a request waits for."""

log = logging.getLogger(__name__)


class SchedulerService:
    """Serves requests from an inbox with a loop, one `turn` at a time."""

    def __init__(
        self,
        loop: EventLoop,
        inbox: Inbox[ToScheduler],
        detokenizer: Outbox[TokenBatch | Beat],
        frontend: Outbox[FromScheduler],
        grammars: Grammars | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        """Without `grammars` constraints are refused; without a `watchdog` turns may hang."""
        self._loop = loop
        self._constraints = LoadedConstraints(grammars)
        self._inbox = inbox
        self._watchdog = watchdog or Watchdog(0, False)
        self._detokenizer = detokenizer
        self._frontend = frontend
        self._options: dict[str, TextOptions] = {}
        """Of the requests that have had no news yet."""
        self._news: list[TokenNews] = []
        """For the next batch."""
        self._steps = step_times()
        self._flushes = WaitingFlushes(loop.scheduler, time.monotonic)

    @property
    def idle(self) -> bool:
        """Whether nothing is to be done until a message comes."""
        return self._loop.idle and not self._constraints.holds_any

    def turn(self) -> None:
        """Take in what has come, waiting for it while there is nothing else to do; run a step."""
        for message in self._messages():
            self._handle(message)
        for request in self._constraints.take():
            self._add(request)
        idle, began = self._loop.idle, time.perf_counter()
        if not idle:
            self._watchdog.watch()
        outputs = self._loop.step()
        if not idle:
            self._steps.observe(time.perf_counter() - began)
        self._news += step_news(outputs, self._options)
        self._flushes.settle()
        if self._news:
            self._detokenizer.send(TokenBatch(self._news))
            self._news = []

    def _messages(self) -> Iterable[ToScheduler]:
        if not self._loop.idle:
            return self._inbox.take()
        messages = list(self._inbox.wait(soonest(self._patience(), self._watchdog.patience)))
        if not messages:
            self._watchdog.rest()
        return messages

    def _patience(self) -> float | None:
        """Seconds after which there is something to do by itself; None: there is nothing."""
        if self._constraints.holds_any:
            return _SECONDS_TO_LOAD
        return soonest(self._loop.scheduler.due_in(), self._flushes.due_in())

    def _handle(self, message: ToScheduler) -> None:
        if isinstance(message, Generate):
            if not self._constraints.hold(message):
                self._add(message)
        elif isinstance(message, Load):
            self._constraints.load(message)
        elif isinstance(message, Forget):
            self._constraints.forget(message.keys)
        elif isinstance(message, Abort):
            for rid in message.rids:
                self._abort(rid)
        elif isinstance(message, Beat):
            self._frontend.send(Heard("scheduler", message.number))
            self._detokenizer.send(message)
        elif message.action == "flush_cache":
            self._flushes.add(message.options.get("timeout", 0.0), partial(self._tell, message.id))
        else:
            self._frontend.send(self._reply(message))

    def _add(self, message: Generate) -> None:
        try:
            params = SamplingParams.from_dict(message.sampling_params)
            guidance = self._constraints.guidance(message.constraint)
            self._loop.scheduler.add(
                message.rid,
                message.prompt_ids,
                params,
                tuple(message.namespace),
                timeout=message.timeout,
                queue_timeout=message.queue_timeout,
                priority=message.priority,
                tenant=message.tenant,
                matcher=guidance.matcher,
                steer=guidance.steer,
                jump_forward=guidance.jump_forward,
                retention=_retention(message),
                pooling=message.pooling,
                explain_cache=message.explain_cache,
            )
        except QueueFullError as error:
            refused = Finish("refused", None, str(error), error.status_code, error.retry_after)
            self._news.append(_refusal(message, refused))
        except ValueError as error:
            # The API process has checked the same; should it be mistaken, its client hears of it.
            self._news.append(_refusal(message, Finish("error", None, str(error), 400)))
        else:
            self._options[message.rid] = TextOptions(
                list(params.stop),
                message.skip_special_tokens,
                message.keep_stop,
                message.shown_ids,
            )

    def _abort(self, rid: str) -> None:
        held = self._constraints.drop(rid)
        if held is None:
            self._loop.scheduler.abort(rid)
        else:
            aborted = Finish("abort", None, "the request was aborted")
            self._news.append(_refusal(held, aborted))

    def _reply(self, message: Control) -> Reply:
        try:
            value = answer(self._loop.scheduler, message.action, message.options)
            if message.action == "state":
                value["steps"] = self._steps.as_dict()
            return Reply(message.id, value)
        except ValueError as error:
            return Reply(message.id, {}, str(error))

    def _tell(self, id: int, freed: int | ValueError) -> None:
        failed = isinstance(freed, ValueError)
        self._frontend.send(Reply(id, {}, str(freed)) if failed else Reply(id, {"freed": freed}))


def _retention(message: Generate) -> Retention | None:
    if message.retain_seconds is None:
        return None
    return Retention(message.retain_seconds, message.retain_tokens)


def _refusal(message: Generate, finish: Finish) -> TokenNews:
    return TokenNews(
        rid=message.rid,
        token_ids=[],
        finish=finish,
        prompt_tokens=len(message.prompt_ids),
        completion_tokens=0,
        cached_tokens=0,
        options=TextOptions([], message.skip_special_tokens),
    )


def _limits(parts: EngineParts) -> Limits:
    scheduler = parts.scheduler
    return Limits(
        context_len=scheduler.config.context_len,
        max_total_tokens=scheduler.max_total_tokens,
        vocab_size=scheduler.config.vocab_size,
        capacity=scheduler.manager.capacity,
        priorities=scheduler.config.uses_priorities,
        embedding_size=parts.embedding_size,
    )


def _built(config: ChildConfig, frontend: Outbox[FromScheduler]) -> EngineParts | None:
    """The engine; None if there is none, which is told to the front end then."""
    try:
        return build(config.args)
    except ValueError as error:
        frontend.send(Failed(str(error), bad_options=True))
    except Exception as error:
        log.exception("the engine could not be made")
        message = f"the engine could not be made: {type(error).__name__}: {error}"
        frontend.send(Failed(message, bad_options=False))
    return None


def main() -> None:
    """Run in a process of its own."""
    entered = time.monotonic()
    parts: EngineParts | None = None

    def keep() -> None:
        if parts is not None:
            parts.scheduler.manager.tiers.keep()

    config = enter_child("scheduler", keep)
    context = zmq.Context()
    frontend: Outbox[FromScheduler] = Outbox(context, config.endpoints.frontend)
    inbox: Inbox[ToScheduler] = Inbox(context, config.endpoints.scheduler, ToScheduler)
    detokenizer: Outbox[TokenBatch | Beat] = Outbox(context, config.endpoints.detokenizer)
    come_as_usual()  # with the threads that will compute; those of the sockets are there already
    parts = _built(config, frontend)
    if parts is None:
        frontend.close(linger=_SECONDS_TO_REPORT)
        context.destroy()
        raise SystemExit(1)
    seconds = {"start the process": entered - config.spawned, **parts.startup_seconds}
    stop_ids = list(parts.scheduler.config.eos_token_ids)
    frontend.send(Ready(_limits(parts), seconds, parts.facts, stop_ids))
    watchdog = Watchdog(config.watchdog_seconds, config.watchdog_exits)
    service = SchedulerService(parts.loop, inbox, detokenizer, frontend, parts.grammars, watchdog)
    if parts.grammars is not None:
        parts.grammars.prepare()
    # A step of the model would wait for a collection that looks through torch's objects.
    settle()
    while True:
        service.turn()
