"""Conversion of GGUF files written here, against the models they were written from."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from phloem.model_runner import gguf_convert, gguf_record
from phloem.model_runner.gguf_config import llama3_divisors, model_config
from phloem.model_runner.gguf_convert import convert_gguf, is_current
from phloem.model_runner.gguf_file import GgufError, fingerprint, open_gguf

HIDDEN, INNER, HEAD_DIM, HEADS, KV_HEADS, VOCAB = 64, 96, 16, 4, 2, 40
"""As `tiny_llama` has it."""


@pytest.fixture(scope="session")
def tiny(tmp_path_factory, write_gguf, tiny_llama):
    return write_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", tiny_llama())


@pytest.mark.parametrize("tied", [True, False])
def test_a_float_file_gives_back_the_model_it_was_written_from(
    tmp_path, tied, write_gguf, tiny_llama
):
    model = tiny_llama(tied=tied)
    folder = convert_gguf(write_gguf(tmp_path / "tiny.gguf", model), tmp_path / "out")
    ours = AutoModelForCausalLM.from_pretrained(folder)
    assert ours.config.tie_word_embeddings is tied
    state = ours.state_dict()
    for name, weight in model.state_dict().items():
        assert torch.equal(state[name], weight), name
    ids = torch.arange(30).view(2, 15)
    with torch.no_grad():
        assert torch.equal(ours(ids).logits, model(ids).logits)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "Q4_0", "F16", "BF16"])
def test_a_quantized_file_is_read_as_transformers_reads_it(tmp_path, kind, write_gguf, tiny_llama):
    model = tiny_llama(tied=False)
    path = write_gguf(tmp_path / "tiny.gguf", model, kind=kind)
    ours = load_file(convert_gguf(path, tmp_path / "out") / "model.safetensors")
    theirs = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():
        assert ours[name].dtype == torch.float32
        assert torch.equal(ours[name], weight.float()), name


def test_weights_do_not_depend_on_the_chunks_in_which_they_are_written(
    tmp_path, monkeypatch, write_gguf, tiny_llama
):
    path = write_gguf(tmp_path / "tiny.gguf", tiny_llama(), kind="Q4_1")
    whole = convert_gguf(path, tmp_path / "whole") / "model.safetensors"
    monkeypatch.setattr(gguf_convert, "_CHUNK_BYTES", 3 * HIDDEN * 4)
    chunked = convert_gguf(path, tmp_path / "chunked") / "model.safetensors"
    assert whole.read_bytes() == chunked.read_bytes()


def test_the_configuration_says_what_the_file_says(tmp_path, tiny, tiny_llama):
    folder = convert_gguf(tiny, tmp_path / "out")
    config = LlamaConfig.from_pretrained(folder)
    expected = tiny_llama().config
    for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"):
        assert getattr(config, name) == getattr(expected, name)
    assert (config.num_attention_heads, config.num_key_value_heads) == (HEADS, KV_HEADS)
    assert (config.head_dim, config.max_position_embeddings) == (HEAD_DIM, 256)
    written = json.loads((folder / "config.json").read_text())
    assert (written["rms_norm_eps"], written["rope_theta"]) == (1e-6, 5000.0)
    assert json.loads((folder / "generation_config.json").read_text()) == {"eos_token_id": 0}
    assert AutoTokenizer.from_pretrained(folder)("!#<|end|>").input_ids[-1] == 0


def test_an_end_of_turn_token_ends_generation_too(tmp_path, write_gguf, tiny_llama):
    changes = [("add_uint32", "tokenizer.ggml.eot_token_id", 7)]
    path = write_gguf(tmp_path / "tiny.gguf", tiny_llama(), changes=changes)
    written = (convert_gguf(path, tmp_path / "out") / "generation_config.json").read_text()
    assert json.loads(written)["eos_token_id"] == [0, 7]


def llama3_config(factor):
    return LlamaConfig(
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        max_position_embeddings=131072,
        rope_parameters={
            "rope_theta": 5000.0,
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    )


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_a_llama_3_rotary_table_becomes_llama_3_scaling(tmp_path, factor, write_gguf, tiny_llama):
    plain = 5000.0 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](llama3_config(factor), "cpu")
    table = (plain / scaled.numpy()).astype(np.float32)
    np.testing.assert_allclose(llama3_divisors(5000.0, HEAD_DIM, factor), table, rtol=1e-5)
    extra = {"rope_freqs.weight": table}
    path = write_gguf(tmp_path / "tiny.gguf", tiny_llama(), extra=extra)
    config = LlamaConfig.from_pretrained(convert_gguf(path, tmp_path / "out"))
    assert config.rope_parameters == pytest.approx(llama3_config(factor).rope_parameters)


def test_linear_rotary_scaling_is_kept(tmp_path, write_gguf, tiny_llama):
    changes = [
        ("add_string", "llama.rope.scaling.type", "linear"),
        ("add_float32", "llama.rope.scaling.factor", 4.0),
    ]
    source = open_gguf(write_gguf(tmp_path / "tiny.gguf", tiny_llama(), changes=changes))
    config = model_config(source, tied=True, vocab_size=VOCAB)
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"architecture": "mamba"}, "architecture 'mamba'"),
        ({"changes": [("add_uint32", "llama.expert_count", 8)]}, "8 experts"),
        ({"changes": [("add_uint16", "split.count", 3)]}, "one of 3 parts"),
        ({"changes": [("add_uint32", "llama.rope.dimension_count", 8)]}, "rotates 8 of 16"),
        ({"changes": [("add_string", "llama.rope.scaling.type", "yarn")]}, "'yarn'"),
        ({"drop": ["blk.1.ffn_up.weight"]}, "no tensor blk.1.ffn_up.weight"),
        ({"extra": {"blk.0.attn_q.bias": np.ones(4, np.float32)}}, "blk.0.attn_q.bias"),
        ({"extra": {"rope_freqs.weight": np.full(8, 3.0, np.float32)}}, "not llama-3's"),
    ],
)
def test_what_cannot_be_converted_is_refused_by_name(
    tmp_path, options, says, write_gguf, tiny_llama
):
    path = write_gguf(tmp_path / "tiny.gguf", tiny_llama(), **options)
    with pytest.raises(GgufError, match=says):
        convert_gguf(path, tmp_path / "out")
    assert [entry.name for entry in tmp_path.iterdir()] == ["tiny.gguf"]


def test_a_tensor_type_that_cannot_be_dequantized_is_refused_by_name(
    tmp_path, write_gguf, tiny_llama
):
    name = "blk.0.ffn_up.weight"
    extra = {name: np.zeros((INNER, HIDDEN), np.int8)}
    path = write_gguf(tmp_path / "tiny.gguf", tiny_llama(), drop=[name], extra=extra)
    with pytest.raises(GgufError, match=f"stores {name} as I8"):
        convert_gguf(path, tmp_path / "out")


@pytest.mark.parametrize("keep", [0, 3, 5, 30, 700, -1000])
def test_a_truncated_file_is_refused(tmp_path, tiny, keep):
    path = tmp_path / "short.gguf"
    path.write_bytes(tiny.read_bytes()[:keep])
    with pytest.raises(GgufError, match=r"short\.gguf (is not a GGUF|cannot be read)"):
        convert_gguf(path, tmp_path / "out")


def test_progress_counts_the_bytes_of_the_weights(tmp_path, tiny):
    calls = []
    folder = convert_gguf(tiny, tmp_path / "out", progress=lambda *call: calls.append(call))
    total = sum(w.numel() * 4 for w in load_file(folder / "model.safetensors").values())
    assert calls[0] == (0, 0)
    assert calls[-1] == (total, total)
    assert calls == sorted(calls)


def test_a_current_folder_is_returned_untouched(tmp_path, tiny):
    folder = convert_gguf(tiny, tmp_path / "out")
    before = (folder / "model.safetensors").stat().st_mtime_ns
    calls = []
    assert convert_gguf(tiny, folder, progress=lambda *call: calls.append(call)) == folder
    assert not calls
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


def test_a_folder_of_another_file_or_converter_is_not_current_and_not_overwritten(
    tmp_path, tiny, monkeypatch, write_gguf, tiny_llama
):
    folder = convert_gguf(tiny, tmp_path / "out")
    other = write_gguf(tmp_path / "other.gguf", tiny_llama(tied=False))
    assert not is_current(folder, other)
    with pytest.raises(GgufError, match="is not a conversion of other"):
        convert_gguf(other, folder)
    monkeypatch.setattr(gguf_record, "CONVERTER_VERSION", gguf_record.CONVERTER_VERSION + 1)
    assert not is_current(folder, tiny)


def test_the_fingerprint_follows_the_content_and_not_the_place(tmp_path, tiny):
    copy = tmp_path / "copy.gguf"
    content = bytearray(tiny.read_bytes())
    copy.write_bytes(content)
    assert fingerprint(copy) == fingerprint(tiny)
    content[-1] ^= 1
    copy.write_bytes(content)
    assert fingerprint(copy) != fingerprint(tiny)


def test_an_interrupted_conversion_leaves_nothing_that_is_not_whole(tmp_path, tiny, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    out = tmp_path / "cache" / "out"
    with monkeypatch.context() as patch:
        patch.setattr(gguf_convert, "write_tokenizer", interrupt)
        with pytest.raises(KeyboardInterrupt):
            convert_gguf(tiny, out)
    assert list(out.parent.iterdir()) == []
    with pytest.raises(KeyboardInterrupt):
        convert_gguf(tiny, out, progress=lambda done, total: interrupt() if total else None)
    assert is_current(out, tiny)
    assert not [name for name in os.listdir(out) if "safetensors" in name]


KILLED = """
import os, signal, sys
from pathlib import Path
from phloem.model_runner import gguf_convert
kill = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[3] == "folder":
    gguf_convert.write_tokenizer = kill
