"""The server: the HTTP API over an engine in processes of its own, until it is told to end.

Owns the main process: the port, the signals, the order of a start and of an end. A first Ctrl-C or
SIGTERM drains the server: running requests go on up to a limit, while it is not ready and refuses
new ones. A second one ends what runs. If a process of the engine dies, everything ends.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
from starlette.types import ASGIApp

from phloem.server.background import SERVING
from phloem.server.bodies.reader import BodyReader
from phloem.server.children import Ahead
from phloem.server.crash_dump import CrashDumps
from phloem.server.garbage import settle
from phloem.server.guarded_server import Guard, GuardedServer
from phloem.server.http import create_app
from phloem.server.http.chat_setup import chat_options
from phloem.server.http.responses.store import ResponseStore
from phloem.server.http_config import HttpArgs, shown_options
from phloem.server.launch import Care, RunningEngine, StartupError, launched
from phloem.server.located_model import LocatedModel
from phloem.server.observability.logs import set_up_logs
from phloem.server.observability.observe import observed
from phloem.server.observability.watch import Observation
from phloem.server.parsers.registry import notation_of
from phloem.server.start_report import report_lines, start_report
from phloem.server.startup import Laps, breakdown
from phloem.server.time_slice import come_soon
from phloem.server.tokenizer_manager import TokenizerManager
from phloem.server.version import version

if TYPE_CHECKING:
    from phloem.server.grpc.server import GrpcServer

_SECONDS_TO_CLOSE = 5
"""After the drain: for clients to read the rest of their answers."""
_SECONDS_TO_TELL = 0.5
"""The same, after a second signal."""
_BACKLOG = 2048

Say = Callable[[str], None]
"""Shows a line to the user."""

log = logging.getLogger(__name__)

__all__ = ["SERVING", "Say", "serve"]


def serve(
    model: LocatedModel,
    http: HttpArgs,
    guard: Guard,
    say: Say,
    laps: Laps,
    ahead: Ahead | None = None,
) -> int:
    """Serve until a signal or a dead process ends it; returns the exit status.

    `laps` has measured the start so far; the whole of it is said when the server is ready. `ahead`
    is the scheduler's process, if that has been started.

    Raises:
        ValueError: the options do not fit the model or the machine.
        StartupError: the engine could not be started, or the port is not to be had.
    """
    set_up_logs("api", http.log_level, http.log_format)
    come_soon()
    # As in the engine's processes: a crash in native code writes stacks, and so does SIGUSR1.
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    name = http.served_model_name or model.name
    with (
        observed(http, name, laps.seconds) as seen,
        _bound_socket(http) as listener,
        _new_loop() as loop,
    ):
        return loop.run_until_complete(
            _Serving(model, http, guard, listener, say, laps, seen, ahead).run()
        )


class _Serving:
    """One run of the server, and what a signal does to it at each stage."""

    def __init__(
        self,
        model: LocatedModel,
        http: HttpArgs,
        guard: Guard,
        listener: socket.socket,
        say: Say,
        laps: Laps,
        observation: Observation,
        ahead: Ahead | None,
    ) -> None:
        self._model = model
        self._ahead = ahead
        self._http = http
        self._listener = listener
        self._say = say
        self._laps = laps
        self._observation = observation
        self._name = http.served_model_name or model.name
        self._chat = chat_options(http)
        self._guard = guard
        self._on_signal: Callable[[], object] = lambda: None
        self._drain: asyncio.Task[None] | None = None
        """Since the first signal."""
        self._grpc: GrpcServer | None = None

    async def run(self) -> int:
        """Start, serve, end; returns the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, lambda: self._on_signal())
        task = loop.create_task(self._serve())
        self._on_signal = task.cancel
        try:
            return await task
        except asyncio.CancelledError:
            return 0  # a signal during the start

    async def _serve(self) -> int:
        http = self._http
        with self._crash_dumps() as dumps:
            care = Care(
                http.health_timeout,
                http.watchdog_timeout,
                http.watchdog_action == "exit",
                dumps.report,
                dumps.texts,
            )
            logs = (http.log_level, http.log_format)
            async with launched(self._model, *logs, care, self._ahead) as engine:
                status = await self._serve_engine(engine)
            await dumps.written()
        return status

    async def _serve_engine(self, engine: RunningEngine) -> int:
        async with BodyReader() as bodies:
            return await self._serve_app(engine, self._app(engine, bodies))

    async def _serve_app(self, engine: RunningEngine, app: ASGIApp) -> int:
        async with self._grpc_server(app) as self._grpc:
            server = self._server(app)
            engine.died.add_done_callback(lambda _: _let_end(server))
            self._on_signal = lambda: self._end_soon(server, engine.manager)
            settle()
            # From here on a client that comes waits; before, it was refused.
            self._listener.listen(_BACKLOG)
            self._tell_ready(engine)
            try:
                await server.serve(sockets=[self._listener])
            finally:
                if self._drain is not None:
                    self._drain.cancel()
        return 1 if engine.died.done() else 0

    def _crash_dumps(self) -> CrashDumps:
        folder = self._http.crash_dump_dir
        about = {
            "version": version(),
            "pid": os.getpid(),
            "model": self._name,
            "engine_options": asdict(self._model.args),
            "server_options": shown_options(self._http),
        }
        return CrashDumps(
            None if folder is None else Path(folder), self._http.crash_dump_text, about
        )

    def _app(self, engine: RunningEngine, bodies: BodyReader) -> ASGIApp:
        return create_app(
            engine.manager,
            served_model_name=self._name,
            chat=self._chat,
            options=asdict(self._model.args),
            observation=self._observation,
            strict_fields=self._http.strict_fields,
            max_body_bytes=self._http.max_request_bytes,
            health_timeout=self._http.health_timeout,
            access=self._guard.access,
            limiter=self._guard.limiter,
            cors_origins=self._http.cors_origin,
            connections=self._guard.counts,
            responses=ResponseStore(
                self._http.max_stored_responses, self._http.max_stored_response_bytes
            ),
            bodies=bodies,
        )

    @asynccontextmanager
    async def _grpc_server(self, app: ASGIApp) -> AsyncIterator[GrpcServer | None]:
        http = self._http
        if http.grpc_port is None:
            yield None
            return
        # Imported here: gRPC is an extra.
        from phloem.server.grpc.server import grpc_server, tls_credentials

        tls = None
        if http.ssl_certfile is not None:
            # A certificate that is optional is not asked for: gRPC knows no way between.
            wanted = http.ssl_ca_certs if http.ssl_client_certs == "required" else None
            tls = tls_credentials(http.ssl_certfile, http.ssl_keyfile, wanted)
        where = (http.host, http.grpc_port, http.max_request_bytes)
        most = self._guard.connections.connections
        async with grpc_server(app, *where, tls, most) as server:
            yield server

    def _server(self, app: ASGIApp) -> uvicorn.Server:
        verbose = self._http.log_level == "debug"
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level="debug" if verbose else "warning",
            access_log=False,
            ws="none",
            # The app has nothing to do at its start and end, and a forced end skips its end.
            lifespan="off",
            timeout_graceful_shutdown=_SECONDS_TO_CLOSE,
        )
        return GuardedServer(config, self._guard)

    def _end_soon(self, server: uvicorn.Server, manager: TokenizerManager) -> None:
        loop = asyncio.get_running_loop()
        if self._drain is None:
            if manager.running:
                requests = (
                    "1 request goes" if manager.running == 1 else f"{manager.running} requests go"
                )
                self._say(
                    f"{requests} on for {self._http.drain_seconds:g} s at most; a second signal "
                    "ends what runs"
                )
            self._drain = loop.create_task(self._end_after_drain(server, manager))
            return
        manager.shut_down()
        _let_end(server)
        loop.call_later(_SECONDS_TO_TELL, _force_end, server)

    async def _end_after_drain(self, server: uvicorn.Server, manager: TokenizerManager) -> None:
        if self._grpc is not None:
            self._grpc.drain()
        await manager.drain(self._http.drain_seconds)
        manager.shut_down()
        _let_end(server)

    def _tell_ready(self, engine: RunningEngine) -> None:
        self._laps.lap("start the engine")
        scheme = "http" if self._guard.tls is None else "https"
        where = f"{scheme}://{_address(self._http.host, self._listener.getsockname()[1])}"
        grpc = None if self._grpc is None else _address(self._http.host, self._grpc.port)
        endpoints = {"http": where, "ui": "/ui", "metrics": "/metrics", "grpc": grpc}
        report = start_report(
            self._name,
            self._model.args,
            self._http,
            engine.manager.limits,
            engine.facts,
            endpoints,
            notation_of(
                self._chat.tool_call_parser,
                self._chat.reasoning_parser,
                engine.manager.tokenizer.chat_template,
            ),
        )
        seconds = {**self._laps.seconds, "engine": engine.startup_seconds}
        if self._http.log_format == "json":
            log.info("ready", extra={"fields": {**report, "startup_seconds": seconds}})
        else:
            for line in report_lines(report):
                self._say(line)
        total = sum(self._laps.seconds.values())
        self._say(
            f"ready after {total:.2f} s: {breakdown(self._laps.seconds)} "
            f"({breakdown(engine.startup_seconds)})"
        )
        if grpc is not None:
            self._say(f"gRPC at {grpc}")
        self._say(f"{SERVING} {self._name} at {where}")


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _let_end(server: uvicorn.Server) -> None:
    server.should_exit = True


def _force_end(server: uvicorn.Server) -> None:
    server.force_exit = True


@contextmanager
def _bound_socket(http: HttpArgs) -> Iterator[socket.socket]:
    """A socket at the address of `http`, not listening yet.

    Raises:
        StartupError: the address is not to be had.
    """
    family = socket.AF_INET6 if ":" in http.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((http.host, http.port))
        except OSError as error:
            raise StartupError(
                f"cannot listen on {http.host} port {http.port} ({os.strerror(error.errno or 0)}): "
                "choose another --host or --port"
            ) from error
        yield bound


@contextmanager
def _new_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop, of uvloop where that is installed."""
    try:
        import uvloop
    except ImportError:
        loop = asyncio.new_event_loop()
    else:
        loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        yield loop
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()
