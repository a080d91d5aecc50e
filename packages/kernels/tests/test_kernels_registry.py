import pytest

from phloem.kernels import available_backends, get_ops


def test_the_default_backend_is_torch():
    assert get_ops().name == "torch"


def test_an_unknown_backend_is_refused_with_the_known_names():
    with pytest.raises(ValueError, match=r"unknown kernel backend 'warp': known are torch"):
        get_ops("warp")


def test_every_backend_says_whether_it_is_usable_and_why():
    for status in available_backends():
        assert status.reason
        if status.usable:
            assert get_ops(status.name).name == status.name
