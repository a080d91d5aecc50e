"""Command line options made of the engine's and the sampler's parameters.

Owns the translation of a dataclass of options into `--options`: names, help, choices and defaults
are said once, where the dataclass is. What values are allowed is the dataclass's own affair. A file
that `--config` names stands behind them: what the command line does not say, it may.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from phloem.server.config import ServerArgs
from phloem.server.options import kinds_of

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
    """An option that help lists under a heading; `of_file`: a configuration file may have it."""

    def __init__(
        self, *args: Any, group: str | None = None, of_file: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.group = group
        self.of_file = of_file


class GroupedCommand(click.Command):
    """A command with more options than one list can show: help has a list for each group."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the groups in order of their first options; those without a group come last."""
        groups: dict[str | None, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            # An argument has its place in the usage line.
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
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
        click.option,
        cls=GroupedOption,
        group=field.metadata.get("group"),
        of_file=True,
        default=None,
    )
    text = field.metadata.get("help", "")
    env = field.metadata.get("secret_env")
    if env is not None:
        text = f"{text}  [{env}]"
    kind = _kind_of(field.name, hint)
    if kind is tuple:
        return make(flag, field.name, multiple=True, envvar=env, help=text)
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
    kinds = kinds_of(hint)
    if len(kinds) != 1 or kinds[0] not in (str, int, float, bool, tuple):
        raise TypeError(f"field {name} of type {hint} has no command line form: use a plain type")
    return kinds[0]


def _take_file(ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
    """Let a file say what the command line does not; options of other commands are passed over."""
    if path is None or ctx.resilient_parsing:
        return
    # Imported here: the options of the server are not needed without a file.
    from phloem.server.config_file import read_config

    with usage_errors():
        given = read_config(path)
    own = {p.name for p in ctx.command.params if isinstance(p, GroupedOption) and p.of_file}
    ctx.default_map = {name: value for name, value in given.items() if name in own}
    ctx.meta[_FILE] = path


_FILE = f"{__name__}.file"

config_option = click.option(
    "--config",
    cls=GroupedOption,
    group="Configuration",
    metavar="FILE",
    type=click.Path(path_type=Path),
    is_eager=True,
    expose_value=False,
    callback=_take_file,
    help="TOML file with options, by their names; the command line wins over it",
)
"""Adds `--config`; the file's options come to the command as if they had been given."""

engine_options = dataclass_options(ServerArgs, "engine_args")

_sampling = functools.partial(click.option, cls=GroupedOption, group="Sampling")
_SAMPLING = (
    _sampling("--max-new-tokens", type=int, help="Tokens to generate at most."),
    _sampling("--temperature", type=float, help="0 always takes the likeliest token."),
    _sampling("--top-p", type=float, help="Sample from the likeliest tokens of this mass."),
    _sampling("--top-k", type=int, help="Sample from this many likeliest tokens; -1: all."),
    _sampling("--min-p", type=float, help="Drop tokens below this share of the likeliest."),
    _sampling("--seed", type=int, help="Equal seeds give equal output."),
    _sampling("--stop", multiple=True, help="End at this text; may be given several times."),
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


_server = functools.partial(click.option, cls=GroupedOption, group="Server")
_SERVER = (
    _server(
        "--base-url",
        metavar="URL",
        help="Ask the server there, Phloem's or any with the OpenAI API, and start no engine.",
    ),
    _server(
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
        raise click.UsageError(_from_where(str(error))) from error


def _from_where(sentence: str) -> str:
    """A sentence that begins with an option of the configuration file, with the file's name."""
    ctx = click.get_current_context(silent=True)
    if ctx is None or _FILE not in ctx.meta:
        return sentence
    source = ctx.get_parameter_source(sentence.partition(" ")[0])
    named = source is ParameterSource.DEFAULT_MAP
    return f"the configuration {ctx.meta[_FILE]}: {sentence}" if named else sentence
