import pytest

from phloem.kernels import automatic_backend, available_backends, get_ops
from phloem.kernels.cpu_backend import library


def test_the_default_backend_is_torch():
    assert get_ops().name == "torch"


def test_an_unknown_backend_is_refused_with_the_known_names():
    with pytest.raises(ValueError, match=r"unknown kernel backend 'warp': known are torch, .*auto"):
        get_ops("warp")


def test_every_backend_says_whether_it_is_usable_and_why():
    for status in available_backends():
        assert status.reason
        if status.usable:
            assert get_ops(status.name).name == status.name


@pytest.fixture
def no_native_kernels(monkeypatch):
    """As on a machine without a compiler, and without a wheel that carries compiled kernels."""
    monkeypatch.setattr(library, "_load_prebuilt", lambda isa: None)
    monkeypatch.setenv("CXX", "no-such-compiler")


def test_without_native_kernels_the_cpu_backend_says_why(no_native_kernels):
    with pytest.raises(RuntimeError, match=r"'cpu' cannot run here: CXX names .*no-such-compiler"):
        get_ops("cpu")


def test_auto_is_torch_with_a_warning_where_there_are_no_native_kernels(no_native_kernels):
    with pytest.warns(RuntimeWarning, match="computing with torch, .*no-such-compiler") as caught:
        ops = get_ops("auto", threads=1)
    assert (ops.name, automatic_backend(), len(caught)) == ("torch", "torch", 1)
    assert caught[0].filename == __file__


def test_auto_is_cpu_where_there_are_native_kernels():
    usable = {status.name for status in available_backends() if status.usable}
    if "cpu" not in usable:
        pytest.skip("needs a compiler")
    assert automatic_backend() == "cpu"
    assert get_ops("auto", threads=1).name == "cpu"


def test_an_option_that_a_backend_lacks_is_refused():
    with pytest.raises(ValueError, match="'torch' has no option 'threads': leave it out"):
        get_ops("torch", threads=2)


def test_the_instruction_set_of_the_cpu_backend_is_checked():
    with pytest.raises(ValueError, match=r"'mmx' does not run on this processor: use .*portable"):
        get_ops("cpu", isa="mmx")


def test_a_backend_says_which_rounded_weights_it_is_fastest_with():
    assert get_ops("torch").fastest_rounded is None
    if not library.library_status().usable:
        pytest.skip("needs a compiler")
    for isa in library.usable_instruction_sets():
        expected = "int8" if isa == "avx512vnni" else "blocks"
        assert get_ops("cpu", threads=1, isa=isa).fastest_rounded == expected
