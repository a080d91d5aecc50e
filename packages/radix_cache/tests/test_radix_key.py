import ctypes
import pickle
from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phloem.radix_cache import Key
from phloem.radix_cache.key import TOKEN_BYTES, check_namespace, common_prefix

TOKENS = st.integers(-(2**31), 2**31 - 1)


@pytest.mark.parametrize(
    "tokens",
    [
        [1, 2, 3],
        (1, 2, 3),
        range(1, 4),
        array("i", [1, 2, 3]),
        array("q", [1, 2, 3]),
        np.array([1, 2, 3], np.int32),
        np.array([1, 2, 3], np.int64),
        np.array([1, 2, 3], np.uint32),
        np.array([1, 9, 2, 9, 3], np.int32)[::2],
        np.array([1, 2, 3], ">i4"),
        np.array([1, 2, 3], ">u8"),
        (ctypes.c_int32 * 3)(1, 2, 3),
        (ctypes.c_int64 * 3)(1, 2, 3),
        (ctypes.c_int16.__ctype_be__ * 3)(1, 2, 3),
        (token for token in (1, 2, 3)),
        b"\x01\x02\x03",
    ],
    ids=lambda tokens: f"{type(tokens).__name__}-{getattr(tokens, 'dtype', '')}",
)
def test_the_same_tokens_in_any_sequence_make_the_same_key(tokens):
    key = Key(tokens)
    assert key == Key([1, 2, 3])
    assert hash(key) == hash(Key([1, 2, 3]))
    assert key.tokens().tolist() == [1, 2, 3]
    assert len(key) == 3


@given(st.lists(TOKENS), st.integers(0, 20), st.integers(0, 20))
def test_cutting_a_key_is_cutting_its_tokens(tokens, start, stop):
    key = Key(tokens, ("ns",))
    assert key[start:stop] == Key(tokens[start:stop], ("ns",))
    assert key.head(stop) == Key(tokens[:stop], ("ns",))
    assert key[-2:] == Key(tokens[-2:], ("ns",))


def test_a_key_with_a_step_or_a_negative_head_is_refused():
    with pytest.raises(ValueError, match="step 2"):
        Key([1, 2, 3])[::2]
    with pytest.raises(ValueError, match=r"head\(-1\)"):
        Key([1, 2, 3]).head(-1)


@pytest.mark.parametrize("token", [2**31, -(2**31) - 1])
def test_a_token_outside_int32_is_named_with_its_position(token):
    with pytest.raises(ValueError, match=rf"token {token} at position 2 .*int32"):
        Key([0, 1, token])


@pytest.mark.parametrize("kind", [iter, np.array, lambda ids: [np.int64(each) for each in ids]])
def test_a_token_that_does_not_fit_is_named_whatever_it_comes_in(kind):
    with pytest.raises(ValueError, match=rf"token {2**40} at position 1 .*int32"):
        Key(kind([7, 2**40]))


@pytest.mark.parametrize(
    ("tokens", "name"),
    [
        (np.array([1, 2], np.float16), "float16"),
        (np.array([1, 2], ">f8"), "float64"),
        ((ctypes.c_float * 2)(1, 2), "float32"),
        (np.array([1, 2], complex), "'Zd'"),
        (np.array([1, 2], object), "'O'"),
    ],
)
def test_a_buffer_of_what_is_no_int_is_refused_with_its_type_and_the_cure(tokens, name):
    with pytest.raises(TypeError, match=rf"a buffer of .*{name}, not of ints: convert .* int32"):
        Key(tokens)


@pytest.mark.parametrize("use", [lambda key: key[1], list, lambda key: 2 in key])
def test_a_key_used_as_a_list_says_where_its_tokens_are(use):
    with pytest.raises(TypeError, match=r"cut by slices .*key\.tokens\(\) gives its ids"):
        use(Key([1, 2, 3]))


def test_unsigned_buffers_are_checked_too():
    with pytest.raises(ValueError, match="token 4294967295 at position 0"):
        Key(np.array([2**32 - 1], np.uint32))


def test_what_is_no_sequence_of_ints_is_refused():
    with pytest.raises(TypeError):
        Key([1.5])
    with pytest.raises(TypeError):
        Key("text")
    with pytest.raises(ValueError, match="2 dimensions"):
        Key(np.zeros((2, 2), np.int32))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", "bc"), ("ab", "c")),
        ((None,), ("",)),
        ((), (None,)),
        ((1,), ("1",)),
        ((b"a",), ("a",)),
        ((("a",), "b"), ("a", ("b",))),
    ],
)
def test_different_namespaces_make_different_keys(one, other):
    assert Key([1, 2], one) != Key([1, 2], other)


@pytest.mark.parametrize("part", [True, 1.0, frozenset(), ["list"]])
def test_namespace_parts_that_could_equal_another_type_are_refused(part):
    with pytest.raises(TypeError, match="namespace part"):
        Key([1], ("a", part))


def test_a_namespace_that_is_no_tuple_is_refused_with_the_cure():
    with pytest.raises(TypeError, match=r"write \('salt',\)"):
        Key([1], "salt")


def test_a_namespace_can_be_checked_without_a_key():
    check_namespace(("a", 1, b"", None, ("b",)))
    with pytest.raises(TypeError, match="namespace part True"):
        check_namespace(("a", (True,)))


def test_a_key_survives_pickling_and_prints_shortly():
    key = Key(range(1000), ("a", None))
    assert pickle.loads(pickle.dumps(key)) == key
    assert repr(key) == "Key(1000 tokens: 0, 1, 2, 3, 4, 5, 6, 7, ...; namespace=('a', None))"


@given(
    st.lists(st.integers(0, 1), max_size=200),
    st.lists(st.integers(0, 1), max_size=200),
    st.integers(0, 150),
    st.lists(st.integers(5, 6), max_size=3),
    st.sampled_from([1, 3, 4, 16]),
)
def test_the_common_prefix_is_that_of_a_loop_rounded_to_units(edge, data, agree, before, unit):
    edge = data[:agree] + edge
    count = 0
    while count < min(len(edge), len(data)) and edge[count] == data[count]:
        count += 1
    found = common_prefix(
        Key(edge).data, Key(before + data).data, len(before) * TOKEN_BYTES, unit * TOKEN_BYTES
    )
    assert found == (count - count % unit) * TOKEN_BYTES
