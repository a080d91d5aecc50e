"""SGLang's names for what `/generate` may be asked, in the engine's terms.

Owns which of them mean the same as the engine's own, and what they may not stand beside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phloem.server.http.errors import ApiError
from phloem.server.http.protocol import GenerateRequest

_RENAMED = {"sampling_seed": "seed"}
_OF_THE_TEXT = ("skip_special_tokens", "no_stop_trim")
"""About the text and not the sampling, for all prompts alike."""

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class NativeParams:
    """What a request asks, in the engine's terms."""

    sampling: Fields | list[Fields] | None
    """For all prompts, or for each."""
    skip_special_tokens: bool
    keep_stop: bool
    logprobs_as_sglang: bool
    """Whether they were asked for by SGLang's names, and come in its form."""


def native_params(request: GenerateRequest) -> NativeParams:
    """The parameters of a request, under whichever names it has them.

    Raises:
        ApiError: two names of one thing, or a value of another type.
    """
    given = request.sampling_params
    listed = given if isinstance(given, list) else [given or {}]
    text = {name: _text_option(request, listed, name) for name in _OF_THE_TEXT}
    fields = [_renamed(each) for each in listed]
    logprobs = _logprobs(request)
    if logprobs is not None:
        if len(fields) == 1:
            fields = fields * len(logprobs)
        elif len(logprobs) == 1:
            logprobs = logprobs * len(fields)
        if len(logprobs) != len(fields):
            raise ApiError(
                f"return_logprob and what goes with it are given for {len(logprobs)} prompts and "
                f"sampling_params for {len(fields)}: give one for each prompt",
                param="return_logprob",
            )
        fields = [_beside(each, asked) for each, asked in zip(fields, logprobs)]
    several = isinstance(given, list) or len(fields) > 1
    return NativeParams(
        fields if several else (None if given is None and logprobs is None else fields[0]),
        text["skip_special_tokens"] is not False,
        bool(text["no_stop_trim"]),
        logprobs is not None,
    )


def _renamed(fields: Fields) -> Fields:
    renamed = {name: value for name, value in fields.items() if name not in _OF_THE_TEXT}
    for theirs, ours in _RENAMED.items():
        if theirs in renamed:
            value = renamed.pop(theirs)
            if renamed.setdefault(ours, value) != value:
                raise ApiError(
                    f"{theirs} and {ours} are two names of one thing: give one", param=theirs
                )
    return renamed


def _text_option(request: GenerateRequest, listed: Sequence[Fields], name: str) -> bool | None:
    """An option that may stand in the request or in its sampling parameters."""
    among = [fields.get(name) for fields in listed]
    values = [v for v in (getattr(request, name), *among) if v is not None]
    if any(not isinstance(value, bool) for value in values):
        raise ApiError(f"{name} is {values[-1]!r:.100}: give true or false", param=name)
    if len(set(values)) > 1:
        raise ApiError(f"{name} is given as true and as false: give one for all", param=name)
    return values[0] if values else None


def _logprobs(request: GenerateRequest) -> list[Fields] | None:
    """The engine's fields for each prompt, or one for all; None: SGLang's names ask for nothing."""
    asked = {
        "return_logprob": request.return_logprob,
        "top_logprobs_num": request.top_logprobs_num,
        "logprob_start_len": request.logprob_start_len,
    }
    counts = {len(value) for value in asked.values() if isinstance(value, list)}
    if len(counts) > 1:
        raise ApiError(
            "return_logprob, top_logprobs_num and logprob_start_len are lists of different "
            "lengths: give one value for each prompt",
            param="return_logprob",
        )
    count = counts.pop() if counts else 1
    rows = [
        {name: value[i] if isinstance(value, list) else value for name, value in asked.items()}
        for i in range(count)
    ]
    fields = [_of_one(row) for row in rows]
    return fields if any(fields) else None


def _of_one(asked: Mapping[str, int | None]) -> Fields:
    start, top = asked["logprob_start_len"], asked["top_logprobs_num"] or 0
    start = -1 if start is None else start
    if not asked["return_logprob"]:
        for name, value, nothing in (
            ("top_logprobs_num", top, 0),
            ("logprob_start_len", start, -1),
        ):
            if value != nothing:
                raise ApiError(f"{name} needs return_logprob to be true", param=name)
        return {}
    if start < -1:
        raise ApiError(
            f"logprob_start_len is {start}: give a position, or -1 for the output's alone",
            param="logprob_start_len",
        )
    fields: Fields = {"top_logprobs": top}
    return fields if start == -1 else fields | {"prompt_logprobs_from": start}


def _beside(fields: Fields, logprobs: Fields) -> Fields:
    for ours, theirs in (
        ("top_logprobs", "return_logprob"),
        ("prompt_logprobs_from", "logprob_start_len"),
    ):
        if ours in fields and logprobs:
            raise ApiError(
                f"{theirs} and the sampling parameter {ours} are two names of one thing: give one",
                param=theirs,
            )
    return fields | logprobs
