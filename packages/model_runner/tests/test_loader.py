import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from phloem.model_runner import load_model


@pytest.fixture
def folder(tiny, tmp_path):
    return shutil.copytree(tiny.folder, tmp_path / "model")


def change(folder, edit):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)


def test_a_missing_tensor_is_named(folder):
    change(folder, lambda t: t.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(ValueError, match=r"no tensor 'model\.layers\.1\.mlp\.up_proj\.weight'"):
        load_model(folder)


def test_a_tensor_left_over_is_named(folder):
    change(folder, lambda t: t.update({"model.extra.weight": torch.zeros(1)}))
    with pytest.raises(ValueError, match=r"1 tensors .* such as 'model\.extra\.weight'"):
        load_model(folder)


def test_a_tensor_of_another_shape_is_named_with_both_shapes(folder):
    change(folder, lambda t: t.update({"model.norm.weight": torch.zeros(65)}))
    with pytest.raises(ValueError, match=r"'model\.norm\.weight'.*\(65,\).*asks for \(64,\)"):
        load_model(folder)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_a_tensor_of_a_quantized_checkpoint_is_refused(folder, dtype):
    name = "model.layers.0.mlp.down_proj.weight"
    change(folder, lambda t: t.update({name: torch.zeros(64, 128, dtype=dtype)}))
    with pytest.raises(ValueError, match=rf"down_proj\.weight'.*{dtype}: quantized"):
        load_model(folder)


def test_a_config_with_absurd_sizes_is_refused_before_memory_is_asked_for(folder):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"vocab_size": 2**31 - 1}))
    with pytest.raises(ValueError, match=r"embed_tokens.*\(256, 64\).*asks for \(2147483647, 64\)"):
        load_model(folder)


def test_a_folder_without_safetensors_is_refused(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="only safetensors checkpoints"):
        load_model(folder)


def test_a_damaged_file_is_refused_with_its_name(folder):
    (folder / "model.safetensors").write_bytes(b"0" * 100)
    with pytest.raises(ValueError, match=r"model\.safetensors cannot be read"):
        load_model(folder)


def test_a_shard_that_is_not_there_is_named(save_tiny, tmp_path):
    folder = shutil.copytree(save_tiny(shards="100KB").folder, tmp_path / "model")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    missing = index["weight_map"]["model.norm.weight"]
    (folder / missing).unlink()
    with pytest.raises(ValueError, match=f"{missing} cannot be read"):
        load_model(folder)


def test_a_shard_without_the_tensor_that_its_index_promises_is_named(save_tiny, tmp_path):
    folder = shutil.copytree(save_tiny(shards="100KB").folder, tmp_path / "model")
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    shards = index["weight_map"]
    wrong = next(file for file in shards.values() if file != shards["model.norm.weight"])
    shards["model.norm.weight"] = wrong
    path.write_text(json.dumps(index))
    with pytest.raises(ValueError, match=rf"{wrong} has no tensor 'model\.norm\.weight', though"):
        load_model(folder)


def test_an_index_without_a_weight_map_is_refused(folder):
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(
        ValueError, match=r"weight_map is None in .*model\.safetensors\.index\.json"
    ):
        load_model(folder)


def test_what_a_config_makes_superfluous_is_ignored(save_tiny, tmp_path):
    folder = shutil.copytree(save_tiny(tie_word_embeddings=True).folder, tmp_path / "model")
    change(
        folder,
        lambda t: t.update(
            {
                "lm_head.weight": t["model.embed_tokens.weight"].clone(),
                "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8),
            }
        ),
    )
    assert load_model(folder).config.tie_word_embeddings


@pytest.mark.parametrize(
    ("asked", "stated", "expected"),
    [
        ("float32", "bfloat16", torch.float32),
        ("bfloat16", "float32", torch.bfloat16),
        ("auto", "bfloat16", torch.bfloat16),
        ("auto", "float32", torch.float32),
        ("auto", "float16", torch.float32),
    ],
)
def test_the_dtype_is_the_one_asked_for_or_follows_the_checkpoint(folder, asked, stated, expected):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"dtype": stated}))
    assert load_model(folder, dtype=asked).dtype == expected


def test_an_unknown_dtype_is_refused(folder):
    with pytest.raises(ValueError, match="dtype 'float16' is not supported: choose float32"):
        load_model(folder, dtype="float16")
