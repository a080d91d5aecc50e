"""AWQ and GPTQ checkpoints, packed here the way their tools do it."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from phloem.kernels import BlockWeight
from phloem.kernels.torch_backend.blocks import dequantize_blocks
from phloem.model_runner import ModelConfig, load_model
from phloem.model_runner.checkpoint import Checkpoint
from phloem.model_runner.packed_format import PackedFormat, read_packed_format
from phloem.model_runner.quantization import choose_quantization, float_form

GROUP = 32
AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False}
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
GATE_UP = (
    ["model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight"],
    [(128, 64)] * 2,
)


def pack(numbers, order=range(8)):
    """Eight numbers along the last axis to a word; bits i are those of number `order[i]`."""
    groups = numbers.reshape(*numbers.shape[:-1], -1, 8).astype(np.uint32)
    words = sum(groups[..., number] << np.uint32(4 * i) for i, number in enumerate(order))
    return torch.from_numpy(words.view(np.int32).copy())


def rounded(weight, seed):
    """`scale * (q - zero)` in groups of a row: q and zero `[..., out]`, by input and by group."""
    rng = np.random.default_rng(seed)
    out, inputs = weight.shape
    q = rng.integers(0, 16, (inputs, out))
    zeros = rng.integers(1, 16, (inputs // GROUP, out))
    scales = rng.uniform(0.01, 0.1, zeros.shape).astype(np.float16)
    spread = (q - zeros.repeat(GROUP, 0)) * scales.astype(np.float32).repeat(GROUP, 0)
    return q, zeros, scales, torch.from_numpy(spread.T.astype(np.float32).copy())


def parts_of(q, zeros, scales, method):
    if method == "awq":
        packed = {"qweight": pack(q, AWQ_ORDER), "qzeros": pack(zeros, AWQ_ORDER)}
    else:
        stored = zeros - 1 if method == "gptq" else zeros
        packed = {"qweight": pack(q.T).T.contiguous(), "qzeros": pack(stored)}
        packed["g_idx"] = torch.arange(len(q), dtype=torch.int32) // GROUP
    return packed | {"scales": torch.from_numpy(scales)}


@pytest.fixture
def packed(tiny, tmp_path):
    """Makes a packed checkpoint, and one in floats of the same numbers."""

    def make(settings, method=None, **extra):
        folders = [shutil.copytree(tiny.folder, tmp_path / name) for name in ("packed", "floats")]
        tensors = [load_file(folder / "model.safetensors") for folder in folders]
        linears = [name for name in tensors[0] if name.endswith("_proj.weight")]
        for i, name in enumerate(linears):
            q, zeros, scales, tensors[1][name] = rounded(tensors[0].pop(name), i)
            parts = parts_of(q, zeros, scales, method or settings["quant_method"])
            tensors[0] |= {f"{name.removesuffix('weight')}{k}": part for k, part in parts.items()}
        tensors[0] |= extra
        for folder, content in zip(folders, tensors, strict=True):
            save_file(content, folder / "model.safetensors")
        config = json.loads((folders[0] / "config.json").read_text())
        config["quantization_config"] = settings
        (folders[0] / "config.json").write_text(json.dumps(config))
        return folders

    return make


@pytest.mark.parametrize(
    ("settings", "method"),
    [(AWQ, "awq"), (GPTQ, "gptq"), (GPTQ | {"checkpoint_format": "gptq_v2"}, "gptq_v2")],
)
def test_packed_weights_are_blocks_that_mean_the_checkpoints_numbers(packed, settings, method):
    folders = packed(settings, method)
    stores = []
    for folder in folders:
        config = json.loads((folder / "config.json").read_text())
        stores.append(
            Checkpoint(
                folder,
                torch.float32,
                torch.device("cpu"),
                keep_blocks=True,
                packed=read_packed_format(config),
            )
        )
    with stores[0] as blocks, stores[1] as floats:
        found, expected = blocks.take_linear(*GATE_UP), floats.take(*GATE_UP)
        assert isinstance(found, BlockWeight)
        # d * q + m with m rounded to float16.
        torch.testing.assert_close(dequantize_blocks(found), expected, rtol=0, atol=1e-3)
        torch.testing.assert_close(blocks.take(*GATE_UP), expected, rtol=0, atol=1e-3)
        embedding = ["model.embed_tokens.weight"], [(256, 64)]
        assert torch.equal(blocks.take_linear(*embedding), floats.take(*embedding))


@pytest.mark.parametrize("settings", [AWQ, GPTQ])
def test_a_packed_model_answers_like_one_in_floats(packed, drive, settings):
    folders = packed(settings)
    prompt = [3, 77, 200, 14, 14, 90]
    tokens = {}
    for name, folder, quantization in (
        ("floats", folders[1], "none"),
        ("unpacked", folders[0], "none"),
        ("packed", folders[0], "int4"),
    ):
        driver = drive(load_model(folder, quantization=quantization))
        tokens[name] = driver.run((0, prompt, len(prompt))).token_ids.tolist()
    assert tokens["unpacked"] == tokens["packed"] == tokens["floats"]


def test_a_bias_of_zeros_that_the_model_does_not_know_is_left_out(packed):
    name = "model.layers.0.mlp.down_proj.bias"
    load_model(packed(GPTQ, **{name: torch.zeros(64)})[0])


def test_a_bias_that_the_model_does_not_know_is_refused(packed):
    name = "model.layers.0.mlp.down_proj.bias"
    with pytest.raises(ValueError, match=f"does not know, such as '{name}'"):
        load_model(packed(GPTQ, **{name: torch.ones(64)})[0])


def test_parts_that_do_not_fit_or_are_missing_are_named_with_their_linear(packed):
    folder, _ = packed(AWQ)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    scales = tensors.pop("model.layers.0.self_attn.q_proj.scales")
    save_file(tensors, path)
    with pytest.raises(ValueError, match=r"q_proj: .*has no model.*q_proj\.scales: fetch"):
        load_model(folder)
    tensors["model.layers.0.self_attn.q_proj.scales"] = scales[:1]
    save_file(tensors, path)
    with pytest.raises(ValueError, match=r"q_proj: an AWQ weight of 64 inputs .* does not fit"):
        load_model(folder)


@pytest.mark.parametrize(
    ("asked", "fastest", "expected"),
    [
        ("auto", "int8", "int4"),
        ("auto", "blocks", "int4"),
        ("auto", None, "none"),
        ("int8", "blocks", "int8"),
    ],
)
def test_auto_keeps_packed_weights_where_kernels_compute_in_blocks(
    packed, asked, fastest, expected
):
    assert choose_quantization(asked, packed(AWQ)[0], fastest) == expected


def test_the_float_weights_of_a_packed_checkpoint_stay_in_floats_unless_rounding_is_asked_for(
    packed, tiny
):
    of_packed, of_floats = (ModelConfig.from_folder(f) for f in (packed(AWQ)[0], tiny.folder))
    assert float_form("int4", of_packed) == "float"
    assert float_form("int8", of_packed) == "int8"
    assert float_form("int4", of_floats) == "int4"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (None, None),
        ({}, None),
        (AWQ, PackedFormat("awq")),
        (AWQ | {"version": "GEMM"}, PackedFormat("awq")),
        (GPTQ, PackedFormat("gptq", "v1")),
        (GPTQ | {"checkpoint_format": "gptq"}, PackedFormat("gptq", "v1")),
        (GPTQ | {"checkpoint_format": "gptq_v2"}, PackedFormat("gptq", "v2")),
    ],
)
def test_the_layout_is_read_from_the_config(settings, expected):
    assert read_packed_format({"quantization_config": settings}) == expected


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (AWQ | {"bits": 8}, "'awq' to 8 bits"),
        (AWQ | {"version": "gemv"}, "in the layout 'gemv'"),
        (GPTQ | {"checkpoint_format": "marlin"}, "'gptq' to 4 bits in the layout 'marlin'"),
        ({"quant_method": "bitsandbytes"}, "by 'bitsandbytes' to None bits"),
        ([1], r"quantization_config is \[1\]: it must be an object"),
    ],
)
def test_other_layouts_are_refused_by_name(settings, says):
    with pytest.raises(ValueError, match=says):
        read_packed_format({"quantization_config": settings})
