"""The options of the HTTP server, beside the engine's (`phloem.server.config`)."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass

from phloem.server.config import check_choices, check_types, option
from phloem.server.observability.access_log import LEVELS as LOGGED_OF_REQUESTS
from phloem.server.observability.logs import FORMATS as LOG_FORMATS
from phloem.server.observability.tracing import check_tracing
from phloem.server.parsers.registry import REASONING_PARSERS, TOOL_CALL_PARSERS

HTTP = "HTTP"
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
    log_level: str = option(
        "info", "what is logged; debug: health checks too", group=HTTP, choices=LOG_LEVELS
    )
    log_format: str = option(
        "text", "how lines of the log look, in all processes", group=HTTP, choices=LOG_FORMATS
    )
    log_requests: str = option(
        "meta",
        "what the log has of each request; meta: how it went; text: also how it and its answer "
        "begin",
        group=HTTP,
        choices=LOGGED_OF_REQUESTS,
    )
    otlp_traces_endpoint: str | None = option(
        None,
        "URL that takes OpenTelemetry traces over HTTP, such as http://localhost:4318/v1/traces; "
        "needs phloem-server[otel]; none: no traces",
        group=HTTP,
    )
    strict_fields: bool = option(
        False, "refuse fields of requests that no endpoint knows, not only warn of them", group=HTTP
    )
    chat_template: str | None = option(
        None, "file with a chat template in the place of the model's", group=HTTP
    )
    trust_request_chat_template: bool = option(
        False, "let requests bring chat templates, which are programs", group=HTTP
    )
    tool_call_parser: str = option(
        "auto",
        "notation of the model's tool calls; auto: by its chat template",
        group=HTTP,
        choices=TOOL_CALL_PARSERS,
    )
    reasoning_parser: str = option(
        "auto",
        "notation of the model's reasoning; auto: by its chat template",
        group=HTTP,
        choices=REASONING_PARSERS,
    )
    drain_seconds: float = option(
        5.0, "how long running requests may go on after a first Ctrl-C or SIGTERM", group=HTTP
    )

    def __post_init__(self) -> None:
        check_types(self)
        if not 0 <= self.port < 2**16:
            raise ValueError(f"port {self.port} is no port: use one from 0 to {2**16 - 1}")
        self._check_grpc()
        if not 0 <= self.drain_seconds < math.inf:
            raise ValueError(
                f"drain_seconds {self.drain_seconds:g} is no time to wait: use 0 or more seconds"
            )
        if self.served_model_name == "":
            raise ValueError("served_model_name is empty: give the model a name")
        check_choices(self)
        if self.otlp_traces_endpoint is not None:
            check_tracing(self.otlp_traces_endpoint)

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
