"""What the scheduler shows of its pool and tree, over the real ones."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from phloem.mem_pool import CacheManager, NoPrefixTree, RowTable, TokenAllocator
from phloem.radix_cache import RadixCache
from phloem.server.control import answer


def scheduler_of(tree, capacity=32):
    return SimpleNamespace(manager=CacheManager(tree, RowTable(4, 32), TokenAllocator(capacity)))


def compute(manager, tokens, namespace=()):
    """A lease on a sequence, all of it computed and published."""
    lease = manager.open(tokens, namespace)
    missing = len(tokens) - lease.committed
    assert manager.extend(lease, missing)
    manager.commit(lease, missing)
    manager.checkpoint(lease, tokens)
    return lease


@pytest.fixture
def scheduler():
    return scheduler_of(RadixCache())


def test_the_states_of_the_pool_make_the_whole(scheduler):
    manager = scheduler.manager
    manager.close(compute(manager, [1, 2, 3]), [1, 2, 3])
    running = compute(manager, [5, 6, 7, 8])
    assert manager.extend(running, 2)
    pool = answer(scheduler, "tree", {"limit": 10})["pool"]
    expected = {"free": 23, "evictable": 3, "protected": 4, "leased": 2, "total": 32}
    assert pool == {**expected, "page_size": 1}


def test_the_tree_is_told_by_namespaces_as_messages_take_it(scheduler):
    manager = scheduler.manager
    namespaces = [(), ("salt", None), ("nested", ("deep", 1), b"\xff")]
    for namespace in namespaces:
        manager.close(compute(manager, [1, 2, 3], namespace), [1, 2, 3])
    tree = answer(scheduler, "tree", {"limit": 10})["tree"]
    assert (tree["policy"], tree["nodes"], tree["spaces"]) == ("lru", 3, 3)
    told = [space["namespace"] for space in tree["namespaces"]]
    assert sorted(told, key=str) == sorted(
        [[], ["salt", None], ["nested", ["deep", 1], "ff"]], key=str
    )
    (node,) = tree["namespaces"][0]["nodes"]
    assert (node["parent"], node["start"], node["end"], node["locks"]) == (-1, 0, 3, 0)


def test_a_node_that_is_shown_tells_its_tokens_until_it_has_left(scheduler):
    manager = scheduler.manager
    manager.close(compute(manager, [4, 5, 6]), [4, 5, 6])
    (space,) = answer(scheduler, "tree", {"limit": 1})["tree"]["namespaces"]
    asked = {"id": space["nodes"][0]["id"]}
    assert answer(scheduler, "tree_node", asked) == {"tokens": [4, 5, 6]}
    manager.flush()
    assert answer(scheduler, "tree_node", asked) == {"tokens": None}


@pytest.mark.parametrize("id", ["", "7", "a.b", "-1.3", "1.2.3", "1." + "9" * 60, "\u0661.\u0664"])
def test_what_is_no_nodes_id_is_refused(scheduler, id):
    with pytest.raises(ValueError, match="no node's"):
        answer(scheduler, "tree_node", {"id": id})


def test_where_nothing_is_cached_there_is_a_pool_and_no_tree():
    scheduler = scheduler_of(NoPrefixTree(1))
    shown = answer(scheduler, "tree", {"limit": 10})
    assert shown["tree"] is None
    assert shown["pool"]["free"] == shown["pool"]["total"] == 32
    assert answer(scheduler, "tree_node", {"id": "1.2"}) == {"tokens": None}


@pytest.mark.parametrize("limit", [-5, 0])
def test_no_nodes_are_shown_where_none_are_wanted(scheduler, limit):
    scheduler.manager.close(compute(scheduler.manager, [1, 2]), [1, 2])
    tree = answer(scheduler, "tree", {"limit": limit})["tree"]
    assert (tree["nodes"], tree["namespaces"]) == (1, [])
