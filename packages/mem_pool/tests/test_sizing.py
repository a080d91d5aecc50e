import pytest
from hypothesis import given
from hypothesis import strategies as st

from phloem.mem_pool import capacity_tokens

GIB = 1 << 30


def test_the_default_takes_at_most_one_gib():
    assert capacity_tokens(1 << 10, 64 * GIB) == (1 << 20) - 1


def test_the_default_leaves_a_tenth_of_little_memory():
    assert capacity_tokens(1 << 10, 100 << 10) == 89


def test_a_fraction_lifts_the_cap():
    assert capacity_tokens(1 << 10, 64 * GIB, mem_fraction_static=0.5) == (32 << 20) - 1


def test_a_token_count_lifts_the_cap_and_is_rounded_down_to_pages():
    assert (
        capacity_tokens(1 << 10, 64 * GIB, max_total_tokens=(2 << 20) + 5, page_size=16) == 2 << 20
    )


def test_a_token_count_that_does_not_fit_is_refused_with_the_numbers():
    with pytest.raises(ValueError, match=r"max_total_tokens 2048 needs 2\.0 MiB .* 921 tokens"):
        capacity_tokens(1 << 10, 1 << 20, max_total_tokens=2048, mem_fraction_static=0.9007)


def test_no_room_for_one_page_is_refused_with_the_numbers():
    with pytest.raises(ValueError, match=r"a page of 64 tokens at 1024 bytes .* 0\.1 MiB"):
        capacity_tokens(1 << 10, 100 << 10, page_size=64)


def test_slot_ids_stay_within_int32():
    assert capacity_tokens(1, 1 << 40, cap_bytes=None) == (1 << 31) - 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mem_fraction_static": 0.0}, r"mem_fraction_static 0\.0 is not in \(0, 1\]"),
        ({"mem_fraction_static": 1.5}, r"mem_fraction_static 1\.5 is not in \(0, 1\]"),
        ({"max_total_tokens": 15, "page_size": 16}, "max_total_tokens 15 is less than a page"),
        ({"page_size": 24}, "page_size 24 is no power of two"),
        ({"bytes_per_token": 0}, "bytes_per_token 0"),
    ],
)
def test_values_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        capacity_tokens(**{"bytes_per_token": 4, "available_bytes": GIB, **options})


@given(
    bytes_per_token=st.integers(1, 1 << 20),
    available=st.integers(-GIB, 64 * GIB),
    fraction=st.none() | st.floats(0.01, 1),
    tokens=st.none() | st.integers(1, 1 << 24),
    page_size=st.sampled_from([1, 16, 64]),
)
def test_pool_and_padding_stay_within_the_share(
    bytes_per_token, available, fraction, tokens, page_size
):
    try:
        capacity = capacity_tokens(
            bytes_per_token,
            available,
            mem_fraction_static=fraction,
            max_total_tokens=tokens,
            page_size=page_size,
        )
    except ValueError:
        return
    assert capacity > 0
    assert capacity % page_size == 0
    assert (capacity + page_size) * bytes_per_token <= available * (fraction or 0.9)
    assert capacity + page_size <= 1 << 31
    if tokens is not None:
        assert tokens - page_size < capacity <= tokens
