import pytest
from hypothesis import given
from hypothesis import strategies as st

from phloem.radix_cache import Key
from phloem.radix_cache.simulated import SimulatedTree

NAMESPACES = [(), ("a", "bc"), ("ab", "c")]

queues = st.lists(
    st.tuples(
        st.builds(
            lambda shared, rest: [0] * shared + rest,
            st.integers(0, 12),
            st.lists(st.integers(0, 2), max_size=8),
        ),
        st.sampled_from(NAMESPACES),
    ),
    max_size=25,
)


def common(one, other, page_size):
    """Tokens in whole pages that two (tokens, namespace) share."""
    if one[1] != other[1]:
        return 0
    shared = 0
    for a, b in zip(one[0], other[0]):
        if a != b:
            break
        shared += 1
    return shared - shared % page_size


def filled(queue, page_size):
    tree = SimulatedTree(page_size)
    added = [tree.add(Key(tokens, space), i) for i, (tokens, space) in enumerate(queue)]
    return tree, added


@given(queues, st.sampled_from([1, 2, 4]))
def test_add_finds_the_first_item_that_shares_the_most(queue, page_size):
    _, added = filled(queue, page_size)
    for i, shared in enumerate(added):
        lengths = [common(queue[i], earlier, page_size) for earlier in queue[:i]]
        longest = max(lengths, default=0)
        assert shared.length == longest
        assert shared.item == (lengths.index(longest) if longest else None)


@given(queues, st.sampled_from([1, 2, 4]), st.integers(1, 9))
def test_groups_are_the_classes_of_sharing_at_least_so_much(queue, page_size, min_length):
    tree, _ = filled(queue, page_size)
    classes = []
    for i, key in enumerate(queue):
        for known in classes:
            if common(key, queue[known[0]], page_size) >= min_length:
                known.append(i)
                break
        else:
            classes.append([i])
    groups = tree.groups(min_length)
    assert [list(group.items) for group in groups] == [c for c in classes if len(c) > 1]
    assert tree.leaders(min_length) == [c[0] for c in classes]
    for group in groups:
        assert group.leader == group.items[0]
        assert group.length == min(
            common(queue[i], queue[j], page_size) for i in group.items for j in group.items if i < j
        )


def test_of_requests_with_one_new_prefix_only_the_first_need_not_wait():
    tree = SimulatedTree(page_size=4)
    system = list(range(100))
    assert tree.add(Key([*system, 1]), "a").length == 0
    assert tree.add(Key([*system, 2]), "b").item == "a"
    assert tree.add(Key([7, 7, 7, 7]), "c").item is None
    assert tree.add(Key([*system, 2, 3, 4, 5]), "d").length == 100
    assert tree.leaders(32) == ["a", "c"]
    assert [(group.leader, group.items) for group in tree.groups(32)] == [("a", ("a", "b", "d"))]
    assert len(tree) == 4


def test_equal_keys_in_two_namespaces_share_nothing():
    tree = SimulatedTree()
    tree.add(Key([1, 2, 3], ("one",)), 1)
    assert tree.add(Key([1, 2, 3], ("two",)), 2).length == 0


def test_a_partial_page_is_not_shared():
    tree = SimulatedTree(page_size=4)
    tree.add(Key([1, 2, 3]), 1)
    assert tree.add(Key([1, 2, 3]), 2).length == 0
    assert tree.groups(1) == []


def test_sizes_below_one_are_refused():
    with pytest.raises(ValueError, match="page_size 0 is less than 1"):
        SimulatedTree(page_size=0)
    with pytest.raises(ValueError, match="min_length 0 is less than 1"):
        SimulatedTree().groups(0)
    with pytest.raises(ValueError, match="min_length 0 is less than 1"):
        SimulatedTree().leaders(0)
