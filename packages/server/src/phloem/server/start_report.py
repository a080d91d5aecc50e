"""What came of a server's options: for whoever starts it, and for logs.

Owns which of them matter and what they are called. There is nothing secret in it, and no path.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phloem.server.config import ServerArgs
from phloem.server.http_config import HttpArgs
from phloem.server.messages import EngineFacts, Limits
from phloem.server.parsers.registry import Notation

Report = Mapping[str, Mapping[str, Any]]
"""Values by what they belong to; None: no limit, or nothing of it."""


def start_report(
    name: str,
    args: ServerArgs,
    http: HttpArgs,
    limits: Limits,
    facts: EngineFacts,
    endpoints: Mapping[str, Any],
    notation: Notation,
) -> Report:
    """All that matters of a server called `name`, with what was `auto` resolved."""
    return {
        "model": {"name": name, **_model(limits, facts)},
        "chat": {"tool_calls": notation.tool_calls, "reasoning": notation.reasoning},
        "kv_cache": _kv_cache(args, limits, facts),
        "scheduling": {
            "policy": args.schedule_policy,
            "chunk": facts.chunk,
            "mixed": args.enable_mixed_chunk,
            "overlap": facts.overlap,
            "priorities": args.uses_priorities,
            "fair_to_tenants": args.enable_tenant_fairness,
            "grammar": args.grammar_backend,
        },
        "limits": {
            "running_requests": args.max_running_requests,
            "queued_requests": args.max_queued_requests,
            "seconds_a_request": args.request_timeout,
            "connections": http.max_connections,
            "bytes_a_body": http.max_request_bytes,
            "requests_a_minute_and_key": http.rate_limit_requests,
            "tokens_a_minute_and_key": http.rate_limit_tokens,
        },
        "access": {
            "keys": bool(http.api_key) or http.api_keys_file is not None,
            "admin_key": http.admin_api_key is not None,
            "metrics": http.metrics_access,
        },
        "endpoints": endpoints,
    }


def report_lines(report: Report) -> list[str]:
    """The same for a reader, a line for each part."""
    width = max(map(len, report))
    return [
        f"{_words(part):<{width}}  "
        + ", ".join(f"{_words(name)} {_shown(value)}" for name, value in values.items())
        for part, values in report.items()
    ]


def _model(limits: Limits, facts: EngineFacts) -> dict[str, Any]:
    return {
        "weights": facts.quantization,
        "activations": facts.dtype,
        "kernels": facts.kernels,
        "device": facts.device,
        "context": limits.context_len,
    }


def _kv_cache(args: ServerArgs, limits: Limits, facts: EngineFacts) -> dict[str, Any]:
    return {
        "tokens": limits.capacity,
        "mib": round(facts.kv_bytes / 2**20, 1),
        "dtype": facts.kv_dtype,
        "page": args.page_size,
        "shares_prefixes": not args.disable_radix_cache,
        "host_gib": args.host_cache_gb,
        "disk": args.disk_cache is not None,
    }


def _words(name: str) -> str:
    return name.replace("_", " ")


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else f"{value}"
