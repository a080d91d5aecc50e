import subprocess
import sys
import textwrap

import numpy as np

from phloem.mem_pool import NoPrefixTree, PrefixTree
from phloem.radix_cache import RadixCache


def test_the_radix_cache_is_a_prefix_tree():
    tree: PrefixTree = RadixCache(page_size=2)
    given = np.arange(10, 16, dtype=np.int32)
    key = tree.key([1, 2, 3, 4, 5, 6], ("a",))
    inserted = tree.insert(key, given)
    assert (inserted.length, list(inserted.declined)) == (6, [])
    given[:] = 0
    lock = tree.lock(inserted)
    again = tree.insert(key, np.arange(20, 26, dtype=np.int32))
    assert list(again.declined) == [range(6)]
    assert again.values().tolist() == [10, 11, 12, 13, 14, 15]
    handle = tree.match(key)
    tree.match(tree.key([1, 2, 9, 9], ("a",)))  # splits
    assert handle.values().dtype == np.int32
    assert handle.values().tolist() == inserted.values().tolist() == again.values().tolist()
    assert sorted(slot for part in tree.iter_values() for slot in part.tolist()) == (
        list(range(10, 16))
    )
    assert (tree.sizes.evictable, tree.sizes.protected, tree.sizes.total) == (0, 6, 6)
    assert list(tree.evict(1)) == []
    tree.unlock(lock)
    assert [part.tolist() for part in tree.evict(1)] == [[14, 15]]
    assert tree.peek(key) == 4
    assert sum(len(part) for part in tree.reset()) == 4


def test_no_prefix_tree_keeps_nothing():
    tree: PrefixTree = NoPrefixTree(page_size=2)
    key = tree.key([1, 2], ())
    inserted = tree.insert(key, np.array([4, 5], np.int32))
    assert (inserted.length, list(inserted.declined), len(inserted.values())) == (0, [], 0)
    assert (tree.peek(key), tree.match(key).length, tree.sizes.total) == (0, 0, 0)
    assert not [*tree.evict(4), *tree.drop(()), *tree.reset(), *tree.iter_values()]


def test_the_package_loads_neither_torch_nor_a_tree():
    script = """
        import sys
        import phloem.mem_pool
        print([name for name in ("torch", "phloem.radix_cache") if name in sys.modules])
    """
    run = [sys.executable, "-c", textwrap.dedent(script)]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip() == "[]"
