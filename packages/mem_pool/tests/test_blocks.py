import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phloem.mem_pool.blocks import chain, tail_name

PARTS = st.recursive(
    st.none() | st.integers(-2, 2) | st.text("ab:1", max_size=3) | st.binary(max_size=2),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=4,
)


def block_names(fingerprint, namespace, tokens, block):
    return chain(fingerprint, namespace, np.array(tokens, np.int32), block)[1:]


def test_names_are_of_whole_blocks_and_of_all_tokens_before():
    one = block_names("m", (), [1, 2, 3, 4, 5], 2)
    two = block_names("m", (), [1, 2, 3, 9, 5], 2)
    assert len(one) == len(two) == 2
    assert one[0] == two[0]
    assert one[1] != two[1]
    assert block_names("m", (), [9, 2, 3, 4], 2)[1] != one[1]
    assert block_names("m", (), [1], 2) == []


def test_a_tail_is_named_by_where_it_begins_and_by_its_first_page():
    (start, one) = chain("m", (), np.array([1, 2], np.int32), 2)
    page, other = np.array([3, 4], np.int32), np.array([3, 5], np.int32)
    names = {tail_name(start, page), tail_name(one, page), tail_name(one, other), start, one}
    assert len(names) == 5
    assert tail_name(one, page) == tail_name(one, page.copy())


@pytest.mark.parametrize("other", [("m", ("b",), 2), ("n", ("a",), 2), ("m", ("a",), 4)])
def test_another_model_namespace_or_size_of_block_has_other_names(other):
    fingerprint, namespace, block = other
    tokens = [1, 2, 3, 4]
    assert set(block_names("m", ("a",), tokens, 2)).isdisjoint(
        block_names(fingerprint, namespace, tokens, block)
    )


@given(st.lists(PARTS, max_size=3).map(tuple), st.lists(PARTS, max_size=3).map(tuple))
def test_namespaces_share_names_only_if_they_are_equal(a, b):
    names = [block_names("m", namespace, [1, 2], 2) for namespace in (a, b)]
    assert (names[0] == names[1]) == (a == b)


def test_the_fingerprint_cannot_run_over_into_the_namespace():
    assert block_names("m", ("a",), [1], 1) != block_names("m" + "t1:s1:a", (), [1], 1)


def test_a_namespace_that_is_not_equal_in_every_process_is_refused():
    with pytest.raises(TypeError, match="float"):
        block_names("m", (1.5,), [1], 1)


def test_names_are_equal_in_every_process():
    code = (
        "import numpy as np; from phloem.mem_pool.blocks import chain; tokens = np.arange(1, 4);"
        "print(chain('m', ('salt', 3, None, b'x', ('é',)), tokens, 1)[-1].hex())"
    )
    path = f"import sys; sys.path[:] = {sys.path!r}; "
    printed = [
        subprocess.run(
            [sys.executable, "-c", path + code],
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    ]
    here = block_names("m", ("salt", 3, None, b"x", ("é",)), [1, 2, 3], 1)[-1].hex()
    assert printed == [here, here]
    assert here == "0a7d2ccbee27b8ad431cddc8d6c19e01a9649d1314e30423dacf1188ecdd923e"
