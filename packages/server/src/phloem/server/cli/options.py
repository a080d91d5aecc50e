"""Command line options made of the engine's and the sampler's parameters.

Owns the translation of a dataclass of options into `--options`: names, help, choices and defaults
are said once, where the dataclass is. What values are allowed is the dataclass's own affair.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import Field, fields
from typing import Any, TypeVar

import click

from phloem.server.config import ServerArgs

Command = TypeVar("Command", bound=Callable[..., Any])


def dataclass_options(
    cls: type, argument: str, names: Collection[str] | None = None
) -> Callable[[Command], Command]:
    """A decorator that adds an option for each field of `cls`, or for those of these names.

    The command gets those that were given as one dict, in the keyword argument `argument`. Fields
    are str, int, float or bool, or one of these and None, or tuple[str, ...], whose option may be
    given several times; their metadata may hold `help`, `choices` and `secret_env`.
    """
    hints = typing.get_type_hints(cls)
    options = {
        field.name: _option(field, hints[field.name])
        for field in fields(cls)
        if names is None or field.name in names
    }

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            values = {name: kwargs.pop(name) for name in options}
            given = {name: value for name, value in values.items() if value not in (None, ())}
            return command(*args, **kwargs, **{argument: given})

        for option in reversed(options.values()):
            wrapper = option(wrapper)
        return typing.cast(Command, wrapper)

    return decorate


class GroupedOption(click.Option):
    """An option that help lists under a heading."""

    def __init__(self, *args: Any, group: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group


class GroupedCommand(click.Command):
    """A command with more options than one list can show: help has a list for each group."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the groups in order of their first options, those without a group at the end."""
        groups: dict[str | None, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                group = param.group if isinstance(param, GroupedOption) else None
                groups.setdefault(group, []).append(record)
        others = groups.pop(None, [])
        for group, records in groups.items():
            with formatter.section(f"{group} options"):
                formatter.write_dl(records)
        with formatter.section("Other options"):
            formatter.write_dl(others)


def _option(field: Field[Any], hint: Any) -> Callable[[Any], Any]:
    flag = "--" + field.name.replace("_", "-")
    make = functools.partial(
        click.option, cls=GroupedOption, group=field.metadata.get("group"), default=None
    )
    text = field.metadata.get("help", "")
    env = field.metadata.get("secret_env")
    if env is not None:
        text = f"{text}  [{env}]"
    if typing.get_origin(hint) is tuple:
        return make(flag, field.name, multiple=True, envvar=env, help=text)
    kind = _kind_of(field.name, hint)
    if kind is bool and field.default is False:
        return make(flag, field.name, is_flag=True, help=text)
    if kind is bool:
        return make(f"{flag}/--no-{flag[2:]}", field.name, is_flag=True, help=text)
    choices = field.metadata.get("choices")
    if field.default is not None:
        text = f"{text}  [default: {field.default}]"
    # No default is passed on: the dataclass has it, and the command learns what was given.
    type = click.Choice(choices) if choices else kind
    return make(flag, field.name, type=type, envvar=env, help=text)


def _kind_of(name: str, hint: Any) -> type:
    """The one type beside None."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    kinds = [k for k in (typing.get_args(hint) if union else (hint,)) if k is not type(None)]
    if len(kinds) != 1 or kinds[0] not in (str, int, float, bool):
        raise TypeError(f"field {name} of type {hint} has no command line form: use a plain type")
    kind: type = kinds[0]
    return kind


engine_options = dataclass_options(ServerArgs, "engine_args")

_SAMPLING = (
    click.option("--max-new-tokens", type=int, help="Tokens to generate at most."),
    click.option("--temperature", type=float, help="0 always takes the likeliest token."),
    click.option("--top-p", type=float, help="Sample from the likeliest tokens of this mass."),
    click.option("--top-k", type=int, help="Sample from this many likeliest tokens; -1: all."),
    click.option("--min-p", type=float, help="Drop tokens below this share of the likeliest."),
    click.option("--seed", type=int, help="Equal seeds give equal output."),
    click.option("--stop", multiple=True, help="End at this text; may be given several times."),
)
_SAMPLING_NAMES = ("max_new_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop")


def sampling_options(command: Command) -> Command:
    """Add the sampling options; the command gets those given as the dict `sampling_params`."""

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        values = {name: kwargs.pop(name) for name in _SAMPLING_NAMES}
        given = {name: value for name, value in values.items() if value not in (None, ())}
        with usage_errors():
            check_sampling(given)
        return command(*args, **kwargs, sampling_params=given)

    for option in reversed(_SAMPLING):
        wrapper = option(wrapper)
    return typing.cast(Command, wrapper)


_SERVER = (
    click.option(
        "--base-url",
        metavar="URL",
        help="Ask the server there, Phloem's or any with the OpenAI API, and start no engine.",
    ),
    click.option(
        "--api-key", envvar="OPENAI_API_KEY", help="For a server that wants one.  [OPENAI_API_KEY]"
    ),
)


def server_options(command: Command) -> Command:
    """Add the options that name a running server; the command gets them as the dict `server`.

    It is empty unless there is a `base_url`.
    """

    @functools.wraps(command)
    def wrapper(*args: Any, base_url: str | None, api_key: str | None, **kwargs: Any) -> Any:
        server = {} if base_url is None else {"base_url": base_url, "api_key": api_key}
        return command(*args, **kwargs, server=server)

    for option in reversed(_SERVER):
        wrapper = option(wrapper)
    return typing.cast(Command, wrapper)


def check_sampling(params: dict[str, Any]) -> None:
    """Refuse sampling parameters before an engine is started for them.

    Raises:
        ValueError: naming the parameter.
    """
    # Imported here: numpy comes with it, and help does not need that.
    from phloem.scheduler import SamplingParams

    SamplingParams.from_dict(params)


@contextmanager
def usage_errors() -> Iterator[None]:
    """Let bad input end the command with exit status 2 and its sentence."""
    try:
        yield
    except ValueError as error:
        raise click.UsageError(str(error)) from error
