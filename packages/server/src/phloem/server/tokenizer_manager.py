"""The API process's side of the engine: requests out, news in, each to whom it concerns.

Owns which requests are running and who waits for what. It implements `phloem.server.frontend`; the
processes behind the mailboxes are `phloem.server.launch`'s.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

from phloem.scheduler import (
    checked_new_tokens,
    checked_pooling,
    checked_priority,
    checked_prompt,
    checked_retention,
    checked_seconds,
)
from phloem.server.frontend import (
    EVERYBODY,
    SHUTTING_DOWN,
    ConstraintCompiler,
    Everybody,
    GenerationRequest,
    ServiceUnavailable,
)
from phloem.server.heartbeat import Heartbeat
from phloem.server.in_flight import Flight, Report, given_params
from phloem.server.ipc import Outbox
from phloem.server.messages import (
    Abort,
    ConstraintUse,
    Control,
    Forget,
    FromScheduler,
    Generate,
    Heard,
    Limits,
    Reply,
    TextBatch,
    TextNews,
    ToScheduler,
)
from phloem.server.running import Running, engine_name
from phloem.server.tokenizer import Tokenizer

Failure = Callable[[], ServiceUnavailable]
"""Makes the error that ends what runs, a new one for each who is told: a raised one gathers frames.
"""


class RequestStream:
    """The news of one request; implements `NewsStream`. One task reads it."""

    def __init__(self, abort: Callable[[], None], flight: Flight) -> None:
        self.flight = flight
        self._abort = abort
        self._news: deque[TextNews] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._failure: Failure | None = None
        self._over = False
        """Nothing more is read: the last news was, or the stream is closed."""
        self._told: Callable[[TextNews], object] | None = None
        """Hears of the last news of one that is closed."""

    @property
    def closed(self) -> bool:
        """Whether nobody reads on."""
        return self._over

    def __aiter__(self) -> AsyncIterator[TextNews]:
        return self

    async def __anext__(self) -> TextNews:
        """The next news, as `NewsStream` says."""
        while not self._news:
            if self._over:
                raise StopAsyncIteration
            if self._failure is not None:
                raise self._failure()
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._next()

    def ready(self) -> TextNews | None:
        """The next news, if they are here already."""
        return self._next() if self._news else None

    def close(self, told: Callable[[TextNews], object] | None = None) -> None:
        """End the request unless it has ended, as `NewsStream` says."""
        if not self._over:
            self._over, self._told = True, told
            self._news.clear()
            self._abort()
            self._wake()

    def put(self, news: TextNews) -> None:
        """More news; from the manager."""
        news.rid = self.flight.request.rid
        self.flight.take(news)
        if not self._over:
            self._news.append(news)
            self._wake()
        elif news.finish is not None and self._told is not None:
            self._told(news)

    def fail(self, failure: Failure) -> None:
        """There will be no more; from the manager."""
        self._failure = failure
        self._wake()

    def _next(self) -> TextNews:
        news = self._news.popleft()
        self._over = news.finish is not None
        return news

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class TokenizerManager:
    """An engine in other processes; implements `Frontend`. One asyncio loop uses it."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        limits: Limits,
        grammar: ConstraintCompiler,
        scheduler: Outbox[ToScheduler],
        report: Report = lambda reason, flights, dead: None,
        keep_texts: bool = False,
    ) -> None:
        """`report` hears of failures of the engine; `keep_texts`: with what was said so far."""
        self.heartbeat = Heartbeat(scheduler.send)
        self._report = report
        self._keep_texts = keep_texts
        self.tokenizer = tokenizer
        self.limits = limits
        self.grammar = grammar
        self._scheduler = scheduler
        self._streams: Running[RequestStream] = Running()
        """Until the last news, of closed ones too: till then their ids are in use."""
        self._keys: dict[str, str] = {}
        """Of the constraints that running requests name."""
        self._users: Counter[str] = Counter()
        """How many name each."""
        self._replies: dict[int, asyncio.Future[Reply]] = {}
        self._ids = count()
        self._failure: Failure | None = None
        self.draining = False
        self.retry_after: float | None = None
        self._idle = asyncio.Event()
        """No request is in flight; kept up to date while draining."""

    def start(self, request: GenerationRequest) -> RequestStream:
        """Check a request and send it off, as `Frontend` says."""
        self._check_alive()
        if self.draining:
            raise ServiceUnavailable(SHUTTING_DOWN, self.retry_after)
        params = request.params
        name = self._streams.check_free(request)
        prompt = checked_prompt(request.prompt_ids, self.limits.vocab_size)
        params.check_vocabulary(self.limits.vocab_size)
        checked_new_tokens(
            len(prompt),
            params,
            self.limits.context_len,
            self.limits.capacity,
            self.limits.max_total_tokens,
        )
        kept = request.retention
        if kept is not None:
            kept = checked_retention(kept, len(prompt))
        pooling = checked_pooling(request.pooling, params)
        seconds = checked_seconds(request.timeout, "timeout")
        queue_seconds = checked_seconds(request.queue_timeout, "queue_timeout")
        priority = checked_priority(request.priority, self.limits.priorities)
        # Behind all checks: from here on the request is one that runs.
        use = self._use(request)
        message = Generate(
            name,
            prompt.tolist(),
            given_params(params),
            list(request.namespace),
            request.skip_special_tokens,
            seconds,
            queue_seconds,
            priority,
            request.tenant,
            use,
            None if kept is None else kept.seconds,
            None if kept is None else kept.tokens,
            pooling,
            request.keep_stop,
            request.explain_cache,
            list(request.shown_ids),
        )
        self._scheduler.send(message)
        flight = Flight(request, texts=[] if self._keep_texts else None)
        stream = RequestStream(partial(self._send_abort, [name]), flight)
        self._streams.add(request, stream)
        return stream

    def abort(self, rid: str | None, tenant: str | Everybody | None = EVERYBODY) -> int:
        """End one request or all, as `Frontend` says; how many were running."""
        named = self._streams.named(rid, tenant)
        running = [name for name, stream in named.items() if not stream.closed]
        if running:
            self._send_abort(running)
        return len(running)

    async def ping(self, timeout: float) -> None:
        """Whether the processes pass on what they are sent, as `Frontend` says."""
        self._check_alive()
        self.heartbeat.check(timeout)

    async def state(self) -> dict[str, Any]:
        """The scheduler's state; see `phloem.server.control`."""
        return await self._ask("state")

    async def tree(self, limit: int) -> dict[str, Any]:
        """The KV pool and the heavy part of the prefix tree, as `Frontend` says."""
        return await self._ask("tree", limit=limit)

    async def tree_node(self, id: str) -> list[int] | None:
        """The first tokens of a node of the tree, as `Frontend` says."""
        tokens: list[int] | None = (await self._ask("tree_node", id=id))["tokens"]
        return tokens

    async def flush_cache(self, timeout: float = 0.0) -> int:
        """Forget cached prefixes, as `Frontend` says."""
        freed: int = (await self._ask("flush_cache", timeout=timeout))["freed"]
        return freed

    async def pause(self, mode: str) -> None:
        """Hold all requests still, as `Frontend` says."""
        await self._ask("pause", mode=mode)

    async def resume(self) -> None:
        """Let them go on."""
        await self._ask("resume")

    async def set_weight_version(self, name: str) -> None:
        """Say that the model has other weights now."""
        await self._ask("set_weight_version", name=name)

    async def drain(self, timeout: float) -> None:
        """Take no more requests, and let those that run go on for `timeout` seconds at most.

        What runs after that is left to `shut_down`.
        """
        self.draining, self.retry_after = True, timeout
        self._note_idle()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout)

    def shut_down(self) -> None:
        """End all that runs, with `ServiceUnavailable`, and take no more."""
        self.abort(None)
        # Another server may take this one's place at once.
        self.fail(SHUTTING_DOWN, retry_after=0.0)

    @property
    def running(self) -> int:
        """Requests that have not ended."""
        return len(self._streams)

    # From the other processes.

    def take(self, message: FromScheduler | TextBatch) -> None:
        """Pass on what another process sent."""
        if isinstance(message, TextBatch):
            streams = self._streams
            for news in message.news:
                rid = news.rid
                if news.finish is not None and news.finish.status_code == 500:
                    self._tell_failure(news.finish.message or "a request failed", dead=False)
                stream = streams.get(rid) if news.finish is None else streams.pop(rid)
                if news.finish is not None:
                    self._release(rid)
                if stream is not None:  # none: the engine has ended, one process after the other
                    stream.put(news)
            self._note_idle()
        elif isinstance(message, Reply):
            waiting = self._replies.pop(message.id, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(message)
        elif isinstance(message, Heard):
            self.heartbeat.take(message)

    def crash(self, message: str) -> None:
        """A process has died: tell of it, and `fail`."""
        self._tell_failure(message, dead=True)
        self.fail(message)

    def fail(self, message: str, retry_after: float | None = None) -> None:
        """The engine has ended: so does all that runs, with `ServiceUnavailable`."""
        failure = partial(ServiceUnavailable, message, retry_after)
        self._failure = self._failure or failure
        for stream in self._streams.clear():
            stream.fail(failure)
        self._note_idle()
        replies, self._replies = self._replies, {}
        for waiting in replies.values():
            if not waiting.done():
                waiting.set_exception(failure())

    def _tell_failure(self, reason: str, dead: bool) -> None:
        self._report(reason, [stream.flight for stream in self._streams], dead)

    def _use(self, request: GenerationRequest) -> ConstraintUse | None:
        """How a request names its constraint, which is sent with the first that names it."""
        if request.constraint is None:
            return None
        load, use = request.constraint
        if load is None:
            return use
        if not self._users[load.key]:
            self._scheduler.send(load)
        self._users[load.key] += 1
        self._keys[engine_name(request.rid, request.tenant)] = load.key
        return use

    def _release(self, rid: str) -> None:
        key = self._keys.pop(rid, None)
        if key is None:
            return
        self._users[key] -= 1
        if not self._users[key]:
            del self._users[key]
            if self._failure is None:
                self._scheduler.send(Forget([key]))

    def _send_abort(self, rids: list[str]) -> None:
        if self._failure is None:
            self._scheduler.send(Abort(rids))

    async def _ask(self, action: str, **options: Any) -> dict[str, Any]:
        self._check_alive()
        number = next(self._ids)
        waiting = self._replies[number] = asyncio.get_running_loop().create_future()
        self._scheduler.send(Control(number, action, options))
        try:
            reply = await waiting
        finally:
            self._replies.pop(number, None)
        if reply.error is not None:
            raise ValueError(reply.error)
        return reply.value

    def _note_idle(self) -> None:
        if self.draining and not self._streams:
            self._idle.set()

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise self._failure()
