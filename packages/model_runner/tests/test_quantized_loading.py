"""Weights that stay in the blocks of their GGUF file, and float ones that are rounded at load."""

import json
import logging
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

from phloem.kernels import BlockWeight
from phloem.kernels.torch_backend import TorchOps
from phloem.kernels.torch_backend.blocks import dequantize_blocks
from phloem.mem_pool.kv import KVPool, KVShape
from phloem.model_runner import load_model
from phloem.model_runner.checkpoint import Checkpoint
from phloem.model_runner.checkpoint_identity import checkpoint_identity
from phloem.model_runner.gguf_convert import add_float_weights, convert_gguf
from phloem.model_runner.gguf_file import GgufError
from phloem.model_runner.gguf_record import RECORD_FILE
from phloem.model_runner.models import ForwardBatch
from phloem.model_runner.quantization import choose_quantization
from phloem.model_runner.sources import resolve_model

LAYER = "model.layers.0."
QKV = [f"{LAYER}self_attn.{x}_proj.weight" for x in "qkv"], [(64, 64), (32, 64), (32, 64)]
GATE_UP = [f"{LAYER}mlp.{x}_proj.weight" for x in ("gate", "up")], [(96, 64)] * 2
DOWN = [f"{LAYER}mlp.down_proj.weight"], [(64, 96)]
EMBEDDING = ["model.embed_tokens.weight"], [(40, 64)]
IDS = [5, 1, 39, 7, 7, 22, 13]


def logits_of(model, ids=IDS):
    c, n = model.config, len(ids)
    pool = KVPool(n + 1, KVShape(c.num_layers, c.num_kv_heads, c.head_dim))
    table, one = np.arange(1, n + 1, dtype=np.int32)[None], np.array([n], np.int32)
    plan = model.ops.plan_attention(table, np.zeros(1, np.int32), one, one, model.attention_spec)
    batch = ForwardBatch(torch.tensor(ids), torch.arange(n), torch.arange(1, n + 1), plan)
    with torch.inference_mode():
        return model.logits(model.forward(batch, pool)).clone()


@pytest.fixture
def convert(tmp_path, write_gguf, tiny_llama):
    """Makes a folder, without weights of its own, of a GGUF file with tensors of given kinds."""

    def make(kind, tied=True, **options):
        file = write_gguf(tmp_path / "tiny.gguf", tiny_llama(tied=tied), kind=kind, **options)
        return convert_gguf(file, tmp_path / "folder", float_weights=False)

    return make


@pytest.fixture
def plain(tmp_path):
    """Makes a plain checkpoint in float32 of such a folder: what its blocks mean."""

    def make(folder):
        add_float_weights(folder)
        copy = shutil.copytree(folder, tmp_path / "plain")
        (folder / "model.safetensors").unlink()
        (copy / RECORD_FILE).unlink()
        return copy

    return make


def checkpoint(folder, keep_blocks=True):
    return Checkpoint(folder, torch.float32, torch.device("cpu"), keep_blocks=keep_blocks)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_blocks_come_from_the_file_as_they_are_and_mean_what_the_float_weights_are(
    convert, plain, kind
):
    folder = convert(kind, tied=False)
    with checkpoint(folder) as blocks, checkpoint(plain(folder)) as floats:
        for wanted in (QKV, GATE_UP, DOWN, EMBEDDING, (["lm_head.weight"], [(40, 64)])):
            taken = blocks.take_linear(*wanted)
            assert isinstance(taken, BlockWeight)
            assert taken.format == kind.lower()
            assert torch.equal(dequantize_blocks(taken), floats.take(*wanted))


def test_a_matrix_of_its_own_is_not_copied_from_the_mapped_file(convert):
    with checkpoint(convert("Q4_1")) as blocks:
        taken = blocks.take_linear(*DOWN)
        assert not taken.blocks.flags.owndata
        assert not taken.blocks.flags.writeable


