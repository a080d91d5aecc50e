import logging

import pytest

from phloem.mem_pool.health import FAILURES_ALLOWED, Health


def raised(error):
    """The error, with a traceback."""
    try:
        raise error
    except Exception as caught:
        return caught


@pytest.mark.parametrize(
    "error", [OSError("full"), MemoryError(), RuntimeError("CUDA"), "too late"]
)
def test_what_a_disk_or_a_device_raises_is_a_failure(error):
    health = Health("it")
    health.failed(error)
    assert (health.failures, health.mistakes) == (1, 0)


@pytest.mark.parametrize("kind", [IndexError, KeyError, TypeError, ValueError, AssertionError])
def test_a_mistake_is_counted_apart_and_its_traceback_is_logged_once(kind, caplog):
    health = Health("the tier")
    for _ in range(2):
        health.failed(raised(kind("arrays of floats")))
    assert (health.failures, health.mistakes) == (0, 2)
    (record,) = [each for each in caplog.records if each.exc_info]
    assert record.levelno == logging.ERROR
    assert "the tier has a mistake in its code" in record.message
    assert "in raised" in caplog.text
    health.failed(raised(AttributeError("another")))
    assert len([each for each in caplog.records if each.exc_info]) == 2


@pytest.mark.parametrize("error", [OSError("full"), TypeError("wrong")])
def test_after_several_in_a_row_of_either_kind_it_is_off(error):
    health = Health("it")
    for _ in range(5):
        health.failed(error)
        health.succeeded()
    assert not health.off
    for _ in range(FAILURES_ALLOWED):
        assert not health.off
        health.failed(error)
    assert health.off


def test_it_is_off_at_once_where_trying_again_is_of_no_use():
    health = Health("it")
    health.failed("it hangs", for_good=True)
    assert health.off
