from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from phloem.radix_cache import Key, RadixCache
from phloem.radix_cache.order import dfs_order


@dataclass(eq=False)
class Point:
    parent: "Point | None" = None


def path(point):
    return [*path(point.parent), point] if point.parent else [point]


def brute_force(nodes):
    """Sorts by the path from the top: at each level by weight, then by first request."""
    paths = [path(node) for node in nodes]

    def rank(i):
        steps = []
        for step in paths[i]:
            under = [j for j, other in enumerate(paths) if step in other]
            steps.append((0, -len(under), under[0]))
        # What ends at a node comes after all that goes on below it.
        return [*steps, (1, 0, i)]

    return sorted(range(len(nodes)), key=rank)


@st.composite
def forests(draw):
    points = [Point()]
    for parent in draw(st.lists(st.integers(-1, 30), max_size=30)):
        points.append(Point(points[parent % len(points)] if parent >= 0 else None))
    return draw(st.lists(st.sampled_from(points), max_size=30))


@given(forests())
def test_the_order_is_that_of_sorting_whole_paths(nodes):
    assert dfs_order(nodes) == brute_force(nodes)


def test_the_heavier_subtree_comes_first_and_ties_keep_the_order_given():
    root = Point()
    light, heavy, other = Point(root), Point(root), Point(root)
    assert dfs_order([light, heavy, other, heavy]) == [1, 3, 0, 2]


def test_longer_matches_come_before_the_shorter_ones_of_their_path():
    root = Point()
    middle = Point(root)
    deep = Point(middle)
    assert dfs_order([root, middle, deep, middle]) == [2, 1, 3, 0]


def test_nothing_gives_nothing():
    assert dfs_order([]) == []


def test_a_deep_tree_needs_no_recursion():
    node = None
    for _ in range(5_000):
        node = Point(node)
    assert dfs_order([node, node.parent]) == [0, 1]


def test_requests_that_share_a_cached_prefix_are_put_together():
    cache = RadixCache()
    cache.insert(Key([1, 2, 3, 4]), [0] * 4)
    cache.insert(Key([1, 2, 5, 6]), [0] * 4)
    cache.insert(Key([9, 9]), [0] * 2)
    prompts = [[9, 9, 1], [1, 2, 3, 4, 7], [7, 7], [1, 2, 5, 6, 7], [1, 2, 3, 4, 8]]
    nodes = [cache.match(Key(prompt)).node for prompt in prompts]
    assert dfs_order(nodes) == [1, 4, 3, 0, 2]