@pytest.mark.parametrize(
    ("kinds", "format", "exact"),
    [
        (("Q4_0", "Q4_1", "Q4_0"), "q4_1", True),
        (("Q4_0", "Q4_0", "Q8_0"), "q8_0", True),
        (("Q8_0", "Q4_0", "Q4_1"), "q8_0", False),
    ],
)
def test_fused_matrices_of_several_formats_get_one(convert, plain, caplog, kinds, format, exact):
    names = [f"blk.0.attn_{x}.weight" for x in "qkv"]
    folder = convert("Q8_0", kinds=dict(zip(names, kinds, strict=True)))
    with (
        caplog.at_level(logging.INFO),
        checkpoint(folder) as blocks,
        checkpoint(plain(folder)) as floats,
    ):
        fused, expected = blocks.take_linear(*QKV), floats.take(*QKV)
    assert fused.format == format
    tolerance = 0.0 if exact else expected.abs().max() / 127
    torch.testing.assert_close(dequantize_blocks(fused), expected, rtol=0, atol=tolerance)
    told = [r.getMessage() for r in caplog.records if "rounded anew" in r.getMessage()]
    assert told == ([] if exact else [f"{QKV[0][2]} is rounded anew from q4_1 to q8_0"])


def test_matrices_fused_with_one_in_floats_are_floats(convert, plain):
    folder = convert("Q4_0", kinds={"blk.0.attn_v.weight": "F16"})
    with checkpoint(folder) as blocks, checkpoint(plain(folder)) as floats:
        fused = blocks.take_linear(*QKV)
        assert isinstance(fused, torch.Tensor)
        assert torch.equal(fused, floats.take(*QKV))


def test_other_kinds_are_kept_in_int8_and_told_once(convert, plain, caplog):
    folder = convert("Q5_1")
    with checkpoint(folder) as blocks, checkpoint(plain(folder)) as floats:
        for wanted in (QKV, DOWN):
            taken, expected = blocks.take_linear(*wanted), floats.take(*wanted)
            assert taken.format == "q8_0"
            bound = expected.abs().max() / 127
            torch.testing.assert_close(dequantize_blocks(taken), expected, rtol=0, atol=bound)
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "tiny.gguf has weights in Q5_1, which nothing here computes in: they are kept in q8_0"
    ]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_1", "Q5_0"])
def test_in_floats_a_gguf_file_is_the_model_of_its_safetensors(convert, plain, kind, tied):
    folder = convert(kind, tied=tied)
    found = logits_of(load_model(folder))
    assert not (folder / "model.safetensors").exists()
    assert torch.equal(found, logits_of(load_model(plain(folder))))


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_in_blocks_differs_by_the_rounding_of_its_activations_only(convert, tied):
    folder = convert("Q4_1", tied=tied)
    exact = logits_of(load_model(folder))
    blocks = logits_of(load_model(folder, quantization="gguf"))
    assert not torch.equal(blocks, exact)
    assert (blocks - exact).norm() < 0.03 * exact.norm()


class RecordingOps(TorchOps):
    def __init__(self):
        self.forms = []

    def prepare_linear(self, weight, bias=None, form="float", input_bits=8):
        self.forms.append(form)
        return super().prepare_linear(weight, bias, form, input_bits)

    def prepare_embedding(self, weight, form="float"):
        self.forms.append(form)
        return super().prepare_embedding(weight, form)


@pytest.mark.parametrize(
    ("quantization", "form"), [("none", "float"), ("int8", "int8"), ("int4", "int4")]
)
def test_every_matrix_of_a_float_checkpoint_gets_the_form(tiny, quantization, form):
    ops = RecordingOps()
    load_model(tiny.folder, ops=ops, quantization=quantization)
    # The embedding, four linears in each of two layers, and the head.
    assert ops.forms == [form] * 10


def test_rounding_to_8_bits_changes_less_than_to_4(tiny):
    exact = logits_of(load_model(tiny.folder))
    error = {
        name: (logits_of(load_model(tiny.folder, quantization=name)) - exact).norm()
        for name in ("int8", "int4")
    }
    assert 0 < error["int8"] < 0.1 * exact.norm()
    assert error["int4"] > 2 * error["int8"]


