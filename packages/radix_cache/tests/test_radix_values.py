import subprocess
import sys
from array import array

import numpy as np
import pytest

from phloem.radix_cache import Key, RadixCache

KINDS = {
    "list": lambda ids: list(ids),
    "tuple": lambda ids: tuple(ids),
    "array": lambda ids: array("q", ids),
    "numpy": lambda ids: np.array(ids, np.int64),
}


@pytest.mark.parametrize("kind", KINDS)
def test_values_come_back_in_the_type_they_came_in(kind):
    make = KINDS[kind]
    cache = RadixCache()
    cache.insert(Key([1, 2, 3]), make([11, 12, 13]))
    done = cache.insert(Key([1, 2, 4]), make([0, 0, 14]))
    whole = done.values()
    assert type(whole) is type(make([]))
    assert list(whole) == [11, 12, 14]
    empty = cache.match(Key([9])).values()
    assert type(empty) is type(whole)
    assert len(empty) == 0
    assert [list(part) for part in cache.evict(1)] == [[13]]


def test_what_the_cache_keeps_shares_no_memory_with_what_it_was_given():
    given = np.arange(1000, dtype=np.int32)
    cache = RadixCache(values="numpy")
    done = cache.insert(Key(range(10)), given)
    cache.match(Key(range(4)))
    segments = [*cache.iter_values(), done.values()]
    assert all(part.base is None for part in segments)
    assert not any(np.shares_memory(part, given) for part in segments)
    assert all(part.base is None for part in cache.evict(3))


def test_named_numpy_values_are_int32_before_any_were_inserted():
    empty = RadixCache(values="numpy").match(Key([1])).values()
    assert (empty.dtype, empty.shape) == (np.int32, (0,))


def test_numpy_values_may_have_rows_of_any_shape():
    cache = RadixCache()
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    cache.insert(Key(range(4)), rows)
    assert cache.match(Key([0, 1, 9])).values().tolist() == rows[:2].tolist()
    assert cache.match(Key([9])).values().shape == (0, 3)


def test_values_of_an_unknown_type_are_refused_with_the_cure():
    with pytest.raises(TypeError, match=r"no value adapter for set: .*ValueAdapter"):
        RadixCache().insert(Key([1]), {1})


def test_an_adapter_of_ones_own_is_used():
    class Text:
        def length(self, values):
            return len(values)

        def cut(self, values, start, stop):
            return values[start:stop]

        def join(self, parts):
            return "".join(parts)

    cache = RadixCache(values=Text())
    cache.insert(Key([1, 2, 3, 4]), "abcd")
    assert cache.match(Key([1, 2, 9])).values() == "ab"
    assert cache.match(Key([9])).values() == ""
    assert cache.evict(1) == ["d"]


def test_torch_values_are_cloned_and_joined():
    torch = pytest.importorskip("torch")
    cache = RadixCache()
    given = torch.arange(6)
    done = cache.insert(Key(range(6)), given)
    cache.match(Key(range(2)))
    given.zero_()
    assert done.values().tolist() == list(range(6))
    assert [part.tolist() for part in cache.evict(4)] == [[2, 3, 4, 5]]
    assert cache.match(Key([9])).values().shape == (0,)
    assert RadixCache(values="torch").match(Key([9])).values().dtype == torch.int64


def test_torch_values_leave_the_autograd_graph():
    torch = pytest.importorskip("torch")
    cache = RadixCache()
    done = cache.insert(Key(range(6)), torch.ones(6, requires_grad=True) * 2)
    cache.match(Key(range(2)))
    kept = [done.values(), *cache.iter_values(), cache.match(Key([9])).values()]
    assert not any(part.requires_grad for part in kept)


def test_importing_and_using_the_cache_loads_neither_torch_nor_numpy():
    script = (
        "import sys, phloem.radix_cache as r\n"
        "c = r.RadixCache()\n"
        "c.insert(r.Key([1, 2, 3]), [4, 5, 6])\n"
        "assert c.match(r.Key([1, 2])).values() == [4, 5]\n"
        "loaded = {'torch', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'loaded {loaded}' if loaded else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
