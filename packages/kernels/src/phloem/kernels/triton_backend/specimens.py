"""The kernels as two models launch them: what ahead-of-time compilation needs in place of tensors.

Owns the list of shapes and dtypes that are compiled and bounded. Options and constants are those of
the launching code, so that what is measured is what runs.
"""

# Triton has no type information.
# mypy: disable-error-code="import-untyped, import-not-found"

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from phloem.kernels.base import AttentionSpec
from phloem.kernels.paged_layer import PagedTensors
from phloem.kernels.triton_backend import (
    attention,
    attention_kernels,
    elementwise,
    rotary_store,
    sampling,
    sampling_kernels,
)

_TYPES = {
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.int8: "*i8",
}
_PAGE = 16


@dataclass(frozen=True, slots=True)
class Heads:
    """The part of a model that its kernels are compiled for."""

    name: str
    hidden: int
    heads: int
    groups: int
    dim: int


@dataclass(frozen=True, slots=True)
class Specimen:
    """One kernel, ready to be compiled."""

    kernel: Any
    label: str
    pointers: Mapping[str, str]
    """Triton's types of the pointers."""
    constants: Mapping[str, Any]
    options: Mapping[str, int]


MODELS = (Heads("smollm2-135m", 576, 9, 3, 64), Heads("llama-8b", 4096, 32, 8, 128))


def specimens() -> Iterator[Specimen]:
    """Every kernel: for both models in bfloat16, its attention also over int8 and in float32."""
    for model in MODELS:
        yield from _norms(model)
        for cache in (torch.bfloat16, torch.int8):
            yield _rotary_store(model, cache)
            yield from _attention(model, cache, torch.bfloat16)
        yield from _attention(model, torch.float32, torch.float32)
    yield Specimen(
        elementwise.silu_mul_kernel,
        "bf16",
        {"gate_up_ptr": "*bf16", "out_ptr": "*bf16"},
        {"BLOCK": elementwise.SILU_BLOCK},
        {},
    )
    yield from _sampling()


def _norms(model: Heads) -> Iterator[Specimen]:
    options = elementwise.norm_options(model.hidden)
    constants = {"BLOCK": options.pop("BLOCK")}
    names = ("x_ptr", "weight_ptr", "out_ptr")
    for kernel, pointers in (
        (elementwise.rms_norm_kernel, names),
        (elementwise.add_rms_norm_kernel, (*names, "residual_ptr", "total_ptr")),
    ):
        yield Specimen(kernel, model.name, dict.fromkeys(pointers, "*bf16"), constants, options)


def _memory(model: Heads, cache: torch.dtype) -> PagedTensors:
    """A pool without memory: only shapes and dtypes matter."""
    plane = torch.empty((1, _PAGE, model.groups, model.dim), dtype=cache, device="meta")
    scales = (
        torch.empty((1, _PAGE, model.groups, 1), device="meta") if cache == torch.int8 else None
    )
    return PagedTensors(plane, scales, plane, scales)


def _cache_pointers(cache: torch.dtype, names: tuple[str, str]) -> dict[str, str]:
    scales = "*fp32" if cache == torch.int8 else _TYPES[cache]
    planes = dict.fromkeys(names, _TYPES[cache])
    return {**planes, "k_scales_ptr": scales, "v_scales_ptr": scales}


def _rotary_store(model: Heads, cache: torch.dtype) -> Specimen:
    return Specimen(
        rotary_store.rotary_store_kernel,
        f"{model.name} {_TYPES[cache][1:]} cache",
        {
            **dict.fromkeys(("q_ptr", "k_ptr", "v_ptr"), "*bf16"),
            "cos_sin_ptr": "*fp32",
            "slots_ptr": "*i64",
            **_cache_pointers(cache, ("k_cache_ptr", "v_cache_ptr")),
        },
        rotary_store.constants(
            model.heads, model.groups, model.dim, model.dim, _memory(model, cache)
        ),
        rotary_store.OPTIONS,
    )


def _attention(model: Heads, cache: torch.dtype, dtype: torch.dtype) -> Iterator[Specimen]:
    spec = AttentionSpec(model.heads, model.groups, model.dim, dtype, torch.device("meta"))
    tile = attention.Tiles.of(spec)
    label = f"{model.name} {_TYPES[dtype][1:]}, {_TYPES[cache][1:]} cache"
    pointers = {
        **dict.fromkeys(("q_ptr", "out_ptr"), _TYPES[dtype]),
        **dict.fromkeys(("rows_ptr", "slots_ptr"), "*i32"),
        **_cache_pointers(cache, ("k_ptr", "v_ptr")),
    }
    memory = _memory(model, cache)
    scratch = dict.fromkeys(("partial_ptr", "stats_ptr"), "*fp32")
    yield Specimen(
        attention_kernels.decode_kernel,
        label,
        {**pointers, **scratch, "work_ptr": "*i32"},
        attention.layer_constants(memory, spec, tile, tile.decode_m),
        tile.decode_options,
    )
    yield Specimen(
        attention_kernels.extend_kernel,
        label,
        {**pointers, "tiles_ptr": "*i32"},
        attention.layer_constants(memory, spec, tile, tile.extend_m),
        tile.extend_options,
    )
    if cache == dtype:
        yield Specimen(
            attention_kernels.merge_kernel,
            f"{model.name} {_TYPES[dtype][1:]}",
            {
                "out_ptr": _TYPES[dtype],
                **scratch,
                **dict.fromkeys(("merges_ptr", "rows_ptr"), "*i32"),
            },
            attention.merge_constants(spec, tile),
            attention.MERGE_OPTIONS,
        )


def _sampling() -> Iterator[Specimen]:
    yield Specimen(
        sampling_kernels.argmax_kernel,
        "fp32",
        {"logits_ptr": "*fp32", "ids_ptr": "*i64"},
        {"BLOCK": sampling_kernels.BLOCK},
        sampling.OPTIONS,
    )
    yield Specimen(
        sampling_kernels.bitmask_kernel,
        "fp32",
        {"logits_ptr": "*fp32", "rows_ptr": "*i64", "bits_ptr": "*i32"},
        {"BLOCK": sampling.MASK_BLOCK},
        {},
    )
    yield Specimen(
        sampling_kernels.sample_kernel,
        "fp32",
        {"logits_ptr": "*fp32", "ids_ptr": "*i64", "parameters_ptr": "*fp64"},
        {"BLOCK": sampling_kernels.BLOCK, "SEARCH_BLOCK": sampling_kernels.SEARCH_BLOCK},
        sampling.OPTIONS,
    )
