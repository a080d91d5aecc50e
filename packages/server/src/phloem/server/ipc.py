"""How the server's processes reach each other: one-way mailboxes of msgspec messages over ZMQ.

Owns sockets, encoding and where the sockets lie. A mailbox never refuses a message and keeps those
of one sender in order: queues are unbounded, since a bound could make the processes, which send in
a circle, wait for each other.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import zmq

Message = TypeVar("Message")

_LONGEST_PATH = 100
"""Of a socket, in bytes; the kernel's limit is 104 or 108."""


class Endpoints(msgspec.Struct, frozen=True):
    """The address of each process's inbox, and the folder where these are."""

    folder: str
    scheduler: str
    detokenizer: str
    frontend: str


@contextmanager
def private_endpoints() -> Iterator[Endpoints]:
    """Addresses in a new folder that only this user may enter; it is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="phloem-"))
    if len(str(folder / "detokenizer").encode()) > _LONGEST_PATH:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="phloem-", dir="/tmp"))
    names = ("scheduler", "detokenizer", "frontend")
    try:
        yield Endpoints(str(folder), *(f"ipc://{folder / name}" for name in names))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Inbox(Generic[Message]):
    """The receiving end, at an address of its own."""

    def __init__(self, context: zmq.Context[Any], address: str, kind: Any) -> None:
        """Listen at `address` for messages of `kind`, a message class or a union of some."""
        self._socket = context.socket(zmq.PULL)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.bind(address)
        self._decode: Callable[[bytes], Message] = msgspec.msgpack.Decoder(kind).decode

    def take(self) -> Iterator[Message]:
        """The messages that are here; does not wait."""
        while self._socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            yield self._decode(self._socket.recv(zmq.NOBLOCK))

    def wait(self, timeout: float | None = None) -> Iterator[Message]:
        """Sleep until there is a message, `timeout` seconds at most; the messages that are here."""
        self._socket.poll(None if timeout is None else math.ceil(timeout * 1000))
        yield from self.take()

    def listen(self, loop: asyncio.AbstractEventLoop, take: Callable[[Message], None]) -> None:
        """From now on call `take` with each message, in the thread of an asyncio loop."""

        # The descriptor tells of news, not of what is still unread: so everything is read, and once
        # right now.
        def read() -> None:
            if not self._socket.closed:  # what was scheduled runs even after `close`
                for message in self.take():
                    take(message)

        loop.add_reader(self._socket.fileno(), read)
        loop.call_soon(read)

    def close(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Stop listening in `loop`, if it was, and give up the address."""
        if loop is not None:
            loop.remove_reader(self._socket.fileno())
        self._socket.close(linger=0)


class Outbox(Generic[Message]):
    """A sending end; the address need not be listened at yet."""

    def __init__(self, context: zmq.Context[Any], address: str) -> None:
        self._socket = context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(address)
        self._encode = msgspec.msgpack.Encoder().encode

    def send(self, message: Message) -> None:
        """Send without waiting."""
        self._socket.send(self._encode(message), zmq.NOBLOCK)

    def close(self, linger: float = 0) -> None:
        """Give up what is not sent within `linger` seconds of the context's end."""
        self._socket.close(linger=int(linger * 1000))
