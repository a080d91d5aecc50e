"""The schemas that generations are made under, and whether a text is valid under one.

Judged by `json` and `jsonschema`, which know nothing of `phloem.grammar`; formats by readers of the
standard library, where it has one.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema

SCHEMAS = Path(__file__).parents[1] / "data" / "schemas.json"


@dataclass(frozen=True)
class Case:
    """A schema, and what a model is asked for under it."""

    name: str
    ask: str
    schema: dict[str, Any]

    @property
    def messages(self) -> list[dict[str, str]]:
        """The conversation that it is asked in."""
        return [{"role": "user", "content": f"Answer in JSON: {self.ask}."}]


def read_cases() -> list[Case]:
    """All of `benchmarks/data/schemas.json`."""
    return [Case(**each) for each in json.loads(SCHEMAS.read_text(encoding="utf-8"))]


def fault(schema: dict[str, Any], text: str) -> str | None:
    """Why a text is not valid; None if it is."""
    try:
        value = json.loads(text, parse_float=_finite)
    except ValueError as error:
        return f"it is not JSON: {error}"
    validator = jsonschema.Draft202012Validator(schema, format_checker=_FORMATS)
    error = jsonschema.exceptions.best_match(validator.iter_errors(value))
    return None if error is None else error.message


_FORMATS = jsonschema.FormatChecker(["email", "ipv4", "ipv6", "uuid"])


@_FORMATS.checks("date", ValueError)
def _is_date(value: object) -> bool:
    return not isinstance(value, str) or bool(date.fromisoformat(value))


@_FORMATS.checks("time", ValueError)
def _is_time(value: object) -> bool:
    return not isinstance(value, str) or _is_date_time(f"2024-02-29T{value}")


@_FORMATS.checks("date-time", ValueError)
def _is_date_time(value: object) -> bool:
    if not isinstance(value, str):
        return True
    parts = re.fullmatch(r"(\S{10})[Tt]([0-9:]{8})(\.[0-9]+)?([Zz]|[+-][0-9:]{5})", value)
    if not parts:
        return False
    zone = parts[4].upper().replace("Z", "+00:00")
    return bool(datetime.fromisoformat(f"{parts[1]}T{parts[2]}{zone}"))


@_FORMATS.checks("uri", ValueError)
def _is_uri(value: object) -> bool:
    if not isinstance(value, str):
        return True
    return (
        value.isascii() and bool(urlsplit(value).scheme) and not re.search(r'[\s"<>\\^`{|}]', value)
    )


@_FORMATS.checks("hostname")
def _is_hostname(value: object) -> bool:
    if not isinstance(value, str):
        return True
    label = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)")
    return len(value) < 254 and all(map(label.fullmatch, value.split(".")))


@_FORMATS.checks("duration")
def _is_duration(value: object) -> bool:
    if not isinstance(value, str):
        return True
    parts = r"P(?=.)(\d+W|(\d+Y)?(\d+M)?(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+S)?)?)"
    return bool(re.fullmatch(parts, value, re.ASCII))


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is beyond a float")
    return value
