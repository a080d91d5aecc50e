"""What is said of the GPU backends on machines that lack something."""

import importlib.util
import sys
import types

import pytest
import torch

from phloem.kernels import flashinfer_backend, triton_backend


@pytest.fixture
def installed(monkeypatch):
    """Sets which modules there are; they hold nothing but a version and the interpreter's knob."""

    def install(*names, interpret=False, system="Linux"):
        monkeypatch.setattr("platform.system", lambda: system)
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name: name if name in names else None
        )
        for name in names:
            module = types.ModuleType(name)
            module.__version__ = "9.9"
            runtime = types.SimpleNamespace(interpret=interpret)
            module.knobs = types.SimpleNamespace(runtime=runtime)
            monkeypatch.setitem(sys.modules, name, module)

    return install


@pytest.fixture
def gpu(monkeypatch):
    """Sets what torch sees: None, or the compute capability of an NVIDIA GPU."""

    def see(capability):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: capability is not None)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA X")
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
        monkeypatch.setattr(torch.version, "hip", None)

    return see


def test_without_triton_the_cure_is_named(installed):
    installed()
    assert triton_backend.probe() == (
        False,
        "triton is not installed: pip install 'phloem-kernels[triton]'",
    )


def test_where_triton_has_no_packages_no_cure_is_promised(installed):
    installed(system="Darwin")
    assert triton_backend.probe() == (False, "triton has no packages for Darwin")


def test_a_broken_triton_is_reported_with_its_error(installed, monkeypatch):
    installed("triton")
    monkeypatch.setitem(sys.modules, "triton", None)
    usable, reason = triton_backend.probe()
    assert not usable
    assert reason.startswith("triton is installed and cannot be imported: ")


def test_triton_needs_a_gpu_or_its_interpreter(installed, gpu):
    gpu(None)
    installed("triton")
    usable, reason = triton_backend.probe()
    assert not usable
    assert reason.startswith("triton 9.9 is installed, but torch ")
    assert reason.endswith("sees no GPU")
    installed("triton", interpret=True)
    usable, reason = triton_backend.probe()
    assert usable
    assert "interpreter" in reason
    gpu((9, 0))
    installed("triton")
    assert triton_backend.probe() == (True, "triton 9.9 on NVIDIA X")


def test_flashinfer_needs_itself_a_new_enough_gpu_and_triton(installed, gpu):
    gpu((9, 0))
    installed("triton")
    usable, reason = flashinfer_backend.probe()
    assert (usable, reason.split(":")[0]) == (False, "flashinfer is not installed")
    installed("flashinfer")
    usable, reason = flashinfer_backend.probe()
    assert not usable
    assert reason.startswith("it needs the triton backend, and triton is not installed")
    installed("flashinfer", "triton")
    assert flashinfer_backend.probe() == (True, "flashinfer 9.9 and triton 9.9 on NVIDIA X")
    gpu((7, 5))
    usable, reason = flashinfer_backend.probe()
    assert (usable, reason) == (
        False,
        "the GPU has compute capability 7.5: flashinfer needs 8.0 or newer",
    )
    gpu(None)
    usable, reason = flashinfer_backend.probe()
    assert not usable
    assert reason.endswith("sees no NVIDIA GPU")
