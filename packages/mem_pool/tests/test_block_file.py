import pytest
from hypothesis import given
from hypothesis import strategies as st

from phloem.mem_pool.block_file import HEADER_BYTES, content, header

NAME = bytes(range(32))


@pytest.mark.parametrize("data", [b"", b"x", b"some data" * 100])
def test_what_was_written_is_read(data):
    assert content(NAME, header(NAME, data) + data) == data


@given(at=st.integers(0, HEADER_BYTES + 9), bit=st.integers(0, 7))
def test_one_changed_bit_is_noticed(at, bit):
    file = bytearray(header(NAME, b"0123456789") + b"0123456789")
    file[at] ^= 1 << bit
    assert content(NAME, bytes(file)) is None


@given(length=st.integers(0, HEADER_BYTES + 9))
def test_a_file_that_was_cut_short_is_noticed(length):
    file = header(NAME, b"0123456789") + b"0123456789"
    assert content(NAME, file[:length]) is None


def test_more_than_there_should_be_and_other_blocks_are_noticed():
    file = header(NAME, b"data") + b"data"
    assert content(NAME, file + b"x") is None
    assert content(bytes(32), file) is None
    assert content(NAME, b"a file of another program, longer than a header by far") is None
