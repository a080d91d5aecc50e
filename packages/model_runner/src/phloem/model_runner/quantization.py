"""How the weights of a model are kept: what may be asked for, and what `auto` means."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeAlias

from phloem.kernels import LinearForm, RoundedForm
from phloem.model_runner.config import ModelConfig
from phloem.model_runner.gguf_record import GgufRecord

Quantization: TypeAlias = Literal["none", "int8", "int4", "gguf"]
"""In floats; rounded to 8 or 4 bits when they are loaded; in the blocks of their GGUF file.

With 8 bits the model is rotated, so that a scale for each output and each token is enough; 4 bits
are in blocks of 32.

The weights of an AWQ or GPTQ checkpoint have 4 bits already: there `int4` means those as they are,
and the checkpoint's float weights in floats.
"""

_FORMS: Mapping[Quantization, LinearForm] = {
    "none": "float",
    "int8": "int8",
    "int4": "int4",
    "gguf": "float",
}

_OF_GGUF: Mapping[RoundedForm, Quantization] = {"int8": "int8", "blocks": "gguf"}


def choose_quantization(
    asked: str, folder: str | Path, fastest: RoundedForm | None
) -> Quantization:
    """What to do with the weights in a model's folder when `asked` was asked for.

    `fastest` is the kernel backend's `fastest_rounded`. `auto` takes that form, which costs a model
    less than a hundredth of its perplexity, where its weights were rounded already: for a GGUF file
    8 bits or its own blocks, and the 4 bits of AWQ and GPTQ as they are. Weights in floats stay
    floats, as all do with backends that are no faster with others: unrounded models are rounded for
    who asks for it.

    Raises:
        ValueError: if there is no such quantization, or it needs a GGUF file and there is none.
    """
    record = GgufRecord.read(Path(folder))
    if asked == "auto":
        if fastest is None:
            return "none"
        if record is not None:
            return _OF_GGUF[fastest] if record.is_quantized else "none"
        return "none" if ModelConfig.from_folder(folder).packed is None else "int4"
    if asked == "gguf" and record is None:
        raise ValueError(
            f"quantization 'gguf' computes in the blocks of a GGUF file, but {folder} was not made "
            "of one: give a .gguf file, or use int8, int4 or none"
        )
    for known in _FORMS:
        if asked == known:
            return known
    raise ValueError(f"quantization {asked!r} is unknown: use one of auto, {', '.join(_FORMS)}")


def keeps_blocks(quantization: Quantization, config: ModelConfig) -> bool:
    """Whether weights stay in the blocks in which they are stored."""
    return quantization == "gguf" or (quantization == "int4" and config.packed is not None)


def float_form(quantization: Quantization, config: ModelConfig) -> LinearForm:
    """What becomes of a weight that is stored in floats."""
    return "float" if keeps_blocks(quantization, config) else _FORMS[quantization]
