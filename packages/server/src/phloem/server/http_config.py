"""The options of the HTTP server, beside the engine's (`phloem.server.config`)."""

from __future__ import annotations

import importlib.util
import math
import re
from dataclasses import dataclass, fields
from typing import Any

from phloem.server.config import ServerArgs
from phloem.server.observability.access_log import LEVELS as LOGGED_OF_REQUESTS
from phloem.server.observability.logs import FORMATS as LOG_FORMATS
from phloem.server.observability.tracing import check_tracing
from phloem.server.options import (
    check_choices,
    check_lets_in,
    check_types,
    check_without_effect,
    option,
)
from phloem.server.parsers.registry import (
    AUTO,
    HARMONY,
    NONE,
    REASONING_PARSERS,
    TOOL_CALL_PARSERS,
)
from phloem.server.watchdog import ACTIONS as WATCHDOG_ACTIONS

HTTP, LOGGING, CHAT, HEALTH = "HTTP", "Logging", "Chat", "Health"
ACCESS, CONNECTION = "Access", "Connection"
METRICS_ACCESS = ("key", "admin", "open")
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpArgs:
    """What a user says about the server around the engine.

    Raises:
        ValueError: for a value that no server could be made with, naming it.
    """

    host: str = option("127.0.0.1", "address to listen on; 0.0.0.0: on all of them", group=HTTP)
    port: int = option(30000, "port to listen on; 0: any that is free", group=HTTP)
    grpc_port: int | None = option(
        None,
        "port for gRPC beside HTTP; 0: any that is free; needs phloem-server[grpc]; none: no gRPC",
        group=HTTP,
    )
    served_model_name: str | None = option(
        None, "what the API calls the model; none: its own name", group=HTTP
    )
    strict_fields: bool = option(
        False, "refuse fields of requests that no endpoint knows, not only warn of them", group=HTTP
    )
    max_stored_responses: int = option(
        1000,
        "responses that are kept for clients to come back to, of all keys; 0: none",
        group=HTTP,
    )
    max_stored_response_bytes: int = option(64 << 20, "bytes that these may take", group=HTTP)
    log_level: str = option(
        "info", "what is logged; debug: health checks too", group=LOGGING, choices=LOG_LEVELS
    )
    log_format: str = option(
        "text", "how lines of the log look, in all processes", group=LOGGING, choices=LOG_FORMATS
    )
    log_requests: str = option(
        "meta",
        "what the log has of each request; meta: how it went; text: also how it and its answer "
        "begin",
        group=LOGGING,
        choices=LOGGED_OF_REQUESTS,
    )
    otlp_traces_endpoint: str | None = option(
        None,
        "URL that takes OpenTelemetry traces over HTTP, such as http://localhost:4318/v1/traces; "
        "needs phloem-server[otel]; none: no traces",
        group=LOGGING,
    )
    chat_template: str | None = option(
        None, "file with a chat template in the place of the model's", group=CHAT
    )
    trust_request_chat_template: bool = option(
        False, "let requests bring chat templates, which are programs", group=CHAT
    )
    tool_call_parser: str = option(
        "auto",
        "notation of the model's tool calls; auto: by its chat template",
        group=CHAT,
        choices=TOOL_CALL_PARSERS,
    )
    reasoning_parser: str = option(
        "auto",
        "notation of the model's reasoning; auto: by its chat template",
        group=CHAT,
        choices=REASONING_PARSERS,
    )

    drain_seconds: float = option(
        20.0, "how long running requests may go on after a first Ctrl-C or SIGTERM", group=HEALTH
    )
    health_timeout: float = option(
        10.0,
        "seconds for which a process of the engine may be silent before /health is 503",
        group=HEALTH,
    )
    watchdog_timeout: float = option(
        300.0,
        "seconds that a step may take before the stacks of its process are logged; 0: any time",
        group=HEALTH,
    )
    watchdog_action: str = option(
        "log",
        "what else happens then; exit: the process ends, and the server with it",
        group=HEALTH,
        choices=WATCHDOG_ACTIONS,
    )
    crash_dump_dir: str | None = option(
        None,
        "folder for files that tell what was in flight when a part of the engine failed",
        group=HEALTH,
    )
    crash_dump_text: bool = option(
        False, "let these have prompts and outputs, not only their lengths", group=HEALTH
    )

    api_key: tuple[str, ...] = option(
        (),
        "key that callers must have; may be given several times; none: everybody is trusted",
        group=ACCESS,
        secret_env="PHLOEM_API_KEYS",
    )
    api_keys_file: str | None = option(
        None, "file with the hashes of more keys, which `phloem keys` makes", group=ACCESS
    )
    admin_api_key: str | None = option(
        None,
        "key for what concerns all callers: flushing the cache, pausing, ending all requests",
        group=ACCESS,
        secret_env="PHLOEM_ADMIN_API_KEY",
    )
    metrics_access: str = option(
        "key", "who may read /metrics; open: everybody", group=ACCESS, choices=METRICS_ACCESS
    )
    share_cache_between_keys: bool = option(
        False,
        "let callers find prefixes that others have cached; how fast an answer comes then tells "
        "what others have asked",
        group=ACCESS,
    )
    rate_limit_requests: int | None = option(
        None, "sequences a minute that each key may ask for", group=ACCESS
    )
    rate_limit_tokens: int | None = option(
        None, "tokens a minute for each key, of prompts and outputs together", group=ACCESS
    )
    max_concurrent_per_key: int | None = option(
        None, "sequences that each key may have at a time", group=ACCESS
    )
    cors_origin: tuple[str, ...] = option(
        (),
        "origin whose pages may read answers in a browser, such as https://example.org; may be "
        "given several times; *: all",
        group=ACCESS,
    )
    ssl_certfile: str | None = option(
        None, "certificate (PEM) for TLS; none: plain HTTP", group=CONNECTION
    )
    ssl_keyfile: str | None = option(
        None, "its private key; none: it is in the same file", group=CONNECTION
    )
    ssl_ca_certs: str | None = option(
        None,
        "certificates (PEM) of who vouches for clients, which then show theirs",
        group=CONNECTION,
    )
    ssl_client_certs: str = option(
        "required",
        "whether a client must show a certificate, where there are ssl_ca_certs",
        group=CONNECTION,
        choices=("required", "optional"),
    )
    max_request_bytes: int = option(
        16 << 20, "bytes that a request's body may have", group=CONNECTION
    )
    max_connections: int = option(
        4096,
        "connections at a time; for one more, one without a whole request is closed, or it gets "
        "a 503",
        group=CONNECTION,
    )
    header_timeout: float = option(
        10.0, "seconds in which the headers of a request must arrive", group=CONNECTION
    )
    body_timeout: float = option(60.0, "the same for its body", group=CONNECTION)
    write_timeout: float = option(
        60.0,
        "seconds for which a client may leave unread what was sent to it, while more waits",
        group=CONNECTION,
    )

    def __post_init__(self) -> None:
        check_types(self)
        self._check_access()
        self._check_connections()
        if not 0 <= self.port < 2**16:
            raise ValueError(f"port {self.port} is no port: use one from 0 to {2**16 - 1}")
        self._check_grpc()
        if not 0 <= self.drain_seconds < math.inf:
            raise ValueError(
                f"drain_seconds {self.drain_seconds:g} is no time to wait: use 0 or more seconds"
            )
        self._check_faults()
        self._check_chats()
        for name in ("max_stored_responses", "max_stored_response_bytes"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} {getattr(self, name)} is no amount: give 0 or more")
        if self.served_model_name == "":
            raise ValueError("served_model_name is empty: give the model a name")
        if self.otlp_traces_endpoint is not None:
            check_tracing(self.otlp_traces_endpoint)

    def _check_faults(self) -> None:
        if not 0 < self.health_timeout < math.inf:
            raise ValueError(
                f"health_timeout {self.health_timeout:g} is no time to wait: give more than 0 "
                "seconds"
            )
        if not 0 <= self.watchdog_timeout < _LONGEST_WATCH:
            raise ValueError(
                f"watchdog_timeout {self.watchdog_timeout:g} is no time to wait: give less than "
                f"{_LONGEST_WATCH} seconds, or 0 for no watchdog"
            )
        if self.watchdog_action == "exit" and not self.watchdog_timeout:
            raise ValueError(
                "watchdog_action exit was given with watchdog_timeout 0, so that it never happens: "
                "give a time, or leave it out"
            )
        if self.crash_dump_text and self.crash_dump_dir is None:
            raise ValueError(
                "crash_dump_text was given without a crash_dump_dir, so that nothing is written: "
                "give a folder, or leave it out"
            )

    def _check_chats(self) -> None:
        check_choices(self)
        named = {self.tool_call_parser, self.reasoning_parser} - {AUTO, NONE}
        if HARMONY in named and len(named) > 1:
            raise ValueError(
                f"tool_call_parser {self.tool_call_parser} and reasoning_parser "
                f"{self.reasoning_parser} are different notations, and {HARMONY} has both: give "
                f"{HARMONY} for both, or leave one of them {AUTO}"
            )
        if self.log_requests == "text" and self.log_level in ("warning", "error"):
            raise ValueError(
                f"log_requests text shows nothing with log_level {self.log_level}, since these "
                "lines are of level info: use log_level info, or leave it out"
            )

    def _check_grpc(self) -> None:
        port = self.grpc_port
        if port is None:
            return
        if not 0 <= port < 2**16:
            raise ValueError(f"grpc_port {port} is no port: use one from 0 to {2**16 - 1}")
        if port == self.port != 0:
            raise ValueError(f"grpc_port {port} is that of HTTP too: use another one")
        if any(importlib.util.find_spec(library) is None for library in ("grpc", "grpc_health")):
            raise ValueError(
                f"grpc_port is {port}, and the libraries for gRPC are not installed: "
                "pip install 'phloem-server[grpc]', or leave out --grpc-port"
            )

    def _check_access(self) -> None:
        check_lets_in(self, _LETS_IN)
        for origin in self.cors_origin:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"cors_origin {origin!r} is no origin: give scheme and host, such as "
                    "https://example.org, without a path, or *"
                )
        keyed = self.api_key or self.api_keys_file is not None
        if self.share_cache_between_keys and not keyed:
            raise ValueError(
                "share_cache_between_keys was given without keys, between which nothing is apart: "
                "give an api_key or an api_keys_file, or leave it out"
            )
        if self.metrics_access == "admin" and self.admin_api_key is None:
            raise ValueError(
                "metrics_access admin was given without an admin_api_key, so that nobody could "
                "read them: give one"
            )

    def _check_connections(self) -> None:
        for name in ("ssl_keyfile", "ssl_ca_certs"):
            if getattr(self, name) is not None and self.ssl_certfile is None:
                raise ValueError(
                    f"{name} was given without an ssl_certfile, so that there is no TLS: give the "
                    "server's certificate too"
                )
        if self.ssl_client_certs == "optional" and self.ssl_ca_certs is None:
            raise ValueError(
                "ssl_client_certs optional was given without ssl_ca_certs, so that no client is "
                "asked for a certificate: give them, or leave it out"
            )
        for name in ("header_timeout", "body_timeout", "write_timeout"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(
                    f"{name} {getattr(self, name):g} is no time to wait: give more than 0 seconds"
                )


_LETS_IN = (
    "max_concurrent_per_key",
    "max_connections",
    "max_request_bytes",
    "rate_limit_requests",
    "rate_limit_tokens",
)
_LONGEST_WATCH = 1_000_000
"""Seconds: eleven days."""
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s]+")


def check_together(engine: ServerArgs, http: HttpArgs) -> None:
    """Refuse options of the server that those of the engine leave without effect.

    Raises:
        ValueError: naming them.
    """
    if engine.disable_radix_cache:
        check_without_effect(
            http,
            ("share_cache_between_keys",),
            "since disable_radix_cache lets nothing be shared",
            "leave out disable_radix_cache",
        )


def shown_options(options: HttpArgs) -> dict[str, Any]:
    """The options, without those that are secrets."""
    return {
        field.name: getattr(options, field.name)
        for field in fields(options)
        if field.metadata["secret_env"] is None
    }
