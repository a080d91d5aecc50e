"""The heavy part of a tree at a bounded cost."""

from __future__ import annotations

import pytest

from phloem.radix_cache import Key, RadixCache


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def insert(cache, tokens, namespace=(), **options):
    return cache.insert(Key(tokens, namespace), list(range(len(tokens))), **options)


def test_it_shows_the_shape_of_a_small_tree_with_its_locks_and_uses():
    clock = Clock()
    cache = RadixCache(clock=clock)
    insert(cache, [1, 2, 3, 4])
    insert(cache, [1, 2, 9], retain_for=60)
    insert(cache, [7, 7], namespace=("salt",))
    lock = cache.lock(cache.match(Key([1, 2, 3, 4])))
    clock.now += 5
    cache.match(Key([7, 7], ("salt",)))
    outline = cache.outline(10)
    cache.unlock(lock)

    spaces = {space.namespace: space.nodes for space in outline.spaces}
    assert (outline.policy, outline.nodes, outline.namespaces) == ("lru", 4, 2)
    top, *below = spaces[()]
    assert (top.parent, top.start, top.end, top.children, top.carried) == (-1, 0, 2, 2, 5)
    assert {(node.parent, node.start, node.end) for node in below} == {(0, 2, 4), (0, 2, 3)}
    assert [node.locks for node in (top, *below)] == [1, *(int(n.end == 4) for n in below)]
    assert [node.retained for node in (top, *below)] == [True, *(n.end == 3 for n in below)]
    (salted,) = spaces["salt",]
    assert (top.idle, salted.idle, salted.hits) == (5.0, 0.0, 1)
    assert all(node.on_device for nodes in spaces.values() for node in nodes)


def test_what_only_the_host_has_is_told_apart():
    cache = RadixCache(host_tier=True)
    insert(cache, [1, 2, 3])
    for backup in cache.backups():
        cache.backed_up(backup, [0, 0, 0])
    cache.evict(3)
    ((_, (node,)),) = cache.outline(5).spaces
    assert (node.on_device, node.locks, node.carried) == (False, 0, 3)


@pytest.mark.parametrize("limit", [0, 1, 3, 7])
def test_the_nodes_that_carry_most_are_shown_with_their_parents(limit):
    cache = RadixCache(clock=Clock())
    for branch in range(5):
        for leaf in range(branch + 1):
            insert(cache, [branch] * 4 + [100 + leaf] * (leaf + 1))
    everything = [node for space in cache.outline(1000).spaces for node in space.nodes]
    shown = [node for space in cache.outline(limit).spaces for node in space.nodes]
    carried = sorted((node.carried for node in everything), reverse=True)
    assert sorted((node.carried for node in shown), reverse=True) == carried[:limit]
    assert all(-1 <= node.parent < at for at, node in enumerate(shown))
    ids = {node.id: node for node in everything}
    for node in shown:
        assert ids[node.id]._replace(parent=0) == node._replace(parent=0)
        assert node.parent == -1 or shown[node.parent].end == node.start


def test_a_large_tree_is_not_read_to_its_end():
    cache = RadixCache()
    for first in range(3000):
        insert(cache, [first, 1], namespace=(first % 3,))
    big = insert(cache, [5000] * 50)
    outline = cache.outline(200)
    assert outline.nodes == 3001
    assert sum(len(space.nodes) for space in outline.spaces) == 200
    assert any(node.carried == big.length for space in outline.spaces for node in space.nodes)


def test_an_id_finds_the_tokens_of_its_node_until_it_is_gone():
    cache = RadixCache()
    insert(cache, [1, 2, 3, 4, 5, 6])
    insert(cache, [1, 2, 3, 9])
    ((_, nodes),) = cache.outline(10).spaces
    found = {(n.start, n.end): n.id for n in nodes}
    assert list(cache.outlined_tokens(found[3, 6], 10)) == [4, 5, 6]
    assert list(cache.outlined_tokens(found[3, 6], 2)) == [4, 5]
    assert list(cache.outlined_tokens(found[0, 3], 10)) == [1, 2, 3]
    cache.reset()
    assert cache.outlined_tokens(found[3, 6], 10) is None


def test_a_negative_limit_is_refused():
    with pytest.raises(ValueError, match="limit -1 is negative"):
        RadixCache().outline(-1)
