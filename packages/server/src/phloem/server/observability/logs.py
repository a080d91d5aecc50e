"""How log lines look, the same in every process: as text, or one JSON object each.

Lines that are made while a request is answered say which. It imports nothing heavy: the
detokenizer process logs too.
"""

from __future__ import annotations

import json
import logging
import time
from typing import Any

from phloem.server.observability.watch import current_watch

FORMATS = ("text", "json")


def set_up_logs(process: str, level: str, format: str = "text") -> None:
    """Log to standard error.

    Args:
        process: the name of this one, for JSON.
        level: the least that is logged, of Python's names.
        format: one of `FORMATS`.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(process) if format == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler], level=level.upper())
    # It would name each request that this process makes, those to an app of its own too.
    logging.getLogger("httpx").setLevel(logging.WARNING)


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """What a line tells beside its message: the `fields` that it was logged with (`extra`), and the
    request's id.
    """
    fields: dict[str, Any] = getattr(record, "fields", None) or {}
    watch = current_watch()
    id = None if watch is None else watch.request_id
    return fields if id is None else {"request_id": id, **fields}


class TextFormatter(logging.Formatter):
    """`time LEVEL logger: message name=value ...`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line, before a traceback if there is one."""
        fields = "".join(f" {name}={_shown(value)}" for name, value in fields_of(record).items())
        return super().formatMessage(record) + fields


class JsonFormatter(logging.Formatter):
    """One object a line; a traceback is the value of `exception`."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{whole}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
            **fields_of(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _shown(value: Any) -> str:
    """A value that a reader can tell from what comes next."""
    text = str(value)
    return text if text and text.isprintable() and " " not in text else json.dumps(text)
