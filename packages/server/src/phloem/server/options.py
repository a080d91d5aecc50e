"""How options are declared: fields of a dataclass that know what they are for.

The engine's are in `phloem.server.config`, the server's in `phloem.server.http_config`; the command
line, the configuration file and the docs are made of them.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Iterable
from dataclasses import field, fields
from typing import Any


def option(
    default: Any,
    help: str,
    *,
    group: str,
    choices: tuple[str, ...] = (),
    secret_env: str | None = None,
) -> Any:
    """A field of options: what it is for, where help lists it, and its values if they are few.

    A secret is never shown; the command line takes it from the variable `secret_env` too, since
    others on the machine can read the arguments of a process.
    """
    metadata = {"help": help, "group": group, "choices": choices, "secret_env": secret_env}
    return field(default=default, repr=secret_env is None, metadata=metadata)


def kinds_of(hint: Any) -> tuple[type, ...]:
    """The types that a field's values have, None's left out; `tuple` for tuple[str, ...]."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    kinds = typing.get_args(hint) if union else (hint,)
    return tuple(typing.get_origin(kind) or kind for kind in kinds if kind is not _NONE)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a field's type; whole numbers are numbers too, truths are none."""
    if value is None:
        return _NONE in typing.get_args(hint)
    kinds = kinds_of(hint)
    if isinstance(value, tuple) and tuple in kinds:
        return all(isinstance(part, str) for part in value)
    return type(value) in kinds or (type(value) is int and float in kinds)


def check_types(options: Any) -> None:
    """Refuse an option of another type than its field, which would fail somewhere later.

    Raises:
        ValueError: naming the option.
    """
    for name, hint in typing.get_type_hints(type(options)).items():
        value = getattr(options, name)
        if fits(value, hint):
            continue
        kinds = kinds_of(hint)
        if tuple in kinds:
            raise ValueError(f"{name} is no tuple of texts: give one, with each value apart")
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise ValueError(f"{name} is {value!r}: give a value of type {wanted}")


def check_choices(options: Any) -> None:
    """Refuse a value that is none of its option's few.

    Raises:
        ValueError: naming the option and its values.
    """
    for each in fields(options):
        choices, value = each.metadata["choices"], getattr(options, each.name)
        if choices and value not in choices:
            raise ValueError(f"{each.name} {value!r} is unknown: use one of {', '.join(choices)}")


def check_lets_in(options: Any, names: Iterable[str]) -> None:
    """Refuse limits below 1; None is no limit.

    Raises:
        ValueError: naming the option.
    """
    for name in names:
        limit = getattr(options, name)
        if limit is not None and limit < 1:
            raise ValueError(f"{name} {limit} lets nobody in: give 1 or more, or leave it out")


def check_without_effect(options: Any, names: Iterable[str], reason: str, cure: str) -> None:
    """Refuse options that were given and do nothing, for a reason that is another option.

    Raises:
        ValueError: naming the option.
    """
    defaults = {each.name: each.default for each in fields(options)}
    for name in names:
        value = getattr(options, name)
        if value != defaults[name]:
            given = name if isinstance(value, bool) else f"{name} {value}"
            raise ValueError(f"{given} does nothing, {reason}: leave it out, or {cure}")


def is_positive(number: float | None) -> bool:
    """Whether a number, if there is one, is more than 0 and finite."""
    return number is None or 0 < number < math.inf


_NONE = type(None)
