import os
import shutil

import pytest

from phloem.model_runner.checkpoint_identity import checkpoint_identity


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text("{}")
    (made / "tokenizer.json").write_text("{}")
    (made / "model.safetensors").write_bytes(bytes(1 << 20))
    return made


def test_it_is_equal_for_a_copy_elsewhere_and_whatever_is_no_part_of_the_model(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy", copy_function=shutil.copy2)
    (copy / "tokenizer.json").write_text("other")
    assert checkpoint_identity(copy) == checkpoint_identity(str(folder))


@pytest.mark.parametrize("at", [0, 1 << 19, (1 << 20) - 1])
def test_other_weights_of_the_same_shape_differ(folder, at):
    before = checkpoint_identity(folder)
    weights = folder / "model.safetensors"
    stat = weights.stat()
    changed = bytearray(weights.read_bytes())
    changed[at] = 1
    weights.write_bytes(changed)
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert checkpoint_identity(folder) != before


def test_a_file_that_was_written_again_differs(folder):
    before = checkpoint_identity(folder)
    os.utime(folder / "model.safetensors", ns=(1, 1))
    assert checkpoint_identity(folder) != before


def test_another_config_differs(folder):
    before = checkpoint_identity(folder)
    (folder / "config.json").write_text('{"rope_theta": 2}')
    assert checkpoint_identity(folder) != before
