"""The file that `--config` names, as TOML: options of the engine and of the server by their names.

Owns what may stand in it, and how options are written so that they can be read again. An option
stands above all sections, or in that of its group.
"""

from __future__ import annotations

import difflib
import json
import sys
import typing
from collections.abc import Iterable, Iterator
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any

from phloem.server.config import ServerArgs
from phloem.server.http_config import HttpArgs
from phloem.server.options import fits, kinds_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True, slots=True)
class _Known:
    """An option that a file may have."""

    field: Field[Any]
    hint: Any

    @property
    def section(self) -> str:
        return str(self.field.metadata["group"]).lower()


def read_config(path: Path) -> dict[str, Any]:
    """The options that a file gives, by name.

    Raises:
        ValueError: it cannot be read, or naming file and key: there is no such option, it is twice
            or in another section than its own, or its value is of another type.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"the configuration {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"the configuration {path} is no TOML: {error}") from error
    given: dict[str, Any] = {}
    try:
        for name, section, value in _entries(content):
            if name in given:
                raise ValueError(f"{name} is there twice: leave one of them")
            given[name] = _checked(name, section, value)
    except ValueError as error:
        raise ValueError(f"the configuration {path}: {error}") from error
    return given


def written_config(*options: ServerArgs | HttpArgs) -> str:
    """All options as TOML, without secrets; what has no value is a comment."""
    sections: dict[str, list[str]] = {}
    for each in options:
        for field in fields(each):
            sections.setdefault(field.metadata["group"].lower(), []).append(_line(each, field))
    return "\n\n".join("\n".join([f"[{name}]", *lines]) for name, lines in sections.items())


def _entries(content: dict[str, Any]) -> Iterator[tuple[str, str | None, Any]]:
    """Name, section and value of each option in a file."""
    for key, value in content.items():
        if not isinstance(value, dict):
            yield key.replace("-", "_"), None, value
        elif key in _SECTIONS:
            for name, inner in value.items():
                yield name.replace("-", "_"), key, inner
        else:
            raise ValueError(f"there is no section [{key}]{_nearest(key, _SECTIONS)}")


def _checked(name: str, section: str | None, value: Any) -> Any:
    known = _KNOWN.get(name)
    if known is None:
        raise ValueError(f"there is no option {name}{_nearest(name, _KNOWN)}")
    if section not in (None, known.section):
        raise ValueError(f"{name} is in [{section}]: it belongs in [{known.section}]")
    value = tuple(value) if isinstance(value, list) else value
    if not fits(value, known.hint):
        wanted = " or ".join(_TYPES[kind] for kind in kinds_of(known.hint))
        raise ValueError(f"{name} is of type {_type_of(value)}: give {wanted}")
    choices = known.field.metadata["choices"]
    if choices and value not in choices:
        raise ValueError(f"{name} {value!r} is unknown: use one of {', '.join(choices)}")
    return value


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f": did you mean {near[0]}?" if near else ": leave it out"


def _type_of(value: Any) -> str:
    return "list" if isinstance(value, tuple) else type(value).__name__


def _line(options: ServerArgs | HttpArgs, field: Field[Any]) -> str:
    value, env = getattr(options, field.name), field.metadata["secret_env"]
    if value is None or value == ():
        return f"# {field.name} is not set"
    if env is not None:
        return f"# {field.name} is a secret: give it by {env}"
    return f"{field.name} = {_literal(value)}"


def _literal(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_literal, value))}]"
    # JSON's texts, numbers and truths are TOML's, but for one character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _known() -> Iterator[tuple[str, _Known]]:
    for cls in (ServerArgs, HttpArgs):
        hints = typing.get_type_hints(cls)
        for field in fields(cls):
            yield field.name, _Known(field, hints[field.name])


_TYPES = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple: "a list of texts",
}
_KNOWN = dict(_known())
_SECTIONS = dict.fromkeys(known.section for known in _KNOWN.values())
