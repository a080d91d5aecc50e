"""Which kernels compute, in which form, and that KV kept on disk is told apart by it."""

import pytest
import torch

from phloem.mem_pool.kv import KVPool, KVShape
from phloem.server import compute
from phloem.server.compute import kv_cache_dtype, make_ops, weights_dtype
from phloem.server.config import ServerArgs
from phloem.server.kv_memory import PoolMemory


@pytest.fixture
def asked(monkeypatch):
    """The names of the kernels that the registry is asked for."""
    names = []
    monkeypatch.setattr(compute, "get_ops", names.append)
    return names


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"kernel_backend": "auto"}, "auto"),
        ({"kernel_backend": "auto", "dtype": "bfloat16"}, "torch"),
        ({"kernel_backend": "torch"}, "torch"),
        ({"kernel_backend": "cpu"}, "cpu"),
    ],
)
def test_on_a_cpu_auto_is_left_to_the_registry_unless_the_dtype_is_another(asked, options, name):
    make_ops(ServerArgs(**options), "cpu")
    assert asked == [name]


def test_on_a_gpu_auto_is_triton_and_torch_with_a_warning_where_that_cannot_run(asked, monkeypatch):
    for usable in (True, False):
        status = compute.available_backends()[0].__class__("triton", usable, "no GPU")
        monkeypatch.setattr(compute, "available_backends", lambda status=status: (status,))
        if usable:
            make_ops(ServerArgs(kernel_backend="auto"), "cuda:0")
        else:
            with pytest.warns(RuntimeWarning, match="computing with torch, .*: no GPU"):
                make_ops(ServerArgs(kernel_backend="auto"), "cuda:0")
    assert asked == ["triton", "torch"]


def test_kernels_that_cannot_run_are_bad_options(monkeypatch):
    def fail(name):
        raise RuntimeError(f"kernel backend {name!r} cannot run here: there is no compiler")

    monkeypatch.setattr(compute, "get_ops", fail)
    with pytest.raises(ValueError, match="'cpu' cannot run here: there is no compiler"):
        make_ops(ServerArgs(kernel_backend="cpu"), "cpu")
    with pytest.raises(ValueError, match="computes on a CPU, not on device 'cuda'"):
        make_ops(ServerArgs(kernel_backend="cpu"), "cuda")


@pytest.mark.parametrize(
    ("dtype", "device", "expected"),
    [
        ("auto", "cpu", "float32"),
        ("auto", "cuda", "auto"),
        ("bfloat16", "cpu", "bfloat16"),
        ("float32", "cuda", "float32"),
    ],
)
def test_on_a_cpu_auto_is_float32_and_else_the_checkpoints_dtype(dtype, device, expected):
    assert weights_dtype(ServerArgs(dtype=dtype), device) == expected


@pytest.mark.parametrize(
    ("given", "quantization", "expected"),
    [
        ("auto", "none", torch.bfloat16),
        ("auto", "int8", torch.int8),
        ("auto", "int4", torch.int8),
        ("auto", "gguf", torch.int8),
        ("int8", "none", torch.int8),
        ("float32", "gguf", torch.float32),
    ],
)
def test_the_kv_cache_is_int8_beside_quantized_weights_unless_another_dtype_is_asked_for(
    given, quantization, expected
):
    args = ServerArgs(kv_cache_dtype=given)
    assert kv_cache_dtype(args, torch.bfloat16, quantization) == expected


def test_kv_of_another_computation_or_checkpoint_is_not_mistaken(tmp_path):
    pool = KVPool(8, KVShape(1, 1, 8, torch.float32))
    folders = tmp_path / "a", tmp_path / "b"
    for folder in folders:
        folder.mkdir()
        (folder / "config.json").write_text(folder.name)
    names = [
        PoolMemory(pool, folder, computation).fingerprint
        for folder in folders
        for computation in ("float32 gguf cpu", "float32 none cpu", "float32 none torch")
    ]
    assert len(set(names)) == 6
    assert names[0] == PoolMemory(pool, folders[0], "float32 gguf cpu").fingerprint