@pytest.mark.parametrize(
    ("asked", "fastest", "of_gguf", "of_safetensors"),
    [
        ("auto", "int8", "int8", "none"),
        ("auto", "blocks", "gguf", "none"),
        ("auto", None, "none", "none"),
        ("none", "int8", "none", "none"),
        ("int8", "blocks", "int8", "int8"),
        ("int4", None, "int4", "int4"),
        ("gguf", "int8", "gguf", None),
    ],
)
def test_auto_takes_the_fastest_form_of_what_was_rounded_and_the_rest_is_what_was_asked_for(
    convert, tiny, asked, fastest, of_gguf, of_safetensors
):
    assert choose_quantization(asked, convert("Q4_0"), fastest) == of_gguf
    if of_safetensors is not None:
        assert choose_quantization(asked, tiny.folder, fastest) == of_safetensors


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"quantization": "gguf"}, "was not made of one: give a .gguf file"),
        ({"quantization": "fp8"}, "'fp8' is unknown: use one of auto, none, int8, int4, gguf"),
        ({"quantization": "int8", "dtype": "bfloat16"}, "'int8' computes in float32 on a CPU, not"),
    ],
)
def test_a_quantization_that_cannot_be_is_refused(tiny, options, says):
    with pytest.raises(ValueError, match=says):
        load_model(tiny.folder, **options)


def test_the_dtype_auto_is_float32_where_weights_are_quantized(tiny, tmp_path):
    folder = shutil.copytree(tiny.folder, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    assert load_model(folder, "auto").dtype == torch.bfloat16
    assert load_model(folder, "auto", quantization="int8").dtype == torch.float32


def test_a_file_that_is_gone_or_changed_is_said(convert, tmp_path):
    folder = convert("Q4_1")
    file = tmp_path / "tiny.gguf"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(GgufError, match=r"tiny\.gguf has changed since it was converted"):
        load_model(folder)
    file.unlink()
    with pytest.raises(GgufError, match=r"tiny\.gguf, which cannot be read.*name or its \.gguf"):
        load_model(folder, quantization="gguf")


def test_a_copy_of_the_file_takes_its_place(convert, tmp_path):
    folder = convert("Q4_1")
    expected = logits_of(load_model(folder))
    (tmp_path / "tiny.gguf").rename(tmp_path / "moved.gguf")
    assert convert_gguf(tmp_path / "moved.gguf", folder, float_weights=False) == folder
    assert torch.equal(logits_of(load_model(folder)), expected)


def test_a_folder_whose_record_is_damaged_is_no_conversion(convert, tmp_path):
    folder = convert("Q4_1")
    (folder / RECORD_FILE).write_text('{"converter_version": 2, "tensors": {"a": []}}')
    with pytest.raises(ValueError, match="only safetensors"):
        load_model(folder)
    with pytest.raises(GgufError, match=r"is not a conversion of tiny\.gguf: remove it"):
        convert_gguf(tmp_path / "tiny.gguf", folder)


def test_a_converted_folder_is_a_model_and_gets_float_weights_where_they_are_wanted(
    convert, tmp_path
):
    folder = convert("Q4_1")
    found = resolve_model(folder, float_weights=False, cache_dir=tmp_path)
    assert found.path == folder
    assert not (folder / "model.safetensors").exists()
    before = checkpoint_identity(folder)
    assert resolve_model(folder, cache_dir=tmp_path) == found
    assert (folder / "model.safetensors").is_file()
    assert checkpoint_identity(folder) == before


def test_the_identity_of_a_converted_folder_is_its_files(convert, write_gguf, tiny_llama, tmp_path):
    folder = convert("Q4_1")
    other = write_gguf(tmp_path / "other.gguf", tiny_llama(), kind="Q4_0")
    found = resolve_model(other, cache_dir=tmp_path, float_weights=False)
    assert checkpoint_identity(found.path) != checkpoint_identity(folder)


WARM = """
import sys
from phloem.model_runner import load_model
from phloem.model_runner.sources import resolve_model
folder = resolve_model(sys.argv[1], cache_dir=sys.argv[2], float_weights=False)
assert "gguf" not in sys.modules
load_model(folder.path, quantization="none")
load_model(folder.path, quantization="gguf")
assert "gguf" not in sys.modules
"""


def test_a_warm_start_needs_no_gguf_package(write_gguf, tiny_llama, tmp_path):
    file = write_gguf(tmp_path / "tiny.gguf", tiny_llama(), kind="Q4_1")
    resolve_model(file, cache_dir=tmp_path, float_weights=False)
    command = [sys.executable, "-c", WARM, str(file), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