progress = lambda done, total: kill() if total else None
gguf_convert.convert_gguf(Path(sys.argv[1]), Path(sys.argv[2]), progress=progress)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")
@pytest.mark.parametrize("during", ["folder", "weights"])
def test_the_remains_of_a_killed_conversion_are_hidden_and_go_after_a_day(tmp_path, tiny, during):
    cache = tmp_path / "cache"
    out = cache / "out"
    command = [sys.executable, "-c", KILLED, str(tiny), str(out), during]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert out.exists() is (during == "weights")
    (remains,) = [path for path in (*cache.iterdir(), *cache.glob("out/*")) if path.name[0] == "."]
    convert_gguf(tiny, out)
    assert remains.exists()
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(remains, (two_days_ago, two_days_ago))
    shutil.rmtree(out) if during == "folder" else (out / "model.safetensors").unlink()
    convert_gguf(tiny, out)
    assert not remains.exists()
    assert (out / "model.safetensors").is_file()


@pytest.mark.parametrize("during_weights", [False, True])
def test_two_conversions_at_once_both_succeed_and_the_first_folder_stays(
    tmp_path, tiny, during_weights
):
    out = tmp_path / "out"
    inner = []

    def convert_meanwhile(done, total):
        if not inner and bool(total) is during_weights:
            inner.append(convert_gguf(tiny, out))
            inner.append((out / "config.json").stat().st_ino)

    assert convert_gguf(tiny, out, progress=convert_meanwhile) == inner[0] == out
    assert (out / "config.json").stat().st_ino == inner[1]
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]
    assert not [path for path in out.iterdir() if path.name[0] == "."]


def test_smollm2_converts_and_says_paris(converted_smollm2):
    model = AutoModelForCausalLM.from_pretrained(converted_smollm2)
    tokenizer = AutoTokenizer.from_pretrained(converted_smollm2)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    text = tokenizer.apply_chat_template(question, add_generation_prompt=True, tokenize=False)
    prompt = tokenizer(text + "The capital of France is", return_tensors="pt")
    with torch.no_grad():
        logits = model(**prompt, logits_to_keep=1).logits
    assert tokenizer.decode(logits[0, -1].argmax()) == " Paris"
