"""The engine in processes of its own: started together, ended together.

Owns the life of the scheduler and the detokenizer process and the mailboxes between them and this
one. What is said over these is the `TokenizerManager`'s business.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import zmq

from phloem.grammar.vocabulary import Vocabulary
from phloem.server.children import Child, ChildConfig
from phloem.server.compiling import NoCompiler, ServiceCompiler, make_compiler
from phloem.server.config import ServerArgs
from phloem.server.ipc import Endpoints, Inbox, Outbox, private_endpoints
from phloem.server.located_model import LocatedModel
from phloem.server.messages import Failed, FromScheduler, Ready, TextBatch, ToScheduler
from phloem.server.tokenizer import Tokenizer
from phloem.server.tokenizer_manager import TokenizerManager
from phloem.server.vocabulary import grammar_vocabulary

_MODULES = {
    "scheduler": "phloem.server.scheduler_process",
    "detokenizer": "phloem.server.detokenizer_process",
}
_SECONDS_TO_EXPLAIN = 1.0
"""How long after a child's death its last message may arrive."""

Incoming = FromScheduler | TextBatch

log = logging.getLogger(__name__)


class StartupError(RuntimeError):
    """The engine could not be started, for a reason that other options would not change."""


@dataclass(frozen=True)
class RunningEngine:
    """An engine that has started."""

    manager: TokenizerManager
    startup_seconds: dict[str, float]
    """How long each part of the scheduler's start took."""
    died: asyncio.Future[str]
    """Done when a process has died, with a sentence that says so; nothing else works then."""
    pids: dict[str, int]
    """The process ids, by name."""


@asynccontextmanager
async def launched(
    model: LocatedModel, log_level: str = "info", log_format: str = "text"
) -> AsyncIterator[RunningEngine]:
    """Start an engine's processes; at the end nothing of them is left.

    Raises:
        ValueError: the options do not fit the model or the machine.
        StartupError: it could not be started.
    """
    loop = asyncio.get_running_loop()
    died: asyncio.Future[str] = loop.create_future()
    with private_endpoints() as endpoints, _mailboxes(endpoints, loop) as (inbox, outbox):
        config = ChildConfig(
            model.args,
            str(model.tokenizer_folder),
            endpoints,
            log_level,
            time.monotonic(),
            log_format,
        )
        with _children(config, loop, died) as pids:
            tokenizer = Tokenizer.from_folder(model.tokenizer_folder)
            first: asyncio.Future[Incoming] = loop.create_future()
            inbox.listen(loop, first.set_result)
            ready = await _ready(first, died)
            with _compiler(model.args, tokenizer, ready) as compiler:
                manager = TokenizerManager(tokenizer, ready.limits, compiler, outbox)
                inbox.listen(loop, manager.take)
                died.add_done_callback(lambda future: manager.fail(future.result()))
                try:
                    yield RunningEngine(manager, ready.startup_seconds, died, pids)
                finally:
                    manager.shut_down()


@contextmanager
def _compiler(
    args: ServerArgs, tokenizer: Tokenizer, ready: Ready
) -> Iterator[ServiceCompiler | NoCompiler]:
    def vocabulary() -> Vocabulary:
        return grammar_vocabulary(tokenizer, ready.limits.vocab_size, ready.stop_ids)

    compiler = make_compiler(args, vocabulary)
    try:
        yield compiler
    finally:
        compiler.close()


async def _ready(first: asyncio.Future[Incoming], died: asyncio.Future[str]) -> Ready:
    either: list[asyncio.Future[Any]] = [first, died]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if not first.done():
        await asyncio.wait([first], timeout=_SECONDS_TO_EXPLAIN)
    if not first.done():
        raise StartupError(f"{died.result()} before it was ready: see its messages above")
    message = first.result()
    if isinstance(message, Failed):
        raise (ValueError if message.bad_options else StartupError)(message.message)
    assert isinstance(message, Ready), f"the first message is {type(message).__name__}"
    return message


@contextmanager
def _mailboxes(
    endpoints: Endpoints, loop: asyncio.AbstractEventLoop
) -> Iterator[tuple[Inbox[Incoming], Outbox[ToScheduler]]]:
    context = zmq.Context()
    inbox: Inbox[Incoming] = Inbox(context, endpoints.frontend, Incoming)
    outbox: Outbox[ToScheduler] = Outbox(context, endpoints.scheduler)
    try:
        yield inbox, outbox
    finally:
        inbox.close(loop)
        outbox.close()
        context.term()


@contextmanager
def _children(
    config: ChildConfig, loop: asyncio.AbstractEventLoop, died: asyncio.Future[str]
) -> Iterator[dict[str, int]]:
    def tell(sentence: str) -> None:
        if not died.done():
            died.set_result(sentence)

    def on_death(sentence: str) -> None:
        log.error("%s", sentence)
        with suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            loop.call_soon_threadsafe(tell, sentence)

    children: list[Child] = []
    try:
        for name, module in _MODULES.items():
            children.append(Child(name, module, config, on_death))
        yield {child.name: child.pid for child in children}
    finally:
        for child in children:
            child.end()
        for child in children:
            child.join()
