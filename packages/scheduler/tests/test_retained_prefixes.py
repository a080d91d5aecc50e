"""A prompt whose beginning is retained keeps it in the cache under pressure, and pins nothing."""

import pytest

from phloem.mem_pool import Retention

SHARED = list(range(1, 33))


def after_pressure(harness, retention):
    """How much of the shared beginning is found after others have filled the cache."""
    h = harness(capacity=100, page_size=4)
    h.add("first", [*SHARED, 40, 41], max_new_tokens=2, retention=retention)
    h.run()
    for i in range(4):
        h.add(str(i), [42 + i] * 30, max_new_tokens=1)
        h.run()
    again = h.add("again", [*SHARED, 48, 49], max_new_tokens=1)
    h.run()
    return again.cached_tokens


@pytest.mark.parametrize(
    ("retention", "found"),
    [(None, 0), (Retention(60), 32), (Retention(60, 32), 32), (Retention(60, 16), 16)],
)
def test_pressure_evicts_what_is_not_retained(harness, retention, found):
    assert after_pressure(harness, retention) == found


def test_a_retained_prefix_does_not_stand_in_the_way_of_a_request_that_needs_its_room(harness):
    h = harness(capacity=100, page_size=4)
    h.add("first", SHARED, max_new_tokens=1, retention=Retention(60))
    h.run()
    h.add("large", [43] * 90, max_new_tokens=2)
    h.run()
    assert h.outputs["large"].finish_reason.type == "length"
    assert h.manager.peek([*SHARED, 0]) < 32


@pytest.mark.parametrize(
    ("retention", "named"),
    [
        (Retention(0), "retain_seconds"),
        (Retention(float("nan")), "retain_seconds"),
        (Retention(60, -1), "retain_tokens"),
        (Retention(60, True), "retain_tokens"),
    ],
)
def test_a_retention_of_no_time_or_length_is_refused(harness, retention, named):
    h = harness()
    with pytest.raises(ValueError, match=named):
        h.add("a", SHARED, retention=retention)
    assert not h.scheduler.has("a")
